//! Why something failed, as data that Python makes an exception of.
//! Never holds more of an error than the library shows: no token, no key, no content of an answer.

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use sealwire::errors::{CredentialsError, ErrorKind};
use sealwire::{ClientError, RpcError};

/// An error of the library, for [`Failure::to_error`].
#[derive(Debug)]
pub(crate) struct Failure {
    kind: String,
    text: String,
    is_outcome_unknown: bool,
    message_id: Option<String>,
    rpc: Option<Rpc>,
    detail: Detail,
    /// What came of the last attempt, if this is an earlier one that may have run.
    last: Option<Box<Failure>>,
}

/// The service's error object.
#[derive(Debug)]
struct Rpc {
    code: i32,
    message: String,
    data: Option<String>,
    is_application: bool,
}

/// What some kinds say beyond their text.
#[derive(Debug)]
enum Detail {
    None,
    Subject(String),
    Offset(i64),
    State(&'static str),
}

impl Failure {
    /// An error of a request whose last message had this id.
    pub(crate) fn of(error: &ClientError, message_id: Option<String>) -> Self {
        let detail = match error {
            ClientError::Forbidden { subject, .. }
            | ClientError::InboxForbidden { subject, .. }
            | ClientError::NoResponders { subject } => Detail::Subject(subject.clone()),
            ClientError::Clock { offset_s, .. } => Detail::Offset(*offset_s),
            ClientError::Task(state) => Detail::State(state.as_str()),
            _ => Detail::None,
        };
        let (rpc, last) = match error {
            ClientError::Repeated { earlier, last } => (earlier.remote(), Some(Box::new(Self::of(last, None)))),
            error => (error.remote(), None),
        };
        Self {
            kind: name(error.kind()),
            text: error.to_string(),
            is_outcome_unknown: error.is_outcome_unknown(),
            message_id,
            rpc: rpc.map(Rpc::of),
            detail,
            last,
        }
    }

    /// One that this package finds by itself; nothing was sent.
    pub(crate) fn local(kind: ErrorKind, text: String) -> Self {
        Self::simple(name(kind), text, false)
    }

    /// One of a service: `kind` is a word of `_errors._OF_SERVICES`.
    pub(crate) fn of_service(kind: &str, error: &impl ToString) -> Self {
        Self::simple(kind.to_owned(), error.to_string(), false)
    }

    /// The caller's own error object, in answer to a question.
    pub(crate) fn of_caller(error: &RpcError) -> Self {
        let failure = Self::simple(name(ErrorKind::Remote), error.to_string(), false);
        Self { rpc: Some(Rpc::of(error)), ..failure }
    }

    /// The runtime ended, or a task of it panicked: what became of the call is not known.
    pub(crate) fn given_up() -> Self {
        Self::simple(name(ErrorKind::Closed), "the client is closed, outcome unknown".to_owned(), true)
    }

    fn simple(kind: String, text: String, is_outcome_unknown: bool) -> Self {
        let (message_id, rpc, detail, last) = (None, None, Detail::None, None);
        Self { kind, text, is_outcome_unknown, message_id, rpc, detail, last }
    }

    /// `(kind, text, outcome_unknown, message_id, rpc, detail, last)`, as `sealwire._errors.of` takes it.
    pub(crate) fn to_tuple<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let rpc = self.rpc.as_ref().map(|rpc| (rpc.code, &rpc.message, rpc.data.as_deref(), rpc.is_application));
        let detail = match &self.detail {
            Detail::None => py.None().into_bound(py),
            Detail::Subject(subject) => subject.into_pyobject(py)?.into_any(),
            Detail::Offset(offset) => offset.into_pyobject(py)?.into_any(),
            Detail::State(state) => state.into_pyobject(py)?.into_any(),
        };
        let last = self.last.as_ref().map(|last| last.to_tuple(py)).transpose()?;
        (&self.kind, &self.text, self.is_outcome_unknown, self.message_id.as_deref(), rpc, detail, last)
            .into_pyobject(py)
    }

    /// The exception, to be raised at once.
    pub(crate) fn to_error(&self, py: Python<'_>) -> PyErr {
        let made = || py.import("sealwire._errors")?.getattr("of")?.call1((self.to_tuple(py)?,));
        made().map_or_else(|error| error, PyErr::from_value)
    }
}

impl From<CredentialsError> for Failure {
    fn from(error: CredentialsError) -> Self {
        Self::of(&error.into(), None)
    }
}

impl Rpc {
    fn of(error: &RpcError) -> Self {
        Self {
            code: error.code(),
            message: error.message().to_owned(),
            data: error.data().map(|data| data.get().to_owned()),
            is_application: error.is_application(),
        }
    }
}

/// Every kind, as errors have it in Python, so that Python can check that its table has them all.
#[pyfunction]
pub(crate) fn error_kinds() -> Vec<String> {
    ErrorKind::ALL.into_iter().map(name).collect()
}

/// `ConnectionLost` is `connection_lost`.
fn name(kind: ErrorKind) -> String {
    let mut name = String::new();
    for c in format!("{kind:?}").chars() {
        if c.is_ascii_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(c.to_ascii_lowercase());
    }
    name
}
