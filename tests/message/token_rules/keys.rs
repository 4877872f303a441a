//! Which keys are left out of a set, and which invalidate the whole set. Each bad key is tested beside a good one.

use sealwire::errors::{KeyFault, KeySetError, TextFault};
use sealwire::internal::auth::{FileError, JsonFault, KeyRules, KeySet, Symmetric, TokenAlgorithm};
use sealwire::internal::rpc::Flaw;
use serde_json::{Value, json};

use sealwire_testkit::idp::{Idp, b64};

fn load(keys: &[Value]) -> Result<KeySet, KeySetError> {
    load_text(&json!({ "keys": keys }).to_string())
}

fn load_text(text: &str) -> Result<KeySet, KeySetError> {
    KeySet::from_jwks(text, "https://idp.example", "idp.jwks.json", Symmetric::Refused)
}

fn good_beside(jwk: &Value) -> Value {
    Idp::shared().jwk(if jwk["alg"] == "EdDSA" { TokenAlgorithm::Es256 } else { TokenAlgorithm::EdDsa })
}

/// Why `jwk` is left out, while the good key beside it stays.
#[track_caller]
fn left_out(jwk: Value) -> KeyFault {
    left_out_by(jwk, &KeyRules::new("https://idp.example"))
}

#[track_caller]
fn left_out_by(jwk: Value, rules: &KeyRules) -> KeyFault {
    let good = good_beside(&jwk);
    let set = match KeySet::read(&json!({"keys": [good, jwk]}).to_string(), "idp", rules) {
        Ok(set) => set,
        Err(error) => panic!("{error}"),
    };
    assert_eq!(set.keys().map(|(kid, ..)| kid).collect::<Vec<_>>(), [good["kid"].as_str().unwrap()]);
    let mut faults: Vec<_> = set.left_out().map(|key| key.fault.clone()).collect();
    assert_eq!(faults.len(), 1);
    faults.remove(0)
}

/// Why `jwk` is so dangerous that even the good key beside it is refused.
#[track_caller]
fn fault(jwk: Value) -> KeyFault {
    let good = good_beside(&jwk);
    match load(&[good, jwk]) {
        Err(KeySetError::Key { fault, .. }) => fault,
        other => panic!("{other:?}"),
    }
}

fn ed25519() -> Value {
    Idp::shared().jwk(TokenAlgorithm::EdDsa)
}

/// The key with members changed; `null` removes a member.
fn changed(algorithm: TokenAlgorithm, changes: &Value) -> Value {
    let mut jwk = Idp::shared().jwk(algorithm);
    for (name, value) in changes.as_object().unwrap() {
        match value {
            Value::Null => drop(jwk.as_object_mut().unwrap().remove(name)),
            value => jwk[name] = value.clone(),
        }
    }
    jwk
}

#[test]
fn good_set_is_loaded_with_what_it_says_about_itself() {
    let set = Idp::shared().keys();
    let mut listed: Vec<_> = set.keys().collect();
    listed.sort_unstable_by_key(|(kid, ..)| *kid);
    assert_eq!(set.len(), 4);
    assert_eq!(listed[0], ("idp-ES256", TokenAlgorithm::Es256, "https://idp.example"));
    // RFC 7517 §4 and §5: members that are not understood are ignored.
    let extended =
        changed(TokenAlgorithm::EdDsa, &json!({"x5c": ["AA"], "ext": true, "use": null, "key_ops": ["verify"]}));
    assert!(load_text(&json!({"keys": [extended], "updated": 1}).to_string()).is_ok());
    assert!(load(&[changed(TokenAlgorithm::Es256, &json!({"key_ops": ["sign", "verify"]}))]).is_ok());
}

/// SPEC.md §16.
#[test]
fn duplicate_kid_is_refused_in_one_set_and_is_two_keys_over_issuers() {
    let double = changed(TokenAlgorithm::Es256, &json!({"kid": "idp-EdDSA"}));
    assert!(
        matches!(load(&[ed25519(), double.clone()]), Err(KeySetError::DuplicateKid { kid, .. }) if kid == "idp-EdDSA")
    );
    let text = json!({"keys": [double.clone()]}).to_string();
    let other = KeySet::from_jwks(&text, "https://two.example", "two", Symmetric::Refused).unwrap();
    assert_eq!(KeySet::merge([load(&[ed25519()]).unwrap(), other]).unwrap().len(), 2);
    // Two files of one issuer are one set.
    let same = load(&[double]).unwrap();
    assert!(matches!(KeySet::merge([load(&[ed25519()]).unwrap(), same]), Err(KeySetError::DuplicateKid { .. })));
    // A key for another purpose does not occupy its `kid`; any other that is left out does, whichever of the two comes first.
    for purpose in [json!({"use": "enc"}), json!({"key_ops": ["wrapKey"]})] {
        let mut encrypts = changed(TokenAlgorithm::Rs256, &purpose);
        encrypts["kid"] = json!("idp-EdDSA");
        assert_eq!(load(&[ed25519(), encrypts.clone()]).unwrap().len(), 1);
        assert_eq!(load(&[encrypts.clone(), ed25519(), encrypts]).unwrap().len(), 1);
    }
    let secret = |k: &str| json!({"kty": "oct", "alg": "HS256", "use": "sig", "kid": "a", "k": k});
    let two = [secret(&b64([7; 32])), secret(&format!("{}B", &b64([8; 32])[..42]))];
    let two = KeySet::from_jwks(&json!({ "keys": two }).to_string(), "https://idp.example", "idp", Symmetric::Allowed);
    assert!(matches!(two, Err(KeySetError::DuplicateKid { .. })), "the second is not canonical: {two:?}");
    for unused in [
        json!({"kty": "EC", "crv": "P-521", "x": "AA", "y": "AA"}),
        json!({"kty": "AKP", "alg": "ML-DSA-44", "pub": "AA"}),
        json!({"kty": "RSA", "n": "AA", "e": "AQAB"}),
        json!({"kty": "EC", "crv": "P-256", "alg": "ES384", "x": "AA", "y": "AA"}),
        json!({"kty": "OKP", "crv": "Ed25519", "x": "AA"}),
    ] {
        let mut unused = unused;
        unused["kid"] = json!("idp-EdDSA");
        for set in [[ed25519(), unused.clone()], [unused.clone(), ed25519()], [unused.clone(), unused.clone()]] {
            assert!(matches!(load(&set), Err(KeySetError::DuplicateKid { kid, .. }) if kid == "idp-EdDSA"), "{unused}");
        }
    }
}

/// As serializers write a member that is not there.
#[test]
fn a_member_that_is_null_is_one_that_is_missing() {
    let nulls = |algorithm, names: &[&str]| {
        let mut jwk = Idp::shared().jwk(algorithm);
        names.iter().for_each(|name| jwk[*name] = Value::Null);
        jwk
    };
    let optional =
        ["use", "key_ops", "x5c", "x5t", "x5t#S256", "x5u", "oth", "d", "p", "q", "dp", "dq", "qi", "k", "exp"];
    for algorithm in [TokenAlgorithm::EdDsa, TokenAlgorithm::Es256, TokenAlgorithm::Rs256] {
        assert_eq!(load(&[nulls(algorithm, &optional)]).unwrap().len(), 1, "{algorithm}");
    }
    for algorithm in [TokenAlgorithm::EdDsa, TokenAlgorithm::Es256] {
        assert_eq!(load(&[nulls(algorithm, &["alg"])]).unwrap().len(), 1, "{algorithm}");
    }
    assert_eq!(left_out(nulls(TokenAlgorithm::Rs256, &["alg"])), KeyFault::NoAlgorithm);
    assert_eq!(left_out(nulls(TokenAlgorithm::Es256, &["kid"])), KeyFault::KeyId);
    assert_eq!(left_out(nulls(TokenAlgorithm::Es256, &["kty"])), KeyFault::Type(TokenAlgorithm::Es256));
    assert_eq!(left_out(nulls(TokenAlgorithm::Es256, &["x"])), KeyFault::Member("x"));
    // Not a member of ours, and not a number of ours: neither is looked at.
    let dated = changed(TokenAlgorithm::EdDsa, &json!({"exp": 1.79e9, "nbf": -1.5, "ext": {"a": null}}));
    assert_eq!(load(&[dated, Value::Null]).unwrap().len(), 1);
}

#[test]
fn one_key_under_two_names_is_refused() {
    let second = changed(TokenAlgorithm::Rs256, &json!({"kid": "other", "alg": "PS256"}));
    let first = Idp::shared().jwk(TokenAlgorithm::Rs256);
    assert!(matches!(load(&[first.clone(), second]), Err(KeySetError::SameKey { .. })));
    // Another exponent does not make another key: factoring the modulus breaks both.
    let second = changed(TokenAlgorithm::Rs256, &json!({"kid": "other", "e": "AQAD"}));
    assert!(matches!(load(&[first, second]), Err(KeySetError::SameKey { .. })));
    let renamed = load(&[changed(TokenAlgorithm::EdDsa, &json!({"kid": "other"}))]).unwrap();
    assert!(matches!(KeySet::merge([load(&[ed25519()]).unwrap(), renamed]), Err(KeySetError::SameKey { .. })));
}

/// SPEC.md §16: the token must not choose.
#[test]
fn one_key_for_two_algorithms_is_left_out_unless_one_is_pinned_and_the_others_go_on() {
    let [first, second] =
        ["RS256", "PS256"].map(|alg| changed(TokenAlgorithm::Rs256, &json!({ "alg": alg, "kid": "both" })));
    for pair in [[first.clone(), second.clone(), ed25519()], [second.clone(), ed25519(), first.clone()]] {
        let set = load(&pair).unwrap();
        assert_eq!(set.keys().map(|(_, algorithm, _)| algorithm).collect::<Vec<_>>(), [TokenAlgorithm::EdDsa]);
        let left: Vec<_> = set.left_out().map(|left| (left.key.as_str(), &left.fault)).collect();
        assert_eq!(left, [("both", &KeyFault::Algorithms)]);
    }
    let alone = load(&[first.clone(), second.clone()]).unwrap_err();
    assert!(alone.to_string().contains("pin one of them with `algorithm`"), "{alone}");
    for pinned in [TokenAlgorithm::Rs256, TokenAlgorithm::Ps256] {
        let mut rules = KeyRules::new("https://idp.example");
        rules.algorithm = Some(pinned);
        let set = KeySet::read(&json!({ "keys": [first, second] }).to_string(), "idp", &rules).unwrap();
        assert_eq!(set.keys().map(|(kid, algorithm, _)| (kid, algorithm)).collect::<Vec<_>>(), [("both", pinned)]);
    }
    // Two keys of one name are what they were.
    let other = changed(TokenAlgorithm::Es256, &json!({ "kid": "both" }));
    assert!(matches!(load(&[first, other]), Err(KeySetError::DuplicateKid { .. })));
}

#[test]
fn key_without_its_one_algorithm_is_left_out() {
    assert_eq!(left_out(changed(TokenAlgorithm::Rs256, &json!({"alg": null}))), KeyFault::NoAlgorithm);
    assert_eq!(left_out(json!({"kty": "EC", "crv": "P-521", "kid": "a", "x": "AA", "y": "AA"})), KeyFault::Kind);
    assert_eq!(left_out(json!({"kty": "AKP", "kid": "a", "pub": "AA"})), KeyFault::Kind);
    for alg in ["none", "RS384", "ES384", "HS512", "Ed25519", "eddsa", "RSA-OAEP", ""] {
        assert_eq!(left_out(changed(TokenAlgorithm::Rs256, &json!({"alg": alg}))), KeyFault::Algorithm);
    }
    assert_eq!(left_out(changed(TokenAlgorithm::Rs256, &json!({"alg": ["RS256"]}))), KeyFault::Algorithm);
    for (of, alg, expected) in [
        (TokenAlgorithm::Es256, "RS256", TokenAlgorithm::Rs256),
        (TokenAlgorithm::Rs256, "ES256", TokenAlgorithm::Es256),
        (TokenAlgorithm::Rs256, "HS256", TokenAlgorithm::Hs256),
        (TokenAlgorithm::Es256, "HS256", TokenAlgorithm::Hs256),
    ] {
        assert_eq!(left_out(changed(of, &json!({"alg": alg}))), KeyFault::Type(expected));
    }
    let mislabelled = changed(TokenAlgorithm::EdDsa, &json!({"alg": "ES256"}));
    assert_eq!(left_out(mislabelled), KeyFault::Type(TokenAlgorithm::Es256));
}

#[test]
fn wrong_curve_is_left_out() {
    for crv in [json!("P-384"), json!("secp256k1"), json!("p-256"), json!(null), json!(256)] {
        let jwk = changed(TokenAlgorithm::Es256, &json!({ "crv": crv }));
        assert_eq!(left_out(jwk), KeyFault::Type(TokenAlgorithm::Es256));
    }
    for crv in [json!("X25519"), json!("Ed448"), json!(null)] {
        let jwk = changed(TokenAlgorithm::EdDsa, &json!({ "crv": crv }));
        assert_eq!(left_out(jwk), KeyFault::Type(TokenAlgorithm::EdDsa));
    }
}

#[test]
fn algorithm_is_that_of_the_type_or_the_pinned_one_where_a_key_has_none() {
    let only = |jwk: Value, pinned: Option<TokenAlgorithm>| {
        let mut rules = KeyRules::new("https://idp.example");
        rules.algorithm = pinned;
        let set = KeySet::read(&json!({ "keys": [jwk] }).to_string(), "idp", &rules)?;
        Ok::<_, KeySetError>(set.keys().map(|(_, algorithm, _)| algorithm).next().unwrap())
    };
    let bare = |of| changed(of, &json!({"alg": null, "use": null}));
    for of in [TokenAlgorithm::EdDsa, TokenAlgorithm::Es256] {
        assert_eq!(only(bare(of), None).unwrap(), of);
    }
    for pinned in [TokenAlgorithm::Rs256, TokenAlgorithm::Ps256] {
        assert_eq!(only(bare(TokenAlgorithm::Rs256), Some(pinned)).unwrap(), pinned);
    }
    let alone = only(bare(TokenAlgorithm::Rs256), None).unwrap_err();
    assert!(matches!(alone, KeySetError::Unusable { .. }));
    assert!(alone.to_string().contains("pin it with `algorithm`"), "{alone}");
    assert!(only(bare(TokenAlgorithm::Es256), Some(TokenAlgorithm::Rs256)).is_err());

    let mut rules = KeyRules::new("https://idp.example");
    rules.algorithm = Some(TokenAlgorithm::EdDsa);
    let other = KeyFault::Pinned(TokenAlgorithm::Es256, TokenAlgorithm::EdDsa);
    assert_eq!(left_out_by(Idp::shared().jwk(TokenAlgorithm::Es256), &rules), other);
    // A key is only taken as a symmetric one if its own `alg` says so.
    let secret = changed(TokenAlgorithm::Hs256, &json!({"alg": null}));
    rules.symmetric = Symmetric::Allowed;
    rules.algorithm = Some(TokenAlgorithm::Hs256);
    let refused = KeySet::read(&json!({"keys": [secret]}).to_string(), "idp", &rules);
    assert!(matches!(refused, Err(KeySetError::Key { fault: KeyFault::Private("k"), .. })));
}

/// SPEC.md §16.
#[test]
fn key_for_another_purpose_is_left_out() {
    for purpose in [json!("enc"), json!(""), json!("SIG"), json!(["sig"])] {
        assert_eq!(left_out(changed(TokenAlgorithm::Rs256, &json!({ "use": purpose }))), KeyFault::Use);
    }
    for operations in [
        json!([]),
        json!(["sign"]),
        json!(["encrypt"]),
        json!(["verify", "encrypt"]),
        json!(["verify", "verify"]),
        json!(["VERIFY"]),
        json!("verify"),
        json!(["verify", 1]),
    ] {
        let jwk = changed(TokenAlgorithm::Es256, &json!({ "key_ops": operations }));
        assert_eq!(left_out(jwk), KeyFault::Operations, "{operations}");
    }
}

/// SPEC.md §16.
#[test]
fn private_members_are_refused() {
    for (algorithm, name) in [
        (TokenAlgorithm::EdDsa, "d"),
        (TokenAlgorithm::Es256, "d"),
        (TokenAlgorithm::Rs256, "d"),
        (TokenAlgorithm::Rs256, "p"),
        (TokenAlgorithm::Rs256, "q"),
        (TokenAlgorithm::Rs256, "dp"),
        (TokenAlgorithm::Rs256, "dq"),
        (TokenAlgorithm::Rs256, "qi"),
        (TokenAlgorithm::Rs256, "oth"),
        (TokenAlgorithm::EdDsa, "k"),
    ] {
        assert_eq!(fault(changed(algorithm, &json!({ name: "AQAB" }))), KeyFault::Private(name));
    }
    // Whatever else the key is for: its owner has published a private key.
    for not_for_us in
        [json!({"use": "enc", "d": "AQAB"}), json!({"kid": null, "d": "AQAB"}), json!({"alg": "RSA-OAEP", "d": "AQAB"})]
    {
        assert_eq!(fault(changed(TokenAlgorithm::Rs256, &not_for_us)), KeyFault::Private("d"));
    }
    let secret = "c2VjcmV0LXBhcnQtb2YtdGhlLWtleQ";
    let error = load(&[changed(TokenAlgorithm::EdDsa, &json!({"d": secret}))]).unwrap_err();
    assert!(!format!("{error} {error:?}").contains(secret));
}

/// SPEC.md §16.
#[test]
fn weak_rsa_keys_are_refused() {
    let rsa = |n: &[u8], e: &str| fault(changed(TokenAlgorithm::Rs256, &json!({"n": b64(n), "e": e})));
    let odd = |n: &[u8], e: &str| left_out(changed(TokenAlgorithm::Rs256, &json!({"n": b64(n), "e": e})));
    let mut good = vec![0xb5; 256];
    good[255] = 0x01;
    for bytes in [0, 1, 128, 255] {
        let short = &good[256 - bytes..];
        if bytes == 0 {
            assert_eq!(odd(short, "AQAB"), KeyFault::Member("n"));
        } else {
            assert_eq!(rsa(short, "AQAB"), KeyFault::ModulusLength(bytes * 8 - usize::from(bytes == 1) * 7));
        }
    }
    let mut of_2047_bits = good.clone();
    of_2047_bits[0] = 0x75;
    assert_eq!(rsa(&of_2047_bits, "AQAB"), KeyFault::ModulusLength(2047));
    assert_eq!(odd(&[0xb5; 1025], "AQAB"), KeyFault::ModulusLength(8200));
    assert_eq!(odd(&[&[0][..], &good].concat(), "AQAB"), KeyFault::Member("n"));
    let mut even = good.clone();
    even[255] = 2;
    assert_eq!(rsa(&even, "AQAB"), KeyFault::EvenModulus);
    // 3, 17, 65535, 65536, 65538, 2^32+1.
    for e in ["Aw", "EQ", "__8", "AQAA", "AQAC", "AQAAAAE"] {
        assert_eq!(rsa(&good, e), KeyFault::Exponent, "{e}");
    }
    // 0 and 65537 with leading zero bytes, the empty text, and other texts: none is a canonical number.
    for e in ["AA", "", "AAEAAQ", "AQAB=", "AQ AB"] {
        assert_eq!(odd(&good, e), KeyFault::Member("e"), "{e:?}");
    }
}

#[test]
fn rsa_key_that_can_be_factored_is_refused() {
    // 65537^128, by repeated squaring: to the check, it looks like a modulus of the flawed generator.
    let mut power = vec![1_u8, 0, 1];
    for _ in 0..7 {
        let mut square = vec![0_u32; power.len() * 2];
        for (i, a) in power.iter().enumerate() {
            let mut carry = 0;
            for (j, b) in power.iter().enumerate() {
                let sum = square[i + j] + u32::from(*a) * u32::from(*b) + carry;
                square[i + j] = sum & 0xff;
                carry = sum >> 8;
            }
            square[i + power.len()] += carry;
        }
        power = square.iter().map(|digit| u8::try_from(*digit).unwrap()).collect();
        while power.last() == Some(&0) {
            power.pop();
        }
    }
    power.reverse();
    let weak = changed(TokenAlgorithm::Rs256, &json!({"n": b64(&power)}));
    assert_eq!(fault(weak), KeyFault::Roca);
}

#[test]
fn points_of_wrong_length_or_off_the_curve_are_refused() {
    for length in [0, 31, 33, 64] {
        let short = b64(vec![7; length]);
        assert_eq!(left_out(changed(TokenAlgorithm::EdDsa, &json!({"x": short}))), KeyFault::Member("x"));
        assert_eq!(left_out(changed(TokenAlgorithm::Es256, &json!({"x": short}))), KeyFault::Member("x"));
        assert_eq!(left_out(changed(TokenAlgorithm::Es256, &json!({"y": short}))), KeyFault::Member("y"));
    }
    assert_eq!(fault(changed(TokenAlgorithm::Es256, &json!({"y": b64([7; 32])}))), KeyFault::Point);
    assert_eq!(fault(changed(TokenAlgorithm::Es256, &json!({"x": b64([0; 32]), "y": b64([0; 32])}))), KeyFault::Point);
    // The neutral element: anyone can make a signature for it.
    let mut neutral = [0; 32];
    neutral[0] = 1;
    assert_eq!(fault(changed(TokenAlgorithm::EdDsa, &json!({"x": b64(neutral)}))), KeyFault::Point);
    assert_eq!(left_out(changed(TokenAlgorithm::EdDsa, &json!({"x": null}))), KeyFault::Member("x"));
    assert_eq!(left_out(changed(TokenAlgorithm::EdDsa, &json!({"x": 7}))), KeyFault::Member("x"));
}

#[test]
fn key_whose_kid_is_outside_its_grammar_is_left_out() {
    for kid in [json!(null), json!(""), json!("a\"b"), json!("a b"), json!("x".repeat(129)), json!("é"), json!(1)] {
        assert_eq!(left_out(changed(TokenAlgorithm::Es256, &json!({ "kid": kid }))), KeyFault::KeyId);
    }
    // As providers write them: RFC 7520, base64 with padding, a path.
    for kid in ["bilbo.baggins@hobbiton.example", "nOo3ZDrODXEK1jKWhXslHR_KXEg=", "a+b/c", "x".repeat(128).as_str()] {
        assert!(load(&[changed(TokenAlgorithm::Es256, &json!({ "kid": kid }))]).is_ok(), "{kid}");
    }
    for other in [json!("a key"), json!(null), json!(5), json!([]), json!(true)] {
        assert_eq!(left_out(other), KeyFault::NotAnObject);
    }
}

#[test]
fn symmetric_keys_are_refused_unless_allowed_and_never_mixed_with_public_ones() {
    let secret = Idp::shared().jwk(TokenAlgorithm::Hs256);
    let allowed = |keys: &[Value]| {
        KeySet::from_jwks(&json!({ "keys": keys }).to_string(), "https://idp.example", "idp", Symmetric::Allowed)
    };
    assert!(matches!(load(std::slice::from_ref(&secret)), Err(KeySetError::Symmetric { .. })));
    assert!(allowed(std::slice::from_ref(&secret)).is_ok());
    assert!(matches!(allowed(&[secret.clone(), ed25519()]), Err(KeySetError::Mixed { .. })));
    assert!(matches!(load(&[secret, ed25519()]), Err(KeySetError::Mixed { .. })));
    for short in [0, 1, 31] {
        let jwk = changed(TokenAlgorithm::Hs256, &json!({"k": b64(vec![7; short])}));
        assert!(matches!(allowed(&[jwk]), Err(KeySetError::Key { fault: KeyFault::ShortSecret, .. })), "{short}");
    }
    let spelt_wrong = changed(TokenAlgorithm::Hs256, &json!({"k": "not base64!"}));
    assert!(matches!(allowed(&[spelt_wrong]), Err(KeySetError::Unusable { .. })));
    // Left out or not, a secret among public keys can be read by everybody.
    let unnamed = changed(TokenAlgorithm::Hs256, &json!({"kid": null}));
    assert!(matches!(load(&[unnamed, ed25519()]), Err(KeySetError::Mixed { .. })));
}

#[test]
fn text_that_is_no_strict_set_is_refused() {
    for (text, expected) in [
        ("[]", JsonFault::NotAnObject),
        (r#"{"keys":[],"keys":[]}"#, JsonFault::Text(Flaw::DuplicateMember)),
        (r#"{"keys":[{"kid":"a","k\u0069d":"b"}]}"#, JsonFault::Text(Flaw::DuplicateMember)),
    ] {
        assert!(matches!(load_text(text), Err(KeySetError::Json { fault, .. }) if fault == expected), "{text}");
    }
    assert!(matches!(load_text(r#"{"keys":[]}"#), Err(KeySetError::Empty { .. })));
    for text in ["{}", r#"{"keys":{}}"#, r#"{"Keys":[]}"#] {
        assert!(matches!(load_text(text), Err(KeySetError::NoKeys { .. })), "{text}");
    }
    let padded = format!("{{\"keys\":[{}]}}{}", ed25519(), " ".repeat(256 * 1024));
    assert!(matches!(load_text(&padded), Err(KeySetError::TooLarge { .. })));
    for issuer in ["", "a b", "é", &"x".repeat(257)] {
        let keys = json!({"keys": [ed25519()]}).to_string();
        let refused = KeySet::from_jwks(&keys, issuer, "idp", Symmetric::Refused);
        assert!(matches!(refused, Err(KeySetError::Issuer { .. })), "{issuer}");
    }
    assert!(matches!(KeySet::merge([]), Err(KeySetError::Empty { .. })));
}

#[test]
fn file_is_bounded_and_private_when_it_holds_secrets() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("idp.jwks.json");
    let load = |symmetric| KeySet::from_jwks_file(&path, "https://idp.example", symmetric);
    assert!(matches!(load(Symmetric::Refused), Err(KeySetError::File { cause: FileError::Io(_), .. })));
    std::fs::write(&path, " ".repeat(256 * 1024 + 1)).unwrap();
    assert!(matches!(load(Symmetric::Refused), Err(KeySetError::File { cause: FileError::TooLarge(_), .. })));
    std::fs::write(&path, b"\xff").unwrap();
    assert!(matches!(
        load(Symmetric::Refused),
        Err(KeySetError::File { cause: FileError::Text(TextFault::NotUtf8), .. })
    ));
    std::fs::write(&path, json!({"keys": [ed25519()]}).to_string()).unwrap();
    assert_eq!(load(Symmetric::Refused).unwrap().len(), 1);

    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        std::fs::write(&path, json!({"keys": [Idp::shared().jwk(TokenAlgorithm::Hs256)]}).to_string()).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        let refused = load(Symmetric::Allowed);
        assert!(matches!(refused, Err(KeySetError::File { cause: FileError::Trust(_), .. })), "{refused:?}");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(load(Symmetric::Allowed).unwrap().len(), 1);
    }
}

#[test]
fn debug_shows_names_and_no_keys() {
    let shown = format!("{:?} {:?}", Idp::shared().keys(), Idp::shared().symmetric_keys());
    assert!(shown.contains("idp-HS256") && shown.contains("https://idp.example"));
    for algorithm in [TokenAlgorithm::EdDsa, TokenAlgorithm::Es256, TokenAlgorithm::Rs256, TokenAlgorithm::Hs256] {
        let jwk = Idp::shared().jwk(algorithm);
        for member in ["x", "y", "n", "k"] {
            assert!(jwk[member].as_str().is_none_or(|key| !shown.contains(key)));
        }
    }
    assert!(!shown.contains("DecodingKey") && !shown.contains("fingerprint"));
}
