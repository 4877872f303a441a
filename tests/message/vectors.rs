//! The published vectors, through the code that serves the network: good messages are accepted, bad ones get exactly the
//! refusal that they must get.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_nats::HeaderMap;
use sealwire::configure::{AgentKey, ServicePublicKey};
use sealwire::internal::auth::{
    KeyEntry, KeyRing, KeyRingFile, KeySet, LocalGuard, NonceLimits, Symmetric, TimeFloor, TokenRules, TokenVerifier,
    Verifier, Window,
};
use sealwire::internal::rpc::{Limits, Responses};
use sealwire::internal::wire::{
    Accepted, Endpoint, FrameReceiver, HeaderBlock, ProofClaims, RequestSigner, ServiceKey, SignedRequest, Taken,
    Unverifiable,
};
use sealwire::serve::Delivery;
use sealwire::{Clock as _, Ctx, Idempotent, ManualClock, Name, Router, RpcError, Service, ServiceLimits};
use serde_json::Value;

const WEEK: Duration = Duration::from_secs(7 * 24 * 60 * 60);

struct Vectors(Value);

/// The service of the vectors, and how often its methods ran.
struct Subject {
    service: Service,
    clock: Arc<ManualClock>,
    executions: Arc<AtomicUsize>,
    _folder: tempfile::TempDir,
}

impl Vectors {
    fn load() -> Self {
        Self(serde_json::from_str(include_str!("../vectors/nats-rpc-v1.json")).unwrap())
    }

    fn clock(&self) -> u64 {
        self.0["clock"].as_u64().unwrap()
    }

    fn of_kind(&self, kind: &str) -> Vec<&Value> {
        self.0["vectors"].as_array().unwrap().iter().filter(|vector| vector["kind"] == kind).collect()
    }

    fn named(&self, name: &str) -> &Value {
        self.0["vectors"].as_array().unwrap().iter().find(|vector| vector["name"] == name).unwrap()
    }

    fn endpoint(&self) -> Endpoint {
        let (environment, service) = self.0["service"].as_str().unwrap().split_once('/').unwrap();
        Endpoint::new(Name::new(environment).unwrap(), Name::new(service).unwrap())
    }

    fn agent_keys(&self) -> HashMap<String, (Name, AgentKey)> {
        let keys = self.0["agent_keys"].as_array().unwrap().iter();
        keys.map(|key| {
            let kid = key["kid"].as_str().unwrap();
            let owner = Name::new(key["owner"].as_str().unwrap()).unwrap();
            let key = match key["master_hex"].as_str() {
                Some(master) => {
                    let agent_key = AgentKey::hmac(kid, &unhex(master)).unwrap();
                    let derived = agent_key.derived(self.endpoint().audience()).unwrap();
                    assert_eq!(derived.expose().as_slice(), unhex(key["service_key_hex"].as_str().unwrap()));
                    agent_key
                }
                None => {
                    let seed = unhex(key["seed_hex"].as_str().unwrap()).try_into().unwrap();
                    let agent_key = AgentKey::ed25519(kid, seed).unwrap();
                    assert_eq!(agent_key.public().as_deref(), key["jwk"]["x"].as_str());
                    agent_key
                }
            };
            (kid.to_owned(), (owner, key))
        })
        .collect()
    }

    fn service_key(&self) -> ServiceKey {
        let key = &self.0["service_keys"][0];
        let seed = unhex(key["seed_hex"].as_str().unwrap()).try_into().unwrap();
        let key = ServiceKey::new(key["kid"].as_str().unwrap(), self.endpoint().audience(), seed).unwrap();
        assert_eq!(Some(key.public().x().as_str()), self.0["service_keys"][0]["jwk"]["x"].as_str());
        key
    }

    /// The service `prod/math` with the vectors' keys, its clock set to the vectors' clock.
    fn subject(&self, floor: &TimeFloor) -> Subject {
        let clock = Arc::new(ManualClock::at(self.clock() - 100));
        self.subject_at(&clock, floor)
    }

    fn subject_at(&self, clock: &Arc<ManualClock>, floor: &TimeFloor) -> Subject {
        let endpoint = self.endpoint();
        let window = Window::new(self.0["window_s"].as_u64().unwrap(), self.0["skew_s"].as_u64().unwrap()).unwrap();
        let guard = LocalGuard::open(window, NonceLimits::default(), clock.clone(), floor).unwrap();
        // Once a second, as the guard's thread does: a guard that was not swept for long would start over.
        while clock.now_ms() < self.clock() * 1000 {
            clock.advance_ms(1000);
            guard.sweep();
        }
        let audience = endpoint.audience();
        let keys = self.agent_keys().into_values().map(|(owner, key)| match key.derived(audience) {
            Some(derived) => KeyEntry::hmac(key.kid(), owner, &derived),
            None => KeyEntry::ed25519(key.kid(), owner, key.public().unwrap()),
        });
        let ring = KeyRingFile { audience: audience.to_string(), keys: keys.collect() };
        let ring = KeyRing::new(ring, audience).unwrap();
        let issuer = self.0["issuer"].as_str().unwrap();
        let jwks = self.0["token_keys"].to_string();
        let set = KeySet::from_jwks(&jwks, issuer, "vectors", Symmetric::Refused).unwrap();
        let tokens = TokenVerifier::new(TokenRules::new(audience.as_str()), set);
        let verifier =
            Verifier::new(&endpoint, window, ring, Some(self.service_key()), tokens, Arc::new(guard)).unwrap();

        let folder = tempfile::tempdir().unwrap();
        let policy = "[role.calc]\nallow = [\"math/*\", \"log/append\"]\ndelegated = \"also\"\n";
        std::fs::write(folder.path().join("policy.toml"), policy).unwrap();
        let executions = Arc::new(AtomicUsize::new(0));
        let count = |result: fn(f64, f64) -> f64| {
            move |ctx: Ctx<Arc<AtomicUsize>>, (a, b): (f64, f64)| async move {
                ctx.state().fetch_add(1, Ordering::SeqCst);
                Ok::<_, RpcError>(whole(result(a, b)))
            }
        };
        let router = Router::new(Arc::clone(&executions))
            .method("math/add", count(|a, b| a + b))
            .method("math/mul", count(|a, b| a * b))
            .method("math/primes", count(|_, b| b))
            .idempotent("math/primes", Idempotent::keep(WEEK).as_task(WEEK))
            .method("log/append", |ctx: Ctx<Arc<AtomicUsize>>, _: Value| async move {
                ctx.state().fetch_add(1, Ordering::SeqCst);
                Ok::<_, RpcError>(())
            });
        let service = Service::builder()
            .verifier(endpoint, verifier)
            .policies(folder.path())
            // Here one agent gets more refusals in one instant than its share of the hints.
            .limits(ServiceLimits { hints_per_second: 1_000, ..ServiceLimits::default() })
            .methods(router)
            .clock(clock.clone())
            .build()
            .unwrap();
        Subject { service, clock: clock.clone(), executions, _folder: folder }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the vectors' numbers are small and whole")]
fn whole(number: f64) -> i64 {
    number as i64
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

fn headers(vector: &Value) -> HeaderMap {
    let mut headers = HeaderMap::new();
    if let Some(list) = vector["header_list"].as_array() {
        for pair in list {
            headers.append(pair[0].as_str().unwrap(), pair[1].as_str().unwrap());
        }
    } else {
        for (name, value) in vector["headers"].as_object().unwrap() {
            headers.append(name.as_str(), value.as_str().unwrap());
        }
    }
    headers
}

fn delivery(vector: &Value) -> Delivery {
    let text = |member: &str| vector[member].as_str().unwrap().to_owned();
    Delivery::new(&text("subject"), &text("reply"), headers(vector), text("payload"))
}

/// What the service did with a message, in the terms of the vectors' `expect`.
async fn outcome(subject: &Subject, vector: &Value) -> String {
    let before = subject.executions.load(Ordering::SeqCst);
    let sealed = subject.service.handle(delivery(vector)).await;
    if vector["expect"] == "accept" && vector["proof_claims"]["det"].is_u64() {
        // A task is answered before it runs.
        let begun = async {
            while subject.executions.load(Ordering::SeqCst) == before {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), begun).await.unwrap();
    }
    let executed = subject.executions.load(Ordering::SeqCst) - before;
    let Some(sealed) = sealed else {
        let refusals = subject.service.counters().refusals();
        return match executed {
            0 if refusals.contains_key("dropped_reply") => "dropped".into(),
            0 => "not executed".into(),
            _ => "accept".into(),
        };
    };
    assert_eq!(sealed.to(), vector["reply"], "an answer goes to the reply subject only");
    let answer: Value = serde_json::from_slice(sealed.payload()).unwrap();
    let code = answer.pointer("/error/code").and_then(Value::as_i64);
    assert_eq!(
        sealed.headers().is_none(),
        code == Some(-32010),
        "exactly the refusals of unknown callers are unsigned"
    );
    match code {
        None => {
            assert!(executed > 0);
            "accept".into()
        }
        Some(code) => {
            assert_eq!(executed, 0);
            match code {
                -32010 => "unauthenticated",
                -32011 => "stale",
                -32012 => "replayed",
                -32003 => "timeout",
                -32014 => "overloaded",
                -32600 => "invalid request",
                other => panic!("unexpected {other}"),
            }
            .into()
        }
    }
}

/// SPEC.md §24.
#[tokio::test]
async fn every_request_vector_gets_what_it_expects() {
    let vectors = Vectors::load();
    let requests = vectors.of_kind("request");
    assert_eq!(requests.len(), 63);
    for vector in requests {
        // A fresh service for each, so that no earlier message can be the cause of a refusal.
        let subject = vectors.subject(&TimeFloor::Ephemeral);
        assert_eq!(outcome(&subject, vector).await, vector["expect"], "{}", vector["name"]);
    }
}

#[tokio::test]
async fn vectors_get_the_same_in_one_service_in_any_order() {
    let vectors = Vectors::load();
    let subject = vectors.subject(&TimeFloor::Ephemeral);
    for vector in vectors.of_kind("request").into_iter().rev().filter(|vector| vector["expect"] != "not executed") {
        assert_eq!(outcome(&subject, vector).await, vector["expect"], "{}", vector["name"]);
    }
}

/// SPEC.md §24.
#[tokio::test]
async fn v1_offered_twice_is_replayed() {
    let vectors = Vectors::load();
    let subject = vectors.subject(&TimeFloor::Ephemeral);
    let v1 = vectors.named("V1 single call");
    assert_eq!(outcome(&subject, v1).await, "accept");
    for _ in 0..3 {
        assert_eq!(outcome(&subject, v1).await, "replayed");
    }
    assert_eq!(subject.executions.load(Ordering::SeqCst), 1);
}

/// SPEC.md §24.
#[tokio::test]
async fn v1_offered_again_after_a_restart_is_refused() {
    let vectors = Vectors::load();
    let folder = tempfile::tempdir().unwrap();
    let floor = TimeFloor::File(folder.path().join("floor"));
    let v1 = vectors.named("V1 single call");
    let first = vectors.subject(&floor);
    assert_eq!(outcome(&first, v1).await, "accept");
    drop(first);
    // The clock is where it was: only the fence prevents a second execution of the copy.
    let clock = Arc::new(ManualClock::at(vectors.clock()));
    let second = vectors.subject_at(&clock, &floor);
    assert_eq!(outcome(&second, v1).await, "overloaded", "nothing passes yet");
    // Once every caller can have passed the fence, only a copy is behind it.
    clock.advance_ms(13_000);
    assert_eq!(outcome(&second, v1).await, "stale");
    // Stepping the clock back across the restart does not help either.
    drop(second);
    let third = vectors.subject(&floor);
    assert_ne!(outcome(&third, v1).await, "accept");
    assert_eq!(third.executions.load(Ordering::SeqCst), 0);
}

/// SPEC.md §24.
#[tokio::test]
async fn v1_offered_again_across_a_clock_stepped_back_is_never_executed() {
    let vectors = Vectors::load();
    let subject = vectors.subject(&TimeFloor::Ephemeral);
    let v1 = vectors.named("V1 single call");
    assert_eq!(outcome(&subject, v1).await, "accept");
    let now = vectors.clock();
    for seconds in [now - 1, now - 3_600, now + 27, now + 28, now + 60, now, now - 2, now + 1] {
        subject.clock.set_ms(seconds * 1000);
        let got = outcome(&subject, v1).await;
        assert!(["replayed", "stale"].contains(&got.as_str()), "{got} at {seconds}");
    }
    assert_eq!(subject.executions.load(Ordering::SeqCst), 1);
}

/// The request that a reply vector answers, signed again, with what its sender expects of the answer.
fn signed_again(vectors: &Vectors, request: &Value) -> SignedRequest {
    let keys = vectors.agent_keys();
    let (_, key) = &keys[request["proof_header"]["kid"].as_str().unwrap()];
    let pinned: Vec<ServicePublicKey> = vec![vectors.service_key().public()];
    let signer = RequestSigner::new(key, vectors.endpoint().audience().clone(), pinned).unwrap();
    let claims: ProofClaims = serde_json::from_value(request["proof_claims"].clone()).unwrap();
    let header = request["headers"]["Authorization"].as_str().unwrap();
    let token = header.strip_prefix("NatsRpc ").unwrap().split('~').next().unwrap();
    let signed = signer.sign_claims(&claims, token);
    assert_eq!(signed.authorization, header, "our signer writes the same bytes");
    signed
}

/// SPEC.md §24.
#[test]
fn every_reply_vector_gets_what_it_expects() {
    let vectors = Vectors::load();
    let replies = vectors.of_kind("reply");
    assert_eq!(replies.len(), 21);
    for reply in replies {
        let request = vectors.named(reply["answers"].as_str().unwrap());
        let expectation = signed_again(&vectors, request).expectation;
        let payload = reply["payload"].as_str().unwrap().as_bytes();
        let taken = expectation.accept(reply["subject"].as_str().unwrap(), headers(reply), payload);
        let got = if taken.is_ok() { "accept" } else { "refused by client" };
        assert_eq!(got, reply["expect"], "{}: {taken:?}", reply["name"]);
        // SPEC.md §6.1: the mark of an outcome of an earlier run.
        let response = Responses::parse(payload, &Limits::default());
        let is_marked = matches!(&response, Ok(Responses::Single(response)) if response.is_of_earlier_run());
        assert_eq!(is_marked, reply["payload"].as_str() == Some(MARKED), "{}", reply["name"]);
        // SPEC.md §6.5: the mark of the state of a task.
        let is_of_task = matches!(&response, Ok(Responses::Single(response)) if response.is_of_task());
        assert_eq!(is_of_task, reply["payload"].as_str() == Some(BEGUN), "{}", reply["name"]);
        // SPEC.md §14: the mark of an error of the application.
        let error = match response {
            Ok(Responses::Single(response)) => response.outcome.err(),
            _ => None,
        };
        let is_own = error.is_some_and(|error| error.is_application());
        assert_eq!(is_own, reply["payload"].as_str() == Some(OWN), "{}", reply["name"]);
    }
}

const OWN: &str =
    r#"{"jsonrpc":"2.0","error":{"code":-32002,"message":"no such task"},"application_error":true,"id":1}"#;
const BEGUN: &str = r#"{"jsonrpc":"2.0","result":{"state":"working"},"task":true,"id":1}"#;
const MARKED: &str = r#"{"jsonrpc":"2.0","result":3,"idempotent_replay":true,"id":1}"#;

/// What a client makes of a frame, in the terms of the vectors' `expect`.
fn taken(signed: &SignedRequest, receiver: &mut FrameReceiver, vector: &Value) -> &'static str {
    let payload = vector["payload"].as_str().unwrap();
    let headers = HeaderBlock::from(headers(vector));
    match signed.expectation.accept_any(vector["subject"].as_str().unwrap(), &headers, payload.as_bytes()) {
        Err(_) => "refused by client",
        // Once there was a frame, only an `end` frame is an answer.
        Ok(Accepted::Answer { .. }) if receiver.replica().is_some() => "ignored",
        Ok(Accepted::Answer { .. }) => "accept",
        Ok(Accepted::Frame(frame)) => match receiver.take(frame, payload.to_owned().into()) {
            Ok(Taken::Next(_)) => "accept",
            Ok(Taken::Gap) => "gap",
            Ok(Taken::Alive) => "alive",
            Ok(Taken::Repeated) => "ignored",
            Err(_) => "lost",
        },
    }
}

/// SPEC.md §24, SPEC.md §25.1, SPEC.md §25.4.
#[test]
fn every_frame_vector_gets_what_it_expects() {
    let vectors = Vectors::load();
    let frames = vectors.of_kind("frame");
    assert_eq!(frames.len(), 76);
    for frame in frames {
        let request = vectors.named(frame["answers"].as_str().unwrap());
        let signed = signed_again(&vectors, request);
        let window = request["proof_claims"]["win"].as_u64().unwrap();
        let mut receiver = FrameReceiver::new(&signed.expectation, window, 1 << 20);
        for before in frame["after"].as_array().unwrap() {
            taken(&signed, &mut receiver, vectors.named(before.as_str().unwrap()));
        }
        assert_eq!(taken(&signed, &mut receiver, frame), frame["expect"], "{}", frame["name"]);
    }
}

#[test]
fn answers_without_or_with_two_signatures_are_refused() {
    let vectors = Vectors::load();
    let expectation = signed_again(&vectors, vectors.named("V1 single call")).expectation;
    let reply = vectors.named("V6 reply to V1");
    let (subject, payload) = (reply["subject"].as_str().unwrap(), reply["payload"].as_str().unwrap().as_bytes());
    assert_eq!(expectation.accept(subject, HeaderMap::new(), payload), Err(Unverifiable::Unsigned));
    let mut twice = headers(reply);
    twice.append("authentication-info", reply["headers"]["Authentication-Info"].as_str().unwrap());
    assert_eq!(expectation.accept(subject, &twice, payload), Err(Unverifiable::Repeated));
    assert_eq!(expectation.accept("_INBOX.agent-7f3a.Q2", headers(reply), payload), Err(Unverifiable::Subject));
}

#[tokio::test]
async fn good_answers_are_what_the_vectors_say_they_are() {
    let vectors = Vectors::load();
    let subject = vectors.subject(&TimeFloor::Ephemeral);
    for (request, reply) in [("V1 single call", "V6 reply to V1"), ("V5 Ed25519, cnf.jkt", "V7 Ed25519 reply to V5")] {
        let (request, reply) = (vectors.named(request), vectors.named(reply));
        // The vector's answer is one second older than the vectors' clock.
        subject.clock.set_ms((vectors.clock() - 1) * 1000);
        let sealed = subject.service.handle(delivery(request)).await.unwrap();
        assert_eq!(sealed.payload().as_ref(), reply["payload"].as_str().unwrap().as_bytes());
        let ours = sealed.headers().unwrap().get("Authentication-Info").unwrap().as_str();
        assert_eq!(ours, reply["headers"]["Authentication-Info"].as_str().unwrap(), "byte for byte");
    }
}

/// SPEC.md §25.1, SPEC.md §25.4: of 100,000 changed frames none is accepted, and none advances the stream. The changes affect bytes
/// and parts (forged, cut), and the call that a frame is offered to (foreign).
#[test]
fn no_changed_frame_is_taken() {
    let vectors = Vectors::load();
    let good: Vec<&Value> = vectors
        .of_kind("frame")
        .into_iter()
        .filter(|frame| {
            frame["name"].as_str().unwrap().starts_with('F') && frame["answers"] == "V9 call that takes frames"
        })
        .collect();
    let signed = signed_again(&vectors, vectors.named("V9 call that takes frames"));
    let mut receiver = FrameReceiver::new(&signed.expectation, 4, 1 << 20);
    let text = |frame: &Value, member: &str| frame[member].as_str().unwrap().to_owned();
    let proof = |frame: &Value| frame["headers"]["Authentication-Info"].as_str().unwrap().to_owned();
    let sent: Vec<(String, String, String)> =
        good.iter().map(|frame| (text(frame, "subject"), proof(frame), text(frame, "payload"))).collect();
    let foreign_vector = vectors.named("V1 single call");
    let (foreign, foreign_subject) = (signed_again(&vectors, foreign_vector), text(foreign_vector, "reply"));
    // A fixed seed, so that a failure can be reproduced.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state % below as u64).unwrap()
    };
    let mut tried = 0;
    while tried < 100_000 {
        let (mut subject, mut value, mut payload) = sent[random(sent.len())].clone();
        let (_, other, other_payload) = &sent[random(sent.len())];
        let mut offered_to = &signed;
        match random(9) {
            // Unchanged, on the subject of another call under the same key.
            8 => {
                offered_to = &foreign;
                subject = foreign_subject.clone();
            }
            0 => payload.clone_from(other_payload),
            1 => subject = mutated(&subject, &mut random),
            2 | 3 => payload = mutated(&payload, &mut random),
            // One of the parts of another frame's proof.
            4 => {
                let mut parts: Vec<&str> = value.split('.').collect();
                let at = random(parts.len());
                parts[at] = other.split('.').nth(at).unwrap();
                value = parts.join(".");
            }
            _ => value = mutated(&value, &mut random),
        }
        if sent.contains(&(subject.clone(), value.clone(), payload.clone())) {
            continue;
        }
        tried += 1;
        let headers = HeaderBlock::of(&[("Authentication-Info", &value)]);
        let taken = offered_to.expectation.accept_any(&subject, &headers, payload.as_bytes());
        assert!(taken.is_err(), "{subject} {value} {payload}");
    }
    // In whatever order the frames come, and however often, the stream is not complete without all of them.
    let names = ["F1 open", "F2 item", "F3 end"];
    for round in 0..1_000 {
        let missing = random(names.len());
        let mut partial = FrameReceiver::new(&signed.expectation, 4, 1 << 20);
        for _ in 0..12 {
            let next = random(names.len());
            if next != missing {
                taken(&signed, &mut partial, vectors.named(names[next]));
            }
        }
        assert!(!partial.is_ended() && partial.last().is_none_or(|last| last < missing as u64), "{round}");
    }
    // The frames that were sent are still accepted, from the first on.
    let stream = names.map(|name| taken(&signed, &mut receiver, vectors.named(name)));
    assert_eq!((stream, receiver.is_ended()), (["accept"; 3], true));
}

/// The text with one character changed, inserted or removed.
fn mutated(text: &str, random: &mut impl FnMut(usize) -> usize) -> String {
    let mut bytes = text.as_bytes().to_vec();
    let any = u8::try_from(0x20 + random(0x5f)).unwrap();
    match (random(3), bytes.len()) {
        (0, _) | (_, 0) => bytes.insert(random(bytes.len() + 1), any),
        (1, len) => drop(bytes.remove(random(len))),
        (_, len) => bytes[random(len)] = any,
    }
    String::from_utf8(bytes).unwrap()
}
