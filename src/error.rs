//! The error of a whole program: what `main` may return.
//! Never adds to the text of what went wrong.

use std::fmt;

#[cfg(feature = "client")]
use crate::client::{ClientError, CredentialsError};
#[cfg(feature = "service")]
use crate::config::ConfigError;
#[cfg(feature = "service")]
use crate::service::{BuildError, ServeError};
#[cfg(all(feature = "metrics", feature = "service"))]
use crate::telemetry::TelemetryError;

/// What ends a program that calls or serves, for a `main` that returns it. Its `Debug` is its text, since that is what Rust prints
/// then: what is wrong, and what to do about it.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The credentials cannot be used; their file is to blame.
    #[cfg(feature = "client")]
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    /// A call failed, or the client cannot connect.
    #[cfg(feature = "client")]
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The configuration cannot be used; its file or one that it names is to blame.
    #[cfg(feature = "service")]
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The methods and the policy do not fit together.
    #[cfg(feature = "service")]
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The broker or another replica prevents serving, or accepted work was not finished in time.
    #[cfg(feature = "service")]
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// Metrics and health cannot be served.
    #[cfg(all(feature = "metrics", feature = "service"))]
    #[error(transparent)]
    Telemetry(#[from] TelemetryError),
    /// The operating system does not tell this process of signals.
    #[cfg(feature = "service")]
    #[error("cannot listen for signals: {0}")]
    Signals(std::io::Error),
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
