//! Rules, requests and the schema in Cedar's terms.
//! Never pastes text into a policy: everything is built as structure, so a name in a file cannot become code.

use std::sync::Arc;

use cedar_policy::pst;
use cedar_policy::{EntityId, EntityTypeName, EntityUid, Schema};
use serde_json::{Map, Value, json};

use super::glob::{Pattern, groups_of};
use super::methods::Methods;
use super::rule::{Delegation, Effect, Part, Rule, Who};

/// The entity types of the schema.
pub(crate) const AGENT: &str = "Agent";
pub(crate) const ROLE: &str = "Role";
const ACTION: &str = "Action";
const SERVICE: &str = "Service";

/// The identifiers of the entity types, parsed once.
#[derive(Debug, Clone)]
pub(crate) struct Types {
    agent: EntityTypeName,
    role: EntityTypeName,
    action: EntityTypeName,
    pub(crate) service: EntityUid,
}

impl Types {
    #[expect(clippy::expect_used, reason = "the four constants are Cedar identifiers")]
    pub(crate) fn new() -> Self {
        let parse = |name: &str| name.parse::<EntityTypeName>().expect("a Cedar identifier");
        Self {
            agent: parse(AGENT),
            role: parse(ROLE),
            action: parse(ACTION),
            service: EntityUid::from_type_name_and_id(parse(SERVICE), EntityId::new("this")),
        }
    }

    pub(crate) fn agent(&self, name: &str) -> EntityUid {
        EntityUid::from_type_name_and_id(self.agent.clone(), EntityId::new(name))
    }

    pub(crate) fn role(&self, name: &str) -> EntityUid {
        EntityUid::from_type_name_and_id(self.role.clone(), EntityId::new(name))
    }

    pub(crate) fn action(&self, name: &str) -> EntityUid {
        EntityUid::from_type_name_and_id(self.action.clone(), EntityId::new(name))
    }
}

/// A Cedar policy could not be built from a rule. A defect of ours, reported as an error of the file.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BuildError {
    #[error(transparent)]
    Policy(#[from] pst::PstConstructionError),
    #[error(transparent)]
    Set(#[from] Box<cedar_policy::PolicySetError>),
    #[error(transparent)]
    Schema(#[from] Box<cedar_policy::SchemaError>),
}

/// How much of a rule goes into its policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// Everything: for the whole set.
    Full,
    /// All but the methods: for a slice, where they are known to match.
    Sliced,
}

/// The rule as a Cedar policy of the same name.
pub(crate) fn policy(rule: &Rule, scope: Scope) -> Result<cedar_policy::Policy, BuildError> {
    let action = match scope {
        Scope::Sliced => pst::ActionConstraint::Any,
        Scope::Full => pst::ActionConstraint::In(
            rule.methods.iter().map(|method| uid(ACTION, &method.value.to_string())).collect::<Result<_, _>>()?,
        ),
    };
    let mut clauses = Vec::new();
    let principal = match principals(&rule.who)?.as_slice() {
        [(kind, only)] if *kind == ROLE => pst::PrincipalConstraint::In(pst::EntityOrSlot::Entity(only.clone())),
        [(_, only)] => pst::PrincipalConstraint::Eq(pst::EntityOrSlot::Entity(only.clone())),
        several => {
            clauses.push(pst::Clause::When(Arc::new(pst::Expr::BinaryOp {
                op: pst::BinaryOp::In,
                left: Arc::new(pst::Expr::Var(pst::Var::Principal)),
                right: Arc::new(pst::Expr::Set(several.iter().map(|(_, uid)| entity(uid.clone())).collect())),
            })));
            pst::PrincipalConstraint::Any
        }
    };
    clauses.extend(rule.parts.iter().map(|part| pst::Clause::When(part.condition.clone())));
    let effect = match rule.effect {
        Effect::Allow => pst::Effect::Permit,
        Effect::Deny => pst::Effect::Forbid,
    };
    let template = pst::Template::new(rule.id.name(), effect, principal, action, pst::ResourceConstraint::Any)
        .try_with_clauses(clauses)?;
    finished(template)
}

fn finished(template: pst::Template) -> Result<cedar_policy::Policy, BuildError> {
    let policy = pst::StaticPolicy::try_from(template).map_err(pst::PstConstructionError::from)?;
    Ok(cedar_policy::Policy::from_pst(pst::Policy::Static(policy))?)
}

/// A policy that holds exactly when one condition does: for finding out which part of a rule failed.
pub(crate) fn probe(id: &str, condition: Arc<pst::Expr>) -> Result<cedar_policy::Policy, BuildError> {
    let template = pst::Template::new(
        id,
        pst::Effect::Permit,
        pst::PrincipalConstraint::Any,
        pst::ActionConstraint::Any,
        pst::ResourceConstraint::Any,
    )
    .try_with_clauses([pst::Clause::When(condition)])?;
    finished(template)
}

/// Whom a rule is about, as a condition and in words.
pub(crate) fn who_part(who: &Who) -> Result<Part, BuildError> {
    let set = principals(who)?.into_iter().map(|(_, uid)| entity(uid)).collect();
    let condition = Arc::new(pst::Expr::BinaryOp {
        op: pst::BinaryOp::In,
        left: Arc::new(pst::Expr::Var(pst::Var::Principal)),
        right: Arc::new(pst::Expr::Set(set)),
    });
    let words = match who {
        Who::Roles(roles) => format!("the caller has the role {}", alternatives(roles)),
        Who::Agents(agents) => format!("the caller is {}", alternatives(agents)),
    };
    Ok(Part { words, condition })
}

/// What an allow rule demands of calls on behalf of others.
pub(crate) fn delegation_part(delegation: Delegation) -> Option<Part> {
    match delegation {
        Delegation::Also => None,
        Delegation::Never => Some(Part {
            words: "the agent calls in its own name".to_owned(),
            condition: Arc::new(pst::Expr::UnaryOp { op: pst::UnaryOp::Not, expr: context("delegated") }),
        }),
    }
}

/// `context.<attribute>`.
fn context(attribute: &str) -> Arc<pst::Expr> {
    Arc::new(pst::Expr::GetAttr { expr: Arc::new(pst::Expr::Var(pst::Var::Context)), attr: attribute.into() })
}

fn principals(who: &Who) -> Result<Vec<(&'static str, pst::EntityUID)>, BuildError> {
    let (kind, names) = match who {
        Who::Roles(roles) => (ROLE, roles),
        Who::Agents(agents) => (AGENT, agents),
    };
    names.iter().map(|name| Ok((kind, uid(kind, name)?))).collect()
}

fn uid(kind: &str, name: &str) -> Result<pst::EntityUID, BuildError> {
    Ok(pst::EntityUID { ty: pst::EntityType::from_name(pst::Name::unqualified(kind)?), eid: name.into() })
}

fn entity(uid: pst::EntityUID) -> Arc<pst::Expr> {
    Arc::new(pst::Expr::Literal(pst::Literal::EntityUID(uid)))
}

/// `` `a` or `b` ``.
fn alternatives(names: &[String]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(" or ")
}

/// The schema that every policy is checked against: one action per registered method, in one group per prefix.
pub(crate) fn schema(methods: &Methods) -> Result<Schema, BuildError> {
    let mut actions = Map::new();
    let member =
        |groups: &[Pattern]| -> Vec<Value> { groups.iter().map(|group| json!({ "id": group.to_string() })).collect() };
    actions.insert("*".to_owned(), json!({}));
    for name in methods.names() {
        let groups = groups_of(name.as_str());
        let mut wider = Vec::new();
        for group in &groups {
            actions.insert(group.to_string(), json!({ "memberOf": member(&wider) }));
            wider.push(group.clone());
        }
        let action = json!({
            "memberOf": member(&groups),
            "appliesTo": {
                "principalTypes": [AGENT],
                "resourceTypes": [SERVICE],
                "context": { "type": "Record", "attributes": context_attributes() },
            },
        });
        actions.insert(name.as_str().to_owned(), action);
    }
    Ok(Schema::from_json_value(json!({ "": {
        "entityTypes": { AGENT: { "memberOfTypes": [ROLE] }, ROLE: {}, SERVICE: {} },
        "actions": actions,
    }}))
    .map_err(Box::new)?)
}

fn context_attributes() -> Value {
    json!({ "delegated": { "type": "Boolean" } })
}
