//! `sealwire policy`, and what all commands share: exit codes, help.

use crate::shell::Shell;
use serde_json::json;

const GOOD: &str = r#"
[method."math/add"]
[method."math/reset"]

[role.calc]
description = "Arithmetic without side effects."
allow = ["math/*"]
deny = ["math/reset"]

[agent."planner"]
roles = ["calc"]
"#;

#[test]
fn good_folder_is_checked_and_its_decisions_are_explained() {
    let shell = Shell::new();
    shell.write("policies/calc.toml", GOOD);
    let ran = shell.run("policy check").ok();
    assert!(
        ran.stdout.contains("policies: revision ") && ran.stdout.contains(", 2 methods, and 8 of every service"),
        "{ran:?}"
    );
    let checked = shell.run("policy check policies --json").ok().json();
    let built_in = ["approval", "approvals", "approve", "can", "discover", "explain", "task", "task.cancel"]
        .map(|name| format!("rpc.{name}"));
    let methods = json!([&["math/add", "math/reset"].map(str::to_owned)[..], &built_in].concat());
    assert_eq!((&checked["ok"], &checked["methods"]), (&json!(true), &methods));

    let ran = shell.run("policy explain --agent planner --method math/add").ok();
    assert!(ran.stdout.starts_with("allow: ") && ran.stdout.contains("calc.toml:7"), "{ran:?}");
    let ran = shell.run("policy explain --agent other --role calc --method math/reset");
    assert_eq!(ran.code, 10, "{ran:?}");
    assert!(ran.stdout.starts_with("deny: forbidden by") && ran.stdout.contains("calc.toml:8"), "{ran:?}");
    let ran = shell.run("policy explain --agent stranger --method math/add --json");
    assert_eq!((ran.code, &ran.json()["decision"]["verdict"]), (10, &json!("deny")));
    let at =
        |at: &str| shell.run_args(&["policy", "explain", "--agent", "planner", "--method", "math/add", "--at", at]);
    at("sun 03:00").ok();
    at("Fri 14:00").ok();
    at("someday").fails(2, &["'sun 03:00' (UTC)"]);
    let ran = shell.run("policy explain --agent planner --subject alice --method math/add");
    assert_eq!(ran.code, 10, "the subject has no role: {ran:?}");
    shell
        .run_args(&["policy", "explain", "--agent", "planner", "--method", "math/add", "--params", "{oops"])
        .fails(30, &["--params"]);
}

/// As a service has them, so that rules can look at what somebody decides.
#[test]
fn the_built_in_methods_are_known_with_their_parameters() {
    let shell = Shell::new();
    let rule =
        "[rule.no-denials]\neveryone = true\ndeny = [\"rpc.approve\"]\nwhen.params.decision = { is = \"deny\" }\n";
    shell.write("policies/calc.toml", &format!("{GOOD}\n{rule}"));
    shell.run("policy check").ok();
    let explain = |decision: &str| {
        let params = json!({ "id": "a.b", "digest": "d", "decision": decision }).to_string();
        shell
            .run_args(&["policy", "explain", "--agent", "planner", "--method", "rpc.approve", "--params", &params])
            .stdout
    };
    assert!(explain("deny").starts_with("deny: forbidden by `no-denials`"), "{}", explain("deny"));
    assert!(explain("approve").starts_with("deny: no rule allows it"), "{}", explain("approve"));
}

#[test]
fn wrong_files_are_told_with_file_and_line_and_end_with_11() {
    let shell = Shell::new();
    shell.write("policies/calc.toml", GOOD);
    shell.write("policies/bad.toml", "[role.x]\nalow = [\"math/*\"]\n\n[role.y]\nallow = [\"math/ad\"]\n");
    let ran = shell.run("policy check");
    assert_eq!(ran.code, 11, "{ran:?}");
    for word in ["bad.toml:2: error", "alow", "cannot be used"] {
        assert!(ran.stdout.contains(word), "no {word} in {ran:?}");
    }
    let ran = shell.run("policy check --json");
    assert_eq!((ran.code, &ran.json()["ok"]), (11, &json!(false)));
    assert!(ran.json()["findings"].as_array().unwrap().iter().any(|finding| finding["line"] == 2), "{ran:?}");
    shell.run("policy explain --agent planner --method math/add").fails(11, &["bad.toml:2"]);
    shell.run("policy check nowhere").fails(30, &["nowhere", "folder"]);
}

#[test]
fn warnings_fail_only_when_asked() {
    let shell = Shell::new();
    shell.write("policies/README.md", "nothing yet");
    let ran = shell.run("policy check").ok();
    assert!(ran.stdout.contains("warning") && ran.stdout.contains("everything is denied"), "{ran:?}");
    assert_eq!(shell.run("policy check --warnings-are-errors").code, 11);
}

#[test]
fn every_command_has_help_with_examples_and_the_exit_codes_are_documented() {
    let shell = Shell::new();
    for command in [
        "",
        "demo",
        "dev",
        "serve",
        "serve demo",
        "serve stdio",
        "serve exec",
        "nats-server",
        "call",
        "notify",
        "batch",
        "send",
        "keys new-agent",
        "keys grant",
        "keys new-service",
        "keys pin",
        "keys new-token-key",
        "keys rotate",
        "keys retire",
        "keys revoke",
        "keys list",
        "token issue",
        "token inspect",
        "token revoke",
        "policy check",
        "policy test",
        "policy explain",
        "policy matrix",
        "policy who-can",
        "policy can",
        "policy diff",
        "policy fmt",
        "policy schema",
        "completions",
    ] {
        let help = shell.run(&format!("{command} --help")).ok().stdout;
        assert!(help.contains("Examples:\n  sealwire "), "{command}: {help}");
        assert!(help.contains("--json"), "{command}: {help}");
    }
    let help = shell.run("--help").ok().stdout;
    for code in [
        "\n   0  ", "\n   1  ", "\n   2  ", "\n  10  ", "\n  11  ", "\n  12  ", "\n  13  ", "\n  20  ", "\n  21  ",
        "\n  22  ", "\n  23  ", "\n  30  ", "\n 130  ", "\n 143  ",
    ] {
        assert!(help.contains(code), "no {code} in {help}");
    }
    assert!(shell.run("--version").ok().stdout.starts_with("sealwire "));
    shell.run("kys list").fails(2, &["kys", "keys"]);
    shell.run("").fails(2, &["Usage"]);
}

#[test]
fn nobody_reading_the_output_is_an_end_without_a_word() {
    let shell = Shell::new();
    let mut child = shell.command(&["completions", "zsh"]).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), String::from_utf8(output.stderr).unwrap().as_str()), (Some(141), ""));
}

#[test]
fn explain_takes_the_caller_from_credentials_and_says_what_is_mistyped_and_what_is_nearest() {
    let shell = Shell::new();
    let rule =
        "[rule.small]\nroles = [\"teller\"]\nallow = [\"bank/transfer\"]\nwhen.params.amount = { min = 1, max = 5 }\n";
    let method = "[method.\"bank/transfer\"]\nparams = [{ name = \"amount\", type = \"integer\" }]\n[role.teller]\n";
    let other = "[rule.aaa]\nroles = [\"teller\"]\ndeny = [\"bank/transfer\"]\nwhen.agent = \"x\"\n[agent.nightly]\nroles = [\"teller\"]\n";
    shell.write("policies/bank.toml", &format!("{method}{other}{rule}"));
    shell.run("keys new-agent till --service dev/bank=bank.ring.json --alg eddsa").ok();
    shell.run("keys new-token-key https://issuer.example").ok();
    let issue = "token issue --key token-key.json --audience dev/bank --out till.jwt";
    shell.run(&format!("{issue} --subject till --role teller")).ok();

    let call = "--method bank/transfer --params [5]";
    for whom in ["--creds till.creds.json", "--token till.jwt"] {
        let ran = shell.run(&format!("policy explain {whom} {call}")).ok();
        assert!(ran.stdout.contains("for till: allow") && ran.stderr.contains("nothing in it was verified"), "{ran:?}");
    }
    assert_eq!(shell.run(&format!("policy explain --agent till {call}")).code, 10, "without the roles of the token");
    shell.run(&format!("{issue} --subject alice --actor till --role teller")).ok();
    let ran = shell.run(&format!("policy explain --creds till.creds.json {call}"));
    assert!(
        ran.code == 10 && ran.stdout.contains("for the subject alice: ") && ran.stdout.contains("for till: "),
        "{ran:?}"
    );
    shell.run(&format!("policy explain --creds till.creds.json --agent till {call}")).fails(2, &["cannot be used"]);
    shell.run(&format!("policy explain {call}")).fails(2, &["--agent"]);

    let ran = shell.run("policy explain --agent till --role teller --method bank/transfer --params [6]");
    let nearest =
        "  nearest: `small` (bank.toml:10) asks that `amount` is at most 5 (amount = 6)\n  allow rule `small`";
    assert!(ran.code == 10 && ran.stdout.contains(nearest) && ran.stderr.is_empty(), "{ran:?}");
    let ran = shell.run("policy explain --agent nightli --role tellr --method bank/transfr");
    for doubt in
        ["`bank/transfr`: did you mean `bank/transfer`?", "`tellr`: did you mean `teller`?", "did you mean `nightly`?"]
    {
        assert!(ran.stderr.contains(doubt), "{doubt} in {ran:?}");
    }
}
