//! What a token says once it has been verified. Data only: holding one proves nothing about a message.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use crate::auth::revocation::Kind;
use crate::auth::{Caller, TokenFacts};
use crate::name::Name;
use crate::wire::ProofAlgorithm;

/// The claims of a token that passed every check.
///
/// Holding one proves nothing about a message: anyone who saw the token may have sent it. The proof beside it binds it
/// to a key.
#[derive(Debug, Clone, PartialEq)]
pub struct AccessToken {
    /// `iss`.
    pub issuer: String,
    /// The key id (`kid`) of the issuer's key that signed it.
    pub key_id: String,
    /// `jti`, or what this issuer uses instead: 1 to 128 visible ASCII characters.
    pub id: String,
    /// base64url(SHA-256) of the token's text up to its second dot.
    pub digest: String,
    /// `sub`: 1 to 128 visible ASCII characters. If the issuer names agents in another claim and the token is the
    /// agent's own, this is the agent's name, and `claims` has `sub` as the issuer wrote it.
    pub subject: String,
    /// `act.sub`, or the claim that this issuer uses instead, if the token is delegated: who acts for the subject.
    pub actor: Option<String>,
    /// The actors inside `act.act` and deeper, most recent first: for the audit log only (RFC 8693 §4.1 forbids
    /// deciding on them).
    pub prior_actors: Vec<String>,
    /// `iat`, seconds since the Unix epoch; a fraction is left out.
    pub issued_at: u64,
    /// The same, a fraction counting as a whole second: from then on, the token is not from the future.
    pub issued_by: u64,
    /// `exp`, seconds since the Unix epoch.
    pub expires_at: u64,
    /// `nbf`, seconds since the Unix epoch.
    pub not_before: Option<u64>,
    /// `roles`: at most 64, each 1 to 64 of `[A-Za-z0-9_.:/-]`.
    pub roles: BTreeSet<String>,
    /// `cnf`: the key that the bearer must prove. Comparing it is up to the code that knows the bearer's key.
    pub cnf: Option<Confirmation>,
    /// Every other claim, `may_act` and `client_id` included. Its numbers are integers from 0 to 2^53-1.
    pub claims: Map<String, Value>,
}

impl AccessToken {
    /// Who must own the key of the proof: the actor if there is one, otherwise the subject.
    #[must_use]
    pub fn owner(&self) -> &str {
        self.actor.as_deref().unwrap_or(&self.subject)
    }

    /// The caller with this token and a key with this id. The agent is the token's owner.
    pub(crate) fn caller(&self, agent: &Name, key: &str, algorithm: ProofAlgorithm) -> Caller {
        Caller {
            agent: agent.clone(),
            subject: self.subject.clone(),
            delegated: self.actor.is_some(),
            roles: self.roles.clone(),
            token: TokenFacts {
                id: self.id.clone(),
                issuer: self.issuer.clone(),
                key: self.key_id.clone(),
                via: self.prior_actors.clone(),
                issued_at: self.issued_at,
                expires_at: self.expires_at,
                claims: self.claims.clone(),
            },
            key: key.to_owned(),
            algorithm,
        }
    }

    /// What an operator can have revoked of it, by every name that it has: nobody need know which of them its issuer uses. Nested actors
    /// no longer act.
    pub fn names(&self) -> impl Iterator<Item = (Kind, &str)> {
        let claimed = |name: &str| self.claims.get(name).and_then(Value::as_str);
        let names = [
            (Kind::Key, Some(self.key_id.as_str())),
            (Kind::Token, Some(self.id.as_str())),
            (Kind::Token, Some(self.digest.as_str())),
            (Kind::Token, claimed("jti")),
            (Kind::Subject, Some(self.subject.as_str())),
            (Kind::Subject, self.actor.as_deref()),
            (Kind::Subject, claimed("sub")),
        ];
        names.into_iter().filter_map(|(kind, name)| Some((kind, name?)))
    }
}

/// The key that a token is bound to (RFC 7800). At least one member is present, and every member present must match.
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
        // One with neither member cannot come from a token; made by hand, it names nothing.
        kid_holds && jkt_holds && (self.kid.is_some() || self.jkt.is_some())
    }
}
