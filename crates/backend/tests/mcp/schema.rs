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
fn unevaluated_members_are_looked_for_in_plain_schemas_only() {
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
fn compiling_takes_no_stack_of_its_caller() {
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
fn patterns_take_bounded_time_or_are_refused() {
    for pattern in ["^(a+)+$", "^(?:a+)+(?=c)", "^(?=(?:(?:a|a)*)*c)(?:a|a)*\\b$"] {
        let slow = schema(&json!({ "properties": { "x": { "pattern": pattern } } })).unwrap();
        let started = Instant::now();
        assert!(checked(&slow, &json!({ "x": format!("{}b", "a".repeat(50_000)) })).is_err(), "{pattern}");
        assert!(started.elapsed() < Duration::from_secs(60), "{pattern}");
    }
    // This is tried in ever new ways, and given up: then it is not known whether it matches, wherever it stands.
    let pattern = "^(?:(?=a)a|(?=a)a)*c$";
    for schema in [
        json!({ "properties": { "x": { "pattern": pattern } } }),
        json!({ "properties": { "x": { "not": { "pattern": pattern } } } }),
        json!({ "properties": { "x": { "oneOf": [{ "pattern": pattern }, true] } } }),
    ] {
        let (slow, started) = (self::schema(&schema).unwrap(), Instant::now());
        let refused = checked(&slow, &json!({ "x": format!("{}b", "a".repeat(60)) }));
        assert!(refused.as_ref().is_err_and(|why| why.contains("too long for the patterns")), "{schema}: {refused:?}");
        assert!(started.elapsed() < Duration::from_secs(60), "{schema}");
    }
    for (pattern, why) in [
        ("(a{1000}){1000}", "512 KiB"),
        ("(?=a)(b{1000}){1000}", "512 KiB"),
        ("(", "a group has no end"),
        ("(?", "a group has no end"),
        ("a)", "ends no group"),
        ("[a", "a class has no end"),
        ("[a\\", "a class has no end"),
        ("a\\", "ends with a backslash"),
        ("*a", "nothing to repeat"),
        ("a|+", "nothing to repeat"),
        ("(?:{2})", "nothing to repeat"),
        ("[z-a]", "a range ends before its beginning"),
        ("a{3,2}", "ends below its beginning"),
    ] {
        let refused = schema(&json!({ "properties": { "x": { "pattern": pattern } } }));
        assert!(matches!(&refused, Err(SchemaError::Invalid(said)) if said.contains(why)), "{pattern}: {refused:?}");
    }
}

/// Patterns as ECMAScript reads them, with texts that match and texts that do not: as `new RegExp(pattern, "u")` of Node says, or without
/// the flag where only that takes it. `(?P<…>`, `(?i)` and its kin are Python's, Rust's and those of newer ECMAScript.
#[test]
fn patterns_match_what_they_match_in_ecmascript() {
    let email = r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$";
    let duration = r"^P(?:(\d+W)|(?!.*W)(?=\d|T\d)(\d+Y)?(\d+M)?(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+([.,]\d+)?S)?)?)$";
    let hostname = r"^(?=.{1,253}\.?$)[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?(?:\.[a-zA-Z0-9](?:[-0-9a-zA-Z]{0,61}[0-9a-zA-Z])?)*\.?$";
    let ipv4 = r"^(?:(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9][0-9]|[0-9])\.){3}(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9][0-9]|[0-9])$";
    let table: &[(&str, &[&str], &[&str])] = &[
        // As zod writes formats.
        (
            email,
            &["ada@example.com", "a.b+c@x-y.example.org"],
            &[".a@e.com", "a..b@e.com", "a@e", "a.@e.com", "a@e.com\n"],
        ),
        (duration, &["P1D", "PT1H30M", "P3W", "P1Y2M"], &["P", "PT", "P1DW", "P1W2D", "1D"]),
        (hostname, &["example.com", "a", "x.y."], &["-a.com", "a-.com", "a..b", ""]),
        (ipv4, &["1.2.3.4", "255.0.0.1"], &["256.1.1.1", "1.2.3", "01.2.3.4"]),
        (r"^(\p{Extended_Pictographic}|\p{Emoji_Component})+$", &["😀", "1"], &["a"]),
        (r"^[A-Za-z0-9_-]*$", &["", "a-b_"], &["a+b"]),
        (r"^\+(?:[0-9]){6,14}[0-9]$", &["+4912345678"], &["4912345678", "+49"]),
        (r"^(?=.*[A-Z])(?=.*\d)(?!.*\s).{8,}$", &["Passw0rdx"], &["password", "Pass w0rd", "Pw0"]),
        // Regardless of case.
        (r"(?i)^\W+$", &["-", "ä "], &["s", "K", "\u{17f}", "\u{212a}", "_"]),
        (r"^[^\W]+$", &["az_9"], &["-", "ä"]),
        (r"^[a-\W]+$", &["a-+"], &["b"]),
        // Classes.
        (r"^[\w-.]+$", &["a-b.c", "_"], &["a b", "ä"]),
        (r"^[\w-]+$", &["a-b"], &["."]),
        (r"^[.-\w]+$", &[".-a"], &["+"]),
        (r"^[\w-\d]+$", &["a-1"], &["."]),
        (r"^[a-z-9]+$", &["b-9"], &["8"]),
        (r"^[+\-*/]$", &["-", "/", "*"], &[","]),
        (r"^[+--]$", &["+", ",", "-"], &["."]),
        (r"^[^]$", &["\n", "x", "😀"], &["", "ab"]),
        (r"^[^]*$", &["", "a\nb"], &[]),
        (r"^a[]?$", &["a"], &["a]"]),
        (r"[]", &[], &["", "a", "]"]),
        (r"^[[]$", &["["], &["]"]),
        (r"^[&&b]+$", &["&b"], &["a"]),
        (r"^[a~~b]+$", &["~a"], &["c"]),
        (r"^[\]\\]$", &["]", "\\"], &["["]),
        (r"^[\b]$", &["\u{8}"], &["b"]),
        (r"^[^\d\D]$", &[], &["1", "a"]),
        (r"^[^\W\d]+$", &["a_"], &["1", "-"]),
        (r"^[\s\S]$", &["\n", "x"], &["", "xx"]),
        (r"^[\p{L}'-]+$", &["Zoë", "O'Neil-Ü"], &["1"]),
        (r"^[\u{1F600}-\u{1F64F}]$", &["😀"], &["a"]),
        // Braces and brackets that are characters.
        (r"^{{[a-z]+}}$", &["{{name}}"], &["name", "{name}"]),
        (r"^{$", &["{"], &[""]),
        (r"^a{$", &["a{"], &["a"]),
        (r"^a{,}$", &["a{,}"], &["a"]),
        (r"^a{1$", &["a{1"], &["a"]),
        (r"^a{x}$", &["a{x}"], &["a"]),
        (r"^]}$", &["]}"], &[""]),
        (r"^a{2}$", &["aa"], &["a", "aaa"]),
        (r"^a{2,}?$", &["aa", "aaaa"], &["a"]),
        (r"^a{0,2}b$", &["b", "aab"], &["aaab"]),
        // Escapes.
        (r"^\d+$", &["0123"], &["٣", "a", "1\n"]),
        (r"^\w+$", &["aZ_9"], &["é", "\u{212a}"]),
        (r"^\s$", &["\u{feff}", "\u{a0}", "\u{2028}", "\t"], &["\u{85}", "\u{200b}"]),
        (r"^\S+$", &["\u{85}", "\u{180e}"], &["\u{3000}"]),
        (r"^.$", &["x", "\u{85}", "😀"], &["\n", "\r", "\u{2028}", "\u{2029}"]),
        (r"^a\/b\-c\:\@\!\#\%\&\'\,\;\=\~\`\ $", &["a/b-c:@!#%&',;=~` "], &["a"]),
        (r"^\x41\u0042\u{43}\u{1F600}\ud83d\ude00$", &["ABC😀😀"], &["ABC"]),
        (r"^\cA\0\t\v\f$", &["\u{1}\0\t\u{b}\u{c}"], &["A"]),
        (r"^\$\^\.\*\+\?\(\)\[\]\{\}\|\\$", &["$^.*+?()[]{}|\\"], &["$"]),
        (r"\bcat\b", &["a cat", "cat", "écat"], &["cats", "_cat", "1cat"]),
        (r"\Bcat", &["xcat"], &["cat", "a cat", "écat"]),
        (r"^\P{L}+$", &["123"], &["1a"]),
        (r"^\p{Lu}\p{Script=Greek}\p{General_Category=Nd}$", &["Aα1"], &["aα1"]),
        // Ends are ends.
        (r"^a$", &["a"], &["a\n", "\na", "a\nb"]),
        (r"a$", &["ba"], &["a\n"]),
        (r"^a|b$", &["ax", "xb"], &["xax"]),
        (r"", &["", "x"], &[]),
        (r"(|a)b", &["b", "ab"], &["a"]),
        // Groups.
        (r"^(?<year>\d{4})-(?<m$th>\d\d)$", &["2026-01"], &["2026"]),
        (r"^(?P<year>\d{4})$", &["2026"], &["26"]),
        (r"^(?:a|b)+?$", &["abab"], &["c"]),
        (r"^(?i:abc)d$", &["aBCd"], &["abcD"]),
        (r"(?i)^abc$", &["ABC"], &["abd"]),
        (r"^(?s:.)$", &["\n"], &["ab"]),
        (r"^(?!foo)(?<!bar)\w+$", &["bar"], &["foobar"]),
        (r"(?<=\$)\d+", &["$5"], &["5"]),
        (r"(?<=a+)b", &["aab"], &["b"]),
        (r"^(?=(?:a|b)c)", &["bc"], &["cc"]),
    ];
    for (pattern, fit, unfit) in table {
        let found = schema(&json!({ "properties": { "x": { "type": "string", "pattern": pattern } } }));
        let schema = found.unwrap_or_else(|error| panic!("{pattern}: {error}"));
        for text in *fit {
            assert_eq!(checked(&schema, &json!({ "x": text })), Ok(()), "{pattern} {text:?}");
        }
        for text in *unfit {
            let said = checked(&schema, &json!({ "x": text })).expect_err(&format!("{pattern} {text:?}"));
            assert!(said.contains("`/x`") && said.contains("does not match"), "{pattern}: {said}");
        }
        // For names, too, unless it looks around.
        let names = json!({ "patternProperties": { *pattern: true }, "additionalProperties": false });
        match self::schema(&names) {
            Ok(names) => {
                for text in *fit {
                    assert_eq!(checked(&names, &json!({ *text: 1 })), Ok(()), "{pattern} {text:?}");
                }
                for text in *unfit {
                    assert!(checked(&names, &json!({ *text: 1 })).is_err(), "{pattern} {text:?}");
                }
            }
            Err(error) => {
                let looks = ["(?=", "(?!", "(?<=", "(?<!", "\\b", "\\B"].iter().any(|around| pattern.contains(around));
                assert!(
                    looks && error.to_string().contains("`patternProperties` cannot be checked"),
                    "{pattern}: {error}"
                );
            }
        }
    }
}

/// What is not understood, or differs among those who write it, is left to the server, in whatever place it stands.
#[test]
fn patterns_that_are_not_understood_are_not_checked() {
    for pattern in [
        r"^(a)\1$",
        r"^(?<q>['\x22]).*\k<q>$",
        r"(?P<q>a)(?P=q)",
        r"\Aabc\Z",
        r"^abc\z",
        r"^a++$",
        r"^(?>a)$",
        r"^[[:alpha:]]+$",
        r"^[:alpha:]$",
        r"(?x) a b",
        r"(?m)^a$",
        r"^\p{IsGreek}+$",
        r"^\p{NoSuch}$",
        r"^\p{L",
        r"^[\p{L]$",
        r"(?i)^[\W_]+$",
        r"^\ud83d[\ude00-\ude4f]$",
        r"^\a\e$",
        r"^\h$",
        r"^a{,3}$",
        r"a(?i)b",
        r"^(?=a)*b$",
        r"^\u12$",
        r"^\x1$",
        r"^\07$",
    ] {
        let with = |x: Value| json!({ "type": "object", "properties": { "x": x, "n": { "type": "integer" } } });
        let places = [
            with(json!({ "type": "string", "pattern": pattern })),
            with(json!({ "type": "string", "not": { "pattern": pattern } })),
            with(json!({ "oneOf": [{ "type": "integer" }, { "type": "string", "pattern": pattern }] })),
        ];
        for place in places {
            let schema = schema(&place).unwrap_or_else(|error| panic!("{pattern}: {error}"));
            assert_eq!(checked(&schema, &json!({ "x": "abc" })), Ok(()), "{pattern}");
            // Everything else is.
            assert!(checked(&schema, &json!({ "x": "abc", "n": "1" })).is_err(), "{pattern}");
            assert!(
                checked(&schema, &json!({ "x": {}, "n": 1 })).is_err() || place["properties"]["x"]["not"].is_object(),
                "{pattern}"
            );
        }
        let names = json!({ "patternProperties": { pattern: true } });
        assert!(self::schema(&names).unwrap_err().to_string().contains("cannot be checked"), "{pattern}");
    }
}

/// As libraries write bounds, drafts and keywords of their own.
#[test]
fn numbers_drafts_and_keywords_of_others_are_taken() {
    let of = |text: &str| Schema::new(&RawValue::from_string(format!("{{\"properties\":{{\"x\":{text}}}}}")).unwrap());
    let fits = |schema: &Schema, value: &str| {
        schema.check(&RawValue::from_string(format!("{{\"x\":{value}}}")).unwrap()).map_err(|wrong| wrong.to_string())
    };
    for (text, fit, unfit) in [
        (
            r#"{"type":"integer","maximum":9223372036854775807,"minimum":-9223372036854775808}"#,
            &["9223372036854775807", "-9223372036854775808", "0"][..],
            &["9223372036854775808", "1.5"][..],
        ),
        (r#"{"type":"integer","minimum":0,"maximum":18446744073709551615}"#, &["18446744073709551615"], &["-1"]),
        (r#"{"type":"integer","exclusiveMaximum":9007199254740993}"#, &["9007199254740992"], &["9007199254740993"]),
        (r#"{"type":"number","maximum":1.7976931348623157E+308,"minimum":-1.7976931348623157E+308}"#, &["1e308"], &[]),
        (r#"{"type":"number","maximum":1e400,"minimum":-1e400}"#, &["1e308", "-5"], &["\"1\""]),
        (r#"{"type":"number","minimum":1e400}"#, &[], &["1e308"]),
        (r#"{"type":"number","maximum":100.00000000000000001}"#, &["100"], &["100.1"]),
        (r#"{"const":18446744073709551615}"#, &["18446744073709551615"], &["18446744073709551614"]),
        (
            r#"{"type":"string","format":"date-time","x-order":1,"nullable":true,"example":"a","deprecated":true}"#,
            &["\"now\""],
            &["null"],
        ),
        (r#"{"anyOf":[{"type":"string"},{"type":"null"}],"default":null,"title":"X"}"#, &["\"a\"", "null"], &["1"]),
        (r#"{"type":["string","null"],"enum":["a",null]}"#, &["null", "\"a\""], &["\"b\""]),
        (
            r#"{"type":"object","additionalProperties":{"type":"string"},"propertyNames":{"pattern":"^[\\w-.]+$"}}"#,
            &[r#"{"a-b":"c"}"#],
            &[r#"{"a b":"c"}"#, r#"{"a":1}"#],
        ),
    ] {
        let schema = of(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        for value in fit {
            assert_eq!(fits(&schema, value), Ok(()), "{text} {value}");
        }
        for value in unfit {
            assert!(fits(&schema, value).is_err(), "{text} {value}");
        }
        // Numbers that cannot be held are not taken for others, and no parser's positions are told.
        let beyond = fits(&schema, "1e400").unwrap_err();
        assert_eq!(beyond, "it has a number that is too large", "{text}");
    }
    let seventh = r##"{"$schema":"http://json-schema.org/draft-07/schema#","properties":{"x":{"type":"array","items":[{"type":"integer"}],"additionalItems":false}}}"##;
    let seventh = Schema::new(&RawValue::from_string(seventh.to_owned()).unwrap()).unwrap();
    assert!(fits(&seventh, "[1]").is_ok() && fits(&seventh, "[1,2]").is_err());
    let fourth = r##"{"$schema":"http://json-schema.org/draft-04/schema#","id":"x","properties":{"x":{"type":"number","maximum":5,"exclusiveMaximum":true}}}"##;
    let fourth = Schema::new(&RawValue::from_string(fourth.to_owned()).unwrap()).unwrap();
    assert!(fits(&fourth, "4").is_ok() && fits(&fourth, "5").is_err());
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
