//! The files of a gateway that change while it runs: tokens that were revoked, keys of issuers, certificates.
//! Never lets a change go unnoticed, nor stays ready while one that may take rights away is refused.

use std::collections::BTreeMap;
use std::future::pending;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use sealwire::internal::files::{Polled, Standing, Watch, follow};

/// How often to look, as services do.
const EVERY: Duration = Duration::from_millis(500);

/// Files, and how to put them in force.
pub(super) struct Resource {
    pub(super) name: &'static str,
    /// Rights can be taken away by them, so the gateway is not ready while they are refused.
    pub(super) takes_away: bool,
    pub(super) poll: Box<dyn Fn() -> Polled + Send + Sync>,
}

impl Resource {
    /// A file that is read only when the gateway starts: a change is told.
    pub(super) fn at_start(name: &'static str, path: PathBuf) -> Self {
        let watch = Watch::new(vec![path]);
        let told = || Ok("changed, and is read only at the start: restart the gateway".to_owned());
        Self { name, takes_away: false, poll: Box::new(move || watch.poll(told)) }
    }
}

/// How the files stand: those that take rights away and whose present state is refused, and how often any were tried.
#[derive(Debug, Default)]
pub(super) struct RefusedFiles {
    closed: Mutex<BTreeMap<&'static str, bool>>,
    tries: Mutex<BTreeMap<&'static str, Tried>>,
}

/// How often changed files were put in force, or refused. There are no more names than there are [`Resource`]s.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Tried {
    pub(super) applied: u64,
    /// Counted again once a minute.
    pub(super) refused: u64,
}

impl RefusedFiles {
    /// Their names.
    pub(super) fn names(&self) -> Vec<&'static str> {
        self.closed.lock().unwrap_or_else(PoisonError::into_inner).keys().copied().collect()
    }

    /// Whether some could not be read for too long.
    pub(super) fn is_closed(&self) -> bool {
        self.closed.lock().unwrap_or_else(PoisonError::into_inner).values().any(|is_closed| *is_closed)
    }

    /// How often changed files were tried.
    pub(super) fn tries(&self) -> BTreeMap<&'static str, Tried> {
        self.tries.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn count(&self, name: &'static str, standing: &Standing) {
        let mut tries = self.tries.lock().unwrap_or_else(PoisonError::into_inner);
        match standing {
            Standing::Applied => tries.entry(name).or_default().applied += 1,
            Standing::Refused { is_new: true } => tries.entry(name).or_default().refused += 1,
            Standing::InForce | Standing::Refused { is_new: false } | Standing::Closed => {}
        }
    }

    fn enter(&self, name: &'static str, standing: Standing) {
        let mut all = self.closed.lock().unwrap_or_else(PoisonError::into_inner);
        match standing {
            Standing::InForce | Standing::Applied => drop(all.remove(name)),
            Standing::Refused { .. } => drop(all.entry(name).or_default()),
            Standing::Closed => drop(all.insert(name, true)),
        }
    }

    /// Looks at the files until it is dropped. `closes_after`: if those that take rights away cannot be read for so long, the gateway
    /// refuses everything.
    pub(super) async fn keep(&self, resources: Vec<Resource>, closes_after: Option<Duration>) {
        let all = resources.into_iter().map(|Resource { name, takes_away, poll }| {
            let tell = move |standing| {
                self.count(name, &standing);
                if takes_away {
                    self.enter(name, standing);
                }
            };
            follow(name, EVERY, closes_after.filter(|_| takes_away), poll, tell)
        });
        join_all(all).await;
        pending().await
    }
}
