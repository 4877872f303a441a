//! One message as the bus delivered it. Nothing in it has been checked.

use std::fmt;

use async_nats::{Message, Subject};
use bytes::Bytes;
use tokio::time::Instant;

use super::headers::HeaderBlock;

/// A message as it arrived: subject, reply subject, header block and payload, and when this process received it.
///
/// This is what [`crate::service::Service::handle`] takes, so a test can offer any message without a socket.
pub struct Delivery {
    pub(super) subject: Subject,
    pub(super) reply: Option<Subject>,
    pub(super) headers: HeaderBlock,
    pub(super) payload: Bytes,
    /// Whether the message exceeded this process's limit, so that only its subjects were kept.
    pub(super) oversized: bool,
    pub(super) received: Instant,
}

impl Delivery {
    /// Builds a message from its parts; an empty `reply` means none. The headers are a whole block in bytes, or an
    /// async-nats map, which is serialized.
    #[must_use]
    pub fn new(subject: &str, reply: &str, headers: impl Into<HeaderBlock>, payload: impl Into<Bytes>) -> Self {
        Self {
            subject: Subject::from(subject),
            reply: (!reply.is_empty()).then(|| Subject::from(reply)),
            headers: headers.into(),
            payload: payload.into(),
            oversized: false,
            received: Instant::now(),
        }
    }

    /// The subject as published.
    #[must_use]
    pub fn subject(&self) -> &str {
        self.subject.as_str()
    }

    /// The total size of subject, reply subject, header block and payload in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a message has a subject at least")]
    pub fn len(&self) -> usize {
        self.subject.len()
            + self.reply.as_ref().map_or(0, |reply| reply.len())
            + self.headers.len()
            + self.payload.len()
    }
}

/// Omits headers and payload: they hold the access token and the parameters.
impl fmt::Debug for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delivery")
            .field("subject", &self.subject.as_str())
            .field("reply", &self.reply.as_ref().map(Subject::as_str))
            .field("headers", &self.headers.len())
            .field("payload", &self.payload.len())
            .finish_non_exhaustive()
    }
}

/// For programs that subscribe with async-nats. Its connection does not survive every header block; `Service::serve`
/// uses our own connection.
impl From<Message> for Delivery {
    fn from(message: Message) -> Self {
        Self {
            subject: message.subject,
            reply: message.reply.filter(|reply| !reply.is_empty()),
            headers: message.headers.as_ref().map(HeaderBlock::from).unwrap_or_default(),
            payload: message.payload,
            oversized: false,
            received: Instant::now(),
        }
    }
}

impl From<crate::nats::Message> for Delivery {
    fn from(message: crate::nats::Message) -> Self {
        Self {
            subject: Subject::from(message.subject),
            reply: message.reply.filter(|reply| !reply.is_empty()).map(Subject::from),
            headers: message.headers.into(),
            payload: message.payload,
            oversized: message.oversized,
            received: Instant::now(),
        }
    }
}
