//! Why a call that needs approvals does not run, as its caller is told.
//! Never says what the policy does not say to everybody who may make the call.

use serde::Serialize;

use crate::auth::OutcomeStoreError;

/// Why a call that needs approvals does not run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unapproved {
    /// People have to decide.
    #[error("it waits for approval")]
    Pending(Pending),
    /// They have denied it.
    #[error("it was denied")]
    Denied {
        /// The request.
        id: String,
    },
    /// The call that was approved has begun before.
    #[error("it has run under its approval")]
    Run {
        /// The request.
        id: String,
        /// Seconds since the Unix epoch.
        at: u64,
        /// The id of the message that ran.
        message: String,
    },
    /// Nobody would be shown that much.
    #[error("it is too large to be shown to those who approve")]
    TooLarge,
    /// Requests cannot be kept, or this one cannot be used now.
    #[error("{0}")]
    Store(OutcomeStoreError),
}

/// What a call waits for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Pending {
    /// The request.
    #[serde(rename = "approval")]
    pub id: String,
    /// `pending`.
    pub state: &'static str,
    /// The approvals that it needs.
    pub needs: Vec<Needed>,
    /// Approvals after this second of the Unix epoch come too late.
    pub deadline: u64,
    /// When it may be worth calling again.
    pub retry_after_ms: u64,
    /// When it was made, for the record.
    #[serde(skip)]
    pub asked_at: u64,
}

/// An approval that a call needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Needed {
    /// Its name in the policy.
    pub approval: String,
    /// Who gives it.
    pub roles: Vec<String>,
    /// How many have to.
    pub count: usize,
    /// How many have.
    pub have: usize,
}

impl Unapproved {
    /// Its state, for records and metrics.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self {
            Self::Pending(_) => "approval_pending",
            Self::Denied { .. } => "approval_denied",
            Self::Run { .. } => "approval_consumed",
            Self::TooLarge => "approval_too_large",
            Self::Store(_) => "approval_store",
        }
    }

    /// When the request was made, if it waits.
    #[must_use]
    pub fn asked_at(&self) -> Option<u64> {
        if let Self::Pending(pending) = self { Some(pending.asked_at) } else { None }
    }

    /// The request, if there is one.
    #[must_use]
    pub fn id(&self) -> Option<&str> {
        match self {
            Self::Pending(pending) => Some(&pending.id),
            Self::Denied { id } | Self::Run { id, .. } => Some(id),
            Self::TooLarge | Self::Store(_) => None,
        }
    }
}
