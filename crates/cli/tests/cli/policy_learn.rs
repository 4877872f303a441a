//! `sealwire policy skeleton` and `sealwire policy learn`: their files can be loaded, and allow what they should and nothing else.

use sealwire::decide::Methods;
use sealwire::internal::record::{Chain, Kind};
use sealwire::{Caller, DecisionRecord, Name, PolicySet, Question};
use sealwire_testkit::python::python;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::shell::Shell;

const POLICY: &str = r#"
[method."bank/transfer"]
params = [
  { name = "to", type = "string" },
  { name = "amount", type = "integer" },
  { name = "note", type = "string", optional = true },
]

[method."bank/list"]

[role.teller]

[rule.blocked]
everyone = true
deny = ["bank/transfer"]
when.params.to = { glob = "blocked-*" }
"#;

/// The recording of a service with this policy.
struct Recording {
    set: PolicySet,
    lines: String,
}

impl Recording {
    fn new(policy: &str) -> Self {
        let (set, _) = PolicySet::from_texts([("a.toml", policy)], &Methods::from_files()).unwrap();
        Self { set, lines: String::new() }
    }

    fn call(&mut self, caller: &Caller, method: &str, params: &Value) {
        let params = RawValue::from_string(params.to_string()).unwrap();
        let question = Question { caller, method, params: Some(&params), now_ms: 1_790_000_000_000 };
        let record = DecisionRecord::new(&self.set, &question, &self.set.decide(&question), None);
        self.lines.push_str(&String::from_utf8(Chain::new("s1").line(Kind::Decision, &record).unwrap()).unwrap());
    }
}

fn caller(name: &str, roles: &[&str]) -> Caller {
    Caller::new(Name::new(name).unwrap(), roles.iter().map(|role| (*role).to_owned()))
}

/// Calls of two agents, one of them hostile.
fn recorded() -> String {
    let mut recording = Recording::new(POLICY);
    let (teller, mallory) = (caller("till", &["teller"]), caller("mallory", &["teller"]));
    for number in 0..12 {
        recording.call(&teller, "bank/transfer", &json!({ "to": format!("acct-{number}"), "amount": number * 100 }));
    }
    recording.call(&teller, "bank/transfer", &json!({ "to": "acct-1", "amount": 5, "note": "rent" }));
    recording.call(&teller, "bank/list", &json!([]));
    recording.call(&mallory, "bank/transfer", &json!({ "to": "blocked-1", "amount": 1 }));
    recording.call(&mallory, "bank/transfer", &json!({ "to": "x\"\n[rule.y]\u{202e}*", "amount": 1 }));
    recording.call(&mallory, "bank/transfer", &json!({ "to": "acct-1", "amount": "all" }));
    recording.call(&mallory, "bank/drop", &json!([]));
    recording.lines + "no record\n"
}

fn explain<'a>(method: &'a str, agent: &'a str, params: &'a str) -> Vec<&'a str> {
    vec!["policy", "explain", "--agent", agent, "--role", "teller", "--method", method, "--params", params]
}

#[test]
fn rules_are_learned_as_narrow_as_the_calls_and_what_is_forbidden_stays_so() {
    let shell = Shell::new();
    shell.write("policies/bank.toml", POLICY);
    shell.write("decisions.jsonl", &recorded());
    let ran = shell.run("policy learn decisions.jsonl --agent till").ok();
    let proposal = &ran.stdout;
    for line in [
        "agents = [\"till\"]",
        "allow = [\"bank/transfer\"]",
        "when.params.to = { glob = \"acct-*\" }",
        "when.params.amount = { min = 0, max = 1100 }",
        "when.params.note = { present = false }",
        "when.params.note = \"rent\"",
        "# Rests on 12 calls, 0 allowed when recorded; the first is decisions.jsonl:1.",
        "allow = [\"bank/list\"]",
        "# No parameters were recorded",
    ] {
        assert!(proposal.contains(line), "{line}\n{proposal}");
    }
    assert!(!proposal.contains("mallory"), "{proposal}");
    let told = &ran.stderr;
    assert!(told.contains("of 18 calls: 0 allowed as before, 14 become allowed, 4 remain denied"), "{told}");
    assert!(told.contains("bank/transfer of mallory: deny: forbidden by `blocked`"), "{told}");
    assert!(told.contains("1 lines are no recorded decisions"), "{told}");
    // Nothing has taken effect; moved into the policies, the proposal does what it says.
    let transfer = |agent, params| explain("bank/transfer", agent, params);
    shell.run_args(&transfer("till", r#"["acct-99", 1]"#)).fails_with(10, "deny");
    shell.write("policies/learned.toml", proposal);
    shell.run_args(&transfer("till", r#"["acct-99", 1]"#)).ok();
    shell.run_args(&explain("bank/list", "till", "[]")).ok();
    for denied in [r#"["acct-9", 1101]"#, r#"["other", 1]"#, r#"["acct-9", 1, "else"]"#, r#"["blocked-1", 1]"#] {
        shell.run_args(&transfer("till", denied)).fails_with(10, "deny");
    }
    shell.run_args(&transfer("mallory", r#"["acct-99", 1]"#)).fails_with(10, "deny");
    // Then there is nothing left to learn from these calls, and names do not collide.
    let again = shell.run("policy learn decisions.jsonl --agent till").ok();
    assert!(again.stdout.is_empty() && again.stderr.contains("nothing to propose"), "{again:?}");
    assert!(again.stderr.contains("14 allowed as before, 0 become allowed"), "{again:?}");
}

#[test]
#[cfg(target_os = "linux")]
fn no_half_proposal_is_left_where_it_cannot_be_written() {
    let shell = Shell::new();
    shell.write("policies/bank.toml", POLICY);
    shell.write("decisions.jsonl", &recorded());
    let line = ["policy", "learn", "decisions.jsonl", "--out", "proposal.toml"];
    // As on a disk that is full.
    let ran = shell.command_after("trap '' XFSZ; ulimit -f 0;", &line).output().unwrap();
    assert_eq!(ran.status.code(), Some(30), "{ran:?}");
    assert!(String::from_utf8_lossy(&ran.stderr).contains("`proposal.toml`: File too large"), "{ran:?}");
    assert!(!shell.path("proposal.toml").exists(), "it would be in the way of the next try");
    shell.run_args(&line).ok();
}

#[test]
fn recorded_parameters_are_never_more_than_values() {
    let shell = Shell::new();
    shell.write("policies/bank.toml", POLICY);
    shell.write("decisions.jsonl", &recorded());
    let proposal = shell.run("policy learn decisions.jsonl --agent mallory").ok().stdout;
    assert!(proposal.contains(r#"when.params.to = "x\"\n[rule.y]\u202E*""#), "{proposal}");
    let read: toml::Table = toml::from_str(&proposal).unwrap();
    assert_eq!(read["rule"].as_table().unwrap().len(), 1, "{proposal}");
    // A rule for a role also covers other holders of the role; their calls are reported separately.
    let ran = shell.run("policy learn decisions.jsonl --by role --agent till --method bank/list").ok();
    assert!(ran.stdout.contains("roles = [\"teller\"]"), "{ran:?}");
    // By the recorded decision.
    let none = shell.run("policy learn decisions.jsonl --only allowed").ok();
    assert!(none.stdout.is_empty() && none.stderr.contains("nothing to propose"), "{none:?}");
    let all = shell.run("policy learn decisions.jsonl --only denied --json").ok();
    let all: Value = serde_json::from_str(&all.stdout).unwrap();
    assert_eq!(
        (&all["rules"], &all["become_allowed"], &all["remain_denied"]),
        (&json!(4), &json!(15), &json!(3)),
        "{all}"
    );
}

#[test]
fn learned_rules_that_reach_further_or_cost_others_a_call_are_told() {
    let mut recording = Recording::new(POLICY);
    recording.call(&caller("till", &["teller"]), "bank/transfer", &json!({ "to": "a", "amount": 1 }));
    recording.call(&caller("mallory", &["teller"]), "bank/transfer", &json!({ "to": "a", "amount": 1 }));
    let shell = Shell::new();
    shell.write("policies/bank.toml", POLICY);
    shell.write("decisions.jsonl", &recording.lines);
    let ran = shell.run("policy learn decisions.jsonl --by role --agent till").ok();
    assert!(ran.stderr.contains("1 calls that no rule rests on would be allowed, too"), "{ran:?}");
    assert!(ran.stderr.contains("decisions.jsonl:2: bank/transfer of mallory would be allowed, too"), "{ran:?}");

    // A condition requires everybody to send exactly the declared parameters.
    let open =
        POLICY.split("[rule.blocked]").next().unwrap().to_owned() + "[agent.\"old\"]\nallow = [\"bank/transfer\"]\n";
    let mut recording = Recording::new(&open);
    recording.call(&caller("old", &[]), "bank/transfer", &json!({ "to": "a", "amount": 1, "more": 1 }));
    recording.call(&caller("till", &[]), "bank/transfer", &json!({ "to": "a", "amount": 1 }));
    shell.write("policies/bank.toml", &open);
    shell.write("decisions.jsonl", &recording.lines);
    let ran = shell.run("policy learn decisions.jsonl").ok();
    assert!(ran.stderr.contains("1 calls would no longer be allowed"), "{ran:?}");
}

#[test]
fn delegated_calls_and_methods_that_no_file_declares_are_learned() {
    let mut recording = Recording::new("[method.m]\nparams = [{ name = \"a b\", type = \"boolean\" }]\n[method.n]\n");
    let mut helper = caller("helper", &[]);
    (helper.delegated, helper.subject) = (true, "alice@example.com".to_owned());
    recording.call(&helper, "m", &json!({ "a b": true }));
    helper.subject = "*".to_owned();
    recording.call(&helper, "m", &json!({ "a b": true }));
    let shell = Shell::new();
    shell.write("policies/other.toml", "[method.other]\n");
    shell.write("decisions.jsonl", &recording.lines);
    let ran = shell.run("policy learn decisions.jsonl --out learned.toml").ok();
    assert!(ran.stderr.contains("1 become allowed, 1 remain denied"), "{ran:?}");
    assert!(ran.stderr.contains("1 calls are left out: they are for a subject with a `*`"), "{ran:?}");
    let proposal = shell.read("learned.toml");
    let expected = "params = [\n  { name = \"a b\", type = \"boolean\" },\n]\n";
    for line in [
        expected,
        "agents = [\"helper\"]\nsubjects = [\"alice@example.com\"]",
        "delegated = \"only\"",
        "when.params.\"a b\" = true",
    ] {
        assert!(proposal.contains(line), "{line}\n{proposal}");
    }
    shell.write("policies/learned.toml", &proposal);
    shell.run("policy check").ok();
}

#[test]
fn a_delegated_call_teaches_nothing_about_other_pairs() {
    let mut recording = Recording::new(POLICY);
    let params = json!({ "to": "a", "amount": 1 });
    for (agent, subject) in [("helper", "alice"), ("robot", "bob")] {
        let mut caller = caller(agent, &["teller"]);
        (caller.delegated, caller.subject) = (true, subject.to_owned());
        recording.call(&caller, "bank/transfer", &params);
    }
    let shell = Shell::new();
    shell.write("policies/bank.toml", POLICY);
    shell.write("decisions.jsonl", &recording.lines);
    let params = params.to_string();
    for by in ["agent", "role"] {
        let proposal = shell.run(&format!("policy learn decisions.jsonl --by {by}")).ok().stdout;
        for line in ["when.agent = \"helper\"", "when.subject = \"alice\"", "delegated = \"only\""] {
            assert!(proposal.contains(line), "{line}\n{proposal}");
        }
        shell.write("policies/learned.toml", &proposal);
        let ask = |agent, subject: Option<&'static str>| {
            let mut args = explain("bank/transfer", agent, &params);
            args.extend(subject.into_iter().flat_map(|subject| ["--subject", subject]));
            shell.run_args(&args)
        };
        ask("helper", Some("alice")).ok();
        ask("robot", Some("bob")).ok();
        for (agent, subject) in
            [("helper", "bob"), ("robot", "alice"), ("alice", "helper"), ("helper", "robot"), ("alice", "bob")]
        {
            ask(agent, Some(subject)).fails_with(10, "deny");
        }
        for agent in ["helper", "alice"] {
            ask(agent, None).fails_with(10, "deny");
        }
        std::fs::remove_file(shell.path("policies/learned.toml")).unwrap();
    }
}

#[test]
fn unlimited_parameters_are_named_and_optional_objects_are_asked_for() {
    let policy = r#"
[method.order]
params = [
  { name = "paths", type = "string[]" },
  { name = "needed", type = "object", optional = true, fields = [
    { name = "n", type = "number" },
    { name = "t", type = "string", optional = true },
  ] },
  { name = "open", type = "object", optional = true, fields = [{ name = "t", type = "string", optional = true }] },
]
"#;
    let mut recording = Recording::new(policy);
    recording.call(&caller("desk", &[]), "order", &json!({ "paths": ["x".repeat(129)] }));
    recording.call(&caller("till", &[]), "order", &json!({ "paths": ["a"], "needed": { "n": 1.5 } }));
    recording.call(&caller("shop", &[]), "order", &json!({ "paths": ["b"], "open": {} }));
    let shell = Shell::new();
    shell.write("policies/order.toml", policy);
    shell.write("decisions.jsonl", &recording.lines);
    let ran = shell.run("policy learn decisions.jsonl").ok();
    assert!(ran.stderr.contains("3 become allowed, 0 remain denied"), "{ran:?}");
    for line in [
        "when.params.paths = { max_size = 1 }\n# the values in `paths` were more than 8, or long: not limited\n",
        "when.params.needed.n = { present = true }\n",
        "when.params.needed.n = { present = false }\n",
        "# `open` was in no call, and rules cannot ask for that: not limited\n",
        "# `open` was in all calls, and rules cannot ask for that: not limited\n",
    ] {
        assert!(ran.stdout.contains(line), "{line}\n{ran:?}");
    }
    shell.write("policies/learned.toml", &ran.stdout);
    let order = |agent, params| {
        shell.run_args(&["policy", "explain", "--agent", agent, "--method", "order", "--params", params])
    };
    let (with, without) = (r#"{"paths": ["a"], "needed": {"n": 2}}"#, r#"{"paths": ["a"]}"#);
    order("till", with).ok();
    order("till", without).fails_with(10, "deny");
    order("till", r#"{"paths": ["a"], "needed": {"n": 2, "t": "x"}}"#).fails_with(10, "deny");
    order("desk", without).ok();
    order("desk", with).fails_with(10, "deny");
}

#[test]
fn calls_that_fit_no_declaration_and_rules_that_cannot_be_used_cost_nobody_else_theirs() {
    let method = |params: &str| format!("[method.m]\nparams = [{params}]\n[method.n]\n");
    let (old, new) = (r#"{ name = "a", type = "string" }"#, r#"{ name = "b", type = "integer" }"#);
    let mut lines = String::new();
    for (agent, params, sent) in [("till", old, json!({ "a": "x" })), ("mallory", new, json!({ "b": 1 }))] {
        let mut recording = Recording::new(&method(params));
        recording.call(&caller(agent, &[]), "m", &sent);
        recording.call(&caller(agent, &[]), "n", &json!([]));
        lines += &recording.lines;
    }
    // These parameters cannot be declared.
    let twice = lines.lines().next().unwrap().replace(r#""method":"m""#, r#""method":"bad""#);
    lines += &twice.replace(r#""a: string""#, r#""a: string","a: string""#);
    let shell = Shell::new();
    shell.write("policies/other.toml", "[method.n]\n");
    shell.write("decisions.jsonl", &lines);
    let ran = shell.run("policy learn decisions.jsonl").ok();
    assert!(ran.stderr.contains("1 calls are left out: they were recorded with other parameters"), "{ran:?}");
    assert!(ran.stderr.contains("1 calls are left out: their rule cannot be used"), "{ran:?}");
    let bad = "there is no rule for bad of the agent `till` (decisions.jsonl:5): ";
    assert!(ran.stderr.contains(bad), "{ran:?}");
    assert!(ran.stdout.contains("when.params.a = \"x\"") && !ran.stdout.contains("when.params.b"), "{ran:?}");
    assert_eq!(ran.stdout.matches("allow = [\"n\"]").count(), 2, "{ran:?}");
    shell.write("policies/learned.toml", &ran.stdout);
    shell.run("policy check").ok();
}

#[test]
fn recordings_and_places_that_cannot_be_used_are_told() {
    let shell = Shell::new();
    shell.write("policies/bank.toml", POLICY);
    shell.write("decisions.jsonl", &recorded());
    shell.run("policy learn nowhere.jsonl").fails(30, &["nowhere.jsonl"]);
    shell.run("policy learn decisions.jsonl --out policies/new.toml").fails(30, &["in force unread"]);
    shell.run("policy learn decisions.jsonl --out policies/../policies/new.toml").fails(30, &["in force unread"]);
    // A linked folder is read as well, wherever it is.
    std::os::unix::fs::symlink("../elsewhere", shell.path("policies/linked")).unwrap();
    std::os::unix::fs::symlink("elsewhere", shell.path("other")).unwrap();
    shell.write("elsewhere/deep/README.md", "");
    for place in ["policies/linked/new.toml", "elsewhere/new.toml", "elsewhere/deep/new.toml", "other/deep/new.toml"] {
        shell.run(&format!("policy learn decisions.jsonl --out {place}")).fails(30, &["in force unread"]);
        assert!(!shell.path(place).exists());
    }
    std::fs::remove_file(shell.path("policies/linked")).unwrap();
    shell.run("policy learn decisions.jsonl --out elsewhere/new.toml").ok();
    shell.write("there.toml", "");
    shell.run("policy learn decisions.jsonl --out there.toml").fails(30, &["nothing is overwritten"]);
    shell.set_mode("decisions.jsonl", 0o622);
    shell.run("policy learn decisions.jsonl").fails(30, &["chmod go-w"]);
    // Like every file that decides something: not where others can replace it, and not another user's.
    shell.write("open/decisions.jsonl", &recorded());
    shell.set_mode("open", 0o777);
    shell.run("policy learn open/decisions.jsonl").fails(30, &["can be written by others", "open`"]);
    if std::os::unix::fs::chown(shell.path("there.toml"), Some(12_345), None).is_ok() {
        shell.run("policy learn there.toml").fails(30, &["belongs to user 12345", "a copy of your own"]);
    }
    let told = shell.run_with_stdin(&["policy", "learn", "/dev/stdin"], recorded().as_bytes());
    told.fails(30, &["/dev/stdin", "no regular file"]);
    // More than a GiB is not read; this one takes no room.
    std::fs::File::create(shell.path("large")).unwrap().set_len((1 << 30) + 1).unwrap();
    shell.run("policy learn large").fails(30, &["more than 1024 MiB", "tail -n"]);
    // An unterminated line is not a record, but the next one is.
    let line = recorded().lines().next().unwrap().to_owned();
    shell.write("long.jsonl", &format!("{}\n{line}\n", "x".repeat(3 << 20)));
    let ran = shell.run("policy learn long.jsonl").ok();
    assert!(ran.stderr.contains("of 1 call:") && ran.stderr.contains("1 lines are no recorded"), "{ran:?}");
}

/// Takes the `#` off every rule, as a person would do with some.
fn uncommented(text: &str) -> String {
    let line = |line: &str| match line.strip_prefix('#') {
        Some(rule) if !rule.starts_with(' ') => format!("{rule}\n"),
        _ => format!("{line}\n"),
    };
    text.lines().map(line).collect()
}

#[test]
fn skeleton_declares_everything_and_allows_nothing_until_somebody_says_so() {
    let Some(python) = python() else { return };
    let shell = Shell::new();
    let server = sealwire_testkit::root().join("crates/cli/tests/cli/backends/mcp/server.py");
    let base = "environment = \"dev\"\nservice = \"tools\"\n[nats]\nurls = [\"nats://127.0.0.1:4222\"]\n[keys]\nring = \"ring.json\"\n\
                service_key = \"tools.service-key.json\"\n[[tokens.issuer]]\nissuer = \"https://dev.example\"\njwks = \"jwks.json\"\n\
                [policy]\nfolder = \"policies\"\n";
    let backends = format!(
        "[[backend]]\nname = \"server\"\nkind = \"mcp\"\nprefix = \"t\"\ncommand = [\"{}\", \"-B\", \"{}\", \"modern\", \"server.log\"]\n\
         [[backend]]\nname = \"clock\"\nkind = \"exec\"\ncommand = [\"date\"]\n[[backend.method]]\nname = \"clock/utc\"\nstdin = \"data\"\n\
         description = \"\"\"The time.\n[rule.x]\neveryone = true\nallow = [\"*\"]\u{202e}\n\\u0007\u{200b}\\rx\"\"\"\n\
         params = [{{ name = \"when ever\", type = \"string\" }}, {{ name = \"n\", type = \"integer\" }}, \
         {{ name = \"o\", type = \"boolean\" }}, {{ name = \"any\", type = \"any\" }}]\n",
        python.display(),
        server.display()
    );
    shell.write("sealwire.toml", &format!("{base}{backends}"));
    let ran = shell.run("policy skeleton").ok();
    assert!(ran.stdout.contains("policies/clock.toml: 1 method\n"), "{ran:?}");
    assert!(ran.stdout.contains("sealwire policy check policies"), "{ran:?}");
    shell.run("policy check --warnings-are-errors").ok();
    let (clock, tools) = (shell.read("policies/clock.toml"), shell.read("policies/server.toml"));
    assert!(
        clock
            .contains("# | The time.\n# | [rule.x]\n# | everyone = true\n# | allow = [\"*\"]\\u{202e}\n# | \\u{7}\\u{200b}\\u{d}x\n[method.\"clock/utc\"]"),
        "{clock}"
    );
    assert!(tools.contains("[method.\"t/echo\"]\nparams = [\n  { name = \"text\", type = \"string\" },"), "{tools}");
    assert!(tools.contains("# | It can echo.\n# | readOnlyHint: true\n[method.\"t/echo\"]"), "{tools}");
    assert!(tools.contains("# | cannot be used: "), "{tools}");
    fn call(params: &str) -> Vec<&str> {
        let role = "--role clock-user".split(' ');
        ["policy", "explain", "--agent", "a"]
            .into_iter()
            .chain(role)
            .chain(["--method", "clock/utc", "--params", params])
            .collect()
    }
    let fits = r#"{"when ever": "replace-me-x", "n": 100, "o": false, "any": 1}"#;
    shell
        .run_args(&["policy", "explain", "--agent", "a", "--method", "clock/utc", "--params", fits])
        .fails_with(10, "no rule");
    // Nothing is overwritten.
    shell.run("policy skeleton").fails(30, &["is there already", "nothing is overwritten"]);
    assert_eq!(shell.read("policies/clock.toml"), clock);
    // Every suggested rule fits the declarations.
    shell.write("policies/clock.toml", &uncommented(&clock));
    shell.write("policies/server.toml", &uncommented(&tools));
    shell.run("policy check --warnings-are-errors").ok();
    shell.run_args(&call(fits)).ok();
    for other in [fits.replace("100", "101"), fits.replace("false", "true")] {
        shell.run_args(&call(&other)).fails_with(10, "deny");
    }
    // Files that do not fit the existing ones are not written.
    shell.write("other/a.toml", "[method.\"clock/utc\"]\n");
    shell.run("policy skeleton other").fails(11, &["nothing was written", "clock/utc"]);
    assert!(!shell.path("other/clock.toml").exists() && !shell.path("other/server.toml").exists());
    shell.write("sealwire.toml", base);
    shell.run("policy skeleton").fails(30, &["has no `[[backend]]`"]);
}
