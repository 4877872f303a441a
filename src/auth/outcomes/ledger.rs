//! How much of a store each agent holds. Never lets one agent take the last place.
//!
//! Room is shared by dynamic thresholds, as in the queues of waiting messages: an agent may have one more entry only while it
//! holds less than what is still free. So an agent on its own gets half of the room, and any number of greedy ones settle at
//! equal shares and leave one such share for the next.

use std::collections::{BTreeSet, HashMap};

use tokio::time::Instant;

use super::OutcomeKey;
use crate::name::Name;

/// Entries and their bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Amount {
    pub(crate) entries: usize,
    pub(crate) bytes: usize,
}

impl Amount {
    pub(crate) fn saturating_sub(self, other: Self) -> Self {
        Self { entries: self.entries.saturating_sub(other.entries), bytes: self.bytes.saturating_sub(other.bytes) }
    }

    pub(crate) fn max(self, other: Self) -> Self {
        Self { entries: self.entries.max(other.entries), bytes: self.bytes.max(other.bytes) }
    }
}

/// What each agent holds, and until when.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// INVARIANT: holds only agents that have at least one entry.
    agents: HashMap<Name, Amount>,
    entries: HashMap<OutcomeKey, (usize, Instant)>,
    /// INVARIANT: the end of every entry, each once.
    ends: BTreeSet<(Instant, OutcomeKey)>,
    total: Amount,
}

impl Ledger {
    /// Whether `agent` may have `more` bytes, and one more entry if `new`, while `free` is left. It is taken to hold `times` as
    /// much as is recorded here.
    pub(crate) fn admits(&self, agent: &Name, new: bool, more: usize, free: Amount, times: usize) -> bool {
        let held = self.agents.get(agent).copied().unwrap_or_default();
        let fits = held.bytes.saturating_mul(times).saturating_add(more) <= free.bytes;
        fits && (!new || held.entries.saturating_mul(times) < free.entries)
    }

    /// Records an entry, replacing any earlier record of it.
    pub(crate) fn set(&mut self, key: &OutcomeKey, bytes: usize, end: Instant) {
        self.remove(key);
        let held = self.agents.entry(key.agent().clone()).or_default();
        held.entries += 1;
        held.bytes += bytes;
        self.total.entries += 1;
        self.total.bytes += bytes;
        self.entries.insert(key.clone(), (bytes, end));
        self.ends.insert((end, key.clone()));
    }

    /// Removes an entry.
    pub(crate) fn remove(&mut self, key: &OutcomeKey) {
        let Some((bytes, end)) = self.entries.remove(key) else { return };
        self.ends.remove(&(end, key.clone()));
        self.total = self.total.saturating_sub(Amount { entries: 1, bytes });
        if let Some(held) = self.agents.get_mut(key.agent()) {
            *held = held.saturating_sub(Amount { entries: 1, bytes });
            if held.entries == 0 {
                self.agents.remove(key.agent());
            }
        }
    }

    /// Removes the entries that have ended by `now`, and returns them.
    pub(crate) fn sweep(&mut self, now: Instant) -> Vec<OutcomeKey> {
        let mut ended = Vec::new();
        while let Some((end, key)) = self.ends.first().filter(|(end, _)| *end <= now).cloned() {
            debug_assert!(end <= now);
            self.remove(&key);
            ended.push(key);
        }
        ended
    }

    /// The bytes of an entry.
    pub(crate) fn bytes_of(&self, key: &OutcomeKey) -> usize {
        self.entries.get(key).map_or(0, |(bytes, _)| *bytes)
    }

    pub(crate) fn total(&self) -> Amount {
        self.total
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use std::time::Duration;

    use super::*;

    fn key(agent: &str, scope: usize) -> OutcomeKey {
        OutcomeKey::new(Name::new(agent).unwrap(), &scope.to_be_bytes())
    }

    #[test]
    fn greedy_agents_settle_at_equal_shares_and_leave_one_for_the_next() {
        let (bound, end) = (Amount { entries: 100, bytes: 100_000 }, Instant::now() + Duration::from_secs(60));
        let mut ledger = Ledger::default();
        let mut counts = Vec::new();
        for agent in ["a", "b", "c", "d"] {
            let name = Name::new(agent).unwrap();
            let mut count = 0;
            while ledger.admits(&name, true, 10, bound.saturating_sub(ledger.total()), 1) {
                ledger.set(&key(agent, count), 10, end);
                count += 1;
            }
            counts.push(count);
        }
        assert_eq!(counts, [50, 25, 13, 6]);
        let next = Name::new("e").unwrap();
        assert!(ledger.admits(&next, true, 10, bound.saturating_sub(ledger.total()), 1));
        assert!(!ledger.admits(&next, true, 100_001, bound.saturating_sub(ledger.total()), 1), "bytes count as well");
    }

    #[test]
    fn what_has_ended_takes_no_room() {
        let start = Instant::now();
        let mut ledger = Ledger::default();
        for scope in 0..10 {
            ledger.set(&key("a", scope), 7, start + Duration::from_secs(u64::try_from(scope).unwrap()));
        }
        // Recorded anew, an entry lasts longer and counts once.
        ledger.set(&key("a", 0), 9, start + Duration::from_secs(20));
        assert_eq!(ledger.total(), Amount { entries: 10, bytes: 72 });
        assert_eq!(ledger.sweep(start + Duration::from_secs(9)).len(), 9);
        assert_eq!((ledger.total(), ledger.bytes_of(&key("a", 0))), (Amount { entries: 1, bytes: 9 }, 9));
        assert_eq!(ledger.sweep(start + Duration::from_secs(20)), [key("a", 0)]);
        assert!(ledger.agents.is_empty() && ledger.ends.is_empty() && ledger.entries.is_empty());
    }
}
