//! Replicas of a gateway: any of them serves any client, whichever one runs its call. docs/gateway/replicas.md.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use sealwire_testkit::python::python;
use sealwire_testkit::{free_port, root, within};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio::task::JoinSet;

use super::balancer::Balancer;
use super::certificate;
use super::wire::{Wire, call, post};
use super::ws::Socket;
use super::{FAST, Gateway, demo};
use crate::backends::stage::{LONG, Stage, server_of_mcp};

/// A service with the tools of an MCP server.
async fn stage() -> Option<Stage> {
    let python = python()?;
    let backend = server_of_mcp(python);
    let stage = Stage::new("[role.user]\nallow = [\"*\"]\n", &backend).await;
    stage.shell.run("tools approve --yes").ok();
    sealwire::internal::files::write_secret(&stage.shell.path("seal.key"), &"5e".repeat(32), false).unwrap();
    // The tools become available once they are approved.
    let there = async {
        while stage.call("t/add", json!({ "a": 1, "b": 1 })).await.is_err() {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    within(LONG, there).await;
    Some(stage)
}

/// The addresses of replicas that know each other.
pub(super) struct Replicas {
    ports: Vec<u16>,
    host: &'static str,
    more: &'static str,
    expose: &'static str,
}

impl Replicas {
    pub(super) fn new(count: usize) -> Self {
        Self { ports: (0..count).map(|_| free_port()).collect(), host: "http://127.0.0.1", more: "", expose: "" }
    }

    pub(super) async fn start(&self, stage: &Stage, which: usize, more: &str) -> Gateway {
        let gateway = self.spawn(stage, which, more).await;
        gateway.is_ready(200).await;
        gateway
    }

    async fn spawn(&self, stage: &Stage, which: usize, more: &str) -> Gateway {
        let (port, host) = (self.ports[which], self.host);
        let all: Vec<_> = self.ports.iter().map(|port| format!("\"{host}:{port}\"")).collect();
        let all = all.join(", ");
        let replicas = format!(
            "{FAST}seal_key = \"seal.key\"\n{more}\nreplicas = {{ listen = \"127.0.0.1:{port}\", url = \"{host}:{port}\", all = [{all}]{} }}",
            self.more
        );
        Gateway::start(&stage.shell, &replicas, self.expose).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_requests_at_three_replicas_lose_none_while_they_are_restarted() {
    const CLIENTS: usize = 32;
    const EACH: usize = 320;
    // On a busy machine, it may take a second until the balancer knows.
    const LEAVE: &str = "leave_s = 4";
    let Some(stage) = stage().await else { return };
    let python = python().unwrap();
    // Shorter than the gateways' `drain_s`, and than the clients' patience.
    let replicas = Replicas { expose: "timeout_s = 15", ..Replicas::new(3) };
    let balancer = Balancer::start().await;
    let mut gateways = Vec::new();
    for which in 0..3 {
        let gateway = replicas.start(&stage, which, LEAVE).await;
        balancer.add(gateway.at);
        gateways.push(gateway);
    }
    let began = Instant::now();
    let [answered, refused] = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        let (at, answered, refused) = (balancer.at, Arc::clone(&answered), Arc::clone(&refused));
        clients.spawn(async move {
            let mut wire = Wire::open(at).await;
            for round in 0..EACH {
                let id = (client * EACH + round) as u64;
                let add = call(id, "t/add", &format!(r#"{{"a":{id},"b":1}}"#));
                let mut answer = wire.post(&add).await;
                // A service that gets no processor for seconds does not hear itself, and refuses what was on its way. That is answered,
                // and not lost.
                loop {
                    let error = &answer.json()["error"];
                    // Signed, and not executed (SPEC.md §14), or the gateway's word.
                    let is_refused = error["code"] == -32014 || (502..=504).contains(&answer.status);
                    if !is_refused {
                        break;
                    }
                    assert!(error["code"] == -32014 || error["data"]["outcome"].is_string(), "{answer:?}");
                    refused.fetch_add(1, Ordering::AcqRel);
                    tokio::time::sleep(Duration::from_millis(500)).await;
                    answer = wire.post(&add).await;
                }
                assert_eq!(answer.status, 200, "{answer:?}");
                assert_eq!(answer.json()["result"]["sum"], id + 1, "{answer:?}");
                answered.fetch_add(1, Ordering::AcqRel);
            }
        });
    }
    let script = root().join("crates/cli/tests/cli/gateway_http/replicas.py");
    let mcp: Vec<_> = ["legacy", "2026-07-28", "legacy", "2026-07-28"]
        .map(|mode| {
            let mut command = Command::new(python);
            let url = format!("http://{}/mcp/tools", balancer.at);
            command.arg("-B").arg(&script).args([mode, "48", &url]).kill_on_drop(true);
            tokio::spawn(async move { (mode, within(3 * LONG, command.output()).await.unwrap()) })
        })
        .into();
    // Replicas are restarted one after the other for as long as there are calls.
    let mut restarted = 0;
    while restarted < 3 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let (code, said) = gateways.remove(0).stop().await;
        assert_eq!(code, Some(0), "{said}\nthe service: {}", &*stage.stderr.borrow());
        assert!(restarted > 0 || answered.load(Ordering::Acquire) < CLIENTS * EACH, "no call met the restart");
        let gateway = replicas.start(&stage, restarted, LEAVE).await;
        balancer.add(gateway.at);
        gateways.push(gateway);
        restarted += 1;
    }
    within(3 * LONG, async {
        while let Some(client) = clients.join_next().await {
            client.unwrap()
        }
    })
    .await;
    let (raw_took, mut cancelled) = (began.elapsed(), 0);
    for client in mcp {
        let (mode, output) = within(3 * LONG, client).await.unwrap();
        assert!(output.status.success(), "{mode}: {}", String::from_utf8_lossy(&output.stderr));
        let found: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(found, json!({ "calls": 48, "asked": 12, "cancelled": 3 }), "{mode}");
        cancelled += 3;
    }
    // Each call reached the program behind the service.
    let done = async {
        while stage.call("t/cancelled", json!({})).await.unwrap()["content"].as_array().unwrap().len() < cancelled {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    within(LONG, done).await;
    let by_each = balancer.answered();
    println!(
        "{} requests in {:?}, {} of /rpc in {raw_took:?}, by each process {by_each:?}, {restarted} restarts, {} lost, {refused} refused by a service without a processor",
        by_each.iter().sum::<usize>(),
        began.elapsed(),
        CLIENTS * EACH,
        balancer.lost(),
        refused = refused.load(Ordering::Acquire),
    );
    assert_eq!(balancer.lost(), 0);
    assert!(refused.load(Ordering::Acquire) < EACH, "at most a few percent");
    assert!(by_each.iter().sum::<usize>() >= 10_000 && by_each[..3].iter().all(|count| *count > 0), "{by_each:?}");
    for gateway in gateways {
        assert_eq!(gateway.stop().await.0, Some(0));
    }
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sockets_stay_at_their_replica_and_go_on_at_another_when_it_leaves() {
    const SOCKETS: usize = 8;
    let stage = demo().await;
    let balancer = Balancer::start().await;
    let mut gateways = Vec::new();
    for _ in 0..2 {
        let gateway = Gateway::start(&stage.shell, &format!("{FAST}leave_s = 2\n"), "").await;
        gateway.is_ready(200).await;
        balancer.add(gateway.at);
        gateways.push(gateway);
    }
    within(LONG, balancer.is_ready()).await;
    let open = async || Socket::open(Wire::open(balancer.at).await, "tools", "").await;
    let mut sockets = Vec::new();
    for _ in 0..SOCKETS {
        let at_first = balancer.sockets()[0];
        let socket = open().await;
        sockets.push((socket, balancer.sockets()[0] > at_first));
    }
    assert_eq!(balancer.sockets(), [SOCKETS / 2; 2], "in turn");
    for (id, (socket, _)) in (0..).zip(&mut sockets) {
        socket.say(&call(id, "job/run", r#"{"steps":30}"#)).await;
        assert_eq!(socket.ask(&call(100 + id, "math/add", &format!("[{id},1]"))).await["result"], id + 1);
    }
    // Calls in progress on its sockets end, and only then are the sockets closed.
    let stopping = tokio::spawn(gateways.remove(0).stop());
    for (id, (mut socket, is_left)) in (0..).zip(sockets) {
        let done = json!({ "jsonrpc": "2.0", "result": { "steps": 30 }, "id": id });
        assert_eq!(within(LONG, socket.hear()).await, Ok(done));
        if is_left {
            assert_eq!(within(LONG, socket.rest()).await, (Vec::new(), 1001));
            let mut again = open().await;
            assert_eq!(again.ask(&call(id, "math/add", &format!("[{id},2]"))).await["result"], id + 2);
        } else {
            assert_eq!(socket.ask(&call(id, "math/add", &format!("[{id},3]"))).await["result"], id + 3);
        }
    }
    assert_eq!(stopping.await.unwrap().0, Some(0));
    assert_eq!(balancer.sockets(), [SOCKETS / 2, SOCKETS]);
    assert_eq!(balancer.lost(), 0);
    assert_eq!(gateways.remove(0).stop().await.0, Some(0));
    stage.end().await;
}

const BOTH: &str = "Accept: application/json, text/event-stream\r\n";

fn legacy(lines: &str, body: &Value) -> String {
    post("/mcp/tools", &format!("{BOTH}{lines}"), &body.to_string())
}

async fn session(wire: &mut Wire) -> String {
    let params = json!({ "protocolVersion": "2025-11-25", "capabilities": { "elicitation": {} }, "clientInfo": { "name": "raw", "version": "1" } });
    let hello = json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params });
    format!("Mcp-Session-Id: {}\r\n", wire.ask(legacy("", &hello)).await.header("mcp-session-id").unwrap())
}

fn tool(id: u64, name: &str) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": { "name": name, "arguments": {} } })
}

/// A call of the tool that asks, in revision 2026-07-28.
fn ask(more: &Value) -> String {
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": { "elicitation": {} },
    });
    let mut params = json!({ "name": "t_ask", "arguments": {}, "_meta": meta });
    params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let lines = "MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\nMcp-Name: t_ask\r\n";
    legacy(lines, &json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params }))
}

async fn asked(wire: &mut Wire) -> Value {
    let asked = wire.ask(ask(&json!({}))).await.json();
    json!({
        "requestState": asked["result"]["requestState"],
        "inputResponses": { "size": { "action": "accept", "content": { "size": "small" } } },
    })
}

async fn question(calling: &mut Wire, session: &str, id: u64) -> Value {
    calling.write(legacy(session, &tool(id, "t_ask"))).await;
    calling.head().await;
    let question: Value = serde_json::from_str(&calling.event().await.unwrap()).unwrap();
    json!({ "jsonrpc": "2.0", "id": question["id"], "result": { "action": "accept", "content": { "size": "tiny" } } })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_belongs_to_a_call_finds_it_from_any_replica() {
    let Some(stage) = stage().await else { return };
    // The third replica is the test itself.
    let replicas = Replicas::new(3);
    let third = TcpListener::bind(("127.0.0.1", replicas.ports[2])).await.unwrap();
    let one = replicas.start(&stage, 0, "drain_s = 10").await;
    let two = replicas.start(&stage, 1, "").await;
    let (mut at_one, mut at_two) = (one.wire().await, two.wire().await);
    let (ours, other) = (session(&mut at_one).await, session(&mut at_two).await);

    // The answer to a question: only from its session, and once.
    let mut calling = one.wire().await;
    let reply = question(&mut calling, &ours, 1).await;
    at_two.ask(legacy(&other, &reply)).await.is(400, -32600);
    let mut guessed = reply.clone();
    guessed["id"] = "question-1".into();
    at_two.ask(legacy(&ours, &guessed)).await.is(400, -32600);
    assert_eq!(at_two.ask(legacy(&ours, &reply)).await.status, 202);
    let done: Value = serde_json::from_str(&calling.event().await.unwrap()).unwrap();
    assert!(done["result"]["content"][0]["text"].as_str().unwrap().contains("tiny"), "{done}");
    at_two.ask(legacy(&ours, &reply)).await.is(400, -32600);

    // The state of a request: only with that request, and once.
    let state = asked(&mut at_one).await;
    let mut others = state.clone();
    others["arguments"] = json!({ "x": 1 });
    at_two.ask(ask(&others)).await.is(200, -32602);
    let done = at_two.ask(ask(&state)).await.json();
    assert!(done["result"]["content"][0]["text"].as_str().unwrap().contains("small"), "{done}");
    at_two.ask(ask(&state)).await.is(200, -32602);
    at_one.ask(ask(&state)).await.is(200, -32602);

    // A cancellation goes to all replicas, since the request does not say where it runs; only its own session may cancel it.
    let cancelled = || async {
        let all = stage.call("t/cancelled", json!({})).await.unwrap();
        all["content"].as_array().unwrap().len()
    };
    let begin = |id| {
        let (gateway, request) = (at_one.gateway(), legacy(&ours, &tool(id, "t_wait")));
        tokio::spawn(async move {
            let mut waiting = Wire::open(gateway).await;
            waiting.write(request).await;
            waiting.answer().await.map(|answer| answer.status)
        })
    };
    let cancel =
        |id: u64| json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": id } });
    let mut id = 7;
    let mut waiting = begin(id);
    let heard = tokio::spawn(async move {
        let (mut socket, _) = third.accept().await.unwrap();
        let mut heard = vec![0; 8_192];
        let length = socket.read(&mut heard).await.unwrap();
        (String::from_utf8(heard[..length].to_vec()).unwrap(), third)
    });
    assert_eq!(at_two.ask(legacy(&other, &cancel(id))).await.status, 202);
    let (handed, third) = within(LONG, heard).await.unwrap();
    // It has not answered, so it is left out for a while.
    assert_eq!(at_two.ask(legacy(&other, &cancel(id))).await.status, 202);
    assert!(futures_util::FutureExt::now_or_never(third.accept()).is_none());
    drop(third);
    // It may not have begun at the gateway, and then not at the server either, which hears nothing: another replica runs it.
    let count = async {
        loop {
            assert_eq!(at_two.ask(legacy(&ours, &cancel(id))).await.status, 202);
            let is_over = waiting.is_finished();
            tokio::time::sleep(Duration::from_millis(if is_over { 1_000 } else { 100 })).await;
            match cancelled().await {
                0 if is_over => {
                    id += 1;
                    waiting = begin(id);
                }
                0 => {}
                count => break count,
            }
        }
    };
    let count = within(LONG, count).await;
    assert_eq!((count, within(LONG, waiting).await.unwrap()), (1, Some(200)));

    // The port for replicas accepts nothing else: no other message, no changed one, no other path.
    let others = std::net::SocketAddr::from(([127, 0, 0, 1], replicas.ports[0]));
    assert!(handed.contains("sealwire-handed: "), "{handed}");
    assert_eq!(Wire::open(others).await.ask(&handed).await.status, 202, "as it was, it says nothing else");
    Wire::open(others).await.ask(handed.replace("\"requestId\":7", "\"requestId\":8")).await.is(403, -32600);
    Wire::open(others).await.ask(handed.replace("/mcp/tools", "/mcp")).await.is(403, -32600);
    Wire::open(others).await.ask(legacy(&ours, &cancel(id))).await.is(403, -32600);
    Wire::open(others).await.ask(post("/rpc/tools", "", &call(1, "t/add", r#"{"a":1,"b":1}"#))).await.is(404, -32600);

    // A replica that is being stopped can still be reached by the others, for calls that wait for people.
    let (state, gone) = (asked(&mut at_one).await, asked(&mut at_one).await);
    let mut calling = one.wire().await;
    let reply = question(&mut calling, &ours, 2).await;
    let stopping = tokio::spawn(one.stop());
    let refused = async { while tokio::net::TcpStream::connect(at_one.gateway()).await.is_ok() {} };
    within(LONG, refused).await;
    assert_eq!(at_two.ask(legacy(&ours, &reply)).await.status, 202);
    let done: Value = serde_json::from_str(&calling.event().await.unwrap()).unwrap();
    assert!(done["result"]["content"][0]["text"].as_str().unwrap().contains("tiny"), "{done}");
    let done = at_two.ask(ask(&state)).await.json();
    assert!(done["result"]["content"][0]["text"].as_str().unwrap().contains("small"), "{done}");
    // A call that nobody comes back for ends with its replica; a client that returns later is told so.
    assert_eq!(within(LONG, stopping).await.unwrap().0, Some(0));
    let answer = at_two.ask(ask(&gone)).await;
    answer.is(502, -32603);
    assert_eq!(answer.json()["error"]["data"]["outcome"], "unknown");
    let one = replicas.start(&stage, 0, "").await;
    at_two.ask(ask(&gone)).await.is(200, -32602);
    one_that_breaks_off(&stage, &replicas, &mut at_two).await;
    // The service waits for the call of the one that was killed, and is killed with the test.
    for gateway in [one, two] {
        assert_eq!(gateway.stop().await.0, Some(0));
    }
}

/// A replica that disappears while it answers: what was sent stays sent, and the end says that the rest is unknown.
async fn one_that_breaks_off(stage: &Stage, replicas: &Replicas, at_two: &mut Wire) {
    let mut three = replicas.start(stage, 2, "").await;
    let state = asked(&mut three.wire().await).await;
    within(LONG, three.child.kill()).await.unwrap();
    let listener = TcpListener::bind(("127.0.0.1", replicas.ports[2])).await.unwrap();
    let breaking = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        let (mut heard, event) =
            (vec![0; 8_192], "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/tools/list_changed\"}\n\n");
        let _ = socket.read(&mut heard).await.unwrap();
        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nSet-Cookie: a=b\r\nTransfer-Encoding: chunked\r\n\r\n";
        socket.write_all(format!("{head}{:x}\r\n{event}\r\n", event.len()).as_bytes()).await.unwrap();
        listener
    });
    at_two.write(ask(&state)).await;
    let head = at_two.head().await;
    assert_eq!((head.status, head.header("set-cookie")), (200, None), "{head:?}");
    assert_eq!(at_two.event().await.unwrap(), "{\"jsonrpc\":\"2.0\",\"method\":\"notifications/tools/list_changed\"}");
    let last: Value = serde_json::from_str(&at_two.event().await.unwrap()).unwrap();
    assert_eq!((&last["id"], &last["error"]["code"]), (&json!(1), &json!(-32603)), "{last}");
    assert_eq!(last["error"]["data"]["outcome"], "unknown", "{last}");
    assert_eq!(at_two.event().await, None);
    drop(within(LONG, breaking).await.unwrap());
}

/// A client that is asked at one gateway, and answers at another. Prints the text of the result, or the status.
const BACK: &str = r#"
import requests, sys, time
one, two, ca = sys.argv[1:]
meta = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}}}
head = {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": "t_ask"}

def ask(at, **more):
    params = {"name": "t_ask", "arguments": {}, "_meta": meta, **more}
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    return requests.post(f"https://localhost:{at}/mcp/tools", json=call, headers=head, verify=ca, timeout=60)

for _ in range(300):
    asked = ask(one).json()
    if "requestState" in asked.get("result", {}):
        break
    time.sleep(0.1)
answers = {"size": {"action": "accept", "content": {"size": "small"}}}
back = ask(two, requestState=asked["result"]["requestState"], inputResponses=answers)
print(back.json()["result"]["content"][0]["text"] if back.status_code == 200 else back.status_code)
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_with_tls_ask_whom_the_named_authority_knows_and_nobody_else() {
    let Some(stage) = stage().await else { return };
    for name in ["cert", "other"] {
        certificate(&stage.shell, name);
    }
    let tls = "tls_cert = \"cert.pem\"\ntls_key = \"cert.key\"";
    let mut replicas = Replicas { host: "https://localhost", more: ", tls_ca = \"cert.pem\"", ..Replicas::new(3) };
    let one = replicas.spawn(&stage, 0, tls).await;
    let two = replicas.spawn(&stage, 1, tls).await;
    replicas.more = ", tls_ca = \"other.pem\"";
    let three = replicas.spawn(&stage, 2, tls).await;
    let back = async |from: &Gateway, to: &Gateway| {
        let mut command = Command::new(python().unwrap());
        command.args(["-c", BACK, &from.at.port().to_string(), &to.at.port().to_string()]);
        let output = within(3 * LONG, command.arg(stage.shell.path("cert.pem")).kill_on_drop(true).output()).await;
        let output = output.unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(back(&one, &two).await.contains("small"));
    assert_eq!(back(&one, &three).await.trim(), "502");
    assert!(back(&three, &one).await.contains("small"));
    for gateway in [two, three] {
        assert_eq!(gateway.stop().await.0, Some(0));
    }
    // Somebody may still come back to it for the call that was not reached.
    drop(one);
}

/// A client's stream at one of the gateways.
struct Stream(Wire);

impl Stream {
    async fn of(gateway: &Gateway, session: &str) -> Self {
        let mut wire = gateway.wire().await;
        wire.write(format!("GET /mcp/tools HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n{session}\r\n"))
            .await;
        assert_eq!(wire.head().await.status, 200);
        Self(wire)
    }

    /// The resource of the next update.
    async fn updated(&mut self) -> Value {
        loop {
            let event = within(LONG, self.0.event()).await.unwrap();
            // A comment is a sign of life.
            let Ok(said) = serde_json::from_str::<Value>(&event) else { continue };
            assert_eq!(said["method"], "notifications/resources/updated", "{said}");
            return said["params"]["uri"].clone();
        }
    }

    async fn is_quiet(&mut self) {
        let heard = tokio::time::timeout(Duration::from_millis(1_500), self.updated()).await;
        assert!(heard.is_err(), "{heard:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_session_watches_is_known_to_all_replicas() {
    let Some(python) = python() else { return };
    let server = root().join("crates/cli/tests/cli/backends/mcp/watched.py");
    for era in ["modern", "legacy"] {
        let command = json!([python, "-B", server, era, "watched.log"]);
        let backend =
            format!("[[backend]]\nname = \"watched\"\nkind = \"mcp\"\nresources = true\ncommand = {command}\n");
        let stage = Stage::new("[role.user]\nallow = [\"*\"]\n", &backend).await;
        stage.shell.run("tools approve --yes").ok();
        sealwire::internal::files::write_secret(&stage.shell.path("seal.key"), &"5e".repeat(32), false).unwrap();
        let touch = async |uri: &str| {
            let there = async {
                while stage.call("touch", json!({ "uri": uri })).await.is_err() {
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
            };
            within(LONG, there).await;
        };
        touch("test://nobody").await;
        let replicas = Replicas::new(2);
        let (one, two) = (replicas.start(&stage, 0, "").await, replicas.start(&stage, 1, "").await);
        let ours = session(&mut one.wire().await).await;
        let ask = async |gateway: &Gateway, method: &str, uri: &str| {
            let request = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": { "uri": uri } });
            gateway.wire().await.ask(legacy(&ours, &request)).await.json()
        };
        let (subscribe, unsubscribe) = ("resources/subscribe", "resources/unsubscribe");
        let (a, b, done) = ("test://a", "test://b", json!({}));

        // The stream is at one, and the requests come to the other.
        let mut stream = Stream::of(&two, &ours).await;
        assert_eq!(ask(&one, subscribe, a).await["result"], done, "{era}");
        touch(a).await;
        assert_eq!(stream.updated().await, a, "{era}");
        assert_eq!(ask(&two, subscribe, b).await["result"], done, "{era}");
        assert_eq!(ask(&one, unsubscribe, a).await["result"], done, "{era}");
        touch(a).await;
        touch(b).await;
        assert_eq!(stream.updated().await, b, "{era}");
        assert_eq!(ask(&one, subscribe, "test://unknown").await["error"]["code"], -32002, "{era}");

        // It goes on at the other, and there is told of what was asked for anywhere.
        drop(stream);
        let mut stream = Stream::of(&one, &ours).await;
        // It does not know whether the client has heard that.
        assert_eq!(stream.updated().await, b, "{era}");
        stream.is_quiet().await;
        touch(a).await;
        touch(b).await;
        assert_eq!(stream.updated().await, b, "{era}");
        assert_eq!(ask(&two, subscribe, a).await["result"], done, "{era}");
        touch(a).await;
        // After its subscriptions have changed, it may be told of the other one without need.
        loop {
            let said = stream.updated().await;
            if said == a {
                break;
            }
            assert_eq!(said, b, "{era}");
        }

        // A replica that was restarted knows what is asked for from then on.
        assert_eq!(two.stop().await.0, Some(0));
        let two = replicas.start(&stage, 1, "").await;
        tokio::time::sleep(Duration::from_secs(6)).await;
        drop(stream);
        let mut stream = Stream::of(&two, &ours).await;
        assert_eq!(ask(&one, subscribe, a).await["result"], done, "{era}");
        touch(b).await;
        touch(a).await;
        assert_eq!(stream.updated().await, a, "{era}");
        drop(stream);
        for gateway in [one, two] {
            assert_eq!(gateway.stop().await.0, Some(0));
        }
        stage.end().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_level_of_log_messages_is_known_to_all_replicas() {
    let Some(stage) = stage().await else { return };
    let replicas = Replicas::new(2);
    let (one, two) = (replicas.start(&stage, 0, "").await, replicas.start(&stage, 1, "").await);
    let ours = session(&mut one.wire().await).await;
    let level = json!({ "jsonrpc": "2.0", "id": 1, "method": "logging/setLevel", "params": { "level": "info" } });
    let said = async |gateway: &Gateway| {
        let mut job = tool(2, "t_job");
        job["params"]["_meta"] = json!({ "progressToken": 1 });
        let mut wire = gateway.wire().await;
        wire.write(legacy(&ours, &job)).await;
        wire.head().await;
        let mut said = 0;
        while let Some(event) = wire.event().await {
            said += event.matches("notifications/message").count();
        }
        said
    };
    assert_eq!((said(&one).await, said(&two).await), (0, 0));
    assert_eq!(two.wire().await.ask(legacy(&ours, &level)).await.json()["result"], json!({}));
    assert_eq!((said(&one).await, said(&two).await), (1, 1));
    for gateway in [one, two] {
        assert_eq!(gateway.stop().await.0, Some(0));
    }
    stage.end().await;
}
