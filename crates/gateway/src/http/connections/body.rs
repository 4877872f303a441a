//! The bodies of requests and of answers.
//! Never hands over more of an HTTP/2 answer than is watched, and never leaves a short rest of an HTTP/2 body unread.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body_util::BodyExt as _;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::Version;
use hyper::body::{Body as _, Frame, Incoming, SizeHint};
use tokio::time::{Instant, timeout};

use super::activity::Activity;
use super::limits::{ANSWER_BYTES, DRAIN, DRAIN_FOR, UNWATCHED};
use super::slot::ActiveRequest;

/// The body of an answer.
pub type Body = UnsyncBoxBody<Bytes, Infallible>;

/// The body of an answer, with a permit that is held until all of it has been handed over.
pub(crate) struct PermitBody<T> {
    body: Body,
    _permit: T,
}

impl<T> PermitBody<T> {
    pub(crate) fn new(body: Body, permit: T) -> Self {
        Self { body, _permit: permit }
    }
}

impl<T: Unpin> hyper::body::Body for PermitBody<T> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The body of a request. If it is dropped unread, a short rest of an HTTP/2 body is discarded: a server may end a stream after its answer
/// while the request is still being sent (RFC 9113 §8.1), but clients such as curl 7.88 treat that as a failure.
#[derive(Debug)]
pub(crate) struct RequestBody {
    /// `None` once dropped.
    body: Option<Incoming>,
    is_http2: bool,
}

impl RequestBody {
    pub(super) fn new(body: Incoming, version: Version) -> Self {
        Self { body: Some(body), is_http2: version == Version::HTTP_2 }
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        let Some(mut body) = self.body.take().filter(|body| self.is_http2 && !body.is_end_stream()) else { return };
        let drain = async move {
            let mut left = DRAIN;
            while let Some(Ok(frame)) = body.frame().await {
                left = left.saturating_sub(frame.data_ref().map_or(0, Bytes::len));
                if left == 0 {
                    return;
                }
            }
        };
        // Not more of them than the connection may have streams, since each of them has not ended.
        tokio::spawn(timeout(DRAIN_FOR, drain));
    }
}

impl hyper::body::Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match &mut self.body {
            Some(body) => Pin::new(body).poll_frame(context),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Incoming::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map(Incoming::size_hint).unwrap_or_default()
    }
}

/// The body of an answer, which keeps its connection busy. Over HTTP/2 it comes in slices: hyper asks for the next one once the one before
/// has gone out, so a client that does not read is noticed.
pub(super) struct ResponseBody {
    body: Body,
    /// What is left of the last frame.
    rest: Bytes,
    /// That of the HTTP/2 stream.
    activity: Option<Arc<Activity>>,
    _request: Option<ActiveRequest>,
}

impl ResponseBody {
    pub(super) fn new(body: Body, activity: Option<Arc<Activity>>, request: Option<ActiveRequest>) -> Self {
        Self { body, rest: Bytes::new(), activity, _request: request }
    }

    fn poll_slice(&mut self, context: &mut Context<'_>) -> Poll<Option<Frame<Bytes>>> {
        while self.rest.is_empty() {
            match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.rest = data,
                    Err(trailers) => return Poll::Ready(Some(trailers)),
                },
                None => return Poll::Ready(None),
            }
        }
        let size = match self.rest.len() {
            length if length > UNWATCHED => ANSWER_BYTES.min(length - 1),
            length => length,
        };
        let slice = self.rest.split_to(size);
        // Copied, so that one byte does not keep the whole buffer alive.
        Poll::Ready(Some(Frame::data(if size == 1 { Bytes::copy_from_slice(&slice) } else { slice })))
    }
}

impl hyper::body::Body for ResponseBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.activity.is_none() {
            return Pin::new(&mut self.body).poll_frame(context);
        }
        let slice = self.poll_slice(context);
        if let Some(activity) = &self.activity {
            activity.unread_since(matches!(slice, Poll::Ready(Some(_))).then(Instant::now));
        }
        slice.map(|frame| frame.map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        if self.rest.is_empty() { self.body.size_hint() } else { SizeHint::default() }
    }
}
