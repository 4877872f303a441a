//! The one table from a refusal to what the caller is told and what the operator counts.
//! Never lets an internal reason out: the texts are fixed.

use serde_json::json;

use super::calls::BodyError;
use super::quota::{QuotaExceeded, QuotaScope};
use crate::auth::{AuthError, Refused};
use crate::rpc::{RpcError, code};
use crate::wire::{EnvelopeError, Hint};

/// Why a message or an entry was not executed, or its result not delivered.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// The message's shape.
    #[error("{0}")]
    Shape(EnvelopeError),
    /// The sender, the window or the nonce.
    #[error("{0}")]
    Auth(AuthError),
    /// The caller's quota.
    #[error("{0}")]
    Quota(QuotaExceeded),
    /// The body as a whole.
    #[error("{0}")]
    Body(WholeBody),
    /// The policy.
    #[error("denied by the policy")]
    Denied,
    /// The policy would allow the name, and there is no such method.
    #[error("no such method")]
    UnknownMethod,
    /// Parameters that a policy with conditions cannot judge: undeclared, missing, repeated, of another type.
    #[error("{0}")]
    Params(String),
    /// The deadline.
    #[error("the deadline has passed")]
    Deadline,
    /// The answer's size.
    #[error("the answer is above its limit")]
    ResponseTooLarge,
    /// No room in the queue.
    #[error("shed: the queue is full")]
    Shed,
}

/// A body refused as a whole.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub struct WholeBody {
    reason: &'static str,
    error: Option<RpcError>,
}

impl From<BodyError> for WholeBody {
    fn from(error: BodyError) -> Self {
        let reason = match &error {
            BodyError::Rpc(_) => "the body is no valid request",
            BodyError::MethodSubject => "the body's method is not the subject's",
            BodyError::BatchOnMethodSubject => "a batch on a method subject",
            BodyError::NoReply => "a call or batch without a reply subject",
        };
        Self { reason, error: Some(error.rpc()) }
    }
}

/// What the caller gets.
#[derive(Debug)]
pub enum Answer {
    /// Silence: nobody may be answered, or nothing may be published.
    Nothing,
    /// An unsigned hint: the caller is not known.
    Hint(Hint),
    /// A signed error object.
    Error(RpcError),
}

impl Answer {
    /// The error object; a hint's own text where there is none.
    pub(super) fn into_error(self) -> RpcError {
        match self {
            Self::Error(error) => error,
            Self::Nothing | Self::Hint(_) => RpcError::internal("a refusal without an error object"),
        }
    }
}

/// Who can have caused a refusal. It bounds how often it is logged and answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cause {
    /// Whoever may publish: nothing is proved.
    Anybody,
    /// Whoever has seen a message of the caller: it is genuine, and may be a copy.
    Copy,
    /// The caller, or whoever has copies of messages that were not stored: more than its rate.
    Excess,
    /// The caller: what it sent was fresh. There are no more of these than its rate.
    Caller,
}

/// How long a client should wait before it tries again when the service itself is the bottleneck; our choice.
const RETRY_AFTER_MS: u64 = 1_000;

impl Refusal {
    /// The label of an entry of a batch, or a single body, that is no valid request.
    pub(super) const ENTRY_LABEL: &'static str = "invalid_request";

    /// What the caller is told at `now_s` (seconds since the Unix epoch).
    #[must_use]
    pub fn answer(&self, now_s: u64) -> Answer {
        let error = |code, message: &'static str| Answer::Error(RpcError::with_code(code, message));
        match self {
            Self::Shape(shape) => match shape {
                EnvelopeError::Subject | EnvelopeError::Reply => Answer::Nothing,
                EnvelopeError::TooLarge => Answer::Hint(Hint::TooLarge),
                EnvelopeError::Service
                | EnvelopeError::Headers
                | EnvelopeError::Malformed
                | EnvelopeError::Missing
                | EnvelopeError::Repeated
                | EnvelopeError::Authorization
                | EnvelopeError::Proof(_) => Answer::Hint(Hint::Unauthenticated),
            },
            Self::Auth(auth) => match proved(auth) {
                Err(hint) => Answer::Hint(hint),
                Ok(Refused::Stale) => stale(now_s),
                Ok(Refused::Replayed) => error(code::REPLAYED, "replayed"),
                Ok(Refused::OwnerFull { retry_after_ms }) => quota(retry_after_ms, "nonces"),
                Ok(Refused::Full { retry_after_ms }) => overloaded(retry_after_ms),
                Ok(Refused::Unavailable(_)) => overloaded(RETRY_AFTER_MS),
            },
            Self::Quota(exceeded) => quota(exceeded.retry_after_ms, exceeded.scope.as_str()),
            Self::Body(body) => Answer::Error(
                body.error.clone().unwrap_or_else(|| RpcError::with_code(code::INVALID_REQUEST, "invalid request")),
            ),
            Self::Denied => error(code::PERMISSION_DENIED, "permission denied"),
            Self::UnknownMethod => error(code::METHOD_NOT_FOUND, "Method not found"),
            Self::Params(reason) => Answer::Error(RpcError::invalid_params(format!("Invalid params: {reason}"))),
            Self::Deadline => error(code::TIMEOUT, "timeout"),
            Self::ResponseTooLarge => error(code::TOO_LARGE, "too large"),
            Self::Shed => Answer::Hint(Hint::Overloaded),
        }
    }

    /// Who can have caused it.
    pub(super) fn cause(&self) -> Cause {
        match self {
            Self::Shape(_) | Self::Shed => Cause::Anybody,
            Self::Auth(auth) => match proved(auth) {
                Err(_) => Cause::Anybody,
                Ok(Refused::Stale | Refused::Replayed) => Cause::Copy,
                Ok(Refused::OwnerFull { .. } | Refused::Full { .. } | Refused::Unavailable(_)) => Cause::Caller,
            },
            Self::Quota(exceeded) => match exceeded.scope {
                QuotaScope::Rate => Cause::Excess,
                QuotaScope::Entries | QuotaScope::InFlight => Cause::Caller,
            },
            Self::Body(_)
            | Self::Denied
            | Self::UnknownMethod
            | Self::Params(_)
            | Self::Deadline
            | Self::ResponseTooLarge => Cause::Caller,
        }
    }

    /// The metric's label: a closed set, never from the wire.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self {
            Self::Shape(shape) => match shape {
                EnvelopeError::Subject => "dropped_subject",
                EnvelopeError::Reply => "dropped_reply",
                EnvelopeError::Service => "other_service",
                EnvelopeError::Headers => "headers",
                EnvelopeError::Malformed => "malformed_headers",
                EnvelopeError::Missing => "no_authorization",
                EnvelopeError::Repeated => "repeated_authorization",
                EnvelopeError::Authorization => "malformed_authorization",
                EnvelopeError::Proof(_) => "malformed_proof",
                EnvelopeError::TooLarge => "request_too_large",
            },
            Self::Auth(auth) => match auth {
                AuthError::Key => "unknown_key",
                AuthError::KeyRevoked => "revoked_key",
                AuthError::Algorithm => "algorithm",
                AuthError::Owner => "key_owner",
                AuthError::Signature => "signature",
                AuthError::Proof(_) => "proof_claims",
                AuthError::Mismatch(_) => "claim_mismatch",
                AuthError::Expired => "long_expired",
                AuthError::Token(_) => "token",
                AuthError::TokenOwner => "token_owner",
                AuthError::Confirmation => "token_confirmation",
                AuthError::Crowded => "crowded",
                AuthError::Stale(_) | AuthError::Guard(Refused::Stale) => "stale",
                AuthError::Guard(Refused::Replayed) => "replayed",
                AuthError::Guard(Refused::OwnerFull { .. }) => "nonce_quota",
                AuthError::Guard(Refused::Full { .. }) => "guard_full",
                AuthError::Guard(Refused::Unavailable(_)) => "guard_unavailable",
                AuthError::Suspended => "suspended",
            },
            Self::Quota(exceeded) => exceeded.scope.label(),
            Self::Body(_) => "invalid_body",
            Self::Denied => "denied",
            Self::UnknownMethod => "unknown_method",
            Self::Params(_) => "params",
            Self::Deadline => "deadline",
            Self::ResponseTooLarge => "response_too_large",
            Self::Shed => "shed",
        }
    }
}

/// What is said to a caller who proved who he is; the hint for one who did not. The one place that tells them apart.
fn proved(auth: &AuthError) -> Result<Refused, Hint> {
    match auth {
        AuthError::Key
        | AuthError::KeyRevoked
        | AuthError::Algorithm
        | AuthError::Owner
        | AuthError::Signature
        | AuthError::Proof(_)
        | AuthError::Mismatch(_)
        | AuthError::Expired
        | AuthError::Token(_)
        | AuthError::TokenOwner
        | AuthError::Confirmation => Err(Hint::Unauthenticated),
        AuthError::Crowded => Err(Hint::Overloaded),
        AuthError::Stale(_) => Ok(Refused::Stale),
        AuthError::Guard(refused) => Ok(*refused),
        AuthError::Suspended => Ok(Refused::Full { retry_after_ms: RETRY_AFTER_MS }),
    }
}

/// The hint that stands for an error whose caller turned out to be unknown.
pub(super) fn hint_for(code: i32) -> Hint {
    match code {
        code::OVERLOADED => Hint::Overloaded,
        code::TOO_LARGE => Hint::TooLarge,
        _ => Hint::Unauthenticated,
    }
}

fn stale(now_s: u64) -> Answer {
    Answer::Error(RpcError::with_code(code::STALE, "stale").with_data(&json!({ "server_time": now_s })))
}

fn quota(retry_after_ms: u64, scope: &str) -> Answer {
    let data = json!({ "retry_after_ms": retry_after_ms, "scope": scope });
    Answer::Error(RpcError::with_code(code::QUOTA_EXCEEDED, "quota exceeded").with_data(&data))
}

fn overloaded(retry_after_ms: u64) -> Answer {
    let data = json!({ "retry_after_ms": retry_after_ms });
    Answer::Error(RpcError::with_code(code::OVERLOADED, "overloaded").with_data(&data))
}
