//! Turns the schema of a tool's arguments into the parameters that policies refer to.
//! Never guesses a type: what is not plainly a string, a number, a boolean, or a list of strings, integers or booleans is `any`.

use std::fmt;

use sealwire::decide::{Param, ParamType, ScalarType};
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

/// The members of `properties`, in the order of the text.
pub(super) fn params(text: &RawValue, schema: &Value) -> Vec<Param> {
    let names =
        serde_json::from_str::<PropertyOrder>(text.get()).map(|ordered| ordered.properties.0).unwrap_or_default();
    let required: Vec<&str> =
        schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
    let mut params: Vec<Param> = Vec::new();
    for name in names {
        let Some(property) = schema.get("properties").and_then(|properties| properties.get(&name)) else { continue };
        if !is_writable(&name) || params.iter().any(|known| known.name() == name) {
            continue;
        }
        let (kind, nullable) = kind_of(property, schema);
        let is_required = required.contains(&name.as_str()) && !nullable;
        let param = Param::new(name, kind);
        params.push(if is_required { param } else { param.optional() });
    }
    params
}

/// Whether a policy file could declare this name, too.
fn is_writable(name: &str) -> bool {
    (1..=64).contains(&name.len()) && !name.chars().any(char::is_control)
}

/// The type, and whether null is accepted as well.
fn kind_of(property: &Value, root: &Value) -> (ParamType, bool) {
    let property = resolved(property, root);
    // How Pydantic writes `Optional[str]`.
    for keyword in ["anyOf", "oneOf"] {
        if let Some(Value::Array(options)) = property.get(keyword) {
            let is_null = |option: &&Value| option.get("type").and_then(Value::as_str) == Some("null");
            let others: Vec<&Value> = options.iter().filter(|option| !is_null(option)).collect();
            return match others.as_slice() {
                [only] => (simple(resolved(only, root), root), options.len() > 1),
                _ => (ParamType::Any, options.len() > others.len()),
            };
        }
    }
    if let Some(Value::Array(types)) = property.get("type") {
        let nullable = types.iter().any(|kind| kind == "null");
        let others: Vec<&str> = types.iter().filter_map(Value::as_str).filter(|kind| *kind != "null").collect();
        return match others.as_slice() {
            [only] => (named(only, property, root), nullable),
            _ => (ParamType::Any, nullable),
        };
    }
    (simple(property, root), false)
}

fn simple(property: &Value, root: &Value) -> ParamType {
    match property.get("type").and_then(Value::as_str) {
        Some(kind) => named(kind, property, root),
        None => ParamType::Any,
    }
}

fn named(kind: &str, property: &Value, root: &Value) -> ParamType {
    match kind {
        "array" => {
            let items = property.get("items").filter(|_| property.get("prefixItems").is_none());
            items.and_then(|items| scalar(resolved(items, root))).map_or(ParamType::Any, ParamType::List)
        }
        "string" => ParamType::String,
        "integer" => ParamType::Integer,
        "boolean" => ParamType::Boolean,
        "number" => ParamType::Number,
        _ => ParamType::Any,
    }
}

fn scalar(items: &Value) -> Option<ScalarType> {
    match items.get("type")?.as_str()? {
        "string" => Some(ScalarType::String),
        "integer" => Some(ScalarType::Integer),
        "boolean" => Some(ScalarType::Boolean),
        _ => None,
    }
}

/// Follows the references of a subschema. Their targets exist and do not lead back, or the schema would have been refused.
fn resolved<'a>(mut schema: &'a Value, root: &'a Value) -> &'a Value {
    while let Some(reference) = schema.get("$ref").and_then(Value::as_str) {
        match reference.strip_prefix('#').and_then(|pointer| root.pointer(pointer)) {
            Some(target) => schema = target,
            None => break,
        }
    }
    schema
}

/// The names of the properties in their order, which `Value` does not keep.
#[derive(Deserialize)]
struct PropertyOrder {
    #[serde(default)]
    properties: Names,
}

#[derive(Default)]
struct Names(Vec<String>);

impl<'de> Deserialize<'de> for Names {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Names;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Names, A::Error> {
                let mut names = Vec::new();
                while let Some((name, IgnoredAny)) = map.next_entry()? {
                    names.push(name);
                }
                Ok(Names(names))
            }
        }
        deserializer.deserialize_map(Reader)
    }
}
