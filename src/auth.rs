//! Who sent a message, and whether it is seen for the first time. Knows nothing of methods.

#[cfg(feature = "service")]
mod caller;
#[cfg(feature = "service")]
mod keyring;
#[cfg(feature = "service")]
mod outcomes;
#[cfg(feature = "service")]
mod replay;
#[cfg(feature = "service")]
mod revocation;
#[cfg(feature = "service")]
mod servicekey;
mod token;
#[cfg(feature = "service")]
mod verifier;
#[cfg(feature = "service")]
mod verify_limiter;

#[cfg(feature = "service")]
pub use caller::{Caller, TokenFacts};
#[cfg(feature = "service")]
pub use keyring::{KeyEntry, KeyRing, KeyRingError, KeyRingFile, KeyStatus, MAX_RECORDS};
#[cfg(feature = "service")]
pub use outcomes::{Claimed, LocalOutcomes, OutcomeKey, OutcomeStore, OutcomeStoreError, Withdrawal};
#[cfg(feature = "service")]
pub(crate) use replay::ANSWER_WITHIN;
#[cfg(feature = "shared-guard")]
pub use replay::SharedGuard;
#[cfg(feature = "service")]
pub use replay::{
    AdmitError, GuardIdentity, GuardStats, Latency, LocalGuard, NonceLimits, NonceLimitsError, OpenError, Outage,
    ReplayGuard, SharedConfig, SharedOpenError, SharedStats, TimeFloor, TimeFloorError, Window, WindowError,
};
#[cfg(feature = "service")]
pub use revocation::{
    Answered, Bucket, BucketError, BucketSubjects, EVERYTHING, FollowerId, FollowerReport, FollowerRole,
    Kind as RevocationKind, ListChange, ListError, ListVerdict, MAX_LIST_BYTES, MAX_NAME, MAX_PACKAGE_BYTES,
    MAX_REASON, MAX_REVOCATIONS, OperatorConfig, OperatorKey, OperatorKeyError, Operators, OperatorsError, Revocation,
    RevocationConfig, RevocationError, RevocationEvent, RevocationFollower, RevocationList, Revocations, Signatures,
    SignedList, SignedListError, Stage, Stored, TooFewSignatures,
};
#[cfg(feature = "service")]
pub(crate) use servicekey::read_trusted_service_key;
#[cfg(feature = "service")]
pub use servicekey::{ServiceKeyError, read_service_key, write_service_key};
#[cfg(feature = "service")]
pub use token::{
    AccessToken, AgentRules, Bounds, ClaimPath, Confirmation, Denylist, DenylistError, DpopError, DpopProof,
    ExchangeError, ExchangeRequest, FetchError, FileError, IssueError, IssueRequest, IssuerRules, KeyFault, KeyRules,
    KeySet, KeySetError, KeySource, KeySourceState, KeySourceStatus, LeftOut, Pattern, PatternError, RoleFormat,
    RoleRules, Symmetric, TokenExchange, TokenId, TokenIssuer, TokenRules, TokenType, TokenVerifier,
};
#[cfg(feature = "service")]
pub(crate) use token::{DENIED_FOR_S, is_identifier, is_proof_key_id};
pub use token::{HeaderMember, JsonFault, TokenAlgorithm, TokenError, Untrusted, decode_untrusted};
#[cfg(feature = "service")]
pub use verifier::{AuthError, Authentic, RejectedMessage, ServiceKeyMissing, Staleness, Verified, Verifier};
#[cfg(feature = "service")]
pub(crate) use verifier::{Evidence, ShownToken};
#[cfg(feature = "service")]
pub use verify_limiter::VerifyPermit;
