//! What is compiled when, and what is kept of it.
#![allow(clippy::unwrap_used, reason = "tests")]

use serde_json::json;
use serde_json::value::{RawValue, to_raw_value};

use super::Schema;

fn raw(value: &serde_json::Value) -> Box<RawValue> {
    to_raw_value(value).unwrap()
}

fn read(schema: &serde_json::Value) -> Schema {
    Schema::read(&raw(schema)).unwrap()
}

#[test]
fn a_schema_is_compiled_when_a_value_is_checked() {
    let schema = read(&json!({ "type": "object" }));
    assert!(schema.known().is_none());
    schema.try_out().unwrap();
    assert!(schema.known().is_none(), "nothing is kept of a trial");
    schema.check(&raw(&json!({}))).unwrap();
    assert!(schema.known().is_some_and(|known| known.is_ok()));
    // What is seen only then.
    let wrong = read(&json!({ "pattern": "(?=a)b" }));
    assert!(wrong.try_out().is_err());
    assert!(wrong.check(&raw(&json!({}))).is_err());
    assert!(wrong.known().is_some_and(|known| known.is_err()));
}

#[test]
fn what_is_compiled_is_bounded_for_all_schemas_together() {
    // Each takes a megabyte or more.
    let schemas: Vec<Schema> =
        (0..200).map(|n| read(&json!({ "const": n, "description": "x".repeat(64_000) }))).collect();
    for (n, schema) in schemas.iter().enumerate() {
        schema.check(&raw(&json!(n))).unwrap();
    }
    let kept = schemas.iter().filter(|schema| schema.known().is_some()).count();
    assert!((10..=130).contains(&kept), "{kept}");
    let (first, last) = (schemas.first().unwrap(), schemas.last().unwrap());
    assert!(first.known().is_none() && last.known().is_some());
    // It is compiled again.
    first.check(&raw(&json!(0))).unwrap();
    assert!(first.check(&raw(&json!(1))).is_err());
    assert!(first.known().is_some());
}
