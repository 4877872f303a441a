//! Requests to one server, over idle connections or new ones.
//! Never sends a request again of which the server may have received something.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::upgrade::Upgraded;
use hyper::{HeaderMap, Request, StatusCode};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

use super::connection::Connection;
use super::endpoint::{ConnectError, Endpoint};
use super::error::HttpError;
use super::idle::IdleConnections;
use super::reply::{Home, Reply};

/// How long opening a connection may take, TLS included.
const CONNECT: Duration = Duration::from_secs(10);

/// The connections to one server. How many there are is up to whoever hands out the permits.
#[derive(Debug)]
pub struct Pool {
    endpoint: Endpoint,
    idle: Arc<IdleConnections>,
}

impl Pool {
    /// Does not connect yet.
    #[must_use]
    pub fn new(endpoint: Endpoint) -> Self {
        Self { endpoint, idle: Arc::default() }
    }

    /// Sends a request once, and waits for the head of the answer, without a time limit of its own. The permit belongs to the connection
    /// until the answer is dropped. `is_sent` becomes true when the request is about to be written; before that, the server has received
    /// nothing of it.
    ///
    /// # Errors
    /// [`HttpError::Connect`], [`HttpError::Broken`].
    ///
    /// Cancel safety: a dropped future closes its connection, and the server may or may not have got the request.
    pub async fn send(
        &self,
        request: Request<Bytes>,
        permit: OwnedSemaphorePermit,
        is_sent: &AtomicBool,
    ) -> Result<Reply, HttpError> {
        let mut message = request.map(Full::new);
        let home = Home { idle: Arc::clone(&self.idle), permit };
        // A request that was not sent at all, because the server has closed the idle connection, goes over another.
        while let Some(connection) = self.idle.take().await {
            is_sent.store(true, Ordering::Release);
            match connection.try_send(message).await {
                Ok((connection, answer)) => return Ok(Reply::new(connection, answer, Some(home))),
                Err((error, None)) => return Err(error),
                Err((_, Some(unsent))) => message = *unsent,
            }
        }
        let connection = self.connect().await?;
        is_sent.store(true, Ordering::Release);
        match connection.try_send(message).await {
            Ok((connection, answer)) => Ok(Reply::new(connection, answer, Some(home))),
            Err((error, None)) => Err(error),
            Err((error, Some(_))) => Err(ConnectError(error.to_string()).into()),
        }
    }

    /// Asks the server to change to another protocol over a connection of its own (RFC 9110 §7.8). Returns the head of its answer, and the
    /// connection if the status is 101.
    ///
    /// # Errors
    /// [`HttpError::Connect`], [`HttpError::Broken`].
    pub async fn upgrade(
        &self,
        request: Request<Bytes>,
    ) -> Result<(StatusCode, HeaderMap, Option<Upgraded>), HttpError> {
        let asked = async {
            let (connection, mut answer) = Connection::open(&self.endpoint)
                .await?
                .try_send(request.map(Full::new))
                .await
                .map_err(|(error, _)| error)?;
            let upgraded = match answer.status() {
                StatusCode::SWITCHING_PROTOCOLS => Some(hyper::upgrade::on(&mut answer).await?),
                _ => None,
            };
            drop(connection);
            Ok((answer.status(), std::mem::take(answer.headers_mut()), upgraded))
        };
        let late = |_| Err(ConnectError(format!("no answer within {} s", CONNECT.as_secs())).into());
        timeout(CONNECT, asked).await.unwrap_or_else(late)
    }

    /// Connects, unless there is an idle connection.
    ///
    /// # Errors
    /// [`ConnectError`].
    ///
    /// Cancel safe.
    pub async fn reach(&self) -> Result<(), ConnectError> {
        let connection = match self.idle.take().await {
            Some(connection) => connection,
            None => self.connect().await?,
        };
        if !connection.lasts().await {
            return Err(ConnectError("it closes connections at once".to_owned()));
        }
        self.idle.keep(connection);
        Ok(())
    }

    async fn connect(&self) -> Result<Connection, ConnectError> {
        let late = |_| Err(ConnectError(format!("no connection within {} s", CONNECT.as_secs())));
        timeout(CONNECT, Connection::open(&self.endpoint)).await.unwrap_or_else(late)
    }
}
