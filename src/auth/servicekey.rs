//! The file that holds a service's signing key. Only its owner can read it.
//! Never prints the seed.

use std::path::Path;

use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::fault;
use crate::files::{Content, FileTrust, SecretFileError, read_trusted, write_secret};
use crate::jose::{b64, unb64};
use crate::settings::Setting;
use crate::wire::{Audience, KeyError, ServiceKey};

/// Why a service key file cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServiceKeyError {
    /// The file cannot be read or written, or others can read it.
    #[error(transparent)]
    File(#[from] SecretFileError),
    /// Not a service key.
    #[error("`{path}` is not a service key ({reason}): make one with `sealwire keys new-service`")]
    Format {
        /// The file.
        path: String,
        /// What is wrong.
        reason: String,
    },
}

#[derive(Serialize, Deserialize, Setting)]
#[serde(deny_unknown_fields)]
struct ServiceKeyFile {
    kid: String,
    alg: String,
    seed: Zeroizing<String>,
    #[serde(default)]
    x: Option<String>,
}

/// Reads the key of `audience`.
///
/// # Errors
/// [`ServiceKeyError`].
pub fn read_service_key(path: &Path, audience: &Audience) -> Result<ServiceKey, ServiceKeyError> {
    read_trusted_service_key(path, audience, &FileTrust::default())
}

/// As [`read_service_key`], and also accepts files of the users and groups in `trust`.
pub(crate) fn read_trusted_service_key(
    path: &Path,
    audience: &Audience,
    trust: &FileTrust,
) -> Result<ServiceKey, ServiceKeyError> {
    let text = read_trusted(path, Content::Secret, trust)?;
    let wrong = |reason: String| ServiceKeyError::Format { path: path.display().to_string(), reason };
    let file: ServiceKeyFile = fault::json(&text).map_err(|fault| wrong(fault.to_string()))?;
    if file.alg != "EdDSA" {
        return Err(wrong("`alg` is not `EdDSA`".to_owned()));
    }
    let seed = Zeroizing::new(unb64(&file.seed).ok_or_else(|| wrong(KeyError::Encoding.to_string()))?);
    let seed: [u8; 32] = seed.as_slice().try_into().map_err(|_| wrong(KeyError::Ed25519.to_string()))?;
    let key = ServiceKey::new(&file.kid, audience, seed)
        .map_err(|error| wrong(format!("`kid` must be `svc:{audience}:<n>`, and the seed an Ed25519 seed: {error}")))?;
    match file.x {
        Some(x) if x != key.public().x() => Err(wrong("`x` is not the public key of `seed`".to_owned())),
        _ => Ok(key),
    }
}

/// Writes a key with mode 0600; an existing file is an error.
///
/// # Errors
/// [`ServiceKeyError::File`].
pub fn write_service_key(path: &Path, key: &ServiceKey) -> Result<(), ServiceKeyError> {
    let file = ServiceKeyFile {
        kid: key.kid().to_owned(),
        alg: "EdDSA".to_owned(),
        seed: Zeroizing::new(b64(key.expose())),
        x: Some(key.public().x()),
    };
    let text = Zeroizing::new(serde_json::to_string_pretty(&file).unwrap_or_default());
    Ok(write_secret(path, &text, false)?)
}
