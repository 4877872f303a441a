//! Which definitions of tools and prompts an operator has approved: `tools.lock.toml`, and what it says of each.
//! Never takes a tool or prompt for approved if its definition differs in anything from the one that was approved.

mod lock;
mod shown;

use std::fs::Metadata;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sealwire::Topic;
use serde::Serialize;
use tokio::sync::watch;

pub use self::lock::{Approval, ApprovalState, Kind, Lock, LockError, Pin};
pub use self::shown::{differences, is_hidden, shown, whole};

/// A change for subscribers: a tool or prompt can be used now, or no longer.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Change {
    pub(crate) method: String,
    /// The prompt, which that method gets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prompt: Option<String>,
    pub(crate) standing: &'static str,
}

impl Change {
    fn key(&self) -> String {
        // No method name has a blank.
        format!("{} {}", self.method, self.prompt.as_deref().unwrap_or_default())
    }
}

/// The lock file, read again when it changes.
#[derive(Debug)]
pub(crate) struct Pins {
    path: PathBuf,
    lock: watch::Sender<Arc<Lock>>,
    /// Where subscribers learn of changes.
    pub(crate) changes: Topic<Change>,
    /// The state of the file when it was read.
    seen: Mutex<Option<FileState>>,
}

/// Changes whenever the file does, or who may read and write it.
type FileState = Option<(u64, std::time::SystemTime, [i64; 3])>;

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
        let changes = Topic::by_key(Change::key);
        Ok(Self {
            path: path.to_owned(),
            lock: watch::Sender::new(Arc::new(lock)),
            changes,
            seen: Mutex::new(Some(seen)),
        })
    }

    /// Without a file: nothing is approved.
    pub(crate) fn none() -> Self {
        let changes = Topic::by_key(Change::key);
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

fn seen(path: &Path) -> FileState {
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
