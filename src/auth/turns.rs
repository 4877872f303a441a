//! The queue of Ed25519 checks, one for each owner of such a key. Knows nothing of messages.
//! Never lets a flood in one agent's name hold up the others.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::verifier::AuthError;
use crate::name::Name;

/// A place in the queue for an Ed25519 check of one agent; nothing for HMAC.
#[derive(Debug)]
pub struct Turn(#[expect(dead_code, reason = "held for its drop")] Option<OwnedSemaphorePermit>);

impl Turn {
    /// No place is needed.
    pub(super) fn free() -> Self {
        Self(None)
    }
}

/// The bound on Ed25519 checks, per owner.
#[derive(Debug, Default)]
pub(super) struct Turns(Mutex<HashMap<Name, Arc<Turning>>>);

#[derive(Debug)]
struct Turning {
    running: Arc<Semaphore>,
    waiting: Semaphore,
}

/// How many Ed25519 checks of one owner run at a time.
const RUNNING: usize = 2;
/// How many more may wait.
const WAITING: usize = 64;

impl Turns {
    /// Waits for a place of `owner`, if there is still room to wait.
    pub(super) async fn wait(&self, owner: &Name) -> Result<Turn, AuthError> {
        let turning = {
            // INVARIANT: only owners of the ring get here, so the map is bounded by the ring.
            let mut owners = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            Arc::clone(owners.entry(owner.clone()).or_insert_with(|| {
                Arc::new(Turning { running: Arc::new(Semaphore::new(RUNNING)), waiting: Semaphore::new(WAITING) })
            }))
        };
        if let Ok(permit) = Arc::clone(&turning.running).try_acquire_owned() {
            return Ok(Turn(Some(permit)));
        }
        let _place = turning.waiting.try_acquire().map_err(|_| AuthError::Crowded)?;
        let permit = Arc::clone(&turning.running).acquire_owned().await;
        permit.map(|permit| Turn(Some(permit))).map_err(|_| AuthError::Crowded)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[tokio::test]
    async fn one_agents_ed25519_checks_queue_up_to_a_bound_and_do_not_hold_up_others() {
        let turns = Arc::new(Turns::default());
        let (crowd, other) = (Name::new("crowd").unwrap(), Name::new("other").unwrap());
        let mut held = vec![turns.wait(&crowd).await.unwrap(), turns.wait(&crowd).await.unwrap()];
        let waiting: Vec<_> = (0..WAITING)
            .map(|_| {
                let (turns, crowd) = (Arc::clone(&turns), crowd.clone());
                tokio::spawn(async move { turns.wait(&crowd).await.map(drop) })
            })
            .collect();
        // One yield runs a few dozen tasks at most.
        let queued = Arc::clone(turns.0.lock().unwrap().get(&crowd).unwrap());
        while queued.waiting.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        assert!(matches!(turns.wait(&crowd).await, Err(AuthError::Crowded)));
        assert!(turns.wait(&other).await.is_ok());
        held.clear();
        for task in waiting {
            assert!(task.await.unwrap().is_ok());
        }
        assert!(turns.wait(&crowd).await.is_ok());
    }
}
