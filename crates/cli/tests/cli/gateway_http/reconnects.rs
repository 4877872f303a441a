//! What clients of revisions with a handshake are told that have no stream for a while: nothing that they watch is lost.
//! docs/gateway/mcp.md, "Changes".

use std::time::Duration;

use sealwire::internal::auth::TokenIssuer;
use sealwire_testkit::python::python;
use sealwire_testkit::within;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::mcp::{call, event_of, legacy, message};
use super::mint::{configure, request, stage_of};
use super::replicas::Replicas;
use super::watches::{QUIET, before, end, knows_tools, log, logged, server, touch};
use super::wire::Wire;
use super::{FAST, Gateway};
use crate::backends::stage::{LONG, POLICY, Stage};

const A: &str = "test://a";
const B: &str = "test://b";
const ERAS: [&str; 2] = ["modern", "legacy"];
const HELLO: &str = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"raw","version":"1"}}}"#;

/// A client with a session, which opens and closes streams as it likes.
struct Client {
    /// The lines of its session, and of its token.
    lines: String,
    wire: Wire,
}

impl Client {
    async fn new(gateway: &Gateway) -> Self {
        Self::with(gateway, "").await
    }

    async fn with(gateway: &Gateway, token: &str) -> Self {
        let mut wire = gateway.wire().await;
        let answer = wire.ask(legacy(token, HELLO)).await;
        let id = answer.header("mcp-session-id").expect("a session");
        let lines = format!("{token}Mcp-Session-Id: {id}\r\nMCP-Protocol-Version: 2025-11-25\r\n");
        Self { lines, wire }
    }

    /// The same session, at another replica.
    async fn at(&self, gateway: &Gateway) -> Self {
        Self { lines: self.lines.clone(), wire: gateway.wire().await }
    }

    async fn ask(&mut self, method: &str, params: &Value) -> Value {
        self.wire.ask(legacy(&self.lines, &message(&json!(1), method, params))).await.json()
    }

    async fn subscribe(&mut self, uri: &str) {
        let answer = self.ask("resources/subscribe", &json!({ "uri": uri })).await;
        assert_eq!(answer["result"], json!({}), "{answer}");
    }

    /// A stream, of a client that says which event it has heard last, or says nothing.
    async fn stream(&self, last_event: Option<&str>) -> Stream {
        let mut wire = Wire::open(self.wire.gateway()).await;
        let last = last_event.map(|id| format!("Last-Event-ID: {id}\r\n")).unwrap_or_default();
        let head = "GET /mcp/tools HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n";
        wire.write(format!("{head}{}{last}\r\n", self.lines)).await;
        assert_eq!(wire.head().await.status, 200);
        Stream(wire)
    }
}

/// The stream of a client.
struct Stream(Wire);

impl Stream {
    async fn next(&mut self) -> Value {
        event_of(within(LONG, self.0.event()).await)
    }

    /// The resource of the next update.
    async fn updated(&mut self) -> String {
        let said = self.next().await;
        assert_eq!(said["method"], "notifications/resources/updated", "{said}");
        said["params"]["uri"].as_str().unwrap().to_owned()
    }

    /// Nothing comes that has not been told.
    async fn is_quiet(&mut self) {
        if let Ok(event) = tokio::time::timeout(QUIET, self.0.event()).await {
            panic!("{event:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_changes_before_there_is_a_stream_is_told_on_it_once() {
    let Some(python) = python() else { return };
    for era in ERAS {
        let (stage, gateway) = before(&server(python, era, "")).await;
        let mut client = Client::new(&gateway).await;
        client.subscribe(A).await;
        touch(&gateway, A, 1).await;
        touch(&gateway, B, 1).await;
        let mut stream = client.stream(None).await;
        assert_eq!(stream.updated().await, A, "{era}");
        stream.is_quiet().await;
        touch(&gateway, A, 1).await;
        assert_eq!(stream.updated().await, A, "{era}");

        // Nothing has changed, so there is nothing to tell.
        let mut other = Client::new(&gateway).await;
        other.subscribe(A).await;
        other.stream(None).await.is_quiet().await;

        // What is not watched any more is not told either.
        let mut third = Client::new(&gateway).await;
        third.subscribe(A).await;
        third.subscribe(B).await;
        touch(&gateway, A, 1).await;
        touch(&gateway, B, 1).await;
        assert_eq!(third.ask("resources/unsubscribe", &json!({ "uri": A })).await["result"], json!({}));
        let mut stream = third.stream(None).await;
        assert_eq!(stream.updated().await, B, "{era}");
        stream.is_quiet().await;
        end(stage, gateway).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_changes_between_two_streams_is_told_on_the_second() {
    let Some(python) = python() else { return };
    for era in ERAS {
        let (stage, gateway) = before(&server(python, era, "")).await;
        let mut client = Client::new(&gateway).await;
        let mut stream = client.stream(None).await;
        client.subscribe(A).await;
        client.subscribe(B).await;
        touch(&gateway, B, 1).await;
        assert_eq!(stream.updated().await, B, "{era}");
        let heard = stream.0.last_event.clone().expect("an id");

        // One that says what it has heard is told of nothing else.
        drop(stream);
        touch(&gateway, A, 1).await;
        let mut stream = client.stream(Some(&heard)).await;
        assert_eq!(stream.updated().await, A, "{era}");
        stream.is_quiet().await;
        let newer = stream.0.last_event.clone().expect("an id");

        // What was sent, and was not heard, is told again.
        touch(&gateway, B, 1).await;
        touch(&gateway, A, 1).await;
        drop(stream);
        let mut stream = client.stream(Some(&newer)).await;
        let mut both = [stream.updated().await, stream.updated().await];
        both.sort();
        assert_eq!(both, [A, B], "{era}");

        // The newest of several streams has it, and nothing is lost in between.
        let mut older = vec![stream];
        for _ in 0..10 {
            let last = older.last().unwrap().0.last_event.clone();
            let ((), mut newer) = tokio::join!(touch(&gateway, A, 1), client.stream(last.as_deref()));
            assert_eq!(newer.updated().await, A, "{era}");
            older.push(newer);
        }
        drop(older);

        // As long as that was not long ago, it is also told to one that does not say what it has heard, or says what nobody understands.
        for last in [None, Some("0-1"), Some("x"), Some("")] {
            touch(&gateway, A, 1).await;
            assert_eq!(client.stream(last).await.updated().await, A, "{era} {last:?}");
            let mut again = client.stream(last).await;
            while again.updated().await != A {}
        }
        end(stage, gateway).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_while_a_client_subscribes_to_more_and_to_less() {
    let Some(python) = python() else { return };
    for era in ERAS {
        let (stage, gateway) = before(&server(python, era, "")).await;
        let mut client = Client::new(&gateway).await;
        let mut stream = client.stream(None).await;
        client.subscribe(A).await;
        for n in 0..30 {
            let (method, uri) = match n % 2 {
                0 => ("resources/subscribe", format!("test://b/{n}")),
                _ => ("resources/unsubscribe", format!("test://b/{}", n - 1)),
            };
            let uri = json!({ "uri": uri });
            let (answer, ()) = tokio::join!(client.ask(method, &uri), touch(&gateway, A, 1));
            assert_eq!(answer["result"], json!({}), "{answer}");
            assert_eq!(stream.updated().await, A, "{era} {n}");
            // It may come twice, which must not count for the next.
            while tokio::time::timeout(Duration::from_millis(300), stream.updated()).await.is_ok() {}
        }
        end(stage, gateway).await;
    }
}

/// docs/bounds.md: sessions without a stream that go on watching.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn beyond_the_bounds_a_client_is_told_of_what_may_have_changed() {
    let Some(python) = python() else { return };
    let (stage, gateway) = before(&server(python, "legacy", "")).await;
    let mut clients = Vec::new();
    for _ in 0..9 {
        let mut client = Client::new(&gateway).await;
        client.subscribe(A).await;
        clients.push(client);
    }
    let mut streams = Vec::new();
    for client in &clients {
        streams.push(client.stream(None).await);
    }
    // What nobody was watching for it may have changed.
    let (mut ninth, mut stream) = (clients.pop().unwrap(), streams.pop().unwrap());
    assert_eq!(stream.updated().await, A);
    for stream in streams.iter_mut().chain([&mut stream]) {
        stream.is_quiet().await;
    }
    ninth.subscribe(B).await;
    touch(&gateway, B, 1).await;
    assert_eq!(stream.updated().await, B);
    // The others have left their places to it.
    let heard = stream.0.last_event.clone();
    drop(stream);
    ninth.stream(heard.as_deref()).await.is_quiet().await;
    touch(&gateway, A, 1).await;
    for stream in &mut streams {
        assert_eq!(stream.updated().await, A);
    }
    drop(streams);

    // A gateway that is stopped waits for none of them, and takes their subscriptions along.
    let began = Instant::now();
    assert_eq!(gateway.stop().await.0, Some(0));
    logged(&stage, "unsubscribe test://a").await;
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_comes_back_late_is_told_of_what_may_have_changed() {
    let Some(python) = python() else { return };
    let (stage, gateway) = before(&server(python, "legacy", "")).await;
    // Its time without a stream may begin with its session.
    let began = Instant::now();
    let mut client = Client::new(&gateway).await;
    client.subscribe(A).await;
    logged(&stage, "unsubscribe test://a").await;
    assert!(began.elapsed() >= Duration::from_secs(30), "{:?}", began.elapsed());
    let mut stream = client.stream(None).await;
    assert_eq!(stream.updated().await, A);
    stream.is_quiet().await;
    end(stage, gateway).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_that_change_while_a_client_has_no_stream_are_told_on_the_next() {
    let Some(python) = python() else { return };
    for era in ERAS {
        let (stage, gateway) = before(&server(python, era, "")).await;
        let changed = async |stream: &mut Stream| {
            let said = stream.next().await;
            assert_eq!(said["method"], "notifications/resources/list_changed", "{era} {said}");
        };
        let add = async || drop(gateway.wire().await.ask(call(1, "add_resource", &json!({}))).await);
        // Knows what a list must show once the gateway has heard of it.
        let listed = async |client: &mut Client, count: usize| {
            let there = async {
                loop {
                    let all = client.ask("resources/list", &json!({})).await;
                    if all["result"]["resources"].as_array().unwrap().len() >= count {
                        break;
                    }
                }
            };
            within(LONG, there).await;
        };
        let mut client = Client::new(&gateway).await;
        listed(&mut client, 3).await;
        client.stream(None).await.is_quiet().await;
        add().await;
        let mut stream = client.stream(None).await;
        changed(&mut stream).await;
        stream.is_quiet().await;

        // It is told again if it may not have heard it, and not what it knows.
        drop(stream);
        let mut stream = client.stream(None).await;
        changed(&mut stream).await;
        let heard = stream.0.last_event.clone();
        drop(stream);
        client.stream(heard.as_deref()).await.is_quiet().await;
        end(stage, gateway).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_changes_before_there_is_a_stream_is_told_at_whichever_replica_that_is() {
    let Some(python) = python() else { return };
    for era in ERAS {
        let stage = Stage::new(POLICY, &server(python, era, "")).await;
        stage.shell.run("tools approve --yes").ok();
        sealwire::internal::files::write_secret(&stage.shell.path("seal.key"), &"5e".repeat(32), false).unwrap();
        let replicas = Replicas::new(2);
        let more = "refresh_s = 1";
        let (one, two) = (replicas.start(&stage, 0, more).await, replicas.start(&stage, 1, more).await);
        knows_tools(&one).await;
        let mut client = Client::new(&one).await;
        client.subscribe(A).await;
        client.subscribe(B).await;
        assert_eq!(client.ask("resources/unsubscribe", &json!({ "uri": B })).await["result"], json!({}));
        touch(&one, A, 1).await;
        touch(&one, B, 1).await;
        drop(one.wire().await.ask(call(1, "add_resource", &json!({}))).await);
        let mut stream = client.at(&two).await.stream(None).await;
        let (mut updated, mut changed) = (0, 0);
        while updated == 0 || changed == 0 {
            let said = stream.next().await;
            match said["method"].as_str().unwrap() {
                "notifications/resources/list_changed" => changed += 1,
                "notifications/resources/updated" if said["params"]["uri"] == A => updated += 1,
                _ => panic!("{era} {said}"),
            }
        }
        stream.is_quiet().await;
        // From then on, it is told of what is subscribed to at the other.
        client.subscribe(B).await;
        touch(&one, B, 1).await;
        assert_eq!(stream.updated().await, B, "{era}");
        for gateway in [one, two] {
            assert_eq!(gateway.stop().await.0, Some(0));
        }
        stage.end().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_comes_back_with_less_rights_or_later_than_its_token_hears_no_more_than_it_may() {
    let Some(python) = python() else { return };
    let issuer = TokenIssuer::generate("https://idp.example").unwrap();
    let policy = |denied: &str| {
        format!(
            "[role.user]\nallow = [\"prompts/list\"]\n[rule.all]\nroles = [\"user\"]\nallow = [\"*\"]\ndelegated = \"also\"\n\
             [rule.denied]\nsubjects = [\"zoe\"]\ndeny = [\"resources/read\"]\ndelegated = \"also\"\n\
             when.params.uri = {{ in = [\"{denied}\"] }}\n"
        )
    };
    let stage = stage_of(&issuer, &policy("test://none"), &server(python, "legacy", ""), &["serve"]).await;
    stage.shell.run("tools approve --yes").ok();
    configure(&stage, &format!("{FAST}refresh_s = 1\n"));
    let gateway = Gateway::spawn(&stage.shell).await;
    gateway.is_ready(200).await;
    let line = |token: &str| format!("Authorization: Bearer {token}\r\n");
    let token = line(&issuer.issue(&request("zoe")).unwrap());
    let anns = line(&issuer.issue(&request("ann")).unwrap());
    let touch = async |uri: &str| {
        let there = async {
            let touch = call(1, "touch", &json!({ "uri": uri }));
            let touch = touch.replacen("Host: localhost\r\n", &format!("Host: localhost\r\n{anns}"), 1);
            while gateway.wire().await.ask(&touch).await.json()["result"]["content"][0]["text"] != "done" {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        within(LONG, there).await;
    };
    touch("test://nobody").await;
    let granted = async |granted: bool| {
        let there = async {
            let mut other = Client::with(&gateway, &token).await;
            while other.ask("resources/subscribe", &json!({ "uri": A })).await["result"].is_object() != granted {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        within(LONG, there).await;
    };

    // What has changed while she was allowed to know it is not told once she is not.
    let mut zoe = Client::with(&gateway, &token).await;
    zoe.subscribe(A).await;
    touch(A).await;
    stage.shell.write("policies/tools.toml", &policy(A));
    granted(false).await;
    let mut stream = zoe.stream(None).await;
    stream.is_quiet().await;
    stage.shell.write("policies/tools.toml", &policy("test://none"));
    assert_eq!(stream.updated().await, A, "she may have missed something");

    // Somebody else cannot take her stream.
    let theirs = zoe.lines.replace(&token, &anns);
    let get = format!("GET /mcp/tools HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n{theirs}\r\n");
    assert_eq!(gateway.wire().await.ask(get).await.status, 404);

    // When her token has ended, nothing is watched with it any more.
    drop(stream);
    let mut brief = request("zoe");
    brief.ttl_s = 8;
    let brief = line(&issuer.issue(&brief).unwrap());
    let mut zoe = Client::with(&gateway, &brief).await;
    let unsubscribed = |stage: &Stage| log(stage).iter().filter(|line| *line == "unsubscribe test://b").count();
    let (began, before) = (Instant::now(), unsubscribed(&stage));
    zoe.subscribe(B).await;
    let ended = async {
        while unsubscribed(&stage) == before {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    within(LONG, ended).await;
    assert!(began.elapsed() < Duration::from_secs(25), "{:?}", began.elapsed());
    zoe.lines = zoe.lines.replace(&brief, &token);
    let mut stream = zoe.stream(None).await;
    assert_eq!(stream.updated().await, B, "nobody was watching for a while");
    stream.is_quiet().await;
    end(stage, gateway).await;
}
