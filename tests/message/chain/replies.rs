//! Answers: what a client accepts as one, and everything that it does not accept, whoever made it.

use async_nats::HeaderMap;
use sealwire::Service;
use sealwire::internal::wire::{Expectation, HmacKey, ServiceKey};
use sealwire::serve::Sealed;
use serde_json::{Value, json};

use sealwire_testkit::desk::{Desk, HINTS, Letter, b64, call, digest, jws, part, recording, text};

async fn answered(service: &Service, letter: &Letter) -> (String, Vec<u8>) {
    let sealed: Sealed = service.handle(letter.delivery()).await.unwrap();
    let value = sealed.headers().unwrap().get("Authentication-Info").unwrap().as_str();
    (value.strip_prefix("NatsRpc ").unwrap().to_owned(), sealed.payload().to_vec())
}

fn info(proof: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert("Authentication-Info", format!("NatsRpc {proof}"));
    headers
}

/// Whether the client accepts it.
fn takes(expectation: &Expectation, subject: &str, headers: &HeaderMap, payload: &[u8]) -> bool {
    expectation.accept(subject, headers, payload).is_ok()
}

/// Claims and header members that differ from those of the good answer.
fn otherwise() -> Vec<(usize, &'static str, Value)> {
    vec![
        (0, "alg", json!("none")),
        (0, "alg", json!("EdDSA")),
        (0, "alg", json!("HS256")),
        (0, "kid", json!("bob.k1")),
        (0, "kid", json!("svc:test/desk:2")),
        (0, "kid", json!("")),
        (0, "typ", json!("nats-rpc-v1+jwt")),
        (0, "typ", json!("nats-rpc-v2-reply+jwt")),
        (0, "crit", json!([])),
        (1, "iss", json!("test/other")),
        (1, "iss", json!("prod/desk")),
        (1, "to", json!("_INBOX.ann.r2")),
        (1, "to", json!("_INBOX.bob.r1")),
        (1, "iat", json!("1790000000")),
        (1, "iat", json!(1_790_000_000.5)),
        (1, "req", json!(digest(b"another request"))),
        (1, "req", json!("")),
        (1, "dig", json!(digest(b"another payload"))),
        (1, "exp", json!(9_999_999_999_u64)),
        (1, "iss", Value::Null),
        (1, "to", Value::Null),
        (1, "iat", Value::Null),
        (1, "req", Value::Null),
        (1, "dig", Value::Null),
    ]
}

/// The good proof with one member changed, or removed if the value is null; header and claims as texts.
fn changed(proof: &str, position: usize, member: &str, value: Value) -> Option<[String; 2]> {
    let mut parts = [part(proof, 0), part(proof, 1)];
    let object = parts[position].as_object_mut().unwrap();
    let before = object.clone();
    if value.is_null() {
        object.remove(member);
    } else {
        object.insert(member.to_owned(), value);
    }
    (*object != before).then(|| parts.map(|part| part.to_string()))
}

/// SPEC.md §12, SPEC.md §17.
#[tokio::test]
async fn forged_answers_to_an_hmac_request_are_never_taken() {
    let desk = Desk::open(recording().0);
    let ann = desk.agent("ann", &["worker"]);
    let letter = desk.letter(&ann, &call("desk/echo", "[1]"));
    let (proof, payload) = answered(&desk.service, &letter).await;
    let (to, expectation) = (letter.reply.as_str(), &letter.expectation);
    assert!(takes(expectation, to, &info(&proof), &payload));

    let right = desk.derived(&ann);
    let wrong = [desk.derived(&desk.agent("bob", &[])), HmacKey::new([0; 32])];
    for (position, member, value) in otherwise() {
        let Some([header, claims]) = changed(&proof, position, member, value) else { continue };
        // By a man in the middle, who keeps the signature or has another key; and by a faulty service, under the right key.
        let kept =
            format!("{}.{}.{}", b64(header.as_bytes()), b64(claims.as_bytes()), proof.rsplit('.').next().unwrap());
        let forged = wrong.iter().map(|key| jws(key, &header, &claims)).chain([kept, jws(&right, &header, &claims)]);
        for forged in forged {
            assert!(!takes(expectation, to, &info(&forged), &payload), "{member}: {header} {claims}");
        }
    }
    // Every other payload, subject and number of headers.
    let (_, other) = answered(&desk.service, &desk.letter(&ann, &call("desk/echo", "[2]"))).await;
    assert!(!takes(expectation, to, &info(&proof), &other));
    assert!(!takes(expectation, to, &info(&proof), &[payload.as_slice(), b" "].concat()));
    assert!(!takes(expectation, "_INBOX.ann.r2", &info(&proof), &payload));
    assert!(!takes(expectation, to, &HeaderMap::new(), &payload));
    for name in ["Authentication-Info", "authentication-info", "AUTHENTICATION-INFO"] {
        let mut twice = info(&proof);
        twice.append(name, format!("NatsRpc {proof}"));
        assert!(!takes(expectation, to, &twice, &payload), "{name}");
    }
    for value in [proof.clone(), format!("natsrpc {proof}"), format!("NatsRpc  {proof}"), format!("NatsRpc {proof}~x")]
    {
        let mut headers = HeaderMap::new();
        headers.insert("Authentication-Info", value.as_str());
        assert!(!takes(expectation, to, &headers, &payload), "{value}");
    }
}

/// SPEC.md §12.
#[tokio::test]
async fn forged_answers_to_an_ed25519_request_are_never_taken() {
    let desk = Desk::open(recording().0);
    let eve = desk.agent("eve", &["worker"]);
    let letter = desk.letter(&eve, &call("desk/echo", "[1]"));
    let (proof, payload) = answered(&desk.service, &letter).await;
    assert!(takes(&letter.expectation, &letter.reply, &info(&proof), &payload));
    assert_eq!(part(&proof, 0)["kid"], "svc:test/desk:1");
    let seeds: [[u8; 32]; 3] = [[9; 32], [3; 32], [8; 32]];
    for (position, member, value) in otherwise() {
        let value = if value == json!("_INBOX.ann.r2") { json!("_INBOX.eve.r2") } else { value };
        let Some([header, claims]) = changed(&proof, position, member, value) else { continue };
        let kept =
            format!("{}.{}.{}", b64(header.as_bytes()), b64(claims.as_bytes()), proof.rsplit('.').next().unwrap());
        // Under the service's own key, the agent's own key, a stranger's; and the public key used as an HMAC secret.
        let public: [u8; 32] = sealwire_testkit::desk::unb64(&desk.service_key.public().x()).try_into().unwrap();
        let as_secret = jws(&HmacKey::new(public), &header, &claims);
        let forged = seeds
            .iter()
            .map(|seed| sealwire_testkit::desk::jws_ed25519(seed, &header, &claims))
            .chain([kept, as_secret]);
        for forged in forged {
            assert!(
                !takes(&letter.expectation, &letter.reply, &info(&forged), &payload),
                "{member}: {header} {claims}"
            );
        }
    }
    let same = [part(&proof, 0).to_string(), part(&proof, 1).to_string()];
    for seed in &seeds[1..] {
        let forged = sealwire_testkit::desk::jws_ed25519(seed, &same[0], &same[1]);
        assert!(!takes(&letter.expectation, &letter.reply, &info(&forged), &payload));
    }
}

/// SPEC.md §12.
#[tokio::test]
async fn answer_to_one_request_is_none_to_another() {
    let desk = Desk::open(recording().0);
    for name in ["ann", "eve"] {
        let agent = desk.agent(name, &["worker"]);
        // The same body to the same reply subject in the same second: only the nonce differs.
        let (one, two) =
            (desk.letter(&agent, &call("desk/echo", "[1]")), desk.letter(&agent, &call("desk/echo", "[1]")));
        let (proof, payload) = answered(&desk.service, &one).await;
        assert!(takes(&one.expectation, &one.reply, &info(&proof), &payload));
        assert!(!takes(&two.expectation, &two.reply, &info(&proof), &payload));
    }
}

/// An answer names this request's proof, so it cannot be older, whatever the service's clock says.
/// SPEC.md §12.
#[tokio::test]
async fn an_answer_is_taken_whatever_time_its_service_says_it_is() {
    let desk = Desk::open(recording().0);
    let ann = desk.agent("ann", &["worker"]);
    let letter = desk.letter(&ann, &call("desk/echo", "[1]"));
    let (proof, payload) = answered(&desk.service, &letter).await;
    for iat in [0, sealwire_testkit::desk::NOW - 10_000, sealwire_testkit::desk::NOW + 10_000] {
        let [header, claims] = changed(&proof, 1, "iat", json!(iat)).unwrap();
        let signed = jws(&desk.derived(&ann), &header, &claims);
        assert_eq!(letter.expectation.accept(&letter.reply, info(&signed), &payload), Ok(iat));
    }
}

/// SPEC.md §12.
#[tokio::test]
async fn requests_are_no_answers_and_answers_are_no_requests() {
    let (router, runs) = recording();
    let desk = Desk::open(router);
    let ann = desk.agent("ann", &["worker"]);
    let letter = desk.letter(&ann, &call("desk/echo", "[1]"));
    let (token, request) = letter.credentials();
    // The request's own proof, sent back as if it were the proof of the answer.
    assert!(!takes(&letter.expectation, &letter.reply, &info(&request), &letter.payload));
    let (answer, payload) = answered(&desk.service, &letter).await;
    let reflected = Letter { payload, ..letter.with_credentials(&token, &answer) };
    assert_eq!(desk.offer(&reflected).await, Some(-32010));
    assert_eq!(runs.count(), 1);
}

/// SPEC.md §13.
#[tokio::test]
async fn hints_are_unsigned_and_taken_by_nobody() {
    let desk = Desk::open(recording().0);
    let ann = desk.agent("ann", &["worker"]);
    let letter = desk.letter(&ann, &call("desk/echo", "[1]"));
    for hint in HINTS {
        assert!(!takes(&letter.expectation, &letter.reply, &HeaderMap::new(), hint.as_bytes()));
    }
    let shed = desk.service.shed(letter.delivery()).unwrap();
    assert_eq!((text(&shed).as_str(), shed.headers().is_none(), shed.to()), (HINTS[1], true, letter.reply.as_str()));
    // A message that was shed was not judged, so its nonce is not burnt.
    assert!(desk.answer(&letter).await.unwrap().contains("result"));
}

/// SPEC.md §5.4.
#[tokio::test]
async fn new_service_key_is_used_at_once_and_taken_only_by_those_who_pinned_it() {
    let desk = Desk::open(recording().0);
    let eve = desk.agent("eve", &["worker"]);
    let new = || ServiceKey::new("svc:test/desk:2", desk.endpoint.audience(), [10; 32]).unwrap();
    desk.service.verifier().replace_service_key(new());
    let letter = desk.letter(&eve, &call("desk/echo", "[1]"));
    let (proof, payload) = answered(&desk.service, &letter).await;
    assert_eq!(part(&proof, 0)["kid"], "svc:test/desk:2");
    assert!(!takes(&letter.expectation, &letter.reply, &info(&proof), &payload));
    let pinned = vec![desk.service_key.public(), new().public()];
    let signer =
        sealwire::internal::wire::RequestSigner::new(&eve.key, desk.endpoint.audience().clone(), pinned).unwrap();
    let signed = signer.sign_claims(&desk.letter(&eve, &call("desk/echo", "[1]")).claims(), &eve.token);
    let mut again = letter.clone();
    again.headers.insert("Authorization", signed.authorization.as_str());
    let (proof, payload) = answered(&desk.service, &again).await;
    assert!(takes(&signed.expectation, &again.reply, &info(&proof), &payload));
}
