//! A folder of `sealwire setup` is enough to revoke: broker, bucket, service, call, and then none.

use super::gate::{Gate, Kind, config};
use crate::shell::Shell;
use sealwire_testkit::NatsServer;
use serde_json::{Value, json};

/// As a setup was before it had users to close connections and for the gateway to follow.
fn forget_newer_users(shell: &Shell) {
    let mut users = shell.read_json("operator/users.json");
    let is_newer = |user: &Value| user["kind"] == "closer" || user["kind"] == "gateway-follower";
    users["users"].as_array_mut().unwrap().retain(|user| !is_newer(user));
    shell.write("operator/users.json", &users.to_string());
    let desk = shell.read("operator/revocation.toml");
    shell.write("operator/revocation.toml", desk.split_once("\n# Closes").unwrap().0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_set_up_is_enough_to_revoke_an_agent() {
    for kind in [Kind::Server, Kind::Operator] {
        let shell = Shell::new();
        let setup = if kind == Kind::Server { "setup cluster --out ." } else { "setup operator --out ." };
        shell.run(setup).ok();
        forget_newer_users(&shell);
        let said = shell.run(&format!("{setup} --revocation on --json")).ok().json();
        assert_eq!(said["revocation_added"], json!(["demo", "bank", "gateway"]));
        assert!(shell.read("gateway/gateway.toml").contains("[gateway.revocation]"));
        shell.run("gateway --config gateway/gateway.toml --check").ok();
        // Once there is a table, it stays as it is.
        let table = shell.read("demo/sealwire.toml");
        shell.run(&format!("{setup} --revocation on")).ok();
        assert_eq!(table.matches("[revocation]").count(), 1);
        assert_eq!(shell.read("demo/sealwire.toml"), table);
        let server = NatsServer::start_with(&config(&shell)).await;
        let gate = Gate { shell, server, kind };
        gate.shell.write("operator/here.toml", &gate.here("operator/revocation.toml"));
        gate.shell.set_mode("operator/here.toml", 0o600);
        let desk = "--config operator/here.toml --key operator/op-1.json --wait 20s";
        let run = |line: &str| tokio::task::block_in_place(|| gate.shell.run(&format!("{line} {desk}")));
        run("revocations init").ok();
        let _demo = gate.serve("demo", "demo.json");
        let creds = gate.planner();
        let call = || gate.shell.run_args(&["call", "--creds", &creds, "demo", "math/add", "[2, 3]"]);
        assert_eq!(call().ok().stdout.trim(), "5");
        let told = run("--json revoke agent planner --expect demo=1").ok().json();
        let broker = &told["connections"]["brokers"][0];
        assert_eq!([&broker["answered"], &told["connections"]["missing"]], [&json!(true), &json!(0)], "{told}");
        assert!(gate.connect("gateway-follower gateway").await.is_ok());
        call().fails(22, &["-32010"]);
        run("restore agent planner --expect demo=1").ok();
        assert_eq!(call().ok().stdout.trim(), "5");
    }
}
