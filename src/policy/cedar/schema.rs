//! The schema that policies are checked against, made from the registered methods and the declarations.
//! Never says more of a value than its declaration does.

use serde_json::{Map, Value, json};

use super::names::{AGENT, ROLE, SERVICE};
use crate::name::MethodName;
use crate::policy::model::{Declarations, Method, Param, ParamType, Pattern, groups_of};

/// The schema that policies are checked against, in Cedar's JSON format: one action for each of these methods, in one group
/// per prefix.
pub(crate) fn schema_json<'m>(
    methods: impl Iterator<Item = (&'m MethodName, &'m Method)>,
    declarations: &Declarations,
) -> Value {
    let mut actions = Map::new();
    let member =
        |groups: &[Pattern]| -> Vec<Value> { groups.iter().map(|group| json!({ "id": group.to_string() })).collect() };
    actions.insert("*".to_owned(), json!({}));
    for (name, method) in methods {
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
                "context": { "type": "Record", "attributes": context_attributes(method.params(), declarations) },
            },
        });
        actions.insert(name.as_str().to_owned(), action);
    }
    let mut attributes: Map<String, Value> =
        declarations.attributes.iter().map(|(name, kind)| (name.clone(), attribute(kind, true))).collect();
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

fn context_attributes(params: Option<&[Param]>, declarations: &Declarations) -> Value {
    let claims: Map<String, Value> =
        declarations.claims.iter().map(|(name, kind)| (name.clone(), attribute(kind, true))).collect();
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
