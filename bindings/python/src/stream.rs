//! What a call sends while it runs, taken in bursts: items, notifications and questions in their order, and the end.
//! Never takes more from a caller's stream than Python has asked for.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::future::BoxFuture;
use futures_util::{FutureExt as _, StreamExt as _};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyList;
use sealwire::call::Request;
use sealwire::internal::client::MessageId;
use sealwire::{CallStream, ClientError, RequestBuilder, RpcError, Subscription};
use serde_json::value::RawValue;
use tokio::sync::{Notify, oneshot};

use crate::answer::{Answer, answer};
use crate::event::{Event, ToObject};
use crate::failure::Failure;
use crate::mailbox::Mailbox;
use crate::runtime::Owned;

/// The most parts that are handed to Python together, and the bytes at which no more are added.
const MOST_PARTS: usize = 256;
const MOST_BYTES: usize = 1 << 20;

/// A call or a subscription whose parts Python takes.
#[pyclass(frozen, module = "sealwire._core")]
pub(crate) struct CallParts(Owned<Arc<Parts>>);

struct Parts {
    source: tokio::sync::Mutex<Source>,
    inbox: Arc<Inbox>,
    message_id: MessageId,
}

enum Source {
    Call(CallStream<Box<RawValue>>),
    Subscription(Subscription<Box<RawValue>>),
    /// Only the result is wanted.
    Finishing(BoxFuture<'static, Result<Box<RawValue>, ClientError>>),
    Over,
}

/// What has come beside the items, and the questions that wait for an answer.
#[derive(Default)]
struct Inbox {
    parts: Mutex<Vec<Part>>,
    arrived: Notify,
    questions: Mutex<HashMap<u64, oneshot::Sender<Answer>>>,
    asked: AtomicU64,
}

enum Part {
    Item(Box<RawValue>),
    Note { method: String, params: String },
    Ask { id: u64, method: String, params: String },
}

/// Parts in their order; how it ended, if it has.
struct Burst {
    parts: Vec<Part>,
    end: Option<Result<Box<RawValue>, Box<Failure>>>,
    missed: u64,
}

#[pymethods]
impl CallParts {
    /// Leaves what has come as `(parts, end, missed)`, as soon as there is anything. A part is `(kind, id, method, text)`, with `kind`
    /// 0 for an item, 1 for a notification, 2 for a question. With `skip`, items are left out.
    fn pull(&self, py: Python<'_>, mailbox: &Mailbox, id: u64, skip: bool) -> PyResult<()> {
        let parts = Arc::clone(self.0.get(py)?);
        mailbox.begin(py, id, 0, async move { Event::Other(Box::new(parts.pull(skip).await)) })
    }

    /// Answers a question: `result` is JSON, or `error` is `(code, message, data)`.
    #[pyo3(signature = (id, result=None, error=None))]
    fn answer(
        &self,
        py: Python<'_>,
        id: u64,
        result: Option<String>,
        error: Option<(i32, String, Option<String>)>,
    ) -> PyResult<()> {
        let question = lock(&self.0.get(py)?.inbox.questions).remove(&id);
        let answer = answer(result, error).map_err(PyValueError::new_err)?;
        if let Some(question) = question {
            // If nobody takes it, the call has ended.
            drop(question.send(answer));
        }
        Ok(())
    }

    /// Cancels the call, and leaves whether the service has confirmed that it ended.
    fn cancel(&self, py: Python<'_>, mailbox: &Mailbox, id: u64) -> PyResult<()> {
        let parts = Arc::clone(self.0.get(py)?);
        mailbox.begin(py, id, 0, async move {
            let source = std::mem::replace(&mut *parts.source.lock().await, Source::Over);
            Event::Flag(match source {
                Source::Call(stream) => stream.cancel().await,
                Source::Subscription(stream) => stream.cancel().await,
                // Dropping it cancels the call, too.
                Source::Finishing(_) => false,
                Source::Over => true,
            })
        })
    }

    /// The id of its message; `None` until it is sent.
    fn message_id(&self, py: Python<'_>) -> PyResult<Option<String>> {
        Ok(self.0.get(py)?.message_id.get())
    }
}

impl CallParts {
    pub(crate) fn stream(
        request: RequestBuilder,
        message_id: MessageId,
        method: &str,
        params: &RawValue,
        takes_notes: bool,
        takes_questions: bool,
    ) -> Self {
        Self::open(request, message_id, takes_notes, takes_questions, |request| {
            Source::Call(request.stream(method, params))
        })
    }

    pub(crate) fn subscribe(
        request: RequestBuilder,
        message_id: MessageId,
        method: &str,
        params: &RawValue,
        takes_notes: bool,
        takes_questions: bool,
    ) -> Self {
        Self::open(request, message_id, takes_notes, takes_questions, |request| {
            Source::Subscription(request.subscribe(method, params))
        })
    }

    fn open(
        mut request: RequestBuilder,
        message_id: MessageId,
        takes_notes: bool,
        takes_questions: bool,
        source: impl FnOnce(RequestBuilder) -> Source,
    ) -> Self {
        let inbox = Arc::new(Inbox::default());
        if takes_notes {
            let inbox = Arc::clone(&inbox);
            request = request.on_notification(move |note| {
                let (method, params) = texts(note);
                inbox.push(Part::Note { method, params });
            });
        }
        if takes_questions {
            let inbox = Arc::clone(&inbox);
            request = request.on_ask(move |question| inbox.ask(question));
        }
        let source = tokio::sync::Mutex::new(source(request));
        Self(Owned::new(Arc::new(Parts { source, inbox, message_id })))
    }
}

impl Parts {
    async fn pull(&self, skip: bool) -> Burst {
        let mut source = self.source.lock().await;
        loop {
            let parts = std::mem::take(&mut *lock(&self.inbox.parts));
            if !parts.is_empty() {
                return Burst { parts, end: None, missed: source.missed() };
            }
            if skip {
                *source = match std::mem::replace(&mut *source, Source::Over) {
                    Source::Call(stream) => Source::Finishing(stream.finish().boxed()),
                    Source::Subscription(stream) => Source::Finishing(stream.finish().boxed()),
                    source => source,
                };
            }
            tokio::select! {
                biased;
                next = source.next() => return self.burst(&mut source, next).await,
                () = self.inbox.arrived.notified() => {}
            }
        }
    }

    /// This part, and whatever is there already.
    async fn burst(&self, source: &mut Source, first: Next) -> Burst {
        let (mut parts, mut next, mut bytes) = (std::mem::take(&mut *lock(&self.inbox.parts)), Some(first), 0);
        let mut end = None;
        loop {
            match next {
                Some(Next::Item(item)) => {
                    bytes += item.get().len();
                    parts.push(Part::Item(item));
                }
                Some(Next::End(outcome)) => {
                    end = Some(outcome.map_err(|error| Box::new(Failure::of(&error, self.message_id.get()))));
                    break;
                }
                None => break,
            }
            if parts.len() >= MOST_PARTS || bytes >= MOST_BYTES {
                break;
            }
            next = source.next().now_or_never();
            parts.append(&mut lock(&self.inbox.parts));
        }
        Burst { parts, end, missed: source.missed() }
    }
}

enum Next {
    Item(Box<RawValue>),
    End(Result<Box<RawValue>, ClientError>),
}

impl Source {
    /// Cancel safe: an item that is there stays until it is taken.
    async fn next(&mut self) -> Next {
        let item = match self {
            Self::Call(stream) => stream.next().await,
            Self::Subscription(stream) => stream.next().await,
            Self::Finishing(finishing) => {
                let outcome = finishing.await;
                *self = Self::Over;
                return Next::End(outcome);
            }
            Self::Over => return Next::End(Err(ClientError::Ended)),
        };
        match item {
            Some(Ok(item)) => Next::Item(item),
            Some(Err(error)) => {
                *self = Self::Over;
                Next::End(Err(error))
            }
            // The result is there already.
            None => Next::End(match std::mem::replace(self, Self::Over) {
                Self::Call(stream) => stream.finish().await,
                Self::Subscription(stream) => stream.finish().await,
                _ => Err(ClientError::Ended),
            }),
        }
    }

    /// Of a subscription, how many notifications the service has left out.
    fn missed(&self) -> u64 {
        match self {
            Self::Subscription(stream) => stream.missed(),
            _ => 0,
        }
    }
}

impl Inbox {
    fn push(&self, part: Part) {
        lock(&self.parts).push(part);
        self.arrived.notify_one();
    }

    fn ask(self: &Arc<Self>, question: Request) -> impl Future<Output = Answer> + Send + use<> {
        let (send, answered) = oneshot::channel();
        let id = self.asked.fetch_add(1, Ordering::Relaxed);
        lock(&self.questions).insert(id, send);
        let (method, params) = texts(question);
        self.push(Part::Ask { id, method, params });
        // Nobody has the answer if the stream is dropped, and then nobody wants it.
        async move { answered.await.unwrap_or_else(|_| Err(RpcError::internal("not answered"))) }
    }
}

impl ToObject for Burst {
    fn to_object(self: Box<Self>, py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        let parts = PyList::empty(py);
        for part in &self.parts {
            match part {
                Part::Item(item) => parts.append((0, 0, "", item.get()))?,
                Part::Note { method, params } => parts.append((1, 0, method, params))?,
                Part::Ask { id, method, params } => parts.append((2, *id, method, params))?,
            }
        }
        let end = match &self.end {
            None => py.None().into_bound(py),
            Some(Ok(result)) => (false, result.get()).into_pyobject(py)?.into_any(),
            Some(Err(failure)) => (true, failure.to_tuple(py)?).into_pyobject(py)?.into_any(),
        };
        Ok((parts, end, self.missed).into_pyobject(py)?.into_any())
    }
}

fn texts(request: Request) -> (String, String) {
    let params = request.params.as_ref().map_or("null", |params| params.raw().get()).to_owned();
    (request.method, params)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing between lock and unlock can panic halfway.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
