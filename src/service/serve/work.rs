//! From a message's arrival to its answer: it waits in its agent's queue, is proved in turn, and then handled.
//! Never proves more messages at a time than there are processors, or two: a flood of them costs its sender's turn.

use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::control::Answers;
use super::outlet::BusOutlet;
use super::shared::{Queued, Shared};
use crate::name::Name;
use crate::nats::Session;
use crate::service::fair::{Bounds, FairQueue, Next};
use crate::service::{Frames, Proved};
use crate::wire::{Delivery, Sealed};

/// The tasks that prove messages, and the work under way.
#[derive(Debug)]
pub(super) struct Work {
    state: Arc<WorkState>,
    workers: Vec<JoinHandle<()>>,
}

/// Takes arrived messages in. Once it is dropped, waiting messages are worked off and no new ones are accepted.
#[derive(Debug)]
pub(super) struct Intake(Arc<WorkState>);

/// What all of this work shares.
struct WorkState {
    shared: Arc<Shared>,
    answers: Answers,
    outlet: BusOutlet,
    queue: Mutex<Queue>,
    /// Notified when something may be taken out of the queue.
    wake: Notify,
    /// Notified when nothing is under way.
    idle: Notify,
}

#[derive(Debug)]
struct Queue {
    /// Each with the session that it arrived by.
    fair: FairQueue<(Delivery, Arc<Session>)>,
    /// Calls under way that have a place elsewhere: see [`WorkPermit::leave`].
    streams: usize,
    is_closed: bool,
}

/// How long messages are proved before other tasks get their turn: about twenty with HMAC proofs, or one of the largest size, which takes a
/// few milliseconds at most.
const TURN: Duration = Duration::from_micros(100);

impl Queue {
    /// How many messages are under way.
    fn running(&self) -> usize {
        self.fair.running() + self.streams
    }
}

/// A message's place among the work under way; dropping it gives the place back.
struct WorkPermit {
    state: Arc<WorkState>,
    agent: Name,
    bytes: usize,
    is_stream: AtomicBool,
}

impl WorkPermit {
    /// The call goes on as a stream, and streams have a bound of their own: others may be handled in its place. Draining
    /// still waits for it.
    fn leave(&self) {
        let mut queue = self.state.queue();
        if !self.is_stream.swap(true, Ordering::Relaxed) {
            queue.fair.done(&self.agent, self.bytes);
            queue.streams += 1;
        }
        let is_waited_for = queue.fair.waiting() > 0;
        drop(queue);
        if is_waited_for {
            self.state.wake.notify_one();
        }
    }
}

impl Work {
    pub(super) fn start(shared: Arc<Shared>, answers: Answers, outlet: BusOutlet) -> (Self, Intake) {
        let options = &shared.options;
        let largest = shared.service.endpoint().max_message();
        let bounds = Bounds {
            waiting: options.queue.max(1),
            running: options.in_flight.max(1),
            // One message of the largest size fits, whatever is configured.
            bytes: options.queue_bytes.max(largest),
        };
        let queue = Mutex::new(Queue { fair: FairQueue::new(bounds), streams: 0, is_closed: false });
        let state = Arc::new(WorkState { shared, answers, outlet, queue, wake: Notify::new(), idle: Notify::new() });
        let level = Arc::downgrade(&state);
        state.shared.queue.ask(move || {
            let Some(state) = level.upgrade() else { return Queued::default() };
            let queue = state.queue();
            Queued { waiting: queue.fair.waiting(), running: queue.fair.running() }
        });
        let workers = (0..provers()).map(|_| tokio::spawn(Arc::clone(&state).prove())).collect();
        (Self { state: Arc::clone(&state), workers }, Intake(state))
    }

    /// Waits until nothing waits and nothing is under way. Does not complete before the [`Intake`] is closed or
    /// dropped.
    pub(super) async fn finished(&mut self) {
        for worker in &mut self.workers {
            drop(worker.await);
        }
        loop {
            let idle = self.state.idle.notified();
            if self.state.queue().running() == 0 {
                return;
            }
            idle.await;
        }
    }

    /// Gives up what is not finished, and returns how many messages that is.
    pub(super) fn give_up(self) -> usize {
        for worker in &self.workers {
            worker.abort();
        }
        let queue = self.state.queue();
        queue.fair.waiting() + queue.running()
    }
}

/// How many messages are proved at a time. Proving is computing and hardly any waiting, so more tasks than processors
/// would only let in more of a flood before the next turn. At least two, so that one that waits for its turn at an Ed25519
/// check does not hold up everybody.
fn provers() -> usize {
    std::thread::available_parallelism().map_or(2, |cores| cores.get().max(2))
}

impl Intake {
    /// Puts a message into its agent's queue, or answers with a hint if there is no room. Messages wait nowhere else.
    pub(super) fn offer(&self, delivery: Delivery, arrival: &Arc<Session>) {
        let Self(state) = self;
        let service = &state.shared.service;
        let endpoint = service.endpoint();
        let bytes = delivery.len();
        // A message of no agent, or above a limit of size, does not wait in order to be refused.
        let agent = endpoint.agent_of(delivery.subject()).filter(|_| bytes <= endpoint.max_message());
        let refused = match agent {
            None => delivery,
            Some(agent) => {
                let pushed = state.queue().fair.push(agent, (delivery, Arc::clone(arrival)), bytes);
                let Err((delivery, _)) = pushed else {
                    state.wake.notify_one();
                    return;
                };
                state.shared.health.shed.fetch_add(1, Ordering::Relaxed);
                delivery
            }
        };
        if let Some(hint) = service.shed(refused) {
            // The rate of hints bounds how many of these tasks there are.
            let (answers, arrival) = (state.answers.clone(), Arc::clone(arrival));
            tokio::spawn(async move { answers.send(hint, &arrival).await });
        }
    }
}

impl Intake {
    /// Accepts nothing more; what waits is worked off.
    pub(super) fn close(&self) {
        self.0.queue().is_closed = true;
        self.0.wake.notify_waiters();
    }
}

impl Drop for Intake {
    fn drop(&mut self) {
        self.close();
    }
}

impl std::fmt::Debug for WorkState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WorkState").field("queue", &self.queue).finish_non_exhaustive()
    }
}

impl WorkState {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        // Nothing between lock and unlock can panic halfway.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One worker: takes message after message, until there is none and none will come.
    async fn prove(self: Arc<Self>) {
        let mut since = Instant::now();
        while let Some(((delivery, arrival), permit)) = self.next().await {
            let service = &self.shared.service;
            match AssertUnwindSafe(service.prove(delivery)).catch_unwind().await {
                Ok(Err(None)) => drop(permit),
                // Anything that may wait, for the guard, a method or the broker, does so in a task of its own.
                Ok(outcome) => drop(tokio::spawn(Arc::clone(&self).finish(outcome, arrival, permit))),
                Err(_panic) => self.report_panic(),
            }
            // Proving seldom waits for anything, so the runtime would not get to do anything else. Not after each message: messages proved
            // in a row are answered in a row, and then written at once.
            if since.elapsed() >= TURN {
                tokio::task::yield_now().await;
                since = Instant::now();
            }
        }
    }

    async fn next(self: &Arc<Self>) -> Option<((Delivery, Arc<Session>), WorkPermit)> {
        loop {
            let woken = self.wake.notified();
            {
                let mut queue = self.queue();
                if let Some(Next { agent, bytes, item }) = queue.fair.next() {
                    if queue.fair.waiting() > 0 {
                        self.wake.notify_one();
                    }
                    return Some((
                        item,
                        WorkPermit { state: Arc::clone(self), agent, bytes, is_stream: AtomicBool::new(false) },
                    ));
                }
                if queue.is_closed && queue.fair.waiting() == 0 {
                    // The other workers may be waiting for messages that were just taken out.
                    self.wake.notify_waiters();
                    return None;
                }
            }
            woken.await;
        }
    }

    async fn finish(
        self: Arc<Self>,
        proved: Result<Proved, Option<Sealed>>,
        arrival: Arc<Session>,
        permit: WorkPermit,
    ) {
        let answer = match proved {
            Err(answer) => answer,
            // A panic in a method is answered where it happens. One in our own code must at least be reported.
            Ok(proved) => {
                let opened = || permit.leave();
                let outlet = || self.outlet.at(&arrival);
                let frames = Frames { outlet: &outlet, opened: &opened };
                match AssertUnwindSafe(self.shared.service.execute(proved, Some(frames))).catch_unwind().await {
                    Ok(answer) => answer,
                    Err(_panic) => {
                        self.report_panic();
                        None
                    }
                }
            }
        };
        if let Some(sealed) = answer {
            self.answers.send(sealed, &arrival).await;
        }
        drop(permit);
    }

    fn report_panic(&self) {
        self.shared.service.counters().refused("panic");
        tracing::error!(target: "sealwire::serve", "a message was given up because of a panic: report it");
    }
}

impl Drop for WorkPermit {
    fn drop(&mut self) {
        let mut queue = self.state.queue();
        if self.is_stream.load(Ordering::Relaxed) {
            queue.streams = queue.streams.saturating_sub(1);
        } else {
            queue.fair.done(&self.agent, self.bytes);
        }
        let is_idle = queue.running() == 0;
        let is_waited_for = queue.fair.waiting() > 0;
        drop(queue);
        if is_waited_for {
            self.state.wake.notify_one();
        }
        if is_idle {
            self.state.idle.notify_waiters();
        }
    }
}
