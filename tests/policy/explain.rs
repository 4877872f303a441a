//! What `policy explain` says about each kind of condition: what was required and what the call had, in the operator's words.

use sealwire::{Caller, PolicySet, Question};
use sealwire_testkit::policies::*;
use serde_json::json;
use serde_json::value::RawValue;

const BASE: &str = r#"
[method.m]
params = [
  { name = "amount", type = "integer" },
  { name = "to", type = "string", optional = true },
  { name = "flag", type = "boolean", optional = true },
  { name = "ids", type = "integer[]", optional = true },
  { name = "ratio", type = "number", optional = true },
  { name = "memo", type = "any", optional = true },
  { name = "order", type = "object", optional = true, fields = [
    { name = "amount", type = "integer" },
    { name = "tags", type = "string[]", optional = true } ] },
]
[claims]
tenant = "string"
groups = "string[]"
[attributes]
team = "string"
teams = "string[]"
[role.teller]
[agent.planner]
attributes = { team = "blue", teams = ["b", "a"] }
"#;

const PARAMS: &str = r#"{"amount":5,"to":"alice","flag":true,"ids":[3,1,3],"ratio":1.50e0,"memo":{"a":1},"order":{"amount":7,"tags":["x","x"]}}"#;

/// A caller about whom everything is known, on Monday, 2026-09-21 at 14:13:20 UTC.
fn planner() -> Caller {
    let mut caller = caller("planner", &["teller"]);
    caller.token.issued_at = MONDAY_AFTERNOON / 1000 - 90;
    caller.token.expires_at = MONDAY_AFTERNOON / 1000 + 3600;
    caller.token.id = "t-1".into();
    caller.token.issuer = "https://idp.example".into();
    caller.token.key = "idp-1".into();
    caller.token.claims = json!({ "tenant": "acme", "groups": ["b", "a"] }).as_object().unwrap().clone();
    caller
}

fn explain(set: &PolicySet, caller: &Caller, params: &str) -> String {
    let raw = RawValue::from_string(params.to_owned()).unwrap();
    let question = Question { caller, method: "m", params: Some(&raw), now_ms: MONDAY_AFTERNOON };
    set.explain(&question).to_string()
}

/// The lines about the conditions of a rule, without those about whom it applies to.
fn told(text: &str) -> Vec<String> {
    let lines = text.lines().filter(|line| line.starts_with("    "));
    lines.map(|line| line.trim().to_owned()).filter(|line| !line.contains(" calls")).collect()
}

fn toml_lines(conditions: &str, params: &str) -> Vec<String> {
    let set = toml(&format!("{BASE}[rule.r]\neveryone = true\nallow = [\"m\"]\n{conditions}\n"));
    told(&explain(&set, &planner(), params))
}

fn cedar_lines(condition: &str, params: &str) -> Vec<String> {
    let policy = format!("@id(\"r\") permit(principal, action, resource) when {{ {condition} }};");
    let (set, _) =
        load(&[("base.toml", BASE), ("r.cedar", &policy)]).unwrap_or_else(|errors| panic!("{condition}\n{errors}"));
    told(&explain(&set, &planner(), params))
}

#[test]
fn each_condition_of_a_toml_rule_says_what_the_call_had() {
    for (condition, line) in [
        ("when.params.amount = 6", "no   `amount` is 6 (amount = 5)"),
        ("when.params.amount = { not = 6 }", "yes  `amount` is not 6 (amount = 5)"),
        ("when.params.amount = { in = [1, 5] }", "yes  `amount` is one of 1, 5 (amount = 5)"),
        ("when.params.amount = { not_in = [1, 5] }", "no   `amount` is none of 1, 5 (amount = 5)"),
        ("when.params.amount = { min = 6 }", "no   `amount` is at least 6 (amount = 5)"),
        ("when.params.amount = { max = 6 }", "yes  `amount` is at most 6 (amount = 5)"),
        ("when.params.to = { glob = \"b*\" }", "no   `to` matches `b*` (to = \"alice\")"),
        ("when.params.to = { not_glob = \"b*\" }", "yes  `to` does not match `b*` (to = \"alice\")"),
        (
            "when.params.to.same_as = \"agent\"",
            "no   `to` is the same as the agent (agent = \"planner\", to = \"alice\")",
        ),
        ("when.params.to.present = true", "yes  `to` is there (to = \"alice\")"),
        ("when.params.to.present = false", "no   `to` is absent (to = \"alice\")"),
        ("when.params.flag = true", "yes  `flag` is true (flag = true)"),
        ("when.params.ids = { max_size = 2 }", "no   `ids` has at most 2 values (ids = [3,1,3])"),
        ("when.params.ids = { min_size = 3 }", "yes  `ids` has at least 3 values (ids = [3,1,3])"),
        ("when.params.ids = { contains = 3 }", "yes  `ids` contains 3 (ids = [3,1,3])"),
        ("when.params.ids = { contains_any = [4] }", "no   `ids` contains one of 4 (ids = [3,1,3])"),
        ("when.params.ids = { each_in = [1, 3] }", "yes  every value of `ids` is one of 1, 3 (ids = [3,1,3])"),
        ("when.params.ratio.present = true", "yes  `ratio` is there (ratio = 1.50e0)"),
        ("when.params.memo.present = true", "yes  `memo` is there (memo = …)"),
        ("when.params.order.amount = { max = 6 }", "no   `order.amount` is at most 6 (order.amount = 7)"),
        (
            "when.params.order.tags = { min_size = 2 }",
            "yes  `order.tags` has at least 2 values (order.tags = [\"x\",\"x\"])",
        ),
        ("when.claims.tenant = \"x\"", "no   the claim `tenant` is `x` (claims.tenant = \"acme\")"),
        (
            "when.claims.groups = { contains = \"a\" }",
            "yes  the claim `groups` contains `a` (claims.groups = [\"b\",\"a\"])",
        ),
        ("when.attributes.team = \"red\"", "no   the caller's attribute `team` is `red` (attributes.team = \"blue\")"),
        (
            "when.attributes.teams = { contains = \"a\" }",
            "yes  the caller's attribute `teams` contains `a` (attributes.teams = [\"b\",\"a\"])",
        ),
        ("when.agent = { glob = \"x*\" }", "no   the agent matches `x*` (agent = \"planner\")"),
        ("when.subject = \"x\"\ndelegated = \"also\"", "no   the subject is `x` (subject = absent)"),
        ("when.issuer = \"x\"", "no   the token's issuer is `x` (token.issuer = \"https://idp.example\")"),
        ("when.key = \"x\"", "no   the key is `x` (key = \"planner.k1\")"),
        ("when.algorithm = \"EdDSA\"", "no   the signature is `EdDSA` (algorithm = \"HS256\")"),
        ("when.token_age = \"1m\"", "no   the token is at most 1m old (issued 1m 30s ago)"),
        ("when.token_age = { min = \"1m\" }", "yes  the token is at least 1m old (issued 1m 30s ago)"),
        ("when.hours = \"08:00-14:00\"", "no   it is between 08:00 and 14:00 UTC (it is 14:13 UTC)"),
        ("when.hours = \"22:00 - 16:00\"", "yes  it is between 22:00 and 16:00 UTC (it is 14:13 UTC)"),
        ("when.days = [\"sat\", \"sun\"]", "no   it is on sat, sun UTC (it is mon 14:13 UTC)"),
        (
            "when.hours = \"08:00-18:00\"\nwhen.days = [\"mon-fri\"]\nwhen.utc_offset = \"+02:00\"",
            "yes  it is between 08:00 and 18:00 UTC+02:00 on mon-fri (it is mon 14:13 UTC)",
        ),
        (
            "unless.hours = \"08:00-18:00\"\nunless.params.amount = { min = 5 }",
            "no   not (`amount` is at least 5 and it is between 08:00 and 18:00 UTC) (amount = 5, it is 14:13 UTC)",
        ),
    ] {
        assert_eq!(toml_lines(condition, PARAMS), [line], "{condition}");
    }
}

#[test]
fn each_attribute_of_the_cedar_context_is_said_in_words() {
    for (condition, line) in [
        ("context.hour == 14", "yes  context.hour == 14 (it is 14:13 UTC)"),
        ("context.minute == 0", "no   context.minute == 0 (it is 14:13 UTC)"),
        ("context.minute_of_day < 5", "no   context.minute_of_day < 5 (it is 14:13 UTC)"),
        ("context.minute_of_week < 5", "no   context.minute_of_week < 5 (it is mon 14:13 UTC)"),
        ("context.weekday == \"tue\"", "no   context.weekday == \"tue\" (it is mon 14:13 UTC)"),
        (
            "context.hour == 15 || context.weekday == \"tue\"",
            "no   (context.hour == 15) || (context.weekday == \"tue\") (it is mon 14:13 UTC)",
        ),
        (
            "context.now < datetime(\"2026-01-01\")",
            "no   context.now < datetime(\"2026-01-01\") (it is 2026-09-21T14:13:20.000Z)",
        ),
        ("context.token.age_s < 60", "no   context.token.age_s < 60 (issued 1m 30s ago)"),
        ("context.token.remaining_s > 60", "yes  context.token.remaining_s > 60 (it expires in 1h)"),
        ("context.token.id == \"x\"", "no   context.token.id == \"x\" (token.id = \"t-1\")"),
        ("context.token.key == \"x\"", "no   context.token.key == \"x\" (token.key = \"idp-1\")"),
        ("context.params.amount == 5", "yes  context.params.amount == 5 (amount = 5)"),
        ("context.params has ratio", "yes  context.params has ratio (ratio = 1.50e0)"),
        ("principal has team", "yes  principal has team (attributes.team = \"blue\")"),
        ("principal in Role::\"teller\"", "yes  principal in Role::\"teller\""),
    ] {
        assert_eq!(cedar_lines(condition, PARAMS), [line], "{condition}");
    }
    let list = cedar_lines("context.params has ids && context.params.ids.size == 3", PARAMS);
    assert_eq!(
        list,
        ["yes  context.params has ids (ids = [3,1,3])", "yes  context.params.ids.size == 3 (ids = [3,1,3])"]
    );
}

#[test]
fn what_is_absent_is_said_to_be_and_what_hangs_on_it_is_skipped() {
    let line = &toml_lines("when.params.ids = { contains = 3 }", r#"{"amount":1}"#)[0];
    assert_eq!(line, "no   `ids` contains 3 (ids = absent)");
    let line = &toml_lines("when.params.order.tags = { contains = \"x\" }", r#"{"amount":1}"#)[0];
    assert_eq!(line, "no   `order.tags` contains `x` (order = absent)");
    let lines = cedar_lines("context.params has ids && context.params.ids.size == 3", r#"{"amount":1}"#);
    assert_eq!(lines, ["no   context.params has ids (ids = absent)", "skip context.params.ids.size == 3"]);
    let lines = cedar_lines("context.params.amount + 1 > 0", r#"{"amount":9223372036854775807}"#);
    assert!(lines[0].starts_with("fail (context.params.amount + 1) > 0: integer overflow"), "{lines:?}");
}

#[test]
fn claim_of_another_type_is_named_where_a_rule_asks_for_it() {
    let set = toml(&format!(
        "{BASE}[rule.r]\neveryone = true\nallow = [\"m\"]\nwhen.claims.tenant = \"acme\"\nwhen.token_age = \"5m\"\n"
    ));
    let mut caller = planner();
    caller.token.claims.insert("tenant".into(), json!(["acme"]));
    let text = explain(&set, &caller, PARAMS);
    assert!(text.starts_with("deny: the token's claim `tenant` is not of its declared type\n"), "{text}");
    assert!(text.contains("allow rule `r` (policy.toml:23) fails\n"), "{text}");
    assert_eq!(
        told(&text),
        [
            "fail the claim `tenant` is `acme`: the token's claim `tenant` is not of its declared type",
            "yes  the token is at most 5m old (issued 1m 30s ago)"
        ]
    );
}

#[test]
fn long_values_are_cut() {
    let long = format!(r#"{{"amount":1,"to":"{}"}}"#, "é".repeat(500));
    let line = &toml_lines("when.params.to = { glob = \"b*\" }", &long)[0];
    assert_eq!(*line, format!("no   `to` matches `b*` (to = \"{})", "é".repeat(79)));
}
