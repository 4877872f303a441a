//! The connection to the broker: kept up, and watched for what affects calls.
//! Never hands a message to a connection that is not up, so nothing old is sent after a reconnect.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};

use super::credentials::Credentials;
use super::error::ClientError;
use super::pending::Pending;
use super::token::TokenCache;

use crate::log_limiter::LogLimiter;
use crate::nats::BusError;
use crate::nats::{
    Connection, Event, Handler, LoginTokens, Message, OpenError, Options, PublishError, Session, Subject,
};
use crate::wire::{HeaderBlock, Nonce};

/// The connection, and the handler of its events.
#[derive(Debug)]
pub(super) struct Link {
    bus: Connection,
    events: Arc<ConnectionEvents>,
}

/// Handles the connection's messages and events. It does not hold the connection, which would then live for ever.
#[derive(Debug)]
struct ConnectionEvents {
    pending: Arc<Pending>,
    /// `<inbox prefix>.<agent>.<connection>.`, with the final dot. The same for the life of the client.
    inbox: String,
    /// Ticks whenever the state that waiting calls look at may have changed.
    changed: watch::Sender<u64>,
    lost: AtomicU64,
    closed: AtomicBool,
    failure: Mutex<LastFailure>,
    other: LogLimiter,
}

#[derive(Debug, Default)]
struct LastFailure {
    /// Why the last attempt to connect failed.
    cause: Option<String>,
    /// The subscription to our own inbox that the broker refused.
    inbox_refused: Option<String>,
}

/// Why a message was not handed to the connection. In every case it was not sent.
#[derive(Debug)]
pub(super) enum NotPublished {
    /// The deadline came first.
    DeadlineExceeded,
    /// The connection has ended. Another one will be up soon.
    Disconnected,
    /// Larger than the broker accepts.
    TooLarge { limit: usize },
}

impl From<PublishError> for NotPublished {
    fn from(error: PublishError) -> Self {
        match error {
            PublishError::TooLarge { limit } => Self::TooLarge { limit },
            // Subjects are made of names, which contain no white space.
            PublishError::Gone | PublishError::Subject => Self::Disconnected,
        }
    }
}

impl Link {
    /// Connects once and subscribes to the inbox.
    pub(super) async fn open(
        credentials: &Credentials,
        tokens: &Arc<TokenCache>,
        pending: Arc<Pending>,
    ) -> Result<Self, ClientError> {
        let inbox = format!("{}.{}.", credentials.inbox(), Nonce::random().to_text());
        let events = Arc::new(ConnectionEvents {
            pending,
            changed: watch::Sender::new(0),
            lost: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            failure: Mutex::default(),
            other: LogLimiter::default(),
            inbox,
        });
        let name = format!("sealwire agent {}", credentials.agent());
        let inbox = Subject { subject: format!("{}*", events.inbox), queue: None, max_per_second: None };
        // If the inbox is forbidden, notifications still work.
        let tokens = Some(Arc::clone(tokens) as Arc<dyn LoginTokens>);
        let options = Options { required: false, tokens, ..Options::new(&name, vec![inbox]) };
        let handler: Arc<dyn Handler> = events.clone();
        match Connection::open(&credentials.bus(), options, handler).await {
            Ok(bus) => Ok(Self { bus, events }),
            Err(OpenError::Bus(error)) => Err(ClientError::Connect(error)),
            Err(OpenError::Forbidden(cause)) => {
                let urls = credentials.bus().shown();
                Err(ClientError::Connect(BusError::Unreachable { urls, cause }))
            }
        }
    }

    /// The reply subject of the message with this nonce, which is the subject's last token. Both are for this message alone.
    pub(super) fn reply(&self, nonce: Nonce) -> String {
        [&*self.events.inbox, &nonce.text()].concat()
    }

    /// Waits until the connection is up, and the inbox can be read if an answer is `expected`.
    ///
    /// # Errors
    /// Nothing has been sent in any of these cases.
    pub(super) async fn up(&self, expected: bool, deadline: Instant) -> Result<Arc<Session>, ClientError> {
        // Usually it is up, and there is nothing to wait for.
        match self.ready(expected)? {
            Some(bus) => Ok(bus),
            None => Box::pin(self.comes_up(expected, deadline)).await,
        }
    }

    async fn comes_up(&self, expected: bool, deadline: Instant) -> Result<Arc<Session>, ClientError> {
        let started = Instant::now();
        let (mut changed, mut sessions) = (self.events.changed.subscribe(), self.bus.sessions());
        loop {
            if let Some(bus) = self.ready(expected)? {
                return Ok(bus);
            }
            let news = async {
                tokio::select! {
                    _ = changed.changed() => {}
                    // By itself, too: a session that has just ended is still the latest one.
                    _ = timeout(LOOK_AGAIN, sessions.changed()) => {}
                }
            };
            if timeout_at(deadline, news).await.is_err() {
                let cause = self.events.failure().cause.clone();
                return Err(ClientError::Disconnected { waited: started.elapsed(), cause });
            }
        }
    }

    /// The connection, if it is up and can be used.
    fn ready(&self, expected: bool) -> Result<Option<Arc<Session>>, ClientError> {
        if self.events.closed.load(Ordering::Acquire) {
            return Err(ClientError::Closed { sent: false });
        }
        if expected && let Some(subject) = self.events.failure().inbox_refused.clone() {
            return Err(ClientError::InboxForbidden { subject, sent: false });
        }
        Ok(self.bus.session())
    }

    /// The connection, if it is up.
    pub(super) fn session(&self) -> Option<Arc<Session>> {
        self.bus.session()
    }

    /// Publishes once there is room. An empty `reply` means none.
    pub(super) async fn publish(
        bus: &Session,
        subject: &str,
        reply: &str,
        headers: &HeaderBlock,
        payload: &[u8],
        deadline: Instant,
    ) -> Result<(), NotPublished> {
        let published = timeout_at(deadline, bus.publish(subject, reply, headers.as_bytes(), payload)).await;
        published.map_err(|_| NotPublished::DeadlineExceeded)?.map_err(NotPublished::from)
    }

    /// Publishes if there is room; `false` if not.
    pub(super) fn publish_now(
        bus: &Session,
        subject: &str,
        reply: &str,
        headers: &HeaderBlock,
        payload: &[u8],
    ) -> Result<bool, NotPublished> {
        Ok(bus.publish_now(subject, reply, headers.as_bytes(), payload)?)
    }

    /// Ends every wait, now and later, and closes the connection once what was published is written.
    pub(super) async fn close(&self) {
        self.events.closed.store(true, Ordering::Release);
        self.events.pending.end_all(|| ClientError::Closed { sent: true });
        self.events.tick();
        if let Some(bus) = self.bus.session() {
            // A connection that is not up has nothing of ours to write.
            drop(timeout(SETUP_WITHIN, bus.flush()).await);
        }
        self.bus.close().await;
    }

    /// How often the connection was lost.
    pub(super) fn lost(&self) -> u64 {
        self.events.lost.load(Ordering::Relaxed)
    }

    /// Whether this connection is still up: if not, what was just handed to it may be lost. One that was replaced by a
    /// connection to another broker is still read until it has nothing more to deliver.
    pub(super) fn holds(bus: &Session) -> bool {
        bus.is_up()
    }

    /// Whether the connection is up, as far as is known.
    pub(super) fn is_up(&self) -> bool {
        self.bus.session().is_some()
    }
}

impl Handler for ConnectionEvents {
    fn message(&self, message: Message, _: &Arc<Session>) {
        if let Some(token) = message.subject.strip_prefix(&self.inbox) {
            self.pending.arrived(token, &message);
        }
    }

    fn event(&self, event: Event) {
        match event {
            // If the broker still refuses the subscription, it has said so again by now.
            Event::Connected | Event::Moved => {
                self.failure().cause = None;
                self.tick();
                self.pending.reconnected();
            }
            Event::Disconnected(reason) => {
                self.lost.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(target: "sealwire::client", reason, "the connection to the broker is lost");
                *self.failure() = LastFailure::default();
                self.tick();
                self.pending.disconnected();
            }
            Event::Failed(reason) => {
                tracing::debug!(target: "sealwire::client", reason, "connecting failed");
                self.failure().cause = Some(reason);
            }
            Event::PublishForbidden(subject) => self.pending.forbidden(&subject),
            Event::SubscribeForbidden(subject) => {
                let subject = crate::name::shown(&subject);
                self.failure().inbox_refused = Some(subject.clone());
                self.tick();
                self.pending.end_all(|| ClientError::InboxForbidden { subject: subject.clone(), sent: true });
            }
            // The inbox has no such bound.
            Event::Flooded(_) => {}
            Event::LoginEnds(reason) => {
                if self.other.check().is_some() {
                    tracing::warn!(target: "sealwire::client", reason, "the broker login ends soon");
                }
            }
            Event::Error(error) => {
                if self.other.check().is_some() {
                    tracing::warn!(target: "sealwire::client", error, "the broker reports an error");
                }
            }
        }
    }
}

impl ConnectionEvents {
    fn tick(&self) {
        self.changed.send_modify(|ticks| *ticks = ticks.wrapping_add(1));
    }

    fn failure(&self) -> MutexGuard<'_, LastFailure> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How long writing what is left may take.
const SETUP_WITHIN: Duration = Duration::from_secs(5);

/// How often a waiting call looks at the connection without being woken.
const LOOK_AGAIN: Duration = Duration::from_millis(25);
