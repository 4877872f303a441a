//! Files with secrets, broken in many ways: no error reveals any of their contents.
//! A secret may be anywhere: in place of any value, and of any name.

use std::path::Path;

use sealwire::internal::auth::{KeyRing, TokenIssuer, read_service_key};
use sealwire::internal::files::write_secret;
use sealwire::internal::wire::Audience;
use sealwire::{Config, Credentials, Name};
use serde_json::{Value, json};

/// Looks like a key in base64url, and is valid in every grammar of names.
const MARKER: &str = "Hunter2_Secret-0123456789abcdefghijklmnopqr";

/// The error for a file with this text, if it is refused.
fn said(folder: &Path, kind: Kind, text: &str) -> Option<String> {
    let path = folder.join("file");
    write_secret(&path, text, true).unwrap();
    let audience = Audience::new(&Name::new("dev").unwrap(), &Name::new("math").unwrap());
    fn both<T>(result: Result<T, impl std::error::Error>) -> Option<String> {
        result.err().map(|error| format!("{error} {error:?}"))
    }
    match kind {
        Kind::Ring => both(KeyRing::load(&path, &audience)),
        Kind::ServiceKey => both(read_service_key(&path, &audience)),
        Kind::Credentials => both(Credentials::load(&path)),
        Kind::TokenKey => both(TokenIssuer::load(&path)),
        Kind::Config => both(Config::load(&path).map(|config| config.check().err().map(|error| error.to_string())))
            .or_else(|| both(Config::load(&path).and_then(|config| config.check()))),
    }
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Ring,
    ServiceKey,
    Credentials,
    TokenKey,
    Config,
}

fn good(kind: Kind) -> Value {
    let key = "0FgcWNvBwd2NCGb3Xh-tPWmIkp8bfh_YZ1JQTfzKfg4";
    match kind {
        Kind::Ring => json!({"audience": "dev/math", "keys": [
            {"kid": "planner.k1", "owner": "planner", "alg": "HS256", "key": key, "not_after": 5, "status": "active"},
            {"kid": "teller.k1", "owner": "teller", "alg": "EdDSA", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}),
        Kind::ServiceKey => json!({"kid": "svc:dev/math:1", "alg": "EdDSA", "seed": key}),
        Kind::Credentials => json!({"version": 1, "environment": "dev", "agent": "planner",
            "key": {"kid": "planner.k1", "alg": "HS256", "secret": key}, "token_file": "planner.jwt",
            "nats": {"urls": ["nats://127.0.0.1:4222"], "user": "planner", "password": "p"}, "prefix": "rpc.v1",
            "service_keys": {"math": [{"kid": "svc:dev/math:1", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}}),
        Kind::TokenKey => {
            let folder = tempfile::tempdir().unwrap();
            TokenIssuer::generate("https://issuer.test").unwrap().save(folder.path().join("key")).unwrap();
            serde_json::from_str(&std::fs::read_to_string(folder.path().join("key")).unwrap()).unwrap()
        }
        Kind::Config => json!({"environment": "dev", "service": "math",
            "nats": {"urls": ["nats://127.0.0.1:4222"], "user": "math", "password": "p"},
            "keys": {"ring": "ring.json", "service_key": "service-key.json", "denylist": "denylist.json"},
            "tokens": {"audience": "dev/math", "issuer": [{"issuer": "https://issuer.test", "jwks": "jwks.json"}]},
            "policy": {"folder": "policies"}, "replay": {"guard": "local", "window_s": 30, "state": "floor"}}),
    }
}

fn written(kind: Kind, value: &Value) -> String {
    match kind {
        Kind::Config => toml::to_string(value).unwrap(),
        _ => value.to_string(),
    }
}

/// Every place in a value, as a JSON pointer; objects and arrays too.
fn places(value: &Value, at: &str, found: &mut Vec<String>) {
    found.push(at.to_owned());
    match value {
        Value::Object(members) => {
            members.iter().for_each(|(name, value)| places(value, &format!("{at}/{name}"), found))
        }
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(index, value)| places(value, &format!("{at}/{index}"), found));
        }
        _ => {}
    }
}

#[test]
fn no_error_says_what_is_in_a_file_that_may_hold_secrets() {
    let folder = tempfile::tempdir().unwrap();
    let mut refused = 0;
    for kind in [Kind::Ring, Kind::ServiceKey, Kind::Credentials, Kind::TokenKey, Kind::Config] {
        let good = good(kind);
        let mut found = Vec::new();
        places(&good, "", &mut found);
        let mut texts = Vec::new();
        for place in &found {
            for wrong in [json!(MARKER), json!([MARKER]), json!({ MARKER: MARKER }), json!(format!("{MARKER}=="))] {
                let mut changed = good.clone();
                *changed.pointer_mut(place).unwrap() = wrong;
                // A TOML file is always a table, whatever else is wrong with it.
                if changed.is_object() || !matches!(kind, Kind::Config) {
                    texts.push(written(kind, &changed));
                }
            }
            if let Some(Value::Object(members)) = good.clone().pointer_mut(place) {
                // A member whose name is the secret, in addition to the others and instead of one.
                for name in members.keys().cloned().map(Some).chain([None]) {
                    let mut changed = good.clone();
                    let members = changed.pointer_mut(place).unwrap().as_object_mut().unwrap();
                    let value = name.and_then(|name| members.remove(&name)).unwrap_or(json!("x"));
                    members.insert(MARKER.to_owned(), value);
                    texts.push(written(kind, &changed));
                }
            }
            // Cut off in the middle, unquoted, and twice.
            let mut changed = good.clone();
            *changed.pointer_mut(place).unwrap() = json!({ "kid": MARKER });
            if changed.is_object() || !matches!(kind, Kind::Config) {
                let text = written(kind, &changed);
                let end = text.find(MARKER).unwrap() + MARKER.len();
                texts.extend([
                    text[..end].to_owned(),
                    text[..end - 9].to_owned(),
                    text.replacen(&format!("\"{MARKER}\""), MARKER, 1),
                    text.replacen(&format!("\"{MARKER}\""), &format!("\"{MARKER}\" \"{MARKER}\""), 1),
                    format!("{text}{text}"),
                    format!("{MARKER}{text}"),
                ]);
            }
        }
        for text in texts {
            let Some(said) = said(folder.path(), kind, &text) else { continue };
            refused += 1;
            for part in [MARKER, &MARKER[..12], &MARKER[..MARKER.len() - 9]] {
                assert!(!said.contains(part), "{kind:?}\n{text}\n{said}");
            }
        }
    }
    assert!(refused > 500, "only {refused} were refused: what was broken?");
}

fn set_mode(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn a_configuration_with_a_secret_in_it_is_for_its_owner_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sealwire.toml");
    let open = json!({"urls": ["nats://127.0.0.1:4222"]});
    let secret = |member: &str| json!({"urls": ["nats://127.0.0.1:4222"], member: MARKER});
    let mut password = secret("password");
    password["user"] = "math".into();
    for (nats, guard, private) in [
        (open.clone(), None, false),
        (password.clone(), None, true),
        (secret("token"), None, true),
        (secret("nkey_seed"), None, true),
        (open, Some(password), true),
    ] {
        let mut config = good(Kind::Config);
        config["nats"] = nats;
        if let Some(guard) = guard {
            config["replay"]["nats"] = guard;
        }
        write_secret(&path, &written(Kind::Config, &config), true).unwrap();
        assert!(Config::load(&path).is_ok(), "{config}");
        set_mode(&path, 0o644);
        match Config::load(&path) {
            Ok(_) => assert!(!private, "{config}"),
            Err(error) => assert!(private && error.to_string().contains("chmod 600"), "{config}: {error}"),
        }
        set_mode(&path, 0o622);
        let error = Config::load(&path).unwrap_err().to_string();
        assert!(error.contains("chmod go-w"), "{config}: {error}");
    }
}

#[test]
fn policies_that_others_can_write_start_no_service() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    write_secret(&at("sealwire.toml"), &written(Kind::Config, &good(Kind::Config)), true).unwrap();
    for name in ["ring.json", "service-key.json", "denylist.json", "jwks.json"] {
        write_secret(&at(name), "{}", true).unwrap();
    }
    std::fs::create_dir(at("policies")).unwrap();
    let said = || Config::load(at("sealwire.toml")).unwrap().check().unwrap_err().to_string();
    set_mode(&at("policies"), 0o755);
    assert!(said().contains("ring"), "what is wrong then is the empty ring: {}", said());
    set_mode(&at("policies"), 0o777);
    assert!(said().contains("policies") && said().contains("chmod go-w"), "{}", said());
}

#[test]
fn replay_state_that_others_can_write_starts_no_service() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let mut config = good(Kind::Config);
    config["replay"]["state"] = "state/floor".into();
    write_secret(&at("sealwire.toml"), &written(Kind::Config, &config), true).unwrap();
    for name in ["ring.json", "service-key.json", "denylist.json", "jwks.json"] {
        write_secret(&at(name), "{}", true).unwrap();
    }
    let said = || Config::load(at("sealwire.toml")).unwrap().check().unwrap_err().to_string();
    assert!(said().contains("ring"), "what is missing is made at the start: {}", said());
    std::fs::create_dir(at("state")).unwrap();
    set_mode(&at("state"), 0o777);
    assert!(said().contains("state") && said().contains("chmod go-w"), "{}", said());
    set_mode(&at("state"), 0o1777);
    assert!(said().contains("chmod go-w"), "the file beside it that is renamed into its place: {}", said());
    set_mode(&at("state"), 0o755);
    assert!(said().contains("ring"), "{}", said());
    std::fs::write(at("state/floor"), "1").unwrap();
    set_mode(&at("state/floor"), 0o666);
    assert!(said().contains("floor") && said().contains("chmod go-w"), "{}", said());
}

#[test]
fn trust_anchors_that_others_can_write_are_found_by_a_check() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let audience = Audience::new(&Name::new("dev").unwrap(), &Name::new("math").unwrap());
    let key = sealwire::internal::wire::ServiceKey::generate("svc:dev/math:1", &audience).unwrap();
    sealwire::internal::auth::write_service_key(&at("service-key.json"), &key).unwrap();
    write_secret(&at("ring.json"), &good(Kind::Ring).to_string(), true).unwrap();
    write_secret(&at("denylist.json"), "{}", true).unwrap();
    let issuer = TokenIssuer::generate("https://issuer.test").unwrap();
    write_secret(&at("jwks.json"), &issuer.public_jwks(), true).unwrap();
    let certificate = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap().cert;
    let text = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, certificate.der());
    let ca = at("ca.pem");
    write_secret(&ca, &format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n"), true).unwrap();
    for place in ["/nats/tls_ca", "/replay/nats/tls_ca", "/tokens/issuer/0/tls_ca"] {
        let mut config = good(Kind::Config);
        config["replay"]["nats"] = json!({"urls": ["nats://127.0.0.1:4222"]});
        if place.starts_with("/tokens") {
            config["tokens"]["issuer"][0] = json!({"issuer": "https://issuer.test", "discovery": true});
        }
        let (above, member) = place.rsplit_once('/').unwrap();
        config.pointer_mut(above).unwrap()[member] = "ca.pem".into();
        write_secret(&at("sealwire.toml"), &written(Kind::Config, &config), true).unwrap();
        let check = || Config::load(at("sealwire.toml")).unwrap().check();
        check().unwrap_or_else(|error| panic!("{place}: {error}"));
        set_mode(&ca, 0o666);
        let said = check().unwrap_err().to_string();
        assert!(said.contains("chmod go-w"), "{place}: {said}");
        set_mode(&ca, 0o600);
    }
}
