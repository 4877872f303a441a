//! What a client is told of a call whose end it does not get.
//! Never says that such a call has not run.

use serde_json::json;

use crate::mcp::message::Fault;

/// The error of a call whose caller may no longer receive it.
pub(super) fn over() -> Fault {
    lost("the caller's token has expired or was revoked")
}

/// The error for a call that may have run.
pub(super) fn lost(why: &str) -> Fault {
    Fault::internal(why).with(json!({ "outcome": "unknown" }))
}
