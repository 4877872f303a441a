//! `[approval.NAME]`, and the rules that are lifted by one.
//! Never lets a rule wait for somebody who cannot exist, or for an approval of something that is not fully known.

use std::collections::{BTreeMap, BTreeSet};

use super::checked::CheckedPolicy;
use super::table::Table;
use super::toml_file::description;
use super::when;
use crate::auth::DENIED_FOR_S;
use crate::name::is_name;
use crate::policy::model::{
    APPROVE, Approval, Declarations, Effect, Involved, Located, Mode, ParamType, Pattern, PrincipalKind, Report,
    RoleSource, Rule, described, shown, spelled,
};

/// A call may need several approvals, and each has to be looked at by people.
const MAX_APPROVALS: usize = 64;
/// More people than agree on one call.
const MAX_COUNT: i64 = 10;
/// A call waits half an hour, and can start five minutes after it was approved, unless the file says otherwise.
const WITHIN_S: u64 = 30 * 60;
const VALID_S: u64 = 5 * 60;
/// At least the time that it takes to send a call again. Longer than these, nobody remembers what was asked or why.
const LEAST_S: u64 = 10;
const MOST_WITHIN_S: u64 = 24 * 3600;
const MOST_VALID_S: u64 = 3600;

/// Reads all of them.
pub(crate) fn read(
    tables: Vec<(Located<String>, Table<'_>)>,
    declarations: &Declarations,
    report: &Report,
) -> BTreeMap<String, Approval> {
    let mut approvals = BTreeMap::<String, Approval>::new();
    for (name, table) in tables {
        if approvals.len() >= MAX_APPROVALS {
            report.error(
                &name.at,
                format!("there are more than {MAX_APPROVALS} approvals"),
                "use one for several rules",
            );
            break;
        }
        let approval = approval(&name, table, declarations);
        if let Some(first) = approvals.get(&name.value) {
            let message = format!("the approval `{}` is described twice", shown(&name.value));
            report.error(&name.at, message, format!("the first is at {}", first.at));
        } else {
            approvals.insert(name.value, approval);
        }
    }
    approvals
}

fn approval(name: &Located<String>, mut table: Table<'_>, declarations: &Declarations) -> Approval {
    let report = table.report();
    if !is_name(&name.value) {
        let message = format!("`{}` is not a name for an approval", shown(&name.value));
        report.error(&name.at, message, "1 to 64 of A-Z a-z 0-9 _ - are allowed");
    }
    let description = description(&mut table);
    let roles = roles(&mut table, name, declarations);
    let count = count(&mut table);
    let within_s = duration(&mut table, "within", MOST_WITHIN_S).unwrap_or(WITHIN_S);
    let valid_s = duration(&mut table, "valid", MOST_VALID_S).unwrap_or(VALID_S);
    let needs_reason = table.flag("reason").is_some_and(|flag| flag.value);
    let exclude = exclude(&mut table);
    let distinct = distinct(&mut table, declarations);
    table.finish();
    Approval {
        name: name.value.clone(),
        at: name.at.clone(),
        description,
        roles,
        count,
        within_s,
        valid_s,
        needs_reason,
        exclude,
        distinct,
    }
}

fn roles(table: &mut Table<'_>, name: &Located<String>, declarations: &Declarations) -> Vec<String> {
    let report = table.report();
    let mut roles: Vec<String> = Vec::new();
    for role in table.strings("from") {
        described(&declarations.roles, &role.at, &role.value, report);
        if !roles.contains(&role.value) {
            roles.push(role.value);
        }
    }
    if roles.is_empty() {
        let message = format!("the approval `{}` does not say who decides", shown(&name.value));
        report.error(&name.at, message, "write `from = [\"ROLE\"]`");
    }
    roles
}

fn count(table: &mut Table<'_>) -> usize {
    let help = format!("write a number from 1 to {MAX_COUNT}");
    let Some(raw) = table.raw("count") else { return 1 };
    let count = raw.integer().filter(|count| (1..=MAX_COUNT).contains(count));
    if count.is_none() {
        raw.error(format!("`count` is {}", raw.shown()), help);
    }
    count.and_then(|count| usize::try_from(count).ok()).unwrap_or(1)
}

fn duration(table: &mut Table<'_>, key: &'static str, most_s: u64) -> Option<u64> {
    let report = table.report();
    let text = table.string(key)?;
    let fits = |seconds: i64| u64::try_from(seconds).ok().filter(|seconds| (LEAST_S..=most_s).contains(seconds));
    let help = format!("write a duration from 10s to {}h, such as \"30m\"", most_s / 3600);
    let read = |text: &str| when::seconds(text).and_then(fits);
    when::parsed(&text, read, &format!("a duration for `{key}`"), &help, report)
}

/// An attribute of agents that is a text.
fn distinct(table: &mut Table<'_>, declarations: &Declarations) -> Option<String> {
    let report = table.report();
    let name = table.string("distinct")?;
    match declarations.attributes.get(&name.value) {
        Some(ParamType::String) => {}
        Some(other) => {
            let message =
                format!("`distinct` is about a text, and the attribute `{}` is of type {other}", shown(&name.value));
            report.error(&name.at, message, "name an attribute of type string");
        }
        None => {
            let help = format!("declare it: `[attributes]` and `{} = \"string\"`", shown(&name.value));
            let known = declarations.attributes.keys().map(String::as_str);
            report.unknown(&name.at, "attribute", &name.value, known, help);
        }
    }
    Some(name.value)
}

/// Nobody decides about their own call, unless the file lets those whom it is made for.
fn exclude(table: &mut Table<'_>) -> Vec<Involved> {
    let all = Involved::NAMED.map(|(_, who)| who).to_vec();
    let at = table.line_of("exclude");
    let report = table.report();
    if table.raw("exclude").is_none() {
        return all;
    }
    let mut exclude = BTreeSet::new();
    for word in table.strings("exclude") {
        match Involved::NAMED.iter().position(|(name, _)| *name == word.value) {
            Some(position) => drop(exclude.insert(position)),
            None => {
                let names = Involved::NAMED.map(|(name, _)| name);
                report.unknown(&word.at, "word", &word.value, names, "write `agent`, `subject` or `via`".to_owned());
            }
        }
    }
    let exclude: Vec<Involved> =
        exclude.into_iter().filter_map(|position| Some(Involved::NAMED.get(position)?.1)).collect();
    if !exclude.contains(&Involved::Agent) {
        let help = "write `exclude = [\"agent\"]` at least, or leave it out";
        report.error(&at, "an agent that approves its own calls is asked nothing", help);
        return all;
    }
    exclude
}

/// Checks the rules that are lifted, and that approvals can be given.
pub(crate) fn check(checked: &CheckedPolicy, report: &Report) {
    let mut used: BTreeSet<&str> = BTreeSet::new();
    for rule in &checked.rules {
        if let Some(name) = &rule.unless_approved {
            used.insert(&name.value);
            liftable(rule, name, checked, report);
        }
    }
    for approval in checked.approvals.values() {
        if !used.contains(approval.name()) {
            let message = format!("no rule waits for the approval `{}`", shown(approval.name()));
            let help = "write `unless_approved` into a deny rule (in Cedar, `@unless_approved`), or remove it";
            report.warning(&approval.at, message, help);
        }
        possible(approval, checked, report);
        lasting(approval, report);
    }
    let approves = |rule: &Rule| {
        let enforced = rule.effect == Effect::Allow && rule.mode == Mode::Enforce;
        enforced && rule.methods.iter().any(|pattern| pattern.value.matches(APPROVE))
    };
    if let Some(approval) = checked.approvals.values().next()
        && checked.methods.contains(APPROVE)
        && !checked.rules.iter().any(approves)
    {
        let message = format!("no rule allows `{APPROVE}`, so nobody can give `{}`", shown(approval.name()));
        report.warning(
            &approval.at,
            message,
            "write `allow = [\"rpc.approve\", \"rpc.approval\", \"rpc.approvals\"]` for its roles",
        );
    }
}

fn liftable(rule: &Rule, name: &Located<String>, checked: &CheckedPolicy, report: &Report) {
    let id = shown(rule.id.name());
    if !checked.approvals.contains_key(&name.value) {
        let help = format!("describe it: `[approval.{}]`", shown(&name.value));
        report.unknown(&name.at, "approval", &name.value, checked.approvals.keys().map(String::as_str), help);
    }
    if rule.effect == Effect::Allow {
        let message = format!("`{id}` allows, and an approval lifts only what denies");
        report.error(&name.at, message, "write a deny rule that waits, beside this one");
    }
    if rule.mode == Mode::Shadow {
        let message = format!("`{id}` is in shadow mode, so no call waits for `{}`", shown(&name.value));
        report.warning(&name.at, message, "write `mode = \"enforce\"` once it is tried out");
    }
    for pattern in &rule.methods {
        if may_be_reserved(&pattern.value) {
            let message = format!("`{}` is also about the methods with which approvals are given", pattern.value);
            report.error(&pattern.at, message, "name the methods that wait, or a prefix: `bank/*`");
            continue;
        }
        for (method, _) in checked.methods.matching(&pattern.value).filter(|(_, method)| method.params().is_none()) {
            let message = format!("calls of `{method}` wait for an approval, and its parameters are not declared");
            let help = format!(
                "declare them, so that people see all that they approve: `[method.\"{method}\"]` with `params`"
            );
            report.error(&pattern.at, message, help);
        }
    }
}

/// Whether it may match a built-in method.
pub(crate) fn may_be_reserved(pattern: &Pattern) -> bool {
    match pattern {
        Pattern::All => true,
        Pattern::Below(prefix) => prefix.split(['/', '.']).next() == Some("rpc"),
        Pattern::Exact(name) => name.is_reserved(),
    }
}

/// Who decides, as far as files say.
#[derive(Debug)]
pub(crate) struct Deciders<'a> {
    /// The agents to whom files grant one of the roles.
    pub(crate) agents: Vec<&'a str>,
    /// The roles that tokens may carry.
    pub(crate) token_roles: BTreeSet<&'a str>,
}

pub(crate) fn deciders<'a>(approval: &'a Approval, checked: &'a CheckedPolicy) -> Deciders<'a> {
    let known = &checked.declarations.roles;
    let wider = approval.roles.iter().filter_map(|role| known.get(role)).flat_map(|role| &role.included_in);
    let holding: BTreeSet<&str> = approval.roles.iter().chain(wider).map(String::as_str).collect();
    let is_decider = |held: &BTreeSet<String>| held.iter().any(|role| holding.contains(role.as_str()));
    let granted = checked.granted.iter().filter(|(kind, _, held)| *kind == PrincipalKind::Agent && is_decider(held));
    let mut agents: Vec<&str> = granted.map(|(_, name, _)| name).collect();
    agents.sort_unstable();
    let from_files = |role: &&str| known.get(*role).is_some_and(|role| role.source == RoleSource::Files);
    Deciders { agents, token_roles: holding.iter().filter(|role| !from_files(role)).copied().collect() }
}

/// Whether the first of several approvals surely still counts when the call runs.
fn lasting(approval: &Approval, report: &Report) {
    let longest_s = approval.within_s + approval.valid_s;
    if approval.count > 1 && longest_s > DENIED_FOR_S {
        let message = format!(
            "the call may run {} after the first of {} approvals `{}`, and one whose token ended more than an hour before does not count",
            spelled(longest_s),
            approval.count,
            shown(approval.name())
        );
        report.warning(&approval.at, message, "make `within` and `valid` an hour together at most");
    }
}

/// Whether enough agents can hold one of its roles. A warning: a policy that stays in force because this one is refused would let those
/// decide who have just lost the role.
fn possible(approval: &Approval, checked: &CheckedPolicy, report: &Report) {
    let Deciders { agents, token_roles } = deciders(approval, checked);
    if token_roles.is_empty() && agents.len() < approval.count {
        let message = format!(
            "the approval `{}` needs {} of the agents with its roles, and there are {}",
            shown(approval.name()),
            approval.count,
            agents.len()
        );
        report.warning(&approval.at, message, "grant the role to more agents: `[agent.\"…\"] roles = […]`");
    }
}
