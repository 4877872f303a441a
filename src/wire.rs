//! The bytes on the bus: messages in, signed answers out. Total functions over untrusted input.
//! Never decides who may do what, and never reads a body.

mod algorithm;
mod approval_news;
mod control;
mod delivery;
mod ed25519;
mod endpoint;
mod enrol;
mod envelope;
mod frame;
mod frame_receiver;
mod headers;
mod key;
mod key_error;
mod nonce;
mod presence;
mod proof;
#[cfg(feature = "client")]
mod relayed;
mod seal;
mod service_proof;
mod sign;
mod subject;

pub use algorithm::ProofAlgorithm;
pub use approval_news::ApprovalNews;
pub use control::{ControlClaims, ControlOp};
pub(crate) use control::{ControlEnvelope, ControlSubject};
pub use delivery::Delivery;
pub(crate) use ed25519::Ed25519Public;
pub use endpoint::{Audience, Endpoint, EndpointError, WireLimits};
pub use enrol::{KeyRequest, KeyRequestError};
#[cfg(feature = "service")]
pub(crate) use envelope::AUTHORIZATION;
pub use envelope::{Envelope, EnvelopeError, MalformedMessage};
pub(crate) use frame::FrameSealer;
pub use frame::{FrameClaims, FrameKind, SealedFrame};
pub use frame_receiver::{FrameFault, FrameReceiver, Received, Taken};
pub use headers::HeaderBlock;
pub(crate) use key::random_bytes;
pub use key::{AgentKey, HmacKey, ServiceKey, ServicePublicKey};
pub use key_error::KeyError;
pub use nonce::Nonce;
#[cfg(feature = "service")]
pub(crate) use nonce::NonceText;
pub(crate) use presence::Presence;
pub use presence::Question;
#[cfg(feature = "service")]
pub(crate) use proof::SCHEME;
pub use proof::{ProofClaims, ProofError};
pub(crate) use proof::{ProofHeader, USUAL_CLAIMS, is_idempotency_key, is_kid, is_traceparent};
#[cfg(feature = "client")]
pub use relayed::{RelayedRequest, RelayedRequestError};
pub(crate) use seal::{Binding, ReplyKey};
pub use seal::{Sealed, SendFailed, UnsignedHint};
#[cfg(feature = "client")]
pub(crate) use sign::proof_of;
pub use sign::{
    Accepted, AcceptedFrame, Expectation, RequestSigner, Signed, SignedControl, SignedRequest, Unverifiable,
};
pub use subject::ReplyTo;
pub(crate) use subject::is_plain_subject;
