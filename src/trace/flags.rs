//! How often a caller's sampled flag counts: otherwise one caller could have all of its calls recorded.
//! Never grows with what callers send.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// When the flags of each caller that have counted are used up (GCRA).
#[derive(Debug, Default)]
pub(super) struct Flags(Mutex<HashMap<Box<str>, Instant>>);

/// The most callers whose flags have counted in the last second. The flags of others do not count meanwhile.
const MAX_CALLERS: usize = 10_000;

impl Flags {
    /// Whether one more flag of this caller counts, of which there may be so many in a second, and as many at once.
    pub(super) fn allow(&self, caller: &str, per_second: u32) -> bool {
        let Some(each) = Duration::from_secs(1).checked_div(per_second) else { return false };
        let now = Instant::now();
        let mut used = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(until) = used.get_mut(caller) {
            let next = (*until).max(now) + each;
            let is_within = next.saturating_duration_since(now) <= Duration::from_secs(1);
            if is_within {
                *until = next;
            }
            return is_within;
        }
        if used.len() >= MAX_CALLERS {
            used.retain(|_, until| *until > now);
        }
        let has_room = used.len() < MAX_CALLERS;
        if has_room {
            used.insert(caller.into(), now + each);
        }
        has_room
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_of_a_caller_count_within_a_rate_and_those_of_others_beside_them() {
        let flags = Flags::default();
        let allowed = |caller: &str, per_second| (0..1_000).filter(|_| flags.allow(caller, per_second)).count();
        // As many at once as in a second, and what has come back meanwhile.
        assert!((10..=12).contains(&allowed("ann", 10)));
        assert!((10..=12).contains(&allowed("bob", 10)));
        assert!((0..=2).contains(&allowed("ann", 10)));
        assert_eq!(allowed("cas", 0), 0);
    }

    #[test]
    fn callers_beyond_the_bound_are_as_if_they_had_said_nothing() {
        let flags = Flags::default();
        let allowed = (0..2 * MAX_CALLERS).filter(|number| flags.allow(&format!("c{number}"), 1)).count();
        assert!(flags.0.lock().unwrap_or_else(PoisonError::into_inner).len() <= MAX_CALLERS);
        assert!(allowed >= MAX_CALLERS, "{allowed}");
    }
}
