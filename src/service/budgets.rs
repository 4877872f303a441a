//! The budgets that permitted calls are charged to: how much is used, here or at all replicas, and the step from a call that may run to one
//! that is charged.
//! Never gives back what was charged, and never guesses: what cannot be counted does not run.
//!
//! A count is kept in this process, and if its budget is shared, in the store of outcomes too, changed by compare-and-set. Calls that come
//! while it is being changed wait, and are then charged together with one change. What this replica has seen in the store has to be in
//! whatever it reads there later; otherwise the store has lost it, or somebody has written an earlier count back, and calls are refused
//! until what was lost would no longer count.

mod count;
mod uncharged;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::approvals::{Approvals, Unapproved};
use super::authorize::{Permitted, Withheld};
use super::calls::Call;
use super::counters::Counters;
use crate::auth::{Caller, Claimed, OutcomeKey, OutcomeStore, OutcomeStoreError, Verifier};
use crate::clock::Clock;
use crate::log_limiter::KeyedLogLimiter;
use crate::name::Name;
use crate::policy::{Budget, Charge, Per, PolicySet, Question};
use crate::rpc::Params;
use crate::wire::{Audience, HmacKey, Nonce};

use count::{Count, PARTS, Span};
pub use uncharged::Uncharged;

/// A call that may run.
#[derive(Debug)]
pub(super) enum Runnable {
    Permitted(Permitted),
    /// Its approval is used up first.
    Withheld(Withheld),
}

impl Runnable {
    pub(super) fn call(&self) -> &Call {
        match self {
            Self::Permitted(permitted) => permitted.call(),
            Self::Withheld(withheld) => withheld.call(),
        }
    }
}

/// A call that may run, and that is charged to all its budgets.
#[derive(Debug)]
pub(super) struct Charged {
    runnable: Runnable,
    /// It is for no budget, so that took no time.
    pub(super) at_once: bool,
}

/// A call that runs now. There is no other way to one than [`Charged::begin`].
#[derive(Debug)]
pub(super) struct Begun {
    permitted: Permitted,
    /// It waited for nothing.
    pub(super) at_once: bool,
}

impl Begun {
    pub(super) fn call(&self) -> &Call {
        self.permitted.call()
    }

    pub(super) fn into_permitted(self) -> Permitted {
        self.permitted
    }
}

impl Charged {
    pub(super) fn call(&self) -> &Call {
        self.runnable.call()
    }

    /// Uses up the call's approval, if it needs one.
    ///
    /// # Errors
    /// [`Unapproved`]; `None` if no approvals are kept. The call does not run, and stays charged.
    pub(super) async fn begin(
        self,
        approvals: Option<&Approvals>,
        verifier: &Verifier,
        clock: &dyn Clock,
    ) -> Result<Begun, Option<Unapproved>> {
        let Self { runnable, at_once } = self;
        match (runnable, approvals) {
            (Runnable::Permitted(permitted), _) => Ok(Begun { permitted, at_once }),
            (Runnable::Withheld(_), None) => Err(None),
            (Runnable::Withheld(withheld), Some(approvals)) => {
                // Boxed, since few calls need it.
                let permitted = Box::pin(withheld.begin(approvals, verifier, clock.now_s())).await.map_err(Some)?;
                Ok(Begun { permitted, at_once: false })
            }
        }
    }
}

/// The budgets of a service, and how much of them is used.
pub(super) struct Budgets {
    /// `None` if the guard keeps nothing: calls that are charged to a shared budget are refused.
    store: Option<Arc<dyn OutcomeStore>>,
    audience: Audience,
    /// For entries that no other process reads.
    own: HmacKey,
    counts: Mutex<Counts>,
    /// Differs between replicas that are in each other's way.
    pace: Duration,
    /// Limits the log lines that callers can cause: by agent.
    lines: KeyedLogLimiter<Name>,
}

/// The counts that this process has seen.
#[derive(Debug, Default)]
struct Counts {
    known: HashMap<OutcomeKey, Kept>,
    /// INVARIANT: how many of them each agent's calls made; none is 0.
    by_agent: HashMap<Name, usize>,
    /// When it may be looked again for those that no longer count.
    next_look: Option<Instant>,
}

/// A count, for as long as it matters.
#[derive(Debug)]
struct Kept {
    counter: Arc<Counter>,
    /// The agent whose call made it.
    made_by: Name,
    until: Instant,
}

/// One count, and who waits to be charged to it.
#[derive(Debug, Default)]
struct Counter {
    known: tokio::sync::Mutex<Known>,
    waiting: Mutex<Vec<Waiting>>,
}

/// What this replica knows of a count.
#[derive(Debug, Default)]
struct Known {
    /// That of the stored entry; 0 if none was seen.
    revision: u64,
    count: Count,
}

/// A call that waits to be charged.
#[derive(Debug)]
struct Waiting {
    amount: u64,
    at_most: u64,
    tell: oneshot::Sender<Result<(), Uncharged>>,
}

/// What is stored.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    count: Count,
    /// Random, so that no two contents are equal.
    written: String,
}

/// What charging goes by.
#[derive(Clone, Copy)]
struct InForce<'a> {
    verifier: &'a Verifier,
    clock: &'a dyn Clock,
}

impl Budgets {
    pub(super) fn new(store: Option<Arc<dyn OutcomeStore>>, audience: Audience, own: [u8; 32]) -> Self {
        let [first, ..] = own;
        Self {
            store,
            audience,
            own: HmacKey::new(own),
            counts: Mutex::default(),
            pace: Duration::from_micros(500 + 20 * u64::from(first)),
            lines: KeyedLogLimiter::default(),
        }
    }

    /// Prepares the store if a policy needs it.
    pub(super) fn prepare(&self, policy: &PolicySet, verifier: &Verifier) {
        if !policy.budgets().any(Budget::is_shared) {
            return;
        }
        match &self.store {
            Some(store) if !store.is_shared() || verifier.service_key().is_some() => store.enable(),
            _ => tracing::warn!(
                target: "sealwire::policy",
                "calls that are charged to a shared budget are refused: that takes `LocalGuard`, or `SharedGuard` and a service key"
            ),
        }
    }

    /// Forgets what no longer counts.
    pub(super) fn tidy(&self) {
        lock(&self.counts).look(Instant::now());
        for (agent, suppressed) in self.lines.tidy() {
            tracing::warn!(target: "sealwire::call", %agent, suppressed, "left out before: a budget's count cannot be relied on");
        }
    }

    /// How many counts are kept.
    pub(super) fn held(&self) -> usize {
        lock(&self.counts).known.len()
    }

    /// Charges a call to all budgets that it belongs to.
    ///
    /// # Errors
    /// [`Uncharged`]: the call does not run. It may have been charged to some of them all the same.
    ///
    /// Cancel safety: if the future is dropped, it may have been charged.
    pub(super) async fn charge(
        &self,
        runnable: Runnable,
        policy: &PolicySet,
        verifier: &Verifier,
        clock: &dyn Clock,
        counters: &Counters,
    ) -> Result<Charged, Uncharged> {
        if policy.budgets_of(runnable.call().method()).next().is_none() {
            return Ok(Charged { runnable, at_once: true });
        }
        let in_force = InForce { verifier, clock };
        // Boxed, since few calls need it.
        let charged = Box::pin(async {
            let call = runnable.call();
            let params = call.params().map(Params::raw);
            // A budget does not look at the time; the count does.
            let question = Question { caller: call.caller(), method: call.method(), params, now_ms: 0 };
            let charges = policy.charges(&question).map_err(Uncharged::Params)?;
            tokio::select! {
                biased;
                () = call.message.open.deadline(clock) => Err(Uncharged::Deadline),
                charged = self.charge_all(&charges, call.caller(), in_force, counters) => charged,
            }
        });
        charged.await?;
        Ok(Charged { runnable, at_once: false })
    }

    async fn charge_all(
        &self,
        charges: &[Charge<'_>],
        caller: &Caller,
        in_force: InForce<'_>,
        counters: &Counters,
    ) -> Result<(), Uncharged> {
        // Those that cost nothing come first: what they refuse is not charged where it costs.
        let mut charges: Vec<_> = charges.iter().collect();
        charges.sort_by_key(|charge| charge.budget.is_shared());
        let is_one_of_several = charges.len() > 1;
        let mut found = Vec::new();
        for charge in charges {
            let budget = charge.budget;
            let span = self.span(budget, in_force.verifier);
            let key = self.key(budget, caller).ok_or(Uncharged::Store(OutcomeStoreError::Unavailable))?;
            let refused = |uncharged: &Uncharged| {
                if let Uncharged::Spent { .. } | Uncharged::Above { .. } = uncharged {
                    counters.budget(budget.name(), false);
                }
            };
            if charge.amount > budget.at_most() {
                let above = Uncharged::Above { budget: budget.name().to_owned() };
                refused(&above);
                return Err(above);
            }
            let counter = self.counter(&key, &caller.agent, span).map_err(Uncharged::Store)?;
            // Where one has no room, none is charged, as far as can be told.
            if is_one_of_several
                && let Ok(known) = counter.known.try_lock()
                && let Err(wait) =
                    known.count.clone().charge(charge.amount, budget.at_most(), in_force.clock.now_ms(), span)
            {
                counters.budget(budget.name(), false);
                return Err(Uncharged::Spent { budget: budget.name().to_owned(), retry_after_ms: wait });
            }
            found.push((charge, key, counter, span, refused));
        }
        for (charge, key, counter, span, refused) in found {
            let charged = match charge.budget.is_shared() {
                true => self.charge_shared(charge, &key, &counter, span, in_force).await,
                false => {
                    let mut known = counter.known.lock().await;
                    charged(
                        &mut known.count,
                        charge.budget.name(),
                        charge.amount,
                        charge.budget.at_most(),
                        in_force,
                        span,
                    )
                }
            };
            charged.inspect_err(refused)?;
            counters.budget(charge.budget.name(), true);
        }
        Ok(())
    }

    /// Charges one call to one shared count, together with those that wait for the same.
    async fn charge_shared(
        &self,
        charge: &Charge<'_>,
        key: &OutcomeKey,
        counter: &Counter,
        span: Span,
        in_force: InForce<'_>,
    ) -> Result<(), Uncharged> {
        let (tell, mut told) = oneshot::channel();
        let (amount, at_most) = (charge.amount, charge.budget.at_most());
        lock(&counter.waiting).push(Waiting { amount, at_most, tell });
        let mut known = counter.known.lock().await;
        match told.try_recv() {
            Ok(charged) => return charged,
            // Whoever was to charge it has gone in the middle: it may be charged.
            Err(oneshot::error::TryRecvError::Closed) => return Err(Uncharged::Store(OutcomeStoreError::Unanswered)),
            Err(oneshot::error::TryRecvError::Empty) => {}
        }
        let mut all = std::mem::take(&mut *lock(&counter.waiting));
        // Callers that have gone are not charged.
        all.retain(|waiting| !waiting.tell.is_closed());
        let results = self.charge_together(&mut known, &all, charge.budget.name(), key, span, in_force).await;
        for (waiting, result) in all.into_iter().zip(results) {
            // Whoever has gone meanwhile stays charged.
            let _gone = waiting.tell.send(result);
        }
        told.try_recv().unwrap_or(Err(Uncharged::Store(OutcomeStoreError::Unanswered)))
    }

    /// Charges as many of these, in their order, as there is room for, with one change of what is stored.
    async fn charge_together(
        &self,
        known: &mut Known,
        all: &[Waiting],
        budget: &str,
        key: &OutcomeKey,
        span: Span,
        in_force: InForce<'_>,
    ) -> Vec<Result<(), Uncharged>> {
        let refused = |why: &Uncharged| all.iter().map(|_| Err(why.clone())).collect();
        let Some((store, mac)) = self.store_and_mac(in_force.verifier) else {
            return refused(&Uncharged::Store(OutcomeStoreError::Unavailable));
        };
        let mut why = Uncharged::Store(OutcomeStoreError::Taken);
        for attempt in 0..ATTEMPTS {
            let mut count = known.count.clone();
            let results: Vec<_> = all
                .iter()
                .map(|waiting| charged(&mut count, budget, waiting.amount, waiting.at_most, in_force, span))
                .collect();
            // What is stored is no less than what is known.
            if count == known.count {
                return results;
            }
            let content = seal(&count, &mac, key);
            let keep = Duration::from_millis(span.counts_for_ms()) + MARGIN;
            let written = match known.revision {
                0 => store.claim(key, content, keep).await.map(|claimed| match claimed {
                    Claimed::New { revision } => Ok(revision),
                    Claimed::Held { revision, content } => Err((revision, content)),
                }),
                revision => store.replace(key, revision, content, keep).await.map(Ok),
            };
            let found = match written {
                Ok(Ok(revision)) => {
                    *known = Known { revision, count };
                    return results;
                }
                Ok(Err(held)) => Ok(Some(held)),
                // Another replica was quicker.
                Err(OutcomeStoreError::Taken) => store.read(key).await,
                Err(error) => Err(error),
            };
            why = match found {
                Ok(found) => match known.learn(found, &mac, key, span, in_force.clock.now_ms()) {
                    Ok(()) => Uncharged::Store(OutcomeStoreError::Taken),
                    // Copies of the stream may be behind for a moment.
                    Err(()) => Uncharged::Unknown { budget: budget.to_owned() },
                },
                Err(error) => {
                    let why = Uncharged::Store(error);
                    // Those without room were refused whatever became of the others.
                    return results.into_iter().map(|result| result.and(Err(why.clone()))).collect();
                }
            };
            tokio::time::sleep(self.pace * attempt).await;
        }
        if let Uncharged::Unknown { .. } = why
            && let Some(suppressed) = self.lines.check(key.agent())
        {
            let agent = key.agent();
            tracing::warn!(
                target: "sealwire::call", %agent, budget, suppressed,
                "a budget's count cannot be relied on: the store has lost it, or it is of another service key. Its calls are refused \
                 until what was charged no longer counts; under another name, the budget begins anew"
            );
        }
        refused(&why)
    }

    /// Where shared counts are kept, and the key of their MACs; `None` if the replicas have none in common.
    fn store_and_mac(&self, verifier: &Verifier) -> Option<(&dyn OutcomeStore, HmacKey)> {
        let store = self.store.as_deref()?;
        let mac = match store.is_shared() {
            true => verifier.service_key()?.budget_key(&self.audience),
            false => self.own.clone(),
        };
        Some((store, mac))
    }

    /// The counter of a key, which `agent` asks for. It is kept until nothing that is charged now counts any more.
    fn counter(&self, key: &OutcomeKey, agent: &Name, span: Span) -> Result<Arc<Counter>, OutcomeStoreError> {
        let now = Instant::now();
        let until = now + Duration::from_millis(span.counts_for_ms()) + MARGIN;
        let mut counts = lock(&self.counts);
        if let Some(kept) = counts.known.get_mut(key) {
            kept.until = until;
            return Ok(Arc::clone(&kept.counter));
        }
        if counts.admits(agent).is_err() {
            counts.look(now);
        }
        counts.admits(agent)?;
        *counts.by_agent.entry(agent.clone()).or_default() += 1;
        let counter = Arc::<Counter>::default();
        let kept = Kept { counter: Arc::clone(&counter), made_by: agent.clone(), until };
        counts.known.insert(key.clone(), kept);
        Ok(counter)
    }

    /// Where the count is. What a budget is called, what it adds up and in which time is part of that, and its limit is not.
    fn key(&self, budget: &Budget, caller: &Caller) -> Option<OutcomeKey> {
        let (per, kind, issuer, name) = match budget.per() {
            Per::Agent => ("agent", "agent", "", caller.agent.as_str()),
            // Two issuers may each know another `user-42`.
            Per::Subject if caller.delegated => {
                ("subject", "subject", caller.token.issuer.as_str(), caller.subject.as_str())
            }
            Per::Subject => ("subject", "agent", "", caller.agent.as_str()),
        };
        let window = budget.window().as_secs().to_string();
        let parts = PARTS.to_string();
        let sum = budget.sum().unwrap_or_default();
        let whose = [per, kind, issuer, name];
        let what = [self.audience.as_str(), budget.name(), sum, window.as_str(), parts.as_str()];
        let scope = OutcomeKey::scope(&[&["budget"], &what[..], &whose].concat());
        // A subject is the same whichever agent acts for it, so its entries are charged to nobody else.
        let agent = match kind {
            "agent" => caller.agent.clone(),
            _ => Name::new(OutcomeKey::new(caller.agent.clone(), &OutcomeKey::scope(&whose)).digest()).ok()?,
        };
        Some(OutcomeKey::new(agent, &scope))
    }

    fn span(&self, budget: &Budget, verifier: &Verifier) -> Span {
        // Replicas' clocks differ by at most twice the skew: beyond it, they accept no message.
        let drift_ms = if budget.is_shared() { verifier.window().skew_s.saturating_mul(2_000) } else { 0 };
        Span::new(budget.window().as_secs(), drift_ms)
    }
}

impl fmt::Debug for Budgets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Budgets").field("store", &self.store).finish_non_exhaustive()
    }
}

impl Counts {
    /// Whether one more count of this agent's calls fits. As in the store's own ledger: greedy agents settle at equal shares, and leave one
    /// for the next.
    fn admits(&self, agent: &Name) -> Result<(), OutcomeStoreError> {
        let free = MAX_COUNTS.saturating_sub(self.known.len());
        let held = self.by_agent.get(agent).copied().unwrap_or_default();
        match free {
            0 => Err(OutcomeStoreError::Full),
            _ if held >= free => Err(OutcomeStoreError::AgentFull),
            _ => Ok(()),
        }
    }

    /// Forgets those that no longer count and that no call is being charged to.
    fn look(&mut self, now: Instant) {
        if self.next_look.is_some_and(|next| now < next) {
            return;
        }
        self.next_look = Some(now + LOOK_EVERY);
        self.known.retain(|_, kept| now < kept.until || Arc::strong_count(&kept.counter) > 1);
        self.by_agent.clear();
        for kept in self.known.values() {
            *self.by_agent.entry(kept.made_by.clone()).or_default() += 1;
        }
    }
}

impl Known {
    /// Takes what was found in the store for what is known, if all that is known is in it.
    fn learn(
        &mut self,
        found: Option<(u64, Bytes)>,
        mac: &HmacKey,
        key: &OutcomeKey,
        span: Span,
        now_ms: u64,
    ) -> Result<(), ()> {
        *self = match found {
            None if self.count.counts(now_ms, span) => return Err(()),
            None => Self::default(),
            Some((revision, content)) => {
                let count = open(&content, mac, key).ok_or(())?;
                if revision < self.revision || !count.follows(&self.count, span) {
                    return Err(());
                }
                Self { revision, count }
            }
        };
        Ok(())
    }
}

fn charged(
    count: &mut Count,
    budget: &str,
    amount: u64,
    at_most: u64,
    in_force: InForce<'_>,
    span: Span,
) -> Result<(), Uncharged> {
    let spent = |retry_after_ms| Uncharged::Spent { budget: budget.to_owned(), retry_after_ms };
    count.charge(amount, at_most, in_force.clock.now_ms(), span).map_err(spent)
}

/// The bytes to store under this key.
fn seal(count: &Count, mac: &HmacKey, key: &OutcomeKey) -> Bytes {
    let entry = Entry { count: count.clone(), written: Nonce::random().to_text() };
    let text = serde_json::to_vec(&entry).unwrap_or_default();
    [&mac.sign(&bound(key, &text))[..], &text].concat().into()
}

/// Reads what was stored under this key. `None` if it was not written with this key of the service's.
fn open(content: &[u8], mac: &HmacKey, key: &OutcomeKey) -> Option<Count> {
    let (proof, text) = content.split_at_checked(32)?;
    let is_ours = mac.verify(&bound(key, text), proof);
    let entry: Entry = is_ours.then(|| serde_json::from_slice(text).ok()).flatten()?;
    Some(entry.count)
}

/// What is signed: an entry under one key is not valid under another.
fn bound(key: &OutcomeKey, text: &[u8]) -> Vec<u8> {
    [key.agent().as_str().as_bytes(), b".", key.digest().as_bytes(), b"\n", text].concat()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing between lock and unlock can panic halfway.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How many counts a replica knows, each of less than 2 KiB.
const MAX_COUNTS: usize = 32_768;
/// How often a change of what is stored is tried again because another replica was quicker, or a copy of the stream is behind.
const ATTEMPTS: u32 = 16;
/// How often it is looked for counts that no longer matter, at most.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// For how long a count is kept after it has lost its meaning.
const MARGIN: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::wire::Endpoint;

    #[tokio::test(start_paused = true)]
    async fn the_subjects_of_one_agent_leave_counts_for_others_and_none_is_forgotten_early() {
        let name = |text| Name::new(text).unwrap();
        let endpoint = Endpoint::new(name("test"), name("desk"));
        let budgets = Budgets::new(None, endpoint.audience().clone(), [0; 32]);
        let span = Span::new(60, 0);
        let (greedy, other) = (name("greedy"), name("other"));
        let key = |number: usize| OutcomeKey::new(greedy.clone(), &number.to_be_bytes());
        let made = (0..MAX_COUNTS).take_while(|number| budgets.counter(&key(*number), &greedy, span).is_ok()).count();
        assert_eq!(made, MAX_COUNTS / 2);
        let refused = |number, agent| budgets.counter(&key(number), agent, span).err();
        assert_eq!(refused(MAX_COUNTS, &greedy), Some(OutcomeStoreError::AgentFull));
        assert_eq!(refused(0, &greedy), None, "it is there");
        assert_eq!(refused(MAX_COUNTS, &other), None);

        // As long as anything that was charged can count, it is kept.
        tokio::time::advance(Duration::from_millis(span.counts_for_ms())).await;
        budgets.tidy();
        assert_eq!(budgets.held(), made + 1);
        let charging = budgets.counter(&key(7), &greedy, span).unwrap();
        tokio::time::advance(2 * MARGIN + Duration::from_millis(span.counts_for_ms())).await;
        assert_eq!(refused(MAX_COUNTS + 1, &greedy), None);
        budgets.tidy();
        assert_eq!(budgets.held(), 2, "one is being charged");
        drop(charging);
        tokio::time::advance(LOOK_EVERY).await;
        budgets.tidy();
        assert_eq!(budgets.held(), 1);
    }
}
