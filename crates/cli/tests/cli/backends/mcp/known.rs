//! Third-party servers, and servers made with third-party packages.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use sealwire::internal::rpc::Request;
use sealwire_testkit::python::python;
use sealwire_testkit::{NatsServer, page, root, within};
use serde_json::{Value, json};

use super::super::stage::{LONG, POLICY, Stage, prepared};
use super::{approved, refused};
use crate::shell::Shell;

fn backend(name: &str, command: &[&str]) -> String {
    format!("[[backend]]\nname = \"{name}\"\nkind = \"mcp\"\nprefix = \"{name}\"\ncommand = {command:?}\n")
}

pub(super) async fn until(file: &Path, text: &str) {
    let there = async {
        while std::fs::read_to_string(file).ok().as_deref() != Some(text) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    within(LONG, there).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn published_servers_are_served_under_policies() {
    let Some(python) = python() else { return };
    let program = |name: &str| python.with_file_name(name).display().to_string();
    let repository = tempfile::tempdir().unwrap();
    let at = repository.path().to_str().unwrap();
    let git = Command::new("git").args(["init", "--quiet", "-b", "trunk", at]).status().unwrap();
    assert!(git.success());
    let policy = format!(
        "[role.user]\ndescription = \"Users.\"\n[rule.europe]\nroles = [\"user\"]\nallow = [\"time/get_current_time\"]\n\
         when.params.timezone = {{ glob = \"Europe/*\" }}\n\
         [rule.repository]\nroles = [\"user\"]\nallow = [\"git/git_status\", \"git/git_log\"]\n\
         when.params.repo_path = \"{at}\"\n"
    );
    let text = backend("time", &[&program("mcp-server-time")])
        + &backend("git", &[&program("mcp-server-git"), "--repository", at]);
    let stage = Stage::new(&policy, &text).await;
    stage.shell.run("tools approve --yes").ok();

    let time = approved(&stage, "time/get_current_time", json!({ "timezone": "Europe/Berlin" })).await;
    assert!(time.to_string().contains("Europe/Berlin"), "{time}");
    assert_eq!(refused(stage.call("time/get_current_time", json!({ "timezone": "Asia/Tokyo" })).await).0, -32002);
    assert_eq!(refused(stage.call("time/convert_time", json!({})).await).0, -32002);
    let status = approved(&stage, "git/git_status", json!({ "repo_path": at })).await;
    assert!(status.to_string().contains("trunk"), "{status}");
    assert_eq!(refused(stage.call("git/git_status", json!({ "repo_path": "/" })).await).0, -32002);
    // There is no commit yet: the tool's own error.
    assert_eq!(refused(stage.call("git/git_log", json!({ "repo_path": at })).await).0, 1);
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_made_with_mcp_and_fastmcp_are_called_streamed_cancelled_and_killed() {
    let Some(python) = python() else { return };
    let (python, made) = (python.to_str().unwrap(), root().join("crates/cli/tests/cli/backends/mcp/made.py"));
    let made = made.to_str().unwrap();
    let policy = "[role.user]\nallow = [\"*\"]\n[rule.small]\nroles = [\"user\"]\ndeny = [\"mcp/add\", \"fastmcp/add\"]\n\
                  when.params.a = { min = 100 }\n";
    let text = ["mcp", "fastmcp"].map(|package| backend(package, &[python, "-B", made, package])).concat();
    let stage = Stage::new(policy, &text).await;
    stage.shell.run("tools approve --yes").ok();

    for package in ["mcp", "fastmcp"] {
        let method = |tool: &str| format!("{package}/{tool}");
        assert_eq!(approved(&stage, &method("add"), json!({ "a": 2, "b": 3 })).await, json!({ "result": 5 }));
        assert_eq!(refused(stage.call(&method("add"), json!({ "a": 100, "b": 3 })).await).0, -32002);
        assert_eq!(refused(stage.call(&method("count"), json!({ "to": "x" })).await).0, -32602);

        let told: Arc<Mutex<Vec<Request>>> = Arc::default();
        let listener = Arc::clone(&told);
        let request = stage.client.request("tools").on_notification(move |note| listener.lock().unwrap().push(note));
        let mut counted = request.stream::<Value>(&method("count"), json!({ "to": 3 }));
        assert!(within(LONG, counted.next()).await.is_none());
        assert_eq!(within(LONG, counted.finish::<Value>()).await.unwrap(), json!({ "result": "there" }));
        let told = told.lock().unwrap().iter().map(|note| note.method.clone()).collect::<Vec<_>>();
        assert!(told.contains(&"rpc.progress".to_owned()), "{package}: {told:?}");

        let file = stage.shell.path(package);
        let hanging = stage.client.stream::<Value>("tools", &method("hang"), json!({ "file": package }));
        until(&file, "begun").await;
        assert!(within(LONG, hanging.cancel()).await);
        until(&file, "cancelled").await;

        assert_eq!(refused(stage.call(&method("leave"), json!({})).await).0, -32004);
        assert_eq!(approved(&stage, &method("add"), json!({ "a": 1, "b": 1 })).await, json!({ "result": 2 }));
    }
    stage.end().await;
}

/// Whatever order the members of a schema have, there and in the lock file.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_skeleton_is_what_the_service_takes_before_and_after_approval_for_every_server() {
    let Some(python) = python() else { return };
    let program = |name: &str| python.with_file_name(name).display().to_string();
    let (python, here) = (python.to_str().unwrap(), root().join("crates/cli/tests/cli/backends/mcp"));
    let script = |name: &str| here.join(name).display().to_string();
    let server = NatsServer::start().await;
    let mut shell = prepared(&server.url(), POLICY, "");
    let schema = json!({ "type": "object", "required": ["zone", "b.c"], "properties": {
        "zone": { "type": "string" }, "b.c": { "type": "integer" }, "a \"quoted\"": { "type": "boolean" }, "ä": { "type": "number" },
        "B": { "type": "array", "items": { "type": "string" } }, "__proto__": {}, "10": { "type": ["string", "null"] }, "9": true,
    } });
    let odd = json!({ "name": "odd", "inputSchema": schema });
    let odd = json!({ "tools/list": format!("{{\"jsonrpc\":\"2.0\",\"id\":$ID,\"result\":{{\"tools\":[{odd}]}}}}") });
    shell.write("odd.json", &odd.to_string());
    let at = shell.path("").display().to_string();
    assert!(Command::new("git").args(["init", "--quiet", &at]).status().unwrap().success());
    let servers: [(&str, Vec<String>); 8] = [
        ("time", vec![program("mcp-server-time")]),
        ("git", vec![program("mcp-server-git"), "--repository".to_owned(), at.clone()]),
        ("mcp", [python, "-B", &script("made.py"), "mcp"].map(str::to_owned).into()),
        ("fastmcp", [python, "-B", &script("made.py"), "fastmcp"].map(str::to_owned).into()),
        ("modern", [python, "-B", &script("server.py"), "modern", "modern.log"].map(str::to_owned).into()),
        ("legacy", [python, "-B", &script("server.py"), "legacy", "legacy.log"].map(str::to_owned).into()),
        ("greedy", [python, "-B", &script("greedy.py")].map(str::to_owned).into()),
        ("odd", [python, "-B", &script("said.py"), "odd.json"].map(str::to_owned).into()),
    ];
    let text: String = servers
        .iter()
        .map(|(name, command)| {
            let command: Vec<&str> = command.iter().map(String::as_str).collect();
            backend(name, &command)
        })
        .collect();
    shell.write("sealwire.toml", &format!("{}{text}", shell.read("sealwire.toml")));
    shell.run("policy skeleton").ok();
    let mut server = server;
    for round in ["new", "approved"] {
        if round == "approved" {
            shell.run("tools approve --yes").ok();
            shell.run("serve --check").ok();
            // And what a skeleton says after the approval.
            for (name, _) in &servers {
                std::fs::remove_file(shell.path(&format!("policies/{name}.toml"))).unwrap();
            }
            shell.run("policy skeleton").ok();
            shell.run("serve --check").ok();
        }
        let stage = Stage::begin(server, shell, &["serve"], &std::env::var("PATH").unwrap()).await.ready().await;
        (server, shell) = stage.stopped().await;
    }
}

/// The first lines under "What you have already" of README.md.
fn readme_lines() -> [String; 3] {
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    let block = page::blocks(page::section(&readme, "What you have already")).next().unwrap();
    block.lines.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>().try_into().unwrap()
}

/// What docs/backends.md says before the policy for that server, and the policy.
fn time_policy() -> (String, String) {
    let page = std::fs::read_to_string(root().join("docs/backends.md")).unwrap();
    let (_, text) = page.split_once("**A server from pip, under a policy.**").unwrap();
    (text.to_owned(), page::blocks(text).next().unwrap().text())
}

/// The three lines of README.md unchanged, and the policy of docs/backends.md.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_lines_put_a_server_from_pip_under_policies() {
    let Some(python) = python() else { return };
    let [install, approve, serve] = readme_lines();
    let server = NatsServer::start().await;
    let shell = prepared(&server.url(), &time_policy().1, "");
    // A reader has a Python environment; this one is not empty, so that nothing has to be downloaded.
    let path = format!("{}:{}", python.parent().unwrap().display(), page::path_with(env!("CARGO_BIN_EXE_sealwire")));
    let bash = |line: &str, before: &[&str]| {
        let words: Vec<&str> = before.iter().copied().chain(["bash", "-euc", line]).collect();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).current_dir(shell.path("")).env("PATH", &path).env("HOME", shell.path(""));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let installed = bash(&install, &[]).wait_with_output().unwrap();
    assert!(installed.status.success(), "{installed:?}");
    // On a terminal, with somebody who says yes.
    let mut asked = bash(&approve, &["python3", "-c", "import pty, sys; pty.spawn(sys.argv[1:])"]);
    asked.stdin.as_mut().unwrap().write_all(b"y\ny\n").unwrap();
    let asked = asked.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&asked.stdout);
    assert!(said.contains("new tool `get_current_time`") && said.contains("2 approved"), "{asked:?}");

    let words: Vec<&str> = serve.split_whitespace().collect();
    assert_eq!(words[0], "sealwire");
    let stage = Stage::begin(server, shell, &words[1..], &path).await;
    within(LONG, stage.client.wait_for("tools", LONG)).await.unwrap();
    let time = approved(&stage, "get_current_time", json!({ "timezone": "Europe/Berlin" })).await;
    assert!(time.to_string().contains("Europe/Berlin"), "{time}");
    assert_eq!(refused(stage.call("get_current_time", json!({ "timezone": "Asia/Tokyo" })).await).0, -32002);
    stage.end().await;
}

/// The same in a folder of `sealwire init`: its own policy goes first, as docs/backends.md says, and the first agent may call.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_server_from_pip_is_served_where_init_has_been() {
    let Some(python) = python() else { return };
    let (text, policy) = time_policy();
    let remove = text.split('`').find(|code| code.starts_with("rm ")).unwrap();
    let server = NatsServer::start().await;
    let shell = Shell::new();
    shell.run(&format!("init . --url {}", server.url())).ok();
    let path = format!("{}:{}", python.parent().unwrap().display(), page::path_with(env!("CARGO_BIN_EXE_sealwire")));
    let bash = |line: &str| {
        let mut command = Command::new("bash");
        command.args(["-euc", line]).current_dir(shell.path("")).env("PATH", &path).env("HOME", shell.path(""));
        command.stdin(Stdio::null()).output().unwrap()
    };
    let approved = bash("sealwire tools approve --yes -- mcp-server-time");
    assert!(approved.status.success(), "{approved:?}");
    let check = "sealwire serve mcp --check -- mcp-server-time";
    let refused = bash(check);
    assert_eq!(refused.status.code(), Some(11), "{refused:?}");
    assert!(bash(remove).status.success());
    shell.write("policies/time.toml", &policy);
    let fits = bash(check);
    assert!(fits.status.success(), "{fits:?}");
    let serve = ["-euc", "exec sealwire serve mcp -- mcp-server-time"];
    let mut command = Command::new("bash");
    command.args(serve).current_dir(shell.path("")).env("PATH", &path).env("HOME", shell.path(""));
    let mut service = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let call = |zone: &str| {
        bash(&format!(
            "sealwire call --creds planner.creds.json --wait 60s math get_current_time '{{\"timezone\": \"{zone}\"}}'"
        ))
    };
    // The service may be ready before its program is.
    let begun = Instant::now();
    let mut here = call("Europe/Berlin");
    while !here.status.success() && begun.elapsed() < LONG {
        here = call("Europe/Berlin");
    }
    let there = call("Asia/Tokyo");
    service.kill().unwrap();
    service.wait().unwrap();
    assert!(here.status.success() && String::from_utf8_lossy(&here.stdout).contains("Europe/Berlin"), "{here:?}");
    assert!(!there.status.success() && String::from_utf8_lossy(&there.stderr).contains("-32002"), "{there:?}");
}
