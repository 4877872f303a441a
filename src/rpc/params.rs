//! The parameters of a call: JSON text that a method decodes into its own type.
//! Never shows their content: not in `Debug`, and to the caller only what the caller sent.

use std::fmt;

use serde::de::DeserializeOwned;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

use super::RpcError;
use super::json::{is_array, is_object};

/// The `params` of a request: a JSON object or array, kept as the text that came.
#[derive(Clone)]
pub struct Params(Box<RawValue>);

/// A value that a client wants to send cannot be the parameters of a request.
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
    /// The parameters of a request to be sent; none if the value is `()`, `None` or anything else that is JSON's null.
    ///
    /// # Errors
    /// [`ParamsError`], always the sender's fault.
    pub fn encode<T: Serialize + ?Sized>(value: &T) -> Result<Option<Self>, ParamsError> {
        let raw = serde_json::value::to_raw_value(value).map_err(ParamsError::Serialize)?;
        // JSON-RPC 2.0 §4: "This member MAY be omitted."
        if raw.get() == "null" {
            return Ok(None);
        }
        Self::from_raw(&raw).map(Some).ok_or(ParamsError::NotStructured)
    }

    /// Decodes the parameters of a call into a method's own type.
    ///
    /// A derived struct takes both kinds: an object by its member names and an array by the order of its fields.
    /// Absent parameters are tried as null, as an empty object and as an empty array, so that `()`, an `Option`, a struct
    /// whose fields all have defaults and a `Vec` accept them; an empty object or array that does not fit counts as absent.
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
            Some(Err(error)) if params.is_some_and(|params| !params.is_empty()) => Err(refusal(&error)),
            Some(Err(error)) => absent().map_err(|_| refusal(&error)),
            None => absent().map_err(|error| refusal(&error)),
        }
    }

    /// Whether they are given by name, as an object. Otherwise they are an array, given by position.
    #[must_use]
    pub fn is_named(&self) -> bool {
        is_object(self.0.get())
    }

    /// The JSON text as it came.
    #[must_use]
    pub fn raw(&self) -> &RawValue {
        &self.0
    }

    /// `None` unless the value is an object or an array.
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

fn refusal(error: &serde_json::Error) -> RpcError {
    let text = error.to_string();
    // The position is that within the parameters, which the caller never sees as a text of their own.
    let reason = match text.rsplit_once(" at line ").map_or(text.as_str(), |(reason, _)| reason) {
        // What serde_json says of an array that goes on after the last field.
        "trailing characters" => "more values than the method takes",
        reason => reason,
    };
    RpcError::invalid_params(format!("Invalid params: {}", one_line(reason)))
}

/// Escapes whatever is not printable and keeps the first [`MAX_REASON`] characters.
fn one_line(text: &str) -> String {
    let escape = |c: char| {
        let printable = matches!(c, '"' | '\'' | '\\');
        printable.then_some(c).into_iter().chain((!printable).then(|| c.escape_debug()).into_iter().flatten())
    };
    text.chars().flat_map(escape).take(MAX_REASON).collect()
}

/// Two lines of a terminal: enough for serde's longest list of expected fields that anybody reads.
const MAX_REASON: usize = 200;

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
        assert_eq!(reason::<Add>(r#"{"a":1}"#), "Invalid params: missing field `b`");
        assert_eq!(reason::<Add>(r#"{"A":1,"b":1}"#), "Invalid params: missing field `a`");
        assert_eq!(reason::<Add>("[1]"), "Invalid params: invalid length 1, expected struct Add with 2 elements");
        assert_eq!(reason::<Add>("[1,2,3]"), "Invalid params: more values than the method takes");
        assert_eq!(reason::<Add>(r#"{"a":"x","b":1}"#), r#"Invalid params: invalid type: string "x", expected f64"#);
        assert_eq!(reason::<Page>(r#"{"form":1}"#), "Invalid params: unknown field `form`, expected `from` or `size`");
        assert_eq!(reason::<Add>("[1e999,1]"), "Invalid params: number out of range");
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
        assert_eq!((error.code(), error.message()), (code::INVALID_PARAMS, "Invalid params: missing field `a`"));
        assert_eq!(reason::<Add>("{}"), "Invalid params: missing field `a`");
        assert!(decode::<()>("[null]").is_err());
        assert!(decode::<()>("[[]]").is_err());
    }

    #[test]
    fn refusal_is_one_short_line_whatever_the_caller_sent() {
        let name = format!("\u{1b}[2J\u{202e}\r\n{}", "x".repeat(10_000));
        let text = serde_json::to_string(&serde_json::json!({ name: 1 })).unwrap();
        let message = reason::<Page>(&text);
        assert!(message.starts_with(r"Invalid params: unknown field `\u{1b}[2J\u{202e}\r\nxxx"), "{message}");
        assert_eq!(message.chars().count(), "Invalid params: ".len() + MAX_REASON);
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
