//! The attacker: has every permission on the broker, sees every message, and has none of the keys.
//! Never gets a right at the service that a stranger would not have.

use std::time::{Duration, Instant};

use async_nats::{HeaderMap, Message, Subscriber};
use futures_util::StreamExt as _;

use super::stage::Stage;
use crate::error::{Blame, LabError, OrFail as _};
use crate::parties::SERVICE;
use crate::sandbox::MALLORY;

/// A connection with all permissions on the broker.
pub(super) struct Mallory {
    client: async_nats::Client,
    captured: Subscriber,
}

/// The messages on a subject since Mallory began to listen.
pub(super) struct Eavesdropper(Subscriber);

/// What came back.
#[derive(Debug)]
pub(super) enum Answer {
    Nothing,
    Text { text: String, signed: bool },
}

impl Mallory {
    /// Connects, and begins to listen to what the planner sends.
    pub(super) async fn connect(stage: &Stage) -> Result<Self, LabError> {
        let password = stage.sandbox.password(MALLORY).to_owned();
        let client = async_nats::ConnectOptions::with_user_and_password(MALLORY.to_owned(), password)
            .connect(stage.url.as_str())
            .await
            .or_fail(Blame::Transport)?;
        let captured = client.subscribe(format!("rpc.v1.{SERVICE}.planner")).await.or_fail(Blame::Transport)?;
        let mallory = Self { client, captured };
        mallory.settle().await?;
        Ok(mallory)
    }

    /// Waits until the broker has processed everything that was sent.
    async fn settle(&self) -> Result<(), LabError> {
        let subject = self.client.new_inbox();
        let mut echo = self.client.subscribe(subject.clone()).await.or_fail(Blame::Transport)?;
        self.client.publish(subject, "".into()).await.or_fail(Blame::Transport)?;
        match tokio::time::timeout(Duration::from_secs(5), echo.next()).await {
            Ok(Some(_)) => Ok(()),
            _ => Err(LabError::new(Blame::Transport, "the broker does not deliver a message back to its sender")),
        }
    }

    /// The next message on the planner's subject.
    pub(super) async fn capture(&mut self) -> Result<Message, LabError> {
        match tokio::time::timeout(Duration::from_secs(5), self.captured.next()).await {
            Ok(Some(message)) => Ok(message),
            _ => Err(LabError::new(Blame::Transport, "the planner's message was not seen on the bus")),
        }
    }

    /// Publishes and waits for what arrives on the reply subject.
    pub(super) async fn send(
        &self,
        subject: &str,
        reply: &str,
        headers: HeaderMap,
        payload: impl Into<bytes::Bytes>,
    ) -> Result<(Answer, Duration), LabError> {
        let mut answers = self.client.subscribe(reply.to_owned()).await.or_fail(Blame::Transport)?;
        self.settle().await?;
        let sent = Instant::now();
        self.client
            .publish_with_reply_and_headers(subject.to_owned(), reply.to_owned(), headers, payload.into())
            .await
            .or_fail(Blame::Transport)?;
        let came = match tokio::time::timeout(WAIT, answers.next()).await {
            Ok(Some(message)) => Answer::Text {
                text: String::from_utf8_lossy(&message.payload).into_owned(),
                signed: message.headers.is_some_and(|headers| headers.get("Authentication-Info").is_some()),
            },
            _ => Answer::Nothing,
        };
        Ok((came, sent.elapsed()))
    }

    /// Listens to a subject from now on.
    pub(super) async fn overhear(&self, subject: &str) -> Result<Eavesdropper, LabError> {
        let overheard = self.client.subscribe(subject.to_owned()).await.or_fail(Blame::Transport)?;
        self.settle().await?;
        Ok(Eavesdropper(overheard))
    }

    /// Publishes, and waits until the broker has processed it.
    pub(super) async fn put(&self, subject: &str, headers: HeaderMap, payload: bytes::Bytes) -> Result<(), LabError> {
        let sent = self.client.publish_with_headers(subject.to_owned(), headers, payload).await;
        sent.or_fail(Blame::Transport)?;
        self.settle().await
    }

    /// Answers every request on `subject` at once with a result of its own. Ends with the task.
    pub(super) async fn forge_answers(
        &self,
        subject: &str,
        forged: &'static str,
    ) -> Result<tokio::task::JoinHandle<()>, LabError> {
        let mut requests = self.client.subscribe(subject.to_owned()).await.or_fail(Blame::Transport)?;
        self.settle().await?;
        let client = self.client.clone();
        Ok(tokio::spawn(async move {
            while let Some(request) = requests.next().await {
                if let Some(reply) = request.reply {
                    drop(client.publish(reply, forged.into()).await);
                }
            }
        }))
    }
}

impl Eavesdropper {
    /// The next message for which `made` returns a value.
    pub(super) async fn first<T>(&mut self, made: impl Fn(&Message) -> Option<T>) -> Result<(Message, T), LabError> {
        let found = async {
            while let Some(message) = self.0.next().await {
                if let Some(made) = made(&message) {
                    return Some((message, made));
                }
            }
            None
        };
        match tokio::time::timeout(Duration::from_secs(10), found).await {
            Ok(Some(found)) => Ok(found),
            _ => Err(LabError::new(Blame::Transport, "a message that must have been sent was not seen on the bus")),
        }
    }
}

/// How long silence must last to count as silence.
const WAIT: Duration = Duration::from_millis(300);
