//! When what may still be written is taken: once it has settled, or has gone on changing for too long.
//! Knows nothing of what it is.

use std::time::Duration;

/// What was seen of something that is not taken yet. Times are those of any clock, from its beginning.
#[derive(Debug)]
pub(crate) struct Settling<T>(Option<Changed<T>>);

#[derive(Debug)]
struct Changed<T> {
    seen: T,
    /// When it was first seen so.
    since: Duration,
    /// When it was first seen to be another one than what was taken, however.
    restless: Duration,
}

/// How long something must look the same: longer than an editor or a deployment tool takes from one file to the next, shorter than an
/// operator waits.
const SETTLE: Duration = Duration::from_millis(300);
/// How long something may look different each time before it is taken all the same: what it takes away must not stay in force for ever,
/// only because somebody touches it again and again. What is half written is refused by what reads it.
const RESTLESS: Duration = Duration::from_secs(5);

impl<T> Default for Settling<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T: PartialEq> Settling<T> {
    /// Whether to take what is seen now, which is another one than what was taken before.
    pub(crate) fn takes(&mut self, seen: T, now: Duration) -> bool {
        let (since, restless) = match self.0.take() {
            Some(changed) if changed.seen == seen => (changed.since, changed.restless),
            Some(changed) => (now, changed.restless),
            None => (now, now),
        };
        let takes = now.saturating_sub(since) >= SETTLE || now.saturating_sub(restless) >= RESTLESS;
        self.0 = (!takes).then_some(Changed { seen, since, restless });
        takes
    }

    /// What is seen now is what was taken.
    pub(crate) fn rests(&mut self) {
        self.0 = None;
    }
}
