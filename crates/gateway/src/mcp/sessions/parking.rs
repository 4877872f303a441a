//! How many sessions go on watching while their clients have no stream.
//! Never lets one caller's sessions take the places of all.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The most sessions without a stream that go on watching, and the most resources that they watch: of one caller, and of all.
const OF_ONE: (usize, usize) = (8, 64);
const OF_ALL: (usize, usize) = (64, 512);

/// The places of sessions that go on watching without a stream. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Parking(Arc<Mutex<Taken>>);

#[derive(Debug, Default)]
struct Taken {
    is_closed: bool,
    all: (usize, usize),
    /// INVARIANT: only callers that have a place.
    callers: HashMap<Arc<str>, (usize, usize)>,
}

/// The place of one session. Dropping it makes room for another.
#[derive(Debug)]
pub(super) struct Place {
    parking: Parking,
    caller: Arc<str>,
    resources: usize,
}

impl Parking {
    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a session of this caller that watches so many resources; `None` if there is no room.
    pub(super) fn take(&self, caller: &Arc<str>, resources: usize) -> Option<Place> {
        let mut taken = self.lock();
        let own = taken.callers.get(caller).copied().unwrap_or_default();
        let with_it = |(sessions, all): (usize, usize)| (sessions + 1, all + resources);
        let fits = |(sessions, all): (usize, usize), most: (usize, usize)| sessions <= most.0 && all <= most.1;
        if taken.is_closed || !fits(with_it(own), OF_ONE) || !fits(with_it(taken.all), OF_ALL) {
            return None;
        }
        taken.all = with_it(taken.all);
        taken.callers.insert(Arc::clone(caller), with_it(own));
        Some(Place { parking: self.clone(), caller: Arc::clone(caller), resources })
    }

    /// There is no room any more.
    pub(super) fn close(&self) {
        self.lock().is_closed = true;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.parking.lock();
        taken.all = (taken.all.0 - 1, taken.all.1 - self.resources);
        if let Some(own) = taken.callers.get_mut(&self.caller) {
            *own = (own.0 - 1, own.1 - self.resources);
            if own.0 == 0 {
                taken.callers.remove(&self.caller);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    /// docs/bounds.md: sessions without a stream that go on watching.
    #[test]
    fn one_caller_has_a_few_places_and_all_have_no_more_than_the_bounds() {
        let parking = Parking::default();
        let take = |caller: &str, resources| parking.take(&caller.into(), resources);
        let mut held: Vec<_> = std::iter::from_fn(|| take("a", 1)).collect();
        assert_eq!(held.len(), OF_ONE.0);
        drop(held.pop());
        assert!(take("a", OF_ONE.1).is_none(), "with the others, too many resources");
        held.push(take("a", OF_ONE.1 - held.len()).unwrap());
        for n in 1.. {
            let more: Vec<_> = std::iter::from_fn(|| take(&n.to_string(), 1)).collect();
            if more.is_empty() {
                break;
            }
            held.extend(more);
        }
        assert_eq!(held.len(), OF_ALL.0);
        held.clear();
        assert!(parking.lock().callers.is_empty() && parking.lock().all == (0, 0));
        held.extend((0..OF_ALL.1 / OF_ONE.1).map(|n| take(&n.to_string(), OF_ONE.1).unwrap()));
        assert!(take("b", 1).is_none(), "too many resources of all");
        held.clear();
        parking.close();
        assert!(take("a", 1).is_none());
    }
}
