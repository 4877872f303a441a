//! A request being prepared: to whom, by when, and whether it may be repeated.
//! Never guesses: what the protocol cannot express is an error before anything is sent.

use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use tokio::time::{Instant, sleep};

use super::Client;
use super::batch::Batch;
use super::error::{ClientError, InvalidRequest, ProtocolError};
use super::exchange::Letter;
use super::pending::Answer;
use crate::name::MethodName;
use crate::rpc::{Id, Outcome, Request, Responses};
use crate::wire::is_idempotency_key;

/// A request to one service, with options. Made by [`Client::request`].
///
/// ```no_run
/// # use sealwire::client::{Client, ClientError};
/// # use std::time::Duration;
/// # async fn example(client: Client) -> Result<(), ClientError> {
/// let sum: f64 = client
///     .request("math")
///     .deadline(Duration::from_secs(2))
///     .idempotent()
///     .on_method_subject()
///     .call("math/add", (2, 3))
///     .await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "a request is sent by `call`, `notify`, `batch` or `send_raw`"]
pub struct RequestBuilder {
    pub(super) client: Client,
    service: String,
    deadline: Duration,
    idempotent: bool,
    key: Option<String>,
    subject: Subject,
}

/// Which of the service's subjects a message goes to.
#[derive(Debug, Clone)]
enum Subject {
    /// The agent's, for anything.
    Agent,
    /// The one of the method that is called.
    OfMethod,
    /// The one of this method, whatever the payload is.
    Of(String),
}

impl RequestBuilder {
    pub(super) fn new(client: Client, service: &str) -> Self {
        let deadline = client.0.options.deadline;
        Self { client, service: service.to_owned(), deadline, idempotent: false, key: None, subject: Subject::Agent }
    }

    /// How long all of it may take: 1 ms to 600 s. Waiting for a connection, for a token or for a place counts, and so
    /// do repetitions. The service is told, and starts nothing after it.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Running it twice does no harm. Then it is sent again, under a new signature, while the deadline allows: after an
    /// unsigned refusal, when nobody listens, when the connection is lost, and when the service says that it is
    /// overloaded, that the caller's quota is used up, or that the clocks differ. At most ten times, with growing pauses.
    pub fn idempotent(mut self) -> Self {
        self.idempotent = true;
        self
    }

    /// A key that a method can tell repetitions by: 1 to 128 characters of printable ASCII. It is signed and handed to
    /// the method; nothing else is done with it. Repetitions have the same key.
    pub fn idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Publishes on the method's own subject (`rpc.v1.math.planner.math.add`), for brokers that permit single methods.
    pub fn on_method_subject(mut self) -> Self {
        self.subject = Subject::OfMethod;
        self
    }

    /// Publishes on the subject of this method, whatever the payload says: for tests of what a service refuses.
    pub fn on_subject_of(mut self, method: impl Into<String>) -> Self {
        self.subject = Subject::Of(method.into());
        self
    }

    /// Calls a method and decodes its result.
    ///
    /// # Errors
    /// See [`ClientError`]; [`ClientError::Remote`] is the service's own error.
    ///
    /// Cancel safety: dropping the future ends the wait and leaves nothing behind. The call may be executed all the same.
    pub async fn call<R: DeserializeOwned>(self, method: &str, params: impl Serialize) -> Result<R, ClientError> {
        let id = Id::from(self.client.next_id());
        let request = request(method, &params, Some(id.clone()))?;
        drop(params);
        let letter = self.letter(Some(method), request.to_bytes().into())?;
        let answer = self.client.0.ask(&letter).await?;
        decode(&single(answer, &id)?.map_err(ClientError::Remote)?)
    }

    /// Sends a notification: nobody says whether it was executed, or even accepted. Returns when it is written to the
    /// connection.
    ///
    /// # Errors
    /// See [`ClientError`]. What the broker forbids, or what nobody listens to, is not told.
    ///
    /// Cancel safety: dropping the future leaves nothing behind. The notification may have been sent.
    pub async fn notify(self, method: &str, params: impl Serialize) -> Result<(), ClientError> {
        let request = request(method, &params, None)?;
        drop(params);
        let letter = self.letter(Some(method), request.to_bytes().into())?;
        self.client.0.tell(&letter, false).await
    }

    /// Several calls and notifications in one message, under one signature.
    pub fn batch(self) -> Batch {
        Batch::new(self)
    }

    /// Signs these bytes as they are, sends them, and returns the text of the answer, which was verified: it may be an
    /// error, and is not looked at otherwise.
    ///
    /// # Errors
    /// See [`ClientError`], but never [`ClientError::Remote`].
    ///
    /// Cancel safety: as of [`RequestBuilder::call`].
    pub async fn send_raw(self, payload: impl Into<Bytes>) -> Result<String, ClientError> {
        let letter = self.letter(None, payload.into())?;
        let answer = self.client.0.ask(&letter).await?;
        let flaw = |_| ClientError::Protocol(ProtocolError::Response(crate::rpc::Flaw::NotUtf8.into()));
        String::from_utf8(answer.payload.to_vec()).map_err(flaw)
    }

    /// Signs these bytes as they are and sends them without a reply subject, so that nothing can be answered.
    ///
    /// # Errors
    /// As of [`RequestBuilder::notify`].
    ///
    /// Cancel safety: as of [`RequestBuilder::notify`].
    pub async fn publish_raw(self, payload: impl Into<Bytes>) -> Result<(), ClientError> {
        let letter = self.letter(None, payload.into())?;
        self.client.0.tell(&letter, false).await
    }

    /// The message, if all its options can be.
    pub(super) fn letter(&self, method: Option<&str>, payload: Bytes) -> Result<Letter, InvalidRequest> {
        let inner = &self.client.0;
        let peer = inner.peers.find(&inner.credentials, &self.service, inner.options.valid_s)?;
        if self.deadline < Duration::from_millis(1) || self.deadline > MAX_DEADLINE {
            return Err(InvalidRequest::Deadline(self.deadline));
        }
        if self.key.as_deref().is_some_and(|key| !is_idempotency_key(key)) {
            return Err(InvalidRequest::IdempotencyKey);
        }
        let agent = inner.credentials.agent();
        let method = match &self.subject {
            Subject::Of(method) => Some(method.as_str()),
            Subject::OfMethod => method,
            Subject::Agent => None,
        };
        let subject = match method {
            Some(method) => peer.endpoint.method_subject(agent, &MethodName::new(method)?),
            None => peer.endpoint.subject(agent),
        };
        Ok(Letter {
            peer,
            subject,
            payload,
            deadline: self.deadline,
            idempotent: self.idempotent,
            idempotency_key: self.key.clone(),
        })
    }

    /// Batches have no subject of their own method.
    pub(super) fn is_on_method_subject(&self) -> bool {
        !matches!(self.subject, Subject::Agent)
    }
}

/// A request of a method that can be: no service knows a name outside the grammar, so it is not worth a message.
pub(super) fn request(method: &str, params: &impl Serialize, id: Option<Id>) -> Result<Request, InvalidRequest> {
    MethodName::new(method)?;
    Ok(Request::new(method, params, id)?)
}

/// How long one question of [`Client::wait_for`] may take, and how long the next one waits.
const ASK: Duration = Duration::from_secs(2);
const ASK_AGAIN: Duration = Duration::from_millis(100);

/// Asks until somebody listens. What is asked is signed and no JSON-RPC request, so it runs nothing, and a copy of it, too.
pub(super) async fn wait_for(client: &Client, service: &str, limit: Duration) -> Result<(), ClientError> {
    let started = Instant::now();
    let mut nobody = None;
    loop {
        let left = limit.saturating_sub(started.elapsed()).max(Duration::from_millis(1));
        let asked = client.request(service).deadline(left.min(ASK)).send_raw("{}").await;
        match asked {
            // Whatever it makes of us: it is there.
            Ok(_) | Err(ClientError::Hint { .. } | ClientError::Clock { .. }) => return Ok(()),
            Err(
                error @ (ClientError::NoResponders { .. }
                | ClientError::Timeout { .. }
                | ClientError::ConnectionLost
                | ClientError::Disconnected { .. }),
            ) if started.elapsed() + ASK_AGAIN < limit => {
                nobody = Some(error).filter(|error| matches!(error, ClientError::NoResponders { .. })).or(nobody);
                sleep(ASK_AGAIN).await;
            }
            // The last question may have had a millisecond left for its answer.
            Err(error @ ClientError::Timeout { .. }) => return Err(nobody.unwrap_or(error)),
            Err(error) => return Err(error),
        }
    }
}

/// The outcome of the one call `id`, or of its whole message.
fn single(answer: Answer, id: &Id) -> Result<Outcome, ClientError> {
    match answer.responses.map_err(ClientError::Protocol)? {
        Responses::Single(response) if response.id == *id => Ok(response.outcome),
        // A refusal of the whole message.
        Responses::Single(response) if response.id.is_null() && response.outcome.is_err() => Ok(response.outcome),
        Responses::Single(_) => Err(ClientError::Protocol(ProtocolError::UnknownId)),
        Responses::Batch(_) => Err(ClientError::Protocol(ProtocolError::Shape)),
    }
}

pub(super) fn decode<R: DeserializeOwned>(result: &RawValue) -> Result<R, ClientError> {
    let wanted = std::any::type_name::<R>();
    serde_json::from_str(result.get()).map_err(|cause| ClientError::Decode { wanted, cause })
}

/// The protocol's longest deadline.
const MAX_DEADLINE: Duration = Duration::from_secs(600);
