//! Where the time comes from. Never sleeps, and never decides what a time means.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// A source of wall-clock time.
///
/// All code in Sealwire that compares times takes a clock, or a reading of one, so tests can step it in either
/// direction without waiting.
pub trait Clock: Send + Sync + std::fmt::Debug + 'static {
    /// Milliseconds since the Unix epoch.
    fn now_ms(&self) -> u64;

    /// Whole seconds since the Unix epoch, truncated, as the wire protocol compares them.
    fn now_s(&self) -> u64 {
        self.now_ms() / 1000
    }
}

/// The operating system's wall clock.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now_ms(&self) -> u64 {
        // A clock before 1970 reads as 0: every message is then from the future, and refused.
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |elapsed| u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX))
    }
}

/// A clock that is set by hand, for tests and for trying decisions at another time.
#[derive(Debug)]
pub struct ManualClock(AtomicU64);

impl ManualClock {
    /// A clock that stays at `seconds` since the Unix epoch until it is moved.
    #[must_use]
    pub fn at(seconds: u64) -> Self {
        Self(AtomicU64::new(seconds.saturating_mul(1000)))
    }

    /// Sets the clock to `milliseconds` since the Unix epoch; it may go backwards.
    pub fn set_ms(&self, milliseconds: u64) {
        self.0.store(milliseconds, Ordering::SeqCst);
    }

    /// Moves the clock forward by `milliseconds`.
    pub fn advance_ms(&self, milliseconds: u64) {
        self.0.fetch_add(milliseconds, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now_ms(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}
