//! What a method knows about the call that it serves, and how it speaks to the caller while it runs.
//! Never lets a method dispatch another call.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use super::attachment::{Attachment, AttachmentError};
use super::authorize::Permit;
use super::calls::Message;
use super::parts::{AskError, Parts};
use super::streams::FrameError;
use crate::auth::Caller;
use crate::rpc::{Id, RpcError, code};
use crate::trace::Trace;

/// What a method knows about the call it serves.
///
/// Clones share everything; a clone is not a second permit, and nothing can be dispatched with it.
pub struct Ctx<S = ()> {
    pub(super) state: Arc<S>,
    pub(super) message: Arc<Message>,
    pub(super) id: Option<Id>,
    pub(super) method: Arc<str>,
    pub(super) permit: Arc<Permit>,
    pub(super) trace: Trace,
}

impl<S> Ctx<S> {
    /// The state given to [`Router::new`](super::Router::new).
    #[must_use]
    pub fn state(&self) -> &S {
        &self.state
    }

    /// Who calls: the agent, on whose behalf, and with which roles of the token.
    #[must_use]
    pub fn caller(&self) -> &Caller {
        &self.message.caller
    }

    /// The name under which the method was called.
    #[must_use]
    pub fn method(&self) -> &str {
        &self.method
    }

    /// Which rule of which policy revision allowed this call.
    #[must_use]
    pub fn permit(&self) -> &Permit {
        &self.permit
    }

    /// When the caller stops waiting, in milliseconds since the Unix epoch. The method is cancelled then. A caller that
    /// accepts frames may move the deadline while the method runs. Of a task, it is moved as long as the store can be asked.
    #[must_use]
    pub fn deadline_ms(&self) -> u64 {
        self.message.open.deadline_ms()
    }

    /// The time left at `now_ms` (milliseconds since the Unix epoch).
    #[must_use]
    pub fn remaining(&self, now_ms: u64) -> Duration {
        Duration::from_millis(self.deadline_ms().saturating_sub(now_ms))
    }

    /// The caller's idempotency key, if it sent one. The library deduplicates by it for methods declared idempotent
    /// ([`Router::idempotent`](super::Router::idempotent)), and for no others.
    #[must_use]
    pub fn idempotency_key(&self) -> Option<&str> {
        self.message.idempotency_key.as_deref()
    }

    /// The caller's W3C `traceparent` (version 00), if it sent one. No decision depends on it.
    #[must_use]
    pub fn traceparent(&self) -> Option<&str> {
        self.message.traceparent.as_deref()
    }

    /// The trace that this call belongs to, for calls that are made for it by a task of their own:
    /// [`RequestBuilder::in_trace`](crate::RequestBuilder::in_trace).
    #[must_use]
    pub fn trace(&self) -> Trace {
        self.trace.clone()
    }

    /// Whether the caller says that it can do this beyond receiving a result, for example answer a question of this name; `None` if it says
    /// nothing of the kind. It is the caller's word: no decision about access may depend on it.
    #[must_use]
    pub fn is_capable_of(&self, name: &str) -> Option<bool> {
        self.message.capabilities.as_deref().map(|all| all.split(' ').any(|one| one == name))
    }

    /// Whether the policy in force would allow the caller another call now, of this method with these params; for methods that show in
    /// another way what that call would show. Asks for the roles that the caller has shown last. The answer holds for this moment: a policy
    /// may change at any time. It is neither charged nor recorded as a decision.
    #[must_use]
    pub fn may_call(&self, method: &str, params: Option<&RawValue>) -> bool {
        let (caller, ..) = self.message.open.shown();
        self.message.policy.allows(&caller, method, params)
    }

    /// Waits until nobody waits for the method any more: the caller cancels the call, a new policy forbids it, its token or
    /// key is revoked, its frames are not acknowledged, or, for a subscription, the service stops. Also completes when the
    /// message is answered or given up, so that a task that the method left behind can end with it.
    ///
    /// A method that uses this, or has called [`Ctx::is_cancelled`], gets one more second to clean up; what it returns is
    /// not sent. After that second, its future is dropped wherever it waits. The future of any other method is dropped at
    /// once, and so is every future when the deadline passes.
    ///
    /// Cancel safe.
    pub async fn cancelled(&self) {
        self.message.open.watch();
        self.message.open.over().await;
        self.message.open.notice();
    }

    /// Whether nobody waits for the method any more; see [`Ctx::cancelled`]. For methods that compute for long without awaiting.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        let open = &self.message.open;
        open.watch();
        if open.is_over() {
            open.notice();
        }
        open.is_over()
    }

    /// Whether the call is a task, for which its caller does not wait; see [`Idempotent::as_task`](super::Idempotent::as_task).
    #[must_use]
    pub fn is_task(&self) -> bool {
        self.message.open.has_no_caller()
    }

    /// Whether the caller accepts notifications and questions while its call runs.
    #[must_use]
    pub fn takes_frames(&self) -> bool {
        self.message.open.frames().is_some()
    }

    /// Tells the caller how far the method is: `done`, of `total` if that is known, and a few words. Sent as the
    /// notification `rpc.progress`; does nothing if the caller accepts no frames. While the caller has no room, up to 50
    /// wait and leave together; beyond that the oldest is dropped, since the next one says more. Of a task, the last is kept, with the first
    /// 100 characters of `message`, for whoever asks how the task is; it is written at most about once a second.
    pub fn progress(&self, done: f64, total: Option<f64>, message: Option<&str>) {
        self.parts().progress(done, total, message);
    }

    /// Sends a notification to the caller; `params` is an object or an array. Waits while the caller has no room. Does
    /// nothing if the caller accepts no frames.
    ///
    /// # Errors
    /// [`FrameError`]; nothing is sent. [`FrameError::Ended`] is not the method's fault.
    ///
    /// Cancel safety: a dropped future has sent nothing.
    pub fn notify<T: Serialize + ?Sized>(
        &self,
        method: &str,
        params: &T,
    ) -> impl Future<Output = Result<(), FrameError>> + Send + use<S, T> {
        self.parts().notify(method, params)
    }

    /// Asks the caller a question, and waits for its answer; `params` is an object or an array. The calling program must be
    /// prepared for it.
    ///
    /// # Errors
    /// [`AskError`].
    ///
    /// Cancel safety: a dropped future may have asked; the answer is ignored.
    pub async fn ask<R: DeserializeOwned>(
        &self,
        method: &str,
        params: &(impl Serialize + ?Sized),
    ) -> Result<R, AskError> {
        self.parts().ask(method, params).await
    }

    /// Fetches an argument that the call names by its digest: the bytes, once they are complete and their size and digest are verified.
    /// Waits for room, 30 s at most; see [`AttachmentLimits`](super::AttachmentLimits). The bytes count until their last clone is dropped.
    ///
    /// # Errors
    /// [`AttachmentError`]. `?` turns it into an answer that tells the caller what is wrong.
    ///
    /// Cancel safety: a dropped future gives its room back.
    pub async fn attachment(&self, attachment: &Attachment) -> Result<Bytes, AttachmentError> {
        let message = &*self.message;
        message.attachments.fetch(&message.caller.agent, &self.parts(), attachment).await
    }

    /// Marks the call as a subscription, for which the caller must accept frames.
    pub(super) fn listen(&self) -> Result<(), RpcError> {
        let open = &self.message.open;
        open.is_a_subscription();
        if open.frames().is_none() {
            // The call may be part of a batch: the other calls go on.
            return Err(RpcError::with_code(
                code::INVALID_REQUEST,
                "invalid request: this method is a subscription: call it with a window for frames (`win`); through a gateway, as a stream or \
                 with the subprotocol `parts.sealwire.dev`",
            ));
        }
        Ok(())
    }

    pub(super) fn parts(&self) -> Parts {
        Parts::new(Arc::clone(&self.message.open), self.id.clone())
    }

    /// The message's nonce as text. Together with the agent, it identifies this message in every log line.
    #[must_use]
    pub fn message_id(&self) -> &str {
        &self.message.id
    }
}

impl<S> Clone for Ctx<S> {
    fn clone(&self) -> Self {
        Self {
            state: Arc::clone(&self.state),
            message: Arc::clone(&self.message),
            id: self.id.clone(),
            method: Arc::clone(&self.method),
            permit: Arc::clone(&self.permit),
            trace: self.trace.clone(),
        }
    }
}

impl<S> fmt::Debug for Ctx<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ctx")
            .field("agent", &self.message.caller.agent)
            .field("method", &self.method)
            .field("permit", &self.permit)
            .finish_non_exhaustive()
    }
}
