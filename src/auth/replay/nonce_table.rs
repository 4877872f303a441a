//! The live nonces of every owner. Never drops one before its expiry: not for room, not for idleness, and not because a clock went
//! back. It is deliberately not built on a cache: caches evict, and an evicted nonce is a replay.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, RwLock};

use super::nonce_limits::Quota;
use crate::name::Name;
use crate::wire::Nonce;

/// One owner's live nonces.
#[derive(Debug, Default)]
pub(super) struct AgentNonces {
    nonces: HashSet<Nonce>,
    /// The same nonces by the second in which they expire, earliest first: at most a few hundred distinct seconds, as `exp` is at most
    /// window plus skew ahead of the clock. Most owners have one or two, and a tree's smallest node takes as much room as eleven.
    by_expiry: VecDeque<(u64, Vec<Nonce>)>,
}

impl AgentNonces {
    pub(super) fn contains(&self, nonce: &Nonce) -> bool {
        self.nonces.contains(nonce)
    }

    pub(super) fn len(&self) -> usize {
        self.nonces.len()
    }

    /// When the first one expires, in seconds since the Unix epoch.
    pub(super) fn first_expiry(&self) -> Option<u64> {
        self.by_expiry.front().map(|(expires, _)| *expires)
    }

    pub(super) fn insert(&mut self, nonce: Nonce, expires: u64) {
        self.nonces.insert(nonce);
        // Nearly always the last second or one after it: messages arrive in the order in which they were signed, unless their senders'
        // clocks or windows differ.
        let place = self.by_expiry.iter().rposition(|(known, _)| *known <= expires);
        match place.and_then(|place| self.by_expiry.get_mut(place)) {
            Some((known, nonces)) if *known == expires => nonces.push(nonce),
            _ => self.by_expiry.insert(place.map_or(0, |place| place + 1), (expires, vec![nonce])),
        }
    }

    /// Forgets what expired: a message is valid while `now < exp`. `now` must never go back between calls.
    pub(super) fn forget_expired(&mut self, now: u64, quota: &Quota) {
        let before = self.nonces.len();
        while self.first_expiry().is_some_and(|expires| expires <= now) {
            for nonce in self.by_expiry.pop_front().into_iter().flat_map(|(_, nonces)| nonces) {
                self.nonces.remove(&nonce);
            }
        }
        quota.give_back(before, self.nonces.len());
        if self.nonces.capacity() > 4 * self.nonces.len() + KEPT_ROOM {
            self.nonces.shrink_to(2 * self.nonces.len());
            self.by_expiry.shrink_to(2 * self.by_expiry.len());
        }
    }
}

/// All owners with live nonces.
#[derive(Debug, Default)]
pub(super) struct NonceTable(RwLock<HashMap<Name, Arc<Mutex<AgentNonces>>>>);

/// A panic happened while the lock was held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Poisoned;

impl NonceTable {
    /// This owner's nonces; `None` if it has none yet and `most` owners already have some.
    pub(super) fn live(&self, owner: &Name, most: usize) -> Result<Option<Arc<Mutex<AgentNonces>>>, Poisoned> {
        if let Some(live) = self.0.read().map_err(|_| Poisoned)?.get(owner) {
            return Ok(Some(Arc::clone(live)));
        }
        let mut owners = self.0.write().map_err(|_| Poisoned)?;
        if owners.len() >= most && !owners.contains_key(owner) {
            return Ok(None);
        }
        Ok(Some(Arc::clone(owners.entry(owner.clone()).or_default())))
    }

    /// Whether this nonce is held. It may have expired.
    pub(super) fn has_seen(&self, owner: &Name, nonce: &Nonce) -> bool {
        let live = self.0.read().ok().and_then(|owners| owners.get(owner).map(Arc::clone));
        live.is_some_and(|live| live.lock().is_ok_and(|live| live.contains(nonce)))
    }

    pub(super) fn len(&self) -> usize {
        self.0.read().map_or(0, |owners| owners.len())
    }

    /// Forgets what expired by `now`, which is read under each owner's lock, and the owners that have nothing left.
    pub(super) fn sweep(&self, now: impl Fn() -> u64, quota: &Quota) {
        let Ok(owners) = self.0.read() else { return };
        let all: Vec<_> = owners.values().map(Arc::clone).collect();
        drop(owners);
        for live in all {
            if let Ok(mut live) = live.lock() {
                live.forget_expired(now(), quota);
            }
        }
        let Ok(mut owners) = self.0.write() else { return };
        // INVARIANT: an owner is dropped only when it is empty and nobody else can reach it, now or later: the map is locked and the
        // `Arc` is unshared, which `get_mut` proves. An owner whose lock is poisoned stays, and refuses.
        owners.retain(|_, live| match Arc::get_mut(live).map(Mutex::get_mut) {
            Some(Ok(live)) => live.len() > 0,
            Some(Err(_)) | None => true,
        });
        if owners.capacity() > 4 * owners.len() + KEPT_ROOM {
            let room = 2 * owners.len();
            owners.shrink_to(room);
        }
    }

    /// For tests of what a panic leaves behind.
    #[cfg(test)]
    pub(super) fn poison(&self, owner: &Name) {
        let live = self.live(owner, usize::MAX).ok().flatten();
        let panicked = std::thread::spawn(move || {
            let _held = live.as_ref().map(|live| live.lock());
            std::panic::resume_unwind(Box::new(()));
        });
        assert!(panicked.join().is_err(), "the thread ends by panic");
    }

    /// The sum over all owners, counted one by one.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        let owners = self.0.read().map(|owners| owners.values().map(Arc::clone).collect::<Vec<_>>());
        owners.unwrap_or_default().iter().filter_map(|live| live.lock().ok().map(|live| live.len())).sum()
    }
}

/// Room for this many is never released, so that an owner with little traffic does not allocate over and over.
const KEPT_ROOM: usize = 256;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::super::nonce_limits::NonceLimits;
    use super::*;

    fn name(text: &str) -> Name {
        Name::new(text).unwrap()
    }

    #[test]
    fn a_nonce_is_forgotten_in_the_second_it_expires_and_not_before() {
        let quota = Quota::new(NonceLimits::default()).unwrap();
        let mut live = AgentNonces::default();
        let nonce = Nonce::random();
        quota.take(0).unwrap();
        live.insert(nonce, 100);
        live.forget_expired(99, &quota);
        assert!(live.contains(&nonce));
        assert_eq!(live.first_expiry(), Some(100));
        live.forget_expired(100, &quota);
        assert!(!live.contains(&nonce));
        assert_eq!((live.first_expiry(), live.len(), quota.live()), (None, 0, 0));
    }

    #[test]
    fn nonces_expire_in_the_order_of_their_seconds_however_they_came() {
        let quota = Quota::new(NonceLimits::default()).unwrap();
        let mut live = AgentNonces::default();
        let expiries = [105, 103, 105, 101, 104, 103, 107, 102];
        let nonces: Vec<_> = expiries.iter().map(|expires| (Nonce::random(), *expires)).collect();
        for (held, (nonce, expires)) in nonces.iter().enumerate() {
            quota.take(held).unwrap();
            live.insert(*nonce, *expires);
        }
        for now in 100..108 {
            live.forget_expired(now, &quota);
            assert!(nonces.iter().all(|(nonce, expires)| live.contains(nonce) == (*expires > now)), "{now}");
            assert_eq!(live.first_expiry(), expiries.iter().copied().filter(|expires| *expires > now).min());
        }
        assert_eq!((live.len(), quota.live()), (0, 0));
    }

    #[test]
    fn an_owner_is_dropped_only_when_empty_and_out_of_reach() {
        let quota = Quota::new(NonceLimits::default()).unwrap();
        let owners = NonceTable::default();
        let held = owners.live(&name("held"), 10).unwrap().unwrap();
        let busy = owners.live(&name("busy"), 10).unwrap().unwrap();
        quota.take(0).unwrap();
        busy.lock().unwrap().insert(Nonce::random(), 100);
        drop(busy);
        drop(owners.live(&name("idle"), 10).unwrap());
        assert_eq!(owners.len(), 3);

        owners.sweep(|| 99, &quota);
        assert_eq!(owners.len(), 2, "the idle one is gone");
        drop(held);
        owners.sweep(|| 99, &quota);
        assert_eq!(owners.len(), 1, "the busy one is not");
        owners.sweep(|| 100, &quota);
        assert_eq!((owners.len(), quota.live()), (0, 0));
    }

    #[test]
    fn a_new_owner_beyond_the_most_is_turned_away_and_a_known_one_is_not() {
        let owners = NonceTable::default();
        assert!(owners.live(&name("a"), 2).unwrap().is_some());
        assert!(owners.live(&name("b"), 2).unwrap().is_some());
        assert!(owners.live(&name("c"), 2).unwrap().is_none());
        assert!(owners.live(&name("a"), 2).unwrap().is_some());
    }

    #[test]
    fn room_for_a_burst_is_given_back() {
        let quota = Quota::new(NonceLimits::default()).unwrap();
        let mut live = AgentNonces::default();
        for held in 0..20_000 {
            quota.take(held).unwrap();
            live.insert(Nonce::random(), 100);
        }
        assert!(live.nonces.capacity() >= 20_000);
        live.forget_expired(100, &quota);
        assert!(live.nonces.capacity() <= 2 * KEPT_ROOM);
    }
}
