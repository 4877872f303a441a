//! `[budget.NAME]`, and what it takes to count.
//! Never loads a budget that some call of its methods could not be counted against.

use std::collections::BTreeMap;

use super::approval_table::may_be_reserved;
use super::rule_table::who;
use super::table::Table;
use super::toml_file::{description, patterns};
use super::when;
use crate::name::is_name;
use crate::policy::model::{Budget, CallerMatch, Declarations, Located, Methods, ParamType, Per, Report, shown};

/// Several may apply to one call, and each of them that is shared is a round trip.
const MAX_BUDGETS: usize = 64;
/// In a shorter window, replicas whose clocks differ would see different windows. The store of outcomes keeps entries for a week and some
/// time more.
const LEAST_S: u64 = 60;
const MOST_S: u64 = 7 * 24 * 3600;

/// Reads all of them.
pub(crate) fn read(
    tables: Vec<(Located<String>, Table<'_>)>,
    methods: &Methods,
    declarations: &Declarations,
    report: &Report,
) -> BTreeMap<String, Budget> {
    let mut budgets = BTreeMap::<String, Budget>::new();
    for (name, table) in tables {
        if budgets.len() >= MAX_BUDGETS {
            report.error(&name.at, format!("there are more than {MAX_BUDGETS} budgets"), "use one for several methods");
            break;
        }
        let Some(budget) = budget(&name, table, methods, declarations) else { continue };
        if let Some(first) = budgets.get(&name.value) {
            let message = format!("the budget `{}` is described twice", shown(&name.value));
            report.error(&name.at, message, format!("the first is at {}", first.at));
        } else {
            budgets.insert(name.value, budget);
        }
    }
    budgets
}

/// `None` if it does not say what it limits; that is reported.
fn budget(
    name: &Located<String>,
    mut table: Table<'_>,
    methods: &Methods,
    declarations: &Declarations,
) -> Option<Budget> {
    let report = table.report();
    let id = shown(&name.value);
    if !is_name(&name.value) {
        report.error(&name.at, format!("`{id}` is not a name for a budget"), "1 to 64 of A-Z a-z 0-9 _ - are allowed");
    }
    let description = description(&mut table);
    let patterns = patterns(&mut table, "methods");
    if patterns.is_empty() {
        report.error(&name.at, format!("the budget `{id}` is for no method"), "write `methods = [\"…\"]`");
    }
    for pattern in patterns.iter().filter(|pattern| may_be_reserved(&pattern.value)) {
        let message = format!("`{}` is also about built-in methods, which no budget is for", pattern.value);
        report.error(&pattern.at, message, "name the methods, or a prefix: `bank/*`");
    }
    let callers = who(&mut table, declarations);
    let callers = if callers.is_empty() { vec![CallerMatch::Everyone] } else { callers };
    let per = table.choice("per", &[("agent", Per::Agent), ("subject", Per::Subject)]);
    if per.is_none() {
        let help = "write `per = \"agent\"` or `per = \"subject\"`";
        report.error(&name.at, format!("the budget `{id}` does not say for whom it is kept"), help);
    }
    let calls = rate(&mut table, "calls");
    let (at, sum) = (table.line_of("sum"), table.string("sum"));
    let at_most = rate(&mut table, "at_most");
    let shared = table.flag("shared");
    table.finish();
    let (at_most, window_s) = match (calls, &sum, at_most) {
        (Some(calls), None, None) => calls?,
        (None, Some(param), Some(at_most)) => {
            for pattern in &patterns {
                for (method, described) in methods.matching(&pattern.value) {
                    let declared = described.params().unwrap_or_default();
                    let found = declared.iter().find(|declared| declared.name() == param.value);
                    let is_sum = found.is_some_and(|found| *found.kind() == ParamType::Integer && !found.is_optional());
                    if !is_sum {
                        let param = shown(&param.value);
                        let message = format!("`{method}` does not declare `{param}` as a required integer");
                        report.error(&at, message, "add up only what every call of these methods has to send");
                    }
                }
            }
            if shared.is_none() {
                let help = "write `shared = true`; with `false`, every replica allows as much";
                report.error(&name.at, format!("the budget `{id}` does not say whether replicas count together"), help);
            }
            at_most?
        }
        _ => {
            let help = "write `calls = \"100/h\"`, or `sum = \"amount\"` with `at_most = \"10000/d\"`";
            report.error(&name.at, format!("the budget `{id}` does not say what it limits, once"), help);
            return None;
        }
    };
    Some(Budget {
        name: name.value.clone(),
        at: name.at.clone(),
        description,
        methods: patterns,
        callers,
        per: per?,
        sum: sum.map(|sum| sum.value),
        at_most,
        window_s,
        shared: shared.is_some_and(|flag| flag.value),
    })
}

/// `"100/h"` or `"10000/7d"`: how much, in which time. `Some(None)` if it is something else, which is reported.
fn rate(table: &mut Table<'_>, key: &'static str) -> Option<Option<(u64, u64)>> {
    let report = table.report();
    let text = table.string(key)?;
    let read = |text: &str| {
        let (most, window) = text.split_once('/')?;
        let plain = !most.is_empty() && most.bytes().all(|byte| byte.is_ascii_digit());
        let most = most.parse::<i64>().ok().filter(|most| plain && *most > 0)?;
        // A unit alone is one of it.
        let window = match window {
            "min" => 60,
            "day" => 86_400,
            other => when::seconds(other).or_else(|| when::seconds(&format!("1{other}")))?,
        };
        let window = u64::try_from(window).ok().filter(|window| (LEAST_S..=MOST_S).contains(window))?;
        Some((u64::try_from(most).ok()?, window))
    };
    let help = "write a whole number above 0 and a time from 1m to 7d: \"100/h\", \"10000/d\", \"5/10m\"";
    Some(when::parsed(&text, read, &format!("a limit for `{key}`"), help, report))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::policy::language::table::Source;

    #[test]
    fn a_limit_is_a_whole_number_and_a_time() {
        let read = |text: &str| {
            let report = Report::default();
            let text = format!("calls = {text:?}");
            let source = Source::new("a.toml", &text, &report);
            let document = source.parse().unwrap();
            rate(&mut Table::root(&source, document.get_ref()), "calls").unwrap()
        };
        for (text, limit) in [
            ("100/h", (100, 3_600)),
            ("10000/day", (10_000, 86_400)),
            ("1/min", (1, 60)),
            ("7/m", (7, 60)),
            ("5/10m", (5, 600)),
            ("9223372036854775807/7d", (9_223_372_036_854_775_807, 604_800)),
        ] {
            assert_eq!(read(text), Some(limit), "{text}");
        }
        for text in [
            "",
            "/",
            "100",
            "100/",
            "/h",
            "0/h",
            "-1/h",
            "+1/h",
            "1.5/h",
            "1e3/h",
            "1 /h",
            "1/ h",
            "1/0h",
            "1/59s",
            "1/8d",
            "9223372036854775808/h",
            "1/h/h",
            "1/week",
            "1/99999999999999999999d",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
