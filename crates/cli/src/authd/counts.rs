//! What became of the questions that brokers asked.
//! Never takes a label from a token, a host or a broker.

use std::time::Instant;

use sealwire::internal::registry::{Durations, Labelled};

/// What became of questions.
#[derive(Debug)]
pub(super) struct Counts {
    /// By result, and by the reason for it.
    pub(super) questions: Labelled<u64>,
    pub(super) took: Durations,
}

/// Results, each with its reasons. All are from closed sets.
const MAX_REASONS: usize = 256;

impl Default for Counts {
    fn default() -> Self {
        Self { questions: Labelled::new(MAX_REASONS), took: Durations::new(Durations::OF_PARTS_NS) }
    }
}

impl Counts {
    /// Counts a question: `admitted`, `denied` or `ignored`.
    pub(super) fn count(&self, result: &str, reason: &'static str) {
        self.questions.change(Some(result), reason, |count| *count += 1);
    }

    /// Counts so many that nobody has looked into.
    pub(super) fn dropped(&self, reason: &'static str, many: usize) {
        self.questions.change(Some("dropped"), reason, |count| *count += many as u64);
    }

    /// An answer is on its way to a question that came then.
    pub(super) fn answered(&self, came: Instant) {
        self.took.record(came.elapsed());
    }

    #[cfg(test)]
    pub(super) fn of(&self, result: &str, reason: &str) -> u64 {
        let questions = self.questions.read(|count| *count);
        questions.into_iter().filter(|(of, why, _)| of == result && *why == reason).map(|(_, _, count)| count).sum()
    }
}
