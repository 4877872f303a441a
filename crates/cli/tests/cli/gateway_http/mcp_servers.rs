//! MCP servers behind the bus, at `/mcp`: what a server gives a client is what it gives through the gateway. docs/gateway/mcp.md,
//! docs/backends.md.

use std::path::Path;
use std::time::Duration;

use sealwire_testkit::python::python;
use sealwire_testkit::{root, within};
use serde_json::{Value, json};

use super::mcp::{event_of, legacy, message, modern};
use super::wire::Wire;
use super::{FAST, Gateway};
use crate::backends::stage::{LONG, POLICY, Stage};
use crate::gateway::raw::Raw;

const ALL: &str = "may_ask = [\"elicitation\", \"sampling\", \"roots\"]\n";
const CAPABLE: &str = "io.modelcontextprotocol/clientCapabilities";

/// A server of this era and name.
fn server(python: &Path, era: &str, name: &str, more: &str) -> String {
    let server = root().join("crates/cli/tests/cli/backends/mcp/whole.py");
    let command = [&python.display().to_string(), "-B", &server.display().to_string(), era, name].map(str::to_owned);
    format!(
        "[[backend]]\nname = \"{name}\"\nkind = \"mcp\"\nresources = true\nprompts = true\ncommand = {}\n{more}",
        json!(command)
    )
}

/// A service with these servers, and its gateway; all tools are approved, and the gateway knows them.
async fn before(backends: &str, tool: &str) -> (Stage, Gateway) {
    let stage = Stage::new(POLICY, backends).await;
    stage.shell.run("tools approve --yes").ok();
    let gateway = Gateway::start(&stage.shell, &format!("{FAST}refresh_s = 1"), "").await;
    gateway.is_ready(200).await;
    let there = async {
        let mut wire = gateway.wire().await;
        while !wire.ask(modern(&json!(1), "tools/list", json!({}))).await.json().to_string().contains(tool) {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    within(LONG, there).await;
    (stage, gateway)
}

async fn end(stage: Stage, gateway: Gateway) {
    assert_eq!(gateway.stop().await.0, Some(0));
    stage.end().await;
}

/// A client of one revision, which has declared this.
struct Client {
    wire: Wire,
    /// The lines of its session; `None` in 2026-07-28.
    session: Option<String>,
    capabilities: Value,
}

impl Client {
    async fn new(gateway: &Gateway, version: &str, capabilities: Value) -> Self {
        let mut wire = gateway.wire().await;
        if version == "2026-07-28" {
            return Self { wire, session: None, capabilities };
        }
        let hello = json!({ "protocolVersion": version, "capabilities": capabilities, "clientInfo": { "name": "raw", "version": "1" } });
        let answer = wire.ask(legacy("", &message(&json!(0), "initialize", &hello))).await;
        let id = answer.header("mcp-session-id").expect("a session");
        let session = Some(format!("Mcp-Session-Id: {id}\r\nMCP-Protocol-Version: {version}\r\n"));
        Self { wire, session, capabilities }
    }

    fn request(&self, method: &str, mut params: Value) -> String {
        match &self.session {
            Some(session) => legacy(session, &message(&json!(1), method, &params)),
            None => {
                params["_meta"][CAPABLE] = self.capabilities.clone();
                modern(&json!(1), method, params)
            }
        }
    }

    /// The answer to a request before which nothing comes.
    async fn ask(&mut self, method: &str, params: Value) -> Value {
        let request = self.request(method, params);
        self.wire.ask(request).await.json()
    }

    /// Whether it is asked by a tool that asks once; then it answers, so that the call ends.
    async fn is_asked(&mut self, tool: &str) -> bool {
        let asked = self.call(tool, json!({})).await;
        let Some(requests) = asked["result"]["inputRequests"].as_object() else { return false };
        let (name, request) = requests.iter().next().unwrap();
        let (answer, _) = ["user_name", "greeting", "folders"]
            .map(reply)
            .into_iter()
            .find(|(_, method)| request["method"] == *method)
            .unwrap_or_else(|| panic!("{asked}"));
        let mut back = json!({ "name": tool, "arguments": {}, "requestState": asked["result"]["requestState"] });
        back["inputResponses"][name] = answer;
        let done = self.ask("tools/call", back).await;
        assert_eq!(done["result"]["resultType"], "complete", "{done}");
        true
    }

    async fn call(&mut self, tool: &str, arguments: Value) -> Value {
        self.ask("tools/call", json!({ "name": tool, "arguments": arguments })).await
    }
}

fn content(kind: &str) -> Value {
    match kind {
        "text" => json!({ "type": "text", "text": "seen", "annotations": { "audience": ["user"], "priority": 0.5 } }),
        "image" => {
            json!({ "type": "image", "data": "iVBORw0KGgo=", "mimeType": "image/png", "_meta": { "example.com/n": 1 } })
        }
        "audio" => json!({ "type": "audio", "data": "UklGRg==", "mimeType": "audio/wav" }),
        "resource" => {
            json!({ "type": "resource", "resource": { "uri": "test://r", "mimeType": "text/plain", "text": "inside" } })
        }
        "blob" => {
            json!({ "type": "resource", "resource": { "uri": "test://b", "mimeType": "image/png", "blob": "iVBORw0KGgo=" } })
        }
        _ => json!({ "type": "resource_link", "uri": "test://l", "name": "a link", "description": "elsewhere" }),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_tool_returns_arrives_unchanged_with_and_without_a_schema() {
    let Some(python) = python() else { return };
    let kinds = ["text", "image", "audio", "resource", "blob", "link"];
    let rows: Vec<Vec<&str>> = kinds.iter().map(|kind| vec![*kind]).chain([kinds.to_vec(), vec![]]).collect();
    for era in ["modern", "legacy"] {
        let (stage, gateway) = before(&server(python, era, "whole", ""), "show_typed").await;
        for version in ["2026-07-28", "2025-11-25", "2025-06-18", "2025-03-26"] {
            let mut client = Client::new(&gateway, version, json!({})).await;
            let structured = |value: Value| if version == "2025-03-26" { Value::Null } else { value };
            for (row, failed) in rows.iter().flat_map(|row| [(row, false), (row, true)]) {
                let expected: Vec<Value> = row.iter().map(|kind| content(kind)).collect();
                for (tool, typed) in [("show", Value::Null), ("show_typed", json!({ "result": row }))] {
                    let result = client.call(tool, json!({ "kind": row, "schema": failed })).await["result"].clone();
                    let of = format!("{era} {version} {tool} {row:?} {result}");
                    assert_eq!(result["content"], json!(expected), "{of}");
                    assert_eq!(result["structuredContent"], structured(typed), "{of}");
                    assert_eq!(result["isError"], if failed { json!(true) } else { Value::Null }, "{of}");
                    // The server's own, but not what only the gateway may say.
                    assert_eq!(result["_meta"]["example.com/of"], "server", "{of}");
                    assert_ne!(result["_meta"]["dev.sealwire/receipt"], "forged", "{of}");
                }
            }
            let list = client.call("show_list", json!({})).await["result"].clone();
            let expected = if version == "2026-07-28" { json!([1]) } else { structured(json!({ "result": [1] })) };
            assert_eq!(list["structuredContent"], expected, "{version} {list}");
            assert_eq!(list["content"], json!([{ "type": "text", "text": "[1]" }]));
            let listed = client.ask("tools/list", json!({})).await;
            let tools = listed["result"]["tools"].as_array().unwrap();
            let typed = tools.iter().find(|tool| tool["name"] == "show_typed").unwrap();
            let schema = json!({ "type": "object", "properties": { "result": {} }, "required": ["result"] });
            assert_eq!(typed["outputSchema"], structured(schema), "{version}");
        }
        // Who says nothing of MCP gets what the schema describes.
        let row = json!({ "kind": ["image"] });
        assert_eq!(stage.call("show_typed", row.clone()).await.unwrap(), json!({ "result": ["image"] }));
        assert_eq!(stage.call("show", row).await.unwrap(), json!({ "content": [content("image")] }));
        assert_eq!(stage.call("show_list", json!({})).await.unwrap(), json!([1]));
        end(stage, gateway).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn progress_of_a_server_begins_anywhere_and_grows() {
    let Some(python) = python() else { return };
    let rows = [
        (json!([0, 50, 100]), json!([0, 50, 100])),
        (json!([-2, -0.5, 0]), json!([-2, -0.5, 0])),
        (json!([0, 0, 0.25, 0.25]), json!([0, 0.25])),
        (json!([5, 1, 6]), json!([5, 6])),
    ];
    for era in ["modern", "legacy"] {
        let (stage, gateway) = before(&server(python, era, "whole", ""), "steps").await;
        for version in ["2026-07-28", "2025-11-25", "2025-03-26"] {
            let client = Client::new(&gateway, version, json!({})).await;
            for (at, expected) in &rows {
                let params = json!({ "name": "steps", "arguments": { "at": at }, "_meta": { "progressToken": "p" } });
                let mut wire = gateway.wire().await;
                wire.write(client.request("tools/call", params)).await;
                wire.head().await;
                let mut heard = Vec::new();
                while let Some(event) = wire.event().await {
                    let event = event_of(Some(event));
                    heard.extend(
                        (event["method"] == "notifications/progress").then(|| event["params"]["progress"].clone()),
                    );
                }
                // At most twenty a second: those between the first and the last may be left out.
                let expected = expected.as_array().unwrap();
                assert_eq!(
                    (heard.first(), heard.last()),
                    (expected.first(), expected.last()),
                    "{version} {at} {heard:?}"
                );
                assert!(heard.iter().all(|one| expected.contains(one)), "{version} {at} {heard:?}");
            }
        }
        let line =
            ["mcp", "--creds", &stage.shell.path("planner.creds.json").display().to_string(), "--service", "tools"]
                .map(str::to_owned);
        let mut raw = Raw::start(&line, Some("2025-11-25")).await;
        for (at, expected) in &rows {
            let params = json!({ "name": "steps", "arguments": { "at": at }, "_meta": { "progressToken": 1 } });
            raw.ask("tools/call", params).await;
            let first = raw.note("notifications/progress").await;
            assert_eq!(first["params"]["progress"], expected[0], "{at}");
            raw.forget();
        }
        raw.end().await;
        end(stage, gateway).await;
    }
}

/// What each tool of the server wants to know, round by round.
const WANTED: [(&str, &[&[&str]]); 5] = [
    ("ask_name", &[&["user_name"]]),
    ("ask_model", &[&["greeting"]]),
    ("ask_folders", &[&["folders"]]),
    ("ask_all", &[&["user_name", "greeting", "folders"]]),
    ("ask_twice", &[&["user_name"], &["greeting"]]),
];

/// What a client answers to a question of this name, and its method.
fn reply(key: &str) -> (Value, &'static str) {
    match key {
        "user_name" => (json!({ "action": "accept", "content": { "name": "Ann" } }), "elicitation/create"),
        "greeting" => {
            let content = json!({ "type": "text", "text": "Yes." });
            (
                json!({ "role": "assistant", "content": content, "model": "m", "stopReason": "endTurn" }),
                "sampling/createMessage",
            )
        }
        _ => (json!({ "roots": [{ "uri": "file:///work", "name": "work" }] }), "roots/list"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn questions_of_a_server_reach_the_client_under_their_own_names() {
    let Some(python) = python() else { return };
    let all = json!({ "elicitation": {}, "sampling": {}, "roots": {} });
    for era in ["modern", "legacy"] {
        let (stage, gateway) = before(&server(python, era, "whole", ALL), "ask_all").await;
        let mut client = Client::new(&gateway, "2026-07-28", all.clone()).await;
        for (tool, rounds) in WANTED {
            let given = |text: &Value| serde_json::from_str::<Value>(text.as_str().unwrap()).unwrap();
            let mut asked = client.call(tool, json!({})).await;
            let mut answers = json!({});
            if era == "modern" {
                for keys in rounds {
                    let requests =
                        asked["result"]["inputRequests"].as_object().unwrap_or_else(|| panic!("{tool} {asked}"));
                    assert!(
                        requests.keys().all(|key| keys.contains(&key.as_str())) && requests.len() == keys.len(),
                        "{asked}"
                    );
                    for key in *keys {
                        assert_eq!(requests[*key]["method"], reply(key).1, "{asked}");
                        assert_eq!(requests[*key]["params"].get("_meta"), None, "{asked}");
                        answers[*key] = reply(key).0;
                    }
                    let state = asked["result"]["requestState"].clone();
                    let back =
                        json!({ "name": tool, "arguments": {}, "inputResponses": answers, "requestState": state });
                    asked = client.ask("tools/call", back).await;
                }
            } else {
                // Each is a request of the server's own, without a name.
                for key in rounds.iter().copied().flatten() {
                    assert_eq!(asked["result"]["inputRequests"]["question"]["method"], reply(key).1, "{asked}");
                    let state = asked["result"]["requestState"].clone();
                    let answer = json!({ "question": reply(key).0 });
                    answers[*key] = reply(key).0;
                    let back =
                        json!({ "name": tool, "arguments": {}, "inputResponses": answer, "requestState": state });
                    asked = client.ask("tools/call", back).await;
                }
            }
            let text = &asked["result"]["content"][0]["text"];
            let last: Vec<&str> = if era == "modern" { rounds.last().unwrap().to_vec() } else { rounds.concat() };
            for key in last {
                assert_eq!(given(text)[key], answers[key], "{tool} {asked}");
            }
        }

        // Revisions with a handshake are asked by requests on the stream.
        let mut old = Client::new(&gateway, "2025-11-25", all.clone()).await;
        for (tool, rounds) in WANTED {
            let mut calling = gateway.wire().await;
            calling.write(old.request("tools/call", json!({ "name": tool, "arguments": {} }))).await;
            calling.head().await;
            let mut left: Vec<&str> = rounds.concat();
            while !left.is_empty() {
                let question = event_of(calling.event().await);
                let key = left
                    .iter()
                    .position(|key| reply(key).1 == question["method"])
                    .unwrap_or_else(|| panic!("{question}"));
                let answer = json!({ "jsonrpc": "2.0", "id": question["id"], "result": reply(left.remove(key)).0 });
                let session = old.session.clone().unwrap();
                assert_eq!(old.wire.ask(legacy(&session, &answer.to_string())).await.status, 202);
            }
            let done = event_of(calling.event().await);
            assert!(done["result"]["content"][0]["text"].as_str().unwrap().contains(':'), "{tool} {done}");
        }

        // Nobody is asked for what it has not declared, and a server learns what its caller has.
        for (capabilities, known) in [
            (json!({}), json!({})),
            (json!({ "sampling": {} }), json!({ "sampling": {} })),
            (json!({ "sampling": { "tools": {} }, "roots": {} }), json!({ "sampling": { "tools": {} }, "roots": {} })),
            (json!({ "elicitation": {} }), json!({ "elicitation": { "form": {} } })),
        ] {
            let mut client = Client::new(&gateway, "2026-07-28", capabilities.clone()).await;
            let said = client.call("capable", json!({})).await;
            let said: Value = serde_json::from_str(said["result"]["content"][0]["text"].as_str().unwrap()).unwrap();
            let session = json!({ "elicitation": { "form": {} }, "sampling": { "tools": {} }, "roots": {} });
            assert_eq!(said, if era == "modern" { known } else { session }, "{capabilities}");
            for (tool, capability) in [("ask_model", "sampling"), ("ask_folders", "roots"), ("ask_name", "elicitation")]
            {
                let is_asked = client.is_asked(tool).await;
                assert_eq!(is_asked, capabilities.get(capability).is_some(), "{capabilities} {tool}");
            }
        }
        end(stage, gateway).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_asks_for_models_and_folders_only_where_it_may() {
    let Some(python) = python() else { return };
    let all = json!({ "elicitation": {}, "sampling": { "tools": {} }, "roots": {} });
    for (may_ask, capabilities) in [
        ("", json!({ "elicitation": { "form": {} } })),
        ("may_ask = []\n", json!({})),
        ("may_ask = [\"sampling\"]\n", json!({ "sampling": { "tools": {} } })),
        ("may_ask = [\"roots\", \"elicitation\"]\n", json!({ "elicitation": { "form": {} }, "roots": {} })),
    ] {
        for era in ["modern", "legacy"] {
            let (stage, gateway) = before(&server(python, era, "whole", may_ask), "capable").await;
            let mut client = Client::new(&gateway, "2026-07-28", all.clone()).await;
            let said = client.call("capable", json!({})).await;
            let said: Value = serde_json::from_str(said["result"]["content"][0]["text"].as_str().unwrap()).unwrap();
            assert_eq!(said, capabilities, "{may_ask}");
            // A server that asks all the same reaches nobody.
            for (tool, capability) in [("ask_model", "sampling"), ("ask_folders", "roots"), ("ask_name", "elicitation")]
            {
                let is_asked = client.is_asked(tool).await;
                assert_eq!(is_asked, capabilities.get(capability).is_some(), "{may_ask} {era} {tool}");
            }
            end(stage, gateway).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_may_come_first_and_what_is_missing_is_asked_again() {
    let Some(python) = python() else { return };
    let (stage, gateway) = before(&server(python, "modern", "whole", ALL), "ask_all").await;
    let all = json!({ "elicitation": {}, "sampling": {}, "roots": {} });
    let mut client = Client::new(&gateway, "2026-07-28", all).await;
    let call = |tool: &str, responses: Value, state: Option<&Value>| {
        let mut params = json!({ "name": tool, "arguments": {}, "inputResponses": responses });
        if let Some(state) = state {
            params["requestState"] = state.clone();
        }
        params
    };
    let asks = |answer: &Value| -> Vec<String> {
        answer["result"]["inputRequests"].as_object().map(|all| all.keys().cloned().collect()).unwrap_or_default()
    };
    // Without a state: some clients, and servers, keep none.
    let extra = json!({ "user_name": reply("user_name").0, "more": { "action": "accept" } });
    let done = client.ask("tools/call", call("ask_name", extra, None)).await;
    assert!(done["result"]["content"][0]["text"].as_str().unwrap().contains("Ann"), "{done}");
    for wrong in [json!({ "wrong": reply("user_name").0 }), json!({ "user_name": 12345 }), Value::Null] {
        let asked = client.ask("tools/call", call("ask_name", wrong.clone(), None)).await;
        assert_eq!(asks(&asked), ["user_name"], "{wrong} {asked}");
    }
    // With one: what is there counts, and the rest is asked again under a new state.
    let first = client.call("ask_all", json!({})).await;
    assert_eq!(asks(&first), ["folders", "greeting", "user_name"], "{first}");
    let some = json!({ "user_name": reply("user_name").0, "greeting": 7 });
    let second = client.ask("tools/call", call("ask_all", some, Some(&first["result"]["requestState"]))).await;
    assert_eq!(asks(&second), ["folders", "greeting"], "{second}");
    assert_ne!(first["result"]["requestState"], second["result"]["requestState"]);
    let rest = json!({ "greeting": reply("greeting").0, "folders": reply("folders").0 });
    // A client that has forgotten what it can do may try again.
    let mut poor = Client::new(&gateway, "2026-07-28", json!({ "elicitation": {}, "roots": {} })).await;
    let state = Some(&second["result"]["requestState"]);
    let refused = poor.ask("tools/call", call("ask_all", rest.clone(), state)).await;
    assert!(refused["error"]["message"].as_str().unwrap().contains("`sampling`"), "{refused}");
    let done = client.ask("tools/call", call("ask_all", rest.clone(), state)).await;
    assert!(done["result"]["content"][0]["text"].as_str().unwrap().contains("Ann"), "{done}");
    let used = client.ask("tools/call", call("ask_all", rest, state)).await;
    assert_eq!(used["error"]["code"], -32602, "{used}");

    // Prompts and resources ask, too; only the same request resumes them.
    for (method, params, other, key) in [
        ("prompts/get", json!({ "name": "asks" }), json!({ "name": "topic" }), "user_name"),
        ("resources/read", json!({ "uri": "test://asks" }), json!({ "uri": "test://whole/1" }), "folders"),
    ] {
        let asked = client.ask(method, params.clone()).await;
        assert_eq!(asks(&asked), [key], "{asked}");
        let more = json!({ "inputResponses": { key: reply(key).0 }, "requestState": asked["result"]["requestState"] });
        let with = |mut params: Value| {
            params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            params
        };
        assert_eq!(client.ask(method, with(other)).await["error"]["code"], -32602);
        let done = client.ask(method, with(params)).await;
        assert!(done["result"].to_string().contains(key), "{done}");
    }
    end(stage, gateway).await;
}

/// Tools: see above.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_server_says_in_a_result_what_only_the_gateway_may_say() {
    let Some(python) = python() else { return };
    for era in ["modern", "legacy"] {
        let (stage, gateway) = before(&server(python, era, "whole", ""), "show_typed").await;
        for version in ["2026-07-28", "2025-11-25"] {
            let mut client = Client::new(&gateway, version, json!({})).await;
            let about =
                json!({ "ref": { "type": "ref/prompt", "name": "topic" }, "argument": { "name": "a", "value": "x" } });
            for (method, params) in [
                ("resources/list", json!({})),
                ("resources/templates/list", json!({})),
                ("resources/read", json!({ "uri": "test://whole/1" })),
                ("prompts/get", json!({ "name": "topic" })),
                ("completion/complete", about),
            ] {
                let said = client.ask(method, params).await;
                let meta =
                    said["result"]["_meta"].as_object().unwrap_or_else(|| panic!("{era} {version} {method} {said}"));
                assert_eq!(meta["example.com/of"], "server", "{era} {version} {method}");
                assert!(meta.keys().all(|name| !name.starts_with("dev.sealwire/")), "{era} {version} {method} {said}");
            }
        }
        end(stage, gateway).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_of_several_servers_are_one_page() {
    let Some(python) = python() else { return };
    // One without entries comes first, one lists by single entries and empty pages.
    let backends = [
        server(python, "modern", "empty", "prefix = \"a\"\n"),
        server(python, "legacy", "paged", "prefix = \"b/c\"\n"),
        server(python, "modern", "whole", ""),
    ];
    let (stage, gateway) = before(&backends.concat(), "show_typed").await;
    for version in ["2026-07-28", "2025-11-25"] {
        let mut client = Client::new(&gateway, version, json!({})).await;
        let names = |answer: &Value, list: &str, member: &str| -> Vec<String> {
            assert_eq!(answer["result"].get("nextCursor"), None, "{answer}");
            let entries = answer["result"][list].as_array().unwrap_or_else(|| panic!("{answer}"));
            entries.iter().map(|entry| entry[member].as_str().unwrap().to_owned()).collect()
        };
        let uris =
            ["paged/0", "paged/1", "paged/2", "whole/0", "whole/1", "whole/2"].map(|uri| format!("test://{uri}"));
        let listed = client.ask("resources/list", json!({})).await;
        assert_eq!(names(&listed, "resources", "uri"), uris);
        let listed = client.ask("resources/templates/list", json!({})).await;
        assert_eq!(names(&listed, "resourceTemplates", "name"), ["paged template", "whole template"]);
        let prompts =
            ["tools__b_c__topic", "tools__b_c__asks", "tools__b_c__a__b", "tools__topic", "tools__asks", "tools__a__b"];
        let listed = client.ask("prompts/list", json!({})).await;
        assert_eq!(names(&listed, "prompts", "name"), prompts);

        // Each is found under the name in the list, and no other.
        for (name, text) in [
            ("tools__b_c__topic", Some("paged: topic")),
            ("tools__b_c__a__b", Some("paged: a__b")),
            ("tools__topic", Some("whole: topic")),
            ("tools__a__b", Some("whole: a__b")),
            ("tools__a__topic", None),
            ("topic", None),
            ("tools___topic", None),
            ("tools__none", None),
        ] {
            let got = client.ask("prompts/get", json!({ "name": name })).await;
            let found = got["result"]["messages"][0]["content"]["text"].as_str();
            assert_eq!(found, text, "{name} {got}");
            assert!(text.is_some() || got["error"]["code"] == -32602, "{name} {got}");
        }
        for (uri, of) in [("test://paged/1", "paged"), ("test://whole/2", "whole")] {
            let read = client.ask("resources/read", json!({ "uri": uri })).await;
            assert_eq!(read["result"]["contents"][0]["text"], of, "{read}");
        }
        let none = client.ask("resources/read", json!({ "uri": "test://none" })).await;
        assert_eq!(none["error"]["code"], if version == "2026-07-28" { -32602 } else { -32002 }, "{none}");

        // Completions, by prompt and by template.
        for (about, expected) in [
            (json!({ "type": "ref/prompt", "name": "tools__b_c__topic" }), json!(["paged x1", "paged x2"])),
            (json!({ "type": "ref/prompt", "name": "tools__topic" }), json!(["whole x1", "whole x2"])),
            (json!({ "type": "ref/prompt", "name": "tools__a__b" }), json!([])),
            (json!({ "type": "ref/resource", "uri": "test://{id}" }), json!(["paged x1", "paged x2"])),
            (json!({ "type": "ref/resource", "uri": "test://none" }), json!([])),
        ] {
            let argument = json!({ "name": "id", "value": "x" });
            let params = json!({ "ref": about, "argument": argument, "context": { "arguments": { "y": "z" } } });
            let completed = client.ask("completion/complete", params).await;
            assert_eq!(completed["result"]["completion"]["values"], expected, "{about} {completed}");
        }
        for wrong in [
            json!({}),
            json!({ "ref": { "type": "ref/prompt", "name": "x" } }),
            json!({ "ref": { "type": "x" }, "argument": {} }),
        ] {
            assert_eq!(client.ask("completion/complete", wrong.clone()).await["error"]["code"], -32602, "{wrong}");
        }
        for cursor in ["", "3:", "x:", "9:x", "1"] {
            let refused = client.ask("resources/list", json!({ "cursor": cursor })).await;
            assert_eq!(refused["error"]["code"], -32602, "{cursor} {refused}");
        }
    }
    end(stage, gateway).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_that_never_ends_is_cut_and_goes_on() {
    let Some(python) = python() else { return };
    let backends = [server(python, "modern", "endless", "prefix = \"a\"\n"), server(python, "modern", "whole", "")];
    let (stage, gateway) = before(&backends.concat(), "show_typed").await;
    let mut client = Client::new(&gateway, "2026-07-28", json!({})).await;
    let first = client.ask("resources/list", json!({})).await;
    assert_eq!(
        (&first["result"]["resources"], &first["result"]["nextCursor"]),
        (&json!([]), &json!("0:64")),
        "{first}"
    );
    let next = client.ask("resources/list", json!({ "cursor": "0:64" })).await;
    assert_eq!(next["result"]["nextCursor"], "0:128", "{next}");
    let last = client.ask("resources/list", json!({ "cursor": "1:" })).await;
    assert_eq!(last["result"]["resources"].as_array().unwrap().len(), 3, "{last}");
    end(stage, gateway).await;

    // Of a server that takes two seconds for each entry, those of some seconds.
    let (stage, gateway) = before(&server(python, "modern", "slow", ""), "show_typed").await;
    let mut client = Client::new(&gateway, "2026-07-28", json!({})).await;
    let first = client.ask("resources/list", json!({})).await;
    let found = first["result"]["resources"].as_array().unwrap().len();
    assert!((1..=3).contains(&found), "{first}");
    assert_eq!(first["result"]["nextCursor"], format!("0:{found}"), "{first}");
    end(stage, gateway).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_13_arguments_that_a_tool_wants_in_the_head_are_checked() {
    let Some(python) = python() else { return };
    let (stage, gateway) = before(&server(python, "modern", "whole", ""), "headed").await;
    let mut wire = gateway.wire().await;
    let listed = wire.ask(modern(&json!(1), "tools/list", json!({}))).await.json();
    let tools = listed["result"]["tools"].as_array().unwrap();
    let headed = tools.iter().find(|tool| tool["name"] == "headed").unwrap();
    assert_eq!(headed["inputSchema"]["properties"]["region"]["x-mcp-header"], "Region", "{headed}");
    let call = |arguments: &Value, lines: &str| {
        let params = json!({ "name": "headed", "arguments": arguments });
        modern(&json!(1), "tools/call", params).replace("Host: localhost\r\n", &format!("Host: localhost\r\n{lines}"))
    };
    for (arguments, lines, passes) in [
        (json!({}), "", true),
        (json!({ "region": "eu" }), "Mcp-Param-Region: eu\r\n", true),
        (json!({ "region": "eu" }), "mcp-param-region:   eu  \r\n", true),
        (json!({ "region": "Hello" }), "Mcp-Param-Region: =?base64?SGVsbG8=?=\r\n", true),
        (json!({ "region": "eu", "n": 3 }), "Mcp-Param-Region: eu\r\nMcp-Param-N: 3\r\n", true),
        (json!({ "region": "eu" }), "", false),
        (json!({ "region": "eu" }), "Mcp-Param-Region: us\r\n", false),
        (json!({ "region": "eu" }), "Mcp-Param-Region: eu\r\nMcp-Param-Region: eu\r\n", false),
        (json!({ "region": "Hello" }), "Mcp-Param-Region: =?base64?SGVsbG8?=\r\n", false),
        (json!({ "region": "eu", "n": 3 }), "Mcp-Param-Region: eu\r\n", false),
        (json!({}), "Mcp-Param-Region: eu\r\n", false),
    ] {
        let answer = wire.ask(call(&arguments, lines)).await;
        if passes {
            assert_eq!(
                answer.json()["result"]["content"][0]["text"].as_str().unwrap().len(),
                python_len(&arguments),
                "{answer:?}"
            );
        } else {
            answer.is(400, -32020);
        }
    }
    // Revisions with a handshake have no such fields.
    let params = json!({ "name": "headed", "arguments": { "region": "eu" } });
    let old = wire.ask(legacy("", &message(&json!(1), "tools/call", &params))).await.json();
    assert!(old["result"]["content"][0]["text"].as_str().unwrap().contains("eu"), "{old}");
    end(stage, gateway).await;
}

/// The length of what Python writes for a value: with a space after each `:` and `,`.
fn python_len(value: &Value) -> usize {
    let members = value.as_object().unwrap().len();
    value.to_string().len() + members + members.saturating_sub(1)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_of_a_server_keep_code_message_and_data() {
    let Some(python) = python() else { return };
    let elicitation = json!({ "mode": "url", "elicitationId": "1", "url": "https://example.com/", "message": "Go." });
    let rows = [
        ("own", 7, json!({ "day": "Monday" })),
        ("missing", -32002, json!({ "uri": "test://gone" })),
        ("capability", -32021, json!({ "requiredCapabilities": { "sampling": {} } })),
        ("url", -32042, json!({ "elicitations": [elicitation] })),
        ("far", -32099, json!([1])),
        ("params", -32602, json!({ "member": "limit" })),
        ("bare", -32602, Value::Null),
        ("lost", -32002, Value::Null),
    ];
    for era in ["modern", "legacy"] {
        let (stage, gateway) = before(&server(python, era, "whole", ""), "show_typed").await;
        for version in ["2026-07-28", "2025-11-25", "2025-03-26"] {
            let mut client = Client::new(&gateway, version, json!({})).await;
            for (kind, code, data) in &rows {
                let request = client.request("tools/call", json!({ "name": "error", "arguments": { "kind": kind } }));
                let answer = client.wire.ask(request).await;
                let said = answer.json()["error"].clone();
                assert_eq!(
                    (&said["code"], &said["message"], &said["data"]),
                    (&json!(code), &json!(kind), data),
                    "{era} {version}"
                );
                // Streamable HTTP 2026-07-28: of these codes, one has a status of its own.
                let is_bad = version == "2026-07-28" && *code == -32021;
                assert_eq!(answer.status, if is_bad { 400 } else { 200 }, "{version} {kind}");
            }
            // What is wrong with the arguments is for the model.
            let wrong = client.call("error", json!({ "kind": 7 })).await;
            assert_eq!(wrong["result"]["isError"], true, "{wrong}");
            let unknown = client.ask("prompts/get", json!({ "name": "none" })).await;
            assert_eq!(
                (&unknown["error"]["code"], &unknown["error"]["message"]),
                (&json!(-32602), &json!("Unknown prompt"))
            );

            // The other requests that a server answers, in its words as well.
            let about = json!({ "type": "ref/prompt", "name": "topic" });
            for (kind, code, data) in &rows {
                let error = json!({ "code": code, "message": kind, "data": data });
                let mut error = if data.is_null() { json!({ "code": code, "message": kind }) } else { error };
                let get = json!({ "name": "topic", "arguments": { "kind": kind } });
                let complete = json!({ "ref": about, "argument": { "name": "error", "value": kind } });
                for (method, params) in [("prompts/get", get), ("completion/complete", complete)] {
                    let answer = client.ask(method, params).await;
                    assert_eq!(answer["error"], error, "{era} {version} {method} {kind}");
                }
                let uri = json!({ "uri": format!("test://error/{kind}") });
                if client.session.is_some() && era == "legacy" {
                    let answer = client.ask("resources/subscribe", uri.clone()).await;
                    assert_eq!(answer["error"], error, "{era} {version} subscribe {kind}");
                }
                if *code == -32002 && client.session.is_none() {
                    // The code for a resource that does not exist has changed.
                    error["code"] = json!(-32602);
                }
                let answer = client.ask("resources/read", uri).await;
                assert_eq!(answer["error"], error, "{era} {version} read {kind}");
            }
            let uri = "test://error/absent";
            let error = json!({
                "code": if client.session.is_some() { -32002 } else { -32602 },
                "message": "whole has none",
                "data": { "uri": uri },
            });
            let answer = client.ask("resources/read", json!({ "uri": uri })).await;
            assert_eq!(answer["error"], error, "{era} {version}");
            if client.session.is_some() {
                let answer = client.ask("resources/subscribe", json!({ "uri": uri })).await;
                let error = match era {
                    "legacy" => error,
                    _ => json!({ "code": -32601, "message": "Method not found" }),
                };
                assert_eq!(answer["error"], error, "{era} {version}");
            }
        }
        end(stage, gateway).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_of_several_servers_are_the_one_that_says_most() {
    let Some(python) = python() else { return };
    let backends = [
        server(python, "modern", "empty", "prefix = \"a\"\n"),
        server(python, "legacy", "paged", "prefix = \"b\"\n"),
        server(python, "modern", "whole", ""),
    ];
    let (stage, gateway) = before(&backends.concat(), "show_typed").await;
    for version in ["2026-07-28", "2025-11-25"] {
        let mut client = Client::new(&gateway, version, json!({})).await;
        let absent = if client.session.is_some() { -32002 } else { -32602 };
        for (uri, code, message) in [
            // The others do not have it.
            ("test://whole/error/params", -32602, "params"),
            ("test://whole/error/bare", -32602, "bare"),
            ("test://paged/error/own", 7, "own"),
            ("test://paged/error/missing", absent, "Resource not found"),
            ("test://none", absent, "Resource not found"),
            // All of them say the same.
            ("test://error/own", 7, "own"),
            ("test://error/absent", absent, "empty has none"),
        ] {
            let answer = client.ask("resources/read", json!({ "uri": uri })).await;
            let error = &answer["error"];
            assert_eq!((&error["code"], &error["message"]), (&json!(code), &json!(message)), "{version} {uri}");
        }
        // Of a completion, where the others have nothing to say, or something.
        let some = json!(["paged own1", "paged own2"]);
        for (uri, name, kind, expected) in [
            ("test://none", "empty error", "own", Err(7)),
            ("test://none", "paged error", "own", Err(7)),
            ("test://none", "whole error", "far", Err(-32099)),
            ("test://none", "paged error", "params", Ok(json!([]))),
            ("test://none", "paged error", "unknown", Ok(json!([]))),
            ("test://none", "whole error", "lost", Ok(json!([]))),
            ("test://{id}", "empty error", "own", Ok(some)),
            ("test://{id}", "id", "own", Ok(json!(["paged own1", "paged own2"]))),
            ("test://none", "error", "unknown", Err(-32601)),
        ] {
            let params =
                json!({ "ref": { "type": "ref/resource", "uri": uri }, "argument": { "name": name, "value": kind } });
            let answer = client.ask("completion/complete", params).await;
            let found = match answer["error"]["code"].as_i64() {
                Some(code) => Err(code),
                None => Ok(answer["result"]["completion"]["values"].clone()),
            };
            assert_eq!(found, expected, "{version} {uri} {name} {kind} {answer}");
        }
    }
    end(stage, gateway).await;
}
