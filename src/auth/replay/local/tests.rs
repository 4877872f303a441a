#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
use super::*;
use crate::clock::ManualClock;

const NOW: u64 = 1_790_000_000;

/// A guard that is past its fence, on a clock that stands still until moved.
fn ready(nonce_limits: NonceLimits) -> (LocalGuard, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::at(NOW - 6));
    let guard = LocalGuard::open(Window::default(), nonce_limits, clock.clone(), &TimeFloor::Ephemeral).unwrap();
    clock.set_ms(NOW * 1000);
    (guard, clock)
}

async fn offer(guard: &LocalGuard, owner: &str, nonce: Nonce, iat: u64, exp: u64) -> Result<(), AdmitError> {
    guard.admit(&Name::new(owner).unwrap(), nonce, iat, exp, Instant::now()).await
}

/// SPEC.md §9.
#[tokio::test]
async fn a_nonce_is_admitted_once_and_belongs_to_its_owner() {
    let (guard, _) = ready(NonceLimits::default());
    let nonce = Nonce::random();
    assert_eq!(offer(&guard, "a", nonce, NOW, NOW + 30).await, Ok(()));
    assert_eq!(offer(&guard, "a", nonce, NOW, NOW + 30).await, Err(AdmitError::Replayed));
    assert_eq!(
        offer(&guard, "a", nonce, NOW + 1, NOW + 31).await,
        Err(AdmitError::Replayed),
        "another message, same nonce"
    );
    assert_eq!(offer(&guard, "b", nonce, NOW, NOW + 30).await, Ok(()));
    let stats = guard.stats();
    assert_eq!((stats.admitted, stats.replayed, stats.live, stats.owners), (2, 2, 2, 2));
}

#[tokio::test]
async fn the_guard_judges_the_window_itself() {
    let (guard, clock) = ready(NonceLimits::default());
    let stale = [(NOW - 1, NOW), (NOW + 6, NOW + 30), (NOW, NOW + 31), (NOW + 2, NOW + 2)];
    for (iat, exp) in stale {
        assert_eq!(offer(&guard, "a", Nonce::random(), iat, exp).await, Err(AdmitError::Stale), "{iat}..{exp}");
    }
    let fenced = Err(AdmitError::Fenced { retry_after_ms: 5_000 });
    assert_eq!(offer(&guard, "a", Nonce::random(), NOW - 6, NOW + 3).await, fenced, "its caller's clock may be behind");
    assert_eq!(guard.stats().live, 0, "nothing that is refused is stored");
    clock.advance_ms(30_000);
    assert_eq!(offer(&guard, "a", Nonce::random(), NOW, NOW + 30).await, Err(AdmitError::Stale));
}

/// SPEC.md §9.
#[tokio::test]
async fn what_was_issued_before_the_start_is_not_vouched_for() {
    let clock = Arc::new(ManualClock::at(NOW));
    let guard =
        LocalGuard::open(Window::default(), NonceLimits::default(), clock.clone(), &TimeFloor::Ephemeral).unwrap();
    assert_eq!(guard.fence(), NOW + 5);
    assert!(guard.not_ready().unwrap().contains("ready in 6 s"));
    let behind = |retry_after_ms| Err(AdmitError::Fenced { retry_after_ms });
    assert_eq!(offer(&guard, "a", Nonce::random(), NOW + 5, NOW + 30).await, behind(6_000));
    clock.advance_ms(6000);
    assert_eq!(guard.not_ready(), None);
    // A caller whose clock is behind is told so for as long as it may be. Later, only a copy is as old as that.
    assert_eq!(offer(&guard, "a", Nonce::random(), NOW + 5, NOW + 30).await, behind(1_000));
    assert_eq!(offer(&guard, "a", Nonce::random(), NOW + 2, NOW + 30).await, behind(4_000));
    assert_eq!(offer(&guard, "a", Nonce::random(), NOW + 6, NOW + 30).await, Ok(()));
    let (known, copy) = (Nonce::random(), (NOW + 6, NOW + 36));
    assert_eq!(offer(&guard, "a", known, copy.0, copy.1).await, Ok(()));
    guard.outsider();
    assert_eq!(
        offer(&guard, "a", known, copy.0, copy.1).await,
        Err(AdmitError::Replayed),
        "it is known, whatever the fence says"
    );
    assert_eq!(offer(&guard, "a", Nonce::random(), copy.0, copy.1).await, behind(11_000));
    clock.advance_ms(16_000);
    assert_eq!(
        offer(&guard, "a", Nonce::random(), copy.0, copy.1).await,
        Err(AdmitError::Stale),
        "a copy that was kept"
    );
}

/// A store that forgets idle entries counts real time. After a step back, the wall clock takes longer.
#[tokio::test]
async fn nonces_outlive_any_idle_time_while_the_clock_is_behind() {
    let (guard, clock) = ready(NonceLimits::default());
    let nonce = Nonce::random();
    assert_eq!(offer(&guard, "a", nonce, NOW, NOW + 30).await, Ok(()));
    clock.set_ms((NOW - 3600) * 1000);
    // An hour passes on the wall clock, sweep after sweep, until the message is just in time.
    for _ in 0..3600 {
        clock.advance_ms(1000);
        guard.sweep();
    }
    assert_eq!(guard.stats().live, 1);
    assert_eq!(offer(&guard, "a", nonce, NOW, NOW + 30).await, Err(AdmitError::Replayed));
    clock.advance_ms(29_999);
    guard.sweep();
    assert_eq!(offer(&guard, "a", nonce, NOW, NOW + 30).await, Err(AdmitError::Replayed));
    clock.advance_ms(1);
    guard.sweep();
    assert_eq!((guard.stats().live, guard.stats().owners), (0, 0));
    assert_eq!(offer(&guard, "a", nonce, NOW, NOW + 30).await, Err(AdmitError::Stale));
}

#[tokio::test]
async fn a_clock_stepped_back_is_reported_and_brings_nothing_back() {
    let (guard, clock) = ready(NonceLimits::default());
    let (early, late) = (Nonce::random(), Nonce::random());
    assert_eq!(offer(&guard, "a", early, NOW, NOW + 30).await, Ok(()));
    clock.advance_ms(31_000);
    assert_eq!(offer(&guard, "a", late, NOW + 31, NOW + 61).await, Ok(()));
    clock.set_ms(NOW * 1000);
    assert_eq!(
        offer(&guard, "a", early, NOW, NOW + 30).await,
        Err(AdmitError::Stale),
        "forgotten, so judged at the floor"
    );
    assert_eq!(guard.stats().lag_ms, 31_000);
    assert!(guard.not_ready().unwrap().contains("stepped back by 31000 ms"));
    clock.advance_ms(31_000);
    assert_eq!(guard.not_ready(), None);
}

#[tokio::test]
async fn a_full_owner_is_told_when_to_return_and_others_do_not_notice() {
    let (guard, clock) = ready(NonceLimits { owner: 10, total: 1000, owners: 20, reserve: 2 });
    for second in 0..10 {
        assert_eq!(offer(&guard, "a", Nonce::random(), NOW, NOW + 20 + second).await, Ok(()));
    }
    clock.advance_ms(500);
    let full = offer(&guard, "a", Nonce::random(), NOW, NOW + 20).await;
    assert_eq!(full, Err(AdmitError::OwnerFull { retry_after_ms: 19_500 }));
    assert_eq!(offer(&guard, "b", Nonce::random(), NOW, NOW + 20).await, Ok(()));
    clock.advance_ms(19_500);
    assert_eq!(offer(&guard, "a", Nonce::random(), NOW + 20, NOW + 30).await, Ok(()));
    assert_eq!(guard.stats().owner_full, 1);
}

#[tokio::test]
async fn greedy_owners_leave_every_other_owner_its_reserve() {
    let (guard, _) = ready(NonceLimits { owner: 400, total: 2000, owners: 200, reserve: 4 });
    for greedy in 0..20 {
        let owner = format!("greedy-{greedy}");
        while offer(&guard, &owner, Nonce::random(), NOW, NOW + 30).await.is_ok() {}
    }
    for late in 0..180 {
        let owner = format!("late-{late}");
        for _ in 0..4 {
            assert_eq!(offer(&guard, &owner, Nonce::random(), NOW, NOW + 30).await, Ok(()));
        }
    }
    assert_eq!(
        offer(&guard, "late-0", Nonce::random(), NOW, NOW + 30).await,
        Err(AdmitError::Full { retry_after_ms: 1000 }),
        "beyond the reserve the pool decides"
    );
    assert_eq!(
        offer(&guard, "one-too-many", Nonce::random(), NOW, NOW + 30).await,
        Err(AdmitError::Full { retry_after_ms: 1000 })
    );
    let stats = guard.stats();
    assert!(stats.live <= 2000 && stats.full >= 2, "{stats:?}");
}

#[tokio::test]
async fn the_total_is_the_sum_of_the_windows_at_all_times() {
    let (guard, clock) = ready(NonceLimits { owner: 50, total: 150, owners: 10, reserve: 3 });
    for round in 0..400_u64 {
        let now = clock.now_s();
        let owner = format!("o{}", round % 11);
        for life in 1..=(round % 30) {
            let _ = offer(&guard, &owner, Nonce::random(), now, now + life).await;
        }
        if round % 7 == 0 {
            clock.advance_ms(round % 5 * 1000);
            guard.sweep();
        }
        assert_eq!(guard.stats().live, guard.shared.nonces.count(), "round {round}");
    }
    clock.advance_ms(60_000);
    guard.sweep();
    assert_eq!((guard.stats().live, guard.stats().owners), (0, 0));
}

#[tokio::test]
async fn an_interrupted_check_closes_its_owner_and_no_other() {
    let (guard, _) = ready(NonceLimits::default());
    guard.shared.nonces.poison(&Name::new("a").unwrap());
    let interrupted = Err(AdmitError::Unavailable(Outage::Interrupted));
    assert_eq!(offer(&guard, "a", Nonce::random(), NOW, NOW + 30).await, interrupted);
    guard.sweep();
    assert_eq!(offer(&guard, "a", Nonce::random(), NOW, NOW + 30).await, interrupted, "also after a sweep");
    assert_eq!(offer(&guard, "b", Nonce::random(), NOW, NOW + 30).await, Ok(()));
    assert_eq!(guard.stats().unavailable, 2);
}

#[tokio::test]
async fn a_closed_guard_admits_nothing() {
    let (guard, _) = ready(NonceLimits::default());
    guard.close().await;
    assert_eq!(offer(&guard, "a", Nonce::random(), NOW, NOW + 30).await, Err(AdmitError::Unavailable(Outage::Closed)));
    assert!(guard.not_ready().is_some());
}

#[tokio::test]
async fn a_floor_that_cannot_be_written_refuses_until_it_can() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("floor");
    let clock = Arc::new(ManualClock::at(NOW - 2));
    let guard = LocalGuard::open(
        Window { window_s: 30, skew_s: 1 },
        NonceLimits::default(),
        clock.clone(),
        &TimeFloor::File(path),
    )
    .unwrap();
    let obstacle = folder.path().join("floor.new");
    std::fs::create_dir(&obstacle).unwrap();
    // The thread retries every second.
    clock.advance_ms(1_500);
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    clock.set_ms((NOW + 1) * 1000);
    let refused = Err(AdmitError::Unavailable(Outage::FloorNotWritten));
    let nonce = Nonce::random();
    // On a busy machine, the thread takes longer to notice.
    for _ in 0..600 {
        if guard.not_ready().is_some_and(|why| why.contains("cannot be written")) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(offer(&guard, "a", nonce, NOW, NOW + 30).await, refused);
    assert!(guard.not_ready().unwrap().contains("cannot be written"));
    assert_eq!(guard.stats().live, 0);

    std::fs::remove_dir(obstacle).unwrap();
    // The upkeep thread repairs it within about a second.
    for _ in 0..1_200 {
        if guard.not_ready().is_none() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(offer(&guard, "a", nonce, NOW, NOW + 30).await, Ok(()));
}

#[tokio::test]
async fn a_window_changed_by_hand_is_checked_again() {
    let window = Window { window_s: 3000, skew_s: 5 };
    let clock = Arc::new(ManualClock::at(NOW));
    let error = LocalGuard::open(window, NonceLimits::default(), clock, &TimeFloor::Ephemeral).unwrap_err();
    assert!(matches!(error, OpenError::Window(WindowError::Window(3000))));
}

/// SPEC.md §9.
#[tokio::test]
async fn a_replica_that_begins_to_serve_is_fenced_by_what_others_may_have_run() {
    let fence_of = async |skew_s: u64, left_s: Option<u64>| {
        let folder = tempfile::tempdir().unwrap();
        let floor = TimeFloor::File(folder.path().join("floor"));
        let window = Window { window_s: 30, skew_s };
        let clock = Arc::new(ManualClock::at(NOW));
        if let Some(left_s) = left_s {
            clock.set_ms(left_s * 1000);
            LocalGuard::open(window, NonceLimits::default(), clock.clone(), &floor).unwrap().close().await;
            clock.set_ms(NOW * 1000);
        }
        let guard = LocalGuard::open(window, NonceLimits::default(), clock, &floor).unwrap();
        guard.serving();
        let ahead = Nonce::random();
        let iat = NOW + skew_s;
        let refused = offer(&guard, "a", ahead, iat, iat + 30).await;
        assert!(matches!(refused, Err(AdmitError::Fenced { .. })), "not even what is dated ahead: {refused:?}");
        guard.fence()
    };
    assert_eq!(fence_of(5, None).await, NOW + 10, "another machine's clock, and the caller's, may both be ahead");
    assert_eq!(fence_of(1, None).await, NOW + 3, "and a shared replica that was paused is heard of again");
    assert_eq!(fence_of(5, Some(NOW - 3600)).await, NOW + 10, "who served since is not known");
    assert_eq!(fence_of(5, Some(NOW - 4)).await, NOW + 10, "nor here");
    assert_eq!(fence_of(5, Some(NOW - 3)).await, NOW + 5, "nobody else can have run anything in so short a time");
}
