//! Who calls through a door, and how much of it one caller may use.
//! Never counts anything by what nobody has proved.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, PoisonError};

use governor::clock::{Clock as _, DefaultClock};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};

use super::config::DoorConfig;
use super::refusal::Refusal;

/// A caller that is known.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Principal(Arc<str>);

impl Principal {
    /// Whoever reaches the listener of a door that is for its own machine.
    pub(super) fn own(agent: String) -> Self {
        Self(agent.into())
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// How much of the door callers may use.
#[derive(Debug)]
pub(crate) struct Admission {
    rate: DefaultKeyedRateLimiter<Principal>,
    clock: DefaultClock,
    burst: NonZeroU32,
    under_way: Arc<UnderWay>,
    most: u32,
}

#[derive(Debug, Default)]
struct UnderWay(Mutex<HashMap<Principal, u32>>);

/// A request under way; its end gives the place back.
#[derive(Debug)]
pub(crate) struct Admitted {
    under_way: Arc<UnderWay>,
    principal: Principal,
}

impl Admission {
    pub(super) fn new(config: &DoorConfig) -> Self {
        let positive = |number: u32| NonZeroU32::new(number).unwrap_or(NonZeroU32::MIN);
        let burst = positive(config.burst);
        let rate = RateLimiter::dashmap(Quota::per_second(positive(config.per_second)).allow_burst(burst));
        let (clock, under_way) = (DefaultClock::default(), Arc::default());
        Self { rate, clock, burst, under_way, most: config.in_flight }
    }

    /// Takes a place for a request, and charges one call.
    pub(crate) fn admit(&self, principal: &Principal) -> Result<Admitted, Refusal> {
        let admitted = {
            let mut counts = self.under_way.0.lock().unwrap_or_else(PoisonError::into_inner);
            let count = counts.entry(principal.clone()).or_insert(0);
            if *count >= self.most {
                return Err(Refusal::quota("too many requests of this caller are under way", 1));
            }
            *count += 1;
            Admitted { under_way: Arc::clone(&self.under_way), principal: principal.clone() }
        };
        self.charge(principal, 1)?;
        Ok(admitted)
    }

    /// Charges calls: all of them or none.
    pub(crate) fn charge(&self, principal: &Principal, calls: usize) -> Result<(), Refusal> {
        // A batch of more than the burst takes all of it, else it could never pass.
        let calls = u32::try_from(calls).unwrap_or(u32::MAX).min(self.burst.get());
        let Some(calls) = NonZeroU32::new(calls) else { return Ok(()) };
        match self.rate.check_key_n(principal, calls) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(until)) => {
                let wait = until.wait_time_from(self.clock.now());
                Err(Refusal::quota("this caller's calls come too fast", wait.as_secs() + 1))
            }
            Err(_) => Err(Refusal::quota("this caller's calls come too fast", 1)),
        }
    }

    /// Forgets the rates of callers that have been quiet.
    pub(super) fn tidy(&self) {
        self.rate.retain_recent();
        self.rate.shrink_to_fit();
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let mut counts = self.under_way.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.principal) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                counts.remove(&self.principal);
            }
        }
    }
}
