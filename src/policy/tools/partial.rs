//! What is certain about a condition when only a part of the caller is known.
//! Never takes an unknown role or name for an absent one: such a condition stays open.

use std::collections::BTreeSet;

use cedar_policy::pst::{BinaryOp, Expr, Literal, UnaryOp};

use super::caller_group::CallerGroup;
use super::token_roles::TokenRoles;
use crate::auth::Caller;
use crate::name::Name;
use crate::policy::cedar::{ROLE, References, children, expr, is_principal, kind_of};
use crate::policy::engine::{MethodPolicies, Principal, Question};
use crate::policy::language::CheckedPolicy;
use crate::policy::model::{ExprRef, PrincipalKind, RoleSource};

/// Some callers of one method, and what is known about them.
#[derive(Debug, Clone)]
pub(crate) struct KnownCaller<'a> {
    checked: &'a CheckedPolicy,
    policies: &'a MethodPolicies,
    /// Their name, if they all have the same.
    name: Option<(PrincipalKind, &'a str)>,
    /// The roles that they all have.
    roles: BTreeSet<&'a str>,
    /// They have nothing else: no other role, and no name that a rule names.
    closed_world: bool,
    /// What their tokens may add.
    token_roles: Option<&'a TokenRoles>,
}

impl<'a> KnownCaller<'a> {
    pub(crate) fn new(checked: &'a CheckedPolicy, policies: &'a MethodPolicies, callers: &'a CallerGroup) -> Self {
        let mut roles = BTreeSet::new();
        let (name, given): (_, Vec<&str>) = match callers {
            CallerGroup::Anyone => (None, Vec::new()),
            // However they came by it: a role that only files grant is held by those to whom files grant it.
            CallerGroup::Role(role) => (None, vec![role]),
            CallerGroup::Agent(name) => named(checked, PrincipalKind::Agent, name),
            CallerGroup::Subject(name) => named(checked, PrincipalKind::Subject, name),
        };
        for role in given {
            roles.extend(with_included(checked, role));
        }
        Self { checked, policies, name, roles, closed_world: false, token_roles: None }
    }

    /// The same callers, with no other roles in their tokens than these.
    pub(crate) fn with_token_roles(mut self, token_roles: &'a TokenRoles) -> Self {
        let known = &self.checked.declarations.roles;
        let believed = |role: &&String| known.get(*role).is_none_or(|role| role.source != RoleSource::Files);
        let certain = token_roles.certain().filter(believed);
        self.roles.extend(certain.flat_map(|role| with_included(self.checked, role)));
        self.token_roles = Some(token_roles);
        self
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
                match other.and_then(|other| principal(other)) {
                    Some((kind, name)) => self.eval_eq(kind, &name).map(|same| same == (*op == BinaryOp::Eq)),
                    None => self.eval_leaf(expr),
                }
            }
            Expr::Is { expr: subject, entity_type, in_expr } if is_principal(subject) => {
                let is = self.eval_is(&entity_type.to_string());
                let within = in_expr.as_ref().map_or(Some(true), |within| self.eval_in(within));
                any([is, within].map(|part| part.map(|value| !value))).map(|value| !value)
            }
            _ => self.eval_leaf(expr),
        }
    }

    /// Whether an expression names something that these callers are known to be or to have.
    pub(crate) fn is_named_in(&self, expr: &ExprRef) -> bool {
        let reads = References::of([expr]);
        reads.roles.iter().any(|role| self.roles.contains(role.as_str()))
            || self.name.is_some_and(|(kind, name)| reads.principals.contains(&(kind, name.to_owned())))
    }

    fn eval_in(&self, expr: &Expr) -> Option<bool> {
        if let Expr::Set(values) = expr {
            return any(values.iter().map(|value| self.eval_in(value)));
        }
        match (role(expr), principal(expr)) {
            (Some(role), _) => self.eval_role(&role),
            (None, Some((kind, name))) => self.eval_eq(kind, &name),
            (None, None) => None,
        }
    }

    fn eval_is(&self, entity_type: &str) -> Option<bool> {
        match (kind_of(entity_type), self.name) {
            (None, _) => Some(false),
            (Some(kind), Some((known, _))) => Some(kind == known),
            (Some(_), None) => None,
        }
    }

    fn eval_eq(&self, kind: PrincipalKind, name: &str) -> Option<bool> {
        match self.name {
            Some(known) => Some(known == (kind, name)),
            None => self.closed_world.then_some(false),
        }
    }

    fn eval_role(&self, role: &str) -> Option<bool> {
        if self.roles.contains(role) {
            return Some(true);
        }
        let roles = &self.checked.declarations.roles;
        let from_token = |name: &str| {
            roles.get(name).is_none_or(|role| role.source != RoleSource::Files)
                && self.token_roles.is_none_or(|possible| possible.may_hold(name))
        };
        // What files grant to a name is known; what its token carries is not.
        let may_have =
            || from_token(role) || roles.get(role).is_some_and(|role| role.included_in.iter().any(|by| from_token(by)));
        if self.closed_world || (self.name.is_some() && !may_have()) { Some(false) } else { None }
    }

    /// Puts an expression without roles and names to Cedar, if it reads nothing that is unknown.
    fn eval_leaf(&self, expr: &Expr) -> Option<bool> {
        let expr = ExprRef::new(expr.clone());
        let reads = References::of([&expr]);
        // Policies of names that no method has are about many actions.
        let known = (self.name.is_some() || !asks_principal(&expr)) && !(self.policies.unregistered && reads.action);
        if !known || !reads.context.is_empty() || !reads.roles.is_empty() {
            return None;
        }
        // The opposite is asked, too: of what cannot be evaluated, neither holds.
        let asked = [("holds".to_owned(), expr.clone()), ("fails".to_owned(), expr::not(expr))];
        // Nothing depends on this caller.
        let caller = Caller::new(Name::new("nobody").ok()?, []);
        let question = Question { caller: &caller, method: "", params: None, now_ms: 0 };
        let (kind, name) = self.name.unwrap_or((PrincipalKind::Agent, ""));
        let principal = Principal { checked: self.checked, kind, name, roles: self.roles.iter().copied().collect() };
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

/// A principal that files name, and the roles that they grant it.
fn named<'a>(
    checked: &'a CheckedPolicy,
    kind: PrincipalKind,
    name: &'a str,
) -> (Option<(PrincipalKind, &'a str)>, Vec<&'a str>) {
    let granted = checked.granted.get(kind, name).into_iter().flatten().map(String::as_str);
    (Some((kind, name)), granted.collect())
}

/// A role, and those that it includes.
fn with_included<'a>(checked: &'a CheckedPolicy, role: &'a str) -> impl Iterator<Item = &'a str> {
    let parts = checked.declarations.roles.get(role).into_iter().flat_map(|role| &role.includes);
    [role].into_iter().chain(parts.map(String::as_str))
}

/// The name of the role, if `expr` is one.
fn role(expr: &Expr) -> Option<String> {
    match expr {
        Expr::Literal(Literal::EntityUID(uid)) if uid.ty.to_string() == ROLE => Some(uid.eid.to_string()),
        _ => None,
    }
}

/// The agent or subject, if `expr` is one.
fn principal(expr: &Expr) -> Option<(PrincipalKind, String)> {
    match expr {
        Expr::Literal(Literal::EntityUID(uid)) => Some((kind_of(&uid.ty.to_string())?, uid.eid.to_string())),
        _ => None,
    }
}
