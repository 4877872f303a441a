//! Everything together, in operator mode: a cluster, `authd`, replicas, what operators revoke, and the loss of one of each.

use std::process::Stdio;
use std::time::{Duration, Instant};

use sealwire::{Clock as _, SystemClock};
use sealwire_testkit::{NatsServer, SOON};
use serde_json::{Value, json};

use super::gate::{Gate, Kind, Served, operator_cluster};
use crate::broker_gate::Wire;
use crate::shell::Shell;

/// A setup that runs: three brokers, the first of them that of the gate, two replicas of `demo`, two `authd`.
struct Stand {
    gate: Gate,
    others: Vec<NatsServer>,
    replicas: Vec<Served>,
    responders: Vec<Served>,
    urls: String,
}

const PLANNER: &str = "planner/there.creds.json";
const ADD: [&str; 3] = ["demo", "math/add", "[2, 3]"];

impl Stand {
    async fn new() -> Self {
        let shell = Shell::new();
        let said = shell.run("setup operator --out . --authd on --revocation on --json").ok().json();
        let mut others = operator_cluster(&shell).await;
        let urls = json!(others.iter().map(NatsServer::url).collect::<Vec<_>>()).to_string();
        let gate = Gate { shell, server: others.remove(0), kind: Kind::Operator };
        let mut stand = Self { gate, others, replicas: Vec::new(), responders: Vec::new(), urls };
        stand.bring("operator/revocation.toml", "operator/revocation.toml");
        stand.bring("planner/planner.creds.json", PLANNER);
        let files = stand.shell().files_in("authd");
        for file in files.iter().filter(|file| file.ends_with(".toml") || file.ends_with(".nats.json")) {
            stand.bring(&format!("authd/{file}"), &format!("authd/{file}"));
        }
        stand.gate.configure("demo");
        stand.bring("demo/sealwire.toml", "demo/there.toml");
        // The brokers first have to find each other.
        let deadline = Instant::now() + 3 * SOON;
        while stand.desk("revocations init --copies 3").code != 0 {
            assert!(Instant::now() < deadline, "{:?}", stand.desk("revocations init --copies 3"));
        }
        stand.replicas = vec![stand.serve("replica-1"), stand.serve("replica-2")];
        stand.responders =
            vec![stand.gate.authd(&said["authd"], "responder-1"), stand.gate.authd(&said["authd"], "responder-2")];
        stand
    }

    fn shell(&self) -> &Shell {
        &self.gate.shell
    }

    /// Writes a file of the setup with these brokers in place of those that it names.
    fn bring(&self, from: &str, to: &str) {
        let text = self.shell().read(from);
        let text = match serde_json::from_str::<Value>(&text) {
            Ok(mut file) => {
                let login = if file["nats"].is_object() { &mut file["nats"] } else { &mut file };
                login["urls"] = serde_json::from_str(&self.urls).unwrap();
                login.as_object_mut().unwrap().remove("tls_ca");
                file.to_string()
            }
            Err(_) => {
                let cluster = r#"["tls://nats-1:4222", "tls://nats-2:4222", "tls://nats-3:4222"]"#;
                assert!(text.contains(cluster), "{text}");
                text.replace(cluster, &self.urls).replace("tls_ca = \"ca.pem\"\n", "")
            }
        };
        self.shell().write(to, &text);
        self.shell().set_mode(to, 0o600);
    }

    /// Starts a replica, again if it ends because brokers have not yet agreed on who leads its streams.
    fn serve(&self, state: &str) -> Served {
        let config = "demo/there.toml";
        let ping = format!("ping --config {config} --own {state}");
        let deadline = Instant::now() + 3 * SOON;
        let mut replica = self.gate.start(config, state);
        while self.shell().run(&ping).code != 0 {
            assert!(Instant::now() < deadline, "not ready: {}", self.gate.log(state));
            if replica.ends(Duration::from_millis(100)).is_some() {
                replica = self.gate.start(config, state);
            }
        }
        replica
    }

    fn desk(&self, line: &str) -> crate::shell::Ran {
        let desk = "--config operator/revocation.toml --key operator/op-1.json --wait 60s";
        tokio::task::block_in_place(|| self.shell().run(&format!("{line} {desk}")))
    }

    /// An agent that creates its keys itself, and gets a `.creds` file.
    fn enrol_robot(&self) {
        let shell = self.shell();
        let urls: Vec<String> = serde_json::from_str(&self.urls).unwrap();
        let urls: String = urls.iter().map(|url| format!(" --url {url}")).collect();
        let asked = shell.run(&format!("keys request robot --environment dev --nkey{urls} --json")).ok().json();
        let thumbprint = asked["thumbprint"].as_str().unwrap();
        let enrol =
            format!("keys enrol robot robot.request --thumbprint {thumbprint} --service dev/demo=demo/ring.json");
        shell.run(&format!("{enrol} --pin-from demo/service-key.json")).ok();
        shell.run(&format!("setup agent robot.request --thumbprint {thumbprint} --out . --jwt robot.user.jwt")).ok();
        shell.run("keys accept robot.creds.json robot.enrolment.json --nats-jwt robot.user.jwt").ok();
        let issue = "token issue --key issuer/token-key.json --subject robot --audience dev/demo --role calculator";
        shell.run(&format!("{issue} --cnf-jkt {thumbprint} --out robot.jwt")).ok();
    }

    fn call(&self, creds: &str) -> crate::shell::Ran {
        let args = ["call", "--creds", creds].into_iter().chain(ADD);
        tokio::task::block_in_place(|| self.shell().run_args(&args.collect::<Vec<_>>()))
    }

    /// Waits until this agent's calls are answered: replicas learn of a key in a moment, and brokers elect leaders.
    fn is_answered(&self, creds: &str) {
        let deadline = Instant::now() + 3 * SOON;
        loop {
            let ran = self.call(creds);
            if ran.code == 0 {
                assert_eq!(ran.stdout.trim(), "5");
                return;
            }
            assert!(Instant::now() < deadline, "{ran:?}");
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Waits until so many replicas, and `authd` for each service, have just seen the bucket.
    fn follow(&self, replicas: usize, responders: usize) {
        let deadline = Instant::now() + 3 * SOON;
        let config = "--config operator/revocation.toml";
        loop {
            let told = tokio::task::block_in_place(|| self.shell().run(&format!("--json revocations {config}")));
            if told.code == 0 {
                let told = told.json();
                let of = |role: &str, name: &str| {
                    let all = told["replicas"].as_array().unwrap().iter();
                    all.filter(|one| one["role"] == role && one["name"] == name && one["stale"] == false).count()
                };
                let seen = [of("service", "demo"), of("authd", "demo"), of("authd", "bank")];
                if seen == [replicas, responders, responders] {
                    return;
                }
            }
            assert!(Instant::now() < deadline, "{:?}", self.shell().run(&format!("revocations {config}")));
        }
    }

    /// A stream of the planner's that runs: its ticks are lines of the file `ticks`.
    fn watch(&self) -> Served {
        let args = ["watch", "--creds", PLANNER, "demo", "clock/ticks", r#"{"every_ms": 20}"#, "--json"];
        let start = || {
            let ticks = std::fs::File::create(self.shell().path("ticks")).unwrap();
            Served(self.shell().command(&args).stdout(ticks).stderr(Stdio::null()).spawn().unwrap())
        };
        let mut watch = start();
        let deadline = Instant::now() + SOON;
        while self.shell().read("ticks").lines().count() < 3 {
            assert!(Instant::now() < deadline, "no ticks");
            // On a busy machine, no broker may have let it in while it waited.
            if watch.ends(Duration::from_millis(20)).is_some() {
                watch = start();
            }
        }
        watch
    }

    /// The planner is revoked while a stream of its runs: it is cut off at once and does not come back, and nobody else notices.
    async fn is_cut_off(&self, replicas: usize, responders: usize, brokers: &[&NatsServer]) {
        self.is_answered(PLANNER);
        let mut watch = self.watch();
        let token = self.shell().read("tokens/planner.jwt").trim().to_owned();
        // Connections that do nothing: one at each broker.
        let mut idle = Vec::new();
        for broker in brokers {
            idle.push(Wire::admitted(broker.port(), &token).await);
        }
        self.follow(replicas, responders);
        let cut_off = |told: &Value| -> u64 {
            told["replicas"].as_array().unwrap().iter().map(|one| one["cut_off"].as_u64().unwrap()).sum()
        };
        let follow = "--json revocations --config operator/revocation.toml";
        let before = cut_off(&self.shell().run(follow).ok().json());
        let (here, all) = (format!("--expect demo={replicas}"), ["demo", "bank"]);
        let expect = all.map(|service| format!("--expect authd:{service}={responders}")).join(" ");
        let told = self.desk(&format!("--json revoke agent planner {here} {expect}")).ok().json();
        // Everybody has it, every broker has closed what there was, and nobody came back in between.
        assert_eq!([&told["complete"], &told["connections"]["missing"]], [&json!(true), &json!(0)], "{told}");
        let of_brokers = told["connections"]["brokers"].as_array().unwrap();
        assert_eq!(of_brokers.len(), brokers.len(), "{told}");
        let is_closed = |one: &Value| one["answered"] == true && one["back"] == 0 && one["closed"].as_u64() >= Some(1);
        assert!(of_brokers.iter().all(is_closed), "{told}");
        // A replica may count what it has cut off after it has reported that the list is in force.
        let deadline = Instant::now() + SOON;
        while cut_off(&self.shell().run(follow).ok().json()) <= before {
            assert!(Instant::now() < deadline, "nothing was cut off: {told}");
        }
        for wire in &mut idle {
            while !wire.line().await.is_empty() {}
        }
        let after = |of: &Value| of["after_ms"].as_u64();
        let took = told["replicas"].as_array().unwrap().iter().chain(of_brokers).filter_map(after).max();
        println!("in force and closed everywhere after {} ms", took.unwrap());

        let now_s = SystemClock.now_s();
        let ended = watch.ends(2 * SOON);
        assert!(ended.is_some_and(|code| code != 0), "the stream goes on: {ended:?}");
        // What was on its way may be printed later. Nothing was made later.
        let text = self.shell().read("ticks");
        let last: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
        assert!(last["item"]["at"].as_u64().unwrap() <= now_s, "{last}");
        for broker in brokers {
            is_refused(broker, &token).await;
        }
        assert_ne!(self.call(PLANNER).code, 0);
        self.is_answered("robot.creds.json");
    }
}

/// Nobody comes in with this token, and that is a verdict: neither the broker's time was up, nor its connection lost.
async fn is_refused(broker: &NatsServer, token: &str) {
    let deadline = Instant::now() + SOON;
    loop {
        match Wire::connect(broker.port(), |_| json!({ "auth_token": token })).await {
            Ok(_) => panic!("a revoked token is let in"),
            Err(error) if error == "-ERR 'Authorization Violation'" => return,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn agents_with_a_creds_file_or_a_token_call_and_the_revoked_are_cut_off_whatever_is_lost() {
    let mut stand = Stand::new().await;
    stand.enrol_robot();
    // Nothing but a `.creds` file, and nothing but an access token.
    assert_eq!(stand.shell().read_json("robot.creds.json")["nats"]["creds_file"], "robot.creds");
    assert!(stand.shell().read_json(PLANNER)["nats"].get("creds_file").is_none());
    stand.is_answered("robot.creds.json");
    let all: Vec<&NatsServer> = std::iter::once(&stand.gate.server).chain(&stand.others).collect();
    stand.is_cut_off(2, 2, &all).await;
    stand.desk("restore agent planner --expect demo=2 --expect authd:demo=2 --expect authd:bank=2").ok();
    stand.is_answered(PLANNER);

    // One of each is lost.
    stand.gate.server.kill().await;
    drop((stand.replicas.remove(0), stand.responders.remove(0)));
    let desk = stand.shell().read("operator/revocation.toml");
    stand.shell().write("operator/revocation.toml", &desk.replace("brokers = 3", "brokers = 2"));
    stand.is_answered("robot.creds.json");
    let left: Vec<&NatsServer> = stand.others.iter().collect();
    stand.is_cut_off(1, 1, &left).await;
}
