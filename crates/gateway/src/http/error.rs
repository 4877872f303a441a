//! Why a gateway cannot be opened, and what it leaves behind when it ends.
//! Never names a secret.

use super::identity::CallersError;
use crate::seal::SealError;

/// A gateway that cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Callers could not be authenticated.
    #[error(transparent)]
    Callers(#[from] CallersError),
    /// The key that seals values for callers.
    #[error(transparent)]
    Seal(#[from] SealError),
    /// The memory of used proofs and tickets.
    #[error(transparent)]
    Once(#[from] sealwire::errors::OpenError),
    /// The listener's certificate or key, or the CA of the other replicas; with the reason.
    #[error("{0}")]
    Tls(String),
}

/// Requests in progress did not end in time: how many connections were cut off.
#[derive(Debug, thiserror::Error)]
#[error("requests did not end in time and are cancelled; connections cut off: {0}")]
pub struct CutOff(pub usize);
