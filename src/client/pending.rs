//! The calls that wait for an answer, and the judgement of everything that arrives for them.
//! Never takes anything for an answer but what the call's own expectation accepts.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::oneshot;

use super::error::{ClientError, HintKind, ProtocolError};
use super::peer::Peer;
use crate::clock::Clock;
use crate::log_limiter::LogLimiter;
use crate::nats::Message;
use crate::rpc::{Limits, Responses, code};
use crate::wire::{Expectation, HeaderBlock, Hint, Unverifiable};

/// A verified answer.
#[derive(Debug)]
pub(super) struct Answer {
    /// What it says, or that it is no JSON-RPC answer.
    pub(super) responses: Result<Responses, ProtocolError>,
    pub(super) payload: Bytes,
}

/// Everything that waits. Bounded by whoever registers: at most as many as calls may be under way.
#[derive(Debug)]
pub(super) struct Pending {
    waiting: Mutex<HashMap<Box<str>, Arc<Waiting>>>,
    clock: Arc<dyn Clock>,
    unverifiable: AtomicU64,
    late: AtomicU64,
    /// Whoever can write to the inbox could fill the log otherwise.
    ignored: LogLimiter,
    refused: LogLimiter,
}

/// What one call expects.
#[derive(Debug)]
pub(super) struct Expected {
    pub(super) expectation: Expectation,
    /// The subject of the request.
    pub(super) subject: String,
    pub(super) peer: Arc<Peer>,
    /// When the request was signed, by our own clock, in seconds since the Unix epoch.
    pub(super) sent_s: u64,
    /// Whether the call may be sent again: then it does not wait once its answer may be lost, or once it turned out that
    /// our clock is off.
    pub(super) repeatable: bool,
}

#[derive(Debug)]
struct Waiting {
    expected: Expected,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Taken by whatever ends the wait.
    end: Option<oneshot::Sender<Result<Answer, ClientError>>>,
    /// A signed refusal of one delivery, kept while the answer to another may be under way.
    refused: Option<Result<Answer, ClientError>>,
    unverifiable: Option<Unverifiable>,
    lost: bool,
}

/// A call that waits. Forgotten when this is dropped.
#[derive(Debug)]
pub(super) struct Waiter {
    pending: Arc<Pending>,
    token: Box<str>,
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
            ignored: LogLimiter::default(),
            refused: LogLimiter::default(),
        }
    }

    /// Begins to wait for what arrives under `token`, the last token of the reply subject.
    pub(super) fn register(self: &Arc<Self>, token: String, expected: Expected) -> Waiter {
        let (sender, end) = oneshot::channel();
        let state = State { end: Some(sender), refused: None, unverifiable: None, lost: false };
        let waiting = Arc::new(Waiting { expected, state: Mutex::new(state) });
        let token = token.into_boxed_str();
        self.lock().insert(token.clone(), Arc::clone(&waiting));
        Waiter { pending: Arc::clone(self), token, waiting, end }
    }

    /// How many calls wait.
    pub(super) fn len(&self) -> usize {
        self.lock().len()
    }

    /// How many messages came in place of answers that were none, and how many for calls that no longer wait.
    pub(super) fn counts(&self) -> (u64, u64) {
        (self.unverifiable.load(Ordering::Relaxed), self.late.load(Ordering::Relaxed))
    }

    /// Judges a message that arrived on the reply subject whose last token is `token`.
    pub(super) fn arrived(&self, token: &str, message: &Message) {
        let Some(waiting) = self.lock().get(token).cloned() else {
            // Late, a second copy, or somebody guessing.
            self.late.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let headers = HeaderBlock::from(message.headers.clone());
        let expected = &waiting.expected;
        match expected.expectation.accept(&message.subject, &headers, &message.payload) {
            Ok(iat) => self.answered(&waiting, iat, message.payload.clone()),
            // Only where no signature is claimed can it be a hint: a bad signature is never worth more than none.
            Err(Unverifiable::Unsigned)
                if headers.says_no_responders() && message.payload.is_empty() && !message.oversized =>
            {
                waiting.end(Err(ClientError::NoResponders { subject: expected.subject.clone() }));
            }
            Err(reason) => match hint(&message.payload).filter(|_| reason == Unverifiable::Unsigned) {
                Some(hint) => waiting.end(Err(ClientError::Hint { hint })),
                None => {
                    let count = self.unverifiable.fetch_add(1, Ordering::Relaxed) + 1;
                    if self.ignored.check().is_some() {
                        tracing::warn!(target: "sealwire::client", %reason, count, "ignored what is not an answer");
                    }
                    waiting.lock().unverifiable = Some(reason);
                }
            },
        }
    }

    fn answered(&self, waiting: &Waiting, iat: u64, payload: Bytes) {
        let Expected { peer, sent_s, repeatable, .. } = &waiting.expected;
        let off = peer.learn(iat, *sent_s, self.clock.now_s());
        let responses = Responses::parse(&payload, &Limits::default()).map_err(ProtocolError::from);
        let refused = match &responses {
            Ok(Responses::Single(response)) => response.outcome.as_ref().err().filter(|error| {
                // They say that this copy was not executed. The answer to another copy may still be under way.
                matches!(error.code(), code::STALE | code::REPLAYED)
            }),
            _ => None,
        };
        let Some(error) = refused else {
            waiting.end(Ok(Answer { responses, payload }));
            return;
        };
        let is_stale = error.code() == code::STALE;
        let refused = match off.filter(|_| is_stale) {
            Some(offset_s) => Err(ClientError::Clock { offset_s, error: error.clone() }),
            None => Ok(Answer { responses, payload }),
        };
        if *repeatable && is_stale {
            waiting.end(refused);
        } else {
            waiting.lock().refused = Some(refused);
        }
    }

    /// The broker refused a publication on this subject.
    pub(super) fn forbidden(&self, subject: &str) {
        let refused: Vec<_> = self.lock().values().filter(|call| call.expected.subject == subject).cloned().collect();
        // A notification, most likely: nothing else tells of it.
        if refused.is_empty() && self.refused.check().is_some() {
            let subject = crate::name::shown(subject);
            tracing::warn!(target: "sealwire::client", subject, "the broker forbids this user to publish");
        }
        for waiting in refused {
            waiting.end(Err(ClientError::Forbidden { subject: subject.to_owned() }));
        }
    }

    /// The connection was lost: answers may be, too. Calls that may be repeated stop waiting.
    pub(super) fn disconnected(&self) {
        let all: Vec<_> = self.lock().values().cloned().collect();
        for waiting in all {
            waiting.lock().lost = true;
            if waiting.expected.repeatable {
                waiting.end(Err(ClientError::ConnectionLost));
            }
        }
    }

    /// Ends every wait.
    pub(super) fn end_all(&self, why: impl Fn() -> ClientError) {
        let all: Vec<_> = self.lock().values().cloned().collect();
        for waiting in all {
            waiting.end(Err(why()));
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Box<str>, Arc<Waiting>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    fn end(&self, end: Result<Answer, ClientError>) {
        let sender = self.lock().end.take();
        if let Some(sender) = sender {
            // Nobody listens any more if the call was cancelled at this moment.
            drop(sender.send(end));
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiter {
    /// Waits for the end. `None` if there is no more: it was given out before.
    ///
    /// Cancel safety: nothing is lost; it can be awaited again.
    pub(super) async fn ended(&mut self) -> Option<Result<Answer, ClientError>> {
        if self.end.is_terminated() {
            return None;
        }
        (&mut self.end).await.ok()
    }

    /// The connection was lost before the message was handed to it for sure.
    pub(super) fn mark_lost(&self) {
        self.waiting.lock().lost = true;
    }

    /// The deadline has passed: what was seen meanwhile, if anything.
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

impl Drop for Waiter {
    fn drop(&mut self) {
        self.pending.lock().remove(&self.token);
    }
}

/// Which of the fixed hints these bytes are. Anything that differs in one byte is none.
fn hint(payload: &[u8]) -> Option<HintKind> {
    [
        (Hint::Unauthenticated, HintKind::Unauthenticated),
        (Hint::Overloaded, HintKind::Overloaded),
        (Hint::TooLarge, HintKind::TooLarge),
    ]
    .into_iter()
    .find_map(|(hint, kind)| (hint.payload().as_bytes() == payload).then_some(kind))
}

#[cfg(test)]
mod tests;
