//! The connection on which approvers' own signed calls are published as they are, and on which their answers arrive.
//! Never signs anything, never publishes but for a request that was admitted, and never waits for long.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use hyper::StatusCode;
use sealwire::internal::LogLimiter;
use sealwire::internal::nats::{
    Connection, Event, Handler, Message, OpenError, Options, PublishError, Session, Subject,
};
use sealwire::internal::wire::RelayedRequest;
use sealwire::{BusConfig, ClientError};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use crate::http::pipeline::admission::Admitted;
use crate::http::refusal::Refusal;

/// How long an answer is waited for.
const ANSWERED_WITHIN: Duration = Duration::from_secs(10);
/// The largest answer, headers included: of a request in full, parameters take 32 KiB, in which a byte may need six.
const ANSWER_BYTES: usize = 256 << 10;
/// How long after a failure to try to connect again.
const AGAIN: Duration = Duration::from_secs(5);

/// The connection, once it has been made. From then on it is kept up.
pub(super) struct Relay {
    bus: BusConfig,
    /// The answers to all agents' relayed requests. Other replicas of the gateway hear them, too.
    answers: String,
    connection: OnceLock<Connection>,
    waiting: Arc<Waiting>,
}

/// Who waits for which answer. There are no more than there are requests in progress.
#[derive(Default)]
struct Waiting {
    by_reply: Mutex<HashMap<String, Waiter>>,
    /// How many there have been.
    count: AtomicU64,
    log: LogLimiter,
}

struct Waiter {
    number: u64,
    subject: String,
    answer: oneshot::Sender<Message>,
}

/// A place among those who wait, until this is dropped.
struct Place<'w> {
    waiting: &'w Waiting,
    reply: &'w str,
    number: u64,
}

impl Relay {
    pub(super) fn new(bus: BusConfig, inbox_prefix: &str) -> Self {
        let answers = format!("{inbox_prefix}.*.{}.*", RelayedRequest::INBOX);
        Self { bus, answers, connection: OnceLock::new(), waiting: Arc::default() }
    }

    /// Makes the connection, however long that takes.
    pub(super) async fn open(&self) {
        while self.connection.get().is_none() {
            let answers = Subject { subject: self.answers.clone(), queue: None, max_per_second: None };
            let options = Options { max_message: ANSWER_BYTES, ..Options::new("sealwire approvals", vec![answers]) };
            match Connection::open(&self.bus, options, Arc::clone(&self.waiting) as Arc<dyn Handler>).await {
                Ok(connection) => drop(self.connection.set(connection)),
                Err(error) => {
                    let error = match error {
                        OpenError::Bus(error) => ClientError::Connect(error).to_string(),
                        OpenError::Forbidden(subject) => format!("the broker forbids its user `{subject}`"),
                    };
                    tracing::error!(target: "sealwire::gateway", error, "`approvals`: cannot connect to the broker");
                    sleep(AGAIN).await;
                }
            }
        }
    }

    pub(super) async fn close(&self) {
        if let Some(connection) = self.connection.get() {
            connection.close().await;
        }
    }

    /// Publishes a request as it is, and waits for what comes back, which nobody here has looked at.
    ///
    /// Cancel safety: if the future is dropped, the request may have been published.
    pub(super) async fn exchange(
        &self,
        _: &Admitted,
        request: &RelayedRequest,
        payload: &[u8],
    ) -> Result<Message, Refusal> {
        let session = self.connection.get().and_then(Connection::session).ok_or_else(Refusal::away)?;
        let (place, answer) = self.waiting.place(request.reply(), request.subject())?;
        publish(&session, request, payload).await?;
        let answer = timeout(ANSWERED_WITHIN, answer).await;
        drop(place);
        match answer {
            Ok(Ok(answer)) if answer.oversized => {
                Err(Refusal::unknown("the answer is larger than the gateway passes on"))
            }
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(_)) => Err(Refusal::unknown("the broker forbids the gateway to pass this on: its log says more")),
            Err(_) => Err(Refusal::of_call(&ClientError::Timeout {
                service: request.subject().to_owned(),
                after: ANSWERED_WITHIN,
            })),
        }
    }
}

async fn publish(session: &Session, request: &RelayedRequest, payload: &[u8]) -> Result<(), Refusal> {
    let published = session.publish(request.subject(), request.reply(), request.headers().as_bytes(), payload);
    match timeout(ANSWERED_WITHIN, published).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(PublishError::TooLarge { .. })) => Err(Refusal::too_long("message too large for the broker")),
        Ok(Err(PublishError::Gone | PublishError::Subject)) | Err(_) => Err(Refusal::away()),
    }
}

impl Waiting {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Waiter>> {
        self.by_reply.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn place<'w>(&'w self, reply: &'w str, subject: &str) -> Result<(Place<'w>, oneshot::Receiver<Message>), Refusal> {
        let (answer, arrives) = oneshot::channel();
        let mut by_reply = self.lock();
        if by_reply.contains_key(reply) {
            return Err(Refusal::bad(StatusCode::CONFLICT, "an answer on this reply subject is waited for already"));
        }
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        by_reply.insert(reply.to_owned(), Waiter { number, subject: subject.to_owned(), answer });
        Ok((Place { waiting: self, reply, number }, arrives))
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut by_reply = self.waiting.lock();
        // Once this one was answered, another may wait on the same subject.
        if by_reply.get(self.reply).is_some_and(|waiter| waiter.number == self.number) {
            by_reply.remove(self.reply);
        }
    }
}

impl Handler for Waiting {
    fn message(&self, message: Message, _: &Arc<Session>) {
        let waiter = self.lock().remove(&message.subject);
        if let Some(waiter) = waiter {
            // Nobody waits any more.
            drop(waiter.answer.send(message));
        }
    }

    fn event(&self, event: Event) {
        let reason = match event {
            Event::PublishForbidden(forbidden) => {
                // Whose message it was is not said.
                self.lock().retain(|_, waiter| waiter.subject != forbidden);
                format!("its user may not publish on `{}`", forbidden.escape_debug())
            }
            Event::Disconnected(reason) | Event::Failed(reason) | Event::LoginEnds(reason) | Event::Error(reason) => {
                reason
            }
            Event::SubscribeForbidden(subject) => format!("its user may not subscribe to `{}`", subject.escape_debug()),
            Event::Connected | Event::Moved | Event::Flooded(_) => return,
        };
        if let Some(suppressed) = self.log.check() {
            tracing::warn!(target: "sealwire::gateway", reason, suppressed, "`approvals`: the broker");
        }
    }
}

impl fmt::Debug for Relay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Relay").field("answers", &self.answers).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_that_is_left_late_takes_nobody_elses() {
        let waiting = Waiting::default();
        let place = |subject| waiting.place("_INBOX.tina.relay.a", subject).ok().map(|(place, _)| place);
        let first = place("first");
        assert!(first.is_some() && place("second").is_none(), "one waits at a time");
        waiting.event(Event::PublishForbidden("first".to_owned()));
        let second = place("second");
        assert!(second.is_some());
        drop(first);
        assert!(place("third").is_none(), "the second waits still");
        drop(second);
        assert!(waiting.lock().is_empty());
    }
}
