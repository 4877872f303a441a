//! A conversation with a server, over the lines of its process or over HTTP: matches each message to a request.
//! Never accepts an answer to something that was not asked, and never keeps more of what comes than a request may have waiting.

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hyper::header::HeaderMap;
use sealwire::RpcError;
use sealwire::auth::Caller;
use sealwire::rpc::{Body, Id, Limits, Request, Response, Responses};
use sealwire::service::FairPermit;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::http::Http;
use crate::backend::{GIVEN_UP, answers};
use crate::child::{Rate, brief, visible};
use crate::config::Address;
use crate::talk;

/// One process for as long as it runs, or one session with a server at an address.
#[derive(Debug)]
pub(super) struct Conversation {
    name: String,
    link: Link,
    open: Mutex<Open>,
    next: AtomicU64,
    silence: Arc<Mutex<Silence>>,
    /// Notified when the tools are to be listed again.
    pub(super) unsure: Notify,
    /// How often its tools have changed, as far as it says so or may have failed to.
    changes: AtomicU64,
    /// Bounds what goes into the log of what it says to nobody.
    said: Mutex<Rate>,
}

/// How messages reach the server.
#[derive(Debug)]
pub(super) enum Link {
    /// Lines that its process reads.
    Lines(mpsc::Sender<Vec<u8>>),
    Http(Arc<Http>),
}

/// What a message can be about, depending on how it came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Of {
    /// Anything: a process says everything on one stream.
    Any,
    /// This request.
    Request(u64),
    /// Nothing that was asked.
    Nobody,
}

/// What a request is made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum For {
    /// A caller, who can get notifications and questions.
    Caller,
    /// The service itself.
    Us,
    /// To learn of changes: there is no answer to wait for.
    News,
}

/// Why a request has no result.
#[derive(Debug)]
pub(super) enum Refusal {
    /// The server's own error.
    Server(RpcError),
    /// An HTTP status without such an error.
    Status(u16),
    /// The server cannot be reached, and has received nothing.
    Unreached(String),
    /// The server had ended the session before, and has done nothing.
    Lost,
    /// The connection has ended.
    Broken(String),
    /// What came is unusable.
    Failed(String),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Server(error) => {
                let message: String = error.message().chars().take(SHOWN).collect();
                write!(f, "error {}: {}", error.code(), visible(&message))
            }
            Self::Status(401 | 403) => f.write_str("it does not take the credentials that it is shown"),
            Self::Status(status) => write!(f, "HTTP status {status}"),
            Self::Lost => f.write_str("it has ended the session"),
            Self::Unreached(reason) | Self::Broken(reason) | Self::Failed(reason) => f.write_str(reason),
        }
    }
}

impl Refusal {
    /// Whether the server may be gone.
    pub(super) fn is_doubtful(&self) -> bool {
        matches!(self, Self::Unreached(_) | Self::Broken(_) | Self::Status(401 | 403 | 500..))
    }
}

/// What becomes of a request.
pub(super) type Answer = Result<Box<RawValue>, Refusal>;

#[derive(Debug, Default)]
struct Open {
    /// By our id, which is also the progress token.
    requests: HashMap<u64, Pending>,
    /// The server is gone.
    over: bool,
}

#[derive(Debug)]
struct Pending {
    since: Instant,
    made_for: For,
    /// `None` if it was given up. The entry stays for as long as a call may take, and its place for a while: the server may still work on
    /// it, and messages that name no request may be about it.
    waiting: Option<Waiting>,
    given_up: Option<Instant>,
    /// Its caller's place among the calls of the backend.
    permit: Option<Arc<FairPermit>>,
}

#[derive(Debug)]
struct Waiting {
    events: mpsc::Sender<Event>,
    outcome: oneshot::Sender<Answer>,
}

/// How long the server has owed a sign of life.
#[derive(Debug, Default)]
struct Silence {
    /// When something was asked, with nothing heard since.
    since: Option<Instant>,
    /// Whether it was asked for a sign of life since then.
    asked: bool,
    /// How many questions callers are thinking about: the server waits, and owes nothing.
    questions: usize,
}

/// A question that a caller is thinking about.
#[derive(Debug)]
pub(super) struct Thinking(Arc<Mutex<Silence>>);

/// What to do about a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    /// Nothing.
    Fine,
    /// Ask it for a sign of life.
    Ask,
    /// End it.
    Hangs,
}

/// What a server sends before the answer.
#[derive(Debug)]
pub(super) enum Event {
    Progress { done: f64, total: Option<f64>, message: Option<String> },
    Note { method: String, params: Box<RawValue> },
    Ask { id: Id, params: Box<RawValue>, thinking: Thinking },
}

/// A request under way. Dropped before its answer, it is cancelled at the server.
#[derive(Debug)]
pub(super) struct Exchange {
    conversation: Arc<Conversation>,
    pub(super) id: u64,
    pub(super) events: mpsc::Receiver<Event>,
    pub(super) outcome: oneshot::Receiver<Answer>,
    /// The caller whose credentials go with it.
    caller: Option<Caller>,
    /// Whether the server has it, or is about to read it.
    is_sent: Arc<AtomicBool>,
    /// Over HTTP, the task that waits for the answer.
    task: Option<JoinHandle<()>>,
}

/// How many events of one request may wait for its caller ...
const EVENTS: usize = 64;
/// ... each of this many bytes at most: longer ones are dropped.
const EVENT_BYTES: usize = 16 * 1024;
/// How many characters of a server's error message are shown.
const SHOWN: usize = 200;
/// How long a server may be silent before it is asked for a sign of life, at most.
const IDLE: Duration = Duration::from_secs(15);

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Progress {
    progress_token: u64,
    progress: f64,
    total: Option<f64>,
    message: Option<String>,
}

impl Conversation {
    /// A conversation with a process, which reads what comes out of the channel.
    pub(super) fn of_process(name: &str) -> (Arc<Self>, mpsc::Receiver<Vec<u8>>) {
        let (out, lines) = mpsc::channel(talk::WRITES);
        (Self::new(name, Link::Lines(out)), lines)
    }

    /// A conversation with a server at an address.
    pub(super) fn over_http(name: &str, address: &Address) -> Arc<Self> {
        Self::new(name, Link::Http(Arc::new(Http::new(address))))
    }

    fn new(name: &str, link: Link) -> Arc<Self> {
        Arc::new(Self {
            name: name.to_owned(),
            link,
            open: Mutex::default(),
            // Random, because a server without sessions may take what another replica, or an earlier conversation, cancels for ours. Below
            // 2^52, so that every id is an integer even for servers that only have floating-point numbers.
            next: AtomicU64::new(RandomState::new().hash_one(()) >> 12),
            silence: Arc::default(),
            unsure: Notify::new(),
            changes: AtomicU64::new(0),
            said: Mutex::new(Rate::new(std::time::Instant::now())),
        })
    }

    pub(super) fn http(&self) -> Option<&Arc<Http>> {
        match &self.link {
            Link::Lines(_) => None,
            Link::Http(http) => Some(http),
        }
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a request, not yet sent, for a caller with this place. `None` if the server is gone.
    pub(super) fn begin(self: &Arc<Self>, made_for: For, of: Option<(&Caller, &Arc<FairPermit>)>) -> Option<Exchange> {
        let ((tell, events), (end, outcome)) = (mpsc::channel(EVENTS), oneshot::channel());
        let id = self.id();
        let mut open = self.open();
        if open.over {
            return None;
        }
        let waiting = Some(Waiting { events: tell, outcome: end });
        let (since, (caller, permit)) =
            (Instant::now(), of.map(|(caller, permit)| (caller.clone(), Arc::clone(permit))).unzip());
        open.requests.insert(id, Pending { since, made_for, waiting, given_up: None, permit });
        drop(open);
        if made_for != For::News {
            lock(&self.silence).since.get_or_insert(since);
        }
        Some(Exchange {
            conversation: Arc::clone(self),
            id,
            events,
            outcome,
            caller,
            is_sent: Arc::default(),
            task: None,
        })
    }

    /// Sends a message that has no answer, once the server has read what is ahead of it.
    ///
    /// # Errors
    /// It cannot be sent, or the server does not accept it; says why.
    pub(super) async fn write(&self, message: Vec<u8>, caller: Option<&Caller>) -> Result<(), String> {
        match &self.link {
            Link::Lines(out) => out.send(message).await.map_err(|_| "it has ended".to_owned()),
            Link::Http(http) => http.tell(message, caller).await,
        }
    }

    fn offer(&self, message: Vec<u8>, caller: Option<Caller>) {
        match &self.link {
            Link::Lines(out) => drop(out.try_send(message)),
            Link::Http(http) => http.offer(message, caller),
        }
    }

    /// Completes when something has gone wrong, and it is doubtful whether the server is available.
    pub(super) async fn doubt(&self) {
        match &self.link {
            Link::Lines(_) => std::future::pending().await,
            Link::Http(http) => http.doubt.notified().await,
        }
    }

    /// Completes when the server has ended the session.
    pub(super) async fn is_lost(&self) {
        match &self.link {
            Link::Lines(_) => std::future::pending().await,
            Link::Http(http) => http.is_lost().await,
        }
    }

    /// Whether the server has ended the session.
    pub(super) fn was_lost(&self) -> bool {
        self.http().is_some_and(|http| http.was_lost())
    }

    /// Records that the server's tools have changed, or may have.
    pub(super) fn change(&self) {
        self.changes.fetch_add(1, Ordering::AcqRel);
        self.unsure.notify_one();
    }

    /// How often they have changed. A listing that is requested later includes all these changes.
    pub(super) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// An id that no request has.
    pub(super) fn id(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Whether a caller waits for something that may still come.
    pub(super) fn is_in_use(&self) -> bool {
        self.open().requests.values().any(|one| one.waiting.is_some() && one.made_for == For::Caller)
    }

    /// Whether a request waits for its answer.
    pub(super) fn is_open(&self, id: u64) -> bool {
        self.open().requests.contains_key(&id)
    }

    /// Ends a request without a result.
    pub(super) fn refuse(&self, id: u64, refusal: Refusal) {
        if !matches!(refusal, Refusal::Lost) && !refusal.is_doubtful() {
            // Whatever it has said, it is available.
            self.heard();
        }
        let pending = self.open().requests.remove(&id);
        if let Some(waiting) = pending.and_then(|pending| pending.waiting) {
            // The request may be given up just now.
            drop(waiting.outcome.send(Err(refusal)));
        }
    }

    /// Ends the session and all its requests. If the server has ended the session, its requests may still be answered on connections of
    /// their own.
    pub(super) async fn close(&self) {
        if self.was_lost() {
            self.open().over = true;
        } else {
            drop(Over(self));
        }
        if let Link::Http(http) = &self.link {
            http.farewell().await;
        }
    }

    fn heard(&self) {
        let mut silence = lock(&self.silence);
        (silence.since, silence.asked) = (None, false);
    }

    /// Whether the server still responds; to be called several times within `patience`, which is how long it may be silent on everything
    /// that it was asked. Callers' deadlines do not matter here, nor does how long callers think.
    pub(super) fn look(&self, patience: Duration) -> Look {
        let is_waited_for = {
            let mut open = self.open();
            open.requests.retain(|_, pending| pending.waiting.is_some() || pending.since.elapsed() <= patience);
            for pending in open.requests.values_mut() {
                if pending.given_up.is_some_and(|since| since.elapsed() > GIVEN_UP) {
                    pending.permit = None;
                }
            }
            let mut pending = open.requests.values();
            // The end of a process shows by itself; that of a server at an address does not.
            self.http().is_some() || pending.any(|one| one.waiting.is_some() && one.made_for != For::News)
        };
        let mut silence = lock(&self.silence);
        if silence.questions > 0 {
            return Look::Fine;
        }
        if is_waited_for {
            silence.since.get_or_insert_with(Instant::now);
        }
        match silence.since.map(|since| since.elapsed()) {
            Some(silent) if silent > patience => Look::Hangs,
            Some(silent) if silent > (patience / 4).min(IDLE) && !std::mem::replace(&mut silence.asked, true) => {
                Look::Ask
            }
            _ => Look::Fine,
        }
    }

    /// Runs the conversation until the process ends or must be ended; returns why.
    pub(super) async fn run(
        &self,
        messages: mpsc::Receiver<Vec<u8>>,
        stdin: impl AsyncWrite + Unpin,
        stdout: impl AsyncRead + Unpin,
    ) -> String {
        // Also when this future is dropped, since the process has ended then.
        let _over = Over(self);
        tokio::select! {
            reason = talk::write(messages, stdin) => reason,
            reason = talk::read(&self.name, stdout, |line| self.take(line, Of::Any)) => reason,
        }
    }

    /// Takes one message of the server; an error says why it is useless.
    pub(super) fn take(&self, message: &[u8], of: Of) -> Result<(), &'static str> {
        let limits = Limits::default();
        let answered = |response: Response| {
            let id = response.id.as_json().parse().ok();
            self.answered(id, response.outcome.map_err(Refusal::Server), of)
        };
        match Responses::parse(message, &limits) {
            Ok(Responses::Single(response)) => return answered(response),
            // Revision 2025-03-26 has batches.
            Ok(Responses::Batch(all)) => return all.into_iter().try_for_each(answered),
            Err(error) => {
                if let Some(id) = answers(message) {
                    return self.answered(Some(id), Err(Refusal::Failed(error.to_string())), of);
                }
            }
        }
        match Body::parse(message, &limits) {
            Ok(Body::Single(Ok(request))) => match request.id.clone() {
                Some(id) => self.asked(request, id, of),
                None => self.told(&request, of),
            },
            Ok(_) => Err("neither a response nor a request of JSON-RPC 2.0"),
            Err(_) => Err("no JSON"),
        }
    }

    fn answered(&self, id: Option<u64>, answer: Answer, of: Of) -> Result<(), &'static str> {
        let id = id.filter(|id| of == Of::Any || of == Of::Request(*id));
        let pending = id.and_then(|id| self.open().requests.remove(&id));
        let pending = pending.ok_or("an answer to what was not asked")?;
        self.heard();
        if let Some(waiting) = pending.waiting {
            // The request may be given up just now.
            drop(waiting.outcome.send(answer));
        }
        Ok(())
    }

    fn told(&self, note: &Request, of: Of) -> Result<(), &'static str> {
        let text = note.params.as_ref().map_or("{}", |params| params.raw().get());
        match note.method.as_str() {
            "notifications/progress" => {
                let progress: Progress = serde_json::from_str(text).map_err(|_| "progress that cannot be read")?;
                let Progress { progress_token, progress: done, total, message } = progress;
                let message = message.map(|message| message.chars().take(1_000).collect());
                // Progress of a request that is over is late, not wrong.
                let open = self.open();
                let named = of == Of::Any || of == Of::Request(progress_token);
                if let Some(pending) = open.requests.get(&progress_token).filter(|_| named) {
                    self.heard();
                    if let Some(waiting) = &pending.waiting {
                        drop(waiting.events.try_send(Event::Progress { done, total, message }));
                    }
                }
            }
            "notifications/message" if text.len() <= EVENT_BYTES => {
                let params = RawValue::from_string(text.to_owned()).map_err(|_| "no JSON")?;
                if let Some(waiting) = self.open().caller(of) {
                    drop(waiting.events.try_send(Event::Note { method: note.method.clone(), params }));
                } else if let Some(left_out) = lock(&self.said).check(std::time::Instant::now()) {
                    let (backend, said) = (self.name.as_str(), brief(text));
                    tracing::debug!(target: "sealwire::backend", backend, left_out, "it says: {said}");
                }
            }
            "notifications/tools/list_changed" => self.change(),
            // We have asked for nothing else.
            _ => {}
        }
        Ok(())
    }

    /// Takes a request of the server.
    fn asked(&self, request: Request, id: Id, of: Of) -> Result<(), &'static str> {
        let refused = match request.method.as_str() {
            "ping" => {
                self.offer(format!(r#"{{"jsonrpc":"2.0","id":{},"result":{{}}}}"#, id.as_json()).into_bytes(), None);
                return Ok(());
            }
            "elicitation/create" => {
                let params = request.params.map(|params| params.raw().to_owned()).unwrap_or_default();
                let open = self.open();
                let caller = open.caller(of).filter(|_| params.get().len() <= EVENT_BYTES);
                let question = |params| Event::Ask { id: id.clone(), params, thinking: Thinking::new(&self.silence) };
                match caller.map(|waiting| waiting.events.try_send(question(params))) {
                    Some(Ok(())) => {
                        self.heard();
                        return Ok(());
                    }
                    _ => refusal(&id, -32603, "nobody can be asked: it must be for the one call under way"),
                }
            }
            _ => refusal(&id, -32601, "Method not found"),
        };
        self.offer(refused, None);
        Ok(())
    }
}

impl Open {
    /// The call that a message belongs to if it names none. Over HTTP, that is the request for which it came; from a process, the call
    /// under way, if it is the only one. A call that was given up counts: the server may still work on it, and what it says about it
    /// belongs to nobody else.
    fn caller(&self, of: Of) -> Option<&Waiting> {
        let mut calls = self
            .requests
            .iter()
            .filter(|(id, pending)| pending.made_for == For::Caller && (of == Of::Any || of == Of::Request(**id)));
        let first = calls.next().and_then(|(_, pending)| pending.waiting.as_ref());
        first.filter(|_| calls.next().is_none())
    }

    /// Marks a request as given up. Returns what it was made for, unless it has been answered. The entry stays if the server may work on
    /// it.
    fn abandon(&mut self, id: u64, stays: bool) -> Option<For> {
        if !stays {
            return self.requests.remove(&id).map(|pending| pending.made_for);
        }
        let pending = self.requests.get_mut(&id)?;
        (pending.waiting, pending.given_up) = (None, Some(Instant::now()));
        Some(pending.made_for)
    }
}

impl Thinking {
    fn new(silence: &Arc<Mutex<Silence>>) -> Self {
        lock(silence).questions += 1;
        Self(Arc::clone(silence))
    }
}

impl Drop for Thinking {
    fn drop(&mut self) {
        let mut silence = lock(&self.0);
        silence.questions -= 1;
        // The time that it has waited does not count as silence.
        (silence.since, silence.asked) = (None, false);
    }
}

fn lock<T>(state: &Mutex<T>) -> MutexGuard<'_, T> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Exchange {
    /// Sends the request; over HTTP, with these header fields.
    pub(super) async fn send(&mut self, body: Vec<u8>, headers: HeaderMap) {
        match &self.conversation.link {
            Link::Lines(_) => {
                drop(self.conversation.write(body, None).await);
                self.is_sent.store(true, Ordering::Release);
            }
            Link::Http(http) => {
                let (caller, is_sent) = (self.caller.clone(), Arc::clone(&self.is_sent));
                self.task = Some(http.ask(&self.conversation, self.id, (body, headers), caller, is_sent));
            }
        }
    }

    /// Opens a stream for what the server says unasked.
    pub(super) fn listen(&mut self) {
        if let Link::Http(http) = &self.conversation.link {
            self.task = Some(http.listen(&self.conversation, self.id));
        }
    }

    /// Answers a question that came for this request.
    ///
    /// # Errors
    /// The server has not accepted the answer; says why.
    pub(super) async fn reply(&self, message: Vec<u8>) -> Result<(), String> {
        self.conversation.write(message, self.caller.as_ref()).await
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        let (id, is_over_http) = (self.id, self.conversation.http().is_some());
        let is_sent = self.is_sent.load(Ordering::Acquire);
        // MCP 2026-07-28, cancellation: over HTTP, closing the connection is the signal, and a server works on nothing without a
        // connection.
        let is_ended = self.conversation.http().is_some_and(|http| !http.is_legacy());
        let (made_for, is_over) = {
            let mut open = self.conversation.open();
            (open.abandon(id, is_sent && !is_ended), open.over)
        };
        // The task of an answered request is about to end.
        if let (Some(task), true) = (&self.task, made_for.is_some() || is_over) {
            task.abort();
        }
        let Some(made_for) = made_for.filter(|_| is_sent && !is_ended) else { return };
        if made_for != For::News || !is_over_http {
            let cancelled = format!(
                r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id},"reason":"the call has ended"}}}}"#
            );
            self.conversation.offer(cancelled.into_bytes(), self.caller.clone());
        }
    }
}

/// When a process has ended, so have its requests.
struct Over<'a>(&'a Conversation);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        let mut open = self.0.open();
        open.over = true;
        // Dropping the senders tells whoever waits for the outcomes.
        open.requests.clear();
    }
}

fn refusal(id: &Id, code: i32, message: &str) -> Vec<u8> {
    let error = serde_json::json!({ "code": code, "message": message });
    format!(r#"{{"jsonrpc":"2.0","id":{},"error":{error}}}"#, id.as_json()).into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_conversations_have_no_ids_in_common() {
        let ids = || {
            let (conversation, _) = Conversation::of_process("server");
            [conversation.id(), conversation.id()]
        };
        let (ours, theirs) = (ids(), ids());
        assert_eq!(ours[1], ours[0] + 1);
        assert!(ours[0].abs_diff(theirs[0]) > 1, "{ours:?} {theirs:?}");
        assert!(ours.iter().chain(&theirs).all(|id| *id <= 1 << 52));
    }
}
