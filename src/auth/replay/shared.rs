//! The guard for any number of replicas: first the nonces of this process, then one atomic check in a JetStream stream that all
//! replicas of a service ask. Never admits without a fresh, understood answer from a stream that it has verified.
//!
//! The stream stores each id `<owner>.<nonce>` once and says so; of any number of replicas that ask, one is told "new". The rest is
//! about when that answer can be relied on:
//! - the stream remembers ids for longer than any message lives. How far back its memory really reaches is watched
//!   (`shared/retention.rs`), and since when some replica with this guard is known to have been there; what was issued before is
//!   stale;
//! - the answer must come from the verified stream, over a connection that was not interrupted, with a sequence number above all
//!   that were seen before the question;
//! - after the answer the clock is read again: otherwise a process that was paused in between could carry on after the stream has
//!   forgotten the id;
//! - if a check that got no answer asks again and is told that the id is known, the id is its own only if a number that it alone
//!   knows was stored with it, in the same memory and above the numbers seen before its first question;
//! - this machine's clock and the broker's differ by no more than the skew: they are compared at every verification, and between
//!   two comparisons the wall clock is checked against the monotonic clock.
//!
//! What remains assumed: the brokers' clocks do not leap ahead by more than half a minute between two comparisons, and
//! a broker that acknowledges has stored.
//!
//! A check costs one round trip, so many messages are checked at once and under no lock. While the stream is not verified, checks
//! are refused at once instead of waiting.

mod check;
mod connect;
mod fit;
mod in_flight;
mod link;
mod liveness;
mod monitor;
mod outcome_fit;
mod outcomes;
mod probe;
mod publish_check;
mod retention;
mod stream;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use futures_util::future::BoxFuture;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::counters::Counters;
use super::latency::Recorder;
use super::shared_config::{ANSWER_WITHIN, SharedConfig, SharedOpenError};
use super::{AdmitError, GuardIdentity, GuardStats, LocalGuard, Outage, ReplayGuard, SharedStats};
use crate::auth::outcomes::OutcomeStore;
use crate::clock::Clock;
use crate::name::Name;
use crate::nats::BusConfig;
use crate::wire::Nonce;

use check::Shared;
use in_flight::InFlightLimiter;
use link::Link;
use monitor::GuardMonitor;
use outcomes::SharedOutcomes;
use stream::StreamError;

/// Admits messages once among all replicas of a service.
///
/// It has its own connection, which it rebuilds when that is no longer of use, a task that verifies the stream every 750 ms, and
/// one that looks after the outcomes of idempotent calls; [`ReplayGuard::close`] ends them and waits.
pub struct SharedGuard {
    shared: Arc<Shared>,
    outcomes: Arc<SharedOutcomes>,
    tasks: Mutex<Option<Tasks>>,
}

/// The sender that ends the tasks, and the tasks: the guard's monitor, and the one that looks after the outcomes.
type Tasks = (watch::Sender<bool>, [JoinHandle<()>; 2]);

impl SharedGuard {
    /// Connects, finds or creates the stream, and verifies it. Must be called in a Tokio runtime.
    ///
    /// # Errors
    /// [`SharedOpenError::Unfit`] blames the stream's set-up, [`SharedOpenError::NotReady`] the broker after `open_within`
    /// of trying, and all others the configuration.
    ///
    /// Cancel safe: nothing is left behind but the stream.
    pub async fn open(config: SharedConfig, bus: BusConfig, clock: Arc<dyn Clock>) -> Result<Self, SharedOpenError> {
        let local = LocalGuard::unfenced(config.window, config.nonce_limits, Arc::clone(&clock))?;
        if config.window.skew_s == 0 {
            return Err(SharedOpenError::NoSkew);
        }
        if Name::new(&config.instance).is_err() {
            return Err(SharedOpenError::Instance(config.instance));
        }
        if config.max_messages.min(config.max_outcomes).min(config.outcome_bytes) <= 0 {
            return Err(SharedOpenError::NoRoom);
        }
        if !ANSWER_WITHIN.contains(&config.answer_within) {
            return Err(SharedOpenError::AnswerWithin(config.answer_within));
        }
        let shared = Arc::new(Shared {
            flight: InFlightLimiter::new(config.in_flight, config.in_flight_per_owner),
            clock,
            local,
            link: ArcSwap::from_pointee(Link::down(Outage::Unverified, "")),
            fence: AtomicU64::new(0),
            serving: AtomicBool::new(false),
            entries_wanted: AtomicU64::new(1),
            entries_made: AtomicU64::new(0),
            doubted: AtomicBool::new(false),
            identity: ArcSwap::from_pointee(GuardIdentity::new(KIND, config.window)),
            peers: Mutex::default(),
            ahead_ms: AtomicI64::new(0),
            login_until: AtomicU64::new(0),
            wake: Notify::new(),
            broker_says: Mutex::new(None),
            counters: Counters::default(),
            latency: Recorder::default(),
            unanswered: AtomicU64::new(0),
            interruptions: AtomicU64::new(0),
            config,
        });
        let mut monitor = GuardMonitor::new(Arc::clone(&shared), bus);
        let deadline = Instant::now() + shared.config.open_within;
        let mut said = None;
        loop {
            let step = tokio::select! {
                step = monitor.step() => step,
                // What the broker forbids it does not answer.
                () = shared.forbidden() => Err(StreamError { lasts: true, ..StreamError::new(Outage::Unreachable, FORBIDDEN) }),
            };
            let Err(error) = step else { break };
            if error.outage == Outage::StreamUnfit {
                return Err(SharedOpenError::Unfit(error.detail));
            }
            if error.lasts || Instant::now() >= deadline {
                return Err(SharedOpenError::NotReady(shared.explained(&error.detail)));
            }
            if said != Some(error.outage) {
                let (reason, within_s) = (shared.explained(&error.detail), shared.config.open_within.as_secs());
                tracing::info!(
                    target: "sealwire::replay",
                    outage = %error.outage,
                    reason,
                    within_s,
                    "waiting for the replay guard's stream"
                );
                said = Some(error.outage);
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let (stop, stopped) = watch::channel(false);
        let outcomes = Arc::new(SharedOutcomes::new(Arc::clone(&shared)));
        let tasks = [tokio::spawn(monitor.run(stopped.clone())), tokio::spawn(Arc::clone(&outcomes).run(stopped))];
        Ok(Self { shared, outcomes, tasks: Mutex::new(Some((stop, tasks))) })
    }
}

/// What the broker's complaint that follows it is about.
const FORBIDDEN: &str = "the broker does not let this user do what the replay guard needs (SPEC.md, section 19)";

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
    ) -> BoxFuture<'a, Result<(), AdmitError>> {
        Box::pin(async move {
            let answer = self.shared.admit(owner, nonce, iat, exp, received).await;
            self.shared.counters.count(answer);
            answer
        })
    }

    fn has_seen(&self, owner: &Name, nonce: &Nonce) -> bool {
        self.shared.local.has_seen(owner, nonce)
    }

    fn kind(&self) -> &'static str {
        KIND
    }

    fn outcomes(&self) -> Option<Arc<dyn OutcomeStore>> {
        Some(Arc::clone(&self.outcomes) as Arc<dyn OutcomeStore>)
    }

    fn identity(&self) -> GuardIdentity {
        self.shared.identity.load().as_ref().clone()
    }

    fn instance(&self) -> Option<&str> {
        Some(&self.shared.config.instance)
    }

    fn peers_seen(&self) -> BTreeMap<String, Duration> {
        self.shared.peers()
    }

    fn serving(&self) {
        self.shared.serving.store(true, Ordering::SeqCst);
        self.shared.enter();
    }

    fn outsider(&self) {
        self.shared.doubted.store(true, Ordering::SeqCst);
        self.shared.enter();
    }

    fn not_ready(&self) -> Option<String> {
        match &**self.shared.link.load() {
            Link::Down { outage, detail } if detail.is_empty() => return Some(outage.to_string()),
            Link::Down { outage, detail } => return Some(format!("{outage}: {}", self.shared.explained(detail))),
            Link::Up(up) => {
                if let Err(AdmitError::Unavailable(outage)) = self.shared.agree(up) {
                    return Some(outage.to_string());
                }
            }
        }
        let (now, fence) = (self.shared.clock.now_s(), self.fence());
        if now <= fence {
            let wait_s = fence - now + 1;
            return Some(format!("the guard stream does not vouch for older messages yet: ready in {wait_s} s"));
        }
        // The local guard has no fence, but it notices a clock that went back.
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
            login_until: Some(shared.login_until.load(Ordering::Relaxed)).filter(|until| *until > 0),
        });
        stats
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some((stop, tasks)) = tasks {
                let _ = stop.send(true);
                for task in tasks {
                    let aborting = task.abort_handle();
                    match tokio::time::timeout(CLOSE, task).await {
                        Ok(Ok(())) => {}
                        // It was dropped with its runtime.
                        Ok(Err(error)) if !error.is_panic() => {}
                        Ok(Err(_)) => {
                            tracing::error!(target: "sealwire::replay", "a task of the replay guard had panicked");
                        }
                        // Each of its waits has a bound, so this machine is too slow to run it.
                        Err(_) => aborting.abort(),
                    }
                }
            }
            self.shared.mark_down(None, Outage::Closed, "");
            self.shared.local.close().await;
        })
    }
}

/// How long a task may take to end.
const CLOSE: Duration = Duration::from_secs(1);

impl Drop for SharedGuard {
    fn drop(&mut self) {
        // The tasks end by themselves when the sender is gone, but nobody is left to wait for them.
        if let Some((_, tasks)) = self.tasks.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            tasks.iter().for_each(JoinHandle::abort);
        }
        // The client's event callback holds the shared state, and the link in it holds the client: a cycle, broken here.
        self.shared.mark_down(None, Outage::Closed, "");
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

const KIND: &str = "shared";
