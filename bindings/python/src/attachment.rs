//! An argument that is larger than a message, in a caller's hands.
//! Never shows its content.

use std::path::PathBuf;

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use sealwire::call::Attachment as Inner;

use crate::runtime::{self, Owned};

/// An argument that is larger than a message.
///
/// Use it as a parameter: the call names it by its digest, its size and its type, about which the service's policy can decide, and the
/// method fetches the bytes while it runs.
#[pyclass(frozen, module = "sealwire")]
pub(crate) struct Attachment(Owned<Inner>);

#[pymethods]
impl Attachment {
    /// An attachment of these bytes. `media_type` is in lower case and without parameters: `application/pdf`.
    #[staticmethod]
    fn bytes(media_type: String, content: &Bound<'_, PyBytes>) -> Self {
        Self(Owned::new(Inner::bytes(media_type, content.as_bytes().to_vec())))
    }

    /// An attachment of a regular file, which is read once now, for its digest, and again when the method asks for it.
    ///
    /// Other threads run meanwhile; in an event loop, a large file belongs into `asyncio.to_thread`.
    #[staticmethod]
    fn file(py: Python<'_>, media_type: String, path: PathBuf) -> PyResult<Self> {
        let handle = runtime::handle(py)?;
        let read = py.detach(|| handle.block_on(Inner::file(media_type, &path)));
        read.map(|read| Self(Owned::new(read))).map_err(PyErr::from)
    }

    /// The digest of the bytes: SHA-256 in base64url, 43 characters.
    #[getter]
    fn sha256(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.0.get(py)?.sha256().to_owned())
    }

    /// The number of bytes.
    #[getter]
    fn size(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.0.get(py)?.size())
    }

    /// What stands in the parameters, as JSON.
    fn to_json(&self, py: Python<'_>) -> PyResult<String> {
        let text = serde_json::to_string(self.0.get(py)?);
        text.map_err(|error| PyOSError::new_err(error.to_string()))
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let inner = self.0.get(py)?;
        Ok(format!("Attachment(sha256='{}', size={})", inner.sha256(), inner.size()))
    }
}

impl Attachment {
    pub(crate) fn inner(&self, py: Python<'_>) -> PyResult<Inner> {
        self.0.get(py).cloned()
    }
}
