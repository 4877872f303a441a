//! Measured durations, in fixed buckets: two additions without a lock for each.
//! Fixed memory.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A histogram of durations.
#[derive(Debug)]
pub struct Durations {
    bounds_ns: &'static [u64],
    sum_ns: AtomicU64,
    /// One more than there are bounds: the last has what took longer.
    buckets: Box<[AtomicU64]>,
}

impl Durations {
    /// Upper bounds of buckets, from 1 µs to 1 s: for the parts of a call.
    pub const OF_PARTS_NS: &'static [u64] = &[
        1_000,
        2_500,
        5_000,
        10_000,
        25_000,
        50_000,
        100_000,
        250_000,
        500_000,
        1_000_000,
        2_500_000,
        10_000_000,
        100_000_000,
        1_000_000_000,
    ];

    /// None measured yet, and the upper bounds of the buckets in nanoseconds, in order.
    #[must_use]
    pub fn new(bounds_ns: &'static [u64]) -> Self {
        let buckets = std::iter::repeat_with(AtomicU64::default).take(bounds_ns.len() + 1).collect();
        Self { bounds_ns, sum_ns: AtomicU64::default(), buckets }
    }

    /// Records one.
    pub fn record(&self, took: Duration) {
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.sum_ns.fetch_add(ns, Ordering::Relaxed);
        if let Some(bucket) = self.buckets.get(self.bounds_ns.partition_point(|bound| *bound < ns)) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How many were recorded.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed)).sum()
    }

    /// Their sum in seconds, and how many are in each bucket, by its upper bound in seconds.
    pub(super) fn read(&self) -> (f64, Vec<(f64, u64)>) {
        let bounds = self.bounds_ns.iter().map(|ns| seconds(*ns)).chain(std::iter::once(f64::INFINITY));
        let counts = self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed));
        (seconds(self.sum_ns.load(Ordering::Relaxed)), bounds.zip(counts).collect())
    }
}

#[expect(clippy::cast_precision_loss, reason = "a duration; exact up to 104 days")]
fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_in_the_first_bucket_whose_bound_it_does_not_exceed() {
        let durations = Durations::new(&[1_000, 2_000]);
        for ns in [1, 1_000, 1_001, 5_000, 6_000] {
            durations.record(Duration::from_nanos(ns));
        }
        let (sum, buckets) = durations.read();
        assert_eq!(durations.count(), 5);
        assert!((sum - 13_002e-9).abs() < 1e-15, "{sum}");
        assert_eq!(buckets, [(1e-6, 2), (2e-6, 1), (f64::INFINITY, 2)]);
    }
}
