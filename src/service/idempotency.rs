//! Calls with an idempotency key: run once, and answered from the stored outcome when they come again. Decides, and writes
//! the entries; where they are kept is up to `auth`.
//! Never shows an outcome to anybody but the caller, the subject and the method that it belongs to, nor before the policy has
//! allowed the call that asks for it.
//!
//! The entry is claimed before the method runs ("running, until then") and replaced by the outcome afterwards. A replica that dies in
//! between leaves the claim behind. Nobody can tell whether that call had an effect, so it is not run again unless the method is declared
//! to permit that.
//!
//! What a shared store returns may come from another replica, or from a broker that lies: each entry has a MAC under a key of the service's
//! own, over the entry and its look-up key. An entry with a wrong MAC counts as a call whose outcome is unknown.

mod entry;
mod lease;
mod lookup;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;

use super::calls::Call;
use super::entry_key::EntryKey;
use super::streams::OpenCall;
use crate::auth::{Caller, Claimed, OutcomeKey, OutcomeStore, OutcomeStoreError, Verifier, Withdrawal};
use crate::log_limiter::KeyedLogLimiter;
use crate::name::Name;
use crate::rpc::{Id, Limits, Outcome, Params, Response, Responses};
use crate::wire::{Audience, HmacKey, ServiceKey};
use entry::{GRACE_MS, Head, State, TaskHead};
pub(super) use lookup::{TaskAsked, TaskStatus};

/// Declares that a method runs once for each idempotency key, and for how long its outcome is kept.
///
/// ```
/// use std::time::Duration;
/// use sealwire::Idempotent;
///
/// let day = Idempotent::keep(Duration::from_secs(24 * 3600));
/// let may_run_again = day.rerun_if_lost();
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Idempotent {
    keep: Duration,
    rerun_if_lost: bool,
    task: Option<TaskRule>,
}

/// Whether a method is a task, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct TaskRule {
    limit: Duration,
    is_required: bool,
}

impl Idempotent {
    /// The longest time for which an outcome is kept: a week.
    pub const MOST: Duration = Duration::from_secs(7 * 24 * 3600);

    /// Keeps outcomes for this long after the run has ended, 1 s to a week. After that, the key counts as new.
    #[must_use]
    pub const fn keep(keep: Duration) -> Self {
        Self { keep, rerun_if_lost: false, task: None }
    }

    /// Runs the method again under the same key if nobody knows how the last run ended: its replica died, or its deadline passed. Without
    /// this, the caller is told that the outcome is unknown, and nothing runs.
    #[must_use]
    pub const fn rerun_if_lost(mut self) -> Self {
        self.rerun_if_lost = true;
        self
    }

    /// The method may also be called as a task, for which its caller does not wait: it runs for `limit` at most, 1 s to a week, and the
    /// caller finds its outcome by the key for as long as outcomes are kept. See SPEC.md §6.5.
    #[must_use]
    pub const fn as_task(mut self, limit: Duration) -> Self {
        self.task = Some(TaskRule { limit, is_required: false });
        self
    }

    /// The method can be called as a task only: a caller that waits for it is told so at once. See [`Idempotent::as_task`].
    #[must_use]
    pub const fn only_as_task(mut self, limit: Duration) -> Self {
        self.task = Some(TaskRule { limit, is_required: true });
        self
    }

    pub(super) fn is_valid(&self) -> bool {
        let range = Duration::from_secs(1)..=Self::MOST;
        range.contains(&self.keep) && self.task.is_none_or(|task| range.contains(&task.limit))
    }

    /// Whether the method may be called as a task, and whether in no other way.
    pub(super) fn task(&self) -> Option<&'static str> {
        self.task.map(|task| if task.is_required { "required" } else { "optional" })
    }
}

impl From<Duration> for Idempotent {
    fn from(keep: Duration) -> Self {
        Self::keep(keep)
    }
}

/// Why a call with an idempotency key is not run, and gets no stored outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Conflict {
    /// The key was used with other parameters.
    #[error("this idempotency key was used with other params")]
    OtherParams,
    /// A call with this key is running.
    #[error("the call with this idempotency key is still running")]
    Running {
        /// After how long it may be worth asking again, in milliseconds.
        retry_after_ms: u64,
    },
    /// A call with this key was begun, and nobody knows how it ended.
    #[error("the call with this idempotency key was begun, its outcome is unknown, and it is not run again")]
    Unknown,
    /// Its caller has cancelled it, as a task.
    #[error("the call with this idempotency key was cancelled by its caller, and it is not run again")]
    Cancelled,
    /// It was executed, but its outcome was too large to be kept, or found no room.
    #[error("the call with this idempotency key was executed, and its outcome was not kept")]
    NotKept,
}

impl Conflict {
    /// The member `idempotency` of the error's data.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::OtherParams => "other_params",
            Self::Running { .. } => "running",
            Self::Unknown => "unknown",
            Self::Cancelled => "cancelled",
            Self::NotKept => "not_kept",
        }
    }
}

/// The methods that are declared idempotent, and where their outcomes are kept.
pub(super) struct Idempotency {
    store: Arc<dyn OutcomeStore>,
    methods: BTreeMap<String, Idempotent>,
    audience: Audience,
    entry_key: EntryKey,
    running: RunningHere,
    /// Limits the log lines that callers can cause: by agent and by what they say.
    lines: KeyedLogLimiter<(&'static str, Name)>,
}

/// The keys whose calls run in this process. Their claims say until when, but a clock that jumps may be past that while they
/// run.
type RunningHere = Arc<Mutex<HashMap<OutcomeKey, Arc<OpenCall>>>>;

/// A call that is to run only once.
#[derive(Debug)]
pub(super) struct Attempt {
    key: OutcomeKey,
    declared: Idempotent,
    params: String,
    message: String,
    deadline_ms: u64,
    open: Arc<OpenCall>,
    task: Option<Box<TaskHead>>,
}

/// Why a call can be made only in another way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotSo {
    /// A call as a task, of a method that is none.
    #[error("the method cannot be called as a task")]
    AsTask,
    /// A call whose caller waits, of a method that is always a task.
    #[error("the method can be called as a task only")]
    Attached,
}

/// What to do with an attempt.
#[derive(Debug)]
pub(super) enum Begun {
    /// This call runs.
    Run(Box<Ticket>),
    /// The call ran before, with this outcome.
    Stored(Outcome),
    Conflict(Conflict),
    /// The store cannot be asked, or has no room: the call does not run.
    Refused(OutcomeStoreError),
}

/// The claim of a call that runs.
#[derive(Debug)]
pub(super) struct Ticket {
    attempt: Attempt,
    revision: u64,
    claim: Bytes,
    /// What was stored before the claim.
    before: Option<Bytes>,
    here: Here,
}

/// A claim that is being made, or given back, for a call that has not begun. If it is dropped before the store has said what became of it,
/// it is withdrawn.
///
/// INVARIANT: its call never begins after that. Running it takes the claim's [`Ticket`], which either exists only once this is settled, or
/// was consumed to make this.
struct Claiming<'a> {
    store: &'a dyn OutcomeStore,
    attempt: &'a Attempt,
    mac: &'a HmacKey,
    /// The revision that the claim replaces; 0 if there is none.
    revision: u64,
    claim: &'a Bytes,
    /// What was stored before the claim.
    before: Option<&'a Bytes>,
    keep: Duration,
    is_settled: bool,
}

impl Claiming<'_> {
    /// What replaces the claim of a call that does not run.
    fn instead(&self) -> Bytes {
        self.before.cloned().unwrap_or_else(|| self.attempt.entry(self.mac, State::NotStarted))
    }

    /// The store has answered: nothing is left to withdraw.
    fn settle(mut self) {
        self.is_settled = true;
    }

    /// The call ends here. If its claim is stored all the same, or will be, it must not keep the key from others.
    fn refuse(self, error: OutcomeStoreError) -> Begun {
        if error != OutcomeStoreError::Unanswered {
            self.settle();
        }
        Begun::Refused(error)
    }
}

impl Drop for Claiming<'_> {
    fn drop(&mut self) {
        if self.is_settled {
            return;
        }
        let (key, content, instead) = (self.attempt.key.clone(), self.claim.clone(), self.instead());
        self.store.withdraw(Withdrawal { key, revision: self.revision, content, instead, keep: self.keep });
    }
}

/// Marks a key's call as running here, until this is dropped.
#[derive(Debug)]
struct Here(RunningHere, OutcomeKey);

impl Here {
    fn new(running: &RunningHere, attempt: &Attempt) -> Self {
        lock(running).insert(attempt.key.clone(), Arc::clone(&attempt.open));
        Self(Arc::clone(running), attempt.key.clone())
    }
}

impl Drop for Here {
    fn drop(&mut self) {
        lock(&self.0).remove(&self.1);
    }
}

/// How a run ended.
#[derive(Debug)]
pub(super) enum Ended<'a> {
    /// It ended by itself.
    With(&'a Outcome),
    /// It was stopped, or panicked.
    Unknown,
    /// Its caller has cancelled it, as a task.
    Cancelled,
}

/// What an entry means for a call.
#[derive(Debug)]
enum Meaning {
    Free,
    /// It was not written by this service, as far as its key tells.
    Foreign,
    Stored(Outcome),
    Conflict(Conflict),
}

impl Idempotency {
    pub(super) fn new(
        store: Arc<dyn OutcomeStore>,
        methods: BTreeMap<String, Idempotent>,
        audience: Audience,
        own: [u8; 32],
    ) -> Self {
        store.enable();
        Self {
            store,
            methods,
            audience,
            entry_key: EntryKey::new(ServiceKey::store_key, own),
            running: RunningHere::default(),
            lines: KeyedLogLimiter::default(),
        }
    }

    /// How many outcomes and claims are kept, and their bytes.
    pub(super) fn held(&self) -> (usize, usize) {
        self.store.held()
    }

    /// Forgets whose lines it has counted.
    pub(super) fn tidy(&self) {
        for ((what, agent), suppressed) in self.lines.tidy() {
            tracing::warn!(target: "sealwire::call", %agent, suppressed, "left out before: {what}");
        }
    }

    fn log(&self, attempt: &Attempt, reason: Option<OutcomeStoreError>, what: &'static str) {
        let agent = attempt.key.agent();
        if let Some(suppressed) = self.lines.check(&(what, agent.clone())) {
            let reason = reason.map(|reason| reason.to_string());
            tracing::warn!(target: "sealwire::call", %agent, message_id = attempt.message, reason, suppressed, "{what}");
        }
    }

    /// Whether a call can be made as it is made: waiting for its outcome, or as a task.
    pub(super) fn admits(&self, call: &Call) -> Result<(), NotSo> {
        let rule = self.methods.get(call.method()).and_then(|declared| declared.task);
        match (rule, call.message.task_until_ms) {
            (None, Some(_)) => Err(NotSo::AsTask),
            (Some(TaskRule { is_required: true, .. }), None) => Err(NotSo::Attached),
            _ => Ok(()),
        }
    }

    /// The attempt of a permitted call; `None` if its method is not declared idempotent, or the call has no key. As a task, its claim holds
    /// for `lease`, and is renewed.
    pub(super) fn attempt(&self, call: &Call, lease: Duration, now_ms: u64) -> Option<Attempt> {
        let declared = *self.methods.get(call.method())?;
        let key = call.message.idempotency_key.as_deref()?;
        let caller = call.caller();
        // Compared byte for byte: a looser reading of JSON would sooner or later take two different numbers for the
        // same.
        let params = call.params().map_or("", |params: &Params| params.raw().get());
        let open = Arc::clone(&call.message.open);
        let task = call.message.task_until_ms.zip(declared.task).map(|(wanted_ms, rule)| {
            let limit_ms = wanted_ms.min(now_ms.saturating_add(millis(rule.limit)));
            Box::new(TaskHead { started: now_ms / 1000, limit_ms, cancel: false, progress: None })
        });
        let deadline_ms = match &task {
            Some(task) => task.limit_ms.min(now_ms.saturating_add(millis(lease))),
            // The claim lasts until then. With a lease beyond it, the call would run beside the next one.
            None => open.freeze_deadline(),
        };
        Some(Attempt {
            key: self.key_of(caller, call.method(), key),
            declared,
            params: OutcomeKey::new(caller.agent.clone(), params.as_bytes()).digest().to_owned(),
            message: call.message.id.to_string(),
            deadline_ms,
            open,
            task,
        })
    }

    /// Under which key the store has the call that `caller` has made with its own key.
    fn key_of(&self, caller: &Caller, method: &str, key: &str) -> OutcomeKey {
        // Delegated calls are also told apart by issuer: two issuers may each know another `user-42`.
        let issuer = if caller.delegated { caller.token.issuer.as_str() } else { "" };
        let subject = if caller.delegated { caller.subject.as_str() } else { "" };
        let parts = [self.audience.as_str(), method, caller.agent.as_str(), issuer, subject, key];
        OutcomeKey::new(caller.agent.clone(), &OutcomeKey::scope(&parts))
    }

    /// What is known under the key without claiming it: the outcome, or why there is none; `None` if the call may run.
    ///
    /// Cancel safe.
    pub(super) async fn known(&self, attempt: &Attempt, verifier: &Verifier, now_ms: u64) -> Option<Begun> {
        let Some(mac) = self.mac(verifier) else { return Some(Begun::Refused(OutcomeStoreError::Unavailable)) };
        match self.store.read(&attempt.key).await {
            Ok(None) => None,
            Ok(Some((_, content))) => self.answers(attempt, &mac, &content, now_ms),
            Err(error) => Some(Begun::Refused(error)),
        }
    }

    /// What an entry answers to an attempt; `None` if it leaves the key free.
    fn answers(&self, attempt: &Attempt, mac: &HmacKey, content: &[u8], now_ms: u64) -> Option<Begun> {
        Some(match attempt.meaning(mac, content, now_ms) {
            Meaning::Foreign => {
                let what = "a stored outcome is not of this service, or of a service key that is no longer in force";
                self.log(attempt, None, what);
                Begun::Conflict(Conflict::Unknown)
            }
            Meaning::Stored(outcome) => Begun::Stored(outcome),
            Meaning::Conflict(conflict) => Begun::Conflict(conflict),
            Meaning::Free if lock(&self.running).contains_key(&attempt.key) => Begun::Conflict(RUNNING),
            Meaning::Free => return None,
        })
    }

    /// Claims the key, or finds out why that is not possible.
    ///
    /// Cancel safety: a dropped future withdraws its claim.
    pub(super) async fn begin(&self, attempt: Attempt, verifier: &Verifier, now_ms: u64) -> Begun {
        let Some(mac) = self.mac(verifier) else { return Begun::Refused(OutcomeStoreError::Unavailable) };
        let claim = attempt.entry(&mac, State::Running);
        let keep = attempt.claim_lasts(now_ms);
        let claiming = self.claiming(&attempt, &mac, 0, &claim, None, keep);
        let (revision, content) = match self.store.claim(&attempt.key, claim.clone(), keep).await {
            Ok(Claimed::New { revision }) => {
                claiming.settle();
                return self.run(attempt, revision, claim, None);
            }
            Ok(Claimed::Held { revision, content }) => {
                claiming.settle();
                (revision, content)
            }
            Err(error) => return claiming.refuse(error),
        };
        if let Some(begun) = self.answers(&attempt, &mac, &content, now_ms) {
            return begun;
        }
        let claiming = self.claiming(&attempt, &mac, revision, &claim, Some(&content), keep);
        match self.store.replace(&attempt.key, revision, claim.clone(), keep).await {
            Ok(revision) => {
                claiming.settle();
                self.run(attempt, revision, claim, Some(content))
            }
            // Another call was quicker.
            Err(OutcomeStoreError::Taken) => {
                claiming.settle();
                Begun::Conflict(RUNNING)
            }
            Err(error) => claiming.refuse(error),
        }
    }

    fn claiming<'a>(
        &'a self,
        attempt: &'a Attempt,
        mac: &'a HmacKey,
        revision: u64,
        claim: &'a Bytes,
        before: Option<&'a Bytes>,
        keep: Duration,
    ) -> Claiming<'a> {
        Claiming { store: &*self.store, attempt, mac, revision, claim, before, keep, is_settled: false }
    }

    fn run(&self, attempt: Attempt, revision: u64, claim: Bytes, before: Option<Bytes>) -> Begun {
        let here = Here::new(&self.running, &attempt);
        Begun::Run(Box::new(Ticket { attempt, revision, claim, before, here }))
    }

    /// Gives back the key of a call that is not run after all.
    ///
    /// Cancel safety: a dropped future withdraws the claim that it has not given back.
    pub(super) async fn give_back(&self, ticket: Ticket, verifier: &Verifier) {
        let Ticket { attempt, revision, claim, before, here: _here } = ticket;
        let Some(mac) = self.mac(verifier) else { return };
        let keep = attempt.declared.keep;
        let claiming = self.claiming(&attempt, &mac, revision, &claim, before.as_ref(), keep);
        match self.store.replace(&attempt.key, revision, claiming.instead(), keep).await {
            Ok(_) | Err(OutcomeStoreError::Taken) => claiming.settle(),
            Err(reason) => {
                let what = "the idempotency key of a call that was not begun is given back once the store can be asked";
                self.log(&attempt, Some(reason), what);
            }
        }
    }

    /// Records how the run ended. If that fails, the claim stays, and later says that nobody knows.
    pub(super) async fn end(&self, ticket: Ticket, ended: Ended<'_>, verifier: &Verifier, now_ms: u64) {
        // The call counts as running until its outcome is stored.
        if let Err(reason) = self.write_end(&ticket, &ended, verifier, now_ms).await {
            self.log(&ticket.attempt, Some(reason), NOT_KEPT);
        }
    }

    async fn write_end(
        &self,
        ticket: &Ticket,
        ended: &Ended<'_>,
        verifier: &Verifier,
        now_ms: u64,
    ) -> Result<u64, OutcomeStoreError> {
        let Ticket { attempt, revision, .. } = ticket;
        let mac = self.mac(verifier).ok_or(OutcomeStoreError::Unavailable)?;
        let keep = attempt.declared.keep;
        let (state, body) = match ended {
            Ended::With(outcome) => (State::Done, Some(Response::new(Id::null(), (*outcome).clone()).to_bytes())),
            Ended::Unknown => (State::Unknown, None),
            Ended::Cancelled => (State::Cancelled, None),
        };
        let entry = |state, body: Option<&[u8]>| attempt.ended(state, now_ms).sealed(&mac, &attempt.key, body);
        let written = self.put(&attempt.key, *revision, entry(state, body.as_deref()), keep).await;
        let no_room = [OutcomeStoreError::TooLarge, OutcomeStoreError::Full, OutcomeStoreError::AgentFull];
        if state == State::Done && written.is_err_and(|error| no_room.contains(&error)) {
            // No larger than the claim, so there is room for it.
            return self.put(&attempt.key, *revision, entry(State::NotKept, None), keep).await;
        }
        written
    }

    /// The key of the entries' MACs.
    fn mac(&self, verifier: &Verifier) -> Option<HmacKey> {
        self.entry_key.of(&*self.store, verifier, &self.audience)
    }
}

impl Attempt {
    /// What an entry in this state says.
    fn head(&self, state: State) -> Head {
        let (params, message) = (self.params.clone(), self.message.clone());
        Head { state, params, message, until_ms: self.deadline_ms, task: self.task.as_deref().cloned(), ended: None }
    }

    /// The same once the run has ended.
    fn ended(&self, state: State, now_ms: u64) -> Head {
        let task = self.task.as_deref().cloned().map(|task| TaskHead { cancel: false, progress: None, ..task });
        let ended = self.declared.task.map(|_| now_ms / 1000);
        Head { task, ended, ..self.head(state) }
    }

    /// An entry without an outcome.
    fn entry(&self, mac: &HmacKey, state: State) -> Bytes {
        self.head(state).sealed(mac, &self.key, None)
    }

    fn meaning(&self, mac: &HmacKey, entry: &[u8], now_ms: u64) -> Meaning {
        let Some((head, body)) = Head::open(mac, &self.key, entry) else {
            return Meaning::Foreign;
        };
        // Nothing was executed under the key, whatever its parameters.
        if head.state == State::NotStarted {
            return Meaning::Free;
        }
        if head.params != self.params {
            return Meaning::Conflict(Conflict::OtherParams);
        }
        match head.state {
            State::Running if head.is_running(now_ms) => Meaning::Conflict(RUNNING),
            State::Running | State::Unknown if self.declared.rerun_if_lost => Meaning::Free,
            State::Running | State::Unknown => Meaning::Conflict(Conflict::Unknown),
            State::Cancelled => Meaning::Conflict(Conflict::Cancelled),
            State::NotKept => Meaning::Conflict(Conflict::NotKept),
            State::Done => match Responses::parse(body, &Limits::default()) {
                Ok(Responses::Single(response)) => Meaning::Stored(response.outcome),
                _ => Meaning::Conflict(Conflict::NotKept),
            },
            State::NotStarted => Meaning::Free,
        }
    }

    /// A claim is kept for longer than its run takes, and than what is recorded of the run afterwards.
    fn claim_lasts(&self, now_ms: u64) -> Duration {
        self.declared.keep + Duration::from_millis(self.deadline_ms.saturating_sub(now_ms) + GRACE_MS)
    }
}

/// With the time after which it may be worth asking again.
const RUNNING: Conflict = Conflict::Running { retry_after_ms: 250 };

const NOT_KEPT: &str = "an outcome was not kept: a repeated call is told that it is unknown";

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing between lock and unlock can panic halfway.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
