//! What differs between two policies as written: rules by their content, and what the rules rest on.
//! Never judges what a difference means, so that none is lost that a summary cannot show.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::policy::engine::PolicySet;
use crate::policy::language::CheckedPolicy;
use crate::policy::model::{CallerMatch, Condition, ExprRef, Param, PrincipalKind, RoleSource, Rule, Types};

/// A rule that is not the same in two policies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RuleChange {
    /// Its name.
    pub rule: String,
    /// What is different: `new`, `gone`, or parts of it.
    pub parts: Vec<&'static str>,
}

/// The rules that are not in both policies with the same content, whatever their names. A rule with the same name in
/// both is one change.
pub(crate) fn rules(old: &PolicySet, new: &PolicySet) -> Vec<RuleChange> {
    let (old, new) = (&old.checked().rules, &new.checked().rules);
    let only = |these: &[Rule], others: &[Rule]| -> BTreeSet<String> {
        let alone = these.iter().filter(|rule| !others.iter().any(|other| differences(rule, other).is_empty()));
        alone.map(|rule| rule.id.name().to_owned()).collect()
    };
    let names: BTreeSet<String> = only(old, new).into_iter().chain(only(new, old)).collect();
    let find = |rules: &'_ [Rule], name: &str| rules.iter().find(|rule| rule.id.name() == name).cloned();
    let change = |name: String| {
        let parts = match (find(old, &name), find(new, &name)) {
            (Some(before), Some(after)) => differences(&before, &after),
            (None, _) => vec!["new"],
            (Some(_), None) => vec!["gone"],
        };
        RuleChange { rule: name, parts }
    };
    names.into_iter().map(change).collect()
}

/// What is different between two rules, apart from their names, descriptions and places.
fn differences(one: &Rule, other: &Rule) -> Vec<&'static str> {
    let who = |rule: &Rule| -> BTreeSet<CallerMatch> { rule.callers.iter().cloned().collect() };
    let methods =
        |rule: &Rule| -> BTreeSet<String> { rule.methods.iter().map(|name| name.value.to_string()).collect() };
    [
        ("effect", one.effect == other.effect),
        ("mode", one.mode == other.mode),
        ("whom it is about", who(one) == who(other)),
        ("delegation", one.delegation == other.delegation),
        ("methods", methods(one) == methods(other)),
        ("approval", one.approval() == other.approval()),
        ("conditions", ask_the_same(one.conditions.iter(), other.conditions.iter())),
    ]
    .into_iter()
    .filter_map(|(what, same)| (!same).then_some(what))
    .collect()
}

/// Whether the conditions are the same, in any order.
pub(crate) fn ask_the_same<'a>(
    one: impl Iterator<Item = &'a Condition>,
    other: impl Iterator<Item = &'a Condition>,
) -> bool {
    let one: Vec<&ExprRef> = one.map(|part| &part.expr).collect();
    let mut other: Vec<&ExprRef> = other.map(|part| &part.expr).collect();
    one.len() == other.len()
        && one.iter().all(|condition| {
            let found = other.iter().position(|twin| twin == condition);
            found.map(|at| other.swap_remove(at)).is_some()
        })
}

/// What differs besides the rules, in sentences.
pub(crate) fn surroundings(old: &PolicySet, new: &PolicySet) -> Vec<String> {
    let mut words = methods(old, new);
    let (old, new) = (old.checked(), new.checked());
    let mut compare = |what: &str, described: &dyn Fn(&CheckedPolicy) -> BTreeMap<String, String>| {
        words.extend(compared(what, &described(old), &described(new)));
    };
    compare("the claim", &|policy| types(&policy.declarations.claims));
    compare("the attribute", &|policy| types(&policy.declarations.attributes));
    compare("the role", &|policy| {
        let described = policy.declarations.roles.iter().map(|(name, role)| {
            let source = match role.source {
                RoleSource::Anywhere => "from anywhere",
                RoleSource::Files => "from files",
                RoleSource::Token => "from tokens",
            };
            let includes = if role.includes.is_empty() { "" } else { ", includes " };
            (name.clone(), format!("{source}{includes}{}", quoted(&role.includes)))
        });
        described.collect()
    });
    compare("the approval", &|policy| {
        policy.approvals.iter().map(|(name, approval)| (name.clone(), approval.terms())).collect()
    });
    compare("the budget", &|policy| {
        let described = policy.budgets.iter().map(|(name, budget)| {
            let methods: BTreeSet<String> = budget.methods.iter().map(|pattern| pattern.value.to_string()).collect();
            (name.clone(), format!("{}: {}", quoted(&methods), budget.terms()))
        });
        described.collect()
    });
    compare("what files grant to", &|policy| {
        let granted = policy.granted.iter().filter(|(_, _, roles)| !roles.is_empty());
        granted.map(|(kind, name, roles)| (called(kind, name), quoted(roles))).collect()
    });
    let both = old.attributes.iter().chain(new.attributes.iter());
    let principals: BTreeSet<(PrincipalKind, &str)> = both.map(|(kind, name, _)| (kind, name)).collect();
    for (kind, name) in principals {
        compare(&format!("of the {kind} `{}` the attribute", name.escape_debug()), &|policy| {
            let values = policy.attributes.get(kind, name).into_iter().flatten();
            values.map(|(name, value)| (name.clone(), value.to_json().to_string())).collect()
        });
    }
    words
}

/// A principal as the key of a sentence. Agents and subjects of one name are different.
fn called(kind: PrincipalKind, name: &str) -> String {
    match kind {
        PrincipalKind::Agent => name.to_owned(),
        PrincipalKind::Subject => format!("subject {name}"),
    }
}

fn quoted(names: &BTreeSet<String>) -> String {
    names.iter().map(|name| format!("`{}`", name.escape_debug())).collect::<Vec<_>>().join(", ")
}

fn methods(old: &PolicySet, new: &PolicySet) -> Vec<String> {
    let described = |set: &PolicySet| -> BTreeMap<String, String> {
        let names = set.methods().names().map(ToString::to_string);
        names.map(|name| (name.clone(), signature(set.methods().params(&name)))).collect()
    };
    let (before, after) = (described(old), described(new));
    let mut words = compared("the method", &before, &after);
    for name in before.keys().filter(|name| after.contains_key(*name)) {
        match (old.looks_at_params(name), new.looks_at_params(name)) {
            (false, true) => words.push(format!("every call of `{name}` must now send the declared parameters only")),
            (true, false) => words.push(format!("calls of `{name}` may now send other parameters than the declared")),
            _ => {}
        }
    }
    words
}

fn types(declared: &Types) -> BTreeMap<String, String> {
    declared.iter().map(|(name, kind)| (name.clone(), kind.to_string())).collect()
}

fn signature(params: Option<&[Param]>) -> String {
    match params {
        None => "parameters not declared".to_owned(),
        Some(params) => format!("({})", Param::listed(params)),
    }
}

fn compared(what: &str, old: &BTreeMap<String, String>, new: &BTreeMap<String, String>) -> Vec<String> {
    let names: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let line = |name: &String| {
        let shown = name.escape_debug();
        match (old.get(name), new.get(name)) {
            (None, Some(after)) => Some(format!("{what} `{shown}`: new, {after}")),
            (Some(before), None) => Some(format!("{what} `{shown}`: gone, was {before}")),
            (Some(before), Some(after)) if before != after => Some(format!("{what} `{shown}`: {before} -> {after}")),
            _ => None,
        }
    };
    names.into_iter().filter_map(line).collect()
}
