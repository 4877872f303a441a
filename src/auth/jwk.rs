//! What every JSON Web Key of the product shares: canonical base64url, thumbprints.
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
}
