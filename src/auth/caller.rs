//! The caller of a method, as the checks established it. Data only: holding a `Caller` proves nothing; a `Verified`
//! message does.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use crate::name::Name;
use crate::wire::ProofAlgorithm;

/// The caller of a method.
///
/// Holds everything that a policy may ask about the caller. Build one by hand (see [`Caller::new`]) only to try a
/// decision; in a service it comes from a verified message.
#[derive(Debug, Clone, PartialEq)]
pub struct Caller {
    /// The owner of the key that proved the message: the token's actor (`act.sub`) if it has one, else its subject.
    pub agent: Name,
    /// The token's subject (`sub`): on whose behalf the agent calls. Equal to `agent` unless the token is delegated.
    pub subject: String,
    /// Whether the token names an actor (`act`), so that `agent` calls on behalf of `subject`.
    pub delegated: bool,
    /// The token's `roles`. Roles granted in policy files are added when the policy decides.
    pub roles: BTreeSet<String>,
    /// The access token's facts.
    pub token: TokenFacts,
    /// The key id (`kid`) of the proof.
    pub key: String,
    /// The algorithm of the proof.
    pub algorithm: ProofAlgorithm,
}

/// What the access token says besides its subject, for policies and logs.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TokenFacts {
    /// `jti`.
    pub id: String,
    /// `iss`.
    pub issuer: String,
    /// The key id of the issuer's key.
    pub key: String,
    /// Who acted before the agent (the actors inside `act.act` and deeper), most recent first. They give no rights (RFC 8693 §4.1), but
    /// none of them may approve what comes of it.
    pub via: Vec<String>,
    /// `iat`, seconds since the Unix epoch.
    pub issued_at: u64,
    /// `exp`, seconds since the Unix epoch.
    pub expires_at: u64,
    /// Every claim to which the protocol itself gives no meaning.
    pub claims: Map<String, Value>,
}

impl Caller {
    /// A caller that speaks for itself, with these roles, an HMAC key and no token facts: the starting point for a
    /// trial decision. The fields are public; change what the trial needs.
    #[must_use]
    pub fn new(agent: Name, roles: impl IntoIterator<Item = String>) -> Self {
        Self {
            subject: agent.as_str().to_owned(),
            key: format!("{agent}.k1"),
            agent,
            delegated: false,
            roles: roles.into_iter().collect(),
            token: TokenFacts::default(),
            algorithm: ProofAlgorithm::Hs256,
        }
    }
}
