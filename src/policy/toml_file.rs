//! What a TOML policy file says: roles, agents and methods.
//! Never checks one file against another: that is `load`'s work.

use std::str::FromStr;

use super::cedar;
use super::finding::{Report, shown};
use super::glob::Pattern;
use super::rule::{Delegation, Effect, Located, Mode, Rule, RuleId, Who};
use super::table::{Source, Table};
use crate::name::MethodName;

/// The statements of one file or, appended, of many.
#[derive(Debug, Default)]
pub(crate) struct Statements {
    pub(crate) roles: Vec<RoleTable>,
    pub(crate) agents: Vec<AgentTable>,
    pub(crate) methods: Vec<MethodTable>,
    pub(crate) rules: Vec<Rule>,
}

/// `[role.NAME]`.
#[derive(Debug)]
pub(crate) struct RoleTable {
    pub(crate) name: Located<String>,
}

/// `[agent."NAME"]`.
#[derive(Debug)]
pub(crate) struct AgentTable {
    pub(crate) name: Located<String>,
    pub(crate) roles: Vec<Located<String>>,
}

/// `[method."NAME"]`.
#[derive(Debug)]
pub(crate) struct MethodTable {
    pub(crate) name: Located<MethodName>,
    pub(crate) description: Option<String>,
}

/// Reads one file. What is wrong in it is reported, and what is right in it is still there.
pub(crate) fn read(file: &str, text: &str, report: &mut Report) -> Statements {
    let source = Source::new(file, text);
    let mut statements = Statements::default();
    let Some(document) = source.parse(report) else { return statements };
    let mut root = Table::root(&source, document.get_ref());
    for (name, table) in root.tables(report, "role") {
        role(name, table, &mut statements, report);
    }
    for (name, table) in root.tables(report, "agent") {
        agent(name, table, &mut statements, report);
    }
    for (name, table) in root.tables(report, "method") {
        method(name, table, &mut statements, report);
    }
    root.finish(report);
    statements
}

fn role(name: Located<String>, mut table: Table<'_>, statements: &mut Statements, report: &mut Report) {
    check_name("role", &name, report);
    let description = description(&mut table, report);
    lists("role", &name, Who::Roles(vec![name.value.clone()]), &description, &mut table, statements, report);
    table.finish(report);
    statements.roles.push(RoleTable { name });
}

fn agent(name: Located<String>, mut table: Table<'_>, statements: &mut Statements, report: &mut Report) {
    check_name("agent", &name, report);
    let description = description(&mut table, report);
    let roles = table.strings(report, "roles");
    lists("agent", &name, Who::Agents(vec![name.value.clone()]), &description, &mut table, statements, report);
    table.finish(report);
    statements.agents.push(AgentTable { name, roles });
}

fn method(name: Located<String>, mut table: Table<'_>, statements: &mut Statements, report: &mut Report) {
    let description = description(&mut table, report);
    table.finish(report);
    match MethodName::new(&name.value) {
        Ok(value) => {
            statements.methods.push(MethodTable { name: Located { value, at: name.at }, description });
        }
        Err(error) => report.error(&name.at, error.to_string(), ""),
    }
}

/// The `allow` and `deny` lists of a role or an agent: one rule each.
fn lists(
    kind: &str,
    name: &Located<String>,
    who: Who,
    description: &Option<String>,
    table: &mut Table<'_>,
    statements: &mut Statements,
    report: &mut Report,
) {
    let delegation = delegation(table, report);
    for (key, effect) in [("allow", Effect::Allow), ("deny", Effect::Deny)] {
        let at = table.line_of(key);
        let methods = patterns(table, key, report);
        if methods.is_empty() {
            continue;
        }
        // A deny list that left out delegated calls would be a way around it.
        let delegation = if effect == Effect::Deny { Delegation::Also } else { delegation };
        statements.rules.push(Rule {
            id: RuleId::new(&format!("{kind}.{}.{key}", name.value), &at),
            at,
            description: description.clone(),
            effect,
            mode: Mode::Enforce,
            who: who.clone(),
            methods,
            parts: cedar::delegation_part(delegation).into_iter().collect(),
        });
    }
}

fn patterns(table: &mut Table<'_>, key: &'static str, report: &mut Report) -> Vec<Located<Pattern>> {
    let mut patterns = Vec::new();
    for text in table.strings(report, key) {
        match Pattern::from_str(&text.value) {
            Ok(value) => patterns.push(Located { value, at: text.at }),
            Err(error) => report.error(&text.at, format!("`{}` is not a method pattern", shown(&text.value)), error.0),
        }
    }
    patterns
}

fn delegation(table: &mut Table<'_>, report: &mut Report) -> Delegation {
    match table.string(report, "delegated") {
        None => Delegation::Never,
        Some(text) => match text.value.as_str() {
            "never" => Delegation::Never,
            "also" => Delegation::Also,
            other => {
                report.error(
                    &text.at,
                    format!("`delegated = \"{}\"` is not known", shown(other)),
                    "write \"never\" (calls in the caller's own name only) or \"also\" (delegated calls too)",
                );
                Delegation::Never
            }
        },
    }
}

fn description(table: &mut Table<'_>, report: &mut Report) -> Option<String> {
    table.string(report, "description").map(|text| text.value)
}

/// Role and agent names are compared with claims of tokens: 1 to 128 characters, none of them a control character.
fn check_name(kind: &str, name: &Located<String>, report: &mut Report) {
    let length = name.value.chars().count();
    if !(1..=128).contains(&length) || name.value.chars().any(char::is_control) {
        report.error(
            &name.at,
            format!("`{}` is not a name for {} {kind}", shown(&name.value), if kind == "agent" { "an" } else { "a" }),
            "1 to 128 characters without control characters are allowed",
        );
    }
}
