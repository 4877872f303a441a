//! The rules that can matter for one method, ready to be evaluated.
//! Never holds a rule of another method, and never misses one of its own.

use std::collections::HashMap;
use std::sync::Arc;

use cedar_policy::{Authorizer, Context, Entities, Entity, EntityUid, PolicyId, Request};

use super::cedar::{self, BuildError, Scope};
use super::decision::{Decision, Question, Reason, Shadow, Verdict};
use super::expr::{E, Reads};
use super::glob;
use super::groups::{Group, Groups};
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
    pub(crate) groups: Groups,
    /// What the enforced rules look at, those about other callers included: whether a call must follow the declarations
    /// never depends on who calls.
    needs: Needs,
    /// What the shadow rules look at: one by one, and together with the enforced ones.
    shadow_needs: Vec<(usize, Needs)>,
    all_needs: Needs,
    /// The position of each policy's rule in the whole set.
    index: HashMap<PolicyId, usize>,
    /// The roles that these rules ask for; a caller's other roles cannot matter here.
    roles: HashMap<String, EntityUid>,
    /// Declared parameters, if they are.
    params: Option<Arc<[Param]>>,
    /// Nothing is known about parameters, because no method has the name.
    pub(crate) relaxed_only: bool,
    pub(crate) rules: Vec<usize>,
}

/// One of the names for which a call is judged: the agent, or the subject it acts for.
#[derive(Debug)]
pub(crate) struct Party<'a> {
    pub(crate) name: &'a str,
    /// Those of the token that are believed, those that files grant, and what they include. One may be there twice.
    pub(crate) roles: Vec<&'a str>,
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
            groups: Groups::default(),
            needs: Needs::default(),
            shadow_needs: Vec::new(),
            all_needs: Needs::default(),
            index: HashMap::new(),
            roles: HashMap::new(),
            params,
            relaxed_only: relaxed,
            rules: Vec::new(),
        };
        let scope = if relaxed { Scope::Relaxed } else { Scope::Sliced };
        let mut enforced: Vec<E> = Vec::new();
        let mut all: Vec<E> = Vec::new();
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
                slice.groups.watch(&rule.who, rule.effect, policy).map_err(failed)?;
                continue;
            }
            enforced.extend(looks);
            let relaxed = cedar::policy(rule, Scope::Relaxed).map_err(failed)?;
            slice.groups.enforce(&rule.who, policy, relaxed).map_err(failed)?;
        }
        slice.needs = Needs::of(&Reads::of(&enforced), slice.params.as_deref(), &ground.vocabulary);
        let reads = Reads::of(&all);
        slice.all_needs = Needs::of(&reads, slice.params.as_deref(), &ground.vocabulary);
        if !slice.needs.params() {
            slice.groups.never_relax();
        }
        slice.roles = reads.roles.iter().map(|name| (name.clone(), ground.types.role(name))).collect();
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
        self.decide_by(&self.groups.of(party), facts, party, ground)
    }

    /// As [`Slice::decide`], by the rules of these groups.
    pub(crate) fn decide_by(
        &self,
        groups: &[&Group],
        facts: &Facts<'_>,
        party: &Party<'_>,
        ground: &Ground,
    ) -> Decision {
        let Some(entities) = self.entities(party, ground) else { return Decision::deny(Reason::EvaluationError) };
        let mut decision = self.decide_enforced(groups, facts, party, &entities, ground);
        if !self.shadow_needs.is_empty() {
            decision.shadow = self.decide_shadow(groups, facts, party, &entities, &decision, ground);
        }
        decision
    }

    fn decide_enforced(
        &self,
        groups: &[&Group],
        facts: &Facts<'_>,
        party: &Party<'_>,
        entities: &Entities,
        ground: &Ground,
    ) -> Decision {
        if let Some(fault) = self.needs.claim_fault(facts.question) {
            return Decision::deny(fault);
        }
        let fault = facts.params.as_ref().and_then(|params| params.as_ref().err()).filter(|_| self.needs.params());
        let params = facts.params.as_ref().and_then(|params| params.as_ref().ok());
        let request =
            self.needs.context(facts.question, params).and_then(|context| self.request(party, context, ground));
        let Some(request) = request else { return Decision::deny(Reason::EvaluationError) };
        let sets = groups.iter().map(|group| if fault.is_some() { &group.relaxed } else { &group.enforced });
        let decision = self.judge(sets, &request, entities, ground);
        // Only those who might call the method with other parameters are told what is wrong with these.
        match fault {
            Some(fault) if decision.is_allow() => Decision::deny(fault.clone()),
            _ => decision,
        }
    }

    /// What each shadow rule would change.
    fn decide_shadow(
        &self,
        groups: &[&Group],
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
        for shadow in groups.iter().flat_map(|group| &group.shadows).filter(|shadow| !shadow.is_empty()) {
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
        let parents = party.roles.iter().filter_map(|role| self.roles.get(*role)).cloned().collect();
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

    /// What these sets say together, as if they were one.
    fn judge<'a>(
        &self,
        sets: impl Iterator<Item = &'a cedar_policy::PolicySet>,
        request: &Request,
        entities: &Entities,
        ground: &Ground,
    ) -> Decision {
        let (mut failed, mut denying, mut allowing) = (Vec::new(), Vec::new(), Vec::new());
        for set in sets.filter(|set| !set.is_empty()) {
            let response = Authorizer::new().is_authorized(request, set, entities);
            let diagnostics = response.diagnostics();
            failed.extend(diagnostics.errors().map(|error| self.index.get(failed_policy(error))));
            let matched = diagnostics.reason().map(|id| self.index.get(id));
            match response.decision() {
                cedar_policy::Decision::Allow => allowing.extend(matched),
                cedar_policy::Decision::Deny => denying.extend(matched),
            }
        }
        // Cedar skips a policy that fails. A skipped forbid would be an open door, so any failure denies.
        let (found, verdict, reason) = if !failed.is_empty() {
            (failed, Verdict::Deny, Reason::EvaluationError)
        } else if !denying.is_empty() {
            (denying, Verdict::Deny, Reason::ForbiddenBy)
        } else if !allowing.is_empty() {
            (allowing, Verdict::Allow, Reason::AllowedBy)
        } else {
            return Decision::deny(Reason::NoRule);
        };
        let rule = found.into_iter().flatten().min().and_then(|position| ground.rules.get(*position));
        if rule.is_none() && verdict.is_allow() {
            return Decision::deny(Reason::EvaluationError);
        }
        Decision { verdict, rule: rule.map(|rule| rule.id.clone()), reason, shadow: Vec::new() }
    }
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
