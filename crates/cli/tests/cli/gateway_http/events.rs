//! Streams of parts as server-sent events.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use sealwire::{Ctx, Router, RpcError, ServeError, Sink};
use sealwire_testkit::python::python;
use sealwire_testkit::site::Site;
use sealwire_testkit::{NatsServer, settle, within};
use serde_json::{Value, json};

use super::wire::{Wire, call, post};
use super::{FAST, Gateway, before_site, begun, clients, demo, ended, where_it_waits};
use crate::backends::stage::LONG;

fn item(result: Value) -> Value {
    json!({ "jsonrpc": "2.0", "result": result, "id": "me" })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unchanged_reader_of_events_gets_parts_notifications_and_the_end() {
    let Some(python) = python() else { return };
    let stage = demo().await;
    let gateway = Gateway::start(&stage.shell, FAST, "").await;
    gateway.is_ready(200).await;
    let found = clients(python, "events.py", &gateway).await;
    let words = ["one ", "by ", "one", "one by one"].map(|word| item(json!(word)));
    assert_eq!(found["words"], json!([words[0], words[1], words[2], words[3], "[DONE]"]));
    let job = found["job"].as_array().unwrap();
    let progress: Vec<_> = job[..2].iter().map(|note| (&note["method"], &note["params"]["progress"])).collect();
    assert_eq!(progress, [(&json!("rpc.progress"), &json!(1.0)), (&json!("rpc.progress"), &json!(2.0))], "{job:?}");
    assert_eq!(job[2..], [item(json!({ "steps": 2 })), json!("[DONE]")]);
    let ticks = found["ticks"].as_array().unwrap();
    assert!(ticks.len() == 2 && ticks.iter().all(|tick| tick["params"]["tick"].is_u64()), "{ticks:?}");
    for (refused, code) in [("denied", -32002), ("wrong", -32602)] {
        let refused = &found[refused];
        assert_eq!(
            (&refused[0]["error"]["code"], &refused[0]["id"], &refused[1]),
            (&json!(code), &json!("me"), &json!("[DONE]"))
        );
    }
    let got = found["got"].as_array().unwrap();
    assert_eq!(got[2..], [json!(r#"{"jsonrpc":"2.0","result":"a b","id":"1"}"#), json!("[DONE]")]);
    assert_eq!(gateway.stop().await.0, Some(0));
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_goes_away_has_cancelled_and_what_is_no_stream_is_refused() {
    let mut stage = demo().await;
    let listener = stage.server.client().await;
    let mut heard = within(LONG, listener.subscribe("rpc.v1.tools.planner")).await.unwrap();
    settle(&listener).await;
    let gateway = Gateway::start(
        &stage.shell,
        &format!("{FAST}streams = 2\norigins = [\"https://app.example\"]\n"),
        "timeout_s = 120\nmethods = [\"job/*\", \"text/*\"]",
    )
    .await;
    let job = post("/rpc/tools/stream", "", &call(7, "job/run", r#"{"steps":5999}"#));
    let mut jobs = Vec::new();
    for _ in 0..2 {
        let mut wire = gateway.wire().await;
        wire.write(&job).await;
        let head = wire.head().await;
        assert_eq!((head.status, head.header("content-type")), (200, Some("text/event-stream")));
        begun(&mut heard, 1).await;
        assert!(wire.event().await.unwrap().contains("rpc.progress"));
        jobs.push(wire);
    }
    gateway.wire().await.ask(&job).await.is(429, -32013);
    drop(jobs);
    ended(&stage, 2).await;

    let echo = call(1, "text/echo", r#"{"text":"x"}"#);
    let stream = |body: &str| post("/rpc/tools/stream", "", body);
    for (request, status, code) in [
        (stream("{"), 400, -32700),
        (stream(&format!("[{echo}]")), 400, -32600),
        (stream(r#"{"jsonrpc":"2.0","method":"text/echo"}"#), 400, -32600),
        (stream(r#"{"jsonrpc":"2.0","id":1,"method":7}"#), 400, -32600),
        (stream(&call(1, "math/add", "[1,2]")), 200, -32601),
        (stream(&echo).replace("POST", "DELETE"), 405, -32600),
        (stream(&echo).replace("application/json", "text/plain"), 415, -32600),
        (post("/rpc/others/stream", "", &echo), 404, -32600),
    ] {
        gateway.wire().await.ask(&request).await.is(status, code);
    }
    // A page needs no preflight for GET, but browsers send its origin.
    let get = |lines: &str| {
        format!(
            "GET /rpc/tools/stream?method=text/echo&params=%7B%22text%22:%22x%22%7D HTTP/1.1\r\nHost: localhost\r\nAccept: text/html, text/event-stream;q=0.9\r\n{lines}\r\n"
        )
    };
    for lines in [
        "Sec-Fetch-Site: cross-site\r\n",
        "Sec-Fetch-Site: same-site\r\n",
        "Sec-Fetch-Site: none\r\n",
        "Origin: http://localhost:3000\r\n",
        "Sec-Fetch-Site: same-site\r\nOrigin: http://localhost:3000\r\n",
        "Origin: https://evil.example\r\n",
    ] {
        gateway.wire().await.ask(get(lines)).await.is(403, -32600);
    }
    gateway.wire().await.ask(get("").replace("text/echo", "math/add")).await.is(200, -32601);
    for lines in
        ["", "Sec-Fetch-Site: same-origin\r\n", "Sec-Fetch-Site: cross-site\r\nOrigin: https://app.example\r\n"]
    {
        let mut wire = gateway.wire().await;
        wire.write(get(lines)).await;
        assert_eq!(wire.head().await.status, 200);
        assert_eq!(wire.event().await.unwrap(), r#"{"jsonrpc":"2.0","result":"x","id":"1"}"#);
    }

    // The broker goes away in the middle: nobody says that this is the end.
    let mut wire = gateway.wire().await;
    wire.write(&job).await;
    assert_eq!(wire.head().await.status, 200);
    wire.event().await.unwrap();
    stage.server.kill().await;
    let mut last = Value::Null;
    while let Some(event) = within(LONG, wire.event()).await {
        assert_ne!(event, "[DONE]");
        last = serde_json::from_str(&event).unwrap();
    }
    let error = &last["error"];
    assert_eq!(
        (&error["code"], &error["data"], &last["id"]),
        (&json!(-32603), &json!({ "outcome": "unknown" }), &json!(7))
    );
    assert_eq!(gateway.stop().await.0, Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_whose_acknowledgements_the_broker_forbids_may_have_run() {
    let server = NatsServer::start_with(
        "no_auth_user: all\nauthorization { users = [\n\
         { user: all, password: all, permissions: { publish: { deny: [\"rpc.v1-ctl.>\"] } } }\n] }",
    )
    .await;
    let site = Site::new(&server.url());
    let flood = |_: Ctx<()>, (): (), parts: Sink<Value>| async move {
        for part in 0..PARTS {
            parts.send(&json!([part, "x".repeat(1_000)])).await?;
        }
        Ok::<_, RpcError>(PARTS)
    };
    let served = site.serve(Router::new(()).method_with_sink("site/flood", flood)).await;
    let shell = before_site(&server, &site, "", "");
    let gateway = Gateway::spawn(&shell).await;
    gateway.is_ready(200).await;
    let mut wire = gateway.wire().await;
    wire.write(post("/rpc/site/stream", "", &call(1, "site/flood", "[]"))).await;
    assert_eq!(wire.head().await.status, 200);
    let mut events = Vec::new();
    while let Some(event) = wire.event().await {
        events.push(serde_json::from_str::<Value>(&event).unwrap());
    }
    assert!(events[0]["result"].is_array(), "it has begun: {}", events[0]);
    assert_eq!(events.last().unwrap()["error"]["data"], json!({ "outcome": "unknown" }), "{:?}", events.last());
    assert_eq!(gateway.stop().await.0, Some(0));
    // Nothing can tell the method that its caller has gone, so it may still be waiting for room.
    let stopped = served.stop().await;
    assert!(matches!(stopped, Ok(_) | Err(ServeError::Drain(1))), "{stopped:?}");
}

/// As many parts as would fill every buffer on the way, each with its number.
const PARTS: usize = 40_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_reads_slowly_slows_the_method_down() {
    let server = NatsServer::start().await;
    let site = Site::new(&server.url());
    let sent = Arc::new(AtomicUsize::new(0));
    let flood = |ctx: Ctx<Arc<AtomicUsize>>, (): (), parts: Sink<Value>| async move {
        for part in 0..PARTS {
            parts.send(&json!([part, "x".repeat(1_000)])).await?;
            ctx.state().store(part + 1, Ordering::Relaxed);
        }
        Ok::<_, RpcError>(PARTS)
    };
    let served = site.serve(Router::new(Arc::clone(&sent)).method_with_sink("site/flood", flood)).await;
    let shell = before_site(&server, &site, "", "timeout_s = 600");
    let gateway = Gateway::spawn(&shell).await;
    let mut wire = Wire::narrow(gateway.at).await;
    wire.write(post("/rpc/site/stream", "", &call(1, "site/flood", "[]"))).await;
    assert_eq!(wire.head().await.status, 200);
    // Until the method waits: all that is on the way holds no more.
    let on_the_way = where_it_waits(&sent).await;
    assert!(on_the_way < PARTS * 3 / 4, "{on_the_way}");
    let all = async {
        for part in 0..PARTS {
            let event: Value = serde_json::from_str(&wire.event().await.unwrap()).unwrap();
            assert_eq!(event["result"][0], part);
        }
        assert_eq!(wire.event().await.unwrap(), format!(r#"{{"jsonrpc":"2.0","result":{PARTS},"id":1}}"#));
        assert_eq!(wire.event().await.unwrap(), "[DONE]");
        assert_eq!(wire.event().await, None);
    };
    within(5 * LONG, all).await;
    assert_eq!(gateway.stop().await.0, Some(0));
    served.stop().await.unwrap();
}
