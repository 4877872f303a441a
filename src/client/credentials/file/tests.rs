#![allow(clippy::unwrap_used, reason = "tests")]
use super::*;

const SECRET: &str = "ICEiIyQlJicoKSorLC0uLzAxMjM0NTY3ODk6Ozw9Pj8";

/// The file of SPEC.md, with `change` made to it.
fn with(change: impl FnOnce(&mut serde_json::Value)) -> String {
    let mut file = serde_json::json!({
        "version": 1,
        "environment": "dev",
        "agent": "planner",
        "key": { "kid": "planner.k1", "alg": "HS256", "secret": SECRET },
        "token_file": "planner.jwt",
        "nats": { "urls": ["nats://127.0.0.1:4222"], "user": "planner", "password": "hunter2", "tls_ca": "ca.pem" },
        "service_keys": { "math": [ { "kid": "svc:dev/math:1", "x": "F0VTtFbd38aQjsqxwQH-arIeK6oGF3lbfUOmNIKZP9U" } ] }
    });
    change(&mut file);
    file.to_string()
}

fn load_text(text: &str) -> Result<Credentials, CredentialsError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.creds.json");
    write_secret(&path, text, false).unwrap();
    load(&path)
}

/// SPEC.md §20.
#[test]
fn file_of_the_specification_is_read() {
    let credentials = load_text(&with(|_| ())).unwrap();
    assert_eq!((credentials.environment().as_str(), credentials.agent().as_str()), ("dev", "planner"));
    assert_eq!(credentials.key().kid(), "planner.k1");
    assert_eq!(b64(credentials.key().expose()), SECRET);
    assert_eq!(credentials.inbox(), "_INBOX.planner");
    assert!(credentials.bus().tls_ca.unwrap().is_absolute(), "relative to the file's folder");
    let seed = with(|file| file["key"] = serde_json::json!({"kid": "k", "alg": "EdDSA", "seed": SECRET}));
    assert_eq!(load_text(&seed).unwrap().key().algorithm(), ProofAlgorithm::EdDsa);
    let own = with(|file| {
        file["prefix"] = "corp.rpc".into();
        file["inbox_prefix"] = "INBOX.corp".into();
    });
    let own = load_text(&own).unwrap();
    let endpoint = own.endpoint(Name::new("math").unwrap()).unwrap();
    assert_eq!(endpoint.subject(own.agent()), "corp.rpc.math.planner");
    assert_eq!(own.inbox(), "INBOX.corp.planner");
}

#[test]
fn what_was_saved_is_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("b.creds.json");
    for change in [
        |_: &mut serde_json::Value| (),
        |file: &mut serde_json::Value| {
            file["prefix"] = "corp.rpc".into();
            let members = file.as_object_mut().unwrap();
            members.remove("token_file");
            members.insert("token_command".into(), serde_json::json!(["fetch", "--now"]));
        },
    ] {
        let credentials = load_text(&with(change)).unwrap();
        credentials.save(&path, true).unwrap();
        let again = load(&path).unwrap();
        assert_eq!(again.key().expose(), credentials.key().expose());
        assert_eq!(again.bus().password, credentials.bus().password);
        assert_eq!((&again.prefix, &again.service_keys), (&credentials.prefix, &credentials.service_keys));
        assert_eq!(again.bus().tls_ca, credentials.bus().tls_ca, "a relative name keeps its meaning elsewhere");
    }
    assert!(matches!(load_text(&with(|_| ())).unwrap().save(&path, false), Err(CredentialsError::File(_))));
}

#[test]
fn file_beside_its_relative_names_keeps_them_relative() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("c.creds.json");
    write_secret(&path, &with(|_| ()), false).unwrap();
    load(&path).unwrap().save(&path, true).unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.contains(r#""token_file": "planner.jwt""#) && text.contains(r#""tls_ca": "ca.pem""#), "{text}");
}

#[test]
fn credentials_without_a_token_or_with_a_source_cannot_be_saved() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("d.creds.json");
    let mut credentials = load_text(&with(|_| ())).unwrap();
    credentials.token = Token::None;
    assert!(matches!(credentials.save(&path, false), Err(CredentialsError::NoToken)));
    assert!(matches!(credentials.tokens(), Err(CredentialsError::NoToken)));
    let own = credentials.token_source(crate::client::StaticToken::new("t"));
    assert!(matches!(own.save(&path, false), Err(CredentialsError::NotSaveable)));
    assert!(!path.exists());
}

/// SPEC.md §20, SPEC.md §20.1.
#[test]
fn each_mistake_is_named_and_no_value_is_quoted() {
    type Change = fn(&mut serde_json::Value);
    let cases: [(Change, &str); 21] = [
        (|f| f["version"] = 2.into(), "`version` is 2"),
        (|f| f["agent"] = "a.b".into(), "`agent`"),
        (|f| f["environment"] = "".into(), "`environment`"),
        (|f| f["tokn"] = "x".into(), "unknown member, expected"),
        (|f| f["key"]["secrets"] = "x".into(), "`key.…`: unknown member"),
        (|f| f["nats"]["pass"] = "x".into(), "`nats.…`: unknown member"),
        (|f| f["token"] = "x".into(), "exactly one of"),
        (|f| f["token_command"] = serde_json::json!(["x"]), "exactly one of"),
        (|f| f["token_file"] = serde_json::Value::Null, "`token_file`: a value of the wrong kind"),
        (|f| drop(f.as_object_mut().unwrap().remove("token_file")), "exactly one of"),
        (|f| drop(f.as_object_mut().unwrap().remove("key")), "missing field `key`"),
        (|f| f["key"]["secret"] = "c2hvcnQ".into(), "shorter than 32 bytes"),
        (|f| f["key"]["secret"] = "s3cret==".into(), "base64url"),
        (|f| f["key"]["seed"] = SECRET.into(), "`secret` for HS256, or `seed`"),
        (|f| f["key"]["alg"] = "RS256-s3cret".into(), "wrong kind"),
        (|f| f["key"] = "s3cret".into(), "wrong kind"),
        (|f| f["key"]["kid"] = "a b".into(), "key id"),
        (|f| f["nats"]["urls"] = serde_json::json!([]), "no broker address"),
        (|f| f["prefix"] = "_INBOX.x".into(), "overlaps"),
        (|f| f["service_keys"]["math"][0]["kid"] = "svc:prod/math:1".into(), "a kid does not begin"),
        (|f| f["service_keys"]["math"][0]["x"] = "AAAA".into(), "`service_keys`: not an Ed25519 key"),
    ];
    for (change, reason) in cases {
        let error = load_text(&with(change)).unwrap_err().to_string();
        assert!(error.contains(reason), "{reason}: {error}");
        assert!(error.contains("a.creds.json") && !error.contains("s3cret") && !error.contains(SECRET), "{error}");
    }
    let command = with(|file| {
        file.as_object_mut().unwrap().remove("token_file");
        file["token_command"] = serde_json::json!([]);
    });
    assert!(load_text(&command).unwrap_err().to_string().contains("`token_command` is an array"));
}

#[test]
fn mistakes_have_a_position() {
    let text = "{\n  \"version\": 1,\n  \"environmnt\": \"dev\"\n}";
    let error = load_text(text).unwrap_err();
    assert!(matches!(error, CredentialsError::Syntax { line: 3, column: 14, .. }), "{error:?}");
    for (text, reason) in [("{", "too early"), ("{]", "not JSON"), ("[1]", "wrong kind"), ("{} {}", "missing field")] {
        let error = load_text(text).unwrap_err().to_string();
        assert!(error.contains(reason) && error.contains("line 1"), "{text}: {error}");
    }
    let twice = with(|_| ()).replacen('{', r#"{"agent":"planner","#, 1);
    assert!(load_text(&twice).unwrap_err().to_string().contains("duplicate field `agent`"));
}

#[test]
fn secrets_do_not_show() {
    let credentials = load_text(&with(|_| ())).unwrap();
    let shown = format!("{credentials:?} {:?}", credentials.clone().token("t0ken").token_command(["s3cret"]));
    for secret in [SECRET, "hunter2", "t0ken", "s3cret"] {
        assert!(!shown.contains(secret), "{shown}");
    }
}
