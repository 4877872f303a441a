//! The issuers' keys, as whole sets: a set with one bad key is no set.
//! Never fetches anything and never finds a key by anything but its `kid` in memory.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;

use super::file::Opened;
use super::json;
use super::key::IssuerKey;
use super::{FileError, JsonFault, KeyFault, Symmetric, TokenAlgorithm};
use crate::name::shown;

/// The keys that access tokens are verified with. Immutable; cloning is cheap.
///
/// ```
/// use sealwire::auth::{KeySet, Symmetric};
///
/// let json = r#"{"keys":[{"kty":"OKP","crv":"Ed25519","alg":"EdDSA","use":"sig","kid":"idp-1",
///                         "x":"JUO5L_EJVRFHatyDadtt3JM2ZaEZeN2hQE7hBmypVZ0"}]}"#;
/// let keys = KeySet::from_jwks(json, "https://idp.example", "idp.jwks.json", Symmetric::Refused)?;
/// assert_eq!(keys.len(), 1);
/// # Ok::<(), sealwire::auth::KeySetError>(())
/// ```
#[derive(Clone)]
pub struct KeySet {
    by_kid: Arc<HashMap<String, Arc<IssuerKey>>>,
}

/// Why a key set was refused. It is refused whole: a set of which a part is wrong is not the set that its issuer meant.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeySetError {
    /// The file could not be read.
    #[error("key set `{origin}`: {cause}")]
    File {
        /// The file.
        origin: String,
        /// What the operating system, or our bounds, said.
        cause: FileError,
    },
    /// The text is not strict JSON.
    #[error("key set `{origin}` {fault}")]
    Json {
        /// Where the set came from.
        origin: String,
        /// What is wrong.
        fault: JsonFault,
    },
    /// The text is longer than 256 KiB.
    #[error("key set `{origin}` is longer than {MAX_SET_LEN} bytes")]
    TooLarge {
        /// Where the set came from.
        origin: String,
    },
    /// There is no array `keys`.
    #[error("key set `{origin}` has no array `keys`")]
    NoKeys {
        /// Where the set came from.
        origin: String,
    },
    /// The set holds no key, so that every token would be refused.
    #[error("key set `{origin}` is empty")]
    Empty {
        /// Where the set came from.
        origin: String,
    },
    /// The issuer that the keys are to belong to is not 1 to 256 visible ASCII characters.
    #[error("the issuer of key set `{origin}` must be 1 to 256 visible ASCII characters")]
    Issuer {
        /// Where the set came from.
        origin: String,
    },
    /// One key is unusable.
    #[error("key set `{origin}`, key `{}`: {fault}", shown(.key))]
    Key {
        /// Where the set came from.
        origin: String,
        /// The `kid`, or the position in the set from 1.
        key: String,
        /// What is wrong with it.
        fault: KeyFault,
    },
    /// Two keys have the same `kid`, in one set or in two that are used together.
    #[error("key set `{origin}` has the kid `{}` twice", shown(.kid))]
    DuplicateKid {
        /// Where the set came from.
        origin: String,
        /// The `kid`.
        kid: String,
    },
    /// One key stands under two names, so that it would have two algorithms or two issuers.
    #[error("key set `{origin}`: `{}` and `{}` are the same key", shown(.first), shown(.second))]
    SameKey {
        /// Where the set came from.
        origin: String,
        /// One `kid`.
        first: String,
        /// The other `kid`.
        second: String,
    },
    /// Symmetric keys beside public ones.
    #[error("key set `{origin}` mixes symmetric and public keys")]
    Mixed {
        /// Where the set came from.
        origin: String,
    },
    /// A symmetric key, and none is allowed.
    #[error("key set `{origin}` has symmetric keys; use EdDSA or ES256, or allow symmetric keys explicitly")]
    Symmetric {
        /// Where the set came from.
        origin: String,
    },
}

impl KeySet {
    /// Reads a JWK set (RFC 7517) of one issuer from a file.
    ///
    /// A file of symmetric keys holds secrets: it is refused if others on the machine can read it.
    ///
    /// # Errors
    /// Every [`KeySetError`]; whoever wrote the file is to blame.
    pub fn from_jwks_file(path: impl AsRef<Path>, issuer: &str, symmetric: Symmetric) -> Result<Self, KeySetError> {
        let path = path.as_ref();
        let origin = path.display().to_string();
        let fail = |cause| KeySetError::File { origin: origin.clone(), cause };
        let opened = Opened::read(path, MAX_SET_LEN).map_err(fail)?;
        let set = Self::from_jwks(&opened.text, issuer, &origin, symmetric)?;
        if set.is_symmetric() {
            opened.require_private().map_err(fail)?;
        }
        Ok(set)
    }

    /// Reads a JWK set (RFC 7517) of one issuer. `origin` names where the text came from, for error messages.
    ///
    /// # Errors
    /// Every [`KeySetError`] but [`KeySetError::File`]; whoever wrote the text is to blame.
    pub fn from_jwks(jwks: &str, issuer: &str, origin: &str, symmetric: Symmetric) -> Result<Self, KeySetError> {
        let origin = || shown(origin);
        if jwks.len() > MAX_SET_LEN {
            return Err(KeySetError::TooLarge { origin: origin() });
        }
        if !(1..=256).contains(&issuer.len()) || !issuer.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(KeySetError::Issuer { origin: origin() });
        }
        let mut set = json::object(jwks.as_bytes()).map_err(|fault| KeySetError::Json { origin: origin(), fault })?;
        let Some(Value::Array(list)) = set.remove("keys") else {
            return Err(KeySetError::NoKeys { origin: origin() });
        };
        let issuer = Arc::from(issuer);
        let mut keys = Vec::with_capacity(list.len());
        for (position, jwk) in (1_usize..).zip(list) {
            let name = jwk.get("kid").and_then(Value::as_str).map_or_else(|| position.to_string(), str::to_owned);
            let judged = match jwk {
                Value::Object(members) => IssuerKey::from_jwk(members, &issuer),
                _ => Err(KeyFault::NotAnObject),
            };
            keys.push(judged.map_err(|fault| KeySetError::Key { origin: origin(), key: name, fault })?);
        }
        let secrets = keys.iter().filter(|key| key.algorithm == TokenAlgorithm::Hs256).count();
        // RS256 verified as HS256 with the public key as the secret is the oldest attack on JWTs. The one algorithm per
        // key stops it; a set that has no place for both kinds stops the mistake that would lead there.
        if secrets != 0 && secrets != keys.len() {
            return Err(KeySetError::Mixed { origin: origin() });
        }
        if secrets != 0 && symmetric == Symmetric::Refused {
            return Err(KeySetError::Symmetric { origin: origin() });
        }
        if secrets != 0 {
            tracing::warn!(
                origin = origin(),
                keys = secrets,
                "access tokens are verified with symmetric keys: everyone who can verify them can also issue them"
            );
        }
        Self::collect(keys.into_iter().map(Arc::new), &origin())
    }

    /// Puts the sets of several issuers together.
    ///
    /// # Errors
    /// [`KeySetError::DuplicateKid`], [`KeySetError::SameKey`] and [`KeySetError::Empty`]: whoever configured these sets
    /// to be used together is to blame.
    pub fn merge(sets: impl IntoIterator<Item = Self>) -> Result<Self, KeySetError> {
        let sets: Vec<_> = sets.into_iter().collect();
        Self::collect(sets.iter().flat_map(|set| set.by_kid.values().cloned()), "all issuers together")
    }

    /// The number of keys; never 0.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_kid.len()
    }

    /// Whether there is no key; never true, an empty set is refused.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_kid.is_empty()
    }

    /// Each key's `kid`, algorithm and issuer, in no particular order.
    pub fn keys(&self) -> impl Iterator<Item = (&str, TokenAlgorithm, &str)> {
        self.by_kid.values().map(|key| (key.kid.as_str(), key.algorithm, &*key.issuer))
    }

    pub(super) fn find(&self, kid: &str) -> Option<&Arc<IssuerKey>> {
        self.by_kid.get(kid)
    }

    fn is_symmetric(&self) -> bool {
        self.by_kid.values().any(|key| key.algorithm == TokenAlgorithm::Hs256)
    }

    fn collect(keys: impl Iterator<Item = Arc<IssuerKey>>, origin: &str) -> Result<Self, KeySetError> {
        let mut by_kid = HashMap::new();
        let mut names: HashMap<[u8; 32], String> = HashMap::new();
        for key in keys {
            if by_kid.contains_key(&key.kid) {
                return Err(KeySetError::DuplicateKid { origin: origin.to_owned(), kid: key.kid.clone() });
            }
            if let Some(first) = names.insert(key.fingerprint, key.kid.clone()) {
                return Err(KeySetError::SameKey { origin: origin.to_owned(), first, second: key.kid.clone() });
            }
            by_kid.insert(key.kid.clone(), key);
        }
        if by_kid.is_empty() {
            return Err(KeySetError::Empty { origin: origin.to_owned() });
        }
        Ok(Self { by_kid: Arc::new(by_kid) })
    }
}

impl fmt::Debug for KeySet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.by_kid.values()).finish()
    }
}

/// Some hundreds of keys: more than any issuer publishes.
const MAX_SET_LEN: usize = 256 * 1024;
