//! Caches what services have offered to each caller.
//! Never shows a caller what another one may call, and never makes one wait while services are asked for another.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use moka::sync::Cache;
use tokio::sync::Mutex as AsyncMutex;

use super::message::Fault;
use crate::caller::Caller;
use crate::catalogue::{Offer, OfferError, Services};

/// The most bytes of all callers' offers. Offers beyond that are asked for again.
const BYTES: u64 = 256 << 20;
/// Each offer counts for at least this many bytes, so there are at most 16,384.
const LEAST: u32 = 16 << 10;
/// Offers unused for this long are forgotten, but not before they would be asked for again.
const UNUSED: Duration = Duration::from_secs(600);

/// How old an offer may be, so that requests in quick succession share one.
pub(super) const RECENT: Duration = Duration::from_secs(10);

/// The services at one address, and what they have offered there.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    pub(super) services: Arc<Services>,
    pub(super) offers: Offers,
}

impl Source {
    /// What the caller may call; the offer is not older than `age`.
    pub(super) async fn offer(&self, caller: &dyn Caller, age: Duration) -> Result<Arc<Offer>, Fault> {
        self.offers.get(&self.services, caller, age).await.map_err(|none| match none {
            OfferError::Token(fault) => Fault::of_token(&fault),
            OfferError::Silent(why) => Fault::internal(why),
        })
    }
}

/// The offers at one address. Clones share the bounds.
#[derive(Debug, Clone)]
pub(crate) struct Offers {
    all: Cache<(Arc<str>, Arc<str>), Arc<Slot>>,
    /// The gateway's address: each address offers other services.
    address: Arc<str>,
}

/// The offer to one caller.
#[derive(Debug, Default)]
struct Slot {
    last: Mutex<Option<(Instant, Arc<Offer>)>>,
    /// Held while services are asked.
    asking: AsyncMutex<()>,
}

impl Slot {
    fn younger(&self, age: Duration) -> Option<Arc<Offer>> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.as_ref().filter(|(at, _)| at.elapsed() < age).map(|(_, offer)| Arc::clone(offer))
    }

    fn weight(&self) -> u32 {
        let bytes = self.younger(Duration::MAX).map_or(0, |offer| offer.bytes);
        u32::try_from(bytes).unwrap_or(u32::MAX).max(LEAST)
    }
}

impl Offers {
    pub(crate) fn new(refresh: Duration) -> Self {
        Self::of(BYTES, refresh)
    }

    fn of(bytes: u64, refresh: Duration) -> Self {
        let cache = Cache::builder().max_capacity(bytes).time_to_idle(UNUSED.max(2 * refresh));
        Self { all: cache.weigher(|_, slot: &Arc<Slot>| slot.weight()).build(), address: "".into() }
    }

    /// The offers at another address, within the same bounds.
    pub(crate) fn at(&self, address: &str) -> Self {
        Self { address: address.into(), ..self.clone() }
    }

    fn key(&self, caller: &dyn Caller) -> (Arc<str>, Arc<str>) {
        (Arc::clone(&self.address), Arc::clone(caller.name()))
    }

    /// The last offer to this caller.
    pub(super) fn last(&self, caller: &dyn Caller) -> Option<Arc<Offer>> {
        self.all.get(&self.key(caller))?.younger(Duration::MAX)
    }

    /// What the caller may call; the offer is not older than `age`.
    ///
    /// # Errors
    /// [`OfferError`] if none of the services answers.
    pub(super) async fn get(
        &self,
        services: &Services,
        caller: &dyn Caller,
        age: Duration,
    ) -> Result<Arc<Offer>, OfferError> {
        let key = self.key(caller);
        let slot = self.all.get_with(key.clone(), Arc::default);
        if let Some(offer) = slot.younger(age) {
            return Ok(offer);
        }
        let asking = slot.asking.lock().await;
        // Another request has asked meanwhile.
        if let Some(offer) = slot.younger(age) {
            return Ok(offer);
        }
        let offer = Arc::new(services.offer(caller, slot.younger(Duration::MAX).as_deref()).await?);
        *slot.last.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), Arc::clone(&offer)));
        drop(asking);
        // Inserted again so that its weight counts.
        self.all.insert(key, slot);
        Ok(offer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offers_are_kept_up_to_a_number_and_so_many_bytes() {
        let offers = Offers::of(u64::from(LEAST) * 8, Duration::from_secs(1));
        let kept = |bytes: usize| {
            for n in 0..100 {
                let slot = Slot::default();
                *slot.last.lock().unwrap_or_else(PoisonError::into_inner) =
                    Some((Instant::now(), Arc::new(Offer { bytes, ..Offer::default() })));
                // Several addresses share the bounds.
                let offers = offers.at(&(n % 3).to_string());
                offers.all.insert((offers.address, format!("{bytes} {n}").into()), Arc::new(slot));
            }
            offers.all.run_pending_tasks();
            offers.all.entry_count()
        };
        assert!(kept(1) <= 8);
        assert!(kept(4 * LEAST as usize) <= 8 && offers.all.weighted_size() <= u64::from(LEAST) * 8);
    }
}
