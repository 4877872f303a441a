//! The last two answers of each replica, and what lies between them.
//! Never shows a rate that was not measured.

use std::collections::BTreeMap;
use std::sync::Arc;

use sealwire_survey::{Endpoint, Key, Replica, Snapshot};

/// What is known.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pairs: BTreeMap<Key, Pair>,
    latest: Option<Snapshot>,
}

/// A replica's last answer, and the one before.
#[derive(Debug, Clone)]
pub(super) struct Pair {
    before: Option<Arc<Replica>>,
    pub(super) now: Arc<Replica>,
}

/// Counts, and how they grow: in a second, if two answers are known.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Flow {
    pub(super) calls: Growing,
    pub(super) errors: Growing,
    pub(super) processing_ns: Growing,
    pub(super) denied: Growing,
}

/// A count and its growth in a second.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Growing {
    pub(super) count: u64,
    pub(super) a_second: Option<f64>,
}

impl Tally {
    pub(super) fn add(&mut self, snapshot: Snapshot) {
        let mut pairs = BTreeMap::new();
        for now in &snapshot.replicas {
            let pair = match self.pairs.remove(&now.key) {
                // Nothing new of it.
                Some(pair) if pair.now.heard == now.heard => pair,
                Some(pair) => Pair { before: Some(pair.now), now: Arc::clone(now) },
                None => Pair { before: None, now: Arc::clone(now) },
            };
            pairs.insert(now.key.clone(), pair);
        }
        self.pairs = pairs;
        self.latest = Some(snapshot);
    }

    pub(super) fn pairs(&self) -> impl Iterator<Item = &Pair> {
        self.pairs.values()
    }

    pub(super) fn latest(&self) -> Option<&Snapshot> {
        self.latest.as_ref()
    }
}

impl Pair {
    fn elapsed_s(&self) -> Option<f64> {
        let elapsed = self.now.heard.saturating_duration_since(self.before.as_ref()?.heard).as_secs_f64();
        (elapsed > 0.0).then_some(elapsed)
    }

    /// A count as it is now, and was before. What has begun anew counts from zero.
    pub(super) fn growing(&self, count: impl Fn(&Replica) -> Option<u64>) -> Growing {
        let now = count(&self.now).unwrap_or(0);
        let before = self.before.as_ref().map(|before| count(before).unwrap_or(0));
        let grown = before.map(|before| now.checked_sub(before).unwrap_or(now));
        #[expect(clippy::cast_precision_loss, reason = "below 2^53")]
        let a_second = grown.zip(self.elapsed_s()).map(|(grown, elapsed)| grown as f64 / elapsed);
        Growing { count: now, a_second }
    }

    /// Of one endpoint.
    pub(super) fn flow(&self, endpoint: &Endpoint) -> Flow {
        let of = |replica: &Replica, count: fn(&Endpoint) -> u64| {
            let same = |one: &&Endpoint| one.name == endpoint.name && one.subject == endpoint.subject;
            replica.stats.endpoints.iter().find(same).map(count)
        };
        Flow {
            calls: self.growing(|replica| of(replica, |it| it.requests)),
            errors: self.growing(|replica| of(replica, |it| it.errors)),
            processing_ns: self.growing(|replica| of(replica, |it| it.processing_ns)),
            denied: self.growing(|replica| of(replica, |it| it.denied)),
        }
    }

    /// Of all endpoints.
    pub(super) fn total(&self) -> Flow {
        let sum = |count: fn(&Endpoint) -> u64| {
            move |replica: &Replica| Some(replica.stats.endpoints.iter().map(count).fold(0, u64::saturating_add))
        };
        Flow {
            calls: self.growing(sum(|it| it.requests)),
            errors: self.growing(sum(|it| it.errors)),
            processing_ns: self.growing(sum(|it| it.processing_ns)),
            denied: self.growing(sum(|it| it.denied)),
        }
    }
}

impl Growing {
    fn plus(self, other: Self) -> Self {
        let a_second = match (self.a_second, other.a_second) {
            (Some(one), Some(other)) => Some(one + other),
            (one, other) => one.or(other),
        };
        Self { count: self.count.saturating_add(other.count), a_second }
    }
}

impl std::iter::Sum for Growing {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), Self::plus)
    }
}

impl std::iter::Sum for Flow {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |one, other| Self {
            calls: one.calls.plus(other.calls),
            errors: one.errors.plus(other.errors),
            processing_ns: one.processing_ns.plus(other.processing_ns),
            denied: one.denied.plus(other.denied),
        })
    }
}

impl Flow {
    /// How long a call took, in nanoseconds: of those since the last answer, or of all if there were none.
    #[expect(clippy::cast_precision_loss, reason = "below 2^53")]
    pub(super) fn mean_ns(&self) -> Option<f64> {
        let lately = self.processing_ns.a_second.zip(self.calls.a_second.filter(|calls| *calls > 0.0));
        let ever = (self.calls.count > 0).then(|| self.processing_ns.count as f64 / self.calls.count as f64);
        lately.map(|(took, calls)| took / calls).or(ever)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use sealwire_survey::{AgentRefusals, ReplicaStats, SealwireStats};
    use tokio::time::Instant;

    use super::*;

    /// A replica of `service` with one endpoint that has taken so many calls, an error for each tenth, in 2 ms each.
    pub(in super::super) fn replica(
        environment: &str,
        service: &str,
        id: &str,
        calls: u64,
        heard: Instant,
    ) -> Arc<Replica> {
        let endpoint = Endpoint {
            name: "e".into(),
            subject: format!("{service}.e"),
            requests: calls,
            errors: calls / 10,
            processing_ns: calls * 2_000_000,
            last_error: "bad\u{1b}[2J\u{202e}".into(),
            ..Endpoint::default()
        };
        let own = SealwireStats {
            state: "ready".into(),
            guard: "shared".into(),
            refusals: BTreeMap::from([("replayed".into(), calls)]),
            agents: vec![AgentRefusals { agent: "planner".into(), reason: "replayed".into(), count: calls / 2 }],
            ..SealwireStats::default()
        };
        let key = Key { environment: environment.into(), service: service.into(), id: id.into() };
        let stats = ReplicaStats {
            version: "1.2.3".into(),
            endpoints: vec![endpoint],
            sealwire: (!environment.is_empty()).then_some(own),
            ..ReplicaStats::default()
        };
        Arc::new(Replica::new(key, stats, heard))
    }

    /// What a round has found.
    pub(in super::super) fn found(replicas: Vec<Arc<Replica>>) -> Snapshot {
        Snapshot { replicas, faults: Vec::new(), left_out: 0, rounds: 1, latest: None, is_connected: true }
    }

    #[test]
    fn rates_are_between_the_last_two_answers() {
        let (mut tally, now) = (Tally::default(), Instant::now());
        let of = |tally: &Tally| tally.pairs().map(Pair::total).sum::<Flow>();
        tally.add(found(vec![replica("", "a", "1", 100, now)]));
        assert_eq!((of(&tally).calls, of(&tally).mean_ns()), (Growing { count: 100, a_second: None }, Some(2e6)));
        let later = now + Duration::from_secs(2);
        tally.add(found(vec![replica("", "a", "1", 140, later), replica("", "a", "2", 10, later)]));
        assert_eq!(of(&tally).calls, Growing { count: 150, a_second: Some(20.0) });
        assert_eq!(of(&tally).errors, Growing { count: 15, a_second: Some(2.0) });
        // A round that it has not answered changes nothing, and a new beginning counts from zero.
        tally.add(found(vec![replica("", "a", "1", 140, later)]));
        assert_eq!(of(&tally).calls.a_second, Some(20.0));
        tally.add(found(vec![replica("", "a", "1", 6, later + Duration::from_secs(2))]));
        assert_eq!(of(&tally).calls, Growing { count: 6, a_second: Some(3.0) });
    }
}
