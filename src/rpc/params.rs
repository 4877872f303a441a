//! The parameters of a call: JSON text that a method decodes into its own type.
//! Never reveals their content: not in `Debug`, and to the caller only what the caller sent.

use std::fmt;

use serde::de::DeserializeOwned;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

use super::RpcError;
use super::error::one_line;
use super::json::{is_array, is_object};

/// The `params` of a request: a JSON object or array, kept as its original text.
#[derive(Clone)]
pub struct Params(Box<RawValue>);

/// Why a value cannot be the parameters of a request.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ParamsError {
    /// The value is a string, a number or a boolean. Wrap it in a struct (by name) or in a tuple or an array (by position).
    #[error("params must be a struct, a map, a tuple or a sequence, or nothing")]
    NotStructured,
    /// The value's own `Serialize` failed.
    #[error("params cannot be written as JSON")]
    Serialize(#[source] serde_json::Error),
}

impl Params {
    /// Encodes the parameters of a request; `None` if the value is `()`, `None` or anything else that becomes JSON's null.
    ///
    /// # Errors
    /// [`ParamsError`], always the sender's fault.
    pub fn encode<T: Serialize + ?Sized>(value: &T) -> Result<Option<Self>, ParamsError> {
        let raw = serde_json::value::to_raw_value(value).map_err(ParamsError::Serialize)?;
        // JSON-RPC 2.0 §4: "This member MAY be omitted."
        if raw.get() == "null" {
            return Ok(None);
        }
        if is_object(raw.get()) || is_array(raw.get()) { Ok(Some(Self(raw))) } else { Err(ParamsError::NotStructured) }
    }

    /// Decodes the parameters of a call into a method's own type.
    ///
    /// A derived struct accepts both kinds: an object by its member names and an array by the order of its fields. Absent
    /// parameters are tried as null, as an empty object and as an empty array, so that `()`, an `Option`, a struct whose fields
    /// all have defaults and a `Vec` accept them. An empty object or array that does not fit counts as absent.
    ///
    /// # Errors
    /// `-32602`, the caller's fault, with the reason: one line of at most 200 characters that quotes nothing but the
    /// parameters.
    // JSON-RPC 2.0 §4.2: "The absence of expected names MAY result in an error being generated. The names MUST match
    // exactly, including case": serde compares names byte for byte.
    pub fn decode<P: DeserializeOwned>(params: Option<&Self>) -> Result<P, RpcError> {
        let given = params.map(|params| serde_json::from_str(params.0.get()));
        match given {
            Some(Ok(value)) => Ok(value),
            Some(Err(error)) => {
                let refused = || refusal::<P>(params.map_or("", |params| params.0.get()), &error);
                if params.is_some_and(|params| !params.is_empty()) {
                    Err(refused())
                } else {
                    absent().map_err(|_| refused())
                }
            }
            None => absent().map_err(|_| refusal_of_absent::<P>()),
        }
    }

    /// Whether they are given by name, as an object. Otherwise they are positional, an array.
    #[must_use]
    pub fn is_named(&self) -> bool {
        is_object(self.0.get())
    }

    /// The JSON text, unchanged.
    #[must_use]
    pub fn raw(&self) -> &RawValue {
        &self.0
    }

    /// Returns `None` unless the value is an object or an array.
    // JSON-RPC 2.0 §4.2: "parameters for the rpc call MUST be provided as a Structured value."
    pub(super) fn from_raw(raw: &RawValue) -> Option<Self> {
        (is_object(raw.get()) || is_array(raw.get())).then(|| Self(raw.to_owned()))
    }

    fn is_empty(&self) -> bool {
        self.0.get().bytes().all(|byte| b"[]{} \t\n\r".contains(&byte)) && self.0.get().matches(['[', '{']).count() == 1
    }
}

fn absent<P: DeserializeOwned>() -> Result<P, serde_json::Error> {
    serde_json::from_str("null")
        .or_else(|_| serde_json::from_str("{}"))
        .or_else(|error| serde_json::from_str("[]").map_err(|_| error))
}

fn refusal_of_absent<P: DeserializeOwned>() -> RpcError {
    let text = "{}";
    match serde_json::from_str::<P>(text) {
        Err(error) => refusal::<P>(text, &error),
        // Unreachable: `absent` would have returned it.
        Ok(_) => RpcError::invalid_params("Invalid params"),
    }
}

/// Explains what is wrong in the caller's terms: serde's messages name the Rust types of the method.
fn refusal<P: DeserializeOwned>(text: &str, error: &serde_json::Error) -> RpcError {
    // Parses once more, now tracking the path. Only failures pay for it.
    let mut reader = serde_json::Deserializer::from_str(text);
    let place = serde_path_to_error::deserialize::<_, P>(&mut reader).err();
    let place = place.map(|error| error.path().to_string()).filter(|path| path != ".").unwrap_or_default();
    let error = error.to_string();
    // The position is relative to the parameters, which the caller never sees as a separate text.
    let reason = error.rsplit_once(" at line ").map_or(error.as_str(), |(reason, _)| reason);
    RpcError::invalid_params(one_line(&in_words(&place, reason), MAX_REASON))
}

/// `place` is the path where serde failed, such as `order.amount` or `[1]`, and `reason` its message.
fn in_words(place: &str, reason: &str) -> String {
    let member = |name: &str| match place {
        "" => format!("parameter `{name}`"),
        // The path of an unknown or repeated member already ends with its name.
        place if place == name || place.ends_with(&format!(".{name}")) => format!("parameter `{place}`"),
        place => format!("parameter `{place}.{name}`"),
    };
    let here = match place {
        "" => "the parameters".to_owned(),
        place => match place.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).map(str::parse::<usize>) {
            Some(Ok(position)) => format!("parameter {}", position.saturating_add(1)),
            _ => format!("parameter `{place}`"),
        },
    };
    let said = if let Some(name) = quoted(reason, "missing field ") {
        format!("{} is missing", member(name))
    } else if let Some(name) = quoted(reason, "duplicate field ") {
        format!("{} is there twice", member(name))
    } else if let Some(name) = quoted(reason, "unknown field ") {
        let expected = reason.split_once(", ").map(|(_, expected)| expected).unwrap_or_default();
        let known = expected.strip_prefix("expected ").map(|known| known.trim_start_matches("one of "));
        let known = known.map_or_else(
            || "there is none".to_owned(),
            |known| format!("there are {}", known.replace(" or ", " and ")),
        );
        let known =
            if known.contains("and") || known.contains(',') { known } else { known.replace("there are", "there is") };
        format!("{} is unknown: {known}", member(name))
    } else if reason == "trailing characters" {
        // serde_json's message for an array that continues after the last field.
        "more values than the method takes".to_owned()
    } else if let Some((length, expected)) = lengths(reason) {
        let values = if length == 1 { "value" } else { "values" };
        match expected {
            Some(expected) => format!("{here}: {length} {values}, and the method takes {expected}"),
            None => format!("{here}: {length} {values}, which is not as many as the method takes"),
        }
    } else if let Some((found, expected)) = reason
        .strip_prefix("invalid type: ")
        .or(reason.strip_prefix("invalid value: "))
        .and_then(|rest| rest.rsplit_once(", expected "))
    {
        format!("{here} must be {}, and is {}", kind(expected), value(found))
    } else if place.is_empty() {
        reason.to_owned()
    } else {
        format!("{here}: {reason}")
    };
    format!("Invalid params: {said}")
}

fn quoted<'t>(text: &'t str, before: &str) -> Option<&'t str> {
    text.strip_prefix(before)?.strip_prefix('`')?.split('`').next()
}

/// Parses `invalid length 1, expected struct Add with 2 elements`.
fn lengths(reason: &str) -> Option<(usize, Option<usize>)> {
    let (length, expected) = reason.strip_prefix("invalid length ")?.split_once(", expected ")?;
    let expected = expected.split(' ').find_map(|word| word.parse().ok());
    Some((length.parse().ok()?, expected))
}

/// The JSON name of a Rust type.
fn kind(expected: &str) -> &str {
    match expected {
        "f32" | "f64" => "a number",
        "i8" | "i16" | "i32" | "i64" | "i128" | "isize" => "a whole number",
        "u8" | "u16" | "u32" | "u64" | "u128" | "usize" => "a whole number of at least 0",
        "a borrowed string" | "a character" | "string" => "a string",
        "a sequence" => "an array",
        "a map" => "an object",
        "unit" => "null",
        expected if expected.starts_with("struct ") => "an object",
        expected if expected.starts_with("enum ") => "one of the values that the method knows",
        expected if expected.starts_with("a tuple ") || expected.starts_with("tuple ") => "an array",
        expected => expected,
    }
}

/// Names a value in JSON's terms; serde quotes it as `string "x"`, ``integer `5` ``, `map`.
fn value(found: &str) -> String {
    let plain = |text: &str| text.trim_matches('`').to_owned();
    match found.split_once(' ') {
        Some(("string", text)) => text.to_owned(),
        Some(("integer" | "boolean", text)) => plain(text),
        Some(("floating", text)) => plain(text.trim_start_matches("point ")),
        Some(("unit", "value")) => "null".to_owned(),
        None if found == "map" => "an object".to_owned(),
        None if found == "sequence" => "an array".to_owned(),
        _ => found.to_owned(),
    }
}

/// Two lines of a terminal: enough for any list of expected fields that somebody would still read.
const MAX_REASON: usize = "Invalid params: ".len() + 200;

impl fmt::Debug for Params {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.is_named() { "named" } else { "positional" };
        write!(f, "Params({kind}, {} bytes)", self.0.get().len())
    }
}

impl Serialize for Params {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use serde::Deserialize;
    use serde_json::Value;

    use super::*;
    use crate::rpc::code;

    #[derive(Debug, PartialEq, Deserialize, Serialize)]
    struct Add {
        a: f64,
        b: f64,
    }

    #[derive(Debug, PartialEq, Default, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    struct Page {
        from: u64,
        size: Option<u64>,
    }

    #[derive(Debug, Deserialize)]
    #[expect(dead_code, reason = "only read")]
    struct Order {
        item: Item,
    }

    #[derive(Debug, Deserialize)]
    #[expect(dead_code, reason = "only read")]
    struct Item {
        name: String,
    }

    fn decode<P: DeserializeOwned>(text: &str) -> Result<P, RpcError> {
        let raw: &RawValue = serde_json::from_str(text).unwrap();
        Params::decode(Some(&Params::from_raw(raw).unwrap()))
    }

    fn reason<P: DeserializeOwned + fmt::Debug>(text: &str) -> String {
        let error = decode::<P>(text).unwrap_err();
        assert_eq!(error.code(), code::INVALID_PARAMS);
        error.message().to_owned()
    }

    #[test]
    fn derived_struct_takes_named_and_positional_params() {
        let sum = Add { a: 2.0, b: 3.5 };
        assert_eq!(decode::<Add>(r#"{"b":3.5,"a":2}"#).unwrap(), sum);
        assert_eq!(decode::<Add>("[2, 3.5]").unwrap(), sum);
        assert_eq!(decode::<Page>("[7]").unwrap(), Page { from: 7, size: None });
    }

    #[test]
    fn missing_surplus_and_misspelt_params_are_named_in_the_refusal() {
        assert_eq!(reason::<Add>(r#"{"a":1}"#), "Invalid params: parameter `b` is missing");
        assert_eq!(reason::<Add>(r#"{"A":1,"b":1}"#), "Invalid params: parameter `a` is missing");
        assert_eq!(reason::<Add>(r#"{"a":1,"a":2,"b":1}"#), "Invalid params: parameter `a` is there twice");
        assert_eq!(reason::<Add>("[1]"), "Invalid params: the parameters: 1 value, and the method takes 2");
        assert_eq!(reason::<Add>("[1,2,3]"), "Invalid params: more values than the method takes");
        assert_eq!(
            reason::<Add>(r#"{"a":"x","b":1}"#),
            r#"Invalid params: parameter `a` must be a number, and is "x""#
        );
        assert_eq!(reason::<Add>(r#"[1,"x"]"#), r#"Invalid params: parameter 2 must be a number, and is "x""#);
        assert_eq!(
            reason::<Page>(r#"{"form":1}"#),
            "Invalid params: parameter `form` is unknown: there are `from` and `size`"
        );
        assert_eq!(
            reason::<Page>(r#"{"from":-1}"#),
            "Invalid params: parameter `from` must be a whole number of at least 0, and is -1"
        );
        assert_eq!(
            reason::<Page>(r#"{"from":{}}"#),
            "Invalid params: parameter `from` must be a whole number of at least 0, and is an object"
        );
        assert_eq!(reason::<Add>("[1e999,1]"), "Invalid params: parameter 1: number out of range");
        assert_eq!(reason::<Vec<Add>>(r#"[{"a":1,"b":2},{"a":1}]"#), "Invalid params: parameter `[1].b` is missing");
        assert_eq!(
            reason::<Order>(r#"{"item":{"name":5}}"#),
            "Invalid params: parameter `item.name` must be a string, and is 5"
        );
        assert_eq!(
            reason::<Order>(r#"{"item":"x"}"#),
            r#"Invalid params: parameter `item` must be an object, and is "x""#
        );
    }

    #[test]
    fn absent_and_empty_params_fit_every_type_that_needs_none() {
        fn fits<P: DeserializeOwned + PartialEq + fmt::Debug>(expected: &P) {
            assert_eq!(&Params::decode::<P>(None).unwrap(), expected);
            assert_eq!(&decode::<P>("{ }").unwrap(), expected);
            assert_eq!(&decode::<P>("[]").unwrap(), expected);
        }
        fits(&());
        fits(&None::<Add>);
        fits(&Page::default());
        fits(&Vec::<u8>::new());
        assert_eq!(Params::decode::<Value>(None).unwrap(), Value::Null);
    }

    #[test]
    fn absent_params_of_a_method_that_needs_some_say_what_is_missing() {
        let error = Params::decode::<Add>(None).unwrap_err();
        assert_eq!((error.code(), error.message()), (code::INVALID_PARAMS, "Invalid params: parameter `a` is missing"));
        assert_eq!(reason::<Add>("{}"), "Invalid params: parameter `a` is missing");
        assert!(decode::<()>("[null]").is_err());
        assert!(decode::<()>("[[]]").is_err());
    }

    #[test]
    fn refusal_is_one_short_line_whatever_the_caller_sent() {
        let name = format!("\u{1b}[2J\u{202e}\r\n{}", "x".repeat(10_000));
        let text = serde_json::to_string(&serde_json::json!({ name: 1 })).unwrap();
        let message = reason::<Page>(&text);
        assert!(message.starts_with(r"Invalid params: parameter `\u{1b}[2J\u{202e}\r\nxxx"), "{message}");
        assert_eq!(message.chars().count(), MAX_REASON);
        assert!(!message.chars().any(char::is_control));
    }

    #[test]
    fn params_to_send_are_structured_or_absent() {
        let text = |params: Option<Params>| params.map(|params| params.raw().get().to_owned());
        assert_eq!(text(Params::encode(&Add { a: 1.0, b: 2.0 }).unwrap()).as_deref(), Some(r#"{"a":1.0,"b":2.0}"#));
        assert_eq!(text(Params::encode(&(1, "x")).unwrap()).as_deref(), Some(r#"[1,"x"]"#));
        let raw: &RawValue = serde_json::from_str("{ \"a\" : 1e999 }").unwrap();
        assert_eq!(text(Params::encode(raw).unwrap()).as_deref(), Some("{ \"a\" : 1e999 }"));
        assert!(Params::encode(&()).unwrap().is_none());
        assert!(Params::encode(&None::<Add>).unwrap().is_none());
        assert!(matches!(Params::encode(&1), Err(ParamsError::NotStructured)));
        assert!(matches!(Params::encode("x"), Err(ParamsError::NotStructured)));
        let unwritable = std::collections::HashMap::from([((1, 2), 3)]);
        assert!(matches!(Params::encode(&unwritable), Err(ParamsError::Serialize(_))));
    }

    #[test]
    fn debug_output_of_params_does_not_show_them() {
        let params = Params::encode(&["hunter2"]).unwrap().unwrap();
        assert_eq!(format!("{params:?}"), "Params(positional, 11 bytes)");
    }
}
