//! What the head of a POST says about its message, and about the answers its client accepts.
//! Never believed before it was compared with the message.

use hyper::StatusCode;
use hyper::header::{ACCEPT, HeaderMap, HeaderName};
use hyper::http::request::Parts;
use sealwire_http::media_ranges;
use sealwire_mcp::RequestParams;
use sealwire_mcp::headers::{self, Fields};

use crate::http::fields::single;
use crate::http::refusal::Refusal;
use crate::mcp::message::Fault;
use crate::mcp::mirrored::mismatch;

/// The media types that a client accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::http) struct Accepts {
    pub(super) json: bool,
    pub(super) events: bool,
}

impl Accepts {
    /// Reads `Accept`. A client that accepts anything is probably a script, and gets JSON.
    pub(in crate::http) fn of(headers: &HeaderMap) -> Result<Self, Refusal> {
        let mut accepts = Self { json: !headers.contains_key(ACCEPT), events: false };
        for (kind, weight) in media_ranges(headers).map_err(|_| Self::refusal())? {
            let is = |kinds: &[&str]| weight > 0.0 && kinds.iter().any(|known| kind.eq_ignore_ascii_case(known));
            accepts.json |= is(&["application/json", "application/*", "*/*"]);
            accepts.events |= is(&["text/event-stream", "text/*"]);
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

/// The header with the session id.
pub(super) const SESSION_ID: HeaderName = HeaderName::from_static(headers::SESSION_ID);

/// The header with the last event that a client has heard.
pub(super) const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

const VERSION: HeaderName = HeaderName::from_static(headers::PROTOCOL_VERSION);
const METHOD: HeaderName = HeaderName::from_static(headers::METHOD);
const NAME: HeaderName = HeaderName::from_static(headers::NAME);

/// What the head says about the message.
#[derive(Debug)]
pub(in crate::http) struct Claims<'a> {
    pub(super) version: Option<&'a str>,
    pub(in crate::http) session: Option<&'a str>,
    method: Option<&'a str>,
    name: Option<&'a str>,
}

impl<'a> Claims<'a> {
    pub(in crate::http) fn of(head: &'a Parts) -> Result<Self, Refusal> {
        let one = |name| single(&head.headers, name);
        Ok(Self { version: one(&VERSION)?, session: one(&SESSION_ID)?, method: one(&METHOD)?, name: one(&NAME)? })
    }

    /// Compares it with a message of 2026-07-28: an intermediary may have made decisions by the head.
    pub(super) fn check(&self, method: &str, asked: &RequestParams) -> Result<(), Fault> {
        if self.method != Some(method) {
            return Err(mismatch("Mcp-Method"));
        }
        let named = match headers::named(method) {
            // fastmcp 4.1.2 leaves it out.
            Some("taskId") if self.name.is_none() => return Ok(()),
            Some("taskId") => &asked.task_id,
            Some("uri") => &asked.uri,
            Some(_) => &asked.name,
            None => return Ok(()),
        };
        match (self.name.map(headers::decode), named) {
            (Some(Some(claimed)), Some(named)) if claimed == *named => Ok(()),
            // The message itself lacks the member, and is refused for that.
            (None, None) => Ok(()),
            _ => Err(mismatch("Mcp-Name")),
        }
    }
}

/// The fields that repeat arguments.
pub(super) fn mirrored(headers: &HeaderMap) -> Fields {
    let mut all = Fields::new();
    for name in headers.keys() {
        if let Some(rest) = name.as_str().strip_prefix(headers::PARAM) {
            all.insert(rest.to_owned(), single(headers, name).ok().flatten().map(str::to_owned));
        }
    }
    all
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
        let asked = RequestParams { name: Some("größe".to_owned()), ..RequestParams::default() };
        let check = |name: Option<&'static str>, asked: &RequestParams| {
            let claims = Claims { version: None, session: None, method: Some("tools/call"), name };
            claims.check("tools/call", asked).err().map(|fault| fault.code)
        };
        assert_eq!(check(Some("=?base64?Z3LDtsOfZQ==?="), &asked), None);
        for wrong in [None, Some("größe2"), Some("=?base64?Z3LDtsOfZQ=?="), Some("=?base64?/w==?="), Some("")] {
            assert_eq!(check(wrong, &asked), Some(-32020), "{wrong:?}");
        }
        assert_eq!(check(Some("x"), &RequestParams::default()), Some(-32020));
    }
}
