//! A conversation with a server, over the lines of its process or over HTTP: matches each message to a request.
//! Never accepts an answer to something that was not asked, and never keeps more of what comes than a request may have waiting.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hyper::header::HeaderMap;
use sealwire::Caller;
use sealwire::internal::rpc::{Body, Id, Limits, Request, Response, Responses};
use sealwire::internal::service::FairPermit;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::config::Address;
use super::http::Http;
use super::types::{Answer, Correlation, Inbox, Purpose, Refusal};
use super::watches::Watches;
use crate::backend::{GIVEN_UP, answers, seems_to_answer};
use crate::child::{Rate, brief};
use crate::form::{STILL_TO_COME, TEXT_AHEAD, behind_text, malformed, number_in, whole};
use crate::talk::{self, MessageKind};

/// One process for as long as it runs, or one session with a server at an address.
#[derive(Debug)]
pub(super) struct JsonRpcPeer {
    name: String,
    link: Link,
    open: Mutex<OpenRequests>,
    next: AtomicU64,
    silence: Arc<Mutex<Liveness>>,
    /// Who watches resources.
    watches: Arc<Watches>,
    /// Notified when the tools are to be listed again.
    pub(super) tools_changed: Notify,
    /// How often its tools have changed, as far as it says so or may have failed to.
    changes: AtomicU64,
    /// Bounds what goes into the log of what it says to nobody.
    log_rate: Mutex<Rate>,
}

/// How messages reach the server.
#[derive(Debug)]
pub(super) enum Link {
    /// Lines that its process reads.
    Lines(mpsc::Sender<Vec<u8>>),
    Http(Arc<Http>),
}

#[derive(Debug, Default)]
struct OpenRequests {
    /// By our id, which is also the progress token.
    requests: HashMap<u64, PendingRequest>,
    /// The server is gone.
    over: bool,
}

#[derive(Debug)]
struct PendingRequest {
    since: Instant,
    made_for: Purpose,
    /// Whether what answers it may break a rule of JSON inside of its result, of which each part is then judged on its own.
    is_lenient: bool,
    /// `None` if it was given up. The entry stays for as long as a call may take, and its place for a while: the server may still work on
    /// it, and messages that name no request may be about it.
    waiting: Option<Waiter>,
    given_up: Option<Instant>,
    /// When a line has shown what may have been its answer.
    doubted: Option<Instant>,
    /// Its caller's place among the calls of the backend.
    permit: Option<Arc<FairPermit>>,
}

#[derive(Debug)]
struct Waiter {
    events: mpsc::Sender<Event>,
    newest: Arc<Mutex<Option<Event>>>,
    outcome: oneshot::Sender<Answer>,
}

/// How long the server has owed a sign of life.
#[derive(Debug, Default)]
struct Liveness {
    /// When something was asked, with nothing heard since.
    since: Option<Instant>,
    /// Whether it was asked for a sign of life since then.
    asked: bool,
    /// How many questions callers are thinking about: the server waits, and owes nothing.
    questions: usize,
}

/// A question that a caller is thinking about.
#[derive(Debug)]
pub(super) struct OpenQuestion(Arc<Mutex<Liveness>>);

/// What to do about a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PeerHealth {
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
    Ask { id: Id, method: String, params: Box<RawValue>, thinking: OpenQuestion },
}

/// A request under way. Dropped before its answer, it is cancelled at the server.
#[derive(Debug)]
pub(super) struct Exchange {
    conversation: Arc<JsonRpcPeer>,
    pub(super) id: u64,
    pub(super) events: mpsc::Receiver<Event>,
    /// Progress for which there was no room among the events, the newest alone; as long as there is any, all of it goes here.
    newest: Arc<Mutex<Option<Event>>>,
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
/// Questions may be larger, such as what a model is to read, while few of them are open.
const LARGE: usize = 4;
const LARGE_BYTES: usize = 256 * 1024;
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

/// The first message on a stream of news (MCP 2026-07-28).
const ACKNOWLEDGED: &str = "notifications/subscriptions/acknowledged";

#[derive(Deserialize)]
struct Acknowledged<'a> {
    #[serde(rename = "_meta", borrow)]
    meta: OfSubscription<'a>,
}

#[derive(Deserialize)]
struct OfSubscription<'a> {
    #[serde(rename = "io.modelcontextprotocol/subscriptionId", borrow)]
    subscription: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Updated {
    uri: String,
}

impl JsonRpcPeer {
    /// A conversation with a process, which reads what comes out of the channel.
    pub(super) fn of_process(name: &str, watches: &Arc<Watches>) -> (Arc<Self>, mpsc::Receiver<Vec<u8>>) {
        let (out, lines) = mpsc::channel(talk::WRITES);
        (Self::new(name, watches, Link::Lines(out)), lines)
    }

    /// A conversation with a server at an address.
    pub(super) fn over_http(name: &str, watches: &Arc<Watches>, address: &Address) -> Arc<Self> {
        Self::new(name, watches, Link::Http(Arc::new(Http::new(address))))
    }

    fn new(name: &str, watches: &Arc<Watches>, link: Link) -> Arc<Self> {
        Arc::new(Self {
            name: name.to_owned(),
            link,
            open: Mutex::default(),
            // Random, because a server without sessions may take what another replica, or an earlier conversation, cancels for ours. Below
            // 2^52, so that every id is an integer even for servers that only have floating-point numbers.
            next: AtomicU64::new(RandomState::new().hash_one(()) >> 12),
            silence: Arc::default(),
            watches: Arc::clone(watches),
            tools_changed: Notify::new(),
            changes: AtomicU64::new(0),
            log_rate: Mutex::new(Rate::new(std::time::Instant::now())),
        })
    }

    pub(super) fn http(&self) -> Option<&Arc<Http>> {
        match &self.link {
            Link::Lines(_) => None,
            Link::Http(http) => Some(http),
        }
    }

    fn open(&self) -> MutexGuard<'_, OpenRequests> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a request, not yet sent, for a caller with this place. `None` if the server is gone.
    pub(super) fn begin(
        self: &Arc<Self>,
        made_for: Purpose,
        of: Option<(&Caller, &Arc<FairPermit>)>,
    ) -> Option<Exchange> {
        let ((tell, events), (end, outcome)) = (mpsc::channel(EVENTS), oneshot::channel());
        let id = self.id();
        let mut open = self.open();
        if open.over {
            return None;
        }
        let newest = Arc::<Mutex<_>>::default();
        let waiting = Some(Waiter { events: tell, newest: Arc::clone(&newest), outcome: end });
        let (since, (caller, permit)) =
            (Instant::now(), of.map(|(caller, permit)| (caller.clone(), Arc::clone(permit))).unzip());
        let (given_up, doubted) = (None, None);
        open.requests
            .insert(id, PendingRequest { since, made_for, is_lenient: false, waiting, given_up, doubted, permit });
        drop(open);
        if made_for != Purpose::News {
            lock(&self.silence).since.get_or_insert(since);
        }
        Some(Exchange {
            conversation: Arc::clone(self),
            id,
            events,
            newest,
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
        self.tools_changed.notify_one();
    }

    /// How often they have changed. A listing that is requested later includes all these changes.
    pub(super) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Whether a caller waits for something that may still come.
    pub(super) fn is_in_use(&self) -> bool {
        self.open().requests.values().any(|one| one.waiting.is_some() && one.made_for == Purpose::Caller)
    }

    /// Accepts an answer to this request whose result breaks a rule of JSON inside.
    pub(super) fn take_leniently(&self, id: u64) {
        if let Some(pending) = self.open().requests.get_mut(&id) {
            pending.is_lenient = true;
        }
    }

    /// Ends the session and all its requests. If the server has ended the session, its requests may still be answered on connections of
    /// their own.
    pub(super) async fn close(&self) {
        if self.was_lost() {
            self.open().over = true;
        } else {
            drop(CloseGuard(self));
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
    pub(super) fn look(&self, patience: Duration) -> PeerHealth {
        self.end_doubted();
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
            self.http().is_some() || pending.any(|one| one.waiting.is_some() && one.made_for != Purpose::News)
        };
        let mut silence = lock(&self.silence);
        if silence.questions > 0 {
            return PeerHealth::Fine;
        }
        if is_waited_for {
            silence.since.get_or_insert_with(Instant::now);
        }
        match silence.since.map(|since| since.elapsed()) {
            Some(silent) if silent > patience => PeerHealth::Hangs,
            Some(silent) if silent > (patience / 4).min(IDLE) && !std::mem::replace(&mut silence.asked, true) => {
                PeerHealth::Ask
            }
            _ => PeerHealth::Fine,
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
        let _over = CloseGuard(self);
        let take = |line: &[u8]| self.take(line, Correlation::Any);
        tokio::select! {
            reason = talk::write(messages, stdin) => reason,
            reason = talk::read(&self.name, stdout, take, || std::future::ready(())) => reason,
        }
    }

    fn take_one(&self, message: &[u8], of: Correlation) -> Result<MessageKind, &'static str> {
        let limits = Limits::default();
        let meant = match Responses::parse(message, &limits) {
            Ok(Responses::Single(response)) => return self.response(response, of).map(|()| MessageKind::Asked),
            Ok(Responses::Batch(_)) => return Err("more answers at a time than anybody has asked for"),
            Err(error) => {
                if let Some(id) = answers(message) {
                    let outcome = self.lenient(id, message).ok_or_else(|| Refusal::Failed(error.to_string()));
                    return self.answered(Some(id), outcome, of).map(|()| MessageKind::Asked);
                }
                malformed(message, &error).and_then(|meant| meant.id)
            }
        };
        match Body::parse(message, &limits) {
            Ok(Body::Single(Ok(request))) => {
                match request.id.clone() {
                    Some(id) => self.asked(request, id, of)?,
                    None => self.told(&request, of)?,
                }
                Ok(MessageKind::Unasked)
            }
            Ok(_) => {
                self.spoilt(message, meant, of, "its answer is not a response of JSON-RPC 2.0");
                Err("neither a response nor a request of JSON-RPC 2.0")
            }
            Err(_) => {
                self.spoilt(message, meant, of, "its answer is not JSON");
                self.doubt_about(message);
                Err("no JSON")
            }
        }
    }

    /// The result of a request whose parts are judged one by one, from an answer that breaks a rule inside of it.
    fn lenient(&self, id: u64, message: &[u8]) -> Option<Box<RawValue>> {
        #[derive(Deserialize)]
        struct Answer<'a> {
            #[serde(borrow)]
            result: &'a RawValue,
        }
        self.open().requests.get(&id).filter(|pending| pending.is_lenient)?;
        let answer: Answer<'_> = serde_json::from_slice(message).ok()?;
        Some(answer.result.to_owned())
    }

    fn response(&self, response: Response, of: Correlation) -> Result<(), &'static str> {
        let Response { id, outcome, .. } = response;
        let (text, outcome) = (id.as_json(), outcome.map_err(Refusal::Server));
        if let Some(id) = whole(text) {
            return self.answered(Some(id), outcome, of);
        }
        // Whoever waits must not wait for an answer that has come.
        let quoted = number_in(&id);
        let (id, outcome) = match (quoted.filter(|id| self.is_open(*id)), outcome) {
            (Some(id), _) => (Some(id), Err(Refusal::Failed("its answer has the id as a text".to_owned()))),
            // JSON-RPC 2.0 §5: the id is null if the server could not read it.
            (None, refused @ Err(_)) if text == "null" => (self.only(), refused),
            (None, _) => (self.only(), Err(Refusal::Failed("its answer has another id".to_owned()))),
        };
        self.answered(id, outcome, of)
    }

    /// Ends the request that a useless message is `meant` for, or seems to answer.
    fn spoilt(&self, message: &[u8], meant: Option<u64>, of: Correlation, why: &str) {
        #[derive(Deserialize)]
        struct Answer {
            method: Option<serde::de::IgnoredAny>,
            result: Option<serde::de::IgnoredAny>,
            error: Option<serde::de::IgnoredAny>,
        }
        let is_answer =
            |answer: &Answer| answer.method.is_none() && (answer.result.is_some() || answer.error.is_some());
        let named = [meant, seems_to_answer(message)].into_iter().flatten().find(|id| self.is_open(*id));
        let id = named.or_else(|| {
            // One with an id of no kind that there is.
            serde_json::from_slice(message).ok().filter(|_| of == Correlation::Any).filter(is_answer)?;
            self.only()
        });
        if id.is_some() {
            // It may have been answered just now.
            let _ = self.answered(id, Err(Refusal::Failed(why.to_owned())), of);
        }
    }

    /// The one request that waits, if there is no other that an answer may be meant for.
    fn only(&self) -> Option<u64> {
        let open = self.open();
        let mut asked = open.requests.iter().filter(|(_, pending)| pending.made_for != Purpose::News);
        let (id, pending) = asked.next()?;
        (asked.next().is_none() && pending.waiting.is_some()).then_some(*id)
    }

    /// Notes that a line may have been the answer to the one request that waits, with text ahead of it. If the answer does not come, that
    /// was all.
    fn doubt_about(&self, line: &[u8]) {
        let Some(id) = behind_text(line).filter(|id| self.only() == Some(*id)) else { return };
        if let Some(pending) = self.open().requests.get_mut(&id) {
            pending.doubted.get_or_insert_with(Instant::now);
        }
    }

    /// Ends requests whose answers have come in a line that is none.
    fn end_doubted(&self) {
        let is_over = |pending: &PendingRequest| pending.doubted.is_some_and(|since| since.elapsed() >= STILL_TO_COME);
        let doubted: Vec<u64> =
            self.open().requests.iter().filter(|(_, pending)| is_over(pending)).map(|(id, _)| *id).collect();
        for id in doubted {
            // It may have been answered just now.
            let _ = self.answered(
                Some(id),
                Err(Refusal::Failed(format!("its answer cannot be used: {TEXT_AHEAD}"))),
                Correlation::Any,
            );
        }
    }

    fn answered(&self, id: Option<u64>, answer: Answer, of: Correlation) -> Result<(), &'static str> {
        let id = id.filter(|id| of == Correlation::Any || of == Correlation::Request(*id));
        let pending = id.and_then(|id| self.open().requests.remove(&id));
        let pending = pending.ok_or("an answer to what was not asked")?;
        self.heard();
        if let Some(waiting) = pending.waiting {
            // The request may be given up just now.
            drop(waiting.outcome.send(answer));
        }
        Ok(())
    }

    fn told(&self, note: &Request, of: Correlation) -> Result<(), &'static str> {
        let text = note.params.as_ref().map_or("{}", |params| params.raw().get());
        match note.method.as_str() {
            "notifications/progress" => {
                let progress: Progress = serde_json::from_str(text).map_err(|_| "progress that cannot be read")?;
                let Progress { progress_token, progress: done, total, message } = progress;
                let message = message.map(|message| message.chars().take(1_000).collect());
                // Progress of a request that is over is late, not wrong.
                let open = self.open();
                let named = of == Correlation::Any || of == Correlation::Request(progress_token);
                if let Some(pending) = open.requests.get(&progress_token).filter(|_| named) {
                    self.heard();
                    if let Some(waiting) = &pending.waiting {
                        waiting.progress(Event::Progress { done, total, message });
                    }
                }
            }
            "notifications/message" if text.len() <= EVENT_BYTES => {
                let params = RawValue::from_string(text.to_owned()).map_err(|_| "no JSON")?;
                if let Some(waiting) = self.open().caller(of) {
                    drop(waiting.events.try_send(Event::Note { method: note.method.clone(), params }));
                } else if let Some(left_out) = lock(&self.log_rate).check(std::time::Instant::now()) {
                    let (backend, said) = (self.name.as_str(), brief(text));
                    tracing::debug!(target: "sealwire::backend", backend, left_out, "it says: {said}");
                }
            }
            "notifications/tools/list_changed" | "notifications/prompts/list_changed" => self.change(),
            // No call depends on that list.
            "notifications/resources/list_changed" => self.tools_changed.notify_one(),
            "notifications/resources/updated" => {
                let updated: Updated = serde_json::from_str(text).map_err(|_| "an update that cannot be read")?;
                self.watches.updated(&updated.uri);
            }
            ACKNOWLEDGED if text.len() <= LARGE_BYTES => {
                let said: Acknowledged = serde_json::from_str(text).map_err(|_| "no acknowledgement")?;
                let params = RawValue::from_string(text.to_owned()).map_err(|_| "no JSON")?;
                let open = self.open();
                let waiting =
                    said.meta.subscription.and_then(|id| whole(id.get())).and_then(|id| open.requests.get(&id));
                if let Some(waiting) = waiting.and_then(|pending| pending.waiting.as_ref()) {
                    drop(waiting.events.try_send(Event::Note { method: note.method.clone(), params }));
                }
            }
            // We have asked for nothing else.
            _ => {}
        }
        Ok(())
    }

    /// Takes a request of the server.
    fn asked(&self, request: Request, id: Id, of: Correlation) -> Result<(), &'static str> {
        let refused = match request.method.as_str() {
            "ping" => {
                self.offer(format!(r#"{{"jsonrpc":"2.0","id":{},"result":{{}}}}"#, id.as_json()).into_bytes(), None);
                return Ok(());
            }
            // Whether the server may ask this is judged where its caller is known.
            "elicitation/create" | "sampling/createMessage" | "roots/list" => {
                let params = request.params.map(|params| params.raw().to_owned());
                let params = params.or_else(|| RawValue::from_string("{}".to_owned()).ok()).unwrap_or_default();
                let open = self.open();
                let room = if lock(&self.silence).questions < LARGE { LARGE_BYTES } else { EVENT_BYTES };
                let caller = open.caller(of).filter(|_| params.get().len() <= room);
                let question = |params| Event::Ask {
                    id: id.clone(),
                    method: request.method.clone(),
                    params,
                    thinking: OpenQuestion::new(&self.silence),
                };
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

impl Inbox for JsonRpcPeer {
    fn name(&self) -> &str {
        &self.name
    }

    fn id(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    fn is_open(&self, id: u64) -> bool {
        self.open().requests.contains_key(&id)
    }

    fn take(&self, message: &[u8], of: Correlation) -> Result<MessageKind, &'static str> {
        // Revision 2025-03-26 has batches, in which requests, notifications and answers may stand side by side.
        let entries = Some(message).filter(|message| message.trim_ascii_start().first() == Some(&b'['));
        match entries.and_then(|batch| serde_json::from_slice::<Vec<&RawValue>>(batch).ok()) {
            Some(entries) if !entries.is_empty() && entries.len() <= Limits::default().max_batch => {
                // Each on its own: one that nobody has asked for takes nothing from the others.
                let mut all = Err("an answer to what was not asked");
                for entry in entries {
                    all = match (all, self.take_one(entry.get().as_bytes(), of)) {
                        (Ok(MessageKind::Asked), _) | (_, Ok(MessageKind::Asked)) => Ok(MessageKind::Asked),
                        (Ok(kind), _) | (_, Ok(kind)) => Ok(kind),
                        (_, error) => error,
                    };
                }
                all
            }
            _ => self.take_one(message, of),
        }
    }

    fn refuse(&self, id: u64, refusal: Refusal) {
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

    fn list_again(&self) {
        self.tools_changed.notify_one();
    }
}

impl OpenRequests {
    /// The call that a message belongs to if it names none. Over HTTP, that is the request for which it came; if it came for none, and from
    /// a process, the call under way, if it is the only one. A call that was given up counts: the server may still work on it, and what it says about it
    /// belongs to nobody else.
    fn caller(&self, of: Correlation) -> Option<&Waiter> {
        let mut calls = self.requests.iter().filter(|(id, pending)| {
            pending.made_for == Purpose::Caller && !matches!(of, Correlation::Request(other) if other != **id)
        });
        let first = calls.next().and_then(|(_, pending)| pending.waiting.as_ref());
        first.filter(|_| calls.next().is_none())
    }

    /// Marks a request as given up. Returns what it was made for, unless it has been answered. The entry stays if the server may work on
    /// it.
    fn abandon(&mut self, id: u64, stays: bool) -> Option<Purpose> {
        if !stays {
            return self.requests.remove(&id).map(|pending| pending.made_for);
        }
        let pending = self.requests.get_mut(&id)?;
        (pending.waiting, pending.given_up) = (None, Some(Instant::now()));
        Some(pending.made_for)
    }
}

impl Waiter {
    fn progress(&self, progress: Event) {
        let mut newest = lock(&self.newest);
        let left = match newest.is_some() {
            true => Some(progress),
            false => match self.events.try_send(progress) {
                Err(mpsc::error::TrySendError::Full(progress)) => Some(progress),
                Ok(()) | Err(mpsc::error::TrySendError::Closed(_)) => None,
            },
        };
        if left.is_some() {
            *newest = left;
        }
    }
}

impl OpenQuestion {
    fn new(silence: &Arc<Mutex<Liveness>>) -> Self {
        lock(silence).questions += 1;
        Self(Arc::clone(silence))
    }
}

impl Drop for OpenQuestion {
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

    /// The progress for which there was no room, once everything ahead of it was taken.
    pub(super) fn newest(&self) -> Option<Event> {
        if self.events.is_empty() { lock(&self.newest).take() } else { None }
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
        let is_ended = self.conversation.http().is_some_and(|http| !http.has_handshake());
        let (made_for, is_over) = {
            let mut open = self.conversation.open();
            (open.abandon(id, is_sent && !is_ended), open.over)
        };
        // The task of an answered request is about to end.
        if let (Some(task), true) = (&self.task, made_for.is_some() || is_over) {
            task.abort();
        }
        let Some(made_for) = made_for.filter(|_| is_sent && !is_ended) else { return };
        if made_for != Purpose::News || !is_over_http {
            let cancelled = format!(
                r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id},"reason":"the call has ended"}}}}"#
            );
            self.conversation.offer(cancelled.into_bytes(), self.caller.clone());
        }
    }
}

/// When a process has ended, so have its requests.
struct CloseGuard<'a>(&'a JsonRpcPeer);

impl Drop for CloseGuard<'_> {
    fn drop(&mut self) {
        let mut open = self.0.open();
        open.over = true;
        // Dropping the senders tells whoever waits for the outcomes.
        open.requests.clear();
    }
}

/// An error in answer to a question of the server. JSON-RPC has no other members than these.
pub(super) fn refusal(id: &Id, code: i32, message: &str) -> Vec<u8> {
    let error = serde_json::json!({ "code": code, "message": message });
    format!(r#"{{"jsonrpc":"2.0","id":{},"error":{error}}}"#, id.as_json()).into_bytes()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    /// The outcome of one request after a server has said this about its id.
    async fn outcome(said: &str) -> Option<Answer> {
        let (conversation, _lines) = JsonRpcPeer::of_process("server", &Arc::default());
        let mut exchange = conversation.begin(Purpose::Us, None)?;
        let _ = conversation.take(said.replace("ID", &exchange.id.to_string()).as_bytes(), Correlation::Any);
        tokio::time::advance(STILL_TO_COME).await;
        conversation.look(Duration::from_secs(60));
        exchange.outcome.try_recv().ok()
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_in_whatever_form_ends_its_request_at_once() {
        for good in [
            r#"{"jsonrpc":"2.0","id":ID,"result":1}"#,
            r#"{"jsonrpc":"2.0","id":ID.0,"result":1}"#,
            r#"[{"jsonrpc":"2.0","method":"notifications/message"},{"jsonrpc":"2.0","id":ID,"result":1}]"#,
            r#"[{"jsonrpc":"2.0","id":ID,"result":1},{"jsonrpc":"2.0","id":"q","method":"ping"}]"#,
            r#"[1,{"jsonrpc":"2.0","id":ID,"result":1}]"#,
        ] {
            assert!(matches!(outcome(good).await, Some(Ok(result)) if result.get() == "1"), "{good}");
        }
        for bad in [
            r#"{"jsonrpc":"2.0","id":"ID","result":1}"#,
            r#"{"jsonrpc":"2.0","id":"ID.0","result":1}"#,
            r#"INFO {"jsonrpc":"2.0","id":ID,"result":1}"#,
            r#"[{"jsonrpc":"2.0","method":"notifications/message"},{"jsonrpc":"2.0","id":"ID.0","result":1}]"#,
        ] {
            assert!(matches!(outcome(bad).await, Some(Err(Refusal::Failed(_)))), "{bad}");
        }
        for other in
            [r#"INFO {"jsonrpc":"2.0","id":1ID,"result":1}"#, "INFO ID", "[]", r#"[{"jsonrpc":"2.0","method":"x"}]"#]
        {
            assert!(outcome(other).await.is_none(), "{other}");
        }
    }

    #[tokio::test]
    async fn of_a_burst_of_progress_the_oldest_and_the_newest_arrive_in_order() {
        let (conversation, _lines) = JsonRpcPeer::of_process("server", &Arc::default());
        let mut exchange = conversation.begin(Purpose::Us, None).unwrap();
        let id = exchange.id;
        let report = |progress: u32| {
            let line = format!(
                r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{id},"progress":{progress}}}}}"#
            );
            conversation.take(line.as_bytes(), Correlation::Any).unwrap();
        };
        let mut heard = Vec::new();
        for burst in [0..3_000, 3_000..3_010] {
            burst.clone().for_each(report);
            if burst.start == 0 {
                // Somebody is slow, and the server goes on.
                (0..10).for_each(|_| heard.extend(exchange.events.try_recv().ok()));
                report(2_999);
            }
            while let Some(event) = exchange.events.try_recv().ok().or_else(|| exchange.newest()) {
                heard.push(event);
            }
        }
        let heard: Vec<f64> = heard
            .into_iter()
            .filter_map(|event| match event {
                Event::Progress { done, .. } => Some(done),
                _ => None,
            })
            .collect();
        let expected = (0..64).chain([2_999]).chain(3_000..3_010).map(f64::from);
        assert_eq!(heard, expected.collect::<Vec<_>>());
    }

    /// Everything that a server may say without being asked.
    #[tokio::test(start_paused = true)]
    async fn what_nobody_has_asked_for_is_read_slowly() {
        let note = |method: &str, params: &str| format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{params}}}"#);
        for line in [
            r#"{"jsonrpc":"2.0","id":"p","method":"ping"}"#.to_owned(),
            r#"{"jsonrpc":"2.0","id":"p","method":"roots/list"}"#.to_owned(),
            note("notifications/tools/list_changed", "{}"),
            note("notifications/prompts/list_changed", "{}"),
            note("notifications/resources/list_changed", "{}"),
            note("notifications/resources/updated", r#"{"uri":"x"}"#),
            note("notifications/message", r#"{"level":"info","data":"x"}"#),
            note("notifications/progress", r#"{"progressToken":1,"progress":1}"#),
            note("notifications/x", "{}"),
        ] {
            let (conversation, messages) = JsonRpcPeer::of_process("server", &Arc::default());
            let (mut out, stdout) = tokio::io::duplex(1 << 16);
            let said = format!("{line}\n").repeat(12_000);
            let talking =
                tokio::spawn(async move { tokio::io::AsyncWriteExt::write_all(&mut out, said.as_bytes()).await });
            let began = Instant::now();
            conversation.run(messages, tokio::io::sink(), stdout).await;
            assert!(talking.await.unwrap().is_ok(), "{line}");
            assert_eq!(began.elapsed().as_secs(), 2, "5,000 a second: {line}");
        }
    }

    #[test]
    fn two_conversations_have_no_ids_in_common() {
        let ids = || {
            let (conversation, _) = JsonRpcPeer::of_process("server", &Arc::default());
            [conversation.id(), conversation.id()]
        };
        let (ours, theirs) = (ids(), ids());
        assert_eq!(ours[1], ours[0] + 1);
        assert!(ours[0].abs_diff(theirs[0]) > 1, "{ours:?} {theirs:?}");
        assert!(ours.iter().chain(&theirs).all(|id| *id <= 1 << 52));
    }
}
