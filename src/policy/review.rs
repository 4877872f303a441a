//! Who can call what, worked out from the rules without any call: for reviewers.
//! Never replaces a decision: what depends on the call stays a condition, in words.

use std::collections::BTreeSet;
use std::fmt;

use serde::Serialize;
use serde_json::Map;

use super::cedar;
use super::decision::Question;
use super::expr::Reads;
use super::revision::Revision;
use super::rule::{Delegation, Effect, Mode, Part, PartKind, Rule, RuleId, Whom};
use super::set::PolicySet;
use super::slice::Slice;
use crate::auth::{Caller, ProofAlgorithm, TokenFacts};
use crate::name::Name;

/// Callers that are looked at together.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Callers {
    /// Callers of whom nothing is known.
    Anyone,
    /// Callers of whom only this role is known.
    Role(String),
    /// This agent (or subject) with the roles that files grant it, and no role from a token.
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

/// Whether callers can call a method in their own name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Access {
    /// Always.
    Allowed,
    /// It depends on the call.
    Conditional,
    /// Never.
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
        if !self.conditions.is_empty() {
            write!(f, " if {}", self.conditions.join(" and "))?;
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
        let mut agents: BTreeSet<&str> = ground.granted.keys().map(String::as_str).collect();
        agents.extend(ground.rules.iter().flat_map(|rule| &rule.who).filter_map(|whom| match whom {
            Whom::Agent(name) => Some(name.as_str()),
            _ => None,
        }));
        let roles = ground.vocabulary.roles.keys().map(|name| Callers::Role(name.clone()));
        let agents = agents.into_iter().map(|name| Callers::Agent(name.to_owned()));
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

    /// The callers that can call a method, always or under conditions.
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
        let mut rules = Vec::new();
        if let Some(slice) = self.methods().contains(method).then(|| self.slice_for(method)).flatten() {
            let ground = self.ground();
            let enforced = slice.rules.iter().filter_map(|position| ground.rules.get(*position));
            for rule in enforced.filter(|rule| rule.mode == Mode::Enforce) {
                rules.extend(self.cell_rule(callers, slice, rule));
            }
        }
        let unconditional =
            |effect| rules.iter().any(|rule: &CellRule| rule.effect == effect && rule.conditions.is_empty());
        let any = |effect| rules.iter().any(|rule: &CellRule| rule.effect == effect);
        let access = if unconditional(Effect::Deny) || !any(Effect::Allow) {
            Access::Denied
        } else if unconditional(Effect::Allow) && !any(Effect::Deny) {
            Access::Allowed
        } else {
            Access::Conditional
        };
        Cell { access, rules }
    }

    /// The rule with what is left of its conditions when the callers are known; `None` if it is not about them.
    fn cell_rule(&self, callers: &Callers, slice: &Slice, rule: &Rule) -> Option<CellRule> {
        let who = cedar::who_part(rule).ok()?;
        let mut conditions = Vec::new();
        for part in [&who].into_iter().chain(&rule.parts) {
            match self.settled(callers, slice, part) {
                Some(true) => {}
                Some(false) => return None,
                None => conditions.push(part.words.clone()),
            }
        }
        Some(CellRule { rule: rule.id.clone(), effect: rule.effect, conditions })
    }

    /// Whether a condition holds for all of these callers; `None` if that depends on the call.
    fn settled(&self, callers: &Callers, slice: &Slice, part: &Part) -> Option<bool> {
        match part.kind {
            PartKind::Delegation(Delegation::Never | Delegation::Also) => return Some(true),
            PartKind::Delegation(Delegation::Only) => return None,
            PartKind::Condition => {}
        }
        let reads = Reads::of([&part.condition]);
        if reads.context_paths().next().is_some() {
            return None;
        }
        // The name and the attributes of an agent are known, those of whoever has a role are not.
        let named = matches!(callers, Callers::Agent(_));
        if !named && reads.any_principal() {
            return None;
        }
        let ground = self.ground();
        let mut probes = cedar_policy::PolicySet::new();
        probes.add(cedar::probe("probe", part.condition.clone()).ok()?).ok()?;
        // Everything that could depend on the call was left out above, so any caller will do.
        let (name, roles) = match callers {
            Callers::Anyone => ("", BTreeSet::new()),
            Callers::Role(role) => ("", BTreeSet::from([role.clone()])),
            Callers::Agent(name) => (name.as_str(), BTreeSet::new()),
        };
        let caller = nobody(roles)?;
        let question = Question { caller: &caller, method: "", params: None, now_ms: 0 };
        let facts = slice.facts(&question);
        let results = slice.probe(&facts, &ground.party(&caller, name), &probes, ground);
        match results.values().next() {
            None => Some(false),
            Some(None) => Some(true),
            Some(Some(_)) => None,
        }
    }
}

/// A caller with these roles and nothing else.
fn nobody(roles: BTreeSet<String>) -> Option<Caller> {
    Some(Caller {
        agent: Name::new("nobody").ok()?,
        subject: String::new(),
        delegated: false,
        roles,
        token: TokenFacts { claims: Map::new(), ..TokenFacts::default() },
        key: String::new(),
        algorithm: ProofAlgorithm::Hs256,
    })
}

impl fmt::Display for Matrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widest = self.rows.iter().map(|row| row.method.len()).max().unwrap_or_default().max("method".len());
        let headings: Vec<String> = self.callers.iter().map(ToString::to_string).collect();
        let widths: Vec<usize> = headings.iter().map(|heading| heading.chars().count().max(3)).collect();
        let line = |first: &str, cells: &mut dyn Iterator<Item = &str>| {
            let cells = cells.zip(&widths).map(|(cell, width)| format!("  {cell:width$}"));
            format!("{first:widest$}{}", cells.collect::<String>()).trim_end().to_owned()
        };
        writeln!(f, "{}", line("method", &mut headings.iter().map(String::as_str)))?;
        for row in &self.rows {
            let words = row.cells.iter().map(|cell| match cell.access {
                Access::Allowed => "yes",
                Access::Conditional => "if",
                Access::Denied => "-",
            });
            writeln!(f, "{}", line(&row.method, &mut words.into_iter()))?;
        }
        writeln!(f, "\nyes: always; if: under the conditions below; -: never. Policy revision {}.", self.revision)?;
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
