//! The published control messages, judged in the service's order.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::Value;

use super::*;
use crate::auth::{
    KeyEntry, KeyRing, KeyRingFile, KeySet, LocalGuard, NonceLimits, Symmetric, TimeFloor, TokenRules, TokenVerifier,
    Window,
};
use crate::clock::ManualClock;
use crate::name::Name;
use crate::wire::{
    AgentKey, ControlClaims, ControlSubject, Delivery, Endpoint, Envelope, HeaderBlock, Nonce, ProofClaims,
    RequestSigner, ServiceKey, SignedControl,
};

struct Vectors(Value);

impl Vectors {
    fn load() -> Self {
        // Not `include_str!`: an image is built from `src` without the tests.
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vectors/nats-rpc-v1.json");
        Self(serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap())
    }

    fn all(&self) -> impl Iterator<Item = &Value> {
        self.0["vectors"].as_array().unwrap().iter()
    }

    fn named(&self, name: &str) -> &Value {
        self.all().find(|vector| vector["name"] == name).unwrap()
    }

    fn now_s(&self) -> u64 {
        self.0["clock"].as_u64().unwrap()
    }

    fn endpoint() -> Endpoint {
        Endpoint::new(Name::new("prod").unwrap(), Name::new("math").unwrap())
    }

    fn keys(&self) -> Vec<(Name, AgentKey)> {
        let keys = self.0["agent_keys"].as_array().unwrap().iter().map(|record| {
            let text = |name: &str| record[name].as_str().unwrap();
            let key = match record["master_hex"].as_str() {
                Some(master) => AgentKey::hmac(text("kid"), &unhex(master)).unwrap(),
                None => AgentKey::ed25519(text("kid"), unhex(text("seed_hex")).try_into().unwrap()).unwrap(),
            };
            (Name::new(text("owner")).unwrap(), key)
        });
        keys.collect()
    }

    fn verifier(&self) -> Verifier {
        let endpoint = Self::endpoint();
        let audience = endpoint.audience();
        let keys = self.keys().into_iter().map(|(owner, key)| match key.derived(audience) {
            Some(derived) => KeyEntry::hmac(key.kid(), owner, &derived),
            None => KeyEntry::ed25519(key.kid(), owner, key.public().unwrap()),
        });
        let ring = KeyRingFile { audience: audience.to_string(), keys: keys.collect() };
        let issuer = self.0["issuer"].as_str().unwrap();
        let set = KeySet::from_jwks(&self.0["token_keys"].to_string(), issuer, "vectors", Symmetric::Refused).unwrap();
        let window = Window::new(30, 5).unwrap();
        // Long ago, so that the fence is past.
        let clock = Arc::new(ManualClock::at(self.now_s() - 10_000));
        let guard = LocalGuard::open(window, NonceLimits::default(), clock, &TimeFloor::Ephemeral).unwrap();
        Verifier::new(
            &endpoint,
            window,
            KeyRing::new(ring, audience).unwrap(),
            Some(ServiceKey::generate("svc:prod/math:k1", audience).unwrap()),
            TokenVerifier::new(TokenRules::new(audience.as_str()), set),
            Arc::new(guard),
        )
        .unwrap()
    }
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

fn delivery(vector: &Value) -> Delivery {
    let lines: Vec<(&str, &str)> = match vector["header_list"].as_array() {
        Some(list) => list.iter().map(|line| (line[0].as_str().unwrap(), line[1].as_str().unwrap())).collect(),
        None => vector["headers"].as_object().unwrap().iter().map(|(n, v)| (n.as_str(), v.as_str().unwrap())).collect(),
    };
    let text = |member: &str| vector[member].as_str().unwrap().to_owned();
    Delivery::new(&text("subject"), &text("reply"), HeaderBlock::of(&lines), text("payload"))
}

/// The call's caller, the digest of its proof, and the highest counter.
type Begun = (Arc<Caller>, [u8; 32], u64);

/// The calls that replica `r1` runs.
struct Running {
    verifier: Verifier,
    calls: HashMap<(Name, Nonce), Begun>,
    now_s: u64,
}

impl Running {
    fn new(vectors: &Vectors) -> Self {
        let (verifier, now_s) = (vectors.verifier(), vectors.now_s());
        let begun = ["V9 call that takes frames", "V10 call that takes frames, Ed25519"].map(|name| {
            let request = vectors.named(name);
            let envelope = Envelope::decode(delivery(request), &Vectors::endpoint()).unwrap();
            let proof = request["headers"]["Authorization"].as_str().unwrap().split('~').nth(1).unwrap();
            let authentic = verifier.authenticate(envelope, now_s).unwrap();
            let caller = authentic.message.caller;
            ((caller.agent.clone(), authentic.message.nonce), (caller, sha256(proof.as_bytes()), 0))
        });
        Self { calls: begun.into(), verifier, now_s }
    }

    /// The control message, or why it is dropped.
    fn judge(&mut self, vector: &Value) -> Result<Control, String> {
        let endpoint = Vectors::endpoint();
        let delivery = delivery(vector);
        let subject = ControlSubject::parse(delivery.subject(), &endpoint).ok_or("no subject of control")?;
        if subject.replica.as_ref().is_some_and(|replica| replica.as_str() != "r1") {
            return Err("for another replica".into());
        }
        let of = self.calls.get_mut(&(subject.agent.clone(), subject.call));
        let (caller, request, counter) = of.ok_or("no such call")?;
        let envelope = ControlEnvelope::decode(delivery, &subject, &endpoint).map_err(|error| error.to_string())?;
        let control = self.verifier.authenticate_control(envelope, caller, request, *counter, self.now_s);
        let control = control.map_err(|error| error.to_string())?;
        *counter = control.counter;
        Ok(control)
    }
}

/// SPEC.md §24, SPEC.md §25.2, SPEC.md §25.3.
#[test]
fn every_control_vector_gets_what_it_expects() {
    let vectors = Vectors::load();
    let mut judged = 0;
    for vector in vectors.all().filter(|vector| vector["kind"] == "control") {
        let mut running = Running::new(&vectors);
        for before in vector["after"].as_array().unwrap() {
            running.judge(vectors.named(before.as_str().unwrap())).unwrap();
        }
        let got = running.judge(vector);
        let expected = if got.is_ok() { "accept" } else { "dropped" };
        assert_eq!(expected, vector["expect"], "{}: {got:?}", vector["name"]);
        judged += 1;
    }
    assert_eq!(judged, 48);
}

/// SPEC.md §24: our signer writes the same bytes as the generator of the vectors.
#[test]
fn good_control_is_what_the_vectors_say_it_is() {
    let vectors = Vectors::load();
    let keys: HashMap<String, AgentKey> =
        vectors.keys().into_iter().map(|(_, key)| (key.kid().to_owned(), key)).collect();
    let mut signed = 0;
    for vector in vectors.all().filter(|vector| vector["kind"] == "control" && vector["expect"] == "accept") {
        let key = &keys[vector["proof_header"]["kid"].as_str().unwrap()];
        let signer = RequestSigner::new(key, Vectors::endpoint().audience().clone(), vec![]).unwrap();
        let claims: ControlClaims = serde_json::from_value(vector["proof_claims"].clone()).unwrap();
        let header = vector["headers"]["Authorization"].as_str().unwrap();
        let token = header["NatsRpc ".len()..].split('~').next().unwrap();
        assert_eq!(signer.sign_control_claims(&claims, token), header, "{}", vector["name"]);
        signed += 1;
    }
    assert_eq!(signed, 9);
}

/// SPEC.md §25.5: a call ends with the token and the key that were presented for it.
#[test]
fn what_was_shown_for_a_call_holds_until_it_expires_or_is_taken_back() {
    let vectors = Vectors::load();
    let verifier = vectors.verifier();
    let header = vectors.named("V9 call that takes frames")["headers"]["Authorization"].as_str().unwrap();
    let text = header["NatsRpc ".len()..].split('~').next().unwrap().as_bytes();
    let presented = verifier.tokens.present(text);
    let token = verifier.tokens.judge(text, presented, vectors.now_s()).unwrap();
    let key = |kid: &str| Arc::clone(verifier.keys.load().ring.find(kid).unwrap());
    let shown = ShownToken { token, key: key("agent-7f3a.k1") };
    let expires_at = 1_790_000_800;
    for now_s in [vectors.now_s(), expires_at, expires_at + 4] {
        verifier.check_again(&shown, &shown, now_s).unwrap();
    }
    let late = verifier.check_again(&shown, &shown, expires_at + 5);
    assert!(matches!(late, Err(AuthError::Token(_))), "{late:?}");
    let empty = KeyRingFile { audience: "prod/math".to_owned(), keys: vec![] };
    verifier.replace_ring(KeyRing::new(empty, Vectors::endpoint().audience()).unwrap()).unwrap();
    let gone = verifier.check_again(&shown, &shown, vectors.now_s());
    assert!(matches!(gone, Err(AuthError::Key)), "{gone:?}");
}

/// SPEC.md §25.2: a lease lasts as long as intended, whatever is left of the current second.
#[test]
fn a_lease_counts_from_now() {
    let vectors = Vectors::load();
    let audience = Vectors::endpoint().audience().clone();
    let signer = RequestSigner::new(&vectors.keys()[0].1, audience, vec![]).unwrap();
    let vector = vectors.named("V9 call that takes frames");
    let claims: ProofClaims = serde_json::from_value(vector["proof_claims"].clone()).unwrap();
    let call = signer.sign_claims(&claims, "token").expectation;
    for (lease_ms, signed) in [(1_000, 1_400), (0, 400), (599_999, 600_000)] {
        let op = ControlOp::Ack { ack: 1, window: None, timeout_ms: Some(lease_ms) };
        let now_ms = 1_790_000_001_400;
        let control = SignedControl {
            subject: "s",
            payload: b"",
            token: "token",
            now_ms,
            valid_s: 30,
            call: &call,
            counter: 1,
            op: &op,
        };
        let authorization = signer.sign_control(&control);
        let claims = ControlClaims::parse(authorization.split('.').nth(1).unwrap()).unwrap();
        assert_eq!(claims.op, ControlOp::Ack { ack: 1, window: None, timeout_ms: Some(signed) });
    }
}

/// Each has its own watcher, so both change at the same moment when both files do.
#[test]
fn a_ring_and_a_service_key_that_change_together_are_both_in_force() {
    let verifier = Vectors::load().verifier();
    let endpoint = Vectors::endpoint();
    // Large, so that replacing it takes a while.
    let keys = (0..1_000).map(|agent| {
        let key = AgentKey::hmac(&format!("a{agent}.k"), &[7; 32]).unwrap();
        let owner = Name::new(&format!("a{agent}")).unwrap();
        KeyEntry::hmac(key.kid(), owner, &key.derived(endpoint.audience()).unwrap())
    });
    let file = KeyRingFile { audience: endpoint.audience().to_string(), keys: keys.collect() };
    let ring = KeyRing::new(file, endpoint.audience()).unwrap();
    let start = std::sync::Barrier::new(2);
    for round in 0..500 {
        let kid = format!("svc:prod/math:{round}");
        let key = ServiceKey::generate(&kid, endpoint.audience()).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                start.wait();
                verifier.replace_ring(ring.share()).unwrap();
            });
            start.wait();
            verifier.replace_service_key(key);
        });
        assert_eq!(verifier.service_key().unwrap().kid(), kid);
    }
}
