//! Ed25519 public keys, and the one place where they are constructed.
//! Never holds a point for which somebody can sign without a private key.

use std::fmt;

use aws_lc_rs::signature::{ED25519, UnparsedPublicKey};

use super::key_error::KeyError;
use crate::jose::{b64, unb64};

/// An Ed25519 public key (RFC 8032): a canonical encoding of a point whose order is not small.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Ed25519Public([u8; 32]);

impl Ed25519Public {
    /// Makes a key of these bytes.
    ///
    /// A verifier does not check the order of the point. For the eight points of small order, anybody can make a
    /// "signature" that is valid for some message, or for every message, without a secret: an agent that enrols such a
    /// key can deny what it signed, and a client that pins it accepts answers from anybody. A non-canonical encoding is
    /// a second text of some key, with another thumbprint.
    pub(crate) fn new(bytes: [u8; 32]) -> Result<Self, KeyError> {
        if is_canonical(&bytes) && !is_small_order(&bytes) { Ok(Self(bytes)) } else { Err(KeyError::Point) }
    }

    /// Decodes the key from an `x` member (RFC 8037 §2).
    pub(crate) fn from_text(x: &str) -> Result<Self, KeyError> {
        let bytes = unb64(x).ok_or(KeyError::Encoding)?;
        Self::new(bytes.try_into().map_err(|_| KeyError::Ed25519)?)
    }

    pub(crate) fn verify(&self, message: &[u8], signature: &[u8]) -> bool {
        UnparsedPublicKey::new(&ED25519, &self.0).verify(message, signature).is_ok()
    }

    pub(crate) fn to_text(&self) -> String {
        b64(self.0)
    }

    pub(crate) fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for Ed25519Public {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ed25519Public({})", self.to_text())
    }
}

/// Whether the y coordinate is below p = 2^255 - 19 (RFC 8032 §5.1.3, step 1). The sign of x can be wrong only for x =
/// 0, and those two points are of small order.
fn is_canonical(bytes: &[u8; 32]) -> bool {
    let [lowest, middle @ .., highest] = bytes;
    *lowest < 0xed || highest & 0x7f != 0x7f || middle.iter().any(|byte| *byte != 0xff)
}

/// Whether the order of the point divides 8.
fn is_small_order(bytes: &[u8; 32]) -> bool {
    let [head @ .., last] = bytes;
    SMALL_ORDER.iter().any(|[weak_head @ .., weak_last]| head == weak_head && last & 0x7f == *weak_last)
}

/// The y coordinates of the eight points whose order divides 8 (RFC 7748 §6 gives their Montgomery counterparts): order
/// 4, 1, 2, and twice 8. The caller masks the sign bit, which distinguishes the others.
const SMALL_ORDER: [[u8; 32]; 5] = [
    with_ends(0x00, 0x00, 0x00),
    with_ends(0x01, 0x00, 0x00),
    with_ends(0xec, 0xff, 0x7f),
    [
        0x26, 0xe8, 0x95, 0x8f, 0xc2, 0xb2, 0x27, 0xb0, 0x45, 0xc3, 0xf4, 0x89, 0xf2, 0xef, 0x98, 0xf0, 0xd5, 0xdf,
        0xac, 0x05, 0xd3, 0xc6, 0x33, 0x39, 0xb1, 0x38, 0x02, 0x88, 0x6d, 0x53, 0xfc, 0x05,
    ],
    [
        0xc7, 0x17, 0x6a, 0x70, 0x3d, 0x4d, 0xd8, 0x4f, 0xba, 0x3c, 0x0b, 0x76, 0x0d, 0x10, 0x67, 0x0f, 0x2a, 0x20,
        0x53, 0xfa, 0x2c, 0x39, 0xcc, 0xc6, 0x4e, 0xc7, 0xfd, 0x77, 0x92, 0xac, 0x03, 0x7a,
    ],
];

const fn with_ends(first: u8, middle: u8, last: u8) -> [u8; 32] {
    let mut bytes = [middle; 32];
    bytes[0] = first;
    bytes[31] = last;
    bytes
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]
    use super::super::{Audience, ServiceKey, ServicePublicKey};
    use super::*;
    use crate::auth::{KeyEntry, KeyRing, KeyRingFile, KeySet, Symmetric};
    use crate::name::Name;

    /// The eight points of small order, and every encoding that RFC 8032 does not allow: y from p to 2^255 - 1 with
    /// either sign, and x = 0 with a negative sign.
    fn unusable() -> Vec<[u8; 32]> {
        let both_signs = |mut bytes: [u8; 32]| {
            let positive = bytes;
            bytes[31] |= 0x80;
            [positive, bytes]
        };
        let not_reduced = (0xed..=0xff_u8).map(|first| with_ends(first, 0xff, 0x7f));
        SMALL_ORDER.into_iter().chain(not_reduced).flat_map(both_signs).collect()
    }

    /// SPEC.md §5.3.
    #[test]
    fn ed25519_keys_of_small_order_and_second_encodings_are_refused_everywhere() {
        let audience = Audience::new(&Name::new("dev").unwrap(), &Name::new("math").unwrap());
        assert_eq!(unusable().len(), 2 * (5 + 19));
        for bytes in unusable() {
            let x = b64(bytes);
            assert_eq!(Ed25519Public::from_text(&x), Err(KeyError::Point), "{x}");
            assert_eq!(ServicePublicKey::new("svc:dev/math:1", &x), Err(KeyError::Point), "{x}");
            let entry = KeyEntry::ed25519("planner.k1", Name::new("planner").unwrap(), x.clone());
            let ring = KeyRing::new(KeyRingFile { audience: audience.to_string(), keys: vec![entry] }, &audience);
            assert!(ring.unwrap_err().to_string().contains("small order"), "{x}");
            let jwks = format!(r#"{{"keys":[{{"kty":"OKP","crv":"Ed25519","alg":"EdDSA","kid":"a","x":"{x}"}}]}}"#);
            let set = KeySet::from_jwks(&jwks, "https://idp.example", "jwks.json", Symmetric::Refused);
            assert!(set.unwrap_err().to_string().contains("not a usable point"), "{x}");
        }
    }

    /// R = the identity and S = 0 satisfy the equation of RFC 8032 §5.1.7 if the key is the identity, whatever is signed.
    #[test]
    fn nobody_signs_without_a_private_key() {
        let (identity, mut forged) = (with_ends(0x01, 0x00, 0x00), [0_u8; 64]);
        forged[0] = 1;
        assert!(
            Ed25519Public(identity).verify(b"anything", &forged),
            "the library takes it, so the constructor must not"
        );
        assert!(Ed25519Public::new(identity).is_err());
    }

    #[test]
    fn keys_that_are_made_are_taken() {
        let audience = Audience::new(&Name::new("dev").unwrap(), &Name::new("math").unwrap());
        for _ in 0..50 {
            let key = ServiceKey::generate("svc:dev/math:1", &audience).unwrap();
            assert!(ServicePublicKey::new(key.kid(), &key.public().x()).is_ok());
        }
        // RFC 8037 appendix A.2, and y = p - 2, the largest that is reduced and not of small order, whether or not it is on the curve.
        assert!(Ed25519Public::from_text("11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo").is_ok());
        assert!(Ed25519Public::new(with_ends(0xeb, 0xff, 0x7f)).is_ok());
        assert!(Ed25519Public::new([0xff; 32]).is_err());
    }
}
