//! An agent's credentials, read from its file.
//! Never gives out the key or the token, and cannot be pickled.

use std::path::PathBuf;

use pyo3::prelude::*;
use sealwire::Credentials as Inner;

use crate::failure::Failure;
use crate::runtime::Owned;

/// Who calls: an agent with its key, its token and its way to the broker. Read from the file that `sealwire keys new-agent` writes.
#[pyclass(frozen, module = "sealwire")]
pub(crate) struct Credentials(Owned<Inner>);

#[pymethods]
impl Credentials {
    /// Reads a credentials file, which nobody else may be able to read.
    #[staticmethod]
    fn load(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        let read = py.detach(|| Inner::load(&path));
        read.map(|read| Self(Owned::new(read))).map_err(|error| Failure::from(error).to_error(py))
    }

    /// The same agent, at other addresses of the broker.
    fn urls(&self, py: Python<'_>, urls: Vec<String>) -> PyResult<Self> {
        Ok(Self(Owned::new(self.0.get(py)?.clone().urls(urls))))
    }

    /// The agent.
    #[getter]
    fn agent(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.0.get(py)?.agent().to_string())
    }

    /// The environment, such as `dev`.
    #[getter]
    fn environment(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.0.get(py)?.environment().to_string())
    }

    /// The key id under which the agent signs.
    #[getter]
    fn kid(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.0.get(py)?.kid().to_owned())
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let inner = self.0.get(py)?;
        Ok(format!("Credentials(environment='{}', agent='{}')", inner.environment(), inner.agent()))
    }
}

impl Credentials {
    pub(crate) fn inner(&self, py: Python<'_>) -> PyResult<Inner> {
        self.0.get(py).cloned()
    }
}
