//! The frames of one call: numbered, sealed, kept until they are acknowledged, and sent in order.
//! Never sends beyond the caller's window, and never keeps more than its bound.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout};

use super::memory::FrameMemory;
use super::outlet::Outlet;
use super::resends::Resends;
use super::together::{FULL_FRAME, MAX_PARTS, Together};
use crate::clock::Clock;
use crate::name::Name;
use crate::wire::{Binding, FrameKind, FrameSealer, Sealed, SealedFrame};

/// The frames of one call. None exist before the first one is due.
pub(in crate::service) struct FrameWriter {
    outlet: Arc<dyn Outlet>,
    clock: Arc<dyn Clock>,
    memory: Arc<FrameMemory>,
    resends: Arc<Resends>,
    agent: Name,
    /// The largest payload of a frame and of an ordinary answer, in bytes.
    largest: usize,
    started: Instant,
    sent: AtomicU64,
    state: Mutex<State>,
    /// Notified when the window has moved, or the stream has ended.
    room: Notify,
    /// Notified when there is something to send.
    work: Notify,
    /// Notified when somebody begins to wait for room.
    closed: Notify,
    /// Frames are sent one after the other.
    sending: tokio::sync::Mutex<()>,
}

/// What a writer is made of.
pub(in crate::service) struct Start {
    pub(in crate::service) outlet: Arc<dyn Outlet>,
    pub(in crate::service) clock: Arc<dyn Clock>,
    pub(in crate::service) memory: Arc<FrameMemory>,
    pub(in crate::service) resends: Arc<Resends>,
    pub(in crate::service) agent: Name,
    pub(in crate::service) largest: usize,
    pub(in crate::service) window: u64,
}

struct State {
    phase: Phase,
    window: u64,
    /// The last number that the caller has acknowledged.
    acked: u64,
    /// INVARIANT: frames with consecutive numbers, none of them acknowledged.
    kept: VecDeque<SealedFrame>,
    kept_bytes: usize,
    /// Notifications that found no room; they leave in one frame. Their bytes are taken from `memory`.
    notes: VecDeque<Vec<u8>>,
    note_bytes: usize,
    /// The number of the next frame to send, for the first time or again.
    next_to_send: u64,
    beat: Option<SealedFrame>,
    last_sent: Instant,
    /// Frames were asked for again after the stream's driver had ended.
    is_tail_due: bool,
    last_again: Option<Instant>,
    /// The least time between `last_again` and the next such request.
    again_after: Duration,
    /// Since when somebody has waited for room.
    closed_since: Option<Instant>,
}

enum Phase {
    /// No frame was sent: the call may still get an ordinary answer.
    Quiet(Binding),
    Open(Box<FrameSealer>),
    Ended,
}

/// A frame cannot be sent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// The call has ended: nobody waits for more.
    #[error("the call has ended")]
    Ended,
    /// It is larger than a message of this service may be.
    #[error("a part of the answer has {bytes} bytes, and the limit is {limit}: send smaller ones")]
    TooLarge {
        /// Its size in bytes.
        bytes: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// It cannot be written as JSON, or its parameters are neither an object nor an array.
    #[error("{0}")]
    Json(String),
}

/// How a call was answered.
pub(in crate::service) enum Finished {
    /// No frame was sent, and none is needed.
    Ordinary(Sealed),
    /// With frames, including the last one.
    Frames,
    /// With frames, but without the rest of the text: it had to stop, or the window stayed closed.
    Cut,
    /// Not at all: there is no room to hold the text while its pieces are sent.
    NoRoom,
}

/// Room for the text of a large response, until its last piece is sent.
struct Reserved<'w> {
    writer: &'w FrameWriter,
    bytes: usize,
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        self.writer.memory.give(&self.writer.agent, self.bytes);
    }
}

/// Why a frame does not leave at once.
enum NoRoom {
    Window,
    Memory,
    Ended,
}

/// The most bytes kept of one stream, not counting `end`.
pub(super) const MAX_KEPT: usize = 1 << 20;
/// More than a frame's header takes: see `REPLY_HEADER`.
const HEADER: usize = 2_048;
/// The bytes of a piece; small enough that many can be kept while some are acknowledged.
const PIECE: usize = 32 * 1024;
/// A call answered within this time costs no frame.
const OPEN_AFTER: Duration = Duration::from_millis(250);
/// After this long without a frame, a beat is sent.
const BEAT_AFTER: Duration = Duration::from_secs(5);
/// How long a window may be closed.
const CLOSED_FOR: Duration = Duration::from_secs(30);
/// The least time between two granted requests for frames, if the caller acknowledges between them.
const AGAIN_AFTER: Duration = Duration::from_millis(100);
/// The most that it grows to, by doubling, while nothing is acknowledged: this leaves some more tries in the 20 s after which a caller
/// gives up.
const AGAIN_AFTER_MOST: Duration = Duration::from_millis(3_200);
/// How long frames that are asked for again wait for a connection.
const TAIL: Duration = Duration::from_secs(2);
/// How long the last frames wait for a connection.
const LAST: Duration = Duration::from_secs(10);

impl FrameWriter {
    pub(in crate::service) fn new(binding: Binding, start: Start) -> Self {
        let Start { outlet, clock, memory, resends, agent, largest, window } = start;
        let now = Instant::now();
        Self {
            outlet,
            clock,
            memory,
            resends,
            agent,
            // Half of what may be kept, so that a frame waits for one other at most.
            largest: largest.min(MAX_KEPT / 2),
            started: now,
            sent: AtomicU64::new(0),
            state: Mutex::new(State {
                phase: Phase::Quiet(binding),
                window,
                acked: 0,
                kept: VecDeque::new(),
                kept_bytes: 0,
                notes: VecDeque::new(),
                note_bytes: 0,
                next_to_send: 0,
                beat: None,
                last_sent: now,
                is_tail_due: false,
                last_again: None,
                again_after: AGAIN_AFTER,
                closed_since: None,
            }),
            room: Notify::new(),
            work: Notify::new(),
            closed: Notify::new(),
            sending: tokio::sync::Mutex::new(()),
        }
    }

    pub(in crate::service) fn replica(&self) -> &Name {
        self.outlet.replica()
    }

    /// How many frames were numbered; 0 if the call was answered without any.
    pub(in crate::service) fn frames(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Whether the last word is said, with frames or without.
    pub(super) fn is_ended(&self) -> bool {
        matches!(self.state().phase, Phase::Ended)
    }

    /// Whether the last word is said, but not all of it acknowledged.
    pub(super) fn has_tail(&self) -> bool {
        let state = self.state();
        matches!(state.phase, Phase::Ended) && !state.kept.is_empty()
    }

    /// Forgets the kept frames: nobody can ask for them any more. Nothing is sent from now on.
    pub(super) fn let_go(&self) {
        let mut state = self.state();
        state.phase = Phase::Ended;
        let kept = std::mem::take(&mut state.kept);
        let bytes = std::mem::take(&mut state.kept_bytes);
        self.forget_notes(&mut state);
        drop(state);
        drop(kept);
        self.memory.give(&self.agent, bytes);
        self.room.notify_waiters();
    }

    /// Sends a frame as soon as the window and the bounds of memory have room for it.
    ///
    /// Cancel safety: a dropped future has sent nothing.
    pub(in crate::service) async fn send(&self, kind: FrameKind, payload: Bytes) -> Result<(), FrameError> {
        self.send_and(kind, payload, &mut |_| {}).await
    }

    /// Like [`FrameWriter::send`]; for a question, `remember` gets the digest of its proof.
    async fn send_and(
        &self,
        kind: FrameKind,
        payload: Bytes,
        remember: &mut (dyn FnMut(&str) + Send),
    ) -> Result<(), FrameError> {
        if payload.len() > self.largest {
            return Err(FrameError::TooLarge { bytes: payload.len(), limit: self.largest });
        }
        loop {
            // Most find room at once, and then no waiter is registered that would have to be withdrawn.
            match self.try_send(kind, &payload, remember) {
                Ok(()) => return Ok(()),
                Err(NoRoom::Ended) => return Err(FrameError::Ended),
                Err(NoRoom::Window | NoRoom::Memory) => {}
            }
            let (room, freed) = (self.room.notified(), self.memory.freed().notified());
            let (mut room, mut freed) = (std::pin::pin!(room), std::pin::pin!(freed));
            room.as_mut().enable();
            freed.as_mut().enable();
            match self.try_send(kind, &payload, remember) {
                Ok(()) => return Ok(()),
                Err(NoRoom::Ended) => return Err(FrameError::Ended),
                Err(NoRoom::Window) => room.await,
                Err(NoRoom::Memory) => {
                    tokio::select! {
                        () = room => {}
                        () = freed => {}
                    }
                }
            }
        }
    }

    /// Asks the caller. `remember` gets the digest of the question's proof before the frame can leave, so before anybody can
    /// have answered.
    ///
    /// Cancel safety: a dropped future has asked nothing.
    pub(in crate::service) async fn ask<A: Send>(
        &self,
        payload: Bytes,
        remember: impl FnOnce(String) -> A + Send,
    ) -> Result<A, FrameError> {
        let (mut remember, mut remembered) = (Some(remember), None);
        let mut asked = |question: &str| remembered = remember.take().map(|remember| remember(question.to_owned()));
        self.send_and(FrameKind::Ask, payload, &mut asked).await?;
        remembered.ok_or(FrameError::Ended)
    }

    /// Sends a notification. If there is no room now, it waits, and leaves with others in one frame; if more wait than such a frame holds,
    /// the oldest is dropped.
    pub(in crate::service) fn offer(&self, note: Vec<u8>) {
        let mut state = self.state();
        if matches!(state.phase, Phase::Ended) || note.len() > FULL_FRAME.min(self.largest) {
            return;
        }
        let now_s = self.clock.now_s();
        self.open(&mut state, now_s);
        while state.notes.len() >= MAX_PARTS || state.note_bytes.saturating_add(note.len()) > FULL_FRAME {
            let Some(oldest) = state.notes.pop_front() else { break };
            state.note_bytes = state.note_bytes.saturating_sub(oldest.len());
            self.memory.give(&self.agent, oldest.len());
        }
        if self.memory.try_take(&self.agent, note.len()) {
            state.note_bytes = state.note_bytes.saturating_add(note.len());
            state.notes.push_back(note);
            // If there is no room, they go on waiting.
            let _ = self.send_notes(&mut state, now_s);
        }
    }

    /// Sends the notifications that wait, if there is room.
    fn send_notes(&self, state: &mut State, now_s: u64) -> Result<(), NoRoom> {
        let Some(first) = state.notes.front() else { return Ok(()) };
        let mut together = Together::new(first);
        state.notes.iter().skip(1).for_each(|note| together.push(note));
        let payload = Bytes::from(together.into_payload());
        // Their own bytes are taken already.
        let held = state.note_bytes;
        self.seal(state, FrameKind::Note, &payload, held, now_s, &mut |_| {})?;
        state.notes.clear();
        state.note_bytes = 0;
        Ok(())
    }

    fn forget_notes(&self, state: &mut State) {
        state.notes.clear();
        self.memory.give(&self.agent, std::mem::take(&mut state.note_bytes));
    }

    fn try_send(
        &self,
        kind: FrameKind,
        payload: &Bytes,
        remember: &mut (dyn FnMut(&str) + Send),
    ) -> Result<(), NoRoom> {
        let now_s = self.clock.now_s();
        let mut state = self.state();
        if matches!(state.phase, Phase::Ended) {
            return Err(NoRoom::Ended);
        }
        self.open(&mut state, now_s);
        // Earlier notifications leave first.
        let sent =
            self.send_notes(&mut state, now_s).and_then(|()| self.seal(&mut state, kind, payload, 0, now_s, remember));
        match &sent {
            Ok(()) => state.closed_since = None,
            Err(_) if state.closed_since.is_none() => {
                state.closed_since = Some(Instant::now());
                self.closed.notify_one();
            }
            Err(_) => {}
        }
        sent
    }

    /// Numbers, signs and keeps a frame, if the window and the bounds of memory have room for it; `held` of its bytes are already taken.
    fn seal(
        &self,
        state: &mut State,
        kind: FrameKind,
        payload: &Bytes,
        held: usize,
        now_s: u64,
        remember: &mut (dyn FnMut(&str) + Send),
    ) -> Result<(), NoRoom> {
        let bytes = payload.len() + HEADER;
        let State { phase, window, acked, kept_bytes, .. } = &mut *state;
        let Phase::Open(sealer) = phase else { return Err(NoRoom::Ended) };
        if sealer.next_seq() > acked.saturating_add(*window) || kept_bytes.saturating_add(bytes) > MAX_KEPT {
            return Err(NoRoom::Window);
        }
        if !self.memory.try_take(&self.agent, bytes.saturating_sub(held)) {
            return Err(NoRoom::Memory);
        }
        let frame = sealer.content(kind, payload.clone(), now_s);
        if let Some(question) = frame.question() {
            remember(question);
        }
        self.keep(state, frame, bytes.max(held));
        Ok(())
    }

    /// Tells the caller the number of the last frame, with a sign of life.
    pub(in crate::service) fn remind(&self) {
        let now_s = self.clock.now_s();
        let mut state = self.state();
        let State { phase, beat, .. } = &mut *state;
        if let Phase::Open(sealer) = phase {
            *beat = Some(sealer.beat(now_s));
            self.work.notify_one();
        }
    }

    /// Opens the stream, if it is not open.
    fn open(&self, state: &mut State, now_s: u64) {
        if let Phase::Quiet(_) = state.phase
            && let Phase::Quiet(binding) = std::mem::replace(&mut state.phase, Phase::Ended)
        {
            let mut sealer = Box::new(FrameSealer::new(binding, self.outlet.replica().as_str()));
            let frame = sealer.open(now_s);
            state.phase = Phase::Open(sealer);
            self.keep(state, frame, 0);
        }
    }

    /// Keeps a frame, for which `taken` bytes were taken.
    fn keep(&self, state: &mut State, frame: SealedFrame, taken: usize) {
        self.memory.correct(&self.agent, taken, frame.len());
        state.kept_bytes = state.kept_bytes.saturating_add(frame.len());
        state.kept.push_back(frame);
        self.sent.fetch_add(1, Ordering::Relaxed);
        self.work.notify_one();
    }

    /// The caller has the frames up to `number`; `false` if they were never sent.
    pub(super) fn acknowledge(&self, number: u64, window: Option<u64>) -> bool {
        let mut state = self.state();
        if number >= state.next_number() {
            return false;
        }
        let mut freed = 0_usize;
        while state.kept.front().is_some_and(|frame| frame.seq() <= number) {
            freed = freed.saturating_add(state.kept.pop_front().map_or(0, |frame| frame.len()));
        }
        state.kept_bytes = state.kept_bytes.saturating_sub(freed);
        if number > state.acked || freed > 0 || window.is_some_and(|window| window > state.window) {
            state.closed_since = None;
        }
        if number > state.acked || freed > 0 {
            state.again_after = AGAIN_AFTER;
        }
        state.acked = state.acked.max(number);
        state.window = window.unwrap_or(state.window);
        let now_s = self.clock.now_s();
        let _ = self.send_notes(&mut state, now_s);
        drop(state);
        self.memory.give(&self.agent, freed);
        self.room.notify_waiters();
        true
    }

    /// Sends the frames after `last` again; `false` if that was requested too often, or too much of it. While nothing is acknowledged, each
    /// granted request doubles the time until the next one.
    pub(super) fn again(&self, last: Option<u64>) -> bool {
        let mut state = self.state();
        // Acknowledged frames are gone, and unsent ones leave anyway.
        let first = state.kept.front().map_or(state.next_to_send, SealedFrame::seq);
        let from = last.map_or(0, |last| last.saturating_add(1)).max(first);
        let wanted = state.kept.iter().filter(|frame| (from..state.next_to_send).contains(&frame.seq()));
        let bytes = wanted.map(SealedFrame::len).fold(0, usize::saturating_add);
        if bytes == 0 {
            return true;
        }
        let now = Instant::now();
        if state.last_again.is_some_and(|at| now.duration_since(at) < state.again_after) {
            return false;
        }
        if !self.resends.try_spend(&self.agent, bytes) {
            return false;
        }
        if state.last_again.is_some() {
            state.again_after = (state.again_after * 2).min(AGAIN_AFTER_MOST);
        }
        state.last_again = Some(now);
        state.next_to_send = from;
        state.is_tail_due = matches!(state.phase, Phase::Ended);
        drop(state);
        self.work.notify_one();
        true
    }

    /// Keeps the stream going while its method runs: opens it, sends what is there, and sends beats. Ends when the
    /// window was closed for too long.
    ///
    /// Cancel safety: nothing is lost.
    pub(in crate::service) async fn drive(&self) {
        tokio::select! {
            () = self.flow() => {}
            () = self.closed_too_long() => {}
        }
    }

    async fn flow(&self) {
        loop {
            self.pump().await;
            let wake = {
                let state = self.state();
                match state.phase {
                    Phase::Quiet(_) => Some(self.started + OPEN_AFTER),
                    Phase::Open(_) => Some(state.last_sent + BEAT_AFTER),
                    Phase::Ended => None,
                }
            };
            let Some(wake) = wake else {
                self.work.notified().await;
                continue;
            };
            tokio::select! {
                () = self.work.notified() => continue,
                () = sleep_until(wake) => {}
            }
            let now_s = self.clock.now_s();
            let mut state = self.state();
            if matches!(state.phase, Phase::Quiet(_)) {
                self.open(&mut state, now_s);
            } else if state.last_sent.elapsed() >= BEAT_AFTER
                && let Phase::Open(sealer) = &mut state.phase
            {
                let beat = sealer.beat(now_s);
                state.beat = Some(beat);
            }
        }
    }

    async fn closed_too_long(&self) {
        loop {
            let since = self.state().closed_since;
            match since {
                None => self.closed.notified().await,
                Some(since) => {
                    sleep_until(since + CLOSED_FOR).await;
                    if self.state().closed_since == Some(since) {
                        return;
                    }
                }
            }
        }
    }

    /// Whether frames are to be sent again that nobody else will send; `true` once for each granted request.
    pub(super) fn take_tail_due(&self) -> bool {
        std::mem::take(&mut self.state().is_tail_due)
    }

    /// Sends the frames that were asked for again, once nobody drives the stream any more.
    pub(super) async fn send_tail(&self) {
        drop(timeout(TAIL, self.pump()).await);
    }

    /// Sends what is to be sent, in order.
    ///
    /// Cancel safety: a frame that was about to leave is sent again.
    pub(super) async fn pump(&self) {
        let _turn = self.sending.lock().await;
        loop {
            let (frame, is_beat) = {
                let mut state = self.state();
                match state.due() {
                    Some(frame) => (frame, false),
                    None => match state.beat.take() {
                        Some(beat) => (beat, true),
                        None => return,
                    },
                }
            };
            self.outlet.send(&frame).await;
            let mut state = self.state();
            state.last_sent = Instant::now();
            // Unless the caller has meanwhile asked for earlier frames.
            if !is_beat && state.next_to_send == frame.seq() {
                state.next_to_send = frame.seq().saturating_add(1);
            }
        }
    }

    /// Ends the call with the text of its response: as an ordinary answer if no frame was sent and the text fits,
    /// otherwise with frames. If `stop` is ready, or the window stays closed, before all pieces are sent, the stream ends
    /// without the rest: its text is no response then, and the caller takes the outcome for unknown.
    pub(in crate::service) async fn finish(&self, text: Vec<u8>, stop: impl Future<Output = ()>) -> Finished {
        let mut is_cut = false;
        if text.len() <= self.largest {
            let mut state = self.state();
            match std::mem::replace(&mut state.phase, Phase::Ended) {
                Phase::Quiet(binding) => {
                    return Finished::Ordinary(binding.seal(text, self.clock.now_s()));
                }
                other => state.phase = other,
            }
            drop(state);
            self.end(Bytes::from(text));
        } else {
            let bytes = text.len();
            if !self.memory.try_take(&self.agent, bytes) {
                return Finished::NoRoom;
            }
            let _held = Reserved { writer: self, bytes };
            let rest = tokio::select! {
                rest = self.pieces(Bytes::from(text)) => Some(rest),
                () = self.drive() => None,
                () = stop => None,
            };
            is_cut = rest.is_none();
            self.end(rest.unwrap_or_default());
        }
        drop(timeout(LAST, self.pump()).await);
        if is_cut { Finished::Cut } else { Finished::Frames }
    }

    /// Sends all pieces but the last, which it returns.
    async fn pieces(&self, mut text: Bytes) -> Bytes {
        let size = PIECE.min(self.largest).max(1);
        while text.len() > size {
            // A copy: a slice would keep the whole text until it is acknowledged.
            let piece = Bytes::copy_from_slice(&text.split_to(size));
            if self.send(FrameKind::Piece, piece).await.is_err() {
                return Bytes::new();
            }
        }
        Bytes::copy_from_slice(&text)
    }

    /// The last frame. It may exceed the window by one, and the bounds of memory.
    fn end(&self, payload: Bytes) {
        let now_s = self.clock.now_s();
        let mut state = self.state();
        self.open(&mut state, now_s);
        // Notifications that find no room by now are dropped: nothing comes after the end.
        let _ = self.send_notes(&mut state, now_s);
        self.forget_notes(&mut state);
        if let Phase::Open(sealer) = std::mem::replace(&mut state.phase, Phase::Ended) {
            let frame = sealer.end(payload, now_s);
            self.keep(&mut state, frame, 0);
        }
        state.closed_since = None;
        drop(state);
        self.room.notify_waiters();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing between lock and unlock can panic halfway.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The number after the last one assigned.
    fn next_number(&self) -> u64 {
        match &self.phase {
            Phase::Quiet(_) => 0,
            Phase::Open(sealer) => sealer.next_seq(),
            Phase::Ended => self.kept.back().map_or(self.acked, SealedFrame::seq).saturating_add(1),
        }
    }

    /// The next frame to send.
    fn due(&mut self) -> Option<SealedFrame> {
        let first = self.kept.front()?.seq();
        self.next_to_send = self.next_to_send.max(first);
        let position = usize::try_from(self.next_to_send - first).ok()?;
        self.kept.get(position).cloned()
    }
}

impl Drop for FrameWriter {
    fn drop(&mut self) {
        self.let_go();
    }
}

impl std::fmt::Debug for FrameWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FrameWriter").field("frames", &self.frames()).finish_non_exhaustive()
    }
}
