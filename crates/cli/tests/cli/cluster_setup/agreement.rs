//! Replicas whose guards differ do not serve at the same time, and replicas believe nobody but each other.

use std::time::{Duration, Instant};

use async_nats::Client;
use futures_util::StreamExt as _;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::gate::Gate;
use sealwire_testkit::{NatsServer, SOON, within};

/// A second configuration of `demo`, with one text replaced.
fn other(gate: &Gate, from: &str, to: &str) -> String {
    let config = gate.shell.read(&gate.configure("demo"));
    assert!(config.contains(from), "{config}");
    gate.shell.write("demo/other.toml", &config.replace(from, to));
    gate.shell.set_mode("demo/other.toml", 0o600);
    "demo/other.toml".to_owned()
}

/// Asserts that a replica with this configuration refuses to start next to the first, and that both say why.
fn refused_beside(gate: &Gate, config: &str, why: &str) {
    let mut second = gate.start(config, "two.json");
    assert_eq!(second.ends(3 * SOON), Some(20), "{}", gate.log("two.json"));
    let said = gate.log("two.json");
    assert!(said.contains("cannot serve beside each other") && said.contains(why), "{said}");
    gate.wait_for_log("one.json", "tries to start beside this one");
    assert!(gate.log("one.json").contains(why), "{}", gate.log("one.json"));
    gate.shell.run("ping --config demo/here.toml --own one.json --within 30s").ok();
}

/// A configuration whose guard is at another broker, so that the stream cannot reveal the difference.
fn elsewhere(gate: &Gate, broker: &NatsServer, settings: &str) -> String {
    let own = format!("[replay.nats]\nurls = [\"{}\"]", gate.server.url());
    let theirs = own.replace(&gate.server.url(), &broker.url());
    other(gate, "skew_s = 2", settings);
    let config = gate.shell.read("demo/other.toml");
    assert!(config.contains(&own), "{config}");
    gate.shell.write("demo/other.toml", &config.replace(&own, &theirs));
    gate.shell.set_mode("demo/other.toml", 0o600);
    "demo/other.toml".to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_with_different_windows_do_not_serve_beside_each_other() {
    let gate = Gate::open().await;
    let broker = NatsServer::start_with(&super::gate::config(&gate.shell)).await;
    let _one = gate.serve("demo", "one.json");
    // With a common stream, the stream reveals it.
    let config = other(&gate, "skew_s = 2", "skew_s = 2\nwindow_s = 40");
    let mut second = gate.start(&config, "two.json");
    assert_eq!(second.ends(3 * SOON), Some(30), "{}", gate.log("two.json"));
    assert!(gate.log("two.json").contains("guard"), "{}", gate.log("two.json"));
    refused_beside(&gate, &elsewhere(&gate, &broker, "skew_s = 2\nwindow_s = 40"), "window_s");
}

/// SPEC.md §18.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_whose_guards_are_at_two_brokers_do_not_serve_beside_each_other() {
    let gate = Gate::open().await;
    let broker = NatsServer::start_with(&super::gate::config(&gate.shell)).await;
    let _one = gate.serve("demo", "one.json");
    refused_beside(&gate, &elsewhere(&gate, &broker, "skew_s = 2"), "stream");
}

/// Two replicas that started without hearing each other: the later one stops, the other goes on.
/// SPEC.md §18.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_finds_another_guard_while_it_serves_stops_if_it_is_the_newer_one() {
    let gate = Gate::open().await;
    let broker = NatsServer::start_with(&super::gate::config(&gate.shell)).await;
    let one = gate.serve("demo", "one.json");
    one.signal("STOP");
    let mut two = gate.start(&elsewhere(&gate, &broker, "skew_s = 2"), "two.json");
    gate.wait_for_log("two.json", "serve: ready");
    one.signal("CONT");
    assert_eq!(two.ends(3 * SOON), Some(20), "{}", gate.log("two.json"));
    let said = gate.log("two.json");
    assert!(said.contains("stopping") && said.contains("the guard's stream is"), "{said}");
    gate.wait_for_log("one.json", "beside this one, and must stop");
    is_answered(&gate);
}

/// A replica's answer, with another id and another guard.
fn forged(genuine: &[u8], instance: &str, guard: &str) -> String {
    let mut said: Value = serde_json::from_slice(genuine).unwrap();
    said["id"] = instance.into();
    said["metadata"]["sealwire.guard"] = guard.into();
    said["metadata"]["sealwire.guard.identity"] =
        json!({ "kind": guard, "stream": "", "created_ms": 0, "window_s": 30, "skew_s": 2 }).to_string().into();
    said["metadata"]["sealwire.state"] = "ready".into();
    said.to_string()
}

/// Answers each question on `subject` with what a replica with another guard would say, without a valid signature, and with a
/// genuine answer to another question.
async fn forge(mallory: Client, subject: &'static str, genuine: async_nats::Message) -> JoinHandle<()> {
    let mut asked = within(SOON, mallory.subscribe(subject)).await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    let headers = genuine.headers.expect("signed");
    tokio::spawn(async move {
        while let Some(question) = asked.next().await {
            let Some(reply) = question.reply else { continue };
            for (instance, guard) in [("ghost", "local"), ("GONE", "shared")] {
                let text = forged(&genuine.payload, instance, guard);
                mallory.publish(reply.clone(), text.clone().into()).await.unwrap();
                mallory.publish_with_headers(reply.clone(), headers.clone(), text.into()).await.unwrap();
            }
            mallory.publish_with_headers(reply, headers.clone(), genuine.payload.clone()).await.unwrap();
        }
    })
}

/// A genuine answer, signed for a question from a tool.
async fn genuine(tools: &Client) -> async_nats::Message {
    let nonce = sealwire::internal::wire::Nonce::random().to_text();
    within(SOON, tools.request("$SRV.PING.demo", nonce.into())).await.unwrap()
}

/// With the shipped permissions, nobody else hears the replicas' questions or can answer them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stranger_neither_keeps_a_replica_from_starting_nor_reports_it_healthy() {
    let gate = Gate::open().await;
    let _one = gate.serve("demo", "one.json");
    let genuine = genuine(&gate.client("tools").await).await;
    let id = serde_json::from_slice::<Value>(&genuine.payload).unwrap()["id"].as_str().unwrap().to_owned();
    let mut forging = Vec::new();
    for user in ["planner", "tools", "service bank"] {
        let client = gate.client(user).await;
        forging.push(forge(client.clone(), "_SVC.demo.replica.peers", genuine.clone()).await);
        forging.push(forge(client.clone(), "$SRV.PING.demo", genuine.clone()).await);
        // Unasked answers, too.
        let (said, unasked) = (forged(&genuine.payload, "ghost", "local"), format!("_SVC.demo.replica.{id}.x"));
        forging.push(tokio::spawn(async move {
            loop {
                for subject in [&unasked, "_SVC.demo.replica.peers"] {
                    client.publish(subject.to_owned(), said.clone().into()).await.unwrap();
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }));
    }
    // Starts, serves, and does not stop.
    let mut two = gate.serve("demo", "two.json");
    std::thread::sleep(Duration::from_secs(3));
    assert!(two.0.try_wait().unwrap().is_none(), "{}", gate.log("two.json"));
    let said = [gate.log("one.json"), gate.log("two.json")].concat();
    assert!(!said.contains("does not sign") && !said.contains("ERROR"), "{said}");
    let listed = gate.shell.run("ping --config demo/here.toml --at-least 2 --within 5s --json").ok().json();
    assert_eq!(listed["replicas"].as_array().unwrap().len(), 2, "{listed}");
    forging.iter().for_each(JoinHandle::abort);
}

/// At a broker where anybody may answer, an attacker can make replicas refuse everything, but can neither stop a serving replica nor
/// report one as healthy.
/// SPEC.md §18.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_a_broker_without_permissions_forged_answers_count_against_replicas_and_never_for_them() {
    let gate = Gate::open_to_all().await;
    let mut one = gate.serve("demo", "one.json");
    let mallory = gate.server.client().await;
    let genuine = genuine(&mallory).await;
    let forging = forge(mallory, "_SVC.demo.replica.peers", genuine).await;
    gate.wait_for_log("one.json", "nothing is admitted beside what does not sign with the service's key");
    let mut two = gate.start(&gate.configure("demo"), "two.json");
    assert_eq!(two.ends(3 * SOON), Some(20), "{}", gate.log("two.json"));
    assert!(gate.log("two.json").contains("does it sign with this service's key"), "{}", gate.log("two.json"));
    // Only one replica is counted, whatever is listed.
    let listed = gate.shell.run("ping --config demo/here.toml --within 5s --json").ok().json();
    assert_eq!(listed["ready"], 1, "{listed}");
    assert!(listed["replicas"].as_array().unwrap().len() > 2, "{listed}");
    assert!(gate.shell.run("ping --config demo/here.toml --at-least 2").code == 20);
    let said = gate.shell.run("ping --config demo/here.toml --within 5s").ok();
    assert!(said.stdout.contains("NOT VERIFIED"), "{said:?}");
    // A replica that is gone does not become healthy because somebody says so.
    gate.shell.write("gone.json", r#"{"instance":"GONE"}"#);
    let ran = gate.shell.run("ping --config demo/here.toml --own gone.json");
    assert!(ran.code == 20 && ran.stderr.contains("does not take messages"), "{ran:?}");
    gate.shell.run("ping --config demo/here.toml --own one.json --within 30s").ok();
    // It serves again once the attacker is gone.
    assert!(one.0.try_wait().unwrap().is_none(), "{}", gate.log("one.json"));
    forging.abort();
    is_answered(&gate);
}

/// Waits until a call is answered.
fn is_answered(gate: &Gate) {
    let creds = gate.planner();
    let deadline = Instant::now() + 3 * SOON;
    while gate.shell.run_args(&["call", "--creds", &creds, "demo", "math/add", "[2, 3]"]).code != 0 {
        assert!(Instant::now() < deadline, "{}", gate.log("one.json"));
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// A replica with the old key and one with the new key do not believe each other, but share a guard.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_key_is_exchanged_replica_by_replica() {
    let gate = Gate::open().await;
    let mut one = gate.serve("demo", "one.json");
    gate.shell.run("keys new-service dev/demo --number 2 --out demo/next-key.json").ok();
    let config = other(&gate, "service_key = \"service-key.json\"", "service_key = \"next-key.json\"");
    let mut two = gate.start(&config, "two.json");
    gate.wait_for_log("two.json", "serve: ready");
    // They ask each other a few times.
    std::thread::sleep(Duration::from_secs(4));
    gate.shell.run("ping --config demo/here.toml --own one.json --within 30s").ok();
    gate.shell.run(&format!("ping --config {config} --own two.json --within 30s")).ok();
    assert!(one.0.try_wait().unwrap().is_none() && two.0.try_wait().unwrap().is_none());
    let said = || [gate.log("one.json"), gate.log("two.json")].concat();
    let deadline = Instant::now() + 2 * SOON;
    while !said().contains("does not sign with the service's key") {
        assert!(Instant::now() < deadline, "{}", said());
        std::thread::sleep(Duration::from_millis(200));
    }
    assert!(!said().contains("ERROR"), "{}", said());
    is_answered(&gate);
    one.terminate();
    is_answered(&gate);
}

/// The broker is silent for a moment, in which a replica could have started unheard.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_does_not_hear_itself_says_so_and_says_when_it_does_again() {
    let mut gate = Gate::open().await;
    let _one = gate.serve("demo", "one.json");
    gate.server.pause().await;
    gate.wait_for_log("one.json", "does not hear its own answers");
    gate.server.resume().await;
    gate.wait_for_log("one.json", "hears its own answers again");
    // Once each time: a machine that stands still makes it deaf as well.
    let log = gate.log("one.json");
    let told = log.lines().filter_map(|line| {
        let again = line.contains("hears its own answers again");
        (again || line.contains("does not hear its own answers")).then_some(again)
    });
    assert!(told.enumerate().all(|(at, again)| again == (at % 2 == 1)), "{log}");
    is_answered(&gate);
}

/// An agent may not ask replicas. It makes a call, and an answer that the service signed for this call is proof enough.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_learns_whether_the_service_is_there_and_the_real_one() {
    let gate = Gate::open().await;
    let creds = gate.planner();
    let ping = |service: &str, more: &str| gate.shell.run(&format!("ping --creds {creds} {service} {more}"));
    ping("demo", "").fails(20, &["nobody listens"]);
    let _one = gate.serve("demo", "one.json");
    assert!(ping("demo", "--within 30s").ok().stdout.contains("demo is there, verified by its signature"));
    let said = ping("demo", "--within 30s --json").ok().json();
    assert!(said["verified"] == true && said["after_ms"].is_u64() && said["error"].is_null(), "{said}");
    // An attacker with the other service's broker user answers in its place, but cannot sign.
    let liar = gate.client("service bank").await;
    let mut calls = within(SOON, liar.subscribe("rpc.v1.bank.>")).await.unwrap();
    sealwire_testkit::settle(&liar).await;
    let lying = tokio::spawn(async move {
        while let Some(call) = calls.next().await {
            let answer = br#"{"jsonrpc":"2.0","result":{"allowed":true},"id":1}"#;
            liar.publish(call.reply.unwrap(), answer.as_slice().into()).await.unwrap();
        }
    });
    ping("bank", "--within 5s").fails(22, &["not signed"]);
    lying.abort();
    gate.shell.run("ping").fails(2, &["--config"]);
    gate.shell.run("ping demo").fails(2, &["--creds"]);
    gate.shell.run(&format!("ping demo --creds {creds} --at-least 2")).fails(2, &["--at-least"]);
}

/// SPEC.md §18.
#[test]
fn the_shared_guard_needs_a_service_key_and_says_how_to_make_one() {
    let shell = crate::shell::Shell::new();
    shell.run("setup cluster --out .").ok();
    let config = shell.read("demo/sealwire.toml").replace("service_key = \"service-key.json\"\n", "");
    shell.write("demo/sealwire.toml", &config);
    shell.set_mode("demo/sealwire.toml", 0o600);
    for command in ["serve --config demo/sealwire.toml --check", "serve demo --config demo/sealwire.toml"] {
        shell.run(command).fails(30, &["needs `service_key`", "sealwire keys new-service dev/demo"]);
    }
    shell.write("state.json", r#"{"instance":"AAAA"}"#);
    let ping = shell.run("ping --config demo/sealwire.toml --own state.json");
    ping.fails(30, &["has no key", "sealwire keys new-service dev/demo"]);
}
