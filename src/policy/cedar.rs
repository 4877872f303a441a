//! Rules and the schema in Cedar's terms.
//! Never pastes text into a policy: everything is built as structure, so a name in a file cannot become code.

use cedar_policy::pst;
use cedar_policy::{EntityId, EntityTypeName, EntityUid, Schema};
use serde_json::{Map, Value, json};

use super::expr::{self, E, Reads};
use super::glob::{Pattern, groups_of};
use super::load::Vocabulary;
use super::methods::Methods;
use super::params::{Param, ParamType};
use super::rule::{Delegation, Effect, Location, Part, PartKind, Rule, Whom};

/// The entity types of the schema.
pub(crate) const AGENT: &str = "Agent";
pub(crate) const ROLE: &str = "Role";
pub(crate) const ACTION: &str = "Action";
pub(crate) const SERVICE: &str = "Service";
/// The one resource: the service that is asked.
pub(crate) const THIS: &str = "this";

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
            service: EntityUid::from_type_name_and_id(parse(SERVICE), EntityId::new(THIS)),
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
    /// As `Sliced`, and without the conditions on parameters: for what can be said without looking at them.
    Relaxed,
}

/// The rule as a Cedar policy of the same name; `None` for a rule of which nothing certain is left when relaxed.
pub(crate) fn policy(rule: &Rule, scope: Scope) -> Result<Option<cedar_policy::Policy>, BuildError> {
    let action = match scope {
        Scope::Sliced | Scope::Relaxed => pst::ActionConstraint::Any,
        Scope::Full => pst::ActionConstraint::In(
            rule.methods.iter().map(|method| uid(ACTION, &method.value.to_string())).collect::<Result<_, _>>()?,
        ),
    };
    let mut clauses = Vec::new();
    let principal = match rule.who.as_slice() {
        [Whom::Everyone] => pst::PrincipalConstraint::Any,
        [Whom::Role(name)] => pst::PrincipalConstraint::In(pst::EntityOrSlot::Entity(uid(ROLE, name)?)),
        [Whom::Agent(name)] => pst::PrincipalConstraint::Eq(pst::EntityOrSlot::Entity(uid(AGENT, name)?)),
        several => {
            clauses.push(pst::Clause::When(who(several)?));
            pst::PrincipalConstraint::Any
        }
    };
    for part in &rule.parts {
        if scope == Scope::Relaxed && reads_params(part) {
            // Without its condition a deny rule would deny too much to say anything; an allow rule may allow more.
            if rule.effect == Effect::Deny {
                return Ok(None);
            }
            continue;
        }
        clauses.push(pst::Clause::When(part.condition.clone()));
    }
    let effect = match rule.effect {
        Effect::Allow => pst::Effect::Permit,
        Effect::Deny => pst::Effect::Forbid,
    };
    let template = pst::Template::new(rule.id.name(), effect, principal, action, pst::ResourceConstraint::Any);
    finished(template.try_with_clauses(clauses)?).map(Some)
}

pub(crate) fn reads_params(part: &Part) -> bool {
    Reads::of([&part.condition]).context(&["params"])
}

fn finished(template: pst::Template) -> Result<cedar_policy::Policy, BuildError> {
    let policy = pst::StaticPolicy::try_from(template).map_err(pst::PstConstructionError::from)?;
    Ok(cedar_policy::Policy::from_pst(pst::Policy::Static(policy))?)
}

/// A policy that holds exactly when one condition does: for finding out which part of a rule failed.
pub(crate) fn probe(id: &str, condition: E) -> Result<cedar_policy::Policy, BuildError> {
    let template = pst::Template::new(
        id,
        pst::Effect::Permit,
        pst::PrincipalConstraint::Any,
        pst::ActionConstraint::Any,
        pst::ResourceConstraint::Any,
    );
    finished(template.try_with_clauses([pst::Clause::When(condition)])?)
}

/// Whom a rule is about, as a condition and in words.
pub(crate) fn who_part(rule: &Rule) -> Result<Part, BuildError> {
    let words: Vec<String> = rule.who.iter().map(ToString::to_string).collect();
    Ok(Part { words: words.join(" or "), condition: who(&rule.who)?, at: rule.at.clone(), kind: PartKind::Condition })
}

/// What a rule demands of calls on behalf of others.
pub(crate) fn delegation_part(delegation: Delegation, at: &Location) -> Option<Part> {
    let delegated = expr::path(pst::Var::Context, &["delegated".into()]);
    let (words, condition) = match delegation {
        Delegation::Also => return None,
        Delegation::Never => ("the agent calls in its own name", expr::not(delegated)),
        Delegation::Only => ("the agent calls on behalf of another", delegated),
    };
    Some(Part { words: words.to_owned(), condition, at: at.clone(), kind: PartKind::Delegation(delegation) })
}

fn who(who: &[Whom]) -> Result<E, BuildError> {
    let principal = || expr::path(pst::Var::Principal, &[]);
    let (mut roles, mut agents, mut any) = (Vec::new(), Vec::new(), Vec::new());
    for whom in who {
        match whom {
            Whom::Everyone => any.push(expr::boolean(true)),
            Whom::Role(name) => roles.push(entity(uid(ROLE, name)?)),
            Whom::Agent(name) => agents.push(entity(uid(AGENT, name)?)),
            Whom::Agents(glob) => any.push(expr::like(expr::path(pst::Var::Principal, &["name".into()]), glob)),
        }
    }
    // A set holds entities of one type only.
    for named in [agents, roles].into_iter().filter(|named| !named.is_empty()) {
        any.insert(0, expr::binary(pst::BinaryOp::In, principal(), expr::set(named)));
    }
    Ok(expr::any(any))
}

fn uid(kind: &str, name: &str) -> Result<pst::EntityUID, BuildError> {
    Ok(pst::EntityUID { ty: pst::EntityType::from_name(pst::Name::unqualified(kind)?), eid: name.into() })
}

fn entity(uid: pst::EntityUID) -> E {
    std::sync::Arc::new(pst::Expr::Literal(pst::Literal::EntityUID(uid)))
}

/// The schema that every policy is checked against: one action per registered method, in one group per prefix.
pub(crate) fn schema(methods: &Methods, vocabulary: &Vocabulary) -> Result<Schema, BuildError> {
    Ok(Schema::from_json_value(schema_json(methods, vocabulary)).map_err(Box::new)?)
}

/// The schema in Cedar's JSON format.
pub(crate) fn schema_json(methods: &Methods, vocabulary: &Vocabulary) -> Value {
    let mut actions = Map::new();
    let member =
        |groups: &[Pattern]| -> Vec<Value> { groups.iter().map(|group| json!({ "id": group.to_string() })).collect() };
    actions.insert("*".to_owned(), json!({}));
    for (name, method) in methods.iter() {
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
                "context": { "type": "Record", "attributes": context_attributes(method.params(), vocabulary) },
            },
        });
        actions.insert(name.as_str().to_owned(), action);
    }
    let mut attributes: Map<String, Value> =
        vocabulary.attributes.iter().map(|(name, kind)| (name.clone(), attribute(kind, true))).collect();
    attributes.insert("name".to_owned(), json!({ "type": "String" }));
    json!({ "": {
        "entityTypes": {
            AGENT: { "memberOfTypes": [ROLE], "shape": { "type": "Record", "attributes": attributes } },
            ROLE: { "memberOfTypes": [ROLE] },
            SERVICE: {},
        },
        "actions": actions,
    }})
}

fn context_attributes(params: Option<&[Param]>, vocabulary: &Vocabulary) -> Value {
    let claims: Map<String, Value> =
        vocabulary.claims.iter().map(|(name, kind)| (name.clone(), attribute(kind, true))).collect();
    let mut attributes = json!({
        "delegated": { "type": "Boolean" },
        "agent": { "type": "String" },
        "subject": { "type": "String" },
        "now": { "type": "Extension", "name": "datetime" },
        "hour": { "type": "Long" },
        "minute": { "type": "Long" },
        "minute_of_day": { "type": "Long" },
        "minute_of_week": { "type": "Long" },
        "weekday": { "type": "String" },
        "algorithm": { "type": "String" },
        "key": { "type": "String" },
        "token": { "type": "Record", "attributes": {
            "age_s": { "type": "Long" },
            "remaining_s": { "type": "Long" },
            "id": { "type": "String" },
            "issuer": { "type": "String" },
            "key": { "type": "String" },
        }},
        "claims": { "type": "Record", "attributes": claims },
    });
    if let (Some(params), Some(attributes)) = (params, attributes.as_object_mut()) {
        attributes.insert("params".to_owned(), record(params));
    }
    attributes
}

fn record(params: &[Param]) -> Value {
    let attributes: Map<String, Value> =
        params.iter().map(|param| (param.name().to_owned(), attribute(param.kind(), param.is_optional()))).collect();
    json!({ "type": "Record", "attributes": attributes })
}

fn attribute(kind: &ParamType, optional: bool) -> Value {
    let mut value = type_json(kind);
    if let Some(object) = value.as_object_mut() {
        object.insert("required".to_owned(), json!(!optional));
    }
    value
}

fn type_json(kind: &ParamType) -> Value {
    match kind {
        ParamType::String => json!({ "type": "String" }),
        ParamType::Integer => json!({ "type": "Long" }),
        // What no condition can look at is only known to be there.
        ParamType::Boolean | ParamType::Number | ParamType::Any => json!({ "type": "Boolean" }),
        ParamType::List(scalar) => json!({ "type": "Record", "attributes": {
            "items": { "type": "Set", "element": type_json(&scalar.as_param()) },
            "size": { "type": "Long" },
        }}),
        ParamType::Object(fields) => record(fields),
    }
}
