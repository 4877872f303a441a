//! Polls the watched files for as long as a service is on the bus. The last good state stays in force.
//! Never stays silent about a file that was refused.

use std::sync::{Arc, PoisonError};
use std::time::SystemTime;

use tokio::task::JoinHandle;

use super::shared::{Interruption, Shared};
use super::state::RefusedReload;
use crate::files::{Polled, Standing, follow};

/// Polls the watched files until it is aborted.
pub(super) fn start(shared: Arc<Shared>) -> JoinHandle<()> {
    let watches = (0..shared.options.watched.len()).map(|position| watch(Arc::clone(&shared), position));
    let watches = futures_util::future::join_all(watches);
    tokio::spawn(async move { drop(watches.await) })
}

async fn watch(shared: Arc<Shared>, position: usize) {
    let Some(watched) = shared.options.watched.get(position) else { return };
    let polling = Arc::clone(&shared);
    let poll = move || match polling.options.watched.get(position) {
        Some(watched) => (watched.poll)(&polling.service),
        None => Polled::Waiting,
    };
    let (every, bound) = (shared.options.watch_every, watched.closes_after);
    follow(watched.name, every, bound, poll, |standing| enter(&shared, position, watched.name, standing)).await;
}

/// Notes how files stand, and makes the service refuse everything, or not, accordingly.
fn enter(shared: &Shared, position: usize, what: &'static str, standing: Standing) {
    match standing {
        Standing::Applied => shared.health.tries.count(what, |tried| tried.applied += 1),
        Standing::Refused { is_new: true } => {
            shared.service.counters().refused("reload");
            shared.health.tries.count(what, |tried| tried.refused += 1);
        }
        _ => {}
    }
    let mut refusals = shared.health.reloads.0.lock().unwrap_or_else(PoisonError::into_inner);
    match standing {
        Standing::InForce | Standing::Applied => drop(refusals.remove(&position)),
        Standing::Refused { .. } | Standing::Closed => {
            let new = RefusedReload { what, since: SystemTime::now(), closed: false };
            let refused = refusals.entry(position).or_insert(new);
            refused.closed |= standing == Standing::Closed;
        }
    }
    let closed = refusals.values().any(|refused| refused.closed);
    shared.service.verifier().suspend(closed);
    shared.interrupt(Interruption::Closed, closed.then(|| CLOSED.to_owned()));
}

/// Why a service that refuses everything is interrupted.
const CLOSED: &str = "a file that takes rights away could not be read for too long";
