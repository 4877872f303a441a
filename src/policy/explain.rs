//! Why a decision came out as it did, in words: every rule of the method and which of its parts failed.
//! Never decides: the answer is `PolicySet::decide`'s, and each part is evaluated by the same engine.

mod observed;

use std::fmt;

use serde::Serialize;

use crate::policy::cedar::{References, compile, expr};
use crate::policy::engine::{
    CallFacts, ContextShape, Decision, MethodPolicies, PolicySet, Principal, Question, Reason, principals,
};
use crate::policy::model::{Approval, Budget, Condition, Effect, Mode, PrincipalKind, Revision, Rule, RuleId};
use observed::observed_value;

/// A decision with its reasons.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Explanation {
    /// The answer, the same as [`PolicySet::decide`] gives.
    pub decision: Decision,
    /// The policy that gave it.
    pub revision: Revision,
    /// The method asked about.
    pub method: String,
    /// The approvals that it needs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub approvals: Vec<Approval>,
    /// The budgets that it is charged to if it runs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub budgets: Vec<Budget>,
    /// Why it does not run although it is allowed: a budget could not count it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uncounted: Option<String>,
    /// One for the agent, and one for the subject of a delegated call.
    pub principals: Vec<PrincipalExplanation>,
}

/// How the rules of the method look from one principal of the call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PrincipalExplanation {
    /// Whether it is the agent or the subject.
    pub kind: PrincipalKind,
    /// Its name.
    pub name: String,
    /// What the rules say for this principal alone.
    pub decision: Decision,
    /// Every rule of the method, those that decided first. If none allows the call, those follow that lack least.
    pub rules: Vec<RuleExplanation>,
}

/// How one rule fared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RuleExplanation {
    /// The rule.
    pub rule: RuleId,
    /// Its description, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// What it does when it matches.
    pub effect: Effect,
    /// The approval that lifts it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unless_approved: Option<String>,
    /// Whether it takes part in verdicts.
    pub mode: Mode,
    /// Whether it matched.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// Its conditions, one by one.
    pub conditions: Vec<ConditionExplanation>,
}

/// Whether a rule or a part of it held. In JSON, `outcome` is one of four words, and `why` stands beside `failed`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(tag = "outcome", content = "why", rename_all = "lowercase")]
pub enum Outcome {
    /// It held.
    Held,
    /// It could not be evaluated.
    Failed(String),
    /// It did not hold.
    Not,
    /// It was not evaluated: it can be only if a part before it holds, and that part did not.
    Skipped,
}

/// How one condition of a rule fared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ConditionExplanation {
    /// What has to hold, as a sentence.
    pub condition: String,
    /// Whether it did.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// What the call had there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub actual: Option<String>,
}

impl PolicySet {
    /// Answers a question and says of every rule of the method whether it matched, and if not, why not.
    #[must_use]
    pub fn explain(&self, question: &Question<'_>) -> Explanation {
        self.explain_approved(question, &[])
    }

    /// The same for a call for which these approvals were given, as [`PolicySet::decide_approved`] decides it.
    #[must_use]
    pub fn explain_approved(&self, question: &Question<'_>, approved: &[&str]) -> Explanation {
        let principals = match self.policies_for(question.method) {
            None => Vec::new(),
            Some(policies) => {
                let facts = CallFacts { approved, ..policies.facts(question) };
                let principal = |kind| Principal::of(question.caller, kind, self.checked());
                let views = principals(question.caller).map(|kind| View {
                    policies,
                    facts: &facts,
                    principal: principal(kind),
                });
                views.map(|view| view.explain()).collect()
            }
        };
        let decision = self.decide_approved(question, approved);
        let may_run = decision.is_allow() || decision.reason == Reason::ApprovalRequired;
        let charges = if may_run { self.charges(question) } else { Ok(Vec::new()) };
        Explanation {
            approvals: decision.approvals.iter().filter_map(|name| self.approval(name)).cloned().collect(),
            uncounted: charges.as_ref().err().cloned(),
            budgets: charges.unwrap_or_default().into_iter().map(|charge| charge.budget.clone()).collect(),
            decision,
            revision: self.revision().clone(),
            method: question.method.to_owned(),
            principals,
        }
    }
}

/// The rules of a method as one principal of a call sees them.
struct View<'a> {
    policies: &'a MethodPolicies,
    facts: &'a CallFacts<'a>,
    principal: Principal<'a>,
}

impl View<'_> {
    fn explain(&self) -> PrincipalExplanation {
        let rules = self.policies.rules.iter().filter_map(|position| self.principal.checked.rules.get(*position));
        let mut rules: Vec<RuleExplanation> = rules.map(|rule| self.explain_rule(rule)).collect();
        let decision = self.policies.decide(self.facts, &self.principal);
        if decision.reason == Reason::NoRule {
            rules.sort_by_key(|rule| (rule.outcome != Outcome::Held, !rule.could_allow(), rule.lacks().count()));
        } else {
            rules.sort_by(|left, right| left.outcome.cmp(&right.outcome));
        }
        PrincipalExplanation { kind: self.principal.kind, name: self.principal.name.to_owned(), decision, rules }
    }

    fn explain_rule(&self, rule: &Rule) -> RuleExplanation {
        let parts = compile::parts(rule);
        let asked = parts.iter().enumerate().map(|(position, part)| (position.to_string(), part.expr.clone()));
        // It always holds, unless nothing can be evaluated at all.
        let asked = asked.chain([(ALWAYS.to_owned(), expr::boolean(true))]);
        let results = self.policies.probe(self.facts, &self.principal, asked);
        let evaluated = results.contains_key(ALWAYS);
        let mut stopped = false;
        let parts: Vec<ConditionExplanation> = parts
            .iter()
            .enumerate()
            .map(|(position, part)| {
                let outcome = match (self.fault(part), results.get(&position.to_string())) {
                    (Some(fault), _) => Outcome::Failed(fault),
                    _ if !evaluated => Outcome::Failed(NOT_EVALUATED.to_owned()),
                    (None, Some(None)) => Outcome::Held,
                    (None, Some(Some(_))) if stopped => Outcome::Skipped,
                    (None, Some(Some(error))) => Outcome::Failed(error.clone()),
                    (None, None) => Outcome::Not,
                };
                stopped |= outcome == Outcome::Not;
                let seen = matches!(outcome, Outcome::Held | Outcome::Not);
                let actual = seen.then(|| observed_value(part, self.facts, &self.principal)).flatten();
                ConditionExplanation { condition: part.text.clone(), outcome, actual }
            })
            .collect();
        // Cedar evaluates the parts in order and stops at the first that does not hold. For a method that does not exist,
        // conditions on parameters are left out, and so are deny rules that have any.
        let judged = |part: &ConditionExplanation| {
            !(self.policies.unregistered && part.outcome == Outcome::Failed(NOTHING_KNOWN.into()))
        };
        let left_out = rule.effect == Effect::Deny && !parts.iter().all(judged);
        let mut outcome = parts.iter().filter(|part| judged(part)).map(|part| &part.outcome);
        let outcome = outcome.find(|outcome| **outcome != Outcome::Held).cloned().unwrap_or(Outcome::Held);
        let outcome = if left_out { Outcome::Not } else { outcome };
        RuleExplanation {
            rule: rule.id.clone(),
            description: rule.description.clone(),
            effect: rule.effect,
            unless_approved: rule.approval().map(ToOwned::to_owned),
            mode: rule.mode,
            outcome,
            conditions: parts,
        }
    }

    /// Why a part cannot be judged, if it reads something of the call that is not as declared.
    fn fault(&self, part: &Condition) -> Option<String> {
        if compile::reads_params(part) {
            if self.policies.unregistered {
                return Some(NOTHING_KNOWN.to_owned());
            }
            if let Some(fault) = self.facts.fault() {
                return Some(fault.to_string());
            }
        }
        let shape = ContextShape::of(&References::of([&part.expr]), None, &self.principal.checked.declarations);
        shape.claim_fault(self.facts.question).map(|fault| fault.to_string())
    }
}

const ALWAYS: &str = "always";
/// A time beyond the year 9999, for instance.
const NOT_EVALUATED: &str = "conditions were not evaluated: the call has a value that Cedar cannot represent";
const NOTHING_KNOWN: &str = "nothing is known about the parameters of a method that does not exist";

impl PrincipalExplanation {
    /// The rule that would allow the call if a little more held, if no rule does.
    fn nearest(&self) -> Option<&RuleExplanation> {
        let lacking = |rule: &&RuleExplanation| rule.could_allow() && (1..=2).contains(&rule.lacks().count());
        self.rules.first().filter(|_| self.decision.reason == Reason::NoRule).filter(lacking)
    }
}

impl RuleExplanation {
    fn could_allow(&self) -> bool {
        self.effect == Effect::Allow && self.mode == Mode::Enforce
    }

    /// What does not hold.
    fn lacks(&self) -> impl Iterator<Item = &ConditionExplanation> {
        self.conditions.iter().filter(|part| part.outcome != Outcome::Held)
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.decision)?;
        writeln!(f, "method {}, policy revision {}", self.method.escape_debug(), self.revision)?;
        if let Some(why) = self.revision.why() {
            writeln!(f, "everything is denied: {why}")?;
        }
        for approval in &self.approvals {
            writeln!(f, "approval {approval}")?;
        }
        for budget in &self.budgets {
            writeln!(f, "budget {budget}")?;
        }
        if let Some(why) = &self.uncounted {
            writeln!(f, "refused all the same: {why}")?;
        }
        for principal in &self.principals {
            let whom = if principal.kind == PrincipalKind::Subject { "the subject " } else { "" };
            writeln!(f, "\nfor {whom}{}: {}", principal.name.escape_debug(), principal.decision)?;
            if let Some(rule) = principal.nearest() {
                let asks = rule.lacks().map(|part| match &part.actual {
                    Some(actual) => format!("{} ({actual})", part.condition),
                    None => part.condition.clone(),
                });
                writeln!(f, "  nearest: {} asks that {}", rule.rule, asks.collect::<Vec<_>>().join(", and that "))?;
            }
            if principal.rules.is_empty() {
                writeln!(f, "  no rule speaks about this method")?;
            }
            for rule in &principal.rules {
                write!(f, "{rule}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for RuleExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let outcome = match self.outcome {
            Outcome::Held => "matches",
            Outcome::Failed(_) => "fails",
            Outcome::Not | Outcome::Skipped => "does not match",
        };
        let shadow = if self.mode == Mode::Shadow { " (shadow)" } else { "" };
        let until = self.unless_approved.as_ref().map(|name| format!(", until approved: `{name}`")).unwrap_or_default();
        writeln!(f, "  {} rule {}{shadow} {outcome}{until}", self.effect, self.rule)?;
        for part in &self.conditions {
            let actual = part.actual.as_ref().map(|actual| format!(" ({actual})")).unwrap_or_default();
            match &part.outcome {
                Outcome::Held => writeln!(f, "    yes  {}{actual}", part.condition)?,
                Outcome::Not => writeln!(f, "    no   {}{actual}", part.condition)?,
                Outcome::Failed(error) => writeln!(f, "    fail {}: {error}", part.condition)?,
                Outcome::Skipped => writeln!(f, "    skip {}", part.condition)?,
            }
        }
        Ok(())
    }
}
