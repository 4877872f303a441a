//! The arguments that a tool wants in the head of its HTTP requests (MCP 2026-07-28, `x-mcp-header`).
//! Never lets an argument become anything but the value of its header field.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use sealwire::RpcError;
use serde_json::Value;
use serde_json::value::RawValue;

/// The mirrored arguments, by the names that lead to each, and their header fields.
pub(super) type Mirrored = Vec<(Vec<String>, HeaderName)>;

const KEYWORD: &str = "x-mcp-header";
/// The largest integer that every JSON reader represents exactly.
const SAFE: i64 = (1 << 53) - 1;

/// What the schema of a tool's arguments asks for.
///
/// # Errors
/// It asks for something impossible; such a tool must not be used.
pub(super) fn mirrored(schema: &Value) -> Result<Mirrored, String> {
    let mut found = Mirrored::new();
    walk(schema, &mut Vec::new(), true, &mut found)?;
    Ok(found)
}

fn walk(schema: &Value, path: &mut Vec<String>, is_reached: bool, found: &mut Mirrored) -> Result<(), String> {
    let members = match schema {
        Value::Object(members) => members,
        Value::Array(items) => return items.iter().try_for_each(|item| walk(item, path, false, found)),
        _ => return Ok(()),
    };
    if let Some(name) = members.get(KEYWORD) {
        let wrong = |why: &str| Err(format!("`{KEYWORD}` {why}"));
        let kind = members.get("type").and_then(Value::as_str).unwrap_or_default();
        if !is_reached || path.is_empty() || !["string", "integer", "boolean"].contains(&kind) {
            return wrong("stands where no text, integer or truth value can be found");
        }
        let name = name.as_str().filter(|name| !name.is_empty()).unwrap_or(" ");
        let Ok(name) = format!("mcp-param-{name}").parse::<HeaderName>() else {
            return wrong("is not a header name");
        };
        if found.iter().any(|(_, known)| *known == name) {
            return wrong("is there twice with the same name");
        }
        found.push((path.clone(), name));
    }
    for (keyword, below) in members {
        match (keyword.as_str(), below) {
            // Values, not schemas.
            (KEYWORD | "default" | "const" | "enum" | "examples", _) => {}
            ("properties", Value::Object(properties)) => {
                for (name, property) in properties {
                    path.push(name.clone());
                    walk(property, path, is_reached, found)?;
                    path.pop();
                }
            }
            _ => walk(below, path, false, found)?,
        }
    }
    Ok(())
}

/// The fields for these arguments. An argument that is missing or null has none.
pub(super) fn fields(mirrored: &Mirrored, arguments: &RawValue) -> Result<HeaderMap, RpcError> {
    let mut fields = HeaderMap::new();
    if mirrored.is_empty() {
        return Ok(fields);
    }
    let arguments: Value = serde_json::from_str(arguments.get()).map_err(RpcError::internal)?;
    for (path, name) in mirrored {
        let value = path.iter().try_fold(&arguments, |value, name| value.get(name));
        let text = match value {
            None | Some(Value::Null) => continue,
            Some(Value::String(text)) => text.clone(),
            Some(Value::Bool(truth)) => truth.to_string(),
            Some(number) => match integer(number).filter(|number| (-SAFE..=SAFE).contains(number)) {
                Some(number) => number.to_string(),
                None => return Err(RpcError::invalid_params(format!("`{}` is no integer below 2^53", path.join(".")))),
            },
        };
        fields.insert(name, encoded(&text));
    }
    Ok(fields)
}

/// The most bytes of a field with a caller's text ...
const FIELD: usize = 4 * 1024;
/// ... and of all fields with their names: many servers accept a head of 8 KiB.
const FIELDS: usize = 8 * 1024;

/// Checks that these fields, which callers can influence, are no more than a server can be expected to accept.
///
/// # Errors
/// Tells the caller which field is too large.
pub(super) fn bounded(fields: &HeaderMap) -> Result<(), RpcError> {
    let mut bytes = 0;
    for (name, value) in fields {
        bytes += name.as_str().len() + value.len();
        if value.len() > FIELD || bytes > FIELDS {
            let more = format!("the header `{name}` would have more than {FIELD} bytes, or all of them {FIELDS}");
            return Err(RpcError::invalid_params(more));
        }
    }
    Ok(())
}

/// An integer, however it is written: JSON Schema takes 42.0 for one.
fn integer(value: &Value) -> Option<i64> {
    #[expect(clippy::cast_possible_truncation, reason = "whole, and compared with what is exact in both")]
    let whole = |number: f64| (number.fract() == 0.0 && number.abs() < 9e15).then_some(number as i64);
    value.as_i64().or_else(|| value.as_f64().and_then(whole))
}

/// A text as the value of a field: unchanged, or in Base64 if it would not arrive unchanged or would be taken for Base64.
pub(super) fn encoded(text: &str) -> HeaderValue {
    let is_plain = text.trim() == text && text.bytes().all(|byte| matches!(byte, b' '..=b'~'));
    // In upper or lower case: readers may accept both.
    let is_plain = is_plain && !(text.to_ascii_lowercase().starts_with("=?base64?") && text.ends_with("?="));
    let written = if is_plain { text.to_owned() } else { format!("=?base64?{}?=", STANDARD.encode(text)) };
    // Both consist of visible ASCII and blanks.
    HeaderValue::from_str(&written).unwrap_or_else(|_| HeaderValue::from_static(""))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use serde_json::json;

    use super::*;

    // MCP 2026-07-28, Streamable HTTP, "Value Encoding".
    #[test]
    fn values_are_encoded_as_the_specification_shows() {
        for (text, written) in [
            ("us-west1", "us-west1"),
            ("Hello, 世界", "=?base64?SGVsbG8sIOS4lueVjA==?="),
            (" padded ", "=?base64?IHBhZGRlZCA=?="),
            ("line1\nline2", "=?base64?bGluZTEKbGluZTI=?="),
            ("=?base64?literal?=", "=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?="),
            ("=?Base64?literal?=", "=?base64?PT9CYXNlNjQ/bGl0ZXJhbD89?="),
            ("", ""),
        ] {
            assert_eq!(encoded(text), written);
        }
    }

    #[test]
    fn callers_do_not_make_heads_that_no_server_takes() {
        let of = |sizes: &[usize]| {
            let fields = sizes.iter().enumerate().map(|(number, size)| {
                let name = format!("mcp-param-{number}").parse::<HeaderName>().unwrap();
                (name, encoded(&"x".repeat(*size)))
            });
            bounded(&HeaderMap::from_iter(fields)).map_err(|error| error.code())
        };
        assert_eq!((of(&[FIELD]), of(&[FIELD + 1])), (Ok(()), Err(-32602)));
        // Names count as well.
        assert_eq!((of(&[FIELD, FIELD - 22]), of(&[FIELD, FIELD - 21])), (Ok(()), Err(-32602)));
        assert_eq!(of(&[0; 1_000]), Err(-32602));
        // Measured as it is sent, not as it came.
        assert_eq!(
            bounded(&HeaderMap::from_iter([("mcp-name".parse().unwrap(), encoded(&"ü".repeat(1_600)))]))
                .unwrap_err()
                .code(),
            -32602
        );
    }

    #[test]
    fn only_simple_arguments_that_are_always_in_one_place_are_mirrored() {
        let text = |name: &str| json!({ "type": "string", "x-mcp-header": name });
        let schema = json!({ "type": "object", "properties": {
            "region": text("Region"),
            "in": { "type": "object", "properties": { "n": { "type": "integer", "x-mcp-header": "N" } } },
            "x-mcp-header": { "type": "boolean", "x-mcp-header": "Flag" },
            "plain": { "type": "string", "default": { "x-mcp-header": "none" } },
        } });
        let mirrored = mirrored(&schema).unwrap();
        let fields = |arguments: Value| fields(&mirrored, &serde_json::value::to_raw_value(&arguments).unwrap());
        let all =
            fields(json!({ "region": "a\r\nb: c", "in": { "n": 42.0 }, "x-mcp-header": true, "plain": "x" })).unwrap();
        assert_eq!(all.len(), 3);
        assert_eq!(all["mcp-param-region"], "=?base64?YQ0KYjogYw==?=");
        assert_eq!((&all["mcp-param-n"], &all["mcp-param-flag"]), (&"42".parse().unwrap(), &"true".parse().unwrap()));
        assert!(fields(json!({ "region": null })).unwrap().is_empty());
        assert_eq!(fields(json!({ "in": { "n": 9_007_199_254_740_992_i64 } })).unwrap_err().code(), -32602);

        for wrong in [
            json!({ "properties": { "a": text("") } }),
            json!({ "properties": { "a": text("two words") } }),
            json!({ "properties": { "a": text("A"), "b": text("a") } }),
            json!({ "properties": { "a": { "type": "number", "x-mcp-header": "A" } } }),
            json!({ "properties": { "a": { "x-mcp-header": "A" } } }),
            json!({ "properties": { "a": { "type": "array", "items": text("A") } } }),
            json!({ "anyOf": [{ "properties": { "a": text("A") } }] }),
            json!({ "$defs": { "a": text("A") }, "properties": { "a": { "$ref": "#/$defs/a" } } }),
            json!({ "x-mcp-header": "A", "type": "string" }),
        ] {
            assert!(super::mirrored(&wrong).is_err(), "{wrong}");
        }
    }
}
