//! How much a peer may send without use. One piece for every stream that we read.
//! Never counts time that a peer says nothing, and never anything that it was asked for.

use std::time::Duration;

use tokio::time::Instant;

/// How many useless lines a peer may send at once: as many as a banner, a trace or a help text may have ...
pub(crate) const LINES: u64 = 1_000;
/// ... and a second, for as long as it likes: a keep-alive or a log has far fewer.
const LINES_A_SECOND: u64 = 100;
/// The same in bytes: eight of the longest lines, ...
const BYTES: u64 = 8 << 20;
/// ... and a second.
const BYTES_A_SECOND: u64 = 256 << 10;

/// What a peer has sent without use. Time takes from it again.
#[derive(Debug)]
pub struct Waste {
    lines: Bucket,
    blank: Bucket,
    bytes: Bucket,
}

/// An amount from which time takes away.
#[derive(Debug)]
pub struct Bucket {
    level: u64,
    since: Instant,
    a_second: u64,
}

impl Bucket {
    /// An empty one, from which this much goes in a second.
    #[must_use]
    pub fn new(a_second: u64) -> Self {
        Self { level: 0, since: Instant::now(), a_second }
    }

    /// Returns what is in it now.
    pub fn add(&mut self, amount: u64, now: Instant) -> u64 {
        const MICROS: u64 = 1_000_000;
        let micros = u64::try_from(now.saturating_duration_since(self.since).as_micros()).unwrap_or(u64::MAX);
        let gone = micros.saturating_mul(self.a_second) / MICROS;
        if gone >= self.level {
            (self.level, self.since) = (0, now);
        } else if gone > 0 {
            self.level -= gone;
            self.since += Duration::from_micros(gone * MICROS / self.a_second);
        }
        self.level = self.level.saturating_add(amount);
        self.level
    }
}

impl Default for Waste {
    fn default() -> Self {
        Self::new()
    }
}

impl Waste {
    /// Nothing yet.
    #[must_use]
    pub fn new() -> Self {
        let lines = || Bucket::new(LINES_A_SECOND);
        Self { lines: lines(), blank: lines(), bytes: Bucket::new(BYTES_A_SECOND) }
    }

    /// Counts useless lines, or events, and their bytes.
    ///
    /// # Errors
    /// It was too much: the peer must be ended. Says why.
    pub fn add(&mut self, lines: u64, bytes: u64) -> Result<(), String> {
        let now = Instant::now();
        if self.lines.add(lines, now) > LINES {
            return Err(format!("it has sent {LINES} useless lines, and more than {LINES_A_SECOND} a second"));
        }
        if self.bytes.add(bytes, now) > BYTES {
            return Err(format!("it has sent {} MiB without use", BYTES >> 20));
        }
        Ok(())
    }

    /// Counts a blank line. Between messages, blank lines do no harm.
    ///
    /// # Errors
    /// As of [`add`](Self::add).
    pub fn add_blank(&mut self) -> Result<(), String> {
        if self.blank.add(1, Instant::now()) > LINES {
            return Err(format!("it has sent {LINES} useless lines, all of them blank"));
        }
        Ok(())
    }

    /// Forgives blank lines, after something of use.
    pub fn forgive(&mut self) {
        self.blank.level = 0;
    }

    /// Takes back what turned out to be of use.
    pub fn refund(&mut self, lines: u64, bytes: u64) {
        self.lines.level = self.lines.level.saturating_sub(lines);
        self.bytes.level = self.bytes.level.saturating_sub(bytes);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    /// What happens to a peer that sends this many lines of this many bytes every millisecond, for ten minutes or until it is ended.
    async fn sent(lines: u64, bytes: u64, pause: Duration) -> Result<(), String> {
        let (mut waste, began) = (Waste::new(), Instant::now());
        while began.elapsed() < Duration::from_secs(600) {
            waste.add(lines, bytes)?;
            tokio::time::sleep(pause).await;
        }
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_may_say_a_little_without_use_for_ever_and_much_only_once() {
        let milli = Duration::from_millis;
        assert_eq!(sent(1, 40, milli(11)).await, Ok(()));
        assert_eq!(sent(900, 9_000, milli(10_000)).await, Ok(()));
        assert_eq!(sent(1, 1 << 20, milli(5_000)).await, Ok(()));
        for (lines, bytes, pause) in
            [(1, 1, milli(9)), (100, 100, milli(900)), (0, 4_096, milli(10)), (1, 1 << 20, milli(3_000))]
        {
            assert!(sent(lines, bytes, pause).await.is_err(), "{lines} {bytes} {pause:?}");
        }
        let mut waste = Waste::new();
        assert!(waste.add(LINES, BYTES).is_ok() && waste.add(1, 0).unwrap_err().contains("1000 useless lines"));
        assert!(waste.add(0, 1).is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn lines_that_turn_out_to_be_of_use_do_not_count() {
        let mut waste = Waste::new();
        for _ in 0..10_000 {
            waste.add(3, 5_000).unwrap();
            waste.add_blank().unwrap();
            waste.refund(3, 5_000);
            waste.forgive();
        }
        assert!((0..2_000).any(|_| waste.add_blank().is_err()));
    }
}
