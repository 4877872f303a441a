//! What a rule requires of one value, and whether anything can meet all of it.
//! Never looks at a call.

use std::collections::HashSet;
use std::slice;

use cedar_policy::pst::{self, BinaryOp, Expr, PatternElem, UnaryOp};
use serde::Serialize;

use super::literals;
use crate::policy::cedar::{expr, references};
use crate::policy::model::{Decimal, ExprRef, hours, matches_glob, shown};

/// A value that a rule writes out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub(crate) enum Literal {
    String(String),
    Integer(i64),
    Boolean(bool),
}

impl Literal {
    fn of(expr: &Expr) -> Option<Self> {
        match expr {
            Expr::Literal(pst::Literal::String(text)) => Some(Self::String(text.to_string())),
            Expr::Literal(pst::Literal::Long(value)) => Some(Self::Integer(*value)),
            Expr::Literal(pst::Literal::Bool(value)) => Some(Self::Boolean(*value)),
            _ => None,
        }
    }

    pub(crate) fn expr(&self) -> ExprRef {
        match self {
            Self::String(text) => expr::string(text),
            Self::Integer(value) => expr::integer(*value),
            Self::Boolean(value) => expr::boolean(*value),
        }
    }

    pub(crate) fn words(&self) -> String {
        match self {
            Self::String(text) => format!("`{}`", shown(text)),
            Self::Integer(value) => value.to_string(),
            Self::Boolean(value) => value.to_string(),
        }
    }
}

/// One requirement of a rule on a value.
#[derive(Debug, Clone)]
pub(crate) enum Constraint {
    Present,
    Absent,
    Is(Literal),
    Not(Literal),
    In(Vec<Literal>),
    NotIn(Vec<Literal>),
    Min(i64),
    Max(i64),
    Glob(String),
    NotGlob(String),
    /// The same of numbers with fractions.
    AtLeast(Decimal),
    AtMost(Decimal),
    MinSize(i64),
    MaxSize(i64),
    Contains(Literal),
    ContainsAny(Vec<Literal>),
    EachIn(Vec<Literal>),
}

impl Constraint {
    /// As a sentence about the thing called `label`.
    pub(crate) fn words(&self, label: &str) -> String {
        let any = |values: &[Literal]| values.iter().map(Literal::words).collect::<Vec<_>>().join(", ");
        match self {
            Self::Present => format!("{label} is there"),
            Self::Absent => format!("{label} is absent"),
            Self::Is(value) => format!("{label} is {}", value.words()),
            Self::Not(value) => format!("{label} is not {}", value.words()),
            Self::In(values) => format!("{label} is one of {}", any(values)),
            Self::NotIn(values) => format!("{label} is none of {}", any(values)),
            Self::Min(bound) => format!("{label} is at least {bound}"),
            Self::Max(bound) => format!("{label} is at most {bound}"),
            Self::AtLeast(bound) => format!("{label} is at least {bound}"),
            Self::AtMost(bound) => format!("{label} is at most {bound}"),
            Self::Glob(glob) => format!("{label} matches `{}`", shown(glob)),
            Self::NotGlob(glob) => format!("{label} does not match `{}`", shown(glob)),
            Self::MinSize(bound) => format!("{label} has at least {bound} values"),
            Self::MaxSize(bound) => format!("{label} has at most {bound} values"),
            Self::Contains(value) => format!("{label} contains {}", value.words()),
            Self::ContainsAny(values) => format!("{label} contains one of {}", any(values)),
            Self::EachIn(values) => format!("every value of {label} is one of {}", any(values)),
        }
    }

    /// As a condition on `value`, which is known to be present: `None` for those that require just that. Lists are
    /// represented by a set and a size, because sets forget repetitions.
    pub(crate) fn condition(&self, value: ExprRef) -> Option<ExprRef> {
        let set = |values: &[Literal]| expr::set(values.iter().map(Literal::expr));
        let within = |values: &[Literal], value| expr::binary(BinaryOp::Contains, set(values), value);
        let items = |value| expr::attribute(value, "items");
        let size = |value| expr::attribute(value, "size");
        Some(match self {
            Self::Present | Self::Absent => return None,
            Self::Is(literal) => expr::binary(BinaryOp::Eq, value, literal.expr()),
            Self::Not(literal) => expr::binary(BinaryOp::NotEq, value, literal.expr()),
            Self::In(values) => within(values, value),
            Self::NotIn(values) => expr::not(within(values, value)),
            Self::Min(bound) => expr::binary(BinaryOp::GreaterEq, value, expr::integer(*bound)),
            Self::Max(bound) => expr::binary(BinaryOp::LessEq, value, expr::integer(*bound)),
            Self::AtLeast(bound) => {
                let (whole, fraction) = (expr::integer(bound.whole), expr::integer(bound.fraction));
                let equal = expr::binary(BinaryOp::Eq, part(&value, WHOLE), whole.clone());
                let more = expr::binary(BinaryOp::GreaterEq, part(&value, FRACTION), fraction);
                expr::any([
                    expr::binary(BinaryOp::Greater, part(&value, WHOLE), whole),
                    expr::binary(BinaryOp::And, equal, more),
                ])
            }
            Self::AtMost(bound) => {
                let (whole, fraction) = (expr::integer(bound.whole), expr::integer(bound.fraction));
                let equal = expr::binary(BinaryOp::Eq, part(&value, WHOLE), whole.clone());
                let less = expr::binary(BinaryOp::Less, part(&value, FRACTION), fraction.clone());
                let same = expr::binary(BinaryOp::Eq, part(&value, FRACTION), fraction);
                let same = expr::binary(BinaryOp::And, same, expr::not(part(&value, BEYOND)));
                expr::any([
                    expr::binary(BinaryOp::Less, part(&value, WHOLE), whole),
                    expr::binary(BinaryOp::And, equal, expr::binary(BinaryOp::Or, less, same)),
                ])
            }
            Self::Glob(glob) => expr::like(value, glob),
            Self::NotGlob(glob) => expr::not(expr::like(value, glob)),
            Self::MinSize(bound) => expr::binary(BinaryOp::GreaterEq, size(value), expr::integer(*bound)),
            Self::MaxSize(bound) => expr::binary(BinaryOp::LessEq, size(value), expr::integer(*bound)),
            Self::Contains(literal) => expr::binary(BinaryOp::Contains, items(value), literal.expr()),
            Self::ContainsAny(values) => expr::binary(BinaryOp::ContainsAny, items(value), set(values)),
            Self::EachIn(values) => expr::binary(BinaryOp::ContainsAll, set(values), items(value)),
        })
    }

    /// Whether a value that is not a list meets it.
    fn admits(&self, value: &Literal) -> bool {
        match (self, value) {
            (Self::Is(other), _) => value == other,
            (Self::Not(other), _) => value != other,
            (Self::In(values), _) => values.contains(value),
            (Self::NotIn(values), _) => !values.contains(value),
            (Self::Min(bound), Literal::Integer(value)) => value >= bound,
            (Self::Max(bound), Literal::Integer(value)) => value <= bound,
            (Self::Glob(glob), Literal::String(text)) => matches_glob(glob, text),
            (Self::NotGlob(glob), Literal::String(text)) => !matches_glob(glob, text),
            _ => true,
        }
    }
}

/// The constraints on one value, to find those that exclude each other.
#[derive(Debug, Default)]
pub(crate) struct Constraints(Vec<Constraint>);

impl Constraints {
    /// The values that `context.<attribute>` can have at all.
    pub(crate) fn on(attribute: &str) -> Self {
        let texts = |values: &[&str]| {
            vec![Constraint::In(values.iter().map(|value| Literal::String((*value).to_owned())).collect())]
        };
        let below = |end: u32| vec![Constraint::Min(0), Constraint::Max(i64::from(end) - 1)];
        Self(match attribute {
            "algorithm" => texts(&literals::ALGORITHMS),
            "weekday" => texts(&hours::DAYS),
            "hour" => below(24),
            "minute" => below(60),
            "minute_of_day" => below(hours::DAY),
            "minute_of_week" => below(hours::WEEK),
            _ => Vec::new(),
        })
    }

    /// Like [`Constraints::on`], for a path as a policy spells it.
    fn on_path(path: &str) -> Self {
        path.strip_prefix("context.").map(Self::on).unwrap_or_default()
    }

    pub(crate) fn add(&mut self, constraint: Constraint) {
        self.0.push(constraint);
    }

    /// Why nothing can meet all of them.
    pub(crate) fn contradiction(&self) -> Option<&'static str> {
        let (mut min, mut max, mut min_size, mut max_size) = (None, None, None, None);
        let (mut least, mut most) = (None, None);
        let (mut globs, mut excluded_globs) = (Vec::new(), Vec::new());
        let (mut allowed, mut excluded) = (None, Vec::new());
        // Lists of which at least one value each must be in the value; and the values that a list may have.
        let (mut contained, mut each_in) = (Vec::new(), None);
        for constraint in &self.0 {
            match constraint {
                Constraint::Present | Constraint::Absent => {}
                Constraint::Is(value) => allowed = allowed.or(Some(slice::from_ref(value))),
                Constraint::In(values) => allowed = allowed.or(Some(values)),
                Constraint::Not(value) => excluded.push(value),
                Constraint::NotIn(values) => excluded.extend(values),
                Constraint::Min(bound) => min = min.max(Some(*bound)),
                Constraint::Max(bound) => max = [max, Some(*bound)].into_iter().flatten().min(),
                Constraint::AtLeast(bound) => least = least.max(Some(*bound)),
                Constraint::AtMost(bound) => most = [most, Some(*bound)].into_iter().flatten().min(),
                Constraint::Glob(glob) => globs.push(glob),
                Constraint::NotGlob(glob) => excluded_globs.push(glob),
                Constraint::MinSize(bound) => min_size = Some(*bound),
                Constraint::MaxSize(bound) => max_size = Some(*bound),
                Constraint::Contains(value) => contained.push(slice::from_ref(value)),
                Constraint::ContainsAny(values) => contained.push(values),
                Constraint::EachIn(values) => each_in = Some(values),
            }
        }
        let absent = |constraint: &Constraint| matches!(constraint, Constraint::Absent);
        let crossed = |min: Option<i64>, max| min.zip(max).is_some_and(|(min, max)| min > max);
        let left_out = |values: &&[Literal]| each_in.is_some_and(|each| !values.iter().any(|one| each.contains(one)));
        // A star of the one glob can stand only where a star of the other does, so this is never too strict.
        let covered = |wide: &&String| {
            wide.bytes().all(|byte| byte == b'*') && !wide.is_empty()
                || globs.iter().any(|glob| matches_glob(wide, glob))
        };
        let admitted = |value: &Literal| self.0.iter().all(|constraint| constraint.admits(value));
        let none_left = |allowed: &[Literal]| !allowed.iter().any(admitted);
        let is_excluded = |value| excluded.contains(&&value);
        let all_excluded =
            |(min, max)| (min..=max).take(excluded.len() + 1).all(|value| is_excluded(Literal::Integer(value)));
        let contradictions = [
            (self.0.iter().any(absent) && !self.0.iter().all(absent), "it would have to be absent and have a value"),
            (crossed(min, max), "`min` is larger than `max`"),
            (least.zip(most).is_some_and(|(least, most)| least > most), "`min` is larger than `max`"),
            (crossed(min_size, max_size), "`min_size` is larger than `max_size`"),
            (!contained.is_empty() && max_size == Some(0), "`max_size` leaves no room for what it has to contain"),
            (contained.iter().any(left_out), "`each_in` leaves out what it has to contain"),
            (allowed.is_none() && excluded_globs.iter().any(covered), "`not_glob` leaves nothing"),
            (allowed.is_some_and(none_left), "no value is left that all of them admit"),
            (min.zip(max).is_some_and(all_excluded), "every value of the range is excluded"),
            ([true, false].map(Literal::Boolean).into_iter().all(is_excluded), "it is neither true nor false"),
        ];
        contradictions.into_iter().find_map(|(found, why)| found.then_some(why))
    }
}

/// The first thing of which these conditions together require what it cannot be, and why.
///
/// Understands comparisons of one attribute with literals, and conditions that are negated again as they stand, but
/// nothing else: what is not found here may still never hold.
pub(crate) fn contradiction<'a>(conditions: impl IntoIterator<Item = &'a ExprRef>) -> Option<(String, &'static str)> {
    let parts: Vec<ExprRef> = conditions.into_iter().flat_map(expr::conjuncts).collect();
    let asks: Vec<Option<(String, Constraint)>> = parts.iter().map(|part| understood(part, true)).collect();
    let asked_of = |subject: &str, but: Option<usize>| {
        let others = asks.iter().enumerate().filter(|(position, _)| Some(*position) != but);
        let same = others.filter_map(|(_, ask)| ask.as_ref()).filter(|(known, _)| known == subject);
        let mut constraints = Constraints::on_path(subject);
        same.for_each(|(_, ask)| constraints.add(ask.clone()));
        constraints
    };
    let mut seen = HashSet::new();
    let mut subjects = asks.iter().flatten().map(|(subject, _)| subject).filter(|subject| seen.insert(*subject));
    let found = subjects.find_map(|subject| Some((subject.clone(), asked_of(subject, None).contradiction()?)));
    if found.is_some() {
        return found;
    }
    parts.iter().enumerate().find_map(|(position, part)| {
        let Expr::UnaryOp { op: UnaryOp::Not, expr: inner } = part.as_ref() else { return None };
        let taken = expr::conjuncts(inner);
        // A condition is implied if its opposite is impossible when the others hold.
        let implied = |condition: &ExprRef| {
            let excluded = |(subject, ask): (String, Constraint)| {
                let mut constraints = asked_of(&subject, Some(position));
                constraints.add(ask);
                constraints.contradiction().is_some()
            };
            is_true(condition)
                || parts.iter().enumerate().any(|(other, known)| other != position && known == condition)
                || understood(condition, false).is_some_and(excluded)
        };
        taken.iter().all(implied).then(|| {
            let last = taken.iter().rev().find(|condition| !is_true(condition)).unwrap_or(inner);
            let subject = understood(last, true).map_or_else(|| last.to_string(), |(subject, _)| subject);
            (subject, "`unless` takes away all that the other conditions leave")
        })
    })
}

fn is_true(expr: &Expr) -> bool {
    matches!(expr, Expr::Literal(pst::Literal::Bool(true)))
}

/// The parts by which the context represents a number: see `model::number`.
const WHOLE: &str = "whole";
const FRACTION: &str = "fraction";
const BEYOND: &str = "beyond";

fn part(value: &ExprRef, name: &str) -> ExprRef {
    expr::attribute(value.clone(), name)
}

/// The number that a condition bounds, if it is one that [`Constraint::condition`] makes of a bound.
fn number_bound(whole: &Expr) -> Option<(ExprRef, Constraint)> {
    let Expr::BinaryOp { op: BinaryOp::Or, left, right } = whole else { return None };
    let Expr::BinaryOp { op, left: of, right: bound } = left.as_ref() else { return None };
    let Expr::GetAttr { expr: value, .. } = of.as_ref() else { return None };
    let Expr::BinaryOp { op: BinaryOp::And, right: rest, .. } = right.as_ref() else { return None };
    let fraction = match (op, rest.as_ref()) {
        (BinaryOp::Greater, Expr::BinaryOp { right, .. }) => right,
        (BinaryOp::Less, Expr::BinaryOp { left, .. }) => match left.as_ref() {
            Expr::BinaryOp { right, .. } => right,
            _ => return None,
        },
        _ => return None,
    };
    let (Literal::Integer(units), Literal::Integer(parts)) = (Literal::of(bound)?, Literal::of(fraction)?) else {
        return None;
    };
    let bound = Decimal { whole: units, fraction: parts, beyond: false };
    let constraint = if *op == BinaryOp::Greater { Constraint::AtLeast(bound) } else { Constraint::AtMost(bound) };
    let is_this = constraint.condition(value.clone()).is_some_and(|made| *made == *whole);
    is_this.then(|| (value.clone(), constraint))
}

/// What one condition requires of which attribute; what its opposite requires, unless `holds`.
pub(crate) fn understood(part: &Expr, holds: bool) -> Option<(String, Constraint)> {
    let subject = |expr: &Expr| references::is_path(expr).then(|| expr.to_string());
    if let Some((path, bound)) = number_bound(part).filter(|_| holds) {
        return Some((subject(&path)?, bound));
    }
    let among = |values| if holds { Constraint::In(values) } else { Constraint::NotIn(values) };
    match part {
        Expr::GetAttr { .. } => Some((subject(part)?, Constraint::Is(Literal::Boolean(holds)))),
        Expr::UnaryOp { op: UnaryOp::Not, expr: inner } => understood(inner, !holds),
        Expr::Like { expr: inner, pattern } => {
            let glob = pattern.iter().map(|element| match element {
                // It could not be told apart from a wildcard in this notation.
                PatternElem::Char('*') => None,
                PatternElem::Char(character) => Some(*character),
                PatternElem::Wildcard => Some('*'),
            });
            let glob = glob.collect::<Option<String>>()?;
            Some((subject(inner)?, if holds { Constraint::Glob(glob) } else { Constraint::NotGlob(glob) }))
        }
        Expr::BinaryOp { op: BinaryOp::Contains, left, right } => {
            let Expr::Set(values) = left.as_ref() else { return None };
            let values: Vec<Literal> = values.iter().map(|value| Literal::of(value)).collect::<Option<_>>()?;
            Some((subject(right)?, among(values)))
        }
        Expr::BinaryOp { op, left, right } => {
            // `5 < n` is `n > 5`.
            let (path, value, mirrored) = match (Literal::of(right), Literal::of(left)) {
                (Some(value), _) => (left, value, false),
                (None, Some(value)) => (right, value, true),
                (None, None) => return None,
            };
            let above = matches!(op, BinaryOp::Greater | BinaryOp::GreaterEq) != mirrored;
            let strictly = matches!(op, BinaryOp::Less | BinaryOp::Greater);
            let ask = match (op, value) {
                (BinaryOp::Eq | BinaryOp::NotEq, value) if (*op == BinaryOp::Eq) == holds => Constraint::Is(value),
                (BinaryOp::Eq | BinaryOp::NotEq, value) => Constraint::Not(value),
                (
                    BinaryOp::Less | BinaryOp::LessEq | BinaryOp::Greater | BinaryOp::GreaterEq,
                    Literal::Integer(bound),
                ) => match (above == holds, strictly == holds) {
                    (true, true) => Constraint::Min(bound.saturating_add(1)),
                    (true, false) => Constraint::Min(bound),
                    (false, true) => Constraint::Max(bound.saturating_sub(1)),
                    (false, false) => Constraint::Max(bound),
                },
                _ => return None,
            };
            Some((subject(path)?, ask))
        }
        _ => None,
    }
}
