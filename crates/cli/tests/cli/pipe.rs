//! `sealwire pipe`: a service for programs that speak JSON-RPC with a child, a line for each message. docs/gateway/stdio.md.

use std::process::Stdio;
use std::time::Duration;

use sealwire_testkit::python::python;
use sealwire_testkit::{root, within};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::backends::stage::{LONG, Stage};
use crate::process::{SIGTERM, catches, send};

const POLICY: &str = "[role.user]\nallow = [\"math/add\", \"job/run\", \"text/echo\", \"log/append\", \"audit/read\", \"clock/ticks\"]\n";
const ARGS: &[&str] = &["pipe", "--creds", "planner.creds.json", "tools"];

/// A client's side of a pipe.
struct Pipe {
    child: Child,
    write: ChildStdin,
    read: Lines<BufReader<ChildStdout>>,
}

impl Pipe {
    fn open(stage: &Stage, args: &[&str]) -> Self {
        let mut command = Command::from(stage.shell.command(args));
        let mut child = command.stdin(Stdio::piped()).stderr(Stdio::inherit()).kill_on_drop(true).spawn().unwrap();
        let (write, read) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Self { child, write, read: BufReader::new(read).lines() }
    }

    async fn say(&mut self, line: impl AsRef<[u8]>) {
        within(LONG, self.write.write_all(line.as_ref())).await.unwrap();
    }

    async fn hear(&mut self) -> Value {
        let line = within(LONG, self.read.next_line()).await.unwrap().expect("the pipe has ended");
        serde_json::from_str(&line).unwrap()
    }

    /// Ends the input. What comes until the end of the output, and the exit code.
    async fn end(self) -> (Vec<Value>, Option<i32>) {
        let Self { mut child, write, mut read } = self;
        drop(write);
        let mut rest = Vec::new();
        while let Some(line) = within(LONG, read.next_line()).await.unwrap() {
            rest.push(serde_json::from_str(&line).unwrap());
        }
        (rest, within(LONG, child.wait()).await.unwrap().code())
    }
}

async fn demo() -> Stage {
    Stage::run(POLICY, "", &["serve", "demo"]).await
}

fn call(id: &str, method: &str, params: &str) -> String {
    format!("{{\"jsonrpc\":\"2.0\",\"method\":\"{method}\",\"params\":{params},\"id\":{id}}}\n")
}

fn error(code: i64, id: Value) -> Value {
    json!({ "code": code, "id": id })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_line_gets_its_answer_and_the_end_of_the_input_loses_none() {
    let stage = demo().await;
    let long = format!("{}\n", "x".repeat((1 << 20) + 1));
    let sum = |id: Value| json!({ "jsonrpc": "2.0", "result": 5, "id": id });
    // A line, and the answers to it: a whole response, or code and id of an error.
    let table: Vec<(Vec<u8>, Vec<Value>)> = vec![
        // A byte-order mark before the first line, where some programs write it.
        (format!("\u{feff}{}", call("1", "math/add", "[2,3]")).into(), vec![sum(json!(1))]),
        (call("\"a\\u0062\"", "math/add", "{\"a\":2,\"b\":3}").into(), vec![sum(json!("ab"))]),
        (call("1", "math/add", "[2,3]").replace('\n', "\r\n").into(), vec![sum(json!(1))]),
        (call("1.5", "math/add", "[2,3]").into(), vec![sum(json!(1.5))]),
        (call("null", "math/add", "[2,3]").into(), vec![sum(Value::Null)]),
        (format!("  {}", call("2", "math/add", "[ 2,\t3 ]")).into(), vec![sum(json!(2))]),
        ("\n\r\n  \t\n".into(), vec![]),
        ("{\"jsonrpc\":\"2.0\",\"method\":\"log/append\",\"params\":{\"msg\":\"a\"}}\n".into(), vec![]),
        ("[{\"jsonrpc\":\"2.0\",\"method\":\"log/append\",\"params\":{\"msg\":\"b\"}}]\n".into(), vec![]),
        ("{\"jsonrpc\":\n".into(), vec![error(-32700, Value::Null)]),
        ("there\n".into(), vec![error(-32700, Value::Null)]),
        (b"{\"jsonrpc\":\"2.0\",\"method\":\"\xff\",\"id\":1}\n".to_vec(), vec![error(-32700, Value::Null)]),
        (format!("\u{feff}{}", call("1", "math/add", "[2,3]")).into(), vec![error(-32700, Value::Null)]),
        ("[]\n".into(), vec![error(-32600, Value::Null)]),
        ("1\n".into(), vec![error(-32600, Value::Null)]),
        ("{\"jsonrpc\":\"1.0\",\"method\":\"math/add\",\"id\":7}\n".into(), vec![error(-32600, json!(7))]),
        ("{\"jsonrpc\":\"2.0\",\"id\":1,\"id\":2,\"method\":\"math/add\"}\n".into(), vec![error(-32600, Value::Null)]),
        (long.clone().into(), vec![error(-32015, Value::Null)]),
        (call("3", "math/mul", "[2,3]").into(), vec![error(-32002, json!(3))]),
        (call("4", "math/add", "[\"x\"]").into(), vec![error(-32602, json!(4))]),
        (call("5", "clock/ticks", "{}").into(), vec![error(-32600, json!(5))]),
        (call("6", "text/echo", "[\"a b\"]").into(), vec![json!({ "jsonrpc": "2.0", "result": "a b", "id": 6 })]),
        (
            format!("[{},1,{}]\n", call("1", "math/add", "[2,3]").trim(), call("2", "math/mul", "[1,1]").trim()).into(),
            vec![json!([error(-32002, json!(2)), error(-32600, Value::Null), sum(json!(1))])],
        ),
    ];
    let shown = |said: &Value| match said.get("error") {
        Some(refused) => error(refused["code"].as_i64().unwrap(), said["id"].clone()),
        None => said.clone(),
    };
    let mut pipe = Pipe::open(&stage, ARGS);
    for (line, answers) in &table {
        pipe.say(line).await;
        for wanted in answers {
            let said = pipe.hear().await;
            let said = match said.as_array() {
                // In any order.
                Some(said) => {
                    let mut said: Vec<Value> = said.iter().map(shown).collect();
                    said.sort_by_key(Value::to_string);
                    said.into()
                }
                None => shown(&said),
            };
            assert_eq!(said, *wanted, "{}", String::from_utf8_lossy(&line[..line.len().min(99)]));
        }
    }
    assert_eq!(pipe.end().await, (vec![], Some(0)));

    // All of it at once, without a line break at the end; and as batch processing does it.
    let mut pipe = Pipe::open(&stage, ARGS);
    for id in 0..100 {
        pipe.say(call(&id.to_string(), "math/add", "[2,3]")).await;
    }
    pipe.say(call("100", "math/add", "[2,3]").trim_end()).await;
    let (mut said, code) = pipe.end().await;
    said.sort_by_key(|said| said["id"].as_u64());
    assert_eq!((said, code), ((0..=100).map(|id| sum(json!(id))).collect(), Some(0)));
    let ran = stage.shell.run_with_stdin(ARGS, call("1", "math/add", "[2,3]").as_bytes());
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "{\"jsonrpc\":\"2.0\",\"result\":5,\"id\":1}\n"), "{ran:?}");
    // Notifications have arrived, and the entries of a batch are told apart, in lines that no id can forge.
    let ids = ["1", "\"a\\n call id=2\"", &format!("\"{}\"", "x".repeat(200))];
    // The log has a hundred lines a second for the calls of an agent.
    tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    let entries = ids.map(|id| call(id, "math/add", "[2,3]").trim().to_owned()).join(",");
    let ran = stage.shell.run_with_stdin(ARGS, format!("[{entries}]\n").as_bytes());
    assert_eq!(ran.code, 0, "{ran:?}");
    let log = stage.end().await;
    let of = |what: &str| log.lines().filter(|line| line.contains(what)).count();
    assert_eq!(of("method=log/append"), 2, "{log}");
    for (position, id) in ["1 ", "\"a\\n call id=2\" ", "\"xxxx"].into_iter().enumerate() {
        assert_eq!(of(&format!(" id={id}")).min(1), 1, "{id}: {log}");
        assert!(
            log.lines().any(|line| line.contains(&format!(" id={id}")) && line.contains(&format!("entry={position} ")))
        );
    }
    assert!(!log.contains(&"x".repeat(65)), "{log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_call_holds_up_nobody_and_a_signal_cancels_it() {
    let stage = demo().await;
    let mut pipe = Pipe::open(&stage, ARGS);
    pipe.say(call("\"slow\"", "job/run", "[60]")).await;
    pipe.say(call("\"fast\"", "math/add", "[2,3]")).await;
    assert_eq!((pipe.hear().await["id"].clone(), pipe.hear().await["id"].clone()), (json!("fast"), json!("slow")));
    // 32 at a time: the next line waits until one of them has ended.
    for id in 0..32 {
        pipe.say(call(&id.to_string(), "job/run", "[20]")).await;
    }
    pipe.say(call("\"next\"", "math/add", "[2,3]")).await;
    assert_ne!(pipe.hear().await["id"], "next");
    let mut rest = Vec::new();
    for _ in 0..32 {
        rest.push(pipe.hear().await["id"].clone());
    }
    assert!(rest.contains(&json!("next")), "{rest:?}");

    // A client that ends its child while a call runs.
    pipe.say(call("\"long\"", "job/run", "[600]")).await;
    pipe.say(call("\"fast\"", "math/add", "[2,3]")).await;
    assert_eq!(pipe.hear().await["id"], "fast");
    send(SIGTERM, pipe.child.id().unwrap());
    let said = pipe.hear().await;
    assert_eq!((&said["id"], &said["error"]["code"]), (&json!("long"), &json!(-32016)), "{said}");
    assert_eq!(pipe.end().await, (vec![], Some(130)));
    let audit = stage.call("audit/read", json!({})).await.unwrap().to_string();
    assert!(audit.contains("ended before step"), "{audit}");
    // One that has nothing under way, as after the only answer that it wanted.
    let mut pipe = Pipe::open(&stage, ARGS);
    pipe.say(call("777", "math/add", "[2,3]")).await;
    assert_eq!(pipe.hear().await, json!({ "jsonrpc": "2.0", "result": 5, "id": 777 }));
    catches(SIGTERM, pipe.child.id().unwrap()).await;
    send(SIGTERM, pipe.child.id().unwrap());
    assert_eq!(pipe.read.next_line().await.unwrap(), None);
    assert_eq!(within(LONG, pipe.child.wait()).await.unwrap().code(), Some(0));
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_does_not_read_is_waited_for_and_one_that_has_gone_is_not() {
    let stage = demo().await;
    let mut pipe = Pipe::open(&stage, ARGS);
    // What is written is as large as what is read: the id comes back.
    let large = call(&format!("\"{}\"", "x".repeat(150_000)), "math/add", "[2,3]");
    let mut sent = 0;
    // So many it takes, however long that is.
    for _ in 0..20 {
        pipe.say(&large).await;
        sent += 1;
    }
    while tokio::time::timeout(Duration::from_secs(5), pipe.write.write_all(large.as_bytes())).await.is_ok() {
        sent += 1;
        assert!(sent < 400, "it takes all that comes while nobody reads");
    }
    // 16 MiB of answers wait at most, and 32 calls.
    assert!(sent < 220, "{sent}");
    for _ in 0..sent {
        assert_eq!(pipe.hear().await["id"].as_str().map(str::len), Some(150_000));
    }
    drop(pipe);

    // A call runs, and nobody is there any more to read of it.
    let mut pipe = Pipe::open(&stage, ARGS);
    pipe.say(call("1", "job/run", "[601]")).await;
    // The job has begun by the time these are answered.
    for _ in 0..5 {
        pipe.say(call("2", "math/add", "[2,3]")).await;
        assert_eq!(pipe.hear().await["id"], 2);
    }
    let Pipe { mut child, mut write, read } = pipe;
    drop(read);
    write.write_all(call("2", "math/add", "[2,3]").as_bytes()).await.unwrap();
    assert_eq!(within(LONG, child.wait()).await.unwrap().code(), Some(0));
    let cancelled = async {
        while !stage.call("audit/read", json!({})).await.unwrap().to_string().contains("of 601") {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    within(LONG, cancelled).await;
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signal_waits_for_no_reader_and_what_is_too_large_is_said_with_the_limit() {
    let stage = demo().await;
    let mut pipe = Pipe::open(&stage, ARGS);
    for bytes in [200_000, 900_000] {
        pipe.say(call("1", "text/echo", &format!("[\"{}\"]", "x".repeat(bytes)))).await;
        let said = pipe.hear().await;
        assert!(said["id"] == 1 && said["error"]["message"].as_str().unwrap().contains("192 KiB"), "{said}");
    }
    // More than the pipe holds waits for somebody to read it.
    let large = call(&format!("\"{}\"", "x".repeat(150_000)), "math/add", "[2,3]");
    for _ in 0..4 {
        pipe.say(&large).await;
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    let began = std::time::Instant::now();
    send(SIGTERM, pipe.child.id().unwrap());
    assert_eq!(within(LONG, pipe.child.wait()).await.unwrap().code(), Some(130));
    assert!(began.elapsed() < LONG / 2, "{:?}", began.elapsed());
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_cannot_be_sent_is_refused_under_its_id_and_by_the_exit_code() {
    let mut stage = demo().await;
    stage.server.kill().await;
    let mut pipe = Pipe::open(&stage, ARGS);
    pipe.say(call("9", "math/add", "[2,3]")).await;
    let said = pipe.hear().await;
    assert_eq!((&said["id"], &said["error"]["code"]), (&json!(9), &json!(-32014)), "{said}");
    assert_eq!(said["error"]["data"], json!({ "outcome": "not_sent" }));
    pipe.say(format!("[{},{}]\n", call("1", "math/add", "[2,3]").trim(), call("2", "math/add", "[2,3]").trim())).await;
    let said = pipe.hear().await;
    assert_eq!((&said[0]["id"], &said[1]["id"]), (&json!(1), &json!(2)), "{said}");
    pipe.say("{\"jsonrpc\":\"2.0\",\"method\":\"log/append\",\"params\":{\"msg\":\"lost\"}}\n").await;
    assert_eq!(pipe.end().await, (vec![], Some(20)));
    let ran = stage.shell.run("pipe --creds none.creds.json tools");
    assert_eq!((ran.code, ran.stdout.as_str()), (30, ""), "{ran:?}");
    stage.shell.run("pipe --creds planner.creds.json").fails(2, &["SERVICE"]);
}

/// A small program, which starts a child, writes one request and reads one line.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_that_knows_nothing_of_sealwire_starts_it_as_its_server() {
    let Some(python) = python() else { return };
    let stage = demo().await;
    let script = root().join("crates/cli/tests/cli/pipe/client.py");
    let mut command = Command::new(python);
    command.arg(script).arg(env!("CARGO_BIN_EXE_sealwire")).args(ARGS).current_dir(stage.shell.path(""));
    let output = within(LONG, command.output()).await.unwrap();
    let said: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    let greeting = json!({ "jsonrpc": "2.0", "result": "local call", "id": 777 });
    assert_eq!(said, json!({ "said": [greeting, -32700, 5], "exit": 0 }));
    stage.end().await;
}
