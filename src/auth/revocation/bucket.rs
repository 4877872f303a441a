//! A bucket of what operators sign: a JetStream key-value bucket in an account without agents, of which one key matters here.
//! Never writes over what it has not read, and asks the stream's leader alone: a copy could be out of date.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

use super::report::FollowerId;
use super::signed::MAX_LIST_BYTES;
use crate::name::Name;
use crate::nats::{BusConfig, Connection, Event, Handler, Message, OpenError, Options, PublishError, Session, Subject};
use crate::wire::{Endpoint, Nonce};

/// The names of one bucket, of one environment.
#[derive(Debug, Clone)]
pub struct BucketSubjects {
    environment: Name,
    content: Content,
}

/// What a bucket holds.
#[derive(Debug, Clone)]
enum Content {
    /// The list of revocations.
    Revocations,
    /// Policies, of which that of one service and stage matters here.
    Policies(Name, Stage),
}

/// What a policy is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// It decides.
    Active,
    /// It is compared with the one that decides.
    Shadow,
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Active => "active",
            Self::Shadow => "shadow",
        })
    }
}

impl BucketSubjects {
    /// Of the revocations of this environment.
    #[must_use]
    pub fn of(environment: &Name) -> Self {
        Self { environment: environment.clone(), content: Content::Revocations }
    }

    /// Of the policies of this environment, and of them that of one service and stage.
    #[must_use]
    pub fn policies(environment: &Name, service: &Name, stage: Stage) -> Self {
        Self { environment: environment.clone(), content: Content::Policies(service.clone(), stage) }
    }

    /// The stream behind the bucket.
    #[must_use]
    pub fn stream(&self) -> String {
        format!("KV_{}", self.bucket())
    }

    // No environment's name begins so that one of these would be the other of another environment.
    fn bucket(&self) -> String {
        match self.content {
            Content::Revocations => format!("SEALWIRE_{}", self.environment),
            Content::Policies(..) => format!("SEALWIREPOLICY_{}", self.environment),
        }
    }

    fn topic(&self) -> String {
        match self.content {
            Content::Revocations => format!("revocation.v1.{}", self.environment),
            Content::Policies(..) => format!("policy.v1.{}", self.environment),
        }
    }

    /// The key, as a subject.
    #[must_use]
    pub fn key(&self) -> String {
        match &self.content {
            Content::Revocations => format!("$KV.{}.list", self.bucket()),
            Content::Policies(service, stage) => format!("$KV.{}.{service}.{stage}", self.bucket()),
        }
    }

    /// Where the broker publishes what was stored.
    #[must_use]
    pub fn told(&self) -> String {
        match &self.content {
            Content::Revocations => format!("{}.list", self.topic()),
            Content::Policies(service, stage) => format!("{}.package.{service}.{stage}", self.topic()),
        }
    }

    /// Where operators ask everybody for a report.
    #[must_use]
    pub fn ask(&self) -> String {
        format!("{}.ask", self.topic())
    }

    /// Where this one reports. The broker lets a login report in its own role and name alone.
    #[must_use]
    pub fn report(&self, FollowerId { role, name, instance }: &FollowerId) -> String {
        format!("{}.report.{role}.{name}.{instance}", self.topic())
    }

    /// Whether followers of this name follow what these are of: any of revocations, and one service of policies.
    #[must_use]
    pub fn are_of(&self, name: &Name) -> bool {
        match &self.content {
            Content::Revocations => true,
            Content::Policies(service, _) => service == name,
        }
    }

    /// Where all report who follow what these are of. A stolen login of another service cannot crowd them out.
    #[must_use]
    pub fn reports(&self) -> String {
        match &self.content {
            Content::Revocations => format!("{}.report.*.*.*", self.topic()),
            Content::Policies(service, _) => format!("{}.report.*.{service}.*", self.topic()),
        }
    }

    /// Where this is asked of the stream, in a JetStream domain if it is not the broker's own.
    #[must_use]
    pub fn api(&self, verb: &str, domain: Option<&str>) -> String {
        let domain = domain.map(|domain| format!(".{domain}")).unwrap_or_default();
        format!("$JS{domain}.API.STREAM.{verb}.{}", self.stream())
    }

    /// The longest text that the bucket takes, in bytes.
    fn longest(&self) -> usize {
        match self.content {
            Content::Revocations => MAX_LIST_BYTES,
            Content::Policies(..) => MAX_PACKAGE_BYTES,
        }
    }

    /// How a bucket that is not there is made.
    fn made_by(&self) -> &'static str {
        match self.content {
            Content::Revocations => "make it with `sealwire revocations init`",
            Content::Policies(..) => "`--create 1` makes it, or `--create 3` in a cluster",
        }
    }

    /// The stream, with as many copies.
    fn config(&self, copies: usize) -> Value {
        let (subjects, told, kept, bytes) = match self.content {
            // The versions before are for people who want to know what was there.
            Content::Revocations => (self.key(), self.told(), 32, 64 * MAX_LIST_BYTES),
            Content::Policies(..) => {
                let told = format!("{}.package.{{{{wildcard(1)}}}}.{{{{wildcard(2)}}}}", self.topic());
                (format!("$KV.{}.*.*", self.bucket()), told, 1, POLICIES_BYTES)
            }
        };
        json!({
            "name": self.stream(),
            "subjects": [subjects],
            "retention": "limits",
            "storage": "file",
            "num_replicas": copies,
            "max_msgs_per_subject": kept,
            "max_bytes": bytes,
            "max_msg_size": 2 * self.longest(),
            "discard": "new",
            "allow_direct": false,
            "deny_delete": true,
            "deny_purge": true,
            "allow_rollup_hdrs": false,
            "republish": { "src": subjects, "dest": told },
        })
    }
}

/// The longest signed package of policies, in bytes. Brokers take messages of 256 KiB with their headers, as `sealwire setup` makes them.
pub const MAX_PACKAGE_BYTES: usize = 240 * 1024;
/// What the packages of all services take together, in bytes of each copy.
const POLICIES_BYTES: usize = 16 * 1024 * 1024;

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
    #[error("the bucket does not answer within {} s: the stream `{stream}` has no leader, or this user may not ask for it", within.as_secs())]
    Silent {
        /// The stream.
        stream: String,
        /// For how long.
        within: Duration,
    },
    /// The bucket is not there.
    #[error("there is no bucket (stream `{stream}`) in this account: {made_by}")]
    Missing {
        /// The stream.
        stream: String,
        /// What makes it.
        made_by: &'static str,
    },
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
    subjects: BucketSubjects,
    domain: Option<String>,
    connection: Connection,
    /// What arrives, answers included.
    pub messages: mpsc::Receiver<Message>,
    inbox: String,
    /// The questions that may still be answered, for which key each asks, and when it was asked.
    asked: VecDeque<(String, String, Instant)>,
}

/// An answer to a question for what the bucket holds.
#[derive(Debug)]
pub struct Answered {
    /// For which key it was asked.
    pub key: String,
    /// When.
    pub asked: Instant,
    /// What it says.
    pub stored: Result<Option<Stored>, BucketError>,
}

/// How many messages wait to be looked at. Nobody but the broker and operators can send any.
const WAITING: usize = 256;
/// How long an answer may take.
const WITHIN: Duration = Duration::from_secs(5);
/// How many questions may be unanswered. Older ones are forgotten.
const ASKED: usize = 16;

struct Incoming(mpsc::Sender<Message>);

impl Handler for Incoming {
    fn message(&self, message: Message, _: &Arc<Session>) {
        // What does not fit is asked for again.
        drop(self.0.try_send(message));
    }

    fn event(&self, event: Event) {
        if !matches!(event, Event::Connected | Event::Moved) {
            tracing::debug!(target: "sealwire::revocation", ?event, "the connection to a bucket");
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
        subjects: BucketSubjects,
        (name, shown): (&str, &str),
        listens: Vec<String>,
    ) -> Result<Self, BucketError> {
        // Anyone able to publish there could answer for the broker, so it ends with a token that nobody can guess.
        let inbox = format!("{}.{name}.revocation.{}", Endpoint::SERVICE_INBOX_PREFIX, Nonce::random().to_text());
        let heard = listens.into_iter().chain([format!("{inbox}.*")]);
        let heard = heard.map(|subject| Subject { subject, queue: None, max_per_second: None }).collect();
        let (sender, messages) = mpsc::channel(WAITING);
        let options = Options { max_message: 4 * subjects.longest(), ..Options::new(shown, heard) };
        let connection = Connection::open(bus, options, Arc::new(Incoming(sender))).await?;
        let domain = bus.jetstream_domain.clone();
        Ok(Self { subjects, domain, connection, messages, inbox, asked: VecDeque::new() })
    }

    /// Its names.
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
        let (subject, body) = (self.api(READ), question(&self.subjects.key()));
        let answer = self.request(&subject, &[], &body).await?;
        self.stored(&answer)
    }

    /// Writes a text in the place of what was read, or of anything (`None`). Returns its number in the stream.
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
        let config = self.subjects.config(copies);
        let subject = self.api("CREATE");
        let answer = self.request(&subject, &[], config.to_string().as_bytes()).await?;
        self.read_answer(&answer).map(drop)
    }

    /// Asks for what it holds without waiting; [`Bucket::answered`] knows the answer.
    pub fn ask(&mut self) {
        self.ask_for(self.subjects.key());
    }

    /// The same for another key of it.
    pub fn ask_for(&mut self, key: String) {
        let Some(session) = self.connection.session() else { return };
        let body = question(&key);
        let reply = self.reply(key);
        // A queue without room is a connection that does not work.
        let _ = session.publish_now(&self.api(READ), &reply, &[], &body);
    }

    /// If this is the answer to a question for what it holds: what it says.
    #[must_use]
    pub fn answered(&mut self, message: &Message) -> Option<Answered> {
        let (_, key, asked) = self.asked.iter().find(|(reply, ..)| *reply == message.subject).cloned()?;
        let stored = self.stored(message);
        // Where the bucket is imported from another account, our own account answers as well, that it has no JetStream.
        if matches!(stored, Err(BucketError::Off)) {
            return None;
        }
        self.asked.retain(|(reply, ..)| *reply != message.subject);
        Some(Answered { key, asked, stored })
    }

    fn api(&self, verb: &str) -> String {
        self.subjects.api(verb, self.domain.as_deref())
    }

    fn is_answer(&self, message: &Message) -> bool {
        message.subject.strip_prefix(&self.inbox).is_some_and(|rest| rest.starts_with('.'))
    }

    fn reply(&mut self, key: String) -> String {
        let reply = format!("{}.{}", self.inbox, Nonce::random().to_text());
        if self.asked.len() >= ASKED {
            self.asked.pop_front();
        }
        self.asked.push_back((reply.clone(), key, Instant::now()));
        reply
    }

    async fn request(&mut self, subject: &str, headers: &[u8], payload: &[u8]) -> Result<Message, BucketError> {
        let session = self.connection.session().ok_or(PublishError::Gone)?;
        let reply = self.reply(self.subjects.key());
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
            Some(NO_STREAM) => {
                BucketError::Missing { stream: self.subjects.stream(), made_by: self.subjects.made_by() }
            }
            Some(WRONG_LAST) => BucketError::Overtaken,
            Some(OFF) => BucketError::Off,
            _ => BucketError::Refused(description.to_owned()),
        })
    }
}

fn question(key: &str) -> Vec<u8> {
    json!({ "last_by_subj": key }).to_string().into_bytes()
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
