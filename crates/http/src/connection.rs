//! One connection.
//! Never outlives its user: a connection that is dropped is closed, whatever the server is about to send.

use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::endpoint::{ConnectError, Endpoint};
use super::error::{HttpError, cause};
use super::limits::{MAX_FIELDS, MAX_HEAD};

/// A request as it is sent.
pub(crate) type Message = hyper::Request<Full<Bytes>>;
/// The head of an answer, with the body still to come.
pub(crate) type Answer = hyper::Response<Incoming>;

/// A connection to a server. Dropping it closes it.
#[derive(Debug)]
pub struct Connection {
    sender: http1::SendRequest<Full<Bytes>>,
    /// When its idle time ends; `None` while it is in use.
    until: watch::Sender<Option<Instant>>,
    pub(crate) is_tls: bool,
}

/// How long a connection may take to settle after it was opened or an answer has ended: the two sides see that at different times.
const REST: Duration = Duration::from_millis(100);

impl Connection {
    /// Connects, without a time limit of its own.
    ///
    /// # Errors
    /// [`ConnectError`].
    ///
    /// Cancel safe.
    pub async fn open(endpoint: &Endpoint) -> Result<Self, ConnectError> {
        let socket = endpoint.connect().await?;
        let mut builder = http1::Builder::new();
        builder.max_buf_size(MAX_HEAD).max_header_size(MAX_HEAD).max_headers(MAX_FIELDS);
        let handshake = builder.handshake(TokioIo::new(socket)).await;
        let (sender, connection) = handshake.map_err(|error| ConnectError(error.to_string()))?;
        let (until, mut told) = watch::channel(None);
        tokio::spawn(async move {
            // Ends with a change of protocol, too.
            let mut connection = std::pin::pin!(connection.with_upgrades());
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
                    // The connection was dropped.
                    changed = told.changed() => if changed.is_err() { return },
                }
            }
        });
        Ok(Self { sender, until, is_tls: endpoint.tls.is_some() })
    }

    /// Sends a request and waits for the head of the answer. A request that was not sent at all is returned.
    pub(crate) async fn try_send(
        mut self,
        message: Message,
    ) -> Result<(Self, Answer), (HttpError, Option<Box<Message>>)> {
        match self.sender.try_send_request(message).await {
            Ok(answer) => Ok((self, answer)),
            Err(mut error) => {
                let unsent = error.take_message().map(Box::new);
                Err((HttpError::Broken(cause(error.error())), unsent))
            }
        }
    }

    /// Whether it is still open after a moment; a server that wants no connection has closed it by then.
    pub(crate) async fn lasts(&self) -> bool {
        timeout(REST, self.until.closed()).await.is_err()
    }

    /// Whether it can be used again: we may see the end of an answer before the connection does.
    pub(crate) async fn is_ready(&mut self) -> bool {
        self.until.send_replace(None);
        matches!(timeout(REST, self.sender.ready()).await, Ok(Ok(())))
    }

    /// Lets it be idle for this long. Returns whether the server has left it open.
    pub(crate) fn rest(&mut self, idle: Duration) -> bool {
        if let Some(Err(_)) = self.sender.ready().now_or_never() {
            return false;
        }
        self.until.send_replace(Some(Instant::now() + idle));
        true
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }
}
