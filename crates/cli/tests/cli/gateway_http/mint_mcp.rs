//! `/mcp` for callers with tokens of their own: each has its own tools, sessions, questions and changes.

use std::time::Duration;

use futures_util::future::join_all;
use sealwire::internal::auth::{IssueRequest, TokenIssuer};
use sealwire_testkit::python::python;
use sealwire_testkit::within;
use serde_json::{Value, json};
use tokio::process::Command;

use super::mcp::{call, event_of, legacy, message, modern};
use super::mint::{POLICY, URL, configure, request, stage, stage_of};
use super::wire::{Answer, Wire};
use super::{FAST, Gateway, ended};
use crate::backends::stage::{LONG, Stage, server_of_mcp};
use crate::gateway::told;

/// With this token.
fn showing(token: &str, request: &str) -> String {
    request.replacen("Host: localhost\r\n", &format!("Host: localhost\r\nAuthorization: Bearer {token}\r\n"), 1)
}

pub(super) async fn ask(gateway: &Gateway, token: &str, request: &str) -> Answer {
    gateway.wire().await.ask(showing(token, request)).await
}

async fn tools(gateway: &Gateway, token: &str, path: &str) -> Vec<String> {
    let list = modern(&json!(1), "tools/list", json!({})).replace("POST /mcp/tools", &format!("POST {path}"));
    let listed = ask(gateway, token, &list).await.json();
    let tools = listed["result"]["tools"].as_array().unwrap_or_else(|| panic!("{listed}"));
    tools.iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
}

/// A session of this caller, as header lines.
async fn session(gateway: &Gateway, token: &str, capabilities: Value) -> String {
    let hello = json!({ "protocolVersion": "2025-11-25", "capabilities": capabilities, "clientInfo": { "name": "raw", "version": "1" } });
    let answer = ask(gateway, token, &legacy("", &message(&json!(0), "initialize", &hello))).await;
    format!("Mcp-Session-Id: {}\r\n", answer.header("mcp-session-id").expect("a session"))
}

const LISTEN: &str = "subscriptions/listen";

fn wanted() -> Value {
    json!({ "notifications": { "toolsListChanged": true } })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_43_and_27_each_caller_has_tools_sessions_and_changes_of_its_own() {
    let issuer = TokenIssuer::generate("https://idp.example").unwrap();
    let stage = stage(&issuer).await;
    configure(&stage, &format!("{FAST}refresh_s = 1\n"));
    let gateway = Gateway::spawn(&stage.shell).await;
    gateway.is_ready(200).await;
    let token = |request: &IssueRequest| issuer.issue(request).unwrap();
    let (ann, zoe) = (token(&request("ann")), token(&request("zoe")));

    // Where to get a token, and for what.
    let list = modern(&json!(1), "tools/list", json!({}));
    let well_known = "/.well-known/oauth-protected-resource";
    for path in ["/mcp/tools", "/mcp"] {
        let asks = list.replace("POST /mcp/tools", &format!("POST {path}"));
        let refused = gateway.wire().await.ask(&asks).await;
        refused.is(401, 32010);
        let challenge = format!("Bearer scope=\"tools\", resource_metadata=\"{URL}{well_known}{path}\"");
        assert_eq!(refused.header("www-authenticate"), Some(challenge.as_str()));
        let mut narrow = request("ann");
        narrow.claims.insert("scope".to_owned(), "toolsmith".into());
        let narrow = ask(&gateway, &token(&narrow), &asks).await;
        narrow.is(403, 32010);
        assert!(narrow.header("www-authenticate").unwrap().contains("error=\"insufficient_scope\", scope=\"tools\""));
        let invalid = ask(&gateway, &format!("{ann}x"), &asks).await;
        invalid.is(401, 32010);
        assert!(
            invalid.header("www-authenticate").unwrap().starts_with("Bearer error=\"invalid_token\", scope=\"tools\"")
        );
    }
    let about = async |path: &str| {
        let lines = format!("GET {well_known}{path} HTTP/1.1\r\nHost: gateway.example\r\n\r\n");
        gateway.wire().await.ask(lines).await
    };
    for path in ["", "/", "/mcp", "/mcp/", "/mcp/tools", "/mcp/tools/"] {
        let about = about(path).await.json();
        assert_eq!((&about["resource"], &about["scopes_supported"]), (&json!(URL), &json!(["tools"])), "{path}");
    }
    for path in ["/mcp/other", "/mcp//", "x", "/rpc/tools"] {
        assert_eq!(about(path).await.status, 404, "{path}");
    }

    // Each caller sees its own tools, and nobody sees another's.
    for _ in 0..2 {
        for path in ["/mcp/tools", "/mcp"] {
            assert_eq!(tools(&gateway, &ann, path).await, ["job_run", "math_add"]);
            assert_eq!(tools(&gateway, &zoe, path).await, ["job_run"]);
        }
    }
    let add = call(1, "math_add", &json!({ "a": 1, "b": 2 }));
    assert_eq!(ask(&gateway, &ann, &add).await.json()["result"]["structuredContent"], 3);
    ask(&gateway, &zoe, &add).await.is(200, -32602);
    // No caller gets the agent's own rights.
    ask(&gateway, &ann, &call(1, "audit_read", &json!({}))).await.is(200, -32602);
    // Another token of the same caller, without roles.
    let mut plain = request("ann");
    plain.roles.clear();
    assert_eq!(tools(&gateway, &token(&plain), "/mcp/tools").await, Vec::<String>::new());

    let ours = session(&gateway, &ann, json!({})).await;
    let ping = legacy(&ours, &message(&json!(1), "ping", &json!({})));
    assert_eq!(ask(&gateway, &ann, &ping).await.status, 200);
    assert_eq!(
        ask(&gateway, &issuer.issue(&request("ann")).unwrap(), &ping).await.status,
        200,
        "whatever token it shows"
    );
    ask(&gateway, &zoe, &ping).await.is(404, -32600);
    gateway.wire().await.ask(&ping).await.is(401, 32010);

    // Changes are reported only to those whom they concern.
    let mut listening = [gateway.wire().await, gateway.wire().await];
    for (wire, token) in listening.iter_mut().zip([&ann, &zoe]) {
        wire.write(showing(token, &modern(&json!("s"), LISTEN, wanted()))).await;
        wire.head().await;
        event_of(wire.event().await);
    }
    let policy = stage.shell.read("policies/tools.toml");
    let (of_zoe, rest) = (policy.find("subjects = [\"zoe\"]").unwrap(), "deny = [\"math/add\", \"job/run\"]");
    let changed = format!("{}{}", &policy[..of_zoe], policy[of_zoe..].replace("deny = [\"math/add\"]", rest));
    stage.shell.write("policies/tools.toml", &changed);
    let [of_ann, of_zoe] = &mut listening;
    assert_eq!(event_of(within(LONG, of_zoe.event()).await)["method"], "notifications/tools/list_changed");
    assert!(tokio::time::timeout(Duration::from_secs(4), of_ann.event()).await.is_err(), "nothing has changed for ann");
    assert_eq!(tools(&gateway, &zoe, "/mcp/tools").await, Vec::<String>::new());

    // Anything begun with a token ends with it.
    let mut short = request("max");
    short.ttl_s = 6;
    let short = token(&short);
    let mut wires = [gateway.wire().await, gateway.wire().await];
    wires[0].write(showing(&short, &modern(&json!("s"), LISTEN, wanted()))).await;
    let job = json!({ "name": "job_run", "arguments": { "steps": 5_999 }, "_meta": { "progressToken": 1 } });
    wires[1].write(showing(&short, &modern(&json!(2), "tools/call", job))).await;
    let mut last = Vec::new();
    for wire in &mut wires {
        assert_eq!(wire.head().await.status, 200);
        let mut end = Value::Null;
        while let Some(event) = within(LONG, wire.event()).await {
            end = event_of(Some(event));
        }
        last.push(end);
    }
    assert_eq!(last[0]["result"]["resultType"], "complete", "{last:?}");
    assert_eq!(last[1]["error"]["data"], json!({ "outcome": "unknown" }), "{last:?}");
    ended(&stage, 1).await;
    ask(&gateway, &short, &list).await.is(401, 32010);
    assert_eq!(gateway.stop().await.0, Some(0));
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_37_nobody_else_answers_or_goes_on_with_a_call() {
    let Some(python) = python() else { return };
    let backend = server_of_mcp(python);
    let issuer = TokenIssuer::generate("https://idp.example").unwrap();
    let policy =
        "[role.user]\nallow = [\"t/pid\"]\n[rule.others]\nroles = [\"user\"]\nallow = [\"*\"]\ndelegated = \"only\"\n";
    let stage = stage_of(&issuer, policy, &backend, &["serve"]).await;
    stage.shell.run("tools approve --yes").ok();
    configure(&stage, &format!("{FAST}refresh_s = 1\n"));
    let gateway = Gateway::spawn(&stage.shell).await;
    gateway.is_ready(200).await;
    let (ann, zoe) = (issuer.issue(&request("ann")).unwrap(), issuer.issue(&request("zoe")).unwrap());
    let there = async {
        while !tools(&gateway, &ann, "/mcp/tools").await.contains(&"t_ask".to_owned()) {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    within(LONG, there).await;

    let forms = json!({ "io.modelcontextprotocol/clientCapabilities": { "elicitation": {} } });
    let asks = |more: Value| {
        let mut params = json!({ "name": "t_ask", "arguments": {}, "_meta": forms });
        params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        modern(&json!(1), "tools/call", params)
    };
    let asked = ask(&gateway, &ann, &asks(json!({}))).await.json();
    let answer = json!({ "size": { "action": "accept", "content": { "size": "small" } } });
    let back = asks(json!({ "requestState": asked["result"]["requestState"], "inputResponses": answer }));
    ask(&gateway, &zoe, &back).await.is(200, -32602);
    let done = ask(&gateway, &ann, &back).await.json();
    assert!(done["result"]["content"][0]["text"].as_str().unwrap().contains("small"), "{done}");

    // With a handshake: only the session that was asked may answer, with a token of the same caller.
    let ours = session(&gateway, &ann, json!({ "elicitation": {} })).await;
    let theirs = session(&gateway, &zoe, json!({ "elicitation": {} })).await;
    let mut calling = gateway.wire().await;
    let t_ask = message(&json!(1), "tools/call", &json!({ "name": "t_ask", "arguments": {} }));
    calling.write(showing(&ann, &legacy(&ours, &t_ask))).await;
    calling.head().await;
    let question = event_of(calling.event().await);
    let reply = json!({ "jsonrpc": "2.0", "id": question["id"], "result": { "action": "accept", "content": { "size": "tiny" } } });
    let reply = reply.to_string();
    ask(&gateway, &zoe, &legacy(&ours, &reply)).await.is(404, -32600);
    ask(&gateway, &zoe, &legacy(&theirs, &reply)).await.is(400, -32600);
    let cancel = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#;
    assert_eq!(ask(&gateway, &zoe, &legacy(&theirs, cancel)).await.status, 202);
    assert_eq!(ask(&gateway, &ann, &legacy(&ours, &reply)).await.status, 202);
    let done = event_of(calling.event().await);
    assert!(done["result"]["content"][0]["text"].as_str().unwrap().contains("tiny"), "{done}");
    assert_eq!(gateway.stop().await.0, Some(0));
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn published_clients_with_tokens_call_what_their_callers_may() {
    let Some(python) = python() else { return };
    let issuer = TokenIssuer::generate("https://idp.example").unwrap();
    let policy = crate::gateway::POLICY
        .replace("allow = [\"math/add\", \"job/run\", \"text/echo\", \"clock/ticks\"]", "allow = [\"audit/read\"]")
        .replace("when.params", "delegated = \"only\"\nwhen.params")
        + "\n[rule.others]\nroles = [\"user\"]\nallow = [\"math/add\", \"job/run\", \"text/echo\"]\ndelegated = \"only\"\n";
    let stage = stage_of(&issuer, &policy, "", &["serve", "demo"]).await;
    configure(&stage, FAST);
    let gateway = Gateway::spawn(&stage.shell).await;
    gateway.is_ready(200).await;
    let token = issuer.issue(&request("ann")).unwrap();
    let at = format!("http://{}/mcp/tools", gateway.at);
    let found = told(python, &token, &["demo", "auto,legacy,2026-07-28,fastmcp", &at]).await;
    assert_eq!(found.len(), 4);
    for found in &found {
        assert_eq!(found["tools"], json!(["bank_transfer", "job_run", "math_add", "text_echo"]), "{found}");
        assert_eq!(found["added"][2], json!(["5"]), "{found}");
        assert!(found["denied"][2][0].as_str().unwrap().contains("permission denied"), "{found}");
    }
    ended(&stage, 3).await;

    // No handshake at all; and how the client interprets the metadata by its rules.
    let script = "import json, sys, requests\n\
        from mcp.shared.auth_utils import check_resource_allowed\n\
        at, token = sys.argv[1:]\n\
        body = {'jsonrpc': '2.0', 'id': 1, 'method': 'tools/call', 'params': {'name': 'math_add', 'arguments': {'a': 2, 'b': 3}}}\n\
        refused = requests.post(at, json=body, timeout=60)\n\
        assert refused.status_code == 401\n\
        about = at.replace('/mcp/', '/.well-known/oauth-protected-resource/mcp/')\n\
        assert refused.headers['WWW-Authenticate'].endswith('/.well-known/oauth-protected-resource/mcp/tools\"')\n\
        resource = requests.get(about, timeout=60).json()['resource']\n\
        assert check_resource_allowed('https://gateway.example/mcp/tools', resource)\n\
        assert not check_resource_allowed('https://other.example/mcp/tools', resource)\n\
        print(requests.post(at, json=body, headers={'Authorization': 'Bearer ' + token}, timeout=60).text)\n";
    let output = within(LONG, Command::new(python).args(["-c", script, &at, &token]).output()).await.unwrap();
    let plain: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)));
    assert_eq!(plain["result"], json!({ "content": [{ "type": "text", "text": "5" }] }), "{plain}");
    assert_eq!(gateway.stop().await.0, Some(0));
    stage.end().await;
}

/// Begins long calls until one is refused. Returns the running ones, and the refusal.
async fn as_many_as_go(gateway: &Gateway, token: Option<&str>) -> (Vec<Wire>, Answer) {
    let job = json!({ "name": "job_run", "arguments": { "steps": 5_999 }, "_meta": { "progressToken": 1 } });
    let job = modern(&json!(1), "tools/call", job);
    let job = token.map_or_else(|| job.clone(), |token| showing(token, &job));
    let begin = async |_| {
        let mut wire = gateway.wire().await;
        wire.write(&job).await;
        // It sends something with its first step.
        let answer = wire.answer().await.unwrap();
        (wire, answer)
    };
    let mut under_way = Vec::new();
    loop {
        let begun = join_all((0..32).map(begin)).await;
        let (go_on, refused): (Vec<_>, Vec<_>) =
            begun.into_iter().partition(|(_, answer)| answer.header("content-type") == Some("text/event-stream"));
        under_way.extend(go_on.into_iter().map(|(wire, _)| wire));
        if let Some((_, refused)) = refused.into_iter().next() {
            return (under_way, refused);
        }
    }
}

/// As places become free.
async fn until_there_are(count: usize, under_way: &mut Vec<Wire>, gateway: &Gateway, token: Option<&str>) {
    while under_way.len() < count {
        tokio::time::sleep(Duration::from_millis(50)).await;
        under_way.extend(as_many_as_go(gateway, token).await.0);
    }
    assert_eq!(under_way.len(), count);
}

fn says_that_nothing_was_sent(refused: &Answer) {
    let result = &refused.json()["result"];
    assert_eq!((refused.status, &result["isError"]), (200, &json!(true)), "{refused:?}");
    let text = result["content"][0]["text"].as_str().unwrap();
    assert_eq!(text, "too many calls are under way, and nothing was sent: call again later");
}

/// docs/bounds.md: calls in progress, of all callers together and of one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_callers_calls_take_half_of_all_and_leave_the_others_half_of_the_rest() {
    let issuer = TokenIssuer::generate("https://idp.example").unwrap();
    let limits = "agent_streams = 4096\nstreams = 8192\n";
    let stage = stage_of(&issuer, POLICY, limits, &["serve", "demo"]).await;
    let bounds = format!("{FAST}in_flight = 1000\n");
    configure(&stage, &bounds);
    let gateway = Gateway::spawn(&stage.shell).await;
    gateway.is_ready(200).await;
    let (ann, zoe) = (issuer.issue(&request("ann")).unwrap(), issuer.issue(&request("zoe")).unwrap());
    let (anns, refused) = as_many_as_go(&gateway, Some(&ann)).await;
    assert_eq!(anns.len(), 128, "{refused:?}");
    says_that_nothing_was_sent(&refused);
    let (mut zoes, refused) = as_many_as_go(&gateway, Some(&zoe)).await;
    assert_eq!(zoes.len(), 64, "{refused:?}");
    says_that_nothing_was_sent(&refused);
    // A client that goes away cancels its calls and makes room.
    drop(anns);
    within(LONG, until_there_are(128, &mut zoes, &gateway, Some(&zoe))).await;
    drop(zoes);
    assert_eq!(gateway.stop().await.0, Some(0));
    stage.end().await;
}

/// As above, where all callers are the gateway's agent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_under_way_are_so_many_in_all() {
    let stage = Stage::run(crate::gateway::POLICY, "agent_streams = 4096\nstreams = 8192\n", &["serve", "demo"]).await;
    let gateway = Gateway::start(&stage.shell, &format!("{FAST}in_flight = 1000\n"), "timeout_s = 300").await;
    gateway.is_ready(200).await;
    let (under_way, refused) = as_many_as_go(&gateway, None).await;
    assert_eq!(under_way.len(), 256, "{refused:?}");
    says_that_nothing_was_sent(&refused);
    drop(under_way);
    within(LONG, until_there_are(256, &mut Vec::new(), &gateway, None)).await;
    assert_eq!(gateway.stop().await.0, Some(0));
    stage.end().await;
}
