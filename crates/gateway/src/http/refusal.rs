//! What a gateway answers when no service did: an HTTP status, and a JSON-RPC error that says whether anything was sent.
//! Never reveals what a service may have answered, nor where on the bus it is.

use std::borrow::Cow;

use hyper::header::{ALLOW, CONNECTION, HeaderName, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use hyper::{Method, StatusCode};
use sealwire::errors::{TokenFault, code};
use sealwire::internal::rpc::{Id, Response};
use sealwire::{ClientError, RpcError};
use serde::Serialize;
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};

use super::connections::{Anonymous, Body};
use super::response::response;
use crate::mcp::message::Fault;
use crate::revocation::Loss;

/// A request that the gateway refuses, or that has no trustworthy answer.
#[derive(Debug)]
pub struct Refusal {
    /// The status of its response.
    pub status: StatusCode,
    /// The code of its JSON-RPC error.
    pub code: i32,
    message: Cow<'static, str>,
    outcome: Option<Outcome>,
    headers: Vec<(HeaderName, HeaderValue)>,
    /// Whether the connection is closed, with the rest of the request unread.
    closes: bool,
    /// Nobody has shown who asks.
    is_anonymous: bool,
    about: Box<About>,
}

/// In a box, since few refusals have any of it.
#[derive(Debug, Default)]
struct About {
    id: Option<Box<RawValue>>,
    /// The error's data, unless `outcome` is set.
    data: Option<Value>,
    /// The method of the call.
    method: Option<String>,
    /// Whether an unknown id is left out rather than null.
    of_mcp: bool,
}

/// The outcome of a call without a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It may have run.
    Unknown,
    /// It has not run.
    NotSent,
}

#[derive(Serialize)]
struct Message<'a> {
    jsonrpc: &'static str,
    error: Error<'a>,
    /// `null` if none could be read; MCP leaves it out then.
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<Option<&'a RawValue>>,
}

#[derive(Serialize)]
struct Error<'a> {
    code: i32,
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<Data<'a>>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Data<'a> {
    Outcome { outcome: Outcome },
    Other(&'a Value),
}

impl Refusal {
    /// With this status and code, of which nothing more is known.
    #[must_use]
    pub fn new(status: StatusCode, code: i32, message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            status,
            code,
            message: message.into(),
            outcome: None,
            headers: Vec::new(),
            closes: false,
            is_anonymous: false,
            about: Box::default(),
        }
    }

    /// An invalid request.
    #[must_use]
    pub fn bad(status: StatusCode, message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(status, code::INVALID_REQUEST, message)
    }

    /// Nothing is at this address.
    #[must_use]
    pub fn not_found(message: &'static str) -> Self {
        Self::bad(StatusCode::NOT_FOUND, message)
    }

    pub(crate) fn method(allowed: &[Method]) -> Self {
        let allowed = allowed.iter().map(Method::as_str).collect::<Vec<_>>().join(", ");
        let mut refusal = Self::bad(StatusCode::METHOD_NOT_ALLOWED, format!("method not allowed: use {allowed}"));
        refusal.headers.extend(HeaderValue::from_str(&allowed).ok().map(|allowed| (ALLOW, allowed)));
        refusal
    }

    /// A method that the gateway does not forward.
    pub(crate) fn no_method() -> Self {
        Self::new(StatusCode::OK, code::METHOD_NOT_FOUND, "Method not found")
    }

    /// The caller is over its quota, for about `retry_after_s` seconds.
    pub(crate) fn quota(message: &'static str, retry_after_s: u64) -> Self {
        let mut refusal = Self::new(StatusCode::TOO_MANY_REQUESTS, code::QUOTA_EXCEEDED, message);
        refusal.headers.push((RETRY_AFTER, retry_after_s.max(1).into()));
        refusal.outcome = Some(Outcome::NotSent);
        refusal
    }

    /// The broker or the gateway cannot take the request now.
    #[must_use]
    pub fn unavailable(message: impl Into<Cow<'static, str>>) -> Self {
        let mut refusal = Self::new(StatusCode::SERVICE_UNAVAILABLE, code::OVERLOADED, message);
        refusal.headers.push((RETRY_AFTER, HeaderValue::from_static("1")));
        refusal.outcome = Some(Outcome::NotSent);
        refusal
    }

    /// A message that is larger than any that is read.
    pub(crate) fn too_long(message: &'static str) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, code::TOO_LARGE, message).not_sent()
    }

    /// The broker cannot be reached, and nothing was sent.
    #[must_use]
    pub fn away() -> Self {
        Self::unavailable("the broker cannot be reached, nothing was sent: try again")
    }

    /// The connection to the broker was lost, and did not come back in time.
    #[must_use]
    pub fn lost() -> Self {
        Self::unknown("the connection to the broker was lost during the call")
    }

    /// The service refused the gateway's own message, not the caller's.
    #[must_use]
    pub fn not_taken() -> Self {
        Self::unknown("the service does not accept the gateway's message")
    }

    /// Nobody knows whether the call has run.
    #[must_use]
    pub fn unknown(message: impl Into<Cow<'static, str>>) -> Self {
        let mut refusal = Self::new(StatusCode::BAD_GATEWAY, code::INTERNAL_ERROR, message);
        refusal.outcome = Some(Outcome::Unknown);
        refusal
    }

    /// A text that is not a JSON-RPC message.
    #[must_use]
    pub fn of_text(error: &RpcError) -> Self {
        Self::new(StatusCode::BAD_REQUEST, error.code(), error.message().to_owned())
    }

    /// An invalid request object.
    #[must_use]
    pub fn of_invalid(invalid: &Response) -> Self {
        match &invalid.outcome {
            Err(error) => Self::of_text(error).of(Some(&invalid.id)),
            Ok(_) => Self::bad(StatusCode::BAD_REQUEST, "Invalid Request"),
        }
    }

    /// A caller whose token its issuer does not exchange; `None` for any other fault.
    pub(crate) fn of_token(fault: &TokenFault) -> Option<Self> {
        let TokenFault::Other(cause) = fault else { return None };
        cause.downcast_ref::<ExchangeRefused>().map(ExchangeRefused::refusal)
    }

    /// A call without a trustworthy answer.
    pub(crate) fn of_call(error: &ClientError) -> Self {
        if let ClientError::Token(fault) = error
            && let Some(refusal) = Self::of_token(fault)
        {
            return refusal;
        }
        match error {
            ClientError::Timeout { .. } => {
                let mut refusal = Self::unknown("no answer within the time that the gateway allows");
                (refusal.status, refusal.code) = (StatusCode::GATEWAY_TIMEOUT, code::TIMEOUT);
                refusal
            }
            ClientError::TooLarge { limit, .. } => {
                let message = format!("message too large for the broker, which takes {limit} bytes, headers included");
                let mut refusal = Self::new(StatusCode::PAYLOAD_TOO_LARGE, code::TOO_LARGE, message);
                refusal.outcome = Some(Outcome::NotSent);
                refusal
            }
            ClientError::Busy { .. } | ClientError::TooManyStreams { .. } => {
                Self::unavailable("too many calls are under way")
            }
            ClientError::Disconnected { .. }
            | ClientError::Token(_)
            | ClientError::Connect(_)
            | ClientError::InboxForbidden { sent: false, .. }
            | ClientError::Closed { sent: false } => {
                Self::unavailable("the bus cannot be used, nothing was sent: try again")
            }
            ClientError::Invalid(_) | ClientError::Credentials(_) => {
                let mut refusal = Self::unknown("the gateway cannot make this call: its log says why");
                refusal.outcome = Some(Outcome::NotSent);
                refusal
            }
            ClientError::Cancelled { sent: true } => Self::cancelled(),
            ClientError::Cancelled { sent: false } => Self::cancelled().not_sent(),
            ClientError::ResultTooLarge { .. } => {
                let mut refusal = Self::unknown("the result is larger than the gateway accepts");
                refusal.code = code::TOO_LARGE;
                refusal
            }
            ClientError::NoResponders { .. } => Self::unknown("the service has no responders"),
            ClientError::Hint { hint } if hint.code() == code::TOO_LARGE => Self::unknown(format!(
                "refused with the unsigned hint {}: services take messages of 192 KiB, unless they are configured otherwise",
                hint.code()
            )),
            ClientError::Hint { hint } => Self::unknown(format!("refused with the unsigned hint {}", hint.code())),
            // The broker names a subject but no message: an earlier message may have passed, and so may the call itself if its
            // acknowledgements are forbidden.
            ClientError::Forbidden { .. } => Self::unknown("the broker forbids the gateway a subject of this call"),
            // Any other error may come after the message was sent.
            _ => Self::unknown("no answer that can be trusted"),
        }
    }

    /// The same, of which nothing was sent.
    pub(crate) fn not_sent(mut self) -> Self {
        self.outcome = Some(Outcome::NotSent);
        self
    }

    /// Adds a header.
    #[must_use]
    pub fn with(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.push((name, value));
        self
    }

    /// The caller's token is no longer valid.
    #[must_use]
    pub fn ended() -> Self {
        Self::unknown(Loss::Ended.reason())
    }

    /// What may not go on, since the caller has begun it.
    #[must_use]
    pub fn of_loss(loss: Loss) -> Self {
        match loss {
            Loss::Unverifiable => Self::unchecked(),
            Loss::Ended => Self::ended(),
            Loss::Revoked => {
                let mut refusal = Self::unknown(loss.reason());
                (refusal.status, refusal.code) = (StatusCode::FORBIDDEN, code::PERMISSION_DENIED);
                refusal
            }
        }
    }

    /// What may not begin.
    #[must_use]
    pub fn of_loss_before(loss: Loss) -> Self {
        match loss {
            Loss::Unverifiable => Self::unavailable(loss.reason()),
            Loss::Ended | Loss::Revoked => Self::of_loss(loss).not_sent(),
        }
    }

    /// Nobody can tell whether the caller's token was revoked.
    pub(crate) fn unchecked() -> Self {
        let mut refusal = Self::unknown(
            "the gateway cannot tell whose tokens were revoked: the call was cancelled, and may have run",
        );
        refusal.code = code::OVERLOADED;
        refusal
    }

    /// A call that its caller has cancelled.
    pub(crate) fn cancelled() -> Self {
        let mut refusal = Self::unknown("cancelled by the caller");
        refusal.code = code::CANCELLED;
        refusal
    }

    /// The gateway is stopping and begins nothing new.
    pub(crate) fn stopping() -> Self {
        Self::unavailable("the gateway is stopping: try again")
    }

    /// The gateway is stopping and has cancelled a call that may have run.
    pub(crate) fn stopped() -> Self {
        let mut refusal = Self::unknown("the gateway is stopping: the call was cancelled, and may have run");
        refusal.code = code::OVERLOADED;
        refusal
    }

    /// An MCP error.
    pub(crate) fn of_fault(status: StatusCode, fault: Fault) -> Self {
        let mut refusal = Self::new(status, fault.code, fault.message);
        refusal.about.data = fault.data;
        refusal
    }

    /// Sets the error's data.
    #[must_use]
    pub fn with_data(mut self, data: Value) -> Self {
        self.about.data = Some(data);
        self
    }

    /// Whether the error has data.
    #[must_use]
    pub fn has_data(&self) -> bool {
        self.about.data.is_some()
    }

    /// Takes the outcome of the call, for a dialect that tells it in its own way.
    pub fn take_outcome(&mut self) -> Option<Outcome> {
        self.outcome.take()
    }

    /// In the form of MCP: with a code outside -32000 to -32099, which MCP reserves, and without an unknown id.
    pub(crate) fn of_mcp(mut self) -> Self {
        self.about.of_mcp = true;
        // `-32020` to `-32022` are MCP's own codes, and stay.
        if (-32_019..=-32_000).contains(&self.code) {
            self.code = -self.code;
        }
        self
    }

    /// Notes the method of the call, which the answer does not contain.
    pub(crate) fn asking(mut self, method: &str) -> Self {
        self.about.method = Some(method.to_owned());
        self
    }

    pub(crate) fn method_asked(&self) -> Option<&str> {
        self.about.method.as_deref()
    }

    /// The message of its error.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    pub(crate) fn is_not_sent(&self) -> bool {
        self.outcome == Some(Outcome::NotSent)
    }

    /// Sets the id of the call.
    #[must_use]
    pub fn of(mut self, id: Option<&Id>) -> Self {
        self.about.id = id.and_then(|id| to_raw_value(id).ok());
        self
    }

    /// The same, with the id as text.
    pub(crate) fn of_raw(mut self, id: &RawValue) -> Self {
        self.about.id = Some(id.to_owned());
        self
    }

    /// Closes the connection after the answer.
    pub(crate) fn closing(mut self) -> Self {
        self.closes = true;
        self
    }

    /// Nobody has shown who asks.
    pub(crate) fn anonymous(mut self) -> Self {
        self.is_anonymous = true;
        self
    }

    /// The error as a JSON-RPC response.
    #[must_use]
    pub fn text(&self) -> Vec<u8> {
        let data = self.outcome.map(|outcome| Data::Outcome { outcome });
        let data = data.or(self.about.data.as_ref().map(Data::Other));
        let error = Error { code: self.code, message: &self.message, data };
        let id = Some(self.about.id.as_deref()).filter(|id| id.is_some() || !self.about.of_mcp);
        // Cannot fail: every part of it can be serialized.
        serde_json::to_vec(&Message { jsonrpc: "2.0", error, id }).unwrap_or_default()
    }

    /// The response that tells it.
    #[must_use]
    pub fn response(self) -> hyper::Response<Body> {
        let mut answer = response(self.status, "application/json", self.text());
        for (name, value) in self.headers {
            answer.headers_mut().append(name, value);
        }
        if self.is_anonymous {
            answer.extensions_mut().insert(Anonymous);
        }
        if self.closes {
            answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        answer
    }
}

/// The issuer does not exchange the caller's token. Holds what the caller is told.
#[derive(Debug, thiserror::Error)]
#[error("the token was not exchanged")]
pub(crate) struct ExchangeRefused {
    pub(crate) status: StatusCode,
    pub(crate) challenges: Vec<HeaderValue>,
}

impl ExchangeRefused {
    fn refusal(&self) -> Refusal {
        let message = match self.status {
            StatusCode::UNAUTHORIZED => "the token's issuer no longer accepts it",
            _ => "the token's issuer does not let its bearer use the service",
        };
        let refusal = Refusal::new(self.status, code::UNAUTHENTICATED, message).not_sent();
        let challenges = self.challenges.iter();
        challenges.fold(refusal, |refusal, challenge| refusal.with(WWW_AUTHENTICATE, challenge.clone()))
    }
}

/// Refuses any other method.
pub fn require_method(method: &Method, wanted: Method) -> Result<(), Refusal> {
    if *method == wanted { Ok(()) } else { Err(Refusal::method(&[wanted])) }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sealwire::errors::{InvalidRequest, ProtocolError};

    use super::*;

    #[test]
    fn only_what_was_certainly_not_sent_is_said_to_be() {
        let not_sent = [
            ClientError::Invalid(InvalidRequest::IdempotencyKey),
            ClientError::Busy { limit: 1 },
            ClientError::TooManyStreams { limit: 1 },
            ClientError::Disconnected { waited: Duration::ZERO, cause: None },
            ClientError::TooLarge { size: 2, limit: 1 },
            ClientError::InboxForbidden { subject: "s".to_owned(), sent: false },
            ClientError::Closed { sent: false },
            ClientError::Cancelled { sent: false },
        ];
        let unknown = [
            ClientError::Forbidden { subject: "s".to_owned(), sent: false },
            ClientError::InboxForbidden { subject: "s".to_owned(), sent: true },
            ClientError::Protocol(ProtocolError::UnknownId),
            ClientError::ResultTooLarge { limit: 1 },
            ClientError::ConnectionLost,
            ClientError::Ended,
            ClientError::Closed { sent: true },
            ClientError::Cancelled { sent: true },
        ];
        for (errors, outcome) in [(&not_sent[..], Outcome::NotSent), (&unknown[..], Outcome::Unknown)] {
            for error in errors {
                assert_eq!(Refusal::of_call(error).outcome, Some(outcome), "{error}");
            }
        }
        assert_eq!(Refusal::of_call(&ClientError::Cancelled { sent: true }).code, code::CANCELLED);
    }
}
