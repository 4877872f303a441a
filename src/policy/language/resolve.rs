//! From the content of a folder to a checked set of rules: merging, and everything that is checked across files.
//! Never loads only a part: after one error anywhere, the folder is refused as a whole.

use std::collections::{BTreeSet, HashMap};

use super::checked::{CheckedPolicy, Granted};
use super::folder::Folder;
use super::table::Source;
use super::toml_file::{PrincipalTable, RoleTable, Statements};
use super::{approval_table, budget_table, cedar_file, lint, literals, rule_table, toml_file};
use crate::policy::cedar::References;
use crate::policy::model::{
    Attributes, ByPrincipal, CallerMatch, Declarations, Located, Location, Methods, Param, ParamType, Pattern, Report,
    Role, RoleSource, Roles, Types, described, did_you_mean, shown,
};

/// The claims to which the protocol itself gives a meaning, and what to use instead.
const KNOWN_CLAIMS: [(&str, &str); 10] = [
    ("sub", "ask `subject`"),
    ("iss", "ask `issuer`"),
    ("act", "ask `agent`, or write `delegated`"),
    ("roles", "write `roles` in the rule"),
    ("iat", "ask `token_age`"),
    ("exp", "an expired token is refused before the policy is asked"),
    ("nbf", "a token that is not valid yet is refused before the policy is asked"),
    ("aud", "a token for another service is refused before the policy is asked"),
    ("jti", "a token is revoked by its id, not by a rule"),
    ("cnf", "a token for another key is refused before the policy is asked"),
];

/// Checks the content of a folder; `report` tells whether the result may be used.
pub(crate) fn check(folder: &Folder, methods: &Methods, report: &Report) -> CheckedPolicy {
    let texts = folder.texts(report);
    for (name, text) in &texts {
        Source::new(name, text, report).check_characters();
    }
    let sources: Vec<Source<'_>> = texts
        .iter()
        .filter(|(name, _)| name.ends_with(".toml"))
        .map(|(name, text)| Source::new(name, text, report))
        .collect();
    let documents: Vec<_> =
        sources.iter().filter_map(|source| source.parse().map(|document| (source, document))).collect();
    let mut all = Statements::default();
    for (source, document) in &documents {
        if document.get_ref().is_empty() {
            source.warn_if_silent();
        }
        toml_file::read(source, document, &mut all);
    }

    let mut methods = methods.without_files();
    declare_methods(&all, &mut methods, report);
    let declarations = Declarations {
        claims: declare_types("claim", &all.claims, report),
        attributes: declare_types("attribute", &all.attributes, report),
        roles: declare_roles(&all, report),
    };
    for (name, _) in &all.claims {
        if let Some((_, help)) = KNOWN_CLAIMS.iter().find(|(known, _)| *known == name.value) {
            report.error(&name.at, format!("`{}` is not a claim to be declared", name.value), *help);
        }
    }
    let granted = grant_roles(&all, &declarations, report);
    let attributes = principal_attributes(&all.principals, &declarations, report);

    let approvals = approval_table::read(std::mem::take(&mut all.approvals), &declarations, report);
    let budgets = budget_table::read(std::mem::take(&mut all.budgets), &methods, &declarations, report);
    let mut rules = std::mem::take(&mut all.lists);
    for (name, table) in std::mem::take(&mut all.rules) {
        rules.extend(rule_table::read(&name, table, &methods, &declarations));
    }
    for (name, text) in texts.iter().filter(|(name, _)| name.ends_with(".cedar")) {
        rules.extend(cedar_file::read(name, text, report));
    }
    rules.sort_by(|left, right| left.id.at.cmp(&right.id.at));
    let revision = folder.revision();
    let checked = CheckedPolicy { revision, methods, declarations, attributes, granted, approvals, budgets, rules };
    check_patterns(&checked, report);
    check_names(&checked, report);
    approval_table::check(&checked, report);
    lint::check(&checked, report);
    checked
}

fn declare_methods(all: &Statements<'_>, methods: &mut Methods, report: &Report) {
    let mut seen: HashMap<&str, &Location> = HashMap::new();
    for table in &all.methods {
        let name = &table.name;
        if let Some(first) = seen.insert(name.value.as_str(), &name.at) {
            let message = format!("the method `{}` is declared twice", name.value);
            report.error(&name.at, message, format!("the first is at {first}"));
            continue;
        }
        let Some(method) = methods.declared_in_file(&name.value) else {
            unknown_method(&name.at, name.value.as_str(), methods, report);
            continue;
        };
        method.description.clone_from(&table.description);
        if let Some(params) = &table.params
            && !method.declare(params.value.clone())
        {
            let listed = Param::listed(method.params().unwrap_or_default());
            let message = format!("the parameters of `{}` are not those that the service declares", name.value);
            report.error(&params.at, message, format!("the service has ({listed})"));
        }
        if table.records_before {
            methods.record_before(&name.value);
        }
    }
    let mut in_subjects: HashMap<String, String> = HashMap::new();
    for name in methods.names() {
        if let Some(other) = in_subjects.insert(name.in_subject(), name.to_string()) {
            let declared = all.methods.iter().find(|table| table.name.value == *name);
            let at = declared.map(|table| table.name.at.clone()).unwrap_or_default();
            let message = format!("the methods `{other}` and `{name}` are the same in a subject");
            report.error(&at, message, "rename one of them");
        }
    }
}

fn declare_types(what: &str, declared: &[(Located<String>, ParamType)], report: &Report) -> Types {
    let mut types = Types::new();
    for (name, kind) in declared {
        if what == "attribute" && name.value == "name" {
            report.error(&name.at, "every agent and subject has the attribute `name` already", "give it another name");
        } else if types.get(&name.value).is_some_and(|known| known != kind) {
            let message = format!("the {what} `{}` is declared with two types", shown(&name.value));
            report.error(&name.at, message, "declare it once");
        }
        types.insert(name.value.clone(), kind.clone());
    }
    types
}

fn declare_roles(all: &Statements<'_>, report: &Report) -> Roles {
    let mut roles = Roles::new();
    for RoleTable { name, source, .. } in &all.roles {
        if let Some(first) = roles.get(&name.value) {
            let message = format!("the role `{}` is described twice", shown(&name.value));
            report.error(&name.at, message, format!("put it together with {}", first.at));
            continue;
        }
        let (included_in, includes) = (BTreeSet::new(), BTreeSet::new());
        roles.insert(name.value.clone(), Role { source: *source, included_in, includes, at: name.at.clone() });
    }
    let mut includes: HashMap<&str, Vec<&str>> = HashMap::new();
    for role in &all.roles {
        for part in &role.includes {
            if let Some(known) = described(&roles, &part.at, &part.value, report) {
                includes.entry(&role.name.value).or_default().push(&part.value);
                check_sources(role, part, known.source, report);
            }
        }
    }
    for role in &all.roles {
        let mut open: Vec<&str> = includes.get(role.name.value.as_str()).cloned().unwrap_or_default();
        let mut seen: BTreeSet<&str> = BTreeSet::new();
        while let Some(part) = open.pop() {
            if part == role.name.value {
                let message = format!("the role `{}` includes itself", shown(&role.name.value));
                report.error(&role.name.at, message, "take one of the `includes` out");
                break;
            }
            if seen.insert(part) {
                open.extend(includes.get(part).into_iter().flatten());
                if let Some(part) = roles.get_mut(part) {
                    part.included_in.insert(role.name.value.clone());
                }
            }
        }
        if let Some(whole) = roles.get_mut(&role.name.value) {
            whole.includes = seen.into_iter().map(ToOwned::to_owned).collect();
        }
    }
    roles
}

/// INVARIANT: a role of one source is included only by roles of that source; otherwise these would be a way around it.
/// It is enough that each single step obeys this: no longer path leads from one source to the other.
fn check_sources(whole: &RoleTable, part: &Located<String>, source: RoleSource, report: &Report) {
    let (whence, from) = match source {
        RoleSource::Files if whole.source != source => ("files", "files"),
        RoleSource::Token if whole.source != source => ("tokens", "token"),
        RoleSource::Anywhere | RoleSource::Files | RoleSource::Token => return,
    };
    let (whole, role) = (shown(&whole.name.value), shown(&part.value));
    report.error(
        &part.at,
        format!("the role `{role}` comes from {whence} only, and `{whole}` would give it to others too"),
        format!("write `from = \"{from}\"` for `{whole}`, or take it out of the `includes`"),
    );
}

fn grant_roles(all: &Statements<'_>, declarations: &Declarations, report: &Report) -> Granted {
    let mut seen: ByPrincipal<&Location> = ByPrincipal::default();
    let mut granted = Granted::default();
    for PrincipalTable { kind, name, roles, .. } in &all.principals {
        if let Some(first) = seen.insert(*kind, &name.value, &name.at) {
            let message = format!("the {kind} `{}` is described twice", shown(&name.value));
            report.error(&name.at, message, format!("put it together with {first}"));
        }
        for role in roles {
            let known = described(&declarations.roles, &role.at, &role.value, report);
            if let Some(known) = known.filter(|known| known.source == RoleSource::Token) {
                let message = format!("the role `{}` comes from tokens only", shown(&role.value));
                report.error(&role.at, message, format!("change `from` at {}", known.at));
            }
        }
        granted.insert(*kind, &name.value, roles.iter().map(|role| role.value.clone()).collect());
    }
    granted
}

fn principal_attributes(principals: &[PrincipalTable<'_>], declarations: &Declarations, report: &Report) -> Attributes {
    let mut attributes = Attributes::default();
    for principal in principals {
        for (name, raw) in &principal.attributes {
            let Some(kind) = declarations.attributes.get(&name.value) else {
                let help = format!("declare it: `[attributes]` and `{} = \"string\"`", shown(&name.value));
                let known = declarations.attributes.keys().map(String::as_str);
                report.unknown(&name.at, "attribute", &name.value, known, help);
                continue;
            };
            match toml_file::attribute(*raw, kind) {
                Some(value) => {
                    let known = attributes.or_default(principal.kind, &principal.name.value);
                    known.push((name.value.clone(), value));
                }
                None => {
                    let message = format!("the attribute `{}` is of type {kind}", shown(&name.value));
                    raw.error(message, format!("{} is not", raw.shown()));
                }
            }
        }
    }
    attributes
}

/// A pattern that matches no registered method would silently never apply.
fn check_patterns(CheckedPolicy { rules, budgets, methods, .. }: &CheckedPolicy, report: &Report) {
    let of_budgets = budgets.values().flat_map(|budget| &budget.methods);
    for pattern in rules.iter().flat_map(|rule| &rule.methods).chain(of_budgets) {
        if pattern.value == Pattern::All || methods.matching(&pattern.value).next().is_some() {
            continue;
        }
        if pattern.value.is_exact() {
            unknown_method(&pattern.at, &pattern.value.to_string(), methods, report);
        } else {
            let message = format!("no registered method matches `{}`", pattern.value);
            report.error(&pattern.at, message, "remove it, or register the methods it is for");
        }
    }
}

/// Checks the roles, agents and subjects that Cedar files name. Those in TOML files are checked while they are read, when
/// their lines are known.
fn check_names(CheckedPolicy { rules, declarations, .. }: &CheckedPolicy, report: &Report) {
    for rule in rules.iter().filter(|rule| rule.written.is_some()) {
        let named = rule.callers.iter().filter_map(|whom| match whom {
            CallerMatch::Role(name) => Some(name.clone()),
            _ => None,
        });
        let read = References::of(rule.conditions.iter().map(|part| &part.expr));
        for name in named.chain(read.roles) {
            described(&declarations.roles, &rule.id.at, &name, report);
        }
        let named = rule.callers.iter().filter_map(|whom| match whom {
            CallerMatch::Named(kind, name) => Some((*kind, name.clone())),
            _ => None,
        });
        for (kind, name) in named.chain(read.principals) {
            if let Some((message, help)) = literals::impossible_name(kind, &name) {
                report.error(&rule.id.at, message, help);
            }
        }
    }
}

fn unknown_method(at: &Location, name: &str, methods: &Methods, report: &Report) {
    let help = did_you_mean(name, methods.names().map(|name| name.as_str())).unwrap_or_else(|| {
        if methods.open {
            format!("declare it: `[method.\"{name}\"]`")
        } else {
            "the service has no method of that name".to_owned()
        }
    });
    report.error(at, format!("unknown method `{name}`"), help);
}
