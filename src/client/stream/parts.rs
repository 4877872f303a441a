//! The application's side of one stream: frames become items, notifications, questions and the result.
//! Never goes on after a part that is invalid.

use std::collections::VecDeque;
use std::future::{pending, poll_fn};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

use crate::client::answer::Answer;
use crate::client::control::cancel;
use crate::client::error::{ClientError, ProtocolError};
use crate::client::incoming::{Incoming, Next};
use crate::client::observe::Observation;
use crate::client::places::StreamPlace;
use crate::client::request::{decode, single};
use crate::client::sent::MessageId;
use crate::client::spans::MessageSpans;
use crate::client::stop_signal::CONFIRMED_WITHIN;
use crate::client::stream_options::Notified;
use crate::client::{Client, Inner};
use crate::rpc::{Body, Id, Limits, Outcome, Request, Responses};
use crate::wire::{FrameKind, Received};

/// What the application has not taken yet. Dropping it cancels the call.
pub(super) struct Parts {
    pub(super) incoming: Arc<Incoming>,
    pub(super) observation: Observation,
    pub(super) spans: Option<Box<MessageSpans>>,
    /// The id of the call.
    pub(super) id: Id,
    pub(super) message_id: MessageId,
    pub(super) on_notification: Option<Notified>,
    pub(super) max_bytes: usize,
    pub(super) place: Option<StreamPlace>,
    /// Tells the driver that nobody takes the stream any more, and lends it the client for that.
    pub(super) stop: Option<(oneshot::Sender<Arc<Inner>>, Client)>,
    /// From the frame that was taken last: one holds up to 50 of them.
    pub(super) ready: VecDeque<Part>,
    /// The pieces of the response so far.
    pub(super) text: Vec<u8>,
    pub(super) outcome: Option<Result<Box<RawValue>, ClientError>>,
    pub(super) is_over: bool,
}

pub(super) enum Part {
    Item(Box<RawValue>),
    Note(Request),
}

impl Parts {
    /// The next item or notification; `None` once only the outcome is left.
    pub(super) fn poll_part(&mut self, context: &Context<'_>) -> Poll<Option<Part>> {
        loop {
            if let Some(part) = self.ready.pop_front() {
                self.observation.part(|| self.incoming.replica());
                return Poll::Ready(Some(part));
            }
            if self.is_over {
                return Poll::Ready(None);
            }
            match ready!(self.incoming.poll_next(context, Instant::now())) {
                Next::Frame(frame) => {
                    if let Err(error) = self.take(frame) {
                        self.end(Err(error));
                        self.stop();
                    }
                }
                Next::Over(Some(Ok(answer))) => {
                    let outcome = single(answer, &self.id);
                    self.end(outcome.and_then(|outcome| outcome.map_err(ClientError::Remote)));
                }
                Next::Over(Some(Err(error))) => self.end(Err(error)),
                Next::Over(None) => self.end(Err(ClientError::Ended)),
            }
        }
    }

    /// Hands a notification to the handler, if there is one.
    pub(super) fn notify(&self, note: Request) {
        if let Some(notified) = &self.on_notification {
            notified(note);
        }
    }

    /// The error that it ended with, once.
    pub(super) fn take_error(&mut self) -> Option<ClientError> {
        match self.outcome.take() {
            Some(Err(error)) => Some(error),
            outcome => {
                self.outcome = outcome;
                None
            }
        }
    }

    pub(super) async fn finish<R: DeserializeOwned>(&mut self) -> Result<R, ClientError> {
        while let Some(part) = poll_fn(|context| self.poll_part(context)).await {
            if let Part::Note(note) = part {
                self.notify(note);
            }
        }
        decode(&self.outcome.take().unwrap_or(Err(ClientError::Ended))?)
    }

    pub(super) async fn cancel(&mut self) -> bool {
        self.stop();
        timeout(CONFIRMED_WITHIN, poll_fn(|context| self.incoming.poll_ended(context))).await.is_ok()
    }

    /// Cancels the call while the future is polled, and takes nothing from the stream; see [`super::CallStream::cancelling`].
    pub(super) fn cancelling(&self) -> impl Future<Output = ()> + Send + use<> {
        let (incoming, id) = (Arc::clone(&self.incoming), self.message_id.clone());
        let client = self.stop.as_ref().map(|(_, client)| Arc::downgrade(&client.0));
        async move {
            let client = client.and_then(|client| client.upgrade());
            let (Some(client), Some(id)) = (client, id.get()) else { return };
            let mut under_way = client.pending.cancellable().into_iter();
            let expected = under_way.find(|(expected, _)| expected.expectation.message_id() == id);
            drop(under_way);
            let cancelling = async {
                match expected {
                    Some((expected, _)) => {
                        let deadline = incoming.deadline();
                        cancel(client, expected, || incoming.replica(), pending(), deadline).await;
                    }
                    // It has just ended.
                    None => pending().await,
                }
            };
            drop(timeout(CONFIRMED_WITHIN, cancelling).await);
        }
    }

    fn take(&mut self, frame: Received) -> Result<(), ClientError> {
        let part = |what| ClientError::Protocol(ProtocolError::Part(what));
        match frame.kind {
            FrameKind::Item => {
                let responses = match Responses::parse(&frame.payload, &Limits::default()) {
                    Ok(Responses::Single(response)) => vec![response],
                    Ok(Responses::Batch(responses)) => responses,
                    Err(_) => return Err(part("item")),
                };
                for response in responses {
                    match response.outcome {
                        Ok(item) if response.id == self.id => self.ready.push_back(Part::Item(item)),
                        _ => return Err(part("item")),
                    }
                }
            }
            FrameKind::Note => {
                for note in requests(&frame.payload).ok_or(part("notification"))? {
                    if note.id.is_some() {
                        return Err(part("notification"));
                    }
                    self.ready.push_back(Part::Note(note));
                }
            }
            FrameKind::Ask => self.incoming.ask(frame),
            FrameKind::Piece => self.add(&frame.payload)?,
            // A stream that had to end in the middle of its pieces has no response.
            FrameKind::End if frame.payload.is_empty() && !self.text.is_empty() => return Err(self.incoming.cut()),
            FrameKind::End => {
                self.add(&frame.payload)?;
                let text = std::mem::take(&mut self.text);
                let outcome = self.response(&text)?;
                self.end(outcome.map_err(ClientError::Remote));
            }
            FrameKind::Open | FrameKind::Beat => {}
        }
        Ok(())
    }

    fn add(&mut self, bytes: &[u8]) -> Result<(), ClientError> {
        if self.text.len().saturating_add(bytes.len()) > self.max_bytes {
            return Err(ClientError::ResultTooLarge { limit: self.max_bytes });
        }
        self.text.extend_from_slice(bytes);
        Ok(())
    }

    fn response(&self, text: &[u8]) -> Result<Outcome, ClientError> {
        let responses = Responses::parse(text, &Limits::default()).map_err(ProtocolError::from);
        single(Answer::new(responses, bytes::Bytes::new()), &self.id)
    }

    fn end(&mut self, outcome: Result<Box<RawValue>, ClientError>) {
        self.is_over = true;
        self.observation.streamed(&outcome, || self.incoming.replica());
        if let Some(spans) = self.spans.take() {
            spans.streamed(&outcome);
        }
        self.outcome = Some(outcome);
        self.text = Vec::new();
        self.place = None;
    }

    /// Nobody takes anything any more.
    fn stop(&mut self) {
        if let Some((stop, client)) = self.stop.take() {
            // The driver is gone if the stream has ended.
            drop(stop.send(client.0));
        }
        self.incoming.abandon();
    }
}

impl Drop for Parts {
    fn drop(&mut self) {
        self.stop();
    }
}

/// One request object, or an array of them, if all are valid.
pub(super) fn requests(payload: &[u8]) -> Option<Vec<Request>> {
    match Body::parse(payload, &Limits::default()).ok()? {
        Body::Single(entry) => Some(vec![entry.ok()?]),
        Body::Batch(entries) => entries.into_iter().collect::<Result<_, _>>().ok(),
    }
}
