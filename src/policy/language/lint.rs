//! Checks of rules against each other and against Cedar's type checker.
//! Never changes a rule: what it finds is for the operator.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use cedar_policy::ffi::DetailedError;
use cedar_policy::pst::Var;
use cedar_policy::{Schema, ValidationMode, ValidationWarning, Validator};

use super::checked::CheckedPolicy;
use super::{comparable, constraint, doubts};
use crate::name::MethodName;
use crate::policy::cedar::schema::SUBJECT_OF_CALL;
use crate::policy::cedar::{References, Scope, compile, expr, references, schema};
use crate::policy::model::{
    CallerMatch, Declarations, Delegation, Effect, ExprRef, Location, Method, Methods, Mode, PrincipalKind, Report,
    RoleSource, Rule, shown,
};

/// All checks.
pub(crate) fn check(checked: &CheckedPolicy, report: &Report) {
    let rules = &checked.rules;
    names(rules, report);
    failures(rules, report);
    comparable::check(checked, report);
    doubts::negations_of_optional(rules, report);
    doubts::open_below(rules, report);
    doubts::numbers_open_below(rules, report);
    subjects(rules, report);
    unreachable_roles(checked, report);
    // The type checker repeats in other words what was found so far, so it speaks only if nothing was.
    if report.errors() == 0 {
        contradictions(rules, report);
        types(&checked_together(rules, &checked.methods), &checked.declarations, report);
        coverage(rules, &checked.methods, report);
    }
}

fn names(rules: &[Rule], report: &Report) {
    let mut seen: HashMap<&str, &Rule> = HashMap::new();
    for rule in rules {
        if let Some(first) = seen.insert(rule.id.name(), rule) {
            let message = format!("two rules are named `{}`", shown(rule.id.name()));
            report.error(&rule.id.at, message, format!("the first is at {}", first.id.at));
        }
    }
}

fn contradictions(rules: &[Rule], report: &Report) {
    for rule in rules {
        let parts: Vec<ExprRef> = compile::conditions(rule).map(|part| part.expr).collect();
        if let Some((subject, why)) = constraint::contradiction(&parts) {
            let help = if subject == "context.delegated" {
                "a rule is for delegated calls only when it says `delegated` (in Cedar, `@delegated(\"also\")`)"
            } else {
                why
            };
            let message = format!("the rule `{}` can never hold: look at `{subject}`", rule.id.name());
            report.error(&rule.id.at, message, help);
        }
    }
}

/// A rule that fails denies the call. For a deny rule, that is right but never meant; for an allow rule, it turns one
/// caller's odd argument into a refusal, whatever other rules allow.
fn failures(rules: &[Rule], report: &Report) {
    for rule in rules {
        for why in rule.conditions.iter().filter_map(|part| references::can_fail(&part.expr)) {
            let help = "compare without computing, for instance with a literal on one side";
            match rule.effect {
                Effect::Deny => report.error(&rule.id.at, format!("a deny rule that can fail: {why}"), help),
                Effect::Allow => report.warning(&rule.id.at, format!("an allow rule that can fail: {why}"), help),
            }
        }
    }
}

fn unreachable_roles(checked: &CheckedPolicy, report: &Report) {
    let roles = &checked.declarations.roles;
    let reachable = |name: &str| {
        roles.get(name).is_some_and(|role| role.source != RoleSource::Files)
            || checked.granted.values().any(|roles| roles.contains(name))
    };
    for (name, role) in roles {
        if !reachable(name) && !role.included_in.iter().any(|other| reachable(other)) {
            let used = checked.rules.iter().find(|rule| rule.callers.contains(&CallerMatch::Role(name.clone())));
            let rule = used.map(|rule| format!(", so `{}` never applies", rule.id.name())).unwrap_or_default();
            report.warning(
                &role.at,
                format!("no caller can ever hold the role `{}`{rule}", shown(name)),
                "grant it (`[agent.\"…\"] roles = […]`, `[subject.\"…\"]`), or let tokens carry it (`from = \"anywhere\"`)",
            );
        }
    }
}

/// Only a delegated call has a subject. A rule about one that is not for delegated calls never applies.
fn subjects(rules: &[Rule], report: &Report) {
    for rule in rules.iter().filter(|rule| rule.delegation == Delegation::Never) {
        let asked = |part: &ExprRef| *part == expr::has(expr::path(Var::Context, &[]), &SUBJECT_OF_CALL.into());
        let conditions = rule.conditions.iter().flat_map(|part| expr::conjuncts(&part.expr));
        let is_subject = |whom: &CallerMatch| {
            matches!(whom, CallerMatch::Named(PrincipalKind::Subject, _) | CallerMatch::Like(PrincipalKind::Subject, _))
        };
        let (named, asks) = (rule.callers.iter().any(is_subject), conditions.into_iter().any(|part| asked(&part)));
        if named || asks {
            let name = rule.id.name();
            let message =
                format!("`{name}` asks for a subject, and is for calls in the agent's own name, which have none");
            let help = "write `delegated = \"only\"` (in Cedar, `@delegated(\"only\")`), or ask for the agent";
            report.error(&rule.id.at, message, help);
        }
    }
}

/// Cedar's own strict check of the rules against the schema.
fn types(groups: &[Together<'_>], declarations: &Declarations, report: &Report) {
    // A Cedar file is checked as it is written, so that Cedar's remarks are about that text. Then everything is checked
    // as it is evaluated.
    for as_written in [true, false] {
        if report.errors() > 0 {
            return;
        }
        for group in groups {
            types_of(group, as_written, declarations, report);
        }
    }
}

/// Rules, and the methods that at least one of them is about.
#[derive(Default)]
struct Together<'a> {
    rules: Vec<&'a Rule>,
    methods: BTreeMap<&'a MethodName, &'a Method>,
    /// They are for delegated calls, too, so that the principal may be a subject.
    delegated: bool,
}

/// Cedar tries each policy for each action of a schema, though a rule cannot hold for a method that it is not about. So rules
/// are checked against few methods besides their own: 1,000 rules about as many methods take a tenth of the time.
fn checked_together<'a>(rules: &'a [Rule], methods: &'a Methods) -> Vec<Together<'a>> {
    let of = |delegated: bool| {
        let rules = rules.iter().filter(move |rule| (rule.delegation != Delegation::Never) == delegated);
        grouped(rules, methods, delegated)
    };
    [false, true].into_iter().flat_map(of).collect()
}

fn grouped<'a>(rules: impl Iterator<Item = &'a Rule>, methods: &'a Methods, delegated: bool) -> Vec<Together<'a>> {
    /// Few enough that tries cost little, and many enough that making a schema does, too.
    const METHODS: usize = 32;
    // For Cedar, a rule that names methods in its conditions, or is about none that is registered, is about all.
    let (mut some, all): (Vec<_>, Vec<_>) =
        rules.map(|rule| (methods.matching_any(&rule.methods), rule)).partition(|(about, rule)| {
            !about.is_empty() && !References::of(rule.conditions.iter().map(|part| &part.expr)).action
        });
    let mut groups: Vec<Together<'a>> = Vec::new();
    if !all.is_empty() {
        groups.push(Together {
            rules: all.into_iter().map(|(_, rule)| rule).collect(),
            methods: methods.iter().collect(),
            delegated,
        });
    }
    // Rules about many methods last, so that no other is checked against these.
    some.sort_by_key(|(about, _)| about.len());
    let empty = || Together { delegated, ..Together::default() };
    let mut group = empty();
    for (about, rule) in some {
        let more = about.keys().filter(|name| !group.methods.contains_key(*name)).count();
        if more > 0 && !group.rules.is_empty() && group.methods.len() + more > METHODS {
            groups.push(std::mem::replace(&mut group, empty()));
        }
        group.methods.extend(about);
        group.rules.push(rule);
    }
    groups.push(group);
    groups
}

fn types_of(group: &Together<'_>, as_written: bool, declarations: &Declarations, report: &Report) {
    let mut set = cedar_policy::PolicySet::new();
    let mut by_name: HashMap<&str, &Rule> = HashMap::new();
    for rule in &group.rules {
        by_name.insert(rule.id.name(), rule);
        let policy = if as_written { Ok(rule.written.clone()) } else { compile::policy(rule, Scope::Full) };
        let added = policy.and_then(|policy| match policy {
            Some(policy) => Ok(set.add(policy).map_err(Box::new)?),
            None => Ok(()),
        });
        if let Err(error) = added {
            report.error(&rule.id.at, format!("cannot be compiled: {error}"), "");
        }
    }
    if set.is_empty() {
        return;
    }
    let methods = group.methods.iter().map(|(name, method)| (*name, *method));
    let schema = match Schema::from_json_value(schema::schema_json(methods, declarations, group.delegated)) {
        Ok(schema) => schema,
        Err(error) => {
            let message = format!("the schema of the methods cannot be built: {error}");
            return report.error(&Location::default(), message, "");
        }
    };
    let result = Validator::new(schema).validate(&set, ValidationMode::Strict);
    for error in result.validation_errors() {
        let detail = DetailedError::from(error);
        if let Some(rule) = by_name.get(AsRef::<str>::as_ref(error.policy_id())) {
            let message = remark(&detail.message, rule);
            report.error(&rule.id.at, message, detail.help.unwrap_or_default());
        }
    }
    for warning in result.validation_warnings() {
        let Some(rule) = by_name.get(AsRef::<str>::as_ref(warning.policy_id())) else { continue };
        if matches!(warning, ValidationWarning::ImpossiblePolicy(_)) {
            let message = format!("the rule `{}` can never hold", rule.id.name());
            report.error(&rule.id.at, message, "its conditions contradict each other or the types of what they ask");
        } else {
            report.warning(&rule.id.at, remark(&warning.to_string(), rule), "");
        }
    }
}

/// Cedar's remark without the name of the policy, which the finding's location already shows.
fn remark(text: &str, rule: &Rule) -> String {
    let prefix = format!("for policy `{}`, ", rule.id.name());
    text.strip_prefix(&prefix).unwrap_or(text).to_owned()
}

/// Reports rules that change nothing because another one covers them.
fn coverage(rules: &[Rule], methods: &Methods, report: &Report) {
    // Rules are compared with many others, so what each is about is looked up once.
    let reach = |(position, rule)| Reach {
        position,
        rule,
        methods: methods.matching_any(&rule.methods).into_keys().collect(),
        conditions: compile::conditions(rule).map(|part| part.expr).collect(),
    };
    let rules: Vec<Reach<'_>> = rules.iter().enumerate().map(reach).collect();
    let mut by_method: HashMap<&MethodName, Vec<&Reach<'_>>> = HashMap::new();
    for rule in &rules {
        for method in &rule.methods {
            by_method.entry(method).or_default().push(rule);
        }
    }
    let all: Vec<&Reach<'_>> = rules.iter().collect();
    for narrow in &rules {
        // A rule that covers it is about each of its methods, so also about the one that the fewest rules are about.
        let candidates =
            narrow.methods.iter().filter_map(|method| by_method.get(method)).min_by_key(|about| about.len());
        let cover = candidates.unwrap_or(&all).iter().find(|wide| {
            wide.position != narrow.position
                && wide.covers(narrow)
                && (!narrow.covers(wide) || wide.position < narrow.position)
                && (wide.rule.effect != narrow.rule.effect || !narrow.alone_looks(&by_method))
        });
        let Some(Reach { rule: wide, .. }) = cover else { continue };
        let rule = narrow.rule;
        let message = match (wide.effect, rule.effect) {
            (Effect::Deny, Effect::Allow) => {
                format!("the rule `{}` never allows anything: `{}` denies all of it", rule.id.name(), wide.id.name())
            }
            _ => format!("the rule `{}` changes nothing: `{}` covers it", rule.id.name(), wide.id.name()),
        };
        report.warning(&rule.id.at, message, format!("see {}", wide.id.at));
    }
}

/// A rule and the registered methods that it is about, in ascending order.
struct Reach<'a> {
    position: usize,
    rule: &'a Rule,
    methods: Vec<&'a MethodName>,
    /// Everything that it requires besides who calls what.
    conditions: Vec<ExprRef>,
}

impl Reach<'_> {
    /// Whether calls of some method must follow the declarations of something because of this rule only. Then it refuses
    /// calls that no other rule refuses, whatever it says about them.
    fn alone_looks(&self, by_method: &HashMap<&MethodName, Vec<&Reach<'_>>>) -> bool {
        let looks = |reach: &Reach<'_>| -> BTreeSet<Vec<String>> {
            let reads = References::of(&reach.conditions);
            let paths = reads.context.iter().filter_map(|path| match path.as_slice() {
                [group, ..] if group == "params" => Some(vec![group.to_string()]),
                [group, name, ..] if group == "claims" => Some(vec![group.to_string(), name.to_string()]),
                _ => None,
            });
            paths.collect()
        };
        let looks = |reach: &Reach<'_>| {
            let mut looks = looks(reach);
            // All parameters have to be as declared where calls wait for an approval.
            looks.extend(reach.rule.approval().map(|_| vec!["params".to_owned()]));
            looks
        };
        let own = looks(self);
        let others = |method: &MethodName| -> BTreeSet<Vec<String>> {
            let others = by_method.get(method).into_iter().flatten().filter(|other| other.position != self.position);
            others.filter(|other| other.rule.mode == Mode::Enforce).flat_map(|other| looks(other)).collect()
        };
        !own.is_empty() && self.methods.iter().any(|method| !own.is_subset(&others(method)))
    }

    /// Whether `other` never makes a difference beside this one.
    fn covers(&self, other: &Self) -> bool {
        let (wide, rule) = (self.rule, other.rule);
        let effects = wide.effect == rule.effect || (wide.effect == Effect::Deny && self.conditions.is_empty());
        effects
            // What an approval lifts leaves more than what denies for good.
            && (wide.approval().is_none() || wide.effect == rule.effect && wide.approval() == rule.approval())
            // A shadow rule is informative as long as no enforced one does the same.
            && wide.mode == Mode::Enforce
            && rule.callers.iter().all(|whom| wide.callers.iter().any(|wider| wider.covers(whom)))
            && other.methods.iter().all(|method| self.methods.binary_search(method).is_ok())
            && self.conditions.iter().all(|condition| other.conditions.contains(condition))
            && !(wide.methods.iter().all(|method| method.value.is_exact())
                && rule.methods.iter().any(|method| !method.value.is_exact()))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use proptest::prelude::*;
    use proptest::sample::{select, subsequence};

    use super::*;
    use crate::policy::language::cedar_file;
    use crate::policy::model::{Finding, Param};

    /// In nested groups; two in three have parameters, of two types.
    fn methods() -> Methods {
        let names = (0..70).map(|n| match n % 7 {
            0..3 => format!("a/m{n}"),
            3..6 => format!("b/c.m{n}"),
            _ => format!("d{n}"),
        });
        (0..).zip(names).fold(Methods::new(), |methods, (n, name)| {
            let name = MethodName::new(&name).unwrap();
            match n % 3 {
                0 => methods.with(name),
                1 => methods.with_params(name, [Param::integer("p"), Param::integer("q").optional()]),
                _ => methods.with_params(name, [Param::string("p")]),
            }
        })
    }

    const SCOPES: [&str; 8] = [
        r#"action"#,
        r#"action in Action::"a/*""#,
        r#"action in Action::"b/*""#,
        r#"action in [Action::"b/c.*", Action::"d6"]"#,
        r#"action == Action::"a/m1""#,
        r#"action in [Action::"a/m2", Action::"a/m7", Action::"a/m8"]"#,
        r#"action == Action::"d69""#,
        r#"action in [Action::"*"]"#,
    ];

    const CONDITIONS: [&str; 10] = [
        r#"context.params.p > 3"#,
        r#"context.params.p like "x*""#,
        r#"context.params has q && context.params.q == 1"#,
        r#"context.params.q == 1"#,
        r#"context.nothing == 1"#,
        r#"context.hour == "one""#,
        r#"principal.name == "x""#,
        r#"action == Action::"d13""#,
        r#"action == Action::"no-such""#,
        r#"principal in Role::"r" && principal in Agent::"r""#,
    ];

    fn findings(groups: &[Together<'_>]) -> Vec<Finding> {
        let report = Report::default();
        types(groups, &Declarations::default(), &report);
        report.into_errors().findings
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn a_rule_is_told_the_same_whatever_it_is_checked_with(
            chosen in prop::collection::vec((select(&SCOPES[..]), subsequence(&CONDITIONS[..], 0..3)), 1..12),
        ) {
            let policy = |(scope, conditions): &(&str, Vec<&str>)| {
                let conditions: String = conditions.iter().map(|condition| format!(" when {{ {condition} }}")).collect();
                format!("permit(principal, {scope}, resource){conditions};\n")
            };
            let text: String = chosen.iter().map(policy).collect();
            let methods = methods();
            let rules = cedar_file::read("c.cedar", &text, &Report::default());
            prop_assert_eq!(rules.len(), chosen.len());
            let whole = Together { rules: rules.iter().collect(), methods: methods.iter().collect(), delegated: false };
            prop_assert_eq!(findings(&checked_together(&rules, &methods)), findings(&[whole]), "{}", text);
        }
    }
}
