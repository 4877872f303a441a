//! Calls that answer with frames, and control of calls under way (SPEC.md §25).

mod approved;
mod attachments;
mod bounds;
mod endings;
mod pressure;
mod revoked;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_nats::HeaderMap;
use futures_util::future::BoxFuture;
use futures_util::stream;
use sealwire::internal::wire::{
    Accepted, ControlClaims, ControlOp, Expectation, FrameKind, FrameReceiver, Received, SealedFrame, Signed,
    SignedControl, Taken,
};
use sealwire::serve::{Delivery, Outlet, Sealed, StreamLimits};
use sealwire::{Clock as _, Ctx, Name, Router, RpcError, ServiceLimits, Sink, Topic, WhenFull};
use sealwire_testkit::desk::{Agent, Desk, Letter, code, digest, text};
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// Collects what leaves the service.
#[derive(Debug)]
struct Out {
    replica: Name,
    frames: Mutex<Vec<SealedFrame>>,
    more: Notify,
    /// While set, nothing leaves.
    is_stuck: AtomicBool,
    unstuck: Notify,
}

impl Out {
    fn new() -> Arc<Self> {
        let replica = Name::new("R1").unwrap();
        let (frames, is_stuck) = (Mutex::default(), AtomicBool::new(false));
        Arc::new(Self { replica, frames, more: Notify::new(), is_stuck, unstuck: Notify::new() })
    }
}

impl Outlet for Out {
    fn replica(&self) -> &Name {
        &self.replica
    }

    fn send<'a>(&'a self, frame: &'a SealedFrame) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            while self.is_stuck.load(Ordering::SeqCst) {
                self.unstuck.notified().await;
            }
            self.frames.lock().unwrap().push(frame.clone());
            self.more.notify_one();
        })
    }
}

/// One call, from its caller's side.
struct Caller {
    desk: Arc<Desk>,
    agent: Agent,
    letter: Letter,
    out: Arc<Out>,
    task: JoinHandle<Option<Sealed>>,
    receiver: FrameReceiver,
    counter: u64,
}

fn letter(desk: &Desk, agent: &Agent, payload: &str, window: Option<u64>, timeout_ms: u64) -> Letter {
    let (subject, reply) = (desk.endpoint.subject(&agent.name), format!("{}r1", desk.endpoint.inbox(&agent.name)));
    let signed = desk.signer(agent).sign(&Signed {
        subject: &subject,
        reply: &reply,
        payload: payload.as_bytes(),
        token: &agent.token,
        now_ms: desk.clock.now_ms(),
        valid_s: 30,
        timeout_ms: Some(timeout_ms),
        window,
        ..Signed::default()
    });
    let mut headers = HeaderMap::new();
    headers.insert("Authorization", signed.authorization.as_str());
    Letter { subject, reply, headers, payload: payload.as_bytes().to_vec(), expectation: signed.expectation }
}

impl Caller {
    fn call(desk: &Arc<Desk>, agent: Agent, payload: &str, window: u64) -> Self {
        Self::call_for(desk, agent, payload, Some(window), 60_000)
    }

    fn call_for(desk: &Arc<Desk>, agent: Agent, payload: &str, window: Option<u64>, timeout_ms: u64) -> Self {
        let letter = letter(desk, &agent, payload, window, timeout_ms);
        Self::send(desk, agent, letter, window)
    }

    fn send(desk: &Arc<Desk>, agent: Agent, letter: Letter, window: Option<u64>) -> Self {
        let out = Out::new();
        let outlet: Arc<dyn Outlet> = out.clone();
        let (service, delivery) = (desk.service.clone(), letter.delivery());
        let task = tokio::spawn(async move { service.handle_with_frames(delivery, &outlet).await });
        let receiver = FrameReceiver::new(&letter.expectation, window.unwrap_or(1), 1 << 20);
        Self { desk: Arc::clone(desk), agent, letter, out, task, receiver, counter: 0 }
    }

    /// Every frame sent so far, in order and verified, without those that earlier calls returned.
    fn taken(&mut self) -> Vec<Received> {
        let sent = std::mem::take(&mut *self.out.frames.lock().unwrap());
        let mut taken = Vec::new();
        for frame in sent {
            let accepted = accept(&self.letter.expectation, &frame);
            if let Taken::Next(next) = self.receiver.take(accepted, frame.payload().clone()).unwrap() {
                taken.extend(next);
            }
        }
        taken
    }

    /// Waits until nothing has happened for some milliseconds.
    async fn settled(&mut self) -> Vec<Received> {
        let mut all = self.taken();
        loop {
            if tokio::time::timeout(Duration::from_millis(20), self.out.more.notified()).await.is_err() {
                all.extend(self.taken());
                return all;
            }
            all.extend(self.taken());
        }
    }

    /// Lets the service run for so many milliseconds.
    async fn settled_for(&mut self, ms: u64) -> Vec<Received> {
        tokio::time::sleep(Duration::from_millis(ms)).await;
        self.taken()
    }

    /// Waits for the end without acknowledging anything, and takes everything.
    async fn finished(&mut self) -> (Option<Sealed>, Vec<Received>) {
        let answer = (&mut self.task).await.unwrap();
        (answer, self.taken())
    }

    fn claims(&self, op: ControlOp, counter: u64) -> ControlClaims {
        let subject = self.subject();
        let now_s = self.desk.clock.now_s();
        let proof = self.letter.credentials().1;
        ControlClaims {
            aud: self.desk.endpoint.audience().to_string(),
            to: subject,
            iat: now_s,
            exp: now_s + 30,
            ath: digest(self.agent.token.as_bytes()),
            dig: digest(b""),
            req: digest(proof.as_bytes()),
            ctr: counter,
            op,
        }
    }

    fn subject(&self) -> String {
        self.desk.endpoint.control_subject(&self.agent.name, None, self.letter.expectation.message_id())
    }

    async fn control(&mut self, op: ControlOp) {
        self.control_with(op, b"").await;
    }

    async fn control_with(&mut self, op: ControlOp, payload: &[u8]) {
        self.counter += 1;
        let subject = self.subject();
        let authorization = self.desk.signer(&self.agent).sign_control(&SignedControl {
            subject: &subject,
            payload,
            token: &self.agent.token,
            now_ms: self.desk.clock.now_ms(),
            valid_s: 30,
            call: &self.letter.expectation,
            counter: self.counter,
            op: &op,
        });
        self.deliver(&subject, &authorization, payload).await;
    }

    async fn deliver(&self, subject: &str, authorization: &str, payload: &[u8]) {
        let mut headers = HeaderMap::new();
        headers.insert("Authorization", authorization);
        self.desk.service.control(Delivery::new(subject, "", headers, payload.to_vec())).await;
    }

    async fn ack(&mut self, ack: u64) {
        self.control(ControlOp::Ack { ack, window: None, timeout_ms: None }).await;
    }

    fn refused(&self, label: &str) -> u64 {
        self.desk.service.counters().refusals().get(label).copied().unwrap_or(0)
    }
}

fn accept(expectation: &Expectation, frame: &SealedFrame) -> sealwire::internal::wire::AcceptedFrame {
    match expectation.accept_any(frame.to(), frame.headers(), frame.payload()).unwrap() {
        Accepted::Frame(frame) => frame,
        Accepted::Answer { .. } => panic!("an ordinary answer"),
    }
}

fn kinds(frames: &[Received]) -> Vec<FrameKind> {
    frames.iter().map(|frame| frame.kind).collect()
}

/// All items, whether they came one by one or together.
fn items(frames: &[Received]) -> Vec<Value> {
    let items = frames.iter().filter(|frame| frame.kind == FrameKind::Item);
    items
        .flat_map(|frame| match serde_json::from_slice(&frame.payload).unwrap() {
            Value::Array(items) => items,
            one => vec![one],
        })
        .map(|item| item["result"].clone())
        .collect()
}

/// The contents of all notifications, whether they came one by one or together.
fn notes(frames: &[Received]) -> Vec<Value> {
    let notes = frames.iter().filter(|frame| frame.kind == FrameKind::Note);
    notes
        .flat_map(|frame| match serde_json::from_slice(&frame.payload).unwrap() {
            Value::Array(notes) => notes,
            one => vec![one],
        })
        .map(|note| note["params"].clone())
        .collect()
}

fn end(frames: &[Received]) -> Value {
    let last = frames.last().unwrap();
    assert_eq!(last.kind, FrameKind::End);
    serde_json::from_slice(&last.payload).unwrap()
}

/// How far the methods of the desk have got.
#[derive(Default)]
struct Seen {
    produced: AtomicUsize,
    cancelled: AtomicUsize,
    dropped: AtomicUsize,
}

struct Dropped(Arc<Seen>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.dropped.fetch_add(1, Ordering::SeqCst);
    }
}

fn router() -> (Router<Arc<Seen>>, Arc<Seen>) {
    type C = Ctx<Arc<Seen>>;
    let seen = Arc::new(Seen::default());
    let router = Router::new(Arc::clone(&seen))
        .method("desk/echo", |_: C, p: Value| async move { Ok::<_, RpcError>(p) })
        .method("desk/sleep", |ctx: C, (): ()| async move {
            let _dropped = Dropped(Arc::clone(ctx.state()));
            std::future::pending::<Result<(), RpcError>>().await
        })
        .method("desk/hold", |_: C, (text,): (String,)| async move {
            std::future::pending::<()>().await;
            Ok::<_, RpcError>(text.len())
        })
        .method("desk/notice", |ctx: C, (): ()| async move {
            ctx.cancelled().await;
            ctx.state().cancelled.fetch_add(1, Ordering::SeqCst);
            Ok::<_, RpcError>("cleaned up")
        })
        .method("desk/large", |_: C, (bytes,): (usize,)| async move { Ok::<_, RpcError>("x".repeat(bytes)) })
        .method("desk/progress", |ctx: C, (): ()| async move {
            ctx.progress(1.0, Some(2.0), Some("half"));
            ctx.notify("desk/said", &json!({ "what": "hello" })).await?;
            Ok::<_, RpcError>(ctx.takes_frames())
        })
        .method("desk/ask", |ctx: C, (): ()| async move {
            let name: String = ctx.ask("user/name", &json!({ "polite": true })).await?;
            Ok::<_, RpcError>(format!("hello {name}"))
        })
        .method_with_sink("desk/sum", |_: C, numbers: Vec<i64>, sink: Sink<i64>| async move {
            let mut sum = 0;
            for number in numbers {
                sum += number;
                sink.send(&sum).await?;
            }
            Ok::<_, RpcError>(sum)
        })
        // One item at a time, on demand.
        .stream("desk/count", |ctx: C, (to,): (u64,)| async move {
            let seen = Arc::clone(ctx.state());
            let guard = Dropped(Arc::clone(&seen));
            Ok::<_, RpcError>(stream::unfold((1, guard), move |(next, guard)| {
                let seen = Arc::clone(&seen);
                async move {
                    // So that each is a frame of its own.
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    seen.produced.fetch_add(1, Ordering::SeqCst);
                    (next <= to).then_some((Ok::<_, RpcError>(next), (next + 1, guard)))
                }
            }))
        })
        .stream("desk/burst", |_: C, (to,): (u64,)| async move {
            Ok::<_, RpcError>(stream::iter((1..=to).map(Ok::<_, RpcError>)))
        })
        .stream("desk/blobs", |ctx: C, (to,): (u64,)| async move {
            Ok::<_, RpcError>(stream::iter((1..=to).map(move |_| {
                ctx.state().produced.fetch_add(1, Ordering::SeqCst);
                Ok::<_, RpcError>("x".repeat(100_000))
            })))
        })
        .method("desk/steps", |ctx: C, (to,): (u32,)| async move {
            (1..=to).for_each(|step| ctx.progress(step.into(), Some(to.into()), None));
            // So that the caller has time to make room.
            tokio::time::sleep(Duration::from_secs(1)).await;
            Ok::<_, RpcError>("done")
        })
        .method("desk/asks", |ctx: C, (count,): (usize,)| async move {
            let nobody = json!({});
            let asked = (0..count).map(|_| ctx.ask::<String>("user/name", &nobody));
            let answers = futures_util::future::join_all(asked).await;
            Ok::<_, RpcError>(answers.iter().filter(|answer| answer.is_ok()).count())
        })
        .subscription("desk/flood", |_: C, (to,): (u64,)| async move {
            Ok::<_, RpcError>(stream::iter((1..=to).map(|number| Ok::<_, RpcError>([number]))))
        })
        .stream("desk/fails", |_: C, (): ()| async move {
            let items = [Ok(1), Err(RpcError::application(7, "broken")), Ok(2)];
            Ok::<_, RpcError>(stream::iter(items))
        })
        .subscription("desk/ticks", |ctx: C, (): ()| async move {
            let guard = Dropped(Arc::clone(ctx.state()));
            Ok::<_, RpcError>(stream::unfold((1_u64, guard), |(tick, guard)| async move {
                tokio::time::sleep(Duration::from_millis(10)).await;
                Some((Ok::<_, RpcError>([tick]), (tick + 1, guard)))
            }))
        });
    (router, seen)
}

fn desk() -> (Arc<Desk>, Arc<Seen>) {
    let (router, seen) = router();
    (Arc::new(Desk::open(router)), seen)
}

fn call(method: &str, params: &str) -> String {
    sealwire_testkit::desk::call(method, params)
}

/// SPEC.md §25.
#[tokio::test(start_paused = true)]
async fn items_come_in_order_and_the_last_frame_says_that_none_is_missing() {
    let (desk, _) = desk();
    let ann = desk.agent("ann", &["worker"]);
    let mut caller = Caller::call(&desk, ann, &call("desk/count", "[5]"), 32);
    let (answer, frames) = caller.finished().await;
    assert!(answer.is_none(), "a call that has sent a frame is not answered in the ordinary way");
    assert_eq!(items(&frames), [1, 2, 3, 4, 5]);
    assert_eq!(kinds(&frames)[0], FrameKind::Open);
    assert_eq!(end(&frames)["result"], Value::Null);
    assert!(caller.receiver.is_ended(), "its digest holds");
}

/// SPEC.md §25: quick calls cost nothing.
#[tokio::test(start_paused = true)]
async fn a_quick_call_with_a_window_gets_one_ordinary_answer() {
    let (desk, _) = desk();
    let mut caller = Caller::call(&desk, desk.agent("ann", &["worker"]), &call("desk/echo", "[1]"), 32);
    let (answer, frames) = caller.finished().await;
    assert!(frames.is_empty());
    assert_eq!(text(&answer.unwrap()), r#"{"jsonrpc":"2.0","result":[1],"id":1}"#);
}

/// SPEC.md §25.
#[tokio::test(start_paused = true)]
async fn callers_without_a_window_get_whole_results_and_no_frames() {
    let (desk, _) = desk();
    let ann = desk.agent("ann", &["worker"]);
    let answer = desk.ask(&ann, &call("desk/burst", "[3]")).await.unwrap();
    assert_eq!(answer, r#"{"jsonrpc":"2.0","result":[1,2,3],"id":1}"#);
    let answer = desk.ask(&ann, &call("desk/sum", "[1,2,3]")).await.unwrap();
    assert_eq!(answer, r#"{"jsonrpc":"2.0","result":6,"id":1}"#);
    let answer = desk.ask(&ann, &call("desk/progress", "[]")).await.unwrap();
    assert_eq!(answer, r#"{"jsonrpc":"2.0","result":false,"id":1}"#);
    assert_eq!(code(&desk.ask(&ann, &call("desk/fails", "[]")).await.unwrap()), Some(7));
    assert_eq!(code(&desk.ask(&ann, &call("desk/ask", "[]")).await.unwrap()), Some(-32603));
    let answer = desk.ask(&ann, &call("desk/ticks", "[]")).await.unwrap();
    assert!(code(&answer) == Some(-32600) && answer.contains("window"), "{answer}");
    assert_eq!(code(&desk.ask(&ann, &call("desk/burst", "[100000]")).await.unwrap()), Some(-32015));
}

/// SPEC.md §11: "The failure of one entry does not affect the others."
#[tokio::test(start_paused = true)]
async fn entries_of_a_batch_that_cannot_answer_without_frames_end_no_other() {
    let (desk, _) = desk();
    let ann = desk.agent("ann", &["worker"]);
    let entry = |id: u8, method: &str, params: &str| {
        format!(r#"{{"jsonrpc":"2.0","method":"{method}","params":{params},"id":{id}}}"#)
    };
    let entries = [
        entry(1, "desk/ticks", "[]"),
        entry(2, "desk/burst", "[100000]"),
        entry(3, "desk/count", "[3]"),
        entry(4, "desk/echo", "[1]"),
    ];
    let answer = desk.ask(&ann, &format!("[{}]", entries.join(","))).await.unwrap();
    let answers: Vec<Value> = serde_json::from_str(&answer).unwrap();
    let code = |at: usize| answers[at].pointer("/error/code").and_then(Value::as_i64);
    assert_eq!((code(0), code(1)), (Some(-32600), Some(-32015)), "{answer}");
    assert_eq!((&answers[2]["result"], &answers[3]["result"]), (&json!([1, 2, 3]), &json!([1])), "{answer}");
}

/// SPEC.md §25: the service never sends beyond the window, and the method waits.
#[tokio::test(start_paused = true)]
async fn a_closed_window_stops_the_method_until_frames_are_acknowledged() {
    let (desk, seen) = desk();
    let mut caller = Caller::call(&desk, desk.agent("ann", &["worker"]), &call("desk/count", "[20]"), 4);
    let frames = caller.settled().await;
    assert_eq!(items(&frames), [1, 2, 3, 4], "numbers up to 0 + 4");
    assert_eq!(seen.produced.load(Ordering::SeqCst), 5, "one waits, and no more is asked for");
    caller.ack(99).await;
    assert_eq!((caller.refused("control_refused"), caller.settled().await.len()), (1, 0), "never sent");
    caller.ack(2).await;
    caller.receiver.allow(6);
    assert_eq!(items(&caller.settled().await), [5, 6]);
    caller.control(ControlOp::Ack { ack: 6, window: Some(100), timeout_ms: None }).await;
    caller.receiver.allow(106);
    let (_, frames) = caller.finished().await;
    assert_eq!(items(&frames), (7..=20).collect::<Vec<_>>());
}

/// SPEC.md §25.
#[tokio::test(start_paused = true)]
async fn a_window_that_stays_closed_ends_the_call() {
    let (desk, seen) = desk();
    let mut caller = Caller::call(&desk, desk.agent("ann", &["worker"]), &call("desk/count", "[20]"), 4);
    let started = tokio::time::Instant::now();
    let (_, frames) = caller.finished().await;
    let waited = started.elapsed().as_secs();
    assert!((30..33).contains(&waited), "{waited}");
    assert_eq!(end(&frames)["error"]["code"], -32003);
    assert_eq!(seen.dropped.load(Ordering::SeqCst), 1);
}

/// SPEC.md §25.
#[tokio::test(start_paused = true)]
async fn only_its_caller_cancels_a_call() {
    let (desk, seen) = desk();
    for window in [None, Some(32)] {
        let ann = desk.agent("ann", &["worker"]);
        let mut caller = Caller::call_for(&desk, ann, &call("desk/sleep", "[]"), window, 60_000);
        caller.settled().await;
        let nonce = caller.letter.expectation.message_id().to_owned();

        // Bob, under his own subject and under Ann's.
        let bob = desk.agent("bob", &["worker"]);
        for subject in [desk.endpoint.control_subject(&bob.name, None, &nonce), caller.subject()] {
            let mut claims = caller.claims(ControlOp::Cancel, 1);
            claims.to.clone_from(&subject);
            claims.ath = digest(bob.token.as_bytes());
            let forged = desk.signer(&bob).sign_control_claims(&claims, &bob.token);
            caller.deliver(&subject, &forged, b"").await;
        }
        // Ann's key with another claim that does not fit.
        type Change = fn(&mut ControlClaims);
        let changes: [Change; 6] = [
            |claims| claims.req = digest(b"another request"),
            |claims| claims.aud = "test/vault".to_owned(),
            |claims| claims.to.push('x'),
            |claims| claims.exp = claims.iat,
            |claims| claims.iat += 60,
            |claims| claims.dig = digest(b"x"),
        ];
        for change in changes {
            let mut claims = caller.claims(ControlOp::Cancel, 1);
            change(&mut claims);
            let signed = desk.signer(&caller.agent).sign_control_claims(&claims, &caller.agent.token);
            caller.deliver(&caller.subject(), &signed, b"").await;
        }
        // Her own token for another subject.
        let other = desk.agent_with("ann", |request| {
            request.actor = Some("ann".to_owned());
            request.subject = "carol".to_owned();
        });
        let mut claims = caller.claims(ControlOp::Cancel, 1);
        claims.ath = digest(other.token.as_bytes());
        let signed = desk.signer(&other).sign_control_claims(&claims, &other.token);
        caller.deliver(&caller.subject(), &signed, b"").await;
        assert!(!caller.task.is_finished());

        caller.control(ControlOp::Cancel).await;
        let (answer, frames) = caller.finished().await;
        let told = match window {
            None => serde_json::from_str(&text(&answer.unwrap())).unwrap(),
            Some(_) => answer.map_or_else(|| end(&frames), |answer| serde_json::from_str(&text(&answer)).unwrap()),
        };
        assert_eq!(told["error"]["code"], -32016, "{told}");
    }
    assert_eq!(seen.dropped.load(Ordering::SeqCst), 2);
    assert_eq!(desk.service.counters().refusals()["control_unknown"], 2, "Bob's own subject, twice");
}

/// SPEC.md §25: control messages are protected against replay by their counter.
#[tokio::test(start_paused = true)]
async fn control_with_an_old_counter_has_no_effect() {
    let (desk, _) = desk();
    let mut caller = Caller::call(&desk, desk.agent("ann", &["worker"]), &call("desk/count", "[20]"), 4);
    caller.settled().await;
    caller.counter = 6;
    caller.ack(1).await;
    caller.receiver.allow(5);
    for counter in [1, 7] {
        let cancel = caller.claims(ControlOp::Cancel, counter);
        let signed = desk.signer(&caller.agent).sign_control_claims(&cancel, &caller.agent.token);
        caller.deliver(&caller.subject(), &signed, b"").await;
    }
    caller.settled().await;
    assert!(!caller.task.is_finished());
    assert_eq!(caller.refused("control_refused"), 2);
    caller.control(ControlOp::Cancel).await;
    caller.receiver.allow(5);
    assert_eq!(end(&caller.finished().await.1)["error"]["code"], -32016);
}

/// SPEC.md §25: a method that asks for it may clean up; what it sends then is discarded.
#[tokio::test(start_paused = true)]
async fn a_method_notices_that_it_is_cancelled() {
    let (desk, seen) = desk();
    let mut caller = Caller::call(&desk, desk.agent("ann", &["worker"]), &call("desk/notice", "[]"), 4);
    caller.settled().await;
    caller.control(ControlOp::Cancel).await;
    let (answer, _) = caller.finished().await;
    assert_eq!(code(&text(&answer.unwrap())), Some(-32016));
    assert_eq!(seen.cancelled.load(Ordering::SeqCst), 1);
}

/// SPEC.md §25.
#[tokio::test(start_paused = true)]
async fn frames_are_sent_again_when_asked_for_and_not_too_often() {
    let (desk, _) = desk();
    let mut caller = Caller::call(&desk, desk.agent("ann", &["worker"]), &call("desk/count", "[20]"), 4);
    caller.settled().await;
    caller.ack(1).await;
    caller.receiver.allow(5);
    caller.settled().await;
    caller.control(ControlOp::Again { ack: Some(2) }).await;
    // Again at once: frames are not repeated any number of times.
    caller.control(ControlOp::Again { ack: Some(0) }).await;
    tokio::time::sleep(Duration::from_millis(5)).await;
    let again: Vec<_> = caller.out.frames.lock().unwrap().drain(..).map(|frame| frame.seq()).collect();
    assert_eq!(again, [3, 4, 5]);
    tokio::time::sleep(Duration::from_millis(200)).await;
    // Acknowledged frames are gone, whatever is asked for.
    caller.control(ControlOp::Again { ack: None }).await;
    tokio::time::sleep(Duration::from_millis(5)).await;
    let again: Vec<_> = caller.out.frames.lock().unwrap().drain(..).map(|frame| frame.seq()).collect();
    assert_eq!(again, [2, 3, 4, 5]);
}

/// SPEC.md §25: the last frames are kept for ten seconds.
#[tokio::test(start_paused = true)]
async fn the_last_frames_are_there_for_a_while_after_the_end() {
    let (desk, _) = desk();
    let mut caller = Caller::call(&desk, desk.agent("ann", &["worker"]), &call("desk/count", "[2]"), 8);
    caller.finished().await;
    caller.control(ControlOp::Again { ack: Some(1) }).await;
    tokio::time::sleep(Duration::from_millis(5)).await;
    let again: Vec<_> = caller.out.frames.lock().unwrap().drain(..).map(|frame| frame.kind()).collect();
    assert_eq!(again, [FrameKind::Item, FrameKind::End]);
    tokio::time::sleep(Duration::from_secs(11)).await;
    desk.service.review();
    let unknown = caller.refused("control_unknown");
    caller.control(ControlOp::Again { ack: Some(1) }).await;
    assert_eq!((caller.refused("control_unknown"), caller.taken().len()), (unknown + 1, 0));
}

/// SPEC.md §25: streams are decided again on every reload.
#[tokio::test(start_paused = true)]
async fn a_reload_ends_what_it_forbids_and_nothing_else() {
    let (desk, seen) = desk();
    let ticks =
        |desk: &Arc<Desk>, name| Caller::call(desk, desk.agent(name, &["worker"]), &call("desk/ticks", "[]"), 900);
    let (mut ann, mut bob) = (ticks(&desk, "ann"), ticks(&desk, "bob"));
    ann.settled_for(100).await;
    bob.settled_for(100).await;
    desk.change_policy("[role.worker]\nallow = [\"desk/*\"]\n[agent.\"ann\"]\ndeny = [\"desk/ticks\"]\n");
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(ann.task.is_finished() && !bob.task.is_finished());
    let (_, frames) = ann.finished().await;
    assert_eq!(end(&frames)["error"]["code"], -32002);
    assert_eq!(seen.dropped.load(Ordering::SeqCst), 1);
}

/// SPEC.md §25: the token, its key and its subject are checked for as long as the call runs.
#[tokio::test(start_paused = true)]
async fn a_call_ends_with_its_key_and_its_token() {
    let (desk, _) = desk();
    for reason in ["key", "token"] {
        let ann = desk.agent("ann", &["worker"]);
        let mut caller = Caller::call_for(&desk, ann, &call("desk/ticks", "[]"), Some(900), 600_000);
        caller.settled_for(50).await;
        desk.service.review();
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(!caller.task.is_finished());
        match reason {
            "key" => desk.change_ring(|keys| keys.retain(|key| key.kid != "ann.k1")),
            _ => desk.clock.advance_ms(3_600_000),
        }
        desk.service.review();
        let (_, frames) = caller.finished().await;
        assert_eq!(end(&frames)["error"]["code"], -32010, "{reason}");
        desk.change_ring(|_| {});
    }
}

/// SPEC.md §25: the lease.
#[tokio::test(start_paused = true)]
async fn a_call_ends_with_its_lease() {
    let (desk, seen) = desk();
    let ann = desk.agent("ann", &["worker"]);
    let mut caller = Caller::call_for(&desk, ann, &call("desk/ticks", "[]"), Some(1_000), 1_000);
    let started = tokio::time::Instant::now();
    caller.settled_for(500).await;
    caller.control(ControlOp::Ack { ack: 1, window: None, timeout_ms: Some(4_000) }).await;
    caller.receiver.allow(2_000);
    let (_, frames) = caller.finished().await;
    assert_eq!(end(&frames)["error"]["code"], -32003);
    assert_eq!(seen.dropped.load(Ordering::SeqCst), 1);
    // The desk's clock stands still, so the lease begins when it is shown.
    assert_eq!((started.elapsed().as_millis() + 50) / 500, 9, "{:?}", started.elapsed());
}

/// SPEC.md §25: the open streams of each agent are limited.
#[tokio::test(start_paused = true)]
async fn open_streams_are_bounded_for_each_agent_and_given_back() {
    let (desk, _) = desk();
    let sleep = |name| Caller::call(&desk, desk.agent(name, &["worker"]), &call("desk/sleep", "[]"), 4);
    let mut open: Vec<_> = (0..64).map(|_| sleep("ann")).collect();
    tokio::time::sleep(Duration::from_millis(20)).await;
    let (refused, _) = sleep("ann").finished().await;
    let refused = text(&refused.unwrap());
    assert!(code(&refused) == Some(-32013) && refused.contains("replica-streams"), "{refused}");
    let mut bob = sleep("bob");
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert!(!bob.task.is_finished());
    open[0].control(ControlOp::Cancel).await;
    bob.control(ControlOp::Cancel).await;
    open[0].finished().await;
    let again = sleep("ann");
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert!(!again.task.is_finished());
}

/// SPEC.md §25: the text of a large response comes in pieces.
#[tokio::test(start_paused = true)]
async fn a_large_result_comes_in_pieces_to_those_who_take_them() {
    let (desk, _) = desk();
    let ann = desk.agent("ann", &["worker"]);
    assert_eq!(code(&desk.ask(&ann, &call("desk/large", "[300000]")).await.unwrap()), Some(-32015));
    let mut caller = Caller::call(&desk, desk.agent("ann", &["worker"]), &call("desk/large", "[3000000]"), 32);
    let mut whole = Vec::new();
    loop {
        let frames = caller.settled().await;
        assert!(frames.iter().map(|frame| frame.payload.len()).sum::<usize>() <= 1 << 20, "kept for one stream");
        let Some(last) = frames.last().map(|frame| frame.seq) else { break };
        frames.iter().for_each(|frame| whole.extend_from_slice(&frame.payload));
        caller.receiver.allow(last + 32);
        caller.ack(last).await;
    }
    assert!(caller.receiver.is_ended());
    let response: Value = serde_json::from_slice(&whole).unwrap();
    assert_eq!(response["result"].as_str().unwrap().len(), 3_000_000);
    let (answer, _) = Caller::call(&desk, ann, &call("desk/large", "[17000000]"), 32).finished().await;
    assert_eq!(code(&text(&answer.unwrap())), Some(-32015));
}

/// SPEC.md §25.
#[tokio::test(start_paused = true)]
async fn a_method_tells_and_asks_its_caller() {
    let (desk, _) = desk();
    let mut caller = Caller::call(&desk, desk.agent("ann", &["worker"]), &call("desk/progress", "[]"), 8);
    let (_, frames) = caller.finished().await;
    let said: Vec<Value> = frames[1..].iter().map(|frame| serde_json::from_slice(&frame.payload).unwrap()).collect();
    assert_eq!(said[0]["method"], "rpc.progress");
    assert_eq!(said[0]["params"], json!({ "progress": 1.0, "total": 2.0, "message": "half" }));
    assert_eq!(said[1], json!({ "jsonrpc": "2.0", "method": "desk/said", "params": { "what": "hello" } }));
    assert_eq!(said[2]["result"], true);

    let mut caller = Caller::call(&desk, desk.agent("ann", &["worker"]), &call("desk/ask", "[]"), 8);
    tokio::time::sleep(Duration::from_millis(5)).await;
    let asked = caller.out.frames.lock().unwrap()[1].clone();
    let frames = caller.taken();
    let question: Value = serde_json::from_slice(&frames[1].payload).unwrap();
    assert_eq!((frames[1].kind, &question["method"]), (FrameKind::Ask, &json!("user/name")));
    let headers = String::from_utf8(asked.headers().as_bytes().to_vec()).unwrap();
    let proof = headers.lines().find_map(|line| line.strip_prefix("Authentication-Info: NatsRpc ")).unwrap();
    let answer = json!({ "jsonrpc": "2.0", "result": "Ann", "id": question["id"] }).to_string();
    caller.control_with(ControlOp::Answer { ask: digest(b"another question") }, answer.as_bytes()).await;
    assert!(!caller.task.is_finished());
    caller.control_with(ControlOp::Answer { ask: digest(proof.as_bytes()) }, answer.as_bytes()).await;
    assert_eq!(end(&caller.finished().await.1)["result"], "hello Ann");
}

/// SPEC.md §25: items that wait together share a frame, so a writer under pressure has fewer frames to sign.
#[tokio::test(start_paused = true)]
async fn items_that_come_together_leave_together_and_an_error_ends_them() {
    let (desk, _) = desk();
    let mut caller = Caller::call(&desk, desk.agent("ann", &["worker"]), &call("desk/burst", "[120]"), 32);
    let (_, frames) = caller.finished().await;
    assert_eq!(items(&frames), (1..=120).collect::<Vec<_>>());
    assert_eq!(kinds(&frames)[1..], [FrameKind::Item, FrameKind::Item, FrameKind::Item, FrameKind::End]);
    let mut caller = Caller::call(&desk, desk.agent("ann", &["worker"]), &call("desk/fails", "[]"), 32);
    let (_, frames) = caller.finished().await;
    assert_eq!((items(&frames), end(&frames)["error"]["code"].clone()), (vec![json!(1)], json!(7)));
}

/// SPEC.md §25: a quiet stream shows that it is alive.
#[tokio::test(start_paused = true)]
async fn a_quiet_call_opens_and_beats() {
    let (desk, _) = desk();
    let ann = desk.agent("ann", &["worker"]);
    let caller = Caller::call(&desk, ann, &call("desk/sleep", "[]"), 32);
    let kinds = || caller.out.frames.lock().unwrap().iter().map(SealedFrame::kind).collect::<Vec<_>>();
    tokio::time::sleep(Duration::from_millis(240)).await;
    assert_eq!(kinds(), []);
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(kinds(), [FrameKind::Open]);
    tokio::time::sleep(Duration::from_secs(11)).await;
    assert_eq!(kinds(), [FrameKind::Open, FrameKind::Beat, FrameKind::Beat]);
}

/// SPEC.md §25: the bytes kept for one stream are limited, whatever its window.
#[tokio::test(start_paused = true)]
async fn what_is_kept_of_a_stream_is_bounded_in_bytes() {
    let (desk, _) = desk();
    let ann = desk.agent("ann", &["worker"]);
    let mut caller = Caller::call(&desk, ann, &call("desk/blobs", "[100]"), 1_000);
    let mut parts = 0;
    let frames = loop {
        let frames = caller.settled().await;
        let kept: usize = frames.iter().map(|frame| frame.payload.len()).sum();
        assert!(kept <= 1 << 20, "{kept}");
        parts += frames.iter().filter(|frame| frame.kind == FrameKind::Item).count();
        if caller.receiver.is_ended() {
            break frames;
        }
        caller.ack(frames.last().unwrap().seq).await;
    };
    assert_eq!((parts, end(&frames)["result"].clone()), (100, Value::Null));
}

/// SPEC.md §25: roles that a newer token no longer has are lost at once.
#[tokio::test(start_paused = true)]
async fn a_newer_token_is_decided_about_when_it_is_shown() {
    let (desk, _) = desk();
    let mut caller = Caller::call(&desk, desk.agent("ann", &["worker"]), &call("desk/ticks", "[]"), 900);
    caller.settled_for(100).await;
    desk.clock.advance_ms(1_000);
    caller.agent = desk.agent("ann", &["worker", "guest"]);
    caller.ack(1).await;
    caller.settled_for(20).await;
    assert!(!caller.task.is_finished());
    desk.clock.advance_ms(1_000);
    caller.agent = desk.agent("ann", &["guest"]);
    caller.ack(2).await;
    caller.receiver.allow(2_000);
    assert_eq!(end(&caller.finished().await.1)["error"]["code"], -32002);
}

/// SPEC.md §25: a call that still runs is known by its nonce, even after the window of its message has passed.
#[tokio::test(start_paused = true)]
async fn the_nonce_of_a_call_that_still_runs_is_not_new() {
    let (desk, _) = desk();
    let caller = Caller::call_for(&desk, desk.agent("ann", &["worker"]), &call("desk/sleep", "[]"), Some(4), 600_000);
    tokio::time::sleep(Duration::from_millis(20)).await;
    desk.clock.advance_ms(120_000);
    let ann = desk.agent("ann", &["worker"]);
    let nonce = caller.letter.expectation.message_id().to_owned();
    let again = desk.letter_claiming(&ann, &call("desk/echo", "[]"), |claims| claims.jti.clone_from(&nonce));
    assert_eq!(desk.offer(&again).await, Some(-32012));
    assert!(!caller.task.is_finished());
}

/// SPEC.md §25: while the service cannot know what was revoked, it sends nothing more.
#[tokio::test(start_paused = true)]
async fn streams_end_when_nothing_is_admitted_any_more() {
    let (desk, _) = desk();
    let mut caller = Caller::call(&desk, desk.agent("ann", &["worker"]), &call("desk/ticks", "[]"), 900);
    caller.settled_for(100).await;
    desk.service.verifier().suspend(true);
    desk.service.review();
    assert_eq!(end(&caller.finished().await.1)["error"]["code"], -32014);
}

/// SPEC.md §25.
#[tokio::test(start_paused = true)]
async fn a_topic_reaches_all_who_subscribe() {
    let topic = Topic::new();
    let (router, _) = router();
    let desk = Arc::new(Desk::open(router.topic("desk/news", &topic, 2, WhenFull::DropOldest)));
    let news = |name| Caller::call(&desk, desk.agent(name, &["worker"]), &call("desk/news", "[]"), 2);
    let (mut ann, mut bob) = (news("ann"), news("bob"));
    ann.settled_for(300).await;
    bob.settled_for(1).await;
    assert_eq!(topic.subscribers(), 2);
    for number in 1..=10 {
        topic.publish(&[number]).unwrap();
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(notes(&ann.taken()), [json!([1]), json!([2])], "its window");
    ann.receiver.allow(100);
    ann.control(ControlOp::Ack { ack: 2, window: Some(90), timeout_ms: None }).await;
    // One was already on its way, two wait; ann is told that the others are missing. What waits comes together.
    let frames = ann.settled_for(5).await;
    assert_eq!(notes(&frames), [json!([3]), json!({ "n": 5 }), json!([9]), json!([10])]);
    assert_eq!(frames.len(), 2);
    bob.control(ControlOp::Cancel).await;
    bob.finished().await;
    assert_eq!(topic.subscribers(), 1);
}
