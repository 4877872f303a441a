//! What Cedar is told of callers, kept for their next calls: building it is a third of a decision.
//! Never hands out what was built for another caller, other roles, another method or another revision of the policy.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cedar_policy::{Entities, EntityUid};

/// Everything that a method's entities are made of, beside the policy that the cache belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Key<'a> {
    pub(super) action: &'a EntityUid,
    pub(super) name: &'a str,
    /// Those of the caller's roles that rules of the method ask for, in the order in which the caller has them.
    pub(super) roles: &'a [&'a str],
}

#[derive(Debug)]
struct Kept {
    action: EntityUid,
    name: String,
    roles: Vec<String>,
    entities: Arc<Entities>,
}

impl Kept {
    fn is_for(&self, key: &Key<'_>) -> bool {
        self.action == *key.action && self.name == key.name && self.roles.iter().eq(key.roles)
    }
}

/// A place for each of so many digests of keys, and in each what was built last. One for a whole policy.
#[derive(Debug)]
pub(super) struct EntityCache {
    places: Box<[Mutex<Option<Kept>>]>,
    /// Keyed: whoever chooses names cannot choose whose place they take.
    hasher: RandomState,
}

/// A few megabytes, when all are taken by callers with some ten roles. In tests they change hands all the time.
const PLACES: usize = if cfg!(test) { 3 } else { 2_048 };
/// Of those with more roles and longer names nothing is kept: these are words of callers. Attributes are the operator's own.
const MOST_ROLES: usize = 32;
const LONGEST_NAME: usize = 256;

impl Default for EntityCache {
    fn default() -> Self {
        Self { places: (0..PLACES).map(|_| Mutex::default()).collect(), hasher: RandomState::new() }
    }
}

impl EntityCache {
    /// What was built for this key, or what `build` makes of it.
    pub(super) fn get_or(&self, key: &Key<'_>, build: impl FnOnce() -> Option<Entities>) -> Option<Arc<Entities>> {
        let place = usize::try_from(self.hasher.hash_one(key) % (self.places.len() as u64)).unwrap_or_default();
        let place = self.places.get(place)?;
        if let Some(kept) = lock(place).as_ref().filter(|kept| kept.is_for(key)) {
            return Some(Arc::clone(&kept.entities));
        }
        let entities = Arc::new(build()?);
        if key.roles.len() <= MOST_ROLES && key.name.len() <= LONGEST_NAME {
            let roles = key.roles.iter().map(|role| (*role).to_owned()).collect();
            let entities = Arc::clone(&entities);
            let kept = Kept { action: key.action.clone(), name: key.name.to_owned(), roles, entities };
            *lock(place) = Some(kept);
        }
        Some(entities)
    }
}

fn lock(place: &Mutex<Option<Kept>>) -> MutexGuard<'_, Option<Kept>> {
    // Nothing between lock and unlock can panic halfway.
    place.lock().unwrap_or_else(PoisonError::into_inner)
}
