//! A client that writes and reads lines, and checks every one against the published schema.

use std::collections::BTreeMap;
use std::process::Stdio;

use jsonschema::Validator;
use sealwire_testkit::{root, within};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::backends::stage::LONG;
use crate::process::{SIGTERM, send};

pub(crate) struct Raw {
    pub(super) child: Child,
    stdin: Option<ChildStdin>,
    stdout: Option<Lines<BufReader<ChildStdout>>>,
    /// `None`: 2026-07-28.
    legacy: Option<String>,
    ids: u64,
    /// Whether people can be asked.
    pub(super) forms: bool,
    pub(super) discovered: Value,
    notes: Vec<Value>,
    schemas: Schemas,
}

/// The published schemas.
#[derive(Default)]
pub(crate) struct Schemas(BTreeMap<(&'static str, String), Validator>);

impl Raw {
    pub(crate) fn spawn(gateway: &[String]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sealwire"));
        command.args(gateway).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().unwrap();
        let (stdin, stdout) = (child.stdin.take(), Some(BufReader::new(child.stdout.take().unwrap()).lines()));
        let (discovered, notes, schemas) = (Value::Null, Vec::new(), Schemas::default());
        Self { child, stdin, stdout, legacy: None, ids: 0, forms: false, discovered, notes, schemas }
    }

    /// With this revision, one of those with a handshake, or without a handshake.
    pub(crate) async fn start(gateway: &[String], legacy: Option<&str>) -> Self {
        let mut raw = Self::spawn(gateway);
        raw.legacy = legacy.map(ToOwned::to_owned);
        let Some(version) = legacy else {
            let discovered = raw.ask("server/discover", json!({})).await;
            raw.discovered = discovered["result"].clone();
            return raw;
        };
        let hello =
            json!({ "protocolVersion": version, "capabilities": {}, "clientInfo": { "name": "raw", "version": "1" } });
        let answer = raw.ask("initialize", hello).await;
        assert_eq!(answer["result"]["protocolVersion"], version, "{answer}");
        raw.write(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#).await;
        raw
    }

    pub(crate) fn request(&self, id: Value, method: &str, mut params: Value) -> String {
        if self.legacy.is_none() {
            let capabilities = if self.forms { json!({ "elicitation": {} }) } else { json!({}) };
            params["_meta"] = json!({
                "io.modelcontextprotocol/protocolVersion": "2026-07-28",
                "io.modelcontextprotocol/clientCapabilities": capabilities,
            });
        }
        json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }).to_string()
    }

    pub(crate) async fn write(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().unwrap();
        // A gateway that has ended reads no more.
        drop(stdin.write_all(format!("{line}\n").as_bytes()).await);
    }

    /// The next line that is not a notification.
    pub(crate) async fn next(&mut self) -> Value {
        loop {
            let line =
                within(LONG, self.stdout.as_mut().unwrap().next_line()).await.unwrap().expect("the gateway has ended");
            let message: Value = serde_json::from_str(&line).unwrap();
            if message.get("id").is_none() && message.get("method").is_some() {
                self.fits("ServerNotification", &message);
                self.notes.push(message);
                continue;
            }
            if message.get("error").is_some() {
                self.fits("JSONRPCErrorResponse", &message);
            }
            return message;
        }
    }

    pub(crate) async fn ask(&mut self, method: &str, params: Value) -> Value {
        self.ids += 1;
        let line = self.request(json!(self.ids), method, params);
        self.write(&line).await;
        let answer = self.next().await;
        assert_eq!(answer["id"], json!(self.ids), "{answer}");
        if let Some(result) = answer.get("result") {
            self.fits("JSONRPCResultResponse", &answer);
            self.fits(result_of(method, result).unwrap_or_else(|| panic!("{method}: {result}")), result);
        }
        answer
    }

    pub(crate) async fn call(&mut self, tool: &str, arguments: Value) -> Value {
        self.ask("tools/call", json!({ "name": tool, "arguments": arguments })).await
    }

    pub(crate) async fn tools(&mut self) -> Vec<String> {
        let listed = self.ask("tools/list", json!({})).await;
        let tools = listed["result"]["tools"].as_array().unwrap_or_else(|| panic!("{listed}"));
        tools.iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
    }

    /// Subscribes to changes of the list.
    pub(crate) async fn listen(&mut self) {
        let line = self.request(
            json!("listening"),
            "subscriptions/listen",
            json!({ "notifications": { "toolsListChanged": true } }),
        );
        self.write(&line).await;
        let granted = self.note("notifications/subscriptions/acknowledged").await;
        assert_eq!(granted["params"]["notifications"], json!({ "toolsListChanged": true }));
    }

    /// Waits for a notification.
    pub(crate) async fn note(&mut self, method: &str) -> Value {
        loop {
            if let Some(at) = self.notes.iter().position(|note| note["method"] == method) {
                return self.notes.remove(at);
            }
            let line = self.stdout.as_mut().unwrap().next_line().await.unwrap().expect("the gateway has ended");
            let message: Value = serde_json::from_str(&line).unwrap();
            assert!(message.get("id").is_none(), "{message}");
            self.fits("ServerNotification", &message);
            self.notes.push(message);
        }
    }

    /// Forgets the notifications that came so far.
    pub(crate) fn forget(&mut self) {
        self.notes.clear();
    }

    /// Closes its input, and waits until it has ended cleanly.
    pub(crate) async fn end(mut self) {
        drop(self.stdin.take());
        let status = within(LONG, self.child.wait()).await.unwrap();
        assert!(status.success(), "{status}");
    }

    /// Closes its input.
    pub(crate) fn close(&mut self) {
        drop(self.stdin.take());
    }

    /// Reads nothing any more.
    pub(crate) fn deafen(&mut self) {
        drop(self.stdout.take());
    }

    /// Closes its input, and returns everything that it still prints until it has ended.
    pub(crate) async fn rest(mut self) -> std::process::Output {
        drop(self.stdin.take());
        self.child.stdout = self.stdout.take().map(|lines| lines.into_inner().into_inner());
        within(LONG, self.child.wait_with_output()).await.unwrap()
    }

    /// Stops it by a signal, and waits until it has ended cleanly.
    pub(crate) async fn stop(mut self) {
        send(SIGTERM, self.child.id().unwrap());
        let status = within(LONG, self.child.wait()).await.unwrap();
        assert!(status.success(), "{status}");
    }

    fn fits(&mut self, kind: &str, value: &Value) {
        self.schemas.fit(self.legacy.is_some(), kind, value);
    }
}

impl Schemas {
    #[track_caller]
    pub(crate) fn fit(&mut self, legacy: bool, kind: &str, value: &Value) {
        // For the messages sent here, the published schemas of the older ones are no less strict.
        let revision = if legacy { "2025-11-25" } else { "2026-07-28" };
        let validator = self.0.entry((revision, kind.to_owned())).or_insert_with(|| {
            let file = if !legacy && OF_TASKS.contains(&kind) { "tasks" } else { revision };
            let path = root().join(format!("crates/cli/tests/cli/backends/mcp/{file}.json"));
            let mut schema: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
            schema["$ref"] = json!(format!("#/$defs/{kind}"));
            jsonschema::options().offline().build(&schema).unwrap()
        });
        let wrong: Vec<String> = validator.iter_errors(value).map(|error| error.to_string()).collect();
        assert!(wrong.is_empty(), "{kind}: {value}\n{wrong:?}");
    }
}

/// What the schema of the extension has, in 2026-07-28.
const OF_TASKS: [&str; 4] = ["CreateTaskResult", "GetTaskResult", "CancelTaskResult", "UpdateTaskResult"];

/// The schema's name for the result of a request.
pub(crate) fn result_of(method: &str, result: &Value) -> Option<&'static str> {
    Some(match method {
        "initialize" => "InitializeResult",
        "server/discover" => "DiscoverResult",
        "tools/list" => "ListToolsResult",
        "tools/call" | "prompts/get" | "resources/read" if result["resultType"] == "input_required" => {
            "InputRequiredResult"
        }
        "tools/call" if result["resultType"] == "task" || result.get("task").is_some() => "CreateTaskResult",
        "tools/call" | "tasks/result" => "CallToolResult",
        "tasks/get" => "GetTaskResult",
        "tasks/cancel" => "CancelTaskResult",
        "tasks/update" => "UpdateTaskResult",
        "resources/list" => "ListResourcesResult",
        "resources/read" => "ReadResourceResult",
        "prompts/list" => "ListPromptsResult",
        "prompts/get" => "GetPromptResult",
        "resources/templates/list" => "ListResourceTemplatesResult",
        "completion/complete" => "CompleteResult",
        "subscriptions/listen" => "SubscriptionsListenResult",
        "ping" | "logging/setLevel" | "resources/subscribe" | "resources/unsubscribe" => "EmptyResult",
        _ => return None,
    })
}
