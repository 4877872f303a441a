//! One connection, and the idle ones that wait for the next request.
//! Never outlives its user: a connection that is dropped is closed, whatever the server is about to send.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::rt::{Read, Write};
use hyper_util::rt::TokioIo;
use sealwire::address::Address;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;

use super::error::WebError;
use super::{MAX_FIELDS, MAX_HEAD};

/// A request as it is sent.
pub(super) type Message = hyper::Request<Full<Bytes>>;
/// The head of an answer, with the body still to come.
pub(super) type Answer = hyper::Response<Incoming>;

/// A connection. Dropping it closes it.
#[derive(Debug)]
pub(super) struct Link {
    sender: http1::SendRequest<Full<Bytes>>,
    /// When its idle time ends; `None` while it is in use.
    until: watch::Sender<Option<Instant>>,
}

/// How long a connection may stay idle: less than the five seconds after which many servers close one, since what is sent at that moment is
/// lost.
const IDLE: Duration = Duration::from_secs(4);
/// How many idle connections are kept.
const MOST_IDLE: usize = 32;
/// How long a connection may take to settle after it was opened or an answer has ended: the two sides see that at different times.
const REST: Duration = Duration::from_millis(100);

impl Link {
    /// Connects, without a time limit of its own.
    pub(super) async fn open(address: &Address, tls: Option<&Arc<ClientConfig>>) -> Result<Self, String> {
        let socket = dial(address).await.map_err(|error| error.to_string())?;
        // A request is written in one piece: delaying small packets gains nothing.
        drop(socket.set_nodelay(true));
        let Some(tls) = tls else { return Self::over(TokioIo::new(socket)).await };
        let name = ServerName::try_from(address.host.clone()).map_err(|error| error.to_string())?;
        let stream =
            TlsConnector::from(Arc::clone(tls)).connect(name, socket).await.map_err(|error| error.to_string())?;
        Self::over(TokioIo::new(stream)).await
    }

    async fn over<T: Read + Write + Unpin + Send + 'static>(io: T) -> Result<Self, String> {
        let mut builder = http1::Builder::new();
        builder.max_buf_size(MAX_HEAD).max_header_size(MAX_HEAD).max_headers(MAX_FIELDS);
        let (sender, connection) = builder.handshake(io).await.map_err(|error| error.to_string())?;
        let (until, mut told) = watch::channel(None);
        tokio::spawn(async move {
            let mut connection = std::pin::pin!(connection);
            loop {
                let until = *told.borrow_and_update();
                let late = async move {
                    match until {
                        Some(until) => tokio::time::sleep_until(until).await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    _ = &mut connection => return,
                    () = late => return,
                    // The link was dropped.
                    changed = told.changed() => if changed.is_err() { return },
                }
            }
        });
        Ok(Self { sender, until })
    }

    /// Whether it is still open after a moment; a server that wants no connection has closed it by then.
    pub(super) async fn lasts(&self) -> bool {
        tokio::time::timeout(REST, self.until.closed()).await.is_err()
    }

    /// Sends a request and waits for the head of the answer. A request that was not sent at all is returned.
    pub(super) async fn send(mut self, message: Message) -> Result<(Self, Answer), (WebError, Option<Box<Message>>)> {
        match self.sender.try_send_request(message).await {
            Ok(answer) => Ok((self, answer)),
            Err(mut error) => {
                let unsent = error.take_message().map(Box::new);
                Err((broken(error.error()), unsent))
            }
        }
    }
}

/// Why a connection has ended, with the underlying cause.
pub(super) fn broken(error: &hyper::Error) -> WebError {
    use std::error::Error as _;
    WebError::Broken(match error.source() {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    })
}

async fn dial(address: &Address) -> io::Result<TcpStream> {
    let mut failed = None;
    for host in address.hosts() {
        match TcpStream::connect((*host, address.port)).await {
            Ok(socket) => return Ok(socket),
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    match failed {
        Some(error) => Err(error),
        None => TcpStream::connect((address.host.as_str(), address.port)).await,
    }
}

/// Idle connections.
#[derive(Debug, Default)]
pub(super) struct Idle(Mutex<Vec<Link>>);

impl Idle {
    /// A usable connection, the latest first.
    pub(super) async fn take(&self) -> Option<Link> {
        loop {
            let mut link = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop()?;
            link.until.send_replace(None);
            // We may have seen the end of the last answer before the connection did.
            if matches!(tokio::time::timeout(REST, link.sender.ready()).await, Ok(Ok(()))) {
                return Some(link);
            }
        }
    }

    /// Keeps a connection for a while after its answer has ended.
    pub(super) fn keep(self: &Arc<Self>, mut link: Link) {
        // Closed, as the server wanted.
        if let Some(Err(_)) = link.sender.ready().now_or_never() {
            return;
        }
        link.until.send_replace(Some(Instant::now() + IDLE));
        let mut links = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        links.retain(|link| !link.sender.is_closed());
        if links.len() >= MOST_IDLE {
            links.remove(0);
        }
        links.push(link);
    }
}
