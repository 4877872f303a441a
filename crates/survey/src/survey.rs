//! The connection, and the rounds over it: one question for each service whose keys are known, one for all others.
//! Never waits for an answer longer than a round takes, and never asks more often than it was told.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use futures_util::future::join_all;
use sealwire::BusConfig;
use sealwire::errors::BusError;
use sealwire::internal::nats::{self, Connection, Event, Handler, Message, OpenError, Session, Subject};
use sealwire::internal::wire::{HeaderBlock, Nonce};
use sealwire::serve::Condition;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::answer::{MAX_ANSWER, ReplicaStats};
use super::books::{Books, Key, Replica};
use super::fault::{Fault, Faults};
use super::mailbox::{Budget, Mailbox};
use super::pins::Pins;

/// How a survey asks.
#[derive(Debug, Clone)]
pub struct Options {
    /// What the subjects begin with on which it is answered, such as `_INBOX.tools`.
    pub inbox: String,
    /// How long a round listens.
    pub within: Duration,
    /// How much time there is between the beginnings of two rounds.
    pub every: Duration,
    /// The client name, as the broker's listings show it.
    pub name: String,
}

/// Asks, and keeps the answers. Clones share everything.
#[derive(Debug, Clone)]
pub struct Survey(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    connection: Connection,
    inbox: String,
    options: Options,
    pins: Pins,
    handler: Arc<Answers>,
    books: Mutex<Books>,
    latest: Mutex<Option<SystemTime>>,
    wanted: Wanted,
}

/// Somebody looks at what was found.
#[derive(Debug, Default)]
struct Wanted {
    woken: Notify,
    latest: Mutex<Option<Instant>>,
}

/// For so long after somebody has looked, questions are asked.
const LOOKED_AT: Duration = Duration::from_secs(300);
/// For so long after a round, what it has found is shown, or for three rounds if that is longer.
const SHOWN_FOR: Duration = Duration::from_secs(60);

/// The question could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum NotAsked {
    /// There is no connection at the moment.
    #[error("the connection to the broker is lost")]
    Disconnected,
    /// The broker forbids the question.
    #[error("the broker forbids this user to publish to `{0}`: permit it")]
    Forbidden(String),
}

/// What is known at a moment.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// In the order of their keys.
    pub replicas: Vec<Arc<Replica>>,
    /// How many answers were not shown, by the reason.
    pub faults: Vec<(Fault, u64)>,
    /// How many endpoints of answers were left out.
    pub left_out: u64,
    /// How many rounds there were.
    pub rounds: u64,
    /// When the last one ended.
    pub latest: Option<SystemTime>,
    /// Whether there is a connection to the broker.
    pub is_connected: bool,
}

/// What the connection reports.
#[derive(Debug, Default)]
struct Answers {
    mailbox: Mailbox,
    forbidden: Mutex<Option<String>>,
}

impl Handler for Answers {
    fn message(&self, message: Message, _: &Arc<Session>) {
        self.mailbox.offer(message);
    }

    fn event(&self, event: Event) {
        match event {
            Event::PublishForbidden(subject) => *lock(&self.forbidden) = Some(subject.escape_debug().to_string()),
            Event::Connected | Event::Moved => tracing::info!(target: "sealwire::survey", "connected"),
            Event::Disconnected(why) | Event::Failed(why) | Event::Error(why) => {
                tracing::warn!(target: "sealwire::survey", %why, "the connection to the broker");
            }
            Event::LoginEnds(why) => tracing::warn!(target: "sealwire::survey", %why, "the broker login ends soon"),
            Event::SubscribeForbidden(subject) | Event::Flooded(subject) => {
                tracing::warn!(target: "sealwire::survey", subject = %subject.escape_debug(), "cannot listen");
            }
        }
    }
}

impl Survey {
    /// Connects.
    ///
    /// # Errors
    /// [`BusError`]: the broker cannot be reached, does not let us in, or forbids the inbox.
    ///
    /// Cancel safe: nothing is left behind.
    pub async fn open(bus: &BusConfig, pins: Pins, options: Options) -> Result<Self, BusError> {
        let inbox = format!("{}.{}", options.inbox, Nonce::random().to_text());
        let listened = format!("{inbox}.*");
        let subjects = vec![Subject { subject: listened.clone(), queue: None, max_per_second: None }];
        let handler = Arc::new(Answers::default());
        let connection = nats::Options { max_message: MAX_ANSWER, ..nats::Options::new(&options.name, subjects) };
        let connection = Connection::open(bus, connection, Arc::clone(&handler) as Arc<dyn Handler>).await;
        let connection = connection.map_err(|error| match error {
            OpenError::Bus(error) => error,
            OpenError::Forbidden(_) => BusError::Forbidden { action: "subscribe to", subject: listened },
        })?;
        let (books, latest, wanted) = (Mutex::default(), Mutex::default(), Wanted::default());
        Ok(Self(Arc::new(Inner { connection, inbox, options, pins, handler, books, latest, wanted })))
    }

    /// Asks everybody once, and listens for the time of a round.
    ///
    /// # Errors
    /// [`NotAsked`].
    ///
    /// Cancel safety: answers of a round that is dropped are forgotten.
    pub async fn round(&self) -> Result<(), NotAsked> {
        let inner = &*self.0;
        let session = inner.connection.session().ok_or(NotAsked::Disconnected)?;
        lock(&inner.handler.forbidden).take();
        let until = Instant::now() + inner.options.within;
        let services = inner.pins.names().map(Some);
        let questions = std::iter::once(None).chain(services).map(|service| inner.ask(&session, service, until));
        let heard = join_all(questions).await;
        let now = Instant::now();
        let mut books = inner.books();
        books.begin(now);
        for Heard { answers, faults } in heard {
            faults.read().for_each(|(fault, times)| books.faults.count(fault, times));
            answers.into_iter().for_each(|(key, stats)| books.take(key, stats, now));
        }
        drop(books);
        *lock(&inner.latest) = Some(SystemTime::now());
        match lock(&inner.handler.forbidden).clone() {
            Some(subject) => Err(NotAsked::Forbidden(subject)),
            None => Ok(()),
        }
    }

    /// Asks round after round, for as long as somebody looks at what was found.
    ///
    /// Cancel safety: that of [`Survey::round`].
    pub async fn run(&self) {
        let inner = &*self.0;
        loop {
            let begun = Instant::now();
            if let Err(error) = self.round().await {
                tracing::warn!(target: "sealwire::survey", %error, "nobody was asked");
            }
            sleep_until(begun + inner.options.every).await;
            while !inner.wanted.is_looked_at() {
                inner.wanted.woken.notified().await;
            }
        }
    }

    /// What is known now. Somebody looks at it, so it is kept up to date for the next minutes.
    #[must_use]
    pub fn look(&self) -> Snapshot {
        let inner = &*self.0;
        inner.wanted.look();
        let Options { within, every, .. } = inner.options;
        let books = inner.books();
        Snapshot {
            replicas: books.shown(Instant::now(), SHOWN_FOR.max(3 * every + within)),
            faults: books.faults.read().collect(),
            left_out: books.left_out,
            rounds: books.rounds,
            latest: *lock(&inner.latest),
            is_connected: inner.connection.session().is_some(),
        }
    }

    /// What must hold for it to be of use.
    #[must_use]
    pub fn conditions(&self) -> Vec<Condition> {
        let inner = &*self.0;
        let lost = inner.connection.session().is_none().then(|| NotAsked::Disconnected.to_string());
        let forbidden = lock(&inner.handler.forbidden).clone().map(|subject| NotAsked::Forbidden(subject).to_string());
        vec![Condition { name: "connected", unmet: lost }, Condition { name: "asking", unmet: forbidden }]
    }
}

/// What came of one question.
struct Heard {
    answers: Vec<(Key, ReplicaStats)>,
    faults: Faults,
}

impl Inner {
    fn books(&self) -> MutexGuard<'_, Books> {
        lock(&self.books)
    }

    /// Asks the replicas of one service, or all there are, and listens until then.
    async fn ask(&self, session: &Session, service: Option<&str>, until: Instant) -> Heard {
        // A new inbox for each question: a late answer is not taken for one to the next question, and nobody who may not listen to this
        // question knows where it is answered.
        let inbox = format!("{}.{}", self.inbox, Nonce::random().to_text());
        let nonce = Nonce::random();
        let (subject, payload, budget) = match service {
            Some(service) => (format!("$SRV.STATS.{service}"), nonce.to_text(), Budget::OF_SERVICE),
            None => ("$SRV.STATS".to_owned(), String::new(), Budget::OF_OTHERS),
        };
        let mut heard = Heard { answers: Vec::new(), faults: Faults::default() };
        let mut answers = self.handler.mailbox.open(&inbox, budget);
        let asked = session.publish(&subject, &inbox, &[], payload.as_bytes());
        if let Ok(Ok(())) = timeout_at(until, asked).await {
            while let Ok(Some(message)) = timeout_at(until, answers.recv()).await {
                match self.read(service, nonce, &inbox, message) {
                    Ok(None) => {}
                    Ok(Some(answer)) => heard.answers.push(answer),
                    Err(fault) => heard.faults.count(fault, 1),
                }
            }
        }
        let over = self.handler.mailbox.close(&inbox);
        heard.faults.count(Fault::Flood, over);
        heard
    }

    /// Reads an answer; `None` if it is none, or is read elsewhere.
    fn read(
        &self,
        service: Option<&str>,
        nonce: Nonce,
        inbox: &str,
        message: Message,
    ) -> Result<Option<(Key, ReplicaStats)>, Fault> {
        if message.oversized {
            return Err(Fault::Oversized);
        }
        // What the broker says if nobody listens.
        if message.payload.is_empty() {
            return Ok(None);
        }
        let stats = ReplicaStats::read(&message.payload)?;
        let environment = match service {
            // Whoever has a key is asked separately, and nobody else may have its name.
            None if self.pins.has(&stats.service) => return Ok(None),
            None => String::new(),
            Some(service) => {
                let headers = HeaderBlock::from(message.headers);
                let proved = self.pins.environment(&stats, nonce, inbox, &headers, &message.payload);
                proved.filter(|_| stats.service == service).ok_or(Fault::Unproved)?.to_owned()
            }
        };
        let key = Key { environment, service: stats.service.clone(), id: stats.id.clone() };
        Ok(Some((key, stats)))
    }
}

impl Wanted {
    fn look(&self) {
        *lock(&self.latest) = Some(Instant::now());
        self.woken.notify_one();
    }

    fn is_looked_at(&self) -> bool {
        lock(&self.latest).is_some_and(|latest| latest.elapsed() < LOOKED_AT)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing between lock and unlock can panic halfway.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
