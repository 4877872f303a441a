//! Why a file was not read or written. Never holds anything of what is in it.

use std::io::ErrorKind;
use std::path::PathBuf;

/// A file of secrets cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SecretFileError {
    /// It cannot be read or written.
    #[error("`{}`: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the operating system says.
        error: std::io::Error,
    },
    /// Others than its owner may read or write it.
    #[error("`{}` is open to others (mode {mode:04o}): run `chmod 600 {}`", path.display(), path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// Others than its owner may write it, or the folder that it lies in.
    #[error("`{}` can be written by others (mode {mode:04o}): run `chmod go-w {}`", path.display(), path.display())]
    Writable {
        /// The file or folder.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// It belongs to somebody who is not trusted.
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
    /// A pipe, a socket or a device under a name of its own: nobody could tell how long reading it takes.
    #[error("`{}` is no regular file", path.display())]
    NoFile {
        /// What is there.
        path: PathBuf,
    },
    /// A symbolic link to a file that is not there, in the place of a file that is to be written.
    #[error("`{}` is a symbolic link that leads nowhere: name the file itself, or remove the link", path.display())]
    Nowhere {
        /// The link.
        path: PathBuf,
    },
    /// The group that reads it would lose it.
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
    /// Larger than any file of its kind.
    #[error("`{}` is larger than {MAX_BYTES} bytes", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// It exists already.
    #[error("`{}` exists already: remove it first, or choose another name", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
}

impl SecretFileError {
    /// Whether there is no such file, nor could there be.
    pub(crate) fn is_missing(&self) -> bool {
        matches!(self, Self::Io { error, .. } if is_missing(error))
    }
}

/// Whether the operating system says that there is no such file, nor could there be.
pub(crate) fn is_missing(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::NotFound | ErrorKind::InvalidFilename | ErrorKind::NotADirectory | ErrorKind::InvalidInput
    )
}

/// The largest file of secrets in bytes: a full key ring of 100,000 records.
pub(super) const MAX_BYTES: u64 = 64 * 1024 * 1024;
