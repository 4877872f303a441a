//! Answers: signed and bound to their request, or one of the fixed hints. Nothing else can be published.
//! Never publishes outside the inbox that the reply rule allows.

use std::fmt;
use std::sync::{Arc, OnceLock};

use async_nats::{HeaderMap, Subject};
use bytes::Bytes;

use super::algorithm::ProofAlgorithm;
use super::endpoint::Audience;
use super::headers::HeaderBlock;
use super::key::{HmacKey, PartialMac, ServiceKey, SignatureBytes};
use super::proof::{REPLY_TYP, ReplyClaims, SCHEME, encode_header};
use super::subject::ReplyTo;
use crate::jose::{b64_digest, b64_to, sha256};
use crate::nats::{PublishError, Session};

/// The header of an answer (RFC 7615).
pub(super) const AUTHENTICATION_INFO: &str = "Authentication-Info";

/// The only unsigned answers: fixed bytes, for messages whose caller is not known.
///
/// A hint ends no call and proves nothing: a client reports it as its own kind of error, outcome unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum UnsignedHint {
    /// Anything that is wrong before the caller is known.
    Unauthenticated,
    /// The message was shed before the caller was known.
    Overloaded,
    /// The payload exceeds its limit.
    TooLarge,
}

impl UnsignedHint {
    /// The payload of the hint.
    #[must_use]
    pub fn payload(self) -> &'static str {
        match self {
            Self::Unauthenticated => {
                r#"{"jsonrpc":"2.0","error":{"code":-32010,"message":"unauthenticated"},"id":null}"#
            }
            Self::Overloaded => r#"{"jsonrpc":"2.0","error":{"code":-32014,"message":"overloaded"},"id":null}"#,
            Self::TooLarge => r#"{"jsonrpc":"2.0","error":{"code":-32015,"message":"too large"},"id":null}"#,
        }
    }

    /// The hint as a message to `reply`.
    #[must_use]
    pub fn to(self, reply: ReplyTo) -> Sealed {
        let payload = Bytes::from_static(self.payload().as_bytes());
        Sealed { to: reply.into_subject(), block: HeaderBlock::default(), headers: OnceLock::new(), payload }
    }
}

/// An answer that may be published: signed and bound to its request, or a [`UnsignedHint`].
pub struct Sealed {
    to: Subject,
    /// The answer's one header; none for a hint.
    block: HeaderBlock,
    /// The same header as a map, made on demand.
    headers: OnceLock<HeaderMap>,
    payload: Bytes,
}

impl Sealed {
    /// The subject to publish the answer on.
    #[must_use]
    pub fn to(&self) -> &str {
        self.to.as_str()
    }

    /// The JSON-RPC text.
    #[must_use]
    pub fn payload(&self) -> &Bytes {
        &self.payload
    }

    /// The headers; none for a hint.
    #[must_use]
    pub fn headers(&self) -> Option<&HeaderMap> {
        let map = || {
            let mut headers = HeaderMap::new();
            for line in self.block.read().into_iter().flat_map(|(_, lines)| lines).flatten() {
                headers.insert(line.name, line.value);
            }
            headers
        };
        (!self.block.is_empty()).then(|| self.headers.get_or_init(map))
    }

    /// Publishes the answer if the connection has room for it right now, otherwise returns it.
    #[cfg(feature = "service")]
    pub(crate) fn send_now(self, session: &Session) -> Option<Self> {
        let sent = session.publish_now(&self.to, "", self.block.as_bytes(), &self.payload);
        (sent != Ok(true)).then_some(self)
    }

    /// Publishes the answer and consumes it: an answer is sent once.
    ///
    /// # Errors
    /// [`SendFailed`], with the answer: the connection has ended, or the answer exceeds the broker's limit. Nothing was
    /// published, and the answer may be sent through another connection.
    ///
    /// Cancel safety: a dropped future may or may not have queued the message.
    pub async fn send(self, session: &Session) -> Result<(), SendFailed> {
        let sent = session.publish(&self.to, "", self.block.as_bytes(), &self.payload).await;
        sent.map_err(|error| SendFailed { answer: Box::new(self), error })
    }
}

/// An answer that was not published.
#[derive(Debug, thiserror::Error)]
#[error("the answer was not published: {error}")]
pub struct SendFailed {
    /// The answer.
    pub answer: Box<Sealed>,
    /// Why it was not published.
    pub error: PublishError,
}

/// Omits the signature, and the payload, which holds results.
impl fmt::Debug for Sealed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sealed")
            .field("to", &self.to())
            .field("signed", &!self.block.is_empty())
            .field("payload", &self.payload.len())
            .finish()
    }
}

/// The key that signs an answer.
#[derive(Debug, Clone)]
pub(crate) enum ReplyKey {
    /// The answer to an HMAC request is signed with the request's key.
    Hmac { kid: Arc<str>, key: Arc<HmacKey> },
    /// The answer to an Ed25519 request is signed with the service's key.
    Service(Arc<ServiceKey>),
}

impl ReplyKey {
    pub(super) fn algorithm_and_kid(&self) -> (ProofAlgorithm, &str) {
        match self {
            Self::Hmac { kid, .. } => (ProofAlgorithm::Hs256, kid),
            Self::Service(key) => (ProofAlgorithm::EdDsa, key.kid()),
        }
    }

    pub(super) fn sign(&self, message: &[u8]) -> SignatureBytes {
        match self {
            Self::Hmac { key, .. } => SignatureBytes::of(&key.sign(message)),
            Self::Service(key) => key.sign(message),
        }
    }

    /// Begins signatures over many texts with the same beginning.
    pub(super) fn begin(&self, beginning: &str) -> Signing {
        match self {
            Self::Hmac { key, .. } => Signing::Hmac(key.begin(beginning.as_bytes())),
            Self::Service(_) => Signing::Service,
        }
    }
}

/// A signature whose beginning has been processed.
#[derive(Debug)]
pub(super) enum Signing {
    /// The MAC state after the beginning.
    Hmac(PartialMac),
    /// Ed25519 reads a message twice, so there is no state to keep.
    Service,
}

impl Signing {
    /// Signs the text from `start` on; `begun` is where the processed beginning ends.
    pub(super) fn sign(&self, key: &ReplyKey, text: &str, begun: usize, start: usize) -> SignatureBytes {
        let after = |from: usize| text.as_bytes().get(from..).unwrap_or_default();
        match self {
            Self::Hmac(mac) => SignatureBytes::of(&mac.finish(after(begun))),
            Self::Service => key.sign(after(start)),
        }
    }
}

/// The length of an Ed25519 signature as base64url, with the separator.
const MAX_SIGNATURE: usize = 87;
/// The version line, the header's name and scheme, and two line ends.
const BESIDE_THE_PROOF: usize = 48;

/// What ties an answer to its request. The verifier makes it once the request's signature is verified.
#[derive(Debug)]
pub(crate) struct Binding {
    reply: ReplyTo,
    iss: Audience,
    /// The digest of the request's proof.
    request: [u8; 32],
    key: ReplyKey,
}

impl Binding {
    pub(crate) fn new(reply: ReplyTo, iss: Audience, proof: &[u8], key: ReplyKey) -> Self {
        Self { reply, iss, request: sha256(proof), key }
    }

    /// The digest of the request's proof, by which control messages refer to this call.
    pub(crate) fn request(&self) -> &[u8; 32] {
        &self.request
    }

    pub(super) fn into_parts(self) -> (ReplyTo, Audience, [u8; 32], ReplyKey) {
        (self.reply, self.iss, self.request, self.key)
    }

    /// The service's side of a request signed with an HMAC key, for tests that need no verifier.
    #[cfg(test)]
    pub(crate) fn of_hmac(
        authorization: &str,
        reply: &str,
        audience: &Audience,
        kid: &str,
        master: &[u8],
    ) -> Option<Self> {
        let (_, proof) = authorization.rsplit_once('~')?;
        let reply = ReplyTo::unchecked(reply);
        let key = ReplyKey::Hmac { kid: kid.into(), key: Arc::new(HmacKey::derive(master, audience, kid)) };
        Some(Self::new(reply, audience.clone(), proof.as_bytes(), key))
    }

    /// Gives up the right to sign: what is left is an address for a hint.
    pub(crate) fn into_reply(self) -> ReplyTo {
        self.reply
    }

    /// Signs `payload`; `now_s` is whole seconds since the Unix epoch.
    pub(crate) fn seal(self, payload: Vec<u8>, now_s: u64) -> Sealed {
        let (algorithm, kid) = self.key.algorithm_and_kid();
        let (req, dig) = (b64_digest(&self.request), b64_digest(&sha256(&payload)));
        let [req, dig] = [&req, &dig].map(|text| std::str::from_utf8(text).unwrap_or_default());
        let (iss, to) = (self.iss.as_str(), self.reply.as_str());
        let mut claims = Vec::with_capacity(160 + iss.len() + to.len());
        // INVARIANT: writing strings and a number to memory cannot fail; partial output would be discarded.
        if serde_json::to_writer(&mut claims, &ReplyClaims { iss, to, iat: now_s, req, dig }).is_err() {
            claims.clear();
        }
        // The capacity of the whole header block, so that it is allocated once.
        let room = BESIDE_THE_PROOF + 128 + kid.len() * 2 + (claims.len() * 4).div_ceil(3) + MAX_SIGNATURE;
        let mut block = String::with_capacity(room);
        for part in ["NATS/1.0\r\n", AUTHENTICATION_INFO, ": ", SCHEME, " "] {
            block.push_str(part);
        }
        let start = block.len();
        encode_header(algorithm, kid, REPLY_TYP, &mut block);
        block.push('.');
        b64_to(claims, &mut block);
        let signature = self.key.sign(block.get(start..).unwrap_or_default().as_bytes());
        block.push('.');
        b64_to(signature, &mut block);
        block.push_str("\r\n\r\n");
        let block = HeaderBlock::from(Bytes::from(block));
        let payload = Bytes::from(payload);
        Sealed { to: self.reply.into_subject(), block, headers: OnceLock::new(), payload }
    }
}
