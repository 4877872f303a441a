//! The text of a file, as editors and other programs leave it: with a byte-order mark, or in another encoding.
//! Never guesses: what is not UTF-8 is refused, with a word for what it looks like.

use zeroize::{Zeroize as _, Zeroizing};

/// Why the bytes of a file are not text. Each message follows the file's name and a colon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TextFault {
    /// UTF-16 or UTF-32, as some editors and shells write.
    #[error("UTF-16 text: save it as UTF-8")]
    Utf16,
    /// DER, the binary form of certificates and keys.
    #[error(
        "binary (DER), not text: `openssl x509 -inform der -in FILE` makes PEM of a certificate, and `openssl pkey -inform der \
         -in FILE` of a key"
    )]
    Der,
    /// PKCS#12, which holds certificates and keys together.
    #[error("a PKCS#12 file (.pfx, .p12): `openssl pkcs12 -in FILE -noenc` writes what is in it as PEM")]
    Pkcs12,
    /// Any other bytes.
    #[error("not UTF-8 text")]
    NotUtf8,
}

/// The text in these bytes, without a byte-order mark.
///
/// # Errors
/// [`TextFault`].
pub fn decode_text(bytes: Zeroizing<Vec<u8>>) -> Result<Zeroizing<String>, TextFault> {
    let mut bytes = bytes;
    if let Some(fault) = binary(&bytes) {
        return Err(fault);
    }
    if bytes.starts_with(BYTE_ORDER_MARK) {
        // In place, so that no copy of a secret is left behind.
        bytes.drain(..BYTE_ORDER_MARK.len());
    }
    String::from_utf8(std::mem::take(&mut *bytes)).map(Zeroizing::new).map_err(|error| {
        error.into_bytes().zeroize();
        TextFault::NotUtf8
    })
}

/// What the bytes are, if they are no text in UTF-8 for a reason that has a name.
fn binary(bytes: &[u8]) -> Option<TextFault> {
    match bytes {
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] | [0, _, ..] | [_, 0, ..] => Some(TextFault::Utf16),
        // X.690 §8.1: a sequence, whose length is that of the file.
        [0x30, rest @ ..] => {
            let (length, content) = match rest {
                [short @ ..=0x7f, content @ ..] => (usize::from(*short), content),
                [0x81, one, content @ ..] => (usize::from(*one), content),
                [0x82, high, low, content @ ..] => (usize::from(*high) << 8 | usize::from(*low), content),
                _ => return None,
            };
            let is_nested = matches!(content, [0x02 | 0x30, ..]);
            match content {
                // RFC 7292 §4: version 3.
                [0x02, 0x01, 0x03, ..] if content.len() == length => Some(TextFault::Pkcs12),
                _ if is_nested && content.len() == length => Some(TextFault::Der),
                _ => None,
            }
        }
        _ => is_utf16(bytes).then_some(TextFault::Utf16),
    }
}

/// Whether the bytes are UTF-16 that begins with something else than ASCII: it has zeros, all of them at even places, or at odd ones.
fn is_utf16(bytes: &[u8]) -> bool {
    let mut zeros = bytes.iter().enumerate().filter(|(_, byte)| **byte == 0).map(|(at, _)| at % 2);
    bytes.len().is_multiple_of(2) && zeros.next().is_some_and(|first| zeros.all(|other| other == first))
}

const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn read(bytes: &[u8]) -> Result<String, TextFault> {
        decode_text(Zeroizing::new(bytes.to_vec())).map(|text| text.to_string())
    }

    #[test]
    fn text_is_utf_8_with_or_without_a_mark_and_all_else_has_a_name() {
        for (bytes, wanted) in [
            (&b""[..], ""),
            (b"{}", "{}"),
            (b"\xEF\xBB\xBF{}", "{}"),
            (b"\xEF\xBB\xBF", ""),
            (b"{}\r\n", "{}\r\n"),
            ("grüße".as_bytes(), "grüße"),
            // Only the first one marks anything.
            (b"\xEF\xBB\xBF\xEF\xBB\xBFa", "\u{feff}a"),
            (b"0", "0"),
            (b"0\x020", "0\x020"),
        ] {
            assert_eq!(read(bytes).as_deref(), Ok(wanted), "{bytes:?}");
        }
        for (bytes, wanted) in [
            (&b"\xff\xfe{\0}\0"[..], TextFault::Utf16),
            (b"\xfe\xff\0{\0}", TextFault::Utf16),
            (b"{\0}\0", TextFault::Utf16),
            (b"\0{\0}", TextFault::Utf16),
            // U+4E2D and a line break, U+2014 and a blank: what is in front is UTF-8 as well.
            (b"\x2d\x4e\n\0", TextFault::Utf16),
            (b"\x20\x14\0 ", TextFault::Utf16),
            (b"\xff\xfe\0\0{\0\0\0", TextFault::Utf16),
            (b"\x30\x03\x02\x01\x00", TextFault::Der),
            (b"\x30\x81\x03\x30\x01\x00", TextFault::Der),
            (b"\x30\x82\x00\x03\x02\x01\x00", TextFault::Der),
            (b"\x30\x03\x02\x01\x03", TextFault::Pkcs12),
            (b"\xff", TextFault::NotUtf8),
            (b"a\xe4b", TextFault::NotUtf8),
            (b"\x80PNG", TextFault::NotUtf8),
        ] {
            assert_eq!(read(bytes), Err(wanted), "{bytes:?}");
        }
    }
}
