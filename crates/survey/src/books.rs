//! What is known of each replica over the rounds.
//! Never grows beyond its bounds, never lets one service take the places of another whose key is known, and never lets a count move faster
//! than a count can.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::answer::{Endpoint, ReplicaStats};
use super::bucket::Bucket;
use super::fault::{Fault, Faults};

/// What a replica is known by.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// The environment of a service whose signature has proved the answer; empty for all others.
    pub environment: String,
    /// The service's name.
    pub service: String,
    /// The replica's id.
    pub id: String,
}

impl Key {
    /// Whether the service's signature has proved what it says.
    #[must_use]
    pub fn is_proved(&self) -> bool {
        !self.environment.is_empty()
    }

    /// Whose places it takes: those of its service, or of all that are not proved.
    fn share(&self) -> (&str, &str) {
        (&self.environment, if self.is_proved() { &self.service } else { "" })
    }
}

/// A replica and what it said last.
#[derive(Debug, Clone, PartialEq)]
pub struct Replica {
    /// Who it is.
    pub key: Key,
    /// What it said.
    pub stats: ReplicaStats,
    /// When.
    pub heard: Instant,
    /// In which round.
    pub(crate) round: u64,
}

impl Replica {
    /// What it said at that time.
    #[must_use]
    pub fn new(key: Key, stats: ReplicaStats, heard: Instant) -> Self {
        Self { key, stats, heard, round: 0 }
    }
}

/// The most replicas of one share: of one service whose key is known, or of all others together.
const MAX_REPLICAS: usize = 1_000;
/// The most endpoints of one share, and so many labels may be new in ten minutes; each endpoint is three series.
const MAX_ENDPOINTS: usize = 4_000;
/// After so many rounds without an answer, a replica is no longer shown.
const SILENT_ROUNDS: u64 = 3;
/// How long a replica that is silent is remembered, so that its counts cannot jump by going away for a while.
const REMEMBERED_FOR: Duration = Duration::from_secs(600);
/// More requests in a second than any endpoint of one replica can answer.
const MAX_A_SECOND: u64 = 10_000_000;
/// More calls side by side than any endpoint of one replica can work on.
const MAX_AT_A_TIME: u64 = 65_536;

/// The replicas.
#[derive(Debug, Default)]
pub(crate) struct Books {
    replicas: BTreeMap<Key, Arc<Replica>>,
    /// How many new labels each share may still bring.
    fresh: BTreeMap<(String, String), Bucket>,
    /// Those heard in this round.
    heard: BTreeSet<Key>,
    pub(crate) faults: Faults,
    pub(crate) left_out: u64,
    pub(crate) rounds: u64,
    begun: Option<Instant>,
}

impl Books {
    /// Begins a round.
    pub(crate) fn begin(&mut self, now: Instant) {
        self.heard.clear();
        self.rounds += 1;
        self.begun = Some(now);
        self.replicas.retain(|_, replica| now.saturating_duration_since(replica.heard) <= REMEMBERED_FOR);
    }

    /// Takes an answer.
    pub(crate) fn take(&mut self, key: Key, stats: ReplicaStats, now: Instant) {
        if let Err(fault) = self.try_take(key, stats, now) {
            self.faults.count(fault, 1);
        }
    }

    fn try_take(&mut self, key: Key, stats: ReplicaStats, now: Instant) -> Result<(), Fault> {
        if self.heard.contains(&key) {
            return Err(Fault::Duplicate);
        }
        let known = self.replicas.get(&key).map(Arc::clone);
        let before: BTreeMap<_, _> =
            known.iter().flat_map(|known| &known.stats.endpoints).map(|endpoint| (endpoint.key(), endpoint)).collect();
        if let Some(known) = &known {
            let elapsed = now.saturating_duration_since(known.heard);
            let is_plausible = |endpoint: &Endpoint| {
                before.get(&endpoint.key()).is_none_or(|before| could_follow(before, endpoint, elapsed))
            };
            if !stats.endpoints.iter().all(is_plausible) {
                return Err(Fault::Implausible);
            }
        }
        let marks = known.as_ref().map(|known| known.stats.marks()).unwrap_or_default();
        let new = stats.marks().difference(&marks).count();
        if new > 0 {
            // First whether it may come, then whether it has a place: nobody makes way for one that may not come.
            let (environment, name) = key.share();
            let share = (environment.to_owned(), name.to_owned());
            let bucket = self.fresh.entry(share.clone()).or_insert_with(|| Bucket::new(MAX_ENDPOINTS, now));
            if !bucket.take(new, now) {
                return Err(Fault::Full);
            }
            if !self.make_room(&key, stats.endpoints.len()) {
                self.fresh.get_mut(&share).into_iter().for_each(|bucket| bucket.give_back(new));
                return Err(Fault::Full);
            }
        }
        self.left_out = self.left_out.saturating_add(stats.left_out as u64);
        self.heard.insert(key.clone());
        self.replicas.insert(key.clone(), Arc::new(Replica { round: self.rounds, ..Replica::new(key, stats, now) }));
        Ok(())
    }

    /// Whether there is room for a replica with so many endpoints in its share, if those that are silent make way.
    fn make_room(&mut self, key: &Key, endpoints: usize) -> bool {
        let others = || self.replicas.values().filter(|other| other.key != *key && other.key.share() == key.share());
        let mut silent: Vec<_> = others().filter(|other| !self.heard.contains(&other.key)).cloned().collect();
        let mut taken = others().map(|other| other.stats.endpoints.len()).sum::<usize>() + endpoints;
        let mut replicas = others().count() + 1;
        // The one that has been silent for longest goes first.
        silent.sort_by_key(|replica| std::cmp::Reverse(replica.heard));
        while taken > MAX_ENDPOINTS || replicas > MAX_REPLICAS {
            // Those of the last rounds may only be late.
            let oldest = silent.pop().filter(|oldest| !self.is_late(oldest));
            let Some(oldest) = oldest else { return false };
            taken -= oldest.stats.endpoints.len();
            replicas -= 1;
            self.replicas.remove(&oldest.key);
        }
        true
    }

    /// Whether a replica that is silent has been heard not long before the latest one.
    fn is_late(&self, replica: &Replica) -> bool {
        let latest = self.replicas.values().map(|replica| replica.heard).max();
        latest.is_some_and(|latest| latest.saturating_duration_since(replica.heard) < LATE)
    }

    /// The replicas that have been heard in the last rounds, unless the last one is longer ago than `fresh_for`.
    pub(crate) fn shown(&self, now: Instant, fresh_for: Duration) -> Vec<Arc<Replica>> {
        if self.begun.is_none_or(|begun| now.saturating_duration_since(begun) > fresh_for) {
            return Vec::new();
        }
        let is_fresh = |replica: &&Arc<Replica>| replica.round + SILENT_ROUNDS > self.rounds;
        self.replicas.values().filter(is_fresh).cloned().collect()
    }
}

/// For so long a silent replica keeps its place whoever wants it.
const LATE: Duration = Duration::from_secs(60);

/// Whether an endpoint that has counted so much can have counted that much a while later. After a restart it counts from zero.
fn could_follow(before: &Endpoint, now: &Endpoint, elapsed: Duration) -> bool {
    let seconds = elapsed.as_secs().saturating_add(1);
    let grown = |before: u64, now: u64| now.checked_sub(before).unwrap_or(now);
    let requests = seconds.saturating_mul(MAX_A_SECOND);
    let processing_ns = seconds.saturating_mul(MAX_AT_A_TIME).saturating_mul(1_000_000_000);
    grown(before.requests, now.requests) <= requests
        && grown(before.errors, now.errors) <= requests
        && grown(before.denied, now.denied) <= requests
        && grown(before.processing_ns, now.processing_ns) <= processing_ns
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    const FRESH: Duration = Duration::from_secs(45);

    fn key(environment: &str, service: &str, id: &str) -> Key {
        Key { environment: environment.into(), service: service.into(), id: id.into() }
    }

    fn stats(endpoints: usize, requests: u64) -> ReplicaStats {
        let endpoint =
            |at: usize| Endpoint { name: format!("e{at}"), subject: "s".into(), requests, ..Endpoint::default() };
        ReplicaStats { endpoints: (0..endpoints).map(endpoint).collect(), ..ReplicaStats::default() }
    }

    fn counts(books: &Books) -> Vec<(&'static str, u64)> {
        books.faults.read().filter(|(_, count)| *count > 0).map(|(fault, count)| (fault.label(), count)).collect()
    }

    #[test]
    fn a_replica_that_is_silent_vanishes_and_comes_back() {
        let (mut books, now) = (Books::default(), Instant::now());
        let shown = |books: &Books, now| books.shown(now, FRESH).len();
        assert_eq!(shown(&books, now), 0);
        books.begin(now);
        books.take(key("", "a", "1"), stats(1, 5), now);
        // Nobody has asked since.
        assert_eq!((shown(&books, now + FRESH), shown(&books, now + 2 * FRESH)), (1, 0));
        for expected in [1, 1, 0, 0] {
            books.begin(now);
            assert_eq!(shown(&books, now), expected);
        }
        books.take(key("", "a", "1"), stats(1, 6), now);
        assert_eq!(shown(&books, now), 1);
        books.begin(now + 2 * REMEMBERED_FOR);
        assert!(books.replicas.is_empty());
    }

    #[test]
    fn a_count_cannot_jump_however_it_comes_about() {
        let (mut books, now) = (Books::default(), Instant::now());
        let at = |seconds| now + Duration::from_secs(seconds);
        let most = |seconds: u64| (seconds + 1) * MAX_A_SECOND;
        for (seconds, requests, taken) in [
            (0, 0, true),
            (10, most(10) + 1, false),
            (20, most(20), true),
            (21, 1 << 53, false),
            // As after a restart; and then not up again at once.
            (30, 7, true),
            (31, most(20), false),
            // It was away for a while.
            (300, 1 << 52, false),
            (310, most(280), true),
        ] {
            books.begin(at(seconds));
            books.take(key("", "a", "1"), stats(1, requests), at(seconds));
            assert_eq!(books.heard.len(), usize::from(taken), "{seconds}");
        }
        assert_eq!(counts(&books), [("implausible", 4)]);
        let mut long = stats(1, most(280));
        long.endpoints[0].processing_ns = 1 << 53;
        books.begin(at(311));
        books.take(key("", "a", "1"), long, at(311));
        assert!(books.heard.is_empty(), "a hundred days of work in a second are more than 65,536 calls can have done");
    }

    #[test]
    fn the_first_answer_with_an_id_counts_and_no_other() {
        let (mut books, now) = (Books::default(), Instant::now());
        books.begin(now);
        books.take(key("", "a", "1"), stats(1, 5), now);
        books.take(key("", "a", "1"), stats(1, 9), now);
        books.take(key("dev", "a", "1"), stats(1, 7), now);
        let shown: Vec<u64> = books.shown(now, FRESH).iter().map(|it| it.stats.endpoints[0].requests).collect();
        assert_eq!((shown, counts(&books)), (vec![5, 7], vec![("duplicate", 1)]));
    }

    #[test]
    fn a_flood_of_ids_takes_no_more_than_its_places_and_none_of_a_proved_service() {
        let (mut books, now) = (Books::default(), Instant::now());
        for round in 0..150_u64 {
            let now = now + Duration::from_secs(10 * round);
            books.begin(now);
            books.take(key("dev", "math", "A"), stats(3, round), now);
            for id in 0..1_000 {
                books.take(key("", "evil", &format!("{round}-{id}")), stats(4, 0), now);
            }
            let shown = books.shown(now, FRESH);
            let endpoints: usize = shown.iter().map(|it| it.stats.endpoints.len()).sum();
            assert!(endpoints <= MAX_ENDPOINTS + 3 && shown.len() <= MAX_REPLICAS + 1, "{endpoints}");
            assert!(shown.iter().any(|it| it.key.is_proved() && it.stats.endpoints[0].requests == round), "{round}");
        }
        let remembered: usize = books.replicas.values().map(|it| it.stats.endpoints.len()).sum();
        assert!(remembered <= MAX_ENDPOINTS + 3, "{remembered}");
    }

    #[test]
    fn no_more_series_are_new_in_a_time_than_the_bound() {
        let (mut books, now) = (Books::default(), Instant::now());
        let mut seen = BTreeSet::new();
        // A thousand rounds in ten minutes, each with other ids, other endpoints, and other versions.
        for round in 0..1_000_u64 {
            let now = now + Duration::from_millis(600 * round);
            books.begin(now);
            for id in 0..20 {
                let mut stats = stats(4, 0);
                stats.endpoints[0].name = format!("r{round}");
                stats.version = round.to_string();
                books.take(key("", "evil", &id.to_string()), stats.clone(), now);
                books.take(key("", "evil", &format!("{round}-{id}")), stats, now);
            }
            for replica in books.shown(now, FRESH) {
                let names = replica.stats.endpoints.iter().map(|endpoint| endpoint.name.clone());
                seen.extend(names.chain([replica.stats.version.clone()]).map(|label| (replica.key.clone(), label)));
            }
        }
        assert!(seen.len() <= 2 * MAX_ENDPOINTS, "{}", seen.len());
        assert!(seen.len() > MAX_ENDPOINTS / 2, "{}", seen.len());
    }

    #[test]
    fn those_that_answer_keep_their_places_and_the_silent_make_way() {
        let (mut books, now) = (Books::default(), Instant::now());
        let full = MAX_ENDPOINTS / 4;
        books.begin(now);
        for id in 0..full {
            books.take(key("", "old", &id.to_string()), stats(4, 0), now);
        }
        // The endpoints and the replica itself are new: not all of them are taken at once.
        let taken = books.heard.len();
        assert!(taken < full && taken > full / 2, "{taken}");
        let later = now + Bucket::REFILLED_AFTER - Duration::from_secs(1);
        books.begin(later);
        for id in 0..taken / 2 {
            books.take(key("", "old", &id.to_string()), stats(4, 1), later);
        }
        for id in 0..full {
            books.take(key("", "new", &id.to_string()), stats(4, 0), later);
        }
        let shown = books.shown(later, FRESH);
        let of = |name: &str| shown.iter().filter(|it| it.key.service == name).count();
        assert_eq!(of("old"), taken / 2);
        assert!(of("new") >= full / 2 - 1 && of("new") <= full - taken / 2, "{}", of("new"));
    }
}
