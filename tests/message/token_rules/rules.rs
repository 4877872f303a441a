//! What can be configured for an issuer, how its tokens are then read, and whom it may vouch for.
//! SPEC.md §7.

use sealwire::internal::auth::{
    AgentRules, Bounds, HeaderMember, IssuerRules, RoleRules, TokenId, TokenType, TokenVerifier,
};
use serde::de::DeserializeOwned;

use super::*;

/// What a configuration file would say.
fn read<T: DeserializeOwned>(written: Value) -> T {
    serde_json::from_value(written).unwrap()
}

fn verifier(change: impl FnOnce(&mut IssuerRules)) -> TokenVerifier {
    let mut own = IssuerRules::default();
    change(&mut own);
    let mut rules = TokenRules::new("prod/math");
    rules.issuers.insert("https://idp.example".to_owned(), own);
    Idp::shared().verifier(rules)
}

fn judge_by(change: impl FnOnce(&mut IssuerRules), claims: &Value) -> Verdict {
    verify_at(&verifier(change), &Idp::shared().ed25519(claims), NOW)
}

fn beyond(what: &'static str, text: &str) -> TokenError {
    TokenError::Bounds { what, text: text.into() }
}

#[test]
fn an_issuer_that_goes_beyond_its_bounds_is_refused() {
    let bounds = || {
        read::<Bounds>(json!({"agents": ["agent-7*", "worker"], "roles": ["calc", "ops:*"], "subjects": ["user-*"]}))
    };
    let judge = |claims: &Value| judge_by(|own| own.may = Some(bounds()), claims);
    assert!(judge(&Idp::claims()).is_ok());
    assert!(judge(&with("roles", json!(["ops:read", "calc"]))).is_ok());
    assert!(judge(&without("roles")).is_ok());
    refused(judge(&with("roles", json!(["calc", "admin"]))), &beyond("role", "admin"));
    refused(judge(&with("sub", json!("agent-8"))), &beyond("agent", "agent-8"));
    let delegated = |sub: &str, act: &str| {
        let mut claims = with("act", json!({ "sub": act }));
        claims["sub"] = json!(sub);
        judge(&claims)
    };
    assert!(delegated("user-42", "worker").is_ok());
    refused(delegated("root", "worker"), &beyond("subject", "root"));
    refused(delegated("user-42", "planner"), &beyond("agent", "planner"));
    // An agent is not a user on whose behalf another agent may act.
    refused(delegated("agent-7f3a", "worker"), &beyond("subject", "agent-7f3a"));
    // What is not listed is not allowed.
    let nothing = judge_by(|own| own.may = Some(Bounds::default()), &Idp::claims());
    refused(nothing, &beyond("agent", "agent-7f3a"));
    let no_roles = judge_by(|own| own.may = Some(read(json!({"agents": ["*"]}))), &Idp::claims());
    refused(no_roles, &beyond("role", "calc"));
}

#[test]
fn bounds_of_one_issuer_are_not_those_of_another() {
    let (mut rules, one) = (TokenRules::new("prod/math"), TokenIssuer::generate("https://one.example").unwrap());
    let mut own = IssuerRules::default();
    own.may = Some(read(json!({"agents": ["planner"]})));
    rules.issuers.insert("https://one.example".to_owned(), own);
    let keys = sealwire::internal::auth::KeySet::merge([one.key_set().unwrap(), Idp::shared().keys()]).unwrap();
    let verifier = TokenVerifier::new(rules, keys);
    let token = |agent: &str| one.issue(&IssueRequest::new(agent, "prod/math", NOW)).unwrap();
    assert!(verify_at(&verifier, &token("planner"), NOW).is_ok());
    refused(verify_at(&verifier, &token("agent-7f3a"), NOW), &beyond("agent", "agent-7f3a"));
    assert!(verify_at(&verifier, &Idp::shared().ed25519(&Idp::claims()), NOW).is_ok());
}

#[test]
fn header_is_as_the_issuer_is_allowed_to_write_it() {
    let token = |header: Value| Idp::shared().sign(TokenAlgorithm::EdDsa, &header, &Idp::claims());
    let of = |more: &[(&str, Value)]| {
        let mut header = json!({"alg": "EdDSA", "kid": "idp-EdDSA"});
        for (name, value) in more {
            header[*name] = value.clone();
        }
        token(header)
    };
    let lenient = verifier(|own| {
        own.typ = Some(vec![TokenType::Jwt, TokenType::Absent]);
        own.header = vec![HeaderMember::X5t];
    });
    assert!(verify_at(&lenient, &of(&[("typ", json!("JWT")), ("x5t", json!("AA"))]), NOW).is_ok());
    assert!(verify_at(&lenient, &of(&[]), NOW).is_ok());
    // A list is complete: the defaults are not added to it.
    refused(verify_at(&lenient, &of(&[("typ", json!("at+jwt"))]), NOW), &TokenError::Typ("at+jwt".into()));
    refused(verify_at(&lenient, &of(&[("typ", json!("JOSE"))]), NOW), &TokenError::Typ("JOSE".into()));
    refused(verify_at(&lenient, &of(&[("x5t#S256", json!("AA"))]), NOW), &TokenError::HeaderMember("x5t#S256".into()));
    for never in ["jku", "jwk", "x5c", "x5u", "crit", "cty", "nonce"] {
        refused(verify_at(&lenient, &of(&[(never, json!("AA"))]), NOW), &TokenError::HeaderMember(never.into()));
        assert!(serde_json::from_value::<HeaderMember>(json!(never)).is_err(), "{never}");
    }
    let usual = verifier(|_| {});
    refused(verify_at(&usual, &of(&[]), NOW), &TokenError::HeaderText("typ"));
    refused(
        verify_at(&usual, &of(&[("typ", json!("at+jwt")), ("x5t", json!("AA"))]), NOW),
        &TokenError::HeaderMember("x5t".into()),
    );
}

#[test]
fn roles_come_from_where_the_issuer_writes_them() {
    let roles = |rules: Value, claims: &Value| {
        let verdict = judge_by(|own| own.roles = read::<RoleRules>(rules), claims)?;
        Ok::<_, TokenError>(verdict.roles.iter().cloned().collect::<Vec<_>>().join(" "))
    };
    let nested = with("realm_access", json!({"roles": ["calc", "ops"]}));
    assert_eq!(roles(json!({"claim": "realm_access.roles"}), &nested).unwrap(), "calc ops");
    assert_eq!(roles(json!({"claim": ["realm_access", "roles"]}), &nested).unwrap(), "calc ops");
    assert_eq!(roles(json!({"claim": "resource_access.a.roles"}), &nested).unwrap(), "", "nothing there");
    let namespaced = with("https://example.com/roles", json!(["calc"]));
    assert_eq!(roles(json!({"claim": ["https://example.com/roles"]}), &namespaced).unwrap(), "calc");
    let scope = with("scope", json!("openid  calc ops"));
    assert_eq!(roles(json!({"claim": "scope", "format": "words"}), &scope).unwrap(), "calc openid ops");
    // A string is a list of words only where the operator says so: a group `guest admin` must not make an admin.
    assert_eq!(roles(json!({"claim": "scope"}), &scope), Err(TokenError::Malformed("roles")));
    assert_eq!(roles(json!({"claim": "realm_access"}), &nested), Err(TokenError::Malformed("roles")));
    let text = with("realm_access", json!("roles"));
    assert_eq!(roles(json!({"claim": "realm_access.roles"}), &text), Err(TokenError::Malformed("roles")));

    let mixed = with("roles", json!(["sw:calc", "sw:ops", "other", "guest admin", "admin"]));
    assert_eq!(roles(json!({"prefix": "sw:"}), &mixed).unwrap(), "calc ops");
    assert_eq!(roles(json!({"prefix": "sw:", "map": {"calc": "math"}}), &mixed).unwrap(), "math");
    assert_eq!(roles(json!({"map": {"guest admin": "guest"}}), &mixed).unwrap(), "guest");
    assert_eq!(roles(json!({}), &mixed), Err(TokenError::Malformed("roles")), "`guest admin` is no role");
    let empty = with("roles", json!(["sw:"]));
    assert_eq!(roles(json!({"prefix": "sw:"}), &empty), Err(TokenError::Malformed("roles")));
    let many = with("roles", json!((0..65).map(|n| format!("sw:{n}")).collect::<Vec<_>>()));
    assert_eq!(roles(json!({"prefix": "sw:"}), &many), Err(TokenError::Malformed("roles")));
}

#[test]
fn a_token_is_the_agents_own_only_where_the_issuer_says_so() {
    let judge = |rules: Value, claims: &Value| judge_by(|own| own.agent = Some(read::<AgentRules>(rules)), claims);
    let rules = || json!({"claim": "azp", "own": {"sub": "{value}@clients"}});
    let mut claims = with("azp", json!("planner"));
    claims["sub"] = json!("planner@clients");
    let own = judge(rules(), &claims).unwrap();
    assert_eq!((own.owner(), own.subject.as_str(), own.actor.as_deref()), ("planner", "planner", None));
    assert_eq!(own.claims["sub"], "planner@clients");

    claims["sub"] = json!("user-42");
    let delegated = judge(rules(), &claims).unwrap();
    assert_eq!((delegated.owner(), delegated.subject.as_str()), ("planner", "user-42"));
    assert_eq!(delegated.actor.as_deref(), Some("planner"));
    // A user of the agent's name is somebody else, and is not taken for the agent.
    claims["sub"] = json!("planner");
    refused(judge(rules(), &claims), &TokenError::SelfDelegation);
    // Without `own`, every token may be a user's.
    claims["sub"] = json!("planner@clients");
    assert_eq!(judge(json!({"claim": "azp"}), &claims).unwrap().actor.as_deref(), Some("planner"));
    let two = json!({"claim": "azp", "own": {"sub": "{value}@clients", "gty": "client-credentials"}});
    assert_eq!(judge(two.clone(), &claims).unwrap().actor.as_deref(), Some("planner"));
    claims["gty"] = json!("client-credentials");
    assert_eq!(judge(two, &claims).unwrap().actor, None);

    let mapped = || json!({"claim": "azp", "map": {"planner": "agent-9"}, "own": {"sub": "{value}@clients"}});
    assert_eq!(judge(mapped(), &claims).unwrap().owner(), "agent-9");
    claims["azp"] = json!("worker");
    refused(judge(mapped(), &claims), &TokenError::Agent);
    for nobody in [json!(null), json!(7), json!(["planner"]), json!(""), json!("a b")] {
        claims["azp"] = nobody;
        refused(judge(rules(), &claims), &TokenError::Agent);
    }
    let spiffe = || json!({"claim": "sub", "prefix": "spiffe://example.org/agent/"});
    claims["sub"] = json!("spiffe://example.org/agent/planner");
    assert_eq!(judge(spiffe(), &claims).unwrap().owner(), "planner");
    claims["sub"] = json!("spiffe://elsewhere/agent/planner");
    refused(judge(spiffe(), &claims), &TokenError::Agent);

    let mut both = with("azp", json!("planner"));
    both["act"] = json!({"sub": "worker"});
    refused(judge(rules(), &both), &TokenError::Malformed("act"));
}

#[test]
fn a_revoked_subject_is_revoked_under_either_of_its_names() {
    let rules = || read::<AgentRules>(json!({"claim": "azp", "own": {"sub": "{value}@clients"}}));
    let mut claims = with("azp", json!("planner"));
    claims["sub"] = json!("planner@clients");
    for name in ["planner", "planner@clients"] {
        let verifier = verifier(|own| own.agent = Some(rules()));
        let token = Idp::shared().ed25519(&claims);
        assert!(verify_at(&verifier, &token, NOW).is_ok());
        verifier.replace_denylist(Denylist::default().with_subject(name, NOW));
        refused(verify_at(&verifier, &token, NOW), &TokenError::SubjectDenied(name.into()));
    }
}

#[test]
fn tokens_without_a_jti_are_told_apart_by_another_claim_or_their_digest() {
    let mut claims = without("jti");
    claims["uti"] = json!("u-1");
    refused(judge_claims(&claims), &TokenError::Missing("jti"));
    assert_eq!(judge_by(|own| own.id = read(json!("uti")), &claims).unwrap().id, "u-1");
    refused(judge_by(|own| own.id = read(json!("rh")), &claims), &TokenError::Missing("jti"));
    claims["uti"] = json!(7);
    refused(judge_by(|own| own.id = read(json!("uti")), &claims), &TokenError::Malformed("jti"));

    let verifier = verifier(|own| own.id = read::<TokenId>(json!("digest")));
    let token = Idp::shared().sign(TokenAlgorithm::Es256, &Idp::header(TokenAlgorithm::Es256), &without("jti"));
    let (signed, _) = token.rsplit_once('.').unwrap();
    let id = b64(Sha256::digest(signed));
    assert_eq!(verify_at(&verifier, &token, NOW).unwrap().id, id);
    assert_eq!(decode_untrusted(&token).unwrap().digest, id, "what `token revoke --token` writes");
    // Another signature over the same claims is the same token, and stays revoked.
    let again = Idp::shared().sign(TokenAlgorithm::Es256, &Idp::header(TokenAlgorithm::Es256), &without("jti"));
    assert_ne!(again, token);
    verifier.replace_denylist(Denylist::default().with_token(id, NOW + 1000));
    refused(verify_at(&verifier, &token, NOW), &TokenError::TokenDenied);
    refused(verify_at(&verifier, &again, NOW), &TokenError::TokenDenied);
    // A token is revoked by its `jti` even where its issuer's tokens have another id, and by its digest everywhere.
    let numbered = Idp::shared().ed25519(&Idp::claims());
    for (id, name) in
        [(json!("digest"), "t-0001"), (json!("jti"), decode_untrusted(&numbered).unwrap().digest.as_str())]
    {
        let verifier = self::verifier(|own| own.id = read(id));
        assert!(verify_at(&verifier, &numbered, NOW).is_ok());
        verifier.replace_denylist(Denylist::default().with_token(name, NOW + 1000));
        refused(verify_at(&verifier, &numbered, NOW), &TokenError::TokenDenied);
    }
}

#[test]
fn required_claims_audience_and_life_are_the_issuers_own() {
    let require = |own: &mut IssuerRules| own.require = read(json!({"typ": "Bearer", "a.b": "c"}));
    let mut claims = with("typ", json!("Bearer"));
    refused(judge_by(require, &claims), &TokenError::Required("a.b".into()));
    claims["a"] = json!({"b": "c"});
    assert!(judge_by(require, &claims).is_ok());
    for other in [json!("ID"), json!(["Bearer"]), json!(null)] {
        claims["typ"] = other;
        refused(judge_by(require, &claims), &TokenError::Required("typ".into()));
    }
    let audience = |own: &mut IssuerRules| own.audience = Some("api://math".into());
    refused(judge_by(audience, &Idp::claims()), &TokenError::Audience);
    assert!(judge_by(audience, &with("aud", json!("api://math"))).is_ok());
    let mut long = with("exp", json!(NOW + 5000));
    long["iat"] = json!(NOW);
    refused(judge_claims(&long), &TokenError::Lifetime(5000));
    assert!(judge_by(|own| own.max_lifetime_s = Some(5000), &long).is_ok());
    refused(judge_by(|own| own.max_lifetime_s = Some(60), &Idp::claims()), &TokenError::Lifetime(900));
    // No issuer's tokens live longer than a day.
    long["exp"] = json!(NOW + 86_401);
    refused(judge_by(|own| own.max_lifetime_s = Some(u64::MAX), &long), &TokenError::Lifetime(86_401));
}
