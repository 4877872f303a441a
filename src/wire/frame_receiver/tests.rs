#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::wire::frame::{FrameSealer, SealedFrame};
use crate::wire::proof::ProofClaims;
use crate::wire::seal::{Binding, ReplyKey};
use crate::wire::sign::{Accepted, Unverifiable};
use crate::wire::subject::ReplyTo;
use crate::wire::{AgentKey, Audience, HeaderBlock, HmacKey, RequestSigner, ServiceKey};

const REPLY: &str = "_INBOX.agent-7f3a.Q1";
const KID: &str = "agent-7f3a.k1";

/// The call V1 of the vectors: what its answer must match, and what it is answered with.
fn call() -> (Expectation, Binding) {
    let audience = Audience::parse("prod/math").unwrap();
    let master: Vec<u8> = (0x20..0x40).collect();
    let key = AgentKey::hmac(KID, &master).unwrap();
    let claims = ProofClaims {
        aud: "prod/math".to_owned(),
        to: "rpc.v1.math.agent-7f3a".to_owned(),
        rto: REPLY.to_owned(),
        iat: 1_790_000_000,
        exp: 1_790_000_030,
        jti: "AAECAwQFBgcICQoLDA0ODw".to_owned(),
        ath: "rz8p-ybFquIkvlMk_H_E2jifrT_Krt26VGQFWWukPH4".to_owned(),
        dig: "IeYjxyYh4o9vopaeZjji3BVZKOMiqXn7-b24vqCstoI".to_owned(),
        tmo: Some(5000),
        idk: None,
        win: None,
        tp: None,
        cap: None,
        det: None,
    };
    let signer = RequestSigner::new(&key, audience.clone(), vec![]).unwrap();
    let signed = signer.sign_claims(&claims, "token");
    let proof = signed.authorization.rsplit('~').next().unwrap();
    let reply = ReplyTo::unchecked(REPLY);
    let key = ReplyKey::Hmac { kid: KID.into(), key: Arc::new(HmacKey::derive(&master, &audience, KID)) };
    (signed.expectation, Binding::new(reply, audience, proof.as_bytes(), key))
}

fn signature(frame: &SealedFrame) -> String {
    let text = String::from_utf8(frame.headers().as_bytes().to_vec()).unwrap();
    text.trim_end().rsplit('.').next().unwrap().to_owned()
}

fn opened(expected: &Expectation, frame: &SealedFrame) -> AcceptedFrame {
    match expected.accept_any(REPLY, frame.headers(), frame.payload()).unwrap() {
        Accepted::Frame(frame) => frame,
        Accepted::Answer { .. } => unreachable!("a frame"),
    }
}

fn take(receiver: &mut FrameReceiver, expected: &Expectation, frame: &SealedFrame) -> Result<Taken, FrameFault> {
    receiver.take(opened(expected, frame), frame.payload().clone())
}

/// SPEC.md §25: the same bytes as the second implementation signs.
#[test]
fn frames_of_a_call_are_always_the_same_bytes() {
    let (expected, binding) = call();
    let mut sealer = FrameSealer::new(binding, "r1");
    let open = sealer.open(1_790_000_001);
    let item = sealer.content(FrameKind::Item, r#"{"jsonrpc":"2.0","result":1,"id":1}"#.into(), 1_790_000_001);
    let end = sealer.end(r#"{"jsonrpc":"2.0","result":3,"id":1}"#.into(), 1_790_000_001);
    assert_eq!(signature(&open), "XeZaYdiN9xKdV_Kh_KMxvJcdhTAU8WbHiofB6Nk29Y8");
    assert_eq!(signature(&item), "G3YYhnNmvLjy0e4GgY75idn87TW-TfT9fBRmtmdYTK8");
    assert_eq!(signature(&end), "0TOQH-4K1SzZrzCLLQzHBJERlSJVJD-0TLLr0oPnLIo");
    assert_eq!(opened(&expected, &end).claims.acc.unwrap(), "nSMkD_srMDJ8n-gKMoLARbb8ORDU9gi_PD4tATc3OYc");
    let mut receiver = FrameReceiver::new(&expected, 32, 1024);
    for frame in [&open, &item, &end] {
        assert!(matches!(take(&mut receiver, &expected, frame), Ok(Taken::Next(next)) if next.len() == 1));
    }
    assert!(receiver.is_ended() && receiver.replica() == Some("r1") && receiver.last() == Some(2));
}

/// Our frames equal the published streams, byte for byte.
/// SPEC.md §24, SPEC.md §25.
#[test]
fn good_frames_are_what_the_vectors_say_they_are() {
    // Read at run time: an image is built from `src` without the tests.
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vectors/nats-rpc-v1.json");
    let vectors: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    let vectors = vectors["vectors"].as_array().unwrap();
    let named = |name: &str| {
        let mut found =
            vectors.iter().filter(|vector| vector["name"].as_str().unwrap().split(' ').next() == Some(name));
        found.next().unwrap()
    };
    let audience = Audience::parse("prod/math").unwrap();
    let master: Vec<u8> = (0x20..0x40).collect();
    let hmac = ReplyKey::Hmac { kid: KID.into(), key: Arc::new(HmacKey::derive(&master, &audience, KID)) };
    let seed: Vec<u8> = (0x80..0xa0).collect();
    let service = ServiceKey::new("svc:prod/math:k1", &audience, seed.try_into().unwrap()).unwrap();
    let service = ReplyKey::Service(Arc::new(service));
    for (request, key, stream) in [
        ("V9", &hmac, &["F1", "F2", "F3"][..]),
        ("V9", &hmac, &["F1", "F2", "F4", "F5", "F6", "F7"]),
        ("V9", &hmac, &["F1", "F2", "F8", "F9"]),
        ("V9", &hmac, &["F1", "F2", "F11"]),
        ("V10", &service, &["F10"]),
    ] {
        let request = named(request);
        let reply = ReplyTo::unchecked(request["reply"].as_str().unwrap());
        let proof = request["headers"]["Authorization"].as_str().unwrap().split('~').nth(1).unwrap();
        let mut sealer =
            Some(FrameSealer::new(Binding::new(reply, audience.clone(), proof.as_bytes(), key.clone()), "r1"));
        for name in stream {
            let vector = named(name);
            let claims: crate::wire::FrameClaims = serde_json::from_value(vector["proof_claims"].clone()).unwrap();
            let payload = Bytes::from(vector["payload"].as_str().unwrap().to_owned());
            let frame = match claims.knd {
                FrameKind::Open => sealer.as_mut().unwrap().open(claims.iat),
                FrameKind::Beat => sealer.as_mut().unwrap().beat(claims.iat),
                FrameKind::End => sealer.take().unwrap().end(payload.clone(), claims.iat),
                kind => sealer.as_mut().unwrap().content(kind, payload.clone(), claims.iat),
            };
            let value = vector["headers"]["Authentication-Info"].as_str().unwrap();
            assert_eq!(crate::wire::sign::proof_of(frame.headers()), Ok(&value["NatsRpc ".len()..]), "{name}");
            assert_eq!((frame.to(), frame.payload()), (vector["subject"].as_str().unwrap(), &payload), "{name}");
        }
    }
}

/// SPEC.md §25.
#[test]
fn whatever_is_wrong_with_one_frame_ends_or_changes_nothing() {
    let (expected, binding) = call();
    let mut sealer = FrameSealer::new(binding, "r1");
    let open = sealer.open(1_790_000_001);
    let item =
        |sealer: &mut FrameSealer, text: &'static str| sealer.content(FrameKind::Item, text.into(), 1_790_000_001);
    let one = item(&mut sealer, "1");
    let two = item(&mut sealer, "2");

    // Changed, moved to another subject, or unsigned: not even a frame.
    let changed = expected.accept_any(REPLY, one.headers(), b"2").unwrap_err();
    assert_eq!(changed, Unverifiable::Payload);
    let elsewhere = expected.accept_any("_INBOX.agent-7f3a.Q2", one.headers(), one.payload()).unwrap_err();
    assert_eq!(elsewhere, Unverifiable::Subject);
    assert_eq!(expected.accept_any(REPLY, &HeaderBlock::default(), b"1").unwrap_err(), Unverifiable::Unsigned);
    // A frame is not an ordinary answer: a caller that did not ask for frames accepts none.
    assert_eq!(expected.accept(REPLY, open.headers(), open.payload()).unwrap_err(), Unverifiable::Malformed);

    // Another replica, a second frame with the same number, a wrong digest, more than the window: each ends the stream,
    // even for frames that would be valid.
    let twin = || {
        let mut sealer = FrameSealer::new(call().1, "r1");
        sealer.open(1);
        sealer
    };
    let fault = |frames: &[&SealedFrame], last: &SealedFrame| {
        let mut receiver = FrameReceiver::new(&expected, 3, 10);
        for frame in frames {
            take(&mut receiver, &expected, frame).unwrap();
        }
        let fault = take(&mut receiver, &expected, last).unwrap_err();
        assert_eq!(take(&mut receiver, &expected, &one).unwrap_err(), fault);
        assert!(!receiver.is_ended() && receiver.held.is_empty() && receiver.held_bytes == 0);
        fault
    };
    assert_eq!(fault(&[&open], &FrameSealer::new(call().1, "r2").open(1)), FrameFault::Replica);
    let mut other = twin();
    item(&mut other, "x");
    assert_eq!(fault(&[&open, &two], &item(&mut other, "y")), FrameFault::Conflict);
    let third = item(&mut other, "3");
    assert_eq!(fault(&[&open, &two, &third], &item(&mut other, "4")), FrameFault::Window);
    assert_eq!(fault(&[&open], &other.end("5".into(), 1)), FrameFault::Window);
    assert_eq!(
        fault(&[&open], &{
            let mut long = twin();
            item(&mut long, "");
            item(&mut long, "eleven here")
        }),
        FrameFault::Window
    );
    let mut broken = twin();
    item(&mut broken, "other");
    assert_eq!(fault(&[&open, &one], &broken.end("end".into(), 1)), FrameFault::Digest);
    // Frames held behind the gap do not count as accepted if they cannot be handed on.
    let mut receiver = FrameReceiver::new(&expected, 3, 10);
    let mut broken = twin();
    item(&mut broken, "other");
    let end = broken.end("end".into(), 1);
    take(&mut receiver, &expected, &open).unwrap();
    assert!(matches!(take(&mut receiver, &expected, &end), Ok(Taken::Gap)));
    assert_eq!(take(&mut receiver, &expected, &one).unwrap_err(), FrameFault::Digest);
    assert_eq!(receiver.last(), Some(0));
}

/// SPEC.md §25: otherwise somebody who recorded a beat could make a dead service look alive.
#[test]
fn a_beat_is_a_sign_of_life_once() {
    let (expected, binding) = call();
    let mut sealer = FrameSealer::new(binding, "r1");
    let mut receiver = FrameReceiver::new(&expected, 32, 1024);
    take(&mut receiver, &expected, &sealer.open(100)).unwrap();
    let beats = [sealer.beat(100), sealer.beat(100), sealer.beat(90)];
    for beat in &beats {
        assert!(matches!(take(&mut receiver, &expected, beat), Ok(Taken::Alive)));
    }
    for beat in &beats {
        assert!(matches!(take(&mut receiver, &expected, beat), Ok(Taken::Repeated)));
    }
    sealer.content(FrameKind::Note, "{}".into(), 100);
    assert!(matches!(take(&mut receiver, &expected, &sealer.beat(105)), Ok(Taken::Gap)), "reveals what was lost");
    assert!(receiver.has_gap());
}

proptest! {
    /// In whatever order and however often frames arrive, each is returned once, in order, and the end is valid.
    #[test]
    fn any_order_gives_the_same_stream(order in prop::collection::vec(0_usize..12, 0..60)) {
        let (expected, binding) = call();
        let mut sealer = FrameSealer::new(binding, "r1");
        let mut frames = vec![sealer.open(1)];
        for at in 0..10_u8 {
            frames.push(sealer.content(FrameKind::Item, vec![at; usize::from(at)].into(), 1));
        }
        frames.push(sealer.end("end".into(), 1));
        let mut receiver = FrameReceiver::new(&expected, 32, 1024);
        let mut given = Vec::new();
        for at in order.into_iter().chain(0..12) {
            if let Taken::Next(next) = take(&mut receiver, &expected, &frames[at]).unwrap() {
                given.extend(next.into_iter().map(|frame| (frame.seq, frame.payload)));
            }
        }
        let sent: Vec<_> = frames.iter().map(|frame| (frame.seq(), frame.payload().clone())).collect();
        prop_assert_eq!(given, sent);
        prop_assert!(receiver.is_ended() && receiver.held.is_empty() && receiver.held_bytes == 0);
    }
}
