//! The conditions of a TOML rule: `[rule.NAME.when]` and `[rule.NAME.unless]`.
//! Never knows which rule it is reading for; what the conditions may be about is handed in.

use std::collections::BTreeMap;

use cedar_policy::pst::{BinaryOp, Var};

use super::condition;
use super::condition::{Field, Fields};
use super::table::{Raw, Table, listed};
use crate::policy::cedar::{expr, time};
use crate::policy::model::{Condition, Location, Param, ParamType, Report, hours, shown};

/// The texts about a call that conditions can ask, their path below `context`, and how sentences call them.
const TEXTS: [(&str, &[&str], &str); 5] = [
    ("agent", &["agent"], "the agent"),
    ("subject", &["subject"], "the subject"),
    ("issuer", &["token", "issuer"], "the token's issuer"),
    ("key", &["key"], "the key"),
    ("algorithm", &["algorithm"], "the signature"),
];

/// Everything that a condition of a rule can be about.
///
/// `params` are the parameters that all methods of the rule have in common; a parameter is optional here when it is in
/// any of them.
pub(crate) fn fields<'a>(
    params: impl IntoIterator<Item = &'a Param>,
    claims: impl IntoIterator<Item = (&'a String, &'a ParamType)>,
    attributes: impl IntoIterator<Item = (&'a String, &'a ParamType)>,
) -> Fields {
    let mut fields = Fields::new();
    for (name, path, label) in TEXTS {
        fields.insert(name.to_owned(), Field::new(label.to_owned(), ParamType::String, Var::Context, path, false));
    }
    for param in params {
        let label = format!("`{}`", param.name());
        let path = ["params", param.name()];
        let field = Field::new(label, param.kind().clone(), Var::Context, &path, param.is_optional());
        fields.insert(format!("params.{}", param.name()), field);
    }
    for (name, kind) in claims {
        let field = Field::new(format!("the claim `{name}`"), kind.clone(), Var::Context, &["claims", name], true);
        fields.insert(format!("claims.{name}"), field);
    }
    for (name, kind) in attributes {
        let label = format!("the caller's attribute `{name}`");
        fields.insert(format!("attributes.{name}"), Field::new(label, kind.clone(), Var::Principal, &[name], true));
    }
    fields
}

/// Reads `when` or `unless`.
///
/// `lacking` tells of parameters that only some of the rule's methods have why they cannot be asked.
pub(crate) fn read(
    mut table: Table<'_>,
    fields: &Fields,
    lacking: &BTreeMap<String, String>,
    report: &mut Report,
) -> Vec<Condition> {
    let errors_before = report.errors();
    let mut parts = Vec::new();
    for group in ["params", "claims", "attributes"] {
        if let Some(raw) = table.raw(group) {
            parts.extend(read_group(group, raw, fields, lacking, report));
        }
    }
    for (name, _, _) in TEXTS {
        if let Some(raw) = table.raw(name)
            && let Some(field) = fields.get(name)
        {
            parts.extend(condition::read(field, &raw.at(), raw, fields, report));
        }
    }
    parts.extend(read_token_age(&mut table, report));
    parts.extend(read_hours(&mut table, report));
    let at = table.at.clone();
    table.finish(report);
    // INVARIANT: without a condition there is an error, else a rule would hold more often than it says.
    if parts.is_empty() && report.errors() == errors_before {
        report.error(&at, "there is no condition in it", "leave it out, or say what has to hold");
    }
    parts
}

/// `unless` as one condition: not all of its parts. `None` only where [`read`] reported why there are none.
pub(crate) fn negated(parts: Vec<Condition>, at: &Location) -> Option<Condition> {
    if parts.is_empty() {
        return None;
    }
    let words: Vec<&str> = parts.iter().map(|part| part.text.as_str()).collect();
    let negation = expr::not(expr::all(parts.iter().map(|part| part.expr.clone())));
    Some(Condition::new(format!("not ({})", words.join(" and ")), negation, at))
}

fn read_group(
    group: &str,
    raw: Raw<'_>,
    fields: &Fields,
    lacking: &BTreeMap<String, String>,
    report: &mut Report,
) -> Vec<Condition> {
    let Some(table) = raw.table(format!("`{group}`")) else {
        report.error(&raw.at(), format!("`{group}` is {}", raw.kind()), format!("write `{group}.NAME = …`"));
        return Vec::new();
    };
    if table.entries().is_empty() {
        let message = format!("there is no condition in `{group}`");
        report.error(&raw.at(), message, format!("leave it out, or write `{group}.NAME = …`"));
    }
    let mut parts = Vec::new();
    for (key, value) in table.entries() {
        if let Some(field) = fields.get(&format!("{group}.{}", key.value)) {
            parts.extend(condition::read(field, &key.at, value, fields, report));
            continue;
        }
        if let Some(why) = lacking.get(&key.value).filter(|_| group == "params") {
            let message = format!("not every method of this rule has the parameter `{}`", shown(&key.value));
            report.error(&key.at, message, why.clone());
            continue;
        }
        let prefix = format!("{group}.");
        let known: Vec<&str> = fields.keys().filter_map(|name| name.strip_prefix(&prefix)).collect();
        let help = match group {
            "params" if known.is_empty() => {
                "the methods of this rule have no declared parameter in common: declare `params` in `[method.\"…\"]`"
                    .to_owned()
            }
            "params" => format!("the methods of this rule have in common {}", listed(&known)),
            _ => format!("declare it: `[{group}]` and below it `{} = \"string\"`", shown(&key.value)),
        };
        let what = match group {
            "params" => "parameter",
            "claims" => "claim",
            _ => "attribute",
        };
        report.unknown(&key.at, what, &key.value, known, help);
    }
    parts
}

/// `token_age = "5m"`, or `{ min = "1m", max = "1h" }`.
fn read_token_age(table: &mut Table<'_>, report: &mut Report) -> Vec<Condition> {
    let Some(raw) = table.raw("token_age") else { return Vec::new() };
    let mut bounds = Vec::new();
    if let Some(mut inner) = raw.table("`token_age`".to_owned()) {
        if inner.entries().is_empty() {
            report.error(&raw.at(), "the condition on `token_age` is empty", "write \"5m\", or `min` and `max`");
        }
        bounds.push((inner.raw("min"), BinaryOp::GreaterEq, "at least"));
        bounds.push((inner.raw("max"), BinaryOp::LessEq, "at most"));
        inner.finish(report);
    } else {
        bounds.push((Some(raw), BinaryOp::LessEq, "at most"));
    }
    let mut parts = Vec::new();
    let mut seconds_seen = Vec::new();
    for (bound, op, verb) in bounds {
        let Some(bound) = bound else { continue };
        let Some(seconds) = bound.text().and_then(seconds) else {
            let help = "write a number and a unit of s, m, h or d: \"90s\", \"5m\", \"2h\"";
            report.error(&bound.at(), format!("{} is not a duration", bound.shown()), help);
            continue;
        };
        seconds_seen.push((verb, seconds));
        let age = expr::path(Var::Context, &["token".into(), "age_s".into()]);
        let words = format!("the token is {verb} {} old", bound.text().unwrap_or_default());
        parts.push(Condition::new(words, expr::binary(op, age, expr::integer(seconds)), &bound.at()));
    }
    if let [(_, min), (_, max)] = seconds_seen.as_slice()
        && min > max
    {
        report.error(&raw.at(), "the conditions on `token_age` can never hold together", "`min` is larger than `max`");
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
fn read_hours(table: &mut Table<'_>, report: &mut Report) -> Option<Condition> {
    let key = if table.raw("hours").is_some() { "hours" } else { "days" };
    let at = table.line_of(key);
    let hours = table.string(report, "hours");
    let listed_days = table.raw("days");
    let days = table.strings(report, "days");
    if let Some(raw) = listed_days.filter(|raw| raw.list().is_some_and(|days| days.is_empty())) {
        let help = "name the days, or leave it out";
        report.error(&raw.at(), "`days` is empty, so the condition means nothing", help);
    }
    let offset = table.string(report, "utc_offset");
    if hours.is_none() && days.is_empty() {
        if let Some(offset) = offset {
            report.error(&offset.at, "`utc_offset` without `hours` or `days` means nothing", "leave it out");
        }
        return None;
    }
    let mut problem = |at: &Location, text: &str, what: &str, help: &str| {
        report.error(at, format!("`{}` is not {what}", shown(text)), help);
    };
    let mut positions = Vec::new();
    for day in &days {
        match hours::days(&day.value) {
            Some(known) => positions.extend(known),
            None => problem(&day.at, &day.value, "a day", "write mon, tue, wed, thu, fri, sat, sun, or mon-fri"),
        }
    }
    let range = match &hours {
        None => Some((0, hours::DAY)),
        Some(text) => {
            let range = hours::hours(&text.value);
            if range.is_none() {
                let help = "write \"08:00-18:00\"; the end is not included, and \"22:00-06:00\" ends on the next day";
                problem(&text.at, &text.value, "a range of hours", help);
            }
            range
        }
    };
    let shift = match &offset {
        None => Some(0),
        Some(text) => {
            let shift = hours::offset(&text.value);
            if shift.is_none() {
                problem(&text.at, &text.value, "an offset from UTC", "write \"+02:00\", \"-05:30\" or \"Z\"");
            }
            shift
        }
    };
    if days.is_empty() {
        positions = (0..7).collect();
    }
    positions.sort_unstable();
    positions.dedup();
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
