//! Reads JSON objects, and accepts nothing else in their place.
//! Never accepts an array for a struct, as serde does by the order of the fields: no other parser would read it that way.

use serde::de::{DeserializeOwned, Error as _, IgnoredAny};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

/// Puts JSON on one line. Line breaks can only stand between tokens, where a space is as good.
pub fn on_one_line(text: &mut [u8]) {
    text.iter_mut().filter(|byte| matches!(**byte, b'\n' | b'\r')).for_each(|byte| *byte = b' ');
}

/// Reads text that must be an object.
pub fn object<'de, T: Deserialize<'de>>(text: &'de str) -> Result<T, serde_json::Error> {
    if text.trim_ascii_start().starts_with('{') {
        serde_json::from_str(text)
    } else {
        // Text that is not JSON at all gets the parser's own error.
        serde_json::from_str::<IgnoredAny>(text).and(Err(serde_json::Error::custom("it must be an object")))
    }
}

/// The same for a member.
pub fn member<'de, D: Deserializer<'de>, T: DeserializeOwned>(deserializer: D) -> Result<T, D::Error> {
    object(<&RawValue>::deserialize(deserializer)?.get()).map_err(D::Error::custom)
}

/// The same for a member that may be null.
pub fn optional<'de, D: Deserializer<'de>, T: DeserializeOwned>(deserializer: D) -> Result<Option<T>, D::Error> {
    let raw = Option::<&RawValue>::deserialize(deserializer)?;
    raw.map(|raw| object(raw.get()).map_err(D::Error::custom)).transpose()
}

/// The same for each item of a list.
pub fn items<'de, D: Deserializer<'de>, T: DeserializeOwned>(deserializer: D) -> Result<Vec<T>, D::Error> {
    let raw = Vec::<&RawValue>::deserialize(deserializer)?;
    raw.into_iter().map(|raw| object(raw.get()).map_err(D::Error::custom)).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[derive(Debug, Deserialize)]
    struct Outer {
        #[serde(deserialize_with = "member")]
        one: Inner,
        #[serde(default, deserialize_with = "optional")]
        maybe: Option<Inner>,
        #[serde(default, deserialize_with = "items")]
        many: Vec<Inner>,
    }

    #[derive(Debug, Deserialize)]
    struct Inner {
        a: u32,
    }

    #[test]
    fn arrays_are_no_objects() {
        let read: Outer = object(r#" {"one":{"a":1},"maybe":null,"many":[{"a":2},{"a":3}]}"#).unwrap();
        let many: Vec<u32> = read.many.iter().map(|inner| inner.a).collect();
        assert_eq!((read.one.a, read.maybe.is_none(), many), (1, true, vec![2, 3]));
        for text in [
            r#"[{"a":1},null,[]]"#,
            r#"{"one":[1]}"#,
            r#"{"one":{"a":1},"maybe":[1]}"#,
            r#"{"one":{"a":1},"many":[[1]]}"#,
            "5",
        ] {
            let error = object::<Outer>(text).unwrap_err();
            assert!(error.is_data() && error.to_string().contains("it must be an object"), "{text}: {error}");
        }
        assert!(object::<Outer>("[").unwrap_err().is_eof() && object::<Outer>("nonsense").unwrap_err().is_syntax());
    }
}
