//! Files that are read again when they change. The last good state stays in force.
//! Never applies a file that is still being written, and never stays silent about one that was refused.

use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::super::Service;
use super::fingerprint::Fingerprint;
use crate::files::FileTrust;
use crate::policy::{Finding, PolicyStore, Reload};

/// Files or folders, and what to do when they change.
///
/// They are looked at, not subscribed to: notifications miss changes on network file systems and behind the symbolic
/// links that container platforms swap. Each is looked at by itself on a thread for blocking work: one that takes long, or
/// hangs, holds up neither messages nor the others.
///
/// What is refused is tried again as soon as anything about the files changes, their modes and owners included, and every
/// two seconds: a network file system may have failed for a moment. [`Health::refused_reloads`](super::Health) names it.
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
    /// The files that are in force.
    InForce,
    /// Something else, which is not tried now: it may still be written, or was refused a moment ago.
    Waiting,
    /// They are in force since now; a line for the log.
    Applied(String),
    /// They cannot be used, and why.
    Refused(String),
}

/// How often refused files are tried again, whether they have changed or not.
const RETRY: Duration = Duration::from_secs(2);
/// How long files may look different each time before they are tried all the same. One that is half written is refused by what reads it.
const RESTLESS: Duration = Duration::from_secs(5);

impl Watched {
    /// Watches `paths` (folders with everything in them). Make it before the files are read for the first time: a change
    /// from now on is seen. `apply` reads them and exchanges what it makes of them in the
    /// service; it returns one line for the log, or why it refused, in which case it has changed nothing.
    pub fn new(
        name: &'static str,
        paths: Vec<PathBuf>,
        apply: impl Fn(&Service) -> Result<String, String> + Send + Sync + 'static,
    ) -> Self {
        let loaded = Fingerprint::of(&paths);
        let seen = Mutex::new(Seen { applied: loaded.clone(), last: loaded, restless: None, refused: None });
        let watched = paths.clone();
        let poll = move |service: &Service| {
            let now = Fingerprint::of(&watched);
            let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
            match seen.judge(now, Instant::now()) {
                Judged::InForce => Polled::InForce,
                Judged::Waiting => Polled::Waiting,
                Judged::Try => match apply(service) {
                    Ok(done) => {
                        seen.applied = seen.last.clone();
                        seen.refused = None;
                        Polled::Applied(done)
                    }
                    Err(reason) => {
                        seen.refused = Some((seen.last.clone(), Instant::now()));
                        Polled::Refused(reason)
                    }
                },
            }
        };
        Self { name, paths, poll: Box::new(poll), closes_after: None }
    }

    /// If the files could not be read for this long, the service refuses everything until they can. For files that take
    /// rights away: whoever keeps them from being read must not thereby keep a right.
    #[must_use]
    pub fn closes_after(mut self, bound: Option<Duration>) -> Self {
        self.closes_after = bound;
        self
    }

    /// Watches the folder of policies that the service has been built with, as [`PolicyStore`] does: by its content, so
    /// that no change is missed and what is put in force is what has settled. What others than `trust` says could have
    /// written is refused.
    pub fn policy(folder: PathBuf, trust: FileTrust) -> Self {
        let store = OnceLock::new();
        let (paths, started) = (vec![folder.clone()], Instant::now());
        let refused = AtomicBool::new(false);
        let poll = move |service: &Service| {
            let store = store.get_or_init(|| PolicyStore::resume(&folder, service.policy()).believing(trust.clone()));
            match store.poll(u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX)) {
                // The store compares what it reads, errors included, and what is refused depends on nothing else.
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
    /// When they were put in force.
    applied: Fingerprint,
    /// The last time.
    last: Fingerprint,
    /// Since when they have looked different each time.
    restless: Option<Instant>,
    /// When they were refused, if that is the last thing that happened to them.
    refused: Option<(Fingerprint, Instant)>,
}

/// What to do about what is seen now.
#[derive(Debug, PartialEq, Eq)]
enum Judged {
    InForce,
    Waiting,
    Try,
}

impl Seen {
    fn judge(&mut self, now: Fingerprint, at: Instant) -> Judged {
        // Twice the same: whoever writes has finished.
        let settled = now == self.last;
        let since = if settled { None } else { Some(*self.restless.get_or_insert(at)) };
        // Else whoever touches a file again and again keeps what it takes away in force.
        let too_long = since.is_some_and(|since| at.saturating_duration_since(since) >= RESTLESS);
        self.restless = since.filter(|_| !too_long);
        self.last = now;
        match &self.refused {
            None if self.last == self.applied => Judged::InForce,
            Some((tried, when)) if self.last == *tried && at.saturating_duration_since(*when) < RETRY => {
                Judged::Waiting
            }
            _ if settled || too_long => Judged::Try,
            _ => Judged::Waiting,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_refused_is_tried_again_when_it_changes_and_every_two_seconds() {
        let stamp = Fingerprint::of_length;
        let start = Instant::now();
        let at = |seconds: f64| start + Duration::from_secs_f64(seconds);
        let mut seen = Seen { applied: stamp(0), last: stamp(0), restless: None, refused: None };
        assert_eq!(seen.judge(stamp(0), at(0.0)), Judged::InForce);
        assert_eq!(seen.judge(stamp(1), at(0.5)), Judged::Waiting, "it may still be written");
        assert_eq!(seen.judge(stamp(1), at(1.0)), Judged::Try);
        seen.refused = Some((stamp(1), at(1.0)));
        assert_eq!(seen.judge(stamp(1), at(1.5)), Judged::Waiting);
        assert_eq!(seen.judge(stamp(1), at(3.0)), Judged::Try, "two seconds later, the same again");
        seen.refused = Some((stamp(1), at(3.0)));
        assert_eq!(seen.judge(stamp(0), at(3.5)), Judged::Waiting);
        assert_eq!(seen.judge(stamp(0), at(4.0)), Judged::Try, "also what was in force before");
    }

    #[test]
    fn what_never_settles_is_tried_every_five_seconds() {
        let start = Instant::now();
        let mut seen =
            Seen { applied: Fingerprint::of_length(0), last: Fingerprint::of_length(0), restless: None, refused: None };
        let judged = |half_seconds: u32| {
            seen.judge(Fingerprint::of_length(half_seconds.into()), start + half_seconds * Duration::from_millis(500))
        };
        let tried: Vec<u32> = (1..=40)
            .zip((1..=40).map(judged))
            .filter_map(|(at, judged)| (judged == Judged::Try).then_some(at))
            .collect();
        assert_eq!(tried, [11, 22, 33], "in half seconds");
    }
}
