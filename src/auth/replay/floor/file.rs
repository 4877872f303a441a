//! The state file: one time, replaced as a whole, used by one process at a time. Never mistakes damage for a first start.

use std::fs::{self, File, TryLockError};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use crate::files::may_write;

/// Why the state file cannot be used. All but [`TimeFloorError::Locked`] are about the file or its folder.
#[derive(Debug, thiserror::Error)]
pub enum TimeFloorError {
    /// Another process holds it.
    #[error(
        "state file `{}` is in use by another process: stop that one, or give each its own state file and a shared \
         replay guard",
        .0.display()
    )]
    Locked(PathBuf),
    /// Its content is not what a replay guard writes.
    #[error(
        "state file `{}` is not as a replay guard wrote it: restore it; or keep the service stopped for six minutes \
         (the longest life of a message), see that the clock is right, and delete it",
        .0.display()
    )]
    Corrupt(PathBuf),
    /// The operating system refused.
    #[error("state file `{}` cannot be {action}: {source}; check the folder, its permissions and free space", .path.display())]
    Io {
        /// The file that was touched.
        path: PathBuf,
        /// `locked`, `read` or `written`.
        action: &'static str,
        /// Why.
        source: io::Error,
    },
}

/// One line of text that holds a time.
pub(super) struct StateFile {
    path: PathBuf,
    /// Locked as long as this value lives. A separate file, because every write replaces the state file with a new one.
    lock: File,
}

impl StateFile {
    pub(super) fn open(path: &Path) -> Result<Self, TimeFloorError> {
        let lock_path = beside(path, ".lock");
        let mut options = File::options();
        options.create(true).truncate(false).write(true);
        // Anyone able to open it could lock it, and then no service would start.
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let lock = options.open(&lock_path).map_err(|source| TimeFloorError::io(&lock_path, "locked", source))?;
        // The file may exist already. If somebody else owns it, its mode is the owner's business.
        #[cfg(unix)]
        let _ = lock.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o600));
        match lock.try_lock() {
            Ok(()) => Ok(Self { path: path.to_owned(), lock }),
            Err(TryLockError::WouldBlock) => Err(TimeFloorError::Locked(path.to_owned())),
            Err(TryLockError::Error(source)) => Err(TimeFloorError::io(&lock_path, "locked", source)),
        }
    }

    /// `None` at the first start, when there is no file yet.
    pub(super) fn read(&self) -> Result<Option<u64>, TimeFloorError> {
        read(&self.path)
    }

    /// Durable when it returns. If the machine stops meanwhile, the file holds either the old time or the new one.
    pub(super) fn write(&self, fence_ms: u64) -> Result<(), TimeFloorError> {
        let new_path = beside(&self.path, ".new");
        self.replace(&new_path, &encode(fence_ms)).map_err(|source| TimeFloorError::io(&self.path, "written", source))
    }

    fn replace(&self, new_path: &Path, text: &str) -> io::Result<()> {
        let mut options = File::options();
        options.create(true).write(true).truncate(true);
        // Anyone able to write it could reopen the past.
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut new = options.open(new_path)?;
        new.write_all(text.as_bytes())?;
        new.sync_all()?;
        fs::rename(new_path, &self.path)?;
        // The rename itself is durable only once the folder is.
        File::open(folder(&self.path))?.sync_all()
    }
}

/// Whether a process could use it, except that another may already do so. Writes nothing.
pub(super) fn check(path: &Path) -> Result<(), TimeFloorError> {
    let folder = folder(path);
    fs::read_dir(folder).map(drop).map_err(|source| TimeFloorError::io(path, "locked", source))?;
    may_write(folder).map_err(|source| TimeFloorError::io(path, "written", source))?;
    read(path).map(drop)
}

fn read(path: &Path) -> Result<Option<u64>, TimeFloorError> {
    match fs::read(path) {
        Ok(bytes) => match decode(&bytes) {
            Some(floor_ms) => Ok(Some(floor_ms)),
            None => Err(TimeFloorError::Corrupt(path.to_owned())),
        },
        Err(source) if source.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(TimeFloorError::io(path, "read", source)),
    }
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Releases the lock at once. Closing the file is not enough: between fork and exec, a program that this process is just
/// starting has a copy of the descriptor, and the lock lasts until every copy is closed.
impl Drop for StateFile {
    fn drop(&mut self) {
        // If unlocking fails, the lock ends with the last copy.
        let _ = self.lock.unlock();
    }
}

impl TimeFloorError {
    fn io(path: &Path, action: &'static str, source: io::Error) -> Self {
        Self::Io { path: path.to_owned(), action, source }
    }
}

pub(super) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

pub(super) fn encode(fence_ms: u64) -> String {
    format!("{HEADING}{fence_ms:020} {:020}\n", !fence_ms)
}

/// The time is stored twice, once inverted, so that a damaged or edited digit is noticed.
pub(super) fn decode(bytes: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(bytes).ok()?;
    let fence_ms: u64 = text.strip_prefix(HEADING)?.get(..20)?.parse().ok()?;
    (text == encode(fence_ms)).then_some(fence_ms)
}

const HEADING: &str = "sealwire replay fence v1, milliseconds since 1970 and their complement: ";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_was_let_go_is_free_while_a_child_still_has_it_open() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("floor");
        let file = StateFile::open(&path).unwrap();
        // What a child has before its exec: another descriptor of the same open file.
        let inherited = file.lock.try_clone().unwrap();
        assert!(matches!(StateFile::open(&path), Err(TimeFloorError::Locked(_))));
        drop(file);
        drop(StateFile::open(&path).unwrap());
        drop(inherited);
    }
}
