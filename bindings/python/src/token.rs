//! Access tokens from a function of Python, which is asked through a mailbox.
//! Never calls it, and never leaves a second question there before the first is answered.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use sealwire::TokenSource;
use sealwire::call::FetchedToken;
use sealwire::errors::TokenFault;
use tokio::sync::oneshot;

use crate::event::{Event, ToObject};
use crate::mailbox::{Mailbox, Shared};
use crate::runtime::Owned;

/// An access token, or whom to ask for one.
#[derive(FromPyObject)]
pub(crate) enum Given<'py> {
    Text(String),
    Function(PyRef<'py, TokenFunction>),
}

/// A function that is asked for tokens: questions arrive under `listener`. Once nobody can ask any more, `None` does.
#[pyclass(frozen, module = "sealwire._core")]
pub(crate) struct TokenFunction(Owned<Mutex<Option<Function>>>);

#[pymethods]
impl TokenFunction {
    #[new]
    fn new(py: Python<'_>, mailbox: &Mailbox, listener: u64) -> PyResult<Self> {
        let function = Function { mailbox: mailbox.shared(py)?, listener, asked: Arc::default() };
        Ok(Self(Owned::new(Mutex::new(Some(function)))))
    }
}

impl TokenFunction {
    /// The source of tokens, for one cache: that asks once at a time.
    pub(crate) fn take(&self, py: Python<'_>) -> PyResult<Function> {
        let taken = self.0.get(py)?.lock().unwrap_or_else(PoisonError::into_inner).take();
        taken.ok_or_else(|| PyValueError::new_err("it is asked for tokens already"))
    }
}

/// The source of tokens that a [`TokenFunction`] is.
pub(crate) struct Function {
    mailbox: Arc<Shared>,
    listener: u64,
    asked: Arc<Mutex<Asked>>,
}

#[derive(Default)]
struct Asked {
    /// Whether a question waits in the mailbox, or is being answered.
    is_asked: bool,
    /// Who waits for the answer. Whoever has given up leaves the place to the next.
    reply: Option<oneshot::Sender<Fetched>>,
}

type Fetched = Result<String, TokenFault>;

/// A question for a token, which is answered once.
#[pyclass(frozen, module = "sealwire._core")]
pub(crate) struct TokenQuestion(Owned<Question>);

struct Question {
    asked: Arc<Mutex<Asked>>,
    is_answered: AtomicBool,
}

impl TokenSource for Function {
    fn fetch(&self) -> FetchedToken<'_> {
        Box::pin(async {
            let (send, receive) = oneshot::channel();
            let is_first = {
                let mut asked = lock(&self.asked);
                asked.reply = Some(send);
                !std::mem::replace(&mut asked.is_asked, true)
            };
            if is_first {
                let question = Question { asked: Arc::clone(&self.asked), is_answered: AtomicBool::new(false) };
                self.mailbox.leave(self.listener, Event::Other(Box::new(question)));
            }
            receive.await.unwrap_or(Err(TokenFault::Dropped))
        })
    }
}

impl fmt::Debug for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Function(..)")
    }
}

impl Drop for Function {
    fn drop(&mut self) {
        self.mailbox.leave(self.listener, Event::Nothing);
    }
}

impl ToObject for Question {
    fn to_object(self: Box<Self>, py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        Ok(Bound::new(py, TokenQuestion(Owned::new(*self)))?.into_any())
    }
}

#[pymethods]
impl TokenQuestion {
    /// Answers it with a token.
    fn give(&self, py: Python<'_>, token: String) -> PyResult<()> {
        self.0.get(py)?.answer(Ok(token));
        Ok(())
    }

    /// Answers it with the reason why there is none.
    fn fail(&self, py: Python<'_>, reason: String) -> PyResult<()> {
        self.0.get(py)?.answer(Err(TokenFault::Other(reason.into())));
        Ok(())
    }
}

impl Question {
    fn answer(&self, fetched: Fetched) {
        // Its place belongs to the next question from then on.
        if self.is_answered.swap(true, Ordering::Relaxed) {
            return;
        }
        let reply = {
            let mut asked = lock(&self.asked);
            asked.is_asked = false;
            asked.reply.take()
        };
        if let Some(reply) = reply {
            // If nobody waits for it any more, it is asked for again.
            drop(reply.send(fetched));
        }
    }
}

/// Nobody will answer it: the loop is closed.
impl Drop for Question {
    fn drop(&mut self) {
        self.answer(Err(TokenFault::Dropped));
    }
}

fn lock(asked: &Mutex<Asked>) -> MutexGuard<'_, Asked> {
    asked.lock().unwrap_or_else(PoisonError::into_inner)
}
