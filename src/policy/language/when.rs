//! The conditions of a TOML rule: `[rule.NAME.when]` and `[rule.NAME.unless]`.
//! Never knows which rule it is reading for; what the conditions may be about is passed in.

use std::collections::BTreeMap;

use cedar_policy::pst::{BinaryOp, Var};

use super::condition;
use super::condition::{Field, Fields};
use super::table::{Table, listed};
use crate::policy::cedar::schema::SUBJECT_OF_CALL;
use crate::policy::cedar::{expr, time};
use crate::policy::model::{Condition, Declarations, Located, Location, Param, ParamType, Report, hours, shown};

/// The texts about a call that conditions can test, their path below `context`, and what sentences call them.
const TEXTS: [(&str, &[&str], &str); 5] = [
    ("agent", &["agent"], "the agent"),
    ("subject", &["subject"], "the subject"),
    ("issuer", &["token", "issuer"], "the token's issuer"),
    ("key", &["key"], "the key"),
    ("algorithm", &["algorithm"], "the signature"),
];

/// Everything that a condition of a rule can be about.
///
/// `params` are the parameters that all methods of the rule have in common, each optional if it is optional in any of them,
/// and why others cannot be used.
pub(crate) fn fields(params: BTreeMap<String, Result<Param, String>>, declarations: &Declarations) -> Fields {
    let mut fields = Fields::new();
    for (name, path, label) in TEXTS {
        fields.insert(
            name.to_owned(),
            Ok(Field::new(label.to_owned(), ParamType::String, Var::Context, path, name == SUBJECT_OF_CALL)),
        );
    }
    for (name, param) in params {
        let field = |param: Param| {
            let path = ["params", name.as_str()];
            Field::new(format!("`{name}`"), param.kind().clone(), Var::Context, &path, param.is_optional())
        };
        fields.insert(format!("params.{name}"), param.map(field));
    }
    for (name, kind) in &declarations.claims {
        let field = Field::new(format!("the claim `{name}`"), kind.clone(), Var::Context, &["claims", name], true);
        fields.insert(format!("claims.{name}"), Ok(field));
    }
    for (name, kind) in &declarations.attributes {
        let label = format!("the caller's attribute `{name}`");
        fields.insert(format!("attributes.{name}"), Ok(Field::new(label, kind.clone(), Var::Principal, &[name], true)));
    }
    fields
}

/// Reads `when` or `unless`.
pub(crate) fn read(mut table: Table<'_>, fields: &Fields) -> Vec<Condition> {
    let report = table.report();
    let errors_before = report.errors();
    let mut parts = Vec::new();
    for (group, what) in [("params", "parameter"), ("claims", "claim"), ("attributes", "attribute")] {
        let help = format!("write `{group}.NAME = …`");
        if let Some(inner) = table.typed(group, |raw| raw.table(format!("`{group}`")), help) {
            parts.extend(read_group(group, what, &inner.value, fields));
        }
    }
    for (name, _, _) in TEXTS {
        if let Some(raw) = table.raw(name)
            && let Some(Ok(field)) = fields.get(name)
        {
            parts.extend(condition::read(field, &raw.at(), raw, fields));
        }
    }
    parts.extend(read_token_age(&mut table));
    parts.extend(read_hours(&mut table));
    let at = table.at.clone();
    table.finish();
    // INVARIANT: without a condition there is an error; otherwise a rule would hold more often than it says.
    if parts.is_empty() && report.errors() == errors_before {
        report.error(&at, "there is no condition in it", "leave it out, or say what has to hold");
    }
    parts
}

/// `unless` as one condition: not all of its parts. `None` only if [`read`] reported why there are none.
pub(crate) fn negated(parts: Vec<Condition>, at: &Location) -> Option<Condition> {
    if parts.is_empty() {
        return None;
    }
    let words: Vec<&str> = parts.iter().map(|part| part.text.as_str()).collect();
    let negation = expr::not(expr::all(parts.iter().map(|part| part.expr.clone())));
    Some(Condition::new(format!("not ({})", words.join(" and ")), negation, at))
}

fn read_group(group: &str, what: &str, table: &Table<'_>, fields: &Fields) -> Vec<Condition> {
    let report = table.report();
    if table.entries().is_empty() {
        let message = format!("there is no condition in `{group}`");
        report.error(&table.at, message, format!("leave it out, or write `{group}.NAME = …`"));
    }
    let mut parts = Vec::new();
    for (key, value) in table.entries() {
        match fields.get(&format!("{group}.{}", key.value)) {
            Some(Ok(field)) => {
                parts.extend(condition::read(field, &key.at, value, fields));
                continue;
            }
            Some(Err(why)) => {
                let message = format!("not every method of this rule has the parameter `{}`", shown(&key.value));
                report.error(&key.at, message, why);
                continue;
            }
            None => {}
        }
        let prefix = format!("{group}.");
        let known = fields.iter().filter(|(_, field)| field.is_ok());
        let known: Vec<&str> = known.filter_map(|(name, _)| name.strip_prefix(&prefix)).collect();
        let help = match group {
            "params" if known.is_empty() => {
                "the methods of this rule have no declared parameter in common: declare `params` in `[method.\"…\"]`"
                    .to_owned()
            }
            "params" => format!("the methods of this rule have in common {}", listed(&known, "and")),
            _ => format!("declare it: `[{group}]` and below it `{} = \"string\"`", shown(&key.value)),
        };
        report.unknown(&key.at, what, &key.value, known, help);
    }
    parts
}

/// `token_age = "5m"`, or `{ min = "1m", max = "1h" }`.
fn read_token_age(table: &mut Table<'_>) -> Vec<Condition> {
    let Some(raw) = table.raw("token_age") else { return Vec::new() };
    let mut bounds = Vec::new();
    if let Some(mut inner) = raw.table("`token_age`".to_owned()) {
        if inner.entries().is_empty() {
            raw.error("the condition on `token_age` is empty", "write \"5m\", or `min` and `max`");
        }
        bounds.push((inner.raw("min"), BinaryOp::GreaterEq, "at least"));
        bounds.push((inner.raw("max"), BinaryOp::LessEq, "at most"));
        inner.finish();
    } else {
        bounds.push((Some(raw), BinaryOp::LessEq, "at most"));
    }
    let mut parts = Vec::new();
    let mut seconds_seen = Vec::new();
    for (bound, op, verb) in bounds {
        let Some(bound) = bound else { continue };
        let Some(seconds) = bound.text().and_then(seconds) else {
            let help = "write a number and a unit of s, m, h or d: \"90s\", \"5m\", \"2h\"";
            bound.error(format!("{} is not a duration", bound.shown()), help);
            continue;
        };
        seconds_seen.push(seconds);
        let age = expr::path(Var::Context, &["token".into(), "age_s".into()]);
        let words = format!("the token is {verb} {} old", bound.text().unwrap_or_default());
        parts.push(Condition::new(words, expr::binary(op, age, expr::integer(seconds)), &bound.at()));
    }
    if let [min, max] = seconds_seen.as_slice()
        && min > max
    {
        raw.error("the conditions on `token_age` can never hold together", "`min` is larger than `max`");
    }
    parts
}

/// `90s`, `5m`, `2h` or `1d` in seconds.
pub(crate) fn seconds(text: &str) -> Option<i64> {
    let unit = match text.chars().last()? {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 86_400,
        _ => return None,
    };
    let digits = text.get(..text.len() - 1)?;
    let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    if plain { digits.parse::<i64>().ok()?.checked_mul(unit) } else { None }
}

/// `hours = "08:00-18:00"`, `days = ["mon-fri"]`, `utc_offset = "+02:00"`.
fn read_hours(table: &mut Table<'_>) -> Option<Condition> {
    let key = if table.raw("hours").is_some() { "hours" } else { "days" };
    let at = table.line_of(key);
    let hours = table.string("hours");
    let listed_days = table.raw("days");
    let days = table.strings("days");
    if let Some(raw) = listed_days.filter(|raw| raw.list().is_some_and(|days| days.is_empty())) {
        let help = "name the days, or leave it out";
        raw.error("`days` is empty, so the condition means nothing", help);
    }
    let offset = table.string("utc_offset");
    if hours.is_none() && days.is_empty() {
        if let Some(offset) = offset {
            table.report().error(&offset.at, "`utc_offset` without `hours` or `days` means nothing", "leave it out");
        }
        return None;
    }
    let report = table.report();
    let mut positions = Vec::new();
    for day in &days {
        let help = "write mon, tue, wed, thu, fri, sat, sun, or mon-fri";
        positions.extend(parsed(day, hours::days, "a day", help, report).into_iter().flatten());
    }
    let help = "write \"08:00-18:00\"; the end is not included, and \"22:00-06:00\" ends on the next day";
    let range = |text| parsed(text, hours::hours, "a range of hours", help, report);
    let range = hours.as_ref().map_or(Some((0, hours::DAY)), range);
    let help = "write \"+02:00\", \"-05:30\" or \"Z\"";
    let shift = |text| parsed(text, hours::offset, "an offset from UTC", help, report);
    let shift = offset.as_ref().map_or(Some(0), shift);
    if days.is_empty() {
        positions = (0..7).collect();
    }
    let zone = offset.as_ref().map_or("UTC".to_owned(), |text| format!("UTC{}", text.value));
    let words = [
        hours.as_ref().map(|text| {
            let ends: Vec<&str> = text.value.split('-').map(str::trim).collect();
            format!("between {} {zone}", ends.join(" and "))
        }),
        (!days.is_empty()).then(|| {
            let names: Vec<&str> = days.iter().map(|day| day.value.as_str()).collect();
            format!("on {}{}", names.join(", "), if hours.is_none() { format!(" {zone}") } else { String::new() })
        }),
    ];
    let words: Vec<String> = words.into_iter().flatten().collect();
    let intervals = hours::intervals(&positions, range?, shift?);
    Some(Condition::new(format!("it is {}", words.join(" ")), time::condition(&intervals), &at))
}

/// What `read` makes of a text; reports an error if that is nothing.
pub(crate) fn parsed<T>(
    text: &Located<String>,
    read: impl FnOnce(&str) -> Option<T>,
    what: &str,
    help: &str,
    report: &Report,
) -> Option<T> {
    let found = read(&text.value);
    if found.is_none() {
        report.error(&text.at, format!("`{}` is not {what}", shown(&text.value)), help);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::seconds;

    #[test]
    fn durations_have_one_number_and_one_unit() {
        assert_eq!(seconds("90s"), Some(90));
        assert_eq!(seconds("5m"), Some(300));
        assert_eq!(seconds("2h"), Some(7200));
        assert_eq!(seconds("1d"), Some(86_400));
        for bad in ["", "5", "m", "-5m", "1.5h", "5 m", "5min", "99999999999999999999d", "9223372036854775807d"] {
            assert_eq!(seconds(bad), None, "{bad}");
        }
    }
}
