//! How often a guard gave each answer. Counts only.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{AdmitError, GuardStats};

/// Answers given, by kind.
#[derive(Debug, Default)]
pub(super) struct Counters {
    admitted: AtomicU64,
    stale: AtomicU64,
    replayed: AtomicU64,
    owner_full: AtomicU64,
    full: AtomicU64,
    unavailable: AtomicU64,
}

impl Counters {
    pub(super) fn count(&self, answer: Result<(), AdmitError>) {
        let counter = match answer {
            Ok(()) => &self.admitted,
            Err(AdmitError::Stale) => &self.stale,
            Err(AdmitError::Replayed) => &self.replayed,
            Err(AdmitError::OwnerFull { .. }) => &self.owner_full,
            Err(AdmitError::Full { .. }) => &self.full,
            Err(AdmitError::Unavailable(_) | AdmitError::Fenced { .. }) => &self.unavailable,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Overwrites the counts in `stats` with these.
    pub(super) fn fill(&self, stats: &mut GuardStats) {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        stats.admitted = read(&self.admitted);
        stats.stale = read(&self.stale);
        stats.replayed = read(&self.replayed);
        stats.owner_full = read(&self.owner_full);
        stats.full = read(&self.full);
        stats.unavailable = read(&self.unavailable);
    }
}
