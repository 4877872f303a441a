//! What one agent may use of a replica: a rate and a bound on work under way. Only proved agents are counted.
//! Never keyed by anything that an unproved message says.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, PoisonError};

use governor::clock::{Clock as _, DefaultClock};
use governor::{DefaultDirectRateLimiter, DefaultKeyedRateLimiter, Quota, RateLimiter};

use crate::name::Name;

/// The bounds per agent, in this replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuotaLimits {
    /// Calls per second, sustained; each entry of a batch counts. 1,000, as the replay guard's cap allows.
    pub per_second: u32,
    /// How many calls may come at once; 2,000. A batch of more uses all of it.
    pub burst: u32,
    /// Messages under way; 256.
    pub in_flight: u32,
}

impl Default for QuotaLimits {
    fn default() -> Self {
        Self { per_second: 1_000, burst: 2_000, in_flight: 256 }
    }
}

/// Which of an agent's quotas is used up. Each holds in one replica only, and its name says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum QuotaScope {
    /// Calls per second.
    Rate,
    /// Messages under way.
    InFlight,
}

impl QuotaScope {
    /// `data.scope` of the answer.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Rate => "replica-rate",
            Self::InFlight => "replica-in-flight",
        }
    }

    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Rate => "rate_quota",
            Self::InFlight => "in_flight_quota",
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
    clock: DefaultClock,
    burst: NonZeroU32,
    in_flight: Arc<InFlight>,
    bound: u32,
}

#[derive(Debug, Default)]
struct InFlight(Mutex<HashMap<Name, u32>>);

/// A message under way; its end gives the place back.
#[derive(Debug)]
pub(super) struct Place {
    in_flight: Arc<InFlight>,
    agent: Name,
}

impl Quotas {
    pub(super) fn new(limits: &QuotaLimits) -> Self {
        let positive = |number: u32| NonZeroU32::new(number).unwrap_or(NonZeroU32::MIN);
        let burst = positive(limits.burst.max(limits.per_second));
        let quota = Quota::per_second(positive(limits.per_second)).allow_burst(burst);
        Self {
            rate: RateLimiter::dashmap(quota),
            clock: DefaultClock::default(),
            burst,
            in_flight: Arc::default(),
            bound: limits.in_flight.max(1),
        }
    }

    /// Takes a place and charges one call.
    pub(super) fn enter(&self, agent: &Name) -> Result<Place, QuotaExceeded> {
        {
            // INVARIANT: keyed by proved agents only, and an agent without work under way has no entry.
            let mut counts = self.in_flight.0.lock().unwrap_or_else(PoisonError::into_inner);
            let count = counts.entry(agent.clone()).or_insert(0);
            if *count >= self.bound {
                return Err(QuotaExceeded { scope: QuotaScope::InFlight, retry_after_ms: 100 });
            }
            *count += 1;
        }
        let place = Place { in_flight: Arc::clone(&self.in_flight), agent: agent.clone() };
        self.charge(agent, NonZeroU32::MIN)?;
        Ok(place)
    }

    /// Charges the further calls of a message that has entered; all of them or none.
    pub(super) fn charge_further(&self, agent: &Name, calls: usize) -> Result<(), QuotaExceeded> {
        // Together with the one that is charged already no more than the burst, else the message could never pass.
        let calls = u32::try_from(calls).unwrap_or(u32::MAX).min(self.burst.get() - 1);
        NonZeroU32::new(calls).map_or(Ok(()), |calls| self.charge(agent, calls))
    }

    /// Charges at most as many calls as the burst.
    fn charge(&self, agent: &Name, calls: NonZeroU32) -> Result<(), QuotaExceeded> {
        let exceeded = |retry_after_ms| QuotaExceeded { scope: QuotaScope::Rate, retry_after_ms };
        match self.rate.check_key_n(agent, calls) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(until)) => {
                let wait = until.wait_time_from(self.clock.now());
                Err(exceeded(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX).max(1)))
            }
            // More at once than the burst: no caller asks for that.
            Err(_) => Err(exceeded(1_000)),
        }
    }

    /// Forgets the rates of agents that have been quiet. Called now and then; the key ring bounds how many there are.
    pub(super) fn tidy(&self) {
        self.rate.retain_recent();
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = self.in_flight.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.agent) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                counts.remove(&self.agent);
            }
        }
    }
}

/// The global rate of unsigned hints.
#[derive(Debug)]
pub(super) struct HintRate(DefaultDirectRateLimiter);

impl HintRate {
    pub(super) fn new(per_second: u32) -> Self {
        Self(RateLimiter::direct(Quota::per_second(NonZeroU32::new(per_second).unwrap_or(NonZeroU32::MIN))))
    }

    pub(super) fn allow(&self) -> bool {
        self.0.check().is_ok()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn work_under_way_is_bounded_per_agent_and_given_back() {
        let quotas = Quotas::new(&QuotaLimits { per_second: 1_000, burst: 1_000, in_flight: 2 });
        let (a, b) = (Name::new("a").unwrap(), Name::new("b").unwrap());
        let held = [quotas.enter(&a).unwrap(), quotas.enter(&a).unwrap()];
        assert_eq!(quotas.enter(&a).unwrap_err().scope, QuotaScope::InFlight);
        assert!(quotas.enter(&b).is_ok());
        drop(held);
        assert!(quotas.enter(&a).is_ok());
        assert!(quotas.in_flight.0.lock().unwrap().is_empty());
    }

    #[test]
    fn a_rate_above_the_quota_is_refused_with_a_time_to_wait() {
        let quotas = Quotas::new(&QuotaLimits { per_second: 1, burst: 3, in_flight: 100 });
        let agent = Name::new("a").unwrap();
        for _ in 0..3 {
            quotas.enter(&agent).unwrap();
        }
        let exceeded = quotas.enter(&agent).unwrap_err();
        assert_eq!(exceeded.scope, QuotaScope::Rate);
        assert!((1..=1_000).contains(&exceeded.retry_after_ms), "{}", exceeded.retry_after_ms);
        assert!(quotas.enter(&Name::new("b").unwrap()).is_ok());
    }

    #[test]
    fn a_batch_is_charged_whole() {
        let quotas = Quotas::new(&QuotaLimits { per_second: 1, burst: 10, in_flight: 100 });
        let agent = Name::new("a").unwrap();
        assert!(quotas.charge_further(&agent, 8).is_ok());
        assert!(quotas.charge_further(&agent, 8).is_err());
        assert!(quotas.charge_further(&agent, 2).is_ok());
    }

    #[test]
    fn a_batch_above_the_burst_passes_and_uses_all_of_it() {
        let quotas = Quotas::new(&QuotaLimits { per_second: 1, burst: 10, in_flight: 100 });
        let agent = Name::new("a").unwrap();
        drop(quotas.enter(&agent).unwrap());
        assert!(quotas.charge_further(&agent, 49).is_ok());
        assert!(quotas.charge_further(&agent, 1).is_err());
    }
}
