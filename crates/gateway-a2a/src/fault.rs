//! Errors in the form of A2A: its codes, and `data` as a list of objects with `@type`.
//! Never passes on a code of the bus: there, -32001 is a bad argument; here, a task that does not exist.

use std::borrow::Cow;

use hyper::StatusCode;
use hyper::header::{HeaderName, HeaderValue, RETRY_AFTER};
use hyper::http::request::Parts;
use sealwire::errors::code;
use sealwire::{ClientError, RpcError};
use sealwire_gateway::dialect::{Outcome, Refusal, approval_in_words, failed, json, single};
use sealwire_gateway::http::Expose;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// The domain of the protocol's own reasons.
const A2A: &str = "a2a-protocol.org";
const GATEWAY: &str = "sealwire.dev";
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

/// An error of the gateway. A2A clients read errors only if the status is 200.
pub(crate) fn fault(code: i32, reason: &str, message: impl Into<Cow<'static, str>>) -> Refusal {
    of_reason(StatusCode::OK, code, reason, message, &json!({}))
}

fn of_reason(
    status: StatusCode,
    code: i32,
    reason: &str,
    message: impl Into<Cow<'static, str>>,
    metadata: &Value,
) -> Refusal {
    let domain = if REASONS.contains(&reason) { A2A } else { GATEWAY };
    Refusal::new(status, code, message).with_data(json!([error_info(reason, domain, metadata)]))
}

/// One of the protocol's own errors.
fn own(code: i32, message: impl Into<Cow<'static, str>>) -> Refusal {
    let reason = usize::try_from(-32_001 - code).ok().and_then(|at| REASONS.get(at));
    fault(code, reason.copied().unwrap_or("UNSUPPORTED_OPERATION"), message)
}

/// The task never existed, is no longer kept, or belongs to another caller or service. Which one is not revealed.
pub(crate) fn no_task() -> Refusal {
    own(-32_001, "Task not found")
}

pub(crate) fn not_cancelable() -> Refusal {
    own(-32_002, "the task has ended")
}

/// The call has not begun, and cancelling it would change nothing.
pub(crate) fn waits_for_people() -> Refusal {
    own(-32_002, "the call waits for people, and has not begun: it does not run unless its task is asked for again")
}

pub(crate) fn canceled() -> Refusal {
    fault(code::INTERNAL_ERROR, "CANCELED", "cancelled, as the service has confirmed")
}

/// People have not approved the call, and it has not run.
pub(crate) fn not_approved(reason: &str, message: impl Into<Cow<'static, str>>) -> Refusal {
    of_reason(StatusCode::OK, code::INTERNAL_ERROR, reason, message, &json!({ "outcome": "not_executed" }))
}

pub(crate) fn no_push() -> Refusal {
    own(-32_003, "push notifications are not supported")
}

pub(crate) fn unsupported(message: &'static str) -> Refusal {
    own(-32_004, message)
}

pub(crate) fn content_type(message: impl Into<Cow<'static, str>>) -> Refusal {
    own(-32_005, message)
}

/// Refusals in the form of A2A: it uses -32001 to -32009 itself, so the gateway's codes are replaced, and `data` is a list.
pub(crate) trait ToA2a {
    fn to_a2a(self) -> Self;
}

impl ToA2a for Refusal {
    fn to_a2a(mut self) -> Self {
        if self.has_data() {
            return self;
        }
        if self.status == StatusCode::UNSUPPORTED_MEDIA_TYPE {
            let (reason, message) = ("CONTENT_TYPE_NOT_SUPPORTED", self.message().to_owned());
            return of_reason(self.status, -32_005, reason, message, &json!({}));
        }
        self.code = match self.code {
            code::UNAUTHENTICATED | code::PERMISSION_DENIED => -self.code,
            -32_099..=-32_000 => code::INTERNAL_ERROR,
            code => code,
        };
        let (reason, metadata) = match self.take_outcome() {
            Some(Outcome::Unknown) => {
                // A2A clients read the error of a call only if the status is 200.
                self.status = StatusCode::OK;
                ("OUTCOME_UNKNOWN", json!({ "outcome": "unknown" }))
            }
            Some(Outcome::NotSent) => ("NOT_SENT", json!({ "outcome": "not_sent" })),
            None => ("REFUSED", json!({})),
        };
        self.with_data(json!([error_info(reason, GATEWAY, &metadata)]))
    }
}

/// `google.rpc.ErrorInfo`.
fn error_info(reason: &str, domain: &str, metadata: &Value) -> Value {
    let kind = "type.googleapis.com/google.rpc.ErrorInfo";
    json!({ "@type": kind, "reason": reason, "domain": domain, "metadata": metadata })
}

/// An invalid JSON-RPC message.
pub(crate) fn bad(message: &'static str) -> Refusal {
    Refusal::bad(StatusCode::BAD_REQUEST, message).to_a2a()
}

/// An invalid parameter.
pub(crate) fn invalid(field: &str, message: impl Into<Cow<'static, str>>) -> Refusal {
    let message = message.into();
    let violations = json!([{ "field": field, "description": message }]);
    let data = json!([{ "@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": violations }]);
    Refusal::new(StatusCode::OK, code::INVALID_PARAMS, message).with_data(data)
}

/// Reads the parameters of an A2A method. Unknown members are ignored (A2A §5.7).
pub(crate) fn read<T: DeserializeOwned>(params: &str) -> Result<T, Refusal> {
    json::object(params).map_err(|error| invalid("params", error.to_string()))
}

/// A2A §3.6.2: a request that names no version is of version 0.3.
pub(crate) fn version(head: &Parts) -> Result<(), Refusal> {
    let said = single(&head.headers, &HeaderName::from_static("a2a-version")).map_err(ToA2a::to_a2a)?;
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
pub(crate) fn translated(expose: &Expose, error: &ClientError) -> Refusal {
    let is_native = expose.a2a.as_ref().is_some_and(|agent| agent.native);
    match error {
        ClientError::Remote(said) => of_service(said, error.is_outcome_unknown(), is_native),
        error => failed(expose, error).to_a2a(),
    }
}

/// An error that the service has signed.
fn of_service(error: &RpcError, is_unknown: bool, is_native: bool) -> Refusal {
    let message = approval_in_words(error).unwrap_or_else(|| error.message().to_owned());
    let data = || {
        let data = error.data().filter(|data| data.get().len() <= DATA_BYTES)?;
        serde_json::from_str::<Value>(data.get()).ok()
    };
    if error.is_application() {
        return of_application(error, data(), is_native);
    }
    match error.code() {
        code::UNAUTHENTICATED | code::STALE | code::REPLAYED => Refusal::not_taken().to_a2a(),
        code::METHOD_NOT_FOUND => fault(code::METHOD_NOT_FOUND, "METHOD_NOT_FOUND", message),
        code::PERMISSION_DENIED if !is_unknown => {
            // Not 403: A2A clients then show no more than the number.
            fault(-code::PERMISSION_DENIED, "PERMISSION_DENIED", message)
        }
        code::INVALID_PARAMS | code::VALIDATION_FAILED => invalid("message.parts[0].data.params", message),
        code::QUOTA_EXCEEDED => {
            let retry_ms = data().and_then(|data| data.get("retry_after_ms")?.as_u64()).unwrap_or(1_000);
            let delay = format!("{}.{:03}s", retry_ms / 1_000, retry_ms % 1_000);
            let info = error_info("RETRY_LATER", GATEWAY, &json!({ "outcome": "not_executed" }));
            let retry = json!({ "@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay });
            Refusal::new(StatusCode::OK, code::INTERNAL_ERROR, message)
                .with_data(json!([info, retry]))
                .with(RETRY_AFTER, HeaderValue::from(retry_ms.div_ceil(1_000).max(1)))
        }
        code::APPROVAL_REQUIRED => {
            let info = error_info("APPROVAL_REQUIRED", GATEWAY, &json!({ "outcome": "not_executed" }));
            let all = std::iter::once(info).chain(data().map(protobuf_value)).collect();
            Refusal::new(StatusCode::OK, code::INTERNAL_ERROR, message).with_data(Value::Array(all))
        }
        // The call has begun, or may have; what it did is unknown.
        _ if is_unknown => {
            let unknown = json!({ "outcome": "unknown" });
            of_reason(StatusCode::OK, code::INTERNAL_ERROR, "OUTCOME_UNKNOWN", message, &unknown)
        }
        _ => method_failed(error, data()),
    }
}

/// An error that the method itself chose.
fn of_application(error: &RpcError, data: Option<Value>, is_native: bool) -> Refusal {
    let message = error.message().to_owned();
    match (error.code(), data) {
        // A2A §9.5: its errors have their reason in `data`.
        (code @ -32_009..=-32_001, None) if is_native => own(code, message),
        // The same without the sign.
        (code @ 32_001..=32_009, _) if is_native => own(-code, message),
        // A native agent speaks A2A itself.
        (code, Some(data)) if is_native => Refusal::new(StatusCode::OK, code, message).with_data(data),
        (code, None) if is_native => Refusal::new(StatusCode::OK, code, message),
        (code::INVALID_PARAMS, _) => invalid("message.parts[0].data.params", message),
        (_, data) => method_failed(error, data),
    }
}

fn method_failed(error: &RpcError, data: Option<Value>) -> Refusal {
    let code = error.code().to_string();
    // SPEC.md §14: the number could be taken for one of Sealwire's own.
    let metadata = match error.is_application() && (-32768..=-32000).contains(&error.code()) {
        true => json!({ "serviceCode": code, "applicationError": "true" }),
        false => json!({ "serviceCode": code }),
    };
    let info = error_info("METHOD_FAILED", GATEWAY, &metadata);
    let all: Vec<Value> = std::iter::once(info).chain(data.map(protobuf_value)).collect();
    Refusal::new(StatusCode::OK, code::INTERNAL_ERROR, error.message().to_owned()).with_data(Value::Array(all))
}

fn protobuf_value(data: Value) -> Value {
    json!({ "@type": "type.googleapis.com/google.protobuf.Value", "value": data })
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
        match sealwire::internal::rpc::Responses::parse(text.as_bytes(), &sealwire::internal::rpc::Limits::default())
            .unwrap()
        {
            sealwire::internal::rpc::Responses::Single(response) => response.outcome.unwrap_err(),
            sealwire::internal::rpc::Responses::Batch(_) => unreachable!("one response"),
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
            assert_eq!(status, 200, "{code}");
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
        let pending = r#"{"approval":"ann.x","needs":[],"deadline":1790000000,"retry_after_ms":2000}"#;
        let waits = said(&with_data(-32_018, pending), false).1;
        assert_eq!((&waits["code"], &waits["data"][0]["reason"]), (&json!(-32_603), &json!("APPROVAL_REQUIRED")));
        assert_eq!(
            (&waits["data"][0]["metadata"]["outcome"], &waits["data"][1]["value"]["approval"]),
            (&json!("not_executed"), &json!("ann.x"))
        );
        assert!(waits["message"].as_str().unwrap().contains("call again"), "{waits}");
        // A native agent sends them without the sign.
        for (code, reason) in (32_001..).zip(REASONS) {
            let said = said(&error(code), true).1;
            assert_eq!((&said["code"], &said["data"][0]["reason"]), (&json!(-code), &json!(reason)));
        }
    }
}
