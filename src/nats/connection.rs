//! A connection that stays: one session after the other, over all brokers that are known.
//! Never has two brokers choose it for longer than a hand-over takes, and leaves none before it has read what it was chosen for.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};

use super::config::{BusConfig, BusError, Door};
use super::dial::{DialError, Login, dial};
use super::event::{Event, Handler};
use super::servers::{Address, Servers, pause};
use super::session::{Session, Subject};

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
    queues_over: Arc<AtomicBool>,
    supervisor: Mutex<Option<JoinHandle<()>>>,
}

impl Connection {
    /// Connects and subscribes; each address is tried once. Later ones are tried for as long as the connection lives.
    ///
    /// # Errors
    /// [`OpenError`]; nothing is left behind.
    pub async fn open(bus: &BusConfig, options: Options, handler: Arc<dyn Handler>) -> Result<Self, OpenError> {
        let Door { addresses, login, follow } = bus.door()?;
        let mut supervisor = Supervisor {
            servers: Servers::new(addresses, follow),
            login,
            options,
            handler,
            current: watch::Sender::new(None),
            queues_over: Arc::default(),
            live: Vec::new(),
            tasks: JoinSet::new(),
        };
        supervisor.first(bus).await?;
        let current = supervisor.current.subscribe();
        let queues_over = Arc::clone(&supervisor.queues_over);
        let (stop, stopped) = watch::channel(false);
        let supervisor = Mutex::new(Some(tokio::spawn(supervisor.run(stopped))));
        Ok(Self { current, stop, queues_over, supervisor })
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

    /// Ends all subscriptions in queue groups, for good, and has every message handed over that the broker had chosen us for.
    /// The connection and its other subscriptions stay.
    ///
    /// Cancel safety: a dropped future may leave messages on the way, which are handed over later.
    pub async fn end_queues(&self) {
        self.queues_over.store(true, Ordering::SeqCst);
        if let Some(session) = self.session() {
            session.end_queues().await;
        }
    }

    /// Ends all subscriptions, has every message handed over that the broker had chosen us for, and leaves.
    ///
    /// Cancel safety: a dropped future may leave the end to dropping the connection.
    pub async fn drain(&self) {
        self.stop.send_replace(true);
        let supervisor = self.supervisor.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(supervisor) = supervisor {
            // It ends by itself, or with this future.
            let mut supervisor = Aborting(supervisor);
            drop((&mut supervisor.0).await);
        }
    }

    /// Leaves at once. What was published and not yet written is lost; see [`Session::flush`].
    ///
    /// Cancel safety: it has left when the future is first polled.
    pub async fn close(&self) {
        let supervisor = self.supervisor.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(supervisor) = supervisor {
            supervisor.abort();
            // It was told to end, and that is how it ended.
            drop(supervisor.await);
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if let Some(supervisor) = self.supervisor.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            supervisor.abort();
        }
    }
}

struct Aborting(JoinHandle<()>);

impl Drop for Aborting {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Makes the sessions and replaces them when they end. They end when it is dropped.
struct Supervisor {
    servers: Servers,
    login: Login,
    options: Options,
    handler: Arc<dyn Handler>,
    current: watch::Sender<Option<Arc<Session>>>,
    /// Nothing is subscribed in a queue group any more.
    queues_over: Arc<AtomicBool>,
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

impl Supervisor {
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
        let without_queues = self.queues_over.load(Ordering::SeqCst);
        let subjects: Vec<Subject> =
            subjects.iter().filter(|subject| !without_queues || subject.queue.is_none()).cloned().collect();
        let session = Arc::new(Session::new(&subjects, *required, &dialed));
        self.live.push(Arc::clone(&session));
        self.tasks.spawn(Arc::clone(&session).run(dialed, Arc::clone(&self.handler), *ping_every));
        match timeout(SUBSCRIBED_WITHIN, session.subscribe()).await {
            Ok(Ok(Some(forbidden))) if *required => {
                session.finish();
                Err(Failure::Forbidden(forbidden))
            }
            Ok(Ok(_)) => {
                if !without_queues && self.queues_over.load(Ordering::SeqCst) {
                    session.end_queues().await;
                }
                Ok(session)
            }
            Ok(Err(why)) => Err(Failure::Dial(DialError::Unreachable(why))),
            Err(_) => {
                session.finish();
                Err(Failure::Dial(DialError::Unreachable("the broker does not answer in time".to_owned())))
            }
        }
    }

    async fn run(mut self, mut stop: watch::Receiver<bool>) {
        tokio::select! {
            () = self.supervise() => {}
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

    async fn supervise(&mut self) {
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
                    let session = self.reconnect().await;
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
    async fn reconnect(&mut self) -> Arc<Session> {
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
