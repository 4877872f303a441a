//! Streams of parts as server-sent events: each is written when its client has room for it, so whoever reads slowly slows the method
//! down, by the window of the call.
//! Never says `[DONE]` before the service has signed the end of all that was said.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Method, Response, StatusCode};
use sealwire::client::{CallStream, ClientError, MessageId};
use sealwire::rpc::{self, Id, Limits, Request, code};
use serde_json::value::RawValue;
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use super::callers::Callers;
use super::config::Expose;
use super::connections::{Body, Received, Within};
use super::gate;
use super::principal::{Place, Principal};
use super::refusal::Refusal;
use super::rpc::failed;
use super::{Door, body};
use crate::bus::gone;

/// How often a client hears something: what is on the way ends connections that are silent for a minute.
const BEAT: Duration = Duration::from_secs(15);
/// How often it is looked whether a caller may still have what it has begun.
const HOLDS: Duration = Duration::from_secs(2);
/// The largest result, in bytes.
const RESULT: usize = 4 << 20;

impl Door {
    /// `POST /rpc/<service>/stream`, and `GET` with the call in the query, for what can do nothing else.
    pub(super) async fn stream(
        &self,
        principal: Principal,
        expose: &Expose,
        head: &Parts,
        incoming: Received,
    ) -> Result<Response<Body>, Refusal> {
        // A page can have all of these sent, and would use up what everybody may.
        let is_get = match head.method {
            Method::POST => false,
            Method::GET => true,
            _ => return Err(Refusal::method(&[Method::GET, Method::POST])),
        };
        if is_get {
            gate::wants_events(head)?;
        }
        let admitted = self.admission.admit(&principal, expose.service.as_str())?;
        let place = self.admission.open_stream(&principal, expose.service.as_str())?;
        let text = match is_get {
            true => asked(head.uri.query().unwrap_or_default())?,
            false => body::json(head, incoming).await?,
        };
        let (id, request) = one_call(expose, &text)?;
        let away = || Refusal::away().of(Some(&id));
        let client = self.bus.client().await.map_err(|_| away())?;
        drop(admitted);

        let message_id = MessageId::default();
        // Bounded by the window of the call: no more of them come before these are read.
        let (tell, notes) = mpsc::unbounded_channel();
        let call = self
            .callers
            .request(&client, &principal, expose)
            .max_bytes(RESULT)
            .note_id(&message_id)
            .on_notification(move |note| drop(tell.send(note)))
            .stream::<Box<RawValue>>(&request.method, &request.params);
        let mut beat = interval_at(Instant::now() + BEAT, BEAT);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let events = Events {
            call: Some(call),
            notes,
            ready: VecDeque::new(),
            id,
            beat,
            gone: {
                let message_id = message_id.clone();
                Box::pin(async move { gone(&client, &message_id).await })
            },
            holds: interval_at(Instant::now() + HOLDS, HOLDS),
            callers: Arc::clone(&self.callers),
            expose: expose.clone(),
            principal,
            message_id,
            ended: None,
            _place: place,
        };
        let body = StreamBody::new(stream::unfold(events, async |mut events| {
            let event = events.next().await?;
            Some((Ok(Frame::data(event)), events))
        }));
        let mut answer = Response::new(body.boxed_unsync());
        answer.extensions_mut().insert(Within(expose.timeout()));
        let headers = answer.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        // nginx would hold events back.
        headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
        Ok(answer)
    }
}

/// One stream on its way to a client.
struct Events {
    /// Until it has ended.
    call: Option<CallStream<Box<RawValue>>>,
    notes: UnboundedReceiver<Request>,
    /// What came together.
    ready: VecDeque<Bytes>,
    /// The caller's own.
    id: Id,
    beat: Interval,
    /// Completes when it is without a broker for too long.
    gone: Pin<Box<dyn Future<Output = bool> + Send>>,
    /// When it is looked whether the caller may still have it.
    holds: Interval,
    callers: Arc<Callers>,
    expose: Expose,
    principal: Principal,
    message_id: MessageId,
    /// What it came to.
    ended: Option<&'static str>,
    _place: Place,
}

impl Events {
    /// The next bytes for the client; `None` after the last.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            // More are let in by asking for the next part, so these go first.
            if let Ok(note) = self.notes.try_recv() {
                return Some(data(&note.to_bytes()));
            }
            let call = self.call.as_mut()?;
            tokio::select! {
                biased;
                // Ahead of parts, of which there may always be one.
                _ = self.holds.tick() => {
                    if !self.callers.holds(&self.principal) {
                        self.call = None;
                        self.ended = Some("revoked");
                        self.ready.push_back(data(&Refusal::ended().of(Some(&self.id)).text()));
                    }
                }
                part = call.next() => {
                    // They came before it.
                    self.take_notes();
                    match part {
                        Some(Ok(part)) => {
                            let item = rpc::Response::new(self.id.clone(), Ok(part));
                            self.ready.push_back(data(&item.to_bytes()));
                        }
                        Some(Err(error)) => self.end(Err(error)),
                        None => {
                            let outcome = match self.call.take() {
                                Some(call) => call.finish::<Box<RawValue>>().await,
                                None => Err(ClientError::Ended),
                            };
                            self.end(outcome);
                        }
                    }
                }
                Some(note) = self.notes.recv() => self.ready.push_back(data(&note.to_bytes())),
                // What sends the call works beside this one: it may just have done so.
                _ = &mut self.gone => {
                    self.call = None;
                    self.ended = Some("broker away");
                    self.ready.push_back(data(&Refusal::lost().of(Some(&self.id)).text()));
                }
                _ = self.beat.tick() => self.ready.push_back(Bytes::from_static(b":\n\n")),
            }
        }
    }

    fn take_notes(&mut self) {
        while let Ok(note) = self.notes.try_recv() {
            self.ready.push_back(data(&note.to_bytes()));
        }
    }

    fn end(&mut self, outcome: Result<Box<RawValue>, ClientError>) {
        self.call = None;
        self.take_notes();
        let signed = match outcome {
            Ok(result) => Ok(result),
            Err(ClientError::Remote(error))
                if !matches!(error.code(), code::UNAUTHENTICATED | code::STALE | code::REPLAYED) =>
            {
                Err(error)
            }
            // Nobody has signed an end.
            Err(error) => {
                self.ended = Some("unverified");
                let refusal = match &error {
                    ClientError::Remote(_) => Refusal::not_taken(),
                    error => failed(&self.expose, error),
                };
                return self.ready.push_back(data(&refusal.of(Some(&self.id)).text()));
            }
        };
        self.ended = Some(if signed.is_ok() { "result" } else { "error" });
        self.ready.push_back(data(&rpc::Response::new(self.id.clone(), signed).to_bytes()));
        self.ready.push_back(Bytes::from_static(b"data: [DONE]\n\n"));
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        tracing::info!(
            target: "sealwire::door",
            caller = self.principal.as_str(),
            service = %self.expose.service,
            message_id = self.message_id.get(),
            ended = self.ended.unwrap_or("given up by its client"),
            "stream"
        );
    }
}

/// One event, one line. JSON has ends of lines between its tokens only, where a blank is as good.
pub(super) fn data(text: &[u8]) -> Bytes {
    let mut event = Vec::with_capacity(text.len() + 8);
    event.extend_from_slice(b"data: ");
    event.extend(text.iter().map(|byte| if matches!(byte, b'\n' | b'\r') { b' ' } else { *byte }));
    event.extend_from_slice(b"\n\n");
    event.into()
}

/// The one call of a message.
fn one_call(expose: &Expose, text: &[u8]) -> Result<(Id, Request), Refusal> {
    let message = rpc::Body::parse(text, &Limits::default()).map_err(|error| Refusal::of_text(&error))?;
    let refused = |message| Err(Refusal::bad(StatusCode::BAD_REQUEST, message));
    match message {
        rpc::Body::Single(Ok(request)) => match request.id.clone() {
            Some(id) if expose.allows(&request.method) => Ok((id, request)),
            Some(id) => Err(Refusal::no_method().asking(&request.method).of(Some(&id))),
            None => refused("a stream answers a call, and this is a notification"),
        },
        rpc::Body::Single(Err(invalid)) => Err(Refusal::of_invalid(&invalid)),
        rpc::Body::Batch(_) => refused("a stream answers one call, and this is a batch"),
    }
}

/// The call that a query has: `method`, `params` as JSON, and `id`, a text; `"1"` if it is left out.
fn asked(query: &str) -> Result<Bytes, Refusal> {
    let bad = |message| Refusal::bad(StatusCode::BAD_REQUEST, message);
    let (mut method, mut params, mut id) = (None, None, None);
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let place = match name {
            "method" => &mut method,
            "params" => &mut params,
            "id" => &mut id,
            _ => return Err(bad("the query has `method`, `params` and `id`, and nothing else")),
        };
        let value = value.replace('+', " ");
        let value =
            percent_encoding::percent_decode_str(&value).decode_utf8().map_err(|_| bad("the query is no text"))?;
        if place.replace(value.into_owned()).is_some() {
            return Err(bad("the query has something twice"));
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

    #[test]
    fn events_hold_json_whatever_ends_of_lines_it_has() {
        assert_eq!(data(b"{}"), "data: {}\n\n");
        assert_eq!(data(b"{\n\"a\":\r\n1}"), "data: { \"a\":  1}\n\n");
    }

    #[test]
    fn a_query_is_a_call_or_refused() {
        let text = |query: &str| asked(query).map(|text| String::from_utf8(text.to_vec()).unwrap());
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
            assert!(asked(query).is_err(), "{query}");
        }
    }
}
