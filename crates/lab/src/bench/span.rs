//! A turn of one side: when its calls begin, and which of them count. Never both sides at once.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// Which side is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Sealwire,
    Bare,
}

/// When calls begin, and which of them count.
#[derive(Debug, Clone)]
pub(crate) struct Span {
    pub(crate) start: Instant,
    from: Instant,
    /// The end of the window; earlier once it was stopped.
    to: Cell<Instant>,
}

impl Span {
    /// A span with calls for `lead`, and then those that count for `window`.
    pub(crate) fn begin_at(start: Instant, lead: Duration, window: Duration) -> Self {
        let from = start + lead;
        Self { start, from, to: Cell::new(from + window) }
    }

    /// Where the window begins.
    pub(crate) fn from(&self) -> Instant {
        self.from
    }

    /// Where it ends.
    pub(crate) fn to(&self) -> Instant {
        self.to.get()
    }

    /// Ends it now, if it has not ended.
    pub(crate) fn stop(&self, now: Instant) {
        self.to.set(self.to().min(now));
    }

    /// Whether this is within the window.
    pub(crate) fn has(&self, at: Instant) -> bool {
        self.from <= at && at < self.to()
    }
}
