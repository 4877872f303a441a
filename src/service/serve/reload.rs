//! Files that are read again when they change. The last good state stays in force.
//! Never applies a file that is still being written, and never stays silent about one that was refused.

mod stamp;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;

use self::stamp::Stamp;
use super::super::Service;
use super::{Shared, State};
use crate::auth::FileTrust;
use crate::policy::{PolicyStore, Reload};

/// Files or folders, and what to do when they change.
///
/// They are looked at, not subscribed to: notifications miss changes on network file systems and behind the symbolic
/// links that container platforms swap. Each is looked at by itself on a thread for blocking work: one that takes long, or
/// hangs, holds up neither messages nor the others.
///
/// What is refused is tried again as soon as anything about the files changes, their modes and owners included, and every
/// two seconds: a network file system may have failed for a moment. [`Health::refused_reloads`](super::Health) names it.
pub struct Watched {
    name: &'static str,
    paths: Vec<PathBuf>,
    look: Box<Look>,
    closes_after: Option<Duration>,
}

/// Looks again.
type Look = dyn Fn(&Service) -> Looked + Send + Sync;

/// What a look found.
enum Looked {
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

impl Watched {
    /// Watches `paths` (folders with everything in them). Make it before the files are read for the first time: a change
    /// from now on is seen. `apply` reads them and exchanges what it makes of them in the
    /// service; it returns one line for the log, or why it refused, in which case it has changed nothing.
    pub fn new(
        name: &'static str,
        paths: Vec<PathBuf>,
        apply: impl Fn(&Service) -> Result<String, String> + Send + Sync + 'static,
    ) -> Self {
        let loaded = Stamp::of(&paths);
        let seen = Mutex::new(Seen { applied: loaded.clone(), last: loaded, refused: None });
        let watched = paths.clone();
        let look = move |service: &Service| {
            let now = Stamp::of(&watched);
            let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
            match seen.judge(now, Instant::now()) {
                Judged::InForce => Looked::InForce,
                Judged::Waiting => Looked::Waiting,
                Judged::Try => match apply(service) {
                    Ok(done) => {
                        seen.applied = seen.last.clone();
                        seen.refused = None;
                        Looked::Applied(done)
                    }
                    Err(why) => {
                        seen.refused = Some((seen.last.clone(), Instant::now()));
                        Looked::Refused(why)
                    }
                },
            }
        };
        Self { name, paths, look: Box::new(look), closes_after: None }
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
        let look = move |service: &Service| {
            let store = store.get_or_init(|| PolicyStore::resume(&folder, service.policy()).believing(trust.clone()));
            match store.poll(u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX)) {
                // The store compares what it reads, errors included, and what is refused depends on nothing else.
                Reload::Unchanged if refused.load(Ordering::Relaxed) => Looked::Waiting,
                Reload::Unchanged => Looked::InForce,
                Reload::Refused { errors, kept } => {
                    refused.store(true, Ordering::Relaxed);
                    Looked::Refused(format!("(revision {kept}) {errors}"))
                }
                Reload::Loaded { revision, warnings } => {
                    for warning in warnings {
                        tracing::warn!(target: "sealwire::policy", %warning, "policy");
                    }
                    service.replace_policy(store.current());
                    refused.store(false, Ordering::Relaxed);
                    Looked::Applied(format!("revision {revision}"))
                }
            }
        };
        Self { name: "policy", paths, look: Box::new(look), closes_after: None }
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
    applied: Stamp,
    /// The last time.
    last: Stamp,
    /// When they were refused, if that is the last thing that happened to them.
    refused: Option<(Stamp, Instant)>,
}

/// What to do about what is seen now.
#[derive(Debug, PartialEq, Eq)]
enum Judged {
    InForce,
    Waiting,
    Try,
}

impl Seen {
    fn judge(&mut self, now: Stamp, at: Instant) -> Judged {
        // Twice the same: whoever writes has finished.
        let settled = now == self.last;
        self.last = now;
        match &self.refused {
            None if self.last == self.applied => Judged::InForce,
            Some((tried, when)) if self.last == *tried && at.saturating_duration_since(*when) < RETRY => {
                Judged::Waiting
            }
            _ if settled => Judged::Try,
            _ => Judged::Waiting,
        }
    }
}

/// Files whose change was refused; see [`Health::refused_reloads`](super::Health::refused_reloads).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RefusedReload {
    /// Which: `key ring`, `denylist`, `token keys`, `service key` or `policy`, or an application's own.
    pub what: &'static str,
    /// When they were refused for the first time since they were last in force.
    pub since: SystemTime,
    /// Whether the service refuses everything until they can be read.
    pub closed: bool,
}

/// What is refused at the moment, at most one for each [`Watched`].
#[derive(Debug, Default)]
pub(super) struct Refusals(Mutex<BTreeMap<usize, RefusedReload>>);

impl Refusals {
    pub(super) fn list(&self) -> Vec<RefusedReload> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }
}

/// Looks at the watched files until it is aborted.
pub(super) fn start(shared: Arc<Shared>) -> JoinHandle<()> {
    let watches = (0..shared.options.watched.len()).map(|position| watch(Arc::clone(&shared), position));
    let watches = futures_util::future::join_all(watches);
    tokio::spawn(async move { drop(watches.await) })
}

async fn watch(shared: Arc<Shared>, position: usize) {
    let Some(watched) = shared.options.watched.get(position) else { return };
    let mut ticks = tokio::time::interval(shared.options.watch_every.max(Duration::from_millis(10)));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut outcome = Outcome { position, good: Instant::now(), said: None };
    loop {
        ticks.tick().await;
        let looking = Arc::clone(&shared);
        let mut look = tokio::task::spawn_blocking(move || {
            let watched = looking.options.watched.get(position)?;
            Some((watched.look)(&looking.service))
        });
        let looked = loop {
            tokio::select! {
                looked = &mut look => break looked,
                // A file system that hangs is not one that can be read.
                _ = ticks.tick() => outcome.close_if_due(&shared, watched),
            }
        };
        match looked {
            Ok(None | Some(Looked::Waiting)) => {}
            Ok(Some(Looked::InForce)) => outcome.good(&shared),
            Ok(Some(Looked::Applied(done))) => {
                tracing::info!(target: "sealwire::reload", what = watched.name, "{done}");
                outcome.said = None;
                outcome.good(&shared);
            }
            Ok(Some(Looked::Refused(why))) => outcome.refused(&shared, watched, why),
            Err(panic) => outcome.refused(&shared, watched, format!("reading it panicked, report it: {panic}")),
        }
        outcome.close_if_due(&shared, watched);
    }
}

/// What became of the looks at one [`Watched`].
struct Outcome {
    position: usize,
    /// When what is in force was last seen to be what there is.
    good: Instant,
    /// What was logged last, and when.
    said: Option<(String, Instant)>,
}

impl Outcome {
    fn good(&mut self, shared: &Shared) {
        self.good = Instant::now();
        self.update(shared, |refusals, position| {
            refusals.remove(&position);
        });
    }

    fn refused(&mut self, shared: &Shared, watched: &Watched, why: String) {
        self.enter(shared, watched, false);
        // Tried every two seconds, said when it is new, and once a minute.
        if self.said.as_ref().is_some_and(|(said, at)| *said == why && at.elapsed() < Duration::from_secs(60)) {
            return;
        }
        shared.service.counters().refused("reload");
        tracing::error!(target: "sealwire::reload", what = watched.name, "REFUSED, the one before stays in force: {why}");
        self.said = Some((why, Instant::now()));
    }

    fn close_if_due(&self, shared: &Shared, watched: &Watched) {
        if watched.closes_after.is_some_and(|bound| self.good.elapsed() >= bound) {
            self.enter(shared, watched, true);
        }
    }

    fn enter(&self, shared: &Shared, watched: &Watched, closed: bool) {
        self.update(shared, |refusals, position| {
            let new = RefusedReload { what: watched.name, since: SystemTime::now(), closed: false };
            let refused = refusals.entry(position).or_insert(new);
            if closed && !refused.closed {
                tracing::error!(
                    target: "sealwire::reload",
                    what = watched.name,
                    "could not be read for too long: EVERYTHING IS REFUSED until it can be"
                );
            }
            refused.closed |= closed;
        });
    }

    /// Changes what is refused, and lets the service refuse everything, or not, by what comes of it.
    fn update(&self, shared: &Shared, change: impl FnOnce(&mut BTreeMap<usize, RefusedReload>, usize)) {
        let mut refusals = shared.health.reloads.0.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut refusals, self.position);
        let closed = refusals.values().any(|refused| refused.closed);
        shared.service.verifier().suspend(closed);
        shared.state.send_if_modified(|state| {
            let ours = matches!(state, State::Interrupted(why) if why == CLOSED);
            match (closed, &state) {
                (true, State::Ready) => *state = State::Interrupted(CLOSED.to_owned()),
                (false, _) if ours => *state = State::Ready,
                _ => return false,
            }
            true
        });
    }
}

/// Why a service is interrupted that refuses everything.
const CLOSED: &str = "a file that takes rights away could not be read for too long";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_refused_is_tried_again_when_it_changes_and_every_two_seconds() {
        let stamp = Stamp::of_length;
        let start = Instant::now();
        let at = |seconds: f64| start + Duration::from_secs_f64(seconds);
        let mut seen = Seen { applied: stamp(0), last: stamp(0), refused: None };
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
}
