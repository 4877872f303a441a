//! How many bytes of frames an agent may have sent again, over all of its calls. Only counts.
//! Never lets one agent spend what another one may have.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;

use crate::name::Name;

/// What agents have had sent again, and how much of that still counts.
///
/// As much as may be kept for one agent alone is sent again at once, so that all its streams recover together when a node of the broker is
/// lost; after that, 1/[`RECOVERED_AFTER_S`] of it per second. Without a bound, an agent that acknowledges nothing would have the same
/// frames sent for as long as its calls last.
#[derive(Debug)]
pub(in crate::service) struct Resends {
    bound: usize,
    /// INVARIANT: agents of calls under way, or of some that ended less than [`RECOVERED_AFTER_S`] ago.
    spent: Mutex<HashMap<Name, Spent>>,
}

#[derive(Debug, Clone, Copy)]
struct Spent {
    bytes: usize,
    at: Instant,
}

/// In how many seconds all of it is available again; with the default bounds that is 1 MiB a second, a whole stream's
/// frames.
const RECOVERED_AFTER_S: u128 = 32;

impl Resends {
    /// `kept` bounds what is kept for all streams together, of which one agent has half at most.
    pub(in crate::service) fn new(kept: usize) -> Self {
        Self { bound: kept / 2, spent: Mutex::default() }
    }

    /// Whether `agent` may have `bytes` sent again, which are then counted. The last time may exceed the bound by what one
    /// stream has kept: the next one then waits longer.
    pub(super) fn try_spend(&self, agent: &Name, bytes: usize) -> bool {
        let now = Instant::now();
        let mut spent = self.spent();
        let before = spent.get(agent).map_or(0, |spent| self.left_of(spent, now));
        let may = before < self.bound;
        if may {
            spent.insert(agent.clone(), Spent { bytes: before.saturating_add(bytes), at: now });
        }
        may
    }

    /// Forgets agents for whom nothing counts any more.
    pub(super) fn tidy(&self) {
        let now = Instant::now();
        self.spent().retain(|_, spent| self.left_of(spent, now) > 0);
    }

    /// What still counts.
    fn left_of(&self, spent: &Spent, now: Instant) -> usize {
        let bound = u128::try_from(self.bound).unwrap_or(u128::MAX);
        let recovered = now.duration_since(spent.at).as_millis().saturating_mul(bound) / (RECOVERED_AFTER_S * 1000);
        spent.bytes.saturating_sub(usize::try_from(recovered).unwrap_or(usize::MAX))
    }

    fn spent(&self) -> MutexGuard<'_, HashMap<Name, Spent>> {
        // Nothing between lock and unlock can panic halfway.
        self.spent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_is_spent_comes_back_with_time_and_is_each_agents_own() {
        let resends = Resends::new(64_000);
        let (a, b) = (Name::new("a").unwrap(), Name::new("b").unwrap());
        assert!(resends.try_spend(&a, 31_000) && resends.try_spend(&a, 2_000), "the last one may exceed it");
        assert!(!resends.try_spend(&a, 1) && resends.try_spend(&b, 1));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(!resends.try_spend(&a, 1), "1,000 bytes a second, of 33,000");
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(resends.try_spend(&a, 1));
        tokio::time::advance(Duration::from_secs(33)).await;
        resends.tidy();
        assert!(resends.spent().is_empty());
    }
}
