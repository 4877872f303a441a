//! The grammar of each claim, and the rules that do not depend on time.
//! SPEC.md §7.

use super::*;

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
        let written = |number: &str| judge_text(&with(name, json!("@")).to_string().replace("\"@\"", number));
        for bad in ["1e300", "-1", "-0", "-1.79e9", "9007199254740992", "9007199254740992.0", "18446744073709551616"] {
            refused(written(bad), &TokenError::Malformed(name));
        }
        refused(written("1e999"), &TokenError::ClaimsJson(JsonFault::Number));
        for bad in ["01790000800", "+1790000800", "1790000800.", "NaN"] {
            assert!(matches!(written(bad), Err(TokenError::ClaimsJson(JsonFault::Text(_)))), "{bad}");
        }
    }
}

/// RFC 7519 §2: a date may have a fraction, and JSON writes one number in several ways. Rounded against the bearer.
#[test]
fn a_date_with_fraction_or_exponent_is_the_time_that_it_says() {
    let claims = |name: &str, number: &str| with(name, json!("@")).to_string().replace("\"@\"", number);
    for (name, number, dates) in [
        ("exp", "1790000800.0", (1_789_999_900, 1_790_000_800, None)),
        ("exp", "1790000800.75", (1_789_999_900, 1_790_000_800, None)),
        ("exp", "1.7900008e9", (1_789_999_900, 1_790_000_800, None)),
        ("exp", "17900008E2", (1_789_999_900, 1_790_000_800, None)),
        ("iat", "1789999900.999", (1_789_999_900, 1_790_000_800, None)),
        ("iat", "1.7899999e9", (1_789_999_900, 1_790_000_800, None)),
        ("nbf", "1789999900.0", (1_789_999_900, 1_790_000_800, Some(1_789_999_900))),
        ("nbf", "1789999900.001", (1_789_999_900, 1_790_000_800, Some(1_789_999_901))),
    ] {
        let token = judge_text(&claims(name, number)).unwrap();
        assert_eq!((token.issued_at, token.expires_at, token.not_before), dates, "{name} {number}");
    }
    let header = Idp::header(TokenAlgorithm::EdDsa).to_string();
    let token = Idp::shared().sign_text(TokenAlgorithm::EdDsa, &header, &claims("exp", "1790000800.75"));
    let verifier = Idp::shared().verifier(TokenRules::new("prod/math"));
    assert!(verify_at(&verifier, &token, 1_790_000_804).is_ok());
    refused(verify_at(&verifier, &token, 1_790_000_805), &TokenError::Expired);
    // A life of an hour, begun in the middle of a second.
    let hour = with("iat", json!(1_789_999_900.5)).to_string().replace("1790000800", "1790003500.5");
    assert!(judge_text(&hour).is_ok(), "{hour}");
    for (iat, exp, life) in [
        ("1789999900.25", "1790003500.251", Err(3_601)),
        ("1789999900.0", "1790003500.9", Err(3_601)),
        ("1789999900.9", "1790003500.95", Err(3_601)),
        ("1789999900.123456", "1790003500.1234562", Ok(())),
        ("1789999900.5", "1789999900.5", Err(0)),
        ("1789999900.5", "1789999900.25", Err(0)),
        ("1789999900.5", "1789999899.25", Err(-1)),
    ] {
        let text = with("iat", json!("@")).to_string().replace("\"@\"", iat).replace("1790000800", exp);
        match life {
            Ok(()) => drop(judge_text(&text).unwrap()),
            Err(life) => refused(judge_text(&text), &TokenError::Lifetime(life)),
        }
    }
    let token = Idp::shared().sign_text(TokenAlgorithm::EdDsa, &header, &claims("iat", "1789999905.25"));
    refused(verify_at(&verifier, &token, 1_789_999_900), &TokenError::IssuedInFuture);
    assert!(verify_at(&verifier, &token, 1_789_999_901).is_ok());
}

/// Issuers write claims of their own as they like.
#[test]
fn numbers_of_other_claims_are_no_reason_to_refuse_a_token() {
    for number in
        ["0.5", "-1", "1e3", "-0", "12345678901234567890", "9007199254740993", "1e-7", "123456789012345678901234567890"]
    {
        for place in [format!("{{\"x\":{number}}}"), format!("[{number}]"), number.to_owned()] {
            let claims = with("x", json!("@")).to_string().replace("\"@\"", &place);
            assert!(judge_text(&claims).is_ok(), "{place}");
        }
    }
}

/// As clients of RFC 8707 and RFC 9728 ask for it, and issuers copy it.
#[test]
fn the_address_of_a_resource_is_an_audience_however_it_is_written() {
    let verifier = Idp::shared().verifier(TokenRules::new("https://Gateway.example"));
    let judge = |aud: Value| verify_at(&verifier, &Idp::shared().ed25519(&with("aud", aud)), NOW);
    for good in [
        json!("https://gateway.example"),
        json!("https://gateway.example/"),
        json!("https://GATEWAY.EXAMPLE:443/"),
        json!(["urn:other", "https://gateway.example:443"]),
    ] {
        assert!(judge(good.clone()).is_ok(), "{good}");
    }
    for other in [
        "https://gateway.example/mcp",
        "http://gateway.example",
        "https://gateway.example:8443",
        "https://gateway.example/#",
        "gateway.example",
    ] {
        refused(judge(json!(other)), &TokenError::Audience);
        refused(judge(json!([other])), &TokenError::Audience);
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
    let keys = sealwire::internal::auth::KeySet::merge([one.key_set().unwrap(), two.keys()]).unwrap();
    let verifier = TokenVerifier::new(TokenRules::new("prod/math"), keys);
    let token = one.issue(&IssueRequest::new("planner", "prod/math", NOW)).unwrap();
    assert_eq!(verify_at(&verifier, &token, NOW).unwrap().issuer, "https://one.example");
    assert!(verify_at(&verifier, &two.ed25519(&Idp::claims()), NOW).is_ok());
    let crossed = two.ed25519(&with("iss", json!("https://one.example")));
    refused(verify_at(&verifier, &crossed, NOW), &TokenError::UnknownKey("idp-EdDSA".into()));

    // Nor does it help to publish a key under the `kid` of another issuer's key, or to publish that very key.
    let (alice, bob) = (Idp::new(), Idp::new());
    let set = |idp: &Idp, issuer: &str| {
        let keys = json!({"keys": [idp.jwk(TokenAlgorithm::EdDsa)]}).to_string();
        sealwire::internal::auth::KeySet::from_jwks(&keys, issuer, "test", Symmetric::Refused).unwrap()
    };
    let keys = [set(&alice, "https://idp.example"), set(&bob, "https://two.example")];
    let verifier =
        TokenVerifier::new(TokenRules::new("prod/math"), sealwire::internal::auth::KeySet::merge(keys).unwrap());
    assert!(verify_at(&verifier, &alice.ed25519(&Idp::claims()), NOW).is_ok());
    refused(verify_at(&verifier, &bob.ed25519(&Idp::claims()), NOW), &TokenError::Signature);
    let keys = [set(&alice, "https://idp.example"), set(&alice, "https://two.example")];
    let verifier =
        TokenVerifier::new(TokenRules::new("prod/math"), sealwire::internal::auth::KeySet::merge(keys).unwrap());
    assert_eq!(verify_at(&verifier, &alice.ed25519(&Idp::claims()), NOW).unwrap().issuer, "https://idp.example");
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
    // `may_act` says what the issuer may allow later, not what this call is.
    assert_eq!(judge_claims(&with("may_act", json!({"sub": "agent-9"}))).unwrap().owner(), "agent-7f3a");
}

/// Agent and subject together always tell whether a call is delegated.
#[test]
fn nobody_acts_on_behalf_of_a_namesake() {
    let own = judge_claims(&with("sub", json!("agent-7f3a"))).unwrap();
    assert_eq!((own.owner(), own.actor.as_deref()), ("agent-7f3a", None));
    let mut claims = with("act", json!({"sub": "agent-7f3a"}));
    assert_eq!(claims["sub"], "agent-7f3a");
    refused(judge_claims(&claims), &TokenError::SelfDelegation);
    claims["sub"] = json!("user-42");
    assert_eq!(judge_claims(&claims).unwrap().actor.as_deref(), Some("agent-7f3a"));
    // Names are compared as they are, and earlier actors do not act.
    for (subject, act) in
        [("Agent-7f3a", json!({"sub": "agent-7f3a"})), ("user-42", json!({"sub": "a", "act": {"sub": "user-42"}}))]
    {
        claims["sub"] = json!(subject);
        claims["act"] = act;
        assert!(judge_claims(&claims).is_ok(), "{claims}");
    }
}
