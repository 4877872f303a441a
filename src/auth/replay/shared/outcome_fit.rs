//! The configuration of the stream that keeps outcomes: what is created, and whether an existing stream is exactly that.
//! Never asks the broker.

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::{SharedConfig, fit};

/// The configuration to create a stream with, under a name that was never used.
pub(super) fn wanted(config: &SharedConfig, copies: usize) -> Value {
    fit::named(fixed(config, copies), &prefix(config))
}

/// What is wrong with a stream of this configuration, member by member; empty if nothing is.
pub(super) fn differences(found: &Map<String, Value>, config: &SharedConfig, copies: usize) -> Vec<String> {
    fit::differences_from(found, &fixed(config, copies), &prefix(config))
}

/// Whether a stream of this name was made by this service for outcomes.
pub(super) fn is_own(name: &str, config: &SharedConfig) -> bool {
    fit::is_named(name, &prefix(config))
}

/// The prefix of the names of these streams.
pub(super) fn prefix(config: &SharedConfig) -> String {
    format!("RO_{}_{}_", config.environment, config.service)
}

fn fixed(config: &SharedConfig, copies: usize) -> Map<String, Value> {
    let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let fixed = json!({
        "description": "outcomes of idempotent calls: one entry for each key",
        "subjects": [config.outcome_subject(">")],
        "storage": "memory",
        "num_replicas": copies,
        "retention": "limits",
        // A key that leaves early could run again, so when there is no room, new ones are refused.
        "discard": "new",
        // A publication replaces an entry by naming its sequence number.
        "max_msgs_per_subject": 1,
        // Each entry has its own time to live.
        "allow_msg_ttl": true,
        "max_age": nanos(MAX_AGE),
        "duplicate_window": nanos(DUPLICATES),
        // At this limit a cluster refuses even to replace an entry (nats-server 2.15.1), so it is never reached: replicas claim no
        // more than half of it, and look at the number once a second.
        "max_msgs": config.max_outcomes.saturating_mul(2),
        "max_bytes": config.outcome_bytes,
        "max_msg_size": MAX_ENTRY,
        "max_consumers": -1,
        "deny_delete": true,
        "deny_purge": true,
        "metadata": {},
    });
    match fixed {
        Value::Object(fixed) => fixed,
        _ => Map::new(),
    }
}

/// Longer than any entry's own time to live: [`crate::service::Idempotent`] keeps outcomes for a week at most.
const MAX_AGE: Duration = Duration::from_secs(9 * 24 * 3600);

/// Message ids are not used here; this is the shortest window that all brokers accept.
const DUPLICATES: Duration = Duration::from_secs(1);

/// The largest entry, headers included: an answer of 192 KiB, and what says whose it is. It fits a broker's `max_payload`
/// of 256 KiB.
pub(super) const MAX_ENTRY: usize = 208 * 1024;
