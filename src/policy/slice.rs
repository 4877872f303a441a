//! The rules that can matter for one method, ready to be evaluated.
//! Never holds a rule of another method, and never misses one of its own.

use std::collections::HashMap;
use std::sync::Arc;

use cedar_policy::{Authorizer, Context, Entities, Entity, EntityUid, PolicyId, Request, RestrictedExpression};

use super::cedar::{self, BuildError, Scope, Types};
use super::decision::{Decision, Reason, Shadow, Verdict};
use super::rule::{Effect, Mode, Rule, Who};

/// The part of a policy set that speaks about one method.
#[derive(Debug)]
pub(crate) struct Slice {
    action: EntityUid,
    enforced: cedar_policy::PolicySet,
    /// Shadow rules that allow and shadow rules that deny: apart, because within one set a matching deny rule would
    /// hide the matching allow rules.
    shadows: [cedar_policy::PolicySet; 2],
    /// The position of each policy's rule in the whole set.
    index: HashMap<PolicyId, usize>,
    /// The roles that these rules ask for; a caller's other roles cannot matter here.
    roles: Vec<(Arc<str>, EntityUid)>,
    pub(crate) rules: Vec<usize>,
}

/// One of the names for which a call is judged: the agent, or the subject it acts for.
pub(crate) struct Party<'a> {
    pub(crate) name: &'a str,
    pub(crate) has_role: &'a dyn Fn(&str) -> bool,
    pub(crate) delegated: bool,
}

impl Slice {
    /// The slice of `action` from those of `rules` that `matches` picks.
    pub(crate) fn new(
        action: &str,
        rules: &[Rule],
        matches: impl Fn(&Rule) -> bool,
        types: &Types,
    ) -> Result<Self, (usize, BuildError)> {
        let mut enforced = cedar_policy::PolicySet::new();
        let mut shadows = [cedar_policy::PolicySet::new(), cedar_policy::PolicySet::new()];
        let mut index = HashMap::new();
        let mut roles: Vec<(Arc<str>, EntityUid)> = Vec::new();
        let mut picked = Vec::new();
        for (position, rule) in rules.iter().enumerate().filter(|(_, rule)| matches(rule)) {
            let policy = cedar::policy(rule, Scope::Sliced).map_err(|error| (position, error))?;
            index.insert(policy.id().clone(), position);
            let [allowing, denying] = &mut shadows;
            let set = match (rule.mode, rule.effect) {
                (Mode::Enforce, _) => &mut enforced,
                (Mode::Shadow, Effect::Allow) => allowing,
                (Mode::Shadow, Effect::Deny) => denying,
            };
            set.add(policy).map_err(|error| (position, Box::new(error).into()))?;
            if let Who::Roles(names) = &rule.who {
                for name in names {
                    if !roles.iter().any(|(known, _)| **known == **name) {
                        roles.push((name.as_str().into(), types.role(name)));
                    }
                }
            }
            picked.push(position);
        }
        Ok(Self { action: types.action(action), enforced, shadows, index, roles, rules: picked })
    }

    /// What the rules say for one party.
    pub(crate) fn decide(&self, party: &Party<'_>, rules: &[Rule], types: &Types) -> Decision {
        let Some((request, entities)) = self.request(party, types) else {
            return Decision::deny(Reason::EvaluationError);
        };
        let authorizer = Authorizer::new();
        let response = authorizer.is_authorized(&request, &self.enforced, &entities);
        let mut decision = self.judge(&response, rules);
        let mut would = Vec::new();
        for shadow in self.shadows.iter().filter(|shadow| !shadow.is_empty()) {
            let response = authorizer.is_authorized(&request, shadow, &entities);
            would.extend(self.would(&response, &decision, rules));
        }
        would.sort_by_key(|(position, _)| *position);
        decision.shadow = would.into_iter().map(|(_, shadow)| shadow).collect();
        decision
    }

    /// Which of these probes hold for one party: `None` where a probe failed.
    pub(crate) fn probe(
        &self,
        party: &Party<'_>,
        probes: &cedar_policy::PolicySet,
        types: &Types,
    ) -> HashMap<PolicyId, Option<String>> {
        let mut results = HashMap::new();
        if let Some((request, entities)) = self.request(party, types) {
            let response = Authorizer::new().is_authorized(&request, probes, &entities);
            for id in response.diagnostics().reason() {
                results.insert(id.clone(), None);
            }
            for error in response.diagnostics().errors() {
                results.insert(failed_policy(error).clone(), Some(error.to_string()));
            }
        }
        results
    }

    fn request(&self, party: &Party<'_>, types: &Types) -> Option<(Request, Entities)> {
        let principal = types.agent(party.name);
        let parents =
            self.roles.iter().filter(|(name, _)| (party.has_role)(name)).map(|(_, uid)| uid.clone()).collect();
        let entities = Entities::from_entities([Entity::new_no_attrs(principal.clone(), parents)], None).ok()?;
        let context =
            Context::from_pairs([("delegated".to_owned(), RestrictedExpression::new_bool(party.delegated))]).ok()?;
        let request = Request::new(principal, self.action.clone(), types.service.clone(), context, None).ok()?;
        Some((request, entities))
    }

    fn judge(&self, response: &cedar_policy::Response, rules: &[Rule]) -> Decision {
        let diagnostics = response.diagnostics();
        // Cedar skips a policy that fails. A skipped forbid would be an open door, so any failure denies.
        if let Some(error) = diagnostics.errors().next() {
            let rule = self.first([failed_policy(error)].into_iter(), rules);
            return Decision { rule: rule.map(|rule| rule.id.clone()), ..Decision::deny(Reason::EvaluationError) };
        }
        let rule = self.first(diagnostics.reason(), rules).map(|rule| rule.id.clone());
        match (response.decision(), rule) {
            (cedar_policy::Decision::Allow, Some(rule)) => {
                Decision { verdict: Verdict::Allow, rule: Some(rule), reason: Reason::AllowedBy, shadow: Vec::new() }
            }
            (cedar_policy::Decision::Allow, None) => Decision::deny(Reason::EvaluationError),
            (cedar_policy::Decision::Deny, Some(rule)) => {
                Decision { rule: Some(rule), ..Decision::deny(Reason::ForbiddenBy) }
            }
            (cedar_policy::Decision::Deny, None) => Decision::deny(Reason::NoRule),
        }
    }

    /// What each shadow rule would change.
    fn would(&self, response: &cedar_policy::Response, decision: &Decision, rules: &[Rule]) -> Vec<(usize, Shadow)> {
        let diagnostics = response.diagnostics();
        // A rule that fails would deny, were it enforced.
        let failed = diagnostics.errors().map(|error| (failed_policy(error), Some(Effect::Deny)));
        let matched = diagnostics.reason().map(|id| (id, None));
        matched
            .chain(failed)
            .filter_map(|(id, effect)| {
                let position = *self.index.get(id)?;
                let rule = rules.get(position)?;
                let would = match (effect.unwrap_or(rule.effect), decision.verdict, &decision.reason) {
                    (Effect::Deny, Verdict::Allow, _) => Verdict::Deny,
                    (Effect::Allow, Verdict::Deny, Reason::NoRule) => Verdict::Allow,
                    _ => return None,
                };
                Some((position, Shadow { rule: rule.id.clone(), would }))
            })
            .collect()
    }

    fn first<'a, 'b>(&self, ids: impl Iterator<Item = &'b PolicyId>, rules: &'a [Rule]) -> Option<&'a Rule> {
        ids.filter_map(|id| self.index.get(id)).min().and_then(|position| rules.get(*position))
    }
}

impl std::fmt::Debug for Party<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Party").field("name", &self.name).field("delegated", &self.delegated).finish_non_exhaustive()
    }
}

fn failed_policy(error: &cedar_policy::AuthorizationError) -> &PolicyId {
    let cedar_policy::AuthorizationError::PolicyEvaluationError(error) = error;
    error.policy_id()
}
