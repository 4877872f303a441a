//! What a backend offers: a tool of its own, and the method that it is on the bus.
//! Never makes up a parameter: what is not declared is not known to policies.

use sealwire::MethodName;
use sealwire::policy::Param;

/// One tool of a backend.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Tool {
    /// What the backend itself calls it.
    pub name: String,
    /// What callers and policies call it.
    pub method: MethodName,
    /// What it does, in the backend's words.
    pub description: Option<String>,
    /// What else is said of it, for people: a line each.
    pub remarks: Vec<String>,
    /// The parameters that argument rules can speak of.
    pub declared: Option<Vec<Param>>,
}

impl Tool {
    /// A tool of which nothing is known but its name.
    #[must_use]
    pub fn new(name: impl Into<String>, method: MethodName) -> Self {
        Self { name: name.into(), method, description: None, remarks: Vec::new(), declared: None }
    }
}
