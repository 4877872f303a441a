#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
use std::fs;
use std::path::Path;

use super::file::{beside, decode, encode};
use super::*;
use crate::clock::ManualClock;

const NOW_MS: u64 = 1_790_000_000_000;
const SKEW_S: u64 = 5;
const SKEW_MS: u64 = 5000;

fn clock() -> ManualClock {
    ManualClock::at(NOW_MS / 1000)
}

fn on_disk(path: &Path) -> u64 {
    decode(&fs::read(path).unwrap()).unwrap()
}

/// Anyone able to open the file can lock it, and so keep the service from starting.
#[cfg(unix)]
#[test]
fn the_lock_is_for_its_owner_alone_also_one_that_is_there_already() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("floor");
    let lock = beside(&path, ".lock");
    let mode = || fs::metadata(&lock).unwrap().permissions().mode() & 0o777;
    drop(Lease::open(&TimeFloor::File(path.clone()), &clock(), SKEW_S).unwrap());
    assert_eq!(mode(), 0o600);
    fs::set_permissions(&lock, fs::Permissions::from_mode(0o644)).unwrap();
    drop(Lease::open(&TimeFloor::File(path.clone()), &clock(), SKEW_S).unwrap());
    assert_eq!(mode(), 0o600);
}

#[test]
fn the_disk_is_always_ahead_of_what_is_covered() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("floor");
    let clock = clock();
    let (lease, fence) = Lease::open(&TimeFloor::File(path.clone()), &clock, SKEW_S).unwrap();
    assert_eq!(fence, NOW_MS / 1000 + SKEW_S);
    for step in [0, 1, 400, 1600, 999, 1001, 3_600_000] {
        clock.advance_ms(step);
        let now = lease.now_ms(&clock);
        if !lease.covers(now) {
            assert_eq!(lease.renew(&clock), Renewal::Granted);
        }
        assert!(lease.covers(now));
        assert!(on_disk(&path) >= now + SKEW_MS);
        assert!(!lease.covers(on_disk(&path) - SKEW_MS + 1));
    }
}

#[test]
fn a_crash_leaves_the_lease_and_a_close_the_exact_fence() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("floor");
    let clock = clock();
    drop(Lease::open(&TimeFloor::File(path.clone()), &clock, SKEW_S).unwrap());
    assert_eq!(on_disk(&path), NOW_MS + AHEAD_MS + SKEW_MS);
    // Crashing again and again does not push the lease further and further ahead.
    let (lease, fence) = Lease::open(&TimeFloor::File(path.clone()), &clock, SKEW_S).unwrap();
    assert_eq!(on_disk(&path), NOW_MS + AHEAD_MS + SKEW_MS);
    assert_eq!(fence, (NOW_MS + AHEAD_MS) / 1000 + SKEW_S);
    drop(lease);

    clock.advance_ms(10_000);
    let (lease, fence) = Lease::open(&TimeFloor::File(path.clone()), &clock, SKEW_S).unwrap();
    assert_eq!(fence, NOW_MS / 1000 + 10 + SKEW_S);
    clock.advance_ms(7);
    let now = lease.now_ms(&clock);
    lease.close().unwrap();
    assert_eq!(on_disk(&path), now + SKEW_MS);
    assert!(!lease.covers(now));
    assert_eq!(lease.renew(&clock), Renewal::Closed);
    lease.close().unwrap();
}

#[test]
fn a_smaller_skew_after_a_restart_does_not_lower_the_fence() {
    let folder = tempfile::tempdir().unwrap();
    let floor = TimeFloor::File(folder.path().join("floor"));
    let (lease, _) = Lease::open(&floor, &clock(), 30).unwrap();
    // Up to this time, a message with an `iat` 30 s later may have been admitted.
    assert!(lease.covers(NOW_MS + AHEAD_MS));
    drop(lease);
    let (_, fence) = Lease::open(&floor, &clock(), 0).unwrap();
    assert_eq!(fence, (NOW_MS + AHEAD_MS) / 1000 + 30);
}

#[test]
fn the_file_never_goes_back_with_the_clock() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("floor");
    drop(Lease::open(&TimeFloor::File(path.clone()), &clock(), SKEW_S).unwrap());
    let left = on_disk(&path);
    let earlier = ManualClock::at(1_000_000);
    let (lease, fence) = Lease::open(&TimeFloor::File(path.clone()), &earlier, SKEW_S).unwrap();
    assert_eq!(fence, left / 1000);
    assert_eq!(on_disk(&path), left);
    lease.close().unwrap();
    assert_eq!(on_disk(&path), left);
}

#[test]
fn a_second_user_of_the_file_is_turned_away_until_the_first_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    let floor = TimeFloor::File(folder.path().join("floor"));
    let first = Lease::open(&floor, &clock(), SKEW_S).unwrap();
    let error = Lease::open(&floor, &clock(), SKEW_S).unwrap_err();
    assert!(matches!(error, TimeFloorError::Locked(_)));
    assert!(error.to_string().contains("another process"), "{error}");
    drop(first);
    assert!(Lease::open(&floor, &clock(), SKEW_S).is_ok());
}

#[test]
fn a_damaged_file_is_an_error_and_a_missing_one_a_first_start() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("floor");
    let good = encode(NOW_MS);
    for bad in ["", "\n", "1790000000000\n", &good.replace("179", "178"), &good[1..], &format!("{good}\n")] {
        fs::write(&path, bad).unwrap();
        let error = Lease::open(&TimeFloor::File(path.clone()), &clock(), SKEW_S).unwrap_err();
        assert!(matches!(error, TimeFloorError::Corrupt(_)), "{bad:?}");
        assert!(matches!(TimeFloor::File(path.clone()).check(), Err(TimeFloorError::Corrupt(_))), "{bad:?}");
        assert_eq!(fs::read(&path).unwrap(), bad.as_bytes(), "the evidence is left alone");
    }
    fs::remove_file(&path).unwrap();
    assert!(Lease::open(&TimeFloor::File(path.clone()), &clock(), SKEW_S).is_ok());

    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    let error = Lease::open(&TimeFloor::File(path), &clock(), SKEW_S).unwrap_err();
    assert!(matches!(error, TimeFloorError::Io { action: "read", .. }), "{error}");
    let error = Lease::open(&TimeFloor::File(folder.path().join("none/floor")), &clock(), SKEW_S).unwrap_err();
    assert!(matches!(error, TimeFloorError::Io { action: "locked", .. }), "{error}");
}

#[test]
fn a_disk_that_refuses_ends_the_lease_and_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("floor");
    let clock = clock();
    let (lease, _) = Lease::open(&TimeFloor::File(path.clone()), &clock, SKEW_S).unwrap();
    // A folder in place of the new file: not even root can create the file there.
    fs::create_dir(beside(&path, ".new")).unwrap();
    clock.advance_ms(AHEAD_MS + 1);
    let now = lease.now_ms(&clock);
    assert_eq!(lease.renew(&clock), Renewal::Failed);
    assert!(!lease.covers(now));
    assert!(lease.failure().unwrap().contains("cannot be written"));

    fs::remove_dir(beside(&path, ".new")).unwrap();
    assert_eq!(lease.renew(&clock), Renewal::Granted);
    assert!(lease.covers(now));
    assert_eq!(lease.failure(), None);
}
