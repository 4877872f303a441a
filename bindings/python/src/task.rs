//! A call that outlives its caller, for threads of Python: each question about it is begun here, and ends in a mailbox.
//! Never ends the call because nobody asks any more.

use std::future::Future;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use sealwire::ClientError;
use sealwire::call::{Task, TaskStatus};
use sealwire::internal::client::MessageId;
use serde_json::value::RawValue;

use crate::event::{Event, ToObject};
use crate::failure::Failure;
use crate::mailbox::Mailbox;
use crate::options::duration;
use crate::runtime::Owned;

/// Questions about one task, with the options of one request.
#[pyclass(frozen, module = "sealwire._core")]
pub(crate) struct TaskQuestions {
    task: Owned<Task>,
    message_id: MessageId,
}

impl TaskQuestions {
    pub(crate) fn new(task: Task, message_id: MessageId) -> Self {
        Self { task: Owned::new(task), message_id }
    }

    fn ask<A>(&self, py: Python<'_>, mailbox: &Mailbox, id: u64, ask: impl FnOnce(Task) -> A) -> PyResult<()>
    where
        A: Future<Output = Result<TaskStatus, ClientError>> + Send + 'static,
    {
        let (asked, message_id) = (ask(self.task.get(py)?.clone()), self.message_id.clone());
        mailbox.begin(py, id, 0, async move {
            match asked.await {
                Ok(status) => Event::Other(Box::new(Told(status))),
                Err(error) => Failure::of(&error, message_id.get()).into(),
            }
        })
    }
}

#[pymethods]
impl TaskQuestions {
    /// Leaves how it is, as keyword arguments of `TaskStatus`.
    fn status(&self, py: Python<'_>, mailbox: &Mailbox, id: u64) -> PyResult<()> {
        self.ask(py, mailbox, id, |task| async move { task.status().await })
    }

    /// The same, once it has ended, or after so many seconds.
    fn wait(&self, py: Python<'_>, mailbox: &Mailbox, id: u64, seconds: f64) -> PyResult<()> {
        let limit = duration("timeout", seconds)?;
        self.ask(py, mailbox, id, move |task| async move { task.wait(limit).await })
    }

    /// Has the service end it, and leaves how it was.
    fn cancel(&self, py: Python<'_>, mailbox: &Mailbox, id: u64) -> PyResult<()> {
        self.ask(py, mailbox, id, |task| async move { task.cancel().await })
    }
}

struct Told(TaskStatus);

impl ToObject for Told {
    fn to_object(self: Box<Self>, py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        let Self(status) = *self;
        let all = PyDict::new(py);
        match status.result::<Box<RawValue>>() {
            Ok(result) => all.set_item("_outcome", (false, result.get()))?,
            Err(error) => all.set_item("_outcome", (true, Failure::of(&error, None).to_tuple(py)?))?,
        }
        all.set_item("state", status.state.as_str())?;
        all.set_item("started", status.started)?;
        all.set_item("limit", status.limit)?;
        all.set_item("ended", status.ended)?;
        all.set_item("expires", status.expires)?;
        all.set_item("keep", status.keep.map(|keep| keep.as_secs()))?;
        let progress = status.progress.map(|progress| (progress.progress, progress.total, progress.message));
        all.set_item("progress", progress)?;
        all.set_item("is_cancelling", status.is_cancelling)?;
        all.set_item("retry_after", status.retry_after.as_secs_f64())?;
        Ok(all.into_any())
    }
}
