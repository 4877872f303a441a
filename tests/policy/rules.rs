//! Rules with conditions: each kind of condition, and each way of getting around a condition on an argument.

use sealwire::configure::ProofAlgorithm;
use sealwire::decide::{Methods, Param, Reason, Verdict};
use sealwire::{MethodName, PolicySet};
use sealwire_testkit::policies::*;
use serde_json::json;

const BANK: &str = r#"
[method."bank/transfer"]
params = [
  { name = "to", type = "string" },
  { name = "amount", type = "integer" },
  { name = "note", type = "string", optional = true },
]
[method."bank/balance"]
params = [{ name = "account", type = "string" }]

[role.teller]

[rule.small-transfers]
description = "Tellers move small amounts."
roles = ["teller"]
allow = ["bank/transfer"]
when.params.amount = { min = 1, max = 10_000 }

[rule.no-offshore]
everyone = true
deny = ["bank/transfer"]
when.params.to = { glob = "offshore-*" }
"#;

fn transfer(params: &str) -> sealwire::Decision {
    ask(&toml(BANK), &caller("t", &["teller"]), "bank/transfer", params)
}

#[test]
fn amount_is_limited_by_name_and_by_position() {
    assert_eq!(transfer(r#"{"to":"a","amount":10000}"#).rule.unwrap().name(), "small-transfers");
    assert!(transfer(r#"["a",10000]"#).is_allow());
    assert_eq!(transfer(r#"{"to":"a","amount":10001}"#).reason, Reason::NoRule);
    assert_eq!(transfer(r#"["a",10001]"#).reason, Reason::NoRule);
    assert_eq!(transfer(r#"["a",0]"#).reason, Reason::NoRule);
    assert_eq!(transfer(r#"["offshore-1",5]"#).reason, Reason::ForbiddenBy);
}

#[test]
fn amount_as_exponent_is_refused() {
    assert_eq!(transfer(r#"{"to":"a","amount":1e3}"#).reason, Reason::ParamType("amount".into()));
    assert_eq!(transfer(r#"["a",1e9]"#).reason, Reason::ParamType("amount".into()));
}

#[test]
fn amount_as_fraction_is_refused() {
    assert_eq!(transfer(r#"{"to":"a","amount":1.0}"#).reason, Reason::ParamType("amount".into()));
}

#[test]
fn amount_as_text_is_refused() {
    assert_eq!(transfer(r#"{"to":"a","amount":"5"}"#).reason, Reason::ParamType("amount".into()));
}

#[test]
fn amount_given_twice_is_refused() {
    let reason = Reason::ParamRepeated("amount".into());
    assert_eq!(transfer(r#"{"to":"a","amount":5,"amount":50000}"#).reason, reason);
    assert_eq!(transfer(r#"{"to":"a","amount":5,"\u0061mount":50000}"#).reason, reason);
}

#[test]
fn amount_beyond_64_bits_is_refused() {
    assert_eq!(transfer(r#"{"to":"a","amount":18446744073709551617}"#).reason, Reason::ParamType("amount".into()));
    assert_eq!(transfer(r#"{"to":"a","amount":-9223372036854775809}"#).reason, Reason::ParamType("amount".into()));
}

#[test]
fn amount_in_another_place_is_refused() {
    assert_eq!(transfer(r#"{"to":"a","amount":{"value":5}}"#).reason, Reason::ParamType("amount".into()));
    assert_eq!(transfer(r#"{"to":"a","amount":[5]}"#).reason, Reason::ParamType("amount".into()));
    assert_eq!(
        transfer(r#"{"to":"a","amount":5,"inner":{"amount":50000}}"#).reason,
        Reason::ParamUndeclared("inner".into())
    );
    assert_eq!(transfer(r#"["a",5,null,50000]"#).reason, Reason::ParamUndeclared("4".into()));
}

#[test]
fn amount_under_an_alias_is_refused() {
    assert_eq!(transfer(r#"{"to":"a","amount":5,"amt":50000}"#).reason, Reason::ParamUndeclared("amt".into()));
    assert_eq!(transfer(r#"{"to":"a","Amount":5}"#).reason, Reason::ParamUndeclared("Amount".into()));
}

#[test]
fn amount_left_out_is_refused() {
    assert_eq!(transfer(r#"{"to":"a"}"#).reason, Reason::ParamMissing("amount".into()));
    assert_eq!(transfer(r#"["a"]"#).reason, Reason::ParamMissing("amount".into()));
    assert_eq!(transfer("").reason, Reason::ParamMissing("to".into()));
    assert_eq!(transfer(r#"["a",null]"#).reason, Reason::ParamType("amount".into()));
}

#[test]
fn what_is_wrong_with_parameters_is_told_only_to_those_who_might_call() {
    let set = toml(BANK);
    let bad = r#"{"to":"a","amount":1e9}"#;
    assert_eq!(ask(&set, &caller("t", &["teller"]), "bank/transfer", bad).reason, Reason::ParamType("amount".into()));
    assert_eq!(ask(&set, &caller("x", &[]), "bank/transfer", bad).reason, Reason::NoRule);
}

#[test]
fn methods_without_conditions_on_arguments_take_any() {
    let text = format!("{BANK}\n[rule.look]\nroles = [\"teller\"]\nallow = [\"bank/balance\"]\n");
    let set = toml(&text);
    assert!(allows(&set, &caller("t", &["teller"]), "bank/balance", r#"{"anything":1}"#));
}

#[test]
fn code_and_files_must_agree_about_parameters() {
    let name = || MethodName::new("bank/transfer").unwrap();
    let agreed = [Param::string("to"), Param::integer("amount"), Param::string("note").optional()];
    let balance = MethodName::new("bank/balance").unwrap();
    let methods = Methods::new().with(balance.clone()).with_params(name(), agreed);
    assert!(PolicySet::from_texts([("a.toml", BANK)], &methods).is_ok());
    let swapped = [Param::integer("amount"), Param::string("to"), Param::string("note").optional()];
    let methods = Methods::new().with(balance).with_params(name(), swapped);
    let errors = PolicySet::from_texts([("a.toml", BANK)], &methods).unwrap_err().to_string();
    assert!(
        errors.contains("a.toml:3: error: the parameters of `bank/transfer` are not those that the service declares"),
        "{errors}"
    );
    assert!(errors.contains("the service has (amount: integer, to: string, note?: string)"), "{errors}");
}

/// One method with a parameter of every type, allowed when the condition holds.
fn holds(condition: &str, params: &str) -> bool {
    let text = format!(
        r#"
[method.m]
params = [
  {{ name = "text", type = "string", optional = true }},
  {{ name = "count", type = "integer", optional = true }},
  {{ name = "flag", type = "boolean", optional = true }},
  {{ name = "ids", type = "integer[]", optional = true }},
  {{ name = "names", type = "string[]", optional = true }},
  {{ name = "order", type = "object", optional = true, fields = [
    {{ name = "amount", type = "integer" }}, {{ name = "to", type = "string", optional = true }} ] }},
  {{ name = "ratio", type = "number", optional = true }},
]
[rule.r]
everyone = true
allow = ["m"]
{condition}
"#
    );
    allows(&toml(&text), &caller("a", &[]), "m", params)
}

#[test]
fn every_condition_on_a_parameter_does_what_its_name_says() {
    for (condition, yes, no) in [
        ("when.params.text = \"x\"", r#"{"text":"x"}"#, r#"{"text":"y"}"#),
        ("when.params.text.is = \"x\"", r#"{"text":"x"}"#, r#"{"text":"X"}"#),
        ("when.params.text.not = \"x\"", r#"{"text":"y"}"#, r#"{"text":"x"}"#),
        ("when.params.text.in = [\"x\", \"y\"]", r#"{"text":"y"}"#, r#"{"text":"z"}"#),
        ("when.params.text.not_in = [\"x\", \"y\"]", r#"{"text":"z"}"#, r#"{"text":"y"}"#),
        ("when.params.text.glob = \"a*c\"", r#"{"text":"abc"}"#, r#"{"text":"abd"}"#),
        ("when.params.text.not_glob = \"a*\"", r#"{"text":"b"}"#, r#"{"text":"ab"}"#),
        ("when.params.text.present = true", r#"{"text":""}"#, r#"{}"#),
        ("when.params.text.present = false", r#"{"text":null}"#, r#"{"text":""}"#),
        ("when.params.text.same_as = \"agent\"", r#"{"text":"a"}"#, r#"{"text":"b"}"#),
        ("when.params.count = 5", "[null, 5]", "[null, 6]"),
        ("when.params.count.min = 5", "[null, 5]", "[null, 4]"),
        ("when.params.count.max = 5", "[null, 5]", "[null, 6]"),
        ("when.params.count.in = [1, -2]", "[null, -2]", "[null, 2]"),
        ("when.params.count.not = 5", "[null, 4]", "[null, 5]"),
        ("when.params.flag = true", r#"{"flag":true}"#, r#"{"flag":false}"#),
        ("when.params.ids.max_size = 2", r#"{"ids":[1,1]}"#, r#"{"ids":[1,1,1]}"#),
        ("when.params.ids.min_size = 2", r#"{"ids":[1,1]}"#, r#"{"ids":[1]}"#),
        ("when.params.ids.contains = 3", r#"{"ids":[1,3]}"#, r#"{"ids":[1]}"#),
        ("when.params.ids.contains_any = [3, 4]", r#"{"ids":[1,4]}"#, r#"{"ids":[1]}"#),
        ("when.params.ids.each_in = [3, 4]", r#"{"ids":[3,4,3]}"#, r#"{"ids":[3,5]}"#),
        ("when.params.names.each_in = [\"x\"]", r#"{"names":[]}"#, r#"{"names":["y"]}"#),
        ("when.params.order.amount = { max = 5 }", r#"{"order":{"amount":5}}"#, r#"{"order":{"amount":6}}"#),
        ("when.params.order.to = \"x\"", r#"{"order":{"amount":5,"to":"x"}}"#, r#"{"order":{"amount":5}}"#),
        ("when.params.ratio.present = true", r#"{"ratio":0.5}"#, r#"{}"#),
        ("unless.params.text = \"x\"", r#"{}"#, r#"{"text":"x"}"#),
        ("unless.params.count = { min = 2, max = 4 }", "[null, 5]", "[null, 3]"),
    ] {
        assert!(holds(condition, yes), "{condition} with {yes}");
        assert!(!holds(condition, no), "{condition} with {no}");
        if !condition.contains("present = false") && !condition.starts_with("unless") {
            assert!(!holds(condition, "{}"), "{condition} without the parameter");
        }
    }
}

#[test]
fn hours_and_days_follow_the_clock_and_the_offset() {
    let text = r#"
[method.m]
[rule.office]
everyone = true
allow = ["m"]
when.hours = "08:00-18:00"
when.days = ["mon-fri"]
when.utc_offset = "+02:00"
"#;
    let set = toml(text);
    let at = |now_ms: u64| ask_at(&set, &caller("a", &[]), "m", "", now_ms).is_allow();
    let hour = 3_600_000;
    let monday = MONDAY_AFTERNOON - MONDAY_AFTERNOON % (24 * hour);
    assert!(!at(monday + 6 * hour - 1));
    assert!(at(monday + 6 * hour), "08:00 two hours east");
    assert!(at(monday + 16 * hour - 1));
    assert!(!at(monday + 16 * hour), "the end is not included");
    assert!(!at(monday + 5 * 24 * hour + 10 * hour), "Saturday");
    let _no_panic = at(u64::MAX);
}

#[test]
fn fresh_tokens_signatures_claims_and_attributes_can_be_asked() {
    let text = r#"
[method."admin/drain-cache"]
[method."audit/read"]
[claims]
tenant = "string"
groups = "string[]"
[attributes]
team = "string"
[role.operator]
[agent."ops"]
attributes = { team = "blue" }

[rule.fresh]
roles = ["operator"]
allow = ["admin/drain-cache"]
when.token_age = "5m"
when.algorithm = "EdDSA"

[rule.tenants]
everyone = true
allow = ["audit/read"]
when.claims.tenant = { in = ["acme"] }
when.claims.groups = { contains = "audit" }
when.attributes.team = "blue"
when.agent = { glob = "op*" }
"#;
    let set = toml(text);
    let mut operator = caller("ops", &["operator"]);
    operator.algorithm = ProofAlgorithm::EdDsa;
    let now = MONDAY_AFTERNOON / 1000;
    for (issued_at, expected) in [(now - 300, true), (now - 301, false), (now + 3, true), (0, false)] {
        operator.token.issued_at = issued_at;
        assert_eq!(allows(&set, &operator, "admin/drain-cache", ""), expected, "{issued_at}");
    }
    operator.token.issued_at = now;
    operator.algorithm = ProofAlgorithm::Hs256;
    assert!(!allows(&set, &operator, "admin/drain-cache", ""), "signed with a shared key");

    let mut reader = caller("ops", &[]);
    let mut with = |claims: serde_json::Value| {
        reader.token.claims = claims.as_object().unwrap().clone();
        ask(&set, &reader, "audit/read", "")
    };
    assert!(with(json!({"tenant": "acme", "groups": ["x", "audit"]})).is_allow());
    assert_eq!(with(json!({"tenant": "evil", "groups": ["audit"]})).reason, Reason::NoRule);
    assert_eq!(with(json!({"tenant": "acme"})).reason, Reason::NoRule);
    assert_eq!(with(json!({"tenant": ["acme"], "groups": ["audit"]})).reason, Reason::ClaimType("tenant".into()));
    let mut other = caller("opera", &[]);
    other.token.claims = json!({"tenant": "acme", "groups": ["audit"]}).as_object().unwrap().clone();
    assert!(!allows(&set, &other, "audit/read", ""), "an agent without the attribute");
}

#[test]
fn a_claim_of_another_type_does_not_open_a_deny_rule() {
    let text = r#"
[method.m]
[claims]
blocked = "boolean"
[rule.open]
everyone = true
allow = ["m"]
[rule.blocked]
everyone = true
deny = ["m"]
when.claims.blocked = true
"#;
    let set = toml(text);
    let mut agent = caller("a", &[]);
    assert!(allows(&set, &agent, "m", ""));
    for (value, reason) in [(json!(true), Reason::ForbiddenBy), (json!("true"), Reason::ClaimType("blocked".into()))] {
        agent.token.claims.insert("blocked".into(), value);
        assert_eq!(ask(&set, &agent, "m", "").reason, reason);
    }
}

#[test]
fn delegation_is_never_also_or_only() {
    let text = r#"
[method.own]
[method.both]
[method.behalf]
[role.r]
[rule.own]
roles = ["r"]
allow = ["own"]
[rule.both]
roles = ["r"]
allow = ["both"]
delegated = "also"
[rule.behalf]
roles = ["r"]
allow = ["behalf"]
delegated = "only"
"#;
    let set = toml(text);
    let (own, behalf) = (caller("a", &["r"]), on_behalf_of("a", "alice", &["r"]));
    let outcome = |method: &str| (allows(&set, &own, method, ""), allows(&set, &behalf, method, ""));
    assert_eq!(outcome("own"), (true, false));
    assert_eq!(outcome("both"), (true, true));
    assert_eq!(outcome("behalf"), (false, true));
}

#[test]
fn roles_include_others_and_tokens_are_not_believed_for_roles_from_files() {
    let text = r#"
[method.m]
[method.n]
[role.reader]
allow = ["m"]
[role.writer]
includes = ["reader"]
[role.admin]
from = "files"
includes = ["writer"]
allow = ["n"]
[agent."root"]
roles = ["admin"]
"#;
    let set = toml(text);
    assert!(allows(&set, &caller("x", &["writer"]), "m", ""));
    assert!(allows(&set, &caller("root", &[]), "m", ""), "through two steps");
    assert!(allows(&set, &caller("root", &[]), "n", ""));
    assert!(!allows(&set, &caller("x", &["admin"]), "n", ""), "a token cannot claim it");
    assert!(!allows(&set, &caller("x", &["admin"]), "m", ""), "nor what it includes");
}

#[test]
fn agents_are_named_or_matched() {
    let set = toml("[method.m]\n[rule.r]\nagents = [\"a\", \"worker-*\"]\nallow = [\"m\"]\n");
    for (name, expected) in [("a", true), ("worker-1", true), ("worker", false), ("aa", false)] {
        assert_eq!(allows(&set, &caller(name, &[]), "m", ""), expected, "{name}");
    }
}

#[test]
fn shadow_rules_report_and_never_decide() {
    let text = r#"
[method.m]
params = [{ name = "n", type = "integer" }]
[method.closed]
[rule.open]
agents = ["a"]
allow = ["m"]
[rule.limit]
everyone = true
deny = ["m"]
mode = "shadow"
when.params.n = { min = 10 }
[rule.try]
agents = ["b"]
allow = ["m", "closed"]
mode = "shadow"
"#;
    let set = toml(text);
    let small = ask(&set, &caller("a", &[]), "m", "[1]");
    assert!(small.is_allow() && small.shadow.is_empty());
    let large = ask(&set, &caller("a", &[]), "m", "[10]");
    assert_eq!(large.verdict, Verdict::Allow);
    assert_eq!((large.shadow[0].rule.name(), large.shadow[0].would), ("limit", Verdict::Deny));
    let odd = ask(&set, &caller("a", &[]), "m", "[1e1]");
    assert_eq!(odd.verdict, Verdict::Allow, "a shadow rule does not make parameters strict");
    assert_eq!((odd.shadow[0].rule.name(), odd.shadow[0].would), ("limit", Verdict::Deny));
    let denied = ask(&set, &caller("b", &[]), "closed", "");
    assert_eq!((denied.verdict, denied.reason), (Verdict::Deny, Reason::NoRule));
    assert_eq!((denied.shadow[0].rule.name(), denied.shadow[0].would), ("try", Verdict::Allow));
    assert!(ask(&set, &caller("c", &[]), "closed", "").shadow.is_empty());
}

#[test]
fn shadow_rules_of_delegated_calls_count_for_the_call_as_a_whole() {
    let text = r#"
[method.m]
[rule.try]
agents = ["a"]
allow = ["m"]
delegated = "also"
mode = "shadow"
"#;
    let set = toml(text);
    assert_eq!(ask(&set, &caller("a", &[]), "m", "").shadow.len(), 1);
    assert!(ask(&set, &on_behalf_of("a", "alice", &[]), "m", "").shadow.is_empty(), "alice would still be refused");
}

#[test]
fn the_explanation_says_what_was_asked_and_what_was_there() {
    let set = toml(BANK);
    let teller = caller("t", &["teller"]);
    let raw = serde_json::value::RawValue::from_string(r#"["a",25000]"#.into()).unwrap();
    let question =
        sealwire::Question { caller: &teller, method: "bank/transfer", params: Some(&raw), now_ms: MONDAY_AFTERNOON };
    let text = set.explain(&question).to_string();
    for line in [
        "deny: no rule allows it",
        "  allow rule `small-transfers` (policy.toml:13) does not match",
        "    yes  the caller has the role `teller`",
        "    yes  `amount` is at least 1 (amount = 25000)",
        "    no   `amount` is at most 10000 (amount = 25000)",
        "    no   `to` matches `offshore-*` (to = \"a\")",
    ] {
        assert!(text.lines().any(|found| found == line), "missing: {line}\nin:\n{text}");
    }
}
