//! Login by nkey: an Ed25519 seed in NATS's encoding, which signs the broker's nonce.
//! Never reveals the seed, or what is wrong with it, in an error.

use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair as _};
use data_encoding::BASE32_NOPAD;
use zeroize::Zeroizing;

use crate::jose::b64;

/// The letter `S` of a seed and the letter `U` of a user, as the upper five bits of a byte.
const SEED: u8 = 18 << 3;
const USER: u8 = 20 << 3;

/// The key of a broker's user.
pub(super) struct NKey(Ed25519KeyPair);

impl NKey {
    /// Decodes a user's seed, `SU…`: two bytes for its type, the 32 bytes of the seed, and their CRC-16.
    pub(super) fn from_seed(text: &str) -> Result<Self, SeedFault> {
        let (kind, seed) = decode(text).ok_or(SeedFault::Damaged)?;
        // The first five bits mark a seed; the next eight, across both bytes, whose it is.
        if kind != [SEED | USER >> 5, USER << 3] {
            return Err(SeedFault::OtherKind);
        }
        Ed25519KeyPair::from_seed_unchecked(&*seed).map(Self).map_err(|_| SeedFault::Damaged)
    }

    /// The public key, `U…`, by which the broker knows the user.
    pub(super) fn public(&self) -> String {
        let mut bytes = vec![USER];
        bytes.extend_from_slice(self.0.public_key().as_ref());
        bytes.extend_from_slice(&crc16(&bytes).to_le_bytes());
        BASE32_NOPAD.encode(&bytes)
    }

    /// Signs the broker's nonce, encoded as in `CONNECT`.
    pub(super) fn sign(&self, nonce: &str) -> String {
        b64(self.0.sign(nonce.as_bytes()).as_ref())
    }
}

/// Why a text is no user's seed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SeedFault {
    /// It is that of an account, an operator or a server, or a public key.
    OtherKind,
    /// It is no nkey, or not a whole one.
    Damaged,
}

/// The two bytes for the type, and the seed.
fn decode(text: &str) -> Option<([u8; 2], Zeroizing<[u8; 32]>)> {
    let bytes = Zeroizing::new(BASE32_NOPAD.decode(text.as_bytes()).ok()?);
    let (body, checksum) = bytes.split_last_chunk::<2>()?;
    let (kind, seed) = body.split_first_chunk::<2>()?;
    let seed = Zeroizing::new(<[u8; 32]>::try_from(seed).ok()?);
    (crc16(body) == u16::from_le_bytes(*checksum)).then_some((*kind, seed))
}

/// What is wrong with a text that is no user's seed. Holds nothing of it.
pub(super) fn fault(text: &str) -> &'static str {
    if text.contains("-----BEGIN NATS USER JWT-----") {
        return "holds a `.creds` file of NATS, whose user logs in with a JWT: name it in `creds_file`";
    }
    "is not the nkey seed of a user: one has 58 characters and begins with SU (`nk -gen user`)"
}

/// CRC-16/XMODEM.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ u16::from(*byte) << 8, |crc, _| if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 })
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    /// Compared with the library that other clients and the server's own tools follow.
    #[test]
    fn an_nkey_is_read_and_signs_as_nats_own_library_does() {
        for _ in 0..200 {
            let theirs = nkeys::KeyPair::new_user();
            let ours = NKey::from_seed(&theirs.seed().unwrap()).unwrap();
            assert_eq!(ours.public(), theirs.public_key());
            let signed = theirs.sign(b"a nonce").unwrap();
            assert_eq!(ours.sign("a nonce"), b64(&signed));
        }
    }

    #[test]
    fn what_is_no_seed_of_a_user_is_refused() {
        let user = nkeys::KeyPair::new_user();
        let seed = user.seed().unwrap();
        let other = |position: usize| {
            let mut letters = seed.clone().into_bytes();
            letters[position] = if letters[position] == b'A' { b'B' } else { b'A' };
            String::from_utf8(letters).unwrap()
        };
        // Every letter matters.
        for position in 0..seed.len() {
            assert!(NKey::from_seed(&other(position)).is_err(), "{position}");
        }
        let account = nkeys::KeyPair::new_account().seed().unwrap();
        let lower = seed.to_lowercase();
        for wrong in [
            "",
            "S",
            "SU",
            &seed[1..],
            &seed[..57],
            &format!("{seed}A"),
            &format!("{seed}="),
            &format!(" {seed}"),
            &lower,
            &account,
            &user.public_key(),
            "SÜ",
        ] {
            assert!(NKey::from_seed(wrong).is_err(), "{wrong}");
        }
    }
}
