//! Streams of parts as server-sent events. Each event is written when its client has room for it, so a slow reader slows the method down
//! through the call's window.
//! Never sends `[DONE]` unless the service has signed the end.

use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{Method, Response, StatusCode};
use sealwire::internal::rpc;
use sealwire::internal::rpc::{Id, Limits, Request};
use sealwire_mcp::json;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use super::config::Expose;
use super::connections::{AnswerDeadline, Body};
use super::head::{self, CheckedHead};
use super::parts::{Parts, StreamItem, StreamKind};
use super::pipeline::admission::Admitted;
use super::refusal::Refusal;

/// How long a stream may be silent before a comment is sent: proxies close connections that are silent for a minute.
const BEAT: Duration = Duration::from_secs(15);

/// The query of a call by `GET`, for clients that can send nothing else; `None` for a `POST`. Any page can make a browser send a `GET`, so
/// what is not meant as a call is refused before it counts against the rate.
pub(super) fn query(head: &CheckedHead) -> Result<Option<&str>, Refusal> {
    match head.method {
        Method::POST => Ok(None),
        Method::GET => {
            head::wants_events(head)?;
            Ok(Some(head.uri.query().unwrap_or_default()))
        }
        _ => Err(Refusal::method(&[Method::GET, Method::POST])),
    }
}

/// `POST /rpc/<service>/stream`, or `GET` with the call in the query.
pub(super) async fn stream(
    (admitted, streaming): (Admitted, Admitted),
    text: Bytes,
) -> Result<Response<Body>, Refusal> {
    let (id, request) = one_call(admitted.expose(), &text)?;
    admitted.check(&request.method).map_err(|refusal| refusal.asking(&request.method).of(Some(&id)))?;
    let begun = streaming.request().await.map_err(|_| Refusal::away().of(Some(&id)))?;
    drop(admitted);

    let within = streaming.expose().timeout();
    let parts = Parts::begin(streaming, begun, id.clone(), &request, StreamKind::Call);
    let events = Events::new(id, parts);
    let body = StreamBody::new(stream::unfold(events, async |mut events| {
        let event = events.next().await?;
        Some((Ok(Frame::data(event)), events))
    }));
    let mut answer = Response::new(body.boxed_unsync());
    answer.extensions_mut().insert(AnswerDeadline(within));
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    // Otherwise nginx would buffer the events.
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    Ok(answer)
}

/// One stream on its way to a client.
struct Events {
    /// The caller's own id.
    id: Id,
    parts: Parts,
    beat: Interval,
    /// The end was sent, and `[DONE]` is still to come.
    is_done: bool,
}

impl Events {
    fn new(id: Id, parts: Parts) -> Self {
        Self { id, parts, beat: beat(), is_done: false }
    }

    /// The next bytes for the client; `None` after the last.
    async fn next(&mut self) -> Option<Bytes> {
        if std::mem::take(&mut self.is_done) {
            return Some(Bytes::from_static(b"data: [DONE]\n\n"));
        }
        let said = or_beat(&mut self.beat, self.parts.next()).await;
        let Some(said) = said else { return Some(Bytes::from_static(b":\n\n")) };
        Some(match said? {
            StreamItem::Part(part) => data(&rpc::Response::new(self.id.clone(), Ok(part)).to_bytes()),
            StreamItem::Note(note) => data(&note.to_bytes()),
            StreamItem::End(response) => {
                self.is_done = true;
                data(&response.to_bytes())
            }
            StreamItem::Refused(refusal) => data(&refusal.text()),
        })
    }
}

fn beat() -> Interval {
    let mut beat = interval_at(Instant::now() + BEAT, BEAT);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    beat
}

/// The output of `next`; `None` if a beat comes first.
async fn or_beat<T>(beat: &mut Interval, next: impl Future<Output = T>) -> Option<T> {
    let said = tokio::select! {
        biased;
        said = next => Some(said),
        _ = beat.tick() => return None,
    };
    beat.reset();
    said
}

/// One event, on one line.
#[must_use]
pub fn data(text: &[u8]) -> Bytes {
    let mut event = Vec::with_capacity(text.len() + 8);
    event.extend_from_slice(b"data: ");
    event.extend_from_slice(text);
    json::on_one_line(&mut event);
    event.extend_from_slice(b"\n\n");
    event.into()
}

/// The single call in a message.
fn one_call(expose: &Expose, text: &[u8]) -> Result<(Id, Request), Refusal> {
    let message = rpc::Body::parse(text, &Limits::default()).map_err(|error| Refusal::of_text(&error))?;
    let refused = |message| Err(Refusal::bad(StatusCode::BAD_REQUEST, message));
    match message {
        rpc::Body::Single(Ok(request)) => match request.id.clone() {
            Some(id) if expose.allows(&request.method) => Ok((id, request)),
            Some(id) => Err(Refusal::no_method().asking(&request.method).of(Some(&id))),
            None => refused("a stream answers a call, but this is a notification"),
        },
        rpc::Body::Single(Err(invalid)) => Err(Refusal::of_invalid(&invalid)),
        rpc::Body::Batch(_) => refused("a stream answers one call, but this is a batch"),
    }
}

/// The call in a query: `method`, `params` as JSON, and `id`, a string, `"1"` if left out.
pub(super) fn call_of(query: &str) -> Result<Bytes, Refusal> {
    let bad = |message| Refusal::bad(StatusCode::BAD_REQUEST, message);
    let (mut method, mut params, mut id) = (None, None, None);
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let place = match name {
            "method" => &mut method,
            "params" => &mut params,
            "id" => &mut id,
            _ => return Err(bad("the query may have `method`, `params` and `id`, and nothing else")),
        };
        let value = value.replace('+', " ");
        let value =
            percent_encoding::percent_decode_str(&value).decode_utf8().map_err(|_| bad("the query is not UTF-8"))?;
        if place.replace(value.into_owned()).is_some() {
            return Err(bad("the query has a name twice"));
        }
    }
    let Some(method) = method else { return Err(bad("`method` is missing in the query")) };
    let params = match &params {
        Some(params) => Some(rpc::strict_value(params).map_err(|flaw| Refusal::of_text(&flaw.into()))?),
        None => None,
    };
    let id = Id::from(id.as_deref().unwrap_or("1"));
    let request = Request::new(method, &params, Some(id)).map_err(|_| bad("`params` must be an object or an array"))?;
    Ok(request.to_bytes().into())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_client_hears_something_every_15_s_and_nothing_beside_what_is_said() {
        let (began, mut beat) = (Instant::now(), beat());
        // The method says something after 10 s, 40 s later, and then all the time.
        let mut heard = Vec::new();
        for pause in [10, 40, 14, 1, 14] {
            let mut next = std::pin::pin!(tokio::time::sleep(Duration::from_secs(pause)));
            while or_beat(&mut beat, &mut next).await.is_none() {
                heard.push(began.elapsed().as_secs());
            }
        }
        assert_eq!(heard, [25, 40], "15 s after what was last heard, and again");
    }

    #[test]
    fn events_hold_json_whatever_ends_of_lines_it_has() {
        assert_eq!(data(b"{}"), "data: {}\n\n");
        assert_eq!(data(b"{\n\"a\":\r\n1}"), "data: { \"a\":  1}\n\n");
    }

    #[test]
    fn a_query_is_a_call_or_refused() {
        let text = |query: &str| call_of(query).map(|text| String::from_utf8(text.to_vec()).unwrap());
        assert_eq!(
            text("method=text%2Fecho&params=%7B%22text%22%3A%22a+b%22%7D").unwrap(),
            r#"{"jsonrpc":"2.0","method":"text/echo","params":{"text":"a b"},"id":"1"}"#
        );
        assert_eq!(text("id=x%22&method=a").unwrap(), r#"{"jsonrpc":"2.0","method":"a","id":"x\""}"#);
        for query in [
            "",
            "params={}",
            "method=a&method=b",
            "method=a&x=1",
            "method=%ff",
            "method=a&params=1",
            "method=a&params={",
            "method=a&params={\"a\":1,\"a\":2}",
            "method=a&params={},\"id\":2",
        ] {
            assert!(call_of(query).is_err(), "{query}");
        }
    }
}
