//! A connection that stays up: one session after another, over all known brokers.
//! Never stays subscribed to two brokers for longer than a hand-over takes, and never leaves one before reading what it delivered.

use std::future::pending;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};

use super::config::{BusConfig, Target};
use super::creds::Life;
use super::dial::{DialError, dial};
use super::error::BusError;
use super::event::Event;
use super::login::{Login, LoginTokens};
use super::servers::{Address, Servers, pause};
use super::session::{Handler, Session, Subject};
use crate::clock::{Clock as _, SystemClock};

/// The options of a connection.
#[derive(Debug, Clone)]
pub struct Options {
    /// The client name, as the broker's listings show it.
    pub name: String,
    /// What to subscribe to on every broker.
    pub subjects: Vec<Subject>,
    /// Whether the connection is useless if the broker forbids a subscription. If false, the refusal is only reported.
    pub required: bool,
    /// The size limit in bytes, headers included. Larger messages are skipped and reported as oversized.
    pub max_message: usize,
    /// How often a quiet broker is pinged. It is left if three pings in a row have not been answered when the fourth is due.
    pub ping_every: Duration,
    /// With which access tokens to log in, where the broker's settings ask for that.
    pub tokens: Option<Arc<dyn LoginTokens>>,
}

impl Options {
    /// The default options for these subscriptions, all of which are required.
    #[must_use]
    pub fn new(name: &str, subjects: Vec<Subject>) -> Self {
        Self {
            name: name.to_owned(),
            subjects,
            required: true,
            max_message: MAX_MESSAGE,
            ping_every: PING_EVERY,
            tokens: None,
        }
    }
}

/// The default of a broker's `max_payload`. Anything larger does not belong in messages.
const MAX_MESSAGE: usize = 1 << 20;
/// After three unanswered pings, a broker whose machine lost power or network is left.
const PING_EVERY: Duration = Duration::from_secs(2);
/// How long subscribing may take.
const SUBSCRIBED_WITHIN: Duration = Duration::from_secs(5);
/// How long writing the remaining data may take at the end.
const WRITTEN_WITHIN: Duration = Duration::from_secs(2);
/// How often it is repeated that a login is about to end.
const SAY_AGAIN_S: u64 = 24 * 60 * 60;
/// How long to wait before trying another broker again, while the current one is in lame duck mode.
const ELSEWHERE_AGAIN: Duration = Duration::from_secs(1);

/// Why no connection was established.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The broker cannot be reached, or refuses us.
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
    /// Connects and subscribes, trying each address once. Later on, it reconnects for as long as the connection lives.
    ///
    /// # Errors
    /// [`OpenError`]; nothing is left behind.
    pub async fn open(bus: &BusConfig, options: Options, handler: Arc<dyn Handler>) -> Result<Self, OpenError> {
        let bus = &*bus.resolved()?;
        let Target { addresses, mut login, follow } = bus.target()?;
        login.with_tokens(options.tokens.clone());
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

    /// The current session; `None` while there is none.
    #[must_use]
    pub fn session(&self) -> Option<Arc<Session>> {
        self.current.borrow().clone().filter(|session| session.is_up())
    }

    /// A receiver of every change of the session.
    #[must_use]
    pub fn sessions(&self) -> watch::Receiver<Option<Arc<Session>>> {
        self.current.clone()
    }

    /// Ends all subscriptions in queue groups for good, and hands over every message that the broker has already routed
    /// to us. The connection and its other subscriptions stay.
    ///
    /// Cancel safety: if the future is dropped, messages may still be in transit; they are handed over later.
    pub async fn end_queues(&self) {
        self.queues_over.store(true, Ordering::SeqCst);
        if let Some(session) = self.session() {
            session.end_queues().await;
        }
    }

    /// Ends all subscriptions, hands over every message that the broker has already routed to us, and disconnects.
    ///
    /// Cancel safety: if the future is dropped, the connection may stay up until it is dropped as well.
    pub async fn drain(&self) {
        self.stop.send_replace(true);
        let supervisor = self.supervisor.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(supervisor) = supervisor {
            // The task ends by itself, or with this future.
            let mut supervisor = Aborting(supervisor);
            drop((&mut supervisor.0).await);
        }
    }

    /// Disconnects at once. What was published but not yet written is lost; see [`Session::flush`].
    ///
    /// Cancel safety: the connection is closed as soon as the future is first polled.
    pub async fn close(&self) {
        let supervisor = self.supervisor.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(supervisor) = supervisor {
            supervisor.abort();
            // The task was aborted, so the error is expected.
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

/// Makes sessions and replaces them when they end. Dropping it ends them.
struct Supervisor {
    servers: Servers,
    login: Login,
    options: Options,
    handler: Arc<dyn Handler>,
    current: watch::Sender<Option<Arc<Session>>>,
    /// Whether subscriptions in queue groups have ended.
    queues_over: Arc<AtomicBool>,
    /// All sessions to which a broker may still route messages.
    live: Vec<Arc<Session>>,
    tasks: JoinSet<()>,
}

/// Why a session is left that is still up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Leaving {
    /// The broker is about to go.
    LameDuck,
    /// The broker will end it, and there is a login that ends later.
    OldLogin,
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
    /// Tries each address once. Of several failures, returns the one that the operator can do most about.
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

    /// Makes a session at this address, with its subscriptions.
    async fn session(&mut self, address: &Address) -> Result<Arc<Session>, Failure> {
        while self.tasks.try_join_next().is_some() {}
        self.live.retain(|session| session.is_up());
        let Options { name, subjects, required, max_message, ping_every, tokens: _ } = &self.options;
        let dialed = dial(address, &self.login, name, *max_message).await.map_err(|error| {
            if matches!(error, DialError::Refused) {
                self.login.refused();
            }
            Failure::Dial(error)
        })?;
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
            // The sender is only dropped when this task is aborted as well.
            _ = stop.wait_for(|stop| *stop) => {}
        }
        self.current.send_replace(None);
        // Including unfinished ones: a broker may already be routing messages to them.
        futures_util::future::join_all(self.live.iter().map(leave)).await;
        // This ends a session whose broker does not even read.
        let written = async { while self.tasks.join_next().await.is_some() {} };
        drop(timeout(WRITTEN_WITHIN, written).await);
    }

    async fn supervise(&mut self) {
        loop {
            let Some(session) = self.current.borrow().clone() else { return };
            let why = tokio::select! {
                why = session.ended() => Err(why),
                () = session.lame() => Ok(Leaving::LameDuck),
                () = self.login_renewed(&session) => Ok(Leaving::OldLogin),
            };
            self.servers.told(&session.info());
            let next = match why {
                Ok(leaving) => self.successor(&session, leaving).await,
                Err(why) => {
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

    /// Waits until there is a login that ends later than that of this session. Says so if there is none in time.
    async fn login_renewed(&self, session: &Session) {
        let Some((life, until)) = session.life.and_then(|life| Some((life, life.until?))) else {
            return pending().await;
        };
        let mut say_at = 0;
        loop {
            let now_s = SystemClock.now_s();
            let Some(left_s) = life.left_to_renew(now_s) else {
                sleep(life.look_in(now_s)).await;
                continue;
            };
            let next = self.login.credential().await;
            let is_later = |next: &Life| next.until.is_none_or(|later| later > until);
            if next.as_ref().is_ok_and(|next| next.life().as_ref().is_none_or(is_later)) {
                return;
            }
            if now_s >= say_at {
                say_at = now_s + SAY_AGAIN_S;
                let now =
                    next.err().map_or_else(|| "the same JWT".to_owned(), |error| format!("nothing usable ({error})"));
                self.handler.event(Event::LoginEnds(self.login.ends_in(left_s, &now)));
            }
            sleep(life.look_in(now_s)).await;
        }
    }

    /// Makes another session while this one continues; `None` if this one ended first.
    async fn successor(&mut self, session: &Arc<Session>, leaving: Leaving) -> Option<Arc<Session>> {
        loop {
            for _ in 0..self.servers.len() {
                let address = self.servers.next()?;
                match self.session(&address).await {
                    // An address may lead to several brokers, or back to the one in lame duck mode.
                    Ok(next) if leaving == Leaving::OldLogin || next.server_id() != session.server_id() => {
                        return Some(next);
                    }
                    Ok(same) => leave(&same).await,
                    Err(failure) if leaving == Leaving::OldLogin => {
                        let text =
                            format!("the login is about to end, and connecting with the new one fails: {failure}");
                        self.handler.event(Event::LoginEnds(text));
                    }
                    // Nothing is lost yet, so this is not reported.
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
        let (mut attempt, mut refusals) = (0, 0);
        loop {
            attempt += 1;
            sleep(pause(attempt, self.servers.len(), refusals)).await;
            let Some(address) = self.servers.next() else { continue };
            match self.session(&address).await {
                Ok(session) => return session,
                Err(failure) => {
                    let refused = matches!(failure, Failure::Dial(DialError::Refused));
                    refusals = if refused { refusals + 1 } else { 0 };
                    self.handler.event(Event::Failed(failure.to_string()));
                }
            }
        }
    }
}

/// Drains and ends a session.
async fn leave(session: &Arc<Session>) {
    session.drain().await;
    session.finish();
}
