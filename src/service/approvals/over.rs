//! The requests that this process knows to be over: whose calls it has begun, and whose denial it has stored.
//! Never forgets one while its approvals could count once more, should somebody write an earlier entry back.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::entry::Ran;
use crate::name::Name;

/// How a request has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum End {
    Ran(Ran),
    Denied,
}

#[derive(Debug, Default)]
pub(super) struct Over(Mutex<HashMap<Name, OfAgent>>);

/// By the random text of the request, with the second of the Unix epoch until which it is remembered.
type OfAgent = HashMap<String, (u64, End)>;

impl Over {
    /// How this request has ended, if that still matters.
    pub(super) fn end(&self, agent: &Name, ask: &str, now_s: u64) -> Option<End> {
        self.lock().get(agent)?.get(ask).filter(|(until, _)| *until > now_s).map(|(_, end)| end.clone())
    }

    /// Whether one more call of this agent may begin. Greedy agents settle at equal shares, and leave one for the next.
    pub(super) fn has_room(&self, agent: &Name) -> bool {
        let known = self.lock();
        let all: usize = known.values().map(OfAgent::len).sum();
        known.get(agent).map_or(0, OfAgent::len) < MAX_OVER.saturating_sub(all)
    }

    /// Takes note of an end that matters until then, unless one is known, which is returned.
    pub(super) fn note(&self, agent: &Name, ask: String, (until, now_s): (u64, u64), end: End) -> Option<End> {
        let mut known = self.lock();
        let of_agent = known.entry(agent.clone()).or_default();
        if let Some((_, before)) = of_agent.get(&ask).filter(|(until, _)| *until > now_s) {
            return Some(before.clone());
        }
        of_agent.insert(ask, (until, end));
        None
    }

    pub(super) fn tidy(&self, now_s: u64) {
        self.lock().retain(|_, of_agent| {
            of_agent.retain(|_, (until, _)| *until > now_s);
            !of_agent.is_empty()
        });
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Name, OfAgent>> {
        // Nothing between lock and unlock can panic halfway.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How many requests that are over are remembered: 16 a second, if a call waits for 30 minutes and its approvals are good for 5.
const MAX_OVER: usize = 32_768;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn each_agent_leaves_room_for_the_next_and_gets_it_back() {
        let (over, name) = (Over::default(), |name| Name::new(name).unwrap());
        let (ann, bob) = (name("ann"), name("bob"));
        let mut noted = 0;
        while over.has_room(&ann) {
            assert_eq!(over.note(&ann, noted.to_string(), (100, 50), End::Denied), None);
            noted += 1;
        }
        assert_eq!(noted, MAX_OVER / 2);
        assert!(over.has_room(&bob));
        over.tidy(99);
        assert_eq!(
            (over.has_room(&ann), over.end(&ann, "7", 99), over.end(&bob, "7", 99)),
            (false, Some(End::Denied), None)
        );
        over.tidy(100);
        assert!(over.has_room(&ann) && over.end(&ann, "7", 99).is_none());
    }
}
