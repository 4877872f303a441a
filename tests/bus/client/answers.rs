//! What can arrive in place of an answer: unsigned, forged, altered, late or misdirected. None of it is ever a result.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use async_nats::{HeaderMap, Message};
use futures_util::future::join_all;
use sealwire::errors::{ErrorKind, HintKind};
use sealwire::internal::wire::Unverifiable;
use sealwire::serve::Delivery;
use sealwire::{Client, ClientError, ManualClock, RpcError};

use super::{Stage, at_deadline, eventually};
use sealwire_testkit::desk::NOW;
use sealwire_testkit::raw::RawConnection;
use sealwire_testkit::{SOON, publish, within};

const LIE: &str = r#"{"jsonrpc":"2.0","result":666,"id":1}"#;
const SIGNATURE: &str = "Authentication-Info";

/// Passes the service's answer to `lie`, and sends what that returns instead.
async fn with_liar<F>(stage: &Stage, lie: F) -> super::Serving
where
    F: Fn(&Message, &HeaderMap, &[u8]) -> Vec<(String, HeaderMap, Vec<u8>)> + Send + Sync + 'static,
{
    let service = stage.desk.service.clone();
    let lie = Arc::new(lie);
    stage
        .answer_with(None, move |bus, message| {
            let (service, lie) = (service.clone(), Arc::clone(&lie));
            async move {
                let copy = Message { ..message.clone() };
                let Some(sealed) = service.handle(Delivery::from(message)).await else { return };
                let none = HeaderMap::new();
                let messages = lie(&copy, sealed.headers().unwrap_or(&none), sealed.payload());
                for (subject, headers, payload) in messages {
                    bus.publish_with_headers(subject, headers, payload.into()).await.unwrap();
                }
            }
        })
        .await
}

fn reply(message: &Message) -> String {
    message.reply.as_ref().unwrap().to_string()
}

fn signed(headers: &HeaderMap) -> String {
    headers.get(SIGNATURE).unwrap().as_str().to_owned()
}

fn header(name: &str, value: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(name, value);
    headers
}

/// SPEC.md §12.
#[tokio::test]
async fn forged_answers_are_never_results() {
    type Lie = fn(&Message, &HeaderMap, &[u8]) -> Vec<(String, HeaderMap, Vec<u8>)>;
    let cases: [(&str, Lie, Unverifiable); 6] = [
        ("unsigned", |m, _, _| vec![(reply(m), HeaderMap::new(), LIE.into())], Unverifiable::Unsigned),
        ("another payload", |m, h, _| vec![(reply(m), h.clone(), LIE.into())], Unverifiable::Payload),
        (
            "signed twice",
            |m, h, p| {
                let mut headers = h.clone();
                headers.append("authentication-info", signed(h).as_str());
                vec![(reply(m), headers, p.to_vec())]
            },
            Unverifiable::Repeated,
        ),
        (
            "a broken signature",
            |m, h, p| {
                let value = signed(h);
                let (input, mac) = value.rsplit_once('.').unwrap();
                let mac = format!("{}{}", if mac.starts_with('A') { 'B' } else { 'A' }, &mac[1..]);
                vec![(reply(m), header(SIGNATURE, &format!("{input}.{mac}")), p.to_vec())]
            },
            Unverifiable::Signature,
        ),
        (
            "a signature that is none",
            |m, _, p| vec![(reply(m), header(SIGNATURE, "NatsRpc a.b"), p.to_vec())],
            Unverifiable::Malformed,
        ),
        (
            "a hint with a signature header",
            |m, _, _| {
                let hint = r#"{"jsonrpc":"2.0","error":{"code":-32010,"message":"unauthenticated"},"id":null}"#;
                vec![(reply(m), header("AUTHENTICATION-INFO", "NatsRpc x"), hint.into())]
            },
            Unverifiable::Malformed,
        ),
    ];
    for agent in ["ann", "eve"] {
        for (what, lie, reason) in cases {
            let stage = Stage::open().await;
            // First the lie alone: it is reported for what it is, but only at the deadline.
            let serving = with_liar(&stage, lie).await;
            let client = stage.client(agent).await;
            let call = async |deadline| client.request("desk").deadline(deadline).call::<i64>("desk/add", (1, 2)).await;
            let error = at_deadline(call).await;
            assert!(matches!(error, ClientError::Unverifiable(found) if found == reason), "{what}: {error:?}");
            assert!(error.is_outcome_unknown());
            assert_eq!(client.stats().unverifiable, 1, "{what}");
            drop(serving);
            // Then the lie before the truth: the truth is the result.
            let _serving = with_liar(&stage, move |m, h, p| {
                let mut all = lie(m, h, p);
                all.push((reply(m), h.clone(), p.to_vec()));
                all
            })
            .await;
            let call = client.request("desk").call::<i64>("desk/add", (1, 2));
            assert_eq!(within(SOON, call).await.unwrap(), 3, "{what}");
        }
    }
}

/// SPEC.md §12.
#[tokio::test]
async fn answer_to_another_call_is_no_answer() {
    let stage = Stage::open().await;
    // Every answer also goes to the first caller's reply subject, and then to the second's.
    let first = Arc::new(std::sync::Mutex::new(None::<(HeaderMap, Vec<u8>)>));
    let _serving = with_liar(&stage, move |m, h, p| {
        let mut first = first.lock().unwrap();
        let stale = first.get_or_insert_with(|| (h.clone(), p.to_vec())).clone();
        vec![(reply(m), stale.0, stale.1)]
    })
    .await;
    let client = stage.client("ann").await;
    let call = async |n: i64, deadline| client.request("desk").deadline(deadline).call::<i64>("desk/add", (n, n)).await;
    assert_eq!(within(2 * SOON, call(1, SOON)).await.unwrap(), 2);
    let error = at_deadline(async |deadline| call(2, deadline).await).await;
    assert!(matches!(error, ClientError::Unverifiable(Unverifiable::Subject)), "{error:?}");
}

#[tokio::test]
async fn answer_on_another_subject_reaches_nobody() {
    let stage = Stage::open().await;
    let _serving = with_liar(&stage, |m, h, p| {
        let reply = reply(m);
        let connection = reply.rsplit_once('.').unwrap().0;
        vec![(format!("{connection}.somebody"), h.clone(), p.to_vec())]
    })
    .await;
    let client = stage.client("ann").await;
    let call = client.request("desk").deadline(Duration::from_millis(300)).call::<i64>("desk/add", (1, 2));
    assert_eq!(within(SOON, call).await.unwrap_err().kind(), ErrorKind::Timeout);
    // On a busy machine, it may come after the deadline.
    eventually("it came", || client.stats().late == 1).await;
}

/// SPEC.md §13.
#[tokio::test]
async fn hints_end_the_call_at_once_and_only_their_exact_bytes_do() {
    let stage = Stage::open().await;
    let hints = [
        (
            HintKind::Unauthenticated,
            r#"{"jsonrpc":"2.0","error":{"code":-32010,"message":"unauthenticated"},"id":null}"#,
        ),
        (HintKind::Overloaded, r#"{"jsonrpc":"2.0","error":{"code":-32014,"message":"overloaded"},"id":null}"#),
        (HintKind::TooLarge, r#"{"jsonrpc":"2.0","error":{"code":-32015,"message":"too large"},"id":null}"#),
    ];
    let client = stage.client("ann").await;
    for (kind, text) in hints {
        let serving = stage
            .answer_with(None, move |bus, message| async move {
                bus.publish(message.reply.unwrap(), text.into()).await.unwrap();
            })
            .await;
        let error = within(SOON, client.call::<()>("desk", "desk/count", ())).await.unwrap_err();
        assert!(matches!(error, ClientError::Hint { hint } if hint == kind), "{error:?}");
        assert!(error.is_outcome_unknown() && error.to_string().contains(&kind.code().to_string()), "{error}");
        drop(serving);
        for other in [text.replace(',', ", "), text.replace("null", "1"), text.replace("-3201", "-3203")] {
            let serving = stage
                .answer_with(None, move |bus, message| {
                    let other = other.clone();
                    async move { bus.publish(message.reply.unwrap(), other.into()).await.unwrap() }
                })
                .await;
            let call = async |deadline| client.request("desk").deadline(deadline).call::<()>("desk/count", ()).await;
            let error = at_deadline(call).await;
            assert!(matches!(error, ClientError::Unverifiable(Unverifiable::Unsigned)), "{error:?}");
            drop(serving);
        }
    }
}

#[tokio::test]
async fn stranger_gets_the_hint_of_the_real_service() {
    let stage = Stage::open().await;
    let _serving = stage.serve().await;
    // bob's token under ann's name and key.
    let credentials = stage.credentials("ann").token(stage.desk.agent("bob", &["worker"]).token);
    let client = Client::builder(credentials).clock(stage.desk.clock.clone());
    let client = within(SOON, client.connect()).await.unwrap();
    let error = within(SOON, client.call::<()>("desk", "desk/count", ())).await.unwrap_err();
    assert!(matches!(error, ClientError::Hint { hint: HintKind::Unauthenticated }), "{error:?}");
    assert_eq!(stage.executed(), 0);
}

/// SPEC.md §9.1.
#[tokio::test]
async fn signed_replayed_does_not_end_the_wait_for_the_real_answer() {
    let stage = Stage::open().await;
    let service = stage.desk.service.clone();
    // The answer to a second delivery overtakes the answer to the first.
    let _serving = stage
        .answer_with(None, move |bus, message| {
            let service = service.clone();
            async move {
                let first = service.handle(Delivery::from(message.clone())).await.unwrap();
                let second = service.handle(Delivery::from(message)).await.unwrap();
                assert!(String::from_utf8_lossy(second.payload()).contains("-32012"));
                publish(&bus, second).await;
                tokio::time::sleep(Duration::from_millis(100)).await;
                publish(&bus, first).await;
            }
        })
        .await;
    let client = stage.client("ann").await;
    assert_eq!(within(SOON, client.call::<u64>("desk", "desk/count", ())).await.unwrap(), 1);
    assert_eq!(stage.executed(), 1);
}

#[tokio::test]
async fn signed_replayed_is_reported_when_nothing_else_came() {
    let stage = Stage::open().await;
    let service = stage.desk.service.clone();
    let _serving = stage
        .answer_with(None, move |bus, message| {
            let service = service.clone();
            async move {
                drop(service.handle(Delivery::from(message.clone())).await);
                publish(&bus, service.handle(Delivery::from(message)).await.unwrap()).await;
            }
        })
        .await;
    let client = stage.client("ann").await;
    let started = Instant::now();
    let call = async |deadline| client.request("desk").deadline(deadline).call::<u64>("desk/count", ()).await;
    let error = at_deadline(call).await;
    assert_eq!(error.remote().unwrap().code(), -32012, "{error}");
    assert!(error.is_outcome_unknown());
    assert!(started.elapsed() >= Duration::from_millis(300), "it waited for another answer");
    let text = r#"{"jsonrpc":"2.0","method":"desk/count","id":1}"#;
    let mut deadline = Duration::from_millis(300);
    let said = loop {
        match within(3 * SOON, client.request("desk").deadline(deadline).send_raw(text)).await {
            Err(error) if error.kind() == ErrorKind::Timeout && deadline < SOON => deadline *= 2,
            said => break said.unwrap(),
        }
    };
    assert!(said.contains("-32012"), "{said}");
}

/// A client whose own clock stands at `seconds`.
async fn client_at(stage: &Stage, seconds: u64) -> Client {
    let client = Client::builder(stage.credentials("ann")).clock(Arc::new(ManualClock::at(seconds)));
    within(SOON, client.connect()).await.unwrap()
}

/// SPEC.md §8.1.
#[tokio::test]
async fn one_signed_answer_corrects_a_clock_that_is_off_by_up_to_the_window() {
    let stage = Stage::open().await;
    let _serving = stage.serve().await;
    let offset = |off: i64| {
        let stage = &stage;
        async move {
            let client = client_at(stage, NOW.saturating_add_signed(off)).await;
            let call =
                |ms| client.request("desk").deadline(Duration::from_millis(ms)).call::<i64>("desk/add", (off, 1));
            // Within the skew, or behind by less than the life of a message and its deadline, the first call already succeeds.
            let first = async {
                loop {
                    // On a busy machine, its answer may come too late, and then nothing is learned from it.
                    match call(900).await {
                        Err(error) if error.kind() == ErrorKind::Timeout => {}
                        first => return first,
                    }
                }
            };
            match within(2 * SOON, first).await {
                Ok(_) => assert!((0..=5).contains(&off), "{off}"),
                Err(error) => {
                    let expected = if (-29..0).contains(&off) { -32003 } else { -32011 };
                    assert_eq!(error.remote().map(RpcError::code), Some(expected), "{off}: {error}");
                    assert_eq!(error.kind(), ErrorKind::Remote, "{off}: {error}");
                }
            }
            assert_eq!(within(2 * SOON, call(60_000)).await.unwrap(), off + 1, "{off}");
        }
    };
    join_all((-30..=30).map(offset)).await;
}

/// SPEC.md §8.1.
#[tokio::test]
async fn a_clock_that_is_off_by_more_than_the_window_is_told_and_not_believed() {
    let stage = Stage::open().await;
    let _serving = stage.serve().await;
    for (off, told) in [(-60, "60 s behind"), (-31, "31 s behind"), (31, "31 s ahead of"), (800, "800 s ahead of")] {
        let client = client_at(&stage, NOW.saturating_add_signed(off)).await;
        for idempotent in [true, false] {
            let call = async |deadline| {
                let request = client.request("desk").deadline(deadline);
                let request = if idempotent { request.idempotent() } else { request };
                request.call::<u64>("desk/count", ()).await
            };
            let error = at_deadline(call).await;
            assert!(matches!(error, ClientError::Clock { offset_s, .. } if offset_s == -off), "{off}: {error:?}");
            assert!(error.to_string().contains(told), "{error}");
            assert_eq!((error.kind(), error.remote().unwrap().code()), (ErrorKind::Clock, -32011));
            assert!(error.is_outcome_unknown());
        }
        // The service is found, whatever the time.
        within(2 * SOON, client.wait_for("desk", SOON)).await.unwrap();
    }
    // No token lives that long: by this clock, it has expired before anything is sent.
    let error =
        within(SOON, client_at(&stage, NOW + 9_999).await.call::<u64>("desk", "desk/count", ())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Token, "{error:?}");
    assert!(error.to_string().contains("or check this machine's clock"), "{error}");
    // If the message expired longer ago than clocks may differ, nothing is signed, and the client can only suggest a cause.
    let client = client_at(&stage, NOW - 200).await;
    for _ in 0..2 {
        let error = within(SOON, client.call::<u64>("desk", "desk/count", ())).await.unwrap_err();
        assert!(matches!(error, ClientError::Hint { hint: HintKind::Unauthenticated }), "{error:?}");
        assert!(error.to_string().contains("and this machine's clock"), "{error}");
    }
    assert_eq!(stage.executed(), 0);
}

#[tokio::test]
async fn idempotent_call_signs_again_by_the_service_s_clock() {
    let stage = Stage::open().await;
    let _serving = stage.serve().await;
    for off in [-30, 30] {
        let client = client_at(&stage, NOW.saturating_add_signed(off)).await;
        // It does not wait for its deadline.
        let call = client.request("desk").deadline(Duration::from_secs(500)).idempotent();
        assert_eq!(within(SOON, call.call::<i64>("desk/add", (off, 1))).await.unwrap(), off + 1);
    }
}

/// A clock that was set right, or wrong again, after its offset was learned.
#[tokio::test]
async fn a_clock_that_is_set_right_is_learned_again() {
    let stage = Stage::open().await;
    let _serving = stage.serve().await;
    let clock = Arc::new(ManualClock::at(NOW + 20));
    let builder = Client::builder(stage.credentials("ann")).clock(clock.clone());
    let client = within(SOON, builder.connect()).await.unwrap();
    // Less than what the clock is wrong by: the deadline of a message signed by the wrong one has passed.
    let call = || client.request("desk").deadline(Duration::from_secs(10)).call::<u64>("desk/count", ());
    assert_eq!(within(SOON, call()).await.unwrap_err().kind(), ErrorKind::Remote);
    assert_eq!(within(SOON, call()).await.unwrap(), 1);
    clock.set_ms(NOW * 1000);
    assert_eq!(within(SOON, call()).await.unwrap_err().kind(), ErrorKind::Remote);
    assert_eq!(within(SOON, call()).await.unwrap(), 2);
}

/// SPEC.md §8.1.
#[tokio::test]
async fn unsigned_stale_leaves_the_clock_alone() {
    let stage = Stage::open().await;
    let told = format!(
        r#"{{"jsonrpc":"2.0","error":{{"code":-32011,"message":"stale","data":{{"server_time":{}}}}},"id":null}}"#,
        NOW + 25
    );
    let serving = stage
        .answer_with(None, move |bus, message| {
            let told = told.clone();
            async move { bus.publish(message.reply.unwrap(), told.into()).await.unwrap() }
        })
        .await;
    let client = stage.client("ann").await;
    let call = async |deadline| client.request("desk").deadline(deadline).call::<u64>("desk/count", ()).await;
    assert_eq!(at_deadline(call).await.kind(), ErrorKind::Unverifiable);
    drop(serving);
    let _serving = stage.serve().await;
    assert_eq!(within(SOON, client.call::<u64>("desk", "desk/count", ())).await.unwrap(), 1);
}

#[tokio::test]
async fn flood_of_forged_answers_does_not_hide_the_genuine_one() {
    let stage = Stage::open().await;
    let service = stage.desk.service.clone();
    let url = stage.server.url();
    let sent = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&sent);
    let _serving = stage
        .answer_with(None, move |bus, message| {
            let (service, url, sent) = (service.clone(), url.clone(), Arc::clone(&counted));
            async move {
                let reply = message.reply.clone().unwrap().to_string();
                let mut raw = RawConnection::connect(&url, None).await;
                for _ in 0..2000 {
                    raw.publish(&reply, None, LIE.as_bytes()).await;
                    sent.fetch_add(1, Ordering::SeqCst);
                }
                raw.flush().await;
                publish(&bus, service.handle(Delivery::from(message)).await.unwrap()).await;
            }
        })
        .await;
    let client = stage.client("ann").await;
    let call = client.request("desk").deadline(SOON).call::<u64>("desk/count", ());
    assert_eq!(within(2 * SOON, call).await.unwrap(), 1);
    assert_eq!(client.stats().unverifiable, sent.load(Ordering::SeqCst));
}
