//! A folder of `sealwire setup` is enough to revoke: broker, bucket, service, call, and then none.

use super::gate::{Gate, Kind, config};
use crate::shell::Shell;
use sealwire_testkit::NatsServer;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_set_up_is_enough_to_revoke_an_agent() {
    for kind in [Kind::Server, Kind::Operator] {
        let shell = Shell::new();
        let setup = if kind == Kind::Server { "setup cluster --out ." } else { "setup operator --out ." };
        shell.run(&format!("{setup} --revocation on")).ok();
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
        run("revoke agent planner --expect demo=1").ok();
        call().fails(22, &["-32010"]);
        run("restore agent planner --expect demo=1").ok();
        assert_eq!(call().ok().stdout.trim(), "5");
    }
}
