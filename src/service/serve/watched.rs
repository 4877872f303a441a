//! Files that are read again when they change. The last good state stays in force.
//! Never applies a file that is still being written, and never stays silent about one that was refused.

use std::fmt;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::super::Service;
use crate::files::{FileTrust, Polled, Watch};
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

impl Watched {
    /// Watches `paths` (folders with everything in them). Create this before the files are read for the first time: a
    /// change from now on is seen. `apply` reads them and puts the result in force in the service; it returns one line
    /// for the log, or why it refused, in which case it has changed nothing.
    pub fn new(
        name: &'static str,
        paths: Vec<PathBuf>,
        apply: impl Fn(&Service) -> Result<String, String> + Send + Sync + 'static,
    ) -> Self {
        let watch = Watch::new(paths.clone());
        let poll = move |service: &Service| watch.poll(|| apply(service));
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
            let store = store.get_or_init(|| PolicyStore::resume(&folder, service.policy(), Some(trust.clone())));
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
