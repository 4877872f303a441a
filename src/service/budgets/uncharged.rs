//! Why a permitted call is not charged to its budgets, and so does not run, as its caller is told.
//! Never says how much of a budget others have used.

use crate::auth::OutcomeStoreError;

/// Why a permitted call does not run: a budget that it is charged to has no room for it, or cannot be charged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Uncharged {
    /// It is used up for now.
    #[error("the budget `{budget}` is used up")]
    Spent {
        /// The budget.
        budget: String,
        /// After how long there is room for this call if nothing else is charged meanwhile, in milliseconds.
        retry_after_ms: u64,
    },
    /// The call asks for more than the budget ever has.
    #[error("the call is above the whole budget `{budget}`")]
    Above {
        /// The budget.
        budget: String,
    },
    /// A parameter that is added up cannot be.
    #[error("{0}")]
    Params(String),
    /// What is stored is not what this replica knows to have been charged, or is not of this service key.
    #[error("the count of the budget `{budget}` cannot be relied on")]
    Unknown {
        /// The budget.
        budget: String,
        /// After how long none of what was charged counts any more, in milliseconds.
        retry_after_ms: u64,
    },
    /// Counts cannot be kept now, or this agent has as many as it may.
    #[error("{0}")]
    Store(OutcomeStoreError),
    /// The call's deadline came first.
    #[error("the deadline has passed")]
    Deadline,
}

impl Uncharged {
    /// The metric's label.
    pub(in crate::service) fn label(&self) -> &'static str {
        match self {
            Self::Spent { .. } => "budget_spent",
            Self::Above { .. } => "budget_above",
            Self::Params(_) => "params",
            Self::Unknown { .. } => "budget_unknown",
            Self::Store(_) => "budget_store",
            Self::Deadline => "deadline",
        }
    }
}
