//! A setup, one broker with its users and limits, and services that run from its files, without TLS.

use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use async_nats::{Client, ConnectOptions};
use futures_util::future::join_all;
use serde_json::Value;

use crate::shell::Shell;
use sealwire_testkit::nats_server::ServerOptions;
use sealwire_testkit::raw::RawConnection;
use sealwire_testkit::{NatsServer, SOON, free_port, within};

/// A setup, and one broker with its users.
pub(crate) struct Gate {
    pub(crate) shell: Shell,
    pub(crate) server: NatsServer,
    pub(crate) kind: Kind,
}

/// Where brokers have their users.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// In their configuration: `setup cluster`.
    Server,
    /// In JWTs: `setup operator`.
    Operator,
}

/// Three brokers in operator mode, `n0` to `n2`, of the setup in this shell.
pub(super) async fn operator_cluster(shell: &Shell) -> Vec<NatsServer> {
    let ports = [free_port(), free_port(), free_port()];
    let starting = (0..3).map(|node| {
        let others = (0..3).filter(|other| *other != node);
        let routes: Vec<_> = others.map(|other| format!("nats://127.0.0.1:{}", ports[other])).collect();
        let accounts = shell.path(&format!("accounts-{node}"));
        let users = shell.read("nats-1/users.conf").replace("/sealwire/data/accounts", accounts.to_str().unwrap());
        let config = format!(
            "server_name: n{node}\ncluster {{ name: sealwire, listen: \"127.0.0.1:{}\", routes: [{}] }}\n{users}",
            ports[node],
            routes.join(", ")
        );
        NatsServer::start_with_options(ServerOptions { config: Some(config), ..ServerOptions::default() })
    });
    join_all(starting).await
}

impl Gate {
    pub(crate) async fn open() -> Self {
        Self::open_as(Kind::Server).await
    }

    /// One of each kind: users may do the same at both.
    pub(crate) async fn of_both_kinds() -> [Self; 2] {
        [Self::open_as(Kind::Server).await, Self::open_as(Kind::Operator).await]
    }

    pub(crate) async fn open_as(kind: Kind) -> Self {
        let shell = Shell::new();
        match kind {
            Kind::Server => shell.run("setup cluster --out .").ok(),
            Kind::Operator => shell.run("setup operator --out .").ok(),
        };
        let server = NatsServer::start_with(&config(&shell)).await;
        Self { shell, server, kind }
    }

    /// Brings a change of users to the broker.
    pub(crate) async fn update(&self) {
        match self.kind {
            Kind::Server => self.server.reload(&config(&self.shell)).await,
            Kind::Operator => {
                let login = serde_json::json!({ "urls": [self.server.url()], "creds_file": "pusher.creds" });
                self.shell.write("operator/here.nats.json", &login.to_string());
                self.shell.set_mode("operator/here.nats.json", 0o600);
                tokio::task::block_in_place(|| {
                    self.shell.run("setup push --out . --login operator/here.nats.json").ok()
                });
            }
        }
    }

    /// The same with a broker that permits everything to everybody: all that is left are the replicas' own checks.
    pub(crate) async fn open_to_all() -> Self {
        let shell = Shell::new();
        shell.run("setup cluster --out .").ok();
        Self { shell, server: NatsServer::start().await, kind: Kind::Server }
    }

    /// The nkey seed of a broker user, or its `.creds` file: an agent, `tools`, or a kind with a name, such as `service demo`.
    fn login(&self, user: &str) -> String {
        let folder = |agent: &str| {
            if ["planner", "gateway"].contains(&agent) { agent.to_owned() } else { "operator".to_owned() }
        };
        let (folder, file) = match user.split_once(' ') {
            Some((kind @ ("service" | "guard" | "follower"), name)) => (name.to_owned(), kind),
            Some(("authd-follower", name)) => (name.to_owned(), "follower"),
            Some(("gateway-follower", name)) => (name.to_owned(), "follower"),
            Some((kind, _)) => ("operator".to_owned(), kind),
            None => (folder(user), user),
        };
        match self.kind {
            Kind::Operator => self.shell.read(&format!("{folder}/{file}.creds")),
            Kind::Server if user == "tools" || user.contains(' ') => self.shell.read(&format!("{folder}/{file}.nkey")),
            Kind::Server => {
                let credentials = self.shell.read_json(&format!("{folder}/{file}.creds.json"));
                credentials["nats"]["nkey_seed"].as_str().unwrap().to_owned()
            }
        }
    }

    pub(crate) async fn connect(&self, user: &str) -> Result<RawConnection, Vec<String>> {
        match self.kind {
            Kind::Server => RawConnection::connect_as(&self.server.url(), &self.login(user)).await,
            Kind::Operator => RawConnection::connect_with_creds(&self.server.url(), &self.login(user)).await,
        }
    }

    /// In operator mode, the claims of an account.
    pub(crate) fn account(&self, name: &str) -> Value {
        let key =
            self.shell.read_json("operator/accounts.json")["accounts"][name]["account"].as_str().unwrap().to_owned();
        let users = self.shell.read("nats-1/users.conf");
        let jwt = users.lines().find_map(|line| line.trim().strip_prefix(&format!("{key}: "))).unwrap();
        sealwire_testkit::desk::part(jwt, 1)
    }

    pub(crate) async fn raw(&self, user: &str) -> RawConnection {
        self.connect(user).await.unwrap_or_else(|errors| panic!("{user}: {errors:?}"))
    }

    pub(crate) fn options(&self, user: &str) -> ConnectOptions {
        match self.kind {
            Kind::Server => ConnectOptions::with_nkey(self.login(user)),
            Kind::Operator => ConnectOptions::with_credentials(&self.login(user)).unwrap(),
        }
    }

    /// A client whose inboxes are where its permissions allow.
    pub(crate) async fn client(&self, user: &str) -> Client {
        let inbox = match user.split_once(' ') {
            Some(("service", name)) => format!("_SVC.{name}.replica.test"),
            Some((_, name)) => format!("_SVC.{name}.guard.test"),
            None => format!("_INBOX.{user}"),
        };
        let options = self.options(user).custom_inbox_prefix(inbox);
        within(SOON, options.connect(self.server.url())).await.unwrap()
    }

    /// Which of these subjects the broker lets a user publish and subscribe to.
    pub(crate) async fn may(&self, user: &str, publish: &[&str], subscribe: &[&str]) -> (Vec<String>, Vec<String>) {
        let mut raw = self.raw(user).await;
        let (mut publishes, mut subscribes) = (Vec::new(), Vec::new());
        for subject in publish {
            raw.publish(subject, None, b"{}").await;
            if is_permitted(&raw.flush().await, subject) {
                publishes.push((*subject).to_owned());
            }
        }
        for subject in subscribe {
            raw.subscribe(subject, None).await;
            let permitted = is_permitted(&raw.flush().await, subject);
            raw.send(format!("UNSUB {}\r\n", subject.len()).as_bytes()).await;
            if permitted {
                subscribes.push((*subject).to_owned());
            }
        }
        (publishes, subscribes)
    }

    /// A file of the setup, with this broker in place of the three.
    pub(crate) fn here(&self, file: &str) -> String {
        let cluster = r#"["tls://nats-1:4222", "tls://nats-2:4222", "tls://nats-3:4222"]"#;
        let text = self.shell.read(file);
        assert!(text.contains(cluster), "{text}");
        let text = text.replace(cluster, &format!("[\"{}\"]", self.server.url())).replace("tls_ca = \"ca.pem\"\n", "");
        text.replace("brokers = 3", "brokers = 1")
    }

    /// A service's configuration, with this broker in place of the three.
    pub(crate) fn configure(&self, service: &str) -> String {
        let config = self.here(&format!("{service}/sealwire.toml"));
        let here = format!("{service}/here.toml");
        self.shell.write(&here, &config.replace("replicas = 3", "replicas = 1"));
        self.shell.set_mode(&here, 0o600);
        for policy in
            std::fs::read_dir(sealwire_testkit::root().join("policies")).unwrap().map(|entry| entry.unwrap().path())
        {
            let name = policy.file_name().unwrap().to_str().unwrap().to_owned();
            self.shell.write(&format!("policies/{name}"), &std::fs::read_to_string(&policy).unwrap());
        }
        here
    }

    /// Starts a replica of a service, which is ready when this returns.
    pub(crate) fn serve(&self, service: &str, state: &str) -> Served {
        self.serve_with(&self.configure(service), state)
    }

    /// The same with this configuration.
    pub(crate) fn serve_with(&self, config: &str, state: &str) -> Served {
        let served = self.start(config, state);
        let ping = format!("ping --config {config} --own {state}");
        let deadline = Instant::now() + 3 * SOON;
        while self.shell.run(&ping).code != 0 {
            assert!(Instant::now() < deadline, "not ready: {:?}, {}", self.shell.run(&ping), self.log(state));
            std::thread::sleep(Duration::from_millis(100));
        }
        served
    }

    /// Starts a replica that may refuse to start.
    pub(crate) fn start(&self, config: &str, state: &str) -> Served {
        let mut command = self.shell.command(&["serve", "demo", "--config", config, "--state-file", state]);
        let log = std::fs::File::create(self.shell.path(&format!("{state}.log"))).unwrap();
        Served(command.stdout(Stdio::null()).stderr(log).spawn().unwrap())
    }

    /// What a replica has logged.
    pub(crate) fn log(&self, state: &str) -> String {
        self.shell.read(&format!("{state}.log"))
    }

    /// Waits until a replica has logged this.
    pub(crate) fn wait_for_log(&self, state: &str, words: &str) {
        let deadline = Instant::now() + 2 * SOON;
        while !self.log(state).contains(words) {
            assert!(Instant::now() < deadline, "no `{words}` in {}", self.log(state));
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// A file of the setup as [`Gate::here`] has it, in its place.
    fn bring_here(&self, file: &str) {
        self.shell.write(file, &self.here(file));
        self.shell.set_mode(file, 0o600);
    }

    /// Has the files of `sealwire authd` lead to this broker.
    pub(crate) fn bring_authd_here(&self) {
        let files = self.shell.files_in("authd");
        for file in files.iter().filter(|file| file.ends_with(".toml")) {
            self.bring_here(&format!("authd/{file}"));
        }
        self.bring_login_here("authd/authd.nats.json");
    }

    fn bring_login_here(&self, file: &str) {
        let mut login = self.shell.read_json(file);
        login["urls"] = serde_json::json!([self.server.url()]);
        login.as_object_mut().unwrap().remove("tls_ca");
        self.shell.write(file, &login.to_string());
        self.shell.set_mode(file, 0o600);
    }

    /// Runs the command that a setup names for `sealwire authd`, which answers when this returns.
    pub(crate) fn authd(&self, command: &Value, state: &str) -> Served {
        let command: Vec<&str> = command.as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect();
        assert_eq!(command[0], "sealwire");
        let mut child = self.shell.command(&command[1..]);
        let file = |name: &str| std::fs::File::create(self.shell.path(&format!("{state}{name}"))).unwrap();
        let served = Served(child.stdout(file(".out")).stderr(file(".log")).spawn().unwrap());
        let deadline = Instant::now() + 2 * SOON;
        while !self.shell.read(&format!("{state}.out")).contains("answers brokers") {
            assert!(Instant::now() < deadline, "{}", self.log(state));
            std::thread::sleep(Duration::from_millis(50));
        }
        served
    }

    /// The planner's credentials, for this broker.
    pub(crate) fn planner(&self) -> String {
        let mut credentials = self.shell.read_json("planner/planner.creds.json");
        credentials["nats"]["urls"] = serde_json::json!([self.server.url()]);
        credentials["nats"].as_object_mut().unwrap().remove("tls_ca");
        self.shell.write("planner/here.creds.json", &credentials.to_string());
        self.shell.set_mode("planner/here.creds.json", 0o600);
        "planner/here.creds.json".to_owned()
    }
}

/// The users of a setup, and the limits of the shipped brokers.
pub(crate) fn config(shell: &Shell) -> String {
    let shipped = std::fs::read_to_string(sealwire_testkit::root().join("deploy/nats.conf")).unwrap();
    let limits: Vec<&str> = shipped.lines().filter(|line| line.starts_with("max_")).collect();
    assert!(limits.len() >= 3, "{limits:?}");
    let accounts = shell.path("accounts");
    let users = shell.read("nats-1/users.conf").replace("/sealwire/data/accounts", accounts.to_str().unwrap());
    format!("{}\n{users}", limits.join("\n"))
}

/// A running command, which is killed when it is dropped, if it has not ended before.
pub(crate) struct Served(pub(crate) Child);

impl Served {
    pub(crate) fn terminate(&mut self) {
        // The process id is still ours, since nobody has waited for the process.
        let pid = self.0.id().to_string();
        assert!(std::process::Command::new("kill").arg(&pid).status().unwrap().success());
        assert!(self.0.wait().unwrap().success(), "drained");
    }
}

impl Served {
    /// The exit code, once the command has ended by itself.
    pub(crate) fn ends(&mut self, within: Duration) -> Option<i32> {
        let deadline = Instant::now() + within;
        while Instant::now() < deadline {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status.code();
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        None
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, name: &str) {
        let pid = self.0.id().to_string();
        assert!(std::process::Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[track_caller]
pub(crate) fn is_permitted(errors: &[String], what: &str) -> bool {
    match errors {
        [] => true,
        [error] if error.contains("Permissions Violation") => false,
        errors => panic!("{what}: {errors:?}"),
    }
}

pub(crate) fn owned(subjects: &[&str]) -> Vec<String> {
    subjects.iter().map(ToString::to_string).collect()
}
