//! Every comparison on every pair of declared types: what loads decides by the equality of JSON values, and what the policy
//! engine cannot compare does not load.

use sealwire::decide::Methods;
use sealwire::{Caller, Name, PolicySet, Question};
use serde_json::value::RawValue;
use serde_json::{Value, json};

/// A type as files declare it, with three different values of it.
fn types() -> Vec<(&'static str, [Value; 3])> {
    vec![
        (r#"type = "string""#, [json!("a"), json!("b"), json!("")]),
        (r#"type = "integer""#, [json!(1), json!(2), json!(0)]),
        (r#"type = "boolean""#, [json!(true), json!(false), json!(true)]),
        (r#"type = "number""#, [json!(1.5), json!(2), json!(0.1)]),
        (r#"type = "any""#, [json!("alice"), json!({"a": 1}), json!([])]),
        (r#"type = "string[]""#, [json!(["a", "a", "b"]), json!(["a", "b", "b"]), json!(["b", "a", "a"])]),
        (r#"type = "integer[]""#, [json!([1, 1, 2]), json!([1, 2, 2]), json!([])]),
        (r#"type = "boolean[]""#, [json!([true]), json!([false]), json!([true, true])]),
        (
            r#"type = "object", fields = [{ name = "a", type = "integer" }]"#,
            [json!({"a": 1}), json!({"a": 2}), json!({"a": 3})],
        ),
        (
            r#"type = "object", fields = [{ name = "a", type = "number" }]"#,
            [json!({"a": 1.5}), json!({"a": 2.5}), json!({"a": 3})],
        ),
    ]
}

/// Whether rules may compare values of this type as a whole.
fn comparable(declaration: &str) -> bool {
    ["\"string\"", "\"integer\"", "\"boolean\""].iter().any(|kind| declaration.ends_with(kind))
}

/// The declared type as claims and attributes have it; these cannot be objects.
fn plain(declaration: &str) -> Option<&str> {
    declaration.strip_prefix("type = ").filter(|kind| !kind.contains("object"))
}

fn load(files: &[(&str, &str)]) -> Result<PolicySet, Vec<String>> {
    match PolicySet::from_texts(files.iter().copied(), &Methods::from_files()) {
        Ok((set, _)) => Ok(set),
        Err(errors) => Err(errors.findings().iter().map(ToString::to_string).collect()),
    }
}

fn allows(set: &PolicySet, params: &Value, claim: Option<&Value>) -> bool {
    let mut caller = Caller::new(Name::new("planner").unwrap(), []);
    if let Some(claim) = claim {
        caller.token.claims.insert("c".to_owned(), claim.clone());
    }
    let raw = RawValue::from_string(params.to_string()).unwrap();
    set.decide(&Question { caller: &caller, method: "m", params: Some(&raw), now_ms: 1_790_000_000_000 }).is_allow()
}

/// A condition with a value on each side, and whether it holds for those two values.
type Condition<'a> = (&'a str, fn(&Value, &Value) -> bool);

/// Where the right side comes from.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Right {
    Param,
    Claim,
    Attribute,
}

/// As `when` of an allow rule, and as `unless` of a deny rule beside a rule that allows everything.
fn both_ways(when: &str, deny: &str) -> [String; 2] {
    [
        format!("[rule.r]\neveryone = true\nallow = [\"m\"]\n{when}\n"),
        format!("[rule.all]\neveryone = true\nallow = [\"m\"]\n[rule.r]\neveryone = true\ndeny = [\"m\"]\n{deny}\n"),
    ]
}

#[test]
fn same_as_compares_equal_types_that_rules_can_compare_and_nothing_else() {
    let mut loaded = 0;
    for (left, left_values) in types() {
        for (right, right_values) in types() {
            for side in [Right::Param, Right::Claim, Right::Attribute] {
                let kind = plain(right);
                if kind.is_none() && side != Right::Param {
                    continue;
                }
                let (name, declared, attribute) = match side {
                    Right::Param => (
                        "params.r",
                        format!("params = [{{ name = \"l\", {left} }}, {{ name = \"r\", {right} }}]"),
                        None,
                    ),
                    Right::Claim => (
                        "claims.c",
                        format!("params = [{{ name = \"l\", {left} }}]\n[claims]\nc = {}", kind.unwrap()),
                        None,
                    ),
                    Right::Attribute => {
                        let text =
                            format!("params = [{{ name = \"l\", {left} }}]\n[attributes]\nc = {}", kind.unwrap());
                        ("attributes.c", text, Some(right_values[0].to_string()))
                    }
                };
                // A value of the type `any` that is an object or null cannot be written in TOML.
                let attribute = attribute.map(|value| format!("[agent.\"planner\"]\nattributes.c = {value}\n"));
                let base = format!("[method.m]\n{declared}\n{}", attribute.unwrap_or_default());
                let same = format!("params.l = {{ same_as = \"{name}\" }}");
                for text in both_ways(&format!("when.{same}"), &format!("unless.{same}")) {
                    let text = format!("{base}{text}");
                    let outcome = load(&[("p.toml", &text)]);
                    let should_load = left == right && comparable(left);
                    assert_eq!(outcome.is_ok(), should_load, "{text}\n{outcome:?}");
                    let set = match outcome {
                        Ok(set) => set,
                        Err(errors) => {
                            let about_type = |line: &String| {
                                line.contains("cannot compare")
                                    || line.contains("of which rules ask only")
                                    || line.contains("cannot be compared")
                                    || line.contains("is a list")
                                    || line.contains("`l` has no member `same_as`")
                            };
                            assert!(errors.iter().any(about_type), "{text}\n{errors:#?}");
                            continue;
                        }
                    };
                    loaded += 1;
                    for l in &left_values {
                        for r in &right_values {
                            let (params, claim, r) = match side {
                                Right::Param => (json!({"l": l, "r": r}), None, r),
                                Right::Claim => (json!({ "l": l }), Some(r), r),
                                Right::Attribute => (json!({ "l": l }), None, &right_values[0]),
                            };
                            assert_eq!(allows(&set, &params, claim), l == r, "{text}\n{l} {r}");
                        }
                    }
                }
            }
        }
    }
    assert_eq!(loaded, 3 * 3 * 2, "three types, three places, two rules");
}

/// Cedar comparisons in which `L` and `R` stand for the two sides.
const CEDAR: &[Condition<'static>] = &[
    ("L == R", |l, r| l == r),
    ("R == L", |l, r| l == r),
    ("L != R", |l, r| l != r),
    ("!(L == R)", |l, r| l != r),
    ("[L].contains(R)", |l, r| l == r),
    ("[R, R].containsAll([L])", |l, r| l == r),
    ("[L].containsAny([R])", |l, r| l == r),
    ("{a: L} == {a: R}", |l, r| l == r),
    ("{a: L}.a == R", |l, r| l == r),
    ("(if context.delegated then R else L) == R", |l, r| l == r),
    ("if context.delegated then false else L == R", |l, r| l == r),
    ("[[L]].contains([R])", |l, r| l == r),
    // For booleans only.
    ("L", |l, _| l == &json!(true)),
    ("L || R", |l, r| l == &json!(true) || r == &json!(true)),
    ("if L then R else !R", |l, r| l == r),
    // For integers only.
    ("L <= R", |l, r| l.as_i64() <= r.as_i64()),
    ("L.size == R.size", |l, r| l.as_array().map(Vec::len) == r.as_array().map(Vec::len)),
    ("L.items == R.items", |l, r| set(l) == set(r)),
    ("L.items.containsAll(R.items)", |l, r| set(r).iter().all(|item| set(l).contains(item))),
    ("L.a == R.a", |l, r| l["a"] == r["a"]),
];

fn set(list: &Value) -> Vec<String> {
    let mut items: Vec<String> = list.as_array().unwrap().iter().map(ToString::to_string).collect();
    items.sort();
    items.dedup();
    items
}

#[test]
fn what_cedar_compares_it_compares_as_json_is_equal() {
    let mut loaded = std::collections::BTreeMap::new();
    for (left, left_values) in types() {
        for (right, right_values) in types() {
            let base = format!("[method.m]\nparams = [{{ name = \"l\", {left} }}, {{ name = \"r\", {right} }}]\n");
            for (condition, holds) in CEDAR {
                let text = condition.replace('L', "context.params.l").replace('R', "context.params.r");
                for (rule, sense) in [
                    (format!("permit(principal, action, resource) when {{ {text} }};"), true),
                    (format!("permit(principal, action, resource) unless {{ {text} }};"), false),
                ] {
                    let Ok(set) = load(&[("base.toml", &base), ("c.cedar", &rule)]) else { continue };
                    *loaded.entry(*condition).or_insert(0) += 1;
                    for l in &left_values {
                        for r in &right_values {
                            let found = allows(&set, &json!({"l": l, "r": r}), None);
                            assert_eq!(found == sense, holds(l, r), "{left} {right}\n{rule}\n{l} {r}");
                        }
                    }
                }
            }
        }
    }
    for (condition, _) in CEDAR {
        assert!(loaded.get(condition).is_some_and(|count| *count >= 2), "never loads: {condition}");
    }
    // Strings, integers, booleans and an object with an integer.
    assert_eq!(loaded["L == R"], 8);
}

#[test]
fn what_cedar_cannot_compare_is_refused_with_the_type_as_the_reason() {
    let base = r#"[method.m]
params = [{ name = "n", type = "number" }, { name = "k", type = "number" }, { name = "x", type = "any" }, { name = "l", type = "integer[]" }, { name = "o", type = "object", fields = [{ name = "n", type = "number" }] }]
[claims]
n = "number"
l = "string[]"
[attributes]
x = "any"
"#;
    for (condition, says) in [
        (
            "context.params.n == context.params.k",
            "`context.params.n` is of type number, which rules cannot compare; declare it an integer in a smaller unit (cents, millimetres)",
        ),
        ("context.params.n", "`context.params.n` is of type number"),
        (
            "context.params.x == context.params.x",
            "`context.params.x` is of type any, which rules cannot compare; declare its type",
        ),
        (
            "context.params.l == context.params.l",
            "`context.params.l` is of type integer[], which rules cannot compare; in Cedar, compare `.items`, which is a set, and `.size`",
        ),
        (
            "context.params.o == context.params.o",
            "`context.params.o` cannot be compared, since its `n` is of type number",
        ),
        ("context.params.o.n == context.params.n", "`context.params.o.n` is of type number"),
        ("context.params == context.params", "`context.params` cannot be compared, since its `n` is of type number"),
        ("context == context", "`context` cannot be compared, since its `params.n` is of type number"),
        (
            "(if context.delegated then context.params else context.params).n == context.params.k",
            "`context.params` cannot be compared",
        ),
        ("context.claims has n && context.claims.n == context.params.n", "`context.claims.n` is of type number"),
        ("context.claims == context.claims", "`context.claims` cannot be compared, since its `l` is of type string[]"),
        ("principal has x && principal.x == context.params.x", "`principal.x` is of type any"),
    ] {
        for rule in [
            format!("permit(principal, action, resource) when {{ {condition} }};"),
            format!("forbid(principal, action, resource) unless {{ {condition} }};"),
            format!("@mode(\"shadow\") forbid(principal, action, resource) when {{ {condition} }};"),
        ] {
            let errors = load(&[("base.toml", base), ("c.cedar", &rule)]).expect_err(&rule);
            let said = errors.iter().any(|line| line.starts_with("c.cedar:1: error: ") && line.contains(says));
            assert!(said, "{rule}\n{errors:#?}");
        }
    }
    // Whether it is present may be asked.
    let asked = "permit(principal, action, resource) when { context.claims has n && !(principal has x) };";
    assert!(load(&[("base.toml", base), ("c.cedar", asked)]).is_ok());
}
