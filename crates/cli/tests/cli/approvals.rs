//! `sealwire approvals`: a call that waits, the person who looks at it, and the call that then runs.

use std::process::Stdio;
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use sealwire::internal::client::ApprovalListener;
use sealwire_testkit::nats_server::ServerOptions;
use sealwire_testkit::python::python;
use sealwire_testkit::{NatsServer, SOON, root, within};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpListener;
use tokio::process::{Child, Command};
use tokio::sync::mpsc;

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

[approval.soon]
from = ["treasurer"]
within = "10s"

[rule.large-sum]
everyone = true
deny = ["math/add"]
unless_approved = "soon"
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

/// What is published to treasurers, from now on.
async fn news(bench: &Bench) -> async_nats::Subscriber {
    let bus = async_nats::connect(bench.server.url()).await.unwrap();
    let news = bus.subscribe("rpc.v1-approvals.>").await.unwrap();
    bus.flush().await.unwrap();
    news
}

async fn next(news: &mut async_nats::Subscriber) -> (async_nats::Message, Value) {
    let message = within(SOON, news.next()).await.unwrap();
    let told = serde_json::from_slice(&message.payload).unwrap();
    (message, told)
}

/// SPEC.md §6.3. What is asked for, decided, begun, or has waited in vain is published to those who decide, without parameters.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn those_who_decide_are_told_what_happens_to_a_call_and_not_its_parameters() {
    let bench = bench().await;
    let mut news = news(&bench).await;
    let id = waits(mul(&bench, "[100,77]"));
    // The same request once more is nothing new.
    waits(mul(&bench, "[100,77]"));
    let (message, told) = next(&mut news).await;
    assert_eq!(message.subject.as_str(), "rpc.v1-approvals.demo.treasurer");
    let (asked_at, deadline) = (told["asked_at"].as_u64().unwrap(), told["deadline"].as_u64().unwrap());
    assert_eq!(deadline - asked_at, 30 * 60);
    let needs = |have| json!([{ "approval": "treasurer", "roles": ["treasurer"], "count": 1, "have": have }]);
    let expected = |state: &str, deadline: &Value, have| {
        json!({ "id": id, "service": "demo", "state": state, "agent": "planner", "method": "math/mul",
                "asked_at": asked_at, "deadline": deadline, "needs": needs(have) })
    };
    assert_eq!(told, expected("pending", &told["deadline"], 0));
    decide(&bench, &id, "approve");
    mul(&bench, "[100,77]").ok();
    for state in ["approved", "consumed"] {
        let (_, told) = next(&mut news).await;
        assert_eq!(told, expected(state, &told["deadline"], 1));
    }
    let denied = waits(mul(&bench, "[100,78]"));
    decide(&bench, &denied, "deny");
    for state in ["pending", "denied"] {
        let (_, told) = next(&mut news).await;
        assert_eq!((&told["id"], &told["state"]), (&json!(denied), &json!(state)));
    }
    let missed = waits(bench.run(&["call", "demo", "math/add", "[100,79]", "--json"]));
    for state in ["pending", "expired"] {
        let (_, told) = next(&mut news).await;
        assert_eq!((&told["id"], &told["state"]), (&json!(missed), &json!(state)));
        assert_eq!(told["deadline"].as_u64().unwrap() - told["asked_at"].as_u64().unwrap(), 10);
    }
    bench.end().await;
}

/// No list falls due by itself before the test gives up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_asks_when_it_is_told_that_something_has_happened() {
    let bench = bench().await;
    let watch = ["approvals", "watch", "demo", "--creds", "eve.creds.json", "--every", "10m", "--times", "3", "--json"];
    let mut child = spawn(&bench.shell, &watch);
    let mut stdout = heard(child.stdout.take().unwrap());
    let id = waits(mul(&bench, "[100,9]"));
    says(&mut stdout, &id).await;
    decide(&bench, &id, "approve");
    says(&mut stdout, "approved").await;
    mul(&bench, "[100,9]").ok();
    says(&mut stdout, "consumed").await;
    assert!(within(SOON, child.wait()).await.unwrap().success());
    bench.end().await;
}

/// SPEC.md §6.3.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_forged_on_the_subject_of_news_wakes_nobody() {
    let bench = bench().await;
    let mut news = news(&bench).await;
    let credentials = sealwire::Credentials::load(bench.shell.path("eve.creds.json")).unwrap();
    let client = sealwire::Client::connect(credentials).await.unwrap();
    let subject = "rpc.v1-approvals.demo.treasurer".to_owned();
    let others = ["rpc.v1.demo.>", "rpc.v1-approvals.bank.treasurer", "rpc.v1-approvals.demo.>"].map(str::to_owned);
    let subjects: Vec<String> = others.into_iter().chain([subject.clone()]).collect();
    let listener = ApprovalListener::open(&client, "demo", &subjects).await.unwrap();
    // It may have missed something before it listened.
    within(SOON, listener.news()).await;
    assert!(listener.hears());
    waits(mul(&bench, "[100,5]"));
    let (message, _) = next(&mut news).await;
    within(SOON, listener.news()).await;

    let bus = async_nats::connect(bench.server.url()).await.unwrap();
    let headers = message.headers.clone().unwrap();
    bus.publish(subject.clone(), "{}".into()).await.unwrap();
    bus.publish_with_headers(subject.clone(), headers.clone(), "{}".into()).await.unwrap();
    for other in &subjects[..2] {
        let other = other.replace('>', "x");
        bus.publish_with_headers(other, headers.clone(), message.payload.clone()).await.unwrap();
    }
    bus.flush().await.unwrap();
    assert!(tokio::time::timeout(Duration::from_millis(500), listener.news()).await.is_err());
    // Whoever runs the broker can deliver it once more: then the service is asked once more.
    bus.publish_with_headers(subject.clone(), headers, message.payload).await.unwrap();
    within(SOON, listener.news()).await;

    // Where the broker forbids it, that is known.
    let config = "authorization: { default_permissions: { publish: \">\", subscribe: \"_INBOX.>\" }\nusers: [{ user: u, password: p }] }\n\
                  no_auth_user: u\n";
    let options = ServerOptions { config: Some(config.to_owned()), ..ServerOptions::default() };
    let strict = NatsServer::start_with_options(options).await;
    let credentials = client.credentials().clone().urls(vec![strict.url()]);
    let client = sealwire::Client::connect(credentials).await.unwrap();
    let listener = ApprovalListener::open(&client, "demo", &[subject]).await.unwrap();
    let began = Instant::now();
    while listener.hears() {
        assert!(began.elapsed() < Duration::from_secs(60));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
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

/// A block of docs/approvals.md that begins like this.
fn on_the_page(begins: &str) -> String {
    let page = std::fs::read_to_string(root().join("docs/approvals.md")).unwrap();
    let (_, rest) = page.split_once(&format!("\n```{begins}\n")).unwrap();
    rest.split_once("```").unwrap().0.to_owned()
}

/// A chat whose first answer is that it is down. What it was told is heard from it.
async fn chat() -> (String, mpsc::UnboundedReceiver<Value>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/hooks/treasurers", listener.local_addr().unwrap());
    let (told, hears) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        for status in ["503 Busy"].into_iter().chain(std::iter::repeat("200 OK")) {
            let mut stream = BufReader::new(listener.accept().await.unwrap().0);
            let (mut line, mut length) = (String::new(), 0);
            while stream.read_line(&mut line).await.unwrap() > 2 {
                let lower = line.to_lowercase();
                length = lower.strip_prefix("content-length: ").map_or(length, |text| text.trim().parse().unwrap());
                line.clear();
            }
            let mut body = vec![0; length];
            stream.read_exact(&mut body).await.unwrap();
            let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
            stream.write_all(answer.as_bytes()).await.unwrap();
            if status == "200 OK" {
                let _ = told.send(serde_json::from_slice(&body).unwrap());
            }
        }
    });
    (url, hears)
}

/// docs/approvals.md.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_bridge_of_the_page_tells_a_chat_what_waits_and_can_approve_nothing() {
    let Some(python) = python() else { return };
    let bench = bench().await;
    let run = |line: &str| bench.shell.run(line).ok();
    let url = bench.server.url();
    run(&format!("keys new-agent bridge --alg eddsa --service dev/demo=demo.ring.json --url {url}"));
    run(
        "token issue --key token-key.json --audience dev/demo --role calc --subject bridge --cnf-kid bridge.k1 --out bridge.jwt",
    );
    let service = bench.shell.read_json("demo.service-key.json");
    let (kid, x) = (service["kid"].as_str().unwrap(), service["x"].as_str().unwrap());
    run(&format!("keys pin bridge.creds.json --service demo --kid {kid} --x {x} --only"));
    bench.shell.write("policies/bridge.toml", &on_the_page("toml"));
    let began = Instant::now();
    while approvals(&bench, "bridge", &["list", "demo"]).code != 0 {
        assert!(began.elapsed() < Duration::from_secs(60));
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    bench.shell.write("to-chat.py", &on_the_page("python to-chat.py"));
    let (hook, mut told) = chat().await;
    let mut watch = spawn(&bench.shell, &["approvals", "watch", "demo", "--creds", "bridge.creds.json", "--json"]);
    let bridge = Command::new(python)
        .args([bench.shell.path("to-chat.py").to_str().unwrap(), &hook])
        .stdin(Stdio::piped())
        .kill_on_drop(true)
        .spawn();
    let mut bridge = bridge.unwrap();
    let (mut from, mut to) = (watch.stdout.take().unwrap(), bridge.stdin.take().unwrap());
    let pipe = tokio::spawn(async move { drop(tokio::io::copy(&mut from, &mut to).await) });
    let id = waits(mul(&bench, "[100,31]"));
    let said = within(SOON, told.recv()).await.unwrap();
    assert_eq!(said, json!({ "text": format!("planner waits with math/mul: sealwire approvals show bank {id}") }));

    let digest = approvals(&bench, "bridge", &["show", "demo", &id, "--json"]).ok().json()["digest"].clone();
    let approve = ["approve", "demo", &id, "--digest", digest.as_str().unwrap()];
    approvals(&bench, "bridge", &approve).fails(10, &["rpc.approve"]);
    approvals(&bench, "eve", &approve).ok();
    let next = waits(mul(&bench, "[100,32]"));
    let said = within(SOON, told.recv()).await.unwrap();
    assert!(said["text"].as_str().unwrap().ends_with(&next), "what is no longer waiting is not told: {said}");
    send(SIGTERM, watch.id().unwrap());
    assert!(within(SOON, watch.wait()).await.unwrap().success());
    within(SOON, pipe).await.unwrap();
    assert!(within(SOON, bridge.wait()).await.unwrap().success());
    bench.end().await;
}
