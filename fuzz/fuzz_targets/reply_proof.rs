//! The proof of an answer, as a service that does not keep to the grammar may sign it, read by the client.
//!
//! The input is the text of the proof's header on the first line and the text of its claims after it; both are signed with
//! the key that this request is answered under.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sealwire::configure::AgentKey;
use sealwire::internal::wire::{ProofClaims, RequestSigner};
use sealwire_fuzz::{Service, digest, member, members, sign, unhex};

fuzz_target!(|input: &[u8]| {
    let Some(end) = input.iter().position(|byte| *byte == b'\n') else { return };
    let (header, claims) = (&input[..end], &input[end + 1..]);
    let service = Service::get();
    let agent = &service.vectors["agent_keys"][0];
    let key = AgentKey::hmac(agent["kid"].as_str().unwrap(), &unhex(agent["master_hex"].as_str().unwrap())).unwrap();
    let signer = RequestSigner::new(&key, service.audience().clone(), Vec::new()).unwrap();
    let sent: ProofClaims = serde_json::from_value(service.vector("V1")["proof_claims"].clone()).unwrap();
    let request = signer.sign_claims(&sent, "token");
    let request_proof = request.authorization.split('~').nth(1).unwrap();

    let answer = service.vector("V6");
    let payload = answer["payload"].as_str().unwrap();
    let proof = sign(&unhex(agent["service_key_hex"].as_str().unwrap()), header, claims);
    let mut headers = async_nats::HeaderMap::new();
    headers.insert("Authentication-Info", format!("NatsRpc {proof}"));
    let Ok(iat) = request.expectation.accept(&sent.rto, &headers, payload.as_bytes()) else { return };

    let header = members(header).expect("the header is an object");
    assert_eq!(header.len(), 3);
    assert_eq!(member(&header, "alg"), "HS256");
    assert_eq!(member(&header, "kid"), "agent-7f3a.k1");
    assert_eq!(member(&header, "typ"), "nats-rpc-v1-reply+jwt");
    let claims = members(claims).expect("the claims are an object");
    assert_eq!(claims.len(), 5);
    assert_eq!(member(&claims, "iss"), service.audience().as_str());
    assert_eq!(member(&claims, "to"), sent.rto.as_str());
    assert_eq!(*member(&claims, "req"), digest(request_proof.as_bytes()));
    assert_eq!(*member(&claims, "dig"), digest(payload.as_bytes()));
    assert_eq!(member(&claims, "iat").as_u64(), Some(iat));
});
