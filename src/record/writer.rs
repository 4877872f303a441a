//! The thread that numbers, chains and writes lines.
//! Never writes a number twice, or leaves one out: what could not be written is counted, and the count is a line.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::sync::oneshot;

use super::body::Body;
use super::chain::Chain;
use super::folder::{Output, Prior};
use super::line::{Kind, MAX_LINE};
use super::lines::Lines;
use super::salt::Salt;
use crate::clock::{Clock as _, SystemClock};
use crate::log_limiter::LogLimiter;

/// The most lines that wait to be written: some seconds of a busy service.
pub(super) const MAX_LINES: usize = 16_384;
/// The most bytes that wait to be written; as many again may be in the writer's hands.
pub(super) const MAX_BYTES: usize = 8 * 1024 * 1024;
/// Up to about this many bytes are written at once.
const CHUNK: usize = 64 * 1024;
/// How long lines are collected for one write, unless somebody waits for one of them.
const GATHER: Duration = Duration::from_millis(5);
/// How often refusals are written, if there were any, and losses tried again.
const BEAT: Duration = Duration::from_secs(10);
/// How often files are looked through for those to be deleted.
const TIDY: Duration = Duration::from_secs(60);

/// What the writer and those who hand in lines share.
#[derive(Debug)]
pub(super) struct Shared {
    queue: Mutex<Queue>,
    more: Condvar,
    refused: Mutex<BTreeMap<&'static str, u64>>,
    lost: Lost,
    pub(super) salt: RwLock<Arc<Salt>>,
    warned: LogLimiter,
}

#[derive(Debug, Default)]
struct Queue {
    lines: Lines,
    /// Somebody waits for a line.
    is_urgent: bool,
    is_ended: bool,
}

/// How many lines were lost, and why.
#[derive(Debug, Default)]
struct Lost {
    /// The queue was full.
    queue: AtomicU64,
    /// They could not be written.
    disk: AtomicU64,
    /// They were longer than a line may be.
    length: AtomicU64,
}

/// Why a line was lost.
#[derive(Debug, Clone, Copy)]
pub(super) enum Loss {
    Queue,
    Disk,
    Length,
}

impl Shared {
    pub(super) fn new(salt: Salt) -> Self {
        Self {
            queue: Mutex::default(),
            more: Condvar::new(),
            refused: Mutex::default(),
            lost: Lost::default(),
            salt: RwLock::new(Arc::new(salt)),
            warned: LogLimiter::default(),
        }
    }

    /// Takes a line, unless there is no room. `waits` is told whether it is on disk. Never waits for the disk.
    pub(super) fn put(&self, kind: Kind, body: Body, waits: Option<oneshot::Sender<bool>>) -> bool {
        let size = Lines::size(&body);
        // Without a body it would be no line.
        if size > MAX_LINE || body.len() == 0 {
            self.lose(1, Loss::Length, &"a line is too long");
            return false;
        }
        let mut queue = lock(&self.queue);
        let bytes = queue.lines.bytes();
        if queue.is_ended || queue.lines.len() >= MAX_LINES || bytes.saturating_add(size) > MAX_BYTES {
            drop(queue);
            self.lose(1, Loss::Queue, &"the disk is too slow");
            return false;
        }
        let urgent = waits.is_some();
        queue.lines.push(kind, &body, waits);
        // The writer collects for a while, so that it is not woken for every line.
        let is_chunk = bytes < CHUNK && bytes + size >= CHUNK;
        let wakes = (urgent && !queue.is_urgent) || queue.lines.len() == 1 || is_chunk;
        queue.is_urgent |= urgent;
        drop(queue);
        if wakes {
            self.more.notify_one();
        }
        true
    }

    pub(super) fn refused(&self, label: &'static str) {
        *lock(&self.refused).entry(label).or_default() += 1;
    }

    pub(super) fn end(&self) {
        lock(&self.queue).is_ended = true;
        self.more.notify_one();
    }

    pub(super) fn lost(&self) -> u64 {
        self.lost.counts().iter().sum()
    }

    /// The same, by the words that the line has for the reasons.
    #[cfg(feature = "metrics")]
    pub(super) fn lost_by(&self) -> [(&'static str, u64); 3] {
        let [queue, disk, length] = self.lost.counts();
        [("queue", queue), ("disk", disk), ("length", length)]
    }

    fn lose(&self, lines: u64, loss: Loss, why: &dyn std::fmt::Display) {
        let counter = match loss {
            Loss::Queue => &self.lost.queue,
            Loss::Disk => &self.lost.disk,
            Loss::Length => &self.lost.length,
        };
        counter.fetch_add(lines, Ordering::Relaxed);
        if let Some(suppressed) = self.warned.check() {
            let lost = self.lost();
            tracing::warn!(target: "sealwire::record", lost, %why, suppressed, "lines of the record are lost");
        }
    }

    /// Takes the lines that wait, in exchange for none; none at a beat. `false` after the last.
    fn take(&self, until: Instant, lines: &mut Lines) -> bool {
        lines.clear();
        let mut queue = lock(&self.queue);
        while queue.lines.len() == 0 && !queue.is_ended {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            queue = self.more.wait_timeout(queue, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        let collects = |queue: &mut Queue| !queue.is_urgent && !queue.is_ended && queue.lines.bytes() < CHUNK;
        queue = self.more.wait_timeout_while(queue, GATHER, collects).unwrap_or_else(PoisonError::into_inner).0;
        if queue.lines.len() == 0 && queue.is_ended {
            return false;
        }
        queue.is_urgent = false;
        std::mem::swap(&mut queue.lines, lines);
        true
    }
}

impl Lost {
    fn counts(&self) -> [u64; 3] {
        [&self.queue, &self.disk, &self.length].map(|counter| counter.load(Ordering::Relaxed))
    }
}

#[derive(Serialize)]
struct StartBody<'a> {
    at_ms: u64,
    version: &'static str,
    audience: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    prior: Option<Prior>,
}

#[derive(Serialize)]
struct BeatBody {
    at_ms: u64,
    refused: BTreeMap<&'static str, u64>,
}

#[derive(Serialize)]
struct LostBody {
    at_ms: u64,
    lines: u64,
    queue: u64,
    disk: u64,
    length: u64,
}

#[derive(Serialize)]
struct StopBody {
    at_ms: u64,
}

/// The writing thread.
#[derive(Debug)]
pub(super) struct Writer {
    chain: Chain,
    output: Output,
    shared: Arc<Shared>,
    /// The losses that lines tell of.
    told: [u64; 3],
    /// What is written at once.
    text: Vec<u8>,
}

impl Writer {
    /// Begins the session.
    pub(super) fn new(output: Output, session: &str, audience: &str, shared: Arc<Shared>) -> Self {
        let mut writer = Self { chain: Chain::new(session), output, shared, told: [0; 3], text: Vec::new() };
        let version = env!("CARGO_PKG_VERSION");
        let start = StartBody { at_ms: SystemClock.now_ms(), version, audience, prior: writer.output.prior() };
        writer.write(&mut Lines::one(Kind::Start, &start));
        writer
    }

    /// Writes until it is ended, and everything that was taken by then.
    pub(super) fn run(mut self) {
        self.tidy();
        let (mut beat, mut tidy) = (Instant::now() + BEAT, Instant::now() + TIDY);
        let mut lines = Lines::default();
        while self.shared.take(beat, &mut lines) {
            self.write(&mut lines);
            let now = Instant::now();
            if now >= beat {
                beat = now + BEAT;
                self.beat();
            }
            if now >= tidy {
                tidy = now + TIDY;
                self.tidy();
            }
        }
        self.beat();
        self.write(&mut Lines::one(Kind::Stop, &StopBody { at_ms: SystemClock.now_ms() }));
        // The last lines count only if nothing else went wrong.
        drop(self.output.sync());
    }

    fn tidy(&self) {
        if let Err(error) = self.output.tidy() {
            tracing::warn!(target: "sealwire::record", %error, "old files of the record cannot be deleted");
        }
    }

    /// Writes what was refused, and what was lost, if anything was. A new month has a new salt.
    fn beat(&mut self) {
        let now_ms = SystemClock.now_ms();
        let refused = std::mem::take(&mut *lock(&self.shared.refused));
        let mut lines = match refused.is_empty() {
            true => Lines::default(),
            false => Lines::one(Kind::Beat, &BeatBody { at_ms: now_ms, refused: refused.clone() }),
        };
        if !self.write(&mut lines) {
            // A count is not lost with its line.
            let mut counts = lock(&self.shared.refused);
            refused.into_iter().for_each(|(label, count)| *counts.entry(label).or_default() += count);
        }
        let salt = Arc::clone(&self.shared.salt.read().unwrap_or_else(PoisonError::into_inner));
        if salt.month() != Salt::month_of(now_ms) {
            match Salt::open(self.output.folder(), now_ms) {
                Ok(new) => *self.shared.salt.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(new),
                Err(error) => tracing::warn!(target: "sealwire::record", %error, "the salt of last month stays in use"),
            }
        }
    }

    /// Writes lines, with a line about losses before them. Returns whether all were written.
    fn write(&mut self, lines: &mut Lines) -> bool {
        let mut rest = lines.drain();
        let mut all = true;
        loop {
            let (before, lost) = (self.chain.clone(), self.shared.lost.counts());
            let (mut waits, mut count) = (Vec::new(), 0_u64);
            self.text.clear();
            // Room for the last line that begins within the chunk.
            self.text.reserve(CHUNK + MAX_LINE);
            if lost != self.told {
                let [queue, disk, length] = [0, 1, 2].map(|at| difference(&lost, &self.told, at));
                let lines = queue + disk + length;
                let body = Body::new(&LostBody { at_ms: SystemClock.now_ms(), lines, queue, disk, length });
                self.chain.append(Kind::Lost, body.as_bytes(), &mut self.text);
            }
            for (kind, body, waiter) in rest.by_ref() {
                self.chain.append(kind, body, &mut self.text);
                waits.extend(waiter);
                count += 1;
                if self.text.len() >= CHUNK {
                    break;
                }
            }
            if self.text.is_empty() {
                return all;
            }
            let written = self.output.append(&self.text, !waits.is_empty());
            let is_written = written.is_ok();
            match written {
                Ok(()) => self.told = lost,
                Err(error) => {
                    self.chain = before;
                    all = false;
                    if count > 0 {
                        self.shared.lose(count, Loss::Disk, &error);
                    }
                }
            }
            // Who does not wait any more has been told so.
            waits.into_iter().for_each(|waits| {
                let _ = waits.send(is_written);
            });
            if rest.len() == 0 {
                return all;
            }
        }
    }
}

fn difference(now: &[u64; 3], then: &[u64; 3], at: usize) -> u64 {
    now.get(at).zip(then.get(at)).map_or(0, |(now, then)| now.saturating_sub(*then))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing between lock and unlock can panic halfway.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
