//! The arguments that a tool wants in the head of its HTTP requests (MCP 2026-07-28, `x-mcp-header`).
//! Never lets an argument become anything but the value of its header field.

use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use sealwire::RpcError;
use sealwire_mcp::headers::{MirroredArgument, PARAM, encode, text};
use serde_json::Value;
use serde_json::value::RawValue;

/// The largest integer that every JSON reader represents exactly.
const SAFE: i64 = (1 << 53) - 1;

/// The fields for these arguments. An argument that is missing or null has none.
pub(super) fn fields(mirrored: &[MirroredArgument], arguments: &RawValue) -> Result<HeaderMap, RpcError> {
    let mut fields = HeaderMap::new();
    if mirrored.is_empty() {
        return Ok(fields);
    }
    let arguments: Value = serde_json::from_str(arguments.get()).map_err(RpcError::internal)?;
    for argument in mirrored {
        let Some(value) = argument.find(&arguments) else { continue };
        let is_exact = value.as_i64().is_none_or(|number| (-SAFE..=SAFE).contains(&number));
        let text = text(value).filter(|_| is_exact).ok_or_else(|| {
            RpcError::invalid_params(format!("`{}` is no integer below 2^53", argument.path.join(".")))
        })?;
        let name = format!("{PARAM}{}", argument.name).parse::<HeaderName>().map_err(RpcError::internal)?;
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

/// A text as the value of a field.
pub(super) fn encoded(text: &str) -> HeaderValue {
    // It consists of visible ASCII and blanks.
    HeaderValue::from_str(&encode(text)).unwrap_or_else(|_| HeaderValue::from_static(""))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use serde_json::json;

    use super::*;

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
    fn mirrored_arguments_become_nothing_but_the_values_of_their_fields() {
        let text = |name: &str| json!({ "type": "string", "x-mcp-header": name });
        let schema = json!({ "type": "object", "properties": {
            "region": text("Region"),
            "in": { "type": "object", "properties": { "n": { "type": "integer", "x-mcp-header": "N" } } },
            "x-mcp-header": { "type": "boolean", "x-mcp-header": "Flag" },
            "plain": { "type": "string", "default": { "x-mcp-header": "none" } },
        } });
        let mirrored = sealwire_mcp::headers::mirrored(&schema).unwrap();
        let fields = |arguments: Value| fields(&mirrored, &serde_json::value::to_raw_value(&arguments).unwrap());
        let all =
            fields(json!({ "region": "a\r\nb: c", "in": { "n": 42.0 }, "x-mcp-header": true, "plain": "x" })).unwrap();
        assert_eq!(all.len(), 3);
        assert_eq!(all["mcp-param-region"], "=?base64?YQ0KYjogYw==?=");
        assert_eq!((&all["mcp-param-n"], &all["mcp-param-flag"]), (&"42".parse().unwrap(), &"true".parse().unwrap()));
        assert!(fields(json!({ "region": null })).unwrap().is_empty());
        assert_eq!(fields(json!({ "in": { "n": 9_007_199_254_740_992_i64 } })).unwrap_err().code(), -32602);
    }
}
