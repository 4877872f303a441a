//! Who sent this, and is it the first time we see it. Knows nothing of methods.

mod caller;
mod jwk;
mod replay;
mod token;

pub use caller::{Caller, ProofAlgorithm, TokenFacts};
pub use replay::{
    Caps, CapsError, Floor, FloorError, GuardStats, LocalGuard, Nonce, OpenError, Outage, Refused, ReplayGuard, Window,
    WindowError,
};
pub use token::{
    AccessToken, Confirmation, Denylist, DenylistError, FileError, IssueError, IssueRequest, JsonFault, KeyFault,
    KeySet, KeySetError, Symmetric, TokenAlgorithm, TokenError, TokenIssuer, TokenRules, TokenVerifier, Untrusted,
    decode_untrusted,
};
