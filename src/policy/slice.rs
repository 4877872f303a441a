//! The rules that can matter for one method, ready to be evaluated.
//! Never holds a rule of another method, and never misses one of its own.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use cedar_policy::{Authorizer, Context, Entities, Entity, EntityUid, PolicyId, Request};

use super::cedar::{self, BuildError, Scope};
use super::decision::{Decision, Question, Reason, Shadow, Verdict};
use super::expr::{E, Reads};
use super::glob;
use super::params::Param;
use super::project::{self, Params};
use super::request::{Needs, expression};
use super::rule::{Effect, Mode, Rule, Whom};
use super::set::Ground;

/// The part of a policy set that speaks about one method.
#[derive(Debug)]
pub(crate) struct Slice {
    action: EntityUid,
    /// The method and its groups, if a condition asks for them.
    hierarchy: Option<Entity>,
    enforced: cedar_policy::PolicySet,
    needs: Needs,
    /// The enforced rules without their conditions on parameters; only if there are any such conditions.
    relaxed: Option<cedar_policy::PolicySet>,
    /// Shadow rules that allow and shadow rules that deny: apart, because within one set a matching deny rule would
    /// hide the matching allow rules.
    shadows: [cedar_policy::PolicySet; 2],
    /// What the shadow rules look at: one by one, and together with the enforced ones.
    shadow_needs: Vec<(usize, Needs)>,
    all_needs: Needs,
    /// The position of each policy's rule in the whole set.
    index: HashMap<PolicyId, usize>,
    /// The roles that these rules ask for; a caller's other roles cannot matter here.
    roles: Vec<(Arc<str>, EntityUid)>,
    /// Declared parameters, if they are.
    params: Option<Arc<[Param]>>,
    /// Nothing is known about parameters, because no method has the name.
    pub(crate) relaxed_only: bool,
    pub(crate) rules: Vec<usize>,
}

/// One of the names for which a call is judged: the agent, or the subject it acts for.
pub(crate) struct Party<'a> {
    pub(crate) name: &'a str,
    pub(crate) has_role: &'a dyn Fn(&str) -> bool,
}

/// What every party of one call has in common, worked out once.
#[derive(Debug)]
pub(crate) struct Facts<'a> {
    pub(crate) question: &'a Question<'a>,
    /// The declared parameters, if any rule looks at them.
    pub(crate) params: Option<Result<Params, Reason>>,
}

impl Slice {
    /// The slice of `action` from those rules that `matches` picks. For a name that no method has, `relaxed`: nothing
    /// is known about its parameters.
    pub(crate) fn new(
        action: &str,
        params: Option<Arc<[Param]>>,
        relaxed: bool,
        ground: &Ground,
        matches: impl Fn(&Rule) -> bool,
    ) -> Result<Self, (usize, BuildError)> {
        let mut slice = Self {
            action: ground.types.action(action),
            hierarchy: None,
            enforced: cedar_policy::PolicySet::new(),
            needs: Needs::default(),
            relaxed: None,
            shadows: [cedar_policy::PolicySet::new(), cedar_policy::PolicySet::new()],
            shadow_needs: Vec::new(),
            all_needs: Needs::default(),
            index: HashMap::new(),
            roles: Vec::new(),
            params,
            relaxed_only: relaxed,
            rules: Vec::new(),
        };
        let scope = if relaxed { Scope::Relaxed } else { Scope::Sliced };
        let mut enforced: Vec<E> = Vec::new();
        let mut all: Vec<E> = Vec::new();
        let mut less = cedar_policy::PolicySet::new();
        for (position, rule) in ground.rules.iter().enumerate().filter(|(_, rule)| matches(rule)) {
            let failed = |error: BuildError| (position, error);
            slice.rules.push(position);
            let Some(policy) = cedar::policy(rule, scope).map_err(failed)? else { continue };
            let looks = looks(rule, relaxed).map_err(failed)?;
            slice.index.insert(policy.id().clone(), position);
            all.extend(looks.iter().cloned());
            if rule.mode == Mode::Shadow {
                let needs = Needs::of(&Reads::of(&looks), slice.params.as_deref(), &ground.vocabulary);
                slice.shadow_needs.push((position, needs));
                let [allowing, denying] = &mut slice.shadows;
                add(if rule.effect == Effect::Allow { allowing } else { denying }, policy).map_err(failed)?;
                continue;
            }
            enforced.extend(looks);
            add(&mut slice.enforced, policy).map_err(failed)?;
            if let Some(policy) = cedar::policy(rule, Scope::Relaxed).map_err(failed)? {
                add(&mut less, policy).map_err(failed)?;
            }
        }
        slice.needs = Needs::of(&Reads::of(&enforced), slice.params.as_deref(), &ground.vocabulary);
        let reads = Reads::of(&all);
        slice.all_needs = Needs::of(&reads, slice.params.as_deref(), &ground.vocabulary);
        slice.relaxed = slice.needs.params().then_some(less);
        slice.roles = reads.roles.iter().map(|name| (name.as_str().into(), ground.types.role(name))).collect();
        if reads.action {
            // For names that no method has, `action` is a group, and no group is part of itself.
            let groups = glob::groups_of(action).into_iter().map(|group| group.to_string());
            let groups = groups.filter(|group| group != action).map(|group| ground.types.action(&group)).collect();
            slice.hierarchy = Some(Entity::new_no_attrs(slice.action.clone(), groups));
        }
        Ok(slice)
    }

    pub(crate) fn facts<'a>(&self, question: &'a Question<'a>) -> Facts<'a> {
        let wanted = self.all_needs.params();
        let params =
            self.params.as_deref().filter(|_| wanted).map(|declared| project::project(question.params, declared));
        Facts { question, params }
    }

    /// Whether an enforced rule looks at a parameter, so that calls must follow the declarations.
    pub(crate) fn looks_at_params(&self) -> bool {
        self.needs.params()
    }

    /// What the rules say for one party.
    pub(crate) fn decide(&self, facts: &Facts<'_>, party: &Party<'_>, ground: &Ground) -> Decision {
        let Some(entities) = self.entities(party, ground) else { return Decision::deny(Reason::EvaluationError) };
        let mut decision = self.decide_enforced(facts, party, &entities, ground);
        if !self.shadow_needs.is_empty() {
            decision.shadow = self.decide_shadow(facts, party, &entities, &decision, ground);
        }
        decision
    }

    fn decide_enforced(&self, facts: &Facts<'_>, party: &Party<'_>, entities: &Entities, ground: &Ground) -> Decision {
        if let Some(fault) = self.needs.claim_fault(facts.question) {
            return Decision::deny(fault);
        }
        let (set, fault) = match (&self.relaxed, &facts.params) {
            (Some(relaxed), Some(Err(fault))) => (relaxed, Some(fault)),
            _ => (&self.enforced, None),
        };
        let params = facts.params.as_ref().and_then(|params| params.as_ref().ok());
        let response = self
            .needs
            .context(facts.question, params)
            .and_then(|context| self.request(party, context, ground))
            .map(|request| Authorizer::new().is_authorized(&request, set, entities));
        let decision = match response {
            Some(response) => self.judge(&response, ground),
            None => Decision::deny(Reason::EvaluationError),
        };
        // Only those who might call the method with other parameters are told what is wrong with these.
        match fault {
            Some(fault) if decision.is_allow() => Decision::deny(fault.clone()),
            _ => decision,
        }
    }

    /// What each shadow rule would change.
    fn decide_shadow(
        &self,
        facts: &Facts<'_>,
        party: &Party<'_>,
        entities: &Entities,
        decision: &Decision,
        ground: &Ground,
    ) -> Vec<Shadow> {
        let mut would: Vec<(usize, Effect)> = Vec::new();
        // A rule that looks at parameters makes them subject to their declaration, and so does one with claims.
        for (position, needs) in &self.shadow_needs {
            let refused = needs.params() && matches!(facts.params, Some(Err(_)));
            if refused || needs.claim_fault(facts.question).is_some() {
                would.push((*position, Effect::Deny));
            }
        }
        let params = facts.params.as_ref().and_then(|params| params.as_ref().ok());
        let request =
            self.all_needs.context(facts.question, params).and_then(|context| self.request(party, context, ground));
        for shadow in self.shadows.iter().filter(|shadow| !shadow.is_empty()) {
            let Some(request) = &request else { continue };
            let response = Authorizer::new().is_authorized(request, shadow, entities);
            let matched = response.diagnostics().reason().filter_map(|id| {
                let position = *self.index.get(id)?;
                Some((position, ground.rules.get(position)?.effect))
            });
            would.extend(matched);
            // A rule that fails would deny, were it enforced.
            would.extend(
                response
                    .diagnostics()
                    .errors()
                    .filter_map(|error| Some((*self.index.get(failed_policy(error))?, Effect::Deny))),
            );
        }
        // What makes the call refused comes before what the rule would do if it were not.
        would.sort_unstable_by_key(|(position, effect)| (*position, std::cmp::Reverse(*effect)));
        would.dedup_by_key(|(position, _)| *position);
        let faulty = self.needs.params() && matches!(facts.params, Some(Err(_)));
        would
            .into_iter()
            .filter_map(|(position, effect)| {
                let would = match (effect, decision.verdict, &decision.reason) {
                    (Effect::Deny, Verdict::Allow, _) => Verdict::Deny,
                    (Effect::Allow, Verdict::Deny, Reason::NoRule) if !faulty => Verdict::Allow,
                    _ => return None,
                };
                Some(Shadow { rule: ground.rules.get(position)?.id.clone(), would })
            })
            .collect()
    }

    /// Which of these probes hold for one party, and which failed with what.
    pub(crate) fn probe(
        &self,
        facts: &Facts<'_>,
        party: &Party<'_>,
        probes: &cedar_policy::PolicySet,
        ground: &Ground,
    ) -> HashMap<PolicyId, Option<String>> {
        let mut results = HashMap::new();
        let params = facts.params.as_ref().and_then(|params| params.as_ref().ok());
        let context = self.all_needs.context(facts.question, params);
        let request = context.and_then(|context| self.request(party, context, ground));
        if let (Some(request), Some(entities)) = (request, self.entities(party, ground)) {
            let response = Authorizer::new().is_authorized(&request, probes, &entities);
            for id in response.diagnostics().reason() {
                results.insert(id.clone(), None);
            }
            for error in response.diagnostics().errors() {
                let cedar_policy::AuthorizationError::PolicyEvaluationError(error) = error;
                results.insert(error.policy_id().clone(), Some(error.inner().to_string()));
            }
        }
        results
    }

    fn request(&self, party: &Party<'_>, context: Context, ground: &Ground) -> Option<Request> {
        let principal = ground.types.agent(party.name);
        Request::new(principal, self.action.clone(), ground.types.service.clone(), context, None).ok()
    }

    fn entities(&self, party: &Party<'_>, ground: &Ground) -> Option<Entities> {
        let principal = ground.types.agent(party.name);
        let parents =
            self.roles.iter().filter(|(name, _)| (party.has_role)(name)).map(|(_, uid)| uid.clone()).collect();
        let principal = if self.all_needs.principal {
            let mut attributes = HashMap::new();
            attributes.insert("name".to_owned(), cedar_policy::RestrictedExpression::new_string(party.name.to_owned()));
            for (name, value) in ground.attributes.get(party.name).into_iter().flatten() {
                attributes.insert(name.clone(), expression(value)?);
            }
            Entity::new(principal, attributes, parents).ok()?
        } else {
            Entity::new_no_attrs(principal, parents)
        };
        Entities::from_entities([principal].into_iter().chain(self.hierarchy.clone()), None).ok()
    }

    fn judge(&self, response: &cedar_policy::Response, ground: &Ground) -> Decision {
        let diagnostics = response.diagnostics();
        // Cedar skips a policy that fails. A skipped forbid would be an open door, so any failure denies.
        if let Some(error) = diagnostics.errors().next() {
            let rule = self.first([failed_policy(error)].into_iter(), ground);
            return Decision { rule: rule.map(|rule| rule.id.clone()), ..Decision::deny(Reason::EvaluationError) };
        }
        let rule = self.first(diagnostics.reason(), ground).map(|rule| rule.id.clone());
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

    fn first<'a, 'b>(&self, ids: impl Iterator<Item = &'b PolicyId>, ground: &'a Ground) -> Option<&'a Rule> {
        ids.filter_map(|id| self.index.get(id)).min().and_then(|position| ground.rules.get(*position))
    }
}

fn add(set: &mut cedar_policy::PolicySet, policy: cedar_policy::Policy) -> Result<(), BuildError> {
    Ok(set.add(policy).map_err(Box::new)?)
}

/// Every expression of a rule that is evaluated.
fn looks(rule: &Rule, relaxed: bool) -> Result<Vec<E>, BuildError> {
    let who = match rule.who.as_slice() {
        [Whom::Everyone] => None,
        _ => Some(cedar::who_part(rule)?.condition),
    };
    let parts = rule.parts.iter().filter(|part| !relaxed || !cedar::reads_params(part));
    Ok(who.into_iter().chain(parts.map(|part| part.condition.clone())).collect())
}

fn failed_policy(error: &cedar_policy::AuthorizationError) -> &PolicyId {
    let cedar_policy::AuthorizationError::PolicyEvaluationError(error) = error;
    error.policy_id()
}

impl fmt::Debug for Party<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Party").field("name", &self.name).finish_non_exhaustive()
    }
}
