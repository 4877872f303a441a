//! What a service's tasks share, and what they learn from the connections.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::options::ServeOptions;
use super::state::{Health, State};
use crate::log_limiter::KeyedLogLimiter;
use crate::name::Name;
use crate::nats::{self, BusConfig};
use crate::service::Service;

/// What a service's tasks share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) service: Service,
    pub(super) bus: BusConfig,
    pub(super) instance: String,
    /// The instance's name, by which callers address it.
    pub(super) replica: Name,
    pub(super) options: ServeOptions,
    pub(super) state: watch::Sender<State>,
    pub(super) started: time::OffsetDateTime,
    pub(super) health: Health,
    /// Limits log lines about what others can cause at the connections.
    pub(super) lines: KeyedLogLimiter<(Link, &'static str)>,
    /// What would interrupt the service, whether it has started or not.
    pub(super) interruptions: Mutex<BTreeMap<Interruption, String>>,
    pub(super) queue: QueueLevel,
}

/// How much waits and is under way.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Queued {
    pub(super) waiting: usize,
    pub(super) running: usize,
}

/// Asks the queue of messages, once there is one.
#[derive(Default)]
pub(super) struct QueueLevel(OnceLock<Box<dyn Fn() -> Queued + Send + Sync>>);

impl QueueLevel {
    /// From now on, `read` says it. Only the first counts: a service has one queue.
    pub(super) fn ask(&self, read: impl Fn() -> Queued + Send + Sync + 'static) {
        self.0.get_or_init(|| Box::new(read));
    }

    pub(super) fn read(&self) -> Queued {
        self.0.get().map(|read| read()).unwrap_or_default()
    }
}

impl fmt::Debug for QueueLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.read().fmt(f)
    }
}

/// The connections of a service, except its guard's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Link {
    /// The one that agents reach.
    Agents,
    /// The one for answers, other replicas and `$SRV`.
    Control,
}

impl Link {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Agents => "agents",
            Self::Control => "control",
        }
    }
}

/// A task that is aborted when this is dropped.
#[derive(Debug)]
pub(super) struct EndedWithUs(pub(super) JoinHandle<()>);

impl Drop for EndedWithUs {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Shared {
    /// When this instance started, in milliseconds since the Unix epoch.
    pub(super) fn started_ms(&self) -> u64 {
        u64::try_from(self.started.unix_timestamp_nanos() / 1_000_000).unwrap_or(0)
    }

    /// Where answers to this instance go: nobody else may publish there, or hear what its guard is told.
    pub(super) fn inbox(&self) -> String {
        format!("{}.replica.{}", self.service.endpoint().service_inbox(), self.instance)
    }

    /// Records that a question, or more than one, is not answered.
    pub(super) fn unasked(&self) {
        self.health.unasked.fetch_add(1, Ordering::Relaxed);
        if let Some(suppressed) = self.lines.check(&(Link::Control, "questions")) {
            tracing::warn!(target: "sealwire::bus", suppressed, "too many questions: some are not answered");
        }
    }

    /// Sets why messages would be of no use at the moment, or that this is over. The state follows once the service has
    /// started.
    pub(super) fn interrupt(&self, by: Interruption, reason: Option<String>) {
        let mut interruptions = self.interruptions.lock().unwrap_or_else(PoisonError::into_inner);
        match reason {
            Some(reason) => drop(interruptions.insert(by, reason)),
            None => drop(interruptions.remove(&by)),
        }
        let now = in_force(&interruptions);
        // Under the lock: two changes must not overtake each other.
        self.state.send_if_modified(|state| {
            let changes = matches!(state, State::Ready | State::Interrupted(_)) && *state != now;
            if changes {
                *state = now;
            }
            changes
        });
    }

    /// Why messages would be of no use at the moment: the connection, closed files, the revocations, and the application.
    pub(super) fn interruptions(&self) -> [Option<String>; 4] {
        let interruptions = self.interruptions.lock().unwrap_or_else(PoisonError::into_inner);
        let by = |interruption| interruptions.get(&interruption).cloned();
        [by(Interruption::Lost), by(Interruption::Closed), by(Interruption::Stale), by(Interruption::Application)]
    }

    /// Whether the connection that takes messages is lost.
    #[cfg(feature = "metrics")]
    pub(super) fn is_lost(&self) -> bool {
        let [lost, ..] = self.interruptions();
        lost.is_some()
    }

    /// The service has started.
    pub(super) fn has_started(&self) {
        let interruptions = self.interruptions.lock().unwrap_or_else(PoisonError::into_inner);
        self.state.send_replace(in_force(&interruptions));
    }

    /// Handles an event of a connection.
    pub(super) fn heard(&self, link: Link, event: nats::Event) {
        let name = link.as_str();
        match event {
            nats::Event::Connected => {
                self.health.reconnected.fetch_add(1, Ordering::Relaxed);
                tracing::info!(target: "sealwire::bus", connection = name, "connected");
                if link == Link::Agents {
                    self.interrupt(Interruption::Lost, None);
                }
            }
            nats::Event::Disconnected(reason) => {
                tracing::warn!(target: "sealwire::bus", connection = name, reason, "the connection to the broker is lost");
                if link == Link::Agents {
                    self.interrupt(Interruption::Lost, Some(LOST.to_owned()));
                }
            }
            nats::Event::Moved => {
                tracing::info!(target: "sealwire::bus", connection = name, "moved to a new connection, before the broker ends the old one");
            }
            nats::Event::LoginEnds(reason) => {
                if let Some(suppressed) = self.lines.check(&(link, "login")) {
                    tracing::warn!(target: "sealwire::bus", connection = name, reason, suppressed, "the broker login ends soon");
                }
            }
            nats::Event::Failed(reason) => {
                if let Some(suppressed) = self.lines.check(&(link, "failed")) {
                    tracing::warn!(target: "sealwire::bus", connection = name, reason, suppressed, "not connected");
                }
            }
            // The broker can send any number of these, and others may cause it to.
            nats::Event::PublishForbidden(subject) | nats::Event::SubscribeForbidden(subject) => {
                if let Some(suppressed) = self.lines.check(&(link, "forbidden")) {
                    let subject = crate::name::shown(&subject);
                    tracing::warn!(
                        target: "sealwire::bus",
                        connection = name,
                        subject,
                        suppressed,
                        "the broker forbids this user a subject"
                    );
                }
            }
            nats::Event::Flooded(_) => self.unasked(),
            nats::Event::Error(error) => {
                if let Some(suppressed) = self.lines.check(&(link, "error")) {
                    tracing::warn!(target: "sealwire::bus", connection = name, error, suppressed, "the broker reports an error");
                }
            }
        }
    }
}

/// Passes on what the application says about itself.
pub(super) async fn follow(shared: Arc<Shared>) {
    let Some(mut told) = shared.options.interrupted.clone() else { return };
    loop {
        let reason = told.borrow_and_update().clone();
        shared.interrupt(Interruption::Application, reason);
        if told.changed().await.is_err() {
            return;
        }
    }
}

/// What can interrupt a service. Of several, the first is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Interruption {
    /// The connection that takes messages is lost.
    Lost,
    /// A file that takes rights away cannot be read.
    Closed,
    /// What operators have revoked is not known.
    Stale,
    /// [`ServeOptions::interrupted`](super::ServeOptions::interrupted) says so.
    Application,
}

fn in_force(interruptions: &BTreeMap<Interruption, String>) -> State {
    interruptions.values().next().map_or(State::Ready, |reason| State::Interrupted(reason.clone()))
}

/// Why a service that reconnects is interrupted.
const LOST: &str = "the connection to the broker is lost";
