//! Why a key cannot be used. Never contains any part of the key.

/// The error for a key that cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// The key id is not 1 to 128 bytes of `[A-Za-z0-9._:/-]`.
    #[error("key id outside its grammar: 1 to 128 of A-Z a-z 0-9 . _ : / - are allowed")]
    Kid,
    /// A master secret of fewer than 32 bytes.
    #[error("HMAC master secret is shorter than 32 bytes: make one with `sealwire keys new-agent`")]
    Short,
    /// Not canonical base64url.
    #[error("key is not unpadded base64url")]
    Encoding,
    /// Not 32 bytes, or not a key of this curve.
    #[error("not an Ed25519 key of 32 bytes")]
    Ed25519,
    /// An Ed25519 public key for which somebody could sign without the private key, or a second encoding of a key.
    #[error("an Ed25519 key of small order, or not in its canonical encoding: use one made by `sealwire keys`")]
    Point,
    /// The operating system returned no random bytes.
    #[error("the operating system returned no random bytes")]
    Random,
}
