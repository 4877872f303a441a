//! What every JSON Web Key of the product shares: canonical base64url, thumbprints, unusable Ed25519 points.
//! Never sees a private member and never decides whom a key belongs to.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest as _, Sha256};

/// Decodes unpadded, canonical base64url; `None` for anything else.
///
/// Padding, foreign characters and non-zero trailing bits are refused: a value must have one text only, because
/// digests are taken over texts.
pub(crate) fn decode(text: &str) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(text).ok()
}

/// Decodes exactly `N` bytes of unpadded, canonical base64url.
pub(crate) fn decode_array<const N: usize>(text: &str) -> Option<[u8; N]> {
    // The length is known beforehand, so an over-long text is not even decoded.
    if text.len() != (N * 4).div_ceil(3) {
        return None;
    }
    decode(text)?.try_into().ok()
}

/// Encodes to unpadded base64url.
pub(crate) fn encode(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// The RFC 7638 thumbprint (`jkt`) of an Ed25519 public key: RFC 8037 §2 names the members `crv`, `kty`, `x`.
pub(crate) fn ed25519_thumbprint(x: &[u8; 32]) -> String {
    let canonical = format!(r#"{{"crv":"Ed25519","kty":"OKP","x":"{}"}}"#, encode(x));
    encode(Sha256::digest(canonical))
}

/// Whether an Ed25519 public key is a point of small order: a signature that holds for every message can be made for
/// such a key without any secret, so whoever plants one can speak for its owner.
pub(crate) fn is_small_order_ed25519(x: &[u8; 32]) -> bool {
    let [.., last] = x;
    let unsigned = last & 0x7f;
    SMALL_ORDER.iter().any(|weak| {
        let [weak_head @ .., weak_last] = weak;
        let [head @ .., _] = x;
        head == weak_head && unsigned == *weak_last
    })
}

/// The y coordinates of the eight points whose order divides 8 (RFC 7748 §6 speaks of their Montgomery twins), with
/// the encodings that are not reduced modulo p; the sign bit is masked by the caller.
const SMALL_ORDER: [[u8; 32]; 7] = [
    with_ends(0x00, 0x00, 0x00),
    with_ends(0x01, 0x00, 0x00),
    with_ends(0xec, 0xff, 0x7f),
    with_ends(0xed, 0xff, 0x7f),
    with_ends(0xee, 0xff, 0x7f),
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
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn thumbprint_is_that_of_rfc_8037() {
        // RFC 8037 appendix A.2 (the key) and A.3 (its thumbprint).
        let x = decode_array("11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo").unwrap();
        assert_eq!(ed25519_thumbprint(&x), "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k");
    }

    #[test]
    fn only_canonical_base64url_is_decoded() {
        assert_eq!(decode("AQ"), Some(vec![1]));
        for bad in ["AQ==", "AR", "A", "A+", "A/", "AQ ", "AQ\n", "A Q"] {
            assert_eq!(decode(bad), None, "{bad:?}");
        }
        assert_eq!(decode_array::<1>("AQ"), Some([1]));
        assert_eq!(decode_array::<2>("AQ"), None);
    }

    #[test]
    fn small_order_points_are_known_with_either_sign_bit() {
        for mut x in SMALL_ORDER {
            assert!(is_small_order_ed25519(&x));
            x[31] |= 0x80;
            assert!(is_small_order_ed25519(&x));
        }
        let good = decode_array("11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo").unwrap();
        assert!(!is_small_order_ed25519(&good));
    }
}
