//! A conversation with a server, over the lines of its process or over HTTP: which request each message belongs to.
//! Never takes an answer to what was not asked, and never keeps more of what comes than a request may have waiting.

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
use sealwire::service::Turn;
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

/// One process, as long as it runs; or one session with a server at an address.
#[derive(Debug)]
pub(super) struct Conversation {
    name: String,
    link: Link,
    open: Mutex<Open>,
    next: AtomicU64,
    silence: Arc<Mutex<Silence>>,
    /// Its tools are to be listed again.
    pub(super) unsure: Notify,
    /// How often its tools have become others, as it says or may not have said.
    changes: AtomicU64,
    /// What it says to nobody, in the log.
    said: Mutex<Rate>,
}

/// How messages reach the server.
#[derive(Debug)]
pub(super) enum Link {
    /// Lines that its process reads.
    Lines(mpsc::Sender<Vec<u8>>),
    Http(Arc<Http>),
}

/// What a message can be about, by the way that it came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Of {
    /// Anything: it comes from a process, which says everything in one place.
    Any,
    /// This request.
    Request(u64),
    /// Nothing that was asked.
    Nobody,
}

/// What a request is made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum For {
    /// A caller, who can be told and asked something.
    Caller,
    /// Ourselves.
    Us,
    /// To be told of changes: there is no answer to wait for.
    News,
}

/// Why a request has no result.
#[derive(Debug)]
pub(super) enum Refusal {
    /// The server's own word.
    Server(RpcError),
    /// An HTTP status without one.
    Status(u16),
    /// The server has got nothing: it cannot be reached.
    Unreached(String),
    /// The server has ended the session before: it has done nothing.
    Lost,
    /// The connection has ended.
    Broken(String),
    /// What came is of no use.
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
    /// The server may be gone.
    pub(super) fn is_doubtful(&self) -> bool {
        matches!(self, Self::Unreached(_) | Self::Broken(_) | Self::Status(401 | 403 | 500..))
    }
}

/// What a request comes to.
pub(super) type Answer = Result<Box<RawValue>, Refusal>;

#[derive(Debug, Default)]
struct Open {
    /// By our id, which is the token of its progress as well.
    requests: HashMap<u64, Pending>,
    /// The server is gone.
    over: bool,
}

#[derive(Debug)]
struct Pending {
    since: Instant,
    made_for: For,
    /// `None` if it was given up. It stays for as long as a call may take, and its place for a while: the server may work on it, and
    /// what is said without a name may be about it still.
    waiting: Option<Waiting>,
    given_up: Option<Instant>,
    /// Its caller's place among the calls of the backend.
    turn: Option<Arc<Turn>>,
}

#[derive(Debug)]
struct Waiting {
    events: mpsc::Sender<Event>,
    outcome: oneshot::Sender<Answer>,
}

/// How long the server has owed a sign of life.
#[derive(Debug, Default)]
struct Silence {
    /// Something was asked of it then, and nothing was heard since.
    since: Option<Instant>,
    /// It was asked for a sign of life since then.
    asked: bool,
    /// Questions that callers are thinking about: the server waits, and owes nothing.
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

/// What comes before the answer.
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
    /// Whose credentials go with it.
    caller: Option<Caller>,
    /// The server has it, or is about to read it.
    is_sent: Arc<AtomicBool>,
    /// What waits for an answer of its own, over HTTP.
    task: Option<JoinHandle<()>>,
}

/// How many events of one request wait for its caller ...
const EVENTS: usize = 64;
/// ... each of so many bytes at most: what is longer is left out.
const EVENT_BYTES: usize = 16 * 1024;
/// How many characters of a server's own words are told of an error.
const SHOWN: usize = 200;
/// How long a server may say nothing before it is asked for a sign of life, at most.
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
    /// With a process, which reads what comes out of the channel.
    pub(super) fn of_process(name: &str) -> (Arc<Self>, mpsc::Receiver<Vec<u8>>) {
        let (out, lines) = mpsc::channel(talk::WRITES);
        (Self::new(name, Link::Lines(out)), lines)
    }

    /// With a server at an address.
    pub(super) fn over_http(name: &str, address: &Address) -> Arc<Self> {
        Self::new(name, Link::Http(Arc::new(Http::new(address))))
    }

    fn new(name: &str, link: Link) -> Arc<Self> {
        Arc::new(Self {
            name: name.to_owned(),
            link,
            open: Mutex::default(),
            // A server without sessions may take what another replica, or an earlier conversation, cancels for ours. Below 2^52, so that
            // every id is a whole number to servers that have no others than floating-point ones.
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

    /// A new request, not yet sent, for a caller who has this place. `None` if the server is gone.
    pub(super) fn begin(self: &Arc<Self>, made_for: For, of: Option<(&Caller, &Arc<Turn>)>) -> Option<Exchange> {
        let ((tell, events), (end, outcome)) = (mpsc::channel(EVENTS), oneshot::channel());
        let id = self.id();
        let mut open = self.open();
        if open.over {
            return None;
        }
        let waiting = Some(Waiting { events: tell, outcome: end });
        let (since, (caller, turn)) =
            (Instant::now(), of.map(|(caller, turn)| (caller.clone(), Arc::clone(turn))).unzip());
        open.requests.insert(id, Pending { since, made_for, waiting, given_up: None, turn });
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

    /// Has a message written that has no answer, when the server has read what is ahead of it.
    ///
    /// # Errors
    /// It cannot be, or the server does not take it; why.
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

    /// Completes when something has gone wrong: is the server there?
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

    /// Whether it has.
    pub(super) fn was_lost(&self) -> bool {
        self.http().is_some_and(|http| http.was_lost())
    }

    /// The server's tools are others now, or may be.
    pub(super) fn change(&self) {
        self.changes.fetch_add(1, Ordering::AcqRel);
        self.unsure.notify_one();
    }

    /// How often they have become others: a listing that was asked for later has all of that.
    pub(super) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// An id that no request has.
    pub(super) fn id(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Whether a caller waits for something that may come still.
    pub(super) fn is_in_use(&self) -> bool {
        self.open().requests.values().any(|one| one.waiting.is_some() && one.made_for == For::Caller)
    }

    /// Whether a request waits for its answer.
    pub(super) fn is_open(&self, id: u64) -> bool {
        self.open().requests.contains_key(&id)
    }

    /// A request has come to nothing.
    pub(super) fn refuse(&self, id: u64, refusal: Refusal) {
        if !matches!(refusal, Refusal::Lost) && !refusal.is_doubtful() {
            // Whatever it has said, it is there.
            self.heard();
        }
        let pending = self.open().requests.remove(&id);
        if let Some(waiting) = pending.and_then(|pending| pending.waiting) {
            // It may be given up just now.
            drop(waiting.outcome.send(Err(refusal)));
        }
    }

    /// Ends the session, and all requests: but those that were made in one that the server has ended are answered on connections of
    /// their own still.
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

    /// Whether the server is still there, to be asked several times within `patience`, which is how long it may say nothing to
    /// all that it was asked. Callers' deadlines do not matter here, and neither does how long callers think.
    pub(super) fn look(&self, patience: Duration) -> Look {
        let is_waited_for = {
            let mut open = self.open();
            open.requests.retain(|_, pending| pending.waiting.is_some() || pending.since.elapsed() <= patience);
            for pending in open.requests.values_mut() {
                if pending.given_up.is_some_and(|since| since.elapsed() > GIVEN_UP) {
                    pending.turn = None;
                }
            }
            let mut pending = open.requests.values();
            // Of a process one is told when it ends.
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

    /// Talks until the process ends or must be ended; why.
    pub(super) async fn run(
        &self,
        messages: mpsc::Receiver<Vec<u8>>,
        stdin: impl AsyncWrite + Unpin,
        stdout: impl AsyncRead + Unpin,
    ) -> String {
        // Also when this is dropped, since then the process has ended.
        let _over = Over(self);
        tokio::select! {
            reason = talk::write(messages, stdin) => reason,
            reason = talk::read(&self.name, stdout, |line| self.take(line, Of::Any)) => reason,
        }
    }

    /// One message of the server; what is wrong with it, if it was of no use.
    pub(super) fn take(&self, message: &[u8], of: Of) -> Result<(), &'static str> {
        let limits = Limits::default();
        let answered = |response: Response| {
            let id = response.id.as_json().parse().ok();
            self.answered(id, response.outcome.map_err(Refusal::Server), of)
        };
        match Responses::parse(message, &limits) {
            Ok(Responses::Single(response)) => return answered(response),
            // Revision 2025-03-26 has them.
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
            // It may be given up just now.
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
                // What comes for a request that is over is late, and no fault.
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
            // Nothing that we have asked for.
            _ => {}
        }
        Ok(())
    }

    /// The server asks something.
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
    /// Whose a message is that names no request: of the one that it came for. A process does not say that: there it is of the call
    /// under way, if it is the only one. One that was given up counts: it may be worked on still, and what is said of it is nobody
    /// else's.
    fn caller(&self, of: Of) -> Option<&Waiting> {
        let mut calls = self
            .requests
            .iter()
            .filter(|(id, pending)| pending.made_for == For::Caller && (of == Of::Any || of == Of::Request(**id)));
        let first = calls.next().and_then(|(_, pending)| pending.waiting.as_ref());
        first.filter(|_| calls.next().is_none())
    }

    /// Nobody waits for this request any more; what it was made for, unless it has been answered. It stays if the server may work on it.
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
        // What it has waited for is not held against it.
        (silence.since, silence.asked) = (None, false);
    }
}

fn lock<T>(state: &Mutex<T>) -> MutexGuard<'_, T> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Exchange {
    /// Sends the request, with these header fields over HTTP.
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

    /// Opens a stream of what the server says unasked.
    pub(super) fn listen(&mut self) {
        if let Link::Http(http) = &self.conversation.link {
            self.task = Some(http.listen(&self.conversation, self.id));
        }
    }

    /// Answers a question that has come for the request.
    ///
    /// # Errors
    /// The server has not taken the answer; why.
    pub(super) async fn reply(&self, message: Vec<u8>) -> Result<(), String> {
        self.conversation.write(message, self.caller.as_ref()).await
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        let (id, is_over_http) = (self.id, self.conversation.http().is_some());
        let is_sent = self.is_sent.load(Ordering::Acquire);
        // MCP 2026-07-28, cancellation: over HTTP the end of the connection says it, and the server works on nothing without one.
        let is_ended = self.conversation.http().is_some_and(|http| !http.is_legacy());
        let (made_for, is_over) = {
            let mut open = self.conversation.open();
            (open.abandon(id, is_sent && !is_ended), open.over)
        };
        // Once it is answered, the task is about to end.
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
        // Whoever waits for their outcomes is told by that.
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
