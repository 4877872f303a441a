//! What a backend offers: one of its tools, and the method that the tool is on the bus.
//! Never makes up a parameter: policies do not know what is not declared.

use sealwire::MethodName;
use sealwire::policy::Param;

/// One tool of a backend.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Tool {
    /// The backend's name for it.
    pub name: String,
    /// The method's name for callers and policies.
    pub method: MethodName,
    /// What it does, in the backend's words.
    pub description: Option<String>,
    /// Further remarks about it for people, one line each.
    pub remarks: Vec<String>,
    /// The parameters that argument rules can refer to.
    pub declared: Option<Vec<Param>>,
}

impl Tool {
    /// A tool of which only the names are known.
    #[must_use]
    pub fn new(name: impl Into<String>, method: MethodName) -> Self {
        Self { name: name.into(), method, description: None, remarks: Vec::new(), declared: None }
    }
}
