//! What a TOML rule requires of one parameter, claim or attribute: `{ min = 1, max = 100 }`.
//! Never accepts a constraint that cannot be met or that the type cannot have.

use cedar_policy::pst::{BinaryOp, SmolStr, Var};

use super::constraint::{Constraint, Constraints, Literal};
use super::table::{Raw, Table, listed};
use super::{comparable, globs, literals};
use crate::policy::cedar::expr;
use crate::policy::model::{Condition, ExprRef, Location, MAX_LIST, Param, ParamType, did_you_mean, shown};

/// What conditions can be about, by the names that policy files use: `params.amount`, `claims.tenant`, `agent`. For what
/// only some methods of the rule have, the reason why it cannot be used.
pub(crate) type Fields = std::collections::BTreeMap<String, Result<Field, String>>;

/// Something that a condition can be about.
#[derive(Debug, Clone)]
pub(crate) struct Field {
    /// What sentences call it: `` `amount` ``.
    pub(crate) label: String,
    pub(crate) kind: ParamType,
    var: Var,
    path: Vec<SmolStr>,
    /// What must be present before the value may be read.
    guards: Vec<ExprRef>,
}

impl Field {
    /// `context.<path>` or `principal.<path>`; `optional` is whether the last attribute may be absent.
    pub(crate) fn new(label: String, kind: ParamType, var: Var, path: &[&str], optional: bool) -> Self {
        let path: Vec<SmolStr> = path.iter().map(|attr| SmolStr::from(*attr)).collect();
        let mut field = Self { label, kind, var, path, guards: Vec::new() };
        if optional {
            field.guard();
        }
        field
    }

    /// A member of an object.
    fn member(&self, param: &Param) -> Self {
        let label = format!("{}.{}`", self.label.trim_end_matches('`'), param.name());
        let mut field = Self { label, kind: param.kind().clone(), ..self.clone() };
        field.path.push(param.name().into());
        if param.is_optional() {
            field.guard();
        }
        field
    }

    fn guard(&mut self) {
        if let Some((last, above)) = self.path.split_last() {
            self.guards.push(expr::has(expr::path(self.var.clone(), above), last));
        }
    }

    pub(crate) fn is_optional(&self) -> bool {
        !self.guards.is_empty()
    }

    /// Whether it is a number whose text is known, so that it can be compared with a bound.
    fn is_bounded(&self) -> bool {
        let is_param = self.var == Var::Context && self.path.first().is_some_and(|group| group == "params");
        self.kind == ParamType::Number && is_param
    }

    fn value(&self) -> ExprRef {
        expr::path(self.var.clone(), &self.path)
    }

    /// The name of an attribute of the call itself: the agent is one, a parameter is not.
    fn attribute(&self) -> Option<&str> {
        match (&self.var, self.path.as_slice()) {
            (Var::Context, [attribute]) => Some(attribute.as_str()),
            _ => None,
        }
    }

    fn part(&self, at: &Location, words: String, condition: ExprRef) -> Condition {
        let condition = expr::all(self.guards.iter().cloned().chain([condition]));
        Condition::new(words, condition, at)
    }

    fn constrained(&self, at: &Location, constraint: &Constraint) -> Condition {
        let words = constraint.words(&self.label);
        match constraint {
            Constraint::Absent => {
                let condition = expr::not(expr::all(self.guards.iter().cloned()));
                Condition::new(words, condition, at)
            }
            _ => self.part(at, words, constraint.condition(self.value()).unwrap_or_else(|| expr::boolean(true))),
        }
    }
}

/// The conditions that `value` puts on `field`: a literal to be equal to, or a table of constraints.
pub(crate) fn read(field: &Field, at: &Location, value: Raw<'_>, others: &Fields) -> Vec<Condition> {
    if let ParamType::Object(members) = &field.kind {
        return read_members(field, at, members, value, others);
    }
    let report = value.report();
    let errors_before = report.errors();
    let mut constraints = field.attribute().map(Constraints::on).unwrap_or_default();
    let mut parts = Vec::new();
    if let Some(mut table) = value.table(format!("a condition on {}", field.label)) {
        for (at, constraint) in read_constraints(field, &mut table) {
            parts.push(field.constrained(&at, &constraint));
            constraints.add(constraint);
        }
        parts.extend(read_same(field, &mut table, others));
        table.finish();
        if parts.is_empty() && report.errors() == errors_before {
            report.error(at, format!("the condition on {} is empty", field.label), constraint_help(&field.kind));
        }
    } else if let Some(literal) = literal(field, value) {
        let constraint = Constraint::Is(literal);
        parts.push(field.constrained(at, &constraint));
        constraints.add(constraint);
    }
    if let Some(why) = constraints.contradiction() {
        report.error(at, format!("the conditions on {} can never hold together", field.label), why);
    }
    parts
}

fn read_members(field: &Field, at: &Location, members: &[Param], value: Raw<'_>, others: &Fields) -> Vec<Condition> {
    let Some(table) = value.table(format!("a condition on {}", field.label)) else {
        let message = format!("{} is an object, and {} can never be equal to one", field.label, value.shown());
        value.error(message, "put the condition on a member of it");
        return Vec::new();
    };
    if table.entries().is_empty() {
        value.report().error(at, format!("the condition on {} is empty", field.label), constraint_help(&field.kind));
    }
    let mut parts = Vec::new();
    for (key, value) in table.entries() {
        match members.iter().find(|param| param.name() == key.value) {
            Some(param) => parts.extend(read(&field.member(param), &key.at, value, others)),
            None => {
                let names: Vec<&str> = members.iter().map(Param::name).collect();
                let listed = || format!("its members are {}", listed(&names, "and"));
                let help = did_you_mean(&key.value, names.iter().copied()).unwrap_or_else(listed);
                value.report().error(&key.at, format!("{} has no member `{}`", field.label, shown(&key.value)), help);
            }
        }
    }
    parts
}

/// The keys for values that can be compared, and for lists.
const COMPARISONS: [&str; 8] = ["is", "not", "in", "not_in", "min", "max", "glob", "not_glob"];
const OF_LISTS: [&str; 5] = ["min_size", "max_size", "contains", "contains_any", "each_in"];

/// The constraints in a table, and where each one is.
fn read_constraints(field: &Field, table: &mut Table<'_>) -> Vec<(Location, Constraint)> {
    let mut found = Vec::new();
    if let Some(raw) = table.raw("present") {
        match raw.boolean() {
            _ if !field.is_optional() => {
                raw.error(format!("{} is always there", field.label), "leave `present` out");
            }
            Some(true) => found.push((raw.at(), Constraint::Present)),
            Some(false) => found.push((raw.at(), Constraint::Absent)),
            None => raw.error(format!("`present` is {}", raw.kind()), "write `true` or `false`"),
        }
    }
    let keys: &[&str] = match &field.kind {
        ParamType::String | ParamType::Integer | ParamType::Boolean => &COMPARISONS,
        ParamType::List(_) => &OF_LISTS,
        ParamType::Number | ParamType::Any => {
            let bounds: &[&str] = if field.is_bounded() { &["min", "max"] } else { &[] };
            for raw in COMPARISONS.into_iter().filter(|key| !bounds.contains(key)).filter_map(|key| table.refused(key))
            {
                incomparable(field, raw);
            }
            bounds
        }
        ParamType::Object(_) => &[],
    };
    for key in keys {
        if let Some(raw) = table.raw(key)
            && let Some(constraint) = constraint(field, key, raw)
        {
            found.push((raw.at(), constraint));
        }
    }
    found
}

fn constraint(field: &Field, key: &str, raw: Raw<'_>) -> Option<Constraint> {
    let element = match &field.kind {
        ParamType::List(scalar) => Field { kind: scalar.as_param(), ..field.clone() },
        _ => field.clone(),
    };
    let kind = match key {
        "min" | "max" if field.is_bounded() => {
            let Some(bound) = raw.decimal() else {
                let message = format!("{} is a number, and {} cannot be a bound of it", field.label, raw.shown());
                raw.error(message, "write a number with at most 18 digits before and after the point");
                return None;
            };
            return Some(if key == "min" { Constraint::AtLeast(bound) } else { Constraint::AtMost(bound) });
        }
        "min" | "max" => Some(ParamType::Integer),
        "glob" | "not_glob" => Some(ParamType::String),
        _ => None,
    };
    if kind.is_some_and(|kind| field.kind != kind) {
        let message = format!("{} is of type {}, which has no `{key}`", field.label, field.kind);
        raw.error(message, constraint_help(&field.kind));
        return None;
    }
    match key {
        "is" => literal(field, raw).map(Constraint::Is),
        "not" => literal(field, raw).map(Constraint::Not),
        "in" => literals(field, key, raw).map(Constraint::In),
        "not_in" => literals(field, key, raw).map(Constraint::NotIn),
        "min" | "max" => match literal(field, raw)? {
            Literal::Integer(bound) => Some(if key == "min" { Constraint::Min(bound) } else { Constraint::Max(bound) }),
            _ => None,
        },
        "glob" | "not_glob" => {
            let Some(glob) = raw.text().map(ToOwned::to_owned) else {
                raw.error(format!("`{key}` is {}", raw.kind()), constraint_help(&field.kind));
                return None;
            };
            if let Some((message, help)) = globs::doubt(&glob) {
                raw.report().warning(&raw.at(), format!("in {}, {message}", raw.shown()), help);
            }
            if let Some((message, help)) =
                field.attribute().and_then(|attribute| literals::impossible_pattern(attribute, &glob))
            {
                raw.error(message, help);
                return None;
            }
            Some(if key == "glob" { Constraint::Glob(glob) } else { Constraint::NotGlob(glob) })
        }
        "min_size" => size(field, key, raw).map(Constraint::MinSize),
        "max_size" => size(field, key, raw).map(Constraint::MaxSize),
        "contains" => literal(&element, raw).map(Constraint::Contains),
        "contains_any" => literals(&element, key, raw).map(Constraint::ContainsAny),
        _ => literals(&element, key, raw).map(Constraint::EachIn),
    }
}

/// How many values a list has.
fn size(field: &Field, key: &str, raw: Raw<'_>) -> Option<i64> {
    let wrong = match raw.integer() {
        Some(..0) => format!("`{key}` is {}, and a size is never negative", raw.shown()),
        // An agent's attributes are not part of a call, and may be longer.
        Some(bound) if usize::try_from(bound).is_ok_and(|bound| bound > MAX_LIST) && field.var == Var::Context => {
            format!("a list of more than {MAX_LIST} values is refused before")
        }
        Some(bound) => return Some(bound),
        None => format!("`{key}` is {}", raw.shown()),
    };
    raw.error(wrong, format!("write a number from 0 to {MAX_LIST}"));
    None
}

/// Such a value can only be tested for its presence.
fn incomparable(field: &Field, raw: Raw<'_>) {
    let (why, help) = match &field.kind {
        kind @ ParamType::List(_) => {
            ("a list, and what the same list would be is not defined".to_owned(), constraint_help(kind))
        }
        ParamType::Number if field.is_bounded() => {
            ("of type number, of which rules ask only `min` and `max`".to_owned(), constraint_help(&field.kind))
        }
        kind => (format!("of type {kind}, which rules cannot compare"), comparable::instead(kind).unwrap_or_default()),
    };
    raw.error(format!("{} is {why}", field.label), help);
}

/// `same_as`: equal to something else of the same call.
fn read_same(field: &Field, table: &mut Table<'_>, others: &Fields) -> Option<Condition> {
    if comparable::instead(&field.kind).is_some() {
        if let Some(raw) = table.refused("same_as") {
            incomparable(field, raw);
        }
        return None;
    }
    let raw = table.raw("same_as")?;
    let name = raw.text().unwrap_or_default();
    let alike = |other: &&Field| other.kind == field.kind;
    let named = others.get(name).and_then(|other| other.as_ref().ok());
    let Some(other) = named.filter(alike) else {
        let known = others.iter().filter(|(_, other)| other.as_ref().is_ok_and(|other| alike(&other)));
        let names: Vec<&str> = known.map(|(name, _)| name.as_str()).collect();
        let listed = format!("of type {} are {}", field.kind, listed(&names, "and"));
        // A name that exists is not a typing mistake.
        let (why, help) = match named {
            Some(other) => (format!(", which is of type {}", other.kind), listed),
            None => (String::new(), did_you_mean(name, names).unwrap_or(listed)),
        };
        raw.error(format!("{} cannot be compared with {}{why}", field.label, raw.shown()), help);
        return None;
    };
    let equal = expr::binary(BinaryOp::Eq, field.value(), other.value());
    let condition = expr::all(other.guards.iter().cloned().chain([equal]));
    Some(field.part(&raw.at(), format!("{} is the same as {}", field.label, other.label), condition))
}

/// The values of a non-empty list.
fn literals(field: &Field, key: &str, raw: Raw<'_>) -> Option<Vec<Literal>> {
    match raw.list() {
        None => {
            raw.error(format!("`{key}` is {}", raw.kind()), format!("write `{key} = [ … ]`"));
            None
        }
        Some(values) if values.is_empty() => {
            raw.error(format!("`{key}` is empty, so the condition means nothing"), "name the values");
            None
        }
        Some(values) => values.into_iter().map(|value| literal(field, value)).collect(),
    }
}

/// A value of the field's own type.
fn literal(field: &Field, raw: Raw<'_>) -> Option<Literal> {
    let found = match &field.kind {
        ParamType::String => raw.text().map(|text| Literal::String(text.to_owned())),
        ParamType::Integer => raw.integer().map(Literal::Integer),
        ParamType::Boolean => raw.boolean().map(Literal::Boolean),
        ParamType::Number | ParamType::Any | ParamType::List(_) | ParamType::Object(_) => None,
    };
    if found.is_none() && matches!(field.kind, ParamType::Number | ParamType::Any) {
        incomparable(field, raw);
    } else if found.is_none() {
        let (message, help) = match &field.kind {
            ParamType::Integer if raw.is_number() => (
                format!("{} is a 64-bit integer, and {} is none", field.label, raw.shown()),
                "write a whole number that fits 64 bits",
            ),
            kind => (
                format!("{} is of type {kind}, and {} can never match it", field.label, raw.shown()),
                constraint_help(kind),
            ),
        };
        raw.error(message, help);
    }
    if let Some(Literal::String(text)) = &found
        && text.contains('*')
    {
        let message = format!("the `*` in {} stands for itself: this is one text, and no pattern", raw.shown());
        raw.report().warning(&raw.at(), message, "for a pattern, write `{ glob = \"…\" }`");
    }
    if let (Some(Literal::String(text)), Some(attribute)) = (&found, field.attribute())
        && let Some((message, help)) = literals::impossible(attribute, text)
    {
        raw.error(message, help);
        return None;
    }
    found
}

fn constraint_help(kind: &ParamType) -> &'static str {
    match kind {
        ParamType::String => "write a text, or `is`, `not`, `in`, `not_in`, `glob`, `not_glob`",
        ParamType::Integer => "write a whole number, or `is`, `not`, `in`, `not_in`, `min`, `max`",
        ParamType::Boolean => "write `true` or `false`",
        ParamType::List(_) => "write `min_size`, `max_size`, `contains`, `contains_any` or `each_in`",
        ParamType::Number => "write a bound, or declare it an integer in a smaller unit (cents, millimetres)",
        ParamType::Any => "only `present` can be asked of it",
        ParamType::Object(_) => "put the condition on a member of it",
    }
}
