//! Kind `ws`: a server made with the package `websockets`, and bytes that no server should send.

use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use sealwire::RpcError;
use sealwire::internal::rpc::Request;
use sealwire_testkit::python::python;
use sealwire_testkit::{free_port, root, within};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::process::{Child, Command};

use super::stage::{LONG, POLICY, Stage, code, prepared};
use super::stdio::got;
use crate::gateway_http::mint::pem;
use crate::process::{heard, says};

/// Starts the server, and waits until it listens.
async fn server(python: &Path, port: u16, more: &[&str]) -> Child {
    let program = root().join("crates/cli/tests/cli/backends/ws.py");
    let mut command = Command::new(python);
    command.arg("-B").arg(program).arg(port.to_string()).args(more).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut server = command.kill_on_drop(true).spawn().unwrap();
    says(&mut heard(server.stdout.take().unwrap()), "listening").await;
    server
}

fn backend(url: &str, more: &str, methods: &[&str]) -> String {
    let mut text = format!("[[backend]]\nname = \"w\"\nkind = \"ws\"\nurl = \"{url}\"\n{more}\n");
    for method in methods {
        text += &format!("[[backend.method]]\nname = \"w/{method}\"\ntool = \"{method}\"\n");
    }
    text
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_over_a_websocket_is_called_pushes_asks_and_is_told_of_cancellation() {
    let Some(python) = python() else { return };
    let port = free_port();
    let _server = server(python, port, &["--ticks"]).await;
    let more = "send_caller = true\nheaders = { Origin = \"https://a.example\", Sec-WebSocket-Protocol = \"rpc, other\" }\n\
                [[backend.credential]]\nscheme = \"Bearer\"\ncommand = [\"echo\", \"hunter2\"]";
    let methods = [
        "refuse",
        "who",
        "shown",
        "later",
        "job",
        "ask",
        "wait",
        "cancelled",
        "form",
        "fragments",
        "connections",
        "none",
    ];
    let mut text = backend(&format!("ws://127.0.0.1:{port}/rpc/ws?tenant=a"), more, &methods);
    text += "[[backend.method]]\nname = \"w/echo\"\ntool = \"echo\"\nparams = [{ name = \"a\", type = \"integer\" }]\n\
             [[backend.method]]\nname = \"w/ticks\"\ntool = \"tick\"\npush = true\n";
    let policy = "[role.user]\nallow = [\"w/*\"]\n[rule.small]\nroles = [\"user\"]\ndeny = [\"w/echo\"]\n\
                  when.params.a = { min = 100 }\n";
    let stage = Stage::new(policy, &text).await;

    assert_eq!(stage.call("w/echo", json!({ "a": 5 })).await.unwrap(), json!({ "a": 5 }));
    assert_eq!(code(&stage.call("w/echo", json!({ "a": 100 })).await.unwrap_err()), Some(-32002));
    let refused = stage.call("w/refuse", json!([])).await.unwrap_err();
    let refused = refused.remote().unwrap();
    assert_eq!((refused.code(), refused.message(), refused.profile_code()), (-32050, "not today", None));
    assert_eq!(code(&stage.call("w/none", json!([])).await.unwrap_err()), Some(-32601));
    assert_eq!(stage.call("w/who", json!([])).await.unwrap(), json!({ "agent": "planner", "subject": "planner" }));
    let shown = stage.call("w/shown", json!([])).await.unwrap();
    for (name, value) in
        [("authorization", "Bearer hunter2"), ("origin", "https://a.example"), ("upgrade", "websocket")]
    {
        assert_eq!(shown[name], value, "{shown}");
    }
    assert!(shown.get("sec-websocket-extensions").is_none(), "{shown}");

    // What it sends during a call, and a question.
    let told: Arc<Mutex<Vec<Request>>> = Arc::default();
    let listener = Arc::clone(&told);
    let request = stage.client.request("tools").on_notification(move |note| listener.lock().unwrap().push(note));
    let mut parts = request.stream::<u64>("w/job", json!([400]));
    for number in 0..400 {
        assert_eq!(within(LONG, parts.next()).await.unwrap().unwrap(), number);
    }
    assert_eq!(within(LONG, parts.finish::<String>()).await.unwrap(), "done");
    let told: Vec<String> = told.lock().unwrap().iter().map(|note| note.method.clone()).collect();
    assert_eq!(told, ["rpc.progress", "job/began"]);
    let asked = stage.client.request("tools").on_ask(|_: Request| async { Ok::<_, RpcError>(2) });
    let mut asked = asked.stream::<Value>("w/ask", json!([]));
    assert!(within(LONG, asked.next()).await.is_none());
    assert_eq!(within(LONG, asked.finish::<Value>()).await.unwrap(), 2);

    // What belongs to no call is pushed to whoever listens.
    let mut ticks = stage.client.subscribe::<Value>("tools", "w/ticks", json!([]));
    let first = within(LONG, ticks.next()).await.unwrap().unwrap()["n"].as_u64().unwrap();
    assert_eq!(within(LONG, ticks.next()).await.unwrap().unwrap(), json!({ "n": first + 1 }));
    assert!(within(LONG, ticks.cancel()).await);

    // The server is told about a call that nobody waits for any more.
    let mut waiting = stage.client.stream::<Value>("tools", "w/wait", json!([]));
    assert_eq!(within(LONG, waiting.next()).await.unwrap().unwrap(), "waiting");
    assert!(within(LONG, waiting.cancel()).await);
    let told = async { while stage.call("w/cancelled", json!([])).await.unwrap() == json!([]) {} };
    within(LONG, told).await;

    // Fragments and bytes are read, and hundreds at once over one connection, in any order.
    assert_eq!(stage.call("w/fragments", json!([])).await.unwrap(), 1);
    let form = "\u{feff}{\"jsonrpc\":\"2.0\",\r\n\"id\":ID,\"result\":1}";
    assert_eq!(stage.call("w/form", json!({ "text": form, "bytes": true })).await.unwrap(), 1);
    let calls = (0..300).map(|number| {
        let stage = &stage;
        async move { assert_eq!(stage.call("w/later", json!([number])).await.unwrap(), json!([number])) }
    });
    join_all(calls).await;
    assert_eq!(stage.call("w/connections", json!([])).await.unwrap(), 1);
    let said = stage.end().await;
    assert!(!said.contains("hunter2") && !said.contains("tenant"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_over_a_websocket_in_whatever_form_ends_its_call_at_once() {
    let Some(python) = python() else { return };
    let port = free_port();
    let _server = server(python, port, &[]).await;
    let stage = Stage::new(POLICY, &backend(&format!("ws://localhost:{port}/"), "timeout_s = 600", &["form"])).await;
    for (text, expected) in [
        ("{\"jsonrpc\":\"2.0\",\"id\":ID,\"result\":1}", Ok(1)),
        ("{\n \"jsonrpc\": \"2.0\",\n \"id\": ID,\n \"result\": 1\n}\n", Ok(1)),
        ("{\"jsonrpc\":\"2.0\",\"id\":null,\"error\":{\"code\":7,\"message\":\"no\"}}", Ok(7)),
        ("{\"jsonrpc\":\"2.0\",\"id\":ID,\"result\":NaN}", Err("no NaN")),
        ("{'jsonrpc': '2.0', 'id': ID, 'result': 1}", Err("not JSON")),
        ("{\"jsonrpc\":\"2.0\",\"id\":\"ID\",\"result\":1}", Err("its id is a string")),
        ("{\"jsonrpc\":\"2.0\",\"result\":1}", Err("its id is missing")),
        ("{\"id\":ID,\"result\":1}", Err("`jsonrpc`")),
        ("{\"jsonrpc\":\"2.0\",\"id\":ID}", Err("neither")),
    ] {
        for bytes in [false, true] {
            match (expected, got(stage.call("w/form", json!({ "text": text, "bytes": bytes })).await)) {
                (Ok(result), Ok(given)) => assert_eq!(given, result, "{text}"),
                (Ok(own), Err((code, _))) => assert_eq!(i64::from(code), own, "{text}"),
                (Err(why), Err((code, data))) => assert!(code == -32004 && data.contains(why), "{text}: {data}"),
                (Err(why), Ok(given)) => panic!("{text}: {given}, and not {why}"),
            }
        }
    }
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_websocket_that_ends_or_floods_is_opened_again_and_costs_its_calls_alone() {
    let Some(python) = python() else { return };
    let port = free_port();
    let mut first = server(python, port, &[]).await;
    let methods = ["echo", "closes", "breaks", "large", "noise", "pings", "wait"];
    let url = format!("ws://127.0.0.1:{port}/");
    let mut stage = Stage::new(POLICY, &backend(&url, "", &methods)).await;
    for (method, params, told) in [
        ("w/closes", json!([]), "it has closed the connection: 1013 later\\\\u{1b}[2J"),
        ("w/breaks", json!([]), "the connection broke"),
        ("w/large", json!([]), "more than 1 MiB"),
        ("w/noise", json!([1]), "1000 useless lines"),
        ("w/noise", json!([100_000]), "8 MiB without use"),
        ("w/pings", json!([]), "1000 useless lines"),
    ] {
        // Other waiting callers are told as well.
        let (one, other) = (stage.call("w/wait", json!([])), stage.call(method, params));
        let (one, other) = futures_util::future::join(one, other).await;
        assert_eq!((code(&one.unwrap_err()), code(&other.unwrap_err())), (Some(-32004), Some(-32004)), "{method}");
        stage.comes_back("w/echo", json!([method])).await;
        says(&mut stage.stderr, told).await;
    }
    // While it is away, calls are refused at once.
    first.kill().await.unwrap();
    let away = async {
        while stage.call("w/echo", json!([])).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    within(LONG, away).await;
    let began = Instant::now();
    for _ in 0..10 {
        assert_eq!(code(&stage.call("w/echo", json!([])).await.unwrap_err()), Some(-32004));
    }
    // Each alone would wait for as long as this.
    assert!(began.elapsed() < LONG / 2, "{:?}", began.elapsed());
    let _second = server(python, port, &[]).await;
    stage.comes_back("w/echo", json!(["back"])).await;
    let said = stage.end().await;
    // Ten lines a second at most, of the many that it has sent.
    assert!(said.matches("a line was dropped").count() < 100, "{said}");
}

/// docs/bounds.md: one message of a server over a WebSocket, with the heads of its frames.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_websocket_message_may_come_in_many_frames_and_not_in_any_number() {
    const MOST: usize = 2 << 20;
    let Some(python) = python() else { return };
    let port = free_port();
    let _server = server(python, port, &[]).await;
    let url = format!("ws://127.0.0.1:{port}/");
    let mut stage = Stage::new(POLICY, &backend(&url, "", &["echo", "frames", "connections"])).await;
    // Each message counts for itself: these have two bytes of their own in every frame, and together more than one may.
    for _ in 0..3 {
        assert_eq!(stage.call("w/frames", json!([MOST / 2 / 5 * 2, 0])).await.unwrap(), 1);
    }
    // Pings are no part of it: with these it would be too much.
    assert_eq!(stage.call("w/frames", json!([(MOST - (60 << 10)) / 2, 900])).await.unwrap(), 1);
    assert_eq!(stage.call("w/connections", json!([])).await.unwrap(), 1);
    // More than what is read at a time is beyond it.
    let refused = stage.call("w/frames", json!([MOST / 2 + (16 << 10), 0])).await.unwrap_err();
    assert_eq!(code(&refused), Some(-32004), "{refused}");
    says(&mut stage.stderr, "too many frames for one message").await;
    stage.comes_back("w/echo", json!(["back"])).await;
    assert_eq!(stage.call("w/connections", json!([])).await.unwrap(), 2);
    stage.end().await;
}

/// A server whose answer to the handshake is made of the key that it gets.
async fn handshakes(answers: &'static [(&'static str, &'static str)]) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let Ok(byte) = socket.read_u8().await else { break };
                head.push(byte);
            }
            let head = String::from_utf8(head).unwrap();
            let answer = answers.iter().find(|(name, _)| head.starts_with(&format!("GET /{name} ")));
            drop(socket.write_all(answer.map_or("", |(_, answer)| answer).as_bytes()).await);
            tokio::spawn(async move { drop(socket.read_u8().await) });
        }
    });
    port
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_without_websocket_is_reported_and_no_caller_waits_for_it() {
    const ACCEPT: &str = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                          Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";
    let table: &[(&str, &str, &str)] = &[
        ("plain", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "it answers with 200, and not with 101"),
        ("denied", "HTTP/1.1 403 No\r\nContent-Length: 0\r\n\r\n", "it answers with 403"),
        ("login", "HTTP/1.1 401 No\r\nContent-Length: 0\r\n\r\n", "it answers with 401"),
        (
            "moved",
            "HTTP/1.1 302 There\r\nLocation: https://evil.example/?hunter2\r\n\r\n",
            "redirects are not followed",
        ),
        ("other", ACCEPT, "`Sec-WebSocket-Accept` does not fit"),
        ("silent", "", "cannot be reached"),
        ("words", "hello\r\n\r\n", "cannot be reached"),
    ];
    let answers: Vec<(&str, &str)> = table.iter().map(|(name, answer, _)| (*name, *answer)).collect();
    let port = handshakes(Box::leak(answers.into_boxed_slice())).await;
    let mut text = String::new();
    for (name, ..) in table {
        text += &format!(
            "[[backend]]\nname = \"{name}\"\nkind = \"ws\"\nurl = \"ws://127.0.0.1:{port}/{name}\"\n\
             [[backend.method]]\nname = \"w/{name}\"\n"
        );
    }
    let mut stage = Stage::start(POLICY, &text, &["serve"]).await;
    within(LONG, stage.client.wait_for("tools", LONG)).await.unwrap();
    for (name, _, told) in table {
        if *name != "silent" {
            says(&mut stage.stderr, told).await;
        }
        let error = stage.call(&format!("w/{name}"), json!([])).await.unwrap_err();
        assert_eq!(code(&error), Some(-32004), "{name}: {error}");
    }
    let said = stage.end().await;
    assert!(said.contains("https://evil.example/") && !said.contains("hunter2"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_websocket_with_tls_is_trusted_by_its_certificate() {
    let Some(python) = python() else { return };
    let folder = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let other = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let file = |name: &str, text: &str| {
        std::fs::write(folder.path().join(name), text).unwrap();
        folder.path().join(name).to_str().unwrap().to_owned()
    };
    let (good, bad) = (
        file("good.pem", &pem("CERTIFICATE", made.cert.der())),
        file("bad.pem", &pem("CERTIFICATE", other.cert.der())),
    );
    let key = file("key.pem", &pem("PRIVATE KEY", made.signing_key.serialized_der()));
    let port = free_port();
    let _server = server(python, port, &[&good, &key]).await;
    let url = format!("wss://localhost:{port}/");
    let text = backend(&url, &format!("tls_ca = {good:?}"), &["echo"]);
    let stage = Stage::new(POLICY, &text).await;
    assert_eq!(stage.call("w/echo", json!([1])).await.unwrap(), json!([1]));
    stage.end().await;
    let text = backend(&url, &format!("tls_ca = {bad:?}"), &["echo"]);
    let mut stage = Stage::start(POLICY, &text, &["serve"]).await;
    says(&mut stage.stderr, "cannot be reached").await;
    within(LONG, stage.client.wait_for("tools", LONG)).await.unwrap();
    assert_eq!(code(&stage.call("w/echo", json!([1])).await.unwrap_err()), Some(-32004));
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_websocket_is_served_without_a_description_in_the_file() {
    let Some(python) = python() else { return };
    let port = free_port();
    let _server = server(python, port, &[]).await;
    let url = format!("ws://127.0.0.1:{port}/");
    let stage = Stage::run(POLICY, "", &["serve", "ws", &url, "--method", "echo(a: integer)"]).await;
    assert_eq!(stage.call("echo", json!({ "a": 1 })).await.unwrap(), json!({ "a": 1 }));
    stage.end().await;
}

#[test]
fn websockets_with_a_mistake_are_refused_with_what_to_do() {
    let shell = prepared("nats://127.0.0.1:4222", POLICY, "");
    let base = shell.read("sealwire.toml");
    let with = |backend: &str, method: &str| {
        let ws = format!("[[backend]]\nname = \"a\"\nkind = \"ws\"\n{backend}");
        shell.write("sealwire.toml", &format!("{base}{ws}\n[[backend.method]]\nname = \"a/b\"\n{method}"));
        shell.run("serve --check")
    };
    let url = "url = \"ws://127.0.0.1:1/rpc\"";
    with(url, "").ok();
    with(url, "push = true").ok();
    with("url = \"wss://a.example/rpc\"", "").ok();
    with("", "").fails(30, &["`url` is missing", "wss://"]);
    with("url = \"https://a.example/rpc\"", "").fails(30, &["no address of a WebSocket", "wss://"]);
    with("url = \"ws://a.example/rpc\"", "").fails(30, &["`ws://a.example/rpc` is not wss", "allow_plaintext"]);
    with("url = \"ws://a.example/rpc\"\nallow_plaintext = true", "").ok();
    with("url = \"wss://u:hunter2@a.example/\"", "").fails(30, &["`credential`"]);
    with(&format!("{url}\ncommand = [\"x\"]"), "").fails(30, &["for kinds that run a program"]);
    with(&format!("{url}\nprefix = \"p\""), "").fails(30, &["`prefix`"]);
    with(&format!("{url}\nbatch = true"), "").fails(30, &["for kind `http`"]);
    with(url, "stream = \"/s\"").fails(30, &["for kind `http`"]);
    with(url, "args = []").fails(30, &["for kind `exec`"]);
    let owned = format!("{url}\n[[backend.credential]]\nowner = \"agent\"\ncommand = [\"x\"]");
    with(&owned, "").fails(30, &["all callers share the WebSocket"]);
    with(&format!("{url}\nheaders = {{ Upgrade = \"x\" }}"), "").fails(30, &["belongs to the connection"]);
}
