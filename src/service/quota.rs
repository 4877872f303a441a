//! What one agent may use of a replica: a rate and a bound on work under way. Only proved agents are counted; the subjects that they act
//! for have shares of it.
//! Never keyed by anything that an unproved message says.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use governor::clock::{Clock as _, DefaultClock};
use governor::{DefaultDirectRateLimiter, DefaultKeyedRateLimiter, Quota, RateLimiter};

use super::shares::{Backlog, Payer, Taken};
use crate::auth::Caller;
use crate::name::Name;

/// The bounds per agent, in this replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuotaLimits {
    /// Calls per second, sustained; each entry of a batch counts. 1,000, as the replay guard's cap allows. Refusals of
    /// calls above it are answered at no more than the same rate.
    pub per_second: u32,
    /// How many calls may come at once; 2,000. A batch of more uses all of it.
    pub burst: u32,
    /// Messages under way; 256. Streams have a bound of their own: see [`StreamLimits`](super::StreamLimits).
    pub in_flight: u32,
}

impl Default for QuotaLimits {
    fn default() -> Self {
        Self { per_second: 1_000, burst: 2_000, in_flight: 256 }
    }
}

/// Which of an agent's quotas is used up. Each applies to one replica only, as its name says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum QuotaScope {
    /// Calls per second, charged before the replay guard: nothing was stored.
    Rate,
    /// Calls per second, charged for the further entries of a batch once they are known.
    Entries,
    /// Messages under way.
    InFlight,
    /// Calls under way that may be answered with frames.
    Streams,
    /// Tasks that run: see [`TaskLimits`](super::TaskLimits).
    Tasks,
}

impl QuotaScope {
    /// `data.scope` of the answer.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Rate => "replica-rate",
            Self::Entries => "replica-entries",
            Self::InFlight => "replica-in-flight",
            Self::Streams => "replica-streams",
            Self::Tasks => "replica-tasks",
        }
    }

    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Rate => "rate_quota",
            Self::Entries => "entries_quota",
            Self::InFlight => "in_flight_quota",
            Self::Streams => "streams_quota",
            Self::Tasks => "tasks_quota",
        }
    }
}

/// A quota is used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the agent's quota is used up: {}", scope.as_str())]
pub struct QuotaExceeded {
    pub(super) scope: QuotaScope,
    pub(super) retry_after_ms: u64,
}

/// The quotas of all agents.
#[derive(Debug)]
pub(super) struct Quotas {
    rate: DefaultKeyedRateLimiter<Name>,
    per_second: NonZeroU32,
    /// INVARIANT: only agents that act for others, and did so recently.
    backlogs: Mutex<HashMap<Name, Backlog>>,
    hasher: RandomState,
    /// Limits answers to messages above the rate.
    refusals: DefaultKeyedRateLimiter<Name>,
    /// Limits answers to what anybody can send who has seen a message of the agent.
    copies: DefaultKeyedRateLimiter<Name>,
    clock: DefaultClock,
    burst: NonZeroU32,
    /// The time after which one more call becomes free.
    interval: Duration,
    in_flight: Arc<InFlight>,
    bound: usize,
}

#[derive(Debug, Default)]
struct InFlight(Mutex<HashMap<Name, Taken>>);

/// A message under way; dropping it gives the slot back.
#[derive(Debug)]
pub(super) struct InFlightSlot {
    in_flight: Arc<InFlight>,
    payer: Payer,
}

impl Quotas {
    pub(super) fn new(limits: &QuotaLimits) -> Self {
        let positive = |number: u32| NonZeroU32::new(number).unwrap_or(NonZeroU32::MIN);
        let burst = positive(limits.burst.max(limits.per_second));
        let per_second = positive(limits.per_second);
        let quota = Quota::per_second(per_second).allow_burst(burst);
        Self {
            rate: RateLimiter::dashmap(quota),
            per_second,
            backlogs: Mutex::default(),
            hasher: RandomState::new(),
            refusals: RateLimiter::dashmap(quota),
            copies: RateLimiter::dashmap(Quota::per_second(COPIES_PER_SECOND)),
            clock: DefaultClock::default(),
            burst,
            interval: quota.replenish_interval(),
            in_flight: Arc::default(),
            bound: usize::try_from(limits.in_flight.max(1)).unwrap_or(usize::MAX),
        }
    }

    /// Whose quotas this caller uses.
    pub(super) fn payer(&self, caller: &Caller) -> Payer {
        Payer::of(caller, &self.hasher)
    }

    /// Charges one call, before the message is remembered.
    pub(super) fn charge_first(&self, payer: &Payer) -> Result<(), QuotaExceeded> {
        self.charge(payer, NonZeroU32::MIN, QuotaScope::Rate)
    }

    /// Takes one of the agent's slots for work under way; dropping it gives it back.
    pub(super) fn acquire(&self, payer: &Payer) -> Result<InFlightSlot, QuotaExceeded> {
        // INVARIANT: keyed by proved agents only, and an agent without work under way has no entry.
        let mut counts = self.in_flight.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !counts.entry(payer.agent.clone()).or_default().take(payer.subject, self.bound) {
            return Err(QuotaExceeded { scope: QuotaScope::InFlight, retry_after_ms: 100 });
        }
        Ok(InFlightSlot { in_flight: Arc::clone(&self.in_flight), payer: payer.clone() })
    }

    /// Whether one more message of this agent above its rate is answered.
    pub(super) fn may_refuse(&self, agent: &Name) -> bool {
        self.refusals.check_key(agent).is_ok()
    }

    /// Whether one more stale or replayed message of this agent is answered.
    pub(super) fn may_answer_copy(&self, agent: &Name) -> bool {
        self.copies.check_key(agent).is_ok()
    }

    /// Charges the further calls of a message whose first one is already charged; all of them or none.
    pub(super) fn charge_further(&self, payer: &Payer, calls: usize) -> Result<(), QuotaExceeded> {
        self.charge_after(payer, 0, calls)
    }

    /// The same, for a message that was already charged `charged` further calls. A caller that tries again is charged for all of them
    /// again, so the refusal makes it wait for them, too.
    pub(super) fn charge_after(&self, payer: &Payer, charged: usize, calls: usize) -> Result<(), QuotaExceeded> {
        // Together with those already charged, no more than the burst: otherwise the message could never pass.
        let most = self.burst.get() - 1;
        let charged = u32::try_from(charged).unwrap_or(u32::MAX).min(most);
        let calls = u32::try_from(calls).unwrap_or(u32::MAX).min(most - charged);
        let Some(calls) = NonZeroU32::new(calls) else { return Ok(()) };
        self.charge(payer, calls, QuotaScope::Entries).map_err(|mut exceeded| {
            let again = self.interval.saturating_mul(charged);
            let again = u64::try_from(again.as_millis()).unwrap_or(u64::MAX);
            exceeded.retry_after_ms = exceeded.retry_after_ms.saturating_add(again);
            exceeded
        })
    }

    /// Charges `calls`, which are no more than the burst.
    fn charge(&self, payer: &Payer, calls: NonZeroU32, scope: QuotaScope) -> Result<(), QuotaExceeded> {
        let exceeded = |retry_after_ms| QuotaExceeded { scope, retry_after_ms };
        let millis = |wait: Duration| u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        // Before the agent's own rate: what one subject is refused must not be taken from all the others.
        self.charge_share(payer, calls.get()).map_err(|wait| exceeded(millis(wait).saturating_add(1)))?;
        let charged = match self.rate.check_key_n(&payer.agent, calls) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(until)) => Err(exceeded(millis(until.wait_time_from(self.clock.now())).max(1))),
            // More at once than the burst: nothing in here asks for that.
            Err(_) => Err(exceeded(1_000)),
        };
        if charged.is_err() {
            self.undo_share(payer, calls.get());
        }
        charged
    }

    /// The same for the subject's share, if the agent acts for one.
    fn charge_share(&self, payer: &Payer, calls: u32) -> Result<(), Duration> {
        let Some(subject) = payer.subject else { return Ok(()) };
        let (now, rate) = (Instant::now(), (self.per_second.get(), self.burst.get()));
        let mut backlogs = self.backlogs.lock().unwrap_or_else(PoisonError::into_inner);
        let backlog = backlogs.entry(payer.agent.clone()).or_insert_with(|| Backlog::new(now));
        backlog.charge(subject, calls, rate, now)
    }

    /// The agent has nothing left, so its subject is not charged.
    fn undo_share(&self, payer: &Payer, calls: u32) {
        let Some(subject) = payer.subject else { return };
        let mut backlogs = self.backlogs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(backlog) = backlogs.get_mut(&payer.agent) {
            backlog.undo(subject, calls);
        }
    }

    /// Forgets the rates of agents that have been quiet. Called now and then; the key ring bounds how many agents there
    /// are.
    pub(super) fn tidy(&self) {
        self.rate.retain_recent();
        self.refusals.retain_recent();
        self.copies.retain_recent();
        let (now, per_second) = (Instant::now(), self.per_second.get());
        let mut backlogs = self.backlogs.lock().unwrap_or_else(PoisonError::into_inner);
        backlogs.retain(|_, backlog| !backlog.is_over(per_second, now));
    }
}

/// How many copies of one agent's messages are answered, and so signed for, per second. An unanswered copy harms
/// nobody: a client that hears `stale` or `replayed` waits on as if it had heard nothing.
const COPIES_PER_SECOND: NonZeroU32 = NonZeroU32::MIN.saturating_add(99);

impl Drop for InFlightSlot {
    fn drop(&mut self) {
        let mut counts = self.in_flight.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(taken) = counts.get_mut(&self.payer.agent) {
            taken.give_back(self.payer.subject);
            if taken.is_empty() {
                counts.remove(&self.payer.agent);
            }
        }
    }
}

/// The rate of unsigned hints: one for all callers together, and a share of it for each agent that a subject names.
///
/// Nobody has proved to be that agent, so nothing is stored under its name: agents fall into a fixed number of buckets.
#[derive(Debug)]
pub(super) struct HintRate {
    all: DefaultDirectRateLimiter,
    shares: Vec<DefaultDirectRateLimiter>,
    hasher: RandomState,
}

/// Of a hundred agents, two may share a bucket; one that floods silences few others.
const BUCKETS: usize = 1_024;
/// One agent's share of the hints: a quarter, except for rates too small to be divided.
fn share(per_second: u32) -> u32 {
    (per_second / 4).max(10)
}

impl HintRate {
    pub(super) fn new(per_second: u32) -> Self {
        let rate = |number| RateLimiter::direct(Quota::per_second(NonZeroU32::new(number).unwrap_or(NonZeroU32::MIN)));
        Self {
            all: rate(per_second),
            shares: (0..BUCKETS).map(|_| rate(share(per_second))).collect(),
            hasher: RandomState::new(),
        }
    }

    /// Whether one more hint may go out, to whoever claims to be `agent`.
    pub(super) fn allow(&self, agent: Option<&Name>) -> bool {
        let bucket = agent.map_or(0, |agent| self.hasher.hash_one(agent)) % self.shares.len() as u64;
        let share = usize::try_from(bucket).ok().and_then(|bucket| self.shares.get(bucket));
        share.is_some_and(|share| share.check().is_ok()) && self.all.check().is_ok()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]
    use super::*;

    fn payer(agent: &str) -> Payer {
        Payer { agent: Name::new(agent).unwrap(), subject: None }
    }

    #[test]
    fn work_under_way_is_bounded_per_agent_and_given_back() {
        let quotas = Quotas::new(&QuotaLimits { per_second: 1_000, burst: 1_000, in_flight: 2 });
        let (a, b) = (payer("a"), payer("b"));
        let held = [quotas.acquire(&a).unwrap(), quotas.acquire(&a).unwrap()];
        assert_eq!(quotas.acquire(&a).unwrap_err().scope, QuotaScope::InFlight);
        assert!(quotas.acquire(&b).is_ok());
        drop(held);
        assert!(quotas.acquire(&a).is_ok());
        assert!(quotas.in_flight.0.lock().unwrap().is_empty());
    }

    #[test]
    fn a_rate_above_the_quota_is_refused_with_a_time_to_wait() {
        let quotas = Quotas::new(&QuotaLimits { per_second: 1, burst: 3, in_flight: 100 });
        let agent = payer("a");
        for _ in 0..3 {
            quotas.charge_first(&agent).unwrap();
        }
        let exceeded = quotas.charge_first(&agent).unwrap_err();
        assert_eq!(exceeded.scope, QuotaScope::Rate);
        assert!((1..=1_000).contains(&exceeded.retry_after_ms), "{}", exceeded.retry_after_ms);
        assert!(quotas.charge_first(&payer("b")).is_ok());
    }

    #[test]
    fn one_that_an_agent_acts_for_leaves_its_rate_and_its_places_to_others_and_none_adds_to_them() {
        let quotas = Quotas::new(&QuotaLimits { per_second: 1, burst: 100, in_flight: 8 });
        let of = |subject| Payer { subject: Some(subject), ..payer("gateway") };
        let used = |payer: &Payer| (0..1_000).filter(|_| quotas.charge_first(payer).is_ok()).count();
        // As many as are free, plus what the rate gives back meanwhile. Refusals cost the agent nothing.
        let (first, second) = (used(&of(1)), used(&of(2)));
        assert!((50..=55).contains(&first) && (20..=30).contains(&second), "{first} {second}");
        assert!(quotas.charge_first(&of(3)).is_ok() && quotas.charge_further(&of(1), 1).is_err());
        let many = (4..100_000).filter(|subject| quotas.charge_first(&of(*subject)).is_ok()).count();
        assert!((10..=30).contains(&many), "what was left of the agent's: {many}");
        assert!(quotas.charge_first(&payer("gateway")).is_err() && quotas.charge_first(&payer("b")).is_ok());

        let held: Vec<_> = (0..10).filter_map(|_| quotas.acquire(&of(1)).ok()).collect();
        assert_eq!(held.len(), 4);
        let others: Vec<_> = (2..10).filter_map(|subject| quotas.acquire(&of(subject)).ok()).collect();
        assert_eq!(others.len(), 4);
        drop((held, others));
        assert!(quotas.in_flight.0.lock().unwrap().is_empty());
        assert_eq!(quotas.backlogs.lock().unwrap().len(), 1);
        quotas.tidy();
        assert_eq!(quotas.backlogs.lock().unwrap().len(), 1, "not over yet");
    }

    #[test]
    fn hints_to_one_agent_leave_hints_for_the_others() {
        let hints = HintRate::new(100);
        let agents: Vec<_> = (0..3).map(|number| Name::new(&format!("a{number}")).unwrap()).collect();
        let told = |agent: &Name| (0..1_000).filter(|_| hints.allow(Some(agent))).count();
        assert_eq!(told(&agents[0]), 25);
        // Unless both fell into one bucket, which is one chance in a thousand for each.
        assert!(told(&agents[1]) + told(&agents[2]) >= 25);
    }

    #[test]
    fn what_is_charged_in_two_steps_passes_once_both_have_been_waited_for() {
        let quotas = Quotas::new(&QuotaLimits { per_second: 1, burst: 20, ..QuotaLimits::default() });
        let agent = payer("a");
        assert!(quotas.charge_further(&agent, 5).is_ok() && quotas.charge_further(&agent, 10).is_ok());
        let exceeded = quotas.charge_after(&agent, 10, 100).unwrap_err();
        // 9 more, of which 5 are free, and the 10 before them once more.
        assert!((10_000..=14_000).contains(&exceeded.retry_after_ms), "{exceeded:?}");
        let other = payer("b");
        assert!(quotas.charge_further(&other, 10).is_ok() && quotas.charge_after(&other, 10, 9).is_ok());
        assert!(quotas.charge_after(&other, 100, 100).is_ok(), "no more than the burst for one message");
    }

    #[test]
    fn a_batch_is_charged_whole() {
        let quotas = Quotas::new(&QuotaLimits { per_second: 1, burst: 10, in_flight: 100 });
        let agent = payer("a");
        assert!(quotas.charge_further(&agent, 8).is_ok());
        assert!(quotas.charge_further(&agent, 8).is_err());
        assert!(quotas.charge_further(&agent, 2).is_ok());
    }

    #[test]
    fn a_batch_above_the_burst_passes_and_uses_all_of_it() {
        let quotas = Quotas::new(&QuotaLimits { per_second: 1, burst: 10, in_flight: 100 });
        let agent = payer("a");
        quotas.charge_first(&agent).unwrap();
        assert!(quotas.charge_further(&agent, 49).is_ok());
        assert!(quotas.charge_further(&agent, 1).is_err());
    }
}
