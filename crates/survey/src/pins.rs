//! The services whose keys are known: whatever names one of them must be signed by it.
//! Never learns a key from the bus.

use std::collections::BTreeMap;

use sealwire::configure::ServicePublicKey;
use sealwire::internal::wire::{Audience, HeaderBlock, Nonce, Question};

use super::answer::ReplicaStats;

/// The keys of services, by the service's name and then by its audience: two environments may share a broker.
#[derive(Debug, Clone, Default)]
pub struct Pins(BTreeMap<String, BTreeMap<String, Pinned>>);

#[derive(Debug, Clone)]
struct Pinned {
    audience: Audience,
    keys: Vec<ServicePublicKey>,
}

/// The most services whose keys may be known: each is asked by itself, and its answers have bounds of their own.
const MAX_SERVICES: usize = 32;

/// There are too many of them.
#[derive(Debug, thiserror::Error)]
#[error("keys of more than {MAX_SERVICES} services: name fewer, or run several")]
pub struct TooManyPins;

impl Pins {
    /// Adds keys of a service.
    ///
    /// # Errors
    /// [`TooManyPins`].
    pub fn add(&mut self, audience: &Audience, keys: Vec<ServicePublicKey>) -> Result<(), TooManyPins> {
        if keys.is_empty() {
            return Ok(());
        }
        let of_name = self.0.entry(audience.service().to_owned()).or_default();
        let pinned = of_name.entry(audience.as_str().to_owned());
        pinned.or_insert_with(|| Pinned { audience: audience.clone(), keys: Vec::new() }).keys.extend(keys);
        if self.0.values().map(BTreeMap::len).sum::<usize>() > MAX_SERVICES { Err(TooManyPins) } else { Ok(()) }
    }

    /// The names of the services.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Whether a service of this name has keys that are known.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// The environment of the service that has signed this answer, which arrived on `subject`, for the question with `nonce`.
    pub(crate) fn environment(
        &self,
        stats: &ReplicaStats,
        nonce: Nonce,
        subject: &str,
        headers: &HeaderBlock,
        payload: &[u8],
    ) -> Option<&str> {
        // The name and the audience must be of one service: a key of `dev/math` proves nothing about `bank`.
        let Pinned { audience, keys } = self.0.get(&stats.service)?.get(stats.audience.as_deref()?)?;
        let question = Question::with(audience.clone(), nonce);
        question.accept(subject, &stats.id, headers, payload, keys).ok()?;
        Some(audience.environment())
    }
}
