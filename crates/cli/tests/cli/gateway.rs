//! `sealwire mcp`: services as an MCP server, with third-party clients, and when things go wrong. docs/gateway/stdio.md.

mod outages;
pub(crate) mod raw;

use std::path::Path;
use std::time::Duration;

use sealwire_testkit::python::python;
use sealwire_testkit::{free_port, root, within};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt as _;

use self::raw::Raw;
use crate::backends::stage::{LONG, Stage, prepared, server_of_mcp};
use crate::process::{SIGTERM, catches, send};

pub(crate) const POLICY: &str = r#"
[method."bank/transfer"]
params = [{ name = "to", type = "string" }, { name = "amount", type = "integer" }, { name = "note", type = "string", optional = true }]

[role.user]
allow = ["math/add", "job/run", "text/echo", "clock/ticks"]
[role.clerk]
allow = ["log/append", "audit/read"]

[role.treasurer]
allow = ["rpc.*"]

[approval.treasurer]
from = ["treasurer"]

[rule.seen]
everyone = true
deny = ["bank/transfer"]
unless_approved = "treasurer"
when.params.to = { is = "carol" }

[rule.small]
roles = ["user"]
allow = ["bank/transfer"]
when.params.amount = { max = 100 }
"#;

async fn demo() -> Stage {
    Stage::run(POLICY, "", &["serve", "demo"]).await
}

/// The command for an agent of the stage.
fn command(stage: &Stage, agent: &str) -> Vec<String> {
    let credentials = stage.shell.path(&format!("{agent}.creds.json")).display().to_string();
    ["mcp", "--creds", &credentials, "--service", "tools", "--refresh", "1s"].map(str::to_owned).to_vec()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_documented_lines_start_what_clients_use() {
    let Some(python) = python() else { return };
    let stage = demo().await;
    // So that the credentials name the service.
    pin(&stage, "planner");
    let pages = [include_str!("../../../../docs/gateway/stdio.md"), include_str!("../../../../README.md")];
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let mut lines: Vec<Vec<String>> = pages
        .iter()
        .map(|page| words(page.split_once("claude mcp add bus -- ").unwrap().1.lines().next().unwrap()))
        .collect();
    let file = pages[0].lines().find(|line| line.starts_with("{\"mcpServers\"")).unwrap();
    let file: Value = serde_json::from_str(file).unwrap();
    let server = &file["mcpServers"]["bus"];
    let args = server["args"].as_array().unwrap().iter().map(|arg| arg.as_str().unwrap());
    lines.push([server["command"].as_str().unwrap()].into_iter().chain(args).map(str::to_owned).collect());
    for line in lines {
        let [program, args @ .., credentials] = line.as_slice() else { panic!("{line:?}") };
        assert!(program == "sealwire" && credentials.ends_with("planner.creds.json"), "{line:?}");
        let args = [args, &[stage.shell.path("planner.creds.json").display().to_string()]].concat();
        let found = clients(python, "list", "auto", &args).await;
        assert_eq!(found[0]["added"], json!([false, 5, ["5"]]), "{line:?} {found:?}");
    }
    stage.end().await;
}

/// Adds the service's key to an agent's credentials.
fn pin(stage: &Stage, agent: &str) {
    let key = stage.shell.read_json("tools.service-key.json");
    let (kid, x) = (key["kid"].as_str().unwrap(), key["x"].as_str().unwrap());
    stage.shell.run(&format!("keys pin {agent}.creds.json --service tools --kid {kid} --x={x}")).ok();
}

/// Another agent, with this role.
fn enrol(stage: &Stage, agent: &str, role: &str, alg: &str) {
    let url = stage.shell.read_json("planner.creds.json")["nats"]["urls"][0].as_str().unwrap().to_owned();
    stage.shell.run(&format!("keys new-agent {agent} --alg {alg} --service dev/tools=ring.json --url {url}")).ok();
    pin(stage, agent);
    let bound = format!("--subject {agent} --cnf-kid {agent}.k1 --out {agent}.jwt --role {role}");
    stage.shell.run(&format!("token issue --key token-key.json --audience dev/tools {bound}")).ok();
    let told = stage.shell.run(&format!("discover --creds {agent}.creds.json --wait 60s --json tools")).ok().json();
    assert!(told["methods"].is_array(), "{told}");
}

/// What third-party clients got, one after the other.
async fn clients(python: &Path, task: &str, names: &str, gateway: &[String]) -> Vec<Value> {
    told(
        python,
        "",
        &[&[task, names, env!("CARGO_BIN_EXE_sealwire")], &*gateway.iter().map(String::as_str).collect::<Vec<_>>()]
            .concat(),
    )
    .await
}

/// What the script printed for these arguments, with this token if there is one.
pub(crate) async fn told(python: &Path, token: &str, arguments: &[&str]) -> Vec<Value> {
    let script = root().join("crates/cli/tests/cli/gateway/client.py");
    let mut command = tokio::process::Command::new(python);
    command.arg("-B").arg(script).args(arguments).env("BEARER", token);
    let output = within(3 * LONG, command.kill_on_drop(true).output()).await.unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    said.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_40_published_clients_call_what_their_agent_may() {
    let Some(python) = python() else { return };
    let stage = demo().await;
    enrol(&stage, "clerk", "clerk", "hs256");
    let found = clients(python, "demo", "auto,legacy,2026-07-28,fastmcp", &command(&stage, "planner")).await;
    assert_eq!(found.len(), 4);
    for found in &found {
        assert_eq!(found["tools"], json!(["bank_transfer", "job_run", "math_add", "text_echo"]), "{found}");
        let sum = if found["version"] == "2026-07-28" { json!(5) } else { json!({ "result": 5 }) };
        let is_fast = found["client"] == "fastmcp";
        assert!(is_fast || found["added"] == json!([false, sum, ["5"]]), "{found}");
        assert_eq!(found["added"][2], json!(["5"]));
        assert_eq!(found["denied"][0], true, "{found}");
        assert!(found["denied"][2][0].as_str().unwrap().contains("permission denied"), "{found}");
        let told = found["progress"].as_array().unwrap();
        assert!(told.contains(&json!([3.0, 3.0, "working"])), "{found}");
        if !is_fast {
            assert_eq!(found["parts"][2], json!(["one by one"]));
            assert!(told.iter().any(|told| told[2] == "one " || told[2] == "by "), "{found}");
            assert_eq!(found["cancelled"], true);
            assert!(found["unknown"].as_str().unwrap().contains("Unknown tool"), "{found}");
        }
    }
    let versions: Vec<_> = found.iter().map(|found| found["version"].as_str().unwrap_or_default()).collect();
    assert_eq!(versions[..3], ["2026-07-28", "2025-11-25", "2026-07-28"]);

    // A cancellation at the client cancels at the service.
    let mut clerk = Raw::start(&command(&stage, "clerk"), Some("2025-06-18")).await;
    assert_eq!(clerk.tools().await, ["audit_read", "log_append"]);
    let ended = async {
        loop {
            let audit = clerk.call("audit_read", json!({})).await;
            let text = audit["result"]["content"][0]["text"].as_str().unwrap().to_owned();
            if text.matches("job/run: ended before step").count() == 3 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    within(LONG, ended).await;
    clerk.end().await;
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_published_client_is_told_what_its_call_waits_for_and_makes_it_once_it_is_approved() {
    let Some(python) = python() else { return };
    let stage = demo().await;
    enrol(&stage, "tess", "treasurer", "eddsa");
    let tess = |words: &[&str]| {
        stage.shell.run_args(&[&["approvals"], words, &["--creds", "tess.creds.json", "--json"]].concat()).ok().json()
    };
    let pay = async |names| clients(python, "pay", names, &command(&stage, "planner")).await;
    // It is the same call, whichever client makes it.
    let waiting = pay("auto,legacy,fastmcp").await;
    let listed = tess(&["list", "tools"]);
    let id = listed["approvals"][0]["id"].as_str().unwrap();
    assert_eq!(listed["approvals"].as_array().unwrap().len(), 1, "{listed}");
    for found in &waiting {
        let said = found["paid"][2][0].as_str().unwrap();
        assert_eq!(found["paid"][0], true, "{found}");
        for part in [id, "has not run", "treasurer (0 of 1 so far, by treasurer)", "exactly the same arguments"] {
            assert!(said.contains(part), "{part}: {said}");
        }
    }
    let seen = tess(&["show", "tools", id])["digest"].as_str().unwrap().to_owned();
    tess(&["approve", "tools", id, "--digest", &seen]);
    let paid = pay("fastmcp,auto").await;
    assert_eq!(paid[0]["paid"][0], false, "{paid:?}");
    let again = paid[1]["paid"][2][0].as_str().unwrap();
    assert!(paid[1]["paid"][0] == true && again.contains("has begun before"), "{again}");
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_of_mcp_behind_the_bus_is_one_at_the_gateway() {
    let Some(python) = python() else { return };
    let backend = server_of_mcp(python);
    let stage = Stage::new("[role.user]\nallow = [\"*\"]\n", &backend).await;
    let mut modern = Raw::start(&command(&stage, "planner"), None).await;
    assert_eq!(modern.tools().await, Vec::<String>::new(), "nothing is approved");
    modern.listen().await;
    stage.shell.run("tools approve --yes").ok();
    within(LONG, modern.note("notifications/tools/list_changed")).await;
    let names = modern.tools().await;
    assert!(names.contains(&"t_add".to_owned()) && !names.iter().any(|name| name.contains("read")), "{names:?}");

    for found in clients(python, "ask", "auto,legacy", &command(&stage, "planner")).await {
        assert!(found["asked"].to_string().contains("large"), "{found}");
        assert_eq!((&found["resource"], &found["resources"]), (&json!("the first"), &json!(["test://one"])));
        assert_eq!(found["prompt"], "cats");
    }

    // Its results and errors are what they were; SPEC.md §25.3 for the question that nobody can be asked.
    let sum = modern.call("t_add", json!({ "a": 1, "b": 2 })).await;
    assert_eq!(sum["result"]["structuredContent"], json!({ "sum": 3 }), "{sum}");
    let echo = modern.call("t_echo", json!({ "text": "hi", "count": 2 })).await;
    assert_eq!(echo["result"]["content"].as_array().unwrap().len(), 2, "{echo}");
    let failed = modern.call("t_fail", json!({})).await;
    assert_eq!(
        (&failed["result"]["isError"], &failed["result"]["content"][0]["text"]),
        (&json!(true), &json!("there is no such city"))
    );
    let unasked = modern.call("t_ask", json!({})).await;
    assert!(unasked["result"]["content"][0]["text"].as_str().unwrap().contains("cancel"), "{unasked}");
    assert_eq!(modern.ask("resources/read", json!({ "uri": "test://two" })).await["error"]["code"], -32602);
    assert_eq!(modern.ask("prompts/list", json!({})).await["result"]["prompts"][0]["name"], "p");
    assert_eq!(modern.ask("resources/list", json!({ "cursor": "9:x" })).await["error"]["code"], -32602);

    // A call that asks waits for its client, and for nobody else.
    modern.forms = true;
    let asks = modern.call("t_ask", json!({})).await;
    assert_eq!(
        (&asks["result"]["resultType"], &asks["result"]["inputRequests"]["size"]["method"]),
        (&json!("input_required"), &json!("elicitation/create")),
        "{asks}"
    );
    let state = &asks["result"]["requestState"];
    let answer = json!({ "size": { "action": "accept", "content": { "size": "small" } } });
    let other = json!({ "name": "t_fail", "arguments": {}, "requestState": state, "inputResponses": answer });
    assert_eq!(modern.ask("tools/call", other.clone()).await["error"]["code"], -32602);
    let again = modern.call("t_ask", json!({})).await;
    let same = json!({ "name": "t_ask", "arguments": {}, "requestState": again["result"]["requestState"], "inputResponses": answer });
    // One question too many is refused at once, and ends nothing.
    let hello =
        json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "raw", "version": "1" } });
    let mut refused = Vec::new();
    for (method, params) in [("initialize", &hello), ("tools/call", &same)] {
        let line = json!({ "jsonrpc": "2.0", "id": method, "method": method, "params": params });
        modern.write(&line.to_string()).await;
        refused.push(modern.next().await);
    }
    modern.forms = false;
    refused.push(modern.ask("tools/call", same.clone()).await);
    modern.forms = true;
    for refused in &refused[1..] {
        let error = &refused["error"];
        assert_eq!((&error["code"], &error["data"]["outcome"]), (&json!(-32602), &json!("unknown")), "{refused}");
        assert!(error["message"].as_str().unwrap().contains("`elicitation`"), "{refused}");
    }
    let done = modern.ask("tools/call", same.clone()).await;
    assert!(done["result"]["content"][0]["text"].as_str().unwrap().contains("small"), "{done}");
    assert_eq!(modern.ask("tools/call", same).await["error"]["code"], -32602, "once");
    modern.end().await;
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_wrong_is_said_and_what_is_too_much_refused() {
    let mut stage = demo().await;
    let gateway = command(&stage, "planner");
    let mut modern = Raw::start(&gateway, None).await;
    assert_eq!(modern.discovered["supportedVersions"], json!(["2026-07-28"]));
    for (line, code) in [
        ("{", -32700),
        ("[]", -32600),
        (r#"[{"jsonrpc":"2.0","id":1,"method":"tools/list"}]"#, -32600),
        (r#"{"jsonrpc":"1.0","id":1,"method":"tools/list"}"#, -32600),
        (r#"{"jsonrpc":"2.0","id":1,"method":"a","method":"b"}"#, -32600),
        (r#"{"jsonrpc":"2.0","id":1.5,"method":"tools/list"}"#, -32600),
        (r#"{"jsonrpc":"2.0","id":null,"method":"tools/list"}"#, -32600),
        (r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#, -32602),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}"#,
            -32602,
        ),
        (
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2099-01-01"}}}"#,
            -32022,
        ),
    ] {
        modern.write(line).await;
        assert_eq!(modern.next().await["error"]["code"], code, "{line}");
    }
    assert_eq!(modern.ask("tools/none", json!({})).await["error"]["code"], -32601);
    assert_eq!(modern.ask("ping", json!({})).await["error"]["code"], -32601, "not in this revision");
    for (params, code) in [
        (json!({ "name": "none" }), -32602),
        (json!({}), -32602),
        (json!({ "name": "math_add", "arguments": [1, 2] }), -32602),
        (json!({ "name": "clock_ticks", "arguments": {} }), -32602),
    ] {
        assert_eq!(modern.ask("tools/call", params.clone()).await["error"]["code"], code, "{params}");
    }
    let wrong = modern.call("math_add", json!({ "a": "x" })).await;
    assert_eq!(wrong["result"]["isError"], true, "{wrong}");
    assert_eq!(wrong["result"]["_meta"]["dev.sealwire/error"]["code"], -32602, "{wrong}");
    // The model sees the policy's limit on the amount beforehand.
    let tools = modern.ask("tools/list", json!({})).await;
    let transfer =
        tools["result"]["tools"].as_array().unwrap().iter().find(|tool| tool["name"] == "bank_transfer").unwrap();
    assert_eq!(transfer["inputSchema"]["properties"]["amount"], json!({ "type": "integer", "maximum": 100 }));
    assert_eq!((&tools["result"]["cacheScope"], &tools["result"]["ttlMs"]), (&json!("private"), &json!(1000)));

    // One id twice, and more than its bound; a signal ends all of it.
    let job = |id: u64| {
        modern.request(json!(id), "tools/call", json!({ "name": "job_run", "arguments": { "steps": 5_999 } }))
    };
    let jobs: Vec<String> = (1_000..1_032).map(job).collect();
    let (twice, more) = (job(1_000), job(1_032));
    for line in jobs.iter().chain([&twice, &more]) {
        modern.write(line).await;
    }
    let refused = [modern.next().await, modern.next().await];
    assert!(refused[0]["error"]["message"].as_str().unwrap().contains("id"), "{refused:?}");
    assert!(refused[1]["error"]["message"].as_str().unwrap().contains("32 requests"), "{refused:?}");
    // They would be answered before the end of the input counts.
    modern.stop().await;

    // Another policy, other tools; clients with a handshake are notified.
    let mut legacy = Raw::start(&gateway, Some("2025-03-26")).await;
    assert!(legacy.tools().await.contains(&"math_add".to_owned()));
    let plain = legacy.call("math_add", json!({ "a": 1, "b": 2 })).await;
    assert_eq!(plain["result"], json!({ "content": [{ "type": "text", "text": "3" }] }), "as that revision has it");
    stage.shell.write("policies/tools.toml", "[role.user]\nallow = [\"math/mul\"]\n");
    within(LONG, legacy.note("notifications/tools/list_changed")).await;
    assert_eq!(legacy.tools().await, ["math_mul"]);
    assert_eq!(legacy.ask("ping", json!({})).await["result"], json!({}));

    legacy.end().await;

    // The broker goes away during a call, and comes back. A call that the service refuses as stale meanwhile ends with its deadline.
    let short = [gateway.clone(), vec!["--deadline".to_owned(), "5s".to_owned()]].concat();
    let mut legacy = Raw::start(&short, Some("2025-11-25")).await;
    assert_eq!(legacy.tools().await, ["math_mul"]);
    stage.server.kill().await;
    let away = async {
        loop {
            let away = legacy.call("math_mul", json!({ "a": 2, "b": 3 })).await;
            let text = away["result"]["content"][0]["text"].as_str().unwrap_or_default();
            // Until the gateway has heard that the connection is lost, it sends, and does not know the outcome.
            if away["result"]["isError"] == true && text.contains("nothing was sent") {
                break;
            }
        }
    };
    within(LONG, away).await;
    stage.server.restart().await;
    let back = async {
        while legacy.call("math_mul", json!({ "a": 2, "b": 3 })).await["result"]["content"][0]["text"] != "6" {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    within(2 * LONG, back).await;
    legacy.end().await;

    let mut long = Raw::spawn(&gateway);
    long.write(&"x".repeat((1 << 20) + 1)).await;
    let status = within(LONG, long.child.wait()).await.unwrap();
    let mut said = String::new();
    long.child.stderr.take().unwrap().read_to_string(&mut said).await.unwrap();
    assert!(status.code() == Some(30) && said.contains("1 MiB"), "{status} {said}");
    stage.end().await;
}

#[tokio::test]
async fn a_broker_that_is_away_is_told_and_never_waited_for() {
    let shell = prepared(&format!("nats://127.0.0.1:{}", free_port()), "", "");
    let credentials = shell.path("planner.creds.json").display().to_string();
    let gateway = ["mcp", "--creds", &credentials, "--service", "tools"].map(str::to_owned);
    for version in [None, Some("2025-11-25")] {
        let mut raw = Raw::start(&gateway, version).await;
        let tools = within(LONG, raw.ask("tools/list", json!({}))).await;
        assert_eq!(tools["error"]["code"], -32603, "{tools}");
        assert!(tools["error"]["message"].as_str().unwrap().contains("cannot be reached"), "{tools}");
        raw.end().await;
    }
    shell.run(&format!("mcp --creds {credentials}")).fails(2, &["which services"]);
}

/// The exit code of a program that gets these lines and then the end of its input, and what it printed.
async fn piped(gateway: &[String], lines: &str) -> (Option<i32>, Vec<Value>, String) {
    let mut raw = Raw::spawn(gateway);
    raw.write(lines.trim_end()).await;
    let output = raw.rest().await;
    let printed = String::from_utf8(output.stdout).unwrap();
    let printed = printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    (output.status.code(), printed, String::from_utf8_lossy(&output.stderr).into_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_asked_before_the_input_ended_is_answered() {
    let stage = demo().await;
    let gateway = command(&stage, "planner");
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let call = |id: u64, tool: &str, arguments: Value| {
        let params = json!({ "name": tool, "arguments": arguments, "_meta": meta });
        json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params }).to_string()
    };
    let hello = json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "echo", "version": "1" } });
    let hello = json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello }).to_string();
    let list = r#"{"jsonrpc":"2.0","id":2,"method":"tools/list"}"#;
    let add = call(1, "math_add", json!({ "a": 2, "b": 3 }));
    for (lines, expected) in [
        (add.clone(), 1),
        // A line of several hundred milliseconds, and one without a line break at its end.
        ([call(1, "job_run", json!({ "steps": 3 })), call(2, "math_add", json!({ "a": 2, "b": 3 }))].join("\n"), 2),
        ([hello, list.to_owned()].join("\n"), 2),
        (String::new(), 0),
    ] {
        let (code, printed, said) = piped(&gateway, &lines).await;
        assert_eq!((code, printed.len()), (Some(0), expected), "{lines} {printed:?} {said}");
        assert!(printed.iter().all(|answer| answer["result"].is_object()), "{printed:?}");
    }
    // A call of the past is ended by its deadline, and a signal ends everything at once.
    let short = [gateway.clone(), vec!["--deadline".to_owned(), "1s".to_owned()]].concat();
    let (code, printed, said) = piped(&short, &call(1, "job_run", json!({ "steps": 5_999 }))).await;
    assert_eq!((code, printed.len()), (Some(0), 1), "{printed:?} {said}");
    let mut raw = Raw::spawn(&gateway);
    raw.write(&call(1, "job_run", json!({ "steps": 5_999 }))).await;
    raw.close();
    catches(SIGTERM, raw.child.id().unwrap()).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(raw.child.try_wait().unwrap().is_none(), "the call goes on");
    send(SIGTERM, raw.child.id().unwrap());
    assert!(within(LONG, raw.child.wait()).await.unwrap().success());

    // `ping` needs no handshake.
    let ping = r#"{"jsonrpc":"2.0","id":"p","method":"ping"}"#;
    let (code, printed, _) = piped(&gateway, ping).await;
    assert_eq!((code, printed), (Some(0), vec![json!({ "jsonrpc": "2.0", "id": "p", "result": {} })]));

    // A client that has closed its end is gone, which is noticed with the next line, and no failure.
    let mut raw = Raw::spawn(&gateway);
    raw.deafen();
    for _ in 0..2 {
        raw.write(ping).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let output = within(LONG, raw.rest()).await;
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("closed its end of standard output") && !said.contains("60 s"), "{said}");
    stage.end().await;
}
