//! One issuer key: a JSON Web Key judged for one algorithm and one purpose.
//! Never uses a key for anything that its record does not say, and never keeps a private member of a public key.

use std::fmt;

use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED, ParsedPublicKey};
use jsonwebtoken::{Algorithm, DecodingKey};
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

use super::header::is_key_id;
use super::rules::Symmetric;
use super::{TokenAlgorithm, TokenError, roca};
use crate::jose::{unb64, unb64_array};
use crate::wire::Ed25519Public;

/// What is accepted from an issuer's key set.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct KeyRules {
    /// The issuer (`iss`) that the keys belong to.
    pub issuer: String,
    /// Whether symmetric keys are accepted.
    pub symmetric: Symmetric,
    /// The algorithm of keys that have no `alg`; with it, keys with another `alg` are left out.
    pub algorithm: Option<TokenAlgorithm>,
    /// What `use` must be if it is present; `sig`.
    pub key_use: String,
}

impl KeyRules {
    /// The usual rules.
    #[must_use]
    pub fn new(issuer: impl Into<String>) -> Self {
        Self { issuer: issuer.into(), symmetric: Symmetric::Refused, algorithm: None, key_use: "sig".to_owned() }
    }
}

/// What is wrong with one key of a set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyFault {
    /// It is not a JSON object.
    #[error("it is not an object")]
    NotAnObject,
    /// `kid` is missing or outside its grammar.
    #[error("its kid must be 1 to 128 visible ASCII characters without quotes and backslash")]
    KeyId,
    /// `alg` is missing where the type of the key leaves a choice: the token must not make it.
    #[error("it has no alg; pin it with `algorithm` in the issuer's configuration")]
    NoAlgorithm,
    /// `alg` is missing, and access tokens use no algorithm for keys of this type.
    #[error("its kty and crv are none of those that access tokens use")]
    Kind,
    /// `alg` is not the one that the configuration pins.
    #[error("its alg is {0}, and {1} is pinned")]
    Pinned(TokenAlgorithm, TokenAlgorithm),
    /// It is there for several algorithms under one `kid`, and none is pinned: the token must not choose.
    #[error(
        "it is there for RS256 and for PS256 under one kid; pin one of them with `algorithm` in the issuer's configuration"
    )]
    Algorithms,
    /// `alg` is not one that access tokens use.
    #[error("its alg is not EdDSA, ES256, RS256, PS256 or HS256")]
    Algorithm,
    /// `kty` or `crv` does not fit its `alg`.
    #[error("its kty and crv do not fit its alg {0}")]
    Type(TokenAlgorithm),
    /// `use` is present and is neither `sig` nor what stands for it with this issuer.
    #[error("it is not for token signatures (`use`)")]
    Use,
    /// `key_ops` is present and is anything but `verify`, alone or with `sign`.
    #[error("its key_ops do not say verify, or say more than sign and verify")]
    Operations,
    /// A member of a private key is in a set of public keys: the private key has leaked, or the wrong file was named.
    #[error("it has the private member `{0}`; publish only public keys, and replace this one")]
    Private(&'static str),
    /// A member of the key itself is missing, has the wrong length, or is not canonical base64url.
    #[error("its `{0}` is missing, or has the wrong length or encoding")]
    Member(&'static str),
    /// The coordinates are not a usable point of the curve.
    #[error("it is not a usable point of its curve")]
    Point,
    /// The RSA modulus is outside 2048 to 8192 bits.
    #[error("its modulus has {0} bits; 2048 to 8192 are allowed")]
    ModulusLength(usize),
    /// The RSA modulus is even, which no product of two odd primes is.
    #[error("its modulus is even")]
    EvenModulus,
    /// The RSA exponent is even, below 65537, or above 32 bits.
    #[error("its exponent must be odd and from 65537 to 4294967295")]
    Exponent,
    /// The RSA modulus can be factored (ROCA, CVE-2017-15361).
    #[error("its modulus has the ROCA fingerprint: it can be factored; replace this key")]
    Roca,
    /// The secret is shorter than the hash (RFC 7518 §3.2).
    #[error("its secret has fewer than 32 bytes")]
    ShortSecret,
}

impl KeyFault {
    /// Whether the key shows that something is wrong with its publisher, so that none of the set is trusted: a private key that leaked, or
    /// a key that others can sign with. All other keys are just not meant for us.
    pub(super) fn is_dangerous(&self) -> bool {
        match self {
            Self::Private(_) | Self::Point | Self::EvenModulus | Self::Exponent | Self::Roca | Self::ShortSecret => {
                true
            }
            Self::ModulusLength(bits) => *bits < SHORTEST_MODULUS,
            Self::NotAnObject
            | Self::KeyId
            | Self::NoAlgorithm
            | Self::Kind
            | Self::Pinned(..)
            | Self::Algorithms
            | Self::Algorithm
            | Self::Type(_)
            | Self::Use
            | Self::Operations
            | Self::Member(_) => false,
        }
    }
}

impl KeyFault {
    /// Whether a key that is left out for this could still be one for signatures, so that no other key may have its name. One whose type
    /// contradicts its own algorithm is none for anybody, and one of another algorithm than the pinned one is none for us.
    pub(super) fn keeps_its_name(&self) -> bool {
        !matches!(
            self,
            Self::NotAnObject | Self::KeyId | Self::Use | Self::Operations | Self::Type(_) | Self::Pinned(..)
        )
    }
}

/// One usable key.
pub(super) struct IssuerKey {
    pub(super) kid: String,
    pub(super) algorithm: TokenAlgorithm,
    /// A digest of the key itself (for RSA, of its modulus), to find the same key under two names. It reveals nothing usable of a secret,
    /// and is never shown.
    pub(super) fingerprint: [u8; 32],
    key: DecodingKey,
}

impl IssuerKey {
    /// Judges one JWK (RFC 7517 §4; members that say nothing about verification are ignored, as it demands).
    pub(super) fn from_jwk(mut jwk: Map<String, Value>, rules: &KeyRules) -> Result<Self, KeyFault> {
        // Some serializers write what is not there as `null`, which says no more than leaving it out.
        jwk.retain(|_, member| !member.is_null());
        // First, whatever the key is for: a private key that everybody can read casts doubt on its neighbours.
        let is_secret = text(&jwk, "kty") == Some("oct") && text(&jwk, "alg") == Some("HS256");
        if let Some(name) = PRIVATE.into_iter().find(|name| jwk.contains_key(*name) && !(is_secret && *name == "k")) {
            return Err(KeyFault::Private(name));
        }
        let kid = match jwk.remove("kid") {
            Some(Value::String(kid)) if is_key_id(&kid) => kid,
            _ => return Err(KeyFault::KeyId),
        };
        if jwk.get("use").is_some_and(|purpose| *purpose != *rules.key_use) {
            return Err(KeyFault::Use);
        }
        if jwk.get("key_ops").is_some_and(|operations| !only_verifies(operations)) {
            return Err(KeyFault::Operations);
        }
        let algorithm = algorithm(&jwk, rules.algorithm)?;
        let (kty, crv) = algorithm.key_type();
        if text(&jwk, "kty") != Some(kty) || (crv.is_some() && text(&jwk, "crv") != crv) {
            return Err(KeyFault::Type(algorithm));
        }
        let (key, fingerprint) = match algorithm {
            TokenAlgorithm::EdDsa => ed25519(&jwk)?,
            TokenAlgorithm::Es256 => p256(&jwk)?,
            TokenAlgorithm::Rs256 | TokenAlgorithm::Ps256 => rsa(&jwk)?,
            TokenAlgorithm::Hs256 => secret(&mut jwk)?,
        };
        Ok(Self { kid, algorithm, fingerprint, key })
    }

    /// Whether `signature` (base64url text) is this key's over `signed`. The algorithm is the record's; the token has no say in it.
    pub(super) fn verify(&self, signed: &str, signature: &str) -> Result<(), TokenError> {
        let algorithm = for_verification(self.algorithm);
        match jsonwebtoken::crypto::verify(signature, signed.as_bytes(), &self.key, algorithm) {
            Ok(true) => Ok(()),
            Ok(false) | Err(_) => Err(TokenError::Signature),
        }
    }
}

impl fmt::Debug for IssuerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IssuerKey").field("kid", &self.kid).field("algorithm", &self.algorithm).finish_non_exhaustive()
    }
}

fn for_verification(algorithm: TokenAlgorithm) -> Algorithm {
    match algorithm {
        TokenAlgorithm::EdDsa => Algorithm::EdDSA,
        TokenAlgorithm::Es256 => Algorithm::ES256,
        TokenAlgorithm::Rs256 => Algorithm::RS256,
        TokenAlgorithm::Ps256 => Algorithm::PS256,
        TokenAlgorithm::Hs256 => Algorithm::HS256,
    }
}

/// The one algorithm of a key: its own `alg`, otherwise the pinned one, otherwise the only one that its type allows.
fn algorithm(jwk: &Map<String, Value>, pinned: Option<TokenAlgorithm>) -> Result<TokenAlgorithm, KeyFault> {
    match (jwk.get("alg"), pinned) {
        (Some(Value::String(name)), _) => {
            let own = TokenAlgorithm::from_name(name).ok_or(KeyFault::Algorithm)?;
            match pinned {
                Some(pinned) if pinned != own => Err(KeyFault::Pinned(own, pinned)),
                _ => Ok(own),
            }
        }
        (Some(_), _) => Err(KeyFault::Algorithm),
        (None, Some(pinned)) => Ok(pinned),
        (None, None) => match (text(jwk, "kty"), text(jwk, "crv")) {
            (Some("OKP"), Some("Ed25519")) => Ok(TokenAlgorithm::EdDsa),
            (Some("EC"), Some("P-256")) => Ok(TokenAlgorithm::Es256),
            (Some("RSA"), _) => Err(KeyFault::NoAlgorithm),
            _ => Err(KeyFault::Kind),
        },
    }
}

fn text<'a>(jwk: &'a Map<String, Value>, name: &str) -> Option<&'a str> {
    jwk.get(name).and_then(Value::as_str)
}

/// RFC 7517 §4.3: an array of strings without repetition. `sign` beside `verify` is usual for one key of a pair; any
/// other operation means a key with two purposes.
fn only_verifies(operations: &Value) -> bool {
    let Some(list) = operations.as_array() else { return false };
    let count = |name: &str| list.iter().filter(|operation| *operation == name).count();
    count("verify") == 1 && count("sign") <= 1 && count("verify") + count("sign") == list.len()
}

type Judged = (DecodingKey, [u8; 32]);

fn ed25519(jwk: &Map<String, Value>) -> Result<Judged, KeyFault> {
    let x = text(jwk, "x").and_then(unb64_array::<32>).ok_or(KeyFault::Member("x"))?;
    let x = *Ed25519Public::new(x).map_err(|_| KeyFault::Point)?.as_bytes();
    Ok((DecodingKey::from_ed_der(&x), fingerprint("OKP", &[&x])))
}

fn p256(jwk: &Map<String, Value>) -> Result<Judged, KeyFault> {
    let coordinate = |name: &'static str| text(jwk, name).and_then(unb64_array::<32>).ok_or(KeyFault::Member(name));
    let (x, y) = (coordinate("x")?, coordinate("y")?);
    // SEC 1 §2.3.3: an uncompressed point is 0x04, x, y.
    let point = [&[0x04][..], &x, &y].concat();
    ParsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, &point).map_err(|_| KeyFault::Point)?;
    Ok((DecodingKey::from_ec_der(&point), fingerprint("EC", &[&x, &y])))
}

fn rsa(jwk: &Map<String, Value>) -> Result<Judged, KeyFault> {
    let n = unsigned(jwk, "n")?;
    let e = unsigned(jwk, "e")?;
    let leading = n.first().map_or(0, |byte| byte.leading_zeros());
    let bits = (n.len() * 8).saturating_sub(usize::try_from(leading).unwrap_or(0));
    // 2048: NIST SP 800-131A. 8192: what the verifier accepts; the cost of a check grows with the square of the length.
    if !(SHORTEST_MODULUS..=8192).contains(&bits) {
        return Err(KeyFault::ModulusLength(bits));
    }
    if n.last().is_none_or(|low| low % 2 == 0) {
        return Err(KeyFault::EvenModulus);
    }
    // Small exponents make several known mistakes of signers and verifiers exploitable (FIPS 186-5 §5.1: above 2^16).
    let exponent = e.iter().try_fold(0_u32, |value, &byte| value.checked_mul(256)?.checked_add(u32::from(byte)));
    if exponent.is_none_or(|value| value < 65537 || value % 2 == 0) {
        return Err(KeyFault::Exponent);
    }
    if roca::is_fingerprinted(&n) {
        return Err(KeyFault::Roca);
    }
    Ok((DecodingKey::from_rsa_raw_components(&n, &e), fingerprint("RSA", &[&n])))
}

/// RFC 7518 §2, Base64urlUInt: big-endian, without leading zero bytes.
fn unsigned(jwk: &Map<String, Value>, name: &'static str) -> Result<Vec<u8>, KeyFault> {
    text(jwk, name)
        .and_then(unb64)
        .filter(|bytes| bytes.first().is_some_and(|first| *first != 0))
        .ok_or(KeyFault::Member(name))
}

fn secret(jwk: &mut Map<String, Value>) -> Result<Judged, KeyFault> {
    let Some(Value::String(k)) = jwk.remove("k") else { return Err(KeyFault::Member("k")) };
    let text = Zeroizing::new(k);
    let bytes = Zeroizing::new(unb64(&text).ok_or(KeyFault::Member("k"))?);
    if bytes.len() < 32 {
        return Err(KeyFault::ShortSecret);
    }
    Ok((DecodingKey::from_secret(&bytes), fingerprint("oct", &[&bytes])))
}

fn fingerprint(kty: &str, parts: &[&[u8]]) -> [u8; 32] {
    let mut digest = Sha256::new();
    for part in [&[kty.as_bytes()], parts].concat() {
        digest.update(part.len().to_be_bytes());
        digest.update(part);
    }
    digest.finalize().into()
}

/// In bits.
const SHORTEST_MODULUS: usize = 2048;

/// RFC 7518 §6.2.2, §6.3.2, §6.4.1 and RFC 8037 §2: the members that only a private or symmetric key has.
const PRIVATE: [&str; 8] = ["d", "p", "q", "dp", "dq", "qi", "oth", "k"];
