//! The caller's side: signs calls, notifications and batches, and accepts only answers that are bound to the request.
//! Never returns a result that the service did not sign for this very request.
//!
//! ```no_run
//! use sealwire::{Client, Credentials};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::connect(Credentials::load("planner.creds.json")?).await?;
//! let sum: f64 = client.call("math", "math/add", (2, 3)).await?;
//! # Ok(())
//! # }
//! ```

mod answer;
mod approval;
mod approval_listener;
mod attachment;
mod batch;
mod catalogue;
mod control;
mod credentials;
mod error;
mod exchange;
mod incoming;
mod known_service;
mod link;
mod meters;
mod observe;
mod pending;
mod places;
mod relay;
mod relay_options;
#[cfg(feature = "metrics")]
mod report;
mod request;
mod sent;
mod spans;
mod stop_signal;
mod stream;
mod stream_options;
mod task;
mod task_state;
mod token;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Semaphore;

pub use crate::trace::TraceContext;
#[cfg(feature = "service")]
pub(crate) use answer::hint;
pub use approval::{NeededApproval, PendingApproval};
pub use approval_listener::ApprovalListener;
pub use attachment::Attachment;
pub use batch::{Batch, BatchAnswers, BatchCall};
pub use catalogue::{Catalogue, MethodInfo, MethodResult, TaskMode};
pub use credentials::{Credentials, CredentialsError, MemberFault};
pub use error::{ClientError, ErrorKind, HintKind, InvalidRequest, ProtocolError, StreamLoss};
pub use observe::{CallEnd, Observed, Observer, ReportedEvent};
pub use relay::Relay;
#[cfg(feature = "metrics")]
pub use report::{measure, write};
pub use request::RequestBuilder;
#[cfg(feature = "service")]
pub(crate) use request::decode;
pub use sent::{MessageId, Receipt};
pub use stream::{CallStream, Subscription};
pub use task::{Task, TaskProgress, TaskStatus, may_be_answered_later};
pub use task_state::TaskState;
pub use token::{CommandToken, FetchedToken, FileToken, StaticToken, TokenFault, TokenSource, Tokens};

use crate::clock::{Clock, SystemClock};
use known_service::KnownServices;
use link::Link;
use meters::Meters;
use pending::Pending;
use places::StreamPlaces;
use token::TokenCache;

use crate::trace::{Tracer, Tracing};

/// An agent's connection to the services of its environment. Cloning is cheap, and clones share everything.
///
/// The client reconnects by itself. While it is disconnected, calls wait until their deadline and are signed only once the connection is
/// back, so nothing that the caller gave up on is sent later. Dropping the last clone ends the connection; notifications that returned
/// without an error have reached the broker.
#[derive(Clone)]
pub struct Client(Arc<Inner>);

struct Inner {
    credentials: Credentials,
    options: Options,
    link: Link,
    meters: Meters,
    tracing: Tracing,
    pending: Arc<Pending>,
    tokens: Arc<TokenCache>,
    services: KnownServices,
    /// One permit for each call under way.
    places: Semaphore,
    /// One place for each open stream.
    streams: Arc<StreamPlaces>,
    /// One permit for each call that is being cancelled.
    cancellations: Arc<Semaphore>,
    /// Runs the drivers of streams.
    runtime: Handle,
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
    /// [`ClientError::Connect`] if the broker cannot be reached or refuses this user: there is only one attempt.
    /// [`ClientError::Credentials`] if the credentials lack a token. The token itself is fetched with the first call.
    ///
    /// Cancel safety: dropping the future leaves nothing behind.
    pub async fn connect(credentials: Credentials) -> Result<Self, ClientError> {
        Self::builder(credentials).connect().await
    }

    /// A builder, for options other than the defaults.
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

    /// The credentials: as whom the client calls, and where.
    #[must_use]
    pub fn credentials(&self) -> &Credentials {
        &self.0.credentials
    }

    /// Tokens from this source, for requests that are not made with the agent's own. Fetches nothing yet.
    #[must_use]
    pub fn tokens(&self, source: impl TokenSource) -> Tokens {
        Tokens(Arc::new(TokenCache::new(Arc::new(source), Arc::clone(&self.0.options.clock))))
    }

    /// What the client is doing and has seen so far.
    #[must_use]
    pub fn stats(&self) -> ClientStats {
        let (unverifiable, late) = self.0.pending.counts();
        let pending = self.0.pending.len();
        let streams = self.0.streams.taken();
        let (frames_taken, frames_refused) = self.0.pending.frames();
        let (connected, disconnects) = (self.0.link.is_up(), self.0.link.lost());
        ClientStats { connected, pending, streams, frames_taken, frames_refused, unverifiable, late, disconnects }
    }

    /// Records the traces of calls from now on, as this says. Calls within a traced method need no tracer of their own.
    pub fn trace(&self, tracer: &Tracer) {
        self.0.tracing.switch_on(tracer);
    }

    /// Whether the connection is up, as far as is known: [`ClientStats::connected`] without counting the calls under way.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.0.link.is_up()
    }

    /// Ends the connection for all clones. Calls and streams under way are cancelled at the service; they and later ones fail with
    /// [`ClientError::Closed`]. Returns once what was published is written, after seven seconds at most.
    ///
    /// Cancel safety: if the future is dropped, the connection may stay up until the client is dropped.
    pub async fn close(&self) {
        self.0.places.close();
        self.0.streams.close();
        self.0.cancel_all().await;
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
    /// How many calls may be under way; 1024 by default. Further calls wait their turn until their deadline, and then
    /// fail with [`ClientError::Busy`] unsent. This bounds what a silent service can make this process hold.
    #[must_use]
    pub fn in_flight(mut self, calls: usize) -> Self {
        self.options.in_flight = calls.clamp(1, Semaphore::MAX_PERMITS);
        self
    }

    /// The deadline of calls that set no other; 10 s by default.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.options.deadline = deadline;
        self
    }

    /// For how many seconds after signing a service may accept a message: 1 to 300; 30 by default, which is the most
    /// that services accept unless configured otherwise.
    #[must_use]
    pub fn validity(mut self, seconds: u64) -> Self {
        self.options.valid_s = seconds.clamp(1, 300);
        self
    }

    /// A clock other than the system's.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.options.clock = clock;
        self
    }

    /// Connects. See [`Client::connect`].
    ///
    /// # Errors
    /// As for [`Client::connect`].
    ///
    /// Cancel safety: dropping the future leaves nothing behind.
    pub async fn connect(self) -> Result<Client, ClientError> {
        let Self { credentials, options } = self;
        let tokens = Arc::new(TokenCache::new(credentials.tokens()?, Arc::clone(&options.clock)));
        let pending = Arc::new(Pending::new(Arc::clone(&options.clock)));
        let link = Link::open(&credentials, &tokens, Arc::clone(&pending)).await?;
        Ok(Client(Arc::new(Inner {
            credentials,
            link,
            meters: Meters::default(),
            tracing: Tracing::default(),
            pending,
            tokens,
            services: KnownServices::default(),
            places: Semaphore::new(options.in_flight),
            streams: StreamPlaces::new(),
            cancellations: Arc::new(Semaphore::new(MOST_CANCELLATIONS)),
            runtime: Handle::current(),
            ids: AtomicU64::new(1),
            options,
        })))
    }
}

/// The most calls that are being cancelled at a time. For calls beyond it, the service is not told.
const MOST_CANCELLATIONS: usize = 1024;

/// What a client is doing and has seen since it was connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClientStats {
    /// Whether the connection is up, as far as is known.
    pub connected: bool,
    /// Calls that are waiting for an answer.
    pub pending: usize,
    /// Streams that are open: 256 at most.
    pub streams: usize,
    /// Frames of streams that were accepted.
    pub frames_taken: u64,
    /// Messages that came in place of frames and were refused: unsigned, forged, altered, misdirected, beyond the window.
    pub frames_refused: u64,
    /// Messages that came in place of an answer and were refused: unsigned, forged, altered, misdirected.
    pub unverifiable: u64,
    /// Messages for calls and streams that no longer waited or never existed, and frames that had come before.
    pub late: u64,
    /// How often the connection was lost.
    pub disconnects: u64,
}
