//! Sends requests to one server over HTTP/1.1: reuses connections, bounds every direction, presents credentials.
//! Never follows a redirect, never asks another origin, never repeats a request that may have arrived, and never shows a query or a
//! credential.

mod address;
mod credentials;
mod error;
mod link;
mod reply;
mod sse;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use hyper::header::{
    ACCEPT_ENCODING, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, COOKIE, EXPECT, HOST, HeaderMap, HeaderName,
    HeaderValue, LOCATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE, USER_AGENT,
};
use hyper::{Method, StatusCode};
use sealwire::BackendConfig;
use sealwire::address::Address;
use sealwire::auth::Caller;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::rustls::ClientConfig;

use self::credentials::{Credentials, Presented};
use self::link::{Idle, Link};
use crate::child::visible;

pub use self::error::WebError;
pub use self::reply::{Events, Reply};
pub use self::sse::Event;

/// The largest body of an answer, or event of a stream, in bytes; the same as a line of a program.
pub const MAX_BODY: usize = crate::lines::MAX_LINE;
/// The largest head of an answer, in bytes.
const MAX_HEAD: usize = 16 * 1024;
/// The most header fields of an answer.
const MAX_FIELDS: usize = 100;
/// How long opening a connection may take, TLS included.
const CONNECT: Duration = Duration::from_secs(10);
/// Connections besides those of calls: for the server's stream of changes, and for requests of our own.
const OURS: usize = 4;

/// One server, at one origin.
#[derive(Debug)]
pub struct Web {
    address: Address,
    tls: Option<Arc<ClientConfig>>,
    /// One permit for each connection.
    places: Arc<Semaphore>,
    idle: Arc<Idle>,
    headers: HeaderMap,
    credentials: Credentials,
}

/// A request to the server.
#[derive(Debug, Clone)]
pub struct Request {
    /// `GET`, `POST`, …
    pub verb: Method,
    /// The path and query, `/rpc?a=b`; those of the configured address if `None`.
    pub target: Option<String>,
    /// Header fields besides those of every request.
    pub headers: HeaderMap,
    /// The body; empty for none.
    pub body: Bytes,
}

impl Request {
    /// A `POST` of JSON to the configured address.
    #[must_use]
    pub fn post(json: impl Into<Bytes>) -> Self {
        let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static("application/json"))]);
        Self { verb: Method::POST, target: None, headers, body: json.into() }
    }

    /// A request without a body to the configured address.
    #[must_use]
    pub fn bare(verb: Method) -> Self {
        Self { verb, target: None, headers: HeaderMap::new(), body: Bytes::new() }
    }
}

impl Web {
    /// The server of a backend, from its `url`, `allow_plaintext`, `tls_ca`, `headers`, `credential` and `in_flight`. Reads files, but does
    /// not connect.
    ///
    /// # Errors
    /// What is wrong with them, and what to do.
    pub fn new(config: &BackendConfig) -> Result<Self, String> {
        let url = config.url.as_deref().ok_or("`url` is missing: write where the server is")?;
        let address = address::parse(url, config.allow_plaintext)?;
        if !address.tls && config.tls_ca.is_some() {
            return Err("`tls_ca` is for addresses that begin with https://".to_owned());
        }
        let tls = address.tls.then(|| address::trusting(config)).transpose()?;
        let mut headers = HeaderMap::new();
        for (name, value) in &config.headers {
            let (name, value) = header(name, value)?;
            headers.insert(name, value);
        }
        let in_flight = config.in_flight.unwrap_or(BackendConfig::IN_FLIGHT);
        Ok(Self {
            address,
            tls,
            places: Arc::new(Semaphore::new(in_flight + OURS)),
            idle: Arc::default(),
            headers,
            credentials: Credentials::new(config)?,
        })
    }

    /// The server's address for the log, without the query.
    #[must_use]
    pub fn place(&self) -> String {
        self.address.to_string()
    }

    /// Sends a request once, with the credentials of the service or of this caller; without a caller, callers' own credentials are left
    /// out. Waits for a connection and for the head of the answer, without a time limit of its own.
    ///
    /// If the server rejects the credentials (401), fetches them again, and repeats the request if they have changed: the server has
    /// refused before it did anything. A batch that was answered with an array is not repeated.
    ///
    /// # Errors
    /// [`WebError`]. Any status but a redirect is an answer.
    ///
    /// Cancel safety: a dropped future closes its connection, and the server may or may not have got the request.
    pub async fn send(&self, request: &Request, caller: Option<&Caller>) -> Result<Reply, WebError> {
        self.send_over(&self.places, request, caller).await
    }

    /// The same. `is_sent` becomes true when the request is about to be written; before that, the server has received nothing of it.
    ///
    /// # Errors
    /// As of [`send`](Self::send).
    pub async fn send_told(
        &self,
        request: &Request,
        caller: Option<&Caller>,
        is_sent: &AtomicBool,
    ) -> Result<Reply, WebError> {
        self.send_with(&self.places, request, caller, is_sent).await
    }

    /// The same, over connections of its own, one per permit of `places`: such a request holds up nothing else.
    ///
    /// # Errors
    /// As of [`send`](Self::send).
    pub async fn send_over(
        &self,
        places: &Arc<Semaphore>,
        request: &Request,
        caller: Option<&Caller>,
    ) -> Result<Reply, WebError> {
        self.send_with(places, request, caller, &AtomicBool::new(false)).await
    }

    async fn send_with(
        &self,
        places: &Arc<Semaphore>,
        request: &Request,
        caller: Option<&Caller>,
        is_sent: &AtomicBool,
    ) -> Result<Reply, WebError> {
        let place = Arc::clone(places).acquire_owned().await.map_err(|_| WebError::Broken("it is over".into()))?;
        let presented = self.credentials.of(caller).await?;
        let mut reply = self.ask(request, &presented, place, is_sent).await?;
        if reply.status() != StatusCode::UNAUTHORIZED {
            return Ok(reply);
        }
        // An array answers each of several calls: some of them were made, whatever the one status says.
        if request.body.first() == Some(&b'[') && reply.may_be_array().await? {
            return Ok(reply);
        }
        let Some(fresh) = self.credentials.renewed(caller, &presented).await else { return Ok(reply) };
        let place = reply.over();
        self.ask(request, &fresh, place, is_sent).await
    }

    /// Connects, unless there is an idle connection. Has no time limit of its own.
    ///
    /// # Errors
    /// [`WebError::Unreached`].
    ///
    /// Cancel safe.
    pub async fn reach(&self) -> Result<(), WebError> {
        let link = match self.idle.take().await {
            Some(link) => link,
            None => self.connect().await?,
        };
        if !link.lasts().await {
            return Err(self.unreached("it closes connections at once".to_owned()));
        }
        self.idle.keep(link);
        Ok(())
    }

    async fn connect(&self) -> Result<Link, WebError> {
        let link = tokio::time::timeout(CONNECT, Link::open(&self.address, self.tls.as_ref())).await;
        let slow = |_| Err(format!("no connection within {} s", CONNECT.as_secs()));
        link.unwrap_or_else(slow).map_err(|cause| self.unreached(cause))
    }

    async fn ask(
        &self,
        request: &Request,
        presented: &Presented,
        place: OwnedSemaphorePermit,
        is_sent: &AtomicBool,
    ) -> Result<Reply, WebError> {
        let mut message = self.message(request, presented)?;
        // A request that was not sent at all, because the server has closed the idle connection, goes over another.
        while let Some(link) = self.idle.take().await {
            is_sent.store(true, Ordering::Release);
            match link.send(message).await {
                Ok((link, response)) => return self.reply(link, response, place),
                Err((error, None)) => return Err(error),
                Err((_, Some(unsent))) => message = *unsent,
            }
        }
        let link = self.connect().await?;
        is_sent.store(true, Ordering::Release);
        match link.send(message).await {
            Ok((link, response)) => self.reply(link, response, place),
            Err((error, None)) => Err(error),
            Err((error, Some(_))) => Err(self.unreached(error.to_string())),
        }
    }

    fn unreached(&self, cause: String) -> WebError {
        WebError::Unreached { place: self.place(), cause }
    }

    fn message(&self, request: &Request, presented: &Presented) -> Result<link::Message, WebError> {
        let target = request.target.as_deref().unwrap_or(&self.address.target);
        let mut message = hyper::Request::builder()
            .method(request.verb.clone())
            .uri(target)
            .body(http_body_util::Full::new(request.body.clone()))
            .map_err(|_| WebError::Target)?;
        // An absolute URI in place of a path would be a request to a proxy.
        if message.uri().authority().is_some() || !target.starts_with('/') {
            return Err(WebError::Target);
        }
        let headers = message.headers_mut();
        headers.insert(USER_AGENT, HeaderValue::from_static(concat!("sealwire/", env!("CARGO_PKG_VERSION"))));
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        for source in [&self.headers, &request.headers, &presented.0] {
            for name in source.keys() {
                // Ours, the request's, the credentials': each replaces what was there.
                headers.remove(name);
                for value in source.get_all(name) {
                    headers.append(name.clone(), value.clone());
                }
            }
        }
        headers.insert(HOST, self.address.authority.parse().map_err(|_| WebError::Target)?);
        Ok(message)
    }

    fn reply(&self, link: Link, response: link::Answer, place: OwnedSemaphorePermit) -> Result<Reply, WebError> {
        let reply = Reply::new(link, response, Arc::clone(&self.idle), place, self.tls.is_some());
        if matches!(reply.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
            let to = reply.headers().get(LOCATION).map_or("nowhere", |to| to.to_str().unwrap_or("?"));
            let to = visible(to.split(['?', '#']).next().unwrap_or_default()).chars().take(200).collect();
            return Err(WebError::Redirect { status: reply.status().as_u16(), to });
        }
        if reply.is_encoded() {
            return Err(WebError::Encoded);
        }
        Ok(reply)
    }
}

/// A header field that the configuration adds to requests.
///
/// # Errors
/// What is wrong with it.
pub fn header(name: &str, value: &str) -> Result<(HeaderName, HeaderValue), String> {
    let field = header_name(name)?;
    let value = header_value(value).ok_or_else(|| format!("the value of header `{field}` has a control character"))?;
    Ok((field, value))
}

/// The name of a header field that may be set: none that belongs to the connection.
///
/// # Errors
/// What is wrong with it.
pub fn header_name(name: &str) -> Result<HeaderName, String> {
    let field: HeaderName = name.parse().map_err(|_| format!("`{}` is not a header name", name.escape_debug()))?;
    let ours =
        [HOST, CONTENT_LENGTH, TRANSFER_ENCODING, CONNECTION, TE, TRAILER, UPGRADE, EXPECT, COOKIE, ACCEPT_ENCODING];
    if ours.contains(&field) || ["keep-alive", "proxy-connection", "proxy-authorization"].contains(&field.as_str()) {
        return Err(format!("header `{field}` cannot be set: it belongs to the connection"));
    }
    Ok(field)
}

/// A header value without anything that could end it early.
#[must_use]
pub fn header_value(text: &str) -> Option<HeaderValue> {
    let is_plain = text.trim() == text && !text.chars().any(char::is_control);
    is_plain.then(|| HeaderValue::from_bytes(text.as_bytes()).ok()).flatten()
}
