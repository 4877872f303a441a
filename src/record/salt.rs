//! The salt of a month: equal values of one parameter can be found, and nobody without the salt can try values out.
//! Never leaves the record's folder.

use std::fmt;
use std::path::{Path, PathBuf};

use hmac::{Hmac, KeyInit as _, Mac as _};
use serde_json::Value;
use sha2::Sha256;
use zeroize::Zeroizing;

use super::options::RecordError;
use crate::files::{SecretFileError, read_secret, write_secret};
use crate::jose::{b64, unb64_array};

/// The salt under which the values of `audit = "hash"` are digested. Without its file the digests of its month say nothing any more.
#[derive(Clone)]
pub struct Salt {
    month: String,
    key: Zeroizing<[u8; 32]>,
}

impl fmt::Debug for Salt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Salt").field("month", &self.month).finish_non_exhaustive()
    }
}

impl Salt {
    /// What the names of their files begin with.
    pub(super) const FILE: &'static str = "salt-";

    /// Reads the salt of a month, such as `2026-11`, from the record's folder.
    ///
    /// # Errors
    /// [`RecordError::File`].
    pub fn read(folder: &Path, month: &str) -> Result<Self, RecordError> {
        let path = Self::path(folder, month);
        let text = read_secret(&path)?;
        let damaged = || RecordError::Io { path, error: std::io::ErrorKind::InvalidData.into() };
        let key = unb64_array::<32>(text.trim()).ok_or_else(damaged)?;
        Ok(Self { month: month.to_owned(), key: Zeroizing::new(key) })
    }

    /// Reads the salt of a point in time, in milliseconds since the Unix epoch, and makes it if there is none.
    pub(super) fn open(folder: &Path, at_ms: u64) -> Result<Self, RecordError> {
        let month = Self::month_of(at_ms);
        let path = Self::path(folder, &month);
        if !path.exists() {
            let mut key = Zeroizing::new([0; 32]);
            aws_lc_rs::rand::fill(key.as_mut())
                .map_err(|_| RecordError::Io { path: path.clone(), error: std::io::ErrorKind::Other.into() })?;
            match write_secret(&path, &Zeroizing::new(b64(*key)), false) {
                // Another replica was faster.
                Ok(()) | Err(SecretFileError::Exists { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Self::read(folder, &month)
    }

    fn path(folder: &Path, month: &str) -> PathBuf {
        folder.join(format!("{}{month}", Self::FILE))
    }

    pub(super) fn month_of(at_ms: u64) -> String {
        let seconds = i64::try_from(at_ms / 1_000).unwrap_or(i64::MAX);
        let time = time::OffsetDateTime::from_unix_timestamp(seconds).unwrap_or(time::OffsetDateTime::UNIX_EPOCH);
        format!("{:04}-{:02}", time.year(), u8::from(time.month()))
    }

    /// The month, such as `2026-11`.
    #[must_use]
    pub fn month(&self) -> &str {
        &self.month
    }

    /// The digest of a parameter's value: HMAC-SHA256 over method, parameter and value (as JSON with sorted members), with a NUL in
    /// between, in base64url.
    #[must_use]
    pub fn digest(&self, method: &str, param: &str, value: &Value) -> String {
        // HMAC takes keys of any length.
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&*self.key) else { return String::new() };
        for part in [method, "\0", param, "\0", &value.to_string()] {
            mac.update(part.as_bytes());
        }
        b64(mac.finalize().into_bytes())
    }
}
