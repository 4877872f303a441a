//! The JSON Schema of the configuration file, draft 2020-12, for editors.
//! Never decides whether a file is valid: `Config::load` checks more than a schema can express.

use sealwire::internal::settings::{Key, Kind, LeftOut, Table};
use serde_json::{Map, Value, json};

/// The JSON Schema of the file.
pub(super) fn json_schema(title: &str, file: &Table) -> Value {
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
        table(file, ""),
        [
            ("description", file.about.into()),
            ("$schema", "https://json-schema.org/draft/2020-12/schema".into()),
            ("title", title.into()),
            ("$defs", definitions),
        ],
    )
}

/// Adds further keywords to a schema.
fn with(mut schema: Value, keywords: impl IntoIterator<Item = (&'static str, Value)>) -> Value {
    if let Value::Object(schema) = &mut schema {
        schema.extend(keywords.into_iter().map(|(keyword, value)| (keyword.to_owned(), value)));
    }
    schema
}

fn table(table: &Table, name: &str) -> Value {
    tagged(table, name, None)
}

/// A table; if it is one of several, with the key and the word that tell it from the others.
fn tagged(table: &Table, name: &str, tag: Option<(&str, &str)>) -> Value {
    let properties = table.keys.iter().map(|key| (key.name.to_owned(), property(key)));
    let word = tag.map(|(tag, word)| (tag.to_owned(), json!({ "const": word })));
    let properties: Map<String, Value> = word.into_iter().chain(properties).collect();
    let required = table.keys.iter().filter(|key| matches!(key.left_out, LeftOut::Required)).map(|key| key.name);
    let required: Vec<&str> = tag.map(|(tag, _)| tag).into_iter().chain(required).collect();
    let schema = json!({
        "type": "object", "additionalProperties": false, "properties": properties,
    });
    let contradictions = match name {
        "nats" => vec![
            (
                "dependentRequired",
                json!({
                    "password": ["user"], "password_file": ["user"], "tls_cert": ["tls_key"], "tls_key": ["tls_cert"],
                }),
            ),
            ("anyOf", json!([{ "required": ["urls"] }, { "required": ["context"] }])),
            (
                "not",
                json!({ "anyOf": [
                { "required": ["context"], "anyOf": BESIDE_NO_CONTEXT.map(|key| json!({ "required": [key] })) },
                { "required": ["password", "password_file"] }, { "required": ["nkey_seed", "nkey_seed_file"] },
                { "required": ["user", "token"] }, { "required": ["user", "nkey_seed"] },
                { "required": ["user", "nkey_seed_file"] }, { "required": ["token", "nkey_seed"] },
                { "required": ["token", "nkey_seed_file"] }, { "required": ["user", "creds_file"] },
                { "required": ["token", "creds_file"] }, { "required": ["nkey_seed", "creds_file"] },
                { "required": ["nkey_seed_file", "creds_file"] },
                { "required": ["access_token"], "properties": { "access_token": { "const": true } } },
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

/// The keys that may not stand beside `context`.
const BESIDE_NO_CONTEXT: [&str; 13] = [
    "urls",
    "user",
    "password",
    "password_file",
    "token",
    "nkey_seed",
    "nkey_seed_file",
    "creds_file",
    "tls_ca",
    "tls_cert",
    "tls_key",
    "tls_first",
    "no_randomize",
];

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
        Kind::Fraction => json!({ "type": "number", "minimum": 0, "maximum": 1 }),
        Kind::Choice(choices) => json!({ "enum": choices }),
        Kind::Claim => json!({ "$ref": "#/$defs/claim" }),
        Kind::Pattern => json!({ "type": "string", "pattern": "^([!-)+-~]{1,128}|[!-)+-~]{0,127}\\*)$" }),
        Kind::Map(_, value) => json!({ "type": "object", "additionalProperties": kind(value, "") }),
        Kind::List(item, fewest) => json!({ "type": "array", "minItems": fewest, "items": kind(item, "") }),
        Kind::Table(of) => table(of, name),
        Kind::Variants(tag, tables) => {
            let described = |(word, of): &(&str, Table)| {
                with(tagged(of, name, Some((tag, word))), [("description", of.about.into())])
            };
            json!({ "oneOf": tables.iter().map(described).collect::<Vec<_>>() })
        }
        Kind::Tables(of) => json!({ "type": "array", "minItems": 1, "items": table(of, name) }),
    }
}
