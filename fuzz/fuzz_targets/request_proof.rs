//! The proof of a request, as an agent that has a key but does not keep to the grammar may sign it.
//!
//! The input is the text of the proof's header on the first line and the text of its claims after it. Both are signed with
//! a good key, so that what is judged is the reading of them, not the signature.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sealwire::internal::wire::Envelope;
use sealwire::serve::Delivery;
use sealwire_fuzz::{NOW, Service, digest, member, members, sign, unhex};

fuzz_target!(|input: &[u8]| {
    let Some(end) = input.iter().position(|byte| *byte == b'\n') else { return };
    let (header, claims) = (&input[..end], &input[end + 1..]);
    let service = Service::get();
    let vector = service.vector("V1");
    let text = |name: &str| vector[name].as_str().unwrap();
    let token = vector["headers"]["Authorization"].as_str().unwrap();
    let token = token.strip_prefix("NatsRpc ").unwrap().split('~').next().unwrap();
    let key = unhex(service.vectors["agent_keys"][0]["service_key_hex"].as_str().unwrap());

    let proof = sign(&key, header, claims);
    let mut headers = async_nats::HeaderMap::new();
    headers.insert("Authorization", format!("NatsRpc {token}~{proof}"));
    let delivery = Delivery::new(text("subject"), text("reply"), headers, text("payload").to_owned());
    let Ok(envelope) = Envelope::decode(delivery, &service.endpoint) else { return };
    if service.verifier.authenticate(envelope, NOW).is_err() {
        return;
    }

    // It was accepted: then another parser must find exactly what the specification asks for.
    let header = members(header).expect("the header is an object");
    assert_eq!(header.len(), 3);
    assert_eq!(member(&header, "alg"), "HS256");
    assert_eq!(member(&header, "kid"), "agent-7f3a.k1");
    assert_eq!(member(&header, "typ"), "nats-rpc-v1+jwt");
    let claims = members(claims).expect("the claims are an object");
    for (name, _) in &claims {
        assert!(["aud", "to", "rto", "iat", "exp", "jti", "ath", "dig", "tmo", "idk"].contains(&name.as_str()));
    }
    assert_eq!(member(&claims, "aud"), service.audience().as_str());
    assert_eq!(member(&claims, "to"), text("subject"));
    assert_eq!(member(&claims, "rto"), text("reply"));
    assert_eq!(*member(&claims, "ath"), digest(token.as_bytes()));
    assert_eq!(*member(&claims, "dig"), digest(text("payload").as_bytes()));
    let whole = |name: &str| member(&claims, name).as_u64().expect("a whole number");
    let (iat, exp) = (whole("iat"), whole("exp"));
    assert!(iat <= NOW + 5 && NOW < exp && iat < exp && exp - iat <= 30);
    assert_eq!(member(&claims, "jti").as_str().map(str::len), Some(22));
    if claims.iter().any(|(name, _)| name == "tmo") {
        assert!((1..=600_000).contains(&whole("tmo")));
    }
    if claims.iter().any(|(name, _)| name == "idk") {
        let key = member(&claims, "idk").as_str().expect("a string");
        assert!((1..=128).contains(&key.len()) && key.bytes().all(|byte| (0x20..=0x7e).contains(&byte)));
    }
});
