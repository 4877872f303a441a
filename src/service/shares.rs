//! How the subjects that one agent acts for share what the agent may use: a rate, and places. Only counts.
//! Never lets one of them take the last of it, except for a batch larger than what is left, and never grants all of them more than the
//! agent has.
//!
//! As elsewhere (`fair.rs`), a subject may have one more only while it has less than what is still free. Of a rate, a subject's backlog
//! counts: what it used beyond what the rate has given back since. The rate gives back to all subjects with a backlog alike.

use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasher as _, RandomState};
use std::time::{Duration, Instant};

use crate::auth::Caller;
use crate::name::Name;

/// Who uses something: an agent, and the subject that it acts for, if any.
///
/// Subjects are identified by a digest that nobody else can compute: what is kept of one does not depend on how long its
/// name is.
#[derive(Debug, Clone)]
pub(in crate::service) struct Payer {
    pub(in crate::service) agent: Name,
    pub(in crate::service) subject: Option<u64>,
}

/// The taken places, out of those that an agent has.
#[derive(Debug, Default)]
pub(in crate::service) struct Taken {
    count: usize,
    /// INVARIANT: only subjects that have taken some.
    subjects: HashMap<u64, usize>,
}

/// What the subjects of one agent have used and the rate has not given back.
#[derive(Debug)]
pub(in crate::service) struct Backlog {
    at: Instant,
    /// How much each subject that was here from the beginning was given back, in parts of a call.
    given: u64,
    /// The value of `given` at which each subject's backlog ends, the earliest first; and the same by subject.
    ends: BTreeSet<(u64, u64)>,
    subjects: HashMap<u64, u64>,
    /// The backlog of all of them.
    total: u64,
    /// A remainder too small to be divided yet.
    rest: u64,
}

/// The parts of a call: one part is what a rate of one call per second gives back in a nanosecond.
const CALL: u64 = 1_000_000_000;

impl Payer {
    pub(in crate::service) fn of(caller: &Caller, hasher: &RandomState) -> Self {
        // Two issuers may each have a subject of the same name.
        let subject = caller.delegated.then(|| hasher.hash_one((&caller.token.issuer, &caller.subject)));
        Self { agent: caller.agent.clone(), subject }
    }
}

impl Taken {
    /// Takes one of `most` places.
    pub(in crate::service) fn take(&mut self, subject: Option<u64>, most: usize) -> bool {
        let free = most.saturating_sub(self.count);
        let own = subject.and_then(|subject| self.subjects.get(&subject).copied()).unwrap_or(0);
        if own >= free {
            return false;
        }
        self.count += 1;
        if let Some(subject) = subject {
            self.subjects.insert(subject, own + 1);
        }
        true
    }

    pub(in crate::service) fn give_back(&mut self, subject: Option<u64>) {
        self.count = self.count.saturating_sub(1);
        if let Some(subject) = subject
            && let Some(own) = self.subjects.get_mut(&subject)
        {
            *own = own.saturating_sub(1);
            if *own == 0 {
                self.subjects.remove(&subject);
            }
        }
    }

    pub(in crate::service) fn count(&self) -> usize {
        self.count
    }

    pub(in crate::service) fn is_empty(&self) -> bool {
        self.count == 0
    }
}

impl Backlog {
    pub(in crate::service) fn new(now: Instant) -> Self {
        Self { at: now, given: 0, ends: BTreeSet::new(), subjects: HashMap::new(), total: 0, rest: 0 }
    }

    /// Charges `calls`, of `burst` that may be used beyond `per_second`; otherwise returns how long it takes until they
    /// are available.
    pub(in crate::service) fn charge(
        &mut self,
        subject: u64,
        calls: u32,
        (per_second, burst): (u32, u32),
        now: Instant,
    ) -> Result<(), Duration> {
        self.give(per_second, now);
        let (cost, room) = (u64::from(calls) * CALL, u64::from(burst) * CALL);
        let end = self.subjects.get(&subject).copied();
        let own = end.map_or(0, |end| end - self.given);
        let free = room.saturating_sub(self.total);
        // By how much it is too much: for its own share, for all together, or for the number of subjects.
        let mut excess = (own + CALL).saturating_sub(free).max((self.total + cost).saturating_sub(room));
        if own < free && self.total + cost <= room {
            excess = 0;
        }
        if end.is_none() && self.subjects.len() >= 2 * usize::try_from(burst).unwrap_or(usize::MAX) {
            excess = excess.max(CALL);
        }
        if excess > 0 {
            // Plus what cannot be divided among them.
            excess += self.subjects.len() as u64;
            return Err(Duration::from_nanos(excess / u64::from(per_second.max(1)) + 1));
        }
        if let Some(end) = end {
            self.ends.remove(&(end, subject));
        }
        let end = self.given + own + cost;
        self.ends.insert((end, subject));
        self.subjects.insert(subject, end);
        self.total += cost;
        Ok(())
    }

    /// Gives back what was just charged and not used.
    pub(in crate::service) fn undo(&mut self, subject: u64, calls: u32) {
        let Some(end) = self.subjects.get(&subject).copied() else { return };
        self.ends.remove(&(end, subject));
        let cost = (u64::from(calls) * CALL).min(end - self.given);
        self.total -= cost;
        if end - cost == self.given {
            self.subjects.remove(&subject);
        } else {
            self.ends.insert((end - cost, subject));
            self.subjects.insert(subject, end - cost);
        }
    }

    /// Gives back what the rate has brought until now, to all subjects alike.
    fn give(&mut self, per_second: u32, now: Instant) {
        let past = u64::try_from(now.saturating_duration_since(self.at).as_nanos()).unwrap_or(u64::MAX);
        self.at = self.at.max(now);
        if self.given > MOST_GIVEN {
            let given = std::mem::take(&mut self.given);
            self.ends = self.ends.iter().map(|(end, subject)| (end - given, *subject)).collect();
            self.subjects.values_mut().for_each(|end| *end -= given);
        }
        let mut all = past.saturating_mul(per_second.into()).saturating_add(self.rest);
        while let Some(&(end, subject)) = self.ends.first() {
            let count = self.ends.len() as u64;
            let each = (end - self.given).min(all / count);
            self.given += each;
            self.total -= each * count;
            all -= each * count;
            if self.given < end {
                self.rest = all;
                return;
            }
            self.ends.pop_first();
            self.subjects.remove(&subject);
        }
        (self.given, self.total, self.rest) = (0, 0, 0);
        if self.subjects.capacity() > KEPT_ROOM {
            self.subjects.shrink_to(KEPT_ROOM);
        }
    }

    /// Whether nothing has to be kept.
    pub(in crate::service) fn is_over(&mut self, per_second: u32, now: Instant) -> bool {
        self.give(per_second, now);
        self.subjects.is_empty()
    }
}

/// Where counting starts from zero again: otherwise a backlog that never ends would overflow the numbers.
const MOST_GIVEN: u64 = 1 << 62;

/// Memory for this many subjects is kept while their agent is busy.
const KEPT_ROOM: usize = 256;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    const RATE: (u32, u32) = (100, 200);

    /// Calls that come evenly for ten seconds, so many a second of each subject; returns how many of each pass in the
    /// last five.
    fn passed(offered: &[(u64, u32)], rate: (u32, u32)) -> Vec<u32> {
        let start = Instant::now();
        let mut backlog = Backlog::new(start);
        let mut passed = vec![0; offered.len()];
        for ms in 0..10_000_u32 {
            for (place, (subject, per_second)) in offered.iter().enumerate() {
                let due = |ms: u32| u64::from(ms) * u64::from(*per_second) / 1_000;
                for _ in due(ms)..due(ms + 1) {
                    let now = start + Duration::from_millis(ms.into());
                    let may = backlog.charge(*subject, 1, rate, now).is_ok();
                    passed[place] += u32::from(may && ms >= 5_000);
                }
            }
        }
        passed
    }

    #[test]
    fn one_that_is_loud_has_what_the_others_leave_and_they_have_all_that_they_ask_for() {
        let alone = passed(&[(1, 1_000)], RATE);
        assert!((495..=505).contains(&alone[0]), "all of the rate, where nobody else wants any: {alone:?}");
        let both = passed(&[(1, 1_000), (2, 40)], RATE);
        assert_eq!(both[1], 200, "{both:?}");
        assert!((295..=305).contains(&both[0]), "{both:?}");
        // Two loud subjects cannot take it from a third, either.
        let three = passed(&[(1, 1_000), (2, 1_000), (3, 30)], RATE);
        assert_eq!(three[2], 150, "{three:?}");
        assert!(three[0].abs_diff(three[1]) < 20 && three.iter().sum::<u32>() <= 505, "{three:?}");
    }

    #[test]
    fn a_hundred_thousand_names_have_no_more_than_one_and_are_not_all_kept() {
        let start = Instant::now();
        let (mut backlog, mut passed) = (Backlog::new(start), 0);
        for subject in 0..100_000_u64 {
            let now = start + Duration::from_micros(10 * subject);
            passed += u32::from(backlog.charge(subject, 1, RATE, now).is_ok());
            assert!(backlog.subjects.len() <= 400 && backlog.ends.len() == backlog.subjects.len());
        }
        // A second of the rate, and the burst.
        assert!((290..=301).contains(&passed), "{passed}");
        assert!(backlog.is_over(RATE.0, start + Duration::from_secs(10)));
        assert_eq!((backlog.total, backlog.given, backlog.ends.len()), (0, 0, 0));
    }

    #[test]
    fn who_waits_as_long_as_it_is_told_to_may() {
        for others in [0, 1, 5] {
            let start = Instant::now();
            let mut backlog = Backlog::new(start);
            for subject in 1..=others {
                while backlog.charge(subject, 1, RATE, start).is_ok() {}
            }
            while backlog.charge(0, 1, RATE, start).is_ok() {}
            for calls in [1, 50] {
                let wait = backlog.charge(0, calls, RATE, start).unwrap_err();
                assert!(wait <= Duration::from_secs(3), "{others}: {wait:?}");
                let mut later = Backlog { ends: backlog.ends.clone(), subjects: backlog.subjects.clone(), ..backlog };
                assert_eq!(later.charge(0, calls, RATE, start + wait), Ok(()), "{others} others, {calls} calls");
            }
        }
    }

    #[test]
    fn what_was_not_used_is_given_back() {
        let (now, mut backlog) = (Instant::now(), Backlog::new(Instant::now()));
        assert!(backlog.charge(1, 50, RATE, now).is_ok() && backlog.charge(2, 10, RATE, now).is_ok());
        let (ends, total) = (backlog.ends.clone(), backlog.total);
        assert!(backlog.charge(2, 20, RATE, now).is_ok() && backlog.charge(3, 7, RATE, now).is_ok());
        backlog.undo(3, 7);
        backlog.undo(2, 20);
        assert_eq!((backlog.ends.clone(), backlog.total, backlog.subjects.len()), (ends, total, 2));
        backlog.undo(4, 1);
        backlog.undo(1, 1_000);
        backlog.undo(2, 10);
        assert!(backlog.ends.is_empty() && backlog.subjects.is_empty() && backlog.total == 0);
    }

    #[test]
    fn a_backlog_that_never_ends_is_counted_from_zero_again() {
        let mut now = Instant::now();
        let mut backlog = Backlog::new(now);
        assert!(backlog.charge(1, 1, RATE, now).is_ok());
        // As after years of use.
        let years = MOST_GIVEN + 1;
        backlog.given = years;
        backlog.ends = [(years + CALL, 1)].into();
        backlog.subjects = [(1, years + CALL)].into();
        for _ in 0..100 {
            now += Duration::from_millis(10);
            assert!(backlog.charge(1, 1, RATE, now).is_ok());
        }
        assert!(backlog.given < 2 * 100 * CALL && backlog.total == CALL, "{} {}", backlog.given, backlog.total);
    }

    #[test]
    fn a_batch_of_the_whole_burst_passes_when_nothing_was_used() {
        let (now, mut backlog) = (Instant::now(), Backlog::new(Instant::now()));
        assert!(backlog.charge(1, 200, RATE, now).is_ok());
        assert!(backlog.charge(2, 1, RATE, now).is_err(), "and uses all of it");
        assert!(backlog.charge(2, 1, RATE, now + Duration::from_millis(20)).is_ok());
    }

    #[test]
    fn places_of_an_agent_are_shared_by_those_it_acts_for() {
        let mut taken = Taken::default();
        let fill = |taken: &mut Taken, subject| (0..100).filter(|_| taken.take(subject, 64)).count();
        assert_eq!(fill(&mut taken, Some(1)), 32);
        assert_eq!(fill(&mut taken, Some(2)), 16);
        assert!(taken.take(Some(3), 64));
        assert_eq!(fill(&mut taken, None), 15, "what it calls for itself has all that is left");
        assert!(!taken.take(Some(4), 64));
        for _ in 0..32 {
            taken.give_back(Some(1));
        }
        assert!(taken.take(Some(4), 64) && !taken.is_empty());
    }
}
