//! The queue of Ed25519 checks, one for each owner of such a key. Knows nothing of messages.
//! Never lets a flood in one agent's name hold up the others.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::name::Name;

/// A place in the queue for one agent's Ed25519 check; empty for HMAC.
#[derive(Debug)]
pub struct VerifyPermit(#[expect(dead_code, reason = "held for its drop")] Option<OwnedSemaphorePermit>);

impl VerifyPermit {
    /// For a check that needs no place.
    pub(super) fn free() -> Self {
        Self(None)
    }
}

/// The bound on Ed25519 checks, per owner.
#[derive(Debug, Default)]
pub(super) struct VerifyLimiter(Mutex<HashMap<Name, Arc<AgentLimit>>>);

#[derive(Debug)]
struct AgentLimit {
    running: Arc<Semaphore>,
    waiting: Semaphore,
}

/// The owner's queue is full.
#[derive(Debug)]
pub(super) struct VerificationQueueFull;

/// How many Ed25519 checks of one owner run at a time.
const RUNNING: usize = 2;
/// How many more may wait.
const WAITING: usize = 64;

impl VerifyLimiter {
    /// Waits for a place of `owner`'s, unless the queue is full.
    pub(super) async fn wait(&self, owner: &Name) -> Result<VerifyPermit, VerificationQueueFull> {
        let limit = {
            // INVARIANT: only owners in the key ring get here, so the map is bounded by the rings in force since the
            // last `tidy`.
            let mut owners = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            Arc::clone(owners.entry(owner.clone()).or_insert_with(|| {
                Arc::new(AgentLimit { running: Arc::new(Semaphore::new(RUNNING)), waiting: Semaphore::new(WAITING) })
            }))
        };
        if let Ok(permit) = Arc::clone(&limit.running).try_acquire_owned() {
            return Ok(VerifyPermit(Some(permit)));
        }
        let _place = limit.waiting.try_acquire().map_err(|_| VerificationQueueFull)?;
        let permit = Arc::clone(&limit.running).acquire_owned().await;
        permit.map(|permit| VerifyPermit(Some(permit))).map_err(|_| VerificationQueueFull)
    }

    /// Forgets owners with no check running or waiting: the ring may not know them any more.
    pub(super) fn tidy(&self) {
        let mut owners = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        // A caller about to wait holds the outer `Arc`, and one that has a place holds `running`.
        owners.retain(|_, limit| Arc::strong_count(limit) > 1 || Arc::strong_count(&limit.running) > 1);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[tokio::test]
    async fn one_agents_ed25519_checks_queue_up_to_a_bound_and_do_not_hold_up_others() {
        let limiter = Arc::new(VerifyLimiter::default());
        let (crowd, other) = (Name::new("crowd").unwrap(), Name::new("other").unwrap());
        let mut held = vec![limiter.wait(&crowd).await.unwrap(), limiter.wait(&crowd).await.unwrap()];
        let waiting: Vec<_> = (0..WAITING)
            .map(|_| {
                let (limiter, crowd) = (Arc::clone(&limiter), crowd.clone());
                tokio::spawn(async move { limiter.wait(&crowd).await.map(drop) })
            })
            .collect();
        // One yield runs a few dozen tasks at most.
        let queued = Arc::clone(limiter.0.lock().unwrap().get(&crowd).unwrap());
        while queued.waiting.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        assert!(matches!(limiter.wait(&crowd).await, Err(VerificationQueueFull)));
        assert!(limiter.wait(&other).await.is_ok());
        held.clear();
        for task in waiting {
            assert!(task.await.unwrap().is_ok());
        }
        assert!(limiter.wait(&crowd).await.is_ok());
    }

    #[tokio::test]
    async fn owners_who_want_nothing_are_forgotten_and_others_keep_their_bound() {
        let limiter = Arc::new(VerifyLimiter::default());
        let [gone, busy] = ["gone", "busy"].map(|name| Name::new(name).unwrap());
        drop(limiter.wait(&gone).await.unwrap());
        let held = [limiter.wait(&busy).await.unwrap(), limiter.wait(&busy).await.unwrap()];
        let waiting = tokio::spawn({
            let (limiter, busy) = (Arc::clone(&limiter), busy.clone());
            async move { limiter.wait(&busy).await }
        });
        tokio::task::yield_now().await;
        let known = || limiter.0.lock().unwrap().keys().cloned().collect::<Vec<_>>();
        limiter.tidy();
        assert_eq!(known(), std::slice::from_ref(&busy));
        assert!(!waiting.is_finished());
        drop(held);
        let last = waiting.await.unwrap().unwrap();
        limiter.tidy();
        assert_eq!(known(), [busy]);
        drop(last);
        limiter.tidy();
        assert!(known().is_empty());
    }
}
