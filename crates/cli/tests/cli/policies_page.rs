//! docs/policies.md, carried out: writes its files, runs its commands, and compares their output with the page.
//! `UPDATE_DOCS=1 cargo test --test cli policies_page::` writes their output into the page, for review with `git diff`.

mod page;
mod schema;

use std::collections::BTreeSet;
use std::fmt::Write as _;

use page::{Desk, Piece, pieces};
use sealwire::configure::ProofAlgorithm;
use sealwire::{PolicySet, Question};
use sealwire_testkit::page::{code, table};
use sealwire_testkit::policies::*;
use serde_json::value::RawValue;
use serde_json::{Value, json};

#[test]
fn every_file_and_command_of_the_page_does_what_the_page_shows() {
    let mut desk = Desk::new();
    let mut printed = String::new();
    let mut commands = 0;
    for piece in pieces() {
        match piece {
            Piece::Prose(line) => writeln!(printed, "{line}").unwrap(),
            Piece::Folder(name) => {
                desk.enter(&name);
                writeln!(printed, "<!-- folder: {name} -->").unwrap();
            }
            Piece::File { language, path, text } => {
                desk.write(&path, &text);
                write!(printed, "```{language} {path}\n{text}```\n").unwrap();
            }
            Piece::Console(typed) => {
                printed.push_str("```console\n");
                for (position, one) in typed.iter().enumerate() {
                    let (output, code) = desk.run(&one.command);
                    write!(printed, "$ {}\n{output}", one.command).unwrap();
                    // A terminal does not show how a command ended: the page says it once for `explain`, and asks
                    // for it wherever else a command does not end well.
                    if one.command.starts_with("sealwire policy explain") {
                        assert_eq!(code, if output.starts_with("allow: ") { 0 } else { 10 }, "{output}");
                    } else if typed.get(position + 1).is_none_or(|next| next.command != "echo $?") {
                        assert_eq!(code, 0, "{}\n{output}", one.command);
                    }
                    commands += 1;
                }
                printed.push_str("```\n");
            }
        }
    }
    assert!(commands >= 15, "{commands}");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(sealwire_testkit::root().join("docs/policies.md"), &printed).unwrap();
        return;
    }
    for (number, (shown, found)) in page::TEXT.lines().zip(printed.lines()).enumerate() {
        assert_eq!(shown, found, "docs/policies.md:{}, in what is printed:\n{printed}", number + 1);
    }
    assert_eq!(page::TEXT, printed);
}

#[test]
fn every_section_is_listed_and_every_link_leads_somewhere() {
    let headings: Vec<String> =
        page::TEXT.lines().filter_map(|line| line.strip_prefix("## ")).map(ToOwned::to_owned).collect();
    let listed: Vec<String> = page::TEXT
        .lines()
        .filter_map(|line| line.strip_prefix("- [")?.split_once("](#"))
        .map(|(title, anchor)| {
            let slug: String = title.to_lowercase().replace(' ', "-").replace([':', ','], "");
            assert_eq!(anchor, format!("{slug})"), "{title}");
            title.to_owned()
        })
        .collect();
    assert_eq!(listed, headings);
    for target in page::TEXT.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
        let elsewhere = target.starts_with('#') || target.starts_with("https://");
        let file = target.split('#').next().unwrap_or_default();
        assert!(elsewhere || sealwire_testkit::root().join("docs").join(file).exists(), "{target}");
    }
}

/// A method with a parameter, a claim and another parameter of this type, and one rule about the first.
fn rule(kind: &str, condition: &str) -> String {
    // Comparisons with parts of the call use a part of the same type.
    let claim = if ["integer", "boolean"].contains(&kind) { kind } else { "string" };
    format!(
        "[method.m]\nparams = [{{ name = \"v\", type = \"{kind}\", optional = true }}, \
         {{ name = \"x\", type = \"{claim}\", optional = true }}]\n[claims]\nx = \"{claim}\"\n\
         [rule.r]\neveryone = true\nallow = [\"m\"]\nwhen.params.v {condition}\n"
    )
}

/// Row, type, condition as written on the page (`…` filled in), a call that it allows and one that it does not.
const CONDITIONS: &[(usize, &str, &str, &str, &str)] = &[
    (0, "string", "= \"5\"", r#"{"v":"5"}"#, r#"{"v":"6"}"#),
    (0, "integer", "= 5", r#"{"v":5}"#, r#"{"v":6}"#),
    (0, "boolean", "= true", r#"{"v":true}"#, r#"{"v":false}"#),
    (0, "string", "= { is = \"5\" }", r#"{"v":"5"}"#, r#"{"v":"55"}"#),
    (0, "integer", "= { is = 5 }", r#"{"v":5}"#, r#"{"v":-5}"#),
    (0, "boolean", "= { is = true }", r#"{"v":true}"#, r#"{"v":false}"#),
    (0, "string", "= { not = \"5\" }", r#"{"v":"6"}"#, r#"{"v":"5"}"#),
    (0, "integer", "= { not = 5 }", r#"{"v":6}"#, r#"{"v":5}"#),
    (0, "boolean", "= { not = true }", r#"{"v":false}"#, r#"{"v":true}"#),
    (1, "string", "= { in = [\"a\", \"b\"] }", r#"{"v":"b"}"#, r#"{"v":"c"}"#),
    (1, "integer", "= { in = [1, 2] }", r#"{"v":2}"#, r#"{"v":3}"#),
    (1, "string", "= { not_in = [\"a\", \"b\"] }", r#"{"v":"c"}"#, r#"{"v":"a"}"#),
    (1, "integer", "= { not_in = [1, 2] }", r#"{"v":3}"#, r#"{"v":1}"#),
    (2, "integer", "= { min = 1, max = 5 }", r#"{"v":1}"#, r#"{"v":0}"#),
    (2, "integer", "= { min = 1, max = 5 }", r#"{"v":5}"#, r#"{"v":6}"#),
    (2, "number", "= { min = 1, max = 5 }", r#"{"v":5.0}"#, r#"{"v":5.0000000000000000001}"#),
    (2, "number", "= { min = 1, max = 5 }", r#"{"v":0.1e1}"#, r#"{"v":0.9999999999999999999}"#),
    (3, "string", "= { glob = \"a*\" }", r#"{"v":"a"}"#, r#"{"v":"ba"}"#),
    (3, "string", "= { glob = \"a*\" }", r#"{"v":"a/b c"}"#, r#"{"v":""}"#),
    (3, "string", "= { not_glob = \"a*\" }", r#"{"v":"ba"}"#, r#"{"v":"ab"}"#),
    (4, "string", "= { same_as = \"subject\" }", r#"{"v":"alice"}"#, r#"{"v":"planner"}"#),
    (4, "string", "= { same_as = \"agent\" }", r#"{"v":"planner"}"#, r#"{"v":"alice"}"#),
    (4, "string", "= { same_as = \"params.x\" }", r#"{"v":"q","x":"q"}"#, r#"{"v":"q","x":"r"}"#),
    (4, "string", "= { same_as = \"claims.x\" }", r#"{"v":"claimed"}"#, r#"{"v":"other"}"#),
    (4, "integer", "= { same_as = \"params.x\" }", r#"{"v":1,"x":1}"#, r#"{"v":1,"x":2}"#),
    (4, "integer", "= { same_as = \"claims.x\" }", r#"{"v":7}"#, r#"{"v":8}"#),
    (4, "boolean", "= { same_as = \"params.x\" }", r#"{"v":true,"x":true}"#, r#"{"v":true,"x":false}"#),
    (5, "anything optional", "= { present = true }", r#"{"v":5}"#, "{}"),
    (5, "anything optional", "= { present = false }", "{}", r#"{"v":5}"#),
    (6, "list", "= { min_size = 1, max_size = 5 }", r#"{"v":[1]}"#, r#"{"v":[]}"#),
    (6, "list", "= { min_size = 1, max_size = 5 }", r#"{"v":[1,1,1,1,1]}"#, r#"{"v":[1,1,1,1,1,1]}"#),
    (7, "list", "= { contains = 5 }", r#"{"v":[4,5]}"#, r#"{"v":[4]}"#),
    (7, "list", "= { contains_any = [5, 6] }", r#"{"v":[4,6]}"#, r#"{"v":[4]}"#),
    (8, "list", "= { each_in = [5, 6] }", r#"{"v":[5,5]}"#, r#"{"v":[5,4]}"#),
];

/// The keys of a condition; none if it is a value to compare with.
fn demands(condition: &str) -> Vec<&str> {
    let inner = condition.split_once('{').map_or("", |(_, inner)| inner);
    let keys = inner.split(" = ").map(|part| part.rsplit([' ', ',']).next().unwrap());
    let mut keys: Vec<&str> = keys.collect();
    keys.pop();
    keys
}

#[test]
fn every_row_of_the_table_of_conditions_is_so() {
    let rows = table(page::TEXT, "| condition | on | holds when the value |");
    for (position, row) in rows.iter().enumerate() {
        let cases: Vec<_> = CONDITIONS.iter().filter(|case| case.0 == position).collect();
        // Try each spelling in the row on each type in it.
        for spelling in code(&row[0]) {
            for kind in row[1].split(", ") {
                let tried = cases.iter().any(|case| case.1 == kind && demands(case.2) == demands(spelling));
                assert!(tried, "not tried: {spelling} on {kind}");
            }
        }
    }
    assert!(CONDITIONS.iter().all(|case| case.0 < rows.len()), "a row is gone");
    for (_, kind, condition, yes, no) in CONDITIONS {
        let declared = match *kind {
            "list" => "integer[]",
            "anything optional" => "any",
            scalar => scalar,
        };
        let mut caller = on_behalf_of("planner", "alice", &[]);
        // Only delegated calls have a subject.
        let set = if condition.contains("subject") || condition.contains("agent") {
            toml(&rule(declared, condition).replace("when.", "delegated = \"also\"\nwhen."))
        } else {
            caller.delegated = false;
            toml(&rule(declared, condition))
        };
        let claim = if declared == "integer" { json!(7) } else { json!("claimed") };
        caller.token.claims.insert("x".to_owned(), claim);
        assert!(allows(&set, &caller, "m", yes), "{kind} {condition}: {yes}");
        assert!(!allows(&set, &caller, "m", no), "{kind} {condition}: {no}");
        // "A condition holds only if the parameter is present. `unless` is the opposite of `when`."
        if !condition.contains("present") {
            assert!(!allows(&set, &caller, "m", "{}"), "{kind} {condition}: absent");
        }
        let mut opposite = rule(declared, condition).replace("when.", "unless.");
        if caller.delegated {
            opposite = opposite.replace("unless.", "delegated = \"also\"\nunless.");
        }
        let opposite = toml(&opposite);
        assert!(!allows(&opposite, &caller, "m", yes), "unless {kind} {condition}: {yes}");
        assert!(allows(&opposite, &caller, "m", no), "unless {kind} {condition}: {no}");
    }
}

/// A row's type column, an attribute, and a condition on it that holds for the call below.
const CONTEXT: &[(&str, &str, &str)] = &[
    ("as declared", "context.params.NAME", "context.params has ids && context.params.ids.items.contains(3)"),
    ("as declared", "context.params.NAME", "context.params has ids && context.params.ids.size == 2"),
    ("as declared", "context.params.NAME", "context.params.amount == 5"),
    ("as declared", "context.params.NAME", "context.params has ratio"),
    (
        "as declared",
        "context.params.NAME",
        "context.params has ratio && context.params.ratio.whole == 0 && !context.params.ratio.beyond",
    ),
    (
        "as declared",
        "context.params.NAME",
        "context.params has ratio && context.params.ratio.fraction == 500000000000000000",
    ),
    ("as declared", "context.params.NAME", "context.params has memo"),
    ("as declared", "context.claims.NAME", "context.claims has tenant && context.claims.tenant == \"acme\""),
    ("String", "context.agent", "context.agent == \"planner\""),
    ("String", "context.subject", "context has subject && context.subject == \"alice\""),
    ("Bool", "context.delegated", "[context.delegated] == [true]"),
    ("datetime", "context.now", "context.now == datetime(\"2026-09-21T14:13:20.000Z\")"),
    ("Long", "context.hour", "context.hour == 14"),
    ("Long", "context.minute", "context.minute == 13"),
    ("Long", "context.minute_of_day", "context.minute_of_day == 853"),
    ("Long", "context.minute_of_week", "context.minute_of_week == 853"),
    ("String", "context.weekday", "context.weekday == \"mon\""),
    ("Long", "context.token.age_s", "context.token.age_s == 90"),
    ("Long", "context.token.remaining_s", "context.token.remaining_s == 810"),
    ("String", "context.token.id", "context.token.id == \"t-1\""),
    ("String", "context.token.issuer", "context.token.issuer == \"https://idp.example\""),
    ("String", "context.token.key", "context.token.key == \"idp-1\""),
    ("String", "context.algorithm", "context.algorithm == \"EdDSA\""),
    ("String", "context.key", "context.key == \"planner.k1\""),
];

const CONTEXT_METHODS: &str = r#"
[method.m]
params = [
  { name = "amount", type = "integer" },
  { name = "ids", type = "integer[]", optional = true },
  { name = "ratio", type = "number", optional = true },
  { name = "memo", type = "any", optional = true },
]
[claims]
tenant = "string"
"#;

fn in_cedar(condition: &str) -> PolicySet {
    let policy = format!(
        "@id(\"r\") @delegated(\"also\") permit(principal, action == Action::\"m\", resource) when {{ {condition} }};"
    );
    let (set, warnings) = load(&[("m.toml", CONTEXT_METHODS), ("r.cedar", &policy)])
        .unwrap_or_else(|errors| panic!("{condition}\n{errors}"));
    assert!(warnings.is_empty(), "{condition}: {warnings:?}");
    set
}

#[test]
fn every_attribute_of_the_cedar_context_is_there_with_its_type() {
    let mut named = BTreeSet::new();
    for row in table(page::TEXT, "| attribute | type | |") {
        let mut above = String::new();
        for attribute in code(&row[0]) {
            let full =
                if attribute.starts_with("context.") { attribute.to_owned() } else { format!("{above}.{attribute}") };
            above = full.rsplit_once('.').unwrap().0.to_owned();
            named.insert((row[1].clone(), full));
        }
    }
    let tried: BTreeSet<_> = CONTEXT.iter().map(|(kind, name, _)| ((*kind).to_owned(), (*name).to_owned())).collect();
    assert_eq!(named, tried);

    // And the table covers the whole schema.
    let schema = in_cedar("context.delegated == true").cedar_schema();
    let attributes = &schema[""]["actions"]["m"]["appliesTo"]["context"]["attributes"];
    let mut there = BTreeSet::new();
    for (name, kind) in attributes.as_object().unwrap() {
        match name.as_str() {
            "params" | "claims" => _ = there.insert(("as declared".to_owned(), format!("context.{name}.NAME"))),
            "token" => {
                there.extend(
                    kind["attributes"].as_object().unwrap().iter().map(|(inner, kind)| {
                        (kind["type"].as_str().unwrap().to_owned(), format!("context.token.{inner}"))
                    }),
                )
            }
            _ => {
                let kind = kind["name"].as_str().or(kind["type"].as_str()).unwrap().replace("Boolean", "Bool");
                there.insert((kind, format!("context.{name}")));
            }
        }
    }
    assert_eq!(named, there);

    let mut caller = on_behalf_of("planner", "alice", &[]);
    caller.algorithm = ProofAlgorithm::EdDsa;
    caller.token.issued_at = MONDAY_AFTERNOON / 1000 - 90;
    caller.token.expires_at = MONDAY_AFTERNOON / 1000 + 810;
    caller.token.id = "t-1".into();
    caller.token.issuer = "https://idp.example".into();
    caller.token.key = "idp-1".into();
    caller.token.claims = json!({ "tenant": "acme" }).as_object().unwrap().clone();
    let params = r#"{"amount":5,"ids":[3,3],"ratio":0.5,"memo":[]}"#;
    for (_, name, condition) in CONTEXT {
        assert!(allows(&in_cedar(condition), &caller, "m", params), "{condition}");
        let opposite = in_cedar(&format!("!({condition})"));
        assert!(!allows(&opposite, &caller, "m", params), "!({condition})");
        assert!(
            allows(&opposite, &sealwire_testkit::policies::caller("other", &[]), "m", r#"{"amount":4}"#)
                || is_of_the_time(name),
            "{name}"
        );
    }
}

/// What the two calls of that test share.
fn is_of_the_time(name: &str) -> bool {
    ["now", "hour", "minute", "minute_of_day", "minute_of_week", "weekday"].iter().any(|last| name.ends_with(last))
}

/// The page and the strict check agree on `optional` and `has`.
#[test]
fn optional_attributes_need_has() {
    for condition in
        ["context.claims.tenant == \"acme\"", "context.params.ids.size == 1", "context.subject == \"alice\""]
    {
        let policy = format!("permit(principal, action, resource) when {{ {condition} }};");
        let found = errors(&[("m.toml", CONTEXT_METHODS), ("r.cedar", &policy)]);
        assert!(found[0].contains("unable to guarantee safety of access to optional attribute"), "{found:#?}");
    }
}

#[test]
fn the_printed_schemas_fit_every_file_of_the_page() {
    let mut desk = Desk::new();
    desk.enter("schemas");
    let mut printed = |command: &str| -> Value {
        let (text, code) = desk.run(command);
        assert_eq!(code, 0, "{text}");
        serde_json::from_str(&text).unwrap()
    };
    let (policies, tests) = (printed("sealwire policy schema"), printed("sealwire policy schema --tests"));
    let mut checked = 0;
    for piece in pieces() {
        let Piece::File { language, path, text } = piece else { continue };
        // A service's configuration is not a policy.
        if language != "toml" || path == "sealwire.toml" {
            continue;
        }
        let value: Value = toml::from_str(&text).unwrap();
        let found = schema::faults(if path.ends_with(".test.toml") { &tests } else { &policies }, &value);
        // The mistakes that a schema can detect: unknown keys.
        let expected: &[&str] = if path.ends_with("wrong.toml") { &["/role/teller/alow: unknown"] } else { &[] };
        assert_eq!(found, expected, "{path}");
        checked += 1;
    }
    assert!(checked >= 10, "{checked}");
    assert_eq!(schema::faults(&tests, &json!({ "case": [{ "expect": "maybe" }] })).len(), 1);
    assert_eq!(
        schema::faults(&policies, &json!({ "rule": { "a": { "mode": "shadowy", "when": { "hour": 1 } } } })).len(),
        4,
        "and it says neither whom it is about nor what it does"
    );
}

#[test]
fn limits_that_the_page_names_are_those_of_the_program() {
    assert!(page::TEXT.contains(&format!("at most {} values", sealwire::internal::policy::MAX_LIST)));
    let set = toml(&rule("integer[]", "= { contains = 5 }"));
    assert!(page::TEXT.contains("at most 64 approvals"));
    let approvals = |count: usize| (0..count).map(|n| format!("[approval.x{n}]\nfrom = [\"r\"]\n")).collect::<String>();
    let loads = |count: usize| load(&[("a.toml", &format!("[role.r]\n{}", approvals(count)))]).is_ok();
    assert!(loads(64) && !loads(65));
    let list = |count: usize| format!("{{\"v\":[{}5]}}", "1,".repeat(count - 1));
    let ask = |params: String| {
        let raw = RawValue::from_string(params).unwrap();
        set.decide(&Question { caller: &caller("a", &[]), method: "m", params: Some(&raw), now_ms: 0 }).is_allow()
    };
    assert!(ask(list(1024)) && !ask(list(1025)));
}
