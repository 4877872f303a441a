//! Streams over a real nats-server: in order, stopped in time, complete even if the broker was gone, and ended with the service
//! (SPEC.md §25).
//!
//! Where each row of "what the caller sees" (§25.5) is tested; paths are relative to `streams` unless they name another module:
//!
//! | event | test |
//! |---|---|
//! | the replica dies | `client::streams::a_stream_whose_replica_dies_is_lost_after_twenty_seconds` |
//! | a node of the broker dies | `cluster::a_hundred_thousand_items_outlive_…`, `a_stream_goes_on_after_the_broker_was_gone`, `client::streams::a_stream_goes_on_after_its_broker_was_killed` |
//! | the caller dies | `seen::the_subscription_of_a_caller_that_died_ends_with_its_lease` |
//! | a rolling restart | `seen::a_rolling_restart_ends_no_stream_and_subscribers_subscribe_again`, `a_service_that_stops_finishes_streams_…` |
//! | forged, changed or foreign frames | `client::streams::forged_foreign_and_repeated_frames_…`, `seen::an_end_whose_digest_does_not_hold_is_no_end` |
//! | frames repeated, or in another order | `seen::frames_that_come_in_another_order_and_repeatedly_change_nothing` |
//! | gaps that close | `seen::frames_that_get_lost_once_come_again` |
//! | frames cut out of the middle, or off the end | `seen::a_stream_that_somebody_cuts_is_lost_wherever_it_was_cut` |
//! | beats repeated after the service died | `seen::signs_of_life_that_are_repeated_do_not_keep_a_dead_stream_alive` |
//! | all copies of the request repeated | `seen::copies_of_the_request_and_of_all_control_change_nothing` |
//! | control repeated | the same |
//! | control by somebody else, or with an old counter | `seen::control_by_another_agent_or_with_an_old_counter_has_no_effect` |
//! | a caller that takes too slowly | `seen::a_caller_that_takes_nothing_for_half_a_minute_is_told_so` |
//! | a policy that changes | `a_policy_file_that_changes_ends_what_it_forbids` |

mod cluster;
pub(crate) mod memory;
mod seen;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use async_nats::HeaderMap;
use futures_util::{StreamExt as _, stream};
use sealwire::internal::wire::{
    Accepted, ControlOp, Expectation, FrameKind, FrameReceiver, HeaderBlock, Received, RequestSigner, Signed,
    SignedControl, Taken,
};
use sealwire::{Clock as _, Ctx, Name, Router, RpcError, ServeError, SystemClock};
use sealwire_testkit::site::{Answer, Site, agent_key, methods, signed_now, write};
use sealwire_testkit::{NatsServer, SOON, settle, within};
use serde_json::{Value, json};

/// When the method learned that it was cancelled, in microseconds since the start of the test.
type Noticed = Arc<AtomicU64>;

fn router(began: Instant) -> (Router<Noticed>, Noticed) {
    let noticed = Noticed::default();
    let router = Router::new(Arc::clone(&noticed))
        .stream("site/count", |_: Ctx<Noticed>, (to, pause_us): (u64, u64)| async move {
            Ok::<_, RpcError>(stream::iter(1..=to).then(move |number| async move {
                if pause_us > 0 {
                    tokio::time::sleep(Duration::from_micros(pause_us)).await;
                }
                Ok::<_, RpcError>(number)
            }))
        })
        .method("site/wait", move |ctx: Ctx<Noticed>, (): ()| async move {
            ctx.cancelled().await;
            ctx.state().store(u64::try_from(began.elapsed().as_micros()).unwrap(), Ordering::SeqCst);
            Ok::<_, RpcError>(())
        })
        .subscription("site/ticks", |_: Ctx<Noticed>, (): ()| async move {
            Ok::<_, RpcError>(stream::unfold(0_u64, |tick| async move {
                tokio::time::sleep(Duration::from_millis(20)).await;
                Some((Ok::<_, RpcError>([tick]), tick + 1))
            }))
        });
    (router, noticed)
}

/// One call, below the level of the client library.
struct Call {
    client: async_nats::Client,
    signer: RequestSigner,
    token: String,
    site: Arc<Site>,
    inbox: async_nats::Subscriber,
    expectation: Expectation,
    receiver: FrameReceiver,
    window: u64,
    acked: u64,
    counter: u64,
}

impl Call {
    async fn begin(site: &Arc<Site>, client: &async_nats::Client, method: &str, params: &str, window: u64) -> Self {
        let ann = Name::new("ann").unwrap();
        let signer = RequestSigner::new(&agent_key("ann"), site.endpoint.audience().clone(), vec![]).unwrap();
        let reply = format!("{}{}", site.endpoint.inbox(&ann), sealwire::internal::wire::Nonce::random().to_text());
        let inbox = client.subscribe(reply.clone()).await.unwrap();
        let (subject, token) = (site.endpoint.subject(&ann), site.token("ann", &["worker"]));
        let payload = format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{params},"id":1}}"#);
        let signed = signer.sign(&Signed {
            timeout_ms: Some(60_000),
            window: Some(window),
            ..signed_now(&subject, &reply, payload.as_bytes(), &token)
        });
        let mut headers = HeaderMap::new();
        headers.insert("Authorization", signed.authorization.as_str());
        client.publish_with_reply_and_headers(subject, reply, headers, payload.into()).await.unwrap();
        let receiver = FrameReceiver::new(&signed.expectation, window, 1 << 20);
        let expectation = signed.expectation;
        let (client, site) = (client.clone(), Arc::clone(site));
        Self { client, signer, token, site, inbox, expectation, receiver, window, acked: 0, counter: 0 }
    }

    /// The next frames, in order; everything is acknowledged.
    async fn next(&mut self) -> Vec<Received> {
        loop {
            // A caller that hears nothing asks again for what it may have missed.
            let message = match tokio::time::timeout(Duration::from_secs(3), self.inbox.next()).await {
                Ok(message) => message.unwrap(),
                Err(_) => {
                    self.control(&ControlOp::Again { ack: self.receiver.last() }).await;
                    continue;
                }
            };
            let headers = HeaderBlock::from(&message.headers.unwrap_or_default());
            let accepted = self.expectation.accept_any(&message.subject, &headers, &message.payload).unwrap();
            let Accepted::Frame(claims) = accepted else { panic!("{:?}", message.payload) };
            match self.receiver.take(claims, message.payload).unwrap() {
                Taken::Next(frames) => {
                    let last = self.receiver.last().unwrap();
                    if last >= self.acked + self.window / 2 {
                        self.acked = last;
                        self.receiver.allow(last + self.window);
                        self.control(&ControlOp::Ack { ack: last, window: None, timeout_ms: None }).await;
                    }
                    return frames;
                }
                Taken::Gap => self.control(&ControlOp::Again { ack: self.receiver.last() }).await,
                Taken::Alive | Taken::Repeated => {}
            }
        }
    }

    async fn control(&mut self, op: &ControlOp) {
        self.counter += 1;
        let replica = self.receiver.replica().map(|replica| Name::new(replica).unwrap());
        let ann = Name::new("ann").unwrap();
        let subject = self.site.endpoint.control_subject(&ann, replica.as_ref(), self.expectation.message_id());
        let authorization = self.signer.sign_control(&SignedControl {
            subject: &subject,
            payload: b"",
            token: &self.token,
            now_ms: SystemClock.now_ms(),
            valid_s: 30,
            call: &self.expectation,
            counter: self.counter,
            op,
        });
        let mut headers = HeaderMap::new();
        headers.insert("Authorization", authorization.as_str());
        self.client.publish_with_headers(subject, headers, "".into()).await.unwrap();
    }

    /// Everything up to the end: the numbers in the items, and the last response.
    async fn rest(&mut self) -> (Vec<u64>, Value) {
        let (mut numbers, mut last) = (Vec::new(), Value::Null);
        while !self.receiver.is_ended() {
            for frame in within(SOON, self.next()).await {
                match frame.kind {
                    FrameKind::Item => numbers.extend(numbers_of(&frame)),
                    FrameKind::End => last = serde_json::from_slice(&frame.payload).unwrap(),
                    _ => {}
                }
            }
        }
        (numbers, last)
    }
}

fn numbers_of(frame: &Received) -> Vec<u64> {
    let items = match serde_json::from_slice(&frame.payload).unwrap() {
        Value::Array(items) => items,
        one => vec![one],
    };
    items.iter().map(|item| item["result"].as_u64().unwrap()).collect()
}

/// SPEC.md §25: every item, in order, and the digest over all of them holds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_comes_whole_and_in_order() {
    let server = NatsServer::start().await;
    let site = Arc::new(Site::new(&server.url()));
    let served = site.serve(router(Instant::now()).0).await;
    let client = server.client().await;
    let began = Instant::now();
    let mut call = Call::begin(&site, &client, "site/count", "[20000,0]", 32).await;
    let (numbers, last) = call.rest().await;
    println!("20,000 items in {:?}", began.elapsed());
    assert_eq!(numbers, (1..=20_000).collect::<Vec<_>>());
    assert_eq!(last["result"], Value::Null);
    served.stop().await.unwrap();
}

/// SPEC.md §25: frames that the caller missed while the broker was gone are sent again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_goes_on_after_the_broker_was_gone() {
    let mut server = NatsServer::start().await;
    let site = Arc::new(Site::new(&server.url()));
    let served = site.serve(router(Instant::now()).0).await;
    let client = server.client().await;
    let mut call = Call::begin(&site, &client, "site/count", "[2000,1000]", 64).await;
    let mut numbers = Vec::new();
    while numbers.len() < 200 {
        numbers.extend(call.next().await.iter().filter(|frame| frame.kind == FrameKind::Item).flat_map(numbers_of));
    }
    server.restart().await;
    let (rest, last) = call.rest().await;
    numbers.extend(rest);
    assert_eq!(numbers, (1..=2_000).collect::<Vec<_>>());
    assert_eq!(last["result"], Value::Null);
    served.stop().await.unwrap();
}

/// SPEC.md §25.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancel_reaches_the_method() {
    let server = NatsServer::start().await;
    let site = Arc::new(Site::new(&server.url()));
    let began = Instant::now();
    let (router, noticed) = router(began);
    let served = site.serve(router).await;
    let client = server.client().await;
    let mut took = Vec::new();
    for _ in 0..50 {
        let mut call = Call::begin(&site, &client, "site/wait", "[]", 4).await;
        let opened = within(SOON, call.next()).await;
        assert_eq!(opened[0].kind, FrameKind::Open);
        let asked = u64::try_from(began.elapsed().as_micros()).unwrap();
        call.control(&ControlOp::Cancel).await;
        let (_, last) = call.rest().await;
        assert_eq!(last["error"]["code"], -32016);
        took.push(noticed.load(Ordering::SeqCst).saturating_sub(asked));
    }
    took.sort_unstable();
    println!("from the caller's cancel to the method, in µs: median {}, largest of 50 {}", took[25], took[49]);
    assert!(took[25] < 1_000_000);
    served.stop().await.unwrap();
}

/// SPEC.md §25: within a second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_file_that_changes_ends_what_it_forbids() {
    let server = NatsServer::start().await;
    let site = Arc::new(Site::new(&server.url()));
    let served = site.serve(router(Instant::now()).0).await;
    let client = server.client().await;
    let mut ticks = Call::begin(&site, &client, "site/ticks", "[]", 32).await;
    let mut count = Call::begin(&site, &client, "site/count", "[100,10000]", 32).await;
    within(SOON, ticks.next()).await;
    write(&site.path("policies/policy.toml"), "[role.worker]\nallow = [\"site/*\"]\ndeny = [\"site/ticks\"]\n");
    let changed = Instant::now();
    let (_, last) = ticks.rest().await;
    println!("ended {:?} after the file had changed", changed.elapsed());
    assert_eq!((&last["error"]["code"], &last["error"]["data"]), (&json!(-32002), &json!({ "outcome": "unknown" })));
    assert_eq!(count.rest().await.0.len(), 100, "what is still allowed goes on");
    served.stop().await.unwrap();
}

/// SPEC.md §25: streams finish while the service drains, and can still be controlled; subscriptions end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_that_stops_finishes_streams_and_ends_subscriptions() {
    let server = NatsServer::start().await;
    let site = Arc::new(Site::new(&server.url()));
    let served = site.serve(router(Instant::now()).0).await;
    let client = server.client().await;
    let mut ticks = Call::begin(&site, &client, "site/ticks", "[]", 32).await;
    let mut count = Call::begin(&site, &client, "site/count", "[300,10000]", 8).await;
    within(SOON, ticks.next()).await;
    within(SOON, count.next()).await;
    let stopped = tokio::spawn(served.stop());
    assert_eq!(ticks.rest().await.1["result"]["closed"], "draining");
    let (numbers, last) = count.rest().await;
    assert_eq!((numbers.len(), &last["result"]), (300, &Value::Null), "its window was moved all the time");
    within(SOON, stopped).await.unwrap().unwrap();
}

/// SPEC.md §15.1: idle subscriptions do not count among the messages that a replica handles concurrently, but a stopping replica
/// still waits for them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_subscriptions_leave_the_places_of_calls() {
    let server = NatsServer::start().await;
    let site = Arc::new(Site::new(&server.url()));
    site.write_config("[limits]\nin_flight = 4\nagent_in_flight = 4\n");
    let served = site.serve(router(Instant::now()).0.method("site/echo", echo)).await;
    let client = server.client().await;
    let mut open = Vec::new();
    for _ in 0..12 {
        let mut ticks = Call::begin(&site, &client, "site/ticks", "[]", 1_000).await;
        within(SOON, ticks.next()).await;
        open.push(ticks);
    }
    let caller = site.caller("ann").await;
    let answer = caller.call("site/echo", "[7]", SOON).await;
    assert_eq!(answer, Answer::Signed(r#"{"jsonrpc":"2.0","result":7,"id":1}"#.to_owned()));
    let stopped = tokio::spawn(served.stop());
    for ticks in &mut open {
        assert_eq!(ticks.rest().await.1["result"]["closed"], "draining");
    }
    within(SOON, stopped).await.unwrap().unwrap();
}

async fn echo(_: Ctx<Noticed>, (number,): (u64,)) -> Result<u64, RpcError> {
    Ok(number)
}

const BROKER: &str = r#"authorization { users = [
  { user: site, password: site, permissions: {
      publish: ["_INBOX.>", "_SVC.site.replica.>"], subscribe: ["rpc.v1.site.>", "_SVC.site.replica.>", "$SRV.>"] } }
] }"#;

/// SPEC.md §19.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_that_may_not_hear_control_says_what_to_permit() {
    let server = NatsServer::start_with(BROKER).await;
    let error = Site::logging_in_as(&server.url(), "site").start(methods()).await.ended().await.unwrap_err();
    assert!(matches!(error, ServeError::Subscribe(_)), "{error}");
    assert!(error.to_string().contains("`rpc.v1-ctl.site.*."), "{error}");
}

/// SPEC.md §25: a control message for a call that is not under way costs only a look at its subject, however many there are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn control_of_unknown_calls_holds_nobody_up() {
    let server = NatsServer::start().await;
    let site = Arc::new(Site::new(&server.url()));
    let served = site.serve(router(Instant::now()).0).await;
    let (client, flood) = (server.client().await, server.client().await);
    for _ in 0..20_000 {
        flood.publish("rpc.v1-ctl.site.ann.all.AAECAwQFBgcICQoLDA0ODw", "x".into()).await.unwrap();
    }
    settle(&flood).await;
    let mut call = Call::begin(&site, &client, "site/count", "[100,0]", 32).await;
    assert_eq!(within(SOON, call.rest()).await.0.len(), 100);
    served.stop().await.unwrap();
}
