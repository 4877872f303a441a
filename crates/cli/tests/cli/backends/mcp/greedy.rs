//! A server whose schemas need more stack, memory and time than there is.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use sealwire_backend::{Approval, Kind, Lock, Pin};
use sealwire_testkit::python::python;
use sealwire_testkit::{root, within};
use serde_json::{Value, json};

use super::super::stage::{LONG, POLICY, Stage};
use super::{approved, refused, text};
use crate::process::says;

/// The server's definition of a tool.
fn listed(python: &Path, server: &Path, name: &str) -> Value {
    let mut child =
        Command::new(python).arg("-B").arg(server).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let asked = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list" });
    child.stdin.take().unwrap().write_all(format!("{asked}\n").as_bytes()).unwrap();
    let said: Value = serde_json::from_slice(&child.wait_with_output().unwrap().stdout).unwrap();
    said["result"]["tools"].as_array().unwrap().iter().find(|tool| tool["name"] == name).unwrap().clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schemas_that_want_too_much_leave_the_other_methods_answering() {
    let Some(python) = python() else { return };
    let server = root().join("crates/cli/tests/cli/backends/mcp/greedy.py");
    let backend = format!(
        "[[backend]]\nname = \"greedy\"\nkind = \"mcp\"\nprefix = \"t\"\ncommand = [\"{}\", \"-B\", \"{}\"]\n",
        python.display(),
        server.display()
    );
    let mut stage = Stage::new(POLICY, &backend).await;
    stage.shell.run("tools list").ok().says("unusable  greedy: row").says("unusable  greedy: many");
    stage.shell.run("tools approve --yes").ok().says("2 approved");
    assert_eq!(approved(&stage, "t/good", json!({})).await, text(&["good"]));
    for unusable in ["t/row", "t/many"] {
        assert_eq!(refused(stage.call(unusable, json!({})).await).0, -32004, "{unusable}");
    }

    // For example, approved by an earlier version: that its patterns are too large shows only when they are compiled.
    let lock = stage.shell.path(Lock::FILE);
    let definition = serde_json::value::to_raw_value(&listed(python, &server, "many")).unwrap();
    let pin = Pin::of(&definition).unwrap();
    Lock::load(&lock).unwrap().amend(&lock, [Approval::new("greedy", Kind::Tool, "many", pin)]).unwrap();
    says(&mut stage.stderr, "the tool `many` cannot be used").await;
    let said = stage.stderr.borrow().clone();
    assert!(
        said.contains("`many` cannot be used backend=\"greedy\" reason=\"`inputSchema`: the patterns of"),
        "{said}"
    );
    assert!(!said.contains("the tool `many` is approved"), "{said}");
    let offered = stage.shell.run("discover tools --creds planner.creds.json").ok().stdout;
    assert!(offered.contains("t/good") && !offered.contains("t/many"), "{offered}");
    assert_eq!(refused(stage.call("t/many", json!({})).await).0, -32004);

    // More of them than there are workers, each longer than its caller waits.
    let calls = (0..4).map(|_| {
        let request = stage.client.request("tools").deadline(Duration::from_secs(2));
        tokio::spawn(request.call::<Value>("t/wide", json!({ "x": "ab".repeat(250) })))
    });
    let calls: Vec<_> = calls.collect();
    for _ in 0..10 {
        assert_eq!(stage.call("t/good", json!({})).await.unwrap(), text(&["good"]));
    }
    for call in calls {
        // In time, or not.
        drop(within(LONG, call).await.unwrap());
    }
    // This is refused regardless of timing.
    let long = refused(stage.call("t/wide", json!({ "x": "ab".repeat(80_000) })).await);
    assert!(long.0 == -32602 && long.1.contains("too long for the patterns"), "{long:?}");
    assert_eq!(stage.call("t/good", json!({})).await.unwrap(), text(&["good"]));
    stage.end().await;
}
