//! The judge of access tokens: signature, claims, time and revocation, with a cache of what was verified before.
//! Never lets the cache answer what may have changed: times, revocations and the key set are looked at every time.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use moka::sync::Cache;
use sha2::{Digest as _, Sha256};

use super::header::Compact;
use super::{AccessToken, Denylist, KeySet, Symmetric, TokenAlgorithm, TokenError, TokenRules, claims};

/// Verifies access tokens.
///
/// Keys and deny list are swapped whole while messages are judged; each judgement sees one of each.
///
/// ```
/// use sealwire::auth::{IssueRequest, Symmetric, TokenIssuer, TokenRules, TokenVerifier};
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
    keys: ArcSwap<Epoch>,
    denylist: ArcSwap<Denylist>,
    verified: Cache<[u8; 32], Remembered>,
}

/// A key set and how many came before it.
struct Epoch {
    set: KeySet,
    generation: u64,
}

/// A token that was verified under the key set of `generation`.
#[derive(Clone)]
struct Remembered {
    token: Arc<AccessToken>,
    generation: u64,
    /// From here on (seconds since the Unix epoch) the token is verified again.
    until: u64,
}

impl TokenVerifier {
    /// A verifier that trusts these keys and has nothing revoked.
    #[must_use]
    pub fn new(rules: TokenRules, keys: KeySet) -> Self {
        Self {
            rules: rules.bounded(),
            keys: ArcSwap::from_pointee(Epoch { set: keys, generation: 0 }),
            denylist: ArcSwap::default(),
            // When full, moka drops or does not take an entry, which costs one more signature check. At 4 KiB a token,
            // this is some tens of megabytes at the very most.
            verified: Cache::builder().max_capacity(MAX_REMEMBERED).time_to_live(REMEMBERED_FOR).build(),
        }
    }

    /// The rules in force: those it was made with, their numbers inside their ranges.
    #[must_use]
    pub fn rules(&self) -> &TokenRules {
        &self.rules
    }

    /// Trusts these keys and no others from now on, for tokens seen before too.
    pub fn replace_keys(&self, keys: KeySet) {
        // INVARIANT: a generation number stands for one key set only. A check that began under the old set may still
        // store its result, under the old number, and no later call takes it.
        self.keys.rcu(|old| Epoch { set: keys.clone(), generation: old.generation + 1 });
        self.verified.invalidate_all();
    }

    /// Revokes what this list says and nothing else from now on, for tokens seen before too.
    pub fn replace_denylist(&self, denylist: Denylist) {
        self.denylist.store(Arc::new(denylist));
    }

    /// The keys in force.
    #[must_use]
    pub fn keys(&self) -> KeySet {
        self.keys.load().set.clone()
    }

    /// The deny list in force; whoever knows the key of a proof asks it about that key.
    #[must_use]
    pub fn denylist(&self) -> Arc<Denylist> {
        self.denylist.load_full()
    }

    /// Verifies a token at the time `now_s` (seconds since the Unix epoch).
    ///
    /// `digest` is the SHA-256 of the token's text, which the caller has computed anyway to compare it with the proof.
    /// It must be that of this very text: it is what the cache knows the token by.
    ///
    /// # Errors
    /// Every [`TokenError`]; the sender of the token, or its issuer, is to blame.
    pub fn verify(&self, token: &str, digest: &[u8; 32], now_s: u64) -> Result<Arc<AccessToken>, TokenError> {
        debug_assert!(Sha256::digest(token).as_slice() == digest, "the digest must be that of the token");
        let epoch = self.keys.load();
        if let Some(known) = self.recall(digest, epoch.generation, now_s) {
            self.judge_now(&known, now_s)?;
            return Ok(known);
        }
        let checked = Arc::new(self.check(token, &epoch.set)?);
        self.judge_now(&checked, now_s)?;
        self.remember(*digest, &checked, epoch.generation, now_s);
        Ok(checked)
    }

    /// Everything that depends on the text, the keys and the rules only.
    fn check(&self, token: &str, keys: &KeySet) -> Result<AccessToken, TokenError> {
        let compact = Compact::parse(token)?;
        let header = &compact.header;
        // RFC 9068 §4: `at+jwt` or `application/at+jwt`. Another kind of token of the same issuer, an ID token or a
        // logout token, must never pass for an access token (RFC 8725 §3.11).
        let typ_holds = match header.typ.as_str() {
            "at+jwt" | "application/at+jwt" => true,
            "JWT" => self.rules.accept_plain_jwt_typ,
            _ => false,
        };
        if !typ_holds {
            return Err(TokenError::Typ(compact.header.typ));
        }
        let Some(key) = keys.find(&header.kid) else {
            return Err(TokenError::UnknownKey(compact.header.kid));
        };
        if header.alg != key.algorithm.as_str() {
            return Err(TokenError::Algorithm { expected: key.algorithm, found: compact.header.alg });
        }
        // The loader of key sets asks the same; this is for a set that was loaded under other rules.
        if key.algorithm == TokenAlgorithm::Hs256 && self.rules.symmetric == Symmetric::Refused {
            return Err(TokenError::Symmetric);
        }
        key.verify(compact.signed, compact.signature)?;
        claims::read(compact.claims()?, &key.issuer, &key.kid, &self.rules)
    }

    /// Everything that may change while a token lives.
    fn judge_now(&self, token: &AccessToken, now_s: u64) -> Result<(), TokenError> {
        claims::judge_times(token, self.rules.leeway_s, now_s)?;
        self.denylist.load().judge(token)
    }

    fn recall(&self, digest: &[u8; 32], generation: u64, now_s: u64) -> Option<Arc<AccessToken>> {
        let known = self.verified.get(digest)?;
        (known.generation == generation && now_s < known.until).then_some(known.token)
    }

    /// Called only with a token that passed everything, so the cache cannot be filled by those who have none.
    fn remember(&self, digest: [u8; 32], token: &Arc<AccessToken>, generation: u64, now_s: u64) {
        let until = token.expires_at.min(now_s.saturating_add(REMEMBERED_FOR.as_secs()));
        if now_s < until {
            self.verified.insert(digest, Remembered { token: Arc::clone(token), generation, until });
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

/// An entry serves for a minute at most. Times and revocations do not wait for it; it bounds how long anything that we
/// did not think of can.
const REMEMBERED_FOR: Duration = Duration::from_secs(60);

/// Ten thousand callers within a minute; beyond that, some tokens are verified again.
const MAX_REMEMBERED: u64 = 10_000;

#[cfg(test)]
mod tests;
