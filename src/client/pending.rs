//! The calls that wait for an answer, and the judgement of everything that arrives for them.
//! Never accepts as an answer what the call's own expectation does not accept.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::answer::{Answer, hint};
use super::error::{ClientError, ProtocolError};
use super::incoming::{Incoming, Limits as StreamBounds, Verdict};
use super::known_service::KnownService;
use super::sent::Receipt;
use super::token::TokenCache;
use crate::clock::Clock;
use crate::log_limiter::LogLimiter;
use crate::nats::Message;
use crate::rpc::{Limits, Responses, code};
use crate::wire::{Accepted, Expectation, FrameKind, HeaderBlock, Nonce, Unverifiable, proof_of};

/// Everything that waits. Its users bound it, by the limits on calls, streams and cancellations.
#[derive(Debug)]
pub(super) struct Pending {
    waiting: Mutex<HashMap<Nonce, Entry>>,
    clock: Arc<dyn Clock>,
    unverifiable: AtomicU64,
    late: AtomicU64,
    frames_taken: AtomicU64,
    frames_refused: AtomicU64,
    /// Otherwise anybody who can write to the inbox could fill the log.
    ignored: LogLimiter,
    refused: LogLimiter,
}

/// What waits for one reply subject, by its last token.
#[derive(Debug, Clone)]
enum Entry {
    Call(Arc<Waiting>),
    Stream(Arc<Streaming>),
}

/// What is expected in answer to one message.
#[derive(Debug)]
pub(super) struct Expected {
    pub(super) expectation: Expectation,
    /// The subject of the request.
    pub(super) subject: String,
    pub(super) service: Arc<KnownService>,
    /// When the request was signed, by our own clock, in seconds since the Unix epoch.
    pub(super) sent_s: u64,
    /// Whether the call may be sent again: if so, it stops waiting once its answer may be lost, or once it turns out
    /// that our clock is off.
    pub(super) repeatable: bool,
    /// Whether the service is told when nobody waits any more.
    pub(super) cancels: bool,
    /// The counter of the last control message. Held while one is handed to the connection, so that they leave in its order.
    pub(super) counter: Mutex<u64>,
    /// Where the proof of its answer is noted, if anywhere.
    pub(super) receipt: Option<Receipt>,
    /// The tokens that it is controlled with.
    pub(super) tokens: Arc<TokenCache>,
    /// When the newest token that the service was shown is to be replaced, in seconds since the Unix epoch.
    pub(super) renew_token_s: AtomicU64,
    /// The broker forbids this user to control it.
    pub(super) uncontrolled: AtomicBool,
}

#[derive(Debug)]
struct Waiting {
    expected: Arc<Expected>,
    state: Mutex<State>,
    /// Nobody waits for the answer any more, only for the end.
    given_up: AtomicBool,
}

/// A stream, and the message that was sent for it.
#[derive(Debug)]
struct Streaming {
    expected: Arc<Expected>,
    attempt: u64,
    incoming: Arc<Incoming>,
}

/// The message of a stream. Unregistered when dropped.
#[derive(Debug)]
pub(super) struct StreamWaiter {
    pending: Arc<Pending>,
    token: Nonce,
    pub(super) expected: Arc<Expected>,
}

#[derive(Debug)]
struct State {
    /// Taken by whatever ends the wait.
    end: Option<oneshot::Sender<Result<Answer, ClientError>>>,
    /// A signed refusal of one delivery, kept because the answer to another may still be under way.
    refused: Option<Result<Answer, ClientError>>,
    unverifiable: Option<Unverifiable>,
    lost: bool,
}

/// A call that waits. Unregistered when dropped.
#[derive(Debug)]
pub(super) struct Waiter {
    pending: Arc<Pending>,
    token: Nonce,
    waiting: Arc<Waiting>,
    end: oneshot::Receiver<Result<Answer, ClientError>>,
}

impl Pending {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            waiting: Mutex::default(),
            clock,
            unverifiable: AtomicU64::new(0),
            late: AtomicU64::new(0),
            frames_taken: AtomicU64::new(0),
            frames_refused: AtomicU64::new(0),
            ignored: LogLimiter::default(),
            refused: LogLimiter::default(),
        }
    }

    /// Begins to wait for what arrives under `token`, the last token of the reply subject.
    pub(super) fn register(self: &Arc<Self>, token: Nonce, expected: Expected) -> Waiter {
        let (sender, end) = oneshot::channel();
        let state = State { end: Some(sender), refused: None, unverifiable: None, lost: false };
        let waiting = Arc::new(Waiting {
            expected: Arc::new(expected),
            state: Mutex::new(state),
            given_up: AtomicBool::new(false),
        });
        self.lock().insert(token, Entry::Call(Arc::clone(&waiting)));
        Waiter { pending: Arc::clone(self), token, waiting, end }
    }

    /// As [`Pending::register`], for a message of a stream.
    pub(super) fn register_stream(
        self: &Arc<Self>,
        token: Nonce,
        expected: Expected,
        incoming: &Arc<Incoming>,
    ) -> StreamWaiter {
        let (expected, incoming) = (Arc::new(expected), Arc::clone(incoming));
        let attempt = incoming.begin(&expected.expectation);
        let streaming = Streaming { expected: Arc::clone(&expected), attempt, incoming };
        self.lock().insert(token, Entry::Stream(Arc::new(streaming)));
        StreamWaiter { pending: Arc::clone(self), token, expected }
    }

    /// How many calls wait.
    pub(super) fn len(&self) -> usize {
        let waits = |entry: &&Entry| matches!(entry, Entry::Call(call) if !call.given_up.load(Ordering::Relaxed));
        self.lock().values().filter(waits).count()
    }

    /// Every message whose service is told when nobody waits any more, with the replica that answers it, if that is known.
    pub(super) fn cancellable(&self) -> Vec<(Arc<Expected>, Option<String>)> {
        let all = self.lock().values().cloned().collect::<Vec<_>>();
        let each = all.into_iter().filter_map(|entry| match entry {
            Entry::Call(call) => call.lock().end.is_some().then(|| (Arc::clone(&call.expected), None)),
            Entry::Stream(stream) => {
                let open = !stream.incoming.has_ended();
                open.then(|| (Arc::clone(&stream.expected), stream.incoming.replica()))
            }
        });
        each.filter(|(expected, _)| expected.cancels).collect()
    }

    /// How many frames of streams were accepted, and how many messages in place of frames were refused.
    pub(super) fn frames(&self) -> (u64, u64) {
        (self.frames_taken.load(Ordering::Relaxed), self.frames_refused.load(Ordering::Relaxed))
    }

    /// How many messages in place of answers were refused, and how many came for calls that no longer wait.
    pub(super) fn counts(&self) -> (u64, u64) {
        (self.unverifiable.load(Ordering::Relaxed), self.late.load(Ordering::Relaxed))
    }

    /// Judges a message that arrived on the reply subject whose last token is `token`.
    pub(super) fn arrived(&self, token: &str, message: &Message) {
        let token = Nonce::from_text(token);
        // Locked while the message is judged, so that whoever sees a stream end finds its frames counted.
        let waiting = self.lock();
        match token.and_then(|token| waiting.get(&token).cloned()) {
            Some(Entry::Call(waiting)) => self.arrived_for_call(&waiting, message),
            Some(Entry::Stream(streaming)) => self.arrived_for_stream(&streaming, message),
            // Late, a second copy, or somebody guessing.
            None => {
                self.late.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    fn arrived_for_call(&self, waiting: &Waiting, message: &Message) {
        let headers = HeaderBlock::from(message.headers.clone());
        let expected = &waiting.expected;
        match expected.expectation.accept(&message.subject, &headers, &message.payload) {
            Ok(iat) => match self.answered(expected, iat, message.payload.clone()) {
                Answered::End(answer) => {
                    let proof = expected.receipt.as_ref().and_then(|_| proof_of(&headers).ok());
                    waiting.end_with(answer, proof);
                }
                Answered::Refused(answer) => waiting.lock().refused = Some(answer),
            },
            Err(reason) => match unsigned(expected, reason, &headers, message) {
                Some(error) => waiting.end(Err(error)),
                None => {
                    self.refuse(&self.unverifiable, reason);
                    waiting.lock().unverifiable = Some(reason);
                }
            },
        }
    }

    fn arrived_for_stream(&self, streaming: &Streaming, message: &Message) {
        let headers = HeaderBlock::from(message.headers.clone());
        let Streaming { expected, attempt, incoming } = streaming;
        match expected.expectation.accept_any(&message.subject, &headers, &message.payload) {
            Ok(Accepted::Frame(frame)) => {
                let receipt = expected.receipt.as_ref().filter(|_| frame.claims.knd == FrameKind::End);
                // Only the first frame: later ones may be dated ahead.
                if frame.claims.knd == FrameKind::Open {
                    expected.service.adjust_clock(frame.claims.iat, expected.sent_s, self.clock.now_s());
                }
                let take = || incoming.framed(*attempt, frame, message.payload.clone(), Instant::now());
                let verdict = match receipt {
                    Some(receipt) => {
                        receipt.taking(proof_of(&headers).ok(), take, |verdict| *verdict == Verdict::Taken)
                    }
                    None => take(),
                };
                let count = match verdict {
                    Verdict::Taken => &self.frames_taken,
                    Verdict::Ignored => &self.late,
                    Verdict::Refused => &self.frames_refused,
                };
                count.fetch_add(1, Ordering::Relaxed);
            }
            // Another replica may answer a copy of the message.
            Ok(Accepted::Answer { .. }) if incoming.has_begun() => {
                self.late.fetch_add(1, Ordering::Relaxed);
            }
            Ok(Accepted::Answer { iat }) => match self.answered(expected, iat, message.payload.clone()) {
                Answered::End(answer) => {
                    let take = || incoming.answered(*attempt, answer);
                    match &expected.receipt {
                        Some(receipt) => receipt.taking(proof_of(&headers).ok(), take, |taken| *taken),
                        None => take(),
                    };
                }
                Answered::Refused(answer) => incoming.refused(*attempt, answer),
            },
            Err(reason) => match unsigned(expected, reason, &headers, message).filter(|_| !incoming.has_begun()) {
                Some(error) => {
                    incoming.answered(*attempt, Err(error));
                }
                None => {
                    self.refuse(&self.frames_refused, reason);
                    incoming.unverifiable(*attempt, reason);
                }
            },
        }
    }

    fn refuse(&self, counter: &AtomicU64, reason: Unverifiable) {
        let count = counter.fetch_add(1, Ordering::Relaxed) + 1;
        if self.ignored.check().is_some() {
            tracing::warn!(target: "sealwire::client", %reason, count, "ignored what is not an answer");
        }
    }

    fn answered(&self, expected: &Expected, iat: u64, payload: Bytes) -> Answered {
        let Expected { service, sent_s, repeatable, .. } = expected;
        let off = service.adjust_clock(iat, *sent_s, self.clock.now_s());
        let responses = Responses::parse(&payload, &Limits::default()).map_err(ProtocolError::from);
        let refused = match &responses {
            Ok(Responses::Single(response)) => response.outcome.as_ref().err().filter(|error| {
                // These say that this copy was not executed. The answer to another copy may still be under way.
                matches!(error.profile_code(), Some(code::STALE | code::REPLAYED))
            }),
            _ => None,
        };
        let Some(error) = refused else {
            return Answered::End(Ok(Answer::new(responses, payload)));
        };
        let is_stale = error.profile_code() == Some(code::STALE);
        let refused = match off.filter(|_| is_stale) {
            Some(offset_s) => Err(ClientError::Clock { offset_s, error: error.clone() }),
            None => Ok(Answer::new(responses, payload)),
        };
        if *repeatable && is_stale { Answered::End(refused) } else { Answered::Refused(refused) }
    }

    /// The broker refused to publish on this subject.
    pub(super) fn forbidden(&self, subject: &str) {
        let mut refused = 0_usize;
        for entry in self.all() {
            let expected = entry.expected();
            let of_call = expected.subject == subject;
            // The last token of a control subject is the id of the message.
            let of_control = !of_call && subject.ends_with(expected.expectation.message_id());
            if !of_call && !of_control {
                continue;
            }
            refused += 1;
            let error = ClientError::Forbidden { subject: subject.to_owned(), sent: of_control };
            expected.uncontrolled.fetch_or(of_control, Ordering::Relaxed);
            match entry {
                Entry::Call(waiting) if of_call => waiting.end(Err(error)),
                Entry::Call(_) => {}
                Entry::Stream(stream) if of_call => {
                    stream.incoming.answered(stream.attempt, Err(error));
                }
                // It cannot go on without acknowledgements.
                Entry::Stream(stream) => stream.incoming.finish(Err(error), false),
            }
        }
        // A notification, most likely: nothing else reports it.
        if refused == 0 && self.refused.check().is_some() {
            let subject = crate::name::shown(subject);
            tracing::warn!(target: "sealwire::client", subject, "the broker forbids this user to publish");
        }
    }

    /// The connection was lost, and perhaps answers with it. Calls that may be repeated stop waiting, and so do such streams if they have
    /// not begun.
    pub(super) fn disconnected(&self) {
        for entry in self.all() {
            match entry {
                Entry::Call(waiting) => {
                    waiting.lock().lost = true;
                    if waiting.expected.repeatable {
                        waiting.end(Err(ClientError::ConnectionLost));
                    }
                }
                Entry::Stream(stream) => {
                    stream.incoming.disconnected();
                    if stream.expected.repeatable {
                        stream.incoming.answered(stream.attempt, Err(ClientError::ConnectionLost));
                    }
                }
            }
        }
    }

    /// The connection is back: streams go on.
    pub(super) fn reconnected(&self) {
        for entry in self.all() {
            if let Entry::Stream(stream) = entry {
                stream.incoming.reconnected();
            }
        }
    }

    /// Ends every wait.
    pub(super) fn end_all(&self, why: impl Fn() -> ClientError) {
        for entry in self.all() {
            match entry {
                Entry::Call(waiting) => waiting.end(Err(why())),
                Entry::Stream(stream) => {
                    let why = why();
                    // Closing has already told the services, and they cannot be told any more.
                    let known = matches!(why, ClientError::Closed { .. });
                    stream.incoming.finish(Err(why), known);
                }
            }
        }
    }

    fn all(&self) -> Vec<Entry> {
        self.lock().values().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Nonce, Entry>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entry {
    fn expected(&self) -> &Arc<Expected> {
        match self {
            Self::Call(waiting) => &waiting.expected,
            Self::Stream(stream) => &stream.expected,
        }
    }
}

/// What a signed answer does to the wait.
enum Answered {
    End(Result<Answer, ClientError>),
    /// It concerns one delivery: the answer to another may still come.
    Refused(Result<Answer, ClientError>),
}

/// What an unsigned message stands for, if it is one of the few that count. It must not claim a signature: a bad signature is never worth
/// more than none.
fn unsigned(
    expected: &Expected,
    reason: Unverifiable,
    headers: &HeaderBlock,
    message: &Message,
) -> Option<ClientError> {
    if reason != Unverifiable::Unsigned {
        return None;
    }
    if headers.says_no_responders() && message.payload.is_empty() && !message.oversized {
        return Some(ClientError::NoResponders { subject: expected.subject.clone() });
    }
    hint(&message.payload).map(|hint| ClientError::Hint { hint })
}

impl Waiting {
    fn end(&self, end: Result<Answer, ClientError>) {
        self.end_with(end, None);
    }

    /// `proof`: the proof of the answer.
    fn end_with(&self, end: Result<Answer, ClientError>, proof: Option<&str>) {
        let sender = self.lock().end.take();
        if let Some(sender) = sender {
            if let (Some(receipt), Some(proof)) = (&self.expected.receipt, proof) {
                receipt.answered(proof);
            }
            // Nobody listens any more if the call was cancelled just now.
            drop(sender.send(end));
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiter {
    /// Waits for the end. `None` if it was given out before.
    ///
    /// Cancel safety: nothing is lost; it can be awaited again.
    pub(super) async fn ended(&mut self) -> Option<Result<Answer, ClientError>> {
        if self.end.is_terminated() {
            return None;
        }
        (&mut self.end).await.ok()
    }

    /// What is expected in answer.
    pub(super) fn expected(&self) -> &Arc<Expected> {
        &self.waiting.expected
    }

    /// Nobody waits for the answer any more; `false` if it has already arrived, or the service is not to be told.
    pub(super) fn give_up(&self) -> bool {
        self.waiting.given_up.store(true, Ordering::Relaxed);
        self.waiting.expected.cancels && self.waiting.lock().end.is_some()
    }

    /// The connection was lost, perhaps before the message was handed to it.
    pub(super) fn mark_lost(&self) {
        self.waiting.lock().lost = true;
    }

    /// The deadline has passed: returns what was seen meanwhile, if anything.
    pub(super) fn overdue(mut self) -> Option<Result<Answer, ClientError>> {
        if let Ok(end) = self.end.try_recv() {
            return Some(end);
        }
        let mut state = self.waiting.lock();
        if let Some(refused) = state.refused.take() {
            Some(refused)
        } else if let Some(reason) = state.unverifiable {
            Some(Err(ClientError::Unverifiable(reason)))
        } else {
            state.lost.then_some(Err(ClientError::ConnectionLost))
        }
    }
}

impl StreamWaiter {
    /// Nobody takes what comes for this message any more. The returned value only learns about its end.
    pub(super) fn abandon(&self) -> Arc<Incoming> {
        let (service, now) = (self.expected.service.endpoint.service().as_str(), Instant::now());
        let limits = StreamBounds { window: 1, lease: None };
        let incoming = Arc::new(Incoming::new(limits, service, now, now));
        let attempt = incoming.begin(&self.expected.expectation);
        incoming.abandon();
        let streaming = Streaming { expected: Arc::clone(&self.expected), attempt, incoming: Arc::clone(&incoming) };
        self.pending.lock().insert(self.token, Entry::Stream(Arc::new(streaming)));
        incoming
    }
}

impl Drop for StreamWaiter {
    fn drop(&mut self) {
        self.pending.lock().remove(&self.token);
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.pending.lock().remove(&self.token);
    }
}

#[cfg(test)]
mod tests;
