//! The agent's connection to the broker, made when it is first needed, and the requests on it.
//! Never keeps a caller waiting for an unreachable broker for more than a few seconds.

use std::pin::Pin;
use std::time::Duration;

use sealwire::configure::ProofAlgorithm;
use sealwire::internal::client::{MessageId, Receipt};
use sealwire::internal::trace::{Tracer, Tracing};
use sealwire::{Client, ClientError, Credentials, RequestBuilder};
use tokio::sync::OnceCell;
use tokio::time::{Instant, sleep, timeout};

use crate::caller::BusCaller;

/// One agent on the bus, whether or not the broker can be reached.
#[derive(Debug)]
pub struct Bus {
    credentials: Credentials,
    client: OnceCell<Client>,
    tracing: Tracing,
}

/// The bus cannot be reached. Nothing was sent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Away {
    /// The first connection failed.
    #[error("the broker cannot be reached, nothing was sent: {0}")]
    Connect(#[from] ClientError),
    /// The connection was lost; the client is reconnecting.
    #[error("the broker cannot be reached, nothing was sent: call again once it is back")]
    Lost,
}

impl From<Away> for ClientError {
    fn from(away: Away) -> Self {
        match away {
            Away::Connect(error) => error,
            Away::Lost => Self::ConnectionLost,
        }
    }
}

/// How long a caller waits for the broker.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long a call that was sent may be without a connection: after a change of brokers, the service sends again what was lost.
const HAND_OVER: Duration = Duration::from_secs(20);

/// The connection on which a request is made.
#[derive(Debug, Clone)]
pub struct BusLink(Client);

impl BusLink {
    /// Collects a call's proofs; `None` under HMAC, where nobody else could check them.
    pub(crate) fn receipt(&self) -> Option<Receipt> {
        (self.0.credentials().key().algorithm() == ProofAlgorithm::EdDsa).then(Receipt::default)
    }

    /// Completes when a call has been without a broker for too long. Returns whether it was sent.
    pub(crate) async fn lost(&self, id: &MessageId) -> bool {
        let mut since = None;
        loop {
            sleep(Duration::from_millis(250)).await;
            if self.0.is_connected() {
                since = None;
                continue;
            }
            let away = since.get_or_insert_with(Instant::now).elapsed();
            let sent = id.get().is_some();
            if away >= if sent { HAND_OVER } else { PATIENCE } {
                return sent;
            }
        }
    }

    /// As `lost`, and `'static`.
    pub fn until_lost(self, id: &MessageId) -> Pin<Box<dyn Future<Output = bool> + Send>> {
        let id = id.clone();
        Box::pin(async move { self.lost(&id).await })
    }
}

impl Bus {
    /// The agent of these credentials; does not connect yet.
    #[must_use]
    pub fn new(credentials: Credentials) -> Self {
        Self { credentials, client: OnceCell::new(), tracing: Tracing::default() }
    }

    /// Records the traces of what is done for callers from now on, as this says.
    pub fn trace(&self, tracer: &Tracer) {
        self.tracing.switch_on(tracer);
    }

    pub(crate) fn tracing(&self) -> &Tracing {
        &self.tracing
    }

    /// The agent's credentials.
    pub(crate) fn credentials(&self) -> &Credentials {
        &self.credentials
    }

    /// The name of the agent.
    #[must_use]
    pub fn agent(&self) -> String {
        self.credentials.agent().to_string()
    }

    /// Connects, unless it is connected.
    ///
    /// # Errors
    /// `Away`, after at most a few seconds.
    ///
    /// Cancel safe.
    pub(crate) async fn connect(&self) -> Result<(), Away> {
        self.client().await.map(drop)
    }

    /// A request to a service on behalf of this caller, and the connection it is made on. Nothing else can be sent.
    ///
    /// # Errors
    /// `Away`, after at most a few seconds.
    ///
    /// Cancel safe.
    pub(crate) async fn request(
        &self,
        caller: &dyn BusCaller,
        service: &str,
    ) -> Result<(RequestBuilder, BusLink), Away> {
        let client = self.client().await?;
        Ok((caller.request(&client, service), BusLink(client)))
    }

    /// A connected client.
    async fn client(&self) -> Result<Client, Away> {
        if let Some(client) = self.client.get().filter(|client| client.is_connected()) {
            return Ok(client.clone());
        }
        let connected = async {
            let client = self.client.get_or_try_init(|| Client::connect(self.credentials.clone())).await?;
            while !client.is_connected() {
                sleep(Duration::from_millis(50)).await;
            }
            Ok(client.clone())
        };
        // Boxed: every call's future would reserve room for this, and few calls get here.
        timeout(PATIENCE, Box::pin(connected)).await.unwrap_or(Err(Away::Lost))
    }

    /// The client, once it has been connected.
    pub(crate) fn connected(&self) -> Option<&Client> {
        self.client.get()
    }

    /// Whether it is connected, as far as the client knows.
    pub(crate) fn is_up(&self) -> bool {
        self.client.get().is_some_and(Client::is_connected)
    }

    /// Closes the connection, within half a second.
    pub async fn close(&self) {
        let closing = async {
            if let Some(client) = self.client.get() {
                client.close().await;
            }
        };
        // This gives the cancellations of abandoned calls time to go out; a silent broker would take none of them.
        drop(timeout(Duration::from_millis(500), closing).await);
    }
}
