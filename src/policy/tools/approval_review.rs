//! Approvals, what each lets run, and who decides, derived from the rules without any call: for reviewers.
//! Never counts somebody whom only a token makes an approver: who that is, files do not say.

use std::fmt;

use serde::Serialize;

use super::access::Access;
use super::caller_group::CallerGroup;
use crate::name::Name;
use crate::policy::engine::PolicySet;
use crate::policy::language::deciders;
use crate::policy::model::{APPROVE, Approval, RuleId};

/// One approval.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ApprovalReview {
    /// As files describe it.
    #[serde(flatten)]
    pub approval: Approval,
    /// The rules that it lifts.
    pub lifts: Vec<LiftedRule>,
    /// Those who decide: agents to whom files grant a role, and whoever has one in a token.
    pub deciders: Vec<Decider>,
}

/// A rule that an approval lifts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LiftedRule {
    /// The rule.
    pub rule: RuleId,
    /// The registered methods that it is about.
    pub methods: Vec<String>,
}

/// Somebody who decides.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Decider {
    /// An agent, or all that have a role in their token.
    pub who: CallerGroup,
    /// As whom they decide, if the approval counts persons and files say it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub counts_as: Option<String>,
    /// Whether they can call the method by which approvals are given, if services have it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub can_approve: Option<Access>,
}

impl ApprovalReview {
    /// All approvals of a policy, by name.
    #[must_use]
    pub fn all(set: &PolicySet) -> Vec<Self> {
        set.approvals().map(|approval| Self::of(approval, set)).collect()
    }

    fn of(approval: &Approval, set: &PolicySet) -> Self {
        let lifted = set.checked().rules.iter().filter(|rule| rule.approval() == Some(approval.name()));
        let lifted = lifted.map(|rule| LiftedRule {
            rule: rule.id.clone(),
            methods: set.methods().matching_any(&rule.methods).into_keys().map(ToString::to_string).collect(),
        });
        let deciders = deciders(approval, set.checked());
        let agents = deciders.agents.into_iter().map(|agent| CallerGroup::Agent(agent.to_owned()));
        let roles = deciders.token_roles.into_iter().map(|role| CallerGroup::Role(role.to_owned()));
        Self {
            approval: approval.clone(),
            lifts: lifted.collect(),
            deciders: agents.chain(roles).map(|who| Decider::of(who, approval, set)).collect(),
        }
    }
}

impl Decider {
    fn of(who: CallerGroup, approval: &Approval, set: &PolicySet) -> Self {
        let agent = if let CallerGroup::Agent(name) = &who { Name::new(name).ok() } else { None };
        let counts_as = agent.filter(|_| approval.distinct().is_some());
        let counts_as = counts_as.map(|agent| set.decides_as(approval.name(), &agent).to_owned());
        let can_approve = set.methods().contains(APPROVE).then(|| set.access(&who, APPROVE).access);
        Self { who, counts_as, can_approve }
    }
}

impl fmt::Display for ApprovalReview {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.approval)?;
        for LiftedRule { rule, methods } in &self.lifts {
            writeln!(f, "  lifts {rule}: {}", methods.join(", "))?;
        }
        for Decider { who, counts_as, can_approve } in &self.deciders {
            let token = if matches!(who, CallerGroup::Role(_)) { ", by a token" } else { "" };
            let person = counts_as.as_ref().map(|name| format!(" as {}", name.escape_debug())).unwrap_or_default();
            let barred = match can_approve {
                Some(Access::Denied) => format!(", but no rule lets them call `{APPROVE}`"),
                _ => String::new(),
            };
            writeln!(f, "  {who}{token}{person}{barred}")?;
        }
        Ok(())
    }
}
