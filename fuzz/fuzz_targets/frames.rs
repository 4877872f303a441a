//! What arrives for a call that accepts frames, read and put in order by the client.
//!
//! The input is a sequence of steps. The first byte of a step says what arrives: a good frame of the vectors, a changed one, parts of two,
//! or the fuzzer's own header and claims, signed as by a service that does not keep to the rules.
#![no_main]

use std::collections::HashMap;

use libfuzzer_sys::fuzz_target;
use sealwire::configure::AgentKey;
use sealwire::internal::wire::{
    Accepted, FrameReceiver, HeaderBlock, ProofClaims, RequestSigner, SignedRequest, Taken,
};
use sealwire_fuzz::{Service, b64, byte, digest, member, members, sign, some, unb64, unhex};
use serde_json::Value;
use sha2::{Digest, Sha256};

/// The window, and how many bytes are held.
const WINDOW: u64 = 4;
const HELD: usize = 256;

struct Setting {
    request: SignedRequest,
    /// The digest of the request's proof.
    digest: [u8; 32],
    key: [u8; 32],
    reply: String,
    /// Header value and payload.
    good: Vec<(String, Vec<u8>)>,
}

fn setting() -> &'static Setting {
    static SETTING: std::sync::OnceLock<Setting> = std::sync::OnceLock::new();
    SETTING.get_or_init(|| {
        let service = Service::get();
        let agent = &service.vectors["agent_keys"][0];
        let master = unhex(agent["master_hex"].as_str().unwrap());
        let key = AgentKey::hmac(agent["kid"].as_str().unwrap(), &master).unwrap();
        let signer = RequestSigner::new(&key, service.audience().clone(), Vec::new()).unwrap();
        let vector = service.vector("V9");
        let sent: ProofClaims = serde_json::from_value(vector["proof_claims"].clone()).unwrap();
        let credentials = vector["headers"]["Authorization"].as_str().unwrap().strip_prefix("NatsRpc ").unwrap();
        let (token, proof) = credentials.split_once('~').unwrap();
        let frames = service.vectors["vectors"].as_array().unwrap().iter();
        let good = frames.filter(|frame| frame["kind"] == "frame" && frame["answers"] == vector["name"]);
        let good = good.filter(|frame| ["accept", "alive", "gap"].iter().any(|expect| frame["expect"] == *expect));
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        Setting {
            request: signer.sign_claims(&sent, token),
            digest: Sha256::digest(proof).into(),
            key: unhex(agent["service_key_hex"].as_str().unwrap()),
            reply: sent.rto,
            good: good
                .map(|frame| (text(&frame["headers"]["Authentication-Info"]), text(&frame["payload"]).into_bytes()))
                .collect(),
        }
    })
}

/// What arrives: the header block and the payload.
fn arrival(setting: &Setting, steps: &mut &[u8]) -> Option<(HeaderBlock, Vec<u8>)> {
    let (op, which) = (byte(steps)?, byte(steps)?);
    let good = |which: u8| setting.good[usize::from(which) % setting.good.len()].clone();
    let (mut value, mut payload) = good(which);
    match op % 8 {
        0 | 1 => {}
        2 => {
            let at = usize::from(u16::from_le_bytes([byte(steps)?, byte(steps)?])) % value.len();
            let mut bytes = value.into_bytes();
            bytes[at] ^= byte(steps)? & 0x7f;
            value = String::from_utf8(bytes).ok()?;
        }
        3 => payload = some(steps)?.to_vec(),
        4 => {
            let (other, other_payload) = good(byte(steps)?);
            if op & 0x80 == 0 {
                payload = other_payload;
            } else {
                let (input, _) = value.rsplit_once('.')?;
                value = format!("{input}.{}", other.rsplit_once('.')?.1);
            }
        }
        // A member of good claims, changed and signed again.
        5 => {
            let proof = value.strip_prefix("NatsRpc ")?.to_owned();
            let mut parts = proof.split('.');
            let (header, claims) = (unb64(parts.next()?)?, unb64(parts.next()?)?);
            let mut claims: serde_json::Map<String, Value> = serde_json::from_slice(&claims).ok()?;
            let names = ["iat", "seq", "knd", "rep", "acc", "dig", "to", "req", "iss", "more"];
            let name = names[usize::from(byte(steps)?) % names.len()];
            let changed = match some(steps)? {
                [] => {
                    claims.remove(name);
                    None
                }
                [number] => Some(Value::from(*number)),
                text => Some(serde_json::from_slice(text).unwrap_or_else(|_| String::from_utf8_lossy(text).into())),
            };
            if let Some(changed) = changed {
                claims.insert(name.to_owned(), changed);
            }
            if op & 0x80 != 0 {
                payload = some(steps)?.to_vec();
                claims.insert("dig".to_owned(), digest(&payload).into());
            }
            value = format!("NatsRpc {}", sign(&setting.key, &header, &serde_json::to_vec(&claims).unwrap()));
        }
        // Any header and any claims, signed.
        6 => {
            let text = some(steps)?;
            let end = text.iter().position(|byte| *byte == b'\n')?;
            value = format!("NatsRpc {}", sign(&setting.key, &text[..end], &text[end + 1..]));
        }
        _ => return Some((HeaderBlock::from(bytes::Bytes::copy_from_slice(some(steps)?)), payload)),
    }
    Some((HeaderBlock::of(&[("Authentication-Info", &value)]), payload))
}

/// The kind of a frame, its payload, and its digest over all.
type Seen = (String, Vec<u8>, Option<String>);

/// What the client is judged by: another parser, another MAC, another digest.
struct Oracle {
    /// What was accepted under a number, and is not a beat.
    accepted: HashMap<u64, Vec<Seen>>,
    next: u64,
    acc: [u8; 32],
    is_over: bool,
}

impl Oracle {
    /// A frame that was accepted: everything about it must be what the specification asks for.
    fn frame(&mut self, setting: &Setting, headers: &HeaderBlock, payload: &[u8]) {
        let text = std::str::from_utf8(headers.as_bytes()).unwrap();
        let lines: Vec<&str> =
            text.split("\r\n").filter(|line| line.to_ascii_lowercase().starts_with("authentication-info:")).collect();
        let [line] = lines[..] else { panic!("one signature: {text}") };
        let value = line.split_once(':').unwrap().1;
        let proof = value.strip_prefix(' ').unwrap_or(value).strip_prefix("NatsRpc ").expect("the scheme");
        let [header, claims, _] = proof.split('.').collect::<Vec<_>>()[..] else { panic!("three parts: {proof}") };
        let (header, claims) = (unb64(header).unwrap(), unb64(claims).unwrap());
        assert_eq!(sign(&setting.key, &header, &claims), proof, "forged");
        let header = members(&header).expect("the header is an object");
        assert_eq!(header.len(), 3);
        assert_eq!(member(&header, "alg"), "HS256");
        assert_eq!(member(&header, "kid"), "agent-7f3a.k1");
        assert_eq!(member(&header, "typ"), "nats-rpc-v1-frame+jwt");
        let claims = members(&claims).expect("the claims are an object");
        assert_eq!(member(&claims, "iss"), "prod/math");
        assert_eq!(member(&claims, "to"), setting.reply.as_str());
        assert_eq!(member(&claims, "req"), b64(&setting.digest).as_str());
        assert_eq!(member(&claims, "dig"), digest(payload).as_str());
        assert!(member(&claims, "iat").is_u64());
        let (seq, kind) = (member(&claims, "seq").as_u64().unwrap(), member(&claims, "knd").as_str().unwrap());
        assert_eq!(claims.len(), if kind == "end" { 9 } else { 8 });
        assert_eq!(seq == 0 && kind != "beat", kind == "open");
        assert!(!matches!(kind, "open" | "beat") || payload.is_empty());
        let replica = member(&claims, "rep").as_str().unwrap();
        assert!(replica != "all" && (1..=64).contains(&replica.len()));
        assert!(replica.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte)));
        if kind != "beat" {
            let acc = member(&claims, "acc").as_str().map(str::to_owned);
            self.accepted.entry(seq).or_default().push((kind.to_owned(), payload.to_vec(), acc));
        }
    }

    /// A frame that was handed on: the next one, of those that were accepted.
    fn handed_on(&mut self, seq: u64, payload: &[u8]) {
        assert!(!self.is_over, "after the end");
        assert_eq!(seq, self.next, "out of order");
        self.next += 1;
        let accepted = self.accepted.get(&seq).expect("never arrived");
        let found = accepted.iter().find(|(_, bytes, _)| bytes == payload).expect("never arrived like this");
        if seq > 0 {
            let both = [self.acc.as_slice(), Sha256::digest(payload).as_slice()].concat();
            self.acc = Sha256::digest(both).into();
        }
        // Frames that differ only in their kind are a conflict only if one of them is held.
        if accepted.iter().all(|(kind, ..)| kind == "end") {
            assert!(
                accepted.iter().any(|(_, _, acc)| acc.as_deref() == Some(b64(&self.acc).as_str())),
                "cut: {found:?}"
            );
            self.is_over = true;
        }
    }
}

fuzz_target!(|input: &[u8]| {
    let setting = setting();
    let mut oracle = Oracle { accepted: HashMap::new(), next: 0, acc: setting.digest, is_over: false };
    let mut receiver = FrameReceiver::new(&setting.request.expectation, WINDOW, HELD);
    let mut steps = input;
    while let Some((headers, payload)) = arrival(setting, &mut steps) {
        let Ok(accepted) = setting.request.expectation.accept_any(&setting.reply, &headers, &payload) else { continue };
        let Accepted::Frame(frame) = accepted else { continue };
        oracle.frame(setting, &headers, &payload);
        let was_ended = receiver.is_ended();
        match receiver.take(frame, payload.into()) {
            Ok(Taken::Next(frames)) => {
                for frame in frames {
                    oracle.handed_on(frame.seq, &frame.payload);
                }
                assert!(oracle.next <= WINDOW + 2, "beyond the window");
            }
            Ok(Taken::Gap | Taken::Alive) => assert!(!was_ended && !oracle.is_over),
            Ok(Taken::Repeated) => {}
            // Over, and it stays so.
            Err(_) => oracle.is_over = true,
        }
        assert_eq!(receiver.last(), oracle.next.checked_sub(1));
    }
});
