//! One service as this client knows it: where it listens, how to sign for it, how its clock differs from ours.
//! Never adjusts its idea of the time except by a verified answer, and only for the service that gave it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::credentials::Credentials;
use super::error::InvalidRequest;
use crate::name::Name;
use crate::wire::{Endpoint, ProofAlgorithm, RequestSigner};

/// A service.
#[derive(Debug)]
pub(super) struct KnownService {
    pub(super) endpoint: Endpoint,
    pub(super) signer: RequestSigner,
    /// What to add to our clock to get the service's, in seconds.
    offset_s: AtomicI64,
    /// The largest such difference that is believed.
    window_s: u64,
}

impl KnownService {
    fn new(credentials: &Credentials, service: Name, window_s: u64) -> Result<Self, InvalidRequest> {
        let pinned = credentials.pinned(&service);
        if credentials.key().algorithm() == ProofAlgorithm::EdDsa && pinned.is_empty() {
            return Err(InvalidRequest::NoServiceKey { service: service.to_string() });
        }
        let endpoint = credentials.endpoint(service)?;
        let signer = RequestSigner::new(credentials.key(), endpoint.audience().clone(), pinned)?;
        Ok(Self { endpoint, signer, offset_s: AtomicI64::new(0), window_s: window_s.max(LEAST_WINDOW_S) })
    }

    /// The service's time as far as we know it, computed from our own.
    pub(super) fn now_ms(&self, own_ms: u64) -> u64 {
        own_ms.saturating_add_signed(self.offset_s.load(Ordering::Relaxed).saturating_mul(1000))
    }

    /// Learns from a verified answer, which the service signed at `iat` by its clock, and so between `sent_s`, when its
    /// request was signed, and `now_s` by ours.
    ///
    /// The known offset changes by as little as that allows: an answer that is late, or was held up by somebody, says less about the time,
    /// but nothing wrong. An offset of more than W is not believed, but returned, in seconds.
    pub(super) fn adjust_clock(&self, iat: u64, sent_s: u64, now_s: u64) -> Option<i64> {
        let ahead_of = |own_s: u64| i64::try_from(i128::from(iat) - i128::from(own_s)).unwrap_or(i64::MAX);
        // Our clock may have been stepped back meanwhile.
        let (least, most) = (ahead_of(now_s), ahead_of(sent_s.min(now_s)));
        let known = self.offset_s.load(Ordering::Relaxed);
        let offset = known.clamp(least, most);
        if offset.unsigned_abs() > self.window_s {
            return Some(offset);
        }
        // If several answers arrive together, any of them may be stored last.
        self.offset_s.store(offset, Ordering::Relaxed);
        if offset.abs_diff(known) > 1 {
            let audience = self.endpoint.audience();
            tracing::warn!(target: "sealwire::client", %audience, offset_s = offset, "the service's clock differs from ours");
        }
        None
    }
}

/// The services that were called so far.
#[derive(Debug, Default)]
pub(super) struct KnownServices(Mutex<HashMap<String, Arc<KnownService>>>);

impl KnownServices {
    pub(super) fn find(
        &self,
        credentials: &Credentials,
        service: &str,
        window_s: u64,
    ) -> Result<Arc<KnownService>, InvalidRequest> {
        if let Some(known) = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(service) {
            return Ok(Arc::clone(known));
        }
        let known = Arc::new(KnownService::new(credentials, Name::new(service)?, window_s)?);
        let mut services = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Beyond the bound, a service is set up anew for each call, which costs microseconds and forgets its clock's offset.
        if services.len() < MAX_SERVICES {
            return Ok(Arc::clone(services.entry(service.to_owned()).or_insert(known)));
        }
        Ok(known)
    }
}

/// The least W that a service may have, however short-lived our messages are: SPEC.md §8.
const LEAST_WINDOW_S: u64 = 30;

/// More services than one program calls, unless their names come from its input.
const MAX_SERVICES: usize = 1024;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::nats::BusConfig;
    use crate::wire::{AgentKey, ServicePublicKey};

    const NOW: u64 = 1_790_000_000;

    fn credentials(key: AgentKey) -> Credentials {
        let name = |text| Name::new(text).unwrap();
        Credentials::new(name("test"), name("ann"), key, BusConfig::open("nats://localhost"))
    }

    fn service() -> KnownService {
        let key = AgentKey::hmac("ann.k1", &[1; 32]).unwrap();
        KnownService::new(&credentials(key), Name::new("desk").unwrap(), 30).unwrap()
    }

    /// SPEC.md §8.1.
    #[test]
    fn an_answer_moves_the_clock_by_what_it_shows_and_no_more() {
        // The offset before; `iat`; when it was sent and answered by our clock; the offset after.
        for (known, iat, sent, now, offset) in [
            (0, NOW, NOW, NOW, 0),
            (0, NOW, NOW - 12, NOW - 12, 12),
            (0, NOW, NOW + 7, NOW + 7, -7),
            (0, NOW, NOW - 30, NOW - 30, 30),
            // An answer that took ten seconds may have been signed in any of them.
            (0, NOW, NOW - 10, NOW, 0),
            (-4, NOW, NOW - 10, NOW, 0),
            (0, NOW, NOW - 22, NOW - 12, 12),
            (15, NOW, NOW - 22, NOW - 12, 15),
            (30, NOW, NOW - 22, NOW - 12, 22),
            // Our clock was stepped back before the answer came.
            (0, NOW, NOW + 100, NOW - 2, 2),
        ] {
            let service = service();
            service.offset_s.store(known, Ordering::Relaxed);
            assert_eq!(service.adjust_clock(iat, sent, now), None);
            assert_eq!(service.offset_s.load(Ordering::Relaxed), offset, "{known}: {iat} in {sent}..{now}");
            assert_eq!(service.now_ms(NOW * 1000 + 7), (NOW * 1000).saturating_add_signed(offset * 1000) + 7);
        }
    }

    /// SPEC.md §8.1.
    #[test]
    fn a_difference_of_more_than_the_window_is_returned_and_not_believed() {
        for (iat, off) in [(NOW + 31, 31), (NOW - 31, -31), (0, -1_790_000_000), (NOW + 9_999, 9_999)] {
            let service = service();
            assert_eq!(service.adjust_clock(iat, NOW, NOW), Some(off));
            assert_eq!(service.offset_s.load(Ordering::Relaxed), 0);
        }
        assert!(service().adjust_clock(u64::MAX, 0, 0).is_some());
        assert!(service().adjust_clock(0, u64::MAX, u64::MAX).is_some());
    }

    /// No service has a shorter window, so a caller whose messages live for less may still be off by as much.
    /// SPEC.md §8.1.
    #[test]
    fn short_lives_of_messages_do_not_narrow_what_is_believed() {
        let credentials = credentials(AgentKey::hmac("ann.k1", &[1; 32]).unwrap());
        for (valid_s, believed) in [(1, 30_u32), (30, 30), (100, 100)] {
            let service = KnownService::new(&credentials, Name::new("desk").unwrap(), valid_s).unwrap();
            let then = NOW + u64::from(believed);
            assert_eq!(service.adjust_clock(then + 1, NOW, NOW), Some(i64::from(believed) + 1));
            assert_eq!(service.adjust_clock(then, NOW, NOW), None);
        }
    }

    /// SPEC.md §8.1.
    #[test]
    fn what_one_service_says_of_the_time_is_believed_of_it_alone() {
        let (services, credentials) =
            (KnownServices::default(), credentials(AgentKey::hmac("ann.k1", &[1; 32]).unwrap()));
        let service = |service| services.find(&credentials, service, 30).unwrap();
        assert_eq!(service("desk").adjust_clock(NOW + 20, NOW, NOW), None);
        assert_eq!((service("desk").now_ms(0), service("bank").now_ms(0)), (20_000, 0));
    }

    /// SPEC.md §5.4.
    #[test]
    fn ed25519_without_a_pinned_key_is_refused_before_anything_is_sent() {
        let credentials = credentials(AgentKey::ed25519("ann.k2", [3; 32]).unwrap());
        let error = KnownServices::default().find(&credentials, "desk", 30).unwrap_err();
        assert!(matches!(error, InvalidRequest::NoServiceKey { .. }), "{error}");
        let x = AgentKey::ed25519("x", [4; 32]).unwrap().public().unwrap();
        let pinned = ServicePublicKey::new("svc:test/desk:1", &x).unwrap();
        let credentials = credentials.service_keys(Name::new("desk").unwrap(), vec![pinned]);
        assert!(KnownServices::default().find(&credentials, "desk", 30).is_ok());
    }

    #[test]
    fn names_beyond_the_bound_still_work_but_are_not_kept() {
        let services = KnownServices::default();
        let credentials = credentials(AgentKey::hmac("ann.k1", &[1; 32]).unwrap());
        for n in 0..MAX_SERVICES + 10 {
            services.find(&credentials, &format!("s{n}"), 30).unwrap();
        }
        assert_eq!(services.0.lock().unwrap().len(), MAX_SERVICES);
    }
}
