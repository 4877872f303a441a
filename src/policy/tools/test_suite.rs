//! Tables of expected decisions beside the policies: `*.test.toml`.
//! Never asks a clock: a case has its own time, so a table that passes today passes tomorrow.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value};
use toml::de::DeValue;

use crate::auth::Caller;
use crate::name::Name;
use crate::policy::engine::{PolicySet, Reason, Verdict};
use crate::policy::language::{Folder, Raw, Source, Table, impossible, impossible_name, listed, when};
use crate::policy::model::{
    Approval, Finding, Located, Location, PolicyErrors, PrincipalKind, Report, hours, is_same_number, shown,
};
use crate::policy::stack;
use crate::wire::ProofAlgorithm;

/// Expected decisions.
#[derive(Debug, Clone, Default)]
pub struct TestSuite {
    pub(crate) cases: Vec<Case>,
    /// The roles and claims of all callers.
    roles: Vec<Located<String>>,
    claims: Vec<Located<String>>,
}

/// One line of a table: a question and the answer that is expected.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) at: Location,
    pub(crate) caller: Caller,
    pub(crate) method: String,
    method_at: Location,
    pub(crate) params: Option<Box<RawValue>>,
    pub(crate) now_ms: u64,
    /// The approvals that were given.
    pub(crate) approved: Vec<Located<String>>,
    pub(crate) expect: Verdict,
    /// The call is to wait for an approval.
    pub(crate) waits: bool,
    pub(crate) rule: Option<String>,
    pub(crate) reason: Option<String>,
}

/// What a case expects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expected {
    Allow,
    Deny,
    /// A denial until the call is approved.
    Wait,
}

impl Expected {
    const NAMED: [(&'static str, Self); 3] = [("allow", Self::Allow), ("deny", Self::Deny), ("wait", Self::Wait)];
}

/// When a case happens unless it says otherwise: Monday, 2026-01-05 12:00 UTC.
const DEFAULT_TIME_MS: u64 = 1_767_614_400_000;
/// Monday, 2026-01-05 00:00 UTC: the week of times like `"fri 14:00"`.
const WEEK_MS: u64 = 1_767_571_200_000;

impl TestSuite {
    /// Reads every `*.test.toml` below a folder.
    ///
    /// # Errors
    /// Everything that is wrong in the tables, with file and line.
    pub fn load(dir: &Path) -> Result<Self, PolicyErrors> {
        let report = Report::default();
        let folder = Folder::read_tests(dir, &report);
        let texts = folder.texts(&report);
        stack::with_room(move || Self::read(texts, report)).unwrap_or_else(|error| {
            let report = Report::default();
            report.error(&Location::default(), format!("no thread to read the tables on: {error}"), "");
            Err(report.into_errors())
        })
    }

    /// Like [`TestSuite::load`], from texts by file name.
    ///
    /// # Errors
    /// As [`TestSuite::load`].
    pub fn from_texts<'a>(files: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<Self, PolicyErrors> {
        Self::read(files, Report::default())
    }

    /// How many cases there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.cases.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.cases.is_empty()
    }

    /// The methods, roles and claims in the tables that `set` does not have. A call with a mistyped name is denied
    /// whatever the rules say, which shows nothing about them.
    pub(crate) fn validate(&self, set: &PolicySet) -> Vec<Finding> {
        let report = Report::default();
        let declarations = &set.checked().declarations;
        for role in self.roles.iter().filter(|role| !declarations.roles.contains_key(&role.value)) {
            let help = format!("no rule asks for it: take it out, or describe it: `[role.\"{}\"]`", shown(&role.value));
            report.unknown(&role.at, "role", &role.value, declarations.roles.keys().map(String::as_str), help);
        }
        for claim in self.claims.iter().filter(|claim| !declarations.claims.contains_key(&claim.value)) {
            let help = "no rule can ask for it: take it out, or declare it under `[claims]`";
            report.unknown(&claim.at, "claim", &claim.value, declarations.claims.keys().map(String::as_str), help);
        }
        for case in &self.cases {
            for name in case.approved.iter().filter(|name| set.approval(&name.value).is_none()) {
                let help = format!("describe it: `[approval.{}]`", shown(&name.value));
                let known = set.approvals().map(Approval::name);
                report.unknown(&name.at, "approval", &name.value, known, help);
            }
            if !set.methods().contains(&case.method) && case.reason.as_deref() != Some("unknown_method") {
                let names = set.methods().names().map(|name| name.as_str());
                let help = "declare it, or write `reason = \"unknown_method\"` if that is what is expected";
                report.unknown(&case.method_at, "method", &case.method, names, help);
            }
        }
        report.into_errors().findings
    }

    fn read<'a>(files: impl IntoIterator<Item = (&'a str, &'a str)>, report: Report) -> Result<Self, PolicyErrors> {
        let mut suite = Self::default();
        for (file, text) in files {
            let source = Source::new(file, text, &report);
            source.check_characters();
            let Some(document) = source.parse() else { continue };
            let mut root = Table::root(&source, document.get_ref());
            let mut callers = BTreeMap::new();
            for (name, table) in root.tables("caller") {
                if let Some(caller) = suite.caller(Some(&name), table) {
                    callers.insert(name.value, caller);
                }
            }
            let cases = root.typed("case", Raw::list, "write `[[case]]`").map(|cases| cases.value);
            for raw in cases.unwrap_or_default() {
                match raw.table("`[[case]]`".to_owned()) {
                    Some(table) => {
                        let case = suite.case(table, raw.at(), &callers);
                        suite.cases.extend(case);
                    }
                    None => raw.error(format!("a case is {}", raw.kind()), "write `[[case]]`"),
                }
            }
            root.finish();
        }
        report.finish().map(|_| suite)
    }
}

/// A caller and the age of its token in seconds, which becomes a time once the case has one.
#[derive(Debug, Clone)]
struct Template {
    caller: Caller,
    token_age_s: u64,
}

impl TestSuite {
    fn caller(&mut self, name: Option<&Located<String>>, mut table: Table<'_>) -> Option<Template> {
        let report = table.report();
        let agent = table.string("agent");
        let roles = table.strings("roles");
        let subject = table.string("on_behalf_of");
        let algorithms = [("HS256", ProofAlgorithm::Hs256), ("EdDSA", ProofAlgorithm::EdDsa)];
        let algorithm = table.choice("algorithm", &algorithms);
        let age = table.string("token_age");
        let key = table.string("key");
        let issuer = table.string("issuer");
        let claims = table.table("claims").map(|table| table.entries()).unwrap_or_default();
        let at = table.at.clone();
        table.finish();
        self.roles.extend(roles.iter().cloned());
        self.claims.extend(claims.iter().map(|(claim, _)| claim.clone()));
        let Some(agent) = agent.as_ref().or(name) else {
            report.error(&at, "a caller without `agent`", "write `agent = \"planner\"`");
            return None;
        };
        let agent = match Name::new(&agent.value) {
            Ok(agent) => agent,
            Err(error) => {
                report.error(&agent.at, error.to_string(), "");
                return None;
            }
        };
        if let Some(subject) = &subject {
            if let Some((message, help)) = impossible_name(PrincipalKind::Subject, &subject.value) {
                report.error(&subject.at, message, help);
            } else if subject.value == agent.as_str() {
                let help = "leave `on_behalf_of` out: the call is in the agent's own name";
                report.error(&subject.at, "nobody acts on behalf of a namesake", help);
            }
        }
        for (name, text) in [("key", &key), ("issuer", &issuer)] {
            if let Some(text) = text
                && let Some((message, help)) = impossible(name, &text.value)
            {
                report.error(&text.at, message, help);
            }
        }
        let mut caller = Caller::new(agent, roles.into_iter().map(|role| role.value));
        caller.delegated = subject.is_some();
        caller.subject = subject.map_or(caller.subject, |subject| subject.value);
        caller.algorithm = algorithm.unwrap_or(caller.algorithm);
        caller.key = key.map_or(caller.key, |key| key.value);
        caller.token.issuer = issuer.map_or(caller.token.issuer, |issuer| issuer.value);
        caller.token.claims = claims.into_iter().filter_map(|(name, raw)| Some((name.value, json(raw)?))).collect();
        let seconds = |text: &str| when::seconds(text).and_then(|seconds| u64::try_from(seconds).ok());
        let age = age.and_then(|age| when::parsed(&age, seconds, "a duration", "write \"90s\" or \"5m\"", report));
        Some(Template { caller, token_age_s: age.unwrap_or_default() })
    }

    fn case(&mut self, mut table: Table<'_>, at: Location, callers: &BTreeMap<String, Template>) -> Option<Case> {
        let report = table.report();
        let name = table.string("name");
        let caller = table.raw("caller");
        let method = table.string("method");
        let params = table.raw("params");
        let raw_params = table.string("raw_params");
        let time = table.raw("at");
        let approved = table.strings("approved");
        let expect = table.choice("expect", &Expected::NAMED);
        let rule = table.string("rule");
        let reason = table.string("reason");
        table.finish();
        if let Some(reason) = reason.as_ref().filter(|reason| !Reason::LABELS.contains(&reason.value.as_str())) {
            let help = format!("write {}", listed(&Reason::LABELS, "or"));
            report.unknown(&reason.at, "reason", &reason.value, Reason::LABELS, help);
        }

        let template = match caller.map(|raw| (raw, raw.text(), raw.table("`caller`".to_owned()))) {
            Some((raw, Some(name), _)) => {
                let found = callers.get(name).cloned();
                if found.is_none() {
                    let help = format!("describe it: `[caller.{}]`", shown(name));
                    report.unknown(&raw.at(), "caller", name, callers.keys().map(String::as_str), help);
                    return None;
                }
                found
            }
            Some((_, None, Some(table))) => Some(self.caller(None, table)?),
            _ => None,
        };
        let waits = expect == Some(Expected::Wait);
        if let Some(reason) = reason.as_ref().filter(|_| waits) {
            report.error(&reason.at, "`reason` beside `expect = \"wait\"`, which says it", "leave it out");
        }
        let (Some(mut template), Some(method), Some(expect)) = (template, method, expect) else {
            report.error(&at, "a case without `caller`, `method` or `expect`", "write all three");
            return None;
        };
        let now_ms = time.map_or(Some(DEFAULT_TIME_MS), read_time)?;
        template.caller.token.issued_at = (now_ms / 1000).saturating_sub(template.token_age_s);
        template.caller.token.expires_at = template.caller.token.issued_at.saturating_add(3600);
        let params = match (params, raw_params) {
            (Some(params), Some(_)) => {
                params.error("both `params` and `raw_params`", "leave one of them out");
                None
            }
            (Some(params), None) => match json(params)? {
                value @ (Value::Object(_) | Value::Array(_)) => to_raw_value(&value).ok(),
                _ => {
                    let message = format!("`params` is {}, which no call can send", params.kind());
                    params.error(message, "write `{ NAME = … }` or `[ … ]`");
                    None
                }
            },
            (None, Some(text)) => match RawValue::from_string(text.value) {
                // JSON-RPC 2.0 §4.2: parameters are an object or an array.
                Ok(raw) if raw.get().trim_start().starts_with(['{', '[']) => Some(raw),
                Ok(_) => {
                    let message = "`raw_params` is neither an object nor a list, which no call can send";
                    report.error(&text.at, message, "write `{…}` or `[…]`");
                    None
                }
                Err(error) => {
                    report.error(&text.at, format!("`raw_params` is not JSON: {error}"), "");
                    None
                }
            },
            (None, None) => None,
        };
        Some(Case {
            name: name.map_or_else(|| method.value.clone(), |name| name.value),
            at,
            caller: template.caller,
            method: method.value,
            method_at: method.at,
            params,
            now_ms,
            approved,
            expect: if expect == Expected::Allow { Verdict::Allow } else { Verdict::Deny },
            waits,
            rule: rule.map(|rule| rule.value),
            reason: reason.map(|reason| reason.value),
        })
    }
}

/// `2026-09-21T14:13:20Z`, or `"fri 14:00"` for the Friday of some week.
fn read_time(raw: Raw<'_>) -> Option<u64> {
    let found = match raw.value() {
        DeValue::Datetime(time) => rfc3339(&time.to_string()),
        DeValue::String(text) => week_time(text).or_else(|| rfc3339(text)),
        _ => None,
    };
    if found.is_none() {
        let help = "write `2026-09-21T14:13:20Z`, or \"fri 14:00\" (UTC)";
        raw.error(format!("{} is not a time", raw.shown()), help);
    }
    found
}

fn rfc3339(text: &str) -> Option<u64> {
    let time = time::OffsetDateTime::parse(text, &time::format_description::well_known::Rfc3339).ok()?;
    u64::try_from(time.unix_timestamp_nanos() / 1_000_000).ok()
}

fn week_time(text: &str) -> Option<u64> {
    let (day, time) = text.split_once(' ')?;
    let days = hours::days(day)?;
    let [day] = days.as_slice() else { return None };
    let (start, _) = hours::hours(&format!("{time}-24:00"))?;
    let minutes = u64::try_from(*day).ok()? * u64::from(hours::DAY) + u64::from(start);
    Some(WEEK_MS + minutes * 60_000)
}

/// A TOML value as JSON. `None`, with an error, for a date or time, and for a number that would become another.
fn json(raw: Raw<'_>) -> Option<Value> {
    if let Some(values) = raw.list() {
        let values: Vec<_> = values.into_iter().map(|value| json(value)).collect();
        return values.into_iter().collect();
    }
    if let Some(table) = raw.table("a value".to_owned()) {
        let members: Vec<_> =
            table.entries().into_iter().map(|(name, value)| Some((name.value, json(value)?))).collect();
        return members.into_iter().collect::<Option<Map<String, Value>>>().map(Value::Object);
    }
    let found = match raw.value() {
        DeValue::String(text) => Some(text.as_ref().into()),
        DeValue::Integer(_) => raw.integer().map(Value::from),
        // JSON has no infinity, which a number too large for a float becomes.
        DeValue::Float(number) => {
            let found = number.as_str().parse().ok().and_then(serde_json::Number::from_f64);
            found.filter(|found| is_same_number(&found.to_string(), number.as_str())).map(Value::Number)
        }
        DeValue::Boolean(value) => Some((*value).into()),
        DeValue::Datetime(_) | DeValue::Array(_) | DeValue::Table(_) => None,
    };
    if found.is_none() {
        let (why, help) = if matches!(raw.value(), DeValue::Datetime(_)) {
            (
                "is a date or time, and JSON has none: no parameter or claim can be equal to it",
                "write it as a text, in quotes",
            )
        } else if raw.shown().trim_start_matches(['+', '-']).starts_with(['i', 'n']) {
            ("is not a number in JSON", "write another")
        } else {
            let help = "in parameters, write it as JSON: `raw_params = '…'`";
            ("does not fit into a JSON number here", help)
        };
        raw.error(format!("`{}` {why}", raw.shown()), help);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_a_week_are_of_that_week() {
        assert_eq!(week_time("mon 00:00"), Some(WEEK_MS));
        assert_eq!(week_time("sun 23:59"), Some(WEEK_MS + 7 * 86_400_000 - 60_000));
        assert_eq!(hours::minute_of_week(DEFAULT_TIME_MS), 720);
        assert_eq!(rfc3339("2026-01-05T12:00:00Z"), Some(DEFAULT_TIME_MS));
        for bad in ["mon", "mon-fri 10:00", "mon 24:00", "mon 1:00", ""] {
            assert_eq!(week_time(bad), None, "{bad}");
        }
    }
}
