//! Credentials from files, and tokens that are renewed while calls continue.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sealwire::call::FetchedToken;
use sealwire::errors::ErrorKind;
use sealwire::internal::auth::IssueRequest;
use sealwire::internal::files::write_secret;
use sealwire::{BusConfig, Client, Clock as _, Credentials, TokenSource};

use super::{Stage, eventually};
use sealwire_testkit::desk::NOW;
use sealwire_testkit::{SOON, within};

fn token(stage: &Stage, ttl_s: u64) -> String {
    let mut request = IssueRequest::new("ann", "test/desk", stage.desk.clock.now_s());
    request.roles = ["worker".to_owned()].into();
    request.ttl_s = ttl_s;
    stage.desk.issuer.issue(&request).unwrap()
}

fn without_token(stage: &Stage) -> Credentials {
    let agent = stage.desk.agent("ann", &[]);
    Credentials::new("test".parse().unwrap(), agent.name, agent.key, BusConfig::open(&stage.server.url()))
}

async fn connect(stage: &Stage, credentials: Credentials) -> Client {
    let client = Client::builder(credentials).clock(stage.desk.clock.clone()).deadline(SOON);
    within(SOON, client.connect()).await.unwrap()
}

async fn count(client: &Client) -> Result<u64, ErrorKind> {
    within(SOON, client.call("desk", "desk/count", ())).await.map_err(|error| error.kind())
}

/// SPEC.md §20.
#[tokio::test]
async fn credentials_file_makes_a_client_and_is_refused_when_others_can_read_it() {
    let stage = Stage::open().await;
    let _serving = stage.serve().await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ann.creds.json");
    write_secret(&folder.path().join("ann.jwt"), &format!("{}\n", token(&stage, 900)), true).unwrap();
    without_token(&stage).token_file("ann.jwt").save(&path, false).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let client = connect(&stage, Credentials::load(&path).unwrap()).await;
    assert_eq!(count(&client).await, Ok(1));
    for mode in [0o644, 0o640, 0o604] {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        let error = Credentials::load(&path).unwrap_err().to_string();
        assert!(error.contains("chmod 600"), "{error}");
    }
}

/// SPEC.md §20.
#[tokio::test]
async fn token_file_is_read_again_when_it_changes() {
    let stage = Stage::open().await;
    let _serving = stage.serve().await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ann.jwt");
    write_secret(&path, &token(&stage, 100), true).unwrap();
    let client = connect(&stage, without_token(&stage).token_file(&path)).await;
    assert_eq!(count(&client).await, Ok(1));
    // The old token expires; there is a new one, possibly of the same length.
    stage.desk.clock.set_ms((NOW + 200) * 1000);
    assert_eq!(count(&client).await, Err(ErrorKind::Token), "the file was read again, and held the old one");
    tokio::time::sleep(Duration::from_millis(1_050)).await;
    write_secret(&path, &token(&stage, 100), true).unwrap();
    assert_eq!(count(&client).await, Ok(2));
    // A damaged or missing file does no harm while the token in use lasts.
    for damage in [Some("nonsense"), None] {
        match damage {
            Some(text) => write_secret(&path, text, true).unwrap(),
            None => std::fs::remove_file(&path).unwrap(),
        }
        tokio::time::sleep(Duration::from_millis(1_050)).await;
        assert!(count(&client).await.is_ok());
    }
    stage.desk.clock.set_ms((NOW + 400) * 1000);
    tokio::time::sleep(Duration::from_millis(1_050)).await;
    let error = within(SOON, client.call::<u64>("desk", "desk/count", ())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Token);
    assert!(error.to_string().contains("`token_file`"), "{error}");
    assert!(!error.is_outcome_unknown());
}

#[tokio::test]
async fn changed_token_file_is_used_while_the_old_token_is_still_valid() {
    let stage = Stage::open().await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ann.jwt");
    write_secret(&path, &token(&stage, 900), true).unwrap();
    let mut seen = stage.overhear().await;
    let client = connect(&stage, without_token(&stage).token_file(&path)).await;
    within(SOON, client.notify("desk", "desk/count", ())).await.unwrap();
    let new = token(&stage, 901);
    write_secret(&path, &new, true).unwrap();
    let mut is_new = async || {
        let message = within(SOON, futures_util::StreamExt::next(&mut seen)).await.unwrap();
        message.headers.unwrap().get("Authorization").unwrap().as_str().contains(&new)
    };
    assert!(!is_new().await);
    let used = async {
        loop {
            tokio::time::sleep(Duration::from_millis(1_050)).await;
            // The call that finds the file changed does not wait for it long, as the old token is still good.
            client.notify("desk", "desk/count", ()).await.unwrap();
            if is_new().await {
                return;
            }
        }
    };
    within(SOON, used).await;
}

fn script(folder: &Path, name: &str, text: &str) -> String {
    let (path, written) = (folder.join(name), folder.join(format!("{name}.text")));
    std::fs::write(&written, format!("#!/bin/sh\n{text}\n")).unwrap();
    std::fs::set_permissions(&written, std::fs::Permissions::from_mode(0o700)).unwrap();
    // Copied by another process: a program that this one has open for writing, if only through a fork that another test's thread makes at
    // that moment, cannot be run ("text file busy").
    assert!(std::process::Command::new("cp").arg(&written).arg(&path).status().unwrap().success());
    path.to_str().unwrap().to_owned()
}

/// SPEC.md §20.1.
#[tokio::test]
async fn token_command_is_run_again_before_the_token_expires() {
    let stage = Stage::open().await;
    let _serving = stage.serve().await;
    let folder = tempfile::tempdir().unwrap();
    let runs = || std::fs::read_to_string(folder.path().join("runs")).unwrap_or_default().len();
    write_secret(&folder.path().join("token"), &token(&stage, 300), true).unwrap();
    script(folder.path(), "fetch", r#"printf x >> runs; printf '  %s\n' "$(cat "$1")""#);
    let path = folder.path().join("ann.creds.json");
    // Relative to the folder of the credentials.
    without_token(&stage).token_command(["./fetch", "token"]).save(&path, false).unwrap();
    let client = connect(&stage, Credentials::load(&path).unwrap()).await;
    for n in 1..=3 {
        assert_eq!(count(&client).await, Ok(n));
    }
    assert_eq!(runs(), 1, "once for all calls");
    // 20 % of its life is left: 60 s.
    stage.desk.clock.set_ms((NOW + 239) * 1000);
    assert_eq!(count(&client).await, Ok(4));
    assert_eq!(runs(), 1);
    stage.desk.clock.set_ms((NOW + 241) * 1000);
    write_secret(&folder.path().join("token"), &token(&stage, 300), true).unwrap();
    tokio::time::sleep(Duration::from_millis(5_050)).await;
    assert_eq!(count(&client).await, Ok(5));
    assert_eq!(count(&client).await, Ok(6));
    // The call that finds it due waits only a little, as the old one is still good.
    eventually("it is run again", || runs() == 2).await;
    assert_eq!(count(&client).await, Ok(7));
    assert_eq!(runs(), 2);
}

#[tokio::test]
async fn token_command_that_fails_says_why_and_shows_nothing_it_printed() {
    let stage = Stage::open().await;
    let folder = tempfile::tempdir().unwrap();
    let cases = [
        ("exit", "echo s3cret; exit 3", "exit status: 3"),
        ("text", "echo s3cret", "something other than an access token"),
        ("long", "head -c 9000 /dev/zero | tr '\\0' s", "more than 8192 bytes"),
        ("binary", "printf '\\377\\300'", "not UTF-8 text"),
        ("utf16", "printf '\\377\\376s\\0003\\000'", "UTF-16 text"),
    ];
    for (name, text, reason) in cases {
        let program = script(folder.path(), name, text);
        let client = connect(&stage, without_token(&stage).token_command([program])).await;
        let error = within(SOON, client.call::<u64>("desk", "desk/count", ())).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Token);
        assert!(error.to_string().contains(reason) && !error.to_string().contains("s3cret"), "{name}: {error}");
        assert!(!format!("{error:?}").contains("s3cret"));
    }
    let client = connect(&stage, without_token(&stage).token_command(["/no/such/program"])).await;
    let error = within(SOON, client.call::<u64>("desk", "desk/count", ())).await.unwrap_err();
    assert!(error.to_string().contains("`token_command` names a program"), "{error}");
}

/// Counts how often it is asked, and returns the token that it has.
#[derive(Debug)]
struct Counting(Arc<AtomicU64>, String);

impl TokenSource for Counting {
    fn fetch(&self) -> FetchedToken<'_> {
        Box::pin(async {
            self.0.fetch_add(1, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(50)).await;
            Ok(self.1.clone())
        })
    }
}

#[tokio::test]
async fn source_is_asked_once_however_many_calls_wait_for_it() {
    let stage = Stage::open().await;
    let _serving = stage.serve().await;
    let asked = Arc::new(AtomicU64::new(0));
    let source = Counting(Arc::clone(&asked), token(&stage, 900));
    let client = connect(&stage, without_token(&stage).token_source(source)).await;
    assert_eq!(asked.load(Ordering::SeqCst), 0, "not before it is needed");
    let calls = futures_util::future::join_all((0..40).map(|_| client.call::<u64>("desk", "desk/count", ())));
    assert!(within(SOON, calls).await.iter().all(Result::is_ok));
    assert_eq!(asked.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn expired_token_is_told_before_anything_is_sent() {
    let stage = Stage::open().await;
    let mut seen = stage.overhear().await;
    let old = token(&stage, 60);
    stage.desk.clock.set_ms((NOW + 61) * 1000);
    let client = connect(&stage, without_token(&stage).token(old)).await;
    let error = within(SOON, client.call::<u64>("desk", "desk/count", ())).await.unwrap_err();
    assert!(error.to_string().contains("expired 1 s ago"), "{error}");
    assert!(super::at_once(&mut seen).is_none());
}
