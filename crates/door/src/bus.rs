//! The agent's connection to the broker, made when it is first needed.
//! Never keeps a caller waiting for an unreachable broker for more than a few seconds.

use std::time::Duration;

use sealwire::auth::ProofAlgorithm;
use sealwire::client::{Client, ClientError, Credentials, MessageId, Receipt};
use tokio::sync::OnceCell;
use tokio::time::{Instant, sleep, timeout};

/// One agent on the bus, whether or not the broker can be reached.
#[derive(Debug)]
pub struct Bus {
    credentials: Credentials,
    client: OnceCell<Client>,
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

/// How long a caller waits for the broker.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long a call that was sent may be without a connection: after a change of brokers, the service sends again what was lost.
const HAND_OVER: Duration = Duration::from_secs(20);

/// Collects a call's proofs; `None` under HMAC, where nobody else could check them.
pub(crate) fn receipt(client: &Client) -> Option<Receipt> {
    (client.credentials().key().algorithm() == ProofAlgorithm::EdDsa).then(Receipt::default)
}

/// Completes when a call has been without a broker for too long. Returns whether it was sent.
pub(crate) async fn gone(client: &Client, id: &MessageId) -> bool {
    let mut since = None;
    loop {
        sleep(Duration::from_millis(250)).await;
        if client.is_connected() {
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

impl Bus {
    /// The agent of these credentials; does not connect yet.
    #[must_use]
    pub fn new(credentials: Credentials) -> Self {
        Self { credentials, client: OnceCell::new() }
    }

    /// The name of the agent.
    #[must_use]
    pub fn agent(&self) -> String {
        self.credentials.agent().to_string()
    }

    /// A connected client.
    ///
    /// # Errors
    /// `Away`, after at most a few seconds.
    ///
    /// Cancel safe.
    pub async fn client(&self) -> Result<Client, Away> {
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
