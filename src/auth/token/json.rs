//! The JSON of tokens and key files: strict parsing by `strict_json`. Their writers do not know this protocol, so numbers are as RFC 8259
//! has them; whoever reads one says which it takes.
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
    /// A number outside the range of a double, such as `1e999`, anywhere in the text.
    #[error("has a number that is too large for any reader")]
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn fault(text: &str) -> JsonFault {
        object(text.as_bytes()).unwrap_err()
    }

    /// SPEC.md §7.
    #[test]
    fn any_number_of_json_is_read_and_one_beyond_a_double_is_refused() {
        for good in [
            "0",
            "-0",
            "1.0",
            "1.5",
            "-1.5",
            "1e3",
            "1E0",
            "-1",
            "9007199254740992",
            "18446744073709551616",
            "1e300",
            "1e-999",
            "99999999999999999999",
        ] {
            for text in [format!(r#"{{"a":{good}}}"#), format!(r#"{{"a":[0,{{"b":[{good}]}}]}}"#)] {
                assert!(object(text.as_bytes()).is_ok(), "{text}");
            }
        }
        for bad in ["1e999", "-1e999", "1e400"] {
            assert_eq!(fault(&format!(r#"{{"a":[{{"b":{bad}}}]}}"#)), JsonFault::Number, "{bad}");
        }
        for bad in ["01", "+1", "1.", ".5", "NaN", "Infinity", "0x1"] {
            assert_eq!(fault(&format!(r#"{{"a":{bad}}}"#)), JsonFault::Text(Flaw::Syntax), "{bad}");
        }
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
