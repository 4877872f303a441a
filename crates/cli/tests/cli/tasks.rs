//! `sealwire call --detach` and `sealwire task`: SPEC.md §6.5.

use std::time::Duration;

use sealwire::internal::files::write_secret;
use sealwire::{Ctx, Idempotent, Router, RpcError};
use sealwire_testkit::NatsServer;
use sealwire_testkit::desk::b64;
use sealwire_testkit::site::Site;
use serde_json::json;

use crate::shell::{Ran, Shell};

const HOUR: Duration = Duration::from_secs(3600);

/// A method that takes as many milliseconds as it is told, or fails.
async fn work(_: Ctx, (ms,): (u64,)) -> Result<u64, RpcError> {
    tokio::time::sleep(Duration::from_millis(ms)).await;
    if ms == 13 { Err(RpcError::application(7, "unlucky")) } else { Ok(ms) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_is_begun_looked_at_waited_for_and_cancelled() {
    let server = NatsServer::start().await;
    let site = Site::new(&server.url());
    let declared = Idempotent::keep(HOUR).only_as_task(HOUR);
    let served = site.serve(Router::new(()).method("site/work", work).idempotent("site/work", declared)).await;
    let shell = Shell::new();
    let mut master = [0x5a; 32];
    master[..3].copy_from_slice(b"ann");
    let creds = json!({
        "version": 1, "environment": "test", "agent": "ann", "token": site.token("ann", &["worker"]),
        "key": { "kid": "ann.k1", "alg": "HS256", "secret": b64(&master) }, "nats": { "urls": [server.url()] },
    });
    let file = site.path("ann.creds.json");
    write_secret(&file, &creds.to_string(), true).unwrap();
    let run = |args: &[&str]| -> Ran { shell.run_args(&[args, &["--creds", file.to_str().unwrap()]].concat()) };

    let begin = ["call", "site", "site/work", "[300]", "--detach", "--idempotency-key", "a key"];
    run(&begin).ok().says("a key\n");
    let begun = run(&[&begin[..], &["--json"]].concat()).ok().json();
    assert_eq!(begun, json!({ "task": { "service": "site", "method": "site/work", "key": "a key" } }));
    let task = |verb: &str, key: &str, more: &[&str]| run(&[&["task", verb, "site", "site/work", key], more].concat());
    assert_eq!(task("wait", "a key", &["--json"]).ok().json(), json!({ "result": 300 }));
    let got = task("get", "a key", &["--json"]).ok().json();
    assert_eq!((&got["task"]["state"], &got["task"]["outcome"]["result"]), (&json!("completed"), &json!(300)));
    task("get", "a key", &[]).ok().says("completed").says("kept until");

    // Without a key, it is made at random.
    let key = run(&["call", "site", "site/work", "[3600000]", "--detach", "--task-limit", "30m"]).ok().stdout;
    let key = key.trim();
    task("get", key, &[]).ok().says("working").says("at the latest");
    task("wait", key, &["--limit", "1ms"]).fails(23, &["still runs", "--limit"]);
    let cancelled = task("cancel", key, &["--json"]).ok().json();
    assert_eq!(cancelled["task"]["cancelling"], true, "{cancelled}");
    task("wait", key, &[]).fails(21, &["was cancelled"]);
    task("cancel", key, &[]).ok().says("cancelled");

    run(&["call", "site", "site/work", "[13]", "--detach", "--idempotency-key", "f"]).ok();
    let error = task("wait", "f", &["--json"]).fails(21, &[]).error();
    assert_eq!((&error["rpc"]["code"], &error["kind"]), (&json!(7), &json!("remote_error")), "{error}");
    let absent = task("get", "no", &["--json"]);
    assert_eq!((absent.code, absent.json()), (21, json!({ "task": { "state": "absent" } })));
    task("wait", "no", &[]).fails(21, &["no such task"]);
    run(&["call", "site", "site/work", "[1]"]).fails(21, &["as a task only", "--detach"]);
    served.stop().await.unwrap();
}
