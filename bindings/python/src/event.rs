//! What the runtime hands to a thread of Python: data, which becomes Python objects only there.
//! Never holds a Python object.

use bytes::Bytes;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString, PyTuple};
use serde_json::value::RawValue;

use crate::failure::Failure;

/// How a piece of work ended.
pub(crate) enum Event {
    Nothing,
    Flag(bool),
    /// JSON.
    Text(Box<RawValue>),
    Bytes(Bytes),
    Failed(Box<Failure>),
    /// One for each call of a batch.
    Answers(Vec<Result<Box<RawValue>, Box<Failure>>>),
    /// A value that turns itself into an object.
    Other(Box<dyn ToObject>),
}

/// What becomes an object of Python on the thread that takes it.
pub(crate) trait ToObject: Send {
    fn to_object(self: Box<Self>, py: Python<'_>) -> PyResult<Bound<'_, PyAny>>;
}

impl Event {
    /// `(id, failed, payload)`.
    pub(crate) fn into_tuple(self, py: Python<'_>, id: u64) -> PyResult<Bound<'_, PyTuple>> {
        let failed = matches!(self, Self::Failed(_));
        (id, failed, self.into_object(py)?).into_pyobject(py)
    }

    fn into_object(self, py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        Ok(match self {
            Self::Nothing => py.None().into_bound(py),
            Self::Flag(flag) => flag.into_pyobject(py)?.to_owned().into_any(),
            Self::Text(text) => PyString::new(py, text.get()).into_any(),
            Self::Bytes(bytes) => PyBytes::new(py, &bytes).into_any(),
            Self::Failed(failure) => failure.to_tuple(py)?.into_any(),
            Self::Answers(answers) => {
                let list = PyList::empty(py);
                for answer in answers {
                    match answer {
                        Ok(text) => list.append((false, text.get()))?,
                        Err(failure) => list.append((true, failure.to_tuple(py)?))?,
                    }
                }
                list.into_any()
            }
            Self::Other(value) => value.to_object(py)?,
        })
    }
}

impl From<Failure> for Event {
    fn from(failure: Failure) -> Self {
        Self::Failed(Box::new(failure))
    }
}
