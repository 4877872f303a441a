//! Patterns of method names: one method, all below a prefix, or all.
//! Never matches across a separator that is not written out.

use std::fmt;
use std::str::FromStr;

use crate::name::MethodName;

/// `math/add`, `math/*`, `rpc.*` or `*`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Pattern {
    /// Every method, built-in ones included.
    All,
    /// Every method whose name begins with this text, which ends in a separator.
    Below(String),
    /// One method.
    Exact(MethodName),
}

impl Pattern {
    pub(crate) fn matches(&self, method: &str) -> bool {
        match self {
            Self::All => true,
            Self::Below(prefix) => method.len() > prefix.len() && method.starts_with(prefix.as_str()),
            Self::Exact(name) => name.as_str() == method,
        }
    }

    /// Whether everything that `other` matches is matched by this pattern too.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::All, _) => true,
            (Self::Below(mine), Self::Below(theirs)) => theirs.starts_with(mine.as_str()),
            (_, Self::Exact(name)) => self.matches(name.as_str()),
            _ => false,
        }
    }

    pub(crate) fn is_exact(&self) -> bool {
        matches!(self, Self::Exact(_))
    }
}

/// Every pattern with a star that matches `method`, the widest first: `*`, `bank/*`, `bank/account.*`.
pub(crate) fn groups_of(method: &str) -> Vec<Pattern> {
    let mut groups = vec![Pattern::All];
    for (end, _) in method.match_indices(['/', '.']) {
        if let Some(prefix) = method.get(..=end) {
            groups.push(Pattern::Below(prefix.to_owned()));
        }
    }
    groups
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("*"),
            Self::Below(prefix) => write!(f, "{prefix}*"),
            Self::Exact(name) => f.write_str(name.as_str()),
        }
    }
}

impl FromStr for Pattern {
    /// What to write instead.
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "*" {
            return Ok(Self::All);
        }
        if let Some(prefix) = text.strip_suffix('*') {
            let Some(name) = prefix.strip_suffix(['/', '.']) else {
                return Err("a `*` stands for all methods, or ends a pattern after a separator: `math/*`");
            };
            return MethodName::new(name)
                .map(|_| Self::Below(prefix.to_owned()))
                .map_err(|_| "a `*` may stand only at the end, after a separator: `math/*`");
        }
        MethodName::new(text)
            .map(Self::Exact)
            .map_err(|_| "write a method name (`math/add`), all below a prefix (`math/*`), or `*`")
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
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn pattern(text: &str) -> Pattern {
        text.parse().unwrap()
    }

    #[test]
    fn patterns_match_whole_tokens_only() {
        assert!(pattern("*").matches("rpc.can"));
        assert!(pattern("math/*").matches("math/add"));
        assert!(pattern("math/*").matches("math/a.b/c"));
        assert!(pattern("rpc.*").matches("rpc.can"));
        for other in ["math", "math/", "mathx/add", "math.add", "Math/add"] {
            assert!(!pattern("math/*").matches(other), "{other}");
        }
        assert!(pattern("math/add").matches("math/add"));
        assert!(!pattern("math/add").matches("math/add2"));
    }

    #[test]
    fn stars_elsewhere_are_refused() {
        for bad in ["", "math*", "*/add", "ma*h/add", "math/**", "/*", "math//*", "math/*/add", "**", "a b"] {
            assert!(bad.parse::<Pattern>().is_err(), "{bad}");
        }
    }

    #[test]
    fn groups_are_the_patterns_that_match() {
        let texts: Vec<String> = groups_of("a/b.c").iter().map(ToString::to_string).collect();
        assert_eq!(texts, ["*", "a/*", "a/b.*"]);
    }

    #[test]
    fn wider_patterns_cover_narrower_ones() {
        assert!(pattern("*").covers(&pattern("a/*")));
        assert!(pattern("a/*").covers(&pattern("a/b/*")));
        assert!(pattern("a/*").covers(&pattern("a/b")));
        assert!(!pattern("a/b/*").covers(&pattern("a/*")));
        assert!(!pattern("a/b").covers(&pattern("a/*")));
    }

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
