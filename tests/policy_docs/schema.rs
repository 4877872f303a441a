//! As much of JSON Schema as the schemas of policy files use.
//! Never passes over a keyword that it does not know.

use serde_json::{Map, Value};

/// What is wrong with `value`, with its place.
pub(crate) fn faults(schema: &Value, value: &Value) -> Vec<String> {
    let mut found = Vec::new();
    check(schema, schema, value, "", &mut found);
    found
}

fn check(root: &Value, schema: &Value, value: &Value, at: &str, found: &mut Vec<String>) {
    for (keyword, wanted) in schema.as_object().unwrap() {
        let good = match keyword.as_str() {
            "$schema" | "title" | "description" | "examples" | "definitions" => true,
            // Editors underline what does not match; the reader says why it is wrong (tests/policy_check.rs).
            "pattern" => value.is_string(),
            "properties" | "additionalProperties" => true,
            "$ref" => {
                let target = root.pointer(wanted.as_str().unwrap().strip_prefix('#').unwrap());
                check(root, target.expect("what a `$ref` points to"), value, at, found);
                true
            }
            "type" => kinds(wanted).iter().any(|kind| is(kind, value)),
            "enum" => wanted.as_array().unwrap().contains(value),
            "minimum" => value.as_i64().is_none_or(|value| value >= wanted.as_i64().unwrap()),
            "minItems" => value.as_array().is_none_or(|list| list.len() as u64 >= wanted.as_u64().unwrap()),
            "required" => {
                let has = |name: &Value| value.get(name.as_str().unwrap()).is_some();
                !value.is_object() || wanted.as_array().unwrap().iter().all(has)
            }
            "items" => {
                for (position, item) in value.as_array().into_iter().flatten().enumerate() {
                    check(root, wanted, item, &format!("{at}/{position}"), found);
                }
                true
            }
            "allOf" => {
                wanted.as_array().unwrap().iter().for_each(|schema| check(root, schema, value, at, found));
                true
            }
            "anyOf" => wanted.as_array().unwrap().iter().any(|schema| {
                let mut inner = Vec::new();
                check(root, schema, value, at, &mut inner);
                inner.is_empty()
            }),
            other => panic!("a keyword that this test does not know: {other}"),
        };
        if !good {
            found.push(format!("{at}: {keyword} {wanted}"));
        }
    }
    members(root, schema, value, at, found);
}

fn members(root: &Value, schema: &Value, value: &Value, at: &str, found: &mut Vec<String>) {
    let none = Map::new();
    let properties = schema.get("properties").map_or(&none, |known| known.as_object().unwrap());
    for (name, value) in value.as_object().into_iter().flatten() {
        let at = format!("{at}/{name}");
        match (properties.get(name), schema.get("additionalProperties")) {
            (Some(schema), _) => check(root, schema, value, &at, found),
            (None, Some(Value::Bool(false))) => found.push(format!("{at}: unknown")),
            (None, Some(schema)) if schema.is_object() => check(root, schema, value, &at, found),
            (None, _) => {}
        }
    }
}

fn kinds(wanted: &Value) -> Vec<&str> {
    match wanted {
        Value::String(kind) => vec![kind],
        several => several.as_array().unwrap().iter().map(|kind| kind.as_str().unwrap()).collect(),
    }
}

fn is(kind: &str, value: &Value) -> bool {
    match kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64(),
        other => panic!("a type that this test does not know: {other}"),
    }
}
