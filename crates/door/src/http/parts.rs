//! What one call says while it runs, in its order: parts of the result, notifications, and last what it came to.
//! Never says that it has ended before the service has signed the end of all that was said.

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

/// How often it is looked whether a caller may still have what it has begun.
pub(super) const HOLDS: Duration = Duration::from_secs(2);
/// The largest result, in bytes.
const RESULT: usize = 4 << 20;

/// What a call says.
#[derive(Debug)]
pub(super) enum Said {
    /// A part of the result.
    Part(Box<RawValue>),
    /// A notification of the method.
    Note(Request),
    /// The response, signed: with it nothing is missing before. The last.
    End(rpc::Response),
    /// What the door says in its place. The last.
    Refused(Refusal),
}

/// For how long a call is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Held {
    /// Until its deadline.
    Call,
    /// Until nobody listens any more.
    Listening,
}

/// One call under way. Dropped, it is cancelled at the service.
pub(super) struct Parts {
    /// Until it has ended.
    call: Option<CallStream<Box<RawValue>>>,
    notes: UnboundedReceiver<Request>,
    /// What came together.
    ready: VecDeque<Said>,
    /// The caller's own.
    id: Id,
    /// Completes when it is without a broker for too long.
    gone: Pin<Box<dyn Future<Output = bool> + Send>>,
    /// When it is looked whether the caller may still have it.
    holds: Interval,
    callers: Arc<Callers>,
    expose: Expose,
    principal: Principal,
    message_id: MessageId,
    /// What it came to.
    ended: Option<&'static str>,
    _place: Place,
}

/// Whose call it is, and to what.
pub(super) struct Caller {
    pub(super) callers: Arc<Callers>,
    pub(super) principal: Principal,
    pub(super) expose: Expose,
    pub(super) place: Place,
}

impl Parts {
    /// Sends the call of the caller's `id`.
    pub(super) fn begin(
        caller: Caller,
        client: Client,
        builder: RequestBuilder,
        id: Id,
        request: &Request,
        held: Held,
    ) -> Self {
        let message_id = MessageId::default();
        // Bounded by the window of the call: no more of them come before these are read.
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

    /// What comes next; `None` after the last.
    ///
    /// Cancel safe.
    pub(super) async fn next(&mut self) -> Option<Said> {
        loop {
            if let Some(said) = self.ready.pop_front() {
                return Some(said);
            }
            // More are let in by asking for the next part, so these go first.
            if let Ok(note) = self.notes.try_recv() {
                return Some(Said::Note(note));
            }
            let call = self.call.as_mut()?;
            tokio::select! {
                biased;
                // Ahead of parts, of which there may always be one.
                _ = self.holds.tick() => {
                    if !self.callers.holds(&self.principal) {
                        self.give_up("revoked", Refusal::ended());
                    }
                }
                part = call.next() => {
                    // They came before it.
                    self.take_notes();
                    match part {
                        Some(Ok(part)) => self.ready.push_back(Said::Part(part)),
                        Some(Err(error)) => self.end(Err(error)),
                        None => {
                            // It is there: nothing is waited for.
                            let outcome = match self.call.take() {
                                Some(call) => call.finish::<Box<RawValue>>().await,
                                None => Err(ClientError::Ended),
                            };
                            self.end(outcome);
                        }
                    }
                }
                Some(note) = self.notes.recv() => self.ready.push_back(Said::Note(note)),
                // What sends the call works beside this one: it may just have done so.
                _ = &mut self.gone => self.give_up("broker away", Refusal::lost()),
            }
        }
    }

    /// Has the service cancel it, and waits some seconds for its word; what is left of it is not said any more.
    pub(super) async fn cancel(&mut self) {
        self.ended = Some("cancelled");
        if let Some(call) = self.call.take() {
            call.cancel().await;
        }
    }

    /// Has the service cancel it while the future is polled, for some seconds. It goes on meanwhile to the end that the service
    /// gives it, which may be its result.
    pub(super) fn cancelling(&self) -> impl Future<Output = ()> + Send + use<> {
        let cancelling = self.call.as_ref().map(CallStream::cancelling);
        async move {
            if let Some(cancelling) = cancelling {
                cancelling.await;
            }
        }
    }

    /// Nothing is said of it any more, and nothing is waited for.
    pub(super) fn leave(&mut self) {
        (self.call, self.ended) = (None, Some("cancelled"));
    }

    /// It ends here, whatever the service does.
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
            // Nobody has signed an end.
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
