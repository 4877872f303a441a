//! The few pieces of JOSE that both directions share: base64url, digests, strict integers.
//! Never accepts two texts for one value.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Deserializer};
use sha2::{Digest, Sha256};

/// base64url without padding (RFC 7515 §2).
pub(crate) fn b64(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// Decodes canonical, unpadded base64url; the engine refuses padding and non-zero trailing bits.
pub(crate) fn unb64(text: &str) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(text).ok()
}

/// SHA-256.
pub(crate) fn sha256(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

/// base64url(SHA-256(bytes)), as the claims `ath`, `dig` and `req` carry it.
pub(crate) fn sha256_b64(bytes: &[u8]) -> String {
    b64(&sha256(bytes))
}

/// The largest integer a JOSE part may hold: 2^53 - 1 (RFC 8259 §6, interoperable range).
pub(crate) const MAX_INTEGER: u64 = (1 << 53) - 1;

/// A JSON integer from 0 to 2^53 - 1; a fraction or an exponent is refused, also where its value would be whole.
pub(crate) fn integer<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    // serde_json hands `1.0` and `1e3` to visit_f64, which u64 refuses.
    let value = u64::deserialize(deserializer)?;
    if value > MAX_INTEGER {
        return Err(serde::de::Error::custom("integer above 2^53-1"));
    }
    Ok(value)
}

/// As [`integer`], for a member that may be absent. `null` is refused.
pub(crate) fn optional_integer<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    integer(deserializer).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64url_is_canonical() {
        assert_eq!(unb64("AAECAwQFBgcICQoLDA0ODw").map(|b| b.len()), Some(16));
        // The last character carries four unused bits: only the text with zero bits is canonical.
        for text in ["AAECAwQFBgcICQoLDA0ODx", "AA==", "AA=", "A", "AA AA", "AA\n", "A+/A"] {
            assert_eq!(unb64(text), None, "{text}");
        }
    }

    #[test]
    fn integers_have_one_text() {
        #[derive(Deserialize)]
        struct One {
            #[serde(deserialize_with = "integer")]
            n: u64,
        }
        let parse = |text: &str| serde_json::from_str::<One>(text).ok().map(|one| one.n);
        assert_eq!(parse(r#"{"n":9007199254740991}"#), Some(MAX_INTEGER));
        for bad in ["9007199254740992", "1.0", "1e3", "-1", "-0", "\"1\"", "null", "01", "18446744073709551616"] {
            assert_eq!(parse(&format!("{{\"n\":{bad}}}")), None, "{bad}");
        }
    }
}
