//! Parses the shape of a request: sizes, subject grammar, the reply rule, and the one security header.
//! Never touches a key, and never bases a decision on any header but `Authorization`.

use std::fmt;

use bytes::Bytes;
use tokio::time::Instant;

use super::delivery::Delivery;
use super::endpoint::Endpoint;
use super::headers::{HeaderBlock, Status};
use super::key::SignatureBytes;
use super::proof::{ProofError, ProofHeader, REQUEST_TYP, credentials};
use super::subject::{ReplyTo, SubjectParts};
use crate::jose::unb64_in;
use crate::name::Name;

/// A request with a valid shape. Nothing is authenticated yet.
pub struct Envelope {
    pub(crate) subject: String,
    pub(crate) agent: Name,
    /// The subject's method tokens, joined with dots, if it has any.
    pub(crate) method: Option<String>,
    pub(crate) reply: Option<ReplyTo>,
    pub(crate) token: Bytes,
    pub(crate) proof: ProofText,
    pub(crate) payload: Bytes,
    pub(crate) received: Instant,
}

/// The proof: its whole text, the signed part, and its parsed header.
pub(crate) struct ProofText {
    pub(crate) text: Bytes,
    /// How many bytes of `text` the signature covers: header, dot, claims (RFC 7515 §5.2).
    signing_length: usize,
    pub(crate) header: ProofHeader,
    pub(crate) signature: SignatureBytes,
}

/// Omits token, signature and payload.
impl fmt::Debug for Envelope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Envelope")
            .field("subject", &self.subject)
            .field("reply", &self.reply)
            .field("proof", &self.proof.header)
            .field("payload", &self.payload.len())
            .finish_non_exhaustive()
    }
}

impl ProofText {
    /// Parses a proof of the type `typ`; `text` is part of these headers.
    pub(super) fn parse(text: &str, headers: &HeaderBlock, typ: &'static str) -> Result<Self, ProofError> {
        let (signing_input, signature) = text.rsplit_once('.').ok_or(ProofError::Parts)?;
        let (header, claims) = signing_input.split_once('.').ok_or(ProofError::Parts)?;
        if claims.contains('.') {
            return Err(ProofError::Parts);
        }
        Ok(Self {
            header: ProofHeader::parse_typed(header, typ)?,
            signature: SignatureBytes::of(&unb64_in(signature, &mut [0; 66]).ok_or(ProofError::Encoding)?),
            signing_length: signing_input.len(),
            text: headers.part(text),
        })
    }

    pub(crate) fn signing_input(&self) -> &[u8] {
        self.text.get(..self.signing_length).unwrap_or_default()
    }

    /// The claims as base64url text.
    pub(crate) fn claims(&self) -> &[u8] {
        self.signing_input().splitn(2, |byte| *byte == b'.').nth(1).unwrap_or_default()
    }
}

/// Why a message was refused for its shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum EnvelopeError {
    /// The subject is not `<prefix>.<service>.<agent>[.<method>]`. Dropped: without an agent, no reply subject can be checked.
    #[error("subject outside the grammar")]
    Subject,
    /// The reply subject is not below the agent's inbox. Dropped: an answer would be published with the service's rights.
    #[error("reply subject outside the agent's inbox")]
    Reply,
    /// The subject names another service.
    #[error("subject of another service")]
    Service,
    /// More headers than the limit, or more header bytes.
    #[error("headers above their limit")]
    Headers,
    /// The header block is not `NATS/1.0` followed by lines of a name, a colon and a value.
    #[error("malformed header block")]
    Malformed,
    /// No `Authorization` header.
    #[error("no authorization header")]
    Missing,
    /// More than one header that equals `authorization` under ASCII case folding.
    #[error("repeated authorization header")]
    Repeated,
    /// The value is not `NatsRpc <token>~<proof>` of at most 8 KiB.
    #[error("authorization value outside its grammar")]
    Authorization,
    /// The proof is not three parts of canonical base64url with a valid header.
    #[error("proof: {0}")]
    Proof(#[from] ProofError),
    /// The payload exceeds its limit.
    #[error("payload above its limit")]
    TooLarge,
}

impl EnvelopeError {
    /// Whether the message is dropped without any answer.
    #[must_use]
    pub fn is_dropped(self) -> bool {
        matches!(self, Self::Subject | Self::Reply)
    }
}

/// A refused message, and where a hint may go, if anywhere.
#[derive(Debug)]
pub struct MalformedMessage {
    /// Why it was refused.
    pub error: EnvelopeError,
    /// The agent that the subject names, for the log only: the claim is not proved.
    pub claimed: Option<Name>,
    pub(crate) reply: Option<ReplyTo>,
}

/// The header of a request; RFC 7615 defines its counterpart of an answer for HTTP.
pub(crate) const AUTHORIZATION: &str = "Authorization";
impl Envelope {
    /// Checks everything that needs no key.
    ///
    /// # Errors
    /// [`MalformedMessage`] with the first rule that is violated. The sender is to blame, or somebody on the path.
    pub fn decode(delivery: Delivery, endpoint: &Endpoint) -> Result<Self, MalformedMessage> {
        let Delivery { subject, reply, headers, payload, oversized, received } = delivery;
        let dropped = |error, claimed| MalformedMessage { error, claimed, reply: None };

        let Some(parts) = SubjectParts::parse(subject.as_str(), endpoint.prefix()) else {
            return Err(dropped(EnvelopeError::Subject, None));
        };
        let reply = match reply {
            None => None,
            Some(reply) => match ReplyTo::checked(reply, endpoint.inbox_prefix(), &parts.agent) {
                Some(reply) => Some(reply),
                None => return Err(dropped(EnvelopeError::Reply, Some(parts.agent))),
            },
        };
        let opened = (|| {
            if parts.service != endpoint.service().as_str() {
                return Err(EnvelopeError::Service);
            }
            if oversized {
                return Err(EnvelopeError::TooLarge);
            }
            let (token, proof) = authorization(&headers, endpoint)?;
            if payload.len() > endpoint.limits().payload {
                return Err(EnvelopeError::TooLarge);
            }
            Ok((headers.part(token), ProofText::parse(proof, &headers, REQUEST_TYP)?))
        })();
        match opened {
            Err(error) => Err(MalformedMessage { error, claimed: Some(parts.agent), reply }),
            Ok((token, proof)) => Ok(Self {
                agent: parts.agent,
                method: parts.method,
                subject: subject.into_string(),
                reply,
                token,
                proof,
                payload,
                received,
            }),
        }
    }

    /// Gives up the message: returns the agent that the subject names (not proved), and where a hint may go.
    pub(crate) fn into_claimed(self) -> (Name, Option<ReplyTo>) {
        (self.agent, self.reply)
    }
}

/// Finds the one authorization header and splits it.
pub(super) fn authorization<'h>(
    headers: &'h HeaderBlock,
    endpoint: &Endpoint,
) -> Result<(&'h str, &'h str), EnvelopeError> {
    let limits = endpoint.limits();
    let (status, lines) = headers.read().map_err(|_| EnvelopeError::Malformed)?;
    // Only brokers send a status, in answers; a request has none.
    if status != Status::None {
        return Err(EnvelopeError::Malformed);
    }
    let mut count = 0_usize;
    let mut bytes = 0_usize;
    let mut found: Option<&str> = None;
    for line in lines {
        let line = line.map_err(|_| EnvelopeError::Malformed)?;
        count += 1;
        bytes = bytes.saturating_add(line.bytes);
        if count > limits.headers || bytes > limits.header_bytes {
            return Err(EnvelopeError::Headers);
        }
        if line.name.eq_ignore_ascii_case(AUTHORIZATION) && found.replace(line.value).is_some() {
            return Err(EnvelopeError::Repeated);
        }
    }
    let value = found.ok_or(EnvelopeError::Missing)?;
    if value.len() > limits.authorization {
        return Err(EnvelopeError::Authorization);
    }
    let credentials = credentials(value).ok_or(EnvelopeError::Authorization)?;
    let (token, proof) = credentials.split_once('~').ok_or(EnvelopeError::Authorization)?;
    if token.is_empty() || proof.is_empty() || proof.contains('~') || token.len() > MAX_TOKEN {
        return Err(EnvelopeError::Authorization);
    }
    Ok((token, proof))
}

/// The longest access token in bytes.
const MAX_TOKEN: usize = 4 * 1024;

#[cfg(test)]
mod tests;
