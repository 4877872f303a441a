//! `sealwire policy drift` against real servers that enforce what was compiled, and something else.

use super::*;

/// A gate whose broker lets further users in: one of the system account, and one who may do everything beside the agents.
struct Drifting {
    gate: Gate,
    compiled: String,
    server: NatsServer,
}

impl Drifting {
    async fn new() -> Self {
        let gate = Gate::new();
        gate.credentials("ann", &gate.ann.seed().unwrap());
        gate.credentials("bob", &gate.bob.seed().unwrap());
        let login = json!({ "urls": [gate.url()], "user": "sys", "password": "sys" });
        gate.secret("sys.nats.json", &login.to_string());
        let compiled = gate.compile(&["--nats", "--users", "users.json", "--agent", "ann=", "--agent", "bob="]);
        let compiled = replaced(&compiled, "SYS {}", "SYS { users: [{ user: sys, password: sys }] }");
        let compiled = replaced(&compiled, "  SEALWIRE {\n", "  SEALWIRE {\n    jetstream: enabled\n");
        let admin = "    users: [\n      { user: admin, password: admin }\n";
        let compiled = compiled.replacen("    users: [\n", admin, 1);
        let server = gate.server(compiled.clone()).await;
        Self { gate, compiled, server }
    }

    /// The broker now has `to` wherever `from` was compiled.
    async fn with(&self, from: &str, to: &str) {
        self.server.reload(&replaced(&self.compiled, from, to)).await;
    }

    fn run(&self, more: &[&str]) -> crate::shell::Ran {
        let config = self.gate.config();
        let args = ["policy", "drift", "--config", &config, "--creds", "agents", "--agent", "ann=", "--agent", "bob="];
        let args: Vec<&str> = args.into_iter().chain(more.iter().copied()).collect();
        tokio::task::block_in_place(|| self.gate.shell.run_args(&args))
    }

    /// The differences as lines, and what reflects.
    fn report(&self, more: &[&str]) -> (Vec<String>, Value) {
        let outcome = self.run(&[&["--json"], more].concat());
        let report: Value = serde_json::from_str(&outcome.stdout).unwrap_or_else(|_| panic!("{outcome:?}"));
        let line = |row: &Value| {
            let words = ["who", "direction", "subject", "compiled", "enforced"];
            words.map(|word| row[word].as_str().unwrap_or("-").to_owned()).join(" ")
        };
        let lines: Vec<String> = report["differences"].as_array().unwrap().iter().map(line).collect();
        let reflects = report["reflections"] != json!([]);
        assert_eq!(outcome.code, if lines.is_empty() && !reflects { 0 } else { 15 }, "{outcome:?}");
        (lines, report["reflections"].clone())
    }

    async fn admin(&self) -> Wire {
        self.gate.connect(|_| json!({ "user": "admin", "pass": "admin" })).await.unwrap()
    }
}

impl Gate {
    fn credentials(&self, agent: &str, seed: &str) {
        let file = json!({
            "version": 1, "environment": "test", "agent": agent, "token": self.token(agent, &[], 600),
            "key": { "kid": format!("{agent}.k1"), "alg": "HS256", "secret": idp::b64(agent_key(agent).expose()) },
            "nats": { "urls": [self.url()], "nkey_seed": seed }, "method_subjects": true,
        });
        std::fs::create_dir_all(self.shell.path("agents")).unwrap();
        self.secret(&format!("agents/{agent}.creds.json"), &file.to_string());
    }
}

fn replaced(text: &str, from: &str, to: &str) -> String {
    assert!(text.contains(from), "no `{from}` in {text}");
    text.replace(from, to)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_compiled_is_no_drift_and_what_is_wider_or_narrower_is() {
    let drifting = Drifting::new().await;
    let outcome = drifting.run(&["--system", "sys.nats.json"]).ok();
    assert!(outcome.stdout.starts_with("no drift: users 2, probes "), "{}", outcome.stdout);

    let add = r#""rpc.v1.site.ann.site.add""#;
    drifting.with(add, &format!(r#"{add}, "rpc.v1.site.ann.site.count""#)).await;
    assert_eq!(drifting.report(&[]).0, ["agent ann publish rpc.v1.site.ann.site.count denied allowed"]);
    let text = drifting.run(&[]).stdout;
    for part in ["WHO", "COMPILED", "ENFORCED", "\ndrift: users 2, ", "differences 1", "no --system"] {
        assert!(text.contains(part), "{text}");
    }
    drifting.with(add, r#""rpc.v1.site.ann.site.sub""#).await;
    assert_eq!(drifting.report(&[]).0, ["agent ann publish rpc.v1.site.ann.site.add allowed denied"]);

    let inbox = r#"subscribe: ["_INBOX.ann.>""#;
    drifting.with(inbox, &format!(r#"{inbox}, "_INBOX.bob.>""#)).await;
    assert_eq!(
        drifting.report(&[]).0,
        ["agent ann subscribe _INBOX.bob.* denied allowed", "agent ann subscribe _INBOX.bob.*.* denied allowed"]
    );
}

/// A user who may do everything, beside one who hears everything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn probes_of_what_is_allowed_reach_nobody() {
    let drifting = Drifting::new().await;
    drifting
        .with(r#"{ publish: { deny: [">"] }, subscribe: ["_INBOX.bob.>"] }"#, r#"{ publish: [">"], subscribe: [">"] }"#)
        .await;
    let mut watcher = drifting.admin().await;
    assert_eq!(watcher.fenced("SUB > 1\r\n").await, None);
    let lines = drifting.report(&[]).0;
    for subject in
        ["rpc.v1.site.ann.site.add", "_INBOX.ann.*", "$JS.API.STREAM.CREATE.*", "$KV.*.*", "$O.*.C.*", "$SYS.*", "*"]
    {
        assert!(lines.contains(&format!("agent bob publish {subject} denied allowed")), "{subject}: {lines:#?}");
    }
    for subject in ["_INBOX.ann.*", "rpc.v1.site.ann.*", "$KV.*.*", "*"] {
        assert!(lines.contains(&format!("agent bob subscribe {subject} denied allowed")), "{subject}: {lines:#?}");
    }
    watcher.0.write_all(b"PUB last 0\r\n\r\n").await.unwrap();
    assert_eq!(watcher.line().await, "MSG last 1 0");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_login_that_is_refused_is_a_difference() {
    let drifting = Drifting::new().await;
    drifting.gate.credentials("bob", &KeyPair::new_user().seed().unwrap());
    assert_eq!(drifting.report(&[]).0, ["agent bob connect - allowed denied"]);
    // Nobody at all is there to be asked.
    let outcome = drifting.run(&["--login", "tools:tools=nowhere.nats.json"]);
    outcome.fails(30, &["nowhere.nats.json"]);
    let nowhere = json!({ "urls": [format!("nats://127.0.0.1:{}", free_port())] });
    drifting.gate.secret("nowhere.nats.json", &nowhere.to_string());
    drifting.run(&["--login", "tools:tools=nowhere.nats.json"]).fails(20, &["no broker answers", "tools tools"]);
}

/// Whatever captures requests answers any reply subject that an agent names.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_reflects_messages_is_found_with_a_system_login() {
    let drifting = Drifting::new().await;
    let options = async_nats::ConnectOptions::with_user_and_password("admin".into(), "admin".into());
    let client = within(SOON, options.connect(drifting.gate.url())).await.unwrap();
    let jetstream = async_nats::jetstream::new(client);
    let mut archive = async_nats::jetstream::stream::Config {
        name: "ARCHIVE".into(),
        subjects: vec!["rpc.v1.>".into()],
        ..Default::default()
    };
    within(SOON, jetstream.create_stream(archive.clone())).await.unwrap();
    let system = ["--system", "sys.nats.json"];
    let (lines, found) = drifting.report(&system);
    assert!(lines.is_empty(), "{lines:?}");
    assert_eq!((&found[0]["kind"], found.as_array().unwrap().len()), (&json!("stream"), 1), "{found}");
    assert!(found[0]["message"].as_str().unwrap().contains("`no_ack`"), "{found}");
    // Without the login, there is no word of it.
    assert_eq!(drifting.report(&[]), (Vec::new(), json!([])));
    within(SOON, jetstream.delete_stream("ARCHIVE")).await.unwrap();
    archive.no_ack = true;
    within(SOON, jetstream.create_stream(archive.clone())).await.unwrap();
    assert_eq!(drifting.report(&system).1, json!([]));
    archive.republish = Some(async_nats::jetstream::stream::Republish {
        source: ">".into(),
        destination: "copy.>".into(),
        headers_only: false,
    });
    within(SOON, jetstream.update_stream(archive)).await.unwrap();
    assert!(drifting.report(&system).1[0]["message"].as_str().unwrap().contains("`republish`"));
    within(SOON, jetstream.delete_stream("ARCHIVE")).await.unwrap();

    // A mapping, a service of another account, and a stream there.
    let more = "SEALWIRE {\n    mappings { rpc.v1.site.ann.site.count: rpc.v1.site.ann.site.add }\n    \
                exports [{ stream: rpc.v1.> }]\n    imports [{ service: { account: OTHER, subject: \"$SRV.X\" } }]\n";
    let other = "  OTHER {\n    jetstream: enabled\n    users: [{ user: other, password: other }]\n    \
                 exports [{ service: \"$SRV.X\" }]\n    imports [{ stream: { account: SEALWIRE, subject: rpc.v1.> } }]\n  }\n  SEALWIRE {\n";
    let config = replaced(&drifting.compiled, "  SEALWIRE {\n", &replaced(other, "SEALWIRE {\n", more));
    drifting.server.reload(&config).await;
    let options = async_nats::ConnectOptions::with_user_and_password("other".into(), "other".into());
    let client = within(SOON, options.connect(drifting.gate.url())).await.unwrap();
    let archive = async_nats::jetstream::stream::Config {
        name: "TAKEN".into(),
        subjects: vec!["rpc.>".into()],
        ..Default::default()
    };
    within(SOON, async_nats::jetstream::new(client).create_stream(archive)).await.unwrap();
    let (lines, found) = drifting.report(&system);
    assert_eq!(lines, ["agent ann publish rpc.v1.site.ann.site.count denied allowed"]);
    let kinds: Vec<&str> = found.as_array().unwrap().iter().map(|one| one["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["import", "mapping", "stream"], "{found}");
    assert!(found.to_string().contains("`TAKEN` of OTHER"), "{found}");
}

/// Agents come in by their tokens, with what the roles in them leave.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_authd_gives_for_a_token_is_no_drift() {
    let gate = Gate::new();
    let _server = gate.with_callout().await;
    let mut authd = gate.authd(&[]).await;
    gate.secret(
        "worker.creds.json",
        &json!({
            "version": 1, "environment": "test", "agent": "ann", "token": gate.token("ann", &["worker"], 600),
            "key": { "kid": "ann.k1", "alg": "HS256", "secret": idp::b64(agent_key("ann").expose()) },
            "nats": { "urls": [gate.url()], "access_token": true }, "method_subjects": true,
        })
        .to_string(),
    );
    let config = gate.config();
    let run = || {
        let args = ["policy", "drift", "--config", &config, "--creds", "worker.creds.json"];
        tokio::task::block_in_place(|| gate.shell.run_args(&args))
    };
    run().ok();
    within(SOON, authd.kill()).await.unwrap();
    let _batching = gate.authd(&["--batches"]).await;
    let ran = run();
    assert_eq!(ran.code, 15, "{ran:?}");
    assert!(ran.stdout.contains("agent ann  publish    rpc.v1.site.ann  denied    allowed"), "{ran:?}");
}
