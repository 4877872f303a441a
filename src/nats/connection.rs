//! A connection that stays: one session after the other, over all brokers that are known.
//! Never has two brokers choose it for longer than a hand-over takes, and leaves none before it has read what it was chosen for.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};

use super::dial::{DialError, Login, dial};
use super::servers::{Address, Servers, pause};
use super::{Event, Handler, Session};
use crate::bus::{BusConfig, BusError, Door};

/// What to subscribe to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    /// The subject, wildcards allowed.
    pub subject: String,
    /// The queue group, if the messages are to be shared with others.
    pub queue: Option<String>,
    /// About how many messages a second are taken, at least 2. The broker keeps what is above to itself: it costs this
    /// connection nothing, and is lost.
    pub a_second: Option<u64>,
}

/// How a connection is.
#[derive(Debug, Clone)]
pub struct Options {
    /// Shows in the broker's lists.
    pub name: String,
    /// Subscribed to on every broker.
    pub subjects: Vec<Subject>,
    /// Whether the connection is of no use where the broker forbids a subscription. If not, that is only told.
    pub required: bool,
    /// Larger messages are passed over and told as oversized; bytes, headers included.
    pub max_message: usize,
    /// How often a quiet broker is asked whether it is there. It is left at the fourth time without an answer.
    pub ping_every: Duration,
}

impl Options {
    /// For these subscriptions, without which it is of no use.
    #[must_use]
    pub fn new(name: &str, subjects: Vec<Subject>) -> Self {
        Self { name: name.to_owned(), subjects, required: true, max_message: MAX_MESSAGE, ping_every: PING_EVERY }
    }
}

/// The default of a broker's `max_payload`. What takes more than that is not for messages.
const MAX_MESSAGE: usize = 1 << 20;
/// Three of them without an answer, and a broker whose machine lost its power or its network is left.
const PING_EVERY: Duration = Duration::from_secs(2);
/// How long subscribing may take.
const SUBSCRIBED_WITHIN: Duration = Duration::from_secs(5);
/// How long writing out what is left may take in the end.
const WRITTEN_WITHIN: Duration = Duration::from_secs(2);
/// How long to wait before looking again for another broker while this one goes on being about to go.
const ELSEWHERE_AGAIN: Duration = Duration::from_secs(1);

/// No connection came about.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The broker.
    #[error(transparent)]
    Bus(#[from] BusError),
    /// The broker forbids a subscription.
    #[error("{0}")]
    Forbidden(String),
}

/// A connection that is kept up until it is dropped.
#[derive(Debug)]
pub struct Connection {
    current: watch::Receiver<Option<Arc<Session>>>,
    stop: watch::Sender<bool>,
    keeper: Mutex<Option<JoinHandle<()>>>,
}

impl Connection {
    /// Connects and subscribes; each address is tried once. Later ones are tried for as long as the connection lives.
    ///
    /// # Errors
    /// [`OpenError`]; nothing is left behind.
    pub async fn open(bus: &BusConfig, options: Options, handler: Arc<dyn Handler>) -> Result<Self, OpenError> {
        let Door { addresses, login, follow } = bus.door()?;
        let mut keeper = Keeper {
            servers: Servers::new(addresses, follow),
            login,
            options,
            handler,
            current: watch::Sender::new(None),
            live: Vec::new(),
            tasks: JoinSet::new(),
        };
        keeper.first(bus).await?;
        let current = keeper.current.subscribe();
        let (stop, stopped) = watch::channel(false);
        let keeper = Mutex::new(Some(tokio::spawn(keeper.run(stopped))));
        Ok(Self { current, stop, keeper })
    }

    /// The session that is up; `None` while there is none.
    #[must_use]
    pub fn session(&self) -> Option<Arc<Session>> {
        self.current.borrow().clone().filter(|session| session.is_up())
    }

    /// Every change of it.
    #[must_use]
    pub fn sessions(&self) -> watch::Receiver<Option<Arc<Session>>> {
        self.current.clone()
    }

    /// Ends all subscriptions, has every message handed over that the broker had chosen us for, and leaves.
    ///
    /// Cancel safety: a dropped future may leave the end to dropping the connection.
    pub async fn drain(&self) {
        self.stop.send_replace(true);
        let keeper = self.keeper.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(keeper) = keeper {
            // It ends by itself, or with this future.
            let mut keeper = Aborting(keeper);
            drop((&mut keeper.0).await);
        }
    }

    /// Leaves at once. What was published and not yet written is lost; see [`Session::flush`].
    ///
    /// Cancel safety: it has left when the future is first polled.
    pub async fn close(&self) {
        let keeper = self.keeper.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(keeper) = keeper {
            keeper.abort();
            // It was told to end, and that is how it ended.
            drop(keeper.await);
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if let Some(keeper) = self.keeper.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            keeper.abort();
        }
    }
}

struct Aborting(JoinHandle<()>);

impl Drop for Aborting {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What makes the sessions. They end when it is dropped.
struct Keeper {
    servers: Servers,
    login: Login,
    options: Options,
    handler: Arc<dyn Handler>,
    current: watch::Sender<Option<Arc<Session>>>,
    /// All that the broker may still choose.
    live: Vec<Arc<Session>>,
    tasks: JoinSet<()>,
}

/// Why there is no session.
enum Failure {
    Dial(DialError),
    Forbidden(String),
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Dial(error) => error.fmt(f),
            Self::Forbidden(what) => f.write_str(what),
        }
    }
}

impl Keeper {
    /// Tries each address once. Of several failures, the one that the operator can do most about is told.
    async fn first(&mut self, bus: &BusConfig) -> Result<(), OpenError> {
        let mut told: Option<OpenError> = None;
        for _ in 0..self.servers.len() {
            let Some(address) = self.servers.next() else { break };
            let error = match self.session(&address).await {
                Ok(session) => {
                    self.current.send_replace(Some(session));
                    return Ok(());
                }
                Err(Failure::Forbidden(what)) => return Err(OpenError::Forbidden(what)),
                Err(Failure::Dial(error)) => bus.failed(error),
            };
            if told.is_none() || !matches!(error, BusError::Unreachable { .. }) {
                told = Some(error.into());
            }
        }
        Err(told.unwrap_or(OpenError::Bus(BusError::NoUrl)))
    }

    /// A session at this address, with its subscriptions.
    async fn session(&mut self, address: &Address) -> Result<Arc<Session>, Failure> {
        while self.tasks.try_join_next().is_some() {}
        self.live.retain(|session| session.is_up());
        let Options { name, subjects, required, max_message, ping_every } = &self.options;
        let dialed = dial(address, &self.login, name, *max_message).await.map_err(Failure::Dial)?;
        let session = Arc::new(Session::new(subjects, *required, &dialed));
        self.live.push(Arc::clone(&session));
        self.tasks.spawn(Arc::clone(&session).run(dialed, Arc::clone(&self.handler), *ping_every));
        match timeout(SUBSCRIBED_WITHIN, session.subscribe()).await {
            Ok(Ok(Some(forbidden))) if *required => {
                session.finish();
                Err(Failure::Forbidden(forbidden))
            }
            Ok(Ok(_)) => Ok(session),
            Ok(Err(why)) => Err(Failure::Dial(DialError::Unreachable(why))),
            Err(_) => {
                session.finish();
                Err(Failure::Dial(DialError::Unreachable("the broker does not answer in time".to_owned())))
            }
        }
    }

    async fn run(mut self, mut stop: watch::Receiver<bool>) {
        tokio::select! {
            () = self.keep() => {}
            // Its sender is gone only when this task is aborted, too.
            _ = stop.wait_for(|stop| *stop) => {}
        }
        self.current.send_replace(None);
        // Half-made ones included: a broker may have chosen them already.
        futures_util::future::join_all(self.live.iter().map(leave)).await;
        // A broker that does not even read ends with this.
        let written = async { while self.tasks.join_next().await.is_some() {} };
        drop(timeout(WRITTEN_WITHIN, written).await);
    }

    async fn keep(&mut self) {
        loop {
            let Some(session) = self.current.borrow().clone() else { return };
            let why = tokio::select! {
                why = session.ended() => Some(why),
                () = session.lame() => None,
            };
            self.servers.told(&session.info());
            let next = match why {
                None => self.elsewhere(&session).await,
                Some(why) => {
                    self.lost(why);
                    None
                }
            };
            match next {
                Some(next) => {
                    self.current.send_replace(Some(next));
                    self.handler.event(Event::Moved);
                    self.tasks.spawn(async move { leave(&session).await });
                }
                None => {
                    let session = self.again().await;
                    self.current.send_replace(Some(session));
                    self.handler.event(Event::Connected);
                }
            }
        }
    }

    fn lost(&self, why: String) {
        self.current.send_replace(None);
        self.handler.event(Event::Disconnected(why));
    }

    /// A session elsewhere, made while this one goes on; `None` if this one ended before there was another.
    async fn elsewhere(&mut self, session: &Arc<Session>) -> Option<Arc<Session>> {
        loop {
            for _ in 0..self.servers.len() {
                let address = self.servers.next()?;
                match self.session(&address).await {
                    // One address may lead to several brokers, or to the one that is about to go.
                    Ok(next) if next.server_id() != session.server_id() => return Some(next),
                    Ok(same) => leave(&same).await,
                    // Nothing is lost yet: not worth a word.
                    Err(_) => {}
                }
                if !session.is_up() {
                    break;
                }
            }
            tokio::select! {
                why = session.ended() => {
                    self.lost(why);
                    return None;
                }
                () = sleep(ELSEWHERE_AGAIN) => {}
            }
        }
    }

    /// Tries until it succeeds.
    async fn again(&mut self) -> Arc<Session> {
        let mut attempt = 0;
        loop {
            attempt += 1;
            sleep(pause(attempt, self.servers.len())).await;
            let Some(address) = self.servers.next() else { continue };
            match self.session(&address).await {
                Ok(session) => return session,
                Err(failure) => self.handler.event(Event::Failed(failure.to_string())),
            }
        }
    }
}

/// Drains and ends a session.
async fn leave(session: &Arc<Session>) {
    session.drain().await;
    session.finish();
}
