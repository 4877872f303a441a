//! The few pieces of JOSE that messages, tokens and key files share: base64url, digests, thumbprints, strict integers.
//! Never accepts two encodings of one value.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use sha2::{Digest, Sha256};

/// Encodes as base64url without padding (RFC 7515 §2).
pub(crate) fn b64(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// Like [`b64`], appended to `text`.
pub(crate) fn b64_to(bytes: impl AsRef<[u8]>, text: &mut String) {
    URL_SAFE_NO_PAD.encode_string(bytes, text);
}

/// Decodes canonical, unpadded base64url; `None` for anything else.
///
/// The engine refuses padding, foreign characters and non-zero trailing bits: each value must have exactly one
/// encoding, because digests are taken over the encoded text.
pub(crate) fn unb64(text: impl AsRef<[u8]>) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(text).ok()
}

/// Like [`unb64`], but into `room` if the text is short enough.
pub(crate) fn unb64_in<'r, const N: usize>(text: impl AsRef<[u8]>, room: &'r mut [u8; N]) -> Option<Cow<'r, [u8]>> {
    let text = text.as_ref();
    // The engine's own estimate: groups of four characters, the last one rounded up.
    if text.len().div_ceil(4) * 3 > N {
        return unb64(text).map(Cow::Owned);
    }
    let length = URL_SAFE_NO_PAD.decode_slice(text, room).ok()?;
    room.get(..length).map(Cow::Borrowed)
}

/// Decodes exactly `N` bytes.
pub(crate) fn unb64_array<const N: usize>(text: &str) -> Option<[u8; N]> {
    // The length is known in advance, so an overlong text is not even decoded.
    if text.len() != (N * 4).div_ceil(3) {
        return None;
    }
    unb64(text)?.try_into().ok()
}

/// SHA-256.
pub(crate) fn sha256(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

/// The base64url of a digest, without an allocation.
pub(crate) fn b64_digest(digest: &[u8; 32]) -> [u8; 43] {
    let mut text = [0; 43];
    let written = URL_SAFE_NO_PAD.encode_slice(digest, &mut text);
    debug_assert_eq!(written, Ok(43), "32 bytes are 43 characters");
    text
}

/// base64url(SHA-256(bytes)), as in the claims `ath`, `dig` and `req`.
pub(crate) fn sha256_b64(bytes: &[u8]) -> String {
    b64(sha256(bytes))
}

/// The thumbprint of an Ed25519 public key (RFC 7638, members `crv`, `kty`, `x` in this order: RFC 8037 §2).
pub(crate) fn ed25519_thumbprint(x: &str) -> String {
    sha256_b64(format!(r#"{{"crv":"Ed25519","kty":"OKP","x":"{x}"}}"#).as_bytes())
}

/// The largest integer a JOSE part may hold: 2^53 - 1 (RFC 8259 §6, interoperable range).
pub(crate) const MAX_INTEGER: u64 = (1 << 53) - 1;

/// Reads a JSON integer from 0 to 2^53 - 1; refuses a fraction or an exponent, even if the value is whole.
pub(crate) fn integer<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    // serde_json hands `1.0` and `1e3` to visit_f64, which u64 refuses.
    let value = u64::deserialize(deserializer)?;
    if value > MAX_INTEGER {
        return Err(serde::de::Error::custom("integer above 2^53-1"));
    }
    Ok(value)
}

/// Like [`integer`], for a member that may be absent. `null` is refused.
pub(crate) fn optional_integer<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    integer(deserializer).map(Some)
}

/// A date of a token (RFC 7519 §2, `NumericDate`), in whole seconds since the Unix epoch. It is a number from 0 to 2^53 - 1 without a sign,
/// with or without fraction and exponent, as issuers write it; a fraction is left out, so that an expiry is never late.
pub(crate) fn numeric_date(value: &Value) -> Option<u64> {
    seconds(value, f64::floor)
}

/// Like [`numeric_date`], but a fraction counts as a whole second, so that the beginning of a validity is never early.
pub(crate) fn numeric_date_up(value: &Value) -> Option<u64> {
    seconds(value, f64::ceil)
}

/// The time from one date to another. To the millisecond: issuers compute the second from the first, and both are rounded when written.
pub(crate) fn milliseconds_between(from: &Value, to: &Value) -> Option<i64> {
    if let (Some(from), Some(to)) = (from.as_i64(), to.as_i64()) {
        return to.checked_sub(from)?.checked_mul(1_000);
    }
    // Two dates that are near each other differ by exactly this.
    let ms = ((to.as_f64()? - from.as_f64()?) * 1_000.0).round();
    #[expect(
        clippy::cast_possible_truncation,
        reason = "dates are below 2^53 seconds, so this is below 2^63; the cast saturates"
    )]
    Some(ms as i64)
}

fn seconds(value: &Value, whole: fn(f64) -> f64) -> Option<u64> {
    if let Some(seconds) = value.as_u64() {
        return Some(seconds).filter(|seconds| *seconds <= MAX_INTEGER);
    }
    let seconds = value.as_f64().filter(|seconds| seconds.is_sign_positive()).map(whole)?;
    // Exact: 2^53.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 2^53 - 1, and whole")]
    (seconds < 9_007_199_254_740_992.0).then_some(seconds as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SPEC.md §4, SPEC.md §4.1.
    #[test]
    fn base64url_is_canonical() {
        assert_eq!(unb64("AAECAwQFBgcICQoLDA0ODw").map(|b| b.len()), Some(16));
        // The last character carries four unused bits: only the text with zero bits is canonical.
        for text in ["AAECAwQFBgcICQoLDA0ODx", "AA==", "AA=", "A", "AA AA", "AA\n", "A Q", "AQ ", "A+/A"] {
            assert_eq!(unb64(text), None, "{text}");
            assert_eq!(unb64_in(text, &mut [0; 64]), None, "{text}");
        }
    }

    #[test]
    fn what_does_not_fit_is_decoded_all_the_same() {
        for length in 0..40_u8 {
            let bytes: Vec<u8> = (0..length).collect();
            let text = b64(&bytes);
            assert_eq!(unb64_in(&text, &mut [0; 12]).as_deref(), Some(bytes.as_slice()), "{length}");
            assert_eq!(unb64_in(&text, &mut [0; 64]).as_deref(), Some(bytes.as_slice()), "{length}");
        }
    }

    /// SPEC.md §4.
    #[test]
    fn lengths_are_exact() {
        assert_eq!(unb64_array::<1>("AQ"), Some([1]));
        assert_eq!(unb64_array::<2>("AQ"), None);
    }

    #[test]
    fn thumbprint_is_that_of_rfc_8037() {
        // RFC 8037 appendix A.2 (the key) and A.3 (its thumbprint).
        let thumbprint = ed25519_thumbprint("11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo");
        assert_eq!(thumbprint, "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k");
    }

    /// RFC 7519 §2; SPEC.md §7.
    #[test]
    fn a_date_is_read_as_issuers_write_it_and_rounded_against_the_bearer() {
        let read = |text: &str| {
            let value: Value = serde_json::from_str(text).ok()?;
            Some((numeric_date(&value)?, numeric_date_up(&value)?))
        };
        for (text, down, up) in [
            ("0", 0, 0),
            ("0.0", 0, 0),
            ("0.5", 0, 1),
            ("1790000000", 1_790_000_000, 1_790_000_000),
            ("1790000000.0", 1_790_000_000, 1_790_000_000),
            ("1790000000.000", 1_790_000_000, 1_790_000_000),
            ("1790000000.25", 1_790_000_000, 1_790_000_001),
            ("1790000000.999999", 1_790_000_000, 1_790_000_001),
            ("1.79e9", 1_790_000_000, 1_790_000_000),
            ("1.79E+9", 1_790_000_000, 1_790_000_000),
            ("179e7", 1_790_000_000, 1_790_000_000),
            ("17900000000e-1", 1_790_000_000, 1_790_000_000),
            ("9007199254740991", MAX_INTEGER, MAX_INTEGER),
        ] {
            assert_eq!(read(text), Some((down, up)), "{text}");
        }
        for bad in [
            "-1",
            "-0",
            "-0.0",
            "-1.5",
            "-1e9",
            "9007199254740992",
            "9007199254740992.0",
            "18446744073709551615",
            "18446744073709551616",
            "1e16",
            "1e300",
            "\"1790000000\"",
            "\"1.79e9\"",
            "null",
            "true",
            "[1790000000]",
            "{}",
            // Not JSON.
            "01790000000",
            "+1",
            ".5",
            "1.",
            "1e",
            "0x10",
            "1_000",
            "NaN",
            "Infinity",
            "1e999",
        ] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }

    /// SPEC.md §4, SPEC.md §4.1.
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
