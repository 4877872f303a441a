//! A service on a bus: subscribe, keep going, and stop without losing what was accepted.
//! Never starts beside a replica whose replays it could not see.

mod agreement;
mod control;
mod discovery;
mod fair;
mod ingress;
mod questions;
mod reload;
mod work;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::Service;
use crate::auth::{KeySourceStatus, Nonce};
use crate::bus::{BusConfig, BusError};
use crate::log_limiter::KeyedLogLimiter;
use crate::nats;
use control::Control;
pub(super) use discovery::{AUDIENCE, GUARD, GUARD_IDENTITY, GUARD_READY, POLICY, STARTED, STATE, SUBJECT, peers};
use ingress::Ingress;
pub use reload::{RefusedReload, Watched};

/// How a service runs on a bus.
#[derive(Debug)]
#[non_exhaustive]
pub struct ServeOptions {
    /// How many accepted messages may wait; 4,096. Each agent has a line of its own, and the lines are served in turn; an
    /// agent may have one more only while it has fewer than there are free places, so that one alone gets half. What finds
    /// no place is answered with a hint.
    pub queue: usize,
    /// The bytes of messages that wait or are handled, with subjects and headers; 64 MiB. Shared in the same way.
    pub queue_bytes: usize,
    /// How many messages are handled at a time; 1,024. Shared in the same way: an agent that has its share waits.
    pub in_flight: usize,
    /// How long stopping may take before what is still running is given up; 30 s, the default window of a message.
    pub drain: Duration,
    /// Semantic version of the application, for the NATS tools.
    pub version: String,
    /// One line about the service, for the NATS tools.
    pub description: String,
    /// Files that are read again when they change.
    pub watched: Vec<Watched>,
    /// How often those files are looked at; 500 ms.
    pub watch_every: Duration,
}

impl Default for ServeOptions {
    fn default() -> Self {
        Self {
            queue: 4_096,
            queue_bytes: 64 * 1024 * 1024,
            in_flight: 1_024,
            drain: Duration::from_secs(30),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            description: String::new(),
            watched: Vec::new(),
            watch_every: Duration::from_millis(500),
        }
    }
}

/// A service cannot start, or did not stop in time.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The broker.
    #[error(transparent)]
    Bus(#[from] BusError),
    /// Another replica answers on the bus, and the two do not remember in one place: a captured message would run once in
    /// each. This one does not start; or it serves, started later than the other, and stops.
    #[error(
        "another replica of `{audience}` (instance {instance}, replay guard `{guard}`) answers on the bus, and this one's \
         guard is `{own}`, and they cannot serve beside each other: {why}; stop the other one first, or give all replicas \
         the same shared guard"
    )]
    AnotherReplica {
        /// `<environment>/<service>`.
        audience: String,
        /// The other instance's id.
        instance: String,
        /// Its guard.
        guard: String,
        /// Ours.
        own: &'static str,
        /// What differs.
        why: String,
    },
    /// Whether there is another replica cannot be found out.
    #[error(
        "cannot look for other replicas of `{audience}`: the broker does not carry `{subject}` from this user and back. \
         Permit it to publish and subscribe `{below}.>`, and nobody else"
    )]
    Blind {
        /// `<environment>/<service>`.
        audience: String,
        /// Where replicas ask each other.
        subject: String,
        /// Below which all of it lies.
        below: String,
    },
    /// The broker does not let this user subscribe.
    #[error("the broker forbids this user to subscribe to `{0}`: permit it")]
    Subscribe(String),
    /// Work that was accepted did not end within the time for draining.
    #[error("{0} accepted messages were not finished within the time for draining")]
    Drain(usize),
}

/// In what state a service on a bus is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// Not yet taking messages, and why.
    Starting(String),
    /// Taking messages.
    Ready,
    /// For the moment not taking messages, and why.
    Interrupted(String),
    /// Finishing what was accepted.
    Draining,
    /// Done.
    Stopped,
}

impl State {
    /// One word, for the service's metadata on the bus.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Starting(_) => "starting",
            Self::Ready => "ready",
            Self::Interrupted(_) => "interrupted",
            Self::Draining => "draining",
            Self::Stopped => "stopped",
        }
    }
}

/// What a service's tasks share.
#[derive(Debug)]
struct Shared {
    service: Service,
    bus: BusConfig,
    instance: String,
    options: ServeOptions,
    state: watch::Sender<State>,
    started: time::OffsetDateTime,
    health: Health,
    /// Of what others can bring about at the connections.
    lines: KeyedLogLimiter<(Link, &'static str)>,
}

/// The connections of a service, but its guard's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Link {
    /// The one that agents reach.
    Agents,
    /// The one for answers, other replicas and `$SRV`.
    Control,
}

impl Link {
    fn as_str(self) -> &'static str {
        match self {
            Self::Agents => "agents",
            Self::Control => "control",
        }
    }
}

/// What happened to the connections, all of which only grow, and the files that cannot be read.
#[derive(Debug, Default)]
pub struct Health {
    /// How often a connection to the broker was made again after it was lost.
    pub reconnected: AtomicU64,
    /// Questions of other replicas and on `$SRV` that were not answered, because too many waited. Of those that the
    /// broker kept to itself, one is counted for each subject and second.
    pub unasked: AtomicU64,
    /// Messages for which the queue had no room, or not for this agent; as far as hints go, they were answered with one.
    pub shed: AtomicU64,
    /// Answers that could not be published.
    pub unsent: AtomicU64,
    /// See [`Health::refused_reloads`].
    reloads: reload::Refusals,
}

impl Health {
    /// The watched files whose present state is refused. What was read of them before is in force, unless they have
    /// closed the service.
    #[must_use]
    pub fn refused_reloads(&self) -> Vec<RefusedReload> {
        self.reloads.list()
    }
}

/// A service on a bus. Dropping it does not stop the service; the future of [`Service::serve`] does.
#[derive(Debug, Clone)]
pub struct Running(Arc<Shared>);

impl Running {
    /// The state, and every change of it.
    #[must_use]
    pub fn state(&self) -> watch::Receiver<State> {
        self.0.state.subscribe()
    }

    /// The id of this instance on the bus.
    #[must_use]
    pub fn instance(&self) -> &str {
        &self.0.instance
    }

    /// What happened to the connections, and the files that cannot be read.
    #[must_use]
    pub fn health(&self) -> &Health {
        &self.0.health
    }

    /// How the fetching of token keys goes, by issuer.
    #[must_use]
    pub fn token_keys(&self) -> Vec<KeySourceStatus> {
        self.0.service.verifier().tokens().key_sources()
    }
}

impl Service {
    /// Serves until `shutdown` completes, then drains: takes no new message, finishes what was accepted, sends the
    /// answers, and leaves.
    ///
    /// `started` is called once, with a handle to watch the state by; the service takes messages when it is
    /// [`State::Ready`].
    ///
    /// Once `shutdown` has completed this ends within [`ServeOptions::drain`] and [`Service::LEAVING`], whether the broker
    /// answers or not; what a method still does then goes on without an answer.
    ///
    /// # Errors
    /// [`ServeError`]: at the start, when the broker or another replica stands in the way; at the end, when accepted
    /// work did not finish in time. A broker that goes away in between is no error: the service waits for it.
    ///
    /// Cancel safety: dropping the future stops the service at once, without draining.
    pub async fn serve(
        &self,
        bus: &BusConfig,
        options: ServeOptions,
        started: impl FnOnce(Running),
        shutdown: impl Future<Output = ()>,
    ) -> Result<(), ServeError> {
        let (state, _) = watch::channel(State::Starting("connecting".to_owned()));
        let shared = Arc::new(Shared {
            service: self.clone(),
            bus: bus.clone(),
            instance: self.verifier().guard().instance().map_or_else(|| Nonce::random().to_text(), str::to_owned),
            options,
            state,
            started: time::OffsetDateTime::now_utc(),
            health: Health::default(),
            lines: KeyedLogLimiter::default(),
        });
        started(Running(Arc::clone(&shared)));
        tracing::info!(
            target: "sealwire::serve",
            audience = %shared.service.endpoint().audience(),
            urls = bus.urls.join(", "),
            "starting: connects to the broker, and looks for other replicas for half a second"
        );
        let mut shutdown = std::pin::pin!(shutdown);

        // Answers and discovery have their own connection: a message that breaks the agents' one delays neither.
        let control = tokio::select! {
            biased;
            () = &mut shutdown => {
                shared.leave().await;
                return Ok(());
            }
            control = Control::start(Arc::clone(&shared)) => control?,
        };
        let reloads = EndedWithUs(reload::start(Arc::clone(&shared)));
        let run = async {
            tokio::select! {
                served = shared.run(&control) => served.map(Some),
                () = &mut shutdown => Ok(None),
            }
        };
        let outcome = match run.await {
            Err(error) => Err(error),
            Ok(None) => Ok(()),
            Ok(Some(ingress)) => {
                let mut agreement = control.agreement();
                let lost = tokio::select! {
                    () = &mut shutdown => None,
                    error = agreement.lost() => Some(error),
                };
                if let Some(error) = &lost {
                    tracing::error!(target: "sealwire::serve", %error, "stopping");
                    // Nothing more is admitted, and no probe vouches for this replica any more.
                    drop(tokio::time::timeout(CLOSE, self.verifier().guard().close()).await);
                }
                shared.state.send_replace(State::Draining);
                tracing::info!(target: "sealwire::serve", instance = %shared.instance, "draining");
                let drained = ingress.drain(shared.options.drain).await;
                lost.map_or(drained, Err)
            }
        };
        // Everything accepted is answered: only now does this instance stop answering on the bus.
        control.finish().await;
        drop(reloads);
        shared.leave().await;
        outcome
    }

    /// How long leaving takes at most once [`ServeOptions::drain`] is over or was not needed, whatever the broker does: the
    /// confirmation of the last answers, the end of the connections, and the guard's last state.
    pub const LEAVING: Duration = Duration::from_secs(8);
}

/// A task that is aborted with whoever holds this.
#[derive(Debug)]
struct EndedWithUs(JoinHandle<()>);

impl Drop for EndedWithUs {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// How long the guard may take to write its last state.
const CLOSE: Duration = Duration::from_secs(2);
const _: () = assert!(CLOSE.as_secs() + control::CONFIRM.as_secs() < Service::LEAVING.as_secs());

impl Shared {
    /// The last steps.
    async fn leave(&self) {
        if tokio::time::timeout(CLOSE, self.service.verifier().guard().close()).await.is_err() {
            tracing::warn!(target: "sealwire::serve", "the replay guard did not end in time");
        }
        self.state.send_replace(State::Stopped);
        tracing::info!(target: "sealwire::serve", instance = %self.instance, "stopped");
    }

    /// Gets ready and starts to take messages.
    async fn run(self: &Arc<Self>, control: &Control) -> Result<Ingress, ServeError> {
        let mut agreement = control.agreement();
        agreement.reach().await?;
        self.service.verifier().guard().serving();
        tokio::select! {
            ingress = self.open(control) => ingress,
            error = agreement.lost() => Err(error),
        }
    }

    /// Waits for the guard, and subscribes.
    async fn open(self: &Arc<Self>, control: &Control) -> Result<Ingress, ServeError> {
        // What arrives before the guard can vouch for it would be refused as stale. Without a subscription its sender
        // hears "no responders" at once, which is better.
        let mut said = String::new();
        while let Some(reason) = self.service.verifier().guard().not_ready() {
            // The rest of the time is in the state; in the log, once is enough.
            let kind: String = reason.chars().filter(|c| !c.is_ascii_digit()).collect();
            if *self.state.borrow() != State::Starting(reason.clone()) {
                self.state.send_replace(State::Starting(reason.clone()));
            }
            if kind != said {
                tracing::info!(target: "sealwire::serve", "waiting: {reason}");
                said = kind;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let ingress = Ingress::start(Arc::clone(self), control.answers()).await?;
        self.state.send_replace(State::Ready);
        let endpoint = self.service.endpoint();
        tracing::info!(
            target: "sealwire::serve",
            audience = %endpoint.audience(),
            subject = endpoint.subscription(),
            instance = %self.instance,
            guard = self.service.verifier().guard().kind(),
            revision = %self.service.policy().revision(),
            "ready"
        );
        Ok(ingress)
    }

    /// When this instance started, in milliseconds since the Unix epoch.
    fn started_ms(&self) -> u64 {
        u64::try_from(self.started.unix_timestamp_nanos() / 1_000_000).unwrap_or(0)
    }

    /// Where answers to this instance itself go: nobody else may publish there, nor hear what its guard is told.
    fn inbox(&self) -> String {
        format!("{}.replica.{}", self.service.endpoint().service_inbox(), self.instance)
    }

    /// A question is not answered, or more than one.
    fn unasked(&self) {
        self.health.unasked.fetch_add(1, Ordering::Relaxed);
        if let Some(suppressed) = self.lines.check(&(Link::Control, "questions")) {
            tracing::warn!(target: "sealwire::bus", suppressed, "too many questions: some are not answered");
        }
    }

    /// What happens to a connection.
    fn heard(&self, link: Link, event: nats::Event) {
        let name = link.as_str();
        match event {
            nats::Event::Connected => {
                self.health.reconnected.fetch_add(1, Ordering::Relaxed);
                tracing::info!(target: "sealwire::bus", link = name, "connected");
                self.state.send_if_modified(|state| {
                    let was_lost = link == Link::Agents && matches!(state, State::Interrupted(why) if why == LOST);
                    if was_lost {
                        *state = State::Ready;
                    }
                    was_lost
                });
            }
            nats::Event::Disconnected(why) => {
                tracing::warn!(target: "sealwire::bus", link = name, why, "the connection to the broker is lost");
                self.state.send_if_modified(|state| {
                    let was_ready = link == Link::Agents && *state == State::Ready;
                    if was_ready {
                        *state = State::Interrupted(LOST.to_owned());
                    }
                    was_ready
                });
            }
            nats::Event::Moved => {
                tracing::info!(target: "sealwire::bus", link = name, "the broker is about to go: connected to another");
            }
            nats::Event::Failed(why) => {
                if let Some(suppressed) = self.lines.check(&(link, "failed")) {
                    tracing::warn!(target: "sealwire::bus", link = name, why, suppressed, "not connected");
                }
            }
            // As many as the broker likes, and it may be others that bring it to.
            nats::Event::PublishForbidden(subject) | nats::Event::SubscribeForbidden(subject) => {
                if let Some(suppressed) = self.lines.check(&(link, "forbidden")) {
                    let subject = crate::name::shown(&subject);
                    tracing::warn!(
                        target: "sealwire::bus",
                        link = name,
                        subject,
                        suppressed,
                        "the broker forbids this user a subject"
                    );
                }
            }
            nats::Event::Flooded(_) => self.unasked(),
            nats::Event::Error(error) => {
                if let Some(suppressed) = self.lines.check(&(link, "error")) {
                    tracing::warn!(target: "sealwire::bus", link = name, error, suppressed, "connection");
                }
            }
        }
    }
}

/// Why a service is interrupted that connects anew.
const LOST: &str = "the connection to the broker is lost";
