//! What happened, per method and per refusal. Labels come only from closed sets and registered names.
//! Never grows with what callers send.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde_json::value::RawValue;

use crate::policy::{Decision, Verdict};
use crate::rpc::{RpcError, code};

/// The counters of a service. All of them only grow.
#[derive(Debug)]
pub struct Counters {
    methods: BTreeMap<String, MethodCounters>,
    unregistered: MethodCounters,
    refusals: Mutex<BTreeMap<&'static str, u64>>,
    shadow: Mutex<BTreeMap<String, ShadowCounters>>,
    budgets: Mutex<BTreeMap<String, BudgetCounters>>,
    tasks: [AtomicU64; TASK_RESULTS.len()],
    last_error: Mutex<String>,
}

/// What one rule in shadow mode would have changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct ShadowCounters {
    /// Calls that were allowed and would have been denied.
    pub would_deny: u64,
    /// Calls that were denied and would have been allowed.
    pub would_allow: u64,
}

/// What became of the calls that were to be charged to one budget.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct BudgetCounters {
    /// Calls that were charged.
    pub charged: u64,
    /// Calls that it had no room for.
    pub refused: u64,
}

/// What became of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TaskResult {
    Completed,
    Failed,
    Cancelled,
    /// It was stopped, or the method panicked.
    Unknown,
}

/// Their names, in their order.
const TASK_RESULTS: [&str; 4] = ["completed", "failed", "cancelled", "unknown"];

/// The most budgets that are counted one by one; the rest are counted under `other`.
const MAX_BUDGETS: usize = 1_000;

/// The most shadow rules that are counted one by one; the rest are counted under `other`.
const MAX_SHADOW: usize = 1_000;

/// The counters of one method.
#[derive(Debug, Default)]
pub struct MethodCounters {
    /// Calls and notifications that reached the policy.
    pub requests: AtomicU64,
    /// Those that ended in an error, denials included.
    pub errors: AtomicU64,
    /// Those that the policy denied, be it until they are approved.
    pub denied: AtomicU64,
    /// The time from receipt to outcome of all of them, in nanoseconds.
    pub processing_ns: AtomicU64,
}

impl Counters {
    pub(super) fn new<'a>(methods: impl Iterator<Item = &'a str>) -> Self {
        Self {
            methods: methods.map(|name| (name.to_owned(), MethodCounters::default())).collect(),
            unregistered: MethodCounters::default(),
            refusals: Mutex::default(),
            shadow: Mutex::default(),
            budgets: Mutex::default(),
            tasks: Default::default(),
            last_error: Mutex::default(),
        }
    }

    /// Returns whether the method is registered.
    pub(super) fn served(
        &self,
        method: &str,
        outcome: &Result<Box<RawValue>, RpcError>,
        decision: &'static str,
        duration: Duration,
    ) -> bool {
        let registered = self.methods.get(method);
        let counters = registered.unwrap_or(&self.unregistered);
        counters.requests.fetch_add(1, Ordering::Relaxed);
        let nanoseconds = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        counters.processing_ns.fetch_add(nanoseconds, Ordering::Relaxed);
        if let Err(error) = outcome {
            counters.errors.fetch_add(1, Ordering::Relaxed);
            let mut last = self.last_error.lock().unwrap_or_else(PoisonError::into_inner);
            // The code only: an application's message may quote parameters.
            *last = format!("{}: {}", error.code(), decision);
            if matches!(error.profile_code(), Some(code::PERMISSION_DENIED | code::APPROVAL_REQUIRED)) {
                counters.denied.fetch_add(1, Ordering::Relaxed);
            }
        }
        registered.is_some()
    }

    pub(crate) fn refused(&self, label: &'static str) {
        *self.refusals.lock().unwrap_or_else(PoisonError::into_inner).entry(label).or_insert(0) += 1;
    }

    pub(super) fn task(&self, result: TaskResult) {
        let [completed, failed, cancelled, unknown] = &self.tasks;
        let count = match result {
            TaskResult::Completed => completed,
            TaskResult::Failed => failed,
            TaskResult::Cancelled => cancelled,
            TaskResult::Unknown => unknown,
        };
        count.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts what shadow rules would have changed. Their names come from policy files.
    pub(super) fn shadow(&self, decision: &Decision) {
        if decision.shadow.is_empty() {
            return;
        }
        let mut counters = self.shadow.lock().unwrap_or_else(PoisonError::into_inner);
        for shadow in &decision.shadow {
            let known = counters.contains_key(shadow.rule.name()) || counters.len() < MAX_SHADOW;
            let name = if known { shadow.rule.name() } else { "other" };
            let counted = counters.entry(name.to_owned()).or_default();
            match shadow.would {
                Verdict::Allow => counted.would_allow += 1,
                Verdict::Deny => counted.would_deny += 1,
            }
        }
    }

    /// Counts a call that was to be charged to a budget. Its name comes from a policy file.
    pub(super) fn budget(&self, name: &str, is_charged: bool) {
        let mut counters = self.budgets.lock().unwrap_or_else(PoisonError::into_inner);
        let known = counters.contains_key(name) || counters.len() < MAX_BUDGETS;
        let counted = counters.entry(if known { name } else { "other" }.to_owned()).or_default();
        match is_charged {
            true => counted.charged += 1,
            false => counted.refused += 1,
        }
    }

    /// What became of calls that were to be charged, by budget.
    #[must_use]
    pub fn budgets(&self) -> BTreeMap<String, BudgetCounters> {
        self.budgets.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What rules in shadow mode would have changed, by rule.
    #[must_use]
    pub fn shadow_rules(&self) -> BTreeMap<String, ShadowCounters> {
        self.shadow.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The registered methods and their counters.
    pub fn methods(&self) -> impl Iterator<Item = (&str, &MethodCounters)> {
        self.methods.iter().map(|(name, counters)| (name.as_str(), counters))
    }

    /// Calls to names that are not registered.
    #[must_use]
    pub fn unregistered(&self) -> &MethodCounters {
        &self.unregistered
    }

    /// How many messages, entries and answers were refused, by reason.
    #[must_use]
    pub fn refusals(&self) -> BTreeMap<&'static str, u64> {
        self.refusals.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How many tasks have ended, by what became of them: `completed`, `failed`, `cancelled`, or `unknown` if they were stopped.
    pub fn tasks(&self) -> impl Iterator<Item = (&'static str, u64)> {
        TASK_RESULTS.into_iter().zip(self.tasks.iter().map(|count| count.load(Ordering::Relaxed)))
    }

    /// The code of the last error, and the policy's decision on that call.
    #[must_use]
    pub fn last_error(&self) -> String {
        self.last_error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
