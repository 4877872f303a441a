//! One key, one algorithm: whatever the header says, the key's record decides.
//! SPEC.md §7.

use super::*;

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
    // The attacker's favourite: the public RSA key, known to all, as an HMAC secret.
    let header = json!({"alg": "HS256", "kid": "idp-RS256", "typ": "at+jwt"}).to_string();
    for secret in idp.rsa_public_forms() {
        let forged = idp.sign_hmac(&secret, &header, &Idp::claims().to_string());
        refused(judge(&forged), &TokenError::Algorithm { expected: TokenAlgorithm::Rs256, found: "HS256".into() });
    }
    // An RSA key is for one padding.
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
        let keys = sealwire::internal::auth::KeySet::from_jwks(&text, "https://idp.example", "text", Symmetric::Refused);
        prop_assert!(keys.is_err());
    }
}
