//! The replay guards: in one process, and shared by replicas on a real nats-server. A model of them is `crates/guard-model`.

mod approvals;
mod budgets;
mod cluster;
mod local;
mod model;
mod outcomes;
mod recovery;
mod shared;
mod tasks;

use sealwire::internal::auth::AdmitError;

/// Refused because of its date: only a fence that every caller may have passed by now makes it the message's own fault.
fn is_behind(answer: &Result<(), AdmitError>) -> bool {
    matches!(answer, Err(AdmitError::Stale | AdmitError::Fenced { .. }))
}
