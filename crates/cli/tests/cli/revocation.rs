//! `sealwire revoke`, `restore` and `revocations` at a real broker, with a service that follows.

use futures_util::{FutureExt as _, StreamExt as _};
use sealwire_testkit::site::{Answer, Site, methods, sum};
use sealwire_testkit::{NatsServer, SOON, settle, within};
use serde_json::{Value, json};

use crate::backends::stage::{LONG, Stage, prepared};
use crate::process::{SIGCONT, SIGSTOP, send};
use crate::shell::Shell;

/// A key of an operator; returns it as an entry of a configuration.
fn operator(shell: &Shell, kid: &str) -> String {
    let made = shell.run(&format!("--json keys new-operator {kid}")).ok().json();
    assert_eq!(shell.mode(&format!("{kid}.json")), 0o600);
    format!("{{ kid = \"{kid}\", x = \"{}\" }}", made["x"].as_str().unwrap())
}

fn desk(environment: &str, operators: &str, signatures: usize, url: &str) -> String {
    format!(
        "environment = \"{environment}\"\nsignatures = {signatures}\noperator = [{operators}]\ncopy = \"{environment}.copy\"\n\
         [nats]\nurls = [\"{url}\"]\n"
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_revokes_and_restores_and_is_told_who_has_it() {
    let (server, shell) = (NatsServer::start().await, Shell::new());
    let operator = operator(&shell, "op-1");
    shell.write("revocation.toml", &desk("test", &operator, 1, &server.url()));
    let bash = tokio::task::block_in_place(|| {
        shell.run("revoke agent ann --key op-1.json").fails(20, &["sealwire revocations init"]);
        shell.run("--json revocations init --key op-1.json --wait 1s").ok()
    });
    assert_eq!(bash.json()["number"], 1);
    let site = Site::new(&server.url());
    site.write_config(&format!(
        "[record]\nfolder = \"records\"\n[revocation]\noperator = [{operator}]\n[revocation.nats]\nurls = [\"{}\"]\n",
        server.url()
    ));
    let served = site.serve(methods()).await;
    let ann = site.caller("ann").await;
    assert_eq!(ann.add().await, sum());
    let run = |line: &str| tokio::task::block_in_place(|| shell.run(line));

    let told = run("--json revoke agent ann --key op-1.json --reason wild --expect site=1").ok().json();
    assert_eq!(
        [&told["number"], &told["revoked"], &told["complete"], &told["replicas"][0]["name"]],
        [&json!(2), &json!(["agent ann"]), &json!(true), &json!("site")]
    );
    assert!(told["replicas"][0]["after_ms"].is_u64(), "{told}");
    assert!(matches!(ann.add().await, Answer::Hint(_)));
    // On a busy machine, a replica may answer too late.
    let told = (0..10).any(|_| {
        let ran = run("revocations").ok().says("agent ann  until it is restored: wild");
        ran.stdout.contains("site ") && ran.stdout.contains("in force")
    });
    assert!(told);
    // More replicas are expected than are there.
    run("restore agent ann --key op-1.json --expect site=2 --wait 5s").fails_with(23, "MISSING  site: 1 of 2");
    assert_eq!(ann.add().await, sum());
    run("restore agent ann --key op-1.json").fails(30, &["agent ann is not revoked", "exact name"]);
    run("revoke method site/* --for 1h --key op-1.json --expect site=1").ok();
    assert!(matches!(ann.add().await, Answer::Signed(text) if text.contains("-32002")));
    let restored = run("--json restore method site/* --key op-1.json --expect site=1").ok().json();
    assert_eq!(restored["restored"], json!(["method site/*"]));
    run("revoke everything else --key op-1.json").fails(2, &["everything has no name"]);
    run("revoke agent --key op-1.json").fails(2, &["which agent"]);
    run("revoke agent ann --until 1 --key op-1.json").fails(30, &["in the past"]);
    served.stop().await.unwrap();

    // Every act is in the record, in its chain.
    let records = std::fs::read_dir(site.path("records")).unwrap().map(|file| file.unwrap().path());
    let text: String = records.filter_map(|path| std::fs::read_to_string(path).ok()).collect();
    let lines: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let acts: Vec<_> = lines.iter().filter(|line| line["kind"] == "revocation").collect();
    assert_eq!(acts.len(), 5, "{text}");
    assert_eq!([&acts[1]["revoked"], &acts[1]["signers"]], [&json!(["agent ann"]), &json!(["op-1"])]);
    assert_eq!(acts[2]["restored"], json!(["agent ann"]));
    run(&format!("records check {}", site.path("records").display())).ok();
    run("revoke agent ann --key op-1.json --wait 1s").ok().says("nobody reports");
    run("revoke agent bob --key op-1.json --expect site=1 --wait 1s").fails_with(23, "MISSING  site: 0 of 1");
}

/// A replica that hangs once it has said that it is there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_hangs_after_the_roll_call_has_not_answered() {
    let server = NatsServer::start().await;
    let shell = prepared(&server.url(), "[role.user]\nallow = [\"math/add\"]\n", "");
    let key = operator(&shell, "op-1");
    shell.write("revocation.toml", &desk("dev", &key, 1, &server.url()));
    let run = |line: &str| tokio::task::block_in_place(|| shell.run(line));
    run("revocations init --key op-1.json --wait 1s").ok();
    let config = shell.read("sealwire.toml");
    let url = server.url();
    shell.write(
        "sealwire.toml",
        &format!("{config}\n[revocation]\noperator = [{key}]\n[revocation.nats]\nurls = [\"{url}\"]\n"),
    );
    let stage = Stage::begin(server, shell, &["serve", "demo"], &std::env::var("PATH").unwrap()).await.ready().await;
    let run = |line: &str| tokio::task::block_in_place(|| stage.shell.run(line));
    let service = stage.service.id().unwrap();
    let listener = stage.server.client().await;
    let mut reports = within(SOON, listener.subscribe("revocation.v1.dev.report.>")).await.unwrap();
    settle(&listener).await;
    let hangs = async {
        // Should it have got the list before it hung, once more.
        for count in 1.. {
            let hang = async {
                while reports.next().now_or_never().is_some() {}
                reports.next().await.unwrap();
                tokio::task::block_in_place(|| send(SIGSTOP, service));
            };
            let line = format!("revoke agent a{count} --key op-1.json --wait 1s");
            let mut command = tokio::process::Command::from(stage.shell.command(&line.split(' ').collect::<Vec<_>>()));
            let (ran, ()) = tokio::join!(command.output(), hang);
            let ran = ran.unwrap();
            send(SIGCONT, service);
            let said = String::from_utf8(ran.stdout).unwrap();
            if !said.contains("in force after") {
                assert_eq!(ran.status.code(), Some(23), "{said}");
                return said;
            }
        }
        unreachable!()
    };
    let said = within(2 * LONG, hangs).await;
    assert!(said.contains("tools ") && said.contains("DID NOT ANSWER: it had list "), "{said}");
    let known = async { while !run("revocations").ok().stdout.contains("  in force") {} };
    within(LONG, known).await;
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_operator_of_two_does_nothing_alone() {
    let (server, shell) = (NatsServer::start().await, Shell::new());
    let (one, two) = (operator(&shell, "op-1"), operator(&shell, "op-2"));
    operator(&shell, "op-3");
    shell.write("revocation.toml", &desk("two", &format!("{one}, {two}"), 2, &server.url()));
    let run = |line: &str| tokio::task::block_in_place(|| shell.run(line));
    run("revocations init --key op-1.json --wait 1s").fails(30, &["signed by 1", "--draft"]);
    run("revocations init --key op-1.json --key op-2.json --wait 1s").ok();
    run("revocations init --key op-1.json --key op-2.json --wait 1s").fails(30, &["there is a list already", "renew"]);
    run("revoke agent ann --key op-1.json --wait 1s").fails(30, &["signed by 1"]);
    run("revoke agent ann --key op-1.json --key op-3.json").fails(30, &["the key of nobody who counts here"]);
    run("revoke agent ann --key op-1.json --draft draft.json").ok().says("nothing is in force yet");
    assert_eq!(run("--json revocations").ok().json()["revoked"], json!([]));
    run("revocations sign draft.json --key op-1.json --wait 1s").fails(30, &["signed by 1"]);
    let signed = run("--json revocations sign draft.json --key op-2.json --wait 1s").ok().json();
    assert_eq!(signed["revoked"], json!(["agent ann"]));
    run("revocations sign draft.json --key op-2.json --wait 1s").fails(30, &["the next one of two is 3"]);
    let listed = run("--json revocations").ok().json();
    assert_eq!([&listed["number"], &listed["revoked"][0]["name"]], [&json!(2), &json!("ann")]);

    // The bucket is rolled back: the copy here knows better, and the next list has a higher number.
    let client = server.client().await;
    client.publish("$KV.SEALWIRE_two.list", "{}".into()).await.unwrap();
    sealwire_testkit::settle(&client).await;
    let ran = run("revocations").ok();
    assert!(ran.stderr.contains("has no effect"), "{ran:?}");
    let renewed = run("--json revocations renew --key op-1.json --key op-2.json --after 7 --wait 1s").ok().json();
    assert_eq!(renewed["number"], 8);
    assert_eq!(run("--json revocations").ok().json()["revoked"][0]["name"], "ann");
}
