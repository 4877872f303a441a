//! Streams, subscriptions and cancellation between a client and a service on a real broker (SPEC.md §25).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::{Stream, StreamExt as _, stream};
use sealwire::call::FetchedToken;
use sealwire::errors::{AskError, ErrorKind, TokenFault, code};
use sealwire::internal::auth::IssueRequest;
use sealwire::internal::rpc::Request;
use sealwire::{
    BusConfig, CallStream, Client, ClientError, Clock as _, Credentials, Ctx, Name, Router, RpcError, Sink,
    SystemClock, TokenSource,
};
use sealwire_testkit::raw::RawConnection;
use sealwire_testkit::site::{Served, Site, agent_key, write};
use sealwire_testkit::{NatsServer, SOON, settle, within};
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::eventually;

/// What the methods have done so far.
#[derive(Default)]
pub(super) struct Done {
    /// Items that were asked for.
    made: AtomicU64,
    started: AtomicBool,
    /// Runs of `site/wait` that have begun.
    pub(super) runs: AtomicU64,
    /// Methods that have ended, in whatever way.
    pub(super) dropped: AtomicU64,
    cancelled: AtomicBool,
    finished: AtomicBool,
    /// Lets one `site/hold` finish.
    release: Notify,
}

/// Notes on drop that the method was cancelled, unless it has finished.
struct Running(Arc<Done>);

impl Running {
    fn begin(done: &Arc<Done>) -> Self {
        done.started.store(true, Ordering::SeqCst);
        Self(Arc::clone(done))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.dropped.fetch_add(1, Ordering::SeqCst);
        if !self.0.finished.load(Ordering::SeqCst) {
            self.0.cancelled.store(true, Ordering::SeqCst);
        }
    }
}

#[derive(serde::Deserialize)]
struct Count {
    to: u64,
    #[serde(default)]
    pause_ms: u64,
}

fn numbers(done: Arc<Done>, count: Count) -> impl Stream<Item = Result<u64, RpcError>> {
    let running = Running::begin(&done);
    let made = stream::iter(1..=count.to).then(move |number| {
        let done = Arc::clone(&running.0);
        async move {
            tokio::time::sleep(Duration::from_millis(count.pause_ms)).await;
            done.made.fetch_add(1, Ordering::SeqCst);
            done.finished.fetch_or(number == count.to, Ordering::SeqCst);
            Ok(number)
        }
    });
    // One frame per item, so that the window counts items.
    made.then(|item| async move {
        tokio::task::yield_now().await;
        item
    })
}

fn methods(done: Arc<Done>) -> Router<Arc<Done>> {
    type State = Ctx<Arc<Done>>;
    Router::new(done)
        .stream("site/count", |ctx: State, count: Count| async move {
            Ok::<_, RpcError>(numbers(Arc::clone(ctx.state()), count))
        })
        .subscription("site/ticks", |ctx: State, count: Count| async move {
            let ticks = numbers(Arc::clone(ctx.state()), count).map(|item| item.map(|number| json!({ "at": number })));
            Ok::<_, RpcError>(ticks)
        })
        .method("site/add", |_: State, (a, b): (i64, i64)| async move { Ok::<_, RpcError>(a + b) })
        .method("site/text", |_: State, (n,): (usize,)| async move { Ok::<_, RpcError>("x".repeat(n)) })
        .method("site/wait", |ctx: State, (ms,): (u64,)| async move {
            let running = Running::begin(ctx.state());
            running.0.runs.fetch_add(1, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(ms)).await;
            running.0.finished.store(true, Ordering::SeqCst);
            Ok::<_, RpcError>(ms)
        })
        .method("site/hold", |ctx: State, (): ()| async move {
            let running = Running::begin(ctx.state());
            running.0.runs.fetch_add(1, Ordering::SeqCst);
            running.0.release.notified().await;
            running.0.finished.store(true, Ordering::SeqCst);
            Ok::<_, RpcError>(())
        })
        .method_with_sink("site/job", |ctx: State, (): (), sink: Sink<String>| async move {
            ctx.notify("job/began", &json!({ "by": "ann" })).await?;
            sink.send(&"half".to_owned()).await?;
            let colour = match ctx.ask::<String>("job/colour", &["which?"]).await {
                Ok(colour) => colour,
                Err(AskError::Refused(error)) => format!("refused {}", error.code()),
                Err(error) => return Err(error.into()),
            };
            ctx.notify("job/ends", &()).await?;
            Ok::<_, RpcError>(colour)
        })
}

pub(super) struct Stage {
    pub(super) server: NatsServer,
    /// The folder with the service's files.
    site: Site,
    served: Served,
    pub(super) done: Arc<Done>,
    pub(super) client: Client,
}

impl Stage {
    pub(super) async fn open() -> Self {
        let server = NatsServer::start().await;
        let (site, done) = (Site::new(&server.url()), Arc::new(Done::default()));
        let served = site.serve(methods(Arc::clone(&done))).await;
        let client = connect(&site, &server, "ann").await;
        Self { server, site, served, done, client }
    }

    fn count(&self, count: &Value) -> CallStream<u64> {
        let request = self.client.request("site").deadline(Duration::from_secs(100));
        request.stream("site/count", count)
    }

    pub(super) fn has_finished(&self) -> bool {
        self.has(|done| &done.finished)
    }

    fn has(&self, what: impl Fn(&Done) -> &AtomicBool) -> bool {
        what(&self.done).load(Ordering::SeqCst)
    }
}

pub(super) async fn connect(site: &Site, server: &NatsServer, agent: &str) -> Client {
    let name = |text: &str| Name::new(text).unwrap();
    let bus = BusConfig::open(&server.url());
    let credentials = Credentials::new(name("test"), name(agent), agent_key(agent), bus);
    // The tests do other things while a call is under way.
    let client = Client::builder(credentials.token(site.token(agent, &["worker"]))).deadline(Duration::from_secs(300));
    within(SOON, client.connect()).await.unwrap()
}

async fn next<T>(items: &mut (impl Stream<Item = Result<T, ClientError>> + Unpin)) -> Option<T> {
    within(SOON, items.next()).await.map(|item| item.unwrap_or_else(|error| panic!("{error}")))
}

/// Unlike a result of the wrong type.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_item_that_is_none_says_nothing_of_what_the_call_comes_to() {
    let stage = Stage::open().await;
    let mut items = stage.client.request("site").stream::<String>("site/count", json!({ "to": 2 }));
    for _ in 0..2 {
        let error = within(SOON, items.next()).await.unwrap().unwrap_err();
        assert!(matches!(error, ClientError::Decode { is_part: true, .. }) && error.is_outcome_unknown(), "{error:?}");
        assert!(error.to_string().starts_with("a part of the stream is not of type "), "{error}");
    }
    within(SOON, items.finish::<serde_json::Value>()).await.unwrap();
    let sum = stage.client.request("site").stream::<u64>("site/add", (1, 2)).finish::<String>();
    let error = within(SOON, sum).await.unwrap_err();
    assert!(matches!(error, ClientError::Decode { is_part: false, .. }) && !error.is_outcome_unknown(), "{error:?}");
}

/// SPEC.md §25.1.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn items_come_in_order_and_then_the_result() {
    let stage = Stage::open().await;
    let mut items = stage.count(&json!({ "to": 5000 }));
    for expected in 1..=5000 {
        assert_eq!(next(&mut items).await, Some(expected));
    }
    assert_eq!(next(&mut items).await, None);
    assert_eq!(stage.client.stats().streams, 0, "it has ended");
    assert!(items.message_id().is_some());
    within(SOON, items.finish::<()>()).await.unwrap();
    let stats = stage.client.stats();
    assert!(stats.frames_taken > 10 && stats.frames_refused == 0, "{stats:?}");
    // A caller that does not take the items gets the result all the same; a method that sends no items gives its own result.
    within(SOON, stage.count(&json!({ "to": 500 })).finish::<()>()).await.unwrap();
    let mut quick = stage.client.stream::<u64>("site", "site/add", (1, 2));
    assert_eq!(next(&mut quick).await, None);
    assert_eq!(within(SOON, quick.finish::<i64>()).await.unwrap(), 3);
    // An error comes last, and once.
    let mut refused = stage.client.stream::<u64>("site", "site/none", ());
    let error = within(SOON, refused.next()).await.unwrap().unwrap_err();
    assert_eq!(error.remote().map(RpcError::code), Some(code::METHOD_NOT_FOUND), "{error}");
    assert!(within(SOON, refused.next()).await.is_none());
    assert_eq!(within(SOON, refused.finish::<()>()).await.unwrap_err().kind(), ErrorKind::Ended);
    assert_eq!((stage.client.stats().streams, stage.client.stats().pending), (0, 0));
}

/// SPEC.md §25.5: the window also slows down the method, so nothing piles up between it and a slow reader.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_reader_slows_the_method_down() {
    let stage = Stage::open().await;
    let request = stage.client.request("site").deadline(Duration::from_secs(60)).window(4);
    // Slow enough that each item has a frame of its own.
    let mut items = request.stream::<u64>("site/count", json!({ "to": 200, "pause_ms": 1 }));
    for taken in 1..=20 {
        assert_eq!(next(&mut items).await, Some(taken));
        tokio::time::sleep(Duration::from_millis(60)).await;
        let made = stage.done.made.load(Ordering::SeqCst);
        // The window, the items by which an acknowledgement may be late, and those that wait to be sent, 50 at most.
        assert!(made <= taken + 4 + 2 + 51, "{made} made, {taken} taken");
    }
    for taken in 21..=200 {
        assert_eq!(next(&mut items).await, Some(taken));
    }
    assert_eq!(next(&mut items).await, None);
}

/// SPEC.md §25.4.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_nobody_waits_for_is_cancelled_at_the_service() {
    // A stream that is dropped.
    let stage = Stage::open().await;
    let mut items = stage.count(&json!({ "to": 100_000, "pause_ms": 5 }));
    assert_eq!(next(&mut items).await, Some(1));
    drop(items);
    eventually("the method is cancelled", || stage.has(|done| &done.cancelled)).await;
    assert_eq!(stage.client.stats().streams, 0);

    // One that is cancelled, and the service confirms it.
    let stage = Stage::open().await;
    let items = stage.count(&json!({ "to": 100_000, "pause_ms": 5 }));
    eventually("it runs", || stage.has(|done| &done.started)).await;
    assert!(within(SOON, items.cancel()).await);
    assert!(stage.has(|done| &done.cancelled));

    // A plain call whose future is dropped while the method runs.
    let stage = Stage::open().await;
    let call = stage.client.call::<u64>("site", "site/wait", (200_000,));
    let started = async { eventually("it runs", || stage.has(|done| &done.started)).await };
    tokio::select! { _ = call => panic!("it takes minutes"), () = started => {} }
    assert_eq!(stage.client.stats().pending, 0);
    let at = Instant::now();
    eventually("the method is cancelled", || stage.has(|done| &done.cancelled)).await;
    println!("cancelled after {:?}", at.elapsed());

    // But not a detached call.
    let stage = Stage::open().await;
    let call = stage.client.request("site").detached().call::<()>("site/hold", ());
    let started = async { eventually("it runs", || stage.has(|done| &done.started)).await };
    tokio::select! { _ = call => panic!("it is held"), () = started => {} }
    stage.done.release.notify_one();
    eventually("the method has finished", || stage.has(|done| &done.finished)).await;

    // Everything, when the client is closed.
    let stage = Stage::open().await;
    let client = stage.client.clone();
    let call = tokio::spawn(async move { client.call::<u64>("site", "site/wait", (200_000,)).await });
    eventually("it runs", || stage.has(|done| &done.started)).await;
    within(SOON, stage.client.close()).await;
    // The service may confirm the cancellation before the connection is gone.
    match within(SOON, call).await.unwrap().unwrap_err() {
        ClientError::Remote(error) => assert_eq!(error.code(), code::CANCELLED),
        error => assert_eq!(error.kind(), ErrorKind::Closed),
    }
    eventually("the method is cancelled", || stage.has(|done| &done.cancelled)).await;

    // And when the last clone of the client goes away with the stream.
    let stage = Stage::open().await;
    let mut items = stage.count(&json!({ "to": 100_000, "pause_ms": 5 }));
    assert_eq!(next(&mut items).await, Some(1));
    let Stage { client, done, served, server, site: _site } = stage;
    drop(client);
    drop(items);
    eventually("the method is cancelled", || done.cancelled.load(Ordering::SeqCst)).await;
    drop((served, server));
}

/// SPEC.md §25.4: hints and 503 are not signed, so the method may be running.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_ended_without_a_signature_is_cancelled_at_the_service() {
    let overloaded = r#"{"jsonrpc":"2.0","error":{"code":-32014,"message":"overloaded"},"id":null}"#;
    for (block, payload, kind) in
        [("NATS/1.0\r\n\r\n", overloaded, ErrorKind::Hint), ("NATS/1.0 503\r\n\r\n", "", ErrorKind::NoResponders)]
    {
        let stage = Stage::open().await;
        let bus = stage.server.client().await;
        let mut requests = bus.subscribe("rpc.v1.site.>").await.unwrap();
        settle(&bus).await;
        let mut mallory = RawConnection::connect(&stage.server.url(), None).await;
        // A hint that comes after the first frame has no effect.
        let ended = async {
            for round in 0..20 {
                let request = stage.client.request("site").deadline(Duration::from_secs(500));
                let call = request.stream::<()>("site/wait", (400_000,));
                let request = within(SOON, requests.next()).await.unwrap();
                let reply = request.reply.unwrap();
                eventually("it runs", || stage.done.runs.load(Ordering::SeqCst) > round).await;
                mallory.hpub_raw(&reply, None, block.as_bytes(), payload.as_bytes()).await;
                let ended = tokio::time::timeout(Duration::from_secs(5), call.finish::<u64>()).await;
                if let Ok(Err(error)) = ended {
                    return error;
                }
            }
            panic!("too late each time");
        };
        assert_eq!(ended.await.kind(), kind);
        let runs = stage.done.runs.load(Ordering::SeqCst);
        eventually("all are cancelled", || stage.done.dropped.load(Ordering::SeqCst) == runs).await;
    }
}

/// SPEC.md §25.4: if an idempotent call runs twice, nobody takes the frames of the first run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_sent_again_is_cancelled_where_it_was_sent_before() {
    let overloaded = r#"{"jsonrpc":"2.0","error":{"code":-32014,"message":"overloaded"},"id":null}"#;
    let stage = Stage::open().await;
    let bus = stage.server.client().await;
    let mut requests = bus.subscribe("rpc.v1.site.>").await.unwrap();
    settle(&bus).await;
    let mut mallory = RawConnection::connect(&stage.server.url(), None).await;
    for _ in 0..20 {
        let before = stage.done.runs.load(Ordering::SeqCst);
        let request = stage.client.request("site").deadline(Duration::from_secs(500)).idempotent();
        let _call = request.stream::<()>("site/wait", (400_000,));
        let reply = within(SOON, requests.next()).await.unwrap().reply.unwrap();
        eventually("it runs", || stage.done.runs.load(Ordering::SeqCst) > before).await;
        mallory.publish(&reply, None, overloaded.as_bytes()).await;
        // A hint that comes after the first frame has no effect.
        let Ok(Some(_again)) = tokio::time::timeout(Duration::from_secs(5), requests.next()).await else { continue };
        eventually("the second one runs", || stage.done.runs.load(Ordering::SeqCst) == before + 2).await;
        eventually("the first one is cancelled", || stage.done.dropped.load(Ordering::SeqCst) == before + 1).await;
        return;
    }
    panic!("too late each time");
}

/// SPEC.md §25.4: an answer to a question is not confirmed, so it is sent again if it may have been lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_is_lost_with_the_connection_is_sent_again() {
    // Given to a broker that does not forward it, or made while there is no broker.
    for is_paused in [true, false] {
        let mut stage = Stage::open().await;
        let (asked, go, made) = <(Arc<Notify>, Arc<Notify>, Arc<Notify>)>::default();
        let handler = (Arc::clone(&asked), Arc::clone(&go), Arc::clone(&made));
        let request = stage.client.request("site").deadline(Duration::from_secs(100)).on_ask(move |_| {
            let (asked, go, made) = handler.clone();
            async move {
                asked.notify_one();
                go.notified().await;
                made.notify_one();
                Ok("blue")
            }
        });
        let call = request.stream::<String>("site/job", ());
        let result = tokio::spawn(call.finish::<String>());
        within(SOON, asked.notified()).await;
        if is_paused {
            stage.server.pause().await;
        } else {
            stage.server.kill().await;
            eventually("the client knows", || !stage.client.stats().connected).await;
        }
        go.notify_one();
        within(SOON, made.notified()).await;
        // Time for the client to hand it to the broker; without that, the test would be easier.
        tokio::time::sleep(Duration::from_millis(300)).await;
        stage.server.restart().await;
        let result = within(Duration::from_secs(90), result).await.unwrap();
        assert_eq!(result.unwrap_or_else(|error| panic!("paused {is_paused}: {error}")), "blue");
    }
}

/// SPEC.md §25.5: the client asks again for what was lost while the broker was away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_goes_on_after_its_broker_was_killed() {
    let mut stage = Stage::open().await;
    let mut items = stage.count(&json!({ "to": 1500, "pause_ms": 2 }));
    let mut expected = 0;
    for round in 1..=3 {
        while expected < round * 300 {
            expected += 1;
            assert_eq!(next(&mut items).await, Some(expected));
        }
        stage.server.restart().await;
    }
    while expected < 1500 {
        expected += 1;
        let item = within(SOON, items.next()).await.unwrap();
        assert_eq!(item.unwrap_or_else(|error| panic!("{error}")), expected);
    }
    assert_eq!(next(&mut items).await, None);
    within(SOON, items.finish::<()>()).await.unwrap();
    assert!(stage.client.stats().disconnects >= 3);
}

/// SPEC.md §25.4: nobody reports that the replica is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_whose_replica_dies_is_lost_after_twenty_seconds() {
    let stage = Stage::open().await;
    // The time counts from the last frame, which comes later.
    let started = Instant::now();
    let mut items = stage.count(&json!({ "to": 100_000, "pause_ms": 20 }));
    assert_eq!(next(&mut items).await, Some(1));
    stage.served.kill().await;
    let error = loop {
        match within(2 * SOON, items.next()).await.unwrap() {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert!(matches!(&error, ClientError::StreamLost { last_seq: Some(1..), .. }), "{error:?}");
    assert!(error.is_outcome_unknown());
    let waited = started.elapsed();
    // As given up at once, or after the deadline of 100 s.
    assert!(waited >= Duration::from_secs(20) && waited < Duration::from_secs(90), "{waited:?}");
    assert!(items.next().await.is_none());
}

/// SPEC.md §25.4: whoever may publish to the inbox can change nothing about a stream.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forged_foreign_and_repeated_frames_are_counted_and_never_taken() {
    let stage = Stage::open().await;
    let bus = stage.server.client().await;
    let mut heard = bus.subscribe("_INBOX.ann.>").await.unwrap();
    settle(&bus).await;
    let mut mallory = RawConnection::connect(&stage.server.url(), None).await;
    let mut other = stage.count(&json!({ "to": 50, "pause_ms": 1 }));
    assert_eq!(next(&mut other).await, Some(1));
    let foreign = within(SOON, heard.next()).await.unwrap();
    let mut items = stage.count(&json!({ "to": 300, "pause_ms": 3 }));
    let mut sent = 0;
    let mut reply = None;
    // Frames that mallory sends are heard here as well.
    let block = |message: &async_nats::Message| {
        let value = message.headers.as_ref()?.get("Authentication-Info")?.as_str().to_owned();
        Some(format!("NATS/1.0\r\nAuthentication-Info: {value}\r\n\r\n").into_bytes())
    };
    let of_other = block(&foreign).unwrap();
    for expected in 1..=300 {
        assert_eq!(next(&mut items).await, Some(expected));
        // The first one is waited for: it was published before its item came.
        let patience = |sent| if sent == 0 { SOON } else { Duration::from_millis(1) };
        while let Ok(Some(message)) = tokio::time::timeout(patience(sent), heard.next()).await {
            if message.subject != foreign.subject
                && sent < 100
                && let Some(block) = block(&message)
            {
                reply = Some(message.subject.to_string());
                let subject = message.subject.as_str();
                // Changed, repeated, unsigned, from another call, and a forged report that nobody listens.
                let seven = br#"{"jsonrpc":"2.0","result":7,"id":1}"#;
                mallory.hpub_raw(subject, None, &block, seven).await;
                mallory.hpub_raw(subject, None, &block, &message.payload).await;
                mallory.publish(subject, None, seven).await;
                mallory.hpub_raw(subject, None, &of_other, &foreign.payload).await;
                mallory.hpub_raw(subject, None, b"NATS/1.0 503\r\n\r\n", b"").await;
                sent += 5;
            }
        }
        if expected == 1 {
            // The stream cannot end before: the window is smaller than what is still to come.
            eventually("one is refused", || stage.client.stats().frames_refused > 0).await;
        }
    }
    assert_eq!(next(&mut items).await, None);
    within(SOON, items.finish::<()>()).await.unwrap();
    assert!(reply.is_some() && sent >= 5);
    let stats = stage.client.stats();
    assert!(stats.frames_refused > 0 && stats.late > 0, "{stats:?} of {sent}");
    assert!(stats.frames_refused <= sent, "{stats:?}");
    while next(&mut other).await.is_some() {}
}

/// SPEC.md §25.1.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn results_larger_than_a_message_come_in_pieces_up_to_a_limit() {
    let stage = Stage::open().await;
    let large = 3_000_000;
    let result = stage.client.stream::<()>("site", "site/text", (large,)).finish::<String>();
    assert_eq!(within(SOON, result).await.unwrap().len(), large);
    let bounded = stage.client.request("site").max_bytes(1_000_000).stream::<()>("site/text", (large,));
    let error = within(SOON, bounded.finish::<String>()).await.unwrap_err();
    assert!(matches!(error, ClientError::ResultTooLarge { limit: 1_000_000 }), "{error:?}");
    assert!(error.to_string().contains("max_bytes") && !error.is_outcome_unknown(), "{error}");
    eventually("it is forgotten", || stage.client.stats().streams == 0).await;
}

/// SPEC.md §25.1, SPEC.md §25.2.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn notifications_and_questions_come_in_their_order_and_are_answered_by_a_handler_alone() {
    let stage = Stage::open().await;
    let told = Arc::new(Mutex::new(Vec::new()));
    let (notes, asks) = (Arc::clone(&told), Arc::clone(&told));
    let params =
        |request: &Request| request.params.as_ref().map_or("-".to_owned(), |params| params.raw().get().to_owned());
    let request = stage.client.request("site");
    let request = request.on_notification(move |note| {
        notes.lock().unwrap().push(format!("{} {}", note.method, params(&note)));
    });
    let mut parts = request.clone().on_ask(move |ask| {
        asks.lock().unwrap().push(format!("? {} {}", ask.method, params(&ask)));
        async { Ok("blue") }
    });
    parts = parts.deadline(SOON);
    let mut parts = parts.stream::<String>("site/job", ());
    assert_eq!(next(&mut parts).await.as_deref(), Some("half"));
    assert_eq!(next(&mut parts).await, None);
    assert_eq!(within(SOON, parts.finish::<String>()).await.unwrap(), "blue");
    let wanted = [r#"job/began {"by":"ann"}"#, r#"? job/colour ["which?"]"#, "job/ends -"];
    assert_eq!(*told.lock().unwrap(), wanted);
    // A caller without a handler is asked nothing, and a handler may refuse or panic.
    let refused = request.clone().stream::<String>("site/job", ()).finish::<String>();
    assert_eq!(within(SOON, refused).await.unwrap(), "refused -32601");
    let failing = request.clone().on_ask(|_| async { Err::<(), _>(RpcError::application(7, "no")) });
    let failed = failing.stream::<String>("site/job", ()).finish::<String>();
    assert_eq!(within(SOON, failed).await.unwrap(), "refused 7");
    let panicking = request.on_ask(|_| async { if true { panic!("on purpose") } else { Ok(()) } });
    let failed = panicking.stream::<String>("site/job", ()).finish::<String>();
    assert_eq!(within(SOON, failed).await.unwrap(), "refused -32603");
}

/// SPEC.md §25.2: a lease lasts while it is renewed, and ends when nobody holds the subscription.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subscriptions_outlive_their_lease_while_somebody_holds_them() {
    #[derive(serde::Deserialize)]
    struct Tick {
        at: u64,
    }
    let stage = Stage::open().await;
    // Long enough for a busy machine to renew it in time.
    let lease = Duration::from_secs(8);
    let request = stage.client.request("site").lease(lease);
    let mut ticks = request.subscribe::<Tick>("site/ticks", json!({ "to": 1_000_000, "pause_ms": 100 }));
    let started = Instant::now();
    let mut expected = 0;
    while started.elapsed() < lease * 2 {
        expected += 1;
        assert_eq!(next(&mut ticks).await.map(|tick| tick.at), Some(expected));
    }
    assert!(!stage.has(|done| &done.cancelled) && ticks.missed() == 0);
    assert!(within(SOON, ticks.cancel()).await);
    assert!(stage.has(|done| &done.cancelled));
    // When the service stops, it says so.
    let mut ticks = stage.client.subscribe::<Tick>("site", "site/ticks", json!({ "to": 1_000_000, "pause_ms": 100 }));
    assert_eq!(next(&mut ticks).await.map(|tick| tick.at), Some(1));
    let stopping = tokio::spawn(stage.served.stop());
    while next(&mut ticks).await.is_some() {}
    assert_eq!(within(SOON, ticks.finish::<Value>()).await.unwrap(), json!({ "closed": "draining" }));
    within(SOON, stopping).await.unwrap().unwrap();
}

/// Gives tokens that live for six seconds.
#[derive(Debug)]
struct ShortLived(Mutex<Vec<String>>);

impl TokenSource for ShortLived {
    fn fetch(&self) -> FetchedToken<'_> {
        let next = self.0.lock().unwrap().pop().ok_or(TokenFault::Slow);
        Box::pin(std::future::ready(next))
    }
}

/// SPEC.md §25.5: a call ends with the newest token that was shown for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_is_silent_outlives_its_token() {
    let stage = Stage::open().await;
    let site = &stage.site;
    let mut tokens: Vec<String> = Vec::new();
    for life in [300, 6] {
        let mut request = IssueRequest::new("ann", site.endpoint.audience().as_str(), SystemClock.now_s());
        request.roles = ["worker".to_owned()].into();
        request.ttl_s = life;
        tokens.push(site.issuer.issue(&request).unwrap());
    }
    let name = |text: &str| Name::new(text).unwrap();
    let credentials =
        Credentials::new(name("test"), name("ann"), agent_key("ann"), BusConfig::open(&stage.server.url()));
    let source = ShortLived(Mutex::new(tokens));
    let client = within(SOON, Client::connect(credentials.token_source(source))).await.unwrap();
    let request = client.request("site").deadline(Duration::from_secs(100));
    let result = request.stream::<()>("site/wait", (14_000,)).finish::<u64>();
    assert_eq!(within(2 * SOON, result).await.unwrap(), 14_000, "its first token counts for 11 s");
}

/// SPEC.md §25.4, SPEC.md §9.2.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_ran_is_not_said_to_be_unsent_by_its_repetition() {
    // A stream that has begun is not sent again: on a busy machine, its first frame may come before the broker is gone.
    let (mut is_stream, mut begun) = (false, 0);
    loop {
        let mut stage = Stage::open().await;
        let call = stage.client.request("site").idempotent().deadline(Duration::from_secs(10));
        let call = tokio::spawn(async move {
            if is_stream {
                call.stream::<()>("site/hold", ()).finish::<()>().await
            } else {
                call.call::<()>("site/hold", ()).await
            }
        });
        eventually("it runs", || stage.done.runs.load(Ordering::SeqCst) == 1).await;
        stage.server.kill().await;
        // Nobody hears of its end any more.
        stage.done.release.notify_one();
        eventually("it has run", || stage.has_finished()).await;
        let error = within(SOON, call).await.unwrap().unwrap_err();
        assert!(error.is_outcome_unknown(), "{error}");
        match error {
            ClientError::Repeated { earlier, last } => {
                assert_eq!((earlier.kind(), last.kind()), (ErrorKind::ConnectionLost, ErrorKind::Disconnected));
                if is_stream {
                    return;
                }
                is_stream = true;
            }
            error => {
                begun += 1;
                assert!(is_stream && begun < 5, "{error:?}");
            }
        }
    }
}

/// SPEC.md §9.2, SPEC.md §14.2, SPEC.md §25: a call that was ended while it ran is not reported as unexecuted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_revoked_or_denied_while_it_runs_has_run_in_part() {
    for code in [code::UNAUTHENTICATED, code::PERMISSION_DENIED] {
        let stage = Stage::open().await;
        let mut items = stage.count(&json!({ "to": 100_000, "pause_ms": 5 }));
        assert_eq!(next(&mut items).await, Some(1));
        // This call has sent no frame yet.
        let silent = stage.client.request("site").stream::<()>("site/wait", (60_000,));
        eventually("both run", || stage.done.runs.load(Ordering::SeqCst) == 1).await;
        if code == code::UNAUTHENTICATED {
            stage.site.write_ring(&["bob"]);
        } else {
            let policy = "[role.worker]\nallow = [\"site/add\"]\n";
            write(&stage.site.path("policies/policy.toml"), policy);
        }
        let broken = loop {
            match within(SOON, items.next()).await.unwrap() {
                Ok(_) => {}
                Err(error) => break error,
            }
        };
        for error in [broken, within(SOON, silent.finish::<u64>()).await.unwrap_err()] {
            assert_eq!(error.remote().map(RpcError::code), Some(code), "{error}");
            assert!(error.is_outcome_unknown(), "{error}");
        }
        // A call that is denied before it runs was not executed.
        if code == code::PERMISSION_DENIED {
            let denied = within(SOON, stage.client.call::<u64>("site", "site/wait", (1,))).await.unwrap_err();
            assert_eq!(denied.remote().map(RpcError::code), Some(code));
            assert!(!denied.is_outcome_unknown(), "{denied}");
        }
    }
}

const NO_CONTROL: &str = r#"
no_auth_user: any
authorization { users = [
  { user: any, password: any, permissions: { publish: [">"], subscribe: [">"] } }
  { user: ann, password: ann, permissions: { publish: ["rpc.v1.*.ann", "rpc.v1.*.ann.>"], subscribe: ["_INBOX.ann.>"] } }
] }
"#;

/// SPEC.md §19: the service runs the call all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_whose_control_is_forbidden_has_run_in_part() {
    let server = NatsServer::start_with(NO_CONTROL).await;
    let (site, done) = (Site::new(&server.url()), Arc::new(Done::default()));
    let _served = site.serve(methods(Arc::clone(&done))).await;
    let name = |text: &str| Name::new(text).unwrap();
    let (user, password) = (Some("ann".into()), Some("ann".to_owned().into()));
    let bus = BusConfig { user, password, ..BusConfig::open(&server.url()) };
    let credentials = Credentials::new(name("test"), name("ann"), agent_key("ann"), bus);
    let client = Client::builder(credentials.token(site.token("ann", &["worker"])));
    let client = within(SOON, client.connect()).await.unwrap();
    let items = client.request("site").window(8).stream::<u64>("site/count", json!({ "to": 500, "pause_ms": 1 }));
    let error = within(SOON, items.finish::<()>()).await.unwrap_err();
    assert!(matches!(error, ClientError::Forbidden { sent: true, .. }), "{error:?}");
    assert!(done.made.load(Ordering::SeqCst) > 0 && error.is_outcome_unknown(), "{error}");
}

#[tokio::test]
async fn open_streams_are_bounded_and_options_checked() {
    let mut server = NatsServer::start().await;
    let site = Site::new(&server.url());
    let client = connect(&site, &server, "ann").await;
    server.kill().await;
    eventually("the client knows", || !client.stats().connected).await;
    let mut open: Vec<_> = (0..256).map(|_| client.stream::<()>("site", "site/add", ())).collect();
    assert_eq!(client.stats().streams, 256);
    let error = within(SOON, client.stream::<()>("site", "site/add", ()).finish::<()>()).await.unwrap_err();
    assert!(matches!(error, ClientError::TooManyStreams { limit: 256 }), "{error:?}");
    open.pop();
    eventually("there is room", || client.stats().streams == 255).await;
    for (request, kind) in [
        (client.request("site").window(0), ErrorKind::Invalid),
        (client.request("site").window(1025), ErrorKind::Invalid),
        (client.request("no name").window(1), ErrorKind::Invalid),
        // Enough for checking the token, also on a busy machine.
        (client.request("site").deadline(Duration::from_secs(2)), ErrorKind::Disconnected),
    ] {
        let error = within(SOON, request.stream::<()>("site/add", ()).finish::<()>()).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
    }
    let short = client.request("site").lease(Duration::from_secs(1)).subscribe::<()>("site/ticks", ());
    let error = within(SOON, short.finish::<()>()).await.unwrap_err();
    assert!(error.to_string().contains("a lease of 1000 ms"), "{error}");
}
