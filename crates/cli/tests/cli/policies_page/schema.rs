//! The part of JSON Schema that the schemas of policy files use.
//! Never ignores a keyword that it does not know.

use std::io::Write as _;
use std::process::{Command, Stdio};

use serde_json::{Map, Value};

use sealwire_testkit::policies::load;

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
            "pattern" => value.as_str().is_none_or(|text| matches(wanted.as_str().unwrap(), text)),
            "properties" | "additionalProperties" => true,
            "$ref" => {
                let target = root.pointer(wanted.as_str().unwrap().strip_prefix('#').unwrap());
                check(root, target.expect("what a `$ref` points to"), value, at, found);
                true
            }
            "type" => kinds(wanted).iter().any(|kind| is(kind, value)),
            "enum" => wanted.as_array().unwrap().contains(value),
            "minimum" => value.as_i64().is_none_or(|value| value >= wanted.as_i64().unwrap()),
            "maximum" => value.as_i64().is_none_or(|value| value <= wanted.as_i64().unwrap()),
            "minItems" => value.as_array().is_none_or(|list| list.len() as u64 >= wanted.as_u64().unwrap()),
            "maxItems" => value.as_array().is_none_or(|list| list.len() as u64 <= wanted.as_u64().unwrap()),
            "minProperties" => value.as_object().is_none_or(|members| members.len() as u64 >= wanted.as_u64().unwrap()),
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
            (Some(Value::Bool(false)), _) => found.push(format!("{at}: not here")),
            (Some(schema), _) => check(root, schema, value, &at, found),
            (None, Some(Value::Bool(false))) => found.push(format!("{at}: unknown")),
            (None, Some(schema)) if schema.is_object() => check(root, schema, value, &at, found),
            (None, _) => {}
        }
    }
}

/// JSON Schema uses JavaScript's regular expressions; ours mean the same to `grep -E`.
fn matches(pattern: &str, text: &str) -> bool {
    let mut grep = Command::new("grep").args(["-Eqe", pattern]).stdin(Stdio::piped()).spawn().unwrap();
    writeln!(grep.stdin.take().unwrap(), "{text}").unwrap();
    grep.wait().unwrap().success()
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
        "number" => value.is_number(),
        other => panic!("a type that this test does not know: {other}"),
    }
}

/// An editor underlines what does not load, as far as a schema can tell.
#[test]
fn the_schema_and_the_loader_agree() {
    let schema = sealwire::internal::policy::json_schema();
    let head = "[method.m]\nparams = [{ name = \"s\", type = \"string\" }, { name = \"n\", type = \"number\" }, { name = \"o\", type = \"object\", fields = [{ name = \"min\", type = \"string\" }] }]\n[claims]\nc = \"integer\"\n[role.r]\n";
    let rule = |lines: &str| format!("{head}[rule.x]\n{lines}\n");
    let when = |condition: &str| rule(&format!("everyone = true\nallow = [\"m\"]\n{condition}"));
    let agree = |text: &str, good: bool| {
        let found = faults(&schema, &toml::from_str(text).unwrap());
        let loaded = load(&[("a.toml", text)]);
        assert_eq!((found.is_empty(), loaded.is_ok()), (good, good), "{text}\n{found:?}\n{:?}", loaded.err());
    };
    for condition in [
        "when.days = [\"mon - fri\", \" sat\"]",
        "when.hours = \" 08:00 - 18:00 \"",
        "when.algorithm = { in = [\"EdDSA\"] }",
        "when.agent = { glob = \"a*\" }",
        "when.params.o = { min = \"a\" }",
        "when.params.o.min = { glob = \"a*\" }",
        "when.claims.c = { min = 5 }",
        "when.params.n = { min = 0.5, max = 7 }",
        "delegated = \"only\"\nwhen.subject = { present = true }",
    ] {
        agree(&when(condition), true);
    }
    for condition in [
        "when.days = []",
        "when.days = [\"monday\"]",
        "when.hours = \"8-18\"",
        "when.algorithm = \"RS256\"",
        "when.algorithm = { not = \"RS256\" }",
        "when.claims.c = { minn = 5 }",
        "when.agent = { globb = \"a*\" }",
        "when.agent = { min = 5 }",
        "when.agent = { present = true }",
        "when.claims = {}",
        "when.params.s = {}",
        "when.token_age = {}",
        "unless = {}",
    ] {
        agree(&when(condition), false);
    }
    for (lines, good) in [
        ("roles = [\"r\"]\nallow = [\"m\"]\ndeny = []\neveryone = false", true),
        ("agents = [\"a*\"]\nroles = []\ndeny = [\"m\"]", true),
        ("subjects = [\"a@*\"]\nallow = [\"m\"]\ndelegated = \"also\"", true),
        ("subjects = []\nallow = [\"m\"]\ndelegated = \"also\"", false),
        ("everyone = true\nsubjects = [\"a\"]\nallow = [\"m\"]", false),
        ("everyone = true\nallow = [\"m\"]\ndeny = [\"m\"]", false),
        ("everyone = true", false),
        ("everyone = true\nroles = [\"r\"]\nallow = [\"m\"]", false),
        ("everyone = false\nallow = [\"m\"]", false),
        ("roles = []\nallow = [\"m\"]", false),
        ("allow = [\"m\"]", false),
    ] {
        agree(&rule(lines), good);
    }
    for param in ["type = \"object\"", "type = \"string\", fields = []"] {
        agree(&format!("[method.m]\nparams = [{{ name = \"a\", {param} }}]\n"), false);
    }
}
