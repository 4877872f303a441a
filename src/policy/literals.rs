//! What Cedar conditions write out: entities, and values that an attribute can never have.
//! Never judges a whole condition: that is `demand`'s work.

use cedar_policy::pst::{BinaryOp, Expr, Literal, Var};

use super::cedar::{AGENT, ROLE};
use super::expr::E;

/// The first agent or role in `expr` that is not compared with the principal.
///
/// A decision knows the roles and attributes of its caller only. Any other agent has none, so what is asked of it is
/// always false, and fails where an attribute is read.
pub(crate) fn stray_entity(expr: &Expr) -> Option<String> {
    match expr {
        Expr::Literal(Literal::EntityUID(uid)) => {
            let kind = uid.ty.to_string();
            (kind == AGENT || kind == ROLE).then(|| uid.to_string())
        }
        Expr::BinaryOp { op: BinaryOp::Eq | BinaryOp::NotEq | BinaryOp::In, left, right } if is_principal(left) => {
            stray_beside_names(right)
        }
        Expr::BinaryOp { op: BinaryOp::Eq | BinaryOp::NotEq | BinaryOp::Contains, left, right }
            if is_principal(right) =>
        {
            stray_beside_names(left)
        }
        Expr::Is { expr, in_expr: Some(within), .. } if is_principal(expr) => stray_beside_names(within),
        _ => children(expr).into_iter().find_map(|child| stray_entity(child)),
    }
}

/// As [`stray_entity`] for what the principal is compared with: there the names of agents and roles have their place.
fn stray_beside_names(expr: &Expr) -> Option<String> {
    match expr {
        Expr::Literal(_) => None,
        Expr::Set(values) => values.iter().find_map(|value| stray_beside_names(value)),
        Expr::IfThenElse { cond, then_expr, else_expr } => {
            stray_entity(cond).or_else(|| stray_beside_names(then_expr)).or_else(|| stray_beside_names(else_expr))
        }
        _ => stray_entity(expr),
    }
}

fn is_principal(expr: &Expr) -> bool {
    matches!(expr, Expr::Var(Var::Principal))
}

/// The expressions that `expr` is made of.
fn children(expr: &Expr) -> Vec<&E> {
    match expr {
        Expr::BinaryOp { left, right, .. } => vec![left, right],
        Expr::UnaryOp { expr, .. }
        | Expr::GetAttr { expr, .. }
        | Expr::HasAttr { expr, .. }
        | Expr::Like { expr, .. } => vec![expr],
        Expr::Is { expr, in_expr, .. } => [expr].into_iter().chain(in_expr).collect(),
        Expr::IfThenElse { cond, then_expr, else_expr } => vec![cond, then_expr, else_expr],
        Expr::Set(values) => values.iter().collect(),
        Expr::Record(fields) => fields.values().collect(),
        _ => Vec::new(),
    }
}
