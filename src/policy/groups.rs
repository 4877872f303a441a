//! The rules of one method by whom they are about, so that a decision evaluates those that can be about its caller.
//! Never leaves out a rule that could match: what does not name its callers one by one is evaluated for everybody.

use std::collections::HashMap;

use cedar_policy::{Policy, PolicySet};

use super::cedar::BuildError;
use super::rule::{Effect, Whom};
use super::slice::Party;

/// Rules about the same callers, ready to be evaluated.
#[derive(Debug, Default)]
pub(crate) struct Group {
    pub(crate) enforced: PolicySet,
    /// The enforced rules without their conditions on parameters; empty where no enforced rule of the slice has any.
    pub(crate) relaxed: PolicySet,
    /// Shadow rules that allow and shadow rules that deny: apart, because within one set a matching deny rule would
    /// hide the matching allow rules.
    pub(crate) shadows: [PolicySet; 2],
}

/// All rules of a slice. Each is in one group, however many callers it names.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    groups: Vec<Group>,
    by_callers: HashMap<Vec<Whom>, usize>,
    /// The group of the rules that are not only about roles and agents which they name.
    everybody: Option<usize>,
    by_role: HashMap<String, Vec<usize>>,
    by_agent: HashMap<String, Vec<usize>>,
}

impl Groups {
    /// The group for rules about these callers.
    fn about(&mut self, who: &[Whom]) -> Option<&mut Group> {
        let named = who.iter().all(|whom| matches!(whom, Whom::Role(_) | Whom::Agent(_)));
        let mut callers = if named { who.to_vec() } else { Vec::new() };
        callers.sort_unstable();
        callers.dedup();
        let place = match self.by_callers.get(&callers) {
            Some(place) => *place,
            None => {
                let place = self.groups.len();
                self.groups.push(Group::default());
                for whom in &callers {
                    match whom {
                        Whom::Role(name) => self.by_role.entry(name.clone()).or_default().push(place),
                        Whom::Agent(name) => self.by_agent.entry(name.clone()).or_default().push(place),
                        Whom::Everyone | Whom::Agents(_) => {}
                    }
                }
                if callers.is_empty() {
                    self.everybody = Some(place);
                }
                self.by_callers.insert(callers, place);
                place
            }
        };
        self.groups.get_mut(place)
    }

    /// Takes an enforced rule, and what is left of it without its conditions on parameters.
    pub(crate) fn enforce(&mut self, who: &[Whom], whole: Policy, relaxed: Option<Policy>) -> Result<(), BuildError> {
        let Some(group) = self.about(who) else { return Ok(()) };
        group.enforced.add(whole).map_err(Box::new)?;
        relaxed.map_or(Ok(()), |policy| Ok(group.relaxed.add(policy).map_err(Box::new)?))
    }

    /// Takes a shadow rule.
    pub(crate) fn watch(&mut self, who: &[Whom], effect: Effect, policy: Policy) -> Result<(), BuildError> {
        let Some(group) = self.about(who) else { return Ok(()) };
        let [allowing, denying] = &mut group.shadows;
        let shadows = if effect == Effect::Allow { allowing } else { denying };
        Ok(shadows.add(policy).map_err(Box::new)?)
    }

    /// No enforced rule looks at a parameter, so none is ever evaluated without.
    pub(crate) fn never_relax(&mut self) {
        for group in &mut self.groups {
            group.relaxed = PolicySet::new();
        }
    }

    /// The groups of all rules that can match a call of this party. Every other rule asks for a role that the party
    /// has not, or for another name, before it asks for anything that could fail.
    pub(crate) fn of(&self, party: &Party<'_>) -> Vec<&Group> {
        let roles = party.roles.iter().filter_map(|role| self.by_role.get(*role)).flatten();
        let agents = self.by_agent.get(party.name).into_iter().flatten();
        let mut places: Vec<usize> = self.everybody.iter().chain(roles).chain(agents).copied().collect();
        places.sort_unstable();
        places.dedup();
        places.into_iter().filter_map(|place| self.groups.get(place)).collect()
    }

    /// All groups, for comparison.
    #[cfg(test)]
    pub(crate) fn all(&self) -> Vec<&Group> {
        self.groups.iter().collect()
    }
}

#[cfg(test)]
mod tests;
