//! Why an access token was refused, for logs and tests.
//! Never sent: to the caller every one of these looks the same.

use super::TokenAlgorithm;
use super::json::JsonFault;
use crate::name::shown;

/// Why an access token was refused. One variant per cause; the list is closed so that the compiler checks every use of
/// it.
///
/// Texts that came with the token are escaped and truncated when displayed. The token itself is never part of an error.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// Longer than 4 KiB.
    #[error("the token is longer than 4096 bytes")]
    TooLong,
    /// Not three parts separated by dots, or one of them is empty.
    #[error("the token is not three parts separated by dots")]
    Parts,
    /// A part is not unpadded, canonical base64url.
    #[error("the token's {0} is not canonical base64url without padding")]
    Encoding(&'static str),
    /// The header is not a strict JSON object.
    #[error("the token's header {0}")]
    HeaderJson(JsonFault),
    /// The header has a member other than `alg`, `kid` and `typ`.
    #[error("the token's header has the member `{}`; only alg, kid, typ and what its issuer is allowed are accepted", shown(.0))]
    HeaderMember(String),
    /// A header member is missing or not a string.
    #[error("the token's header has no string `{0}`")]
    HeaderText(&'static str),
    /// `typ` is not that of an access token of this issuer.
    #[error("the token's typ is `{}`, which is not accepted from this issuer", shown(.0))]
    Typ(String),
    /// `kid` is not 1 to 128 visible ASCII characters without quotes and backslash.
    #[error("the token's kid `{}` is not 1 to 128 visible ASCII characters without quotes and backslash", shown(.0))]
    KeyId(String),
    /// No key of the token's issuer has this `kid`.
    #[error("no key of its issuer has the kid `{}`", shown(.0))]
    UnknownKey(String),
    /// `alg` is not the one algorithm of the key.
    #[error("the token's alg is `{}`, its key is for {expected}", shown(.found))]
    Algorithm {
        /// The algorithm of the key's record.
        expected: TokenAlgorithm,
        /// What the header says.
        found: String,
    },
    /// The key is symmetric, and the rules do not allow such keys.
    #[error("the key is symmetric, and symmetric keys are not allowed here")]
    Symmetric,
    /// The signature does not hold under the key.
    #[error("the token's signature does not hold")]
    Signature,
    /// The claims are not a strict JSON object.
    #[error("the token's claims part {0}")]
    ClaimsJson(JsonFault),
    /// A required claim is missing.
    #[error("the token has no `{0}`")]
    Missing(&'static str),
    /// A claim has the wrong type, or its value is outside its grammar.
    #[error("the token's `{0}` has the wrong type or form")]
    Malformed(&'static str),
    /// `iss` is none of the issuers whose keys are known.
    #[error("no key of the issuer `{}` is known", shown(.0))]
    Issuer(String),
    /// `aud` does not contain this service's audience.
    #[error("the token is for another audience")]
    Audience,
    /// `exp` is not after `iat`, or lies too far after it.
    #[error("the token's lifetime of {0} s is not allowed")]
    Lifetime(i64),
    /// There are more than four actors.
    #[error("the token's delegation is deeper than 4")]
    Delegation,
    /// The actor has the name of the subject.
    #[error("the token's `act.sub` is its `sub`: nobody acts on behalf of a namesake")]
    SelfDelegation,
    /// The rules require a `cnf`, and the token has none.
    #[error("the token names no key (`cnf`), and one is required")]
    NoConfirmation,
    /// A claim that the issuer's tokens must have is missing, or has another text.
    #[error("the token's `{}` is not what this issuer's tokens must have", shown(.0))]
    Required(String),
    /// The claim that names the agent is missing, or names no known agent.
    #[error("the token names no agent in the claim that its issuer uses for it")]
    Agent,
    /// The issuer may not speak for this agent or subject, or give this role.
    #[error("its issuer may not speak for the {what} `{}`", shown(.text))]
    Bounds {
        /// What it is: an agent, a subject or a role.
        what: &'static str,
        /// What the token says.
        text: String,
    },
    /// `exp` has passed.
    #[error("the token has expired")]
    Expired,
    /// `nbf` lies ahead.
    #[error("the token is not valid yet")]
    NotYetValid,
    /// `iat` lies ahead.
    #[error("the token was issued in the future")]
    IssuedInFuture,
    /// The deny list names the token's `jti`.
    #[error("the token is revoked")]
    TokenDenied,
    /// The deny list names the token's subject or actor, and the token is older than that entry allows.
    #[error("tokens of this age are revoked for `{}`", shown(.0))]
    SubjectDenied(String),
    /// The deny list names the issuer's key.
    #[error("the key `{}` is revoked", shown(.0))]
    KeyDenied(String),
    /// An operator has revoked it, its subject, its actor or the key that signed it; holds which.
    #[error("an operator has revoked its {0}")]
    Revoked(&'static str),
}

impl TokenError {
    /// A name from a closed set, for what the log and metrics tell apart.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self {
            Self::TooLong => "too_long",
            Self::Parts => "parts",
            Self::Encoding(_) => "encoding",
            Self::HeaderJson(_) => "header_json",
            Self::HeaderMember(_) => "header_member",
            Self::HeaderText(_) => "header_text",
            Self::Typ(_) => "typ",
            Self::KeyId(_) => "kid",
            Self::UnknownKey(_) => "unknown_key",
            Self::Algorithm { .. } => "alg",
            Self::Symmetric => "symmetric",
            Self::Signature => "signature",
            Self::ClaimsJson(_) => "claims_json",
            Self::Missing(claim) | Self::Malformed(claim) => claim,
            Self::Issuer(_) => "issuer",
            Self::Audience => "audience",
            Self::Lifetime(_) => "lifetime",
            Self::Delegation => "delegation",
            Self::SelfDelegation => "self_delegation",
            Self::NoConfirmation => "no_confirmation",
            Self::Required(_) => "required",
            Self::Agent => "agent",
            Self::Bounds { what, .. } => what,
            Self::Expired => "expired",
            Self::NotYetValid => "not_yet_valid",
            Self::IssuedInFuture => "issued_in_future",
            Self::TokenDenied => "token_denied",
            Self::SubjectDenied(_) => "subject_denied",
            Self::KeyDenied(_) => "key_denied",
            Self::Revoked(_) => "revoked",
        }
    }
}
