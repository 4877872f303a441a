//! Who calls through a door, and how much of it one caller may use.
//! Never counts anything by what nobody has proved.

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use governor::clock::{Clock as _, DefaultClock};
use governor::{DefaultKeyedRateLimiter, RateLimiter};
use sealwire::client::Observer;

use super::callers::Shown;
use super::config::DoorConfig;
use super::page::Seen;
use super::refusal::Refusal;

/// A caller that is known.
#[derive(Debug, Clone)]
pub(crate) struct Principal {
    /// No other has it.
    name: Arc<str>,
    /// What it has shown, if it is not the door's agent itself.
    pub(super) shown: Option<Arc<Shown>>,
    /// Who is told of its calls.
    seen: Option<Arc<Seen>>,
}

impl Principal {
    /// Whoever reaches the listener of a door that is for its own machine.
    pub(super) fn own(agent: impl Into<Arc<str>>) -> Self {
        Self { name: agent.into(), shown: None, seen: None }
    }

    /// Whom a token speaks of that was verified.
    pub(super) fn of(shown: Shown) -> Self {
        // Two issuers may have two people of one name.
        let name = format!("{} {}", shown.token.issuer, shown.token.subject).into();
        Self { name, shown: Some(Arc::new(shown)), seen: None }
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.name
    }

    pub(super) fn name(&self) -> Arc<str> {
        Arc::clone(&self.name)
    }

    pub(super) fn seen_by(self, seen: &Arc<Seen>) -> Self {
        Self { seen: Some(Arc::clone(seen)), ..self }
    }

    /// Who is to be told of its calls, whatever it speaks.
    pub(super) fn observer(&self) -> Option<Arc<dyn Observer>> {
        self.seen.as_ref().map(|seen| Arc::<Seen>::clone(seen) as Arc<dyn Observer>)
    }
}

/// How much of the door callers may use.
#[derive(Debug)]
pub(crate) struct Admission {
    rate: DefaultKeyedRateLimiter<Arc<str>>,
    clock: DefaultClock,
    burst: NonZeroU32,
    /// Messages being read, of which it is not known yet whether they are requests.
    reading: Arc<Places>,
    requests: Arc<Places>,
    streams: Arc<Places>,
    sockets: Arc<Places>,
}

/// By caller and service.
type Taken = HashMap<Arc<str>, BTreeMap<Arc<str>, u32>>;

/// So many places for each caller, and of these so many for one service: one that hangs leaves room for calls of others.
#[derive(Debug)]
struct Places {
    most: u32,
    of_service: u32,
    taken: Mutex<Taken>,
}

/// A request or a stream under way; its end gives the place back.
#[derive(Debug)]
pub(crate) struct Place {
    places: Arc<Places>,
    principal: Arc<str>,
    service: Arc<str>,
}

impl Admission {
    pub(super) fn new(config: &DoorConfig) -> Self {
        let quota = config.quota();
        let (rate, burst) = (RateLimiter::dashmap(quota), quota.burst_size());
        let services = if config.expose.len() > 1 { 2 } else { 1 };
        let places =
            |most: u32| Arc::new(Places { most, of_service: most.div_ceil(services), taken: Mutex::default() });
        let (reading, requests, streams) = (places(config.in_flight), places(config.in_flight), places(config.streams));
        // Whatever is configured, one caller leaves room for others.
        let most = config.sockets.min(u32::try_from(config.connections / 2).unwrap_or(u32::MAX)).max(1);
        let sockets = Arc::new(Places { most, of_service: most, taken: Mutex::default() });
        Self { rate, clock: DefaultClock::default(), burst, reading, requests, streams, sockets }
    }

    /// Takes a place for a request, and charges one call.
    pub(crate) fn admit(&self, principal: &Principal, service: &str) -> Result<Place, Refusal> {
        let place = self.enter(principal, service)?;
        self.charge(principal, 1)?;
        Ok(place)
    }

    /// Takes a place for a message while it is read, and charges one call. What only cancels or answers needs no other: it must not wait
    /// for what it is about.
    pub(crate) fn read(&self, principal: &Principal, service: &str) -> Result<Place, Refusal> {
        let full = "too many messages of this caller are being read";
        let place = Places::take(&self.reading, principal, service).ok_or_else(|| Refusal::quota(full, 1))?;
        self.charge(principal, 1)?;
        Ok(place)
    }

    /// Takes a place for a request that is charged already.
    pub(crate) fn enter(&self, principal: &Principal, service: &str) -> Result<Place, Refusal> {
        let full = "too many requests of this caller are under way";
        Places::take(&self.requests, principal, service).ok_or_else(|| Refusal::quota(full, 1))
    }

    /// Takes a place for a stream.
    pub(crate) fn open_stream(&self, principal: &Principal, service: &str) -> Result<Place, Refusal> {
        let full = "too many streams of this caller are open";
        Places::take(&self.streams, principal, service).ok_or_else(|| Refusal::quota(full, 1))
    }

    /// Takes a place for a WebSocket.
    pub(crate) fn open_socket(&self, principal: &Principal, service: &str) -> Result<Place, Refusal> {
        let full = "too many WebSockets of this caller are open";
        Places::take(&self.sockets, principal, service).ok_or_else(|| Refusal::quota(full, 1))
    }

    /// Charges the calls of a request beside the one that it was admitted with: all of them or none.
    pub(crate) fn charge_more(&self, principal: &Principal, calls: usize) -> Result<(), Refusal> {
        // A batch of more than the burst takes all that is left of it, else it could never pass.
        self.charge(principal, u32::try_from(calls).unwrap_or(u32::MAX).min(self.burst.get() - 1))
    }

    fn charge(&self, principal: &Principal, calls: u32) -> Result<(), Refusal> {
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

    /// How many requests and streams of a caller are under way.
    pub(super) fn under_way(&self, principal: &str) -> (u32, u32) {
        (self.requests.of(principal), self.streams.of(principal))
    }

    /// Forgets the rates of callers that have been quiet.
    pub(super) fn tidy(&self) {
        self.rate.retain_recent();
        self.rate.shrink_to_fit();
    }
}

impl Places {
    fn take(this: &Arc<Self>, principal: &Principal, service: &str) -> Option<Place> {
        let mut all = this.lock();
        // INVARIANT: who has nothing under way has no entry, and no service there has none.
        let mut taken = all.get_mut(&principal.name);
        let sum: u32 = taken.as_ref().map_or(0, |taken| taken.values().sum());
        let found = taken.as_ref().and_then(|taken| taken.get_key_value(service));
        let (service, count) =
            found.map_or_else(|| (service.into(), 0), |(service, count)| (Arc::clone(service), *count));
        if sum >= this.most || count >= this.of_service {
            return None;
        }
        let count = match &mut taken {
            Some(taken) => taken.entry(Arc::clone(&service)).or_default(),
            None => all.entry(Arc::clone(&principal.name)).or_default().entry(Arc::clone(&service)).or_default(),
        };
        *count += 1;
        Some(Place { places: Arc::clone(this), principal: Arc::clone(&principal.name), service })
    }

    fn of(&self, principal: &str) -> u32 {
        self.lock().get(principal).map_or(0, |taken| taken.values().sum())
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    /// What it was taken for.
    pub(crate) fn service(&self) -> &str {
        &self.service
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut all = self.places.lock();
        let Some(taken) = all.get_mut(&self.principal) else { return };
        if let Some(count) = taken.get_mut(&self.service).filter(|count| **count > 1) {
            *count -= 1;
            return;
        }
        taken.remove(&self.service);
        if taken.is_empty() {
            all.remove(&self.principal);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn admission(services: &[&str]) -> (Admission, Principal) {
        let exposed: String = services.iter().map(|name| format!("[[expose]]\nservice = \"{name}\"\n")).collect();
        let text = format!(
            "listen = \"127.0.0.1:0\"\ncredentials = \"a.json\"\nin_flight = 5\nper_second = 1\nburst = 6\n{exposed}"
        );
        (Admission::new(&toml::from_str(&text).unwrap()), Principal::own("ann"))
    }

    #[test]
    fn a_service_that_hangs_leaves_places_for_others() {
        let (admission, ann) = admission(&["slow", "fast"]);
        let take = |service| Places::take(&admission.requests, &ann, service);
        let slow: Vec<_> = std::iter::from_fn(|| take("slow")).collect();
        let fast: Vec<_> = std::iter::from_fn(|| take("fast")).collect();
        assert_eq!((slow.len(), fast.len()), (3, 2), "no more than half, and no more than all");
        drop(fast);
        assert!(take("slow").is_none() && take("fast").is_some());
        drop(slow);
        assert!(admission.requests.lock().is_empty(), "nothing is left of those that have ended");

        let (alone, ann) = self::admission(&["slow"]);
        let all: Vec<_> = std::iter::from_fn(|| Places::take(&alone.requests, &ann, "slow")).collect();
        assert_eq!(all.len(), 5);
    }

    #[test]
    fn a_batch_above_the_burst_takes_all_of_it() {
        let (admission, ann) = admission(&["fast"]);
        let place = admission.admit(&ann, "fast").unwrap();
        assert!(admission.charge_more(&ann, 1_000).is_ok());
        assert!(admission.charge_more(&ann, 1_000).is_err() && admission.admit(&ann, "fast").is_err());
        drop(place);
    }
}
