//! Who can call what, worked out from the rules without any call: for reviewers.
//! Never replaces a decision: what depends on the call stays a condition, in words.

use std::collections::BTreeSet;
use std::fmt;

use serde::Serialize;

use super::cedar;
use super::expr;
use super::revision::Revision;
use super::rule::{Delegation, Effect, Mode, Part, PartKind, Rule, RuleId, Whom};
use super::set::PolicySet;
use super::settle::{self, View};

/// Callers that are looked at together.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Callers {
    /// Callers of whom nothing is known.
    Anyone,
    /// Callers that have this role, whatever else they have.
    Role(String),
    /// This agent (or subject) with the roles that files grant it, whatever its token adds.
    Agent(String),
}

impl fmt::Display for Callers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Anyone => f.pad("anyone"),
            Self::Role(name) => f.pad(&format!("role {}", name.escape_debug())),
            Self::Agent(name) => f.pad(&format!("agent {}", name.escape_debug())),
        }
    }
}

/// Whether callers can call a method.
///
/// A caller is in several columns: that of anyone, one for each role that it has, and that of its name if files name
/// it. What no rule allows in any of them is denied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Access {
    /// Always in their own name, if parameters and claims are of their declared types.
    Allowed,
    /// It depends on the call, or on what else the caller is.
    Conditional,
    /// Never by what is known of them: another role or name of the same caller may allow it.
    Denied,
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Allowed => "allowed",
            Self::Conditional => "conditional",
            Self::Denied => "denied",
        })
    }
}

/// What callers can do with a method, and by which rules.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Cell {
    /// The summary.
    pub access: Access,
    /// The enforced rules that are about these callers and this method.
    pub rules: Vec<CellRule>,
}

/// One rule of a [`Cell`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CellRule {
    /// The rule.
    pub rule: RuleId,
    /// What it does.
    pub effect: Effect,
    /// What must hold for it to apply; nothing if it always does.
    pub conditions: Vec<String>,
}

impl fmt::Display for CellRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} by {}", self.effect, self.rule)?;
        // A Cedar `unless` brings its own word.
        let (unless, when): (Vec<&String>, Vec<&String>) =
            self.conditions.iter().partition(|condition| condition.starts_with("unless "));
        for (position, condition) in when.into_iter().enumerate() {
            write!(f, " {} {condition}", if position == 0 { "if" } else { "and" })?;
        }
        for (position, condition) in unless.into_iter().enumerate() {
            write!(f, "{} {condition}", if position == 0 { "" } else { " and" })?;
        }
        Ok(())
    }
}

/// Every group of callers against every method.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Matrix {
    /// The policy it was made from.
    pub revision: Revision,
    /// The columns.
    pub callers: Vec<Callers>,
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
    pub cells: Vec<Cell>,
}

impl PolicySet {
    /// Every group of callers that the policy knows: anyone, its roles, and the agents it names.
    #[must_use]
    pub fn callers(&self) -> Vec<Callers> {
        let ground = self.ground();
        let mut agents: BTreeSet<String> = ground.granted.keys().cloned().collect();
        for rule in &ground.rules {
            agents.extend(rule.who.iter().filter_map(|whom| match whom {
                Whom::Agent(name) => Some(name.clone()),
                _ => None,
            }));
            agents.extend(rule.parts.iter().flat_map(|part| settle::agents_in(&part.condition)));
        }
        let roles = ground.vocabulary.roles.keys().map(|name| Callers::Role(name.clone()));
        let agents = agents.into_iter().map(Callers::Agent);
        [Callers::Anyone].into_iter().chain(roles).chain(agents).collect()
    }

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
            })
            .collect();
        Matrix { revision: self.revision().clone(), callers, rows }
    }

    /// The callers that can call a method, always or under conditions. Nobody else can.
    #[must_use]
    pub fn who_can(&self, method: &str) -> Vec<(Callers, Cell)> {
        let cells = self.callers().into_iter().map(|callers| {
            let cell = self.access(&callers, method);
            (callers, cell)
        });
        cells.filter(|(_, cell)| cell.access != Access::Denied).collect()
    }

    /// The methods that some callers can call, always or under conditions.
    #[must_use]
    pub fn can(&self, callers: &Callers) -> Vec<(String, Cell)> {
        let cells = self.methods().names().map(|name| (name.to_string(), self.access(callers, name.as_str())));
        cells.filter(|(_, cell)| cell.access != Access::Denied).collect()
    }

    /// What some callers can do with one method.
    #[must_use]
    pub fn access(&self, callers: &Callers, method: &str) -> Cell {
        self.standing(callers, method).cell()
    }

    /// The enforced rules of a method that can matter to these callers.
    pub(crate) fn standing(&self, callers: &Callers, method: &str) -> Standing<'_> {
        let mut standing = Standing::default();
        let Some(slice) = self.methods().contains(method).then(|| self.slice_for(method)).flatten() else {
            return standing;
        };
        let ground = self.ground();
        let view = View::new(ground, slice, callers);
        let bare = view.bare();
        let rules = slice.rules.iter().filter_map(|position| ground.rules.get(*position));
        let rules: Vec<&Rule> = rules.filter(|rule| rule.mode == Mode::Enforce).collect();
        // In calls on behalf of others deny rules for calls in the own name do not apply, if anything allows those.
        let for_others = |rule: &&Rule| rule.effect == Effect::Allow && rule.delegation() != Delegation::Never;
        let own_name_only = !rules.iter().any(for_others);
        for rule in rules {
            let Ok(who) = cedar::who_part(rule) else { continue };
            let parts = || [&who].into_iter().chain(&rule.parts).filter(|part| part.kind == PartKind::Condition);
            if parts().any(|part| view.settled(&part.condition) == Some(false)) {
                continue;
            }
            let fails = parts().any(|part| expr::can_fail(&part.condition).is_some());
            // What a rule allows to other roles and names is told in their columns; what it denies them is told here,
            // because these callers may be those, too. So is a rule that can fail, which denies.
            let told_elsewhere = parts().any(|part| bare.settled(&part.condition) == Some(false))
                && !parts().any(|part| view.is_named_in(&part.condition));
            if rule.effect == Effect::Allow && told_elsewhere && !fails {
                continue;
            }
            let open = |part: &Part| match (part.kind, rule.effect) {
                (PartKind::Condition, _) => view.settled(&part.condition).is_none(),
                (PartKind::Delegation(Delegation::Only), _) => true,
                (PartKind::Delegation(Delegation::Never), Effect::Deny) => !own_name_only,
                (PartKind::Delegation(_), _) => false,
            };
            let asks = [&who].into_iter().chain(&rule.parts).filter(|part| open(part));
            standing.fails |= fails;
            standing.held.push(Held { rule, asks: asks.cloned().collect() });
        }
        standing
    }
}

/// What the rules say to some callers about one method.
#[derive(Debug, Default)]
pub(crate) struct Standing<'a> {
    pub(crate) held: Vec<Held<'a>>,
    /// Some rule may fail, which denies.
    fails: bool,
}

/// A rule that can matter, with what is left of its conditions.
#[derive(Debug)]
pub(crate) struct Held<'a> {
    pub(crate) rule: &'a Rule,
    pub(crate) asks: Vec<Part>,
}

impl Held<'_> {
    pub(crate) fn cell_rule(&self) -> CellRule {
        let conditions = self.asks.iter().map(|part| part.words.clone()).collect();
        CellRule { rule: self.rule.id.clone(), effect: self.rule.effect, conditions }
    }
}

impl Standing<'_> {
    fn any(&self, effect: Effect) -> bool {
        self.held.iter().any(|held| held.rule.effect == effect)
    }

    fn always(&self, effect: Effect) -> bool {
        self.held.iter().any(|held| held.rule.effect == effect && held.asks.is_empty())
    }

    pub(crate) fn access(&self) -> Access {
        if self.always(Effect::Deny) || !self.any(Effect::Allow) {
            Access::Denied
        } else if self.always(Effect::Allow) && !self.any(Effect::Deny) && !self.fails {
            Access::Allowed
        } else {
            Access::Conditional
        }
    }

    fn cell(&self) -> Cell {
        Cell { access: self.access(), rules: self.held.iter().map(Held::cell_rule).collect() }
    }
}

/// The width of a terminal, which tables keep to.
const LINE: usize = 80;

/// What the words of the matrix mean. A caller in several columns must not take one `-` for the last word.
const LEGEND: &str = "\
yes: all calls in the caller's own name, parameters and claims of their types
if:  under the conditions below
-:   never, unless another role or the name of the same caller allows it";

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
                let words = row.cells.iter().map(|cell| match cell.access {
                    Access::Allowed => "yes",
                    Access::Conditional => "if",
                    Access::Denied => "-",
                });
                writeln!(f, "{}", line(&row.method, &mut words.into_iter()))?;
            }
            from = columns.end;
        }
        writeln!(f, "\n{LEGEND}\nPolicy revision {}.", self.revision)?;
        for row in &self.rows {
            let conditional =
                self.callers.iter().zip(&row.cells).filter(|(_, cell)| cell.access == Access::Conditional);
            for (callers, cell) in conditional {
                writeln!(f, "\n{} {}", row.method, callers)?;
                for rule in &cell.rules {
                    writeln!(f, "  {rule}")?;
                }
            }
        }
        Ok(())
    }
}
