//! A package that is compared with the policies in force.
//! Never decides a call.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use super::comparison::{Comparison, Ruling, Tally};
use super::package::brief;
use super::report::{PackageId, RefusedPackage, ShadowReport};
use crate::policy::engine::{PolicySet, Question};
use crate::policy::model::Revision;

/// How it stands with the package that is compared with the one in force.
#[derive(Debug, Clone, Default)]
pub struct ShadowStanding {
    /// That package, if there is one and it can be used.
    pub compared: Option<Arc<ShadowPolicy>>,
    /// The newest such package, if it cannot be used.
    pub refused: Option<RefusedPackage>,
    /// What is wrong with what the bucket holds.
    pub problem: Option<String>,
}

impl ShadowStanding {
    /// How it stands, with or without the rows of differences.
    pub(super) fn report(self, with_rows: bool) -> ShadowReport {
        let Self { compared, refused, problem } = self;
        let comparison = compared.as_ref().map(|compared| compared.comparison(with_rows));
        ShadowReport { comparison, package: compared.map(|compared| compared.id.clone()), refused, problem }
    }
}

/// A policy that decides nothing, and what it would have decided otherwise than the one in force.
#[derive(Debug)]
pub struct ShadowPolicy {
    /// Which package.
    pub id: PackageId,
    set: Arc<PolicySet>,
    since_ms: u64,
    counted: Mutex<(Option<Revision>, Tally)>,
    /// Apart, since a call counts these itself.
    skipped: AtomicU64,
}

impl ShadowPolicy {
    /// Of this package. Nothing is compared yet.
    pub(crate) fn new(id: PackageId, set: Arc<PolicySet>) -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let since_ms = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
        Self { id, set, since_ms, counted: Mutex::default(), skipped: AtomicU64::new(0) }
    }

    /// The same, for the comparison with another policy.
    pub(super) fn anew(&self) -> Self {
        Self::new(self.id.clone(), Arc::clone(&self.set))
    }

    /// From now on, calls are compared that this one has decided.
    pub(crate) fn compare_with(&self, revision: &Revision) {
        self.counted().0 = Some(revision.clone());
    }

    /// What it would decide.
    pub(crate) fn rule(&self, question: &Question<'_>) -> Ruling {
        Ruling::of(&self.set.decide(question))
    }

    /// Counts a call that the policy of this revision has decided so, and this one otherwise or not.
    pub(crate) fn count(&self, question: &Question<'_>, (now, revision): (&Ruling, &Revision), would: &Ruling) {
        let mut counted = self.counted();
        // A call that was under way while the policy changed says nothing about either.
        if counted.0.as_ref() == Some(revision) {
            counted.1.count(question.caller.agent.as_str(), question.method, now, would);
        }
    }

    /// Counts calls that were not compared.
    pub(crate) fn skipped(&self, calls: usize) {
        self.skipped.fetch_add(u64::try_from(calls).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Nothing is compared any more, for this reason.
    pub(crate) fn end(&self, why: &str) {
        self.counted().1.ended = Some(brief(why));
    }

    /// What is counted so far, with or without the rows of differences.
    #[must_use]
    pub fn comparison(&self, with_rows: bool) -> Comparison {
        let counted = self.counted();
        let against = counted.0.as_ref().map(ToString::to_string).unwrap_or_default();
        let skipped = self.skipped.load(Ordering::Relaxed);
        Comparison { skipped, ..counted.1.told((against, self.since_ms), with_rows) }
    }

    fn counted(&self) -> MutexGuard<'_, (Option<Revision>, Tally)> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
