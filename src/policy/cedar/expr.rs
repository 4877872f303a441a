//! Builds small pieces of Cedar expressions, and takes conjunctions apart.
//! Never evaluates one.

use std::sync::Arc;

use cedar_policy::pst::{BinaryOp, EntityType, Expr, Literal, NonEmpty, PatternElem, SmolStr, UnaryOp, Var};

use crate::policy::model::ExprRef;

/// `context.<path>` or `principal.<path>`.
pub(crate) fn path(var: Var, path: &[SmolStr]) -> ExprRef {
    path.iter().fold(Arc::new(Expr::Var(var)), |expr, attr| Arc::new(Expr::GetAttr { expr, attr: attr.clone() }))
}

/// `<expr>.<attr>`.
pub(crate) fn attribute(expr: ExprRef, attr: &str) -> ExprRef {
    Arc::new(Expr::GetAttr { expr, attr: attr.into() })
}

/// `<expr> has <attr>`.
pub(crate) fn has(expr: ExprRef, attr: &SmolStr) -> ExprRef {
    Arc::new(Expr::HasAttr { expr, attrs: NonEmpty::new(attr.clone()) })
}

pub(crate) fn binary(op: BinaryOp, left: ExprRef, right: ExprRef) -> ExprRef {
    Arc::new(Expr::BinaryOp { op, left, right })
}

pub(crate) fn not(expr: ExprRef) -> ExprRef {
    Arc::new(Expr::UnaryOp { op: UnaryOp::Not, expr })
}

/// All of them, in order.
pub(crate) fn all(parts: impl IntoIterator<Item = ExprRef>) -> ExprRef {
    balanced(&parts.into_iter().collect::<Vec<_>>(), BinaryOp::And).unwrap_or_else(|| boolean(true))
}

/// Any of them, in order.
pub(crate) fn any(parts: impl IntoIterator<Item = ExprRef>) -> ExprRef {
    balanced(&parts.into_iter().collect::<Vec<_>>(), BinaryOp::Or).unwrap_or_else(|| boolean(false))
}

/// A tree as flat as possible. Code that walks through an expression is recursive, and a list in a file can be long.
fn balanced(parts: &[ExprRef], operator: BinaryOp) -> Option<ExprRef> {
    match parts {
        [] => None,
        [one] => Some(one.clone()),
        several => {
            let (left, right) = several.split_at(several.len() / 2);
            Some(binary(operator, balanced(left, operator)?, balanced(right, operator)?))
        }
    }
}

pub(crate) fn boolean(value: bool) -> ExprRef {
    Arc::new(Expr::Literal(Literal::Bool(value)))
}

pub(crate) fn integer(value: i64) -> ExprRef {
    Arc::new(Expr::Literal(Literal::Long(value)))
}

pub(crate) fn string(value: &str) -> ExprRef {
    Arc::new(Expr::Literal(Literal::String(value.into())))
}

pub(crate) fn set(values: impl IntoIterator<Item = ExprRef>) -> ExprRef {
    Arc::new(Expr::Set(values.into_iter().collect()))
}

/// `<expr> is <type>`.
pub(crate) fn is(expr: ExprRef, entity_type: EntityType) -> ExprRef {
    Arc::new(Expr::Is { expr, entity_type, in_expr: None })
}

/// `<expr> like <glob>`, where `*` stands for any text.
pub(crate) fn like(expr: ExprRef, glob: &str) -> ExprRef {
    let pattern = glob.chars().map(|c| if c == '*' { PatternElem::Wildcard } else { PatternElem::Char(c) }).collect();
    Arc::new(Expr::Like { expr, pattern })
}

/// The operands of the outermost `&&`s, in order. Cedar evaluates them in this order and stops at the first that does
/// not hold, so each may be a clause of its own.
pub(crate) fn conjuncts(expr: &ExprRef) -> Vec<ExprRef> {
    match expr.as_ref() {
        Expr::BinaryOp { op: BinaryOp::And, left, right } => {
            let mut parts = conjuncts(left);
            parts.extend(conjuncts(right));
            parts
        }
        _ => vec![expr.clone()],
    }
}

/// The condition of a policy text.
#[cfg(test)]
pub(crate) fn parsed(text: &str) -> ExprRef {
    let policy: cedar_policy::Policy =
        format!("permit(principal, action, resource) when {{ {text} }};").parse().unwrap();
    let pst = policy.to_pst().unwrap();
    match pst.body().clauses().first().unwrap() {
        cedar_policy::pst::Clause::When(expr) | cedar_policy::pst::Clause::Unless(expr) => expr.clone(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn texts_keep_what_stands_in_quotes() {
        for text in [r#"context.a == "a  b""#, r#"context.a == "\"  \\""#, r#"context.a == "  " && context.b == "x""#] {
            assert!(parsed(text).to_string().contains(text.rsplit(" == ").next().unwrap()), "{text}");
        }
        assert_eq!(parsed(r#"context.a == "a  b""#).to_string(), r#"context.a == "a  b""#);
        assert_eq!(parsed(r#"context.a == "\"  \\""#).to_string(), r#"context.a == "\"  \\""#);
    }

    #[test]
    fn conjunctions_fall_apart_and_texts_read_as_written() {
        let parts = conjuncts(&parsed("context.a && (context.b || context.c) && context.d == 1"));
        let texts: Vec<String> = parts.iter().map(ToString::to_string).collect();
        assert_eq!(texts, ["context.a", "context.b || context.c", "context.d == 1"]);
    }
}
