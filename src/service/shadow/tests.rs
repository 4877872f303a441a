#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;

use super::*;
use crate::name::{MethodName, Name};
use crate::policy::{Comparison, Methods, PackageId};

const POLICY: &str = "[role.worker]\nallow = [\"desk/echo\"]\n";

fn set(policy: &str) -> PolicySet {
    let methods = Methods::new().with(MethodName::new("desk/echo").unwrap());
    PolicySet::from_texts([("desk.toml", policy)], &methods).unwrap().0
}

fn shadow(policy: &str) -> Arc<ShadowPolicy> {
    let id = PackageId { number: 1, digest: String::new(), revision: String::new() };
    Arc::new(ShadowPolicy::new(id, Arc::new(set(policy))))
}

/// Calls that wait, of which so many are put there as the policy in force decides them.
fn waiting(calls: usize, size: usize) -> Arc<Waiting> {
    let shadow = shadow("[role.worker]\ndeny = [\"desk/echo\"]\n");
    shadow.compare_with(set(POLICY).revision());
    let waiting = Arc::new(Waiting { shadow, samples: Mutex::default() });
    for _ in 0..calls {
        put(&waiting, size, &set(POLICY));
    }
    waiting
}

fn put(waiting: &Arc<Waiting>, size: usize, policy: &PolicySet) {
    let caller = Arc::new(Caller::new(Name::new("ann").unwrap(), ["worker".to_owned()]));
    let params = Params::encode(&["x".repeat(size)]).unwrap();
    let question =
        Question { caller: &caller, method: "desk/echo", params: params.as_ref().map(Params::raw), now_ms: 0 };
    let decision = policy.decide(&question);
    let (waiting, method) = (Arc::clone(waiting), "desk/echo".into());
    Copied { waiting, caller: Arc::clone(&caller), method, params: params.clone() }.decided(
        &decision,
        policy.revision(),
        0,
    );
}

fn start(waiting: &Arc<Waiting>, judge: impl Fn(&Question<'_>) -> Ruling + Send + 'static) -> JoinHandle<()> {
    let weak = Arc::downgrade(waiting);
    std::thread::spawn(move || run(&weak, &judge))
}

/// Waits until what was counted is as wanted.
fn counted(waiting: &Waiting, wanted: impl Fn(&Comparison) -> bool) -> Comparison {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let comparison = waiting.shadow.comparison(true);
        if wanted(&comparison) {
            return comparison;
        }
        assert!(Instant::now() < deadline, "{comparison:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn calls_are_compared_until_nobody_is_interested_any_more() {
    let waiting = waiting(7, 10);
    let shadow = Arc::clone(&waiting.shadow);
    let thread = start(&waiting, move |question| shadow.rule(question));
    assert_eq!(counted(&waiting, |comparison| comparison.compared == 7).differ(), 7);
    // One that began under other policies says nothing.
    put(&waiting, 10, &set("[role.worker]\ndescription = \"nothing\"\n"));
    put(&waiting, 10, &set(POLICY));
    assert_eq!(counted(&waiting, |comparison| comparison.compared == 8).differ(), 8);
    drop(waiting);
    thread.join().unwrap();
}

#[test]
fn a_policy_that_panics_or_is_too_slow_is_compared_no_more_and_costs_calls_nothing() {
    let burn = |_: &Question<'_>| {
        let began = cpu_time();
        while cpu_time().saturating_sub(began) <= SLOW {}
        Ruling::of(&set(POLICY).decide(&question()))
    };
    for (is_slow, why) in [(false, "it panicked while it decided a call"), (true, "to decide a call of `desk/echo`")] {
        let waiting = waiting(3, 10);
        let thread = match is_slow {
            true => start(&waiting, burn),
            false => start(&waiting, |_| panic!("as a bug would")),
        };
        let ended = counted(&waiting, |comparison| comparison.ended.is_some());
        assert!(ended.ended.unwrap().contains(why) && ended.compared == 0);
        thread.join().unwrap();
        // What comes is not kept.
        put(&waiting, 10, &set(POLICY));
        let samples = waiting.samples();
        assert!(samples.calls.is_empty() && samples.bytes == 0);
    }
}

fn question() -> Question<'static> {
    static CALLER: std::sync::LazyLock<Caller> =
        std::sync::LazyLock::new(|| Caller::new(Name::new("ann").unwrap(), ["worker".to_owned()]));
    Question { caller: &CALLER, method: "desk/echo", params: None, now_ms: 0 }
}

#[test]
fn a_slow_policy_uses_a_part_of_a_processor_and_the_rest_is_counted_as_not_compared() {
    let waiting = waiting(100, 10);
    let judged = Arc::new(AtomicUsize::new(0));
    let (counting, began) = (Arc::clone(&judged), Instant::now());
    let thread = start(&waiting, move |_| {
        counting.fetch_add(1, Ordering::Relaxed);
        let began = cpu_time();
        while cpu_time().saturating_sub(began) <= SHARE / 2 {}
        Ruling::of(&set(POLICY).decide(&question()))
    });
    let first = counted(&waiting, |comparison| comparison.compared + comparison.skipped == 100);
    assert!(first.compared <= 3 && first.skipped >= 97, "{first:?}");
    put(&waiting, 10, &set(POLICY));
    counted(&waiting, |comparison| comparison.compared > first.compared);
    assert!(began.elapsed() >= WINDOW, "it has waited for its next share");
    drop(waiting);
    thread.join().unwrap();
}

#[test]
fn calls_that_wait_are_bounded_in_number_and_bytes_and_the_others_are_counted() {
    let many = waiting(MAX_WAITING + 5, 10);
    assert_eq!((many.samples().calls.len(), many.shadow.comparison(false).skipped), (MAX_WAITING, 5));
    let large = waiting(20, 256 * 1024);
    let samples = large.samples();
    assert!(samples.bytes <= MAX_WAITING_BYTES && samples.calls.len() == 15, "{}", samples.calls.len());
    drop(samples);
    assert_eq!(large.shadow.comparison(false).skipped, 5);
}
