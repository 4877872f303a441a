//! Files that Python reads and decides by.
//! Never reads one that others could have written.

use std::path::PathBuf;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use sealwire::internal::files::read_public;

/// The text of a file that only this user or root could have written. Raises `ValueError`.
#[pyfunction]
pub(crate) fn read_trusted(py: Python<'_>, path: PathBuf) -> PyResult<String> {
    py.detach(|| read_public(&path)).map_err(|error| PyValueError::new_err(error.to_string()))
}
