//! A folder of `sealwire setup --authd on` is enough to let agents in by their access tokens, and nobody else.

use std::time::Instant;

use serde_json::{Value, json};

use super::gate::{Gate, Kind, config};
use crate::broker_gate::Wire;
use crate::shell::Shell;
use sealwire_testkit::nats_server::ServerOptions;
use sealwire_testkit::{NatsServer, SOON};

fn set_up(shell: &Shell, kind: Kind, more: &str) -> Value {
    let setup = if kind == Kind::Server { "setup cluster" } else { "setup operator" };
    shell.run(&format!("{setup} --out . --json {more}")).ok().json()
}

/// The public key of a user.
fn nkey(shell: &Shell, kind: &str) -> String {
    let users = shell.read_json("operator/users.json");
    let user = users["users"].as_array().unwrap().iter().find(|user| user["kind"] == kind).unwrap();
    user["nkey"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_set_up_is_enough_to_let_agents_in_by_their_access_tokens() {
    for kind in [Kind::Server, Kind::Operator] {
        let shell = Shell::new();
        let said = set_up(&shell, kind, "--authd on --revocation on");
        let folders = |said: &Value| said["folders"].as_array().unwrap().contains(&json!("authd"));
        assert!(folders(&said), "{said}");
        let login = shell.read_json("planner/planner.creds.json")["nats"].clone();
        let urls = login["urls"].clone();
        assert_eq!(login, json!({ "urls": urls, "access_token": true, "tls_ca": "ca.pem" }));
        assert!(!shell.read("operator/users.json").contains("planner"));
        // What is there stays.
        let config_of_demo = shell.read("authd/demo.toml");
        assert!(folders(&set_up(&shell, kind, "--authd on --revocation on")));
        assert_eq!(shell.read("authd/demo.toml"), config_of_demo);
        assert_eq!(config_of_demo.matches("[revocation]").count(), 1);

        let server = NatsServer::start_with(&config(&shell)).await;
        let gate = Gate { shell, server, kind };
        gate.shell.write("operator/here.toml", &gate.here("operator/revocation.toml"));
        gate.shell.set_mode("operator/here.toml", 0o600);
        let desk = "--config operator/here.toml --key operator/op-1.json";
        let run = |line: &str| tokio::task::block_in_place(|| gate.shell.run(&format!("{line} {desk} --wait 60s")));
        run("revocations init").ok();
        gate.bring_authd_here();
        let _demo = gate.serve("demo", "demo.json");
        let creds = gate.planner();
        let call =
            |method: &str, params: &str| gate.shell.run_args(&["call", "--creds", &creds, "demo", method, params]);
        assert_ne!(call("math/add", "[2, 3]").code, 0, "nobody answers for brokers");
        let _pair = [gate.authd(&said["authd"], "one"), gate.authd(&said["authd"], "two")];
        assert_eq!(call("math/add", "[2, 3]").ok().stdout.trim(), "5");
        call("math/reset", "[]").fails(20, &["rpc.v1.demo.planner.math.reset"]);
        // The gateway has no token of its own.
        assert!(gate.connect("gateway").await.is_ok() && gate.connect("authd-follower authd").await.is_ok());

        let port = gate.server.port();
        let token = gate.shell.read("tokens/planner.jwt").trim().to_owned();
        assert!(Wire::connect(port, |_| json!({ "auth_token": token })).await.is_ok());
        let responder = nkey(&gate.shell, "responder");
        for (what, login) in [
            ("nothing", json!({})),
            ("no token", json!({ "auth_token": "x" })),
            ("a changed token", json!({ "auth_token": format!("{token}A") })),
            ("the key of authd, unproved", json!({ "nkey": responder, "sig": "AAAA" })),
            ("the key of authd as a name", json!({ "user": responder, "pass": "x" })),
            (
                "the key of authd as a name, with a token",
                json!({ "user": responder, "auth_token": format!("{token}A") }),
            ),
        ] {
            let refused = Wire::connect(port, |_| login).await.err();
            assert_eq!(refused.as_deref(), Some("-ERR 'Authorization Violation'"), "{what}");
        }
        // More at once than authd's account may have connections, in which those wait whom brokers in operator mode ask about.
        let _crowd = futures_util::future::join_all((0..200).map(|_| Wire::admitted(port, &token))).await;

        let expect = "--expect demo=1 --expect authd:demo=2 --expect authd:bank=2";
        let told = run(&format!("--json revoke agent planner {expect}")).ok().json();
        let broker = &told["connections"]["brokers"][0];
        assert!(broker["closed"].as_u64().unwrap() >= 200 && broker["back"] == 0, "{told}");
        assert!(Wire::connect(port, |_| json!({ "auth_token": token })).await.is_err());
        assert_ne!(call("math/add", "[2, 3]").code, 0);
        run(&format!("restore agent planner {expect}")).ok();
        let deadline = Instant::now() + SOON;
        while call("math/add", "[2, 3]").code != 0 {
            assert!(Instant::now() < deadline);
        }
    }
}

/// Whoever has a broker user keeps it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_set_up_that_runs_lets_agents_in_by_their_access_tokens_from_now_on() {
    for mut gate in Gate::of_both_kinds().await {
        let said = set_up(&gate.shell, gate.kind, "--authd on");
        match gate.kind {
            Kind::Server => {
                let port = Some(gate.server.port());
                gate.server.kill().await;
                let options = ServerOptions { config: Some(config(&gate.shell)), port, ..ServerOptions::default() };
                gate.server = NatsServer::start_with_options(options).await;
            }
            Kind::Operator => {
                gate.update().await;
                gate.server.reload(&config(&gate.shell)).await;
            }
        }
        gate.bring_authd_here();
        let _demo = gate.serve("demo", "demo.json");
        let _authd = gate.authd(&said["authd"], "one");
        let creds = gate.planner();
        let call = |creds: &str| gate.shell.run_args(&["call", "--creds", creds, "demo", "math/add", "[2, 3]"]);
        assert_eq!(call(&creds).ok().stdout.trim(), "5");
        let mut file = gate.shell.read_json(&creds);
        file["nats"] = json!({ "urls": [gate.server.url()], "access_token": true });
        file["method_subjects"] = true.into();
        gate.shell.write("planner/token.creds.json", &file.to_string());
        gate.shell.set_mode("planner/token.creds.json", 0o600);
        assert_eq!(call("planner/token.creds.json").ok().stdout.trim(), "5");
        // The next service counts there, too.
        gate.shell.run("setup service ledger --out .").ok();
        assert!(gate.shell.read("authd/ledger.toml").contains("service = \"ledger\""));
        gate.update().await;
        assert!(gate.connect("service ledger").await.is_ok(), "without a restart of brokers");
        gate.shell.run("setup service authd --out .").fails(30, &["cannot be named"]);
        let removed = gate.shell.run("setup remove-agent nobody --out .");
        removed.fails(30, &["know no agent nobody", "sealwire revoke agent nobody"]);
    }
}
