//! The caller's side: signed calls, notifications and batches, and answers that are believed only if they are bound to
//! what was asked.
//! Never returns anything as a result that the service did not sign for this very request.
//!
//! ```no_run
//! use sealwire::client::{Client, Credentials};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::connect(Credentials::load("planner.creds.json")?).await?;
//! let sum: f64 = client.call("math", "math/add", (2, 3)).await?;
//! # Ok(())
//! # }
//! ```

mod batch;
mod credentials;
mod error;
mod exchange;
mod link;
mod peer;
mod pending;
mod request;
mod token;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::Semaphore;

pub use batch::{Batch, BatchAnswers, BatchCall};
pub use credentials::{Credentials, CredentialsError, MemberFault};
pub use error::{ClientError, ErrorKind, HintKind, InvalidRequest, ProtocolError};
pub use request::RequestBuilder;
pub use token::{CommandToken, FetchedToken, FileToken, StaticToken, TokenFault, TokenSource};

use crate::clock::{Clock, SystemClock};
use link::Link;
use peer::Peers;
use pending::Pending;
use token::Tokens;

/// An agent's connection to the services of its environment. Cloning is cheap and shares everything.
///
/// It keeps itself connected. While it is not, calls wait until their deadline and are signed only once it is again, so
/// nothing that somebody gave up on is sent later. When the last clone is dropped, the connection ends; notifications that
/// returned without an error have reached the broker.
#[derive(Clone)]
pub struct Client(Arc<Inner>);

struct Inner {
    credentials: Credentials,
    options: Options,
    link: Link,
    pending: Arc<Pending>,
    tokens: Tokens,
    peers: Peers,
    /// One for each call under way.
    places: Semaphore,
    ids: AtomicU64,
}

#[derive(Debug, Clone)]
struct Options {
    in_flight: usize,
    deadline: Duration,
    valid_s: u64,
    clock: Arc<dyn Clock>,
}

impl Client {
    /// Connects with the default options. See [`Client::builder`].
    ///
    /// # Errors
    /// [`ClientError::Connect`] when the broker cannot be reached or refuses this user: it is tried once.
    /// [`ClientError::Credentials`] when they lack a token. The token itself is fetched with the first call.
    ///
    /// Cancel safety: dropping the future leaves nothing behind.
    pub async fn connect(credentials: Credentials) -> Result<Self, ClientError> {
        Self::builder(credentials).connect().await
    }

    /// For other options than the defaults.
    #[must_use]
    pub fn builder(credentials: Credentials) -> ClientBuilder {
        ClientBuilder {
            credentials,
            options: Options {
                in_flight: 1024,
                deadline: Duration::from_secs(10),
                valid_s: 30,
                clock: Arc::new(SystemClock),
            },
        }
    }

    /// Calls a method of a service and decodes its result. `params` is a struct or a map (by name), a tuple or a sequence
    /// (by position), or `()` for none.
    ///
    /// # Errors
    /// See [`ClientError`]; [`ClientError::Remote`] is the service's own error.
    ///
    /// Cancel safety: dropping the future ends the wait and leaves nothing behind. The call may be executed all the same.
    pub async fn call<R: DeserializeOwned>(
        &self,
        service: &str,
        method: &str,
        params: impl Serialize,
    ) -> Result<R, ClientError> {
        self.request(service).call(method, params).await
    }

    /// Sends a notification: nobody says whether it was executed, or even accepted. Returns when the broker has it.
    ///
    /// # Errors
    /// See [`ClientError`]. What the broker forbids, or what nobody listens to, is not told.
    ///
    /// Cancel safety: dropping the future leaves nothing behind. The notification may have been sent.
    pub async fn notify(&self, service: &str, method: &str, params: impl Serialize) -> Result<(), ClientError> {
        self.request(service).notify(method, params).await
    }

    /// Several calls and notifications in one message.
    pub fn batch(&self, service: &str) -> Batch {
        self.request(service).batch()
    }

    /// Waits until somebody listens to calls of this service, at most for `limit`: a service that has just started does not
    /// yet, for some seconds. What it asks runs nothing, so a call after it is sent once.
    ///
    /// # Errors
    /// [`ClientError::NoResponders`] when nobody does within `limit`; see [`ClientError`] for the others.
    ///
    /// Cancel safety: dropping the future leaves nothing behind.
    pub async fn wait_for(&self, service: &str, limit: Duration) -> Result<(), ClientError> {
        request::wait_for(self, service, limit).await
    }

    /// A request with options: another deadline, repetition, an idempotency key, the method's own subject.
    pub fn request(&self, service: &str) -> RequestBuilder {
        RequestBuilder::new(self.clone(), service)
    }

    /// Signs these bytes as they are, sends them, and returns the text of the answer, which was verified.
    ///
    /// # Errors
    /// See [`ClientError`], but never [`ClientError::Remote`]: an error that the service answers is the text.
    ///
    /// Cancel safety: as of [`Client::call`].
    pub async fn send_raw(&self, service: &str, payload: impl Into<Bytes>) -> Result<String, ClientError> {
        self.request(service).send_raw(payload).await
    }

    /// As whom it calls, and where.
    #[must_use]
    pub fn credentials(&self) -> &Credentials {
        &self.0.credentials
    }

    /// What it is doing and has seen.
    #[must_use]
    pub fn stats(&self) -> ClientStats {
        let (unverifiable, late) = self.0.pending.counts();
        let pending = self.0.pending.len();
        let (connected, disconnects) = (self.0.link.is_up(), self.0.link.lost());
        ClientStats { connected, pending, unverifiable, late, disconnects }
    }

    /// Ends the connection for all clones: calls under way and later ones fail with [`ClientError::Closed`]. Returns when
    /// what was published is written, after at most five seconds.
    ///
    /// Cancel safety: a dropped future may leave the connection to be ended by dropping the client.
    pub async fn close(&self) {
        self.0.places.close();
        self.0.link.close().await;
    }

    fn next_id(&self) -> u64 {
        self.0.ids.fetch_add(1, Ordering::Relaxed)
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("credentials", &self.0.credentials).field("stats", &self.stats()).finish()
    }
}

/// A client about to connect. Made by [`Client::builder`].
#[derive(Debug, Clone)]
pub struct ClientBuilder {
    credentials: Credentials,
    options: Options,
}

impl ClientBuilder {
    /// How many calls may be under way; 1024. Further ones wait until their deadline, in turn, and then fail with
    /// [`ClientError::Busy`] unsent. It bounds what a silent service can make this process hold.
    #[must_use]
    pub fn in_flight(mut self, calls: usize) -> Self {
        self.options.in_flight = calls.clamp(1, Semaphore::MAX_PERMITS);
        self
    }

    /// The deadline of calls that have no other; 10 s.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.options.deadline = deadline;
        self
    }

    /// For how many seconds a service may take a message after it was signed: 1 to 300, 30 by default, which is the most
    /// that services accept unless configured.
    #[must_use]
    pub fn validity(mut self, seconds: u64) -> Self {
        self.options.valid_s = seconds.clamp(1, 300);
        self
    }

    /// Another clock than the system's.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.options.clock = clock;
        self
    }

    /// Connects. See [`Client::connect`].
    ///
    /// # Errors
    /// As of [`Client::connect`].
    ///
    /// Cancel safety: dropping the future leaves nothing behind.
    pub async fn connect(self) -> Result<Client, ClientError> {
        let Self { credentials, options } = self;
        let tokens = Tokens::new(credentials.tokens()?, Arc::clone(&options.clock));
        let pending = Arc::new(Pending::new(Arc::clone(&options.clock)));
        let link = Link::open(&credentials, Arc::clone(&pending)).await?;
        Ok(Client(Arc::new(Inner {
            credentials,
            link,
            pending,
            tokens,
            peers: Peers::default(),
            places: Semaphore::new(options.in_flight),
            ids: AtomicU64::new(1),
            options,
        })))
    }
}

/// What a client is doing and has seen since it was connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClientStats {
    /// Whether the connection is up, as far as is known.
    pub connected: bool,
    /// Calls that wait for an answer.
    pub pending: usize,
    /// Messages that came in place of an answer and were none: unsigned, forged, altered, misdirected.
    pub unverifiable: u64,
    /// Messages for calls that no longer waited, or that never were.
    pub late: u64,
    /// How often the connection was lost.
    pub disconnects: u64,
}
