//! Kind `mcp`: servers of revisions with and without a handshake; approvals of what they offer.

mod forms;
mod greedy;
mod http;
mod known;
mod lists;

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt as _;
use sealwire::internal::rpc::Request;
use sealwire::{ClientError, RpcError};
use sealwire_testkit::python::python;
use sealwire_testkit::{root, within};
use serde_json::{Value, json};

use super::stage::{LONG, POLICY, Stage, code};
use crate::process::says;

/// A server of this era of the protocol; its tool `name` is the method `t/name`.
fn backend(python: &Path, era: &str) -> String {
    let server = root().join("crates/cli/tests/cli/backends/mcp/server.py");
    format!(
        "[[backend]]\nname = \"server\"\nkind = \"mcp\"\nprefix = \"t\"\nsend_caller = true\nresources = true\nprompts = true\n\
         command = [\"{}\", \"-B\", \"{}\", \"{era}\", \"server.log\"]\n\
         [[backend.method]]\nname = \"later\"\ntool = \"später\"\n",
        python.display(),
        server.display()
    )
}

/// Calls until the tool is approved, which takes a moment.
async fn approved(stage: &Stage, method: &str, params: Value) -> Value {
    let approved = async {
        loop {
            match stage.call(method, params.clone()).await {
                Ok(result) => break result,
                Err(error) => assert_eq!(code(&error), Some(-32004), "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    within(LONG, approved).await
}

fn text(lines: &[&str]) -> Value {
    json!({ "content": lines.iter().map(|line| json!({ "type": "text", "text": line })).collect::<Vec<_>>() })
}

#[track_caller]
fn refused(outcome: Result<Value, ClientError>) -> (i32, String, Value) {
    let error = outcome.unwrap_err();
    let error = error.remote().unwrap_or_else(|| panic!("{error}"));
    let data = error.data().map(|data| serde_json::from_str(data.get()).unwrap()).unwrap_or_default();
    (error.code(), error.message().to_owned(), data)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_of_2026_07_28_is_behind_the_bus() {
    is_behind_the_bus("modern").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_of_2025_11_25_is_behind_the_bus() {
    is_behind_the_bus("legacy").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_ends_when_it_is_asked_ahead_of_the_handshake_is_behind_the_bus() {
    is_behind_the_bus("strict").await;
}

async fn is_behind_the_bus(era: &str) {
    let Some(python) = python() else { return };
    let policy = "[role.user]\nallow = [\"*\"]\n[rule.few]\nroles = [\"user\"]\ndeny = [\"t/echo\"]\n\
                  when.params.count = { min = 100 }\n";
    let stage = Stage::new(policy, &backend(python, era)).await;

    // Nothing is approved yet, and resources need no approval.
    let first = refused(stage.call("t/add", json!({ "a": 1, "b": 2 })).await);
    assert_eq!((first.0, first.2), (-32004, json!({ "tool": "new" })));
    let offered = stage.client.discover("tools").await.unwrap();
    let offered: Vec<_> = offered.methods.iter().map(|method| method.name.as_str()).collect();
    assert!(offered.contains(&"t/prompts/get") && !offered.contains(&"t/add"), "nobody reads it yet: {offered:?}");
    let read = stage.call("t/resources/read", json!({ "uri": "test://one" })).await.unwrap();
    assert_eq!(read["contents"], json!([{ "uri": "test://one", "text": "the first" }]));
    // Each revision has a code of its own for it.
    let missing = if era == "modern" { -32602 } else { -32002 };
    assert_eq!(refused(stage.call("t/resources/read", json!({ "uri": "test://two" })).await).0, missing);
    assert_eq!(refused(stage.call("t/resources/read", json!({ "uri": "test://one", "x": 1 })).await).0, -32602);
    let get = |name: &str| json!({ "name": name, "arguments": { "topic": "cats" } });
    let unread = refused(stage.call("t/prompts/get", get("p")).await);
    assert_eq!((unread.0, unread.2), (-32004, json!({ "prompt": "new" })));
    assert_eq!(stage.call("t/prompts/list", json!({})).await.unwrap(), json!({ "prompts": [] }));
    assert_eq!(refused(stage.call("t/prompts/get", get("none")).await).0, -32602);
    assert_eq!(refused(stage.call("t/prompts/get", json!({ "name": 1 })).await).0, -32602);
    let mut changes = stage.client.subscribe::<Value>("tools", "tools/changes", json!([]));
    // One call later, the subscription is in place.
    stage.call("t/prompts/list", json!({})).await.unwrap();
    stage.shell.run("tools approve --yes").ok().says("20 approved");
    assert_eq!(stage.shell.mode("tools.lock.toml"), 0o644, "a service may run as another user");
    let told = async {
        loop {
            let change = changes.next().await.unwrap().unwrap();
            if change["method"] == "t/later" {
                break assert_eq!(change, json!({ "method": "t/later", "standing": "approved" }));
            }
        }
    };
    within(LONG, told).await;
    assert!(within(LONG, changes.cancel()).await);

    let prompt = approved(&stage, "t/prompts/get", get("p")).await;
    assert_eq!(prompt["messages"][0]["content"]["text"], "cats");
    let listed = stage.call("t/prompts/list", json!({})).await.unwrap();
    assert_eq!(listed["prompts"][0]["arguments"], json!([{ "name": "topic", "required": true }]));

    // Arguments are checked by the policy, and by the schema.
    assert_eq!(approved(&stage, "t/echo", json!({ "text": "hi", "count": 2 })).await, text(&["hi", "hi"]));
    assert_eq!(refused(stage.call("t/echo", json!({ "text": "hi", "count": 100 })).await).0, -32002);
    let wrong = refused(stage.call("t/add", json!({ "a": 1 })).await);
    assert!(wrong.0 == -32602 && wrong.1.contains("\"b\" is a required property"), "{wrong:?}");
    assert_eq!(refused(stage.call("t/add", json!([1, 2])).await).0, -32602);

    let offered = stage.client.discover("tools").await.unwrap();
    let of = |name: &str| offered.methods.iter().find(|method| method.name == name);
    let document: Value = serde_json::from_str(of("t/add").unwrap().document.as_ref().unwrap().get()).unwrap();
    assert_eq!(
        (&document["description"], &document["x-params"]["required"]),
        (&json!("It can add."), &json!(["a", "b"]))
    );
    assert_eq!(document["result"]["schema"]["required"], json!(["sum"]), "{document}");
    assert!(of("t/far").is_none(), "it cannot be used");

    // Results: what `outputSchema` describes, otherwise the content; errors of the tool and of the protocol.
    assert_eq!(stage.call("t/add", json!({ "a": 1, "b": 2 })).await.unwrap(), json!({ "sum": 3 }));
    assert_eq!(refused(stage.call("t/lie", json!({})).await).0, -32603);
    assert_eq!(refused(stage.call("t/garble", json!({})).await).0, -32004, "at once, and not by the deadline");
    let failed = refused(stage.call("t/fail", json!({})).await);
    assert_eq!(failed, (1, "there is no such city".to_owned(), text(&["there is no such city"])));
    assert_eq!(
        refused(stage.call("t/refuse", json!({})).await),
        (7, "not today".to_owned(), json!({ "day": "Monday" }))
    );
    // A code of a server is not taken for one of Sealwire's own.
    let posed = stage.call("t/pose", json!({})).await.unwrap_err();
    assert_eq!(posed.remote().map(|error| (error.code(), error.profile_code())), Some((-32004, None)));
    assert_eq!(refused(stage.call("t/later", json!({})).await).0, -32602, "the server does not know it");
    let far = refused(stage.call("t/far", json!({ "x": 1 })).await);
    assert_eq!(far.0, -32004, "its schema is elsewhere");
    let caller = text(&["{\"agent\": \"planner\", \"subject\": \"planner\"}"]);
    assert_eq!(stage.call("t/who", json!({})).await.unwrap(), caller);

    // What arrives during a call.
    let told: Arc<Mutex<Vec<Request>>> = Arc::default();
    let listener = Arc::clone(&told);
    let request = stage.client.request("tools").on_notification(move |note| listener.lock().unwrap().push(note));
    let mut job = request.stream::<Value>("t/job", json!({}));
    assert!(within(LONG, job.next()).await.is_none());
    assert_eq!(within(LONG, job.finish::<Value>()).await.unwrap(), text(&["done"]));
    let told = told.lock().unwrap().iter().map(|note| note.method.clone()).collect::<Vec<_>>();
    assert!(told.contains(&"rpc.progress".to_owned()), "{told:?}");
    assert!(told.contains(&"notifications/message".to_owned()), "{told:?}");

    // A question to the caller, and one to a caller that cannot be asked.
    let asked = stage.client.request("tools").on_ask(|question: Request| async move {
        assert_eq!(question.method, "elicitation/create");
        Ok::<_, RpcError>(json!({ "action": "accept", "content": { "size": "large" } }))
    });
    let mut asked = asked.stream::<Value>("t/ask", json!({}));
    assert!(within(LONG, asked.next()).await.is_none());
    let answer = within(LONG, asked.finish::<Value>()).await.unwrap().to_string();
    assert!(answer.contains("accept") && answer.contains("large"), "{answer}");
    let answer = stage.call("t/ask", json!({})).await.unwrap().to_string();
    assert!(answer.contains("cancel"), "{answer}");

    // Nobody waits for it any more.
    let waiting = stage.client.stream::<Value>("tools", "t/wait", json!({}));
    let reached = async {
        while !stage.shell.read("server.log").contains("\"name\":\"wait\"") {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    within(LONG, reached).await;
    assert!(within(LONG, waiting.cancel()).await);
    let heard = async {
        while stage.call("t/cancelled", json!({})).await.unwrap()["content"].as_array().unwrap().is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    within(LONG, heard).await;

    // Anything that may belong to the abandoned call goes to nobody else.
    let told: Arc<Mutex<Vec<Request>>> = Arc::default();
    let (listener, asker) = (Arc::clone(&told), Arc::clone(&told));
    let request = stage.client.request("tools").on_notification(move |note| listener.lock().unwrap().push(note));
    let request = request.on_ask(move |question: Request| {
        asker.lock().unwrap().push(question);
        async { Ok::<_, RpcError>(json!({ "action": "accept" })) }
    });
    let mut late = request.stream::<Value>("t/late", json!({}));
    assert!(within(LONG, late.next()).await.is_none());
    assert_eq!(within(LONG, late.finish::<Value>()).await.unwrap(), text(&["done"]));
    assert!(told.lock().unwrap().is_empty(), "{told:?}");

    // Killed in the middle, and back.
    assert_eq!(refused(stage.call("t/exit", json!({})).await).0, -32004);
    approved(&stage, "t/add", json!({ "a": 2, "b": 2 })).await;
    let log = stage.shell.read("server.log");
    stage.end().await;
    conforms(&log, era);
}

/// Whether every line conforms to the published schema of its revision.
fn conforms(log: &str, era: &str) {
    let validator = |revision: &str| {
        let path = root().join(format!("crates/cli/tests/cli/backends/mcp/{revision}.json"));
        let mut schema: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        let any = ["ClientRequest", "ClientNotification", "JSONRPCResponse"]
            .map(|name| json!({ "$ref": format!("#/$defs/{name}") }));
        schema["anyOf"] = json!(any);
        jsonschema::options().offline().build(&schema).unwrap()
    };
    let (modern, legacy) = (validator("2026-07-28"), validator("2025-11-25"));
    let mut methods = std::collections::BTreeSet::new();
    for line in log.lines() {
        let message: Value = serde_json::from_str(line).unwrap();
        // The question whose answer tells the eras apart.
        let is_probe = message["method"] == "server/discover";
        let validator = if era == "modern" || is_probe { &modern } else { &legacy };
        let wrong: Vec<String> = validator.iter_errors(&message).map(|error| error.to_string()).collect();
        assert!(wrong.is_empty(), "{line}\n{wrong:?}");
        methods.extend(message["method"].as_str().map(str::to_owned));
    }
    let expected =
        ["tools/list", "tools/call", "resources/read", "prompts/list", "prompts/get", "notifications/cancelled"];
    assert!(expected.iter().all(|method| methods.contains(*method)), "{methods:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_definition_turns_its_tool_off_until_it_is_approved() {
    let Some(python) = python() else { return };
    for era in ["modern", "legacy"] {
        let mistyped = "[[backend.method]]\nname = \"sum\"\ntool = \"addd\"\n";
        let mut stage = Stage::new(POLICY, &(backend(python, era) + mistyped)).await;
        says(&mut stage.stderr, "the server has no tool `addd`, which the configuration names `sum`").await;
        assert!(!stage.stderr.borrow().contains("no tool `später`"));
        stage.shell.run("tools list").ok().says("new       server: echo").says("new       server: p (prompt)");
        stage.shell.run("tools list").ok().says("unusable  server: far");
        stage.shell.run("tools list").ok().says("`t/resources/read` is a method of the protocol");
        stage.shell.run("tools diff --exit-code").fails_with(13, "new tool `echo` of `server`");
        stage.shell.run("tools approve").fails(2, &["nobody can be asked", "--yes"]);
        let error = stage.shell.run("tools approve --json").fails(2, &[]).error();
        assert_eq!(
            (&error["kind"], &error["message"]),
            (&json!("usage"), &json!("nobody can be asked: `--json` is for scripts"))
        );
        stage
            .shell
            .run("tools approve --tool far --yes")
            .fails(30, &["the tool `far` cannot be used: `inputSchema`: the reference"]);
        stage.shell.run("tools approve --tool none --yes").fails(30, &["no server has a tool `none`"]);
        stage.shell.run("tools approve --tool echo --yes").ok().says("1 approved");
        approved(&stage, "t/echo", json!({ "text": "hi" })).await;
        assert_eq!(refused(stage.call("t/add", json!({ "a": 1, "b": 2 })).await).0, -32004);
        stage.shell.run("tools approve --prompt echo --yes").fails(30, &["no server has a prompt `echo`"]);
        stage.shell.run("tools approve --prompt p --yes").ok().says("1 approved");
        stage.shell.run("tools diff").ok().says("new tool `add` of `server`");
        stage.shell.run("tools approve --yes").ok().says("18 approved");
        approved(&stage, "t/add", json!({ "a": 1, "b": 2 })).await;
        stage.shell.run("tools diff --exit-code").ok().says("everything else is approved; 2 entries cannot be used");

        stage.call("t/grow", json!({})).await.unwrap();
        // At once: calls after the server's notification are judged by its new definitions.
        let off = refused(stage.call("t/echo", json!({ "text": "hi" })).await);
        assert_eq!((off.0, off.2), (-32004, json!({ "tool": "changed" })));
        let off = refused(stage.call("t/prompts/get", json!({ "name": "p" })).await);
        assert_eq!((off.0, off.2), (-32004, json!({ "prompt": "changed" })));
        assert_eq!(stage.call("t/prompts/list", json!({})).await.unwrap(), json!({ "prompts": [] }));
        // Until it has answered, no tool can be called; everything else goes on.
        stage.call("t/spoil", json!({})).await.unwrap();
        let off = refused(stage.call("t/add", json!({ "a": 1, "b": 2 })).await);
        assert_eq!((off.0, off.2), (-32004, Value::Null));
        stage.call("t/resources/list", json!({})).await.unwrap();
        approved(&stage, "t/add", json!({ "a": 1, "b": 2 })).await;
        assert_eq!(stage.call("t/add", json!({ "a": 1, "b": 2 })).await.unwrap(), json!({ "sum": 3 }));
        let diff = stage.shell.run("tools diff").ok().stdout.clone();
        for line in [
            "- /description: \"It can echo.\"",
            "+ /description: \"It can echo.\\u{200b}\"",
            "- /inputSchema/properties/count: {\"type\":\"integer\"}",
            "+ /inputSchema/properties/loud: {\"type\":\"boolean\"}",
            "changed prompt `p` of `server`",
            "- /description: \"It can write.\"",
            "+ /description: \"It can write anything.\"",
        ] {
            assert!(diff.contains(line), "{line}\n{diff}");
        }
        stage.shell.run("tools approve --yes").ok().says("2 approved");
        let topic = json!({ "name": "p", "arguments": { "topic": "dogs" } });
        assert_eq!(approved(&stage, "t/prompts/get", topic).await["messages"][0]["content"]["text"], "dogs");
        let loud = json!({ "text": "hi", "loud": true });
        assert_eq!(approved(&stage, "t/echo", loud).await, text(&["hi"]));
        assert_eq!(refused(stage.call("t/echo", json!({ "text": "hi" })).await).0, -32602, "by the new schema");

        // An invalid lock file is not believed, and approvals stay.
        let lock = stage.shell.read("tools.lock.toml");
        stage.shell.write("tools.lock.toml", &lock.replace("It can add.", "It can sub."));
        says(&mut stage.stderr, "the definition of `add` was changed in the file").await;
        assert_eq!(stage.call("t/add", json!({ "a": 1, "b": 2 })).await.unwrap(), json!({ "sum": 3 }));
        stage.shell.run("tools list").fails(30, &["sealwire tools approve"]);
        // Nor is one that others can write. Once they cannot, it is, and a withdrawn approval ends.
        let echo = lock.find("[server.tool.echo]").unwrap();
        let after = lock[echo + 1..].find("\n[server.").map_or(lock.len(), |next| echo + 1 + next);
        stage.shell.write("tools.lock.toml", &format!("{}{}", &lock[..echo], &lock[after..]));
        let mode = |mode: u32| {
            use std::os::unix::fs::PermissionsExt as _;
            let mode = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(stage.shell.path("tools.lock.toml"), mode).unwrap();
        };
        mode(0o666);
        says(&mut stage.stderr, "chmod").await;
        mode(0o600);
        let off = async {
            loop {
                let outcome = stage.call("t/echo", json!({ "text": "hi", "loud": true })).await;
                if outcome.is_err() {
                    break refused(outcome);
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        assert_eq!(within(LONG, off).await.2, json!({ "tool": "new" }));
        stage.shell.write("tools.lock.toml", &lock);
        stage.shell.run("serve --check").ok();
        stage.end().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tool_whose_name_is_taken_is_unusable_and_the_others_go_on() {
    let Some(python) = python() else { return };
    let without = |name: &str, era: &str, more: &str| {
        let text = backend(python, era).replace("prefix = \"t\"\n", "").replace("\"later\"", "\"rpc/x\"");
        let (text, _) = text.split_once("[[backend.method]]").unwrap();
        format!("{}{more}", text.replace("\"server\"", &format!("\"{name}\"")))
    };
    let named = |tool: &str, name: &str| format!("[[backend.method]]\nname = \"{name}\"\ntool = \"{tool}\"\n");
    let (first, second) = (without("first", "modern", ""), without("second", "legacy", &named("pid", "add")));
    let stage = Stage::new(POLICY, &format!("{first}{second}")).await;
    let listed = stage.shell.run("tools list").ok().stdout.clone();
    for line in [
        // Names in the configuration take precedence, then those that come first.
        "unusable  first: add: `add` is taken by the tool `pid` of backend `second`; give it another name",
        "new       second: pid",
        "new       first: echo",
        "unusable  second: echo: `echo` is taken by the tool `echo` of backend `first`; give it another name",
        "unusable  first: später",
    ] {
        assert!(listed.contains(line), "{line}\n{listed}");
    }
    stage.shell.run("tools approve --yes").ok();
    assert_eq!(approved(&stage, "echo", json!({ "text": "hi" })).await, text(&["hi"]));
    assert!(approved(&stage, "add", json!({})).await.to_string().contains("text"));

    // An approved tool keeps its name, wherever else that is listed; a name that collides with the configuration is a fault.
    let config = stage.shell.read("sealwire.toml");
    stage.shell.write("turned.toml", &config.replace(&first, "").replace(&second, &format!("{second}{first}")));
    let turned = stage.shell.run("tools list --config turned.toml").ok().stdout.clone();
    assert!(turned.contains("approved  first: echo") && turned.contains("unusable  second: echo"), "{turned}");
    for (more, fault) in [
        (named("fail", "rpc/x").as_str(), "`rpc/x`: names that begin with `rpc` are reserved"),
        (named("fail", "tools/changes").as_str(), "`tools/changes` is taken by the tool `fail`"),
        (
            without("third", "modern", &named("pid", "add")).as_str(),
            "`add` is taken by the tool `pid` of backend `second`",
        ),
        (without("third", "modern", "prefix = \"rpc\"").as_str(), "prefix `rpc`"),
    ] {
        stage.shell.write("wrong.toml", &format!("{config}{more}"));
        stage.shell.run("serve --check --config wrong.toml").fails(30, &[fault]);
    }
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_gives_its_calls_up_has_no_more_of_them_at_a_server_than_its_share() {
    let Some(python) = python() else { return };
    for era in ["modern", "legacy"] {
        let text = backend(python, era).replace("kind =", "in_flight = 4\nkind =");
        let stage = Stage::new(POLICY, &text).await;
        stage.shell.run("tools approve --yes").ok();
        approved(&stage, "t/pid", json!({})).await;
        let quiet = stage.agent("quiet").await;
        let ask = async |method: &str| within(LONG, quiet.call::<Value>("tools", method, json!({}))).await.unwrap();
        for _ in 0..5 {
            // The first two reach the server, which keeps working on them.
            let brief = stage.client.request("tools").deadline(Duration::from_millis(500));
            within(LONG, brief.call::<Value>("t/wait", json!({}))).await.unwrap_err();
            ask("t/pid").await;
        }
        assert_eq!(ask("t/release").await, self::text(&["2"]), "{era}");
        // Its late answers give the places back.
        stage.call("t/pid", json!({})).await.unwrap();
        stage.end().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_slow_to_start_or_says_nothing_to_what_it_does_not_know_is_served() {
    let Some(python) = python() else { return };
    let slow = backend(python, "modern").replace("kind =", "env = { SLOW = \"12\" }\nkind =");
    let mute = backend(python, "mute").replace("\"server\"", "\"mute\"").replace("\"t\"", "\"mute\"");
    let mute = mute.replace("server.log", "mute.log").split("[[backend.method]]").next().unwrap().to_owned();
    let stage = Stage::start(POLICY, &format!("{slow}{mute}"), &["serve"]).await;
    within(2 * LONG, async { stage.ready().await.end().await }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_hangs_is_ended_and_one_that_waits_for_a_caller_is_not() {
    let Some(python) = python() else { return };
    let made = root().join("crates/cli/tests/cli/backends/mcp/made.py");
    let waiting = backend(python, "legacy").replace("kind =", "timeout_s = 5\nkind =");
    let hanging = format!(
        "[[backend]]\nname = \"made\"\nkind = \"mcp\"\nprefix = \"made\"\ntimeout_s = 5\n\
         command = [\"{}\", \"-B\", \"{}\", \"mcp\"]\n",
        python.display(),
        made.display()
    );
    let mut stage = Stage::new(POLICY, &format!("{waiting}{hanging}")).await;
    stage.shell.run("tools approve --yes").ok();
    let before = approved(&stage, "t/pid", json!({})).await;
    approved(&stage, "made/add", json!({ "a": 1, "b": 2 })).await;

    // A caller that thinks for longer than a call may take, and callers that wait for less time than it takes to notice that
    // nothing arrives.
    let asked = stage.client.request("tools").on_ask(|_: Request| std::future::pending::<Result<Value, RpcError>>());
    let mut asked = asked.stream::<Value>("t/ask", json!({}));
    let thinking = async {
        assert_eq!(refused(within(LONG, asked.next()).await.unwrap()).0, -32004);
    };
    let impatient = async {
        for _ in 0..3 {
            let request = stage.client.request("tools").deadline(Duration::from_millis(500));
            within(LONG, request.call::<Value>("made/block", json!({}))).await.unwrap_err();
        }
    };
    futures_util::future::join(thinking, impatient).await;
    says(&mut stage.stderr, "it has not responded to anything for 5 s").await;
    assert_eq!(approved(&stage, "made/add", json!({ "a": 1, "b": 2 })).await, json!({ "result": 3 }));
    assert_eq!(stage.call("t/pid", json!({})).await.unwrap(), before, "it was not started again");
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_cannot_be_served_is_told_at_the_start() {
    let Some(python) = python() else { return };
    let broken =
        format!("[[backend]]\nname = \"server\"\nkind = \"mcp\"\ncommand = [\"{}\", \"-c\", \"\"]\n", python.display());
    let mut stage = Stage::start(POLICY, &broken, &["serve"]).await;
    assert_eq!(within(LONG, stage.service.wait()).await.unwrap().code(), Some(30));
    says(&mut stage.stderr, "backend `server`: it has ended with code 0").await;
    for (key, fault) in [
        ("processes = 2", "`processes` is for kind `stdio`"),
        ("prefix = \"a b\"", "`a b` is not a method name"),
        ("[[backend.method]]\nname = \"x\"", "write the server's name for it as `tool`"),
    ] {
        let config = stage.shell.read("sealwire.toml");
        stage.shell.write("wrong.toml", &format!("{config}{key}\n"));
        stage.shell.run("serve --check --config wrong.toml").fails(30, &[fault]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_start_side_by_side_and_have_their_names_in_the_order_of_the_file() {
    let Some(python) = python() else { return };
    // The first does nothing before the second has begun.
    let server = |name: &str, first: &str| {
        let text = backend(python, "legacy").replace("\"server\"", &format!("\"{name}\""));
        let text = text.replace("server.log", &format!("{name}.log"));
        let (text, _) = text.split_once("[[backend.method]]").unwrap();
        text.replace("command = [", &format!("command = [\"sh\", \"-c\", '{first} exec \"$0\" \"$@\"', "))
    };
    let text = server("first", "while [ ! -e begun ]; do sleep 0.1; done;") + &server("second", ": > begun;");
    let stage = Stage::new(POLICY, &text).await;
    std::fs::remove_file(stage.shell.path("begun")).unwrap();
    let listed = stage.shell.run("tools list").ok().stdout.clone();
    assert!(listed.contains("new       first: echo"), "{listed}");
    assert!(
        listed.contains("unusable  second: echo: `t/echo` is taken by the tool `echo` of backend `first`"),
        "{listed}"
    );
    std::fs::remove_file(stage.shell.path("begun")).unwrap();
    stage.shell.run("policy skeleton new").ok();
    assert!(
        stage.shell.read("new/first.toml").contains("t/echo")
            && !stage.shell.read("new/second.toml").contains("t/echo")
    );
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_hangs_at_the_start_holds_up_no_other_and_no_fault() {
    let hanging = "[[backend]]\nname = \"hanging\"\nkind = \"mcp\"\ntimeout_s = 600\ncommand = [\"sleep\", \"600\"]\n";
    let broken = "[[backend]]\nname = \"broken\"\nkind = \"mcp\"\ncommand = [\"false\"]\n";
    let mut stage = Stage::start(POLICY, &format!("{hanging}{broken}"), &["serve"]).await;
    assert_eq!(within(LONG, stage.service.wait()).await.unwrap().code(), Some(30));
    says(&mut stage.stderr, "backend `broken`: it has ended with code 1").await;
}
