//! JSON-RPC over WebSocket.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use sealwire::internal::auth::{Denylist, TokenIssuer};
use sealwire::{Clock as _, Ctx, Router, RpcError, Sink, SystemClock};
use sealwire_testkit::python::python;
use sealwire_testkit::site::Site;
use sealwire_testkit::{NatsServer, settle, within};
use serde_json::{Value, json};

use super::wire::{Wire, call, post};
use super::{FAST, Gateway, before_site, begun, clients, demo, ended, mint, where_it_waits};
use crate::backends::stage::LONG;
use crate::shell::Shell;

/// A handshake, with further header lines.
pub(super) fn open(path: &str, lines: &str) -> String {
    format!(
        "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{lines}\r\n"
    )
}

pub(super) const PARTS: &str = "Sec-WebSocket-Protocol: parts.sealwire.dev\r\n";

/// A socket, as bytes.
pub(super) struct Socket(pub(super) Wire);

impl Socket {
    pub(super) async fn open(mut wire: Wire, service: &str, lines: &str) -> Self {
        let answer = wire.ask(open(&format!("/rpc/{service}/ws"), lines)).await;
        assert_eq!((answer.status, answer.header("sec-websocket-accept")), (101, Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo=")));
        Self(wire)
    }

    /// Sends a frame, masked with zeros.
    async fn frame(&mut self, first: u8, payload: &[u8]) {
        let mut frame = vec![first, 0xff];
        frame.extend((payload.len() as u64).to_be_bytes());
        if payload.len() < 126 {
            frame = vec![first, 0x80 | u8::try_from(payload.len()).unwrap()];
        } else if let Ok(length) = u16::try_from(payload.len()) {
            frame = vec![first, 0xfe];
            frame.extend(length.to_be_bytes());
        }
        frame.extend([0; 4]);
        frame.extend(payload);
        self.0.write(frame).await;
    }

    pub(super) async fn say(&mut self, text: &str) {
        self.frame(0x81, text.as_bytes()).await;
    }

    /// The next message; `Err` with the status code if the gateway closes the socket. Pings are answered.
    pub(super) async fn hear(&mut self) -> Result<Value, u16> {
        loop {
            match self.0.frame().await {
                Some((0x81, text)) => return Ok(serde_json::from_slice(&text).unwrap()),
                Some((0x88, reason)) => return Err(u16::from_be_bytes([reason[0], reason[1]])),
                Some((0x89, asked)) => self.frame(0x8a, &asked).await,
                other => panic!("{other:?}"),
            }
        }
    }

    pub(super) async fn ask(&mut self, text: &str) -> Value {
        self.say(text).await;
        self.hear().await.unwrap()
    }

    /// The messages until the gateway closes the socket, and its status code.
    pub(super) async fn rest(&mut self) -> (Vec<Value>, u16) {
        let mut said = Vec::new();
        loop {
            match self.hear().await {
                Ok(message) => said.push(message),
                Err(code) => return (said, code),
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unchanged_client_of_sockets_has_answers_and_what_it_has_asked_for_beside_them() {
    let Some(python) = python() else { return };
    let stage = demo().await;
    let gateway = Gateway::start(&stage.shell, FAST, "").await;
    gateway.is_ready(200).await;
    let found = clients(python, "ws.py", &gateway).await;
    let plain = json!({
        "subprotocol": null, "added": 5, "text": { "jsonrpc": "2.0", "result": "a b", "id": "ä" }, "denied": -32002,
        "broken": { "jsonrpc": "2.0", "error": { "code": -32700, "message": "Parse error" }, "id": null }, "none": -32600,
        "batch": [6, 7], "several": true,
        "in use": { "jsonrpc": "2.0", "error": { "code": -32600, "message": "an id of this message is in use: nothing was sent" }, "id": null },
        "last": { "jsonrpc": "2.0", "result": { "steps": 50 }, "id": "slow" },
        "unknown": { "jsonrpc": "2.0", "result": false, "id": "c" }, "cancelled": ["job", -32016], "after": 2, "quiet": 3,
    });
    assert_eq!(found["plain"], plain);
    ended(&stage, 1).await;

    let parts = &found["parts"];
    let part = |seq: u64, result: &str| json!({ "jsonrpc": "2.0", "method": "rpc.part", "params": { "id": "me", "seq": seq, "result": result } });
    let words = json!([
        part(1, "one "),
        part(2, "by "),
        part(3, "one"),
        { "jsonrpc": "2.0", "result": "one by one", "id": "me" },
    ]);
    assert_eq!((&parts["subprotocol"], &parts["words"]), (&json!("parts.sealwire.dev"), &words));
    let note = |seq: u64| {
        let params = json!({ "progress": seq as f64, "total": 2.0, "message": "working" });
        json!({ "jsonrpc": "2.0", "method": "rpc.note", "params": { "id": 2, "seq": seq, "method": "rpc.progress", "params": params } })
    };
    assert_eq!(parts["job"], json!([note(1), note(2), { "jsonrpc": "2.0", "result": { "steps": 2 }, "id": 2 }]));
    let ticks = parts["ticks"].as_array().unwrap();
    for tick in ticks {
        let params = &tick["params"];
        assert_eq!(
            (&tick["method"], &params["id"], &params["method"]),
            (&json!("rpc.note"), &json!(3), &json!("clock/ticks"))
        );
        assert!(params["params"]["tick"].is_u64(), "{tick}");
    }
    assert_eq!((&parts["ended"], &parts["denied"], &parts["wrong"]), (&json!(-32016), &json!(-32002), &json!(-32602)));
    assert_eq!(parts["two"], json!({ "a": ["1 ", "2 ", "3"], "b": ["4 ", "5 ", "6"] }));
    assert_eq!((&found["binary"], &found["large"], &found["fragments"]), (&json!(1003), &json!(1009), &json!(1009)));
    assert_eq!((&found["foreign"], &found["page"]), (&json!(403), &json!(403)));
    let lines = stage.call("log/append", json!({ "msg": "last" })).await.unwrap();
    assert_eq!(lines, json!({ "lines": 3 }), "notifications were executed, that of the batch, too");
    assert_eq!(gateway.stop().await.0, Some(0));
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_socket_is_opened_by_programs_and_pages_that_may_and_by_so_many() {
    let mut stage = demo().await;
    let listener = stage.server.client().await;
    let mut heard = within(LONG, listener.subscribe("rpc.v1.tools.planner")).await.unwrap();
    settle(&listener).await;
    let config =
        format!("{FAST}sockets = 1000\nconnections = 2010\nstreams = 2\norigins = [\"https://app.example\"]\n");
    let gateway = Gateway::start(&stage.shell, &config, "timeout_s = 120\nmethods = [\"job/*\", \"math/*\"]").await;
    gateway.is_ready(200).await;
    let path = "/rpc/tools/ws";
    for (request, status) in [
        (open(path, "Origin: https://evil.example\r\n"), 403),
        (open(path, "Origin: null\r\n"), 403),
        // It must name its origin, as all browsers do for sockets.
        (open(path, "Origin: http://localhost:3000\r\n"), 403),
        (open(path, "Origin: http://localhost:3000\r\nSec-Fetch-Site: same-site\r\n"), 403),
        (open(path, "Sec-Fetch-Site: cross-site\r\n"), 403),
        (open(path, "X-Forwarded-For: 10.0.0.1\r\n"), 403),
        (open(path, "").replace("Host: localhost", "Host: evil.example"), 403),
        (open("/rpc/others/ws", ""), 404),
        (open("/rpc/tools/ws/more", ""), 404),
        (open("/rpc/tools/ws?ticket=x", ""), 400),
        (open(path, "").replace("Upgrade: websocket\r\n", ""), 426),
        (open(path, "").replace("Version: 13", "Version: 8"), 426),
        (open(path, "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"), 400),
        (open(path, "").replace("GET", "POST"), 405),
        (open(path, "").replace("HTTP/1.1", "HTTP/1.0"), 505),
        // There is no token here that a ticket could stand for.
        (open("/rpc/tools/ws/ticket", "").replace("GET", "POST"), 404),
    ] {
        let answer = gateway.wire().await.ask(&request).await;
        assert_eq!((answer.status, &answer.json()["error"]["code"]), (status, &json!(-32600)), "{request}");
    }
    let mut sockets = Vec::new();
    for lines in
        ["Origin: https://app.example\r\n", "Origin: http://localhost\r\nSec-Fetch-Site: same-origin\r\n", PARTS]
    {
        sockets.push(Socket::open(gateway.wire().await, "tools", lines).await);
    }
    while sockets.len() < 1_000 {
        sockets.push(Socket::open(gateway.wire().await, "tools", "").await);
    }
    gateway.wire().await.ask(open(path, "")).await.is(429, -32013);
    // Idle sockets are in nobody's way, and none is closed to make room.
    assert_eq!(gateway.wire().await.post(&call(1, "math/add", "[1,2]")).await.json()["result"], 3);
    let add = call(1, "math/add", "[1,2]");
    assert_eq!(sockets[999].ask(&add).await["result"], 3);
    assert_eq!(sockets[2].ask(&call(1, "log/append", r#"{"msg":"x"}"#)).await["error"]["code"], -32601, "the ceiling");
    assert_eq!(
        sockets[2].ask(&call(1, "rpc.listen", r#"{"method":"clock/ticks","params":{}}"#)).await["error"]["code"],
        -32601
    );

    // Streams are counted by caller, and a client that goes away has cancelled its own.
    let mut parts = sockets.remove(2);
    for id in [7, 8] {
        parts.say(&call(id, "job/run", r#"{"steps":5999}"#)).await;
        begun(&mut heard, 1).await;
        let first = parts.hear().await.unwrap();
        assert_eq!(first["params"]["method"], "rpc.progress", "{first}");
    }
    parts.say(&call(9, "job/run", r#"{"steps":5999}"#)).await;
    let refused = loop {
        let message = parts.hear().await.unwrap();
        if message["id"] == 9 {
            break message;
        }
    };
    assert_eq!(
        (&refused["error"]["code"], &refused["error"]["data"]),
        (&json!(-32013), &json!({ "outcome": "not_sent" }))
    );
    drop(parts);
    ended(&stage, 2).await;
    sockets[5].say(&call(1, "job/run", r#"{"steps":5999}"#)).await;
    begun(&mut heard, 1).await;
    sockets.remove(5);
    ended(&stage, 3).await;
    drop(sockets);

    // The broker goes away: nobody says that it did not run.
    let mut socket = Socket::open(gateway.wire().await, "tools", "").await;
    socket.say(&call(1, "job/run", r#"{"steps":5999}"#)).await;
    begun(&mut heard, 1).await;
    stage.server.kill().await;
    let lost = within(2 * LONG, socket.hear()).await.unwrap();
    assert_eq!((&lost["error"]["data"], &lost["id"]), (&json!({ "outcome": "unknown" }), &json!(1)));
    let away = socket.ask(&add).await;
    assert_eq!(
        (&away["error"]["code"], &away["error"]["data"], &away["id"]),
        (&json!(-32014), &json!({ "outcome": "not_sent" }), &json!(1))
    );
    assert_eq!(gateway.stop().await.0, Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_calls_too_fast_is_told_so_under_each_id_and_a_gateway_that_stops_lets_calls_end() {
    let stage = demo().await;
    let gateway = Gateway::start(&stage.shell, "per_second = 1\nburst = 20\ndrain_s = 20\n", "timeout_s = 120\n").await;
    gateway.is_ready(200).await;
    let mut socket = Socket::open(gateway.wire().await, "tools", "").await;
    let (mut refused, began) = (0, Instant::now());
    for id in 0..40 {
        let answer = socket.ask(&call(id, "math/add", "[1,2]")).await;
        assert_eq!(answer["id"], id);
        refused += usize::from(answer["error"]["code"] == -32013);
    }
    // The burst passes, and one for each second that this has taken.
    let passed = began.elapsed().as_secs() + 1;
    assert!(refused <= 25 && refused as u64 + passed >= 20, "{refused} in {passed} s");
    let batch = format!("[{},{}]", call(1, "math/add", "[1,2]"), call(2, "math/add", "[1,2]"));
    let codes = async {
        loop {
            let answers = socket.ask(&batch).await;
            let answers: Vec<_> = answers
                .as_array()
                .unwrap()
                .iter()
                .map(|one| (one["id"].as_u64(), one["error"]["code"].as_i64()))
                .collect();
            // On a busy machine, there may be something left by now.
            if answers.iter().any(|(_, code)| code.is_some()) {
                break answers;
            }
        }
    };
    assert_eq!(within(LONG, codes).await, [(Some(1), Some(-32013)), (Some(2), Some(-32013))]);
    // What is no message is charged as a call is, so nobody has the gateway read it for nothing.
    let (mut refused, began) = (0, Instant::now());
    for _ in 0..5 {
        let answer = socket.ask("{").await;
        assert!(answer["id"].is_null(), "{answer}");
        refused += u64::from(answer["error"]["code"] == -32013);
    }
    assert!(refused + began.elapsed().as_secs() >= 3, "{refused}");
    // Nobody answers a notification, not even like this.
    socket.say(r#"{"jsonrpc":"2.0","method":"log/append","params":{"msg":"x"}}"#).await;
    tokio::time::sleep(Duration::from_secs(4)).await;

    let mut parts = Socket::open(gateway.wire().await, "tools", PARTS).await;
    parts.say(&call(1, "rpc.listen", r#"{"method":"clock/ticks","params":{}}"#)).await;
    assert_eq!(parts.hear().await.unwrap()["method"], "rpc.note");
    socket.say(&call(1, "job/run", r#"{"steps":20}"#)).await;
    // Whatever else is wrong with a message with its id, the error is not the answer to that call.
    for message in [call(1, "math/add", "[1,2]"), call(1, "rpc.cancel", r#"{"id":1}"#), call(1, "rpc.listen", "[]")]
        .iter()
        .cycle()
        .take(12)
    {
        let refused = socket.ask(message).await;
        assert_eq!((&refused["id"], &refused["error"]["code"]), (&Value::Null, &json!(-32600)), "{message}");
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let stopping = tokio::spawn(gateway.stop());
    let (said, code) = parts.rest().await;
    let last = said.last().unwrap();
    assert_eq!(
        (code, &last["id"], &last["error"]["code"], &last["error"]["data"]),
        (1001, &json!(1), &json!(-32014), &json!({ "outcome": "unknown" })),
        "who listens is told to go"
    );
    let (said, code) = socket.rest().await;
    assert_eq!((code, said), (1001, vec![json!({ "jsonrpc": "2.0", "result": { "steps": 20 }, "id": 1 })]));
    assert_eq!(stopping.await.unwrap().0, Some(0));

    // Calls that take longer are cut off, and the gateway says so.
    let gateway = Gateway::start(&stage.shell, &format!("{FAST}drain_s = 2\nleave_s = 8\n"), "timeout_s = 120\n").await;
    gateway.is_ready(200).await;
    let listener = stage.server.client().await;
    let mut heard = within(LONG, listener.subscribe("rpc.v1.tools.planner")).await.unwrap();
    settle(&listener).await;
    let mut socket = Socket::open(gateway.wire().await, "tools", "").await;
    socket.say(&call(1, "job/run", r#"{"steps":5999}"#)).await;
    begun(&mut heard, 1).await;
    let at = gateway.at;
    let stopping = tokio::spawn(gateway.stop());
    while Wire::open(at).await.ask("GET /readyz HTTP/1.1\r\nHost: any\r\n\r\n").await.status == 200 {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Wire::open(at).await.ask(open("/rpc/tools/ws", "")).await.is(503, -32014);
    assert_eq!(socket.rest().await, (Vec::new(), 1001));
    assert_eq!(stopping.await.unwrap().0, Some(23));
    ended(&stage, 1).await;
    stage.end().await;
}

/// A service whose methods ask questions, and send more than there is room for.
async fn site(
    sent: &Arc<AtomicUsize>,
    gateway: &str,
) -> (NatsServer, Site, sealwire_testkit::site::Served, Shell, Gateway) {
    let server = NatsServer::start().await;
    let site = Site::new(&server.url());
    let flood = |ctx: Ctx<Arc<AtomicUsize>>, (): (), parts: Sink<Value>| async move {
        for part in 0..FLOOD {
            parts.send(&json!([part, "x".repeat(1_000)])).await?;
            ctx.state().store(part + 1, Ordering::Relaxed);
        }
        Ok::<_, RpcError>(FLOOD)
    };
    let asks = |ctx: Ctx<Arc<AtomicUsize>>, (text,): (String,), parts: Sink<Value>| async move {
        let answered = ctx.ask::<Value>("site/which", &json!({ "text": text })).await;
        parts.send(&json!("asked")).await?;
        Ok::<_, RpcError>(answered.map_or_else(|error| json!(error.to_string()), |answer| json!({ "answer": answer })))
    };
    let large = |ctx: Ctx<Arc<AtomicUsize>>, (): ()| async move {
        ctx.state().fetch_add(1, Ordering::Relaxed);
        Ok::<_, RpcError>("x".repeat(500_000))
    };
    let methods = Router::new(Arc::clone(sent))
        .method("site/large", large)
        .method_with_sink("site/flood", flood)
        .method_with_sink("site/asks", asks);
    let served = site.serve(methods).await;
    let shell = before_site(&server, &site, gateway, "timeout_s = 600");
    let gateway = Gateway::spawn(&shell).await;
    gateway.is_ready(200).await;
    (server, site, served, shell, gateway)
}

const FLOOD: usize = 20_000;
const LARGE: usize = 30;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn questions_are_answered_by_the_client_and_whoever_reads_slowly_slows_the_method_down() {
    let sent = Arc::new(AtomicUsize::new(0));
    let (_server, _site, served, _shell, gateway) = site(&sent, &format!("{FAST}streams = 2\n")).await;
    let mut socket = Socket::open(gateway.wire().await, "site", PARTS).await;
    let asked = socket.ask(&call(7, "site/asks", r#"["a"]"#)).await;
    let question = asked["id"].as_str().unwrap().to_owned();
    assert_eq!(
        (&asked["method"], &asked["params"]),
        (&json!("rpc.ask"), &json!({ "id": 7, "method": "site/which", "params": { "text": "a" } }))
    );
    // An answer to nothing, or to something else, is ignored.
    socket.say(r#"{"jsonrpc":"2.0","id":"ask-99","result":"wrong"}"#).await;
    socket.say(r#"{"jsonrpc":"2.0","id":7,"result":"wrong"}"#).await;
    let part = socket.ask(&json!({ "jsonrpc": "2.0", "id": question, "result": "this" }).to_string()).await;
    assert_eq!(part["params"]["result"], "asked");
    assert_eq!(socket.hear().await.unwrap(), json!({ "jsonrpc": "2.0", "result": { "answer": "this" }, "id": 7 }));
    // A client that refuses, and one whose call is over before it answers.
    let asked = socket.ask(&call(8, "site/asks", r#"["b"]"#)).await;
    let error = json!({ "jsonrpc": "2.0", "id": asked["id"], "error": { "code": 4, "message": "no" } });
    socket.ask(&error.to_string()).await;
    assert!(socket.hear().await.unwrap()["result"].as_str().unwrap().contains("no"));
    let asked = socket.ask(&call(9, "site/asks", r#"["c"]"#)).await;
    socket.say(r#"{"jsonrpc":"2.0","method":"rpc.cancel","params":{"id":9}}"#).await;
    let (mut withdrawn, mut last) = (Value::Null, Value::Null);
    while withdrawn.is_null() || last.is_null() {
        let message = socket.hear().await.unwrap();
        let place = if message["method"] == "rpc.cancel" { &mut withdrawn } else { &mut last };
        *place = message;
    }
    assert_eq!(
        (&withdrawn["params"]["id"], &last["error"]["code"], &last["id"]),
        (&asked["id"], &json!(-32016), &json!(9))
    );
    // Where nothing else may be sent, nobody is asked.
    let mut plain = Socket::open(gateway.wire().await, "site", "").await;
    let answer = plain.ask(&call(1, "site/asks", r#"["d"]"#)).await;
    assert!(answer["error"].is_object() || answer["result"].is_string(), "{answer}");

    // Until the method waits: all that is on the way holds no more.
    let mut slow = Socket::open(Wire::narrow(gateway.at).await, "site", PARTS).await;
    slow.say(&call(1, "site/flood", "[]")).await;
    let on_the_way = where_it_waits(&sent).await;
    assert!(on_the_way < FLOOD * 3 / 4, "{on_the_way}");
    // It blocks nobody.
    let mut other = Socket::open(gateway.wire().await, "site", PARTS).await;
    assert!(other.ask(&call(1, "site/asks", r#"["e"]"#)).await["id"].is_string());
    let all = async {
        for part in 0..FLOOD {
            let message = slow.hear().await.unwrap();
            assert_eq!((&message["params"]["seq"], &message["params"]["result"][0]), (&json!(part + 1), &json!(part)));
        }
        assert_eq!(slow.hear().await.unwrap()["result"], FLOOD);
    };
    within(5 * LONG, all).await;

    // A client that reads no results has no room for further calls, and those are not sent.
    sent.store(0, Ordering::Relaxed);
    let mut unread = Socket::open(Wire::narrow(gateway.at).await, "site", PARTS).await;
    for id in 0..LARGE {
        unread.say(&call(id as u64, "site/large", "[]")).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let run = where_it_waits(&sent).await;
    assert!(run < LARGE * 3 / 4, "{run}");
    let mut refused = 0;
    for _ in 0..LARGE {
        let answer = within(LONG, unread.hear()).await.unwrap();
        if answer["error"]["code"] == -32013 {
            assert_eq!(answer["error"]["data"], json!({ "outcome": "not_sent" }));
            refused += 1;
        }
    }
    assert!(refused > 0 && refused + sent.load(Ordering::Relaxed) == LARGE, "{refused} of {run} at first");
    drop((socket, other));
    assert_eq!(gateway.stop().await.0, Some(0));
    served.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_socket_ends_with_the_token_that_has_opened_it() {
    let issuer = TokenIssuer::generate("https://idp.example").unwrap();
    let stage = mint::stage(&issuer).await;
    mint::configure(&stage, &format!("{FAST}sockets = 2\n"));
    let gateway = Gateway::spawn(&stage.shell).await;
    gateway.is_ready(200).await;
    let listener = stage.server.client().await;
    let mut heard = within(LONG, listener.subscribe("rpc.v1.tools.planner")).await.unwrap();
    settle(&listener).await;
    gateway.wire().await.ask(open("/rpc/tools/ws", "")).await.is(401, -32010);
    gateway.wire().await.ask(open("/rpc/tools/ws", "Authorization: Bearer x\r\n")).await.is(401, -32010);
    let mut short = mint::request("ann");
    short.ttl_s = 12;
    let bearer = |token: &str| format!("{PARTS}Authorization: Bearer {token}\r\n");
    for (count, token) in [(1, issuer.issue(&short).unwrap()), (2, issuer.issue(&mint::request("zoe")).unwrap())] {
        let mut socket = Socket::open(gateway.wire().await, "tools", &bearer(&token)).await;
        socket.say(&call(7, "job/run", r#"{"steps":5999}"#)).await;
        begun(&mut heard, 1).await;
        let first = socket.hear().await.unwrap();
        assert_eq!(first["method"], "rpc.note", "{first}");
        let since = Instant::now();
        if count == 2 {
            let revoked = Denylist::default().with_subject("zoe", SystemClock.now_s() + 60);
            stage.shell.write("denylist.json", &revoked.to_json());
        }
        assert_eq!(within(LONG, socket.rest()).await.1, 4401);
        println!("closed after {:?}", since.elapsed());
        ended(&stage, count).await;
        let lines = bearer(&token);
        gateway.wire().await.ask(open("/rpc/tools/ws", &lines)).await.is(401, -32010);
    }
    // Each caller has its own places.
    let max = issuer.issue(&mint::request("max")).unwrap();
    let mut kept = Vec::new();
    for _ in 0..2 {
        kept.push(Socket::open(gateway.wire().await, "tools", &bearer(&max)).await);
    }
    gateway.wire().await.ask(open("/rpc/tools/ws", &bearer(&max))).await.is(429, -32013);
    let eve = issuer.issue(&mint::request("eve")).unwrap();
    let mut eve = Socket::open(gateway.wire().await, "tools", &bearer(&eve)).await;
    assert_eq!(eve.ask(&call(1, "math/add", "[1,2]")).await["result"], 3);
    let lines = format!("Authorization: Bearer {max}\r\n");
    assert_eq!(gateway.wire().await.ask(post("/rpc/tools", &lines, &call(1, "math/add", "[1,2]"))).await.status, 200);
    assert_eq!(gateway.stop().await.0, Some(0));
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ticket_opens_one_socket_of_its_service_for_its_page_in_place_of_the_token() {
    let issuer = TokenIssuer::generate("https://idp.example").unwrap();
    let stage = mint::stage(&issuer).await;
    mint::configure(&stage, &format!("{FAST}origins = [\"https://app.example\"]\n"));
    let gateway = Gateway::spawn(&stage.shell).await;
    gateway.is_ready(200).await;
    // Tickets that may have been used before the gateway started are not accepted.
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    const APP: &str = "Origin: https://app.example\r\n";
    let path = "/rpc/tools/ws";
    let ask = async |token: &str, lines: &str| {
        let head = "POST /rpc/tools/ws/ticket HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n";
        gateway.wire().await.ask(format!("{head}Authorization: Bearer {token}\r\n{lines}\r\n")).await
    };
    let granted = async |token: &str, lines: &str| {
        let answer = ask(token, lines).await;
        assert_eq!((answer.status, answer.header("cache-control")), (200, Some("no-store")));
        answer.json()["ticket"].as_str().unwrap().to_owned()
    };
    let offer = |protocol: &str, ticket: &str, lines: &str| {
        format!("Sec-WebSocket-Protocol: {protocol}, ticket.sealwire.dev.{ticket}\r\n{lines}")
    };
    let refused = async |path: &str, lines: &str| gateway.wire().await.ask(open(path, lines)).await.is(401, -32010);

    let asks = format!(
        "OPTIONS {path}/ticket HTTP/1.1\r\nHost: localhost\r\nAccess-Control-Request-Method: POST\r\n{APP}\r\n"
    );
    let leave = gateway.wire().await.ask(asks).await;
    assert_eq!((leave.status, leave.header("access-control-allow-origin")), (204, Some("https://app.example")));
    let ann = issuer.issue(&mint::request("ann")).unwrap();
    let since = Instant::now();
    let late = granted(&ann, "").await;
    let answer = ask(&ann, APP).await;
    assert_eq!(answer.header("access-control-allow-origin"), Some("https://app.example"));
    assert_eq!(answer.json()["expires_in"], 30);
    let ticket = granted(&ann, APP).await;
    assert!(!ticket.contains(&ann) && ticket != granted(&ann, APP).await);

    let good = offer("parts.sealwire.dev", &ticket, APP);
    for (path, lines) in [
        (path, good.replace("app.example", "app.example:443").replace("https://app.example:443", "http://localhost")),
        (path, good.replace(APP, "")),
        ("/rpc/others/ws", good.clone()),
        ("/rpc/tools", good.clone()),
        ("/rpc/tools/ws/ticket", good.clone()),
        (path, offer("jsonrpc", &ticket.to_lowercase(), APP)),
        (path, offer("jsonrpc", &ticket[1..], APP)),
        (path, offer("jsonrpc", &ann, APP)),
        (path, offer("jsonrpc", "", APP)),
        (path, offer("jsonrpc", &"A".repeat(9_000), APP)),
        (path, offer(&format!("jsonrpc, ticket.sealwire.dev.{ticket}"), &ticket, APP)),
    ] {
        refused(path, &lines).await;
    }
    // A failed attempt by somebody else does not use it up.
    let mut wire = gateway.wire().await;
    let answer = wire.ask(open(path, &good)).await;
    assert_eq!((answer.status, answer.header("sec-websocket-protocol")), (101, Some("parts.sealwire.dev")));
    assert_eq!(Socket(wire).ask(&call(1, "math/add", "[1,2]")).await["result"], 3);
    refused(path, &good).await;
    // A browser would close it at once.
    let alone = offer("wamp", &granted(&ann, APP).await, APP);
    gateway.wire().await.ask(open(path, &alone)).await.is(400, -32600);

    // It is valid no longer than the token.
    let mut short = mint::request("eve");
    short.ttl_s = 12;
    let (eve, zoe) = (issuer.issue(&short).unwrap(), issuer.issue(&mint::request("zoe")).unwrap());
    let issued = Instant::now();
    let answer = ask(&eve, "").await.json();
    let least = 11_u64.saturating_sub(issued.elapsed().as_secs() + 1);
    assert!(answer["expires_in"].as_u64().is_some_and(|left| (least..=12).contains(&left)), "{answer}");
    let lines = offer("jsonrpc", answer["ticket"].as_str().unwrap(), "");
    let mut eve = Socket::open(gateway.wire().await, "tools", &lines).await;
    let lines = offer("jsonrpc", &granted(&zoe, "").await, "");
    let mut opened = Socket::open(gateway.wire().await, "tools", &lines).await;
    let unused = offer("jsonrpc", &granted(&zoe, "").await, "");
    let revoked = Denylist::default().with_subject("zoe", SystemClock.now_s() + 60);
    stage.shell.write("denylist.json", &revoked.to_json());
    assert_eq!(within(LONG, opened.rest()).await.1, 4401);
    refused(path, &unused).await;
    assert_eq!(within(LONG, eve.rest()).await.1, 4401);
    tokio::time::sleep(Duration::from_secs(31).saturating_sub(since.elapsed())).await;
    refused(path, &offer("jsonrpc", &late, "")).await;

    // Nor does a gateway with another key accept it.
    let foreign = offer("jsonrpc", &granted(&ann, "").await, "");
    assert_eq!(gateway.stop().await.0, Some(0));
    let gateway = Gateway::spawn(&stage.shell).await;
    gateway.is_ready(200).await;
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    gateway.wire().await.ask(open(path, &foreign)).await.is(401, -32010);
    assert_eq!(gateway.stop().await.0, Some(0));
    stage.end().await;
}
