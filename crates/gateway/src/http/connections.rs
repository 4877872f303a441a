//! Connections: how many there may be, how long each may be silent, and how they end. hyper-util speaks HTTP/1.1 and HTTP/2 on them.
//! Never lets idle connections keep out others: when all places are taken, the one that has waited longest for a request is closed.

mod activity;
mod body;
mod extensions;
mod framing;
mod limits;
mod slot;
mod socket;
mod streams;
#[cfg(test)]
mod tests;

use std::convert::Infallible;
use std::future::{Future, pending, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use http_body_util::{BodyExt as _, Empty};
use hyper::body::{Body as _, Incoming};
use hyper::header::CONTENT_LENGTH;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, Version, upgrade};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use sealwire::internal::LogLimiter;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

pub use self::body::Body;
use self::body::ResponseBody;
pub(crate) use self::body::{PermitBody, RequestBody};
pub use self::extensions::AnswerDeadline;
pub(crate) use self::extensions::{Anonymous, CloseConnection, Peer, UpgradeHandler};
pub(crate) use self::framing::Flaw;
use self::limits::{ANSWER_BYTES, BODY_WINDOW, BUFFER, HEAD, LEAVING, PING, REQUESTS, UNREAD, WINDOW};
use self::slot::{IdleQueue, Slot};
use self::socket::{SharedFraming, WatchedSocket};
use self::streams::StreamExecutor;

/// How many connections at a time are told that there is no place; others are closed without a word.
const TURNED_AWAY: usize = 64;
/// How long to wait after a failed `accept`.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);
/// How often the log reports such failures.
const TELL_AGAIN: Duration = Duration::from_secs(10);

/// Limits log lines that anyone can cause.
#[derive(Debug, Default)]
struct Logs {
    turned_away: LogLimiter,
    handshakes: LogLimiter,
}

/// Accepts connections from `listener` until `stop`, and answers each request with `answer`. Requests in progress then have until the time
/// that `stop` returns. Returns how many connections had to be cut off.
pub(crate) async fn serve<A, F>(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    most: usize,
    stop: impl Future<Output = Instant>,
    answer: A,
) -> usize
where
    A: Fn(Request<RequestBody>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<Body>> + Send + 'static,
{
    let (queue, logs) = (Arc::<IdleQueue>::default(), Arc::<Logs>::default());
    let places = Arc::new(Semaphore::new(most));
    let turned_away = Arc::new(Semaphore::new(TURNED_AWAY));
    let stopping = watch::Sender::new(false);
    let mut tasks = JoinSet::new();
    let mut stop = pin!(stop);
    let mut told: Option<Instant> = None;
    let until = loop {
        let (socket, peer) = tokio::select! {
            biased;
            until = &mut stop => break until,
            Some(_) = tasks.join_next() => continue,
            accepted = listener.accept() => match accepted {
                Ok(accepted) => accepted,
                // Most likely the process has run out of file descriptors: an idle connection has to give up its own.
                Err(error) => {
                    if told.is_none_or(|told| told.elapsed() >= TELL_AGAIN) {
                        told = Some(Instant::now());
                        tracing::warn!(target: "sealwire::gateway", %error, "cannot accept connections");
                    }
                    if queue.evict() {
                        drop(timeout(ACCEPT_AGAIN, tasks.join_next()).await);
                    } else {
                        sleep(ACCEPT_AGAIN).await;
                    }
                    continue;
                }
            },
        };
        let place = match Arc::clone(&places).try_acquire_owned() {
            Ok(place) => Some(place),
            Err(_) if queue.evict() => {
                timeout(LEAVING, Arc::clone(&places).acquire_owned()).await.ok().and_then(Result::ok)
            }
            Err(_) => None,
        };
        match place {
            Some(place) => {
                let connection = Connection {
                    slot: Slot::new(Arc::clone(&queue)),
                    peer: Some(peer),
                    stopping: stopping.subscribe(),
                    answer: answer.clone(),
                };
                let (tls, logs) = (tls.clone(), Arc::clone(&logs));
                tasks.spawn(async move {
                    connection.accept(socket, tls, &logs).await;
                    drop(place);
                });
            }
            None => {
                if let Some(suppressed) = logs.turned_away.check() {
                    tracing::warn!(target: "sealwire::gateway", %peer, suppressed, "all `connections` are taken by requests: one was turned away");
                }
                if let Ok(place) = Arc::clone(&turned_away).try_acquire_owned() {
                    tasks.spawn(turn_away(socket, place));
                }
            }
        }
    };
    drop(listener);
    stopping.send_replace(true);
    let ended = async { while tasks.join_next().await.is_some() {} };
    drop(timeout_at(until, ended).await);
    tasks.len()
}

/// Answers 503: there is no place.
async fn turn_away(mut socket: TcpStream, _place: OwnedSemaphorePermit) {
    const FULL: &[u8] =
        b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
    let telling = async {
        socket.write_all(FULL).await?;
        socket.shutdown().await?;
        // Closing a connection with unread data resets it, and the client may not see the answer.
        let mut unread = [0; 1_024];
        while socket.read(&mut unread).await? > 0 {}
        Ok::<_, io::Error>(())
    };
    drop(timeout(LEAVING, telling).await);
}

struct Connection<A> {
    slot: Arc<Slot>,
    /// `None` in tests.
    peer: Option<SocketAddr>,
    stopping: watch::Receiver<bool>,
    answer: A,
}

impl<A, F> Connection<A>
where
    A: Fn(Request<RequestBody>) -> F + Send + Sync + 'static,
    F: Future<Output = Response<Body>> + Send + 'static,
{
    async fn accept(self, socket: TcpStream, tls: Option<TlsAcceptor>, logs: &Logs) {
        // Answers are small, and clients wait for them.
        drop(socket.set_nodelay(true));
        match tls {
            None => self.serve(socket).await,
            Some(tls) => {
                if let Some(socket) = self.shake_hands(socket, tls, logs).await {
                    self.serve(socket).await;
                }
            }
        }
    }

    /// A handshake counts as waiting for a request, so it may also have to make room.
    async fn shake_hands(&self, socket: TcpStream, tls: TlsAcceptor, logs: &Logs) -> Option<TlsStream<TcpStream>> {
        let mut stopping = self.stopping.clone();
        let handshake = tokio::select! {
            handshake = timeout(HEAD, tls.accept(socket)) => handshake.ok()?,
            () = self.slot.activity().overdue() => return None,
            _ = stopping.wait_for(|stopping| *stopping) => return None,
        };
        let log = |error: &io::Error| {
            // A client that goes away, such as a health check that only connects, says nothing.
            if error.kind() != io::ErrorKind::UnexpectedEof
                && let (Some(suppressed), Some(peer)) = (logs.handshakes.check(), self.peer)
            {
                tracing::info!(target: "sealwire::gateway", %peer, %error, suppressed, "a TLS handshake failed");
            }
        };
        handshake.inspect_err(log).ok()
    }

    /// Answers the requests on this connection, in the version of HTTP that its first bytes show.
    async fn serve<S>(self, socket: S)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let Self { slot, peer, mut stopping, answer } = self;
        let stops = stopping.clone();
        let framing = SharedFraming::default();
        let upgraded = Arc::new(Mutex::new(None));
        let io = TokioIo::new(WatchedSocket::new(socket, Arc::clone(slot.activity()), framing.clone()));
        let service = {
            let (slot, upgraded) = (Arc::clone(&slot), Arc::clone(&upgraded));
            service_fn(move |mut request: Request<Incoming>| {
                let (version, is_head) = (request.version(), request.method() == Method::HEAD);
                let is_http2 = version == Version::HTTP_2;
                let upgrade = (!is_http2).then(|| upgrade::on(&mut request));
                if let Some(peer) = peer {
                    request.extensions_mut().insert(Peer(peer));
                }
                if !is_http2 && let Some(flaw) = framing.next() {
                    request.extensions_mut().insert(flaw);
                }
                // Boxed: otherwise hyper and its task would move the whole future several times.
                let begun = slot
                    .begin()
                    .map(|active| (active, Box::pin(answer(request.map(|body| RequestBody::new(body, version))))));
                let (slot, framing, upgraded) = (Arc::clone(&slot), framing.clone(), Arc::clone(&upgraded));
                async move {
                    // The connection has to make room and is about to be closed, so nothing is begun.
                    let Some((active, answering)) = begun else { return pending().await };
                    let mut response = answering.await;
                    let stream = streams::current();
                    let extensions = response.extensions();
                    if let Some(AnswerDeadline(time)) = extensions.get() {
                        stream.as_ref().unwrap_or(slot.activity()).end_by(Instant::now() + *time + UNREAD);
                    }
                    if let (Some(upgrade), Some(handler)) = (upgrade, extensions.get::<UpgradeHandler>()) {
                        framing.end();
                        *upgraded.lock().unwrap_or_else(PoisonError::into_inner) =
                            handler.take().map(|handler| (upgrade, handler));
                    }
                    if is_http2 && extensions.get::<CloseConnection>().is_some() {
                        slot.close();
                    }
                    let active = Some(active).filter(|_| !is_http2 || extensions.get::<Anonymous>().is_none());
                    // RFC 9110 §9.3.2: no body. Over HTTP/1.1, hyper leaves it out by itself.
                    if is_http2 && is_head {
                        if let Some(length) = response.body().size_hint().exact() {
                            response.headers_mut().entry(CONTENT_LENGTH).or_insert(length.into());
                        }
                        *response.body_mut() = Empty::new().boxed_unsync();
                    }
                    Ok::<_, Infallible>(response.map(|body| ResponseBody::new(body, stream, active)))
                }
            })
        };
        let builder = builder();
        let mut serving = pin!(builder.serve_connection_with_upgrades(io, service));
        let mut is_leaving = false;
        let is_overdue = loop {
            tokio::select! {
                biased;
                // Errors are the client's problem.
                _ = &mut serving => break false,
                () = slot.activity().overdue() => break true,
                () = slot.is_to_close(), if !is_leaving => {}
                _ = stopping.wait_for(|stopping| *stopping), if !is_leaving => {}
            }
            is_leaving = true;
            slot.leave();
            serving.as_mut().graceful_shutdown();
        };
        if is_overdue {
            // A client of HTTP/2 is told, but not waited for.
            serving.as_mut().graceful_shutdown();
            drop(poll_fn(|context| Poll::Ready(serving.as_mut().poll(context))).await);
            return;
        }
        let upgraded = upgraded.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some((upgrade, handler)) = upgraded else { return };
        // It no longer waits for requests, but what its client does not read is still watched.
        let (Some(_active), Ok(socket)) = (slot.begin(), upgrade.await) else { return };
        tokio::select! {
            () = handler(TokioIo::new(socket), stops) => {}
            () = slot.activity().overdue() => {}
        }
    }
}

fn builder() -> auto::Builder<StreamExecutor> {
    let mut builder = auto::Builder::new(StreamExecutor);
    // hyper's own time limit for a head would begin with the wait for it.
    builder.http1().header_read_timeout(None).max_buf_size(BUFFER);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(REQUESTS)
        .initial_stream_window_size(BODY_WINDOW)
        .initial_connection_window_size(WINDOW)
        .max_header_list_size(BUFFER as u32)
        .max_send_buf_size(ANSWER_BYTES)
        .keep_alive_interval(PING)
        .keep_alive_timeout(PING);
    builder
}
