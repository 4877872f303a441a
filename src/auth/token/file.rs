//! Reads and creates the files that keys and deny lists are kept in.
//! Never reads a secret that others on the machine can read, never reads without a bound, never overwrites a key.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::path::Path;

use zeroize::Zeroizing;

use crate::files::{Content, FileTrust, SecretFileError, TextFault, decode_text};

/// Why a key file or a deny list could not be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The operating system refused.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The file is longer than its kind may be.
    #[error("longer than {0} bytes")]
    TooLarge(usize),
    /// The file is not text.
    #[error(transparent)]
    Text(#[from] TextFault),
    /// Others could have written the file, or could read the secret in it.
    #[error(transparent)]
    Trust(#[from] SecretFileError),
}

/// The text of a file that nobody untrusted could have written.
pub(crate) struct Opened<'a> {
    pub(crate) text: Zeroizing<String>,
    file: File,
    path: &'a Path,
    trust: &'a FileTrust,
}

impl<'a> Opened<'a> {
    /// Reads at most `limit` bytes of UTF-8 text.
    pub(crate) fn read(path: &'a Path, limit: usize, trust: &'a FileTrust) -> Result<Self, FileError> {
        let file = trust.open(path, Content::Public).map_err(|error| match error {
            SecretFileError::Io { error, .. } => FileError::Io(error),
            error => error.into(),
        })?;
        // One allocation, so that no copy of a secret is left behind by a growing buffer.
        let mut bytes = Zeroizing::new(Vec::with_capacity(limit.saturating_add(1)));
        let bound = u64::try_from(limit).unwrap_or(u64::MAX).saturating_add(1);
        (&file).take(bound).read_to_end(&mut bytes)?;
        if bytes.len() > limit {
            return Err(FileError::TooLarge(limit));
        }
        Ok(Self { text: decode_text(bytes)?, file, path, trust })
    }

    /// Refuses a file that anyone but its owner may read. To be called if the text turns out to hold a secret.
    pub(crate) fn require_private(&self) -> Result<(), FileError> {
        Ok(self.trust.judge(self.path, &self.file, Content::Secret)?)
    }
}

/// Creates a file that only its owner can read; an existing file is left alone and is an error.
pub(crate) fn create_private(path: &Path, text: &str) -> Result<(), FileError> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    Ok(())
}
