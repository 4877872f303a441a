//! `sealwire approvals`: a call that waits, the person who looks at it, and the call that then runs.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use sealwire_testkit::{SOON, within};
use tokio::process::Child;

use crate::call::Bench;
use crate::process::{SIGTERM, heard, says, send, spawn, whole};
use crate::shell::Ran;

const POLICY: &str = r#"
[role.calc]
allow = ["math/*"]

[role.treasurer]
from = "files"
allow = ["rpc.*"]

[agent.eve]
roles = ["treasurer"]

[approval.treasurer]
from = ["treasurer"]

[rule.large]
everyone = true
deny = ["math/mul"]
unless_approved = "treasurer"
when.params.a = { min = 100 }
"#;

/// Calls `math/mul` as `planner`.
fn mul(bench: &Bench, params: &str) -> Ran {
    bench.run(&["call", "demo", "math/mul", params, "--json"])
}

/// The id of the request that a call waits for.
fn waits(ran: Ran) -> String {
    let error = ran.fails(16, &[]).error();
    assert_eq!((&error["kind"], &error["rpc"]["code"]), (&json!("approval_required"), &json!(-32018)), "{error}");
    error["rpc"]["data"]["approval"].as_str().unwrap().to_owned()
}

fn approvals(bench: &Bench, agent: &str, args: &[&str]) -> Ran {
    let creds = format!("{agent}.creds.json");
    bench.shell.run_args(&[&["approvals"], args, &["--creds", &creds]].concat())
}

async fn bench() -> Bench {
    bench_with("").await
}

/// With more in the configuration.
async fn bench_with(more: &str) -> Bench {
    let bench = Bench::start_with(more, |router| router).await;
    let service = bench.shell.read_json("demo.service-key.json");
    let (kid, x) = (service["kid"].as_str().unwrap(), service["x"].as_str().unwrap());
    bench.shell.run(&format!("keys pin eve.creds.json --service demo --kid {kid} --x {x} --only")).ok();
    bench.shell.write("policies/demo.toml", POLICY);
    let began = Instant::now();
    // Until the service has read it.
    while bench.run(&["call", "demo", "bank/balance", "[\"bob\"]"]).code != 10 {
        assert!(began.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(100));
    }
    bench
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_waits_is_listed_shown_approved_and_made_once() {
    let bench = bench().await;
    let id = waits(mul(&bench, r#"{"a":100,"b":2}"#));
    bench
        .run(&["call", "demo", "math/mul", r#"{"a":100,"b":2}"#])
        .fails(16, &["approval required", "approvals list demo"]);
    let listed = approvals(&bench, "eve", &["list", "demo", "--json"]).ok().json();
    assert_eq!((&listed["approvals"][0]["id"], listed["approvals"].as_array().unwrap().len()), (&json!(id), 1));
    approvals(&bench, "eve", &["list", "demo"]).ok().says(&id).says("math/mul").says("pending");

    let shown = approvals(&bench, "eve", &["show", "demo", &id]).ok();
    for line in
        ["    a = 100\n", "    b = 2\n", "  agent           planner\n", "on behalf of    nobody", "treasurer: 0 of 1"]
    {
        assert!(shown.stdout.contains(line), "{line}: {shown:?}");
    }
    let digest = shown.stdout.lines().last().unwrap().split_whitespace().last().unwrap().to_owned();
    // Nobody is there to look at it, or it is not what was looked at.
    approvals(&bench, "eve", &["approve", "demo", &id]).fails(2, &["nobody can be asked", "--digest"]);
    approvals(&bench, "eve", &["approve", "demo", &id, "--json"]).fails(2, &[]);
    let other = waits(mul(&bench, r#"{"a":101,"b":2}"#));
    approvals(&bench, "eve", &["approve", "demo", &other, "--digest", &digest])
        .fails(30, &["not the one with this digest"]);
    waits(mul(&bench, r#"{"a":100,"b":2}"#));

    let approve = ["approve", "demo", &id, "--digest", &digest, "--reason", "two times a hundred", "--json"];
    let approved = approvals(&bench, "eve", &approve).ok().json();
    assert_eq!((&approved["state"], &approved["needs"][0]["have"]), (&json!("approved"), &json!(1)), "{approved}");
    approvals(&bench, "eve", &["show", "demo", &id]).ok().says("eve (treasurer)").says("two times a hundred");
    assert_eq!(mul(&bench, r#"{"a":100,"b":2}"#).ok().json(), json!({ "result": 200 }));
    let again = mul(&bench, r#"{"a":100,"b":2}"#).fails(21, &[]).error();
    assert_eq!(again["rpc"]["data"]["state"], "consumed", "{again}");
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_is_denied_by_who_may_decide_or_withdrawn_and_by_nobody_else() {
    let bench = bench().await;
    let digest = |agent: &str, id: &str| -> Value {
        approvals(&bench, agent, &["show", "demo", id, "--json"]).ok().json()["digest"].clone()
    };
    let id = waits(mul(&bench, r#"{"a":100,"b":3}"#));
    // The policy does not let `planner` look at requests at all.
    approvals(&bench, "planner", &["show", "demo", &id]).fails(10, &["rpc.approval"]);
    let seen = digest("eve", &id);
    let deny = ["deny", "demo", &id, "--digest", seen.as_str().unwrap(), "--reason", "no", "--json"];
    assert_eq!(approvals(&bench, "eve", &deny).ok().json()["state"], "denied");
    let denied = mul(&bench, r#"{"a":100,"b":3}"#).fails(10, &[]).error();
    assert_eq!(
        (&denied["rpc"]["code"], &denied["rpc"]["data"]["state"]),
        (&json!(-32002), &json!("denied")),
        "{denied}"
    );
    let open = approvals(&bench, "eve", &["list", "demo", "--json"]).ok().json();
    let all = approvals(&bench, "eve", &["list", "demo", "--all", "--json"]).ok().json();
    assert_eq!(
        (open["approvals"].as_array().unwrap().len(), all["approvals"][0]["state"].clone()),
        (0, json!("denied"))
    );
    bench.end().await;
}

/// Approves or denies a request as `eve`, who has looked at it.
fn decide(bench: &Bench, id: &str, decision: &str) {
    let seen = approvals(bench, "eve", &["show", "demo", id, "--json"]).ok().json()["digest"].clone();
    approvals(bench, "eve", &[decision, "demo", id, "--digest", seen.as_str().unwrap(), "--reason", "so"]).ok();
}

/// A call of `planner` that waits for people, with further arguments.
fn waiting(bench: &Bench, params: &str, more: &[&str]) -> Child {
    let call = ["call", "--creds", "planner.creds.json", "demo", "math/mul", params, "--wait-approval"];
    spawn(&bench.shell, &[&call[..], more].concat())
}

/// Its exit code, stdout and stderr.
async fn ended(child: Child) -> (i32, String, String) {
    let output = within(SOON, child.wait_with_output()).await.unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

/// The request that a call waits for, once there is one.
async fn listed(bench: &Bench) -> String {
    within(SOON, async {
        loop {
            let all = approvals(bench, "eve", &["list", "demo", "--json"]).ok().json();
            match all["approvals"][0]["id"].as_str() {
                Some(id) => return id.to_owned(),
                None => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_waits_for_people_as_long_as_it_is_told_to() {
    let bench = bench().await;
    let child = waiting(&bench, "[100,4]", &["5m"]);
    let id = listed(&bench).await;
    decide(&bench, &id, "approve");
    let (code, stdout, stderr) = ended(child).await;
    assert_eq!((code, stdout.as_str()), (0, "400\n"), "{stderr}");
    let shown = format!("sealwire approvals show demo {id}");
    assert!(stderr.contains("treasurer, 0 of 1 by treasurer") && stderr.contains(&shown), "{stderr}");
    assert_eq!(stderr.matches("waiting for approval until").count(), 1, "{stderr}");

    // Scripts are told nothing but the outcome.
    let child = waiting(&bench, "[100,5]", &["5m", "--json"]);
    let id = listed(&bench).await;
    decide(&bench, &id, "deny");
    let (code, stdout, stderr) = ended(child).await;
    let error: Value = serde_json::from_str(&stderr).unwrap();
    assert_eq!((code, stdout.as_str(), &error["error"]["kind"]), (10, "", &json!("denied")), "{stderr}");
    let help = error["error"]["help"].as_str().unwrap();
    assert!(help.contains(&format!("sealwire approvals show demo {id}")), "{help}");

    let (code, _, stderr) = ended(waiting(&bench, "[100,6]", &["1s"])).await;
    assert!(code == 16 && stderr.contains("send the same call again once it is approved"), "{stderr}");
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_waits_for_people_ends_with_a_signal_and_does_not_repeat() {
    let bench = bench().await;
    let mut child = waiting(&bench, "[100,7]", &["5m"]);
    let mut stderr = heard(child.stderr.take().unwrap());
    says(&mut stderr, "waiting for approval").await;
    send(SIGTERM, child.id().unwrap());
    assert_eq!(within(SOON, child.wait()).await.unwrap().code(), Some(130));
    let said = whole(&mut stderr).await;
    assert!(said.contains("stopped by a signal: the call waits for approval, and has not run"), "{said}");
    for other in [&["--every", "1s"][..], &["--stream"]] {
        let args = [&["call", "demo", "math/mul", "[100,7]", "--wait-approval", "5m"][..], other].concat();
        bench.run(&args).fails(2, &["cannot be used with"]);
    }
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_are_shown_as_they_come_and_so_is_their_end() {
    let bench = bench().await;
    // Older than the watch, and decided.
    let old = waits(mul(&bench, "[100,8]"));
    decide(&bench, &old, "deny");
    let watch = ["approvals", "watch", "demo", "--creds", "eve.creds.json", "--every", "1s", "--times", "3"];
    let open = waits(mul(&bench, "[100,9]"));
    let mut child = spawn(&bench.shell, &[&watch[..], &["--json"]].concat());
    let mut stdout = heard(child.stdout.take().unwrap());
    says(&mut stdout, &open).await;
    let new = waits(mul(&bench, "[100,10]"));
    says(&mut stdout, &new).await;
    decide(&bench, &open, "approve");
    assert!(within(SOON, child.wait()).await.unwrap().success());
    let lines = whole(&mut stdout).await;
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let told: Vec<_> = lines.iter().map(|line| (&line["approval"]["id"], &line["approval"]["state"])).collect();
    assert_eq!(
        told,
        [(&json!(open), &json!("pending")), (&json!(new), &json!("pending")), (&json!(open), &json!("approved"))]
    );

    // Whoever may not list them, is told at once; a signal is the usual end.
    approvals(&bench, "planner", &["watch", "demo"]).fails(10, &["rpc.approvals"]);
    let mut child = spawn(&bench.shell, &watch);
    let mut stdout = heard(child.stdout.take().unwrap());
    says(&mut stdout, "treasurer: 0 of 1, from treasurer").await;
    send(SIGTERM, child.id().unwrap());
    assert!(within(SOON, child.wait()).await.unwrap().success());
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_record_says_who_approved_what_and_how_soon() {
    let bench = bench_with("[record]\nfolder = \"records\"\n").await;
    let approved = waits(mul(&bench, "[100,21]"));
    decide(&bench, &approved, "approve");
    mul(&bench, "[100,21]").ok();
    let denied = waits(mul(&bench, "[100,22]"));
    decide(&bench, &denied, "deny");
    mul(&bench, "[100,22]").fails(10, &[]);
    let run = |line: &str| bench.shell.run(line).ok();
    let began = Instant::now();
    let report = loop {
        let report = run("records report records --json").json();
        // Outcomes are written a moment later.
        let used = report["used"].as_array().unwrap();
        if used.iter().any(|used| {
            (&used["method"], &used["calls"], &used["failed"]) == (&json!("rpc.approve"), &json!(2), &json!(0))
        }) {
            break report;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "{report}");
    };
    let eve = &report["approvers"][0];
    assert_eq!((&eve["agent"], &eve["approved"], &eve["denied"]), (&json!("eve"), &json!(1), &json!(1)), "{report}");
    assert_eq!(report["approvers"].as_array().unwrap().len(), 1);
    let (median, p90) = (eve["median_ms"].as_u64().unwrap(), eve["p90_ms"].as_u64().unwrap());
    assert!(median <= p90 && p90 < 60_000, "{report}");
    run("records report records").says("APPROVERS\n  eve                        1 approved, 1 denied; after ");

    // The line of the decision names the request, and that of the call who approved it.
    let found = |line: &str| -> Vec<Value> {
        run(line).stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let decided = found("records search records --method rpc.approve --json");
    let decided: Vec<_> = decided.iter().map(|call| (&call["params"]["id"], &call["params"]["decision"])).collect();
    assert_eq!(decided, [(&json!(approved), &json!("approve")), (&json!(denied), &json!("deny"))]);
    let ran = found("records search records --method math/mul --decision allow --json");
    let approval = &ran[0]["approval"];
    assert_eq!((&approval["id"], &approval["state"]), (&json!(approved), &json!("approved")));
    assert_eq!(
        (&approval["given"][0]["agent"], &approval["given"][0]["approval"]),
        (&json!("eve"), &json!("treasurer"))
    );
    assert!(approval["given"][0]["at"].as_u64() >= approval["asked_at"].as_u64());
    bench.end().await;
}
