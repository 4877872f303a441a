//! A whole answer to a message, and the fixed hints that are none.
//! Never takes for a hint what differs from one in a byte.

use bytes::Bytes;

use super::error::{HintKind, ProtocolError};
use crate::rpc::Responses;
use crate::wire::UnsignedHint;

/// A verified answer.
#[derive(Debug)]
pub(super) struct Answer {
    /// What it says, or that it is no JSON-RPC answer.
    pub(super) responses: Result<Responses, ProtocolError>,
    pub(super) payload: Bytes,
}

/// Which of the fixed hints these bytes are. Anything that differs in one byte is none.
pub(super) fn hint(payload: &[u8]) -> Option<HintKind> {
    [
        (UnsignedHint::Unauthenticated, HintKind::Unauthenticated),
        (UnsignedHint::Overloaded, HintKind::Overloaded),
        (UnsignedHint::TooLarge, HintKind::TooLarge),
    ]
    .into_iter()
    .find_map(|(hint, kind)| (hint.payload().as_bytes() == payload).then_some(kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SPEC.md §13.
    #[test]
    fn only_the_fixed_bytes_are_hints() {
        for fixed in [UnsignedHint::Unauthenticated, UnsignedHint::Overloaded, UnsignedHint::TooLarge] {
            assert!(hint(fixed.payload().as_bytes()).is_some());
            assert!(hint(format!("{} ", fixed.payload()).as_bytes()).is_none());
        }
        assert!(hint(br#"{"jsonrpc":"2.0","error":{"code":-32011,"message":"stale"},"id":null}"#).is_none());
        assert!(hint(b"").is_none());
    }
}
