//! What changes from one policy to another, for each group of callers and each method.
//! Never calls two policies equal because their files are alike, or different because they are not.

use std::collections::BTreeSet;
use std::fmt;

use serde::Serialize;

use super::review::{Access, Callers, Cell, CellRule};
use super::revision::Revision;
use super::set::PolicySet;

/// What changes from one policy to another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Diff {
    /// The first policy.
    pub old: Revision,
    /// The second policy.
    pub new: Revision,
    /// Everything that changes, by method.
    pub changes: Vec<Change>,
}

/// A group of callers for which the rules of one method change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Change {
    /// The method.
    pub method: String,
    /// The callers.
    pub callers: Callers,
    /// What they could do.
    pub old: Access,
    /// What they can do.
    pub new: Access,
    /// What is different, in words.
    pub words: Vec<String>,
}

impl Change {
    /// Whether the callers can do more than before, as far as the summaries tell.
    #[must_use]
    pub fn widens(&self) -> bool {
        let rank = |access| match access {
            Access::Denied => 0,
            Access::Conditional => 1,
            Access::Allowed => 2,
        };
        rank(self.new) > rank(self.old)
    }
}

impl Diff {
    /// Compares two policies.
    #[must_use]
    pub fn between(old: &PolicySet, new: &PolicySet) -> Self {
        let callers: BTreeSet<Callers> = old.callers().into_iter().chain(new.callers()).collect();
        let methods: BTreeSet<String> =
            old.methods().names().chain(new.methods().names()).map(ToString::to_string).collect();
        let mut changes = Vec::new();
        for method in &methods {
            for callers in &callers {
                let (before, after) = (old.access(callers, method), new.access(callers, method));
                let words = compare(&before, &after);
                if !words.is_empty() {
                    changes.push(Change {
                        method: method.clone(),
                        callers: callers.clone(),
                        old: before.access,
                        new: after.access,
                        words,
                    });
                }
            }
        }
        Self { old: old.revision().clone(), new: new.revision().clone(), changes }
    }
}

/// The differences between two cells. Where a rule stands does not matter, only what it is called and does.
fn compare(before: &Cell, after: &Cell) -> Vec<String> {
    let find = |cell: &Cell, rule: &CellRule| -> Option<CellRule> {
        let same = |other: &&CellRule| other.effect == rule.effect && other.rule.name() == rule.rule.name();
        cell.rules.iter().find(same).cloned()
    };
    // A rule with another name and the same content changes nothing.
    let twin = |cell: &Cell, rule: &CellRule| {
        cell.rules.iter().any(|other| other.effect == rule.effect && other.conditions == rule.conditions)
    };
    let mut words = Vec::new();
    for rule in &before.rules {
        match find(after, rule) {
            None if !twin(after, rule) => words.push(format!("no longer {rule}")),
            Some(now) if now.conditions != rule.conditions => {
                let name = rule.rule.name();
                for gone in rule.conditions.iter().filter(|condition| !now.conditions.contains(condition)) {
                    words.push(format!("`{name}` ({}) no longer asks that {gone}", rule.effect));
                }
                for added in now.conditions.iter().filter(|condition| !rule.conditions.contains(condition)) {
                    words.push(format!("`{name}` ({}) now asks that {added}", rule.effect));
                }
            }
            _ => {}
        }
    }
    for rule in after.rules.iter().filter(|rule| find(before, rule).is_none() && !twin(before, rule)) {
        words.push(format!("now {rule}"));
    }
    words
}

impl fmt::Display for Diff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "policy {} -> {}", self.old, self.new)?;
        if self.changes.is_empty() {
            writeln!(f, "nobody can do more or less than before")?;
        }
        for change in &self.changes {
            let summary = if change.old == change.new {
                format!("{}, differently", change.new)
            } else {
                format!("{} -> {}", change.old, change.new)
            };
            let sign = if change.widens() { '+' } else { ' ' };
            writeln!(f, "\n{sign} {} {}: {summary}", change.method, change.callers)?;
            for words in &change.words {
                writeln!(f, "    {words}")?;
            }
        }
        Ok(())
    }
}
