//! `/a2a`: an unchanged client, and what no client would send. docs/gateway/a2a.md.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::StreamExt as _;
use sealwire::internal::auth::TokenIssuer;
use sealwire::{Ctx, Router, RpcError, Sink};
use sealwire_testkit::python::python;
use sealwire_testkit::site::{Served, Site};
use sealwire_testkit::{NatsServer, settle, within};
use serde_json::{Value, json};

use super::wire::{Answer, Wire, post};
use super::{FAST, Gateway, before_site, begun, clients, configure_identity, demo, ended, mint};
use crate::backends::stage::{LONG, Stage};
use crate::shell::Shell;

pub(super) const SAYS: &str = "A2A-Version: 1.0\r\n";
const TEXTS: &str = "a2a = { text_method = \"text/echo\" }\n";

pub(super) fn request(method: &str, params: &Value) -> String {
    json!({ "jsonrpc": "2.0", "id": 7, "method": method, "params": params }).to_string()
}

pub(super) fn with_part(part: &Value) -> Value {
    json!({ "message": { "messageId": "m", "role": "ROLE_USER", "parts": [part] } })
}

pub(super) fn calling(method: &str, params: &Value) -> Value {
    with_part(&json!({ "data": { "method": method, "params": params } }))
}

pub(super) async fn send(gateway: &Gateway, path: &str, lines: &str, body: &str) -> Answer {
    gateway.wire().await.ask(post(path, &format!("{SAYS}{lines}"), body)).await
}

async fn ask(gateway: &Gateway, method: &str, params: &Value) -> Answer {
    send(gateway, "/a2a/tools", "", &request(method, params)).await
}

async fn get(gateway: &Gateway, path: &str, lines: &str) -> Answer {
    gateway.wire().await.ask(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n")).await
}

/// The reason that an error of A2A gives.
pub(super) fn reason(answer: &Answer) -> Value {
    let error = answer.json()["error"].clone();
    let data = error["data"].as_array().unwrap_or_else(|| panic!("{error}"));
    assert!(data.iter().all(|one| one["@type"].is_string()), "{error}");
    data[0]["reason"].clone()
}

pub(super) async fn events(wire: &mut Wire) -> Vec<Value> {
    let mut events = Vec::new();
    while let Some(event) = within(LONG, wire.event()).await {
        let event: Value = serde_json::from_str(&event).unwrap();
        assert_eq!((&event["jsonrpc"], &event["id"]), (&json!("2.0"), &json!(7)), "{event}");
        events.push(event);
    }
    events
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unchanged_client_of_a2a_verifies_the_card_and_calls_what_the_agent_may() {
    let Some(python) = python() else { return };
    let stage = demo().await;
    stage.shell.run("keys new-token-key https://gateway.example --out card-key.json --jwks card-jwks.json").ok();
    let gateway = Gateway::start(&stage.shell, &format!("{FAST}card_key = \"card-key.json\"\n"), TEXTS).await;
    gateway.is_ready(200).await;
    // The signed URL leads to the gateway's own port, whatever the client sends.
    let elsewhere = "GET /a2a/tools/.well-known/agent-card.json HTTP/1.1\r\nHost: localhost:6666\r\n\r\n";
    let card = gateway.wire().await.ask(elsewhere).await.json();
    let own = format!("http://localhost:{}/", gateway.at.port());
    assert!(card["signatures"].is_array() && !card.to_string().contains("6666"), "{card}");
    assert!(card["supportedInterfaces"][0]["url"].as_str().is_some_and(|url| url.starts_with(&own)), "{card}");
    let found = clients(python, "a2a_client.py", &gateway).await;
    let card = &found["card"];
    assert_eq!((&card["is_one"], &card["signed"]), (&json!(true), &json!([true, false, false])), "{card}");
    assert_eq!((&card["jku"], &card["url"]), (&json!(true), &json!(true)), "{card}");
    let capabilities = json!({ "streaming": true, "pushNotifications": false, "extendedAgentCard": false });
    assert_eq!(card["capabilities"], capabilities);
    assert_eq!(
        card["skills"],
        json!(["audit/read", "job/run", "log/append", "math/add", "text/echo"]),
        "what this agent may, and nothing else"
    );
    let add = &card["add"][0];
    assert_eq!((&add["tags"], &add["description"]), (&json!(["tools", "math"]), &json!("Adds two numbers.")));
    assert_eq!(add["examples"], json!([r#"{"method":"math/add","params":{"a":2,"b":3}}"#]));

    let sum = json!([[{ "data": 5.0, "mediaType": "application/json" }], "ROLE_AGENT", true]);
    assert_eq!((&found["streaming"], &found["blocking"]), (&sum, &sum));
    assert_eq!(found["job"][0], "TASK_STATE_COMPLETED");
    assert_eq!(found["job"][1], json!([{ "data": { "steps": 2.0 }, "mediaType": "application/json" }]));
    let word = |text: &str, append: Value| json!([[{ "text": text }], append]);
    let words = json!([word("one ", Value::Null), word("by ", json!(true)), word("one", json!(true))]);
    assert_eq!(found["words"], json!([["TASK_STATE_SUBMITTED"], words, "TASK_STATE_COMPLETED"]));
    assert_eq!(found["kept"], json!(["TASK_STATE_COMPLETED", ["one ", "by ", "one"]]));
    assert_eq!(found["strict"], json!(["task", "artifact_update", "artifact_update", "status_update"]));
    assert_eq!(found["strict_message"], json!(["message"]));
    assert_eq!(found["cancelled"], "TASK_STATE_CANCELED");
    assert_eq!(found["ended"], json!(["TASK_STATE_SUBMITTED", "TASK_STATE_CANCELED"]));
    ended(&stage, 1).await;
    assert_eq!(found["polled"], "TASK_STATE_WORKING");
    assert_eq!(found["followed"], json!([true, "TASK_STATE_COMPLETED"]));
    assert_eq!(found["listed"], json!([5, true, ""]), "all that were tasks");
    let refused = &found["refused"];
    for (what, name) in [
        ("wrong", "InvalidParamsError"),
        ("wrong_stream", "InvalidParamsError"),
        ("file", "ContentTypeNotSupportedError"),
        ("task", "TaskNotFoundError"),
        ("over", "TaskNotCancelableError"),
        ("push", "PushNotificationNotSupportedError"),
    ] {
        assert_eq!(refused[what][0], name, "{refused}");
    }
    assert_eq!(refused["denied"], json!(["A2AClientError", "JSON-RPC Error 32002: permission denied"]));
    assert_eq!(found["extended"], true);
    assert_eq!(gateway.stop().await.0, Some(0));
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_request_of_a2a_is_refused_and_nothing_of_it_is_sent() {
    let stage = demo().await;
    let gateway = Gateway::start(&stage.shell, FAST, &format!("{TEXTS}methods = [\"math/*\", \"text/echo\"]\n")).await;
    gateway.is_ready(200).await;
    let listener = stage.server.client().await;
    let mut heard = within(LONG, listener.subscribe("rpc.v1.tools.planner")).await.unwrap();
    settle(&listener).await;

    let add = calling("math/add", &json!([1, 2]));
    let body = request("SendMessage", &add);
    // Versions: if none is given, it is 0.3.
    for (path, lines) in [
        ("/a2a/tools", ""),
        ("/a2a/tools", "A2A-Version: \r\n"),
        ("/a2a/tools", "A2A-Version: 0.3\r\n"),
        ("/a2a/tools", "A2A-Version: 1\r\n"),
        ("/a2a/tools", "A2A-Version: 1.1\r\n"),
        ("/a2a/tools", "A2A-Version: 1.0.x\r\n"),
        ("/a2a/tools?A2A-Version=0.3", ""),
    ] {
        let answer = gateway.wire().await.ask(post(path, lines, &body)).await;
        answer.is(200, -32009);
        assert_eq!((reason(&answer), &answer.json()["id"]), (json!("VERSION_NOT_SUPPORTED"), &json!(7)));
    }
    let with = |change: &dyn Fn(&mut Value)| {
        let mut params = add.clone();
        change(&mut params);
        request("SendMessage", &params)
    };
    for (body, status, code) in [
        ("{".to_owned(), 400, -32700),
        (format!("[{body}]"), 400, -32600),
        (body.replace("\"id\":7,", ""), 400, -32600),
        (body.replace("\"SendMessage\"", "7"), 400, -32600),
        (body.replace("\"messageId\":\"m\"", "\"messageId\":\"m\",\"messageId\":\"n\""), 400, -32600),
        (body.replace("\"method\":\"math/add\"", "\"method\":\"math/add\",\"method\":\"math/mul\""), 400, -32600),
        (body.replace("SendMessage", "message/send"), 200, -32601),
        (body.replace("SendMessage", "sendMessage"), 200, -32601),
        (body.replace("math/add", "log/append"), 200, -32601),
        (body.replace("math/add", "math//add"), 200, -32601),
        (body.replace("math/add", "rpc.discover"), 200, -32601),
        (request("SendMessage", &json!({})), 200, -32602),
        (with(&|params| params["message"]["role"] = json!("ROLE_AGENT")), 200, -32602),
        (with(&|params| params["message"]["role"] = json!("user")), 200, -32602),
        (with(&|params| params["message"]["parts"] = json!([])), 200, -32602),
        // Arrays in place of objects, with the members in order.
        (with(&|params| params["message"]["parts"] = json!([["text"]])), 200, -32602),
        (
            with(&|params| params["message"] = json!(["m", null, null, "ROLE_USER", params["message"]["parts"]])),
            200,
            -32602,
        ),
        (with(&|params| *params = json!([params["message"], null, null])), 200, -32602),
        (with(&|params| params["message"]["messageId"] = json!("")), 200, -32602),
        (with(&|params| params["message"]["contextId"] = json!("x".repeat(257))), 200, -32602),
        (with(&|params| params["tenant"] = json!("other")), 200, -32602),
        (with(&|params| params["message"]["taskId"] = json!("x")), 200, -32001),
        (
            with(&|params| {
                params["configuration"] = json!({ "taskPushNotificationConfig": { "url": "https://a.example" } });
            }),
            200,
            -32003,
        ),
        (request("GetTask", &json!({ "id": "x" })), 200, -32001),
        (request("GetTask", &json!({})), 200, -32602),
        (request("CancelTask", &json!({ "id": "x" })), 200, -32001),
        (request("SubscribeToTask", &json!({ "id": "x" })), 200, -32001),
        (request("ListTasks", &json!({ "pageSize": 101 })), 200, -32602),
        (request("ListTasks", &json!({ "status": "TASK_STATE_RUNNING" })), 200, -32602),
        (request("ListTaskPushNotificationConfigs", &json!({ "taskId": "x" })), 200, -32003),
        (request("GetExtendedAgentCard", &json!({})), 200, -32004),
    ] {
        let answer = send(&gateway, "/a2a/tools", "", &body).await;
        answer.is(status, code);
        assert!(answer.json()["error"]["data"].is_array(), "{answer:?}");
    }
    let card = "/.well-known/agent-card.json";
    for (request, status) in [
        (post("/a2a/others", SAYS, &body), 404),
        (post("/a2a", SAYS, &body), 404),
        (post("/a2a/tools/x", SAYS, &body), 404),
        (post(&format!("/a2a/tools{card}"), SAYS, &body), 405),
        (post("/a2a/tools", SAYS, &body).replace("POST", "GET"), 405),
        (post("/a2a/tools", SAYS, &body).replace("application/json", "text/plain"), 415),
        (post("/a2a/tools", &format!("{SAYS}Origin: https://evil.example\r\n"), &body), 403),
        (post("/a2a/tools", SAYS, &body).replace("Host: localhost", "Host: evil.example"), 403),
        (format!("GET /a2a/tools{card} HTTP/1.1\r\nHost: evil.example\r\n\r\n"), 403),
        (format!("GET /a2a/tools{card} HTTP/1.1\r\nHost: localhost\r\nSec-Fetch-Site: cross-site\r\n\r\n"), 403),
        (format!("GET /a2a/others{card} HTTP/1.1\r\nHost: localhost\r\n\r\n"), 404),
        (format!("GET /a2a/tools{card}/x HTTP/1.1\r\nHost: localhost\r\n\r\n"), 404),
        ("GET /.well-known/agent-card-keys.json HTTP/1.1\r\nHost: localhost\r\n\r\n".to_owned(), 404),
    ] {
        assert_eq!(gateway.wire().await.ask(&request).await.status, status, "{request}");
    }
    settle(&listener).await;
    assert!(futures_util::FutureExt::now_or_never(heard.next()).is_none(), "nothing was sent until here");

    // The message's contents are sent as they are, and not parsed again.
    let text = r#"{"method":"math/add","params":{"b":2.0, "a":123456789012345678901234567890}}"#;
    let raw = format!(
        r#"{{"jsonrpc":"2.0","id":7,"method":"SendMessage","params":{{"message":{{"messageId":"m","role":"ROLE_USER","contextId":"c","parts":[{{"data":{text}}}]}}}}}}"#
    );
    let answer = send(&gateway, "/a2a/tools?x=1", "", &raw).await.json();
    assert_eq!((&answer["id"], &answer["result"]["message"]["contextId"]), (&json!(7), &json!("c")), "{answer}");
    let sent = within(LONG, heard.next()).await.unwrap();
    let sent = String::from_utf8_lossy(&sent.payload).into_owned();
    assert!(sent.contains(r#""params":{"b":2, "a":123456789012345678901234567890}"#), "{sent}");
    let answer = gateway.wire().await.ask(post("/a2a/tools?a2a-version=1.0", "A2A-Version: 1.0.1\r\n", &body)).await;
    assert_eq!(answer.json()["result"]["message"]["parts"][0]["data"], 3, "{answer:?}");

    // The card: there is one agent, so it is the gateway's; unsigned, since there is no key.
    let answer = get(&gateway, card, "").await;
    let tag = answer.header("etag").unwrap().to_owned();
    assert_eq!(answer.header("cache-control"), Some("private, max-age=60"));
    let json = answer.json();
    assert!(json.get("signatures").is_none() && json.get("securitySchemes").is_none(), "{json}");
    assert_eq!(json["skills"].as_array().unwrap().len(), 2, "within `methods`: {json}");
    let known = get(&gateway, card, &format!("If-None-Match: \"x\", W/{tag}\r\n")).await;
    assert_eq!((known.status, known.body.len()), (304, 0));
    assert_eq!(gateway.stop().await.0, Some(0));

    // Only on request.
    let gateway = Gateway::start(&stage.shell, FAST, "").await;
    assert_eq!(send(&gateway, "/a2a/tools", "", &body).await.status, 404);
    assert_eq!(get(&gateway, card, "").await.status, 404);
    assert_eq!(gateway.stop().await.0, Some(0));
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_ends_with_its_client_until_it_is_a_task_and_tasks_are_bounded() {
    let stage = demo().await;
    let listener = stage.server.client().await;
    let mut heard = within(LONG, listener.subscribe("rpc.v1.tools.planner")).await.unwrap();
    settle(&listener).await;
    let gateway =
        Gateway::start(&stage.shell, &format!("{FAST}streams = 2\n"), &format!("{TEXTS}timeout_s = 120\n")).await;
    gateway.is_ready(200).await;
    let job = calling("job/run", &json!({ "steps": 5999 }));
    let mut at_once = job.clone();
    at_once["configuration"] = json!({ "returnImmediately": true });
    let mut tasks = Vec::new();
    for _ in 0..2 {
        let answer = ask(&gateway, "SendMessage", &at_once).await.json();
        tasks.push(answer["result"]["task"].clone());
        begun(&mut heard, 1).await;
    }
    // They go on without anybody, and take the places of streams.
    let answer = ask(&gateway, "SendMessage", &job).await;
    answer.is(429, -32603);
    assert_eq!((reason(&answer), answer.header("retry-after")), (json!("NOT_SENT"), Some("1")));
    let mut ids: Vec<_> = tasks.iter().map(|task| task["id"].clone()).collect();
    let listed = ask(&gateway, "ListTasks", &json!({ "status": "TASK_STATE_WORKING" })).await.json();
    assert_eq!(listed["result"]["totalSize"], 2, "{listed}");
    // The message is for neither: they have not asked anything.
    let mut on = job.clone();
    on["message"]["taskId"] = ids[0].clone();
    ask(&gateway, "SendMessage", &on).await.is(200, -32004);
    on["message"]["contextId"] = json!("other");
    ask(&gateway, "SendMessage", &on).await.is(200, -32602);
    for id in ids.drain(..) {
        let cancelled = ask(&gateway, "CancelTask", &json!({ "id": id })).await.json();
        assert_eq!(cancelled["result"]["status"]["state"], "TASK_STATE_CANCELED", "{cancelled}");
        ask(&gateway, "CancelTask", &json!({ "id": id })).await.is(200, -32002);
        ask(&gateway, "SubscribeToTask", &json!({ "id": id })).await.is(200, -32004);
    }
    ended(&stage, 2).await;

    // A stream that breaks does not end a task; the stop of the gateway does.
    let mut wire = gateway.wire().await;
    wire.write(post("/a2a/tools", SAYS, &request("SendStreamingMessage", &job))).await;
    assert_eq!(wire.head().await.header("content-type"), Some("text/event-stream"));
    let begun: Value = serde_json::from_str(&wire.event().await.unwrap()).unwrap();
    let id = begun["result"]["task"]["id"].clone();
    wire.event().await.unwrap();
    drop(wire);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let task = ask(&gateway, "GetTask", &json!({ "id": id })).await.json();
    assert_eq!(task["result"]["status"]["state"], "TASK_STATE_WORKING", "{task}");
    let at = task["result"]["status"]["timestamp"].as_str().unwrap();
    assert!(at.ends_with('Z') && at.len() <= 24, "{at}");
    assert_eq!(gateway.stop().await.0, Some(0));
    ended(&stage, 3).await;
    stage.end().await;
}

/// A service whose methods do what the demonstration's do not, and a gateway to it.
async fn site<S: Send + Sync + 'static>(router: Router<S>, a2a: &str) -> (NatsServer, Site, Served, Shell, Gateway) {
    let server = NatsServer::start().await;
    let site = Site::new(&server.url());
    std::fs::write(site.path("policies/policy.toml"), "[role.worker]\nallow = [\"*\"]\n").unwrap();
    let served = site.serve(router).await;
    let shell = before_site(&server, &site, "", &format!("a2a = {a2a}"));
    let gateway = Gateway::spawn(&shell).await;
    gateway.is_ready(200).await;
    (server, site, served, shell, gateway)
}

async fn ask_site(gateway: &Gateway, method: &str, params: &Value) -> Answer {
    send(gateway, "/a2a/site", "", &request(method, params)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_method_that_asks_is_answered_by_the_next_message_to_its_task() {
    let asks = |ctx: Ctx<Arc<AtomicUsize>>, (): ()| async move {
        ctx.state().fetch_add(1, Ordering::Relaxed);
        let asked = json!({ "message": "How many?", "requestedSchema": { "type": "object" } });
        let answer: Value =
            ctx.ask("elicitation/create", &asked).await.map_err(|_| RpcError::validation("no answer"))?;
        Ok::<_, RpcError>(json!({ "heard": answer }))
    };
    let fails = |_: Ctx<Arc<AtomicUsize>>, (): (), parts: Sink<Value>| async move {
        parts.send(&json!({ "n": 1 })).await?;
        parts.send(&json!({ "n": 2 })).await?;
        Err::<Value, _>(RpcError::application(-7, "it broke").with_data(&json!({ "why": "tired" })))
    };
    let floods = |_: Ctx<Arc<AtomicUsize>>, (): (), parts: Sink<String>| async move {
        for _ in 0..40 {
            parts.send(&"x".repeat(50_000)).await?;
        }
        Ok::<_, RpcError>(0)
    };
    let runs = Arc::new(AtomicUsize::new(0));
    let router = Router::new(Arc::clone(&runs))
        .method("site/asks", asks)
        .method_with_sink("site/fails", fails)
        .method_with_sink("site/floods", floods);
    let (_server, _site, served, _shell, gateway) = site(router, "{}").await;

    let asked = ask_site(&gateway, "SendMessage", &calling("site/asks", &json!([]))).await.json();
    let task = &asked["result"]["task"];
    assert_eq!(task["status"]["state"], "TASK_STATE_INPUT_REQUIRED", "{asked}");
    let parts = &task["status"]["message"]["parts"];
    assert_eq!(parts[0]["text"], "How many?");
    assert_eq!(parts[1]["data"]["method"], "elicitation/create");
    let mut answer = with_part(&json!({ "text": "three" }));
    answer["message"]["taskId"] = task["id"].clone();
    ask_site(&gateway, "SendMessage", &answer).await.is(200, -32602);
    answer["message"]["parts"] = json!([{ "data": { "action": "accept", "content": { "count": 3.0 } } }]);
    let ended = ask_site(&gateway, "SendMessage", &answer).await.json();
    let task = &ended["result"]["task"];
    assert_eq!(task["status"]["state"], "TASK_STATE_COMPLETED", "{ended}");
    let heard = json!({ "heard": { "action": "accept", "content": { "count": 3 } } });
    assert_eq!(task["artifacts"][0]["parts"][0]["data"], heard);
    // A repetition is not another answer; and nobody is asking any more.
    let repeated = ask_site(&gateway, "SendMessage", &answer).await.json();
    assert_eq!(repeated["result"]["task"], *task, "{repeated}");
    answer["message"]["messageId"] = json!("other");
    ask_site(&gateway, "SendMessage", &answer).await.is(200, -32004);

    // The same by streams: the first one ends with the question.
    let mut wire = gateway.wire().await;
    wire.write(post("/a2a/site", SAYS, &request("SendStreamingMessage", &calling("site/asks", &json!([]))))).await;
    wire.head().await;
    let first = events(&mut wire).await;
    assert_eq!(first.last().unwrap()["result"]["statusUpdate"]["status"]["state"], "TASK_STATE_INPUT_REQUIRED");
    answer["message"]["taskId"] = first[0]["result"]["task"]["id"].clone();
    let mut wire = gateway.wire().await;
    wire.write(post("/a2a/site", SAYS, &request("SendStreamingMessage", &answer))).await;
    wire.head().await;
    let second = events(&mut wire).await;
    assert!(second[0]["result"]["task"].is_object(), "{second:?}");
    assert_eq!(second.last().unwrap()["result"]["statusUpdate"]["status"]["state"], "TASK_STATE_COMPLETED");
    let artifact = &second[second.len() - 2]["result"]["artifactUpdate"];
    assert_eq!((&artifact["append"], &artifact["lastChunk"]), (&json!(false), &json!(true)), "{artifact}");
    assert_eq!(runs.load(Ordering::Relaxed), 2, "each ran once");

    // An error in the middle; and more than is kept.
    let mut wire = gateway.wire().await;
    wire.write(post("/a2a/site", SAYS, &request("SendStreamingMessage", &calling("site/fails", &json!([]))))).await;
    wire.head().await;
    let failed = events(&mut wire).await;
    let update = &failed.last().unwrap()["result"]["statusUpdate"];
    assert_eq!(update["status"]["state"], "TASK_STATE_FAILED", "{update}");
    let error = &update["metadata"]["error"];
    assert_eq!((&error["code"], &error["data"][0]["metadata"]["serviceCode"]), (&json!(-32603), &json!("-7")));
    assert_eq!(error["data"][1]["value"], json!({ "why": "tired" }));
    let flooded = ask_site(&gateway, "SendMessage", &calling("site/floods", &json!([]))).await.json();
    let task = &flooded["result"]["task"];
    assert_eq!(task["status"]["state"], "TASK_STATE_FAILED", "{}", task["status"]);
    assert_eq!(task["metadata"]["error"]["data"][0]["reason"], "OUTCOME_UNKNOWN");

    // Nobody listens any more: the gateway reports that it is unknown whether the call ran.
    served.stop().await.unwrap();
    let unknown = ask_site(&gateway, "SendMessage", &calling("site/asks", &json!([]))).await;
    unknown.is(200, -32603);
    assert_eq!(reason(&unknown), "OUTCOME_UNKNOWN");
    assert_eq!(gateway.stop().await.0, Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_the_service_is_itself_is_handed_its_requests() {
    let send = |_: Ctx<()>, params: Value| async move {
        match params["message"]["parts"][0]["text"].as_str() {
            Some("missing") => Err(RpcError::application(32_001, "no such task")),
            Some("invalid") => Err(RpcError::validation("not so")),
            _ => Ok(
                json!({ "message": { "messageId": "a", "role": "ROLE_AGENT", "parts": params["message"]["parts"] } }),
            ),
        }
    };
    let stream = |_: Ctx<()>, _: Value, parts: Sink<Value>| async move {
        parts.send(&json!({ "task": { "id": "t" } })).await?;
        parts.send(&json!({ "statusUpdate": { "taskId": "t" } })).await?;
        Ok::<_, RpcError>(Value::Null)
    };
    let cancel = |_: Ctx<()>, params: Value| async move { Ok::<_, RpcError>(json!({ "id": params["id"] })) };
    let router = Router::new(())
        .method("SendMessage", send)
        .method_with_sink("SendStreamingMessage", stream)
        .method("CancelTask", cancel);
    let (_server, _site, served, _shell, gateway) = site(router, "{ native = true, description = \"Repeats.\" }").await;
    let card = get(&gateway, "/a2a/site/.well-known/agent-card.json", "").await.json();
    assert_eq!((&card["description"], &card["skills"][0]["id"]), (&json!("Repeats."), &json!("site")), "{card}");
    let says = |text: &str| with_part(&json!({ "text": text }));
    let answer = ask_site(&gateway, "SendMessage", &says("a")).await.json();
    assert_eq!(answer["result"]["message"]["parts"], json!([{ "text": "a" }]), "{answer}");
    ask_site(&gateway, "SendMessage", &says("missing")).await.is(200, -32001);
    // On the bus this is -32001.
    ask_site(&gateway, "SendMessage", &says("invalid")).await.is(200, -32602);
    let cancelled = ask_site(&gateway, "CancelTask", &json!({ "id": "their-own" })).await.json();
    assert_eq!(cancelled["result"], json!({ "id": "their-own" }));
    ask_site(&gateway, "GetTask", &json!({ "id": "t" })).await.is(200, -32601);
    let mut wire = gateway.wire().await;
    wire.write(post("/a2a/site", SAYS, &request("SendStreamingMessage", &says("a")))).await;
    wire.head().await;
    let told: Vec<_> = events(&mut wire).await.into_iter().map(|event| event["result"].clone()).collect();
    assert_eq!(told, [json!({ "task": { "id": "t" } }), json!({ "statusUpdate": { "taskId": "t" } })]);
    assert_eq!(gateway.stop().await.0, Some(0));
    served.stop().await.unwrap();
}

/// docs/gateway/a2a.md, "An agent that exists already".
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_behind_http_streams_all_it_says_or_ends_with_an_error() {
    let port = crate::backends::http::contrary().await;
    let methods =
        ["SendStreamingMessage", "SubscribeToTask"].map(|name| format!("[[backend.method]]\nname = \"{name}\"\n"));
    let backend = format!("[[backend]]\nname = \"x\"\nkind = \"http\"\nurl = \"http://localhost:{port}/\"\n");
    let stage = Stage::new(crate::backends::stage::POLICY, &(backend + &methods.concat())).await;
    let gateway = Gateway::start(&stage.shell, FAST, "a2a = { native = true }").await;
    gateway.is_ready(200).await;
    for (method, parts, is_whole) in [("SendStreamingMessage", 3, true), ("SubscribeToTask", 2, false)] {
        let mut wire = gateway.wire().await;
        wire.write(post("/a2a/tools", SAYS, &request(method, &json!({})))).await;
        wire.head().await;
        let told = events(&mut wire).await;
        let results: Vec<_> = told.iter().filter_map(|event| event["result"].as_i64()).collect();
        assert_eq!(results, (1..=parts).collect::<Vec<_>>(), "{told:?}");
        let failed = told.last().unwrap()["error"].as_object();
        assert_eq!(failed.map(|error| &error["code"]), (!is_whole).then_some(&json!(-32603)), "{told:?}");
    }
    assert_eq!(gateway.stop().await.0, Some(0));
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_tokens_the_public_card_names_no_method_and_tasks_are_their_callers_own() {
    let issuer = TokenIssuer::generate("https://idp.example").unwrap();
    let stage = mint::stage(&issuer).await;
    let identity = format!(
        "{FAST}public_url = \"{}\"\nidentity = {{ mode = \"mint\", key = \"gateway-key.json\" }}\ncard_key = \"card-key.json\"\n",
        mint::URL
    );
    let tables = "[[gateway.tokens.issuer]]\nissuer = \"https://idp.example\"\njwks = \"idp-jwks.json\"\n";
    configure_identity(&stage.shell, &identity.replace("card-key", "gateway-key"), tables, "a2a = {}\n");
    stage.shell.run("gateway").fails(30, &["`card_key`", "another one"]);
    stage.shell.run("keys new-token-key https://gateway.example --out card-key.json --jwks card-jwks.json").ok();
    configure_identity(&stage.shell, &identity, tables, "a2a = {}\n");
    let gateway = Gateway::spawn(&stage.shell).await;
    gateway.is_ready(200).await;

    let public = get(&gateway, "/a2a/tools/.well-known/agent-card.json", "").await;
    assert_eq!((public.status, public.header("cache-control")), (200, Some("public, max-age=300")));
    let public = public.json();
    assert_eq!(public["skills"][0]["id"], "tools");
    assert!(!public.to_string().contains("job/run"), "{public}");
    assert_eq!(public["supportedInterfaces"][0]["url"], "https://gateway.example/a2a/tools");
    assert_eq!(public["securityRequirements"], json!([{ "schemes": { "token": { "list": ["tools"] } } }]));
    assert_eq!(get(&gateway, "/.well-known/agent-card-keys.json", "").await.json()["keys"][0]["crv"], "Ed25519");

    let token = |who: &str| issuer.issue(&mint::request(who)).unwrap();
    let ask = async |token: &str, method: &str, params: &Value| {
        let bearer = format!("Authorization: Bearer {token}\r\n");
        send(&gateway, "/a2a/tools", &bearer, &request(method, params)).await
    };
    let refused = gateway.wire().await.ask(post("/a2a/tools", SAYS, &request("ListTasks", &json!({})))).await;
    refused.is(401, 32010);
    assert!(refused.header("www-authenticate").is_some());
    let mut narrow = mint::request("ann");
    narrow.claims.insert("scope".to_owned(), "toolsmith".into());
    ask(&issuer.issue(&narrow).unwrap(), "ListTasks", &json!({})).await.is(403, 32010);

    // Each has its own card, signed with the same key.
    for (who, skills) in [("ann", json!(["job/run", "math/add"])), ("zoe", json!(["job/run"]))] {
        let card = ask(&token(who), "GetExtendedAgentCard", &json!({})).await.json()["result"].clone();
        let ids: Vec<_> = card["skills"].as_array().unwrap().iter().map(|skill| skill["id"].clone()).collect();
        assert_eq!((Value::from(ids), card["signatures"].as_array().map(Vec::len)), (skills, Some(1)), "{card}");
    }
    let mut job = calling("job/run", &json!({ "steps": 5999 }));
    job["configuration"] = json!({ "returnImmediately": true });
    let ann = token("ann");
    let id = ask(&ann, "SendMessage", &job).await.json()["result"]["task"]["id"].clone();
    // Another caller's task looks exactly like one that does not exist.
    let of = |id: &Value| json!({ "id": id });
    let mut message = calling("math/add", &json!([1, 2]));
    for method in ["GetTask", "CancelTask", "SubscribeToTask", "SendMessage", "SendStreamingMessage"] {
        message["message"]["taskId"] = id.clone();
        let theirs = if method.starts_with("Send") { message.clone() } else { of(&id) };
        message["message"]["taskId"] = json!("none");
        let none = if method.starts_with("Send") { message.clone() } else { of(&json!("none")) };
        let (theirs, none) = (ask(&token("max"), method, &theirs).await, ask(&token("max"), method, &none).await);
        theirs.is(200, -32001);
        assert_eq!(theirs.body, none.body, "{method}");
    }
    assert_eq!(ask(&token("max"), "ListTasks", &json!({})).await.json()["result"]["totalSize"], 0);
    // With another token of the same caller, it is found.
    assert_eq!(ask(&token("ann"), "GetTask", &of(&id)).await.json()["result"]["id"], id);
    let cancelled = ask(&ann, "CancelTask", &of(&id)).await.json();
    assert_eq!(cancelled["result"]["status"]["state"], "TASK_STATE_CANCELED", "{cancelled}");
    // A call that this caller may not make is refused as such.
    let denied = ask(&token("zoe"), "SendMessage", &calling("math/add", &json!([1, 2]))).await;
    denied.is(200, 32002);
    assert_eq!(reason(&denied), "PERMISSION_DENIED");

    // When a token expires, its task ends.
    let mut short = mint::request("ann");
    short.ttl_s = 5;
    let id = ask(&issuer.issue(&short).unwrap(), "SendMessage", &job).await.json()["result"]["task"]["id"].clone();
    let over = async {
        loop {
            let task = ask(&ann, "GetTask", &of(&id)).await.json()["result"].clone();
            if task["status"]["state"] == "TASK_STATE_FAILED" {
                break task;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    let task = within(LONG, over).await;
    assert_eq!(task["metadata"]["error"]["data"][0]["reason"], "OUTCOME_UNKNOWN", "{task}");
    ended(&stage, 2).await;
    assert_eq!(gateway.stop().await.0, Some(0));
    stage.end().await;
}
