//! Access tokens: whether a text is a token that our issuer made, for us, valid now, and not revoked.
//! Never trusts anything in a token before its signature holds, and never decides what its bearer may do.

#[cfg(feature = "service")]
mod access;
mod algorithm;
#[cfg(feature = "service")]
mod audience;
#[cfg(feature = "service")]
mod claims;
#[cfg(feature = "service")]
mod denylist;
#[cfg(feature = "service")]
mod dpop;
mod error;
#[cfg(feature = "service")]
mod exchange;
#[cfg(feature = "service")]
mod fetch;
#[cfg(feature = "service")]
mod file;
mod header;
#[cfg(feature = "service")]
mod issue;
mod json;
#[cfg(feature = "service")]
mod key;
#[cfg(feature = "service")]
mod keys;
#[cfg(feature = "service")]
mod path;
#[cfg(feature = "service")]
mod roca;
#[cfg(feature = "service")]
mod rules;
#[cfg(feature = "service")]
mod verifier;

#[cfg(feature = "service")]
pub use access::{AccessToken, Confirmation};
pub use algorithm::TokenAlgorithm;
#[cfg(feature = "service")]
pub(crate) use claims::{is_identifier, is_proof_key_id};
#[cfg(feature = "service")]
pub(crate) use denylist::DENIED_FOR_S;
#[cfg(feature = "service")]
pub use denylist::{Denylist, DenylistError};
#[cfg(feature = "service")]
pub use dpop::{DpopError, DpopProof};
pub use error::TokenError;
#[cfg(feature = "service")]
pub use exchange::{ExchangeError, ExchangeRequest, TokenExchange};
#[cfg(feature = "service")]
pub use fetch::{FetchError, KeySource, KeySourceState, KeySourceStatus};
#[cfg(feature = "service")]
pub use file::FileError;
pub use header::{HeaderMember, Untrusted, decode_untrusted};
#[cfg(feature = "service")]
pub use issue::{IssueError, IssueRequest, TokenIssuer};
pub use json::JsonFault;
#[cfg(feature = "service")]
pub use key::{KeyFault, KeyRules};
#[cfg(feature = "service")]
pub use keys::{KeySet, KeySetError, LeftOut};
#[cfg(feature = "service")]
pub use path::{ClaimPath, Pattern, PatternError};
#[cfg(feature = "service")]
pub use rules::{AgentRules, Bounds, IssuerRules, RoleFormat, RoleRules, Symmetric, TokenId, TokenRules, TokenType};
#[cfg(feature = "service")]
pub use verifier::TokenVerifier;
#[cfg(feature = "service")]
pub(super) use verifier::{PresentedToken, VerifiedToken};
