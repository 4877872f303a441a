//! The calls under way, by their caller and the nonce of their message.
//! Never holds more than the bounds of work under way, and ended calls only for as long as their frames may be wanted.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;

use super::memory::FrameMemory;
use super::open_call::OpenCall;
use super::resends::Resends;
use super::writer::FrameWriter;
use crate::name::Name;
use crate::service::shares::Taken;
use crate::wire::Nonce;

/// The bounds of calls that may be answered with frames.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamLimits {
    /// How many of one agent's streams are under way at a time; 64. A subject that it acts for may have one more only
    /// while it has fewer than the agent has free.
    pub per_agent: usize,
    /// How many are under way in this replica; 1,024. An agent may have one more only while it has fewer than are free.
    /// Streams count here and nowhere else: an idle subscription takes no other call's place.
    pub in_all: usize,
    /// Bytes of their requests, and of unacknowledged frames, of all streams together; 64 MiB. An agent may have more kept only if it then
    /// has no more than what is left free. One stream has at most 1 MiB of frames.
    pub bytes: usize,
    /// The largest response that is sent in pieces, in bytes; 16 MiB.
    pub response: usize,
}

impl Default for StreamLimits {
    fn default() -> Self {
        Self { per_agent: 64, in_all: 1_024, bytes: 64 << 20, response: 16 << 20 }
    }
}

/// Identifies a call.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(in crate::service) struct CallKey {
    pub(in crate::service) agent: Name,
    pub(in crate::service) nonce: Nonce,
}

/// The calls of a replica that are under way.
#[derive(Debug)]
pub(in crate::service) struct OpenCalls {
    limits: StreamLimits,
    memory: Arc<FrameMemory>,
    resends: Arc<Resends>,
    state: Mutex<State>,
    /// Tasks that send frames of ended calls again; they end with this. At most five for each call: see
    /// `FrameWriter::again`.
    tails: Mutex<JoinSet<()>>,
}

#[derive(Debug, Default)]
struct State {
    /// INVARIANT: the work under way, and `tails`.
    calls: HashMap<CallKey, Arc<OpenCall>>,
    /// INVARIANT: only agents that have streams or tails.
    agents: HashMap<Name, Own>,
    all_streams: usize,
    /// Ended streams, oldest first, and until when they are kept.
    tails: VecDeque<(Instant, CallKey)>,
    is_draining: bool,
}

/// What one agent has.
#[derive(Debug, Default)]
struct Own {
    streams: Taken,
    tails: usize,
}

/// Why a call is not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::service) enum Refused {
    /// A call with this nonce is still under way.
    Known,
    /// There are as many streams as allowed, or as many bytes of requests and frames.
    Full,
}

/// The place of a call under way. Once this is dropped, the call is over, whether it was answered or given up.
#[derive(Debug)]
pub(in crate::service) struct OpenSlot {
    calls: Arc<OpenCalls>,
    call: Arc<OpenCall>,
    /// `None` for a message that has no answer, and so cannot be controlled.
    key: Option<CallKey>,
    is_stream: bool,
    /// The subject that its agent acts for.
    subject: Option<u64>,
    /// Bytes taken from the memory for streams.
    bytes: usize,
}

/// How long the last frames of a stream are kept.
const KEPT_FOR: Duration = Duration::from_secs(10);

impl OpenCalls {
    pub(in crate::service) fn new(limits: StreamLimits) -> Self {
        let memory = Arc::new(FrameMemory::new(limits.bytes));
        let resends = Arc::new(Resends::new(limits.bytes));
        Self { limits, memory, resends, state: Mutex::default(), tails: Mutex::default() }
    }

    pub(in crate::service) fn limits(&self) -> &StreamLimits {
        &self.limits
    }

    pub(in crate::service) fn memory(&self) -> &Arc<FrameMemory> {
        &self.memory
    }

    pub(in crate::service) fn resends(&self) -> &Arc<Resends> {
        &self.resends
    }

    /// Registers a call, until the slot is dropped. A call without a key cannot be controlled. A stream comes with the `bytes` of its
    /// request, which it may hold for as long as it lasts.
    pub(in crate::service) fn open(
        self: &Arc<Self>,
        key: Option<CallKey>,
        subject: Option<u64>,
        call: &Arc<OpenCall>,
        stream: Option<usize>,
    ) -> Result<OpenSlot, Refused> {
        let (calls, call) = (Arc::clone(self), Arc::clone(call));
        let Some(key) = key else {
            return Ok(OpenSlot { calls, call, key: None, is_stream: false, subject, bytes: 0 });
        };
        let bytes = stream.unwrap_or_default();
        let mut state = self.state();
        if state.calls.contains_key(&key) {
            return Err(Refused::Known);
        }
        if stream.is_some() {
            let free = self.limits.in_all.saturating_sub(state.all_streams);
            let may = |own: &mut Own| own.streams.count() < free && own.streams.take(subject, self.limits.per_agent);
            if !state.change(&key.agent, may) {
                return Err(Refused::Full);
            }
            if !self.memory.try_take(&key.agent, bytes) {
                state.change(&key.agent, |own| own.streams.give_back(subject));
                return Err(Refused::Full);
            }
            state.all_streams += 1;
        }
        state.calls.insert(key.clone(), Arc::clone(&call));
        drop(state);
        Ok(OpenSlot { calls, call, key: Some(key), is_stream: stream.is_some(), subject, bytes })
    }

    pub(in crate::service) fn find(&self, key: &CallKey) -> Option<Arc<OpenCall>> {
        self.state().calls.get(key).cloned()
    }

    /// Everything under way that may be answered with frames.
    pub(in crate::service) fn streams(&self) -> Vec<Arc<OpenCall>> {
        let state = self.state();
        if state.all_streams == 0 {
            return Vec::new();
        }
        state.calls.values().filter(|call| call.is_running_stream()).cloned().collect()
    }

    /// Sends frames of an ended call again, if they were asked for. Judging control messages does not wait for that: a slow
    /// outlet holds up its own call alone.
    pub(in crate::service) fn send_tail(&self, call: &Arc<OpenCall>) {
        if !call.frames().is_some_and(FrameWriter::take_tail_due) {
            return;
        }
        let call = Arc::clone(call);
        let mut tails = self.tails.lock().unwrap_or_else(PoisonError::into_inner);
        while tails.try_join_next().is_some() {}
        tails.spawn(async move {
            if let Some(frames) = call.frames() {
                frames.send_tail().await;
            }
        });
    }

    /// No subscription begins from now on.
    pub(in crate::service) fn drain(&self) {
        self.state().is_draining = true;
    }

    pub(in crate::service) fn is_draining(&self) -> bool {
        self.state().is_draining
    }

    /// Drops ended streams whose time is over, or whose frames are all acknowledged.
    pub(in crate::service) fn tidy(&self) {
        let now = Instant::now();
        let mut state = self.state();
        let over = |state: &State, until: Instant, key: &CallKey| {
            let has_tail = state.calls.get(key).and_then(|call| call.frames()).is_some_and(FrameWriter::has_tail);
            until <= now || !has_tail
        };
        let tails = std::mem::take(&mut state.tails);
        let (gone, tails): (VecDeque<_>, _) = tails.into_iter().partition(|(until, key)| over(&state, *until, key));
        state.tails = tails;
        let gone: Vec<_> = gone.into_iter().filter_map(|(_, key)| state.forget_tail(&key)).collect();
        drop(state);
        let_go(gone);
        self.resends.tidy();
    }

    /// Drops what is kept of the agent's stream that ended first; `false` if there is none.
    fn drop_oldest_tail(&self, agent: &Name) -> bool {
        let gone = self.state().take_oldest_tail(agent);
        let is_gone = gone.is_some();
        let_go(gone);
        is_gone
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing between lock and unlock can panic halfway.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn change<R>(&mut self, agent: &Name, change: impl FnOnce(&mut Own) -> R) -> R {
        let own = self.agents.entry(agent.clone()).or_default();
        let changed = change(own);
        if own.streams.is_empty() && own.tails == 0 {
            self.agents.remove(agent);
        }
        changed
    }

    /// Removes what was kept of an ended stream that is no longer in `tails`.
    fn forget_tail(&mut self, key: &CallKey) -> Option<Arc<OpenCall>> {
        self.change(&key.agent, |own| own.tails = own.tails.saturating_sub(1));
        self.calls.remove(key)
    }

    fn take_oldest_tail(&mut self, agent: &Name) -> Option<Arc<OpenCall>> {
        let oldest = self.tails.iter().position(|(_, key)| key.agent == *agent)?;
        let (_, key) = self.tails.remove(oldest)?;
        self.forget_tail(&key)
    }
}

impl Drop for OpenSlot {
    fn drop(&mut self) {
        self.call.close();
        let Some(key) = &self.key else { return };
        self.calls.memory.give(&key.agent, self.bytes);
        let mut state = self.calls.state();
        if self.is_stream {
            state.all_streams = state.all_streams.saturating_sub(1);
            state.change(&key.agent, |own| own.streams.give_back(self.subject));
        }
        // For a call that was given up, nothing more is sent: there is no end that its caller could ask for.
        let gone = if self.call.frames().is_some_and(FrameWriter::has_tail) {
            state.tails.push_back((Instant::now() + KEPT_FOR, key.clone()));
            state.change(&key.agent, |own| own.tails += 1);
            // An agent that ends many streams makes room for itself, and not at the cost of others.
            let free = self.calls.limits.in_all.saturating_sub(state.tails.len());
            if state.agents.get(&key.agent).is_some_and(|own| own.tails > free) {
                state.take_oldest_tail(&key.agent)
            } else {
                None
            }
        } else {
            state.calls.remove(key)
        };
        drop(state);
        let_go(gone);
        // The last frame may exceed every bound. If its caller does not acknowledge it, it may not keep the room from
        // others.
        while self.calls.memory.is_beyond_its_share(&key.agent) && self.calls.drop_oldest_tail(&key.agent) {}
    }
}

/// Drops their frames: nobody can ask for them any more, even if the application still holds the calls. Outside of the
/// lock.
fn let_go(gone: impl IntoIterator<Item = Arc<OpenCall>>) {
    for call in gone {
        if let Some(frames) = call.frames() {
            frames.let_go();
        }
    }
}
