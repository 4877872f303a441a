//! Sealed values that callers keep for the gateway and hand back: nobody else can read, make or change them.
//! Never grants a right: a sealed value says what was agreed on and with whom; each message is still judged by its sender.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_lc_rs::aead::{AES_256_GCM_SIV, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use aws_lc_rs::rand;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sealwire::errors::SecretFileError;
use sealwire::internal::files::read_secret;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

/// Seals and opens values. Replicas of a gateway with the same key open each other's.
// AES-GCM-SIV (RFC 8452): nonces are random, and a repeated one reveals only whether two values are the same.
pub(crate) struct Seal {
    key: RandomizedNonceKey,
    /// Where the other replicas reach this one; empty if there are no others.
    at: String,
}

/// What a value is for. A value of one kind does not open as another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    McpSession,
    McpRequestState,
    McpQuestion,
    /// The id of a task of MCP.
    McpTask,
    /// The id of a task of A2A.
    A2aTask,
    /// The header of a message that one replica forwards to another.
    Handed,
    DpopNonce,
    /// A ticket that opens a WebSocket.
    Ticket,
}

impl Kind {
    fn as_bytes(self) -> &'static [u8] {
        match self {
            Self::McpSession => b"sealwire gateway: mcp session",
            Self::McpRequestState => b"sealwire gateway: mcp request state",
            Self::McpQuestion => b"sealwire gateway: mcp question",
            Self::McpTask => b"sealwire gateway: mcp task",
            Self::A2aTask => b"sealwire gateway: a2a task",
            Self::Handed => b"sealwire gateway: handed to a replica",
            Self::DpopNonce => b"sealwire gateway: dpop nonce",
            Self::Ticket => b"sealwire gateway: ticket",
        }
    }

    /// The longest sealed text that is opened.
    fn text_bytes(self) -> usize {
        match self {
            // It contains a token, of at most 4 KiB.
            Self::Ticket => 8 << 10,
            Self::McpTask | Self::A2aTask => TASK_BYTES,
            _ => TEXT_BYTES,
        }
    }
}

/// The size of a key.
const KEY_BYTES: usize = 32;
/// The longest id of a task, which may contain arguments.
pub(crate) const TASK_BYTES: usize = 8 << 10;
/// The longest text of most kinds. Those that the gateway makes have a few hundred bytes.
const TEXT_BYTES: usize = 2 << 10;

#[derive(Serialize, Deserialize)]
struct Sealed<T> {
    /// Whom it was sealed for.
    sub: String,
    /// When it expires, in seconds since the Unix epoch.
    exp: u64,
    value: T,
}

/// A key could not be made, or a value not be sealed, because the crypto library failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the crypto library failed")]
pub struct Unsealed;

/// A new key in the format of the `seal_key` file: 64 hexadecimal digits.
///
/// # Errors
/// [`Unsealed`] if the crypto library fails.
pub fn new_seal_key() -> Result<Zeroizing<String>, Unsealed> {
    let mut key = Zeroizing::new([0; KEY_BYTES]);
    rand::fill(&mut *key).map_err(|_| Unsealed)?;
    let mut text = Zeroizing::new(String::with_capacity(2 * KEY_BYTES));
    for byte in key.iter() {
        // Writing to a `String` cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    Ok(text)
}

/// The gateway cannot seal values.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SealError {
    /// The key file cannot be read, or other users could read it.
    #[error(transparent)]
    File(#[from] SecretFileError),
    /// The file does not contain a key.
    #[error("`{}`: write 64 hexadecimal digits, such as those of `openssl rand -hex 32`", .0.display())]
    NoKey(PathBuf),
    /// The crypto library failed.
    #[error(transparent)]
    Library(#[from] Unsealed),
}

impl Seal {
    pub(crate) fn new(key: &[u8; KEY_BYTES]) -> Result<Self, Unsealed> {
        let key = RandomizedNonceKey::new(&AES_256_GCM_SIV, key).map_err(|_| Unsealed)?;
        Ok(Self { key, at: String::new() })
    }

    /// The same key, for the replica that the others reach at this address.
    pub(crate) fn at(self, at: &str) -> Self {
        Self { at: at.to_owned(), ..self }
    }

    /// Where the others reach this replica.
    pub(crate) fn place(&self) -> &str {
        &self.at
    }

    /// With the key in this file, which all replicas share; without a file, with a random key for this process.
    ///
    /// # Errors
    /// The file cannot be read, or does not contain a key.
    pub(crate) fn of(path: Option<&Path>) -> Result<Self, SealError> {
        let Some(path) = path else { return Ok(Self::random()?) };
        let text = read_secret(path)?;
        let no_key = || SealError::NoKey(path.to_owned());
        let mut key = Zeroizing::new([0; KEY_BYTES]);
        let (pairs, rest) = text.trim().as_bytes().as_chunks::<2>();
        if pairs.len() != KEY_BYTES || !rest.is_empty() {
            return Err(no_key());
        }
        for (byte, pair) in key.iter_mut().zip(pairs) {
            let [high, low] =
                pair.map(|digit| char::from(digit).to_digit(16).and_then(|digit| u8::try_from(digit).ok()));
            *byte = high.zip(low).map(|(high, low)| high << 4 | low).ok_or_else(no_key)?;
        }
        Ok(Self::new(&key)?)
    }

    /// With a random key, for this process alone.
    pub(crate) fn random() -> Result<Self, Unsealed> {
        let mut key = Zeroizing::new([0; KEY_BYTES]);
        rand::fill(&mut *key).map_err(|_| Unsealed)?;
        Self::new(&key)
    }

    pub(crate) fn seal<T: Serialize>(
        &self,
        kind: Kind,
        sub: &str,
        life: Duration,
        value: T,
        now: SystemTime,
    ) -> Result<String, Unsealed> {
        let sealed = Sealed { sub: sub.to_owned(), exp: seconds(now).saturating_add(life.as_secs()), value };
        let mut text = serde_json::to_vec(&sealed).map_err(|_| Unsealed)?;
        let nonce = self.key.seal_in_place_append_tag(Aad::from(kind.as_bytes()), &mut text).map_err(|_| Unsealed)?;
        Ok(URL_SAFE_NO_PAD.encode([nonce.as_ref().as_slice(), &text].concat()))
    }

    /// The value, if it was sealed with this key as this kind for this caller, and has not expired.
    pub(crate) fn open<T: DeserializeOwned>(&self, kind: Kind, sub: &str, text: &str, now: SystemTime) -> Option<T> {
        if text.len() > kind.text_bytes() {
            return None;
        }
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        let (nonce, sealed) = bytes.split_at_checked(NONCE_LEN)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let mut sealed = sealed.to_vec();
        let opened = self.key.open_in_place(nonce, Aad::from(kind.as_bytes()), &mut sealed).ok()?;
        let opened: Sealed<T> = serde_json::from_slice(opened).ok()?;
        (opened.sub == sub && seconds(now) < opened.exp).then_some(opened.value)
    }
}

/// A name that is unique and cannot be guessed.
///
/// # Errors
/// The crypto library failed.
pub fn unlike_any() -> Result<String, Unsealed> {
    let mut bytes = [0; 16];
    rand::fill(&mut bytes).map_err(|_| Unsealed)?;
    Ok(URL_SAFE_NO_PAD.encode(bytes))
}

fn seconds(now: SystemTime) -> u64 {
    now.duration_since(UNIX_EPOCH).map_or(u64::MAX, |since| since.as_secs())
}

impl std::fmt::Debug for Seal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Seal")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn a_value_opens_for_its_caller_with_its_key_in_its_time_and_unchanged() {
        let now = UNIX_EPOCH + Duration::from_secs(1_000);
        let minute = Duration::from_secs(60);
        let seal = Seal::new(&[7; KEY_BYTES]).unwrap();
        let text = seal.seal(Kind::McpSession, "ann", minute, "x", now).unwrap();
        let open = |seal: &Seal, kind, sub, text: &str, now| seal.open::<String>(kind, sub, text, now);
        assert!(text.bytes().all(|byte| byte.is_ascii_graphic()), "{text}");
        assert_ne!(text, seal.seal(Kind::McpSession, "ann", minute, "x", now).unwrap());

        let replica = Seal::new(&[7; KEY_BYTES]).unwrap();
        assert_eq!(open(&replica, Kind::McpSession, "ann", &text, now).as_deref(), Some("x"));
        assert_eq!(open(&seal, Kind::McpSession, "bob", &text, now), None);
        assert_eq!(open(&seal, Kind::McpRequestState, "ann", &text, now), None);
        assert_eq!(open(&seal, Kind::McpSession, "ann", &text, now + minute), None);
        assert_eq!(open(&Seal::random().unwrap(), Kind::McpSession, "ann", &text, now), None);
        for at in 0..text.len() {
            let mut changed = text.clone().into_bytes();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(changed).unwrap();
            // The last digit has unused bits; base64 decoding refuses any that are not zero.
            assert_eq!(open(&seal, Kind::McpSession, "ann", &changed, now), None, "{at}");
        }
        for text in ["", "A", "!!!!", &text[..15], &"A".repeat(TEXT_BYTES + 1)] {
            assert_eq!(open(&seal, Kind::McpSession, "ann", text, now), None, "{text}");
        }

        // Few are large enough for a token.
        let token = "x".repeat(4 << 10);
        for (kind, opened) in
            [(Kind::Ticket, Some(token.as_str())), (Kind::McpTask, Some(&token)), (Kind::McpSession, None)]
        {
            let text = seal.seal(kind, "ann", minute, &token, now).unwrap();
            assert_eq!(open(&seal, kind, "ann", &text, now).as_deref(), opened, "{kind:?}");
        }
    }
}
