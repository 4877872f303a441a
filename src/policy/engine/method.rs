//! The rules that can matter for one method, ready to be evaluated.
//! Never holds a rule of another method, and never misses one of its own.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use cedar_policy::{Authorizer, Entities, Entity, EntityUid, PolicyId, Request};

use super::arguments;
use super::caller_index::{CallerIndex, PlainRule, RuleGroup};
use super::context::{ContextShape, expression};
use super::decision::{Decision, Question, Reason, Shadow, Verdict};
use super::entity_cache::{EntityCache, Key};
use super::principal::Principal;
use crate::policy::cedar::names::{self, ACTIONS, ROLES, SERVICES, THIS, uid};
use crate::policy::cedar::{BuildError, References, Scope, compile, expr};
use crate::policy::language::{CheckedPolicy, contradiction};
use crate::policy::model::{CallerMatch, Effect, ExprRef, Location, Mode, OPEN_TO_ALL, Param, Params, Rule, pattern};

/// The part of a policy set that is about one method.
#[derive(Debug)]
pub(crate) struct MethodPolicies {
    action: EntityUid,
    /// The method and its groups, if a condition asks for them.
    hierarchy: Option<Entity>,
    pub(crate) by_caller: CallerIndex,
    /// No rule requires anything but its callers, so that a decision evaluates none.
    is_plain: bool,
    /// What the enforced rules read, those about other callers included: whether a call must follow the declarations
    /// never depends on the caller.
    shape: ContextShape,
    /// Some enforced rule can be lifted.
    has_liftable: bool,
    /// What the shadow rules read: one by one, and together with the enforced ones.
    shadow_shapes: Vec<(usize, ContextShape)>,
    full_shape: ContextShape,
    /// The position of each policy's rule in the whole set.
    index: HashMap<PolicyId, usize>,
    /// The roles that these rules ask for; a caller's other roles cannot matter here.
    roles: HashMap<String, EntityUid>,
    /// The parameters, if they are declared.
    params: Option<Arc<[Param]>>,
    /// Anything that no rule denies is allowed.
    pub(crate) open: bool,
    /// Nothing is known about parameters, because no method has this name.
    pub(crate) unregistered: bool,
    pub(crate) rules: Vec<usize>,
    /// Shared by the whole set that this is a part of.
    entities: Arc<EntityCache>,
    /// Which rules deny everything that others allow; computed when needed.
    taken: Mutex<HashMap<(usize, usize), bool>>,
}

/// How many pairs of rules are compared for one method, once each: a comparison takes some microseconds.
const MOST_PAIRS: usize = 1_024;

/// What all principals of one call have in common, computed once.
#[derive(Debug)]
pub(crate) struct CallFacts<'a> {
    pub(crate) question: &'a Question<'a>,
    /// The declared parameters, if any rule reads them.
    pub(crate) params: Option<Result<Params, Reason>>,
    /// The approvals that were given for this very call.
    pub(crate) approved: &'a [&'a str],
}

impl CallFacts<'_> {
    pub(crate) fn bound(&self) -> Option<&Params> {
        self.params.as_ref()?.as_ref().ok()
    }

    /// How the call violates the declarations.
    pub(crate) fn fault(&self) -> Option<&Reason> {
        self.params.as_ref()?.as_ref().err()
    }
}

impl MethodPolicies {
    /// The policies of `action` from the rules at these positions, in ascending order. For a name that no method has,
    /// `unregistered`: nothing is known about its parameters. A rule that cannot be built is reported by its location.
    pub(super) fn new(
        action: &str,
        params: Option<Arc<[Param]>>,
        unregistered: bool,
        checked: &CheckedPolicy,
        rules: Vec<usize>,
        entities: Arc<EntityCache>,
    ) -> Result<Self, (Location, BuildError)> {
        let shape_of = |reads: &References| ContextShape::of(reads, params.as_deref(), &checked.declarations);
        let scope = if unregistered { Scope::WithoutArgs } else { Scope::Sliced };
        let (mut by_caller, mut index, mut is_plain) = (CallerIndex::default(), HashMap::new(), true);
        let mut has_liftable = false;
        let (mut enforced, mut all, mut shadow_shapes) = (Vec::new(), Vec::new(), Vec::new());
        for (position, rule) in rules.iter().filter_map(|at| Some((*at, checked.rules.get(*at)?))) {
            let failed = |error: BuildError| (rule.id.at.clone(), error);
            let Some(policy) = compile::policy(rule, scope).map_err(failed)? else { continue };
            let looks = looks(rule, unregistered);
            index.insert(policy.id().clone(), position);
            all.extend(looks.iter().cloned());
            let plain = PlainRule::of(rule, position);
            is_plain &= plain.is_some() && rule.mode == Mode::Enforce;
            if rule.mode == Mode::Shadow {
                shadow_shapes.push((position, shape_of(&References::of(&looks))));
                by_caller.add_shadow(&rule.callers, rule.effect, policy).map_err(failed)?;
                continue;
            }
            enforced.extend(looks);
            if rule.approval().is_some() {
                (has_liftable, is_plain) = (true, false);
                by_caller.add_liftable(&rule.callers, policy).map_err(failed)?;
                continue;
            }
            let without_args = compile::policy(rule, Scope::WithoutArgs).map_err(failed)?;
            by_caller.add_enforced(&rule.callers, policy, without_args, plain).map_err(failed)?;
        }
        let (shape, reads) = (shape_of(&References::of(&enforced)), References::of(&all));
        // Whoever approves a call sees all that it does, so nothing undeclared may ride along.
        let declared = params.as_deref().filter(|_| has_liftable);
        let (shape, full_shape) = (shape.with_params(declared), shape_of(&reads).with_params(declared));
        if !shape.params() {
            by_caller.drop_without_args();
        }
        let hierarchy = reads.action.then(|| {
            // For names that no method has, `action` is a group, and no group is part of itself.
            let groups = pattern::groups_of(action).into_iter().map(|group| group.to_string());
            let groups = groups.filter(|group| group != action).map(|group| uid(&ACTIONS, &group)).collect();
            Entity::new_no_attrs(uid(&ACTIONS, action), groups)
        });
        Ok(Self {
            action: uid(&ACTIONS, action),
            hierarchy,
            by_caller,
            is_plain,
            has_liftable,
            shape,
            shadow_shapes,
            full_shape,
            index,
            roles: reads.roles.iter().map(|name| (name.clone(), uid(&ROLES, name))).collect(),
            params,
            open: OPEN_TO_ALL.contains(&action),
            unregistered,
            rules,
            entities,
            taken: Mutex::default(),
        })
    }

    pub(crate) fn facts<'a>(&self, question: &'a Question<'a>) -> CallFacts<'a> {
        let wanted = self.full_shape.params();
        let params =
            self.params.as_deref().filter(|_| wanted).map(|declared| arguments::bind(question.params, declared));
        CallFacts { question, params, approved: &[] }
    }

    /// Whether an enforced rule reads a parameter, so that calls must follow the declarations.
    pub(crate) fn looks_at_params(&self) -> bool {
        self.shape.params()
    }

    /// What the rules say for one principal.
    pub(crate) fn decide(&self, facts: &CallFacts<'_>, principal: &Principal<'_>) -> Decision {
        let groups = self.by_caller.of(principal);
        if self.is_plain {
            return self.decide_plainly(&groups, facts.question, principal.checked);
        }
        self.decide_by(&groups, facts, principal)
    }

    /// What Cedar would say: each rule of these groups matches, subject only to whether the call is for another.
    fn decide_plainly(&self, groups: &[&RuleGroup], question: &Question<'_>, checked: &CheckedPolicy) -> Decision {
        let first = |effect| {
            let rules = groups.iter().flat_map(|group| &group.plain);
            let matching = rules.filter(|rule| rule.effect == effect && rule.matches(question.caller));
            matching.map(|rule| rule.position).min()
        };
        match (first(Effect::Deny), first(Effect::Allow)) {
            (Some(deny), _) => found(Some(deny), Verdict::Deny, Reason::ForbiddenBy, checked),
            (None, Some(allow)) => found(Some(allow), Verdict::Allow, Reason::AllowedBy, checked),
            (None, None) => self.unmatched(),
        }
    }

    /// Like [`MethodPolicies::decide`], but by the rules of these groups, all of which Cedar evaluates.
    pub(crate) fn decide_by(
        &self,
        groups: &[&RuleGroup],
        facts: &CallFacts<'_>,
        principal: &Principal<'_>,
    ) -> Decision {
        let Some(entities) = self.entities(principal) else { return Decision::deny(Reason::EvaluationError) };
        let mut decision = self.decide_enforced(groups, facts, principal, &entities);
        if !self.shadow_shapes.is_empty() {
            decision.shadow = self.decide_shadow(groups, facts, principal, &entities, &decision);
        }
        decision
    }

    fn decide_enforced(
        &self,
        groups: &[&RuleGroup],
        facts: &CallFacts<'_>,
        principal: &Principal<'_>,
        entities: &Entities,
    ) -> Decision {
        if let Some(fault) = self.shape.claim_fault(facts.question) {
            return Decision::deny(fault);
        }
        let fault = facts.fault().filter(|_| self.shape.params());
        let request = self.request(&self.shape, facts, principal);
        let Some(request) = request else { return Decision::deny(Reason::EvaluationError) };
        let sets = groups.iter().map(|group| if fault.is_some() { &group.without_args } else { &group.enforced });
        let matched = self.matched(sets, &request, entities);
        let decision = match self.has_liftable && fault.is_none() {
            true => {
                let liftable = self.matched(groups.iter().map(|group| &group.liftable), &request, entities);
                self.judge_liftable(matched, liftable, facts.approved, principal.checked)
            }
            false => self.judge(matched, principal.checked),
        };
        // Only callers who might call the method with other parameters are told what is wrong with these.
        match fault {
            Some(fault) if decision.is_allow() => Decision::deny(fault.clone()),
            _ => decision,
        }
    }

    /// What each shadow rule would change.
    fn decide_shadow(
        &self,
        groups: &[&RuleGroup],
        facts: &CallFacts<'_>,
        principal: &Principal<'_>,
        entities: &Entities,
        decision: &Decision,
    ) -> Vec<Shadow> {
        let mut would: Vec<(usize, Effect)> = Vec::new();
        // A rule that reads parameters makes them subject to their declaration, and so does one that reads claims.
        for (position, shape) in &self.shadow_shapes {
            let refused = shape.params() && facts.fault().is_some();
            if refused || shape.claim_fault(facts.question).is_some() {
                would.push((*position, Effect::Deny));
            }
        }
        if let Some(request) = self.request(&self.full_shape, facts, principal) {
            let shadows = groups.iter().flat_map(|group| &group.shadows);
            let Matched { failed, denying, allowing } = self.matched(shadows, &request, entities);
            // A rule that fails would deny if it were enforced.
            would.extend(failed.into_iter().chain(denying).flatten().map(|position| (*position, Effect::Deny)));
            would.extend(allowing.into_iter().flatten().map(|position| (*position, Effect::Allow)));
        }
        // What makes the rule refuse the call comes before what the rule would do otherwise.
        would.sort_unstable_by_key(|(position, effect)| (*position, std::cmp::Reverse(*effect)));
        would.dedup_by_key(|(position, _)| *position);
        let faulty = self.shape.params() && facts.fault().is_some();
        would
            .into_iter()
            .filter_map(|(position, effect)| {
                let would = match (effect, decision.verdict, &decision.reason) {
                    (Effect::Deny, Verdict::Allow, _) => Verdict::Deny,
                    (Effect::Allow, Verdict::Deny, Reason::NoRule) if !faulty => Verdict::Allow,
                    _ => return None,
                };
                Some(Shadow { rule: principal.checked.rules.get(position)?.id.clone(), would })
            })
            .collect()
    }

    /// Which of these conditions hold for one principal, and which failed with what, by the names given here. Says nothing about
    /// a condition that does not hold, or that Cedar cannot represent.
    pub(crate) fn probe(
        &self,
        facts: &CallFacts<'_>,
        principal: &Principal<'_>,
        conditions: impl IntoIterator<Item = (String, ExprRef)>,
    ) -> HashMap<String, Option<String>> {
        let mut probes = cedar_policy::PolicySet::new();
        for (name, condition) in conditions {
            if let Ok(probe) = compile::probe(&name, condition) {
                let _added = probes.add(probe);
            }
        }
        let mut results = HashMap::new();
        if let (Some(request), Some(entities)) =
            (self.request(&self.full_shape, facts, principal), self.entities(principal))
        {
            let response = Authorizer::new().is_authorized(&request, &probes, &entities);
            for id in response.diagnostics().reason() {
                results.insert(id.to_string(), None);
            }
            for error in response.diagnostics().errors() {
                let cedar_policy::AuthorizationError::PolicyEvaluationError(error) = error;
                results.insert(error.policy_id().to_string(), Some(error.inner().to_string()));
            }
        }
        results
    }

    fn request(&self, shape: &ContextShape, facts: &CallFacts<'_>, principal: &Principal<'_>) -> Option<Request> {
        let context = shape.context(facts.question, facts.bound())?;
        let principal = names::principal(principal.kind, principal.name);
        Request::new(principal, self.action.clone(), uid(&SERVICES, THIS), context, None).ok()
    }

    fn entities(&self, principal: &Principal<'_>) -> Option<Arc<Entities>> {
        let roles: Vec<&str> = principal.roles.iter().copied().filter(|role| self.roles.contains_key(*role)).collect();
        let key = Key { action: &self.action, kind: principal.kind, name: principal.name, roles: &roles };
        self.entities.get_or(&key, || self.build_entities(&key, principal.checked))
    }

    /// Builds them from the key and the policy alone.
    fn build_entities(&self, key: &Key<'_>, checked: &CheckedPolicy) -> Option<Entities> {
        let principal = names::principal(key.kind, key.name);
        let parents = key.roles.iter().filter_map(|role| self.roles.get(*role)).cloned().collect();
        let principal = if self.full_shape.principal {
            let mut attributes = HashMap::new();
            attributes.insert("name".to_owned(), cedar_policy::RestrictedExpression::new_string(key.name.to_owned()));
            for (name, value) in checked.attributes.get(key.kind, key.name).into_iter().flatten() {
                attributes.insert(name.clone(), expression(value)?);
            }
            Entity::new(principal, attributes, parents).ok()?
        } else {
            Entity::new_no_attrs(principal, parents)
        };
        Entities::from_entities([principal].into_iter().chain(self.hierarchy.clone()), None).ok()
    }

    /// What these rules decide together.
    fn judge(&self, matched: Matched<'_>, checked: &CheckedPolicy) -> Decision {
        let Matched { failed, denying, allowing } = matched;
        // Cedar skips a policy that fails. A skipped forbid would allow, so any failure denies.
        let (matched, verdict, reason) = if !failed.is_empty() {
            (failed, Verdict::Deny, Reason::EvaluationError)
        } else if !denying.is_empty() {
            (denying, Verdict::Deny, Reason::ForbiddenBy)
        } else if !allowing.is_empty() {
            (allowing, Verdict::Allow, Reason::AllowedBy)
        } else {
            return self.unmatched();
        };
        found(matched.into_iter().flatten().min().copied(), verdict, reason, checked)
    }

    /// The same, with the `liftable` ones beside the others.
    fn judge_liftable<'a>(
        &self,
        mut matched: Matched<'a>,
        liftable: Matched<'a>,
        approved: &[&str],
        checked: &CheckedPolicy,
    ) -> Decision {
        matched.failed.extend(liftable.failed);
        let approval = |position: &Option<&usize>| checked.rules.get(*(*position)?)?.approval();
        let is_held = |position: &&Option<&usize>| !approval(position).is_some_and(|name| approved.contains(&name));
        let held: Vec<Option<&usize>> = liftable.denying.iter().filter(is_held).copied().collect();
        // Nobody learns that a call waits for an approval which would be denied with it, too.
        if !matched.failed.is_empty() || !matched.denying.is_empty() || matched.allowing.is_empty() {
            // The rule that is named is one that no approval lifts, if there is one.
            if matched.denying.is_empty() {
                matched.denying = held;
            }
            return self.judge(matched, checked);
        }
        let mut decision = match held.into_iter().flatten().min() {
            Some(first) => found(Some(*first), Verdict::Deny, Reason::ApprovalRequired, checked),
            None => self.judge(matched, checked),
        };
        let mut needed = liftable.denying;
        needed.sort_unstable();
        for name in needed.iter().filter_map(approval) {
            if !decision.approvals.iter().any(|known| known == name) {
                decision.approvals.push(name.to_owned());
            }
        }
        decision
    }

    /// No rule matches.
    fn unmatched(&self) -> Decision {
        if self.open {
            return Decision { verdict: Verdict::Allow, reason: Reason::Open, ..Decision::deny(Reason::NoRule) };
        }
        Decision::deny(Reason::NoRule)
    }

    fn matched<'a>(
        &self,
        sets: impl Iterator<Item = &'a cedar_policy::PolicySet>,
        request: &Request,
        entities: &Entities,
    ) -> Matched<'_> {
        let mut found = Matched::default();
        for set in sets.filter(|set| !set.is_empty()) {
            let response = Authorizer::new().is_authorized(request, set, entities);
            let diagnostics = response.diagnostics();
            found.failed.extend(diagnostics.errors().map(|error| self.index.get(failed_policy(error))));
            let matched = diagnostics.reason().map(|id| self.index.get(id));
            match response.decision() {
                cedar_policy::Decision::Allow => found.allowing.extend(matched),
                cedar_policy::Decision::Deny => found.denying.extend(matched),
            }
        }
        found
    }

    /// The rules that allow this principal some call of the method, whatever its parameters; `None` if there is no such call.
    pub(crate) fn reached(&self, question: &Question<'_>, principal: &Principal<'_>) -> Option<Vec<usize>> {
        let whole = !self.shape.params();
        let groups = self.by_caller.of(principal);
        let sets = || groups.iter().map(|group| if whole { &group.enforced } else { &group.without_args });
        if sets().all(cedar_policy::PolicySet::is_empty) || self.shape.claim_fault(question).is_some() {
            return None;
        }
        let request = self.request(&self.shape, &CallFacts { question, params: None, approved: &[] }, principal)?;
        let Matched { failed, denying, allowing } = self.matched(sets(), &request, self.entities(principal)?.as_ref());
        if !failed.is_empty() || !denying.is_empty() {
            return None;
        }
        let rule = |position: &usize| Some((*position, principal.checked.rules.get(*position)?));
        let others = groups.iter().filter(|_| !whole).flat_map(|group| group.enforced.policies());
        let denying: Vec<_> = others
            .filter(|policy| policy.effect() == cedar_policy::Effect::Forbid)
            .filter_map(|policy| rule(self.index.get(policy.id())?))
            // Only these are certain to be about this principal.
            .filter(|(_, deny)| !deny.callers.iter().any(|whom| matches!(whom, CallerMatch::Like(..))))
            .collect();
        let allowing = allowing.into_iter().flatten().filter_map(rule);
        let reached = allowing.filter(|allow| !denying.iter().any(|deny| self.takes_all(*deny, *allow)));
        let reached: Vec<usize> = reached.map(|(position, _)| position).collect();
        (!reached.is_empty()).then_some(reached)
    }

    /// Whether a rule denies all that another allows, as far as their conditions are comparisons with literals; false if there are too many
    /// pairs to compare.
    fn takes_all(&self, (denying, deny): (usize, &Rule), (allowing, allow): (usize, &Rule)) -> bool {
        let mut known = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let pair = (denying, allowing);
        if let Some(taken) = known.get(&pair) {
            return *taken;
        }
        if known.len() >= MOST_PAIRS {
            return false;
        }
        let conditions = |rule| compile::conditions(rule).map(|part| part.expr);
        let left = conditions(allow).chain([expr::not(expr::all(conditions(deny)))]).collect::<Vec<_>>();
        let taken = contradiction(&left).is_some();
        known.insert(pair, taken);
        taken
    }
}

/// The rules that match, by what follows from it.
#[derive(Default)]
struct Matched<'a> {
    failed: Vec<Option<&'a usize>>,
    denying: Vec<Option<&'a usize>>,
    allowing: Vec<Option<&'a usize>>,
}

/// The decision by the rule at this position.
fn found(position: Option<usize>, verdict: Verdict, reason: Reason, checked: &CheckedPolicy) -> Decision {
    let rule = position.and_then(|position| checked.rules.get(position));
    if rule.is_none() && verdict.is_allow() {
        return Decision::deny(Reason::EvaluationError);
    }
    Decision { verdict, rule: rule.map(|rule| rule.id.clone()), reason, approvals: Vec::new(), shadow: Vec::new() }
}

/// Every expression of a rule that is evaluated.
fn looks(rule: &Rule, without_args: bool) -> Vec<ExprRef> {
    let mut parts = compile::parts(rule);
    parts.retain(|part| !without_args || !compile::reads_params(part));
    parts.into_iter().map(|part| part.expr).collect()
}

fn failed_policy(error: &cedar_policy::AuthorizationError) -> &PolicyId {
    let cedar_policy::AuthorizationError::PolicyEvaluationError(error) = error;
    error.policy_id()
}
