//! What is measured on a message's way beside what the counters count. Without the feature `metrics`, and until somebody asks for it, nothing.
//! Never takes a label from the wire.

#[cfg(feature = "metrics")]
mod recorded;
mod stage;

use std::time::Duration;

#[cfg(feature = "metrics")]
pub(super) use recorded::{Recorded, verdict};
pub(super) use stage::Stage;

use crate::name::Name;
use crate::policy::Decision;
use crate::rpc::Outcome;

/// Measures, once it is switched on.
#[derive(Debug, Default)]
pub(super) struct Meters(#[cfg(feature = "metrics")] std::sync::OnceLock<Box<Recorded>>);

/// When the last stage ended; `None` if it is not measured.
#[derive(Debug, Clone, Copy)]
pub(super) struct StopWatch(#[cfg(feature = "metrics")] Option<std::time::Instant>);

/// Each function is one branch while nothing is measured, and nothing without the feature.
impl Meters {
    /// Starts a watch for the next stages, of which this is the first. It runs for one message of eight.
    pub(super) fn watch(&self, first: Stage) -> StopWatch {
        #[cfg(not(feature = "metrics"))]
        let _ = first;
        StopWatch(
            #[cfg(feature = "metrics")]
            self.0.get().filter(|recorded| recorded.is_sampled(first)).map(|_| std::time::Instant::now()),
        )
    }

    /// A message comes to be executed.
    pub(super) fn executed(&self) {
        #[cfg(feature = "metrics")]
        if let Some(recorded) = self.0.get() {
            recorded.executed();
        }
    }

    /// The stage has ended now; the next begins.
    pub(super) fn lap(&self, watch: &mut StopWatch, stage: Stage) {
        #[cfg(feature = "metrics")]
        if let (Some(recorded), Some(since)) = (self.0.get(), watch.0) {
            let now = std::time::Instant::now();
            recorded.stage(stage).record(now.saturating_duration_since(since));
            watch.0 = Some(now);
        }
        #[cfg(not(feature = "metrics"))]
        let _ = (watch, stage);
    }

    /// A message was refused as a whole. `owner`: the agent whose key has proved it, if one has.
    pub(super) fn refused(&self, label: &'static str, owner: Option<&Name>) {
        #[cfg(feature = "metrics")]
        if let Some(recorded) = self.0.get() {
            recorded.refused(label, owner);
        }
        #[cfg(not(feature = "metrics"))]
        let _ = (label, owner);
    }

    /// The policy has decided on an entry.
    pub(super) fn decided(&self, decision: &Decision, agent: &Name) {
        #[cfg(feature = "metrics")]
        if let Some(recorded) = self.0.get() {
            recorded.decided(decision, agent);
        }
        #[cfg(not(feature = "metrics"))]
        let _ = (decision, agent);
    }

    /// An entry has its outcome. `method` only if it is registered.
    pub(super) fn served(&self, method: Option<&str>, outcome: &Outcome, took: Duration, trace: Option<&str>) {
        #[cfg(feature = "metrics")]
        if let Some(recorded) = self.0.get() {
            let word = outcome.as_ref().err().map_or("", crate::registry::error_type);
            recorded.calls.change(method, word, |calls| calls.record(took, trace));
        }
        #[cfg(not(feature = "metrics"))]
        let _ = (method, outcome, took, trace);
    }

    /// Measures from now on, if it can.
    pub(super) fn switch_on(&self) {
        #[cfg(feature = "metrics")]
        self.0.get_or_init(Box::default);
    }

    /// The pairs of an agent and a reason that were refused most, and how often.
    pub(super) fn most_refused(&self, most: usize) -> Vec<(String, &'static str, u64)> {
        #[cfg(feature = "metrics")]
        return self.0.get().map(|recorded| recorded.most_refused(most)).unwrap_or_default();
        #[cfg(not(feature = "metrics"))]
        {
            let _ = most;
            Vec::new()
        }
    }

    /// What was measured.
    #[cfg(feature = "metrics")]
    pub(super) fn recorded(&self) -> Option<&Recorded> {
        self.0.get().map(|recorded| &**recorded)
    }
}
