//! The body of a request: all of it, within size and time.
//! Never holds more of it than the bound.

use std::pin::pin;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::FutureExt as _;
use http_body_util::BodyExt as _;
use hyper::StatusCode;
use hyper::body::Body as _;
use hyper::header::{CONTENT_ENCODING, CONTENT_TYPE, EXPECT};
use hyper::http::request::Parts;
use sealwire::rpc::code;
use tokio::time::timeout;

use super::connections::Received;
use super::gate::single;
use super::refusal::Refusal;

/// The most bytes of a body. Brokers take messages of 1 MiB, services requests of 256 KiB unless configured.
pub(crate) const BYTES: usize = 192 << 10;
/// How long a body may take.
const WITHIN: Duration = Duration::from_secs(10);
/// What is too large is read to its end for as long as this and no further: a connection that is closed with something unread is reset,
/// and the client may not see why.
const UNREAD: u64 = 1 << 20;
const UNREAD_FOR: Duration = Duration::from_secs(2);

/// Reads a body that is JSON, by its head.
pub(crate) async fn json(head: &Parts, mut body: Received) -> Result<Bytes, Refusal> {
    let kind = single(&head.headers, &CONTENT_TYPE)?.unwrap_or_default();
    if !is_json(kind) {
        let message = "`Content-Type` must be `application/json`";
        return Err(Refusal::bad(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
    }
    if single(&head.headers, &CONTENT_ENCODING)?.is_some_and(|coding| !coding.eq_ignore_ascii_case("identity")) {
        return Err(Refusal::bad(StatusCode::UNSUPPORTED_MEDIA_TYPE, "a body may not have a `Content-Encoding`"));
    }
    let too_large =
        || Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, code::TOO_LARGE, "the body has more than 192 KiB").closing();
    // There is no other encoding in HTTP/1.1, so this is its length. In HTTP/2 it need not be said, and then is found out.
    if let Some(length) = body.size_hint().exact().filter(|length| *length > BYTES as u64) {
        let is_sent = !head.headers.contains_key(EXPECT);
        if is_sent && length <= UNREAD {
            drop(timeout(UNREAD_FOR, async { while let Some(Ok(_)) = body.frame().await {} }).await);
        }
        return Err(too_large());
    }
    // A copy: what came with it in one piece is the connection's to read the next request into.
    let mut text = BytesMut::with_capacity(body.size_hint().lower().min(BYTES as u64) as usize);
    let mut reading = pin!(async {
        while let Some(frame) = body.frame().await {
            let broken = |_| Refusal::bad(StatusCode::BAD_REQUEST, "the body ends too early").closing();
            if let Ok(data) = frame.map_err(broken)?.into_data() {
                text.extend_from_slice(&data);
                if text.len() > BYTES {
                    return Err(too_large());
                }
            }
        }
        Ok(text.freeze())
    });
    // As a rule all of it came with the head, and no timer is needed.
    if let Some(read) = reading.as_mut().now_or_never() {
        return read;
    }
    let late = |_| Refusal::bad(StatusCode::REQUEST_TIMEOUT, "the body takes more than 10 s").closing();
    timeout(WITHIN, reading).await.map_err(late)?
}

/// A page of another origin cannot send this without asking first.
fn is_json(kind: &str) -> bool {
    let mut parts = kind.split(';').map(str::trim);
    let is_json = parts.next().is_some_and(|kind| kind.eq_ignore_ascii_case("application/json"));
    // RFC 8259 §8.1: it is UTF-8, whatever is said.
    is_json
        && parts
            .all(|part| part.eq_ignore_ascii_case("charset=utf-8") || part.eq_ignore_ascii_case("charset=\"utf-8\""))
}
