//! How a task is, in one word of the protocol.
//! Never says more than the service has signed.

use serde::Deserialize;

/// How a task is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum TaskState {
    /// The service knows of no such task of this caller: it was never begun, or that is no longer kept.
    Absent,
    /// It runs.
    Working,
    /// It has a result.
    Completed,
    /// It has an error, the method's own.
    Failed,
    /// Its caller has cancelled it. What it did until then is done.
    Cancelled,
    /// It had begun, and nobody knows what it did: it was stopped, or its replica died.
    Unknown,
    /// It was executed, and its outcome was too large to be kept, or found no room.
    NotKept,
}

impl TaskState {
    /// Its name in the protocol.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Absent => "absent",
            Self::Working => "working",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Unknown => "unknown",
            Self::NotKept => "not_kept",
        }
    }

    /// Whether it may still change.
    #[must_use]
    pub fn is_working(self) -> bool {
        self == Self::Working
    }
}
