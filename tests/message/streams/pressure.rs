//! What a method sends while its caller has no room (SPEC.md §25).

use std::time::Duration;

use sealwire::internal::wire::ControlOp;

use super::*;

/// SPEC.md §25: waiting notes leave in one frame, and there are never more of them than fit in one frame.
#[tokio::test(start_paused = true)]
async fn progress_that_finds_no_room_waits_and_comes_together() {
    let (desk, _) = desk();
    let mut caller = Caller::call(&desk, desk.agent("ann", &["worker"]), &call("desk/steps", "[100]"), 2);
    let steps = |frames: &[Received]| -> Vec<u64> {
        notes(frames).iter().map(|params| params["progress"].as_f64().unwrap() as u64).collect()
    };
    let frames = caller.settled_for(100).await;
    assert_eq!(steps(&frames), [1, 2], "its window");
    caller.receiver.allow(4);
    caller.ack(2).await;
    let frames = caller.settled_for(100).await;
    assert_eq!((frames.len(), steps(&frames)), (1, (51..=100).collect()), "the latest, in their order");
    let (_, frames) = caller.finished().await;
    assert_eq!(end(&frames)["result"], "done");
}

/// SPEC.md §25: progress that has room is sent before the end, and the rest is dropped.
#[tokio::test(start_paused = true)]
async fn progress_that_never_finds_room_does_not_hold_up_the_end() {
    let (desk, _) = desk();
    let mut caller = Caller::call(&desk, desk.agent("ann", &["worker"]), &call("desk/steps", "[100]"), 2);
    let (_, frames) = caller.finished().await;
    assert_eq!((notes(&frames).len(), end(&frames)["result"].clone()), (2, json!("done")));
    assert!(caller.receiver.is_ended());
}

/// SPEC.md §25.
#[tokio::test(start_paused = true)]
async fn notifications_of_a_subscription_that_come_together_leave_together() {
    let (desk, _) = desk();
    let mut caller = Caller::call(&desk, desk.agent("ann", &["worker"]), &call("desk/flood", "[120]"), 32);
    let (_, frames) = caller.finished().await;
    assert_eq!(notes(&frames), (1..=120).map(|number| json!([number])).collect::<Vec<_>>());
    assert_eq!(kinds(&frames)[1..], [FrameKind::Note, FrameKind::Note, FrameKind::Note, FrameKind::End]);
}

/// SPEC.md §25: items are not taken from a method in order to be held beside the frames.
#[tokio::test(start_paused = true)]
async fn large_items_are_asked_for_one_at_a_time() {
    let (desk, seen) = desk();
    let mut caller = Caller::call(&desk, desk.agent("ann", &["worker"]), &call("desk/blobs", "[100]"), 4);
    assert_eq!(items(&caller.settled().await).len(), 4);
    assert_eq!(seen.produced.load(Ordering::SeqCst), 5, "one waits, and no more is asked for");
}

/// SPEC.md §15.1: as many questions as may be open are sent, and none beyond that, which nobody could answer.
#[tokio::test(start_paused = true)]
async fn questions_that_wait_for_room_count_as_asked() {
    let (desk, _) = desk();
    let mut caller = Caller::call(&desk, desk.agent("ann", &["worker"]), &call("desk/asks", "[40]"), 1);
    assert_eq!(kinds(&caller.settled_for(5).await), [FrameKind::Open, FrameKind::Ask]);
    caller.receiver.allow(101);
    caller.control(ControlOp::Ack { ack: 1, window: Some(100), timeout_ms: None }).await;
    assert_eq!(kinds(&caller.settled_for(5).await), [FrameKind::Ask; 15]);
}

/// SPEC.md §6.1: a call that is cancelled at the very moment it finishes has an outcome, which is kept.
#[tokio::test(start_paused = true)]
async fn an_outcome_that_was_there_when_the_call_was_cancelled_is_kept() {
    let go = Arc::new(Notify::new());
    let router = Router::new(Arc::clone(&go)).method("desk/pay", |ctx: Ctx<Arc<Notify>>, (): ()| async move {
        ctx.state().notified().await;
        Ok::<_, RpcError>("paid")
    });
    let desk = Arc::new(Desk::open(router.idempotent("desk/pay", Duration::from_secs(60))));
    let pay = || {
        let ann = desk.agent("ann", &["worker"]);
        let letter = desk.keyed(&ann, "k", &call("desk/pay", "[]"));
        Caller::send(&desk, ann, letter, None)
    };
    let mut caller = pay();
    caller.settled_for(5).await;
    // Both happen before the method is polled again.
    go.notify_one();
    caller.control(ControlOp::Cancel).await;
    let (answer, _) = caller.finished().await;
    assert_eq!(code(&text(&answer.unwrap())), Some(-32016));
    let (answer, _) = pay().finished().await;
    let answer: Value = serde_json::from_str(&text(&answer.unwrap())).unwrap();
    assert_eq!((&answer["result"], &answer["idempotent_replay"]), (&json!("paid"), &json!(true)), "{answer}");
}
