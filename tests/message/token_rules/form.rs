//! The text of a token and its header: three parts, three members, nothing else.
//! SPEC.md §7.

use super::*;

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
    // A signature of 64 bytes leaves four unused bits in the last character; setting them gives the same signature another text.
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
    for bad in ["", "a b", "'OR(1=1)", "a\"b", "a`b", "a\\b", "a\n", "é", &"k".repeat(129)] {
        refused(judge(&token(json!(bad))), &TokenError::KeyId(bad.into()));
    }
    for unknown in ["idp-2", "IDP-EdDSA", "../../dev/null", "https://attacker.example/k", &"k".repeat(128)] {
        refused(judge(&token(json!(unknown))), &TokenError::UnknownKey(unknown.into()));
    }
    refused(judge(&token(json!(1))), &TokenError::HeaderText("kid"));
}
