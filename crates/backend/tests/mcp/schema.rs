//! What schemas of tools may be, and what they say of values.

use std::time::{Duration, Instant};

use sealwire_backend::{Schema, SchemaError};
use serde_json::value::RawValue;
use serde_json::{Value, json};

fn raw(value: &Value) -> Box<RawValue> {
    serde_json::value::to_raw_value(value).unwrap()
}

fn schema(value: &Value) -> Result<Schema, SchemaError> {
    Schema::new(&raw(value))
}

fn checked(schema: &Schema, value: &Value) -> Result<(), String> {
    schema.check(&raw(value)).map_err(|error| error.to_string())
}

#[test]
fn values_are_judged_and_errors_name_places_and_no_values() {
    let add = schema(&json!({
        "type": "object", "required": ["a", "b"], "additionalProperties": false,
        "properties": { "a": { "type": "integer" }, "b": { "type": "integer", "maximum": 10 } },
    }))
    .unwrap();
    assert_eq!(checked(&add, &json!({ "a": 1, "b": 2 })), Ok(()));
    let wrong = checked(&add, &json!({ "a": "secret-text", "b": 11 })).unwrap_err();
    assert!(wrong.contains("`/a`") && wrong.contains("`/b`") && wrong.contains("integer"), "{wrong}");
    assert!(!wrong.contains("secret-text"), "{wrong}");
    let long = json!({ "\u{1b}[31m".repeat(500): 1 });
    let wrong = checked(&add, &long).unwrap_err();
    assert!(wrong.len() < 4_000 && !wrong.contains('\u{1b}'), "{wrong}");
}

#[test]
fn size_depth_and_number_of_subschemas_are_bounded() {
    let long = json!({ "type": "object", "description": "x".repeat(Schema::MAX_BYTES) });
    assert_eq!(schema(&long).unwrap_err(), SchemaError::TooLong);
    let mut deep = json!({ "type": "string" });
    for _ in 0..16 {
        deep = json!({ "properties": { "x": deep } });
    }
    assert_eq!(schema(&deep).unwrap_err(), SchemaError::TooDeep);
    let many: serde_json::Map<_, _> = (0..1_000).map(|n| (format!("p{n}"), json!(true))).collect();
    assert_eq!(schema(&json!({ "properties": many })).unwrap_err(), SchemaError::TooMany);
}

#[test]
fn references_stay_within_the_text() {
    for reference in ["https://example.com/s.json", "file:///etc/passwd", "other.json#/a", "#/$defs/none", "#name"] {
        let refused = schema(&json!({ "properties": { "x": { "$ref": reference } } })).unwrap_err();
        assert_eq!(refused, SchemaError::Reference(reference.to_owned()));
    }
    let within =
        json!({ "$defs": { "a/b c": { "type": "string" } }, "properties": { "x": { "$ref": "#/$defs/a~1b%20c" } } });
    let within = schema(&within).unwrap();
    assert_eq!(checked(&within, &json!({ "x": "text" })), Ok(()));
    assert!(checked(&within, &json!({ "x": 1 })).is_err());
    for wrong in [json!({ "properties": { "x": { "$id": "https://e.example/" } } }), json!({ "$dynamicRef": "#x" })] {
        assert!(matches!(schema(&wrong), Err(SchemaError::Keyword(_))), "{wrong}");
    }
    let version = json!({ "$schema": "https://e.example/mine" });
    assert!(matches!(schema(&version), Err(SchemaError::Version(_))));
    for version in ["http://json-schema.org/draft-07/schema#", "https://json-schema.org/draft/2020-12/schema"] {
        assert!(schema(&json!({ "$schema": version, "type": "object" })).is_ok(), "{version}");
    }
}

#[test]
fn schemas_that_would_take_for_ever_are_refused_and_recursive_ones_bounded() {
    assert_eq!(schema(&json!({ "$ref": "#" })).unwrap_err(), SchemaError::Cost);
    let mut definitions = serde_json::Map::new();
    for n in 0..40 {
        let next = format!("#/$defs/d{}", n + 1);
        definitions.insert(format!("d{n}"), json!({ "allOf": [{ "$ref": next }, { "$ref": next }] }));
    }
    definitions.insert("d40".to_owned(), json!({ "type": "object" }));
    let doubling = json!({ "$defs": definitions, "$ref": "#/$defs/d0" });
    assert_eq!(schema(&doubling).unwrap_err(), SchemaError::Cost);

    // A tree with two ways down: as deep as can be afforded.
    let twice = json!({ "anyOf": [
        { "properties": { "x": { "$ref": "#" } }, "required": ["no"] }, { "properties": { "x": { "$ref": "#" } } },
    ] });
    let twice = schema(&twice).unwrap();
    let mut value = json!({});
    for _ in 0..5 {
        value = json!({ "x": value });
    }
    assert_eq!(checked(&twice, &value), Ok(()));
    for _ in 0..50 {
        value = json!({ "x": value });
    }
    let started = Instant::now();
    let refused = checked(&twice, &value).unwrap_err();
    assert!(refused.starts_with("nested deeper than"), "{refused}");
    assert!(started.elapsed() < Duration::from_secs(60));

    // A list of lists is one way down: as deep as calls may be.
    let list = schema(&json!({ "type": "array", "items": { "$ref": "#" } })).unwrap();
    let mut value = json!([]);
    for _ in 0..60 {
        value = json!([value]);
    }
    assert_eq!(checked(&list, &value), Ok(()));
}

#[test]
fn patterns_take_linear_time_or_are_refused() {
    let slow = schema(&json!({ "properties": { "x": { "pattern": "^(a+)+$" } } })).unwrap();
    let started = Instant::now();
    assert!(checked(&slow, &json!({ "x": format!("{}b", "a".repeat(50_000)) })).is_err());
    assert!(started.elapsed() < Duration::from_secs(60));
    for pattern in ["(a{1000}){1000}", "(?=a)b", "("] {
        let refused = schema(&json!({ "properties": { "x": { "pattern": pattern } } }));
        assert!(matches!(refused, Err(SchemaError::Invalid(_))), "{pattern}: {refused:?}");
    }
}

#[test]
fn plain_members_become_declared_parameters_in_their_order() {
    let text = r##"{"type":"object","required":["zone","count","maybe"],"$defs":{"Level":{"type":"string","enum":["a"]}},
        "properties":{"zone":{"type":"string"},"count":{"type":"integer"},"flag":{"type":"boolean"},
        "ratio":{"type":"number"},"tags":{"type":"array","items":{"type":"string"}},
        "maybe":{"anyOf":[{"type":"string"},{"type":"null"}]},"either":{"anyOf":[{"type":"string"},{"type":"integer"}]},
        "level":{"$ref":"#/$defs/Level"},"kinds":{"type":["integer","null"]},"deep":{"type":"object"},"open":true,
        "bad\u0001name":{"type":"string"}}}"##;
    let schema = Schema::new(&RawValue::from_string(text.to_owned()).unwrap()).unwrap();
    let declared: Vec<String> = schema.declared().iter().map(ToString::to_string).collect();
    assert_eq!(
        declared,
        [
            "zone: string",
            "count: integer",
            "flag?: boolean",
            "ratio?: number",
            "tags?: string[]",
            "maybe?: string",
            "either?: any",
            "level?: string",
            "kinds?: integer",
            "deep?: any",
            "open?: any"
        ]
    );
}
