//! The bucket of revocations: a JetStream key-value bucket with one key, in an account without agents.
//! Never writes over what it has not read, and asks the stream's leader alone: a copy could be out of date.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

use super::report::FollowerId;
use super::signed::MAX_LIST_BYTES;
use crate::name::Name;
use crate::nats::{BusConfig, Connection, Event, Handler, Message, OpenError, Options, PublishError, Subject};
use crate::wire::{Endpoint, Nonce};

/// The names of one environment.
#[derive(Debug, Clone)]
pub struct BucketSubjects(Name);

impl BucketSubjects {
    /// Of this environment.
    #[must_use]
    pub fn of(environment: &Name) -> Self {
        Self(environment.clone())
    }

    /// The stream behind the bucket.
    #[must_use]
    pub fn stream(&self) -> String {
        format!("KV_SEALWIRE_{}", self.0)
    }

    /// The key, as a subject.
    #[must_use]
    pub fn key(&self) -> String {
        format!("$KV.SEALWIRE_{}.list", self.0)
    }

    /// Where the broker publishes what was stored.
    #[must_use]
    pub fn told(&self) -> String {
        format!("revocation.v1.{}.list", self.0)
    }

    /// Where operators ask everybody for a report.
    #[must_use]
    pub fn ask(&self) -> String {
        format!("revocation.v1.{}.ask", self.0)
    }

    /// Where this one reports. The broker lets a login report in its own role and name alone.
    #[must_use]
    pub fn report(&self, FollowerId { role, name, instance }: &FollowerId) -> String {
        format!("revocation.v1.{}.report.{role}.{name}.{instance}", self.0)
    }

    /// Where all report.
    #[must_use]
    pub fn reports(&self) -> String {
        format!("revocation.v1.{}.report.*.*.*", self.0)
    }

    /// Where this is asked of the stream, in a JetStream domain if it is not the broker's own.
    #[must_use]
    pub fn api(&self, verb: &str, domain: Option<&str>) -> String {
        let domain = domain.map(|domain| format!(".{domain}")).unwrap_or_default();
        format!("$JS{domain}.API.STREAM.{verb}.{}", self.stream())
    }
}

/// What the bucket holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// The stream's number of it.
    pub sequence: u64,
    /// The text.
    pub text: Vec<u8>,
}

/// Why the bucket cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BucketError {
    /// The broker cannot be reached, refuses us, or forbids a subscription.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Nothing was sent.
    #[error(transparent)]
    Publish(#[from] PublishError),
    /// No answer came.
    #[error("the bucket of revocations does not answer within {} s: the stream `{stream}` has no leader, or this user may not ask for it", within.as_secs())]
    Silent {
        /// The stream.
        stream: String,
        /// For how long.
        within: Duration,
    },
    /// The bucket is not there.
    #[error(
        "there is no bucket of revocations (stream `{0}`) in this account: make it with `sealwire revocations init`"
    )]
    Missing(String),
    /// The account has no JetStream.
    #[error("JetStream is not enabled for this account of the broker: the bucket is in another one")]
    Off,
    /// Somebody else has written since it was read.
    #[error("somebody else has written to the bucket meanwhile")]
    Overtaken,
    /// JetStream says no.
    #[error("JetStream: {0}")]
    Refused(String),
}

/// A connection in the account of the bucket.
#[derive(Debug)]
pub struct Bucket {
    pub(super) subjects: BucketSubjects,
    domain: Option<String>,
    pub(super) connection: Connection,
    pub(super) messages: mpsc::Receiver<Message>,
    inbox: String,
    /// The questions that may still be answered, and when each was asked.
    asked: VecDeque<(String, Instant)>,
}

/// How many messages wait to be looked at. Nobody but the broker and operators can send any.
const WAITING: usize = 256;
/// How long an answer may take.
const WITHIN: Duration = Duration::from_secs(5);
/// How many questions may be unanswered. Older ones are forgotten.
const ASKED: usize = 16;

struct Incoming(mpsc::Sender<Message>);

impl Handler for Incoming {
    fn message(&self, message: Message) {
        // What does not fit is asked for again.
        drop(self.0.try_send(message));
    }

    fn event(&self, event: Event) {
        if !matches!(event, Event::Connected | Event::Moved) {
            tracing::debug!(target: "sealwire::revocation", ?event, "the connection to the bucket of revocations");
        }
    }
}

impl Bucket {
    /// Connects as `name`, and listens to these subjects.
    ///
    /// # Errors
    /// [`BucketError::Open`].
    pub async fn open(
        bus: &BusConfig,
        environment: &Name,
        (name, shown): (&str, &str),
        listens: Vec<String>,
    ) -> Result<Self, BucketError> {
        // Anyone able to publish there could answer for the broker, so it ends with a token that nobody can guess.
        let inbox = format!("{}.{name}.revocation.{}", Endpoint::SERVICE_INBOX_PREFIX, Nonce::random().to_text());
        let subjects = listens.into_iter().chain([format!("{inbox}.*")]);
        let subjects = subjects.map(|subject| Subject { subject, queue: None, max_per_second: None }).collect();
        let (sender, messages) = mpsc::channel(WAITING);
        let options = Options { max_message: 4 * MAX_LIST_BYTES, ..Options::new(shown, subjects) };
        let connection = Connection::open(bus, options, Arc::new(Incoming(sender))).await?;
        let subjects = BucketSubjects::of(environment);
        let domain = bus.jetstream_domain.clone();
        Ok(Self { subjects, domain, connection, messages, inbox, asked: VecDeque::new() })
    }

    /// The names of its environment.
    #[must_use]
    pub fn subjects(&self) -> &BucketSubjects {
        &self.subjects
    }

    /// Publishes.
    ///
    /// # Errors
    /// [`BucketError::Publish`].
    pub async fn publish(&self, subject: &str, payload: &[u8]) -> Result<(), BucketError> {
        let session = self.connection.session().ok_or(PublishError::Gone)?;
        Ok(session.publish(subject, "", &[], payload).await?)
    }

    /// The next message on a subject that it listens to, and not an answer.
    ///
    /// Cancel safe.
    pub async fn next(&mut self) -> Option<Message> {
        loop {
            let message = self.messages.recv().await?;
            if !self.is_answer(&message) {
                return Some(message);
            }
        }
    }

    /// What the bucket holds; `None` if nothing has been stored yet.
    ///
    /// # Errors
    /// [`BucketError`].
    pub async fn read(&mut self) -> Result<Option<Stored>, BucketError> {
        let (subject, body) = (self.api(READ), self.question());
        let answer = self.request(&subject, &[], &body).await?;
        self.stored(&answer)
    }

    /// Writes a list in the place of what was read, or of anything (`None`). Returns its number in the stream.
    ///
    /// # Errors
    /// [`BucketError::Overtaken`] and others.
    pub async fn write(&mut self, text: &str, over: Option<u64>) -> Result<u64, BucketError> {
        let headers =
            over.map(|sequence| format!("NATS/1.0\r\nNats-Expected-Last-Subject-Sequence: {sequence}\r\n\r\n"));
        let subject = self.subjects.key();
        let headers = headers.unwrap_or_default();
        let answer = self.request(&subject, headers.as_bytes(), text.as_bytes()).await?;
        self.read_answer(&answer)?
            .get("seq")
            .and_then(Value::as_u64)
            .ok_or_else(|| BucketError::Refused("an answer without a sequence number".to_owned()))
    }

    /// Makes the bucket, with as many copies. It is no error if it is there already, as it would be made.
    ///
    /// # Errors
    /// [`BucketError`].
    pub async fn create(&mut self, copies: usize) -> Result<(), BucketError> {
        let config = json!({
            "name": self.subjects.stream(),
            "subjects": [self.subjects.key()],
            "retention": "limits",
            "storage": "file",
            "num_replicas": copies,
            // The versions before are for people who want to know what was there.
            "max_msgs_per_subject": 32,
            "max_bytes": 64 * MAX_LIST_BYTES,
            "max_msg_size": 2 * MAX_LIST_BYTES,
            "discard": "new",
            "allow_direct": false,
            "deny_delete": true,
            "deny_purge": true,
            "allow_rollup_hdrs": false,
            "republish": { "src": self.subjects.key(), "dest": self.subjects.told() },
        });
        let subject = self.api("CREATE");
        let answer = self.request(&subject, &[], config.to_string().as_bytes()).await?;
        self.read_answer(&answer).map(drop)
    }

    /// Asks for the list without waiting; [`Bucket::answered`] knows the answer.
    pub(super) fn ask(&mut self) {
        let Some(session) = self.connection.session() else { return };
        let (reply, body) = (self.reply(), self.question());
        // A queue without room is a connection that does not work.
        let _ = session.publish_now(&self.api(READ), &reply, &[], &body);
    }

    /// If this is the answer to a question for the list: what it says, and when it was asked.
    pub(super) fn answered(&mut self, message: &Message) -> Option<(Instant, Result<Option<Stored>, BucketError>)> {
        let asked = self.asked.iter().find(|(reply, _)| *reply == message.subject).map(|(_, asked)| *asked)?;
        let stored = self.stored(message);
        // Where the bucket is imported from another account, our own account answers as well, that it has no JetStream.
        if matches!(stored, Err(BucketError::Off)) {
            return None;
        }
        self.asked.retain(|(reply, _)| *reply != message.subject);
        Some((asked, stored))
    }

    fn api(&self, verb: &str) -> String {
        self.subjects.api(verb, self.domain.as_deref())
    }

    fn is_answer(&self, message: &Message) -> bool {
        message.subject.strip_prefix(&self.inbox).is_some_and(|rest| rest.starts_with('.'))
    }

    fn reply(&mut self) -> String {
        let reply = format!("{}.{}", self.inbox, Nonce::random().to_text());
        if self.asked.len() >= ASKED {
            self.asked.pop_front();
        }
        self.asked.push_back((reply.clone(), Instant::now()));
        reply
    }

    fn question(&self) -> Vec<u8> {
        json!({ "last_by_subj": self.subjects.key() }).to_string().into_bytes()
    }

    async fn request(&mut self, subject: &str, headers: &[u8], payload: &[u8]) -> Result<Message, BucketError> {
        let session = self.connection.session().ok_or(PublishError::Gone)?;
        let reply = self.reply();
        session.publish(subject, &reply, headers, payload).await?;
        let silent = || BucketError::Silent { stream: self.subjects.stream(), within: WITHIN };
        let answer = async {
            loop {
                match self.messages.recv().await {
                    Some(message) if message.subject == reply => return Some(message),
                    Some(_) => {}
                    None => return None,
                }
            }
        };
        timeout(WITHIN, answer).await.ok().flatten().ok_or_else(silent)
    }

    fn stored(&self, message: &Message) -> Result<Option<Stored>, BucketError> {
        #[derive(Deserialize)]
        struct Got {
            message: Inner,
        }
        #[derive(Deserialize)]
        struct Inner {
            seq: u64,
            #[serde(default)]
            data: String,
        }
        let said = match self.read_answer(message) {
            Ok(said) => said,
            Err(BucketError::Refused(reason)) if reason == NOTHING => return Ok(None),
            Err(error) => return Err(error),
        };
        let got: Got = serde_json::from_value(said).map_err(|error| BucketError::Refused(error.to_string()))?;
        let text = STANDARD.decode(got.message.data).map_err(|error| BucketError::Refused(error.to_string()))?;
        Ok(Some(Stored { sequence: got.message.seq, text }))
    }

    /// The answer of JetStream's API.
    fn read_answer(&self, message: &Message) -> Result<Value, BucketError> {
        // Without a body it is the broker's own: nobody answers there.
        if message.payload.is_empty() {
            let reason = "nobody answers: JetStream is off, or not there for this account";
            return Err(BucketError::Refused(reason.to_owned()));
        }
        let said: Value =
            serde_json::from_slice(&message.payload).map_err(|error| BucketError::Refused(error.to_string()))?;
        let Some(error) = said.get("error") else { return Ok(said) };
        let description = error.get("description").and_then(Value::as_str).unwrap_or_default();
        Err(match error.get("err_code").and_then(Value::as_u64) {
            Some(NO_MESSAGE) => BucketError::Refused(NOTHING.to_owned()),
            Some(NO_STREAM) => BucketError::Missing(self.subjects.stream()),
            Some(WRONG_LAST) => BucketError::Overtaken,
            Some(OFF) => BucketError::Off,
            _ => BucketError::Refused(description.to_owned()),
        })
    }
}

/// Only the leader answers this.
const READ: &str = "MSG.GET";
/// What it is called that nothing has been stored.
const NOTHING: &str = "nothing is stored";
/// `JSNoMessageFoundErr`.
const NO_MESSAGE: u64 = 10_037;
/// `JSStreamNotFoundErr`.
const NO_STREAM: u64 = 10_059;
/// `JSNotEnabledForAccountErr`.
const OFF: u64 = 10_039;
/// `JSStreamWrongLastSequenceErrF`.
const WRONG_LAST: u64 = 10_071;
