//! A whole answer to a message, and the fixed unsigned hints, which are no answers.
//! Never accepts as a hint anything that differs from one by even a byte.

use std::sync::Arc;

use bytes::Bytes;

use super::error::{ClientError, HintKind, ProtocolError};
use crate::rpc::{Responses, RpcError, code};
use crate::wire::UnsignedHint;

/// A verified answer.
#[derive(Debug)]
pub(super) struct Answer {
    /// The responses, or why this is not a JSON-RPC answer.
    pub(super) responses: Result<Responses, ProtocolError>,
    pub(super) payload: Bytes,
    /// The outcome of an earlier attempt that may have run, if there was one. Set only for a batch, whose entries are refused one by one;
    /// otherwise the error has it.
    pub(super) earlier: Option<Arc<ClientError>>,
}

impl Answer {
    pub(super) fn new(responses: Result<Responses, ProtocolError>, payload: Bytes) -> Self {
        Self { responses, payload, earlier: None }
    }

    /// For callers that take the answer as a unit: if it is unknown whether one entry has run, it is unknown for all of it.
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

/// Whether a call that is refused with this error may have been accepted before. Other errors come from the method, or from bytes that are
/// the same in each attempt.
pub(super) fn is_refused_by_now(error: &RpcError) -> bool {
    matches!(error.profile_code(), Some(code::PERMISSION_DENIED | code::METHOD_NOT_FOUND | code::APPROVAL_REQUIRED))
}

/// The outcome of a request whose last attempt was not executed.
pub(super) fn repeated(earlier: &Arc<ClientError>, last: ClientError) -> ClientError {
    ClientError::Repeated { earlier: Arc::clone(earlier), last: Box::new(last) }
}

/// Which of the fixed hints these bytes are, if any: they must match one byte for byte.
pub(crate) fn hint(payload: &[u8]) -> Option<HintKind> {
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
