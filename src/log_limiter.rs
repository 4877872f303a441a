//! Limits log lines that others can cause: one a second, with the number of lines left out.
//! Never drops a count, only lines.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Lets one line through per second.
#[derive(Debug, Default)]
pub struct LogLimiter(Mutex<Lines>);

/// Lets one line through per second and key. Keys are from closed sets or name proved owners; they never come straight from the wire.
#[derive(Debug)]
pub struct KeyedLogLimiter<K>(Mutex<HashMap<K, Lines>>);

#[derive(Debug, Default)]
struct Lines {
    last: Option<Instant>,
    /// Lines in the second that began at `last`.
    let_through: u32,
    suppressed: u64,
}

impl Lines {
    fn check(&mut self, most: u32) -> Option<u64> {
        if self.last.is_none_or(|last| last.elapsed() >= EVERY) {
            (self.last, self.let_through) = (Some(Instant::now()), 0);
        }
        if self.let_through >= most {
            self.suppressed += 1;
            return None;
        }
        self.let_through += 1;
        Some(std::mem::take(&mut self.suppressed))
    }
}

impl LogLimiter {
    /// Returns the number of lines suppressed since the last one if a line may be logged now. The caller is then
    /// expected to log it.
    pub fn check(&self) -> Option<u64> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).check(1)
    }
}

impl<K: Eq + Hash + Clone> KeyedLogLimiter<K> {
    /// Like [`LogLimiter::check`], per key.
    pub fn check(&self, key: &K) -> Option<u64> {
        self.check_up_to(key, 1)
    }

    /// The same, with up to `most` lines a second.
    pub(crate) fn check_up_to(&self, key: &K, most: u32) -> Option<u64> {
        let mut lines = self.lock();
        match lines.get_mut(key) {
            Some(lines) => lines.check(most),
            None => lines.entry(key.clone()).or_default().check(most),
        }
    }

    /// Counts lines that were left out for another reason.
    pub(crate) fn leave_out(&self, key: &K, lines: u64) {
        if let Some(known) = self.lock().get_mut(key) {
            known.suppressed = known.suppressed.saturating_add(lines);
        }
    }

    /// Forgets keys that have been quiet, and returns those whose suppressed lines have not been reported.
    pub(crate) fn tidy(&self) -> Vec<(K, u64)> {
        let mut untold = Vec::new();
        self.lock().retain(|key, lines| {
            let busy = lines.last.is_some_and(|last| last.elapsed() < EVERY);
            if !busy && lines.suppressed > 0 {
                untold.push((key.clone(), lines.suppressed));
            }
            busy
        });
        untold
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<K, Lines>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K> Default for KeyedLogLimiter<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

const EVERY: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_line_a_second_tells_how_many_it_stands_for() {
        let limiter = LogLimiter::default();
        assert_eq!(limiter.check(), Some(0));
        assert!((0..1000).all(|_| limiter.check().is_none()));
        tokio::time::advance(EVERY).await;
        assert_eq!(limiter.check(), Some(1000));
        assert_eq!(limiter.check(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn some_lines_a_second_tell_how_many_they_stand_for() {
        let limiter = KeyedLogLimiter::default();
        let lines = |of| (0..of).filter(|_| limiter.check_up_to(&"a", 100).is_some()).count();
        assert_eq!(lines(1_000), 100);
        tokio::time::advance(EVERY).await;
        assert_eq!(limiter.check_up_to(&"a", 100), Some(900));
        assert_eq!(lines(1_000), 99);
    }

    #[tokio::test(start_paused = true)]
    async fn keys_do_not_silence_each_other_and_are_forgotten_when_told() {
        let limiter = KeyedLogLimiter::default();
        assert_eq!((limiter.check(&"a"), limiter.check(&"b")), (Some(0), Some(0)));
        assert!((0..5).all(|_| limiter.check(&"a").is_none()));
        assert!(limiter.tidy().is_empty(), "both are busy");
        tokio::time::advance(EVERY).await;
        assert_eq!(limiter.tidy(), [("a", 5)]);
        assert!(limiter.lock().is_empty());
        assert_eq!(limiter.check(&"a"), Some(0));
    }
}
