#![allow(clippy::unwrap_used, reason = "tests")]
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http_body_util::Full;
use hyper::StatusCode;
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::TokioExecutor;
use tokio::io::{DuplexStream, duplex};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::limits::IDLE;
use super::*;
use crate::http::response::response;

/// One served connection, and how to end it.
struct Served {
    queue: Arc<IdleQueue>,
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
    /// Answers `/wait` when told to, `/large`, `/slices` and `/deadline` with 256 KiB, and everything else at once.
    fn on(socket: DuplexStream) -> Self {
        let (queue, stopping) = (Arc::<IdleQueue>::default(), watch::Sender::new(false));
        let (under_way, most, go) =
            (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default(), Arc::<Notify>::default());
        let answer = {
            let (under_way, most, go) = (Arc::clone(&under_way), Arc::clone(&most), Arc::clone(&go));
            move |request: Request<RequestBody>| {
                let now = under_way.fetch_add(1, Ordering::Relaxed) + 1;
                most.fetch_max(now, Ordering::Relaxed);
                let (counted, go) = (Counted(Arc::clone(&under_way)), Arc::clone(&go));
                async move {
                    let text = match request.uri().path() {
                        "/wait" => {
                            go.notified().await;
                            vec![b'w'; 1]
                        }
                        "/large" | "/slices" | "/deadline" => vec![b'l'; 256 << 10],
                        _ => vec![b'x'; 1],
                    };
                    let body = match request.uri().path() {
                        "/slices" | "/deadline" => response(StatusCode::OK, "text/plain", text).into_body(),
                        _ => Full::new(Bytes::from(text)).boxed_unsync(),
                    };
                    let mut answer = Response::new(PermitBody::new(body, counted).boxed_unsync());
                    match request.uri().path() {
                        "/anonymous" => _ = answer.extensions_mut().insert(Anonymous),
                        "/deadline" => _ = answer.extensions_mut().insert(AnswerDeadline(UNREAD)),
                        _ => {}
                    }
                    answer
                }
            }
        };
        let slot = Slot::new(Arc::clone(&queue));
        let connection = Connection { slot, peer: None, stopping: stopping.subscribe(), answer };
        let serving = tokio::spawn(connection.serve(socket));
        Self { queue, stopping, serving, under_way, most, go }
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
    Request::get(format!("http://gateway{path}")).body(Full::default()).unwrap()
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
    assert!(!waits.is_finished() && !served.queue.evict(), "a connection with a request does not wait");
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
        assert_eq!(served.queue.evict(), makes_room, "{path}");
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
    assert!(served.queue.evict());
    // The client is told that the connection is closing, or to try again.
    let late = client.send_request(get("/wait")).await;
    assert!(late.is_err() || late.is_ok_and(|answer| answer.status() == 503));
    assert!(timeout(LEAVING / 2, served.serving).await.is_ok(), "whoever needs its place does not wait for it");
    assert_eq!(served.most.load(Ordering::Relaxed), 1, "nothing was begun");
    drop(client);
    assert!(connection.await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn what_is_under_way_is_answered_when_the_gateway_stops() {
    let (mut client, connection, served) = client(64 << 10).await;
    let waits = tokio::spawn(client.send_request(get("/wait")));
    sleep(Duration::from_secs(1)).await;
    served.stopping.send_replace(true);
    sleep(3 * LEAVING).await;
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
    for (is_stopping, bound) in [(true, 2 * LEAVING), (false, IDLE + 2 * LEAVING)] {
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

/// HTTP/1.1: a client of a served connection.
fn http1() -> (DuplexStream, Served) {
    let (here, there) = duplex(1 << 10);
    (here, Served::on(there))
}

fn get1(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: gateway\r\n\r\n")
}

async fn read_until(client: &mut DuplexStream, end: &str) -> String {
    let mut text = Vec::new();
    while !text.ends_with(end.as_bytes()) {
        let read = timeout(IDLE, client.read_buf(&mut text)).await.unwrap().unwrap();
        assert!(read > 0, "{}", String::from_utf8_lossy(&text));
    }
    String::from_utf8(text).unwrap()
}

#[tokio::test(start_paused = true)]
async fn connections_that_are_silent_or_slow_are_closed_in_time() {
    let second = Duration::from_secs(1);
    // Nothing at all, before a request or after one.
    for first in ["", "/"] {
        let (mut client, served) = http1();
        if !first.is_empty() {
            sleep(IDLE / 2).await;
            client.write_all(get1(first).as_bytes()).await.unwrap();
            read_until(&mut client, "\r\n\r\nx").await;
        }
        let began = Instant::now();
        served.serving.await.unwrap();
        assert!((IDLE..IDLE + second).contains(&began.elapsed()), "{:?}", began.elapsed());
    }
    // A head that arrives byte by byte, also when it could become HTTP/2.
    for head in [get1("/"), "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned()] {
        let (mut client, served) = http1();
        sleep(5 * second).await;
        let began = Instant::now();
        let writing = async {
            for byte in head.as_bytes() {
                if client.write_all(&[*byte]).await.is_err() {
                    break;
                }
                sleep(second).await;
            }
        };
        let (serving, ()) = tokio::join!(served.serving, writing);
        serving.unwrap();
        assert!((HEAD..HEAD + 10 * second).contains(&began.elapsed()), "{head}: {:?}", began.elapsed());
        assert_eq!(served.most.load(Ordering::Relaxed), 0);
    }
    // An answer that takes long is waited for, and one that nobody reads is not.
    let (mut client, served) = http1();
    client.write_all(get1("/wait").as_bytes()).await.unwrap();
    sleep(10 * IDLE).await;
    served.go.notify_one();
    read_until(&mut client, "\r\n\r\nw").await;
    drop(client);
    // Whether hyper has taken all of it at once, or has yet to ask for the rest.
    for path in ["/large", "/slices"] {
        let (mut client, served) = http1();
        client.write_all(get1(path).as_bytes()).await.unwrap();
        // Some of it is read, then nothing for a little less than the limit.
        for _ in 0..3 {
            sleep(UNREAD - second).await;
            client.read_exact(&mut [0; 1 << 10]).await.unwrap();
        }
        let began = Instant::now();
        served.serving.await.unwrap();
        assert!((UNREAD..UNREAD + second).contains(&began.elapsed()), "{path}: {:?}", began.elapsed());
        assert_eq!(served.under_way.load(Ordering::Relaxed), 0);
        assert!(served.queue.is_empty(), "nothing is left of one that has ended");
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_has_until_its_deadline_however_it_is_read() {
    let (mut client, served) = http1();
    let began = Instant::now();
    client.write_all(get1("/deadline").as_bytes()).await.unwrap();
    while client.read(&mut [0; 1 << 10]).await.is_ok_and(|length| length > 0) {
        sleep(UNREAD / 8).await;
    }
    assert!((2 * UNREAD..3 * UNREAD).contains(&began.elapsed()), "{:?}", began.elapsed());
    served.serving.await.unwrap();
}

/// RFC 9112 §9.3.2.
#[tokio::test(start_paused = true)]
async fn requests_that_do_not_wait_for_answers_are_answered_in_order() {
    let (mut client, served) = http1();
    let last = get1("/wait").replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n");
    client.write_all([get1("/wait"), get1("/"), last].concat().as_bytes()).await.unwrap();
    for _ in 0..2 {
        sleep(Duration::from_secs(1)).await;
        assert_eq!(served.under_way.load(Ordering::Relaxed), 1);
        served.go.notify_one();
    }
    let mut text = String::new();
    client.read_to_string(&mut text).await.unwrap();
    let bodies: Vec<_> = text.split("\r\n\r\n").skip(1).filter_map(|rest| rest.chars().next()).collect();
    assert_eq!((bodies, served.most.load(Ordering::Relaxed)), (vec!['w', 'x', 'w'], 1), "{text}");
    served.serving.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn requests_end_with_clients_that_leave() {
    let (mut client, served) = http1();
    client.write_all(get1("/wait").as_bytes()).await.unwrap();
    sleep(Duration::from_secs(1)).await;
    assert_eq!(served.under_way.load(Ordering::Relaxed), 1);
    drop(client);
    served.serving.await.unwrap();
    assert_eq!(served.under_way.load(Ordering::Relaxed), 0);
}

#[tokio::test(start_paused = true)]
async fn the_one_that_has_waited_longest_makes_room_and_begins_nothing() {
    let queue = Arc::<IdleQueue>::default();
    let [first, second, third] = [(); 3].map(|()| Slot::new(Arc::clone(&queue)));
    let active = second.begin();
    assert!(active.is_some());
    drop(first.begin());
    assert!(queue.evict());
    third.activity().overdue().await;
    assert!(third.begin().is_none() && first.begin().is_some());
    drop(first);
    assert!(!queue.evict(), "the second one is at work");
    let more = second.begin();
    drop(active);
    assert!(!queue.evict(), "it has another request");
    drop(more);
    assert!(queue.evict());
}
