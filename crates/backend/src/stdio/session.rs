//! The conversation with one process: matches each of its lines to one of our calls.
//! Never accepts an answer to something that was not asked, and never lets one call's flood hold up another.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sealwire::RpcError;
use sealwire::rpc::{Body, Id, Limits, Outcome, Request, Response, Responses, code};
use sealwire::service::FairPermit;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::Pushes;
use super::call::{Event, Events, OpenCall, Question};
use crate::backend::{GIVEN_UP, answers, is_reserved};
use crate::talk;

/// One process, for as long as it runs.
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
    /// By the id that the process knows. A call that nobody waits for stays here for as long as a call may take: the process may still work
    /// on it and answer. It gives up its place earlier, so only as many of these can gather as calls pass through the places meanwhile.
    open: HashMap<Id, Pending>,
    /// The process is gone.
    over: bool,
}

#[derive(Debug)]
struct Pending {
    since: Instant,
    call: Option<OpenCall>,
    state: State,
    /// Its place among the calls of the backend; `None` for a probe of our own.
    permit: Option<Arc<FairPermit>>,
    cancelled: Option<Instant>,
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
enum Of {
    /// The call that it names: the process works on calls.
    Call,
    /// It names none.
    Nobody,
}

/// What we read in the params of a notification or question.
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

    /// Opens a call: its id, its events and its outcome; `None` if the process is gone.
    pub(super) fn begin(&self, permit: Arc<FairPermit>) -> Option<(Id, Events, oneshot::Receiver<Outcome>)> {
        let (call, events, outcome) = OpenCall::new();
        let id = self.id();
        let mut calls = self.calls();
        if calls.over {
            return None;
        }
        let pending = Pending {
            since: Instant::now(),
            call: Some(call),
            state: State::Owed,
            permit: Some(permit),
            cancelled: None,
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
        // Also when this future is dropped, since the process has ended then.
        let _over = Over(self);
        let heard = Mutex::new(Instant::now());
        let take = |line: &[u8]| {
            self.take(line).map(|of| {
                // A process that only goes on pushing may have stopped working on calls.
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

    /// Whether a call that was not cancelled has waited too long with nothing heard since. A cancelled call may stay unanswered; if the
    /// process stays silent after one, it is asked for a sign of life. Forgets calls of that age that nobody waits for.
    fn hangs(&self, heard: Instant) -> bool {
        let mut calls = self.calls();
        let late = |pending: &Pending| pending.since.elapsed() > self.timeout;
        let silent = |pending: &&Pending| late(pending) && pending.since > heard;
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
                Pending { since: Instant::now(), call: None, state: State::Probe, permit: None, cancelled: None },
            );
        }
        hangs
    }

    /// Takes one line of the process; an error says why the line is useless.
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
        // A process that answers probes may have stopped working on calls.
        Ok(if pending.state == State::Probe { Of::Nobody } else { Of::Call })
    }

    /// Takes a notification, or a question to the caller.
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
            Some(id) => (Some(Id::from(id)), Of::Call),
            None => (only(&calls.open), Of::Nobody),
        };
        let pending = id.and_then(|id| Some((id.clone(), calls.open.get_mut(&id)?)));
        let (id, pending) = pending.ok_or("it belongs to no call")?;
        let taken = pending.call.as_ref().is_none_or(|call| call.offer(event));
        if !taken && let Some(call) = pending.call.take() {
            // This costs only this call.
            call.end(Err(RpcError::internal("the caller takes what is sent too slowly")));
            self.offer(cancel(&id));
        }
        Ok(of)
    }
}

/// How often to check whether the process hangs: the shortest and the longest interval.
const LOOK: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// The error code of a question that cannot be asked.
pub(super) const NOT_ASKED: i32 = 1;

/// Maps a program's error, so that it cannot pass for the service's own checks of backends and arguments.
fn of_program(error: RpcError) -> RpcError {
    // Left to the library, the private cause would hold the program's words in full.
    match error.code() {
        code::INVALID_PARAMS | code::INTERNAL_ERROR => error,
        -32768..=-32000 => RpcError::internal(error),
        _ => error,
    }
}

/// Tells a process that nobody waits for this call any more.
pub(super) fn cancel(id: &Id) -> Vec<u8> {
    format!(r#"{{"jsonrpc":"2.0","method":"rpc.cancel","params":{{"id":{}}}}}"#, id.as_json()).into_bytes()
}

/// The open call, if it is the only one. A call that was given up counts: the process may still work on it, and what it says about it
/// belongs to nobody else.
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
