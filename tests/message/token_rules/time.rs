//! Expiry, tokens from the future, lifetimes, and revocation of tokens that were verified before and therefore cached.
//! SPEC.md §7.

use super::*;

#[test]
fn expired_token_is_refused_from_its_last_second_on() {
    let token = Idp::shared().ed25519(&Idp::claims());
    let exp = NOW + 800;
    let mut rules = TokenRules::new("prod/math");
    let default = Idp::shared().verifier(rules.clone());
    assert!(verify_at(&default, &token, exp + 4).is_ok());
    // Many libraries accept a token that is 59 seconds late by default.
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
    // Also within the leeway after `exp`: an entry lasts until it is removed, and does not expire.
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
    // Another key under the old `kid` does not inherit what the old key signed.
    known.verifier.replace_keys(Idp::new().keys());
    refused(known.at(NOW), &TokenError::Signature);
    known.verifier.replace_keys(Idp::shared().keys());
    assert!(known.at(NOW).is_ok());
}

#[test]
fn cached_token_is_judged_by_the_clock_every_time() {
    let known = Remembered::new(&with("nbf", json!(NOW)));
    refused(known.at(NOW + 805), &TokenError::Expired);
    // If the clock is stepped back, the token comes from the future.
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
