//! Files that are read again when they change. The last good state stays in force.
//! Never applies a file that is still being written, and never stays silent about one that was refused.

use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::super::Service;
use super::fingerprint::Fingerprint;
use crate::files::{FileTrust, Settling};
use crate::policy::{Finding, PolicyStore, Reload};

/// Files or folders, and what to do when they change.
///
/// They are polled, not subscribed to: notifications miss changes on network file systems and behind the symbolic links
/// that container platforms swap. Each is polled by itself on a thread for blocking work: one that takes long, or hangs,
/// holds up neither messages nor the others.
///
/// Refused files are tried again as soon as anything about them changes, modes and owners included, and every two
/// seconds: a network file system may have failed for a moment. [`Health::refused_reloads`](super::Health) names them.
/// Files that look different each time are tried after five seconds.
pub struct Watched {
    pub(super) name: &'static str,
    paths: Vec<PathBuf>,
    pub(super) poll: Box<Poll>,
    pub(super) closes_after: Option<Duration>,
}

/// Reads the files again if they have changed.
pub(super) type Poll = dyn Fn(&Service) -> Polled + Send + Sync;

/// What a poll found.
pub(super) enum Polled {
    /// The files are the ones in force.
    InForce,
    /// The files differ, but are not tried now: they may still be being written, or were refused a moment ago.
    Waiting,
    /// They are in force as of now; a line for the log.
    Applied(String),
    /// They cannot be used, and why.
    Refused(String),
}

/// How often refused files are tried again, whether they have changed or not.
const RETRY: Duration = Duration::from_secs(2);

impl Watched {
    /// Watches `paths` (folders with everything in them). Create this before the files are read for the first time: a
    /// change from now on is seen. `apply` reads them and puts the result in force in the service; it returns one line
    /// for the log, or why it refused, in which case it has changed nothing.
    pub fn new(
        name: &'static str,
        paths: Vec<PathBuf>,
        apply: impl Fn(&Service) -> Result<String, String> + Send + Sync + 'static,
    ) -> Self {
        let loaded = Fingerprint::of(&paths);
        let seen = Mutex::new(Seen { applied: loaded, refused: None, changed: Settling::default() });
        let (watched, started) = (paths.clone(), Instant::now());
        let poll = move |service: &Service| {
            let now = Fingerprint::of(&watched);
            let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
            match seen.judge(&now, started.elapsed()) {
                Judged::InForce => Polled::InForce,
                Judged::Waiting => Polled::Waiting,
                Judged::Try => match apply(service) {
                    Ok(done) => {
                        seen.applied = now;
                        seen.refused = None;
                        Polled::Applied(done)
                    }
                    Err(reason) => {
                        seen.refused = Some((now, started.elapsed()));
                        Polled::Refused(reason)
                    }
                },
            }
        };
        Self { name, paths, poll: Box::new(poll), closes_after: None }
    }

    /// If the files cannot be read for this long, the service refuses everything until they can. For files that take
    /// rights away: nobody must be able to keep a right by keeping them from being read.
    #[must_use]
    pub fn closes_after(mut self, bound: Option<Duration>) -> Self {
        self.closes_after = bound;
        self
    }

    /// Watches the folder of policies that the service was built with, as [`PolicyStore`] does: by its content, so that
    /// no change is missed and only a settled state is put in force. Files that others than `trust` permits could have
    /// written are refused.
    pub fn policy(folder: PathBuf, trust: FileTrust) -> Self {
        let store = OnceLock::new();
        let (paths, started) = (vec![folder.clone()], Instant::now());
        let refused = AtomicBool::new(false);
        let poll = move |service: &Service| {
            let store = store.get_or_init(|| PolicyStore::resume(&folder, service.policy()).believing(trust.clone()));
            match store.poll(u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX)) {
                // The store compares what it reads, errors included, and a refusal depends on nothing else.
                Reload::Unchanged if refused.load(Ordering::Relaxed) => Polled::Waiting,
                Reload::Unchanged => Polled::InForce,
                Reload::Waiting => Polled::Waiting,
                Reload::Refused { errors, kept } => {
                    refused.store(true, Ordering::Relaxed);
                    Polled::Refused(format!("(revision {kept}) {errors}"))
                }
                Reload::Loaded { revision, warnings } => {
                    warnings.iter().for_each(Finding::log);
                    service.replace_policy(store.current());
                    refused.store(false, Ordering::Relaxed);
                    Polled::Applied(format!("revision {revision}"))
                }
            }
        };
        Self { name: "policy", paths, poll: Box::new(poll), closes_after: None }
    }
}

impl fmt::Debug for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watched")
            .field("name", &self.name)
            .field("closes_after", &self.closes_after)
            .field("paths", &self.paths)
            .finish_non_exhaustive()
    }
}

/// What was seen of the files.
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
