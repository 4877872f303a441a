//! Control of calls under way, from arrival to effect: a control message waits in its agent's queue, and is judged in
//! turn.
//! Never keeps a message that names no call of this replica, and never judges two messages of one agent at a time.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::FutureExt as _;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::name::Name;
use crate::service::Service;
use crate::service::control::Wanted;
use crate::service::fair::{Bounds, FairQueue, Next};
use crate::wire::Delivery;

/// The tasks that judge control messages. They end with this.
#[derive(Debug)]
pub(super) struct StreamControl {
    line: ControlLine,
    #[expect(dead_code, reason = "ends with this")]
    workers: JoinSet<()>,
}

/// Takes control messages in.
#[derive(Debug, Clone)]
pub(super) struct ControlLine(Arc<Line>);

#[derive(Debug)]
struct Line {
    service: Service,
    waiting: Waiting<(Wanted, Delivery)>,
}

/// What waits for a worker.
#[derive(Debug)]
struct Waiting<T> {
    queue: Mutex<FairQueue<T>>,
    /// Notified when something may be taken out of the queue.
    wake: Notify,
}

/// With two workers, an agent has one message judged at a time, see [`FairQueue::next`], so that its messages stay in
/// order.
const WORKERS: usize = 2;
/// How many messages may wait, and their bytes: one for each stream of a replica many times over.
const WAITING: usize = 8_192;
const BYTES: usize = 16 << 20;

impl StreamControl {
    pub(super) fn start(service: &Service) -> Self {
        let bounds = Bounds { waiting: WAITING, running: WORKERS, bytes: BYTES };
        let line = ControlLine(Arc::new(Line { service: service.clone(), waiting: Waiting::new(bounds) }));
        let mut workers = JoinSet::new();
        for _ in 0..WORKERS {
            workers.spawn(Arc::clone(&line.0).work());
        }
        Self { line, workers }
    }

    pub(super) fn line(&self) -> ControlLine {
        self.line.clone()
    }
}

impl ControlLine {
    /// Puts a message into its agent's queue, if it is about a call under way and there is room.
    pub(super) fn offer(&self, delivery: Delivery) {
        let Self(line) = self;
        let Some(wanted) = line.service.wanted(&delivery) else { return };
        let bytes = delivery.len();
        let call = Arc::clone(&wanted.call);
        let is_small = bytes <= line.service.endpoint().max_message();
        if is_small && call.may_wait() {
            let agent = wanted.agent().clone();
            if line.waiting.push(agent, (wanted, delivery), bytes) {
                return;
            }
            call.waited();
        }
        line.service.counters().refused("control_shed");
    }
}

impl<T> Waiting<T> {
    fn new(bounds: Bounds) -> Self {
        Self { queue: Mutex::new(FairQueue::new(bounds)), wake: Notify::new() }
    }

    fn push(&self, agent: Name, item: T, bytes: usize) -> bool {
        let has_room = self.queue().push(agent, item, bytes).is_ok();
        if has_room {
            self.wake.notify_one();
        }
        has_room
    }

    /// Cancel safe.
    async fn next(&self) -> Next<T> {
        loop {
            let woken = self.wake.notified();
            {
                let mut queue = self.queue();
                if let Some(next) = queue.next() {
                    // Two items that came at once may have woken one worker only.
                    if queue.waiting() > 0 {
                        self.wake.notify_one();
                    }
                    return next;
                }
            }
            woken.await;
        }
    }

    /// The work on an item has ended.
    fn done(&self, agent: &Name, bytes: usize) {
        let mut queue = self.queue();
        queue.done(agent, bytes);
        // Other messages of this agent may go on.
        if queue.waiting() > 0 {
            self.wake.notify_one();
        }
    }

    fn queue(&self) -> MutexGuard<'_, FairQueue<T>> {
        // Nothing between lock and unlock can panic halfway.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Line {
    /// The loop of one worker.
    async fn work(self: Arc<Self>) {
        loop {
            let Next { agent, bytes, item: (wanted, delivery) } = self.waiting.next().await;
            wanted.call.waited();
            let judged = AssertUnwindSafe(self.service.controlled(wanted, delivery)).catch_unwind().await;
            if judged.is_err() {
                self.service.counters().refused("panic");
                tracing::error!(target: "sealwire::serve", "a control message was given up because of a panic: report it");
            }
            self.waiting.done(&agent, bytes);
            // Judging seldom waits, so other tasks would not get a turn.
            tokio::task::yield_now().await;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    /// SPEC.md §25: a message that takes long holds up nobody else.
    #[tokio::test]
    async fn control_that_came_at_once_wakes_both_workers() {
        let waiting = Waiting::new(Bounds { waiting: 8, running: WORKERS, bytes: 1_000 });
        let name = |text| Name::new(text).unwrap();
        // Neither worker sleeps yet: both have just seen that the queue is empty.
        assert!(waiting.push(name("ann"), 1, 1) && waiting.push(name("bob"), 2, 1));
        // The first one goes to sleep, is woken, and takes what it finds; the second one goes to sleep.
        waiting.wake.notified().await;
        assert_eq!(waiting.next().await.item, 1);
        assert!(waiting.wake.notified().now_or_never().is_some(), "it is woken, too");
        assert_eq!(waiting.next().await.item, 2);
    }
}
