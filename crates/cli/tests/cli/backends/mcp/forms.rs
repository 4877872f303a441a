//! Answers that break a rule of form, programs that do not start, revisions on request, and schemas as others write them.

use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use sealwire::RpcError;
use sealwire::internal::rpc::Request;
use sealwire_testkit::python::python;
use sealwire_testkit::{root, within};
use serde_json::{Value, json};

use super::super::stage::{LONG, POLICY, Stage};
use super::lists::{folder, list, said, say, stage};
use super::{approved, refused, text};
use crate::process::says;
use crate::shell::{Ran, Shell};

fn tool(name: &str) -> String {
    format!(r#"{{"name":"{name}","inputSchema":{{"type":"object"}}}}"#)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_breaks_a_rule_of_form_ends_its_call_at_once() {
    let done = r#"{"content":[{"type":"text","text":"done"}]}"#;
    // What a tool answers, what the caller gets, and what the log says.
    let rows: [(&str, String, Result<(), i32>, &str); 16] = [
        (
            "NaN",
            r#"{"jsonrpc":"2.0","id":$ID,"result":{"content":[],"structuredContent":{"x":NaN}}}"#.to_owned(),
            Err(-32004),
            "its answer is not JSON",
        ),
        (
            "Infinity, the id last",
            r#"{"jsonrpc":"2.0","result":{"content":[],"x":-Infinity},"id":$ID}"#.to_owned(),
            Err(-32004),
            "not JSON",
        ),
        (
            "a comma too many",
            r#"{"jsonrpc":"2.0","id":$ID,"result":{"content":[],}}"#.to_owned(),
            Err(-32004),
            "not JSON",
        ),
        ("Python's quotes", r#"{'jsonrpc':'2.0',"id":$ID,'result':{}}"#.to_owned(), Err(-32004), "not JSON"),
        (
            "over several lines",
            format!("{{\n  \"jsonrpc\": \"2.0\",\n  \"id\": $ID,\n  \"result\": {done}\n}}"),
            Ok(()),
            "",
        ),
        (
            "over several lines, the id last",
            format!("{{\n  \"jsonrpc\": \"2.0\",\n  \"result\": {done},\n  \"id\": $ID\n}}"),
            Ok(()),
            "",
        ),
        (
            "the id as a text",
            format!(r#"{{"jsonrpc":"2.0","id":"$ID","result":{done}}}"#),
            Err(-32004),
            "has the id as a text",
        ),
        ("the id as another number", format!(r#"{{"jsonrpc":"2.0","id":$ID.0,"result":{done}}}"#), Ok(()), ""),
        (
            "the id as a list",
            format!(r#"{{"jsonrpc":"2.0","id":[$ID],"result":{done}}}"#),
            Err(-32004),
            "not a response of JSON-RPC 2.0",
        ),
        (
            "the id as truth",
            format!(r#"{{"jsonrpc":"2.0","id":true,"result":{done}}}"#),
            Err(-32004),
            "not a response of JSON-RPC 2.0",
        ),
        ("no id", format!(r#"{{"jsonrpc":"2.0","result":{done}}}"#), Err(-32004), "not a response of JSON-RPC 2.0"),
        (
            "an error without an id",
            r#"{"jsonrpc":"2.0","id":null,"error":{"code":7,"message":"not today"}}"#.to_owned(),
            Err(7),
            "",
        ),
        (
            "other ids ahead of its own",
            r#"{"jsonrpc":"2.0","result":{"content":[{"id":7}],"x":NaN},"id":$ID}"#.to_owned(),
            Err(-32004),
            "its answer is not JSON",
        ),
        (
            "in one array with what was not asked",
            format!(r#"[{{"jsonrpc":"2.0","id":1,"result":{{}}}},{{"jsonrpc":"2.0","id":$ID,"result":{done}}}]"#),
            Ok(()),
            "",
        ),
        ("no version", format!(r#"{{"id":$ID,"result":{done}}}"#), Err(-32004), ""),
        (
            "a member twice",
            r#"{"jsonrpc":"2.0","id":$ID,"result":{"content":[],"content":[]}}"#.to_owned(),
            Err(-32004),
            "",
        ),
    ];
    let names: Vec<String> = (0..rows.len()).map(|n| format!("row{n}")).collect();
    let tools: Vec<String> = names.iter().map(|name| tool(name)).collect();
    let tools: Vec<&str> = tools.iter().map(String::as_str).collect();
    let keys: Vec<String> = names.iter().map(|name| format!("call {name}")).collect();
    let mut answers = vec![("tools/list", list("tools", &tools, ""))];
    answers.extend(keys.iter().zip(&rows).map(|(key, row)| (key.as_str(), json!(row.1))));
    // Something else comes first.
    let banner = "\u{feff}Welcome!\n\n{\"level\":\"info\",\"message\":\"listening\"}\n[]\n\"x\"\nnull\n".to_owned();
    answers.push(("begin", json!(banner)));
    let Some(mut stage) = stage("timeout_s = 600\n", &answers).await else { return };
    stage.shell.run("tools approve --yes").ok();
    let not_approved = async {
        while let Err(error) = stage.call("t/row7", json!({})).await {
            assert_eq!(super::code(&error), Some(-32004), "{error}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    within(LONG, not_approved).await;
    for (name, (what, _, expected, why)) in names.iter().zip(&rows) {
        let began = Instant::now();
        let outcome = stage.call(&format!("t/{name}"), json!({})).await;
        let found = outcome.map(|_| ()).map_err(|error| super::code(&error).unwrap_or_default());
        assert_eq!(&found, expected, "{what}: {}", *stage.stderr.borrow());
        // Not by the deadline of the call, 30 s, and far from that of the backend.
        assert!(began.elapsed() < Duration::from_secs(20), "{what}");
        says(&mut stage.stderr, why).await;
    }
    stage.end().await;
}

/// A command that did what it could: it says why that is not everything.
#[track_caller]
fn partly(ran: &Ran, reasons: &[&str]) {
    assert!(ran.code == 30 && !ran.stdout.is_empty() && reasons.iter().all(|why| ran.stderr.contains(why)), "{ran:?}");
}

#[test]
fn commands_say_why_a_server_cannot_be_asked_and_ask_the_others() {
    let Some(python) = python() else { return };
    let at = python.display();
    let good = said(python, "");
    let bad = [
        ("[\"mcp-server-tiem\"]".to_owned(), &["`mcp-server-tiem` is not found in PATH"][..]),
        ("[\"/etc/passwd\"]".to_owned(), &["`/etc/passwd` is not executable"]),
        (format!("[\"{at}\", \"-m\", \"no_such_module\"]"), &["code 1", "No module named no_such_module"]),
        (
            format!(
                "[\"{at}\", \"-c\", \"import sys; print('one', file=sys.stderr); raise ValueError('the token is missing')\"]"
            ),
            &["code 1", "ValueError: the token is missing"],
        ),
        ("[\"sh\", \"-c\", \"exit 3\"]".to_owned(), &["code 3"]),
        ("[\"sh\", \"-c\", \"kill -9 $$\"]".to_owned(), &["signal 9"]),
        (
            format!(
                "[\"{at}\", \"-B\", \"{}\", \"nan.json\"]",
                root().join("crates/cli/tests/cli/backends/mcp/said.py").display()
            ),
            &["`tools/list`: its answer is not JSON"],
        ),
    ];
    let nan = json!({ "tools/list": r#"{"jsonrpc":"2.0","id":$ID,"result":{"tools":[NaN]}}"# }).to_string();
    for (command, reasons) in bad {
        let one = format!("[[backend]]\nname = \"bad\"\nkind = \"mcp\"\nprefix = \"bad\"\ncommand = {command}\n");
        // Whichever comes first.
        for both in [format!("{one}{good}"), format!("{good}{one}")] {
            let shell = folder(&both);
            shell.write("nan.json", &nan);
            say(&shell, &[("tools/list", list("tools", &[&tool("good")], ""))]);
            let began = Instant::now();
            let listed = shell.run("tools list");
            assert!(listed.stdout.contains("new       said: good"), "{command}: {listed:?}");
            partly(&listed, reasons);
            if command.contains("nan.json") {
                partly(&listed, &["a line was dropped", "NaN"]);
            }
            assert!(began.elapsed() < Duration::from_secs(40), "{command}");
        }
        let shell = folder(&format!("{one}{good}"));
        shell.write("nan.json", &nan);
        say(&shell, &[("tools/list", list("tools", &[&tool("good")], ""))]);
        partly(&shell.run("tools diff --exit-code"), reasons);
        let approved = shell.run("tools approve --yes");
        assert!(approved.stdout.contains("1 approved"), "{approved:?}");
        partly(&approved, reasons);
        let written = shell.run("policy skeleton");
        assert!(written.stdout.contains("policies/said.toml: 2 methods"), "{written:?}");
        partly(&written, reasons);
        assert!(!shell.path("policies/bad.toml").exists());
        shell.write("sealwire.toml", &shell.read("sealwire.toml").replace(&good, ""));
        for command in ["tools list", "policy skeleton new"] {
            shell.run(command).fails(30, reasons);
        }
    }
    let shell = folder("");
    shell.run("tools list -- mcp-server-tiem").fails(30, &["is not found in PATH"]);
    shell.run("policy skeleton -- mcp-server-tiem").fails(30, &["is not found in PATH"]);
    shell.run("tools list --prompts").fails(2, &["no file describes", "`prompts = true`"]);
    shell.run("policy skeleton --prefix x").fails(2, &["no file describes"]);
    for key in ["revision = \"2025-11-25\"", "resources = true", "prompts = true"] {
        let shell = Shell::new();
        shell.run("init . --language none").ok();
        let backend = format!(
            "[[backend]]\nname = \"a\"\nkind = \"exec\"\ncommand = [\"date\"]\n{key}\n[[backend.method]]\nname = \"a\"\n"
        );
        shell.write("sealwire.toml", &(shell.read("sealwire.toml") + &backend));
        shell.run("serve --check").fails(30, &["are for kind `mcp`"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_earlier_revision_on_request_lets_a_server_ask_the_caller() {
    let Some(python) = python() else { return };
    let made = root().join("crates/cli/tests/cli/backends/mcp/made.py");
    let server = |name: &str, package: &str, revision: &str| {
        let revision = if revision.is_empty() { String::new() } else { format!("revision = \"{revision}\"\n") };
        let (python, made) = (python.display(), made.display());
        format!(
            "[[backend]]\nname = \"{name}\"\nkind = \"mcp\"\nprefix = \"{name}\"\n{revision}command = [\"{python}\", \"-B\", \"{made}\", \"{package}\"]\n"
        )
    };
    let servers = [
        ("mcp", "mcp", "2025-11-25"),
        ("fastmcp", "fastmcp", "2025-11-25"),
        ("older", "mcp", "2025-06-18"),
        ("newest", "mcp", "2026-07-28"),
        ("any", "mcp", ""),
    ];
    let stage =
        Stage::new(POLICY, &servers.map(|(name, package, revision)| server(name, package, revision)).concat()).await;
    stage.shell.run("tools approve --yes").ok();
    for (name, _, revision) in servers {
        let add = approved(&stage, &format!("{name}/add"), json!({ "a": 1, "b": 2 })).await;
        assert_eq!(add, json!({ "result": 3 }), "{name}");
        let asked = stage.client.request("tools").on_ask(|question: Request| async move {
            assert_eq!(question.method, "elicitation/create");
            Ok::<_, RpcError>(json!({ "action": "accept", "content": { "size": "large" } }))
        });
        let mut asked = asked.stream::<Value>(&format!("{name}/choose"), json!({}));
        let first = within(LONG, asked.next()).await;
        if matches!(revision, "2025-11-25" | "2025-06-18") {
            assert!(first.is_none(), "{name}: {first:?}");
            assert_eq!(within(LONG, asked.finish::<Value>()).await.unwrap(), json!({ "result": "large" }), "{name}");
        } else {
            // In the newer revision these libraries ask only by tools that are written for it.
            refused(first.unwrap());
        }
    }
    let at = python.display();
    let command = format!("{at} -B {} mcp", made.display());
    stage.shell.run(&format!("tools list --revision 2025-11-25 -- {command}")).ok().says("mcp: choose");
    stage.shell.run(&format!("tools list --revision 2025-11-26 -- {command}")).fails(2, &["2025-11-26"]);
    stage.end().await;
    // A server that does not speak what is wanted is not spoken to in another way.
    let shell = folder(&super::backend(python, "legacy").replace("kind =", "revision = \"2026-07-28\"\nkind ="));
    shell.run("tools list").fails(30, &["it does not speak 2026-07-28", "Method not found"]);
    let shell = folder(&super::backend(python, "modern").replace("kind =", "revision = \"2025-11-25\"\nkind ="));
    shell.run("tools list").fails(30, &["`initialize`", "Method not found"]);
}

/// zod, pydantic and .NET, whose patterns and numbers are not those of the engine here.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tools_with_schemas_as_others_write_them_can_be_used() {
    let of = |name: &str, schema: Value| {
        json!({ "name": name, "inputSchema": { "type": "object", "properties": { "x": schema } } }).to_string()
    };
    let big = r#"{"name":"big","inputSchema":{"type":"object","properties":{"x":{"type":"integer","minimum":-9223372036854775808,"maximum":9223372036854775807},
        "y":{"type":"number","maximum":1e400,"minimum":100.00000000000000001}}}}"#.replace('\n', "");
    let email = of(
        "email",
        json!({ "type": "string", "format": "email", "pattern": "^(?!\\.)(?!.*\\.\\.)([\\w'+\\-.]*)[\\w+-]@([A-Za-z0-9][\\w-]*\\.)+[A-Za-z]{2,}$" }),
    );
    let class = of("class", json!({ "type": "string", "pattern": "^[\\w-.]+$" }));
    let back = of("back", json!({ "type": "string", "pattern": "^(['\"]).*\\1$" }));
    let tools = [big.as_str(), &email, &class, &back];
    let Some(mut stage) = stage("", &[("tools/list", list("tools", &tools, ""))]).await else { return };
    let listed = stage.shell.run("tools list").ok().stdout.clone();
    assert!(listed.contains("new       said: big\n") && listed.contains("new       said: class\n"), "{listed}");
    assert!(
        listed.contains("said: back; left to the server to check: the pattern `^(['\"]).*\\1$` (a back-reference)"),
        "{listed}"
    );
    stage.shell.run("tools approve --yes").ok().says("4 approved");
    stage.shell.run("tools diff --exit-code").ok().says("everything is approved");
    let all = json!({ "x": 9_223_372_036_854_775_807_i64, "y": 101 });
    approved(&stage, "t/big", all).await;
    for (method, arguments, fits) in [
        ("t/big", r#"{"x":9223372036854775808}"#, false),
        ("t/big", r#"{"x":-9223372036854775808,"y":1e308}"#, true),
        ("t/big", r#"{"y":1e400}"#, false),
        ("t/big", r#"{"y":99}"#, false),
        ("t/email", r#"{"x":"ada@example.com"}"#, true),
        ("t/email", r#"{"x":".a@example.com"}"#, false),
        ("t/class", r#"{"x":"a-b.c"}"#, true),
        ("t/class", r#"{"x":"a b"}"#, false),
        ("t/back", r#"{"x":"'a'"}"#, true),
        // The server says.
        ("t/back", r#"{"x":"'a"}"#, true),
        ("t/back", r#"{"x":1}"#, false),
    ] {
        let params = serde_json::value::RawValue::from_string(arguments.to_owned()).unwrap();
        let request = stage.client.request("tools").deadline(Duration::from_secs(30));
        let outcome: Result<Value, _> = within(LONG, request.call(method, &params)).await;
        match outcome {
            Ok(_) => assert!(fits, "{method} {arguments}"),
            Err(error) => {
                let said = error.remote().unwrap().message().to_owned();
                assert!(
                    !fits && super::code(&error) == Some(-32602) && !said.contains("at line"),
                    "{method} {arguments}: {error}"
                );
            }
        }
    }
    says(&mut stage.stderr, "of the arguments and results of `back`, this is left to the server to check").await;
    // A bound that differs by less than a double can say is another definition.
    say(
        &stage.shell,
        &[("tools/list", list("tools", &[&big.replace("100.00000000000000001", "100.00000000000000002"), &class], ""))],
    );
    stage.shell.run("tools diff").ok().says("100.00000000000000002");
    assert_eq!(approved(&stage, "t/class", json!({ "x": "a" })).await, text(&["{\"x\": \"a\"}"]));
    stage.end().await;
}

/// Everything that a program may say without being asked, as fast as it can. How much of it is read in a second depends on the machine: see
/// `what_nobody_has_asked_for_is_read_slowly`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_never_stops_talking_costs_itself() {
    let Some(python) = python() else { return };
    let flood = root().join("crates/cli/tests/cli/backends/mcp/flood.py");
    let mut config = String::new();
    let kinds = ["ping", "tools", "prompts", "log", "progress", "unknown", "blank", "text"];
    for kind in kinds {
        let (python, flood) = (python.display(), flood.display());
        config += &format!(
            "[[backend]]\nname = \"{kind}\"\nkind = \"mcp\"\nprefix = \"{kind}\"\ncommand = [\"{python}\", \"-B\", \"{flood}\", \"{kind}\"]\n"
        );
    }
    let mut stage = Stage::new(POLICY, &config).await;
    stage.shell.run("tools approve --yes").ok();
    for kind in kinds {
        let good = format!("{kind}/good");
        approved(&stage, &good, json!({})).await;
        // From now on it talks.
        drop(stage.call(&format!("{kind}/flood"), json!({})).await);
        let useless = ["blank", "text"].contains(&kind);
        if useless {
            let told = format!("backend=\"{kind}\"");
            let told = async {
                let why = "1000 useless lines";
                while !stage.stderr.borrow().lines().any(|line| line.contains(why) && line.contains(&told)) {
                    stage.stderr.changed().await.unwrap();
                }
            };
            within(LONG, told).await;
        }
        match stage.call(&good, json!({})).await {
            // What it answers is heard all the same.
            Ok(answer) => assert_eq!(answer, text(&["good"]), "{kind}"),
            // Unless it has ended, or its tools change all the time.
            Err(error) => {
                assert!(useless || ["tools", "prompts"].contains(&kind), "{kind}: {error}");
                assert!(matches!(super::code(&error), Some(-32004 | -32003)), "{kind}: {error}");
            }
        }
        // The next one has the machine for itself.
        stage.shell.write(&format!("{kind}.stop"), "");
    }
    stage.end().await;
}
