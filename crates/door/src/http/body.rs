//! Reads the body of a request, within limits of size and time.
//! Never holds more of it than its size limit.

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

/// The most bytes of a body. By default, brokers accept messages of 1 MiB, and services requests of 256 KiB.
pub(crate) const BYTES: usize = 192 << 10;
/// How long a body may take.
const WITHIN: Duration = Duration::from_secs(10);
/// How much of a body that is too large is still read, and for how long: closing a connection with unread data resets it, and the client
/// may not see why.
const UNREAD: u64 = 1 << 20;
const UNREAD_FOR: Duration = Duration::from_secs(2);

/// Reads a body that is JSON according to the head.
pub(crate) async fn json(head: &Parts, mut body: Received) -> Result<Bytes, Refusal> {
    let kind = single(&head.headers, &CONTENT_TYPE)?.unwrap_or_default();
    if !is_json(kind) {
        let message = "`Content-Type` must be `application/json`";
        return Err(Refusal::bad(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
    }
    if single(&head.headers, &CONTENT_ENCODING)?.is_some_and(|coding| !coding.eq_ignore_ascii_case("identity")) {
        return Err(Refusal::bad(StatusCode::UNSUPPORTED_MEDIA_TYPE, "a body must not have a `Content-Encoding`"));
    }
    let too_large =
        || Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, code::TOO_LARGE, "the body is larger than 192 KiB").closing();
    // `Transfer-Encoding` is refused, so in HTTP/1.1 this is the length. In HTTP/2 it may be missing; then the bytes are counted.
    if let Some(length) = body.size_hint().exact().filter(|length| *length > BYTES as u64) {
        let is_sent = !head.headers.contains_key(EXPECT);
        if is_sent && length <= UNREAD {
            drop(timeout(UNREAD_FOR, async { while let Some(Ok(_)) = body.frame().await {} }).await);
        }
        return Err(too_large());
    }
    // A copy, so that the connection can reuse its buffer for the next request.
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
    // Usually all of it came with the head, and no timer is needed.
    if let Some(read) = reading.as_mut().now_or_never() {
        return read;
    }
    let late = |_| Refusal::bad(StatusCode::REQUEST_TIMEOUT, "the body took more than 10 s").closing();
    timeout(WITHIN, reading).await.map_err(late)?
}

/// A page of another origin cannot send this media type without a preflight.
fn is_json(kind: &str) -> bool {
    let mut parts = kind.split(';').map(str::trim);
    let is_json = parts.next().is_some_and(|kind| kind.eq_ignore_ascii_case("application/json"));
    // RFC 8259 §8.1: JSON is UTF-8, whatever the parameter says.
    is_json
        && parts
            .all(|part| part.eq_ignore_ascii_case("charset=utf-8") || part.eq_ignore_ascii_case("charset=\"utf-8\""))
}
