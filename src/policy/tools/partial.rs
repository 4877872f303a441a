//! What is certain about a condition when only a part of the caller is known.
//! Never takes an unknown role or name for an absent one: such a condition stays open.

use std::collections::BTreeSet;

use cedar_policy::pst::{BinaryOp, Expr, Literal, UnaryOp};

use super::caller_group::CallerGroup;
use crate::auth::Caller;
use crate::name::Name;
use crate::policy::cedar::{AGENT, ROLE, References, children, expr, is_principal};
use crate::policy::engine::{MethodPolicies, Principal, Question};
use crate::policy::language::CheckedPolicy;
use crate::policy::model::{ExprRef, RoleSource};

/// Some callers of one method, and what is known about them.
#[derive(Debug, Clone)]
pub(crate) struct KnownCaller<'a> {
    checked: &'a CheckedPolicy,
    policies: &'a MethodPolicies,
    /// Their name, if they all have the same.
    name: Option<&'a str>,
    /// The roles that they all have.
    roles: BTreeSet<&'a str>,
    /// They have nothing else: no other role, and no name that a rule names.
    closed_world: bool,
}

impl<'a> KnownCaller<'a> {
    pub(crate) fn new(checked: &'a CheckedPolicy, policies: &'a MethodPolicies, callers: &'a CallerGroup) -> Self {
        let mut roles = BTreeSet::new();
        let (name, given): (_, Vec<&str>) = match callers {
            CallerGroup::Anyone => (None, Vec::new()),
            // However they came by it: a role that only files grant is held by those to whom files grant it.
            CallerGroup::Role(role) => (None, vec![role]),
            CallerGroup::Agent(name) => {
                (Some(name.as_str()), checked.granted.get(name).into_iter().flatten().map(String::as_str).collect())
            }
        };
        for role in given {
            let parts = checked.declarations.roles.get(role).into_iter().flat_map(|role| &role.includes);
            roles.extend([role].into_iter().chain(parts.map(String::as_str)));
        }
        Self { checked, policies, name, roles, closed_world: false }
    }

    /// The same callers, if they have nothing but what is known.
    pub(crate) fn closed_world(&self) -> Self {
        Self { closed_world: true, ..self.clone() }
    }

    /// Whether a condition holds for all of them, or for none; `None` if that depends on the call or the caller.
    pub(crate) fn evaluate(&self, expr: &Expr) -> Option<bool> {
        match expr {
            Expr::Literal(Literal::Bool(value)) => Some(*value),
            Expr::UnaryOp { op: UnaryOp::Not, expr } => self.evaluate(expr).map(|value| !value),
            Expr::BinaryOp { op: BinaryOp::And, left, right } => {
                any([left, right].map(|side| self.evaluate(side).map(|value| !value))).map(|value| !value)
            }
            Expr::BinaryOp { op: BinaryOp::Or, left, right } => any([left, right].map(|side| self.evaluate(side))),
            Expr::IfThenElse { cond, then_expr, else_expr } => match self.evaluate(cond) {
                Some(true) => self.evaluate(then_expr),
                Some(false) => self.evaluate(else_expr),
                None => {
                    let (first, second) = (self.evaluate(then_expr), self.evaluate(else_expr));
                    first.filter(|_| first == second)
                }
            },
            Expr::BinaryOp { op: BinaryOp::In, left, right } if is_principal(left) => self.eval_in(right),
            Expr::BinaryOp { op: op @ (BinaryOp::Eq | BinaryOp::NotEq), left, right } => {
                let other = match (is_principal(left), is_principal(right)) {
                    (true, false) => Some(right),
                    (false, true) => Some(left),
                    _ => None,
                };
                match other.and_then(|other| named(other, AGENT)) {
                    Some(name) => self.eval_eq(&name).map(|same| same == (*op == BinaryOp::Eq)),
                    None => self.eval_leaf(expr),
                }
            }
            Expr::Is { expr: subject, entity_type, in_expr: Some(within) }
                if is_principal(subject) && entity_type.to_string() == AGENT =>
            {
                self.eval_in(within)
            }
            Expr::Is { expr: subject, entity_type, in_expr: None } if is_principal(subject) => {
                Some(entity_type.to_string() == AGENT)
            }
            _ => self.eval_leaf(expr),
        }
    }

    /// Whether an expression names something that these callers are known to be or to have.
    pub(crate) fn is_named_in(&self, expr: &ExprRef) -> bool {
        let reads = References::of([expr]);
        reads.roles.iter().any(|role| self.roles.contains(role.as_str()))
            || self.name.is_some_and(|name| reads.agents.contains(name))
    }

    fn eval_in(&self, expr: &Expr) -> Option<bool> {
        if let Expr::Set(values) = expr {
            return any(values.iter().map(|value| self.eval_in(value)));
        }
        match (named(expr, ROLE), named(expr, AGENT)) {
            (Some(role), _) => self.eval_role(&role),
            (None, Some(name)) => self.eval_eq(&name),
            (None, None) => None,
        }
    }

    fn eval_eq(&self, name: &str) -> Option<bool> {
        match self.name {
            Some(known) => Some(known == name),
            None => self.closed_world.then_some(false),
        }
    }

    fn eval_role(&self, role: &str) -> Option<bool> {
        if self.roles.contains(role) {
            return Some(true);
        }
        let roles = &self.checked.declarations.roles;
        let from_token = |name: &str| roles.get(name).is_none_or(|role| role.source != RoleSource::Files);
        // What files grant to a name is known; what its token carries is not.
        let may_have =
            || from_token(role) || roles.get(role).is_some_and(|role| role.included_in.iter().any(|by| from_token(by)));
        if self.closed_world || (self.name.is_some() && !may_have()) { Some(false) } else { None }
    }

    /// Puts an expression without roles and names to Cedar, if it reads nothing that is unknown.
    fn eval_leaf(&self, expr: &Expr) -> Option<bool> {
        let expr = ExprRef::new(expr.clone());
        let reads = References::of([&expr]);
        let known = self.name.is_some() || !asks_principal(&expr);
        if !known || !reads.context.is_empty() || !reads.roles.is_empty() {
            return None;
        }
        // The opposite is asked, too: of what cannot be evaluated, neither holds.
        let asked = [("holds".to_owned(), expr.clone()), ("fails".to_owned(), expr::not(expr))];
        // Nothing depends on this caller.
        let caller = Caller::new(Name::new("nobody").ok()?, []);
        let question = Question { caller: &caller, method: "", params: None, now_ms: 0 };
        let (checked, name) = (self.checked, self.name.unwrap_or_default());
        let principal = Principal { checked, name, roles: self.roles.iter().copied().collect() };
        let results = self.policies.probe(&self.policies.facts(&question), &principal, asked);
        let held = |name: &str| matches!(results.get(name), Some(None));
        match (held("holds"), held("fails")) {
            (true, false) => Some(true),
            (false, true) => Some(false),
            _ => None,
        }
    }
}

/// Whether any of these is true; `None` if that depends on an unknown one.
fn any(values: impl IntoIterator<Item = Option<bool>>) -> Option<bool> {
    let values: Vec<Option<bool>> = values.into_iter().collect();
    if values.contains(&Some(true)) {
        return Some(true);
    }
    (!values.contains(&None)).then_some(false)
}

fn asks_principal(expr: &Expr) -> bool {
    is_principal(expr) || children(expr).is_none_or(|children| children.into_iter().any(|child| asks_principal(child)))
}

/// The name of an entity of this kind, if `expr` is one.
fn named(expr: &Expr, kind: &str) -> Option<String> {
    match expr {
        Expr::Literal(Literal::EntityUID(uid)) if uid.ty.to_string() == kind => Some(uid.eid.to_string()),
        _ => None,
    }
}
