//! What a rule asks of one value, and whether anything can meet all of it.
//! Never looks at a call.

use cedar_policy::pst::{self, BinaryOp, Expr, PatternElem, UnaryOp};

use super::literals;
use crate::policy::cedar::{expr, references};
use crate::policy::model::{ExprRef, hours, matches_glob, shown};

/// A value that a rule writes out.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
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

/// One thing that a rule asks of a value.
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
    MinSize(i64),
    MaxSize(i64),
    Contains(Literal),
    ContainsAny(Vec<Literal>),
    EachIn(Vec<Literal>),
}

impl Constraint {
    /// As a sentence about what is called `label`.
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
            Self::Glob(glob) => format!("{label} matches `{}`", shown(glob)),
            Self::NotGlob(glob) => format!("{label} does not match `{}`", shown(glob)),
            Self::MinSize(bound) => format!("{label} has at least {bound} values"),
            Self::MaxSize(bound) => format!("{label} has at most {bound} values"),
            Self::Contains(value) => format!("{label} contains {}", value.words()),
            Self::ContainsAny(values) => format!("{label} contains one of {}", any(values)),
            Self::EachIn(values) => format!("every value of {label} is one of {}", any(values)),
        }
    }

    /// As a condition on `value`, which is known to be there: `None` for those that ask just that. Lists are kept as a set
    /// and a size, because sets forget repetitions.
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
            Self::Glob(glob) => expr::like(value, glob),
            Self::NotGlob(glob) => expr::not(expr::like(value, glob)),
            Self::MinSize(bound) => expr::binary(BinaryOp::GreaterEq, size(value), expr::integer(*bound)),
            Self::MaxSize(bound) => expr::binary(BinaryOp::LessEq, size(value), expr::integer(*bound)),
            Self::Contains(literal) => expr::binary(BinaryOp::Contains, items(value), literal.expr()),
            Self::ContainsAny(values) => expr::binary(BinaryOp::ContainsAny, items(value), set(values)),
            Self::EachIn(values) => expr::binary(BinaryOp::ContainsAll, set(values), items(value)),
        })
    }
}

/// The constraints on one value, for finding those that exclude each other.
#[derive(Debug, Default)]
pub(crate) struct Constraints {
    allowed: Option<Vec<Literal>>,
    excluded: Vec<Literal>,
    min: Option<i64>,
    max: Option<i64>,
    globs: Vec<String>,
    excluded_globs: Vec<String>,
    min_size: Option<i64>,
    max_size: Option<i64>,
    /// Of each of these lists, one value at least has to be in the list.
    contained: Vec<Vec<Literal>>,
    /// The values that a list may have.
    each_in: Option<Vec<Literal>>,
    absent: bool,
    present: bool,
}

impl Constraints {
    /// What `context.<attribute>` can be at all.
    pub(crate) fn on(attribute: &str) -> Self {
        let mut constraints = Self::default();
        let texts = |values: &[&str]| values.iter().map(|value| Literal::String((*value).to_owned())).collect();
        match attribute {
            "algorithm" => constraints.allow(texts(&literals::ALGORITHMS)),
            "weekday" => constraints.allow(texts(&hours::DAYS)),
            "hour" => constraints.range(24),
            "minute" => constraints.range(60),
            "minute_of_day" => constraints.range(hours::DAY),
            "minute_of_week" => constraints.range(hours::WEEK),
            _ => {}
        }
        constraints
    }

    /// As [`Constraints::on`], for a path as a policy spells it.
    fn on_path(path: &str) -> Self {
        path.strip_prefix("context.").map(Self::on).unwrap_or_default()
    }

    pub(crate) fn add(&mut self, constraint: &Constraint) {
        match constraint.clone() {
            Constraint::Present => {}
            Constraint::Absent => return self.absent = true,
            Constraint::Is(value) => self.allow(vec![value]),
            Constraint::In(values) => self.allow(values),
            Constraint::Not(value) => self.excluded.push(value),
            Constraint::NotIn(values) => self.excluded.extend(values),
            Constraint::Min(bound) => self.at_least(bound),
            Constraint::Max(bound) => self.at_most(bound),
            Constraint::Glob(glob) => self.globs.push(glob),
            Constraint::NotGlob(glob) => self.excluded_globs.push(glob),
            Constraint::MinSize(bound) => self.min_size = Some(bound),
            Constraint::MaxSize(bound) => self.max_size = Some(bound),
            Constraint::Contains(value) => self.contained.push(vec![value]),
            Constraint::ContainsAny(values) => self.contained.push(values),
            Constraint::EachIn(values) => self.each_in = Some(values),
        }
        self.present = true;
    }

    /// From 0, and below `end`.
    fn range(&mut self, end: u32) {
        self.at_least(0);
        self.at_most(i64::from(end) - 1);
    }

    fn allow(&mut self, values: Vec<Literal>) {
        self.allowed = Some(match self.allowed.take() {
            None => values,
            Some(before) => before.into_iter().filter(|value| values.contains(value)).collect(),
        });
    }

    fn at_least(&mut self, bound: i64) {
        self.min = Some(self.min.map_or(bound, |min| min.max(bound)));
    }

    fn at_most(&mut self, bound: i64) {
        self.max = Some(self.max.map_or(bound, |max| max.min(bound)));
    }

    fn admits(&self, value: &Literal) -> bool {
        match value {
            Literal::Integer(value) => {
                self.min.is_none_or(|min| *value >= min) && self.max.is_none_or(|max| *value <= max)
            }
            Literal::String(text) => {
                self.globs.iter().all(|glob| matches_glob(glob, text))
                    && !self.excluded_globs.iter().any(|glob| matches_glob(glob, text))
            }
            Literal::Boolean(_) => true,
        }
    }

    fn leaves(&self, value: &Literal) -> bool {
        self.admits(value) && !self.excluded.contains(value)
    }

    /// Why nothing can meet all of them.
    pub(crate) fn contradiction(&self) -> Option<&'static str> {
        let crossed = |min: Option<i64>, max| min.zip(max).is_some_and(|(min, max)| min > max);
        let left_out = |values: &Vec<Literal>| {
            self.each_in.as_ref().is_some_and(|each| !values.iter().any(|value| each.contains(value)))
        };
        // A star of the one can stand only where a star of the other does, so this is never too strict.
        let covered = |wide: &String| {
            wide.bytes().all(|byte| byte == b'*') && !wide.is_empty()
                || self.globs.iter().any(|glob| matches_glob(wide, glob))
        };
        let none_left = |allowed: &Vec<Literal>| !allowed.iter().any(|value| self.leaves(value));
        let excluded = |value| self.excluded.contains(&value);
        let all_excluded =
            |(min, max)| (min..=max).take(self.excluded.len() + 1).all(|value| excluded(Literal::Integer(value)));
        let contradictions = [
            (self.absent && self.present, "it would have to be absent and have a value"),
            (crossed(self.min, self.max), "`min` is larger than `max`"),
            (crossed(self.min_size, self.max_size), "`min_size` is larger than `max_size`"),
            (
                !self.contained.is_empty() && self.max_size == Some(0),
                "`max_size` leaves no room for what it has to contain",
            ),
            (self.contained.iter().any(left_out), "`each_in` leaves out what it has to contain"),
            (self.allowed.is_none() && self.excluded_globs.iter().any(covered), "`not_glob` leaves nothing"),
            (self.allowed.as_ref().is_some_and(none_left), "no value is left that all of them admit"),
            (self.min.zip(self.max).is_some_and(all_excluded), "every value of the range is excluded"),
            ([true, false].map(Literal::Boolean).into_iter().all(excluded), "it is neither true nor false"),
        ];
        contradictions.into_iter().find_map(|(found, why)| found.then_some(why))
    }
}

/// The first thing of which these conditions together ask what it cannot be, and why.
///
/// Comparisons of one attribute with literals are understood, conditions that are taken away again as they stand, and
/// nothing else: what is not found here may still never hold.
pub(crate) fn contradiction<'a>(conditions: impl IntoIterator<Item = &'a ExprRef>) -> Option<(String, &'static str)> {
    let parts: Vec<ExprRef> = conditions.into_iter().flat_map(expr::conjuncts).collect();
    let asks: Vec<Option<(String, Constraint)>> = parts.iter().map(|part| understood(part, true)).collect();
    let mut constraints: Vec<(&str, Constraints)> = Vec::new();
    for (subject, ask) in asks.iter().flatten() {
        let position = constraints.iter().position(|(known, _)| known == subject).unwrap_or_else(|| {
            constraints.push((subject, Constraints::on_path(subject)));
            constraints.len() - 1
        });
        if let Some((_, constraints)) = constraints.get_mut(position) {
            constraints.add(ask);
        }
    }
    let mut found = constraints.into_iter();
    let found = found.find_map(|(subject, asked)| Some((subject.to_owned(), asked.contradiction()?)));
    if found.is_some() {
        return found;
    }
    parts.iter().enumerate().find_map(|(position, part)| {
        let Expr::UnaryOp { op: UnaryOp::Not, expr: inner } = part.as_ref() else { return None };
        let taken = expr::conjuncts(inner);
        let others = || parts.iter().zip(&asks).enumerate().filter(|(other, _)| *other != position);
        // What the others imply and what is not left when they hold come to the same.
        let implied = |condition: &ExprRef| {
            let excluded = |(subject, ask): (String, Constraint)| {
                let mut constraints = Constraints::on_path(&subject);
                let same = others().filter_map(|(_, (_, ask))| ask.as_ref()).filter(|(known, _)| *known == subject);
                same.for_each(|(_, ask)| constraints.add(ask));
                constraints.add(&ask);
                constraints.contradiction().is_some()
            };
            is_true(condition)
                || others().any(|(_, (known, _))| known == condition)
                || understood(condition, false).is_some_and(excluded)
        };
        taken.iter().all(implied).then(|| {
            let last = taken.iter().rev().find(|condition| !is_true(condition)).unwrap_or(inner);
            let subject = understood(last, true).map_or_else(|| expr::text(last), |(subject, _)| subject);
            (subject, "`unless` takes away all that the other conditions leave")
        })
    })
}

fn is_true(expr: &Expr) -> bool {
    matches!(expr, Expr::Literal(pst::Literal::Bool(true)))
}

/// What one condition asks of which attribute; what its opposite asks, unless `holds`.
pub(crate) fn understood(part: &Expr, holds: bool) -> Option<(String, Constraint)> {
    let subject = |expr: &Expr| references::is_path(expr).then(|| expr::text(expr));
    let among = |values| if holds { Constraint::In(values) } else { Constraint::NotIn(values) };
    match part {
        Expr::GetAttr { .. } => Some((subject(part)?, Constraint::Is(Literal::Boolean(holds)))),
        Expr::UnaryOp { op: UnaryOp::Not, expr: inner } => understood(inner, !holds),
        Expr::Like { expr: inner, pattern } => {
            let glob = pattern.iter().map(|element| match element {
                // It could not be told from a wildcard in this notation.
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
            let (path, value, op) = match (Literal::of(right), Literal::of(left)) {
                (Some(value), _) => (left, value, *op),
                (None, Some(value)) => (right, value, mirrored(*op)),
                (None, None) => return None,
            };
            let ask = match (if holds { op } else { opposite(op)? }, value) {
                (BinaryOp::Eq, value) => Constraint::Is(value),
                (BinaryOp::NotEq, value) => Constraint::Not(value),
                (BinaryOp::GreaterEq, Literal::Integer(bound)) => Constraint::Min(bound),
                (BinaryOp::Greater, Literal::Integer(bound)) => Constraint::Min(bound.saturating_add(1)),
                (BinaryOp::LessEq, Literal::Integer(bound)) => Constraint::Max(bound),
                (BinaryOp::Less, Literal::Integer(bound)) => Constraint::Max(bound.saturating_sub(1)),
                _ => return None,
            };
            Some((subject(path)?, ask))
        }
        _ => None,
    }
}

/// The comparison with its sides exchanged.
fn mirrored(op: BinaryOp) -> BinaryOp {
    match op {
        BinaryOp::Less => BinaryOp::Greater,
        BinaryOp::LessEq => BinaryOp::GreaterEq,
        BinaryOp::Greater => BinaryOp::Less,
        BinaryOp::GreaterEq => BinaryOp::LessEq,
        other => other,
    }
}

/// The comparison that holds exactly where this one does not.
fn opposite(op: BinaryOp) -> Option<BinaryOp> {
    Some(match op {
        BinaryOp::Eq => BinaryOp::NotEq,
        BinaryOp::NotEq => BinaryOp::Eq,
        BinaryOp::Less => BinaryOp::GreaterEq,
        BinaryOp::LessEq => BinaryOp::Greater,
        BinaryOp::Greater => BinaryOp::LessEq,
        BinaryOp::GreaterEq => BinaryOp::Less,
        _ => return None,
    })
}
