//! The algorithms of proofs. A closed set: no other algorithm is ever looked up.

use std::fmt;

/// How a message was proved to come from its caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ProofAlgorithm {
    /// HMAC with SHA-256 under the key derived for this agent and service; `HS256` on the wire.
    Hs256,
    /// Ed25519 under the agent's own key pair; `EdDSA` on the wire.
    EdDsa,
}

impl ProofAlgorithm {
    /// The JOSE name, compared byte for byte.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Hs256 => "HS256",
            Self::EdDsa => "EdDSA",
        }
    }
}

impl fmt::Display for ProofAlgorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
