//! A request for approval as lists have it.
//! Never has parameters or reasons.

use serde::Serialize;

use super::entry::Entry;
use super::standing::Standing;
use super::unapproved::Needed;
use crate::name::Name;

/// A request in a list.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Summary {
    pub(super) id: String,
    pub(super) state: &'static str,
    pub(super) agent: Name,
    pub(super) subject: String,
    pub(super) method: String,
    pub(super) asked_at: u64,
    pub(super) deadline: u64,
    pub(super) needs: Vec<Needed>,
}

pub(super) fn state(standing: Standing, entry: &Entry) -> &'static str {
    match (standing, &entry.ran, &entry.denied) {
        (_, Some(_), _) => "consumed",
        (_, None, Some(_)) => "denied",
        (Standing::Pending { .. }, None, None) => "pending",
        (Standing::Approved { .. }, None, None) => "approved",
        (Standing::Expired, None, None) => "expired",
    }
}
