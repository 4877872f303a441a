//! Calls by their outcome: how long they took, with the traces of some, and the word for a code.
//! Never takes a code from outside as a word.

use std::time::{Duration, SystemTime};

use prometheus_client::metrics::exemplar::HistogramWithExemplars;

use crate::rpc::{RpcError, code};

/// The durations of calls; each bucket keeps the trace of one of them. Clones share everything.
#[derive(Debug, Clone)]
pub struct Exemplars(pub(super) HistogramWithExemplars<[(&'static str, String); 1]>);

/// Upper bounds of buckets in seconds. OpenTelemetry's begin at 5 ms, where a call on a local network has long ended.
const OF_CALLS_S: [f64; 17] =
    [0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0];

impl Default for Exemplars {
    fn default() -> Self {
        Self(HistogramWithExemplars::new(OF_CALLS_S.into_iter()))
    }
}

impl Exemplars {
    /// Records one, and its trace id.
    pub fn record(&self, took: Duration, trace: Option<&str>) {
        let now = trace.map(|_| SystemTime::now());
        self.0.observe(took.as_secs_f64(), trace.map(|trace| [("trace_id", trace.to_owned())]), now);
    }
}

/// The label `error_type` of a failed call: the code, if it is one of SPEC.md §14 with that meaning, or else `application`. Programs behind
/// a service choose codes as they like.
#[must_use]
pub fn error_type(error: &RpcError) -> &'static str {
    match error.profile_code() {
        Some(code::PARSE_ERROR) => "-32700",
        Some(code::INVALID_REQUEST) => "-32600",
        Some(code::METHOD_NOT_FOUND) => "-32601",
        Some(code::INVALID_PARAMS) => "-32602",
        Some(code::INTERNAL_ERROR) => "-32603",
        Some(code::VALIDATION_FAILED) => "-32001",
        Some(code::PERMISSION_DENIED) => "-32002",
        Some(code::TIMEOUT) => "-32003",
        Some(code::DEPENDENCY_FAILED) => "-32004",
        Some(code::UNAUTHENTICATED) => "-32010",
        Some(code::STALE) => "-32011",
        Some(code::REPLAYED) => "-32012",
        Some(code::QUOTA_EXCEEDED) => "-32013",
        Some(code::OVERLOADED) => "-32014",
        Some(code::TOO_LARGE) => "-32015",
        Some(code::CANCELLED) => "-32016",
        Some(code::CONFLICT) => "-32017",
        Some(code::APPROVAL_REQUIRED) => "-32018",
        _ => "application",
    }
}
