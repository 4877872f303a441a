//! A call that a handler in Python serves: what it may know of it, what it may send on the way, and its answer.
//! Never sends the text of an exception: an answer is a result, or an error object that was meant for the caller.

use std::sync::{Arc, Mutex, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use sealwire::errors::{AskError, AttachmentError};
use sealwire::serve::Attachment;
use sealwire::{Ctx, RpcError, Sink};
use serde_json::value::RawValue;
use tokio::sync::oneshot;

use crate::answer::{Answer, answer, value};
use crate::event::{Event, ToObject};
use crate::failure::Failure;
use crate::mailbox::{Mailbox, Shared};
use crate::outbox::{Disarm, Outbox};
use crate::runtime::Owned;

/// Where calls arrive: the mailbox of the service's loop, and the number under which it listens.
pub(crate) struct Counter {
    pub(crate) mailbox: Arc<Shared>,
    pub(crate) listener: u64,
}

/// The context of a call.
pub(crate) type Context = Ctx<Arc<Counter>>;

/// A call that is served.
#[pyclass(frozen, module = "sealwire._core")]
pub(crate) struct ServedCall(Owned<Inner>);

struct Inner {
    /// Of all calls of this process.
    number: u64,
    /// The method's place in the list that Python has given.
    method: usize,
    ctx: Context,
    params: Option<Box<RawValue>>,
    way: Way,
}

/// How it is answered.
enum Way {
    Once { reply: Mutex<Option<oneshot::Sender<Answer>>>, sink: Option<Sink<Box<RawValue>>> },
    InParts(Arc<Outbox>),
}

/// A call on its way to Python.
pub(crate) struct Arriving(Inner);

/// Nobody waits for a call any more: its handler is told.
pub(crate) struct Gone {
    counter: Arc<Counter>,
    number: u64,
    is_armed: bool,
}

impl Arriving {
    pub(crate) fn once(
        number: u64,
        method: usize,
        ctx: Context,
        params: Option<Box<RawValue>>,
        sink: Sink<Box<RawValue>>,
    ) -> (Self, oneshot::Receiver<Answer>) {
        let (send, receive) = oneshot::channel();
        let way = Way::Once { reply: Mutex::new(Some(send)), sink: Some(sink) };
        (Self(Inner { number, method, ctx, params, way }), receive)
    }

    pub(crate) fn in_parts(
        number: u64,
        method: usize,
        ctx: Context,
        params: Option<Box<RawValue>>,
        outbox: Arc<Outbox>,
    ) -> Self {
        Self(Inner { number, method, ctx, params, way: Way::InParts(outbox) })
    }

    /// Leaves it for the service's loop.
    pub(crate) fn leave(self) -> Gone {
        let (counter, number) = (Arc::clone(self.0.ctx.state()), self.0.number);
        counter.mailbox.leave(counter.listener, Event::Other(Box::new(self)));
        Gone { counter, number, is_armed: true }
    }
}

impl Disarm for Gone {
    fn disarm(mut self) {
        self.is_armed = false;
    }
}

impl Drop for Gone {
    fn drop(&mut self) {
        if self.is_armed {
            let gone = Event::Other(Box::new(Number(self.number)));
            self.counter.mailbox.leave(self.counter.listener, gone);
        }
    }
}

struct Number(u64);

impl ToObject for Number {
    fn to_object(self: Box<Self>, py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        Ok(self.0.into_pyobject(py)?.into_any())
    }
}

impl ToObject for Arriving {
    fn to_object(self: Box<Self>, py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        Ok(Bound::new(py, ServedCall(Owned::new(self.0)))?.into_any())
    }
}

#[pymethods]
impl ServedCall {
    #[getter]
    fn number(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.0.get(py)?.number)
    }

    /// The place of its method in the list that the service was given.
    #[getter]
    fn method(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.0.get(py)?.method)
    }

    /// JSON; `None` if there are none.
    #[getter]
    fn params(&self, py: Python<'_>) -> PyResult<Option<&str>> {
        Ok(self.0.get(py)?.params.as_deref().map(RawValue::get))
    }

    /// Ends it with a result, which is JSON. Raises `ValueError` if that is not.
    fn answer(&self, py: Python<'_>, result: &str) -> PyResult<()> {
        let result = value(result).map_err(PyValueError::new_err)?;
        match &self.0.get(py)?.way {
            Way::InParts(outbox) => outbox.end(Ok(())),
            Way::Once { .. } => self.end(py, Ok(result))?,
        }
        Ok(())
    }

    /// Ends it with an error. If its code is `of_application`, it has no meaning of the protocol, whatever it is.
    #[pyo3(signature = (code, message, data=None, of_application=false))]
    fn fail(
        &self,
        py: Python<'_>,
        code: i32,
        message: String,
        data: Option<String>,
        of_application: bool,
    ) -> PyResult<()> {
        let error = if of_application {
            let data = data.as_deref().map(value).transpose().map_err(PyValueError::new_err)?;
            let made = RpcError::application(code, message);
            Err(data.map_or(made.clone(), |data| made.with_data(&data)))
        } else {
            answer(None, Some((code, message, data))).map_err(PyValueError::new_err)?
        };
        self.end(py, error)
    }

    /// Adds a part of a stream, which is JSON. Whether there is room for another one.
    fn offer(&self, py: Python<'_>, part: &str) -> PyResult<bool> {
        let part = value(part).map_err(PyValueError::new_err)?;
        match &self.0.get(py)?.way {
            Way::InParts(outbox) => Ok(outbox.push(part)),
            Way::Once { .. } => Err(PyValueError::new_err("only a stream has parts that are offered")),
        }
    }

    /// Leaves `True` once there is room for another part; `False` if nobody takes it any more.
    fn room(&self, py: Python<'_>, mailbox: &Mailbox, id: u64) -> PyResult<()> {
        let Way::InParts(outbox) = &self.0.get(py)?.way else {
            return Err(PyValueError::new_err("only a stream has room for parts"));
        };
        let outbox = Arc::clone(outbox);
        mailbox.begin(py, id, 0, async move { Event::Flag(outbox.room().await) })
    }

    /// Sends a part on the way to a result.
    fn send(&self, py: Python<'_>, mailbox: &Mailbox, id: u64, part: &str) -> PyResult<()> {
        let part = value(part).map_err(PyValueError::new_err)?;
        let Way::Once { sink: Some(sink), .. } = &self.0.get(py)?.way else {
            return Err(PyValueError::new_err("parts of a stream are yielded"));
        };
        let sink = sink.clone();
        mailbox.begin(py, id, part.get().len(), async move {
            match sink.send(&part).await {
                Ok(()) => Event::Nothing,
                Err(error) => Failure::of_service("frame", &error).into(),
            }
        })
    }

    /// Tells the caller how far the method is.
    #[pyo3(signature = (done, total=None, message=None))]
    fn progress(&self, py: Python<'_>, done: f64, total: Option<f64>, message: Option<&str>) -> PyResult<()> {
        self.ctx(py)?.progress(done, total, message);
        Ok(())
    }

    /// Sends a notification to the caller.
    fn notify(&self, py: Python<'_>, mailbox: &Mailbox, id: u64, method: String, params: &str) -> PyResult<()> {
        let params = value(params).map_err(PyValueError::new_err)?;
        let ctx = self.ctx(py)?.clone();
        mailbox.begin(py, id, params.get().len(), async move {
            match ctx.notify(&method, &params).await {
                Ok(()) => Event::Nothing,
                Err(error) => Failure::of_service("frame", &error).into(),
            }
        })
    }

    /// Asks the caller, and leaves the JSON of its answer.
    fn ask(&self, py: Python<'_>, mailbox: &Mailbox, id: u64, method: String, params: &str) -> PyResult<()> {
        let params = value(params).map_err(PyValueError::new_err)?;
        let ctx = self.ctx(py)?.clone();
        mailbox.begin(py, id, params.get().len(), async move {
            match ctx.ask::<Box<RawValue>>(&method, &params).await {
                Ok(answer) => Event::Text(answer),
                Err(AskError::Refused(error)) => Failure::of_caller(&error).into(),
                Err(error) => Failure::of_service("ask", &error).into(),
            }
        })
    }

    /// Fetches an attachment, which is named by JSON, and leaves its bytes.
    fn attachment(&self, py: Python<'_>, mailbox: &Mailbox, id: u64, named: &str) -> PyResult<()> {
        let named: Attachment =
            serde_json::from_str(named).map_err(|error| PyValueError::new_err(error.to_string()))?;
        let ctx = self.ctx(py)?.clone();
        mailbox.begin(py, id, 0, async move {
            match ctx.attachment(&named).await {
                Ok(bytes) => Event::Bytes(bytes),
                Err(AttachmentError::Refused(error)) => Failure::of_caller(&error).into(),
                Err(error) => Failure::of_service("attachment", &error).into(),
            }
        })
    }

    /// Leaves nothing once nobody waits for the call any more. A handler that uses this gets a second to clean up.
    fn cancelled(&self, py: Python<'_>, mailbox: &Mailbox, id: u64) -> PyResult<()> {
        let ctx = self.ctx(py)?.clone();
        mailbox.begin(py, id, 0, async move {
            ctx.cancelled().await;
            Event::Nothing
        })
    }

    /// Whether nobody waits for the call any more.
    fn is_cancelled(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.ctx(py)?.is_cancelled())
    }

    /// Who calls, as keyword arguments of `Caller`.
    fn caller<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let caller = self.ctx(py)?.caller();
        let all = PyDict::new(py);
        all.set_item("agent", caller.agent.as_str())?;
        all.set_item("subject", &caller.subject)?;
        all.set_item("delegated", caller.delegated)?;
        all.set_item("roles", caller.roles.iter().map(String::as_str).collect::<Vec<_>>())?;
        all.set_item("key", &caller.key)?;
        all.set_item("algorithm", caller.algorithm.as_str())?;
        all.set_item("token_id", &caller.token.id)?;
        all.set_item("issuer", &caller.token.issuer)?;
        all.set_item("expires_at", caller.token.expires_at)?;
        let claims = serde_json::to_string(&caller.token.claims);
        all.set_item("claims", claims.map_err(|error| PyValueError::new_err(error.to_string()))?)?;
        Ok(all)
    }

    /// `(rule, revision)` of the policy that allowed the call.
    fn permit(&self, py: Python<'_>) -> PyResult<(Option<String>, String)> {
        let permit = self.ctx(py)?.permit();
        Ok((permit.rule().map(ToString::to_string), permit.revision().to_string()))
    }

    fn name(&self, py: Python<'_>) -> PyResult<&str> {
        Ok(self.ctx(py)?.method())
    }

    fn message_id(&self, py: Python<'_>) -> PyResult<&str> {
        Ok(self.ctx(py)?.message_id())
    }

    fn idempotency_key(&self, py: Python<'_>) -> PyResult<Option<&str>> {
        Ok(self.ctx(py)?.idempotency_key())
    }

    fn traceparent(&self, py: Python<'_>) -> PyResult<Option<&str>> {
        Ok(self.ctx(py)?.traceparent())
    }

    /// When the caller stops waiting, in milliseconds since the Unix epoch.
    fn deadline_ms(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.ctx(py)?.deadline_ms())
    }

    fn is_task(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.ctx(py)?.is_task())
    }

    fn takes_frames(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.ctx(py)?.takes_frames())
    }

    fn is_capable_of(&self, py: Python<'_>, name: &str) -> PyResult<Option<bool>> {
        Ok(self.ctx(py)?.is_capable_of(name))
    }

    /// Whether the policy would allow the caller another call; `params` is JSON.
    fn may_call(&self, py: Python<'_>, method: &str, params: &str) -> PyResult<bool> {
        let params = value(params).map_err(PyValueError::new_err)?;
        Ok(self.ctx(py)?.may_call(method, Some(&*params).filter(|params| params.get() != "null")))
    }
}

impl ServedCall {
    fn ctx(&self, py: Python<'_>) -> PyResult<&Context> {
        Ok(&self.0.get(py)?.ctx)
    }

    fn end(&self, py: Python<'_>, answer: Answer) -> PyResult<()> {
        match &self.0.get(py)?.way {
            Way::Once { reply, .. } => {
                let reply = reply.lock().unwrap_or_else(PoisonError::into_inner).take();
                if let Some(reply) = reply {
                    // If nobody takes it, the call has ended.
                    drop(reply.send(answer));
                }
            }
            Way::InParts(outbox) => outbox.end(answer.map(drop)),
        }
        Ok(())
    }
}

/// A handler ended without an answer: its loop was closed.
pub(crate) fn unanswered() -> RpcError {
    RpcError::internal("the handler ended without an answer")
}

/// The end of a stream whose call object is dropped without one.
impl Drop for Inner {
    fn drop(&mut self) {
        if let Way::InParts(outbox) = &self.way {
            outbox.end(Err(unanswered()));
        }
    }
}
