//! What a service has measured.
//! Never holds more than its bounds, whatever is called by whomever.

use std::sync::atomic::{AtomicU64, Ordering};

use super::stage::Stage;
use crate::name::Name;
use crate::policy::{Decision, Reason, Verdict};
use crate::registry::{Durations, Exemplars, Labelled};

/// Measured since it was switched on.
#[derive(Debug)]
pub(in crate::service) struct Recorded {
    stages: [Durations; STAGES.len()],
    /// How many watches were asked for, by their first stage.
    watches: [AtomicU64; STAGES.len()],
    executed: AtomicU64,
    refused: AtomicU64,
    /// In the order of [`Reason::LABELS`].
    reasons: [AtomicU64; Reason::LABELS.len()],
    /// By rule and verdict.
    pub(in crate::service) rules: Labelled<u64>,
    /// By agent and reason.
    pub(in crate::service) agents: Labelled<u64>,
    /// By method and code.
    pub(in crate::service) calls: Labelled<Exemplars>,
}

const STAGES: [(Stage, &str); 7] = [
    (Stage::Shape, "shape"),
    (Stage::Auth, "auth"),
    (Stage::Guard, "guard"),
    (Stage::Parse, "parse"),
    (Stage::Policy, "policy"),
    (Stage::Method, "method"),
    (Stage::Seal, "seal"),
];

/// The most pairs of a rule and a verdict that are counted one by one.
const MAX_RULES: usize = 1_000;
/// The most pairs of an agent and a reason that are counted one by one.
const MAX_AGENTS: usize = 2_000;
/// The most pairs of a method and a code whose durations are kept one by one; each is 20 samples.
const MAX_CALLS: usize = 2_000;

impl Default for Recorded {
    fn default() -> Self {
        Self {
            stages: std::array::from_fn(|_| Durations::new(Durations::OF_PARTS_NS)),
            watches: std::array::from_fn(|_| AtomicU64::default()),
            executed: AtomicU64::default(),
            refused: AtomicU64::default(),
            reasons: std::array::from_fn(|_| AtomicU64::default()),
            rules: Labelled::new(MAX_RULES),
            agents: Labelled::new(MAX_AGENTS),
            calls: Labelled::new(MAX_CALLS),
        }
    }
}

impl Recorded {
    /// Of so many messages, the stages of one are measured: reading the clock ten times would cost all of them 2 %.
    pub(super) const SAMPLED: u64 = 8;

    /// Whether the stages from this one on are to be measured.
    pub(super) fn is_sampled(&self, first: Stage) -> bool {
        let watches = self.watches.get(first as usize);
        watches.is_some_and(|watches| watches.fetch_add(1, Ordering::Relaxed) % Self::SAMPLED == 0)
    }

    pub(super) fn executed(&self) {
        self.executed.fetch_add(1, Ordering::Relaxed);
    }

    pub(in crate::service) fn stage(&self, stage: Stage) -> &Durations {
        let [shape, auth, guard, parse, policy, method, seal] = &self.stages;
        match stage {
            Stage::Shape => shape,
            Stage::Auth => auth,
            Stage::Guard => guard,
            Stage::Parse => parse,
            Stage::Policy => policy,
            Stage::Method => method,
            Stage::Seal => seal,
        }
    }

    pub(in crate::service) fn stages(&self) -> impl Iterator<Item = (&'static str, &Durations)> {
        STAGES.into_iter().map(|(stage, name)| (name, self.stage(stage)))
    }

    pub(in crate::service) fn refused(&self, label: &'static str, owner: Option<&Name>) {
        self.refused.fetch_add(1, Ordering::Relaxed);
        if let Some(owner) = owner {
            self.agents.change(Some(owner.as_str()), label, |count| *count += 1);
        }
    }

    pub(in crate::service) fn decided(&self, decision: &Decision, agent: &Name) {
        let label = decision.reason.label();
        if let Some(at) = Reason::LABELS.iter().position(|one| *one == label).and_then(|at| self.reasons.get(at)) {
            at.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(rule) = &decision.rule {
            self.rules.change(Some(rule.name()), verdict(decision.verdict), |count| *count += 1);
        }
        if !decision.is_allow() {
            self.agents.change(Some(agent.as_str()), label, |count| *count += 1);
        }
    }

    /// The pairs of an agent and a reason that were refused most, and how often.
    pub(super) fn most_refused(&self, most: usize) -> Vec<(String, &'static str, u64)> {
        let mut refused = self.agents.read(|count| *count);
        refused.sort_by(|(one, .., fewer), (other, .., more)| more.cmp(fewer).then_with(|| one.cmp(other)));
        refused.truncate(most);
        refused
    }

    /// Messages that came to be executed, and those that were refused as a whole.
    pub(in crate::service) fn messages(&self) -> (u64, u64) {
        (self.executed.load(Ordering::Relaxed), self.refused.load(Ordering::Relaxed))
    }

    /// Decisions by their verdict and reason.
    pub(in crate::service) fn decisions(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
        Reason::LABELS.into_iter().zip(&self.reasons).map(|(reason, count)| {
            let verdict = verdict(if Reason::ALLOWING.contains(&reason) { Verdict::Allow } else { Verdict::Deny });
            (verdict, reason, count.load(Ordering::Relaxed))
        })
    }
}

pub(in crate::service) fn verdict(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Allow => "allow",
        Verdict::Deny => "deny",
    }
}
