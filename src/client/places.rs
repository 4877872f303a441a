//! The streams that a client may have open, and how they are shared among its principals. Counts only.
//! Never gives a principal another stream unless it has fewer than are free.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::error::ClientError;

/// The most streams that a client may have open: each may hold what its window allows.
pub(super) const MAX_STREAMS: usize = 256;

/// Places for streams.
#[derive(Debug)]
pub(super) struct StreamPlaces {
    free: Arc<Semaphore>,
    /// INVARIANT: only shares that have a stream open.
    shares: Mutex<HashMap<Arc<str>, usize>>,
}

/// A place for one stream, free again when dropped.
pub(super) struct StreamPlace {
    places: Arc<StreamPlaces>,
    share: Option<Arc<str>>,
    _place: OwnedSemaphorePermit,
}

impl StreamPlaces {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self { free: Arc::new(Semaphore::new(MAX_STREAMS)), shares: Mutex::default() })
    }

    /// Takes a place, of this share if there is one: a share gets another place only while it has fewer than are free.
    pub(super) fn take(self: &Arc<Self>, share: Option<&Arc<str>>) -> Result<StreamPlace, ClientError> {
        let mut shares = self.lock();
        if let Some(share) = share {
            let own = shares.get(share).copied().unwrap_or(0);
            if !self.free.is_closed() && own >= self.free.available_permits() {
                return Err(ClientError::TooManyStreams { limit: if own == 0 { MAX_STREAMS } else { own } });
            }
        }
        let place = Arc::clone(&self.free).try_acquire_owned().map_err(|_| match self.free.is_closed() {
            true => ClientError::Closed { sent: false },
            false => ClientError::TooManyStreams { limit: MAX_STREAMS },
        })?;
        if let Some(share) = share {
            *shares.entry(Arc::clone(share)).or_default() += 1;
        }
        Ok(StreamPlace { places: Arc::clone(self), share: share.cloned(), _place: place })
    }

    pub(super) fn taken(&self) -> usize {
        MAX_STREAMS.saturating_sub(self.free.available_permits())
    }

    pub(super) fn close(&self) {
        self.free.close();
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Arc<str>, usize>> {
        self.shares.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for StreamPlace {
    fn drop(&mut self) {
        let Some(share) = &self.share else { return };
        let mut shares = self.places.lock();
        let Some(own) = shares.get_mut(share) else { return };
        *own = own.saturating_sub(1);
        if *own == 0 {
            shares.remove(share);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn one_of_several_leaves_streams_for_others() {
        let places = StreamPlaces::new();
        let (ann, bob): (Arc<str>, Arc<str>) = ("ann".into(), "bob".into());
        let all = |share: &Arc<str>| std::iter::from_fn(|| places.take(Some(share)).ok()).collect::<Vec<_>>();
        let of_ann = all(&ann);
        assert_eq!(of_ann.len(), MAX_STREAMS / 2);
        let refused = places.take(Some(&ann)).err().unwrap();
        assert!(matches!(refused, ClientError::TooManyStreams { limit: 128 }), "{refused:?}");
        let of_bob = all(&bob);
        assert_eq!(of_bob.len(), MAX_STREAMS / 4);
        // Others still get some, and a request without a share may take the last.
        let others: Vec<_> = (0..8).map(|n| places.take(Some(&format!("{n}").into())).unwrap()).collect();
        let own: Vec<_> = std::iter::from_fn(|| places.take(None).ok()).collect();
        assert_eq!(
            (of_ann.len() + of_bob.len() + others.len() + own.len(), places.taken()),
            (MAX_STREAMS, MAX_STREAMS)
        );
        drop((of_ann, of_bob, others, own));
        assert!(places.lock().is_empty() && places.taken() == 0, "nothing is left of those that have ended");
        places.close();
        assert!(matches!(places.take(Some(&ann)), Err(ClientError::Closed { sent: false })));
    }
}
