//! Sends requests to one server over HTTP/1.1: reuses connections, bounds every direction, presents credentials.
//! Never follows a redirect, never asks another origin, never repeats a request that may have arrived, and never shows a query or a
//! credential.

mod address;
mod credentials;
mod error;
mod fields;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use bytes::Bytes;
use hyper::header::{ACCEPT_ENCODING, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue, LOCATION, USER_AGENT};
use hyper::upgrade::Upgraded;
use hyper::{Method, StatusCode};
use sealwire::Caller;
use sealwire::internal::address::Address;
use sealwire_http::{ConnectError, HttpError, Pool, Reply};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use self::credentials::{CredentialHeaders, Credentials};
use crate::child::visible;
use crate::tables::BackendConfig;

pub use self::error::WebError;
pub use self::fields::{header, header_name, header_value};

/// Connections besides those of calls: for the server's stream of changes, and for requests of our own.
const OURS: usize = 4;

/// One server, at one origin.
#[derive(Debug)]
pub struct Web {
    address: Address,
    /// One permit for each connection.
    places: Arc<Semaphore>,
    pool: Pool,
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
    /// Becomes true when the request is about to be written; before that, the server has received nothing of it.
    pub is_sent: Arc<AtomicBool>,
}

impl Request {
    /// A `POST` of JSON to the configured address.
    #[must_use]
    pub fn post(json: impl Into<Bytes>) -> Self {
        let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static("application/json"))]);
        Self { headers, body: json.into(), ..Self::bare(Method::POST) }
    }

    /// A request without a body to the configured address.
    #[must_use]
    pub fn bare(verb: Method) -> Self {
        Self { verb, target: None, headers: HeaderMap::new(), body: Bytes::new(), is_sent: Arc::default() }
    }
}

impl Web {
    /// The host and port of the server.
    #[must_use]
    pub fn host(&self) -> (&str, u16) {
        (&self.address.host, self.address.port)
    }

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
            pool: Pool::new(address.endpoint(tls.as_ref())),
            address,
            places: Arc::new(Semaphore::new(in_flight + OURS)),
            headers,
            credentials: Credentials::new(config)?,
        })
    }

    /// The server's address for the log, without the query.
    #[must_use]
    pub fn place(&self) -> String {
        self.address.to_string()
    }

    /// Whether the configured fields of this name offer this token.
    pub(crate) fn offers(&self, name: &HeaderName, token: &[u8]) -> bool {
        let values = self.headers.get_all(name).iter();
        values.flat_map(|value| value.as_bytes().split(|byte| *byte == b',')).any(|one| one.trim_ascii() == token)
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
        let place = Arc::clone(places).acquire_owned().await.map_err(|_| HttpError::Broken("it is over".into()))?;
        let presented = self.credentials.of(caller).await?;
        let mut reply = self.ask(request, &presented, place).await?;
        if reply.status() != StatusCode::UNAUTHORIZED {
            return Ok(reply);
        }
        // An array answers each of several calls: some of them were made, whatever the one status says.
        if request.body.first() == Some(&b'[') && reply.may_be_array().await? {
            return Ok(reply);
        }
        let Some(fresh) = self.credentials.renewed(caller, &presented).await else { return Ok(reply) };
        let place = reply.over().ok_or_else(|| WebError::Credentials("the connection has no place".to_owned()))?;
        self.ask(request, &fresh, place).await
    }

    /// Asks the server to change to another protocol over a connection of its own (RFC 9110 §7.8), with the credentials of the service.
    /// Returns the head of its answer, and the connection. Has no time limit of its own.
    pub(crate) async fn upgrade(&self, request: &Request) -> Result<(HeaderMap, Upgraded), WebError> {
        let presented = self.credentials.of(None).await?;
        match self.try_upgrade(request, &presented).await {
            Err(WebError::NoUpgrade(401)) => match self.credentials.renewed(None, &presented).await {
                Some(fresh) => self.try_upgrade(request, &fresh).await,
                None => Err(WebError::NoUpgrade(401)),
            },
            asked => asked,
        }
    }

    async fn try_upgrade(
        &self,
        request: &Request,
        shown: &CredentialHeaders,
    ) -> Result<(HeaderMap, Upgraded), WebError> {
        let (status, headers, upgraded) = match self.pool.upgrade(self.message(request, shown)?).await {
            Ok(answer) => answer,
            Err(HttpError::Broken(cause)) => return Err(self.unreached(ConnectError(cause))),
            Err(error) => return Err(self.failed(error)),
        };
        redirected(status, &headers)?;
        Ok((headers, upgraded.ok_or(WebError::NoUpgrade(status.as_u16()))?))
    }

    /// Connects, unless there is an idle connection. Has no time limit of its own.
    ///
    /// # Errors
    /// [`WebError::Unreached`].
    ///
    /// Cancel safe.
    pub async fn reach(&self) -> Result<(), WebError> {
        self.pool.reach().await.map_err(|error| self.unreached(error))
    }

    async fn ask(
        &self,
        request: &Request,
        presented: &CredentialHeaders,
        place: OwnedSemaphorePermit,
    ) -> Result<Reply, WebError> {
        let reply = self.pool.send(self.message(request, presented)?, place, &request.is_sent).await;
        let reply = reply.map_err(|error| self.failed(error))?;
        redirected(reply.status(), reply.headers())?;
        if reply.encoding().is_some() {
            return Err(WebError::Encoded);
        }
        Ok(reply)
    }

    fn failed(&self, error: HttpError) -> WebError {
        match error {
            HttpError::Connect(error) => self.unreached(error),
            error => error.into(),
        }
    }

    fn unreached(&self, error: ConnectError) -> WebError {
        WebError::Unreached { place: self.place(), cause: error.0 }
    }

    fn message(&self, request: &Request, presented: &CredentialHeaders) -> Result<hyper::Request<Bytes>, WebError> {
        let target = request.target.as_deref().unwrap_or(&self.address.target);
        let mut message = hyper::Request::builder()
            .method(request.verb.clone())
            .uri(target)
            .body(request.body.clone())
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
}

/// An error for a redirect.
fn redirected(status: StatusCode, headers: &HeaderMap) -> Result<(), WebError> {
    let status = status.as_u16();
    if !matches!(status, 301 | 302 | 303 | 307 | 308) {
        return Ok(());
    }
    let to = headers.get(LOCATION).map_or("nowhere", |to| to.to_str().unwrap_or("?"));
    let to = visible(to.split(['?', '#']).next().unwrap_or_default()).chars().take(200).collect();
    Err(WebError::Redirect { status, to })
}
