//! A token that a caller has presented, after it was verified.
//! Never shows its text, except to whoever makes a token for the bus from it, or passes on a message that its bearer has signed.

use std::fmt::{self, Write as _};
use std::sync::Arc;

use sealwire::internal::auth::AccessToken;
use serde_json::Value;
use zeroize::Zeroizing;

/// A token that a caller has presented, verified.
pub(in crate::http) struct PresentedToken {
    pub(super) text: Zeroizing<String>,
    pub(super) digest: [u8; 32],
    pub(super) scheme: Scheme,
    pub(super) token: Arc<AccessToken>,
}

/// The authentication scheme of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scheme {
    /// Whoever has the token may use it (RFC 6750).
    Bearer,
    /// With a proof of the key that it is bound to (RFC 9449 §7.1).
    Dpop,
}

impl PresentedToken {
    /// The caller's name. Two issuers may use the same name for different people.
    pub(super) fn owner(&self) -> String {
        format!("{} {}", self.token.issuer, self.token.subject)
    }

    /// The thumbprint of the key that it is bound to; empty if there is none.
    pub(super) fn thumbprint(&self) -> &str {
        self.token.cnf.as_ref().and_then(|cnf| cnf.jkt.as_deref()).unwrap_or_default()
    }

    /// Appends its digest to a name.
    pub(super) fn distinguish(&self, name: &mut String) {
        for byte in &self.digest {
            // Writing to a `String` cannot fail.
            let _ = write!(name, "{byte:02x}");
        }
    }

    /// Whether `scope` or `scp`, words in a string or, with some providers, a list, names the service.
    pub(super) fn has_scope(&self, service: &str) -> bool {
        match self.token.claims.get("scope").or_else(|| self.token.claims.get("scp")) {
            Some(Value::String(words)) => words.split(' ').any(|word| word == service),
            Some(Value::Array(words)) => words.iter().any(|word| word == service),
            _ => false,
        }
    }
}

impl Scheme {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Bearer => "Bearer",
            Self::Dpop => "DPoP",
        }
    }
}

impl fmt::Debug for PresentedToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PresentedToken").field("subject", &self.token.subject).finish_non_exhaustive()
    }
}
