//! The key with which the replicas of a service authenticate to each other what they keep.
//! Never one key for two kinds of entries: no outcome may pass for an approval.

use crate::auth::{OutcomeStore, Verifier};
use crate::wire::{Audience, HmacKey, ServiceKey};

/// The key of one kind of entries.
pub(super) struct EntryKey {
    derive: fn(&ServiceKey, &Audience) -> HmacKey,
    /// For entries that no other process reads.
    own: HmacKey,
}

impl EntryKey {
    /// `derive` makes the key of a shared store; `own` is random.
    pub(super) fn new(derive: fn(&ServiceKey, &Audience) -> HmacKey, own: [u8; 32]) -> Self {
        Self { derive, own: HmacKey::new(own) }
    }

    /// The key of what is in this store now; `None` if the replicas have none in common.
    pub(super) fn of(&self, store: &dyn OutcomeStore, verifier: &Verifier, audience: &Audience) -> Option<HmacKey> {
        match store.is_shared() {
            true => verifier.service_key().map(|key| (self.derive)(&key, audience)),
            false => Some(self.own.clone()),
        }
    }
}
