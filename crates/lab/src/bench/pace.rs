//! When calls are due at a rate. Never waits for anything but the time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

/// Points in time at equal distances, of which each connection takes its share in turn.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Schedule {
    start: Instant,
    per_second: f64,
    /// This connection's number, and how many there are.
    share: (usize, usize),
}

impl Schedule {
    pub(crate) fn new(start: Instant, per_second: f64, share: (usize, usize)) -> Self {
        Self { start, per_second, share }
    }

    /// When the call of this number, from 0, is due.
    pub(crate) fn due(&self, number: u64) -> Instant {
        let (index, of) = self.share;
        let place = number as f64 * of as f64 + index as f64;
        // A time that is too far away for the clock is never reached.
        let after = Duration::try_from_secs_f64(place / self.per_second).unwrap_or(Duration::MAX);
        self.start.checked_add(after).unwrap_or_else(|| self.start + FAR)
    }

    /// How many calls are due before `end`.
    pub(crate) fn before(&self, end: Instant) -> u64 {
        let seconds = end.saturating_duration_since(self.start).as_secs_f64();
        let (index, of) = self.share;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most 24 h times a million")]
        let mut number = ((seconds * self.per_second - index as f64) / of as f64).max(0.0) as u64;
        // Corrects rounding, by one at most.
        while number > 0 && self.due(number - 1) >= end {
            number -= 1;
        }
        while self.due(number) < end {
            number += 1;
        }
        number
    }
}

/// Longer than any measurement.
const FAR: Duration = Duration::from_secs(10 * 86_400);

/// Tells how many calls are due, until it is dropped. On a thread of its own: the runtime's timers count whole
/// milliseconds, which is more than many calls take.
#[derive(Debug)]
pub(crate) struct Pacer {
    told: Arc<SharedProgress>,
    _stop: Sender<()>,
}

#[derive(Debug, Default)]
struct SharedProgress {
    due: AtomicU64,
    changed: Notify,
}

/// What the operating system's own timers add to a wait; waking more often gains nothing.
const FINEST: Duration = Duration::from_micros(50);

impl Pacer {
    /// Begins to count the first `total` calls of `schedule` as they become due.
    pub(crate) fn start(index: usize, schedule: Schedule, total: u64) -> std::io::Result<Self> {
        let told = Arc::<SharedProgress>::default();
        let (stop, stopped) = channel::<()>();
        let telling = Arc::clone(&told);
        std::thread::Builder::new().name(format!("pace-{index}")).spawn(move || {
            let mut due = 0;
            while due < total {
                let wait = schedule.due(due).saturating_duration_since(Instant::now());
                if !wait.is_zero() && stopped.recv_timeout(wait.max(FINEST)) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
                due = schedule.before(Instant::now()).clamp(due, total);
                telling.due.store(due, Ordering::Release);
                telling.changed.notify_one();
            }
        })?;
        Ok(Self { told, _stop: stop })
    }

    /// How many calls are due by now.
    pub(crate) fn due(&self) -> u64 {
        self.told.due.load(Ordering::Acquire)
    }

    /// Completes when more may be due.
    ///
    /// Cancel safety: nothing is lost.
    pub(crate) async fn changed(&self) {
        self.told.changed.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shares_of_all_connections_are_the_rate() {
        let start = Instant::now();
        for (per_second, of) in [(1.0, 1), (1000.0, 7), (333.3, 4), (0.5, 2), (1e6, 256)] {
            let end = start + Duration::from_secs(10);
            let schedules: Vec<Schedule> = (0..of).map(|i| Schedule::new(start, per_second, (i, of))).collect();
            let counted: u64 = schedules.iter().map(|schedule| schedule.before(end)).sum();
            assert!((counted as f64 - per_second * 10.0).abs() <= 1.0, "{counted} at {per_second}");
            for schedule in schedules {
                let count = schedule.before(end);
                assert!(schedule.due(count) >= end && (count == 0 || schedule.due(count - 1) < end));
            }
        }
    }
}
