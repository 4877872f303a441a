//! What a policy would have decided otherwise than the one in force: counts of calls, by what they have in common.
//! Never holds a parameter, and never grows beyond its bounds, whatever is called.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::package::brief;
use crate::policy::engine::{Decision, Reason};
use crate::policy::model::RuleId;

/// What becomes of a call by a policy, before anybody has approved it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Fate {
    /// It runs.
    Allow,
    /// It waits for approvals.
    Wait,
    /// It is denied.
    Deny,
}

impl Fate {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Allow, Self::Wait, Self::Deny];

    /// Its name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Wait => "wait",
            Self::Deny => "deny",
        }
    }
}

/// What matters of a decision here.
#[derive(Debug, Clone)]
pub(crate) struct Ruling {
    fate: Fate,
    reason: &'static str,
    rule: Option<RuleId>,
    approvals: Vec<String>,
}

impl Ruling {
    /// Of a decision for which no approval was given yet.
    pub(crate) fn of(Decision { verdict, reason, rule, approvals, .. }: &Decision) -> Self {
        let fate = match reason {
            Reason::ApprovalRequired => Fate::Wait,
            _ if verdict.is_allow() => Fate::Allow,
            _ => Fate::Deny,
        };
        Self { fate, reason: reason.label(), rule: rule.clone(), approvals: approvals.clone() }
    }

    fn is_as(&self, other: &Self) -> bool {
        self.fate == other.fate && (self.fate != Fate::Wait || self.approvals == other.approvals)
    }
}

/// What the calls of one difference have in common.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Difference {
    /// Who called.
    pub agent: String,
    /// What was called.
    pub method: String,
    /// What became of it.
    pub now: Fate,
    /// What would become of it.
    pub would: Fate,
    /// Why it would: a [`Reason::label`].
    pub reason: String,
    /// The rule that would decide, with its file and line, or if there is none, the one that decides now.
    #[serde(default)]
    pub rule: String,
}

impl Difference {
    fn bytes(&self) -> usize {
        [&self.agent, &self.method, &self.reason, &self.rule].iter().map(|text| text.len()).sum()
    }
}

/// How many calls there were of a difference.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counted {
    /// What they have in common.
    #[serde(flatten)]
    pub difference: Difference,
    /// How many.
    pub calls: u64,
}

/// How many calls would have come out as what, by what became of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Total {
    /// What became of them.
    pub now: Fate,
    /// What would have become of them.
    pub would: Fate,
    /// How many.
    pub calls: u64,
}

/// What a replica says of a comparison.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Comparison {
    /// The revision in force, with which it is compared.
    pub against: String,
    /// Since when, in milliseconds since the Unix epoch.
    pub since_ms: u64,
    /// Calls that both have decided.
    pub compared: u64,
    /// Calls that were not compared, because there was no time or no room for it.
    pub skipped: u64,
    /// Those of the compared ones that would come out otherwise, by how.
    pub totals: Vec<Total>,
    /// Why nothing is compared any more, if so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<String>,
    /// What they have in common, the most frequent first; empty if that was not asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub differences: Vec<Counted>,
    /// Calls that differ and are in none of the rows, because there was no room for one.
    #[serde(default)]
    pub further: u64,
}

impl Comparison {
    /// Calls that would come out otherwise.
    #[must_use]
    pub fn differ(&self) -> u64 {
        self.totals.iter().fold(0, |sum, total| sum.saturating_add(total.calls))
    }
}

/// Counts differences.
#[derive(Debug, Default)]
pub(super) struct Tally {
    compared: u64,
    totals: BTreeMap<(Fate, Fate), u64>,
    rows: BTreeMap<Difference, u64>,
    /// INVARIANT: the bytes of the texts of `rows`, and how many rows each agent has; none has 0.
    bytes: usize,
    by_agent: BTreeMap<String, usize>,
    further: u64,
    pub(super) ended: Option<String>,
}

impl Tally {
    /// Counts a call that both have decided.
    pub(super) fn count(&mut self, agent: &str, method: &str, now: &Ruling, would: &Ruling) {
        self.compared += 1;
        if now.is_as(would) {
            return;
        }
        *self.totals.entry((now.fate, would.fate)).or_default() += 1;
        let rule = would.rule.as_ref().or(now.rule.as_ref());
        let difference = Difference {
            agent: agent.to_owned(),
            method: method.to_owned(),
            now: now.fate,
            would: would.fate,
            reason: would.reason.to_owned(),
            rule: rule.map(|rule| brief(&rule.to_string()).chars().take(MAX_RULE).collect()).unwrap_or_default(),
        };
        if let Some(calls) = self.rows.get_mut(&difference) {
            *calls += 1;
            return;
        }
        let own = self.by_agent.get(agent).copied().unwrap_or_default();
        let bytes = self.bytes + difference.bytes();
        if self.rows.len() >= MAX_ROWS || own >= MAX_ROWS_OF_AGENT || bytes > MAX_ROW_BYTES {
            self.further += 1;
            return;
        }
        self.bytes = bytes;
        self.by_agent.insert(agent.to_owned(), own + 1);
        self.rows.insert(difference, 1);
    }

    /// What is counted so far, with or without the rows.
    pub(super) fn told(&self, (against, since_ms): (String, u64), with_rows: bool) -> Comparison {
        let rows = self.rows.iter().filter(|_| with_rows);
        let mut differences: Vec<_> =
            rows.map(|(difference, calls)| Counted { difference: difference.clone(), calls: *calls }).collect();
        differences.sort_by_key(|counted| std::cmp::Reverse(counted.calls));
        let totals = self.totals.iter().map(|((now, would), calls)| Total { now: *now, would: *would, calls: *calls });
        Comparison {
            against,
            since_ms,
            compared: self.compared,
            skipped: 0,
            totals: totals.collect(),
            ended: self.ended.clone(),
            differences,
            further: self.further,
        }
    }
}

/// The most rows of differences, and of those of one agent: a report of all of them fits into a message of 256 KiB.
const MAX_ROWS: usize = 256;
const MAX_ROWS_OF_AGENT: usize = 32;
/// The bytes of all their texts.
const MAX_ROW_BYTES: usize = 64 * 1024;
/// How many characters of a rule's name and place are kept.
const MAX_RULE: usize = 200;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::policy::model::Location;

    fn ruling(fate: Fate, rule: &str) -> Ruling {
        let at = Location { file: "a.toml".into(), line: 7 };
        Ruling { fate, reason: "allowed_by", rule: Some(RuleId::new(rule, &at)), approvals: Vec::new() }
    }

    #[test]
    fn equal_fates_are_no_difference_and_others_are_counted_by_what_they_have_in_common() {
        let mut tally = Tally::default();
        let (allow, deny) = (ruling(Fate::Allow, "a"), ruling(Fate::Deny, "b"));
        let waits = |names: &[&str]| Ruling {
            approvals: names.iter().map(|name| (*name).to_owned()).collect(),
            ..ruling(Fate::Wait, "c")
        };
        tally.count("ann", "bank/pay", &allow, &ruling(Fate::Allow, "other"));
        tally.count("ann", "bank/pay", &deny, &deny);
        tally.count("ann", "bank/pay", &waits(&["one"]), &waits(&["one"]));
        assert_eq!(tally.told((String::new(), 0), true).differ(), 0);
        for _ in 0..2 {
            tally.count("ann", "bank/pay", &allow, &deny);
        }
        tally.count("ann", "bank/pay", &waits(&["one"]), &waits(&["two"]));
        tally.count("bob", "bank/pay", &Ruling { rule: None, ..deny.clone() }, &allow);
        tally.count("bob", "bank/pay", &allow, &Ruling { rule: None, reason: "no_rule", ..deny.clone() });
        let told = tally.told((String::new(), 0), true);
        assert_eq!((told.compared, told.differ(), told.further), (8, 5, 0));
        let first = told.differences.first().unwrap();
        let ann = ("ann", Fate::Allow, Fate::Deny, "`b` (a.toml:7)", 2);
        let Difference { agent, now, would, rule, .. } = &first.difference;
        assert_eq!((agent.as_str(), *now, *would, rule.as_str(), first.calls), ann);
        // Where nothing decides, the rule that no longer does is named.
        let left = told.differences.iter().find(|one| one.difference.reason == "no_rule").unwrap();
        assert_eq!(left.difference.rule, "`a` (a.toml:7)");
        assert!(tally.told((String::new(), 0), false).differences.is_empty());
    }

    #[test]
    fn when_the_table_is_full_all_are_counted_and_no_agent_takes_the_room_of_others() {
        let mut tally = Tally::default();
        let deny = ruling(Fate::Deny, "b");
        for number in 0..1_000 {
            tally.count("greedy", &format!("m/{number}"), &ruling(Fate::Allow, "a"), &deny);
        }
        assert_eq!((tally.rows.len(), tally.further), (MAX_ROWS_OF_AGENT, 1_000 - 32));
        for number in 0..1_000 {
            tally.count(&format!("agent-{number}"), "m/0", &ruling(Fate::Allow, "a"), &deny);
        }
        assert_eq!(tally.rows.len(), MAX_ROWS);
        tally.count("greedy", "m/0", &ruling(Fate::Allow, "a"), &deny);
        let told = tally.told((String::new(), 0), true);
        let in_rows: u64 = told.differences.iter().map(|row| row.calls).sum();
        assert_eq!((told.differ(), in_rows + told.further), (2_001, 2_001));
        // The longest names, each character of which is escaped.
        let mut tally = Tally::default();
        let long = ruling(Fate::Deny, &"\u{1f980}\u{1}".repeat(50_000));
        for number in 0..1_000 {
            let agent = format!("{}{number}", "a".repeat(60));
            tally.count(&agent, &"m".repeat(128), &ruling(Fate::Allow, "a"), &long);
        }
        assert!(tally.bytes <= MAX_ROW_BYTES && tally.rows.len() > 100, "{}", tally.bytes);
        let text = serde_json::to_string(&tally.told((String::new(), 0), true)).unwrap();
        assert!(text.len() < 128 * 1024, "{}", text.len());
    }
}
