#![allow(clippy::unwrap_used, reason = "tests")]
use super::*;

fn audience() -> Audience {
    Audience::parse("prod/math").unwrap()
}

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn hmac_entry(kid: &str, owner: &str) -> KeyEntry {
    KeyEntry::hmac(kid, name(owner), &HmacKey::new([7; 32]))
}

fn ring(keys: Vec<KeyEntry>) -> Result<KeyRing, String> {
    KeyRing::new(KeyRingFile { audience: "prod/math".into(), keys }, &audience()).map_err(|error| error.to_string())
}

const X: &str = "F0VTtFbd38aQjsqxwQH-arIeK6oGF3lbfUOmNIKZP9U";

/// SPEC.md §5.1.
#[test]
fn duplicate_key_ids_are_refused() {
    let error = ring(vec![hmac_entry("a.k1", "a"), hmac_entry("a.k1", "a")]).unwrap_err();
    assert!(error.contains("appears twice"), "{error}");
}

/// SPEC.md §5.1.
#[test]
fn one_public_key_stands_once_so_that_its_revocation_holds() {
    let shared = |kid, owner| KeyEntry::ed25519(kid, name(owner), X.into());
    assert!(ring(vec![shared("a.1", "a")]).is_ok());
    for (kid, owner) in [("a.2", "a"), ("b.1", "b")] {
        let mut revoked = shared("a.1", "a");
        revoked.status = KeyStatus::Revoked;
        let error = ring(vec![revoked, shared(kid, owner)]).unwrap_err();
        assert!(error.contains("appears twice"), "{error}");
    }
}

/// SPEC.md §5.1.
#[test]
fn agent_key_ids_may_not_pose_as_service_keys() {
    let error = ring(vec![hmac_entry("svc:prod/math:1", "a")]).unwrap_err();
    assert!(error.contains("belong to services"), "{error}");
}

#[test]
fn a_ring_of_another_service_is_refused() {
    let file = KeyRingFile { audience: "prod/ops".into(), keys: vec![] };
    let error = KeyRing::new(file, &audience()).unwrap_err().to_string();
    assert!(error.contains("not for `prod/math`") && !error.contains("prod/ops"), "{error}");
}

/// SPEC.md §5.1.
#[test]
fn records_hold_the_key_of_their_algorithm_only() {
    for change in [
        (|entry: &mut KeyEntry| entry.key = None) as fn(&mut KeyEntry),
        |entry| entry.x = Some(X.into()),
        |entry| entry.alg = "HS512".into(),
        |entry| entry.alg = "EdDSA".into(),
        |entry| entry.alg = "none".into(),
        |entry| entry.key = Some("AAAA".into()),
        |entry| entry.key = Some("not base64!".into()),
        |entry| (entry.not_before, entry.not_after) = (Some(5), Some(5)),
    ] {
        let mut entry = hmac_entry("a.k1", "a");
        change(&mut entry);
        assert!(ring(vec![entry]).is_err());
    }
}

/// SPEC.md §5.1.
#[test]
fn keys_overlap_by_their_dates_and_retired_ones_verify_nothing() {
    let mut old = hmac_entry("a.k1", "a");
    old.not_after = Some(200);
    let mut new = hmac_entry("a.k2", "a");
    new.not_before = Some(100);
    let mut retired = hmac_entry("a.k0", "a");
    retired.status = KeyStatus::Retired;
    let mut revoked = hmac_entry("a.k3", "a");
    revoked.status = KeyStatus::Revoked;
    let ring = ring(vec![old, new, retired, revoked]).unwrap();
    let usable = |kid: &str, now| ring.find(kid).unwrap().is_usable(now);
    assert!(usable("a.k1", 99) && !usable("a.k2", 99));
    assert!(usable("a.k1", 100) && usable("a.k2", 100));
    assert!(usable("a.k1", 199) && !usable("a.k1", 200));
    assert!(!usable("a.k0", 150) && !usable("a.k3", 150));
}

#[test]
fn nothing_prints_key_bytes() {
    let entry = hmac_entry("a.k1", "a");
    let bytes = entry.key.clone().unwrap();
    let shown = format!("{entry:?} {:?}", ring(vec![entry.clone()]).unwrap());
    assert!(!shown.contains(&bytes) && !shown.contains("7, 7"), "{shown}");
}

#[cfg(unix)]
#[test]
fn mistyped_file_is_refused_without_quoting_what_may_be_a_key() {
    use std::io::Write as _;
    use std::os::unix::fs::OpenOptionsExt as _;

    let key = b64([7; 32]);
    let folder = tempfile::tempdir().unwrap();
    let with = |keys: String| format!(r#"{{"audience":"prod/math","keys":{keys}}}"#);
    for (n, text) in [
        with(format!(r#"["{key}"]"#)),
        with(format!(r#""{key}""#)),
        with(format!(r#"[{{"kid":"a","owner":"{key}.","alg":"HS256"}}]"#)),
        with(format!(r#"[{{"kid":"a","owner":"a","alg":"HS256","status":"{key}"}}]"#)),
        with(format!(r#"[{{"kid":"a","owner":"a","alg":"HS256","not_after":"{key}"}}]"#)),
        with(format!(r#"[{{"kid":"a","owner":"a","alg":"HS256","{key}":"key"}}]"#)),
        with(format!(r#"[{{"kid":"a","owner":"a","alg":"{key}","key":"{key}"}}]"#)),
    ]
    .iter()
    .enumerate()
    {
        let path = folder.path().join(n.to_string());
        let file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        file.unwrap().write_all(text.as_bytes()).unwrap();
        let error = KeyRing::load(&path, &audience()).unwrap_err();
        for shown in [error.to_string(), format!("{error:?}")] {
            assert!(!shown.contains(&key), "{shown}");
        }
    }
}
