//! What a rule demands of one field, and whether anything can meet all of it.
//! Never looks at a call.

use cedar_policy::pst::{self, BinaryOp, Expr, PatternElem, UnaryOp};

use super::expr::{self, E};
use super::finding::shown;
use super::hours;
use super::literals;

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

    pub(crate) fn expr(&self) -> E {
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

/// The demands on one field, for finding those that exclude each other.
#[derive(Debug, Default)]
pub(crate) struct Demands {
    allowed: Option<Vec<Literal>>,
    pub(crate) excluded: Vec<Literal>,
    pub(crate) min: Option<i64>,
    pub(crate) max: Option<i64>,
    pub(crate) globs: Vec<String>,
    pub(crate) excluded_globs: Vec<String>,
    pub(crate) min_size: Option<i64>,
    pub(crate) max_size: Option<i64>,
    /// Of each of these lists, one value at least has to be in the list.
    pub(crate) contained: Vec<Vec<Literal>>,
    /// The values that a list may have.
    pub(crate) each_in: Option<Vec<Literal>>,
    pub(crate) absent: bool,
    pub(crate) present: bool,
}

impl Demands {
    /// What `context.<attribute>` can be at all.
    pub(crate) fn on(attribute: &str) -> Self {
        let mut demands = Self::default();
        let texts = |values: &[&str]| values.iter().map(|value| Literal::String((*value).to_owned())).collect();
        match attribute {
            "algorithm" => demands.allow(texts(&literals::ALGORITHMS)),
            "weekday" => demands.allow(texts(&hours::DAYS)),
            "hour" => demands.range(24),
            "minute" => demands.range(60),
            "minute_of_day" => demands.range(hours::DAY),
            "minute_of_week" => demands.range(hours::WEEK),
            _ => {}
        }
        demands
    }

    /// As [`Demands::on`], for a path as a policy spells it.
    fn on_path(path: &str) -> Self {
        path.strip_prefix("context.").map(Self::on).unwrap_or_default()
    }

    fn ask(&mut self, ask: &Ask) {
        match ask {
            Ask::Allow(values) => self.allow(values.clone()),
            Ask::Exclude(values) => self.excluded.extend(values.iter().cloned()),
            Ask::AtLeast(bound) => self.at_least(*bound),
            Ask::AtMost(bound) => self.at_most(*bound),
            Ask::Glob(glob) => self.globs.push(glob.clone()),
            Ask::NotGlob(glob) => self.excluded_globs.push(glob.clone()),
        }
    }

    /// From 0, and below `end`.
    fn range(&mut self, end: u32) {
        self.at_least(0);
        self.at_most(i64::from(end) - 1);
    }

    pub(crate) fn allow(&mut self, values: Vec<Literal>) {
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
        if self.absent && self.present {
            return Some("it would have to be absent and have a value");
        }
        if let (Some(min), Some(max)) = (self.min, self.max)
            && min > max
        {
            return Some("`min` is larger than `max`");
        }
        if let (Some(min), Some(max)) = (self.min_size, self.max_size)
            && min > max
        {
            return Some("`min_size` is larger than `max_size`");
        }
        if !self.contained.is_empty() && self.max_size == Some(0) {
            return Some("`max_size` leaves no room for what it has to contain");
        }
        let left_out = |values: &[Literal]| match &self.each_in {
            Some(each) => !values.iter().any(|value| each.contains(value)),
            None => false,
        };
        if self.contained.iter().any(|values| left_out(values)) {
            return Some("`each_in` leaves out what it has to contain");
        }
        // A star of the one can stand only where a star of the other does, so this is never too strict.
        let covered = |wide: &String| {
            wide.bytes().all(|byte| byte == b'*') && !wide.is_empty()
                || self.globs.iter().any(|glob| matches_glob(wide, glob))
        };
        if self.allowed.is_none() && self.excluded_globs.iter().any(covered) {
            return Some("`not_glob` leaves nothing");
        }
        if self.allowed.as_ref().is_some_and(|allowed| !allowed.iter().any(|value| self.leaves(value))) {
            return Some("no value is left that all of them admit");
        }
        if let (Some(min), Some(max)) = (self.min, self.max)
            && (min..=max).take(self.excluded.len() + 1).all(|value| self.excluded.contains(&Literal::Integer(value)))
        {
            return Some("every value of the range is excluded");
        }
        if [true, false].iter().all(|value| self.excluded.contains(&Literal::Boolean(*value))) {
            return Some("it is neither true nor false");
        }
        None
    }
}

/// The first thing of which these conditions together ask what it cannot be, and why.
///
/// Comparisons of one attribute with literals are understood, conditions that are taken away again as they stand, and
/// nothing else: what is not found here may still never hold.
pub(crate) fn contradiction<'a>(conditions: impl IntoIterator<Item = &'a E>) -> Option<(String, &'static str)> {
    let parts: Vec<E> = conditions.into_iter().flat_map(expr::conjuncts).collect();
    let asks: Vec<Option<(String, Ask)>> = parts.iter().map(|part| understood(part, true)).collect();
    let mut demands: Vec<(&str, Demands)> = Vec::new();
    for (subject, ask) in asks.iter().flatten() {
        let position = demands.iter().position(|(known, _)| known == subject).unwrap_or_else(|| {
            demands.push((subject, Demands::on_path(subject)));
            demands.len() - 1
        });
        if let Some((_, demands)) = demands.get_mut(position) {
            demands.ask(ask);
        }
    }
    if let Some(found) =
        demands.into_iter().find_map(|(subject, demands)| Some((subject.to_owned(), demands.contradiction()?)))
    {
        return Some(found);
    }
    parts.iter().enumerate().find_map(|(position, part)| {
        let Expr::UnaryOp { op: UnaryOp::Not, expr: inner } = part.as_ref() else { return None };
        let taken = expr::conjuncts(inner);
        let others = || parts.iter().zip(&asks).enumerate().filter(|(other, _)| *other != position);
        // What the others imply and what is not left when they hold come to the same.
        let implied = |condition: &E| {
            let excluded = |(subject, ask): (String, Ask)| {
                let mut demands = Demands::on_path(&subject);
                let same = others().filter_map(|(_, (_, ask))| ask.as_ref()).filter(|(known, _)| *known == subject);
                same.for_each(|(_, ask)| demands.ask(ask));
                demands.ask(&ask);
                demands.contradiction().is_some()
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

/// One thing that is asked of an attribute.
#[derive(Debug)]
enum Ask {
    Allow(Vec<Literal>),
    Exclude(Vec<Literal>),
    AtLeast(i64),
    AtMost(i64),
    Glob(String),
    NotGlob(String),
}

/// What one condition asks of which attribute; what its opposite asks, unless `holds`.
fn understood(part: &Expr, holds: bool) -> Option<(String, Ask)> {
    let subject = |expr: &Expr| expr::is_path(expr).then(|| expr::text(expr));
    let among = |values| if holds { Ask::Allow(values) } else { Ask::Exclude(values) };
    match part {
        Expr::GetAttr { .. } => Some((subject(part)?, Ask::Allow(vec![Literal::Boolean(holds)]))),
        Expr::UnaryOp { op: UnaryOp::Not, expr: inner } => understood(inner, !holds),
        Expr::Like { expr: inner, pattern } => {
            let glob: String = pattern
                .iter()
                .map(|element| match element {
                    PatternElem::Char(character) => *character,
                    PatternElem::Wildcard => '*',
                })
                .collect();
            // A literal star cannot be told from a wildcard in this notation.
            let plain = pattern.iter().all(|element| *element != PatternElem::Char('*'));
            plain.then_some(())?;
            Some((subject(inner)?, if holds { Ask::Glob(glob) } else { Ask::NotGlob(glob) }))
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
                (BinaryOp::Eq, value) => Ask::Allow(vec![value]),
                (BinaryOp::NotEq, value) => Ask::Exclude(vec![value]),
                (BinaryOp::GreaterEq, Literal::Integer(bound)) => Ask::AtLeast(bound),
                (BinaryOp::Greater, Literal::Integer(bound)) => Ask::AtLeast(bound.saturating_add(1)),
                (BinaryOp::LessEq, Literal::Integer(bound)) => Ask::AtMost(bound),
                (BinaryOp::Less, Literal::Integer(bound)) => Ask::AtMost(bound.saturating_sub(1)),
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

/// Whether a glob matches a text, as Cedar's `like` does: `*` stands for any text.
pub(crate) fn matches_glob(glob: &str, text: &str) -> bool {
    match glob.split_once('*') {
        None => glob == text,
        Some((head, rest)) => text.strip_prefix(head).is_some_and(|text| {
            let mut pieces: Vec<&str> = rest.split('*').collect();
            let tail = pieces.pop().unwrap_or_default();
            let mut left = text;
            for piece in pieces {
                match left.find(piece) {
                    Some(at) => left = left.get(at + piece.len()..).unwrap_or_default(),
                    None => return false,
                }
            }
            left.ends_with(tail)
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::matches_glob;

    #[test]
    fn globs_match_as_like_does() {
        for (glob, text, expected) in [
            ("acct-*", "acct-1", true),
            ("acct-*", "acct-", true),
            ("acct-*", "xacct-1", false),
            ("*-1", "acct-1", true),
            ("a*b*c", "a1b2c", true),
            ("a*b*c", "acb", false),
            ("a*a", "a", false),
            ("*", "", true),
            ("", "", true),
            ("a", "ab", false),
            ("*ab*ab", "ab", false),
            ("*ab*ab", "abab", true),
        ] {
            assert_eq!(matches_glob(glob, text), expected, "{glob} {text}");
        }
    }
}
