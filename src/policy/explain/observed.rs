//! What a call had where a condition looked, in the words of an operator.
//! Never shows how a condition is evaluated: no minute of the week, no set in place of a list.

use cedar_policy::pst::SmolStr;
use serde_json::Value;

use crate::policy::cedar::References;
use crate::policy::engine::{CallFacts, Principal, datetime};
use crate::policy::language::CheckedPolicy;
use crate::policy::model::{Condition, DAY, TypedValue, hours};

/// `amount = 25000`, or `it is mon 20:30 UTC`. Nothing for what the condition's own words already say.
pub(crate) fn observed_value(part: &Condition, facts: &CallFacts<'_>, principal: &Principal<'_>) -> Option<String> {
    let checked = principal.checked;
    let reads = References::of([&part.expr]);
    let mut said = Observations::default();
    for path in &reads.context {
        let steps: Vec<&str> = path.iter().map(SmolStr::as_str).collect();
        said.context(&steps, facts, checked);
    }
    for path in &reads.principal {
        if let Some(name) = path.first().filter(|name| checked.declarations.attributes.contains_key(name.as_str())) {
            let values = checked.attributes.get(principal.kind, principal.name).into_iter().flatten();
            let value = values.into_iter().find(|(known, _)| known == name.as_str()).map(|(_, value)| projected(value));
            said.value(format!("attributes.{name}"), value);
        }
    }
    said.finish(facts.question.now_ms)
}

/// What has been found for one condition.
#[derive(Default)]
struct Observations {
    /// Names and their values; `None` for what is absent.
    values: Vec<(String, Option<String>)>,
    time_of_day: bool,
    weekday: bool,
    date: bool,
    /// Sentences.
    others: Vec<String>,
}

impl Observations {
    fn context(&mut self, path: &[&str], facts: &CallFacts<'_>, checked: &CheckedPolicy) {
        let question = facts.question;
        let token = &question.caller.token;
        let now = question.now_ms / 1000;
        match path {
            ["params", name, inner @ ..] => {
                let (label, value) = member(name, facts.bound().and_then(|params| params.get(*name)), inner);
                self.value(label, value.map(projected));
            }
            ["claims", name, ..] if checked.declarations.claims.contains_key(*name) => {
                self.value(format!("claims.{name}"), token.claims.get(*name).map(Value::to_string));
            }
            ["hour" | "minute" | "minute_of_day"] => self.time_of_day = true,
            ["minute_of_week" | "weekday"] => self.weekday = true,
            ["now"] => self.date = true,
            ["token", "age_s"] => {
                self.others.push(format!("issued {} ago", span(now.saturating_sub(token.issued_at))));
            }
            ["token", "remaining_s"] => {
                self.others.push(format!("it expires in {}", span(token.expires_at.saturating_sub(now))));
            }
            ["token", "id"] => self.text("token.id", &token.id),
            ["token", "issuer"] => self.text("token.issuer", &token.issuer),
            ["token", "key"] => self.text("token.key", &token.key),
            ["agent"] => self.text("agent", question.caller.agent.as_str()),
            ["subject"] => {
                let subject = Some(&question.caller.subject).filter(|_| question.caller.delegated);
                self.value("subject".to_owned(), subject.map(|subject| Value::from(subject.as_str()).to_string()));
            }
            ["algorithm"] => self.text("algorithm", question.caller.algorithm.as_str()),
            ["key"] => self.text("key", &question.caller.key),
            // The words already say `delegated`, and a whole record would be more than anybody reads.
            _ => {}
        }
    }

    fn text(&mut self, label: &str, text: &str) {
        self.value(label.to_owned(), Some(Value::from(text).to_string()));
    }

    fn value(&mut self, label: String, value: Option<String>) {
        if self.values.iter().all(|(known, _)| *known != label) {
            self.values.push((label, value));
        }
    }

    fn finish(self, now_ms: u64) -> Option<String> {
        let inner = |outer: &str| {
            self.values.iter().any(|(label, _)| label.strip_prefix(outer).is_some_and(|rest| rest.starts_with('.')))
        };
        // `order.amount` says more than the `order` that was looked for first.
        let values = self.values.iter().filter(|(label, _)| !inner(label));
        let mut said: Vec<String> = values
            .map(|(label, value)| {
                let shown: String = value.as_deref().unwrap_or("absent").chars().take(SHOWN).collect();
                format!("{label} = {shown}")
            })
            .collect();
        if self.date {
            said.extend(datetime(now_ms).map(|text| format!("it is {text}")));
        }
        if self.weekday || self.time_of_day {
            said.push(format!("it is {}", clock(now_ms, self.weekday)));
        }
        said.extend(self.others);
        (!said.is_empty()).then(|| said.join(", "))
    }
}

/// The characters of a value that are shown: an argument can be as long as a message.
const SHOWN: usize = 80;

/// The member of a parameter that `path` leads to. What represents a list is not a member of it.
fn member<'a>(name: &str, value: Option<&'a TypedValue>, path: &[&str]) -> (String, Option<&'a TypedValue>) {
    let mut found = (name.to_owned(), value);
    for step in path {
        found = match found {
            (label, Some(TypedValue::Object(fields))) => (format!("{label}.{step}"), fields.get(*step)),
            (label, None) => (label, None),
            (label, Some(other)) => return (label, Some(other)),
        };
    }
    found
}

fn projected(value: &TypedValue) -> String {
    match value {
        // As the call spells it.
        TypedValue::Number(text) => text.clone(),
        TypedValue::Any => "…".to_owned(),
        other => other.to_json().to_string(),
    }
}

/// `mon 20:30 UTC`.
fn clock(now_ms: u64, weekday: bool) -> String {
    let week = hours::minute_of_week(now_ms);
    let day = usize::try_from(week / DAY).ok().and_then(|day| hours::DAYS.get(day)).filter(|_| weekday);
    let day = day.map(|day| format!("{day} ")).unwrap_or_default();
    format!("{day}{:02}:{:02} UTC", week % DAY / 60, week % 60)
}

/// `1h 30s`.
fn span(seconds: u64) -> String {
    let units = [(86_400, u64::MAX, "d"), (3600, 24, "h"), (60, 60, "m"), (1, 60, "s")];
    let counts = units.map(|(length, carry, unit)| (seconds / length % carry, unit));
    let said: Vec<String> =
        counts.into_iter().filter(|(count, _)| *count > 0).map(|(count, unit)| format!("{count}{unit}")).collect();
    if said.is_empty() { "0s".to_owned() } else { said.join(" ") }
}

#[cfg(test)]
mod tests {
    use super::{clock, span};

    #[test]
    fn times_are_said_in_units() {
        assert_eq!(span(0), "0s");
        assert_eq!(span(90), "1m 30s");
        assert_eq!(span(3600), "1h");
        assert_eq!(span(90_061), "1d 1h 1m 1s");
        // 2026-09-21 is a Monday.
        assert_eq!(clock(1_790_022_600_000, true), "mon 20:30 UTC");
        assert_eq!(clock(1_790_022_600_000, false), "20:30 UTC");
    }
}
