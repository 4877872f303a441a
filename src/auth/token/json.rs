//! The JSON of JOSE parts and key files: strict parsing by `strict_json`, and numbers that every reader reads alike.
//! Never gives a meaning to a member.

use serde_json::{Map, Value};

use crate::strict_json::{Flaw, check};

/// Why a JSON text of a token or key file was refused. Each message continues a sentence about the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum JsonFault {
    /// The text is not JSON, is nested too deeply, or has two members of one name in one object.
    #[error(transparent)]
    Text(#[from] Flaw),
    /// The text is JSON, but not an object.
    #[error("is not a JSON object")]
    NotAnObject,
    /// A number with a fraction or an exponent, below 0 or above 2^53-1, anywhere in the text.
    #[error("has a number that is not an integer from 0 to 2^53-1")]
    Number,
    /// Objects and arrays lie more than 16 deep, the outermost object counted.
    #[error("is nested deeper than {MAX_DEPTH} levels")]
    Depth,
}

/// Reads one JSON object.
///
/// # Errors
/// Every [`JsonFault`]; the writer of the text is to blame.
pub(crate) fn object(text: &[u8]) -> Result<Map<String, Value>, JsonFault> {
    // The grammar holds from here on; what serde_json still refuses is a number outside the range of a double.
    let value = serde_json::from_str(check(text)?).map_err(|_| JsonFault::Number)?;
    let mut unread = vec![(0, &value)];
    while let Some((around, next)) = unread.pop() {
        match next {
            Value::Array(_) | Value::Object(_) if around == MAX_DEPTH => return Err(JsonFault::Depth),
            Value::Array(items) => unread.extend(items.iter().map(|item| (around + 1, item))),
            Value::Object(members) => unread.extend(members.values().map(|member| (around + 1, member))),
            Value::Number(number) if number.as_u64().is_none_or(|integer| integer > MAX_INTEGER) => {
                return Err(JsonFault::Number);
            }
            _ => {}
        }
    }
    match value {
        Value::Object(members) => Ok(members),
        _ => Err(JsonFault::NotAnObject),
    }
}

/// Deep enough for any real claim, and shallow enough for later code to recurse.
const MAX_DEPTH: usize = 16;

/// 2^53-1: the largest integer that every JSON implementation reads exactly (RFC 8259 §6).
const MAX_INTEGER: u64 = (1 << 53) - 1;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn fault(text: &str) -> JsonFault {
        object(text.as_bytes()).unwrap_err()
    }

    /// SPEC.md §4.
    #[test]
    fn numbers_are_plain_integers_at_any_depth() {
        for bad in
            ["1.0", "1.5", "1e3", "1E0", "-1", "-0", "9007199254740992", "1e300", "1e999", "99999999999999999999"]
        {
            assert_eq!(fault(&format!(r#"{{"a":{bad}}}"#)), JsonFault::Number, "{bad}");
            assert_eq!(fault(&format!(r#"{{"a":[0,{{"b":[{bad}]}}]}}"#)), JsonFault::Number, "{bad}");
        }
        assert_eq!(object(br#"{"a":9007199254740991}"#).unwrap().get("a").and_then(Value::as_u64), Some(MAX_INTEGER));
        assert!(object(br#"{"a":0}"#).is_ok());
    }

    /// SPEC.md §4.
    #[test]
    fn duplicates_and_depth_are_refused_before_anything_is_read() {
        assert_eq!(fault(r#"{"x":[{"a":1,"\u0061":2}]}"#), JsonFault::Text(Flaw::DuplicateMember));
        assert_eq!(fault(&format!(r#"{{"a":{}"#, "[".repeat(100_000))), JsonFault::Text(Flaw::TooDeep));
    }

    #[test]
    fn nesting_is_bounded() {
        let nested = |depth: usize| format!("{}0{}", r#"{"a":"#.repeat(depth), "}".repeat(depth));
        assert!(object(nested(MAX_DEPTH).as_bytes()).is_ok());
        assert_eq!(fault(&nested(MAX_DEPTH + 1)), JsonFault::Depth);
        let arrays = |depth: usize| format!(r#"{{"a":{}{}}}"#, "[".repeat(depth), "]".repeat(depth));
        assert!(object(arrays(MAX_DEPTH - 1).as_bytes()).is_ok());
        assert_eq!(fault(&arrays(MAX_DEPTH)), JsonFault::Depth);
    }

    /// SPEC.md §4.
    #[test]
    fn anything_but_one_object_is_refused() {
        for bad in ["[]", "1", "null", r#""a""#] {
            assert_eq!(fault(bad), JsonFault::NotAnObject, "{bad}");
        }
        for bad in ["", "{} {}", r#"{"a":"\ud800"}"#] {
            assert_eq!(fault(bad), JsonFault::Text(Flaw::Syntax), "{bad}");
        }
    }
}
