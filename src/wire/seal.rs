//! Answers: signed and bound to their request, or one of the fixed hints. Nothing else can be published.
//! Never publishes outside the inbox that the reply rule allowed.

use std::fmt;
use std::sync::Arc;

use async_nats::{HeaderMap, Subject};
use bytes::Bytes;

use super::endpoint::Audience;
use super::envelope::{SCHEME, credentials, is_plain_subject};
use super::headers::HeaderBlock;
use super::jose::{b64, sha256_b64};
use super::key::{HmacKey, ServiceKey};
use super::proof::{ProofHeader, REPLY_TYP, ReplyClaims};
use super::sign::Unverifiable;
use crate::auth::ProofAlgorithm;
use crate::nats::{PublishError, Session};

/// The answer's header (RFC 7615).
pub(super) const AUTHENTICATION_INFO: &str = "Authentication-Info";

/// The proof in an answer's one signature header. Line by line as they came: no map has folded them.
pub(super) fn proof_of(headers: &HeaderBlock) -> Result<&str, Unverifiable> {
    let (_, lines) = headers.read().map_err(|_| Unverifiable::Headers)?;
    let mut found = None;
    for line in lines {
        let line = line.map_err(|_| Unverifiable::Headers)?;
        if line.name.eq_ignore_ascii_case(AUTHENTICATION_INFO) && found.replace(line.value).is_some() {
            return Err(Unverifiable::Repeated);
        }
    }
    credentials(found.ok_or(Unverifiable::Unsigned)?).ok_or(Unverifiable::Malformed)
}

/// A reply subject that passed the reply rule: it lies under the inbox of the agent that the request's subject names.
#[derive(Debug)]
pub struct ReplyTo(Subject);

impl ReplyTo {
    /// `None` when `reply` is not a plain subject below `inbox` (which ends with a dot).
    pub(super) fn checked(reply: Subject, inbox: &str) -> Option<Self> {
        let below = reply.as_str().strip_prefix(inbox).is_some_and(|rest| !rest.is_empty());
        (below && is_plain_subject(reply.as_str())).then_some(Self(reply))
    }

    /// The subject.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

/// The only unsigned answers: fixed bytes, for messages whose caller is not known.
///
/// A hint ends nothing and proves nothing: a client reports it as its own kind of error, outcome unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Hint {
    /// Anything wrong before the caller is known.
    Unauthenticated,
    /// Shed before the caller was known.
    Overloaded,
    /// The payload is above its limit.
    TooLarge,
}

impl Hint {
    /// The bytes.
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
        Sealed { to: reply.0, headers: None, payload: Bytes::from_static(self.payload().as_bytes()) }
    }
}

/// An answer that may be published: signed and bound to its request, or a [`Hint`].
pub struct Sealed {
    to: Subject,
    headers: Option<HeaderMap>,
    payload: Bytes,
}

impl Sealed {
    /// Where it goes.
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
        self.headers.as_ref()
    }

    /// Publishes the answer. It is consumed: an answer is sent once.
    ///
    /// # Errors
    /// [`Unsent`], with the answer: the connection has ended, or the answer exceeds the broker's limit. Nothing was published,
    /// and it may be sent through another connection.
    ///
    /// Cancel safety: a dropped future may or may not have queued the message.
    pub async fn send(self, session: &Session) -> Result<(), Unsent> {
        let headers = self.headers.as_ref().map(HeaderBlock::from).unwrap_or_default();
        let sent = session.publish(&self.to, "", headers.as_bytes(), &self.payload).await;
        sent.map_err(|error| Unsent { answer: Box::new(self), error })
    }
}

/// An answer that was not published.
#[derive(Debug, thiserror::Error)]
#[error("the answer was not published: {error}")]
pub struct Unsent {
    /// The answer.
    pub answer: Box<Sealed>,
    /// Why.
    pub error: PublishError,
}

/// Without signature and payload, which holds results.
impl fmt::Debug for Sealed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sealed")
            .field("to", &self.to())
            .field("signed", &self.headers.is_some())
            .field("payload", &self.payload.len())
            .finish()
    }
}

/// With what an answer is signed.
#[derive(Debug, Clone)]
pub(crate) enum ReplyKey {
    /// An HMAC request is answered under its own key.
    Hmac { kid: Arc<str>, key: Arc<HmacKey> },
    /// An Ed25519 request is answered under the service's key.
    Service(Arc<ServiceKey>),
}

/// What ties an answer to its request. Made by the verifier once the request's signature holds.
#[derive(Debug)]
pub(crate) struct Binding {
    reply: ReplyTo,
    iss: Audience,
    req: String,
    key: ReplyKey,
}

impl Binding {
    pub(crate) fn new(reply: ReplyTo, iss: Audience, proof: &str, key: ReplyKey) -> Self {
        Self { reply, iss, req: sha256_b64(proof.as_bytes()), key }
    }

    /// Gives up the right to sign: what is left is an address for a hint.
    pub(crate) fn into_reply(self) -> ReplyTo {
        self.reply
    }

    /// Signs `payload`; `now_s` is whole seconds since the Unix epoch.
    pub(crate) fn seal(self, payload: Vec<u8>, now_s: u64) -> Sealed {
        let (algorithm, kid) = match &self.key {
            ReplyKey::Hmac { kid, .. } => (ProofAlgorithm::Hs256, kid.to_string()),
            ReplyKey::Service(key) => (ProofAlgorithm::EdDsa, key.kid().to_owned()),
        };
        let header = ProofHeader { algorithm, kid, typ: REPLY_TYP.to_owned() };
        let claims = ReplyClaims {
            iss: self.iss.as_str().to_owned(),
            to: self.reply.as_str().to_owned(),
            iat: now_s,
            req: self.req,
            dig: sha256_b64(&payload),
        };
        let claims = b64(&serde_json::to_vec(&claims).unwrap_or_default());
        let input = format!("{}.{claims}", header.encode());
        let signature = match &self.key {
            ReplyKey::Hmac { key, .. } => key.sign(input.as_bytes()),
            ReplyKey::Service(key) => key.sign(input.as_bytes()),
        };
        let mut headers = HeaderMap::new();
        headers.insert(AUTHENTICATION_INFO, format!("{SCHEME} {input}.{}", b64(&signature)));
        Sealed { to: self.reply.0, headers: Some(headers), payload: Bytes::from(payload) }
    }
}
