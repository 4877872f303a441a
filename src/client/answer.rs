//! A whole answer to a message, and the fixed hints that are none.
//! Never takes for a hint what differs from one in a byte.

use std::sync::Arc;

use bytes::Bytes;

use super::error::{ClientError, HintKind, ProtocolError};
use crate::rpc::{Responses, RpcError, code};
use crate::wire::UnsignedHint;

/// A verified answer.
#[derive(Debug)]
pub(super) struct Answer {
    /// What it says, or that it is no JSON-RPC answer.
    pub(super) responses: Result<Responses, ProtocolError>,
    pub(super) payload: Bytes,
    /// What an attempt before it came to that may have run, if there was one. Only beside a batch, whose entries are refused one
    /// by one; otherwise it is the error.
    pub(super) earlier: Option<Arc<ClientError>>,
}

impl Answer {
    pub(super) fn new(responses: Result<Responses, ProtocolError>, payload: Bytes) -> Self {
        Self { responses, payload, earlier: None }
    }

    /// For who takes it as one: an entry of which nobody knows whether it has run leaves that open of all of it.
    pub(super) fn whole(self) -> Result<Self, ClientError> {
        let (Some(earlier), Ok(Responses::Batch(responses))) = (&self.earlier, &self.responses) else {
            return Ok(self);
        };
        let mut errors = responses.iter().filter_map(|response| response.outcome.as_ref().err());
        match errors.find(|error| is_refused_by_now(error)) {
            Some(error) => Err(repeated(earlier, ClientError::Remote(error.clone()))),
            None => Ok(self),
        }
    }
}

/// Whether what is refused so may have been taken before. Other errors are of the method, or of bytes that are the same in each
/// attempt.
pub(super) fn is_refused_by_now(error: &RpcError) -> bool {
    matches!(error.code(), code::PERMISSION_DENIED | code::METHOD_NOT_FOUND)
}

/// What a request has come to whose last attempt was not executed.
pub(super) fn repeated(earlier: &Arc<ClientError>, last: ClientError) -> ClientError {
    ClientError::Repeated { earlier: Arc::clone(earlier), last: Box::new(last) }
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
