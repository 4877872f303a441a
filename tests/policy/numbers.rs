//! Numbers with fractions within bounds, compared as they are written.

use std::collections::BTreeSet;

use sealwire::decide::Reason;
use sealwire::internal::policy::{Diff, Replay};
use sealwire::internal::record::{Chain, Kind};
use sealwire::{DecisionRecord, Question};
use sealwire_testkit::policies::*;
use serde_json::value::RawValue;

fn rule(declared: &str, when: &str) -> String {
    format!(
        "[method.m]\nparams = [{{ name = \"x\", {declared} }}]\n[rule.r]\neveryone = true\nallow = [\"m\"]\nwhen.params.x{when}\n"
    )
}

/// The bounds, a number as a call writes it, and whether it is within.
const NUMBERS: &[(&str, &str, bool)] = &[
    ("{ min = 0, max = 1 }", "0", true),
    ("{ min = 0, max = 1 }", "1", true),
    ("{ min = 0, max = 1 }", "1.0", true),
    ("{ min = 0, max = 1 }", "10e-1", true),
    ("{ min = 0, max = 1 }", "0.01E+2", true),
    ("{ min = 0, max = 1 }", "1.00000000000000000000000000000000000001", false),
    ("{ min = 0, max = 1 }", "0.99999999999999999999999999999999999999", true),
    ("{ min = 0, max = 1 }", "-0", true),
    ("{ min = 0, max = 1 }", "-0.0", true),
    ("{ min = 0, max = 1 }", "-1e-400", false),
    ("{ min = 0, max = 1 }", "1e-400", true),
    ("{ min = 0, max = 1 }", "0e99999", true),
    ("{ min = 0, max = 1 }", "2", false),
    ("{ min = 0, max = 1 }", "-1", false),
    ("{ min = 0, max = 1 }", "1e308", false),
    ("{ max = 0.3, min = -1 }", "0.3", true),
    ("{ max = 0.3, min = -1 }", "0.30", true),
    ("{ max = 0.3, min = -1 }", "0.30000000000000004", false),
    ("{ max = 0.3, min = -1 }", "0.29999999999999998", true),
    // The double of 0.1 is a little more than 0.1.
    ("{ min = 0.1, max = 0.1 }", "0.1", true),
    ("{ min = 0.1, max = 0.1 }", "0.1000000000000000055511151231257827", false),
    ("{ min = -1.5, max = -0.5 }", "-1.5", true),
    ("{ min = -1.5, max = -0.5 }", "-0.5", true),
    ("{ min = -1.5, max = -0.5 }", "-0.49999999999999999999999", false),
    ("{ min = -1.5, max = -0.5 }", "-1.50000000000000000000001", false),
    ("{ min = -1.5, max = -0.5 }", "-1", true),
    ("{ min = -2, max = -1 }", "-1.5", true),
    ("{ min = -2, max = -1 }", "-2.5", false),
    // Two integers that are one double.
    ("{ min = 0, max = 9007199254740992 }", "9007199254740992", true),
    ("{ min = 0, max = 9007199254740992 }", "9007199254740993", false),
    ("{ min = 0, max = 9007199254740992 }", "9007199254740992.0000001", false),
    (
        "{ min = -999_999_999_999_999_999, max = 999999999999999999.999999999999999999 }",
        "999999999999999999.999999999999999999",
        true,
    ),
    ("{ min = -999_999_999_999_999_999, max = 999999999999999999.999999999999999999 }", "1e18", false),
    ("{ min = -999_999_999_999_999_999, max = 999999999999999999.999999999999999999 }", "-1e18", false),
    ("{ min = 1e3, max = 1e3 }", "1000", true),
    ("{ min = +1.5, max = 0x10 }", "16", true),
    ("{ min = 0 }", "1e308", true),
];

/// What is not a number that a double can hold.
const OTHERS: [&str; 12] = [
    "1e309",
    "-1e309",
    "1e400",
    "1e99999999999999999999",
    "\"5\"",
    "true",
    "null",
    "[5]",
    "{\"v\":5}",
    "\"NaN\"",
    "\"Infinity\"",
    "\"1e1\"",
];

#[test]
fn numbers_are_within_their_bounds_to_the_last_digit() {
    let bounds: BTreeSet<&str> = NUMBERS.iter().map(|(bounds, ..)| *bounds).collect();
    for bounds in bounds {
        let numbers: Vec<_> = NUMBERS.iter().filter(|(of, ..)| *of == bounds).collect();
        // As a parameter by name and by position, optional, and as a member.
        for (declared, when, wrap) in [
            ("type = \"number\"", "", ["[X]", "{\"x\":X}"]),
            ("type = \"number\", optional = true", "", ["[X]", "{\"x\":X}"]),
            (
                "type = \"object\", fields = [{ name = \"y\", type = \"number\" }]",
                ".y",
                ["[{\"y\":X}]", "{\"x\":{\"y\":X}}"],
            ),
        ] {
            let text = rule(declared, &format!("{when} = {bounds}"));
            // The same rule as a deny rule with the opposite.
            let opposite = text.replace("when.", "unless.").replace("allow", "deny")
                + "[rule.all]\neveryone = true\nallow = [\"m\"]\n";
            for set in [toml(&text), toml(&opposite)] {
                // And as Cedar, exported and read again.
                let base = text.split("[rule").next().unwrap();
                let again = load(&[("a.toml", base), ("b.cedar", &set.to_cedar())]).unwrap().0;
                for (_, number, expected) in &numbers {
                    for params in wrap.map(|wrap| wrap.replace('X', number)) {
                        for set in [&set, &again] {
                            assert_eq!(allows(set, &caller("a", &[]), "m", &params), *expected, "{text}\n{params}");
                        }
                    }
                }
            }
        }
    }
    println!("{} rows, each in {} ways", NUMBERS.len(), 3 * 2 * 2 * 2);
}

#[test]
fn what_cannot_be_compared_is_denied() {
    let set = toml(&rule("type = \"number\"", " = { min = 0, max = 5 }"));
    let deny = toml(
        &(rule("type = \"number\"", " = { min = 9 }").replace("allow", "deny")
            + "[rule.all]\neveryone = true\nallow = [\"m\"]\n"),
    );
    for other in OTHERS {
        for set in [&set, &deny] {
            assert_eq!(
                ask(set, &caller("a", &[]), "m", &format!("[{other}]")).reason,
                Reason::ParamType("x".into()),
                "{other}"
            );
        }
    }
}

#[test]
fn integers_stay_integers() {
    let set = toml(&rule("type = \"integer\"", " = { min = 0, max = 5 }"));
    for (number, expected) in
        [("5", true), ("5.0", false), ("5e0", false), ("0.5e1", false), ("-0", false), ("6", false)]
    {
        assert_eq!(allows(&set, &caller("a", &[]), "m", &format!("[{number}]")), expected, "{number}");
    }
}

#[test]
fn bounds_that_mean_nothing_do_not_load() {
    for (declared, when, says) in [
        (
            "type = \"number\"",
            " = { max = nan }",
            "cannot be a bound of it; write a number with at most 18 digits before and after the point",
        ),
        ("type = \"number\"", " = { max = inf }", "cannot be a bound of it"),
        ("type = \"number\"", " = { max = -inf }", "cannot be a bound of it"),
        ("type = \"number\"", " = { max = 1e400 }", "cannot be a bound of it"),
        ("type = \"number\"", " = { max = 1e18 }", "cannot be a bound of it"),
        ("type = \"number\"", " = { min = -1000000000000000000 }", "cannot be a bound of it"),
        ("type = \"number\"", " = { min = 1e-19 }", "cannot be a bound of it"),
        ("type = \"number\"", " = { max = \"5\" }", "cannot be a bound of it"),
        ("type = \"number\"", " = { max = 2026-01-01 }", "cannot be a bound of it"),
        ("type = \"number\"", " = { max = true }", "cannot be a bound of it"),
        ("type = \"number\"", " = { min = 0.3, max = 0.29999999999999999 }", "`min` is larger than `max`"),
        ("type = \"number\"", " = { min = 5, max = 4 }", "`min` is larger than `max`"),
        ("type = \"number\"", " = 5", "of type number, of which rules ask only `min` and `max`"),
        ("type = \"number\"", " = 5.0", "of type number, of which rules ask only `min` and `max`"),
        ("type = \"number\"", " = { is = 5 }", "of type number, of which rules ask only `min` and `max`"),
        ("type = \"number\"", " = { in = [5.0] }", "of type number, of which rules ask only `min` and `max`"),
        ("type = \"number\"", " = { not = 5 }", "of type number, of which rules ask only `min` and `max`"),
        ("type = \"number\"", " = { glob = \"5*\" }", "of type number, of which rules ask only `min` and `max`"),
        (
            "type = \"number\"",
            " = { same_as = \"params.x\" }",
            "of type number, of which rules ask only `min` and `max`",
        ),
        ("type = \"integer\"", " = { max = 5.5 }", "`x` is a 64-bit integer, and 5.5 is none"),
        ("type = \"integer\"", " = { max = 5.0 }", "`x` is a 64-bit integer, and 5.0 is none"),
        ("type = \"any\"", " = { max = 5 }", "of type any, which rules cannot compare"),
        ("type = \"string\"", " = { max = 5 }", "has no `max`"),
    ] {
        let found = errors(&[("a.toml", &rule(declared, when))]);
        assert!(found.iter().any(|line| line.contains(says)), "{declared}{when}\n{found:#?}");
    }
    // The text of a claim is not known any more when rules are asked.
    let claim = "[method.m]\n[claims]\nx = \"number\"\n[rule.r]\neveryone = true\nallow = [\"m\"]\nwhen.claims.x = { max = 5 }\n";
    assert!(errors(&[("a.toml", claim)])[0].contains("of type number, which rules cannot compare"));
    let open = warnings(&[("a.toml", &rule("type = \"number\"", " = { max = 5.5 }"))]);
    assert!(open[0].contains("`r` allows every negative `x`; add `min = 0` beside `max`"), "{open:?}");
}

#[test]
fn a_recorded_number_is_the_one_that_was_sent() {
    let set = toml(&rule("type = \"number\"", " = { min = 0.1, max = 0.1 }"));
    let agent = caller("a", &[]);
    for (number, recorded) in [
        ("0.1", "0.1"),
        ("1e-1", "0.1"),
        ("0.1000000000000000055511151231257827", "\"0.1000000000000000055511151231257827\""),
        ("0.10000000000000000000000000", "0.1"),
        ("7", "7"),
        ("12345678901234567890123", "\"12345678901234567890123\""),
    ] {
        let raw = RawValue::from_string(format!("[{number}]")).unwrap();
        let question = Question { caller: &agent, method: "m", params: Some(&raw), now_ms: MONDAY_AFTERNOON };
        let record = DecisionRecord::new(&set, &question, &set.decide(&question), None);
        assert_eq!(record.params.as_ref().unwrap()["x"].to_string(), recorded);
        let line = String::from_utf8(Chain::new("s1").line(Kind::Decision, &record).unwrap()).unwrap();
        let replay = Replay::run(&set, &line);
        assert!(replay.calls == 1 && replay.is_same(), "{line}\n{replay}");
    }
}

#[test]
fn reviewers_see_a_bound_and_how_it_moved() {
    let of = |max: &str| toml(&rule("type = \"number\"", &format!(" = {{ min = 0, max = {max} }}")));
    let (old, new) = (of("0.5"), of("0.75"));
    let diff = Diff::between(&old, &new).to_string();
    assert!(
        diff.contains("+ m anyone: conditional, differently")
            && diff.contains("limit raised: `x` is at most 0.5 -> 0.75"),
        "{diff}"
    );
    let less = Diff::between(&new, &old).to_string();
    assert!(less.contains("- m anyone") && less.contains("limit lowered"), "{less}");
    assert!(old.matrix().to_string().contains("if `x` is at least 0 and `x` is at most 0.5"));
    let agent = caller("a", &[]);
    let raw = RawValue::from_string("[0.50000000000000000000001]".to_owned()).unwrap();
    let question = Question { caller: &agent, method: "m", params: Some(&raw), now_ms: 0 };
    let text = old.explain(&question).to_string();
    assert!(text.contains("no   `x` is at most 0.5 (x = 0.50000000000000000000001)"), "{text}");
    let reach = old.reach(&agent, "m", 0).unwrap();
    let told: Vec<_> = reach.params().map(|(_, keywords)| serde_json::to_string(keywords).unwrap()).collect();
    assert_eq!(told, [r#"{"minimum":0,"maximum":0.5}"#]);
}
