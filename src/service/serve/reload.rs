//! Polls the watched files for as long as a service is on the bus. The last good state stays in force.
//! Never stays silent about a file that was refused.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;

use super::shared::{Interruption, Shared};
use super::state::RefusedReload;
use super::watched::{Polled, Watched};

/// Polls the watched files until it is aborted.
pub(super) fn start(shared: Arc<Shared>) -> JoinHandle<()> {
    let watches = (0..shared.options.watched.len()).map(|position| watch(Arc::clone(&shared), position));
    let watches = futures_util::future::join_all(watches);
    tokio::spawn(async move { drop(watches.await) })
}

async fn watch(shared: Arc<Shared>, position: usize) {
    let Some(watched) = shared.options.watched.get(position) else { return };
    let mut ticks = tokio::time::interval(shared.options.watch_every.max(Duration::from_millis(10)));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut outcome = Outcome { position, good: Instant::now(), said: None };
    loop {
        ticks.tick().await;
        let polling = Arc::clone(&shared);
        let mut poll = tokio::task::spawn_blocking(move || {
            let watched = polling.options.watched.get(position)?;
            Some((watched.poll)(&polling.service))
        });
        let polled = loop {
            tokio::select! {
                polled = &mut poll => break polled,
                // A file system that hangs counts as one that cannot be read.
                _ = ticks.tick() => outcome.close_if_due(&shared, watched),
            }
        };
        match polled {
            Ok(None | Some(Polled::Waiting)) => {}
            Ok(Some(Polled::InForce)) => outcome.good(&shared),
            Ok(Some(Polled::Applied(done))) => {
                tracing::info!(target: "sealwire::reload", resource = watched.name, "{done}");
                outcome.said = None;
                outcome.good(&shared);
            }
            Ok(Some(Polled::Refused(reason))) => outcome.refused(&shared, watched, reason),
            Err(panic) => outcome.refused(&shared, watched, format!("reading it panicked, report it: {panic}")),
        }
        outcome.close_if_due(&shared, watched);
    }
}

/// The results of polling one [`Watched`].
struct Outcome {
    position: usize,
    /// When the state in force was last seen to match the files.
    good: Instant,
    /// What was last logged, and when.
    said: Option<(String, Instant)>,
}

impl Outcome {
    fn good(&mut self, shared: &Shared) {
        self.good = Instant::now();
        self.update(shared, |refusals, position| {
            refusals.remove(&position);
        });
    }

    fn refused(&mut self, shared: &Shared, watched: &Watched, reason: String) {
        self.enter(shared, watched, false);
        // Tried every two seconds; logged when it is new, and then once a minute.
        if self.said.as_ref().is_some_and(|(said, at)| *said == reason && at.elapsed() < Duration::from_secs(60)) {
            return;
        }
        shared.service.counters().refused("reload");
        tracing::error!(
            target: "sealwire::reload",
            resource = watched.name,
            %reason,
            "REFUSED, the one before stays in force"
        );
        self.said = Some((reason, Instant::now()));
    }

    fn close_if_due(&self, shared: &Shared, watched: &Watched) {
        if watched.closes_after.is_some_and(|bound| self.good.elapsed() >= bound) {
            self.enter(shared, watched, true);
        }
    }

    fn enter(&self, shared: &Shared, watched: &Watched, closed: bool) {
        self.update(shared, |refusals, position| {
            let new = RefusedReload { what: watched.name, since: SystemTime::now(), closed: false };
            let refused = refusals.entry(position).or_insert(new);
            if closed && !refused.closed {
                tracing::error!(
                    target: "sealwire::reload",
                    resource = watched.name,
                    "could not be read for too long: EVERYTHING IS REFUSED until it can be"
                );
            }
            refused.closed |= closed;
        });
    }

    /// Changes the set of refused files, and makes the service refuse everything, or not, accordingly.
    fn update(&self, shared: &Shared, change: impl FnOnce(&mut BTreeMap<usize, RefusedReload>, usize)) {
        let mut refusals = shared.health.reloads.0.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut refusals, self.position);
        let closed = refusals.values().any(|refused| refused.closed);
        shared.service.verifier().suspend(closed);
        shared.interrupt(Interruption::Closed, closed.then(|| CLOSED.to_owned()));
    }
}

/// Why a service that refuses everything is interrupted.
const CLOSED: &str = "a file that takes rights away could not be read for too long";
