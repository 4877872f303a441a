//! What the tools tell reviewers, compared with what the engine decides: no `-` where a call is allowed, no `yes` where
//! one is denied, no "nothing changes" where a rule does.

use super::model::generate;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};

use generate::{Asked, BASE, any_asked, any_model};
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use sealwire::internal::policy::{Access, CallerGroup, Diff, Replay};
use sealwire::internal::record::{Chain, Kind};
use sealwire::serve::TokenFacts;
use sealwire::{Caller, DecisionRecord, PolicySet, Question};
use sealwire_testkit::policies::*;
use serde_json::value::RawValue;

/// A few cases in an ordinary test run; `PROPTEST_CASES=5000` for a night.
fn config(cases: u32) -> ProptestConfig {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(cases);
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

fn policy(toml: &str, cedar: &str) -> PolicySet {
    load(&[("a.toml", toml), ("b.cedar", cedar)]).unwrap_or_else(|errors| panic!("{errors}")).0
}

/// The matrix columns that one party of a call belongs to, given the roles that `generate::BASE` grants.
fn columns(set: &PolicySet, asked: &Asked, party: &CallerGroup) -> Vec<CallerGroup> {
    let mut roles: BTreeSet<&str> = asked.caller.roles.iter().map(String::as_str).collect();
    roles.remove("files");
    match party {
        CallerGroup::Agent(name) if name == "a1" => roles.extend(["r1", "files"]),
        CallerGroup::Subject(name) if name == "a0" => roles.extend(["r2"]),
        CallerGroup::Subject(name) if name == "alice" => roles.extend(["files"]),
        _ => {}
    }
    if roles.contains("r2") {
        roles.insert("r0");
    }
    let roles = roles.into_iter().map(|role| CallerGroup::Role(role.to_owned()));
    let all: Vec<CallerGroup> = [CallerGroup::Anyone, party.clone()].into_iter().chain(roles).collect();
    let known = set.callers();
    all.into_iter().filter(|callers| known.contains(callers)).collect()
}

/// No cell claims more than the engine decides for this call.
fn holds(set: &PolicySet, asked: &Asked, text: &str) -> Result<(), TestCaseError> {
    let allowed =
        ask_at(set, &asked.caller, &asked.method, asked.params.as_deref().unwrap_or_default(), asked.now_ms).is_allow();
    let subject = asked.caller.delegated.then(|| CallerGroup::Subject(asked.caller.subject.clone()));
    for party in [Some(CallerGroup::Agent(asked.caller.agent.to_string())), subject].into_iter().flatten() {
        let columns = columns(set, asked, &party);
        let says = |access| columns.iter().any(|callers| set.access(callers, &asked.method).access == access);
        let never = !says(Access::Allowed) && !says(Access::Conditional);
        prop_assert!(!(allowed && never), "`-` for {} in all of {:?}\n{}\n{:?}", party, columns, text, asked);
        let of_type = asked.caller.token.claims.get("tenant").is_none_or(serde_json::Value::is_string);
        if !asked.caller.delegated && asked.well_formed && of_type {
            prop_assert!(!says(Access::Allowed) || allowed, "`yes` in one of {:?}\n{}\n{:?}", columns, text, asked);
        }
    }
    Ok(())
}

fn any_test() -> impl Strategy<Value = String> {
    let leaf = select(vec![
        r#"principal in Role::"r0""#,
        r#"principal in Role::"r1""#,
        r#"principal in Role::"r2""#,
        r#"principal in Role::"files""#,
        r#"principal in [Role::"r0", Role::"r1"]"#,
        r#"principal == Agent::"a0""#,
        r#"principal != Agent::"a1""#,
        r#"Agent::"zed" == principal"#,
        r#"principal is Agent in Role::"r1""#,
        r#"principal in [Agent::"a0", Agent::"zed"]"#,
        r#"principal == Subject::"a0""#,
        r#"principal != Subject::"alice""#,
        "principal is Subject",
        "principal is Agent",
        r#"principal.name like "a*""#,
        r#"principal.name == "b""#,
        r#"action in Action::"m/*""#,
        "context.delegated",
        "context.hour < 12",
        "context.params.amount < 50",
    ])
    .prop_map(ToOwned::to_owned);
    leaf.prop_recursive(3, 8, 3, |inner| {
        prop_oneof![
            (inner.clone(), inner.clone()).prop_map(|(left, right)| format!("({left} && {right})")),
            (inner.clone(), inner.clone()).prop_map(|(left, right)| format!("({left} || {right})")),
            inner.clone().prop_map(|one| format!("!({one})")),
            (inner.clone(), inner.clone(), inner).prop_map(|(a, b, c)| format!("(if {a} then {b} else {c})")),
        ]
    })
}

fn any_cedar() -> impl Strategy<Value = String> {
    let scope = select(vec![
        "principal",
        "principal",
        r#"principal in Role::"r0""#,
        r#"principal in Role::"files""#,
        r#"principal == Agent::"zed""#,
        r#"principal == Subject::"a0""#,
        "principal is Subject",
        "principal is Agent",
        r#"principal is Subject in Role::"r2""#,
    ]);
    let actions = subsequence(vec!["m/a", "m/b", "m/*", "*"], 1..3);
    let clauses = prop::collection::vec((prop::bool::weighted(0.3), any_test()), 0..3);
    let delegated = select(vec!["", "@delegated(\"also\") ", "@delegated(\"only\") ", "@delegated(\"never\") "]);
    let rule = (prop::bool::weighted(0.3), scope, actions, clauses, delegated).prop_map(
        |(deny, scope, actions, clauses, delegated)| {
            let effect = if deny { "forbid" } else { "permit" };
            let actions: Vec<String> = actions.iter().map(|name| format!("Action::\"{name}\"")).collect();
            let clauses: Vec<String> = clauses
                .iter()
                .map(|(unless, test)| format!("{} {{ {test} }}", if *unless { "unless" } else { "when" }))
                .collect();
            format!(
                "{delegated}{effect}({scope}, action in [{}], resource) {};\n",
                actions.join(", "),
                clauses.join(" ")
            )
        },
    );
    prop::collection::vec(rule, 1..4).prop_map(|rules| rules.concat())
}

fn any_caller() -> impl Strategy<Value = Asked> {
    (any_asked(), select(vec!["a0", "a1", "zed", "b"])).prop_map(|(mut asked, agent)| {
        asked.caller.agent = sealwire::Name::new(agent).unwrap();
        if !asked.caller.delegated {
            asked.caller.subject = agent.to_owned();
        }
        asked
    })
}

proptest! {
    #![proptest_config(config(32))]

    #[test]
    fn cells_of_toml_rules_agree_with_the_engine(model in any_model(), asked in prop::collection::vec(any_asked(), 12)) {
        for (text, name) in [(model.to_toml(), "rules.toml"), (model.to_cedar(), "rules.cedar")] {
            let (set, _) = load(&[("base.toml", BASE), (name, &text)]).unwrap();
            for asked in &asked {
                holds(&set, asked, &text)?;
            }
        }
    }
}

/// Random tests of roles and names sometimes contradict themselves and do not load; most do load.
#[test]
fn cells_of_cedar_rules_agree_with_the_engine() {
    let (tried, loaded) = (AtomicU32::new(0), AtomicU32::new(0));
    let cases = (any_cedar(), prop::collection::vec(any_caller(), 24));
    proptest::test_runner::TestRunner::new(config(192))
        .run(&cases, |(text, asked)| {
            tried.fetch_add(1, Ordering::Relaxed);
            let Ok((set, _)) = load(&[("base.toml", BASE), ("rules.cedar", &text)]) else { return Ok(()) };
            loaded.fetch_add(1, Ordering::Relaxed);
            asked.iter().filter(|asked| asked.exists()).try_for_each(|asked| holds(&set, asked, &text))
        })
        .unwrap();
    let (tried, loaded) = (tried.into_inner(), loaded.into_inner());
    assert!(loaded * 3 > tried, "{loaded} of {tried} loaded");
}

const ROLES: &str = "[method.\"m/b\"]\n[role.a]\n[role.b]\n[agent.x]\nroles = [\"a\"]\n";

fn cells(set: &PolicySet) -> Vec<(String, Access)> {
    set.who_can("m/b").into_iter().map(|(callers, cell)| (callers.to_string(), cell.access)).collect()
}

fn cell(callers: &str, access: Access) -> (String, Access) {
    (callers.to_owned(), access)
}

#[test]
fn rule_for_two_roles_together_is_told_in_both_columns() {
    let cedar = r#"permit(principal in Role::"a", action == Action::"m/b", resource) when { principal in Role::"b" };"#;
    let set = policy(ROLES, cedar);
    assert!(allows(&set, &caller("y", &["a", "b"]), "m/b", "") && allows(&set, &caller("x", &["b"]), "m/b", ""));
    let expected = ["role a", "role b", "agent x"].map(|callers| cell(callers, Access::Conditional));
    assert_eq!(cells(&set), expected);
    let told = set.access(&CallerGroup::Role("b".into()), "m/b").rules[0].to_string();
    assert!(told.ends_with("if the caller has the role `a`"), "{told}");
}

#[test]
fn agent_that_only_a_condition_names_has_a_column() {
    let cedar = r#"permit(principal, action == Action::"m/b", resource) when { principal == Agent::"zed" };"#;
    assert_eq!(cells(&policy(ROLES, cedar)), [cell("agent zed", Access::Allowed)]);
}

#[test]
fn role_that_only_files_grant_is_held_in_its_own_column() {
    let text =
        "[method.\"m/b\"]\n[role.janitor]\nfrom = \"files\"\nallow = [\"m/b\"]\n[agent.x]\nroles = [\"janitor\"]\n";
    let set = toml(text);
    assert_eq!(cells(&set), [cell("role janitor", Access::Allowed), cell("agent x", Access::Allowed)]);
    assert!(!allows(&set, &caller("y", &["janitor"]), "m/b", ""), "a token is not believed");
    // An agent without the role is not affected by the role's deny list, and keeps its `yes`.
    let denies = text.replace("allow = [\"m/b\"]", "deny = [\"m/b\"]")
        + "[agent.z]\n[rule.all]\nagents = [\"x\", \"z\"]\nallow = [\"m/b\"]\n";
    assert_eq!(cells(&toml(&denies)), [cell("agent z", Access::Allowed)]);
}

#[test]
fn what_another_role_of_the_caller_denies_is_a_condition() {
    let cedar =
        r#"permit(principal in Role::"a", action == Action::"m/b", resource) unless { principal in Role::"b" };"#;
    let set = policy(ROLES, cedar);
    assert!(!allows(&set, &caller("y", &["a", "b"]), "m/b", ""));
    assert_eq!(cells(&set), [cell("role a", Access::Conditional), cell("agent x", Access::Conditional)]);
    let told = set.access(&CallerGroup::Role("a".into()), "m/b").rules[0].to_string();
    assert!(told.contains("(b.cedar:1) unless "), "{told}");

    let set = toml(&ROLES.replace("[role.a]\n[role.b]\n", "[role.a]\nallow = [\"m/b\"]\n[role.b]\ndeny = [\"m/b\"]\n"));
    assert!(!allows(&set, &caller("y", &["a", "b"]), "m/b", ""));
    assert_eq!(cells(&set), [cell("role a", Access::Conditional), cell("agent x", Access::Conditional)]);
    assert!(set.matrix().to_string().contains("deny by `role.b.deny` (policy.toml:5) if the caller has the role `b`"));
}

#[test]
fn deny_rule_for_own_calls_leaves_calls_for_others() {
    let text = "[method.\"m/b\"]\n[rule.yes]\neveryone = true\nallow = [\"m/b\"]\ndelegated = \"also\"\n\
                [rule.no]\neveryone = true\ndeny = [\"m/b\"]\ndelegated = \"never\"\n";
    let set = toml(text);
    assert!(allows(&set, &on_behalf_of("x", "carol", &[]), "m/b", ""));
    assert_eq!(cells(&set), [cell("anyone", Access::Conditional)]);
    assert_eq!(cells(&toml(&text.replace("delegated = \"also\"", ""))), [], "in its own name it denies all");
}

#[test]
fn rule_that_can_fail_leaves_no_yes() {
    let base = "[method.\"m/b\"]\nparams = [{ name = \"n\", type = \"integer\" }]\n[role.a]\n[role.b]\n\
                [rule.all]\nroles = [\"a\"]\nallow = [\"m/b\"]\n";
    let cedar =
        r#"permit(principal in Role::"b", action == Action::"m/b", resource) when { context.params.n + 1 > 5 };"#;
    let set = policy(base, cedar);
    assert!(!allows(&set, &caller("y", &["a", "b"]), "m/b", "[9223372036854775807]"));
    assert_eq!(set.access(&CallerGroup::Role("a".into()), "m/b").access, Access::Conditional);
}

/// A method with two string parameters, and this rule.
fn rule(text: &str) -> String {
    format!(
        "[method.\"m/b\"]\nparams = [{{ name = \"x\", type = \"string\" }}, {{ name = \"y\", type = \"string\" }}]\n\
         [claims]\ntenant = \"string\"\n[role.r]\n{text}"
    )
}

/// The difference contains all of these lines, and does not say that nothing changes.
#[track_caller]
fn differs(old: &PolicySet, new: &PolicySet, lines: &[&str]) {
    for (one, other) in [(old, new), (new, old)] {
        let diff = Diff::between(one, other);
        assert!(!diff.is_same() && !diff.to_string().contains("nobody can"), "{diff}");
    }
    let diff = Diff::between(old, new).to_string();
    for line in lines {
        assert!(diff.lines().any(|found| found.trim_start() == *line), "missing: {line}\nin:\n{diff}");
    }
}

#[test]
fn difference_in_delegation_is_told() {
    let allow = "[role.s]\nallow = [\"m/b\"]\n";
    differs(
        &toml(&rule(allow)),
        &toml(&rule(&format!("{allow}delegated = \"also\"\n"))),
        &["+ m/b role s: allowed, differently", "`role.s.allow` (allow) is now for calls on behalf of others, too"],
    );
    let deny = "[rule.a]\neveryone = true\nallow = [\"m/b\"]\ndelegated = \"also\"\n\
                [rule.d]\nroles = [\"r\"]\ndeny = [\"m/b\"]\n";
    let never = format!("{deny}delegated = \"never\"\n");
    let lines = ["+ m/b role r: denied -> conditional", "`d` (deny) is now for calls in the agent's own name only"];
    differs(&toml(&rule(deny)), &toml(&rule(&never)), &lines);
}

#[test]
fn conditions_in_the_same_words_are_told_apart() {
    let when = |condition: &str| {
        toml(&rule(&format!("[rule.a]\nroles = [\"r\"]\nallow = [\"m/b\"]\nwhen.params.x = {condition}\n")))
    };
    let long = "a".repeat(80);
    let (old, new) = (when(&format!("{{ glob = \"{long}safe\" }}")), when(&format!("{{ glob = \"{long}*\" }}")));
    differs(&old, &new, &[&format!("`a` (allow) now asks that context.params.x like \"{long}*\"")]);
    differs(&when("{ in = [\"a\", \"b\"] }"), &when("{ in = [\"a`, `b\"] }"), &[]);
    let cedar = |literal: &str| {
        let text = format!(
            "@id(\"c\") permit(principal in Role::\"r\", action == Action::\"m/b\", resource) when {{ context.params.x == {literal} }};"
        );
        policy(&rule(""), &text)
    };
    differs(
        &cedar("\"a b\""),
        &cedar("\"a  b\""),
        &[
            "? m/b role r: conditional, differently",
            "`c` (allow) no longer asks that context.params.x == \"a b\"",
            "`c` (allow) now asks that context.params.x == \"a  b\"",
        ],
    );
}

#[test]
fn differences_beside_the_rules_are_told() {
    let text = rule("[rule.a]\nroles = [\"r\"]\nallow = [\"m/b\"]\nwhen.params.x = \"a\"\n");
    let old = toml(&text);
    let to = |from: &str, to: &str| {
        assert!(text.contains(from), "{from}");
        toml(&text.replace(from, to))
    };
    let swapped = "{ name = \"y\", type = \"string\" }, { name = \"x\", type = \"string\" }";
    let declared = "{ name = \"x\", type = \"string\" }, { name = \"y\", type = \"string\" }";
    let lines = ["the method `m/b`: (x: string, y: string) -> (y: string, x: string)"];
    differs(&old, &to(declared, swapped), &lines);
    let optional = declared.replace("y\", type = \"string\"", "y\", type = \"string\", optional = true");
    differs(&old, &to(declared, &optional), &["the method `m/b`: (x: string, y: string) -> (x: string, y?: string)"]);
    differs(&old, &to("tenant = \"string\"", "tenant = \"integer\""), &["the claim `tenant`: string -> integer"]);
    differs(&old, &to("[role.r]\n", "[role.r]\nfrom = \"files\"\n"), &["the role `r`: from anywhere -> from files"]);
    differs(&old, &to("[role.r]\n", "[role.r]\n[agent.q]\nroles = [\"r\"]\n"), &["what files grant to `q`: new, `r`"]);
    let free = to("when.params.x = \"a\"\n", "");
    differs(&free, &old, &["every call of `m/b` must now send the declared parameters only"]);
}

#[test]
fn rules_of_which_no_cell_tells_are_named() {
    let old = rule("[rule.a]\nroles = [\"r\"]\ndeny = [\"m/b\"]\n");
    let heading = "1 rule changed in ways that this list does not show:";
    let wider = toml(&old.replace("roles = [\"r\"]", "everyone = true"));
    differs(&toml(&old), &wider, &[heading, "`a`: whom it is about"]);
    let trial = toml(&old.replace("deny = [\"m/b\"]\n", "deny = [\"m/b\"]\nmode = \"shadow\"\n"));
    differs(&toml(&old), &trial, &[heading, "`a`: mode"]);
    differs(&toml(&rule("")), &toml(&old), &[heading, "`a`: new"]);
    differs(&toml(&old), &toml(&rule("")), &[heading, "`a`: gone"]);
}

#[test]
fn names_and_order_of_rules_are_no_difference() {
    let one =
        |name: &str, to: &str| format!("[rule.{name}]\nroles = [\"r\"]\nallow = [\"m/b\"]\nwhen.params.x = \"{to}\"\n");
    let old = toml(&rule(&(one("a", "1") + &one("b", "2"))));
    for same in [one("b", "1") + &one("a", "2"), one("b", "2") + &one("a", "1"), one("z", "2") + &one("y", "1")] {
        let diff = Diff::between(&old, &toml(&rule(&same)));
        assert!(diff.is_same() && diff.to_string().contains("nobody can do more or less than before"), "{diff}");
    }
}

#[test]
fn whether_a_change_allows_more_is_marked() {
    let limit = |text: &str| {
        toml(&format!(
            "[method.m]\nparams = [{{ name = \"n\", type = \"integer\" }}]\n[role.r]\n\
             [rule.a]\nroles = [\"r\"]\nallow = [\"m\"]\nwhen.params.n = {text}\n"
        ))
    };
    let sign = |old: &str, new: &str| {
        let text = Diff::between(&limit(old), &limit(new)).to_string();
        text.lines().find(|line| line.contains("m role r: conditional, differently")).unwrap().chars().next().unwrap()
    };
    assert_eq!(sign("{ max = 10000 }", "{ max = 50000 }"), '+');
    assert_eq!(sign("{ max = 50000 }", "{ max = 10000 }"), '-');
    assert_eq!(sign("{ min = 1, max = 5 }", "{ max = 5 }"), '+');
    assert_eq!(sign("{ min = 1, max = 5 }", "{ min = 2, max = 6 }"), '?');
    assert_eq!(sign("{ in = [1, 2] }", "{ in = [1, 2, 3] }"), '+');
    assert_eq!(sign("{ in = [1, 2] }", "{ in = [1, 3] }"), '?');
    let told = Diff::between(&limit("{ min = 1, max = 5 }"), &limit("{ min = 2, max = 4 }")).to_string();
    for line in [
        "    `a` (allow) limit raised: `n` is at least 1 -> 2",
        "    `a` (allow) limit lowered: `n` is at most 5 -> 4",
        "+ more than before, - less, ? cannot be told",
    ] {
        assert!(told.lines().any(|found| found == line), "{line} in {told}");
    }
    assert!(!told.contains("now asks"), "{told}");
}

proptest! {
    #![proptest_config(config(48))]

    /// If the tool says of two policies that nobody can do more or less, they decide alike.
    #[test]
    fn policies_without_a_difference_decide_alike(
        (old, new) in (any_model(), generate::any_rule(0), any::<prop::sample::Index>(), 0..5).prop_map(|(old, other, at, what)| {
            let mut new = old.clone();
            new.rules.reverse();
            if !new.rules.is_empty() {
                let at = at.index(new.rules.len());
                let rule = &mut new.rules[at];
                match what {
                    // A rule about a subject has to stay one for delegated calls.
                    0 if rule.delegated.is_none() || other.delegated.is_some_and(|text| text != "never") => {
                        rule.delegated = other.delegated.or(rule.delegated);
                    }
                    1 => rule.methods = other.methods,
                    2 if rule.delegated.is_some_and(|text| text != "never") => rule.who = other.who,
                    2 => rule.who.reverse(),
                    3 => rule.when.clear(),
                    // Only its position changes.
                    _ => {}
                }
            }
            (old, new)
        }),
        asked in prop::collection::vec(any_asked(), 24),
    ) {
        let (old, new) = (old.to_toml(), new.to_toml());
        let sets = [&old, &new].map(|text| load(&[("base.toml", BASE), ("rules.toml", text)]).unwrap().0);
        let same = Diff::between(&sets[0], &sets[1]).is_same();
        for asked in asked.iter().filter(|_| same) {
            let params = asked.params.as_deref().unwrap_or_default();
            let [one, other] = [0, 1].map(|at| ask_at(&sets[at], &asked.caller, &asked.method, params, asked.now_ms).verdict);
            prop_assert_eq!(one, other, "{}\n{}\n{:?}", old, new, asked);
        }
    }
}

/// A method `m` with a parameter of this type, which everybody may call, and further text.
fn one_param(kind: &str, more: &str) -> String {
    format!(
        "[method.m]\nparams = [{{ name = \"x\", type = \"{kind}\" }}]\n{more}\n[rule.all]\neveryone = true\nallow = [\"m\"]\n"
    )
}

/// The outcome of one recorded call: `same`, `different`, or why it cannot be told.
fn replayed(old: &PolicySet, new: &PolicySet, params: &str) -> String {
    let mut caller = caller("a", &[]);
    caller.token.claims.insert("tenant".to_owned(), "evil".into());
    (caller.token.id, caller.token.key) = ("token-1".to_owned(), "issuer-1".to_owned());
    let raw = RawValue::from_string(params.to_owned()).unwrap();
    let question = Question { caller: &caller, method: "m", params: Some(&raw), now_ms: MONDAY_AFTERNOON };
    let record = DecisionRecord::new(old, &question, &old.decide(&question), None);
    let line = Chain::new("s1").line(Kind::Decision, &record).unwrap();
    let replay = Replay::run(new, std::str::from_utf8(&line).unwrap());
    assert_eq!(replay.calls, 1, "{replay}");
    match (replay.different.len(), replay.unknown.first()) {
        (0, None) => "same".to_owned(),
        (_, None) => "different".to_owned(),
        (_, Some(unknown)) => unknown.why.clone().unwrap(),
    }
}

#[test]
fn recording_that_lacks_a_claim_does_not_tell() {
    let claims = "[claims]\ntenant = \"string\"";
    let deny = "[rule.evil]\neveryone = true\ndeny = [\"m\"]\nwhen.claims.tenant = \"evil\"\n";
    let old = toml(&one_param("any", ""));
    let new = toml(&(one_param("any", claims) + deny));
    assert_eq!(replayed(&old, &new, "[1]"), "the policy asks for the claim `tenant`, which was not recorded");
    let knows = toml(&one_param("any", claims));
    assert_eq!(replayed(&knows, &new, "[1]"), "different");
    let other = toml(&(one_param("any", "[claims]\ngroup = \"string\"") + &deny.replace("tenant", "group")));
    assert_eq!(replayed(&other, &other, "[1]"), "same", "a declared claim that the token does not have");
}

#[test]
fn recording_under_other_declarations_does_not_tell() {
    let deny = "[rule.blocked]\neveryone = true\ndeny = [\"m\"]\nwhen.params.x = { glob = \"blocked-*\" }\n";
    let new = toml(&(one_param("string", "") + deny));
    let unknown = "the policy asks for parameters, and others were declared when it was recorded";
    assert_eq!(replayed(&toml(&one_param("integer", "")), &new, "[\"blocked-1\"]"), unknown, "a fault at the time");
    assert_eq!(replayed(&toml(&one_param("any", "")), &new, "[\"blocked-1\"]"), unknown, "its content was left out");
    let knows = toml(&one_param("string", ""));
    assert_eq!(replayed(&knows, &new, "[\"blocked-1\"]"), "different");
    assert_eq!(replayed(&knows, &new, "[\"open-1\"]"), "same");
    assert_eq!(replayed(&knows, &new, "[5]"), "different", "a fault that nothing checked at the time");
    let longer = |optional: &str| {
        let more = format!("type = \"string\" }}, {{ name = \"y\", type = \"string\"{optional} }}]");
        toml(&(one_param("string", "") + deny).replace("type = \"string\" }]", &more))
    };
    assert_eq!(replayed(&knows, &longer(", optional = true"), "[\"open-1\"]"), "same");
    assert_eq!(replayed(&knows, &longer(", optional = true"), "[\"open-1\", \"y\"]"), unknown);
    assert_eq!(replayed(&knows, &longer(""), "[\"open-1\"]"), unknown);
}

#[test]
fn the_same_policy_decides_the_same_again() {
    let toml = one_param("number", "")
        .replace("type = \"number\" }", "type = \"number\" }, { name = \"y\", type = \"string\", optional = true }");
    let asks = "forbid(principal, action == Action::\"m\", resource) unless { context.token.id == \"token-1\" && context.token.key == \"issuer-1\" };\n\
                forbid(principal, action == Action::\"m\", resource) when { context.params has y && context.params.y == \"no\" };";
    let set = policy(&toml, asks);
    assert!(
        ask(
            &set,
            &Caller {
                token: TokenFacts { id: "token-1".into(), key: "issuer-1".into(), ..TokenFacts::default() },
                ..caller("a", &[])
            },
            "m",
            "[1e99]"
        )
        .is_allow()
    );
    for params in [
        "[1]",
        "[1e99]",
        "[12345678901234567890.5]",
        "[1e999]",
        "[-1e400, \"no\"]",
        "{\"x\": 0.1, \"y\": \"yes\"}",
        "[\"1\"]",
    ] {
        assert_eq!(replayed(&set, &set, params), "same", "{params}");
    }
}

/// Only the narrow rule requires the parameters to be as declared.
#[test]
fn rule_that_alone_looks_at_something_is_not_covered() {
    let base = "[method.m]\nparams = [{ name = \"x\", type = \"integer\" }]\n[claims]\ntenant = \"string\"\n\
                [role.r]\nallow = [\"m\"]\n[rule.z]\nroles = [\"r\"]\nallow = [\"m\"]\n";
    for (when, params) in
        [("when.params.x = { min = 0, max = 5 }\n", "[1.0]"), ("when.claims.tenant = \"acme\"\n", "[1]")]
    {
        let mut caller = caller("a", &["r"]);
        caller.token.claims.insert("tenant".to_owned(), 5.into());
        let with = format!("{base}{when}");
        assert!(
            ask(&toml(base), &caller, "m", params).is_allow() && !ask(&toml(&with), &caller, "m", params).is_allow()
        );
        assert_eq!(warnings(&[("a.toml", &with)]), [] as [&str; 0], "{when}");
        let looks = format!("{with}[rule.other]\nagents = [\"q\"]\ndeny = [\"m\"]\n{when}");
        let found = warnings(&[("a.toml", &looks)]);
        assert!(found.iter().any(|line| line.contains("the rule `z` changes nothing")), "{found:?}");
    }
}

#[test]
fn explanation_without_an_evaluation_says_so() {
    let set = policy(
        "[method.m]\n[rule.all]\neveryone = true\nallow = [\"m\"]\n",
        "forbid(principal, action, resource) when { context.now < datetime(\"2020-01-01\") };",
    );
    let caller = caller("a", &[]);
    let at = |now_ms| set.explain(&Question { caller: &caller, method: "m", params: None, now_ms });
    assert!(at(MONDAY_AFTERNOON).to_string().contains("yes  anyone calls"));
    let never = at(253_402_300_800_000);
    assert_eq!(never.decision.reason.label(), "evaluation_error");
    let text = never.to_string();
    assert!(text.contains("fail anyone calls: conditions were not evaluated") && !text.contains("no   "), "{text}");
}

#[test]
fn tables_keep_to_the_width_of_a_terminal() {
    let roles: String = (0..12).map(|n| format!("[role.a-long-name-{n}]\nallow = [\"m/b\"]\n")).collect();
    let set = toml(&format!("[method.\"m/b\"]\n{roles}"));
    let text = set.matrix().to_string();
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    let headings: Vec<&str> = text.lines().filter(|line| line.starts_with("method")).collect();
    assert!(headings.len() > 1, "{text}");
    for n in 0..12 {
        let shown = headings.iter().filter(|line| line.split("  ").any(|cell| cell == format!("role a-long-name-{n}")));
        assert_eq!(shown.count(), 1, "{text}");
    }
    assert_eq!(text.matches("yes").count(), 12 + 1, "and once in the legend: {text}");
    let wide = toml(&format!("[method.\"m/b\"]\n[role.\"{}\"]\nallow = [\"m/b\"]\n", "a".repeat(100)));
    assert!(wide.matrix().to_string().contains(&"a".repeat(100)), "a column of its own");
}

#[test]
fn unless_of_cedar_reads_as_a_sentence() {
    let rule = |hour: u32| {
        let text = format!(
            "@id(\"c\") permit(principal in Role::\"a\", action, resource) unless {{ context.hour < {hour} }};"
        );
        policy(ROLES, &text)
    };
    let cell = rule(5).access(&CallerGroup::Role("a".into()), "m/b").rules[0].to_string();
    assert_eq!(cell, "allow by `c` (b.cedar:1) unless context.hour < 5");
    let diff = Diff::between(&rule(5), &rule(6)).to_string();
    assert!(diff.contains("`c` (allow) now asks that not (context.hour < 6)"), "{diff}");
}
