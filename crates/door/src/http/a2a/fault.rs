//! Errors in the form of A2A: its codes, and `data` as a list of objects with `@type`.
//! Never passes on a code of the bus: there, -32001 is a bad argument; here, a task that does not exist.

use std::borrow::Cow;

use hyper::StatusCode;
use hyper::header::{HeaderName, HeaderValue, RETRY_AFTER};
use hyper::http::request::Parts;
use sealwire::client::ClientError;
use sealwire::rpc::{RpcError, code};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::http::config::Expose;
use crate::http::gate::single;
use crate::http::refusal::{Refusal, error_info};
use crate::http::rpc::failed;
use crate::json;

/// The domain of the protocol's own reasons.
const A2A: &str = "a2a-protocol.org";
const DOOR: &str = "sealwire.dev";
/// The largest data of a service's error that is passed on; in memory it takes many times that.
const DATA_BYTES: usize = 16 << 10;

/// A2A §5.4, in the order of the codes from -32001.
const REASONS: [&str; 9] = [
    "TASK_NOT_FOUND",
    "TASK_NOT_CANCELABLE",
    "PUSH_NOTIFICATION_NOT_SUPPORTED",
    "UNSUPPORTED_OPERATION",
    "CONTENT_TYPE_NOT_SUPPORTED",
    "INVALID_AGENT_RESPONSE",
    "EXTENDED_AGENT_CARD_NOT_CONFIGURED",
    "EXTENSION_SUPPORT_REQUIRED",
    "VERSION_NOT_SUPPORTED",
];

/// An error of the door. A2A clients read errors only if the status is 200.
pub(super) fn fault(code: i32, reason: &str, message: impl Into<Cow<'static, str>>) -> Refusal {
    of_reason(StatusCode::OK, code, reason, message, &json!({}))
}

fn of_reason(
    status: StatusCode,
    code: i32,
    reason: &str,
    message: impl Into<Cow<'static, str>>,
    metadata: &Value,
) -> Refusal {
    let domain = if REASONS.contains(&reason) { A2A } else { DOOR };
    Refusal::new(status, code, message).with_data(json!([error_info(reason, domain, metadata)]))
}

/// One of the protocol's own errors.
fn own(code: i32, message: impl Into<Cow<'static, str>>) -> Refusal {
    let reason = usize::try_from(-32_001 - code).ok().and_then(|at| REASONS.get(at));
    fault(code, reason.copied().unwrap_or("UNSUPPORTED_OPERATION"), message)
}

/// The task never existed, is no longer kept, or belongs to another caller or service. Which one is not revealed.
pub(super) fn no_task() -> Refusal {
    own(-32_001, "Task not found")
}

pub(super) fn not_cancelable() -> Refusal {
    own(-32_002, "the task has ended")
}

pub(super) fn no_push() -> Refusal {
    own(-32_003, "push notifications are not supported")
}

pub(super) fn unsupported(message: &'static str) -> Refusal {
    own(-32_004, message)
}

pub(super) fn content_type(message: impl Into<Cow<'static, str>>) -> Refusal {
    own(-32_005, message)
}

/// An invalid JSON-RPC message.
pub(super) fn bad(message: &'static str) -> Refusal {
    Refusal::bad(StatusCode::BAD_REQUEST, message).of_a2a()
}

/// An invalid parameter.
pub(super) fn invalid(field: &str, message: impl Into<Cow<'static, str>>) -> Refusal {
    let message = message.into();
    let violations = json!([{ "field": field, "description": message }]);
    let data = json!([{ "@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": violations }]);
    Refusal::new(StatusCode::OK, code::INVALID_PARAMS, message).with_data(data)
}

/// Reads the parameters of an A2A method. Unknown members are ignored (A2A §5.7).
pub(super) fn read<T: DeserializeOwned>(params: &str) -> Result<T, Refusal> {
    json::object(params).map_err(|error| invalid("params", error.to_string()))
}

/// A2A §3.6.2: a request that names no version is of version 0.3.
pub(super) fn version(head: &Parts) -> Result<(), Refusal> {
    let said = single(&head.headers, &HeaderName::from_static("a2a-version")).map_err(Refusal::of_a2a)?;
    let of_query = || {
        let mut pairs = head.uri.query().unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
        pairs.find(|(name, _)| name.eq_ignore_ascii_case("a2a-version")).map(|(_, value)| value)
    };
    match said.or_else(of_query).map(str::trim) {
        Some("1.0") => Ok(()),
        // Patch numbers do not matter (A2A §3.6).
        Some(said) if said.strip_prefix("1.0.").is_some_and(|patch| patch.parse::<u32>().is_ok()) => Ok(()),
        _ => Err(own(-32_009, "only version 1.0 of A2A is supported: send `A2A-Version: 1.0`")),
    }
}

/// A failed call, in the form of A2A.
pub(super) fn translated(expose: &Expose, error: &ClientError) -> Refusal {
    let is_native = expose.a2a.as_ref().is_some_and(|agent| agent.native);
    match error {
        ClientError::Remote(said) => of_service(said, error.is_outcome_unknown(), is_native),
        error => failed(expose, error).of_a2a(),
    }
}

/// An error that the service has signed.
fn of_service(error: &RpcError, is_unknown: bool, is_native: bool) -> Refusal {
    let message = error.message().to_owned();
    let data = || {
        let data = error.data().filter(|data| data.get().len() <= DATA_BYTES)?;
        serde_json::from_str::<Value>(data.get()).ok()
    };
    match error.code() {
        code::UNAUTHENTICATED | code::STALE | code::REPLAYED => Refusal::not_taken().of_a2a(),
        code::METHOD_NOT_FOUND => fault(code::METHOD_NOT_FOUND, "METHOD_NOT_FOUND", message),
        code::PERMISSION_DENIED if !is_unknown => {
            of_reason(StatusCode::FORBIDDEN, -code::PERMISSION_DENIED, "PERMISSION_DENIED", message, &json!({}))
        }
        code::INVALID_PARAMS | code::VALIDATION_FAILED => invalid("message.parts[0].data.params", message),
        code::QUOTA_EXCEEDED => {
            let retry_ms = data().and_then(|data| data.get("retry_after_ms")?.as_u64()).unwrap_or(1_000);
            let delay = format!("{}.{:03}s", retry_ms / 1_000, retry_ms % 1_000);
            let info = error_info("RETRY_LATER", DOOR, &json!({ "outcome": "not_executed" }));
            let retry = json!({ "@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay });
            Refusal::new(StatusCode::OK, code::INTERNAL_ERROR, message)
                .with_data(json!([info, retry]))
                .with(RETRY_AFTER, HeaderValue::from(retry_ms.div_ceil(1_000).max(1)))
        }
        // The call has begun, or may have; what it did is unknown.
        _ if is_unknown => {
            let unknown = json!({ "outcome": "unknown" });
            of_reason(StatusCode::OK, code::INTERNAL_ERROR, "OUTCOME_UNKNOWN", message, &unknown)
        }
        // The codes of A2A mean something else on the bus, so native agents answer with them without the sign.
        positive @ 32_001..=32_009 if is_native => own(-positive, message),
        other => {
            let metadata = json!({ "serviceCode": other.to_string() });
            let info = error_info("METHOD_FAILED", DOOR, &metadata);
            let value =
                data().map(|data| json!({ "@type": "type.googleapis.com/google.protobuf.Value", "value": data }));
            let all: Vec<Value> = std::iter::once(info).chain(value).collect();
            Refusal::new(StatusCode::OK, code::INTERNAL_ERROR, message).with_data(Value::Array(all))
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]
    use super::*;

    fn said(error: &RpcError, is_native: bool) -> (u16, Value) {
        let refusal = of_service(error, ClientError::Remote(error.clone()).is_outcome_unknown(), is_native);
        (refusal.status.as_u16(), serde_json::from_slice::<Value>(&refusal.text()).unwrap()["error"].clone())
    }

    fn error(code: i32) -> RpcError {
        with_data(code, "null")
    }

    fn with_data(code: i32, data: &str) -> RpcError {
        let text = format!(r#"{{"jsonrpc":"2.0","id":1,"error":{{"code":{code},"message":"m","data":{data}}}}}"#);
        match sealwire::rpc::Responses::parse(text.as_bytes(), &sealwire::rpc::Limits::default()).unwrap() {
            sealwire::rpc::Responses::Single(response) => response.outcome.unwrap_err(),
            sealwire::rpc::Responses::Batch(_) => unreachable!("one response"),
        }
    }

    #[test]
    fn the_data_of_an_error_is_handed_on_unless_there_is_much_of_it() {
        let with = |length: usize| RpcError::application(7, "m").with_data(&vec![1; length]);
        assert_eq!(said(&with(8_000), false).1["data"][1]["value"].as_array().map(Vec::len), Some(8_000));
        let much = said(&with(9_000), false).1;
        assert_eq!((&much["message"], much["data"].as_array().map(Vec::len)), (&json!("m"), Some(1)));
        assert_eq!(much["data"][0]["metadata"]["serviceCode"], "7");
    }

    #[test]
    fn no_code_of_the_bus_is_taken_for_one_of_a2a() {
        for code in (-32_099..=-32_000).chain([-32_603, 1, 32_001, 32_009]) {
            let (status, said) = said(&error(code), false);
            let shown = said["code"].as_i64().unwrap();
            assert!([32_002, -32_602, -32_603].contains(&shown), "{code}: {said}");
            assert_eq!(status, if code == -32_002 { 403 } else { 200 }, "{code}");
            let data = said["data"].as_array().unwrap();
            assert!(!data.is_empty() && data.iter().all(|one| one["@type"].is_string()), "{said}");
        }
        assert_eq!(said(&error(-32_601), false).1["code"], -32_601);
        for code in [-32_010, -32_011, -32_012, -32_003, -32_014] {
            assert_eq!(said(&error(code), true).1["data"][0]["metadata"]["outcome"], "unknown", "{code}");
        }
        for (code, data) in [(-32_002, r#"{"outcome":"unknown"}"#), (-32_017, r#"{"idempotency":"running"}"#)] {
            let (status, said) = said(&with_data(code, data), false);
            assert_eq!((status, &said["data"][0]["reason"]), (200, &json!("OUTCOME_UNKNOWN")), "{code}");
        }
        // A native agent sends them without the sign.
        for (code, reason) in (32_001..).zip(REASONS) {
            let said = said(&error(code), true).1;
            assert_eq!((&said["code"], &said["data"][0]["reason"]), (&json!(-code), &json!(reason)));
        }
    }
}
