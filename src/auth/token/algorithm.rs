//! The algorithms of access tokens. A closed set: no other one is ever looked up.

use std::fmt;

use serde::Deserialize;

use crate::settings::Setting;

/// The algorithms of access tokens. A key is for exactly one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize, Setting)]
pub enum TokenAlgorithm {
    /// Ed25519.
    #[serde(rename = "EdDSA")]
    EdDsa,
    /// ECDSA on P-256 with SHA-256.
    #[serde(rename = "ES256")]
    Es256,
    /// RSA PKCS#1 v1.5 with SHA-256.
    #[serde(rename = "RS256")]
    Rs256,
    /// RSA PSS with SHA-256.
    #[serde(rename = "PS256")]
    Ps256,
    /// HMAC with SHA-256: every verifier can issue.
    #[serde(rename = "HS256")]
    Hs256,
}

impl TokenAlgorithm {
    /// The JOSE name, compared byte for byte.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::EdDsa => "EdDSA",
            Self::Es256 => "ES256",
            Self::Rs256 => "RS256",
            Self::Ps256 => "PS256",
            Self::Hs256 => "HS256",
        }
    }

    pub(super) fn from_name(name: &str) -> Option<Self> {
        [Self::EdDsa, Self::Es256, Self::Rs256, Self::Ps256, Self::Hs256].into_iter().find(|a| a.as_str() == name)
    }

    /// The `kty` and `crv` that keys for this algorithm have.
    pub(super) fn key_type(self) -> (&'static str, Option<&'static str>) {
        match self {
            Self::EdDsa => ("OKP", Some("Ed25519")),
            Self::Es256 => ("EC", Some("P-256")),
            Self::Rs256 | Self::Ps256 => ("RSA", None),
            Self::Hs256 => ("oct", None),
        }
    }
}

impl fmt::Display for TokenAlgorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
