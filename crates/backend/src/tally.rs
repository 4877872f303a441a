//! What has become of a backend's processes and answers, in counts.
//! Fixed memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts of one backend.
#[derive(Debug, Default)]
pub struct Tally {
    starts: AtomicU64,
    restarts: AtomicU64,
    running: AtomicU64,
    arguments: AtomicU64,
    results: AtomicU64,
}

/// What stands in a [`Tally`].
#[derive(Debug, Clone, Copy, Default)]
#[non_exhaustive]
pub struct Tallied {
    /// Processes that were started, or whose start was tried.
    pub starts: u64,
    /// Those of them that replaced one that had ended.
    pub restarts: u64,
    /// Processes that run.
    pub running: u64,
    /// Arguments that did not fit the tool's schema.
    pub arguments: u64,
    /// Results that did not fit the tool's schema.
    pub results: u64,
}

/// A process that runs, until this is dropped.
#[derive(Debug)]
pub(crate) struct Counted(Arc<Tally>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Tally {
    /// A process is being started.
    pub(crate) fn starts(&self) {
        self.starts.fetch_add(1, Ordering::Relaxed);
    }

    /// One is started in place of another.
    pub(crate) fn restarts(&self) {
        self.restarts.fetch_add(1, Ordering::Relaxed);
    }

    /// A process runs.
    pub(crate) fn runs(self: &Arc<Self>) -> Counted {
        self.running.fetch_add(1, Ordering::Relaxed);
        Counted(Arc::clone(self))
    }

    /// Arguments did not fit.
    pub(crate) fn unfit_arguments(&self) {
        self.arguments.fetch_add(1, Ordering::Relaxed);
    }

    /// A result did not fit.
    pub(crate) fn unfit_result(&self) {
        self.results.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> Tallied {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Tallied {
            starts: read(&self.starts),
            restarts: read(&self.restarts),
            running: read(&self.running),
            arguments: read(&self.arguments),
            results: read(&self.results),
        }
    }
}
