//! When schemas are compiled, what is kept of them, and where values are checked.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

use serde_json::json;
use serde_json::value::{RawValue, to_raw_value};
use tokio::sync::Semaphore;

use super::{CheckError, Schema, apart};

fn raw(value: &serde_json::Value) -> Box<RawValue> {
    to_raw_value(value).unwrap()
}

fn read(schema: &serde_json::Value) -> Schema {
    Schema::read(&raw(schema)).unwrap()
}

/// A schema whose check of a text of 8,000 characters takes too long for a worker, but not too long for a check.
fn slow() -> Schema {
    read(&json!({ "properties": { "x": { "pattern": "[ab]*a[ab]{1000}c" } } }))
}

/// What is compiled is bounded for the whole process: a test that fills that up takes it from another.
static ALONE: Mutex<()> = Mutex::new(());

#[test]
fn a_schema_is_compiled_when_a_value_is_checked() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let schema = read(&json!({ "type": "object" }));
    assert!(schema.known().is_none());
    schema.try_out().unwrap();
    assert!(schema.known().is_none(), "nothing is kept of a trial");
    schema.check(&raw(&json!({}))).unwrap();
    assert!(schema.known().is_some_and(|known| known.is_ok()));
    // A fault that shows only then.
    let wrong = read(&json!({ "pattern": "(?:a" }));
    assert!(wrong.try_out().is_err());
    assert!(wrong.check(&raw(&json!({}))).is_err());
    assert!(wrong.known().is_some_and(|known| known.is_err()));
}

#[test]
fn compiled_schemas_are_bounded_all_together() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    // Each takes a megabyte or more.
    let schemas: Vec<Schema> =
        (0..200).map(|n| read(&json!({ "const": n, "description": "x".repeat(64_000) }))).collect();
    for (n, schema) in schemas.iter().enumerate() {
        schema.check(&raw(&json!(n))).unwrap();
    }
    let kept = schemas.iter().filter(|schema| schema.known().is_some()).count();
    assert!((10..=130).contains(&kept), "{kept}");
    let (first, last) = (schemas.first().unwrap(), schemas.last().unwrap());
    assert!(first.known().is_none() && last.known().is_some());
    // It is compiled again.
    first.check(&raw(&json!(0))).unwrap();
    assert!(first.check(&raw(&json!(1))).is_err());
    assert!(first.known().is_some());
}

#[tokio::test]
async fn short_checks_are_made_at_once_and_long_ones_in_turn() {
    let turn = Arc::new(Semaphore::new(1));
    let (schema, short, long) = (slow(), raw(&json!({ "x": "ab" })), raw(&json!({ "x": "ab".repeat(4_000) })));
    // The first check compiles it.
    assert!(matches!(schema.fits(&short, &turn).await, Err(CheckError::Value(_))));
    let busy = Arc::clone(&turn).acquire_owned().await.unwrap();
    assert!(matches!(schema.fits(&raw(&json!({})), &turn).await, Ok(())), "it needs no turn");
    let mut waits = Box::pin(schema.fits(&long, &turn));
    assert!(futures_util::poll!(&mut waits).is_pending());
    drop(busy);
    let mismatch = waits.await.unwrap_err().to_string();
    assert!(mismatch.contains("does not match"), "{mismatch}");
    assert_eq!(turn.available_permits(), 1);
}

#[tokio::test]
async fn a_check_that_nobody_waits_for_keeps_its_place_to_its_end_and_no_worker() {
    let (go_on, blocked) = mpsc::channel::<()>();
    let (begun, has_begun) = mpsc::channel::<()>();
    let mut running = Box::pin(apart::READING.run(move || {
        begun.send(()).unwrap();
        blocked.recv().is_ok()
    }));
    // This is the only worker, and it goes on. Another test may have the place at first, and work that has not begun is not done.
    while has_begun.try_recv().is_err() {
        assert!(futures_util::poll!(&mut running).is_pending());
        tokio::task::yield_now().await;
    }
    drop(running);
    let mut next = Box::pin(apart::READING.run(|| 7));
    assert!(futures_util::poll!(&mut next).is_pending(), "there is no other place");
    go_on.send(()).unwrap();
    assert_eq!(next.await, Ok(7));
    assert!(apart::READING.run(|| panic!("a defect")).await.is_err());
    assert_eq!(apart::READING.run(|| 8).await, Ok(8), "its place is free again");
}

#[test]
fn the_end_of_a_runtime_is_not_held_up_by_a_check() {
    let (go_on, blocked) = mpsc::channel::<()>();
    let (begun, has_begun) = mpsc::channel::<()>();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
    runtime.spawn(apart::CHECKING.run(move || {
        begun.send(()).unwrap();
        blocked.recv().is_ok()
    }));
    has_begun.recv_timeout(Duration::from_secs(60)).unwrap();
    drop(runtime);
    // Only now can the check end.
    go_on.send(()).unwrap();
}
