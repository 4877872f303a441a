//! Which members of a message its HTTP head repeats (MCP 2026-07-28), and how values are written there.
//! Never looks at a call.

use std::collections::HashMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

/// The name of a session.
pub const SESSION_ID: &str = "mcp-session-id";
/// The revision of a message.
pub const PROTOCOL_VERSION: &str = "mcp-protocol-version";
/// The method of a message.
pub const METHOD: &str = "mcp-method";
/// What [`named`] names.
pub const NAME: &str = "mcp-name";
/// What the names of fields begin with that repeat arguments.
pub const PARAM: &str = "mcp-param-";
/// The keyword of a tool's schema that says which arguments are repeated.
pub const KEYWORD: &str = "x-mcp-header";

/// The fields of a request that repeat arguments, by the lower-case rest of their names; `None` for one that occurs twice or is no text.
pub type Fields = HashMap<String, Option<String>>;

/// The member of a request's parameters that `Mcp-Name` repeats.
#[must_use]
pub fn named(method: &str) -> Option<&'static str> {
    match method {
        "tools/call" | "prompts/get" => Some("name"),
        "resources/read" => Some("uri"),
        "tasks/get" | "tasks/update" | "tasks/cancel" => Some("taskId"),
        _ => None,
    }
}

/// A schema asks for what cannot be repeated, so that nobody may use its tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("`{KEYWORD}` {0}")]
pub struct MirrorError(&'static str);

/// An argument that the head repeats.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MirroredArgument {
    /// The names that lead to it.
    pub path: Vec<String>,
    /// The rest of its field's name, in lower case.
    pub name: String,
}

impl MirroredArgument {
    /// Its value, unless that is missing or null.
    #[must_use]
    pub fn find<'a>(&self, arguments: &'a Value) -> Option<&'a Value> {
        self.path.iter().try_fold(arguments, |value, name| value.get(name)).filter(|value| !value.is_null())
    }
}

/// The arguments that a tool's schema wants repeated.
///
/// # Errors
/// [`MirrorError`].
pub fn mirrored(schema: &Value) -> Result<Vec<MirroredArgument>, MirrorError> {
    let mut found = Vec::new();
    walk(schema, &mut Vec::new(), true, &mut found)?;
    Ok(found)
}

/// The same, of a schema as text; without any, if it is no JSON.
///
/// # Errors
/// [`MirrorError`].
pub fn mirrored_in(schema: &str) -> Result<Vec<MirroredArgument>, MirrorError> {
    // Most tools want nothing repeated.
    if !schema.contains(KEYWORD) {
        return Ok(Vec::new());
    }
    mirrored(&serde_json::from_str(schema).unwrap_or_default())
}

fn walk(
    schema: &Value,
    path: &mut Vec<String>,
    is_reached: bool,
    found: &mut Vec<MirroredArgument>,
) -> Result<(), MirrorError> {
    let members = match schema {
        Value::Object(members) => members,
        Value::Array(items) => return items.iter().try_for_each(|item| walk(item, path, false, found)),
        _ => return Ok(()),
    };
    if let Some(name) = members.get(KEYWORD) {
        let kind = members.get("type").and_then(Value::as_str).unwrap_or_default();
        if !is_reached || path.is_empty() || !["string", "integer", "boolean"].contains(&kind) {
            return Err(MirrorError("stands where no text, integer or truth value can be found"));
        }
        let name = name.as_str().map(str::to_ascii_lowercase).unwrap_or_default();
        if name.is_empty() || !name.bytes().all(is_token) {
            return Err(MirrorError("is not a header name"));
        }
        if found.iter().any(|known| known.name == name) {
            return Err(MirrorError("is there twice with the same name"));
        }
        found.push(MirroredArgument { path: path.clone(), name });
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

/// Whether a byte may stand in the name of a field (RFC 9110 §5.6.2).
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// An argument as text: that of a string, integer or truth value. `None` for any other.
#[must_use]
pub fn text(argument: &Value) -> Option<String> {
    match argument {
        Value::String(text) => Some(text.clone()),
        Value::Bool(truth) => Some(truth.to_string()),
        number => integer(number).map(|number| number.to_string()),
    }
}

/// An integer, however it is written: JSON Schema takes 42.0 for one.
fn integer(value: &Value) -> Option<i64> {
    #[expect(clippy::cast_possible_truncation, reason = "whole, and compared with what is exact in both")]
    let whole = |number: f64| (number.fract() == 0.0 && number.abs() < 9e15).then_some(number as i64);
    value.as_i64().or_else(|| value.as_f64().and_then(whole))
}

/// A text as the value of a field: unchanged, or in Base64 if it would not arrive unchanged or would be taken for Base64.
#[must_use]
pub fn encode(text: &str) -> String {
    let is_plain = text.trim() == text && text.bytes().all(|byte| matches!(byte, b' '..=b'~'));
    // In upper or lower case: readers may accept both.
    let is_plain = is_plain && !(text.to_ascii_lowercase().starts_with("=?base64?") && text.ends_with("?="));
    if is_plain { text.to_owned() } else { format!("=?base64?{}?=", STANDARD.encode(text)) }
}

/// The text that the value of a field stands for; `None` if it is not valid.
#[must_use]
pub fn decode(value: &str) -> Option<String> {
    match value.strip_prefix("=?base64?").and_then(|value| value.strip_suffix("?=")) {
        Some(encoded) => String::from_utf8(STANDARD.decode(encoded).ok()?).ok(),
        None => Some(value.to_owned()),
    }
}

#[cfg(test)]
mod tests {
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
            assert_eq!((encode(text), decode(written).as_deref()), (written.to_owned(), Some(text)));
        }
    }

    #[test]
    fn only_simple_arguments_that_are_always_in_one_place_are_mirrored() {
        let text = |name: &str| json!({ "type": "string", "x-mcp-header": name });
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
            assert!(mirrored(&wrong).is_err(), "{wrong}");
        }
    }
}
