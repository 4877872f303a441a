//! How many new names may come in a time: each is a series that Prometheus keeps for weeks.
//! Fixed memory.

use std::time::Duration;

use tokio::time::Instant;

/// Holds as many tokens as there may be names, and is full again after [`Bucket::REFILLED_AFTER`].
#[derive(Debug)]
pub(crate) struct Bucket {
    most: usize,
    used: f64,
    since: Instant,
}

impl Bucket {
    /// After a rolling restart of everything, the next one has all the tokens again.
    pub(crate) const REFILLED_AFTER: Duration = Duration::from_secs(600);

    /// A full one.
    pub(crate) fn new(most: usize, now: Instant) -> Self {
        Self { most, used: 0.0, since: now }
    }

    /// Takes so many tokens, if there are as many.
    #[expect(clippy::cast_precision_loss, reason = "some thousands")]
    pub(crate) fn take(&mut self, tokens: usize, now: Instant) -> bool {
        let elapsed = now.saturating_duration_since(self.since).as_secs_f64();
        let most = self.most as f64;
        self.used = (self.used - elapsed / Self::REFILLED_AFTER.as_secs_f64() * most).max(0.0);
        self.since = self.since.max(now);
        let used = self.used + tokens as f64;
        let fits = used <= most;
        if fits {
            self.used = used;
        }
        fits
    }

    /// Puts back what was taken and not needed.
    #[expect(clippy::cast_precision_loss, reason = "some thousands")]
    pub(crate) fn give_back(&mut self, tokens: usize) {
        self.used = (self.used - tokens as f64).max(0.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_taken_comes_back_with_time_and_never_more() {
        let now = Instant::now();
        let mut bucket = Bucket::new(100, now);
        assert!(!bucket.take(101, now) && bucket.take(100, now) && !bucket.take(1, now));
        bucket.give_back(1);
        assert!(bucket.take(1, now) && !bucket.take(1, now));
        let later = now + Bucket::REFILLED_AFTER / 2;
        assert!(!bucket.take(51, later) && bucket.take(50, later));
        let much_later = later + 100 * Bucket::REFILLED_AFTER;
        assert!(!bucket.take(101, much_later) && bucket.take(100, much_later));
    }
}
