//! Files that are read again when they change. The last good state stays in force.
//! Never applies a file that is still being written, and never stays silent about one that was refused.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::time::{MissedTickBehavior, interval};

use super::fingerprint::Fingerprint;
use super::settling::Settling;

/// Files that may change.
#[derive(Debug)]
pub struct Watch {
    paths: Vec<PathBuf>,
    started: Instant,
    seen: Mutex<Seen>,
}

/// What a poll found.
#[derive(Debug)]
pub enum Polled {
    /// The files are the ones in force.
    InForce,
    /// The files differ, but are not tried now: they may still be being written, or were refused a moment ago.
    Waiting,
    /// They are in force as of now; a line for the log.
    Applied(String),
    /// They cannot be used, and why.
    Refused(String),
}

/// How the files stand after a poll.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// They are in force.
    InForce,
    /// The same, as of now: they have changed.
    Applied,
    /// They are refused, and those before them are in force.
    Refused {
        /// It was logged just now.
        is_new: bool,
    },
    /// They could not be read for too long.
    Closed,
}

/// How often refused files are tried again, whether they have changed or not.
const RETRY: Duration = Duration::from_secs(2);
/// How often the log repeats why they are refused.
const SAY_AGAIN: Duration = Duration::from_secs(60);

impl Watch {
    /// Watches files, and folders with everything in them. Create this before they are read for the first time: a change from now on is
    /// seen.
    #[must_use]
    pub fn new(paths: Vec<PathBuf>) -> Self {
        let seen = Seen { applied: Fingerprint::of(&paths), refused: None, changed: Settling::default() };
        Self { paths, started: Instant::now(), seen: Mutex::new(seen) }
    }

    /// Looks at the files, and has them read by `apply` if they have changed and settled. It returns a line for the log, or why it
    /// refused, in which case it has changed nothing.
    pub fn poll(&self, apply: impl FnOnce() -> Result<String, String>) -> Polled {
        let now = Fingerprint::of(&self.paths);
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        match seen.judge(&now, self.started.elapsed()) {
            Judged::InForce => Polled::InForce,
            Judged::Waiting => Polled::Waiting,
            Judged::Try => match apply() {
                Ok(done) => {
                    seen.applied = now;
                    seen.refused = None;
                    Polled::Applied(done)
                }
                Err(reason) => {
                    seen.refused = Some((now, self.started.elapsed()));
                    Polled::Refused(reason)
                }
            },
        }
    }
}

/// Polls until it is dropped, each time on a thread for blocking work: files that take long, or hang, hold up nobody. Logs what happens,
/// and tells how the files stand: `Closed` if those in force have not been the present ones for `closes_after`.
pub async fn follow(
    resource: &'static str,
    every: Duration,
    closes_after: Option<Duration>,
    poll: impl Fn() -> Polled + Send + Sync + 'static,
    tell: impl Fn(Standing),
) {
    let poll = Arc::new(poll);
    let mut ticks = interval(every.max(Duration::from_millis(10)));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut outcome = Outcome { resource, closes_after, tell, good: Instant::now(), is_closed: false, said: None };
    loop {
        ticks.tick().await;
        let polling = Arc::clone(&poll);
        let mut polling = tokio::task::spawn_blocking(move || polling());
        let polled = loop {
            tokio::select! {
                polled = &mut polling => break polled,
                // A file system that hangs counts as one that cannot be read.
                _ = ticks.tick() => outcome.close_if_due(),
            }
        };
        match polled {
            Ok(Polled::Waiting) => {}
            Ok(Polled::InForce) => outcome.good(Standing::InForce),
            Ok(Polled::Applied(done)) => {
                tracing::info!(target: "sealwire::reload", resource, "{done}");
                outcome.said = None;
                outcome.good(Standing::Applied);
            }
            Ok(Polled::Refused(reason)) => outcome.refused(reason),
            // The runtime ends, and nothing was read.
            Err(error) if !error.is_panic() => return,
            Err(panic) => outcome.refused(format!("reading it panicked, report it: {panic}")),
        }
        outcome.close_if_due();
    }
}

/// The results of polling.
struct Outcome<T> {
    resource: &'static str,
    closes_after: Option<Duration>,
    tell: T,
    /// When the state in force was last seen to match the files.
    good: Instant,
    is_closed: bool,
    /// What was last logged, and when.
    said: Option<(String, Instant)>,
}

impl<T: Fn(Standing)> Outcome<T> {
    fn good(&mut self, standing: Standing) {
        (self.good, self.is_closed) = (Instant::now(), false);
        (self.tell)(standing);
    }

    fn refused(&mut self, reason: String) {
        // Tried every two seconds; logged when it is new, and then once a minute.
        let is_new = self.said.as_ref().is_none_or(|(said, at)| *said != reason || at.elapsed() >= SAY_AGAIN);
        (self.tell)(Standing::Refused { is_new });
        if is_new {
            tracing::error!(
                target: "sealwire::reload",
                resource = self.resource,
                %reason,
                "REFUSED, the one before stays in force"
            );
            self.said = Some((reason, Instant::now()));
        }
    }

    fn close_if_due(&mut self) {
        if self.is_closed || self.closes_after.is_none_or(|bound| self.good.elapsed() < bound) {
            return;
        }
        self.is_closed = true;
        tracing::error!(
            target: "sealwire::reload",
            resource = self.resource,
            "could not be read for too long: EVERYTHING IS REFUSED until it can be"
        );
        (self.tell)(Standing::Closed);
    }
}

/// What was seen of the files.
#[derive(Debug)]
struct Seen {
    /// What they looked like when they were put in force.
    applied: Fingerprint,
    /// What they looked like when they were refused, and when, if that is the last thing that happened to them.
    refused: Option<(Fingerprint, Duration)>,
    /// What they look like since then, if they differ.
    changed: Settling<Fingerprint>,
}

/// What to do about the files as they look now.
#[derive(Debug, PartialEq, Eq)]
enum Judged {
    InForce,
    Waiting,
    Try,
}

impl Seen {
    fn judge(&mut self, now: &Fingerprint, at: Duration) -> Judged {
        let known = match &self.refused {
            None => (*now == self.applied).then_some(Judged::InForce),
            Some((tried, when)) => (now == tried).then(|| {
                let is_due = at.saturating_sub(*when) >= RETRY;
                if is_due { Judged::Try } else { Judged::Waiting }
            }),
        };
        if let Some(known) = known {
            self.changed.rests();
            return known;
        }
        if self.changed.takes(now.clone(), at) { Judged::Try } else { Judged::Waiting }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn what_was_refused_is_tried_again_when_it_changes_and_every_two_seconds() {
        let stamp = Fingerprint::of_length;
        let mut seen = Seen { applied: stamp(0), refused: None, changed: Settling::default() };
        assert_eq!(seen.judge(&stamp(0), at(0)), Judged::InForce);
        assert_eq!(seen.judge(&stamp(1), at(500)), Judged::Waiting, "it may still be written");
        assert_eq!(seen.judge(&stamp(1), at(1_000)), Judged::Try);
        seen.refused = Some((stamp(1), at(1_000)));
        assert_eq!(seen.judge(&stamp(1), at(1_500)), Judged::Waiting);
        assert_eq!(seen.judge(&stamp(1), at(3_000)), Judged::Try, "two seconds later, the same again");
        seen.refused = Some((stamp(1), at(3_000)));
        assert_eq!(seen.judge(&stamp(0), at(3_500)), Judged::Waiting);
        assert_eq!(seen.judge(&stamp(0), at(4_000)), Judged::Try, "also what was in force before");
    }

    #[test]
    fn what_never_settles_is_tried_every_five_seconds() {
        let mut seen = Seen { applied: Fingerprint::of_length(0), refused: None, changed: Settling::default() };
        let judged = |half_seconds: u64| seen.judge(&Fingerprint::of_length(half_seconds), at(half_seconds * 500));
        let tried: Vec<u64> = (1..=40)
            .zip((1..=40).map(judged))
            .filter_map(|(at, judged)| (judged == Judged::Try).then_some(at))
            .collect();
        assert_eq!(tried, [11, 22, 33], "in half seconds");
    }
}
