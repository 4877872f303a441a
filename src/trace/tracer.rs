//! Who records spans, if anybody does.
//! Never decides which.

#[cfg(feature = "otel")]
use std::sync::Arc;

#[cfg(feature = "otel")]
use super::queue::Queue;
#[cfg(feature = "otel")]
use super::sampler::Sampler;

/// Records the spans of a program. Clones share it. Made by `Traces::start`.
#[derive(Debug, Clone)]
pub struct Tracer(#[cfg(feature = "otel")] pub(super) Arc<Recording>);

/// What spans are recorded with.
#[cfg(feature = "otel")]
#[derive(Debug)]
pub(super) struct Recording {
    pub(super) sampler: Sampler,
    /// How many sampled flags of one caller count in a second.
    pub(super) flags_per_second: u32,
    pub(super) queue: Arc<Queue>,
}

#[cfg(feature = "otel")]
impl Tracer {
    /// Puts spans into this queue.
    pub(crate) fn new(sampler: Sampler, flags_per_second: u32, queue: Arc<Queue>) -> Self {
        Self(Arc::new(Recording { sampler, flags_per_second, queue }))
    }
}
