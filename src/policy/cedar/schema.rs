//! The schema that policies are checked against, made from the registered methods and the declarations.
//! Never says more about a value than its declaration does.

use serde_json::{Map, Value, json};

use super::names::{AGENT, ROLE, SERVICE, SUBJECT};
use crate::name::MethodName;
use crate::policy::model::{Declarations, Method, Param, ParamType, Pattern, Types, groups_of};

/// The schema that policies are checked against, in Cedar's JSON format: one action for each of these methods, in one group
/// per prefix. Only calls that may be `delegated` have principals that are subjects.
pub(crate) fn schema_json<'m>(
    methods: impl Iterator<Item = (&'m MethodName, &'m Method)>,
    declarations: &Declarations,
    delegated: bool,
) -> Value {
    let principals: &[&str] = if delegated { &[AGENT, SUBJECT] } else { &[AGENT] };
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
                "principalTypes": principals,
                "resourceTypes": [SERVICE],
                "context": { "type": "Record", "attributes": context_attributes(method.params(), declarations) },
            },
        });
        actions.insert(name.as_str().to_owned(), action);
    }
    let mut attributes = optional(&declarations.attributes);
    attributes.insert("name".to_owned(), json!({ "type": "String" }));
    json!({ "": {
        "entityTypes": {
            AGENT: { "memberOfTypes": [ROLE], "shape": { "type": "Record", "attributes": attributes.clone() } },
            SUBJECT: { "memberOfTypes": [ROLE], "shape": { "type": "Record", "attributes": attributes } },
            ROLE: { "memberOfTypes": [ROLE] },
            SERVICE: {},
        },
        "actions": actions,
    }})
}

/// The attribute of the context that only delegated calls have.
pub(crate) const SUBJECT_OF_CALL: &str = "subject";

/// The attributes of the context besides `token`, claims and parameters, by their types.
pub(crate) const CONTEXT: [(&str, &[&str]); 5] = [
    ("Boolean", &["delegated"]),
    ("String", &["agent", "subject"]),
    ("datetime", &["now"]),
    ("Long", &["hour", "minute", "minute_of_day", "minute_of_week"]),
    ("String", &["weekday", "algorithm", "key"]),
];

fn context_attributes(params: Option<&[Param]>, declarations: &Declarations) -> Map<String, Value> {
    let claims = optional(&declarations.claims).into();
    let mut attributes = Map::new();
    for (kind, names) in CONTEXT {
        let kind =
            if kind == "datetime" { json!({ "type": "Extension", "name": kind }) } else { json!({ "type": kind }) };
        attributes.extend(names.iter().map(|name| ((*name).to_owned(), kind.clone())));
    }
    // Only a delegated call has a subject.
    if let Some(subject) = attributes.get_mut(SUBJECT_OF_CALL).and_then(Value::as_object_mut) {
        subject.insert("required".to_owned(), false.into());
    }
    let token = json!({
        "age_s": { "type": "Long" },
        "remaining_s": { "type": "Long" },
        "id": { "type": "String" },
        "issuer": { "type": "String" },
        "key": { "type": "String" },
    });
    for (name, members) in [("token", token), ("claims", claims)] {
        attributes.insert(name.to_owned(), json!({ "type": "Record", "attributes": members }));
    }
    attributes.extend(params.map(|params| ("params".to_owned(), record(params))));
    attributes
}

fn optional(types: &Types) -> Map<String, Value> {
    types.iter().map(|(name, kind)| (name.clone(), attribute(kind, true))).collect()
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
        // Of a value that no condition can compare, only the presence is known.
        ParamType::Boolean | ParamType::Any => json!({ "type": "Boolean" }),
        // See `model::number`.
        ParamType::Number => json!({ "type": "Record", "attributes": {
            "whole": { "type": "Long" },
            "fraction": { "type": "Long" },
            "beyond": { "type": "Boolean" },
        }}),
        ParamType::List(scalar) => json!({ "type": "Record", "attributes": {
            "items": { "type": "Set", "element": type_json(&scalar.as_param()) },
            "size": { "type": "Long" },
        }}),
        ParamType::Object(fields) => record(fields),
    }
}
