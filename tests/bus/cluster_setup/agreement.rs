//! Replicas whose guards differ do not serve beside each other, and believe nobody but each other.

use std::time::Duration;

use futures_util::StreamExt as _;
use serde_json::{Value, json};

use super::gate::Gate;
use crate::support::{NatsServer, SOON, settle, within};

/// A second configuration of `demo`, which differs in one text.
fn other(gate: &Gate, from: &str, to: &str) -> String {
    let config = gate.shell.read(&gate.configure("demo"));
    assert!(config.contains(from), "{config}");
    gate.shell.write("demo/other.toml", &config.replace(from, to));
    gate.shell.set_mode("demo/other.toml", 0o600);
    "demo/other.toml".to_owned()
}

/// A replica with this configuration refuses to start beside the first, and both say why.
fn refused_beside(gate: &Gate, config: &str, why: &str) {
    let mut second = gate.start(config, "two.json");
    assert_eq!(second.ends(3 * SOON), Some(20), "{}", gate.log("two.json"));
    let said = gate.log("two.json");
    assert!(said.contains("cannot serve beside each other") && said.contains(why), "{said}");
    gate.wait_for_log("one.json", "tries to start beside this one");
    assert!(gate.log("one.json").contains(why), "{}", gate.log("one.json"));
    gate.shell.run("ping --config demo/here.toml --own one.json").ok();
}

/// A configuration whose guard is at another broker, where its stream cannot show what differs.
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
    // With one stream, that one shows it.
    let config = other(&gate, "skew_s = 2", "skew_s = 2\nwindow_s = 40");
    let mut second = gate.start(&config, "two.json");
    assert_eq!(second.ends(3 * SOON), Some(30), "{}", gate.log("two.json"));
    assert!(gate.log("two.json").contains("guard"), "{}", gate.log("two.json"));
    refused_beside(&gate, &elsewhere(&gate, &broker, "skew_s = 2\nwindow_s = 40"), "window_s");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_whose_guards_are_at_two_brokers_do_not_serve_beside_each_other() {
    let gate = Gate::open().await;
    let broker = NatsServer::start_with(&super::gate::config(&gate.shell)).await;
    let _one = gate.serve("demo", "one.json");
    refused_beside(&gate, &elsewhere(&gate, &broker, "skew_s = 2"), "stream");
}

/// Two that came up without hearing of each other: the later one stops, the other goes on.
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
    let creds = gate.planner();
    let deadline = std::time::Instant::now() + 3 * SOON;
    while gate.shell.run_args(&["call", "--creds", &creds, "demo", "math/add", "[2, 3]"]).code != 0 {
        assert!(std::time::Instant::now() < deadline, "{}", gate.log("one.json"));
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// What a replica says, with another id and another guard.
fn forged(genuine: &[u8], instance: &str, guard: &str) -> String {
    let mut said: Value = serde_json::from_slice(genuine).unwrap();
    said["id"] = instance.into();
    said["metadata"]["sealwire.guard"] = guard.into();
    said["metadata"]["sealwire.guard.identity"] =
        json!({ "kind": guard, "stream": "", "created_ms": 0, "window_s": 30, "skew_s": 2 }).to_string().into();
    said["metadata"]["sealwire.state"] = "ready".into();
    said.to_string()
}

/// At a broker where anybody may answer: forged answers, and genuine ones to other questions.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stranger_neither_keeps_a_replica_from_starting_nor_reports_it_healthy() {
    let gate = Gate::open_to_all().await;
    let one = gate.serve("demo", "one.json");
    let mallory = gate.server.client().await;
    // A genuine answer, signed for another question.
    let nonce = sealwire::auth::Nonce::random().to_text();
    let genuine = within(SOON, mallory.request("$SRV.PING.demo", nonce.into())).await.unwrap();
    let headers = genuine.headers.clone().expect("signed");
    assert!(headers.get("Authentication-Info").unwrap().as_str().starts_with("NatsRpc ey"));
    let plain = within(SOON, mallory.request("$SRV.PING.demo", "".into())).await.unwrap();
    assert!(plain.headers.is_none(), "who sends no nonce, as the tools of NATS do, gets the plain answer");

    let mut asked = within(SOON, mallory.subscribe("$SRV.PING.demo")).await.unwrap();
    let mut asked_one = within(SOON, mallory.subscribe("$SRV.PING.demo.*")).await.unwrap();
    settle(&mallory).await;
    let forging = tokio::spawn(async move {
        loop {
            let question = tokio::select! {
                Some(question) = asked.next() => question,
                Some(question) = asked_one.next() => question,
                else => return,
            };
            let Some(reply) = question.reply else { continue };
            for (instance, guard) in [("ghost", "local"), ("GONE", "shared")] {
                let text = forged(&genuine.payload, instance, guard);
                mallory.publish(reply.clone(), text.clone().into()).await.unwrap();
                mallory.publish_with_headers(reply.clone(), headers.clone(), text.into()).await.unwrap();
            }
            mallory.publish_with_headers(reply, headers.clone(), genuine.payload.clone()).await.unwrap();
        }
    });
    // Starts, serves, and does not stop.
    let mut two = gate.serve("demo", "two.json");
    std::thread::sleep(Duration::from_secs(6));
    assert!(two.0.try_wait().unwrap().is_none(), "{}", gate.log("two.json"));
    assert!(gate.log("two.json").contains("does not sign with the service's key"), "{}", gate.log("two.json"));
    // Two replicas are counted, whatever is listed.
    let listed = gate.shell.run("ping --config demo/here.toml --at-least 2 --json").ok().json();
    assert_eq!(listed["ready"], 2, "{listed}");
    assert!(listed["replicas"].as_array().unwrap().len() > 2, "{listed}");
    assert!(gate.shell.run("ping --config demo/here.toml --at-least 3").code == 20);
    assert!(gate.shell.run("ping --config demo/here.toml").ok().stdout.contains("NOT VERIFIED"));
    // A replica that is gone is not healthy because somebody says so.
    gate.shell.write("gone.json", r#"{"instance":"GONE"}"#);
    let ran = gate.shell.run("ping --config demo/here.toml --own gone.json");
    assert!(ran.code == 20 && ran.stderr.contains("does not take messages"), "{ran:?}");
    gate.shell.run("ping --config demo/here.toml --own two.json").ok();
    forging.abort();
    drop(one);
}

#[test]
fn the_shared_guard_needs_a_service_key_and_says_how_to_make_one() {
    let shell = crate::cli::Shell::new();
    shell.run("setup cluster --out .").ok();
    let config = shell.read("demo/sealwire.toml").replace("service_key = \"service-key.json\"\n", "");
    shell.write("demo/sealwire.toml", &config);
    shell.set_mode("demo/sealwire.toml", 0o600);
    for command in ["serve --config demo/sealwire.toml --check", "serve --config demo/sealwire.toml"] {
        shell.run(command).fails(30, &["needs `service_key`", "sealwire keys new-service dev/demo"]);
    }
    shell.write("state.json", r#"{"instance":"AAAA"}"#);
    let ping = shell.run("ping --config demo/sealwire.toml --own state.json");
    ping.fails(30, &["has no key", "sealwire keys new-service dev/demo"]);
}
