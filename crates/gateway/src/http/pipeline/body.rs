//! Reads the body of a request, within limits of size and time.
//! Never holds more of it than its size limit, and never lets bodies that arrive slowly keep out others.

use std::collections::{BTreeMap, HashMap};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::FutureExt as _;
use http_body_util::BodyExt as _;
use hyper::StatusCode;
use hyper::body::Body as _;
use hyper::header::{CONTENT_ENCODING, CONTENT_TYPE, EXPECT};
use hyper::http::request::Parts;
use sealwire::errors::code;
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::http::connections::RequestBody;
use crate::http::fields::single;
use crate::http::refusal::Refusal;

/// The most bytes of a body. By default, brokers accept messages of 1 MiB, and services requests of 256 KiB.
pub(in crate::http) const BYTES: usize = 192 << 10;
/// How long a body may take.
const WITHIN: Duration = Duration::from_secs(10);
/// How much of a body that is too large is still read, and for how long: closing a connection with unread data resets it, and the client
/// may not see why.
const UNREAD: usize = 1 << 20;
const UNREAD_FOR: Duration = Duration::from_secs(2);
/// The most bodies that are waited for at a time: 48 MiB.
const WAITING: usize = 256;

/// The bodies that are waited for. Most arrive with their head, and are not.
#[derive(Debug)]
pub(super) struct Bodies {
    most: usize,
    all: Mutex<Turns>,
}

#[derive(Debug, Default)]
struct Turns {
    turns: u64,
    /// By the order in which they began.
    waiting: BTreeMap<u64, Waiting>,
}

#[derive(Debug)]
struct Waiting {
    principal: Arc<str>,
    makes_room: Arc<Notify>,
}

/// A body that is waited for, until this is dropped.
#[derive(Debug)]
struct Turn<'a> {
    bodies: &'a Bodies,
    turn: u64,
    makes_room: Arc<Notify>,
}

impl Bodies {
    /// Slow bodies leave half of the connections to others.
    pub(super) fn new(connections: usize) -> Self {
        Self { most: (connections / 2).clamp(1, WAITING), all: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Turns> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to wait for a body. If there are too many, the one makes room that has waited longest of the caller with the most.
    fn begin(&self, principal: Arc<str>) -> Turn<'_> {
        let mut all = self.lock();
        if all.waiting.len() >= self.most {
            let mut counts = HashMap::<&str, (usize, u64)>::new();
            for (turn, waiting) in &all.waiting {
                counts.entry(&waiting.principal).or_insert((0, *turn)).0 += 1;
            }
            // Of callers with as many, the one that began first.
            let slowest = counts.into_values().max_by_key(|(count, first)| (*count, std::cmp::Reverse(*first)));
            if let Some(waiting) = slowest.and_then(|(_, first)| all.waiting.remove(&first)) {
                waiting.makes_room.notify_one();
            }
        }
        let makes_room = Arc::<Notify>::default();
        all.turns += 1;
        let turn = all.turns;
        all.waiting.insert(turn, Waiting { principal, makes_room: Arc::clone(&makes_room) });
        Turn { bodies: self, turn, makes_room }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.bodies.lock().waiting.remove(&self.turn);
    }
}

/// The body of a request. Only an admission can have it read.
pub(in crate::http) struct UnreadBody(RequestBody);

impl From<RequestBody> for UnreadBody {
    fn from(body: RequestBody) -> Self {
        Self(body)
    }
}

impl UnreadBody {
    /// Reads a body that is JSON according to the head.
    pub(super) async fn read(self, head: &Parts, bodies: &Bodies, principal: Arc<str>) -> Result<Bytes, Refusal> {
        json(head, self.0, bodies, principal).await
    }
}

async fn json(head: &Parts, mut body: RequestBody, bodies: &Bodies, principal: Arc<str>) -> Result<Bytes, Refusal> {
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
    // It is missing in a chunked body, and may be in HTTP/2; then the bytes are counted.
    if let Some(length) = body.size_hint().exact().filter(|length| *length > BYTES as u64) {
        let is_sent = !head.headers.contains_key(EXPECT);
        if is_sent && length <= UNREAD as u64 {
            pass_over(&mut body).await;
        }
        return Err(too_large());
    }
    // A copy, so that the connection can reuse its buffer for the next request.
    let mut text = BytesMut::with_capacity(body.size_hint().lower().min(BYTES as u64) as usize);
    let mut reading = pin!(async {
        while let Some(frame) = body.frame().await {
            let broken = |_| {
                Refusal::bad(StatusCode::BAD_REQUEST, "the body ends too early, or its chunks are not valid").closing()
            };
            // Trailers say nothing about the message.
            if let Ok(data) = frame.map_err(broken)?.into_data() {
                if data.len() > BYTES - text.len() {
                    pass_over(&mut body).await;
                    return Err(too_large());
                }
                text.extend_from_slice(&data);
            }
        }
        Ok(text.freeze())
    });
    // Usually all of it came with the head, and no timer is needed.
    if let Some(read) = reading.as_mut().now_or_never() {
        return read;
    }
    let late = |message| Err(Refusal::bad(StatusCode::REQUEST_TIMEOUT, message).closing());
    let turn = bodies.begin(principal);
    tokio::select! {
        biased;
        read = timeout(WITHIN, reading) => read.unwrap_or_else(|_| late("the body took more than 10 s")),
        () = turn.makes_room.notified() => late("the body arrives slowly, and others need its place: try again"),
    }
}

/// Discards the rest of a body, if it is short and arrives soon.
async fn pass_over(body: &mut RequestBody) {
    let passing = async {
        let mut left = UNREAD;
        while let Some(Ok(frame)) = body.frame().await {
            left = left.saturating_sub(frame.data_ref().map_or(0, Bytes::len));
            if left == 0 {
                return;
            }
        }
    };
    drop(timeout(UNREAD_FOR, passing).await);
}

/// The media types of JSON-RPC messages: that of RFC 8259, and those that drafts of "JSON-RPC over HTTP" name. A page of another origin
/// cannot send any of them without a preflight.
const JSON: [&str; 3] = ["application/json", "application/json-rpc", "application/jsonrequest"];

/// Whether a media type is JSON in UTF-8. RFC 8259 §8.1: JSON is UTF-8, and the type has no parameters, so others than `charset` say nothing.
fn is_json(kind: &str) -> bool {
    let mut parts = kind.split(';').map(str::trim);
    let is_json = parts.next().is_some_and(|kind| JSON.iter().any(|json| kind.eq_ignore_ascii_case(json)));
    is_json
        && parts.all(|part| {
            let Some((name, value)) = part.split_once('=') else { return part.is_empty() };
            let value = value.strip_prefix('"').and_then(|value| value.strip_suffix('"')).unwrap_or(value);
            !name.eq_ignore_ascii_case("charset")
                || ["utf-8", "utf8"].iter().any(|utf8| value.eq_ignore_ascii_case(utf8))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Media types as clients send them, and as pages may without a preflight.
    #[test]
    fn a_body_is_json_in_utf_8_whatever_its_type_is_called() {
        for (kind, is) in [
            ("application/json", true),
            ("Application/JSON", true),
            ("application/json-rpc", true),
            ("application/jsonrequest", true),
            ("application/json;", true),
            ("application/json; charset=utf-8", true),
            ("application/json;charset=UTF-8", true),
            ("application/json; charset=\"utf-8\"", true),
            ("application/json; Charset=utf8", true),
            ("application/json-rpc; charset=utf-8", true),
            ("application/json; version=2.0", true),
            ("application/json; odata.metadata=minimal; charset=utf-8", true),
            ("application/json; charset=utf-16", false),
            ("application/json; charset=latin1", false),
            ("application/json; charset=us-ascii", false),
            ("application/json; charset=", false),
            ("application/json; charset=utf-8; charset=utf-16", false),
            ("application/json; utf-8", false),
            ("application/json, text/plain", false),
            ("application/problem+json", false),
            ("application/vnd.api+json", false),
            ("application/ld+json", false),
            ("application/jsonx", false),
            ("application/x-www-form-urlencoded", false),
            ("multipart/form-data; boundary=application/json", false),
            ("text/plain", false),
            ("text/plain; charset=application/json", false),
            ("text/json", false),
            ("text/x-json", false),
            ("json", false),
            ("*/*", false),
            ("", false),
        ] {
            assert_eq!(is_json(kind), is, "{kind}");
        }
    }

    #[tokio::test]
    async fn a_body_that_arrives_slowly_makes_room_and_that_of_the_caller_with_most_first() {
        let bodies = Bodies::new(8);
        let [ann, bob]: [Arc<str>; 2] = ["ann".into(), "bob".into()];
        let first = bodies.begin(Arc::clone(&bob));
        let of_ann: Vec<_> = (0..3).map(|_| bodies.begin(Arc::clone(&ann))).collect();
        let more = bodies.begin(Arc::clone(&bob));
        let has_to_go = |turn: &Turn<'_>| turn.makes_room.notified().now_or_never().is_some();
        assert!(has_to_go(&of_ann[0]) && ![&first, &of_ann[1], &of_ann[2], &more].map(has_to_go).contains(&true));
        // Each has two: the one who began first.
        let last = bodies.begin(Arc::clone(&ann));
        assert!(has_to_go(&first) && !has_to_go(&more) && !has_to_go(&last));
        drop((first, of_ann, more, last));
        assert!(bodies.lock().waiting.is_empty(), "nothing is left of those that have ended");
    }
}
