//! How much of the brokers one user can take: with the shipped limits, no more than its share.

use serde_json::json;

use super::gate::{Gate, Kind};
use sealwire_testkit::{SOON, within};

#[tokio::test]
async fn the_broker_refuses_an_agents_subscriptions_beyond_a_few() {
    for gate in Gate::of_both_kinds().await {
        let mut planner = gate.raw("planner").await;
        let mut taken = 0;
        let refused = loop {
            planner.send(format!("SUB _INBOX.planner.s{taken} {taken}\r\n").as_bytes()).await;
            match planner.flush().await.first() {
                Some(error) => break error.clone(),
                None => taken += 1,
            }
            assert!(taken < 1_000, "no limit");
        };
        assert!(refused.to_lowercase().contains("maximum subscriptions exceeded"), "{refused}");
        assert_eq!(taken, 32);
        // Another one has its own share.
        assert!(gate.may("teller", &[], &["_INBOX.teller.x"]).await.1 == ["_INBOX.teller.x"]);
    }
}

#[tokio::test]
async fn the_broker_refuses_connections_beyond_an_accounts_share() {
    for gate in Gate::of_both_kinds().await {
        let mut open = Vec::new();
        let refused = loop {
            match gate.connect("guard bank").await {
                Ok(raw) => open.push(raw),
                Err(errors) => break errors,
            }
            assert!(open.len() < 1_000, "no limit");
        };
        assert!(refused[0].to_lowercase().contains("maximum account active connections exceeded"), "{refused:?}");
        assert_eq!(open.len(), 64);
        // The others' accounts have their own.
        assert!(gate.connect("guard demo").await.is_ok());
        assert!(gate.connect("planner").await.is_ok());
        // The limit for agents and services is more than a test may open.
        if gate.kind == Kind::Server {
            assert!(gate.shell.read("nats-1/users.conf").contains("SEALWIRE {\n    limits { max_connections: 1024, "));
        } else {
            assert_eq!(gate.account("SEALWIRE")["nats"]["limits"]["conn"], 1024);
        }
    }
}

#[tokio::test]
async fn the_broker_refuses_a_payload_beyond_the_limit() {
    for gate in Gate::of_both_kinds().await {
        let mut planner = gate.raw("planner").await;
        planner.publish("rpc.v1.demo.planner", None, &vec![b'x'; 262_144]).await;
        assert_eq!(planner.flush().await, Vec::<String>::new());
        // The announced size is enough: the server does not wait for the rest.
        planner.send(b"PUB rpc.v1.demo.planner 262145\r\n").await;
        let error = planner.line().await;
        assert!(error.to_lowercase().contains("maximum payload"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_broker_refuses_streams_beyond_a_guards_share() {
    for gate in Gate::of_both_kinds().await {
        let guard = gate.client("guard bank").await;
        let make = async |name: &str, more: serde_json::Value| {
            let mut config = json!({ "name": name, "subjects": [format!("rg.dev.bank.{name}")], "storage": "memory" });
            config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let subject = format!("$JS.API.STREAM.CREATE.{name}");
            let answer = within(SOON, guard.request(subject, config.to_string().into())).await.unwrap();
            let answer: serde_json::Value = serde_json::from_slice(&answer.payload).unwrap();
            answer["error"]["description"].as_str().map(str::to_owned)
        };
        let files = make("f", json!({ "storage": "file" })).await.expect("nothing is kept in files");
        assert!(files.contains("insufficient storage") || files.contains("resource"), "{files}");
        let large = make("l", json!({ "max_bytes": 900 << 20 })).await.expect("beyond its memory");
        assert!(large.contains("insufficient memory") || large.contains("resource"), "{large}");
        for name in ["a", "b", "c", "d"] {
            assert_eq!(make(name, json!({})).await, None, "{name}");
        }
        let fifth = make("e", json!({})).await.expect("a fifth");
        assert!(fifth.contains("maximum number of streams reached"), "{fifth}");
    }
}
