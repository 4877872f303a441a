#![allow(clippy::unwrap_used, reason = "tests")]
use std::sync::Arc;

use super::*;
use crate::name::Name;
use crate::wire::{Endpoint, HmacKey, ServiceKey};

/// SPEC.md §25.1: whatever is prepared for the frames of a second, each has the text of its own claims, and a signature over it.
#[test]
fn frames_are_the_text_of_their_claims() {
    let endpoint = Endpoint::new(Name::new("test").unwrap(), Name::new("desk").unwrap());
    let audience = endpoint.audience();
    let service = Arc::new(ServiceKey::new("svc:test/desk:1", audience, [7; 32]).unwrap());
    // Every length of the text before the digest modulo 3, since it is encoded in groups of three bytes.
    for token in ["Q", "Q1", "Q12", "Q\u{22}\\3"] {
        let hmac = ReplyKey::Hmac { kid: "ann.k1".into(), key: Arc::new(HmacKey::new([9; 32])) };
        for key in [hmac, ReplyKey::Service(Arc::clone(&service))] {
            let reply = format!("_INBOX.ann.{token}");
            let reply = Some(ReplyTo::unchecked(&reply));
            let Some(reply) = reply else { continue };
            let mut sealer = FrameSealer::new(Binding::new(reply, audience.clone(), b"proof", key.clone()), "r1");
            let mut frames = vec![sealer.open(9)];
            // Across a change of second that adds a digit.
            for (now, kind) in [(9, FrameKind::Item), (9, FrameKind::Ask), (10, FrameKind::Piece), (7, FrameKind::Note)]
            {
                frames.push(sealer.content(kind, Bytes::from(format!("{now}")), now));
                frames.push(sealer.beat(now));
            }
            frames.push(sealer.end(Bytes::from_static(b"end"), 20));
            for frame in frames {
                let proof = crate::wire::sign::proof_of(frame.headers()).unwrap();
                let (input, signature) = proof.rsplit_once('.').unwrap();
                let (header, claims) = input.split_once('.').unwrap();
                let (algorithm, kid) = key.algorithm_and_kid();
                assert_eq!(header, ProofHeader { algorithm, kid: kid.to_owned(), typ: FRAME_TYP }.encode());
                let parsed = FrameClaims::parse(claims).unwrap();
                assert_eq!(claims, b64(serde_json::to_vec(&parsed).unwrap()));
                assert_eq!(signature, b64(key.sign(input.as_bytes())));
                assert_eq!((parsed.seq, parsed.knd, parsed.to.as_str()), (frame.seq(), frame.kind(), frame.to()));
                assert_eq!(parsed.dig, b64(sha256(frame.payload())));
                let question = (frame.kind() == FrameKind::Ask).then(|| b64(sha256(proof.as_bytes())));
                assert_eq!(frame.question(), question.as_deref());
            }
        }
    }
}
