//! Which tool definitions an operator has approved: `tools.lock.toml`, and what it says of each tool.
//! Never takes a tool for approved if its definition differs in anything from the one that was approved.

mod lock;
mod shown;

use std::fs::Metadata;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

pub use sealwire::rpc::CanonicalError;
use sealwire::service::Topic;
use serde::Serialize;
use tokio::sync::watch;

pub use self::lock::{Lock, LockError, Pin};
pub use self::shown::{differences, is_hidden, shown};

/// How a tool, as its server describes it now, compares with the lock file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Standing {
    /// This very definition was approved.
    Approved,
    /// Nothing was approved under this name.
    New,
    /// Another definition was approved under this name.
    Changed,
}

/// A change for subscribers: a tool can be used now, or no longer.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Change {
    pub(crate) method: String,
    pub(crate) standing: &'static str,
}

/// The lock file, read again when it changes.
#[derive(Debug)]
pub(crate) struct Pins {
    path: PathBuf,
    lock: watch::Sender<Arc<Lock>>,
    /// Where subscribers learn of changes.
    pub(crate) changes: Topic<Change>,
    /// The state of the file when it was read.
    seen: Mutex<Option<Seen>>,
}

/// Changes whenever the file does, or who may read and write it.
type Seen = Option<(u64, std::time::SystemTime, [i64; 3])>;

/// How often the file is checked.
const LOOK: Duration = Duration::from_millis(500);

impl Pins {
    /// Reads the file; a missing file approves nothing.
    ///
    /// # Errors
    /// [`LockError`]: the operator's mistake.
    pub(crate) fn load(path: &Path) -> Result<Self, LockError> {
        let seen = seen(path);
        let lock = Lock::load(path)?;
        let changes = Topic::by_key(|change: &Change| change.method.clone());
        Ok(Self {
            path: path.to_owned(),
            lock: watch::Sender::new(Arc::new(lock)),
            changes,
            seen: Mutex::new(Some(seen)),
        })
    }

    /// Without a file: nothing is approved.
    pub(crate) fn none() -> Self {
        let changes = Topic::by_key(|change: &Change| change.method.clone());
        Self { path: PathBuf::new(), lock: watch::Sender::default(), changes, seen: Mutex::default() }
    }

    /// What is approved now, and when that changes.
    pub(crate) fn lock(&self) -> watch::Receiver<Arc<Lock>> {
        self.lock.subscribe()
    }

    /// Checks the file for as long as the future is polled. A file that cannot be read changes nothing, is reported once, and is tried
    /// again.
    pub(crate) async fn follow(&self) {
        let mut told = None;
        loop {
            tokio::time::sleep(LOOK).await;
            let now = seen(&self.path);
            if self.seen.lock().unwrap_or_else(PoisonError::into_inner).replace(now) == Some(now) && told.is_none() {
                continue;
            }
            match Lock::load(&self.path) {
                Ok(lock) => {
                    tracing::info!(target: "sealwire::backend", path = %self.path.display(), "approvals of tools were reloaded");
                    self.lock.send_replace(Arc::new(lock));
                    told = None;
                }
                Err(error) => {
                    let error = error.to_string();
                    if told.as_ref() != Some(&error) {
                        tracing::error!(target: "sealwire::backend", error, "approvals of tools stay as they were");
                        told = Some(error);
                    }
                }
            }
        }
    }
}

fn seen(path: &Path) -> Seen {
    let metadata = std::fs::metadata(path).ok()?;
    Some((metadata.len(), metadata.modified().ok()?, identity(&metadata)))
}

#[cfg(unix)]
fn identity(metadata: &Metadata) -> [i64; 3] {
    use std::os::unix::fs::MetadataExt as _;
    // The time of the last status change covers mode and owner.
    [metadata.ino().cast_signed(), metadata.ctime(), metadata.ctime_nsec()]
}

#[cfg(not(unix))]
fn identity(_: &Metadata) -> [i64; 3] {
    [0; 3]
}
