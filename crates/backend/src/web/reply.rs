//! An answer: its head, and its body as one text or as a stream of events.
//! Never keeps more of it than 1 MiB, and never reads a stream faster than it is asked for.

use std::sync::Arc;

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::StatusCode;
use hyper::body::{Body as _, Incoming};
use hyper::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderValue, TRANSFER_ENCODING};
use tokio::sync::OwnedSemaphorePermit;

use super::MAX_BODY;
use super::error::WebError;
use super::link::{Answer, Idle, Link, broken};
use super::sse::{Event, Reader};

/// The head of an answer, with the body still to come. Dropping it closes the connection, unless the body was read to its end.
#[derive(Debug)]
pub struct Reply {
    status: StatusCode,
    headers: HeaderMap,
    is_tls: bool,
    body: Body,
}

#[derive(Debug)]
struct Body {
    incoming: Incoming,
    /// A chunk that was read ahead.
    peeked: Option<Bytes>,
    link: Option<Link>,
    idle: Arc<Idle>,
    place: OwnedSemaphorePermit,
}

impl Reply {
    pub(super) fn new(link: Link, answer: Answer, idle: Arc<Idle>, place: OwnedSemaphorePermit, is_tls: bool) -> Self {
        let (head, incoming) = answer.into_parts();
        let body = Body { incoming, peeked: None, link: Some(link), idle, place };
        Self { status: head.status, headers: head.headers, is_tls, body }
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

    pub(super) fn is_encoded(&self) -> bool {
        self.headers.get_all(CONTENT_ENCODING).iter().any(|value| !value.as_bytes().eq_ignore_ascii_case(b"identity"))
    }

    /// Whether the body is a JSON array, or may be one. The body is not consumed.
    pub(super) async fn may_be_array(&mut self) -> Result<bool, WebError> {
        self.body.peeked = self.body.next().await?;
        let first = |chunk: &Bytes| chunk.trim_ascii_start().first().is_none_or(|first| *first == b'[');
        Ok(self.body.peeked.as_ref().is_some_and(first))
    }

    /// Gives up the connection, and returns its permit.
    pub(super) fn over(self) -> OwnedSemaphorePermit {
        self.body.place
    }

    /// The whole body.
    ///
    /// # Errors
    /// [`WebError::TooLarge`], [`WebError::NotUtf8`], [`WebError::Broken`].
    pub async fn text(mut self) -> Result<String, WebError> {
        let mut text = Vec::new();
        while let Some(chunk) = self.body.next().await? {
            if text.len() + chunk.len() > MAX_BODY {
                return Err(WebError::TooLarge);
            }
            text.extend_from_slice(&chunk);
        }
        String::from_utf8(text).map_err(|_| WebError::NotUtf8)
    }

    /// The body as a stream of events, whatever its media type.
    #[must_use]
    pub fn events(self) -> Events {
        Events { body: self.body, chunk: Bytes::new(), reader: Reader::default() }
    }
}

impl Body {
    /// The next piece. Cancel safe.
    async fn next(&mut self) -> Result<Option<Bytes>, WebError> {
        if let Some(chunk) = self.peeked.take() {
            return Ok(Some(chunk));
        }
        loop {
            match self.incoming.frame().await {
                Some(Ok(frame)) => {
                    // Trailers have no meaning here.
                    if let Ok(data) = frame.into_data() {
                        return Ok(Some(data));
                    }
                }
                Some(Err(error)) => return Err(broken(&error)),
                None => {
                    if let Some(link) = self.link.take() {
                        self.idle.keep(link);
                    }
                    return Ok(None);
                }
            }
        }
    }
}

/// The events of an answer. Dropping it closes the connection, which tells the server that nobody listens.
#[derive(Debug)]
pub struct Events {
    body: Body,
    /// What has arrived and was not parsed yet.
    chunk: Bytes,
    reader: Reader,
}

impl Events {
    /// The next event; `None` at the end of the answer. An event that is incomplete there is dropped.
    ///
    /// # Errors
    /// [`WebError::TooLarge`] for an event above 1 MiB, [`WebError::NotUtf8`], [`WebError::Broken`].
    ///
    /// Cancel safe.
    pub async fn next(&mut self) -> Result<Option<Event>, WebError> {
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
}
