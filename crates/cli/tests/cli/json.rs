//! `--json`: every command prints its result as JSON on stdout, and every error has one shape, on stderr.

use std::collections::BTreeSet;

use crate::shell::{Ran, Shell};
use serde_json::{Value, json};

/// Every command without subcommands, taken from the help.
pub(crate) fn leaves(shell: &Shell, above: &str, found: &mut BTreeSet<String>) {
    let help = shell.run(&format!("{above} --help")).ok().stdout;
    let below = help.split_once("\nCommands:\n").map_or("", |(_, rest)| rest.split("\n\n").next().unwrap());
    // Continuation lines of a description are indented further.
    let names =
        below.lines().filter_map(|line| line.strip_prefix("  ")?.split(' ').next().filter(|name| !name.is_empty()));
    let names: Vec<&str> = names.filter(|name| *name != "help").collect();
    if names.is_empty() || ["dev", "revocations", "serve"].contains(&above) {
        found.insert(above.to_owned());
    }
    names.iter().for_each(|name| leaves(shell, format!("{above} {name}").trim(), found));
}

/// Commands that need a broker or a service, or keep running: where their JSON is tested.
const ELSEWHERE: [(&str, &str); 52] = [
    ("call", "call.rs"),
    ("notify", "call.rs"),
    ("batch", "call.rs"),
    ("send", "call.rs"),
    ("watch", "streams.rs"),
    ("bench", "bench.rs"),
    ("serve", "backends"),
    ("serve demo", "policy_tools.rs"),
    ("serve stdio", "backends"),
    ("serve mcp", "backends"),
    ("serve http", "backends"),
    ("serve ws", "backends"),
    ("policy skeleton", "policy_learn.rs"),
    ("policy learn", "policy_learn.rs"),
    ("policy drift", "broker_gate"),
    ("policy push", "policy_push.rs"),
    ("policy status", "policy_push.rs"),
    ("policy compare", "policy_shadow.rs"),
    ("discover", "gateway.rs"),
    ("approvals list", "approvals.rs"),
    ("approvals show", "approvals.rs"),
    ("approvals approve", "approvals.rs"),
    ("approvals deny", "approvals.rs"),
    ("approvals watch", "approvals.rs"),
    ("task get", "tasks.rs"),
    ("task wait", "tasks.rs"),
    ("task cancel", "tasks.rs"),
    ("gateway", "gateway_http.rs"),
    ("authd", "broker_gate"),
    ("exporter", "telemetry"),
    ("top", "telemetry"),
    ("tools list", "backends"),
    ("tools diff", "backends"),
    ("tools approve", "backends"),
    ("serve exec", "backends"),
    ("revoke", "revocation.rs"),
    ("restore", "revocation.rs"),
    ("revocations", "revocation.rs"),
    ("revocations init", "revocation.rs"),
    ("revocations sign", "revocation.rs"),
    ("revocations renew", "revocation.rs"),
    ("records search", "records.rs"),
    ("records show", "records.rs"),
    ("records check", "records.rs"),
    ("records report", "records.rs"),
    ("ping", "cluster_setup"),
    ("setup push", "cluster_setup"),
    ("setup user", "cluster_setup"),
    ("nats-server", "../readme.rs"),
    ("dev", "dev.rs"),
    ("dev add-agent", "dev.rs"),
    ("demo", "dev.rs"),
];
/// Commands that print a program or protocol messages, not a result.
const NO_RESULT: [(&str, &str); 3] = [
    ("completions", "a script for a shell"),
    ("mcp", "the messages of a protocol, to its client"),
    ("pipe", "the same"),
];

const POLICY: &str =
    "[method.\"math/add\"]\nparams = [{ name = \"a\", type = \"integer\" }]\n[role.calc]\nallow = [\"math/add\"]\n";
const CASES: &str = "[[case]]\nname = \"may\"\ncaller = { agent = \"planner\", roles = [\"calc\"] }\nmethod = \"math/add\"\n\
    params = [1]\nexpect = \"allow\"\n";

/// Command lines, in an order in which each finds what it needs. Earlier ones print `KID`, `THUMBPRINT` and `TOKEN`.
const LINES: [&str; 37] = [
    "init hello --url nats://127.0.0.1:4222",
    "keys new-agent planner --service dev/math=math.ring.json",
    "keys new-operator op-1",
    "keys new-service dev/math",
    "keys pin planner.creds.json --service math --kid KID --x X",
    "keys new-token-key https://issuer.example",
    "keys grant planner.creds.json --service dev/bank=bank.ring.json",
    "keys request robot --environment dev --nkey",
    "keys enrol robot robot.request --thumbprint THUMBPRINT --service dev/math=math.ring.json --pin-from math.service-key.json",
    "keys accept robot.creds.json robot.enrolment.json",
    "keys rotate planner.creds.json --ring math.ring.json --ring bank.ring.json",
    "keys retire planner.k1 --ring math.ring.json",
    "keys revoke planner.k1 --ring math.ring.json",
    "keys list math.ring.json",
    "token issue --key token-key.json --subject planner --audience dev/math --role calc",
    "token inspect TOKEN",
    "token revoke --denylist deny.json --token TOKEN",
    "policy check",
    "policy test",
    "policy explain --agent planner --role calc --method math/add --params [1]",
    "policy matrix",
    "policy who-can math/add",
    "policy approvals",
    "policy can --role calc",
    "policy diff policies policies",
    "policy compile --nats=scoped --config hello/sealwire.toml",
    "policy fmt",
    "policy schema",
    "config schema",
    "config reference",
    "man pages",
    "setup cluster --out set-up",
    "setup operator --out other-set-up",
    "setup service ledger --out set-up",
    "setup agent robot.request --thumbprint THUMBPRINT --out set-up",
    "setup remove-agent robot --out set-up",
    "setup relay --out set-up",
];

#[test]
fn every_command_prints_its_result_as_json_and_none_is_forgotten() {
    let shell = Shell::new();
    shell.write("policies/math.toml", POLICY);
    shell.write("policies/math.test.toml", CASES);
    let mut said = Vec::<(String, Value)>::new();
    for line in LINES {
        let member =
            |name: &str| said.iter().rev().find_map(|(_, said)| said[name].as_str()).unwrap_or_default().to_owned();
        let words = line.split_whitespace().map(|word| match word {
            "KID" | "X" | "THUMBPRINT" | "TOKEN" => member(&word.to_lowercase()),
            word => word.to_owned(),
        });
        let words: Vec<String> = words.chain(["--json".to_owned()]).collect();
        let ran = shell.run_args(&words.iter().map(String::as_str).collect::<Vec<_>>()).ok();
        for line in ran.stderr.lines() {
            let remark: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {ran:?}"));
            assert!(remark["warning"]["message"].is_string() || remark["level"].is_string(), "{ran:?}");
        }
        said.push((line.to_owned(), ran.json()));
    }
    let mut there = BTreeSet::new();
    leaves(&shell, "", &mut there);
    there.remove("");
    assert!(there.len() > 35, "{there:?}");
    let elsewhere = ELSEWHERE.iter().chain(&NO_RESULT).map(|(command, _)| *command);
    let told =
        |command: &str| LINES.iter().any(|line| line.starts_with(&format!("{command} "))) || LINES.contains(&command);
    for command in elsewhere.clone() {
        assert!(there.contains(command) && !told(command), "`{command}` stands where it should not");
    }
    for command in &there {
        assert!(told(command) || elsewhere.clone().any(|name| name == command), "`{command}` is nowhere above");
    }
}

/// An error is the last line of stderr, and nothing is on stdout.
#[track_caller]
fn error(ran: Ran, code: i32, kind: &str) -> Value {
    let error = ran.fails(code, &[]).error();
    assert_eq!((&error["exit"], &error["kind"]), (&json!(code), &json!(kind)), "{error}");
    assert!(error["message"].as_str().is_some_and(|message| !message.contains('\n')), "{error}");
    error
}

#[test]
fn errors_have_one_shape_whoever_finds_them() {
    let shell = Shell::new();
    let wrong = error(shell.run("keys list nowhere.json --json"), 30, "input");
    assert!(wrong["message"].as_str().unwrap().contains("nowhere.json"));
    // The command line itself.
    for line in ["keys lst ring.json --json", "call --json demo", "--json", "policy check --nonsense --json"] {
        let misused = error(shell.run(line), 2, "usage");
        assert!(misused["help"].as_str().unwrap().contains("--help"), "{misused}");
    }
    assert!(error(shell.run("call --json demo math/add"), 2, "usage")["message"].as_str().unwrap().contains("--creds"));
    let text = shell.run("keys lst").fails(2, &["unrecognized subcommand", "Usage"]);
    assert!(!text.stderr.contains("{\""), "{text:?}");
    assert!(shell.run("keys --help --json").ok().stdout.contains("Usage"));
    // The errors in files are included.
    shell.write("policies/a.toml", "[role.x]\nallw = []\n");
    let findings = error(shell.run("policy test --json"), 11, "policy_invalid");
    assert_eq!(findings["findings"][0]["file"], "a.toml", "{findings}");
}

#[test]
fn reasons_have_the_names_that_records_have() {
    let shell = Shell::new();
    let rule = "[rule.small]\neveryone = true\nallow = [\"math/add\"]\nwhen.params.a = { min = 0, max = 5 }\n";
    shell.write("policies/math.toml", &format!("{POLICY}{rule}"));
    let explain = |params: &str| {
        let ran = shell.run(&format!("policy explain --agent a --method math/add --params {params} --json"));
        (ran.code, ran.json())
    };
    let (code, said) = explain("{}");
    assert_eq!(code, 10);
    let decision = json!({ "verdict": "deny", "reason": "param_missing", "about": "a", "rule": null });
    assert_eq!(said["decision"], decision, "{said}");
    let rule = &said["principals"][0]["rules"][0];
    assert_eq!((&rule["outcome"], rule["why"].is_string()), (&json!("failed"), true), "{said}");
    let (_, said) = explain("[6]");
    assert_eq!(said["decision"], json!({ "verdict": "deny", "reason": "no_rule", "rule": null }), "{said}");
    assert!(said["principals"][0]["rules"].as_array().unwrap().iter().all(|rule| rule["outcome"] == "not"), "{said}");
}

#[test]
fn log_lines_are_json_where_all_else_is() {
    let shell = Shell::new();
    let logged = |args: &[&str]| {
        // An invalid filter is reported in the log.
        let output = shell.command(args).env("RUST_LOG", "sealwire=nonsense=").output().unwrap();
        String::from_utf8(output.stderr).unwrap()
    };
    let line: Value = serde_json::from_str(&logged(&["config", "schema", "--json"])).unwrap();
    assert_eq!(line["level"], "WARN", "{line}");
    assert!(logged(&["config", "schema", "--json", "--log-format", "text"]).contains(" WARN "));
    assert!(logged(&["config", "schema"]).contains(" WARN "));
    let line: Value = serde_json::from_str(&logged(&["config", "schema", "--log-format", "json"])).unwrap();
    assert_eq!(line["level"], "WARN", "{line}");
}
