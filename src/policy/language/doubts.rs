//! Rules that are sound and rarely meant: a deny rule that callers evade by leaving something out, an allow rule without a
//! lower bound. Never an error: the author may have meant it.

use cedar_policy::pst::{BinaryOp, Expr, Literal};

use super::constraint::{self, Constraint};
use crate::policy::cedar::{expr, references};
use crate::policy::model::{Effect, Report, Rule, shown};

/// `deny … when note is not "x"` does not apply to a call without a note, which is rarely meant.
pub(crate) fn negations_of_optional(rules: &[Rule], report: &Report) {
    for rule in rules.iter().filter(|rule| rule.effect == Effect::Deny && rule.written.is_none()) {
        for part in &rule.conditions {
            let conjuncts = expr::conjuncts(&part.expr);
            let guarded = conjuncts.len() > 1;
            if guarded && conjuncts.last().is_some_and(|last| references::is_negation(last)) {
                let (name, asked) = (rule.id.name(), &part.text);
                let message = format!("`{name}` denies only calls that have what \"{asked}\" asks about");
                let help = "it is optional: to deny calls without it too, put the opposite under `unless`";
                report.warning(&part.at, message, help);
            }
        }
    }
}

/// `allow … when amount is at most 5000` allows −5, too, which is rarely meant.
pub(crate) fn open_below(rules: &[Rule], report: &Report) {
    for rule in rules.iter().filter(|rule| rule.effect == Effect::Allow) {
        let all: Vec<_> = rule.conditions.iter().flat_map(|part| expr::conjuncts(&part.expr)).collect();
        let closed = |value: &Expr| {
            all.iter().any(|asked| match asked.as_ref() {
                Expr::BinaryOp { op: BinaryOp::GreaterEq | BinaryOp::Greater | BinaryOp::Eq, left, .. } => {
                    **left == *value
                }
                Expr::BinaryOp { op: BinaryOp::Contains, right, .. } => **right == *value,
                _ => false,
            })
        };
        for part in &rule.conditions {
            for asked in expr::conjuncts(&part.expr) {
                let Expr::BinaryOp { op: BinaryOp::LessEq | BinaryOp::Less, left, right } = asked.as_ref() else {
                    continue;
                };
                let Expr::Literal(Literal::Long(0..)) = right.as_ref() else { continue };
                let value = left.to_string();
                // The size of a list is never negative.
                let name = value.strip_prefix("context.params.").filter(|name| !name.ends_with(".size"));
                if let Some(name) = name.filter(|_| !closed(left)) {
                    let message = format!("`{}` allows every negative `{}`", rule.id.name(), shown(name));
                    report.warning(&part.at, message, "add `min = 0` or `min = 1` beside `max`");
                }
            }
        }
    }
}

/// The same of numbers with fractions.
pub(crate) fn numbers_open_below(rules: &[Rule], report: &Report) {
    for rule in rules.iter().filter(|rule| rule.effect == Effect::Allow) {
        let asked = rule.conditions.iter().flat_map(|part| {
            let parts = expr::conjuncts(&part.expr).into_iter();
            parts.filter_map(|asked| constraint::understood(&asked, true)).map(move |asked| (part, asked))
        });
        let asked: Vec<_> = asked.collect();
        for (part, (path, constraint)) in &asked {
            let closed = asked.iter().any(|(_, (other, low))| other == path && matches!(low, Constraint::AtLeast(_)));
            if let Constraint::AtMost(bound) = constraint
                && bound.whole >= 0
                && !closed
            {
                let name = path.strip_prefix("context.params.").unwrap_or(path);
                let message = format!("`{}` allows every negative `{}`", rule.id.name(), shown(name));
                report.warning(&part.at, message, "add `min = 0` beside `max`");
            }
        }
    }
}
