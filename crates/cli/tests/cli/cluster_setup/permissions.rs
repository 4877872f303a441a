//! What each user of the setup can do at a real broker: the second gate, which works without the checks on messages.

use std::time::Duration;

use async_nats::{Client, ConnectOptions};
use futures_util::StreamExt as _;
use sealwire::internal::auth::{Confirmation, IssueRequest, TokenIssuer};
use sealwire::internal::wire::{Audience, RequestSigner};
use sealwire::{Clock as _, Credentials, Name, SystemClock};
use serde_json::{Value, json};

use super::gate::{Gate, is_permitted, owned};
use crate::shell::Shell;
use sealwire_testkit::raw::RawConnection;
use sealwire_testkit::site::signed_now;
use sealwire_testkit::{SOON, settle, within};

/// A user as the brokers read it, with the subjects that it may publish and subscribe to.
struct Row {
    user: String,
    publish: Vec<String>,
    subscribe: Vec<String>,
}

/// The table of permissions as `setup cluster` writes it, whatever kind of brokers is asked.
fn table() -> Vec<Row> {
    let shell = Shell::new();
    shell.run("setup cluster --out .").ok();
    let config = shell.read("nats-1/users.conf");
    let lines: Vec<&str> = config.lines().map(str::trim).collect();
    let rows = lines.windows(2).filter(|pair| pair[1].starts_with("{ nkey:")).map(|pair| {
        let user = pair[0].strip_prefix("# ").unwrap();
        let user = user.strip_prefix("agent ").unwrap_or(user).replace("tools tools", "tools");
        let list = |name: &str| {
            let rest = pair[1].split_once(&format!("{name}: [")).unwrap().1;
            let list = rest.split_once(']').unwrap().0;
            list.split(", ").map(|subject| subject.trim_matches('"').to_owned()).collect()
        };
        Row { user, publish: list("publish"), subscribe: list("subscribe") }
    });
    rows.collect()
}

/// Whether a permission for `pattern` covers all of `subject`.
fn covers(pattern: &str, subject: &str) -> bool {
    let (mut pattern, mut subject) = (pattern.split('.'), subject.split('.'));
    loop {
        match (pattern.next(), subject.next()) {
            (None, None) => return true,
            (Some(">"), Some(_)) => return true,
            (Some("*"), Some(token)) if token != ">" => {}
            (Some(own), Some(token)) if own == token => {}
            _ => return false,
        }
    }
}

/// A subject that matches a pattern.
fn instance(pattern: &str) -> String {
    pattern.replace('*', "x").replace('>', "x.y")
}

/// Each user against each row of every user: it can do what its own rows allow, and nothing that only others' rows allow.
/// SPEC.md §19.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_user_may_do_exactly_its_own_rows() {
    for gate in Gate::of_both_kinds().await {
        let table = table();
        let users: Vec<&str> = table.iter().map(|row| row.user.as_str()).collect();
        let agents = ["planner", "teller", "operator", "auditor", "gateway"];
        let services = ["tools", "service demo", "service bank", "guard demo", "guard bank", "revoker operator"];
        let followers = ["gateway-follower gateway", "follower demo", "follower bank"];
        assert_eq!(users, [&["closer operator"], &agents[..], &services, &followers].concat());

        let all = |of: fn(&Row) -> &Vec<String>| -> Vec<String> {
            let patterns = table.iter().flat_map(of).cloned();
            let mut subjects: Vec<String> = patterns.flat_map(|p| [instance(&p), p]).collect();
            subjects.sort();
            subjects.dedup();
            subjects
        };
        let (published, subscribed) = (all(|row| &row.publish), all(|row| &row.subscribe));
        let literal: Vec<&str> = published.iter().map(String::as_str).filter(|s| !s.contains(['*', '>'])).collect();
        let subscribed: Vec<&str> = subscribed.iter().map(String::as_str).collect();
        let mut refused = 0;
        for Row { user, publish, subscribe } in &table {
            let of = |patterns: &[String], subjects: &[&str]| -> Vec<String> {
                let covered = subjects.iter().filter(|subject| patterns.iter().any(|pattern| covers(pattern, subject)));
                covered.map(ToString::to_string).collect()
            };
            let expected = (of(publish, &literal), of(subscribe, &subscribed));
            assert!(expected.0.len() >= publish.len() && expected.1.len() >= subscribe.len(), "{user}");
            refused += literal.len() + subscribed.len() - expected.0.len() - expected.1.len();
            assert_eq!(gate.may(user, &literal, &subscribed).await, expected, "{user}");
        }
        assert!(refused > 400, "{refused}");
    }
}

/// What nobody may do, and what each kind of user may not do although others may: written by hand, not taken from the table.
/// SPEC.md §19.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_user_reaches_beyond_what_it_is_for() {
    for gate in Gate::of_both_kinds().await {
        let everybody = [
            "planner",
            "operator",
            "tools",
            "service demo",
            "service bank",
            "guard demo",
            "guard bank",
            "revoker operator",
            "closer operator",
            "follower demo",
            "gateway-follower gateway",
        ];
        let publish = [
            "$JS.API.INFO",
            "$JS.API.STREAM.UPDATE.x",
            "$JS.API.STREAM.PURGE.x",
            "$JS.API.STREAM.MSG.DELETE.x",
            "$JS.API.STREAM.SNAPSHOT.x",
            "$JS.API.STREAM.RESTORE.x",
            "$JS.API.CONSUMER.CREATE.x",
            "$JS.API.CONSUMER.MSG.NEXT.x.y",
            "$JS.ACK.a.b.1.1.1.1.1",
            "$KV.policies.math",
            "$SYS.REQ.SERVER.PING",
            "$SYS.REQ.ACCOUNT.SEALWIRE.CONNZ",
            "$SYS.REQ.USER.AUTH",
            "rg.prod.demo.planner",
            "rpc.v1.demo",
            "rpc.v1.demo.nobody",
            "_SVC.demo",
            "_SVC.demo.x",
            "_SVC.other.replica.x",
        ];
        let subscribe = [
            ">",
            "*",
            "*.>",
            "rpc.>",
            "rpc.v1.>",
            "rpc.*.demo.>",
            "rg.>",
            "_INBOX.>",
            "_INBOX.*.>",
            "_SVC.>",
            "_SVC.*.guard.>",
            "$JS.>",
            "$JS.API.>",
            "$JS.EVENT.>",
            "$SRV.>",
            "$SRV.*.*",
            "$SYS.>",
            "_R_.>",
            "$KV.>",
        ];
        for user in everybody {
            assert_eq!(gate.may(user, &publish, &subscribe).await, (owned(&[]), owned(&[])), "{user}");
        }
        let guards = [
            "rg.dev.demo.planner",
            "rg.dev.demo.$probe.x",
            "$JS.API.STREAM.CREATE.x",
            "$JS.API.STREAM.DELETE.x",
            "$JS.API.STREAM.MSG.GET.x",
            "$JS.API.STREAM.NAMES",
        ];
        for user in ["planner", "tools", "service demo", "service bank"] {
            let may = gate.may(user, &guards, &["_SVC.demo.guard.>", "_SVC.demo.guard.x", "rg.dev.demo.planner"]).await;
            assert_eq!(may, (owned(&[]), owned(&[])), "{user}");
        }
        let requests = ["rpc.v1.demo.planner", "rpc.v1.bank.teller", "rpc.v1.demo.planner.math.add"];
        for user in ["tools", "service demo", "service bank", "guard demo"] {
            assert_eq!(gate.may(user, &requests, &["rpc.v1.other.>"]).await, (owned(&[]), owned(&[])), "{user}");
        }
        // One service is a stranger to another, both its answers and its guard.
        let demos = ["_SVC.demo.replica.peers", "_SVC.demo.replica.x", "$SRV.PING.demo", "rg.dev.demo.planner"];
        let hears = [
            "rpc.v1.demo.>",
            "rpc.v1.demo.planner",
            "_SVC.demo.replica.>",
            "_SVC.demo.replica.peers",
            "$SRV.PING.demo",
            "$SRV.STATS.demo.x",
        ];
        for user in ["service bank", "guard bank", "guard demo"] {
            let may = gate.may(user, &demos, &hears).await;
            let own = if user == "guard demo" { owned(&["rg.dev.demo.planner"]) } else { owned(&[]) };
            assert_eq!(may, (own, owned(&[])), "{user}");
        }
        // Only replicas ask and listen on the subjects between replicas; they do not ask where everybody may.
        let replicas = ["_SVC.demo.replica.peers", "_SVC.demo.replica.x"];
        for user in ["planner", "operator", "tools"] {
            assert_eq!(gate.may(user, &replicas, &replicas).await, (owned(&[]), owned(&[])), "{user}");
        }
        let own = gate.may("service demo", &[&replicas[..], &["$SRV.PING.demo"]].concat(), &replicas).await;
        assert_eq!(own, (owned(&replicas), owned(&replicas)));
        // Only services answer, and only tools ask everybody.
        for user in ["planner", "tools", "guard demo"] {
            assert_eq!(gate.may(user, &["_INBOX.planner.x", "_INBOX.teller.x"], &[]).await.0, owned(&[]), "{user}");
        }
        for user in ["planner", "service demo", "guard demo"] {
            assert_eq!(
                gate.may(user, &["$SRV.PING", "$SRV.INFO", "$SRV.STATS.demo"], &[]).await.0,
                owned(&[]),
                "{user}"
            );
        }
    }
}

/// A user who may create a stream decides what it collects and republishes, whatever else is denied. In an account
/// of its own, there is nothing to collect.
/// SPEC.md §19.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guards_stream_hears_nothing_of_agents_nor_of_other_guards() {
    for gate in Gate::of_both_kinds().await {
        let bank = gate.client("guard bank").await;
        let mut heard = within(SOON, bank.subscribe("_SVC.bank.guard.spy.>")).await.unwrap();
        settle_guard(&bank).await;
        let spy = json!({ "name": "SPY", "subjects": ["rpc.v1.>", "_INBOX.>", "_SVC.demo.>", "rg.dev.demo.*"],
                          "storage": "memory", "republish": { "src": ">", "dest": "_SVC.bank.guard.spy.>" } });
        let made = api(&bank, "CREATE.SPY", &spy).await;
        assert_eq!(made["config"]["name"], "SPY", "{made}");

        let (planner, demo) = (gate.client("planner").await, gate.client("service demo").await);
        for subject in ["rpc.v1.demo.planner", "rpc.v1.bank.planner.math.add"] {
            within(SOON, planner.publish(subject, "{}".into())).await.unwrap();
        }
        for subject in ["_INBOX.planner.x", "_SVC.demo.replica.x"] {
            within(SOON, demo.publish(subject, "{}".into())).await.unwrap();
        }
        // Nobody acknowledges the other guard's nonce: this account has no stream for it.
        let guard = gate.client("guard demo").await;
        let asked = within(SOON, guard.request("rg.dev.demo.planner", "".into())).await;
        assert_eq!(asked.unwrap_err().kind(), async_nats::RequestErrorKind::NoResponders);
        settle(&demo).await;
        assert_eq!(api(&bank, "INFO.SPY", &json!({})).await["state"]["messages"], 0);
        let nothing = tokio::time::timeout(Duration::from_millis(200), heard.next()).await;
        assert!(nothing.is_err(), "{nothing:?}");
        // Nor, the other way round, can it publish to anybody's subjects.
        let mut requests = within(SOON, demo.subscribe("rpc.v1.demo.>")).await.unwrap();
        settle(&demo).await;
        let feed = json!({ "name": "FEED", "subjects": ["rg.dev.bank.*"], "storage": "memory",
                           "republish": { "src": "rg.dev.bank.x", "dest": "rpc.v1.demo.planner" } });
        let made = api(&bank, "CREATE.FEED", &feed).await;
        assert_eq!(made["config"]["name"], "FEED", "{made}");
        let stored = within(SOON, bank.request("rg.dev.bank.x", "injected".into())).await.unwrap();
        assert!(String::from_utf8_lossy(&stored.payload).contains("FEED"), "{stored:?}");
        let nothing = tokio::time::timeout(Duration::from_millis(200), requests.next()).await;
        assert!(nothing.is_err(), "{nothing:?}");
    }
}

/// A request to the JetStream API.
async fn api(client: &Client, verb: &str, body: &Value) -> Value {
    let subject = format!("$JS.API.STREAM.{verb}");
    let answer = within(SOON, client.request(subject, body.to_string().into())).await.unwrap();
    serde_json::from_slice(&answer.payload).unwrap()
}

/// Like `settle`, for a user that may only publish to the guard's subjects.
async fn settle_guard(client: &Client) {
    let names = within(SOON, client.request("$JS.API.STREAM.NAMES", "".into())).await.unwrap();
    assert!(String::from_utf8_lossy(&names.payload).contains("stream_names_response"), "{names:?}");
}

/// There is no `allow_responses`: answers reach inboxes because the service's user may publish there, whoever asked.
#[tokio::test]
async fn a_request_widens_nothing_that_the_service_may_publish() {
    for gate in Gate::of_both_kinds().await {
        let service = gate.client("service demo").await;
        let mut requests = within(SOON, service.subscribe("rpc.v1.demo.>")).await.unwrap();
        settle(&service).await;
        let mut planner = gate.raw("planner").await;
        planner.publish("rpc.v1.demo.planner", Some("rg.dev.demo.x"), b"{}").await;
        planner.flush().await;
        assert_eq!(within(SOON, requests.next()).await.unwrap().reply.unwrap().as_str(), "rg.dev.demo.x");
        assert_eq!(gate.may("service demo", &["rg.dev.demo.x"], &[]).await.0, owned(&[]));
    }
}

#[tokio::test]
async fn an_agent_publishes_only_its_own_requests() {
    for gate in Gate::of_both_kinds().await {
        let own = ["rpc.v1.demo.planner", "rpc.v1.demo.planner.math.add", "rpc.v1.other.planner"];
        let forbidden = [
            // As another agent, or as no agent.
            "rpc.v1.demo.teller",
            "rpc.v1.demo.teller.bank.transfer",
            "rpc.v1.demo",
            "rpc.v1.planner",
            // Forged answers, also to itself, to the service and to the guard.
            "_INBOX.teller.x",
            "_INBOX.planner.x",
            "_SVC.demo.replica.peers",
            "_SVC.demo.replica.x",
            "_SVC.demo.guard.x",
            // Nonces, streams, acknowledgements, buckets, discovery, the system.
            "rg.dev.demo.planner",
            "$JS.API.STREAM.NAMES",
            "$JS.API.STREAM.DELETE.RG_dev_demo_x",
            "$JS.ACK.a.b.1.1.1.1.1",
            "$KV.policies.math",
            "$SRV.PING",
            "$SYS.REQ.SERVER.PING",
            "$SYS.REQ.USER.AUTH",
        ];
        let (publishes, _) = gate.may("planner", &[&own[..], &forbidden].concat(), &[]).await;
        assert_eq!(publishes, owned(&own));
    }
}

#[tokio::test]
async fn an_agent_hears_only_its_own_inbox() {
    for gate in Gate::of_both_kinds().await {
        let own = ["_INBOX.planner.>", "_INBOX.planner.c1.7"];
        let forbidden = [
            ">",
            "_INBOX.>",
            "_INBOX.*.>",
            "_INBOX.*",
            "_INBOX.teller.>",
            "_SVC.>",
            "_SVC.demo.replica.>",
            "rpc.>",
            "rpc.v1.demo.>",
            "rpc.v1.demo.planner",
            "rg.>",
            "$SRV.>",
            "$SYS.>",
            "$JS.EVENT.>",
            "$JS.API.>",
        ];
        let (_, subscribes) = gate.may("planner", &[], &[&own[..], &forbidden].concat()).await;
        assert_eq!(subscribes, owned(&own));
    }
}

#[tokio::test]
async fn an_agent_steals_no_request_by_joining_the_queue_group() {
    for gate in Gate::of_both_kinds().await {
        let (service, teller) = (gate.client("service demo").await, gate.client("teller").await);
        let mut requests = within(SOON, service.queue_subscribe("rpc.v1.demo.>", "q".to_owned())).await.unwrap();
        settle(&service).await;
        let mut thief = gate.raw("planner").await;
        for subject in ["rpc.v1.demo.>", "rpc.v1.demo.teller.>", "rpc.v1.demo.teller"] {
            thief.subscribe(subject, Some("q")).await;
            assert!(!is_permitted(&thief.flush().await, subject), "{subject}");
        }
        for _ in 0..20 {
            within(SOON, teller.publish("rpc.v1.demo.teller", "{}".into())).await.unwrap();
        }
        for _ in 0..20 {
            within(SOON, requests.next()).await.unwrap();
        }
    }
}

#[tokio::test]
async fn an_agent_that_keeps_the_default_inbox_prefix_hears_no_answer() {
    for gate in Gate::of_both_kinds().await {
        let service = gate.client("service demo").await;
        let mut requests = within(SOON, service.subscribe("rpc.v1.demo.>")).await.unwrap();
        settle(&service).await;
        let (told, mut tells) = tokio::sync::mpsc::channel(4);
        let options = gate.options("planner").event_callback(move |event| {
            let told = told.clone();
            async move { drop(told.try_send(event.to_string())) }
        });
        let client = within(SOON, options.connect(gate.server.url())).await.unwrap();
        let request =
            tokio::time::timeout(Duration::from_millis(500), client.request("rpc.v1.demo.planner", "{}".into()));
        assert!(request.await.is_err(), "not even an error: only an event tells");
        let violation = within(SOON, async {
            loop {
                let event = tells.recv().await.unwrap();
                if event.to_lowercase().contains("permissions violation") {
                    return event;
                }
            }
        });
        assert!(violation.await.contains("_INBOX."));
        assert!(within(SOON, requests.next()).await.is_some(), "the request itself was permitted");
    }
}

/// Each reply subject that an agent might name in an otherwise valid request. The broker refuses some
/// by itself; for the others it relies on the service, whose user it restricts in turn.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_published_to_a_reply_subject_that_is_not_the_callers() {
    for gate in Gate::of_both_kinds().await {
        let _served = gate.serve("demo", "state.json");
        let credentials = Credentials::load(gate.shell.path(&gate.planner())).unwrap();
        let issuer = TokenIssuer::load(gate.shell.path("issuer/token-key.json")).unwrap();
        let audience = Audience::new(&Name::new("dev").unwrap(), &Name::new("demo").unwrap());
        let mut request = IssueRequest::new("planner", audience.as_str(), SystemClock.now_s());
        request.roles = ["calculator".to_owned()].into();
        request.cnf = Some(Confirmation { kid: Some("planner.k1".to_owned()), jkt: None });
        let token = issuer.issue(&request).unwrap();
        let signer = RequestSigner::new(credentials.key(), audience, Vec::new()).unwrap();
        let payload = br#"{"jsonrpc":"2.0","method":"math/add","params":[2,3],"id":1}"#;

        let (planner, teller) = (gate.client("planner").await, gate.client("teller").await);
        let mut own = within(SOON, planner.subscribe("_INBOX.planner.t.*")).await.unwrap();
        let mut others = within(SOON, teller.subscribe("_INBOX.teller.t.*")).await.unwrap();
        for (client, name) in [(&planner, "planner"), (&teller, "teller")] {
            // Agents may not publish to their own inboxes, so an answer from the broker itself shows that it has the subscription.
            let nobody = within(SOON, client.request(format!("rpc.v1.none.{name}"), "".into())).await;
            assert_eq!(nobody.unwrap_err().kind(), async_nats::RequestErrorKind::NoResponders);
        }
        let mut raw = gate.raw("planner").await;
        let mut send = async |reply: &str| {
            let signed = signer.sign(&signed_now("rpc.v1.demo.planner", reply, payload, &token));
            let headers = format!("NATS/1.0\r\nAuthorization: {}\r\n\r\n", signed.authorization);
            raw.hpub_raw("rpc.v1.demo.planner", Some(reply), headers.as_bytes(), payload).await;
            is_permitted(&raw.flush().await, reply)
        };

        assert!(send("_INBOX.planner.t.x").await);
        let answer = within(SOON, own.next()).await.unwrap();
        let answer: Value = serde_json::from_slice(&answer.payload).unwrap();
        assert_eq!(answer["result"], 5);

        // Passed on by the broker, dropped by the service.
        for reply in
            ["_INBOX.teller.t.x", "$JS.API.STREAM.NAMES", "$SYS.REQ.USER.AUTH", "rg.dev.demo.x", "rpc.v1.demo.planner"]
        {
            assert!(send(reply).await, "{reply}");
        }
        // Refused by the broker.
        for reply in ["$JS.ACK.a.b.1.1.1.1.1", "_R_.x"] {
            assert!(!send(reply).await, "{reply}");
        }
        // The last one shows that all before it have been handled.
        assert!(send("_INBOX.planner.t.y").await);
        assert_eq!(within(SOON, own.next()).await.unwrap().subject.as_str(), "_INBOX.planner.t.y");
        let heard = tokio::time::timeout(Duration::from_millis(200), others.next()).await;
        assert!(heard.is_err(), "{heard:?}");
    }
}

#[tokio::test]
async fn an_agent_cannot_have_its_messages_traced_to_other_subjects() {
    for gate in Gate::of_both_kinds().await {
        let service = gate.client("service demo").await;
        let mut requests = within(SOON, service.subscribe("rpc.v1.demo.>")).await.unwrap();
        settle(&service).await;
        let mut raw = gate.raw("planner").await;
        for destination in ["_INBOX.teller.x", "$JS.API.STREAM.NAMES"] {
            let headers = format!("NATS/1.0\r\nNats-Trace-Dest: {destination}\r\n\r\n");
            raw.hpub_raw("rpc.v1.demo.planner", None, headers.as_bytes(), b"{}").await;
            assert!(!is_permitted(&raw.flush().await, destination));
        }
        raw.publish("rpc.v1.demo.planner", None, b"last").await;
        raw.flush().await;
        assert_eq!(
            &within(SOON, requests.next()).await.unwrap().payload[..],
            b"last",
            "the traced ones did not arrive"
        );
    }
}

#[tokio::test]
async fn nobody_connects_without_the_key_of_a_user() {
    for gate in Gate::of_both_kinds().await {
        let url = gate.server.url();
        let stranger = nkeys::KeyPair::new_user().seed().unwrap();
        let errors = RawConnection::connect_as(&url, &stranger).await.unwrap_err();
        assert!(errors[0].contains("Authorization Violation"), "{errors:?}");
        assert!(within(SOON, async_nats::connect(&url)).await.is_err());
        let guessed = ConnectOptions::with_user_and_password("planner".to_owned(), "planner".to_owned());
        assert!(within(SOON, guessed.connect(&url)).await.is_err());
    }
}
