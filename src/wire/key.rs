//! The keys that sign and verify messages. Never prints a secret, and wipes secret bytes on drop.

use std::fmt;
use std::sync::Arc;

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
use hkdf::Hkdf;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use zeroize::Zeroizing;

use super::algorithm::ProofAlgorithm;
use super::ed25519::Ed25519Public;
use super::endpoint::Audience;
use super::key_error::KeyError;
use super::proof::is_kid;

/// A symmetric key for one agent and one service. 32 bytes; MACs are never truncated.
#[derive(Clone)]
pub struct HmacKey {
    bytes: Zeroizing<[u8; 32]>,
    // Keyed once: keying it for each message would cost 17 % more (our measurement, 512-byte messages).
    keyed: Hmac<Sha256>,
}

impl HmacKey {
    /// Makes a key of these bytes, as a key ring stores it.
    #[must_use]
    pub fn new(bytes: [u8; 32]) -> Self {
        let bytes = Zeroizing::new(bytes);
        let keyed = <Hmac<Sha256> as KeyInit>::new(&(*bytes).into_block());
        Self { bytes, keyed }
    }

    /// Derives the key by HKDF-SHA256 (RFC 5869) from an agent's master secret: empty salt, `info` = `nats-rpc-v1|<audience>|<kid>`.
    ///
    /// A service holds only derived keys, so a compromised service cannot sign as the agent towards another one.
    #[must_use]
    pub fn derive(master: &[u8], audience: &Audience, kid: &str) -> Self {
        let info = format!("nats-rpc-v1|{audience}|{kid}");
        let mut bytes = Zeroizing::new([0_u8; 32]);
        // 32 bytes are below the limit of 255 blocks, so expanding cannot fail.
        let expanded = Hkdf::<Sha256>::new(None, master).expand(info.as_bytes(), bytes.as_mut_slice());
        debug_assert!(expanded.is_ok());
        Self::new(*bytes)
    }

    /// The key's bytes, for writing a key ring file.
    #[must_use]
    pub fn expose(&self) -> &[u8; 32] {
        &self.bytes
    }

    /// Whether both have the same bytes, in constant time.
    pub(crate) fn is(&self, other: &Self) -> bool {
        self.verify(b"", &other.sign(b""))
    }

    pub(crate) fn sign(&self, message: &[u8]) -> [u8; 32] {
        let mut mac = self.keyed.clone();
        mac.update(message);
        mac.finalize().into_bytes().into()
    }

    /// A MAC for many messages with the same beginning.
    pub(super) fn begin(&self, beginning: &[u8]) -> PartialMac {
        let mut mac = self.keyed.clone();
        mac.update(beginning);
        PartialMac(mac)
    }

    /// Compares in constant time; refuses any length other than 32 bytes.
    pub(crate) fn verify(&self, message: &[u8], signature: &[u8]) -> bool {
        let mut mac = self.keyed.clone();
        mac.update(message);
        mac.verify_slice(signature).is_ok()
    }
}

/// The MAC over the beginning of a message.
pub(super) struct PartialMac(Hmac<Sha256>);

impl PartialMac {
    /// The MAC over the whole message.
    pub(super) fn finish(&self, rest: &[u8]) -> [u8; 32] {
        let mut mac = self.0.clone();
        mac.update(rest);
        mac.finalize().into_bytes().into()
    }
}

impl fmt::Debug for PartialMac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PartialMac(..)")
    }
}

/// Pads a 32-byte key to the hash's block size (RFC 2104 §2).
trait IntoBlock {
    fn into_block(self) -> hmac::digest::Key<Hmac<Sha256>>;
}

impl IntoBlock for [u8; 32] {
    fn into_block(self) -> hmac::digest::Key<Hmac<Sha256>> {
        let mut block = hmac::digest::Key::<Hmac<Sha256>>::default();
        for (to, from) in block.iter_mut().zip(self) {
            *to = from;
        }
        block
    }
}

impl fmt::Debug for HmacKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HmacKey(..)")
    }
}

/// A signature, without an allocation: 32 bytes of HMAC-SHA256, 64 of Ed25519.
pub(crate) struct SignatureBytes {
    bytes: [u8; 64],
    length: usize,
}

impl SignatureBytes {
    /// No signature is longer than an Ed25519 one. A longer one becomes empty, which is valid for no message either.
    pub(super) fn of(signature: &[u8]) -> Self {
        let mut bytes = [0; 64];
        let length = match bytes.get_mut(..signature.len()) {
            Some(room) => {
                room.copy_from_slice(signature);
                signature.len()
            }
            None => 0,
        };
        Self { bytes, length }
    }
}

impl AsRef<[u8]> for SignatureBytes {
    fn as_ref(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}

/// Returns `N` random bytes from the operating system.
pub(crate) fn random_bytes<const N: usize>() -> Result<[u8; N], KeyError> {
    let mut bytes = [0_u8; N];
    aws_lc_rs::rand::SecureRandom::fill(&SystemRandom::new(), &mut bytes).map_err(|_| KeyError::Random)?;
    Ok(bytes)
}

/// An Ed25519 key pair that keeps its seed, so that it can be written to a file.
pub(super) struct Pair {
    seed: Zeroizing<[u8; 32]>,
    pair: Ed25519KeyPair,
}

impl Pair {
    fn from_seed(seed: [u8; 32]) -> Result<Self, KeyError> {
        let seed = Zeroizing::new(seed);
        let pair = Ed25519KeyPair::from_seed_unchecked(seed.as_slice()).map_err(|_| KeyError::Ed25519)?;
        Ok(Self { seed, pair })
    }

    fn x(&self) -> String {
        crate::jose::b64(self.pair.public_key().as_ref())
    }

    /// The public half. A seed never yields a point of small order (RFC 8032 §5.1.5: the scalar is clamped), so a
    /// failure here would be the library's.
    fn public(&self) -> Result<Ed25519Public, KeyError> {
        let bytes = self.pair.public_key().as_ref().try_into().map_err(|_| KeyError::Ed25519)?;
        Ed25519Public::new(bytes)
    }
}

/// The key with which an agent signs its requests: an HMAC master secret, or an Ed25519 key pair.
pub struct AgentKey {
    kid: String,
    secret: AgentSecret,
}

enum AgentSecret {
    Master(Zeroizing<Vec<u8>>),
    Pair(Box<Pair>),
}

impl AgentKey {
    /// An HMAC key from a master secret of at least 32 bytes.
    ///
    /// # Errors
    /// [`KeyError::Kid`], [`KeyError::Short`].
    pub fn hmac(kid: &str, master: &[u8]) -> Result<Self, KeyError> {
        if master.len() < 32 {
            return Err(KeyError::Short);
        }
        Self::with(kid, AgentSecret::Master(Zeroizing::new(master.to_vec())))
    }

    /// An Ed25519 key from its seed (RFC 8032 §5.1.5).
    ///
    /// # Errors
    /// [`KeyError::Kid`], [`KeyError::Ed25519`].
    pub fn ed25519(kid: &str, seed: [u8; 32]) -> Result<Self, KeyError> {
        Self::with(kid, AgentSecret::Pair(Box::new(Pair::from_seed(seed)?)))
    }

    /// Generates a key from random bytes.
    ///
    /// # Errors
    /// [`KeyError::Kid`], [`KeyError::Random`].
    pub fn generate(kid: &str, algorithm: ProofAlgorithm) -> Result<Self, KeyError> {
        let bytes = Zeroizing::new(random_bytes::<32>()?);
        match algorithm {
            ProofAlgorithm::Hs256 => Self::hmac(kid, bytes.as_slice()),
            ProofAlgorithm::EdDsa => Self::ed25519(kid, *bytes),
        }
    }

    fn with(kid: &str, secret: AgentSecret) -> Result<Self, KeyError> {
        if !is_kid(kid) {
            return Err(KeyError::Kid);
        }
        Ok(Self { kid: kid.to_owned(), secret })
    }

    /// The key id.
    #[must_use]
    pub fn kid(&self) -> &str {
        &self.kid
    }

    /// The proof algorithm of this kind of key.
    #[must_use]
    pub fn algorithm(&self) -> ProofAlgorithm {
        match self.secret {
            AgentSecret::Master(_) => ProofAlgorithm::Hs256,
            AgentSecret::Pair(_) => ProofAlgorithm::EdDsa,
        }
    }

    /// The secret bytes, for writing a credentials file: the HMAC master secret or the Ed25519 seed.
    #[must_use]
    pub fn expose(&self) -> &[u8] {
        match &self.secret {
            AgentSecret::Master(master) => master,
            AgentSecret::Pair(pair) => pair.seed.as_slice(),
        }
    }

    /// The key that the service `audience` holds for this agent; `None` for an Ed25519 key, for which the service holds
    /// [`AgentKey::public`].
    #[must_use]
    pub fn derived(&self, audience: &Audience) -> Option<HmacKey> {
        match &self.secret {
            AgentSecret::Master(master) => Some(HmacKey::derive(master, audience, &self.kid)),
            AgentSecret::Pair(_) => None,
        }
    }

    /// The Ed25519 public key as base64url; `None` for an HMAC key.
    #[must_use]
    pub fn public(&self) -> Option<String> {
        match &self.secret {
            AgentSecret::Master(_) => None,
            AgentSecret::Pair(pair) => Some(pair.x()),
        }
    }

    /// Signs with an Ed25519 key; `None` for an HMAC key.
    pub(super) fn sign_with_pair(&self, message: &[u8]) -> Option<Vec<u8>> {
        match &self.secret {
            AgentSecret::Master(_) => None,
            AgentSecret::Pair(pair) => Some(pair.pair.sign(message).as_ref().to_vec()),
        }
    }

    /// The signing key towards one service.
    pub(super) fn signer(&self, audience: &Audience) -> Result<SignWith, KeyError> {
        Ok(match &self.secret {
            AgentSecret::Master(master) => SignWith::Hmac(Arc::new(HmacKey::derive(master, audience, &self.kid))),
            AgentSecret::Pair(pair) => SignWith::Pair(Box::new(Pair::from_seed(*pair.seed)?)),
        })
    }
}

impl fmt::Debug for AgentKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AgentKey({}, {}, ..)", self.kid, self.algorithm())
    }
}

/// A secret for requests to one service.
pub(super) enum SignWith {
    /// Shared with the [`Expectation`](super::Expectation) of each answer.
    Hmac(Arc<HmacKey>),
    Pair(Box<Pair>),
}

impl SignWith {
    pub(super) fn sign(&self, message: &[u8]) -> SignatureBytes {
        match self {
            Self::Hmac(key) => SignatureBytes::of(&key.sign(message)),
            Self::Pair(pair) => SignatureBytes::of(pair.pair.sign(message).as_ref()),
        }
    }
}

/// The key pair with which a service signs its answers to Ed25519 requests: `svc:<environment>/<service>:<n>`.
pub struct ServiceKey {
    kid: String,
    pair: Pair,
    public: Ed25519Public,
}

impl ServiceKey {
    /// Makes a key pair from its seed.
    ///
    /// # Errors
    /// [`KeyError::Kid`] when `kid` does not begin with `svc:<audience>:`, [`KeyError::Ed25519`].
    pub fn new(kid: &str, audience: &Audience, seed: [u8; 32]) -> Result<Self, KeyError> {
        let number = kid.strip_prefix("svc:").and_then(|rest| rest.strip_prefix(audience.as_str()));
        if !is_kid(kid) || !number.is_some_and(|rest| rest.len() > 1 && rest.starts_with(':')) {
            return Err(KeyError::Kid);
        }
        let pair = Pair::from_seed(seed)?;
        let public = pair.public()?;
        Ok(Self { kid: kid.to_owned(), pair, public })
    }

    /// Generates a key pair.
    ///
    /// # Errors
    /// [`KeyError::Kid`], [`KeyError::Random`].
    pub fn generate(kid: &str, audience: &Audience) -> Result<Self, KeyError> {
        Self::new(kid, audience, random_bytes()?)
    }

    /// The key id.
    #[must_use]
    pub fn kid(&self) -> &str {
        &self.kid
    }

    /// The seed, for writing a key file.
    #[must_use]
    pub fn expose(&self) -> &[u8; 32] {
        &self.pair.seed
    }

    /// The public key, which clients pin.
    #[must_use]
    pub fn public(&self) -> ServicePublicKey {
        ServicePublicKey { kid: self.kid.clone(), key: self.public.clone() }
    }

    /// The key with which replicas authenticate what they store to each other, derived from the seed by HKDF-SHA256. No
    /// agent's key can be derived with the same text: a key id contains no blanks.
    pub(crate) fn store_key(&self, audience: &Audience) -> HmacKey {
        HmacKey::derive(self.pair.seed.as_slice(), audience, "stored outcomes")
    }

    /// The same for approvals: no outcome may pass for one.
    pub(crate) fn approval_key(&self, audience: &Audience) -> HmacKey {
        HmacKey::derive(self.pair.seed.as_slice(), audience, "stored approvals")
    }

    /// The same for counts of budgets.
    pub(crate) fn budget_key(&self, audience: &Audience) -> HmacKey {
        HmacKey::derive(self.pair.seed.as_slice(), audience, "stored budgets")
    }

    pub(super) fn sign(&self, message: &[u8]) -> SignatureBytes {
        SignatureBytes::of(self.pair.pair.sign(message).as_ref())
    }
}

impl fmt::Debug for ServiceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ServiceKey({}, ..)", self.kid)
    }
}

/// A service's public key, as clients pin it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServicePublicKey {
    kid: String,
    pub(super) key: Ed25519Public,
}

impl ServicePublicKey {
    /// A pinned key from its key id and its public key in base64url.
    ///
    /// # Errors
    /// [`KeyError`] when either is malformed.
    pub fn new(kid: &str, x: &str) -> Result<Self, KeyError> {
        if !is_kid(kid) || !kid.starts_with("svc:") {
            return Err(KeyError::Kid);
        }
        Ok(Self { kid: kid.to_owned(), key: Ed25519Public::from_text(x)? })
    }

    /// The key id.
    #[must_use]
    pub fn kid(&self) -> &str {
        &self.kid
    }

    /// The public key as base64url.
    #[must_use]
    pub fn x(&self) -> String {
        self.key.to_text()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zeroize::ZeroizeOnDrop;

    /// Fails, or does not compile, without the feature `zeroize` of `hmac` and `sha2`: an HMAC consists of two hash
    /// states, which wipe themselves.
    #[test]
    fn keyed_states_are_wiped() {
        fn is_wiped<T: ZeroizeOnDrop>() {}
        is_wiped::<Sha256>();
        assert!(std::mem::needs_drop::<Hmac<Sha256>>());
    }
}
