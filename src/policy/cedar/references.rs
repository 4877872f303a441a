//! What an expression reads, and whether it can fail.
//! Never evaluates one.

use std::collections::BTreeSet;

use cedar_policy::pst::{BinaryOp, Expr, Literal, SmolStr, UnaryOp, Var};

use super::names::{ROLE, kind_of};
use crate::policy::model::{ExprRef, PrincipalKind};

/// What expressions read.
#[derive(Debug, Clone, Default)]
pub(crate) struct References {
    /// Paths below `context`, as far as they are spelled out.
    pub(crate) context: BTreeSet<Vec<SmolStr>>,
    /// Paths below `principal`, as far as they are spelled out. `principal in …` does not count.
    pub(crate) principal: BTreeSet<Vec<SmolStr>>,
    /// Whether the hierarchy of methods is consulted.
    pub(crate) action: bool,
    /// The roles that are named, and the agents and subjects.
    pub(crate) roles: BTreeSet<String>,
    pub(crate) principals: BTreeSet<(PrincipalKind, String)>,
}

impl References {
    pub(crate) fn of<'a>(expressions: impl IntoIterator<Item = &'a ExprRef>) -> Self {
        let mut reads = Self::default();
        for expression in expressions {
            reads.expression(expression);
        }
        reads
    }

    /// Whether `context.<path>`, or something above or below it, is read.
    pub(crate) fn context(&self, path: &[&str]) -> bool {
        touches(&self.context, path)
    }

    /// Whether `principal.<path>`, or something above or below it, is read.
    pub(crate) fn principal(&self, path: &[&str]) -> bool {
        touches(&self.principal, path)
    }

    fn expression(&mut self, expr: &Expr) {
        match expr {
            Expr::Literal(Literal::EntityUID(uid)) => {
                let (kind, name) = (uid.ty.to_string(), uid.eid.to_string());
                if kind == ROLE {
                    self.roles.insert(name);
                } else if let Some(kind) = kind_of(&kind) {
                    self.principals.insert((kind, name));
                }
            }
            Expr::Var(var) => self.read(var, Vec::new()),
            Expr::GetAttr { expr: inner, .. } => match root(expr) {
                Some((var, path)) => self.read(var, path),
                None => self.expression(inner),
            },
            Expr::HasAttr { expr: inner, attrs } => match root(inner) {
                Some((var, mut path)) => {
                    path.extend(attrs.iter().cloned());
                    self.read(var, path);
                }
                None => self.expression(inner),
            },
            Expr::BinaryOp { op, left, right } => {
                // Membership consults the hierarchy, and equality the name of the entity, but neither the attributes.
                for side in [left, right] {
                    match (op, side.as_ref()) {
                        (BinaryOp::In | BinaryOp::Eq | BinaryOp::NotEq, Expr::Var(Var::Principal | Var::Resource)) => {}
                        _ => self.expression(side),
                    }
                }
            }
            Expr::Is { expr, in_expr, .. } if matches!(expr.as_ref(), Expr::Var(Var::Principal | Var::Resource)) => {
                in_expr.iter().for_each(|within| self.expression(within));
            }
            other => match children(other) {
                Some(children) => children.into_iter().for_each(|child| self.expression(child)),
                // Anything that a later version of Cedar adds may read anything.
                None => {
                    self.read(&Var::Context, Vec::new());
                    self.read(&Var::Principal, Vec::new());
                    self.action = true;
                }
            },
        }
    }

    fn read(&mut self, var: &Var, path: Vec<SmolStr>) {
        match var {
            Var::Context => drop(self.context.insert(path)),
            Var::Principal => drop(self.principal.insert(path)),
            Var::Action => self.action = true,
            Var::Resource => {}
        }
    }
}

/// Whether one of the paths is this one, or above or below it.
fn touches(paths: &BTreeSet<Vec<SmolStr>>, path: &[&str]) -> bool {
    paths.iter().any(|read| read.iter().zip(path).all(|(left, right)| left == right))
}

/// The variable and path of `context.a.b`.
fn root(expr: &Expr) -> Option<(&Var, Vec<SmolStr>)> {
    match expr {
        Expr::Var(var) => Some((var, Vec::new())),
        Expr::GetAttr { expr, attr } => {
            let (var, mut path) = root(expr)?;
            path.push(attr.clone());
            Some((var, path))
        }
        _ => None,
    }
}

/// The variables and paths whose values `expr` uses as a whole, not those whose presence alone it tests.
pub(crate) fn values(expr: &Expr) -> Vec<(Var, Vec<SmolStr>)> {
    match expr {
        Expr::HasAttr { expr: inner, .. } if root(inner).is_some() => Vec::new(),
        _ => match root(expr) {
            Some((var, path)) => vec![(var.clone(), path)],
            None => children(expr).into_iter().flatten().flat_map(|child| values(child)).collect(),
        },
    }
}

/// The expressions that `expr` is made of; `None` for a kind that is not known here.
pub(crate) fn children(expr: &Expr) -> Option<Vec<&ExprRef>> {
    Some(match expr {
        Expr::Literal(_) | Expr::Var(_) => Vec::new(),
        Expr::BinaryOp { left, right, .. } => vec![left, right],
        Expr::UnaryOp { expr, .. }
        | Expr::GetAttr { expr, .. }
        | Expr::HasAttr { expr, .. }
        | Expr::Like { expr, .. } => vec![expr],
        Expr::Is { expr, in_expr, .. } => [expr].into_iter().chain(in_expr).collect(),
        Expr::IfThenElse { cond, then_expr, else_expr } => vec![cond, then_expr, else_expr],
        Expr::Set(values) => values.iter().collect(),
        Expr::Record(fields) => fields.values().collect(),
        _ => return None,
    })
}

/// Whether it is the caller itself.
pub(crate) fn is_principal(expr: &Expr) -> bool {
    matches!(expr, Expr::Var(Var::Principal))
}

/// Whether an expression holds for everything except something.
pub(crate) fn is_negation(expr: &Expr) -> bool {
    matches!(expr, Expr::UnaryOp { op: UnaryOp::Not, .. } | Expr::BinaryOp { op: BinaryOp::NotEq, .. })
}

/// Whether it is `context.a.b` or `principal.a`.
pub(crate) fn is_path(expr: &Expr) -> bool {
    root(expr).is_some_and(|(_, path)| !path.is_empty())
}

/// The first operation in `expr` that can fail although the types are correct, in words.
pub(crate) fn can_fail(expr: &Expr) -> Option<String> {
    let own = match expr {
        Expr::BinaryOp { op: BinaryOp::Add, .. } => "an addition can overflow",
        Expr::BinaryOp { op: BinaryOp::Sub, .. } => "a subtraction can overflow",
        Expr::BinaryOp { op: BinaryOp::Mul, .. } => "a multiplication can overflow",
        Expr::BinaryOp { op: BinaryOp::Offset | BinaryOp::DurationSince, .. } => {
            "a computation with times can overflow"
        }
        Expr::UnaryOp { op: UnaryOp::Neg, expr } if !matches!(expr.as_ref(), Expr::Literal(Literal::Long(_))) => {
            "a negation can overflow"
        }
        Expr::UnaryOp { op: UnaryOp::Datetime | UnaryOp::Decimal | UnaryOp::Duration | UnaryOp::Ip, expr }
            if !matches!(expr.as_ref(), Expr::Literal(Literal::String(_))) =>
        {
            "a text that is not a literal may not be convertible"
        }
        Expr::GetAttr { expr, .. } if let Expr::Literal(Literal::EntityUID(uid)) = expr.as_ref() => {
            return Some(format!("`{uid}` has no attributes at evaluation"));
        }
        _ => match children(expr) {
            Some(children) => return children.into_iter().find_map(|child| can_fail(child)),
            None => "an operation that is not known here",
        },
    };
    Some(own.to_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::super::expr::parsed;
    use super::*;

    fn reads(text: &str) -> References {
        References::of([&parsed(text)])
    }

    #[test]
    fn paths_are_found_wherever_they_stand() {
        let reads =
            reads(r#"if context.params has note then context.params.amount < 5 else [context.delegated] == [true]"#);
        assert!(reads.context(&["params", "note"]));
        assert!(reads.context(&["params", "amount"]));
        assert!(reads.context(&["params"]));
        assert!(reads.context(&["delegated"]));
        assert!(!reads.context(&["params", "to"]));
        assert!(!reads.context(&["token"]));
        assert!(!reads.action);
    }

    #[test]
    fn a_whole_record_is_everything_below_it() {
        assert!(reads("context.params == {a: 1}").context(&["params", "anything"]));
        assert!(reads("context == {a: 1}").context(&["token", "age_s"]));
    }

    #[test]
    fn membership_reads_the_hierarchy_only() {
        let reads = reads(r#"principal in Role::"x" && action in Action::"math/*""#);
        assert!(!reads.principal(&["name"]));
        assert!(reads.action);
        assert!(reads.roles.contains("x"));
        assert!(super::References::of([&parsed("principal.name == \"a\"")]).principal(&["name"]));
        assert!(!super::References::of([&parsed("principal == Agent::\"a\"")]).principal(&["name"]));
    }

    #[test]
    fn what_can_fail_is_named() {
        assert!(can_fail(&parsed("context.a + 1 < 3")).unwrap().contains("addition"));
        assert!(can_fail(&parsed("decimal(context.a) == decimal(\"1.0\")")).is_some());
        assert!(can_fail(&parsed("Agent::\"x\".name == \"x\"")).is_some());
        assert_eq!(can_fail(&parsed("context.a < -3 && context.b like \"x*\"")), None);
    }
}
