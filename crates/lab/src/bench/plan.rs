//! What is called, how much of it, and for how long. Never larger than this process can hold.

use std::time::Duration;

use sealwire::{BusConfig, Credentials};
use serde_json::value::RawValue;

use crate::bench::cpu::WatchedProcess;

/// A measurement.
#[derive(Debug)]
pub struct Plan {
    /// What is called.
    pub target: Target,
    /// How much load.
    pub load: Load,
    /// The number of connections to the broker, each with a thread of its own: 1 to [`MAX_CONNECTIONS`].
    pub connections: usize,
    /// How long calls are made before the ones that count.
    pub warmup: Duration,
    /// How long calls are made that count; in a comparison, both sides together. 100 ms to 24 h.
    pub duration: Duration,
    /// Bare requests to compare with.
    pub bare: Option<Bare>,
    /// Processes whose processor time is reported.
    pub watched: Vec<WatchedProcess>,
}

/// Bare requests to compare with.
#[derive(Debug)]
pub struct Bare {
    /// The broker, and the login for it.
    pub bus: BusConfig,
    /// The size of a call's result, in bytes.
    pub result_bytes: usize,
}

/// What is called.
#[derive(Debug)]
pub struct Target {
    /// Who calls, and where.
    pub credentials: Credentials,
    /// The service.
    pub service: String,
    /// The method.
    pub method: String,
    /// Its parameters, unchanged.
    pub params: Option<Box<RawValue>>,
    /// How long one call may take.
    pub deadline: Duration,
    /// Whether to publish on the method's own subject.
    pub on_method_subject: bool,
    /// The form of the calls.
    pub shape: Shape,
}

/// The form of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// One message for each call.
    Single,
    /// This many in one message: 1 to 50.
    Batch(usize),
    /// A call that sends items while it runs, followed to its end.
    Stream,
}

impl Shape {
    /// How many calls a message contains.
    pub(crate) fn calls(self) -> u64 {
        match self {
            Self::Single | Self::Stream => 1,
            Self::Batch(calls) => calls as u64,
        }
    }
}

/// How much load.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Load {
    /// A closed loop: this many messages are under way at any time, and each that is answered is followed by another.
    InFlight(usize),
    /// An open loop: messages are due at this rate, whatever becomes of earlier ones.
    Rate {
        /// Messages a second, all connections together.
        per_second: f64,
        /// The most that are under way. A message that finds no place waits, and its latency goes on.
        in_flight: usize,
    },
}

impl Load {
    /// The most messages under way.
    #[must_use]
    pub fn in_flight(self) -> usize {
        match self {
            Self::InFlight(in_flight) | Self::Rate { in_flight, .. } => in_flight,
        }
    }
}

/// The most messages under way: about 10 KiB each.
pub const MAX_IN_FLIGHT: usize = 65_536;
/// The most connections: a thread, a socket and 200 KiB of latencies each.
pub const MAX_CONNECTIONS: usize = 256;
/// The highest rate, in messages a second: more than one broker carries.
pub const MAX_RATE: f64 = 1_000_000.0;
/// The most open streams of one client.
const MAX_STREAMS: usize = 256;
/// The most calls in a batch that SPEC.md allows.
const MAX_BATCH: usize = 50;

const DURATIONS: std::ops::RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(86_400);

/// Why a plan cannot be carried out.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// [`Plan::connections`].
    #[error("1 to {MAX_CONNECTIONS} connections are possible, not {0}")]
    Connections(usize),
    /// [`Load::in_flight`].
    #[error("1 to {MAX_IN_FLIGHT} messages can be in flight, not {0}")]
    InFlight(usize),
    /// Some connections would have nothing to do.
    #[error("{connections} connections need at least {connections} in flight, not {in_flight}")]
    Idle {
        /// How many there are.
        connections: usize,
        /// What they share.
        in_flight: usize,
    },
    /// More streams than the clients can have.
    #[error(
        "a connection has at most {MAX_STREAMS} streams, so {connections} of them have no place for {in_flight} in flight"
    )]
    Streams {
        /// How many there are.
        connections: usize,
        /// What they share.
        in_flight: usize,
    },
    /// [`Load::Rate`].
    #[error("a rate is above 0 and at most {MAX_RATE} a second")]
    Rate,
    /// [`Shape::Batch`].
    #[error("a batch has 1 to {MAX_BATCH} calls, not {0}")]
    Batch(usize),
    /// [`Plan::duration`].
    #[error("100ms to 24h can be measured")]
    Duration,
    /// [`Plan::warmup`].
    #[error("warming up takes 24h at most")]
    Warmup,
    /// Streams cannot be compared with bare requests.
    #[error("bare requests have one answer: a stream cannot be compared with them")]
    BareStream,
}

impl Plan {
    /// Checks whether it can be carried out.
    ///
    /// # Errors
    /// [`PlanError`] names what is out of its range.
    pub fn check(&self) -> Result<(), PlanError> {
        let (connections, in_flight) = (self.connections, self.load.in_flight());
        if !(1..=MAX_CONNECTIONS).contains(&connections) {
            return Err(PlanError::Connections(connections));
        }
        if !(1..=MAX_IN_FLIGHT).contains(&in_flight) {
            return Err(PlanError::InFlight(in_flight));
        }
        if in_flight < connections {
            return Err(PlanError::Idle { connections, in_flight });
        }
        match self.target.shape {
            Shape::Batch(calls) if !(1..=MAX_BATCH).contains(&calls) => return Err(PlanError::Batch(calls)),
            Shape::Stream if self.bare.is_some() => return Err(PlanError::BareStream),
            Shape::Stream if in_flight > connections * MAX_STREAMS => {
                return Err(PlanError::Streams { connections, in_flight });
            }
            Shape::Single | Shape::Batch(_) | Shape::Stream => {}
        }
        if let Load::Rate { per_second, .. } = self.load
            && !(per_second > 0.0 && per_second <= MAX_RATE)
        {
            return Err(PlanError::Rate);
        }
        if !DURATIONS.contains(&self.duration) {
            return Err(PlanError::Duration);
        }
        if self.warmup > *DURATIONS.end() {
            return Err(PlanError::Warmup);
        }
        Ok(())
    }
}
