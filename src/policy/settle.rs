//! What is certain about a condition when only a part of the caller is known.
//! Never takes a role or a name that is not known for one that is not there: such a condition stays open.

use std::collections::BTreeSet;

use cedar_policy::pst::{BinaryOp, Expr, Literal, UnaryOp};

use super::cedar::{self, AGENT, ROLE};
use super::decision::Question;
use super::expr::{E, Reads, children, is_principal};
use super::review::Callers;
use super::set::Ground;
use super::slice::{Party, Slice};
use super::toml_file::RoleSource;
use crate::auth::{Caller, ProofAlgorithm, TokenFacts};
use crate::name::Name;

/// Some callers of one method, and what is known of them.
#[derive(Debug)]
pub(crate) struct View<'a> {
    ground: &'a Ground,
    slice: &'a Slice,
    /// The name, if they all have one.
    name: Option<&'a str>,
    /// The roles that they all have.
    roles: BTreeSet<&'a str>,
    /// They have nothing else: no other role, and no name that a rule names.
    bare: bool,
}

impl<'a> View<'a> {
    pub(crate) fn new(ground: &'a Ground, slice: &'a Slice, callers: &'a Callers) -> Self {
        let mut roles = BTreeSet::new();
        let (name, given): (_, Vec<&str>) = match callers {
            Callers::Anyone => (None, Vec::new()),
            // However they came by it: what only files grant is held by those to whom they grant it.
            Callers::Role(role) => (None, vec![role]),
            Callers::Agent(name) => {
                (Some(name.as_str()), ground.granted.get(name).into_iter().flatten().map(String::as_str).collect())
            }
        };
        for role in given {
            let parts = ground.vocabulary.roles.get(role).into_iter().flat_map(|role| &role.includes);
            roles.extend([role].into_iter().chain(parts.map(String::as_str)));
        }
        Self { ground, slice, name, roles, bare: false }
    }

    /// The same callers, if they have nothing but what is known.
    pub(crate) fn bare(&self) -> Self {
        let Self { ground, slice, name, .. } = *self;
        Self { ground, slice, name, roles: self.roles.clone(), bare: true }
    }

    /// Whether a condition holds for all of them, or for none; `None` if that depends on the call or the caller.
    pub(crate) fn settled(&self, expr: &Expr) -> Option<bool> {
        match expr {
            Expr::Literal(Literal::Bool(value)) => Some(*value),
            Expr::UnaryOp { op: UnaryOp::Not, expr } => self.settled(expr).map(|value| !value),
            Expr::BinaryOp { op: BinaryOp::And, left, right } => {
                any([left, right].map(|side| self.settled(side).map(|value| !value))).map(|value| !value)
            }
            Expr::BinaryOp { op: BinaryOp::Or, left, right } => any([left, right].map(|side| self.settled(side))),
            Expr::IfThenElse { cond, then_expr, else_expr } => match self.settled(cond) {
                Some(true) => self.settled(then_expr),
                Some(false) => self.settled(else_expr),
                None => {
                    let (first, second) = (self.settled(then_expr), self.settled(else_expr));
                    first.filter(|_| first == second)
                }
            },
            Expr::BinaryOp { op: BinaryOp::In, left, right } if is_principal(left) => self.within(right),
            Expr::BinaryOp { op: op @ (BinaryOp::Eq | BinaryOp::NotEq), left, right } => {
                let other = match (is_principal(left), is_principal(right)) {
                    (true, false) => Some(right),
                    (false, true) => Some(left),
                    _ => None,
                };
                match other.and_then(|other| named(other, AGENT)) {
                    Some(name) => self.is(&name).map(|same| same == (*op == BinaryOp::Eq)),
                    None => self.leaf(expr),
                }
            }
            Expr::Is { expr: subject, entity_type, in_expr: Some(within) }
                if is_principal(subject) && entity_type.to_string() == AGENT =>
            {
                self.within(within)
            }
            Expr::Is { expr: subject, entity_type, in_expr: None } if is_principal(subject) => {
                Some(entity_type.to_string() == AGENT)
            }
            _ => self.leaf(expr),
        }
    }

    /// Whether an expression names something that these callers are known to be or to have.
    pub(crate) fn is_named_in(&self, expr: &E) -> bool {
        Reads::of([expr]).roles.iter().any(|role| self.roles.contains(role.as_str()))
            || self.name.is_some_and(|name| agents_in(expr).contains(name))
    }

    fn within(&self, expr: &Expr) -> Option<bool> {
        if let Expr::Set(values) = expr {
            return any(values.iter().map(|value| self.within(value)));
        }
        match (named(expr, ROLE), named(expr, AGENT)) {
            (Some(role), _) => self.has(&role),
            (None, Some(name)) => self.is(&name),
            (None, None) => None,
        }
    }

    fn is(&self, name: &str) -> Option<bool> {
        match self.name {
            Some(known) => Some(known == name),
            None => self.bare.then_some(false),
        }
    }

    fn has(&self, role: &str) -> Option<bool> {
        if self.roles.contains(role) {
            return Some(true);
        }
        let roles = &self.ground.vocabulary.roles;
        let from_token = |name: &str| roles.get(name).is_none_or(|role| role.source != RoleSource::Files);
        // What files grant to a name is known, what its token carries is not.
        let may_have =
            || from_token(role) || roles.get(role).is_some_and(|role| role.included_in.iter().any(|by| from_token(by)));
        if self.bare || (self.name.is_some() && !may_have()) { Some(false) } else { None }
    }

    /// What has no roles and names to be looked at is put to Cedar, if it asks nothing that is not known.
    fn leaf(&self, expr: &Expr) -> Option<bool> {
        let expr = E::new(expr.clone());
        let reads = Reads::of([&expr]);
        let known = self.name.is_some() || !asks_principal(&expr);
        if !known || reads.context_paths().next().is_some() || !reads.roles.is_empty() {
            return None;
        }
        let mut probes = cedar_policy::PolicySet::new();
        // The opposite is asked, too: what cannot be evaluated is neither.
        probes.add(cedar::probe("holds", expr.clone()).ok()?).ok()?;
        probes.add(cedar::probe("fails", super::expr::not(expr)).ok()?).ok()?;
        let caller = nobody()?;
        let question = Question { caller: &caller, method: "", params: None, now_ms: 0 };
        let party = Party { name: self.name.unwrap_or_default(), roles: self.roles.iter().copied().collect() };
        let results = self.slice.probe(&self.slice.facts(&question), &party, &probes, self.ground);
        let held = |id: &str| matches!(results.get(&cedar_policy::PolicyId::new(id)), Some(None));
        match (held("holds"), held("fails")) {
            (true, false) => Some(true),
            (false, true) => Some(false),
            _ => None,
        }
    }
}

/// Whether any of these is so; `None` if one that is not known decides.
fn any(values: impl IntoIterator<Item = Option<bool>>) -> Option<bool> {
    let values: Vec<Option<bool>> = values.into_iter().collect();
    if values.contains(&Some(true)) {
        return Some(true);
    }
    (!values.contains(&None)).then_some(false)
}

/// The names of agents that an expression spells out.
pub(crate) fn agents_in(expr: &Expr) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    walk(expr, &mut |expr| found.extend(named(expr, AGENT)));
    found
}

fn asks_principal(expr: &Expr) -> bool {
    let mut found = false;
    walk(expr, &mut |expr| found |= is_principal(expr) || !is_known(expr));
    found
}

fn named(expr: &Expr, kind: &str) -> Option<String> {
    match expr {
        Expr::Literal(Literal::EntityUID(uid)) if uid.ty.to_string() == kind => Some(uid.eid.to_string()),
        _ => None,
    }
}

/// Whether [`walk`] sees everything in it.
fn is_known(expr: &Expr) -> bool {
    matches!(
        expr,
        Expr::Literal(_)
            | Expr::Var(_)
            | Expr::UnaryOp { .. }
            | Expr::BinaryOp { .. }
            | Expr::GetAttr { .. }
            | Expr::HasAttr { .. }
            | Expr::Like { .. }
            | Expr::Is { .. }
            | Expr::IfThenElse { .. }
            | Expr::Set(_)
            | Expr::Record(_)
    )
}

fn walk(expr: &Expr, see: &mut dyn FnMut(&Expr)) {
    see(expr);
    children(expr).into_iter().for_each(|child| walk(child, see));
}

/// A caller for questions in which nothing depends on the caller.
fn nobody() -> Option<Caller> {
    Some(Caller {
        agent: Name::new("nobody").ok()?,
        subject: String::new(),
        delegated: false,
        roles: BTreeSet::new(),
        token: TokenFacts::default(),
        key: String::new(),
        algorithm: ProofAlgorithm::Hs256,
    })
}
