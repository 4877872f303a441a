//! The id that ties a response to its request.
//! Never converts an id to a number: it is returned as it came, byte for byte.

use std::borrow::Cow;
use std::fmt;
use std::hash::{Hash, Hasher};

use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

/// The `id` of a request or a response: a JSON string, number or null, kept as its original text.
///
/// Large integers, fractions and escapes survive unchanged. Two ids are equal if they are the same JSON *value*, however it is
/// written: `"\u0061"` equals `"a"`, and `1`, `1.0` and `10e-1` are equal. Numbers are compared digit by digit, never as floating
/// point, so `9007199254740993` differs from `9007199254740992`. The string `"1"` is not the number `1`.
///
/// ```
/// use sealwire::internal::rpc::Id;
///
/// assert_eq!(Id::from(7).as_json(), "7");
/// assert_eq!(Id::from("a\"b").as_json(), r#""a\"b""#);
/// assert_ne!(Id::from(1), Id::from("1"));
/// ```
#[derive(Clone)]
pub struct Id(Box<RawValue>);

impl Id {
    /// The id of a response to a request whose own id could not be read.
    ///
    /// A client that uses null for a request cannot tell its answer from a refusal of the whole message.
    // JSON-RPC 2.0 §4: "The value SHOULD normally not be Null": `From` only accepts integers and strings.
    #[must_use]
    pub fn null() -> Self {
        Self(RawValue::NULL.to_owned())
    }

    /// Whether this is null.
    #[must_use]
    pub fn is_null(&self) -> bool {
        self.as_json() == "null"
    }

    /// The id as JSON text, unchanged.
    #[must_use]
    pub fn as_json(&self) -> &str {
        self.0.get()
    }

    /// Returns `None` if the value is a boolean, an array or an object.
    // JSON-RPC 2.0 §4: the id "MUST contain a String, Number, or NULL value if included".
    pub(super) fn from_raw(raw: &RawValue) -> Option<Self> {
        let legal = raw.get() == "null" || raw.get().starts_with(['"', '-']) || is_digit_first(raw.get());
        legal.then(|| Self(raw.to_owned()))
    }

    fn value(&self) -> Value<'_> {
        match self.as_json() {
            "null" => Value::Null,
            text if text.starts_with('"') => match serde_json::from_str(text) {
                Ok(string) => Value::String(string),
                Err(_) => Value::Verbatim(text),
            },
            text => Value::number(text).unwrap_or(Value::Verbatim(text)),
        }
    }
}

// JSON-RPC 2.0 §4: "Numbers SHOULD NOT contain fractional parts": there is no conversion from a float.
impl From<u64> for Id {
    fn from(number: u64) -> Self {
        Self::of(&number)
    }
}

impl From<&str> for Id {
    fn from(text: &str) -> Self {
        Self::of(text)
    }
}

impl Id {
    #[expect(clippy::expect_used, reason = "called with integers and strings only, and all of them are JSON values")]
    fn of<T: Serialize + ?Sized>(value: &T) -> Self {
        Self(serde_json::value::to_raw_value(value).expect("an integer or a string is a JSON value"))
    }
}

impl PartialEq for Id {
    fn eq(&self, other: &Self) -> bool {
        self.as_json() == other.as_json() || self.value() == other.value()
    }
}

impl Eq for Id {}

impl Hash for Id {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.value().hash(state);
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Id").field(&self.as_json()).finish()
    }
}

impl Serialize for Id {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

/// The value of an id, for comparison.
#[derive(PartialEq, Eq, Hash)]
enum Value<'a> {
    Null,
    String(Cow<'a, str>),
    /// `digits` · 10^`exponent`, without zeros at either end of `digits`; zero has no digits and no sign.
    Number {
        negative: bool,
        digits: String,
        exponent: i64,
    },
    /// A number whose exponent does not fit an `i64`: equal only to the same text.
    Verbatim(&'a str),
}

impl<'a> Value<'a> {
    fn number(text: &'a str) -> Option<Self> {
        let (negative, text) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
        let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let digits = format!("{whole}{fraction}");
        let digits = digits.trim_start_matches('0');
        let significant = digits.trim_end_matches('0');
        if significant.is_empty() {
            return Some(Self::Number { negative: false, digits: String::new(), exponent: 0 });
        }
        let dropped = i64::try_from(digits.len() - significant.len()).ok()?;
        let exponent =
            exponent.parse::<i64>().ok()?.checked_sub(i64::try_from(fraction.len()).ok()?)?.checked_add(dropped)?;
        Some(Self::Number { negative, digits: significant.to_owned(), exponent })
    }
}

fn is_digit_first(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use std::collections::HashSet;

    use super::*;

    fn id(text: &str) -> Option<Id> {
        Id::from_raw(serde_json::from_str(text).unwrap())
    }

    #[test]
    fn ids_are_strings_numbers_and_null() {
        for legal in ["null", "0", "-1", "1.5", "1e999", "\"\"", "\"a\\u0000\"", "123456789012345678901234567890"] {
            assert_eq!(id(legal).unwrap().as_json(), legal);
        }
        for illegal in ["true", "false", "[]", "{}", "[1]", "{\"a\":1}"] {
            assert!(id(illegal).is_none(), "{illegal}");
        }
    }

    #[test]
    fn equal_ids_are_the_same_json_value() {
        let same = [
            ("1", "1.0"),
            ("1", "10e-1"),
            ("100", "1e2"),
            ("-0", "0.00"),
            ("0e99999999999999999999", "0"),
            ("\"a/b\"", r#""\u0061\/b""#),
            ("-1.50", "-15E-1"),
        ];
        for (left, right) in same {
            assert_eq!(id(left), id(right), "{left} {right}");
            assert_eq!(HashSet::from([id(left), id(right)]).len(), 1, "{left} {right}");
        }
        let different = [
            ("9007199254740993", "9007199254740992"),
            ("1", "\"1\""),
            ("1", "-1"),
            ("null", "\"null\""),
            ("0", "null"),
            ("1e99999999999999999999", "1e99999999999999999998"),
            ("1", "10"),
            ("\"a\"", "\"A\""),
        ];
        for (left, right) in different {
            assert_ne!(id(left), id(right), "{left} {right}");
        }
    }

    #[test]
    fn debug_output_of_an_id_is_one_line_of_printable_text() {
        assert_eq!(format!("{:?}", id("\"\u{9b}2J\"").unwrap()), r#"Id("\"\u{9b}2J\"")"#);
    }
}
