//! Policies in Cedar beside those in TOML: the whole language, one set, one semantics.

use sealwire::PolicySet;
use sealwire::decide::{Reason, Verdict};
use sealwire_testkit::policies::*;
use serde_json::json;

const METHODS: &str = r#"
[method."bank/transfer"]
params = [
  { name = "to", type = "string" },
  { name = "amount", type = "integer" },
  { name = "note", type = "string", optional = true },
  { name = "tags", type = "string[]", optional = true },
]
[method."math/add"]
[method."math/reset"]
[claims]
tenant = "string"
[attributes]
level = "integer"
[role.teller]
[role.operator]
[agent.a]
attributes = { level = 3 }
"#;

fn cedar(text: &str) -> PolicySet {
    load(&[("methods.toml", METHODS), ("c.cedar", text)]).unwrap_or_else(|errors| panic!("{errors}")).0
}

fn errors_of(text: &str) -> Vec<String> {
    errors(&[("methods.toml", METHODS), ("c.cedar", text)])
}

#[test]
fn groups_attributes_when_and_unless_work() {
    let set = cedar(
        r#"
// Tellers move small amounts, operators any that are not marked.
@id("small")
@description("Tellers move small amounts.")
permit(principal in Role::"teller", action == Action::"bank/transfer", resource)
when { context.params.amount <= 100 && context.params.amount > 0 };

@id("operators")
permit(principal, action in [Action::"bank/transfer"], resource)
when { principal in Role::"operator" }
unless { context.params has tags && context.params.tags.items.contains("held") };

permit(principal == Agent::"a", action in Action::"math/*", resource)
when { principal has level && principal.level >= 3 && action != Action::"math/reset" };

@id("tenant")
forbid(principal, action, resource)
when { context.claims has tenant && context.claims.tenant == "evil" };
"#,
    );
    let teller = caller("t", &["teller"]);
    let operator = caller("o", &["operator"]);
    assert_eq!(ask(&set, &teller, "bank/transfer", r#"["x",100]"#).rule.unwrap().to_string(), "`small` (c.cedar:3)");
    assert_eq!(ask(&set, &teller, "bank/transfer", r#"["x",101]"#).reason, Reason::NoRule);
    assert!(allows(&set, &operator, "bank/transfer", r#"["x",101]"#));
    assert!(!allows(&set, &operator, "bank/transfer", r#"{"to":"x","amount":1,"tags":["held"]}"#));
    assert_eq!(ask(&set, &operator, "bank/transfer", r#"["x",1e2]"#).reason, Reason::ParamType("amount".into()));
    let agent = caller("a", &[]);
    assert_eq!(ask(&set, &agent, "math/add", "").rule.unwrap().name(), "c.cedar/13");
    assert!(!allows(&set, &agent, "math/reset", ""));
    assert!(!allows(&set, &caller("b", &[]), "math/add", ""));
    let mut evil = agent.clone();
    evil.token.claims = json!({"tenant": "evil"}).as_object().unwrap().clone();
    assert_eq!(ask(&set, &evil, "math/add", "").rule.unwrap().name(), "tenant");
}

#[test]
fn both_languages_are_one_set() {
    let toml = "[role.calc]\nallow = [\"math/*\"]\n";
    let text = "@id(\"no-reset\")\nforbid(principal, action == Action::\"math/reset\", resource);";
    let (set, _) = load(&[("methods.toml", METHODS), ("a.toml", toml), ("c.cedar", text)]).unwrap();
    assert!(allows(&set, &caller("x", &["calc"]), "math/add", ""));
    assert_eq!(ask(&set, &caller("x", &["calc"]), "math/reset", "").rule.unwrap().name(), "no-reset");
}

#[test]
fn mode_and_delegation_are_annotations() {
    let set = cedar(
        r#"
@id("own") permit(principal, action == Action::"math/add", resource);
@id("behalf") @delegated("only") permit(principal, action == Action::"math/reset", resource);
@id("trial") @mode("shadow") forbid(principal, action == Action::"math/add", resource);
"#,
    );
    let (own, behalf) = (caller("x", &[]), on_behalf_of("x", "alice", &[]));
    let decision = ask(&set, &own, "math/add", "");
    assert_eq!(decision.verdict, Verdict::Allow);
    assert_eq!((decision.shadow[0].rule.name(), decision.shadow[0].would), ("trial", Verdict::Deny));
    assert!(!allows(&set, &behalf, "math/add", ""), "a permit that does not say so is not for delegated calls");
    assert!(!allows(&set, &own, "math/reset", ""));
    assert!(allows(&set, &behalf, "math/reset", ""));
}

#[test]
fn times_and_token_facts_are_there() {
    let set = cedar(
        r#"
permit(principal, action == Action::"math/add", resource)
when {
  context.now >= datetime("2026-09-21") && context.hour == 14 && context.minute == 13 && context.weekday == "mon" &&
  context.minute_of_day == 853 && context.minute_of_week == 853 && context.token.age_s <= 60 &&
  context.token.remaining_s == 0 && context.token.issuer == "" && context.token.id == "" && context.token.key == "" &&
  context.algorithm == "HS256" && context.key == "x.k1" && context.agent == "x" && !(context has subject) && principal is Agent &&
  principal.name == "x" && resource == Service::"this" && action in Action::"math/*" && !context.delegated
};
"#,
    );
    let mut agent = caller("x", &[]);
    agent.token.issued_at = MONDAY_AFTERNOON / 1000;
    assert!(allows(&set, &agent, "math/add", ""));
}

#[test]
fn mistakes_are_found_with_their_line() {
    let found = errors_of(
        "permit(principal, action == Action::\"math/add\", resource);\n\n@id(\"x\")\npermit(principal,\n  action ==, resource);\n",
    );
    assert!(found[0].starts_with("c.cedar:5: error: unexpected token `,`"), "{found:#?}");
    for (text, expected) in [
        (
            "permit(principal in Role::\"teler\", action, resource);",
            "c.cedar:1: error: unknown role `teler`; did you mean `teller`?",
        ),
        (
            "permit(principal, action, resource) when { principal in Role::\"teler\" };",
            "c.cedar:1: error: unknown role `teler`; did you mean `teller`?",
        ),
        (
            "permit(principal, action == Action::\"math/ad\", resource);",
            "c.cedar:1: error: unknown method `math/ad`; did you mean `math/add`?",
        ),
        (
            "permit(principal, action == Action::\"math/*\", resource);",
            "c.cedar:1: error: no action is equal to a group of actions; write `action in Action::\"math/*\"`",
        ),
        (
            "permit(principal is User, action, resource);",
            "c.cedar:1: error: the principal can never be that: it is always an agent or a subject; write `principal == Agent::\"planner\"`, `principal == Subject::\"alice\"` or `principal in Role::\"teller\"`",
        ),
        (
            "permit(principal, action, resource == Photo::\"x\");",
            "c.cedar:1: error: the resource can never be that: it is always `Service::\"this\"`; write `resource` alone",
        ),
        (
            "permit(principal == ?principal, action, resource);",
            "c.cedar:1: error: templates are not supported; try removing the template slot(s) from this policy",
        ),
        (
            "@mod(\"shadow\") permit(principal, action, resource);",
            "c.cedar:1: error: unknown annotation `@mod`; did you mean `mode`?",
        ),
        (
            "@mode(\"Shadow\") permit(principal, action, resource);",
            "c.cedar:1: error: `@mode(\"Shadow\")` is not known; write @mode(\"shadow\") or @mode(\"enforce\")",
        ),
    ] {
        assert_finding(&errors_of(text), expected);
    }
}

#[test]
fn the_type_checker_speaks_about_parameters() {
    let on = |condition: &str| {
        errors_of(&format!("permit(principal, action == Action::\"bank/transfer\", resource)\nwhen {{ {condition} }};"))
    };
    let unknown = on("context.params.amont > 5");
    assert!(unknown[0].contains("attribute `params.amont`") && unknown[0].contains("did you mean"), "{unknown:#?}");
    let optional = on("context.params.note == \"x\"");
    assert!(optional[0].contains("unable to guarantee safety of access to optional attribute"), "{optional:#?}");
    let kind = on("context.params.amount == \"5\"");
    assert!(kind[0].contains("c.cedar:1: error:"), "{kind:#?}");
    let undeclared =
        errors_of("permit(principal, action == Action::\"math/add\", resource) when { context.params.a == 1 };");
    assert!(undeclared[0].contains("attribute `params`"), "{undeclared:#?}");
}

#[test]
fn explanations_quote_the_conditions() {
    let set = cedar(
        "@id(\"x\")\npermit(principal in Role::\"teller\", action == Action::\"bank/transfer\", resource)\nwhen { context.params.amount <= 100 && context.params.to like \"acct-*\" }\nunless { context.params.to == \"acct-0\" };",
    );
    let teller = caller("t", &["teller"]);
    let raw = serde_json::value::RawValue::from_string(r#"["acct-0",500]"#.into()).unwrap();
    let question = sealwire::Question { caller: &teller, method: "bank/transfer", params: Some(&raw), now_ms: 0 };
    let text = set.explain(&question).to_string();
    for line in [
        "    no   context.params.amount <= 100 (amount = 500)",
        "    yes  context.params.to like \"acct-*\" (to = \"acct-0\")",
        "    no   unless context.params.to == \"acct-0\" (to = \"acct-0\")",
    ] {
        assert!(text.lines().any(|found| found == line), "missing: {line}\nin:\n{text}");
    }
}

#[test]
fn unknown_methods_are_judged_by_conditions_on_the_action_too() {
    let set = cedar(
        "permit(principal, action in Action::\"math/*\", resource) when { action in Action::\"*\" && action != Action::\"math/reset\" };\n",
    );
    let agent = caller("x", &[]);
    assert!(allows(&set, &agent, "math/add", ""));
    assert_eq!(ask(&set, &agent, "math/none", "").reason, Reason::UnknownMethod { would_allow: true });
    assert_eq!(ask(&set, &agent, "bank/none", "").reason, Reason::UnknownMethod { would_allow: false });
}
