//! Whether a connection is still the same one, and whether anybody is at its other end.
//! Never asks: it reads what the client library counts.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_nats::Statistics;
use tokio::time::Instant;

/// A connection, identified as long as it does not break.
#[derive(Debug, Clone)]
pub(super) struct ConnectionEpoch {
    statistics: Arc<Statistics>,
    /// How often the client had connected when the verification began.
    connects: u64,
}

impl ConnectionEpoch {
    pub(super) fn new(statistics: Arc<Statistics>) -> Self {
        let connects = statistics.connects.load(Ordering::SeqCst);
        Self { statistics, connects }
    }

    /// Tells the connection as it is now from all earlier ones.
    pub(super) fn now(&self) -> String {
        format!("{:p} {}", Arc::as_ptr(&self.statistics), self.statistics.connects.load(Ordering::SeqCst))
    }

    pub(super) fn is_unbroken(&self) -> bool {
        self.statistics.connects.load(Ordering::SeqCst) == self.connects
    }

    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.statistics, &other.statistics) && self.connects == other.connects
    }
}

/// Measures how long nothing at all has come from the broker.
pub(super) struct IdleDetector {
    /// The bytes received when this was last checked.
    heard: u64,
    since: Instant,
}

impl IdleDetector {
    pub(super) fn new(now: Instant) -> Self {
        Self { heard: 0, since: now }
    }

    /// Whether the silence has lasted too long at `now`, when `heard` bytes have been received in all.
    pub(super) fn is_long(&mut self, heard: u64, now: Instant) -> bool {
        if heard != self.heard {
            *self = Self { heard, since: now };
        }
        now.saturating_duration_since(self.since) > SILENT_AFTER
    }
}

/// A live broker answers pings, whether the stream has a leader or not. Two pings, and a margin for a busy machine; but
/// less than an election takes, so that nobody waits for a guard connected to a dead broker.
const SILENT_AFTER: Duration = Duration::from_secs(3);

/// How often the broker is pinged.
pub(super) const PING_EVERY: Duration = Duration::from_millis(1_400);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_was_made_again_is_another_one() {
        let statistics = Arc::new(Statistics::default());
        statistics.connects.store(1, Ordering::SeqCst);
        let before = ConnectionEpoch::new(Arc::clone(&statistics));
        assert!(before.is_unbroken() && before.is(&before.clone()));
        statistics.connects.store(2, Ordering::SeqCst);
        assert!(!before.is_unbroken());
        let after = ConnectionEpoch::new(statistics);
        assert!(after.is_unbroken() && !before.is(&after));
        let rebuilt = Arc::new(Statistics::default());
        rebuilt.connects.store(2, Ordering::SeqCst);
        assert!(!after.is(&ConnectionEpoch::new(rebuilt)), "another client that connected as often");
    }

    #[test]
    fn a_broker_is_silent_when_nothing_at_all_came_for_long() {
        let start = Instant::now();
        let after = |ms| start + Duration::from_millis(ms);
        let mut silence = IdleDetector::new(start);
        assert!(!silence.is_long(100, after(2_900)));
        assert!(!silence.is_long(100, after(5_900)), "counted from when it was heard");
        assert!(silence.is_long(100, after(5_901)));
        assert!(!silence.is_long(106, after(5_950)), "the answer to a ping is a sign of life");
        assert!(silence.is_long(106, after(9_000)));
        assert!(IdleDetector::new(start).is_long(0, after(3_001)), "a broker that never said anything");
    }
}
