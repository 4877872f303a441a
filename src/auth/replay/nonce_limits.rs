//! How many nonces may be held, by one owner and by all. Counts only: never looks at a nonce or at the time.
//!
//! The store has two parts. Every owner has a small *reserve* that nobody else can touch. The rest is a common *pool*,
//! from which an owner may take one more only while it holds less of the pool than is still free. So a single busy
//! owner gets all that it may have; several greedy ones, as their nonces expire, settle at equal shares and leave one
//! such share free for the next; and no number of flooding agents takes away the others' reserves.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Bounds on the nonces that a guard holds. A nonce takes about 70 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NonceLimits {
    /// The most live nonces of one owner. The default, 35,000, is 1,000 messages a second for 30 s + 5 s.
    pub owner: usize,
    /// The most live nonces of all owners together; default 1,000,000.
    pub total: usize,
    /// The most owners with live nonces; default 10,000. At least the number of agents in the key ring: a configured
    /// service refuses a larger ring, at its start and later.
    pub owners: usize,
    /// The live nonces that each owner can have whatever the others do; default 32.
    pub reserve: usize,
}

/// The limits contradict each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NonceLimitsError {
    /// An owner must be able to have one nonce, and its reserve is part of its cap.
    #[error("the reserve of {reserve} nonces per owner must be 1 to {owner}, the cap of one owner")]
    Reserve {
        /// [`NonceLimits::reserve`].
        reserve: usize,
        /// [`NonceLimits::owner`].
        owner: usize,
    },
    /// The reserves alone are more than the total.
    #[error(
        "{owners} owners with {reserve} reserved nonces each do not fit a total of {total}: raise the total or lower one"
    )]
    Total {
        /// [`NonceLimits::owners`].
        owners: usize,
        /// [`NonceLimits::reserve`].
        reserve: usize,
        /// [`NonceLimits::total`].
        total: usize,
    },
}

impl Default for NonceLimits {
    fn default() -> Self {
        Self { owner: 35_000, total: 1_000_000, owners: 10_000, reserve: 32 }
    }
}

/// What is held, against the limits.
#[derive(Debug)]
pub(super) struct Quota {
    nonce_limits: NonceLimits,
    /// The size of the pool: the total less all reserves.
    pool: usize,
    /// How many are taken from the pool.
    pooled: AtomicUsize,
    /// How many are held in all.
    live: AtomicUsize,
}

/// Which limit was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LimitReached {
    Owner,
    Total,
}

impl Quota {
    pub(super) fn new(nonce_limits: NonceLimits) -> Result<Self, NonceLimitsError> {
        let NonceLimits { owner, total, owners, reserve } = nonce_limits;
        if reserve == 0 || reserve > owner {
            return Err(NonceLimitsError::Reserve { reserve, owner });
        }
        let pool = owners.checked_mul(reserve).and_then(|reserved| total.checked_sub(reserved));
        let pool = pool.ok_or(NonceLimitsError::Total { owners, reserve, total })?;
        Ok(Self { nonce_limits, pool, pooled: AtomicUsize::new(0), live: AtomicUsize::new(0) })
    }

    pub(super) fn owners(&self) -> usize {
        self.nonce_limits.owners
    }

    pub(super) fn live(&self) -> usize {
        self.live.load(Ordering::Relaxed)
    }

    /// Counts one more for an owner that holds `held`. The caller stores the nonce, and serializes the calls for one
    /// owner.
    pub(super) fn take(&self, held: usize) -> Result<(), LimitReached> {
        if held >= self.nonce_limits.owner {
            return Err(LimitReached::Owner);
        }
        if let Some(share) = held.checked_sub(self.nonce_limits.reserve) {
            self.pooled
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |pooled| {
                    let free = self.pool.saturating_sub(pooled);
                    (share < free).then_some(pooled + 1)
                })
                .map_err(|_| LimitReached::Total)?;
        }
        self.live.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Counts an owner's nonces down from `before` to `after`.
    pub(super) fn give_back(&self, before: usize, after: usize) {
        let pooled = before.saturating_sub(self.nonce_limits.reserve) - after.saturating_sub(self.nonce_limits.reserve);
        self.pooled.fetch_sub(pooled, Ordering::Relaxed);
        self.live.fetch_sub(before - after, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn fill(quota: &Quota) -> (usize, LimitReached) {
        let mut held = 0;
        loop {
            match quota.take(held) {
                Ok(()) => held += 1,
                Err(reached) => return (held, reached),
            }
        }
    }

    #[test]
    fn caps_that_contradict_each_other_are_refused() {
        let nonce_limits = NonceLimits::default();
        assert!(Quota::new(nonce_limits).is_ok());
        assert!(matches!(
            Quota::new(NonceLimits { reserve: 0, ..nonce_limits }),
            Err(NonceLimitsError::Reserve { .. })
        ));
        assert!(matches!(
            Quota::new(NonceLimits { reserve: 9, owner: 8, ..nonce_limits }),
            Err(NonceLimitsError::Reserve { .. })
        ));
        assert!(matches!(
            Quota::new(NonceLimits { owners: usize::MAX, ..nonce_limits }),
            Err(NonceLimitsError::Total { .. })
        ));
        assert!(matches!(
            Quota::new(NonceLimits { total: 319_999, ..nonce_limits }),
            Err(NonceLimitsError::Total { .. })
        ));
        assert!(Quota::new(NonceLimits { total: 320_000, ..nonce_limits }).is_ok());
    }

    #[test]
    fn a_lone_owner_reaches_its_own_cap_and_no_more() {
        let quota = Quota::new(NonceLimits::default()).unwrap();
        assert_eq!(fill(&quota), (35_000, LimitReached::Owner));
        assert_eq!(quota.live(), 35_000);
    }

    #[test]
    fn twenty_and_a_thousand_greedy_owners_leave_room_for_the_next() {
        let quota = Quota::new(NonceLimits::default()).unwrap();
        let shares: Vec<_> = (0..20).map(|_| fill(&quota).0).collect();
        assert!(quota.live() <= 1_000_000);
        assert!(shares.iter().all(|share| *share > 1_000), "{shares:?}");
        for _ in 0..980 {
            assert!(fill(&quota).0 >= 32);
        }
        // The thousand-and-first owner still has its reserve.
        assert!(fill(&quota).0 >= 32);
        assert!(quota.live() <= 1_000_000);
    }

    #[test]
    fn what_is_given_back_can_be_taken_again() {
        let quota = Quota::new(NonceLimits { owner: 100, total: 60, owners: 2, reserve: 5 }).unwrap();
        let (held, reached) = fill(&quota);
        // 5 reserved, and half of the pool of 50.
        assert_eq!((held, reached), (30, LimitReached::Total));
        quota.give_back(held, 7);
        assert_eq!((quota.live(), quota.pooled.load(Ordering::Relaxed)), (7, 2));
        quota.give_back(7, 0);
        assert_eq!((quota.live(), quota.pooled.load(Ordering::Relaxed)), (0, 0));
        assert_eq!(fill(&quota).0, 30);
    }
}
