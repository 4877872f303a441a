//! Kind `http`: an application made with FastAPI, and a server that answers in ways that it should not.

mod batch;

use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use futures_util::StreamExt as _;
use sealwire::internal::rpc::Request;
use sealwire_testkit::python::python;
use sealwire_testkit::{free_port, root, within};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::process::{Child, Command};

use super::stage::{CODES, LONG, POLICY, Stage, code, prepared};
use super::stdio::got;

const METHODS: &str = r#"
[[backend.method]]
name = "w/add"
tool = "add"
params = [{ name = "a", type = "integer" }, { name = "b", type = "integer" }]

[[backend.method]]
name = "w/shown"
tool = "shown"

[[backend.method]]
name = "w/refuse"
tool = "refuse"

[[backend.method]]
name = "w/none"

[[backend.method]]
name = "w/leave"
tool = "leave"

[[backend.method]]
name = "w/hang"
tool = "hang"

[[backend.method]]
name = "w/report"
tool = "report"

[[backend.method]]
name = "w/count"
tool = "count"
stream = "/rpc/stream"

[[backend.method]]
name = "w/cut"
tool = "cut"
stream = "/rpc/stream"

[[backend.method]]
name = "w/fail"
tool = "fail"
stream = "/rpc/stream"

[[backend.method]]
name = "w/responses"
tool = "responses"
stream = "/rpc/stream"

[[backend.method]]
name = "w/hanging"
tool = "hang"
stream = "/rpc/stream"

[[backend.method]]
name = "w/weather"
params = [
  { name = "city", type = "string" }, { name = "units", type = "string", optional = true },
  { name = "tag", type = "string", optional = true },
]
http = { path = "/weather/{city}", query = { units = "{units}" }, headers = { X-Tag = "{tag}" } }

[[backend.method]]
name = "w/order"
params = [{ name = "number", type = "integer" }, { name = "items", type = "any" }]
http = { verb = "POST", path = "/orders/{number}", body = '{"items": {items}, "by": "sealwire"}' }

[[backend.method]]
name = "w/forget"
params = [{ name = "number", type = "integer" }]
http = { verb = "DELETE", path = "/orders/{number}" }

[[backend.method]]
name = "w/words"
output = "text"
http = { path = "/words" }

[[backend.method]]
name = "w/status"
params = [{ name = "status", type = "integer" }]
http = { path = "/status/{status}" }
"#;

fn backend(port: u16, more: &str) -> String {
    format!("[[backend]]\nname = \"w\"\nkind = \"http\"\nurl = \"http://127.0.0.1:{port}/rpc\"\n{more}\n{METHODS}")
}

/// Starts the application, which takes no calls yet.
fn application(python: &Path, port: u16, folder: &Path) -> Child {
    let program = root().join("crates/cli/tests/cli/backends/http/app.py");
    let mut command = Command::new(python);
    command.arg("-B").arg(program).arg(port.to_string()).arg(folder).stdin(Stdio::null());
    command.kill_on_drop(true).spawn().unwrap()
}

async fn there(file: &Path) {
    let there = async {
        while !file.exists() {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    within(LONG, there).await;
}

async fn fails(stage: &Stage, method: &str, params: Value) -> i32 {
    match stage.call(method, params.clone()).await {
        Ok(result) => panic!("{method} {params}: {result}"),
        Err(error) => code(&error).unwrap_or_else(|| panic!("{error}")),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_credential_from_a_command_serves_the_next_caller_and_outlives_later_failures() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = [0; 4096];
            let read = stream.read(&mut request).await.unwrap_or(0);
            let request = String::from_utf8_lossy(&request[..read]).to_lowercase();
            let status = if request.starts_with("get /no") { "401 No" } else { "200 OK" };
            let shown = request.lines().find_map(|line| line.strip_prefix("authorization: ")).unwrap_or_default();
            let length = shown.len();
            let answer = format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{shown}");
            drop(stream.write_all(answer.as_bytes()).await);
        }
    });
    let backend = format!(
        "[[backend]]\nname = \"w\"\nkind = \"http\"\nurl = \"http://127.0.0.1:{port}/\"\n[[backend.credential]]\n\
         command = [\"sh\", \"-c\", \"echo x >> runs; test $(wc -l < runs) = 1 && sleep 3 && echo one\"]\n\
         [[backend.method]]\nname = \"w/shown\"\noutput = \"text\"\nhttp = {{ path = \"/shown\" }}\n\
         [[backend.method]]\nname = \"w/no\"\nhttp = {{ path = \"/no\" }}\n"
    );
    let stage = Stage::new(POLICY, &backend).await;
    let runs = || stage.shell.read("runs").lines().count();
    // Nobody waits until the command is done.
    let shown = async {
        loop {
            let brief = stage.client.request("tools").deadline(std::time::Duration::from_secs(1));
            if let Ok(shown) = brief.call::<Value>("w/shown", json!({})).await {
                break shown;
            }
        }
    };
    assert_eq!(within(LONG, shown).await, "one");
    assert_eq!(runs(), 1);
    // A new one is fetched when the server refuses, at most every five seconds, and that fails.
    let refused = async {
        while runs() == 1 {
            assert_eq!(fails(&stage, "w/no", json!({})).await, -32004);
        }
    };
    within(LONG, refused).await;
    assert_eq!(stage.call("w/shown", json!({})).await.unwrap(), "one");
    assert_eq!(runs(), 2);
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_application_is_called_streamed_and_cancelled_under_a_policy() {
    let Some(python) = python() else { return };
    let folder = tempfile::tempdir().unwrap();
    let port = free_port();
    let _application = application(python, port, folder.path());
    let policy = "[role.user]\nallow = [\"w/*\"]\n[rule.small]\nroles = [\"user\"]\ndeny = [\"w/add\"]\n\
                  when.params.a = { min = 100 }\n[rule.europe]\nroles = [\"user\"]\ndeny = [\"w/weather\"]\n\
                  when.params.city = { glob = \"Z*\" }\n";
    let secret = folder.path().join("key.sh");
    std::fs::write(&secret, "echo key-of-$SEALWIRE_AGENT; echo x >> runs\n").unwrap();
    let more = format!(
        "send_caller = true\nheaders = {{ X-Tenant = \"a\" }}\nhealth = \"/livez\"\n\
         [[backend.credential]]\nscheme = \"Bearer\"\nowner = \"agent\"\ncommand = [\"sh\", {:?}]\n",
        secret.to_str().unwrap()
    );
    let stage = Stage::new(policy, &backend(port, &more)).await;

    assert_eq!(stage.call("w/add", json!({ "a": 2, "b": 3 })).await.unwrap(), json!(5));
    assert_eq!(fails(&stage, "w/add", json!({ "a": 100, "b": 3 })).await, -32002);
    assert_eq!(fails(&stage, "w/weather", json!({ "city": "Zurich" })).await, -32002);
    let request = stage.client.request("tools").idempotency_key("pay-1");
    let shown: Value = within(LONG, request.call("w/shown", json!({}))).await.unwrap();
    for (name, value) in [
        ("sealwire-agent", "planner"),
        ("sealwire-subject", "planner"),
        ("x-tenant", "a"),
        ("authorization", "Bearer key-of-planner"),
        ("content-type", "application/json"),
    ] {
        assert_eq!(shown[name], value, "{shown}");
    }
    // Another caller's key of the same name is a different one to the application.
    let key = shown["idempotency-key"].as_str().unwrap();
    assert!(key.len() == 32 && !key.contains("pay-1"), "{shown}");
    assert!(!shown.to_string().contains("eyJ"), "no token: {shown}");
    assert_eq!(stage.shell.read("runs").lines().count(), 1, "it is kept");

    // A server's error is handed on as it is, and is never taken for one of Sealwire's own.
    for given in CODES {
        let refused = stage.call("w/refuse", json!({ "code": given })).await.unwrap_err();
        assert!(!refused.is_outcome_unknown(), "{refused}");
        let refused = refused.remote().unwrap();
        assert_eq!((refused.code(), refused.profile_code()), (given, None));
        assert_eq!((refused.message(), refused.data().unwrap().get()), ("not today", r#"{"day":"Monday"}"#));
    }
    assert_eq!(fails(&stage, "w/none", json!({})).await, -32601, "the server does not have it");

    // A stream that is the answer to a POST.
    let told: Arc<Mutex<Vec<Request>>> = Arc::default();
    let listener = Arc::clone(&told);
    let request = stage.client.request("tools").on_notification(move |note| listener.lock().unwrap().push(note));
    let mut report = request.stream::<Value>("w/report", json!({}));
    assert_eq!(within(LONG, report.next()).await.unwrap().unwrap(), json!({ "half": 1 }));
    assert!(within(LONG, report.next()).await.is_none());
    assert_eq!(within(LONG, report.finish::<Value>()).await.unwrap(), json!({ "halves": 2 }));
    let told: Vec<String> = told.lock().unwrap().iter().map(|note| note.method.clone()).collect();
    assert!(told.contains(&"report/note".to_owned()), "{told:?}");
    assert_eq!(stage.call("w/report", json!({})).await.unwrap(), json!({ "halves": 2 }));

    // A stream of parts until `[DONE]`; a caller that accepts no frames gets them all together.
    let mut counted = stage.client.stream::<Value>("tools", "w/count", json!({ "to": 300 }));
    for n in 1..=300 {
        assert_eq!(within(LONG, counted.next()).await.unwrap().unwrap(), json!({ "n": n }));
    }
    assert!(within(LONG, counted.next()).await.is_none());
    assert_eq!(within(LONG, counted.finish::<Value>()).await.unwrap(), Value::Null);
    let together = stage.call("w/count", json!({ "to": 3 })).await.unwrap();
    assert_eq!(together, json!([{ "n": 1 }, { "n": 2 }, { "n": 3 }]));
    assert_eq!(stage.call("w/responses", json!({ "to": 0 })).await.unwrap(), json!([0, 1]));
    assert_eq!(fails(&stage, "w/cut", json!({ "to": 3 })).await, -32004);
    let failed = stage.call("w/fail", json!({ "to": 1 })).await.unwrap_err();
    assert_eq!((code(&failed), failed.remote().unwrap().data().unwrap().get()), (Some(1), r#"{"why": "dry"}"#));

    // Giving up closes the connection.
    for (method, file) in [("w/hang", "hang"), ("w/hanging", "stream")] {
        let hanging = stage.client.stream::<Value>("tools", method, json!({ "to": 1 }));
        there(&folder.path().join(format!("{file}-begun"))).await;
        assert!(within(LONG, hanging.cancel()).await);
        there(&folder.path().join(format!("{file}-cancelled"))).await;
    }

    // Plain requests.
    let weather =
        stage.call("w/weather", json!({ "city": "São Paulo", "units": "a&city=b", "tag": "t" })).await.unwrap();
    let query = "units=a%26city%3Db";
    assert_eq!(weather, json!({ "city": "São Paulo", "units": "a&city=b", "query": query, "tag": "t" }));
    assert_eq!(stage.call("w/weather", json!(["Rome"])).await.unwrap()["query"], "");
    for path in ["a/secret", "..", "a%2Fsecret", "", "a\\secret", "a?x=1", "a#y"] {
        assert_eq!(fails(&stage, "w/weather", json!({ "city": path })).await, -32602, "{path}");
    }
    assert_eq!(fails(&stage, "w/weather", json!({ "city": "a", "tag": "x\r\nX-Admin: 1" })).await, -32602);
    let missing = stage.call("w/weather", json!({ "city": "Atlantis" })).await.unwrap_err();
    let data = missing.remote().unwrap().data().unwrap().get();
    assert_eq!((code(&missing), data), (Some(1), r#"{"status":404,"body":{"detail":"no such city"}}"#));
    let ordered = stage.call("w/order", json!({ "number": 7, "items": [{ "a": 1.50 }] })).await.unwrap();
    assert_eq!(ordered, json!({ "number": 7, "body": { "items": [{ "a": 1.5 }], "by": "sealwire" } }));
    assert_eq!(stage.call("w/forget", json!([7])).await.unwrap(), Value::Null);
    assert_eq!(stage.call("w/words", json!([])).await.unwrap(), "some words\n");
    for (status, got) in [(400, 1), (403, 1), (429, 1), (401, -32004), (407, -32004), (500, -32004), (503, -32004)] {
        assert_eq!(fails(&stage, "w/status", json!([status])).await, got, "{status}");
    }
    let said = stage.end().await;
    assert!(!said.contains("key-of-planner"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_application_that_is_killed_is_interrupted_and_found_again() {
    let Some(python) = python() else { return };
    let folder = tempfile::tempdir().unwrap();
    let port = free_port();
    // The server is not up yet.
    let mut stage = Stage::start(POLICY, &backend(port, "health = \"/livez\""), &["serve"]).await;
    within(LONG, stage.client.wait_for("tools", LONG)).await.unwrap();
    assert_eq!(fails(&stage, "w/add", json!([1, 1])).await, -32004);
    // Then one that reports that it is unhealthy.
    let unwell = folder.path().join("unwell");
    std::fs::write(&unwell, "").unwrap();
    let mut process = application(python, port, folder.path());
    crate::process::says(&mut stage.stderr, "`/livez` answers with 503").await;
    assert_eq!(fails(&stage, "w/add", json!([1, 1])).await, -32004);
    std::fs::remove_file(unwell).unwrap();
    crate::process::says(&mut stage.stdout, "takes messages").await;

    let mut hanging = stage.client.stream::<Value>("tools", "w/hanging", json!({ "to": 1 }));
    assert_eq!(within(LONG, hanging.next()).await.unwrap().unwrap(), json!({ "n": 1 }));
    let lost = stage.client.stream::<Value>("tools", "w/hang", json!({}));
    there(&folder.path().join("hang-begun")).await;
    process.kill().await.unwrap();
    assert_eq!(code(&within(LONG, hanging.finish::<Value>()).await.unwrap_err()), Some(-32004));
    assert_eq!(code(&within(LONG, lost.finish::<Value>()).await.unwrap_err()), Some(-32004));
    assert_eq!(fails(&stage, "w/add", json!([1, 1])).await, -32004);
    crate::process::says(&mut stage.stderr, "the server is unavailable").await;

    let _process = application(python, port, folder.path());
    let back = async {
        while let Err(error) = stage.call("w/add", json!([2, 2])).await {
            assert_eq!(code(&error), Some(-32004), "{error}");
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    within(2 * LONG, back).await;
    stage.end().await;
}

/// Answers each request of JSON-RPC with what its method asks for, and closes.
pub(crate) async fn contrary() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut text = Vec::new();
                let mut buffer = [0; 4096];
                // Every request here ends with the brace of its only object.
                while !text.ends_with(b"}") {
                    match socket.read(&mut buffer).await {
                        Ok(n) if n > 0 => text.extend_from_slice(&buffer[..n]),
                        _ => return,
                    }
                }
                let text = String::from_utf8(text).unwrap();
                let call: Value = serde_json::from_str(text.split("\r\n\r\n").nth(1).unwrap()).unwrap();
                let (id, method) = (&call["id"], call["method"].as_str().unwrap());
                let right = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":"there"}}"#);
                let error = format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":9,"message":"no"}}}}"#);
                let large = format!("data: \"{}\"\n\n", "x".repeat(600_000)).repeat(2);
                let events = "200 OK\r\nContent-Type: text/event-stream";
                let chunks = "200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked";
                let part = |n: u8| format!("data: {{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{n}}}\n\n");
                let json = "200 OK\r\nContent-Type: application/json";
                let (head, body) = match method {
                    "right" => (json, right),
                    "wrong-id" => (json, right.replace(&format!("\"id\":{id}"), "\"id\":4711")),
                    "batch" => (json, format!("[{right}]")),
                    "no-json" => (json, "there".to_owned()),
                    "both" => (json, right.replace('}', ",\"error\":{\"code\":1,\"message\":\"\"}}")),
                    "html" => ("200 OK\r\nContent-Type: text/html", right),
                    "nothing" => ("204 No Content", String::new()),
                    "error-500" => ("500 No\r\nContent-Type: application/json", error),
                    "result-500" => ("500 No\r\nContent-Type: application/json", right),
                    "gateway" => ("502 Bad Gateway\r\nContent-Type: text/html", "<html>hunter2".to_owned()),
                    "redirect" => ("307 Temporary\r\nLocation: https://evil.example/rpc?hunter2", String::new()),
                    "stream" => (events, format!("data: 1\n\ndata: {right}\n\n")),
                    "stream-cut" => (events, format!("data: 1\n\ndata: {right}")),
                    "stream-done" => (events, "data: 1\n\ndata: 2\n\ndata: [DONE]\n\n".to_owned()),
                    "stream-wrong-id" => (events, "data: {\"jsonrpc\":\"2.0\",\"id\":0,\"result\":1}\n\n".to_owned()),
                    "stream-question" => {
                        (events, "data: {\"jsonrpc\":\"2.0\",\"id\":\"q\",\"method\":\"ask\"}\n\n".to_owned())
                    }
                    "stream-words" => (events, "data: there\n\ndata: [DONE]\n\n".to_owned()),
                    "stream-large" => (events, large.clone() + "data: [DONE]\n\n"),
                    "stream-large-response" => (events, format!("{large}data: {right}\n\n")),
                    "deep" => (json, right.replace("\"there\"", &nested(61))),
                    // What answers a POST with several responses, as agents of A2A do.
                    "several" => (events, format!("data: {right}\n\n").repeat(3)),
                    "SendStreamingMessage" | "posted" => (chunks, chunked(&[&part(1), &part(2), &part(3)], true)),
                    "posted-one" => (chunks, chunked(&[&part(1)], true)),
                    "posted-done" => (events, format!("data: {right}\n\ndata: [DONE]\n\n")),
                    "posted-failed" => (chunks, chunked(&[&part(1), &format!("data: {error}\n\n")], true)),
                    "posted-notes" => {
                        let note = "data: {\"jsonrpc\":\"2.0\",\"method\":\"told\"}\n\n";
                        (chunks, chunked(&[note, &part(1), ":\n\n", &part(2)], true))
                    }
                    "posted-json" => (json, right),
                    // Cut off: between events, within one, and where nothing shows where the end is.
                    "SubscribeToTask" | "posted-cut" => (chunks, chunked(&[&part(1), &part(2)], false)),
                    "posted-cut-within" => (chunks, chunked(&[&part(1), part(2).trim_end()], true)),
                    "posted-unframed" => (events, part(1) + &part(2)),
                    "posted-nothing" => (chunks, chunked(&[":\n\n"], true)),
                    "posted-wrong-id" => {
                        (chunks, chunked(&[&part(1).replace(&format!("\"id\":{id}"), "\"id\":0")], true))
                    }
                    "stream-null" => {
                        (events, format!("data: {}\n\n", error.replace(&format!("\"id\":{id}"), "\"id\":null")))
                    }
                    "stream-comments" => (events, ": x\n".repeat(5_000) + "data: [DONE]\n\n"),
                    "stream-blank" => (events, "\n".repeat(5_000) + "data: [DONE]\n\n"),
                    "stream-fields" => (events, "id: 1\n\n".repeat(5_000) + "data: [DONE]\n\n"),
                    "stream-unread" => (events, large.repeat(10) + "data: [DONE]\n\n"),
                    "stream-marked" => (events, format!("\u{feff}data: \u{feff}{right}\r\n\r\n")),
                    "stream-empty" => (events, "data: [DONE]\n\n".to_owned()),
                    "large" => (json, right.replace("there", &"x".repeat(1 << 20))),
                    _ => return,
                };
                let answer = format!("HTTP/1.1 {head}\r\nConnection: close\r\n\r\n{body}");
                drop(socket.write_all(answer.as_bytes()).await);
            });
        }
    });
    port
}

/// A body in chunks, with its end or without.
fn chunked(chunks: &[&str], is_whole: bool) -> String {
    let all = chunks.iter().map(|chunk| format!("{:x}\r\n{chunk}\r\n", chunk.len()));
    all.chain(is_whole.then(|| "0\r\n\r\n".to_owned())).collect()
}

/// docs/backends.md, "Kind `http`".
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn responses_that_answer_a_post_come_whole_or_as_an_error() {
    let port = contrary().await;
    // The parts, and how it ends.
    let table = [
        ("SendStreamingMessage", vec![1, 2, 3], None),
        ("posted", vec![1, 2, 3], None),
        ("posted-one", vec![1], None),
        ("posted-notes", vec![1, 2], None),
        ("posted-failed", vec![1], Some(9)),
        ("SubscribeToTask", vec![1, 2], Some(-32004)),
        ("posted-cut", vec![1, 2], Some(-32004)),
        ("posted-cut-within", vec![1], Some(-32004)),
        ("posted-unframed", vec![1, 2], Some(-32004)),
        ("posted-nothing", vec![], Some(-32004)),
        ("posted-wrong-id", vec![], Some(-32004)),
        // Not said to be a stream: the first must not be taken for all.
        ("several", vec![], Some(-32004)),
    ];
    let names = table.iter().map(|(name, ..)| *name).chain(["posted-json", "posted-done"]);
    let methods: String = names
        .map(|name| {
            let stream = if name.starts_with("posted") { "stream = \"POST\"\n" } else { "" };
            format!("[[backend.method]]\nname = \"{name}\"\n{stream}")
        })
        .collect();
    let text = format!("[[backend]]\nname = \"x\"\nkind = \"http\"\nurl = \"http://localhost:{port}/\"\n{methods}");
    let stage = Stage::new(POLICY, &text).await;
    for (method, parts, end) in table {
        let mut stream = stage.client.stream::<Value>("tools", method, json!({}));
        let (mut taken, mut ended) = (Vec::new(), None);
        while let Some(part) = within(LONG, stream.next()).await {
            match part {
                Ok(part) => taken.push(part.as_i64().unwrap()),
                Err(error) => ended = code(&error),
            }
        }
        assert_eq!((taken, ended), (parts.clone(), end), "{method}");
        assert_eq!(within(LONG, stream.finish::<Value>()).await.is_ok(), end.is_none(), "{method}");
        // In one message.
        let whole = stage.call(method, json!({})).await;
        let wanted = end.map_or_else(|| Ok(json!(parts)), Err);
        assert_eq!(whole.map_err(|error| code(&error).unwrap()), wanted, "{method}");
    }
    assert_eq!(stage.call("posted-json", json!({})).await.unwrap(), "there");
    assert_eq!(stage.call("posted-done", json!({})).await.unwrap(), json!(["there"]));
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_is_none_is_an_error_and_costs_its_call_alone() {
    let port = contrary().await;
    let table = [
        ("right", Ok(json!("there"))),
        ("wrong-id", Err(-32004)),
        ("batch", Err(-32004)),
        ("no-json", Err(-32004)),
        ("both", Err(-32004)),
        ("html", Err(-32004)),
        ("nothing", Err(-32004)),
        ("error-500", Err(9)),
        ("result-500", Err(-32004)),
        ("gateway", Err(-32004)),
        ("redirect", Err(-32004)),
        ("stream", Ok(json!("there"))),
        ("stream-cut", Err(-32004)),
        ("stream-done", Ok(json!([1, 2]))),
        ("stream-wrong-id", Err(-32004)),
        ("stream-question", Err(-32004)),
        ("stream-words", Err(-32004)),
        ("stream-large", Err(-32004)),
        ("stream-large-response", Ok(json!("there"))),
        ("deep", Err(-32004)),
        ("stream-null", Err(9)),
        ("stream-comments", Err(-32004)),
        ("stream-blank", Err(-32004)),
        ("stream-fields", Err(-32004)),
        ("stream-unread", Err(-32004)),
        ("stream-marked", Ok(json!("there"))),
        ("stream-empty", Ok(json!([]))),
        ("large", Err(-32004)),
        ("gone", Err(-32004)),
    ];
    let methods: String = table.iter().map(|(name, _)| format!("[[backend.method]]\nname = \"{name}\"\n")).collect();
    let text = format!("[[backend]]\nname = \"x\"\nkind = \"http\"\nurl = \"http://localhost:{port}/\"\n{methods}");
    let stage = Stage::new(POLICY, &text).await;
    for (method, expected) in table {
        let outcome = stage.call(method, json!({})).await;
        assert_eq!(outcome.map_err(|error| code(&error).unwrap()), expected, "{method}");
        assert_eq!(stage.call("right", json!({})).await.unwrap(), "there", "after {method}");
    }
    let said = stage.end().await;
    assert!(said.contains("https://evil.example/rpc") && !said.contains("hunter2"), "{said}");
}

fn nested(levels: usize) -> String {
    "[".repeat(levels) + &"]".repeat(levels)
}

/// Answers the request of each path with these bytes, and closes.
async fn plain(answers: Vec<(&'static str, String)>) -> u16 {
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
        }
    });
    port
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plain_answer_is_whole_and_readable_or_an_error_of_its_call_alone() {
    let sized = |status: &str, body: &str| {
        let head = format!("HTTP/1.1 {status}\r\nContent-Type: application/json\r\nConnection: close\r\n");
        format!("{head}Content-Length: {}\r\n\r\n{body}", body.len())
    };
    let unsized_ = |status: &str, body: &str| {
        format!("HTTP/1.1 {status}\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n{body}")
    };
    let events =
        |body: &str| format!("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n{body}");
    let deepest: Value = serde_json::from_str(&nested(60)).unwrap();
    let own = |members: &str| format!(r#"{{"jsonrpc":"2.0","id":"theirs",{members}}}"#);
    let table = [
        ("right", sized("200 OK", " 12 "), Ok(json!(12))),
        ("twice", sized("200 OK", r#"{"a":1,"a":2}"#), Err(-32004)),
        ("half-character", sized("200 OK", r#""\ud800""#), Err(-32004)),
        ("deepest", sized("200 OK", &nested(60)), Ok(deepest)),
        ("deep", sized("200 OK", &nested(61)), Err(-32004)),
        ("parts", events("data: {\"a\":1,\"a\":2}\n\ndata: [DONE]\n\n"), Err(-32004)),
        ("deep-parts", events(&format!("data: {}\n\ndata: [DONE]\n\n", nested(60))), Err(-32004)),
        ("failed", events("event: error\ndata: {\"a\":1,\"a\":2}\n\n"), Err(1)),
        ("refusal", sized("404 No", r#"{"a":1,"a":2}"#), Err(1)),
        // Without a length or chunks, these may be the beginning of something else.
        ("object", unsized_("200 OK", r#"{"a":1}"#), Ok(json!({ "a": 1 }))),
        ("half-object", unsized_("200 OK", r#"{"a":1"#), Err(-32004)),
        ("number", unsized_("200 OK", "12"), Err(-32004)),
        ("nothing", unsized_("200 OK", ""), Err(-32004)),
        ("no-content", unsized_("204 No Content", ""), Ok(Value::Null)),
        ("half-refusal", unsized_("404 No", "12"), Err(1)),
        ("text", unsized_("200 OK", "[half"), Err(-32004)),
        ("whole-text", sized("200 OK", "[half"), Ok(json!("[half"))),
        // JSON-RPC, of which the result is taken.
        ("one-rpc", sized("200 OK", &own("\"result\":[1]")), Ok(json!([1]))),
        ("no-rpc", sized("200 OK", "12"), Err(-32004)),
        ("batch-rpc", sized("200 OK", &format!("[{}]", own("\"result\":1"))), Err(-32004)),
        ("failed-rpc", sized("200 OK", &own("\"error\":{\"code\":-32050,\"message\":\"no\"}")), Err(-32050)),
        ("refused-rpc", sized("404 No", &own("\"error\":{\"code\":-32601,\"message\":\"no\"}")), Err(-32601)),
        ("html-rpc", sized("404 No", "<html>").replace("application/json", "text/html"), Err(-32004)),
        (
            "parts-rpc",
            events(&format!(
                "data: {}\n\ndata: {}\n\ndata: {}\n\ndata: [DONE]\n\n",
                own("\"result\":\"\",\"event\":\"start\""),
                own("\"result\":\"h\""),
                own("\"result\":\"i\"")
            )),
            Ok(json!(["", "h", "i"])),
        ),
        ("cut-rpc", events(&format!("data: {}\n\n", own("\"result\":1"))), Err(-32004)),
        ("words-rpc", events("data: there\n\ndata: [DONE]\n\n"), Err(-32004)),
        (
            "error-rpc",
            events(&format!("data: {}\n\n", own("\"error\":{\"code\":-32002,\"message\":\"no\"}"))),
            Err(-32002),
        ),
    ];
    let port = plain(table.iter().map(|(name, answer, _)| (*name, answer.clone())).collect()).await;
    let mut text = format!("[[backend]]\nname = \"x\"\nkind = \"http\"\nurl = \"http://127.0.0.1:{port}/\"\n");
    for (name, ..) in &table {
        let output = match name {
            name if name.ends_with("text") => "output = \"text\"\n",
            name if name.ends_with("-rpc") => "output = \"jsonrpc\"\n",
            _ => "",
        };
        text += &format!("[[backend.method]]\nname = \"{name}\"\n{output}http = {{ path = \"/{name}\" }}\n");
    }
    let stage = Stage::new(POLICY, &text).await;
    // All in one message: no answer makes another one unreadable.
    let mut batch = stage.client.batch("tools");
    let calls: Vec<_> = table.iter().map(|(name, _, expected)| (name, batch.call(name, json!([])), expected)).collect();
    let mut answers = within(LONG, batch.send()).await.unwrap();
    for (name, call, expected) in calls {
        let outcome = answers.take::<Value>(call);
        let outcome = outcome.map_err(|error| {
            let refused = error.remote().unwrap();
            if ["refusal", "half-refusal"].contains(name) {
                assert_eq!(refused.data().unwrap().get(), r#"{"status":404}"#);
            }
            refused.code()
        });
        assert_eq!(outcome, *expected, "{name}");
    }
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_over_http_in_whatever_form_ends_its_call_at_once_with_the_reason() {
    const JSON: &str = "application/json";
    let utf16 = |text: &str| text.encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<u8>>();
    let right = "{\"jsonrpc\":\"2.0\",\"id\":ID,\"result\":1}";
    let of = |text: &str| text.as_bytes().to_vec();
    // The id is one digit here, so that it can be put into bytes.
    let table: Vec<(&str, Vec<u8>, Result<i32, &str>)> = vec![
        (JSON, of(right), Ok(1)),
        ("application/json; charset=utf-8", of(right), Ok(1)),
        ("application/json-rpc", of(right), Ok(1)),
        ("application/jsonrequest", of(right), Ok(1)),
        ("text/json", of(right), Ok(1)),
        ("application/vnd.x+json", of(right), Ok(1)),
        (JSON, of(&format!("\u{feff}{right}")), Ok(1)),
        (JSON, of("{\r\n\"jsonrpc\": \"2.0\",\r\n\"id\": ID,\r\n\"result\": 1\r\n}\r\n"), Ok(1)),
        (JSON, of("{\"jsonrpc\":\"2.0\",\"id\":ID.0,\"result\":1}"), Ok(1)),
        (JSON, of("{\"jsonrpc\":\"2.0\",\"id\":null,\"error\":{\"code\":7,\"message\":\"no\"}}"), Ok(7)),
        ("text/plain", of(right), Err("its content type")),
        (JSON, of("{\"jsonrpc\":\"2.0\",\"id\":ID,\"result\":NaN}"), Err("no NaN")),
        (JSON, of("{'jsonrpc': '2.0', 'id': ID, 'result': 1}"), Err("not JSON")),
        (JSON, of("{\"jsonrpc\":\"2.0\",\"id\":ID,\"result\":1,}"), Err("not JSON")),
        (JSON, of(&format!("{right}{right}")), Err("not JSON")),
        (JSON, of(""), Err("not JSON")),
        (JSON, of("{\"jsonrpc\":\"2.0\",\"id\":\"ID\",\"result\":1}"), Err("its id is a string")),
        (JSON, of("{\"jsonrpc\":\"2.0\",\"result\":1}"), Err("its id is missing")),
        (JSON, of("{\"jsonrpc\":\"2.0\",\"id\":null,\"result\":1}"), Err("its id is missing")),
        (JSON, of("{\"jsonrpc\":\"2.0\",\"id\":4711,\"result\":1}"), Err("what was not asked")),
        (JSON, of(&format!("[{right}]")), Err("what was not asked")),
        (JSON, of("{\"id\":ID,\"result\":1}"), Err("`jsonrpc`")),
        (JSON, of("{\"jsonrpc\":\"2.0\",\"id\":ID}"), Err("neither")),
        (
            JSON,
            of("{\"jsonrpc\":\"2.0\",\"id\":ID,\"result\":1,\"error\":{\"code\":1,\"message\":\"\"}}"),
            Err("neither"),
        ),
        (JSON, of("{\"jsonrpc\":\"2.0\",\"id\":ID,\"error\":\"no\"}"), Err("its `error`")),
        (JSON, of("{\"jsonrpc\":\"2.0\",\"id\":ID,\"result\":{\"a\":1,\"a\":2}}"), Err("twice")),
        (JSON, utf16(right), Err("UTF-16")),
        (JSON, [b"\xff\xfe".as_slice(), &utf16(right)].concat(), Err("not UTF-8")),
        (JSON, b"{\"jsonrpc\":\"2.0\",\"id\":ID,\"result\":\"\xe9\"}".to_vec(), Err("not UTF-8")),
    ];
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let answers: Vec<(&str, Vec<u8>)> = table.iter().map(|(media, text, _)| (*media, text.clone())).collect();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let mut text = Vec::new();
            while !text.ends_with(b"}") {
                match socket.read_u8().await {
                    Ok(byte) => text.push(byte),
                    Err(_) => break,
                }
            }
            let text = String::from_utf8(text).unwrap();
            let Some(body) = text.split("\r\n\r\n").nth(1) else { continue };
            let call: Value = serde_json::from_str(body).unwrap();
            let (id, number) = (call["id"].to_string(), call["params"][0].as_u64().unwrap());
            let (media, bytes) = &answers[usize::try_from(number).unwrap()];
            // One character may be one byte or two.
            let (wide, narrow) = (b"I\0D\0", b"ID");
            let at = |word: &[u8]| bytes.windows(word.len()).position(|window| window == word);
            let (place, length, id) = match (at(wide), at(narrow)) {
                (Some(place), _) => (place, wide.len(), id.encode_utf16().flat_map(u16::to_le_bytes).collect()),
                (None, Some(place)) => (place, narrow.len(), id.into_bytes()),
                (None, None) => (0, 0, Vec::new()),
            };
            let body = [&bytes[..place], &id, &bytes[place + length..]].concat();
            let head = format!(
                "HTTP/1.1 200 OK\r\nContent-Type: {media}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
                body.len()
            );
            drop(socket.write_all(&[head.as_bytes(), &body].concat()).await);
        }
    });
    let text = format!(
        "[[backend]]\nname = \"x\"\nkind = \"http\"\nurl = \"http://127.0.0.1:{port}/\"\ntimeout_s = 600\n\
         [[backend.method]]\nname = \"form\"\n"
    );
    let stage = Stage::new(POLICY, &text).await;
    for (number, (media, bytes, expected)) in table.iter().enumerate() {
        let shown = format!("{media} {}", String::from_utf8_lossy(bytes));
        match (expected, got(stage.call("form", json!([number])).await)) {
            (Ok(result), Ok(given)) => assert_eq!(given, i64::from(*result), "{shown}"),
            (Ok(own), Err((code, _))) => assert_eq!(code, *own, "{shown}"),
            (Err(why), Err((code, data))) => assert!(code == -32004 && data.contains(why), "{shown}: {data}"),
            (Err(why), Ok(given)) => panic!("{shown}: {given}, and not {why}"),
        }
    }
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_server_is_served_without_a_description_in_the_file() {
    let url = format!("http://127.0.0.1:{}/", contrary().await);
    let quick = ["serve", "http", &url, "--method", "right(a?: integer)", "--method", "gone"];
    let stage = Stage::run("[role.user]\nallow = [\"right\"]\n", "", &quick).await;
    assert_eq!(stage.call("right", json!([5])).await.unwrap(), "there");
    assert_eq!(fails(&stage, "gone", json!({})).await, -32002);
    stage.end().await;
}

#[test]
fn servers_with_a_mistake_are_refused_with_what_to_do() {
    let shell = prepared("nats://127.0.0.1:4222", POLICY, "");
    let base = shell.read("sealwire.toml");
    let with = |backend: &str, method: &str| {
        let http = format!("[[backend]]\nname = \"a\"\nkind = \"http\"\n{backend}");
        shell.write("sealwire.toml", &format!("{base}{http}\n[[backend.method]]\nname = \"a/b\"\n{method}"));
        shell.run("serve --check")
    };
    let url = "url = \"http://127.0.0.1:1/rpc\"";
    with(url, "").ok();
    with("", "").fails(30, &["`url` is missing"]);
    with("url = \"http://api.example/\"", "").fails(30, &["allow_plaintext"]);
    with("url = \"http://api.example/\"\nallow_plaintext = true", "").ok();
    with("url = \"https://u:hunter2@api.example/\"", "").fails(30, &["`credential`"]);
    with("command = [\"x\"]", "").fails(30, &["for kinds that run a program"]);
    with(&format!("{url}\nbatch = true"), "").ok();
    with(&format!("{url}\nbatch = true"), "stream = \"/s\"").fails(30, &["`batch` is for methods"]);
    shell.write(
        "stdio.toml",
        &format!("{base}[[backend]]\nname = \"a\"\nkind = \"stdio\"\ncommand = [\"x\"]\nbatch = true\n"),
    );
    shell.run("serve --check --config stdio.toml").fails(30, &["`batch`", "for kind `http`"]);
    with(&format!("{url}\nprefix = \"p\""), "").fails(30, &["`prefix`"]);
    with(&format!("{url}\nhealth = \"livez\""), "").fails(30, &["is no path"]);
    with(url, "args = []").fails(30, &["for kind `exec`"]);
    with(url, "push = true").fails(30, &["`push`"]);
    with(url, "output = \"text\"").fails(30, &["`output`"]);
    with(url, "stream = \"/s?x\"").fails(30, &["is no path"]);
    with(url, "stream = \"/s\"\nhttp = { path = \"/\" }").fails(30, &["`stream` or `http`"]);
    with(url, "tool = \"x\"\nhttp = { path = \"/\" }").fails(30, &["`tool`"]);
    with(url, "http = { path = \"/{x}\" }").fails(30, &["no parameter `x`"]);
    let token = "[[backend.credential]]\nfile = \"token\"";
    with(&format!("{url}\n{token}"), "").fails(30, &["token"]);
    shell.write("token", "secret");
    with(&format!("{url}\n{token}"), "").fails(30, &["chmod 600"]);
}
