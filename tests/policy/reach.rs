//! What a caller is told in advance: whether it may call a method at all, and with which parameter values.

use std::collections::BTreeMap;

use sealwire::decide::{Methods, Param, Reach};
use sealwire::{Caller, Name, PolicySet};
use serde_json::{Map, Value, json};

/// Whether these parameters are within what the caller was told. Evaluates the few keywords of JSON Schema that are used.
pub(super) fn fits(reach: &Reach, params: &Value, declared: &[Param]) -> bool {
    let value = |name: &str| match params {
        Value::Array(values) => values.get(declared.iter().position(|param| param.name() == name)?),
        params => params.get(name),
    };
    reach.params().all(|(name, keywords)| value(name).is_none_or(|value| holds(keywords, value)))
}

fn holds(keywords: &Map<String, Value>, value: &Value) -> bool {
    let object = |schema: &Value| holds(schema.as_object().unwrap(), value);
    keywords.iter().all(|(keyword, argument)| match keyword.as_str() {
        "enum" => argument.as_array().unwrap().contains(value),
        "minimum" => value.as_f64().is_none_or(|value| value >= argument.as_f64().unwrap()),
        "maximum" => value.as_f64().is_none_or(|value| value <= argument.as_f64().unwrap()),
        "minItems" => value.as_array().is_none_or(|items| items.len() as u64 >= argument.as_u64().unwrap()),
        "maxItems" => value.as_array().is_none_or(|items| items.len() as u64 <= argument.as_u64().unwrap()),
        "pattern" => value.as_str().is_none_or(|text| matches(&glob(argument.as_str().unwrap()), text)),
        "not" => !object(argument),
        "anyOf" => argument.as_array().unwrap().iter().any(object),
        "allOf" => argument.as_array().unwrap().iter().all(object),
        other => panic!("`{other}` is new here"),
    })
}

/// The characters of the glob from which a pattern was made; `None` stands for any text.
fn glob(pattern: &str) -> Vec<Option<char>> {
    let inner = pattern.strip_prefix('^').unwrap().strip_suffix('$').unwrap().replace(r"[\s\S]*", "\0");
    let mut escaped = false;
    let read = inner.chars().filter_map(|character| match character {
        '\0' => Some(None),
        '\\' if !std::mem::replace(&mut escaped, true) => None,
        character => {
            escaped = false;
            Some(Some(character))
        }
    });
    read.collect()
}

fn matches(glob: &[Option<char>], text: &str) -> bool {
    match glob.split_first() {
        None => text.is_empty(),
        Some((None, rest)) => {
            text.char_indices().map(|(at, _)| at).chain([text.len()]).any(|at| matches(rest, &text[at..]))
        }
        Some((Some(wanted), rest)) => text.strip_prefix(*wanted).is_some_and(|text| matches(rest, text)),
    }
}

const METHODS: &str = "[method.\"bank/pay\"]\nparams = [{ name = \"to\", type = \"string\" }, \
                       { name = \"amount\", type = \"integer\" }, { name = \"tags\", type = \"string[]\", optional = true }]\n\
                       [method.\"bank/close\"]\n";

fn set(rules: &str) -> PolicySet {
    let text = format!("{METHODS}{rules}");
    PolicySet::from_texts([("p.toml", text.as_str())], &Methods::from_files())
        .unwrap_or_else(|errors| panic!("{errors}"))
        .0
}

fn caller(roles: &[&str]) -> Caller {
    Caller::new(Name::new("ann").unwrap(), roles.iter().map(ToString::to_string).collect::<Vec<_>>())
}

fn told(set: &PolicySet, roles: &[&str]) -> Option<BTreeMap<String, Value>> {
    let reach = set.reach(&caller(roles), "bank/pay", 1_790_000_000_000)?;
    Some(reach.params().map(|(name, keywords)| (name.to_owned(), keywords.clone().into())).collect())
}

#[track_caller]
fn tells(set: &PolicySet, roles: &[&str], expected: Value) {
    assert_eq!(serde_json::to_value(told(set, roles)).unwrap(), expected, "{roles:?}");
}

#[test]
fn plain_bounds_are_told_and_nothing_else() {
    let rule = |when: &str| set(&format!("[role.r]\n[rule.x]\nroles = [\"r\"]\nallow = [\"bank/pay\"]\n{when}\n"));
    for (when, expected) in [
        ("when.params.amount = { max = 100 }", json!({ "amount": { "maximum": 100 } })),
        ("when.params.amount = { min = 1, max = 100 }", json!({ "amount": { "minimum": 1, "maximum": 100 } })),
        ("when.params.amount = 7", json!({ "amount": { "enum": [7] } })),
        ("when.params.to = { in = [\"a\", \"b\"] }", json!({ "to": { "enum": ["a", "b"] } })),
        ("when.params.to = { not = \"a\" }", json!({ "to": { "not": { "enum": ["a"] } } })),
        ("when.params.to = { glob = \"a.b/*\" }", json!({ "to": { "pattern": r"^a\.b\/[\s\S]*$" } })),
        ("when.params.tags = { max_size = 2 }", json!({ "tags": { "maxItems": 2 } })),
        // Comparisons with values that the rule does not contain are not told; exceptions under `unless` are.
        ("when.params.to = { same_as = \"agent\" }", json!({})),
        ("unless.params.amount = { min = 101 }", json!({ "amount": { "maximum": 100 } })),
    ] {
        tells(&rule(when), &["r"], expected);
        tells(&rule(when), &[], Value::Null);
    }
}

#[test]
fn several_rules_leave_what_any_of_them_leaves() {
    let rules = |one: &str, other: &str| {
        set(&format!(
            "[role.one]\n[role.other]\n[rule.x]\nroles = [\"one\"]\nallow = [\"bank/pay\"]\n{one}\n\
             [rule.y]\nroles = [\"other\"]\nallow = [\"bank/pay\"]\n{other}\n"
        ))
    };
    let both = ["one", "other"];
    let amounts = rules("when.params.amount = { max = 5 }", "when.params.amount = { max = 50 }");
    tells(&amounts, &["one"], json!({ "amount": { "maximum": 5 } }));
    tells(&amounts, &both, json!({ "amount": { "maximum": 50 } }));
    let names = rules("when.params.to = \"a\"", "when.params.to = { in = [\"a\", \"b\"] }");
    tells(&names, &both, json!({ "to": { "enum": ["a", "b"] } }));
    let mixed = rules("when.params.to = \"a\"", "when.params.to = { glob = \"b*\" }");
    tells(&mixed, &both, json!({ "to": { "anyOf": [{ "enum": ["a"] }, { "pattern": r"^b[\s\S]*$" }] } }));
    let one_is_free = rules("when.params.to = \"a\"", "when.params.amount = { max = 5 }");
    tells(&one_is_free, &both, json!({}));
    let open = rules("when.params.to = \"a\"", "");
    tells(&open, &both, json!({}));
}

#[test]
fn what_is_never_allowed_is_not_reached() {
    let closed =
        set("[role.r]\nallow = [\"bank/*\"]\n[role.out]\ndeny = [\"bank/*\"]\n[rule.night]\neveryone = true\n\
         deny = [\"bank/close\"]\nwhen.token_age = \"1s\"\n[rule.large]\neveryone = true\ndeny = [\"bank/pay\"]\n\
         when.params.amount = { min = 10 }\n");
    tells(&closed, &["r"], json!({}));
    tells(&closed, &["r", "out"], Value::Null);
    tells(&closed, &[], Value::Null);
    assert!(closed.reach(&caller(&["r"]), "bank/none", 0).is_none());
    assert!(PolicySet::deny_all("test".to_owned()).reach(&caller(&["r"]), "bank/pay", 0).is_none());
}

#[test]
fn a_call_for_somebody_needs_both() {
    let policy = set(
        "[rule.ann]\nagents = [\"ann\"]\nallow = [\"bank/pay\"]\ndelegated = \"also\"\nwhen.params.amount = { max = 50 }\n\
         [rule.bob]\nsubjects = [\"bob\"]\nallow = [\"bank/pay\"]\ndelegated = \"also\"\nwhen.params.amount = { max = 5 }\n",
    );
    let mut ann = caller(&[]);
    let bounds = |caller: &Caller| {
        let reach = policy.reach(caller, "bank/pay", 0);
        reach.map(|reach| reach.params().map(|(_, keywords)| keywords["maximum"].as_i64().unwrap()).collect::<Vec<_>>())
    };
    assert_eq!(bounds(&ann), Some(vec![50]));
    (ann.delegated, ann.subject) = (true, "bob".to_owned());
    assert_eq!(bounds(&ann), Some(vec![50, 5]), "both hold");
    ann.subject = "carol".to_owned();
    assert_eq!(bounds(&ann), None);
}
