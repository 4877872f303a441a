//! The folder of a service: the names of its files, and those of its keys that are new.
//! Never replaces a key that is there.

use std::path::{Path, PathBuf};

use sealwire::internal::auth::{TokenIssuer, write_service_key};
use sealwire::internal::files::{write_public, write_secret};
use sealwire::internal::wire::ServiceKey;

use crate::error::{Blame, LabError, OrFail as _};

/// The configuration.
pub const CONFIG: &str = "sealwire.toml";
/// The folder of policy files.
pub const POLICIES: &str = "policies";
/// The key that signs access tokens.
pub const TOKEN_KEY: &str = "token-key.json";
/// Its public half, by which the service knows the issuer.
pub const JWKS: &str = "jwks.json";
/// Revoked tokens, subjects and keys.
pub const DENYLIST: &str = "denylist.json";
/// The service's own key.
pub const SERVICE_KEY: &str = "service-key.json";
/// The keys of its agents.
pub const RING: &str = "ring.json";

/// The credentials of an agent.
#[must_use]
pub fn credentials(folder: &Path, agent: &str) -> PathBuf {
    folder.join(format!("{agent}.creds.json"))
}

/// The access token of an agent.
#[must_use]
pub fn token(folder: &Path, agent: &str) -> PathBuf {
    folder.join(format!("{agent}.jwt"))
}

/// Writes the keys of a new service and of the issuer of its tokens, and a deny list that revokes nothing. Secrets are for their owner
/// alone.
///
/// # Errors
/// [`LabError`]: a file cannot be written, or is there already.
pub fn write_keys(folder: &Path, issuer: &TokenIssuer, service_key: &ServiceKey, ring: &str) -> Result<(), LabError> {
    issuer.save(folder.join(TOKEN_KEY)).or_fail(Blame::Input)?;
    write_public(&folder.join(JWKS), &issuer.public_jwks()).or_fail(Blame::Input)?;
    write_public(&folder.join(DENYLIST), "{}\n").or_fail(Blame::Input)?;
    write_service_key(&folder.join(SERVICE_KEY), service_key).or_fail(Blame::Input)?;
    write_secret(&folder.join(RING), ring, false).or_fail(Blame::Input)
}
