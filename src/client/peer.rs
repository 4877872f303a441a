//! One service as this client knows it: where it listens, how to sign for it, how its clock differs from ours.
//! Never changes its idea of the time for anything but a signed answer.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::credentials::Credentials;
use super::error::InvalidRequest;
use crate::auth::ProofAlgorithm;
use crate::name::Name;
use crate::rpc::{RpcError, code};
use crate::wire::{Endpoint, RequestSigner};

/// A service.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) endpoint: Endpoint,
    pub(super) signer: RequestSigner,
    /// What is to be added to our clock to get the service's, in seconds.
    offset_s: AtomicI64,
    /// The largest such difference that is believed.
    window_s: i64,
}

impl Peer {
    fn new(credentials: &Credentials, service: Name, window_s: u64) -> Result<Self, InvalidRequest> {
        let pinned = credentials.pinned(&service);
        if credentials.key().algorithm() == ProofAlgorithm::EdDsa && pinned.is_empty() {
            return Err(InvalidRequest::NoServiceKey { service: service.to_string() });
        }
        let endpoint = credentials.endpoint(service)?;
        let signer = RequestSigner::new(credentials.key(), endpoint.audience().clone(), pinned)?;
        let window_s = i64::try_from(window_s).unwrap_or(i64::MAX);
        Ok(Self { endpoint, signer, offset_s: AtomicI64::new(0), window_s })
    }

    /// The service's time as far as we know it, from our own.
    pub(super) fn now_ms(&self, own_ms: u64) -> u64 {
        own_ms.saturating_add_signed(self.offset_s.load(Ordering::Relaxed).saturating_mul(1000))
    }

    /// Learns from a verified `-32011` what the service's clock says. Anything else is ignored.
    pub(super) fn learn(&self, error: &RpcError, own_s: u64) {
        #[derive(serde::Deserialize)]
        struct Data {
            server_time: i64,
        }
        // serde would take an array for the struct, too.
        let data = error.data().filter(|data| error.code() == code::STALE && data.get().starts_with('{'));
        let Some(Data { server_time }) = data.and_then(|data| serde_json::from_str(data.get()).ok()) else { return };
        let offset = server_time.saturating_sub(i64::try_from(own_s).unwrap_or(i64::MAX));
        let offset = offset.clamp(-self.window_s, self.window_s);
        self.offset_s.store(offset, Ordering::Relaxed);
        if offset.abs() > 1 {
            let audience = self.endpoint.audience();
            tracing::warn!(target: "sealwire::client", %audience, offset_s = offset, "the service's clock differs from ours");
        }
    }

    #[cfg(test)]
    pub(super) fn offset_s(&self) -> i64 {
        self.offset_s.load(Ordering::Relaxed)
    }
}

/// The services that were called so far.
#[derive(Debug, Default)]
pub(super) struct Peers(Mutex<HashMap<String, Arc<Peer>>>);

impl Peers {
    pub(super) fn find(
        &self,
        credentials: &Credentials,
        service: &str,
        window_s: u64,
    ) -> Result<Arc<Peer>, InvalidRequest> {
        if let Some(peer) = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(service) {
            return Ok(Arc::clone(peer));
        }
        let peer = Arc::new(Peer::new(credentials, Name::new(service)?, window_s)?);
        let mut peers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Beyond the bound a service is set up anew for each call, which costs microseconds and its clock's offset.
        if peers.len() < MAX_PEERS {
            return Ok(Arc::clone(peers.entry(service.to_owned()).or_insert(peer)));
        }
        Ok(peer)
    }
}

/// More services than one program calls, unless their names come from its input.
const MAX_PEERS: usize = 1024;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::bus::BusConfig;
    use crate::wire::{AgentKey, ServicePublicKey};

    const NOW: u64 = 1_790_000_000;

    fn credentials(key: AgentKey) -> Credentials {
        let name = |text| Name::new(text).unwrap();
        Credentials::new(name("test"), name("ann"), key, BusConfig::open("nats://localhost"))
    }

    fn peer() -> Peer {
        let key = AgentKey::hmac("ann.k1", &[1; 32]).unwrap();
        Peer::new(&credentials(key), Name::new("desk").unwrap(), 30).unwrap()
    }

    fn stale(data: &serde_json::Value) -> RpcError {
        RpcError::with_code(code::STALE, "stale").with_data(data)
    }

    #[test]
    fn signed_stale_moves_the_clock_by_at_most_the_window() {
        for (server, offset) in [(NOW + 12, 12), (NOW - 7, -7), (NOW + 31, 30), (0, -30), (u64::MAX >> 1, 30)] {
            let peer = peer();
            peer.learn(&stale(&serde_json::json!({ "server_time": server })), NOW);
            assert_eq!(peer.offset_s(), offset, "{server}");
            assert_eq!(peer.now_ms(NOW * 1000 + 7), (NOW * 1000).saturating_add_signed(offset * 1000) + 7);
        }
    }

    #[test]
    fn other_errors_and_strange_times_leave_the_clock_alone() {
        let peer = peer();
        let time = serde_json::json!({ "server_time": NOW + 12 });
        peer.learn(&RpcError::with_code(code::REPLAYED, "replayed").with_data(&time), NOW);
        peer.learn(&RpcError::with_code(code::STALE, "stale"), NOW);
        for data in ["now", "-1.5"] {
            peer.learn(&stale(&serde_json::json!({ "server_time": data })), NOW);
        }
        peer.learn(&stale(&serde_json::json!([NOW])), NOW + 40);
        assert_eq!(peer.offset_s(), 0);
    }

    #[test]
    fn ed25519_without_a_pinned_key_is_refused_before_anything_is_sent() {
        let credentials = credentials(AgentKey::ed25519("ann.k2", [3; 32]).unwrap());
        let error = Peers::default().find(&credentials, "desk", 30).unwrap_err();
        assert!(matches!(error, InvalidRequest::NoServiceKey { .. }), "{error}");
        let x = AgentKey::ed25519("x", [4; 32]).unwrap().public().unwrap();
        let pinned = ServicePublicKey::new("svc:test/desk:1", &x).unwrap();
        let credentials = credentials.service_keys(Name::new("desk").unwrap(), vec![pinned]);
        assert!(Peers::default().find(&credentials, "desk", 30).is_ok());
    }

    #[test]
    fn names_beyond_the_bound_still_work_but_are_not_kept() {
        let peers = Peers::default();
        let credentials = credentials(AgentKey::hmac("ann.k1", &[1; 32]).unwrap());
        for n in 0..MAX_PEERS + 10 {
            peers.find(&credentials, &format!("s{n}"), 30).unwrap();
        }
        assert_eq!(peers.0.lock().unwrap().len(), MAX_PEERS);
    }
}
