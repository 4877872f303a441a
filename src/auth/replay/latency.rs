//! How long the shared checks take. Counts only; fixed memory.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Durations of shared checks, counted in fixed buckets, as a histogram metric needs them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Latency {
    /// Checks that were answered or given up.
    pub count: u64,
    /// The sum of their durations, in microseconds.
    pub sum_us: u64,
    /// For each of [`Latency::BOUNDS_US`], how many took at most that long and longer than the previous bound.
    pub buckets: [u64; Latency::BOUNDS_US.len()],
}

impl Latency {
    /// Upper bounds of the buckets in microseconds. A check that took longer is in `count` only.
    pub const BOUNDS_US: [u64; 12] = [50, 100, 200, 400, 800, 1_600, 3_200, 6_400, 12_800, 51_200, 204_800, 819_200];

    /// An upper bound of the given quantile (0 to 1) in microseconds; `None` if nothing was counted, or if it lies
    /// above the last bound.
    #[must_use]
    pub fn quantile_us(&self, quantile: f64) -> Option<u64> {
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a rank; exact up to 2^53 checks"
        )]
        let rank = (self.count as f64 * quantile.clamp(0.0, 1.0)).ceil() as u64;
        let mut below = 0;
        let mut buckets = Self::BOUNDS_US.iter().zip(&self.buckets);
        buckets.find_map(|(bound, count)| {
            below += count;
            (below >= rank && below > 0).then_some(*bound)
        })
    }
}

/// The counters behind a [`Latency`].
#[derive(Debug, Default)]
pub(super) struct Recorder {
    count: AtomicU64,
    sum_us: AtomicU64,
    buckets: [AtomicU64; Latency::BOUNDS_US.len()],
}

impl Recorder {
    pub(super) fn record(&self, took: Duration) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.count.fetch_add(1, Ordering::Relaxed);
        self.sum_us.fetch_add(us, Ordering::Relaxed);
        let bucket = Latency::BOUNDS_US.partition_point(|bound| *bound < us);
        if let Some(bucket) = self.buckets.get(bucket) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn read(&self) -> Latency {
        Latency {
            count: self.count.load(Ordering::Relaxed),
            sum_us: self.sum_us.load(Ordering::Relaxed),
            buckets: self.buckets.each_ref().map(|bucket| bucket.load(Ordering::Relaxed)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_bounds_of_the_bucket_they_fall_into() {
        let recorder = Recorder::default();
        assert_eq!(recorder.read().quantile_us(0.5), None);
        for us in [50, 51, 60, 90, 90, 90, 90, 90, 90, 250_000] {
            recorder.record(Duration::from_micros(us));
        }
        let latency = recorder.read();
        assert_eq!((latency.count, latency.buckets[0], latency.buckets[1]), (10, 1, 8));
        assert_eq!(latency.quantile_us(0.1), Some(50));
        assert_eq!(latency.quantile_us(0.5), Some(100));
        assert_eq!(latency.quantile_us(1.0), Some(819_200));
        recorder.record(Duration::from_secs(2));
        assert_eq!(recorder.read().quantile_us(1.0), None);
    }
}
