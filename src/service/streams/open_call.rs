//! One call under way: what can end it, until when it runs, and what its caller has shown since.
//! Never accepts a control message that is not newer than all before it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Notify, oneshot};
use tokio::time::sleep;

use super::ending::Ending;
use super::task::{Progress, Said};
use super::writer::FrameWriter;
use crate::auth::{Caller, ShownToken};
use crate::clock::Clock;
use crate::policy::Revision;
use crate::rpc::Params;
use crate::wire::{ControlOp, Nonce};

/// One call under way, or one whose last frames may still be asked for.
#[derive(Debug)]
pub(in crate::service) struct OpenCall {
    /// Identifies the message, together with the agent.
    nonce: Nonce,
    /// The digest of the request's proof; `None` for a message that has no answer, and so cannot be controlled.
    request: Option<[u8; 32]>,
    /// What was shown with the request.
    began: ShownToken,
    shown: Mutex<Shown>,
    deadline_ms: AtomicU64,
    /// No lease extends beyond this.
    latest_ms: AtomicU64,
    deadline_moved: Notify,
    ending: OnceLock<Ending>,
    /// Its message has been answered, or given up.
    is_over: AtomicBool,
    /// Notified when it has an ending, or is over.
    ended: Notify,
    /// The method has asked whether the call is cancelled.
    is_watched: AtomicBool,
    /// The method was told that nobody waits for it: what it returns after that may reflect it.
    has_noticed: AtomicBool,
    is_subscription: AtomicBool,
    asks: Mutex<Option<Arc<Asked>>>,
    judged: Mutex<Option<Revision>>,
    /// Boxed: few calls have frames, and they are most of its size.
    frames: OnceLock<Box<FrameWriter>>,
    /// If it is a task: what it says of itself.
    said: OnceLock<Box<Said>>,
    /// Waiting control messages.
    waiting: AtomicUsize,
    /// Questions that wait for room or for their answer.
    asking: AtomicUsize,
    asked: Mutex<HashMap<String, oneshot::Sender<Bytes>>>,
    /// The largest answer in one message, in bytes.
    answer_limit: usize,
}

/// What the call asked for, to decide it again.
#[derive(Debug)]
pub(in crate::service) struct Asked {
    pub(in crate::service) method: Arc<str>,
    pub(in crate::service) params: Option<Params>,
    /// The approvals under which it began.
    pub(in crate::service) approved: Vec<String>,
}

#[derive(Debug)]
struct Shown {
    caller: Arc<Caller>,
    token: ShownToken,
    /// The highest counter of a control message.
    counter: u64,
}

/// What became of a control message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::service) enum Controlled {
    Done,
    /// Its counter is not above those of all before it.
    Old,
    /// It refers to frames or questions that never existed, or comes too often.
    Void,
}

/// How many control messages of one call may wait.
const MAX_WAITING: usize = 32;
/// How many questions to the caller may be open at a time.
const MAX_ASKED: usize = 16;
/// The furthest that a lease extends, in milliseconds.
const MAX_LEASE_MS: u64 = 600_000;

impl OpenCall {
    pub(in crate::service) fn new(
        nonce: Nonce,
        request: Option<[u8; 32]>,
        caller: Arc<Caller>,
        token: ShownToken,
        deadline_ms: u64,
        answer_limit: usize,
    ) -> Self {
        Self {
            nonce,
            request,
            began: token.clone(),
            shown: Mutex::new(Shown { caller, token, counter: 0 }),
            deadline_ms: AtomicU64::new(deadline_ms),
            latest_ms: AtomicU64::new(u64::MAX),
            deadline_moved: Notify::new(),
            ending: OnceLock::new(),
            is_over: AtomicBool::new(false),
            ended: Notify::new(),
            is_watched: AtomicBool::new(false),
            has_noticed: AtomicBool::new(false),
            is_subscription: AtomicBool::new(false),
            asks: Mutex::default(),
            judged: Mutex::default(),
            frames: OnceLock::new(),
            said: OnceLock::new(),
            waiting: AtomicUsize::new(0),
            asking: AtomicUsize::new(0),
            asked: Mutex::default(),
            answer_limit,
        }
    }

    /// The nonce of the message.
    pub(in crate::service) fn nonce(&self) -> Nonce {
        self.nonce
    }

    /// The digest of the request's proof.
    pub(in crate::service) fn request(&self) -> Option<&[u8; 32]> {
        self.request.as_ref()
    }

    pub(in crate::service) fn answer_limit(&self) -> usize {
        self.answer_limit
    }

    /// From now on, the call answers with frames if it needs any.
    pub(in crate::service) fn answer_with(&self, writer: FrameWriter) -> &FrameWriter {
        self.frames.get_or_init(|| Box::new(writer))
    }

    /// Its frames, if its caller accepts any.
    pub(in crate::service) fn frames(&self) -> Option<&FrameWriter> {
        self.frames.get().map(|frames| &**frames)
    }

    /// Keeps what the call asked for, and the policy revision under which that was decided.
    pub(in crate::service) fn asks_for(&self, asked: Asked, revision: &Revision) {
        *lock(&self.asks) = Some(Arc::new(asked));
        self.judged_under(revision);
    }

    /// `None` before it is decided for the first time, and once it is over.
    pub(in crate::service) fn asked(&self) -> Option<Arc<Asked>> {
        lock(&self.asks).clone()
    }

    pub(in crate::service) fn judged_under(&self, revision: &Revision) {
        *lock(&self.judged) = Some(revision.clone());
    }

    /// Whether the last decision about it was made under this revision.
    pub(in crate::service) fn is_judged_under(&self, revision: &Revision) -> bool {
        lock(&self.judged).as_ref() == Some(revision)
    }

    /// The caller and the token, as last shown, and the highest counter.
    pub(in crate::service) fn shown(&self) -> (Arc<Caller>, ShownToken, u64) {
        let shown = lock(&self.shown);
        (Arc::clone(&shown.caller), shown.token.clone(), shown.counter)
    }

    /// What was shown with the request: its key signs the frames, or names them.
    pub(in crate::service) fn began(&self) -> &ShownToken {
        &self.began
    }

    /// Milliseconds since the Unix epoch.
    pub(in crate::service) fn deadline_ms(&self) -> u64 {
        self.deadline_ms.load(Ordering::Relaxed).min(self.latest_ms.load(Ordering::Relaxed))
    }

    /// The deadline, which from now on can only be moved to earlier times.
    pub(in crate::service) fn freeze_deadline(&self) -> u64 {
        let deadline_ms = self.deadline_ms();
        self.latest_ms.fetch_min(deadline_ms, Ordering::Relaxed);
        deadline_ms
    }

    /// From now on it is a task: its caller does not wait, and its deadline is what the claim of its key says.
    pub(in crate::service) fn is_a_task(&self, deadline_ms: u64) {
        self.said.get_or_init(Box::default);
        self.put_off(deadline_ms);
    }

    /// Whether its caller does not wait for it.
    pub(in crate::service) fn has_no_caller(&self) -> bool {
        self.said.get().is_some()
    }

    /// Moves the deadline of a task.
    pub(in crate::service) fn put_off(&self, deadline_ms: u64) {
        self.deadline_ms.store(deadline_ms, Ordering::Relaxed);
        self.deadline_moved.notify_one();
    }

    /// A task says how far it is.
    pub(in crate::service) fn say(&self, progress: Progress) {
        if let Some(said) = self.said.get() {
            said.say(progress);
        }
    }

    /// What a task has said last.
    pub(in crate::service) fn said(&self) -> Option<Progress> {
        self.said.get().and_then(|said| said.last())
    }

    /// Waits until a task has said something new.
    ///
    /// Cancel safe.
    pub(in crate::service) async fn says(&self) {
        match self.said.get() {
            Some(said) => said.changed().await,
            None => std::future::pending().await,
        }
    }

    /// Waits until the deadline has passed, wherever it is moved to meanwhile.
    pub(in crate::service) async fn deadline(&self, clock: &dyn Clock) {
        loop {
            let moved = self.deadline_moved.notified();
            let mut moved = std::pin::pin!(moved);
            moved.as_mut().enable();
            let at = self.deadline_ms();
            tokio::select! {
                () = sleep(Duration::from_millis(at.saturating_sub(clock.now_ms()))) => {
                    if self.deadline_ms() == at {
                        return;
                    }
                }
                () = moved => {}
            }
        }
    }

    /// Ends the call. Only the first reason counts.
    pub(in crate::service) fn end(&self, ending: Ending) {
        if self.ending.set(ending).is_ok() {
            self.ended.notify_waiters();
            // Nobody waits for the answers any more.
            lock(&self.asked).clear();
        }
    }

    pub(in crate::service) fn ending(&self) -> Option<Ending> {
        self.ending.get().copied()
    }

    /// Its message has been answered, or given up. What the application keeps of it then holds nothing but its caller and itself.
    pub(super) fn close(&self) {
        self.is_over.store(true, Ordering::SeqCst);
        self.ended.notify_waiters();
        lock(&self.asked).clear();
        lock(&self.asks).take();
    }

    /// Whether nobody waits for its method any more.
    pub(in crate::service) fn is_over(&self) -> bool {
        self.ending().is_some() || self.is_over.load(Ordering::SeqCst)
    }

    /// Whether it may be answered with frames, and has neither ended nor sent its last frame.
    pub(super) fn is_running_stream(&self) -> bool {
        !self.is_over() && self.frames().is_some_and(|frames| !frames.is_ended())
    }

    /// Waits until the call is ended before its method has answered.
    ///
    /// Cancel safe.
    pub(in crate::service) async fn ended(&self) -> Ending {
        self.once(|| self.ending()).await
    }

    /// Waits until nobody waits for its method any more.
    ///
    /// Cancel safe.
    pub(in crate::service) async fn over(&self) {
        self.once(|| self.is_over().then_some(())).await;
    }

    async fn once<T>(&self, look: impl Fn() -> Option<T>) -> T {
        loop {
            let ended = self.ended.notified();
            let mut ended = std::pin::pin!(ended);
            ended.as_mut().enable();
            if let Some(seen) = look() {
                return seen;
            }
            ended.await;
        }
    }

    /// The method wants to know when the call is ended, and gets time to react.
    pub(in crate::service) fn watch(&self) {
        self.is_watched.store(true, Ordering::Relaxed);
    }

    pub(in crate::service) fn is_watched(&self) -> bool {
        self.is_watched.load(Ordering::Relaxed)
    }

    /// The method is told that nobody waits for it.
    pub(in crate::service) fn notice(&self) {
        self.has_noticed.store(true, Ordering::SeqCst);
    }

    pub(in crate::service) fn has_noticed(&self) -> bool {
        self.has_noticed.load(Ordering::SeqCst)
    }

    /// Marks it as one that goes on until somebody ends it.
    pub(in crate::service) fn is_a_subscription(&self) {
        self.is_subscription.store(true, Ordering::Relaxed);
    }

    pub(in crate::service) fn never_ends(&self) -> bool {
        self.is_subscription.load(Ordering::Relaxed)
    }

    /// Takes a place for a waiting control message; `false` if there is none.
    pub(in crate::service) fn may_wait(&self) -> bool {
        let more = |waiting| (waiting < MAX_WAITING).then_some(waiting + 1);
        self.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// Gives the place back.
    pub(in crate::service) fn waited(&self) {
        let less = |waiting: usize| waiting.checked_sub(1);
        let _ = self.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// A place for one more question, which may wait for room before it is asked; `None` if no more may be open.
    pub(in crate::service) fn may_ask(&self) -> Option<Asking<'_>> {
        let more = |asking| (asking < MAX_ASKED).then_some(asking + 1);
        self.asking.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).ok().map(|_| Asking(self))
    }

    /// Remembers a question to the caller, by the digest of its proof; `None` if the call is over.
    pub(in crate::service) fn ask(&self, question: String) -> Option<oneshot::Receiver<Bytes>> {
        let mut asked = lock(&self.asked);
        asked.retain(|_, answer| !answer.is_closed());
        // INVARIANT: whoever asks has a place, so the places bound what is left.
        if self.is_over() {
            return None;
        }
        let (sender, receiver) = oneshot::channel();
        asked.insert(question, sender);
        Some(receiver)
    }

    /// Does what its caller asks for. `issued_at` is when the caller signed that, in seconds since the Unix epoch.
    pub(in crate::service) fn control(
        &self,
        (caller, token): (Arc<Caller>, ShownToken),
        counter: u64,
        issued_at: u64,
        op: ControlOp,
        payload: Bytes,
        now_ms: u64,
    ) -> Controlled {
        {
            let mut shown = lock(&self.shown);
            if counter <= shown.counter {
                return Controlled::Old;
            }
            shown.counter = counter;
            if caller.token.expires_at >= shown.caller.token.expires_at {
                *shown = Shown { caller, token, counter };
            }
        }
        let done = match op {
            ControlOp::Cancel => {
                self.end(Ending::Cancelled);
                true
            }
            ControlOp::Ack { ack, window, timeout_ms } => {
                let is_known = self.frames().is_some_and(|frames| frames.acknowledge(ack, window));
                if let (true, Some(timeout_ms)) = (is_known, timeout_ms) {
                    let until = issued_at.saturating_mul(1000).saturating_add(timeout_ms);
                    self.deadline_ms.store(until.min(now_ms.saturating_add(MAX_LEASE_MS)), Ordering::Relaxed);
                    self.deadline_moved.notify_one();
                }
                is_known
            }
            ControlOp::Again { ack } => self.frames().is_some_and(|frames| frames.again(ack)),
            ControlOp::Answer { ask } => {
                let asked = lock(&self.asked).remove(&ask);
                asked.is_some_and(|asked| asked.send(payload).is_ok())
            }
        };
        if done { Controlled::Done } else { Controlled::Void }
    }
}

/// The place of a question; dropping it gives it back.
#[derive(Debug)]
pub(in crate::service) struct Asking<'c>(&'c OpenCall);

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.0.asking.fetch_sub(1, Ordering::SeqCst);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing between lock and unlock can panic halfway.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
