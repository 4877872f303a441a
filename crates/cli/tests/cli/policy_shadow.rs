//! `sealwire policy push --shadow`, `compare` and `--activate` at a real broker, with two replicas.

use std::time::Instant;

use futures_util::StreamExt as _;
use sealwire_testkit::site::{Answer, Caller, Served, Site, methods, sum, write};
use sealwire_testkit::{NatsServer, SOON, settle, within};
use serde_json::{Value, json};

use crate::policy_push::{desk, key};
use crate::shell::{Ran, Shell};

const METHODS: &str = "[method.\"site/add\"]\n[method.\"site/count\"]\n[method.\"site/sleep\"]\n";
/// Workers may add and sleep.
const NOW: &str = "[role.worker]\nallow = [\"site/add\", \"site/sleep\"]\n";
/// They may count as well, and bob may not add.
const THEN: &str =
    "[role.worker]\nallow = [\"site/add\", \"site/sleep\", \"site/count\"]\n[agent.bob]\ndeny = [\"site/add\"]\n";

/// An operator with a key, a broker, and a service that takes its policies from there.
struct Stage {
    server: NatsServer,
    shell: Shell,
    site: Site,
}

impl Stage {
    async fn new() -> Self {
        let (server, shell) = (NatsServer::start().await, Shell::new());
        let operator = key(&shell, "op-1");
        shell.write("revocation.toml", &desk(&operator, 1, &server.url()));
        for (folder, policy) in [("now", NOW), ("then", THEN)] {
            shell.write(&format!("{folder}/site.toml"), &format!("{METHODS}{policy}"));
        }
        let site = Site::new(&server.url());
        site.write_config(&format!(
            "guard = \"shared\"\n[revocation]\noperator = [{operator}]\nserve_stale = true\n[revocation.nats]\nurls = [\"{}\"]\n",
            server.url()
        ));
        let config = site.path("sealwire.toml");
        let text = std::fs::read_to_string(&config).unwrap();
        write(&config, &text.replace("folder = \"policies\"\n", "folder = \"policies\"\nsource = \"bucket\"\n"));
        let stage = Self { server, shell, site };
        stage.run("revocations init --key op-1.json --wait 1s").ok();
        stage
    }

    fn run(&self, line: &str) -> Ran {
        tokio::task::block_in_place(|| self.shell.run(line))
    }

    fn push(&self, words: &str) -> Ran {
        self.run(&format!("policy push {words} --service site --key op-1.json --wait 20s"))
    }

    /// Comes back as soon as everybody has answered what is to be compared.
    fn compare(&self, words: &str) -> Ran {
        let wait = if words.contains("--wait") { "" } else { "--wait 20s" };
        self.run(&format!("policy compare --service site {words} {wait}"))
    }

    async fn serve(&self) -> Served {
        self.site.serve(methods()).await
    }

    /// Waits until a comparison says what is wanted.
    fn compares(&self, wanted: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + SOON;
        loop {
            let ran = self.compare("--json --wait 3s");
            if ran.stdout.starts_with('{') && wanted(&ran.json()) {
                return ran.json();
            }
            assert!(Instant::now() < deadline, "{ran:?}");
        }
    }
}

fn is_denied(answer: &Answer) -> bool {
    matches!(answer, Answer::Signed(text) if text.contains("-32002"))
}

async fn count(caller: &Caller) -> Answer {
    caller.call("site/count", "[]", SOON / 2).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_shadow_would_decide_otherwise_is_told_exactly_and_then_put_in_force() {
    let stage = Stage::new().await;
    let (one, two) = (stage.serve().await, stage.serve().await);
    let (ann, bob) = (stage.site.caller("ann").await, stage.site.caller("bob").await);
    stage.push("now --create 1 --expect site=2").ok();
    stage.compare("").fails(30, &["no shadow package was pushed for site", "--shadow DIR"]);
    stage.push("--activate").fails(30, &["no shadow package was pushed for site"]);

    let told = stage.push("--json then --shadow --expect site=2").ok().json();
    assert_eq!([&told["number"], &told["complete"]], [&json!(1), &json!(true)], "{told}");
    assert!(told["replicas"][0]["shadow"]["comparison"]["against"].is_string(), "{told}");
    stage.compare("--expect site=2").ok().says("no call was compared yet");
    for _ in 0..4 {
        assert!(is_denied(&count(&ann).await), "the shadow decides nothing");
    }
    for _ in 0..2 {
        assert_eq!((bob.add().await, ann.add().await), (sum(), sum()));
    }
    ann.call("site/sleep", "[1]", SOON / 2).await;

    let told = stage.compares(|told| told["compared"] == 9);
    let revision = |folder: &str| stage.run(&format!("--json policy check {folder}")).ok().json()["revision"].clone();
    assert_eq!([&told["revision"], &told["differ"], &told["further"]], [&revision("then"), &json!(6), &json!(0)]);
    let rows: Vec<_> = told["differences"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| ["calls", "now", "would", "agent", "method", "reason", "rule"].map(|name| row[name].clone()))
        .collect();
    let allowed = "`role.worker.allow` (site.toml:5)";
    let denied = "`agent.bob.deny` (site.toml:7)";
    assert_eq!(
        json!(rows),
        json!([
            [4, "deny", "allow", "ann", "site/count", "allowed_by", allowed],
            [2, "allow", "deny", "bob", "site/add", "forbidden_by", denied],
        ])
    );
    let ran = stage.compare("--expect site=2");
    ran.fails_with(13, "6 of 9 calls would come out otherwise:");
    assert!(ran.stdout.contains("2  allow -> deny   bob site/add  forbidden_by `agent.bob.deny`"), "{ran:?}");

    // A replica that starts takes it up again, and one that is not there is missed.
    two.stop().await.unwrap();
    stage.compare("--expect site=2 --wait 10s").fails_with(23, "MISSING  site: 1 of 2 replicas compare it");
    let two = stage.serve().await;
    stage.compares(|told| told["complete"] == true && told["replicas"].as_array().unwrap().len() == 2);

    // Only what was compared is put in force.
    stage.push("now --activate").fails(30, &["`now` is not what was compared", "has another `site.toml`"]);
    assert!(is_denied(&count(&ann).await));
    let told = stage.push("--json then --activate --expect site=2").ok().json();
    assert_eq!([&told["number"], &told["revision"]], [&json!(2), &revision("then")], "{told}");
    assert!(is_denied(&bob.add().await));
    assert!(matches!(count(&ann).await, Answer::Signed(text) if text.contains("\"result\"")));
    stage.compare("").fails(30, &["no shadow package was pushed"]);
    one.stop().await.unwrap();
    two.stop().await.unwrap();
    let again = stage.serve().await;
    assert!(is_denied(&bob.add().await), "also after a restart");
    again.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shadow_is_taken_out_and_what_is_wrong_with_one_changes_nothing() {
    let stage = Stage::new().await;
    let served = stage.serve().await;
    let ann = stage.site.caller("ann").await;
    stage.push("now --create 1 --expect site=1").ok();
    stage.push("then --shadow --expect site=1").ok().says("shadow package 1 with revision");
    stage.compares(|told| told["complete"] == true);
    stage.compare("--end --wait 20s").ok().says("shadow package 1 is taken out");
    stage.compare("").fails(30, &["no shadow package was pushed"]);
    // Numbers go on.
    stage.push("then --shadow --expect site=1").ok().says("shadow package 2 with revision");

    // The replica does not have the method.
    let other = "[method.\"site/other\"]\n[rule.a]\neveryone = true\nallow = [\"site/other\"]\n";
    stage.shell.write("other/site.toml", &format!("{METHODS}{NOW}{other}"));
    stage.push("other --shadow").fails_with(11, "CANNOT USE IT: site.toml");
    stage.compare("").fails_with(11, "CANNOT USE IT");
    assert_eq!(ann.add().await, sum());
    let client = stage.server.client().await;
    let mut told = client.subscribe("policy.v1.test.package.site.shadow").await.unwrap();
    settle(&client).await;
    stage.push("then --shadow --expect site=1").ok();
    let fourth = within(SOON, told.next()).await.unwrap().payload;

    // Whoever can write the bucket, and has no key.
    let write = async |text: String| {
        client.publish("$KV.SEALWIREPOLICY_test.site.shadow", text.into()).await.unwrap();
        settle(&client).await;
    };
    let other = Shell::new();
    let stranger = key(&other, "op-1");
    other.write("revocation.toml", &desk(&stranger, 1, &stage.server.url()));
    other.write("then/site.toml", &format!("{METHODS}{THEN}"));
    let push = "policy push then --service site --key op-1.json --shadow --after 90 --wait 10s";
    let ran = tokio::task::block_in_place(|| other.run(push));
    assert!(ran.stdout.contains("DOES NOT COMPARE IT: it compares shadow package 4"), "{ran:?}");
    stage.compare("").fails(30, &["what the bucket holds has no effect: signed by 0"]);
    write("{}".to_owned()).await;
    stage.compare("").fails(30, &["what the bucket holds has no effect"]);
    stage.push("then --shadow --expect site=1").ok().says("shadow package 5 with revision");
    assert_eq!(ann.add().await, sum());
    // An earlier one is neither compared nor put in force unseen.
    write(String::from_utf8(fourth.to_vec()).unwrap()).await;
    let old = "holds shadow package 4, and shadow package 5 was signed here";
    let ran = stage.compare("--wait 10s");
    ran.fails_with(23, "DOES NOT COMPARE IT: it compares shadow package 5");
    assert!(ran.stderr.contains(old), "{ran:?}");
    stage.push("--activate").fails(30, &[old, "name the folder"]);
    // Emptied, it is compared no more.
    write(String::new()).await;
    stage.compare("").fails(30, &["no shadow package was pushed"]);
    served.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_operators_sign_a_shadow_and_what_it_becomes() {
    let (server, shell) = (NatsServer::start().await, Shell::new());
    let (one, two) = (key(&shell, "op-1"), key(&shell, "op-2"));
    shell.write("revocation.toml", &desk(&format!("{one}, {two}"), 2, &server.url()));
    shell.write("then/site.toml", &format!("{METHODS}{THEN}"));
    shell.write("now/site.toml", &format!("{METHODS}{NOW}"));
    let push =
        |line: &str| tokio::task::block_in_place(|| shell.run(&format!("policy push {line} --service site --wait 1s")));
    push("then --key op-1.json --shadow --create 1").fails(30, &["signed by 1"]);
    push("then --key op-1.json --shadow --draft draft.json")
        .ok()
        .says("push then --shadow --service site --sign draft.json");
    push("then --key op-2.json --sign draft.json").fails(30, &["is shadow package 1 of test/site, and the next one"]);
    push("now --key op-2.json --shadow --sign draft.json").fails(30, &["does not hold the files of `now`"]);
    push("then --key op-2.json --shadow --sign draft.json").ok().says("shadow package 1 with revision");
    push("--key op-1.json --activate").fails(30, &["signed by 1"]);
    push("--key op-1.json --activate --draft draft.json").ok().says("push --activate --service site --sign draft.json");
    push("--key op-2.json --activate --sign draft.json").ok().says("package 1 with revision");
    push("--key op-1.json --activate").fails(30, &["no shadow package was pushed"]);
}

/// Whoever has the login of a service's replica. At a broker with accounts, it may publish reports of this service alone:
/// `a_stolen_login_of_a_service_cannot_push_policies`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_lies_about_its_comparison_speaks_for_its_service_alone() {
    let stage = Stage::new().await;
    let served = stage.serve().await;
    let ann = stage.site.caller("ann").await;
    stage.push("now --create 1 --expect site=1").ok();
    stage.push("then --shadow --expect site=1").ok();
    assert!(is_denied(&count(&ann).await));
    let told = stage.compares(|told| told["compared"] == 1);
    let package = told["replicas"][0]["shadow"]["package"].clone();
    let row = |calls: u64| {
        json!({
            "agent": "eve\u{1b}[2J\n", "method": "x".repeat(5_000), "now": "allow", "would": "deny", "reason": "\u{7}", "rule": "r", "calls": calls,
        })
    };
    let lie = |role: &str, name: &str, instance: &str, package: &Value, calls: u64| {
        let comparison = json!({
            "against": "a\nb", "since_ms": u64::MAX, "compared": calls, "skipped": calls, "further": 0, "differences": [row(calls)],
            "totals": [{ "now": "allow", "would": "deny", "calls": calls }],
        });
        let shadow = json!({ "package": package, "comparison": comparison });
        let report = json!({ "role": role, "name": name, "instance": instance, "shadow": shadow }).to_string();
        (format!("policy.v1.test.report.{role}.{name}.{instance}"), report)
    };
    let another = json!({ "number": 9, "digest": "another", "revision": "another" });
    let (subject, _) = lie("service", "site", "honest", &package, 1);
    let lies = [
        lie("service", "other", "a", &package, 1_000),
        lie("authd", "site", "b", &package, 1_000),
        // In the name of one, on the subject of another.
        (subject, lie("service", "site", "c", &package, 1_000).1),
        lie("service", "site", "d", &another, 1_000),
        lie("service", "site", "e", &package, u64::MAX),
    ];
    let client = stage.server.client().await;
    let lying = tokio::spawn(async move {
        loop {
            for (subject, report) in &lies {
                client.publish(subject.clone(), report.clone().into()).await.unwrap();
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    });
    let told = stage.compares(|told| told["replicas"].as_array().unwrap().len() == 3);
    let ran = stage.compare("--wait 10s");
    lying.abort();
    // Its own number, as high as it goes, and the row of the one that tells the truth.
    assert_eq!([&told["compared"], &told["complete"]], [&json!(u64::MAX), &json!(false)], "{told}");
    let row = |agent: &str| told["differences"].as_array().unwrap().iter().any(|row| row["agent"] == agent);
    assert!(row("ann") && told["differences"].as_array().unwrap().len() == 2, "{told}");
    ran.fails_with(23, "d  DOES NOT COMPARE IT: it compares shadow package 9 (another)");
    assert!(!ran.stdout.chars().any(|character| character.is_control() && character != '\n'), "{ran:?}");
    assert!(ran.stdout.lines().all(|line| line.len() < 6_000), "{ran:?}");
    assert!(is_denied(&count(&ann).await));
    served.stop().await.unwrap();
}
