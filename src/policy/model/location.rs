//! Where something is in the files.
//! Never a path of this machine: files are named relative to the policy folder.

use std::fmt;
use std::sync::Arc;

use serde::Serialize;

/// A line of a policy file; by default none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub(crate) struct Location {
    pub(crate) file: Arc<str>,
    pub(crate) line: u32,
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// A value and the line it was read from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Located<T> {
    pub(crate) value: T,
    pub(crate) at: Location,
}
