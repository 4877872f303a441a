//! The development issuer: what it signs verifies, it signs nothing that would not verify, and its key stays private.

use sealwire::internal::auth::{
    Confirmation, FileError, IssueError, IssueRequest, TokenError, TokenIssuer, TokenRules, TokenVerifier,
};
use serde_json::json;
use sha2::{Digest, Sha256};

use super::verify_at;
use sealwire_testkit::idp::NOW;

fn request() -> IssueRequest {
    IssueRequest::new("user-42", "prod/math", NOW)
}

#[test]
fn issued_token_verifies_with_everything_that_was_asked() {
    let issuer = TokenIssuer::generate("https://idp.example").unwrap();
    let verifier = TokenVerifier::new(TokenRules::new("prod/math"), issuer.key_set().unwrap());
    let mut request = request();
    request.actor = Some("planner".into());
    request.audiences.push("prod/ops".into());
    request.roles = ["calc".to_owned()].into();
    request.ttl_s = 60;
    request.cnf = Some(Confirmation { kid: Some("planner.k1".into()), jkt: None });
    request.claims.insert("tenant".into(), json!("t1"));
    let token = verify_at(&verifier, &issuer.issue(&request).unwrap(), NOW).unwrap();
    assert_eq!((token.owner(), token.subject.as_str(), token.key_id.as_str()), ("planner", "user-42", issuer.kid()));
    assert_eq!((token.issued_at, token.expires_at), (NOW, NOW + 60));
    assert_eq!((&token.roles, &token.cnf), (&request.roles, &request.cnf));
    assert_eq!(token.claims, request.claims);

    let again = verify_at(&verifier, &issuer.issue(&request).unwrap(), NOW).unwrap();
    assert_ne!(token.id, again.id);
    let other = TokenVerifier::new(TokenRules::new("prod/ops"), issuer.key_set().unwrap());
    assert!(verify_at(&other, &issuer.issue(&request).unwrap(), NOW).is_ok());
}

#[test]
fn issuer_does_not_sign_what_a_service_would_refuse() {
    let issuer = TokenIssuer::generate("https://idp.example").unwrap();
    let refusal = |change: &dyn Fn(&mut IssueRequest)| {
        let mut request = request();
        change(&mut request);
        issuer.issue(&request).unwrap_err()
    };
    let changes: [&dyn Fn(&mut IssueRequest); 7] = [
        &|r| r.subject.clear(),
        &|r| r.actor = Some("a b".into()),
        &|r| r.ttl_s = 0,
        &|r| r.ttl_s = 3601,
        &|r| r.roles = ["*".to_owned()].into(),
        &|r| r.cnf = Some(Confirmation { kid: None, jkt: None }),
        &|r| drop(r.claims.insert("deep".into(), (0..16).fold(json!(0), |inner, _| json!([inner])))),
    ];
    for (index, change) in changes.into_iter().enumerate() {
        assert!(matches!(refusal(change), IssueError::Unacceptable(_)), "change {index}");
    }
    let padded = refusal(&|r| drop(r.claims.insert("pad".into(), json!("x".repeat(5000)))));
    assert!(matches!(padded, IssueError::Unacceptable(TokenError::TooLong)));
    assert!(matches!(refusal(&|r| r.audiences.clear()), IssueError::NoAudience));
    let reserved = refusal(&|r| drop(r.claims.insert("sub".into(), json!("root"))));
    assert!(matches!(reserved, IssueError::ReservedClaim("sub")));
    assert!(matches!(TokenIssuer::generate("my issuer"), Err(IssueError::Issuer(_))));
}

#[test]
fn saved_key_is_private_and_signs_as_before() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("issuer.json");
    let issuer = TokenIssuer::generate("https://idp.example/\"quoted\"").unwrap();
    issuer.save(&path).unwrap();
    let loaded = TokenIssuer::load(&path).unwrap();
    assert_eq!(
        (loaded.issuer(), loaded.kid(), loaded.public_jwks()),
        (issuer.issuer(), issuer.kid(), issuer.public_jwks())
    );
    let verifier = TokenVerifier::new(TokenRules::new("prod/math"), issuer.key_set().unwrap());
    let token = loaded.issue(&request()).unwrap();
    assert!(verifier.verify(&token, &Sha256::digest(&token).into(), NOW).is_ok());
    // A key is never overwritten.
    assert!(matches!(issuer.save(&path), Err(IssueError::File { cause: FileError::Io(_), .. })));

    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = |path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&path), 0o600);
        for exposed in [0o640, 0o604, 0o620] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(exposed)).unwrap();
            let refused = TokenIssuer::load(&path);
            assert!(matches!(refused, Err(IssueError::File { cause: FileError::Trust(_), .. })), "{exposed:o}");
        }
    }
}

#[test]
fn damaged_key_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("issuer.json");
    TokenIssuer::generate("https://idp.example").unwrap().save(&path).unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    for (from, to) in [
        ("\"kty\":\"OKP\"", "\"kty\":\"EC\""),
        ("\"crv\":\"Ed25519\"", "\"crv\":\"X25519\""),
        ("\"d\":\"", "\"d\":\"A"),
        ("\"x\":\"", "\"x\":\"A"),
        ("\"kid\":\"", "\"kid\":\" "),
        ("\"iss\":", "\"iss\":1,\"issuer\":"),
        ("{", "{\"exp\":1,"),
    ] {
        assert!(text.contains(from));
        std::fs::write(&path, text.replacen(from, to, 1)).unwrap();
        assert!(matches!(TokenIssuer::load(&path), Err(IssueError::Key { .. })), "{to}");
    }
    std::fs::write(&path, "{}{}").unwrap();
    assert!(matches!(TokenIssuer::load(&path), Err(IssueError::Json { .. })));
}

#[test]
fn private_key_is_never_shown() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("issuer.json");
    let issuer = TokenIssuer::generate("https://idp.example").unwrap();
    issuer.save(&path).unwrap();
    let file: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    let secret = file["d"].as_str().unwrap();
    let shown = format!("{issuer:?} {}", issuer.public_jwks());
    assert!(!shown.contains(secret) && shown.contains(issuer.kid()));
}
