//! From a verified message to the calls in it. Never looks at a body whose sender is not proved and fresh.

use std::borrow::Cow;
use std::sync::Arc;

use super::attachment::CallAttachments;
use super::policy_in_force::PolicyInForce;
use super::streams::OpenCall;
use crate::auth::{Caller, Evidence, Verified};
use crate::name::{MethodName, Name};
use crate::rpc::{self, Body, Id, Limits, Params, Request, Response, RpcError, code};
use crate::trace::Trace;
use crate::wire::{Binding, NonceText};

/// What all calls of one message have in common.
#[derive(Debug)]
pub struct Message {
    pub(super) caller: Arc<Caller>,
    /// What can end the message, and until when it runs.
    pub(super) open: Arc<OpenCall>,
    /// Milliseconds since the Unix epoch: nothing starts from then on.
    pub(super) start_before_ms: u64,
    pub(super) idempotency_key: Option<String>,
    pub(super) traceparent: Option<String>,
    /// What its entries belong to, or their batch.
    pub(super) trace: Trace,
    pub(super) capabilities: Option<String>,
    /// Milliseconds since the Unix epoch until which it may run, if it is a task: its caller does not wait for it.
    pub(super) task_until_ms: Option<u64>,
    pub(super) attachments: CallAttachments,
    pub(super) policy: PolicyInForce,
    /// The nonce, as text.
    pub(super) id: NonceText,
    /// Whether the message is a batch: an idempotency key covers one call.
    pub(super) in_batch: bool,
    /// The whole message, if it is a call of [`APPROVE`] that proves to others what its caller decided.
    pub(super) evidence: Option<Evidence>,
}

impl Message {
    /// The id of the trace that the message belongs to, for the log.
    pub(super) fn trace_id(&self) -> Option<Cow<'_, str>> {
        match self.traceparent.as_deref() {
            Some(parent) => parent.split('-').nth(1).map(Cow::Borrowed),
            None => self.trace.id().map(Cow::Owned),
        }
    }

    /// The same for metrics, unless nobody can look it up.
    pub(super) fn exemplar(&self) -> Option<Cow<'_, str>> {
        (self.traceparent.is_some() || self.trace.is_recorded()).then(|| self.trace_id()).flatten()
    }
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
    /// What nested calls continue.
    pub(super) trace: Trace,
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

/// The method by which people approve and deny calls.
pub(super) const APPROVE: &str = "rpc.approve";
/// The longest body of such a call that is kept, in bytes.
pub(super) const MAX_KEPT: usize = 2 * 1024;

/// One call of a message, or the answer to an invalid entry.
pub(super) type Entry = Result<Call, Response>;

/// The entries of a message.
#[derive(Debug)]
pub(super) enum Entries {
    Single(Entry),
    Batch(Vec<Entry>),
}

/// The calls of one message.
#[derive(Debug)]
pub(super) struct Calls {
    pub(super) entries: Entries,
    pub(super) binding: Option<Binding>,
    /// How many frames beyond the acknowledged ones the caller accepts; `None` if it accepts none.
    pub(super) window: Option<u64>,
    /// Bytes of the body.
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
    #[error("a batch or a notification as a task")]
    Task,
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
            Self::Task => invalid("invalid request: single calls are tasks, not batches and notifications"),
        }
    }
}

impl Calls {
    /// Parses the body. An answer in one message may have `answer_limit` bytes.
    pub(super) fn parse(
        verified: Verified,
        limits: &Limits,
        answer_limit: usize,
        (attachments, policy, trace): (CallAttachments, PolicyInForce, Trace),
    ) -> Result<Self, Box<RejectedBody>> {
        let body = Body::parse(&verified.payload, limits);
        let evidence = match &body {
            Ok(Body::Single(Ok(request))) if request.method == APPROVE => Evidence::of(&verified, MAX_KEPT),
            _ => None,
        };
        let Verified {
            caller,
            payload,
            subject_method,
            deadline_ms,
            expires_at,
            idempotency_key,
            nonce,
            window,
            traceparent,
            capabilities,
            task_ms,
            issued_at,
            token,
            binding,
            ..
        } = verified;
        let refused = |error, caller: Arc<Caller>, binding| {
            Err(Box::new(RejectedBody { error, agent: caller.agent.clone(), binding }))
        };
        let body = match body {
            Err(error) => return refused(BodyError::Rpc(error), caller, binding),
            Ok(body) => body,
        };
        let is_batch = matches!(body, Body::Batch(_));
        if let Some(subject_method) = subject_method {
            // Otherwise a caller could publish a forbidden body on a permitted subject.
            let differs = |request: &Request| {
                MethodName::new(&request.method).map_or(true, |method| method.in_subject() != subject_method)
            };
            match &body {
                Body::Batch(_) => return refused(BodyError::BatchOnMethodSubject, caller, binding),
                Body::Single(Ok(request)) if differs(request) => {
                    return refused(BodyError::MethodSubject, caller, binding);
                }
                Body::Single(_) => {}
            }
        }
        let wants_answer = match &body {
            Body::Single(entry) => entry.as_ref().map_or(true, |request| request.id.is_some()),
            Body::Batch(_) => true,
        };
        if binding.is_none() && wants_answer {
            return refused(BodyError::NoReply, caller, binding);
        }
        let is_call = !is_batch && wants_answer;
        if window.is_some() && !is_call {
            return refused(BodyError::Window, caller, binding);
        }
        if task_ms.is_some() && !is_call {
            return refused(BodyError::Task, caller, binding);
        }
        let request = binding.as_ref().map(|binding| *binding.request());
        let open = OpenCall::new(nonce, request, Arc::clone(&caller), token, deadline_ms, answer_limit);
        let message = Arc::new(Message {
            caller,
            open: Arc::new(open),
            start_before_ms: deadline_ms.min(expires_at.saturating_mul(1000)),
            idempotency_key,
            traceparent,
            trace,
            capabilities,
            task_until_ms: task_ms.map(|task_ms| issued_at.saturating_mul(1000).saturating_add(task_ms)),
            attachments,
            policy,
            id: nonce.text(),
            in_batch: is_batch,
            evidence,
        });
        let call = |entry: rpc::Entry| {
            entry.map(|Request { method, params, id, .. }| Call {
                message: Arc::clone(&message),
                method: method.into(),
                params,
                id,
                trace: Trace::default(),
            })
        };
        let entries = match body {
            Body::Single(entry) => Entries::Single(call(entry)),
            Body::Batch(entries) => Entries::Batch(entries.into_iter().map(call).collect()),
        };
        Ok(Self { entries, binding, window, bytes: payload.len(), message })
    }
}
