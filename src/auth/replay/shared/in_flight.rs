//! How many checks are in flight, in all and per owner. Never queues: one too many is refused at once.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::super::AdmitError;
use crate::name::Name;

/// The checks in flight.
#[derive(Debug)]
pub(super) struct InFlightLimiter {
    most: usize,
    most_per_owner: usize,
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    all: usize,
    /// Holds only owners with at least one.
    owners: HashMap<Name, usize>,
}

/// One check in flight, until dropped.
#[derive(Debug)]
pub(super) struct InFlightPermit<'a> {
    flight: &'a InFlightLimiter,
    owner: &'a Name,
}

impl InFlightLimiter {
    pub(super) fn new(most: usize, most_per_owner: usize) -> Self {
        Self { most, most_per_owner, counts: Mutex::default() }
    }

    /// Counts one more; `retry_after_ms` is how long a check takes at most.
    pub(super) fn enter<'a>(&'a self, owner: &'a Name, retry_after_ms: u64) -> Result<InFlightPermit<'a>, AdmitError> {
        let mut counts = self.counts();
        if counts.all >= self.most {
            return Err(AdmitError::Full { retry_after_ms });
        }
        match counts.owners.get_mut(owner) {
            Some(count) if *count >= self.most_per_owner => return Err(AdmitError::OwnerFull { retry_after_ms }),
            Some(count) => *count += 1,
            None => {
                counts.owners.insert(owner.clone(), 1);
            }
        }
        counts.all += 1;
        Ok(InFlightPermit { flight: self, owner })
    }

    pub(super) fn len(&self) -> usize {
        self.counts().all
    }

    /// Nothing between lock and unlock can panic halfway.
    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for InFlightPermit<'_> {
    fn drop(&mut self) {
        let mut counts = self.flight.counts();
        counts.all -= 1;
        match counts.owners.get_mut(self.owner) {
            Some(count) if *count > 1 => *count -= 1,
            _ => {
                counts.owners.remove(self.owner);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn an_owner_at_its_bound_is_refused_and_others_are_not() {
        let flight = InFlightLimiter::new(3, 2);
        let (a, b, c) = (Name::new("a").unwrap(), Name::new("b").unwrap(), Name::new("c").unwrap());
        let first = flight.enter(&a, 250).unwrap();
        let _second = flight.enter(&a, 250).unwrap();
        assert_eq!(flight.enter(&a, 250).err(), Some(AdmitError::OwnerFull { retry_after_ms: 250 }));
        let third = flight.enter(&b, 250).unwrap();
        assert_eq!(flight.enter(&c, 250).err(), Some(AdmitError::Full { retry_after_ms: 250 }));
        drop(first);
        assert!(flight.enter(&a, 250).is_ok(), "and dropped at once");
        drop(third);
        assert_eq!(flight.len(), 1);
        assert_eq!(flight.counts().owners.len(), 1, "owners without checks take no memory");
    }
}
