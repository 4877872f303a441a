//! Hears when something happens to calls that wait for approval, on a connection of its own.
//! Never takes news for how a request stands: it says that it is time to ask the service.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

use super::Client;
use super::error::ClientError;
use crate::nats::{BusError, Connection, Event, Handler, LoginTokens, Message, OpenError, Options, Session, Subject};
use crate::wire::{ApprovalNews, Endpoint, HeaderBlock, ServicePublicKey};

/// Listens to a service, until it is dropped.
pub struct ApprovalListener {
    ears: Arc<Ears>,
    connection: Connection,
}

struct Ears {
    endpoint: Endpoint,
    keys: Vec<ServicePublicKey>,
    news: Notify,
    is_forbidden: AtomicBool,
}

impl ApprovalListener {
    /// Connects as the client does, and listens on those of these subjects on which `service` publishes news.
    ///
    /// # Errors
    /// [`ClientError::Connect`]; [`ClientError::Invalid`] if that is no name of a service.
    ///
    /// Cancel safety: dropping the future leaves nothing behind.
    pub async fn open(client: &Client, service: &str, subjects: &[String]) -> Result<Self, ClientError> {
        let known = client.0.services.find(&client.0.credentials, service, client.0.options.valid_s)?;
        let (endpoint, credentials) = (known.endpoint.clone(), client.credentials());
        let keys = credentials.pinned(endpoint.service());
        let is_news = |subject: &&String| {
            let role = subject.rsplit('.').next().unwrap_or_default();
            endpoint.approvals_subject(role).as_ref() == Some(*subject)
        };
        let subject =
            |subject: &String| Subject { subject: subject.clone(), queue: None, max_per_second: Some(PER_SECOND) };
        let subjects = subjects.iter().filter(is_news).take(MOST).map(subject).collect();
        let tokens = Some(Arc::clone(&client.0.tokens) as Arc<dyn LoginTokens>);
        let name = format!("sealwire agent {} approvals", credentials.agent());
        let options = Options { required: false, tokens, max_message: MAX_NEWS, ..Options::new(&name, subjects) };
        let ears = Arc::new(Ears { endpoint, keys, news: Notify::new(), is_forbidden: AtomicBool::new(false) });
        let handler: Arc<dyn Handler> = Arc::clone(&ears) as _;
        match Connection::open(&credentials.bus(), options, handler).await {
            Ok(connection) => {
                ears.news.notify_one();
                Ok(Self { ears, connection })
            }
            Err(OpenError::Bus(error)) => Err(ClientError::Connect(error)),
            Err(OpenError::Forbidden(cause)) => {
                Err(ClientError::Connect(BusError::Unreachable { urls: credentials.bus().shown(), cause }))
            }
        }
    }

    /// Whether all of them would be heard now: the broker forbids none, and the connection is up.
    #[must_use]
    pub fn hears(&self) -> bool {
        !self.ears.is_forbidden.load(Ordering::Relaxed) && self.connection.session().is_some()
    }

    /// Waits for news, or for something because of which news may have been missed, as what came before it listened. What came since the
    /// last time counts.
    ///
    /// Cancel safety: nothing is lost.
    pub async fn news(&self) {
        self.ears.news.notified().await;
    }
}

impl Handler for Ears {
    fn message(&self, message: Message, _: &Arc<Session>) {
        let Message { subject, headers, payload, .. } = message;
        let news = ApprovalNews { audience: self.endpoint.audience(), subject: &subject, payload: &payload };
        // Anybody else who may publish there costs us one question to the service, at most: what is forged, none.
        if news.accept(&HeaderBlock::from(headers), &self.keys).is_ok() {
            self.news.notify_one();
        }
    }

    fn event(&self, event: Event) {
        match event {
            Event::SubscribeForbidden(_) => self.is_forbidden.store(true, Ordering::Relaxed),
            Event::Connected | Event::Moved | Event::Disconnected(_) | Event::Flooded(_) => {}
            Event::Failed(_) | Event::LoginEnds(_) | Event::PublishForbidden(_) | Event::Error(_) => return,
        }
        self.news.notify_one();
    }
}

impl fmt::Debug for ApprovalListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApprovalListener").field("service", self.ears.endpoint.service()).finish_non_exhaustive()
    }
}

/// What is accepted of one role's news in a second. More say no more than that it is time to ask.
const PER_SECOND: u64 = 64;
/// The most roles that are listened to.
const MOST: usize = 8;
/// The largest news, headers included. It has no parameters.
const MAX_NEWS: usize = 64 * 1024;
