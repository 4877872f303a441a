//! A service on a bus: subscribe, keep going, and stop without losing what was accepted.
//! Never starts beside a replica whose replays it could not see.

mod agreement;
mod control;
mod control_handler;
mod discovery;
mod error;
mod ingress;
mod options;
mod outlet;
mod packages;
mod questions;
mod reload;
#[cfg(feature = "metrics")]
mod report;
mod revocation;
mod shared;
mod state;
mod stream_control;
mod watched;
mod work;

use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{oneshot, watch};

use super::Service;
use crate::auth::KeySourceStatus;
use crate::log_limiter::KeyedLogLimiter;
use crate::name::Name;
use crate::nats::BusConfig;
use crate::record::Recorder;
use crate::wire::Nonce;
use control::Control;
pub use error::ServeError;
use ingress::Ingress;
pub use options::ServeOptions;
use shared::{EndedWithUs, QueueLevel, Shared};
pub use state::{Condition, Health, RefusedReload, State};
pub use watched::Watched;

/// A service on a bus. Dropping this does not stop the service; dropping the future of [`Service::serve`] does.
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

    /// Everything that must hold for the service to be of use, for a readiness check. None is missing because it holds.
    #[must_use]
    pub fn conditions(&self) -> Vec<Condition> {
        let (shared, verifier) = (&*self.0, self.0.service.verifier());
        let state = shared.state.borrow().clone();
        let subscribed = match state {
            State::Ready | State::Interrupted(_) => None,
            State::Starting(reason) => Some(reason),
            State::Draining | State::Stopped => Some(state.as_str().to_owned()),
        };
        let [connected, files, stale, application] = shared.interruptions();
        vec![
            Condition { name: "subscribed", unmet: subscribed },
            Condition { name: "connected", unmet: connected },
            Condition { name: "policy", unmet: shared.service.policy().revision().why().map(str::to_owned) },
            Condition { name: "guard", unmet: verifier.guard().not_ready() },
            Condition { name: "files", unmet: files },
            Condition { name: "revocation", unmet: stale },
            Condition { name: "application", unmet: application },
        ]
    }

    /// What happened to the connections, and which files cannot be read.
    #[must_use]
    pub fn health(&self) -> &Health {
        &self.0.health
    }

    /// The state of fetching token keys, by issuer.
    #[must_use]
    pub fn token_keys(&self) -> Vec<KeySourceStatus> {
        self.0.service.verifier().tokens().key_sources()
    }
}

impl Service {
    /// Serves until `shutdown` completes, then drains: takes no new messages, finishes what was accepted, sends the
    /// answers, and leaves.
    ///
    /// `started` is called once, with a handle for watching the state; the service takes messages once that is
    /// [`State::Ready`].
    ///
    /// Once `shutdown` has completed, this ends within [`ServeOptions::drain`] plus [`Service::LEAVING`], whether the
    /// broker answers or not; methods that still run then go on without an answer.
    ///
    /// # Errors
    /// [`ServeError`]: at the start, if the broker or another replica prevents it; at the end, if accepted work did not
    /// finish in time. A broker that goes away in between is no error: the service waits for it.
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
        let instance = self.verifier().guard().instance().or_else(|| self.recorder().map(Recorder::session));
        let instance = instance.map_or_else(|| Nonce::random().to_text(), str::to_owned);
        self.0.spans.name(&instance);
        let shared = Arc::new(Shared {
            service: self.clone(),
            bus: bus.in_one_order(),
            replica: Name::new(&instance).map_err(|error| ServeError::Instance(error.to_string()))?,
            instance,
            options,
            state,
            started: time::OffsetDateTime::now_utc(),
            health: Health::default(),
            lines: KeyedLogLimiter::default(),
            interruptions: Mutex::default(),
            queue: QueueLevel::default(),
        });
        if shared.options.tell_agents {
            shared.service.0.meters.switch_on();
        }
        started(Running(Arc::clone(&shared)));
        tracing::info!(
            target: "sealwire::serve",
            audience = %shared.service.endpoint().audience(),
            urls = bus.shown(),
            "starting: connects to the broker, and looks for other replicas for half a second"
        );
        let mut shutdown = std::pin::pin!(shutdown);

        // Answers and discovery have their own connection: a message that breaks the agents' connection delays neither, as long as both
        // connections are at one broker.
        let control = tokio::select! {
            biased;
            () = &mut shutdown => {
                shared.leave().await;
                self.close_record().await;
                return Ok(());
            }
            control = Control::start(Arc::clone(&shared)) => control?,
        };
        let reloads = EndedWithUs(reload::start(Arc::clone(&shared)));
        let told = EndedWithUs(tokio::spawn(shared::follow(Arc::clone(&shared))));
        let revocations = EndedWithUs(revocation::start(Arc::clone(&shared)));
        let packages = packages::start(Arc::clone(&shared)).map(EndedWithUs);
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
                    // Nothing more is admitted, and no further probe vouches for this replica.
                    drop(tokio::time::timeout(CLOSE, self.verifier().guard().close()).await);
                }
                shared.state.send_replace(State::Draining);
                tracing::info!(target: "sealwire::serve", instance = %shared.instance, "draining");
                let drained = self.drain(ingress, shared.options.drain).await;
                lost.map_or(drained, Err)
            }
        };
        // Everything accepted is answered: only now does this instance stop answering on the bus.
        control.finish().await;
        drop((reloads, told, revocations, packages));
        shared.leave().await;
        self.close_record().await;
        outcome
    }

    /// Ends what was accepted: calls, and then tasks.
    async fn drain(&self, ingress: Ingress, limit: Duration) -> Result<(), ServeError> {
        let (ended, has_ended) = oneshot::channel();
        let calls = async {
            let drained = ingress.drain(limit).await;
            let _ = ended.send(());
            drained
        };
        let tasks = self.0.tasks.drain(limit, async { drop(has_ended.await) });
        let (drained, stopped) = tokio::join!(calls, tasks);
        if stopped > 0 {
            tracing::warn!(target: "sealwire::serve", stopped, "tasks are stopped: nobody knows what they came to");
        }
        drained
    }

    /// Ends the session of the record, whatever the disk does.
    async fn close_record(&self) {
        if let Some(recorder) = self.recorder().cloned() {
            drop(tokio::task::spawn_blocking(move || recorder.finish()).await);
        }
    }

    /// The longest that leaving takes once [`ServeOptions::drain`] is over or was not needed, whatever the broker does:
    /// confirming the last answers, closing the connections, and writing the guard's last state.
    pub const LEAVING: Duration = Duration::from_secs(8);
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

    /// Gets ready and starts taking messages.
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
        // Messages that arrive before the guard can vouch for them would be refused as stale. Without a subscription,
        // their senders hear "no responders" at once, which is better.
        let mut said = String::new();
        let verifier = self.service.verifier();
        while let Some(reason) =
            verifier.guard().not_ready().or_else(|| verifier.revocations().stale().map(str::to_owned))
        {
            // The state shows the time left; in the log, once is enough.
            let kind: String = reason.chars().filter(|c| !c.is_ascii_digit()).collect();
            if *self.state.borrow() != State::Starting(reason.clone()) {
                self.state.send_replace(State::Starting(reason.clone()));
            }
            if kind != said {
                tracing::info!(target: "sealwire::serve", %reason, "not ready yet");
                said = kind;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let ingress = Ingress::start(Arc::clone(self), control.answers(), control.outlet()).await?;
        self.has_started();
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
}
