//! Proofs of calls, checked by somebody who trusts two public keys and not the door.

use sealwire_testkit::python::python;
use sealwire_testkit::{root, within};
use tokio::process::Command;

use super::wire::{Wire, call, post};
use super::{Door, FAST, configure, demo};
use crate::backends::stage::LONG;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_can_check_that_its_bytes_were_asked_and_these_were_answered() {
    let Some(python) = python() else { return };
    let stage = demo().await;
    let shell = &stage.shell;
    let url = stage.server.url();
    let made = shell.run(&format!("keys new-agent eddy --alg eddsa --service dev/tools=ring.json --url {url} --json"));
    let agent_key = made.ok().json()["public_key"].as_str().unwrap().to_owned();
    let service = shell.read_json("tools.service-key.json");
    let (kid, service_key) = (service["kid"].as_str().unwrap(), service["x"].as_str().unwrap());
    shell.run(&format!("keys pin eddy.creds.json --service tools --kid {kid} --x={service_key}")).ok();
    let bound = "--subject eddy --cnf-kid eddy.k1 --out eddy.jwt --role user";
    shell.run(&format!("token issue --key token-key.json --audience dev/tools {bound}")).ok();
    shell.run("discover --creds eddy.creds.json --wait 60s tools").ok();

    configure(shell, FAST, "");
    shell.write("door.toml", &shell.read("door.toml").replace("planner.creds.json", "eddy.creds.json"));
    let door = Door::spawn(shell).await;
    door.is_ready(200).await;
    let asked = call(1, "math/add", "[1.0,  2]");
    let answer = Wire::open(door.at).await.ask(post("/rpc/tools", "", &asked)).await;
    assert_eq!(answer.status, 200);
    shell.write("call.json", &asked);
    shell.write("answer.json", std::str::from_utf8(&answer.body).unwrap());
    shell.write("head.txt", answer.head());
    let check = async |args: &[&str]| {
        let mut command = Command::new(python);
        command.arg(root().join("examples/receipt.py")).args(args).current_dir(shell.path(""));
        let output = within(LONG, command.kill_on_drop(true).output()).await.unwrap();
        let said = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8(said).unwrap())
    };
    let good = ["call.json", "head.txt", "answer.json", "dev/tools", &agent_key, service_key];
    let (holds, said) = check(&good).await;
    assert!(holds && said.contains("dev/tools answered this call"), "{said}");

    // A door that lies: another call, another answer, the proofs of another call; another service, other keys.
    shell.write("other.json", &asked.replace("[1.0,  2]", "[1.0, 2]"));
    shell.write("lie.json", &shell.read("answer.json").replace('3', "4"));
    let other = Wire::open(door.at).await.ask(post("/rpc/tools", "", &asked)).await;
    let line = |head: &str, name: &str| head.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
    let mixed = [line(answer.head(), "sealwire-request"), line(other.head(), "sealwire-answer")].join("\n");
    shell.write("mixed.txt", &mixed);
    for (place, with, why) in [
        (0, "other.json", "the request is of these bytes"),
        (1, "mixed.txt", "the answer is to this request"),
        (2, "lie.json", "the answer is of these bytes"),
        (3, "dev/other", "the request is for the service"),
        (4, service_key, "InvalidSignature"),
        (5, &agent_key, "InvalidSignature"),
    ] {
        let mut args = good;
        args[place] = with;
        let (holds, said) = check(&args).await;
        assert!(!holds && said.contains(why), "{with}: {said}");
    }
    assert_eq!(door.stop().await.0, Some(0));

    // Under HMAC whoever can check could have made them.
    let door = Door::start(shell, FAST, "").await;
    let answer = Wire::open(door.at).await.ask(post("/rpc/tools", "", &asked)).await;
    assert_eq!((answer.status, answer.header("sealwire-request"), answer.header("sealwire-answer")), (200, None, None));
    assert_eq!(door.stop().await.0, Some(0));
    stage.end().await;
}
