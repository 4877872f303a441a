//! Calls for which nobody waits, at two replicas on a real server: SPEC.md §6.5.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::StreamExt as _;
use sealwire::internal::auth::{ReplayGuard, SharedGuard};
use sealwire::{BusConfig, Ctx, Idempotent, Router, RpcError};
use sealwire_testkit::admits::Admits;
use sealwire_testkit::desk::{Desk, Setup, call};
use sealwire_testkit::{NatsServer, SOON, within};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::sleep;

use super::outcomes::{guard, store};

const HOUR: Duration = Duration::from_secs(3600);

/// Replicas of one service without sockets of their own, sharing one guard's stream.
struct Replicas {
    desks: Vec<Desk>,
    runs: Arc<AtomicUsize>,
    may_end: watch::Sender<bool>,
    _guards: Vec<Arc<SharedGuard>>,
}

impl Replicas {
    /// Whose tasks have leases of so long. The guard admits everything, so that only the store of outcomes is asked.
    async fn open(server: &NatsServer, lease: Duration) -> Self {
        let (runs, (may_end, ends)) = (Arc::new(AtomicUsize::new(0)), watch::channel(false));
        let (mut desks, mut guards) = (Vec::new(), Vec::new());
        for _ in 0..2 {
            let guard = guard(BusConfig::open(&server.url()), |_| {}).await;
            let (begun, ends) = (Arc::clone(&runs), ends.clone());
            let work = move |ctx: Ctx, (n,): (u64,)| {
                let (begun, mut ends) = (Arc::clone(&begun), ends.clone());
                async move {
                    begun.fetch_add(1, Ordering::SeqCst);
                    ctx.progress(1.0, None, None);
                    drop(ends.wait_for(|may| *may).await);
                    Ok::<_, RpcError>(n)
                }
            };
            let declared = Idempotent::keep(HOUR).as_task(HOUR);
            let router = Router::new(()).method("desk/work", work).idempotent("desk/work", declared);
            let admits = Admits::over(guard.outcomes().unwrap());
            let mut setup = Setup { guard: Some(admits as Arc<dyn ReplayGuard>), ..Setup::default() };
            setup.limits.tasks.lease = lease;
            desks.push(Desk::open_as(setup, |service| service.methods(router)));
            store(&guard).await;
            guards.push(guard);
        }
        Self { desks, runs, may_end, _guards: guards }
    }

    async fn begin(&self, at: usize, key: &str) -> Value {
        let desk = &self.desks[at];
        let ann = desk.agent("ann", &["worker"]);
        let letter = desk.letter_claiming(&ann, &call("desk/work", "[7]"), |claims| {
            (claims.idk, claims.det) = (Some(key.to_owned()), Some(600_000));
        });
        serde_json::from_str(&within(SOON, desk.answer(&letter)).await.unwrap()).unwrap()
    }

    async fn ask(&self, at: usize, method: &str, key: &str) -> Value {
        let desk = &self.desks[at];
        let params = json!({ "method": "desk/work", "key": key }).to_string();
        let answer = within(SOON, desk.ask(&desk.agent("ann", &["worker"]), &call(method, &params))).await.unwrap();
        let answer: Value = serde_json::from_str(&answer).unwrap();
        answer["result"].clone()
    }

    async fn until(&self, at: usize, key: &str, holds: impl Fn(&Value) -> bool) -> Value {
        let reached = async {
            loop {
                let state = self.ask(at, "rpc.task", key).await;
                if holds(&state) {
                    return state;
                }
                sleep(Duration::from_millis(50)).await;
            }
        };
        within(2 * SOON, reached).await
    }
}

/// SPEC.md §6.5.
#[tokio::test]
async fn a_task_is_cancelled_from_another_replica() {
    let server = NatsServer::start().await;
    let replicas = Replicas::open(&server, Duration::from_secs(6)).await;
    assert_eq!(replicas.begin(0, "k").await["task"], true);
    assert_eq!(replicas.begin(1, "k").await["result"]["state"], "working", "and not once more");
    // How far it is comes with a renewal.
    let said = replicas.until(1, "k", |state| state["progress"]["progress"] == 1.0).await;
    assert_eq!((&said["state"], said.get("cancelling")), (&json!("working"), None));
    let told = replicas.ask(1, "rpc.task.cancel", "k").await;
    assert_eq!((&told["state"], &told["cancelling"]), (&json!("working"), &json!(true)));
    assert_eq!(replicas.ask(1, "rpc.task.cancel", "k").await["cancelling"], true, "once more changes nothing");
    assert_eq!(replicas.until(1, "k", |state| state["state"] != "working").await["state"], "cancelled");
    assert_eq!(replicas.ask(0, "rpc.task", "k").await["state"], "cancelled");
    // One that has ended elsewhere is found, and cannot be cancelled.
    replicas.may_end.send_replace(true);
    replicas.begin(0, "l").await;
    let done = replicas.until(1, "l", |state| state["state"] != "working").await;
    assert_eq!((&done["state"], &done["response"]["result"]), (&json!("completed"), &json!(7)));
    assert_eq!(replicas.ask(1, "rpc.task.cancel", "l").await, done);
    assert_eq!(replicas.runs.load(Ordering::SeqCst), 2);
}

/// SPEC.md §6.5: whoever writes to the store makes no outcome, and a task that runs is not disturbed for long.
#[tokio::test]
async fn a_forged_entry_is_no_outcome_of_a_task() {
    let server = NatsServer::start().await;
    let replicas = Replicas::open(&server, Duration::from_secs(6)).await;
    let client = async_nats::connect(server.url()).await.unwrap();
    let mut entries = client.subscribe("rg.test.desk.$outcome.ann.>").await.unwrap();
    sealwire_testkit::settle(&client).await;
    replicas.begin(0, "k").await;
    let claim = within(SOON, entries.next()).await.unwrap();
    let forged = |payload: &[u8]| {
        let text = String::from_utf8_lossy(payload).into_owned();
        assert!(text.contains("\"running\""), "{text}");
        let mut bytes = payload.to_vec();
        let at = payload.windows(9).position(|bytes| bytes == b"\"running\"").unwrap();
        bytes.splice(at..at + 9, *b"\"done\"");
        bytes
    };
    within(SOON, client.request(claim.subject.clone(), forged(&claim.payload).into())).await.unwrap();
    assert_eq!(replicas.ask(1, "rpc.task", "k").await, json!({ "state": "unknown" }));
    assert_eq!(replicas.ask(0, "rpc.task", "k").await["state"], "working", "it runs here");
    // The replica that runs it writes over that with its next renewal.
    replicas.until(1, "k", |state| state["state"] == "working").await;
    // What it has written itself before says no more than it did then.
    within(SOON, client.request(claim.subject.clone(), claim.payload.clone())).await.unwrap();
    replicas.may_end.send_replace(true);
    let done = replicas.until(1, "k", |state| state["state"] != "working").await;
    assert_eq!((&done["state"], &done["response"]["result"]), (&json!("completed"), &json!(7)));
    // The genuine outcome with another result in it.
    let outcome = within(SOON, async {
        loop {
            let entry = entries.next().await.unwrap();
            if String::from_utf8_lossy(&entry.payload).contains("\"result\":7") {
                return entry;
            }
        }
    })
    .await;
    let at = outcome.payload.windows(10).position(|bytes| bytes == b"\"result\":7").unwrap();
    let mut bytes = outcome.payload.to_vec();
    bytes[at + 9] = b'9';
    within(SOON, client.request(outcome.subject.clone(), bytes.into())).await.unwrap();
    assert_eq!(replicas.until(1, "k", |state| state["state"] != "completed").await, json!({ "state": "unknown" }));
    assert_eq!(replicas.begin(1, "k").await["result"], json!({ "state": "unknown" }));
    assert_eq!(replicas.runs.load(Ordering::SeqCst), 1);
}

/// SPEC.md §6.5.
#[tokio::test]
async fn no_task_begins_without_the_store_and_one_that_runs_ends_with_its_lease() {
    let mut server = NatsServer::start().await;
    let replicas = Replicas::open(&server, Duration::from_secs(4)).await;
    replicas.begin(0, "k").await;
    replicas.until(1, "k", |state| state["progress"]["progress"] == 1.0).await;
    server.pause().await;
    let refused = replicas.begin(0, "l").await;
    assert_eq!(refused["error"]["code"], -32014, "{refused}");
    assert_eq!(replicas.runs.load(Ordering::SeqCst), 1);
    // By the desks' clocks, which stand still, its lease is never over; the timer of the replica goes on.
    sleep(Duration::from_secs(5)).await;
    server.resume().await;
    let ended = replicas.until(1, "k", |state| matches!(state["state"].as_str(), Some("unknown" | "completed"))).await;
    assert_eq!(ended["state"], "unknown");
    // What was refused has not begun, at either replica.
    replicas.may_end.send_replace(true);
    within(2 * SOON, async {
        while replicas.begin(1, "l").await["task"] != true {
            sleep(Duration::from_millis(100)).await;
        }
    })
    .await;
    let done = replicas.until(0, "l", |state| state["state"] != "working").await;
    assert_eq!((&done["state"], replicas.runs.load(Ordering::SeqCst)), (&json!("completed"), 2));
}
