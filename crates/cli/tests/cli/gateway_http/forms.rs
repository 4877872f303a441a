//! The forms in which requests come, as clients and intermediaries write them: chunks, paths, names, headers. docs/gateway/http.md.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures_util::StreamExt as _;
use sealwire_testkit::{settle, within};
use serde_json::{Value, json};
use tokio::process::Command;

use super::wire::{call, post};
use super::ws::{Socket, open};
use super::{FAST, Gateway, begun, demo, ended};
use crate::backends::stage::LONG;

const EVENTS: &str = "Accept: application/json, text/event-stream\r\n";

/// A request whose body follows in chunks.
fn chunked(path: &str, lines: &str, body: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{EVENTS}Transfer-Encoding: chunked\r\n{lines}\r\n{body}"
    )
}

/// A body in chunks of this size.
fn in_chunks(text: &str, size: usize) -> String {
    let chunks = text.as_bytes().chunks(size);
    let chunks = chunks.map(|chunk| format!("{:x}\r\n{}\r\n", chunk.len(), std::str::from_utf8(chunk).unwrap()));
    chunks.collect::<String>() + "0\r\n\r\n"
}

/// RFC 9112 §7.1. The official .NET client of MCP and node's `http.request` send bodies without a length.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_may_come_in_chunks_that_can_be_read_in_one_way() {
    const MOST: usize = 192 << 10;
    let stage = demo().await;
    let gateway = Gateway::start(&stage.shell, FAST, "a2a = { text_method = \"text/echo\" }").await;
    gateway.is_ready(200).await;
    let listener = stage.server.client().await;
    let mut heard = within(LONG, listener.subscribe("rpc.v1.tools.planner")).await.unwrap();
    settle(&listener).await;
    let add = call(1, "math/add", "[1,2]");
    let length = add.len();
    let padded = |bytes: usize| format!("{}{add}", " ".repeat(bytes - length));
    // On one connection, so that each also shows that the one before it was read to its end.
    let mut wire = gateway.wire().await;
    for (what, body) in [
        ("one chunk", in_chunks(&add, usize::MAX)),
        ("a chunk for each byte", in_chunks(&add, 1)),
        ("capitals and zeros", format!("000{length:X}\r\n{add}\r\n000\r\n\r\n")),
        ("an extension", format!("{length:x};a=b\r\n{add}\r\n0;last\r\n\r\n")),
        ("a quoted extension", format!("{length:x} ;a=\"0\"\r\n{add}\r\n0\r\n\r\n")),
        ("trailers", format!("{length:x}\r\n{add}\r\n0\r\nX-Digest: a\r\nContent-Length: 1\r\n\r\n")),
        ("as much as there may be", in_chunks(&padded(MOST), 8_000)),
        ("the same, in one", in_chunks(&padded(MOST), usize::MAX)),
        (
            "the same, byte by byte from its end",
            format!("{:x}\r\n{}\r\n{}", MOST - length, " ".repeat(MOST - length), in_chunks(&add, 1)),
        ),
    ] {
        let answer = wire.ask(chunked("/rpc/tools", "", &body)).await;
        assert_eq!((answer.status, &answer.json()["result"]), (200, &json!(3)), "{what}: {answer:?}");
        within(LONG, heard.next()).await.unwrap();
    }
    // Slowly, as a whole below ten seconds.
    wire.write(chunked("/rpc/tools", "", "")).await;
    for byte in in_chunks(&add, 20).as_bytes() {
        wire.write([*byte]).await;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(wire.answer().await.unwrap().json()["result"], 3);
    within(LONG, heard.next()).await.unwrap();
    // In every dialect.
    let echo = call(1, "text/echo", r#"{"text":"x"}"#);
    let list = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#;
    let message = json!({ "jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params":
        { "message": { "messageId": "m", "role": "ROLE_USER", "parts": [{ "text": "x" }] } } });
    let mut events = gateway.wire().await;
    events.write(chunked("/rpc/tools/stream", "", &in_chunks(&echo, 5))).await;
    assert_eq!(events.head().await.status, 200);
    for (path, lines, text) in [
        ("/mcp/tools", "", list.to_owned()),
        ("/mcp", "", list.to_owned()),
        ("/a2a/tools", "A2A-Version: 1.0\r\n", message.to_string()),
    ] {
        let answer = gateway.wire().await.ask(chunked(path, lines, &in_chunks(&text, 7))).await;
        assert_eq!((answer.status, &answer.json()["error"]), (200, &Value::Null), "{path}: {answer:?}");
    }
    settle(&listener).await;
    while futures_util::FutureExt::now_or_never(heard.next()).is_some() {}

    // Two readers could disagree about the end of these.
    let one = in_chunks(&add, usize::MAX);
    let swap = |from: &str, to: &str| chunked("/rpc/tools", "", &one).replace(from, to);
    let body = |text: &str| chunked("/rpc/tools", "", text);
    for (what, request, status) in [
        ("an end without a carriage return", body(&format!("{length:x}\r\n{add}\r\n0\r\n\n")), 400),
        ("a trailer without one", body(&format!("{length:x}\r\n{add}\r\n0\r\nX: y\n\r\n")), 400),
        ("an end after trailers without one", body(&format!("{length:x}\r\n{add}\r\n0\r\nX: y\r\n\n")), 400),
        ("a length after it", chunked("/rpc/tools", &format!("Content-Length: {length}\r\n"), &one), 400),
        ("a length before it", swap("Transfer-Encoding", "Content-Length: 5\r\nTransfer-Encoding"), 400),
        ("a length of nothing", chunked("/rpc/tools", "Content-Length: 0\r\n", &one), 400),
        ("twice", chunked("/rpc/tools", "Transfer-Encoding: chunked\r\n", &one), 400),
        ("twice in one", swap("Transfer-Encoding: chunked", "Transfer-Encoding: chunked, chunked"), 501),
        ("another coding first", swap("Transfer-Encoding: chunked", "Transfer-Encoding: gzip, chunked"), 501),
        ("another coding last", swap("Transfer-Encoding: chunked", "Transfer-Encoding: chunked, gzip"), 400),
        ("another coding", swap("Transfer-Encoding: chunked", "Transfer-Encoding: xchunked"), 400),
        ("no coding", swap("Transfer-Encoding: chunked", "Transfer-Encoding: identity"), 400),
        ("an empty one", swap("Transfer-Encoding: chunked", "Transfer-Encoding:"), 400),
        ("a blank before the colon", swap("Transfer-Encoding:", "Transfer-Encoding :"), 400),
        ("a folded line", swap("Transfer-Encoding: chunked", "Transfer-Encoding:\r\n chunked"), 400),
        ("HTTP/1.0", swap("HTTP/1.1", "HTTP/1.0"), 400),
        ("a head with bare line feeds", swap("localhost\r\n", "localhost\n"), 400),
        ("a size in C", body(&format!("0x{one}")), 400),
        ("a signed size", body(&format!("+{one}")), 400),
        ("a blank before the size", body(&format!(" {one}")), 400),
        ("no size", body(&format!("\r\n{one}")), 400),
        ("a size beyond all numbers", body(&format!("1{}\r\n{add}", "0".repeat(20))), 400),
        ("a line feed alone after the size", body(&format!("{length:x}\n{add}\r\n0\r\n\r\n")), 400),
        ("a line feed alone in an extension", body(&format!("{length:x};a\nb\r\n{add}\r\n0\r\n\r\n")), 400),
        ("a chunk longer than its size", body(&format!("{:x}\r\n{add}\r\n0\r\n\r\n", length - 1)), 400),
        ("a chunk shorter than its size", body(&format!("{:x}\r\n{add}\r\n0\r\n\r\n", length + 1)), 400),
        ("a line feed alone after a chunk", body(&format!("{length:x}\r\n{add}\n0\r\n\r\n")), 400),
        ("a long extension", body(&format!("{length:x};{}\r\n{add}\r\n0\r\n\r\n", "x".repeat(20_000))), 400),
        ("many trailers", body(&format!("{length:x}\r\n{add}\r\n0\r\n{}\r\n", "X: y\r\n".repeat(5_000))), 400),
        ("one byte too much", body(&in_chunks(&padded(MOST + 1), 8_000)), 413),
        ("far too much", body(&in_chunks(&padded(1_000_000), 60_000)), 413),
    ] {
        let mut wire = gateway.wire().await;
        let answer = wire.ask(&request).await;
        assert_eq!(answer.status, status, "{what}: {answer:?}");
        assert!(wire.is_closed().await, "{what}");
    }
    // One that never ends, and a type that a page may send without being asked.
    let began = std::time::Instant::now();
    gateway.wire().await.ask(body("5\r\n{")).await.is(408, -32600);
    assert!((9..20).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
    gateway.wire().await.ask(swap("application/json", "text/plain")).await.is(415, -32600);
    let ticket = open("/rpc/tools/ws", "Transfer-Encoding: chunked\r\n") + "0\r\n\r\n";
    gateway.wire().await.ask(ticket).await.is(400, -32600);
    settle(&listener).await;
    assert!(futures_util::FutureExt::now_or_never(heard.next()).is_none(), "nothing of these was sent");

    // Who goes away has cancelled, however the body came.
    let mut gone = gateway.wire().await;
    gone.write(chunked("/rpc/tools", "", &in_chunks(&call(7, "job/run", r#"{"steps":5999}"#), 9))).await;
    begun(&mut heard, 1).await;
    drop(gone);
    ended(&stage, 1).await;

    // An unchanged client that sends no length.
    let script = format!(
        "const r = require('http').request({{port: {}, path: '/rpc/tools', method: 'POST', headers: {{'content-type': 'application/json'}}}}, \
         a => {{ let t = ''; a.on('data', d => t += d).on('end', () => console.log(a.statusCode, t)); }}); \
         r.write('{{\"jsonrpc\":\"2.0\",\"id\":1,'); setTimeout(() => r.end('\"method\":\"math/add\",\"params\":[2,3]}}'), 50);",
        gateway.at.port()
    );
    match within(LONG, Command::new("node").args(["-e", &script]).kill_on_drop(true).output()).await {
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(said.starts_with("200 ") && said.contains("\"result\":5"), "{said} {output:?}");
        }
        Err(error) => eprintln!("NOT TESTED, for want of node: {error}"),
    }
    assert_eq!(gateway.stop().await.0, Some(0));
    stage.end().await;
}

/// Clients that join a base address and an empty path end it with a slash.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slash_at_the_end_of_a_path_says_nothing() {
    let stage = demo().await;
    let gateway = Gateway::start(&stage.shell, FAST, "a2a = { text_method = \"text/echo\" }").await;
    gateway.is_ready(200).await;
    let (add, list) = (call(1, "math/add", "[1,2]"), r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#);
    let get = |path: &str, lines: &str| format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n");
    for (request, status) in [
        (post("/rpc/tools/", "", &add), 200),
        (post("/mcp/", EVENTS, list), 200),
        (post("/mcp/tools/", EVENTS, list), 200),
        (post("/a2a/tools/", "A2A-Version: 1.0\r\n", &call(1, "ListTasks", "{}")), 200),
        (get("/a2a/tools/.well-known/agent-card.json/", ""), 200),
        (get("/.well-known/agent-card.json/", ""), 200),
        (get("/rpc/tools/openrpc.json/", ""), 200),
        (get("/livez/", ""), 200),
        // The same checks.
        (post("/rpc/others/", "", &add), 404),
        (post("/mcp/others/", EVENTS, list), 404),
        (post("/a2a/others/", "", &add), 404),
        (post("/rpc/tools/", "", &add).replace("Host: localhost", "Host: evil.example"), 403),
        (post("/rpc/tools/", "Origin: https://evil.example\r\n", &add), 403),
        (post("/rpc/tools/", "", &add).replace("application/json", "text/plain"), 415),
        (post("/rpc/tools/", "", &add).replace("POST ", "POST http://localhost"), 400),
        (
            get("/rpc/tools/stream/?method=text/echo", EVENTS)
                .replace("Host: localhost", "Host: localhost\r\nSec-Fetch-Site: cross-site"),
            403,
        ),
        (get("/rpc/tools/", ""), 405),
        // One slash, and only at the end.
        (post("/rpc/tools//", "", &add), 404),
        (post("/rpc//tools", "", &add), 404),
        (post("//rpc/tools", "", &add), 404),
        (post("/rpc/tools%2f", "", &add), 404),
        (post("/rpc/", "", &add), 404),
        (post("/", "", &add), 404),
        (post("//", "", &add), 404),
    ] {
        let answer = gateway.wire().await.ask(&request).await;
        assert_eq!(answer.status, status, "{request}: {answer:?}");
    }
    assert_eq!(gateway.wire().await.ask(post("/rpc/tools/", "", &add)).await.json()["result"], 3);
    let echo = call(1, "text/echo", r#"{"text":"x"}"#);
    for request in [
        post("/rpc/tools/stream/", "", &echo),
        get("/rpc/tools/stream/?method=text/echo&params=%7B%22text%22:%22x%22%7D", EVENTS),
    ] {
        let mut wire = gateway.wire().await;
        wire.write(&request).await;
        assert_eq!(wire.head().await.status, 200);
        assert!(wire.event().await.unwrap().contains("\"result\":\"x\""));
    }
    let mut wire = gateway.wire().await;
    assert_eq!(wire.ask(open("/rpc/tools/ws/", "")).await.status, 101);
    assert_eq!(Socket(wire).ask(&add).await["result"], 3);
    assert_eq!(gateway.stop().await.0, Some(0));
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_of_this_machine_are_known_in_every_form_and_proxies_by_what_they_add() {
    let stage = demo().await;
    let config = format!("{FAST}hosts = [\"gateway.example\"]\norigins = [\"https://app.example\"]");
    let gateway = Gateway::start(&stage.shell, &config, "").await;
    gateway.is_ready(200).await;
    let add = call(1, "math/add", "[1,2]");
    let request = |lines: &str| post("/rpc/tools", lines, &add);
    let host = |name: &str| request("").replace("Host: localhost", &format!("Host: {name}"));
    let origin = |name: &str| request(&format!("Origin: {name}\r\n"));
    let here = [
        "localhost",
        "LocalHost",
        "localhost.",
        "127.0.0.1",
        "127.0.0.2",
        "127.255.255.254",
        "[::1]",
        "[0:0:0:0:0:0:0:1]",
        "[::ffff:127.0.0.1]",
    ];
    let elsewhere = [
        "localhost..",
        "localhost.evil.example",
        "evil.localhost.example",
        "127.0.0.1.evil.example",
        "127.0.0.1.nip.io",
        "128.0.0.1",
        "0.0.0.0",
        "10.0.0.1",
        "[::]",
        "[::2]",
        "[fe80::1]",
        "[::ffff:10.0.0.1]",
        "[::1]evil.example",
        "gateway.example.evil",
        "127.0.0.1@evil.example",
        "localhost:80:90",
        "localhost:99999",
    ];
    for name in here.iter().chain(&["gateway.example", "Gateway.Example", "gateway.example."]) {
        for name in [(*name).to_owned(), format!("{name}:8480"), format!("{name}:")] {
            assert_eq!(gateway.wire().await.ask(host(&name)).await.status, 200, "Host: {name}");
        }
    }
    for name in here {
        for name in [format!("http://{name}"), format!("https://{name}:3000"), format!("HTTP://{name}:80")] {
            let answer = gateway.wire().await.ask(origin(&name)).await;
            assert_eq!((answer.status, answer.header("access-control-allow-origin")), (200, None), "Origin: {name}");
        }
    }
    for name in elsewhere {
        assert_eq!(gateway.wire().await.ask(host(name)).await.status, 403, "Host: {name}");
        assert_eq!(gateway.wire().await.ask(origin(&format!("http://{name}"))).await.status, 403, "Origin: {name}");
    }
    for name in [
        "null",
        "file://",
        "http://",
        "localhost",
        "ftp://localhost",
        "chrome-extension://abcdef",
        "http://localhost/x",
    ] {
        let status = gateway.wire().await.ask(origin(name)).await.status;
        assert!([400, 403].contains(&status), "Origin: {name}: {status}");
    }
    // Proxies, balancers, tunnels and networks, by what they are known to add.
    for line in [
        "Forwarded: for=10.0.0.1",
        "Via: 1.1 proxy",
        "X-Forwarded-For: 10.0.0.1",
        "X-Forwarded-Host: a",
        "X-Forwarded-Proto: https",
        "X-Forwarded-Port: 1",
        "X-Forwarded-Server: a",
        "X-Forwarded: a",
        "Forwarded-For: 10.0.0.1",
        "X-Real-IP: 10.0.0.1",
        "X-Client-IP: 10.0.0.1",
        "Client-IP: 10.0.0.1",
        "X-Cluster-Client-IP: 10.0.0.1",
        "True-Client-IP: 10.0.0.1",
        "X-True-Client-IP: 10.0.0.1",
        "CF-Connecting-IP: 10.0.0.1",
        "CF-Connecting-IPv6: ::2",
        "CF-Ray: a",
        "CF-IPCountry: a",
        "CF-Visitor: {}",
        "CF-Worker: a",
        "CDN-Loop: cloudflare",
        "Fastly-Client-IP: 10.0.0.1",
        "Fastly-SSL: 1",
        "Fastly-FF: a",
        "X-Envoy-External-Address: 10.0.0.1",
        "X-Envoy-Original-Path: /",
        "X-Envoy-Internal: true",
        "X-Azure-ClientIP: 10.0.0.1",
        "X-Azure-SocketIP: 10.0.0.1",
        "X-Azure-Ref: a",
        "X-Azure-FDID: a",
        "Fly-Client-IP: 10.0.0.1",
        "Fly-Forwarded-Port: 1",
        "Fly-Region: a",
        "X-Original-Forwarded-For: 10.0.0.1",
        "X-Original-Host: a",
        "X-Original-URL: /",
        "X-Original-URI: /",
        "X-Original-Proto: http",
        "X-Original-For: a",
        "CloudFront-Viewer-Address: 10.0.0.1:1",
        "X-Amz-Cf-Id: a",
        "X-Akamai-Edgescape: a",
        "X-AppEngine-User-IP: 10.0.0.1",
        "X-Vercel-Forwarded-For: 10.0.0.1",
        "X-NF-Client-Connection-IP: 10.0.0.1",
        "Incap-Client-IP: 10.0.0.1",
        "X-Sucuri-ClientIP: 10.0.0.1",
        "Ali-CDN-Real-IP: 10.0.0.1",
        "X-ARR-SSL: a",
        "X-ARR-LOG-ID: a",
        "Tailscale-User-Login: a",
        "Proxy-Client-IP: 10.0.0.1",
        "WL-Proxy-Client-IP: 10.0.0.1",
        "X-ProxyUser-IP: 10.0.0.1",
        "X-Remote-IP: 10.0.0.1",
        "X-Remote-Addr: 10.0.0.1",
        "Remote-Addr: 10.0.0.1",
        "X-NginX-Proxy: true",
        "X-Scheme: https",
        "X-Coming-From: a",
        "Proxy-Connection: keep-alive",
    ] {
        let answer = gateway.wire().await.ask(request(&format!("{line}\r\n"))).await;
        assert_eq!(answer.status, 403, "{line}");
        assert!(answer.json()["error"]["message"].as_str().unwrap().contains("not behind a proxy"), "{answer:?}");
    }
    // What clients and their libraries add themselves.
    for line in [
        "X-Request-ID: a",
        "X-Amzn-Trace-Id: Root=1-a",
        "X-Cloud-Trace-Context: a",
        "X-B3-TraceId: a",
        "User-Agent: a",
        "Accept-Encoding: gzip",
        "Connection: keep-alive",
        "X-Requested-With: a",
    ] {
        assert_eq!(gateway.wire().await.ask(request(&format!("{line}\r\n"))).await.status, 200, "{line}");
    }
    // Framing that somebody on the way may have read differently.
    let length = add.len();
    for (what, sent) in [
        ("two lengths", request(&format!("Content-Length: {length}\r\n"))),
        ("three", request(&format!("content-length: {length}\r\nCONTENT-LENGTH:{length}\r\n"))),
        (
            "a list",
            request("").replace(&format!("Content-Length: {length}"), &format!("Content-Length: {length}, {length}")),
        ),
        ("bare line feeds", request("").replace("\r\n", "\n")),
        ("one bare line feed", request("X: y\n")),
        ("a bare carriage return", request("X: a\rb\r\n")),
        (
            "two lengths at a health check",
            "GET /livez HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nContent-Length: 0\r\n\r\n".to_owned(),
        ),
    ] {
        let mut wire = gateway.wire().await;
        assert_eq!(wire.ask(&sent).await.status, 400, "{what}");
        assert!(wire.is_closed().await, "{what}");
    }
    let mut wire = gateway.wire().await;
    for _ in 0..3 {
        assert_eq!(
            wire.ask(format!("\r\n{}", request(""))).await.status,
            200,
            "an empty line before a request, RFC 9112 §2.2"
        );
    }

    // CORS: what pages of the named origins may send, and a clear word to all others.
    let asks = |origin: &str| {
        format!(
            "OPTIONS /mcp/tools HTTP/1.1\r\nHost: localhost\r\nOrigin: {origin}\r\nAccess-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: traceparent\r\n\r\n"
        )
    };
    let allowed = gateway.wire().await.ask(asks("https://app.example")).await;
    let headers = allowed.header("access-control-allow-headers").unwrap();
    let named: Vec<_> = headers.split(", ").collect();
    for name in ["traceparent", "tracestate", "baggage", "content-type", "authorization", "mcp-session-id"] {
        assert!(named.contains(&name), "{headers}");
    }
    for origin in
        ["http://localhost:5173", "http://127.0.0.1:5173", "http://[::1]:5173", "https://evil.example", "null"]
    {
        let refused = gateway.wire().await.ask(asks(origin)).await;
        assert_eq!((refused.status, refused.header("access-control-allow-origin")), (403, None), "{origin}");
        assert!(refused.json()["error"]["message"].as_str().unwrap().contains("`origins` must name it"), "{refused:?}");
    }
    let refused = gateway.wire().await.ask(open("/rpc/tools/ws", "Origin: http://localhost:5173\r\n")).await;
    assert_eq!(refused.status, 403);
    let said = refused.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(said.contains("WebSocket") && said.contains("`origins` must name it") && !said.contains("POST"), "{said}");

    // What a socket without the subprotocol cannot have, and how to get it.
    let mut socket = Socket::open(gateway.wire().await, "tools", "").await;
    let refused = socket.ask(&call(1, "rpc.listen", r#"{"method":"clock/ticks","params":{}}"#)).await;
    assert!(refused["error"]["message"].as_str().unwrap().contains("`parts.sealwire.dev`"), "{refused}");
    assert_eq!(refused["error"]["data"], json!({ "outcome": "not_sent" }));
    let refused = socket.ask(&call(2, "clock/ticks", "{}")).await;
    assert!(refused["error"]["message"].as_str().unwrap().contains("`parts.sealwire.dev`"), "{refused}");
    assert_eq!(gateway.stop().await.0, Some(0));
    stage.end().await;
}

/// One process of this machine begins more bodies than there are places, and finishes none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_that_never_end_keep_nobody_out() {
    let stage = demo().await;
    for config in ["per_second = 1000\nburst = 1000\n", "connections = 64\nper_second = 1000\nburst = 1000\n"] {
        let gateway = Gateway::start(&stage.shell, config, "a2a = { text_method = \"text/echo\" }").await;
        gateway.is_ready(200).await;
        let heads = ["/rpc/tools", "/rpc/tools/stream", "/mcp/tools", "/a2a/tools"]
            .map(|path| post(path, &format!("{EVENTS}A2A-Version: 1.0\r\n"), &" ".repeat(5_000)))
            .map(|whole| whole[..whole.len() - 4_999].to_owned());
        let mut slow = Vec::new();
        for n in 0..300 {
            let mut wire = gateway.wire().await;
            wire.write(&heads[n % heads.len()]).await;
            slow.push(wire);
        }
        let began = std::time::Instant::now();
        for id in 0..100 {
            let answer = gateway.wire().await.post(&call(id, "math/add", "[1,2]")).await;
            assert_eq!((answer.status, &answer.json()["result"]), (200, &json!(3)), "{id}: {answer:?}");
            // In two pieces, as a larger one would come.
            let mut wire = gateway.wire().await;
            let whole = post("/rpc/tools", "", &call(id, "math/add", "[1,2]"));
            let (first, last) = whole.split_at(whole.len() - 5);
            wire.write(first).await;
            tokio::time::sleep(Duration::from_millis(5)).await;
            wire.write(last).await;
            assert_eq!(wire.answer().await.unwrap().status, 200, "{id}");
        }
        // Each body that was waited for would take ten seconds.
        assert!(began.elapsed() < LONG, "{:?}", began.elapsed());
        // Those who had to make room are told.
        let first = slow.remove(0).answer().await;
        assert!(first.is_none_or(|answer| [408, 503].contains(&answer.status)));
        drop(slow);
        assert_eq!(gateway.stop().await.0, Some(0));
    }
    stage.end().await;
}

/// W3C Trace Context: the same id at the client, in the gateway's log and in the service's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trace_goes_through_every_dialect_and_stands_in_both_logs() {
    let stage = demo().await;
    let gateway = Gateway::start(&stage.shell, FAST, "a2a = { text_method = \"text/echo\" }").await;
    gateway.is_ready(200).await;
    let listener = stage.server.client().await;
    let mut heard = within(LONG, listener.subscribe("rpc.v1.tools.planner")).await.unwrap();
    settle(&listener).await;
    let id = |n: usize| format!("{:032x}", 0x4bf9_2f35_0000 + n);
    let lines = |n: usize| {
        format!(
            "{EVENTS}A2A-Version: 1.0\r\ntraceparent: 00-{}-00f067aa0ba902b7-01\r\ntracestate: a=b,c@d=e\r\nbaggage: who=ann\r\n",
            id(n)
        )
    };
    let (add, echo) = (call(1, "math/add", "[1,2]"), call(1, "text/echo", r#"{"text":"x"}"#));
    let tool =
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"math_add","arguments":{"a":1,"b":2}}}"#;
    let message = json!({ "jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params":
        { "message": { "messageId": "m", "role": "ROLE_USER", "parts": [{ "text": "x" }] } } })
    .to_string();
    let get = |path: &str, lines: &str| format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n");
    let note = r#"{"jsonrpc":"2.0","method":"log/append","params":{"msg":"x"}}"#;
    let requests = [
        post("/rpc/tools", &lines(0), &add),
        post("/rpc/tools", &lines(1), &format!("[{add},{}]", call(2, "math/add", "[1,2]"))),
        post("/rpc/tools", &lines(2), note),
        post("/rpc/tools/stream", &lines(3), &echo),
        get("/rpc/tools/stream?method=text/echo&params=%7B%22text%22:%22x%22%7D", &lines(4)),
        post("/rpc/tools", &lines(5), &call(1, "math/none", "{}")),
        post("/mcp/tools", &lines(6), tool),
        post("/a2a/tools", &lines(7), &message),
        post("/a2a/tools", &lines(8), &message.replace("SendMessage", "SendStreamingMessage")),
        chunked("/rpc/tools", &lines(9).replace(EVENTS, ""), &in_chunks(&add, 7)),
    ];
    let count = requests.len();
    let proof = |sent: &async_nats::Message| -> Value {
        let authorization = sent.headers.as_ref().unwrap().get("Authorization").unwrap().to_string();
        let claims = authorization.split('~').nth(1).unwrap().split('.').nth(1).unwrap();
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).unwrap()).unwrap()
    };
    let next = async |heard: &mut async_nats::Subscriber, trace: &str| {
        let parent = format!("00-{trace}-00f067aa0ba902b7-01");
        let found = async {
            loop {
                // A list of methods may be asked for, too, as part of the same trace or of none.
                let sent = heard.next().await.unwrap();
                if proof(&sent)["tp"] == parent.as_str()
                    && !sent.payload.starts_with(b"{\"jsonrpc\":\"2.0\",\"method\":\"rpc.discover")
                {
                    break sent;
                }
            }
        };
        let headers = within(LONG, found).await.headers.unwrap();
        assert_eq!(
            (headers.get("tracestate").unwrap().as_str(), headers.get("baggage").unwrap().as_str()),
            ("a=b,c@d=e", "who=ann")
        );
    };
    for (n, request) in requests.iter().enumerate() {
        let mut wire = gateway.wire().await;
        wire.write(request).await;
        let answer = wire.answer().await.unwrap();
        assert!([200, 204].contains(&answer.status), "{request}: {answer:?}");
        next(&mut heard, &id(n)).await;
        if answer.header("transfer-encoding").is_some() {
            while wire.chunk().await.is_some() {}
        }
    }
    // A socket, by its handshake: calls with and without parts.
    for (n, protocol) in [(count, ""), (count + 1, "Sec-WebSocket-Protocol: parts.sealwire.dev\r\n")] {
        let mut socket = Socket::open(gateway.wire().await, "tools", &format!("{}{protocol}", lines(n))).await;
        assert_eq!(socket.ask(&add).await["result"], 3);
        next(&mut heard, &id(n)).await;
    }
    // What is not well-formed, or there twice, is left out.
    for wrong in [
        "traceparent: 00-0-0-01\r\n".to_owned(),
        lines(0) + &lines(1).replace(EVENTS, "").replace("A2A-Version: 1.0\r\n", ""),
    ] {
        let mut own = gateway.wire().await;
        assert_eq!(own.ask(post("/rpc/tools", &wrong, &add)).await.status, 200);
        while let Some(sent) = futures_util::FutureExt::now_or_never(heard.next()).flatten() {
            assert!(proof(&sent)["tp"].is_null() && sent.headers.unwrap().get("tracestate").is_none());
        }
    }
    let (code, said) = gateway.stop().await;
    assert_eq!(code, Some(0));
    let served = stage.end().await;
    for n in 0..count + 2 {
        assert!(said.contains(&id(n)), "{n}: {said}");
        assert!(served.contains(&id(n)), "{n}: {served}");
    }
    assert!(said.contains("peer\":\"127.0.0.1:") || said.contains("peer=127.0.0.1:"), "{said}");
}
