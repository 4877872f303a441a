//! What the head of a POST says about its message, and about the answers its client accepts.
//! Never believed before it was compared with the message.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::StatusCode;
use hyper::header::{ACCEPT, HeaderMap, HeaderName};
use hyper::http::request::Parts;
use sealwire::client::TraceContext;

use super::SESSION_ID;
use crate::http::gate::single;
use crate::http::refusal::Refusal;
use crate::mcp::message::{Asked, Fault};

/// The media types that a client accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Accepts {
    pub(super) json: bool,
    pub(super) events: bool,
}

impl Accepts {
    /// Reads `Accept`. A client that accepts anything is probably a script, and gets JSON.
    pub(super) fn of(headers: &HeaderMap) -> Result<Self, Refusal> {
        let mut accepts = Self { json: !headers.contains_key(ACCEPT), events: false };
        for value in headers.get_all(ACCEPT) {
            let value = value.to_str().map_err(|_| Self::refusal())?;
            for range in value.split(',') {
                let mut parts = range.split(';').map(str::trim);
                let kind = parts.next().unwrap_or_default();
                let is = |kinds: &[&str]| kinds.iter().any(|known| kind.eq_ignore_ascii_case(known));
                // RFC 9110 §12.4.2: a weight of 0 is "not acceptable".
                let is_refused = parts.any(|part| {
                    let weight = part.strip_prefix("q=").or_else(|| part.strip_prefix("Q="));
                    weight.is_some_and(|weight| weight.parse() == Ok(0.0))
                });
                if !is_refused {
                    accepts.json |= is(&["application/json", "application/*", "*/*"]);
                    accepts.events |= is(&["text/event-stream", "text/*"]);
                }
            }
        }
        if accepts.json || accepts.events { Ok(accepts) } else { Err(Self::refusal()) }
    }

    pub(super) fn refusal() -> Refusal {
        Refusal::bad(
            StatusCode::NOT_ACCEPTABLE,
            "`Accept` must list `application/json`, `text/event-stream`, or both, as the answer may be: list both",
        )
    }
}

const VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
const METHOD: HeaderName = HeaderName::from_static("mcp-method");
const NAME: HeaderName = HeaderName::from_static("mcp-name");
const TRACE: [HeaderName; 3] =
    [HeaderName::from_static("traceparent"), HeaderName::from_static("tracestate"), HeaderName::from_static("baggage")];

/// What the head says about the message.
#[derive(Debug)]
pub(super) struct Claims<'a> {
    pub(super) version: Option<&'a str>,
    pub(super) session: Option<&'a str>,
    method: Option<&'a str>,
    name: Option<&'a str>,
}

impl<'a> Claims<'a> {
    pub(super) fn of(head: &'a Parts) -> Result<Self, Refusal> {
        let one = |name| single(&head.headers, name);
        Ok(Self { version: one(&VERSION)?, session: one(&SESSION_ID)?, method: one(&METHOD)?, name: one(&NAME)? })
    }

    /// Compares it with a message of 2026-07-28: an intermediary may have made decisions by the head.
    pub(super) fn check(&self, method: &str, asked: &Asked) -> Result<(), Fault> {
        if self.method != Some(method) {
            return Err(mismatch("Mcp-Method"));
        }
        let named = match method {
            "tools/call" | "prompts/get" => &asked.name,
            "resources/read" => &asked.uri,
            _ => return Ok(()),
        };
        match (self.name.map(decoded), named) {
            (Some(Some(claimed)), Some(named)) if claimed == *named => Ok(()),
            // The message itself lacks the member, and is refused for that.
            (None, None) => Ok(()),
            _ => Err(mismatch("Mcp-Name")),
        }
    }
}

/// Decodes a value; `=?base64?…?=` holds text that a header cannot. `None` if it is not valid.
fn decoded(value: &str) -> Option<String> {
    match value.strip_prefix("=?base64?").and_then(|value| value.strip_suffix("?=")) {
        Some(encoded) => String::from_utf8(STANDARD.decode(encoded).ok()?).ok(),
        None => Some(value.to_owned()),
    }
}

/// The trace context in the head. A header that occurs twice is ignored.
pub(super) fn trace(headers: &HeaderMap) -> TraceContext {
    let [parent, state, baggage] = TRACE.map(|name| single(headers, &name).ok().flatten());
    TraceContext::new(parent, state, baggage)
}

pub(super) fn mismatch(field: &str) -> Fault {
    Fault::new(-32020, format!("Header mismatch: `{field}` is missing, or does not match the message"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use hyper::header::HeaderValue;

    use super::*;

    #[test]
    fn row_07_both_types_one_neither_or_anything() {
        let of = |values: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(ACCEPT, HeaderValue::from_static(value));
            }
            Accepts::of(&headers).ok().map(|accepts| (accepts.json, accepts.events))
        };
        assert_eq!(of(&[]), Some((true, false)));
        assert_eq!(of(&["*/*"]), Some((true, false)));
        assert_eq!(of(&["application/json, text/event-stream"]), Some((true, true)));
        assert_eq!(of(&["Application/JSON;q=0.5", "text/event-stream"]), Some((true, true)));
        assert_eq!(of(&["text/event-stream"]), Some((false, true)));
        assert_eq!(of(&["application/json, text/event-stream;q=0"]), Some((true, false)));
        assert_eq!(of(&["text/html"]), None);
        assert_eq!(of(&[""]), None);
    }

    #[test]
    fn row_12_names_are_compared_after_decoding() {
        let asked = Asked { name: Some("größe".to_owned()), ..Asked::default() };
        let check = |name: Option<&'static str>, asked: &Asked| {
            let claims = Claims { version: None, session: None, method: Some("tools/call"), name };
            claims.check("tools/call", asked).err().map(|fault| fault.code)
        };
        assert_eq!(check(Some("=?base64?Z3LDtsOfZQ==?="), &asked), None);
        for wrong in [None, Some("größe2"), Some("=?base64?Z3LDtsOfZQ=?="), Some("=?base64?/w==?="), Some("")] {
            assert_eq!(check(wrong, &asked), Some(-32020), "{wrong:?}");
        }
        assert_eq!(check(Some("x"), &Asked::default()), Some(-32020));
    }
}
