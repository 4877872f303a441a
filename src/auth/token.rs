//! Access tokens: is this text a token that our issuer made, for us, now, and that nobody has revoked.
//! Never trusts a word of a token before its signature holds, and never decides what its bearer may do.

mod claims;
mod denylist;
mod error;
mod fetch;
mod file;
mod header;
mod issue;
mod json;
mod key;
mod keys;
mod path;
mod roca;
mod rules;
mod verifier;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

pub use denylist::{Denylist, DenylistError};
pub use error::TokenError;
pub use fetch::{FetchError, KeySource, KeySourceState, KeySourceStatus};
pub use file::FileError;
pub use header::{Untrusted, decode_untrusted};
pub use issue::{IssueError, IssueRequest, TokenIssuer};
pub use json::JsonFault;
pub use key::{KeyFault, TokenAlgorithm};
pub use keys::{KeyRules, KeySet, KeySetError, LeftOut};
pub use path::{ClaimPath, Pattern, PatternError};
pub use rules::{AgentRules, Bounds, HeaderMember, IssuerRules, RoleFormat, RoleRules, TokenId, TokenType};
pub use verifier::TokenVerifier;

/// What a token must satisfy beside its signature.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct TokenRules {
    /// The one audience that `aud` must name: `<environment>/<service>` unless configured otherwise.
    pub audience: String,
    /// How far the issuer's clock and ours may differ, in seconds; 5 by default. More than 30 counts as 30.
    pub leeway_s: u64,
    /// The longest allowed `exp - iat`, in seconds; 3600 by default. More than a day counts as a day.
    pub max_lifetime_s: u64,
    /// Whether `typ` may also be `JWT`, for issuers that do not follow RFC 9068. Off by default: with it on, an ID
    /// token of the same issuer and audience passes for an access token.
    pub accept_plain_jwt_typ: bool,
    /// Whether every token must name the key of its bearer (`cnf`), so that a stolen token is useless with another
    /// key. Off by default.
    pub require_cnf: bool,
    /// Whether symmetric (HS256) keys are used. Refused by default: whoever can verify with one can also issue.
    pub symmetric: Symmetric,
    /// What is different about single issuers, by `iss`.
    pub issuers: BTreeMap<String, IssuerRules>,
}

impl TokenRules {
    /// The largest [`TokenRules::leeway_s`]: the largest clock difference that the wire protocol tolerates anywhere.
    pub const MAX_LEEWAY_S: u64 = 30;
    /// The largest [`TokenRules::max_lifetime_s`], a day: beyond that a token is a password.
    pub const MAX_LIFETIME_S: u64 = 86_400;

    /// The default rules for a service with this audience.
    #[must_use]
    pub fn new(audience: impl Into<String>) -> Self {
        Self {
            audience: audience.into(),
            leeway_s: 5,
            max_lifetime_s: 3600,
            accept_plain_jwt_typ: false,
            require_cnf: false,
            symmetric: Symmetric::Refused,
            issuers: BTreeMap::new(),
        }
    }

    /// The rules of one issuer.
    fn of(&self, issuer: &str) -> &IssuerRules {
        self.issuers.get(issuer).unwrap_or_else(|| IssuerRules::usual())
    }

    /// These rules with every number inside its range, so that a slip of the pen does not make tokens immortal.
    fn bounded(mut self) -> Self {
        self.leeway_s = self.leeway_s.min(Self::MAX_LEEWAY_S);
        self.max_lifetime_s = self.max_lifetime_s.min(Self::MAX_LIFETIME_S);
        for issuer in self.issuers.values_mut() {
            issuer.max_lifetime_s = issuer.max_lifetime_s.map(|longest| longest.min(Self::MAX_LIFETIME_S));
        }
        self
    }
}

/// Whether symmetric issuer keys (`oct`, HS256) are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Symmetric {
    /// A set with such a key is refused.
    #[default]
    Refused,
    /// A set of only such keys is taken, with a warning in the log.
    Allowed,
}

/// The claims of a token that passed every check.
///
/// Holding one proves nothing about a message: the token may have been sent by anyone who saw it. The proof beside it
/// binds it to a key.
#[derive(Debug, Clone, PartialEq)]
pub struct AccessToken {
    /// `iss`.
    pub issuer: String,
    /// The key id (`kid`) of the issuer's key that signed it.
    pub key_id: String,
    /// `jti`, or what stands for it with this issuer: 1 to 128 visible ASCII characters.
    pub id: String,
    /// base64url(SHA-256) of the token's text up to its second dot.
    pub digest: String,
    /// `sub`: 1 to 128 visible ASCII characters. Where an issuer names agents in another claim and the token is the
    /// agent's own, it is the agent's name, and `sub` as the issuer wrote it is in `claims`.
    pub subject: String,
    /// `act.sub`, or the claim that stands for it with this issuer, if the token is delegated: who acts for the subject.
    pub actor: Option<String>,
    /// The actors inside `act.act` and deeper, most recent first: for the audit log only (RFC 8693 §4.1 forbids
    /// deciding on them).
    pub prior_actors: Vec<String>,
    /// `iat`, seconds since the Unix epoch.
    pub issued_at: u64,
    /// `exp`, seconds since the Unix epoch.
    pub expires_at: u64,
    /// `nbf`, seconds since the Unix epoch.
    pub not_before: Option<u64>,
    /// `roles`: at most 64, each 1 to 64 of `[A-Za-z0-9_.:/-]`.
    pub roles: BTreeSet<String>,
    /// `cnf`: the key that the bearer must prove. Comparing it is up to whoever knows the bearer's key.
    pub cnf: Option<Confirmation>,
    /// Every other claim, `may_act` and `client_id` included. Its numbers are integers from 0 to 2^53-1.
    pub claims: Map<String, Value>,
}

impl AccessToken {
    /// Who must hold the key of the proof: the actor if there is one, else the subject.
    #[must_use]
    pub fn owner(&self) -> &str {
        self.actor.as_deref().unwrap_or(&self.subject)
    }
}

/// The key that a token is bound to (RFC 7800). At least one member is present, and each one that is must match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Confirmation {
    /// The `kid` of the key: 1 to 128 of `[A-Za-z0-9._:/-]`.
    pub kid: Option<String>,
    /// The RFC 7638 thumbprint of the public key: 32 bytes in base64url.
    pub jkt: Option<String>,
}

impl Confirmation {
    /// Whether the key with this id, and this thumbprint if it is a public key, is the one that the token names.
    ///
    /// Each member that is present must match: a `jkt` never matches a symmetric key, which has no thumbprint.
    #[must_use]
    pub fn names(&self, kid: &str, thumbprint: Option<&str>) -> bool {
        let kid_holds = self.kid.as_deref().is_none_or(|named| named == kid);
        let jkt_holds = self.jkt.as_deref().is_none_or(|named| Some(named) == thumbprint);
        // One with neither member cannot come out of a token; made by hand, it names nothing.
        kid_holds && jkt_holds && (self.kid.is_some() || self.jkt.is_some())
    }
}

/// Longest text of a token, in bytes; before anything of it is read.
pub(crate) const MAX_TOKEN_LEN: usize = 4096;
