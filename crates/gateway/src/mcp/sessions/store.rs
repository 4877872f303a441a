//! The sessions that are remembered.
//! Never grows beyond its bounds, and never forgets a session that is in use, or one of a caller that has fewer than another.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::session::Session;

/// The most bytes of all sessions, and what each counts for at least: there are at most 16,384, each for as long as it is valid.
const BYTES: u64 = 32 << 20;
const LEAST: u64 = 2 << 10;
const IDLE: Duration = Duration::from_secs(7 * 24 * 3_600);

#[derive(Debug, Default)]
pub(super) struct Store {
    sessions: HashMap<Arc<str>, Entry>,
    /// INVARIANT: only callers that have a session.
    callers: HashMap<Arc<str>, Owned>,
    /// The callers, by their bytes.
    by_bytes: BTreeSet<(u64, Arc<str>)>,
    bytes: u64,
    uses: u64,
}

#[derive(Debug)]
struct Entry {
    session: Arc<Session>,
    bytes: u64,
    /// The number of its last use, and when that was.
    used: (u64, Instant),
}

/// The sessions of one caller.
#[derive(Debug, Default)]
struct Owned {
    bytes: u64,
    by_use: BTreeMap<u64, Arc<str>>,
}

impl Store {
    /// The session of this name.
    pub(super) fn of(&mut self, name: &Arc<str>) -> Arc<Session> {
        let session = match self.remove(name) {
            Some(session) => session,
            None => Arc::new(Session::new(caller_of(name).into())),
        };
        self.insert(name, Arc::clone(&session));
        self.make_room();
        session
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<Session>> {
        self.sessions.values().map(|entry| &entry.session)
    }

    /// Forgets sessions that nobody has used for longer than one is valid.
    pub(super) fn tidy(&mut self) {
        let is_old = |entry: &Entry| !entry.is_in_use() && entry.used.1.elapsed() > IDLE;
        let old = self.sessions.iter().filter(|(_, entry)| is_old(entry)).map(|(name, _)| Arc::clone(name));
        let old: Vec<_> = old.collect();
        for name in old {
            self.remove(&name);
        }
    }

    fn insert(&mut self, name: &Arc<str>, session: Arc<Session>) {
        self.uses += 1;
        let (used, bytes) = (self.uses, session.bytes().max(LEAST));
        self.count(session.caller(), |own| {
            own.bytes += bytes;
            own.by_use.insert(used, Arc::clone(name));
        });
        self.bytes += bytes;
        self.sessions.insert(Arc::clone(name), Entry { session, bytes, used: (used, Instant::now()) });
    }

    fn remove(&mut self, name: &Arc<str>) -> Option<Arc<Session>> {
        let Entry { session, bytes, used: (used, _) } = self.sessions.remove(name)?;
        self.count(session.caller(), |own| {
            own.bytes -= bytes;
            own.by_use.remove(&used);
        });
        self.bytes -= bytes;
        Some(session)
    }

    /// Changes what a caller has.
    fn count(&mut self, caller: &Arc<str>, change: impl FnOnce(&mut Owned)) {
        let own = self.callers.entry(Arc::clone(caller)).or_default();
        self.by_bytes.remove(&(own.bytes, Arc::clone(caller)));
        change(own);
        if own.by_use.is_empty() {
            self.callers.remove(caller);
        } else {
            self.by_bytes.insert((own.bytes, Arc::clone(caller)));
        }
    }

    /// Forgets sessions of the caller with the most, those first that were not used for longest.
    fn make_room(&mut self) {
        while self.bytes > BYTES {
            let idle = |name: &&Arc<str>| self.sessions.get(*name).is_some_and(|entry| !entry.is_in_use());
            let mut callers = self.by_bytes.iter().rev().filter_map(|(_, caller)| self.callers.get(caller));
            let Some(oldest) = callers.find_map(|own| own.by_use.values().find(idle)).cloned() else { return };
            self.remove(&oldest);
        }
    }
}

impl Entry {
    /// Whether it has a stream or a request.
    fn is_in_use(&self) -> bool {
        Arc::strong_count(&self.session) > 1
    }
}

/// The caller of a session: the name of a client is the caller's and then, if there may be several, the session's own.
fn caller_of(name: &str) -> &str {
    name.rsplit_once('\n').map_or(name, |(caller, _)| caller)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: u64 = BYTES / LEAST;

    fn name(caller: &str, session: u64) -> Arc<str> {
        format!("{caller}\n{session}").into()
    }

    #[test]
    fn whoever_has_the_most_sessions_loses_the_oldest_and_nobody_one_that_is_in_use() {
        let mut store = Store::default();
        let _in_use = store.of(&name("loud", 0));
        store.of(&name("quiet", 0));
        for session in 1..2 * MOST {
            store.of(&name("loud", session));
        }
        store.of(&name("quiet", 1));
        assert!(store.bytes <= BYTES && store.sessions.len() as u64 == MOST);
        let has = |store: &Store, caller, session| store.sessions.contains_key(&name(caller, session));
        assert!(has(&store, "quiet", 0) && has(&store, "quiet", 1) && has(&store, "loud", 0));
        assert!(!has(&store, "loud", 1) && !has(&store, "loud", MOST) && has(&store, "loud", 2 * MOST - 1));
        // Many callers with one session each: the newest of them has its place.
        for caller in 0..2 * MOST {
            store.of(&name(&caller.to_string(), 0));
        }
        assert_eq!(store.sessions.len() as u64, MOST);
        assert!(has(&store, &(2 * MOST - 1).to_string(), 0));
        assert_eq!(store.callers.len(), store.by_bytes.len());
    }

    #[tokio::test(start_paused = true)]
    async fn what_nobody_has_used_for_as_long_as_a_session_is_valid_is_forgotten() {
        let mut store = Store::default();
        let in_use = store.of(&name("a", 0));
        store.of(&name("a", 1));
        tokio::time::advance(IDLE).await;
        store.of(&name("b", 0));
        store.tidy();
        assert_eq!(store.sessions.len(), 3, "not yet");
        tokio::time::advance(Duration::from_secs(1)).await;
        store.tidy();
        assert_eq!(store.sessions.len(), 2, "all but the one that is in use, and the one that was used since");
        drop(in_use);
        store.tidy();
        assert_eq!((store.sessions.len(), store.bytes, store.callers.len()), (1, LEAST, 1));
    }
}
