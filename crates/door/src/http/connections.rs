//! Connections: how many there may be, the HTTP version of each, how long one may be silent, and how they end.
//! Never lets idle connections keep out others: when all places are taken, the one that has waited longest for a request is closed.

mod http2;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::{Future, pending, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::{Body as _, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::upgrade::{self, Upgraded};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_rustls::TlsAcceptor;

pub(crate) use self::http2::{Anonymous, Leaving};

/// The body of an answer.
pub(crate) type Body = UnsyncBoxBody<Bytes, Infallible>;

/// How long a connection may be idle between two requests. Longer than clients keep an idle connection.
const IDLE: Duration = Duration::from_secs(60);
/// How long the head of a request may take, from its first byte.
const HEAD: Duration = Duration::from_secs(10);
/// How long an answer may wait for its client to read some of it.
const UNREAD: Duration = Duration::from_secs(60);
/// How much of an answer is buffered before more of it is polled.
const WRITE_BYTES: usize = 64 << 10;
/// The most bytes of the head of a request.
const HEAD_BYTES: usize = 16 << 10;
/// How long a connection that was told to close may take.
const LEAVING: Duration = Duration::from_secs(1);
/// How many connections at a time are told that there is no place; others are closed without a word.
const TURNED_AWAY: usize = 64;
/// How long to wait after a failed `accept`.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);
/// How often the log reports such failures.
const TELL_AGAIN: Duration = Duration::from_secs(10);
/// How much is read, and discarded, of what arrives while a request is being answered: the number of reads, and the size of each.
const AHEAD: usize = 64;
const PIECE: usize = 1 << 10;

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
    A: Fn(Request<Received>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<Body>> + Send + 'static,
{
    let connections = Arc::new(Connections::default());
    let places = Arc::new(Semaphore::new(most));
    let turned_away = Arc::new(Semaphore::new(TURNED_AWAY));
    let stopping = watch::Sender::new(false);
    let mut tasks = JoinSet::new();
    let mut stop = pin!(stop);
    let mut told: Option<Instant> = None;
    let until = loop {
        let socket = tokio::select! {
            biased;
            until = &mut stop => break until,
            Some(_) = tasks.join_next() => continue,
            accepted = listener.accept() => match accepted {
                Ok((socket, _)) => socket,
                // Most likely the process has run out of file descriptors: an idle connection has to give up its own.
                Err(error) => {
                    if told.is_none_or(|told| told.elapsed() >= TELL_AGAIN) {
                        told = Some(Instant::now());
                        tracing::warn!(target: "sealwire::door", %error, "cannot accept connections");
                    }
                    if connections.evict() {
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
            Err(_) if connections.evict() => {
                timeout(LEAVING, Arc::clone(&places).acquire_owned()).await.ok().and_then(Result::ok)
            }
            Err(_) => None,
        };
        match place {
            Some(place) => {
                let stopping = stopping.subscribe();
                let connection =
                    Presence::new(Arc::clone(&connections)).serve(socket, tls.clone(), stopping, answer.clone());
                tasks.spawn(async move {
                    connection.await;
                    drop(place);
                });
            }
            None => {
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

/// The connections that wait for a request, the one that has waited longest first.
#[derive(Debug, Default)]
struct Connections(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    turns: u64,
    /// By the order in which they began to wait.
    waiting: BTreeMap<u64, Arc<Doing>>,
}

#[derive(Debug, Clone, Copy)]
enum Phase {
    /// Between two requests, or before the first.
    Idle(Instant),
    /// The head of a request has begun.
    Head(Instant),
    /// A request is being answered.
    Busy {
        /// Since when its client has read nothing of the answer.
        unread: Option<Instant>,
        /// By when all of it must be read.
        until: Option<Instant>,
    },
    /// The connection has to make room for another.
    Evicted,
}

impl Connections {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the connection that has waited longest; `false` if none waits.
    fn evict(&self) -> bool {
        let Some((_, doing)) = self.lock().waiting.pop_first() else { return false };
        doing.is_now(Phase::Evicted);
        true
    }
}

impl Phase {
    /// When this phase has lasted too long.
    fn until(self) -> Option<Instant> {
        match self {
            Self::Idle(since) => Some(since + IDLE),
            Self::Head(since) => Some(since + HEAD),
            Self::Busy { unread, until } => unread.map(|since| since + UNREAD).into_iter().chain(until).min(),
            Self::Evicted => None,
        }
    }
}

/// What a connection is doing. Its task is woken only if the deadline becomes earlier than its next check: to wake it at each change
/// would cost four wake-ups and timers for each request.
#[derive(Debug)]
struct Doing {
    now: Mutex<Now>,
    sooner: Notify,
}

#[derive(Debug)]
struct Now {
    phase: Phase,
    /// When the connection's task will check by itself.
    looks: Option<Instant>,
}

impl Doing {
    fn new(phase: Phase) -> Self {
        Self { now: Mutex::new(Now { phase, looks: None }), sooner: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_now(&self, phase: Phase) {
        self.change(|_| Some(phase));
    }

    fn change(&self, change: impl FnOnce(Phase) -> Option<Phase>) {
        let mut now = self.lock();
        let Some(phase) = change(now.phase) else { return };
        now.phase = phase;
        let is_sooner = match (phase, phase.until(), now.looks) {
            (Phase::Evicted, ..) | (_, Some(_), None) => true,
            (_, Some(until), Some(looks)) => until < looks,
            (_, None, _) => false,
        };
        drop(now);
        if is_sooner {
            self.sooner.notify_one();
        }
    }

    /// Sets by when an answer that has begun must be read.
    fn ends_by(&self, at: Instant) {
        self.change(|phase| match phase {
            Phase::Busy { unread, .. } => Some(Phase::Busy { unread, until: Some(at) }),
            _ => None,
        });
    }

    /// Sets since when nothing of an answer has been read; `None` if some of it was.
    fn unread_since(&self, unread: Option<Instant>) {
        self.change(|phase| match phase {
            Phase::Busy { until, .. } => Some(Phase::Busy { unread, until }),
            _ => None,
        });
    }

    /// Completes when the current phase has lasted too long, or the connection has to make room.
    async fn overdue(&self) {
        loop {
            let until = {
                let mut now = self.lock();
                let until = now.phase.until();
                if matches!(now.phase, Phase::Evicted) || until.is_some_and(|until| until <= Instant::now()) {
                    return;
                }
                now.looks = until;
                until
            };
            // `Notify` keeps a notification that comes in between for the next waiter.
            let sooner = self.sooner.notified();
            match until {
                Some(until) => drop(timeout_at(until, sooner).await),
                None => sooner.await,
            }
        }
    }
}

/// A connection.
#[derive(Debug)]
struct Presence {
    connections: Arc<Connections>,
    doing: Arc<Doing>,
    /// Its turn among the waiting connections.
    turn: Mutex<Option<u64>>,
    /// Whether the request being answered has arrived completely. Only the connection's task changes it.
    has_come: AtomicBool,
    /// Whether hyper has tried to read meanwhile.
    is_put_off: AtomicBool,
}

/// What arrives from a client whose request is being answered.
enum Heard {
    /// More data.
    More,
    /// The end of its data, or an error.
    End,
}

/// In the extensions of an answer: how long the answer may take once it has begun, plus the time for one that nobody reads.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Within(pub(crate) Duration);

/// In the extensions of an answer: takes over the connection after the answer, to use another protocol. Gets a receiver that tells when the
/// door stops.
#[derive(Clone)]
pub(crate) struct Switch(Arc<Mutex<Option<Switched>>>);

type Switched = Box<dyn FnOnce(TokioIo<Upgraded>, watch::Receiver<bool>) -> Going + Send>;
type Going = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Switch {
    pub(crate) fn new<F>(go_on: impl FnOnce(TokioIo<Upgraded>, watch::Receiver<bool>) -> F + Send + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        Self(Arc::new(Mutex::new(Some(Box::new(move |socket, stopping| Box::pin(go_on(socket, stopping)))))))
    }

    fn take(&self) -> Option<Switched> {
        locked(&self.0).take()
    }
}

impl Presence {
    fn new(connections: Arc<Connections>) -> Self {
        let presence = Self {
            connections,
            doing: Arc::new(Doing::new(Phase::Idle(Instant::now()))),
            turn: Mutex::default(),
            has_come: AtomicBool::new(false),
            is_put_off: AtomicBool::new(false),
        };
        presence.wait();
        presence
    }

    /// Answers the requests on this connection.
    async fn serve<A, F>(
        self,
        socket: TcpStream,
        tls: Option<TlsAcceptor>,
        mut stopping: watch::Receiver<bool>,
        answer: A,
    ) where
        A: Fn(Request<Received>) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Response<Body>> + Send + 'static,
    {
        // Answers are small, and clients wait for them.
        drop(socket.set_nodelay(true));
        let this = Arc::new(self);
        let Some(tls) = tls else {
            let is_http2 = tokio::select! {
                is_http2 = http2::is_spoken(&socket, || this.read()) => is_http2,
                () = this.overdue() => return,
                // It has not begun a request.
                _ = stopping.wait_for(|stopping| *stopping) => return,
            };
            return match is_http2 {
                true => this.multiplexed(socket, stopping, answer).await,
                false => this.requests(socket, stopping, answer).await,
            };
        };
        // A handshake counts as waiting for a request, so it may also have to make room.
        let shaken = tokio::select! {
            shaken = timeout(HEAD, tls.accept(socket)) => shaken.ok().and_then(Result::ok),
            () = this.overdue() => None,
            _ = stopping.wait_for(|stopping| *stopping) => None,
        };
        let Some(socket) = shaken else { return };
        match socket.get_ref().1.alpn_protocol() {
            Some(b"h2") => this.multiplexed(socket, stopping, answer).await,
            _ => this.requests(socket, stopping, answer).await,
        }
    }

    /// Answers requests one after the other (HTTP/1.1).
    async fn requests<S, A, F>(self: Arc<Self>, socket: S, mut stopping: watch::Receiver<bool>, answer: A)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        A: Fn(Request<Received>) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Response<Body>> + Send + 'static,
    {
        let switched = Arc::new(Mutex::new(None));
        let service = {
            let (presence, switched) = (Arc::clone(&self), Arc::clone(&switched));
            service_fn(move |mut request| {
                let (upgrade, switched) = (upgrade::on(&mut request), Arc::clone(&switched));
                let begun = Busy::new(&presence).map(|busy| {
                    let request = request.map(|body| Received::new(body, Arc::clone(&busy.0)));
                    (busy, answer(request))
                });
                async move {
                    // The connection is about to be closed, so nothing is begun.
                    let Some((busy, answering)) = begun else { return pending().await };
                    let answer = answering.await;
                    if let Some(Within(time)) = answer.extensions().get() {
                        busy.0.doing.ends_by(Instant::now() + *time + UNREAD);
                    }
                    if let Some(switch) = answer.extensions().get::<Switch>() {
                        *locked(&switched) = switch.take().map(|go_on| (upgrade, go_on));
                    }
                    // Busy until all of the answer has been handed over.
                    Ok::<_, Infallible>(answer.map(|body| Held::new(body, busy)))
                }
            })
        };
        let socket = Arc::new(Mutex::new(socket));
        let io = TokioIo::new(Watched { socket: Arc::clone(&socket), presence: Arc::clone(&self) });
        let mut serving = http1::Builder::new();
        serving.header_read_timeout(None).max_header_size(HEAD_BYTES).max_buf_size(WRITE_BYTES);
        let mut serving = pin!(serving.serve_connection(io, service).with_upgrades());
        let mut is_stopping = false;
        let mut ahead = 0;
        loop {
            tokio::select! {
                // The order matters: what `serving` reads decides whether `heard` may read.
                biased;
                // Errors are the client's problem.
                _ = &mut serving => break,
                () = self.overdue() => return,
                heard = self.heard(&socket) => match heard {
                    // RFC 9112 §9.3.2: a client that pipelines must be prepared to resend. The connection is closed after the answer.
                    Heard::More if ahead < AHEAD => {
                        ahead += 1;
                        serving.as_mut().graceful_shutdown();
                    }
                    Heard::More | Heard::End => return,
                },
                _ = stopping.wait_for(|stopping| *stopping), if !is_stopping => {
                    is_stopping = true;
                    serving.as_mut().graceful_shutdown();
                }
            }
        }
        let Some((upgrade, go_on)) = locked(&switched).take() else { return };
        // It no longer waits for requests, but what its client does not read is still watched.
        let (Some(_busy), Ok(socket)) = (Busy::new(&self), upgrade.await) else { return };
        tokio::select! {
            () = go_on(TokioIo::new(socket), stopping) => {}
            () = self.overdue() => {}
        }
    }

    /// Reads what arrives while a request is being answered. hyper itself does not read once it has buffered some of it, and so would
    /// not notice that the client has gone. Polled after hyper, so that hyper has already seen any request that arrived in the same turn.
    async fn heard<S: AsyncRead + Unpin>(&self, socket: &Mutex<S>) -> Heard {
        poll_fn(|context| {
            if !self.has_come.load(Ordering::Acquire) {
                // The request has been answered, but hyper does not try to read again by itself.
                if self.is_put_off.swap(false, Ordering::AcqRel) {
                    context.waker().wake_by_ref();
                }
                return Poll::Pending;
            }
            let mut piece = [0; PIECE];
            let mut piece = ReadBuf::new(&mut piece);
            let read = Pin::new(&mut *locked(socket)).poll_read(context, &mut piece);
            read.map(|read| if read.is_ok() && !piece.filled().is_empty() { Heard::More } else { Heard::End })
        })
        .await
    }

    fn has_come(&self, has_come: bool) {
        self.has_come.store(has_come, Ordering::Release);
    }

    /// The connection waits for a request from now on.
    fn wait(&self) {
        self.has_come(false);
        let mut all = self.connections.lock();
        all.turns += 1;
        let turn = all.turns;
        all.waiting.insert(turn, Arc::clone(&self.doing));
        *self.turn.lock().unwrap_or_else(PoisonError::into_inner) = Some(turn);
        self.doing.is_now(Phase::Idle(Instant::now()));
    }

    /// The connection no longer waits.
    fn leave(&self, phase: Phase) {
        let mut all = self.connections.lock();
        let turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner).take();
        let was_waiting = turn.is_some_and(|turn| all.waiting.remove(&turn).is_some());
        // An evicted connection must not become busy again.
        if was_waiting {
            self.doing.is_now(phase);
        }
    }

    fn read(&self) {
        self.doing.change(|phase| matches!(phase, Phase::Idle(_)).then(|| Phase::Head(Instant::now())));
    }

    /// Notes that some of an answer was written, or could not be.
    fn written(&self, has_gone: bool) {
        self.doing.change(|phase| match phase {
            // The rest of an answer that was handed over.
            Phase::Idle(_) if has_gone => Some(Phase::Idle(Instant::now())),
            Phase::Busy { unread: Some(_), until } if has_gone => Some(Phase::Busy { unread: None, until }),
            Phase::Busy { unread: None, until } if !has_gone => {
                Some(Phase::Busy { unread: Some(Instant::now()), until })
            }
            _ => None,
        });
    }

    /// Completes when the connection has waited too long, or has to make room.
    async fn overdue(&self) {
        self.doing.overdue().await;
    }

    fn is_evicted(&self) -> bool {
        matches!(self.doing.lock().phase, Phase::Evicted)
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.leave(Phase::Evicted);
    }
}

/// A request in progress; dropping it lets the connection wait again.
#[derive(Debug)]
struct Busy(Arc<Presence>);

impl Busy {
    /// `None` if the connection has to make room.
    fn new(presence: &Arc<Presence>) -> Option<Self> {
        presence.leave(Phase::Busy { unread: None, until: None });
        let is_busy = matches!(presence.doing.lock().phase, Phase::Busy { .. });
        is_busy.then(|| Self(Arc::clone(presence)))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.wait();
    }
}

/// The body of an answer, with something that is held until all of it has been handed over.
pub(crate) struct Held<T> {
    body: Body,
    _held: T,
}

impl<T> Held<T> {
    pub(crate) fn new(body: Body, held: T) -> Self {
        Self { body, _held: held }
    }
}

impl<T: Unpin> hyper::body::Body for Held<T> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<hyper::body::Frame<Bytes>, Infallible>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        self.body.size_hint()
    }
}

/// The body of a request, which notes when all of it has arrived.
#[derive(Debug)]
pub(crate) struct Received {
    /// Shared with [`Rest`] in HTTP/2.
    body: Arc<Mutex<Incoming>>,
    /// The connection in HTTP/1.1, where the next data after the body is another request.
    presence: Option<Arc<Presence>>,
}

impl Received {
    fn new(body: Incoming, presence: Arc<Presence>) -> Self {
        let received = Self { body: Arc::new(Mutex::new(body)), presence: Some(presence) };
        received.look();
        received
    }

    /// The body of an HTTP/2 request, and a handle to discard what is left of it.
    fn of_a_stream(body: Incoming) -> (Self, Rest) {
        let body = Arc::new(Mutex::new(body));
        (Self { body: Arc::clone(&body), presence: None }, Rest(body))
    }

    fn look(&self) {
        if let Some(presence) = self.presence.as_ref().filter(|_| locked(&self.body).is_end_stream()) {
            presence.has_come(true);
        }
    }
}

impl hyper::body::Body for Received {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<hyper::body::Frame<Bytes>, hyper::Error>>> {
        let frame = Pin::new(&mut *locked(&self.body)).poll_frame(context);
        self.look();
        frame
    }

    fn is_end_stream(&self) -> bool {
        locked(&self.body).is_end_stream()
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        locked(&self.body).size_hint()
    }
}

/// The unread rest of a request's body.
struct Rest(Arc<Mutex<Incoming>>);

impl Rest {
    /// Discards the rest, if it is short and arrives soon. A server may end a stream after its answer while the request is still being
    /// sent (RFC 9113 §8.1), but clients such as curl 7.88 treat that as a failure.
    async fn pass_over(self) {
        if locked(&self.0).is_end_stream() {
            return;
        }
        let passing = async {
            let mut left = PASSED_OVER;
            while let Some(Ok(frame)) = poll_fn(|context| Pin::new(&mut *locked(&self.0)).poll_frame(context)).await {
                left = left.saturating_sub(frame.data_ref().map_or(0, Bytes::len));
                if left == 0 {
                    return;
                }
            }
        };
        drop(timeout(PASSED_OVER_FOR, passing).await);
    }
}

/// The most bytes to discard, and for how long.
const PASSED_OVER: usize = 64 << 10;
const PASSED_OVER_FOR: Duration = Duration::from_secs(2);

/// A socket that reports reads and writes. Only the connection's task uses it.
struct Watched<S> {
    socket: Arc<Mutex<S>>,
    presence: Arc<Presence>,
}

fn locked<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        // See `Presence::heard`, which wakes the task when a request may be read again.
        let is_put_off = self.presence.has_come.load(Ordering::Acquire);
        self.presence.is_put_off.store(is_put_off, Ordering::Release);
        if is_put_off {
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        let read = Pin::new(&mut *locked(&self.socket)).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.presence.read();
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut *locked(&self.socket)).poll_write(context, bytes);
        self.presence.written(written.is_ready());
        written
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *locked(&self.socket)).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *locked(&self.socket)).poll_shutdown(context)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut *locked(&self.socket)).poll_write_vectored(context, buffers);
        self.presence.written(written.is_ready());
        written
    }

    fn is_write_vectored(&self) -> bool {
        locked(&self.socket).is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use http_body_util::{BodyExt as _, Full};
    use tokio::io::duplex;
    use tokio::task::yield_now;

    use super::*;

    fn idle(presence: &Arc<Presence>) -> tokio::task::JoinHandle<Duration> {
        let (presence, since) = (Arc::clone(presence), Instant::now());
        tokio::spawn(async move {
            presence.overdue().await;
            since.elapsed()
        })
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_closed_that_says_nothing_or_never_ends_to_say_it() -> Result<(), tokio::task::JoinError> {
        let connections = Arc::new(Connections::default());
        let presence = Arc::new(Presence::new(Arc::clone(&connections)));
        assert_eq!(idle(&presence).await?, IDLE);
        drop(presence);
        // A head that arrives byte by byte.
        let presence = Arc::new(Presence::new(Arc::clone(&connections)));
        let overdue = idle(&presence);
        for _ in 0..9 {
            sleep(Duration::from_secs(1)).await;
            presence.read();
        }
        assert_eq!(overdue.await?, Duration::from_secs(1) + HEAD, "from the first one");
        drop(presence);
        // An answer in progress, however long it takes.
        let presence = Arc::new(Presence::new(Arc::clone(&connections)));
        let overdue = idle(&presence);
        let busy = Busy::new(&presence);
        sleep(10 * IDLE).await;
        // Some of it is written, then nothing for a little less than the limit.
        for _ in 0..3 {
            presence.written(false);
            presence.written(false);
            sleep(UNREAD / 2).await;
            presence.written(true);
        }
        drop(busy);
        for _ in 0..9 {
            sleep(IDLE / 2).await;
            presence.written(true);
        }
        assert_eq!(overdue.await?, 10 * IDLE + 3 * (UNREAD / 2) + 9 * (IDLE / 2) + IDLE);
        drop(presence);
        // An answer that is read byte by byte.
        let presence = Arc::new(Presence::new(Arc::clone(&connections)));
        let (overdue, busy) = (idle(&presence), Busy::new(&presence));
        presence.doing.ends_by(Instant::now() + 3 * UNREAD);
        for _ in 0..10 {
            presence.written(false);
            sleep(UNREAD / 2).await;
            presence.written(true);
        }
        assert_eq!(overdue.await?, 3 * UNREAD);
        drop(busy);
        drop(presence);
        // An answer that nobody reads.
        let presence = Arc::new(Presence::new(Arc::clone(&connections)));
        let (overdue, busy) = (idle(&presence), Busy::new(&presence));
        presence.written(false);
        assert_eq!(overdue.await?, UNREAD);
        drop(busy);
        drop(presence);
        assert!(connections.lock().waiting.is_empty(), "nothing is left of those that have ended");
        Ok(())
    }

    /// The request arrives before or after the connection is first polled, and is answered at once or some turns later.
    #[tokio::test]
    async fn a_connection_that_is_kept_is_read_again() {
        let answer = |request: Request<Received>| async move {
            for _ in 1..request.uri().path().len() {
                yield_now().await;
            }
            Response::new(Full::new(Bytes::from_static(b"it")).boxed_unsync())
        };
        let (_running, stopping) = watch::channel(false);
        for n in 0..100 {
            let (mut client, socket) = duplex(64 << 10);
            let presence = Arc::new(Presence::new(Arc::default()));
            let serving = tokio::spawn(presence.requests(socket, stopping.clone(), answer));
            if n % 2 == 0 {
                yield_now().await;
            }
            for turns in [n / 2 % 4, n % 3, 0] {
                let path = "x".repeat(turns);
                client.write_all(format!("GET /{path} HTTP/1.1\r\nHost: door\r\n\r\n").as_bytes()).await.unwrap();
                let mut text = Vec::new();
                while !text.ends_with(b"\r\n\r\nit") {
                    let read = timeout(Duration::from_secs(10), client.read_buf(&mut text)).await;
                    assert!(read.unwrap_or_else(|_| panic!("{n}: not answered")).unwrap() > 0);
                }
            }
            drop(client);
            serving.await.unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_one_that_has_waited_longest_makes_room_and_begins_nothing() {
        let connections = Arc::new(Connections::default());
        let [first, second, third] = [(); 3].map(|()| Arc::new(Presence::new(Arc::clone(&connections))));
        let busy = Busy::new(&second);
        assert!(busy.is_some());
        drop(Busy::new(&first));
        assert!(connections.evict());
        third.overdue().await;
        assert!(Busy::new(&third).is_none() && Busy::new(&first).is_some());
        drop(first);
        assert!(!connections.evict(), "the second one is at work");
        drop(busy);
        assert!(connections.evict());
    }
}
