#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic, reason = "tests")]

use std::fmt::Write as _;

use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use serde_json::json;
use serde_json::value::RawValue;

use super::super::decision::Decision;
use super::super::method::MethodPolicies;
use super::super::principal::{Principal, principals};
use super::super::set::PolicySet;
use crate::auth::Caller;
use crate::name::{MethodName, Name};
use crate::policy::model::{OPEN_TO_ALL, PrincipalKind};
use crate::policy::{Methods, Question, Reason};

const BASE: &str = r#"
[method.m]
params = [{ name = "amount", type = "integer" }]
[method.n]
params = [{ name = "amount", type = "integer" }]
[claims]
tenant = "string"
[role.r0]
[role.r1]
[role.r2]
includes = ["r0"]
[role.r3]
includes = ["r2", "r1"]
[role.files]
from = "files"
includes = ["r1"]
[agent.a1]
roles = ["files"]
[agent.alice]
roles = ["r0"]
[subject.alice]
roles = ["r1"]
[subject.a1]
roles = ["r2"]
"#;

fn load(toml: &str, cedar: &str) -> PolicySet {
    let files = [("base.toml", BASE), ("rules.toml", toml), ("rules.cedar", cedar)];
    PolicySet::from_texts(files, &Methods::from_files()).unwrap_or_else(|errors| panic!("{errors}\n{toml}\n{cedar}")).0
}

fn policies<'a>(set: &'a PolicySet, method: &str) -> &'a MethodPolicies {
    set.policies_for(method).unwrap()
}

/// What the groups about each principal decide for it, and what all groups decide.
fn both_ways(set: &PolicySet, question: &Question<'_>) -> Vec<(Decision, Decision)> {
    let Some(policies) = set.policies_for(question.method) else { return Vec::new() };
    let (checked, facts) = (set.checked(), policies.facts(question));
    let decide = |kind| {
        let principal = Principal::of(question.caller, kind, checked);
        (policies.decide(&facts, &principal), policies.decide_by(&policies.by_caller.all(), &facts, &principal))
    };
    principals(question.caller).map(decide).collect()
}

/// How many policies are evaluated for a call of this caller.
fn evaluated(set: &PolicySet, method: &str, caller: &Caller) -> usize {
    let groups = policies(set, method).by_caller.of(&Principal::of(caller, PrincipalKind::Agent, set.checked()));
    groups.iter().map(|group| group.enforced.num_of_policies()).sum()
}

fn caller(agent: &str, roles: &[&str]) -> Caller {
    Caller::new(Name::new(agent).unwrap(), roles.iter().map(ToString::to_string))
}

/// Rules in TOML, and rules in Cedar that fail for large amounts.
fn any_policies() -> impl Strategy<Value = (String, String)> {
    let roles = || subsequence(vec!["r0", "r1", "r2", "r3", "files"], 0..3);
    let agents = || subsequence(vec!["a0", "a1", "alice", "a*", "*e"], 0..3);
    let subjects = || subsequence(vec!["a1", "alice", "a*"], 0..2);
    let methods = || select(vec!["[\"m\"]", "[\"n\"]", "[\"m\", \"n\"]", "[\"*\"]"]);
    let condition = select(vec![
        "",
        "",
        "when.params.amount = { max = 5 }\n",
        "unless.params.amount = { max = 5 }\n",
        "when.claims.tenant = \"acme\"\n",
        "when.hours = \"08:00-18:00\"\n",
    ]);
    let delegated = select(vec!["", "delegated = \"also\"\n", "delegated = \"only\"\n"]);
    let flags = (prop::bool::weighted(0.3), prop::bool::weighted(0.2), prop::bool::weighted(0.2));
    let toml = prop::collection::vec((roles(), agents(), subjects(), methods(), condition, delegated, flags), 0..9);
    let whom = select(vec![
        "in Role::\"r0\"",
        "in Role::\"r1\"",
        "in Role::\"r3\"",
        "== Agent::\"a1\"",
        "== Subject::\"a1\"",
        "",
    ]);
    let condition =
        select(vec!["context.params.amount + 9223372036854775800 > 0", "context.now > datetime(\"2020-01-01\")"]);
    let cedar = prop::collection::vec((whom, select(vec!["m", "n", "*"]), condition), 0..3);
    (toml, cedar).prop_map(|(toml, cedar)| {
        let (mut text, mut policies) = (String::new(), String::new());
        for (number, (roles, agents, subjects, methods, condition, delegated, (deny, shadow, everyone))) in
            toml.iter().enumerate()
        {
            let effect = if *deny { "deny" } else { "allow" };
            let delegated =
                if subjects.is_empty() || !delegated.is_empty() { *delegated } else { "delegated = \"also\"\n" };
            let whom = if *everyone || (roles.is_empty() && agents.is_empty() && subjects.is_empty()) {
                "everyone = true".to_owned()
            } else {
                format!("roles = {roles:?}\nagents = {agents:?}\nsubjects = {subjects:?}")
            };
            let mode = if *shadow { "mode = \"shadow\"\n" } else { "" };
            writeln!(text, "[rule.t{number}]\n{whom}\n{effect} = {methods}\n{mode}{delegated}{condition}").unwrap();
        }
        for (number, (whom, method, condition)) in cedar.iter().enumerate() {
            let scope = format!("principal {whom}, action in Action::\"{method}\", resource");
            // Only a delegated call has a subject.
            let delegated = if whom.contains("Subject") { "@delegated(\"also\") " } else { "" };
            writeln!(policies, "@id(\"c{number}\") {delegated}permit({scope}) when {{ {condition} }};").unwrap();
        }
        (text, policies)
    })
}

fn any_caller() -> impl Strategy<Value = Caller> {
    let tenant = prop::option::of(select(vec![json!("acme"), json!("evil"), json!(5)]));
    let roles = subsequence(vec!["r0", "r1", "r2", "r3", "files", "unknown"], 0..4);
    (select(vec!["a0", "a1", "b"]), roles, prop::option::weighted(0.3, select(vec!["alice", "a1", "zoe"])), tenant)
        .prop_map(|(agent, roles, subject, tenant)| {
            let mut caller = caller(agent, &roles);
            if let Some(subject) = subject {
                caller.subject = subject.to_owned();
                caller.delegated = true;
            }
            caller.token.claims.extend(tenant.map(|tenant| ("tenant".to_owned(), tenant)));
            caller
        })
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(48),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn what_is_kept_of_callers_answers_for_no_other(
        (toml, cedar) in any_policies(),
        callers in prop::collection::vec(any_caller(), 6),
    ) {
        let used = load(&toml, &cedar);
        for caller in callers.iter().chain(&callers) {
            let fresh = load(&toml, &cedar);
            for method in ["m", "n", "none"] {
                let params = RawValue::from_string("[1]".to_owned()).unwrap();
                let question = Question { caller, method, params: Some(&params), now_ms: 1_789_992_000_000 };
                prop_assert_eq!(used.decide(&question), fresh.decide(&question), "{}\n{}\n{:?}", toml, cedar, caller);
            }
        }
    }

    #[test]
    fn the_groups_about_a_caller_decide_as_all_groups_do(
        (toml, cedar) in any_policies(),
        callers in prop::collection::vec(any_caller(), 6),
        method in select(vec!["m", "n", "none"]),
    ) {
        let set = load(&toml, &cedar);
        for caller in &callers {
            for params in [Some("[1]"), Some("[100]"), Some("[1e2]"), None] {
                let raw = params.map(|text| RawValue::from_string(text.to_owned()).unwrap());
                // Noon, and a time for which Cedar has no date.
                for now_ms in [1_789_992_000_000, u64::MAX] {
                    let question = Question { caller, method, params: raw.as_deref(), now_ms };
                    for (selected, all) in both_ways(&set, &question) {
                        prop_assert_eq!(&selected, &all, "{:?} {:?}\n{}\n{}", caller, params, toml, cedar);
                    }
                }
            }
        }
    }
}

#[test]
fn the_methods_that_are_open_to_all_are_decided_alike() {
    for method in OPEN_TO_ALL {
        is_decided_alike(method);
    }
}

fn is_decided_alike(method: &str) {
    let methods = Methods::new().with(MethodName::new(method).unwrap());
    let rule = |effect| format!("[role.r0]\n[rule.some]\nroles = [\"r0\"]\n{effect} = [\"{method}\"]\n");
    for (text, expected) in [
        ("[role.r0]\n".to_owned(), [Reason::Open, Reason::Open]),
        (rule("allow"), [Reason::AllowedBy, Reason::Open]),
        (rule("deny"), [Reason::ForbiddenBy, Reason::Open]),
    ] {
        let (set, _) = PolicySet::from_texts([("rules.toml", text.as_str())], &methods).unwrap();
        for (caller, expected) in [caller("a", &["r0"]), caller("b", &[])].iter().zip(expected) {
            let question = Question { caller, method, params: None, now_ms: 0 };
            let [(selected, all)] = <[_; 1]>::try_from(both_ways(&set, &question)).unwrap();
            assert_eq!((&selected, &selected.reason), (&all, &expected), "{text}");
        }
    }
}

/// Forty rules about other roles and agents, one by one and in lists.
fn about_others() -> String {
    let mut text = String::new();
    for n in 0..20 {
        writeln!(text, "[role.other-{n}]\n[rule.o{n}]\nroles = [\"other-{n}\"]\nallow = [\"m\"]").unwrap();
        writeln!(text, "[rule.p{n}]\nagents = [\"agent-{n}\", \"spare-{n}\"]\ndeny = [\"m\"]").unwrap();
    }
    text
}

const OWN: &str = "[rule.own]\nroles = [\"r0\"]\nallow = [\"m\"]\nwhen.params.amount = { max = 5 }\n\
                   [rule.all]\neveryone = true\ndeny = [\"m\"]\nwhen.params.amount = { min = 4 }\n";

#[test]
fn rules_of_other_methods_are_no_part_of_a_decision() {
    let mut others = String::new();
    for n in 0..40 {
        writeln!(others, "[method.\"o/{n}\"]\n[rule.o{n}]\nroles = [\"r0\"]\nallow = [\"o/{n}\"]").unwrap();
    }
    let (few, many) =
        (load(OWN, ""), load(&format!("{OWN}{others}[rule.below]\neveryone = true\nallow = [\"o/*\"]\n"), ""));
    for set in [&few, &many] {
        assert_eq!(policies(set, "m").rules.len(), 2);
        assert_eq!(evaluated(set, "m", &caller("a", &["r0"])), 2);
    }
    assert_eq!(policies(&many, "o/7").rules.len(), 2, "its own, and the one for all below `o/`");
}

#[test]
fn rules_about_other_callers_are_not_evaluated() {
    let set = load(&format!("{OWN}{}", about_others()), "");
    assert_eq!(policies(&set, "m").rules.len(), 42);
    for (agent, roles, expected) in [
        ("a", vec!["r0"], 2),
        ("a", vec![], 1),
        ("a", vec!["r3"], 2),
        ("a", vec!["r0", "r2", "r3"], 2),
        ("a", vec!["r0", "other-1", "other-2", "unknown"], 4),
        ("agent-3", vec!["r0"], 3),
        ("spare-3", vec!["other-3"], 3),
    ] {
        assert_eq!(evaluated(&set, "m", &caller(agent, &roles)), expected, "{agent} {roles:?}");
    }
}

#[test]
fn a_rule_is_in_one_group_however_many_it_names() {
    let names: Vec<String> = (0..200).map(|n| format!("worker-{n}")).collect();
    let text = format!(
        "[rule.one]\nagents = {names:?}\nroles = [\"r0\", \"r1\"]\nallow = [\"m\"]\n\
         [rule.two]\nagents = {names:?}\nroles = [\"r1\", \"r0\", \"r1\"]\ndeny = [\"m\"]\nwhen.params.amount = {{ min = 9 }}\n\
         [rule.glob]\nagents = [\"worker-*\", \"w\"]\nallow = [\"m\"]\n"
    );
    let set = load(&text, "");
    assert_eq!(policies(&set, "m").by_caller.all().len(), 2);
    assert_eq!(evaluated(&set, "m", &caller("worker-7", &["r0", "r1"])), 3);
    assert_eq!(evaluated(&set, "m", &caller("x", &[])), 1, "a `*` in a name is for Cedar to match");
}

/// Whether calls must follow the declarations depends on the method, whoever calls.
#[test]
fn rules_about_others_still_make_parameters_and_claims_strict() {
    let text = "[rule.open]\nroles = [\"r0\"]\nallow = [\"m\"]\n\
                [rule.limit]\nagents = [\"other\"]\ndeny = [\"m\"]\nwhen.params.amount = { min = 9 }\nwhen.claims.tenant = \"x\"\n";
    let set = load(text, "");
    let mut caller = caller("a", &["r0"]);
    let ask = |caller: &Caller, params: &str| {
        let raw = RawValue::from_string(params.to_owned()).unwrap();
        set.decide(&Question { caller, method: "m", params: Some(&raw), now_ms: 0 })
    };
    assert_eq!(evaluated(&set, "m", &caller), 1);
    assert!(ask(&caller, "[100]").is_allow());
    assert_eq!(ask(&caller, r#"{"amount":1,"more":1}"#).reason, Reason::ParamUndeclared("more".into()));
    caller.token.claims.insert("tenant".into(), json!(5));
    assert_eq!(ask(&caller, "[100]").reason, Reason::ClaimType("tenant".into()));
}

/// A rule that fails denies the callers it is about, and nobody else: for the others it does not match.
#[test]
fn a_failing_rule_denies_whom_it_is_about() {
    let failing = "@id(\"sum\") permit(principal in Role::\"r1\", action == Action::\"m\", resource)\n\
                   when { context.params.amount + 1 > 5 };";
    let set = load("[rule.open]\neveryone = true\nallow = [\"m\"]\n", failing);
    let raw = RawValue::from_string("[9223372036854775807]".to_owned()).unwrap();
    let ask = |roles: &[&str]| {
        let caller = caller("a", roles);
        set.decide(&Question { caller: &caller, method: "m", params: Some(&raw), now_ms: 0 })
    };
    let (with, without) = (ask(&["r1"]), ask(&["r0"]));
    assert_eq!((with.reason, with.rule.unwrap().name().to_owned()), (Reason::EvaluationError, "sum".to_owned()));
    assert_eq!((without.reason, without.rule.unwrap().name().to_owned()), (Reason::AllowedBy, "open".to_owned()));
}

/// Across several groups, the first rule by file and line is the one that decided.
#[test]
fn the_first_matching_rule_is_named_whichever_group_it_is_in() {
    let text = "[rule.a]\nroles = [\"r1\"]\nallow = [\"m\", \"n\"]\n[rule.b]\neveryone = true\nallow = [\"m\"]\n\
                [rule.c]\nagents = [\"x\"]\ndeny = [\"n\"]\n[rule.d]\nroles = [\"r0\"]\ndeny = [\"n\"]\n";
    let set = load(text, "");
    let rule = |agent: &str, roles: &[&str], method: &str| {
        let caller = caller(agent, roles);
        let decision = set.decide(&Question { caller: &caller, method, params: None, now_ms: 0 });
        (decision.is_allow(), decision.rule.unwrap().name().to_owned())
    };
    assert_eq!(rule("x", &["r0", "r1"], "m"), (true, "a".to_owned()));
    assert_eq!(rule("x", &["r0"], "m"), (true, "b".to_owned()));
    assert_eq!(rule("x", &["r0", "r1"], "n"), (false, "c".to_owned()));
    assert_eq!(rule("y", &["r0", "r1"], "n"), (false, "d".to_owned()));
}
