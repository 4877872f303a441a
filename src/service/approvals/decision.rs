//! What an approver says, as it is sent and signed.
//! Never taken for an approval: only the message in which it stands can be one.

use serde::{Deserialize, Serialize};

use crate::auth::Evidence;
use crate::policy::Param;
use crate::rpc::{Body, Limits, Params, RpcError};
use crate::service::calls::APPROVE;

/// The parameters of `rpc.approve`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::service) struct Approve {
    pub(super) id: String,
    /// Which of the approvals that the call needs. Only for [`Verdict::Approve`]: one denial is enough.
    #[serde(default)]
    pub(super) approval: Option<String>,
    /// Of the request's text: see [`digest`](super::text::digest).
    pub(super) digest: String,
    pub(super) decision: Verdict,
    #[serde(default)]
    pub(super) reason: Option<String>,
}

impl Approve {
    /// The parameters, as declared to policies.
    pub(in crate::service) fn params() -> [Param; 5] {
        let required = ["id", "digest", "decision"].map(Param::string);
        let optional = ["approval", "reason"].map(|name| Param::string(name).optional());
        let [id, digest, decision] = required;
        let [approval, reason] = optional;
        [id, approval, digest, decision, reason]
    }

    /// Reads and bounds the parameters.
    pub(in crate::service) fn read(params: Option<&Params>) -> Result<Self, RpcError> {
        let asked: Self = Params::decode(params)?;
        let is_fine = |reason: &String| {
            !reason.trim().is_empty() && reason.chars().count() <= MAX_REASON && !reason.chars().any(char::is_control)
        };
        if asked.reason.as_ref().is_some_and(|reason| !is_fine(reason)) {
            let why = format!("Invalid params: `reason` is a line of 1 to {MAX_REASON} characters");
            return Err(RpcError::invalid_params(why));
        }
        Ok(asked)
    }
}

/// What somebody decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Verdict {
    Approve,
    Deny,
}

impl Verdict {
    /// What has been approved can still be denied; what has run, or was denied, is decided.
    pub(super) fn comes_too_late(self, state: &str) -> bool {
        match self {
            Self::Approve => matches!(state, "consumed" | "denied" | "expired"),
            Self::Deny => matches!(state, "consumed" | "expired"),
        }
    }
}

/// The parameters in a message that was kept.
pub(super) fn signed_params(evidence: &Evidence) -> Option<Params> {
    match Body::parse(evidence.payload().as_bytes(), &Limits::default()) {
        Ok(Body::Single(Ok(request))) if request.method == APPROVE => request.params,
        _ => None,
    }
}

/// The longest reason, in characters.
pub(super) const MAX_REASON: usize = 300;
