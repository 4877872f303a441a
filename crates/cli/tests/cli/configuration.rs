//! The pages and schemas of both configuration files in docs/: what the code prints, and what it reads.
//! `SEALWIRE_WRITE_DOCS=1 cargo test --test cli configuration::` writes them.

mod walk;

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::shell::Shell;
use sealwire::{Config, ConfigError};
use sealwire_backend::{BackendConfig, BackendTables};
use serde_json::{Map, Value, json};
use walk::Members;

fn root(path: &str) -> PathBuf {
    sealwire_testkit::root().join(path)
}

#[test]
fn the_published_page_and_schema_are_what_the_command_prints() {
    let shell = Shell::new();
    for (command, path) in [
        ("reference", "docs/configuration.md"),
        ("schema", "docs/sealwire.schema.json"),
        ("reference --gateway", "docs/gateway/configuration.md"),
        ("schema --gateway", "docs/gateway/gateway.schema.json"),
    ] {
        let printed = shell.run(&format!("config {command}")).ok().stdout;
        if std::env::var_os("SEALWIRE_WRITE_DOCS").is_some() {
            std::fs::write(root(path), &printed).unwrap();
        }
        let published = std::fs::read_to_string(root(path)).unwrap();
        assert!(printed == published, "{path} is not what the code says: SEALWIRE_WRITE_DOCS=1 writes it anew");
    }
}

fn json_schema() -> Value {
    serde_json::from_str(&Shell::new().run("config schema").ok().stdout).unwrap()
}

/// The members of a schema, in the form of [`walk::members`] for a type.
fn members(schema: &Value, path: &str, found: &mut Members) {
    let list = |choices: &Value| format!("{:?}", serde_json::from_value::<Vec<String>>(choices.clone()).unwrap());
    let kind = match (schema.get("type").and_then(Value::as_str), schema.get("enum")) {
        (Some("array"), _) => return members(&schema["items"], &format!("{path}[]"), found),
        (Some("object"), _) => {
            let dot = if path.is_empty() { "" } else { "." };
            for (name, schema) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
                members(schema, &format!("{path}{dot}{name}"), found);
            }
            if schema["additionalProperties"] != false {
                members(&schema["additionalProperties"], &format!("{path}{dot}*"), found);
            }
            return;
        }
        (Some(kind), _) => kind.to_owned(),
        (None, Some(choices)) => list(choices),
        (None, None) => schema["$ref"].as_str().unwrap().trim_start_matches("#/$defs/").to_owned(),
    };
    found.insert(path.to_owned(), kind);
}

#[test]
fn every_key_that_is_read_is_described_and_every_described_one_is_read() {
    let mut described = Members::new();
    members(&json_schema(), "", &mut described);
    assert!(described.len() > 80, "{described:?}");
    let mut read = walk::members::<Config>();
    read.extend(walk::members::<BackendTables>());
    assert_eq!(described, read);
    let page = Shell::new().run("config reference").ok().stdout;
    assert!(!page.contains("|  |") && !page.contains("| , from"), "a key without a meaning or a unit");
    for path in described.keys() {
        let name = path.trim_end_matches("[]").trim_end_matches(".*").rsplit('.').next().unwrap();
        assert!(page.contains(&format!("| `{name}` |")), "{path}");
    }
}

/// A configuration with every possible table, each with only its required members.
fn base() -> Value {
    json!({
        "environment": "dev", "service": "math", "keys": { "ring": "ring.json" }, "policy": { "folder": "policies" },
        "nats": { "urls": ["nats://127.0.0.1:4222"] },
        "tokens": { "issuer": [{
            "issuer": "https://idp.example", "jwks_url": "https://idp.example/keys",
            "roles": {}, "agent": { "claim": "azp" }, "may": {},
        }] },
        "replay": { "nats": { "urls": ["tls://127.0.0.1:4222"] } }, "limits": {}, "reload": {}, "files": {},
        "backend": [{ "name": "a", "kind": "stdio", "credential": [{}], "method": [{
            "name": "a/b", "params": [{ "name": "x", "type": "any" }], "http": { "path": "/x" },
        }] }],
    })
}

fn load(document: &Value) -> Result<(Config, Vec<BackendConfig>), ConfigError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sealwire.toml");
    // It may contain a password.
    sealwire::internal::files::write_secret(&path, &toml::to_string(document).unwrap(), true).unwrap();
    sealwire_backend::load(&path)
}

/// Every key of a schema whose table is in `document`: its place, its name and its schema.
fn keys(schema: &Value, document: &Value, at: &str, found: &mut Vec<(String, String, Value)>) {
    match document {
        Value::Array(items) => {
            for (position, item) in items.iter().enumerate() {
                keys(&schema["items"], item, &format!("{at}/{position}"), found);
            }
        }
        Value::Object(members) => {
            for (name, schema) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
                found.push((at.to_owned(), name.clone(), schema.clone()));
                if let Some(value) = members.get(name) {
                    keys(schema, value, &format!("{at}/{name}"), found);
                }
            }
        }
        _ => {}
    }
}

fn all_keys() -> Vec<(String, String, Value)> {
    let mut found = Vec::new();
    keys(&json_schema(), &base(), "", &mut found);
    found
}

/// [`base`] with this value at `name` in the table at `at`.
fn with(at: &str, name: &str, value: &Value) -> Value {
    let mut document = base();
    document.pointer_mut(at).unwrap().as_object_mut().unwrap().insert(name.to_owned(), value.clone());
    document
}

/// The text of an effective configuration, without the folder that it was in.
fn in_force(document: &Value) -> String {
    let config = load(document).unwrap_or_else(|error| panic!("{error}: {document}"));
    let folder = config.0.policy.folder.parent().unwrap().display().to_string();
    format!("{config:?}").replace(&folder, "")
}

#[test]
fn a_key_with_its_default_changes_nothing() {
    // `None` until they are used; then the constant applies that the page quotes.
    let late = [
        "leeway_s",
        "max_lifetime_s",
        "refresh_s",
        "keep_s",
        "key_use",
        "stream_messages",
        "outcomes",
        "outcome_bytes",
        "answer_within_ms",
        "processes",
        "in_flight",
        "timeout_s",
        "memory_mib",
        "open_files",
        "send_caller",
    ];
    let usual = in_force(&base());
    let keys = all_keys();
    let defaults = keys.iter().filter_map(|(at, name, schema)| Some((at, name, schema.get("default")?)));
    let mut count = 0;
    for (at, name, default) in defaults {
        let now = in_force(&with(at, name, default));
        let text = default.to_string();
        let expected = if late.contains(&name.as_str()) && !at.ends_with("/limits") {
            // Only its own `None` has become the value.
            now.replacen(&format!("{name}: Some({text})"), &format!("{name}: None"), 1)
        } else {
            now
        };
        assert_eq!(expected, usual, "{at}/{name} = {default}");
        count += 1;
    }
    assert!(count > 30, "{count}");
}

#[test]
fn numbers_at_the_ends_of_their_range_load_and_those_beyond_do_not() {
    let mut count = 0;
    for (at, name, schema) in all_keys() {
        let Some(least) = schema.get("minimum").and_then(Value::as_u64) else { continue };
        let most = schema.get("maximum").and_then(Value::as_u64);
        for good in [Some(least), most].into_iter().flatten() {
            load(&with(&at, &name, &json!(good))).unwrap_or_else(|error| panic!("{at}/{name} = {good}: {error}"));
        }
        for bad in [least.checked_sub(1), most.and_then(|most| most.checked_add(1))].into_iter().flatten() {
            let error = load(&with(&at, &name, &json!(bad))).map(drop).unwrap_err().to_string();
            assert!(error.contains(&name), "{at}/{name} = {bad}: {error}");
        }
        count += 1;
    }
    assert!(count > 20, "{count}");
    let error = load(&with("/limits", "batch", &json!(51))).map(drop).unwrap_err().to_string();
    assert!(error.ends_with("`limits.batch` is 51: write 1 to 50. The most entries of a batch."), "{error}");
    let error = load(&with("/replay", "window_s", &json!(29))).map(drop).unwrap_err().to_string();
    assert!(error.contains("write 30 to 300") && error.contains("Clients sign for 30 s"), "{error}");
}

/// Whatever is written in place of a value, the error names the file, the line and the key, and nothing of the value.
#[test]
fn a_value_of_the_wrong_kind_is_told_with_its_place_and_its_key() {
    let mut count = 0;
    for (at, name, _) in all_keys() {
        for wrong in [json!([[["hunter2"]]]), json!({ "hunter2": ["hunter2"] }), json!(1.5)] {
            let error = match load(&with(&at, &name, &wrong)) {
                // A map of texts takes any name, and its values are checked.
                Ok(_) => panic!("{at}/{name} = {wrong} loads"),
                Err(error) => error.to_string(),
            };
            let is_placed = error.contains("sealwire.toml`, line ") && error.contains(", column ");
            assert!(is_placed && error.contains(&name) && !error.contains("hunter2"), "{at}/{name} = {wrong}: {error}");
            count += 1;
        }
    }
    assert!(count > 300, "{count}");
    println!("{count} wrong values");
}

/// The verdicts of a third-party library on these documents; `None` without Python.
fn verdicts(documents: &[Value]) -> Option<Vec<Option<String>>> {
    let script = root("crates/cli/tests/cli/configuration/judge.py");
    let mut judge = Command::new(sealwire_testkit::python::python()?);
    let mut child = judge.arg("-B").arg(script).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let given = json!({ "schema": json_schema(), "documents": documents });
    child.stdin.take().unwrap().write_all(given.to_string().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "the schema is none");
    Some(serde_json::from_slice(&output.stdout).unwrap())
}

/// Every configuration, or part of one, that the documents and the command show or write.
fn shown() -> Vec<(String, Value)> {
    let mut texts = Vec::new();
    // Pictures contain none.
    let is_text = |page: &PathBuf| page.extension().is_none_or(|extension| extension != "png");
    for page in sealwire_testkit::files_below(&root("docs")).into_iter().filter(is_text).chain([
        root("README.md"),
        root("SPEC.md"),
        root("src/config.rs"),
        root("src/config/issuer.rs"),
        root("crates/backend/src/tables.rs"),
    ]) {
        let text = std::fs::read_to_string(&page).unwrap().replace("\n/// ", "\n").replace("\n///\n", "\n\n");
        for (start, end) in [("```toml\n", "```"), ("cat > sealwire.toml <<'TOML'\n", "TOML\n")] {
            let blocks = text.split(start).skip(1).map(|rest| rest.split(end).next().unwrap().to_owned());
            texts.extend(blocks.map(|block| (page.display().to_string(), block)));
        }
    }
    let shell = Shell::new();
    let help = shell.run("serve --help").ok().stdout;
    let (_, help) = help.split_once("A small configuration:\n").unwrap();
    texts.push(("serve --help".to_owned(), help.replace("\n  ", "\n").trim().to_owned()));
    shell.run("init project --url nats://127.0.0.1:4222").ok();
    texts.push(("init".to_owned(), shell.read("project/sealwire.toml")));
    shell.run("setup cluster --out set-up").ok();
    for service in ["demo", "bank"] {
        texts.push((format!("setup cluster, {service}"), shell.read(&format!("set-up/{service}/sealwire.toml"))));
    }
    let known = json_schema();
    let known = known["properties"].as_object().unwrap();
    let parsed = texts.into_iter().filter_map(|(place, text)| {
        let part: Map<String, Value> = toml::from_str(&text).ok()?;
        // Some blocks are policy files.
        (!part.is_empty() && part.keys().all(|name| known.contains_key(name))).then_some((place, part))
    });
    parsed
        .map(|(place, part)| {
            let mut document = base();
            document.as_object_mut().unwrap().extend(part);
            (place, document)
        })
        .collect()
}

#[test]
fn the_schema_refuses_only_what_does_not_load_and_every_example_passes_both() {
    let good = shown();
    for page in ["init", "identity-providers.md", "serve --help", "setup cluster, bank", "config.rs", "issuer.rs"] {
        assert!(good.iter().any(|(place, _)| place.ends_with(page)), "{page}");
    }
    let mut bad = Vec::new();
    for (at, name, _) in all_keys() {
        // No key takes a fractional number.
        bad.push((format!("{at}/{name}"), name.clone(), with(&at, &name, &json!(1.5))));
        bad.push((at.clone(), String::new(), with(&at, "hunter2", &json!("x"))));
    }
    for (at, name, value) in [
        ("/nats", "password", json!("hunter2")),
        ("/nats", "tls_cert", json!("cert.pem")),
        ("/nats", "urls", json!([])),
        ("/tokens", "issuer", json!([])),
        ("", "service", json!("a b")),
        ("", "prefix", json!("a..b")),
        ("/tokens/issuer/0", "id", json!("a..b")),
        ("/tokens/issuer/0/may", "agents", json!(["a*b"])),
        ("/tokens/issuer/0", "jwks", json!("jwks.json")),
    ] {
        bad.push((format!("{at}/{name}"), String::new(), with(at, name, &value)));
    }
    for (place, document) in &good {
        load(document).unwrap_or_else(|error| panic!("{place}: {error}"));
    }
    for (place, name, document) in &bad {
        // Errors that involve several members are found when everything is read together.
        match load(document).and_then(|(config, _)| config.endpoint().map(|_| config)) {
            Ok(config) => assert!(place.starts_with("/tokens"), "{place}: {config:?}"),
            Err(error) => {
                let error = error.to_string();
                assert!(error.contains(name) && !error.contains("hunter2"), "{place}: {error}");
            }
        }
    }
    let documents: Vec<Value> =
        good.iter().map(|(_, document)| document).chain(bad.iter().map(|(.., d)| d)).cloned().collect();
    let Some(verdicts) = verdicts(&documents) else { return };
    let (passed, refused) = verdicts.split_at(good.len());
    for ((place, _), fault) in good.iter().zip(passed) {
        assert_eq!(fault, &None, "{place}");
    }
    for ((place, ..), fault) in bad.iter().zip(refused) {
        assert!(fault.is_some(), "{place}");
    }
}
