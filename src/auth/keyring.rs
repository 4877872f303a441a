//! The keys under which a service accepts proofs: who owns each, its dates and its state.
//! Never takes a key from a message, and never tries several keys in turn.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use zeroize::{Zeroize, Zeroizing};

use crate::fault;
use crate::files::{Content, FileTrust, SecretFileError, read_trusted};
use crate::jose::{b64, ed25519_thumbprint, unb64};
use crate::name::Name;
use crate::settings::Setting;
use crate::wire::{Audience, Ed25519Public, HmacKey, KeyError, ProofAlgorithm, is_kid};

/// The verifier's key ring of one service.
#[derive(Debug, Default)]
pub struct KeyRing {
    records: HashMap<Arc<str>, Arc<KeyRecord>>,
}

/// One key: whose it is, when it may be used, and what verifies with it.
#[derive(Debug)]
pub(super) struct KeyRecord {
    pub(super) kid: Arc<str>,
    pub(super) owner: Name,
    pub(super) key: RecordKey,
    not_before: Option<u64>,
    not_after: Option<u64>,
    status: KeyStatus,
}

#[derive(Debug)]
pub(super) enum RecordKey {
    Hmac(Arc<HmacKey>),
    Ed25519 { public: Ed25519Public, thumbprint: String },
}

/// What a key may still do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Setting)]
#[serde(rename_all = "lowercase")]
pub enum KeyStatus {
    /// Verifies, within its dates.
    Active,
    /// Rotated out: verifies nothing new.
    Retired,
    /// Withdrawn because others may know it.
    Revoked,
}

/// A key record as a key ring file holds it.
///
/// An HMAC record holds the key derived for this service (`key`), never the agent's master secret; an Ed25519 record
/// holds the public key (`x`).
#[derive(Clone, Serialize, Deserialize, Setting)]
#[serde(deny_unknown_fields)]
pub struct KeyEntry {
    /// The key id, unique in the ring: 1 to 128 bytes of `[A-Za-z0-9._:/-]`, not beginning with `svc:`.
    pub kid: String,
    /// The agent whose key it is.
    pub owner: Name,
    /// `HS256` or `EdDSA`.
    pub alg: String,
    /// HS256: the derived key, 32 bytes as base64url.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// EdDSA: the public key as base64url.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub x: Option<String>,
    /// Usable from this second of the Unix epoch on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_before: Option<u64>,
    /// Not usable from this second of the Unix epoch on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_after: Option<u64>,
    /// `active`, `retired` or `revoked`.
    #[serde(default = "active")]
    pub status: KeyStatus,
}

fn active() -> KeyStatus {
    KeyStatus::Active
}

impl Drop for KeyEntry {
    fn drop(&mut self) {
        self.key.zeroize();
    }
}

impl std::fmt::Debug for KeyEntry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "KeyEntry({} of {}, {}, {:?}, ..)", self.kid, self.owner, self.alg, self.status)
    }
}

/// A key ring file: the audience that it was made for, and its records.
#[derive(Debug, Clone, Serialize, Deserialize, Setting)]
#[serde(deny_unknown_fields)]
pub struct KeyRingFile {
    /// `<environment>/<service>`: derived keys are useless to another service, so the file names the one they are for.
    pub audience: String,
    /// The records.
    pub keys: Vec<KeyEntry>,
}

/// A key ring that cannot be used. The previous ring stays in force.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyRingError {
    /// The file cannot be read, or others can read it too.
    #[error(transparent)]
    File(#[from] SecretFileError),
    /// Not a key ring.
    #[error("`{path}` is not a key ring: {reason}")]
    Format {
        /// The file.
        path: String,
        /// Position and cause.
        reason: String,
    },
    /// The ring was made for another service.
    #[error("the key ring is not for `{expected}`: derived keys of another service verify nothing here")]
    Audience {
        /// This service.
        expected: String,
    },
    /// A record is wrong.
    #[error("`keys[{position}]` of the key ring: {reason}")]
    Record {
        /// The record's position, from 0. Not its key id: in a mistyped record, that may be the key.
        position: usize,
        /// What is wrong and what to do.
        reason: &'static str,
    },
    /// More records than the bound.
    #[error("{count} keys are more than the bound of {MAX_RECORDS}: split the agents over several services")]
    TooMany {
        /// How many the file has.
        count: usize,
    },
}

/// The most records of a ring. It bounds every structure that is kept per agent.
pub const MAX_RECORDS: usize = 100_000;

impl KeyRing {
    /// Reads a ring of `audience` from a file that only its owner can read (mode 0600).
    ///
    /// # Errors
    /// [`KeyRingError`]; the whole file is refused for one bad record.
    pub fn load(path: &Path, audience: &Audience) -> Result<Self, KeyRingError> {
        Self::load_trusted(path, audience, &FileTrust::default())
    }

    /// As [`KeyRing::load`], and also accepts files of the users and groups in `trust`.
    pub(crate) fn load_trusted(path: &Path, audience: &Audience, trust: &FileTrust) -> Result<Self, KeyRingError> {
        let text = read_trusted(path, Content::Secret, trust)?;
        let format = |reason: String| KeyRingError::Format { path: path.display().to_string(), reason };
        let file: KeyRingFile = fault::json(&text).map_err(|fault| format(fault.to_string()))?;
        Self::new(file, audience)
    }

    /// A ring from its records.
    ///
    /// # Errors
    /// [`KeyRingError`]: another audience, a duplicate key id, one public key twice, a key id that begins
    /// with `svc:`, or a record without the key of its algorithm.
    pub fn new(file: KeyRingFile, audience: &Audience) -> Result<Self, KeyRingError> {
        if file.audience != audience.as_str() {
            return Err(KeyRingError::Audience { expected: audience.to_string() });
        }
        if file.keys.len() > MAX_RECORDS {
            return Err(KeyRingError::TooMany { count: file.keys.len() });
        }
        let mut records = HashMap::with_capacity(file.keys.len());
        let mut public_keys = HashSet::new();
        for (position, entry) in file.keys.iter().enumerate() {
            let wrong = |reason| KeyRingError::Record { position, reason };
            let record = KeyRecord::new(entry).map_err(wrong)?;
            // Under a second id, the key would outlive its own revocation.
            if let RecordKey::Ed25519 { public, .. } = &record.key
                && !public_keys.insert(public.to_text())
            {
                return Err(wrong(
                    "the same public key appears twice: one key, one agent, one key id, even when it is revoked",
                ));
            }
            if records.insert(Arc::clone(&record.kid), Arc::new(record)).is_some() {
                return Err(wrong("this key id appears twice: key ids are unique in a ring"));
            }
        }
        Ok(Self { records })
    }

    /// The same records, for a change to what is kept beside them.
    pub(super) fn share(&self) -> Self {
        Self { records: self.records.clone() }
    }

    /// The record of `kid`, whatever its state.
    pub(super) fn find(&self, kid: &str) -> Option<&Arc<KeyRecord>> {
        self.records.get(kid)
    }

    /// The records with which an agent may prove something new at `now_s`.
    pub(super) fn usable_by(&self, owner: &Name, now_s: u64) -> impl Iterator<Item = &Arc<KeyRecord>> {
        self.records.values().filter(move |record| record.owner == *owner && record.is_usable(now_s))
    }

    /// When keys end, with their ids and owners: those of the active ones that end first, at most `most`.
    #[cfg(feature = "metrics")]
    pub(super) fn ending(&self, most: usize) -> Vec<(String, String, u64)> {
        let active = self.records.values().filter(|record| record.status == KeyStatus::Active);
        let mut ending: Vec<_> = active.filter_map(|record| Some((record.not_after?, record))).collect();
        ending.sort_unstable_by_key(|(until, record)| (*until, Arc::clone(&record.kid)));
        let shown = ending.into_iter().take(most);
        shown.map(|(until, record)| (record.kid.to_string(), record.owner.to_string(), until)).collect()
    }

    /// How many agents own a key.
    #[must_use]
    pub fn owners(&self) -> usize {
        self.records.values().map(|record| &record.owner).collect::<HashSet<_>>().len()
    }

    /// How many keys there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether there is no key; then every message is refused.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Whether any record is an Ed25519 key; answering such a key's requests takes a service key.
    #[must_use]
    pub fn needs_service_key(&self) -> bool {
        self.records.values().any(|record| matches!(record.key, RecordKey::Ed25519 { .. }))
    }
}

impl KeyRecord {
    fn new(entry: &KeyEntry) -> Result<Self, &'static str> {
        if !is_kid(&entry.kid) {
            return Err("key ids are 1 to 128 of A-Z a-z 0-9 . _ : / -");
        }
        if entry.kid.starts_with("svc:") {
            return Err("key ids that begin with `svc:` belong to services");
        }
        if let (Some(from), Some(until)) = (entry.not_before, entry.not_after)
            && from >= until
        {
            return Err("`not_before` is not before `not_after`");
        }
        let key = match (entry.alg.as_str(), &entry.key, &entry.x) {
            ("HS256", Some(key), None) => {
                let bytes = Zeroizing::new(unb64(key).ok_or("`key` is not unpadded base64url")?);
                let bytes: [u8; 32] = bytes.as_slice().try_into().map_err(|_| "`key` is not 32 bytes")?;
                RecordKey::Hmac(Arc::new(HmacKey::new(bytes)))
            }
            ("EdDSA", None, Some(x)) => {
                let public = Ed25519Public::from_text(x).map_err(|error| match error {
                    KeyError::Point => "`x` is an Ed25519 key of small order, or not in its canonical encoding",
                    _ => "`x` is not an Ed25519 public key",
                })?;
                RecordKey::Ed25519 { thumbprint: ed25519_thumbprint(x), public }
            }
            ("HS256", ..) => return Err("an HS256 record has `key` and no `x`"),
            ("EdDSA", ..) => return Err("an EdDSA record has `x` and no `key`"),
            _ => return Err("`alg` is `HS256` or `EdDSA`"),
        };
        Ok(Self {
            kid: entry.kid.as_str().into(),
            owner: entry.owner.clone(),
            key,
            not_before: entry.not_before,
            not_after: entry.not_after,
            status: entry.status,
        })
    }

    /// Whether it verifies anything new at `now_s`.
    pub(super) fn is_usable(&self, now_s: u64) -> bool {
        self.status == KeyStatus::Active
            && self.not_before.is_none_or(|from| from <= now_s)
            && self.not_after.is_none_or(|until| now_s < until)
    }

    /// Whether both have one key: a record that was replaced under its id is another's.
    pub(super) fn has_key_of(&self, other: &Self) -> bool {
        match (&self.key, &other.key) {
            (RecordKey::Hmac(one), RecordKey::Hmac(other)) => one.is(other),
            (RecordKey::Ed25519 { thumbprint: one, .. }, RecordKey::Ed25519 { thumbprint: other, .. }) => one == other,
            (RecordKey::Hmac(_), RecordKey::Ed25519 { .. }) | (RecordKey::Ed25519 { .. }, RecordKey::Hmac(_)) => false,
        }
    }

    pub(super) fn algorithm(&self) -> ProofAlgorithm {
        match self.key {
            RecordKey::Hmac(_) => ProofAlgorithm::Hs256,
            RecordKey::Ed25519 { .. } => ProofAlgorithm::EdDsa,
        }
    }

    pub(super) fn thumbprint(&self) -> Option<&str> {
        match &self.key {
            RecordKey::Hmac(_) => None,
            RecordKey::Ed25519 { thumbprint, .. } => Some(thumbprint),
        }
    }
}

impl KeyEntry {
    /// The record that lets `audience` verify an HMAC key.
    #[must_use]
    pub fn hmac(kid: &str, owner: Name, derived: &HmacKey) -> Self {
        Self::with(kid, owner, ProofAlgorithm::Hs256, Some(b64(derived.expose())), None)
    }

    /// The record that lets a service verify an Ed25519 key.
    #[must_use]
    pub fn ed25519(kid: &str, owner: Name, x: String) -> Self {
        Self::with(kid, owner, ProofAlgorithm::EdDsa, None, Some(x))
    }

    /// The RFC 7638 thumbprint of an Ed25519 record's public key, for a token's `cnf.jkt`; `None` for an HMAC record.
    #[must_use]
    pub fn thumbprint(&self) -> Option<String> {
        self.x.as_deref().map(ed25519_thumbprint)
    }

    fn with(kid: &str, owner: Name, alg: ProofAlgorithm, key: Option<String>, x: Option<String>) -> Self {
        Self {
            kid: kid.to_owned(),
            owner,
            alg: alg.as_str().to_owned(),
            key,
            x,
            not_before: None,
            not_after: None,
            status: KeyStatus::Active,
        }
    }
}

#[cfg(test)]
mod tests;
