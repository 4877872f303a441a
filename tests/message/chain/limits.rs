//! Limits: time, rate, work under way, sizes, hints. What exceeds one is refused with that reason; nothing else suffers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use sealwire::internal::auth::NonceLimits;
use sealwire::internal::wire::WireLimits;
use sealwire::serve::QuotaLimits;
use sealwire::{Clock as _, Ctx, ManualClock, Router, RpcError, ServiceLimits};
use serde_json::{Value, json};
use tokio::sync::Notify;

use sealwire_testkit::desk::{Agent, Desk, HINTS, Letter, NOW, POLICY, Setup, call, code, recording, text};

fn due(desk: &Desk, agent: &Agent, payload: &str, timeout: Duration) -> Letter {
    let subject = desk.endpoint.subject(&agent.name);
    let reply = format!("{}r1", desk.endpoint.inbox(&agent.name));
    desk.letter_to(agent, &subject, &reply, payload, Some(timeout))
}

fn error(answer: &str) -> Value {
    serde_json::from_str::<Value>(answer).unwrap()["error"].clone()
}

/// Counts how often it was dropped.
struct Dropped(Arc<AtomicUsize>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// `desk/never` runs until it is cancelled, and counts cancellations.
fn never() -> (Router<Arc<AtomicUsize>>, Arc<AtomicUsize>) {
    let cancelled = Arc::new(AtomicUsize::new(0));
    let router =
        Router::new(Arc::clone(&cancelled)).method("desk/never", |ctx: Ctx<Arc<AtomicUsize>>, (): ()| async move {
            let _dropped = Dropped(Arc::clone(ctx.state()));
            std::future::pending::<Result<(), RpcError>>().await
        });
    (router, cancelled)
}

/// SPEC.md §8.
#[tokio::test]
async fn nothing_starts_once_the_deadline_or_the_expiry_has_come() {
    let (router, runs) = recording();
    let desk = Desk::open(router);
    let ann = desk.agent("ann", &["worker"]);
    let echo = call("desk/echo", "[]");
    for (timeout, past, expected) in [
        (1_000, 999, None),
        (1_000, 1_000, Some(-32003)),
        (1_000, 29_999, Some(-32003)),
        (600_000, 29_999, None),
        (600_000, 30_000, Some(-32011)),
    ] {
        // A whole second, so that nothing is lost when the signer truncates it.
        desk.clock.set_ms((desk.clock.now_s() + 1) * 1000);
        let letter = due(&desk, &ann, &echo, Duration::from_millis(timeout));
        let batch = due(&desk, &ann, &format!("[{echo},{echo}]"), Duration::from_millis(timeout));
        let before = runs.count();
        desk.clock.advance_ms(past);
        assert_eq!(desk.offer(&letter).await, expected, "{timeout} {past}");
        let answer = desk.answer(&batch).await.unwrap();
        assert_eq!(answer.matches("-32003").count(), if expected == Some(-32003) { 2 } else { 0 }, "{answer}");
        assert_eq!(runs.count() - before, if expected.is_none() { 3 } else { 0 });
    }
}

/// SPEC.md §6.
#[tokio::test]
async fn deadline_counts_from_the_signing_also_in_the_middle_of_a_second() {
    let desk = Desk::open(recording().0);
    let ann = desk.agent("ann", &["worker"]);
    desk.clock.set_ms(NOW * 1000 + 700);
    let letter = |desk: &Desk| due(desk, &ann, &call("desk/echo", "[]"), Duration::from_millis(500));
    let (one, two) = (letter(&desk), letter(&desk));
    desk.clock.advance_ms(499);
    assert_eq!(desk.offer(&one).await, None);
    desk.clock.advance_ms(1);
    assert_eq!(desk.offer(&two).await, Some(-32003));
}

/// SPEC.md §8.
#[tokio::test(start_paused = true)]
async fn method_is_cancelled_at_the_deadline_and_the_caller_is_told() {
    let (router, cancelled) = never();
    let desk = Desk::open(router);
    let ann = desk.agent("ann", &["worker"]);
    let never = call("desk/never", "[]");
    let soon = Duration::from_millis(40);
    assert_eq!(desk.offer(&due(&desk, &ann, &never, soon)).await, Some(-32003));
    assert_eq!(cancelled.load(Ordering::SeqCst), 1);
    let batch = format!("[{never},{never},{never}]");
    let answer = desk.answer(&due(&desk, &ann, &batch, soon)).await.unwrap();
    assert_eq!((answer.matches("-32003").count(), cancelled.load(Ordering::SeqCst)), (3, 4));
    let notification = r#"{"jsonrpc":"2.0","method":"desk/never"}"#;
    assert_eq!(desk.offer(&due(&desk, &ann, notification, soon)).await, None);
    assert_eq!(cancelled.load(Ordering::SeqCst), 5);
}

#[tokio::test(start_paused = true)]
async fn method_is_cancelled_when_its_message_is_given_up() {
    let (router, cancelled) = never();
    let desk = Desk::open(router);
    let ann = desk.agent("ann", &["worker"]);
    let letter = desk.letter(&ann, &call("desk/never", "[]"));
    let given_up = tokio::time::timeout(Duration::from_millis(40), desk.service.handle(letter.delivery())).await;
    assert!(given_up.is_err());
    assert_eq!(cancelled.load(Ordering::SeqCst), 1);
    // Its place is free again, its nonce is not.
    assert_eq!(desk.offer(&letter).await, Some(-32012));
}

/// SPEC.md §8.
#[tokio::test]
async fn answer_may_follow_the_expiry_but_not_the_deadline() {
    // Each call takes as long as it says, on the service's clock, without yielding: no timer can stop it.
    let clock = Arc::new(std::sync::OnceLock::<Arc<ManualClock>>::new());
    let router = Router::new(Arc::clone(&clock)).method(
        "desk/take",
        |ctx: Ctx<Arc<std::sync::OnceLock<Arc<ManualClock>>>>, (ms,): (u64,)| async move {
            ctx.state().get().unwrap().advance_ms(ms);
            Ok::<_, RpcError>("took")
        },
    );
    let desk = Desk::open(router);
    clock.set(Arc::clone(&desk.clock)).unwrap();
    let ann = desk.agent("ann", &["worker"]);
    for (ms, timeout, in_time) in
        [(31_000, 60_000, true), (59_999, 60_000, true), (60_000, 60_000, false), (5_000, 100, false)]
    {
        desk.clock.set_ms((desk.clock.now_s() + 1) * 1000);
        let start = desk.clock.now_ms();
        let letter = due(&desk, &ann, &call("desk/take", &format!("[{ms}]")), Duration::from_millis(timeout));
        let answer = desk.answer(&letter).await.unwrap();
        assert_eq!(code(&answer), (!in_time).then_some(-32003), "{ms} of {timeout}: {answer}");
        assert_eq!(desk.clock.now_ms(), start + ms);
    }
}

/// SPEC.md §10.
#[tokio::test]
async fn rate_above_an_agents_own_is_refused_and_others_do_not_notice() {
    let (router, runs) = recording();
    let quota = QuotaLimits { per_second: 1, burst: 3, in_flight: 9 };
    let desk = Desk::open_with(router, POLICY, ServiceLimits { quota, ..ServiceLimits::default() });
    let (ann, bob) = (desk.agent("ann", &["worker"]), desk.agent("bob", &["worker"]));
    for _ in 0..3 {
        assert_eq!(desk.offer(&desk.letter(&ann, &call("desk/echo", "[]"))).await, None);
    }
    let (_, answer) = too_fast(&desk, &ann).await;
    let error = error(&answer);
    assert_eq!(error["data"]["scope"], "replica-rate");
    assert!((1..=1_000).contains(&error["data"]["retry_after_ms"].as_u64().unwrap()), "{answer}");
    let before = runs.count();
    assert_eq!(desk.offer(&desk.letter(&bob, &call("desk/echo", "[]"))).await, None);
    assert_eq!(runs.count(), before + 1);
    // Nothing that another agent sends in ann's name counts against ann.
    for _ in 0..10 {
        let forged = desk.letter(&Agent { key: bob_key(), ..desk.agent("ann", &[]) }, &call("desk/echo", "[]"));
        assert_eq!(desk.offer(&forged).await, Some(-32010));
    }
    assert_eq!(desk.service.counters().refusals()["rate_quota"], 1);
}

/// SPEC.md §10.
#[tokio::test]
async fn one_that_an_agent_acts_for_takes_nothing_from_the_others_and_names_give_no_more() {
    let (router, runs) = recording();
    let quota = QuotaLimits { per_second: 20, burst: 100, in_flight: 9 };
    let policy = "[role.worker]\nallow = [\"desk/*\"]\ndelegated = \"also\"\n";
    let desk = Desk::open_with(router, policy, ServiceLimits { quota, ..ServiceLimits::default() });
    let began = std::time::Instant::now();
    let acting = |subject: &str| {
        desk.agent_with("ann", |request| {
            request.subject = subject.to_owned();
            request.actor = Some("ann".to_owned());
        })
    };
    let passes = async |agent: &Agent| match desk.offer(&desk.letter(agent, &call("desk/echo", "[]"))).await {
        None => true,
        Some(code) => {
            assert_eq!(code, -32013);
            false
        }
    };
    let (loud, quiet) = (acting("loud"), acting("quiet"));
    while passes(&loud).await {}
    for _ in 0..20 {
        for _ in 0..10 {
            passes(&loud).await;
        }
        assert!(passes(&quiet).await, "one call for ten of the other");
    }
    // An agent gains nothing by acting for many subjects: together they have its rate.
    for name in 0..300 {
        passes(&acting(&format!("user-{name}"))).await;
    }
    let most = 100 + 20 * usize::try_from(began.elapsed().as_secs() + 1).unwrap();
    assert!((50..=most).contains(&runs.count()), "{} of {most}", runs.count());
    assert_eq!(desk.burnt(), runs.count(), "a refused call takes no room among the nonces");
    assert!(passes(&desk.agent("bob", &["worker"])).await);
}

/// Sends until the rate is exceeded, however slow this machine is: the refused message, and its answer.
pub(crate) async fn too_fast(desk: &Desk, agent: &Agent) -> (Letter, String) {
    for _ in 0..100 {
        let letter = desk.letter(agent, &call("desk/echo", "[]"));
        let answer = desk.answer(&letter).await.unwrap();
        match code(&answer) {
            None => {}
            Some(code) => {
                assert_eq!(code, -32013);
                return (letter, answer);
            }
        }
    }
    panic!("the rate is never too high");
}

fn bob_key() -> sealwire::configure::AgentKey {
    sealwire::configure::AgentKey::hmac("ann.k1", &[2; 32]).unwrap()
}

#[tokio::test]
async fn batch_is_charged_whole_or_not_run_at_all() {
    let (router, runs) = recording();
    let quota = QuotaLimits { per_second: 1, burst: 10, in_flight: 9 };
    let desk = Desk::open_with(router, POLICY, ServiceLimits { quota, ..ServiceLimits::default() });
    let ann = desk.agent("ann", &["worker"]);
    let batch = |n| format!("[{}]", vec![call("desk/echo", "[]"); n].join(","));
    assert!(desk.ask(&ann, &batch(8)).await.unwrap().contains("result"));
    let answer = desk.ask(&ann, &batch(8)).await.unwrap();
    assert_eq!(error(&answer)["code"], -32013, "one error for the whole message: {answer}");
    assert_eq!(runs.count(), 8);
}

/// SPEC.md §10.
#[tokio::test]
async fn work_under_way_is_bounded_per_agent() {
    let open = Arc::new((Notify::new(), AtomicBool::new(false)));
    let router =
        Router::new(Arc::clone(&open)).method("desk/wait", |ctx: Ctx<Arc<(Notify, AtomicBool)>>, (): ()| async move {
            while !ctx.state().1.load(Ordering::SeqCst) {
                ctx.state().0.notified().await;
            }
            Ok::<_, RpcError>("done")
        });
    let quota = QuotaLimits { in_flight: 2, ..QuotaLimits::default() };
    let desk = Desk::open_with(router, POLICY, ServiceLimits { quota, ..ServiceLimits::default() });
    let (ann, bob) = (desk.agent("ann", &["worker"]), desk.agent("bob", &["worker"]));
    let body = call("desk/wait", "[]");
    let letters = [desk.letter(&ann, &body), desk.letter(&ann, &body), desk.letter(&bob, &body)];
    let under_way = futures_util::future::join_all(letters.iter().map(|letter| desk.answer(letter)));
    let meanwhile = async {
        let third = desk.ask(&ann, &body).await.unwrap();
        let error = error(&third);
        assert_eq!((&error["code"], &error["data"]["scope"]), (&json!(-32013), &json!("replica-in-flight")));
        assert!(error["data"]["retry_after_ms"].as_u64().unwrap() > 0);
        open.1.store(true, Ordering::SeqCst);
        open.0.notify_waiters();
    };
    // `join!` polls in this order, so the three are under way when the fourth comes.
    let (answers, ()) = tokio::join!(under_way, meanwhile);
    assert!(answers.iter().all(|answer| answer.as_ref().unwrap().contains("done")));
    assert!(desk.ask(&ann, &body).await.unwrap().contains("done"), "places are given back");
}

/// SPEC.md §9.
#[tokio::test]
async fn nonce_quota_of_one_agent_is_its_own() {
    let (router, runs) = recording();
    let nonce_limits = NonceLimits { owner: 3, total: 100, owners: 10, reserve: 2 };
    let desk = Desk::open_as(Setup { nonce_limits, ..Setup::default() }, |service| service.methods(router));
    let (ann, bob) = (desk.agent("ann", &["worker"]), desk.agent("bob", &["worker"]));
    for _ in 0..3 {
        assert_eq!(desk.offer(&desk.letter(&ann, &call("desk/echo", "[]"))).await, None);
    }
    let answer = desk.ask(&ann, &call("desk/echo", "[]")).await.unwrap();
    let error = error(&answer);
    assert_eq!((&error["code"], &error["data"]["scope"]), (&json!(-32013), &json!("nonces")));
    assert_eq!(error["data"]["retry_after_ms"], 30_000);
    assert_eq!(desk.offer(&desk.letter(&bob, &call("desk/echo", "[]"))).await, None);
    assert_eq!(runs.count(), 4);
    desk.clock.advance_ms(30_000);
    assert_eq!(desk.offer(&desk.letter(&ann, &call("desk/echo", "[]"))).await, None);
}

/// SPEC.md §9.
#[tokio::test]
async fn full_guard_refuses_and_runs_nothing() {
    let (router, runs) = recording();
    let nonce_limits = NonceLimits { owner: 3, total: 3, owners: 1, reserve: 3 };
    let desk = Desk::open_as(Setup { nonce_limits, ..Setup::default() }, |service| service.methods(router));
    assert_eq!(desk.offer(&desk.letter(&desk.agent("ann", &["worker"]), &call("desk/echo", "[]"))).await, None);
    let answer = desk.ask(&desk.agent("bob", &["worker"]), &call("desk/echo", "[]")).await.unwrap();
    assert_eq!(error(&answer)["code"], -32014);
    assert!(error(&answer)["data"]["retry_after_ms"].as_u64().unwrap() > 0);
    assert_eq!(runs.count(), 1);
}

/// SPEC.md §15.
#[tokio::test]
async fn batch_of_more_entries_than_the_bound_is_refused_whole() {
    let (router, runs) = recording();
    let desk = Desk::open(router);
    let ann = desk.agent("ann", &["worker"]);
    let batch = |n| format!("[{}]", vec![call("desk/echo", "[]"); n].join(","));
    let answer = desk.ask(&ann, &batch(51)).await.unwrap();
    assert_eq!(error(&answer)["code"], -32600);
    assert!(answer.ends_with(r#""id":null}"#), "{answer}");
    let answer = desk.ask(&ann, &format!("[{}]", vec!["1"; 10_000].join(","))).await.unwrap();
    assert_eq!(error(&answer)["code"], -32600);
    assert_eq!(runs.count(), 0);
    assert!(desk.ask(&ann, &batch(50)).await.is_some());
    assert_eq!(runs.count(), 50);
}

#[tokio::test]
async fn deep_and_huge_bodies_of_a_known_caller_are_refused_cheaply() {
    let (router, runs) = recording();
    let desk = Desk::open(router);
    let ann = desk.agent("ann", &["worker"]);
    let deep = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
    for (body, expected) in [
        (deep(90_000), -32700),
        ("[".repeat(100_000), -32700),
        (call("desk/echo", &deep(65)), -32700),
        ("{\"a\":".repeat(20_000), -32700),
        (r#"{"jsonrpc":"2.0","method":"desk/echo","method":"vault/open","id":1}"#.to_owned(), -32600),
        (r#"{"jsonrpc":"2.0","method":"vault/open","m\u0065thod":"desk/echo","id":1}"#.to_owned(), -32600),
        (call("desk/echo", r#"{"a":1,"a":2}"#), -32600),
        ("\u{feff}[]".to_owned(), -32700),
    ] {
        assert_eq!(code(&desk.ask(&ann, &body).await.unwrap()), Some(expected), "{}", &body[..20]);
    }
    assert_eq!(runs.count(), 0);
}

fn repeating() -> (Router<Arc<AtomicUsize>>, Arc<AtomicUsize>) {
    let runs = Arc::new(AtomicUsize::new(0));
    let router =
        Router::new(Arc::clone(&runs)).method("desk/repeat", |ctx: Ctx<Arc<AtomicUsize>>, (n,): (usize,)| async move {
            ctx.state().fetch_add(1, Ordering::SeqCst);
            Ok::<_, RpcError>("x".repeat(n))
        });
    (router, runs)
}

/// SPEC.md §11.
#[tokio::test]
async fn answer_above_its_limit_becomes_an_error_that_means_executed() {
    let (router, runs) = repeating();
    let desk = Desk::open_with(router, POLICY, ServiceLimits { response: 1_000, ..ServiceLimits::default() });
    let ann = desk.agent("ann", &["worker"]);
    let ask = |id: usize, n: usize| format!(r#"{{"jsonrpc":"2.0","method":"desk/repeat","params":[{n}],"id":{id}}}"#);
    let too_large = r#"{"jsonrpc":"2.0","error":{"code":-32015,"message":"too large"},"id":"#;
    let room = 1_000 - r#"{"jsonrpc":"2.0","result":"","id":7}"#.len();
    assert_eq!(desk.ask(&ann, &ask(7, room)).await.unwrap().len(), 1_000);
    assert_eq!(desk.ask(&ann, &ask(7, room + 1)).await.unwrap(), format!("{too_large}7}}"));
    // In a batch, an entry fails alone.
    let answer = desk.ask(&ann, &format!("[{},{},{}]", ask(1, 10), ask(2, 1_000), ask(3, 10))).await.unwrap();
    assert_eq!((answer.matches("xxxxxxxxxx").count(), answer.contains(&format!("{too_large}2}}"))), (2, true));
    // If the whole is still too large, one error with id null speaks for all.
    let answer = desk.ask(&ann, &format!("[{},{}]", ask(1, 600), ask(2, 600))).await.unwrap();
    assert_eq!(answer, format!("{too_large}null}}"));
    // An echoed id counts, too.
    let long = format!(r#"{{"jsonrpc":"2.0","method":"desk/repeat","params":[1],"id":"{}"}}"#, "i".repeat(1_000));
    assert_eq!(desk.ask(&ann, &long).await.unwrap(), format!("{too_large}null}}"));
    assert_eq!(runs.load(Ordering::SeqCst), 8);
}

/// SPEC.md §11.
#[tokio::test]
async fn batch_amplification_is_bounded_by_the_answers_limit() {
    let (router, runs) = repeating();
    let desk = Desk::open(router);
    let ann = desk.agent("ann", &["worker"]);
    let entry = r#"{"jsonrpc":"2.0","method":"desk/repeat","params":[190000],"id":1}"#;
    let answer = desk.ask(&ann, &format!("[{}]", vec![entry; 50].join(","))).await.unwrap();
    assert_eq!(error(&answer)["code"], -32015);
    assert_eq!(runs.load(Ordering::SeqCst), 50);
}

/// SPEC.md §15.
#[tokio::test]
async fn request_above_its_limit_gets_the_fixed_hint_and_costs_no_signature_check() {
    let (router, runs) = recording();
    let wire = WireLimits { payload: 200, ..WireLimits::default() };
    let desk = Desk::open_as(Setup { wire, ..Setup::default() }, |service| service.methods(router));
    let ann = desk.agent("ann", &["worker"]);
    let fits = call("desk/echo", &format!("[\"{}\"]", "x".repeat(141)));
    assert_eq!(fits.len(), 200);
    assert!(desk.ask(&ann, &fits).await.unwrap().contains("result"));
    let letter = desk.letter(&ann, &format!("{fits} "));
    let sealed = desk.service.handle(letter.delivery()).await.unwrap();
    assert_eq!((text(&sealed).as_str(), sealed.headers().is_none()), (HINTS[2], true));
    assert_eq!((runs.count(), desk.burnt()), (1, 1));
}

/// SPEC.md §15.
#[tokio::test]
async fn headers_above_their_limits_are_refused() {
    let desk = Desk::open(recording().0);
    let ann = desk.agent("ann", &["worker"]);
    let good = desk.letter(&ann, &call("desk/echo", "[]"));
    let mut harmless = good.clone();
    for n in 0..31 {
        harmless.headers.insert(format!("X-{n}"), "traceparent");
    }
    let mut many = harmless.clone();
    many.headers.insert("X-one-too-many", "x");
    let mut long = good.clone();
    long.headers.insert("X-long", "x".repeat(16 * 1024));
    let (token, proof) = good.credentials();
    for letter in [many, long, good.with_credentials(&format!("{token}{}", "A".repeat(8 * 1024)), &proof)] {
        assert_eq!(desk.offer(&letter).await, Some(-32010));
    }
    assert_eq!(desk.offer(&harmless).await, None);
}

/// SPEC.md §13.1.
#[tokio::test]
async fn hints_stop_at_their_global_rate_and_signed_answers_go_on() {
    let desk =
        Desk::open_with(recording().0, POLICY, ServiceLimits { hints_per_second: 3, ..ServiceLimits::default() });
    let ann = desk.agent("ann", &["worker"]);
    let letter = desk.letter(&ann, &call("desk/echo", "[]"));
    let bare = Letter { headers: async_nats::HeaderMap::new(), ..letter };
    let mut hints = 0;
    for _ in 0..200 {
        hints += usize::from(desk.service.handle(bare.delivery()).await.is_some());
        hints += usize::from(desk.service.shed(bare.delivery()).is_some());
    }
    // Three at once, and a few more if this machine is slow.
    assert!((3..40).contains(&hints), "{hints}");
    // Messages that are shed when no hint may be sent any more are not examined.
    let refusals = desk.service.counters().refusals();
    assert_eq!(refusals["no_authorization"] + refusals["shed"], 400, "{refusals:?}");
    assert!(refusals["no_authorization"] >= 200, "{refusals:?}");
    assert!(desk.ask(&ann, &call("desk/echo", "[]")).await.unwrap().contains("result"));
    assert_eq!(desk.offer(&desk.letter(&ann, &call("vault/open", "[]"))).await, Some(-32002));
}
