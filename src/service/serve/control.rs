//! The connection that agents cannot reach: answers go out on it, and `$SRV` is answered on it (ADR-32).
//! Never carries agents' messages in.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_nats::connection::State as Connection;
use async_nats::{Client, Subscriber};
use futures_util::StreamExt as _;
use futures_util::stream::select_all;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::agreement::Agreement;
use super::discovery::{Answer, Signatures};
use super::{Fence, ServeError, Shared, discovery};
use crate::bus::BusError;
use crate::wire::{Sealed, Unsent};

/// The control connection and the task that keeps it.
#[derive(Debug)]
pub(super) struct Control {
    shared: Arc<Shared>,
    client: watch::Receiver<Option<Client>>,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

/// Where answers are handed in.
#[derive(Debug, Clone)]
pub(super) struct Answers {
    shared: Arc<Shared>,
    client: watch::Receiver<Option<Client>>,
}

/// How many `$SRV` requests may wait.
const CAPACITY: usize = 256;
/// How long an answer waits for a connection.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long the broker has to confirm the last answers.
pub(super) const CONFIRM: Duration = Duration::from_secs(4);
/// How long the connection's last bytes may take to be written.
const FLUSH: Duration = Duration::from_millis(500);
/// How long its task may take to end.
pub(super) const LEAVE: Duration = Duration::from_secs(1);

impl Control {
    /// Connects, and answers `$SRV` from now on.
    pub(super) async fn start(shared: Arc<Shared>) -> Result<Self, ServeError> {
        let first = connect(&shared).await?;
        let (clients, client) = watch::channel(None);
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(keep(Arc::clone(&shared), first, clients, stopped));
        let mut ready = client.clone();
        // The task cannot end before it is told to.
        drop(ready.wait_for(Option::is_some).await);
        Ok(Self { shared, client, stop, task })
    }

    pub(super) fn answers(&self) -> Answers {
        Answers { shared: Arc::clone(&self.shared), client: self.client.clone() }
    }

    /// Who else serves this audience, and whether we may.
    pub(super) fn agreement(&self) -> Agreement {
        Agreement::new(Arc::clone(&self.shared), self.client.clone())
    }

    /// Waits until the broker has everything that was sent, then leaves. Takes [`CONFIRM`] and [`LEAVE`] at most.
    pub(super) async fn finish(self) {
        let client = self.client.borrow().clone();
        // On a connection that is down, the client library keeps what it is asked for until the broker is back.
        let client = client.filter(|client| client.connection_state() == Connection::Connected);
        let confirmed = async {
            let mut fence = Fence::new(&client?, &self.shared, "finish").await?;
            fence.pass(CONFIRM).await.then_some(())
        };
        if !matches!(timeout(CONFIRM, confirmed).await, Ok(Some(()))) {
            tracing::warn!(target: "sealwire::serve", "the broker did not confirm the last answers");
        }
        drop(self.stop);
        let mut task = self.task;
        if timeout(LEAVE, &mut task).await.is_err() {
            task.abort();
        }
    }
}

impl Answers {
    /// Publishes an answer; if the connection's task has just ended, through the next one.
    pub(super) async fn send(&self, sealed: Sealed) {
        let mut answer = sealed;
        let sent = async {
            let mut clients = self.client.clone();
            loop {
                let client = match clients.wait_for(Option::is_some).await {
                    Ok(client) => client.clone(),
                    Err(_) => return Err("the service has stopped".to_owned()),
                };
                let Some(client) = client else { continue };
                match answer.send(&client).await {
                    Ok(()) => return Ok(()),
                    Err(Unsent { error, .. }) if error.kind() != async_nats::client::PublishErrorKind::Send => {
                        return Err(error.to_string());
                    }
                    Err(Unsent { answer: back, .. }) => answer = *back,
                }
                if clients.changed().await.is_err() {
                    return Err("the service has stopped".to_owned());
                }
            }
        };
        let failure = match tokio::time::timeout(PATIENCE, sent).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error,
            Err(_) => "no connection".to_owned(),
        };
        self.shared.health.unsent.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(target: "sealwire::serve", error = failure, "an answer was not sent");
    }
}

async fn connect(shared: &Arc<Shared>) -> Result<(Client, Vec<Subscriber>), BusError> {
    let counted = Arc::downgrade(shared);
    let name = format!("{} control {}", shared.service.endpoint().audience(), shared.instance);
    let client = shared
        .bus
        .connect(&name, &shared.inbox(), CAPACITY, move |event| {
            if let Some(shared) = counted.upgrade() {
                shared.count_event("control", &event);
            }
        })
        .await?;
    // Also when the client library has reconnected on its own: then to a broker of the same system.
    shared.service.fit(client.max_payload());
    let mut subscribers = Vec::new();
    for subject in discovery::subjects(shared) {
        if let Ok(subscriber) = client.subscribe(subject).await {
            subscribers.push(subscriber);
        }
    }
    Ok((client, subscribers))
}

/// Answers `$SRV` until told to stop; builds the connection anew when its task has ended.
async fn keep(
    shared: Arc<Shared>,
    first: (Client, Vec<Subscriber>),
    clients: watch::Sender<Option<Client>>,
    mut stop: oneshot::Receiver<()>,
) {
    let (mut client, subscribers) = first;
    let mut requests = select_all(subscribers);
    let mut signatures = Signatures::new(tokio::time::Instant::now());
    clients.send_replace(Some(client.clone()));
    loop {
        tokio::select! {
            request = requests.next() => match request {
                Some(request) => {
                    if let Some(Answer { to, headers, payload }) = discovery::answer(&shared, &request, &mut signatures) {
                        drop(match headers.is_empty() {
                            true => client.publish(to, payload).await,
                            false => client.publish_with_headers(to, headers, payload).await,
                        });
                    }
                }
                None => {
                    clients.send_replace(None);
                    shared.health.rebuilt.fetch_add(1, Ordering::Relaxed);
                    tracing::error!(target: "sealwire::bus", link = "control", "the connection's task has ended: building a new one");
                    let next = tokio::select! {
                        next = again(|| connect(&shared)) => next,
                        _ = &mut stop => return,
                    };
                    client = next.0;
                    requests = select_all(next.1);
                    clients.send_replace(Some(client.clone()));
                }
            },
            _ = &mut stop => {
                // A broker that is silent or away never lets this end.
                drop(timeout(FLUSH, client.flush()).await);
                return;
            }
        }
    }
}

/// Tries until it succeeds, with a pause that grows to a second.
async fn again<T, E: std::fmt::Display, F: Future<Output = Result<T, E>>>(mut attempt: impl FnMut() -> F) -> T {
    let mut pause = Duration::from_millis(10);
    loop {
        match attempt().await {
            Ok(value) => return value,
            Err(error) => tracing::warn!(target: "sealwire::bus", %error, "not connected"),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(1));
    }
}
