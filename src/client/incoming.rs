//! What arrives for one stream: frames, in order, until the application takes them, and what the service has to be told meanwhile.
//! Never holds more than the window and its bytes allow, and never reports a stream as ended whose end was lost.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::answer::Answer;
use super::error::{ClientError, StreamLoss};
use crate::wire::{AcceptedFrame, Expectation, FrameFault, FrameKind, FrameReceiver, Received, Taken, Unverifiable};

/// One stream, between the connection, which must not wait, and the application, which may take its time.
#[derive(Debug)]
pub(super) struct Incoming {
    state: Mutex<State>,
    /// Signals that what the service has to be told may have changed.
    changed: Notify,
}

#[derive(Debug)]
struct State {
    limits: Limits,
    service: String,
    /// Counts the messages that were sent for this stream: what arrives for an earlier one is late.
    attempt: u64,
    /// An ordinary answer is being judged: whatever comes meanwhile is ignored.
    is_deciding: bool,
    receiver: Option<FrameReceiver>,
    queue: VecDeque<Received>,
    queued_bytes: usize,
    /// What arrived in place of a stream.
    instead: Instead,
    /// Nothing more is accepted: after what is in the queue comes `outcome`, unless the last frame is the outcome.
    over: bool,
    outcome: Option<Result<Answer, ClientError>>,
    /// The service is known to have ended it, or never to have begun.
    known: bool,
    /// The application's.
    waker: Option<Waker>,
    /// Nobody takes anything any more.
    abandoned: bool,
    taken: Taking,
    heard: Instant,
    /// The last frame before a gap, and since when frames are missing.
    gap: Option<(Option<u64>, Instant)>,
    /// When the missing frames were last asked for, and the pause before they are asked for again.
    again: Option<(Instant, Duration)>,
    /// The connection was re-established: frames and acknowledgements may be lost.
    reconnected: bool,
    /// When the service stops working on it.
    deadline: Instant,
    /// When the deadline was last moved.
    renewed: Instant,
    /// Questions that the application has reached, and how many are being answered.
    asks: VecDeque<Received>,
    asked: usize,
    /// Until when there is nothing to do. `None` if that may have changed: most frames change nothing, and wake nobody.
    waits: Option<Instant>,
}

/// What the application has taken, and what the service knows about that.
#[derive(Debug, Default)]
struct Taking {
    /// The last number that was taken.
    last: Option<u64>,
    /// The last number that the service was told.
    told: Option<u64>,
    /// Bytes that the service was not told about.
    bytes: usize,
    /// When the oldest frame was taken that the service was not told about.
    since: Option<Instant>,
    /// How often the last number was repeated, in case it was lost.
    repeated: u32,
    /// A sign of life came while there was nothing to take: the service may be waiting for us.
    idle: bool,
}

/// What is known about a message that no frame has answered.
#[derive(Debug, Default)]
struct Instead {
    /// An ordinary answer, or an error in its place.
    answer: Option<Result<Answer, ClientError>>,
    /// A signed refusal of one delivery, kept because the answer to another may still be under way.
    refused: Option<Result<Answer, ClientError>>,
    unverifiable: Option<Unverifiable>,
    lost: bool,
}

/// The bounds of a stream.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// The most frames beyond those that the application has taken.
    pub(super) window: u64,
    /// How far ahead the deadline is kept for as long as somebody listens; `None` if it is fixed.
    pub(super) lease: Option<Duration>,
}

/// What the application gets.
#[derive(Debug)]
pub(super) enum Next {
    /// The next frame.
    Frame(Received),
    /// There are no more; an ordinary answer or an error ended it. `None` if that was given out before.
    Over(Option<Result<Answer, ClientError>>),
}

/// What the driver has to do for a stream.
#[derive(Debug)]
pub(super) enum Duty {
    /// Nothing until then, unless something happens.
    Wait(Instant),
    /// Ask for the frames after this one.
    Again(Option<u64>),
    /// Acknowledge what was taken; with a lease, move the deadline.
    Ack(u64, Option<Duration>),
    /// Decide whether this is the outcome: an ordinary answer that came before any frame.
    Answered(Result<Answer, ClientError>),
    /// It is over; `known`: the service knows that, too.
    Over { known: bool },
}

/// What became of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Taken,
    /// A copy, or too late.
    Ignored,
    /// It breaks the stream.
    Refused,
}

impl Incoming {
    pub(super) fn new(limits: Limits, service: &str, deadline: Instant, now: Instant) -> Self {
        let state = State {
            limits,
            service: service.to_owned(),
            attempt: 0,
            is_deciding: false,
            receiver: None,
            queue: VecDeque::new(),
            queued_bytes: 0,
            instead: Instead::default(),
            over: false,
            outcome: None,
            known: false,
            waker: None,
            abandoned: false,
            taken: Taking::default(),
            heard: now,
            gap: None,
            again: None,
            reconnected: false,
            deadline,
            renewed: now,
            asks: VecDeque::new(),
            asked: 0,
            waits: None,
        };
        Self { state: Mutex::new(state), changed: Notify::new() }
    }

    /// A message is about to be sent. Returns its number, which comes with whatever arrives for it.
    pub(super) fn begin(&self, expected: &Expectation) -> u64 {
        let mut state = self.lock();
        state.attempt += 1;
        state.is_deciding = false;
        state.receiver = Some(FrameReceiver::new(expected, state.limits.window, MOST_BYTES));
        state.instead = Instead::default();
        state.attempt
    }

    /// A frame arrived whose signature and binding were verified.
    pub(super) fn framed(&self, attempt: u64, frame: AcceptedFrame, payload: Bytes, now: Instant) -> Verdict {
        let mut state = self.lock();
        let verdict = state.framed(attempt, frame, payload, now);
        let is_due = state.waits.is_none();
        drop(state);
        if is_due {
            self.changed.notify_one();
        }
        verdict
    }

    /// An ordinary answer arrived, or an error in its place; `false` if it no longer counts.
    pub(super) fn answered(&self, attempt: u64, answer: Result<Answer, ClientError>) -> bool {
        let mut state = self.lock();
        let counts = state.hears(attempt) && !state.has_begun();
        if counts && (state.abandoned || state.over) {
            state.known |= answer.is_ok();
            state.wake();
        } else if counts && state.instead.answer.is_none() {
            state.instead.answer = Some(answer);
        }
        drop(state);
        self.changed.notify_one();
        counts
    }

    /// A signed refusal of one delivery of the message arrived.
    pub(super) fn refused(&self, attempt: u64, answer: Result<Answer, ClientError>) {
        let mut state = self.lock();
        if state.hears(attempt) {
            state.instead.refused = Some(answer);
        }
    }

    /// Something arrived that is neither an answer nor a frame.
    pub(super) fn unverifiable(&self, attempt: u64, reason: Unverifiable) {
        let mut state = self.lock();
        if state.hears(attempt) {
            state.instead.unverifiable = Some(reason);
        }
    }

    /// The connection was lost, and perhaps what was under way with it.
    pub(super) fn disconnected(&self) {
        let mut state = self.lock();
        state.instead.lost = true;
        state.reconnected = true;
    }

    /// The connection is back.
    pub(super) fn reconnected(&self) {
        self.lock().reconnected = true;
        self.changed.notify_one();
    }

    /// The error of a stream that the service ended in the middle of its result.
    pub(super) fn cut(&self) -> ClientError {
        let state = self.lock();
        let last_seq = state.receiver.as_ref().and_then(FrameReceiver::last);
        ClientError::StreamLost { service: state.service.clone(), last_seq, why: StreamLoss::Cut }
    }

    /// Whether a frame was accepted: from then on only frames count.
    pub(super) fn has_begun(&self) -> bool {
        self.lock().has_begun()
    }

    /// The replica that answers, once a frame has named it.
    pub(super) fn replica(&self) -> Option<String> {
        self.lock().receiver.as_ref().and_then(|receiver| receiver.replica().map(str::to_owned))
    }

    /// Ends it with this outcome, after what is in the queue, unless it has already ended. `known`: there is nothing left to end at the
    /// service.
    pub(super) fn finish(&self, outcome: Result<Answer, ClientError>, known: bool) {
        let mut state = self.lock();
        state.known |= known;
        state.finish(outcome);
        drop(state);
        self.changed.notify_one();
    }

    /// Nobody takes anything any more: only the end still counts.
    pub(super) fn abandon(&self) {
        let mut state = self.lock();
        state.abandoned = true;
        state.known |= matches!(state.instead.answer, Some(Ok(_)));
        state.queue.clear();
        state.queued_bytes = 0;
        state.asks.clear();
        drop(state);
        self.changed.notify_one();
    }

    /// Whether the service is known to have ended it.
    pub(super) fn has_ended(&self) -> bool {
        self.lock().known
    }

    /// Waits until the service is known to have ended it.
    ///
    /// Cancel safety: nothing is lost. One caller at a time: others would not be woken.
    pub(super) async fn ended(&self) {
        loop {
            let changed = self.changed.notified();
            if self.has_ended() {
                return;
            }
            changed.await;
        }
    }

    /// As [`Incoming::ended`], for the application.
    pub(super) fn poll_ended(&self, context: &Context<'_>) -> Poll<()> {
        let mut state = self.lock();
        if state.known {
            return Poll::Ready(());
        }
        state.waker = Some(context.waker().clone());
        Poll::Pending
    }

    /// The next frame, for the application.
    pub(super) fn poll_next(&self, context: &Context<'_>, now: Instant) -> Poll<Next> {
        let mut state = self.lock();
        let next = state.poll_next(context, now);
        let is_due = next.is_ready() && state.waits.is_none();
        drop(state);
        if is_due {
            self.changed.notify_one();
        }
        next
    }

    /// Hands over a question to be answered.
    pub(super) fn ask(&self, ask: Received) {
        self.lock().asks.push_back(ask);
        self.changed.notify_one();
    }

    /// The next question to be answered.
    pub(super) fn next_ask(&self) -> Option<Received> {
        let mut state = self.lock();
        let ask = state.asks.pop_front();
        state.asked += usize::from(ask.is_some());
        ask
    }

    /// A question was answered: there is room for another.
    pub(super) fn answered_ask(&self) {
        let mut state = self.lock();
        state.asked = state.asked.saturating_sub(1);
        state.wake();
    }

    /// What has to be done now. To be asked again whenever something changes, and at the time that it returns.
    pub(super) fn duty(&self, now: Instant) -> Duty {
        self.lock().duty(now)
    }

    /// Waits until [`Incoming::duty`] may have changed.
    ///
    /// Cancel safety: nothing is lost.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// The service was told that this much was taken, and that the deadline is moved.
    pub(super) fn told(&self, ack: u64, lease: Option<Duration>, now: Instant) {
        self.lock().told(ack, lease, now);
    }

    /// The number that an acknowledgement would have now, if anything was taken.
    pub(super) fn taken(&self) -> Option<u64> {
        self.lock().taken.last
    }

    /// The number of the last frame that came in order, if there was any.
    pub(super) fn last(&self) -> Option<u64> {
        self.lock().receiver.as_ref().and_then(FrameReceiver::last)
    }

    /// When the service stops working on it at the latest, as far as it was told.
    pub(super) fn deadline(&self) -> Instant {
        self.lock().deadline
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Whether what arrives for this attempt counts. Not while an answer is being judged: if the request is sent again,
    /// no frame of this attempt may come in between.
    fn hears(&self, attempt: u64) -> bool {
        self.attempt == attempt && !self.is_deciding
    }

    fn has_begun(&self) -> bool {
        self.receiver.as_ref().is_some_and(|receiver| receiver.replica().is_some())
    }

    fn framed(&mut self, attempt: u64, frame: AcceptedFrame, payload: Bytes, now: Instant) -> Verdict {
        let waits = self.waits.take().filter(|_| self.has_begun());
        if !self.hears(attempt) {
            return Verdict::Ignored;
        }
        if self.abandoned || self.over {
            if frame.claims.knd == FrameKind::End {
                self.known = true;
                self.wake();
            }
            return Verdict::Ignored;
        }
        // A signed answer was the whole answer. An unsigned one says nothing beside a frame.
        if matches!(self.instead.answer, Some(Ok(_))) {
            return Verdict::Ignored;
        }
        let Some(receiver) = &mut self.receiver else { return Verdict::Ignored };
        if receiver.replica().is_none() {
            // From here on only frames count.
            self.instead = Instead::default();
        }
        let mut only_more = false;
        match receiver.take(frame, payload) {
            Err(fault) => {
                self.finish(Err(ClientError::Frames(fault)));
                return Verdict::Refused;
            }
            Ok(Taken::Repeated) => return Verdict::Ignored,
            Ok(Taken::Alive) => self.taken.idle = self.queue.is_empty(),
            Ok(Taken::Gap) => {}
            Ok(Taken::Next(frames)) => {
                for frame in frames {
                    if frame.kind == FrameKind::Open {
                        self.taken.last = Some(frame.seq);
                        continue;
                    }
                    self.queued_bytes += held(&frame);
                    self.queue.push_back(frame);
                }
                if self.queued_bytes > MOST_BYTES {
                    self.finish(Err(ClientError::Frames(FrameFault::Window)));
                    return Verdict::Refused;
                }
                self.again = self.again.map(|(asked, _)| (asked, AGAIN_AT_FIRST));
                self.taken.idle = false;
                self.taken.repeated = 0;
                only_more = true;
                self.wake();
            }
        }
        self.heard = now;
        let receiver = self.receiver.as_ref();
        let missing = receiver.filter(|receiver| receiver.has_gap()).map(FrameReceiver::last);
        self.gap = match (missing, self.gap) {
            (None, _) => None,
            (Some(last), Some((before, since))) if last == before => Some((last, since)),
            (Some(last), _) => Some((last, now)),
        };
        if receiver.is_some_and(FrameReceiver::is_ended) {
            self.over = true;
            self.known = true;
        } else if only_more && self.gap.is_none() {
            // The driver looks again when that time has come.
            self.waits = waits;
        }
        Verdict::Taken
    }

    fn poll_next(&mut self, context: &Context<'_>, now: Instant) -> Poll<Next> {
        let is_ask = self.queue.front().is_some_and(|frame| frame.kind == FrameKind::Ask);
        // Questions wait in the queue, under the window, unless nobody waits for their answers any more.
        let is_held_up = is_ask && !self.over && self.asks.len() + self.asked >= MOST_ASKS;
        if !is_held_up && let Some(frame) = self.queue.pop_front() {
            let bytes = held(&frame);
            self.queued_bytes = self.queued_bytes.saturating_sub(bytes);
            self.taken.last = Some(frame.seq);
            self.taken.bytes += bytes;
            self.taken.since.get_or_insert(now);
            let tell_at = self.tell_at();
            self.waits = self.waits.filter(|until| tell_at.is_none_or(|at| at >= *until));
            if let Some(receiver) = &mut self.receiver {
                receiver.allow(frame.seq.saturating_add(self.limits.window));
            }
            return Poll::Ready(Next::Frame(frame));
        }
        if self.over && self.queue.is_empty() {
            self.waits = None;
            return Poll::Ready(Next::Over(self.outcome.take()));
        }
        self.waker = Some(context.waker().clone());
        Poll::Pending
    }

    fn duty(&mut self, now: Instant) -> Duty {
        let duty = self.next_duty(now);
        self.waits = if let Duty::Wait(until) = &duty { Some(*until) } else { None };
        duty
    }

    fn next_duty(&mut self, now: Instant) -> Duty {
        if self.over || self.abandoned {
            return Duty::Over { known: self.known };
        }
        if let Some(answer) = self.instead.answer.take() {
            self.is_deciding = true;
            return Duty::Answered(answer);
        }
        if !self.has_begun() {
            return self.duty_before(now);
        }
        let last = self.receiver.as_ref().and_then(FrameReceiver::last);
        let overdue = |since: Instant| since + PATIENCE <= now;
        let (silent, gap) = (overdue(self.heard), self.gap.is_some_and(|(_, since)| overdue(since)));
        if silent || gap {
            let why = if self.gap.is_some() { StreamLoss::Gap } else { StreamLoss::Silence };
            self.finish(Err(ClientError::StreamLost { service: self.service.clone(), last_seq: last, why }));
            return Duty::Over { known: false };
        }
        if self.deadline + LATE_END <= now {
            self.finish(Err(self.timeout(now)));
            return Duty::Over { known: false };
        }
        let mut next = (self.heard + PATIENCE).min(self.deadline + LATE_END);
        if let Some((_, since)) = self.gap {
            next = next.min(since + PATIENCE);
        }
        // The last frame may be lost, and no beat comes after it.
        let quiet = self.heard + QUIET;
        if quiet > now {
            next = next.min(quiet);
        }
        if self.gap.is_some() || self.reconnected || quiet <= now {
            match self.again {
                Some((asked, pause)) if asked + pause > now => next = next.min(asked + pause),
                asked => {
                    // If asking once did not help, asking more often will not.
                    let pause = asked.map_or(AGAIN_AT_FIRST, |(_, pause)| (pause * 2).min(AGAIN_AT_LAST));
                    self.again = Some((now, pause));
                    if std::mem::take(&mut self.reconnected) {
                        // An acknowledgement may be lost, too.
                        self.taken.told = None;
                        self.taken.since = self.taken.last.map(|_| now);
                    }
                    return Duty::Again(last);
                }
            }
        }
        match self.ack_due(now) {
            Some(due) if due <= now => {
                let renews = self.limits.lease.filter(|lease| self.renewed + *lease / 4 <= now);
                Duty::Ack(self.taken.last.unwrap_or(0), renews)
            }
            Some(due) => Duty::Wait(next.min(due)),
            None => Duty::Wait(next),
        }
    }

    /// Before the first frame.
    fn duty_before(&mut self, now: Instant) -> Duty {
        if self.deadline <= now {
            let lost = self.instead.lost.then_some(ClientError::ConnectionLost);
            let seen = self.instead.unverifiable.map(ClientError::Unverifiable).or(lost);
            let outcome = match self.instead.refused.take() {
                Some(refused) => refused,
                None => Err(seen.unwrap_or_else(|| self.timeout(now))),
            };
            self.finish(outcome);
            return Duty::Over { known: false };
        }
        // Frames may be lost, even the first.
        if std::mem::take(&mut self.reconnected) {
            return Duty::Again(None);
        }
        Duty::Wait(self.deadline)
    }

    /// When the service is told what was taken: at half the window, at a quarter of the bytes that it keeps, or after a while.
    fn tell_at(&self) -> Option<Instant> {
        let Taking { last, told, bytes, since, .. } = &self.taken;
        let since = (*since)?;
        let frames = last.map_or(0, |last| told.map_or(last, |told| last.saturating_sub(told)));
        Some(if frames >= self.limits.window.div_ceil(2) || *bytes >= TELL_BYTES {
            since
        } else if *bytes >= NOTICE_BYTES || told.is_none() {
            since + TELL_SOON
        } else {
            since + TELL_LATER
        })
    }

    /// The same, or at half the lease if that is earlier.
    fn ack_due(&mut self, now: Instant) -> Option<Instant> {
        let soon = self.tell_at();
        let Taking { last, told, since, repeated, idle, .. } = &mut self.taken;
        let mut due = self.limits.lease.filter(|_| last.is_some()).map(|lease| self.renewed + lease / 2);
        due = match (due, soon) {
            (Some(due), Some(soon)) => Some(due.min(soon)),
            (due, soon) => due.or(soon),
        };
        // The last acknowledgement may be lost, and then the service and the client would wait for each other.
        if std::mem::take(idle) && since.is_none() && told.is_some() && *repeated < REPEATED {
            *repeated += 1;
            due = Some(now);
        }
        due
    }

    fn told(&mut self, ack: u64, lease: Option<Duration>, now: Instant) {
        self.taken.told = Some(ack);
        if self.taken.last.is_none_or(|last| last <= ack) {
            self.taken.bytes = 0;
            self.taken.since = None;
        }
        if let Some(lease) = lease {
            self.deadline = now + lease;
            self.renewed = now;
        }
    }

    fn finish(&mut self, outcome: Result<Answer, ClientError>) {
        self.is_deciding = false;
        if !self.over {
            self.over = true;
            self.outcome = Some(outcome);
            self.wake();
        }
    }

    fn timeout(&self, now: Instant) -> ClientError {
        let after = now.saturating_duration_since(self.renewed);
        ClientError::Timeout { service: self.service.clone(), after }
    }

    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

/// What a frame counts: its bytes, and what is kept beside them.
fn held(frame: &Received) -> usize {
    frame.payload.len() + 512
}

/// The most bytes of frames that wait for the application; beyond a gap, as many again. A service keeps 1 MiB of unacknowledged frames, and
/// a message has 1 MiB at most unless a broker is configured otherwise.
const MOST_BYTES: usize = 2 << 20;

/// The most questions of one stream that are answered at a time.
const MOST_ASKS: usize = 8;

/// After this long without a new frame, or with a gap, a stream is lost. Services give a sign of life every 5 s.
const PATIENCE: Duration = Duration::from_secs(20);

/// After this long without a new frame, the service is asked for what may be missing. Longer than between two signs of life, and early
/// enough for the frames that it keeps for 10 s after the end.
const QUIET: Duration = Duration::from_secs(7);

/// How long after the deadline the service's own end may come.
const LATE_END: Duration = Duration::from_secs(2);

/// Between two requests for the same frames. Services answer the next one after 100 ms at the earliest.
const AGAIN_AT_FIRST: Duration = Duration::from_millis(100);
const AGAIN_AT_LAST: Duration = Duration::from_secs(2);

/// When the service is told what was taken earlier than at half the window: large frames fill what it may keep, and so do small ones before
/// a large one.
const TELL_BYTES: usize = 256 << 10;
const NOTICE_BYTES: usize = 16 << 10;
const TELL_SOON: Duration = Duration::from_millis(250);
const TELL_LATER: Duration = Duration::from_secs(5);

/// How often the last acknowledgement is repeated on signs of life.
const REPEATED: u32 = 3;

#[cfg(test)]
mod tests;
