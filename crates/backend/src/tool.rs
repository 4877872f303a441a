//! What a backend offers: one of its tools, and the method that the tool is on the bus.
//! Never makes up a parameter: policies do not know what is not declared.

use sealwire::MethodName;
use sealwire::decide::Param;

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
    /// Whether they are given by name only: then their order says nothing.
    pub by_name: bool,
    /// Whether it can be used, approved or not.
    pub is_usable: bool,
}

impl Tool {
    /// A tool of which only the names are known.
    #[must_use]
    pub fn new(name: impl Into<String>, method: MethodName) -> Self {
        Self {
            name: name.into(),
            method,
            description: None,
            remarks: Vec::new(),
            declared: None,
            is_usable: true,
            by_name: false,
        }
    }
}
