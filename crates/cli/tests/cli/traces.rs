//! Traces of a whole call, over every hop, in a collector that nobody here has written; and the command's own end of them.
//! docs/observability.md.

mod rotel;

use std::time::{Duration, Instant};

use sealwire::{Client, Config, Credentials, Ctx, Router, RpcError};
use sealwire_testkit::collector::{Answer, Collector};
use sealwire_testkit::python::python;
use sealwire_testkit::within;
use serde_json::{Value, json};

use self::rotel::{Rotel, Seen};
use crate::backends::stage::{LONG, POLICY, Stage, server_of_mcp};
use crate::shell::Shell;
use crate::telemetry::stage::{BACKEND, Listener, gateway_as, post};

/// Nothing is traced but what its caller wants to be.
fn keys(url: &str) -> String {
    format!("otlp = \"{url}\"\nsample = 0\n")
}

fn parent(trace: u32, span: u32) -> String {
    format!("00-{trace:032x}-{span:016x}-01")
}

/// A service `dev/front`, for the agent `gate`.
fn front(shell: &Shell, url: &str, telemetry: &str) -> Config {
    shell.run("keys new-service dev/front").ok();
    shell.run(&format!("keys new-agent gate --service dev/front=front.ring.json --url {url}")).ok();
    let token = "--audience dev/front --subject gate --cnf-kid gate.k1 --out gate.jwt --role user";
    shell.run(&format!("token issue --key token-key.json {token}")).ok();
    shell.write(
        "front.toml",
        &format!(
            "environment = \"dev\"\nservice = \"front\"\n[nats]\nurls = [\"{url}\"]\n[keys]\nring = \"front.ring.json\"\n\
             service_key = \"front.service-key.json\"\n[[tokens.issuer]]\nissuer = \"https://dev.example\"\n\
             jwks = \"jwks.json\"\n[policy]\nfolder = \"policies\"\n[replay]\nskew_s = 0\n[telemetry]\n{telemetry}"
        ),
    );
    Config::load(shell.path("front.toml")).unwrap()
}

#[derive(serde::Deserialize, serde::Serialize)]
struct Words {
    text: String,
}

/// Its one method calls the next service, of which it says nothing but its name.
fn methods(client: Client) -> Router<Client> {
    Router::new(client).method("front/say", |ctx: Ctx<Client>, words: Words| async move {
        let call = ctx.state().request("tools").deadline(LONG).call::<Value>("t/echo", words);
        call.await.map_err(RpcError::dependency)
    })
}

/// The only span with this parent.
fn below<'s>(spans: &'s [Seen], parent: &str) -> &'s Seen {
    let found: Vec<_> = spans.iter().filter(|span| span.parent == parent).collect();
    assert_eq!(found.len(), 1, "below {parent}: {spans:#?}");
    found[0]
}

/// HTTP client → gateway → service → service → MCP server behind the bus, and a client of MCP on the same way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_trace_has_every_hop_from_an_http_client_to_an_mcp_server_with_its_parent() {
    let Some(python) = python() else { return };
    let rotel = Rotel::start(python).await;
    let at = Listener::free();
    let stage = Stage::new(POLICY, &format!("{}{}{}", at.section(), keys(&rotel.url()), server_of_mcp(python))).await;
    stage.shell.run("tools approve --yes").ok();
    let config = front(&stage.shell, &stage.server.url(), &keys(&rotel.url()));
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let client = Client::connect(Credentials::load(stage.shell.path("planner.creds.json")).unwrap()).await.unwrap();
    let served = tokio::spawn(config.serve_until(methods(client.clone()), async { drop(stopped.await) }));
    let gate = Listener::free();
    let (mut gateway, door) = gateway_as(&stage.shell, gate, "gate", "front", &keys(&rotel.url())).await;

    // Until everything is there; these are not traced, since nobody wants them to be.
    let body = json!({ "jsonrpc": "2.0", "id": 7, "method": "front/say", "params": { "text": "hunter2" } }).to_string();
    let there = async {
        loop {
            let answer = door.send(&post("/rpc/front", &body)).await;
            if answer.body.contains("\"result\"") {
                break;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    within(2 * LONG, there).await;
    let with =
        |request: &str, lines: &str| request.replacen("Host: localhost\r\n", &format!("Host: localhost\r\n{lines}"), 1);
    let request = with(&post("/rpc/front", &body), &format!("traceparent: {}\r\n", parent(1, 11)));
    let answer = door.send(&request).await;
    assert_eq!(answer.status, 200, "{}", answer.body);

    // The message of MCP names a span of its own, which goes before that of the request.
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {},
        "io.modelcontextprotocol/clientInfo": { "name": "t", "version": "1" }, "traceparent": parent(2, 22),
    });
    let params = json!({ "name": "front_say", "arguments": { "text": "hunter2" }, "_meta": meta });
    let mcp = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params }).to_string();
    let lines = format!(
        "traceparent: {}\r\nAccept: application/json, text/event-stream\r\nMCP-Protocol-Version: 2026-07-28\r\n\
         Mcp-Method: tools/call\r\nMcp-Name: front_say\r\n",
        parent(3, 33)
    );
    let called = door.send(&with(&post("/mcp/front", &mcp), &lines)).await;
    assert_eq!(called.status, 200, "{} {}", called.head, called.body);

    crate::process::send(crate::process::SIGTERM, gateway.id().unwrap());
    assert!(within(LONG, gateway.wait()).await.unwrap().success());
    stop.send(()).unwrap();
    within(LONG, served).await.unwrap().unwrap();
    let log = stage.shell.read("server.log");
    stage.end().await;

    let in_trace = |spans: &[Seen], trace: u32| -> Vec<Seen> {
        // The gateway may ask meanwhile which tools there are.
        let is_call = |span: &&Seen| span.trace == format!("{trace:032x}") && span.name != "rpc.discover";
        spans.iter().filter(is_call).cloned().collect()
    };
    let is_all =
        |spans: &[Seen]| [(1, 6), (2, 6), (3, 1)].iter().all(|(trace, all)| in_trace(spans, *trace).len() >= *all);
    let spans = rotel.has_seen(is_all).await;
    let of = |trace: u32| in_trace(&spans, trace);
    let first = of(1);
    assert_eq!(first.len(), 6, "{first:#?}");
    let request = below(&first, &format!("{:016x}", 11));
    let mut last = request;
    for (name, kind, service) in [
        ("POST /rpc/{service}", "SERVER", "gate"),
        ("front/say", "CLIENT", "gate"),
        ("front/say", "SERVER", "front"),
        ("t/echo", "CLIENT", "front"),
        ("t/echo", "SERVER", "tools"),
        ("tools/call echo", "CLIENT", "tools"),
    ] {
        assert_eq!(
            (last.name.as_str(), last.kind.as_str(), last.service.as_str()),
            (name, kind, service),
            "{first:#?}"
        );
        match first.iter().find(|span| span.parent == last.id) {
            Some(next) => last = next,
            None => break,
        }
    }
    for (key, value) in [
        ("mcp.method.name", "tools/call"),
        ("gen_ai.operation.name", "execute_tool"),
        ("gen_ai.tool.name", "echo"),
        ("sealwire.backend", "server"),
        ("network.transport", "pipe"),
    ] {
        assert_eq!(last.attributes.get(key).map(String::as_str), Some(value), "{last:#?}");
    }
    // The server of MCP continues that span.
    assert!(log.contains(&format!("00-{:032x}-{}-01", 1, last.id)), "{log}");
    let text = rotel.said();
    for secret in ["hunter2", "_INBOX"] {
        assert!(!text.contains(secret), "{secret}");
    }

    let (second, third) = (of(2), of(3));
    let message = below(&second, &format!("{:016x}", 22));
    assert_eq!((message.name.as_str(), message.kind.as_str()), ("tools/call front_say", "SERVER"), "{second:#?}");
    assert_eq!(message.attributes.get("gen_ai.tool.name").map(String::as_str), Some("front_say"));
    let (mut hops, mut last) = (0, message);
    while let Some(next) = second.iter().find(|span| span.parent == last.id) {
        (hops, last) = (hops + 1, next);
    }
    assert_eq!((hops, last.name.as_str()), (5, "tools/call echo"), "{second:#?}");
    // The request that it came with is in a trace of its own, to which the message has a link.
    assert_eq!(
        (third.len(), below(&third, &format!("{:016x}", 33)).name.as_str()),
        (1, "POST /mcp/{service}"),
        "{third:#?}"
    );
    assert!(text.contains(&third[0].id), "the link");
}

/// What is wrong at the collector's end delays neither calls nor the end, and nobody learns the secrets for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_that_is_silent_delays_the_end_by_two_seconds_and_its_secrets_are_in_no_line() {
    let silent = Collector::answering(|_| Answer::Silence).await;
    let at = Listener::free();
    let keys = format!("otlp = \"{}\"\nsample = 1\notlp_headers_file = \"otlp.headers\"\n", silent.url());
    let server = sealwire_testkit::NatsServer::start().await;
    let shell = crate::backends::stage::prepared(&server.url(), POLICY, &format!("{}{keys}", at.section()));
    shell.write("otlp.headers", "Authorization: Bearer hunter2\n");
    shell.set_mode("otlp.headers", 0o644);
    let refused = shell.run("serve demo --check");
    assert!(refused.code == 30 && refused.stderr.contains("chmod 600"), "{refused:?}");
    shell.set_mode("otlp.headers", 0o600);
    assert_eq!(shell.run("serve demo --check").code, 0);

    let path = std::env::var("PATH").unwrap();
    let mut command = shell.command(&["serve", "demo"]);
    command.env("RUST_LOG", "trace");
    let stage = Stage::of(server, shell, command, &path).await.ready().await;
    at.is_ready(200).await;
    for _ in 0..20 {
        assert_eq!(stage.call("math/add", json!([2, 3])).await.unwrap(), json!(5));
    }
    silent.has_received(1).await;
    assert!(silent.received()[0].head.contains("authorization: Bearer hunter2\r\n"));
    let samples = at.samples().await;
    assert_eq!(samples["sealwire_trace_spans_total{result=\"exported\"}"], 0.0, "{samples:#?}");
    let began = Instant::now();
    let said = stage.end().await;
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    assert!(said.contains("the collector did not take the last spans in time"), "{said}");
    assert!(!said.contains("hunter2"), "{said}");
    // Its own spans are no part of the log.
    assert!(!said.contains("otel.kind"), "{said}");
}

/// `sealwire pipe` has no file: variables say where, as they do for every program with OpenTelemetry.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn variables_say_where_traces_are_sent() {
    let collector = Collector::start().await;
    let stage = Stage::new(POLICY, BACKEND).await;
    let line = json!({ "jsonrpc": "2.0", "id": 1, "method": "words/say" });
    let mut command = stage.shell.command(&["pipe", "--creds", "planner.creds.json", "tools"]);
    command.env("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url()).env("OTEL_TRACES_SAMPLER", "always_on");
    command.env("OTEL_SERVICE_NAME", "till").stdin(std::process::Stdio::piped());
    let answer = tokio::task::spawn_blocking(move || {
        let mut pipe = command.spawn().unwrap();
        std::io::Write::write_all(&mut pipe.stdin.take().unwrap(), format!("{line}\n").as_bytes()).unwrap();
        pipe.wait_with_output().unwrap()
    });
    let answer = within(LONG, answer).await.unwrap();
    assert!(String::from_utf8_lossy(&answer.stdout).contains("\"hello\""), "{answer:?}");
    let Some(spans) = collector.spans_until(|spans| spans.len() >= 2).await else { return };
    assert_eq!(spans.len(), 2, "{spans:#?}");
    let message = spans.iter().find(|span| span["name"] == "message").unwrap();
    let call = spans.iter().find(|span| span["name"] == "words/say").unwrap();
    assert_eq!((&message["parent"], &call["parent"], &call["kind"]), (&json!(""), &message["id"], &json!("client")));
    assert_eq!(call["resource"]["service.name"], "till");
    let wrong =
        [("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector.example:4318"), ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")];
    for (name, value) in wrong {
        let mut command = stage.shell.command(&["pipe", "--creds", "planner.creds.json", "tools"]);
        command.env("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1").env(name, value);
        let failed = command.stdin(std::process::Stdio::null()).output().unwrap();
        let said = String::from_utf8_lossy(&failed.stderr).into_owned();
        assert!(failed.status.code() == Some(30) && said.contains("OTEL_EXPORTER_OTLP"), "{said}");
    }
    stage.end().await;
}
