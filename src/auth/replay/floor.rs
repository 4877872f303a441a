//! The latest time ever seen, in memory and on disk, so that a clock that goes back cannot bring back old messages. Never
//! lets a message be admitted at a time that a crash could make it forget.
//!
//! In memory the *floor* is the latest wall-clock time seen; messages are judged at the floor, so time never goes back. A
//! restart loses the memory of nonces, and then only the fence protects: nothing issued before it is accepted. A clock set
//! back while the process was down would put the fence into the past. So a state file holds the next run's fence. It is a
//! *lease*: it is written ahead of the clock, and no message is admitted at a time that it does not cover. Whatever the
//! clock and the configured skew are by then, the next run's fence lies beyond everything that this run admitted.

mod file;

use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::clock::Clock;

use file::StateFile;
pub use file::TimeFloorError;

/// Where the low-water mark of time survives a restart: the latest time at which a guard has judged messages, and below
/// which it never judges one again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TimeFloor {
    /// In this state file, which only one process at a time may use. Its folder must exist and must survive restarts; two
    /// more files appear beside it, with `.lock` and `.new` appended to the name.
    File(PathBuf),
    /// Nowhere: if the clock is set back while the process is down, messages of the last minute can be replayed to the next
    /// process. For tests and demonstrations.
    Ephemeral,
}

impl TimeFloor {
    /// Whether a guard could open it, except that another one may have it open. Writes nothing.
    pub(super) fn check(&self) -> Result<(), TimeFloorError> {
        match self {
            Self::File(path) => file::check(path),
            Self::Ephemeral => Ok(()),
        }
    }
}

/// The floor in memory, tied to its lease on disk.
pub(super) struct Lease {
    /// The latest wall-clock time seen.
    floor_ms: AtomicU64,
    /// Up to this time messages may be admitted, because the disk holds it. 0 once closed.
    granted_ms: AtomicU64,
    /// When a renewal of the lease was last attempted.
    tried_ms: AtomicU64,
    /// A message's `iat` is at most this much later than the time at which it was admitted.
    skew_ms: u64,
    disk: Mutex<Disk>,
    /// Whether the last attempt to write failed.
    failing: AtomicBool,
    /// Why it failed.
    failure: Mutex<Option<String>>,
}

/// The writer's side: a writer holds the mutex.
struct Disk {
    /// `None` when there is no file or once closed.
    file: Option<StateFile>,
    /// The fence that the previous run left: the file never holds an earlier one.
    left_ms: u64,
    closed: bool,
}

/// How a renewal ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Renewal {
    Granted,
    Failed,
    Closed,
}

impl Lease {
    /// Opens the file, if there is one, and takes a first lease. Also returns this run's fence: the last second, since the
    /// Unix epoch, in which a message of an earlier run may have been issued.
    pub(super) fn open(floor: &TimeFloor, clock: &dyn Clock, skew_s: u64) -> Result<(Self, u64), TimeFloorError> {
        let now_ms = clock.now_ms();
        let skew_ms = skew_s.saturating_mul(1000);
        let (file, left_ms) = match floor {
            TimeFloor::Ephemeral => (None, 0),
            TimeFloor::File(path) => {
                let file = StateFile::open(path)?;
                let left_ms = file.read()?.unwrap_or(0);
                (Some(file), left_ms)
            }
        };
        let granted_ms = match &file {
            None => u64::MAX,
            Some(file) => {
                let ahead_ms = now_ms.saturating_add(AHEAD_MS);
                file.write(ahead_ms.saturating_add(skew_ms).max(left_ms))?;
                ahead_ms
            }
        };
        let fence = now_ms.saturating_add(skew_ms).max(left_ms) / 1000;
        let lease = Self {
            floor_ms: AtomicU64::new(now_ms),
            granted_ms: AtomicU64::new(granted_ms),
            tried_ms: AtomicU64::new(now_ms),
            skew_ms,
            disk: Mutex::new(Disk { file, left_ms, closed: false }),
            failing: AtomicBool::new(false),
            failure: Mutex::new(None),
        };
        Ok((lease, fence))
    }

    /// The time to judge by: the clock's, or the floor if the clock is behind it. The clock becomes the floor.
    pub(super) fn now_ms(&self, clock: &dyn Clock) -> u64 {
        let clock_ms = clock.now_ms();
        // INVARIANT: sequentially consistent, with `covers` after it and `close` in the opposite order.
        self.floor_ms.fetch_max(clock_ms, Ordering::SeqCst).max(clock_ms)
    }

    /// The floor, without moving it.
    pub(super) fn floor_ms(&self) -> u64 {
        self.floor_ms.load(Ordering::SeqCst)
    }

    /// Whether the disk holds a time that will fence a message admitted now. Ask after [`now_ms`](Self::now_ms).
    pub(super) fn covers(&self, now_ms: u64) -> bool {
        now_ms <= self.granted_ms.load(Ordering::SeqCst)
    }

    /// Whether the lease should be renewed soon, so that messages do not have to wait for the disk.
    pub(super) fn is_short(&self, now_ms: u64) -> bool {
        !self.covers(now_ms.saturating_add(AHEAD_MS - RENEW_EVERY_MS / 2))
    }

    /// Whether the lease ran out because nobody tried to renew it.
    pub(super) fn has_lapsed(&self, clock: &dyn Clock) -> bool {
        let now_ms = self.now_ms(clock);
        !self.is_closed() && !self.covers(now_ms) && now_ms > self.tried_ms.load(Ordering::SeqCst) + AHEAD_MS
    }

    /// Writes the lease ahead of the clock. Blocks as long as the disk takes.
    pub(super) fn renew(&self, clock: &dyn Clock) -> Renewal {
        let disk = relock(&self.disk);
        let now_ms = self.now_ms(clock);
        self.tried_ms.store(now_ms, Ordering::SeqCst);
        if disk.closed {
            return Renewal::Closed;
        }
        if !self.is_short(now_ms) {
            return Renewal::Granted;
        }
        let Some(file) = &disk.file else { return Renewal::Granted };
        let ahead_ms = now_ms.saturating_add(AHEAD_MS);
        let written = file.write(ahead_ms.saturating_add(self.skew_ms).max(disk.left_ms));
        self.failing.store(written.is_err(), Ordering::Relaxed);
        let renewal = match &written {
            Ok(()) => {
                self.granted_ms.fetch_max(ahead_ms, Ordering::SeqCst);
                Renewal::Granted
            }
            // The file now holds either the old time or the new one. Both cover what was granted.
            Err(_) => Renewal::Failed,
        };
        *relock(&self.failure) = written.err().map(|error| error.to_string());
        renewal
    }

    /// Whether the previous run used the file until less than the skew before `now_ms`. No other guard can have executed
    /// anything since then: a shared guard that starts executes nothing until its own clock, which is at most the skew ahead
    /// of the broker's, is twice the skew past its start.
    pub(super) fn knows_of_late(&self, now_ms: u64) -> bool {
        // A run that crashed left its lease behind, which is ahead of the clock.
        relock(&self.disk).left_ms >= now_ms.saturating_add(AHEAD_MS)
    }

    /// Whether the last attempt to write failed.
    pub(super) fn is_failing(&self) -> bool {
        self.failing.load(Ordering::Relaxed)
    }

    /// Why the last attempt to write failed.
    pub(super) fn failure(&self) -> Option<String> {
        relock(&self.failure).clone()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.granted_ms.load(Ordering::SeqCst) == 0
    }

    /// Takes the lease back, writes the exact fence, and releases the file.
    pub(super) fn close(&self) -> Result<(), TimeFloorError> {
        let mut disk = relock(&self.disk);
        disk.closed = true;
        // INVARIANT: the lease is revoked before the floor is read. A check that still saw the lease moved the floor before
        // it looked, so the floor written here includes its time.
        self.granted_ms.store(0, Ordering::SeqCst);
        let fence_ms = self.floor_ms().saturating_add(self.skew_ms).max(disk.left_ms);
        match disk.file.take() {
            Some(file) => file.write(fence_ms),
            None => Ok(()),
        }
    }
}

/// A panic cannot leave anything in here half changed: every value is written as a whole.
fn relock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("floor_ms", &self.floor_ms)
            .field("granted_ms", &self.granted_ms)
            .finish_non_exhaustive()
    }
}

/// How far ahead of the clock the lease is written: after a crash the next start has to wait this much longer. Twice the
/// renewal interval, so that one late renewal goes unnoticed.
const AHEAD_MS: u64 = 2 * RENEW_EVERY_MS;

/// How often the lease is renewed.
pub(super) const RENEW_EVERY_MS: u64 = 1000;

#[cfg(test)]
mod tests;
