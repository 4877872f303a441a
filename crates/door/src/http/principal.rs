//! Who calls through a door, and how much of it one caller may use.
//! Never counts anything by what nobody has proved.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use governor::clock::{Clock as _, DefaultClock};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};

use super::callers::Shown;
use super::config::DoorConfig;
use super::refusal::Refusal;

/// A caller that is known.
#[derive(Debug, Clone)]
pub(crate) struct Principal {
    /// No other has it.
    name: Arc<str>,
    /// What it has shown, if it is not the door's agent itself.
    pub(super) shown: Option<Arc<Shown>>,
}

impl Principal {
    /// Whoever reaches the listener of a door that is for its own machine.
    pub(super) fn own(agent: &str) -> Self {
        Self { name: agent.into(), shown: None }
    }

    /// Whom a token speaks of that was verified.
    pub(super) fn of(shown: Shown) -> Self {
        // Two issuers may have two people of one name.
        let name = format!("{} {}", shown.token.issuer, shown.token.subject).into();
        Self { name, shown: Some(Arc::new(shown)) }
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.name
    }
}

/// How much of the door callers may use.
#[derive(Debug)]
pub(crate) struct Admission {
    rate: DefaultKeyedRateLimiter<Arc<str>>,
    clock: DefaultClock,
    burst: NonZeroU32,
    requests: Arc<Places>,
    streams: Arc<Places>,
}

/// So many places for each caller.
#[derive(Debug)]
struct Places {
    most: u32,
    taken: Mutex<HashMap<Arc<str>, u32>>,
}

/// A request or a stream under way; its end gives the place back.
#[derive(Debug)]
pub(crate) struct Place {
    places: Arc<Places>,
    principal: Arc<str>,
}

impl Admission {
    pub(super) fn new(config: &DoorConfig) -> Self {
        let positive = |number: u32| NonZeroU32::new(number).unwrap_or(NonZeroU32::MIN);
        let burst = positive(config.burst);
        let rate = RateLimiter::dashmap(Quota::per_second(positive(config.per_second)).allow_burst(burst));
        let places = |most| Arc::new(Places { most, taken: Mutex::default() });
        let (requests, streams) = (places(config.in_flight), places(config.streams));
        Self { rate, clock: DefaultClock::default(), burst, requests, streams }
    }

    /// Takes a place for a request, and charges one call.
    pub(crate) fn admit(&self, principal: &Principal) -> Result<Place, Refusal> {
        let full = "too many requests of this caller are under way";
        let place = Places::take(&self.requests, principal).ok_or_else(|| Refusal::quota(full, 1))?;
        self.charge(principal, 1)?;
        Ok(place)
    }

    /// Takes a place for a stream.
    pub(crate) fn open_stream(&self, principal: &Principal) -> Result<Place, Refusal> {
        let full = "too many streams of this caller are open";
        Places::take(&self.streams, principal).ok_or_else(|| Refusal::quota(full, 1))
    }

    /// Charges calls: all of them or none.
    pub(crate) fn charge(&self, principal: &Principal, calls: usize) -> Result<(), Refusal> {
        // A batch of more than the burst takes all of it, else it could never pass.
        let calls = u32::try_from(calls).unwrap_or(u32::MAX).min(self.burst.get());
        let Some(calls) = NonZeroU32::new(calls) else { return Ok(()) };
        match self.rate.check_key_n(&principal.name, calls) {
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

impl Places {
    fn take(this: &Arc<Self>, principal: &Principal) -> Option<Place> {
        let mut taken = this.lock();
        // INVARIANT: who has nothing under way has no entry.
        let count = taken.get(&principal.name).copied().unwrap_or(0);
        if count >= this.most {
            return None;
        }
        taken.insert(Arc::clone(&principal.name), count + 1);
        Some(Place { places: Arc::clone(this), principal: Arc::clone(&principal.name) })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Arc<str>, u32>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.lock();
        if let Some(count) = taken.get_mut(&self.principal) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                taken.remove(&self.principal);
            }
        }
    }
}
