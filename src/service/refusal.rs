//! The one table from a refusal to what the caller is told and what the operator counts.
//! Never lets an internal reason out: the texts are fixed.

use serde_json::json;

use super::approvals::Unapproved;
use super::budgets::Uncharged;
use super::calls::BodyError;
use super::idempotency::{Conflict, NotSo};
use super::quota::{QuotaExceeded, QuotaScope};
use super::streams::Ending;
use crate::auth::{AdmitError, AuthError, OutcomeStoreError, RevocationKind as Kind};
use crate::rpc::{RpcError, code};
use crate::wire::{EnvelopeError, UnsignedHint};

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
    Body(InvalidBody),
    /// The policy.
    #[error("denied by the policy")]
    Denied,
    /// The policy would allow the name, but there is no such method.
    #[error("no such method")]
    UnknownMethod,
    /// An operator has revoked the method, the service or the caller since the message was proved.
    #[error("revoked by an operator")]
    Revoked,
    /// Parameters that a policy with conditions cannot judge: undeclared, missing, repeated, of another type.
    #[error("{0}")]
    Params(String),
    /// The idempotency key was used before, but there is no outcome to return.
    #[error("{0}")]
    Conflict(Conflict),
    /// Outcomes cannot be stored now.
    #[error("{0}")]
    OutcomeStore(OutcomeStoreError),
    /// The method runs only once its decision is on disk, and that cannot be written now.
    #[error("the decision cannot be recorded, and the method asks for that")]
    Unrecorded,
    /// People have to approve it, or have denied it.
    #[error("{0}")]
    Approval(Unapproved),
    /// A budget has no room for it, or cannot be charged.
    #[error("{0}")]
    Budget(Uncharged),
    /// As a task, or not as one.
    #[error("{0}")]
    NotSo(NotSo),
    /// An idempotency key with a batch.
    #[error("an idempotency key covers one call, and this is a batch")]
    KeyOfBatch,
    /// The deadline.
    #[error("the deadline has passed")]
    Deadline,
    /// The answer's size.
    #[error("the answer is above its limit")]
    ResponseTooLarge,
    /// The call was ended before its method had answered.
    #[error("{0}")]
    Ended(Ending),
    /// No room in the queue.
    #[error("shed: the queue is full")]
    Shed,
}

/// A body refused as a whole.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub struct InvalidBody {
    reason: &'static str,
    error: Option<RpcError>,
}

impl From<BodyError> for InvalidBody {
    fn from(error: BodyError) -> Self {
        let reason = match &error {
            BodyError::Rpc(_) => "the body is no valid request",
            BodyError::MethodSubject => "the body's method is not the subject's",
            BodyError::BatchOnMethodSubject => "a batch on a method subject",
            BodyError::NoReply => "a call or batch without a reply subject",
            BodyError::Window => "a window for frames with a batch or a notification",
            BodyError::Task => "a batch or a notification as a task",
        };
        Self { reason, error: Some(error.rpc()) }
    }
}

/// What the caller gets.
#[derive(Debug)]
pub enum RefusalReply {
    /// Silence: nobody may be answered, or nothing may be published.
    Nothing,
    /// An unsigned hint: the caller is not known.
    Hint(UnsignedHint),
    /// A signed error object.
    Error(RpcError),
}

impl RefusalReply {
    /// The error object; an internal error if there is none.
    pub(super) fn into_error(self) -> RpcError {
        match self {
            Self::Error(error) => error,
            Self::Nothing | Self::Hint(_) => RpcError::internal("a refusal without an error object"),
        }
    }
}

/// Who can have caused a refusal. This bounds how often it is logged and answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cause {
    /// Anyone who may publish: nothing is proved.
    Anybody,
    /// Anyone who has seen a message of the caller: it is genuine, but may be a copy.
    Copy,
    /// The caller, or anyone who has copies of messages that were not stored: above its rate.
    Excess,
    /// The caller: what it sent was fresh. There are no more of these than its rate allows.
    Caller,
}

/// How long a client should wait before it tries again when the service itself is the bottleneck; our choice.
const RETRY_AFTER_MS: u64 = 1_000;

impl Refusal {
    /// The label of an entry of a batch, or a single body, that is not a valid request.
    pub(super) const ENTRY_LABEL: &'static str = "invalid_request";

    /// What the caller is told at `now_s` (seconds since the Unix epoch).
    #[must_use]
    pub fn answer(&self, now_s: u64) -> RefusalReply {
        let error = |code, message: &'static str| RefusalReply::Error(RpcError::with_code(code, message));
        match self {
            Self::Shape(shape) => match shape {
                EnvelopeError::Subject | EnvelopeError::Reply => RefusalReply::Nothing,
                EnvelopeError::TooLarge => RefusalReply::Hint(UnsignedHint::TooLarge),
                EnvelopeError::Service
                | EnvelopeError::Headers
                | EnvelopeError::Malformed
                | EnvelopeError::Missing
                | EnvelopeError::Repeated
                | EnvelopeError::Authorization
                | EnvelopeError::Proof(_) => RefusalReply::Hint(UnsignedHint::Unauthenticated),
            },
            Self::Revoked | Self::Auth(AuthError::Revoked(Kind::Service | Kind::Everything)) => {
                error(code::PERMISSION_DENIED, "permission denied: revoked by an operator")
            }
            Self::Auth(auth) => match proved(auth) {
                Err(hint) => RefusalReply::Hint(hint),
                Ok(AdmitError::Stale) => stale(now_s),
                Ok(AdmitError::Replayed) => error(code::REPLAYED, "replayed"),
                Ok(AdmitError::OwnerFull { retry_after_ms }) => quota(retry_after_ms, "nonces"),
                Ok(AdmitError::Full { retry_after_ms } | AdmitError::Fenced { retry_after_ms }) => {
                    overloaded(retry_after_ms)
                }
                Ok(AdmitError::Unavailable(_)) => overloaded(RETRY_AFTER_MS),
            },
            Self::Quota(exceeded) => quota(exceeded.retry_after_ms, exceeded.scope.as_str()),
            Self::Body(body) => RefusalReply::Error(
                body.error.clone().unwrap_or_else(|| RpcError::with_code(code::INVALID_REQUEST, "invalid request")),
            ),
            Self::Denied => error(code::PERMISSION_DENIED, "permission denied"),
            Self::UnknownMethod => error(code::METHOD_NOT_FOUND, "Method not found"),
            Self::Params(reason) => RefusalReply::Error(RpcError::invalid_params(format!("Invalid params: {reason}"))),
            Self::Conflict(conflict) => {
                let data = match conflict {
                    Conflict::Running { retry_after_ms } => {
                        json!({ "idempotency": conflict.as_str(), "retry_after_ms": retry_after_ms })
                    }
                    _ => json!({ "idempotency": conflict.as_str() }),
                };
                RefusalReply::Error(
                    RpcError::with_code(code::CONFLICT, format!("conflict: {conflict}")).with_data(&data),
                )
            }
            Self::OutcomeStore(OutcomeStoreError::AgentFull) => quota(RETRY_AFTER_MS, "outcomes"),
            Self::OutcomeStore(_) => overloaded(RETRY_AFTER_MS),
            Self::Unrecorded => RefusalReply::Error(
                RpcError::with_code(
                    code::OVERLOADED,
                    "overloaded: the call cannot be recorded, so it was not executed",
                )
                .with_data(&json!({ "retry_after_ms": RETRY_AFTER_MS })),
            ),
            Self::Approval(unapproved) => unapproved_answer(unapproved),
            Self::Budget(uncharged) => uncharged_answer(uncharged),
            Self::KeyOfBatch => error(
                code::INVALID_REQUEST,
                "invalid request: an idempotency key covers one call: send this one by itself, or without a key",
            ),
            Self::NotSo(not_so) => {
                let task = match not_so {
                    NotSo::AsTask => "forbidden",
                    NotSo::Attached => "required",
                };
                RefusalReply::Error(
                    RpcError::with_code(code::INVALID_REQUEST, format!("invalid request: {not_so}"))
                        .with_data(&json!({ "task": task })),
                )
            }
            Self::Deadline => error(code::TIMEOUT, "timeout"),
            Self::ResponseTooLarge => error(code::TOO_LARGE, "too large"),
            Self::Ended(ending) => match ending {
                Ending::Cancelled => error(code::CANCELLED, "cancelled"),
                Ending::Unauthenticated => error(code::UNAUTHENTICATED, "unauthenticated"),
                // Without this, the code would say that nothing was executed.
                Ending::Denied => RefusalReply::Error(
                    RpcError::with_code(code::PERMISSION_DENIED, "permission denied: no longer, and it had begun")
                        .with_data(&json!({ "outcome": "unknown" })),
                ),
                Ending::Revoked => RefusalReply::Error(
                    RpcError::with_code(
                        code::PERMISSION_DENIED,
                        "permission denied: revoked by an operator, and it had begun",
                    )
                    .with_data(&json!({ "outcome": "unknown" })),
                ),
                Ending::Stalled => error(code::TIMEOUT, "timeout: frames were not acknowledged for 30 s"),
                Ending::Suspended | Ending::NoRoom | Ending::Draining => overloaded(RETRY_AFTER_MS),
            },
            Self::Shed => RefusalReply::Hint(UnsignedHint::Overloaded),
        }
    }

    /// Who can have caused it.
    pub(super) fn cause(&self) -> Cause {
        match self {
            Self::Shape(_) | Self::Shed => Cause::Anybody,
            // The nonce is not burnt, so any number of copies may come.
            Self::Auth(AuthError::Revoked(Kind::Service | Kind::Everything)) => Cause::Copy,
            Self::Auth(auth) => match proved(auth) {
                Err(_) => Cause::Anybody,
                Ok(AdmitError::Stale | AdmitError::Replayed) => Cause::Copy,
                Ok(
                    AdmitError::OwnerFull { .. }
                    | AdmitError::Full { .. }
                    | AdmitError::Fenced { .. }
                    | AdmitError::Unavailable(_),
                ) => Cause::Caller,
            },
            Self::Quota(exceeded) => match exceeded.scope {
                QuotaScope::Rate => Cause::Excess,
                QuotaScope::Entries | QuotaScope::InFlight | QuotaScope::Streams | QuotaScope::Tasks => Cause::Caller,
            },
            Self::Body(_)
            | Self::Denied
            | Self::UnknownMethod
            | Self::Revoked
            | Self::Params(_)
            | Self::Conflict(_)
            | Self::OutcomeStore(_)
            | Self::Unrecorded
            | Self::Approval(_)
            | Self::Budget(_)
            | Self::NotSo(_)
            | Self::KeyOfBatch
            | Self::Deadline
            | Self::ResponseTooLarge
            | Self::Ended(_) => Cause::Caller,
        }
    }

    /// What the log tells apart within a label: a closed set, never from the wire.
    pub(super) fn detail(&self) -> Option<&'static str> {
        match self {
            Self::Auth(error) => Some(error.detail()),
            Self::Body(body) => Some(body.reason),
            _ => None,
        }
    }

    /// Whether the key of the agent in the subject has proved the message.
    pub(super) fn has_proved_key(&self) -> bool {
        matches!(self, Self::Auth(error) if error.has_proved_key())
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
                AuthError::KeyAgentMismatch => "key_agent_mismatch",
                AuthError::Signature => "signature",
                AuthError::Proof(_) => "proof_claims",
                AuthError::Mismatch(_) => "claim_mismatch",
                AuthError::Expired => "long_expired",
                AuthError::Token(_) => "token",
                AuthError::TokenAgentMismatch => "token_agent_mismatch",
                AuthError::Confirmation => "token_confirmation",
                AuthError::VerificationQueueFull => "verification_queue_full",
                AuthError::Stale(_) | AuthError::Guard(AdmitError::Stale) => "stale",
                AuthError::Guard(AdmitError::Replayed) => "replayed",
                AuthError::Guard(AdmitError::OwnerFull { .. }) => "nonce_quota",
                AuthError::Guard(AdmitError::Full { .. }) => "guard_full",
                AuthError::Guard(AdmitError::Fenced { .. }) => "fenced",
                AuthError::Guard(AdmitError::Unavailable(_)) => "guard_unavailable",
                AuthError::Suspended => "suspended",
                AuthError::Revoked(_) => "revoked",
            },
            Self::Quota(exceeded) => exceeded.scope.label(),
            Self::Body(_) => "invalid_body",
            Self::Denied => "denied",
            Self::UnknownMethod => "unknown_method",
            Self::Revoked => "revoked_method",
            Self::Params(_) => "params",
            Self::Conflict(_) => "idempotency_conflict",
            Self::OutcomeStore(_) => "outcome_store",
            Self::Unrecorded => "unrecorded",
            Self::Approval(unapproved) => unapproved.label(),
            Self::Budget(uncharged) => uncharged.label(),
            Self::NotSo(NotSo::AsTask) => "no_task",
            Self::NotSo(NotSo::Attached) => "only_task",
            Self::KeyOfBatch => "idempotency_key_of_batch",
            Self::Deadline => "deadline",
            Self::ResponseTooLarge => "response_too_large",
            Self::Ended(ending) => match ending {
                Ending::Cancelled => "cancelled",
                Ending::Unauthenticated => "stream_unauthenticated",
                Ending::Denied => "stream_denied",
                Ending::Revoked => "stream_revoked",
                Ending::Stalled => "stream_stalled",
                Ending::Suspended => "stream_suspended",
                Ending::NoRoom => "response_no_room",
                Ending::Draining => "stream_draining",
            },
            Self::Shed => "shed",
        }
    }
}

/// What a proved caller is told, or the hint for an unproved one. The only place that tells them apart.
fn proved(auth: &AuthError) -> Result<AdmitError, UnsignedHint> {
    match auth {
        AuthError::Key
        | AuthError::KeyRevoked
        | AuthError::Revoked(_)
        | AuthError::Algorithm
        | AuthError::KeyAgentMismatch
        | AuthError::Signature
        | AuthError::Proof(_)
        | AuthError::Mismatch(_)
        | AuthError::Expired
        | AuthError::Token(_)
        | AuthError::TokenAgentMismatch
        | AuthError::Confirmation => Err(UnsignedHint::Unauthenticated),
        AuthError::VerificationQueueFull => Err(UnsignedHint::Overloaded),
        AuthError::Stale(_) => Ok(AdmitError::Stale),
        AuthError::Guard(refused) => Ok(*refused),
        AuthError::Suspended => Ok(AdmitError::Full { retry_after_ms: RETRY_AFTER_MS }),
    }
}

/// The hint that replaces an error whose caller turned out to be unknown.
pub(super) fn hint_for(code: i32) -> UnsignedHint {
    match code {
        code::OVERLOADED => UnsignedHint::Overloaded,
        code::TOO_LARGE => UnsignedHint::TooLarge,
        _ => UnsignedHint::Unauthenticated,
    }
}

fn unapproved_answer(unapproved: &Unapproved) -> RefusalReply {
    let error = |code, message: &'static str, data: &serde_json::Value| {
        RefusalReply::Error(RpcError::with_code(code, message).with_data(data))
    };
    match unapproved {
        Unapproved::Pending(pending) => {
            RefusalReply::Error(RpcError::with_code(code::APPROVAL_REQUIRED, "approval required").with_data(pending))
        }
        Unapproved::Denied { id } => error(
            code::PERMISSION_DENIED,
            "permission denied: its approval was denied",
            &json!({ "approval": id, "state": "denied" }),
        ),
        Unapproved::Run { id, at, message } => error(
            code::CONFLICT,
            "conflict: this call has begun under its approval: to call it once more on purpose, use another idempotency key",
            &json!({ "approval": id, "state": "consumed", "at": at, "message": message }),
        ),
        Unapproved::TooLarge => RefusalReply::Error(RpcError::with_code(
            code::TOO_LARGE,
            "too large: a call that needs approval has params of at most 32 KiB, so that people can read them",
        )),
        Unapproved::Store(OutcomeStoreError::AgentFull) => quota(RETRY_AFTER_MS, "approvals"),
        Unapproved::Store(_) => overloaded(RETRY_AFTER_MS),
    }
}

fn uncharged_answer(uncharged: &Uncharged) -> RefusalReply {
    match uncharged {
        Uncharged::Spent { budget, retry_after_ms } => {
            let data = json!({ "retry_after_ms": retry_after_ms, "scope": "budget", "budget": budget });
            RefusalReply::Error(RpcError::with_code(code::QUOTA_EXCEEDED, "quota exceeded").with_data(&data))
        }
        Uncharged::Above { budget } => RefusalReply::Error(
            RpcError::with_code(code::PERMISSION_DENIED, "permission denied: the call is above its whole budget")
                .with_data(&json!({ "budget": budget })),
        ),
        Uncharged::Params(reason) => RefusalReply::Error(RpcError::invalid_params(format!("Invalid params: {reason}"))),
        Uncharged::Store(OutcomeStoreError::AgentFull) => quota(RETRY_AFTER_MS, "budgets"),
        Uncharged::Unknown { retry_after_ms, .. } => overloaded(*retry_after_ms),
        Uncharged::Store(_) => overloaded(RETRY_AFTER_MS),
        Uncharged::Deadline => RefusalReply::Error(RpcError::with_code(code::TIMEOUT, "timeout")),
    }
}

fn stale(now_s: u64) -> RefusalReply {
    RefusalReply::Error(RpcError::with_code(code::STALE, "stale").with_data(&json!({ "server_time": now_s })))
}

fn quota(retry_after_ms: u64, scope: &str) -> RefusalReply {
    let data = json!({ "retry_after_ms": retry_after_ms, "scope": scope });
    RefusalReply::Error(RpcError::with_code(code::QUOTA_EXCEEDED, "quota exceeded").with_data(&data))
}

fn overloaded(retry_after_ms: u64) -> RefusalReply {
    let data = json!({ "retry_after_ms": retry_after_ms });
    RefusalReply::Error(RpcError::with_code(code::OVERLOADED, "overloaded").with_data(&data))
}
