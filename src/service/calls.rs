//! From a verified message to the calls in it. Never looks at a body whose sender is not proved and fresh.

use std::sync::Arc;

use super::attachment::CallAttachments;
use super::streams::OpenCall;
use crate::auth::{Caller, Verified};
use crate::name::{MethodName, Name};
use crate::rpc::{Body, Id, Limits, Params, Request, Response, RpcError, code};
use crate::wire::Binding;

/// What all calls of one message have in common.
#[derive(Debug)]
pub struct Message {
    pub(super) caller: Arc<Caller>,
    /// What can end it, and until when it runs.
    pub(super) open: Arc<OpenCall>,
    /// Milliseconds since the Unix epoch: nothing starts from then on.
    pub(super) start_before_ms: u64,
    pub(super) idempotency_key: Option<String>,
    pub(super) traceparent: Option<String>,
    pub(super) attachments: CallAttachments,
    pub(super) id: String,
    /// Whether it is one of several: an idempotency key covers one call.
    pub(super) in_batch: bool,
}

/// One call or notification of a verified caller, not yet authorized.
///
/// Made only from a [`Verified`] message, and consumed by [`crate::policy::PolicySet::authorize`].
#[derive(Debug)]
pub struct Call {
    pub(super) message: Arc<Message>,
    pub(super) method: Arc<str>,
    pub(super) params: Option<Params>,
    pub(super) id: Option<Id>,
}

impl Call {
    /// Who calls.
    #[must_use]
    pub fn caller(&self) -> &Caller {
        &self.message.caller
    }

    /// The method's name as the caller wrote it.
    #[must_use]
    pub fn method(&self) -> &str {
        &self.method
    }

    /// The parameters, if any.
    #[must_use]
    pub fn params(&self) -> Option<&Params> {
        self.params.as_ref()
    }
}

/// The calls of one message.
#[derive(Debug)]
pub(super) struct Calls {
    pub(super) entries: Vec<Result<Call, Response>>,
    pub(super) is_batch: bool,
    pub(super) binding: Option<Binding>,
    /// How many frames beyond the acknowledged ones the caller takes; `None` if it takes none.
    pub(super) window: Option<u64>,
    /// Of the body.
    pub(super) bytes: usize,
    pub(super) message: Arc<Message>,
}

/// A message that is refused as a whole, after its sender was proved.
#[derive(Debug)]
pub(super) struct RejectedBody {
    pub(super) error: BodyError,
    pub(super) agent: Name,
    pub(super) binding: Option<Binding>,
}

/// Why a body was refused as a whole.
#[derive(Debug, thiserror::Error)]
pub(super) enum BodyError {
    #[error("{0}")]
    Rpc(RpcError),
    #[error("the body's method is not the subject's")]
    MethodSubject,
    #[error("a batch on a method subject")]
    BatchOnMethodSubject,
    #[error("a call or batch without a reply subject")]
    NoReply,
    #[error("a window for frames with a batch or a notification")]
    Window,
}

impl BodyError {
    /// The public error.
    pub(super) fn rpc(self) -> RpcError {
        let invalid = |detail| RpcError::with_code(code::INVALID_REQUEST, detail);
        match self {
            Self::Rpc(error) => error,
            Self::MethodSubject => invalid("invalid request: the method is not the subject's"),
            Self::BatchOnMethodSubject => invalid("invalid request: a batch on a method subject"),
            Self::NoReply => invalid("invalid request: no reply subject"),
            Self::Window => invalid("invalid request: frames are for single calls, not for batches and notifications"),
        }
    }
}

impl Calls {
    /// Parses the body. An answer in one message may have `answer_limit` bytes.
    pub(super) fn parse(
        verified: Verified,
        limits: &Limits,
        answer_limit: usize,
        attachments: CallAttachments,
    ) -> Result<Self, Box<RejectedBody>> {
        let Verified {
            caller,
            payload,
            subject_method,
            deadline_ms,
            expires_at,
            idempotency_key,
            message_id,
            window,
            traceparent,
            token,
            binding,
        } = verified;
        let refused = |error, caller: Arc<Caller>, binding| {
            Err(Box::new(RejectedBody { error, agent: caller.agent.clone(), binding }))
        };
        let (requests, is_batch) = match Body::parse(&payload, limits) {
            Err(error) => return refused(BodyError::Rpc(error), caller, binding),
            Ok(Body::Single(entry)) => (vec![entry], false),
            Ok(Body::Batch(entries)) => (entries, true),
        };
        if let Some(subject_method) = subject_method {
            // Else a caller publishes a forbidden body on a permitted subject.
            if is_batch {
                return refused(BodyError::BatchOnMethodSubject, caller, binding);
            }
            let differs = |request: &Request| {
                MethodName::new(&request.method).map_or(true, |method| method.in_subject() != subject_method)
            };
            if requests.iter().flatten().any(differs) {
                return refused(BodyError::MethodSubject, caller, binding);
            }
        }
        let wants_answer = is_batch || requests.iter().any(|entry| entry.as_ref().map_or(true, |r| r.id.is_some()));
        if binding.is_none() && wants_answer {
            return refused(BodyError::NoReply, caller, binding);
        }
        let is_call = !is_batch && wants_answer;
        if window.is_some() && !is_call {
            return refused(BodyError::Window, caller, binding);
        }
        let request = binding.as_ref().map(|binding| *binding.request());
        let open = OpenCall::new(message_id.clone(), request, Arc::clone(&caller), token, deadline_ms, answer_limit);
        let message = Arc::new(Message {
            caller,
            open: Arc::new(open),
            start_before_ms: deadline_ms.min(expires_at.saturating_mul(1000)),
            idempotency_key,
            traceparent,
            attachments,
            id: message_id,
            in_batch: is_batch,
        });
        let entries = requests
            .into_iter()
            .map(|entry| {
                entry.map(|Request { method, params, id, .. }| Call {
                    message: Arc::clone(&message),
                    method: method.into(),
                    params,
                    id,
                })
            })
            .collect();
        Ok(Self { entries, is_batch, binding, window, bytes: payload.len(), message })
    }
}
