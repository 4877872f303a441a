//! A server whose schemas want more stack, memory and time than there is.

use std::time::Duration;

use sealwire_testkit::python::python;
use sealwire_testkit::{root, within};
use serde_json::{Value, json};

use super::super::stage::{LONG, POLICY, Stage};
use super::{approved, refused, text};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schemas_that_want_too_much_leave_the_other_methods_answering() {
    let Some(python) = python() else { return };
    let server = root().join("crates/cli/tests/cli/backends/mcp/greedy.py");
    let backend = format!(
        "[[backend]]\nname = \"greedy\"\nkind = \"mcp\"\nprefix = \"t\"\ncommand = [\"{}\", \"-B\", \"{}\"]\n",
        python.display(),
        server.display()
    );
    let stage = Stage::new(POLICY, &backend).await;
    stage.shell.run("tools list").ok().says("unusable  greedy: row").says("unusable  greedy: many");
    stage.shell.run("tools approve --yes").ok().says("2 approved");
    assert_eq!(approved(&stage, "t/good", json!({})).await, text(&["good"]));
    for unusable in ["t/row", "t/many"] {
        assert_eq!(refused(stage.call(unusable, json!({})).await).0, -32004, "{unusable}");
    }

    // More of them than there are workers, and longer than their callers wait.
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
    // It is no matter of time that this is refused.
    let long = refused(stage.call("t/wide", json!({ "x": "ab".repeat(80_000) })).await);
    assert!(long.0 == -32602 && long.1.contains("too long for the patterns"), "{long:?}");
    assert_eq!(stage.call("t/good", json!({})).await.unwrap(), text(&["good"]));
    stage.end().await;
}
