//! What a process sends for one call before the answer, and the room that there is for it.
//! Never keeps more for a slow caller than the bounds allow: the process is not read while they are reached.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use sealwire::RpcError;
use sealwire::internal::rpc::{Id, Outcome, Response};
use sealwire_http::Bucket;
use serde::Deserialize;
use serde_json::value::{RawValue, to_raw_value};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::Instant;

/// What a process sends before the answer.
#[derive(Debug)]
pub(super) enum Event {
    Part(Box<RawValue>),
    Progress { done: f64, total: Option<f64>, message: Option<String> },
    Note { method: String, params: Box<RawValue> },
    Ask { question: Question, method: String, params: String },
}

/// A question of a process. Dropped without an answer, it is refused: the process may do nothing else while it waits.
#[derive(Debug)]
pub(super) struct Question {
    id: Option<Id>,
    out: mpsc::Sender<Vec<u8>>,
}

impl Question {
    pub(super) fn new(id: Id, out: mpsc::Sender<Vec<u8>>) -> Self {
        Self { id: Some(id), out }
    }

    /// Answers once the process has read everything ahead of the answer.
    pub(super) async fn answer(mut self, outcome: Outcome) {
        // A closed channel means that the process is gone.
        let Ok(place) = self.out.clone().reserve_owned().await else { return };
        if let Some(id) = self.id.take() {
            place.send(Response::new(id, outcome).to_bytes());
        }
    }
}

impl Drop for Question {
    fn drop(&mut self) {
        if let Some(id) = self.id.take() {
            let refused = RpcError::application(NOT_ASKED, "there is nobody to ask");
            // A process that reads nothing is not waiting for an answer.
            drop(self.out.try_send(Response::new(id, Err(refused)).to_bytes()));
        }
    }
}

/// The error code of a question that cannot be asked.
pub(super) const NOT_ASKED: i32 = 1;
/// How much may wait for a caller before the process is read no further: this many events ...
const EVENTS: usize = 256;
/// ... or this many bytes in total. One event more has room, whatever its size: a line has 1 MiB at most.
const BYTES: usize = 1 << 20;

/// How much of that is forgotten in a second, in microseconds.
const HELD_UP_A_SECOND: u64 = 100_000;

impl Event {
    pub(super) fn progress(text: &str) -> Option<Self> {
        #[derive(Deserialize)]
        struct Progress {
            progress: f64,
            total: Option<f64>,
            message: Option<String>,
        }
        let Progress { progress: done, total, message } = serde_json::from_str(text).ok()?;
        Some(Self::Progress { done, total, message })
    }

    /// A notification for the caller, without our id, which means nothing there.
    pub(super) fn note(method: &str, text: &str) -> Self {
        let without = || {
            let mut members: serde_json::Map<String, serde_json::Value> = serde_json::from_str(text).ok()?;
            members.remove("id").and_then(|_| to_raw_value(&members).ok())
        };
        let params = without().or_else(|| RawValue::from_string(text.to_owned()).ok());
        Self::Note { method: method.to_owned(), params: params.unwrap_or_default() }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Part(result) => result.get().len(),
            Self::Progress { message, .. } => message.as_ref().map_or(0, String::len),
            Self::Note { method, params } => method.len() + params.get().len(),
            Self::Ask { method, params, .. } => method.len() + params.len(),
        }
    }
}

/// The session's end of a call.
#[derive(Debug)]
pub(super) struct OpenCall {
    events: mpsc::Sender<Event>,
    outcome: oneshot::Sender<Outcome>,
    waiting: Arc<AtomicUsize>,
    /// Whether its caller takes what comes before the answer.
    takes_frames: bool,
    /// For how long it has held up others, in microseconds.
    held_up: Bucket,
}

/// Events, how many bytes of them are waiting, and whom to tell that there is room again.
#[derive(Debug)]
pub(super) struct Events(mpsc::Receiver<Event>, Arc<AtomicUsize>, Arc<Notify>);

impl OpenCall {
    pub(super) fn new(takes_frames: bool, room: &Arc<Notify>) -> (Self, Events, oneshot::Receiver<Outcome>) {
        // One more than may wait.
        let ((events, heard), (outcome, ended)) = (mpsc::channel(EVENTS + 1), oneshot::channel());
        let (waiting, room) = (Arc::new(AtomicUsize::new(0)), Arc::clone(room));
        let call = Self {
            events,
            outcome,
            waiting: Arc::clone(&waiting),
            takes_frames,
            held_up: Bucket::new(HELD_UP_A_SECOND),
        };
        (call, Events(heard, waiting, room), ended)
    }

    /// Hands an event to the caller. There is room: the session looks before it reads on.
    pub(super) fn offer(&self, event: Event) {
        self.waiting.fetch_add(event.bytes(), Ordering::Relaxed);
        // Its caller may have gone.
        drop(self.events.try_send(event));
    }

    /// Whether the process may say more about this call.
    pub(super) fn has_room(&self) -> bool {
        self.events.is_closed() || (self.events.capacity() > 1 && self.waiting.load(Ordering::Relaxed) < BYTES)
    }

    /// Counts for how long others were held up because of it. Returns how long that was, lately.
    pub(super) fn holds_up(&mut self, long: Duration) -> Duration {
        Duration::from_micros(self.held_up.add(u64::try_from(long.as_micros()).unwrap_or(u64::MAX), Instant::now()))
    }

    pub(super) fn takes_frames(&self) -> bool {
        self.takes_frames
    }

    pub(super) fn end(self, outcome: Outcome) {
        // The caller may be gone.
        drop(self.outcome.send(outcome));
    }
}

impl Events {
    pub(super) async fn next(&mut self) -> Option<Event> {
        let event = self.0.recv().await?;
        self.taken(&event);
        Some(event)
    }

    pub(super) fn next_now(&mut self) -> Option<Event> {
        let event = self.0.try_recv().ok()?;
        self.taken(&event);
        Some(event)
    }

    fn taken(&self, event: &Event) {
        self.1.fetch_sub(event.bytes(), Ordering::Relaxed);
        self.2.notify_one();
    }
}

impl Drop for Events {
    /// Nobody takes any more of them, so nothing waits for room.
    fn drop(&mut self) {
        self.0.close();
        self.2.notify_one();
    }
}
