//! One message as the bus delivered it. Nothing in it has been checked.

use std::fmt;

use async_nats::{HeaderMap, Message, Subject};
use bytes::Bytes;
use tokio::time::Instant;

/// A message as it arrived: subject, reply subject, headers and payload, and when this process received it.
///
/// This is what [`crate::service::Service::handle`] takes, so a test can offer any message without a socket.
pub struct Delivery {
    pub(super) subject: Subject,
    pub(super) reply: Option<Subject>,
    pub(super) headers: HeaderMap,
    pub(super) payload: Bytes,
    pub(super) received: Instant,
}

impl Delivery {
    /// A message built from its parts; an empty `reply` means none.
    #[must_use]
    pub fn new(subject: &str, reply: &str, headers: HeaderMap, payload: impl Into<Bytes>) -> Self {
        Self {
            subject: Subject::from(subject),
            reply: (!reply.is_empty()).then(|| Subject::from(reply)),
            headers,
            payload: payload.into(),
            received: Instant::now(),
        }
    }

    /// The bytes of all its parts.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a message has a subject at least")]
    pub fn len(&self) -> usize {
        let headers = self.headers.iter().flat_map(|(name, values)| {
            let name: &str = name.as_ref();
            values.iter().map(move |value| name.len() + value.as_str().len() + 4)
        });
        self.subject.len()
            + self.reply.as_ref().map_or(0, |reply| reply.len())
            + headers.sum::<usize>()
            + self.payload.len()
    }

    /// The subject as published.
    #[must_use]
    pub fn subject(&self) -> &str {
        self.subject.as_str()
    }
}

/// Without headers and payload: they hold the access token and the parameters.
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

impl From<Message> for Delivery {
    fn from(message: Message) -> Self {
        Self {
            subject: message.subject,
            reply: message.reply.filter(|reply| !reply.is_empty()),
            headers: message.headers.unwrap_or_default(),
            payload: message.payload,
            received: Instant::now(),
        }
    }
}
