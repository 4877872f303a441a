//! The JSON Schema of the configuration file, draft 2020-12, for editors.
//! Never decides whether a file is valid: `Config::load` checks more than a schema can express.

use serde_json::{Map, Value, json};

use super::Config;
use super::reference::{self, Key, Kind, LeftOut, Table};

impl Config {
    /// The JSON Schema (draft 2020-12) of the configuration file, for editors that complete and check as you type.
    #[must_use]
    pub fn json_schema() -> Value {
        let definitions = json!({
            "claim": {
                "description": "The path to a claim: `azp`, `realm_access.roles`, or [\"https://example.com/roles\"].",
                "anyOf": [
                    { "type": "string", "pattern": "^[A-Za-z0-9_:-]{1,128}(\\.[A-Za-z0-9_:-]{1,128}){0,7}$" },
                    { "type": "array", "minItems": 1, "maxItems": 8,
                      "items": { "type": "string", "pattern": "^[!-~]{1,128}$" } },
                ],
            },
        });
        with(
            table(&reference::file(), ""),
            [
                ("$schema", "https://json-schema.org/draft/2020-12/schema".into()),
                ("title", "Sealwire configuration".into()),
                ("$defs", definitions),
            ],
        )
    }
}

/// Adds further keywords to a schema.
fn with(mut schema: Value, keywords: impl IntoIterator<Item = (&'static str, Value)>) -> Value {
    if let Value::Object(schema) = &mut schema {
        schema.extend(keywords.into_iter().map(|(keyword, value)| (keyword.to_owned(), value)));
    }
    schema
}

fn table(table: &Table, name: &str) -> Value {
    let properties: Map<String, Value> = table.keys.iter().map(|key| (key.name.to_owned(), property(key))).collect();
    let required: Vec<&str> =
        table.keys.iter().filter(|key| matches!(key.left_out, LeftOut::Required)).map(|key| key.name).collect();
    let schema = json!({
        "type": "object", "description": table.about, "additionalProperties": false, "properties": properties,
    });
    let contradictions = match name {
        "nats" => vec![
            (
                "dependentRequired",
                json!({
                    "password": ["user"], "password_file": ["user"], "tls_cert": ["tls_key"], "tls_key": ["tls_cert"],
                }),
            ),
            (
                "not",
                json!({ "anyOf": [
                { "required": ["password", "password_file"] }, { "required": ["nkey_seed", "nkey_seed_file"] },
                { "required": ["user", "token"] }, { "required": ["user", "nkey_seed"] },
                { "required": ["user", "nkey_seed_file"] }, { "required": ["token", "nkey_seed"] },
                { "required": ["token", "nkey_seed_file"] },
            ] }),
            ),
        ],
        "issuer" => vec![(
            "oneOf",
            json!([
                { "required": ["jwks"] }, { "required": ["jwks_url"] }, { "required": ["openid_configuration"] },
                { "required": ["discovery"], "properties": { "discovery": { "const": true } } },
            ]),
        )],
        _ => Vec::new(),
    };
    let required = (!required.is_empty()).then(|| ("required", json!(required)));
    with(schema, required.into_iter().chain(contradictions))
}

fn property(key: &Key) -> Value {
    let unit = match &key.kind {
        Kind::Number(unit, ..) => format!(" Unit: {unit}."),
        _ => String::new(),
    };
    let description = (!key.about.is_empty()).then(|| ("description", format!("{}{unit}", key.about).into()));
    let default = match &key.left_out {
        LeftOut::Value(value) => Some(("default", value.clone())),
        _ => None,
    };
    with(kind(&key.kind, key.name), description.into_iter().chain(default))
}

fn kind(of: &Kind, name: &str) -> Value {
    match of {
        Kind::Text | Kind::Path => json!({ "type": "string" }),
        Kind::Name => json!({ "type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$" }),
        Kind::Prefix => json!({ "type": "string", "pattern": "^[A-Za-z0-9_-]+(\\.[A-Za-z0-9_-]+){0,7}$" }),
        Kind::Flag => json!({ "type": "boolean" }),
        Kind::Number(_, least, None) => json!({ "type": "integer", "minimum": least }),
        Kind::Number(_, least, Some(most)) => json!({ "type": "integer", "minimum": least, "maximum": most }),
        Kind::Choice(choices) => json!({ "enum": choices }),
        Kind::Claim => json!({ "$ref": "#/$defs/claim" }),
        Kind::Pattern => json!({ "type": "string", "pattern": "^([!-)+-~]{1,128}|[!-)+-~]{0,127}\\*)$" }),
        Kind::Claims | Kind::Texts => json!({ "type": "object", "additionalProperties": { "type": "string" } }),
        Kind::List(item, fewest) => json!({ "type": "array", "minItems": fewest, "items": kind(item, "") }),
        Kind::Table(of) => table(of, name),
        Kind::Tables(of) => json!({ "type": "array", "minItems": 1, "items": table(of, name) }),
    }
}
