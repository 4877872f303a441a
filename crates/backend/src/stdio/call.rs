//! One call to a process: what the process sends before the answer goes to the caller, and the answer ends the call.
//! Never keeps more for a slow caller than the bounds allow: exceeding them ends that call.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use sealwire::RpcError;
use sealwire::rpc::{Id, Outcome, Response};
use sealwire::service::AskError;
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::session::{NOT_ASKED, Session, cancel};
use crate::backend::Call;

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
    async fn answer(mut self, outcome: Outcome) {
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

/// How much may wait for a caller: this many events ...
const EVENTS: usize = 256;
/// ... with this many bytes in total.
const BYTES: usize = 1 << 20;

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
}

/// Events, and how many bytes of them are waiting.
#[derive(Debug)]
pub(super) struct Events(mpsc::Receiver<Event>, Arc<AtomicUsize>);

impl OpenCall {
    pub(super) fn new() -> (Self, Events, oneshot::Receiver<Outcome>) {
        let ((events, heard), (outcome, ended)) = (mpsc::channel(EVENTS), oneshot::channel());
        let waiting = Arc::new(AtomicUsize::new(0));
        (Self { events, outcome, waiting: Arc::clone(&waiting) }, Events(heard, waiting), ended)
    }

    /// Returns `false` if there is no room.
    pub(super) fn offer(&self, event: Event) -> bool {
        let bytes = event.bytes();
        // A first event always fits: no line has more than 1 MiB.
        if self.waiting.load(Ordering::Relaxed) > 0 && self.waiting.load(Ordering::Relaxed) + bytes > BYTES {
            return false;
        }
        self.waiting.fetch_add(bytes, Ordering::Relaxed);
        self.events.try_send(event).is_ok()
    }

    pub(super) fn end(self, outcome: Outcome) {
        // The caller may be gone.
        drop(self.outcome.send(outcome));
    }
}

impl Events {
    async fn next(&mut self) -> Option<Event> {
        let event = self.0.recv().await?;
        self.1.fetch_sub(event.bytes(), Ordering::Relaxed);
        Some(event)
    }
}

/// A request as the process reads it.
#[derive(Serialize)]
struct Line<'a> {
    jsonrpc: &'static str,
    method: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    params: Option<&'a RawValue>,
    id: &'a Id,
    #[serde(skip_serializing_if = "Option::is_none")]
    caller: Option<Caller<'a>>,
}

/// Who calls.
#[derive(Serialize)]
struct Caller<'a> {
    agent: &'a str,
    subject: &'a str,
}

/// Tells the process, when dropped, that nobody waits any more, unless the call was answered.
struct Abandoned<'a> {
    session: &'a Session,
    id: Id,
    /// The backend's deadline for the call.
    until: Instant,
    /// Whether the process has the request, or is about to read it.
    is_sent: bool,
}

impl Drop for Abandoned<'_> {
    fn drop(&mut self) {
        if self.session.abandon(&self.id, self.is_sent, Instant::now() >= self.until) {
            self.session.offer(cancel(&self.id));
        }
    }
}

impl Session {
    /// Makes a call. Dropping the future gives it up.
    pub(super) async fn call(&self, call: Call) -> Outcome {
        let gone = || RpcError::dependency("the process has ended");
        let (id, mut events, mut outcome) = self.begin(Arc::clone(&call.permit)).ok_or_else(gone)?;
        let mut guard = Abandoned { session: self, id, until: call.until, is_sent: false };
        let agent = &call.ctx.caller().agent;
        let line = Line {
            jsonrpc: "2.0",
            method: &call.tool.name,
            params: call.params.as_deref(),
            id: &guard.id,
            caller: self.send_caller.then(|| Caller { agent: agent.as_str(), subject: &call.ctx.caller().subject }),
        };
        self.write(serde_json::to_vec(&line).map_err(RpcError::internal)?).await;
        guard.is_sent = true;
        loop {
            tokio::select! {
                biased;
                Some(event) = events.next() => self.forward(&call, event).await?,
                ended = &mut outcome => {
                    // Everything that came before the answer goes first.
                    while let Ok(event) = events.0.try_recv() {
                        self.forward(&call, event).await?;
                    }
                    return ended.unwrap_or_else(|_| Err(gone()));
                }
            }
        }
    }

    async fn forward(&self, call: &Call, event: Event) -> Result<(), RpcError> {
        match event {
            Event::Part(part) => call.sink.send(&part).await?,
            Event::Progress { done, total, message } => call.ctx.progress(done, total, message.as_deref()),
            Event::Note { method, params } => call.ctx.notify(&method, &params).await?,
            Event::Ask { question, method, params } => {
                let params = RawValue::from_string(params).map_err(RpcError::internal)?;
                let answer = call.ctx.ask::<Box<RawValue>>(&method, &params).await;
                let outcome = answer.map_err(|error| match error {
                    AskError::Refused(error) => error,
                    error => RpcError::application(NOT_ASKED, error.to_string()),
                });
                question.answer(outcome).await;
            }
        }
        Ok(())
    }
}
