//! What Cedar is told about callers, kept for their next calls: building it takes a third of a decision.
//! Never returns what was built for another caller, other roles, another method or another revision of the policy.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cedar_policy::{Entities, EntityUid};

use crate::policy::model::PrincipalKind;

/// Everything that a method's entities are made of, besides the policy that the cache belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Key<'a> {
    pub(super) action: &'a EntityUid,
    pub(super) kind: PrincipalKind,
    pub(super) name: &'a str,
    /// The caller's roles that rules of the method ask for, in the caller's order.
    pub(super) roles: &'a [&'a str],
}

#[derive(Debug)]
struct Kept {
    action: EntityUid,
    kind: PrincipalKind,
    name: String,
    roles: Vec<String>,
    entities: Arc<Entities>,
}

impl Kept {
    fn is_for(&self, key: &Key<'_>) -> bool {
        self.action == *key.action && self.kind == key.kind && self.name == key.name && self.roles.iter().eq(key.roles)
    }
}

/// A fixed number of places, chosen by a digest of the key; each holds what was built last. One cache for a whole
/// policy.
#[derive(Debug)]
pub(super) struct EntityCache {
    places: Box<[Mutex<Option<Kept>>]>,
    /// Keyed: somebody who chooses names cannot choose whose place they take.
    hasher: RandomState,
}

/// A few megabytes, if all are taken by callers with about ten roles. In tests, they change hands all the time.
const PLACES: usize = if cfg!(test) { 3 } else { 2_048 };
/// Nothing is kept for more roles or longer names: these are the caller's words. Attributes are the operator's own.
const MOST_ROLES: usize = 32;
const LONGEST_NAME: usize = 256;

impl Default for EntityCache {
    fn default() -> Self {
        Self { places: (0..PLACES).map(|_| Mutex::default()).collect(), hasher: RandomState::new() }
    }
}

impl EntityCache {
    /// What was built for this key, otherwise what `build` makes of it.
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
            let (action, name) = (key.action.clone(), key.name.to_owned());
            let kept = Kept { action, kind: key.kind, name, roles, entities };
            *lock(place) = Some(kept);
        }
        Some(entities)
    }
}

fn lock(place: &Mutex<Option<Kept>>) -> MutexGuard<'_, Option<Kept>> {
    // Nothing between lock and unlock can panic halfway.
    place.lock().unwrap_or_else(PoisonError::into_inner)
}
