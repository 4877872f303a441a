//! Files and folders by name, on systems that have neither owners nor modes.
//! Never checks the path to them: there is nothing to judge.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use super::error::SecretFileError;
use super::trust::{Content, FileTrust};

pub(super) fn file(_: &FileTrust, path: &Path, _: Content) -> Result<File, SecretFileError> {
    File::open(path).map_err(|error| SecretFileError::Io { path: path.to_owned(), error })
}

pub(super) fn locate(_: &FileTrust, path: &Path) -> Result<PathBuf, SecretFileError> {
    path.canonicalize().map_err(|error| SecretFileError::Io { path: path.to_owned(), error })
}

/// A folder of files that decide something.
#[derive(Debug)]
pub(crate) struct Folder<'t> {
    path: PathBuf,
    trust: PhantomData<&'t FileTrust>,
}

/// An entry of a folder.
#[derive(Debug)]
pub(crate) enum Entry<'t> {
    Folder(Folder<'t>),
    File(File),
}

impl<'t> Folder<'t> {
    pub(crate) fn open(path: &Path, _: Option<&'t FileTrust>) -> Result<Self, SecretFileError> {
        let io = |error| SecretFileError::Io { path: path.to_owned(), error };
        if !std::fs::metadata(path).map_err(io)?.is_dir() {
            return Err(io(io::ErrorKind::NotADirectory.into()));
        }
        Ok(Self { path: path.to_owned(), trust: PhantomData })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn names(&self) -> io::Result<Vec<OsString>> {
        std::fs::read_dir(&self.path)?.map(|entry| Ok(entry?.file_name())).collect()
    }

    pub(crate) fn entry(&self, name: &OsStr) -> Result<Entry<'t>, SecretFileError> {
        let path = self.path.join(name);
        let io = |error| SecretFileError::Io { path: path.clone(), error };
        if std::fs::metadata(&path).map_err(io)?.is_dir() {
            return Self::open(&path, None).map(Entry::Folder);
        }
        File::open(&path).map(Entry::File).map_err(io)
    }
}
