//! Which access tokens are refused, and why: each row is something that a JWT library accepts by default, or that
//! another product fell for.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic, reason = "tests")]

#[path = "token_rules/idp.rs"]
mod idp;
#[path = "token_rules/issuer.rs"]
mod issuer;
#[path = "token_rules/keys.rs"]
mod keys;

use std::sync::Arc;

use idp::{Idp, NOW, b64, compact};
use proptest::prelude::*;
use sealwire::auth::{
    AccessToken, Confirmation, Denylist, IssueRequest, JsonFault, Symmetric, TokenAlgorithm, TokenError, TokenIssuer,
    TokenRules, TokenVerifier, decode_untrusted,
};
use sealwire::rpc::Flaw;
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

/// Good claims with one changed.
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

// The good ones.

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
    let vectors: Value = serde_json::from_str(include_str!("vectors/nats-rpc-v1.json")).unwrap();
    let now = vectors["clock"].as_u64().unwrap();
    let keys = vectors["token_keys"].to_string();
    let keys =
        sealwire::auth::KeySet::from_jwks(&keys, vectors["issuer"].as_str().unwrap(), "vectors", Symmetric::Refused);
    let verifier = TokenVerifier::new(TokenRules::new(vectors["service"].as_str().unwrap()), keys.unwrap());
    let mut seen = 0;
    for vector in vectors["vectors"].as_array().unwrap() {
        let Some(value) = vector["headers"]["Authorization"].as_str() else { continue };
        let token = value.strip_prefix("NatsRpc ").unwrap().split('~').next().unwrap();
        let name = vector["name"].as_str().unwrap();
        let expected = match name.split(' ').next().unwrap() {
            "N18" => Some(TokenError::Expired),
            "N19" => Some(TokenError::Audience),
            "N21" => Some(TokenError::Lifetime(3601)),
            "N33" | "N34" => Some(TokenError::Signature),
            "N37" => Some(TokenError::Malformed("cnf")),
            // The rest of the bad ones have a good token: something else about the message is wrong.
            _ => None,
        };
        assert_eq!(verify_at(&verifier, token, now).err(), expected, "{name}");
        seen += 1;
    }
    assert!(seen > 30, "{seen} requests in the vectors");
}

// The signature and its algorithm.

#[test]
fn unsigned_tokens_are_refused_in_every_spelling() {
    let claims = Idp::claims();
    for alg in ["none", "None", "NONE", "nOnE", "hs256", "eddsa", "EDDSA", "", "EdDSA ", "ES512"] {
        let header = json!({"alg": alg, "kid": "idp-EdDSA", "typ": "at+jwt"});
        let expected = TokenError::Algorithm { expected: TokenAlgorithm::EdDsa, found: alg.into() };
        refused(judge(&compact(&header.to_string(), &claims.to_string(), b"x")), &expected);
        refused(judge(&Idp::shared().sign(TokenAlgorithm::EdDsa, &header, &claims)), &expected);
    }
    let unsigned = compact(&Idp::header(TokenAlgorithm::EdDsa).to_string(), &claims.to_string(), b"");
    refused(judge(&unsigned), &TokenError::Parts);
}

#[test]
fn alg_of_another_key_is_refused() {
    let idp = Idp::shared();
    // The attacker's favourite: the public RSA key, known to all, as the secret of an HMAC.
    let header = json!({"alg": "HS256", "kid": "idp-RS256", "typ": "at+jwt"}).to_string();
    for secret in idp.rsa_public_forms() {
        let forged = idp.sign_hmac(&secret, &header, &Idp::claims().to_string());
        refused(judge(&forged), &TokenError::Algorithm { expected: TokenAlgorithm::Rs256, found: "HS256".into() });
    }
    // One RSA key is for one padding.
    let header = json!({"alg": "PS256", "kid": "idp-RS256", "typ": "at+jwt"});
    let swapped = idp.sign(TokenAlgorithm::Ps256, &header, &Idp::claims());
    refused(judge(&swapped), &TokenError::Algorithm { expected: TokenAlgorithm::Rs256, found: "PS256".into() });
}

#[test]
fn public_key_as_hmac_secret_is_refused_under_the_right_alg_name_too() {
    let idp = Idp::shared();
    let header = Idp::header(TokenAlgorithm::Rs256).to_string();
    for secret in idp.rsa_public_forms() {
        refused(judge(&idp.sign_hmac(&secret, &header, &Idp::claims().to_string())), &TokenError::Signature);
    }
}

#[test]
fn signature_of_another_key_is_refused() {
    let idp = Idp::shared();
    let claims = Idp::claims();
    let other = Idp::new();
    for algorithm in [TokenAlgorithm::EdDsa, TokenAlgorithm::Es256, TokenAlgorithm::Rs256, TokenAlgorithm::Ps256] {
        refused(judge(&other.sign(algorithm, &Idp::header(algorithm), &claims)), &TokenError::Signature);
    }
    let token = idp.ed25519(&claims);
    let (head, signature) = token.rsplit_once('.').unwrap();
    let other_claims = b64(with("sub", json!("root")).to_string());
    let (header, _) = head.split_once('.').unwrap();
    refused(judge(&format!("{header}.{other_claims}.{signature}")), &TokenError::Signature);
    refused(judge(&format!("{head}.{}", &signature[..signature.len() - 1])), &TokenError::Encoding("signature"));
    refused(judge(&format!("{head}.{}", &signature[..signature.len() - 6])), &TokenError::Signature);
}

#[test]
fn missing_alg_is_refused() {
    let header = json!({"kid": "idp-EdDSA", "typ": "at+jwt"});
    let token = Idp::shared().sign(TokenAlgorithm::EdDsa, &header, &Idp::claims());
    refused(judge(&token), &TokenError::HeaderText("alg"));
}

#[test]
fn symmetric_keys_verify_only_where_they_are_allowed() {
    let idp = Idp::shared();
    let header = Idp::header(TokenAlgorithm::Hs256).to_string();
    let token = idp.sign_hmac(&idp.secret, &header, &Idp::claims().to_string());
    let keys = idp.symmetric_keys();
    let mut rules = TokenRules::new("prod/math");
    refused(verify_at(&TokenVerifier::new(rules.clone(), keys.clone()), &token, NOW), &TokenError::Symmetric);
    rules.symmetric = Symmetric::Allowed;
    let verifier = TokenVerifier::new(rules, keys);
    assert_eq!(verify_at(&verifier, &token, NOW).unwrap().subject, "agent-7f3a");
    let forged = idp.sign_hmac(&[0; 32], &header, &Idp::claims().to_string());
    refused(verify_at(&verifier, &forged, NOW), &TokenError::Signature);
}

#[test]
fn every_changed_character_of_a_token_is_refused() {
    let good = Idp::shared().ed25519(&Idp::claims());
    let verifier = Idp::shared().verifier(TokenRules::new("prod/math"));
    assert!(verify_at(&verifier, &good, NOW).is_ok());
    for (at, byte) in good.bytes().enumerate() {
        for other in [b'A', b'z', b'_', b'.', b'='] {
            if byte != other {
                let mut changed = good.clone().into_bytes();
                changed[at] = other;
                let changed = String::from_utf8(changed).unwrap();
                assert!(verify_at(&verifier, &changed, NOW).is_err(), "{changed}");
            }
        }
    }
    for cut in 0..good.len() {
        assert!(
            verify_at(&verifier, &good[..cut], NOW).is_err() && verify_at(&verifier, &good[cut + 1..], NOW).is_err()
        );
    }
}

proptest! {
    #[test]
    fn no_text_is_a_token_by_chance_or_breaks_the_reader(text in ".{0,200}", part in "[A-Za-z0-9_-]{0,40}") {
        prop_assert!(judge(&text).is_err());
        let alike = [part.as_str(); 3].join(".");
        prop_assert!(judge(&alike).is_err());
        prop_assert!(judge_text(&text).is_err());
        prop_assert!(judge(&compact(&text, &text, b"x")).is_err());
        drop(Denylist::parse(&text, "text"));
        let keys = sealwire::auth::KeySet::from_jwks(&text, "https://idp.example", "text", Symmetric::Refused);
        prop_assert!(keys.is_err());
    }
}

// The form.

#[test]
fn token_has_exactly_three_canonical_parts() {
    let good = Idp::shared().ed25519(&Idp::claims());
    assert!(judge(&good).is_ok());
    let parts: Vec<_> = good.split('.').collect();
    for bad in [
        String::new(),
        "..".into(),
        format!("{}.{}", parts[0], parts[1]),
        format!("{}.{}.", parts[0], parts[1]),
        format!(".{}.{}", parts[1], parts[2]),
        format!("{}..{}", parts[0], parts[2]),
        format!("{good}.{}", parts[2]),
        format!("{good}."),
        format!(".{good}"),
    ] {
        refused(judge(&bad), &TokenError::Parts);
    }
    for (bad, part) in [
        (format!("{good}=="), "signature"),
        (format!("{good}\n"), "signature"),
        (format!(" {good}"), "header"),
        (format!("{}=.{}.{}", parts[0], parts[1], parts[2]), "header"),
        (format!("{}.{}=.{}", parts[0], parts[1], parts[2]), "claims part"),
        (format!("{}.{}\n.{}", parts[0], parts[1], parts[2]), "claims part"),
        (format!("{}.{}+.{}", parts[0], parts[1], parts[2]), "claims part"),
        (format!("{}.{}é.{}", parts[0], parts[1], parts[2]), "claims part"),
    ] {
        refused(judge(&bad), &TokenError::Encoding(part));
    }
    // 64 bytes of signature leave four unused bits in the last character: set, they make another text of one signature.
    let last = good.chars().last().unwrap();
    let alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let next = alphabet.chars().nth(alphabet.find(last).unwrap() + 1).unwrap();
    refused(judge(&format!("{}{next}", &good[..good.len() - 1])), &TokenError::Encoding("signature"));
}

#[test]
fn token_above_4_kib_is_refused_before_it_is_read() {
    let mut claims = Idp::claims();
    claims["pad"] = json!("x".repeat(2600));
    assert!(judge_claims(&claims).is_ok());
    claims["pad"] = json!("x".repeat(3000));
    refused(judge_claims(&claims), &TokenError::TooLong);
    let huge = "x".repeat(1 << 20);
    let header = json!({"alg": "EdDSA", "kid": "idp-EdDSA", "typ": "at+jwt", "pad": huge});
    refused(judge(&Idp::shared().sign(TokenAlgorithm::EdDsa, &header, &Idp::claims())), &TokenError::TooLong);
    refused(judge(&".".repeat(5000)), &TokenError::TooLong);
}

#[test]
fn header_has_exactly_alg_kid_and_typ() {
    for (name, value) in [
        ("crit", json!(["exp"])),
        ("crit", json!([])),
        ("jwk", json!({"kty": "OKP", "crv": "Ed25519", "x": "JUO5L_EJVRFHatyDadtt3JM2ZaEZeN2hQE7hBmypVZ0"})),
        ("jku", json!("https://attacker.example/keys")),
        ("x5u", json!("https://attacker.example/cert")),
        ("x5c", json!(["MIIB"])),
        ("x5t", json!("AA")),
        ("zip", json!("DEF")),
        ("enc", json!("A128GCM")),
        ("b64", json!(false)),
        ("cty", json!("JWT")),
        ("anything", json!(null)),
    ] {
        let mut header = Idp::header(TokenAlgorithm::EdDsa);
        header[name] = value;
        let token = Idp::shared().sign(TokenAlgorithm::EdDsa, &header, &Idp::claims());
        refused(judge(&token), &TokenError::HeaderMember(name.into()));
    }
    let idp = Idp::shared();
    for header in [
        r#"{"alg":"EdDSA","alg":"EdDSA","kid":"idp-EdDSA","typ":"at+jwt"}"#,
        r#"{"alg":"none","kid":"idp-EdDSA","typ":"at+jwt","\u0061lg":"EdDSA"}"#,
    ] {
        let token = idp.sign_text(TokenAlgorithm::EdDsa, header, &Idp::claims().to_string());
        refused(judge(&token), &TokenError::HeaderJson(JsonFault::Text(Flaw::DuplicateMember)));
    }
    let array = idp.sign_text(TokenAlgorithm::EdDsa, "[]", "{}");
    refused(judge(&array), &TokenError::HeaderJson(JsonFault::NotAnObject));
}

#[test]
fn only_access_token_types_are_accepted() {
    let token = |typ: Value| {
        let header = json!({"alg": "EdDSA", "kid": "idp-EdDSA", "typ": typ});
        Idp::shared().sign(TokenAlgorithm::EdDsa, &header, &Idp::claims())
    };
    for good in ["at+jwt", "application/at+jwt"] {
        assert!(judge(&token(json!(good))).is_ok(), "{good}");
    }
    for bad in ["JWT", "jwt", "AT+JWT", "at+JWT", "dpop+jwt", "id+jwt", "nats-rpc-v1+jwt", "at+jwt ", ""] {
        refused(judge(&token(json!(bad))), &TokenError::Typ(bad.into()));
    }
    refused(judge(&token(json!(["at+jwt"]))), &TokenError::HeaderText("typ"));
    let header = json!({"alg": "EdDSA", "kid": "idp-EdDSA"});
    let untyped = Idp::shared().sign(TokenAlgorithm::EdDsa, &header, &Idp::claims());
    refused(judge(&untyped), &TokenError::HeaderText("typ"));

    let mut rules = TokenRules::new("prod/math");
    rules.accept_plain_jwt_typ = true;
    let lenient = Idp::shared().verifier(rules);
    assert!(verify_at(&lenient, &token(json!("JWT")), NOW).is_ok());
    refused(verify_at(&lenient, &token(json!("dpop+jwt")), NOW), &TokenError::Typ("dpop+jwt".into()));
}

#[test]
fn kid_is_a_name_and_is_looked_up_only_in_memory() {
    let token = |kid: Value| {
        let header = json!({"alg": "EdDSA", "kid": kid, "typ": "at+jwt"});
        Idp::shared().sign(TokenAlgorithm::EdDsa, &header, &Idp::claims())
    };
    for bad in ["", "../../dev/null", "https://attacker.example/k", "a b", "' OR 1=1", "a\n", "é", &"k".repeat(65)] {
        refused(judge(&token(json!(bad))), &TokenError::KeyId(bad.into()));
    }
    for unknown in ["idp-2", "IDP-EdDSA", &"k".repeat(64)] {
        refused(judge(&token(json!(unknown))), &TokenError::UnknownKey(unknown.into()));
    }
    refused(judge(&token(json!(1))), &TokenError::HeaderText("kid"));
}

// The claims.

#[test]
fn each_required_claim_is_required() {
    for name in ["iss", "sub", "aud", "exp", "iat", "jti"] {
        refused(judge_claims(&without(name)), &TokenError::Missing(name));
        refused(judge_claims(&with(name, Value::Null)), &TokenError::Malformed(name));
    }
}

#[test]
fn dates_are_integers() {
    for name in ["exp", "iat", "nbf"] {
        for bad in [json!("1790000800"), json!(null), json!(true), json!([1_790_000_800]), json!({})] {
            refused(judge_claims(&with(name, bad)), &TokenError::Malformed(name));
        }
        for bad in ["1e300", "1790000800.0", "1790000800.5", "1.7900008e9", "-1", "-0", "9007199254740992"] {
            let claims = with(name, json!("@")).to_string().replace("\"@\"", bad);
            refused(judge_text(&claims), &TokenError::ClaimsJson(JsonFault::Number));
        }
    }
}

#[test]
fn audience_is_a_text_or_texts_and_names_this_service() {
    for good in [json!("prod/math"), json!(["prod/math"]), json!(["a", "prod/math"])] {
        assert!(judge_claims(&with("aud", good)).is_ok());
    }
    for bad in
        [json!(5), json!({"prod/math": true}), json!(["prod/math", 5]), json!([5, "prod/math"]), json!([["prod/math"]])]
    {
        refused(judge_claims(&with("aud", bad)), &TokenError::Malformed("aud"));
    }
    for other in [
        json!("prod/ops"),
        json!("staging/math"),
        json!("prod/math/"),
        json!("PROD/MATH"),
        json!(""),
        json!([]),
        json!(["prod", "math"]),
        json!("prod/ops prod/math"),
    ] {
        refused(judge_claims(&with("aud", other)), &TokenError::Audience);
    }
}

#[test]
fn issuer_is_one_text_and_the_one_of_the_key() {
    for bad in [json!(["https://idp.example"]), json!(["https://idp.example", "https://attacker.example"]), json!(5)] {
        refused(judge_claims(&with("iss", bad)), &TokenError::Malformed("iss"));
    }
    for other in ["https://idp.example/", "https://attacker.example", "HTTPS://idp.example", ""] {
        refused(judge_claims(&with("iss", json!(other))), &TokenError::Issuer(other.into()));
    }
}

#[test]
fn key_of_one_issuer_does_not_speak_for_another() {
    let (one, two) = (TokenIssuer::generate("https://one.example").unwrap(), Idp::shared());
    let keys = sealwire::auth::KeySet::merge([one.key_set().unwrap(), two.keys()]).unwrap();
    let verifier = TokenVerifier::new(TokenRules::new("prod/math"), keys);
    let token = one.issue(&IssueRequest::new("planner", "prod/math", NOW)).unwrap();
    assert_eq!(verify_at(&verifier, &token, NOW).unwrap().issuer, "https://one.example");
    assert!(verify_at(&verifier, &two.ed25519(&Idp::claims()), NOW).is_ok());
    let crossed = two.ed25519(&with("iss", json!("https://one.example")));
    refused(verify_at(&verifier, &crossed, NOW), &TokenError::Issuer("https://one.example".into()));
}

#[test]
fn subject_actor_and_id_are_visible_ascii_of_bounded_length() {
    for (name, error) in [("sub", "sub"), ("jti", "jti"), ("act", "act")] {
        let claim = |text: &str| if name == "act" { json!({ "sub": text }) } else { json!(text) };
        for good in ["a", "user@example.com", "auth0|5f7c", &"x".repeat(128)] {
            assert!(judge_claims(&with(name, claim(good))).is_ok(), "{name} {good}");
        }
        for bad in ["", " ", "a b", "a\nb", "a\u{0}", "\u{7f}", "аdmin", "\u{202e}nimda", &"x".repeat(129)] {
            refused(judge_claims(&with(name, claim(bad))), &TokenError::Malformed(error));
        }
    }
    refused(judge_claims(&with("sub", json!(7))), &TokenError::Malformed("sub"));
    refused(judge_claims(&with("jti", json!(["t"]))), &TokenError::Malformed("jti"));
}

#[test]
fn duplicate_claims_are_refused_at_any_depth() {
    let claims = Idp::claims().to_string();
    for extra in [
        r#""exp":1790000800"#,
        r#""jti":"t-0002""#,
        r#""\u006ati":"t-0002""#,
        r#""sub":"root""#,
        r#""x":{"a":1,"a":2}"#,
        r#""x":[{"y":{"a":1,"\u0061":2}}]"#,
        r#""act":{"sub":"agent-9","sub":"agent-8"}"#,
        r#""bound":{"kid":"k1","kid":"k2"}"#,
    ] {
        let doubled = format!("{},{extra}}}", &claims[..claims.len() - 1]);
        refused(judge_text(&doubled), &TokenError::ClaimsJson(JsonFault::Text(Flaw::DuplicateMember)));
    }
}

#[test]
fn deep_nesting_is_refused_and_costs_no_stack() {
    for (depth, fault) in [
        (16, JsonFault::Depth),
        (63, JsonFault::Depth),
        (64, JsonFault::Text(Flaw::TooDeep)),
        (1200, JsonFault::Text(Flaw::TooDeep)),
    ] {
        let claims = Idp::claims().to_string();
        let nest = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        let deep = format!("{},\"x\":{nest}}}", &claims[..claims.len() - 1]);
        refused(judge_text(&deep), &TokenError::ClaimsJson(fault));
    }
    let text = format!("{{\"x\":{}", "[".repeat(100_000));
    refused(judge_text(&text), &TokenError::TooLong);
}

#[test]
fn claims_that_are_no_object_are_refused() {
    refused(judge_text("[]"), &TokenError::ClaimsJson(JsonFault::NotAnObject));
    refused(judge_text("{} {}"), &TokenError::ClaimsJson(JsonFault::Text(Flaw::Syntax)));
}

#[test]
fn roles_are_a_bounded_list_of_names() {
    let many = |count: usize| json!((0..count).map(|n| format!("r{n}")).collect::<Vec<_>>());
    assert_eq!(judge_claims(&with("roles", many(64))).unwrap().roles.len(), 64);
    assert!(judge_claims(&with("roles", json!([]))).unwrap().roles.is_empty());
    assert!(judge_claims(&without("roles")).unwrap().roles.is_empty());
    for bad in [
        many(65),
        json!("calc"),
        json!(null),
        json!({"calc": true}),
        json!([1]),
        json!([null]),
        json!([""]),
        json!(["a b"]),
        json!(["*"]),
        json!(["x".repeat(65)]),
        json!(["calc", ["ops"]]),
    ] {
        refused(judge_claims(&with("roles", bad)), &TokenError::Malformed("roles"));
    }
}

#[test]
fn confirmation_with_anything_that_is_not_compared_is_refused() {
    for bad in [
        json!({}),
        json!(null),
        json!("agent-7f3a.k1"),
        json!({"kid": ""}),
        json!({"kid": "a b"}),
        json!({"kid": "x".repeat(129)}),
        json!({"kid": 1}),
        json!({"jkt": "short"}),
        json!({"jkt": "HlHgCcjrhbeyw80VMef51yPwhyRqjiwLdwSLRqo7hSJ"}),
        json!({"jkt": "HlHgCcjrhbeyw80VMef51yPwhyRqjiwLdwSLRqo7hSI="}),
        json!({"kid": "agent-7f3a.k1", "jwk": {"kty": "OKP"}}),
        json!({"kid": "agent-7f3a.k1", "x5t#S256": "AA"}),
        json!({"kid": "agent-7f3a.k1", "jkt": null}),
    ] {
        refused(judge_claims(&with("cnf", bad)), &TokenError::Malformed("cnf"));
    }
    let mut rules = TokenRules::new("prod/math");
    rules.require_cnf = true;
    let strict = Idp::shared().verifier(rules);
    let unbound = Idp::shared().ed25519(&without("cnf"));
    assert_eq!(judge(&unbound).unwrap().cnf, None);
    refused(verify_at(&strict, &unbound, NOW), &TokenError::NoConfirmation);
    assert!(verify_at(&strict, &Idp::shared().ed25519(&Idp::claims()), NOW).is_ok());
}

#[test]
fn every_member_of_a_confirmation_must_match() {
    let cnf =
        |kid: Option<&str>, jkt: Option<&str>| Confirmation { kid: kid.map(Into::into), jkt: jkt.map(Into::into) };
    assert!(cnf(Some("k1"), None).names("k1", None));
    assert!(cnf(Some("k1"), None).names("k1", Some("t1")));
    assert!(cnf(None, Some("t1")).names("k1", Some("t1")));
    assert!(cnf(Some("k1"), Some("t1")).names("k1", Some("t1")));
    assert!(!cnf(Some("k2"), None).names("k1", Some("t1")));
    assert!(!cnf(None, Some("t2")).names("k1", Some("t1")));
    assert!(!cnf(Some("k1"), Some("t2")).names("k1", Some("t1")));
    assert!(!cnf(Some("k2"), Some("t1")).names("k1", Some("t1")));
    // A symmetric key has no thumbprint.
    assert!(!cnf(None, Some("t1")).names("k1", None));
    assert!(!cnf(Some("k1"), Some("t1")).names("k1", None));
    assert!(!cnf(None, None).names("k1", Some("t1")));
}

#[test]
fn delegation_is_bounded_and_only_its_top_counts() {
    let chain = |depth: usize| {
        (0..depth).rev().fold(Value::Null, |inner, n| match inner {
            Value::Null => json!({"sub": format!("a{n}")}),
            inner => json!({"sub": format!("a{n}"), "act": inner}),
        })
    };
    let token = judge_claims(&with("act", chain(4))).unwrap();
    assert_eq!((token.owner(), token.prior_actors.len()), ("a0", 3));
    refused(judge_claims(&with("act", chain(5))), &TokenError::Delegation);
    refused(judge_claims(&with("act", chain(15))), &TokenError::Delegation);
    for bad in [
        json!(null),
        json!("agent-9"),
        json!([]),
        json!({}),
        json!({"sub": 1}),
        json!({"act": {"sub": "a"}}),
        json!({"sub": "a", "iss": "https://attacker.example"}),
        json!({"sub": "a", "role": "admin"}),
        json!({"sub": "a", "act": null}),
    ] {
        refused(judge_claims(&with("act", bad)), &TokenError::Malformed("act"));
    }
    // What the issuer may later allow is no claim about this call.
    assert_eq!(judge_claims(&with("may_act", json!({"sub": "agent-9"}))).unwrap().owner(), "agent-7f3a");
}

// The time.

#[test]
fn expired_token_is_refused_from_its_last_second_on() {
    let token = Idp::shared().ed25519(&Idp::claims());
    let exp = NOW + 800;
    let mut rules = TokenRules::new("prod/math");
    let default = Idp::shared().verifier(rules.clone());
    assert!(verify_at(&default, &token, exp + 4).is_ok());
    // 59 seconds late passes many a library's default leeway.
    for late in [5, 6, 59, 1_000_000] {
        refused(verify_at(&default, &token, exp + late), &TokenError::Expired);
    }
    rules.leeway_s = 0;
    let exact = Idp::shared().verifier(rules);
    assert!(verify_at(&exact, &token, exp - 1).is_ok());
    refused(verify_at(&exact, &token, exp), &TokenError::Expired);
}

#[test]
fn token_from_the_future_is_refused() {
    let at = |nbf: u64| judge_claims(&with("nbf", json!(nbf)));
    assert!(at(NOW + 5).is_ok());
    refused(at(NOW + 6), &TokenError::NotYetValid);
    refused(at(NOW + 3600), &TokenError::NotYetValid);
    let issued = |iat: u64| {
        let mut claims = with("iat", json!(iat));
        claims["exp"] = json!(iat + 900);
        judge_claims(&claims)
    };
    assert!(issued(NOW + 5).is_ok());
    refused(issued(NOW + 6), &TokenError::IssuedInFuture);
    refused(issued(NOW + 10 * 365 * 86_400), &TokenError::IssuedInFuture);
}

#[test]
fn lifetime_is_positive_and_bounded() {
    let iat = NOW - 100;
    let lasting = |exp: u64| judge_claims(&with("exp", json!(exp)));
    assert!(lasting(iat + 3600).is_ok());
    refused(lasting(iat + 3601), &TokenError::Lifetime(3601));
    refused(lasting(253_402_300_799), &TokenError::Lifetime(i64::try_from(253_402_300_799 - iat).unwrap()));
    refused(lasting(iat), &TokenError::Lifetime(0));
    refused(lasting(iat - 1), &TokenError::Lifetime(-1));
    refused(lasting(0), &TokenError::Lifetime(-i64::try_from(iat).unwrap()));
    refused(lasting((1 << 53) - 1), &TokenError::Lifetime(((1 << 53) - 1) - i64::try_from(iat).unwrap()));
}

#[test]
fn rules_out_of_range_do_not_make_tokens_immortal() {
    let mut rules = TokenRules::new("prod/math");
    rules.leeway_s = u64::MAX;
    rules.max_lifetime_s = u64::MAX;
    let verifier = Idp::shared().verifier(rules);
    assert_eq!((verifier.rules().leeway_s, verifier.rules().max_lifetime_s), (30, 86_400));
    let token = Idp::shared().ed25519(&Idp::claims());
    assert!(verify_at(&verifier, &token, NOW + 829).is_ok());
    refused(verify_at(&verifier, &token, NOW + 830), &TokenError::Expired);
}

// Revocation, with the token verified (so remembered) before.

struct Remembered {
    verifier: TokenVerifier,
    token: String,
}

impl Remembered {
    fn new(claims: &Value) -> Self {
        let this = Self {
            verifier: Idp::shared().verifier(TokenRules::new("prod/math")),
            token: Idp::shared().ed25519(claims),
        };
        assert!(this.at(NOW).is_ok());
        this
    }

    fn at(&self, now_s: u64) -> Verdict {
        verify_at(&self.verifier, &self.token, now_s)
    }
}

#[test]
fn cached_token_is_refused_once_its_id_is_denied() {
    let known = Remembered::new(&Idp::claims());
    known.verifier.replace_denylist(Denylist::default().with_token("t-0001", NOW + 800));
    refused(known.at(NOW), &TokenError::TokenDenied);
    // Inside the leeway after `exp` too: an entry ends when it is removed, not by itself.
    refused(known.at(NOW + 802), &TokenError::TokenDenied);
    known.verifier.replace_denylist(Denylist::default().with_token("t-0002", NOW + 800));
    assert!(known.at(NOW).is_ok());
}

#[test]
fn cached_token_is_refused_once_its_subject_is_denied() {
    let known = Remembered::new(&Idp::claims());
    let iat = NOW - 100;
    known.verifier.replace_denylist(Denylist::default().with_subject("agent-7f3a", iat + 1));
    refused(known.at(NOW), &TokenError::SubjectDenied("agent-7f3a".into()));
    known.verifier.replace_denylist(Denylist::default().with_subject("agent-7f3a", iat));
    assert!(known.at(NOW).is_ok());
}

#[test]
fn cached_token_is_refused_once_its_actor_is_denied() {
    let known = Remembered::new(&with("act", json!({"sub": "agent-9", "act": {"sub": "agent-8"}})));
    known.verifier.replace_denylist(Denylist::default().with_subject("agent-9", NOW));
    refused(known.at(NOW), &TokenError::SubjectDenied("agent-9".into()));
    known.verifier.replace_denylist(Denylist::default().with_subject("agent-7f3a", NOW));
    refused(known.at(NOW), &TokenError::SubjectDenied("agent-7f3a".into()));
    // Nested actors are for the audit only.
    known.verifier.replace_denylist(Denylist::default().with_subject("agent-8", NOW));
    assert!(known.at(NOW).is_ok());
}

#[test]
fn cached_token_is_refused_once_its_key_is_denied_or_gone() {
    let known = Remembered::new(&Idp::claims());
    known.verifier.replace_denylist(Denylist::default().with_key("idp-EdDSA"));
    refused(known.at(NOW), &TokenError::KeyDenied("idp-EdDSA".into()));
    known.verifier.replace_denylist(Denylist::default());
    assert!(known.at(NOW).is_ok());
    known.verifier.replace_keys(TokenIssuer::generate("https://idp.example").unwrap().key_set().unwrap());
    refused(known.at(NOW), &TokenError::UnknownKey("idp-EdDSA".into()));
    // Another key under the old name does not inherit what the old one signed.
    known.verifier.replace_keys(Idp::new().keys());
    refused(known.at(NOW), &TokenError::Signature);
    known.verifier.replace_keys(Idp::shared().keys());
    assert!(known.at(NOW).is_ok());
}

#[test]
fn cached_token_is_judged_by_the_clock_every_time() {
    let known = Remembered::new(&with("nbf", json!(NOW)));
    refused(known.at(NOW + 805), &TokenError::Expired);
    // A clock stepped back makes it a token from the future.
    refused(known.at(NOW - 6), &TokenError::NotYetValid);
    refused(known.at(NOW - 200), &TokenError::NotYetValid);
    assert!(known.at(NOW + 1).is_ok());
}

#[test]
fn deny_lists_are_read_strictly() {
    let parse = |text: &str| Denylist::parse(text, "deny.json");
    let text = r#"{"tokens":[{"jti":"t-1","until":5}],"subjects":[{"sub":"a","before":7},{"sub":"a","before":6}],"keys":["k"]}"#;
    let list = parse(text).unwrap();
    assert_eq!(list, Denylist::default().with_token("t-1", 5).with_subject("a", 7).with_key("k"));
    assert!(list.denies_key("k") && !list.denies_key("K"));
    assert_eq!(parse(&list.to_json()).unwrap(), list);
    assert_eq!(list.clone().without_ended(3604), list);
    assert_eq!(list.without_ended(3605), Denylist::default().with_subject("a", 7).with_key("k"));
    for bad in [
        "",
        "[]",
        r#"{"token":[]}"#,
        r#"{"tokens":[{"jti":"t"}]}"#,
        r#"{"tokens":[{"jti":"t","until":1,"why":"x"}]}"#,
        r#"{"tokens":[{"jti":"t","until":1.5}]}"#,
        r#"{"tokens":["t"]}"#,
        r#"{"subjects":[{"sub":"a"}]}"#,
        r#"{"keys":[1]}"#,
        r#"{"keys":["a"],"keys":[]}"#,
    ] {
        assert!(parse(bad).is_err(), "{bad}");
    }
}

// Looking without trusting, and saying nothing that must not be said.

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
