//! Paths to values in a token's claims, and patterns of names, as configurations write them.
//! Never reads a claim through anything but objects, and never matches more than what is written out.

use std::fmt;

use serde::de::{Deserializer, Error as _, SeqAccess, Visitor};
use serde::{Deserialize, de};
use serde_json::{Map, Value};

use crate::fault;
use crate::settings::{Kind, Setting};

/// The path to a claim: `azp`, `realm_access.roles`, or an array for names that contain a dot or a slash,
/// `["https://example.com/roles"]`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClaimPath(Vec<String>);

/// Something on the path to a claim is not an object.
#[derive(Debug)]
pub(super) struct NotAnObject;

impl ClaimPath {
    /// Reads a dotted path: 1 to 8 names of `A-Z a-z 0-9 _ : -`.
    #[must_use]
    pub fn new(dotted: &str) -> Option<Self> {
        let is_plain = |name: &str| name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_:-".contains(&b));
        let names: Vec<_> = dotted.split('.').map(str::to_owned).collect();
        Self::of_names(names).filter(|path| path.0.iter().all(|name| is_plain(name)))
    }

    /// Takes 1 to 8 names as they are, each 1 to 128 visible ASCII characters.
    #[must_use]
    pub fn of_names(names: Vec<String>) -> Option<Self> {
        let is_name = |name: &String| (1..=128).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_graphic());
        ((1..=8).contains(&names.len()) && names.iter().all(is_name)).then_some(Self(names))
    }

    /// A path to one top-level claim.
    pub(super) fn of(name: &str) -> Self {
        Self(vec![name.to_owned()])
    }

    /// The value at this path, if there is one.
    pub(super) fn find<'a>(&self, claims: &'a Map<String, Value>) -> Result<Option<&'a Value>, NotAnObject> {
        let Some((last, way)) = self.0.split_last() else { return Ok(None) };
        let mut here = claims;
        for name in way {
            match here.get(name) {
                None => return Ok(None),
                Some(Value::Object(next)) => here = next,
                Some(_) => return Err(NotAnObject),
            }
        }
        Ok(here.get(last))
    }

    /// The string at this path, if there is one.
    pub(super) fn text<'a>(&self, claims: &'a Map<String, Value>) -> Option<&'a str> {
        self.find(claims).ok().flatten().and_then(Value::as_str)
    }
}

impl fmt::Display for ClaimPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("."))
    }
}

impl<'de> Deserialize<'de> for ClaimPath {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Written;
        impl<'de> Visitor<'de> for Written {
            type Value = ClaimPath;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a claim, a dotted path, or an array of names")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<ClaimPath, E> {
                ClaimPath::new(text).ok_or_else(|| E::custom(fault::CLAIM_PATH_AS_TEXT))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<ClaimPath, A::Error> {
                let mut names = Vec::new();
                while let Some(name) = items.next_element::<String>()? {
                    names.push(name);
                }
                ClaimPath::of_names(names).ok_or_else(|| A::Error::custom(fault::CLAIM_PATH_AS_NAMES))
            }
        }
        deserializer.deserialize_any(Written)
    }
}

impl Setting for ClaimPath {
    fn kind() -> Kind {
        Kind::Claim
    }

    fn value(&self) -> Value {
        self.to_string().into()
    }
}

/// An exact text, or a prefix followed by `*`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Pattern(String);

/// A text that is not a [`Pattern`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", fault::PATTERN)]
pub struct PatternError;

impl Pattern {
    /// Whether `text` is this text, or begins with this prefix.
    #[must_use]
    pub fn matches(&self, text: &str) -> bool {
        self.0.strip_suffix('*').map_or(self.0 == text, |beginning| text.starts_with(beginning))
    }
}

impl Setting for Pattern {
    fn kind() -> Kind {
        Kind::Pattern
    }

    fn value(&self) -> Value {
        self.0.as_str().into()
    }
}

impl TryFrom<String> for Pattern {
    type Error = PatternError;

    fn try_from(text: String) -> Result<Self, PatternError> {
        let beginning = text.strip_suffix('*').unwrap_or(&text);
        let holds = (1..=128).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic());
        if holds && !beginning.contains('*') { Ok(Self(text)) } else { Err(PatternError) }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use serde_json::json;

    use super::*;

    #[test]
    fn a_path_is_dotted_names_or_a_list_of_any() {
        let claims = json!({"a": {"b.c": ["x"], "d": {"e": "deep"}}, "https://x/y": 1, "s": "text"});
        let Value::Object(claims) = claims else { panic!() };
        let read = |written: Value| serde_json::from_value::<ClaimPath>(written);
        let find = |written: Value| read(written).unwrap().find(&claims).unwrap().cloned();
        assert_eq!(find(json!("a.d.e")), Some(json!("deep")));
        assert_eq!(find(json!(["a", "b.c"])), Some(json!(["x"])));
        assert_eq!(find(json!(["https://x/y"])), Some(json!(1)));
        assert_eq!(find(json!("a.none.e")), None);
        assert!(ClaimPath::new("s.e").unwrap().find(&claims).is_err(), "through a text");
        let nine = "a.".repeat(8) + "a";
        for bad in ["", ".", "a.", ".a", "a..b", "a b", "https://x/y", "a*", "é", nine.as_str()] {
            assert!(read(json!(bad)).is_err(), "{bad:?}");
        }
        for bad in [json!([]), json!([""]), json!(["é"]), json!([1]), json!(1), json!({})] {
            assert!(read(bad.clone()).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_pattern_has_its_star_at_the_end() {
        let pattern = |text: &str| Pattern::try_from(text.to_owned());
        assert!(pattern("worker-*").unwrap().matches("worker-7"));
        assert!(!pattern("worker-*").unwrap().matches("Worker-7"));
        assert!(pattern("*").unwrap().matches("anything"));
        assert!(pattern("ann").unwrap().matches("ann"));
        assert!(!pattern("ann").unwrap().matches("anna"));
        for bad in ["", "a*b", "**", "*a", "a b", "é"] {
            assert_eq!(pattern(bad), Err(PatternError), "{bad:?}");
        }
    }
}
