//! Answers to `$SRV.STATS`, as anybody on the bus can give them to `sealwire exporter` and `sealwire top`.
//!
//! Whatever is answered: nothing that is kept could end a label or move a cursor, and everything has a bound.
#![no_main]

use std::collections::HashSet;

use libfuzzer_sys::fuzz_target;
use sealwire_survey::ReplicaStats;
use serde::Deserialize;
use serde::de::IgnoredAny;

/// The largest integer that the text formats of Prometheus hold exactly.
const MAX_COUNT: u64 = (1 << 53) - 1;

/// How many endpoints an answer has, whatever they are.
#[derive(Deserialize)]
struct Endpoints {
    endpoints: Option<Vec<IgnoredAny>>,
}

fuzz_target!(|payload: &[u8]| {
    let Ok(stats) = ReplicaStats::read(payload) else { return };
    let Endpoints { endpoints } = serde_json::from_slice(payload).expect("what is taken is JSON");
    let told = endpoints.map_or(0, |endpoints| endpoints.len());
    let sums = usize::from(stats.sealwire.is_some());
    assert_eq!(stats.endpoints.len() + stats.left_out + sums, told, "every endpoint is kept or counted");
    assert!(stats.endpoints.len() <= 512);

    let mut labels = vec![&stats.service, &stats.id, &stats.version];
    let mut counts = Vec::new();
    let mut known = HashSet::new();
    for endpoint in &stats.endpoints {
        labels.extend([&endpoint.name, &endpoint.subject]);
        labels.extend(&endpoint.method);
        counts.extend([endpoint.requests, endpoint.errors, endpoint.processing_ns, endpoint.denied]);
        assert!(known.insert((&endpoint.name, &endpoint.subject)), "{endpoint:?} twice");
        assert!(endpoint.last_error.chars().count() <= 200);
        assert!(stats.audience.is_some() || endpoint.method.is_none() && endpoint.denied == 0);
    }
    labels.extend(&stats.audience);
    if let Some(own) = &stats.sealwire {
        assert!(stats.audience.is_some());
        assert!(own.refusals.len() <= 64 && own.agents.len() <= 64 && own.refused_files.len() <= 16);
        labels.extend([&own.state, &own.guard, &own.policy]);
        labels.extend(own.refusals.keys().chain(&own.refused_files));
        labels.extend(own.agents.iter().flat_map(|one| [&one.agent, &one.reason]));
        counts.extend(own.refusals.values().chain(own.agents.iter().map(|one| &one.count)));
        counts.extend([own.shed, own.unsent, own.reconnected, own.nonces]);
    }
    for label in labels {
        let is_plain = |byte: u8| byte.is_ascii_graphic() && !b"\"'\\`".contains(&byte);
        assert!(label.len() <= 255 && label.bytes().all(is_plain), "{label:?}");
    }
    assert!(counts.iter().all(|count| *count <= MAX_COUNT), "{counts:?}");
});
