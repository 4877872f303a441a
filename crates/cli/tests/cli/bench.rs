//! `sealwire bench`: it counts what the service did, an error is not an answer, and a stall is charged for every call that it kept
//! waiting.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::call::Bench;
use crate::process::{SIGINT, SIGTERM, heard, send, spawn, whole};
use crate::shell::{Ran, Shell};
use crate::terminal::on_terminal;
use sealwire::internal::auth::read_service_key;
use sealwire::internal::wire::Audience;
use sealwire::{Ctx, Name, Router, RpcError};
use sealwire_lab::demo_methods::Demo;
use sealwire_testkit::{SOON, within};
use serde_json::{Value, json};
use tokio::sync::watch;

/// Limits high enough for as many calls as a machine can make.
const UNBOUNDED: &str = "per_agent = 1000000\ntotal = 2000000\n[limits]\nagent_per_second = 1000000\nagent_burst = 1000000\n\
    agent_in_flight = 4096\n";

/// What the methods below have counted.
struct Seen {
    /// How often `test/count` ran, with a number of bytes as its only parameter or without.
    count: AtomicU64,
    bytes: AtomicU64,
    /// How often `test/stall` and `test/hang` have begun.
    begun: watch::Sender<u64>,
}

/// The call of `test/stall` that takes [`STALL`]. The very first call is the trial call that `bench` makes.
const STALLS: u64 = 20;
const STALL: Duration = Duration::from_secs(2);

fn methods(seen: &Arc<Seen>) -> impl FnOnce(Router<Demo>) -> Router<Demo> {
    let (counting, stalling, hanging) = (Arc::clone(seen), Arc::clone(seen), Arc::clone(seen));
    let next = |seen: &Seen| {
        let mut number = 0;
        seen.begun.send_modify(|begun| {
            *begun += 1;
            number = *begun;
        });
        number
    };
    move |router| {
        router
            .method("test/count", move |_: Ctx<Demo>, text: Vec<String>| {
                let seen = Arc::clone(&counting);
                async move {
                    seen.count.fetch_add(1, Ordering::SeqCst);
                    let bytes = text.iter().map(String::len).sum::<usize>();
                    seen.bytes.store(bytes as u64, Ordering::SeqCst);
                    Ok::<_, RpcError>(bytes)
                }
            })
            .method("test/stall", move |_: Ctx<Demo>, (): ()| {
                let seen = Arc::clone(&stalling);
                async move {
                    if next(&seen) == STALLS {
                        tokio::time::sleep(STALL).await;
                    }
                    Ok::<_, RpcError>(())
                }
            })
            .method("test/hang", move |_: Ctx<Demo>, (): ()| {
                let seen = Arc::clone(&hanging);
                async move {
                    if next(&seen) > STALLS {
                        std::future::pending::<()>().await;
                    }
                    Ok::<_, RpcError>(())
                }
            })
    }
}

async fn stage() -> (Bench, Arc<Seen>) {
    let seen = Arc::new(Seen { count: AtomicU64::new(0), bytes: AtomicU64::new(0), begun: watch::Sender::new(0) });
    (Bench::start_with(UNBOUNDED, methods(&seen)).await, seen)
}

fn number(told: &Value, name: &str) -> u64 {
    told[name].as_u64().unwrap_or_else(|| panic!("no {name} in {told}"))
}

/// All calls of the command, including its trial call.
fn called(told: &Value) -> u64 {
    number(told, "calls") + number(told, "warmup_calls") + 1
}

fn run(bench: &Bench, words: &[&str]) -> Ran {
    bench.run(&[&["bench", "demo"], words].concat())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_count_is_what_the_method_did() {
    let (bench, seen) = stage().await;
    let count = || seen.count.swap(0, Ordering::SeqCst);
    let audience = Audience::new(&Name::new("dev").unwrap(), &Name::new("demo").unwrap());
    let key = read_service_key(&bench.shell.path("demo.service-key.json"), &audience).unwrap().public();
    bench.shell.run(&format!("keys pin eve.creds.json --service demo --kid {} --x {}", key.kid(), key.x())).ok();
    let short = ["--duration=600ms", "--warmup=200ms", "--json"];
    for (creds, proof) in [("planner", "HS256"), ("eve", "EdDSA")] {
        let creds = format!("{creds}.creds.json");
        let words = ["bench", "--creds", &creds, "demo", "test/count", "[]", "--in-flight=8", "--connections=3"];
        let pid = format!("--pid=broker={}", bench.server.pid());
        let told = bench.shell.run_args(&[&words[..], &[&pid], &short].concat()).ok().json();
        assert_eq!(called(&told), count(), "{told}");
        assert!(
            number(&told, "calls") > 0 && told["results"] == told["calls"] && told["errors"] == json!([]),
            "{told}"
        );
        assert_eq!((&told["proof"], &told["in_flight"], &told["connections"]), (&json!(proof), &json!(8), &json!(3)));
        assert_eq!((&told["latency_from"], &told["stopped"]), (&json!("sent"), &json!(false)));
        let latencies = ["p50", "p90", "p99", "p99_9", "max"].map(|name| told["latency_us"][name].as_f64().unwrap());
        assert!(latencies.is_sorted() && latencies[0] > 1.0, "{told}");
        assert!(told["calls_per_s"].as_f64() > Some(0.0) && told["measured_s"] == json!(0.6), "{told}");
        let cpu = |name: &str| told["cpu_us"][name].as_f64();
        assert!(cpu("client") > Some(1.0) && cpu("broker").is_some(), "{told}");
    }
    let told = run(&bench, &[&["test/count", "[]", "--batch=7", "--in-flight=2"][..], &short].concat()).ok().json();
    assert_eq!((called(&told), number(&told, "calls") % 7), (count(), 0), "{told}");
    let told = run(&bench, &[&["test/list", "--stream", "--in-flight=2"][..], &short].concat()).ok().json();
    assert_eq!(number(&told, "items"), 3 * number(&told, "results"), "{told}");
    assert!(number(&told, "results") > 0 && told["items_per_s"].as_f64() > Some(0.0), "{told}");
    let payload = ["test/count", r#"["{payload}","{payload}"]"#, "--payload=300", "--rate=50/s", "--json"];
    let told = run(&bench, &[&payload[..], &["--duration=2s", "--warmup=200ms"]].concat()).ok().json();
    assert_eq!((called(&told), seen.bytes.load(Ordering::SeqCst)), (count(), 600), "{told}");
    // 2.2 s at 50 a second, and the trial call.
    assert_eq!((called(&told) + number(&told, "not_begun"), &told["latency_from"]), (111, &json!("due")), "{told}");
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_are_denied_are_errors_and_have_no_latency() {
    let (bench, seen) = stage().await;
    let words = ["math/reset", "--duration=500ms", "--warmup=100ms", "--in-flight=4"];
    let ran = run(&bench, &[&words[..], &["--json"]].concat());
    assert_eq!(ran.code, 10, "{ran:?}");
    let told = ran.json();
    let error = &told["errors"][0];
    assert_eq!((&error["exit"], &error["kind"], &error["rpc"]["code"]), (&json!(10), &json!("denied"), &json!(-32002)));
    assert_eq!((&error["count"], &told["results"]), (&told["calls"], &json!(0)), "{told}");
    assert!(number(&told, "calls") > 0 && told["latency_us"]["p50"].is_null(), "{told}");
    assert_eq!(told["calls_per_s"], json!(0.0), "an error is no answer: {told}");
    let ran = run(&bench, &words);
    assert!(ran.code == 10 && ran.stdout.contains("times: permission denied (-32002)"), "{ran:?}");
    // Each entry of a batch counts as a call.
    let mixed = ["test/stall", "[1]", "--batch=3", "--duration=300ms", "--json"];
    let ran = run(&bench, &mixed);
    assert_eq!((ran.code, &ran.json()["errors"][0]["count"]), (21, &ran.json()["calls"]), "{ran:?}");
    assert_eq!(*seen.begun.borrow(), 0);
    bench.end().await;
}

/// With one call in flight, a method that stalls once for two seconds answers a single call slowly, but keeps all those waiting that fall
/// due meanwhile. If latency counted from when calls are sent, nine in ten would seem to take no time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stall_is_charged_for_all_calls_that_were_due_meanwhile() {
    let (bench, _) = stage().await;
    let words = ["test/stall", "--rate=100/s", "--in-flight=1", "--duration=4s", "--warmup=0ms", "--json"];
    let told = run(&bench, &words).ok().json();
    assert_eq!(number(&told, "calls") + number(&told, "not_begun"), 400, "{told}");
    assert!(told["latency_us"]["p90"].as_f64() > Some(500_000.0), "{told}");
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rate_that_the_service_does_not_hold_is_told() {
    let (bench, _) = stage().await;
    // Each takes at least 150 ms, so of a hundred calls that are due, hardly ten begin.
    let job = ["test/job", "--rate=100/s", "--in-flight=1", "--duration=1s", "--warmup=0ms"];
    let told = run(&bench, &[&job[..], &["--json"]].concat()).ok().json();
    assert_eq!(number(&told, "calls") + number(&told, "not_begun"), 100, "{told}");
    assert!(number(&told, "not_begun") > 80, "{told}");
    run(&bench, &job).ok().says("calls were due and never begun: the service does not hold this rate");
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn turns_of_bare_requests_give_a_ratio() {
    let (bench, seen) = stage().await;
    let words = ["test/count", "[]", "--in-flight=4", "--duration=3s", "--warmup=200ms", "--against=bare"];
    let told = run(&bench, &[&words[..], &["--json"]].concat()).ok().json();
    assert_eq!(called(&told), seen.count.load(Ordering::SeqCst), "{told}");
    let (against, bare) = (&told["against"], &told["against"]["bare"]);
    assert!(number(bare, "calls") > 0 && bare["results"] == bare["calls"] && bare["errors"] == json!([]), "{told}");
    for ratio in [&against["throughput"], &against["p50"]] {
        let [min, median, max] = ["min", "median", "max"].map(|name| ratio[name].as_f64().unwrap());
        assert!(0.0 < min && min <= median && median <= max, "{told}");
        assert_eq!(ratio["pairs"], 3, "{told}");
    }
    for side in [bare, &told] {
        assert!((side["measured_s"].as_f64().unwrap() - 1.5).abs() < 1e-6, "each has half: {told}");
    }
    assert!(bare["cpu_us"]["responder"].as_f64() > Some(0.0), "{told}");
    let text = run(&bench, &words).ok();
    assert!(text.stdout.contains("of bare: ") && text.stdout.contains("in 3 pairs of turns"), "{text:?}");
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signal_ends_it_with_what_was_measured_though_calls_or_the_broker_hang() {
    for is_silent in [false, true] {
        let (mut bench, seen) = stage().await;
        let words = ["bench", "--creds", "planner.creds.json", "demo", "test/hang", "--in-flight=4", "--json"];
        // Far longer than this test waits.
        let long = ["--duration=1h", "--warmup=0ms", "--deadline=10m"];
        let mut child = spawn(&bench.shell, &[&words[..], &long].concat());
        let mut stdout = heard(child.stdout.take().unwrap());
        let all_hang = STALLS + 4;
        within(SOON, seen.begun.subscribe().wait_for(|begun| *begun == all_hang)).await.unwrap();
        if is_silent {
            bench.server.pause().await;
        }
        send(SIGINT, child.id().unwrap());
        let ended = within(SOON, child.wait()).await.unwrap();
        let said = whole(&mut stdout).await;
        let told: Value = serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"));
        assert_eq!((ended.code(), &told["stopped"]), (Some(130), &json!(true)), "{told}");
        assert_eq!((called(&told), number(&told, "given_up")), (STALLS, 4), "{told}");
        if is_silent {
            bench.server.resume().await;
        }
        bench.end().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signal_before_anything_is_measured_is_told() {
    let (bench, seen) = stage().await;
    let words = ["bench", "--creds", "planner.creds.json", "demo", "test/hang", "--warmup=1h", "--deadline=10m"];
    let mut child = spawn(&bench.shell, &words);
    let mut stderr = heard(child.stderr.take().unwrap());
    within(SOON, seen.begun.subscribe().wait_for(|begun| *begun > STALLS)).await.unwrap();
    send(SIGTERM, child.id().unwrap());
    assert_eq!(within(SOON, child.wait()).await.unwrap().code(), Some(130));
    assert!(whole(&mut stderr).await.contains("before anything was measured"));
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_is_away_or_goes_is_told_with_the_code_of_other_commands() {
    let (mut bench, seen) = stage().await;
    let words = ["bench", "--creds", "planner.creds.json", "demo", "test/count", "[]", "--json", "--deadline=4s"];
    let mut child = spawn(&bench.shell, &[&words[..], &["--duration=10s", "--warmup=0ms"]].concat());
    let mut stdout = heard(child.stdout.take().unwrap());
    let called = async {
        while seen.count.load(Ordering::SeqCst) < 10 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    within(SOON, called).await;
    bench.server.kill().await;
    let ended = within(SOON, child.wait()).await.unwrap();
    let told: Value = serde_json::from_str(&whole(&mut stdout).await).unwrap();
    assert_eq!(ended.code(), Some(20), "{told}");
    assert!(told["errors"].as_array().unwrap().iter().all(|error| error["exit"] == 20), "{told}");
    run(&bench, &["test/count", "[]"]).fails(20, &["no broker answers"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_impossible_measurement_is_refused_before_it_begins() {
    let (bench, seen) = stage().await;
    for (words, code, why) in [
        (&["test/count", "--rate=0/s"][..], 2, "500/s"),
        (&["test/count", "--rate=5"], 2, "500/s"),
        (&["test/count", "--rate=2000000/s"], 2, "a rate is above 0 and at most 1000000 a second"),
        (&["test/count", "--in-flight=0"], 2, "1 to 65536 messages"),
        (&["test/count", "--in-flight=65537"], 2, "1 to 65536 messages"),
        (&["test/count", "--connections=257"], 2, "1 to 256 connections"),
        (&["test/count", "--connections=9", "--in-flight=8"], 2, "9 connections need at least 9 in flight"),
        (&["test/count", "--batch=51"], 2, "1 to 50 calls"),
        (&["test/list", "--stream", "--in-flight=257"], 2, "256 streams"),
        (&["test/list", "--stream", "--against=bare"], 2, "cannot be used with"),
        (&["test/count", "--duration=10ms"], 2, "100ms to 24h"),
        (&["test/count", "--payload=10"], 2, "{payload}"),
        (&["test/count", "[\"{payload}\"]", "--payload=0"], 2, "1..=16777216"),
        (&["test/count", "--pid=4711"], 2, "service=4711"),
        (&["test/count", "--pid=client=1"], 2, "choose another name"),
        (&["test/count", "--pid=service=4294967295"], 30, "no process 4294967295"),
        (&["test/count", "--bare-login=x.json"], 2, "--against"),
        (&["test/count", "--against=bare", "--bare-login=planner.jwt"], 30, "planner.jwt`, line 1, column 1"),
        (&["test/count", "2"], 30, "neither an object nor an array"),
        (&["test/count", "[\"{payload}\"]", "--payload=2000000"], 30, "the broker takes"),
    ] {
        let ran = run(&bench, words).fails(code, &[why]);
        assert!(!ran.stderr.contains("eyJ"), "a token is quoted: {ran:?}");
    }
    // Mistakes that only the broker reveals cost one call; all others none.
    assert!(seen.count.load(Ordering::SeqCst) <= 3);
    bench.run(&["bench", "nobody", "test/count"]).fails(20, &["nobody listens on", "--wait 10s"]);
    Shell::new().run("bench demo math/add").fails(2, &["--creds"]);
    bench.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn progress_is_a_bar_on_a_terminal() {
    let (bench, _) = stage().await;
    let words = ["bench", "--creds", "planner.creds.json", "demo", "test/count", "[]", "--duration=1s", "--warmup=0ms"];
    let shown = on_terminal(&bench.shell, &words, &[]);
    assert!(shown.contains(" % ") && shown.contains("calls/s: "), "{shown:?}");
    assert!(
        shown.contains("\r\u{1b}[K\ndemo test/count as planner") || shown.contains("\r\u{1b}[Kdemo test/count"),
        "{shown:?}"
    );
    bench.end().await;
}
