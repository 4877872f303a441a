//! Where the outcomes of idempotent calls are kept: one entry for each key, exchanged by compare-and-set.
//! Knows nothing of methods, and never forgets an entry early to make room for another one.
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

/// Keeps one entry for each key, for a time.
///
/// Of any number of simultaneous calls that would make the same change, one succeeds. Contents are opaque, and no two that
/// are handed in are equal: a store may tell its own from another one by them.
pub trait OutcomeStore: Send + Sync + Debug + 'static {
    /// The store is going to be used. Until then it costs nothing at the broker.
    fn enable(&self) {}

    /// Whether other replicas see the same entries. Then what is read may come from somebody else.
    fn is_shared(&self) -> bool;

    /// Makes an entry, unless there is one; it lasts for `keep`, rounded up to seconds.
    ///
    /// Not undone by cancellation: if the future is dropped, the entry may be there.
    ///
    /// # Errors
    /// [`OutcomeStoreError`]; only [`Claimed::New`] says that there was none.
    fn claim<'a>(
        &'a self,
        key: &'a OutcomeKey,
        content: Bytes,
        keep: Duration,
    ) -> BoxFuture<'a, Result<Claimed, OutcomeStoreError>>;

    /// Replaces the entry if it is still the one of this revision, and returns the new revision. It lasts for `keep` from now.
    ///
    /// Not undone by cancellation: if the future is dropped, the entry may be replaced.
    ///
    /// # Errors
    /// [`OutcomeStoreError::Taken`] if it is not, or [`OutcomeStoreError`] otherwise.
    fn replace<'a>(
        &'a self,
        key: &'a OutcomeKey,
        revision: u64,
        content: Bytes,
        keep: Duration,
    ) -> BoxFuture<'a, Result<u64, OutcomeStoreError>>;

    /// Undoes a change that ended with [`OutcomeStoreError::Unanswered`] or whose future was dropped, or one that was made for
    /// nothing, once the store can be asked again. Does not wait for that, and gives up what cannot be told in the end. Nothing but the
    /// entry with this very content is touched.
    fn withdraw(&self, _change: Withdrawal) {}
}

/// A change that may have been made, and is not to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Withdrawal {
    /// Of which entry.
    pub key: OutcomeKey,
    /// The revision that was to be replaced; 0 if there was none. Of a change that was certainly made, that which it has.
    pub revision: u64,
    /// What was to be written.
    pub content: Bytes,
    /// What is written in its place.
    pub instead: Bytes,
    /// For how long that lasts.
    pub keep: Duration,
}

/// What an entry is found by.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OutcomeKey {
    agent: Name,
    digest: String,
}

impl OutcomeKey {
    /// The key of these bytes among those of `agent`, which the entry counts against. What is stored is a digest: no text of a
    /// caller becomes a subject.
    #[must_use]
    pub fn new(agent: Name, scope: &[u8]) -> Self {
        Self { agent, digest: crate::jose::sha256_b64(scope) }
    }

    /// Whose entry it is.
    #[must_use]
    pub fn agent(&self) -> &Name {
        &self.agent
    }

    /// base64url(SHA-256), 43 characters.
    #[must_use]
    pub fn digest(&self) -> &str {
        &self.digest
    }
}

/// What became of a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claimed {
    /// There was no entry, and now there is this one.
    New {
        /// Names the entry as it is now.
        revision: u64,
    },
    /// There is one already.
    Held {
        /// Names the entry as it is now.
        revision: u64,
        /// What it holds.
        content: Bytes,
    },
}

/// The store did not do what it was asked to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OutcomeStoreError {
    /// The agent has as many entries, bytes or questions as it may have beside the others.
    #[error("the caller's share of stored outcomes is used up")]
    AgentFull,
    /// There is no room for anybody.
    #[error("the store of outcomes is full")]
    Full,
    /// The content is larger than an entry may be.
    #[error("the outcome is too large to be stored")]
    TooLarge,
    /// The entry is not of this revision any more.
    #[error("the stored outcome was changed by another replica")]
    Taken,
    /// The store cannot be asked, or does not take the change.
    #[error("the store of outcomes is unavailable")]
    Unavailable,
    /// The store gave no answer that is understood. The change may have been made, or be made yet.
    #[error("the store of outcomes did not answer")]
    Unanswered,
}
