//! The random number that a message uses once. Never accepts two encodings of the same number.

use std::fmt;
use std::ops::Deref;

use aws_lc_rs::rand;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

/// Sixteen random bytes that make a message unique among its owner's messages; the proof's `jti`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Nonce([u8; 16]);

impl Nonce {
    /// A new nonce from the operating system's randomness.
    #[must_use]
    pub fn random() -> Self {
        let mut bytes = [0; 16];
        #[expect(
            clippy::expect_used,
            reason = "a machine without randomness cannot sign either; there is no fallback"
        )]
        rand::fill(&mut bytes).expect("the operating system gives random bytes");
        Self(bytes)
    }

    /// Reads 22 characters of unpadded base64url; `None` for any other text.
    ///
    /// The four spare bits of the last character must be zero, otherwise sixteen texts would encode the same nonce.
    #[must_use]
    pub fn from_text(text: &str) -> Option<Self> {
        if text.len() != TEXT_LEN {
            return None;
        }
        // The decoder needs room in whole groups: 18 bytes for 22 characters.
        let mut room = [0; 18];
        let len = URL_SAFE_NO_PAD.decode_slice(text, &mut room).ok()?;
        room.get(..len)?.try_into().ok().map(Self)
    }

    /// The 22 characters that [`from_text`](Self::from_text) reads.
    #[must_use]
    pub fn to_text(self) -> String {
        self.text().to_string()
    }

    /// Like [`to_text`](Self::to_text), without an allocation.
    pub(crate) fn text(self) -> NonceText {
        let mut text = [0; TEXT_LEN];
        let written = URL_SAFE_NO_PAD.encode_slice(self.0, &mut text);
        debug_assert_eq!(written, Ok(TEXT_LEN), "16 bytes are 22 characters");
        NonceText(text)
    }
}

/// A nonce as text. Together with the agent it identifies a message in every log line.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct NonceText([u8; TEXT_LEN]);

impl Deref for NonceText {
    type Target = str;

    fn deref(&self) -> &str {
        // INVARIANT: base64url text, which is ASCII.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

impl fmt::Debug for NonceText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self)
    }
}

impl fmt::Debug for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_text())
    }
}

/// The length of 16 bytes in base64 without padding.
const TEXT_LEN: usize = 22;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    /// SPEC.md §6.
    #[test]
    fn only_the_canonical_text_names_a_nonce() {
        let text = "AAECAwQFBgcICQoLDA0ODw";
        assert_eq!(Nonce::from_text(text).unwrap().to_text(), text);
        for bad in [
            "",
            "AAECAwQFBgcICQoLDA0OD",
            "AAECAwQFBgcICQoLDA0ODx",
            "AAECAwQFBgcICQoLDA0ODw==",
            "AAECAwQFBgcICQoLDA0ODwA",
            "AAECAwQFBgcICQoLDA0O+w",
            "AAECAwQFBgcICQoLDA0O/w",
            "AAECAwQFBgcICQoLDA0O w",
            "AAECAwQFBgcICQoLDA0O=w",
            "AAECAwQFBgcICQoLDA0Oä",
        ] {
            assert_eq!(Nonce::from_text(bad), None, "{bad}");
        }
    }

    /// SPEC.md §6.
    #[test]
    fn random_nonces_differ_and_survive_their_text() {
        let (one, two) = (Nonce::random(), Nonce::random());
        assert_ne!(one, two);
        assert_eq!(Nonce::from_text(&one.to_text()), Some(one));
    }
}
