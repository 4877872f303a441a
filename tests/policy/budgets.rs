//! `[budget.NAME]`: what loads, which calls are charged, and what reviewers are told.

use sealwire::internal::policy::Diff;
use sealwire_testkit::policies::*;
use serde_json::value::RawValue;
use serde_json::{Value, json};

const BANK: &str = r#"
[method."bank/transfer"]
params = [{ name = "to", type = "string" }, { name = "amount", type = "integer" }]
[method."bank/close"]

[role.teller]
allow = ["bank/*"]
delegated = "also"
[role.auditor]
[role.chief]
includes = ["auditor"]

[budget.daily]
methods = ["bank/transfer"]
per = "subject"
sum = "amount"
at_most = "10000/day"
shared = true

[budget.auditors]
methods = ["bank/*"]
roles = ["auditor"]
agents = ["robot-*"]
subjects = ["user-1"]
per = "agent"
calls = "100/h"
"#;

fn budgets_of(caller: &sealwire::Caller, method: &str, params: &str) -> Vec<String> {
    explained(BANK, caller, method, params).budgets.iter().map(|budget| budget.name().to_owned()).collect()
}

fn explained(policy: &str, caller: &sealwire::Caller, method: &str, params: &str) -> sealwire::Explanation {
    let raw = RawValue::from_string(params.to_owned()).unwrap();
    let question = sealwire::Question { caller, method, params: Some(&raw), now_ms: MONDAY_AFTERNOON };
    toml(policy).explain(&question)
}

#[test]
fn a_budget_is_for_its_methods_and_callers_and_for_either_principal_of_a_call() {
    let (params, none) = (r#"["al",5]"#, Vec::<String>::new());
    let ann = |roles: &[&str]| caller("ann", roles);
    assert_eq!(budgets_of(&ann(&["teller"]), "bank/transfer", params), ["daily"]);
    assert_eq!(budgets_of(&ann(&["teller"]), "bank/close", "[]"), none);
    assert_eq!(budgets_of(&ann(&["teller", "auditor"]), "bank/close", "[]"), ["auditors"]);
    assert_eq!(budgets_of(&ann(&["teller", "chief"]), "bank/transfer", params), ["auditors", "daily"]);
    assert_eq!(budgets_of(&caller("robot-7", &["teller"]), "bank/close", "[]"), ["auditors"]);
    assert_eq!(budgets_of(&caller("user-1", &["teller"]), "bank/close", "[]"), none, "an agent is no subject");
    for (agent, subject, expected) in [("ann", "user-1", 1), ("robot-1", "user-2", 1), ("ann", "robot-1", 0)] {
        let delegated = on_behalf_of(agent, subject, &["teller"]);
        assert_eq!(budgets_of(&delegated, "bank/close", "[]").len(), expected, "{agent} for {subject}");
    }
    // What is denied is charged to nothing.
    assert_eq!(budgets_of(&ann(&[]), "bank/transfer", params), none);
}

#[test]
fn explanations_tell_budgets_and_why_a_call_cannot_be_counted() {
    let teller = caller("ann", &["teller"]);
    let explanation = explained(BANK, &teller, "bank/transfer", r#"["al",5]"#);
    let text = explanation.to_string();
    let line = "budget `daily` (policy.toml:13): a sum of `amount` of at most 10000 in any 1d for each subject, at all \
                replicas together\n";
    assert!(text.contains(line), "{text}");
    let told = serde_json::to_value(&explanation).unwrap()["budgets"].clone();
    let expected = json!([{
        "name": "daily", "file": "policy.toml", "line": 13, "per": "subject", "sum": "amount", "at_most": 10_000,
        "window_s": 86_400, "shared": true
    }]);
    assert_eq!(told, expected);
    let negative = explained(BANK, &teller, "bank/transfer", r#"["al",-5]"#);
    assert!(negative.decision.is_allow() && negative.budgets.is_empty());
    let why = "parameter `amount` is negative, and the budget `daily` adds it up";
    assert_eq!(negative.uncounted.as_deref(), Some(why));
    assert!(negative.to_string().contains(&format!("refused all the same: {why}\n")), "{negative}");
    let undeclared = explained(BANK, &teller, "bank/transfer", r#"["al",5,6]"#);
    assert_eq!(undeclared.uncounted.as_deref(), Some("parameter `3` is not declared"));
}

#[test]
fn a_budget_that_could_not_be_kept_does_not_load() {
    let with = |budget: &str| format!("{BANK}\n[budget.b]\n{budget}\n");
    for (budget, expected) in [
        ("per = \"agent\"\ncalls = \"1/h\"", "the budget `b` is for no method"),
        ("methods = [\"bank/*\"]\ncalls = \"1/h\"", "the budget `b` does not say for whom it is kept"),
        ("methods = [\"bank/*\"]\nper = \"role\"\ncalls = \"1/h\"", "`per = \"role\"` is not known"),
        ("methods = [\"bank/*\"]\nper = \"agent\"", "the budget `b` does not say what it limits, once"),
        (
            "methods = [\"bank/*\"]\nper = \"agent\"\ncalls = \"1/h\"\nat_most = \"1/h\"",
            "the budget `b` does not say what it limits, once",
        ),
        (
            "methods = [\"bank/transfer\"]\nper = \"agent\"\nsum = \"amount\"\nshared = true",
            "the budget `b` does not say what it limits, once",
        ),
        (
            "methods = [\"bank/transfer\"]\nper = \"agent\"\nsum = \"amount\"\nat_most = \"5/h\"",
            "the budget `b` does not say whether replicas count together",
        ),
        (
            "methods = [\"bank/*\"]\nper = \"agent\"\nsum = \"amount\"\nat_most = \"5/h\"\nshared = true",
            "`bank/close` does not declare `amount` as a required integer",
        ),
        (
            "methods = [\"bank/transfer\"]\nper = \"agent\"\nsum = \"to\"\nat_most = \"5/h\"\nshared = true",
            "`bank/transfer` does not declare `to` as a required integer",
        ),
        ("methods = [\"bank/transfr\"]\nper = \"agent\"\ncalls = \"1/h\"", "unknown method `bank/transfr`"),
        ("methods = [\"shop/*\"]\nper = \"agent\"\ncalls = \"1/h\"", "no registered method matches `shop/*`"),
        (
            "methods = [\"*\"]\nper = \"agent\"\ncalls = \"1/h\"",
            "`*` is also about built-in methods, which no budget is for",
        ),
        (
            "methods = [\"rpc.can\"]\nper = \"agent\"\ncalls = \"1/h\"",
            "`rpc.can` is also about built-in methods, which no budget is for",
        ),
        ("methods = [\"bank/*\"]\nroles = [\"telller\"]\nper = \"agent\"\ncalls = \"1/h\"", "unknown role `telller`"),
        ("methods = [\"bank/*\"]\nper = \"agent\"\ncalls = \"100\"", "`100` is not a limit for `calls`"),
        ("methods = [\"bank/*\"]\nper = \"agent\"\ncalls = \"1/h\"\nlimit = 1", "unknown key `limit` in `[budget.b]`"),
    ] {
        let found = errors(&[("policy.toml", &with(budget))]);
        assert!(found.iter().any(|line| line.contains(expected)), "{expected}\nin {found:?}");
    }
    for declared in ["type = \"integer\", optional = true", "type = \"number\"", "type = \"any\""] {
        let policy = BANK.replace("name = \"amount\", type = \"integer\"", &format!("name = \"amount\", {declared}"));
        assert!(!errors(&[("policy.toml", &policy)]).is_empty(), "{declared}");
    }
    let twice = errors(&[
        ("a.toml", BANK),
        ("b.toml", "[budget.daily]\nmethods = [\"bank/*\"]\nper = \"agent\"\ncalls = \"1/h\""),
    ]);
    assert!(twice.iter().any(|line| line.contains("the budget `daily` is described twice")), "{twice:?}");
}

/// Rules may be in Cedar.
#[test]
fn a_budget_does_not_care_in_which_language_the_rules_are() {
    let cedar = "permit (principal, action == Action::\"bank/transfer\", resource);";
    let files = [("methods.toml", &*BANK.replace("allow = [\"bank/*\"]", "")), ("rules.cedar", cedar)];
    let set = load(&files).unwrap_or_else(|errors| panic!("{errors}")).0;
    let raw = RawValue::from_string(r#"["al",5]"#.to_owned()).unwrap();
    let bob = caller("bob", &[]);
    let question =
        sealwire::Question { caller: &bob, method: "bank/transfer", params: Some(&raw), now_ms: MONDAY_AFTERNOON };
    assert_eq!(set.explain(&question).budgets[0].name(), "daily");
}

#[test]
fn a_review_shows_budgets_and_their_changes() {
    let after = BANK.replace("10000/day", "20000/day").replace("roles = [\"auditor\"]\n", "");
    let (old, new) = (toml(BANK), toml(&after));
    let diff = Diff::between(&old, &new).to_string();
    for part in ["the budget `auditors`", "the budget `daily`", "at most 10000", "at most 20000", "the role `auditor`"]
    {
        assert!(diff.contains(part), "{part} in {diff}");
    }
    let matrix = old.matrix();
    let text = matrix.to_string();
    assert!(text.contains("\nbank/transfer  once it is allowed\n  budget `auditors` ("), "{text}");
    assert!(text.contains("  budget `daily` (policy.toml:13): a sum of `amount`"), "{text}");
    assert!(matrix.to_html().contains("budget `daily` (policy.toml:13)"));
    let rows = serde_json::to_value(&matrix).unwrap()["rows"].as_array().unwrap().clone();
    let names = |row: &Value| row["budgets"].as_array().map_or(0, Vec::len);
    assert_eq!(rows.iter().map(names).sum::<usize>(), 3);
}
