//! Calls that become tasks of A2A at their service, at replicas that do not know each other. docs/gateway/a2a.md, "Tasks at their service".

use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::{FutureExt as _, StreamExt as _};
use sealwire_testkit::python::python;
use sealwire_testkit::{root, settle, within};
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::sync::Semaphore;

use super::Gateway;
use super::a2a::{SAYS, calling, events, reason, request, send};
use super::balancer::Balancer;
use super::tasks::{Done, Minted, POLICY, Stage, decide, pending};
use super::wire::{Answer, Wire, post};
use crate::backends::stage::LONG;

async fn ask(gateway: &Gateway, method: &str, params: &Value) -> Answer {
    send(gateway, "/a2a/site", "", &request(method, params)).await
}

/// A message whose client does not wait.
fn detached(method: &str, params: Value) -> Value {
    let mut message = calling(method, &params);
    message["configuration"] = json!({ "returnImmediately": true });
    message
}

/// Begins a task; its id, and what it is at first.
async fn begin(gateway: &Gateway, method: &str, params: Value) -> (Value, Value) {
    let answer = ask(gateway, "SendMessage", &detached(method, params)).await.json();
    let task = answer["result"]["task"].clone();
    assert_eq!(task["status"]["state"], "TASK_STATE_WORKING", "{answer}");
    (json!({ "id": task["id"] }), task)
}

async fn get(gateway: &Gateway, id: &Value) -> Value {
    let answer = ask(gateway, "GetTask", id).await.json();
    assert_eq!(answer["result"]["id"], id["id"], "{answer}");
    answer["result"].clone()
}

/// How a task is once this holds.
async fn until(gateways: &[Gateway], id: &Value, holds: impl Fn(&Value) -> bool) -> Value {
    within(LONG, async {
        for gateway in gateways.iter().cycle() {
            let found = get(gateway, id).await;
            if holds(&found) {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        unreachable!("there are gateways")
    })
    .await
}

fn has_ended(task: &Value) -> bool {
    task["status"]["state"] != "TASK_STATE_WORKING"
}

/// What a status says in words.
fn words(status: &Value) -> &str {
    status["message"]["parts"][0]["text"].as_str().unwrap_or_default()
}

/// Opens a stream; its head was an answer without an error.
async fn stream(gateway: &Gateway, lines: &str, method: &str, params: &Value) -> Wire {
    let mut wire = gateway.wire().await;
    wire.write(post("/a2a/site", &format!("{SAYS}{lines}"), &request(method, params))).await;
    assert_eq!(wire.head().await.header("content-type"), Some("text/event-stream"));
    wire
}

async fn event(wire: &mut Wire) -> Value {
    let event = within(LONG, wire.event()).await.expect("an event");
    serde_json::from_str::<Value>(&event).unwrap()["result"].clone()
}

/// A client that nobody here wrote, and what it prints in the end.
fn client(python: &Path, how: &str, method: &str, params: &Value, at: &str) -> tokio::task::JoinHandle<Value> {
    let script = root().join("crates/cli/tests/cli/gateway_http/a2a_tasks.py");
    let mut command = Command::new(python);
    command.arg("-B").arg(script).args([how, method, &params.to_string(), at]).kill_on_drop(true);
    tokio::spawn(async move {
        let output = within(3 * LONG, command.output()).await.unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    })
}

fn data(value: Value) -> Value {
    json!([{ "data": value, "mediaType": "application/json" }])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unchanged_clients_of_a2a_wait_for_people_at_replicas_of_which_one_is_stopped() {
    let Some(python) = python() else { return };
    let stage = Stage::start(Done::default()).await;
    let [one, other] = stage.two().await;
    let balancer = Balancer::start().await;
    balancer.add(one.at);
    balancer.add(other.at);
    let treasurer = stage.treasurer().await;
    within(LONG, balancer.is_ready()).await;
    let at = format!("http://{}/a2a/site", balancer.at);
    let last = |told: &Value| told["seen"].as_array().unwrap().last().unwrap().clone();

    for how in ["poll", "stream"] {
        let counted = client(python, how, "site/count", &json!({ "to": 3 }), &at).await.unwrap();
        assert_eq!(counted["result"], data(json!({ "counted": 3.0 })), "{counted}");
        assert_eq!(last(&counted), json!(["TASK_STATE_COMPLETED", []]), "{counted}");
    }
    let failed = client(python, "poll", "site/count", &json!({ "fails": true }), &at).await.unwrap();
    assert_eq!(last(&failed), json!(["TASK_STATE_FAILED", ["cannot count"]]), "{failed}");

    let waiting = [("poll", 70), ("stream", 80)]
        .map(|(how, amount)| client(python, how, "site/pay", &json!({ "amount": amount }), &at));
    let ids = pending(&treasurer, 2).await;
    // Whichever replica began a call, it is gone when the call is approved.
    assert_eq!(one.stop().await.0, Some(0));
    for id in &ids {
        decide(&treasurer, id, "approve").await;
    }
    for (client, amount) in waiting.into_iter().zip([70.0, 80.0]) {
        let paid = client.await.unwrap();
        assert_eq!(paid["result"], data(json!({ "paid": amount })), "{paid}");
        assert_eq!(last(&paid), json!(["TASK_STATE_COMPLETED", []]), "{paid}");
    }
    assert_eq!(stage.done.paid.load(Ordering::SeqCst), 2, "each once");

    let refused = client(python, "poll", "site/pay", &json!({ "amount": 9_090_909 }), &at);
    let id = pending(&treasurer, 1).await.remove(0);
    decide(&treasurer, &id, "deny").await;
    let refused = refused.await.unwrap();
    assert_eq!(last(&refused)[0], "TASK_STATE_REJECTED", "{refused}");
    let seen = refused["seen"].to_string();
    assert!(
        seen.contains(&id) && seen.contains("treasurer (0 of 1 so far, by treasurer)") && !seen.contains("9090909"),
        "{seen}"
    );
    assert_eq!(stage.done.paid.load(Ordering::SeqCst), 2);
    drop(other);
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_of_a2a_are_begun_found_followed_cancelled_and_ended_at_any_replica() {
    let stage = Stage::start(Done { may_end: Some(Semaphore::new(0)), ..Done::default() }).await;
    let gateways = stage.two().await;
    let [one, other] = &gateways;
    let may_end = stage.done.may_end.as_ref().unwrap();

    let (id, begun) = begin(one, "site/count", json!({ "to": 3 })).await;
    until(&gateways, &id, |task| words(&task["status"]) == "1 of 2: half").await;
    let mut followed = stream(other, "", "SubscribeToTask", &id).await;
    let first = event(&mut followed).await;
    assert_eq!((&first["task"]["id"], words(&first["task"]["status"])), (&id["id"], "1 of 2: half"), "{first}");
    // The same message again, as after a lost answer, at another replica: the same task.
    let (again, _) = begin(other, "site/count", json!({ "to": 3 })).await;
    assert_eq!(words(&get(one, &again).await["status"]), "1 of 2: half");
    // A message cannot change anything about it, and it has one context everywhere.
    let mut on = calling("site/count", &json!({}));
    on["message"]["taskId"] = id["id"].clone();
    on["message"]["contextId"] = begun["contextId"].clone();
    ask(other, "SendMessage", &on).await.is(200, -32004);
    on["message"]["contextId"] = json!("other");
    ask(other, "SendMessage", &on).await.is(200, -32602);
    may_end.add_permits(1);
    let rest: Vec<Value> = events(&mut followed).await.into_iter().map(|event| event["result"].clone()).collect();
    let [artifact, status] = rest.as_slice() else { panic!("{rest:?}") };
    assert_eq!(artifact["artifactUpdate"]["artifact"]["parts"], data(json!({ "counted": 3 })), "{artifact}");
    assert_eq!(status["statusUpdate"]["status"]["state"], "TASK_STATE_COMPLETED", "{status}");
    let ended = get(one, &id).await;
    assert_eq!(ended, get(other, &id).await);
    assert_eq!(get(other, &again).await["artifacts"], ended["artifacts"]);
    assert_eq!((&ended["status"]["state"], &ended["contextId"]), (&json!("TASK_STATE_COMPLETED"), &begun["contextId"]));
    let artifacts = json!([{ "artifactId": "result", "parts": data(json!({ "counted": 3 })) }]);
    assert_eq!(ended["artifacts"], artifacts);
    for gateway in &gateways {
        ask(gateway, "SubscribeToTask", &id).await.is(200, -32004);
        ask(gateway, "CancelTask", &id).await.is(200, -32002);
    }

    // Cancelled elsewhere, while it is followed; and one that fails.
    let (id, _) = begin(one, "site/count", json!({ "to": 4 })).await;
    let mut followed = stream(one, "", "SubscribeToTask", &id).await;
    event(&mut followed).await;
    let cancelled = ask(other, "CancelTask", &id).await.json();
    assert_eq!(cancelled["result"]["status"]["state"], "TASK_STATE_CANCELED", "{cancelled}");
    let rest = events(&mut followed).await;
    assert_eq!(rest.last().unwrap()["result"]["statusUpdate"]["status"]["state"], "TASK_STATE_CANCELED", "{rest:?}");
    assert_eq!(get(one, &id).await, cancelled["result"]);
    may_end.add_permits(1);
    let (id, _) = begin(other, "site/count", json!({ "fails": true })).await;
    let failed = until(&gateways, &id, has_ended).await;
    assert_eq!((&failed["status"]["state"], words(&failed["status"])), (&json!("TASK_STATE_FAILED"), "cannot count"));
    let info = &failed["metadata"]["error"]["data"][0];
    assert_eq!((&info["reason"], &info["metadata"]["serviceCode"]), (&json!("METHOD_FAILED"), &json!("7")), "{failed}");
    assert_eq!(stage.done.counted.load(Ordering::SeqCst), 3, "each call once");

    // Whoever waits gets what it has always got; but of what is nothing but a task, the task as it is in the end.
    may_end.add_permits(1);
    let waited = ask(one, "SendMessage", &calling("site/count", &json!({ "to": 5 }))).await.json();
    assert_eq!(waited["result"]["task"]["artifacts"][0]["parts"], data(json!({ "counted": 5 })), "{waited}");
    let only = ask(one, "SendMessage", &calling("site/only", &json!({ "to": 6 }))).await.json();
    let task = &only["result"]["task"];
    assert_eq!(task["status"]["state"], "TASK_STATE_COMPLETED", "{only}");
    assert_eq!(task["artifacts"][0]["parts"], data(json!({ "to": 6 })), "{only}");
    assert_eq!(get(other, &json!({ "id": task["id"] })).await, *task);
    let mut followed = stream(one, "", "SendStreamingMessage", &calling("site/only", &json!({ "to": 7 }))).await;
    assert_eq!(event(&mut followed).await["task"]["status"]["state"], "TASK_STATE_WORKING");
    let rest: Vec<Value> = events(&mut followed).await.into_iter().map(|event| event["result"].clone()).collect();
    assert_eq!(rest.last().unwrap()["statusUpdate"]["status"]["state"], "TASK_STATE_COMPLETED", "{rest:?}");
    let mut followed = stream(one, "", "SendStreamingMessage", &detached("site/only", json!({ "to": 8 }))).await;
    let first = event(&mut followed).await;
    events(&mut followed).await;
    assert!(has_ended(&get(other, &json!({ "id": first["task"]["id"] })).await));

    // What is no task is one of the gateway's own, as before; and nobody has a list of those at services.
    let plain = ask(one, "SendMessage", &detached("site/plain", json!({ "to": 9 }))).await.json();
    let plain = json!({ "id": plain["result"]["task"]["id"] });
    within(LONG, async {
        while !has_ended(&get(one, &plain).await) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    ask(other, "GetTask", &plain).await.is(200, -32001);
    // `waited` has sent something before its end, so the process had it as a task of its own.
    assert_eq!(ask(one, "ListTasks", &json!({})).await.json()["result"]["totalSize"], 2);
    assert_eq!(ask(other, "ListTasks", &json!({})).await.json()["result"]["totalSize"], 0);

    // The card says which are tasks.
    let card =
        one.wire().await.ask("GET /a2a/site/.well-known/agent-card.json HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
    let card = card.json();
    let tags = |name: &str| {
        let skills = card["skills"].as_array().unwrap().iter();
        skills.clone().find(|skill| skill["id"] == name).unwrap()["tags"].as_array().unwrap().contains(&json!("task"))
    };
    assert_eq!((tags("site/count"), tags("site/only"), tags("site/plain")), (true, true, false), "{card}");
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_waits_for_people_runs_once_however_often_and_wherever_it_is_asked_for() {
    let stage = Stage::start(Done::default()).await;
    let gateways = stage.two().await;
    let [one, other] = &gateways;
    let treasurer = stage.treasurer().await;
    let (id, begun) = begin(one, "site/pay", json!({ "amount": 7_171_717 })).await;
    let request = pending(&treasurer, 1).await.remove(0);
    let told = words(&begun["status"]);
    assert!(told.contains(&request) && told.contains("has not run") && !told.contains("7171717"), "{told}");
    // Asked for again and again, and by those who follow it, it is one request.
    let mut followed = stream(other, "", "SubscribeToTask", &id).await;
    assert_eq!(words(&event(&mut followed).await["task"]["status"]), told);
    drop(followed);
    for gateway in gateways.iter().cycle().take(6) {
        let task = get(gateway, &id).await;
        assert_eq!((&task["status"]["state"], words(&task["status"])), (&json!("TASK_STATE_WORKING"), told));
    }
    assert_eq!(pending(&treasurer, 1).await, [request.as_str()]);
    let cancelled = ask(other, "CancelTask", &id).await;
    cancelled.is(200, -32002);
    assert!(cancelled.json()["error"]["message"].as_str().unwrap().contains("waits for people"), "{cancelled:?}");
    decide(&treasurer, &request, "approve").await;
    assert_eq!(stage.done.paid.load(Ordering::SeqCst), 0, "nothing runs for a client that does not ask");
    futures_util::future::join_all((0..8).map(|number| get(&gateways[number % 2], &id))).await;
    let ended = until(&gateways, &id, has_ended).await;
    assert_eq!(ended["artifacts"][0]["parts"], data(json!({ "paid": 7_171_717 })), "{ended}");
    for gateway in &gateways {
        assert_eq!(get(gateway, &id).await, ended);
    }
    assert_eq!(stage.done.paid.load(Ordering::SeqCst), 1);

    // Who waits for the result is told to call again; and so is, that they cannot wait, who sends more than an id can hold.
    let large = json!({ "amount": 72, "note": "x".repeat(5_000) });
    for (message, says) in [
        (calling("site/pay", &json!({ "amount": 72 })), "call again"),
        (detached("site/pay", large), "more than 4096 bytes"),
    ] {
        let refused = ask(one, "SendMessage", &message).await;
        refused.is(200, -32603);
        assert_eq!(reason(&refused), "APPROVAL_REQUIRED");
        assert!(refused.json()["error"]["message"].as_str().unwrap().contains(says), "{refused:?}");
        let left = pending(&treasurer, 1).await.remove(0);
        decide(&treasurer, &left, "deny").await;
    }

    // Denied by somebody who decides; and never decided, so that it does not run any more, whoever approves it then.
    let (id, _) = begin(one, "site/pay", json!({ "amount": 73 })).await;
    let request = pending(&treasurer, 1).await.remove(0);
    decide(&treasurer, &request, "deny").await;
    let denied = get(other, &id).await;
    assert_eq!(denied["status"]["state"], "TASK_STATE_REJECTED", "{denied}");
    assert!(words(&denied["status"]).contains("denied it. It has not run"), "{denied}");
    assert_eq!(denied["metadata"]["error"]["data"][0]["reason"], "PERMISSION_DENIED", "{denied}");
    let (id, _) = begin(one, "site/brief", json!({ "amount": 74 })).await;
    let request = pending(&treasurer, 1).await.remove(0);
    let expired = until(&gateways, &id, has_ended).await;
    assert_eq!(expired["status"]["state"], "TASK_STATE_REJECTED", "{expired}");
    assert_eq!(expired["metadata"]["error"]["data"][0]["reason"], "NOT_APPROVED", "{expired}");
    decide(&treasurer, &request, "approve").await;
    assert_eq!(get(other, &id).await, expired);
    within(LONG, async {
        while ask(one, "GetTask", &id).await.json()["error"]["code"] != -32001 {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    })
    .await;

    // A policy that forbids the call meanwhile.
    let (id, _) = begin(one, "site/pay", json!({ "amount": 75 })).await;
    let request = pending(&treasurer, 1).await.remove(0);
    let mut followed = stream(other, "", "SubscribeToTask", &id).await;
    event(&mut followed).await;
    let forbids = POLICY.replace("unless_approved = \"treasurer\"\n", "");
    std::fs::write(stage.site.path("policies/policy.toml"), forbids).unwrap();
    let rest = events(&mut followed).await;
    assert_eq!(rest.last().unwrap()["error"]["code"], 32002, "{rest:?}");
    ask(one, "GetTask", &id).await.is(200, 32002);
    std::fs::write(stage.site.path("policies/policy.toml"), POLICY).unwrap();
    within(LONG, async {
        while ask(one, "GetTask", &id).await.json()["result"]["status"]["state"] != "TASK_STATE_WORKING" {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    })
    .await;
    assert_eq!(pending(&treasurer, 1).await, [request]);
    assert_eq!(stage.done.paid.load(Ordering::SeqCst), 1);
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_of_a2a_is_its_callers_alone_whichever_token_it_presents() {
    let minted = Minted::start(Done { may_end: Some(Semaphore::new(0)), ..Done::default() }).await;
    let ask = async |token: &str, method: &str, params: &Value| {
        let bearer = format!("Authorization: Bearer {token}\r\n");
        send(&minted.gateway, "/a2a/site", &bearer, &request(method, params)).await
    };
    let (ann, bob) = (minted.token("ann-lee"), minted.token("bob"));
    let begin = async |token: &str, method: &str, params: Value| {
        let begun = ask(token, "SendMessage", &detached(method, params)).await.json();
        assert_eq!(begun["result"]["task"]["status"]["state"], "TASK_STATE_WORKING", "{begun}");
        begun["result"]["task"]["id"].as_str().unwrap().to_owned()
    };
    let id = begin(&ann, "site/count", json!({ "to": 3 })).await;
    let of_mcp = minted.ask(&ann, "tools/call", json!({ "name": "site_count", "arguments": { "to": 3 } })).await.json();
    let of_mcp = of_mcp["result"]["taskId"].as_str().unwrap_or_else(|| panic!("{of_mcp}")).to_owned();

    let listener = minted.stage.server.client().await;
    let mut heard = within(LONG, listener.subscribe("rpc.v1.site.ann")).await.unwrap();
    settle(&listener).await;
    let altered = id.replacen(&id[40..44], if &id[40..44] == "AAAA" { "BBBB" } else { "AAAA" }, 1);
    let mut message = calling("site/plain", &json!({}));
    for method in ["GetTask", "CancelTask", "SubscribeToTask", "SendMessage", "SendStreamingMessage"] {
        let mut of = |id: &str| {
            message["message"]["taskId"] = id.into();
            if method.starts_with("Send") { message.clone() } else { json!({ "id": id }) }
        };
        let none = ask(&ann, method, &of("none")).await;
        none.is(200, -32001);
        let long = "A".repeat(8_192);
        for (token, wrong) in [
            (&bob, &id),
            (&ann, &altered),
            (&ann, &id[1..].to_owned()),
            (&ann, &of_mcp),
            (&bob, &of_mcp),
            (&ann, &long),
        ] {
            let refused = ask(token, method, &of(wrong)).await;
            assert_eq!(refused.body, none.body, "{method} {wrong}");
        }
    }
    for method in ["tasks/get", "tasks/cancel"] {
        minted.ask(&ann, method, json!({ "taskId": id })).await.is(200, -32602);
    }
    settle(&listener).await;
    assert!(heard.next().now_or_never().is_none(), "no service was asked, which would take longer than not to ask");

    // A token ends, and with it what it could follow; the task goes on.
    let short = minted.token_for("ann-lee", Some(5));
    let counts = begin(&short, "site/count", json!({ "to": 4 })).await;
    let pays = begin(&short, "site/pay", json!({ "amount": 5 })).await;
    let bearer = format!("Authorization: Bearer {short}\r\n");
    let mut followed = stream(&minted.gateway, &bearer, "SubscribeToTask", &json!({ "id": counts })).await;
    event(&mut followed).await;
    let rest = events(&mut followed).await;
    assert_eq!(rest.last().unwrap()["error"]["data"][0]["reason"], "OUTCOME_UNKNOWN", "{rest:?}");
    let refused = ask(&short, "GetTask", &json!({ "id": counts })).await.json();
    assert_eq!(refused["error"]["code"], 32010, "{refused}");
    let may_end = minted.stage.done.may_end.as_ref().unwrap();
    may_end.add_permits(3);
    let again = minted.token("ann-lee");
    for id in [&id, &counts] {
        within(LONG, async {
            while ask(&again, "GetTask", &json!({ "id": id })).await.json()["result"]["status"]["state"]
                != "TASK_STATE_COMPLETED"
            {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        })
        .await;
    }
    let waits = ask(&again, "GetTask", &json!({ "id": pays })).await.json();
    assert_eq!(waits["result"]["status"]["state"], "TASK_STATE_WORKING", "{waits}");
    assert_eq!(ask(&bob, "ListTasks", &json!({})).await.json()["result"]["totalSize"], 0);
    minted.stage.end().await;
}
