//! `/mcp`: each row of what the two revisions require of a server over HTTP, and third-party clients. docs/gateway/mcp.md.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures_util::StreamExt as _;
use sealwire::{Ctx, Router, RpcError};
use sealwire_testkit::python::python;
use sealwire_testkit::site::Site;
use sealwire_testkit::{NatsServer, settle, within};
use serde_json::{Value, json};
use tokio::process::Command;

use super::wire::{Answer, Wire, post};
use super::{FAST, Gateway, before_site, demo, ended};
use crate::backends::stage::{LONG, Stage, server_of_mcp};
use crate::gateway::raw::{Schemas, result_of};
use crate::gateway::told;
use crate::shell::Shell;

const BOTH: &str = "Accept: application/json, text/event-stream\r\n";
const SAYS: &str = "MCP-Protocol-Version: 2026-07-28\r\n";

/// The parameters of a request of 2026-07-28.
pub(super) fn with_meta(mut params: Value) -> Value {
    let mut meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    if let Some(given) = params["_meta"].as_object() {
        meta.as_object_mut().unwrap().extend(given.clone());
    }
    params["_meta"] = meta;
    params
}

pub(super) fn message(id: &Value, method: &str, params: &Value) -> String {
    json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }).to_string()
}

/// The head that a client of 2026-07-28 writes.
pub(super) fn head(method: &str, params: &Value) -> String {
    let name = params.get("name").or(params.get("uri")).or(params.get("taskId")).and_then(Value::as_str);
    let name = name.map(|name| format!("Mcp-Name: {name}\r\n")).unwrap_or_default();
    format!("{BOTH}{SAYS}Mcp-Method: {method}\r\n{name}")
}

pub(super) fn modern(id: &Value, method: &str, params: Value) -> String {
    let params = with_meta(params);
    post("/mcp/tools", &head(method, &params), &message(id, method, &params))
}

pub(super) fn call(id: u64, tool: &str, arguments: &Value) -> String {
    modern(&json!(id), "tools/call", json!({ "name": tool, "arguments": arguments }))
}

pub(super) fn legacy(lines: &str, body: &str) -> String {
    post("/mcp/tools", &format!("{BOTH}{lines}"), body)
}

/// A session of this revision.
async fn session(wire: &mut Wire, version: &str) -> String {
    let hello =
        json!({ "protocolVersion": version, "capabilities": {}, "clientInfo": { "name": "raw", "version": "1" } });
    let answer = wire.ask(legacy("", &message(&json!(0), "initialize", &hello))).await;
    assert_eq!((answer.status, &answer.json()["result"]["protocolVersion"]), (200, &json!(version)), "{answer:?}");
    let id = answer.header("mcp-session-id").expect("a session");
    assert!(id.bytes().all(|byte| byte.is_ascii_graphic()), "{id}");
    format!("Mcp-Session-Id: {id}\r\nMCP-Protocol-Version: {version}\r\n")
}

pub(super) fn event_of(event: Option<String>) -> Value {
    serde_json::from_str(&event.expect("the stream has ended")).unwrap()
}

fn is_events(answer: &Answer) -> bool {
    answer.header("content-type") == Some("text/event-stream")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn published_clients_of_mcp_call_what_the_agent_may() {
    let Some(python) = python() else { return };
    let policy = crate::gateway::POLICY.replace("\"clock/ticks\"", "\"audit/read\"");
    let stage = Stage::run(&policy, "", &["serve", "demo"]).await;
    let ceiling = "methods = [\"bank/*\", \"math/*\", \"text/*\", \"job/*\"]";
    let gateway = Gateway::start(&stage.shell, FAST, ceiling).await;
    gateway.is_ready(200).await;
    let at = format!("http://{}/mcp/tools", gateway.at);
    // As in the documents, except for port and service.
    let line = include_str!("../../../../../docs/gateway/mcp.md")
        .lines()
        .find(|line| line.starts_with("claude mcp add --transport http bus "));
    let documented = line.unwrap().rsplit_once(' ').unwrap().1;
    assert_eq!(documented.replace("127.0.0.1:8480", &gateway.at.to_string()).replace("/demo", "/tools"), at);
    let found = told(python, "", &["demo", "auto,legacy,2026-07-28,fastmcp", &at]).await;
    assert_eq!(found.len(), 4);
    for found in &found {
        assert_eq!(found["tools"], json!(["bank_transfer", "job_run", "math_add", "text_echo"]), "{found}");
        assert_eq!(found["added"][2], json!(["5"]), "{found}");
        assert!(found["denied"][2][0].as_str().unwrap().contains("permission denied"), "{found}");
        let told = found["progress"].as_array().unwrap();
        assert!(told.contains(&json!([3.0, 3.0, "working"])), "{found}");
        if found["client"] != "fastmcp" {
            let sum = if found["version"] == "2026-07-28" { json!(5) } else { json!({ "result": 5 }) };
            assert_eq!(found["added"], json!([false, sum, ["5"]]), "{found}");
            assert_eq!((&found["parts"][2], &found["cancelled"]), (&json!(["one by one"]), &json!(true)), "{found}");
            assert!(found["unknown"].as_str().unwrap().contains("Unknown tool"), "{found}");
        }
    }
    let versions: Vec<_> = found.iter().map(|found| found["version"].as_str().unwrap_or_default()).collect();
    assert_eq!(versions[..3], ["2026-07-28", "2025-11-25", "2026-07-28"]);
    // Closed streams in one revision, and what the other one does instead.
    ended(&stage, 3).await;

    let script = "import json, sys, requests\n\
        body = {'jsonrpc': '2.0', 'id': 1, 'method': 'tools/call', 'params': {'name': 'math_add', 'arguments': {'a': 2, 'b': 3}}}\n\
        print(json.dumps(requests.post(sys.argv[1], json=body, timeout=60).json()))\n";
    let output = within(LONG, Command::new(python).args(["-c", script, &at]).output()).await.unwrap();
    let plain: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(plain["result"], json!({ "content": [{ "type": "text", "text": "5" }] }), "{plain}");
    assert_eq!(gateway.stop().await.0, Some(0));
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_each_row_asks_of_one_message() {
    let stage = demo().await;
    let gateway = Gateway::start(&stage.shell, FAST, "").await;
    gateway.is_ready(200).await;
    let wire = &mut gateway.wire().await;
    row_01_one_address_of_all_and_one_of_each(wire).await;
    row_02_and_03_get_and_delete(wire).await;
    row_04_foreign_origin_and_host(wire).await;
    row_05_and_06_what_a_body_may_be(wire).await;
    row_07_what_the_client_takes(&gateway, wire).await;
    row_08_notifications_are_accepted(wire).await;
    row_09_to_11_revision_and_capabilities(wire).await;
    row_12_method_and_name_in_the_head(wire).await;
    row_14_a_method_that_is_not_known(wire).await;
    row_22_and_26_to_31_results(wire).await;
    row_23_to_25_sessions(wire).await;
    row_29_a_tool_may_be_called_as_its_method_is(wire).await;
    row_32_schemas_are_of_objects_and_lead_nowhere(wire).await;
    row_36_and_38_codes_of_errors(wire).await;
    row_39_ids(wire).await;
    row_41_revisions_without_tasks_know_nothing_of_them(wire).await;
    a_batch_is_of_the_oldest_revision_alone(wire).await;
    assert_eq!(gateway.stop().await.0, Some(0));
    stage.end().await;
}

async fn row_01_one_address_of_all_and_one_of_each(wire: &mut Wire) {
    let add = call(1, "math_add", &json!({ "a": 1, "b": 2 }));
    for path in ["/mcp", "/mcp/", "/mcp/tools", "/mcp/tools/"] {
        let answer = wire.ask(add.replace("POST /mcp/tools", &format!("POST {path}"))).await;
        assert_eq!(answer.json()["result"]["structuredContent"], 3, "{path} {answer:?}");
    }
    for path in ["/mcp//", "/mcp/other", "/mcp/tools/x"] {
        wire.ask(add.replace("POST /mcp/tools", &format!("POST {path}"))).await.is(404, -32600);
    }
}

async fn row_29_a_tool_may_be_called_as_its_method_is(wire: &mut Wire) {
    for name in ["math_add", "math/add", "math.add"] {
        let answer = wire.ask(call(1, name, &json!({ "a": 1, "b": 2 }))).await;
        assert_eq!(answer.json()["result"]["structuredContent"], 3, "{name} {answer:?}");
    }
    wire.ask(call(1, "math//add", &json!({}))).await.is(200, -32602);
}

async fn row_32_schemas_are_of_objects_and_lead_nowhere(wire: &mut Wire) {
    let listed = wire.ask(modern(&json!(1), "tools/list", json!({}))).await.json();
    for tool in listed["result"]["tools"].as_array().unwrap() {
        assert_eq!(tool["inputSchema"]["type"], "object", "{tool}");
        jsonschema::options().offline().build(&tool["inputSchema"]).unwrap_or_else(|error| panic!("{tool}: {error}"));
    }
}

async fn row_36_and_38_codes_of_errors(wire: &mut Wire) {
    let session = session(wire, "2025-11-25").await;
    let none = json!({ "uri": "test://none" });
    wire.ask(modern(&json!(1), "resources/read", none.clone())).await.is(200, -32602);
    wire.ask(legacy(&session, &message(&json!(1), "resources/read", &none))).await.is(200, -32002);
    // What has no message has no id either.
    let refused = wire.ask(legacy(&session, "{")).await;
    assert_eq!(refused.json().get("id"), None, "{refused:?}");
}

async fn row_41_revisions_without_tasks_know_nothing_of_them(wire: &mut Wire) {
    let session = session(wire, "2025-06-18").await;
    let hello = json!({ "protocolVersion": "2025-06-18", "capabilities": { "tasks": {} }, "clientInfo": { "name": "raw", "version": "1" } });
    let agreed = wire.ask(legacy("", &message(&json!(1), "initialize", &hello))).await.json();
    let capabilities = agreed["result"]["capabilities"].as_object().unwrap();
    assert!(!capabilities.contains_key("tasks") && !capabilities.contains_key("extensions"), "{agreed}");
    for method in ["tasks/get", "tasks/cancel", "tasks/update", "tasks/list", "tasks/result"] {
        wire.ask(legacy(&session, &message(&json!(1), method, &json!({ "taskId": "t" })))).await.is(200, -32601);
    }
    let add = json!({ "name": "math_add", "arguments": { "a": 1, "b": 2 }, "task": { "ttl": 60_000 } });
    let sum = wire.ask(legacy(&session, &message(&json!(1), "tools/call", &add))).await.json();
    assert_eq!(sum["result"]["structuredContent"], json!({ "result": 3 }), "{sum}");
}

async fn row_02_and_03_get_and_delete(wire: &mut Wire) {
    let session = session(wire, "2025-11-25").await;
    let request = |method: &str, lines: &str| {
        format!("{method} /mcp/tools HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n{lines}\r\n")
    };
    for (method, lines) in [("GET", SAYS), ("DELETE", SAYS), ("GET", ""), ("DELETE", &*session), ("PUT", "")] {
        let answer = wire.ask(request(method, lines)).await;
        assert_eq!((answer.status, answer.header("allow")), (405, Some("POST")), "{method} {lines} {answer:?}");
    }
    let refused = wire.ask(request("GET", "Mcp-Session-Id: none\r\n")).await;
    refused.is(404, -32600);
}

async fn row_04_foreign_origin_and_host(wire: &mut Wire) {
    let list = modern(&json!(1), "tools/list", json!({}));
    wire.ask(list.replace("Host: localhost\r\n", "Host: localhost\r\nOrigin: https://evil.example\r\n"))
        .await
        .is(403, -32600);
    wire.ask(list.replace("Host: localhost", "Host: evil.example")).await.is(403, -32600);
}

async fn row_05_and_06_what_a_body_may_be(wire: &mut Wire) {
    let session = session(wire, "2025-11-25").await;
    let answer = r#"{"jsonrpc":"2.0","id":"question-1","result":{"action":"accept"}}"#;
    let lines = head("tools/list", &json!({}));
    for (body, code) in [
        (format!("[{}]", message(&json!(1), "tools/list", &with_meta(json!({})))), -32600),
        (answer.to_owned(), -32600),
        ("{".to_owned(), -32700),
        ("1".to_owned(), -32600),
        (r#"{"jsonrpc":"2.0","id":1}"#.to_owned(), -32600),
        // An array in place of an object, with the members in order.
        (r#"[["2.0",1,"tools/list",null,null,null]]"#.to_owned(), -32600),
        (r#"{"jsonrpc":"1.0","id":1,"method":"tools/list"}"#.to_owned(), -32600),
        (r#"{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"a":1,"\u0061":2}}"#.to_owned(), -32600),
    ] {
        let refused = wire.ask(post("/mcp/tools", &lines, &body)).await;
        refused.is(400, code);
    }
    let call = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":"#;
    for params in [
        r#"[{},null,"math_add",null,{"a":1,"b":2}]"#,
        r#"{"name":"math_add","arguments":{"a":1,"b":2},"_meta":[null,null,1]}"#,
    ] {
        let answer = wire.ask(legacy(&session, &format!("{call}{params}}}"))).await;
        assert_eq!((answer.status, &answer.json()["error"]["code"]), (400, &json!(-32602)), "{params} {answer:?}");
    }
    // Nobody has asked a question.
    wire.ask(legacy(&session, answer)).await.is(400, -32600);
    wire.ask(legacy("", answer)).await.is(400, -32600);
    let list = message(&json!(1), "tools/list", &json!({}));
    wire.ask(legacy(&session, &format!("[{list}]"))).await.is(400, -32600);
}

async fn row_07_what_the_client_takes(gateway: &Gateway, wire: &mut Wire) {
    let body = message(&json!(1), "tools/list", &with_meta(json!({})));
    let accepting = |accept: &str| {
        let lines = format!("{accept}{SAYS}Mcp-Method: tools/list\r\n");
        post("/mcp/tools", &lines, &body)
    };
    for accept in ["", "Accept: */*\r\n", "Accept: application/json\r\n", BOTH] {
        let answer = wire.ask(accepting(accept)).await;
        assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/json")), "{accept}");
    }
    wire.ask(accepting("Accept: text/html\r\n")).await.is(406, -32600);
    let mut other = gateway.wire().await;
    let answer = other.ask(accepting("Accept: text/event-stream\r\n")).await;
    assert!(answer.status == 200 && is_events(&answer) && answer.whole_event()["id"] == 1, "{answer:?}");
}

async fn row_08_notifications_are_accepted(wire: &mut Wire) {
    let session = session(wire, "2025-11-25").await;
    let told = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
    let modern = format!("{BOTH}{SAYS}Mcp-Method: notifications/initialized\r\n");
    for request in [legacy(&session, told), legacy("", told), post("/mcp/tools", &modern, told)] {
        let answer = wire.ask(request).await;
        assert_eq!((answer.status, answer.body.len()), (202, 0), "{answer:?}");
    }
}

async fn row_09_to_11_revision_and_capabilities(wire: &mut Wire) {
    let list = modern(&json!(1), "tools/list", json!({}));
    for other in ["", "MCP-Protocol-Version: 2025-11-25\r\n", "MCP-Protocol-Version: 2099-01-01\r\n"] {
        wire.ask(list.replace(SAYS, other)).await.is(400, -32020);
    }
    let unknown = wire.ask(list.replace("2026-07-28", "2099-01-01")).await;
    unknown.is(400, -32022);
    let data = json!({ "supported": ["2026-07-28"], "requested": "2099-01-01" });
    assert_eq!((&unknown.json()["error"]["data"], &unknown.json()["id"]), (&data, &json!(1)));
    wire.ask(legacy("MCP-Protocol-Version: 2099-01-01\r\n", &message(&json!(1), "ping", &json!({}))))
        .await
        .is(400, -32022);
    for missing in ["protocolVersion", "clientCapabilities"] {
        let mut params = with_meta(json!({}));
        params["_meta"].as_object_mut().unwrap().remove(&format!("io.modelcontextprotocol/{missing}"));
        let request = post("/mcp/tools", &head("tools/list", &params), &message(&json!(1), "tools/list", &params));
        wire.ask(request).await.is(400, -32602);
    }
}

async fn row_12_method_and_name_in_the_head(wire: &mut Wire) {
    let add = call(1, "math_add", &json!({ "a": 1, "b": 2 }));
    for (from, to) in [
        ("Mcp-Method: tools/call\r\n", ""),
        ("Mcp-Method: tools/call", "Mcp-Method: tools/list"),
        ("Mcp-Name: math_add\r\n", ""),
        ("Mcp-Name: math_add", "Mcp-Name: text_echo"),
        ("Mcp-Name: math_add", "Mcp-Name: =?base64?!?="),
    ] {
        wire.ask(add.replace(from, to)).await.is(400, -32020);
    }
    let encoded = wire.ask(add.replace("Mcp-Name: math_add", "Mcp-Name: =?base64?bWF0aF9hZGQ=?=")).await;
    assert_eq!(encoded.json()["result"]["structuredContent"], 3, "{encoded:?}");
    for line in
        ["Mcp-Method: tools/call\r\n", "Mcp-Name: math_add\r\n", SAYS, "Mcp-Session-Id: a\r\nMcp-Session-Id: b\r\n"]
    {
        let mut twice = within(LONG, Wire::open(wire.gateway())).await;
        twice.ask(add.replace("Host: localhost\r\n", &format!("Host: localhost\r\n{line}"))).await.is(400, -32600);
    }
}

async fn row_14_a_method_that_is_not_known(wire: &mut Wire) {
    let session = session(wire, "2025-11-25").await;
    for method in ["tools/none", "ping", "initialize", "logging/setLevel", "resources/subscribe"] {
        wire.ask(modern(&json!(1), method, json!({}))).await.is(404, -32601);
    }
    for method in ["tools/none", "server/discover", "subscriptions/listen"] {
        wire.ask(legacy(&session, &message(&json!(1), method, &json!({})))).await.is(200, -32601);
    }
}

async fn row_22_and_26_to_31_results(wire: &mut Wire) {
    let mut schemas = Schemas::default();
    let session = session(wire, "2025-11-25").await;
    let params = |tool: &str, arguments: Value| json!({ "name": tool, "arguments": arguments });
    for (method, given, code) in [
        ("server/discover", json!({}), None),
        ("tools/list", json!({}), None),
        ("resources/list", json!({}), None),
        ("prompts/list", json!({}), None),
        ("tools/call", params("math_add", json!({ "a": 2, "b": 3 })), None),
        ("tools/call", params("math_add", json!({ "a": "x" })), None),
        ("tools/call", params("none", json!({})), Some(-32602)),
        ("tools/call", params("math_add", json!([1, 2])), Some(-32602)),
        ("resources/read", json!({ "uri": "test://none" }), Some(-32602)),
    ] {
        let answer = wire.ask(modern(&json!("m"), method, given.clone())).await;
        let answer = answer.json();
        let old = wire.ask(legacy(&session, &message(&json!("l"), method, &given))).await.json();
        match code {
            Some(code) => {
                assert_eq!(answer["error"]["code"], code, "{answer}");
                schemas.fit(false, "JSONRPCErrorResponse", &answer);
                schemas.fit(true, "JSONRPCErrorResponse", &old);
                // Row 36: each revision has its own code.
                let old_code = if method == "resources/read" { -32002 } else { code };
                assert_eq!(old["error"]["code"], old_code, "{old}");
            }
            None => {
                let result = &answer["result"];
                schemas.fit(false, result_of(method, result).unwrap(), result);
                assert_eq!(result["resultType"], "complete", "{answer}");
                let is_kept = method != "tools/call";
                assert_eq!(result["cacheScope"].as_str(), is_kept.then_some("private"), "{answer}");
                assert_eq!(result["ttlMs"].is_u64(), is_kept, "{answer}");
                if method != "server/discover" {
                    schemas.fit(true, result_of(method, &old["result"]).unwrap(), &old["result"]);
                    assert!(old["result"].get("resultType").is_none() && old["result"].get("ttlMs").is_none(), "{old}");
                }
            }
        }
    }
    let listed = wire.ask(modern(&json!(1), "tools/list", json!({}))).await.json();
    let names: Vec<_> =
        listed["result"]["tools"].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    assert!(names.is_sorted() && names.contains(&"math_add"), "{names:?}");
    let wrong = wire.ask(call(1, "math_add", &json!({ "a": "x" }))).await.json();
    assert_eq!(wrong["result"]["isError"], true, "{wrong}");
    let sum = wire
        .ask(legacy(&session, &message(&json!(1), "tools/call", &params("math_add", json!({ "a": 2, "b": 3 })))))
        .await;
    assert_eq!(sum.json()["result"]["structuredContent"], json!({ "result": 5 }), "{sum:?}");
    // All services are one server at `/mcp`.
    let all = wire.ask(modern(&json!(1), "tools/list", json!({})).replace("/mcp/tools", "/mcp")).await.json();
    assert_eq!(all["result"]["tools"], listed["result"]["tools"]);
    wire.ask(modern(&json!(1), "tools/list", json!({})).replace("/mcp/tools", "/mcp/other")).await.is(404, -32600);
}

async fn row_23_to_25_sessions(wire: &mut Wire) {
    let ping = message(&json!(1), "ping", &json!({}));
    for version in ["2025-11-25", "2025-06-18", "2025-03-26"] {
        let session = session(wire, version).await;
        let answer = wire.ask(legacy(&session, &ping)).await;
        assert_eq!(answer.json(), json!({ "jsonrpc": "2.0", "id": 1, "result": {} }));
        // Not the agreed version, then a session that nobody has created.
        let other = session.replace(&format!("Version: {version}"), "Version: 2024-11-05");
        wire.ask(legacy(&other, &ping)).await.is(400, -32022);
        let other = if version == "2025-11-25" { "2025-06-18" } else { "2025-11-25" };
        wire.ask(legacy(&session.replace(&format!("Version: {version}"), &format!("Version: {other}")), &ping))
            .await
            .is(400, -32600);
        wire.ask(legacy(&session.replace("Session-Id: ", "Session-Id: A"), &ping)).await.is(404, -32600);
    }
    let newest =
        json!({ "protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": { "name": "raw", "version": "1" } });
    let answer = wire.ask(legacy("", &message(&json!(1), "initialize", &newest))).await;
    assert_eq!(answer.json()["result"]["protocolVersion"], "2025-11-25", "{answer:?}");
    // Row 25: a client that names no revision gets the oldest, which has no `structuredContent`.
    let add = message(&json!(1), "tools/call", &json!({ "name": "math_add", "arguments": { "a": 2, "b": 3 } }));
    let plain = wire.ask(post("/mcp/tools", "", &add)).await;
    assert_eq!(plain.json()["result"], json!({ "content": [{ "type": "text", "text": "5" }] }));
    let named = wire.ask(post("/mcp/tools", "MCP-Protocol-Version: 2025-06-18\r\n", &add)).await;
    assert_eq!(named.json()["result"]["structuredContent"], json!({ "result": 5 }));
}

async fn row_39_ids(wire: &mut Wire) {
    for id in [json!(null), json!(1.5), json!([1]), json!({})] {
        wire.ask(modern(&id, "tools/list", json!({}))).await.is(400, -32600);
    }
    for id in [json!(-7), json!(9_007_199_254_740_993_i64), json!("ä\"")] {
        assert_eq!(wire.ask(modern(&id, "server/discover", json!({}))).await.json()["id"], id);
        assert_eq!(wire.ask(modern(&id, "tools/none", json!({}))).await.json()["id"], id);
    }
}

async fn a_batch_is_of_the_oldest_revision_alone(wire: &mut Wire) {
    let session = session(wire, "2025-03-26").await;
    let add =
        |id: u64| message(&json!(id), "tools/call", &json!({ "name": "math_add", "arguments": { "a": id, "b": 1 } }));
    let told = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
    let answers = wire.ask(legacy(&session, &format!("[{},{told},{}]", add(1), add(2)))).await.json();
    let texts: Vec<_> = answers.as_array().unwrap().iter().map(|one| &one["result"]["content"][0]["text"]).collect();
    assert_eq!(texts, ["2", "3"], "{answers}");
    assert_eq!(wire.ask(legacy(&session, &format!("[{told}]"))).await.status, 202);
    for body in ["[]".to_owned(), "[1]".to_owned(), format!("[{}{told}]", format!("{told},").repeat(32))] {
        wire.ask(legacy(&session, &body)).await.is(400, -32600);
    }
    wire.ask(legacy(&session, &format!("[{},{}]", add(1), add(1)))).await.is(200, -32600);
    wire.ask(legacy("MCP-Protocol-Version: 2025-06-18\r\n", &format!("[{}]", add(1)))).await.is(400, -32600);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_15_18_to_21_33_35_and_38_streams_and_who_ends_them() {
    let mut stage = demo().await;
    let gateway = Gateway::start(&stage.shell, FAST, "").await;
    gateway.is_ready(200).await;
    let mut schemas = Schemas::default();
    let job = |steps: u64, meta: Value| json!({ "name": "job_run", "arguments": { "steps": steps }, "_meta": meta });
    let asks = |id: u64, steps: u64| modern(&json!(id), "tools/call", job(steps, json!({ "progressToken": "p" })));

    // Rows 15, 18, 33: progress, the response last, and nothing after it.
    let mut wire = gateway.wire().await;
    wire.write(asks(1, 3)).await;
    let answer = wire.head().await;
    assert!(is_events(&answer) && answer.header("x-accel-buffering") == Some("no"), "{answer:?}");
    let mut last = 0.0;
    let response = loop {
        let event = event_of(wire.event().await);
        if event.get("id").is_some() {
            break event;
        }
        schemas.fit(false, "ServerNotification", &event);
        assert_eq!(
            (&event["method"], &event["params"]["progressToken"]),
            (&json!("notifications/progress"), &json!("p"))
        );
        let progress = event["params"]["progress"].as_f64().unwrap();
        assert!(progress > last, "{event}");
        last = progress;
    };
    assert_eq!((&response["id"], &response["result"]["structuredContent"]), (&json!(1), &json!({ "steps": 3 })));
    assert_eq!(wire.event().await, None);
    // Without a progress token there is nothing to stream, so the response is JSON.
    let quiet = wire.ask(modern(&json!(2), "tools/call", job(2, json!({})))).await;
    assert_eq!(quiet.header("content-type"), Some("application/json"), "{quiet:?}");
    let scripted = wire.ask(asks(3, 2).replace(BOTH, "")).await;
    assert_eq!(scripted.json()["result"]["structuredContent"], json!({ "steps": 2 }), "{scripted:?}");

    // Row 19: a closed stream is the cancellation.
    let mut gone = gateway.wire().await;
    gone.write(asks(4, 5_999)).await;
    gone.head().await;
    gone.event().await.unwrap();
    drop(gone);
    ended(&stage, 1).await;

    // Row 20: with a handshake it is not, but a notification is, of the same session only.
    let ours = session(&mut wire, "2025-11-25").await;
    let other = session(&mut wire, "2025-11-25").await;
    let old = |lines: &str, id: u64, steps: u64| {
        legacy(lines, &message(&json!(id), "tools/call", &job(steps, json!({ "progressToken": id }))))
    };
    let mut left = gateway.wire().await;
    left.write(old(&ours, 5, 7)).await;
    left.head().await;
    left.event().await.unwrap();
    drop(left);
    let done = async {
        while !audit(&stage).await.contains("job/run: 7 steps") {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    within(LONG, done).await;
    let mut kept = gateway.wire().await;
    kept.write(old(&ours, 6, 5_999)).await;
    kept.head().await;
    kept.event().await.unwrap();
    // Row 39: within a session, an id belongs to one request.
    wire.ask(old(&ours, 6, 1)).await.is(200, -32600);
    let cancel = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":6}}"#;
    for lines in ["", &other] {
        assert_eq!(wire.ask(legacy(lines, cancel)).await.status, 202);
    }
    event_of(kept.event().await);
    assert_eq!(wire.ask(legacy(&ours, cancel)).await.status, 202);
    while let Some(event) = kept.event().await {
        assert_eq!(event_of(Some(event))["method"], "notifications/progress", "what was cancelled has no response");
    }
    ended(&stage, 2).await;

    // Row 35: first what is granted, then changes, and finally a result, each with the subscription.
    let mut refreshed = Gateway::start(&stage.shell, &format!("{FAST}refresh_s = 1"), "").await;
    refreshed.is_ready(200).await;
    let ours = session(&mut refreshed.wire().await, "2025-06-18").await;
    let mut listening = refreshed.wire().await;
    let wanted = json!({ "notifications": { "toolsListChanged": true } });
    listening.write(modern(&json!("s"), "subscriptions/listen", wanted.clone())).await;
    listening.head().await;
    let granted = event_of(listening.event().await);
    assert_eq!(granted["method"], "notifications/subscriptions/acknowledged");
    assert_eq!(granted["params"]["notifications"], json!({ "toolsListChanged": true }));
    let mut old = refreshed.wire().await;
    old.write(format!("GET /mcp/tools HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n{ours}\r\n")).await;
    old.head().await;
    refreshed
        .wire()
        .await
        .ask(modern(&json!("s"), "subscriptions/listen", wanted).replace(BOTH, ""))
        .await
        .is(406, -32600);
    stage.shell.write("policies/tools.toml", "[role.user]\nallow = [\"math/mul\"]\n");
    let changed = event_of(within(LONG, listening.event()).await);
    assert_eq!(
        event_of(within(LONG, old.event()).await),
        json!({ "jsonrpc": "2.0", "method": "notifications/tools/list_changed" })
    );
    assert_eq!(changed["method"], "notifications/tools/list_changed");
    crate::process::send(crate::process::SIGTERM, refreshed.child.id().unwrap());
    let closing = event_of(within(LONG, listening.event()).await);
    for event in [&granted, &changed] {
        schemas.fit(false, "ServerNotification", event);
        assert_eq!(event["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"], "s", "{event}");
    }
    schemas.fit(false, "SubscriptionsListenResult", &closing["result"]);
    assert_eq!(closing["result"]["_meta"]["io.modelcontextprotocol/subscriptionId"], "s", "{closing}");
    assert_eq!((listening.event().await, old.event().await), (None, None));
    let status = within(LONG, refreshed.child.wait()).await.unwrap();
    assert!(status.success(), "{status}");

    // Row 38: what the gateway refuses by itself has no code of MCP's.
    let slow = Gateway::start(&stage.shell, "per_second = 1\nburst = 1", "").await;
    slow.is_ready(200).await;
    let mut wire = slow.wire().await;
    let list = modern(&json!(1), "server/discover", json!({}));
    let refused = async {
        loop {
            let answer = wire.ask(&list).await;
            if answer.status == 429 {
                break answer;
            }
        }
    };
    let refused = within(LONG, refused).await;
    refused.is(429, 32013);
    assert!(refused.header("retry-after").is_some(), "{refused:?}");
    stage.server.kill().await;
    assert_eq!(slow.stop().await.0, Some(0));
    drop(gateway);
}

async fn audit(stage: &Stage) -> String {
    stage.call("audit/read", json!({ "limit": 100 })).await.unwrap().to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_16_17_and_37_questions_to_people() {
    let Some(python) = python() else { return };
    let backend = server_of_mcp(python);
    let stage = Stage::new("[role.user]\nallow = [\"*\"]\n", &backend).await;
    stage.shell.run("tools approve --yes").ok();
    let gateway = Gateway::start(&stage.shell, &format!("{FAST}refresh_s = 1"), "").await;
    gateway.is_ready(200).await;
    let mut wire = gateway.wire().await;
    let there = async {
        while !wire.ask(modern(&json!(1), "tools/list", json!({}))).await.json().to_string().contains("t_ask") {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    within(LONG, there).await;
    for found in told(python, "", &["ask", "auto,legacy", &format!("http://{}/mcp/tools", gateway.at)]).await {
        assert!(found["asked"].to_string().contains("large"), "{found}");
        assert_eq!((&found["resource"], &found["resources"]), (&json!("the first"), &json!(["test://one"])));
        assert_eq!(found["prompt"], "cats");
    }

    let forms = json!({ "io.modelcontextprotocol/clientCapabilities": { "elicitation": {} } });
    let ask = |more: Value| {
        let mut params = json!({ "name": "t_ask", "arguments": {}, "_meta": forms });
        params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        modern(&json!(1), "tools/call", params)
    };
    row_34_log_messages_are_for_those_who_want_them(&gateway).await;
    let mut schemas = Schemas::default();
    let asked = wire.ask(ask(json!({}))).await.json();
    schemas.fit(false, "InputRequiredResult", &asked["result"]);
    let state = asked["result"]["requestState"].as_str().unwrap().to_owned();
    let answer = json!({ "size": { "action": "accept", "content": { "size": "small" } } });
    let back = |state: &str| json!({ "requestState": state, "inputResponses": answer });
    // Another request, a changed value, and then the same twice.
    let mut others = back(&state);
    others["arguments"] = json!({ "x": 1 });
    for wrong in [others, back(&format!("A{state}")), back(&state[..state.len() - 1]), back("1-1")] {
        wire.ask(ask(wrong)).await.is(200, -32602);
    }
    let done = wire.ask(ask(back(&state))).await.json();
    assert!(done["result"]["content"][0]["text"].as_str().unwrap().contains("small"), "{done}");
    wire.ask(ask(back(&state))).await.is(200, -32602);
    for _ in 0..16 {
        let asked = wire.ask(ask(json!({}))).await.json();
        assert_eq!(asked["result"]["resultType"], "input_required", "{asked}");
    }
    let full = wire.ask(ask(json!({}))).await;
    full.is(200, -32603);
    let error = &full.json()["error"];
    assert!(error["message"].as_str().unwrap().contains("16 calls wait"), "{full:?}");
    assert_eq!(error["data"]["outcome"], "unknown", "it had begun: {full:?}");
    // Only from that address.
    let elsewhere = wire.ask(ask(json!({})).replace("POST /mcp/tools", "POST /mcp")).await.json();
    assert_eq!(elsewhere["result"]["resultType"], "input_required", "{elsewhere}");

    // With a handshake the question comes on the stream, and only its session may answer.
    let hello = json!({ "protocolVersion": "2025-11-25", "capabilities": { "elicitation": {} }, "clientInfo": { "name": "raw", "version": "1" } });
    let mut sessions = Vec::new();
    for _ in 0..2 {
        let answer = wire.ask(legacy("", &message(&json!(0), "initialize", &hello))).await;
        sessions.push(format!("Mcp-Session-Id: {}\r\n", answer.header("mcp-session-id").unwrap()));
    }
    let mut calling = gateway.wire().await;
    calling
        .write(legacy(&sessions[0], &message(&json!(1), "tools/call", &json!({ "name": "t_ask", "arguments": {} }))))
        .await;
    calling.head().await;
    let question = event_of(calling.event().await);
    schemas.fit(true, "ElicitRequest", &question);
    let reply = json!({ "jsonrpc": "2.0", "id": question["id"], "result": { "action": "accept", "content": { "size": "tiny" } } });
    wire.ask(legacy(&sessions[1], &reply.to_string())).await.is(400, -32600);
    assert_eq!(wire.ask(legacy(&sessions[0], &reply.to_string())).await.status, 202);
    let done = event_of(calling.event().await);
    assert!(done["result"]["content"][0]["text"].as_str().unwrap().contains("tiny"), "{done}");
    assert_eq!(gateway.stop().await.0, Some(0));
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_24_replicas_with_one_key_know_each_others_sessions() {
    let stage = demo().await;
    let key = |shell: &Shell, text: &str| {
        drop(std::fs::remove_file(shell.path("seal.key")));
        sealwire::internal::files::write_secret(&shell.path("seal.key"), text, false).unwrap();
    };
    key(&stage.shell, &"5e".repeat(32));
    let keyed = format!("{FAST}seal_key = \"seal.key\"");
    let (one, two) = (Gateway::start(&stage.shell, &keyed, "").await, Gateway::start(&stage.shell, &keyed, "").await);
    let alone = Gateway::start(&stage.shell, FAST, "").await;
    let ping = message(&json!(1), "ping", &json!({}));
    let ours = session(&mut one.wire().await, "2025-11-25").await;
    let theirs = session(&mut alone.wire().await, "2025-11-25").await;
    assert_eq!(two.wire().await.ask(legacy(&ours, &ping)).await.status, 200);
    alone.wire().await.ask(legacy(&ours, &ping)).await.is(404, -32600);
    two.wire().await.ask(legacy(&theirs, &ping)).await.is(404, -32600);
    for gateway in [one, two, alone] {
        assert_eq!(gateway.stop().await.0, Some(0));
    }
    for wrong in ["", "5e", &"5e".repeat(33), &"5g".repeat(32), &format!("{}5", "5e".repeat(31))] {
        key(&stage.shell, wrong);
        super::configure(&stage.shell, &keyed, "");
        stage.shell.run("gateway --check").fails(30, &["64 hexadecimal digits"]);
    }
    stage.end().await;
}

/// What the gateway sends for calls of a tool that sends a word in the middle.
async fn row_34_log_messages_are_for_those_who_want_them(gateway: &Gateway) {
    let job = |level: Option<&str>| {
        let mut meta = json!({ "progressToken": "p" });
        meta.as_object_mut()
            .unwrap()
            .extend(level.map(|level| ("io.modelcontextprotocol/logLevel".to_owned(), level.into())));
        json!({ "name": "t_job", "arguments": {}, "_meta": meta })
    };
    let said = async |request: String| {
        let mut wire = gateway.wire().await;
        wire.write(request).await;
        wire.head().await;
        let mut events = Vec::new();
        while let Some(event) = wire.event().await {
            events.push(event_of(Some(event)));
        }
        assert!(events.last().unwrap()["result"].is_object(), "{events:?}");
        events.retain(|event| event["method"] == "notifications/message");
        events
    };
    let told = said(modern(&json!(1), "tools/call", job(Some("info")))).await;
    assert_eq!(
        told,
        [
            json!({ "jsonrpc": "2.0", "method": "notifications/message", "params": { "level": "info", "data": "half of it" } })
        ]
    );
    for level in [Some("notice"), None] {
        assert_eq!(said(modern(&json!(1), "tools/call", job(level))).await, [] as [Value; 0], "{level:?}");
    }
    let mut wire = gateway.wire().await;
    wire.ask(modern(&json!(1), "tools/call", job(Some("loud")))).await.is(400, -32602);
    let discovered = wire.ask(modern(&json!(1), "server/discover", json!({}))).await.json();
    assert!(discovered["result"]["capabilities"]["logging"].is_object(), "{discovered}");
    // With a handshake, a session says once what it wants, and others do not get it.
    let level = |level: &str| message(&json!(1), "logging/setLevel", &json!({ "level": level }));
    let job = |id: u64| message(&json!(id), "tools/call", &job(None));
    let (old, other) = (session(&mut wire, "2025-11-25").await, session(&mut wire, "2025-06-18").await);
    assert_eq!(said(legacy(&old, &job(2))).await, [] as [Value; 0]);
    for (lower, heard) in [("debug", 1), ("info", 1), ("notice", 0), ("emergency", 0), ("info", 1)] {
        let set = wire.ask(legacy(&old, &level(lower))).await.json();
        assert_eq!(set["result"], json!({}), "{set}");
        assert_eq!(said(legacy(&old, &job(3))).await.len(), heard, "{lower}");
        assert_eq!(said(legacy(&other, &job(4))).await, [] as [Value; 0]);
    }
    wire.ask(legacy(&old, &level("loud"))).await.is(400, -32602);
    wire.ask(legacy(&old, &message(&json!(1), "logging/setLevel", &json!({})))).await.is(200, -32602);
    // Without a session there is nobody to remember; and 2026-07-28 has it in each request.
    wire.ask(legacy("", &level("info"))).await.is(200, -32600);
    wire.ask(modern(&json!(1), "logging/setLevel", json!({ "level": "info" }))).await.is(404, -32601);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_42_trace_context_is_handed_on_and_decides_nothing() {
    let stage = demo().await;
    let gateway = Gateway::start(&stage.shell, FAST, "").await;
    gateway.is_ready(200).await;
    let mut wire = gateway.wire().await;
    // From here on, the list is known.
    wire.ask(modern(&json!(0), "tools/list", json!({}))).await;
    let listener = stage.server.client().await;
    let mut heard = within(LONG, listener.subscribe("rpc.v1.tools.planner")).await.unwrap();
    settle(&listener).await;
    let parent = |n: u64| format!("00-{n:032x}-00f067aa0ba902b7-01");
    let add = |meta: Value| {
        modern(&json!(1), "tools/call", json!({ "name": "math_add", "arguments": { "a": 1, "b": 2 }, "_meta": meta }))
    };
    let with =
        |lines: &str, meta: Value| add(meta).replace("Host: localhost\r\n", &format!("Host: localhost\r\n{lines}"));
    let head = format!("traceparent: {}\r\ntracestate: a=1\r\nbaggage: user=ann\r\n", parent(1));
    let ours = json!({ "traceparent": parent(2), "tracestate": "b=2", "baggage": "user=bob" });
    let twice = format!("{head}traceparent: {}\r\n", parent(3));
    let long = format!("baggage: a={}\r\n", "x".repeat(5_000));
    for (request, expected) in [
        (with(&head, json!({})), (Some(parent(1)), Some("a=1"), Some("user=ann"))),
        (with(&head, ours), (Some(parent(2)), Some("b=2"), Some("user=bob"))),
        (with(&twice, json!({})), (None, None, Some("user=ann"))),
        (with(&long, json!({})), (None, None, None)),
        (with("traceparent: x\r\ntracestate: a=1\r\nbaggage: \"\r\n", json!({})), (None, None, None)),
        (with("", json!({ "traceparent": 7, "tracestate": ["a=1"], "baggage": "a\r\nb: c" })), (None, None, None)),
    ] {
        assert_eq!(wire.ask(&request).await.json()["result"]["structuredContent"], 3, "{request}");
        let headers = within(LONG, heard.next()).await.unwrap().headers.unwrap();
        let one = |name: &str| headers.get(name).map(|value| value.to_string());
        let claims = one("Authorization").unwrap().rsplit_once('~').unwrap().1.split('.').nth(1).unwrap().to_owned();
        let claims: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).unwrap()).unwrap();
        let found = (claims.get("tp").map(|tp| tp.as_str().unwrap().to_owned()), one("tracestate"), one("baggage"));
        assert_eq!(found, (expected.0, expected.1.map(str::to_owned), expected.2.map(str::to_owned)), "{request}");
    }
    assert_eq!(gateway.stop().await.0, Some(0));
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_too_much_at_once_is_refused() {
    let stage = demo().await;
    let gateway = Gateway::start(&stage.shell, &format!("{FAST}streams = 1\nin_flight = 1\nrefresh_s = 1"), "").await;
    gateway.is_ready(200).await;
    let mut wire = gateway.wire().await;
    let old = session(&mut wire, "2025-11-25").await;
    let oldest = session(&mut wire, "2025-03-26").await;
    let listen = modern(&json!(1), "subscriptions/listen", json!({ "notifications": { "toolsListChanged": true } }));
    let get = format!("GET /mcp/tools HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n{old}\r\n");
    let mut listening = gateway.wire().await;
    listening.write(&listen).await;
    listening.head().await;
    for more in [&listen, &get] {
        let refused = wire.ask(more).await;
        refused.is(429, 32013);
        assert_eq!(refused.json()["error"]["data"]["outcome"], "not_sent", "{refused:?}");
    }
    let list = |id: u64| message(&json!(id), "tools/list", &json!({}));
    assert_eq!(wire.ask(legacy("", &format!("[{}]", list(1)))).await.status, 200);
    wire.ask(legacy("", &format!("[{},{}]", list(1), list(2)))).await.is(429, 32013);
    let is_free = async || {
        let answer = gateway.wire().await.ask(modern(&json!(1), "server/discover", json!({}))).await;
        assert!([200, 429].contains(&answer.status), "{answer:?}");
        answer.status == 200
    };

    let freed = async || {
        while !is_free().await {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };

    // A client with a handshake that goes away leaves its calls running, in their places.
    let job = json!({ "name": "job_run", "arguments": { "steps": 5_999 }, "_meta": { "progressToken": 1 } });
    let cancel = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}"#;
    for (session, cancel, number) in [(&old, cancel.to_owned(), 1), (&oldest, format!("[{cancel}]"), 2)] {
        let mut left = gateway.wire().await;
        left.write(legacy(session, &message(&json!(7), "tools/call", &job))).await;
        left.head().await;
        left.event().await.unwrap();
        drop(left);
        for _ in 0..10 {
            assert!(!is_free().await);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        // No entry of a batch that is refused has an effect.
        if let Some(entries) = cancel.strip_suffix(']') {
            let batch = format!(r#"{entries},{{"jsonrpc":"2.0","id":1.5,"method":"ping"}}]"#);
            wire.ask(legacy(session, &batch)).await.is(400, -32600);
            assert!(!is_free().await);
        }
        // It needs no place.
        assert_eq!(wire.ask(legacy(session, &cancel)).await.status, 202);
        ended(&stage, number).await;
        within(LONG, freed()).await;
    }

    // Where all callers are the agent, a message that arrives slowly takes nobody's place: see `forms` and `mint`.
    let whole = legacy(&old, cancel);
    let (begun, rest) = whole.split_at(whole.len() - 10);
    let mut slow = gateway.wire().await;
    slow.write(begun).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(wire.ask(&whole).await.status, 202);
    assert!(is_free().await);
    slow.write(rest).await;
    assert_eq!(slow.answer().await.unwrap().status, 202);
    within(LONG, freed()).await;
    assert_eq!(wire.ask(&whole).await.status, 202);
    assert_eq!(gateway.stop().await.0, Some(0));
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_place_is_taken_until_the_answer_is_read() {
    let server = NatsServer::start().await;
    let site = Site::new(&server.url());
    let begun = Arc::new(tokio::sync::Notify::new());
    let begins = Arc::clone(&begun);
    let large = move |_: Ctx<()>, (): ()| {
        begins.notify_one();
        async move { Ok::<_, RpcError>("x".repeat(3 << 20)) }
    };
    let served = site.serve(Router::new(()).method("site/large", large)).await;
    let shell = before_site(&server, &site, &format!("in_flight = 1\n{FAST}"), "");
    let gateway = Gateway::spawn(&shell).await;
    gateway.is_ready(200).await;
    let at = |request: String| request.replace("POST /mcp/tools", "POST /mcp/site");
    let is_free = async || {
        let answer = gateway.wire().await.ask(at(modern(&json!(1), "server/discover", json!({})))).await;
        assert!([200, 429].contains(&answer.status), "{answer:?}");
        answer.status == 200
    };
    let until = async |free: bool| {
        while is_free().await != free {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    // More than sockets hold.
    let mut slow = Wire::narrow(gateway.at).await;
    slow.write(at(call(1, "site_large", &json!({})))).await;
    // Whoever asked before could take the place that this call is to have.
    within(LONG, begun.notified()).await;
    for _ in 0..30 {
        assert!(!is_free().await);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    drop(slow);
    within(LONG, until(true)).await;
    assert_eq!(gateway.stop().await.0, Some(0));
    served.stop().await.unwrap();
}

/// docs/bounds.md: what is sent before a response. A slow reader misses some of it, delays nobody, and gets the
/// result in the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_said_faster_than_it_is_read_is_left_out_and_the_result_comes() {
    const SAID: usize = 300;
    let server = NatsServer::start().await;
    let site = Site::new(&server.url());
    let done = Arc::new(AtomicBool::new(false));
    let is_done = Arc::clone(&done);
    let tell = move |ctx: Ctx<()>, (): ()| {
        let done = Arc::clone(&done);
        async move {
            for at in 0..SAID {
                let data = format!("{at} {}", "x".repeat(100_000));
                ctx.notify("notifications/message", &json!({ "level": "info", "data": data })).await?;
            }
            done.store(true, Ordering::Relaxed);
            Ok::<_, RpcError>("all of it")
        }
    };
    let served = site.serve(Router::new(()).method("site/tell", tell)).await;
    let gateway = Gateway::spawn(&before_site(&server, &site, FAST, "")).await;
    gateway.is_ready(200).await;
    let mut slow = Wire::narrow(gateway.at).await;
    let params =
        json!({ "name": "site_tell", "arguments": {}, "_meta": { "io.modelcontextprotocol/logLevel": "info" } });
    let asks = modern(&json!(1), "tools/call", params).replace("POST /mcp/tools", "POST /mcp/site");
    slow.write(asks).await;
    within(LONG, async {
        while !is_done.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    slow.head().await;
    let mut heard = Vec::new();
    let result = loop {
        let event = event_of(slow.event().await);
        match event["params"]["data"].as_str() {
            Some(data) => heard.push(data.split(' ').next().unwrap().parse::<usize>().unwrap()),
            None => break event,
        }
    };
    assert_eq!(result["result"]["structuredContent"], "all of it", "{result}");
    assert!((16..SAID).contains(&heard.len()) && heard.is_sorted(), "{heard:?}");
    assert_eq!(slow.event().await, None);
    assert_eq!(gateway.stop().await.0, Some(0));
    served.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_listens_outlives_the_broker_and_hears_of_no_change_in_it() {
    let mut stage = demo().await;
    let gateway = Gateway::start(&stage.shell, &format!("{FAST}refresh_s = 1"), "").await;
    gateway.is_ready(200).await;
    let old = session(&mut gateway.wire().await, "2025-11-25").await;
    let mut listening = [gateway.wire().await, gateway.wire().await];
    listening[0]
        .write(format!("GET /mcp/tools HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n{old}\r\n"))
        .await;
    let wanted = json!({ "notifications": { "toolsListChanged": true } });
    listening[1].write(modern(&json!(1), "subscriptions/listen", wanted)).await;
    for wire in &mut listening {
        wire.head().await;
    }
    event_of(listening[1].event().await);
    stage.server.kill().await;
    gateway.is_ready(503).await;
    let quiet = Duration::from_secs(3);
    for wire in &mut listening {
        assert!(tokio::time::timeout(quiet, wire.event()).await.is_err(), "an outage is no change");
    }
    stage.server.restart().await;
    gateway.is_ready(200).await;
    let back = async {
        let short = stage.client.request("tools").deadline(Duration::from_secs(2));
        while short.clone().call::<Value>("math/add", [1, 2]).await.is_err() {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    within(2 * LONG, back).await;
    for wire in &mut listening {
        assert!(tokio::time::timeout(quiet, wire.event()).await.is_err(), "nor is its end");
    }
    stage.shell.write("policies/tools.toml", "[role.user]\nallow = [\"math/mul\"]\n");
    for wire in &mut listening {
        assert_eq!(event_of(within(LONG, wire.event()).await)["method"], "notifications/tools/list_changed");
    }
    assert_eq!(gateway.stop().await.0, Some(0));
    stage.end().await;
}
