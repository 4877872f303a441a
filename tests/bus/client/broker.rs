//! What the broker forbids, loses or damages: reported for what it is, at once, and survived.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sealwire::errors::ErrorKind;
use sealwire::{BusConfig, Client, ClientError};
use zeroize::Zeroizing;

use super::{Stage, at_once, eventually};
use sealwire_testkit::raw::RawConnection;
use sealwire_testkit::{NatsServer, SOON, within};

const USERS: &str = r#"
authorization {
  users = [
    { user: svc, password: s, permissions: { publish: ["_INBOX.>"], subscribe: ["rpc.v1.desk.>", "_INBOX.fence.>"] } }
    { user: ann, password: a, permissions: { publish: ["rpc.v1.desk.ann.desk.add", "rpc.v1.other.ann"], subscribe: ["_INBOX.ann.>"] } }
    { user: deaf, password: d, permissions: { publish: ["rpc.v1.>"], subscribe: ["_INBOX.deaf.>"] } }
  ]
}
"#;

fn user(stage: &Stage, name: &str, password: &str) -> BusConfig {
    BusConfig {
        user: Some(name.to_owned()),
        password: Some(Zeroizing::new(password.to_owned())),
        ..BusConfig::open(&stage.server.url())
    }
}

async fn client_as(stage: &Stage, name: &str, password: &str) -> Client {
    let agent = stage.desk.agent("ann", &["worker"]);
    let bus = user(stage, name, password);
    let credentials = sealwire::Credentials::new("test".parse().unwrap(), agent.name, agent.key, bus);
    let client = Client::builder(credentials.token(agent.token)).clock(stage.desk.clock.clone());
    within(SOON, client.connect()).await.unwrap()
}

/// SPEC.md §13.2.
#[tokio::test]
async fn forbidden_subject_is_told_at_once_and_by_name() {
    let stage = Stage::open_on(NatsServer::start_with(USERS).await);
    let _serving = stage.serve_as(Some(("svc", "s"))).await;
    let client = client_as(&stage, "ann", "a").await;
    // After the deadline, the error would be another.
    let error = within(SOON, client.call::<u64>("desk", "desk/count", ())).await.unwrap_err();
    assert!(
        matches!(&error, ClientError::Forbidden { subject, sent: false } if subject == "rpc.v1.desk.ann"),
        "{error:?}"
    );
    assert!(!error.is_outcome_unknown());
    // All calls on that subject fail, and only those: the method's own subject is permitted.
    let forbidden = (0..50).map(|_| client.call::<u64>("desk", "desk/count", ()));
    let permitted = (0..50).map(|n| client.request("desk").on_method_subject().call::<i64>("desk/add", (n, 1)));
    let both = futures_util::future::join(
        futures_util::future::join_all(forbidden),
        futures_util::future::join_all(permitted),
    );
    let (forbidden, permitted) = within(SOON, both).await;
    assert!(forbidden.into_iter().all(|error| error.unwrap_err().kind() == ErrorKind::Forbidden));
    assert!(permitted.into_iter().all(|sum| sum.is_ok()));
    // A permitted subject without a listener is another error.
    let error = within(SOON, client.call::<u64>("other", "desk/count", ())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoResponders, "{error}");
    assert_eq!(client.stats().pending, 0);
}

#[tokio::test]
async fn forbidden_inbox_is_told_at_once() {
    let stage = Stage::open_on(NatsServer::start_with(USERS).await);
    let _serving = stage.serve_as(Some(("svc", "s"))).await;
    let client = client_as(&stage, "deaf", "d").await;
    // The first call may be sent before the broker refuses the inbox.
    for may_be_sent in [true, false] {
        let error = within(SOON, client.call::<u64>("desk", "desk/count", ())).await.unwrap_err();
        let ClientError::InboxForbidden { subject, sent } = &error else { panic!("{error:?}") };
        assert!(subject.starts_with("_INBOX.ann.") && (may_be_sent || !sent), "{error:?}");
        assert_eq!(error.is_outcome_unknown(), *sent);
    }
    // A notification needs no inbox.
    let before = stage.executed();
    within(SOON, client.notify("desk", "desk/count", ())).await.unwrap();
    eventually("it is executed", || stage.executed() > before).await;
}

#[tokio::test]
async fn broker_that_refuses_or_is_not_there_is_told_when_connecting() {
    let stage = Stage::open_on(NatsServer::start_with(USERS).await);
    let agent = stage.desk.agent("ann", &["worker"]);
    let credentials = |bus, agent: sealwire_testkit::desk::Agent| {
        sealwire::Credentials::new("test".parse().unwrap(), agent.name, agent.key, bus).token(agent.token)
    };
    let wrong = credentials(user(&stage, "ann", "wrong"), agent);
    let error = within(SOON, Client::connect(wrong)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Connect);
    assert!(error.to_string().contains("refuses our user"), "{error}");
    let nobody = credentials(BusConfig::open("nats://127.0.0.1:1"), stage.desk.agent("ann", &[]));
    let error = within(SOON, Client::connect(nobody)).await.unwrap_err();
    assert!(error.to_string().contains("is it running"), "{error}");
}

#[tokio::test]
async fn message_above_the_broker_s_limit_is_not_sent() {
    let stage = Stage::open_on(NatsServer::start_with("max_payload: 65536").await);
    let _serving = stage.serve().await;
    let client = stage.client("ann").await;
    let error = within(SOON, client.call::<()>("desk", "desk/add", ("x".repeat(70_000), 1))).await.unwrap_err();
    assert!(matches!(error, ClientError::TooLarge { limit: 65_536, size } if size > 70_000), "{error:?}");
    assert_eq!(within(SOON, client.call::<i64>("desk", "desk/add", (1, 2))).await.unwrap(), 3);
}

#[tokio::test]
async fn nothing_that_was_given_up_while_disconnected_is_sent_later() {
    let mut stage = Stage::open().await;
    let client = stage.client("ann").await;
    let serving = stage.serve().await;
    assert_eq!(within(SOON, client.call::<u64>("desk", "desk/count", ())).await.unwrap(), 1);
    drop(serving);
    stage.server.kill().await;
    eventually("the client knows", || !client.is_connected()).await;
    let calls = (0..100).map(|_| {
        let call = client.request("desk").deadline(Duration::from_millis(300));
        async move { call.call::<u64>("desk/count", ()).await }
    });
    for error in within(SOON, futures_util::future::join_all(calls)).await {
        let error = error.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Disconnected, "{error}");
        assert!(!error.is_outcome_unknown());
    }
    let note = client.request("desk").deadline(Duration::from_millis(100)).notify("desk/count", ());
    assert_eq!(within(SOON, note).await.unwrap_err().kind(), ErrorKind::Disconnected);
    // Another call waits long enough to see the broker again. If it is sent before the service listens, only `seen` below
    // hears it, and it is repeated.
    let patient = tokio::spawn({
        let client = client.clone();
        async move {
            let mut calls = 0;
            loop {
                calls += 1;
                let call = client.request("desk").idempotent().deadline(Duration::from_secs(4));
                match call.call::<u64>("desk/count", ()).await {
                    // Also if the broker takes longer than that to come back.
                    Err(error)
                        if matches!(
                            error.kind(),
                            ErrorKind::Timeout
                                | ErrorKind::Disconnected
                                | ErrorKind::ConnectionLost
                                | ErrorKind::NoResponders
                        ) => {}
                    answer => break (calls, answer),
                }
            }
        }
    });
    stage.server.restart().await;
    let mut seen = stage.overhear().await;
    let _serving = stage.serve().await;
    let (calls, answer) = within(2 * SOON, patient).await.unwrap();
    // On a busy machine, an earlier one of these calls may have been executed too late for its caller.
    let executed = answer.unwrap();
    assert!((2..=1 + calls).contains(&executed), "{executed} of {calls}");
    tokio::time::sleep(Duration::from_millis(300)).await;
    let mut messages = 0;
    while at_once(&mut seen).is_some() {
        messages += 1;
    }
    assert!(messages <= 10 * calls, "only the attempts of {calls} calls were sent, not {messages}");
    assert_eq!(stage.executed(), executed);
    assert!(client.is_connected() && client.stats().connected && client.stats().disconnects >= 1);
}

#[tokio::test]
async fn call_under_way_when_the_connection_is_lost_says_so() {
    let mut stage = Stage::open().await;
    let client = stage.client("ann").await;
    let arrived = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&arrived);
    let silent = stage.answer_with(None, move |_, _| {
        count.fetch_add(1, Ordering::SeqCst);
        async {}
    });
    let _silent = silent.await;
    let calls: Vec<_> = [false, true]
        .into_iter()
        .map(|idempotent| {
            let call = client.request("desk").deadline(Duration::from_secs(10));
            let call = if idempotent { call.idempotent() } else { call };
            tokio::spawn(async move { call.call::<u64>("desk/count", ()).await })
        })
        .collect();
    // What waits may not have been sent yet.
    eventually("both were sent", || arrived.load(Ordering::SeqCst) == 2).await;
    stage.server.kill().await;
    let mut errors = Vec::new();
    for call in calls {
        let error = within(SOON, call).await.unwrap().unwrap_err();
        assert!(error.kind() == ErrorKind::ConnectionLost && error.is_outcome_unknown(), "{error:?}");
        errors.push(error);
    }
    // The idempotent call was waiting to be sent again. Only its last attempt was certainly not sent.
    let [ClientError::ConnectionLost, ClientError::Repeated { last, .. }] = &errors[..] else { panic!("{errors:?}") };
    assert_eq!(last.kind(), ErrorKind::Disconnected);
    assert_eq!(client.stats().pending, 0);
}

#[tokio::test]
async fn paused_broker_holds_no_call_beyond_its_deadline() {
    let mut stage = Stage::open().await;
    let client = stage.client("ann").await;
    let _serving = stage.serve().await;
    stage.server.pause().await;
    // With large payloads, more than fits into the library's queue.
    let calls = (0..3000).map(|_| {
        let call = client.request("desk").deadline(Duration::from_millis(1_500));
        async move { call.call::<()>("desk/add", ("x".repeat(10_000), 1)).await }
    });
    for error in within(2 * SOON, futures_util::future::join_all(calls)).await {
        let kind = error.unwrap_err().kind();
        assert!(matches!(kind, ErrorKind::Timeout | ErrorKind::Busy | ErrorKind::Disconnected), "{kind:?}");
    }
    assert_eq!(client.stats().pending, 0);
    stage.server.resume().await;
}

/// An attacker who sees one reply subject knows the inbox. It sends every kind of poison to the reply subjects of waiting
/// calls, ten thousand a second: each call gets its answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn poison_in_the_inbox_at_ten_thousand_a_second_fails_no_call() {
    let stage = Stage::open().await;
    let _serving = stage.serve().await;
    let client = stage.client("ann").await;
    let mut seen = stage.overhear().await;
    let target = Arc::new(Mutex::new("_INBOX.nobody.1".to_owned()));
    let watching = tokio::spawn({
        let target = Arc::clone(&target);
        async move {
            while let Some(message) = futures_util::StreamExt::next(&mut seen).await {
                *target.lock().unwrap() = message.reply.unwrap().to_string();
            }
        }
    });
    let stop = Arc::new(AtomicBool::new(false));
    let calls: Vec<_> = (0..4)
        .map(|_| {
            let (client, stop) = (client.clone(), Arc::clone(&stop));
            tokio::spawn(async move {
                let mut answered = 0;
                while !stop.load(Ordering::Relaxed) {
                    let call = client.request("desk").deadline(SOON).call::<u64>("desk/sleep", (20,));
                    assert_eq!(call.await.unwrap(), 20, "after {answered}");
                    answered += 1;
                }
                answered
            })
        })
        .collect();
    let url = stage.server.url();
    let flood = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut raw = RawConnection::connect(&url, None).await;
            raw.flood(10_000, Duration::from_secs(3), || (target.lock().unwrap().clone(), "_INBOX.eve.1".into())).await
        })
    });
    let sent = within(2 * SOON, flood).await.unwrap();
    stop.store(true, Ordering::Relaxed);
    let mut answered = 0;
    for call in calls {
        answered += within(2 * SOON, call).await.unwrap();
    }
    watching.abort();
    let stats = client.stats();
    println!("{sent} poison messages, {answered} calls answered, none failed; {stats:?}");
    assert!(sent == 30_000 && answered > 20, "{sent} {answered}");
    assert!(stats.unverifiable > 1_000 && stats.disconnects == 0 && stats.pending == 0, "{stats:?}");
}

#[tokio::test]
async fn dropped_client_leaves_no_task_behind() {
    let stage = Stage::open().await;
    let _serving = stage.serve().await;
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    for end in ["dropped", "closed", "dropped while it waits"] {
        let client = stage.client("ann").await;
        within(SOON, client.call::<i64>("desk", "desk/add", (1, 2))).await.unwrap();
        assert!(tasks() > before);
        match end {
            "closed" => within(SOON, client.close()).await,
            "dropped" => {}
            _ => {
                let call = client.call::<u64>("desk", "desk/sleep", (5_000,));
                assert!(tokio::time::timeout(Duration::from_millis(50), call).await.is_err());
            }
        }
        drop(client);
        // The sleeping method belongs to the service, and ends at its deadline.
        let left = if end == "dropped while it waits" { before + 1 } else { before };
        eventually(end, || tasks() <= left).await;
    }
}
