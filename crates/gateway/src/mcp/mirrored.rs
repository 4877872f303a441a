//! Arguments that the head of a request repeats (MCP 2026-07-28, `x-mcp-header`).
//! Never lets a call pass whose head says something else than its body: an intermediary may have made decisions by the head.

use sealwire_mcp::code;
use sealwire_mcp::headers::{Fields, MirroredArgument, PARAM, decode, text};
use serde_json::Value;
use serde_json::value::RawValue;

use super::message::Fault;

/// Compares the head of a call with its arguments.
///
/// # Errors
/// They differ, or the head lacks what the schema wants in it.
pub(super) fn check(wanted: &[MirroredArgument], arguments: &RawValue, head: &Fields) -> Result<(), Fault> {
    if wanted.is_empty() {
        return Ok(());
    }
    let arguments: Value = serde_json::from_str(arguments.get()).unwrap_or_default();
    for wanted in wanted {
        let fits = match (wanted.find(&arguments), head.get(&wanted.name)) {
            (None, None) => true,
            (Some(value), Some(Some(field))) => text(value).is_some_and(|text| decode(field) == Some(text)),
            _ => false,
        };
        if !fits {
            return Err(mismatch(&format!("{PARAM}{}", wanted.name)));
        }
    }
    Ok(())
}

pub(crate) fn mismatch(field: &str) -> Fault {
    Fault::new(code::HEADER_MISMATCH, format!("Header mismatch: `{field}` is missing, or does not match the message"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use sealwire_mcp::headers;
    use serde_json::json;

    use super::*;

    #[test]
    fn row_13_a_call_passes_if_its_head_says_what_its_body_says() {
        let schema = json!({ "type": "object", "properties": {
            "region": { "type": "string", "x-mcp-header": "Region" },
            "in": { "type": "object", "properties": { "n": { "type": "integer", "x-mcp-header": "N" } } },
            "flag": { "type": "boolean", "x-mcp-header": "flag" },
            "plain": { "type": "string" },
        } });
        let passes = |arguments: Value, head: &[(&str, Option<&str>)]| {
            let head = head.iter().map(|(name, value)| ((*name).to_owned(), value.map(str::to_owned))).collect();
            let arguments = serde_json::value::to_raw_value(&arguments).unwrap();
            match check(&headers::mirrored(&schema).unwrap(), &arguments, &head) {
                Ok(()) => true,
                Err(fault) => fault.code != -32020,
            }
        };
        for (arguments, head, expected) in [
            (json!({}), vec![], true),
            (json!({ "plain": "x" }), vec![("plain", Some("y"))], true),
            (json!({ "region": "eu" }), vec![("region", Some("eu"))], true),
            (json!({ "region": "eu" }), vec![], false),
            (json!({ "region": "eu" }), vec![("region", Some("EU"))], false),
            (json!({ "region": "eu" }), vec![("region", None)], false),
            (json!({ "region": null }), vec![], true),
            (json!({ "region": null }), vec![("region", Some("null"))], false),
            (json!({}), vec![("region", Some("eu"))], false),
            (json!({ "region": "Hello" }), vec![("region", Some("=?base64?SGVsbG8=?="))], true),
            (json!({ "region": "Hello" }), vec![("region", Some("=?base64?SGVsbG8?="))], false),
            (json!({ "region": "Hello" }), vec![("region", Some("=?base64?SGVs!!!bG8=?="))], false),
            (json!({ "region": "SGVsbG8=" }), vec![("region", Some("SGVsbG8="))], true),
            (json!({ "region": "=?base64?SGVsbG8=" }), vec![("region", Some("=?base64?SGVsbG8="))], true),
            (json!({ "in": { "n": 42 } }), vec![("n", Some("42"))], true),
            (json!({ "in": { "n": 42.0 } }), vec![("n", Some("42"))], true),
            (json!({ "in": { "n": 42 } }), vec![("n", Some("42.0"))], false),
            (json!({ "in": { "n": 42 } }), vec![("n", Some("43"))], false),
            (json!({ "flag": true }), vec![("flag", Some("true"))], true),
            (json!({ "flag": true }), vec![("flag", Some("True"))], false),
            (json!({ "flag": [true] }), vec![("flag", Some("true"))], false),
        ] {
            assert_eq!(passes(arguments.clone(), &head), expected, "{arguments} {head:?}");
        }
    }
}
