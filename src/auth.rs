//! Who sent this, and is it the first time we see it. Knows nothing of methods.

mod caller;
mod file;
mod jwk;
mod keyring;
mod replay;
mod servicekey;
mod token;
mod trust;
mod turns;
mod verifier;

pub use caller::{Caller, ProofAlgorithm, TokenFacts};
pub use file::{SecretFileError, check_folder, open_public, read_public, read_secret, write_secret};
pub(crate) use file::{is_missing, read_open, read_trusted};
pub use keyring::{KeyEntry, KeyRing, KeyRingError, KeyRingFile, KeyStatus, MAX_RECORDS};
pub(crate) use replay::ANSWER_WITHIN;
pub use replay::{
    Caps, CapsError, Floor, FloorError, GuardIdentity, GuardStats, Latency, LocalGuard, Nonce, OpenError, Outage,
    Refused, ReplayGuard, SharedConfig, SharedGuard, SharedOpenError, SharedStats, Window, WindowError,
};
pub(crate) use servicekey::read_trusted_service_key;
pub use servicekey::{ServiceKeyError, read_service_key, write_service_key};
pub use token::{
    AccessToken, AgentRules, Bounds, ClaimPath, Confirmation, Denylist, DenylistError, FetchError, FileError,
    HeaderMember, IssueError, IssueRequest, IssuerRules, JsonFault, KeyFault, KeyRules, KeySet, KeySetError, KeySource,
    KeySourceState, KeySourceStatus, LeftOut, Pattern, PatternError, RoleFormat, RoleRules, Symmetric, TokenAlgorithm,
    TokenError, TokenId, TokenIssuer, TokenRules, TokenType, TokenVerifier, Untrusted, decode_untrusted,
};
pub use trust::FileTrust;
pub(crate) use trust::{Content, Entry, Folder};
pub use turns::Turn;
pub use verifier::{AuthError, Authentic, ServiceKeyMissing, Staleness, Unadmitted, Verified, Verifier};
