//! Policies replaced under load: a service on a real nats-server whose folder changes, file by file, while it is called.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sealwire::{Ctx, Router, RpcError};
use sealwire_testkit::site::{Answer, Caller, Site, write};
use sealwire_testkit::{NatsServer, SOON, within};

const ROUNDS: usize = 8;
const CALLERS: usize = 4;
/// More than run at the same time, so that the last entries of a batch start when the first have ended.
const ENTRIES: usize = 16;
const ENTRY_MS: u64 = 60;

/// Each entry of a batch returns the revision and the rule that it ran under.
fn methods() -> Router<()> {
    Router::new(()).method("site/seen", |ctx: Ctx, (ms,): (u64,)| async move {
        tokio::time::sleep(Duration::from_millis(ms)).await;
        let rule = ctx.permit().rule().map(ToString::to_string);
        Ok::<_, RpcError>((ctx.permit().revision().to_string(), rule))
    })
}

/// Sends a batch of many entries, and returns the revision and the rule that all of them saw.
async fn seen(caller: &Caller) -> (String, String) {
    let entry = |id| format!(r#"{{"jsonrpc":"2.0","method":"site/seen","params":[{ENTRY_MS}],"id":{id}}}"#);
    let batch: Vec<String> = (0..ENTRIES).map(entry).collect();
    let answer = caller.exchange(format!("[{}]", batch.join(",")), SOON).await;
    let Answer::Signed(text) = answer else { panic!("no message fails: {answer:?}") };
    let answers: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
    assert_eq!(answers.len(), ENTRIES);
    let seen: BTreeSet<(String, String)> = answers
        .iter()
        .map(|answer| serde_json::from_value(answer["result"].clone()).unwrap_or_else(|_| panic!("{text}")))
        .collect();
    assert_eq!(seen.len(), 1, "one message, several revisions: {seen:?}");
    seen.into_iter().next().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reload_under_load_fails_no_message_and_shows_none_two_revisions() {
    let server = NatsServer::start().await;
    let site = Site::new(&server.url());
    let policies = site.path("policies");
    std::fs::remove_file(policies.join("policy.toml")).unwrap();
    // Neither file is good without the other of the same round: half a change is refused, or denies everything.
    let grant = |round: usize| write(&policies.join("grant.toml"), &format!("[agent.ann]\nroles = [\"r{round}\"]\n"));
    let rules =
        |round: usize| write(&policies.join("rules.toml"), &format!("[role.r{round}]\nallow = [\"site/seen\"]\n"));
    grant(0);
    rules(0);
    let served = site.serve(methods()).await;

    let stop = Arc::new(AtomicBool::new(false));
    let mut callers = Vec::new();
    for _ in 0..CALLERS {
        let (caller, stop) = (site.caller("ann").await, Arc::clone(&stop));
        callers.push(tokio::spawn(async move {
            let mut all = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                all.push(seen(&caller).await);
            }
            all
        }));
    }

    let watcher = site.caller("ann").await;
    for round in 1..=ROUNDS {
        let before = seen(&watcher).await;
        if round % 2 == 0 {
            grant(round)
        } else {
            rules(round)
        }
        // Sometimes long enough for half the change to be read and refused, and for a broken file.
        tokio::time::sleep(Duration::from_millis([0, 700, 150][round % 3])).await;
        if round % 4 == 0 {
            write(&policies.join("rules.toml"), "[role.r");
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        assert_eq!(seen(&watcher).await, before, "half a change is not in force");
        if round % 2 == 0 {
            rules(round)
        } else {
            grant(round)
        }
        within(SOON, async { while seen(&watcher).await.1 == before.1 {} }).await;
    }
    stop.store(true, Ordering::Relaxed);
    let mut revisions = BTreeSet::new();
    let mut messages = 0;
    for caller in callers {
        let all = within(SOON, caller).await.unwrap();
        messages += all.len();
        revisions.extend(all.into_iter().map(|(_, rule)| rule));
    }
    println!("{messages} messages of {ENTRIES} entries under {} revisions", revisions.len());
    assert!(revisions.len() > ROUNDS / 2, "the load went on throughout: {revisions:?}");
    served.stop().await.unwrap();
}
