//! The parts of a served stream, on their way from Python to the caller.
//! Never takes much more from Python than the caller has room for.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use futures_util::Stream;
use sealwire::RpcError;
use serde_json::value::RawValue;
use tokio::sync::Notify;

/// How many parts may wait, and bytes of them: then Python waits as well.
const MOST_PARTS: usize = 64;
const MOST_BYTES: usize = 256 * 1024;

/// What waits to be taken by the library.
#[derive(Default)]
pub(crate) struct Outbox {
    state: Mutex<State>,
    taken: Notify,
}

#[derive(Default)]
struct State {
    parts: VecDeque<Box<RawValue>>,
    bytes: usize,
    /// How it ends, once everything before was taken.
    end: Option<Result<(), RpcError>>,
    /// Nobody takes anything any more.
    is_over: bool,
    waker: Option<Waker>,
}

/// The library's end of it. `gone` tells the handler if this is dropped before its end.
pub(crate) struct Outgoing<G> {
    outbox: Arc<Outbox>,
    gone: Option<G>,
}

/// What is told when nobody takes a stream any more, unless it is disarmed.
pub(crate) trait Disarm {
    fn disarm(self);
}

impl Outbox {
    /// Adds a part. Whether there is room for another one.
    pub(crate) fn push(&self, part: Box<RawValue>) -> bool {
        let mut state = self.lock();
        if state.is_over || state.end.is_some() {
            return false;
        }
        state.bytes += part.get().len();
        state.parts.push_back(part);
        let has_room = state.has_room();
        state.wake();
        has_room
    }

    /// Nothing comes after what is there, except an error.
    pub(crate) fn end(&self, end: Result<(), RpcError>) {
        let mut state = self.lock();
        state.end.get_or_insert(end);
        state.wake();
    }

    /// Waits until there is room; `false` if nobody takes anything any more.
    ///
    /// Cancel safe.
    pub(crate) async fn room(&self) -> bool {
        loop {
            let taken = self.taken.notified();
            {
                let state = self.lock();
                if state.is_over {
                    return false;
                }
                // At half, so that parts leave in bursts and Python is woken once for many.
                if state.parts.len() <= MOST_PARTS / 2 && state.bytes <= MOST_BYTES / 2 {
                    return true;
                }
            }
            taken.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing between lock and unlock can panic halfway.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn has_room(&self) -> bool {
        self.parts.len() < MOST_PARTS && self.bytes < MOST_BYTES
    }

    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

impl<G> Outgoing<G> {
    pub(crate) fn new(outbox: Arc<Outbox>, gone: G) -> Self {
        Self { outbox, gone: Some(gone) }
    }
}

impl<G: Disarm + Unpin> Stream for Outgoing<G> {
    type Item = Result<Box<RawValue>, RpcError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let outbox = Arc::clone(&self.outbox);
        let mut state = outbox.lock();
        if let Some(part) = state.parts.pop_front() {
            state.bytes = state.bytes.saturating_sub(part.get().len());
            drop(state);
            outbox.taken.notify_waiters();
            return Poll::Ready(Some(Ok(part)));
        }
        match state.end.replace(Ok(())) {
            Some(end) => {
                // The handler has ended by itself.
                if let Some(gone) = self.gone.take() {
                    gone.disarm();
                }
                Poll::Ready(end.err().map(Err))
            }
            None => {
                state.end = None;
                state.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl<G> Drop for Outgoing<G> {
    fn drop(&mut self) {
        self.outbox.lock().is_over = true;
        self.outbox.taken.notify_waiters();
    }
}
