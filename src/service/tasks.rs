//! Calls whose callers do not wait (SPEC.md §6.5): how many there may be, and who ends them with the service.
//! Never lets one agent take the last place.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::calls::Call;
use super::shares::{Payer, Taken};
use super::streams::{Ending, FrameMemory, OpenCall};
use crate::name::Name;

/// The bounds of tasks: calls whose callers do not wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskLimits {
    /// How many of one agent's tasks run at a time; 64. A subject that it acts for may have one more only while it has fewer than the agent
    /// has free.
    pub per_agent: usize,
    /// How many run in this replica; 1,024. An agent may have one more only while it has fewer than are free. Tasks count here and nowhere
    /// else.
    pub in_all: usize,
    /// Bytes of their parameters, which are held twice, all together; 64 MiB. An agent may have more only if it then has no more than what is left free.
    pub bytes: usize,
    /// For how long a replica has a task before it has to say again that it runs; 30 s. It says so six times as often. If it cannot, the
    /// task ends then; if it died, the task's outcome is known to be unknown 12 s after that. At least 1 s.
    pub lease: Duration,
}

impl Default for TaskLimits {
    fn default() -> Self {
        Self { per_agent: 64, in_all: 1_024, bytes: 64 << 20, lease: Duration::from_secs(30) }
    }
}

/// The tasks of a replica.
#[derive(Debug)]
pub(super) struct Tasks {
    limits: TaskLimits,
    memory: FrameMemory,
    state: Mutex<State>,
    /// Notified when one has ended.
    ended: Notify,
    running: Mutex<JoinSet<()>>,
}

#[derive(Debug, Default)]
struct State {
    /// INVARIANT: only agents that have some.
    agents: HashMap<Name, Taken>,
    /// Those with a place, by a number of their own.
    open: HashMap<u64, Arc<OpenCall>>,
    next: u64,
    /// None begins any more.
    is_closed: bool,
}

/// The place of a task; dropping it gives it back.
#[derive(Debug)]
pub(super) struct TaskPlace {
    tasks: Arc<Tasks>,
    payer: Payer,
    bytes: usize,
    number: u64,
}

impl Tasks {
    pub(super) fn new(limits: TaskLimits) -> Self {
        let memory = FrameMemory::new(limits.bytes);
        Self { limits, memory, state: Mutex::default(), ended: Notify::new(), running: Mutex::default() }
    }

    /// For how long a claim holds before it is renewed.
    pub(super) fn lease(&self) -> Duration {
        self.limits.lease.max(LEAST_LEASE)
    }

    /// A place for this call as a task; `None` if there is none.
    pub(super) fn enter(self: &Arc<Self>, payer: &Payer, call: &Call) -> Option<TaskPlace> {
        // Once for the method, and once to decide the call again.
        let bytes = call.params().map_or(0, |params| 2 * params.raw().get().len());
        let mut state = self.state();
        if state.is_closed {
            return None;
        }
        let free = self.limits.in_all.saturating_sub(state.open.len());
        let own = state.agents.entry(payer.agent.clone()).or_default();
        let has_place = own.count() < free && own.take(payer.subject, self.limits.per_agent);
        if !has_place || !self.memory.try_take(&payer.agent, bytes) {
            if has_place {
                own.give_back(payer.subject);
            }
            if own.is_empty() {
                state.agents.remove(&payer.agent);
            }
            return None;
        }
        let number = state.next;
        state.next += 1;
        state.open.insert(number, Arc::clone(&call.message.open));
        Some(TaskPlace { tasks: Arc::clone(self), payer: payer.clone(), bytes, number })
    }

    /// Runs a task to its end. It has a place.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        while running.try_join_next().is_some() {}
        running.spawn(task);
    }

    /// Those that run.
    pub(super) fn open(&self) -> Vec<Arc<OpenCall>> {
        self.state().open.values().cloned().collect()
    }

    /// How many have a place, and the bytes of their parameters.
    pub(super) fn held(&self) -> (usize, usize) {
        (self.state().open.len(), self.memory.total())
    }

    /// Waits until none runs, once what may begin more has `ended`. Those that still run shortly before `limit` is over are stopped, and what
    /// became of them is stored by then. Returns how many were stopped.
    pub(super) async fn drain(&self, limit: Duration, ended: impl Future<Output = ()>) -> usize {
        let all = async {
            ended.await;
            self.finished().await;
        };
        if tokio::time::timeout(limit.saturating_sub(STOPPED), all).await.is_ok() {
            return 0;
        }
        let open = {
            self.state().is_closed = true;
            self.open()
        };
        open.iter().for_each(|open| open.end(Ending::Draining));
        drop(tokio::time::timeout(STOPPED, self.finished()).await);
        open.len()
    }

    /// Waits until none runs.
    async fn finished(&self) {
        loop {
            let ended = self.ended.notified();
            let mut ended = std::pin::pin!(ended);
            ended.as_mut().enable();
            if self.state().open.is_empty() {
                return;
            }
            ended.await;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing between lock and unlock can panic halfway.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for TaskPlace {
    fn drop(&mut self) {
        self.tasks.memory.give(&self.payer.agent, self.bytes);
        let mut state = self.tasks.state();
        let call = state.open.remove(&self.number);
        if let Some(own) = state.agents.get_mut(&self.payer.agent) {
            own.give_back(self.payer.subject);
            if own.is_empty() {
                state.agents.remove(&self.payer.agent);
            }
        }
        drop(state);
        drop(call);
        self.tasks.ended.notify_waiters();
    }
}

/// A shorter lease could not be renewed in time by a busy store.
const LEAST_LEASE: Duration = Duration::from_secs(1);

/// How long a service that stops waits until what became of its tasks is stored. A method has one second to clean up before that.
const STOPPED: Duration = Duration::from_secs(3);
