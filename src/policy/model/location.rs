//! Where something stands in the files.
//! Never a path of this machine: files are named relative to the policy folder.

use std::sync::Arc;

/// A line of a policy file.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Location {
    pub(crate) file: Arc<str>,
    pub(crate) line: u32,
}

/// A value and the line it was read from.
#[derive(Debug, Clone)]
pub(crate) struct Located<T> {
    pub(crate) value: T,
    pub(crate) at: Location,
}
