//! What the caller sees (SPEC.md §25.5) of brokers, replicas and callers that die, and of a man in the middle who changes, holds
//! back, repeats and reorders messages. The table at the head of `streams.rs` has all rows.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_nats::{HeaderMap, Message};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures_util::future::join_all;
use futures_util::{Stream, StreamExt as _, stream};
use hmac::{Hmac, KeyInit as _, Mac as _};
use sealwire::errors::StreamLoss;
use sealwire::internal::wire::{
    Accepted, ControlOp, FrameFault, FrameKind, HeaderBlock, RequestSigner, SignedControl, Taken,
};
use sealwire::{
    BusConfig, CallStream, Client, ClientError, Clock as _, Credentials, Ctx, Name, Router, RpcError, Subscription,
    SystemClock,
};
use sealwire_testkit::site::{Served, Site, agent_key};
use sealwire_testkit::{NatsServer, SOON, settle, within};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::Call;

/// Longer than a caller waits for a sign of life, even on a busy machine.
const LOST: Duration = Duration::from_secs(60);

/// How many methods have ended, in whatever way.
type Ended = Arc<AtomicUsize>;

struct Running(Ended);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn numbers(ended: &Ended, to: u64, pause_ms: u64) -> impl Stream<Item = Result<u64, RpcError>> + use<> {
    let running = Arc::new(Running(Arc::clone(ended)));
    stream::iter(1..=to).then(move |number| {
        let _running = Arc::clone(&running);
        async move {
            tokio::time::sleep(Duration::from_millis(pause_ms)).await;
            Ok(number)
        }
    })
}

fn methods(ended: &Ended) -> Router<Ended> {
    Router::new(Arc::clone(ended))
        .stream("site/count", |ctx: Ctx<Ended>, (to, pause_ms): (u64, u64)| async move {
            Ok::<_, RpcError>(numbers(ctx.state(), to, pause_ms))
        })
        // One item, and then nothing for a long time.
        .stream("site/once", |ctx: Ctx<Ended>, (): ()| async move {
            Ok::<_, RpcError>(numbers(ctx.state(), 1, 0).chain(numbers(ctx.state(), 2, 300_000)))
        })
        .subscription("site/ticks", |ctx: Ctx<Ended>, (): ()| async move {
            Ok::<_, RpcError>(numbers(ctx.state(), u64::MAX, 20).map(|tick| tick.map(|tick| [tick])))
        })
}

/// Waits until a method has ended; there is only one.
async fn ended_once(ended: &Ended) {
    within(SOON, async {
        while ended.load(Ordering::SeqCst) == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    assert_eq!(ended.load(Ordering::SeqCst), 1);
}

async fn connect(site: &Site, url: &str) -> Client {
    let name = |text: &str| Name::new(text).unwrap();
    let credentials = Credentials::new(name("test"), name("ann"), agent_key("ann"), BusConfig::open(url));
    let client = Client::builder(credentials.token(site.token("ann", &["worker"]))).deadline(Duration::from_secs(300));
    within(SOON, client.connect()).await.unwrap()
}

/// What to deliver instead of a frame; the second argument is the claims of its proof.
type Deed = Box<dyn FnMut(Message, &Value) -> Vec<Message> + Send>;

/// Two brokers, with the caller at one and the service at the other, and a carrier of all messages in between.
struct Between {
    near: NatsServer,
    _far: NatsServer,
    /// The folder with the service's files.
    _site: Site,
    served: Served,
    client: Client,
    ended: Ended,
    carriers: Vec<JoinHandle<()>>,
}

impl Between {
    /// Delivers each request and each control message this many times.
    async fn open(copies: usize, mut deed: Deed) -> Self {
        let (near, far) = (NatsServer::start().await, NatsServer::start().await);
        let (site, ended) = (Site::new(&far.url()), Ended::default());
        let served = site.serve(methods(&ended)).await;
        let (near_end, far_end) = (near.client().await, far.client().await);
        let requests = near_end.subscribe("rpc.v1.>").await.unwrap();
        let control = near_end.subscribe("rpc.v1-ctl.>").await.unwrap();
        let mut frames = far_end.subscribe("_INBOX.ann.>").await.unwrap();
        settle(&near_end).await;
        settle(&far_end).await;
        let to_service = tokio::spawn({
            let far_end = far_end.clone();
            async move {
                let mut both = stream::select(requests, control);
                while let Some(message) = both.next().await {
                    for _ in 0..copies {
                        let (subject, payload) = (message.subject.clone(), message.payload.clone());
                        let headers = message.headers.clone().unwrap_or_default();
                        match message.reply.clone() {
                            Some(reply) => {
                                far_end.publish_with_reply_and_headers(subject, reply, headers, payload).await
                            }
                            None => far_end.publish_with_headers(subject, headers, payload).await,
                        }
                        .unwrap();
                    }
                }
            }
        });
        let to_caller = tokio::spawn(async move {
            while let Some(message) = frames.next().await {
                let claims = claims(&message);
                for Message { subject, headers, payload, .. } in deed(message, &claims) {
                    // The caller's broker may be gone.
                    let _ = near_end.publish_with_headers(subject, headers.unwrap_or_default(), payload).await;
                }
            }
        });
        let client = connect(&site, &near.url()).await;
        Self { near, _far: far, _site: site, served, client, ended, carriers: vec![to_service, to_caller] }
    }

    fn count(&self, to: u64, pause_ms: u64) -> CallStream<u64> {
        self.client.request("site").deadline(Duration::from_secs(200)).stream("site/count", (to, pause_ms))
    }

    async fn close(self) {
        self.served.stop().await.unwrap();
        self.carriers.iter().for_each(JoinHandle::abort);
    }
}

/// The claims of the proof of a frame or an answer.
fn claims(message: &Message) -> Value {
    let part = |proof: &str| URL_SAFE_NO_PAD.decode(proof.split('.').nth(1)?).ok();
    let proof = message.headers.as_ref().and_then(|headers| headers.get("Authentication-Info"));
    let claims = proof.and_then(|proof| part(proof.as_str())).map(|claims| serde_json::from_slice(&claims).unwrap());
    claims.unwrap_or_default()
}

fn is(claims: &Value, kind: &str) -> bool {
    claims["knd"] == kind
}

async fn whole(mut items: CallStream<u64>, from: u64, to: u64) {
    for expected in from..=to {
        let item = within(LOST, items.next()).await.expect("there are more");
        assert_eq!(item.unwrap_or_else(|error| panic!("after {expected}: {error}")), expected);
    }
    assert!(within(LOST, items.next()).await.is_none());
    within(SOON, items.finish::<()>()).await.unwrap_or_else(|error| panic!("{error}"));
}

/// The numbers that the client handed on, and the error after them.
async fn broken(mut items: CallStream<u64>) -> (Vec<u64>, ClientError) {
    let mut taken = Vec::new();
    loop {
        match within(LOST, items.next()).await.expect("an error comes last") {
            Ok(number) => taken.push(number),
            Err(error) => return (taken, error),
        }
    }
}

/// SPEC.md §25.5.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frames_that_come_in_another_order_and_repeatedly_change_nothing() {
    let mut held: Option<Message> = None;
    let between = Between::open(
        1,
        Box::new(move |message, _| match held.take() {
            // Each pair in reverse order, and one of the two twice.
            Some(before) => vec![message, before.clone(), before],
            None => {
                held = Some(message);
                Vec::new()
            }
        }),
    )
    .await;
    // The last frame may be held back for good: it comes when it is asked for again.
    whole(between.count(300, 1), 1, 300).await;
    let stats = between.client.stats();
    assert!(stats.late > 0 && stats.frames_refused == 0, "{stats:?}");
    between.close().await;
}

/// SPEC.md §25.5, SPEC.md §25.4.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frames_that_get_lost_once_come_again() {
    let mut lost = HashSet::new();
    let between = Between::open(
        1,
        Box::new(move |message, claims| {
            let (seq, first) = (claims["seq"].as_u64().unwrap_or(0), is(claims, "open") || is(claims, "end"));
            let goes = !(first || seq % 7 == 3) || !lost.insert((message.subject.to_string(), seq));
            if goes { vec![message] } else { Vec::new() }
        }),
    )
    .await;
    whole(between.count(200, 1), 1, 200).await;
    assert_eq!(between.client.stats().frames_refused, 0);
    between.close().await;
}

/// SPEC.md §25.5: copies of the request draw refusals, copies of control draw nothing, and neither affects the stream.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_of_the_request_and_of_all_control_change_nothing() {
    let answers = Arc::new(AtomicUsize::new(0));
    let drawn = Arc::clone(&answers);
    let between = Between::open(
        3,
        Box::new(move |message, claims| {
            drawn.fetch_add(usize::from(claims["seq"].is_null()), Ordering::SeqCst);
            vec![message]
        }),
    )
    .await;
    whole(between.count(300, 1), 1, 300).await;
    // Each copy is refused, not necessarily before the stream ends.
    within(SOON, async {
        while answers.load(Ordering::SeqCst) < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    ended_once(&between.ended).await;
    between.close().await;
}

/// SPEC.md §25.5.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_somebody_cuts_is_lost_wherever_it_was_cut() {
    let cut = |goes: fn(&Value) -> bool| -> Deed {
        Box::new(move |message, claims| if goes(claims) { vec![message] } else { Vec::new() })
    };
    let middle = Between::open(1, cut(|claims| claims["seq"] != 3)).await;
    let end = Between::open(1, cut(|claims| !is(claims, "end"))).await;
    let began = Instant::now();
    let (of_middle, of_end) = tokio::join!(broken(middle.count(20, 5)), broken(end.count(20, 5)));
    println!("given up after {:.1?}", began.elapsed());
    let (taken, error) = of_middle;
    let gap = matches!(&error, ClientError::StreamLost { last_seq: Some(2), why: StreamLoss::Gap, .. });
    assert!(gap && error.is_outcome_unknown(), "{error:?}");
    assert!(taken.iter().copied().eq(1..=taken.len() as u64) && taken.len() < 20, "{taken:?}");
    let (taken, error) = of_end;
    let silence = matches!(&error, ClientError::StreamLost { why: StreamLoss::Silence, .. });
    assert!(silence && error.is_outcome_unknown(), "{error:?}");
    assert!(taken.into_iter().eq(1..=20), "all that was handed on is true");
    middle.close().await;
    end.close().await;
}

/// SPEC.md §25.5: anybody may have kept an earlier sign of life.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn signs_of_life_that_are_repeated_do_not_keep_a_dead_stream_alive() {
    let kept: Arc<Mutex<Option<Message>>> = Arc::default();
    let keeping = Arc::clone(&kept);
    let between = Between::open(
        1,
        Box::new(move |message, claims| {
            if is(claims, "beat") {
                *keeping.lock().unwrap() = Some(message.clone());
            }
            vec![message]
        }),
    )
    .await;
    let mut items = between.client.request("site").deadline(Duration::from_secs(200)).stream::<u64>("site/once", ());
    assert_eq!(within(SOON, items.next()).await.unwrap().unwrap(), 1);
    within(2 * SOON, async {
        while kept.lock().unwrap().is_none() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    let Between { near, served, carriers, .. } = between;
    served.kill().await;
    let Message { subject, headers, .. } = kept.lock().unwrap().take().unwrap();
    let repeating = tokio::spawn(async move {
        let mallory = near.client().await;
        loop {
            mallory.publish_with_headers(subject.clone(), headers.clone().unwrap(), "".into()).await.unwrap();
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    let (began, error) = (Instant::now(), broken(items).await.1);
    println!("given up after {:.1?}", began.elapsed());
    assert!(matches!(&error, ClientError::StreamLost { why: StreamLoss::Silence, .. }), "{error:?}");
    repeating.abort();
    carriers.iter().for_each(JoinHandle::abort);
}

/// SPEC.md §25.4: as if the service, or the client, had miscounted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_end_whose_digest_does_not_hold_is_no_end() {
    // The forger has the key, so that everything else about the frame is valid.
    let endpoint = sealwire::internal::wire::Endpoint::new(Name::new("test").unwrap(), Name::new("site").unwrap());
    let key = *agent_key("ann").derived(endpoint.audience()).unwrap().expose();
    let between = Between::open(
        1,
        Box::new(move |message, claims| {
            if !is(claims, "end") {
                return vec![message];
            }
            let mut claims = claims.clone();
            claims["acc"] = json!(URL_SAFE_NO_PAD.encode([7; 32]));
            let value = message.headers.as_ref().unwrap().get("Authentication-Info").unwrap().as_str();
            let header = value.split_once('.').unwrap().0;
            let head = format!("{header}.{}", URL_SAFE_NO_PAD.encode(claims.to_string()));
            let mut mac = Hmac::<sha2::Sha256>::new_from_slice(&key).unwrap();
            mac.update(head.strip_prefix("NatsRpc ").unwrap().as_bytes());
            let mut headers = HeaderMap::new();
            let signature = URL_SAFE_NO_PAD.encode(mac.finalize().into_bytes());
            headers.insert("Authentication-Info", format!("{head}.{signature}"));
            vec![Message { headers: Some(headers), ..message }]
        }),
    )
    .await;
    let (taken, error) = broken(between.count(20, 1)).await;
    assert!(matches!(&error, ClientError::Frames(FrameFault::Digest)), "{error:?}");
    assert!(error.is_outcome_unknown() && taken.into_iter().eq(1..=20));
    assert_eq!(between.client.stats().frames_refused, 1);
    between.close().await;
}

/// SPEC.md §25.5: nobody renews its lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_subscription_of_a_caller_that_died_ends_with_its_lease() {
    let last: Arc<Mutex<Option<Value>>> = Arc::default();
    let heard = Arc::clone(&last);
    let mut between = Between::open(
        1,
        Box::new(move |message, claims| {
            if is(claims, "end") {
                *heard.lock().unwrap() = Some(serde_json::from_slice(&message.payload).unwrap());
            }
            vec![message]
        }),
    )
    .await;
    // Long enough for a busy machine to renew the lease in time.
    let lease = Duration::from_secs(8);
    let mut ticks = between.client.request("site").lease(lease).subscribe::<[u64; 1]>("site/ticks", ());
    let began = Instant::now();
    while began.elapsed() < lease * 3 / 2 {
        within(SOON, ticks.next()).await.unwrap().unwrap_or_else(|error| panic!("{error}"));
    }
    assert_eq!(between.ended.load(Ordering::SeqCst), 0, "it outlives its lease while somebody holds it");
    // From here on, nothing from the caller arrives.
    between.near.kill().await;
    let died = Instant::now();
    within(LOST, async {
        while last.lock().unwrap().is_none() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    println!("a lease of {lease:?}: ended {:.1?} after the caller had died", died.elapsed());
    assert_eq!(last.lock().unwrap().take().unwrap()["error"]["code"], -32003);
    ended_once(&between.ended).await;
    drop(ticks);
    between.close().await;
}

/// SPEC.md §25.3.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn control_by_another_agent_or_with_an_old_counter_has_no_effect() {
    let server = NatsServer::start().await;
    let site = Arc::new(Site::new(&server.url()));
    let served = site.serve(methods(&Ended::default())).await;
    let client = server.client().await;
    let mut call = Call::begin(&site, &client, "site/count", "[300,5]", 32).await;
    while call.acked == 0 {
        within(SOON, call.next()).await;
    }
    let newest = call.counter;
    // Ann's own cancel, with a counter that was used before.
    call.counter = newest - 1;
    call.control(&ControlOp::Cancel).await;
    call.counter = newest;
    // Bob's cancel, on ann's subject and on his own.
    let bob = RequestSigner::new(&agent_key("bob"), site.endpoint.audience().clone(), vec![]).unwrap();
    let replica = Name::new(call.receiver.replica().unwrap()).unwrap();
    for owner in ["ann", "bob"] {
        let id = call.expectation.message_id();
        let subject = site.endpoint.control_subject(&Name::new(owner).unwrap(), Some(&replica), id);
        let authorization = bob.sign_control(&SignedControl {
            subject: &subject,
            payload: b"",
            token: &site.token("bob", &["worker"]),
            now_ms: SystemClock.now_ms(),
            valid_s: 30,
            call: &call.expectation,
            counter: newest + 1_000,
            op: &ControlOp::Cancel,
        });
        let mut headers = HeaderMap::new();
        headers.insert("Authorization", authorization.as_str());
        client.publish_with_headers(subject, headers, "".into()).await.unwrap();
    }
    let (numbers, last) = call.rest().await;
    assert_eq!((numbers.last(), &last["result"]), (Some(&300), &Value::Null), "it was not cancelled");
    served.stop().await.unwrap();
}

/// SPEC.md §25.5.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_that_takes_nothing_for_half_a_minute_is_told_so() {
    let server = NatsServer::start().await;
    let (site, ended) = (Arc::new(Site::new(&server.url())), Ended::default());
    let served = site.serve(methods(&ended)).await;
    let client = server.client().await;
    let mut call = Call::begin(&site, &client, "site/count", "[1000,1]", 4).await;
    let began = Instant::now();
    let last = loop {
        let message = within(LOST, call.inbox.next()).await.unwrap();
        let headers = HeaderBlock::from(&message.headers.unwrap_or_default());
        let accepted = call.expectation.accept_any(&message.subject, &headers, &message.payload).unwrap();
        let Accepted::Frame(frame) = accepted else { panic!("{:?}", message.payload) };
        // Nothing is acknowledged.
        if let Taken::Next(mut frames) = call.receiver.take(frame, message.payload).unwrap()
            && let Some(end) = frames.pop().filter(|frame| frame.kind == FrameKind::End)
        {
            break end;
        }
    };
    println!("ended {:.1?} after the call", began.elapsed());
    assert!(began.elapsed() > Duration::from_secs(25), "{:?}", began.elapsed());
    let response: Value = serde_json::from_slice(&last.payload).unwrap();
    assert_eq!((last.seq, &response["error"]["code"]), (5, &json!(-32003)), "the window, and the end: {response}");
    ended_once(&ended).await;
    served.stop().await.unwrap();
}

/// The replica that serves a subscription, from its next tick.
async fn at(ticks: &mut Subscription<[usize; 1]>) -> usize {
    let tick = within(LOST, ticks.next()).await.expect("it goes on");
    tick.unwrap_or_else(|error| panic!("{error}"))[0]
}

/// Starts a replica whose ticks are its number, and waits until it takes calls.
async fn replica(site: &Site, number: usize) -> Served {
    let router = methods(&Ended::default()).subscription("site/replica", move |_: Ctx<Ended>, (): ()| async move {
        Ok::<_, RpcError>(stream::repeat(number).then(|number| async move {
            tokio::time::sleep(Duration::from_millis(20)).await;
            Ok::<_, RpcError>([number])
        }))
    });
    let served = site.start(router).await;
    let mut state = served.running.state();
    drop(within(LOST, state.wait_for(|state| *state == sealwire::serve::State::Ready)).await.unwrap());
    served
}

/// SPEC.md §25.5: two replicas that share a guard, replaced one after the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rolling_restart_ends_no_stream_and_subscribers_subscribe_again() {
    let server = NatsServer::start().await;
    let site = Site::new(&server.url());
    site.write_config("guard = \"shared\"\nanswer_within_ms = 1000\n");
    let mut replicas = vec![replica(&site, 0).await, replica(&site, 1).await];
    let client = connect(&site, &server.url()).await;
    let subscribe = || client.subscribe::<[usize; 1]>("site", "site/replica", ());
    let mut listening: Vec<_> = (0..8).map(|_| subscribe()).collect();
    let mut renewed = 0;
    for stopped in 0..2 {
        let request = client.request("site").deadline(Duration::from_secs(60)).idempotent();
        let mut streams: Vec<_> = (0..8).map(|_| request.clone().stream::<u64>("site/count", (100, 10))).collect();
        for items in &mut streams {
            assert_eq!(within(LOST, items.next()).await.unwrap().unwrap_or_else(|error| panic!("{error}")), 1);
        }
        let places = join_all(listening.iter_mut().map(at)).await;
        let stopping = tokio::spawn(replicas.remove(0).stop());
        let rests = join_all(streams.into_iter().map(|items| whole(items, 2, 100)));
        let moves = join_all(listening.into_iter().zip(places).map(async |(mut ticks, place)| {
            if place != stopped {
                return (ticks, false);
            }
            while let Some(tick) = within(LOST, ticks.next()).await {
                tick.unwrap_or_else(|error| panic!("{error}"));
            }
            assert_eq!(within(SOON, ticks.finish::<Value>()).await.unwrap(), json!({ "closed": "draining" }));
            let mut ticks = subscribe();
            assert_eq!(at(&mut ticks).await, 1 - stopped);
            (ticks, true)
        }));
        let (_, moved) = tokio::join!(rests, moves);
        within(LOST, stopping).await.unwrap().unwrap();
        renewed += moved.iter().filter(|(_, moved)| *moved).count();
        listening = moved.into_iter().map(|(ticks, _)| ticks).collect();
        assert!(join_all(listening.iter_mut().map(at)).await.into_iter().all(|place| place == 1 - stopped));
        replicas.push(replica(&site, stopped).await);
    }
    println!("{renewed} subscriptions were made anew");
    assert!(renewed >= 8, "each had to move");
    drop(listening);
    for served in replicas {
        served.stop().await.unwrap();
    }
}
