//! Connections: how many there are, what is spoken on one, how long it may be silent, and their end.
//! Never lets those that do nothing keep out those that do: when all places are taken, the one that has waited longest goes.

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

pub(crate) use self::http2::Leaving;

/// The body of an answer.
pub(crate) type Body = UnsyncBoxBody<Bytes, Infallible>;

/// How long a connection may be between two requests. Longer than clients keep one that they do not use.
const IDLE: Duration = Duration::from_secs(60);
/// How long the head of a request may take, from its first byte.
const HEAD: Duration = Duration::from_secs(10);
/// How long an answer may wait for its client to read some of it.
const UNREAD: Duration = Duration::from_secs(60);
/// What is kept of an answer before more of it is asked for.
const WRITE_BYTES: usize = 64 << 10;
/// The most bytes of the head of a request.
const HEAD_BYTES: usize = 16 << 10;
/// How long a connection that was told to go may take.
const LEAVING: Duration = Duration::from_secs(1);
/// How many are told at a time that there is no place; others hear nothing.
const TURNED_AWAY: usize = 64;
/// What the operating system does not give now it may give then.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);
/// How often the log says so.
const TELL_AGAIN: Duration = Duration::from_secs(10);
/// How much is read of what comes behind a request that is being answered, in pieces. It is not kept.
const AHEAD: usize = 64;
const PIECE: usize = 1 << 10;

/// Takes connections from `listener` until `stop`, and answers each request with `answer`; those under way then have until the time that
/// `stop` says. Returns how many had to be cut off.
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
                // Files of the process are used up, most likely: what does nothing has to give one back.
                Err(error) => {
                    if told.is_none_or(|told| told.elapsed() >= TELL_AGAIN) {
                        told = Some(Instant::now());
                        tracing::warn!(target: "sealwire::door", %error, "no connection can be taken");
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

/// Says that there is no place.
async fn turn_away(mut socket: TcpStream, _place: OwnedSemaphorePermit) {
    const FULL: &[u8] =
        b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
    let telling = async {
        socket.write_all(FULL).await?;
        socket.shutdown().await?;
        // A connection that is closed with something unread is reset, and the client may not see why.
        let mut unread = [0; 1_024];
        while socket.read(&mut unread).await? > 0 {}
        Ok::<_, io::Error>(())
    };
    drop(timeout(LEAVING, telling).await);
}

/// Those that wait for a request, the one that has waited longest first.
#[derive(Debug, Default)]
struct Connections(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    turns: u64,
    /// By the turn in which each began to wait.
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
        /// Since when its client has taken nothing of what there is.
        unread: Option<Instant>,
        /// By when all of it must be taken.
        until: Option<Instant>,
    },
    /// It has to make room.
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
    /// How long it may last.
    fn until(self) -> Option<Instant> {
        match self {
            Self::Idle(since) => Some(since + IDLE),
            Self::Head(since) => Some(since + HEAD),
            Self::Busy { unread, until } => unread.map(|since| since + UNREAD).into_iter().chain(until).min(),
            Self::Evicted => None,
        }
    }
}

/// What a connection is doing. Its task is woken only if it has to end sooner than it was about to look: with each request, that
/// would be four times, and a timer each.
#[derive(Debug)]
struct Doing {
    now: Mutex<Now>,
    sooner: Notify,
}

#[derive(Debug)]
struct Now {
    phase: Phase,
    /// When the connection's task looks by itself.
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

    /// An answer that has begun has to be taken by then.
    fn ends_by(&self, at: Instant) {
        self.change(|phase| match phase {
            Phase::Busy { unread, .. } => Some(Phase::Busy { unread, until: Some(at) }),
            _ => None,
        });
    }

    /// Since when nothing of an answer is taken; `None` if something was.
    fn unread_since(&self, unread: Option<Instant>) {
        self.change(|phase| match phase {
            Phase::Busy { until, .. } => Some(Phase::Busy { unread, until }),
            _ => None,
        });
    }

    /// Completes when it has lasted too long, or has to end.
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
            // One that comes in between is kept for whoever waits next.
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
    /// Its place among those that wait.
    turn: Mutex<Option<u64>>,
    /// Whether all of the request that is being answered has come. Only the connection's task changes it.
    has_come: AtomicBool,
    /// Whether hyper wanted to read meanwhile.
    is_put_off: AtomicBool,
}

/// What comes from a client whose request is being answered.
enum Heard {
    /// Something more.
    More,
    /// Its end.
    End,
}

/// How long an answer may take that has begun, in the extensions of its head; and then as long as for what nobody reads.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Within(pub(crate) Duration);

/// What goes on with the connection of a request when it has been answered, in the extensions of the answer's head: it speaks another
/// protocol from then on. Told when the door stops.
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

    /// Answers what comes on this connection.
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
        // Answers are small, and waited for.
        drop(socket.set_nodelay(true));
        let this = Arc::new(self);
        let Some(tls) = tls else {
            let is_http2 = tokio::select! {
                is_http2 = http2::is_spoken(&socket, || this.read()) => is_http2,
                () = this.overdue() => return,
                // It has not begun with anything.
                _ = stopping.wait_for(|stopping| *stopping) => return,
            };
            return match is_http2 {
                true => this.multiplexed(socket, stopping, answer).await,
                false => this.requests(socket, stopping, answer).await,
            };
        };
        // What is not said by then is not going to be, and one that waits may have to make room.
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

    /// Answers one request after the other, as HTTP/1.1 has them.
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
                    // Its connection is about to be ended: nothing is begun.
                    let Some((busy, answering)) = begun else { return pending().await };
                    let answer = answering.await;
                    if let Some(Within(time)) = answer.extensions().get() {
                        busy.0.doing.ends_by(Instant::now() + *time + UNREAD);
                    }
                    if let Some(switch) = answer.extensions().get::<Switch>() {
                        *locked(&switched) = switch.take().map(|go_on| (upgrade, go_on));
                    }
                    // Until all of the answer is handed over.
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
                // In this order: what `serving` finds in a request decides for what is listened then.
                biased;
                // What went wrong is its client's business.
                _ = &mut serving => break,
                () = self.overdue() => return,
                heard = self.heard(&socket) => match heard {
                    // RFC 9112 §9.3.2: who sends ahead may have to send again. This connection ends with the answer.
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
        // It does not wait for a request any more, but what its client does not read is watched as before.
        let (Some(_busy), Ok(socket)) = (Busy::new(&self), upgrade.await) else { return };
        tokio::select! {
            () = go_on(TokioIo::new(socket), stopping) => {}
            () = self.overdue() => {}
        }
    }

    /// What comes behind a request while it is being answered. hyper does not look while it has something of it already, and would
    /// not see that the client is gone. Polled after hyper, so that it hears of a request that has come in the same turn.
    async fn heard<S: AsyncRead + Unpin>(&self, socket: &Mutex<S>) -> Heard {
        poll_fn(|context| {
            if !self.has_come.load(Ordering::Acquire) {
                // It has been answered, and hyper has not read again by itself.
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

    /// Waits for a request, from now on.
    fn wait(&self) {
        self.has_come(false);
        let mut all = self.connections.lock();
        all.turns += 1;
        let turn = all.turns;
        all.waiting.insert(turn, Arc::clone(&self.doing));
        *self.turn.lock().unwrap_or_else(PoisonError::into_inner) = Some(turn);
        self.doing.is_now(Phase::Idle(Instant::now()));
    }

    /// Does not wait any more.
    fn leave(&self, phase: Phase) {
        let mut all = self.connections.lock();
        let turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner).take();
        let was_waiting = turn.is_some_and(|turn| all.waiting.remove(&turn).is_some());
        // Evicted, it is not busy again.
        if was_waiting {
            self.doing.is_now(phase);
        }
    }

    fn read(&self) {
        self.doing.change(|phase| matches!(phase, Phase::Idle(_)).then(|| Phase::Head(Instant::now())));
    }

    /// Some of an answer has gone out, or could not.
    fn written(&self, has_gone: bool) {
        self.doing.change(|phase| match phase {
            // The rest of an answer that is handed over.
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

/// A request under way; its end lets the connection wait again.
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

/// The body of an answer, and what is held until all of it is handed over.
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

/// The body of a request, which tells when all of it has come.
#[derive(Debug)]
pub(crate) struct Received {
    /// With what passes over the rest of it, if anything does.
    body: Arc<Mutex<Incoming>>,
    /// The connection, where what comes next on it is another request.
    presence: Option<Arc<Presence>>,
}

impl Received {
    fn new(body: Incoming, presence: Arc<Presence>) -> Self {
        let received = Self { body: Arc::new(Mutex::new(body)), presence: Some(presence) };
        received.look();
        received
    }

    /// What comes behind it on the connection has nothing to do with it. Whoever has the rest can pass over it.
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

/// What nobody has read of a request's body.
struct Rest(Arc<Mutex<Incoming>>);

impl Rest {
    /// Takes what is still to come, if that is little and comes soon. A server may end a stream behind its answer while the request is
    /// being sent (RFC 9113 §8.1), and clients take that for a failure, curl 7.88 among them.
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

/// The most bytes of it, and for how long.
const PASSED_OVER: usize = 64 << 10;
const PASSED_OVER_FOR: Duration = Duration::from_secs(2);

/// A socket that tells when something comes and goes. Only the connection's task uses it.
struct Watched<S> {
    socket: Arc<Mutex<S>>,
    presence: Arc<Presence>,
}

fn locked<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        // See `Presence::heard`, which has the task woken when a request may be read again.
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
        // Byte after byte.
        let presence = Arc::new(Presence::new(Arc::clone(&connections)));
        let overdue = idle(&presence);
        for _ in 0..9 {
            sleep(Duration::from_secs(1)).await;
            presence.read();
        }
        assert_eq!(overdue.await?, Duration::from_secs(1) + HEAD, "from the first one");
        drop(presence);
        // An answer that is on its way, however long that takes.
        let presence = Arc::new(Presence::new(Arc::clone(&connections)));
        let overdue = idle(&presence);
        let busy = Busy::new(&presence);
        sleep(10 * IDLE).await;
        // Some of it goes out, and then nothing for just not too long.
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

    /// Whether a request is there before its connection is looked at, and its answer at once or some turns later.
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
