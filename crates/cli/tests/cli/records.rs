//! `sealwire records`, on the record of a real service: what it finds, and what the record survives. docs/records.md.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use sealwire::internal::record::{Chain, Kind};
use sealwire_testkit::{NatsServer, root};
use serde_json::{Value, json};

use crate::shell::Shell;

const RULES: &str = r#"
[method."bank/transfer"]
params = [{ name = "to", type = "string" }, { name = "amount", type = "integer" }, { name = "note", type = "string", optional = true }]
[method."bank/balance"]
[role.teller]
[role.auditor]
allow = ["bank/balance"]
[rule.transfers]
roles = ["teller"]
allow = ["bank/transfer"]
when.params.amount = { min = 1, max = 5000 }
"#;

/// A folder with a service that records, and the credentials of tom, a teller.
struct Bank {
    shell: Shell,
    _server: NatsServer,
}

impl Bank {
    async fn open(more: &str) -> Self {
        let server = NatsServer::start().await;
        let (shell, url) = (Shell::new(), server.url());
        shell.write("policies/bank.toml", RULES);
        shell.run("keys new-token-key https://dev.example").ok();
        shell.run("keys new-service dev/demo").ok();
        shell.run(&format!("keys new-agent tom --alg hs256 --service dev/demo=demo.ring.json --url {url}")).ok();
        let bound = "--subject tom --cnf-kid tom.k1 --out tom.jwt --role teller";
        shell.run(&format!("token issue --key token-key.json --audience dev/demo {bound}")).ok();
        shell.write(
            "demo.toml",
            &format!(
                "environment = \"dev\"\nservice = \"demo\"\n[nats]\nurls = [\"{url}\"]\n[keys]\nring = \"demo.ring.json\"\n\
                 service_key = \"demo.service-key.json\"\n[[tokens.issuer]]\nissuer = \"https://dev.example\"\n\
                 jwks = \"jwks.json\"\n[policy]\nfolder = \"policies\"\n[replay]\nskew_s = 0\n[record]\nfolder = \"records\"\n{more}"
            ),
        );
        Self { shell, _server: server }
    }

    fn serve(&self, first: &str) -> Serving {
        let mut command = self.shell.command_after(first, &["serve", "demo", "--config", "demo.toml"]);
        let mut service = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut ready = String::new();
        let mut stdout = BufReader::new(service.stdout.take().unwrap());
        stdout.read_line(&mut ready).unwrap();
        assert!(ready.contains("takes messages"), "{ready}");
        Serving(service)
    }

    /// The exit code of a transfer.
    fn transfer(&self, amount: &str) -> i32 {
        let params = format!(r#"{{"to":"alice","amount":{amount}}}"#);
        self.shell.run_args(&["call", "--creds", "tom.creds.json", "demo", "bank/transfer", &params]).code
    }

    /// The files of the record, in order.
    fn files(&self) -> Vec<String> {
        let names = self.shell.files_in("records").into_iter();
        names.filter(|name| name.contains(".jsonl")).map(|name| format!("records/{name}")).collect()
    }

    /// The calls that a search finds.
    fn found(&self, options: &str) -> Vec<Value> {
        let ran = self.shell.run(&format!("records search --json {options}")).ok();
        ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

struct Serving(Child);

impl Serving {
    fn stop(mut self, signal: &str) {
        assert!(Command::new("kill").args([signal, &self.0.id().to_string()]).status().unwrap().success());
        assert_eq!(self.0.wait().unwrap().success(), signal == "-TERM");
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// README.md: "Who called which tool, with what outcome?" is answered by the line that stands there.
#[tokio::test(flavor = "multi_thread")]
async fn who_called_what_with_what_outcome_is_one_line_in_the_readme() {
    let bank = Bank::open("").await;
    let service = bank.serve("");
    assert_eq!([bank.transfer("2000"), bank.transfer("9000")], [0, 10]);
    service.stop("-TERM");

    let readme = include_str!("../../../../README.md");
    let answer = readme.lines().find(|line| line.starts_with("**Who called which tool, with what outcome?**")).unwrap();
    let line = answer.split('`').nth(1).unwrap().strip_prefix("sealwire ").unwrap();
    let said = bank.shell.run(line).ok().stdout;
    let rows: Vec<Vec<&str>> = said.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows.len(), 3, "{said}");
    assert_eq!(rows[1][1..6], ["tom", "bank/transfer", "allow", "transfers", "ok"], "{said}");
    assert_eq!(rows[2][1..6], ["tom", "bank/transfer", "deny", "no_rule", "-32002"], "{said}");

    let ids =
        |options: &str| bank.found(options).iter().map(|call| call["params"]["amount"].clone()).collect::<Vec<_>>();
    let (allowed, denied) = (json!(2000), json!(9000));
    let both = [allowed.clone(), denied.clone()];
    for (options, expected) in [
        ("", &both[..]),
        ("--agent tom --method bank/*", &both),
        ("--agent ann", &[]),
        ("--subject tom", &[]),
        ("--method bank", &[]),
        ("--decision allow", &both[..1]),
        ("--decision deny", &both[1..]),
        ("--rule transfers", &both[..1]),
        ("--outcome ok", &both[..1]),
        ("--outcome error", &both[1..]),
        ("--outcome -32002", &both[1..]),
        ("--since 1h", &both),
        ("--until 1h", &[]),
        ("--trace 00", &[]),
    ] {
        assert_eq!(ids(options), expected, "{options}");
    }
    let trace = bank.found("")[0]["trace"].clone();
    if let Some(trace) = trace.as_str() {
        assert_eq!(ids(&format!("--trace {trace}")).len(), 1);
    }

    // One call's whole story.
    let id = bank.found("--decision deny")[0]["id"].as_str().unwrap().to_owned();
    let shown = bank.shell.run_args(&["records", "show", &id]).ok().stdout;
    for words in
        ["decision  20", "outcome  20", "verdict        deny", "code           -32002", "agent          tom", ".jsonl:"]
    {
        assert!(shown.contains(words), "no `{words}` in {shown}");
    }
    let shown = bank.shell.run_args(&["records", "show", &id, "--json"]).ok().json();
    assert_eq!(
        (&shown[0]["kind"], &shown[1]["kind"], &shown[2]),
        (&json!("decision"), &json!("outcome"), &Value::Null)
    );
    bank.shell.run("records show nothing").fails(30, &["no call `nothing`"]);

    // Who used what, what was denied, and what nobody used.
    let report = bank.shell.run("records report --policies policies").ok().stdout;
    let part = |from: &str, to: &str| report.split(from).nth(1).unwrap().split(to).next().unwrap().to_owned();
    assert!(part("USED\n", "DENIED").contains("bank/transfer"), "{report}");
    assert!(part("DENIED\n", "NEVER").contains("1 by no_rule"), "{report}");
    let never = part("NEVER USED\n", "\n\n");
    assert!(never.contains("role auditor") && never.contains("bank/balance"), "{report}");
    assert!(!never.contains("bank/transfer"), "{report}");

    let report = bank.shell.run("records report --json").ok().json();
    assert_eq!((&report["calls"], &report["denied"][0]["why"]), (&json!(2), &json!("no_rule")));

    // Files that a timer has compressed, as the page says, are read as well, and the chain holds.
    let (file, page) = (bank.files().remove(0), std::fs::read_to_string(root().join("docs/records.md")).unwrap());
    let timer = page.split('`').find(|code| code.starts_with("find records ") && code.contains("gzip")).unwrap();
    let compress = format!("set -e; touch -d '25 hours ago' {file}; {timer}; test -e {file}.gz; test ! -e {file}");
    assert!(Command::new("sh").args(["-c", &compress]).current_dir(bank.shell.path("")).status().unwrap().success());
    assert_eq!(ids(""), both);
    bank.shell.run("records check").ok().says("none is missing or changed");
    bank.shell.never_said(bank.shell.read("tom.jwt").trim());
    bank.shell.run("records search nowhere").fails(30, &["there is no record in `nowhere`"]);
}

/// A killed service leaves an unfinished line; the next one begins a new session, and `check` names the line.
#[tokio::test(flavor = "multi_thread")]
async fn line_that_a_killed_service_left_unfinished_is_named() {
    let bank = Bank::open("").await;
    let service = bank.serve("");
    assert_eq!([bank.transfer("1"), bank.transfer("2")], [0, 0]);
    wait("outcomes are written", || bank.found("--outcome ok").len() == 2);
    service.stop("-KILL");
    // Where the signal comes is luck: this is how a line looks if it comes in its middle.
    let first = bank.files().remove(0);
    let text = bank.shell.read(&first);
    bank.shell.write(&first, &text[..text.len() - 40]);
    let service = bank.serve("");
    assert_eq!(bank.transfer("3"), 0);
    service.stop("-TERM");

    let checked = bank.shell.run("records check").ok().stdout;
    let torn = format!("{first}:5: ends within a line");
    for words in [&torn, "it runs, or ended without notice", "2 sessions: none is missing or changed"] {
        assert!(checked.contains(words), "no `{words}` in {checked}");
    }
    let amounts: Vec<_> =
        bank.found("").iter().map(|call| (call["params"]["amount"].clone(), call["outcome"].clone())).collect();
    let expected = [(json!(1), json!("ok")), (json!(3), json!("ok")), (json!(2), json!("unknown"))];
    assert_eq!(amounts, expected);
}

/// A disk that is full: the limit of a file's length fails writes in the middle of a line, as a full disk does. Calls go on.
#[tokio::test(flavor = "multi_thread")]
#[cfg(target_os = "linux")]
async fn disk_that_is_full_stops_no_call_and_spoils_no_line() {
    let bank = Bank::open("").await;
    let service = bank.serve("trap '' XFSZ; ulimit -f 4;");
    for amount in 0..12 {
        assert_eq!(bank.transfer(&(amount + 1).to_string()), 0);
    }
    service.stop("-TERM");
    let found = bank.found("").len();
    assert!((1..12).contains(&found), "{found}");
    let checked = bank.shell.run("records check").ok().stdout;
    assert!(checked.contains("1 sessions: none is missing or changed"), "{checked}");
    assert!(bank.shell.read(&bank.files()[0]).ends_with('\n'));
}

/// A reader of a running record sees each call once, across the files, and never half a line.
/// `serve --check` says in advance what would keep the service from starting, and makes nothing.
#[tokio::test(flavor = "multi_thread")]
async fn folder_that_cannot_hold_the_record_is_found_by_the_check() {
    let bank = Bank::open("").await;
    let check = || bank.shell.run("serve demo --config demo.toml --check");
    check().ok();
    assert!(!bank.shell.path("records").exists());
    std::fs::create_dir(bank.shell.path("records")).unwrap();
    bank.shell.set_mode("records", 0o777);
    check().fails(30, &["the record", "records"]);
    bank.shell.set_mode("records", 0o700);
    check().ok();
    assert_eq!(std::fs::read_dir(bank.shell.path("records")).unwrap().count(), 0);
    std::fs::remove_dir(bank.shell.path("records")).unwrap();
    bank.shell.write("records", "a file");
    check().fails(30, &["the record", "records"]);
    let config = bank.shell.read("demo.toml").replace("\"records\"", "\"none/records\"");
    bank.shell.write("demo.toml", &config);
    check().fails(30, &["the record", "none"]);
}

#[test]
fn running_record_is_followed_into_its_next_file() {
    let shell = Shell::new();
    let mut chain = Chain::new("s1");
    let mut line = |number: u64| chain.line(Kind::Decision, &decision(number)).unwrap();
    shell.write("records/20261126T000000Z-s1-000001.jsonl", std::str::from_utf8(&line(1)).unwrap());
    let mut follow = shell.command(&["records", "search", "--json", "--follow"]);
    let mut follow = follow.stdout(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(follow.stdout.take().unwrap());
    let append = |name: &str, bytes: &[u8]| {
        let path = shell.path(&format!("records/{name}"));
        let mut file = std::fs::OpenOptions::new().append(true).create(true).open(path).unwrap();
        file.write_all(bytes).unwrap();
    };
    let mut heard = |number: u64| {
        let mut text = String::new();
        said.read_line(&mut text).unwrap();
        let call: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&call["id"], &call["outcome"]), (&json!(format!("m{number}")), &json!("ok")), "{text}");
    };
    let (first, second) = ("20261126T000000Z-s1-000001.jsonl", "20261126T000000Z-s1-000002.jsonl");
    let mut other = Chain::new("s1");
    let mut outcome = |number: u64| other.line(Kind::Outcome, &outcome(number)).unwrap();
    let half = outcome(1);
    append(first, &half[..30]);
    std::thread::sleep(Duration::from_millis(700));
    append(first, &half[30..]);
    heard(1);
    append(second, &[line(2), outcome(2)].concat());
    heard(2);
    // What is compressed afterwards does not come again.
    assert!(Command::new("gzip").arg(shell.path(&format!("records/{first}"))).status().unwrap().success());
    std::thread::sleep(Duration::from_millis(500));
    append(second, &[line(3), outcome(3)].concat());
    heard(3);
    assert!(Command::new("kill").args(["-INT", &follow.id().to_string()]).status().unwrap().success());
    follow.wait().unwrap();
}

/// Whatever is done to a record, except at its very end: `check` finds it.
#[test]
fn lines_that_are_missing_changed_or_inserted_are_found() {
    let shell = Shell::new();
    let lines: Vec<String> = {
        let mut chain = Chain::new("s1");
        let start = chain.line(Kind::Start, &json!({ "at_ms": 1 })).unwrap();
        let decisions = (1..5).map(|number| chain.line(Kind::Decision, &decision(number)).unwrap());
        let lines: Vec<Vec<u8>> = [start].into_iter().chain(decisions).collect();
        lines.into_iter().map(|line| String::from_utf8(line).unwrap()).collect()
    };
    let check = |lines: &[String]| {
        shell.write("records/a.jsonl", &lines.concat());
        shell.run("records check")
    };
    check(&lines).ok().says("5 lines in 1 sessions: none is missing or changed");
    let without = |at: usize| [&lines[..at], &lines[at + 1..]].concat();
    check(&without(2)).fails_with(14, "records/a.jsonl:3: number 4 after 2");
    let mut changed = lines.clone();
    changed[2] = changed[2].replace("\"amount\":2", "\"amount\":3");
    check(&changed).fails_with(14, "records/a.jsonl:4: the line before it has another digest");
    let mut twice = lines.clone();
    twice.insert(3, lines[2].clone());
    check(&twice).fails_with(14, "number 3 after 3");
    check(&[&lines[..2], &["no record\n".to_owned()], &lines[2..]].concat()).fails_with(14, "not a line of a record");
    assert_eq!(shell.run("records check --json").json()["broken"].as_array().unwrap().len(), 1);
    check(&without(0)).ok().says("the lines before are not in these files");
    // The next session saw a line that is not there any more.
    let last = lines.last().unwrap().trim_end();
    let prior = json!({ "session": "s1", "seq": 5, "hash": sealwire_testkit::desk::digest(last.as_bytes()) });
    let next = Chain::new("s2").line(Kind::Start, &json!({ "at_ms": 1, "prior": prior })).unwrap();
    shell.write("records/b.jsonl", std::str::from_utf8(&next).unwrap());
    check(&lines).ok();
    check(&lines[..4]).fails_with(14, "session s1 ends at 4, and had 5 lines when this one began");
}

fn decision(number: u64) -> Value {
    json!({
        "at_ms": 1_790_000_000_000_u64 + number, "message": format!("m{number}"), "revision": "5b1c", "agent": "tom",
        "algorithm": "HS256", "key": "tom.k1", "issued_at": 1, "expires_at": 2, "method": "bank/transfer",
        "declared": ["amount: integer"], "params": { "amount": number }, "verdict": "allow", "reason": "allowed_by", "rule": "r",
    })
}

fn outcome(number: u64) -> Value {
    json!({
        "at_ms": 1_790_000_000_000_u64 + number, "message": format!("m{number}"), "agent": "tom", "method": "bank/transfer",
        "by": "answered", "duration_us": 5,
    })
}

fn wait(what: &str, holds: impl Fn() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}
