//! The rules of one method by the callers they are about, so that a decision evaluates only those that can be about its
//! caller.
//! Never leaves out a rule that could match: one that does not name its callers one by one is evaluated for everybody.

use std::collections::HashMap;

use cedar_policy::{Policy, PolicySet};

use super::principal::Principal;
use crate::auth::Caller;
use crate::policy::cedar::BuildError;
use crate::policy::model::{ByPrincipal, CallerMatch, Delegation, Effect, Rule};

/// Rules about the same callers, ready to be evaluated.
#[derive(Debug, Default)]
pub(crate) struct RuleGroup {
    pub(crate) enforced: PolicySet,
    /// The enforced rules without their conditions on parameters; empty if no enforced rule of the method has any.
    pub(crate) without_args: PolicySet,
    /// The enforced rules that an approval lifts, apart for the same reason as shadow rules.
    pub(crate) liftable: PolicySet,
    /// Shadow rules that allow, and shadow rules that deny: apart, because within one set a matching deny rule would
    /// hide the matching allow rules.
    pub(crate) shadows: [PolicySet; 2],
    /// The enforced rules that require nothing but their callers.
    pub(crate) plain: Vec<PlainRule>,
}

/// A rule that matches every call of the callers its group is about, subject only to whether they call for another.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PlainRule {
    /// Its position in the whole set.
    pub(crate) position: usize,
    pub(crate) effect: Effect,
    delegation: Delegation,
}

impl PlainRule {
    /// `None` for a rule that has to be evaluated: one with conditions, or with a `*` in a name.
    pub(crate) fn of(rule: &Rule, position: usize) -> Option<Self> {
        let by_pattern = rule.callers.iter().any(|whom| matches!(whom, CallerMatch::Like(..)));
        let is_plain = rule.conditions.is_empty() && !rule.callers.is_empty() && !by_pattern;
        is_plain.then_some(Self { position, effect: rule.effect, delegation: rule.delegation })
    }

    /// Whether it matches a call of this caller, which its group is about.
    pub(crate) fn matches(&self, caller: &Caller) -> bool {
        match self.delegation {
            Delegation::Also => true,
            Delegation::Never => !caller.delegated,
            Delegation::Only => caller.delegated,
        }
    }
}

/// All rules of a method. Each is in one group, however many callers it names.
#[derive(Debug, Default)]
pub(crate) struct CallerIndex {
    groups: Vec<RuleGroup>,
    by_callers: HashMap<Vec<CallerMatch>, usize>,
    /// The group of the rules that are about others than the roles and agents that they name.
    everybody: Option<usize>,
    by_role: HashMap<String, Vec<usize>>,
    by_name: ByPrincipal<Vec<usize>>,
}

impl CallerIndex {
    /// The group for rules about these callers.
    fn about(&mut self, who: &[CallerMatch]) -> Option<&mut RuleGroup> {
        let named = who.iter().all(|whom| matches!(whom, CallerMatch::Role(_) | CallerMatch::Named(..)));
        let mut callers = if named { who.to_vec() } else { Vec::new() };
        callers.sort_unstable();
        callers.dedup();
        let next = self.groups.len();
        let place = *self.by_callers.entry(callers.clone()).or_insert(next);
        if place == next {
            self.groups.push(RuleGroup::default());
            for whom in &callers {
                match whom {
                    CallerMatch::Role(name) => self.by_role.entry(name.clone()).or_default().push(place),
                    CallerMatch::Named(kind, name) => self.by_name.or_default(*kind, name).push(place),
                    CallerMatch::Everyone | CallerMatch::Like(..) => {}
                }
            }
            if callers.is_empty() {
                self.everybody = Some(place);
            }
        }
        self.groups.get_mut(place)
    }

    /// Adds an enforced rule, and what is left of it without its conditions on parameters.
    pub(crate) fn add_enforced(
        &mut self,
        who: &[CallerMatch],
        whole: Policy,
        without_args: Option<Policy>,
        plain: Option<PlainRule>,
    ) -> Result<(), BuildError> {
        let Some(group) = self.about(who) else { return Ok(()) };
        group.plain.extend(plain);
        group.enforced.add(whole).map_err(Box::new)?;
        without_args.map_or(Ok(()), |policy| Ok(group.without_args.add(policy).map_err(Box::new)?))
    }

    /// Adds an enforced rule that an approval lifts.
    pub(crate) fn add_liftable(&mut self, who: &[CallerMatch], whole: Policy) -> Result<(), BuildError> {
        let Some(group) = self.about(who) else { return Ok(()) };
        Ok(group.liftable.add(whole).map_err(Box::new)?)
    }

    /// Adds a shadow rule.
    pub(crate) fn add_shadow(&mut self, who: &[CallerMatch], effect: Effect, policy: Policy) -> Result<(), BuildError> {
        let Some(group) = self.about(who) else { return Ok(()) };
        let [allowing, denying] = &mut group.shadows;
        let shadows = if effect == Effect::Allow { allowing } else { denying };
        Ok(shadows.add(policy).map_err(Box::new)?)
    }

    /// Called if no enforced rule reads a parameter, so that none is ever evaluated without its conditions.
    pub(crate) fn drop_without_args(&mut self) {
        for group in &mut self.groups {
            group.without_args = PolicySet::new();
        }
    }

    /// The groups of all rules that can match a call of this principal. Every other rule requires a role that the principal
    /// does not have, or another name, before it requires anything that could fail.
    pub(crate) fn of(&self, principal: &Principal<'_>) -> Vec<&RuleGroup> {
        let roles = principal.roles.iter().filter_map(|role| self.by_role.get(*role)).flatten();
        let named = self.by_name.get(principal.kind, principal.name).into_iter().flatten();
        let mut places: Vec<usize> = self.everybody.iter().chain(roles).chain(named).copied().collect();
        places.sort_unstable();
        places.dedup();
        places.into_iter().filter_map(|place| self.groups.get(place)).collect()
    }

    /// All groups, for comparison.
    #[cfg(test)]
    pub(crate) fn all(&self) -> Vec<&RuleGroup> {
        self.groups.iter().collect()
    }
}

#[cfg(test)]
mod tests;
