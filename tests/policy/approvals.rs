//! Deny rules that an approval lifts: which calls wait, for what, and who decides.

use sealwire::configure::ProofAlgorithm;
use sealwire::decide::{Involved, NotApprover, Reason, Requester, Verdict};
use sealwire::{Caller, Decision, PolicySet, Question};
use sealwire_testkit::policies::*;
use serde_json::value::RawValue;

const BANK: &str = r#"
[method."bank/transfer"]
params = [{ name = "to", type = "string" }, { name = "amount", type = "integer" }]
[method."bank/close"]
params = [{ name = "account", type = "string" }]

[role.teller]
allow = ["bank/transfer", "bank/close"]
delegated = "also"
[role.treasurer]
[role.officer]
from = "files"
[agent.olga]
roles = ["officer"]

[approval.two-treasurers]
from = ["treasurer"]
count = 2
within = "1h"
valid = "1m"
reason = true

[approval.officer]
from = ["officer"]

[rule.large]
everyone = true
deny = ["bank/transfer"]
unless_approved = "two-treasurers"
when.params.amount = { min = 10_001 }

[rule.abroad]
everyone = true
deny = ["bank/transfer"]
unless_approved = "officer"
when.params.to = { glob = "abroad-*" }

[rule.huge]
everyone = true
deny = ["bank/transfer"]
when.params.amount = { min = 1_000_000 }

[rule.close]
everyone = true
deny = ["bank/close"]
unless_approved = "officer"
"#;

fn with(set: &PolicySet, caller: &Caller, method: &str, params: &str, approved: &[&str]) -> Decision {
    let raw = RawValue::from_string(params.to_owned()).unwrap();
    let question = Question { caller, method, params: Some(&raw), now_ms: MONDAY_AFTERNOON };
    set.decide_approved(&question, approved)
}

#[track_caller]
fn assert_waits(decision: &Decision, rule: &str, approvals: &[&str]) {
    assert_eq!((decision.verdict, &decision.reason), (Verdict::Deny, &Reason::ApprovalRequired), "{decision}");
    assert_eq!(decision.rule.as_ref().unwrap().name(), rule);
    assert_eq!(decision.approvals, approvals);
}

#[track_caller]
fn assert_plain(decision: &Decision, reason: Reason) {
    assert_eq!((decision.verdict, &decision.reason), (Verdict::Deny, &reason), "{decision}");
    assert!(decision.approvals.is_empty(), "nobody learns that an approval would not help: {decision}");
}

#[test]
fn a_call_waits_for_the_approvals_of_all_rules_that_deny_it() {
    let (set, teller) = (toml(BANK), caller("t", &["teller"]));
    let ask = |params: &str, approved: &[&str]| with(&set, &teller, "bank/transfer", params, approved);
    let small = ask(r#"{"to":"a","amount":10000}"#, &[]);
    assert!(small.is_allow() && small.approvals.is_empty(), "{small}");
    assert_waits(&ask(r#"{"to":"a","amount":10001}"#, &[]), "large", &["two-treasurers"]);
    assert_waits(&ask(r#"["abroad-1",1]"#, &[]), "abroad", &["officer"]);
    let both = r#"["abroad-1",10001]"#;
    assert_waits(&ask(both, &[]), "large", &["two-treasurers", "officer"]);
    assert_waits(&ask(both, &["two-treasurers"]), "abroad", &["two-treasurers", "officer"]);
    assert_waits(&ask(both, &["officer", "other"]), "large", &["two-treasurers", "officer"]);
    let given = ask(both, &["officer", "two-treasurers"]);
    assert!(given.is_allow(), "{given}");
    assert_eq!((given.rule.unwrap().name(), given.approvals.len()), ("role.teller.allow", 2));
}

#[test]
fn an_approval_lifts_nothing_but_the_rules_that_name_it() {
    let set = toml(BANK);
    let all = ["officer", "two-treasurers"];
    let teller = caller("t", &["teller"]);
    let huge = r#"["abroad-1",1000000]"#;
    assert_plain(&with(&set, &teller, "bank/transfer", huge, &[]), Reason::ForbiddenBy);
    assert_plain(&with(&set, &teller, "bank/transfer", huge, &all), Reason::ForbiddenBy);
    let nobody = caller("n", &[]);
    assert_plain(&with(&set, &nobody, "bank/transfer", r#"["a",10001]"#, &[]), Reason::ForbiddenBy);
    assert_plain(&with(&set, &nobody, "bank/transfer", r#"["a",10001]"#, &all), Reason::NoRule);
    let missing = with(&set, &teller, "bank/nothing", "[]", &all);
    assert_eq!(missing.reason, Reason::UnknownMethod { would_allow: false });
}

#[test]
fn what_fails_is_not_lifted() {
    let cedar = r#"
@id("odd") @unless_approved("officer")
forbid (principal, action == Action::"bank/close", resource) when { context.token.issuer == "x" };
@id("fails")
permit (principal, action == Action::"bank/close", resource)
when { context.params.account like "a*" && context.now.offset(duration("9223372036854775807ms")) > context.now };
"#;
    let (set, _) = load(&[("bank.toml", BANK), ("more.cedar", cedar)]).unwrap_or_else(|errors| panic!("{errors}"));
    let teller = caller("t", &["teller"]);
    assert_plain(&with(&set, &teller, "bank/close", r#"["a1"]"#, &["officer"]), Reason::EvaluationError);
    assert_waits(&with(&set, &teller, "bank/close", r#"["b1"]"#, &[]), "close", &["officer"]);
    assert!(with(&set, &teller, "bank/close", r#"["b1"]"#, &["officer"]).is_allow());
}

#[test]
fn both_principals_of_a_delegated_call_wait_together() {
    let text = format!(
        "{BANK}
[rule.agents]
agents = [\"robot\"]
deny = [\"bank/close\"]
unless_approved = \"two-treasurers\"
[rule.never]
subjects = [\"mallory\"]
deny = [\"bank/close\"]
"
    );
    let set = toml(&text);
    let ask = |caller: &Caller, approved: &[&str]| with(&set, caller, "bank/close", r#"["a"]"#, approved);
    let robot = on_behalf_of("robot", "alice", &["teller"]);
    assert_waits(&ask(&robot, &[]), "close", &["officer", "two-treasurers"]);
    assert_waits(&ask(&robot, &["officer"]), "agents", &["officer", "two-treasurers"]);
    assert!(ask(&robot, &["officer", "two-treasurers"]).is_allow());
    let other = on_behalf_of("robot", "mallory", &["teller"]);
    assert_plain(&ask(&other, &[]), Reason::ForbiddenBy);
    assert_plain(&ask(&other, &["officer", "two-treasurers"]), Reason::ForbiddenBy);
}

#[test]
fn nothing_undeclared_rides_along_with_a_call_that_is_approved() {
    let (set, teller) = (toml(BANK), caller("t", &["teller"]));
    assert!(set.looks_at_params("bank/close"), "though no rule reads a parameter of it");
    for approved in [&[][..], &["officer"]] {
        let ask = |params: &str| with(&set, &teller, "bank/close", params, approved);
        assert_plain(&ask(r#"{"account":"a","more":1}"#), Reason::ParamUndeclared("more".into()));
        assert_plain(&ask("[]"), Reason::ParamMissing("account".into()));
        assert_plain(&ask("[1]"), Reason::ParamType("account".into()));
    }
}

#[test]
fn cedar_says_the_same() {
    let (rules, _) = BANK.split_once("[rule.large]").unwrap();
    let cedar = r#"
@id("large") @unless_approved("two-treasurers")
forbid (principal, action == Action::"bank/transfer", resource) when { context.params.amount > 10000 };
"#;
    let (set, _) = load(&[("bank.toml", rules), ("large.cedar", cedar)]).unwrap_or_else(|errors| panic!("{errors}"));
    let ask = |approved: &[&str]| with(&set, &caller("t", &["teller"]), "bank/transfer", r#"["a",10001]"#, approved);
    assert_waits(&ask(&[]), "large", &["two-treasurers"]);
    assert!(ask(&["two-treasurers"]).is_allow());
}

#[test]
fn nobody_decides_about_their_own_call_or_without_the_role_or_under_a_shared_key() {
    let set = toml(BANK);
    let via = ["carl".to_owned()];
    let of = Requester { agent: "robot", subject: "alice", via: &via };
    let signer = |agent: &str, roles: &[&str]| Caller { algorithm: ProofAlgorithm::EdDsa, ..caller(agent, roles) };
    let decides = |approval: &str, approver: &Caller| set.may_decide(approval, approver, &of);
    assert_eq!(decides("two-treasurers", &signer("tom", &["treasurer"])), Ok(()));
    assert_eq!(decides("two-treasurers", &signer("tom", &["teller"])), Err(NotApprover::Role));
    assert_eq!(decides("two-treasurers", &caller("tom", &["treasurer"])), Err(NotApprover::SharedKey));
    assert_eq!(decides("three-treasurers", &signer("tom", &["treasurer"])), Err(NotApprover::Unknown));
    for (agent, who) in [("robot", Involved::Agent), ("alice", Involved::Subject), ("carl", Involved::Via)] {
        assert_eq!(decides("two-treasurers", &signer(agent, &["treasurer"])), Err(NotApprover::Own(who)));
    }
    let delegated = Caller { algorithm: ProofAlgorithm::EdDsa, ..on_behalf_of("cli", "tom", &["treasurer"]) };
    assert_eq!(decides("two-treasurers", &delegated), Err(NotApprover::Delegated));
    // A role that comes from files only is not believed when a token says so.
    assert_eq!(decides("officer", &signer("tom", &["officer"])), Err(NotApprover::Role));
    assert_eq!(decides("officer", &signer("olga", &[])), Ok(()));
}

#[test]
fn an_approval_is_read_with_its_defaults() {
    let set = toml(BANK);
    let two = set.approval("two-treasurers").unwrap();
    assert_eq!((two.count(), two.within().as_secs(), two.valid().as_secs(), two.needs_reason()), (2, 3600, 60, true));
    let one = set.approval("officer").unwrap();
    assert_eq!((one.count(), one.within().as_secs(), one.valid().as_secs(), one.needs_reason()), (1, 1800, 300, false));
    assert_eq!(one.excluded(), [Involved::Agent, Involved::Subject, Involved::Via]);
    assert!(set.has_approvals() && set.approval("nobody").is_none());
    assert!(!toml("[role.r]\n").has_approvals());
}

#[test]
fn approvals_that_cannot_work_do_not_load() {
    let base = "[method.\"m/a\"]\nparams = []\n[method.\"m/b\"]\n[method.\"rpc.approve\"]\nparams = []\n[role.r]\n";
    let found = |text: &str| errors(&[("a.toml", &format!("{base}{text}"))]);
    let approval = "[approval.x]\nfrom = [\"r\"]\n";
    let rule = |lines: &str| format!("{approval}[rule.y]\neveryone = true\n{lines}\nunless_approved = \"x\"\n");
    for (text, expected) in [
        (
            rule("allow = [\"m/a\"]"),
            "a.toml:12: error: `y` allows, and an approval lifts only what denies; write a deny rule that waits, beside this one",
        ),
        (
            rule("deny = [\"*\"]"),
            "a.toml:11: error: `*` is also about the methods with which approvals are given; name the methods that wait, or a prefix: `bank/*`",
        ),
        (
            rule("deny = [\"rpc.approve\"]"),
            "a.toml:11: error: `rpc.approve` is also about the methods with which approvals are given; name the methods that wait, or a prefix: `bank/*`",
        ),
        (
            rule("deny = [\"rpc.*\"]"),
            "a.toml:11: error: `rpc.*` is also about the methods with which approvals are given; name the methods that wait, or a prefix: `bank/*`",
        ),
        (
            rule("deny = [\"m/*\"]"),
            "a.toml:11: error: calls of `m/b` wait for an approval, and its parameters are not declared; declare them, so that people see all that they approve: `[method.\"m/b\"]` with `params`",
        ),
        (
            rule("deny = [\"m/a\"]").replace("unless_approved = \"x\"", "unless_approved = \"xx\""),
            "a.toml:12: error: unknown approval `xx`; did you mean `x`?",
        ),
        (
            "[approval.x]\n".to_owned(),
            "a.toml:7: error: the approval `x` does not say who decides; write `from = [\"ROLE\"]`",
        ),
        ("[approval.x]\nfrom = [\"q\"]\n".to_owned(), "a.toml:8: error: unknown role `q`; did you mean `r`?"),
        (format!("{approval}count = 11\n"), "a.toml:9: error: `count` is 11; write a number from 1 to 10"),
        (
            format!("{approval}within = \"2d\"\n"),
            "a.toml:9: error: `2d` is not a duration for `within`; write a duration from 10s to 24h, such as \"30m\"",
        ),
        (
            format!("{approval}valid = \"1s\"\n"),
            "a.toml:9: error: `1s` is not a duration for `valid`; write a duration from 10s to 1h, such as \"30m\"",
        ),
        (
            format!("{approval}exclude = [\"subject\"]\n"),
            "a.toml:9: error: an agent that approves its own calls is asked nothing; write `exclude = [\"agent\"]` at least, or leave it out",
        ),
        (
            format!("{approval}exclude = [\"agents\"]\n"),
            "a.toml:9: error: unknown word `agents`; did you mean `agent`?",
        ),
        (
            format!("{approval}counts = 2\n"),
            "a.toml:9: error: unknown key `counts` in `[approval.x]`; did you mean `count`?",
        ),
        (
            "[approval.\"x y\"]\nfrom = [\"r\"]\n".to_owned(),
            "a.toml:7: error: `x y` is not a name for an approval; 1 to 64 of A-Z a-z 0-9 _ - are allowed",
        ),
    ] {
        assert_finding(&found(&text), expected);
    }
    let twice = [("a.toml", format!("{base}{approval}")), ("b.toml", approval.to_owned())];
    let twice = errors(&twice.each_ref().map(|(name, text)| (*name, text.as_str())));
    assert_finding(&twice, "b.toml:1: error: the approval `x` is described twice; the first is at a.toml:7");
    let many: String = (0..65).map(|n| format!("[approval.x{n}]\nfrom = [\"r\"]\n")).collect();
    assert_finding(&found(&many), "a.toml:135: error: there are more than 64 approvals; use one for several rules");
}

#[test]
fn doubtful_approvals_are_told() {
    let found = |text: &str| warnings(&[("a.toml", text)]);
    let base = "[method.\"m/a\"]\nparams = []\n[role.r]\nfrom = \"files\"\n[agent.a]\nroles = [\"r\"]\n";
    let unused = found(&format!("{base}[approval.x]\nfrom = [\"r\"]\ncount = 2\n"));
    assert_finding(
        &unused,
        "a.toml:7: warning: no rule waits for the approval `x`; write `unless_approved` into a deny rule (in Cedar, `@unless_approved`), or remove it",
    );
    assert_finding(
        &unused,
        "a.toml:7: warning: the approval `x` needs 2 of the agents with its roles, and there are 1; grant the role to more agents: `[agent.\"…\"] roles = […]`",
    );
    let rule = "[approval.x]\nfrom = [\"r\"]\n[rule.y]\neveryone = true\ndeny = [\"m/a\"]\nunless_approved = \"x\"\n";
    assert_eq!(found(&format!("{base}{rule}")), Vec::<String>::new());
    let shadow = found(&format!("{base}{rule}mode = \"shadow\"\n"));
    assert_finding(
        &shadow,
        "a.toml:12: warning: `y` is in shadow mode, so no call waits for `x`; write `mode = \"enforce\"` once it is tried out",
    );
}

#[test]
fn a_rule_that_can_be_lifted_covers_none_that_cannot() {
    let base = "[method.\"m/a\"]\nparams = []\n[role.r]\nallow = [\"m/a\"]\n[approval.x]\nfrom = [\"r\"]\n[approval.y]\nfrom = [\"r\"]\n";
    let deny = |name: &str, who: &str, lifted: &str| {
        let lifted = if lifted.is_empty() { String::new() } else { format!("unless_approved = \"{lifted}\"\n") };
        format!("[rule.{name}]\n{who}\ndeny = [\"m/a\"]\n{lifted}")
    };
    let covered = |wide: &str, narrow: &str| {
        let rules = deny("wide", "everyone = true", wide) + &deny("narrow", "agents = [\"a\"]", narrow);
        let found = warnings(&[("a.toml", &format!("{base}{rules}"))]);
        found.iter().any(|line| line.contains("`narrow` changes nothing"))
    };
    let told = |wide: &str| {
        let found = warnings(&[("a.toml", &format!("{base}{}", deny("wide", "everyone = true", wide)))]);
        found.iter().any(|line| line.contains("never allows anything"))
    };
    assert!(covered("", "") && covered("x", "x"));
    assert!(!covered("x", "") && !covered("x", "y"));
    assert!(told("") && !told("x"));
}
