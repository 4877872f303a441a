//! Contexts and variables of the `nats` command: what joins a broker with them, and what they never replace.

use serde_json::{Value, json};

use sealwire_testkit::NatsServer;
use sealwire_testkit::site::{Site, agent_key, methods};

use crate::shell::{Ran, Shell};

const USERS: &str = "authorization { users = [ { user: ann, password: \"a passw0rd of ann's\" } ] }";
const PASSWORD: &str = "a passw0rd of ann's";
/// Nobody listens there.
const NOWHERE: &str = "nats://127.0.0.1:1";

/// A home with contexts in it, and one service at the broker that they name.
struct Stage {
    shell: Shell,
    server: NatsServer,
}

impl Stage {
    async fn start() -> Self {
        Self { shell: Shell::new(), server: NatsServer::start_with(USERS).await }
    }

    fn context(&self, folder: &str, name: &str, fields: Value) {
        let path = format!("{folder}/nats/context/{name}.json");
        self.shell.write(&path, &fields.to_string());
        self.shell.set_mode(&path, 0o600);
    }

    fn ann(&self) -> Value {
        json!({ "description": "", "url": self.server.url(), "user": "ann", "password": PASSWORD })
    }

    /// Runs a command with these variables.
    fn run(&self, line: &str, variables: &[(&str, &str)]) -> Ran {
        let assigned: String = variables.iter().map(|(name, value)| format!("export {name}=\"{value}\"; ")).collect();
        let words: Vec<&str> = line.split_whitespace().collect();
        let output = self.shell.command_after(&assigned, &words).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        let ran = Ran { code: output.status.code().unwrap(), stdout: text(output.stdout), stderr: text(output.stderr) };
        assert!(!ran.stderr.contains(PASSWORD) && !ran.stdout.contains(PASSWORD), "{ran:?}");
        ran
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tools_join_with_a_context_or_with_variables() {
    let stage = Stage::start().await;
    let url = stage.server.url();
    stage.context(".config", "ops", stage.ann());
    stage.context("else", "ops", stage.ann());
    stage.context(".config", "away", json!({ "url": NOWHERE }));
    stage.context(
        ".config",
        "narrow",
        json!({ "url": url, "user": "ann", "password": PASSWORD, "inbox_prefix": "_INBOX.of.ann" }),
    );
    let login = [("NATS_URL", &*url), ("NATS_USER", "ann"), ("NATS_PASSWORD", PASSWORD)];
    let top = |words: &str, variables: &[(&str, &str)]| stage.run(&format!("top --once {words}"), variables);
    top("--context ops", &[]).ok();
    top("--context narrow", &[]).ok();
    let path = stage.shell.path(".config/nats/context/ops.json");
    top(&format!("--context {}", path.display()), &[]).ok();
    top("--context .config/nats/context/ops.json", &[]).ok();
    top("", &[("NATS_CONTEXT", "ops")]).ok();
    top("", &login).ok();
    let elsewhere = stage.shell.path("else");
    top("", &[("XDG_CONFIG_HOME", elsewhere.to_str().unwrap()), ("NATS_CONTEXT", "ops")]).ok();

    // The selected one is the last to be asked for.
    top("", &[]).fails(2, &["which broker?", "--context"]);
    stage.shell.write(".config/nats/context.txt", "ops\n");
    top("", &[]).ok();
    top("", &[("NATS_CONTEXT", "away")]).fails(20, &["no broker answers"]);
    top("--url nats://127.0.0.1:1", &[]).fails(20, &["no broker answers"]);

    top("", &[("NATS_CONTEXT", "none")]).fails(30, &["none.json", "nats context ls"]);
    top("", &[("NATS_CONTEXT", "ops"), ("NATS_URL", NOWHERE)]).fails(30, &["`NATS_URL`", "one place"]);
    top("--context ops --url nats://127.0.0.1:1", &[]).fails(2, &["cannot be used with"]);
    stage.shell.set_mode(".config/nats/context/ops.json", 0o644);
    top("--context ops", &[]).fails(30, &["chmod 600"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_login_that_is_given_is_never_replaced_by_a_variable() {
    let stage = Stage::start().await;
    let away = [
        ("NATS_URL", NOWHERE),
        ("NATS_USER", "eve"),
        ("NATS_PASSWORD", "another password"),
        ("NATS_CREDS", "none.creds"),
    ];
    stage.context(".config", "ops", stage.ann());
    stage.context(".config", "away", json!({ "url": NOWHERE }));
    stage.shell.write(".config/nats/context.txt", "away");
    let login = json!({ "urls": [stage.server.url()], "user": "ann", "password": PASSWORD });
    for (name, login) in [("plain.json", login), ("named.json", json!({ "context": "ops" }))] {
        stage.shell.write(name, &login.to_string());
        stage.shell.set_mode(name, 0o600);
    }
    for given in ["--login plain.json", "--login named.json", "--context ops"] {
        stage.run(&format!("top --once {given}"), &away).ok();
        stage.run(&format!("top --once {given}"), &[("NATS_CONTEXT", "away")]).ok();
    }
    // A service and a caller read no variable at all; what names a context is read from it.
    let site = Site::new(&stage.server.url());
    let text = std::fs::read_to_string(site.path("sealwire.toml")).unwrap();
    let ours = format!("urls = [\"{}\"]", stage.server.url());
    assert!(text.contains(&ours), "{text}");
    std::fs::write(site.path("sealwire.toml"), text.replace(&ours, "context = \"ops.json\"")).unwrap();
    std::fs::copy(stage.shell.path(".config/nats/context/ops.json"), site.path("ops.json")).unwrap();
    let served = site.serve(methods()).await;
    let creds = json!({
        "version": 1, "environment": "test", "agent": "ann", "token": site.token("ann", &["worker"]),
        "key": { "kid": "ann.k1", "alg": "HS256", "secret": sealwire_testkit::idp::b64(agent_key("ann").expose()) },
        "nats": { "context": "ops" },
    });
    stage.shell.write("ann.creds.json", &creds.to_string());
    stage.shell.set_mode("ann.creds.json", 0o600);
    let config = site.path("sealwire.toml");
    for variables in [&away[..], &[("NATS_CONTEXT", "away")]] {
        let called = stage.run("call site site/add [1,2] --creds ann.creds.json", variables).ok();
        assert_eq!(called.stdout.trim(), "3");
        stage.run(&format!("ping --config {} --within 5s", config.display()), variables).ok().says("ready");
    }
    // An agent of the service gets the addresses that its context has.
    stage.shell.run_args(&["keys", "new-agent", "carol", "--config", config.to_str().unwrap()]).ok();
    assert_eq!(stage.shell.read_json("carol.creds.json")["nats"]["urls"][0], *stage.server.url());
    served.kill().await;
}

#[test]
fn credentials_name_a_context() {
    let shell = Shell::new();
    shell.run("keys new-agent ann --service test/site=ring.json --context ops").ok();
    assert_eq!(shell.read_json("ann.creds.json")["nats"], json!({ "context": "ops" }));
    shell.run("keys request bob --environment test --context here/ops.json").ok();
    let named = shell.read_json("bob.creds.json")["nats"]["context"].clone();
    assert_eq!(named.as_str(), shell.path("here/ops.json").to_str());
    for more in ["--url nats://a", "--nats-creds a.creds", "--tls-ca ca.pem"] {
        shell
            .run(&format!("keys request eve --environment test --context ops {more}"))
            .fails(2, &["cannot be used with"]);
    }
    shell.run("keys request eve --environment test --context a/b").fails(30, &["`context`", "no name"]);
}
