//! The connection to the broker: kept up, watched, and replaced when the library's own task died.
//! Never hands a message to a connection that is not up, so nothing old is sent after a reconnect.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use async_nats::connection::State as Connection;
use async_nats::{Event, HeaderMap, PublishErrorKind, ServerError, Subscriber};
use bytes::Bytes;
use futures_util::StreamExt as _;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::credentials::Credentials;
use super::error::ClientError;
use super::pending::Pending;
use crate::auth::Nonce;
use crate::bus::{BusConfig, BusError};
use crate::log_limiter::LogLimiter;

/// The connection and what hears of its changes.
#[derive(Debug)]
pub(super) struct Link {
    bus: ArcSwapOption<async_nats::Client>,
    watcher: Arc<Watcher>,
    config: BusConfig,
    name: String,
    inbox_prefix: String,
    /// `<inbox prefix>.<agent>.<connection>.`, with the final dot. The same for the life of the client.
    inbox: String,
    rebuilt: AtomicU64,
}

/// What the library's event callback has: no connection, or it would keep that alive for ever.
#[derive(Debug)]
struct Watcher {
    pending: Arc<Pending>,
    /// Ticks whenever the state may have changed.
    changed: watch::Sender<u64>,
    lost: AtomicU64,
    closed: AtomicBool,
    notes: Mutex<Notes>,
    full: LogLimiter,
    other: LogLimiter,
}

#[derive(Debug, Default)]
struct Notes {
    /// What the last try to connect came to.
    cause: Option<String>,
    /// The subscription to our own inbox that the broker refused.
    inbox_refused: Option<String>,
}

/// Why a message was not handed to the connection. In every case it is not sent.
#[derive(Debug)]
pub(super) enum Unsent {
    /// The deadline came first.
    Late,
    /// The connection's task is gone. Another one will be there soon.
    Gone,
    /// Larger than the broker takes.
    TooLarge { limit: usize },
}

impl Link {
    /// Connects once and subscribes to the inbox.
    pub(super) async fn open(
        credentials: &Credentials,
        pending: Arc<Pending>,
    ) -> Result<(Arc<Self>, Subscriber), ClientError> {
        let inbox_prefix = credentials.inbox();
        let watcher = Watcher {
            pending,
            changed: watch::Sender::new(0),
            lost: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            notes: Mutex::default(),
            full: LogLimiter::default(),
            other: LogLimiter::default(),
        };
        let link = Self {
            bus: ArcSwapOption::empty(),
            watcher: Arc::new(watcher),
            config: credentials.bus(),
            name: format!("sealwire agent {}", credentials.agent()),
            inbox: format!("{inbox_prefix}.{}.", Nonce::random().to_text()),
            inbox_prefix,
            rebuilt: AtomicU64::new(0),
        };
        let inbox = link.connect().await?;
        Ok((Arc::new(link), inbox))
    }

    async fn connect(&self) -> Result<Subscriber, ClientError> {
        let watcher = Arc::clone(&self.watcher);
        let events = move |event| watcher.heard(event);
        let bus = self.config.connect(&self.name, &self.inbox_prefix, INBOX_CAPACITY, events).await?;
        let subscribed = timeout(SETUP_WITHIN, async {
            let inbox = bus.subscribe(format!("{}*", self.inbox)).await.ok()?;
            // Written to the socket: whatever is published from now on comes after it.
            bus.flush().await.ok().map(|()| inbox)
        });
        let Some(inbox) = subscribed.await.unwrap_or(None) else {
            let urls = self.config.shown();
            let cause = "the connection ended at once".to_owned();
            return Err(ClientError::Connect(BusError::Unreachable { urls, cause }));
        };
        self.bus.store(Some(Arc::new(bus)));
        self.watcher.tick();
        Ok(inbox)
    }

    /// Hands what arrives to the calls that wait, for as long as it is polled. Ends never.
    ///
    /// Cancel safety: it is made to be aborted.
    pub(super) async fn run(self: Arc<Self>, mut inbox: Subscriber) {
        loop {
            let since = Instant::now();
            while let Some(message) = inbox.next().await {
                if let Some(token) = message.subject.strip_prefix(&self.inbox) {
                    self.watcher.pending.arrived(token, &message);
                }
            }
            // The library's task ends without a word when a message has a header that it cannot read, and what was
            // queued in it was never sent. https://github.com/nats-io/nats.rs/issues/1612
            self.bus.store(None);
            self.rebuilt.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(target: "sealwire::client", "the connection's task ended, connecting anew");
            self.watcher.tick();
            self.watcher.pending.end_all(|| ClientError::ConnectionLost);
            let mut pause = FIRST_PAUSE;
            // Somebody keeps doing this: it shall not cost them less than us.
            if since.elapsed() < SHORT_LIFE {
                sleep(pause).await;
            }
            inbox = loop {
                match self.connect().await {
                    Ok(inbox) => break inbox,
                    Err(error) => {
                        tracing::warn!(target: "sealwire::client", %error, "connecting failed");
                        self.watcher.notes().cause = Some(error.to_string());
                        sleep(pause).await;
                        pause = (pause * 2).min(LAST_PAUSE);
                    }
                }
            };
        }
    }

    /// A reply subject that nobody else has, and its last token.
    pub(super) fn reply(&self) -> (String, String) {
        let token = Nonce::random().to_text();
        (format!("{}{token}", self.inbox), token)
    }

    /// Waits until the connection is up, and the inbox can be read if an answer is `expected`.
    ///
    /// # Errors
    /// Nothing has been sent.
    pub(super) async fn up(&self, expected: bool, deadline: Instant) -> Result<Arc<async_nats::Client>, ClientError> {
        let started = Instant::now();
        let mut changed = self.watcher.changed.subscribe();
        loop {
            if self.watcher.closed.load(Ordering::Acquire) {
                return Err(ClientError::Closed);
            }
            let refused = self.watcher.notes().inbox_refused.clone();
            if let Some(subject) = refused.filter(|_| expected) {
                return Err(ClientError::InboxForbidden { subject });
            }
            if let Some(bus) = self.bus.load_full()
                && is_up(&bus)
            {
                return Ok(bus);
            }
            // The library's events may be dropped, and come before the state changes: look again by ourselves, too.
            let again = timeout(LOOK_AGAIN, changed.changed());
            if timeout_at(deadline, again).await.is_err() {
                let cause = self.watcher.notes().cause.clone();
                return Err(ClientError::Disconnected { waited: started.elapsed(), cause });
            }
        }
    }

    /// Publishes. An empty `reply` means none.
    pub(super) async fn publish(
        &self,
        bus: &async_nats::Client,
        subject: String,
        reply: String,
        headers: HeaderMap,
        payload: Bytes,
        deadline: Instant,
    ) -> Result<(), Unsent> {
        let published = async {
            if reply.is_empty() {
                bus.publish_with_headers(subject, headers, payload).await
            } else {
                bus.publish_with_reply_and_headers(subject, reply, headers, payload).await
            }
        };
        match timeout_at(deadline, published).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) if error.kind() == PublishErrorKind::MaxPayloadExceeded => {
                Err(Unsent::TooLarge { limit: bus.max_payload() })
            }
            Ok(Err(_)) => {
                // Our own loop hears of it as well, but a loop that retries here must not spin until then.
                sleep(Duration::from_millis(5)).await;
                Err(Unsent::Gone)
            }
            Err(_) => Err(Unsent::Late),
        }
    }

    /// Ends every wait, now and later, and lets go of the connection once what was published is written.
    pub(super) async fn close(&self) {
        self.watcher.closed.store(true, Ordering::Release);
        self.watcher.pending.end_all(|| ClientError::Closed);
        self.watcher.tick();
        if let Some(bus) = self.bus.swap(None) {
            // A connection that is not up has nothing of ours to write.
            let _ = timeout(SETUP_WITHIN, bus.flush()).await;
        }
    }

    /// How often the connection was lost, and how often its task had to be replaced.
    pub(super) fn counts(&self) -> (u64, u64) {
        (self.watcher.lost.load(Ordering::Relaxed), self.rebuilt.load(Ordering::Relaxed))
    }

    /// Whether this is still the connection, and up: if not, what was just handed to it may be lost.
    pub(super) fn holds(&self, bus: &Arc<async_nats::Client>) -> bool {
        is_up(bus) && self.bus.load().as_ref().is_some_and(|current| Arc::ptr_eq(current, bus))
    }

    /// Whether the connection is up, as far as is known.
    pub(super) fn is_up(&self) -> bool {
        self.bus.load().as_ref().is_some_and(|bus| is_up(bus))
    }
}

/// Whether messages may be handed to this connection.
fn is_up(bus: &async_nats::Client) -> bool {
    bus.connection_state() == Connection::Connected
}

impl Watcher {
    fn heard(&self, event: Event) {
        match event {
            Event::Connected => {
                // The broker refuses the subscription again if it still may.
                *self.notes() = Notes::default();
                self.tick();
            }
            Event::Disconnected => {
                self.lost.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(target: "sealwire::client", "the connection to the broker is lost");
                self.tick();
                self.pending.disconnected();
            }
            Event::ServerError(ServerError::Other(text)) => match Violation::read(&text) {
                Some(Violation::Publish(subject)) => self.pending.forbidden(subject),
                Some(Violation::Subscribe(subject)) => {
                    self.notes().inbox_refused = Some(crate::name::shown(subject));
                    self.tick();
                    let subject = crate::name::shown(subject);
                    self.pending.end_all(|| ClientError::InboxForbidden { subject: subject.clone() });
                }
                None if self.other.check().is_some() => {
                    let error = crate::name::shown(&text);
                    tracing::warn!(target: "sealwire::client", error, "the broker reports an error");
                }
                None => {}
            },
            Event::ClientError(error) => self.notes().cause = Some(error.to_string()),
            Event::SlowConsumer(_) if self.full.check().is_some() => {
                tracing::warn!(target: "sealwire::client", "the inbox is full: answers were dropped");
            }
            Event::SlowConsumer(_) | Event::ServerError(_) | Event::LameDuckMode | Event::Draining | Event::Closed => {}
        }
    }

    fn tick(&self) {
        self.changed.send_modify(|ticks| *ticks = ticks.wrapping_add(1));
    }

    fn notes(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the broker does not allow, out of the text of its `-ERR`.
#[derive(Debug, PartialEq, Eq)]
enum Violation<'t> {
    Publish(&'t str),
    Subscribe(&'t str),
}

impl<'t> Violation<'t> {
    fn read(text: &'t str) -> Option<Self> {
        let rest = strip(text, "permissions violation for ")?;
        let quoted = |rest: &'t str| rest.split('"').nth(1).filter(|subject| !subject.is_empty());
        if let Some(rest) = strip(rest, "publish to ") {
            quoted(rest).map(Self::Publish)
        } else if let Some(rest) = strip(rest, "subscription to ") {
            quoted(rest).map(Self::Subscribe)
        } else {
            None
        }
    }
}

/// Without `prefix`, in whatever case it is written.
fn strip<'t>(text: &'t str, prefix: &str) -> Option<&'t str> {
    let (head, rest) = text.split_at_checked(prefix.len())?;
    head.eq_ignore_ascii_case(prefix).then_some(rest)
}

/// The most messages in the inbox that were not judged yet. Judging takes microseconds; beyond it the library drops.
const INBOX_CAPACITY: usize = 16 * 1024;

/// How long subscribing, or writing out what is left, may take.
const SETUP_WITHIN: Duration = Duration::from_secs(5);

/// How often a waiting call looks at the connection's state by itself.
const LOOK_AGAIN: Duration = Duration::from_millis(25);

/// A connection that ended sooner than this is not replaced at once.
const SHORT_LIFE: Duration = Duration::from_secs(1);

/// Pauses between tries to connect: doubled from the first to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LAST_PAUSE: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permission_violations_are_read_from_the_broker_s_text() {
        let publish = r#"Permissions Violation for Publish to "rpc.v1.math.planner""#;
        assert_eq!(Violation::read(publish), Some(Violation::Publish("rpc.v1.math.planner")));
        let subscribe = r#"Permissions Violation for Subscription to "_INBOX.a.b.*""#;
        assert_eq!(Violation::read(subscribe), Some(Violation::Subscribe("_INBOX.a.b.*")));
        let queue = r#"permissions violation for subscription to "a" using queue "q""#;
        assert_eq!(Violation::read(queue), Some(Violation::Subscribe("a")));
        for other in [
            "",
            "Stale Connection",
            "Permissions Violation for ",
            "Permissions Violation for Publish to x",
            "Permissions Violation for Publish to \"\"",
            "Permissions Violation für Publish to \"a\"",
            "ßßßßßßßßßßßßßßßßßßßßßßß",
        ] {
            assert_eq!(Violation::read(other), None, "{other}");
        }
    }
}
