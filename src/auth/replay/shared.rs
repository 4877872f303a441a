//! The guard of any number of replicas: first the nonces of this process, then one atomic check in a JetStream stream
//! that all replicas of a service ask. Never admits without a fresh, understood answer of a stream that it has verified.
//!
//! The stream stores each id `<owner>.<nonce>` once and says so; of any number of replicas that ask, one is told "new".
//! Everything else is about when that word can be relied on:
//! - the stream remembers ids for longer than any message lives, and how far back its memory really reaches is watched
//!   (`shared/vouch.rs`); what was issued before is stale;
//! - the answer must come from the verified stream, over a connection that was not interrupted, with a sequence number
//!   above all that were seen before the question;
//! - after the answer the clock is read again: a process that was paused in between could otherwise come back after the
//!   stream has forgotten the id;
//! - this machine's clock and the broker's differ by no more than the skew, compared every second, and between two
//!   comparisons the wall clock is held against the monotonic clock.
//!
//! What remains assumed: the brokers' clocks do not leap ahead by more than half a minute between two comparisons, and
//! a broker that acknowledges has stored.
//!
//! A check costs one round trip, so it is asked for many messages at once and under no lock. While the stream is not
//! verified, checks are refused at once instead of waiting.

mod ask;
mod flight;
mod keeper;
mod latency;
mod stream;
mod vouch;

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use async_nats::Event;
use futures_util::future::BoxFuture;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::counters::Counters;
use super::{Caps, GuardStats, LocalGuard, Nonce, OpenError, Outage, Refused, ReplayGuard, Window};
use crate::bus::BusConfig;
use crate::clock::Clock;
use crate::name::Name;

use ask::Answer;
use flight::Flight;
use keeper::{Keeper, Up};
pub use latency::Latency;
use latency::Recorder;

/// What a [`SharedGuard`] needs to know. All replicas of a service must agree on the first four.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct SharedConfig {
    /// The environment, such as `prod`.
    pub environment: Name,
    /// The service whose replicas share the guard.
    pub service: Name,
    /// The time window. The skew must be at least a second: it also bounds how far clocks may differ.
    pub window: Window,
    /// How many copies the stream must have. Default `None`: 3 in a cluster, 1 on a single server.
    pub replicas: Option<usize>,
    /// The most ids that the stream is made for; default 1,000,000, which is 10,000 messages a second. An id takes about
    /// 650 bytes of the broker's memory (measured), and stays for the window, twice the skew, and a minute.
    pub max_messages: i64,
    /// Bounds on the nonces in this process.
    pub caps: Caps,
    /// The most checks in flight; default 4,096. More are refused as [`Refused::Full`].
    pub in_flight: usize,
    /// The most checks in flight of one owner; default 256. More are refused as [`Refused::OwnerFull`].
    pub in_flight_per_owner: usize,
    /// How long a check may take, 10 ms to 1 s; default 250 ms. Later answers are not waited for.
    pub answer_within: Duration,
    /// How long [`SharedGuard::open`] tries to reach the broker and the stream; default 10 s.
    pub open_within: Duration,
}

impl SharedConfig {
    /// The defaults for a service.
    #[must_use]
    pub fn new(environment: Name, service: Name) -> Self {
        Self {
            environment,
            service,
            window: Window::default(),
            replicas: None,
            max_messages: 1_000_000,
            caps: Caps::default(),
            in_flight: 4096,
            in_flight_per_owner: 256,
            answer_within: Duration::from_millis(250),
            open_within: Duration::from_secs(10),
        }
    }

    /// How long the stream must remember an id: a message may be admitted from `iat - 2S` to `exp + S` by the broker's
    /// clock, and a minute is for brokers whose clocks differ.
    fn memory(&self) -> Duration {
        Duration::from_secs(self.window.window_s + 2 * self.window.skew_s + 60)
    }

    /// The stream's subjects. Agents must not be allowed to publish there.
    #[must_use]
    pub fn subjects(&self) -> String {
        format!("rg.{}.{}.*", self.environment, self.service)
    }
}

/// A [`SharedGuard`] cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum SharedOpenError {
    /// The guard's part in this process.
    #[error(transparent)]
    Local(#[from] OpenError),
    /// Clocks on two machines are never equal.
    #[error("a shared replay guard needs a clock skew of at least 1 s")]
    NoSkew,
    /// Zero would mean no bound.
    #[error("the guard stream must have room for at least one message")]
    NoRoom,
    /// Shorter, and no broker answers in time; longer, and a pause is noticed too late.
    #[error("a check may take {min} ms to {max} ms, not {0:?}", min = ANSWER_WITHIN.start().as_millis(), max = ANSWER_WITHIN.end().as_millis())]
    AnswerWithin(Duration),
    /// The stream cannot do the work: blame the broker's set-up, or the configuration.
    #[error("{0}")]
    Unfit(String),
    /// The broker, or the stream, was not ready in time.
    #[error("the replay guard is not ready: {0}")]
    NotReady(String),
}

/// Admits messages once among all replicas of a service.
///
/// It has a connection of its own, which it makes anew when that is of no use any more, and a task that verifies the
/// stream every second; [`ReplayGuard::close`] ends both and waits for it.
pub struct SharedGuard {
    shared: Arc<Shared>,
    task: Mutex<Option<(watch::Sender<bool>, JoinHandle<()>)>>,
}

/// More about a [`SharedGuard`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SharedStats {
    /// The verified stream; empty while there is none.
    pub stream: String,
    /// Checks in flight.
    pub in_flight: usize,
    /// Checks sent to the stream and how long they took.
    pub latency: Latency,
    /// Checks that were not answered in time.
    pub unanswered: u64,
    /// How often the guard had to stop admitting because of the broker, the stream or the clock.
    pub interruptions: u64,
    /// How far the broker's clock was ahead of this machine's when last compared, in milliseconds.
    pub broker_ahead_ms: i64,
}

impl SharedGuard {
    /// Connects, finds or makes the stream, and verifies it. Must be called in a tokio runtime.
    ///
    /// # Errors
    /// [`SharedOpenError::Unfit`] blames the stream's set-up, [`SharedOpenError::NotReady`] the broker after `open_within`
    /// of trying, and all others the configuration.
    ///
    /// Cancel safe: nothing is left behind but the stream.
    pub async fn open(config: SharedConfig, bus: BusConfig, clock: Arc<dyn Clock>) -> Result<Self, SharedOpenError> {
        let local = LocalGuard::unfenced(config.window, config.caps, Arc::clone(&clock))?;
        if config.window.skew_s == 0 {
            return Err(SharedOpenError::NoSkew);
        }
        if config.max_messages <= 0 {
            return Err(SharedOpenError::NoRoom);
        }
        if !ANSWER_WITHIN.contains(&config.answer_within) {
            return Err(SharedOpenError::AnswerWithin(config.answer_within));
        }
        let shared = Arc::new(Shared {
            flight: Flight::new(config.in_flight, config.in_flight_per_owner),
            config,
            clock,
            local,
            link: ArcSwap::from_pointee(Link::down(Outage::Unverified, "")),
            fence: AtomicU64::new(0),
            ahead_ms: AtomicI64::new(0),
            nudge: Notify::new(),
            broker_says: Mutex::new(None),
            counters: Counters::default(),
            latency: Recorder::default(),
            unanswered: AtomicU64::new(0),
            interruptions: AtomicU64::new(0),
        });
        let mut keeper = Keeper::new(Arc::clone(&shared), bus);
        let deadline = Instant::now() + shared.config.open_within;
        while let Err(trouble) = keeper.step().await {
            if trouble.outage == Outage::StreamUnfit {
                return Err(SharedOpenError::Unfit(trouble.detail));
            }
            if Instant::now() >= deadline {
                return Err(SharedOpenError::NotReady(shared.explained(&trouble.detail)));
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let (stop, stopped) = watch::channel(false);
        let task = tokio::spawn(keeper.run(stopped));
        Ok(Self { shared, task: Mutex::new(Some((stop, task))) })
    }
}

impl ReplayGuard for SharedGuard {
    fn fence(&self) -> u64 {
        self.shared.fence.load(Ordering::SeqCst)
    }

    fn admit<'a>(
        &'a self,
        owner: &'a Name,
        nonce: Nonce,
        iat: u64,
        exp: u64,
        received: Instant,
    ) -> BoxFuture<'a, Result<(), Refused>> {
        Box::pin(async move {
            let answer = self.shared.admit(owner, nonce, iat, exp, received).await;
            self.shared.counters.count(answer);
            answer
        })
    }

    fn kind(&self) -> &'static str {
        "shared"
    }

    fn not_ready(&self) -> Option<String> {
        match &**self.shared.link.load() {
            Link::Down { outage, detail } if detail.is_empty() => return Some(outage.to_string()),
            Link::Down { outage, detail } => return Some(format!("{outage}: {}", self.shared.explained(detail))),
            Link::Up(up) => {
                if let Err(Refused::Unavailable(outage)) = self.shared.agree(up) {
                    return Some(outage.to_string());
                }
            }
        }
        let (now, fence) = (self.shared.clock.now_s(), self.fence());
        if now <= fence {
            let wait_s = fence - now + 1;
            return Some(format!("the guard stream does not vouch for older messages yet: ready in {wait_s} s"));
        }
        // The local guard has no fence, but it knows a clock that went back.
        self.shared.local.not_ready()
    }

    fn stats(&self) -> GuardStats {
        let shared = &self.shared;
        let mut stats = shared.local.stats();
        shared.counters.fill(&mut stats);
        stats.shared = Some(SharedStats {
            stream: match &**shared.link.load() {
                Link::Up(up) => up.stream.to_string(),
                Link::Down { .. } => String::new(),
            },
            in_flight: shared.flight.len(),
            latency: shared.latency.read(),
            unanswered: shared.unanswered.load(Ordering::Relaxed),
            interruptions: shared.interruptions.load(Ordering::Relaxed),
            broker_ahead_ms: shared.ahead_ms.load(Ordering::Relaxed),
        });
        stats
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let task = self.task.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some((stop, task)) = task {
                let _ = stop.send(true);
                if task.await.is_err() {
                    tracing::error!("the replay guard's task had panicked");
                }
            }
            self.shared.fall(None, Outage::Closed, "");
            self.shared.local.close().await;
        })
    }
}

impl Drop for SharedGuard {
    fn drop(&mut self) {
        // The task ends by itself when the sender is gone; nobody is left to wait for it.
        if let Some((_, task)) = self.task.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            task.abort();
        }
        // The client's events hold on to what is shared, and the link to the client: a circle, cut here.
        self.shared.fall(None, Outage::Closed, "");
    }
}

impl fmt::Debug for SharedGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedGuard")
            .field("environment", &self.shared.config.environment)
            .field("service", &self.shared.config.service)
            .field("link", &self.shared.link.load())
            .finish_non_exhaustive()
    }
}

/// What the guard and its task have in common.
struct Shared {
    config: SharedConfig,
    clock: Arc<dyn Clock>,
    local: LocalGuard,
    link: ArcSwap<Link>,
    /// Only grows. Set before the link is up for the first time.
    fence: AtomicU64,
    ahead_ms: AtomicI64,
    /// Asks the task to verify now.
    nudge: Notify,
    flight: Flight,
    /// The broker's latest complaint, such as a missing permission, which otherwise looks like silence.
    broker_says: Mutex<Option<String>>,
    counters: Counters,
    latency: Recorder,
    unanswered: AtomicU64,
    interruptions: AtomicU64,
}

/// Whether the stream can be asked.
#[derive(Debug)]
enum Link {
    Up(Box<Up>),
    Down {
        outage: Outage,
        /// For people.
        detail: String,
    },
}

impl Link {
    fn down(outage: Outage, detail: &str) -> Self {
        Self::Down { outage, detail: detail.to_owned() }
    }

    fn up(&self) -> Result<&Up, Outage> {
        match self {
            Self::Up(up) => Ok(up),
            Self::Down { outage, .. } => Err(*outage),
        }
    }
}

impl Shared {
    async fn admit(&self, owner: &Name, nonce: Nonce, iat: u64, exp: u64, received: Instant) -> Result<(), Refused> {
        let link = self.link.load_full();
        let up = link.up().map_err(Refused::Unavailable)?;
        // Before anything reads the wall clock for a decision: a wrong one must not become the floor.
        self.agree(up)?;
        if iat <= self.fence.load(Ordering::SeqCst) {
            return Err(Refused::Stale);
        }
        let retry_after_ms = u64::try_from(self.config.answer_within.as_millis()).unwrap_or(u64::MAX);
        let _ticket = self.flight.enter(owner, retry_after_ms)?;
        // The local guard goes first, so that a flood of copies costs no shared work.
        self.local.admit_now(owner, nonce, iat, exp)?;

        let highest = up.highest.load(Ordering::SeqCst);
        let asked = Instant::now();
        let subject = stream::subject(&self.config, owner);
        let id = format!("{owner}.{}", nonce.to_text());
        let answer = ask::ask(&up.jetstream, subject, &id, self.config.answer_within).await;
        self.latency.record(asked.elapsed());
        self.believe(up, answer, highest)?;

        // The memory that answered must be the one that is vouched for now, over the same connection.
        let link_now = self.link.load_full();
        let up_now = link_now.up().map_err(Refused::Unavailable)?;
        if !up.continues(up_now) || !up.is_unbroken() {
            self.nudge.notify_one();
            return Err(Refused::Unavailable(Outage::Unverified));
        }
        self.agree(up_now)?;
        // Time has passed. A process that was paused may come back after the stream has forgotten the id.
        let Window { window_s, skew_s } = self.config.window;
        let overdue = received.elapsed() > Duration::from_secs(window_s + 2 * skew_s);
        let fence = self.fence.load(Ordering::SeqCst);
        if overdue || !self.config.window.holds(iat, exp, self.local.now_s(), fence) {
            return Err(Refused::Stale);
        }
        Ok(())
    }

    fn agree(&self, up: &Up) -> Result<(), Refused> {
        let skew_ms = self.config.window.skew_s * 1000;
        up.agreement.check(Instant::now(), self.clock.now_ms(), skew_ms).map_err(|outage| {
            self.nudge.notify_one();
            Refused::Unavailable(outage)
        })
    }

    /// Whether the stream's answer says that the id was new, and may be believed.
    fn believe(&self, up: &Up, answer: Answer, highest: u64) -> Result<(), Refused> {
        match answer {
            Answer::Acknowledged { stream, .. } | Answer::Known { stream: Some(stream) } if *stream != *up.stream => {
                self.fall(Some(up), Outage::StreamReplaced, &format!("stream `{stream}` answers instead"));
                Err(Refused::Unavailable(Outage::StreamReplaced))
            }
            // What is stored after an answer was seen has a higher number than that answer had.
            Answer::Acknowledged { sequence, .. } if sequence <= highest => {
                self.fall(Some(up), Outage::Unverified, "the guard stream's sequence went back");
                Err(Refused::Unavailable(Outage::Unverified))
            }
            Answer::Acknowledged { sequence, .. } => {
                up.highest.fetch_max(sequence, Ordering::SeqCst);
                Ok(())
            }
            Answer::Known { .. } => Err(Refused::Replayed),
            Answer::Failed(outage) => {
                match outage {
                    Outage::StreamReplaced | Outage::Unreachable => self.fall(Some(up), outage, ""),
                    Outage::Unanswered => {
                        self.unanswered.fetch_add(1, Ordering::Relaxed);
                        self.nudge.notify_one();
                    }
                    _ => self.nudge.notify_one(),
                }
                Err(Refused::Unavailable(outage))
            }
        }
    }

    /// The stream is verified.
    fn rise(&self, up: Up) {
        let stream = Arc::clone(&up.stream);
        *self.broker_says.lock().unwrap_or_else(PoisonError::into_inner) = None;
        let before = self.link.swap(Arc::new(Link::Up(Box::new(up))));
        if before.up().is_err() {
            tracing::info!(%stream, "the shared replay guard is up");
        }
    }

    /// The stream cannot be relied on. With `seen`, only if the link is still of that generation.
    fn fall(&self, seen: Option<&Up>, outage: Outage, detail: &str) {
        let down = Arc::new(Link::down(outage, detail));
        let before = self.link.rcu(|link| match (&**link, seen) {
            (Link::Up(up), Some(seen)) if !up.continues(seen) => Arc::clone(link),
            (Link::Down { .. }, Some(_)) => Arc::clone(link),
            _ => Arc::clone(&down),
        });
        if seen.is_some() {
            self.nudge.notify_one();
        }
        if matches!(&*before, Link::Up(up) if seen.is_none_or(|seen| up.continues(seen))) {
            self.interruptions.fetch_add(1, Ordering::Relaxed);
            if outage != Outage::Closed {
                let detail = self.explained(detail);
                tracing::error!(%outage, detail, "the shared replay guard is down: every message is refused");
            }
        }
    }

    /// An event of the guard's connection.
    fn hear(&self, event: &Event) {
        if let Event::ServerError(error) = event {
            *self.broker_says.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_string());
        }
        self.nudge.notify_one();
    }

    /// The detail with the broker's latest complaint, which may be its cause.
    fn explained(&self, detail: &str) -> String {
        match &*self.broker_says.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(complaint) => format!("{detail} (the broker says: {})", crate::name::shown(complaint)),
            None => detail.to_owned(),
        }
    }
}

/// The task verifies with the same patience, every second, and what it found is trusted for five.
const ANSWER_WITHIN: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_secs(1);
