//! The replay guard under threads, floods and restarts.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use futures_util::future::FutureExt as _;
use sealwire::errors::OpenError;
use sealwire::internal::auth::{AdmitError, LocalGuard, NonceLimits, ReplayGuard, TimeFloor, Window};
use sealwire::internal::wire::Nonce;
use sealwire::{Clock, ManualClock, Name};
use sealwire_testkit::site::in_memory;
use tokio::time::Instant;

use super::is_behind;

const START_S: u64 = 1_790_000_000;

/// A guard past its fence, on a clock that stands still until moved.
fn ready() -> (LocalGuard, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::at(START_S - 6));
    let guard =
        LocalGuard::open(Window::default(), NonceLimits::default(), clock.clone(), &TimeFloor::Ephemeral).unwrap();
    clock.set_ms(START_S * 1000);
    (guard, clock)
}

fn ask(guard: &LocalGuard, owner: &Name, nonce: Nonce, iat: u64, exp: u64) -> Result<(), AdmitError> {
    let answer = guard.admit(owner, nonce, iat, exp, Instant::now()).now_or_never();
    answer.expect("without a state file nothing is waited for")
}

/// SPEC.md §9.
#[test]
fn of_eight_threads_with_the_same_nonce_exactly_one_is_admitted() {
    const NONCES: usize = 5000;
    let (guard, _clock) = ready();
    let nonces: Vec<_> = (0..NONCES).map(|_| (Nonce::random(), AtomicU32::new(0))).collect();
    let together = Barrier::new(8);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let owner = Name::new("a").unwrap();
                for (index, (nonce, admitted)) in nonces.iter().enumerate() {
                    if index % 50 == 0 {
                        together.wait();
                    }
                    if ask(&guard, &owner, *nonce, START_S, START_S + 30).is_ok() {
                        admitted.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    assert!(nonces.iter().all(|(_, admitted)| admitted.load(Ordering::Relaxed) == 1));
    let stats = guard.stats();
    assert_eq!((stats.admitted, stats.replayed), (NONCES as u64, 7 * NONCES as u64));
}

/// Nonces expire and are swept while eight threads offer them: forgetting and refusing leave no gap between them.
#[test]
fn nonces_that_expire_under_a_race_are_admitted_at_most_once() {
    const NONCES: usize = 4000;
    let (guard, clock) = ready();
    let nonces: Vec<_> = (0..NONCES).map(|_| (Nonce::random(), AtomicU32::new(0))).collect();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (guard, clock, nonces) = (&guard, &clock, &nonces);
            scope.spawn(move || {
                let owner = Name::new("a").unwrap();
                for (index, (nonce, admitted)) in nonces.iter().enumerate() {
                    let iat = START_S + index as u64 / 100;
                    // One thread advances the time; the others may be ahead of it or behind.
                    if thread == 0 {
                        clock.set_ms(iat * 1000 + 999);
                        guard.sweep();
                    }
                    if ask(guard, &owner, *nonce, iat, iat + 1).is_ok() {
                        admitted.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    assert!(nonces.iter().all(|(_, admitted)| admitted.load(Ordering::Relaxed) <= 1));
    assert!(guard.stats().admitted > 0);
}

/// SPEC.md §9.
#[test]
fn a_hundred_thousand_messages_of_others_do_not_displace_a_nonce() {
    let (guard, _clock) = ready();
    let victim = Name::new("victim").unwrap();
    let flooders = ["flood-0", "flood-1"].map(|name| Name::new(name).unwrap());
    let nonce = Nonce::random();
    assert_eq!(ask(&guard, &victim, nonce, START_S, START_S + 30), Ok(()));
    for flood in 0..100_000 {
        let answer = ask(&guard, &flooders[flood % 2], Nonce::random(), START_S, START_S + 30);
        assert_eq!(answer.is_ok(), flood < 70_000, "two owners of 35,000 each");
    }
    assert_eq!(guard.stats().owner_full, 30_000);
    assert_eq!(ask(&guard, &victim, nonce, START_S, START_S + 30), Err(AdmitError::Replayed));
    assert_eq!(ask(&guard, &victim, Nonce::random(), START_S, START_S + 30), Ok(()));
}

#[tokio::test]
async fn a_crashed_run_is_fenced_even_if_the_clock_goes_back_meanwhile() {
    let folder = in_memory();
    let floor = TimeFloor::File(folder.path().join("floor"));
    let clock = Arc::new(ManualClock::at(START_S - 2));
    let owner = Name::new("a").unwrap();
    let nonce = Nonce::random();
    let open = || LocalGuard::open(Window::new(30, 1).unwrap(), NonceLimits::default(), clock.clone(), &floor);

    let guard = open().unwrap();
    clock.set_ms(START_S * 1000);
    assert_eq!(guard.admit(&owner, nonce, START_S, START_S + 30, Instant::now()).await, Ok(()));
    assert!(matches!(open(), Err(OpenError::Floor(_))), "one process at a time");
    drop(guard);

    clock.set_ms((START_S - 20) * 1000);
    let guard = open().unwrap();
    assert!(guard.not_ready().unwrap().contains("what this service has already seen"));
    for later in [0, 20_000, 9_000] {
        clock.advance_ms(later);
        let answer = guard.admit(&owner, nonce, START_S, START_S + 30, Instant::now()).await;
        assert!(is_behind(&answer), "{answer:?}");
    }
    // To the guard, the leaps look like pauses in which others may have served: it needs a few seconds more.
    ready_after(4, &guard, &clock).await;
    let now = clock.now_s();
    assert_eq!(guard.not_ready(), None);
    assert_eq!(guard.admit(&owner, Nonce::random(), now, now + 30, Instant::now()).await, Ok(()));
}

/// Takes this many steps, and more if the machine is so busy that the guard's thread missed some, which looks like a pause.
async fn ready_after(steps: u32, guard: &LocalGuard, clock: &ManualClock) {
    for step in 0..steps + 30 {
        if step >= steps && guard.not_ready().is_none() {
            return;
        }
        pass(clock).await;
    }
}

/// Lets a second and a half pass on the guard's clock, and enough real time for its thread to see that.
async fn pass(clock: &ManualClock) {
    clock.advance_ms(1_500);
    tokio::time::sleep(Duration::from_millis(1_100)).await;
}

/// A machine is suspended, and its service runs elsewhere in the meantime; it wakes up and is offered the same messages.
/// SPEC.md §9.
#[tokio::test]
async fn what_was_issued_while_a_replica_stood_still_is_stale() {
    let folder = in_memory();
    let clock = Arc::new(ManualClock::at(START_S - 2));
    let owner = Name::new("a").unwrap();
    let floor = TimeFloor::File(folder.path().join("floor"));
    let guard = LocalGuard::open(Window::new(30, 1).unwrap(), NonceLimits::default(), clock.clone(), &floor).unwrap();
    let offer = async |iat: u64| guard.admit(&owner, Nonce::random(), iat, iat + 30, Instant::now()).await;
    ready_after(2, &guard, &clock).await;
    assert_eq!(offer(clock.now_s()).await, Ok(()), "time goes by");

    clock.advance_ms(10_000);
    let now = clock.now_s();
    for iat in [now - 5, now, now + 1] {
        assert!(is_behind(&offer(iat).await), "{iat}");
    }
    assert!(guard.not_ready().is_some());
    ready_after(3, &guard, &clock).await;
    assert!(is_behind(&offer(now).await));
    assert_eq!(offer(clock.now_s()).await, Ok(()));
}

#[test]
fn a_crash_costs_the_next_start_two_seconds_more_than_a_clean_close() {
    let folder = in_memory();
    let floor = TimeFloor::File(folder.path().join("floor"));
    let clock = Arc::new(ManualClock::at(START_S));
    let open = || LocalGuard::open(Window::default(), NonceLimits::default(), clock.clone(), &floor).unwrap();
    drop(open());
    assert_eq!(open().fence(), START_S + 7);
    clock.advance_ms(10_000);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let guard = open();
    runtime.block_on(guard.close());
    drop(guard);
    assert_eq!(open().fence(), START_S + 15);
}

/// The exact fence is written while messages are still being admitted: no admitted message may be later than the fence.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_is_admitted_while_the_guard_closes_is_fenced_by_the_next_run() {
    let folder = in_memory();
    let floor = TimeFloor::File(folder.path().join("floor"));
    let window = Window::new(30, 0).unwrap();
    let clock = Arc::new(ManualClock::at(START_S));
    for round in 0..30 {
        clock.advance_ms(20_000);
        let began_s = clock.now_s();
        let guard = Arc::new(LocalGuard::open(window, NonceLimits::default(), clock.clone(), &floor).unwrap());
        clock.advance_ms(1_000);
        let callers = (0..4).map(|_| {
            let (guard, clock) = (guard.clone(), clock.clone());
            tokio::spawn(async move {
                let owner = Name::new("a").unwrap();
                let mut last = 0;
                loop {
                    clock.advance_ms(150);
                    let iat = clock.now_s();
                    match guard.admit(&owner, Nonce::random(), iat, iat + 30, Instant::now()).await {
                        Ok(()) => last = last.max(iat),
                        Err(AdmitError::Stale | AdmitError::Fenced { .. }) => {}
                        Err(_) => return last,
                    }
                }
            })
        });
        let callers: Vec<_> = callers.collect();
        tokio::time::sleep(std::time::Duration::from_millis(round % 5)).await;
        guard.close().await;
        let mut last = 0;
        for caller in callers {
            last = last.max(caller.await.unwrap());
        }
        drop(guard);
        let now_ms = clock.now_ms();
        clock.set_ms(began_s * 1000);
        let next = LocalGuard::open(window, NonceLimits::default(), clock.clone(), &floor).unwrap();
        assert!(next.fence() >= last, "round {round}: fence {} but {last} was admitted", next.fence());
        clock.set_ms(now_ms);
    }
}

/// `cargo test --release --test bus guard::local:: -- --ignored --nocapture cost`
#[test]
#[ignore = "a measurement, not a check"]
fn cost_of_a_fresh_nonce_and_of_a_replay() {
    const NONCES: usize = 30_000;
    for owners in [1, 20] {
        let (guard, _clock) = ready();
        let names: Vec<_> = (0..owners).map(|owner| Name::new(&format!("o{owner}")).unwrap()).collect();
        let nonces: Vec<_> = (0..NONCES * owners).map(|_| Nonce::random()).collect();
        for label in ["fresh", "replay"] {
            let started = std::time::Instant::now();
            for (index, nonce) in nonces.iter().enumerate() {
                let life = 1 + index as u64 % 30;
                let _ = ask(&guard, &names[index % owners], *nonce, START_S, START_S + life);
            }
            println!("{owners} owners, {label}: {} ns", started.elapsed().as_nanos() / nonces.len() as u128);
        }
        println!("{:?}", guard.stats());
    }
}
