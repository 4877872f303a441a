//! Calls with an idempotency key: run once, and answered from what was kept when they come again. Decides and words; where
//! entries are kept is `auth`'s matter.
//! Never shows an outcome to anybody but the caller, the subject and the method that it belongs to, nor before the policy has
//! allowed the call that asks for it.
//!
//! The entry is claimed before the method runs ("running, until then") and replaced by the outcome afterwards. A replica that
//! dies in between leaves the claim. Nobody can tell whether that call had an effect, so it is not run again unless the method
//! is declared so.
//!
//! What a shared store returns may come from another replica, or from a broker that lies: each entry has a MAC under a key of
//! the service's own, over the entry and what it is found by. One that does not hold counts as a call whose outcome is unknown.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::calls::Call;
use crate::auth::{Claimed, OutcomeKey, OutcomeStore, OutcomeStoreError, Verifier, Withdrawal};
use crate::rpc::{Id, Limits, Outcome, Params, Response, Responses};
use crate::wire::{Audience, HmacKey};

/// That a method is run once for each idempotency key, and for how long its outcome is kept.
///
/// ```
/// use std::time::Duration;
/// use sealwire::service::Idempotent;
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
    /// The longest time that an outcome is kept: a week.
    pub const MOST: Duration = Duration::from_secs(7 * 24 * 3600);

    /// Keeps outcomes for so long after they are there, 1 s to a week. Then the key is as good as new.
    #[must_use]
    pub const fn keep(keep: Duration) -> Self {
        Self { keep, rerun_if_lost: false }
    }

    /// Runs the method again under the same key if nobody knows how the last run ended: its replica died, or its deadline passed.
    /// Without this the caller is told so, and nothing runs.
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

/// Why a call with an idempotency key is not run, and has no outcome to be shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Conflict {
    /// The key was used with other parameters.
    #[error("this idempotency key was used with other params")]
    OtherParams,
    /// A call with this key is running.
    #[error("the call with this idempotency key is still running")]
    Running {
        /// When asking again may be worth it, in milliseconds.
        retry_after_ms: u64,
    },
    /// A call with this key was begun, and nobody knows how it ended.
    #[error("the call with this idempotency key was begun, its outcome is unknown, and it is not run again")]
    Unknown,
    /// It was executed, and what came of it was too large to be kept, or found no room.
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

/// The methods that are declared idempotent, and where their outcomes are.
pub(super) struct Idempotency {
    store: Arc<dyn OutcomeStore>,
    methods: BTreeMap<String, Idempotent>,
    audience: Audience,
    /// For entries that nobody else reads.
    own: HmacKey,
    running: RunningHere,
}

/// The keys whose calls run in this process. Their claims say until when, and a clock that leaps is past that while they run.
type RunningHere = Arc<Mutex<HashSet<OutcomeKey>>>;

/// A call that is run once.
#[derive(Debug)]
pub(super) struct Attempt {
    key: OutcomeKey,
    declared: Idempotent,
    params: String,
    message: String,
    deadline_ms: u64,
}

/// What is to be done with it.
#[derive(Debug)]
pub(super) enum Begun {
    /// It is this call that runs.
    Run(Ticket),
    /// It ran before, and this came of it.
    Stored(Outcome),
    Conflict(Conflict),
    /// The store cannot be asked, or has no room: not run.
    Refused(OutcomeStoreError),
}

/// The claim of a call that runs.
#[derive(Debug)]
pub(super) struct Ticket {
    attempt: Attempt,
    revision: u64,
    claim: Bytes,
    /// What was there before it.
    before: Option<Bytes>,
    here: Here,
}

/// A claim that is being made, or given back, for a call that has not begun. Dropped before the store has said what became of it, it
/// is withdrawn.
///
/// INVARIANT: its call never begins after that. Whoever runs it has the claim's [`Ticket`], which there is only once this is settled
/// or which was used up to make this.
struct Claiming<'a> {
    store: &'a dyn OutcomeStore,
    attempt: &'a Attempt,
    mac: &'a HmacKey,
    /// The revision that it replaces; 0 if there is none.
    revision: u64,
    claim: &'a Bytes,
    /// What was there before it.
    before: Option<&'a Bytes>,
    keep: Duration,
    is_settled: bool,
}

impl Claiming<'_> {
    /// What takes the place of the claim of a call that does not run.
    fn instead(&self) -> Bytes {
        self.before.cloned().unwrap_or_else(|| self.attempt.entry(self.mac, State::NotStarted, None))
    }

    /// The store has answered: nothing is left to be withdrawn.
    fn settle(mut self) {
        self.is_settled = true;
    }

    /// The call ends here. A claim of it that is stored all the same, or will be, must not keep its key from others.
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

/// That a key's call runs here, until this is dropped.
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
    /// By itself.
    With(&'a Outcome),
    /// It was stopped, or panicked.
    Unknown,
}

/// What an entry says beside the outcome.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Head {
    state: State,
    /// The digest of the parameters.
    params: String,
    /// The message that wrote it.
    message: String,
    /// When it is stopped if it still runs, in milliseconds since the Unix epoch.
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
        Self { store, methods, audience, own: HmacKey::new(own), running: RunningHere::default() }
    }

    /// The attempt of a permitted call; `None` if its method is not declared idempotent, or it has no key.
    pub(super) fn attempt(&self, call: &Call) -> Option<Attempt> {
        let declared = *self.methods.get(call.method())?;
        let key = call.message.idempotency_key.as_deref()?;
        let caller = call.caller();
        // Who speaks for somebody else is told apart by whose word that is: two issuers may know another `user-42` each.
        let issuer = if caller.delegated { caller.token.issuer.as_str() } else { "" };
        let subject = if caller.delegated { caller.subject.as_str() } else { "" };
        let parts = [self.audience.as_str(), call.method(), caller.agent.as_str(), issuer, subject, key];
        let scope = parts.iter().fold(Vec::new(), |mut scope, part| {
            // With their lengths, so that no two rows of parts are one text.
            scope.extend_from_slice(&u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
            scope.extend_from_slice(part.as_bytes());
            scope
        });
        // Byte for byte: whatever reads JSON more loosely would take two different numbers for one sooner or later.
        let params = call.params().map_or("", |params: &Params| params.raw().get());
        Some(Attempt {
            key: OutcomeKey::new(caller.agent.clone(), &scope),
            declared,
            params: OutcomeKey::new(caller.agent.clone(), params.as_bytes()).digest().to_owned(),
            message: call.message.id.to_string(),
            // The claim lasts until then. A lease beyond it would have the call run beside the next one.
            deadline_ms: call.message.open.freeze_deadline(),
        })
    }

    /// Claims the key, or finds out why not.
    ///
    /// Cancel safety: what a dropped future has claimed is withdrawn.
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
        match attempt.meaning(&mac, &content, now_ms) {
            Meaning::Stored(outcome) => return Begun::Stored(outcome),
            Meaning::Conflict(conflict) => return Begun::Conflict(conflict),
            Meaning::Free if lock(&self.running).contains(&attempt.key) => return Begun::Conflict(RUNNING),
            Meaning::Free => {}
        }
        let claiming = self.claiming(&attempt, &mac, revision, &claim, Some(&content), keep);
        match self.store.replace(&attempt.key, revision, claim.clone(), keep).await {
            Ok(revision) => {
                claiming.settle();
                self.run(attempt, revision, claim, Some(content))
            }
            // Another one was quicker.
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
    /// Cancel safety: what a dropped future has not given back is withdrawn.
    pub(super) async fn give_back(&self, ticket: Ticket, verifier: &Verifier) {
        let Ticket { attempt, revision, claim, before, here: _here } = ticket;
        let Some(mac) = self.mac(verifier) else { return };
        let keep = attempt.declared.keep;
        let claiming = self.claiming(&attempt, &mac, revision, &claim, before.as_ref(), keep);
        match self.store.replace(&attempt.key, revision, claiming.instead(), keep).await {
            Ok(_) | Err(OutcomeStoreError::Taken) => claiming.settle(),
            Err(reason) => {
                tracing::warn!(
                    target: "sealwire::call",
                    agent = %attempt.key.agent(),
                    message_id = attempt.message,
                    %reason,
                    "the idempotency key of a call that was not begun is given back once the store can be asked"
                );
            }
        }
    }

    /// Writes down how the run ended. If that fails the claim stays, and says later that nobody knows.
    pub(super) async fn end(&self, ticket: Ticket, ended: Ended<'_>, verifier: &Verifier) {
        // It counts as running until what came of it is written.
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
            tracing::warn!(
                target: "sealwire::call",
                agent = %attempt.key.agent(),
                message_id = attempt.message,
                %reason,
                "an outcome was not kept: a repetition is told that it is unknown"
            );
        }
    }

    /// The key of the entries' MACs; `None` if replicas have none in common.
    fn mac(&self, verifier: &Verifier) -> Option<HmacKey> {
        if self.store.is_shared() {
            verifier.service_key().map(|key| key.store_key(&self.audience))
        } else {
            Some(self.own.clone())
        }
    }
}

impl Attempt {
    /// What the broker or this process keeps: the MAC, what is said of the call, and its outcome.
    fn entry(&self, mac: &HmacKey, state: State, outcome: Option<&[u8]>) -> Bytes {
        let head =
            Head { state, params: self.params.clone(), message: self.message.clone(), until_ms: self.deadline_ms };
        let mut signed = serde_json::to_vec(&head).unwrap_or_default();
        signed.push(b'\n');
        signed.extend_from_slice(outcome.unwrap_or_default());
        let proof = mac.sign(&self.bound(&signed));
        let mut entry = proof.to_vec();
        entry.extend_from_slice(&signed);
        // The claim has room for each state that may follow it without an outcome.
        if outcome.is_none() {
            entry.resize(entry.len().max(CLAIM), b' ');
        }
        entry.into()
    }

    /// What is signed: an entry under one key is none under another.
    fn bound(&self, signed: &[u8]) -> Vec<u8> {
        [self.key.digest().as_bytes(), b"\n", signed].concat()
    }

    /// Reads an entry that was made under this key.
    fn read<'a>(&self, mac: &HmacKey, entry: &'a [u8]) -> Option<(Head, &'a [u8])> {
        let (proof, signed) = entry.split_at_checked(MAC)?;
        let mut lines = signed.splitn(2, |byte| *byte == b'\n');
        let (head, body) = (lines.next()?, lines.next()?);
        // What fills up a claim is not signed and means nothing.
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
            tracing::error!(
                target: "sealwire::call",
                agent = %self.key.agent(),
                message_id = self.message,
                "a stored outcome is not of this service, or of a service key that is no longer in force"
            );
            return Meaning::Conflict(Conflict::Unknown);
        };
        // Nothing was executed under the key, with whatever parameters.
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

    /// A claim outlives the run that it is for, and what is said of it afterwards.
    fn claim_lasts(&self, now_ms: u64) -> Duration {
        self.declared.keep + Duration::from_millis(self.deadline_ms.saturating_sub(now_ms) + GRACE_MS)
    }
}

/// Bytes of HMAC-SHA256.
const MAC: usize = 32;

/// The least bytes of an entry without an outcome: MAC, digest, message id, time and names are some 150.
const CLAIM: usize = 256;

/// For how long after its deadline a run counts as running: replicas' clocks differ by the skew at most, twice 5 s here, and a
/// run that is stopped writes that down.
const GRACE_MS: u64 = 10_000;

/// With when asking again may be worth it.
const RUNNING: Conflict = Conflict::Running { retry_after_ms: 250 };

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing between lock and unlock can panic halfway.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
