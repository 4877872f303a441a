//! The plain bounds that rules put on single parameters, as keywords of JSON Schema.
//! Never excludes a value that a decision would allow: where a rule is not plain, nothing is narrowed.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::policy::cedar::expr;
use crate::policy::language::{Constraint, understood};
use crate::policy::model::{Decimal, Rule, is_same_number};

/// What a rule requires of single parameters, by their names.
pub(super) type Bounds = BTreeMap<String, Vec<Constraint>>;

pub(super) fn bounds(rule: &Rule) -> Bounds {
    let mut bounds = Bounds::new();
    let parts = rule.conditions.iter().flat_map(|condition| expr::conjuncts(&condition.expr));
    for (path, constraint) in parts.filter_map(|part| understood(&part, true)) {
        let Some(path) = path.strip_prefix("context.params.") else { continue };
        let (name, constraint) = match (path.split_once('.'), constraint) {
            (None, constraint) => (path, constraint),
            // Lists are represented by a set and a size.
            (Some((name, "size")), Constraint::Min(bound)) => (name, Constraint::MinSize(bound)),
            (Some((name, "size")), Constraint::Max(bound)) => (name, Constraint::MaxSize(bound)),
            _ => continue,
        };
        // Anything else is not a plain name.
        if !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
            bounds.entry(name.to_owned()).or_default().push(constraint);
        }
    }
    bounds
}

/// What several rules, any of which may apply, leave of each parameter.
pub(super) fn union(rules: &[&Bounds]) -> Vec<(String, Map<String, Value>)> {
    let Some((first, others)) = rules.split_first() else { return Vec::new() };
    let named = first.keys().filter(|name| others.iter().all(|rule| rule.contains_key(*name)));
    named
        .filter_map(|name| {
            let mut ways: Vec<Map<String, Value>> = Vec::new();
            for way in rules.iter().filter_map(|rule| rule.get(name)).map(|constraints| keywords(constraints)) {
                if !ways.contains(&way) {
                    ways.push(way);
                }
            }
            Some((name.clone(), either(ways)?))
        })
        .collect()
}

/// Admits what fits one of these, and perhaps more; `None` for anything.
fn either(mut ways: Vec<Map<String, Value>>) -> Option<Map<String, Value>> {
    if ways.iter().any(Map::is_empty) || ways.len() > MOST_WAYS {
        return None;
    }
    if ways.len() < 2 {
        return ways.pop();
    }
    let only = |keys: &[&str]| ways.iter().all(|way| way.keys().all(|key| keys.contains(&key.as_str())));
    if only(&["enum"]) {
        let mut values: Vec<Value> = Vec::new();
        for value in ways.iter().filter_map(|way| way.get("enum")?.as_array()).flatten() {
            if !values.contains(value) {
                values.push(value.clone());
            }
        }
        return (values.len() <= MOST_VALUES).then(|| Map::from_iter([("enum".to_owned(), values.into())]));
    }
    if only(&["minimum", "maximum"]) {
        let bound = |key: &str| ways.iter().map(|way| way.get(key)?.as_i64()).collect::<Option<Vec<_>>>();
        let (least, most) = (bound("minimum"), bound("maximum"));
        let least = least.and_then(|bounds| bounds.into_iter().min()).map(|least| ("minimum".to_owned(), least.into()));
        let most = most.and_then(|bounds| bounds.into_iter().max()).map(|most| ("maximum".to_owned(), most.into()));
        let hull: Map<String, Value> = least.into_iter().chain(most).collect();
        return (!hull.is_empty()).then_some(hull);
    }
    Some(Map::from_iter([("anyOf".to_owned(), ways.into_iter().map(Value::Object).collect())]))
}

/// The keywords of all of them at once. What JSON Schema cannot say is left out.
fn keywords(constraints: &[Constraint]) -> Map<String, Value> {
    let mut all = Map::new();
    for constraint in constraints {
        let (keyword, argument) = match constraint {
            Constraint::Is(literal) => ("enum", json!([literal])),
            Constraint::In(literals) if literals.len() <= MOST_VALUES => ("enum", json!(literals)),
            Constraint::Not(literal) => ("not", json!({ "enum": [literal] })),
            Constraint::NotIn(literals) if literals.len() <= MOST_VALUES => ("not", json!({ "enum": literals })),
            Constraint::Min(bound) => ("minimum", (*bound).into()),
            Constraint::Max(bound) => ("maximum", (*bound).into()),
            Constraint::AtLeast(bound) if let Some(bound) = number(bound) => ("minimum", bound),
            Constraint::AtMost(bound) if let Some(bound) = number(bound) => ("maximum", bound),
            Constraint::Glob(glob) => ("pattern", pattern(glob).into()),
            Constraint::NotGlob(glob) => ("not", json!({ "pattern": pattern(glob) })),
            Constraint::MinSize(bound) => ("minItems", (*bound).max(0).into()),
            Constraint::MaxSize(bound) => ("maxItems", (*bound).max(0).into()),
            _ => continue,
        };
        narrow(&mut all, keyword, argument);
    }
    all
}

/// Adds a keyword to those of a schema, so that both the old ones and this one hold.
pub(crate) fn narrow(schema: &mut Map<String, Value>, keyword: &str, argument: Value) {
    match schema.get(keyword) {
        None => drop(schema.insert(keyword.to_owned(), argument)),
        Some(known) if *known == argument => {}
        Some(_) => {
            let also = json!({ keyword: argument });
            match schema.get_mut("allOf").and_then(Value::as_array_mut) {
                Some(all) => all.push(also),
                None => drop(schema.insert("allOf".to_owned(), json!([also]))),
            }
        }
    }
}

/// A bound as JSON, if it is the same number there.
fn number(bound: &Decimal) -> Option<Value> {
    let text = bound.to_string();
    let number: serde_json::Number = serde_json::from_str(&text).ok()?;
    is_same_number(&number.to_string(), &text).then(|| number.into())
}

/// A glob as an ECMA 262 regular expression, which JSON Schema uses.
fn pattern(glob: &str) -> String {
    let mut pattern = "^".to_owned();
    for character in glob.chars() {
        match character {
            '*' => pattern.push_str(r"[\s\S]*"),
            '^' | '$' | '\\' | '.' | '+' | '?' | '(' | ')' | '[' | ']' | '{' | '}' | '|' | '/' => {
                pattern.extend(['\\', character]);
            }
            character => pattern.push(character),
        }
    }
    pattern.push('$');
    pattern
}

/// More alternatives or values than anybody reads are no help to the author of a call.
const MOST_WAYS: usize = 16;
const MOST_VALUES: usize = 256;
