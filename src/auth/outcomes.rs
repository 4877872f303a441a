//! Where the outcomes of idempotent calls and the approvals of waiting ones are kept: one entry per key, changed by compare-and-set.
//! Knows nothing of methods, and never drops an entry early to make room for another.
//!
//! | store | keeps | replicas |
//! |---|---|---|
//! | [`LocalOutcomes`] | in the process | one |
//! | that of a [`SharedGuard`](crate::auth::SharedGuard) | in a JetStream stream of the guard's account | any number |

mod ledger;
mod local;

use std::fmt::Debug;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;

use crate::name::Name;

pub(crate) use ledger::{Amount, Ledger};
pub use local::LocalOutcomes;

/// Keeps one entry for each key, for a limited time.
///
/// Of any number of simultaneous calls that would make the same change, one succeeds. Contents are opaque, and no two that are passed
/// in are equal, so a store may recognize its own by comparing them.
pub trait OutcomeStore: Send + Sync + Debug + 'static {
    /// Announces that the store will be used. Until then it costs nothing at the broker.
    fn enable(&self) {}

    /// How many entries there are, and their bytes; of a shared store, those that this replica has written.
    fn held(&self) -> (usize, usize);

    /// Whether other replicas see the same entries. If so, what is read may have been written by another replica.
    fn is_shared(&self) -> bool;

    /// Differs from before if entries may have been lost, and other ones have been given the same revisions.
    fn era(&self) -> String {
        String::new()
    }

    /// How many entries one agent may have made here, at this replica, that are charged to nobody: so many that others keep most of the
    /// store.
    fn room_for_subjects(&self) -> usize;

    /// Creates an entry unless there is one; it lasts for `keep`, rounded up to whole seconds.
    ///
    /// Not undone by cancellation: if the future is dropped, the entry may exist.
    ///
    /// # Errors
    /// [`OutcomeStoreError`]; only [`Claimed::New`] says that there was no entry.
    fn claim<'a>(
        &'a self,
        key: &'a OutcomeKey,
        content: Bytes,
        keep: Duration,
    ) -> BoxFuture<'a, Result<Claimed, OutcomeStoreError>>;

    /// Replaces the entry if it still has this revision, and returns the new revision. It lasts for `keep` from now.
    ///
    /// Not undone by cancellation: if the future is dropped, the entry may have been replaced.
    ///
    /// # Errors
    /// [`OutcomeStoreError::Taken`] if it has another revision, or [`OutcomeStoreError`] otherwise.
    fn replace<'a>(
        &'a self,
        key: &'a OutcomeKey,
        revision: u64,
        content: Bytes,
        keep: Duration,
    ) -> BoxFuture<'a, Result<u64, OutcomeStoreError>>;

    /// The entry as it is now, and its revision; `None` if there is none.
    ///
    /// # Errors
    /// [`OutcomeStoreError`], if that is not known.
    fn read<'a>(&'a self, key: &'a OutcomeKey) -> BoxFuture<'a, Result<Option<(u64, Bytes)>, OutcomeStoreError>>;

    /// The keys of all approvals, in any order. The keys of outcomes cannot be listed: there are too many.
    ///
    /// # Errors
    /// [`OutcomeStoreError`], if they are not all known.
    fn approvals(&self) -> BoxFuture<'_, Result<Vec<OutcomeKey>, OutcomeStoreError>>;

    /// Undoes a change that ended with [`OutcomeStoreError::Unanswered`], or whose future was dropped, or that turned out to be
    /// unneeded, as soon as the store can be asked again. Does not wait for that, and gives up on a change whose fate stays unknown.
    /// Touches only the entry with exactly this content.
    fn withdraw(&self, _change: Withdrawal) {}
}

/// Which part of a store's entries one agent may have made for subjects, at all replicas together.
const FOR_SUBJECTS: usize = 8;

/// The room of a store of `entries`, at each of `replicas`, for [`OutcomeStore::room_for_subjects`].
pub(crate) fn room_for_subjects(entries: usize, replicas: usize) -> usize {
    entries / FOR_SUBJECTS / replicas.max(1)
}

/// A change that may have been made and must be undone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Withdrawal {
    /// The entry's key.
    pub key: OutcomeKey,
    /// The revision that was to be replaced; 0 if there was no entry. If the change was certainly made, the revision that it has.
    pub revision: u64,
    /// The content that was to be written.
    pub content: Bytes,
    /// The content to write in its place.
    pub instead: Bytes,
    /// How long the replacement lasts.
    pub keep: Duration,
}

/// The key under which an entry is found.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OutcomeKey {
    /// Of an approval, and not of an outcome.
    is_approval: bool,
    agent: Name,
    digest: String,
}

impl OutcomeKey {
    /// The key for these bytes among those of `agent`, whom the entry is charged to. Only a digest is stored: no text from a caller
    /// becomes part of a subject.
    #[must_use]
    pub fn new(agent: Name, scope: &[u8]) -> Self {
        Self { is_approval: false, agent, digest: crate::jose::sha256_b64(scope) }
    }

    /// What belongs to these parts and to no others.
    pub(crate) fn scope(parts: &[&str]) -> Vec<u8> {
        parts.iter().fold(Vec::new(), |mut scope, part| {
            // With their lengths, so that no two lists of parts give the same bytes.
            scope.extend_from_slice(&u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
            scope.extend_from_slice(part.as_bytes());
            scope
        })
    }

    /// The key of an approval for a call of `agent`. `None` if `place` is not of 1 to 64 characters of base64url: it becomes part of a
    /// subject.
    #[must_use]
    pub fn approval(agent: Name, place: &str) -> Option<Self> {
        // The same grammar as that of names.
        let digest = Name::new(place).ok()?.as_str().to_owned();
        Some(Self { is_approval: true, agent, digest })
    }

    /// Whether it is the key of an approval.
    #[must_use]
    pub fn is_approval(&self) -> bool {
        self.is_approval
    }

    /// The agent whom the entry is charged to.
    #[must_use]
    pub fn agent(&self) -> &Name {
        &self.agent
    }

    /// What tells it from the agent's other keys: of an outcome, base64url(SHA-256), 43 characters.
    #[must_use]
    pub fn digest(&self) -> &str {
        &self.digest
    }
}

/// The result of a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claimed {
    /// There was no entry; this one was created.
    New {
        /// Identifies the entry as it is now.
        revision: u64,
    },
    /// There already is an entry.
    Held {
        /// Identifies the entry as it is now.
        revision: u64,
        /// Its content.
        content: Bytes,
    },
}

/// Why the store did not do what it was asked to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OutcomeStoreError {
    /// The agent has its full share of entries, bytes or requests in flight.
    #[error("the caller's share of stored outcomes is used up")]
    AgentFull,
    /// There is no room for anyone.
    #[error("the store of outcomes is full")]
    Full,
    /// The content is larger than an entry may be.
    #[error("the outcome is too large to be stored")]
    TooLarge,
    /// The entry no longer has this revision.
    #[error("the stored outcome was changed by another replica")]
    Taken,
    /// The store cannot be reached, or does not accept the change.
    #[error("the store of outcomes is unavailable")]
    Unavailable,
    /// The store gave no understandable answer. The change may have been made, or may still be made.
    #[error("the store of outcomes did not answer")]
    Unanswered,
}
