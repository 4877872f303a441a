//! How fast a peer may say what nobody has asked for.
//! Never counts anything that it was asked for.

use std::time::Duration;

use tokio::time::Instant;

/// How many messages a second that nobody has asked for are read: news of a busy machine, and a small part of what one processor reads.
const UNASKED_A_SECOND: u32 = 5_000;

/// Slows a peer down that says more than 5,000 things a second which nobody has asked for: it is not read any further until the second is
/// over.
#[derive(Debug)]
pub(crate) struct Pace {
    since: Instant,
    said: u32,
    was_told: bool,
}

impl Pace {
    pub(crate) fn new() -> Self {
        Self { since: Instant::now(), said: 0, was_told: false }
    }

    /// Counts one thing, and waits if it is one too many. Says so in the log the first time.
    pub(crate) async fn step(&mut self, backend: &str) {
        let until = self.since + Duration::from_secs(1);
        if until <= Instant::now() {
            (self.since, self.said) = (Instant::now(), 0);
        }
        self.said += 1;
        if self.said < UNASKED_A_SECOND {
            return;
        }
        if !std::mem::replace(&mut self.was_told, true) {
            tracing::warn!(
                target: "sealwire::backend", backend,
                "it says more than {UNASKED_A_SECOND} things a second that nobody has asked for, and is read more slowly"
            );
        }
        tokio::time::sleep_until(until).await;
        (self.since, self.said) = (Instant::now(), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_program_that_says_too_much_unasked_is_slowed_down() {
        let (mut pace, began) = (Pace::new(), Instant::now());
        for _ in 0..100_000 {
            pace.step("talker").await;
        }
        let took = began.elapsed().as_secs();
        assert!((19..=21).contains(&took), "{took}");
    }
}
