//! Which methods an agent could be allowed to call at all: for a gate that sees neither parameters nor the time.
//! Never leaves out a call that would be allowed: what is not known counts in the agent's favour. What it may hear has no second gate, so
//! there it counts against the agent.

use std::collections::BTreeSet;

use super::caller_group::CallerGroup;
use super::partial::KnownCaller;
use super::token_roles::TokenRoles;
use crate::auth::Caller;
use crate::name::Name;
use crate::policy::cedar::compile;
use crate::policy::engine::{MethodPolicies, PolicySet};
use crate::policy::model::{APPROVALS, Delegation, Effect, Mode, Pattern, Rule};
use crate::wire::{Endpoint, ProofAlgorithm};

/// What an agent could call.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MethodScope {
    /// Methods, and patterns that end in `*` for those that no file declares.
    pub possible: BTreeSet<String>,
    /// The declared methods that a pattern above matches, and that the agent can nevertheless never call.
    pub excluded: BTreeSet<String>,
    /// The roles that the agent surely has and by which it decides about the calls of others, if it could list these.
    pub approver_roles: BTreeSet<String>,
}

/// Subjects of requests, as a broker's permissions to publish have them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RequestSubjects {
    /// Those that are allowed.
    pub allow: BTreeSet<String>,
    /// Exceptions from them.
    pub deny: BTreeSet<String>,
}

impl MethodScope {
    /// The subjects on which `agent` may send these methods, each alone, to the service at `endpoint`.
    #[must_use]
    pub fn subjects(&self, endpoint: &Endpoint, agent: &Name) -> RequestSubjects {
        let subject = |method: &String| {
            // A `*` stands for all tokens that follow.
            let method = method.strip_suffix('*').map_or_else(|| method.clone(), |prefix| format!("{prefix}>"));
            format!("{}.{}", endpoint.subject(agent), method.replace('/', "."))
        };
        let allow: BTreeSet<String> = self.possible.iter().map(subject).collect();
        let within = |subject: &String| {
            let wider = |allowed: &String| {
                let prefix = allowed.strip_suffix('>');
                prefix.is_some_and(|prefix| *allowed != *subject && subject.starts_with(prefix))
            };
            allow.iter().any(wider)
        };
        RequestSubjects {
            allow: allow.iter().filter(|subject| !within(subject)).cloned().collect(),
            deny: self.excluded.iter().map(subject).collect(),
        }
    }
}

impl PolicySet {
    /// The methods of which some call by `agent` could be allowed, in its own name or for another: with any parameters, at any time, by
    /// any key, with these roles in its token.
    #[must_use]
    pub fn method_scope(&self, agent: &Name, roles: &TokenRoles) -> MethodScope {
        let mut scope = MethodScope::default();
        if self.revision().why().is_some() {
            return scope;
        }
        let callers = CallerGroup::Agent(agent.to_string());
        let is_possible = |policies: &MethodPolicies| {
            let known = KnownCaller::new(self.checked(), policies, &callers).with_token_roles(roles);
            self.is_possible(policies, &known)
        };
        let stars = self.unregistered.iter().filter(|(_, policies)| is_possible(policies));
        let stars: Vec<&Pattern> = stars.map(|(star, _)| star).collect();
        for (name, policies) in &self.by_method {
            if is_possible(policies) {
                scope.possible.insert(name.to_string());
            } else if stars.iter().any(|star| star.matches(name.as_str())) {
                scope.excluded.insert(name.to_string());
            }
        }
        scope.possible.extend(stars.iter().map(ToString::to_string));
        if scope.possible.contains(APPROVALS) {
            let mut caller = Caller::new(agent.clone(), roles.told().cloned());
            caller.algorithm = ProofAlgorithm::EdDsa;
            scope.approver_roles = self.approver_roles(&caller).into_iter().map(str::to_owned).collect();
        }
        scope
    }

    fn is_possible(&self, policies: &MethodPolicies, known: &KnownCaller<'_>) -> bool {
        let rules = policies.rules.iter().filter_map(|position| self.checked().rules.get(*position));
        let rules: Vec<&Rule> = rules.filter(|rule| rule.mode == Mode::Enforce).collect();
        [false, true].into_iter().any(|delegated| {
            let of = |effect| rules.iter().filter(move |rule| rule.effect == effect && covers(rule, delegated));
            let could_hold = |rule: &&Rule| !parts(rule, known).any(|holds| holds == Some(false));
            let surely_holds = |rule: &&Rule| parts(rule, known).all(|holds| holds == Some(true));
            // What an approval lifts is a call that can be allowed.
            let mut denying = of(Effect::Deny).filter(|rule| rule.approval().is_none());
            (policies.open || of(Effect::Allow).any(could_hold)) && !denying.any(surely_holds)
        })
    }
}

fn covers(rule: &Rule, delegated: bool) -> bool {
    match rule.delegation {
        Delegation::Also => true,
        Delegation::Never => !delegated,
        Delegation::Only => delegated,
    }
}

/// What is known of each of a rule's parts, except for whom the agent calls.
fn parts<'a>(rule: &'a Rule, known: &'a KnownCaller<'_>) -> impl Iterator<Item = Option<bool>> + 'a {
    let who = compile::callers_condition(rule).expr;
    let conditions = rule.conditions.iter().map(|part| part.expr.clone());
    [who].into_iter().chain(conditions).map(|part| known.evaluate(&part))
}
