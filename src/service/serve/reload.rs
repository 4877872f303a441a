//! Files that are read again when they change. The last good state stays in force.
//! Never applies a file that is still being written, and never stays silent about one that was refused.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;

use super::super::Service;
use super::Shared;
use crate::policy::{PolicyStore, Reload};

/// Files or folders, and what to do when they change.
///
/// They are looked at, not subscribed to: notifications miss changes on network file systems and behind the symbolic
/// links that container platforms swap. Each is looked at by itself on a thread for blocking work: one that takes long, or
/// hangs, holds up neither messages nor the others.
pub struct Watched {
    name: &'static str,
    paths: Vec<PathBuf>,
    look: Box<Look>,
}

/// Looks again. `None` if nothing is to be done, else what has been done, or why not.
type Look = dyn Fn(&Service) -> Option<Result<String, String>> + Send + Sync;

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
        let stamps = Mutex::new((loaded.clone(), loaded));
        let watched = paths.clone();
        let look = move |service: &Service| {
            let now = Stamp::of(&watched);
            let mut stamps = stamps.lock().unwrap_or_else(PoisonError::into_inner);
            let (applied, seen) = &mut *stamps;
            // Twice the same: whoever writes has finished.
            let settled = now == *seen;
            seen.clone_from(&now);
            if !settled || now == *applied {
                return None;
            }
            *applied = now;
            Some(apply(service))
        };
        Self { name, paths, look: Box::new(look) }
    }

    /// Watches the folder of policies that the service has been built with, as [`PolicyStore`] does: by its content, so
    /// that no change is missed and what is put in force is what has settled.
    pub fn policy(folder: PathBuf) -> Self {
        let store = OnceLock::new();
        let (paths, started) = (vec![folder.clone()], Instant::now());
        let look = move |service: &Service| {
            let store = store.get_or_init(|| PolicyStore::resume(&folder, service.policy()));
            match store.poll(u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX)) {
                Reload::Unchanged => None,
                Reload::Refused { errors, kept } => Some(Err(format!("(revision {kept}) {errors}"))),
                Reload::Loaded { revision, warnings } => {
                    for warning in warnings {
                        tracing::warn!(target: "sealwire::policy", %warning, "policy");
                    }
                    service.replace_policy(store.current());
                    Some(Ok(format!("revision {revision}")))
                }
            }
        };
        Self { name: "policy", paths, look: Box::new(look) }
    }
}

impl fmt::Debug for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watched").field("name", &self.name).field("paths", &self.paths).finish_non_exhaustive()
    }
}

/// What a file looked like: enough to see that it is another one now.
#[derive(PartialEq, Eq, Clone)]
struct Stamp(Vec<(PathBuf, Option<Face>)>);

/// Length, time of the last change, inode.
type Face = (u64, SystemTime, u64);

impl Stamp {
    fn of(paths: &[PathBuf]) -> Self {
        let mut files = Vec::new();
        for path in paths {
            collect(path, 0, &mut files);
        }
        files.sort();
        Self(files)
    }
}

fn collect(path: &Path, depth: usize, files: &mut Vec<(PathBuf, Option<Face>)>) {
    // Follows symbolic links, so the target's change counts; the depth ends a loop of them.
    let metadata = std::fs::metadata(path).ok();
    if let Some(metadata) = &metadata
        && metadata.is_dir()
        && depth < 8
    {
        for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
            collect(&entry.path(), depth + 1, files);
        }
    }
    let stamp = metadata.and_then(|metadata| {
        let inode = {
            #[cfg(unix)]
            {
                std::os::unix::fs::MetadataExt::ino(&metadata)
            }
            #[cfg(not(unix))]
            {
                0
            }
        };
        Some((metadata.len(), metadata.modified().ok()?, inode))
    });
    files.push((path.to_owned(), stamp));
}

/// Looks at the watched files until it is aborted.
pub(super) fn start(shared: Arc<Shared>) -> JoinHandle<()> {
    let watches = (0..shared.options.watched.len()).map(|position| watch(Arc::clone(&shared), position));
    let watches = futures_util::future::join_all(watches);
    tokio::spawn(async move { drop(watches.await) })
}

async fn watch(shared: Arc<Shared>, position: usize) {
    let mut ticks = tokio::time::interval(shared.options.watch_every.max(Duration::from_millis(10)));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let looking = Arc::clone(&shared);
        let looked = tokio::task::spawn_blocking(move || {
            let watched = looking.options.watched.get(position)?;
            Some((watched.name, (watched.look)(&looking.service)?))
        });
        let (what, why) = match looked.await {
            Ok(None) => continue,
            Ok(Some((what, Ok(done)))) => {
                tracing::info!(target: "sealwire::reload", what, "{done}");
                continue;
            }
            Ok(Some((what, Err(why)))) => (what, why),
            Err(panic) => ("a watched file", format!("reading it panicked, report it: {panic}")),
        };
        shared.service.counters().refused("reload");
        tracing::error!(target: "sealwire::reload", what, "REFUSED, the one before stays in force: {why}");
    }
}
