//! Who can call what, derived from the rules without any call: for reviewers.
//! Never replaces a decision: what depends on the call stays a condition, in words.

use std::fmt;

use serde::Serialize;

use super::caller_group::CallerGroup;
use super::partial::KnownCaller;
use crate::policy::cedar::{compile, references};
use crate::policy::engine::PolicySet;
use crate::policy::model::{Budget, Condition, Delegation, Effect, Mode, Revision, Rule, RuleId};

/// Whether callers can call a method.
///
/// A caller is in several columns: that of anyone, one for each role that it has, and that of its name if files name
/// it. What no rule allows in any of them is denied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Access {
    /// Never, by what is known about them: another role or name of the same caller may allow it.
    Denied,
    /// It depends on the call, or on what else the caller is.
    Conditional,
    /// Always in their own name, if parameters and claims are of their declared types.
    Allowed,
}

impl Access {}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// What callers can do with a method, and by which rules.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AccessCell {
    /// The summary.
    pub access: Access,
    /// The enforced rules that are about these callers and this method.
    pub rules: Vec<CellRule>,
}

impl AccessCell {
    /// Whether a rule denies every call of these callers, whatever else they have.
    #[must_use]
    pub fn is_forbidden(&self) -> bool {
        let always = |rule: &CellRule| {
            rule.effect == Effect::Deny && rule.conditions.is_empty() && rule.unless_approved.is_none()
        };
        self.access == Access::Denied && self.rules.iter().any(always)
    }

    /// As shown in tables.
    pub(crate) fn word(&self) -> &'static str {
        match self.access {
            Access::Allowed => "yes",
            Access::Conditional => "if",
            Access::Denied if self.is_forbidden() => "no",
            Access::Denied => "-",
        }
    }
}

/// One rule of a [`AccessCell`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CellRule {
    /// The rule.
    pub rule: RuleId,
    /// What it does.
    pub effect: Effect,
    /// What must hold for it to apply; nothing if it always does.
    pub conditions: Vec<String>,
    /// The approval with which calls are let through that it denies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unless_approved: Option<String>,
}

impl fmt::Display for CellRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} by {}", self.effect, self.rule)?;
        // A Cedar `unless` brings its own word.
        let (unless, when): (Vec<&str>, Vec<&str>) =
            self.conditions.iter().map(String::as_str).partition(|condition| condition.starts_with("unless "));
        for (word, conditions) in [("if ", when), ("", unless)] {
            if !conditions.is_empty() {
                write!(f, " {word}{}", conditions.join(" and "))?;
            }
        }
        self.unless_approved.as_ref().map_or(Ok(()), |name| write!(f, ", until approved: `{name}`"))
    }
}

/// Every group of callers against every method.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Matrix {
    /// The policy it was made from.
    pub revision: Revision,
    /// The columns.
    pub callers: Vec<CallerGroup>,
    /// The rows.
    pub rows: Vec<MatrixRow>,
}

/// One method of a [`Matrix`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MatrixRow {
    /// The method.
    pub method: String,
    /// Its description, if a file has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// One for each of [`Matrix::callers`].
    pub cells: Vec<AccessCell>,
    /// The budgets that its calls are charged to, if they are of the budgets' callers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub budgets: Vec<Budget>,
}

impl PolicySet {
    /// All callers against all methods.
    #[must_use]
    pub fn matrix(&self) -> Matrix {
        let callers = self.callers();
        let rows = self
            .methods()
            .iter()
            .map(|(name, method)| MatrixRow {
                method: name.to_string(),
                description: method.description.clone(),
                cells: callers.iter().map(|callers| self.access(callers, name.as_str())).collect(),
                budgets: self.budgets_of(name.as_str()).cloned().collect(),
            })
            .collect();
        Matrix { revision: self.revision().clone(), callers, rows }
    }

    /// The callers that can call a method, always or under conditions. Nobody else can.
    #[must_use]
    pub fn who_can(&self, method: &str) -> Vec<(CallerGroup, AccessCell)> {
        let cells = self.callers().into_iter().map(|callers| {
            let cell = self.access(&callers, method);
            (callers, cell)
        });
        cells.filter(|(_, cell)| cell.access != Access::Denied).collect()
    }

    /// The methods that some callers can call, always or under conditions.
    #[must_use]
    pub fn can(&self, callers: &CallerGroup) -> Vec<(String, AccessCell)> {
        let cells = self.methods().names().map(|name| (name.to_string(), self.access(callers, name.as_str())));
        cells.filter(|(_, cell)| cell.access != Access::Denied).collect()
    }

    /// What some callers can do with one method.
    #[must_use]
    pub fn access(&self, callers: &CallerGroup, method: &str) -> AccessCell {
        let rules = self.effective_rules(callers, method);
        AccessCell { access: rules.access(), rules: rules.held.iter().map(Residual::cell_rule).collect() }
    }

    /// The enforced rules of a method that can matter to these callers.
    pub(crate) fn effective_rules(&self, callers: &CallerGroup, method: &str) -> EffectiveRules<'_> {
        let mut effective_rules = EffectiveRules::default();
        let Some(policies) = self.by_method.get(method) else { return effective_rules };
        effective_rules.open = policies.open;
        let checked = self.checked();
        let known = KnownCaller::new(checked, policies, callers);
        let closed_world = known.closed_world();
        let rules = policies.rules.iter().filter_map(|position| checked.rules.get(*position));
        let rules: Vec<&Rule> = rules.filter(|rule| rule.mode == Mode::Enforce).collect();
        // Deny rules for calls in the agent's own name do not apply to calls on behalf of others, if anything allows
        // those.
        let for_others = |rule: &&Rule| rule.effect == Effect::Allow && rule.delegation != Delegation::Never;
        let own_name_only = !rules.iter().any(for_others);
        for rule in rules {
            let who = compile::callers_condition(rule);
            let parts = || [&who].into_iter().chain(&rule.conditions);
            if parts().any(|part| known.evaluate(&part.expr) == Some(false)) {
                continue;
            }
            let fails = parts().any(|part| references::can_fail(&part.expr).is_some());
            // What a rule allows to other roles and names is shown in their columns; what it denies them is shown here,
            // because these callers may be those, too. So is a rule that can fail, because failing denies.
            let told_elsewhere = parts().any(|part| closed_world.evaluate(&part.expr) == Some(false))
                && !parts().any(|part| known.is_named_in(&part.expr));
            if rule.effect == Effect::Allow && told_elsewhere && !fails {
                continue;
            }
            let open = |part: &&Condition| known.evaluate(&part.expr).is_none();
            let delegation = compile::delegation(rule).filter(|_| match rule.delegation {
                Delegation::Only => true,
                Delegation::Never => rule.effect == Effect::Deny && !own_name_only,
                Delegation::Also => false,
            });
            effective_rules.fails |= fails;
            effective_rules.held.push(Residual {
                rule,
                who: Some(&who).filter(open).cloned(),
                delegation,
                parts: rule.conditions.iter().filter(open).cloned().collect(),
            });
        }
        effective_rules
    }
}

/// What the rules say to some callers about one method.
#[derive(Debug, Default)]
pub(crate) struct EffectiveRules<'a> {
    pub(crate) held: Vec<Residual<'a>>,
    /// Some rule may fail, which denies.
    fails: bool,
    /// Anything that no rule denies is allowed.
    open: bool,
}

/// A rule that can matter, with what is left of its conditions.
#[derive(Debug)]
pub(crate) struct Residual<'a> {
    pub(crate) rule: &'a Rule,
    who: Option<Condition>,
    delegation: Option<Condition>,
    parts: Vec<Condition>,
}

impl Residual<'_> {
    pub(crate) fn cell_rule(&self) -> CellRule {
        let conditions = self.asks().map(|part| part.text.clone()).collect();
        let unless_approved = self.rule.approval().map(ToOwned::to_owned);
        CellRule { rule: self.rule.id.clone(), effect: self.rule.effect, conditions, unless_approved }
    }

    fn asks(&self) -> impl Iterator<Item = &Condition> {
        self.who.iter().chain(&self.delegation).chain(&self.parts)
    }

    /// What is left, except on whose behalf the call is made.
    pub(crate) fn conditions(&self) -> impl Iterator<Item = &Condition> {
        self.who.iter().chain(&self.parts)
    }
}

impl EffectiveRules<'_> {
    fn any(&self, effect: Effect) -> bool {
        self.held.iter().any(|held| held.rule.effect == effect)
    }

    /// Whether a rule does this to every call, and no approval changes that.
    fn always(&self, effect: Effect) -> bool {
        let mut held = self.held.iter().filter(|held| held.rule.effect == effect);
        held.any(|held| held.asks().next().is_none() && held.rule.approval().is_none())
    }

    pub(crate) fn access(&self) -> Access {
        if self.always(Effect::Deny) || !(self.open || self.any(Effect::Allow)) {
            Access::Denied
        } else if (self.open || self.always(Effect::Allow)) && !self.any(Effect::Deny) && !self.fails {
            Access::Allowed
        } else {
            Access::Conditional
        }
    }
}

/// The width of a terminal, which tables keep to.
const LINE: usize = 80;

/// What the words of the matrix mean. A caller in several columns must not take one `-` for the final answer, and may take
/// one `no` for it.
const LEGEND: &str = "\
yes: all calls in the caller's own name, parameters and claims of their types
if:  under the conditions below, told once for callers who have the same
-:   no rule allows it, unless another role or the name of the same caller does
no:  never: a rule denies it, whatever other roles and names allow";

impl fmt::Display for Matrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widest = self.rows.iter().map(|row| row.method.len()).max().unwrap_or_default().max("method".len());
        let headings: Vec<String> = self.callers.iter().map(ToString::to_string).collect();
        let widths: Vec<usize> = headings.iter().map(|heading| heading.chars().count().max(3)).collect();
        // As many columns side by side as a terminal shows, the others below.
        let mut from = 0;
        while from < widths.len().max(1) {
            let mut line = widest;
            let fits = widths.iter().skip(from).take_while(|width| {
                line += 2 + **width;
                line <= LINE
            });
            let columns = from..from + fits.count().max(1);
            let line = |first: &str, cells: &mut dyn Iterator<Item = &str>| {
                let cells = cells.zip(&widths).skip(columns.start).take(columns.len());
                let cells = cells.map(|(cell, width)| format!("  {cell:width$}"));
                format!("{first:widest$}{}", cells.collect::<String>()).trim_end().to_owned()
            };
            if from > 0 {
                writeln!(f)?;
            }
            writeln!(f, "{}", line("method", &mut headings.iter().map(String::as_str)))?;
            for row in &self.rows {
                writeln!(f, "{}", line(&row.method, &mut row.cells.iter().map(AccessCell::word)))?;
            }
            from = columns.end;
        }
        writeln!(f, "\n{LEGEND}\nPolicy revision {}.", self.revision)?;
        for row in &self.rows {
            let mut shared: Vec<(Vec<String>, &AccessCell)> = Vec::new();
            for (callers, cell) in self.callers.iter().zip(&row.cells) {
                if cell.access == Access::Conditional {
                    match shared.iter_mut().find(|(_, other)| *other == cell) {
                        Some((all, _)) => all.push(callers.to_string()),
                        None => shared.push((vec![callers.to_string()], cell)),
                    }
                }
            }
            for (callers, cell) in shared {
                writeln!(f, "\n{}  {}", row.method, callers.join(", "))?;
                for rule in &cell.rules {
                    writeln!(f, "  {rule}")?;
                }
            }
            if !row.budgets.is_empty() {
                writeln!(f, "\n{}  once it is allowed", row.method)?;
                for budget in &row.budgets {
                    writeln!(f, "  budget {budget}")?;
                }
            }
        }
        Ok(())
    }
}
