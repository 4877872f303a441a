//! What can be observed of a service on a bus. Never a secret, and no text of a file.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

#[cfg(doc)]
use super::watched::Watched;

/// The state of a service on a bus.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// Not yet taking messages, and why.
    Starting(String),
    /// Taking messages.
    Ready,
    /// Of no use for the moment, and why: the connection is lost, everything is refused, or the application says so.
    Interrupted(String),
    /// Finishing accepted work.
    Draining,
    /// Done.
    Stopped,
}

impl State {
    /// One word, for the service's metadata on the bus.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Starting(_) => "starting",
            Self::Ready => "ready",
            Self::Interrupted(_) => "interrupted",
            Self::Draining => "draining",
            Self::Stopped => "stopped",
        }
    }
}

/// Something that must hold for a service or a gateway to be of use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// A word for it.
    pub name: &'static str,
    /// Why it is not met; `None` if it is. For operators: it may name hosts and files, never a secret.
    pub unmet: Option<String>,
}

/// What happened to the connections, in counts that only grow, and which files cannot be read.
#[derive(Debug, Default)]
pub struct Health {
    /// How often a lost connection to the broker was re-established.
    pub reconnected: AtomicU64,
    /// Questions from other replicas and on `$SRV` that were not answered because too many waited. Of those that the
    /// broker held back, one is counted for each subject and second.
    pub unasked: AtomicU64,
    /// Messages for which the queue had no room, or not for this agent; as far as the rate of hints allows, they were
    /// answered with one.
    pub shed: AtomicU64,
    /// Answers that could not be published.
    pub unsent: AtomicU64,
    /// See [`Health::refused_reloads`].
    pub(super) reloads: Refusals,
    /// How often changed files were tried.
    pub(super) tries: Tries,
}

impl Health {
    /// The watched files whose present state is refused. Their previous state is in force, unless they have closed the
    /// service.
    #[must_use]
    pub fn refused_reloads(&self) -> Vec<RefusedReload> {
        self.reloads.list()
    }
}

/// Files whose change was refused; see [`Health::refused_reloads`](Health::refused_reloads).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RefusedReload {
    /// Which files: `key ring`, `denylist`, `token keys`, `service key` or `policy`, or a name of the application's
    /// own.
    pub what: &'static str,
    /// When they were first refused since they were last in force.
    pub since: SystemTime,
    /// Whether the service refuses everything until they can be read.
    pub closed: bool,
}

/// How often changed files were put in force or refused, by what they are.
#[derive(Debug, Default)]
pub(super) struct Tries(Mutex<BTreeMap<&'static str, Tried>>);

/// How often.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Tried {
    pub(super) applied: u64,
    /// Counted again once a minute.
    pub(super) refused: u64,
}

impl Tries {
    /// There are no more names than there are [`Watched`].
    pub(super) fn count(&self, what: &'static str, count: impl FnOnce(&mut Tried)) {
        count(self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(what).or_default());
    }

    pub(super) fn read(&self) -> BTreeMap<&'static str, Tried> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// What is refused at the moment, at most one for each [`Watched`].
#[derive(Debug, Default)]
pub(super) struct Refusals(pub(super) Mutex<BTreeMap<usize, RefusedReload>>);

impl Refusals {
    fn list(&self) -> Vec<RefusedReload> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }
}
