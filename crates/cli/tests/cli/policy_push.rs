//! `sealwire policy push` and `status` at a real broker, with a service that takes its policies from there.

use sealwire_testkit::site::{Answer, Site, methods, sum, write};
use sealwire_testkit::{NatsServer, SOON, settle};
use serde_json::{Value, json};

use crate::shell::Shell;

/// No rule lets anybody call, which is expected.
const NOTHING: &str = "[method.\"site/add\"]\n[role.worker]\ndescription = \"nothing yet\"\n";
/// Everybody with the role may.
const OPEN: &str = "[method.\"site/add\"]\n[role.worker]\nallow = [\"site/add\"]\n";
const CASES: &str = "[[case]]\nname = \"nobody\"\ncaller = { agent = \"ann\", roles = [\"worker\"] }\nmethod = \"site/add\"\n\
    expect = \"deny\"\n";

pub(crate) fn key(shell: &Shell, kid: &str) -> String {
    let made = shell.run(&format!("--json keys new-operator {kid}")).ok().json();
    format!("{{ kid = \"{kid}\", x = \"{}\" }}", made["x"].as_str().unwrap())
}

pub(crate) fn desk(operators: &str, signatures: usize, url: &str) -> String {
    format!("environment = \"test\"\nsignatures = {signatures}\noperator = [{operators}]\n[nats]\nurls = [\"{url}\"]\n")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_pushes_policies_and_is_told_who_has_them_in_force() {
    let (server, shell) = (NatsServer::start().await, Shell::new());
    let operator = key(&shell, "op-1");
    shell.write("revocation.toml", &desk(&operator, 1, &server.url()));
    let run = |line: &str| tokio::task::block_in_place(|| shell.run(line));
    run("revocations init --key op-1.json --wait 1s").ok();
    let site = Site::new(&server.url());
    site.write_config(&format!(
        "[revocation]\noperator = [{operator}]\nserve_stale = true\n[revocation.nats]\nurls = [\"{}\"]\n",
        server.url()
    ));
    let config = site.path("sealwire.toml");
    let text = std::fs::read_to_string(&config).unwrap();
    write(&config, &text.replace("folder = \"policies\"\n", "folder = \"policies\"\nsource = \"bucket\"\n"));
    let served = site.serve(methods()).await;
    let ann = site.caller("ann").await;
    assert_eq!(ann.add().await, sum());
    let push = |line: &str| run(&format!("{line} --service site --key op-1.json"));

    shell.write("closed/site.toml", NOTHING);
    shell.write("closed/site.test.toml", CASES);
    push("policy push closed").fails(20, &["there is no bucket", "--create"]);
    let told = push("--json policy push closed --create 1 --expect site=1 --wait 20s").ok().json();
    assert_eq!([&told["number"], &told["complete"]], [&json!(1), &json!(true)], "{told}");
    let replica = &told["replicas"][0];
    assert_eq!([&replica["name"], &replica["active"]["revision"]], [&json!("site"), &told["revision"]], "{told}");
    assert!(replica["after_ms"].is_u64(), "{told}");
    let revision = run("--json policy check closed").ok().json()["revision"].clone();
    assert_eq!(told["revision"], revision);
    assert!(matches!(ann.add().await, Answer::Signed(text) if text.contains("-32002")));

    // What is wrong is not pushed.
    shell.write("broken/site.toml", "[role.worker]\nalow = []\n");
    push("policy push broken").fails(11, &["alow"]);
    shell.write("open/site.toml", OPEN);
    shell.write("open/site.test.toml", CASES);
    push("policy push open").fails(12, &["does not decide as expected"]);
    std::fs::create_dir(shell.path("empty")).unwrap();
    push("policy push empty").fails(11, &["no policy file"]);
    // Nor what the replica alone knows to be wrong, at the replica.
    shell.write(
        "other/site.toml",
        &format!("{NOTHING}[method.\"site/other\"]\n[rule.a]\neveryone = true\nallow = [\"site/other\"]\n"),
    );
    let ran = push("policy push other --wait 20s");
    ran.fails_with(11, "CANNOT USE IT, and goes on with package 1");
    assert!(ran.stdout.contains("site/other"), "{ran:?}");
    std::fs::remove_file(shell.path("open/site.test.toml")).unwrap();
    let ran = push("policy push open --expect site=1 --wait 20s").ok().says("package 3 with revision");
    assert!(ran.stderr.contains("nothing was tested"), "{ran:?}");
    assert_eq!(ann.add().await, sum());
    // More replicas are expected than are there.
    push("policy push closed --expect site=2 --wait 5s").fails_with(23, "MISSING  site: 1 of 2");
    assert!(matches!(ann.add().await, Answer::Signed(_)), "the way back is a push, too");
    // On a busy machine, a replica may answer too late.
    let deadline = std::time::Instant::now() + SOON;
    while !run("policy status --service site").ok().says("package 4").stdout.contains("  in force") {
        assert!(std::time::Instant::now() < deadline, "{:?}", run("policy status --service site"));
    }
    let status = run("--json policy status --service site").ok().json();
    assert_eq!(status["package"]["files"], json!(["site.toml"]));
    assert_eq!(run("--json policy status --service other").ok().json()["package"], Value::Null);

    // The bucket is rolled back: the copy here knows better.
    let client = server.client().await;
    client.publish("$KV.SEALWIREPOLICY_test.site.active", "{}".into()).await.unwrap();
    settle(&client).await;
    let ran = push("policy push open --expect site=1 --wait 20s").ok().says("package 5 ");
    assert!(ran.stderr.contains("has no effect"), "{ran:?}");
    assert_eq!(ann.add().await, sum());
    // The operator's copy and the bucket are lost.
    for lost in ["policies.site.json", "policies.site.number.json"] {
        std::fs::remove_file(shell.path(lost)).unwrap();
    }
    client.publish("$KV.SEALWIREPOLICY_test.site.active", "{}".into()).await.unwrap();
    settle(&client).await;
    push("policy push closed --wait 5s").fails_with(23, "package 5 was seen before");
    let deadline = std::time::Instant::now() + SOON;
    while !run("policy status --service site").ok().stdout.contains("  NOT IN FORCE: it has package 5 (") {
        assert!(std::time::Instant::now() < deadline, "{:?}", run("policy status --service site"));
    }
    assert_eq!(ann.add().await, sum());
    push("policy push closed --after 5 --expect site=1 --wait 20s").ok().says("package 6 ");
    assert!(matches!(ann.add().await, Answer::Signed(_)));
    served.stop().await.unwrap();

    // What a service would read is checked without it.
    write(&site.path("policies/policy.toml"), OPEN);
    let check = format!("serve --check --config {}", config.display());
    let ran = run(&check).ok();
    assert!(ran.stderr.contains("decide only until there is a package"), "{ran:?}");
    write(&site.path("site.policy"), "{}");
    run(&check).fails(30, &["site.policy", "delete it"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_operator_of_two_pushes_nothing_alone() {
    let (server, shell) = (NatsServer::start().await, Shell::new());
    let (one, two) = (key(&shell, "op-1"), key(&shell, "op-2"));
    shell.write("revocation.toml", &desk(&format!("{one}, {two}"), 2, &server.url()));
    shell.write("policies/site.toml", NOTHING);
    shell.write("other/site.toml", OPEN);
    let push =
        |line: &str| tokio::task::block_in_place(|| shell.run(&format!("policy push {line} --service site --wait 1s")));
    push("--key op-1.json --create 1").fails(30, &["signed by 1", "--draft"]);
    push("--key op-1.json --draft draft.json").ok().says("nothing is in force yet");
    push("other --key op-2.json --sign draft.json").fails(30, &["does not hold the files of `other`"]);
    push("--key op-1.json --sign draft.json").fails(30, &["signed by 1"]);
    push("--key op-2.json --sign draft.json").ok().says("nobody reports");
    push("--key op-2.json --sign draft.json").fails(30, &["the next one of test/site is 2"]);
    let told = push("--json --key op-1.json --key op-2.json").ok().json();
    assert_eq!(
        [&told["number"], &told["complete"], &told["signers"]],
        [&json!(2), &json!(false), &json!(["op-1", "op-2"])]
    );
    // Nobody ever signs two packages with one number.
    push("--key op-1.json --draft draft.json").ok().says("package 3 ");
    push("other --key op-1.json --draft other.json").ok().says("package 4 ");
    push("--key op-2.json --sign draft.json").fails(30, &["the next one of test/site is 5"]);
    push("other --key op-2.json --sign other.json").ok().says("package 4 ");
    push("--key op-1.json --key op-2.json --after 9007199254740991").fails(30, &["has a number from 1 to"]);
    // An operator's key is replaced, and numbers go on.
    let three = key(&shell, "op-3");
    shell.write("revocation.toml", &desk(&format!("{two}, {three}"), 2, &server.url()));
    let ran = push("--key op-2.json --key op-3.json").ok().says("package 5 ");
    assert!(ran.stderr.contains("holds package 4, which does not count any more"), "{ran:?}");
}
