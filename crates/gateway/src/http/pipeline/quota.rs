//! How much of the gateway one caller may use: calls by time, and requests, streams and sockets at a time.
//! Never counts anything against an identity that was not proved.

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use governor::clock::{Clock as _, DefaultClock};
use governor::{DefaultKeyedRateLimiter, RateLimiter};

use crate::http::config::GatewayConfig;
use crate::http::identity::Principal;
use crate::http::refusal::Refusal;

/// How much of the gateway callers may use.
#[derive(Debug)]
pub(in crate::http) struct Quota {
    rate: DefaultKeyedRateLimiter<Arc<str>>,
    clock: DefaultClock,
    burst: NonZeroU32,
    /// Messages being read, which may or may not turn out to be requests.
    reading: Arc<PermitPool>,
    requests: Arc<PermitPool>,
    streams: Arc<PermitPool>,
    sockets: Arc<PermitPool>,
}

/// Permits taken, by caller and service.
type PermitCounts = HashMap<Arc<str>, BTreeMap<Arc<str>, u32>>;

/// `most` permits for each caller, at most `of_service` of them for one service: a service that hangs leaves room for calls to others.
#[derive(Debug)]
struct PermitPool {
    most: u32,
    of_service: u32,
    taken: Mutex<PermitCounts>,
}

/// The permit of a request, a stream or a socket; dropping it makes room for another.
#[derive(Debug)]
pub struct Permit {
    pool: Arc<PermitPool>,
    principal: Arc<str>,
    service: Arc<str>,
}

impl Quota {
    pub(in crate::http) fn new(config: &GatewayConfig) -> Self {
        let quota = config.quota();
        let (rate, burst) = (RateLimiter::dashmap(quota), quota.burst_size());
        let services = if config.expose.len() > 1 { 2 } else { 1 };
        let pool =
            |most: u32| Arc::new(PermitPool { most, of_service: most.div_ceil(services), taken: Mutex::default() });
        let (reading, requests, streams) = (pool(config.in_flight), pool(config.in_flight), pool(config.streams));
        // One caller leaves room for others, whatever is configured.
        let most = config.sockets.min(u32::try_from(config.connections / 2).unwrap_or(u32::MAX)).max(1);
        let sockets = Arc::new(PermitPool { most, of_service: most, taken: Mutex::default() });
        Self { rate, clock: DefaultClock::default(), burst, reading, requests, streams, sockets }
    }

    /// Takes a permit for a request, and charges one call.
    pub(in crate::http) fn take_charged_request(
        &self,
        principal: &Principal,
        service: &str,
    ) -> Result<Permit, Refusal> {
        let permit = self.take_request(principal, service)?;
        self.charge(principal, 1)?;
        Ok(permit)
    }

    /// Takes a permit for a message while it is read, and charges one call. A message that only cancels or answers needs no other permit,
    /// since it must not wait for the request that it is about.
    pub(in crate::http) fn take_charged_reading(
        &self,
        principal: &Principal,
        service: &str,
    ) -> Result<Permit, Refusal> {
        let full = "too many messages of this caller are being read";
        let permit = PermitPool::take(&self.reading, principal, service).ok_or_else(|| Refusal::quota(full, 1))?;
        self.charge(principal, 1)?;
        Ok(permit)
    }

    /// Takes a permit for a request that has already been charged.
    pub(in crate::http) fn take_request(&self, principal: &Principal, service: &str) -> Result<Permit, Refusal> {
        let full = "too many requests of this caller are under way";
        PermitPool::take(&self.requests, principal, service).ok_or_else(|| Refusal::quota(full, 1))
    }

    /// Takes a permit for a stream.
    pub(in crate::http) fn take_stream(&self, principal: &Principal, service: &str) -> Result<Permit, Refusal> {
        let full = "too many streams of this caller are open";
        PermitPool::take(&self.streams, principal, service).ok_or_else(|| Refusal::quota(full, 1))
    }

    /// Takes a permit for a WebSocket.
    pub(in crate::http) fn take_socket(&self, principal: &Principal, service: &str) -> Result<Permit, Refusal> {
        let full = "too many WebSockets of this caller are open";
        PermitPool::take(&self.sockets, principal, service).ok_or_else(|| Refusal::quota(full, 1))
    }

    /// Charges the further calls of a request, besides the one it was admitted with: all of them or none.
    pub(in crate::http) fn charge_more(&self, principal: &Principal, calls: usize) -> Result<(), Refusal> {
        // A batch larger than the burst uses up the whole burst; otherwise it could never pass.
        self.charge(principal, u32::try_from(calls).unwrap_or(u32::MAX).min(self.burst.get() - 1))
    }

    fn charge(&self, principal: &Principal, calls: u32) -> Result<(), Refusal> {
        let Some(calls) = NonZeroU32::new(calls) else { return Ok(()) };
        match self.rate.check_key_n(principal.name(), calls) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(until)) => {
                let wait = until.wait_time_from(self.clock.now());
                Err(Refusal::quota("this caller calls too often", wait.as_secs() + 1))
            }
            Err(_) => Err(Refusal::quota("this caller calls too often", 1)),
        }
    }

    /// How many requests and streams of a caller are in progress.
    pub(in crate::http) fn in_progress(&self, principal: &str) -> (u32, u32) {
        (self.requests.of(principal), self.streams.of(principal))
    }

    /// Forgets the rates of idle callers.
    pub(in crate::http) fn tidy(&self) {
        self.rate.retain_recent();
        self.rate.shrink_to_fit();
    }
}

impl PermitPool {
    fn take(this: &Arc<Self>, principal: &Principal, service: &str) -> Option<Permit> {
        let mut all = this.lock();
        // INVARIANT: a caller with nothing in progress has no entry, and no entry has a service with a count of 0.
        let mut taken = all.get_mut(principal.name());
        let sum: u32 = taken.as_ref().map_or(0, |taken| taken.values().sum());
        let found = taken.as_ref().and_then(|taken| taken.get_key_value(service));
        let (service, count) =
            found.map_or_else(|| (service.into(), 0), |(service, count)| (Arc::clone(service), *count));
        if sum >= this.most || count >= this.of_service {
            return None;
        }
        let count = match &mut taken {
            Some(taken) => taken.entry(Arc::clone(&service)).or_default(),
            None => all.entry(Arc::clone(principal.name())).or_default().entry(Arc::clone(&service)).or_default(),
        };
        *count += 1;
        Some(Permit { pool: Arc::clone(this), principal: Arc::clone(principal.name()), service })
    }

    fn of(&self, principal: &str) -> u32 {
        self.lock().get(principal).map_or(0, |taken| taken.values().sum())
    }

    fn lock(&self) -> MutexGuard<'_, PermitCounts> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut all = self.pool.lock();
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

    fn quota(services: &[&str]) -> (Quota, Principal) {
        let exposed: String = services.iter().map(|name| format!("[[expose]]\nservice = \"{name}\"\n")).collect();
        let text = format!(
            "listen = \"127.0.0.1:0\"\ncredentials = \"a.json\"\nin_flight = 5\nper_second = 1\nburst = 6\n{exposed}"
        );
        (Quota::new(&toml::from_str(&text).unwrap()), Principal::agent("ann"))
    }

    #[test]
    fn a_service_that_hangs_leaves_permits_for_others() {
        let (quota, ann) = quota(&["slow", "fast"]);
        let take = |service| PermitPool::take(&quota.requests, &ann, service);
        let slow: Vec<_> = std::iter::from_fn(|| take("slow")).collect();
        let fast: Vec<_> = std::iter::from_fn(|| take("fast")).collect();
        assert_eq!((slow.len(), fast.len()), (3, 2), "no more than half, and no more than all");
        drop(fast);
        assert!(take("slow").is_none() && take("fast").is_some());
        drop(slow);
        assert!(quota.requests.lock().is_empty(), "nothing is left of those that have ended");

        let (alone, ann) = self::quota(&["slow"]);
        let all: Vec<_> = std::iter::from_fn(|| PermitPool::take(&alone.requests, &ann, "slow")).collect();
        assert_eq!(all.len(), 5);
    }

    #[test]
    fn a_batch_above_the_burst_takes_all_of_it() {
        let (quota, ann) = quota(&["fast"]);
        let permit = quota.take_charged_request(&ann, "fast").unwrap();
        assert!(quota.charge_more(&ann, 1_000).is_ok());
        assert!(quota.charge_more(&ann, 1_000).is_err() && quota.take_charged_request(&ann, "fast").is_err());
        drop(permit);
    }
}
