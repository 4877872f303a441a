//! Opening what may be believed: a file, or a folder with all that is in it.
//! Never hands out what was not judged.

use std::fs::File;
use std::path::Path;

use zeroize::Zeroizing;

use super::error::SecretFileError;
use super::secret::read_trusted;
use super::trust::{Content, FileTrust};
use super::walk::{self, Entry, Folder};

/// Deep and many enough for any folder of policies; the loader has narrower bounds of its own.
const MAX_DEPTH: usize = 16;

impl FileTrust {
    /// Opens a file that may be believed.
    pub(crate) fn open(&self, path: &Path, content: Content) -> Result<File, SecretFileError> {
        walk::file(self, path, content)
    }

    /// As [`read_secret`](super::read_secret), under these rules.
    ///
    /// # Errors
    /// As there.
    pub fn read_secret(&self, path: &Path) -> Result<Zeroizing<String>, SecretFileError> {
        read_trusted(path, Content::Secret, self)
    }

    /// As [`read_public`](super::read_public), under these rules.
    ///
    /// # Errors
    /// As there.
    pub fn read_public(&self, path: &Path) -> Result<String, SecretFileError> {
        read_trusted(path, Content::Public, self).map(|mut text| std::mem::take(&mut *text))
    }

    /// Judges the file at `path` without reading it.
    pub(crate) fn check(&self, path: &Path, content: Content) -> Result<(), SecretFileError> {
        self.open(path, content).map(drop)
    }

    /// Judges a folder of policies with everything in it but names that begin with a dot, which its loader passes over. A
    /// folder that is not there is the loader's matter.
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
            // A link that leads nowhere is the loader's matter, too.
            Ok(_) | Err(SecretFileError::Io { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
