//! A conversation with one process: which of our calls each of its lines belongs to.
//! Never takes an answer to what was not asked, and never lets one call's flood hold up another.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sealwire::RpcError;
use sealwire::rpc::{Body, Id, Limits, Outcome, Request, Response, Responses, code};
use sealwire::service::Turn;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::Pushes;
use super::call::{Event, Events, OpenCall, Question};
use crate::backend::{GIVEN_UP, answers, is_reserved};
use crate::talk;

/// One process, as long as it runs.
#[derive(Debug)]
pub(super) struct Session {
    name: String,
    timeout: Duration,
    pub(super) send_caller: bool,
    pushes: Arc<Pushes>,
    out: mpsc::Sender<Vec<u8>>,
    calls: Mutex<Calls>,
    next: AtomicU64,
}

#[derive(Debug, Default)]
struct Calls {
    /// By the id that the process knows. What nobody waits for any more stays for as long as a call may take: the process may work on
    /// it, and its answer may come yet. Its place goes before that, so that there are as many at most as places turn over meanwhile.
    open: HashMap<Id, Pending>,
    /// The process is gone.
    over: bool,
}

#[derive(Debug)]
struct Pending {
    since: Instant,
    call: Option<OpenCall>,
    state: State,
    /// Its place among the calls of the backend, unless it is a question of ours.
    turn: Option<Arc<Turn>>,
    cancelled: Option<Instant>,
}

/// Whether an answer is owed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Owed,
    /// Given up before its time: the process was told, and need not answer any more.
    Cancelled,
    /// A sign of life is owed.
    Probe,
}

/// What a process is asked that owes no answer and says nothing: JSON-RPC 2.0 §5 has it answer what it does not know, too.
const PROBE: &str = "rpc.ping";

/// Whose a line is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Of {
    /// The call's that it names: calls are worked on.
    Call,
    /// It names none.
    Nobody,
}

/// What a process says of a call that runs.
#[derive(Deserialize)]
struct Named<'a> {
    id: Option<u64>,
    #[serde(borrow)]
    result: Option<&'a RawValue>,
}

impl Session {
    pub(super) fn new(
        name: &str,
        timeout: Duration,
        send_caller: bool,
        pushes: Arc<Pushes>,
    ) -> (Arc<Self>, mpsc::Receiver<Vec<u8>>) {
        let (out, commands) = mpsc::channel(talk::WRITES);
        let (name, calls, next) = (name.to_owned(), Mutex::default(), AtomicU64::new(1));
        (Arc::new(Self { name, timeout, send_caller, pushes, out, calls, next }), commands)
    }

    /// How many calls are under way.
    pub(super) fn open(&self) -> usize {
        self.calls().open.len()
    }

    fn calls(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new call: its id, and where its answer and what comes before it arrive.
    pub(super) fn begin(&self, turn: Arc<Turn>) -> Option<(Id, Events, oneshot::Receiver<Outcome>)> {
        let (call, events, outcome) = OpenCall::new();
        let id = self.id();
        let mut calls = self.calls();
        if calls.over {
            return None;
        }
        let pending =
            Pending { since: Instant::now(), call: Some(call), state: State::Owed, turn: Some(turn), cancelled: None };
        calls.open.insert(id.clone(), pending);
        Some((id, events, outcome))
    }

    fn id(&self) -> Id {
        Id::from(self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// Nobody waits for this call any more; whether the process is to be told: it has it, and has not answered. One that was waited for
    /// as long as may be stays owed until it was there for as long, which is later where it has waited for its turn.
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

    /// Has a line written when the process has read what is ahead of it.
    pub(super) async fn write(&self, line: Vec<u8>) {
        // Where it cannot be, the process is gone, and so is whoever waits for an answer.
        drop(self.out.send(line).await);
    }

    /// The same, if there is room at once.
    pub(super) fn offer(&self, line: Vec<u8>) {
        drop(self.out.try_send(line));
    }

    /// Talks until the process ends or must be ended; why.
    pub(super) async fn run(
        &self,
        commands: mpsc::Receiver<Vec<u8>>,
        stdin: impl AsyncWrite + Unpin,
        stdout: impl AsyncRead + Unpin,
    ) -> String {
        // Also when this is dropped, since then the process has ended.
        let _over = Over(self);
        let heard = Mutex::new(Instant::now());
        let take = |line: &[u8]| {
            self.take(line).map(|of| {
                // What only goes on pushing may have stopped to work.
                if of == Of::Call {
                    *heard.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
                }
            })
        };
        let watch = async {
            let mut look = tokio::time::interval((self.timeout / 8).clamp(LOOK.0, LOOK.1));
            loop {
                look.tick().await;
                let heard = *heard.lock().unwrap_or_else(PoisonError::into_inner);
                if self.hangs(heard) {
                    return format!("calls have waited for {} s, and none was answered", self.timeout.as_secs());
                }
            }
        };
        tokio::select! {
            reason = talk::write(commands, stdin) => reason,
            reason = talk::read(&self.name, stdout, take) => reason,
            reason = watch => reason,
        }
    }

    /// Whether a call that was not cancelled has waited too long, with nothing heard meanwhile. A cancelled one may stay unanswered; of
    /// a process that says nothing after one of those, a sign of life is wanted. Forgets what nobody waits for and is as old.
    fn hangs(&self, heard: Instant) -> bool {
        let mut calls = self.calls();
        let late = |pending: &Pending| pending.since.elapsed() > self.timeout;
        let silent = |pending: &&Pending| late(pending) && pending.since > heard;
        let hangs = calls.open.values().filter(silent).any(|pending| pending.state != State::Cancelled);
        let is_doubtful = calls.open.values().any(|pending| silent(&pending));
        calls.open.retain(|id, pending| {
            if pending.cancelled.is_some_and(|since| since.elapsed() > GIVEN_UP) {
                pending.turn = None;
            }
            let stays = pending.call.is_some() || !late(pending);
            if !stays && pending.state == State::Owed {
                self.offer(cancel(id));
            }
            stays
        });
        if is_doubtful && !calls.open.values().any(|pending| pending.state == State::Probe) {
            let id = self.id();
            // One that reads nothing cannot even be asked.
            self.offer(format!(r#"{{"jsonrpc":"2.0","method":"{PROBE}","id":{}}}"#, id.as_json()).into_bytes());
            calls.open.insert(
                id,
                Pending { since: Instant::now(), call: None, state: State::Probe, turn: None, cancelled: None },
            );
        }
        hangs
    }

    /// One line of the process; what is wrong with it, if it was of no use.
    fn take(&self, line: &[u8]) -> Result<Of, &'static str> {
        let limits = Limits::default();
        let answered = |response: Response| self.answered(&response.id, response.outcome.map_err(of_program));
        match Responses::parse(line, &limits) {
            Ok(Responses::Single(response)) => return answered(response),
            Ok(Responses::Batch(responses)) => {
                return responses.into_iter().try_fold(Of::Call, |_, response| answered(response));
            }
            Err(error) => {
                if let Some(id) = answers(line) {
                    return self.answered(&Id::from(id), Err(RpcError::dependency(error)));
                }
            }
        }
        match Body::parse(line, &limits) {
            Ok(Body::Single(Ok(request))) => self.told(request),
            Ok(_) => Err("neither a response nor a request of JSON-RPC 2.0"),
            Err(_) => Err("no JSON"),
        }
    }

    fn answered(&self, id: &Id, outcome: Outcome) -> Result<Of, &'static str> {
        let pending = self.calls().open.remove(id).ok_or("an answer to what was not asked")?;
        if let Some(call) = pending.call {
            call.end(outcome);
        }
        // Who answers that may have stopped to work on calls.
        Ok(if pending.state == State::Probe { Of::Nobody } else { Of::Call })
    }

    /// A notification, or a question to the caller.
    fn told(&self, request: Request) -> Result<Of, &'static str> {
        let text = request.params.as_ref().map_or("{}", |params| params.raw().get());
        if request.id.is_none()
            && let Some(topic) = self.pushes.get(&request.method)
        {
            let params = RawValue::from_string(text.to_owned()).map_err(|_| "no JSON")?;
            return topic.publish(&params).map(|()| Of::Nobody).map_err(|_| "what is pushed has 64 KiB at most");
        }
        let named = serde_json::from_str::<Named<'_>>(text).ok();
        let event = match (request.method.as_str(), request.id.clone()) {
            ("rpc.part", None) => {
                let result = named.as_ref().and_then(|named| named.result).ok_or("a part without `result`")?;
                Event::Part(result.to_owned())
            }
            ("rpc.progress", None) => Event::progress(text).ok_or("progress without a number `progress`")?,
            // A question is refused where it is dropped.
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
        // What does not say whose it is may come from a thread that works on nothing: no sign of life.
        let (id, of) = match named.and_then(|named| named.id) {
            Some(id) => (Some(Id::from(id)), Of::Call),
            None => (only(&calls.open), Of::Nobody),
        };
        let pending = id.and_then(|id| Some((id.clone(), calls.open.get_mut(&id)?)));
        let (id, pending) = pending.ok_or("it belongs to no call")?;
        let taken = pending.call.as_ref().is_none_or(|call| call.offer(event));
        if !taken && let Some(call) = pending.call.take() {
            // It costs this call alone.
            call.end(Err(RpcError::internal("the caller takes what is sent too slowly")));
            self.offer(cancel(&id));
        }
        Ok(of)
    }
}

/// How often a process is looked at that may hang: at least and at most.
const LOOK: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// What a question gets that cannot be asked.
pub(super) const NOT_ASKED: i32 = 1;

/// An error of a program, which cannot speak for what the service says of backends and arguments itself.
fn of_program(error: RpcError) -> RpcError {
    // What the library would make of it has the program's words in full.
    match error.code() {
        code::INVALID_PARAMS | code::INTERNAL_ERROR => error,
        -32768..=-32000 => RpcError::internal(error),
        _ => error,
    }
}

/// What tells a process that nobody waits for this call any more.
pub(super) fn cancel(id: &Id) -> Vec<u8> {
    format!(r#"{{"jsonrpc":"2.0","method":"rpc.cancel","params":{{"id":{}}}}}"#, id.as_json()).into_bytes()
}

/// The call under way, if it is the only one. One that was given up counts: it may be worked on still, and what is said of it is
/// nobody else's.
fn only(open: &HashMap<Id, Pending>) -> Option<Id> {
    let mut all = open.iter().filter(|(_, pending)| pending.state != State::Probe);
    let first = all.next().filter(|(_, pending)| pending.call.is_some())?;
    all.next().is_none().then(|| first.0.clone())
}

/// When a process has ended, so have its calls.
struct Over<'a>(&'a Session);

impl Drop for Over<'_> {
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

    #[test]
    fn nothing_of_a_program_has_a_reserved_name() {
        let (session, mut out) = Session::new("program", LOOK.1, false, Arc::default());
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
