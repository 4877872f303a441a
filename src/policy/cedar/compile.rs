//! Rules as Cedar policies.
//! Never pastes text into a policy: everything is built as structure, so a name in a file cannot become code.

use std::sync::LazyLock;

use cedar_policy::pst;

use super::expr;
use super::names::{ACTION, AGENT, ROLE, SUBJECT};
use super::references::References;
use crate::policy::model::{CallerMatch, Condition, Delegation, Effect, ExprRef, PrincipalKind, Rule, is_any};

/// A Cedar policy could not be built from a rule: a defect of ours, reported as an error of the file.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BuildError {
    #[error(transparent)]
    Policy(#[from] pst::PstConstructionError),
    #[error(transparent)]
    Set(#[from] Box<cedar_policy::PolicySetError>),
}

/// How much of a rule goes into its policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// Everything: for the whole set.
    Full,
    /// Everything but the methods: for one method, which the rule is known to match.
    Sliced,
    /// Like `Sliced`, but without the conditions on parameters: for what can be said without reading them.
    WithoutArgs,
}

/// The rule as a Cedar policy of the same name; `None` for a rule that says nothing certain without arguments.
pub(crate) fn policy(rule: &Rule, scope: Scope) -> Result<Option<cedar_policy::Policy>, BuildError> {
    let action = match scope {
        Scope::Sliced | Scope::WithoutArgs => pst::ActionConstraint::Any,
        Scope::Full => pst::ActionConstraint::In(
            rule.methods.iter().map(|method| uid(&ACTIONS, &method.value.to_string())).collect(),
        ),
    };
    let mut clauses = Vec::new();
    let principal = match rule.callers.as_slice() {
        [CallerMatch::Everyone] => pst::PrincipalConstraint::Any,
        [CallerMatch::Role(name)] => pst::PrincipalConstraint::In(pst::EntityOrSlot::Entity(uid(&ROLES, name))),
        [CallerMatch::Named(kind, name)] => {
            pst::PrincipalConstraint::Eq(pst::EntityOrSlot::Entity(uid(type_of(*kind), name)))
        }
        several => {
            clauses.push(pst::Clause::When(who(several)));
            pst::PrincipalConstraint::Any
        }
    };
    for part in conditions(rule) {
        if scope == Scope::WithoutArgs && reads_params(&part) {
            // Without its condition, a deny rule would deny too much to say anything; an allow rule may allow more.
            if rule.effect == Effect::Deny {
                return Ok(None);
            }
            continue;
        }
        clauses.push(pst::Clause::When(part.expr));
    }
    let effect = match rule.effect {
        Effect::Allow => pst::Effect::Permit,
        Effect::Deny => pst::Effect::Forbid,
    };
    let template = pst::Template::new(rule.id.name(), effect, principal, action, pst::ResourceConstraint::Any);
    finished(template.try_with_clauses(clauses)?).map(Some)
}

pub(crate) fn reads_params(part: &Condition) -> bool {
    References::of([&part.expr]).context(&["params"])
}

fn finished(template: pst::Template) -> Result<cedar_policy::Policy, BuildError> {
    let policy = pst::StaticPolicy::try_from(template).map_err(pst::PstConstructionError::from)?;
    Ok(cedar_policy::Policy::from_pst(pst::Policy::Static(policy))?)
}

/// A policy that holds exactly when one condition does: to find out which part of a rule failed.
pub(crate) fn probe(id: &str, condition: ExprRef) -> Result<cedar_policy::Policy, BuildError> {
    let (principal, resource) = (pst::PrincipalConstraint::Any, pst::ResourceConstraint::Any);
    let template = pst::Template::new(id, pst::Effect::Permit, principal, pst::ActionConstraint::Any, resource);
    finished(template.try_with_clauses([pst::Clause::When(condition)])?)
}

/// Everything that must hold for a rule to match a call of its methods, in the order of evaluation: who calls, for whom, and
/// its conditions.
pub(crate) fn parts(rule: &Rule) -> Vec<Condition> {
    [callers_condition(rule)].into_iter().chain(conditions(rule)).collect()
}

/// What a rule requires besides its callers, in the order of evaluation.
pub(crate) fn conditions(rule: &Rule) -> impl Iterator<Item = Condition> + '_ {
    delegation(rule).into_iter().chain(rule.conditions.iter().cloned())
}

/// Which callers a rule is about, as a condition and in words.
pub(crate) fn callers_condition(rule: &Rule) -> Condition {
    let words: Vec<String> = rule.callers.iter().map(ToString::to_string).collect();
    Condition::new(words.join(" or "), who(&rule.callers), &rule.id.at)
}

/// What a rule requires of calls on behalf of others.
pub(crate) fn delegation(rule: &Rule) -> Option<Condition> {
    let delegated = expr::path(pst::Var::Context, &["delegated".into()]);
    let (words, condition) = match rule.delegation {
        Delegation::Also => return None,
        Delegation::Never => ("the agent calls in its own name", expr::not(delegated)),
        Delegation::Only => ("the agent calls on behalf of another", delegated),
    };
    Some(Condition::new(words, condition, &rule.id.at))
}

fn who(who: &[CallerMatch]) -> ExprRef {
    let principal = || expr::path(pst::Var::Principal, &[]);
    let (mut roles, mut agents, mut subjects, mut any) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for whom in who {
        match whom {
            CallerMatch::Everyone => any.push(expr::boolean(true)),
            CallerMatch::Role(name) => roles.push(entity(uid(&ROLES, name))),
            CallerMatch::Named(kind, name) => {
                let named = if *kind == PrincipalKind::Agent { &mut agents } else { &mut subjects };
                named.push(entity(uid(type_of(*kind), name)));
            }
            CallerMatch::Like(kind, glob) => {
                let is = expr::is(principal(), type_of(*kind).clone());
                let like = || expr::like(expr::path(pst::Var::Principal, &["name".into()]), glob);
                any.push(if is_any(glob) { is } else { expr::all([is, like()]) });
            }
        }
    }
    // A set holds entities of one type only.
    for named in [subjects, agents, roles].into_iter().filter(|named| !named.is_empty()) {
        any.insert(0, expr::binary(pst::BinaryOp::In, principal(), expr::set(named)));
    }
    expr::any(any)
}

/// The types of the entities that rules name. Parsed once: Cedar makes a lexer for each name that it parses, and every
/// rule is compiled once for each of its methods.
static AGENTS: LazyLock<pst::EntityType> = LazyLock::new(|| parsed(AGENT));
static SUBJECTS: LazyLock<pst::EntityType> = LazyLock::new(|| parsed(SUBJECT));
static ROLES: LazyLock<pst::EntityType> = LazyLock::new(|| parsed(ROLE));
static ACTIONS: LazyLock<pst::EntityType> = LazyLock::new(|| parsed(ACTION));

#[expect(clippy::expect_used, reason = "the constants are Cedar identifiers")]
fn parsed(name: &str) -> pst::EntityType {
    pst::EntityType::from_name(pst::Name::unqualified(name).expect("a Cedar identifier"))
}

fn type_of(kind: PrincipalKind) -> &'static pst::EntityType {
    match kind {
        PrincipalKind::Agent => &AGENTS,
        PrincipalKind::Subject => &SUBJECTS,
    }
}

fn uid(kind: &pst::EntityType, name: &str) -> pst::EntityUID {
    pst::EntityUID { ty: kind.clone(), eid: name.into() }
}

fn entity(uid: pst::EntityUID) -> ExprRef {
    std::sync::Arc::new(pst::Expr::Literal(pst::Literal::EntityUID(uid)))
}
