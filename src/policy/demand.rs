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
        if self.max_size.is_some_and(|max| max < 0) {
            return Some("a list has no negative size");
        }
        if let Some(allowed) = &self.allowed {
            let possible = allowed.iter().any(|value| self.admits(value) && !self.excluded.contains(value));
            if !possible {
                return Some("no value is left that all of them admit");
            }
        }
        if let (Some(min), Some(max)) = (self.min, self.max)
            && (min..=max).take(self.excluded.len() + 1).all(|value| self.excluded.contains(&Literal::Integer(value)))
        {
            return Some("every value of the range is excluded");
        }
        None
    }
}

/// The first thing of which these conditions together ask what it cannot be, and why.
///
/// Comparisons of one attribute with literals are understood, and nothing else: what is not found here may still never
/// hold.
pub(crate) fn contradiction<'a>(conditions: impl IntoIterator<Item = &'a E>) -> Option<(String, &'static str)> {
    let mut demands: Vec<(String, Demands)> = Vec::new();
    for part in conditions.into_iter().flat_map(expr::conjuncts) {
        let Some((subject, ask)) = understood(&part) else { continue };
        let position = demands.iter().position(|(known, _)| *known == subject).unwrap_or_else(|| {
            let known = subject.strip_prefix("context.").map(Demands::on).unwrap_or_default();
            demands.push((subject, known));
            demands.len() - 1
        });
        if let Some((_, demands)) = demands.get_mut(position) {
            ask(demands);
        }
    }
    demands.into_iter().find_map(|(subject, demands)| Some((subject, demands.contradiction()?)))
}

type Ask = Box<dyn FnOnce(&mut Demands)>;

/// What one condition asks of which attribute.
fn understood(part: &Expr) -> Option<(String, Ask)> {
    let subject = |expr: &Expr| expr::is_path(expr).then(|| expr::text(expr));
    match part {
        Expr::GetAttr { .. } => Some((subject(part)?, Box::new(|demands| demands.allow(vec![Literal::Boolean(true)])))),
        Expr::UnaryOp { op: UnaryOp::Not, expr: inner } => match inner.as_ref() {
            Expr::GetAttr { .. } => {
                Some((subject(inner)?, Box::new(|demands| demands.allow(vec![Literal::Boolean(false)]))))
            }
            _ => None,
        },
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
            Some((subject(inner)?, Box::new(move |demands| demands.globs.push(glob))))
        }
        Expr::BinaryOp { op: BinaryOp::Contains, left, right } => {
            let Expr::Set(values) = left.as_ref() else { return None };
            let values: Vec<Literal> = values.iter().map(|value| Literal::of(value)).collect::<Option<_>>()?;
            Some((subject(right)?, Box::new(move |demands| demands.allow(values))))
        }
        Expr::BinaryOp { op, left, right } => {
            let value = Literal::of(right)?;
            let ask: Ask = match (op, value) {
                (BinaryOp::Eq, value) => Box::new(|demands| demands.allow(vec![value])),
                (BinaryOp::NotEq, value) => Box::new(|demands| demands.excluded.push(value)),
                (BinaryOp::GreaterEq, Literal::Integer(bound)) => Box::new(move |demands| demands.at_least(bound)),
                (BinaryOp::Greater, Literal::Integer(bound)) => {
                    Box::new(move |demands| demands.at_least(bound.saturating_add(1)))
                }
                (BinaryOp::LessEq, Literal::Integer(bound)) => Box::new(move |demands| demands.at_most(bound)),
                (BinaryOp::Less, Literal::Integer(bound)) => {
                    Box::new(move |demands| demands.at_most(bound.saturating_sub(1)))
                }
                _ => return None,
            };
            Some((subject(left)?, ask))
        }
        _ => None,
    }
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
