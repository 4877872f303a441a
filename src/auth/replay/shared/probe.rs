//! What a replica leaves in the stream at every verification, and what it reads there of others. Never believes more than
//! the probe shows: that its replica served at a time, and back to which fence it vouched.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

/// The content of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Claim {
    /// When the replica last verified the stream, by the broker's clock, in milliseconds since the Unix epoch.
    pub(super) looked_ms: u64,
    /// Its fence then. Absent if it did not serve, or could not tell: others learn only that it is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) fence: Option<u64>,
}

/// A probe as stored in the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) instance: String,
    pub(super) sequence: u64,
    /// When it was stored, by the broker's clock.
    pub(super) stored_ms: u64,
    /// `None` if it cannot be read: another version wrote it, and it vouches for nothing.
    pub(super) claim: Option<Claim>,
}

/// Which other instances were seen, and when.
#[derive(Debug, Default)]
pub(super) struct Peers(BTreeMap<String, Instant>);

impl Peers {
    /// Records a probe that was stored `ago`, counted back from `now`.
    pub(super) fn saw(&mut self, instance: &str, now: Instant, ago: Duration) {
        let at = now.checked_sub(ago).unwrap_or(now);
        self.0.retain(|_, seen| now.saturating_duration_since(*seen) < KEPT);
        self.0.entry(instance.to_owned()).and_modify(|seen| *seen = at.max(*seen)).or_insert(at);
        if self.0.len() > MOST
            && let Some(oldest) = self.0.iter().min_by_key(|(_, seen)| **seen).map(|(instance, _)| instance.clone())
        {
            // A serving replica probes every second, so made-up names drive out made-up names only.
            self.0.remove(&oldest);
        }
    }

    /// Each with how long ago its last probe was stored.
    pub(super) fn seen(&self, now: Instant) -> BTreeMap<String, Duration> {
        let ago = self.0.iter().map(|(instance, at)| (instance.clone(), now.saturating_duration_since(*at)));
        ago.filter(|(_, ago)| *ago < KEPT).collect()
    }
}

/// Instances that have not been seen for this long are gone.
const KEPT: Duration = Duration::from_secs(60);
/// Each start is a new instance: a service that keeps restarting does not fill the memory of the others.
const MOST: usize = 1024;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn a_claim_is_two_numbers_and_nothing_else() {
        let claim = Claim { looked_ms: 7, fence: Some(9) };
        assert_eq!(serde_json::to_string(&claim).unwrap(), r#"{"looked_ms":7,"fence":9}"#);
        assert_eq!(serde_json::from_str::<Claim>(r#"{"looked_ms":7}"#).unwrap(), Claim { fence: None, ..claim });
        assert!(serde_json::from_str::<Claim>(r#"{"looked_ms":7,"fence":9,"x":1}"#).is_err());
        assert!(serde_json::from_str::<Claim>("x").is_err());
    }

    #[test]
    fn peers_are_remembered_for_a_minute_and_boundedly() {
        let start = Instant::now();
        let after = |s| start + Duration::from_secs(s);
        let mut peers = Peers::default();
        peers.saw("a", after(10), Duration::from_secs(2));
        peers.saw("b", after(10), Duration::ZERO);
        peers.saw("b", after(11), Duration::from_secs(5));
        let seen = peers.seen(after(12));
        assert_eq!(seen, BTreeMap::from([("a".into(), Duration::from_secs(4)), ("b".into(), Duration::from_secs(2))]));
        assert_eq!(peers.seen(after(69)).into_keys().collect::<Vec<_>>(), ["b"]);
        // As many made-up names as are read in a second: a replica that probes every second stays.
        for second in 0..30 {
            peers.saw("real", after(20 + second), Duration::ZERO);
            for index in 0..170 {
                peers.saw(&format!("{second}-{index}"), after(20 + second), Duration::ZERO);
            }
            let seen = peers.seen(after(20 + second));
            assert!(seen.len() <= MOST && seen["real"] == Duration::ZERO, "{second}");
        }
        peers.saw("late", after(110), Duration::ZERO);
        assert_eq!(peers.0.len(), 1);
    }
}
