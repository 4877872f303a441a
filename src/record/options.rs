//! `[record]`: where the record is, and how much of it is kept.
//! Never opens a file.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use crate::files::SecretFileError;
use crate::settings::Setting;

/// `[record]`
#[derive(Debug, Clone, Deserialize, Setting)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct RecordConfig {
    /// The folder of the record (docs/records.md). Made if it is missing; a service does not start if others could write to it.
    pub folder: PathBuf,
    /// A file that would become larger is followed by another one.
    #[setting(unit = "bytes", min = 64 * 1024, max = 1_u64 << 40, default = FILE_BYTES)]
    pub file_bytes: Option<u64>,
    /// A file that is older is followed by another one.
    #[setting(unit = "seconds", min = 1, max = 31_536_000, default = FILE_AGE_S)]
    pub file_age_s: Option<u64>,
    /// Files that were last written to before that are deleted.
    #[setting(unit = "days", min = 1, max = 36_500, default = KEEP.as_secs() / 86_400)]
    pub keep_days: Option<u64>,
    /// The most bytes of all files in the folder; the oldest are deleted first, and the one in use never. Leave room for two files.
    #[setting(unit = "bytes", min = 128 * 1024, max = 1_u64 << 50, default = KEEP_BYTES)]
    pub keep_bytes: Option<u64>,
}

const FILE_BYTES: u64 = 64 * 1024 * 1024;
const FILE_AGE_S: u64 = 86_400;
/// Thirteen months.
const KEEP: Duration = Duration::from_secs(400 * 86_400);
const KEEP_BYTES: u64 = 10 * 1024 * 1024 * 1024;

impl RecordConfig {
    /// A record in this folder, with the defaults.
    #[must_use]
    pub fn in_folder(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into(), file_bytes: None, file_age_s: None, keep_days: None, keep_bytes: None }
    }

    pub(super) fn file_bytes(&self) -> u64 {
        self.file_bytes.unwrap_or(FILE_BYTES)
    }

    pub(super) fn file_age(&self) -> Duration {
        Duration::from_secs(self.file_age_s.unwrap_or(FILE_AGE_S))
    }

    pub(super) fn keep(&self) -> Duration {
        self.keep_days.map_or(KEEP, |days| Duration::from_secs(days.saturating_mul(86_400)))
    }

    pub(super) fn keep_bytes(&self) -> u64 {
        self.keep_bytes.unwrap_or(KEEP_BYTES)
    }
}

/// The record cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// The folder or the salt in it.
    #[error("the record: {0}")]
    File(#[from] SecretFileError),
    /// A file that cannot be made.
    #[error("the record: `{}`: {error}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// No thread to write on.
    #[error("the record: no thread to write it on: {0}")]
    Thread(std::io::Error),
}
