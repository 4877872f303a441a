//! Whether all replicas of this service remember nonces in one place: asked at the start, and every second while it
//! serves.
//! Never takes an unproved answer for a reason to serve.
//!
//! A captured message runs once in each memory that never saw it. So replicas whose guards differ in anything (kind, stream,
//! its creation, window, skew) do not serve beside each other: one that starts refuses to, and of two that run, the one that
//! started later stops. Both say so.
//!
//! An answer is proved if the service's key signed it. Without a key, nothing is proved, and everything that arrives is
//! believed, since nobody but the service's own user may publish there. To a service with a key, an answer without a proof
//! comes from somebody with that user: a replica without the key, or with the next one. Such an answer can keep this replica
//! from starting, and makes its guard doubt while it serves; it cannot stop a replica that serves, nor show that this one
//! was heard.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior};

use super::control_handler::ControlHandler;
use super::error::ServeError;
use super::shared::{Link, Shared};
use super::state::State;
use crate::name::shown;
use crate::nats::Session;
use crate::service::metadata;
use crate::service::replicas::{Asking, MOST, NotAsked, Said};
use crate::wire::{ServicePublicKey, Unverifiable};

/// What this replica knows of the others.
#[derive(Debug)]
pub(super) struct Agreement {
    handler: Arc<ControlHandler>,
    shared: Arc<Shared>,
    sessions: watch::Receiver<Option<Arc<Session>>>,
    /// For how many rounds in a row each other replica has differed in something that may differ for a moment.
    lasting: Streaks,
    /// For how many rounds in a row each replica that names our stream has left no probe there.
    traceless: Streaks,
    /// What was logged, and about whom.
    told: BTreeSet<(String, &'static str)>,
}

/// Another replica that may not serve beside this one.
#[derive(Debug)]
struct Conflict {
    instance: String,
    guard: String,
    reason: String,
    started_ms: u64,
    /// It takes messages, or finishes some.
    serves: bool,
    /// The conflict cannot go away by itself.
    for_good: bool,
    /// The service's key signed the answer, or there is no key.
    is_proved: bool,
}

/// What one round has heard.
#[derive(Debug, Default)]
struct Round {
    heard_own: bool,
    others: BTreeSet<String>,
    conflicts: Vec<Conflict>,
}

/// How long replicas have to answer.
const LISTEN: Duration = Duration::from_millis(250);
/// How often they are asked while this one serves. Shorter than any guard waits before it executes anything, so that two
/// replicas that came up unseen find each other first.
const EVERY: Duration = Duration::from_secs(1);
/// A replica that was not heard for this long may have been missed by one that started meanwhile.
const UNHEARD: Duration = Duration::from_millis(2_500);
/// Rounds for which the streams may differ: after one was removed, each replica finds the next one within a second or
/// two.
const ROUNDS: u32 = 4;
/// Rounds after which a replica on the same stream must have left a probe there: one each second, more after a disturbance.
const TRACELESS_ROUNDS: u32 = 15;
/// An older probe proves nothing.
const TRACE: Duration = Duration::from_secs(10);

impl Agreement {
    pub(super) fn new(handler: Arc<ControlHandler>, sessions: watch::Receiver<Option<Arc<Session>>>) -> Self {
        let (lasting, traceless, told) = (Streaks::default(), Streaks::default(), BTreeSet::new());
        Self { shared: Arc::clone(&handler.shared), handler, sessions, lasting, traceless, told }
    }

    /// Asks who else serves this audience, before this replica does.
    ///
    /// This instance answers as well, which proves that the question got through. Two that start at the same moment see
    /// each other and both refuse: a second try finds one of them.
    pub(super) async fn reach(&mut self) -> Result<(), ServeError> {
        let shared = Arc::clone(&self.shared);
        let blind = || {
            let endpoint = shared.service.endpoint();
            let (audience, subject) = (endpoint.audience().to_string(), metadata::peers(endpoint));
            ServeError::Blind { audience, subject, below: format!("{}.replica", endpoint.service_inbox()) }
        };
        let (mut heard_own, mut rounds) = (false, 0);
        let refused = loop {
            let Round { heard_own: now, conflicts, .. } = self.round().await.map_err(|NotAsked| blind())?;
            heard_own |= now;
            rounds += 1;
            let lasts = rounds > ROUNDS;
            let differs = !conflicts.is_empty();
            if let Some(conflict) = conflicts.into_iter().find(|conflict| conflict.for_good || lasts) {
                break conflict;
            }
            if rounds >= 2 && !differs {
                return if heard_own { Ok(()) } else { Err(blind()) };
            }
        };
        let error = self.refusal(&refused);
        tracing::error!(target: "sealwire::serve", %error, "not starting");
        // Stays so that the others hear of this one for as long as they need to say so, too.
        let rounds = if refused.for_good { 1 } else { ROUNDS };
        tokio::time::sleep((EVERY + LISTEN) * rounds).await;
        Err(error)
    }

    /// Asks again and again. Ends when this replica has to stop; the guard is told about anything that makes it doubt.
    pub(super) async fn lost(&mut self) -> ServeError {
        let guard = Arc::clone(self.shared.service.verifier().guard());
        let mut ticks = tokio::time::interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut heard_at = Instant::now();
        let mut is_deaf = false;
        loop {
            ticks.tick().await;
            let round = self.round().await.unwrap_or_default();
            let unheard = heard_at.elapsed();
            if unheard > UNHEARD {
                // A replica that started since, with whatever guard, may not have heard this one.
                guard.outsider();
                if !std::mem::replace(&mut is_deaf, true) {
                    tracing::error!(
                        target: "sealwire::serve",
                        subject = metadata::peers(self.shared.service.endpoint()),
                        "does not hear its own answers: another replica could start unheard, so until it does nothing is admitted"
                    );
                }
            }
            if round.heard_own {
                heard_at = Instant::now();
                if std::mem::take(&mut is_deaf) {
                    tracing::info!(target: "sealwire::serve", after_s = unheard.as_secs(), "hears its own answers again");
                }
            }
            for conflict in &round.conflicts {
                if !conflict.for_good && self.lasting.one_more(&conflict.instance) < ROUNDS {
                    continue;
                }
                if !conflict.serves {
                    self.tell(conflict, "another replica with another replay guard tries to start beside this one");
                    continue;
                }
                guard.outsider();
                if !conflict.is_proved {
                    self.deplore(conflict);
                    continue;
                }
                if (self.shared.started_ms(), &self.shared.instance) > (conflict.started_ms, &conflict.instance) {
                    return self.refusal(conflict);
                }
                self.tell(conflict, "another replica with another replay guard serves beside this one, and must stop");
            }
        }
    }

    /// Logs the conflict, once for each other replica.
    fn tell(&mut self, conflict: &Conflict, message: &'static str) {
        if self.told.len() < MOST && self.told.insert((conflict.instance.clone(), message)) {
            let Conflict { instance, guard, reason, .. } = conflict;
            tracing::error!(target: "sealwire::serve", %instance, %guard, %reason, "{message}");
        }
    }

    /// Logs the conflict once a second, for as long as it lasts.
    fn deplore(&self, conflict: &Conflict) {
        if let Some(suppressed) = self.shared.lines.check(&(Link::Control, "unproved")) {
            let Conflict { instance, guard, reason, .. } = conflict;
            tracing::error!(
                target: "sealwire::serve",
                %instance,
                %guard,
                %reason,
                suppressed,
                "nothing is admitted beside what does not sign with the service's key, and says that it has another guard"
            );
        }
    }

    /// Asks once.
    async fn round(&mut self) -> Result<Round, NotAsked> {
        let session = self.sessions.borrow().clone().filter(|session| session.is_up()).ok_or(NotAsked)?;
        let (handler, shared) = (Arc::clone(&self.handler), Arc::clone(&self.shared));
        let endpoint = shared.service.endpoint();
        let keys: Vec<ServicePublicKey> =
            shared.service.verifier().service_key().map(|key| key.public()).into_iter().collect();
        let inbox = shared.inbox();
        let asking = Asking { session: &session, mailbox: &handler.mailbox, endpoint, keys: &keys, inbox: &inbox };
        let mut round = Round::default();
        let each = |other: Said| {
            let unproved = other.proof.err().filter(|_| !keys.is_empty());
            if other.instance == shared.instance {
                round.heard_own |= unproved.is_none();
            } else {
                if let Some(reason) = unproved {
                    self.disbelieve(&other, reason);
                }
                round.conflicts.extend(self.conflict(&other, unproved));
                round.others.insert(other.instance);
            }
            false
        };
        let heard_all = asking.round(LISTEN, each).await?;
        // A replica that hears too much may have missed what mattered.
        round.heard_own &= heard_all;
        let differs: BTreeSet<&str> = round.conflicts.iter().map(|conflict| conflict.instance.as_str()).collect();
        self.lasting.0.retain(|instance, _| differs.contains(instance.as_str()));
        self.traceless.0.retain(|instance, _| round.others.contains(instance));
        Ok(round)
    }

    fn disbelieve(&mut self, other: &Said, reason: Unverifiable) {
        let instance = shown(&other.instance);
        if self.told.len() < MOST && self.told.insert((instance.clone(), "disbelieved")) {
            tracing::warn!(
                target: "sealwire::serve", %instance, %reason,
                "something that calls itself another replica of this service does not sign with the service's key"
            );
        }
    }

    /// Why this other replica may not serve beside us, if it may not.
    fn conflict(&mut self, other: &Said, unproved: Option<Unverifiable>) -> Option<Conflict> {
        let (endpoint, guard) = (self.shared.service.endpoint(), self.shared.service.verifier().guard());
        if other.audience() != endpoint.audience().as_str() || other.subject() != endpoint.subscription() {
            return None;
        }
        let own = guard.identity();
        let (reason, for_good) = match other.identity() {
            _ if own.kind == "local" => ("a local guard remembers for one replica only".to_owned(), true),
            None => ("it does not tell which guard it has".to_owned(), true),
            Some(theirs) => match own.difference(&theirs) {
                Some(reason) => (reason, own.differs_for_good(&theirs)),
                None => (self.traceless(other, &own.stream)?, true),
            },
        };
        let reason = match unproved {
            Some(unproved) => format!("{reason}; nor does it sign with this service's key ({unproved})"),
            None => reason,
        };
        Some(Conflict {
            instance: shown(&other.instance),
            guard: shown(other.guard()),
            reason,
            is_proved: unproved.is_none(),
            started_ms: other.started_ms(),
            serves: other.state() != State::Starting(String::new()).as_str(),
            for_good,
        })
    }

    /// A replica that claims to share our stream, but has left no probe there for long, uses another stream of that
    /// name.
    fn traceless(&mut self, other: &Said, stream: &str) -> Option<String> {
        let guard = self.shared.service.verifier().guard();
        let seen = guard.peers_seen().get(&other.instance).is_some_and(|ago| *ago < TRACE);
        let can_tell = other.guard_is_ready() && guard.not_ready().is_none() && guard.instance().is_some();
        if seen || !can_tell {
            self.traceless.0.remove(&other.instance);
            return None;
        }
        let rounds = self.traceless.one_more(&other.instance);
        (rounds > TRACELESS_ROUNDS)
            .then(|| format!("it names the guard stream `{stream}`, and leaves no trace in ours"))
    }

    fn refusal(&self, conflict: &Conflict) -> ServeError {
        ServeError::AnotherReplica {
            audience: self.shared.service.endpoint().audience().to_string(),
            instance: conflict.instance.clone(),
            guard: conflict.guard.clone(),
            own: self.shared.service.verifier().guard().kind(),
            why: conflict.reason.clone(),
        }
    }
}

/// For how many rounds in a row something was true, by instance; only of those that the last round heard.
#[derive(Debug, Default)]
struct Streaks(BTreeMap<String, u32>);

impl Streaks {
    /// Counts one more round.
    fn one_more(&mut self, instance: &str) -> u32 {
        let rounds = self.0.entry(instance.to_owned()).or_default();
        *rounds = rounds.saturating_add(1);
        *rounds
    }
}
