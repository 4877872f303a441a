//! Third-party servers, and servers made with third-party packages.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt as _;
use sealwire::rpc::Request;
use sealwire_testkit::python::python;
use sealwire_testkit::{NatsServer, page, root, within};
use serde_json::{Value, json};

use super::super::stage::{LONG, Stage, prepared};
use super::{approved, refused};

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

/// README.md, "Somebody else's tools": its three lines unchanged, and its policy.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_lines_put_a_server_from_pip_under_policies() {
    let Some(python) = python() else { return };
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    let blocks: Vec<_> = page::blocks(page::section(&readme, "Somebody else's tools")).collect();
    let [typed, policy] = blocks.as_slice() else { panic!("{}", blocks.len()) };
    let [install, approve, serve] = typed.lines[..] else { panic!("{:?}", typed.lines) };
    let server = NatsServer::start().await;
    let shell = prepared(&server.url(), &policy.text(), "");
    // A reader has a Python environment; this one is not empty, so that nothing has to be downloaded.
    let path = format!("{}:{}", python.parent().unwrap().display(), page::path_with(env!("CARGO_BIN_EXE_sealwire")));
    let bash = |line: &str, before: &[&str]| {
        let words: Vec<&str> = before.iter().copied().chain(["bash", "-euc", line]).collect();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).current_dir(shell.path("")).env("PATH", &path).env("HOME", shell.path(""));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let installed = bash(install, &[]).wait_with_output().unwrap();
    assert!(installed.status.success(), "{installed:?}");
    // On a terminal, with somebody who says yes.
    let mut asked = bash(approve, &["python3", "-c", "import pty, sys; pty.spawn(sys.argv[1:])"]);
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
