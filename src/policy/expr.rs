//! Small pieces of Cedar expressions, and what an expression looks at.
//! Never evaluates one.

use std::collections::BTreeSet;
use std::sync::Arc;

use cedar_policy::pst::{self, BinaryOp, Expr, Literal, NonEmpty, PatternElem, SmolStr, UnaryOp, Var};

use super::cedar::ROLE;

pub(crate) type E = Arc<Expr>;

/// `context.<path>` or `principal.<path>`.
pub(crate) fn path(var: Var, path: &[SmolStr]) -> E {
    path.iter().fold(Arc::new(Expr::Var(var)), |expr, attr| Arc::new(Expr::GetAttr { expr, attr: attr.clone() }))
}

/// `<expr> has <attr>`.
pub(crate) fn has(expr: E, attr: &SmolStr) -> E {
    Arc::new(Expr::HasAttr { expr, attrs: NonEmpty::new(attr.clone()) })
}

pub(crate) fn binary(op: BinaryOp, left: E, right: E) -> E {
    Arc::new(Expr::BinaryOp { op, left, right })
}

pub(crate) fn not(expr: E) -> E {
    Arc::new(Expr::UnaryOp { op: UnaryOp::Not, expr })
}

/// All of them, in order.
pub(crate) fn all(parts: impl IntoIterator<Item = E>) -> E {
    balanced(&parts.into_iter().collect::<Vec<_>>(), BinaryOp::And).unwrap_or_else(|| boolean(true))
}

/// Any of them, in order.
pub(crate) fn any(parts: impl IntoIterator<Item = E>) -> E {
    balanced(&parts.into_iter().collect::<Vec<_>>(), BinaryOp::Or).unwrap_or_else(|| boolean(false))
}

/// A tree as flat as can be. Whoever walks through an expression does so recursively, and a list in a file can be long.
fn balanced(parts: &[E], operator: BinaryOp) -> Option<E> {
    match parts {
        [] => None,
        [one] => Some(one.clone()),
        several => {
            let (left, right) = several.split_at(several.len() / 2);
            Some(binary(operator, balanced(left, operator)?, balanced(right, operator)?))
        }
    }
}

pub(crate) fn boolean(value: bool) -> E {
    Arc::new(Expr::Literal(Literal::Bool(value)))
}

pub(crate) fn integer(value: i64) -> E {
    Arc::new(Expr::Literal(Literal::Long(value)))
}

pub(crate) fn string(value: &str) -> E {
    Arc::new(Expr::Literal(Literal::String(value.into())))
}

pub(crate) fn set(values: impl IntoIterator<Item = E>) -> E {
    Arc::new(Expr::Set(values.into_iter().collect()))
}

/// `<expr> like <glob>`, where `*` stands for any text.
pub(crate) fn like(expr: E, glob: &str) -> E {
    let pattern = glob.chars().map(|c| if c == '*' { PatternElem::Wildcard } else { PatternElem::Char(c) }).collect();
    Arc::new(Expr::Like { expr, pattern })
}

/// The operands of the outermost `&&`s, in order. Cedar evaluates them in this order and stops at the first that does
/// not hold, so each may be a clause of its own.
pub(crate) fn conjuncts(expr: &E) -> Vec<E> {
    match expr.as_ref() {
        Expr::BinaryOp { op: BinaryOp::And, left, right } => {
            let mut parts = conjuncts(left);
            parts.extend(conjuncts(right));
            parts
        }
        _ => vec![expr.clone()],
    }
}

/// What expressions look at.
#[derive(Debug, Clone, Default)]
pub(crate) struct Reads {
    /// Paths below `context`, as far as they are spelled out.
    context: BTreeSet<Vec<SmolStr>>,
    /// Paths below `principal`, as far as they are spelled out. `principal in …` is none.
    principal: BTreeSet<Vec<SmolStr>>,
    /// Whether the hierarchy of methods is asked.
    pub(crate) action: bool,
    /// The roles that are named.
    pub(crate) roles: BTreeSet<String>,
}

impl Reads {
    pub(crate) fn of<'a>(expressions: impl IntoIterator<Item = &'a E>) -> Self {
        let mut reads = Self::default();
        for expression in expressions {
            reads.expression(expression);
        }
        reads
    }

    /// Whether `context.<path>` or something above or below it is looked at.
    pub(crate) fn context(&self, path: &[&str]) -> bool {
        self.context.iter().any(|read| read.iter().zip(path).all(|(left, right)| left == right))
    }

    /// The paths below `context` that are looked at.
    pub(crate) fn context_paths(&self) -> impl Iterator<Item = &[SmolStr]> {
        self.context.iter().map(Vec::as_slice)
    }

    /// The paths below `principal` that are looked at.
    pub(crate) fn principal_paths(&self) -> impl Iterator<Item = &[SmolStr]> {
        self.principal.iter().map(Vec::as_slice)
    }

    /// Whether `principal.<path>` or something above or below it is looked at.
    pub(crate) fn principal(&self, path: &[&str]) -> bool {
        self.principal.iter().any(|read| read.iter().zip(path).all(|(left, right)| left == right))
    }

    fn expression(&mut self, expr: &Expr) {
        match expr {
            Expr::Literal(Literal::EntityUID(uid)) => {
                if uid.ty.to_string() == ROLE {
                    self.roles.insert(uid.eid.to_string());
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
                // Membership asks the hierarchy, and equality the name of the entity, not the attributes.
                for side in [left, right] {
                    match (op, side.as_ref()) {
                        (BinaryOp::In | BinaryOp::Eq | BinaryOp::NotEq, Expr::Var(Var::Principal | Var::Resource)) => {}
                        _ => self.expression(side),
                    }
                }
            }
            Expr::UnaryOp { expr, .. } | Expr::Like { expr, .. } => self.expression(expr),
            Expr::Is { expr, in_expr, .. } => {
                if !matches!(expr.as_ref(), Expr::Var(Var::Principal | Var::Resource)) {
                    self.expression(expr);
                }
                if let Some(within) = in_expr {
                    self.expression(within);
                }
            }
            Expr::IfThenElse { cond, then_expr, else_expr } => {
                for expr in [cond, then_expr, else_expr] {
                    self.expression(expr);
                }
            }
            Expr::Set(values) => values.iter().for_each(|value| self.expression(value)),
            Expr::Record(fields) => fields.values().for_each(|value| self.expression(value)),
            // Whatever a later version of Cedar adds may look at anything.
            other => {
                if !matches!(other, Expr::Literal(_) | Expr::Slot(_) | Expr::Unknown { .. }) {
                    self.read(&Var::Context, Vec::new());
                    self.read(&Var::Principal, Vec::new());
                    self.action = true;
                }
            }
        }
    }

    fn read(&mut self, var: &Var, path: Vec<SmolStr>) {
        match var {
            Var::Context => {
                self.context.insert(path);
            }
            Var::Principal => {
                self.principal.insert(path);
            }
            Var::Action => self.action = true,
            Var::Resource => {}
        }
    }
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

/// The variables and paths whose values `expr` uses as a whole: what is only asked to be there is none of them.
pub(crate) fn values(expr: &Expr) -> Vec<(Var, Vec<SmolStr>)> {
    match expr {
        Expr::HasAttr { expr: inner, .. } if root(inner).is_some() => Vec::new(),
        _ => match root(expr) {
            Some((var, path)) => vec![(var.clone(), path)],
            None => children(expr).into_iter().flat_map(|child| values(child)).collect(),
        },
    }
}

/// The expressions that `expr` is made of.
pub(crate) fn children(expr: &Expr) -> Vec<&E> {
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

/// Whether it is the caller itself.
pub(crate) fn is_principal(expr: &Expr) -> bool {
    matches!(expr, Expr::Var(Var::Principal))
}

/// Whether an expression holds for everything but something.
pub(crate) fn is_negation(expr: &Expr) -> bool {
    matches!(expr, Expr::UnaryOp { op: UnaryOp::Not, .. } | Expr::BinaryOp { op: BinaryOp::NotEq, .. })
}

/// Whether it is `context.a.b` or `principal.a`.
pub(crate) fn is_path(expr: &Expr) -> bool {
    root(expr).is_some_and(|(_, path)| !path.is_empty())
}

/// The first operation in `expr` that can fail although the types are right, in words.
pub(crate) fn can_fail(expr: &Expr) -> Option<String> {
    let overflow = |what: &str| Some(format!("{what} can overflow"));
    match expr {
        Expr::BinaryOp { op, left, right } => match op {
            BinaryOp::Add => overflow("an addition"),
            BinaryOp::Sub => overflow("a subtraction"),
            BinaryOp::Mul => overflow("a multiplication"),
            BinaryOp::Offset | BinaryOp::DurationSince => overflow("a computation with times"),
            _ => can_fail(left).or_else(|| can_fail(right)),
        },
        Expr::UnaryOp { op, expr } => match (op, expr.as_ref()) {
            (UnaryOp::Neg, Expr::Literal(Literal::Long(_))) => None,
            (UnaryOp::Neg, _) => overflow("a negation"),
            (
                UnaryOp::Datetime | UnaryOp::Decimal | UnaryOp::Duration | UnaryOp::Ip,
                Expr::Literal(Literal::String(_)),
            ) => None,
            (UnaryOp::Datetime | UnaryOp::Decimal | UnaryOp::Duration | UnaryOp::Ip, _) => {
                Some("a text that is not a literal may not be convertible".to_owned())
            }
            _ => can_fail(expr),
        },
        Expr::GetAttr { expr, .. } => match expr.as_ref() {
            Expr::Literal(Literal::EntityUID(uid)) => Some(format!("`{uid}` has no attributes at evaluation")),
            _ => can_fail(expr),
        },
        Expr::HasAttr { expr, .. } | Expr::Like { expr, .. } => can_fail(expr),
        Expr::Is { expr, in_expr, .. } => {
            can_fail(expr).or_else(|| in_expr.as_ref().and_then(|within| can_fail(within)))
        }
        Expr::IfThenElse { cond, then_expr, else_expr } => {
            [cond, then_expr, else_expr].into_iter().find_map(|expr| can_fail(expr))
        }
        Expr::Set(values) => values.iter().find_map(|value| can_fail(value)),
        Expr::Record(fields) => fields.values().find_map(|value| can_fail(value)),
        Expr::Literal(_) | Expr::Var(_) => None,
        _ => Some("an operation that is not known here".to_owned()),
    }
}

/// An expression as Cedar text, without the parentheses that Cedar puts around the whole.
pub(crate) fn text(expr: &Expr) -> String {
    let template = pst::Template::new(
        "text",
        pst::Effect::Permit,
        pst::PrincipalConstraint::Any,
        pst::ActionConstraint::Any,
        pst::ResourceConstraint::Any,
    );
    match template.try_with_clauses([pst::Clause::When(Arc::new(expr.clone()))]) {
        Ok(template) => {
            let text = template.to_string();
            text.split_once("when {")
                .and_then(|(_, rest)| rest.rsplit_once('}'))
                .map_or_else(|| text.clone(), |(inner, _)| one_line(inner))
        }
        Err(error) => error.to_string(),
    }
}

/// The text with its layout taken out: what stands in quotes stays as it is.
fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    let (mut quoted, mut escaped, mut gap) = (false, false, false);
    for character in text.trim().chars() {
        if !quoted && character.is_whitespace() {
            gap = true;
            continue;
        }
        if std::mem::take(&mut gap) {
            line.push(' ');
        }
        if character == '"' && !escaped {
            quoted = !quoted;
        }
        escaped = quoted && character == '\\' && !escaped;
        line.push(character);
    }
    line
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    /// The condition of a policy text.
    fn condition(text: &str) -> E {
        let policy: cedar_policy::Policy =
            format!("permit(principal, action, resource) when {{ {text} }};").parse().unwrap();
        let pst = policy.to_pst().unwrap();
        match pst.body().clauses().first().unwrap() {
            pst::Clause::When(expr) | pst::Clause::Unless(expr) => expr.clone(),
        }
    }

    fn reads(text: &str) -> Reads {
        Reads::of([&condition(text)])
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
        assert!(super::Reads::of([&condition("principal.name == \"a\"")]).principal(&["name"]));
        assert!(!super::Reads::of([&condition("principal == Agent::\"a\"")]).principal(&["name"]));
    }

    #[test]
    fn what_can_fail_is_named() {
        assert!(can_fail(&condition("context.a + 1 < 3")).unwrap().contains("addition"));
        assert!(can_fail(&condition("decimal(context.a) == decimal(\"1.0\")")).is_some());
        assert!(can_fail(&condition("Agent::\"x\".name == \"x\"")).is_some());
        assert_eq!(can_fail(&condition("context.a < -3 && context.b like \"x*\"")), None);
    }

    #[test]
    fn texts_keep_what_stands_in_quotes() {
        for text in [r#"context.a == "a  b""#, r#"context.a == "\"  \\""#, r#"context.a == "  " && context.b == "x""#] {
            assert!(super::text(&condition(text)).contains(text.rsplit(" == ").next().unwrap()), "{text}");
        }
        assert_eq!(super::text(&condition(r#"context.a == "a  b""#)), r#"context.a == "a  b""#);
        assert_eq!(super::text(&condition(r#"context.a == "\"  \\""#)), r#"context.a == "\"  \\""#);
    }

    #[test]
    fn conjunctions_fall_apart_and_texts_read_as_written() {
        let parts = conjuncts(&condition("context.a && (context.b || context.c) && context.d == 1"));
        let texts: Vec<String> = parts.iter().map(|part| text(part)).collect();
        assert_eq!(texts, ["context.a", "context.b || context.c", "context.d == 1"]);
    }
}
