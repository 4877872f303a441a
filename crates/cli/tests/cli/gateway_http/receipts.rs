//! Proofs of calls, checked by somebody who trusts two public keys and not the gateway.

use sealwire_testkit::python::python;
use sealwire_testkit::{root, within};
use serde_json::{Value, json};
use tokio::process::Command;

use super::wire::{Wire, call, post};
use super::{FAST, Gateway, configure, demo};
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
    shell.write("gateway.toml", &shell.read("gateway.toml").replace("planner.creds.json", "eddy.creds.json"));
    let gateway = Gateway::spawn(shell).await;
    gateway.is_ready(200).await;
    let asked = call(1, "math/add", "[1.0,  2]");
    let answer = Wire::open(gateway.at).await.ask(post("/rpc/tools", "", &asked)).await;
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

    // A lying gateway: another call, another answer, the proofs of another call; another service, other keys.
    shell.write("other.json", &asked.replace("[1.0,  2]", "[1.0, 2]"));
    shell.write("lie.json", &shell.read("answer.json").replace('3', "4"));
    let other = Wire::open(gateway.at).await.ask(post("/rpc/tools", "", &asked)).await;
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
    // Receipts of a tool call, which say from whom and when, but nothing about the caller's bytes.
    let tool = super::mcp::call(1, "math_add", &json!({ "a": 1, "b": 2 }));
    let said = Wire::open(gateway.at).await.ask(&tool).await.json();
    let parts = super::mcp::call(1, "text_echo", &json!({ "text": "one by one" }));
    let streamed = Wire::open(gateway.at).await.ask(&parts).await.json();
    let receipt = &said["result"]["_meta"]["dev.sealwire/receipt"];
    let verify = "import base64, json, sys\n\
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey\n\
        bytes_of = lambda text: base64.urlsafe_b64decode(text + '=' * (-len(text) % 4))\n\
        said, key = sys.argv[1:]\n\
        head, claims, signature = said.split('.')\n\
        Ed25519PublicKey.from_public_bytes(bytes_of(key)).verify(bytes_of(signature), f'{head}.{claims}'.encode())\n\
        print(json.dumps([json.loads(bytes_of(head))['typ'], json.loads(bytes_of(claims))]))\n";
    let mut claims = Vec::new();
    let of_parts = &streamed["result"]["_meta"]["dev.sealwire/receipt"];
    for (receipt, which, key) in [
        (receipt, "request", agent_key.as_str()),
        (receipt, "answer", service_key),
        (of_parts, "request", &agent_key),
        (of_parts, "answer", service_key),
    ] {
        let proof = receipt[which].as_str().unwrap_or_else(|| panic!("{said}"));
        let output = within(LONG, Command::new(python).args(["-c", verify, proof, key]).output()).await.unwrap();
        let found: Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)));
        claims.push(found);
    }
    let types: Vec<_> = claims.iter().map(|claims| &claims[0]).collect();
    assert_eq!(types, ["nats-rpc-v1+jwt", "nats-rpc-v1-reply+jwt", "nats-rpc-v1+jwt", "nats-rpc-v1-frame+jwt"]);
    assert_eq!(claims[0][1]["aud"], "dev/tools", "{claims:?}");
    assert_eq!(claims[1][1]["to"], claims[0][1]["rto"], "the answer is to this request: {claims:?}");
    assert_eq!(
        (&claims[3][1]["to"], &claims[3][1]["knd"]),
        (&claims[2][1]["rto"], &json!("end")),
        "so is a stream: {claims:?}"
    );
    let denied = super::mcp::call(1, "math_add", &json!({ "a": "x" }));
    let denied = Wire::open(gateway.at).await.ask(&denied).await.json();
    assert!(denied["result"]["_meta"]["dev.sealwire/receipt"]["answer"].is_string(), "{denied}");
    assert_eq!(gateway.stop().await.0, Some(0));

    // With HMAC, anybody who can check them could have made them.
    let gateway = Gateway::start(shell, FAST, "").await;
    let answer = Wire::open(gateway.at).await.ask(post("/rpc/tools", "", &asked)).await;
    assert_eq!((answer.status, answer.header("sealwire-request"), answer.header("sealwire-answer")), (200, None, None));
    let said = Wire::open(gateway.at).await.ask(&tool).await.json();
    assert_eq!(
        (&said["result"]["structuredContent"], said["result"]["_meta"].get("dev.sealwire/receipt")),
        (&json!(3), None)
    );
    assert_eq!(gateway.stop().await.0, Some(0));
    stage.end().await;
}
