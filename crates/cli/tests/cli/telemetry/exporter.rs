//! `sealwire exporter` and `sealwire top`: what any micro service says, of ours only what they have signed, and nothing of what a hostile
//! party makes of it. docs/observability.md.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use sealwire_testkit::NatsServer;
use sealwire_testkit::python::python;
use serde_json::{Value, json};
use tokio::process::Child;

use super::prometheus::{Prometheus, is_installed, promtool};
use super::stage::{BACKEND, Listener};
use crate::backends::stage::{LONG, POLICY, Stage, prepared};
use crate::process::{heard, says};
use crate::shell::Shell;

/// The broker's users: a service of ours and its agent, the operator's tools, and a user for micro services, who may hear and answer what
/// anybody is asked, except what a service of ours is asked by its name.
const USERS: &str = r#"
no_auth_user: ours
authorization { users = [
  { user: ours, password: pw }
  { user: tools, password: pw, permissions: { publish: ["$SRV.>"], subscribe: ["_INBOX.tools.>"] } }
  { user: other, password: pw, permissions: { publish: ["_INBOX.>", "eu.>", "us.>", "bad.>"],
    subscribe: { allow: ["_INBOX.other.>", "$SRV.>", "eu.>", "us.>", "bad.>"], deny: ["$SRV.*.tools", "$SRV.*.tools.>"] } } }
] }"#;

/// A broker with a service of ours `dev/tools`, and a login for tools.
struct Bus {
    stage: Stage,
    key: String,
}

impl Bus {
    async fn start(more: &str) -> Self {
        let server = NatsServer::start_with(USERS).await;
        let shell = prepared(&server.url(), POLICY, &format!("{more}{BACKEND}"));
        shell.write(
            "tools.nats.json",
            &json!({ "urls": [server.url()], "user": "tools", "password_file": "tools.password" }).to_string(),
        );
        shell.write("tools.password", "pw");
        for secret in ["tools.nats.json", "tools.password"] {
            shell.set_mode(secret, 0o600);
        }
        let file: Value = serde_json::from_str(&shell.read("tools.service-key.json")).unwrap();
        let key = sealwire::internal::auth::read_service_key(
            &shell.path("tools.service-key.json"),
            &sealwire::internal::wire::Audience::parse("dev/tools").unwrap(),
        )
        .unwrap_or_else(|error| panic!("{error}: {file}"));
        let key = format!("{}={}", key.kid(), key.public().x());
        let stage = Stage::begin(server, shell, &["serve"], &std::env::var("PATH").unwrap()).await.ready().await;
        Self { stage, key }
    }

    /// What `exporter` and `top` are given to reach this bus.
    fn args(&self) -> Vec<&str> {
        vec!["--login", "tools.nats.json", "--service-key", &self.key]
    }

    /// A user who may answer what anybody is asked.
    async fn other(&self) -> async_nats::Client {
        let options = async_nats::ConnectOptions::with_user_and_password("other".into(), "pw".into());
        options.connect(self.stage.server.url()).await.unwrap()
    }

    /// An exporter that runs, and where it answers.
    async fn exporter(&self, more: &[&str]) -> (Child, Listener) {
        let at = Listener::free();
        let address = at.0.to_string();
        let mut args = vec!["exporter", "--listen", &address];
        args.extend(self.args());
        args.extend(more);
        let mut command = tokio::process::Command::from(self.stage.shell.command(&args));
        let mut exporter = command.kill_on_drop(true).spawn().unwrap();
        let mut stdout = heard(exporter.stdout.take().unwrap());
        says(&mut stdout, "metrics are at http://").await;
        at.is_ready(200).await;
        (exporter, at)
    }
}

/// A micro service that nobody here wrote, ready.
async fn micro(shell: &Shell, python: &Path, url: &str) -> Child {
    let file = sealwire_testkit::root().join("crates/cli/tests/cli/telemetry/micro.py");
    let mut command = tokio::process::Command::new(python);
    command.args([Path::new("-B"), &file]).arg(url).current_dir(shell.path(""));
    command.stdout(std::process::Stdio::piped()).kill_on_drop(true);
    let mut service = command.spawn().unwrap();
    says(&mut heard(service.stdout.take().unwrap()), "ready").await;
    service
}

/// Samples once they are as wanted.
async fn until(at: Listener, wanted: impl Fn(&BTreeMap<String, f64>) -> bool) -> BTreeMap<String, f64> {
    let begun = Instant::now();
    loop {
        let samples = at.samples().await;
        if wanted(&samples) {
            return samples;
        }
        assert!(begun.elapsed() < LONG, "{samples:#?}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// The sum of the samples whose name and labels have all of these texts.
fn sum(samples: &BTreeMap<String, f64>, parts: &[&str]) -> f64 {
    samples.iter().filter(|(name, _)| parts.iter().all(|part| name.contains(part))).map(|(_, value)| value).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_micro_service_is_exported_and_ours_with_what_it_has_signed() {
    let Some(python) = python() else { return };
    let bus = Bus::start("").await;
    let stage = &bus.stage;
    for _ in 0..3 {
        stage.call("words/say", json!({})).await.unwrap();
    }
    stage.call("made/up", json!({})).await.unwrap_err();
    let mut micro = micro(&stage.shell, python, &stage.server.url()).await;
    let (_exporter, at) = bus.exporter(&["--every", "2s", "--within", "1500ms"]).await;
    let samples = until(at, |samples| sum(samples, &["nats_micro_replica{"]) == 2.0).await;
    let orders = |family: &str, subject: &str| {
        sum(
            &samples,
            &[&format!("{family}{{"), "service=\"orders\"", "endpoint=\"place\"", subject, "verified=\"false\""],
        )
    };
    let (eu, us, bad) = ("subject=\"eu.place\"", "subject=\"us.place\"", "subject=\"bad.place\"");
    assert_eq!([eu, us, bad].map(|subject| orders("nats_micro_requests_total", subject)), [2.0, 1.0, 1.0]);
    assert_eq!([eu, bad].map(|subject| orders("nats_micro_errors_total", subject)), [0.0, 1.0]);
    assert!(
        orders("nats_micro_processing_seconds_total", eu) > 0.0
            && orders("nats_micro_processing_seconds_total", eu) < 60.0
    );
    let ours = ["environment=\"dev\"", "service=\"tools\"", "verified=\"true\""];
    let say = [&ours[..], &["nats_micro_requests_total{", "endpoint=\"words_say\""]].concat();
    assert_eq!(sum(&samples, &say), 3.0);
    // What is the sum of the others is not one more endpoint.
    assert_eq!(sum(&samples, &[&ours[..], &["nats_micro_requests_total{"]].concat()), 3.0);
    for (parts, value) in [
        (&["sealwire_replica_ready{", "environment=\"dev\",service=\"tools\""][..], 1.0),
        (&["sealwire_replica_guard_up{", "guard=\"local\""], 1.0),
        (&["sealwire_replica_refusals_total{", "reason=\"unknown_method\""], 1.0),
        (&["sealwire_replica_denials_total{", "method=\"words/say\""], 0.0),
        (&["sealwire_exporter_bus_connected"], 1.0),
        (&["sealwire_exporter_replicas{verified=\"true\"}"], 1.0),
        (&["sealwire_exporter_answers_refused_total{"], 0.0),
    ] {
        assert!(samples.keys().any(|name| parts.iter().all(|part| name.contains(part))), "{parts:?}: {samples:#?}");
        assert_eq!(sum(&samples, parts), value, "{parts:?}: {samples:#?}");
    }
    // The last error is text from the wire: it is no label.
    assert!(samples.keys().all(|name| !name.contains("ValueError")), "{samples:#?}");
    super::page::check_labels(&samples);

    if is_installed() {
        let metrics = at.get("/metrics").await.body;
        assert_eq!(promtool(&stage.shell.path(""), &["check", "metrics"], &metrics), "");
        let config = format!(
            "global:\n  scrape_interval: 500ms\nscrape_configs:\n  - job_name: exporter\n    static_configs:\n      - targets: [\"{}\"]\n",
            at.0
        );
        stage.shell.write("prometheus.yml", &config);
        let prometheus = Prometheus::start(&stage.shell).await;
        for expression in [
            "up == 1",
            "sum by (service, endpoint) (nats_micro_requests_total{verified=\"false\"}) == 4",
            "sum by (service) (nats_micro_requests_total{verified=\"true\",environment=\"dev\"}) == 3",
            "rate(nats_micro_processing_seconds_total[30s])",
            "sealwire_replica_ready == 1",
            "time() - sealwire_exporter_last_round_timestamp_seconds < 30",
        ] {
            assert!(prometheus.has_data(expression).await, "no data for {expression}");
        }
    }
    // A replica that is gone vanishes.
    micro.kill().await.unwrap();
    let samples = until(at, |samples| sum(samples, &["nats_micro_replica{"]) == 1.0).await;
    assert_eq!(sum(&samples, &["orders"]), 0.0);
}

/// An answer to `$SRV.STATS`.
fn answer(name: &str, id: &str, requests: &Value) -> Value {
    json!({ "type": "io.nats.micro.v1.stats_response", "name": name, "id": id, "version": "1.0.0", "metadata": {},
            "endpoints": [{ "name": "e", "subject": "s", "num_requests": requests, "num_errors": 0, "processing_time": 0 }] })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hostile_party_makes_no_series_of_ours_and_no_more_than_the_bound() {
    let bus = Bus::start("").await;
    let stage = &bus.stage;
    stage.call("words/say", json!({})).await.unwrap();
    let (_exporter, at) = bus.exporter(&["--every", "2s", "--within", "1500ms"]).await;
    let before = until(at, |samples| sum(samples, &["sealwire_replica_ready{"]) == 1.0).await;
    let name = before.keys().find(|name| name.starts_with("sealwire_replica_ready{")).unwrap();
    let id = name.split("id=\"").nth(1).unwrap().split('"').next().unwrap().to_owned();

    let hostile = bus.other().await;
    let mut asked = hostile.subscribe("$SRV.>").await.unwrap();
    hostile.flush().await.unwrap();
    let real = id.clone();
    let answering = tokio::spawn(async move {
        for round in 0_u64.. {
            let Some(question) = asked.next().await else { return };
            let Some(inbox) = question.reply else { continue };
            let send = |payload: Value| hostile.publish(inbox.clone(), payload.to_string().into());
            // As the service, and as its very replica.
            for id in [&real, "evil"] {
                let mut forged = answer("tools", id, &json!(1_000_000));
                forged["metadata"] = json!({ "sealwire.audience": "dev/tools", "sealwire.subject": "rpc.v1.tools.>" });
                forged["endpoints"][0]["data"] = json!({ "refusals": { "replayed": 1_000_000 } });
                send(forged).await.unwrap();
            }
            // Under another name, as if it were of ours.
            let mut ours = answer("bank", "B", &json!(1));
            ours["metadata"] = json!({ "sealwire.audience": "dev/bank", "sealwire.subject": "s" });
            ours["endpoints"][0]["data"] = json!({ "refusals": { "replayed": 1_000_000 } });
            send(ours).await.unwrap();
            // Names that end a label, or a line.
            for name in ["x\"} 1\nup{a=\"", "a\\", "a\nb", "", &"x".repeat(100_000)] {
                send(answer(name, "1", &json!(1))).await.unwrap();
                send(answer("x", name, &json!(1))).await.unwrap();
            }
            // Counts that are none, and one that is a liar's.
            for wrong in [json!(-1), json!(1.0e300), json!("NaN"), json!(u64::MAX), json!({})] {
                send(answer("wrong", "1", &wrong)).await.unwrap();
            }
            send(answer("liar", "1", &json!(if round % 2 == 0 { 0 } else { 1_u64 << 52 }))).await.unwrap();
            // One id twice, and then any number of services, each of them new.
            for requests in [5, 7] {
                send(answer("twice", "1", &json!(requests))).await.unwrap();
            }
            for number in 0..1_500 {
                send(answer(&format!("s{number}"), &format!("{round}-{number}"), &json!(1))).await.unwrap();
            }
            hostile.flush().await.unwrap();
        }
    });
    let refused = |samples: &BTreeMap<String, f64>, reason: &str| {
        sum(samples, &["sealwire_exporter_answers_refused_total{", &format!("reason=\"{reason}\"")])
    };
    let mut seen = std::collections::BTreeSet::new();
    let begun = Instant::now();
    loop {
        let samples = at.samples().await;
        assert!(samples.len() < 4 * 4_000 + 1_000, "{}", samples.len());
        assert!(samples.values().all(|value| value.is_finite()), "{samples:#?}");
        // On a machine that has stalled, the replica may have missed some rounds.
        for true_or_none in [&["nats_micro_requests_total{", "service=\"tools\""][..], &["sealwire_replica_ready{"]] {
            assert!([0.0, 1.0].contains(&sum(&samples, true_or_none)), "{samples:#?}");
        }
        assert_eq!(sum(&samples, &["sealwire_replica_refusals_total{", "replayed"]), 0.0, "{samples:#?}");
        assert!(sum(&samples, &["nats_micro_requests_total{", "service=\"liar\""]) < 1e9);
        assert!(samples.keys().all(|name| name.len() < 1_000 && name.is_ascii()));
        seen.extend(samples.keys().filter(|name| name.starts_with("nats_micro_requests_total{")).cloned());
        let all = ["malformed", "duplicate", "implausible", "full", "flood"];
        if all.iter().all(|reason| refused(&samples, reason) > 0.0) && samples["sealwire_exporter_rounds_total"] >= 5.0
        {
            break;
        }
        assert!(begun.elapsed() < LONG, "{samples:#?}");
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    answering.abort();
    // Since `$SRV.*.tools` is closed to it, it does not even know where a service of ours answers.
    assert_eq!(refused(&at.samples().await, "unproved"), 0.0);
    assert!(seen.len() <= 4_100, "{} series of endpoints", seen.len());
    let metrics = at.get("/metrics").await.body;
    if is_installed() {
        assert_eq!(promtool(&stage.shell.path(""), &["check", "metrics"], &metrics), "");
    }
    // Those of the hostile party vanish like all others.
    let samples = until(at, |samples| sum(samples, &["nats_micro_replica{"]) == 1.0).await;
    assert_eq!(sum(&samples, &["nats_micro_requests_total{", "endpoint=\"words_say\""]), 1.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forged_answer_in_the_right_inbox_is_refused() {
    let bus = Bus::start("").await;
    let (_exporter, at) = bus.exporter(&["--every", "2s", "--within", "1500ms"]).await;
    until(at, |samples| sum(samples, &["sealwire_replica_ready{"]) == 1.0).await;
    // With all permissions, so it hears where the service is asked.
    let client = bus.stage.server.client().await;
    let mut asked = client.subscribe("$SRV.STATS.tools").await.unwrap();
    let answering = tokio::spawn(async move {
        while let Some(question) = asked.next().await {
            let mut forged = answer("tools", "forged", &json!(9));
            forged["metadata"] = json!({ "sealwire.audience": "dev/tools" });
            let inbox = question.reply.unwrap();
            client.publish(inbox.clone(), forged.to_string().into()).await.unwrap();
            let headers = async_nats::HeaderMap::from_iter([(
                "Authentication-Info".parse().unwrap(),
                "NatsRpc a.b.c".parse().unwrap(),
            )]);
            client.publish_with_headers(inbox, headers, forged.to_string().into()).await.unwrap();
        }
    });
    let unproved = "sealwire_exporter_answers_refused_total{reason=\"unproved\"}";
    // On a machine that has stalled, the replica may have missed some rounds.
    let ours = ["nats_micro_replica{", "service=\"tools\""];
    let samples = until(at, |samples| samples[unproved] >= 4.0 && sum(samples, &ours) > 0.0).await;
    answering.abort();
    assert_eq!(sum(&samples, &["forged"]), 0.0);
    assert_eq!(sum(&samples, &ours), 1.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scrape_never_waits_for_the_bus_and_nobody_is_asked_for_nothing() {
    let bus = Bus::start("").await;
    let client = bus.stage.server.client().await;
    let mut asked = client.subscribe("$SRV.STATS").await.unwrap();
    // From before it asks for the first time.
    let begun = Instant::now();
    let (_exporter, at) = bus.exporter(&["--every", "2s", "--within", "1900ms"]).await;
    for _ in 0..100 {
        at.samples().await;
    }
    let mut rounds = 0;
    while tokio::time::timeout(Duration::from_millis(50), asked.next()).await.is_ok() {
        rounds += 1;
    }
    let took = begun.elapsed();
    let most = 2 + took.as_secs() / 2;
    assert!(rounds <= most, "{rounds} questions in {took:?}");
    // A broker that has stopped holds up no scrape either, and readiness says so once the connection is given up.
    let mut server = bus.stage.server;
    server.pause().await;
    let begun = Instant::now();
    for _ in 0..20 {
        at.samples().await;
    }
    assert!(begun.elapsed() < LONG / 2, "{:?}", begun.elapsed());
    let unready = at.is_ready(503).await;
    assert!(unready.body.contains("[-]connected: "), "{}", unready.body);
    server.resume().await;
    at.is_ready(200).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_may_not_ask_is_told_so_and_others_reach_it_only_if_they_may() {
    let server = NatsServer::start_with(USERS).await;
    let shell = Shell::new();
    let exporter = |more: &str| shell.run(&format!("exporter {more}"));
    exporter("").fails(2, &["which broker?", "--login"]);
    exporter("--url nats://127.0.0.1:4222 --listen 0.0.0.0:9465").fails(2, &["--allow-remote"]);
    exporter("--url nats://127.0.0.1:1 --listen 127.0.0.1:0").fails(20, &["no broker answers"]);
    exporter("--url nats://127.0.0.1:1 --service-key svc:dev/math:1").fails(2, &["write the key id"]);
    exporter("--url nats://127.0.0.1:1 --inbox a..b").fails(2, &["write subject tokens"]);
    let login = json!({ "urls": [server.url()], "user": "tools", "password": "pw" });
    shell.write("login.json", &login.to_string());
    shell.set_mode("login.json", 0o600);
    exporter("--login login.json --inbox _INBOX.else --listen 127.0.0.1:0")
        .fails(20, &["subscribe to `_INBOX.else", "--inbox"]);
    shell.write("login.json", &login.to_string().replace("tools", "other"));
    let top = shell.run("top --login login.json --once");
    top.fails(20, &["publish to `$SRV.STATS`", "SPEC.md, section 19"]);
}

/// Runs `top` on a terminal, and types keys when a text is there. Gives back what it has written, and the screens with these texts.
async fn on_screen(bus: &Bus, steps: Value) -> (String, Vec<String>) {
    let args = [&["top", "--every", "1s"][..], &bus.args()].concat();
    let program = bus.stage.shell.command(&args);
    let file = sealwire_testkit::root().join("crates/cli/tests/cli/telemetry/screen.py");
    let mut command = tokio::process::Command::new("python3");
    command.arg(file).arg(program.get_program()).args(&args).current_dir(bus.stage.shell.path(""));
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap()).env("TERM", "xterm-256color");
    command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped()).kill_on_drop(true);
    let mut running = command.spawn().unwrap();
    let mut input = running.stdin.take().unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut input, steps.to_string().as_bytes()).await.unwrap();
    drop(input);
    let output = sealwire_testkit::within(3 * LONG, running.wait_with_output()).await.unwrap();
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&said["missed"], &said["code"], &said["is_as_before"]),
        (&json!([]), &json!(0), &json!(true)),
        "{said}"
    );
    let screens =
        said["screens"].as_array().unwrap().iter().map(|screen| screen.as_str().unwrap().to_owned()).collect();
    (said["written"].as_str().unwrap().to_owned(), screens)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn top_shows_services_methods_and_refusals_on_a_terminal_and_leaves_it_as_it_was() {
    let Some(python) = python() else { return };
    let bus = Bus::start("[discovery]\ntell_agents = true\n").await;
    let stage = &bus.stage;
    stage.call("words/say", json!({})).await.unwrap();
    stage.call("made/up", json!({})).await.unwrap_err();
    let _micro = micro(&stage.shell, python, &stage.server.url()).await;
    let (written, screens) = on_screen(
        &bus,
        json!([
            ["dev/tools", "3"],
            // The last line of them: what is written comes in parts.
            ["place (us.place)", "/orders\r"],
            ["1-4 Tab view", ""],
            ["service: orders", "\u{1b}"],
            ["words/say", "4"],
            ["unknown_method: the policy would allow the name", "aplanner\r"],
            ["agent: planner", "q"],
        ]),
    )
    .await;
    let [services, methods, _, orders, _, refusals, agent] = &screens[..] else { panic!("{screens:#?}") };
    assert!(services.contains("SERVICE") && services.contains("orders"), "{services}");
    assert!(methods.contains("place (eu.place)") && methods.contains("DENIED"), "{methods}");
    assert!(!orders.contains("words/say") && orders.contains("ValueError"), "{orders}");
    assert!(refusals.contains("(all)") && agent.contains("planner") && !agent.contains("(all)"), "{refusals}\n{agent}");
    // What Python says of the error has a sequence that would clear the screen.
    assert!(orders.contains("no\\x1b[2J") && !written.contains("no\u{1b}[2J"), "{written:?}");
    // It draws on the other screen, and comes back from there.
    assert!(written.contains("\u{1b}[?1049h") && written.contains("\u{1b}[?1049l"), "{written:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn top_prints_tables_or_json_without_a_terminal() {
    let Some(python) = python() else { return };
    let bus = Bus::start("").await;
    let stage = &bus.stage;
    stage.call("words/say", json!({})).await.unwrap();
    stage.call("made/up", json!({})).await.unwrap_err();
    let _micro = micro(&stage.shell, python, &stage.server.url()).await;
    let top = |more: &[&str]| {
        let args = [&["top", "--within", "5s"][..], &bus.args(), more].concat();
        stage.shell.run_args(&args)
    };
    top(&[]).fails(2, &["draws on a terminal", "--once"]);
    let text = top(&["--once"]).ok().stdout;
    for line in ["SERVICE", "dev/tools", "words/say", "place (eu.place)", "unknown_method", "ValueError"] {
        assert!(text.contains(line), "no {line} in {text}");
    }
    assert!(!text.contains('\u{1b}'), "{text:?}");
    let found = top(&["--once", "--json"]).ok().json();
    let names: Vec<_> = found["services"].as_array().unwrap().iter().map(|it| (&it["name"], &it["verified"])).collect();
    assert_eq!(names, [(&json!("orders"), &json!(false)), (&json!("dev/tools"), &json!(true))]);
    let replica = &found["services"][1]["replicas"][0];
    assert_eq!(
        (&replica["sealwire"]["state"], &replica["sealwire"]["refusals"]["unknown_method"]),
        (&json!("ready"), &json!(1))
    );
    // Names of agents only if the service tells them.
    assert_eq!(replica["sealwire"]["agent_refusals"], json!([]));
    assert_eq!(found["services"][0]["replicas"][0]["endpoints"][0]["requests"], json!(2));
    assert_eq!((&found["connected"], &found["answers_refused"]["unproved"]), (&json!(true), &json!(0)));
}
