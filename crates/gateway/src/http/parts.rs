//! What one call sends while it runs, in order: parts of the result, notifications, and last its response.
//! Never reports the end of a call unless the service has signed it; otherwise the last thing it reports is a refusal.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;

use futures_util::StreamExt as _;
use sealwire::internal::client::MessageId;
use sealwire::internal::rpc;
use sealwire::internal::rpc::{Id, Request};
use sealwire::{CallStream, ClientError, RequestBuilder};
use serde_json::value::RawValue;
use tokio::sync::mpsc::{self, UnboundedReceiver};

use super::log::log_call;
use super::pipeline::admission::Admitted;
use super::refusal::Refusal;
use super::rpc::{failed, is_not_taken};
use crate::bus::BusLink;
use crate::revocation::{Hold, Loss};

/// The largest result, in bytes.
const RESULT: usize = 4 << 20;

/// Something that a call sends.
#[derive(Debug)]
pub(super) enum StreamItem {
    /// A part of the result.
    Part(Box<RawValue>),
    /// A notification from the method.
    Note(Request),
    /// The signed response, which shows that nothing before it is missing. Always the last.
    End(rpc::Response),
    /// The gateway's refusal in its place. Always the last.
    Refused(Refusal),
}

/// How long a call is kept open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StreamKind {
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
    ready: VecDeque<StreamItem>,
    /// The caller's own id.
    id: Id,
    /// Completes when the call has been without a broker for too long.
    gone: Pin<Box<dyn Future<Output = bool> + Send>>,
    /// Whether the caller may still receive it.
    hold: Hold,
    admitted: Admitted,
    message_id: MessageId,
    /// How it ended, for the log.
    ended: Option<&'static str>,
}

impl Parts {
    /// Sends the call; `id` is the caller's.
    pub(super) fn begin(
        admitted: Admitted,
        (builder, link): (RequestBuilder, BusLink),
        id: Id,
        request: &Request,
        held: StreamKind,
    ) -> Self {
        let message_id = MessageId::default();
        // Bounded by the call's window: the service sends no more before these are read.
        let (tell, notes) = mpsc::unbounded_channel();
        let builder = builder
            .max_bytes(RESULT)
            .relay()
            .capture_id(&message_id)
            .request()
            .on_notification(move |note| drop(tell.send(note)));
        let call = match held {
            StreamKind::Call => builder.stream(&request.method, &request.params),
            StreamKind::Listening => builder.relay().listen(&request.method, &request.params),
        };
        Self {
            call: Some(call),
            notes,
            ready: VecDeque::new(),
            id,
            gone: link.until_lost(&message_id),
            hold: admitted.hold(Some(&request.method)),
            admitted,
            message_id,
            ended: None,
        }
    }

    /// The next thing that the call sends; `None` after the last.
    ///
    /// Cancel safe.
    pub(super) async fn next(&mut self) -> Option<StreamItem> {
        loop {
            if let Some(said) = self.ready.pop_front() {
                return Some(said);
            }
            // Polling for the next part lets in more notifications, so these go first.
            if let Ok(note) = self.notes.try_recv() {
                return Some(StreamItem::Note(note));
            }
            let call = self.call.as_mut()?;
            tokio::select! {
                biased;
                // Checked before parts, since there may always be another part.
                loss = self.hold.lost() => {
                    let why = if loss == Loss::Unverifiable { "closed" } else { "revoked" };
                    self.give_up(why, Refusal::of_loss(loss));
                }
                part = call.next() => {
                    // They came before the part.
                    self.take_notes();
                    match part {
                        Some(Ok(part)) => self.ready.push_back(StreamItem::Part(part)),
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
                Some(note) = self.notes.recv() => self.ready.push_back(StreamItem::Note(note)),
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
        self.ready.push_back(StreamItem::Refused(refusal.of(Some(&self.id))));
    }

    fn take_notes(&mut self) {
        while let Ok(note) = self.notes.try_recv() {
            self.ready.push_back(StreamItem::Note(note));
        }
    }

    fn end(&mut self, outcome: Result<Box<RawValue>, ClientError>) {
        self.take_notes();
        let signed = match outcome {
            Ok(result) => Ok(result),
            Err(ClientError::Remote(error)) if !is_not_taken(&error) => Err(error),
            // The service has not signed an end.
            Err(error) => {
                let refusal = match &error {
                    // The service has noticed first, by the token that was made for this caller.
                    ClientError::Remote(_) if self.admitted.principal().is_expired() => Refusal::ended(),
                    ClientError::Remote(_) => Refusal::not_taken(),
                    error => failed(self.admitted.expose(), error),
                };
                return self.give_up("unverified", refusal);
            }
        };
        self.call = None;
        self.ended = Some(if signed.is_ok() { "result" } else { "error" });
        self.ready.push_back(StreamItem::End(rpc::Response::new(self.id.clone(), signed)));
    }
}

impl Drop for Parts {
    fn drop(&mut self) {
        let ended = self.ended.unwrap_or("given up by its client");
        log_call!(self.admitted, self.message_id, ended, "stream");
    }
}
