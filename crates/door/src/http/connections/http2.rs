//! HTTP/2 connections (RFC 9113): many requests at a time.
//! Never lets one request hold up the others, nor an unread answer stay longer than over HTTP/1.1.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty};
use hyper::body::{Body as _, Frame, Incoming, SizeHint};
use hyper::header::{CONNECTION, CONTENT_LENGTH, HeaderValue, RETRY_AFTER};
use hyper::rt::Executor;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::{Body, Busy, Doing, HEAD_BYTES, Phase, Presence, Received, UNREAD, Within, locked};

/// Concurrent requests. The same as the default for one caller; further requests wait at the client.
const REQUESTS: u32 = 128;
/// How much a client may send before the door reads it: of one body, and on the whole connection.
const BODY_WINDOW: u32 = 64 << 10;
const WINDOW: u32 = 256 << 10;
/// How much of an answer is buffered before more of it is polled, and how much is handed over at once.
const ANSWER_BYTES: usize = 16 << 10;
/// How much of an answer may wait for its client unwatched. hyper is done with an answer as soon as its last piece can begin to be sent;
/// h2 keeps the rest. So the last byte of a larger answer is handed over by itself, once everything before it has gone out.
const UNWATCHED: usize = 1 << 10;
/// How often a client is pinged, and how long it may take to answer.
const PING: Duration = Duration::from_secs(20);
/// How long after `GOAWAY` a client may take to acknowledge it, and to read what is on its way.
const GOING: Duration = Duration::from_secs(1);

/// In the extensions of an answer: the connection should not be used after it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Leaving;

/// In the extensions of an answer: nobody has shown who asks. Its connection counts as idle from then on, and may have to make room: a client
/// without a window for the answer could otherwise keep the place of others for as long as it likes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Anonymous;

/// Whether a clear-text client begins with the HTTP/2 preface (RFC 9113 §3.3). Only peeks. Calls `has_begun` once the beginning of a
/// preface has arrived.
pub(super) async fn is_spoken(socket: &TcpStream, has_begun: impl Fn()) -> bool {
    // No HTTP/1.1 method begins like this (RFC 9113 §3.4).
    const BEGINNING: &[u8] = b"PRI";
    let mut read = [0; BEGINNING.len()];
    loop {
        match socket.peek(&mut read).await {
            Ok(length) if length == BEGINNING.len() => return read == BEGINNING,
            Ok(length) if length > 0 && read.get(..length) == BEGINNING.get(..length) => {
                has_begun();
                sleep(Duration::from_millis(20)).await;
            }
            // The HTTP/1.1 code handles anything else, including a client that has gone.
            _ => return false,
        }
    }
}

impl Presence {
    /// Answers the requests on this connection, each in a task of its own from where it first may have to wait.
    pub(super) async fn multiplexed<S, A, F>(self: Arc<Self>, socket: S, mut stopping: watch::Receiver<bool>, answer: A)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        A: Fn(Request<Received>) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Response<Body>> + Send + 'static,
    {
        let streams = Ending(Streams(Arc::new(Shared {
            presence: Arc::clone(&self),
            open: Mutex::default(),
            tasks: Mutex::default(),
            leave: Notify::new(),
        })));
        let service = {
            let streams = streams.0.clone();
            service_fn(move |request: Request<Incoming>| {
                let (stream, is_head) = (streams.begin(), request.method() == Method::HEAD);
                let (head, body) = request.into_parts();
                let (body, rest) = Received::of_a_stream(body);
                // Boxed: otherwise hyper and its task would move the whole future several times.
                let begun = stream.map(|stream| (stream, Box::pin(answer(Request::from_parts(head, body)))));
                async move {
                    // The connection is about to be closed, and its client has been told, so nothing is begun.
                    let Some((mut stream, answering)) = begun else { return Ok(no_place()) };
                    let mut answer = answering.await;
                    if answer.extensions().get::<Anonymous>().is_some() {
                        stream.release();
                    }
                    rest.pass_over().await;
                    answer.headers_mut().remove(CONNECTION);
                    if answer.extensions().get::<Leaving>().is_some() {
                        stream.shared.leave.notify_one();
                    }
                    if let Some(Within(time)) = answer.extensions().get() {
                        stream.doing.ends_by(Instant::now() + *time + UNREAD);
                    }
                    // RFC 9110 §9.3.2: no body. Over HTTP/1.1, hyper leaves it out by itself.
                    if is_head {
                        if let Some(length) = answer.body().size_hint().exact() {
                            answer.headers_mut().entry(CONTENT_LENGTH).or_insert(length.into());
                        }
                        *answer.body_mut() = nothing();
                    }
                    Ok::<_, Infallible>(answer.map(|body| Given { body, rest: Bytes::new(), stream: Some(stream) }))
                }
            })
        };
        let mut serving = http2::Builder::new(streams.0.clone());
        serving
            .timer(TokioTimer::new())
            .max_concurrent_streams(REQUESTS)
            .initial_stream_window_size(BODY_WINDOW)
            .initial_connection_window_size(WINDOW)
            .max_header_list_size(HEAD_BYTES as u32)
            .max_send_buf_size(ANSWER_BYTES)
            .keep_alive_interval(PING)
            .keep_alive_timeout(PING);
        let mut serving = pin!(serving.serve_connection(TokioIo::new(socket), service));
        let mut is_going = false;
        loop {
            tokio::select! {
                biased;
                // Errors are the client's problem.
                _ = &mut serving => return,
                () = self.overdue(), if !is_going => {}
                () = streams.0.0.leave.notified(), if !is_going => {}
                _ = stopping.wait_for(|stopping| *stopping), if !is_going => {}
                () = sleep(GOING), if is_going => match streams.0.is_over() {
                    true => return,
                    false => continue,
                },
            }
            // Requests that the client began before it could see `GOAWAY` are still answered.
            is_going = true;
            serving.as_mut().graceful_shutdown();
            if self.is_evicted() {
                // Another connection waits for this place, and this one is idle: it is told, but not waited for.
                drop(poll_fn(|context| Poll::Ready(serving.as_mut().poll(context))).await);
                return;
            }
        }
    }
}

/// The requests of one connection.
#[derive(Debug, Clone)]
struct Streams(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    presence: Arc<Presence>,
    open: Mutex<Open>,
    tasks: Mutex<JoinSet<()>>,
    leave: Notify,
}

#[derive(Debug, Default)]
struct Open {
    count: usize,
    /// `Some` while there are requests.
    busy: Option<Busy>,
    /// The state of the request whose task hyper will start next.
    next: Option<Arc<Doing>>,
    /// The client was told to begin no more requests.
    is_over: bool,
}

/// A request in progress; dropping the last one lets the connection wait again.
#[derive(Debug)]
struct Stream {
    shared: Arc<Shared>,
    doing: Arc<Doing>,
    /// It keeps the connection busy.
    is_counted: bool,
}

/// Aborts all requests when their connection ends.
struct Ending(Streams);

impl Drop for Ending {
    fn drop(&mut self) {
        locked(&self.0.0.tasks).abort_all();
    }
}

impl Streams {
    /// Begins a request; `None` if the connection has to make room, or takes no more requests.
    fn begin(&self) -> Option<Stream> {
        let doing = Arc::new(Doing::new(Phase::Busy { unread: None, until: None }));
        let mut open = locked(&self.0.open);
        open.next = Some(Arc::clone(&doing));
        if open.is_over {
            return None;
        }
        if open.count == 0 {
            open.busy = Some(Busy::new(&self.0.presence)?);
        }
        open.count += 1;
        Some(Stream { shared: Arc::clone(&self.0), doing, is_counted: true })
    }

    /// Refuses further requests from now on. Returns whether none is in progress.
    fn is_over(&self) -> bool {
        let mut open = locked(&self.0.open);
        open.is_over = true;
        open.count == 0
    }
}

/// hyper passes a request to the service, and then at once the future that answers it to this executor.
impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Streams {
    fn execute(&self, answering: F) {
        // hyper spawns nothing else, since upgrades are not used here.
        let Some(doing) = locked(&self.0.open).next.take() else { return };
        let mut tasks = locked(&self.0.tasks);
        while tasks.try_join_next().is_some() {}
        tasks.spawn(async move {
            tokio::select! {
                biased;
                () = answering => {}
                () = doing.overdue() => {}
            }
        });
    }
}

impl Stream {
    /// Its connection need not stay for what is left of it.
    fn release(&mut self) {
        if !std::mem::take(&mut self.is_counted) {
            return;
        }
        let mut open = locked(&self.shared.open);
        open.count -= 1;
        if open.count == 0 {
            open.busy = None;
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.release();
    }
}

/// The body of an answer, in slices. hyper asks for the next one once the one before has gone out, so a client that does not read is
/// noticed.
struct Given {
    body: Body,
    rest: Bytes,
    stream: Option<Stream>,
}

impl Given {
    fn next(&mut self, context: &mut Context<'_>) -> Poll<Option<Frame<Bytes>>> {
        while self.rest.is_empty() {
            match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.rest = data,
                    Err(trailers) => return Poll::Ready(Some(trailers)),
                },
                None => return Poll::Ready(None),
            }
        }
        let size = match self.rest.len() {
            length if length > UNWATCHED => ANSWER_BYTES.min(length - 1),
            length => length,
        };
        let piece = self.rest.split_to(size);
        // Copied, so that one byte does not keep the whole buffer alive.
        Poll::Ready(Some(Frame::data(if size == 1 { Bytes::copy_from_slice(&piece) } else { piece })))
    }
}

impl hyper::body::Body for Given {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let next = self.next(context);
        if let Some(stream) = &self.stream {
            stream.doing.unread_since(matches!(next, Poll::Ready(Some(_))).then(Instant::now));
        }
        next.map(|frame| frame.map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        if self.rest.is_empty() { self.body.size_hint() } else { SizeHint::default() }
    }
}

fn nothing() -> Body {
    Empty::new().boxed_unsync()
}

/// The answer to a request that comes too late.
fn no_place() -> Response<Given> {
    let mut answer = Response::new(Given { body: nothing(), rest: Bytes::new(), stream: None });
    *answer.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    answer
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http_body_util::Full;
    use hyper::client::conn::http2::{Builder, SendRequest};
    use hyper_util::rt::TokioExecutor;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
    use tokio::task::JoinHandle;
    use tokio::time::timeout;

    use super::super::{Connections, IDLE};
    use super::*;

    /// One served connection, and how to end it.
    struct Served {
        connections: Arc<Connections>,
        stopping: watch::Sender<bool>,
        serving: JoinHandle<()>,
        /// The requests being answered now, and the most at any time.
        under_way: Arc<AtomicUsize>,
        most: Arc<AtomicUsize>,
        go: Arc<Notify>,
    }

    /// Counts a request as being answered until it is dropped.
    struct Counted(Arc<AtomicUsize>);

    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::Relaxed);
        }
    }

    impl Served {
        /// Answers `/wait` when told to, `/large` with 256 KiB, and everything else at once.
        fn on(socket: DuplexStream) -> Self {
            let (connections, stopping) = (Arc::<Connections>::default(), watch::Sender::new(false));
            let (under_way, most, go) =
                (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default(), Arc::<Notify>::default());
            let answer = {
                let (under_way, most, go) = (Arc::clone(&under_way), Arc::clone(&most), Arc::clone(&go));
                move |request: Request<Received>| {
                    let now = under_way.fetch_add(1, Ordering::Relaxed) + 1;
                    most.fetch_max(now, Ordering::Relaxed);
                    let (counted, go) = (Counted(Arc::clone(&under_way)), Arc::clone(&go));
                    async move {
                        let text = match request.uri().path() {
                            "/wait" => {
                                go.notified().await;
                                vec![b'w'; 1]
                            }
                            "/large" => vec![b'l'; 256 << 10],
                            _ => vec![b'x'; 1],
                        };
                        let body = Full::new(Bytes::from(text)).boxed_unsync();
                        let mut answer = Response::new(super::super::Held::new(body, counted).boxed_unsync());
                        if request.uri().path() == "/anonymous" {
                            answer.extensions_mut().insert(Anonymous);
                        }
                        answer
                    }
                }
            };
            let presence = Arc::new(Presence::new(Arc::clone(&connections)));
            let serving = tokio::spawn(presence.multiplexed(socket, stopping.subscribe(), answer));
            Self { connections, stopping, serving, under_way, most, go }
        }
    }

    type Client = SendRequest<Full<Bytes>>;

    /// A client, the task of its connection, and the server. `window` is how much of an answer it accepts before reading.
    async fn client(window: u32) -> (Client, JoinHandle<bool>, Served) {
        let (here, there) = duplex(64 << 10);
        let served = Served::on(there);
        let (client, connection) = client_on(here, window).await;
        (client, connection, served)
    }

    async fn client_on(here: DuplexStream, window: u32) -> (Client, JoinHandle<bool>) {
        let mut builder = Builder::new(TokioExecutor::new());
        builder.initial_stream_window_size(window).initial_connection_window_size(1 << 20);
        let (client, connection) = builder.handshake(TokioIo::new(here)).await.unwrap();
        (client, tokio::spawn(async move { connection.await.is_ok() }))
    }

    fn get(path: &str) -> Request<Full<Bytes>> {
        Request::get(format!("http://door{path}")).body(Full::default()).unwrap()
    }

    async fn asked(client: &mut Client, path: &str) -> (u16, usize) {
        let answer = timeout(IDLE, client.send_request(get(path))).await.unwrap().unwrap();
        let status = answer.status().as_u16();
        (status, answer.into_body().collect().await.unwrap().to_bytes().len())
    }

    #[tokio::test(start_paused = true)]
    async fn requests_on_one_connection_wait_for_nobody() {
        let (mut client, _connection, served) = client(64 << 10).await;
        let waits = tokio::spawn(client.send_request(get("/wait")));
        assert_eq!(asked(&mut client, "/").await, (200, 1));
        assert_eq!(asked(&mut client, "/large").await, (200, 256 << 10));
        assert!(!waits.is_finished() && !served.connections.evict(), "a connection with a request does not wait");
        served.go.notify_one();
        assert_eq!(waits.await.unwrap().unwrap().status(), 200);
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_requests_are_taken_at_a_time_than_there_are_places() {
        let (mut client, _connection, served) = client(64 << 10).await;
        assert_eq!(asked(&mut client, "/").await.0, 200);
        let all: Vec<_> = (0..200).map(|_| tokio::spawn(client.send_request(get("/wait")))).collect();
        sleep(Duration::from_secs(1)).await;
        assert_eq!(served.under_way.load(Ordering::Relaxed), REQUESTS as usize);
        for waits in all {
            // Each answer makes room for the next request.
            served.go.notify_one();
            drop(waits.await.unwrap().unwrap().into_body().collect().await.unwrap());
        }
        assert_eq!(served.most.load(Ordering::Relaxed), REQUESTS as usize);
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_nobody_reads_is_given_up_and_the_others_are_not() {
        let (mut client, _connection, served) = client(1 << 10).await;
        let began = Instant::now();
        let unread = client.send_request(get("/large")).await.unwrap();
        while served.under_way.load(Ordering::Relaxed) > 0 {
            assert_eq!(asked(&mut client, "/wait-for-nothing").await, (200, 1));
            sleep(Duration::from_secs(1)).await;
        }
        assert!((UNREAD..UNREAD + Duration::from_secs(3)).contains(&began.elapsed()), "{:?}", began.elapsed());
        assert!(unread.into_body().collect().await.is_err(), "it was cut off, and does not look whole");
        // An answer that is read, however slowly, is not given up.
        let mut read = client.send_request(get("/large")).await.unwrap().into_body();
        let mut length = 0;
        while let Some(frame) = read.frame().await {
            length += frame.unwrap().into_data().unwrap().len();
            sleep(Duration::from_millis(500)).await;
        }
        assert_eq!(length, 256 << 10);
    }

    /// With no window, not even a byte of an answer goes out.
    #[tokio::test(start_paused = true)]
    async fn answers_that_need_no_caller_keep_no_place_of_others() {
        for (path, makes_room) in [("/", false), ("/anonymous", true)] {
            let (mut client, _connection, served) = client(0).await;
            let unread = client.send_request(get(path)).await.unwrap();
            sleep(Duration::from_secs(1)).await;
            assert_eq!(served.connections.evict(), makes_room, "{path}");
            assert_eq!(timeout(Duration::from_secs(5), served.serving).await.is_ok(), makes_room, "{path}");
            drop(unread);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_its_client_gives_up_is_given_up() {
        let (mut client, _connection, served) = client(64 << 10).await;
        let waits = tokio::spawn(client.send_request(get("/wait")));
        sleep(Duration::from_secs(1)).await;
        assert_eq!(served.under_way.load(Ordering::Relaxed), 1);
        waits.abort();
        sleep(Duration::from_secs(1)).await;
        assert_eq!(served.under_way.load(Ordering::Relaxed), 0);
        assert_eq!(asked(&mut client, "/").await.0, 200);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_under_way_ends_with_its_connection() {
        let ((here, mut between), (mut beyond, there)) = (duplex(64 << 10), duplex(64 << 10));
        let cable = tokio::spawn(async move { drop(tokio::io::copy_bidirectional(&mut between, &mut beyond).await) });
        let served = Served::on(there);
        let (mut client, _connection) = client_on(here, 64 << 10).await;
        let waits = tokio::spawn(client.send_request(get("/wait")));
        sleep(Duration::from_secs(1)).await;
        assert_eq!(served.under_way.load(Ordering::Relaxed), 1);
        cable.abort();
        assert!(waits.await.unwrap().is_err());
        served.serving.await.unwrap();
        sleep(Duration::from_millis(1)).await;
        assert_eq!(served.under_way.load(Ordering::Relaxed), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_without_requests_is_told_to_go_in_time() {
        let (mut client, connection, served) = client(64 << 10).await;
        sleep(IDLE / 2).await;
        assert_eq!(asked(&mut client, "/").await.0, 200);
        let began = Instant::now();
        assert!(connection.await.unwrap(), "it is told, and not cut off");
        served.serving.await.unwrap();
        assert!((IDLE..IDLE + Duration::from_secs(1)).contains(&began.elapsed()), "{:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_waits_makes_room_and_begins_nothing() {
        let (mut client, connection, served) = client(64 << 10).await;
        assert_eq!(asked(&mut client, "/").await.0, 200);
        sleep(Duration::from_millis(1)).await;
        assert!(served.connections.evict());
        // The client is told that the connection is closing, or to try again.
        let late = client.send_request(get("/wait")).await;
        assert!(late.is_err() || late.is_ok_and(|answer| answer.status() == 503));
        assert!(timeout(GOING / 2, served.serving).await.is_ok(), "whoever needs its place does not wait for it");
        assert_eq!(served.most.load(Ordering::Relaxed), 1, "nothing was begun");
        drop(client);
        assert!(connection.await.unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_under_way_is_answered_when_the_door_stops() {
        let (mut client, connection, served) = client(64 << 10).await;
        let waits = tokio::spawn(client.send_request(get("/wait")));
        sleep(Duration::from_secs(1)).await;
        served.stopping.send_replace(true);
        sleep(3 * GOING).await;
        assert!(client.send_request(get("/")).await.is_err(), "nothing more is begun");
        served.go.notify_one();
        assert_eq!(waits.await.unwrap().unwrap().into_body().collect().await.unwrap().to_bytes().len(), 1);
        served.serving.await.unwrap();
        assert!(connection.await.unwrap());
    }

    /// Neither a client that never acknowledges `GOAWAY`, nor one that does not read.
    #[tokio::test(start_paused = true)]
    async fn a_client_that_answers_nothing_holds_up_nobody() {
        const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
        for (is_stopping, bound) in [(true, 2 * GOING), (false, IDLE + 2 * GOING)] {
            for reads in [true, false] {
                let (mut here, there) = duplex(1 << 10);
                let served = Served::on(there);
                here.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
                here.write_all(&SETTINGS).await.unwrap();
                sleep(Duration::from_secs(1)).await;
                served.stopping.send_replace(is_stopping);
                let reading = tokio::spawn(async move {
                    let mut read = [0; 1 << 10];
                    while reads && here.read(&mut read).await.is_ok_and(|length| length > 0) {}
                    std::future::pending::<()>().await;
                    drop(here);
                });
                let ended = timeout(bound, served.serving).await;
                assert!(ended.is_ok(), "stopping: {is_stopping}, reads: {reads}");
                reading.abort();
            }
        }
    }

    /// With clients that accept a byte, some of it, or all but the last byte: by then, hyper has handed over everything.
    #[tokio::test(start_paused = true)]
    async fn the_last_of_an_answer_is_watched_like_the_first() {
        for window in [1, 1 << 10, (256 << 10) - 1] {
            let (mut client, _connection, served) = client(window).await;
            let unread = client.send_request(get("/large")).await.unwrap();
            sleep(UNREAD - Duration::from_secs(1)).await;
            assert_eq!(served.under_way.load(Ordering::Relaxed), 1, "{window}");
            sleep(Duration::from_secs(2)).await;
            assert_eq!(served.under_way.load(Ordering::Relaxed), 0, "{window}");
            assert!(unread.into_body().collect().await.is_err());
        }
    }

    /// A client that ignores `GOAWAY` can finish its requests, but begin no more.
    #[tokio::test(start_paused = true)]
    async fn one_that_does_not_hear_that_it_should_go_begins_nothing_more() {
        let streams = Streams(Arc::new(Shared {
            presence: Arc::new(Presence::new(Arc::default())),
            open: Mutex::default(),
            tasks: Mutex::default(),
            leave: Notify::new(),
        }));
        let first = streams.begin();
        assert!(first.is_some() && !streams.is_over());
        assert!(streams.begin().is_none(), "told a second ago");
        drop(first);
        assert!(streams.is_over());
    }

    /// A head that never ends is not a request, and keeps its place no longer than a silent connection.
    #[tokio::test(start_paused = true)]
    async fn a_head_that_never_ends_is_cut_off() {
        let (mut here, there) = duplex(64 << 10);
        let served = Served::on(there);
        here.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
        // HEADERS of stream 1 without END_HEADERS, and a CONTINUATION each second: `:method: GET` again and again.
        here.write_all(b"\0\0\x01\x01\0\0\0\0\x01\x82").await.unwrap();
        let began = Instant::now();
        while here.write_all(b"\0\0\x01\x09\0\0\0\0\x01\x82").await.is_ok() {
            sleep(Duration::from_secs(1)).await;
            assert!(began.elapsed() < 2 * IDLE);
        }
        served.serving.await.unwrap();
        assert_eq!(served.most.load(Ordering::Relaxed), 0);
    }
}
