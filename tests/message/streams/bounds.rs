//! What one caller can make a service do, and hold, for it (SPEC.md §15.1, §25).

use std::time::Duration;

use sealwire::internal::wire::ControlOp;

use super::*;

/// How many bytes were sent since the last call of this function.
fn sent(caller: &Caller) -> usize {
    caller.out.frames.lock().unwrap().drain(..).map(|frame| frame.headers().len() + frame.payload().len()).sum()
}

/// SPEC.md §25: frames are sent again more and more rarely to a caller that acknowledges nothing.
#[tokio::test(start_paused = true)]
async fn frames_are_sent_again_ever_more_seldom_until_some_are_acknowledged() {
    let (desk, _) = desk();
    let mut caller = Caller::call(&desk, desk.agent("ann", &["worker"]), &call("desk/count", "[20]"), 4);
    caller.settled().await;
    let began = tokio::time::Instant::now();
    let mut granted = Vec::new();
    while began.elapsed() < Duration::from_secs(10) {
        caller.control(ControlOp::Again { ack: None }).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        if sent(&caller) > 0 {
            granted.push((began.elapsed().as_millis() - 50) / 50 * 50);
        }
    }
    assert_eq!(granted, [0, 100, 300, 700, 1_500, 3_100, 6_300, 9_500]);
    // An acknowledgement makes the next repetition as quick as the first.
    caller.receiver.allow(6);
    caller.ack(2).await;
    caller.settled().await;
    for pause_ms in [110, 210] {
        tokio::time::sleep(Duration::from_millis(pause_ms)).await;
        caller.control(ControlOp::Again { ack: Some(2) }).await;
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert!(sent(&caller) > 0);
    }
}

/// SPEC.md §15.1: the bytes that are sent again are limited for each agent, over all its calls and whatever it acknowledges.
#[tokio::test(start_paused = true)]
async fn what_an_agent_has_sent_again_is_bounded_in_bytes() {
    let (router, _) = router();
    let streams = StreamLimits { bytes: 8 << 20, ..StreamLimits::default() };
    let limits = ServiceLimits { streams, ..ServiceLimits::default() };
    let desk = Arc::new(Desk::open_with(router, sealwire_testkit::desk::POLICY, limits));
    let blobs = |name| Caller::call(&desk, desk.agent(name, &["worker"]), &call("desk/blobs", "[1000]"), 1_000);
    let mut callers: Vec<_> = (0..4).map(|_| blobs("ann")).collect();
    tokio::time::sleep(Duration::from_millis(50)).await;
    let kept: usize = callers.iter().map(sent).sum();
    assert!(kept > 3 << 20, "about 1 MiB each: {kept}");

    // Everything once, which is what a lost connection costs an honest caller.
    for caller in &mut callers {
        caller.control(ControlOp::Again { ack: None }).await;
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(callers.iter().map(sent).sum::<usize>(), kept);

    // From then on, a 32nd of 4 MiB a second, however many calls it has and whatever it acknowledges.
    let mut again = 0;
    for round in 0..100 {
        tokio::time::sleep(Duration::from_millis(200)).await;
        for caller in &mut callers {
            caller.ack(round / 50).await;
            caller.control(ControlOp::Again { ack: None }).await;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
        again += callers.iter().map(sent).sum::<usize>();
    }
    assert!(again > 1 << 20, "it is not silenced either: {again}");
    assert!(again < (20 * (4 << 20) / 32) + (2 << 20), "{again}");

    // Nobody else pays for it.
    let mut bob = blobs("bob");
    tokio::time::sleep(Duration::from_millis(50)).await;
    let first = sent(&bob);
    bob.control(ControlOp::Again { ack: None }).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(first > 0 && sent(&bob) == first, "{first}");
}

fn desk_with(change: impl FnOnce(&mut ServiceLimits)) -> Arc<Desk> {
    let mut limits = ServiceLimits::default();
    change(&mut limits);
    Arc::new(Desk::open_with(router().0, sealwire_testkit::desk::POLICY, limits))
}

/// SPEC.md §15.1: streams count only among streams, so an agent with many subscriptions can still call.
#[tokio::test(start_paused = true)]
async fn open_streams_take_no_place_of_other_calls() {
    let desk = desk_with(|limits| limits.quota.in_flight = 2);
    let ticks = || Caller::call(&desk, desk.agent("ann", &["worker"]), &call("desk/ticks", "[]"), 900);
    let mut open: Vec<_> = (0..8).map(|_| ticks()).collect();
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(open.iter_mut().all(|caller| !caller.task.is_finished()));
    let answer = desk.ask(&desk.agent("ann", &["worker"]), &call("desk/echo", "[1]")).await.unwrap();
    assert_eq!(code(&answer), None, "{answer}");
}

/// SPEC.md §15.1: an agent may open another stream only while it has fewer than are free.
#[tokio::test(start_paused = true)]
async fn no_agent_takes_the_last_place_of_a_stream() {
    let desk = desk_with(|limits| limits.streams.in_all = 8);
    let sleep = |name| Caller::call(&desk, desk.agent(name, &["worker"]), &call("desk/sleep", "[]"), 4);
    let open: Vec<_> = ["ann"; 6].iter().chain(&["bob"; 6]).chain(&["eve"; 6]).map(|name| sleep(name)).collect();
    tokio::time::sleep(Duration::from_millis(20)).await;
    let running = |from: usize| open[from..from + 6].iter().filter(|caller| !caller.task.is_finished()).count();
    assert_eq!((running(0), running(6), running(12)), (4, 2, 1), "each half of what is left");
}

/// SPEC.md §15.1: nor does one of the subjects that an agent acts for take the agent's last place.
#[tokio::test(start_paused = true)]
async fn those_that_an_agent_acts_for_share_its_streams() {
    let desk = desk_with(|limits| limits.streams.per_agent = 8);
    desk.change_policy("[role.worker]\nallow = [\"desk/*\"]\ndelegated = \"also\"\n");
    let sleep = |subject: &str| {
        let acting = desk.agent_with("ann", |request| {
            request.subject = subject.to_owned();
            request.actor = Some("ann".to_owned());
        });
        Caller::call(&desk, acting, &call("desk/sleep", "[]"), 4)
    };
    let mut open: Vec<_> = ["u1"; 6].iter().chain(&["u2"; 6]).chain(&["u3"; 6]).map(|subject| sleep(subject)).collect();
    tokio::time::sleep(Duration::from_millis(20)).await;
    let running =
        |open: &[Caller], from: usize| open[from..from + 6].iter().filter(|caller| !caller.task.is_finished()).count();
    assert_eq!((running(&open, 0), running(&open, 6), running(&open, 12)), (4, 2, 1), "each half of what is left");
    // Places that one subject gives back are free for another.
    for caller in &mut open[..4] {
        caller.control(ControlOp::Cancel).await;
        caller.finished().await;
    }
    let more: Vec<_> = (0..3).map(|_| sleep("u3")).collect();
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(more.iter().filter(|caller| !caller.task.is_finished()).count(), 2);
}

/// SPEC.md §15.1: the requests of open streams are held, and counted.
#[tokio::test(start_paused = true)]
async fn requests_of_open_streams_are_bounded_in_bytes() {
    let desk = desk_with(|limits| limits.streams.bytes = 1 << 20);
    let large = format!("[\"{}\"]", "x".repeat(100_000));
    let sleep = |name| Caller::call(&desk, desk.agent(name, &["worker"]), &call("desk/hold", &large), 4);
    let mut open: Vec<_> = (0..8).map(|_| sleep("ann")).collect();
    tokio::time::sleep(Duration::from_millis(20)).await;
    let running = open.iter().filter(|caller| !caller.task.is_finished()).count();
    assert_eq!(running, 5, "half of what there is");
    let (refused, _) = open.last_mut().unwrap().finished().await;
    let refused = text(&refused.unwrap());
    assert!(code(&refused) == Some(-32013) && refused.contains("replica-streams"), "{refused}");
    let bob = sleep("bob");
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert!(!bob.task.is_finished());
    // The bytes are given back with the calls; bob's share reduces what ann may have.
    for caller in &mut open[..2] {
        caller.control(ControlOp::Cancel).await;
        caller.finished().await;
    }
    let again = sleep("ann");
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert!(!again.task.is_finished());
}

/// SPEC.md §15.1: an agent that ends many streams makes room by giving up its own last frames.
#[tokio::test(start_paused = true)]
async fn last_frames_are_not_let_go_of_for_somebody_else() {
    let desk = desk_with(|limits| limits.streams.in_all = 8);
    let count = |name| Caller::call(&desk, desk.agent(name, &["worker"]), &call("desk/count", "[3]"), 32);
    let mut bob = count("bob");
    bob.finished().await;
    for _ in 0..20 {
        count("ann").finished().await;
    }
    bob.control(ControlOp::Again { ack: Some(2) }).await;
    tokio::time::sleep(Duration::from_millis(5)).await;
    let again: Vec<_> = bob.out.frames.lock().unwrap().drain(..).map(|frame| frame.seq()).collect();
    assert_eq!(again, [3, 4]);
}
