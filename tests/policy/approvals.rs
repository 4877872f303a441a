//! Deny rules that an approval lifts: which calls wait, for what, and who decides.

use sealwire::configure::ProofAlgorithm;
use sealwire::decide::{Involved, NotApprover, Reason, Requester, Verdict};
use sealwire::internal::policy::{Access, ApprovalReview, CallerGroup, Diff, Direction, Replay, TestReport, TestSuite};
use sealwire::{Caller, Decision, DecisionRecord, PolicySet, Question};
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
    let decides = |approval: &str, approver: &Caller| set.may_decide(approval, &[], approver, &of);
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
    // One token is good for as long as its approval is; the first of two may have ended long before.
    let (two, many) = ("count = 2\nwithin = \"1h\"\n", "[agent.b]\nroles = [\"r\"]\n");
    let long = rule.replace("[rule.y]", &format!("{two}[rule.y]"));
    assert_eq!(
        found(&format!("{base}{many}{long}")),
        [
            "a.toml:9: warning: the call may run 65m after the first of 2 approvals `x`, and one whose token ended more than an hour before does not count; make `within` and `valid` an hour together at most"
        ]
    );
    for fine in [long.replace("count = 2", "count = 1"), long.replace("1h", "55m")] {
        assert_eq!(found(&format!("{base}{many}{fine}")), Vec::<String>::new());
    }
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

#[test]
fn a_person_with_two_agents_decides_once_and_not_about_their_own_calls() {
    let set = toml(
        r#"
[attributes]
person = "string"
[role.treasurer]
[agent.tom-desk]
attributes = { person = "tom" }
[agent.tom-phone]
attributes = { person = "tom" }
[agent.tina]
attributes = { person = "tina" }
[subject."tom@example.com"]
attributes = { person = "tom" }
[method."bank/close"]
params = []
[approval.two]
from = ["treasurer"]
count = 2
distinct = "person"
[rule.close]
everyone = true
deny = ["bank/close"]
unless_approved = "two"
"#,
    );
    let signer = |agent: &str| Caller { algorithm: ProofAlgorithm::EdDsa, ..caller(agent, &["treasurer"]) };
    let decides = |approver: &str, agent: &str, subject: &str, via: &[String]| {
        set.may_decide("two", &[], &signer(approver), &Requester { agent, subject, via })
    };
    assert_eq!(decides("tina", "tom-desk", "tom-desk", &[]), Ok(()));
    assert_eq!(decides("tom-phone", "tom-desk", "tom-desk", &[]), Err(NotApprover::Own(Involved::Agent)));
    let own = Err(NotApprover::Own(Involved::Subject));
    assert_eq!(decides("tom-phone", "robot", "tom@example.com", &[]), own);
    // Without a table of its own, a name is taken for a person's.
    assert_eq!(decides("tom-phone", "robot", "tom", &[]), own);
    assert_eq!(decides("tom-phone", "tom", "tom", &[]), Err(NotApprover::Own(Involved::Agent)));
    assert_eq!(decides("tina", "robot", "tom", &[]), Ok(()));
    assert_eq!(decides("tom-phone", "robot", "robot", &["tom".to_owned()]), Err(NotApprover::Own(Involved::Via)));
    let via = ["tom-desk".to_owned()];
    assert_eq!(decides("tom-phone", "robot", "robot", &via), Err(NotApprover::Own(Involved::Via)));
    assert_eq!(decides("stranger", "robot", "robot", &[]), Err(NotApprover::Nobody));
    let name = |text: &str| sealwire::Name::new(text).unwrap();
    let (desk, phone, tina) = (name("tom-desk"), name("tom-phone"), name("tina"));
    assert_eq!(set.decides_as("two", &desk), set.decides_as("two", &phone));
    assert_ne!(set.decides_as("two", &desk), set.decides_as("two", &tina));
    let plain = toml(BANK);
    assert_ne!(plain.decides_as("officer", &desk), plain.decides_as("officer", &phone));
}

#[test]
fn tools_tell_calls_that_wait_from_those_that_are_denied() {
    let set = toml(BANK);
    let teller = caller("t", &["teller"]);
    let raw = RawValue::from_string(r#"["abroad-1",10001]"#.to_owned()).unwrap();
    let question = Question { caller: &teller, method: "bank/transfer", params: Some(&raw), now_ms: MONDAY_AFTERNOON };
    let told = set.explain(&question).to_string();
    for expected in [
        "deny: approval required by `large` (policy.toml:26); needs: `two-treasurers`, `officer`\n",
        "\napproval `two-treasurers` (policy.toml:16): 2 different agents with the role `treasurer`, not the call's own agent, subject, earlier actors, within 1h, with a reason; then valid for 1m\n",
        "\napproval `officer` (policy.toml:23): 1 agent with the role `officer`, not the call's own agent, subject, earlier actors, within 30m; then valid for 5m\n",
        "\n  deny rule `large` (policy.toml:26) matches, until approved: `two-treasurers`\n",
        "\n  deny rule `huge` (policy.toml:38) does not match\n",
    ] {
        assert!(told.contains(expected), "{expected}\nin\n{told}");
    }
    let given = set.explain_approved(&question, &["two-treasurers", "officer"]);
    assert!(
        given.to_string().starts_with(
            "allow: allowed by `role.teller.allow` (policy.toml:8); approved: `two-treasurers`, `officer`\n"
        ),
        "{given}"
    );
    let json = serde_json::to_value(set.explain(&question)).unwrap();
    assert_eq!(json["decision"]["approvals"], serde_json::json!(["two-treasurers", "officer"]));
    assert_eq!(json["approvals"][0]["count"], 2);
    assert_eq!(json["approvals"][0]["exclude"], serde_json::json!(["agent", "subject", "via"]));

    let cell = set.access(&CallerGroup::Role("teller".to_owned()), "bank/close");
    assert_eq!((cell.access, cell.is_forbidden()), (Access::Conditional, false));
    let words: Vec<String> = cell.rules.iter().map(ToString::to_string).collect();
    assert!(words.contains(&"deny by `close` (policy.toml:43), until approved: `officer`".to_owned()), "{words:?}");
    assert!(set.matrix().to_html().contains("until approved: `officer`"));
}

const CASES: &str = r#"
[caller.t]
roles = ["teller"]
[[case]]
name = "waits"
caller = "t"
method = "bank/close"
params = { account = "a" }
expect = "wait"
rule = "close"
[[case]]
name = "approved"
caller = "t"
method = "bank/close"
params = { account = "a" }
approved = ["officer"]
expect = "allow"
[[case]]
name = "a denial for every tool that knows nothing else"
caller = "t"
method = "bank/close"
params = { account = "a" }
expect = "deny"
"#;

#[test]
fn expected_decisions_say_what_waits() {
    let set = toml(BANK);
    let run = |cases: &str| TestReport::run(&set, &TestSuite::from_texts([("a.test.toml", cases)]).unwrap());
    assert!(run(CASES).passed(), "{}", run(CASES));
    let huge =
        CASES.replace("bank/close", "bank/transfer").replace("account = \"a\"", "to = \"a\", amount = 1_000_000");
    let report = run(&huge).to_string();
    assert!(report.contains("\n- wait by `close`\n+ deny: forbidden by `huge` (policy.toml:38)\n"), "{report}");
    assert!(report.contains(", approved: `officer`\n- allow\n+ deny: forbidden by"), "{report}");
    let unknown = run(&CASES.replace("[\"officer\"]", "[\"officers\"]")).to_string();
    assert!(
        unknown.contains("a.test.toml:16: error: unknown approval `officers`; did you mean `officer`?"),
        "{unknown}"
    );
    let needless = run(&CASES.replace("[\"officer\"]", "[\"officer\", \"two-treasurers\"]")).to_string();
    assert!(
        needless.contains("a.test.toml:16: error: the call does not need the approval `two-treasurers`;"),
        "{needless}"
    );
    let both = CASES.replace("rule = \"close\"", "reason = \"no_rule\"");
    let both = TestSuite::from_texts([("a.test.toml", both.as_str())]).unwrap_err().to_string();
    assert!(both.contains("a.test.toml:10: error: `reason` beside `expect = \"wait\"`, which says it"), "{both}");
}

#[test]
fn a_difference_is_told_when_a_rule_begins_to_wait_or_stops() {
    let plain = BANK.replacen("unless_approved = \"two-treasurers\"\n", "", 1);
    let other = BANK.replacen("unless_approved = \"two-treasurers\"", "unless_approved = \"officer\"", 1);
    let fewer = BANK.replace("count = 2", "count = 1");
    let diff = |old: &str, new: &str| Diff::between(&toml(old), &toml(new));
    let told = |old: &str, new: &str| diff(old, new).to_string();
    assert!(told(&plain, BANK).contains("`large` (deny) is now lifted by `two-treasurers`"), "{}", told(&plain, BANK));
    assert!(told(BANK, &plain).contains("`large` (deny) no longer waits for an approval"));
    let of = |old: &str, new: &str, wanted: Direction| {
        let changes = diff(old, new).changes;
        assert!(!changes.is_empty() && changes.iter().all(|change| change.direction == wanted), "{changes:?}");
    };
    of(&plain, BANK, Direction::More);
    of(BANK, &plain, Direction::Less);
    of(BANK, &other, Direction::Unclear);
    let said = told(BANK, &fewer);
    assert!(said.contains("the approval `two-treasurers`: 2 different agents"), "{said}");
    assert!(said.contains(" -> 1 agent with"), "{said}");
}

#[test]
fn recorded_calls_tell_how_many_would_have_waited() {
    let set = toml(BANK);
    let (free, _) = BANK.split_once("[rule.close]").unwrap();
    let free = toml(free);
    let teller = caller("t", &["teller"]);
    let raw = RawValue::from_string(r#"["a"]"#.to_owned()).unwrap();
    let question = Question { caller: &teller, method: "bank/close", params: Some(&raw), now_ms: MONDAY_AFTERNOON };
    let line = |set: &PolicySet, approved: &[&str]| {
        let decision = set.decide_approved(&question, approved);
        let record = DecisionRecord::new(set, &question, &decision, None);
        let mut line =
            serde_json::json!({ "v": 1, "session": "s1", "seq": 1, "prev": "A".repeat(43), "kind": "decision" });
        line.as_object_mut().unwrap().extend(serde_json::to_value(record).unwrap().as_object().unwrap().clone());
        line.to_string()
    };
    let (allowed, waited, approved) = (line(&free, &[]), line(&set, &[]), line(&set, &["officer"]));
    let replay = |set: &PolicySet, lines: &[&str]| Replay::run(set, &lines.join("\n"));
    let found = replay(&set, &[&allowed, &waited, &approved]);
    assert_eq!((found.totals.different, found.totals.waiting, found.totals.unknown), (1, 1, 0), "{found}");
    assert!(
        found.to_string().contains("3 calls: 1 would come out differently (1 would have waited for an approval), 0")
    );
    // Where nothing waits any more, what waited is allowed, and what was approved is no different.
    let found = replay(&free, &[&waited, &approved]);
    assert_eq!((found.totals.different, found.totals.waiting, found.totals.unreadable), (1, 0, 0), "{found}");
    // Denied for good where it waited: that is a difference, too.
    let never =
        toml(&BANK.replace("deny = [\"bank/close\"]\nunless_approved = \"officer\"", "deny = [\"bank/close\"]"));
    assert_eq!(replay(&never, &[&waited]).totals.different, 1);
}

#[test]
fn reviewers_see_what_each_approval_lifts_and_who_decides() {
    let more = "\n[method.\"rpc.approve\"]\nparams = []\n[role.head]\nincludes = [\"officer\"]\nfrom = \"files\"\n\
                [agent.hans]\nroles = [\"head\"]\nallow = [\"rpc.approve\"]\n";
    let set = toml(&format!("{BANK}{more}"));
    let told: String = ApprovalReview::all(&set).iter().map(ToString::to_string).collect();
    let expected = "\
`officer` (policy.toml:23): 1 agent with the role `officer`, not the call's own agent, subject, earlier actors, within 30m; then valid for 5m
  lifts `abroad` (policy.toml:32): bank/transfer
  lifts `close` (policy.toml:43): bank/close
  agent hans
  agent olga, but no rule lets them call `rpc.approve`
`two-treasurers` (policy.toml:16): 2 different agents with the role `treasurer`, not the call's own agent, subject, earlier actors, within 1h, with a reason; then valid for 1m
  lifts `large` (policy.toml:26): bank/transfer
  role treasurer, by a token, but no rule lets them call `rpc.approve`
";
    assert_eq!(told, expected);
    let json = serde_json::to_value(ApprovalReview::all(&set)).unwrap();
    assert_eq!(json[0]["deciders"][0], serde_json::json!({ "who": { "agent": "hans" }, "can_approve": "allowed" }));
    assert_eq!(json[0]["lifts"][1]["methods"], serde_json::json!(["bank/close"]));
}

#[test]
fn an_approval_that_no_rule_lets_anybody_give_is_told() {
    let base = "[method.\"m/a\"]\nparams = []\n[method.\"rpc.approve\"]\nparams = []\n[role.r]\n[approval.x]\nfrom = [\"r\"]\n\
                [rule.y]\neveryone = true\ndeny = [\"m/a\"]\nunless_approved = \"x\"\n";
    let expected = "a.toml:6: warning: no rule allows `rpc.approve`, so nobody can give `x`; write `allow = [\"rpc.approve\", \"rpc.approval\", \"rpc.approvals\"]` for its roles";
    assert_eq!(warnings(&[("a.toml", base)]), [expected]);
    let allowing = base.replace("[role.r]\n", "[role.r]\nallow = [\"rpc.approve\"]\n");
    assert_eq!(warnings(&[("a.toml", &allowing)]), Vec::<String>::new());
}

#[test]
fn the_key_belongs_into_a_rule_with_a_name() {
    let list = "[method.\"m/a\"]\nparams = []\n[role.r]\ndeny = [\"m/a\"]\nunless_approved = \"x\"\n";
    assert_finding(
        &errors(&[("a.toml", list)]),
        "a.toml:5: error: unknown key `unless_approved` in `[role.r]`; conditions belong into a rule with a name: `[rule.NAME]` with `roles` or `agents`, `allow` and `when`",
    );
    let cedar = "@unless_approved(\"x\")\npermit (principal, action == Action::\"m/a\", resource);\n";
    let found = errors(&[("a.toml", "[method.\"m/a\"]\nparams = []\n"), ("b.cedar", cedar)]);
    assert_finding(&found, "b.cedar:1: error: unknown approval `x`; describe it: `[approval.x]`");
    assert!(found.iter().any(|line| line.contains("allows, and an approval lifts only what denies")), "{found:?}");
    let misspelled = cedar.replace("unless_approved", "unless_aproved").replace("permit", "forbid");
    let found = errors(&[("a.toml", "[method.\"m/a\"]\nparams = []\n"), ("b.cedar", &misspelled)]);
    assert_finding(&found, "b.cedar:1: error: unknown annotation `@unless_aproved`; did you mean `unless_approved`?");
}
