//! The callers of a door, and how much of the door one caller may use.
//! Never counts anything against an identity that was not proved.

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

/// An authenticated caller.
#[derive(Debug, Clone)]
pub(crate) struct Principal {
    /// Unique to this caller.
    name: Arc<str>,
    /// The token it presented, unless it is the door's agent itself.
    pub(super) shown: Option<Arc<Shown>>,
    /// Shows its calls on the page.
    seen: Option<Arc<Seen>>,
}

impl Principal {
    /// Everyone who reaches the listener of a door with `own`: the door's agent.
    pub(super) fn own(agent: impl Into<Arc<str>>) -> Self {
        Self { name: agent.into(), shown: None, seen: None }
    }

    /// The subject of a verified token.
    pub(super) fn of(shown: Shown) -> Self {
        // Two issuers may use the same name for different people.
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

    /// The observer of its calls, whichever protocol it uses.
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
    /// Messages being read, which may or may not turn out to be requests.
    reading: Arc<Places>,
    requests: Arc<Places>,
    streams: Arc<Places>,
    sockets: Arc<Places>,
}

/// Places taken, by caller and service.
type Taken = HashMap<Arc<str>, BTreeMap<Arc<str>, u32>>;

/// `most` places for each caller, at most `of_service` of them for one service: a service that hangs leaves room for calls to others.
#[derive(Debug)]
struct Places {
    most: u32,
    of_service: u32,
    taken: Mutex<Taken>,
}

/// The place of a request or a stream; dropping it frees the place.
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
        // One caller leaves room for others, whatever is configured.
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

    /// Takes a place for a message while it is read, and charges one call. A message that only cancels or answers needs no other place,
    /// since it must not wait for the request that it is about.
    pub(crate) fn read(&self, principal: &Principal, service: &str) -> Result<Place, Refusal> {
        let full = "too many messages of this caller are being read";
        let place = Places::take(&self.reading, principal, service).ok_or_else(|| Refusal::quota(full, 1))?;
        self.charge(principal, 1)?;
        Ok(place)
    }

    /// Takes a place for a request that has already been charged.
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

    /// Charges the further calls of a request, besides the one it was admitted with: all of them or none.
    pub(crate) fn charge_more(&self, principal: &Principal, calls: usize) -> Result<(), Refusal> {
        // A batch larger than the burst uses up the whole burst; otherwise it could never pass.
        self.charge(principal, u32::try_from(calls).unwrap_or(u32::MAX).min(self.burst.get() - 1))
    }

    fn charge(&self, principal: &Principal, calls: u32) -> Result<(), Refusal> {
        let Some(calls) = NonZeroU32::new(calls) else { return Ok(()) };
        match self.rate.check_key_n(&principal.name, calls) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(until)) => {
                let wait = until.wait_time_from(self.clock.now());
                Err(Refusal::quota("this caller calls too often", wait.as_secs() + 1))
            }
            Err(_) => Err(Refusal::quota("this caller calls too often", 1)),
        }
    }

    /// How many requests and streams of a caller are in progress.
    pub(super) fn under_way(&self, principal: &str) -> (u32, u32) {
        (self.requests.of(principal), self.streams.of(principal))
    }

    /// Forgets the rates of idle callers.
    pub(super) fn tidy(&self) {
        self.rate.retain_recent();
        self.rate.shrink_to_fit();
    }
}

impl Places {
    fn take(this: &Arc<Self>, principal: &Principal, service: &str) -> Option<Place> {
        let mut all = this.lock();
        // INVARIANT: a caller with nothing in progress has no entry, and no entry has a service with a count of 0.
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
    /// The service it was taken for.
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
