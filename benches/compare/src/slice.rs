//! Figures of one side in one slice of time.

use std::collections::BTreeMap;

use crate::plan::Work;
use crate::sides::Side;

/// What became of one side in one slice.
pub struct Slice {
    /// Calls a second.
    pub rate: f64,
    /// Microseconds of a call.
    pub p50: f64,
    pub p99: f64,
    /// Processor time of a call, in microseconds: of the client, and of each process of the side.
    pub client: f64,
    pub processes: Vec<(&'static str, f64)>,
}

impl Slice {
    /// Of a side that could not be measured.
    pub fn unknown(side: &Side) -> Self {
        let processes = side.processes.iter().map(|(name, _)| (*name, f64::NAN)).collect();
        Self { rate: f64::NAN, p50: f64::NAN, p99: f64::NAN, client: f64::NAN, processes }
    }
}

/// By work, calls under way and side: a slice of each round.
pub type Found = BTreeMap<(Work, usize), Vec<Vec<Slice>>>;
