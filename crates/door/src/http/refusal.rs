//! What a door answers where no service has: an HTTP status, and an error of JSON-RPC that says whether anything was sent.
//! Never says what a service may have answered, nor where on the bus it is.

use std::borrow::Cow;

use hyper::header::{ALLOW, CONNECTION, HeaderName, HeaderValue, RETRY_AFTER};
use hyper::{Method, Response, StatusCode};
use sealwire::client::ClientError;
use sealwire::rpc::{Id, RpcError, code};
use serde::Serialize;

use super::answered;
use super::connections::Body;

/// A request that comes to nothing.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    pub(crate) code: i32,
    message: Cow<'static, str>,
    outcome: Option<Outcome>,
    header: Option<(HeaderName, HeaderValue)>,
    /// What is left of the request is not read.
    closes: bool,
    id: Option<Id>,
}

/// What became of a call that has no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Outcome {
    /// It may have run.
    Unknown,
    /// It has not.
    NotSent,
}

#[derive(Serialize)]
struct Message<'a> {
    jsonrpc: &'static str,
    error: Error<'a>,
    id: &'a Id,
}

#[derive(Serialize)]
struct Error<'a> {
    code: i32,
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<Data>,
}

#[derive(Serialize)]
struct Data {
    outcome: Outcome,
}

impl Refusal {
    pub(crate) fn new(status: StatusCode, code: i32, message: impl Into<Cow<'static, str>>) -> Self {
        Self { status, code, message: message.into(), outcome: None, header: None, closes: false, id: None }
    }

    /// A request that is none.
    pub(crate) fn bad(status: StatusCode, message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(status, code::INVALID_REQUEST, message)
    }

    pub(crate) fn not_found(message: &'static str) -> Self {
        Self::bad(StatusCode::NOT_FOUND, message)
    }

    pub(crate) fn method(allowed: Method) -> Self {
        let mut refusal = Self::bad(StatusCode::METHOD_NOT_ALLOWED, format!("{allowed} is what there is"));
        refusal.header = HeaderValue::from_str(allowed.as_str()).ok().map(|allowed| (ALLOW, allowed));
        refusal
    }

    /// More than the caller may use, for the next so many seconds.
    pub(crate) fn quota(message: &'static str, retry_after_s: u64) -> Self {
        let mut refusal = Self::new(StatusCode::TOO_MANY_REQUESTS, code::QUOTA_EXCEEDED, message);
        refusal.header = Some((RETRY_AFTER, retry_after_s.max(1).into()));
        refusal.outcome = Some(Outcome::NotSent);
        refusal
    }

    /// The broker, or the door, takes nothing now.
    pub(crate) fn unavailable(message: impl Into<Cow<'static, str>>) -> Self {
        let mut refusal = Self::new(StatusCode::SERVICE_UNAVAILABLE, code::OVERLOADED, message);
        refusal.header = Some((RETRY_AFTER, HeaderValue::from_static("1")));
        refusal.outcome = Some(Outcome::NotSent);
        refusal
    }

    /// Nobody knows whether the call has run.
    pub(crate) fn unknown(message: impl Into<Cow<'static, str>>) -> Self {
        let mut refusal = Self::new(StatusCode::BAD_GATEWAY, code::INTERNAL_ERROR, message);
        refusal.outcome = Some(Outcome::Unknown);
        refusal
    }

    /// A text that is no message of JSON-RPC.
    pub(crate) fn of_text(error: &RpcError) -> Self {
        Self::new(StatusCode::BAD_REQUEST, error.code(), error.message().to_owned())
    }

    /// A call that has no answer that can be trusted.
    pub(crate) fn of_call(error: &ClientError) -> Self {
        match error {
            ClientError::Timeout { .. } => {
                let mut refusal = Self::unknown("no answer within the time that the door allows");
                (refusal.status, refusal.code) = (StatusCode::GATEWAY_TIMEOUT, code::TIMEOUT);
                refusal
            }
            ClientError::TooLarge { .. } => {
                let mut refusal =
                    Self::new(StatusCode::PAYLOAD_TOO_LARGE, code::TOO_LARGE, "the broker takes no message so large");
                refusal.outcome = Some(Outcome::NotSent);
                refusal
            }
            ClientError::Busy { .. } | ClientError::TooManyStreams { .. } => {
                Self::unavailable("too many calls are under way")
            }
            ClientError::Disconnected { .. } | ClientError::Token(_) | ClientError::Connect(_) => {
                Self::unavailable("the bus cannot be used, nothing was sent: try again")
            }
            ClientError::NoResponders { .. } => Self::unknown("nobody answers for the service"),
            ClientError::Hint { hint } => Self::unknown(format!("refused with the unsigned hint {}", hint.code())),
            error if error.is_outcome_unknown() => Self::unknown("no answer that can be trusted"),
            _ => {
                let mut refusal = Self::unknown("the door cannot make this call: its log says why");
                refusal.outcome = Some(Outcome::NotSent);
                refusal
            }
        }
    }

    /// Of the call of this id.
    pub(crate) fn of(mut self, id: Option<&Id>) -> Self {
        self.id = id.cloned();
        self
    }

    /// The connection ends with the answer.
    pub(crate) fn closing(mut self) -> Self {
        self.closes = true;
        self
    }

    pub(crate) fn answer(self) -> Response<Body> {
        let id = self.id.unwrap_or_else(Id::null);
        let error =
            Error { code: self.code, message: &self.message, data: self.outcome.map(|outcome| Data { outcome }) };
        // Nothing in it cannot be written.
        let text = serde_json::to_vec(&Message { jsonrpc: "2.0", error, id: &id }).unwrap_or_default();
        let mut answer = answered(self.status, "application/json", text);
        answer.headers_mut().extend(self.header);
        if self.closes {
            answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        answer
    }
}
