//! Resources that clients watch, and lists that change, at MCP servers behind the bus. docs/gateway/mcp.md, docs/backends.md.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use futures_util::StreamExt as _;
use sealwire::internal::auth::TokenIssuer;
use sealwire_testkit::python::python;
use sealwire_testkit::{free_port, root, within};
use serde_json::{Value, json};
use tokio::process::{Child, Command};

use super::mcp::{call, event_of, legacy, message, modern};
use super::mint::{configure, request, stage_of};
use super::wire::Wire;
use super::{FAST, Gateway};
use crate::backends::stage::{LONG, POLICY, Stage};
use crate::gateway::raw::Raw;

pub(super) const VERSIONS: [&str; 2] = ["2026-07-28", "2025-11-25"];
/// Long enough for what does not come to have come.
pub(super) const QUIET: Duration = Duration::from_millis(1_500);

pub(super) fn server(python: &Path, era: &str, more: &str) -> String {
    let server = root().join("crates/cli/tests/cli/backends/mcp/watched.py");
    let command = [&python.display().to_string(), "-B", &server.display().to_string(), era, "watched.log"];
    let command: Vec<&str> = command.into_iter().chain(more.split_whitespace()).collect();
    format!(
        "[[backend]]\nname = \"watched\"\nkind = \"mcp\"\nresources = true\nprompts = true\ncommand = {}\n",
        json!(command)
    )
}

/// A service with this server, and its gateway, which knows its tools.
pub(super) async fn before(backend: &str) -> (Stage, Gateway) {
    let stage = Stage::new(POLICY, backend).await;
    stage.shell.run("tools approve --yes").ok();
    let gateway = Gateway::start(&stage.shell, &format!("{FAST}refresh_s = 1\nstreams = 64"), "").await;
    gateway.is_ready(200).await;
    knows_tools(&gateway).await;
    (stage, gateway)
}

/// Waits until a gateway has heard that the tools are approved.
pub(super) async fn knows_tools(gateway: &Gateway) {
    let there = async {
        let mut wire = gateway.wire().await;
        while !wire.ask(modern(&json!(1), "tools/list", json!({}))).await.json().to_string().contains("touch") {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    within(LONG, there).await;
}

pub(super) async fn end(stage: Stage, gateway: Gateway) {
    assert_eq!(gateway.stop().await.0, Some(0));
    stage.end().await;
}

/// What the server was asked for so far, or would be without repetitions of a whole set.
pub(super) fn log(stage: &Stage) -> Vec<String> {
    let log = std::fs::read_to_string(stage.shell.path("watched.log")).unwrap_or_default();
    log.lines().map(str::to_owned).collect()
}

pub(super) async fn logged(stage: &Stage, line: &str) {
    let there = async {
        while !log(stage).iter().any(|said| said.starts_with(line)) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(LONG, there).await.unwrap_or_else(|_| panic!("no {line}: {:?}", log(stage)));
}

pub(super) async fn touch(gateway: &Gateway, uri: &str, times: u32) {
    let touched = gateway.wire().await.ask(call(1, "touch", &json!({ "uri": uri, "times": times }))).await.json();
    assert_eq!(touched["result"]["content"][0]["text"], "done", "{touched}");
}

/// A client that listens, in a session or on the stream of a subscription.
struct Listener {
    stream: Wire,
    /// The lines of its session, and a connection for its requests.
    session: Option<(String, Wire)>,
}

impl Listener {
    /// A client of 2026-07-28; also returns what it was granted.
    async fn modern(gateway: &Gateway, wanted: Value) -> (Self, Value) {
        let mut stream = gateway.wire().await;
        stream.write(modern(&json!("l"), "subscriptions/listen", json!({ "notifications": wanted }))).await;
        stream.head().await;
        let said = event_of(stream.event().await);
        assert_eq!(said["method"], "notifications/subscriptions/acknowledged", "{said}");
        assert_eq!(said["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"], "l", "{said}");
        (Self { stream, session: None }, said["params"]["notifications"].clone())
    }

    /// A client with a session, and its stream.
    async fn legacy(gateway: &Gateway) -> Self {
        let mut wire = gateway.wire().await;
        let hello = json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "raw", "version": "1" } });
        let answer = wire.ask(legacy("", &message(&json!(0), "initialize", &hello))).await;
        let id = answer.header("mcp-session-id").expect("a session");
        let session = format!("Mcp-Session-Id: {id}\r\nMCP-Protocol-Version: 2025-11-25\r\n");
        let mut stream = gateway.wire().await;
        stream
            .write(format!("GET /mcp/tools HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n{session}\r\n"))
            .await;
        stream.head().await;
        Self { stream, session: Some((session, wire)) }
    }

    /// Of either revision, watching this.
    async fn of(gateway: &Gateway, version: &str, uri: &str) -> Self {
        if version == "2026-07-28" {
            let (listener, granted) = Self::modern(gateway, json!({ "resourceSubscriptions": [uri] })).await;
            assert_eq!(granted, json!({ "resourceSubscriptions": [uri] }));
            return listener;
        }
        let mut listener = Self::legacy(gateway).await;
        let answer = listener.ask("resources/subscribe", uri).await;
        assert_eq!(answer["result"], json!({}), "{answer}");
        listener
    }

    async fn ask(&mut self, method: &str, uri: &str) -> Value {
        let (session, wire) = self.session.as_mut().unwrap();
        wire.ask(legacy(session, &message(&json!(1), method, &json!({ "uri": uri })))).await.json()
    }

    /// The URI of the next update.
    async fn updated(&mut self) -> String {
        let said = event_of(within(LONG, self.stream.event()).await);
        assert_eq!(said["method"], "notifications/resources/updated", "{said}");
        let id = &said["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"];
        assert_eq!(id == "l", self.session.is_none(), "{said}");
        said["params"]["uri"].as_str().unwrap().to_owned()
    }

    /// Waits for the next update of this one; of the others that it watches, it may be told without need.
    async fn hears_of(&mut self, uri: &str, others: &[&str]) {
        loop {
            let said = self.updated().await;
            if said == uri {
                break;
            }
            assert!(others.contains(&said.as_str()), "{said}");
        }
    }

    /// Of what it watches it may be told without need: after its subscriptions have changed, an update may have been missed.
    async fn hears_nothing_of(&mut self, others: &[&str]) {
        let quiet = tokio::time::Instant::now() + QUIET;
        while let Ok(event) = tokio::time::timeout_at(quiet, self.stream.event()).await {
            let said = event_of(event);
            assert!(!others.contains(&said["params"]["uri"].as_str().unwrap()), "{said}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_hears_of_the_resources_that_it_watches_and_of_no_others() {
    let Some(python) = python() else { return };
    for era in ["modern", "legacy"] {
        let (stage, gateway) = before(&server(python, era, "")).await;
        for version in VERSIONS {
            let mut one = Listener::of(&gateway, version, "test://a").await;
            let mut other = Listener::of(&gateway, version, "test://b").await;
            touch(&gateway, "test://a", 1).await;
            assert_eq!(one.updated().await, "test://a", "{era} {version}");
            touch(&gateway, "test://secret", 1).await;
            other.hears_nothing_of(&["test://a", "test://secret"]).await;
            one.hears_nothing_of(&["test://b", "test://secret"]).await;
            touch(&gateway, "test://b", 1).await;
            assert_eq!(other.updated().await, "test://b");
            if version == "2025-11-25" {
                // A second resource on the same stream; then the first one no more.
                assert_eq!(one.ask("resources/subscribe", "test://b").await["result"], json!({}));
                touch(&gateway, "test://b", 1).await;
                one.hears_of("test://b", &["test://a"]).await;
                other.hears_of("test://b", &[]).await;
                for _ in 0..2 {
                    assert_eq!(one.ask("resources/unsubscribe", "test://a").await["result"], json!({}));
                }
                touch(&gateway, "test://a", 1).await;
                one.hears_nothing_of(&["test://a"]).await;
            }
            drop((one, other));
            // The last to watch takes the subscription at the server along.
            logged(&stage, if era == "modern" { "over " } else { "unsubscribe test://b" }).await;
        }
        if era == "legacy" {
            let asked = log(&stage);
            let count = |line: &str| asked.iter().filter(|said| *said == line).count();
            assert_eq!(count("subscribe test://b"), 2, "once for all who watch: {asked:?}");
            assert_eq!(count("subscribe test://a"), count("unsubscribe test://a"), "{asked:?}");
        }
        end(stage, gateway).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_watched_is_refused_and_nothing_is_announced_that_is_not_there() {
    let Some(python) = python() else { return };
    let announced = async |gateway: &Gateway| {
        let discovered = gateway.wire().await.ask(modern(&json!(1), "server/discover", json!({}))).await.json();
        discovered["result"]["capabilities"].clone()
    };
    for era in ["modern", "legacy"] {
        let (stage, gateway) = before(&server(python, era, "")).await;
        let all = announced(&gateway).await;
        assert_eq!(all["resources"], json!({ "subscribe": true, "listChanged": true }), "{era}");
        assert_eq!(all["prompts"], json!({ "listChanged": true }), "{era}");
        let wanted = json!({ "resourceSubscriptions": ["test://a", "test://unknown"], "promptsListChanged": true });
        let (mut listener, granted) = Listener::modern(&gateway, wanted).await;
        assert_eq!(granted, json!({ "resourceSubscriptions": ["test://a"], "promptsListChanged": true }), "{era}");
        touch(&gateway, "test://a", 1).await;
        assert_eq!(listener.updated().await, "test://a");
        let mut old = Listener::legacy(&gateway).await;
        let refused = old.ask("resources/subscribe", "test://unknown").await;
        assert_eq!(
            (&refused["error"]["code"], &refused["error"]["data"]),
            (&json!(-32002), &json!({ "uri": "test://unknown" })),
            "{era} {refused}"
        );
        // Of the refused resource, nothing is left to be asked for again.
        assert_eq!(old.ask("resources/subscribe", "test://b").await["result"], json!({}));
        let long = format!("test://{}", "x".repeat(2_048));
        assert_eq!(old.ask("resources/subscribe", &long).await["error"]["code"], -32602);
        for n in 0..63 {
            assert_eq!(old.ask("resources/subscribe", &format!("test://b/{n}")).await["result"], json!({}), "{n}");
        }
        assert_eq!(old.ask("resources/subscribe", "test://b/63").await["error"]["code"], -32602);
        let many: Vec<String> = (0..65).map(|n| format!("test://{n}")).collect();
        let many =
            modern(&json!(1), "subscriptions/listen", json!({ "notifications": { "resourceSubscriptions": many } }));
        gateway.wire().await.ask(many).await.is(200, -32602);
        let (_, wire) = old.session.as_mut().unwrap();
        let alone = legacy("", &message(&json!(1), "resources/subscribe", &json!({ "uri": "test://a" })));
        wire.ask(alone).await.is(200, -32600);
        wire.ask(modern(&json!(1), "resources/subscribe", json!({ "uri": "test://a" }))).await.is(404, -32601);
        end(stage, gateway).await;

        let (stage, gateway) = before(&server(python, era, "deaf")).await;
        let all = announced(&gateway).await;
        assert_eq!((&all["resources"], &all["prompts"]), (&json!({}), &json!({ "listChanged": true })), "{era}");
        let wanted =
            json!({ "resourceSubscriptions": ["test://a"], "resourcesListChanged": true, "toolsListChanged": true });
        let (_, granted) = Listener::modern(&gateway, wanted).await;
        assert_eq!(granted, json!({ "toolsListChanged": true }), "{era}");
        let mut old = Listener::legacy(&gateway).await;
        assert_eq!(old.ask("resources/subscribe", "test://a").await["error"]["code"], -32601, "{era}");
        end(stage, gateway).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_may_not_read_a_resource_may_not_watch_it() {
    let Some(python) = python() else { return };
    let issuer = TokenIssuer::generate("https://idp.example").unwrap();
    let policy = |denied: &str| {
        format!(
            "[role.user]\nallow = [\"prompts/list\"]\n[rule.all]\nroles = [\"user\"]\nallow = [\"*\"]\ndelegated = \"also\"\n\
             [rule.secret]\nsubjects = [\"zoe\"]\ndeny = [\"resources/read\"]\ndelegated = \"also\"\n\
             when.params.uri = {{ in = [{denied}] }}\n"
        )
    };
    let stage = stage_of(&issuer, &policy("\"test://secret\""), &server(python, "legacy", ""), &["serve"]).await;
    stage.shell.run("tools approve --yes").ok();
    configure(&stage, &format!("{FAST}refresh_s = 1\n"));
    let gateway = Gateway::spawn(&stage.shell).await;
    gateway.is_ready(200).await;
    let tokens = ["ann", "zoe"].map(|name| issuer.issue(&request(name)).unwrap());
    let showing = |token: &str, request: &str| {
        request.replacen("Host: localhost\r\n", &format!("Host: localhost\r\nAuthorization: Bearer {token}\r\n"), 1)
    };
    let mut listening = Vec::new();
    for (token, granted) in tokens.iter().zip([json!(["test://a", "test://secret"]), json!(["test://a"])]) {
        let mut wire = gateway.wire().await;
        let wanted = json!({ "notifications": { "resourceSubscriptions": ["test://secret", "test://a"] } });
        wire.write(showing(token, &modern(&json!("l"), "subscriptions/listen", wanted))).await;
        wire.head().await;
        let said = event_of(wire.event().await);
        assert_eq!(said["params"]["notifications"], json!({ "resourceSubscriptions": granted }), "{said}");
        // With a handshake, the denial is the answer.
        let hello = json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "raw", "version": "1" } });
        let mut asking = gateway.wire().await;
        let answer = asking.ask(showing(token, &legacy("", &message(&json!(0), "initialize", &hello)))).await;
        let session = format!("Mcp-Session-Id: {}\r\n", answer.header("mcp-session-id").unwrap());
        let secret = message(&json!(1), "resources/subscribe", &json!({ "uri": "test://secret" }));
        let answer = asking.ask(showing(token, &legacy(&session, &secret))).await.json();
        match granted.as_array().unwrap().len() {
            2 => assert_eq!(answer["result"], json!({}), "{answer}"),
            _ => assert_eq!(answer["error"]["code"], 32002, "{answer}"),
        }
        listening.push(wire);
    }
    let touch = async |uri: &str| {
        let touched = showing(&tokens[0], &call(1, "touch", &json!({ "uri": uri })));
        let touched = gateway.wire().await.ask(touched).await.json();
        assert_eq!(touched["result"]["content"][0]["text"], "done", "{touched}");
    };
    // The approval takes a moment.
    let there = async {
        let ping = showing(&tokens[0], &call(1, "touch", &json!({ "uri": "test://nobody" })));
        while gateway.wire().await.ask(&ping).await.json()["result"]["content"][0]["text"] != "done" {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    within(LONG, there).await;
    let uri = async |wire: &mut Wire| event_of(within(LONG, wire.event()).await)["params"]["uri"].clone();
    touch("test://secret").await;
    assert_eq!(uri(&mut listening[0]).await, "test://secret");
    touch("test://a").await;
    for wire in &mut listening {
        assert_eq!(uri(wire).await, "test://a");
    }
    // The policy changes while they watch. It is in force for what they watch soon after it is for what they ask.
    let zoe_may = async |may: bool| {
        let hello = json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "raw", "version": "1" } });
        let mut asking = gateway.wire().await;
        let answer = asking.ask(showing(&tokens[1], &legacy("", &message(&json!(0), "initialize", &hello)))).await;
        let session = format!("Mcp-Session-Id: {}\r\n", answer.header("mcp-session-id").unwrap());
        let subscribe = message(&json!(1), "resources/subscribe", &json!({ "uri": "test://a" }));
        let subscribe = showing(&tokens[1], &legacy(&session, &subscribe));
        let decided = async {
            while asking.ask(&subscribe).await.json()["result"].is_object() != may {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        within(LONG, decided).await;
    };
    stage.shell.write("policies/tools.toml", &policy("\"test://secret\", \"test://a\""));
    zoe_may(false).await;
    tokio::time::sleep(2 * QUIET).await;
    touch("test://a").await;
    assert_eq!(uri(&mut listening[0]).await, "test://a");
    assert!(tokio::time::timeout(QUIET, listening[1].event()).await.is_err(), "she may not read it now");
    stage.shell.write("policies/tools.toml", &policy("\"test://secret\""));
    zoe_may(true).await;
    touch("test://a").await;
    assert_eq!(uri(&mut listening[1]).await, "test://a");
    end(stage, gateway).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_started_again_is_subscribed_to_again_and_a_change_meanwhile_is_told() {
    let Some(python) = python() else { return };
    for era in ["modern", "legacy"] {
        let (stage, gateway) = before(&server(python, era, "")).await;
        let mut listening = [
            Listener::of(&gateway, VERSIONS[0], "test://a").await,
            Listener::of(&gateway, VERSIONS[1], "test://a").await,
        ];
        drop(gateway.wire().await.ask(call(1, "exit", &json!({}))).await);
        // What has changed while it was away, nobody knows.
        for listener in &mut listening {
            assert_eq!(listener.updated().await, "test://a", "{era}");
        }
        let there = async {
            let there = call(1, "touch", &json!({ "uri": "test://a" }));
            while gateway.wire().await.ask(&there).await.json()["result"]["isError"] == true {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        within(LONG, there).await;
        for listener in &mut listening {
            assert_eq!(listener.updated().await, "test://a", "{era}");
        }
        end(stage, gateway).await;
    }
}

/// A server over HTTP of an earlier revision (told.py), and its lines in the configuration.
async fn told(python: &Path, name: &str, kind: &str) -> (Child, String) {
    let port = free_port();
    let server = root().join("crates/cli/tests/cli/backends/mcp/told.py");
    let mut command = Command::new(python);
    command.arg("-B").arg(server).args([&port.to_string(), name, kind]).stdout(Stdio::null()).kill_on_drop(true);
    let server = command.spawn().unwrap();
    let there = async {
        while tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    within(LONG, there).await;
    let backend = format!(
        "[[backend]]\nname = \"{name}\"\nkind = \"mcp\"\nprefix = \"{name}\"\nresources = true\nurl = \"http://127.0.0.1:{port}/mcp\"\n"
    );
    (server, backend)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_a_way_to_tell_is_not_watched_whatever_it_grants() {
    let Some(python) = python() else { return };
    let subscribes = async |gateway: &Gateway| {
        let discovered = gateway.wire().await.ask(modern(&json!(1), "server/discover", json!({}))).await.json();
        discovered["result"]["capabilities"]["resources"].get("subscribe").cloned()
    };
    for (kind, why) in [("refusing", "has no stream"), ("stateless", "keeps no session")] {
        let (_server, backend) = told(python, "mute", kind).await;
        let (stage, gateway) = before(&backend).await;
        assert_eq!(subscribes(&gateway).await, None, "{kind}");
        let (_, granted) = Listener::modern(&gateway, json!({ "resourceSubscriptions": ["mute://a"] })).await;
        assert_eq!(granted, json!({}), "{kind}");
        let mut old = Listener::legacy(&gateway).await;
        let refused = old.ask("resources/subscribe", "mute://a").await["error"].clone();
        assert_eq!(refused["code"], 32004, "{kind} {refused}");
        assert!(refused["message"].as_str().unwrap().contains(why), "{kind} {refused}");
        end(stage, gateway).await;
    }

    // Beside it, another one is watched.
    let (_mute, mute) = told(python, "mute", "refusing").await;
    let (_told, told) = told(python, "told", "stream").await;
    let (stage, gateway) = before(&(mute + &told)).await;
    assert_eq!(subscribes(&gateway).await, Some(json!(true)));
    let wanted = json!({ "resourceSubscriptions": ["mute://a", "told://a"] });
    let (mut new, granted) = Listener::modern(&gateway, wanted).await;
    assert_eq!(granted, json!({ "resourceSubscriptions": ["told://a"] }));
    let mut old = Listener::of(&gateway, "2025-11-25", "told://a").await;
    let refused = old.ask("resources/subscribe", "mute://a").await["error"].clone();
    assert!(refused["message"].as_str().unwrap().contains("has no stream"), "{refused}");
    let tool = async |name: &str| {
        let done = gateway.wire().await.ask(call(1, name, &json!({}))).await.json();
        assert_eq!(done["result"]["content"][0]["text"], "done", "{done}");
    };
    tool("told_touch").await;
    assert_eq!((new.updated().await, old.updated().await), ("told://a".to_owned(), "told://a".to_owned()));
    // What changes until the stream is there again has not been told.
    tool("told_cut").await;
    tool("told_touch").await;
    assert_eq!((new.updated().await, old.updated().await), ("told://a".to_owned(), "told://a".to_owned()));
    end(stage, gateway).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_updates_is_few_and_a_client_that_never_reads_holds_up_nobody() {
    let Some(python) = python() else { return };
    for era in ["modern", "legacy"] {
        let (stage, gateway) = before(&server(python, era, "")).await;
        let _unread = [
            Listener::of(&gateway, VERSIONS[0], "test://a").await,
            Listener::of(&gateway, VERSIONS[1], "test://a").await,
        ];
        let mut listener = Listener::of(&gateway, VERSIONS[0], "test://a").await;
        let began = tokio::time::Instant::now();
        touch(&gateway, "test://a", 20_000).await;
        let (mut heard, mut last) = (0, began.elapsed());
        while tokio::time::timeout(QUIET, listener.stream.event()).await.is_ok() {
            (heard, last) = (heard + 1, began.elapsed());
        }
        // Ten a second until the last one.
        let most = 2 + last.as_millis() / 100;
        assert!((1..=most).contains(&heard), "{heard} of 20,000 in {:?}", began.elapsed());
        // The flood ends nothing.
        touch(&gateway, "test://a", 1).await;
        assert_eq!(listener.updated().await, "test://a");
        end(stage, gateway).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_hear_when_lists_of_resources_and_prompts_change() {
    let Some(python) = python() else { return };
    for era in ["modern", "legacy"] {
        let (stage, gateway) = before(&server(python, era, "")).await;
        let (all, granted) = Listener::modern(
            &gateway,
            json!({ "resourcesListChanged": true, "promptsListChanged": true, "toolsListChanged": true }),
        )
        .await;
        assert_eq!(granted.as_object().unwrap().len(), 3, "{era} {granted}");
        let (prompts, _) = Listener::modern(&gateway, json!({ "promptsListChanged": true })).await;
        let (mut all, mut prompts, mut old) = (all, prompts, Listener::legacy(&gateway).await);
        drop(gateway.wire().await.ask(call(1, "add_resource", &json!({}))).await);
        for listener in [&mut all, &mut old] {
            let said = event_of(within(LONG, listener.stream.event()).await);
            assert_eq!(said["method"], "notifications/resources/list_changed", "{era} {said}");
        }
        let listed = gateway.wire().await.ask(modern(&json!(1), "resources/list", json!({}))).await.json();
        assert!(listed.to_string().contains("test://new/3"), "{listed}");
        // A prompt is there for clients while it is approved.
        let lock = stage.shell.read("tools.lock.toml");
        let (approved, rest) = lock.split_once("[watched.prompt.one]").unwrap();
        let rest = rest.find("\n[").map_or("", |at| &rest[at..]);
        stage.shell.write("tools.lock.toml", &format!("{approved}{rest}"));
        for listener in [&mut all, &mut old, &mut prompts] {
            let said = event_of(within(LONG, listener.stream.event()).await);
            assert_eq!(said["method"], "notifications/prompts/list_changed", "{era} {said}");
        }
        end(stage, gateway).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_on_standard_input_watches_too() {
    let Some(python) = python() else { return };
    for era in ["modern", "legacy"] {
        let stage = Stage::new(POLICY, &server(python, era, "")).await;
        stage.shell.run("tools approve --yes").ok();
        let credentials = stage.shell.path("planner.creds.json").display().to_string();
        let gateway = ["mcp", "--creds", &credentials, "--service", "tools", "--refresh", "1s"].map(str::to_owned);
        for version in VERSIONS {
            let mut raw = Raw::start(&gateway, (version != "2026-07-28").then_some(version)).await;
            let there = async {
                while !raw.tools().await.iter().any(|tool| tool == "touch") {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            };
            within(LONG, there).await;
            if version == "2026-07-28" {
                let wanted = json!({ "notifications": { "resourceSubscriptions": ["test://a", "test://unknown"], "resourcesListChanged": true } });
                let line = raw.request(json!("l"), "subscriptions/listen", wanted);
                raw.write(&line).await;
                let said = raw.note("notifications/subscriptions/acknowledged").await;
                let granted = json!({ "resourceSubscriptions": ["test://a"], "resourcesListChanged": true });
                assert_eq!(said["params"]["notifications"], granted, "{era} {said}");
            } else {
                assert_eq!(raw.ask("resources/subscribe", json!({ "uri": "test://a" })).await["result"], json!({}));
                let refused = raw.ask("resources/subscribe", json!({ "uri": "test://unknown" })).await;
                assert_eq!(refused["error"]["code"], -32002, "{era} {refused}");
            }
            raw.call("touch", json!({ "uri": "test://a", "times": 3 })).await;
            let said = raw.note("notifications/resources/updated").await;
            assert_eq!(said["params"]["uri"], "test://a", "{era} {said}");
            if version != "2026-07-28" {
                // It stays the same session.
                let hello = json!({ "protocolVersion": version, "capabilities": {}, "clientInfo": { "name": "raw", "version": "1" } });
                assert!(raw.ask("initialize", hello).await["result"].is_object());
                raw.call("touch", json!({ "uri": "test://a" })).await;
                let said = raw.note("notifications/resources/updated").await;
                assert_eq!(said["params"]["uri"], "test://a", "{era} {said}");
            }
            raw.call("add_resource", json!({})).await;
            raw.note("notifications/resources/list_changed").await;
            raw.end().await;
        }
        stage.end().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn published_servers_and_clients_watch_through_the_gateway() {
    let Some(python) = python() else { return };
    let script = root().join("crates/cli/tests/cli/backends/mcp/sdk.py");
    for (era, revision) in [("modern", ""), ("legacy", "revision = \"2025-11-25\"\n")] {
        let command = json!([python, "-B", script, era]);
        let backend = format!(
            "[[backend]]\nname = \"sdk\"\nkind = \"mcp\"\nresources = true\nprompts = true\n{revision}command = {command}\n"
        );
        let (stage, gateway) = before(&backend).await;
        let client = root().join("crates/cli/tests/cli/gateway_http/watches.py");
        let at = format!("http://{}/mcp/tools", gateway.at);
        for version in VERSIONS {
            let output = Command::new(python).arg("-B").arg(&client).args([version, &at]).output();
            let output = within(LONG, output).await.unwrap();
            let found: Value = serde_json::from_slice(&output.stdout)
                .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)));
            assert_eq!(found, json!({ "announced": true, "heard": ["note://one"], "after": [] }), "{era} {version}");
        }
        end(stage, gateway).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_watches_resources_over_the_bus() {
    let Some(python) = python() else { return };
    let policy = "[role.user]\nallow = [\"*\"]\n[rule.secret]\nroles = [\"user\"]\ndeny = [\"resources/read\"]\n\
                  when.params.uri = { in = [\"test://secret\"] }\n";
    let stage = Stage::new(policy, &server(python, "legacy", "")).await;
    let uris = json!({ "uris": ["test://a", "test://unknown", "test://secret"] });
    let mut watching = stage.client.subscribe::<Value>("tools", "resources/subscribe", uris);
    let first = within(LONG, watching.next()).await.unwrap().unwrap();
    assert_eq!(first["subscribed"], json!(["test://a"]), "{first}");
    let refused = first["refused"].as_array().unwrap().iter();
    let refused: Vec<_> = refused.map(|one| json!([one["uri"], one["code"], one["application_error"]])).collect();
    // One number, of which the mark says whose it is.
    assert_eq!(refused, [json!(["test://unknown", -32002, true]), json!(["test://secret", -32002, false])]);
    for uris in [json!({ "uris": [] }), json!({ "uris": "test://a" }), json!({}), json!({ "uris": ["a"], "x": 1 })] {
        let refused = within(LONG, stage.client.subscribe::<Value>("tools", "resources/subscribe", uris).next()).await;
        assert_eq!(crate::backends::stage::code(&refused.unwrap().unwrap_err()), Some(-32602));
    }
    assert!(within(LONG, watching.cancel()).await);
    logged(&stage, "unsubscribe test://a").await;
    stage.end().await;
}
