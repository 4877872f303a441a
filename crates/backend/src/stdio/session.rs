//! The conversation with one process: matches each of its lines to one of our calls.
//! Never accepts an answer to something that was not asked, and never lets one call's flood hold up another for long.

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sealwire::internal::rpc::{Body, Id, Limits, Outcome, Request, Response, Responses};
use sealwire::internal::service::FairPermit;
use sealwire::{RpcError, Topic};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::Instant;

use super::event::{Event, Events, OpenCall, Question};
use crate::backend::{Call, GIVEN_UP, is_reserved};
use crate::form::{self, NO_ID, STILL_TO_COME, TEXT_AHEAD, TEXT_ID, malformed, unusable};
use crate::mcp::Questions;
use crate::talk::{self, MessageKind};

/// Where to publish a program's notifications that belong to no call, by the program's name for them.
pub(crate) type Pushes = BTreeMap<String, Topic<Box<RawValue>>>;

/// One process, for as long as it runs.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) name: String,
    timeout: Duration,
    pub(super) send_caller: bool,
    pub(super) questions: Questions,
    pushes: Arc<Pushes>,
    out: mpsc::Sender<Vec<u8>>,
    calls: Mutex<Calls>,
    next: AtomicU64,
    /// When something was last heard about a call, or the process was read no further because of us.
    heard: Mutex<Instant>,
    /// Notified when a caller has taken something.
    room: Arc<Notify>,
    /// A caller may have no room.
    is_crowded: AtomicBool,
}

#[derive(Debug, Default)]
struct Calls {
    /// By the id that the process knows. A call that nobody waits for stays here for as long as a call may take: the process may still work
    /// on it and answer. It gives up its place earlier, so only as many of these can gather as calls pass through the places meanwhile.
    open: HashMap<Id, PendingCall>,
    /// The process is gone.
    over: bool,
}

#[derive(Debug)]
struct PendingCall {
    since: Instant,
    call: Option<OpenCall>,
    state: State,
    /// Its place among the calls of the backend; `None` for a probe of our own.
    permit: Option<Arc<FairPermit>>,
    cancelled: Option<Instant>,
    /// When a line has shown what may have been its answer.
    doubted: Option<Instant>,
}

/// What the process owes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Owed,
    /// Nothing: the call was given up before its deadline, and the process was told.
    Cancelled,
    /// A sign of life: the answer to a probe.
    Probe,
}

/// The method of a probe, for a silent process that owes no answer. JSON-RPC 2.0 §5 makes it answer even an unknown method.
const PROBE: &str = "rpc.ping";

/// To whom a line belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Correlation {
    /// The call that it names: the process works on calls.
    Call,
    /// It names none.
    Nobody,
}

/// What we read in the params of a notification or question.
#[derive(Deserialize)]
struct MessageParams<'a> {
    id: Option<u64>,
    #[serde(borrow)]
    result: Option<&'a RawValue>,
}

impl Session {
    pub(crate) fn new(
        name: &str,
        timeout: Duration,
        send_caller: bool,
        questions: Questions,
        pushes: Arc<Pushes>,
    ) -> (Arc<Self>, mpsc::Receiver<Vec<u8>>) {
        let (out, commands) = mpsc::channel(talk::WRITES);
        let (name, calls, next) = (name.to_owned(), Mutex::default(), AtomicU64::new(1));
        let (heard, room, is_crowded) = (Mutex::new(Instant::now()), Arc::default(), AtomicBool::new(false));
        let session = Self { name, timeout, send_caller, questions, pushes, out, calls, next, heard, room, is_crowded };
        (Arc::new(session), commands)
    }

    /// How many calls are under way.
    pub(super) fn open(&self) -> usize {
        self.calls().open.len()
    }

    fn calls(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a call: its id, its events and its outcome; `None` if the process is gone.
    pub(super) fn begin(&self, call: &Call) -> Option<(Id, Events, oneshot::Receiver<Outcome>)> {
        let permit = Arc::clone(&call.permit);
        let (call, events, outcome) = OpenCall::new(call.ctx.takes_frames(), &self.room);
        let id = self.id();
        let mut calls = self.calls();
        if calls.over {
            return None;
        }
        let pending = PendingCall {
            since: Instant::now(),
            call: Some(call),
            state: State::Owed,
            permit: Some(permit),
            cancelled: None,
            doubted: None,
        };
        calls.open.insert(id.clone(), pending);
        Some((id, events, outcome))
    }

    fn id(&self) -> Id {
        Id::from(self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// Marks a call as given up. Returns whether to tell the process: it has the call, has not answered, and the deadline has not passed.
    /// After the deadline, an answer is still owed until the process has had the call for the whole timeout, which is later if the call
    /// waited for its turn.
    pub(super) fn abandon(&self, id: &Id, is_sent: bool, is_late: bool) -> bool {
        let mut calls = self.calls();
        if !is_sent {
            calls.open.remove(id);
            return false;
        }
        let Some(pending) = calls.open.get_mut(id) else { return false };
        pending.call = None;
        if !is_late {
            (pending.state, pending.cancelled) = (State::Cancelled, Some(Instant::now()));
        }
        !is_late
    }

    /// Queues a line, to be written once the process has read what is ahead of it.
    pub(super) async fn write(&self, line: Vec<u8>) {
        // If that fails, the process is gone, and its calls end with it.
        drop(self.out.send(line).await);
    }

    /// The same, but drops the line if there is no room at once.
    pub(super) fn offer(&self, line: Vec<u8>) {
        drop(self.out.try_send(line));
    }

    /// Runs the conversation until the process ends or must be ended; returns why.
    pub(super) async fn run(
        &self,
        commands: mpsc::Receiver<Vec<u8>>,
        stdin: impl AsyncWrite + Unpin,
        stdout: impl AsyncRead + Unpin,
    ) -> String {
        let talking = async {
            tokio::select! {
                reason = talk::write(commands, stdin) => reason,
                reason = talk::read(&self.name, stdout, |line| self.hear(line), || self.room()) => reason,
            }
        };
        self.during(talking).await
    }

    /// Runs a conversation until it ends or the process hangs; returns why.
    pub(crate) async fn during(&self, talking: impl Future<Output = String>) -> String {
        // Also when this future is dropped, since the process has ended then.
        let _over = CloseGuard(self);
        self.alive();
        let watch = async {
            let mut look = tokio::time::interval((self.timeout / 8).clamp(LOOK.0, LOOK.1));
            loop {
                look.tick().await;
                self.end_doubted();
                let heard = *self.heard.lock().unwrap_or_else(PoisonError::into_inner);
                if self.hangs(heard) {
                    return format!("calls have waited for {} s, and none was answered", self.timeout.as_secs());
                }
            }
        };
        tokio::select! {
            reason = talking => reason,
            reason = watch => reason,
        }
    }

    /// Takes one message of the process; an error says why it is useless.
    pub(crate) fn hear(&self, message: &[u8]) -> Result<MessageKind, &'static str> {
        let (of, said) = self.take(message)?;
        // A process that only goes on pushing may have stopped working on calls.
        if of == Correlation::Call {
            self.alive();
        }
        Ok(said)
    }

    fn alive(&self) {
        *self.heard.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Completes when the callers have room for what the process says next. While one has none, the process is not read: then it has to
    /// wait, and we keep nothing. That may hold up others; see [`HELD_UP`].
    pub(crate) async fn room(&self) {
        while self.is_crowded.load(Ordering::Relaxed) {
            let taken = self.room.notified();
            let full = |(id, pending): (&Id, &PendingCall)| {
                pending.call.as_ref().is_some_and(|call| !call.has_room()).then(|| id.clone())
            };
            let Some(full) = self.calls().open.iter().find_map(full) else {
                self.is_crowded.store(false, Ordering::Relaxed);
                return;
            };
            let began = Instant::now();
            // Others may come meanwhile.
            drop(tokio::time::timeout(LOOK.0, taken).await);
            self.alive();
            self.held_up(&full, began.elapsed());
        }
    }

    /// Whether the process is not read because of a caller.
    pub(crate) fn is_held_up(&self) -> bool {
        self.is_crowded.load(Ordering::Relaxed)
    }

    /// Counts for how long a caller has held up others: it costs only this one its call.
    fn held_up(&self, id: &Id, long: Duration) {
        let mut calls = self.calls();
        let waiting = calls.open.values().filter(|pending| pending.call.is_some()).count();
        let Some(pending) = calls.open.get_mut(id).filter(|_| waiting > 1 || !self.pushes.is_empty()) else { return };
        let too_long = pending.call.as_mut().is_some_and(|call| call.holds_up(long) > HELD_UP);
        if too_long && let Some(call) = pending.call.take() {
            call.end(Err(RpcError::internal("the caller takes what is sent too slowly")));
            self.offer(cancel(id));
        }
    }

    /// Whether a call that was not cancelled has waited too long with nothing heard since. A cancelled call may stay unanswered; if the
    /// process stays silent after one, it is asked for a sign of life. Forgets calls of that age that nobody waits for.
    fn hangs(&self, heard: Instant) -> bool {
        let mut calls = self.calls();
        let late = |pending: &PendingCall| pending.since.elapsed() > self.timeout;
        let silent = |pending: &&PendingCall| late(pending) && pending.since > heard;
        let hangs = calls.open.values().filter(silent).any(|pending| pending.state != State::Cancelled);
        let is_doubtful = calls.open.values().any(|pending| silent(&pending));
        calls.open.retain(|id, pending| {
            if pending.cancelled.is_some_and(|since| since.elapsed() > GIVEN_UP) {
                pending.permit = None;
            }
            let stays = pending.call.is_some() || !late(pending);
            if !stays && pending.state == State::Owed {
                self.offer(cancel(id));
            }
            stays
        });
        if is_doubtful && !calls.open.values().any(|pending| pending.state == State::Probe) {
            let id = self.id();
            // A process that reads nothing cannot even be asked.
            self.offer(format!(r#"{{"jsonrpc":"2.0","method":"{PROBE}","id":{}}}"#, id.as_json()).into_bytes());
            calls.open.insert(
                id,
                PendingCall {
                    since: Instant::now(),
                    call: None,
                    state: State::Probe,
                    permit: None,
                    cancelled: None,
                    doubted: None,
                },
            );
        }
        hangs
    }

    fn take(&self, message: &[u8]) -> Result<(Correlation, MessageKind), &'static str> {
        let limits = Limits::default();
        let answered = |response: Response| self.response(response).map(|of| (of, MessageKind::Asked));
        match Responses::parse(message, &limits) {
            Ok(Responses::Single(response)) => return answered(response),
            Ok(Responses::Batch(responses)) => {
                // Each on its own: one that nobody has asked for takes nothing from the others.
                let all = responses.into_iter().map(answered);
                return all.fold(Err("an answer to what was not asked"), Result::or);
            }
            Err(error) => {
                if let Some(meant) = malformed(message, &error) {
                    let only = only(&self.calls().open);
                    let named = meant.id.map(Id::from);
                    if meant.is_doubtful && named != only {
                        return Err(
                            "it has an id, and nothing else of an answer, while not exactly that call is in progress",
                        );
                    }
                    let id = named.or(only);
                    let id = id.ok_or("an answer without an id, while not exactly one call is in progress")?;
                    let cause = format!("its answer cannot be used: {} ({error})", meant.why);
                    return self.answered(&id, Err(unusable(meant.why, cause))).map(|of| (of, MessageKind::Asked));
                }
            }
        }
        match Body::parse(message, &limits) {
            Ok(Body::Single(Ok(request))) => self.told(request),
            Ok(_) => Err("neither a response nor a request of JSON-RPC 2.0"),
            Err(_) => {
                self.doubt_about(message);
                Err("no JSON")
            }
        }
    }

    /// Notes that a line may have been the answer to the one call in progress, with text ahead of it. If the answer does not come, that was
    /// all.
    fn doubt_about(&self, line: &[u8]) {
        let mut calls = self.calls();
        let id = form::behind_text(line).map(Id::from).filter(|id| only(&calls.open).as_ref() == Some(id));
        if let Some(pending) = id.and_then(|id| calls.open.get_mut(&id)) {
            pending.doubted.get_or_insert_with(Instant::now);
        }
    }

    /// Ends calls whose answers have come in a line that is none.
    fn end_doubted(&self) {
        let is_over = |pending: &PendingCall| pending.doubted.is_some_and(|since| since.elapsed() >= STILL_TO_COME);
        let doubted: Vec<Id> =
            self.calls().open.iter().filter(|(_, pending)| is_over(pending)).map(|(id, _)| id.clone()).collect();
        for id in doubted {
            // It may have been answered just now.
            let _ = self.answered(&id, Err(unusable(TEXT_AHEAD, TEXT_AHEAD)));
        }
    }

    /// Takes a well-formed response.
    fn response(&self, response: Response) -> Result<Correlation, &'static str> {
        let Response { id, outcome, .. } = response;
        if id.is_null() {
            // JSON-RPC 2.0 §5: that of a request whose id could not be read. It means the one that is in progress, if there is only one.
            let only = only(&self.calls().open);
            let only = only.ok_or("an answer whose id is null, while not exactly one call is in progress")?;
            let outcome = match outcome {
                Ok(_) => Err(unusable(NO_ID, NO_ID)),
                Err(error) => Err(error),
            };
            return self.answered(&only, outcome);
        }
        match form::number_in(&id) {
            Some(meant) => self.answered(&Id::from(meant), Err(unusable(TEXT_ID, TEXT_ID))),
            None => self.answered(&id, outcome),
        }
    }

    fn answered(&self, id: &Id, outcome: Outcome) -> Result<Correlation, &'static str> {
        let pending = self.calls().open.remove(id).ok_or("an answer to what was not asked")?;
        if let Some(call) = pending.call {
            call.end(outcome);
        }
        // A process that answers probes may have stopped working on calls.
        Ok(if pending.state == State::Probe { Correlation::Nobody } else { Correlation::Call })
    }

    /// Takes a notification, or a question to the caller.
    fn told(&self, request: Request) -> Result<(Correlation, MessageKind), &'static str> {
        let text = request.params.as_ref().map_or("{}", |params| params.raw().get());
        if request.id.is_none()
            && let Some(topic) = self.pushes.get(&request.method)
        {
            let params = RawValue::from_string(text.to_owned()).map_err(|_| "no JSON")?;
            return topic
                .publish(&params)
                .map(|()| (Correlation::Nobody, MessageKind::Unasked))
                .map_err(|_| "what is pushed has 64 KiB at most");
        }
        let named = serde_json::from_str::<MessageParams<'_>>(text).ok();
        let is_part = request.method == "rpc.part";
        let event = match (request.method.as_str(), request.id.clone()) {
            ("rpc.part", None) => {
                let result = named.as_ref().and_then(|named| named.result).ok_or("a part without `result`")?;
                Event::Part(result.to_owned())
            }
            ("rpc.progress", None) => Event::progress(text).ok_or("progress without a number `progress`")?,
            // Dropping a question refuses it.
            (name, id) if is_reserved(name) => {
                drop(id.map(|id| Question::new(id, self.out.clone())));
                return Err("its name is reserved");
            }
            (_, None) => Event::note(&request.method, text),
            (_, Some(id)) => {
                let question = Question::new(id, self.out.clone());
                Event::Ask { question, method: request.method, params: text.to_owned() }
            }
        };
        let mut calls = self.calls();
        // A line that names no call may come from a thread that works on none: no sign of life.
        let (id, of) = match named.and_then(|named| named.id) {
            Some(id) => (Some(Id::from(id)), Correlation::Call),
            None => (only(&calls.open), Correlation::Nobody),
        };
        let pending = id.and_then(|id| Some((id.clone(), calls.open.get_mut(&id)?)));
        let (_, pending) = pending.ok_or("it belongs to no call")?;
        let takes = pending.call.as_ref().is_some_and(|call| {
            call.offer(event);
            if !call.has_room() {
                // Before anything more is read, `room` waits.
                self.is_crowded.store(true, Ordering::Relaxed);
            }
            call.takes_frames()
        });
        Ok((of, if is_part && takes { MessageKind::Asked } else { MessageKind::Unasked }))
    }
}

/// How long a slow caller may hold up other calls, and subscribers, of its process: half a second, as the next frame may be on its way, and
/// then a tenth of the time.
const HELD_UP: Duration = Duration::from_millis(500);
/// How often to check whether the process hangs: the shortest and the longest interval.
const LOOK: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// Tells a process that nobody waits for this call any more.
pub(crate) fn cancel(id: &Id) -> Vec<u8> {
    format!(r#"{{"jsonrpc":"2.0","method":"rpc.cancel","params":{{"id":{}}}}}"#, id.as_json()).into_bytes()
}

/// The open call, if it is the only one. A call that was given up counts: the process may still work on it, and what it says about it
/// belongs to nobody else.
fn only(open: &HashMap<Id, PendingCall>) -> Option<Id> {
    let mut all = open.iter().filter(|(_, pending)| pending.state != State::Probe);
    let first = all.next().filter(|(_, pending)| pending.call.is_some())?;
    all.next().is_none().then(|| first.0.clone())
}

/// When a process has ended, so have its calls.
struct CloseGuard<'a>(&'a Session);

impl Drop for CloseGuard<'_> {
    fn drop(&mut self) {
        let open = {
            let mut calls = self.0.calls();
            calls.over = true;
            std::mem::take(&mut calls.open)
        };
        for call in open.into_values().filter_map(|pending| pending.call) {
            call.end(Err(RpcError::dependency("the process has ended while the call was under way")));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_answer_with_text_ahead_is_over_unless_it_comes_once_more() {
        let (session, _out) = Session::new("program", LOOK.1, false, Questions::new(&[]), Arc::default());
        let open = |id: u64| {
            let (call, events, outcome) = OpenCall::new(false, &session.room);
            let pending = PendingCall {
                since: Instant::now(),
                call: Some(call),
                state: State::Owed,
                permit: None,
                cancelled: None,
                doubted: None,
            };
            session.calls().open.insert(Id::from(id), pending);
            (events, outcome)
        };
        let (_events, mut first) = open(7);
        assert_eq!(session.take(br#"sends {"jsonrpc":"2.0","id":8,"result":1}"#).err(), Some("no JSON"));
        assert_eq!(session.take(br#"sends {"jsonrpc":"2.0","id":7,"result":1}"#).err(), Some("no JSON"));
        session.end_doubted();
        assert!(first.try_recv().is_err(), "it may be a log");
        tokio::time::advance(STILL_TO_COME).await;
        session.end_doubted();
        assert!(first.try_recv().is_ok_and(|outcome| outcome.is_err()));
        // Of two calls, it may be about either.
        let ((_events, mut one), (_others, _two)) = (open(1), open(2));
        assert!(session.take(br#"sends {"jsonrpc":"2.0","id":1,"result":1}"#).is_err());
        tokio::time::advance(STILL_TO_COME).await;
        session.end_doubted();
        assert!(one.try_recv().is_err());
    }

    #[test]
    fn nothing_of_a_program_has_a_reserved_name() {
        let (session, mut out) = Session::new("program", LOOK.1, false, Questions::new(&[]), Arc::default());
        let said = |name: &str, id: &str| {
            session.take(format!(r#"{{"jsonrpc":"2.0","method":"{name}","params":{{"id":1}}{id}}}"#).as_bytes())
        };
        for name in ["rpc.attachment", "rpc.closing", "rpc", "rpc/x"] {
            assert_eq!(said(name, ""), Err("its name is reserved"));
            assert!(out.try_recv().is_err());
            assert_eq!(said(name, r#","id":"q""#), Err("its name is reserved"));
            let answer = out.try_recv().map(|answer| String::from_utf8_lossy(&answer).into_owned());
            assert!(answer.is_ok_and(|answer| answer.contains(r#""id":"q""#) && answer.contains(r#""code":1"#)));
        }
        assert_eq!(said("rpcs", ""), Err("it belongs to no call"));
    }
}
