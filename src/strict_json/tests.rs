#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use proptest::prelude::*;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::*;

#[test]
fn valid_texts_of_every_kind_pass() {
    for text in [
        "null",
        " true\n",
        "\tfalse\r",
        "0",
        "-0",
        "-0.0e-0",
        "1E+2",
        "\"\"",
        "{}",
        "[]",
        "[ ]",
        "{ }",
        "[[],{}]",
        r#"{"a":{"a":[{"a":1},{"a":2}]},"b":null}"#,
        r#""\"\\\/\b\f\n\r\t\u00e9\uD83D\ude00""#,
        "\"\u{7f}\u{2028}é\"",
        r#"{"":1," ":2}"#,
        r#"{"a":1,"A":2}"#,
    ] {
        assert_eq!(check(text.as_bytes()), Ok(text), "{text}");
    }
}

#[test]
fn invalid_texts_are_syntax_errors() {
    for text in [
        "",
        " ",
        "{",
        "[",
        "}",
        "]",
        "[1",
        "[1,",
        "[1,]",
        "[,1]",
        "[1 2]",
        "{\"a\"}",
        "{\"a\":}",
        "{\"a\":1,}",
        "{,}",
        "{a:1}",
        "{1:1}",
        "[}",
        "{]",
        "1 2",
        "{} {}",
        "[]]",
        "nul",
        "nulll",
        "True",
        "NaN",
        "Infinity",
        "+1",
        "01",
        "-",
        "1.",
        ".5",
        "1e",
        "1e+",
        "0x1",
        "--1",
        "'a'",
        "\"",
        "\"a",
        r#""\x""#,
        r#""\u12g4""#,
        r#""\u123""#,
        r#""\"#,
        "\"a\nb\"",
        "\"\0\"",
        "\0",
        "null\0",
        "\u{a0}1",
        "1\u{feff}",
        "// c\n1",
        "/**/1",
        "\u{c}1",
    ] {
        assert_eq!(check(text.as_bytes()), Err(Flaw::Syntax), "{text:?}");
    }
}

#[test]
fn control_characters_in_strings_are_syntax_errors() {
    for control in '\0'..' ' {
        assert_eq!(check(format!("\"{control}\"").as_bytes()), Err(Flaw::Syntax), "{control:?}");
        assert_eq!(check(format!("{{\"{control}\":1}}").as_bytes()), Err(Flaw::Syntax), "{control:?}");
    }
}

#[test]
fn lone_surrogates_are_syntax_errors() {
    for text in [
        r#""\ud800""#,
        r#""\udc00""#,
        r#""\ud800\ud800""#,
        r#""\ud800x""#,
        r#""\ud800\n""#,
        r#""\udc00\ud800""#,
        r#"{"\ud800":1}"#,
        r#"[{"a":"\uDFFF"}]"#,
    ] {
        assert_eq!(check(text.as_bytes()), Err(Flaw::Syntax), "{text}");
    }
}

/// SPEC.md §11.
#[test]
fn only_plain_utf8_is_read() {
    assert_eq!(check(b"\xEF\xBB\xBF{}"), Err(Flaw::ByteOrderMark));
    assert_eq!(check(b"\xFF\xFE{\0}\0"), Err(Flaw::NotUtf8));
    assert_eq!(check(b"{\0}\0"), Err(Flaw::Syntax));
    for bytes in [&b"\"\xC0\xAF\""[..], b"\"\xED\xA0\x80\"", b"\"\xF4\x90\x80\x80\"", b"\"\x80\"", b"\"\xC3"] {
        assert_eq!(check(bytes), Err(Flaw::NotUtf8), "{bytes:?}");
    }
}

/// SPEC.md §11.
#[test]
fn sixty_four_levels_pass_and_one_more_does_not() {
    let nested = |open: &str, levels: usize, close: &str| format!("{}1{}", open.repeat(levels), close.repeat(levels));
    for (open, close) in [("[", "]"), ("{\"a\":", "}"), ("[{\"a\":", "}]")] {
        let levels = MAX_DEPTH / open.matches(['[', '{']).count();
        assert!(check(nested(open, levels, close).as_bytes()).is_ok(), "{open}");
        assert_eq!(check(nested(open, levels + 1, close).as_bytes()), Err(Flaw::TooDeep), "{open}");
    }
    // The deepest message around the deepest value is one that is read.
    let value = nested("[", MAX_VALUE_DEPTH, "]");
    assert_eq!(strict_value(&format!(" {value}\n")).unwrap().get(), value);
    let around = format!(r#"[{{"jsonrpc":"2.0","error":{{"code":1,"message":"","data":{{"body":{value}}}}},"id":1}}]"#);
    assert!(check(around.as_bytes()).is_ok());
    assert_eq!(strict_value(&format!("[{value}]")).unwrap_err(), Flaw::TooDeep);
    assert_eq!(strict_value(r#"{"a":1,"a":2}"#).unwrap_err(), Flaw::DuplicateMember);
    // Depth is nesting, not a count of brackets.
    assert!(check(format!("[{}[]]", "[],".repeat(1000)).as_bytes()).is_ok());
}

#[test]
fn a_hundred_thousand_brackets_do_not_overflow_the_stack() {
    for open in ["[", "{\"a\":", "[{\"\":"] {
        assert_eq!(check(open.repeat(100_000).as_bytes()), Err(Flaw::TooDeep), "{open}");
    }
    assert_eq!(check("]".repeat(100_000).as_bytes()), Err(Flaw::Syntax));
}

/// SPEC.md §11.
#[test]
fn duplicate_names_are_found_at_any_depth_and_after_unescaping() {
    for text in [
        r#"{"method":"a","method":"b"}"#,
        r#"{"\u006dethod":"a","method":"b"}"#,
        r#"{"a":1,"b":2,"\u0061":3}"#,
        r#"[{"x":{"y":[{"a":1,"a":1}]}}]"#,
        r#"{"":0,"":0}"#,
        r#"{"a/b":0,"a\/b":0}"#,
        r#"{"😀":0,"\ud83d\ude00":0}"#,
        r#"{"a":{"a":1},"a":2}"#,
        r#"{"\"":1,"\u0022":2}"#,
    ] {
        assert_eq!(check(text.as_bytes()), Err(Flaw::DuplicateMember), "{text}");
    }
    // A name that looks like the text of an escaped one is another name.
    assert!(check(r#"{"\\u0061":1,"a":2,"\"a\"":3}"#.as_bytes()).is_ok());
}

#[test]
fn duplicate_names_are_found_in_large_objects() {
    let members = |names: &mut dyn Iterator<Item = usize>| {
        let members: Vec<_> = names.map(|name| format!("\"n{name}\":0")).collect();
        format!("{{{}}}", members.join(","))
    };
    for size in [FEW - 1, FEW, FEW + 1, 10 * FEW] {
        assert!(check(members(&mut (0..size)).as_bytes()).is_ok(), "{size}");
        for repeated in [0, size / 2, size - 1] {
            let text = members(&mut (0..size).chain([repeated]).chain(size..2 * size));
            assert_eq!(check(text.as_bytes()), Err(Flaw::DuplicateMember), "{size} {repeated}");
        }
    }
}

#[test]
fn a_syntax_error_or_excess_depth_anywhere_outweighs_a_duplicate_name() {
    assert_eq!(check(br#"[{"a":1,"a":2},]"#), Err(Flaw::Syntax));
    assert_eq!(check(br#"{"a":1,"a":2"#), Err(Flaw::Syntax));
    let deep = format!(r#"[{{"a":1,"a":2}},{}]"#, "[".repeat(MAX_DEPTH));
    assert_eq!(check(deep.as_bytes()), Err(Flaw::TooDeep));
}

#[test]
fn numbers_of_any_size_pass() {
    let long = "9".repeat(10_000);
    for text in ["1e999", "-1e-999", "1e99999999999999999999", "1234567890123456789012345678901234567890", &long] {
        assert!(check(text.as_bytes()).is_ok(), "{text}");
    }
}

/// Texts near JSON: its own characters in any order, and valid texts with one place changed.
fn near_json() -> impl Strategy<Value = String> {
    let noise = r#"([\[\]{},: \n]|"a"|"\\u0061"|"\\ud83d"|\\|"|-|0|1|\.|e|\+|true|nul|null|[a-z]|\x00|é){0,24}"#;
    let leaf =
        r#"null|true|-?(0|[1-9][0-9]{0,20})(\.[0-9]{1,3})?([eE][+-]?[0-9]{1,4})?|"([a-c]|\\u006[1-3]|\\n){0,3}""#;
    let valid = leaf.prop_recursive(5, 40, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(|items| format!("[{}]", items.join(" , "))),
            prop::collection::vec((r#""([a-c]|\\u006[1-3])""#, inner), 0..4).prop_map(|members| {
                let members: Vec<_> = members.into_iter().map(|(name, value)| format!("{name}:{value}")).collect();
                format!("{{{}}}", members.join(","))
            }),
        ]
    });
    let changed =
        (valid.clone(), any::<prop::sample::Index>(), r#"[\[\]{}:,"0-9a\\ -]?"#).prop_map(|(text, at, new)| {
            let mut chars: Vec<char> = text.chars().collect();
            let at = at.index(chars.len());
            chars.splice(at..=at, new.chars());
            chars.into_iter().collect()
        });
    prop_oneof![noise, valid, changed]
}

proptest! {
    #[test]
    fn check_agrees_with_serde_json_on_what_is_json(text in near_json()) {
        let members = || serde_json::from_str::<Members>(&text).map(|members| members.0);
        match (check(text.as_bytes()), serde_json::from_str::<Value>(&text)) {
            // `Value` keeps one of two members with the same name, `Members` counts both.
            (Ok(_), Ok(value)) => prop_assert_eq!(members().unwrap(), count(&value), "{}", text),
            (Err(Flaw::DuplicateMember), Ok(value)) => prop_assert!(members().unwrap() > count(&value), "{}", text),
            (Err(Flaw::Syntax), Err(_)) => {}
            // JSON has numbers that do not fit into a float.
            (Ok(_) | Err(Flaw::DuplicateMember), Err(error)) => {
                prop_assert!(error.to_string().contains("number out of range"), "{text}: {error}");
            }
            (ours, theirs) => prop_assert!(false, "{text}: {ours:?} but {theirs:?}"),
        }
    }

    #[test]
    fn any_bytes_are_read_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = check(&bytes);
    }
}

/// The number of members in all objects of a value.
fn count(value: &Value) -> usize {
    match value {
        Value::Array(items) => items.iter().map(count).sum(),
        Value::Object(members) => members.len() + members.values().map(count).sum::<usize>(),
        _ => 0,
    }
}

/// The number of members in all objects of a text, repeated ones included.
struct Members(usize);

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Count).map(Self)
    }
}

struct Count;

impl<'de> serde::de::Visitor<'de> for Count {
    type Value = usize;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<usize, E> {
        Ok(0)
    }

    fn visit_bool<E>(self, _: bool) -> Result<usize, E> {
        Ok(0)
    }

    fn visit_i64<E>(self, _: i64) -> Result<usize, E> {
        Ok(0)
    }

    fn visit_u64<E>(self, _: u64) -> Result<usize, E> {
        Ok(0)
    }

    fn visit_f64<E>(self, _: f64) -> Result<usize, E> {
        Ok(0)
    }

    fn visit_str<E>(self, _: &str) -> Result<usize, E> {
        Ok(0)
    }

    fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut items: A) -> Result<usize, A::Error> {
        let mut sum = 0;
        while let Some(Members(members)) = items.next_element()? {
            sum += members;
        }
        Ok(sum)
    }

    fn visit_map<A: serde::de::MapAccess<'de>>(self, mut members: A) -> Result<usize, A::Error> {
        let mut sum = 0;
        while let Some((_, Members(below))) = members.next_entry::<String, Members>()? {
            sum += 1 + below;
        }
        Ok(sum)
    }
}
