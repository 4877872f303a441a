//! Limits for parsing, beyond those that are fixed.

/// Limits for parsing, beyond those that are fixed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The most entries that a batch may have, notifications included.
    pub max_batch: usize,
}

/// The default of [`Limits::max_batch`]: bounds the work that a single signature can request.
pub const MAX_BATCH: usize = 50;

impl Default for Limits {
    fn default() -> Self {
        Self { max_batch: MAX_BATCH }
    }
}
