//! How often the log may hear of what somebody else can cause. Never drops a count, only lines.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Lets one line a second through.
#[derive(Debug, Default)]
pub(super) struct Seldom(Mutex<Option<Instant>>);

impl Seldom {
    /// Whether a line may be logged now. Whoever is told so is expected to do it.
    pub(super) fn may_speak(&self) -> bool {
        let mut spoke = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let may = spoke.is_none_or(|spoke| spoke.elapsed() >= EVERY);
        if may {
            *spoke = Some(Instant::now());
        }
        may
    }
}

const EVERY: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_line_a_second() {
        let seldom = Seldom::default();
        assert!(seldom.may_speak());
        assert!((0..1000).all(|_| !seldom.may_speak()));
        tokio::time::advance(EVERY).await;
        assert!(seldom.may_speak() && !seldom.may_speak());
    }
}
