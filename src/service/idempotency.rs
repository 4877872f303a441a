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

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::calls::Call;
use super::entry_key::EntryKey;
use crate::auth::{Claimed, OutcomeKey, OutcomeStore, OutcomeStoreError, Verifier, Withdrawal};
use crate::log_limiter::KeyedLogLimiter;
use crate::name::Name;
use crate::rpc::{Id, Limits, Outcome, Params, Response, Responses};
use crate::wire::{Audience, HmacKey, ServiceKey};

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
}

impl Idempotent {
    /// The longest time for which an outcome is kept: a week.
    pub const MOST: Duration = Duration::from_secs(7 * 24 * 3600);

    /// Keeps outcomes for this long after the run has ended, 1 s to a week. After that, the key counts as new.
    #[must_use]
    pub const fn keep(keep: Duration) -> Self {
        Self { keep, rerun_if_lost: false }
    }

    /// Runs the method again under the same key if nobody knows how the last run ended: its replica died, or its deadline passed. Without
    /// this, the caller is told that the outcome is unknown, and nothing runs.
    #[must_use]
    pub const fn rerun_if_lost(mut self) -> Self {
        self.rerun_if_lost = true;
        self
    }

    pub(super) fn is_valid(&self) -> bool {
        (Duration::from_secs(1)..=Self::MOST).contains(&self.keep)
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
type RunningHere = Arc<Mutex<HashSet<OutcomeKey>>>;

/// A call that is to run only once.
#[derive(Debug)]
pub(super) struct Attempt {
    key: OutcomeKey,
    declared: Idempotent,
    params: String,
    message: String,
    deadline_ms: u64,
}

/// What to do with an attempt.
#[derive(Debug)]
pub(super) enum Begun {
    /// This call runs.
    Run(Ticket),
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
        self.before.cloned().unwrap_or_else(|| self.attempt.entry(self.mac, State::NotStarted, None))
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
    fn new(running: &RunningHere, key: &OutcomeKey) -> Self {
        lock(running).insert(key.clone());
        Self(Arc::clone(running), key.clone())
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
}

/// What an entry says besides the outcome.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Head {
    state: State,
    /// The digest of the parameters.
    params: String,
    /// The message that wrote it.
    message: String,
    /// When the run is stopped if it still goes on, in milliseconds since the Unix epoch.
    until_ms: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum State {
    Running,
    Done,
    Unknown,
    NotKept,
    NotStarted,
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

    /// The attempt of a permitted call; `None` if its method is not declared idempotent, or the call has no key.
    pub(super) fn attempt(&self, call: &Call) -> Option<Attempt> {
        let declared = *self.methods.get(call.method())?;
        let key = call.message.idempotency_key.as_deref()?;
        let caller = call.caller();
        // Delegated calls are also told apart by issuer: two issuers may each know another `user-42`.
        let issuer = if caller.delegated { caller.token.issuer.as_str() } else { "" };
        let subject = if caller.delegated { caller.subject.as_str() } else { "" };
        let parts = [self.audience.as_str(), call.method(), caller.agent.as_str(), issuer, subject, key];
        // Compared byte for byte: a looser reading of JSON would sooner or later take two different numbers for the
        // same.
        let params = call.params().map_or("", |params: &Params| params.raw().get());
        Some(Attempt {
            key: OutcomeKey::new(caller.agent.clone(), &OutcomeKey::scope(&parts)),
            declared,
            params: OutcomeKey::new(caller.agent.clone(), params.as_bytes()).digest().to_owned(),
            message: call.message.id.to_string(),
            // The claim lasts until then. With a lease beyond it, the call would run beside the next one.
            deadline_ms: call.message.open.freeze_deadline(),
        })
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
            Meaning::Free if lock(&self.running).contains(&attempt.key) => Begun::Conflict(RUNNING),
            Meaning::Free => return None,
        })
    }

    /// Claims the key, or finds out why that is not possible.
    ///
    /// Cancel safety: a dropped future withdraws its claim.
    pub(super) async fn begin(&self, attempt: Attempt, verifier: &Verifier, now_ms: u64) -> Begun {
        let Some(mac) = self.mac(verifier) else { return Begun::Refused(OutcomeStoreError::Unavailable) };
        let claim = attempt.entry(&mac, State::Running, None);
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
        let here = Here::new(&self.running, &attempt.key);
        Begun::Run(Ticket { attempt, revision, claim, before, here })
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
    pub(super) async fn end(&self, ticket: Ticket, ended: Ended<'_>, verifier: &Verifier) {
        // The call counts as running until its outcome is stored.
        let Ticket { attempt, revision, here: _here, .. } = ticket;
        let Some(mac) = self.mac(verifier) else { return };
        let keep = attempt.declared.keep;
        let (state, body) = match &ended {
            Ended::With(outcome) => (State::Done, Some(Response::new(Id::null(), (*outcome).clone()).to_bytes())),
            Ended::Unknown => (State::Unknown, None),
        };
        let entry = attempt.entry(&mac, state, body.as_deref());
        let mut written = self.store.replace(&attempt.key, revision, entry, keep).await;
        let no_room = [OutcomeStoreError::TooLarge, OutcomeStoreError::Full, OutcomeStoreError::AgentFull];
        if state == State::Done && written.is_err_and(|error| no_room.contains(&error)) {
            // No larger than the claim, so there is room for it.
            let entry = attempt.entry(&mac, State::NotKept, None);
            written = self.store.replace(&attempt.key, revision, entry, keep).await;
        }
        if let Err(reason) = written {
            self.log(&attempt, Some(reason), "an outcome was not kept: a repeated call is told that it is unknown");
        }
    }

    /// The key of the entries' MACs.
    fn mac(&self, verifier: &Verifier) -> Option<HmacKey> {
        self.entry_key.of(&*self.store, verifier, &self.audience)
    }
}

impl Attempt {
    /// What the broker or this process keeps: the MAC, what the entry says about the call, and the call's outcome.
    fn entry(&self, mac: &HmacKey, state: State, outcome: Option<&[u8]>) -> Bytes {
        let head =
            Head { state, params: self.params.clone(), message: self.message.clone(), until_ms: self.deadline_ms };
        let mut signed = serde_json::to_vec(&head).unwrap_or_default();
        signed.push(b'\n');
        signed.extend_from_slice(outcome.unwrap_or_default());
        let proof = mac.sign(&self.bound(&signed));
        let mut entry = proof.to_vec();
        entry.extend_from_slice(&signed);
        // The claim leaves room for each state that may replace it without an outcome.
        if outcome.is_none() {
            entry.resize(entry.len().max(CLAIM), b' ');
        }
        entry.into()
    }

    /// What is signed: an entry under one key is not valid under another.
    fn bound(&self, signed: &[u8]) -> Vec<u8> {
        [self.key.digest().as_bytes(), b"\n", signed].concat()
    }

    /// Reads an entry that was made under this key.
    fn read<'a>(&self, mac: &HmacKey, entry: &'a [u8]) -> Option<(Head, &'a [u8])> {
        let (proof, signed) = entry.split_at_checked(MAC)?;
        let mut lines = signed.splitn(2, |byte| *byte == b'\n');
        let (head, body) = (lines.next()?, lines.next()?);
        // The padding of a claim is not signed and means nothing.
        let padded = body.iter().all(|byte| *byte == b' ');
        let signed = if padded { signed.get(..=head.len())? } else { signed };
        if !mac.verify(&self.bound(signed), proof) {
            return None;
        }
        let head: Head = serde_json::from_slice(head).ok()?;
        Some((head, if padded { &[] } else { body }))
    }

    fn meaning(&self, mac: &HmacKey, entry: &[u8], now_ms: u64) -> Meaning {
        let Some((head, body)) = self.read(mac, entry) else {
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
            State::Running if now_ms < head.until_ms.saturating_add(GRACE_MS) => Meaning::Conflict(RUNNING),
            State::Running | State::Unknown if self.declared.rerun_if_lost => Meaning::Free,
            State::Running | State::Unknown => Meaning::Conflict(Conflict::Unknown),
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

/// Bytes of an HMAC-SHA256.
const MAC: usize = 32;

/// The fewest bytes of an entry without an outcome: MAC, digest, message id, time and names take about 150.
const CLAIM: usize = 256;

/// For how long after its deadline a run counts as running: replicas' clocks differ by at most twice the skew, here twice 5 s, and a run
/// that is stopped has 2 s to be recorded.
const GRACE_MS: u64 = 12_000;

/// With the time after which it may be worth asking again.
const RUNNING: Conflict = Conflict::Running { retry_after_ms: 250 };

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing between lock and unlock can panic halfway.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
