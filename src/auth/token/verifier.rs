//! Judges access tokens: signature, claims, time and revocation, with a cache of what was verified before.
//! Never lets the cache answer for what may have changed: times, revocations and the key set are checked every time.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwap;
use moka::sync::Cache;
use serde_json::Value;

use super::denylist::DENIED_FOR_S;
use super::fetch::Fetching;
use super::header::{Compact, Header};
use super::keys::KeySetGeneration;
use super::{
    AccessToken, Denylist, KeySet, KeySource, KeySourceStatus, Symmetric, TokenAlgorithm, TokenError, TokenRules,
    TokenType, claims,
};
use crate::auth::Caller;
use crate::auth::revocation::Revocations;
use crate::jose::sha256;
use crate::name::Name;
use crate::wire::ProofAlgorithm;

/// Verifies access tokens.
///
/// Keys and deny list are replaced as a whole while messages are judged; each judgement sees one of each.
///
/// ```
/// use sealwire::internal::auth::{IssueRequest, Symmetric, TokenIssuer, TokenRules, TokenVerifier};
/// use sha2::{Digest, Sha256};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let issuer = TokenIssuer::generate("https://idp.example")?;
/// let token = issuer.issue(&IssueRequest::new("planner", "prod/math", 1_790_000_000))?;
///
/// let verifier = TokenVerifier::new(TokenRules::new("prod/math"), issuer.key_set()?);
/// let digest = Sha256::digest(&token).into();
/// let verified = verifier.verify(&token, &digest, 1_790_000_001)?;
/// assert_eq!(verified.owner(), "planner");
/// # Ok(())
/// # }
/// ```
pub struct TokenVerifier {
    rules: TokenRules,
    keys: Arc<ArcSwap<KeySetGeneration>>,
    denylist: ArcSwap<Denylist>,
    revocations: Arc<Revocations>,
    verified: Cache<Tail, Arc<VerifiedToken>>,
    fetching: Vec<Fetching>,
}

/// The end of a token's text, which is part of its signature: no two verified tokens share it, and if two did, one would be
/// verified again and again.
type Tail = [u8; 32];

/// A token that was verified under the key set of `generation`.
pub(crate) struct VerifiedToken {
    text: Box<str>,
    digest: [u8; 32],
    pub(crate) token: Arc<AccessToken>,
    generation: u64,
    /// From this time on (seconds since the Unix epoch) the token is verified again.
    until: u64,
    caller: OnceLock<Arc<Caller>>,
}

/// A token's text that has not been judged yet.
pub(crate) struct PresentedToken {
    digest: [u8; 32],
    /// The same text, verified earlier.
    known: Option<Arc<VerifiedToken>>,
}

impl PresentedToken {
    /// SHA-256 of the text.
    pub(crate) fn digest(&self) -> &[u8; 32] {
        &self.digest
    }
}

impl VerifiedToken {
    /// The token as it was sent.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// The caller with this token and a key with this id. The agent is the token's owner.
    pub(crate) fn caller(&self, agent: &Name, key: &str, algorithm: ProofAlgorithm) -> Arc<Caller> {
        let new = || Arc::new(self.token.caller(agent, key, algorithm));
        // Everything else comes from the token. If an agent uses it with several keys, the first key's caller is kept.
        let kept = self.caller.get_or_init(new);
        let is_the_same = kept.agent == *agent && kept.key == key && kept.algorithm == algorithm;
        if is_the_same { Arc::clone(kept) } else { new() }
    }
}

impl TokenVerifier {
    /// A verifier that trusts these keys and has nothing revoked.
    #[must_use]
    pub fn new(rules: TokenRules, keys: KeySet) -> Self {
        Self {
            rules: rules.bounded(),
            keys: Arc::new(ArcSwap::from_pointee(KeySetGeneration { set: keys, generation: 0 })),
            denylist: ArcSwap::default(),
            revocations: Arc::default(),
            // When full, moka drops an entry or does not store it, which costs one more signature check. A token's contents
            // are kept three times, as text, parsed, and as its caller: some tens of megabytes at the very most.
            verified: Cache::builder()
                .max_capacity(CACHE_CAPACITY)
                .weigher(|_, token: &Arc<VerifiedToken>| {
                    u32::try_from(token.text.len().div_ceil(1024)).unwrap_or(u32::MAX)
                })
                .time_to_live(CACHE_TTL)
                .build(),
            fetching: Vec::new(),
        }
    }

    /// Also refuses what operators have revoked.
    #[must_use]
    pub fn with_revocations(mut self, revocations: Arc<Revocations>) -> Self {
        self.revocations = revocations;
        self
    }

    /// What operators have revoked.
    #[must_use]
    pub fn revocations(&self) -> &Arc<Revocations> {
        &self.revocations
    }

    /// Also fetches the keys of these issuers: once now, and from then on in the background as long as this verifier lives. A
    /// fetch that fails now is retried; until it succeeds, tokens of that issuer are refused.
    ///
    /// Call it on a Tokio runtime.
    ///
    /// Cancel safety: dropping the future ends every fetch.
    #[must_use]
    pub async fn fetch(mut self, sources: Vec<KeySource>) -> Self {
        let keys = &self.keys;
        self.fetching = futures_util::future::join_all(sources.into_iter().map(|source| source.start(keys))).await;
        self
    }

    /// How fetching each issuer's keys is going.
    #[must_use]
    pub fn key_sources(&self) -> Vec<KeySourceStatus> {
        self.fetching.iter().map(Fetching::status).collect()
    }

    /// The rules in force: those that it was made with, their numbers limited to their ranges.
    #[must_use]
    pub fn rules(&self) -> &TokenRules {
        &self.rules
    }

    /// From now on trusts these keys and no others, for tokens seen before too. The keys of issuers whose keys are fetched
    /// stay as they are.
    pub fn replace_keys(&self, keys: KeySet) {
        // INVARIANT: a generation number stands for one key set only. A check that began under the old set may still store
        // its result, but under the old number, and no later call uses it.
        self.keys.rcu(|old| {
            let fetched = self.fetching.iter().map(Fetching::issuer);
            let set = fetched.fold(keys.clone(), |set, issuer| set.with_issuer(issuer, Some(&old.set)));
            KeySetGeneration { set, generation: old.generation + 1 }
        });
        self.verified.invalidate_all();
    }

    /// From now on revokes what this list says and nothing else, for tokens seen before too.
    pub fn replace_denylist(&self, denylist: Denylist) {
        self.denylist.store(Arc::new(denylist));
    }

    /// The keys in force.
    #[must_use]
    pub fn keys(&self) -> KeySet {
        self.keys.load().set.clone()
    }

    /// The deny list in force; code that knows the key of a proof asks it about that key.
    #[must_use]
    pub fn denylist(&self) -> Arc<Denylist> {
        self.denylist.load_full()
    }

    /// Verifies a token at the time `now_s` (seconds since the Unix epoch).
    ///
    /// Call it only for a caller with a proved identity: a token of a fetched issuer with an unknown `kid` causes the keys to
    /// be fetched again.
    ///
    /// `digest` is the SHA-256 of the token's text, which the caller has computed anyway to compare it with the proof.
    ///
    /// # Errors
    /// Every [`TokenError`]; the sender of the token, or its issuer, is to blame.
    pub fn verify(&self, token: &str, digest: &[u8; 32], now_s: u64) -> Result<Arc<AccessToken>, TokenError> {
        let presented = PresentedToken { digest: *digest, known: self.find(token.as_bytes()) };
        self.judge(token.as_bytes(), presented, now_s).map(|verified| Arc::clone(&verified.token))
    }

    /// Looks up a token's text, so that it is not hashed twice.
    pub(crate) fn present(&self, token: &[u8]) -> PresentedToken {
        match self.find(token) {
            Some(known) => PresentedToken { digest: known.digest, known: Some(known) },
            None => PresentedToken { digest: sha256(token), known: None },
        }
    }

    /// As [`TokenVerifier::verify`]; `presented` is the result of looking up this very text.
    pub(crate) fn judge(
        &self,
        token: &[u8],
        presented: PresentedToken,
        now_s: u64,
    ) -> Result<Arc<VerifiedToken>, TokenError> {
        let PresentedToken { digest, known } = presented;
        debug_assert!(sha256(token) == digest, "the digest must be that of the token");
        let current = self.keys.load();
        if let Some(known) = known.filter(|known| known.generation == current.generation && now_s < known.until) {
            self.validate_now(&known.token, now_s)?;
            return Ok(known);
        }
        let token = std::str::from_utf8(token).map_err(|_| TokenError::Parts)?;
        let checked = Arc::new(self.check(token, &current.set)?);
        self.validate_now(&checked, now_s)?;
        let until = checked.expires_at.min(now_s.saturating_add(CACHE_TTL.as_secs()));
        let (generation, caller) = (current.generation, OnceLock::new());
        let verified =
            Arc::new(VerifiedToken { text: token.into(), digest, token: checked, generation, until, caller });
        self.cache(&verified, now_s);
        Ok(verified)
    }

    /// Judges a token that was shown at `at_s` once more, now: its times as they were, its key and what is revoked as they are. Remembers
    /// nothing.
    pub(crate) fn judge_kept(&self, token: &str, at_s: u64, now_s: u64) -> Result<AccessToken, TokenError> {
        let token = self.check(token, &self.keys.load().set)?;
        claims::validate_times(&token, self.rules.leeway_s, at_s)?;
        // A deny list may forget a token that ended this long ago.
        if now_s >= token.expires_at.saturating_add(DENIED_FOR_S) {
            return Err(TokenError::Expired);
        }
        self.validate_revocation(&token, now_s)?;
        Ok(token)
    }

    /// Everything that depends only on the text, the keys and the rules.
    fn check(&self, token: &str, keys: &KeySet) -> Result<AccessToken, TokenError> {
        let compact = Compact::parse(token)?;
        let header = &compact.header;
        let claims = compact.claims()?;
        // Not believed, only used to find the key that verifies the token. If that key does, the issuer signed this very
        // claim.
        let issuer = match claims.get("iss") {
            None => return Err(TokenError::Missing("iss")),
            Some(Value::String(issuer)) => issuer,
            Some(_) => return Err(TokenError::Malformed("iss")),
        };
        let fetching = self.fetching.iter().find(|fetching| fetching.issuer() == issuer);
        let found = match (keys.find(issuer, &header.kid), fetching) {
            (Some(found), _) => found,
            // Known, but without keys at the moment.
            (None, Some(_)) => None,
            (None, None) => return Err(TokenError::Issuer(issuer.clone())),
        };
        self.validate_header(header, issuer)?;
        let Some(key) = found else {
            if let Some(fetching) = fetching {
                fetching.ask();
            }
            return Err(TokenError::UnknownKey(compact.header.kid));
        };
        if header.alg != key.algorithm.as_str() {
            return Err(TokenError::Algorithm { expected: key.algorithm, found: compact.header.alg });
        }
        // The loader of key sets checks this too; here it is for a set that was loaded under other rules.
        if key.algorithm == TokenAlgorithm::Hs256 && self.rules.symmetric == Symmetric::Refused {
            return Err(TokenError::Symmetric);
        }
        key.verify(compact.signed, compact.signature)?;
        let issuer = issuer.clone();
        claims::read(claims, &issuer, &key.kid, &self.rules, compact.signed)
    }

    /// RFC 9068 §4: `at+jwt` or `application/at+jwt`. Another kind of token from the same issuer, an ID token or a logout
    /// token, must never pass for an access token (RFC 8725 §3.11), except for issuers that use one `typ` for all.
    fn validate_header(&self, header: &Header, issuer: &str) -> Result<(), TokenError> {
        let rules = self.rules.of(issuer);
        let typ = header.typ.as_deref();
        let holds = match &rules.typ {
            Some(accepted) => accepted.iter().any(|accepted| accepted.is(typ)),
            None => TokenType::AccessToken.is(typ) || (self.rules.accept_plain_jwt_typ && TokenType::Jwt.is(typ)),
        };
        if !holds {
            return Err(typ.map_or(TokenError::HeaderText("typ"), |typ| TokenError::Typ(typ.to_owned())));
        }
        match header.further.iter().find(|member| !rules.header.contains(member)) {
            Some(foreign) => Err(TokenError::HeaderMember(foreign.as_str().to_owned())),
            None => Ok(()),
        }
    }

    /// Everything that may change while a token lives.
    fn validate_now(&self, token: &AccessToken, now_s: u64) -> Result<(), TokenError> {
        claims::validate_times(token, self.rules.leeway_s, now_s)?;
        self.validate_revocation(token, now_s)
    }

    /// Whether a token that was verified before has been revoked.
    pub(crate) fn validate_revocation(&self, token: &AccessToken, now_s: u64) -> Result<(), TokenError> {
        self.denylist.load().judge(token)?;
        let revoked = self.revocations.revokes(token.names(), now_s);
        revoked.map_or(Ok(()), |kind| Err(TokenError::Revoked(kind.as_str())))
    }

    fn find(&self, token: &[u8]) -> Option<Arc<VerifiedToken>> {
        self.verified.get(tail(token)?).filter(|known| known.text.as_bytes() == token)
    }

    /// Called only with a token that passed every check, so nobody without one can fill the cache.
    fn cache(&self, verified: &Arc<VerifiedToken>, now_s: u64) {
        if let Some(tail) = tail(verified.text.as_bytes())
            && now_s < verified.until
        {
            self.verified.insert(*tail, Arc::clone(verified));
        }
    }
}

impl fmt::Debug for TokenVerifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenVerifier")
            .field("rules", &self.rules)
            .field("keys", &self.keys.load().set)
            .finish_non_exhaustive()
    }
}

/// `None` for a text too short for a signature.
fn tail(token: &[u8]) -> Option<&Tail> {
    token.last_chunk()
}

/// An entry is used for a minute at most. Times and revocations do not depend on it; it bounds how long anything that we did
/// not think of can last.
const CACHE_TTL: Duration = Duration::from_secs(60);

/// Ten thousand callers within a minute, with tokens of up to 1 KiB; larger ones count more. Beyond that, some tokens are
/// verified again.
const CACHE_CAPACITY: u64 = 10_000;

#[cfg(test)]
mod tests;
