//! Why a file was not read or written. Never holds any of its content.

use std::io::ErrorKind;
use std::path::PathBuf;

use super::text::TextFault;

/// Why a secret file, or one that decides something, cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SecretFileError {
    /// The file cannot be read or written.
    #[error("`{}`: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        error: std::io::Error,
    },
    /// The file is not text.
    #[error("`{}`: {fault}", path.display())]
    Text {
        /// The file.
        path: PathBuf,
        /// What it looks like.
        fault: TextFault,
    },
    /// Others than the owner may read or write the file.
    #[error("`{}` is open to others (mode {mode:04o}): run `chmod 600 {}`", path.display(), path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// Others than the owner may write the file or a folder on the path to it.
    #[error("`{}` can be written by others (mode {mode:04o}): run `chmod go-w {}`", path.display(), path.display())]
    Writable {
        /// The file or folder.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The file belongs to a user who is not trusted.
    #[error(
        "`{}` belongs to user {owner}: what decides or is secret must belong to the user that runs this, or to root (run \
         `chown`; services: or name the user in `[files] trust_users`)",
        path.display()
    )]
    Foreign {
        /// The file or folder.
        path: PathBuf,
        /// The user id.
        owner: u32,
    },
    /// A pipe, a socket or a device with a name in the file system: reading it could take forever.
    #[error("`{}` is no regular file", path.display())]
    NoFile {
        /// Its path.
        path: PathBuf,
    },
    /// A symbolic link to a missing file, where a file is to be written.
    #[error("`{}` is a symbolic link that leads nowhere: name the file itself, or remove the link", path.display())]
    Nowhere {
        /// The link.
        path: PathBuf,
    },
    /// Replacing the file would take it away from the group that reads it.
    #[error(
        "`{}` stays as it is: it is read by the group {group}, to which we cannot give a new file: run this as a member of that \
         group, or as root",
        path.display()
    )]
    Group {
        /// The file.
        path: PathBuf,
        /// The group id.
        group: u32,
    },
    /// The file is larger than any of its kind.
    #[error("`{}` is larger than {MAX_BYTES} bytes", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// The file already exists.
    #[error("`{}` exists already: remove it first, or choose another name", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
}

impl SecretFileError {
    /// Whether the file does not exist, and cannot.
    pub(crate) fn is_missing(&self) -> bool {
        matches!(self, Self::Io { error, .. } if is_missing(error))
    }
}

/// Whether the operating system says that the file does not exist, and cannot.
pub(crate) fn is_missing(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::NotFound | ErrorKind::InvalidFilename | ErrorKind::NotADirectory | ErrorKind::InvalidInput
    )
}

/// The largest file that is read, in bytes: enough for a full key ring of 100,000 records.
pub(super) const MAX_BYTES: u64 = 64 * 1024 * 1024;
