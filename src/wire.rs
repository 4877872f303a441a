//! The bytes on the bus: messages in, signed answers out. Total functions over untrusted input.
//! Never decides who may do what, and never reads a body.

mod delivery;
mod ed25519;
mod endpoint;
mod enrol;
mod envelope;
mod headers;
mod jose;
mod key;
mod presence;
mod proof;
mod seal;
mod sign;

pub use delivery::Delivery;
pub(crate) use ed25519::Ed25519Public;
pub use endpoint::{Audience, Endpoint, EndpointError, WireLimits};
pub use enrol::{KeyRequest, KeyRequestError};
pub(crate) use envelope::is_plain_subject;
pub use envelope::{Envelope, EnvelopeError, Misshapen};
pub use headers::HeaderBlock;
pub(crate) use key::ed25519_thumbprint;
pub use key::{AgentKey, HmacKey, KeyError, ServiceKey, ServicePublicKey};
pub(crate) use presence::{Presence, Question};
pub use proof::{ProofClaims, ProofError};
pub(crate) use proof::{ProofHeader, is_idempotency_key, is_kid};
pub(crate) use seal::{Binding, ReplyKey};
pub use seal::{Hint, ReplyTo, Sealed, Unsent};
pub use sign::{Expectation, RequestSigner, Signed, SignedRequest, Unverifiable};

pub(crate) use jose::{b64, sha256, unb64};
