//! JSON whose numbers stay what they are in the text: for definitions that are compared, and for the bounds in schemas.
//! Never rounds a number that is compared with another.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Number, Value};

/// Why a text has no such value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ExactError {
    /// Not JSON.
    #[error("it is not JSON")]
    Syntax,
    /// Two members of one object have the same name.
    #[error("a member name occurs twice in an object")]
    Twice,
    /// Nested deeper than [`DEEPEST`].
    #[error("it is nested deeper than {DEEPEST} levels")]
    TooDeep,
}

/// As deep as `serde_json` reads.
const DEEPEST: usize = 128;

/// A value, with each number, truth value and null as its text.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Node<'a> {
    Word(&'a str),
    Text(String),
    List(Vec<Node<'a>>),
    Object(BTreeMap<String, Node<'a>>),
}

/// The value of a text. A number that is too large for any value is the largest: no value is above it, either.
///
/// # Errors
/// [`ExactError`].
pub(crate) fn value(text: &str) -> Result<Value, ExactError> {
    match serde_json::from_str(text) {
        Ok(value) => Ok(value),
        // Perhaps only because of such a number.
        Err(_) => Ok(Node::of(text)?.value()),
    }
}

/// The one text of an object, without its member `left_out`: members in the order of their names, no white space, and each number as it
/// came.
///
/// # Errors
/// [`ExactError`].
pub(crate) fn text(of: &str, left_out: &str) -> Result<String, ExactError> {
    let mut node = Node::of(of)?;
    if let Node::Object(members) = &mut node {
        members.remove(left_out);
    }
    let mut text = String::with_capacity(of.len());
    node.write(&mut text);
    Ok(text)
}

/// The value of a text on several lines, indented.
///
/// # Errors
/// [`ExactError`].
pub(crate) fn lines(of: &str) -> Result<String, ExactError> {
    let mut text = String::with_capacity(2 * of.len());
    Node::of(of)?.indent(0, &mut text);
    Ok(text)
}

/// What differs between two values: `-` or `+`, where (a JSON Pointer, RFC 6901), and what is there before or after.
///
/// # Errors
/// [`ExactError`].
pub(crate) fn differences(before: &str, after: &str) -> Result<Vec<(char, String, String)>, ExactError> {
    let mut found = Vec::new();
    compare("", Some(&Node::of(before)?), Some(&Node::of(after)?), &mut found);
    Ok(found)
}

fn compare(place: &str, before: Option<&Node<'_>>, after: Option<&Node<'_>>, found: &mut Vec<(char, String, String)>) {
    let below = |name: &str| format!("{place}/{}", name.replace('~', "~0").replace('/', "~1"));
    match (before, after) {
        (Some(before), Some(after)) if before == after => {}
        (Some(Node::Object(before)), Some(Node::Object(after))) => {
            for (name, value) in before {
                compare(&below(name), Some(value), after.get(name), found);
            }
            for (name, value) in after.iter().filter(|(name, _)| !before.contains_key(*name)) {
                compare(&below(name), None, Some(value), found);
            }
        }
        _ => {
            for (sign, node) in [('-', before), ('+', after)] {
                if let Some(node) = node {
                    let mut text = String::new();
                    node.write(&mut text);
                    found.push((sign, place.to_owned(), text));
                }
            }
        }
    }
}

impl<'a> Node<'a> {
    /// Writes the value, the lines after the first indented by this many levels.
    fn indent(&self, level: usize, text: &mut String) {
        let line = |level: usize, text: &mut String| {
            text.push('\n');
            text.push_str(&"  ".repeat(level));
        };
        match self {
            Self::List(items) if !items.is_empty() => {
                text.push('[');
                for (position, item) in items.iter().enumerate() {
                    text.push_str(if position > 0 { "," } else { "" });
                    line(level + 1, text);
                    item.indent(level + 1, text);
                }
                line(level, text);
                text.push(']');
            }
            Self::Object(members) if !members.is_empty() => {
                text.push('{');
                for (position, (name, member)) in members.iter().enumerate() {
                    text.push_str(if position > 0 { "," } else { "" });
                    line(level + 1, text);
                    text.push_str(&Value::from(name.as_str()).to_string());
                    text.push_str(": ");
                    member.indent(level + 1, text);
                }
                line(level, text);
                text.push('}');
            }
            plain => plain.write(text),
        }
    }

    fn of(text: &'a str) -> Result<Self, ExactError> {
        Self::read(serde_json::from_str::<&RawValue>(text).map_err(|_| ExactError::Syntax)?, 0)
    }

    fn read(raw: &'a RawValue, depth: usize) -> Result<Self, ExactError> {
        if depth > DEEPEST {
            return Err(ExactError::TooDeep);
        }
        let text = raw.get();
        Ok(match text.as_bytes().first() {
            Some(b'"') => Self::Text(serde_json::from_str(text).map_err(|_| ExactError::Syntax)?),
            Some(b'[') => {
                let items: Vec<&RawValue> = serde_json::from_str(text).map_err(|_| ExactError::Syntax)?;
                Self::List(items.into_iter().map(|item| Self::read(item, depth + 1)).collect::<Result<_, _>>()?)
            }
            Some(b'{') => {
                let Members(members) = serde_json::from_str(text).map_err(|_| ExactError::Syntax)?;
                let mut object = BTreeMap::new();
                for (name, member) in members {
                    if object.insert(name, Self::read(member, depth + 1)?).is_some() {
                        return Err(ExactError::Twice);
                    }
                }
                Self::Object(object)
            }
            _ => Self::Word(text),
        })
    }

    fn write(&self, text: &mut String) {
        let quoted = |name: &str| Value::from(name).to_string();
        match self {
            Self::Word(word) => text.push_str(word),
            Self::Text(value) => text.push_str(&quoted(value)),
            Self::List(items) => {
                text.push('[');
                for (position, item) in items.iter().enumerate() {
                    text.push_str(if position > 0 { "," } else { "" });
                    item.write(text);
                }
                text.push(']');
            }
            Self::Object(members) => {
                text.push('{');
                for (position, (name, member)) in members.iter().enumerate() {
                    // Writing to a string cannot fail.
                    let _ = write!(text, "{}{}:", if position > 0 { "," } else { "" }, quoted(name));
                    member.write(text);
                }
                text.push('}');
            }
        }
    }

    fn value(self) -> Value {
        match self {
            Self::Word(word) => serde_json::from_str(word).unwrap_or_else(|_| {
                let most = if word.starts_with('-') { f64::MIN } else { f64::MAX };
                Number::from_f64(most).map_or(Value::Null, Value::Number)
            }),
            Self::Text(text) => Value::String(text),
            Self::List(items) => Value::Array(items.into_iter().map(Self::value).collect()),
            Self::Object(members) => {
                Value::Object(members.into_iter().map(|(name, member)| (name, member.value())).collect())
            }
        }
    }
}

/// The members of an object, each as often as it is there.
struct Members<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members<'de>, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Reader)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use serde_json::json;

    use super::*;

    #[test]
    fn one_definition_has_one_text_and_numbers_stay_as_they_are() {
        let one =
            text(r#"{ "b": [1, 2.0, -0, 1E2], "a": {"z": "\u00e9\n", "_meta": true}, "_meta": {"x": 1} }"#, "_meta");
        assert_eq!(one.unwrap(), r#"{"a":{"_meta":true,"z":"é\n"},"b":[1,2.0,-0,1E2]}"#);
        for number in [
            "9223372036854775807",
            "18446744073709551615",
            "100.00000000000000001",
            "1e400",
            "-1e-400",
            "123456789012345678901234567890",
        ] {
            let whole = format!("{{\"maximum\":{number}}}");
            let first = text(&whole, "").unwrap();
            assert_eq!(first, whole);
            // The text of a text is itself: an approval is compared again and again.
            assert_eq!(text(&first, "").unwrap(), first);
        }
    }

    #[test]
    fn a_value_that_could_be_read_in_two_ways_has_no_text() {
        assert_eq!(text(r#"{"a": 1, "\u0061": 2}"#, ""), Err(ExactError::Twice));
        assert_eq!(text(r#"{"a": NaN}"#, ""), Err(ExactError::Syntax));
        assert_eq!(text(r#"{"a": "\ud800"}"#, ""), Err(ExactError::Syntax));
        assert_eq!(text(&"[".repeat(200), ""), Err(ExactError::Syntax));
        assert_eq!(text(&format!("{}{}", "[".repeat(200), "]".repeat(200)), ""), Err(ExactError::TooDeep));
    }

    #[test]
    fn lines_show_what_is_written_and_every_difference_is_one() {
        let before = r#"{"a":{"x":100.00000000000000001,"y":[]},"b/c":1,"d":[1]}"#;
        let after = r#"{"a":{"x":100.00000000000000002,"y":[]},"d":[1,2],"e":1e400}"#;
        let found = differences(before, after).unwrap();
        let found: Vec<String> =
            found.into_iter().map(|(sign, place, value)| format!("{sign} {place} {value}")).collect();
        assert_eq!(
            found,
            [
                "- /a/x 100.00000000000000001",
                "+ /a/x 100.00000000000000002",
                "- /b~1c 1",
                "- /d [1]",
                "+ /d [1,2]",
                "+ /e 1e400"
            ]
        );
        let shown = lines(r#"{"a":{"x":[1e400,{}],"y":[]}}"#).unwrap();
        assert_eq!(shown, "{\n  \"a\": {\n    \"x\": [\n      1e400,\n      {}\n    ],\n    \"y\": []\n  }\n}");
    }

    #[test]
    fn a_number_beyond_all_numbers_is_the_largest() {
        let bounds = value(r#"{"maximum": 1e400, "minimum": -1e400, "x": [18446744073709551615, 1.5]}"#).unwrap();
        assert_eq!(bounds, json!({ "maximum": f64::MAX, "minimum": f64::MIN, "x": [u64::MAX, 1.5] }));
    }
}
