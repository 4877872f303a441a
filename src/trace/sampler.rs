//! Which traces are recorded that begin here.
//! Never decides twice in different ways about one trace.

/// Which part of the calls is recorded whose callers say nothing, unless configured otherwise.
pub const SAMPLE: f64 = 0.01;
/// How many sampled flags of one caller count in a second, unless configured otherwise.
pub const FLAGS_PER_SECOND: u32 = 10;

/// Which traces are recorded that begin here.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Sampler {
    /// The part of them, from 0 to 1.
    pub(crate) ratio: f64,
    /// Whether a trace that began elsewhere is recorded if it is there.
    pub(crate) honours_callers: bool,
}

impl Sampler {
    /// Whether a trace is recorded that begins here, with an id of ours.
    pub(crate) fn takes(self, trace: &[u8; 16]) -> bool {
        let low = trace.last_chunk::<8>().map_or(u64::MAX, |low| u64::from_be_bytes(*low));
        #[expect(clippy::cast_precision_loss, reason = "a part of all")]
        let place = (low >> 1) as f64 / (1_u64 << 63) as f64;
        place < self.ratio
    }
}
