//! What a connection and its service tell each other besides requests and responses.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::http::request::Parts;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::sync::watch;

/// In the extensions of a request: the address at the other end of its connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer(pub(crate) SocketAddr);

impl Peer {
    /// For the log; `None` in tests without a connection.
    pub(crate) fn of(head: &Parts) -> Option<tracing::field::DisplayValue<SocketAddr>> {
        head.extensions.get::<Self>().map(|peer| tracing::field::display(peer.0))
    }
}

/// In the extensions of an answer: how long the answer may take once it has begun, plus the time for one that nobody reads.
#[derive(Debug, Clone, Copy)]
pub struct AnswerDeadline(pub Duration);

/// In the extensions of an answer over HTTP/2: its connection closes after the requests in progress. Over HTTP/1.1, `Connection: close` says
/// the same; a refusal says that too, and must not end the other requests of an HTTP/2 connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CloseConnection;

/// In the extensions of an answer: nobody has shown who asks. Its HTTP/2 connection counts as idle from then on, and may have to make room:
/// a client without a window for the answer could otherwise keep the place of others for as long as it likes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Anonymous;

/// In the extensions of an answer: takes over the connection after the answer, to use another protocol. Gets a receiver that tells when the
/// gateway stops.
#[derive(Clone)]
pub(crate) struct UpgradeHandler(Arc<Mutex<Option<BoxedHandler>>>);

pub(super) type BoxedHandler = Box<dyn FnOnce(TokioIo<Upgraded>, watch::Receiver<bool>) -> Handling + Send>;
type Handling = Pin<Box<dyn Future<Output = ()> + Send>>;

impl UpgradeHandler {
    pub(crate) fn new<F>(handle: impl FnOnce(TokioIo<Upgraded>, watch::Receiver<bool>) -> F + Send + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        Self(Arc::new(Mutex::new(Some(Box::new(move |socket, stopping| Box::pin(handle(socket, stopping)))))))
    }

    pub(super) fn take(&self) -> Option<BoxedHandler> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}
