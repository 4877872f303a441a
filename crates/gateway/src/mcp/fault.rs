//! The errors of requests that the gateway passes on to a service.
//! Never says that nothing was done unless that is certain.

use sealwire::ClientError;
use sealwire::errors::code;
use serde_json::json;

use super::message::Fault;

/// The code for a resource that does not exist, in revisions up to 2025-11-25.
pub(super) const RESOURCE_NOT_FOUND: i32 = -32002;

/// No server has said anything of this resource.
pub(super) fn not_found(code: i32, uri: &str) -> Fault {
    Fault::new(code, "Resource not found").with(json!({ "uri": uri }))
}

/// What it is for an MCP client.
pub(super) fn of_call(error: &ClientError) -> Fault {
    match error {
        // The server's own error.
        ClientError::Remote(said) if said.is_application() => Fault::of_service(said),
        ClientError::Remote(said) => match said.code() {
            code::INVALID_PARAMS | code::METHOD_NOT_FOUND => Fault::params(said.message().to_owned()),
            code::QUOTA_EXCEEDED => Fault::of_service(said),
            // The call may have begun, or the service refused the gateway's own message and not the client's.
            _ if error.is_outcome_unknown() => {
                Fault::internal(said.message().to_owned()).with(json!({ "outcome": "unknown" }))
            }
            code::INTERNAL_ERROR | code::DEPENDENCY_FAILED => Fault::internal(said.message().to_owned()),
            _ => Fault::of_service(said),
        },
        ClientError::Token(fault) => Fault::of_token(fault),
        ClientError::Disconnected { .. } => Fault::internal("the broker cannot be reached, nothing was sent"),
        ClientError::TooLarge { .. }
        | ClientError::Invalid(_)
        | ClientError::Busy { .. }
        | ClientError::TooManyStreams { .. }
        | ClientError::InboxForbidden { sent: false, .. }
        | ClientError::Closed { sent: false } => Fault::internal(format!("nothing was sent: {error}")),
        error => Fault::internal(error.to_string()).with(json!({ "outcome": "unknown" })),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use sealwire::internal::rpc::{Limits, Responses};

    use serde_json::Value;

    use super::*;

    fn remote(code: i32, data: &Value) -> ClientError {
        let text = json!({ "jsonrpc": "2.0", "id": 1, "error": { "code": code, "message": "m", "data": data } });
        match Responses::parse(text.to_string().as_bytes(), &Limits::default()).unwrap() {
            Responses::Single(response) => ClientError::Remote(response.outcome.unwrap_err()),
            Responses::Batch(_) => unreachable!("one response"),
        }
    }

    #[test]
    fn what_may_have_begun_is_said_to_and_nothing_else() {
        let unknown = json!({ "outcome": "unknown" });
        for code in [code::UNAUTHENTICATED, code::STALE, code::REPLAYED, code::TIMEOUT, code::OVERLOADED] {
            let fault = of_call(&remote(code, &json!(null)));
            assert_eq!((fault.code, fault.data.as_ref()), (-32603, Some(&unknown)), "{code}");
        }
        assert_eq!(of_call(&remote(code::PERMISSION_DENIED, &unknown)).code, -32603);
        for (code, said) in [(code::PERMISSION_DENIED, 32002), (code::QUOTA_EXCEEDED, 32013), (7, 7)] {
            assert_eq!(of_call(&remote(code, &json!([1]))).code, said);
        }
        for error in [ClientError::TooLarge { size: 2, limit: 1 }, ClientError::Busy { limit: 1 }] {
            let fault = of_call(&error);
            assert!(fault.data.is_none() && fault.message.contains("nothing was sent"), "{fault:?}");
        }
        assert_eq!(of_call(&ClientError::ConnectionLost).data, Some(unknown));
    }
}
