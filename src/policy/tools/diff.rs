//! What changes from one policy to another, for each group of callers and each method.
//! Never calls two policies equal because their words are alike: rules are compared as they are evaluated.

use std::collections::BTreeSet;
use std::fmt;

use cedar_policy::pst::{BinaryOp, Expr, Literal};
use serde::Serialize;

use super::access::{Access, EffectiveRules, Residual};
use super::caller_group::CallerGroup;
use super::structure;
use super::structure::RuleChange;
use crate::policy::cedar::expr;
use crate::policy::engine::PolicySet;
use crate::policy::language::{Constraint, understood};
use crate::policy::model::{Condition, Decimal, Delegation, Effect, Revision, Rule};

/// What changes from one policy to another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Diff {
    /// The first policy.
    pub old: Revision,
    /// The second policy.
    pub new: Revision,
    /// Everything that changes for callers, by method.
    pub changes: Vec<Change>,
    /// Rules that differ and that `changes` does not mention.
    pub rules: Vec<RuleChange>,
    /// What differs besides the rules, in sentences: methods, parameters, claims, roles and what files grant.
    pub surroundings: Vec<String>,
}

/// A group of callers for which the rules of one method change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Change {
    /// The method.
    pub method: String,
    /// The callers.
    pub callers: CallerGroup,
    /// What they could do.
    pub old: Access,
    /// What they can do.
    pub new: Access,
    /// Whether that is more.
    pub direction: Direction,
    /// What is different, in words.
    pub words: Vec<String>,
}

/// Whether callers can do more than before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// They can.
    More,
    /// They can do less.
    Less,
    /// It cannot be determined: perhaps both.
    Unclear,
}

impl Change {
    /// Whether the callers can certainly do more than before.
    #[must_use]
    pub fn widens(&self) -> bool {
        self.direction == Direction::More
    }
}

impl Diff {
    /// Compares two policies.
    #[must_use]
    pub fn between(old: &PolicySet, new: &PolicySet) -> Self {
        let callers: BTreeSet<CallerGroup> = old.callers().into_iter().chain(new.callers()).collect();
        let methods: BTreeSet<String> =
            old.methods().names().chain(new.methods().names()).map(ToString::to_string).collect();
        let mut changes = Vec::new();
        let mut told: BTreeSet<String> = BTreeSet::new();
        for method in &methods {
            for callers in &callers {
                let (before, after) = (old.effective_rules(callers, method), new.effective_rules(callers, method));
                let (was, is) = (before.access(), after.access());
                // What is denied to callers who are allowed nothing makes no difference to them.
                if (was, is) == (Access::Denied, Access::Denied) {
                    continue;
                }
                let found = ChangeBuilder::between(&before, &after);
                if found.words.is_empty() && was == is {
                    continue;
                }
                let direction = match is.cmp(&was) {
                    std::cmp::Ordering::Greater => Direction::More,
                    std::cmp::Ordering::Less => Direction::Less,
                    std::cmp::Ordering::Equal => found.direction(),
                };
                told.extend(found.told);
                let (method, callers, words) = (method.clone(), callers.clone(), found.words);
                changes.push(Change { method, callers, old: was, new: is, direction, words });
            }
        }
        let mut rules = structure::rules(old, new);
        rules.retain(|change| !told.contains(&change.rule));
        let surroundings = structure::surroundings(old, new);
        Self { old: old.revision().clone(), new: new.revision().clone(), changes, rules, surroundings }
    }

    /// Whether the two say the same. Names of rules, descriptions, comments and the order of things do not count.
    #[must_use]
    pub fn is_same(&self) -> bool {
        self.changes.is_empty() && self.rules.is_empty() && self.surroundings.is_empty()
    }
}

/// The differences between what the rules say to some callers.
#[derive(Debug, Default)]
struct ChangeBuilder {
    words: Vec<String>,
    /// The names of the rules that the words are about.
    told: Vec<String>,
    directions: Vec<Direction>,
}

impl ChangeBuilder {
    /// Only what a rule does matters, not where it is or what it is called.
    fn between(before: &EffectiveRules<'_>, after: &EffectiveRules<'_>) -> Self {
        let mut found = Self::default();
        let alone = |held: &&Residual<'_>, others: &[Residual<'_>]| !others.iter().any(|other| same(held, other));
        let named_alike = |one: &Rule, other: &Rule| one.effect == other.effect && one.id.name() == other.id.name();
        let old: Vec<&Residual<'_>> = before.held.iter().filter(|held| alone(held, &after.held)).collect();
        let mut new: Vec<&Residual<'_>> = after.held.iter().filter(|held| alone(held, &before.held)).collect();
        for held in old {
            match new.iter().position(|other| named_alike(held.rule, other.rule)) {
                Some(position) => found.changed(held, new.remove(position)),
                None => found.whole("no longer", held, widening(held.rule.effect, false)),
            }
        }
        for held in new {
            found.whole("now", held, widening(held.rule.effect, true));
        }
        found
    }

    fn whole(&mut self, word: &str, held: &Residual<'_>, direction: Direction) {
        let others = match (held.rule.effect, held.rule.delegation) {
            (Effect::Allow, Delegation::Also) => ", on behalf of others, too",
            (Effect::Deny, Delegation::Never) => ", not on behalf of others",
            _ => "",
        };
        self.words.push(format!("{word} {}{others}", held.cell_rule()));
        self.told.push(held.rule.id.name().to_owned());
        self.directions.push(direction);
    }

    fn changed(&mut self, before: &Residual<'_>, after: &Residual<'_>) {
        let (rule, effect) = (after.rule.id.name(), after.rule.effect);
        let gone = conditions_missing(before, after);
        let added = conditions_missing(after, before);
        // Words are cut and unquoted: if they are the same, the conditions themselves show the difference.
        let alike = |part: &Condition, others: &[&Condition]| others.iter().any(|other| other.text == part.text);
        let told = |part: &Condition, others: &[&Condition]| match part.text.strip_prefix("unless ") {
            _ if alike(part, others) => part.expr.to_string(),
            Some(words) => format!("not ({words})"),
            None => part.text.clone(),
        };
        let pairs = gone.iter().flat_map(|old| added.iter().map(move |new| [*old, *new]));
        let moved: Vec<_> = pairs.filter_map(|[old, new]| Some(([old, new], moved(old, new)?))).collect();
        self.words.extend(moved.iter().map(|(_, limit)| format!("`{rule}` ({effect}) limit {limit}")));
        let stays =
            |part: &&&Condition| !moved.iter().flat_map(|(parts, _)| parts).any(|one| std::ptr::eq(*one, **part));
        for (parts, others, word) in [(&gone, &added, "no longer"), (&added, &gone, "now")] {
            let told = parts.iter().filter(stays).map(|part| told(part, others));
            self.words.extend(told.map(|asked| format!("`{rule}` ({effect}) {word} asks that {asked}")));
        }
        match (gone.as_slice(), added.as_slice()) {
            ([], []) => {}
            (_, []) => self.directions.push(widening(effect, true)),
            ([], _) => self.directions.push(widening(effect, false)),
            ([one], [other]) => self.directions.push(match wider(one, other) {
                Some(wider) => widening(effect, wider),
                None => Direction::Unclear,
            }),
            _ => self.directions.push(Direction::Unclear),
        }
        let (was, is) = (before.rule.approval(), after.rule.approval());
        if was != is {
            let now =
                is.map_or("no longer waits for an approval".to_owned(), |name| format!("is now lifted by `{name}`"));
            self.words.push(format!("`{rule}` ({effect}) {now}"));
            self.directions.push(match (was, is) {
                (None, _) => Direction::More,
                (_, None) => Direction::Less,
                _ => Direction::Unclear,
            });
        }
        let (was, is) = (before.rule.delegation, after.rule.delegation);
        if was != is {
            let now = match is {
                Delegation::Never => "is now for calls in the agent's own name only",
                Delegation::Also => "is now for calls on behalf of others, too",
                Delegation::Only => "is now for calls on behalf of others only",
            };
            self.words.push(format!("`{rule}` ({effect}) {now}"));
            self.directions.push(match (was, is) {
                (_, Delegation::Also) => widening(effect, true),
                (Delegation::Also, _) => widening(effect, false),
                _ => Direction::Unclear,
            });
        }
        self.told.push(rule.to_owned());
    }

    fn direction(&self) -> Direction {
        match self.directions.split_first() {
            Some((first, rest)) if rest.iter().all(|other| other == first) => *first,
            _ => Direction::Unclear,
        }
    }
}

/// How a limit has moved, if only the number at the end of a condition differs.
fn moved(old: &Condition, new: &Condition) -> Option<String> {
    let [(asked, was), (same, is)] = [old, new].map(|part| part.text.rsplit_once(' ').unwrap_or_default());
    let (before, after) = (Decimal::parse(was)?, Decimal::parse(is)?);
    let limit = asked.ends_with(" at most") || asked.ends_with(" at least");
    let word = if after > before { "raised" } else { "lowered" };
    (asked == same && before != after && limit && !asked.starts_with("unless "))
        .then(|| format!("{word}: {asked} {was} -> {is}"))
}

/// What it means for callers that a rule applies to more or to fewer calls.
fn widening(effect: Effect, more: bool) -> Direction {
    if (effect == Effect::Allow) == more { Direction::More } else { Direction::Less }
}

fn same(one: &Residual<'_>, other: &Residual<'_>) -> bool {
    one.rule.effect == other.rule.effect
        && one.rule.approval() == other.rule.approval()
        && one.rule.delegation == other.rule.delegation
        && structure::ask_the_same(one.conditions(), other.conditions())
}

/// The conditions of `one` that `other` does not have.
fn conditions_missing<'a>(one: &'a Residual<'_>, other: &Residual<'_>) -> Vec<&'a Condition> {
    one.conditions().filter(|part| !other.conditions().any(|twin| twin.expr == part.expr)).collect()
}

/// Whether a condition holds more often than another one, if they differ in one number or list.
fn wider(before: &Condition, after: &Condition) -> Option<bool> {
    let (old, new) = (expr::conjuncts(&before.expr), expr::conjuncts(&after.expr));
    let mut different = old.iter().zip(&new).filter(|(old, new)| old != new);
    let (old, new) = different.next().filter(|_| old.len() == new.len())?;
    if different.next().is_some() {
        return None;
    }
    match (understood(old, true), understood(new, true)) {
        (Some((one, Constraint::AtMost(was))), Some((other, Constraint::AtMost(is)))) if one == other => {
            return Some(is > was);
        }
        (Some((one, Constraint::AtLeast(was))), Some((other, Constraint::AtLeast(is)))) if one == other => {
            return Some(is < was);
        }
        _ => {}
    }
    let Expr::BinaryOp { op, left, right } = old.as_ref() else { return None };
    let Expr::BinaryOp { op: same, left: now_left, right: now_right } = new.as_ref() else { return None };
    if op != same {
        return None;
    }
    let bound = |side: &Expr| match side {
        Expr::Literal(Literal::Long(bound)) if left == now_left => Some(*bound),
        _ => None,
    };
    match op {
        BinaryOp::LessEq | BinaryOp::Less => Some(bound(now_right)? > bound(right)?),
        BinaryOp::GreaterEq | BinaryOp::Greater => Some(bound(now_right)? < bound(right)?),
        BinaryOp::Contains if right == now_right => match (left.as_ref(), now_left.as_ref()) {
            (Expr::Set(was), Expr::Set(is)) if was.iter().all(|value| is.contains(value)) => Some(true),
            (Expr::Set(was), Expr::Set(is)) if is.iter().all(|value| was.contains(value)) => Some(false),
            _ => None,
        },
        _ => None,
    }
}

impl fmt::Display for Diff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "policy {} -> {}", self.old, self.new)?;
        if self.is_same() {
            writeln!(f, "nobody can do more or less than before")?;
        }
        for change in &self.changes {
            let summary = if change.old == change.new {
                format!("{}, differently", change.new)
            } else {
                format!("{} -> {}", change.old, change.new)
            };
            let sign = match change.direction {
                Direction::More => '+',
                Direction::Less => '-',
                Direction::Unclear => '?',
            };
            writeln!(f, "\n{sign} {} {}: {summary}", change.method, change.callers)?;
            for words in &change.words {
                writeln!(f, "    {words}")?;
            }
        }
        if !self.changes.is_empty() {
            writeln!(f, "\n+ more than before, - less, ? cannot be told")?;
        }
        if !self.rules.is_empty() {
            let count = match self.rules.len() {
                1 => "1 rule".to_owned(),
                several => format!("{several} rules"),
            };
            writeln!(f, "\n{count} changed in ways that this list does not show:")?;
            for change in &self.rules {
                writeln!(f, "    `{}`: {}", change.rule.escape_debug(), change.parts.join(", "))?;
            }
        }
        if !self.surroundings.is_empty() {
            writeln!(f, "\ndeclarations and grants that changed:")?;
            for words in &self.surroundings {
                writeln!(f, "    {words}")?;
            }
        }
        Ok(())
    }
}
