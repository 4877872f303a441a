//! The store for a single replica: its entries live in this process and are lost with it.
//! Never gives one agent the room of the others.

use std::collections::BTreeMap;
use std::fmt;
use std::future::ready;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use tokio::time::Instant;

use super::{Amount, Claimed, Ledger, OutcomeKey, OutcomeStore, OutcomeStoreError};

/// Keeps outcomes in this process, for a service with one replica. A restart forgets them.
///
/// Uses the monotonic clock: a step of the wall clock shortens nothing.
pub struct LocalOutcomes {
    bound: Amount,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    ledger: Ledger,
    /// INVARIANT: has exactly the entries of the ledger.
    /// Sorted, so that the approvals are the last.
    contents: BTreeMap<OutcomeKey, (u64, Bytes)>,
    revisions: u64,
}

impl LocalOutcomes {
    /// The default limit on entries.
    pub const ENTRIES: usize = 65_536;
    /// The default limit on bytes.
    pub const BYTES: usize = 64 << 20;

    /// The most bytes of one entry. No answer is larger unless the limit on answers is raised.
    pub const ENTRY: usize = 1 << 20;

    /// A store for this many entries and bytes of content. An agent on its own gets half of each.
    #[must_use]
    pub fn new(entries: usize, bytes: usize) -> Self {
        Self { bound: Amount { entries, bytes }, state: Mutex::default() }
    }

    fn claim_now(&self, key: &OutcomeKey, content: Bytes, keep: Duration) -> Result<Claimed, OutcomeStoreError> {
        let mut state = self.state();
        state.sweep();
        if let Some((revision, content)) = state.contents.get(key) {
            return Ok(Claimed::Held { revision: *revision, content: content.clone() });
        }
        let free = self.bound.saturating_sub(state.ledger.total());
        if free.entries == 0 || content.len() > free.bytes {
            return Err(OutcomeStoreError::Full);
        }
        if !state.ledger.admits(key.agent(), true, content.len(), free, 1) {
            return Err(OutcomeStoreError::AgentFull);
        }
        Ok(Claimed::New { revision: state.put(key, content, keep) })
    }

    fn replace_now(
        &self,
        key: &OutcomeKey,
        revision: u64,
        content: Bytes,
        keep: Duration,
    ) -> Result<u64, OutcomeStoreError> {
        let mut state = self.state();
        state.sweep();
        if state.contents.get(key).is_none_or(|(held, _)| *held != revision) {
            return Err(OutcomeStoreError::Taken);
        }
        if content.len() > Self::ENTRY {
            return Err(OutcomeStoreError::TooLarge);
        }
        let more = content.len().saturating_sub(state.ledger.bytes_of(key));
        let free = self.bound.saturating_sub(state.ledger.total());
        if more > 0 && !state.ledger.admits(key.agent(), false, more, free, 1) {
            return Err(OutcomeStoreError::AgentFull);
        }
        Ok(state.put(key, content, keep))
    }

    /// Nothing between lock and unlock can panic halfway.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn sweep(&mut self) {
        for key in self.ledger.sweep(Instant::now()) {
            self.contents.remove(&key);
        }
    }

    fn put(&mut self, key: &OutcomeKey, content: Bytes, keep: Duration) -> u64 {
        self.revisions += 1;
        self.ledger.set(key, content.len(), Instant::now() + keep);
        self.contents.insert(key.clone(), (self.revisions, content));
        self.revisions
    }
}

impl Default for LocalOutcomes {
    fn default() -> Self {
        Self::new(Self::ENTRIES, Self::BYTES)
    }
}

impl OutcomeStore for LocalOutcomes {
    fn held(&self) -> (usize, usize) {
        let mut state = self.state();
        state.sweep();
        let Amount { entries, bytes } = state.ledger.total();
        (entries, bytes)
    }

    fn is_shared(&self) -> bool {
        false
    }

    fn room_for_subjects(&self) -> usize {
        super::room_for_subjects(self.bound.entries, 1)
    }

    fn claim<'a>(
        &'a self,
        key: &'a OutcomeKey,
        content: Bytes,
        keep: Duration,
    ) -> BoxFuture<'a, Result<Claimed, OutcomeStoreError>> {
        Box::pin(ready(self.claim_now(key, content, keep)))
    }

    fn replace<'a>(
        &'a self,
        key: &'a OutcomeKey,
        revision: u64,
        content: Bytes,
        keep: Duration,
    ) -> BoxFuture<'a, Result<u64, OutcomeStoreError>> {
        Box::pin(ready(self.replace_now(key, revision, content, keep)))
    }

    fn read<'a>(&'a self, key: &'a OutcomeKey) -> BoxFuture<'a, Result<Option<(u64, Bytes)>, OutcomeStoreError>> {
        let mut state = self.state();
        state.sweep();
        Box::pin(ready(Ok(state.contents.get(key).cloned())))
    }

    fn approvals(&self) -> BoxFuture<'_, Result<Vec<OutcomeKey>, OutcomeStoreError>> {
        let mut state = self.state();
        state.sweep();
        Box::pin(ready(Ok(state.contents.keys().rev().take_while(|key| key.is_approval()).cloned().collect())))
    }
}

/// Omits the contents, which are answers to callers.
impl fmt::Debug for LocalOutcomes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalOutcomes").field("bound", &self.bound).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::name::Name;

    const MINUTE: Duration = Duration::from_secs(60);

    fn key(agent: &str, scope: &str) -> OutcomeKey {
        OutcomeKey::new(Name::new(agent).unwrap(), scope.as_bytes())
    }

    #[tokio::test(start_paused = true)]
    async fn an_entry_is_made_once_and_replaced_by_who_knows_its_revision() {
        let store = LocalOutcomes::default();
        let (key, text) = (key("ann", "k"), Bytes::from_static);
        assert_eq!(store.claim(&key, text(b"a"), MINUTE).await, Ok(Claimed::New { revision: 1 }));
        let held = Claimed::Held { revision: 1, content: text(b"a") };
        assert_eq!(store.claim(&key, text(b"b"), MINUTE).await, Ok(held));
        assert_eq!(store.replace(&key, 1, text(b"c"), MINUTE).await, Ok(2));
        assert_eq!(store.replace(&key, 1, text(b"d"), MINUTE).await, Err(OutcomeStoreError::Taken));
        tokio::time::advance(MINUTE - Duration::from_secs(1)).await;
        let held = Claimed::Held { revision: 2, content: text(b"c") };
        assert_eq!(store.claim(&key, text(b"e"), MINUTE).await, Ok(held));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(store.replace(&key, 2, text(b"f"), MINUTE).await, Err(OutcomeStoreError::Taken), "it has ended");
        assert_eq!(store.claim(&key, text(b"g"), MINUTE).await, Ok(Claimed::New { revision: 3 }));
        assert_eq!(store.state().contents.len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn one_agent_gets_half_and_nothing_is_forgotten_to_make_room() {
        let store = LocalOutcomes::new(8, 1_000);
        let text = Bytes::from_static(b"0123456789");
        for scope in ["1", "2", "3", "4"] {
            assert!(store.claim(&key("ann", scope), text.clone(), MINUTE).await.is_ok());
        }
        assert_eq!(store.claim(&key("ann", "5"), text.clone(), MINUTE).await, Err(OutcomeStoreError::AgentFull));
        assert!(matches!(store.claim(&key("ann", "1"), text.clone(), MINUTE).await, Ok(Claimed::Held { .. })));
        assert_eq!(store.claim(&key("bob", "1"), text.clone(), MINUTE).await, Ok(Claimed::New { revision: 5 }));
        let large = Bytes::from(vec![b'x'; 960]);
        assert_eq!(store.replace(&key("bob", "1"), 5, large.clone(), MINUTE).await, Err(OutcomeStoreError::AgentFull));
        assert_eq!(store.claim(&key("eve", "1"), large, MINUTE).await, Err(OutcomeStoreError::Full));
        tokio::time::advance(MINUTE).await;
        assert!(store.claim(&key("ann", "5"), text, MINUTE).await.is_ok());
    }
}
