#![allow(clippy::unwrap_used, reason = "tests")]

use serde_json::json;

use super::*;
use crate::files::write_secret;

/// What `nats context save` writes, with these fields.
fn file(fields: Value) -> (tempfile::TempDir, BusConfig) {
    let mut all = json!({
        "description": "", "url": "tls://broker:4222", "socks_proxy": "", "token": "", "user": "", "password": "", "creds": "", "nkey": "",
        "cert": "", "key": "", "ca": "", "nsc": "", "jetstream_domain": "", "jetstream_api_prefix": "", "jetstream_event_prefix": "",
        "inbox_prefix": "", "user_jwt": "", "user_seed": "", "color_scheme": "", "tls_first": false, "windows_cert_store": "",
        "windows_cert_match_by": "", "windows_cert_match": "", "windows_ca_certs_match": null,
    });
    all.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ops.json");
    write_secret(&path, &format!("{all:#}"), false).unwrap();
    let bus = BusConfig { context: Some(path.to_str().unwrap().to_owned()), ..BusConfig::default() };
    (folder, bus)
}

fn refused(fields: Value) -> String {
    let (_folder, bus) = file(fields);
    bus.resolved().unwrap_err().to_string()
}

#[test]
fn a_context_says_the_same_as_the_keys() {
    let home = std::env::home_dir().unwrap();
    let path = |path: &str| Some(PathBuf::from(path));
    let (_folder, bus) =
        file(json!({ "url": "tls://a:4222, b:4222", "user": "ann", "password": "hunter2", "ca": "/c/ca.pem" }));
    let bus = BusConfig { allow_plaintext: true, ..bus };
    let bus = bus.resolved().unwrap();
    assert_eq!(bus.urls, ["tls://a:4222", "nats://b:4222"]);
    assert_eq!(bus.user.as_deref(), Some("ann"));
    assert_eq!(bus.password.as_ref().unwrap().as_str(), "hunter2");
    assert_eq!(bus.tls_ca, path("/c/ca.pem"));
    assert!(bus.allow_plaintext && bus.context.is_none() && !bus.tls_first);

    let (_folder, bus) =
        file(json!({ "nkey": "file:///c/ann.nk", "cert": "/c/a.pem", "key": "/c/k.pem", "tls_first": true }));
    let bus = bus.resolved().unwrap();
    assert_eq!(
        (&bus.nkey_seed_file, &bus.tls_cert, &bus.tls_key),
        (&path("/c/ann.nk"), &path("/c/a.pem"), &path("/c/k.pem"))
    );
    assert!(bus.tls_first);

    let (_folder, bus) = file(
        json!({ "creds": "~/ann.creds", "description": "Ours", "color_scheme": "red", "inbox_prefix": "_INBOX.ann", "jetstream_domain": "hub" }),
    );
    assert_eq!(bus.resolved().unwrap().creds_file, Some(home.join("ann.creds")));
    assert_eq!(inbox_of_context(&bus).unwrap().as_deref(), Some("_INBOX.ann"));
    let (_folder, bus) = file(json!({ "token": "t0ken" }));
    assert_eq!(bus.resolved().unwrap().token.as_ref().unwrap().as_str(), "t0ken");
}

#[test]
fn what_a_context_says_is_refused_and_not_left_out() {
    for (fields, words) in [
        (json!({ "socks_proxy": "socks5://hunter2" }), &["`socks_proxy`"][..]),
        (json!({ "nsc": "nsc://O/A/hunter2" }), &["`nsc`", "nsc generate creds"]),
        (json!({ "user_jwt": "hunter2" }), &["`user_jwt`", "`creds`"]),
        (json!({ "user_seed": "hunter2" }), &["`user_seed`", "`creds`"]),
        (json!({ "jetstream_domain": "hunter2.>" }), &["`jetstream_domain`"]),
        (json!({ "jetstream_api_prefix": "hunter2" }), &["`jetstream_api_prefix`"]),
        (json!({ "windows_cert_store": "hunter2" }), &["`windows_cert_store`", "Windows"]),
        (json!({ "windows_cert_match_by": "hunter2" }), &["`windows_cert_match_by`"]),
        (json!({ "windows_cert_match": "hunter2" }), &["`windows_cert_match`"]),
        (json!({ "windows_ca_certs_match": ["hunter2"] }), &["`windows_ca_certs_match`"]),
        (json!({ "user": "ann", "password": "env://hunter2" }), &["`password`", "put it into a file"]),
        (json!({ "token": "op://hunter2" }), &["`token`"]),
        (json!({ "token": "data:;base64,hunter2" }), &["`token`"]),
        (json!({ "creds": "nsc://O/A/hunter2" }), &["`creds`"]),
        (json!({ "creds": "hunter2.creds" }), &["`creds`", "whole path"]),
        (json!({ "creds": "$HOME/hunter2" }), &["`creds`", "whole path"]),
        (json!({ "nkey": "~ann/hunter2" }), &["`nkey`", "whole path"]),
        (json!({ "ca": "file://hunter2" }), &["`ca`", "whole path"]),
        (json!({ "cert": "/hunter2" }), &["`tls_key` is missing"]),
        (json!({ "url": "" }), &["`url` is missing"]),
        (json!({ "url": "nats://ann:hunter2@a" }), &["user information"]),
        (json!({ "url": "ann:hunter2@a" }), &["user information"]),
        (json!({ "user": "ann", "password": "hunter2", "creds": "/a" }), &["different ways to log in"]),
        (json!({ "url": "nats://a", "user": "ann", "password": "hunter2" }), &["clear text"]),
        (json!({ "hunter2": "" }), &["unknown member"]),
        (json!({ "tls_first": "hunter2" }), &["`tls_first`", "boolean"]),
    ] {
        let said = refused(fields.clone());
        assert!(said.contains("ops.json") && words.iter().all(|word| said.contains(word)), "{fields}: {said}");
        assert!(!said.contains("hunter2"), "{said}");
    }
}

#[test]
fn a_context_stands_alone_and_its_name_leads_nowhere_else() {
    let (_folder, bus) = file(json!({}));
    let secret = || Some(Zeroizing::new("s".to_owned()));
    let path = || Some(PathBuf::from("file"));
    for beside in [
        BusConfig { urls: vec!["nats://a".to_owned()], ..bus.clone() },
        BusConfig { user: Some("ann".to_owned()), ..bus.clone() },
        BusConfig { password: secret(), ..bus.clone() },
        BusConfig { password_file: path(), ..bus.clone() },
        BusConfig { token: secret(), ..bus.clone() },
        BusConfig { nkey_seed: secret(), ..bus.clone() },
        BusConfig { nkey_seed_file: path(), ..bus.clone() },
        BusConfig { creds_file: path(), ..bus.clone() },
        BusConfig { tls_ca: path(), ..bus.clone() },
        BusConfig { tls_cert: path(), ..bus.clone() },
        BusConfig { tls_key: path(), ..bus.clone() },
        BusConfig { tls_first: true, ..bus.clone() },
        BusConfig { no_randomize: true, ..bus.clone() },
        BusConfig { jetstream_domain: Some("hub".to_owned()), ..bus.clone() },
    ] {
        let said = beside.check().unwrap_err().to_string();
        assert!(said.starts_with("`context`") && said.contains("leave out"), "{said}");
        assert_eq!(beside.target().map(|_| ()).unwrap_err().to_string(), said);
    }
    for name in ["", "..", "../../etc/x", "a/b", "a\\b", "a\0b", "/etc/passwd"] {
        let bus = BusConfig { context: Some(name.to_owned()), ..BusConfig::default() };
        assert!(bus.check().unwrap_err().to_string().contains("no name of a context"), "{name}");
    }
    let none = BusConfig { context: Some("no such context".to_owned()), ..BusConfig::default() };
    assert!(none.resolved().unwrap_err().to_string().contains("nats context ls"));
    let beside = |folder: &str| {
        BusConfig { context: Some("ops.json".to_owned()), ..BusConfig::default() }.relative_to(Path::new(folder))
    };
    assert_eq!(beside("/etc/x").context.as_deref(), Some("/etc/x/ops.json"));
}

#[cfg(unix)]
#[test]
fn a_context_with_a_secret_is_for_its_owner_alone() {
    use std::os::unix::fs::PermissionsExt as _;
    let open = |bus: &BusConfig, mode| {
        let path = bus.context.as_deref().unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        bus.resolved().map(drop).map_err(|error| error.to_string())
    };
    let (_folder, bus) = file(json!({ "user": "ann", "password": "hunter2" }));
    assert!(open(&bus, 0o644).unwrap_err().contains("chmod 600"));
    let (_folder, bus) = file(json!({ "creds": "/c/ann.creds" }));
    open(&bus, 0o644).unwrap();
    assert!(open(&bus, 0o666).unwrap_err().contains("chmod go-w"));
}

#[test]
fn variables_say_the_same_as_for_the_nats_command() {
    let of = |set: &[(&str, &str)]| {
        environment_login(|name| set.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned()))
    };
    assert!(of(&[]).unwrap().is_none() && of(&[("NATS_URL", ""), ("NATS_TIMEOUT", "5s")]).unwrap().is_none());
    let url = ("NATS_URL", "tls://a");
    let bus = of(&[url, ("NATS_USER", "ann"), ("NATS_PASSWORD", "hunter2"), ("NATS_CA", "ca.pem")]).unwrap().unwrap();
    assert_eq!(
        (bus.urls.as_slice(), bus.user.as_deref(), bus.tls_ca),
        (&["tls://a".to_owned()][..], Some("ann"), Some("ca.pem".into()))
    );
    assert_eq!(bus.password.unwrap().as_str(), "hunter2");
    for (name, field) in [("NATS_USER", "t0ken"), ("NATS_TOKEN", "t0ken")] {
        let bus = of(&[url, (name, field)]).unwrap().unwrap();
        assert_eq!((bus.user, bus.token.unwrap().as_str()), (None, field));
    }
    assert_eq!(of(&[url, ("NATS_CREDS", "a.creds")]).unwrap().unwrap().creds_file, Some("a.creds".into()));
    let bus = of(&[url, ("NATS_NKEY", "a.nk"), ("NATS_CERT", "c"), ("NATS_KEY", "k")]).unwrap().unwrap();
    assert_eq!(
        (bus.nkey_seed_file, bus.tls_cert, bus.tls_key),
        (Some("a.nk".into()), Some("c".into()), Some("k".into()))
    );
    assert_eq!(of(&[("NATS_CONTEXT", "ops")]).unwrap().unwrap().context.as_deref(), Some("ops"));
    for (set, words) in [
        (&[("NATS_CONTEXT", "ops"), url][..], &["`NATS_URL`", "one place"][..]),
        (&[("NATS_CREDS", "hunter2")], &["`NATS_URL` is missing"]),
        (&[url, ("NATS_JWT", "hunter2")], &["`NATS_JWT`"]),
        (&[url, ("NATS_SEED", "hunter2")], &["`NATS_SEED`"]),
        (&[url, ("NATS_SOCKS_PROXY", "hunter2")], &["`NATS_SOCKS_PROXY`"]),
        (&[("NATS_URL", "nats://ann:hunter2@a")], &["user information"]),
        (&[url, ("NATS_TOKEN", "hunter2"), ("NATS_CREDS", "a")], &["different ways"]),
        (&[("NATS_URL", "nats://a"), ("NATS_TOKEN", "hunter2")], &["clear text"]),
    ] {
        let said = of(set).unwrap_err().to_string();
        assert!(said.starts_with("the environment") && words.iter().all(|word| said.contains(word)), "{said}");
        assert!(!said.contains("hunter2"), "{said}");
    }
}
