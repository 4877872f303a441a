//! The answer to one request: JSON, or events if anything precedes the response.
//! Never sends anything after the response.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _, stream};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};
use sealwire_mcp::{Id, Revision, code};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use super::head::Accepts;
use super::tasks::Tasks;
use super::validity::lost;
use crate::http::connections::Body;
use crate::http::events::data;
use crate::http::refusal::Refusal;
use crate::http::response::response;
use crate::mcp::Line;
use crate::mcp::message::{self, Outcome};

/// How long a stream may be silent before a comment is sent: proxies close connections that are silent for a minute.
const BEAT: Duration = Duration::from_secs(15);

/// The outcome of a request.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) status: StatusCode,
    pub(super) text: Vec<u8>,
    /// The refusal to answer with instead, if nothing was sent before.
    refusal: Option<Box<Refusal>>,
}

impl Ended {
    pub(super) fn new(revision: Revision, id: &Id, outcome: Outcome) -> Self {
        let status = match &outcome {
            // Streamable HTTP 2026-07-28, "Sending Messages": an unknown method.
            Err(fault) if revision == Revision::V2026_07_28 && fault.code == -32601 => StatusCode::NOT_FOUND,
            // The same, "Server Validation", and 2026-07-28 `MissingRequiredClientCapabilityError`.
            Err(fault)
                if revision == Revision::V2026_07_28
                    && [code::HEADER_MISMATCH, code::MISSING_CAPABILITY].contains(&fault.code) =>
            {
                StatusCode::BAD_REQUEST
            }
            _ => StatusCode::OK,
        };
        let text = message::Response::new(Some(id), &outcome).text();
        let token = outcome.as_ref().err().and_then(|fault| fault.token.as_deref());
        Self { status, text, refusal: token.and_then(Refusal::of_token).map(Box::new) }
    }

    /// As a complete answer.
    pub(super) fn whole(self, accepts: Accepts) -> Response<Body> {
        if accepts.json || self.status != StatusCode::OK {
            return response(self.status, "application/json", self.text);
        }
        of_events(response(self.status, "text/event-stream", data(&self.text)))
    }
}

/// A request in progress.
pub(super) struct Answering {
    /// `None` if nothing can precede the response.
    lines: Option<mpsc::Receiver<Line>>,
    end: End,
    beat: Interval,
    revision: Revision,
    id: Id,
    tasks: Tasks,
}

/// The work of a request; `None` if it was cancelled.
type Work = Pin<Box<dyn Future<Output = Option<Ended>> + Send>>;

/// Where a request runs.
enum End {
    /// In the future that waits for the answer, until something has to be sent before the response.
    Here(Work),
    /// In a task, so that it does not depend on how fast its client reads.
    Apart {
        ended: oneshot::Receiver<Option<Ended>>,
        /// If set, dropping it cancels the request.
        _client: Option<oneshot::Sender<()>>,
    },
    /// It has ended; whatever is left to send before the response comes first.
    Come(Option<Ended>),
}

enum StreamItem {
    Line(Bytes),
    Silence,
    /// Nothing more comes; `None` if it was cancelled.
    End(Option<Ended>),
}

impl Answering {
    pub(super) fn new(
        lines: Option<mpsc::Receiver<Line>>,
        work: impl Future<Output = Option<Ended>> + Send + 'static,
        (revision, id): (Revision, Id),
        tasks: Tasks,
    ) -> Self {
        Self { lines, end: End::Here(Box::pin(work)), beat: beats(), revision, id, tasks }
    }

    /// The answer, or the refusal of a caller that needs another token, which MCP clients look for in the HTTP headers.
    pub(super) async fn answer(mut self, accepts: Accepts) -> Result<Response<Body>, Refusal> {
        let first = loop {
            match self.said().await {
                StreamItem::End(Some(Ended { refusal: Some(refusal), .. })) => return Err(*refusal),
                StreamItem::End(Some(ended)) => return Ok(ended.whole(accepts)),
                StreamItem::End(None) if accepts.events => return Ok(streamed(stream::empty())),
                StreamItem::End(None) => return Ok(accepted()),
                // The client accepts no events, so this cannot be sent.
                StreamItem::Line(_) | StreamItem::Silence if !accepts.events => {}
                StreamItem::Line(line) => break line,
                StreamItem::Silence => break Bytes::from_static(COMMENT),
            }
        };
        self.go_apart();
        let rest = stream::unfold(Some(self), async |answering| {
            let mut answering = answering?;
            match answering.said().await {
                StreamItem::Line(line) => Some((line, Some(answering))),
                StreamItem::Silence => Some((Bytes::from_static(COMMENT), Some(answering))),
                StreamItem::End(ended) => ended.map(|ended| (data(&ended.text), None)),
            }
        });
        Ok(streamed(stream::once(async { first }).chain(rest)))
    }

    async fn said(&mut self) -> StreamItem {
        loop {
            if let End::Come(ended) = &mut self.end {
                return match self.lines.as_mut().and_then(|lines| lines.try_recv().ok()) {
                    Some(line) => StreamItem::Line(event(&line)),
                    None => StreamItem::End(ended.take()),
                };
            }
            tokio::select! {
                biased;
                Some(line) = next(&mut self.lines) => return StreamItem::Line(event(&line)),
                ended = self.end.came() => self.end = End::Come(ended.unwrap_or_else(|| Some(self.lost()))),
                _ = self.beat.tick() => return StreamItem::Silence,
            }
        }
    }

    /// The outcome if the task of a request is gone.
    fn lost(&self) -> Ended {
        Ended::new(self.revision, &self.id, Err(lost("the gateway has given up the call")))
    }

    /// Moves the rest of the work to a task.
    fn go_apart(&mut self) {
        let work = match std::mem::replace(&mut self.end, End::Come(None)) {
            End::Here(work) => work,
            end => return self.end = end,
        };
        let (end, ended) = oneshot::channel();
        let (client, gone) = oneshot::channel::<()>();
        let client = (!self.outlives_its_client()).then_some(client);
        let ends_with_it = client.is_some();
        self.end = End::Apart { ended, _client: client };
        self.tasks.spawn(async move {
            let outcome = tokio::select! {
                biased;
                _ = gone, if ends_with_it => None,
                outcome = work => outcome,
            };
            // Fails if the client has gone.
            drop(end.send(outcome));
        });
    }

    /// Streamable HTTP 2026-07-28: closing the response stream cancels the request. In revisions with a handshake this "SHOULD NOT be
    /// interpreted as the client cancelling its request".
    fn outlives_its_client(&self) -> bool {
        self.revision != Revision::V2026_07_28
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        if self.outlives_its_client() {
            self.go_apart();
        }
    }
}

impl End {
    /// Waits for the end; `None` if its task is gone.
    ///
    /// Cancel safe. Must not be called again after it has completed.
    async fn came(&mut self) -> Option<Option<Ended>> {
        match self {
            Self::Here(work) => Some(work.await),
            Self::Apart { ended, .. } => ended.await.ok(),
            Self::Come(ended) => Some(ended.take()),
        }
    }
}

async fn next(lines: &mut Option<mpsc::Receiver<Line>>) -> Option<Line> {
    lines.as_mut()?.recv().await
}

fn event(line: &Line) -> Bytes {
    data(line.text().trim_ascii_end())
}

/// The answer to a message that needs none.
pub(super) fn accepted() -> Response<Body> {
    let mut answer = response(StatusCode::ACCEPTED, "application/json", "");
    answer.headers_mut().remove(hyper::header::CONTENT_TYPE);
    answer
}

/// An answer that is a stream of events.
pub(super) fn streamed(events: impl Stream<Item = Bytes> + Send + 'static) -> Response<Body> {
    let body = StreamBody::new(events.map(|event| Ok(Frame::data(event))));
    of_events(Response::new(body.boxed_unsync()))
}

fn of_events(mut answer: Response<Body>) -> Response<Body> {
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    // Otherwise nginx would buffer the events.
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    answer
}

pub(super) const COMMENT: &[u8] = b":\n\n";

pub(super) fn beats() -> Interval {
    let mut beat = interval_at(Instant::now() + BEAT, BEAT);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    beat
}
