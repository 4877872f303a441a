//! What one call sends while it runs, in order: parts of the result, notifications, and last its response.
//! Never reports the end of a call unless the service has signed it; otherwise the last thing it reports is a refusal.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use sealwire::client::{CallStream, Client, ClientError, MessageId, RequestBuilder};
use sealwire::rpc::{self, Id, Request, code};
use serde_json::value::RawValue;
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::time::{Instant, Interval, interval_at};

use super::callers::Callers;
use super::config::Expose;
use super::principal::{Place, Principal};
use super::refusal::Refusal;
use super::rpc::failed;
use crate::bus::gone;

/// How often to check whether a caller may still receive what it has begun.
pub(super) const HOLDS: Duration = Duration::from_secs(2);
/// The largest result, in bytes.
const RESULT: usize = 4 << 20;

/// Something that a call sends.
#[derive(Debug)]
pub(super) enum Said {
    /// A part of the result.
    Part(Box<RawValue>),
    /// A notification from the method.
    Note(Request),
    /// The signed response, which shows that nothing before it is missing. Always the last.
    End(rpc::Response),
    /// The door's refusal in its place. Always the last.
    Refused(Refusal),
}

/// How long a call is kept open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Held {
    /// Until its deadline.
    Call,
    /// Until the client stops listening.
    Listening,
}

/// One call in progress. Dropping it cancels the call at the service.
pub(super) struct Parts {
    /// `None` once it has ended.
    call: Option<CallStream<Box<RawValue>>>,
    notes: UnboundedReceiver<Request>,
    /// Received, but not yet taken by [`Self::next`].
    ready: VecDeque<Said>,
    /// The caller's own id.
    id: Id,
    /// Completes when the call has been without a broker for too long.
    gone: Pin<Box<dyn Future<Output = bool> + Send>>,
    /// When to check whether the caller may still receive it.
    holds: Interval,
    callers: Arc<Callers>,
    expose: Expose,
    principal: Principal,
    message_id: MessageId,
    /// How it ended, for the log.
    ended: Option<&'static str>,
    _place: Place,
}

/// The caller of a call, and the service it is for.
pub(super) struct Caller {
    pub(super) callers: Arc<Callers>,
    pub(super) principal: Principal,
    pub(super) expose: Expose,
    pub(super) place: Place,
}

impl Parts {
    /// Sends the call; `id` is the caller's.
    pub(super) fn begin(
        caller: Caller,
        client: Client,
        builder: RequestBuilder,
        id: Id,
        request: &Request,
        held: Held,
    ) -> Self {
        let message_id = MessageId::default();
        // Bounded by the call's window: the service sends no more before these are read.
        let (tell, notes) = mpsc::unbounded_channel();
        let builder = builder.max_bytes(RESULT).note_id(&message_id).on_notification(move |note| drop(tell.send(note)));
        let call = match held {
            Held::Call => builder.stream(&request.method, &request.params),
            Held::Listening => builder.listen(&request.method, &request.params),
        };
        let Caller { callers, principal, expose, place } = caller;
        Self {
            call: Some(call),
            notes,
            ready: VecDeque::new(),
            id,
            gone: {
                let message_id = message_id.clone();
                Box::pin(async move { gone(&client, &message_id).await })
            },
            holds: interval_at(Instant::now() + HOLDS, HOLDS),
            callers,
            expose,
            principal,
            message_id,
            ended: None,
            _place: place,
        }
    }

    /// The next thing that the call sends; `None` after the last.
    ///
    /// Cancel safe.
    pub(super) async fn next(&mut self) -> Option<Said> {
        loop {
            if let Some(said) = self.ready.pop_front() {
                return Some(said);
            }
            // Polling for the next part lets in more notifications, so these go first.
            if let Ok(note) = self.notes.try_recv() {
                return Some(Said::Note(note));
            }
            let call = self.call.as_mut()?;
            tokio::select! {
                biased;
                // Checked before parts, since there may always be another part.
                _ = self.holds.tick() => {
                    if !self.callers.holds(&self.principal) {
                        self.give_up("revoked", Refusal::ended());
                    }
                }
                part = call.next() => {
                    // They came before the part.
                    self.take_notes();
                    match part {
                        Some(Ok(part)) => self.ready.push_back(Said::Part(part)),
                        Some(Err(error)) => self.end(Err(error)),
                        None => {
                            // The response has arrived, so this does not wait.
                            let outcome = match self.call.take() {
                                Some(call) => call.finish::<Box<RawValue>>().await,
                                None => Err(ClientError::Ended),
                            };
                            self.end(outcome);
                        }
                    }
                }
                Some(note) = self.notes.recv() => self.ready.push_back(Said::Note(note)),
                // Unknown even if `gone` says that it was not sent: the task that sends may just have done so.
                _ = &mut self.gone => self.give_up("broker away", Refusal::lost()),
            }
        }
    }

    /// Tells the service to cancel the call, and waits a few seconds for it to confirm. The rest of the call is discarded.
    pub(super) async fn cancel(&mut self) {
        self.ended = Some("cancelled");
        if let Some(call) = self.call.take() {
            call.cancel().await;
        }
    }

    /// Tells the service to cancel the call, and waits a few seconds while the future is polled. The call meanwhile goes on until the
    /// service ends it, perhaps with its result.
    pub(super) fn cancelling(&self) -> impl Future<Output = ()> + Send + use<> {
        let cancelling = self.call.as_ref().map(CallStream::cancelling);
        async move {
            if let Some(cancelling) = cancelling {
                cancelling.await;
            }
        }
    }

    /// Drops the call: nothing more of it is reported or waited for.
    pub(super) fn leave(&mut self) {
        (self.call, self.ended) = (None, Some("cancelled"));
    }

    /// Ends the call here, whatever the service does.
    fn give_up(&mut self, why: &'static str, refusal: Refusal) {
        self.call = None;
        self.ended = Some(why);
        self.ready.push_back(Said::Refused(refusal.of(Some(&self.id))));
    }

    fn take_notes(&mut self) {
        while let Ok(note) = self.notes.try_recv() {
            self.ready.push_back(Said::Note(note));
        }
    }

    fn end(&mut self, outcome: Result<Box<RawValue>, ClientError>) {
        self.take_notes();
        let signed = match outcome {
            Ok(result) => Ok(result),
            Err(ClientError::Remote(error))
                if !matches!(error.code(), code::UNAUTHENTICATED | code::STALE | code::REPLAYED) =>
            {
                Err(error)
            }
            // The service has not signed an end.
            Err(error) => {
                let refusal = match &error {
                    ClientError::Remote(_) => Refusal::not_taken(),
                    error => failed(&self.expose, error),
                };
                return self.give_up("unverified", refusal);
            }
        };
        self.call = None;
        self.ended = Some(if signed.is_ok() { "result" } else { "error" });
        self.ready.push_back(Said::End(rpc::Response::new(self.id.clone(), signed)));
    }
}

impl Drop for Parts {
    fn drop(&mut self) {
        tracing::info!(
            target: "sealwire::door",
            caller = self.principal.as_str(),
            service = %self.expose.service,
            message_id = self.message_id.get(),
            ended = self.ended.unwrap_or("given up by its client"),
            "stream"
        );
    }
}
