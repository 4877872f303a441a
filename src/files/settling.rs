//! Decides when to accept something that may still be changing: once it has settled, or has kept changing for too long.
//! Knows nothing of what it is.

use std::time::Duration;

/// The state of a change that has not been accepted yet. Times are those of any clock, as a duration since its start.
#[derive(Debug)]
pub(crate) struct Settling<T>(Option<Changed<T>>);

#[derive(Debug)]
struct Changed<T> {
    seen: T,
    /// When this state was first seen.
    since: Duration,
    /// When any difference from the accepted state was first seen.
    restless: Duration,
}

/// How long something must stay the same: longer than an editor or a deployment tool needs between two files, shorter
/// than an operator waits.
const SETTLE: Duration = Duration::from_millis(300);
/// After this time, something that keeps changing is accepted anyway: permissions that it withdraws must not stay in
/// force forever only because somebody keeps touching it. Half-written content is refused by whatever reads it.
const RESTLESS: Duration = Duration::from_secs(5);

impl<T> Default for Settling<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T: PartialEq> Settling<T> {
    /// Whether to accept the state seen now, which differs from the one accepted before.
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

    /// Notes that the state seen now is the accepted one.
    pub(crate) fn rests(&mut self) {
        self.0 = None;
    }
}
