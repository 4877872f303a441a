//! `[rule.NAME]`: who, which methods, on what conditions, and with what effect.
//! Never guesses a missing part: a rule says whom it is about.

use std::collections::BTreeMap;

use super::table::Table;
use super::toml_file::{description, patterns};
use super::when;
use super::{globs, literals};
use crate::policy::model::{
    CallerMatch, Declarations, Delegation, Effect, Located, Methods, Mode, Param, Pattern, PrincipalKind, Report, Rule,
    RuleId, described, shown,
};

/// Reads one rule; `None` if it does not say whom it is about or what it does.
pub(crate) fn read(
    name: &Located<String>,
    mut table: Table<'_>,
    methods: &Methods,
    declarations: &Declarations,
) -> Option<Rule> {
    let report = table.report();
    check_name(name, report);
    let description = description(&mut table);
    let who = who(&mut table, declarations);
    if who.is_empty() {
        let help = "write `roles`, `agents`, `subjects` or `everyone = true`";
        report.error(&name.at, "this rule does not say which callers it applies to", help);
    }
    let mode = table.choice("mode", &[("enforce", Mode::Enforce), ("shadow", Mode::Shadow)]);
    let allow = patterns(&mut table, "allow");
    let deny = patterns(&mut table, "deny");
    let (effect, patterns) = match (allow.is_empty(), deny.is_empty()) {
        (false, true) => (Effect::Allow, allow),
        (true, false) => (Effect::Deny, deny),
        (neither, _) => {
            let (does, help) = if neither {
                ("allows and denies nothing", "write `allow = [\"…\"]` or `deny = [\"…\"]`")
            } else {
                ("both allows and denies", "make two rules of it")
            };
            report.error(&name.at, format!("the rule `{}` {does}", shown(&name.value)), help);
            (Effect::Deny, Vec::new())
        }
    };
    let unless_approved = table.string("unless_approved");
    let choices = [("never", Delegation::Never), ("also", Delegation::Also), ("only", Delegation::Only)];
    let default = if effect == Effect::Deny { Delegation::Also } else { Delegation::Never };
    let delegation = table.choice("delegated", &choices).unwrap_or(default);

    let fields = when::fields(params(&patterns, methods), declarations);
    let mut parts = Vec::new();
    if let Some(inner) = table.table("when") {
        parts.extend(when::read(inner, &fields));
    }
    if let Some(inner) = table.table("unless") {
        let at = inner.at.clone();
        parts.extend(when::negated(when::read(inner, &fields), &at));
    }
    table.finish();
    (!who.is_empty() && !patterns.is_empty()).then(|| Rule {
        id: RuleId::new(&name.value, &name.at),
        description,
        effect,
        mode: mode.unwrap_or_default(),
        callers: who,
        methods: patterns,
        delegation,
        conditions: parts,
        unless_approved,
        written: None,
    })
}

/// Names of rules appear in logs, metrics and permits: each is a plain word.
pub(crate) fn check_name(name: &Located<String>, report: &Report) {
    let plain = name.value.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-./".contains(&byte));
    if !(1..=64).contains(&name.value.len()) || !plain {
        let message = format!("`{}` is not a name for a rule", shown(&name.value));
        report.error(&name.at, message, "1 to 64 of A-Z a-z 0-9 _ - . / are allowed");
    }
    if ["role.", "agent.", "subject."].iter().any(|prefix| name.value.starts_with(prefix)) {
        let message =
            format!("the rule name `{}` is kept for the lists of roles, agents and subjects", shown(&name.value));
        report.error(&name.at, message, "give it another name");
    }
}

/// The callers that it names; empty if it names none.
pub(crate) fn who(table: &mut Table<'_>, declarations: &Declarations) -> Vec<CallerMatch> {
    let report = table.report();
    let mut who: Vec<CallerMatch> = Vec::new();
    for role in table.strings("roles") {
        described(&declarations.roles, &role.at, &role.value, report);
        who.push(CallerMatch::Role(role.value));
    }
    for (key, kind) in [("agents", PrincipalKind::Agent), ("subjects", PrincipalKind::Subject)] {
        for name in table.strings(key) {
            if let Some((message, help)) = literals::impossible_glob(kind, &name.value) {
                report.error(&name.at, message, help);
            }
            if let Some((message, help)) = globs::doubt(&name.value).filter(|_| name.value.contains('*')) {
                report.warning(&name.at, format!("in `{}`, {message}", shown(&name.value)), help);
            }
            let whom = if name.value.contains('*') { CallerMatch::Like } else { CallerMatch::Named };
            who.push(whom(kind, name.value));
        }
    }
    if let Some(flag) = table.flag("everyone").filter(|flag| flag.value) {
        if !who.is_empty() {
            report.error(&flag.at, "`everyone` beside `roles`, `agents` or `subjects`", "leave one of them out");
        }
        who = vec![CallerMatch::Everyone];
    }
    who
}

/// The parameters of the methods that the patterns match: those that all of them have in common, and why others cannot
/// be used.
fn params(patterns: &[Located<Pattern>], methods: &Methods) -> BTreeMap<String, Result<Param, String>> {
    let matching = methods.matching_any(patterns);
    let mut params = BTreeMap::new();
    for param in matching.values().flat_map(|method| method.params().unwrap_or_default()) {
        if params.contains_key(param.name()) {
            continue;
        }
        let mut common = Ok(Param::new(param.name(), param.kind().clone()));
        for (name, method) in &matching {
            let found = method.params().unwrap_or_default().iter().find(|other| other.name() == param.name());
            common = match found {
                Some(other) if other.kind() != param.kind() => {
                    Err(format!("it is of type {} in one and {} in `{name}`", param.kind(), other.kind()))
                }
                Some(other) if other.is_optional() => common.map(Param::optional),
                Some(_) => common,
                None => Err(format!("`{name}` has none; list only the methods that have it")),
            };
        }
        params.insert(param.name().to_owned(), common);
    }
    params
}
