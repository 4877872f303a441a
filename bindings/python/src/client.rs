//! A client on the bus, for threads of Python: each request is begun here and ends in a mailbox.
//! Never waits.

use std::future::Future;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use sealwire::call::StaticToken;
use sealwire::errors::ErrorKind;
use sealwire::{Client, ClientError};
use serde_json::value::RawValue;

use crate::credentials::Credentials;
use crate::event::{Event, ToObject};
use crate::failure::Failure;
use crate::mailbox::Mailbox;
use crate::options::{Options, Tokens, duration};
use crate::runtime::Owned;
use crate::stream::CallParts;
use crate::task::TaskQuestions;
use crate::token::Given;

/// A client on the bus.
#[pyclass(frozen, module = "sealwire._core")]
pub(crate) struct Connection(Owned<Client>);

/// Connects, and leaves a [`Connection`]. `token` takes the place of the credentials' own.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "each is one thing that a client has")]
pub(crate) fn connect(
    py: Python<'_>,
    mailbox: &Mailbox,
    id: u64,
    credentials: &Credentials,
    token: Option<Given<'_>>,
    deadline: f64,
    in_flight: usize,
    validity: u64,
) -> PyResult<()> {
    let deadline = duration("deadline", deadline)?;
    let credentials = credentials.inner(py)?;
    let credentials = match token {
        Some(Given::Text(token)) => credentials.token(token),
        Some(Given::Function(function)) => credentials.token_source(function.take(py)?),
        None => credentials,
    };
    let builder = Client::builder(credentials).deadline(deadline).in_flight(in_flight).validity(validity);
    mailbox.begin(py, id, 0, async move {
        match builder.connect().await {
            Ok(client) => Event::Other(Box::new(Connected(client))),
            Err(error) => Failure::of(&error, None).into(),
        }
    })
}

struct Connected(Client);

impl ToObject for Connected {
    fn to_object(self: Box<Self>, py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        Ok(Bound::new(py, Connection(Owned::new(self.0)))?.into_any())
    }
}

#[pymethods]
impl Connection {
    /// Calls a method, and leaves the JSON of its result.
    #[expect(clippy::too_many_arguments, reason = "each is one thing that a call has")]
    fn call(
        &self,
        py: Python<'_>,
        mailbox: &Mailbox,
        id: u64,
        service: &str,
        method: String,
        params: String,
        options: &Options,
    ) -> PyResult<()> {
        let (request, message_id) = options.request(self.0.get(py)?, service);
        let bytes = params.len();
        let params = json(params)?;
        mailbox.begin(py, id, bytes, async move {
            match request.call::<Box<RawValue>>(&method, params).await {
                Ok(result) => Event::Text(result),
                Err(error) => Failure::of(&error, message_id.get()).into(),
            }
        })
    }

    /// Sends a notification.
    #[expect(clippy::too_many_arguments, reason = "as for `call`")]
    fn notify(
        &self,
        py: Python<'_>,
        mailbox: &Mailbox,
        id: u64,
        service: &str,
        method: String,
        params: String,
        options: &Options,
    ) -> PyResult<()> {
        let (request, message_id) = options.request(self.0.get(py)?, service);
        let bytes = params.len();
        let params = json(params)?;
        mailbox.begin(py, id, bytes, async move {
            match request.notify(&method, params).await {
                Ok(()) => Event::Nothing,
                Err(error) => Failure::of(&error, message_id.get()).into(),
            }
        })
    }

    /// Begins a call that outlives its caller, and leaves nothing once it has begun.
    #[expect(clippy::too_many_arguments, reason = "as for `call`")]
    fn detach(
        &self,
        py: Python<'_>,
        mailbox: &Mailbox,
        id: u64,
        service: &str,
        method: String,
        params: String,
        options: &Options,
    ) -> PyResult<()> {
        let (request, message_id) = options.request(self.0.get(py)?, service);
        let bytes = params.len();
        let params = json(params)?;
        mailbox.begin(py, id, bytes, async move {
            match request.detach(&method, params).await {
                Ok(_) => Event::Nothing,
                Err(error) => Failure::of(&error, message_id.get()).into(),
            }
        })
    }

    /// Questions about a task, by its key. `sealwire.InvalidRequest` for what cannot be one; nothing is asked yet.
    fn task(
        &self,
        py: Python<'_>,
        service: &str,
        method: &str,
        key: &str,
        options: &Options,
    ) -> PyResult<TaskQuestions> {
        let (request, message_id) = options.request(self.0.get(py)?, service);
        match request.task(method, key) {
            Ok(task) => Ok(TaskQuestions::new(task, message_id)),
            Err(error) => Err(Failure::of(&error, None).to_error(py)),
        }
    }

    /// Sends a batch of `(method, params, is_call)`, and leaves one answer for each call.
    fn batch(
        &self,
        py: Python<'_>,
        mailbox: &Mailbox,
        id: u64,
        service: &str,
        entries: Vec<(String, String, bool)>,
        options: &Options,
    ) -> PyResult<()> {
        let (request, message_id) = options.request(self.0.get(py)?, service);
        let bytes = entries.iter().map(|(_, params, _)| params.len()).sum();
        let (mut batch, mut calls) = (request.batch(), Vec::new());
        for (method, params, is_call) in entries {
            let params = json(params)?;
            if is_call {
                calls.push(batch.call(&method, params));
            } else {
                batch.notify(&method, params);
            }
        }
        mailbox.begin(py, id, bytes, async move {
            let mut answers = match batch.send().await {
                Ok(answers) => answers,
                Err(error) => return Failure::of(&error, message_id.get()).into(),
            };
            let answer = |call| {
                let taken = answers.take::<Box<RawValue>>(call);
                taken.map_err(|error| Box::new(Failure::of(&error, message_id.get())))
            };
            Event::Answers(calls.into_iter().map(answer).collect())
        })
    }

    /// Calls a method whose result may come in parts.
    #[expect(clippy::too_many_arguments, reason = "as for `call`")]
    fn stream(
        &self,
        py: Python<'_>,
        service: &str,
        method: &str,
        params: String,
        options: &Options,
        takes_notes: bool,
        takes_questions: bool,
    ) -> PyResult<CallParts> {
        let (request, message_id) = options.request(self.0.get(py)?, service);
        Ok(CallParts::stream(request, message_id, method, &json(params)?, takes_notes, takes_questions))
    }

    /// Subscribes to what a method pushes.
    #[expect(clippy::too_many_arguments, reason = "as for `call`")]
    fn subscribe(
        &self,
        py: Python<'_>,
        service: &str,
        method: &str,
        params: String,
        options: &Options,
        takes_notes: bool,
        takes_questions: bool,
    ) -> PyResult<CallParts> {
        let (request, message_id) = options.request(self.0.get(py)?, service);
        Ok(CallParts::subscribe(request, message_id, method, &json(params)?, takes_notes, takes_questions))
    }

    /// Leaves the OpenRPC document of what the agent may call.
    fn discover(&self, py: Python<'_>, mailbox: &Mailbox, id: u64, service: &str, options: &Options) -> PyResult<()> {
        let (request, message_id) = options.request(self.0.get(py)?, service);
        mailbox.begin(py, id, 0, async move {
            match request.discover().await {
                Ok(catalogue) => match serde_json::value::to_raw_value(&catalogue.document()) {
                    Ok(document) => Event::Text(document),
                    Err(error) => Failure::local(ErrorKind::Decode, error.to_string()).into(),
                },
                Err(error) => Failure::of(&error, message_id.get()).into(),
            }
        })
    }

    /// Waits until somebody listens to calls of a service.
    fn wait_for(&self, py: Python<'_>, mailbox: &Mailbox, id: u64, service: String, limit: f64) -> PyResult<()> {
        let (client, limit) = (self.0.get(py)?.clone(), duration("limit", limit)?);
        self.plain(py, mailbox, id, async move { client.wait_for(&service, limit).await })
    }

    /// Ends the connection. Calls under way are cancelled at their services.
    fn close(&self, py: Python<'_>, mailbox: &Mailbox, id: u64) -> PyResult<()> {
        let client = self.0.get(py)?.clone();
        mailbox.begin(py, id, 0, async move {
            client.close().await;
            Event::Nothing
        })
    }

    /// Tokens for requests that are not made with the agent's own.
    fn tokens(&self, py: Python<'_>, token: Given<'_>) -> PyResult<Tokens> {
        let client = self.0.get(py)?;
        Ok(Tokens::new(match token {
            Given::Text(token) => client.tokens(StaticToken::new(token)),
            Given::Function(function) => client.tokens(function.take(py)?),
        }))
    }

    /// What the client is doing and has seen so far.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = self.0.get(py)?.stats();
        let all = PyDict::new(py);
        all.set_item("connected", stats.connected)?;
        all.set_item("pending", stats.pending)?;
        all.set_item("streams", stats.streams)?;
        all.set_item("frames_taken", stats.frames_taken)?;
        all.set_item("frames_refused", stats.frames_refused)?;
        all.set_item("unverifiable", stats.unverifiable)?;
        all.set_item("late", stats.late)?;
        all.set_item("disconnects", stats.disconnects)?;
        Ok(all)
    }

    /// Whether the connection is up, as far as is known.
    fn is_connected(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.0.get(py)?.is_connected())
    }
}

impl Connection {
    fn plain(
        &self,
        py: Python<'_>,
        mailbox: &Mailbox,
        id: u64,
        work: impl Future<Output = Result<(), ClientError>> + Send + 'static,
    ) -> PyResult<()> {
        mailbox.begin(py, id, 0, async move {
            match work.await {
                Ok(()) => Event::Nothing,
                Err(error) => Failure::of(&error, None).into(),
            }
        })
    }
}

/// JSON that Python has written; `null` for no parameters.
fn json(text: String) -> PyResult<Box<RawValue>> {
    RawValue::from_string(text).map_err(|error| PyValueError::new_err(format!("not JSON: {error}")))
}
