//! The broker as the second gate: what `sealwire policy compile` and `sealwire authd` let a connection do at a real server.

mod drift;
mod telemetry;

use std::time::{Duration, Instant};

use nkeys::{KeyPair, XKey};
use sealwire::Clock as _;
use sealwire::internal::auth::IssueRequest;
use sealwire_testkit::nats_server::ServerOptions;
use sealwire_testkit::site::{Site, agent_key, methods};
use sealwire_testkit::{NatsServer, SOON, free_port, idp, within};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::process::Child;

use crate::process::{heard, says, spawn};
use crate::shell::Shell;

/// A service with policies, and everything that its broker's configuration is made from.
struct Gate {
    shell: Shell,
    site: Site,
    port: u16,
    issuer: KeyPair,
    xkey: XKey,
    responder: KeyPair,
    ann: KeyPair,
    bob: KeyPair,
}

/// `ann` works, `bob` may do nothing at all, and roles in tokens count for `carl`.
const POLICY: &str = r#"
[method."site/add"]
[method."site/count"]
[method."site/sleep"]
[role.worker]
allow = ["site/*"]
deny = ["site/sleep"]
[role.clerk]
from = "files"
allow = ["site/add"]
[agent.ann]
roles = ["clerk"]
[rule.silence]
agents = ["bob"]
deny = ["*"]
"#;

impl Gate {
    fn new() -> Self {
        let port = free_port();
        let site = Site::of_service(&format!("nats://127.0.0.1:{port}"), "site", &["ann", "bob"]);
        std::fs::write(site.path("policies/policy.toml"), POLICY).unwrap();
        let pair = KeyPair::new_user;
        let gate = Self {
            shell: Shell::new(),
            port,
            issuer: KeyPair::new_account(),
            xkey: XKey::new(),
            responder: pair(),
            ann: pair(),
            bob: pair(),
            site,
        };
        let (service, guard, tools) = (pair(), pair(), pair());
        let user =
            |kind: &str, name: &str, key: &KeyPair| json!({ "kind": kind, "name": name, "nkey": key.public_key() });
        let users = [
            user("agent", "ann", &gate.ann),
            user("agent", "bob", &gate.bob),
            user("service", "site", &service),
            user("guard", "site", &guard),
            user("tools", "tools", &tools),
        ];
        gate.shell.write("users.json", &json!({ "users": users }).to_string());
        gate.secret("issuer.nk", &gate.issuer.seed().unwrap());
        gate.secret("authd.xk", &gate.xkey.seed().unwrap());
        let login = json!({ "urls": [gate.url()], "nkey_seed": gate.responder.seed().unwrap() });
        gate.secret("authd.nats.json", &login.to_string());
        let config = std::fs::read_to_string(gate.site.path("sealwire.toml")).unwrap();
        let config = config.replace(
            "[keys]",
            &format!("nkey_seed = \"{}\"\n[keys]\ndenylist = \"denylist.json\"", service.seed().unwrap()),
        );
        std::fs::write(gate.site.path("denylist.json"), "{}").unwrap();
        sealwire::internal::files::write_secret(&gate.site.path("sealwire.toml"), &config, true).unwrap();
        gate
    }

    fn secret(&self, name: &str, text: &str) {
        self.shell.write(name, text);
        self.shell.set_mode(name, 0o600);
    }

    fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    fn config(&self) -> String {
        self.site.path("sealwire.toml").to_str().unwrap().to_owned()
    }

    /// A gateway's relay of what approvers have signed, among the users.
    fn with_relay(&self) -> KeyPair {
        let (relay, mut list) = (KeyPair::new_user(), self.shell.read_json("users.json"));
        let user = json!({ "kind": "relay", "name": "edge", "nkey": relay.public_key() });
        list["users"].as_array_mut().unwrap().push(user);
        self.shell.write("users.json", &list.to_string());
        relay
    }

    fn compile(&self, more: &[&str]) -> String {
        let config = self.config();
        let args = ["policy", "compile", "--config", &config].into_iter().chain(more.iter().copied());
        self.shell.run_args(&args.collect::<Vec<_>>()).ok().stdout
    }

    async fn server(&self, config: String) -> NatsServer {
        let options = ServerOptions { config: Some(config), port: Some(self.port), ..ServerOptions::default() };
        NatsServer::start_with_options(options).await
    }

    /// A server that asks who connects, with agents who are no users of it.
    async fn with_callout(&self) -> NatsServer {
        let (issuer, xkey, responder) = (self.issuer.public_key(), self.xkey.public_key(), self.responder.public_key());
        let keys =
            ["--nats", "--users", "users.json", "--callout", &issuer, "--xkey", &xkey, "--responder", &responder];
        let config = self.compile(&keys);
        assert!(!config.contains(&self.ann.public_key()), "{config}");
        self.server(config).await
    }

    /// The same, with a user of the operator in the system account, and one that watches.
    async fn with_callout_and_system(&self) -> NatsServer {
        let (issuer, xkey, responder) = (self.issuer.public_key(), self.xkey.public_key(), self.responder.public_key());
        let keys =
            ["--nats", "--users", "users.json", "--callout", &issuer, "--xkey", &xkey, "--responder", &responder];
        let watch = "WATCH { users: [{ user: watch, password: watch }] }";
        let config = self.compile(&keys).replacen("SYS {}", &format!("{SYSTEM}\n{watch}"), 1);
        self.server(config.replacen("auth_users: [", "auth_users: [kick, watch, ", 1)).await
    }

    /// `[system]` of the operator's file, for so many brokers.
    fn system(&self, brokers: usize) -> String {
        let url = self.url();
        format!(
            "[system]\nbrokers = {brokers}\n[system.nats]\nurls = [\"{url}\"]\nuser = \"kick\"\npassword = \"kick\"\n"
        )
    }

    /// A bucket of revocations at a broker of its own, which the service follows; with more in the operator's file. Without sight of it,
    /// nobody is admitted after so many seconds.
    async fn with_bucket(&self, refuse_after_s: u32, more: &str) -> NatsServer {
        let bucket = NatsServer::start().await;
        let run = |line: &str| tokio::task::block_in_place(|| self.shell.run(line));
        let x = run("--json keys new-operator op-1").ok().json()["x"].as_str().unwrap().to_owned();
        let (url, operator) = (bucket.url(), format!("operator = [{{ kid = \"op-1\", x = \"{x}\" }}]"));
        self.secret(
            "revocation.toml",
            &format!("environment = \"test\"\n{operator}\ncopy = \"test.copy\"\n[nats]\nurls = [\"{url}\"]\n{more}"),
        );
        run("revocations init --key op-1.json --wait 1s").ok();
        let config = std::fs::read_to_string(self.site.path("sealwire.toml")).unwrap();
        let more = format!(
            "{config}\n[revocation]\n{operator}\nrefuse_after_s = {refuse_after_s}\n[revocation.nats]\nurls = [\"{url}\"]\n"
        );
        sealwire::internal::files::write_secret(&self.site.path("sealwire.toml"), &more, true).unwrap();
        bucket
    }

    async fn authd(&self, more: &[&str]) -> Child {
        let config = self.config();
        let args = [
            "authd",
            "--json",
            "--login",
            "authd.nats.json",
            "--issuer",
            "issuer.nk",
            "--xkey",
            "authd.xk",
            "--config",
            &config,
        ];
        let mut child = spawn(&self.shell, &args.into_iter().chain(more.iter().copied()).collect::<Vec<_>>());
        let mut said = heard(child.stdout.take().unwrap());
        let mut log = heard(child.stderr.take().unwrap());
        tokio::spawn(async move { while log.changed().await.is_ok() {} });
        says(&mut said, &format!("\"xkey\":\"{}\"", self.xkey.public_key())).await;
        child
    }

    fn token(&self, agent: &str, roles: &[&str], ttl_s: u64) -> String {
        let mut request = IssueRequest::new(agent, "test/site", sealwire::SystemClock.now_s());
        request.roles = roles.iter().map(ToString::to_string).collect();
        request.ttl_s = ttl_s;
        self.site.issuer.issue(&request).unwrap()
    }

    async fn connect(&self, login: impl FnOnce(&str) -> Value) -> Result<Wire, String> {
        Wire::connect(self.port, login).await
    }

    async fn with_token(&self, token: &str) -> Result<Wire, String> {
        self.connect(|_| json!({ "auth_token": token })).await
    }
}

/// The account of docs/revocation.md in which an operator closes connections.
const SYSTEM: &str = "SYS { users: [{ user: kick, password: kick, permissions: {
    publish: [\"$SYS.REQ.SERVER.PING.CONNZ\", \"$SYS.REQ.SERVER.*.CONNZ\", \"$SYS.REQ.SERVER.*.KICK\"]
    subscribe: [\"_SVC.operator.revocation.>\"] } }] }";

/// A connection, line by line, and the id of its server.
pub(crate) struct Wire(BufReader<TcpStream>, String);

impl Wire {
    /// Logs in as `login` answers the challenge; or what the server says instead.
    pub(crate) async fn connect(port: u16, login: impl FnOnce(&str) -> Value) -> Result<Self, String> {
        let stream = within(SOON, TcpStream::connect(("127.0.0.1", port))).await.unwrap();
        let mut wire = Self(BufReader::new(stream), String::new());
        let info: Value = serde_json::from_str(wire.line().await.strip_prefix("INFO ").unwrap()).unwrap();
        wire.1 = info["server_id"].as_str().unwrap().to_owned();
        let mut connect = login(info["nonce"].as_str().unwrap_or_default());
        for (member, value) in
            [("verbose", json!(false)), ("lang", json!("test")), ("protocol", json!(1)), ("headers", json!(true))]
        {
            connect[member] = value;
        }
        match wire.fenced(&format!("CONNECT {connect}\r\n")).await {
            None => Ok(wire),
            Some(error) => Err(error),
        }
    }

    /// Logs in with this token. A broker refuses whoever `authd` has not judged within two seconds, so on a busy machine it may take some
    /// attempts.
    pub(crate) async fn admitted(port: u16, token: &str) -> Self {
        let deadline = Instant::now() + SOON;
        loop {
            match Self::connect(port, |_| json!({ "auth_token": token })).await {
                Ok(wire) => return wire,
                Err(error) => assert!(Instant::now() < deadline, "{error}"),
            }
        }
    }

    /// The next line; empty at the end.
    pub(crate) async fn line(&mut self) -> String {
        let mut line = String::new();
        let _ = within(SOON, self.0.read_line(&mut line)).await;
        line.trim_end().to_owned()
    }

    /// Sends this, and returns the error that the server has before it answers a ping.
    async fn fenced(&mut self, text: &str) -> Option<String> {
        let _ = self.0.write_all(format!("{text}PING\r\n").as_bytes()).await;
        let mut error = None;
        loop {
            let line = self.line().await;
            match line.split_once(' ').map_or(line.as_str(), |(word, _)| word) {
                "PONG" => return error,
                "-ERR" => error = Some(line),
                "" => return error.or(Some("closed".to_owned())),
                "PING" => self.0.write_all(b"PONG\r\n").await.unwrap(),
                _ => {}
            }
        }
    }

    pub(crate) async fn may_publish(&mut self, subject: &str) -> bool {
        self.fenced(&format!("PUB {subject} 0\r\n\r\n")).await.is_none()
    }

    pub(crate) async fn may_subscribe(&mut self, subject: &str) -> bool {
        self.fenced(&format!("SUB {subject} 7\r\nUNSUB 7\r\n")).await.is_none()
    }

    /// What a relay of approvals may and may not do.
    async fn is_relay(&mut self) {
        for subject in ["rpc.v1.site.ann.rpc.approvals", "rpc.v1.site.bob.rpc.approval", "rpc.v1.site.bob.rpc.approve"]
        {
            assert!(self.may_publish(subject).await, "{subject}");
        }
        for subject in ["rpc.v1.site.ann", "rpc.v1.site.ann.site.add", "rpc.v1.site.ann.rpc.can", "_INBOX.ann.relay.x"]
        {
            assert!(!self.may_publish(subject).await, "{subject}");
        }
        assert!(self.may_subscribe("_INBOX.*.relay.*").await);
        for subject in [">", "_INBOX.>", "_INBOX.ann.>", "_INBOX.ann.x", "rpc.v1.site.>"] {
            assert!(!self.may_subscribe(subject).await, "{subject}");
        }
    }

    /// What `ann` may and may not do whose only methods are these.
    async fn is_ann(&mut self, methods: &[&str], others: &[&str]) {
        for method in methods {
            assert!(self.may_publish(&format!("rpc.v1.site.ann.{method}")).await, "{method}");
        }
        assert!(self.may_publish("rpc.v1-ctl.site.ann.all.AAAA").await);
        let others = others.iter().map(|method| format!("rpc.v1.site.ann.{method}"));
        let foreign = [
            "rpc.v1.site.ann",
            "rpc.v1.site.bob.site.add",
            "rpc.v1.other.ann.site.add",
            "rpc.v1-ctl.site.bob.all.AAAA",
            "_INBOX.ann.x",
            "_INBOX.bob.x",
            "_SVC.site.replica.x",
            "$SRV.PING",
            "$SYS.REQ.USER.AUTH",
            "$SYS.REQ.USER.INFO",
            "$SYS.REQ.SERVER.PING",
            "$JS.API.INFO",
            "$JS.ACK.x",
            "$KV.bucket.key",
            "$O.bucket.C.x",
        ];
        for subject in foreign.into_iter().map(str::to_owned).chain(others) {
            assert!(!self.may_publish(&subject).await, "{subject}");
        }
        assert!(self.may_subscribe("_INBOX.ann.>").await);
        for subject in [
            ">",
            "_INBOX.>",
            "_INBOX.*.>",
            "_INBOX.bob.>",
            "rpc.>",
            "rpc.v1.site.>",
            "$SRV.>",
            "$SYS.>",
            "$JS.>",
            "$KV.>",
        ] {
            assert!(!self.may_subscribe(subject).await, "{subject}");
        }
    }
}

fn with_nkey(pair: &KeyPair, nonce: &str) -> Value {
    json!({ "nkey": pair.public_key(), "sig": idp::b64(pair.sign(nonce.as_bytes()).unwrap()) })
}

fn with_jwt(pair: &KeyPair, jwt: &str, nonce: &str) -> Value {
    json!({ "jwt": jwt, "sig": idp::b64(pair.sign(nonce.as_bytes()).unwrap()) })
}

/// SPEC.md §19. `site/add` by the file's role; the rest is another role's, which any token might carry.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compiled_users_may_do_what_policies_leave_them_and_nothing_else() {
    let gate = Gate::new();
    let relay = gate.with_relay();
    let server =
        gate.server(gate.compile(&["--nats", "--users", "users.json", "--agent", "ann=", "--agent", "bob="])).await;
    gate.connect(|nonce| with_nkey(&relay, nonce)).await.unwrap().is_relay().await;
    let mut ann = gate.connect(|nonce| with_nkey(&gate.ann, nonce)).await.unwrap();
    ann.is_ann(&["site.add", "rpc.discover"], &["site.count", "site.sleep", "site.more", "rpc.can"]).await;
    // To a server, an empty list would mean everything.
    let mut bob = gate.connect(|nonce| with_nkey(&gate.bob, nonce)).await.unwrap();
    for subject in ["x", "rpc.v1.site.bob", "rpc.v1.site.bob.site.add", "rpc.v1.site.bob.rpc.discover", "$JS.API.INFO"]
    {
        assert!(!bob.may_publish(subject).await, "{subject}");
    }
    // The service and its guard as `sealwire setup` has them.
    let served = gate.site.serve(methods()).await;
    served.kill().await;

    // What a token might carry counts unless it is said what it carries; a method that no file declares may be there.
    let text = gate.compile(&["--nats", "--users", "users.json", "--batches"]);
    server.reload(&text).await;
    let mut ann = gate.connect(|nonce| with_nkey(&gate.ann, nonce)).await.unwrap();
    for method in ["site.add", "site.count", "site.more", "site.sleep"] {
        assert!(ann.may_publish(&format!("rpc.v1.site.ann.{method}")).await, "{method}");
    }
    assert!(ann.may_publish("rpc.v1.site.ann").await && !ann.may_publish("rpc.v1.site.ann.rpc.can").await);
    let text = gate.compile(&["--nats", "--users", "users.json", "--agent", "bob=worker"]);
    assert!(text.contains(r#"publish: { deny: [">"] }"#), "{text}");
}

/// `ann` decides by files, and `bob` by what his token says.
const APPROVERS: &str = r#"
[method."site/add"]
params = [{ name = "a", type = "integer" }]
[role.treasurer]
from = "files"
allow = ["rpc.approvals"]
[role.officer]
allow = ["rpc.approvals"]
[role.clerk]
allow = ["site/add"]
[role.blind]
[agent.ann]
roles = ["treasurer", "blind"]
[agent.bob]
roles = ["clerk"]
[approval.large]
from = ["treasurer", "officer", "blind"]
[rule.large]
everyone = true
deny = ["site/add"]
unless_approved = "large"
"#;

const NEWS: [&str; 6] = [
    "rpc.v1-approvals.site.treasurer",
    "rpc.v1-approvals.site.blind",
    "rpc.v1-approvals.site.officer",
    "rpc.v1-approvals.site.clerk",
    "rpc.v1-approvals.site.*",
    "rpc.v1-approvals.>",
];

/// The subjects of news that this connection may hear. It may publish on none.
async fn hears(wire: &mut Wire) -> Vec<&'static str> {
    let mut heard = Vec::new();
    for subject in NEWS {
        assert!(subject.contains(['*', '>']) || !wire.may_publish(subject).await, "{subject}");
        if wire.may_subscribe(subject).await {
            heard.push(subject);
        }
    }
    heard
}

/// SPEC.md §19.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn news_of_calls_that_wait_is_heard_by_those_who_decide_and_published_by_their_service_alone() {
    let gate = Gate::new();
    std::fs::write(gate.site.path("policies/policy.toml"), APPROVERS).unwrap();
    let users = ["--nats", "--users", "users.json"];
    let server = gate.server(gate.compile(&users)).await;
    let config = std::fs::read_to_string(gate.config()).unwrap();
    let seed = config.split("nkey_seed = \"").nth(1).unwrap().split('"').next().unwrap();
    let pair = KeyPair::from_seed(seed).unwrap();
    let mut service = gate.connect(|nonce| with_nkey(&pair, nonce)).await.unwrap();
    assert!(service.may_publish("rpc.v1-approvals.site.treasurer").await);
    for other in ["rpc.v1-approvals.bank.treasurer", "rpc.v1-approvals.site", "rpc.v1-approvals.site.a.b"] {
        assert!(!service.may_publish(other).await, "{other}");
    }
    assert!(!service.may_subscribe("rpc.v1-approvals.site.treasurer").await);
    // What a token might say is not enough to hear what others may not know.
    let mut ann = gate.connect(|nonce| with_nkey(&gate.ann, nonce)).await.unwrap();
    assert_eq!(hears(&mut ann).await, NEWS[..2]);
    let mut bob = gate.connect(|nonce| with_nkey(&gate.bob, nonce)).await.unwrap();
    assert!(hears(&mut bob).await.is_empty());
    server.reload(&gate.compile(&[&users[..], &["--agent", "bob=officer"]].concat())).await;
    let mut bob = gate.connect(|nonce| with_nkey(&gate.bob, nonce)).await.unwrap();
    assert_eq!(hears(&mut bob).await, NEWS[2..3]);
    drop(server);

    // By the token itself.
    let _server = gate.with_callout().await;
    let mut authd = gate.authd(&[]).await;
    // Whoever could not list the calls does not hear of them.
    for (agent, roles, expected) in [
        ("ann", &["treasurer"][..], &NEWS[..2]),
        ("bob", &["officer", "treasurer"], &NEWS[2..3]),
        ("bob", &["blind"], &[]),
    ] {
        let mut wire = Wire::admitted(gate.port, &gate.token(agent, roles, 600)).await;
        assert_eq!(hears(&mut wire).await, expected, "{agent}");
    }
    authd.kill().await.unwrap();
}

/// Operator mode: JWTs that the account's key signs, and the template of a scoped signing key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compiled_jwts_and_scoped_keys_give_the_same_permissions() {
    let gate = Gate::new();
    let relay = gate.with_relay();
    let (operator, account, scoped) = (KeyPair::new_operator(), KeyPair::new_account(), KeyPair::new_account());
    gate.secret("account.nk", &account.seed().unwrap());
    let common = ["--users", "users.json", "--agent", "ann=", "--agent", "bob="];
    let with = |more: &[&'static str]| -> Value {
        let args: Vec<&str> = more.iter().copied().chain(common).collect();
        serde_json::from_str(&gate.compile(&args)).unwrap()
    };
    let claims = with(&["--nats=jwt"]);
    assert_eq!(claims[0]["sub"], gate.ann.public_key());
    let jwts = with(&["--nats=jwt", "--seed", "account.nk"]);
    let scopes = with(&["--nats=scoped"]);
    assert_eq!((&scopes[0]["agents"], scopes.as_array().unwrap().len()), (&json!(["ann"]), 2));

    let limits = json!({ "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true, "conn": -1, "leaf": -1 });
    let scope =
        json!({ "kind": "user_scope", "key": scoped.public_key(), "role": "ann", "template": scopes[0]["template"] });
    let nats = json!({ "type": "account", "version": 2, "limits": limits, "signing_keys": [scope] });
    let account_jwt = jwt(&operator, json!({ "sub": account.public_key(), "name": "account", "nats": nats }));
    let nats = json!({ "type": "operator", "version": 2 });
    let operator_jwt = jwt(&operator, json!({ "sub": operator.public_key(), "name": "operator", "nats": nats }));
    let key = account.public_key();
    let config = format!("operator: {operator_jwt}\nresolver: MEMORY\nresolver_preload: {{ {key}: {account_jwt} }}\n");
    let _server = NatsServer::start_with_options(ServerOptions {
        config: Some(config),
        port: Some(gate.port),
        without_jetstream: true,
        ..ServerOptions::default()
    })
    .await;

    let signed = jwts[0]["jwt"].as_str().unwrap();
    let mut ann = gate.connect(|nonce| with_jwt(&gate.ann, signed, nonce)).await.unwrap();
    ann.is_ann(&["site.add", "rpc.discover"], &["site.count", "site.sleep"]).await;
    let of_relay = jwts.as_array().unwrap().iter().find(|user| user["kind"] == "relay").unwrap();
    let signed = of_relay["jwt"].as_str().unwrap();
    gate.connect(|nonce| with_jwt(&relay, signed, nonce)).await.unwrap().is_relay().await;
    let nats = json!({ "type": "user", "version": 2, "issuer_account": key });
    let user = jwt(&scoped, json!({ "sub": gate.ann.public_key(), "name": "ann", "nats": nats }));
    let mut ann = gate.connect(|nonce| with_jwt(&gate.ann, &user, nonce)).await.unwrap();
    ann.is_ann(&["site.add", "rpc.discover"], &["site.count", "site.sleep"]).await;
}

/// A gateway mints a token for each call, and has none of its own to log in with.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agents_without_a_token_stay_users_beside_the_callout() {
    let gate = Gate::new();
    let (edge, robot) = (KeyPair::new_user(), KeyPair::new_user());
    let mut list = gate.shell.read_json("users.json");
    let follower = KeyPair::new_user();
    for (kind, name, key) in
        [("agent", "edge", &edge), ("gateway-follower", "edge", &follower), ("agent", "robot", &robot)]
    {
        list["users"].as_array_mut().unwrap().push(json!({ "kind": kind, "name": name, "nkey": key.public_key() }));
    }
    gate.shell.write("users.json", &list.to_string());
    let (issuer, xkey, responder) = (gate.issuer.public_key(), gate.xkey.public_key(), gate.responder.public_key());
    let keys = ["--users", "users.json", "--callout", &issuer, "--xkey", &xkey, "--responder", &responder];
    // No `authd` runs, so whoever gets in is a user.
    let server = gate.server(gate.compile(&[&["--nats", "--keep", "robot"][..], &keys].concat())).await;
    for (agent, key) in [("edge", &edge), ("robot", &robot)] {
        let mut wire = gate.connect(|nonce| with_nkey(key, nonce)).await.unwrap();
        assert!(wire.may_publish(&format!("rpc.v1.site.{agent}.site.add")).await, "{agent}");
        assert!(!wire.may_publish("rpc.v1.site.ann.site.add").await, "{agent}");
    }
    assert!(gate.connect(|nonce| with_nkey(&gate.ann, nonce)).await.is_err());
    server.reload(&gate.compile(&[&["--nats"][..], &keys].concat())).await;
    assert!(gate.connect(|nonce| with_nkey(&edge, nonce)).await.is_ok());
    assert!(gate.connect(|nonce| with_nkey(&robot, nonce)).await.is_err());
    let config = gate.config();
    let args = ["policy", "compile", "--config", &config, "--nats", "--keep", "nobody"];
    gate.shell.run_args(&[&args[..], &keys].concat()).fails(30, &["no agent nobody"]);
}

fn jwt(issuer: &KeyPair, mut claims: Value) -> String {
    claims["iss"] = issuer.public_key().into();
    claims["iat"] = sealwire::SystemClock.now_s().into();
    claims["jti"] = idp::b64(claims.to_string()).into();
    let text = format!("{}.{}", idp::b64(r#"{"typ":"JWT","alg":"ed25519-nkey"}"#), idp::b64(claims.to_string()));
    format!("{text}.{}", idp::b64(issuer.sign(text.as_bytes()).unwrap()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_access_token_opens_a_connection_for_what_the_policies_leave_its_agent() {
    let gate = Gate::new();
    let server = gate.with_callout().await;
    let authd = gate.authd(&[]).await;
    let served = gate.site.serve(methods()).await;

    // Nothing but the token of its calls, and its key.
    let file = json!({
        "version": 1, "environment": "test", "agent": "ann", "token": gate.token("ann", &["worker"], 600),
        "key": { "kid": "ann.k1", "alg": "HS256", "secret": idp::b64(agent_key("ann").expose()) },
        "nats": { "urls": [gate.url()], "access_token": true }, "method_subjects": true,
    });
    gate.secret("ann.creds.json", &file.to_string());
    assert_eq!(gate.shell.run("call site site/add [1,2] --creds ann.creds.json").ok().stdout.trim(), "3");
    gate.shell.run("call site site/sleep [1] --creds ann.creds.json").fails(20, &["rpc.v1.site.ann.site.sleep"]);
    // On the plain subject, the broker would not see the method.
    let mut plain = file.clone();
    plain["method_subjects"] = false.into();
    gate.secret("plain.creds.json", &plain.to_string());
    gate.shell.run("call site site/add [1,2] --creds plain.creds.json").fails(20, &["rpc.v1.site.ann"]);

    // Exactly what the roles of this token leave.
    let mut ann = gate.with_token(&gate.token("ann", &[], 600)).await.unwrap();
    ann.is_ann(&["site.add", "rpc.discover"], &["site.count", "site.sleep", "site.more"]).await;
    let mut ann = gate.with_token(&gate.token("ann", &["worker"], 600)).await.unwrap();
    ann.is_ann(&["site.add", "site.count", "site.more"], &["site.sleep", "rpc.can"]).await;
    // Clients that can send only a name and a password.
    let token = gate.token("ann", &[], 600);
    assert!(gate.connect(|_| json!({ "user": "ann", "pass": token })).await.is_ok());

    // Nobody else gets in, and is told nothing.
    let other = Site::of_service(&gate.url(), "other", &["ann"]);
    let (stranger, foreign) = (other.token("ann", &[]), {
        let request = IssueRequest::new("ann", "test/other", sealwire::SystemClock.now_s());
        gate.site.issuer.issue(&request).unwrap()
    });
    for (what, login) in [
        ("nothing", json!({})),
        ("no token", json!({ "auth_token": "x" })),
        ("a token of another issuer", json!({ "auth_token": stranger })),
        ("a token for another service", json!({ "auth_token": foreign })),
        ("a token of an agent that may call nothing", json!({ "auth_token": gate.token("bob", &["worker"], 600) })),
        ("a changed token", json!({ "auth_token": format!("{token}A") })),
        ("an nkey", json!({ "nkey": gate.ann.public_key(), "sig": "AAAA", "auth_token": token })),
    ] {
        let refused = gate.connect(|_| login).await.err();
        assert_eq!(refused.as_deref(), Some("-ERR 'Authorization Violation'"), "{what}");
    }

    // It ends with the token.
    let mut short = gate.with_token(&gate.token("ann", &[], 6)).await.unwrap();
    let mut said = String::new();
    loop {
        let line = short.line().await;
        if line.is_empty() {
            break;
        }
        said += &line;
    }
    assert!(said.contains("Expired"), "{said}");

    // What is revoked gets in no more.
    let before = sealwire::SystemClock.now_s() + 1;
    let list = json!({ "subjects": [{ "sub": "ann", "before": before }] });
    std::fs::write(gate.site.path("denylist.json"), list.to_string()).unwrap();
    let revoked = async {
        while gate.with_token(&token).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    within(SOON, revoked).await;
    served.kill().await;
    drop((authd, server));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_responder_agents_stay_out_and_services_do_not() {
    let gate = Gate::new();
    let _server = gate.with_callout().await;
    let token = gate.token("ann", &[], 600);
    let mut pair = [gate.authd(&[]).await, gate.authd(&[]).await];
    let mut live = gate.with_token(&token).await.unwrap();
    within(SOON, pair[0].kill()).await.unwrap();
    // The other one answers. The broker waits for it for two seconds.
    let admitted = || async {
        while gate.with_token(&token).await.is_err() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    within(SOON, admitted()).await;
    within(SOON, pair[1].kill()).await.unwrap();
    assert!(gate.with_token(&token).await.is_err());
    // Those who are in stay in, and those with users of their own do not depend on it.
    assert!(live.may_publish("rpc.v1.site.ann.site.add").await);
    gate.site.serve(methods()).await.kill().await;
    let _authd = gate.authd(&[]).await;
    within(SOON, admitted()).await;
}

/// One host that asks too often costs itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_of_one_host_beyond_its_rate_are_denied_at_once() {
    let gate = Gate::new();
    let _server = gate.with_callout().await;
    let _authd = gate.authd(&["--host-per-second", "1", "--host-burst", "5"]).await;
    let token = gate.token("ann", &[], 600);
    let storm = (0..40).map(|_| gate.with_token(&token));
    let outcomes = futures_util::future::join_all(storm).await;
    let (admitted, denied): (Vec<_>, Vec<_>) = outcomes.into_iter().partition(Result::is_ok);
    assert!(admitted.len() >= 5 && !denied.is_empty(), "{} {}", admitted.len(), denied.len());
    assert!(denied.into_iter().all(|outcome| outcome.is_err_and(|error| error.contains("Authorization Violation"))));
    // A second of patience is enough.
    let later = async {
        while gate.with_token(&token).await.is_err() {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    within(SOON, later).await;
}

/// docs/revocation.md: what operators revoke gets no connection, nor does anybody while nothing can be known of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_operators_revoke_gets_no_connection() {
    let gate = Gate::new();
    let mut bucket = gate.with_bucket(2, "").await;
    let run = |line: &str| tokio::task::block_in_place(|| gate.shell.run(line));
    let _server = gate.with_callout().await;
    let _authd = gate.authd(&[]).await;
    let token = gate.token("ann", &[], 600);
    let until = |admitted: bool| {
        let (gate, token) = (&gate, &token);
        async move {
            while gate.with_token(token).await.is_ok() != admitted {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    };
    within(SOON, until(true)).await;
    for what in ["agent ann", "subject ann", "service site", "everything"] {
        run(&format!("revoke {what} --key op-1.json --expect authd:site=1")).ok();
        assert!(gate.with_token(&token).await.is_err(), "{what}");
        run(&format!("restore {what} --key op-1.json --expect authd:site=1")).ok();
        // A list that was not confirmed for two seconds admits nobody, as on a machine that stands still.
        within(SOON, until(true)).await;
    }
    // It is no replica of the service.
    run("revoke agent bob --key op-1.json --expect site=1 --wait 1s").fails_with(23, "MISSING  site: 0 of 1");
    bucket.kill().await;
    within(SOON, until(false)).await;
}

/// docs/policy-push.md: `authd` lets in by what operators have pushed, and not by the folder.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pushed_policies_decide_who_may_connect() {
    let gate = Gate::new();
    let _bucket = gate.with_bucket(60, "").await;
    let path = gate.site.path("sealwire.toml");
    let config = std::fs::read_to_string(&path).unwrap();
    let folder = "folder = \"policies\"\n";
    assert!(config.contains(folder));
    let config = config.replace(folder, &format!("{folder}source = \"bucket\"\n"));
    sealwire::internal::files::write_secret(&path, &config, true).unwrap();
    let _server = gate.with_callout().await;
    let _authd = gate.authd(&[]).await;
    let token = gate.token("ann", &["worker"], 600);
    let is_let_in = async { while gate.with_token(&token).await.is_err() {} };
    within(SOON, is_let_in).await;
    let methods = "[method.\"site/add\"]\n";
    gate.shell.write("closed/site.toml", &format!("{methods}[rule.closed]\neveryone = true\ndeny = [\"*\"]\n"));
    let push = |folder: &str| {
        let line =
            format!("policy push {folder} --service site --key op-1.json --create 1 --expect authd:site=1 --wait 20s");
        tokio::task::block_in_place(|| gate.shell.run(&line)).ok().says("authd site ");
    };
    push("closed");
    assert!(gate.with_token(&token).await.is_err());
    gate.shell.write("open/site.toml", &format!("{methods}[role.worker]\nallow = [\"site/add\"]\n"));
    push("open");
    assert!(gate.with_token(&token).await.is_ok());
}

/// docs/revocation.md, "Closing connections": denied first, then closed, and nobody else is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_of_the_revoked_are_closed_and_do_not_come_back() {
    let gate = Gate::new();
    let _bucket = gate.with_bucket(60, &gate.system(1)).await;
    let run = |line: &str| tokio::task::block_in_place(|| gate.shell.run(&format!("--json {line}")));
    let server = gate.with_callout_and_system().await;
    let rate = ["--host-per-second", "100000", "--host-burst", "100000"];
    let _pair = [gate.authd(&rate).await, gate.authd(&rate).await];
    let (ann, carl) = (gate.token("ann", &[], 600), gate.token("carl", &["worker"], 600));
    let again = gate.token("carl", &["worker"], 601);
    // Each has seen the bucket.
    let seen = async {
        let has_seen = |told: Value| {
            let replicas = told["replicas"].as_array().unwrap().clone();
            replicas.len() == 2 && replicas.iter().all(|one| one["stale"] == false)
        };
        while !has_seen(run("revocations").ok().json()) {}
    };
    within(2 * SOON, seen).await;
    let mut of_ann = [gate.with_token(&ann).await.unwrap(), gate.with_token(&ann).await.unwrap()];
    // What a client says of itself says nothing of whose it is.
    let mut of_carl = gate.connect(|_| json!({ "user": "ann", "pass": carl, "name": "ann" })).await.unwrap();
    // Who kicks is not in the system account; the broker forbids it besides.
    for subject in [format!("$SYS.REQ.SERVER.{}.KICK", of_carl.1), "$SYS.REQ.SERVER.PING.CONNZ".to_owned()] {
        assert!(!of_carl.may_publish(&subject).await, "{subject}");
    }

    // Clients that come back as fast as they can get nothing by it, and take nothing from others.
    let storm = async {
        let mut denied = 0;
        while denied < 20 {
            denied += usize::from(gate.with_token(&ann).await.is_err());
        }
    };
    let revoke = async { run("revoke agent ann --key op-1.json --expect authd:site=2 --wait 60s").ok().json() };
    let (told, ()) = within(2 * SOON, async { tokio::join!(revoke, storm) }).await;
    let brokers = &told["connections"]["brokers"];
    assert_eq!(brokers.as_array().unwrap().len(), 1, "{told}");
    assert_eq!(
        [&brokers[0]["answered"], &brokers[0]["back"], &told["complete"]],
        [&json!(true), &json!(0), &json!(true)]
    );
    assert!(brokers[0]["closed"].as_u64().unwrap() >= 2 && brokers[0]["after_ms"].is_u64(), "{told}");
    println!("{brokers}");
    for wire in &mut of_ann {
        while !wire.line().await.is_empty() {}
    }
    assert!(gate.with_token(&ann).await.is_err());
    assert!(of_carl.may_publish("rpc.v1.site.carl.site.add").await, "another agent's goes on");
    drop(gate.with_token(&carl).await.unwrap());

    // One token of an agent, and not the other.
    let mut other = gate.with_token(&again).await.unwrap();
    let claims = carl.split('.').nth(1).unwrap();
    let claims: Value = serde_json::from_slice(&sealwire_testkit::desk::unb64(claims)).unwrap();
    let line =
        format!("revoke token {} --key op-1.json --expect authd:site=2 --wait 60s", claims["jti"].as_str().unwrap());
    let told = run(&line).ok().json();
    assert_eq!(told["connections"]["brokers"][0]["closed"], 1, "{told}");
    while !of_carl.line().await.is_empty() {}
    assert!(other.may_publish("rpc.v1.site.carl.site.add").await);
    assert!(gate.with_token(&carl).await.is_err());

    // Everybody whom authd has let in, and nobody with a login of its own.
    let mut service = gate.connect(|_| json!({ "user": "watch", "pass": "watch" })).await.unwrap();
    let told = run("revoke everything --key op-1.json --expect authd:site=2 --wait 60s").ok().json();
    assert_eq!(told["connections"]["brokers"][0]["closed"], 1, "{told}");
    while !other.line().await.is_empty() {}
    assert!(service.may_publish("x").await);
    drop(server);
}

/// A login that the broker itself knows comes back, and it is said so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_login_of_the_broker_itself_is_closed_and_told_of_if_it_comes_back() {
    let gate = Gate::new();
    let _bucket = gate.with_bucket(60, &gate.system(2)).await;
    let run = |line: &str| tokio::task::block_in_place(|| gate.shell.run(line));
    let config = |users: &str| {
        format!(
            "accounts {{ SEALWIRE {{ users: [{users}] }}, OTHER {{ users: [{{ user: carl, password: x }}] }}, {SYSTEM} }}\n\
             system_account: SYS\n"
        )
    };
    let server = gate.server(config("{ user: ann, password: x }, { user: bob, password: x }")).await;
    let client = async |user: &str| {
        let options = async_nats::ConnectOptions::with_user_and_password(user.into(), "x".into()).name("ann");
        within(SOON, options.reconnect_delay_callback(|_| Duration::from_millis(10)).connect(gate.url())).await.unwrap()
    };
    let (ann, bob, carl) = (client("ann").await, client("bob").await, client("carl").await);
    let cid = |client: &async_nats::Client| client.server_info().client_id;
    let before = [cid(&bob), cid(&carl)];
    let told = run("--json revoke agent ann --key op-1.json --wait 5s");
    assert_eq!(told.code, 23);
    let told = told.json();
    let broker = &told["connections"]["brokers"][0];
    assert!(broker["closed"].as_u64().unwrap() >= 2 && broker["back"].as_u64().unwrap() >= 1, "{told}");
    assert_eq!(told["connections"]["missing"], 1, "there are two brokers");
    // Of another account, or another user with this name as a client: untouched.
    assert_eq!([cid(&bob), cid(&carl)], before);
    run("revoke agent carl --key op-1.json --wait 1s").fails_with(23, "CAME BACK");
    assert_eq!(cid(&carl), before[1]);

    // Taken out at the broker, it stays away.
    server.reload(&config("{ user: bob, password: x }")).await;
    let told = run("--json revoke agent ann --key op-1.json --wait 1s").json();
    let broker = &told["connections"]["brokers"][0];
    assert_eq!([&broker["back"], &broker["answered"]], [&json!(0), &json!(true)], "{told}");
    let refused =
        async_nats::ConnectOptions::with_user_and_password("ann".into(), "x".into()).connect(gate.url()).await;
    assert!(refused.is_err());
    drop(ann);

    // Without brokers, what is revoked is revoked all the same.
    drop(server);
    run("revoke agent eve --key op-1.json --wait 2s").fails_with(23, "NO CONNECTION CLOSED");
    run("revocations").ok().says("agent eve");
}

/// A client renews its token before the broker ends the connection with the old one, and calls go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_connects_anew_with_the_next_token_in_time() {
    let gate = Gate::new();
    let _server = gate.with_callout().await;
    let _authd = gate.authd(&[]).await;
    let served = gate.site.serve(methods()).await;
    gate.secret("ann.jwt", &gate.token("ann", &[], 10));
    let file = json!({
        "version": 1, "environment": "test", "agent": "ann", "token_file": "ann.jwt",
        "key": { "kid": "ann.k1", "alg": "HS256", "secret": idp::b64(agent_key("ann").expose()) },
        "nats": { "urls": [gate.url()], "access_token": true }, "method_subjects": true,
    });
    gate.secret("ann.creds.json", &file.to_string());
    let credentials = sealwire::Credentials::load(gate.shell.path("ann.creds.json")).unwrap();
    let client = within(SOON, sealwire::Client::connect(credentials)).await.unwrap();
    let until = sealwire::SystemClock.now_s() + 25;
    let mut calls = 0;
    while sealwire::SystemClock.now_s() < until {
        let next = gate.token("ann", &[], 10);
        sealwire::internal::files::write_secret(&gate.shell.path("ann.jwt"), &next, true).unwrap();
        let sum: i64 = within(SOON, client.call("site", "site/add", (1, 2)))
            .await
            .unwrap_or_else(|error| panic!("call {calls}: {error}"));
        assert_eq!(sum, 3);
        calls += 1;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(client.stats().disconnects <= 1, "{:?}", client.stats());
    served.kill().await;
}
