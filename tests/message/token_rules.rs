//! Which access tokens are refused, and why: each row is something that a JWT library accepts by default, or that has
//! defeated another product.

mod claims;
mod form;
mod issuer;
mod keys;
mod rules;
mod signature;
mod time;

use std::sync::Arc;

use proptest::prelude::*;
use sealwire::internal::auth::{
    AccessToken, Confirmation, Denylist, IssueRequest, JsonFault, Symmetric, TokenAlgorithm, TokenError, TokenIssuer,
    TokenRules, TokenVerifier, decode_untrusted,
};
use sealwire::internal::rpc::Flaw;
use sealwire_testkit::idp::{Idp, NOW, b64, compact};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

type Verdict = Result<Arc<AccessToken>, TokenError>;

fn verify_at(verifier: &TokenVerifier, token: &str, now_s: u64) -> Verdict {
    verifier.verify(token, &Sha256::digest(token).into(), now_s)
}

/// Judges a token under the default rules, with the keys of all algorithms loaded.
fn judge(token: &str) -> Verdict {
    verify_at(&Idp::shared().verifier(TokenRules::new("prod/math")), token, NOW)
}

/// Good claims with one of them changed.
fn with(name: &str, value: Value) -> Value {
    let mut claims = Idp::claims();
    claims[name] = value;
    claims
}

fn without(name: &str) -> Value {
    let mut claims = Idp::claims();
    claims.as_object_mut().unwrap().remove(name);
    claims
}

fn judge_claims(claims: &Value) -> Verdict {
    judge(&Idp::shared().ed25519(claims))
}

fn judge_text(claims: &str) -> Verdict {
    judge(&Idp::shared().sign_text(TokenAlgorithm::EdDsa, &Idp::header(TokenAlgorithm::EdDsa).to_string(), claims))
}

#[track_caller]
fn refused(verdict: Verdict, expected: &TokenError) {
    assert_eq!(verdict.as_ref().map(|_| ()), Err(expected));
}

#[test]
fn each_algorithm_verifies_under_its_own_key_in_one_set() {
    // A library told to accept several algorithms at once refuses every token; here each key has its own.
    for algorithm in [TokenAlgorithm::EdDsa, TokenAlgorithm::Es256, TokenAlgorithm::Rs256, TokenAlgorithm::Ps256] {
        let token = Idp::shared().sign(algorithm, &Idp::header(algorithm), &Idp::claims());
        let verified = judge(&token).unwrap();
        assert_eq!(verified.subject, "agent-7f3a", "{algorithm}");
        assert_eq!(verified.key_id, format!("idp-{algorithm}"));
    }
}

#[test]
fn every_claim_reaches_the_verified_token() {
    let mut claims = Idp::claims();
    claims["aud"] = json!(["prod/ops", "prod/math"]);
    claims["nbf"] = json!(NOW - 10);
    claims["roles"] = json!(["calc", "ops:read", "calc"]);
    claims["cnf"] = json!({"kid": "agent-7f3a.k1", "jkt": "HlHgCcjrhbeyw80VMef51yPwhyRqjiwLdwSLRqo7hSI"});
    claims["act"] = json!({"sub": "agent-9", "iss": "https://idp.example", "act": {"sub": "agent-8"}});
    claims["tenant"] = json!({"id": 7});
    let token = judge_claims(&claims).unwrap();
    assert_eq!((token.issuer.as_str(), token.id.as_str()), ("https://idp.example", "t-0001"));
    assert_eq!(
        (token.subject.as_str(), token.actor.as_deref(), token.owner()),
        ("agent-7f3a", Some("agent-9"), "agent-9")
    );
    assert_eq!(token.prior_actors, ["agent-8"]);
    assert_eq!((token.issued_at, token.expires_at, token.not_before), (NOW - 100, NOW + 800, Some(NOW - 10)));
    assert_eq!(token.roles.iter().map(String::as_str).collect::<Vec<_>>(), ["calc", "ops:read"]);
    let cnf = token.cnf.as_ref().unwrap();
    assert_eq!(cnf.kid.as_deref(), Some("agent-7f3a.k1"));
    assert_eq!(cnf.jkt.as_deref(), Some("HlHgCcjrhbeyw80VMef51yPwhyRqjiwLdwSLRqo7hSI"));
    assert_eq!(Value::Object(token.claims.clone()), json!({"tenant": {"id": 7}}));
}

#[test]
fn tokens_of_the_vectors_get_what_the_vectors_expect() {
    let vectors: Value = serde_json::from_str(include_str!("../vectors/nats-rpc-v1.json")).unwrap();
    let now = vectors["clock"].as_u64().unwrap();
    let keys = vectors["token_keys"].to_string();
    let keys = sealwire::internal::auth::KeySet::from_jwks(
        &keys,
        vectors["issuer"].as_str().unwrap(),
        "vectors",
        Symmetric::Refused,
    );
    let verifier = TokenVerifier::new(TokenRules::new(vectors["service"].as_str().unwrap()), keys.unwrap());
    let mut seen = 0;
    for vector in vectors["vectors"].as_array().unwrap() {
        let Some(value) = vector["headers"]["Authorization"].as_str().filter(|_| vector["kind"] == "request") else {
            continue;
        };
        let token = value.strip_prefix("NatsRpc ").unwrap().split('~').next().unwrap();
        let name = vector["name"].as_str().unwrap();
        let expected = match name.split(' ').next().unwrap() {
            "N18" => Some(TokenError::Expired),
            "N19" => Some(TokenError::Audience),
            "N21" => Some(TokenError::Lifetime(3601)),
            "N33" | "N34" => Some(TokenError::Signature),
            "N37" => Some(TokenError::Malformed("cnf")),
            // The other bad ones have a good token: the message has another fault.
            _ => None,
        };
        assert_eq!(verify_at(&verifier, token, now).err(), expected, "{name}");
        seen += 1;
    }
    assert!(seen > 30, "{seen} requests in the vectors");
}

#[test]
fn untrusted_decoding_shows_what_a_bad_token_says() {
    let header = json!({"alg": "none", "jku": "https://attacker.example"});
    let seen = decode_untrusted(&compact(&header.to_string(), r#"{"sub":"root"}"#, b"x")).unwrap();
    assert_eq!(Value::Object(seen.header), header);
    assert_eq!(Value::Object(seen.claims), json!({"sub": "root"}));
    assert_eq!(decode_untrusted("a.b").unwrap_err(), TokenError::Parts);
}

#[test]
fn errors_show_no_token_and_escape_what_they_show() {
    let error = judge_claims(&with("iss", json!("a\r\n\u{1b}[31m"))).unwrap_err().to_string();
    assert!(error.bytes().all(|b| b.is_ascii_graphic() || b == b' '), "{error}");
    let long = judge_claims(&with("iss", json!("x".repeat(2000)))).unwrap_err().to_string();
    assert!(long.len() < 200, "{long}");
    let verifier = Idp::shared().verifier(TokenRules::new("prod/math"));
    assert!(format!("{verifier:?}").contains("idp-EdDSA"));
}
