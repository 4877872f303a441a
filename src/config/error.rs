//! Why a configuration cannot be loaded, or no service can be built from it. Never quotes the file.

use std::path::PathBuf;

use super::issuer::IssuerFault;
use super::ranges::OutOfRange;
use crate::auth::{
    DenylistError, KeyRingError, KeySetError, NonceLimitsError, OpenError, ServiceKeyError, ServiceKeyMissing,
    SharedOpenError, WindowError,
};
use crate::files::SecretFileError;
use crate::nats::BusError;
use crate::record::RecordError;
use crate::wire::EndpointError;

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("`{}`: {error}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        error: std::io::Error,
    },
    /// The file does not have the right format.
    #[error("`{}`, line {line}, column {column}: {reason}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// From 1.
        line: usize,
        /// From 1.
        column: usize,
        /// Which member, and what was expected. Quotes nothing of the file, which may hold a password.
        reason: String,
    },
    /// Others could have written a file, or could read a secret.
    #[error(transparent)]
    Trust(#[from] SecretFileError),
    /// A number is out of range.
    #[error("`{}`: {error}", path.display())]
    Range {
        /// The file.
        path: PathBuf,
        /// Which number, and what its range is.
        error: OutOfRange,
    },
    /// A configured file does not exist. Its name is omitted: a user who mistook the member may have written the secret itself.
    #[error("`{member}` names a file that is not there{}", made_by(member))]
    Missing {
        /// The member.
        member: String,
    },
    /// The broker's settings are wrong.
    #[error("`[{section}]`: {error}")]
    Bus {
        /// `nats`, `replay.nats` or `revocation.nats`.
        section: &'static str,
        /// What is wrong.
        error: BusError,
    },
    /// `[revocation]`, or its state file, is wrong.
    #[error("`[revocation]`: {0}")]
    Revocation(#[from] crate::auth::RevocationError),
    /// Policies come from a bucket, and nothing says which.
    #[error(
        "`source = \"bucket\"` in `[policy]` needs `[revocation]`, which names the operators and the broker that has the bucket"
    )]
    NoBucket,
    /// The policies that were kept, or whose signatures count for them, are wrong.
    #[error("`source = \"bucket\"` in `[policy]`: {0}")]
    Packages(#[from] crate::policy::PackagesError),
    /// `[telemetry]` is wrong.
    #[error("`{}`: {reason}", path.display())]
    Telemetry {
        /// The file.
        path: PathBuf,
        /// What is wrong, and what to do.
        reason: String,
    },
    /// This key asks for what this program cannot do.
    #[error("{0}: this program is built without the feature `metrics` of sealwire")]
    NoTelemetry(&'static str),
    /// Traces cannot be sent as `[telemetry]` or a variable asks for.
    #[cfg(feature = "otel")]
    #[error("traces: {0}")]
    Traces(#[from] crate::export::TraceOptionsError),
    /// `[telemetry]` asks for traces, and this program cannot send any.
    #[error("`otlp` in `[telemetry]`: this program is built without the feature `otel` of sealwire")]
    NoTraces,
    /// The prefixes are wrong.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// The time window is wrong.
    #[error(transparent)]
    Window(#[from] WindowError),
    /// The nonce limits are wrong.
    #[error(transparent)]
    NonceLimits(#[from] NonceLimitsError),
    /// The replay guard cannot be opened.
    #[error(transparent)]
    Guard(#[from] OpenError),
    /// The shared replay guard cannot be opened.
    #[error(transparent)]
    SharedGuard(#[from] SharedOpenError),
    /// The record cannot be written.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The key ring cannot be used.
    #[error(transparent)]
    Ring(#[from] KeyRingError),
    /// The key ring has more agents than the replay guard has room for: some would be refused through no fault of theirs.
    #[error(
        "the key ring has {agents} agents and the replay guard room for {room}: raise `agents` in `[replay]`, and `total` \
         with it"
    )]
    Agents {
        /// How many the ring has.
        agents: usize,
        /// [`ReplayConfig::agents`](crate::configure::ReplayConfig::agents).
        room: usize,
    },
    /// The service key cannot be used.
    #[error(transparent)]
    ServiceKey(#[from] ServiceKeyError),
    /// The service key is missing.
    #[error(transparent)]
    ServiceKeyMissing(#[from] ServiceKeyMissing),
    /// The shared guard has no service key: replicas could not trust what others say about their guards.
    #[error(
        "`[replay] guard = \"shared\"` needs `service_key` in `[keys]`, with which replicas sign what they tell each other: \
         make one with `sealwire keys new-service {0}`"
    )]
    UnsignedReplicas(String),
    /// The token keys cannot be used.
    #[error(transparent)]
    TokenKeys(#[from] KeySetError),
    /// The denylist cannot be used.
    #[error(transparent)]
    Denylist(#[from] DenylistError),
    /// An issuer's settings cannot be used.
    #[error(transparent)]
    Issuer(#[from] IssuerFault),
    /// No issuer.
    #[error("no `[[tokens.issuer]]`: without one, no access token can be accepted")]
    NoIssuer,
}

/// How to make the file that a member names.
fn made_by(member: &str) -> &'static str {
    match member {
        "keys.ring" => "; `sealwire keys new-agent` makes it",
        "keys.service_key" => "; `sealwire keys new-service` makes it",
        "keys.denylist" => "; `sealwire token revoke` makes it, and one that says `{}` revokes nothing",
        _ if member.ends_with(".jwks") => {
            "; the issuer publishes it, and `sealwire keys new-token-key` makes one to try with"
        }
        _ => "",
    }
}
