//! What a TOML policy file declares: roles, agents, subjects, methods, claims and attributes. Its rules are passed on unread.
//! Never checks one file against another: that is `resolve`'s work.

use std::str::FromStr;

use toml::Spanned;
use toml::de::DeTable;

use super::literals;
use super::table::{Raw, Source, Table, listed};
use crate::name::MethodName;
use crate::policy::model::{
    Audit, CallerMatch, Delegation, Effect, Located, Mode, Param, ParamType, Pattern, PrincipalKind, Report,
    RoleSource, Rule, RuleId, TypedValue, shown,
};

/// The statements of one file or, appended, of many.
#[derive(Debug, Default)]
pub(crate) struct Statements<'a> {
    pub(crate) roles: Vec<RoleTable>,
    pub(crate) principals: Vec<PrincipalTable<'a>>,
    pub(crate) methods: Vec<MethodTable>,
    pub(crate) claims: Vec<(Located<String>, ParamType)>,
    pub(crate) attributes: Vec<(Located<String>, ParamType)>,
    /// The rules that the lists of roles, agents and subjects amount to.
    pub(crate) lists: Vec<Rule>,
    /// `[approval.NAME]`, unread: their roles may be in other files.
    pub(crate) approvals: Vec<(Located<String>, Table<'a>)>,
    /// `[budget.NAME]`, unread: what they add up depends on the methods.
    pub(crate) budgets: Vec<(Located<String>, Table<'a>)>,
    /// `[rule.NAME]`, unread: what they mean depends on the methods.
    pub(crate) rules: Vec<(Located<String>, Table<'a>)>,
}

/// `[role.NAME]`.
#[derive(Debug)]
pub(crate) struct RoleTable {
    pub(crate) name: Located<String>,
    pub(crate) source: RoleSource,
    /// The roles that every holder of this one has, too.
    pub(crate) includes: Vec<Located<String>>,
}

/// `[agent."NAME"]` or `[subject."NAME"]`.
#[derive(Debug)]
pub(crate) struct PrincipalTable<'a> {
    pub(crate) kind: PrincipalKind,
    pub(crate) name: Located<String>,
    pub(crate) roles: Vec<Located<String>>,
    pub(crate) attributes: Vec<(Located<String>, Raw<'a>)>,
}

/// `[method."NAME"]`.
#[derive(Debug)]
pub(crate) struct MethodTable {
    pub(crate) name: Located<MethodName>,
    pub(crate) description: Option<String>,
    pub(crate) params: Option<Located<Vec<Param>>>,
    /// A call runs only once its decision is on disk.
    pub(crate) records_before: bool,
}

/// Reads one file. Reports what is wrong in it, and still adds what is right.
pub(crate) fn read<'a>(source: &'a Source<'a>, document: &'a Spanned<DeTable<'a>>, statements: &mut Statements<'a>) {
    let mut root = Table::root(source, document.get_ref());
    root.tables("role").into_iter().for_each(|(name, table)| role(name, table, statements));
    for (key, kind) in [("agent", PrincipalKind::Agent), ("subject", PrincipalKind::Subject)] {
        root.tables(key).into_iter().for_each(|(name, table)| principal(kind, name, table, statements));
    }
    root.tables("method").into_iter().for_each(|(name, table)| method(name, table, statements));
    statements.claims.extend(types("claims", &mut root));
    statements.attributes.extend(types("attributes", &mut root));
    statements.approvals.extend(root.tables("approval"));
    statements.budgets.extend(root.tables("budget"));
    statements.rules.extend(root.tables("rule"));
    root.finish();
}

fn role(name: Located<String>, mut table: Table<'_>, statements: &mut Statements<'_>) {
    check_name(&name, table.report());
    let whom = CallerMatch::Role(name.value.clone());
    let delegation = delegation(&mut table);
    statements.lists.extend(lists("role", &name, &whom, delegation, &mut table));
    let choices = [("anywhere", RoleSource::Anywhere), ("files", RoleSource::Files), ("token", RoleSource::Token)];
    let source = table.choice("from", &choices).unwrap_or_default();
    let includes = table.strings("includes");
    table.finish();
    statements.roles.push(RoleTable { name, source, includes });
}

fn principal<'a>(kind: PrincipalKind, name: Located<String>, mut table: Table<'a>, statements: &mut Statements<'a>) {
    if let Some((message, help)) = literals::impossible_name(kind, &name.value) {
        table.report().error(&name.at, message, help);
    }
    let roles = table.strings("roles");
    let whom = CallerMatch::Named(kind, name.value.clone());
    // Calls for a subject are delegated, all of them.
    let delegation = if kind == PrincipalKind::Subject { Delegation::Also } else { delegation(&mut table) };
    statements.lists.extend(lists(&kind.to_string(), &name, &whom, delegation, &mut table));
    let attributes = table.table("attributes").map(|table| table.entries()).unwrap_or_default();
    table.finish();
    statements.principals.push(PrincipalTable { kind, name, roles, attributes });
}

fn method(name: Located<String>, mut table: Table<'_>, statements: &mut Statements<'_>) {
    let report = table.report();
    let description = description(&mut table);
    let params = table.raw("params").map(|raw| Located { value: params(raw, "params"), at: raw.at() });
    let records_before = table.choice("audit", &[("after", false), ("before", true)]).unwrap_or_default();
    table.finish();
    match MethodName::new(&name.value) {
        Ok(value) => {
            let name = Located { value, at: name.at };
            statements.methods.push(MethodTable { name, description, params, records_before });
        }
        Err(error) => report.error(&name.at, error.to_string(), ""),
    }
}

/// `params = [{ name = "to", type = "string" }, …]`, and the `fields` of an object.
fn params(raw: Raw<'_>, key: &str) -> Vec<Param> {
    let help = "write one table for each, in the order of their positions: `{ name = \"to\", type = \"string\" }`";
    let Some(items) = raw.list() else {
        raw.error(format!("`{key}` is {}", raw.kind()), help);
        return Vec::new();
    };
    let report = raw.report();
    let mut params: Vec<Param> = Vec::new();
    for item in items {
        let Some(mut table) = item.table(format!("an entry of `{key}`")) else {
            item.error(format!("`{key}` holds {}", item.kind()), help);
            continue;
        };
        let _description = description(&mut table);
        let name = table.string("name");
        let optional = table.flag("optional").is_some_and(|flag| flag.value);
        let audit = table.choice("audit", &Audit::NAMED).unwrap_or_default();
        let fields = table.raw("fields");
        let kind = table.string("type");
        table.finish();
        let (Some(name), Some(kind)) = (name, kind) else {
            item.error(format!("an entry of `{key}` has no name or no type"), help);
            continue;
        };
        if !(1..=64).contains(&name.value.len()) || name.value.chars().any(char::is_control) {
            let message = format!("`{}` is not a parameter name", shown(&name.value));
            report.error(&name.at, message, "1 to 64 bytes without control characters are allowed");
        }
        if params.iter().any(|known| known.name() == name.value) {
            report.error(&name.at, format!("the parameter `{}` is declared twice", shown(&name.value)), "");
            continue;
        }
        let kind = match (kind.value.as_str(), fields) {
            ("object", Some(fields)) => Some(ParamType::Object(self::params(fields, "fields"))),
            ("object", None) => {
                let help = "write `fields = [{ name = …, type = … }]`, or `type = \"any\"`";
                report.error(&kind.at, "an object without `fields`", help);
                None
            }
            (other, fields) => {
                if let Some(fields) = fields {
                    fields.error(format!("a {} has no `fields`", shown(other)), "write `type = \"object\"`");
                }
                param_type(&kind, report)
            }
        };
        if let Some(kind) = kind {
            let param = Param::new(name.value, kind).audited(audit);
            params.push(if optional { param.optional() } else { param });
        }
    }
    params
}

fn param_type(text: &Located<String>, report: &Report) -> Option<ParamType> {
    let kind = ParamType::named(&text.value);
    if kind.is_none() {
        let mut names = ParamType::names();
        names.push("object");
        let help = format!("write {}", listed(&names, "or"));
        report.unknown(&text.at, "type", &text.value, names, help);
    }
    kind
}

/// `[claims]` and `[attributes]`: names and types.
fn types(key: &'static str, root: &mut Table<'_>) -> Vec<(Located<String>, ParamType)> {
    let Some(table) = root.table(key) else { return Vec::new() };
    let mut types = Vec::new();
    for (name, value) in table.entries() {
        let Some(text) = value.text() else {
            let message = format!("the type of `{}` is {}", shown(&name.value), value.kind());
            value.error(message, format!("write `{} = \"string\"`", shown(&name.value)));
            continue;
        };
        if text == "object" {
            let help = format!("write {}", listed(&ParamType::names(), "or"));
            value.error("claims and attributes have no type `object`", help);
        } else if let Some(kind) = param_type(&Located { value: text.to_owned(), at: value.at() }, table.report()) {
            types.push((name, kind));
        }
    }
    types
}

/// Whether the `allow` list of a role or an agent is for delegated calls, too.
fn delegation(table: &mut Table<'_>) -> Delegation {
    let choices = [("never", Delegation::Never), ("also", Delegation::Also)];
    table.choice("delegated", &choices).unwrap_or(Delegation::Never)
}

/// The `allow` and `deny` lists of a role, an agent or a subject: one rule each.
fn lists(
    kind: &str,
    name: &Located<String>,
    whom: &CallerMatch,
    delegation: Delegation,
    table: &mut Table<'_>,
) -> Vec<Rule> {
    let mut rules = Vec::new();
    let description = description(table);
    for (key, effect) in [("allow", Effect::Allow), ("deny", Effect::Deny)] {
        let at = table.line_of(key);
        let methods = patterns(table, key);
        if methods.is_empty() {
            continue;
        }
        // A deny list that left out delegated calls could be evaded by them.
        let delegation = if effect == Effect::Deny { Delegation::Also } else { delegation };
        rules.push(Rule {
            id: RuleId::new(&format!("{kind}.{}.{key}", name.value), &at),
            delegation,
            conditions: Vec::new(),
            description: description.clone(),
            effect,
            mode: Mode::Enforce,
            callers: vec![whom.clone()],
            methods,
            unless_approved: None,
            written: None,
        });
    }
    rules
}

pub(crate) fn patterns(table: &mut Table<'_>, key: &'static str) -> Vec<Located<Pattern>> {
    let mut patterns = Vec::new();
    for text in table.strings(key) {
        match Pattern::from_str(&text.value) {
            Ok(value) => patterns.push(Located { value, at: text.at }),
            Err(help) => {
                table.report().error(&text.at, format!("`{}` is not a method pattern", shown(&text.value)), help);
            }
        }
    }
    patterns
}

pub(crate) fn description(table: &mut Table<'_>) -> Option<String> {
    table.string("description").map(|text| text.value)
}

/// A value of a principal's attribute, of its declared type.
pub(crate) fn attribute(raw: Raw<'_>, kind: &ParamType) -> Option<TypedValue> {
    match kind {
        ParamType::String => raw.text().map(|text| TypedValue::String(text.to_owned())),
        ParamType::Integer => raw.integer().map(TypedValue::Integer),
        ParamType::Boolean => raw.boolean().map(TypedValue::Boolean),
        ParamType::List(scalar) => {
            let kind = scalar.as_param();
            raw.list()?.into_iter().map(|raw| attribute(raw, &kind)).collect::<Option<_>>().map(TypedValue::List)
        }
        ParamType::Number | ParamType::Any | ParamType::Object(_) => None,
    }
}

/// The names of roles are compared with claims of tokens: 1 to 128 characters, none of them a control character.
fn check_name(name: &Located<String>, report: &Report) {
    let length = name.value.chars().count();
    if !(1..=128).contains(&length) || name.value.chars().any(char::is_control) {
        let message = format!("`{}` is not a name for a role", shown(&name.value));
        report.error(&name.at, message, "1 to 128 characters without control characters are allowed");
    }
}
