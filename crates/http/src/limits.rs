//! How much a server may answer.
//! Never a matter of configuration.

/// The largest body of an answer that is read as text, or event of a stream, in bytes.
pub const MAX_BODY: usize = 1 << 20;
/// The largest head of an answer, in bytes.
pub(crate) const MAX_HEAD: usize = 16 * 1024;
/// The most header fields of an answer.
pub(crate) const MAX_FIELDS: usize = 100;
