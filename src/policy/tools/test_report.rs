//! Puts expected decisions to a policy: which fail and how, and which rules no case exercises.
//! Never decides by itself: every answer is `PolicySet::explain`'s.

use std::collections::BTreeSet;
use std::fmt;

use serde::Serialize;

use super::test_suite::{Case, TestSuite};
use crate::policy::engine::{Decision, PolicySet, Question, Reason, Verdict};
use crate::policy::explain::{Explanation, Outcome, RuleExplanation};
use crate::policy::model::{Effect, Finding, Mode, Report, Revision, RuleId, shown};

/// The outcome of all cases.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TestReport {
    /// The policy that was asked.
    pub revision: Revision,
    /// How many cases there are.
    pub cases: usize,
    /// Those that did not come out as expected.
    pub failures: Vec<Failure>,
    /// Expectations that name a rule that does not exist.
    pub unknown_rules: Vec<String>,
    /// Methods, roles and claims in the tables that the policy does not have, and cases about which no rule is asked.
    pub mistakes: Vec<Finding>,
    /// The rules that matched in some case.
    pub covered: usize,
    /// The rules that matched in none.
    pub uncovered: Vec<RuleId>,
}

/// A case that did not come out as expected.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Failure {
    /// The case's name.
    pub name: String,
    /// The table.
    pub file: String,
    /// The line of the case, counted from 1.
    pub line: u32,
    /// The question in one line.
    pub question: String,
    /// What was expected.
    pub expected: String,
    /// What was decided.
    pub decision: Decision,
    /// The rules that explain the difference, with the conditions that failed.
    pub grounds: Vec<RuleExplanation>,
}

impl TestReport {
    /// Puts every case to `set`.
    #[must_use]
    pub fn run(set: &PolicySet, expectations: &TestSuite) -> Self {
        let mut matched: BTreeSet<String> = BTreeSet::new();
        let mut failures = Vec::new();
        let misspelled = Report::default();
        for case in &expectations.cases {
            let question = Question {
                caller: &case.caller,
                method: &case.method,
                params: case.params.as_deref(),
                now_ms: case.now_ms,
            };
            let approved: Vec<&str> = case.approved.iter().map(|name| name.value.as_str()).collect();
            let explanation = set.explain_approved(&question, &approved);
            let held = explanation.principals.iter().flat_map(|principal| &principal.rules);
            let held = held.filter(|rule| rule.outcome == Outcome::Held);
            matched.extend(held.map(|rule| rule.rule.name().to_owned()));
            // No rule says anything about such a call, so the case would show nothing about the rules.
            let reason = &explanation.decision.reason;
            let is_misspelled = reason.is_about_params() || matches!(reason, Reason::ClaimType(_));
            let needless = case.approved.iter().find(|name| !explanation.decision.approvals.contains(&name.value));
            if !as_expected(case, &explanation.decision) {
                failures.push(failure(case, explanation));
            } else if is_misspelled && case.reason.is_none() {
                let help = format!("if that is what the case is about, write `reason = \"{}\"`", reason.label());
                misspelled.error(&case.at, format!("no rule is asked, since {reason}"), help);
            } else if let Some(name) = needless.filter(|_| explanation.decision.is_allow()) {
                let message = format!("the call does not need the approval `{}`", shown(&name.value));
                misspelled.error(&name.at, message, "take it out, or look why no rule waits for it");
            }
        }
        let mut mistakes = expectations.validate(set);
        mistakes.extend(misspelled.into_errors().findings);
        let rules: Vec<&RuleId> = set.checked().rules.iter().map(|rule| &rule.id).collect();
        let named: BTreeSet<&str> = expectations.cases.iter().filter_map(|case| case.rule.as_deref()).collect();
        let unknown = named.into_iter().filter(|name| !rules.iter().any(|rule| rule.name() == *name));
        let uncovered: Vec<RuleId> =
            rules.iter().filter(|rule| !matched.contains(rule.name())).map(|rule| (*rule).clone()).collect();
        Self {
            revision: set.revision().clone(),
            cases: expectations.cases.len(),
            failures,
            mistakes,
            unknown_rules: unknown.map(ToOwned::to_owned).collect(),
            covered: rules.len() - uncovered.len(),
            uncovered,
        }
    }

    /// Whether every case came out as expected, and the tables name only what exists.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.failures.is_empty() && self.unknown_rules.is_empty() && self.mistakes.is_empty()
    }
}

fn as_expected(case: &Case, decision: &Decision) -> bool {
    let rule = decision.rule.as_ref().map(RuleId::name);
    decision.verdict == case.expect
        && (!case.waits || decision.reason == Reason::ApprovalRequired)
        && case.rule.as_ref().is_none_or(|expected| rule == Some(expected))
        && case.reason.as_ref().is_none_or(|expected| decision.reason.label() == expected)
}

fn failure(case: &Case, explanation: Explanation) -> Failure {
    let mut expected = if case.waits { "wait".to_owned() } else { case.expect.to_string() };
    if let Some(reason) = &case.reason {
        expected.push_str(&format!(" ({reason})"));
    }
    if let Some(rule) = &case.rule {
        expected.push_str(&format!(" by `{rule}`"));
    }
    let wanted_allow = case.expect == Verdict::Allow;
    let rules = explanation.principals.into_iter().flat_map(|principal| principal.rules);
    // The rule that should have decided; if none is named, those that stood between what was expected and what was
    // decided.
    let grounds = rules.filter(|rule| match &case.rule {
        Some(expected) => rule.rule.name() == expected,
        None => {
            let held = rule.outcome == Outcome::Held;
            let allows = rule.effect == Effect::Allow;
            rule.mode == Mode::Enforce && if wanted_allow { allows != held } else { allows && held }
        }
    });
    Failure {
        name: case.name.clone(),
        file: case.at.file.to_string(),
        line: case.at.line,
        question: question(case),
        expected,
        grounds: grounds.collect(),
        decision: explanation.decision,
    }
}

fn question(case: &Case) -> String {
    let caller = &case.caller;
    let mut text = caller.agent.to_string();
    if !caller.roles.is_empty() {
        let roles: Vec<&str> = caller.roles.iter().map(String::as_str).collect();
        text.push_str(&format!(" ({})", roles.join(", ")));
    }
    if caller.delegated {
        text.push_str(&format!(" for {}", caller.subject));
    }
    text.push_str(&format!(" calls {}", case.method));
    if let Some(params) = &case.params {
        let shown: String = params.get().chars().take(200).collect();
        text.push_str(&format!(" {shown}"));
    }
    for name in &case.approved {
        text.push_str(&format!(", approved: `{}`", shown(&name.value)));
    }
    text
}

impl fmt::Display for TestReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for failure in &self.failures {
            writeln!(f, "FAIL {} ({}:{})", failure.name, failure.file, failure.line)?;
            writeln!(f, "  {}", failure.question)?;
            writeln!(f, "- {}", failure.expected)?;
            writeln!(f, "+ {}", failure.decision)?;
            for rule in &failure.grounds {
                write!(f, "{rule}")?;
            }
            writeln!(f)?;
        }
        for name in &self.unknown_rules {
            writeln!(f, "FAIL a case expects the rule `{}`, which does not exist\n", name.escape_debug())?;
        }
        for mistake in &self.mistakes {
            writeln!(f, "FAIL {mistake}\n")?;
        }
        for rule in &self.uncovered {
            writeln!(f, "not exercised by any case: {rule}")?;
        }
        write!(
            f,
            "{} cases, {} failed; {} of {} rules exercised (policy revision {})",
            self.cases,
            self.failures.len() + self.unknown_rules.len() + self.mistakes.len(),
            self.covered,
            self.covered + self.uncovered.len(),
            self.revision
        )
    }
}
