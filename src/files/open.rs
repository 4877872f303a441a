//! Opens what can be trusted: a file, or a folder with everything in it.
//! Never returns anything that was not judged.

use std::fs::File;
use std::path::Path;

use zeroize::Zeroizing;

use super::error::SecretFileError;
use super::secret::read_trusted;
use super::trust::{Content, FileTrust};
use super::walk::{self, Entry, Folder};

/// Deep enough for any folder of policies; the loader has narrower limits of its own.
const MAX_DEPTH: usize = 16;

impl FileTrust {
    /// Opens a file if it can be trusted.
    pub(crate) fn open(&self, path: &Path, content: Content) -> Result<File, SecretFileError> {
        walk::file(self, path, content)
    }

    /// Like [`read_secret`](super::read_secret), with these rules.
    ///
    /// # Errors
    /// As for [`read_secret`](super::read_secret).
    pub fn read_secret(&self, path: &Path) -> Result<Zeroizing<String>, SecretFileError> {
        read_trusted(path, Content::Secret, self)
    }

    /// Like [`read_public`](super::read_public), with these rules.
    ///
    /// # Errors
    /// As for [`read_public`](super::read_public).
    pub fn read_public(&self, path: &Path) -> Result<String, SecretFileError> {
        read_trusted(path, Content::Public, self).map(|mut text| std::mem::take(&mut *text))
    }

    /// Judges the file at `path` without reading it.
    pub(crate) fn check(&self, path: &Path, content: Content) -> Result<(), SecretFileError> {
        self.open(path, content).map(drop)
    }

    /// Judges a folder of policies and everything in it, except names that begin with a dot, which the loader skips. A
    /// missing folder is left to the loader.
    pub(crate) fn check_folder(&self, path: &Path) -> Result<(), SecretFileError> {
        match Folder::open(path, Some(self)) {
            Ok(folder) => descend(&folder, 0),
            Err(SecretFileError::Io { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

fn descend(folder: &Folder<'_>, depth: usize) -> Result<(), SecretFileError> {
    for name in folder.names().into_iter().flatten() {
        if name.as_encoded_bytes().starts_with(b".") {
            continue;
        }
        match folder.entry(&name) {
            Ok(Entry::Folder(inner)) if depth < MAX_DEPTH => descend(&inner, depth + 1)?,
            // A dangling link is left to the loader, too.
            Ok(_) | Err(SecretFileError::Io { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
