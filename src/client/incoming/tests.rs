#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]
use std::task::Waker;

use super::*;
use crate::wire::{
    Accepted, AgentKey, Audience, Binding, Expectation, FrameKind, FrameSealer, RequestSigner, SealedFrame, Signed,
};

const REPLY: &str = "_INBOX.ann.c.1";
const NOW: u64 = 1_790_000_000;

/// A stream, and the service that answers it.
struct Stage {
    expected: Expectation,
    incoming: Incoming,
    attempt: u64,
    sealer: Option<FrameSealer>,
    began: Instant,
}

impl Stage {
    fn new(window: u64, lease: Option<Duration>) -> Self {
        let audience = Audience::parse("test/desk").unwrap();
        let key = AgentKey::hmac("ann.k1", &[1; 32]).unwrap();
        let signed = RequestSigner::new(&key, audience.clone(), vec![]).unwrap().sign(&Signed {
            subject: "rpc.v1.desk.ann",
            reply: REPLY,
            payload: b"{}",
            token: "t",
            now_ms: NOW * 1000,
            valid_s: 30,
            timeout_ms: Some(60_000),
            window: Some(window),
            ..Signed::default()
        });
        let binding = Binding::of_hmac(&signed.authorization, REPLY, &audience, "ann.k1", &[1; 32]).unwrap();
        let began = Instant::now();
        let deadline = began + lease.unwrap_or(Duration::from_secs(600));
        let incoming = Incoming::new(Limits { window, lease }, "desk", deadline, began);
        let attempt = incoming.begin(&signed.expectation);
        let sealer = Some(FrameSealer::new(binding, "r1"));
        Self { expected: signed.expectation, incoming, attempt, sealer, began }
    }

    fn at(&self, ms: u64) -> Instant {
        self.began + Duration::from_millis(ms)
    }

    fn sealer(&mut self) -> &mut FrameSealer {
        self.sealer.as_mut().unwrap()
    }

    fn item(&mut self, text: &str) -> SealedFrame {
        self.sealer().content(FrameKind::Item, text.to_owned().into(), NOW)
    }

    fn end(&mut self) -> SealedFrame {
        self.sealer.take().unwrap().end("end".into(), NOW)
    }

    fn arrives(&self, frame: &SealedFrame, ms: u64) -> Verdict {
        match self.expected.accept_any(REPLY, frame.headers(), frame.payload()).unwrap() {
            Accepted::Frame(accepted) => {
                self.incoming.framed(self.attempt, accepted, frame.payload().clone(), self.at(ms))
            }
            Accepted::Answer { .. } => panic!("a frame"),
        }
    }

    fn opened(window: u64, lease: Option<Duration>) -> Self {
        let mut stage = Self::new(window, lease);
        let open = stage.sealer().open(NOW);
        assert_eq!(stage.arrives(&open, 0), Verdict::Taken);
        stage
    }

    /// What the application gets, without waiting.
    fn next(&self, ms: u64) -> Option<Next> {
        match self.incoming.poll_next(&Context::from_waker(Waker::noop()), self.at(ms)) {
            Poll::Ready(next) => Some(next),
            Poll::Pending => None,
        }
    }

    fn takes(&self, text: &str, ms: u64) {
        match self.next(ms) {
            Some(Next::Frame(frame)) => assert_eq!(frame.payload, text),
            other => panic!("{text}: {other:?}"),
        }
    }

    fn waits(&self, ms: u64) -> Duration {
        match self.incoming.duty(self.at(ms)) {
            Duty::Wait(until) => until - self.began,
            other => panic!("{other:?}"),
        }
    }
}

/// SPEC.md §25.
#[test]
fn frames_come_in_order_and_missing_ones_are_asked_for_with_growing_pauses() {
    let mut stage = Stage::opened(32, None);
    let (one, two, three) = (stage.item("1"), stage.item("2"), stage.item("3"));
    stage.arrives(&three, 10);
    assert!(stage.next(10).is_none(), "not out of order");
    assert!(matches!(stage.incoming.duty(stage.at(10)), Duty::Again(Some(0))));
    assert_eq!(stage.waits(20), Duration::from_millis(110), "at most every 100 ms");
    assert!(matches!(stage.incoming.duty(stage.at(110)), Duty::Again(Some(0))));
    assert_eq!(stage.waits(120), Duration::from_millis(310), "and then less often");
    stage.arrives(&one, 130);
    assert!(matches!(stage.incoming.duty(stage.at(310)), Duty::Again(Some(1))), "the gap is another one");
    stage.arrives(&two, 320);
    assert_eq!(stage.arrives(&two, 320), Verdict::Ignored, "again");
    for text in ["1", "2", "3"] {
        stage.takes(text, 320);
    }
    let end = stage.end();
    stage.arrives(&end, 330);
    assert!(matches!(stage.incoming.duty(stage.at(330)), Duty::Over { known: true }));
    stage.takes("end", 330);
    assert!(matches!(stage.next(330), Some(Next::Over(None))));
}

/// SPEC.md §25: what the application does not take is not acknowledged, so the service waits.
#[test]
fn acknowledged_is_what_the_application_has_taken() {
    let mut stage = Stage::opened(4, None);
    for number in 1..=4 {
        let item = stage.item(&number.to_string());
        assert_eq!(stage.arrives(&item, 1), Verdict::Taken);
    }
    assert_eq!(stage.waits(1000), Duration::from_millis(7001), "nothing was taken");
    stage.takes("1", 1000);
    assert!(matches!(stage.incoming.duty(stage.at(1000)), Duty::Wait(_)));
    stage.takes("2", 1001);
    assert!(matches!(stage.incoming.duty(stage.at(1001)), Duty::Ack(2, None)), "half the window");
    stage.incoming.told(2, None, stage.at(1001));
    stage.takes("3", 1002);
    assert_eq!(stage.waits(1002), Duration::from_millis(6002), "one small frame has time");
    assert!(matches!(stage.incoming.duty(stage.at(6002)), Duty::Ack(3, None)));

    // Beyond the window: only this stream ends, and never with a result.
    let mut flooded = Stage::opened(4, None);
    let verdicts: Vec<_> = (0..5)
        .map(|_| {
            let item = flooded.item("x");
            flooded.arrives(&item, 1)
        })
        .collect();
    assert_eq!(verdicts[3..], [Verdict::Taken, Verdict::Refused]);
    for _ in 0..4 {
        flooded.takes("x", 2);
    }
    assert!(matches!(flooded.next(2), Some(Next::Over(Some(Err(ClientError::Frames(FrameFault::Window)))))));
    assert!(matches!(flooded.incoming.duty(flooded.at(2)), Duty::Over { known: false }), "to be cancelled");
}

/// SPEC.md §25: a service keeps only so many bytes, whatever the window is.
#[test]
fn bytes_are_bounded_and_told_before_half_the_window() {
    let mut stage = Stage::opened(1024, None);
    let large = "x".repeat(300 << 10);
    let item = stage.item(&large);
    stage.arrives(&item, 1);
    stage.takes(&large, 1);
    assert!(matches!(stage.incoming.duty(stage.at(1)), Duty::Ack(1, None)));
    let mut verdict = Verdict::Taken;
    for _ in 0..8 {
        let item = stage.item(&large);
        verdict = stage.arrives(&item, 1);
    }
    assert_eq!(verdict, Verdict::Ignored, "it had ended before");
    assert!(matches!(stage.incoming.duty(stage.at(1)), Duty::Over { known: false }));
}

/// SPEC.md §25.
#[test]
fn silence_and_gaps_of_twenty_seconds_lose_the_stream() {
    let mut stage = Stage::opened(32, None);
    let one = stage.item("1");
    stage.arrives(&one, 0);
    stage.takes("1", 0);
    for second in [5, 10, 15] {
        let beat = stage.sealer().beat(NOW + second);
        assert_eq!(stage.arrives(&beat, second * 1000), Verdict::Taken);
        assert_eq!(stage.arrives(&beat, 19_000), Verdict::Ignored, "a sign of life once");
    }
    assert!(matches!(stage.incoming.duty(stage.at(34_999)), Duty::Again(Some(1))));
    assert!(matches!(stage.incoming.duty(stage.at(34_999)), Duty::Ack(..)));
    assert!(matches!(stage.incoming.duty(stage.at(35_000)), Duty::Over { known: false }));
    match stage.next(35_000) {
        Some(Next::Over(Some(Err(ClientError::StreamLost {
            last_seq: Some(1), why: StreamLoss::Silence, ..
        })))) => {}
        other => panic!("{other:?}"),
    }

    // Beats do not help against a gap.
    let mut stage = Stage::opened(32, None);
    stage.item("lost");
    let two = stage.item("2");
    stage.arrives(&two, 0);
    for second in [5, 10, 15, 19] {
        let beat = stage.sealer().beat(NOW + second);
        stage.arrives(&beat, second * 1000);
    }
    assert!(matches!(stage.incoming.duty(stage.at(20_000)), Duty::Over { known: false }));
    match stage.next(20_000) {
        Some(Next::Over(Some(Err(ClientError::StreamLost { last_seq: Some(0), why: StreamLoss::Gap, .. })))) => {}
        other => panic!("{other:?}"),
    }
}

/// SPEC.md §25: more questions than are answered at a time must not hold up the end for ever.
#[test]
fn questions_hold_up_no_stream_that_has_ended() {
    let mut stage = Stage::opened(32, None);
    let asks: Vec<SealedFrame> = (0..12).map(|_| stage.sealer().content(FrameKind::Ask, "{}".into(), NOW)).collect();
    for ask in &asks {
        assert_eq!(stage.arrives(ask, 0), Verdict::Taken);
    }
    let taken = |stage: &Stage| match stage.next(1) {
        Some(Next::Frame(frame)) => {
            let is_ask = frame.kind == FrameKind::Ask;
            if is_ask {
                stage.incoming.ask(frame);
            }
            is_ask
        }
        _ => false,
    };
    assert_eq!((0..12).take_while(|_| taken(&stage)).count(), MOST_ASKS, "the others wait");
    let end = stage.end();
    stage.arrives(&end, 2);
    assert_eq!((0..13).take_while(|_| taken(&stage)).count(), 12 - MOST_ASKS);
}

/// SPEC.md §25: no beat comes after the last frame.
#[test]
fn after_a_silence_the_end_is_asked_for() {
    let mut stage = Stage::opened(32, None);
    let one = stage.item("1");
    stage.arrives(&one, 1000);
    stage.takes("1", 1000);
    assert!(matches!(stage.incoming.duty(stage.at(6000)), Duty::Ack(1, None)));
    stage.incoming.told(1, None, stage.at(6000));
    assert_eq!(stage.waits(6001), Duration::from_secs(8));
    assert!(matches!(stage.incoming.duty(stage.at(8000)), Duty::Again(Some(1))));
    assert!(stage.waits(8001) < Duration::from_secs(9), "and again");
    let beat = stage.sealer().beat(NOW + 9);
    stage.arrives(&beat, 9000);
    assert!(!matches!(stage.incoming.duty(stage.at(15_999)), Duty::Again(_)), "not after a sign of life");
}

/// SPEC.md §25.
#[test]
fn leases_are_renewed_at_half_and_move_the_deadline() {
    let mut stage = Stage::opened(32, Some(Duration::from_secs(8)));
    assert_eq!(stage.waits(0), Duration::from_secs(4));
    let lease = Some(Duration::from_secs(8));
    assert!(matches!(stage.incoming.duty(stage.at(4000)), Duty::Ack(0, renewed) if renewed == lease));
    stage.incoming.told(0, lease, stage.at(4000));
    assert_eq!(stage.waits(4001), Duration::from_secs(7), "then nothing was heard for too long");
    let beat = stage.sealer().beat(NOW + 9);
    stage.arrives(&beat, 9000);
    // The renewal could not be sent: the service ends it, and the client does not wait for ever.
    assert!(matches!(stage.incoming.duty(stage.at(13_999)), Duty::Ack(0, _)));
    assert!(matches!(stage.incoming.duty(stage.at(14_000)), Duty::Over { known: false }));
    assert!(matches!(stage.next(14_000), Some(Next::Over(Some(Err(ClientError::Timeout { .. }))))));
}

/// SPEC.md §25.
#[test]
fn after_a_reconnect_frames_are_asked_for_and_acknowledged_once_more() {
    let stage = Stage::new(32, None);
    stage.incoming.disconnected();
    assert!(matches!(stage.incoming.duty(stage.at(1)), Duty::Again(None)), "even the first frame may be lost");
    assert!(matches!(stage.incoming.duty(stage.at(2)), Duty::Wait(_)), "once");
    let mut stage = Stage::opened(32, None);
    let one = stage.item("1");
    stage.arrives(&one, 1);
    stage.takes("1", 1);
    stage.incoming.told(1, None, stage.at(1));
    stage.incoming.reconnected();
    assert!(matches!(stage.incoming.duty(stage.at(50)), Duty::Again(Some(1))));
    assert_eq!(stage.waits(51), Duration::from_millis(300));
    assert!(matches!(stage.incoming.duty(stage.at(300)), Duty::Ack(1, None)));
}

/// SPEC.md §25: an ordinary answer before any frame is the outcome, and after one it is nothing.
#[test]
fn ordinary_answers_count_before_the_first_frame_only() {
    let answer = || {
        let payload = Bytes::from_static(br#"{"jsonrpc":"2.0","result":1,"id":1}"#);
        let responses = crate::rpc::Responses::parse(&payload, &crate::rpc::Limits::default()).map_err(Into::into);
        Ok(Answer::new(responses, payload))
    };
    let mut stage = Stage::new(32, None);
    assert!(stage.incoming.answered(stage.attempt, answer()));
    let open = stage.sealer().open(NOW);
    assert_eq!(stage.arrives(&open, 1), Verdict::Ignored, "it was the whole answer");
    assert!(matches!(stage.incoming.duty(stage.at(1)), Duty::Answered(Ok(_))));

    let stage = Stage::opened(32, None);
    assert!(!stage.incoming.answered(stage.attempt, answer()));
    assert!(!stage.incoming.answered(stage.attempt + 1, answer()), "of another message");
    assert!(matches!(stage.incoming.duty(stage.at(1)), Duty::Wait(_)));
    // An unsigned message is worth nothing beside a frame.
    let mut stage = Stage::new(32, None);
    assert!(stage.incoming.answered(stage.attempt, Err(ClientError::NoResponders { subject: String::new() })));
    let open = stage.sealer().open(NOW);
    assert_eq!(stage.arrives(&open, 2), Verdict::Taken);
    assert!(matches!(stage.incoming.duty(stage.at(2)), Duty::Wait(_)));
}

/// SPEC.md §25.4: an unsigned message ends the wait, but not what the service may be doing.
#[test]
fn after_an_unsigned_end_the_service_s_own_is_still_heard() {
    let hint = || Err(ClientError::NoResponders { subject: String::new() });
    let mut stage = Stage::new(32, None);
    assert!(stage.incoming.answered(stage.attempt, hint()));
    assert!(matches!(stage.incoming.duty(stage.at(1)), Duty::Answered(Err(_))));
    let open = stage.sealer().open(NOW);
    assert_eq!(stage.arrives(&open, 2), Verdict::Ignored, "it may be sent again, and then this is late");
    stage.incoming.finish(hint(), false);
    assert!(matches!(stage.incoming.duty(stage.at(3)), Duty::Over { known: false }));
    let one = stage.item("1");
    assert_eq!(stage.arrives(&one, 3), Verdict::Ignored);
    assert!(!stage.incoming.has_ended());
    let end = stage.end();
    stage.arrives(&end, 4);
    assert!(stage.incoming.has_ended());
    assert!(matches!(stage.next(5), Some(Next::Over(Some(Err(_))))), "no frame was taken");
}

/// SPEC.md §25: a call counts as cancelled once it has ended, and nobody else notices a lost end.
#[test]
fn an_abandoned_stream_takes_nothing_but_the_end() {
    let mut stage = Stage::opened(4, None);
    let one = stage.item("1");
    stage.arrives(&one, 1);
    stage.incoming.abandon();
    assert!(matches!(stage.incoming.duty(stage.at(1)), Duty::Over { known: false }));
    for _ in 0..10 {
        let item = stage.item("more than the window");
        assert_eq!(stage.arrives(&item, 1), Verdict::Ignored);
    }
    assert!(!stage.incoming.has_ended());
    let end = stage.end();
    stage.arrives(&end, 2);
    assert!(stage.incoming.has_ended());
}

/// SPEC.md §25: the last acknowledgement may be lost, and then both would wait.
#[test]
fn signs_of_life_have_the_last_acknowledgement_repeated_a_few_times() {
    let mut stage = Stage::opened(2, None);
    let one = stage.item("1");
    stage.arrives(&one, 0);
    stage.takes("1", 0);
    stage.incoming.told(1, None, stage.at(0));
    let mut acks = 0;
    for number in 1..10 {
        let beat = stage.sealer().beat(NOW + number * 5);
        stage.arrives(&beat, number * 5000);
        acks += u32::from(matches!(stage.incoming.duty(stage.at(number * 5000)), Duty::Ack(1, None)));
    }
    assert_eq!(acks, REPEATED);
}

#[test]
fn questions_are_taken_up_to_a_bound() {
    let mut stage = Stage::opened(32, None);
    for _ in 0..MOST_ASKS + 1 {
        let ask = stage.sealer().content(FrameKind::Ask, "?".into(), NOW);
        stage.arrives(&ask, 0);
    }
    for _ in 0..MOST_ASKS {
        match stage.next(0) {
            Some(Next::Frame(frame)) => {
                assert!(frame.ask.is_some(), "its answer names it");
                stage.incoming.ask(frame);
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(stage.next(0).is_none());
    assert!(stage.incoming.next_ask().is_some());
    assert!(stage.next(0).is_none(), "it is being answered");
    stage.incoming.answered_ask();
    assert!(matches!(stage.next(0), Some(Next::Frame(_))));
}
