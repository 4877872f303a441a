//! The second implementation, in Python, against this one: both must agree on every byte.
//! Never passes silently where Python is missing: it says so, and fails under CI.

mod minimal;
mod streams;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_nats::ConnectOptions;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures_util::StreamExt as _;
use sealwire::configure::{AgentKey, ProofAlgorithm};
use sealwire::decide::Param;
use sealwire::internal::auth::{
    Confirmation, IssueRequest, KeyEntry, KeyRing, KeyRingFile, LocalGuard, NonceLimits, TimeFloor, TokenIssuer,
    TokenRules, TokenVerifier, Verifier, Window,
};
use sealwire::internal::files::write_secret;
use sealwire::internal::wire::{Endpoint, ServiceKey};
use sealwire::serve::Delivery;
use sealwire::{Clock, Ctx, Name, Router, RpcError, Service, SystemClock};
use sealwire_testkit::python::python;
use sealwire_testkit::{NatsServer, SOON, publish, within};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout};

/// SPEC.md §5.2, SPEC.md §21.1, SPEC.md §21.2, SPEC.md §21.3, SPEC.md §24, SPEC.md §25.7.
#[test]
fn vectors_and_specification_agree_with_an_independent_judge() {
    let Some(python) = python() else { return };
    let output = Command::new(python).arg("-B").arg(script("check_vectors.py")).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    assert!(text.contains(" passed, 0 failed"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn python_client_and_python_service_speak_the_protocol() {
    let Some(python) = python() else { return };
    let server = NatsServer::start_with(PERMISSIONS).await;
    let folder = tempfile::tempdir().unwrap();
    let mut command = tokio::process::Command::new(python);
    command.arg("-B").arg(script("service.py")).arg(folder.path()).args(["--url", &server.url()]);
    let mut service = command.stdout(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
    let mut lines = BufReader::new(service.stdout.take().unwrap()).lines();
    assert_eq!(within(SOON, lines.next_line()).await.unwrap().as_deref(), Some("ready"));

    for agent in ["planner", "scout"] {
        let mut client = PythonClient::start(python, folder.path().join(format!("{agent}.creds.json")));
        well_behaved_calls_are_answered(&mut client).await;
        misbehaviour_is_refused(&mut client).await;
        a_clock_that_is_wrong_is_corrected(&mut client).await;
        let got = client.run(&["call", "ops", "math/add", "[1, 2]"]).await;
        // The broker lets `planner` ask any service, and `scout` only this one.
        let expected = if agent == "planner" { "no_responders" } else { "forbidden" };
        assert_eq!((got.code, &got.said["outcome"]), (20, &json!(expected)), "{got:?}");

        fs::set_permissions(&client.credentials, fs::Permissions::from_mode(0o640)).unwrap();
        let mut command = tokio::process::Command::new(python);
        command.arg("-B").arg(script("client.py")).arg("--creds").arg(&client.credentials);
        let output = within(SOON, command.args(["call", "math", "math/add"]).output()).await.unwrap();
        assert_eq!(
            (output.status.code(), output.stdout.as_slice()),
            (Some(2), &b""[..]),
            "others can read its secrets"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn python_client_is_served_and_refused_by_this_service() {
    let Some(python) = python() else { return };
    let server = NatsServer::start_with(PERMISSIONS).await;
    let folder = tempfile::tempdir().unwrap();
    let service = this_service(folder.path(), &server.url());
    let bus = ConnectOptions::with_user_and_password("svc".to_owned(), "interop".to_owned());
    let bus = within(SOON, bus.connect(server.url())).await.unwrap();
    let mut deliveries = within(SOON, bus.subscribe(service.endpoint().subscription())).await.unwrap();
    within(SOON, bus.flush()).await.unwrap();
    let serving = tokio::spawn(async move {
        while let Some(message) = deliveries.next().await {
            if let Some(sealed) = service.handle(Delivery::from(message)).await {
                publish(&bus, sealed).await;
            }
        }
    });
    for agent in ["planner", "scout"] {
        let mut client = PythonClient::start(python, folder.path().join(format!("{agent}.creds.json")));
        well_behaved_calls_are_answered(&mut client).await;
        misbehaviour_is_refused(&mut client).await;
        a_clock_that_is_wrong_is_corrected(&mut client).await;
        its_methods_are_found(&mut client).await;
    }
    assert!(!serving.is_finished(), "the service ended");
    serving.abort();
}

/// A service `dev/math`, and the credentials of its two agents in `folder`.
fn this_service(folder: &Path, url: &str) -> Service {
    let endpoint = Endpoint::new(Name::new("dev").unwrap(), Name::new("math").unwrap());
    let audience = endpoint.audience();
    let issuer = TokenIssuer::generate("https://issuer.test").unwrap();
    let service_key = ServiceKey::generate("svc:dev/math:1", audience).unwrap();
    let keys = [("planner", ProofAlgorithm::Hs256), ("scout", ProofAlgorithm::EdDsa)].map(|(agent, algorithm)| {
        let key = AgentKey::generate(&format!("{agent}.k1"), algorithm).unwrap();
        let mut request = IssueRequest::new(agent, audience.as_str(), SystemClock.now_s());
        request.roles.insert("calc".to_owned());
        request.cnf = Some(Confirmation { kid: Some(key.kid().to_owned()), jkt: None });
        let secret = if algorithm == ProofAlgorithm::Hs256 { "secret" } else { "seed" };
        let credentials = json!({
            "version": 1,
            "environment": "dev",
            "agent": agent,
            "key": { "kid": key.kid(), "alg": algorithm.as_str(), (secret): URL_SAFE_NO_PAD.encode(key.expose()) },
            "token_file": format!("{agent}.jwt"),
            "nats": { "urls": [url], "user": agent, "password": "interop" },
            "service_keys": { "math": [{ "kid": service_key.kid(), "x": service_key.public().x() }] },
        });
        write_secret(&folder.join(format!("{agent}.jwt")), &issuer.issue(&request).unwrap(), true).unwrap();
        write_secret(&folder.join(format!("{agent}.creds.json")), &credentials.to_string(), false).unwrap();
        let owner = Name::new(agent).unwrap();
        match key.derived(audience) {
            Some(derived) => KeyEntry::hmac(key.kid(), owner, &derived),
            None => KeyEntry::ed25519(key.kid(), owner, key.public().unwrap()),
        }
    });
    let ring = KeyRing::new(KeyRingFile { audience: audience.to_string(), keys: keys.into() }, audience).unwrap();
    let tokens = TokenVerifier::new(TokenRules::new(audience.as_str()), issuer.key_set().unwrap());
    let clock = Arc::new(OpenedLongAgo(AtomicBool::new(false)));
    let window = Window::new(30, 5).unwrap();
    let guard = LocalGuard::open(window, NonceLimits::default(), clock.clone(), &TimeFloor::Ephemeral).unwrap();
    clock.0.store(true, Ordering::SeqCst);
    let verifier = Verifier::new(&endpoint, window, ring, Some(service_key), tokens, Arc::new(guard)).unwrap();
    let policies = folder.join("policies");
    fs::create_dir(&policies).unwrap();
    fs::write(policies.join("policy.toml"), "[role.calc]\nallow = [\"math/*\"]\n").unwrap();
    Service::builder()
        .verifier(endpoint, verifier)
        .policies(policies)
        .methods(
            Router::new(())
                .method("math/add", |_: Ctx, p: Add| async move { Ok::<_, RpcError>(p.a + p.b) })
                .params("math/add", [Param::number("a"), Param::number("b")])
                .method("admin/reset", |_: Ctx, (): ()| async { Ok::<_, RpcError>(()) }),
        )
        .clock(clock)
        .build()
        .unwrap_or_else(|error| panic!("{error}"))
}

#[derive(serde::Deserialize)]
struct Add {
    a: f64,
    b: f64,
}

/// The system's clock, but behind until the guard is open: the guard's fence has then passed, and no test waits for it.
#[derive(Debug)]
struct OpenedLongAgo(AtomicBool);

impl Clock for OpenedLongAgo {
    fn now_ms(&self) -> u64 {
        SystemClock.now_ms() - if self.0.load(Ordering::SeqCst) { 0 } else { 100_000 }
    }
}

/// What any service with `math/add` must do for an agent that may call it, but nothing under `admin/`.
async fn well_behaved_calls_are_answered(client: &mut PythonClient) {
    for (params, sum) in [("[1, 2]", json!(3)), (r#"{"a": -2.5, "b": 1}"#, json!(-1.5))] {
        for subject in [&[][..], &["--method-subject"]] {
            let got = client.run(&[subject, &["call", "math", "math/add", params]].concat()).await;
            assert_eq!((got.code, got.said["result"].as_f64()), (0, sum.as_f64()), "{got:?}");
        }
    }
    let got = client.run(&["--idempotency-key", "order 42", "call", "math", "math/add", "[1, 2]"]).await;
    assert_eq!(got.code, 0, "{got:?}");

    let got = client.run(&["notify", "math", "math/add", "[1, 2]"]).await;
    assert_eq!((got.code, &got.said["outcome"]), (0, &json!("sent")), "{got:?}");
    let got = client.run(&["--timeout-ms", "500", "notify", "math", "math/add", "[1, 2]", "--with-reply"]).await;
    assert_eq!((got.code, &got.said["outcome"]), (0, &json!("sent")), "{got:?}");

    let got = client.run(&["call", "math", "admin/reset"]).await;
    assert_eq!((got.code, &got.said["code"], &got.said["signed"]), (10, &json!(-32002), &json!(true)), "{got:?}");

    let entries = json!([
        {"jsonrpc": "2.0", "method": "math/add", "params": [1, 2], "id": "é"},
        {"jsonrpc": "2.0", "method": "math/add", "params": [3, 4]},
        {"jsonrpc": "2.0", "method": "admin/reset", "id": 7},
        1,
    ]);
    let got = client.run(&["batch", "math", &entries.to_string()]).await;
    let responses = got.said["responses"].as_array().unwrap();
    let of = |id: Value| responses.iter().find(|response| response["id"] == id).unwrap();
    assert_eq!((got.code, responses.len()), (0, 3), "{got:?}");
    assert_eq!(of(json!("é"))["result"].as_f64(), Some(3.0));
    assert_eq!(of(json!(7))["error"]["code"], -32002);
    assert_eq!(of(Value::Null)["error"]["code"], -32600);
}

/// SPEC.md §18.1: the document lists the methods that the agent may call, and describes them truthfully.
async fn its_methods_are_found(client: &mut PythonClient) {
    let got = client.run(&["call", "math", "rpc.discover"]).await;
    let document = &got.said["result"];
    let methods = document["methods"].as_array().unwrap();
    let names: Vec<_> = methods.iter().map(|method| method["name"].as_str().unwrap()).collect();
    assert_eq!((got.code, names), (0, vec!["math/add"]), "{got:?}");
    assert_eq!((&document["info"]["title"], &document["openrpc"]), (&json!("dev/math"), &json!("1.3.2")));
    let params = &document["methods"][0]["x-params"];
    let required: Vec<_> = params["required"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    let named: serde_json::Map<_, _> = required.iter().map(|name| ((*name).to_owned(), json!(1))).collect();
    let got = client.run(&["call", "math", "math/add", &Value::Object(named).to_string()]).await;
    assert_eq!(got.said["result"].as_f64(), Some(2.0), "{got:?}");
    let got = client.run(&["call", "math", "rpc.discover", r#"{"cursor": "math/add"}"#]).await;
    assert_eq!(got.said["result"]["methods"], json!([]), "{got:?}");
}

/// A verified answer corrects the client's clock, for this service, by at most W; a hint does not (§8).
async fn a_clock_that_is_wrong_is_corrected(client: &mut PythonClient) {
    let call = ["call", "math", "math/add", "[1, 2]"];
    // If the clock is behind by less than W, a message is in time but its deadline is not.
    // Not by nearly W: a busy machine adds to it.
    for (ahead, code) in [("-20", -32003), ("25", -32011), ("-12", -32011), ("12", -32011)] {
        let ahead = ["--clock-ahead-s", ahead];
        let hint = client.run(&[&ahead[..], &["--wrong-key"], &call].concat()).await;
        assert_eq!(hint.code, 22, "{hint:?}");
        let first = client.run(&[&ahead[..], &call].concat()).await;
        assert_eq!((first.code, &first.said["code"]), (21, &json!(code)), "{ahead:?}: {first:?}");
        let second = client.run(&[&ahead[..], &call].concat()).await;
        assert_eq!(second.code, 0, "{ahead:?}: {second:?}");
    }
    client.run(&call).await;
    for _ in 0..2 {
        let far = client.run(&[&["--clock-ahead-s", "50"], &call[..]].concat()).await;
        assert_eq!((far.code, &far.said["code"]), (21, &json!(-32011)), "{far:?}");
        let apart = far.said["clocks_differ_s"].as_i64().unwrap();
        // Less if the answer was on its way for long.
        assert!((-51..=-40).contains(&apart), "{far:?}");
    }
    assert_eq!(client.run(&call).await.code, 0);
}

/// What any service must refuse, and with which answer.
async fn misbehaviour_is_refused(client: &mut PythonClient) {
    let call = ["call", "math", "math/add", "[1, 2]"];
    for misbehaviour in [
        &["--tamper", "payload"][..],
        &["--tamper", "subject"],
        &["--tamper", "reply"],
        &["--tamper", "token"],
        &["--no-header"],
        &["--two-headers"],
        &["--wrong-key"],
        &["--arrays"],
        &["--audience", "staging/math"],
    ] {
        let got = client.run(&[misbehaviour, &call].concat()).await;
        let (code, signed) = (&got.said["code"], &got.said["signed"]);
        assert_eq!((got.code, code, signed), (22, &json!(-32010), &json!(false)), "{misbehaviour:?}: {got:?}");
    }
    for (misbehaviour, code) in [
        (&["--replay"][..], -32012),
        (&["--stale"], -32011),
        (&["--body", "{"], -32700),
        (&["--body", "[]"], -32600),
        (&["--body", r#"{"jsonrpc":"2.0","method":"math/add","method":"math/add","id":1}"#], -32600),
        (&["--method-subject", "--body", r#"{"jsonrpc":"2.0","method":"admin/reset","id":1}"#], -32600),
    ] {
        let got = client.run(&[misbehaviour, &call].concat()).await;
        assert_eq!((got.code, &got.said["code"]), (21, &json!(code)), "{misbehaviour:?}: {got:?}");
        assert_eq!((&got.said["signed"], &got.said["id"]), (&json!(true), &Value::Null), "{misbehaviour:?}: {got:?}");
    }
    // With a good proof, but with a reply subject where the agent may not read: silence.
    for reply in ["$JS.API.INFO", "_INBOX.other.1", "rpc.v1.math.other"] {
        let got = client.run(&[&["--timeout-ms", "300", "--reply-to", reply], &call[..]].concat()).await;
        assert_eq!((got.code, &got.said["outcome"]), (20, &json!("timeout")), "{reply}: {got:?}");
    }
}

/// A client process that executes one command after the other.
struct PythonClient {
    credentials: PathBuf,
    stdin: ChildStdin,
    stdout: Lines<BufReader<ChildStdout>>,
    _process: Child,
}

#[derive(Debug)]
struct Got {
    /// The exit code that a process of its own would have had.
    code: i64,
    /// Its one line of JSON.
    said: Value,
}

impl PythonClient {
    fn start(python: &Path, credentials: PathBuf) -> Self {
        let mut command = tokio::process::Command::new(python);
        command.arg("-B").arg(script("client.py")).arg("--commands").kill_on_drop(true);
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let stdout = BufReader::new(process.stdout.take().unwrap()).lines();
        Self { credentials, stdin: process.stdin.take().unwrap(), stdout, _process: process }
    }

    async fn run(&mut self, arguments: &[&str]) -> Got {
        let command = [&["--creds", self.credentials.to_str().unwrap()], arguments].concat();
        let line = json!(command).to_string() + "\n";
        within(SOON, self.stdin.write_all(line.as_bytes())).await.unwrap();
        // A command may have to outlive a broker's restart, which takes 8 s on an idle machine.
        let said = within(4 * SOON, self.stdout.next_line()).await.unwrap();
        let said: Value =
            serde_json::from_str(&said.unwrap_or_else(|| panic!("{arguments:?}: the client ended"))).unwrap();
        Got { code: said["exit"].as_i64().unwrap(), said }
    }
}

/// The permissions of SPEC.md §19.
const PERMISSIONS: &str = r#"
authorization { users: [
  { user: svc, password: interop, permissions: { subscribe: ["rpc.v1.math.>", "rpc.v1-ctl.math.>"], publish: ["_INBOX.>"] } }
  { user: planner, password: interop, permissions: {
      publish: ["rpc.v1.*.planner", "rpc.v1.*.planner.>", "rpc.v1-ctl.*.planner.>"], subscribe: ["_INBOX.planner.>"] } }
  { user: scout, password: interop, permissions: {
      publish: ["rpc.v1.math.scout", "rpc.v1.math.scout.>", "rpc.v1-ctl.math.scout.>"], subscribe: ["_INBOX.scout.>"] } }
] }
"#;

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interop").join(name)
}
