//! What a TOML rule demands of one parameter, claim or attribute: `{ min = 1, max = 100 }`.
//! Never accepts a demand that cannot be met or that the type cannot have.

use cedar_policy::pst::{BinaryOp, SmolStr, Var};

use super::comparable;
use super::demand::{Demands, Literal};
use super::expr::{self, E};
use super::finding::{Report, did_you_mean, shown};
use super::literals;
use super::params::{MAX_LIST, Param, ParamType, ScalarType};
use super::rule::{Location, Part, PartKind};
use super::table::{Raw, Table, listed};

/// What conditions can be about, by the names that policy files use: `params.amount`, `claims.tenant`, `agent`.
pub(crate) type Fields = std::collections::BTreeMap<String, Field>;

/// Something that a condition can be about.
#[derive(Debug, Clone)]
pub(crate) struct Field {
    /// How sentences call it: `` `amount` ``.
    pub(crate) label: String,
    pub(crate) kind: ParamType,
    var: Var,
    path: Vec<SmolStr>,
    /// What must be there before the value may be looked at.
    guards: Vec<E>,
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
        let mut path = self.path.clone();
        path.push(param.name().into());
        let label = format!("{}.{}`", self.label.trim_end_matches('`'), param.name());
        let mut field =
            Self { label, kind: param.kind().clone(), var: self.var.clone(), path, guards: self.guards.clone() };
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

    fn value(&self) -> E {
        expr::path(self.var.clone(), &self.path)
    }

    /// Lists are kept as a set and a size, because sets forget repetitions.
    fn below(&self, attr: &str) -> E {
        let mut path = self.path.clone();
        path.push(attr.into());
        expr::path(self.var.clone(), &path)
    }

    /// The name of an attribute of the call itself, as the agent is and a parameter is not.
    fn attribute(&self) -> Option<&str> {
        match (&self.var, self.path.as_slice()) {
            (Var::Context, [attribute]) => Some(attribute.as_str()),
            _ => None,
        }
    }

    fn part(&self, at: &Location, words: String, condition: E) -> Part {
        let condition = expr::all(self.guards.iter().cloned().chain([condition]));
        Part { words, condition, at: at.clone(), kind: PartKind::Condition }
    }
}

/// The conditions that `value` puts on `field`: a literal to be equal to, or a table of demands.
pub(crate) fn read(field: &Field, at: &Location, value: Raw<'_>, others: &Fields, report: &mut Report) -> Vec<Part> {
    if let ParamType::Object(members) = &field.kind {
        return read_members(field, at, members, value, others, report);
    }
    let errors_before = report.errors();
    let mut demands = field.attribute().map(Demands::on).unwrap_or_default();
    let mut parts = Vec::new();
    if let Some(mut table) = value.table(format!("a condition on {}", field.label)) {
        read_demands(field, &mut table, &mut demands, &mut parts, report);
        parts.extend(read_same(field, &mut table, others, report));
        table.finish(report);
        if parts.is_empty() && report.errors() == errors_before {
            report.error(at, format!("the condition on {} is empty", field.label), demand_help(&field.kind));
        }
    } else if let Some(literal) = literal(field, value, report) {
        parts.push(field.part(
            at,
            format!("{} is {}", field.label, literal.words()),
            expr::binary(BinaryOp::Eq, field.value(), literal.expr()),
        ));
        demands.allow(vec![literal]);
    }
    if let Some(why) = demands.contradiction() {
        report.error(at, format!("the conditions on {} can never hold together", field.label), why);
    }
    parts
}

fn read_members(
    field: &Field,
    at: &Location,
    members: &[Param],
    value: Raw<'_>,
    others: &Fields,
    report: &mut Report,
) -> Vec<Part> {
    let Some(table) = value.table(format!("a condition on {}", field.label)) else {
        let message = format!("{} is an object, and {} can never be equal to one", field.label, value.shown());
        report.error(&value.at(), message, "put the condition on a member of it");
        return Vec::new();
    };
    if table.entries().is_empty() {
        report.error(at, format!("the condition on {} is empty", field.label), demand_help(&field.kind));
    }
    let mut parts = Vec::new();
    for (key, value) in table.entries() {
        match members.iter().find(|param| param.name() == key.value) {
            Some(param) => parts.extend(read(&field.member(param), &key.at, value, others, report)),
            None => {
                let help = did_you_mean(&key.value, members.iter().map(Param::name)).unwrap_or_else(|| {
                    let names: Vec<&str> = members.iter().map(Param::name).collect();
                    format!("its members are {}", listed(&names))
                });
                report.error(&key.at, format!("{} has no member `{}`", field.label, shown(&key.value)), help);
            }
        }
    }
    parts
}

fn read_demands(
    field: &Field,
    table: &mut Table<'_>,
    demands: &mut Demands,
    parts: &mut Vec<Part>,
    report: &mut Report,
) {
    let label = &field.label;
    if let Some(raw) = table.raw("present") {
        match raw.boolean() {
            _ if !field.is_optional() => {
                report.error(&raw.at(), format!("{label} is always there"), "leave `present` out");
            }
            Some(true) => {
                demands.present = true;
                parts.push(field.part(&raw.at(), format!("{label} is there"), expr::boolean(true)));
            }
            Some(false) => {
                demands.absent = true;
                let condition = expr::not(expr::all(field.guards.iter().cloned()));
                let words = format!("{label} is absent");
                parts.push(Part { words, condition, at: raw.at(), kind: PartKind::Condition });
            }
            None => report.error(&raw.at(), format!("`present` is {}", raw.kind()), "write `true` or `false`"),
        }
    }
    let so_far = parts.len();
    match &field.kind {
        ParamType::String | ParamType::Integer | ParamType::Boolean => {
            read_equality(field, table, demands, parts, report);
            read_range(field, table, demands, parts, report);
            read_globs(field, table, demands, parts, report);
        }
        ParamType::List(scalar) => read_list(field, *scalar, table, demands, parts, report),
        ParamType::Number | ParamType::Any => {
            for key in COMPARISONS {
                if let Some(raw) = table.refused(key) {
                    incomparable(field, &raw.at(), report);
                }
            }
        }
        ParamType::Object(_) => {}
    }
    demands.present |= parts.len() > so_far;
}

/// What is asked of values that can be compared.
const COMPARISONS: [&str; 8] = ["is", "not", "in", "not_in", "min", "max", "glob", "not_glob"];

/// Nothing can be asked of such a value but whether it is there.
fn incomparable(field: &Field, at: &Location, report: &mut Report) {
    let message = match &field.kind {
        ParamType::List(_) => format!("{} is a list, and what the same list would be is not defined", field.label),
        kind => format!("{} is of type {kind}, which rules cannot compare", field.label),
    };
    let help = match &field.kind {
        kind @ ParamType::List(_) => demand_help(kind),
        kind => comparable::instead(kind).unwrap_or_default().to_owned(),
    };
    report.error(at, message, help);
}

/// `same_as`: equal to something else of the same call.
fn read_same(field: &Field, table: &mut Table<'_>, others: &Fields, report: &mut Report) -> Option<Part> {
    if comparable::instead(&field.kind).is_some() {
        if let Some(raw) = table.refused("same_as") {
            incomparable(field, &raw.at(), report);
        }
        return None;
    }
    let raw = table.raw("same_as")?;
    let name = raw.text().unwrap_or_default();
    let known = || others.iter().filter(|(_, other)| other.kind == field.kind).map(|(name, _)| name.as_str());
    let Some(other) = others.get(name).filter(|other| other.kind == field.kind) else {
        let names: Vec<&str> = known().collect();
        let listed = format!("of type {} are {}", field.kind, listed(&names));
        // A name that exists is not mistyped.
        let (why, help) = match others.get(name) {
            Some(other) => (format!(", which is of type {}", other.kind), listed),
            None => (String::new(), did_you_mean(name, known()).unwrap_or(listed)),
        };
        report.error(&raw.at(), format!("{} cannot be compared with {}{why}", field.label, raw.shown()), help);
        return None;
    };
    let equal = expr::binary(BinaryOp::Eq, field.value(), other.value());
    let condition = expr::all(other.guards.iter().cloned().chain([equal]));
    Some(field.part(&raw.at(), format!("{} is the same as {}", field.label, other.label), condition))
}

fn read_equality(
    field: &Field,
    table: &mut Table<'_>,
    demands: &mut Demands,
    parts: &mut Vec<Part>,
    report: &mut Report,
) {
    let label = &field.label;
    for (key, op, verb) in [("is", BinaryOp::Eq, "is"), ("not", BinaryOp::NotEq, "is not")] {
        let Some(raw) = table.raw(key) else { continue };
        let Some(value) = literal(field, raw, report) else { continue };
        let words = format!("{label} {verb} {}", value.words());
        parts.push(field.part(&raw.at(), words, expr::binary(op, field.value(), value.expr())));
        if key == "is" { demands.allow(vec![value]) } else { demands.excluded.push(value) }
    }
    for key in ["in", "not_in"] {
        let Some(raw) = table.raw(key) else { continue };
        let Some(values) = literals(field, key, raw, report) else { continue };
        let within = expr::binary(BinaryOp::Contains, expr::set(values.iter().map(Literal::expr)), field.value());
        let texts = values.iter().map(Literal::words).collect::<Vec<_>>().join(", ");
        if key == "in" {
            parts.push(field.part(&raw.at(), format!("{label} is one of {texts}"), within));
            demands.allow(values);
        } else {
            parts.push(field.part(&raw.at(), format!("{label} is none of {texts}"), expr::not(within)));
            demands.excluded.extend(values);
        }
    }
}

fn read_range(field: &Field, table: &mut Table<'_>, demands: &mut Demands, parts: &mut Vec<Part>, report: &mut Report) {
    for (key, op, verb) in [("min", BinaryOp::GreaterEq, "at least"), ("max", BinaryOp::LessEq, "at most")] {
        let Some(raw) = table.raw(key) else { continue };
        if field.kind != ParamType::Integer {
            report.error(
                &raw.at(),
                format!("{} is of type {}, which has no `{key}`", field.label, field.kind),
                demand_help(&field.kind),
            );
            continue;
        }
        let Some(Literal::Integer(bound)) = literal(field, raw, report) else { continue };
        let words = format!("{} is {verb} {bound}", field.label);
        parts.push(field.part(&raw.at(), words, expr::binary(op, field.value(), expr::integer(bound))));
        if key == "min" { demands.min = Some(bound) } else { demands.max = Some(bound) }
    }
}

fn read_globs(field: &Field, table: &mut Table<'_>, demands: &mut Demands, parts: &mut Vec<Part>, report: &mut Report) {
    for key in ["glob", "not_glob"] {
        let Some(raw) = table.raw(key) else { continue };
        let Some(glob) = raw.text().filter(|_| field.kind == ParamType::String) else {
            let message = if field.kind == ParamType::String {
                format!("`{key}` is {}", raw.kind())
            } else {
                format!("{} is of type {}, which has no `{key}`", field.label, field.kind)
            };
            report.error(&raw.at(), message, demand_help(&field.kind));
            continue;
        };
        let like = expr::like(field.value(), glob);
        if key == "glob" {
            parts.push(field.part(&raw.at(), format!("{} matches `{}`", field.label, shown(glob)), like));
            demands.globs.push(glob.to_owned());
        } else {
            let words = format!("{} does not match `{}`", field.label, shown(glob));
            parts.push(field.part(&raw.at(), words, expr::not(like)));
            demands.excluded_globs.push(glob.to_owned());
        }
    }
}

fn read_list(
    field: &Field,
    scalar: ScalarType,
    table: &mut Table<'_>,
    demands: &mut Demands,
    parts: &mut Vec<Part>,
    report: &mut Report,
) {
    let label = &field.label;
    let element = Field { kind: scalar.as_param(), ..field.clone() };
    let bounds = [("min_size", BinaryOp::GreaterEq, "at least"), ("max_size", BinaryOp::LessEq, "at most")];
    for (key, op, verb) in bounds {
        let Some(raw) = table.raw(key) else { continue };
        let help = format!("write a number from 0 to {MAX_LIST}");
        let bound = raw.integer();
        let wrong = match bound {
            Some(..0) => Some(format!("`{key}` is {}, and no list is shorter than empty", raw.shown())),
            // An agent's attributes are not of a call, and may be longer.
            Some(bound) if usize::try_from(bound).is_ok_and(|bound| bound > MAX_LIST) && field.var == Var::Context => {
                Some(format!("a list of more than {MAX_LIST} values is refused before"))
            }
            Some(_) => None,
            None => Some(format!("`{key}` is {}", raw.shown())),
        };
        let (Some(bound), None) = (bound, &wrong) else {
            report.error(&raw.at(), wrong.unwrap_or_default(), help);
            continue;
        };
        let words = format!("{label} has {verb} {bound} values");
        parts.push(field.part(&raw.at(), words, expr::binary(op, field.below("size"), expr::integer(bound))));
        if key == "min_size" { demands.min_size = Some(bound) } else { demands.max_size = Some(bound) }
    }
    if let Some(raw) = table.raw("contains")
        && let Some(value) = literal(&element, raw, report)
    {
        let condition = expr::binary(BinaryOp::Contains, field.below("items"), value.expr());
        parts.push(field.part(&raw.at(), format!("{label} contains {}", value.words()), condition));
        demands.contained.push(vec![value]);
    }
    for key in ["contains_any", "each_in"] {
        let Some(raw) = table.raw(key) else { continue };
        let Some(values) = literals(&element, key, raw, report) else { continue };
        let texts = values.iter().map(Literal::words).collect::<Vec<_>>().join(", ");
        let set = expr::set(values.iter().map(Literal::expr));
        let (words, condition) = if key == "contains_any" {
            let words = format!("{label} contains one of {texts}");
            demands.contained.push(values);
            (words, expr::binary(BinaryOp::ContainsAny, field.below("items"), set))
        } else {
            let words = format!("every value of {label} is one of {texts}");
            demands.each_in = Some(values);
            (words, expr::binary(BinaryOp::ContainsAll, set, field.below("items")))
        };
        parts.push(field.part(&raw.at(), words, condition));
    }
}

/// The values of a list that is not empty.
fn literals(field: &Field, key: &str, raw: Raw<'_>, report: &mut Report) -> Option<Vec<Literal>> {
    match raw.list() {
        None => {
            report.error(&raw.at(), format!("`{key}` is {}", raw.kind()), format!("write `{key} = [ … ]`"));
            None
        }
        Some(values) if values.is_empty() => {
            report.error(&raw.at(), format!("`{key}` is empty, so the condition means nothing"), "name the values");
            None
        }
        Some(values) => values.into_iter().map(|value| literal(field, value, report)).collect(),
    }
}

/// A value of the field's own type.
fn literal(field: &Field, raw: Raw<'_>, report: &mut Report) -> Option<Literal> {
    let found = match &field.kind {
        ParamType::String => raw.text().map(|text| Literal::String(text.to_owned())),
        ParamType::Integer => raw.integer().map(Literal::Integer),
        ParamType::Boolean => raw.boolean().map(Literal::Boolean),
        ParamType::Number | ParamType::Any | ParamType::List(_) | ParamType::Object(_) => None,
    };
    if found.is_none() && matches!(field.kind, ParamType::Number | ParamType::Any) {
        incomparable(field, &raw.at(), report);
    } else if found.is_none() {
        let (message, help) = match &field.kind {
            ParamType::Integer if raw.is_number() => (
                format!("{} is a 64-bit integer, and {} is none", field.label, raw.shown()),
                "write a whole number that fits 64 bits".to_owned(),
            ),
            kind => (
                format!("{} is of type {kind}, and {} can never match it", field.label, raw.shown()),
                demand_help(kind),
            ),
        };
        report.error(&raw.at(), message, help);
    }
    if let (Some(Literal::String(text)), Some(attribute)) = (&found, field.attribute())
        && let Some((message, help)) = literals::impossible(attribute, text)
    {
        report.error(&raw.at(), message, help);
        return None;
    }
    found
}

fn demand_help(kind: &ParamType) -> String {
    match kind {
        ParamType::String => "write a text, or `is`, `not`, `in`, `not_in`, `glob`, `not_glob`".to_owned(),
        ParamType::Integer => "write a whole number, or `is`, `not`, `in`, `not_in`, `min`, `max`".to_owned(),
        ParamType::Boolean => "write `true` or `false`".to_owned(),
        ParamType::List(_) => "write `min_size`, `max_size`, `contains`, `contains_any` or `each_in`".to_owned(),
        ParamType::Number | ParamType::Any => "only `present` can be asked of it".to_owned(),
        ParamType::Object(_) => "put the condition on a member of it".to_owned(),
    }
}
