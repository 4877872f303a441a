//! What is left of a call when it has ended: nothing that others wait for, and nothing that the application could hold on
//! to (SPEC.md §15.1, §25).

use std::time::Duration;

use sealwire::configure::RecordConfig;
use sealwire::errors::code as codes;
use sealwire::internal::wire::ControlOp;
use sealwire::serve::Recorder;
use sealwire_testkit::desk::Setup;

use super::*;

/// SPEC.md §25: the task that judges control messages does not wait for the frames of a call that has ended.
#[tokio::test(start_paused = true)]
async fn an_outlet_that_is_stuck_holds_up_nobody_who_judges_control() {
    let (desk, _) = desk();
    let mut caller = Caller::call(&desk, desk.agent("ann", &["worker"]), &call("desk/count", "[3]"), 32);
    caller.finished().await;
    caller.out.is_stuck.store(true, Ordering::SeqCst);
    let began = tokio::time::Instant::now();
    caller.control(ControlOp::Again { ack: Some(1) }).await;
    assert_eq!(began.elapsed(), Duration::ZERO, "control was judged without waiting for the frames");
    // The task that sends the frames does not give up at once.
    tokio::time::sleep(Duration::from_secs(1)).await;
    caller.out.is_stuck.store(false, Ordering::SeqCst);
    caller.out.unstuck.notify_waiters();
    tokio::time::sleep(Duration::from_millis(5)).await;
    let again: Vec<_> = caller.out.frames.lock().unwrap().drain(..).map(|frame| frame.seq()).collect();
    assert_eq!(again, [2, 3, 4]);
}

/// What a method leaves behind.
type Kept = Arc<Mutex<Vec<(Ctx<Shelf>, Sink<String>)>>>;

#[derive(Clone, Default)]
struct Shelf {
    kept: Kept,
    ended: Arc<AtomicUsize>,
}

/// A method that gives its context and its sink to a task, and answers.
fn keeping() -> (Router<Shelf>, Shelf) {
    let shelf = Shelf::default();
    let router = Router::new(shelf.clone())
        .method_with_sink("desk/keep", |ctx: Ctx<Shelf>, (bytes,): (usize,), sink: Sink<String>| async move {
            for _ in 0..8 {
                sink.send(&"x".repeat(bytes)).await?;
            }
            ctx.state().kept.lock().unwrap().push((ctx.clone(), sink.clone()));
            let (task, state) = (ctx.clone(), ctx.state().clone());
            tokio::spawn(async move {
                task.cancelled().await;
                state.ended.fetch_add(1, Ordering::SeqCst);
            });
            Ok::<_, RpcError>("done")
        })
        .method("desk/quick", |ctx: Ctx<Shelf>, (): ()| async move {
            let state = ctx.state().clone();
            tokio::spawn(async move {
                ctx.cancelled().await;
                assert!(ctx.is_cancelled());
                state.ended.fetch_add(1, Ordering::SeqCst);
            });
            Ok::<_, RpcError>("done")
        });
    (router, shelf)
}

/// SPEC.md §15.1: the handles that the application keeps after a call hold none of the bytes that were kept for its frames.
#[tokio::test(start_paused = true)]
async fn a_sink_that_outlives_its_call_holds_no_frames() {
    let (router, shelf) = keeping();
    let streams = StreamLimits { bytes: 4 << 20, ..StreamLimits::default() };
    let limits = ServiceLimits { streams, ..ServiceLimits::default() };
    let desk = Arc::new(Desk::open_with(router, sealwire_testkit::desk::POLICY, limits));
    // 800 KB each time, of which nothing is acknowledged; the sum is far above what may be kept for one agent.
    for _ in 0..8 {
        let mut caller = Caller::call(&desk, desk.agent("ann", &["worker"]), &call("desk/keep", "[100000]"), 32);
        let (_, frames) = caller.finished().await;
        assert_eq!(end(&frames)["result"], "done");
        tokio::time::sleep(Duration::from_secs(11)).await;
        desk.service.review();
    }
    let kept: Vec<_> = shelf.kept.lock().unwrap().drain(..).collect();
    assert_eq!(kept.len(), 8);
    for (ctx, sink) in kept {
        assert!(ctx.is_cancelled() && sink.send(&"more".to_owned()).await.is_err());
    }
}

/// SPEC.md §25: a task that a method leaves behind learns that the call is over, however the call ended.
#[tokio::test(start_paused = true)]
async fn what_a_method_leaves_behind_learns_that_its_call_is_over() {
    let (router, shelf) = keeping();
    let desk = Arc::new(Desk::open(router));
    let ann = desk.agent("ann", &["worker"]);
    let ended = |count| {
        let shelf = shelf.clone();
        async move {
            tokio::time::sleep(Duration::from_millis(5)).await;
            assert_eq!(shelf.ended.load(Ordering::SeqCst), count);
        }
    };
    desk.ask(&ann, &call("desk/quick", "[]")).await.unwrap();
    ended(1).await;
    let batch = format!("[{},{}]", call("desk/quick", "[]"), call("desk/quick", "[]"));
    desk.ask(&ann, &batch).await.unwrap();
    ended(3).await;
    let notification = r#"{"jsonrpc":"2.0","method":"desk/quick","params":[]}"#;
    assert!(desk.ask(&ann, notification).await.is_none());
    ended(4).await;
    Caller::call(&desk, ann, &call("desk/keep", "[1]"), 32).finished().await;
    ended(5).await;
}

/// SPEC.md §25: a call that its replica gives up is no longer under way.
#[tokio::test(start_paused = true)]
async fn a_call_that_is_given_up_is_let_go_of() {
    let (desk, seen) = desk();
    let mut caller =
        Caller::call_for(&desk, desk.agent("ann", &["worker"]), &call("desk/ticks", "[]"), Some(9), 600_000);
    assert!(!caller.settled_for(300).await.is_empty());
    caller.task.abort();
    tokio::time::sleep(Duration::from_millis(5)).await;
    assert_eq!(seen.dropped.load(Ordering::SeqCst), 1);
    let unknown = caller.refused("control_unknown");
    caller.control(ControlOp::Again { ack: None }).await;
    assert_eq!(caller.refused("control_unknown"), unknown + 1, "nobody sends anything for it");
    // Its nonce counts as new again as soon as the guard has forgotten it.
    desk.clock.advance_ms(120_000);
    let nonce = caller.letter.expectation.message_id().to_owned();
    let ann = desk.agent("ann", &["worker"]);
    let again = desk.letter_claiming(&ann, &call("desk/echo", "[]"), |claims| claims.jti.clone_from(&nonce));
    assert_eq!(desk.offer(&again).await, None);
}

/// A desk with a record.
struct Recorded {
    desk: Arc<Desk>,
    folder: tempfile::TempDir,
}

impl Recorded {
    fn open<S: Send + Sync + 'static>(router: Router<S>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = RecordConfig::in_folder(folder.path().join("records"));
        let recorder = Recorder::open(&config, "prod/desk", "s1").unwrap();
        let desk = Desk::open_as(Setup::default(), |service| service.record(recorder).methods(router));
        Self { desk: Arc::new(desk), folder }
    }

    /// Ends the record, and returns its lines.
    fn lines(&self) -> Vec<Value> {
        assert_eq!(self.desk.service.recorder().unwrap().finish(), 0, "nothing was lost");
        let file = sealwire::internal::record::record_files(&self.folder.path().join("records")).unwrap().remove(0);
        let text = std::fs::read_to_string(file.path).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

/// SPEC.md §25: a call that has ended is not decided again, and nothing more is recorded about it.
#[tokio::test(start_paused = true)]
async fn calls_that_have_ended_are_not_decided_again() {
    let recorded = Recorded::open(router().0);
    let desk = &recorded.desk;
    let mut caller = Caller::call(desk, desk.agent("ann", &["worker"]), &call("desk/count", "[3]"), 32);
    caller.finished().await;
    let mut other = Caller::call(desk, desk.agent("bob", &["worker"]), &call("desk/sleep", "[]"), 32);
    other.settled_for(5).await;
    desk.change_policy("[role.worker]\nallow = [\"desk/*\"]\ndeny = [\"desk/count\"]\n");
    caller.control(ControlOp::Again { ack: Some(1) }).await;
    tokio::time::sleep(Duration::from_millis(5)).await;
    assert_eq!(caller.out.frames.lock().unwrap().len(), 3, "its last frames may still be asked for");
    let lines = recorded.lines();
    let kinds: Vec<&str> = lines.iter().map(|line| line["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["start", "decision", "outcome", "decision", "stop"], "the other one still runs");
}

/// SPEC.md §25: the record shows how a call that is answered with frames was decided, and how it ended, under the id of its message.
#[tokio::test(start_paused = true)]
async fn the_record_shows_how_streams_are_decided_and_end() {
    let recorded = Recorded::open(router().0);
    let desk = &recorded.desk;
    let mut stories: Vec<(String, Value)> = Vec::new();
    let mut expect = |caller: &Caller, story: Value| {
        stories.push((caller.letter.expectation.message_id().to_owned(), story));
    };

    let mut count = Caller::call(desk, desk.agent("ann", &["worker"]), &call("desk/count", "[3]"), 32);
    count.finished().await;
    expect(&count, json!(["allow", ["answered", 5, null]]));

    let mut cancelled = Caller::call(desk, desk.agent("ann", &["worker"]), &call("desk/ticks", "[]"), 900);
    cancelled.settled_for(15).await;
    cancelled.control(ControlOp::Cancel).await;
    cancelled.finished().await;
    expect(&cancelled, json!(["allow", ["cancelled", 3, codes::CANCELLED]]));

    let given_up = Caller::call(desk, desk.agent("ann", &["worker"]), &call("desk/sleep", "[]"), 4);
    tokio::time::sleep(Duration::from_millis(5)).await;
    given_up.task.abort();
    tokio::time::sleep(Duration::from_millis(5)).await;
    expect(&given_up, json!(["allow", ["given_up", 0, null]]));

    let mut late = Caller::call_for(desk, desk.agent("ann", &["worker"]), &call("desk/sleep", "[]"), Some(4), 1_000);
    late.finished().await;
    expect(&late, json!(["allow", ["deadline", 2, codes::TIMEOUT]]));

    let mut denied = Caller::call(desk, desk.agent("ann", &["worker"]), &call("desk/ticks", "[]"), 900);
    denied.settled_for(15).await;
    desk.change_policy("[role.worker]\nallow = [\"desk/*\"]\ndeny = [\"desk/ticks\"]\n");
    denied.finished().await;
    expect(&denied, json!(["allow", "deny, under way", ["denied", 3, codes::PERMISSION_DENIED]]));

    // A call that is denied at once has no frames, and one that takes none does not mention them.
    let mut refused = Caller::call(desk, desk.agent("ann", &["worker"]), &call("desk/ticks", "[]"), 900);
    refused.finished().await;
    expect(&refused, json!(["deny", ["answered", 0, codes::PERMISSION_DENIED]]));
    let mut plain = Caller::call_for(desk, desk.agent("ann", &["worker"]), &call("desk/echo", "[1]"), None, 1_000);
    plain.finished().await;
    expect(&plain, json!(["allow", ["answered", null, null]]));

    let lines = recorded.lines();
    for (id, expected) in stories {
        let own = lines.iter().filter(|line| line["message"] == id.as_str());
        let story: Vec<Value> = own
            .map(|line| match (line["kind"].as_str().unwrap(), &line["under_way"]) {
                ("decision", Value::Null) => line["verdict"].clone(),
                ("decision", _) => format!("{}, under way", line["verdict"].as_str().unwrap()).into(),
                _ => json!([line["by"], line["frames"], line["code"]]),
            })
            .collect();
        assert_eq!(Value::from(story), expected, "{lines:?}");
    }
}
