//! The issuers' keys. A key that is not for us is left out of its set; a dangerous key makes the whole set unusable.
//! Never fetches anything, and never looks up a key by anything but its issuer and its `kid` in memory.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use arc_swap::ArcSwap;

use serde_json::Value;

use super::file::Opened;
use super::json;
use super::key::{IssuerKey, KeyRules};
use super::{FileError, JsonFault, KeyFault, Symmetric, TokenAlgorithm};
use crate::files::FileTrust;
use crate::name::shown;

/// The keys that access tokens are verified with. Immutable; cloning is cheap.
///
/// ```
/// use sealwire::internal::auth::{KeySet, Symmetric};
///
/// let json = r#"{"keys":[{"kty":"OKP","crv":"Ed25519","alg":"EdDSA","use":"sig","kid":"idp-1",
///                         "x":"JUO5L_EJVRFHatyDadtt3JM2ZaEZeN2hQE7hBmypVZ0"}]}"#;
/// let keys = KeySet::from_jwks(json, "https://idp.example", "idp.jwks.json", Symmetric::Refused)?;
/// assert_eq!(keys.len(), 1);
/// # Ok::<(), sealwire::errors::KeySetError>(())
/// ```
#[derive(Clone, Default)]
pub struct KeySet {
    by_issuer: Arc<BTreeMap<Arc<str>, Arc<IssuerKeys>>>,
}

/// The keys of one issuer. Issuers cannot interfere with each other: the same `kid`, or the same key, under two of them is
/// two keys.
#[derive(Default, Clone)]
struct IssuerKeys {
    by_kid: HashMap<String, Arc<IssuerKey>>,
    left_out: Vec<LeftOut>,
}

/// A key set and how many came before it.
pub(super) struct KeySetGeneration {
    pub(super) set: KeySet,
    pub(super) generation: u64,
}

impl KeySetGeneration {
    /// Replaces the keys of one issuer, or removes them.
    pub(super) fn exchange(keys: &ArcSwap<Self>, issuer: &str, set: Option<&KeySet>) {
        keys.rcu(|old| Self { set: old.set.with_issuer(issuer, set), generation: old.generation + 1 });
    }
}

/// A key of a set that is not used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftOut {
    /// Its `kid`, or its position in the set from 1.
    pub key: String,
    /// Why.
    pub fault: KeyFault,
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "key `{}`: {}", shown(&self.key), self.fault)
    }
}

/// Why a key set was refused as a whole.
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
    /// Every key was left out, so that every token would be refused.
    #[error("key set `{origin}` has no key for access tokens; {first}")]
    Unusable {
        /// Where the set came from.
        origin: String,
        /// The first of them.
        first: LeftOut,
    },
    /// One key is dangerous.
    #[error("key set `{origin}` is refused as a whole: key `{}`: {fault}", shown(.key))]
    Key {
        /// Where the set came from.
        origin: String,
        /// The `kid`, or the position in the set from 1.
        key: String,
        /// What is wrong with it.
        fault: KeyFault,
    },
    /// Two keys of one issuer have the same `kid`.
    #[error("key set `{origin}` has the kid `{}` twice", shown(.kid))]
    DuplicateKid {
        /// Where the set came from.
        origin: String,
        /// The `kid`.
        kid: String,
    },
    /// One key has two names, so it could have two algorithms.
    #[error("key set `{origin}`: `{}` and `{}` are the same key", shown(.first), shown(.second))]
    SameKey {
        /// Where the set came from.
        origin: String,
        /// One `kid`.
        first: String,
        /// The other `kid`.
        second: String,
    },
    /// There are symmetric keys beside public ones.
    #[error("key set `{origin}` mixes symmetric and public keys")]
    Mixed {
        /// Where the set came from.
        origin: String,
    },
    /// There is a symmetric key, and none is allowed.
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
        Self::read_file(path, &KeyRules { symmetric, ..KeyRules::new(issuer) })
    }

    /// As [`KeySet::from_jwks_file`], with this issuer's own rules.
    ///
    /// # Errors
    /// Every [`KeySetError`]; whoever wrote the file is to blame.
    pub fn read_file(path: impl AsRef<Path>, rules: &KeyRules) -> Result<Self, KeySetError> {
        Self::read_trusted_file(path.as_ref(), rules, &FileTrust::default())
    }

    /// As [`KeySet::read_file`], and also accepts files of the users and groups in `trust`.
    pub(crate) fn read_trusted_file(path: &Path, rules: &KeyRules, trust: &FileTrust) -> Result<Self, KeySetError> {
        let origin = path.display().to_string();
        let fail = |cause| KeySetError::File { origin: origin.clone(), cause };
        let opened = Opened::read(path, MAX_SET_LEN, trust).map_err(fail)?;
        let set = Self::read(&opened.text, &origin, rules)?;
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
        Self::read(jwks, origin, &KeyRules { symmetric, ..KeyRules::new(issuer) })
    }

    /// As [`KeySet::from_jwks`], with this issuer's own rules.
    ///
    /// # Errors
    /// Every [`KeySetError`] but [`KeySetError::File`]; whoever wrote the text is to blame.
    pub fn read(jwks: &str, origin: &str, rules: &KeyRules) -> Result<Self, KeySetError> {
        let (issuer, symmetric) = (rules.issuer.as_str(), rules.symmetric);
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
        let secrets = list.iter().filter(|jwk| jwk.get("kty").is_some_and(|kty| kty == "oct")).count();
        // RS256 verified as HS256 with the public key as the secret is the oldest attack on JWTs. One algorithm per key
        // stops it; a set that has no place for both kinds stops the mistake that would lead there.
        if secrets != 0 && secrets != list.iter().filter(|jwk| jwk.is_object()).count() {
            return Err(KeySetError::Mixed { origin: origin() });
        }
        if secrets != 0 && symmetric == Symmetric::Refused {
            return Err(KeySetError::Symmetric { origin: origin() });
        }
        if secrets != 0 {
            tracing::warn!(
                target: "sealwire::reload",
                resource = "token keys",
                origin = origin(),
                keys = secrets,
                "access tokens are verified with symmetric keys: everyone who can verify them can also issue them"
            );
        }
        let issuer: Arc<str> = Arc::from(issuer);
        let mut keys = Vec::with_capacity(list.len());
        let mut left_out = Vec::new();
        let mut others = HashSet::new();
        for (position, jwk) in (1_usize..).zip(list) {
            let name = jwk.get("kid").and_then(Value::as_str).map_or_else(|| position.to_string(), str::to_owned);
            let judged = match jwk {
                Value::Object(members) => IssuerKey::from_jwk(members, rules),
                _ => Err(KeyFault::NotAnObject),
            };
            match judged {
                Ok(key) => keys.push(key),
                Err(fault) if fault.is_dangerous() => {
                    return Err(KeySetError::Key { origin: origin(), key: name, fault });
                }
                Err(fault) => {
                    // A token names its key by the `kid` alone, so it must not matter which of the two we can use.
                    if fault.keeps_its_name() && !others.insert(name.clone()) {
                        return Err(KeySetError::DuplicateKid { origin: origin(), kid: name });
                    }
                    left_out.push(LeftOut { key: name, fault });
                }
            }
        }
        if let Some(key) = keys.iter().find(|key| others.contains(&key.kid)) {
            return Err(KeySetError::DuplicateKid { origin: origin(), kid: key.kid.clone() });
        }
        let (doubled, keys): (Vec<_>, Vec<_>) = {
            let is_doubled = |key: &IssuerKey| {
                let is_same = |other: &IssuerKey| other.kid == key.kid && other.fingerprint == key.fingerprint;
                keys.iter().any(|other| is_same(other) && other.algorithm != key.algorithm)
            };
            let doubled: HashSet<String> =
                keys.iter().filter(|key| is_doubled(key)).map(|key| key.kid.clone()).collect();
            keys.into_iter().partition(|key| doubled.contains(&key.kid))
        };
        let doubled: BTreeSet<String> = doubled.into_iter().map(|key| key.kid).collect();
        left_out.extend(doubled.into_iter().map(|key| LeftOut { key, fault: KeyFault::Algorithms }));
        let mut set = IssuerKeys::collect(keys.into_iter().map(Arc::new), &origin())?;
        if set.by_kid.is_empty() {
            return Err(match left_out.into_iter().next() {
                Some(first) => KeySetError::Unusable { origin: origin(), first },
                None => KeySetError::Empty { origin: origin() },
            });
        }
        set.left_out = left_out;
        Ok(Self { by_issuer: Arc::new(BTreeMap::from([(issuer, Arc::new(set))])) })
    }

    /// Combines the sets of several issuers.
    ///
    /// # Errors
    /// [`KeySetError::DuplicateKid`] and [`KeySetError::SameKey`] if two are of the same issuer, and
    /// [`KeySetError::Empty`]: whoever configured these sets to be used together is to blame.
    pub fn merge(sets: impl IntoIterator<Item = Self>) -> Result<Self, KeySetError> {
        let origin = "all issuers together";
        let mut by_issuer: BTreeMap<Arc<str>, Arc<IssuerKeys>> = BTreeMap::new();
        for (issuer, more) in sets.into_iter().flat_map(|set| (*set.by_issuer).clone()) {
            let whole = match by_issuer.get(&issuer) {
                None => more,
                Some(already) => {
                    let keys = already.by_kid.values().chain(more.by_kid.values()).cloned();
                    let mut whole = IssuerKeys::collect(keys, origin)?;
                    whole.left_out = already.left_out.iter().chain(&more.left_out).cloned().collect();
                    Arc::new(whole)
                }
            };
            by_issuer.insert(issuer, whole);
        }
        if by_issuer.is_empty() {
            return Err(KeySetError::Empty { origin: origin.to_owned() });
        }
        Ok(Self { by_issuer: Arc::new(by_issuer) })
    }

    /// The number of keys. Only [`KeySet::default`], which trusts nobody, has none.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_issuer.values().map(|keys| keys.by_kid.len()).sum()
    }

    /// Whether there is no key, so that no token is accepted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_issuer.is_empty()
    }

    /// Each key's `kid`, algorithm and issuer, by issuer.
    pub fn keys(&self) -> impl Iterator<Item = (&str, TokenAlgorithm, &str)> {
        self.by_issuer
            .iter()
            .flat_map(|(issuer, keys)| keys.by_kid.values().map(|key| (key.kid.as_str(), key.algorithm, &**issuer)))
    }

    /// The keys that were left out, by issuer.
    pub fn left_out(&self) -> impl Iterator<Item = &LeftOut> {
        self.by_issuer.values().flat_map(|keys| &keys.left_out)
    }

    /// The key of this issuer with this `kid`: `None` if the issuer is not known, `Some(None)` if the key is not.
    pub(super) fn find(&self, issuer: &str, kid: &str) -> Option<Option<&Arc<IssuerKey>>> {
        self.by_issuer.get(issuer).map(|keys| keys.by_kid.get(kid))
    }

    /// This set, with the keys of one issuer replaced by those of `other`, or removed.
    pub(super) fn with_issuer(&self, issuer: &str, other: Option<&Self>) -> Self {
        let mut by_issuer = (*self.by_issuer).clone();
        by_issuer.remove(issuer);
        if let Some((name, keys)) = other.and_then(|other| other.by_issuer.get_key_value(issuer)) {
            by_issuer.insert(Arc::clone(name), Arc::clone(keys));
        }
        Self { by_issuer: Arc::new(by_issuer) }
    }

    fn is_symmetric(&self) -> bool {
        self.keys().any(|(_, algorithm, _)| algorithm == TokenAlgorithm::Hs256)
    }
}

impl IssuerKeys {
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
        Ok(Self { by_kid, left_out: Vec::new() })
    }
}

impl fmt::Debug for KeySet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map()
            .entries(self.by_issuer.iter().map(|(issuer, keys)| (issuer, keys.by_kid.values().collect::<Vec<_>>())))
            .finish()
    }
}

/// Several hundred keys: more than any issuer publishes.
pub(super) const MAX_SET_LEN: usize = 256 * 1024;
