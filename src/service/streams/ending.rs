//! Why a call ends before its method does, and what a subscription then ends with.

use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};

use crate::rpc::RpcError;

/// Why a call was ended before its method had answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Ending {
    /// Its caller asked for it.
    #[error("cancelled by the caller")]
    Cancelled,
    /// The key, the token or the subject was revoked, or the token has expired.
    #[error("the key or the token of the call is no longer valid")]
    Unauthenticated,
    /// A newer policy, or the roles of a newer token, do not allow it any more.
    #[error("no longer allowed by the policy")]
    Denied,
    /// An operator has revoked the agent, its key, token or subject, the method, the service, or everything.
    #[error("revoked by an operator")]
    Revoked,
    /// Frames were not acknowledged for too long.
    #[error("frames were not acknowledged for too long")]
    Stalled,
    /// What may have been revoked is not known at the moment.
    #[error("nothing is admitted: what is revoked could not be read for too long")]
    Suspended,
    /// There is no room to hold a large result while it is sent.
    #[error("no room to hold the result while it is sent")]
    NoRoom,
    /// The service stops. Only subscriptions end because of that.
    #[error("the service stops")]
    Draining,
}

impl Ending {
    /// Its name in a record of decisions.
    pub(in crate::service) fn label(self) -> &'static str {
        match self {
            Self::Cancelled => "cancelled",
            Self::Unauthenticated => "unauthenticated",
            Self::Denied => "denied",
            Self::Revoked => "revoked",
            Self::Stalled => "stalled",
            Self::Suspended => "suspended",
            Self::NoRoom => "no_room",
            Self::Draining => "draining",
        }
    }
}

/// The result of a subscription that ends before its caller wants it to: `{"closed": reason}`.
pub(in crate::service) fn subscription_end(reason: &'static str) -> Result<Box<RawValue>, RpcError> {
    #[derive(Serialize)]
    struct Closed {
        closed: &'static str,
    }
    to_raw_value(&Closed { closed: reason }).map_err(RpcError::internal)
}
