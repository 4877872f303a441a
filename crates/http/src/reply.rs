//! An answer: its head, and its body as one text or as a stream of events.
//! Never keeps more of it than 1 MiB, and never reads a stream faster than it is asked for.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body as _, Frame, Incoming, SizeHint};
use hyper::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderValue, TRANSFER_ENCODING};
use hyper::{Request, StatusCode};
use tokio::sync::OwnedSemaphorePermit;

use super::connection::{Answer, Connection};
use super::error::HttpError;
use super::idle::IdleConnections;
use super::limits::MAX_BODY;
use super::sse::{Event, Reader};
use super::waste::Waste;

/// What some programs write ahead of a text (RFC 8259 §8.1: parsers may ignore it).
const BOM: &[u8] = b"\xEF\xBB\xBF";

/// The head of an answer, with the body still to come. Dropping it closes the connection, unless the body was read to its end.
#[derive(Debug)]
pub struct Reply {
    status: StatusCode,
    headers: HeaderMap,
    is_tls: bool,
    body: Body,
    /// A chunk that was read ahead.
    peeked: Bytes,
}

/// The body of an answer. Dropping it closes the connection, unless it was read to its end.
#[derive(Debug)]
pub struct Body {
    incoming: Incoming,
    connection: Option<Connection>,
    home: Option<Home>,
}

/// Where a connection goes after its answer, and its permit.
#[derive(Debug)]
pub(crate) struct Home {
    pub(crate) idle: Arc<IdleConnections>,
    pub(crate) permit: OwnedSemaphorePermit,
}

impl Connection {
    /// Sends a request and waits for the head of the answer, without a time limit of its own. The connection is closed after the answer.
    ///
    /// # Errors
    /// [`HttpError::Broken`].
    ///
    /// Cancel safety: a dropped future closes the connection, and the server may or may not have got the request.
    pub async fn send(self, request: Request<Bytes>) -> Result<Reply, HttpError> {
        let sent = self.try_send(request.map(Full::new)).await;
        sent.map(|(connection, answer)| Reply::new(connection, answer, None)).map_err(|(error, _)| error)
    }
}

impl Reply {
    pub(crate) fn new(connection: Connection, answer: Answer, home: Option<Home>) -> Self {
        let ((head, incoming), is_tls) = (answer.into_parts(), connection.is_tls);
        let body = Body { incoming, connection: Some(connection), home };
        Self { status: head.status, headers: head.headers, is_tls, body, peeked: Bytes::new() }
    }

    /// Status, header fields and body.
    #[must_use]
    pub fn into_parts(self) -> (StatusCode, HeaderMap, Body) {
        (self.status, self.headers, self.body)
    }

    /// The status.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// The header fields.
    #[must_use]
    pub fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    /// The media type without its parameters, in lower case: `application/json`.
    #[must_use]
    pub fn media_type(&self) -> String {
        let value = self.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
    }

    /// Whether the body is a stream of events.
    #[must_use]
    pub fn is_events(&self) -> bool {
        self.media_type() == "text/event-stream"
    }

    /// Whether a truncated body is an error: it has a length or chunks, or TLS marks its end. Any other body ends with its connection, for
    /// whatever reason that ended.
    #[must_use]
    pub fn is_framed(&self) -> bool {
        // Chunked only if that is the last coding of the last field; otherwise, for hyper, the body ends with its connection.
        let coding = self.headers.get_all(TRANSFER_ENCODING).iter().next_back().map(HeaderValue::as_bytes);
        let is_chunked = coding.and_then(|coding| coding.rsplit(|byte| *byte == b',').next());
        let is_chunked = is_chunked.is_some_and(|last| last.trim_ascii().eq_ignore_ascii_case(b"chunked"));
        self.is_tls || is_chunked || self.body.incoming.size_hint().exact().is_some()
    }

    /// The content encoding, which we never ask for, if there is one.
    #[must_use]
    pub fn encoding(&self) -> Option<&HeaderValue> {
        self.headers.get_all(CONTENT_ENCODING).iter().find(|value| !value.as_bytes().eq_ignore_ascii_case(b"identity"))
    }

    /// Whether the body is a JSON array, or may be one. The body is not consumed.
    ///
    /// # Errors
    /// [`HttpError::Broken`].
    pub async fn may_be_array(&mut self) -> Result<bool, HttpError> {
        let Some(chunk) = self.body.next().await? else { return Ok(false) };
        let may_be = chunk.trim_ascii_start().first().is_none_or(|first| *first == b'[');
        self.peeked = chunk;
        Ok(may_be)
    }

    /// Gives up the connection, and returns its permit if it has one.
    #[must_use]
    pub fn over(self) -> Option<OwnedSemaphorePermit> {
        self.body.home.map(|home| home.permit)
    }

    /// The whole body, of this many bytes at most.
    ///
    /// # Errors
    /// [`HttpError::TooLarge`], [`HttpError::Broken`].
    pub async fn bytes(mut self, limit: usize) -> Result<Vec<u8>, HttpError> {
        let mut bytes = Vec::from(self.peeked);
        while let Some(chunk) = self.body.next().await? {
            if bytes.len() + chunk.len() > limit {
                return Err(HttpError::TooLarge);
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok(bytes)
    }

    /// The whole body, of 1 MiB at most, without a byte-order mark.
    ///
    /// # Errors
    /// [`HttpError::TooLarge`], [`HttpError::NotUtf8`], [`HttpError::Broken`].
    pub async fn text(self) -> Result<String, HttpError> {
        let mut text = self.bytes(MAX_BODY).await?;
        if text.starts_with(BOM) {
            text.drain(..BOM.len());
        }
        String::from_utf8(text).map_err(|_| HttpError::NotUtf8)
    }

    /// The body as a stream of events, whatever its media type.
    #[must_use]
    pub fn events(self) -> Events {
        Events { body: self.body, chunk: self.peeked, reader: Reader::default(), waste: Waste::new() }
    }
}

impl Body {
    /// The next piece. Cancel safe.
    async fn next(&mut self) -> Result<Option<Bytes>, HttpError> {
        while let Some(frame) = self.frame().await {
            // Trailers have no meaning here.
            if let Ok(data) = frame?.into_data() {
                return Ok(Some(data));
            }
        }
        Ok(None)
    }
}

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<hyper::Result<Frame<Bytes>>>> {
        let frame = ready!(Pin::new(&mut self.incoming).poll_frame(context));
        if frame.is_none()
            && let Some(connection) = self.connection.take()
            && let Some(home) = &self.home
        {
            home.idle.keep(connection);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

/// The events of an answer. Dropping it closes the connection, which tells the server that nobody listens.
#[derive(Debug)]
pub struct Events {
    body: Body,
    /// What has arrived and was not parsed yet.
    chunk: Bytes,
    reader: Reader,
    /// Events of which whoever reads them had no use.
    waste: Waste,
}

impl Events {
    /// Counts an event of this size as useless.
    ///
    /// # Errors
    /// [`HttpError::Useless`]: there were too many, at once or a second.
    pub fn useless(&mut self, bytes: usize) -> Result<(), HttpError> {
        self.waste.add(1, u64::try_from(bytes).unwrap_or(u64::MAX)).map_err(HttpError::Useless)
    }

    /// The next event; `None` at the end of the answer. An event that is incomplete there is dropped.
    ///
    /// # Errors
    /// [`HttpError::TooLarge`] for an event above 1 MiB, [`HttpError::Useless`] for a stream with too much between its events,
    /// [`HttpError::NotUtf8`], [`HttpError::Broken`].
    ///
    /// Cancel safe.
    pub async fn next(&mut self) -> Result<Option<Event>, HttpError> {
        loop {
            if let Some(event) = self.reader.read(&mut self.chunk)? {
                return Ok(Some(event));
            }
            match self.body.next().await? {
                Some(chunk) => self.chunk = chunk,
                None => return Ok(None),
            }
        }
    }

    /// Whether the answer has ended within an event, which was dropped.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.reader.is_within_event()
    }
}
