//! How much of a budget is used, within any window.
//! Never forgets a part too early: a sum may be too high for a while, and never too low.
//!
//! Time is cut into parts. What is charged counts for the part in which that happens, and until no window can hold both that part and the
//! present one. So no window of the budget's length, wherever it begins, holds more than the limit, and room comes back part by part.

use serde::{Deserialize, Serialize};

/// A window, cut into parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    part_ms: u64,
    /// How many parts before the present one count.
    before: u64,
    window_ms: u64,
}

/// Into how many parts a window is cut. More would give room back in smaller steps, and take more bytes for each caller.
pub(super) const PARTS: u64 = 50;

impl Span {
    /// A window of this length, at least a minute. Clocks that charge one count may differ by `drift_ms`: what they charge within a window
    /// may then look as far apart as this longer.
    pub(super) fn new(window_s: u64, drift_ms: u64) -> Self {
        let window_ms = window_s.saturating_mul(1000);
        let part_ms = (window_ms / PARTS).max(1);
        Self { part_ms, before: window_ms.saturating_add(drift_ms).div_ceil(part_ms), window_ms: window_ms + drift_ms }
    }

    /// For how long a charge may count, in milliseconds.
    pub(super) fn counts_for_ms(self) -> u64 {
        self.window_ms.saturating_add(2 * self.part_ms)
    }

    fn part_at(self, now_ms: u64) -> u64 {
        now_ms / self.part_ms
    }
}

/// What was charged, by parts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Count {
    /// The last part that any charge saw. Time does not go back behind it.
    latest: u64,
    /// INVARIANT: in ascending order, none of them empty, and none later than `latest`.
    parts: Vec<(u64, u64)>,
}

impl Count {
    /// Charges `amount`, if the sum stays within `at_most`.
    ///
    /// # Errors
    /// After how many milliseconds there is room for it, if nothing else is charged meanwhile. `amount` alone must be within `at_most`.
    pub(super) fn charge(&mut self, amount: u64, at_most: u64, now_ms: u64, span: Span) -> Result<(), u64> {
        let present = self.latest.max(span.part_at(now_ms));
        let counted = |(part, _): &&(u64, u64)| *part >= present.saturating_sub(span.before);
        let used: u128 = self.parts.iter().filter(counted).map(|(_, sum)| u128::from(*sum)).sum();
        let mut above = (used + u128::from(amount)).saturating_sub(u128::from(at_most));
        if above > 0 {
            let mut free_at = present;
            for (part, sum) in self.parts.iter().filter(counted) {
                if above == 0 {
                    break;
                }
                above = above.saturating_sub(u128::from(*sum));
                free_at = part.saturating_add(span.before).saturating_add(1);
            }
            return Err(free_at.saturating_mul(span.part_ms).saturating_sub(now_ms).max(1));
        }
        if amount == 0 {
            return Ok(());
        }
        self.parts.retain(|part| counted(&part));
        self.latest = present;
        match self.parts.last_mut() {
            Some((part, sum)) if *part == present => *sum = sum.saturating_add(amount),
            _ => self.parts.push((present, amount)),
        }
        Ok(())
    }

    /// After how many milliseconds nothing of it counts any more; 1 if nothing does.
    pub(super) fn ends_in_ms(&self, now_ms: u64, span: Span) -> u64 {
        let end = self.latest.saturating_add(span.before).saturating_add(1).saturating_mul(span.part_ms);
        end.saturating_sub(now_ms).max(1)
    }

    /// Whether it has all that `earlier` had and that still counts. What was charged stays charged, so a count that lacks some of it is not
    /// what became of `earlier`.
    pub(super) fn follows(&self, earlier: &Self, now_ms: u64, span: Span) -> bool {
        let since = self.latest.max(span.part_at(now_ms)).saturating_sub(span.before);
        let has = |part: u64| self.parts.iter().find(|(known, _)| *known == part).map_or(0, |(_, sum)| *sum);
        earlier.parts.iter().filter(|(part, _)| *part >= since).all(|(part, sum)| has(*part) >= *sum)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use proptest::prelude::*;

    use super::*;

    const MINUTE: u64 = 60;

    #[test]
    fn room_comes_back_when_no_window_holds_the_charge_any_more() {
        let (span, start) = (Span::new(MINUTE, 0), 1_000_000_000);
        let mut count = Count::default();
        count.charge(7, 10, start, span).unwrap();
        count.charge(3, 10, start + 30_000, span).unwrap();
        let wait = count.charge(1, 10, start + 30_000, span).unwrap_err();
        // A window of a minute, and the rest of the part in which it was charged.
        assert!((30_001..=31_200).contains(&wait), "{wait}");
        assert!(count.clone().charge(7, 10, start + 30_000 + wait - 1, span).is_err());
        count.charge(7, 10, start + 30_000 + wait, span).unwrap();
        assert!(count.charge(1, 10, start + 30_000 + wait, span).is_err(), "the three still count");
    }

    #[test]
    fn amounts_add_up_without_overflow() {
        let (span, most) = (Span::new(MINUTE, 0), u64::try_from(i64::MAX).unwrap());
        let mut count = Count::default();
        count.charge(most - 1, most, 0, span).unwrap();
        assert!(count.charge(most, most, 0, span).is_err());
        count.charge(1, most, 0, span).unwrap();
        assert!(count.charge(1, most, 0, span).is_err());
        assert!(count.charge(0, most, 0, span).is_ok());
    }

    #[test]
    fn a_clock_that_is_set_back_gives_no_room_back() {
        let span = Span::new(MINUTE, 0);
        let mut count = Count::default();
        count.charge(10, 10, 600_000, span).unwrap();
        let wait = count.charge(1, 10, 0, span).unwrap_err();
        assert!(wait > 660_000 && count.charge(1, 10, wait, span).is_ok(), "{wait}");
    }

    #[test]
    fn a_count_that_lacks_what_was_charged_does_not_follow() {
        let span = Span::new(MINUTE, 0);
        let mut earlier = Count::default();
        earlier.charge(5, 100, 600_000, span).unwrap();
        let mut later = earlier.clone();
        later.charge(5, 100, 630_000, span).unwrap();
        let now = 630_000;
        assert!(later.follows(&earlier, now, span) && !earlier.follows(&later, now, span));
        assert!(!Count::default().follows(&earlier, now, span) && earlier.follows(&Count::default(), now, span));
        // Once nothing of it counts, anything does, and not before.
        let end = now + later.ends_in_ms(now, span);
        assert!(!Count::default().follows(&later, end - 1, span) && Count::default().follows(&later, end, span));
        // It has ended since.
        later.charge(5, 100, 900_000, span).unwrap();
        assert!(later.follows(&earlier, 900_000, span));
    }

    proptest! {
        /// Against the list of all charges: whatever the clocks say, as long as they differ by no more than the drift.
        #[test]
        fn never_above_in_any_window(
            window_s in MINUTE..=3 * MINUTE,
            drift_ms in 0_u64..=10_000,
            at_most in 1_u64..=50,
            calls in prop::collection::vec((0_u64..=8_000, 0_u64..=10_000, 1_u64..=20), 1..300),
        ) {
            let span = Span::new(window_s, drift_ms);
            let (mut now, mut count, mut charged) = (1_700_000_000_000_u64, Count::default(), Vec::<(u64, u64)>::new());
            for (passed, ahead, amount) in calls {
                now += passed;
                // This replica's clock is between the true time and that much later.
                let clock = now + ahead.min(drift_ms);
                match count.charge(amount, at_most, clock, span) {
                    Ok(()) => charged.push((now, amount)),
                    Err(wait) if amount <= at_most => {
                        prop_assert!(count.clone().charge(amount, at_most, clock + wait, span).is_ok());
                        prop_assert!(count.clone().charge(amount, at_most, clock + wait - 1, span).is_err());
                    }
                    Err(_) => {}
                }
                let since = now - window_s * 1000;
                let sum: u64 = charged.iter().filter(|(at, _)| *at >= since).map(|(_, amount)| amount).sum();
                prop_assert!(sum <= at_most, "{sum} of {at_most}");
            }
        }

        /// Nothing is refused that a window longer by the drift and two parts has room for.
        #[test]
        fn what_has_surely_left_the_window_gives_room(
            window_s in MINUTE..=3 * MINUTE,
            calls in prop::collection::vec((0_u64..=20_000, 1_u64..=10), 1..300),
        ) {
            let (span, at_most) = (Span::new(window_s, 0), 30);
            let (mut now, mut count, mut charged) = (1_700_000_000_000_u64, Count::default(), Vec::<(u64, u64)>::new());
            for (passed, amount) in calls {
                now += passed;
                let since = now - window_s * 1000 - 2 * (window_s * 1000 / PARTS);
                let used: u64 = charged.iter().filter(|(at, _)| *at > since).map(|(_, amount)| amount).sum();
                let is_charged = count.charge(amount, at_most, now, span).is_ok();
                prop_assert!(is_charged || used + amount > at_most);
                if is_charged {
                    charged.push((now, amount));
                }
            }
        }
    }
}
