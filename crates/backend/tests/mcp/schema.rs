//! Which schemas tools may have, and what they say of values.

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

    // A tree with two paths down: as deep as the bound on work allows.
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

    // A list of lists has one path down: as deep as calls may be.
    let list = schema(&json!({ "type": "array", "items": { "$ref": "#" } })).unwrap();
    let mut value = json!([]);
    for _ in 0..60 {
        value = json!([value]);
    }
    assert_eq!(checked(&list, &value), Ok(()));
}

/// This many `$defs`, each with a reference to the one before, and a reference to the last.
fn row(length: usize, made: impl Fn(Value) -> Value) -> Value {
    let mut definitions = serde_json::Map::new();
    definitions.insert("d0".to_owned(), json!({ "type": "object" }));
    for n in 1..=length {
        definitions.insert(format!("d{n}"), made(json!({ "$ref": format!("#/$defs/d{}", n - 1) })));
    }
    json!({ "$defs": definitions, "$ref": format!("#/$defs/d{length}") })
}

/// Runs in a thread with the stack of a worker of the runtime.
fn on_a_small_stack(test: impl FnOnce() + Send + 'static) {
    std::thread::Builder::new().stack_size(2 << 20).spawn(test).unwrap().join().unwrap();
}

#[test]
fn what_is_not_evaluated_is_asked_of_plain_schemas_only() {
    type Made = fn(Value) -> Value;
    let unevaluated: [Made; 7] = [
        |to| json!({ "anyOf": [to], "unevaluatedProperties": false }),
        |to| json!({ "allOf": [to], "unevaluatedProperties": false }),
        |to| json!({ "oneOf": [to], "unevaluatedItems": false }),
        |to| json!({ "if": to, "unevaluatedProperties": false }),
        |to| json!({ "dependentSchemas": { "a": to }, "unevaluatedProperties": false }),
        |to| json!({ "allOf": [{ "allOf": [{ "allOf": [{ "allOf": [to] }] }] }], "unevaluatedProperties": false }),
        |to| json!({ "$ref": to["$ref"], "unevaluatedItems": true }),
    ];
    on_a_small_stack(move || {
        for made in unevaluated {
            for length in [1, 20, 150] {
                let refused = schema(&row(length, made)).unwrap_err();
                assert!(matches!(refused, SchemaError::Unevaluated(_)), "{refused:?}");
                assert!(refused.to_string().contains("`additionalProperties`"), "{refused}");
            }
        }
    });
    let plain =
        json!({ "properties": { "x": true }, "patternProperties": { "^y": true }, "unevaluatedProperties": false });
    let plain = schema(&plain).unwrap();
    assert_eq!(checked(&plain, &json!({ "x": 1, "y1": 2 })), Ok(()));
    assert!(checked(&plain, &json!({ "z": 1 })).is_err());
}

#[test]
fn no_row_of_subschemas_takes_a_worker_s_stack() {
    type Made = fn(Value) -> Value;
    let rows: [(Made, usize); 7] = [
        (|to| to, 1),
        (|to| json!({ "allOf": [to] }), 2),
        (|to| json!({ "anyOf": [to, { "required": ["none"] }] }), 2),
        (|to| json!({ "oneOf": [{ "required": ["none"] }, to] }), 2),
        (|to| json!({ "not": { "not": to } }), 3),
        (|to| json!({ "if": true, "then": to }), 2),
        (|to| json!({ "dependentSchemas": { "a": to } }), 2),
    ];
    on_a_small_stack(move || {
        for (made, steps) in rows {
            let most = (256 - 2) / steps;
            assert_eq!(schema(&row(most + 1, made)).unwrap_err(), SchemaError::TooFar);
            let longest = schema(&row(most, made)).unwrap();
            assert_eq!(checked(&longest, &json!({ "a": {} })), Ok(()));
            drop(checked(&longest, &json!(1)));
        }
        // Back to the beginning: as deep as the stack allows, given what a level costs there.
        let mut definitions = serde_json::Map::new();
        definitions
            .insert("d0".to_owned(), json!({ "properties": { "x": { "$ref": "#" } }, "additionalProperties": false }));
        for n in 1..=50 {
            definitions.insert(format!("d{n}"), json!({ "anyOf": [{ "$ref": format!("#/$defs/d{}", n - 1) }] }));
        }
        let again = schema(&json!({ "$defs": definitions, "$ref": "#/$defs/d50" })).unwrap();
        assert_eq!(checked(&again, &json!({})), Ok(()));
        assert!(checked(&again, &json!({ "y": 1 })).is_err());
        let mut value = json!({});
        for _ in 0..60 {
            value = json!({ "x": value });
        }
        assert!(checked(&again, &value).unwrap_err().starts_with("nested deeper than"));
    });
}

#[test]
fn what_is_compiled_takes_no_caller_s_stack() {
    type Made = fn(Value) -> Value;
    // As deep as a text may be, and then further by a reference.
    let nested: [(Made, i32); 6] = [
        (|to| json!({ "items": to }), 28),
        (|to| json!({ "contains": to }), 28),
        (
            |to| json!({ "additionalProperties": to, "properties": { "b": true }, "patternProperties": { "^c": true } }),
            27,
        ),
        (|to| json!({ "unevaluatedProperties": to, "properties": { "b": true } }), 27),
        (|to| json!({ "unevaluatedItems": to, "prefixItems": [true] }), 27),
        (|to| json!({ "properties": { "a": to, "b": true }, "required": ["a"], "additionalProperties": false }), 14),
    ];
    on_a_small_stack(move || {
        for (made, levels) in nested {
            let mut definitions = serde_json::Map::new();
            for n in 0..9 {
                let to = json!({ "$ref": format!("#/$defs/d{}", (n + 1) % 9) });
                definitions.insert(format!("d{n}"), (0..levels).fold(to, |to, _| made(to)));
            }
            let around = schema(&json!({ "$defs": definitions, "$ref": "#/$defs/d0" })).unwrap();
            for innermost in [json!([]), json!({}), json!(1)] {
                let list = (0..59).fold(innermost.clone(), |inner, _| json!([1, inner]));
                let object = (0..59).fold(innermost, |inner, _| json!({ "a": inner }));
                for value in [list, object] {
                    // Neither the check nor its explanation may overflow the stack.
                    drop(checked(&around, &value));
                }
            }
        }
    });
}

#[test]
fn patterns_cost_their_size_and_are_bounded_together() {
    let texts = |length: usize| json!({ "x": "ab".repeat(length / 2) });
    let of = |pattern: Value| json!({ "type": "object", "properties": { "x": pattern } });
    let wide = schema(&of(json!({ "pattern": "[ab]*a[ab]{2000}c" }))).unwrap();
    assert!(checked(&wide, &texts(1_000)).unwrap_err().contains("does not match"));
    let refused = checked(&wide, &texts(250_000)).unwrap_err();
    assert!(refused.contains("too long for the patterns"), "{refused}");
    let many: Vec<Value> = (0..4).map(|n| json!({ "not": { "pattern": format!("[ab]*a[ab]{{1000}}c{n}") } })).collect();
    let many = schema(&of(json!({ "allOf": many }))).unwrap();
    assert_eq!(checked(&many, &texts(1_000)), Ok(()));
    assert!(checked(&many, &texts(40_000)).unwrap_err().contains("too long for the patterns"));
    // The same pattern again and again is compiled once.
    let same: Vec<Value> = (0..300).map(|_| json!({ "not": { "pattern": "[ab]*a[ab]{2000}c" } })).collect();
    let same = schema(&of(json!({ "allOf": same }))).unwrap();
    assert!(checked(&same, &texts(1_000)).unwrap_err().contains("too long for the patterns"));
    // A list of literals is gone through for each text.
    let list: Vec<String> = (0..8_000).map(|n| n.to_string()).collect();
    let list = json!({ "items": { "pattern": format!("^({})$", list.join("|")) } });
    let list = schema(&json!({ "properties": { "x": list } })).unwrap();
    assert_eq!(checked(&list, &json!({ "x": ["0", "7999"] })), Ok(()));
    assert!(checked(&list, &json!({ "x": vec!["7999"; 100_000] })).is_err());

    for pattern in ["\\w{28}", "[ab]*a[ab]{200}c"] {
        let many: serde_json::Map<_, _> =
            (0..990).map(|n| (format!("p{n}"), json!({ "pattern": format!("{pattern}{n}") }))).collect();
        let refused = schema(&json!({ "properties": many })).unwrap_err();
        assert_eq!(refused, SchemaError::Patterns, "{pattern}");
        assert!(refused.to_string().contains("`maxLength`"), "{refused}");
    }
    let names: serde_json::Map<_, _> = (0..20).map(|n| (format!("[ab]*a[ab]{{300}}c{n}"), json!(true))).collect();
    let names = schema(&json!({ "patternProperties": names, "additionalProperties": false })).unwrap();
    assert_eq!(checked(&names, &json!({})), Ok(()));
    assert!(checked(&names, &json!({ "ab".repeat(100_000): 1 })).is_err_and(|refused| refused.contains("too long")));
}

#[test]
fn values_that_are_compared_one_by_one_are_counted() {
    let numbers: Vec<Value> = (0..9_000).map(|n| json!(f64::from(n) + 0.5)).collect();
    let numbers = schema(&json!({ "type": "array", "items": { "enum": numbers } })).unwrap();
    assert_eq!(checked(&numbers, &json!([0.5, 8_999.5])), Ok(()));
    assert!(checked(&numbers, &json!(vec![8_999.5; 50_000])).unwrap_err().starts_with("too long"));
    let texts: Vec<String> = (0..500).map(|n| format!("city-{n}")).collect();
    let texts = schema(&json!({ "type": "array", "items": { "enum": texts } })).unwrap();
    assert_eq!(checked(&texts, &json!(vec!["city-499"; 50_000])), Ok(()));
    assert!(checked(&texts, &json!(["city-500"])).is_err());
}

#[test]
fn long_names_above_many_subschemas_are_refused() {
    let below: serde_json::Map<_, _> = (0..900).map(|n| (n.to_string(), json!({ "type": "string" }))).collect();
    let long = json!({ "properties": { "x".repeat(20_000): { "properties": below } } });
    assert_eq!(schema(&long).unwrap_err(), SchemaError::TooLarge);
}

#[test]
fn schemas_as_libraries_write_them_are_taken() {
    // Pydantic 2: references, optional members, a tree, an enumeration, a union with a discriminator.
    let pydantic = json!({
        "$defs": {
            "Colour": { "enum": ["red", "green"], "title": "Colour", "type": "string" },
            "Node": { "properties": {
                "children": { "default": [], "items": { "$ref": "#/$defs/Node" }, "title": "Children", "type": "array" },
                "colour": { "anyOf": [{ "$ref": "#/$defs/Colour" }, { "type": "null" }], "default": null },
                "name": { "maxLength": 64, "minLength": 1, "pattern": "^[a-z][a-z0-9_-]*$", "title": "Name", "type": "string" },
            }, "required": ["name"], "title": "Node", "type": "object", "additionalProperties": false },
            "Cat": { "properties": { "kind": { "const": "cat", "type": "string" } }, "required": ["kind"], "type": "object" },
            "Dog": { "properties": { "kind": { "const": "dog", "type": "string" } }, "required": ["kind"], "type": "object" },
        },
        "properties": {
            "root": { "$ref": "#/$defs/Node" },
            "pet": { "discriminator": { "mapping": { "cat": "#/$defs/Cat", "dog": "#/$defs/Dog" }, "propertyName": "kind" },
                     "oneOf": [{ "$ref": "#/$defs/Cat" }, { "$ref": "#/$defs/Dog" }] },
            "when": { "format": "date-time", "type": "string" },
            "ratios": { "additionalProperties": { "type": "number" }, "type": "object" },
            "limit": { "anyOf": [{ "exclusiveMinimum": 0, "type": "integer" }, { "type": "null" }], "default": null },
        },
        "required": ["root"], "title": "args", "type": "object",
    });
    let pydantic = schema(&pydantic).unwrap();
    let mut node = json!({ "name": "leaf", "colour": null });
    for _ in 0..20 {
        node = json!({ "name": "node", "colour": "red", "children": [node] });
    }
    let value = json!({ "root": node, "pet": { "kind": "dog" }, "ratios": { "a": 0.5 }, "limit": null });
    assert_eq!(checked(&pydantic, &value), Ok(()));
    assert!(checked(&pydantic, &json!({ "root": { "name": "Node" } })).unwrap_err().contains("does not match"));

    // Zod 4: patterns for formats, records, and texts of any length beside them.
    let date = "^(?:(?:\\d\\d[2468][048]|\\d\\d[13579][26]|\\d\\d0[48]|[02468][048]00|[13579][26]00)-02-29|\\d{4}-\\\
                d{2}-\\d{2})T(?:(?:[01]\\d|2[0-3]):[0-5]\\d(?::[0-5]\\d(?:\\.\\d+)?)?(?:Z))$";
    let uuid = "^([0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[1-8][0-9a-fA-F]{3}-[89abAB][0-9a-fA-F]{3}-[0-9a-fA-F]{12}|\
                00000000-0000-0000-0000-000000000000)$";
    let email = "^(([A-Za-z0-9_'+\\-\\.]*)[A-Za-z0-9_+-])@([A-Za-z0-9][A-Za-z0-9\\-]*\\.)+[A-Za-z]{2,}$";
    let entry = json!({ "type": "object", "additionalProperties": false, "required": ["id", "at"], "properties": {
        "id": { "type": "string", "format": "uuid", "pattern": uuid },
        "at": { "type": "string", "format": "date-time", "pattern": date },
        "by": { "anyOf": [{ "type": "string", "format": "email", "pattern": email }, { "type": "null" }] },
        "text": { "type": "string" },
        "count": { "type": "integer", "minimum": -9_007_199_254_740_991_i64, "maximum": 9_007_199_254_740_991_i64 },
        "labels": { "type": "object", "propertyNames": { "type": "string", "pattern": "^[a-z]+$" },
                    "additionalProperties": { "type": "string" } },
    } });
    let zod = json!({ "$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object", "additionalProperties": false,
                      "properties": { "entries": { "type": "array", "items": entry } } });
    let zod = schema(&zod).unwrap();
    let entry = json!({ "id": "9b2d1ad4-7e0f-4c62-9d5e-3f0a52b7c111", "at": "2026-01-31T10:00:00Z", "by": "ada@example.com",
                        "text": "x".repeat(300), "count": 7, "labels": { "kind": "note" } });
    // As long as a result may be.
    let value = json!({ "entries": vec![entry; 2_300] });
    assert!((900_000..1 << 20).contains(&value.to_string().len()), "{}", value.to_string().len());
    assert_eq!(checked(&zod, &value), Ok(()));
    assert!(checked(&zod, &json!({ "entries": [{ "id": "9", "at": "now" }] })).unwrap_err().contains("does not match"));

    // An older schema, which names its draft and merges with `allOf`.
    let older = json!({ "$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "definitions": {
        "base": { "type": "object", "properties": { "url": { "type": "string", "format": "uri" }, "re": { "format": "regex" } } } },
        "allOf": [{ "$ref": "#/definitions/base" }, { "properties": { "n": { "type": "integer" } } }] });
    let older = schema(&older).unwrap();
    assert_eq!(
        checked(&older, &json!({ "url": "https://e.example/", "n": 1, "re": "(?<a>x)".repeat(10_000) })),
        Ok(())
    );
    assert!(checked(&older, &json!({ "url": "no url", "n": 1 })).is_err());
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
