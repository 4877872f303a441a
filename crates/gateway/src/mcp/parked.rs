//! Calls that wait for their client to come back with answers (MCP 2026-07-28, multi round-trip requests).
//! Never lets one client resume, see or end the call of another.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use sealwire_mcp::{ClientCapabilities, RequestParams, members, raw};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use super::message::Fault;
use super::ongoing::OngoingCall;
use super::open_questions::OPEN_FOR;
use super::peer::Peer;
use super::questions::Question;
use crate::caller::Caller;
use crate::seal::{Kind, Seal};

/// How many calls of one client may wait for answers.
const PARKED: usize = 16;

/// The calls that wait for their clients.
pub(crate) struct ParkedCalls {
    seal: Option<Arc<Seal>>,
    /// When it began, in nanoseconds since the Unix epoch. Makes its names differ from those of another process.
    started_ns: u128,
    calls: Mutex<Calls>,
}

#[derive(Default)]
struct Calls {
    /// How many there have been.
    count: u64,
    by_name: BTreeMap<String, ParkedCall>,
}

/// A call waiting for its client to come back with answers.
struct ParkedCall {
    /// The client that it belongs to.
    peer: Arc<str>,
    caller: Arc<dyn Caller>,
    ongoing: OngoingCall,
    questions: Vec<Question>,
    since: Instant,
}

/// The `requestState` that a client keeps for a waiting call; sealed if other clients could present it.
#[derive(Serialize, Deserialize)]
struct RequestState {
    /// The replica where it waits.
    #[serde(default)]
    at: String,
    call: String,
    /// The digest of the request: no other can resume the call.
    digest: String,
}

/// What a request that resumes a call leads to.
pub(super) enum Resumption {
    /// The call goes on.
    GoesOn(Box<OngoingCall>),
    /// The client has left questions open: the result asks them again.
    Asks(Box<RawValue>),
}

/// The digest of what a request asks for: only a request for the same can resume its call.
pub(super) fn digest(parts: [&str; 3]) -> String {
    let mut digest = Sha256::new();
    for part in parts {
        digest.update((part.len() as u64).to_be_bytes());
        digest.update(part);
    }
    digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Calls {
    fn forget_old(&mut self) {
        self.by_name.retain(|_, parked| parked.since.elapsed() < OPEN_FOR);
    }
}

impl ParkedCalls {
    pub(super) fn new(seal: Option<Arc<Seal>>) -> Self {
        let started_ns = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
        Self { seal, started_ns, calls: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lock().by_name.is_empty()
    }

    /// Cancels calls that nobody resumed in time, or whose caller may no longer do so.
    pub(super) fn tidy(&self) {
        let mut calls = self.lock();
        calls.forget_old();
        calls.by_name.retain(|_, parked| parked.caller.loss(None).is_none());
    }

    /// Cancels all.
    pub(super) fn clear(&self) {
        self.lock().by_name.clear();
    }

    /// Keeps a call until its client comes back with answers; returns the result that asks for them.
    pub(super) fn park(
        &self,
        peer: &Peer,
        ongoing: OngoingCall,
        questions: Vec<Question>,
    ) -> Result<Box<RawValue>, Fault> {
        let digest = ongoing.digest.clone();
        let asked: Map<String, Value> = questions
            .iter()
            .map(|question| (question.key.clone(), json!({ "method": question.method, "params": question.params })))
            .collect();
        let token;
        {
            let mut calls = self.lock();
            calls.forget_old();
            if calls.by_name.values().filter(|parked| parked.peer == peer.name).count() >= PARKED {
                // The call ran until it asked.
                let message = format!("{PARKED} calls wait for answers: answer those first; this one was cancelled");
                return Err(Fault::internal(message).with(json!({ "outcome": "unknown" })));
            }
            calls.count += 1;
            // Unique to this process, since no other knows the call.
            token = format!("{:x}-{}", self.started_ns, calls.count);
            let (name, caller) = (Arc::clone(&peer.name), Arc::clone(&peer.caller));
            let parked = ParkedCall { peer: name, caller, ongoing, questions, since: Instant::now() };
            calls.by_name.insert(token.clone(), parked);
        }
        let state = match &self.seal {
            None => token,
            Some(seal) => {
                let state = RequestState { at: seal.place().to_owned(), call: token.clone(), digest };
                let sealed = seal.seal(Kind::McpRequestState, &peer.name, OPEN_FOR, state, SystemTime::now());
                sealed.map_err(|_| {
                    // Nobody could resume it.
                    drop(self.lock().by_name.remove(&token));
                    Fault::internal("the gateway cannot seal `requestState`").with(json!({ "outcome": "unknown" }))
                })?
            }
        };
        let kind = ("resultType", "input_required".into());
        Ok(raw(&members([kind, ("inputRequests", asked.into()), ("requestState", state.into())])))
    }

    /// The replica where the call waits that this caller resumes; empty if there is only one.
    pub(crate) fn replica(&self, peer: &str, state: &str) -> Option<String> {
        let opened = self.seal.as_ref()?.open(Kind::McpRequestState, peer, state, SystemTime::now());
        opened.map(|state: RequestState| state.at)
    }

    /// The waiting call that a request with this digest resumes.
    pub(super) fn resume(
        &self,
        peer: &Peer,
        capabilities: ClientCapabilities,
        asked: &mut RequestParams,
        state: &str,
        digest: &str,
    ) -> Result<Resumption, Fault> {
        let unknown = |fault: Fault| fault.with(json!({ "outcome": "unknown" }));
        let gone =
            || unknown(Fault::params("this `requestState` is unknown or was already used: its call may have run"));
        let call = match &self.seal {
            None => state.to_owned(),
            Some(seal) => {
                let opened = seal.open(Kind::McpRequestState, &peer.name, state, SystemTime::now());
                let opened: RequestState = opened.ok_or_else(gone)?;
                if opened.digest != digest {
                    return Err(gone());
                }
                opened.call
            }
        };
        let parked = {
            let mut calls = self.lock();
            match calls.by_name.get(&call) {
                // Other clients can neither resume nor end it.
                Some(parked) if parked.peer == peer.name => {
                    // Its next question would wait until the deadline. The call stays, for a retry with the capability.
                    if let Some(name) = capabilities.lacks(parked.ongoing.capabilities) {
                        return Err(unknown(Fault::params(format!(
                            "a call with `requestState` may ask again, and this client has not declared what it declared \
                             before: come back with the capability `{name}`"
                        ))));
                    }
                    calls.by_name.remove(&call)
                }
                _ => None,
            }
        };
        let ParkedCall { ongoing, questions, .. } = parked.ok_or_else(gone)?;
        if ongoing.digest != digest {
            return Err(gone());
        }
        let mut open = Vec::new();
        let mut responses = asked.responses.take().unwrap_or_default();
        for question in questions {
            match responses.remove(&question.key) {
                Some(answer) if answer.is_object() => question.answer(answer),
                // If the call has ended meanwhile, its end is reported instead.
                _ if question.is_over() => {}
                // SEP-2322: what is missing is asked for again.
                _ => open.push(question),
            }
        }
        match open.is_empty() {
            true => Ok(Resumption::GoesOn(Box::new(ongoing))),
            false => Ok(Resumption::Asks(self.park(peer, ongoing, open)?)),
        }
    }
}
