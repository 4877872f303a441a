//! The opening handshake (RFC 6455 §4.2): whether a request opens a socket, and with which subprotocol.
//! Never accepts an incomplete handshake, or one that could be another kind of request.

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::header::{
    CONNECTION, CONTENT_LENGTH, HeaderValue, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, SEC_WEBSOCKET_VERSION,
    TRANSFER_ENCODING, UPGRADE,
};
use hyper::http::request::Parts;
use hyper::{Method, StatusCode};

use crate::http::fields::{list, single};
use crate::http::identity::TICKET_PREFIX;
use crate::http::refusal::{Refusal, require_method};

/// Hashed together with the client's key (RFC 6455 §1.3).
const GUID: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
/// The subprotocol for calls and answers only, as without any.
const CALLS: &str = "jsonrpc";
/// The subprotocol that adds what methods send while they run.
const PARTS: &str = "parts.sealwire.dev";

/// What a client wants to receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    /// Only the answer of each call.
    Calls,
    /// Before it also parts, notifications and questions of the method.
    Parts,
}

/// An accepted handshake.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::http) struct Accepted {
    /// `Sec-WebSocket-Accept`.
    pub(super) key: HeaderValue,
    /// The selected subprotocol, if the client has offered one that the gateway knows.
    pub(super) protocol: Option<&'static str>,
    pub(super) dialect: Dialect,
}

/// Checks the handshake in this head.
pub(in crate::http) fn accept(head: &Parts) -> Result<Accepted, Refusal> {
    require_method(&head.method, Method::GET)?;
    let bad = |message| Refusal::bad(StatusCode::BAD_REQUEST, message);
    let upgrade = |message, name, value| {
        Refusal::bad(StatusCode::UPGRADE_REQUIRED, message).with(name, HeaderValue::from_static(value))
    };
    let headers = &head.headers;
    if !list(headers, &CONNECTION).any(|token| token.eq_ignore_ascii_case("upgrade"))
        || !list(headers, &UPGRADE).any(|token| token.eq_ignore_ascii_case("websocket"))
    {
        return Err(upgrade(
            "this address opens a WebSocket: send `Connection: Upgrade`, `Upgrade: websocket`",
            UPGRADE,
            "websocket",
        ));
    }
    if single(headers, &SEC_WEBSOCKET_VERSION)? != Some("13") {
        return Err(upgrade("`Sec-WebSocket-Version` must be 13", SEC_WEBSOCKET_VERSION, "13"));
    }
    let key = single(headers, &SEC_WEBSOCKET_KEY)?.unwrap_or_default();
    if !STANDARD.decode(key).is_ok_and(|bytes| bytes.len() == 16) {
        return Err(bad("`Sec-WebSocket-Key` must be 16 bytes in base64"));
    }
    // What follows would be neither a body nor a frame.
    if headers.contains_key(TRANSFER_ENCODING) || single(headers, &CONTENT_LENGTH)?.is_some_and(|length| length != "0")
    {
        return Err(bad("a handshake must not have a body").closing());
    }
    // Addresses end up in logs, so they are no place for a token.
    if head.uri.query().is_some() {
        return Err(bad("the address of a socket must not have a query"));
    }
    let offered = || list(headers, &SEC_WEBSOCKET_PROTOCOL);
    let (protocol, dialect) = match () {
        () if offered().any(|name| name == PARTS) => (Some(PARTS), Dialect::Parts),
        () if offered().any(|name| name == CALLS) => (Some(CALLS), Dialect::Calls),
        // A client that needs another one sees that it was not selected (RFC 6455 §4.2.2).
        () => (None, Dialect::Calls),
    };
    // A browser closes a socket if none of the subprotocols it offered was selected, and a ticket is not one.
    if protocol.is_none() && offered().any(|name| name.starts_with(TICKET_PREFIX)) {
        return Err(bad("besides a ticket, `Sec-WebSocket-Protocol` must offer `jsonrpc` or `parts.sealwire.dev`"));
    }
    let hash = digest(&SHA1_FOR_LEGACY_USE_ONLY, format!("{key}{GUID}").as_bytes());
    let key = HeaderValue::try_from(STANDARD.encode(hash)).map_err(|_| bad("`Sec-WebSocket-Key`"))?;
    Ok(Accepted { key, protocol, dialect })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use hyper::Request;

    use super::*;

    /// The example of RFC 6455 §1.2.
    const GOOD: [(&str, &str); 4] = [
        ("connection", "Upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ("sec-websocket-version", "13"),
    ];

    fn head(lines: &[(&str, &str)]) -> Parts {
        let mut request = Request::builder().uri("/rpc/tools/ws");
        for (name, value) in lines {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn a_handshake_is_all_of_it_or_refused() {
        let accepted = accept(&head(&GOOD)).unwrap();
        assert_eq!((accepted.key.to_str().unwrap(), accepted.protocol), ("s3pPLMBiTxaQ9kYGzzhZRbK+xOo=", None));
        // As browsers send it.
        let mut lines = GOOD;
        lines[0] = ("connection", "keep-alive, UPGRADE");
        lines[1] = ("upgrade", "WebSocket");
        assert!(accept(&head(&lines)).is_ok());

        let without = |left_out: usize| {
            let lines: Vec<_> = (0..4).filter(|at| *at != left_out).map(|at| GOOD[at]).collect();
            accept(&head(&lines)).unwrap_err().status.as_u16()
        };
        assert_eq!([0, 1, 2, 3].map(without), [426, 426, 400, 426]);
        let with = |at: usize, value| {
            let mut lines = GOOD;
            lines[at].1 = value;
            accept(&head(&lines)).unwrap_err().status.as_u16()
        };
        for (at, value, status) in [
            (0, "close", 426),
            (1, "h2c", 426),
            (2, "", 400),
            (2, "dGhlIHNhbXBsZSBub25jZQ", 400),
            (2, "dGhlIHNhbXBsZSBub25j", 400),
            (3, "8", 426),
            (3, "13, 8", 426),
        ] {
            assert_eq!(with(at, value), status, "{value}");
        }
        for line in [GOOD[2], GOOD[3], ("content-length", "1"), ("transfer-encoding", "chunked")] {
            assert_eq!(accept(&head(&[&GOOD[..], &[line]].concat())).unwrap_err().status.as_u16(), 400, "{line:?}");
        }
        let mut post = head(&GOOD);
        post.method = Method::POST;
        assert_eq!(accept(&post).unwrap_err().status.as_u16(), 405);
        let mut query = head(&GOOD);
        query.uri = "/rpc/tools/ws?access_token=x".parse().unwrap();
        assert_eq!(accept(&query).unwrap_err().status.as_u16(), 400);
    }

    #[test]
    fn a_subprotocol_is_taken_that_the_gateway_knows() {
        for (offered, protocol, dialect) in [
            ("jsonrpc", Some("jsonrpc"), Dialect::Calls),
            ("wamp, graphql-ws", None, Dialect::Calls),
            ("wamp,parts.sealwire.dev", Some("parts.sealwire.dev"), Dialect::Parts),
            ("jsonrpc, parts.sealwire.dev", Some("parts.sealwire.dev"), Dialect::Parts),
        ] {
            let accepted = accept(&head(&[&GOOD[..], &[("sec-websocket-protocol", offered)]].concat())).unwrap();
            assert_eq!((accepted.protocol, accepted.dialect), (protocol, dialect), "{offered}");
        }
        let ticket = accept(&head(&[&GOOD[..], &[("sec-websocket-protocol", "wamp, ticket.sealwire.dev.x")]].concat()));
        assert_eq!(ticket.unwrap_err().status.as_u16(), 400);
    }
}
