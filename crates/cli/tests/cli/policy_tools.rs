//! `sealwire policy test`, `matrix`, `who-can`, `can`, `diff`, `fmt` and `schema`, the recording of decisions, and the
//! reviewer's script that uses them.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::Command;

use crate::process::{heard, says as says_by_and_by, spawn};
use crate::shell::{Ran, Shell};
use sealwire::decide::Methods;
use sealwire::internal::record::{Chain, Kind};
use sealwire::{Caller, DecisionRecord, Name, PolicySet, Question};
use sealwire_testkit::NatsServer;
use serde_json::{Value, json};

const RULES: &str = r#"[method."bank/transfer"]
params = [{ name = "to", type = "string" }, { name = "amount", type = "integer" }, { name = "note", type = "string", optional = true }]

[method."bank/balance"]

[role.teller]
description = "Moves money."

[rule.transfers]
roles = ["teller"]
allow = ["bank/transfer"]
when.params.amount = { max = 5000 }

[rule.balances]
everyone = true
allow = ["bank/balance"]

[agent."till"]
roles = ["teller"]
"#;

const CASES: &str = r#"[caller.tom]
roles = ["teller"]

[[case]]
name = "within the limit"
caller = "tom"
method = "bank/transfer"
params = ["alice", 5000]
expect = "allow"
rule = "transfers"

[[case]]
name = "over the limit"
caller = "tom"
method = "bank/transfer"
params = { to = "alice", amount = 5001 }
expect = "deny"
"#;

fn shell() -> Shell {
    let shell = Shell::new();
    shell.write("policies/bank.toml", RULES);
    shell.write("policies/bank.test.toml", CASES);
    shell
}

#[track_caller]
fn says(ran: &Ran, code: i32, words: &[&str]) {
    assert_eq!(ran.code, code, "{ran:?}");
    for word in words {
        assert!(ran.stdout.contains(word), "no `{word}` in {ran:?}");
    }
}

#[test]
fn expected_decisions_are_put_to_the_policies() {
    let shell = shell();
    let summary = "2 cases, 0 failed; 1 of 2 rules exercised";
    says(&shell.run("policy test"), 0, &[summary, "not exercised by any case: `balances` (bank.toml:14)"]);
    says(&shell.run("policy test policies --require-coverage"), 12, &[summary]);
    let tested = shell.run("policy test --json --require-coverage");
    assert_eq!((tested.code, &tested.json()["ok"], &tested.json()["cases"]), (12, &json!(false), &json!(2)));

    // A limit that somebody raised.
    shell.write("policies/bank.toml", &RULES.replace("max = 5000", "max = 9000"));
    let failed = shell.run("policy test");
    let question = "tom (teller) calls bank/transfer {\"to\":\"alice\",\"amount\":5001}";
    says(
        &failed,
        12,
        &[
            "FAIL over the limit (bank.test.toml:12)",
            question,
            "\n- deny\n+ allow: allowed by `transfers` (bank.toml:9)",
        ],
    );
    let tested = shell.run("policy test --json").json();
    assert_eq!((&tested["ok"], &tested["failures"][0]["name"]), (&json!(false), &json!("over the limit")));

    shell.write("policies/bank.test.toml", &CASES.replace("\"tom\"", "\"tim\""));
    shell.run("policy test").fails(11, &["bank.test.toml:6", "tim"]);
    shell.write("policies/bank.toml", &RULES.replace("allow = [", "alow = ["));
    shell.run("policy test").fails(11, &["bank.toml:11", "alow"]);
    shell.run("policy test nowhere").fails(30, &["nowhere"]);
}

#[test]
fn folder_without_cases_or_without_policies_fails() {
    let shell = Shell::new();
    shell.write("policies/bank.toml", RULES);
    shell.run("policy test").fails(12, &["there is no case in `policies`", "*.test.toml"]);
    shell.run("policy test --require-coverage").fails(12, &["there is no case"]);

    shell.write("tables/bank.test.toml", CASES);
    let ran = shell.run("policy check tables");
    says(&ran, 11, &["tables: expected decisions, but no policy", "everything is denied"]);
    let ran = shell.run("policy check tables --json");
    assert_eq!((ran.code, &ran.json()["ok"]), (11, &json!(false)));
    shell.write("tables/bank.toml", RULES);
    shell.run("policy check tables").ok();
}

#[test]
fn every_command_gives_scripts_the_findings_one_by_one() {
    let shell = shell();
    shell.write("policies/bank.toml", &RULES.replace("allow = [", "alow = ["));
    for command in ["test", "matrix", "who-can bank/transfer", "explain --agent tom --method bank/transfer"] {
        let ran = shell.run(&format!("policy {command} --json"));
        assert_eq!(ran.code, 11, "{ran:?}");
        let error: Value = serde_json::from_str(&ran.stderr).unwrap();
        let error = &error["error"];
        assert_eq!(error["message"], "`policies` cannot be used", "{command}");
        let first = &error["findings"][0];
        assert_eq!((&first["file"], &first["severity"]), (&json!("bank.toml"), &json!("error")), "{command}: {error}");
        assert!(first["line"].as_u64().unwrap() > 0 && first["message"].is_string(), "{command}: {error}");
    }
    shell.write("policies/bank.toml", RULES);
    shell.write("policies/bank.test.toml", "[[case]]\ncaller = \"nobody\"\n");
    let ran = shell.run("policy test --json");
    let error: Value = serde_json::from_str(&ran.stderr).unwrap();
    assert_eq!(error["error"]["findings"][0]["line"], 2, "{error}");
}

#[test]
fn reviewers_see_who_can_call_what() {
    let shell = shell();
    says(&shell.run("policy matrix"), 0, &["anyone  role teller  agent till", "\nbank/balance     yes "]);
    let by_roles = shell.run("policy matrix --by roles --json").ok().json();
    assert_eq!(by_roles["callers"], json!(["anyone", { "role": "teller" }]));
    assert_eq!(by_roles["rows"][1]["cells"].as_array().unwrap().len(), 2);
    assert_eq!(by_roles["rows"][1]["cells"][1]["access"], "conditional");
    let by_agents = shell.run("policy matrix --by agents --json").ok().json();
    assert_eq!(by_agents["callers"], json!(["anyone", { "agent": "till" }]));

    says(&shell.run("policy matrix --html matrix.html"), 0, &["matrix.html"]);
    let page = shell.read("matrix.html");
    assert!(page.starts_with("<!doctype html>") && page.contains("bank/transfer"), "{page}");
    says(&shell.run("policy matrix --html no/such/folder.html"), 30, &[]);

    says(
        &shell.run("policy who-can bank/transfer"),
        0,
        &["conditional  role teller\n    allow by `transfers` (bank.toml:9) if `amount` is at most 5000\n"],
    );
    let who = shell.run("policy who-can bank/balance --json").ok().json();
    assert_eq!((&who["callers"][0]["callers"], &who["callers"][0]["access"]), (&json!("anyone"), &json!("allowed")));
    shell.run("policy who-can bank/tranfer").fails(30, &["bank/tranfer", "`bank/transfer`"]);

    says(&shell.run("policy can till"), 0, &["allowed      bank/balance", "conditional  bank/transfer"]);
    let other = shell.run("policy can other").ok();
    assert!(other.stderr.contains("no file names agent other") && !other.stdout.contains("transfer"), "{other:?}");
    let subject = shell.run("policy can --subject alice@example.com").ok();
    assert!(subject.stdout.contains("bank/balance"), "a subject need not be a name: {subject:?}");
    let namesake = shell.run("policy can --subject till").ok();
    assert!(
        namesake.stderr.contains("no file names subject till") && !namesake.stdout.contains("transfer"),
        "{namesake:?}"
    );
    let role = shell.run("policy can --role teller --dir policies --json").ok().json();
    assert_eq!(role["methods"].as_array().unwrap().len(), 5, "{role}");
    shell.run("policy can --role tellr").fails(30, &["tellr", "role teller"]);
    shell.run("policy can").fails(2, &["AGENT"]);
    shell.run("policy can till --role teller").fails(2, &["--role"]);
}

/// A `*` also grants `rpc.explain`, whether or not a file mentions it.
#[test]
fn tools_know_the_methods_that_every_service_has() {
    let shell = Shell::new();
    shell.write("policies/a.toml", "[role.root]\nallow = [\"*\"]\n[role.asker]\nallow = [\"rpc.can\"]\n");
    says(&shell.run("policy check"), 0, &[", 0 methods, and 8 of every service"]);
    let matrix = "method           anyone  role asker  role root\nrpc.approval     -       -           yes\n\
                  rpc.approvals    -       -           yes\nrpc.approve      -       -           yes\n\
                  rpc.can          -       yes         yes\nrpc.discover     yes     yes         yes\n\
                  rpc.explain      -       -           yes\nrpc.task         yes     yes         yes\n\
                  rpc.task.cancel  yes     yes         yes\n";
    says(&shell.run("policy matrix"), 0, &[matrix]);
    says(&shell.run("policy who-can rpc.explain"), 0, &["allowed      role root"]);
    shell.write(
        "new/a.toml",
        "[role.root]\nallow = [\"*\"]\ndeny = [\"rpc.explain\"]\n[role.asker]\nallow = [\"rpc.*\"]\n",
    );
    let changes = [
        "- rpc.explain role root: allowed -> denied",
        "+ rpc.explain role asker: denied -> conditional",
        "now deny by `role.root.deny` (a.toml:3) if the caller has the role `root`",
    ];
    says(&shell.run("policy diff policies new"), 0, &changes);
}

/// What a service with these policies would have recorded.
fn record(shell: &Shell, policies: &str, amounts: &[i64]) -> String {
    let (set, _) = PolicySet::load(&shell.path(policies), &Methods::from_files()).unwrap();
    let caller = Caller::new(Name::new("tom").unwrap(), ["teller".to_owned()]);
    let mut lines = String::new();
    for amount in amounts {
        let params = serde_json::value::to_raw_value(&json!({ "to": "alice", "amount": amount })).unwrap();
        let now_ms = 1_767_614_400_000;
        let question = Question { caller: &caller, method: "bank/transfer", params: Some(&params), now_ms };
        let record = DecisionRecord::new(&set, &question, &set.decide(&question), None);
        lines.push_str(&String::from_utf8(Chain::new("s1").line(Kind::Decision, &record).unwrap()).unwrap());
    }
    lines
}

#[test]
fn diff_says_what_changes_and_which_recorded_calls_come_out_differently() {
    let shell = shell();
    shell.write("new/bank.toml", &RULES.replace("max = 5000", "max = 1000"));
    shell.write("decisions.jsonl", &record(&shell, "policies", &[500, 2_000, 9_000]));

    let words = ["bank/transfer role teller: conditional, differently", "`transfers` (allow) limit lowered: "];
    says(&shell.run("policy diff policies new"), 0, &words);
    says(&shell.run("policy diff policies new --exit-code"), 13, &words);
    says(&shell.run("policy diff policies policies --exit-code"), 0, &["nobody can do more or less than before"]);

    // A rule that the matrix describes in the same words as before.
    shell.write("others/bank.toml", &RULES.replace("max = 5000 }", "max = 5000 }\ndelegated = \"also\""));
    let other = shell.run("policy diff policies others --exit-code");
    says(&other, 13, &["+ bank/transfer role teller", "`transfers` (allow) is now for calls on behalf of others, too"]);
    shell.write("others/bank.toml", &RULES.replace("max = 5000 }", "max = 5000 }\nmode = \"shadow\""));
    shell.write("others2/bank.toml", &RULES.replace("max = 5000 }", "max = 6000 }\nmode = \"shadow\""));
    let other = shell.run("policy diff others others2 --exit-code");
    says(&other, 13, &["1 rule changed in ways that this list does not show:\n    `transfers`: conditions"]);
    assert!(!other.stdout.contains("nobody can"), "{other:?}");

    let replayed = shell.run("policy diff policies new --replay decisions.jsonl");
    let line = "line 2: tom bank/transfer\n  - allow (allowed_by) by `transfers`\n  + deny: no rule allows it\n";
    says(&replayed, 0, &[words[0], line, "3 calls: 1 would come out differently, 0 cannot be told, 0 unreadable"]);
    assert!(!replayed.stdout.contains("line 1:") && !replayed.stdout.contains("line 3:"), "{replayed:?}");
    let replayed = shell.run("policy diff policies new --replay decisions.jsonl --exit-code --json");
    assert_eq!((replayed.code, &replayed.json()["same"]), (13, &json!(false)));
    assert_eq!(replayed.json()["replay"]["different"][0]["line"], 2);

    // With a recording, the exit code is about the calls that were made.
    shell.write("decisions.jsonl", &record(&shell, "policies", &[500, 9_000]));
    says(&shell.run("policy diff policies new --replay decisions.jsonl --exit-code"), 0, &["2 calls: 0 would"]);
    // One without calls says nothing about the policies.
    shell.write("decisions.jsonl", "\n");
    says(&shell.run("policy diff policies new --replay decisions.jsonl --exit-code"), 13, &["0 calls: 0 would"]);
    says(&shell.run("policy diff policies policies --replay decisions.jsonl --exit-code"), 0, &["0 calls: 0 would"]);
    shell.write("decisions.jsonl", "{\"at_ms\":");
    says(&shell.run("policy diff policies new --replay decisions.jsonl --exit-code"), 13, &["line 1: not a recorded"]);
    shell.run("policy diff policies new --replay nothing.jsonl").fails(30, &["nothing.jsonl"]);
    shell.run("policy diff nowhere new").fails(30, &["nowhere"]);
    shell.write("new/bank.toml", "[role.x]\nalow = []\n");
    shell.run("policy diff policies new").fails(11, &["bank.toml:2"]);
}

/// A busy service records gigabytes.
#[test]
#[cfg(target_os = "linux")]
fn a_recording_larger_than_memory_is_replayed() {
    let shell = shell();
    let calls = record(&shell, "policies", &[500, 2_000, 9_000]);
    shell.write("new/bank.toml", &RULES.replace("max = 5000", "max = 1000"));
    shell.write("decisions.jsonl", &calls);
    let file = std::fs::OpenOptions::new().append(true).open(shell.path("decisions.jsonl")).unwrap();
    // One line of a GiB: a sparse file, which takes no room on disk.
    file.set_len((calls.len() as u64) + (1 << 30)).unwrap();
    std::io::Write::write_all(&mut &file, format!("\n{calls}").as_bytes()).unwrap();
    let line = ["policy", "diff", "policies", "new", "--replay", "decisions.jsonl"];
    let ran = shell.command_after("ulimit -v 1000000;", &line).output().unwrap();
    let said = String::from_utf8(ran.stdout).unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    for words in [
        "line 2: tom bank/transfer",
        "line 6: tom bank/transfer",
        "line 4: not a recorded decision: longer than 16384 bytes",
        "6 calls: 2 would come out differently, 0 cannot be told, 1 unreadable",
    ] {
        assert!(said.contains(words), "no `{words}` in {said}");
    }
}

#[test]
fn a_recording_may_come_through_a_pipe_and_what_is_listed_of_it_is_bounded() {
    let shell = shell();
    shell.write("new/bank.toml", &RULES.replace("max = 5000", "max = 1000"));
    let calls = record(&shell, "policies", &[2_000]).repeat(1_200);
    let line = ["policy", "diff", "policies", "new", "--replay", "/dev/stdin", "--exit-code"];
    let ran = shell.run_with_stdin(&line, calls.as_bytes());
    says(&ran, 13, &["line 1000: tom", "200 more lines are not listed\n1200 calls: 1200 would come out differently"]);
    assert!(!ran.stdout.contains("line 1001:"), "{}", ran.stdout.len());
    let ran = shell.run_with_stdin(&[&line[..], &["--json"]].concat(), calls.as_bytes());
    let replay = &ran.json()["replay"];
    assert_eq!(replay["different"].as_array().unwrap().len(), 1_000);
    assert_eq!(replay["totals"], json!({ "different": 1_200, "waiting": 0, "unknown": 0, "unreadable": 0 }));
    // Invalid text is reported as such, and not read as something else.
    let (before, after) = calls.lines().next().unwrap().split_once("tom").unwrap();
    let broken = [before.as_bytes(), b"\xff", after.as_bytes(), b"\n", calls.as_bytes()].concat();
    says(&shell.run_with_stdin(&line, &broken), 13, &["line 1: not a recorded decision: invalid unicode"]);
    shell.run("policy diff policies new --replay policies").fails(30, &["`policies`: Is a directory"]);
}

#[test]
fn method_that_no_file_declares_is_replayed_as_the_service_had_it() {
    let shell = Shell::new();
    shell.write("policies/a.toml", "[role.teller]\nallow = [\"*\"]\n");
    let methods = Methods::from_files().with(sealwire::MethodName::new("x/y").unwrap());
    let (set, _) = PolicySet::load(&shell.path("policies"), &methods).unwrap();
    let caller = Caller::new(Name::new("tom").unwrap(), ["teller".to_owned()]);
    let question = Question { caller: &caller, method: "x/y", params: None, now_ms: 1 };
    let record = DecisionRecord::new(&set, &question, &set.decide(&question), None);
    shell
        .write("decisions.jsonl", &String::from_utf8(Chain::new("s1").line(Kind::Decision, &record).unwrap()).unwrap());
    let replayed = shell.run("policy diff policies policies --replay decisions.jsonl --exit-code");
    says(&replayed, 0, &["1 calls: 0 would come out differently, 0 cannot be told"]);
}

#[test]
fn files_are_laid_out_in_one_way() {
    let shell = shell();
    says(&shell.run("policy fmt --check"), 0, &["2 files, 0 would be laid out, 0 failed"]);
    let untidy = RULES.replace("[\"teller\"]", "[ \"teller\", ]");
    shell.write("policies/bank.toml", &untidy);
    shell.write("policies/more/x.cedar", "permit(principal,action,resource)when{context.delegated};");
    shell.write("policies/.hidden.toml", "a=1");
    shell.write("policies/README.md", "a=1");
    shell.set_mode("policies/bank.toml", 0o640);
    says(&shell.run("policy fmt --check"), 13, &["bank.toml: would be laid out", "more/x.cedar: would be"]);
    assert_eq!(shell.read("policies/bank.toml"), untidy, "--check changes nothing");

    let outcome = shell.run("policy fmt --json").ok().json();
    assert_eq!(outcome, json!({ "files": 3, "changed": ["bank.toml", "more/x.cedar"], "failed": [] }));
    assert_eq!(shell.read("policies/bank.toml"), RULES);
    assert_eq!(shell.mode("policies/bank.toml"), 0o640);
    assert_eq!((shell.read("policies/.hidden.toml"), shell.read("policies/README.md")), ("a=1".into(), "a=1".into()));
    assert_eq!(std::fs::read_dir(shell.path("policies")).unwrap().count(), 5, "no other file is left behind");
    says(&shell.run("policy fmt"), 0, &["3 files, 0 laid out, 0 failed"]);

    shell.write("policies/bank.toml", "[role");
    shell.write("policies/more/x.cedar", "permit(principal,action,resource)when{context.delegated};");
    says(&shell.run("policy fmt"), 11, &["bank.toml: cannot be laid out", "more/x.cedar: laid out", "1 failed"]);
    assert_eq!(shell.read("policies/bank.toml"), "[role");

    // A service that runs as another user can still read the files that root has formatted.
    use std::os::unix::fs::{MetadataExt as _, chown};
    shell.write("policies/bank.toml", &untidy);
    if chown(shell.path("policies/bank.toml"), Some(12_345), Some(54_321)).is_ok() {
        shell.run("policy fmt").ok();
        let metadata = std::fs::metadata(shell.path("policies/bank.toml")).unwrap();
        assert_eq!((metadata.uid(), metadata.gid(), metadata.mode() & 0o777), (12_345, 54_321, 0o640));
    }

    // Unreadable lines are left out.
    std::fs::write(shell.path("policies/bank.toml"), b"# \xff\n").unwrap();
    std::os::unix::fs::symlink("nowhere", shell.path("policies/lost.toml")).unwrap();
    shell.write("policies/more/x.cedar", "permit(principal,action,resource)when{context.delegated};");
    let words = ["bank.toml: stream did not contain valid UTF-8", "lost.toml: No such file", "more/x.cedar: laid out"];
    says(&shell.run("policy fmt"), 11, &words);
    let outcome = shell.run("policy fmt --json");
    assert_eq!((outcome.code, outcome.json()["failed"].as_array().unwrap().len()), (11, 2));
}

/// Like output piped to `head`, which ends first: a build must not pass because of that.
#[test]
fn a_wrong_policy_ends_with_its_code_whether_anybody_reads_it_or_not() {
    let shell = shell();
    shell.write("wide/bank.toml", &RULES.replace("max = 5000", "max = 9000"));
    shell.write("wide/bank.test.toml", CASES);
    shell.write("wrong/bank.toml", "[role");
    shell.write("untidy/bank.toml", &RULES.replace("[\"teller\"]", "[ \"teller\", ]"));
    for (line, code) in [
        ("policy test wide", 12),
        ("policy check wrong", 11),
        ("policy fmt --check untidy", 13),
        ("policy diff policies wide --exit-code", 13),
        ("policy explain --agent tom --role teller --method bank/transfer --params [\"a\",9000]", 10),
    ] {
        for json in ["", " --json"] {
            let line = format!("{line}{json}");
            let mut child = shell.command(&line.split_whitespace().collect::<Vec<_>>()).spawn().unwrap();
            drop(child.stdout.take());
            let ended = child.wait_with_output().unwrap();
            let said = String::from_utf8_lossy(&ended.stderr);
            assert!(ended.status.code() == Some(code) && !said.contains("panicked"), "{line}: {ended:?}");
        }
    }
}

#[test]
fn editors_get_the_schemas() {
    let shell = Shell::new();
    for (command, member) in [("policy schema", "rule"), ("policy schema --tests", "case")] {
        let schema: Value = serde_json::from_str(&shell.run(command).ok().stdout).unwrap();
        assert!(schema["properties"][member].is_object(), "{command}: {schema}");
        assert_eq!(shell.run(&format!("{command} --json")).ok().json(), schema);
    }
}

#[test]
fn reviewers_path_is_one_script() {
    let shell = Shell::new();
    let root = sealwire_testkit::root();
    for entry in std::fs::read_dir(root.join("policies")).unwrap() {
        let path = entry.unwrap().path();
        let (name, text) = (path.file_name().unwrap().to_str().unwrap(), std::fs::read_to_string(&path).unwrap());
        shell.write(&format!("in-use/{name}"), &text);
        shell.write(&format!("proposed/{name}"), &text);
    }
    shell.write("decisions.jsonl", &record(&shell, "in-use", &[1_000, 4_000, 200_000]));
    let review = || {
        let mut script = Command::new(root.join("docs/review.sh"));
        script.args(["in-use", "proposed", "decisions.jsonl"]).current_dir(shell.path(""));
        let output = script.env("SEALWIRE", env!("CARGO_BIN_EXE_sealwire")).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Ran { code: output.status.code().unwrap(), stdout: text(output.stdout), stderr: text(output.stderr) }
    };
    let steps = ["== check", "== fmt", "== test", "== matrix", "== diff", "== replay"];
    says(&review(), 0, &steps);
    says(&review(), 0, &["nobody can do more or less than before", "3 calls: 0 would come out differently"]);
    assert!(shell.read("matrix.html").contains("bank/transfer"));

    // A lower limit for pocket money: first its own expectations are out of date, then a recorded call would be denied.
    let lower = |name: &str, old: &str, new: &str| {
        let text = shell.read(&format!("proposed/{name}"));
        assert!(text.contains(old), "{text}");
        shell.write(&format!("proposed/{name}"), &text.replace(old, new));
    };
    lower("bank.toml", "max = 50_00", "max = 20_00");
    let ran = review();
    says(&ran, 12, &["FAIL 50.00 at night", "1 failed"]);
    assert!(!ran.stdout.contains("== matrix"), "{ran:?}");
    lower("bank.test.toml", "amount = 50_00 }", "amount = 20_00 }");
    lower("bank.toml", "max = 1_000_00", "max = 30_00");
    lower("bank.test.toml", "amount = 1_000_00", "amount = 30_00");
    lower("bank.test.toml", "amount = 500_00", "amount = 15_00");
    lower("bank.toml", "min = 500_00", "min = 15_00");
    let ran = review();
    says(&ran, 13, &steps);
    says(
        &ran,
        13,
        &["`small-transfers` (allow) limit lowered: ", "line 2: tom bank/transfer", "1 would come out differently"],
    );

    lower("bank.toml", "[rule.small-transfers]", "[rule.small-transfers]\nallows = 1");
    says(&review(), 11, &["bank.toml:10: error", "allows"]);
}

/// A service starts without them, and denies everything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn policies_that_cannot_be_read_are_no_warning_in_the_log() {
    let shell = Shell::new();
    shell.run("keys new-token-key https://dev.example").ok();
    shell.run("keys new-agent tom --service dev/demo=demo.ring.json").ok();
    let config = "environment = \"dev\"\nservice = \"demo\"\n[nats]\nurls = [\"nats://127.0.0.1:1\"]\n[keys]\n\
                  ring = \"demo.ring.json\"\n[[tokens.issuer]]\nissuer = \"https://dev.example\"\njwks = \"jwks.json\"\n\
                  [policy]\nfolder = \"nowhere\"\n[replay]\nskew_s = 0\n";
    shell.write("demo.toml", config);
    let mut service = spawn(&shell, &["serve", "demo", "--config", "demo.toml"]);
    let mut log = heard(service.stderr.take().unwrap());
    says_by_and_by(&mut log, "nowhere` cannot be read").await;
    let log = log.borrow().clone();
    let line = log.lines().find(|line| line.contains("nowhere` cannot be read")).unwrap();
    assert!(line.contains("ERROR sealwire::policy: policy finding=error: ") && !line.contains("warn"), "{line}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn decisions_of_a_service_are_recorded_and_replayed() {
    let server = NatsServer::start().await;
    let (shell, url) = (shell(), server.url());
    shell.run("keys new-token-key https://dev.example").ok();
    shell.run("keys new-service dev/demo").ok();
    shell.run(&format!("keys new-agent tom --alg hs256 --service dev/demo=demo.ring.json --url {url}")).ok();
    let bound = "--subject tom --cnf-kid tom.k1 --out tom.jwt --role teller";
    shell.run(&format!("token issue --key token-key.json --audience dev/demo {bound}")).ok();
    let config = format!(
        "environment = \"dev\"\nservice = \"demo\"\n[nats]\nurls = [\"{url}\"]\n[keys]\nring = \"demo.ring.json\"\n\
         service_key = \"demo.service-key.json\"\n[[tokens.issuer]]\nissuer = \"https://dev.example\"\n\
         jwks = \"jwks.json\"\n[policy]\nfolder = \"policies\"\n[replay]\nskew_s = 0\n"
    );
    shell.write("demo.toml", &config);
    let serve = ["serve", "demo", "--config", "demo.toml", "--record", "records"];

    let mut service = shell.command(&serve).spawn().unwrap();
    let mut stdout = BufReader::new(service.stdout.take().unwrap());
    let mut ready = String::new();
    stdout.read_line(&mut ready).unwrap();
    if !ready.contains("takes messages") {
        let mut said = String::new();
        service.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        panic!("{ready}{said}");
    }
    let call = |params: &str| shell.run_args(&["call", "--creds", "tom.creds.json", "demo", "bank/transfer", params]);
    call(r#"{"to":"alice","amount":2000}"#).ok();
    assert_eq!(call(r#"["alice",9000]"#).code, 10);
    assert_eq!(call(r#"{"to":"alice","amount":"1"}"#).code, 21);
    let killed = Command::new("kill").args(["-TERM", &service.id().to_string()]).status().unwrap();
    assert!(killed.success() && service.wait().unwrap().success());

    // It takes messages, even if nobody reads the line that says so.
    let mut unread = shell.command(&["serve", "demo", "--config", "demo.toml", "--state-file", "state.json"]);
    let mut unread = unread.spawn().unwrap();
    drop((unread.stdout.take(), unread.stderr.take()));
    let began = std::time::Instant::now();
    while !std::fs::read_to_string(shell.path("state.json")).is_ok_and(|state| state.contains("ready")) {
        assert!(began.elapsed() < std::time::Duration::from_secs(60));
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    call(r#"{"to":"alice","amount":2000}"#).ok();
    let killed = Command::new("kill").args(["-TERM", &unread.id().to_string()]).status().unwrap();
    assert!(killed.success() && unread.wait().unwrap().success());

    assert_eq!((shell.mode("records"), shell.files_in("records").len()), (0o700, 2), "one file, and the salt");
    let file = shell.files_in("records").into_iter().find(|name| name.ends_with(".jsonl")).unwrap();
    let file = format!("records/{file}");
    assert_eq!(shell.mode(&file), 0o600);
    let recorded = shell.read(&file);
    let records: Vec<Value> = recorded.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let kinds: Vec<_> = records.iter().map(|record| record["kind"].as_str().unwrap()).collect();
    let pairs = ["decision", "outcome"].repeat(3);
    assert_eq!(kinds, [&["start"], &pairs[..], &["stop"]].concat(), "{recorded}");
    let records: Vec<Value> = records.into_iter().filter(|record| record["kind"] == "decision").collect();
    let verdicts: Vec<_> = records.iter().map(|record| (&record["verdict"], &record["params"]["amount"])).collect();
    let expected = [(&json!("allow"), &json!(2000)), (&json!("deny"), &json!(9000)), (&json!("deny"), &Value::Null)];
    assert_eq!(verdicts, expected, "{recorded}");
    shell.never_said(shell.read("tom.jwt").trim());
    assert!(!recorded.contains(shell.read("tom.jwt").trim()), "no token in {recorded}");

    let replay = |new: &str| shell.run(&format!("policy diff policies {new} --replay {file} --exit-code"));
    says(&replay("policies"), 0, &["3 calls: 0 would"]);
    shell.write("new/bank.toml", &RULES.replace("max = 5000", "max = 1000"));
    says(&replay("new"), 13, &["line 2: tom bank/transfer", "3 calls: 1 would come out differently"]);
}
