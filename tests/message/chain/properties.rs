//! Properties of the checks of shape and proof, over arbitrary input.

use async_nats::HeaderMap;
use proptest::collection::vec;
use proptest::prelude::*;
use sealwire::internal::wire::{Envelope, ProofClaims};
use sealwire::serve::Delivery;

use sealwire_testkit::desk::{Agent, Desk, Letter, NOW, call, recording};

fn desk() -> Desk {
    Desk::open(recording().0)
}

/// Whether a message passes everything up to the nonce.
fn is_authentic(desk: &Desk, letter: &Letter) -> bool {
    Envelope::decode(letter.delivery(), &desk.endpoint)
        .is_ok_and(|envelope| desk.service.verifier().authenticate(envelope, NOW).is_ok())
}

fn agents(desk: &Desk) -> [Agent; 2] {
    ["ann", "eve"].map(|name| desk.agent(name, &["worker"]))
}

/// Text that is often nearly right.
fn nearly(right: &'static str) -> impl Strategy<Value = String> {
    prop_oneof![
        Just(right.to_owned()),
        any::<String>(),
        "[A-Za-z0-9._~*> -]{0,60}",
        (0..=right.len(), "[.*> ~=a\u{e9}]{0,2}").prop_map(|(at, extra)| format!(
            "{}{extra}{}",
            &right[..at],
            &right[at..]
        )),
    ]
}

#[test]
fn any_subject_reply_and_headers_are_judged_without_a_panic() {
    let desk = desk();
    let headers = vec(("[A-Za-z-]{1,14}|Authorization|authorization", nearly("NatsRpc a.b.c~d.e.f")), 0..4);
    let input = (nearly("rpc.v1.desk.ann.desk.echo"), nearly("_INBOX.ann.r1"), headers, vec(any::<u8>(), 0..64));
    proptest!(ProptestConfig::with_cases(2_000), |((subject, reply, headers, payload) in input)| {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            // A value that the type of async-nats cannot hold cannot arrive.
            if let Ok(value) = value.parse::<async_nats::HeaderValue>() {
                map.append(name, value);
            }
        }
        let delivery = Delivery::new(&subject, &reply, map, payload);
        if let Ok(envelope) = Envelope::decode(delivery, &desk.endpoint) {
            prop_assert!(desk.service.verifier().authenticate(envelope, NOW).is_err());
        }
    });
    assert_eq!(desk.burnt(), 0);
}

#[test]
fn proofs_of_any_payload_hold_for_that_payload_and_no_other() {
    let desk = desk();
    let agents = agents(&desk);
    let input = (0..2_usize, vec(any::<u8>(), 0..300), vec(any::<u8>(), 0..300), any::<bool>());
    proptest!(ProptestConfig::with_cases(300), |((agent, payload, other, answered) in input)| {
        let agent = &agents[agent];
        let subject = desk.endpoint.subject(&agent.name);
        let reply = if answered { format!("{}r1", desk.endpoint.inbox(&agent.name)) } else { String::new() };
        let claims = ProofClaims {
            aud: "test/desk".to_owned(),
            to: subject.clone(),
            rto: reply.clone(),
            iat: NOW,
            exp: NOW + 30,
            jti: sealwire_testkit::desk::b64(&[5; 16]),
            ath: sealwire_testkit::desk::digest(agent.token.as_bytes()),
            dig: sealwire_testkit::desk::digest(&payload),
            tmo: None,
            idk: None,
            win: None,
            tp: None,
            cap: None,
            det: None,
        };
        let signed = desk.signer(agent).sign_claims(&claims, &agent.token);
        let mut headers = HeaderMap::new();
        headers.insert("Authorization", signed.authorization.as_str());
        let mut letter = Letter { subject, reply, headers, payload: payload.clone(), expectation: signed.expectation };
        prop_assert!(is_authentic(&desk, &letter));
        letter.payload.clone_from(&other);
        prop_assert_eq!(is_authentic(&desk, &letter), payload == other);
    });
}

#[test]
fn any_byte_of_the_header_value_changed_is_refused() {
    let desk = desk();
    for agent in agents(&desk) {
        let good = desk.letter(&agent, &call("desk/echo", "[1]"));
        let value = good.headers.get("Authorization").unwrap().as_str().to_owned();
        assert!(is_authentic(&desk, &good));
        let changed = |value: &str| {
            let mut letter = good.clone();
            letter.headers.insert("Authorization", value);
            letter
        };
        // Every kind of change at every position: a few hundred bytes, so all of them.
        let mut bytes = value.clone().into_bytes();
        for at in 0..bytes.len() {
            let before = bytes[at];
            for after in [before ^ 1, before ^ 0x20, b'A', b'=', b'.', b'~', b' '] {
                if after != before && after.is_ascii() && !after.is_ascii_control() {
                    bytes[at] = after;
                    let text = std::str::from_utf8(&bytes).unwrap();
                    assert!(!is_authentic(&desk, &changed(text)), "byte {at} as {:?}", char::from(after));
                }
            }
            bytes[at] = before;
            let text = std::str::from_utf8(&bytes).unwrap();
            assert!(
                !is_authentic(&desk, &changed(&format!("{}{}", &text[..at], &text[at + 1..]))),
                "without byte {at}"
            );
            assert!(!is_authentic(&desk, &changed(&format!("{}A{}", &text[..at], &text[at..]))), "a byte before {at}");
        }
        for text in [format!("{value}A"), format!("{value} "), format!("{value}="), format!("{value}.")] {
            assert!(!is_authentic(&desk, &changed(&text)), "{text}");
        }
    }
    assert_eq!(desk.burnt(), 0);
}

#[test]
fn any_change_of_subject_reply_or_payload_is_refused() {
    let desk = desk();
    let agents = agents(&desk);
    let good: Vec<Letter> = agents.iter().map(|agent| desk.letter(agent, &call("desk/echo", "[1]"))).collect();
    let input = (0..2_usize, 0..3_usize, any::<prop::sample::Index>(), 0..3_usize, 0x21_u8..0x7f);
    proptest!(ProptestConfig::with_cases(1_000), |((letter, field, at, how, byte) in input)| {
        let good = &good[letter];
        let change = |bytes: &[u8]| {
            let (mut bytes, at) = (bytes.to_vec(), at.index(bytes.len()));
            match how {
                0 => bytes[at] = byte,
                1 => bytes.insert(at, byte),
                _ => drop(bytes.remove(at)),
            }
            bytes
        };
        let mut letter = good.clone();
        match field {
            0 => letter.subject = String::from_utf8(change(letter.subject.as_bytes())).unwrap(),
            1 => letter.reply = String::from_utf8(change(letter.reply.as_bytes())).unwrap(),
            _ => letter.payload = change(&letter.payload),
        }
        let same = (&letter.subject, &letter.reply, &letter.payload) == (&good.subject, &good.reply, &good.payload);
        prop_assert_eq!(is_authentic(&desk, &letter), same);
    });
}
