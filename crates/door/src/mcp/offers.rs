//! What services have offered each caller, for as long as that is believed.
//! Never shows a caller what another one may call, and never has one wait while services are asked for another.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use moka::sync::Cache;
use tokio::sync::Mutex as AsyncMutex;

use crate::caller::Caller;
use crate::catalogue::{Offer, Services};

/// The most bytes of all callers' offers. What is beyond is asked for again.
const BYTES: u64 = 256 << 20;
/// An offer counts for so many bytes at least, so these are 16,384 at most.
const LEAST: u32 = 16 << 10;
/// What nobody uses for so long is forgotten, and at the earliest when it would be asked for again.
const UNUSED: Duration = Duration::from_secs(600);

#[derive(Debug)]
pub(super) struct Offers(Cache<Arc<str>, Arc<Slot>>);

/// That of one caller.
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
    pub(super) fn new(refresh: Duration) -> Self {
        Self::of(BYTES, refresh)
    }

    fn of(bytes: u64, refresh: Duration) -> Self {
        let cache = Cache::builder().max_capacity(bytes).time_to_idle(UNUSED.max(2 * refresh));
        Self(cache.weigher(|_, slot: &Arc<Slot>| slot.weight()).build())
    }

    /// What this caller was offered last.
    pub(super) fn last(&self, caller: &dyn Caller) -> Option<Arc<Offer>> {
        self.0.get(caller.name())?.younger(Duration::MAX)
    }

    /// What it may call, not older than this.
    ///
    /// # Errors
    /// None of the services says anything; why.
    pub(super) async fn get(
        &self,
        services: &Services,
        caller: &dyn Caller,
        age: Duration,
    ) -> Result<Arc<Offer>, String> {
        let name: Arc<str> = caller.name().into();
        let slot = self.0.get_with(Arc::clone(&name), Arc::default);
        if let Some(offer) = slot.younger(age) {
            return Ok(offer);
        }
        let asking = slot.asking.lock().await;
        // Somebody else has asked meanwhile.
        if let Some(offer) = slot.younger(age) {
            return Ok(offer);
        }
        let offer = Arc::new(services.offer(caller).await?);
        *slot.last.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), Arc::clone(&offer)));
        drop(asking);
        // With its weight.
        self.0.insert(name, slot);
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
                offers.0.insert(format!("{bytes} {n}").into(), Arc::new(slot));
            }
            offers.0.run_pending_tasks();
            offers.0.entry_count()
        };
        assert!(kept(1) <= 8);
        assert!(kept(4 * LEAST as usize) <= 8 && offers.0.weighted_size() <= u64::from(LEAST) * 8);
    }
}
