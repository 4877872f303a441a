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
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::sync::{OwnedMutexGuard, oneshot};
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
}

/// A call that runs now. There is no other way to one than [`Budgets::begin_free`] and [`Charged::begin`].
#[derive(Debug)]
pub(super) struct Begun {
    permitted: Permitted,
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
        match (self.runnable, approvals) {
            (Runnable::Permitted(permitted), _) => Ok(Begun { permitted }),
            (Runnable::Withheld(_), None) => Err(None),
            (Runnable::Withheld(withheld), Some(approvals)) => {
                // Boxed, since few calls need it.
                let permitted = Box::pin(withheld.begin(approvals, verifier, clock.now_s())).await.map_err(Some)?;
                Ok(Begun { permitted })
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
    lines: Arc<KeyedLogLimiter<Name>>,
}

/// The counts that this process has seen.
#[derive(Debug, Default)]
struct Counts {
    known: HashMap<OutcomeKey, Kept>,
    /// INVARIANT: how many of them each agent's calls made; none is 0.
    by_agent: HashMap<Name, Made>,
    /// When it may be looked again for those that no longer count.
    next_look: Option<Instant>,
}

/// How many counts one agent's calls made.
#[derive(Debug, Clone, Copy, Default)]
struct Made {
    all: usize,
    /// Those that are stored, and there stand for a subject and not for the agent.
    for_subjects: usize,
}

impl Made {
    fn add(&mut self, for_subject: bool) {
        self.all += 1;
        self.for_subjects += usize::from(for_subject);
    }
}

/// A count, for as long as it matters.
#[derive(Debug)]
struct Kept {
    counter: Arc<Counter>,
    /// The agent whose call made it.
    made_by: Name,
    /// It is stored, and there stands for a subject.
    for_subject: bool,
    until: Instant,
}

/// One count, and who waits to be charged to it.
#[derive(Debug, Default)]
struct Counter {
    known: Arc<tokio::sync::Mutex<Known>>,
    waiting: Mutex<Vec<Waiting>>,
}

/// What this replica knows of a count.
#[derive(Debug, Default)]
struct Known {
    /// That of the stored entry; 0 if none was seen.
    revision: u64,
    /// The store's, in which that revision was seen.
    era: String,
    /// That of the stored entry.
    begun: String,
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
    /// Random, and the same until the entry has ended: one that was made after a loss has another.
    begun: String,
    /// Random, so that no two contents are equal.
    written: String,
}

/// What charging goes by.
#[derive(Clone, Copy)]
struct InForce<'a> {
    verifier: &'a Verifier,
    clock: &'a Arc<dyn Clock>,
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
            lines: Arc::default(),
        }
    }

    /// Prepares the store if a policy needs it.
    pub(super) fn prepare(&self, policy: &PolicySet, verifier: &Verifier) {
        if !policy.budgets().any(Budget::is_shared) {
            return;
        }
        match &self.store {
            Some(store) if !store.is_shared() => {
                store.enable();
                tracing::warn!(
                    target: "sealwire::policy",
                    "shared budgets are counted in this process only, and begin anew when it restarts: `LocalGuard` keeps them"
                );
            }
            Some(store) if verifier.service_key().is_some() => store.enable(),
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

    /// A call that belongs to no budget and needs no approval runs now. The others are boxed: few calls need more, and it would enlarge the
    /// future of each.
    ///
    /// # Errors
    /// The call, which is to be charged.
    pub(super) fn begin_free(runnable: Runnable, policy: &PolicySet) -> Result<Begun, Box<Runnable>> {
        match runnable {
            Runnable::Permitted(permitted) if !policy.has_budgets(permitted.call().method()) => Ok(Begun { permitted }),
            runnable => Err(Box::new(runnable)),
        }
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
        clock: &Arc<dyn Clock>,
        counters: &Counters,
    ) -> Result<Charged, Uncharged> {
        if !policy.has_budgets(runnable.call().method()) {
            return Ok(Charged { runnable });
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
                () = call.message.open.deadline(&**clock) => Err(Uncharged::Deadline),
                charged = self.charge_all(&charges, call.caller(), in_force, counters) => charged,
            }
        });
        charged.await?;
        Ok(Charged { runnable })
    }

    async fn charge_all(
        &self,
        charges: &[Charge<'_>],
        caller: &Caller,
        in_force: InForce<'_>,
        counters: &Counters,
    ) -> Result<(), Uncharged> {
        // What an agent's own budget refuses costs its subject nothing; what a local one refuses costs no change of the store.
        let mut charges: Vec<_> = charges.iter().collect();
        charges.sort_by_key(|charge| (charge.budget.per() == Per::Subject, charge.budget.is_shared()));
        let is_one_of_several = charges.len() > 1;
        let refused = |uncharged: &Uncharged| {
            if let Uncharged::Spent { budget, .. } | Uncharged::Above { budget } = uncharged {
                counters.budget(budget, false);
            }
        };
        let (mut found, mut without_room) = (Vec::new(), None);
        for charge in charges {
            let budget = charge.budget;
            let span = Self::span(budget, in_force.verifier);
            let key = self.key(budget, caller).ok_or(Uncharged::Store(OutcomeStoreError::Unavailable))?;
            if charge.amount > budget.at_most() {
                let above = Uncharged::Above { budget: budget.name().to_owned() };
                refused(&above);
                return Err(above);
            }
            let counter = self.counter(&key, &caller.agent, span, budget.is_shared()).map_err(Uncharged::Store)?;
            // Where one has no room, none is charged, as far as can be told.
            if is_one_of_several
                && let Ok(known) = counter.known.try_lock()
                && let Err(wait) =
                    known.count.clone().charge(charge.amount, budget.at_most(), in_force.clock.now_ms(), span)
            {
                // The caller is told of the one that takes the longest.
                without_room = without_room.max(Some((wait, budget.name())));
            }
            found.push((charge, key, counter, span));
        }
        if let Some((retry_after_ms, budget)) = without_room {
            let spent = Uncharged::Spent { budget: budget.to_owned(), retry_after_ms };
            refused(&spent);
            return Err(spent);
        }
        for (charge, key, counter, span) in found {
            let charged = match charge.budget.is_shared() {
                true => self.charge_shared(charge, &caller.agent, key, &counter, span, in_force).await,
                false => {
                    let mut known = counter.known.lock().await;
                    let (name, at_most) = (charge.budget.name(), charge.budget.at_most());
                    charged(&mut known.count, name, charge.amount, at_most, in_force.clock.now_ms(), span)
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
        agent: &Name,
        key: OutcomeKey,
        counter: &Arc<Counter>,
        span: Span,
        in_force: InForce<'_>,
    ) -> Result<(), Uncharged> {
        let (store, mac) =
            self.store_and_mac(in_force.verifier).ok_or(Uncharged::Store(OutcomeStoreError::Unavailable))?;
        let (tell, mut told) = oneshot::channel();
        let (amount, at_most) = (charge.amount, charge.budget.at_most());
        lock(&counter.waiting).push(Waiting { amount, at_most, tell });
        let known = Arc::clone(&counter.known).lock_owned().await;
        match told.try_recv() {
            Ok(charged) => return charged,
            // The change ended without a word: it may be charged.
            Err(oneshot::error::TryRecvError::Closed) => return Err(Uncharged::Store(OutcomeStoreError::Unanswered)),
            Err(oneshot::error::TryRecvError::Empty) => {}
        }
        let change = Change {
            store,
            mac,
            key,
            span,
            clock: Arc::clone(in_force.clock),
            budget: charge.budget.name().to_owned(),
            agent: agent.clone(),
            counter: Arc::clone(counter),
            pace: self.pace,
            lines: Arc::clone(&self.lines),
        };
        // A caller that goes takes no other along. There is one task for a count at most, since it holds what is known.
        let mut change = Box::pin(change.make(known));
        if poll_fn(|context| Poll::Ready(change.as_mut().poll(context))).await.is_pending() {
            tokio::spawn(change);
        }
        told.await.unwrap_or(Err(Uncharged::Store(OutcomeStoreError::Unanswered)))
    }

    /// Where shared counts are kept, and the key of their MACs; `None` if the replicas have none in common.
    fn store_and_mac(&self, verifier: &Verifier) -> Option<(Arc<dyn OutcomeStore>, HmacKey)> {
        let store = Arc::clone(self.store.as_ref()?);
        let mac = match store.is_shared() {
            true => verifier.service_key()?.budget_key(&self.audience),
            false => self.own.clone(),
        };
        Some((store, mac))
    }

    /// The counter of a key, which `agent` asks for. It is kept until nothing that is charged now counts any more.
    fn counter(
        &self,
        key: &OutcomeKey,
        agent: &Name,
        span: Span,
        is_shared: bool,
    ) -> Result<Arc<Counter>, OutcomeStoreError> {
        let now = Instant::now();
        let until = now + Duration::from_millis(span.counts_for_ms()) + MARGIN;
        let mut counts = lock(&self.counts);
        if let Some(kept) = counts.known.get_mut(key) {
            kept.until = until;
            return Ok(Arc::clone(&kept.counter));
        }
        let for_subject = is_shared && key.agent() != agent;
        let most_for_subjects = match &self.store {
            Some(store) if for_subject => store.room_for_subjects(),
            _ => usize::MAX,
        };
        if counts.admits(agent, most_for_subjects).is_err() {
            counts.look(now);
        }
        counts.admits(agent, most_for_subjects)?;
        counts.by_agent.entry(agent.clone()).or_default().add(for_subject);
        let counter = Arc::<Counter>::default();
        let kept = Kept { counter: Arc::clone(&counter), made_by: agent.clone(), for_subject, until };
        counts.known.insert(key.clone(), kept);
        Ok(counter)
    }

    /// Where the count is. What a budget is called, what it adds up, in which time, and whether
    /// replicas share it is part of that, and its limit is not: what one replica counted alone is not what all of them did.
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
        let by = if budget.is_shared() { "all" } else { "one" };
        let what = [self.audience.as_str(), budget.name(), sum, window.as_str(), parts.as_str(), by];
        let scope = OutcomeKey::scope(&[&["budget"], &what[..], &whose].concat());
        // A subject is the same whichever agent acts for it, so its entries are charged to nobody else.
        let agent = match kind {
            "agent" => caller.agent.clone(),
            _ => Name::new(OutcomeKey::new(caller.agent.clone(), &OutcomeKey::scope(&whose)).digest()).ok()?,
        };
        Some(OutcomeKey::new(agent, &scope))
    }

    fn span(budget: &Budget, verifier: &Verifier) -> Span {
        // Replicas' clocks differ by at most twice the skew: beyond it, they accept no message. One clock may be corrected by as much.
        Span::new(budget.window().as_secs(), verifier.window().skew_s.saturating_mul(2_000))
    }
}

impl fmt::Debug for Budgets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Budgets").field("store", &self.store).finish_non_exhaustive()
    }
}

impl Counts {
    /// Whether one more count of this agent's calls fits. As in the store's own ledger: greedy agents settle at equal shares, and leave one
    /// for the next. Of those that the store cannot know to be this agent's, it may have this many.
    fn admits(&self, agent: &Name, most_for_subjects: usize) -> Result<(), OutcomeStoreError> {
        let free = MAX_COUNTS.saturating_sub(self.known.len());
        let held = self.by_agent.get(agent).copied().unwrap_or_default();
        match free {
            0 => Err(OutcomeStoreError::Full),
            _ if held.all >= free || held.for_subjects >= most_for_subjects => Err(OutcomeStoreError::AgentFull),
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
            self.by_agent.entry(kept.made_by.clone()).or_default().add(kept.for_subject);
        }
    }
}

/// A change of one stored count, for all calls that wait for it.
struct Change {
    store: Arc<dyn OutcomeStore>,
    mac: HmacKey,
    key: OutcomeKey,
    span: Span,
    clock: Arc<dyn Clock>,
    budget: String,
    /// Whose call makes it.
    agent: Name,
    counter: Arc<Counter>,
    pace: Duration,
    lines: Arc<KeyedLogLimiter<Name>>,
}

impl Change {
    async fn make(self, mut known: OwnedMutexGuard<Known>) {
        let mut all = std::mem::take(&mut *lock(&self.counter.waiting));
        // Callers that have gone are not charged.
        all.retain(|waiting| !waiting.tell.is_closed());
        let results = self.charge(&mut known, &all).await;
        for (waiting, result) in all.into_iter().zip(results) {
            // Whoever has gone meanwhile stays charged.
            let _gone = waiting.tell.send(result);
        }
    }

    /// Charges as many of these, in their order, as there is room for, with one change of what is stored.
    async fn charge(&self, known: &mut Known, all: &[Waiting]) -> Vec<Result<(), Uncharged>> {
        let mut why = Uncharged::Store(OutcomeStoreError::Taken);
        for attempt in 0..ATTEMPTS {
            let era = self.store.era();
            // A revision says nothing about another stream than the one in which it was seen.
            if known.revision != 0 && known.era != era {
                match self.store.read(&self.key).await {
                    Ok(found) => match self.learn(known, found, &era) {
                        Ok(()) => {}
                        Err(unknown) => {
                            why = unknown;
                            tokio::time::sleep(self.pace * attempt).await;
                            continue;
                        }
                    },
                    Err(error) => return self.refused(known, all, &Uncharged::Store(error)),
                }
            }
            let mut count = known.count.clone();
            let results: Vec<_> = all.iter().map(|waiting| self.charge_one(&mut count, waiting)).collect();
            // What is stored is no less than what is known.
            if count == known.count {
                return results;
            }
            let begun = match known.revision {
                0 => Nonce::random().to_text(),
                _ => known.begun.clone(),
            };
            let content = seal(&count, &begun, &self.mac, &self.key);
            let keep = Duration::from_millis(self.span.counts_for_ms()) + MARGIN;
            let written = match known.revision {
                0 => self.store.claim(&self.key, content, keep).await.map(|claimed| match claimed {
                    Claimed::New { revision } => Ok(revision),
                    Claimed::Held { revision, content } => Err((revision, content)),
                }),
                revision => self.store.replace(&self.key, revision, content, keep).await.map(Ok),
            };
            let found = match written {
                // It may have taken the place of what was charged in another stream.
                Ok(Ok(_)) if self.store.era() != era => Err(OutcomeStoreError::Unanswered),
                Ok(Ok(revision)) => {
                    *known = Known { revision, era, begun, count };
                    return results;
                }
                Ok(Err(held)) => Ok(Some(held)),
                // Another replica was quicker.
                Err(OutcomeStoreError::Taken) => self.store.read(&self.key).await,
                Err(error) => Err(error),
            };
            why = match found {
                Ok(found) => match self.learn(known, found, &era) {
                    Ok(()) => Uncharged::Store(OutcomeStoreError::Taken),
                    // Copies of the stream may be behind for a moment.
                    Err(unknown) => unknown,
                },
                Err(error) => return self.refused(known, all, &Uncharged::Store(error)),
            };
            tokio::time::sleep(self.pace * attempt).await;
        }
        if let Uncharged::Unknown { .. } = why
            && let Some(suppressed) = self.lines.check(&self.agent)
        {
            let (agent, budget) = (&self.agent, &self.budget);
            tracing::warn!(
                target: "sealwire::call", %agent, budget, suppressed,
                "a budget's count cannot be relied on: the store has lost it, or it is of another service key. Its calls are refused \
                 until what was charged no longer counts; under another name, the budget begins anew"
            );
        }
        all.iter().map(|_| Err(why.clone())).collect()
    }

    fn charge_one(&self, count: &mut Count, waiting: &Waiting) -> Result<(), Uncharged> {
        charged(count, &self.budget, waiting.amount, waiting.at_most, self.clock.now_ms(), self.span)
    }

    /// None is charged for sure. Those for which what is known leaves no room are told so, whatever became of the others.
    fn refused(&self, known: &Known, all: &[Waiting], why: &Uncharged) -> Vec<Result<(), Uncharged>> {
        let refused = |waiting| self.charge_one(&mut known.count.clone(), waiting).and(Err(why.clone()));
        all.iter().map(refused).collect()
    }

    /// Takes what was found in the store for what is known, if all of what is known that still counts is in it.
    fn learn(&self, known: &mut Known, found: Option<(u64, Bytes)>, era: &str) -> Result<(), Uncharged> {
        let (now_ms, span) = (self.clock.now_ms(), self.span);
        let unknown = |retry_after_ms| Uncharged::Unknown { budget: self.budget.clone(), retry_after_ms };
        let (revision, (count, begun)) = match found {
            None => Default::default(),
            Some((revision, content)) => {
                // Nobody here can say until when such an entry counts: until the end of a window at the latest.
                let opened = open(&content, &self.mac, &self.key);
                (revision, opened.ok_or_else(|| unknown(span.counts_for_ms()))?)
            }
        };
        let still_counts = !Count::default().follows(&known.count, now_ms, span);
        if still_counts && (begun != known.begun || !count.follows(&known.count, now_ms, span)) {
            return Err(unknown(known.count.ends_in_ms(now_ms, span)));
        }
        *known = Known { revision, era: era.to_owned(), begun, count };
        Ok(())
    }
}

fn charged(
    count: &mut Count,
    budget: &str,
    amount: u64,
    at_most: u64,
    now_ms: u64,
    span: Span,
) -> Result<(), Uncharged> {
    let spent = |retry_after_ms| Uncharged::Spent { budget: budget.to_owned(), retry_after_ms };
    count.charge(amount, at_most, now_ms, span).map_err(spent)
}

/// The bytes to store under this key.
fn seal(count: &Count, begun: &str, mac: &HmacKey, key: &OutcomeKey) -> Bytes {
    let entry = Entry { count: count.clone(), begun: begun.to_owned(), written: Nonce::random().to_text() };
    let text = serde_json::to_vec(&entry).unwrap_or_default();
    [&mac.sign(&bound(key, &text))[..], &text].concat().into()
}

/// Reads what was stored under this key. `None` if it was not written with this key of the service's.
fn open(content: &[u8], mac: &HmacKey, key: &OutcomeKey) -> Option<(Count, String)> {
    let (proof, text) = content.split_at_checked(32)?;
    let is_ours = mac.verify(&bound(key, text), proof);
    let entry: Entry = is_ours.then(|| serde_json::from_slice(text).ok()).flatten()?;
    Some((entry.count, entry.begun))
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
        let made =
            (0..MAX_COUNTS).take_while(|number| budgets.counter(&key(*number), &greedy, span, false).is_ok()).count();
        assert_eq!(made, MAX_COUNTS / 2);
        let refused = |number, agent| budgets.counter(&key(number), agent, span, false).err();
        assert_eq!(refused(MAX_COUNTS, &greedy), Some(OutcomeStoreError::AgentFull));
        assert_eq!(refused(0, &greedy), None, "it is there");
        assert_eq!(refused(MAX_COUNTS, &other), None);

        // As long as anything that was charged can count, it is kept.
        tokio::time::advance(Duration::from_millis(span.counts_for_ms())).await;
        budgets.tidy();
        assert_eq!(budgets.held(), made + 1);
        let charging = budgets.counter(&key(7), &greedy, span, false).unwrap();
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
