//! How large a schema may be.
//! Never a bound of what is checked with it: those stand with the check.

/// The longest text, in bytes: 64 KiB.
pub(super) const MAX_BYTES: usize = 64 * 1024;
/// How deep the text may be nested.
pub(super) const MAX_DEPTH: usize = 32;
/// The most subschemas.
pub(super) const MAX_SUBSCHEMAS: usize = 1_000;
/// How many subschemas may look at something because of each other: each is some calls deep, on a stack of 2 MiB.
pub(super) const FARTHEST: u64 = 256;
