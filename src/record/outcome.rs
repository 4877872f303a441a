//! What a call came to, as a line of the record.
//! Never holds a result: only its digest.

use serde::{Deserialize, Serialize};

use crate::name::Name;

/// What a call came to: a line of kind `outcome`. It belongs to the decision with the same agent, message and entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutcomeRecord {
    /// When it ended, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// The id of the message (its `jti`).
    pub message: String,
    /// The position in the batch, from 0, if it was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry: Option<usize>,
    /// The agent.
    pub agent: Name,
    /// The subject, if the call was on behalf of another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// The method.
    pub method: String,
    /// The trace that the call belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<String>,
    /// By what it ended: `answered` (with a result or an error), `cancelled`, `deadline`, `unauthenticated` (key, token or subject),
    /// `denied` (in between), `revoked` (by an operator), `stalled` (frames were not acknowledged), `suspended`, `no_room`, `draining`, or `given_up` (the service
    /// stopped before it had ended).
    pub by: String,
    /// The code of the error, if it ended with one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<i64>,
    /// The SHA-256 of the response object as sent, in base64url, if there was one; of a task, as kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<String>,
    /// How many frames were made for it, the first and the last included; absent for an ordinary answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frames: Option<u64>,
    /// From the receipt of the message to this outcome, in microseconds.
    pub duration_us: u64,
}
