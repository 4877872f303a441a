//! Files that are read again when they change. The last good state stays in force.
//! Never applies a file that is still being written, and never stays silent about one that was refused.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use tokio::task::JoinHandle;

use super::super::Service;
use super::Shared;

/// Files or folders, and what to do when they change.
///
/// They are looked at, not subscribed to: notifications miss changes on network file systems and behind the symbolic
/// links that container platforms swap.
pub struct Watched {
    name: &'static str,
    paths: Vec<PathBuf>,
    /// How the files looked before they were read for the first time.
    loaded: Stamp,
    apply: Apply,
}

type Apply = Box<dyn Fn(&Service) -> Result<String, String> + Send + Sync>;

impl Watched {
    /// Watches `paths` (folders with everything in them). Make it before the files are read for the first time: a change
    /// from now on is seen. `apply` reads them and exchanges what it makes of them in the
    /// service; it returns one line for the log, or why it refused, in which case it has changed nothing.
    pub fn new(
        name: &'static str,
        paths: Vec<PathBuf>,
        apply: impl Fn(&Service) -> Result<String, String> + Send + Sync + 'static,
    ) -> Self {
        Self { name, loaded: Stamp::of(&paths), paths, apply: Box::new(apply) }
    }
}

impl fmt::Debug for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watched").field("name", &self.name).field("paths", &self.paths).finish_non_exhaustive()
    }
}

/// What a file looked like: enough to see that it is another one now.
#[derive(PartialEq, Eq, Clone)]
struct Stamp(Vec<(PathBuf, Option<Look>)>);

/// Length, time of the last change, inode.
type Look = (u64, SystemTime, u64);

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

fn collect(path: &Path, depth: usize, files: &mut Vec<(PathBuf, Option<Look>)>) {
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
    let mut applied: Vec<Stamp> = shared.options.watched.iter().map(|watched| watched.loaded.clone()).collect();
    tokio::spawn(async move {
        let mut seen = applied.clone();
        let mut ticks = tokio::time::interval(shared.options.watch_every.max(std::time::Duration::from_millis(10)));
        loop {
            ticks.tick().await;
            for ((watched, applied), seen) in shared.options.watched.iter().zip(&mut applied).zip(&mut seen) {
                let now = Stamp::of(&watched.paths);
                // Twice the same: whoever writes has finished.
                let settled = now == *seen;
                *seen = now.clone();
                if !settled || now == *applied {
                    continue;
                }
                *applied = now;
                match (watched.apply)(&shared.service) {
                    Ok(what) => tracing::info!(target: "sealwire::reload", what = watched.name, "{what}"),
                    Err(why) => {
                        shared.service.counters().refused("reload");
                        tracing::error!(
                            target: "sealwire::reload",
                            what = watched.name,
                            "REFUSED, the one before stays in force: {why}"
                        );
                    }
                }
            }
        }
    })
}
