//! The places of connections: which of them wait for a request, and in which order they make room.
//! Never lets a connection that has to make room begin a request.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::time::Instant;

use super::activity::{Activity, Phase};
use super::limits::{IDLE, LEAVING};

/// The connections that wait for a request, the one that has waited longest first.
#[derive(Debug, Default)]
pub(super) struct IdleQueue(Mutex<Queue>);

#[derive(Debug, Default)]
struct Queue {
    turns: u64,
    /// By the order in which they began to wait.
    waiting: BTreeMap<u64, Arc<Activity>>,
}

impl IdleQueue {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, activity: Arc<Activity>) -> u64 {
        let mut queue = self.lock();
        queue.turns += 1;
        let turn = queue.turns;
        queue.waiting.insert(turn, activity);
        turn
    }

    /// Ends the connection that has waited longest; `false` if none waits.
    pub(super) fn evict(&self) -> bool {
        let Some((_, activity)) = self.lock().waiting.pop_first() else { return false };
        activity.set(Phase::Evicted);
        true
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.lock().waiting.is_empty()
    }
}

/// A connection's place.
#[derive(Debug)]
pub(super) struct Slot {
    queue: Arc<IdleQueue>,
    activity: Arc<Activity>,
    state: Mutex<State>,
    leave: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// Its turn among the waiting connections. One that has to make room keeps it in vain.
    turn: Option<u64>,
    /// Requests in progress.
    requests: usize,
    is_leaving: bool,
}

impl Slot {
    pub(super) fn new(queue: Arc<IdleQueue>) -> Arc<Self> {
        let activity = Arc::new(Activity::new(Phase::BUSY));
        let slot = Self { queue, activity, state: Mutex::default(), leave: Notify::new() };
        slot.wait(&mut slot.lock());
        Arc::new(slot)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn activity(&self) -> &Arc<Activity> {
        &self.activity
    }

    /// The connection waits for a request from now on.
    fn wait(&self, state: &mut State) {
        let idle = if state.is_leaving { LEAVING } else { IDLE };
        // Before it can be evicted.
        self.activity.set(Phase::Idle { until: Instant::now() + idle });
        state.turn = Some(self.queue.push(Arc::clone(&self.activity)));
    }

    /// Begins a request; `None` if the connection has to make room.
    pub(super) fn begin(self: &Arc<Self>) -> Option<ActiveRequest> {
        let mut state = self.lock();
        if state.requests == 0 {
            self.queue.lock().waiting.remove(&state.turn.take()?)?;
            self.activity.set(Phase::BUSY);
        }
        state.requests += 1;
        Some(ActiveRequest(Arc::clone(self)))
    }

    /// Asks the connection to close after the present requests.
    pub(super) fn close(&self) {
        self.leave.notify_one();
    }

    pub(super) async fn is_to_close(&self) {
        self.leave.notified().await;
    }

    /// The connection, which was told to close, stays no longer without a request than that takes.
    pub(super) fn leave(&self) {
        let mut state = self.lock();
        state.is_leaving = true;
        let soon = Instant::now() + LEAVING;
        self.activity.change(|phase| match phase {
            Phase::Idle { until } => Some(Phase::Idle { until: until.min(soon) }),
            _ => None,
        });
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Some(turn) = self.lock().turn {
            self.queue.lock().waiting.remove(&turn);
        }
    }
}

/// A request in progress; dropping the last one lets the connection wait again.
#[derive(Debug)]
pub(super) struct ActiveRequest(Arc<Slot>);

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.requests -= 1;
        if state.requests == 0 {
            self.0.wait(&mut state);
        }
    }
}
