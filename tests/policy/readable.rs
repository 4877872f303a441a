//! A file says what a person sees in it: line ends that only some programs know, invisible characters, and patterns that
//! mean something else in other languages.

use sealwire::internal::policy::{TestSuite, format};
use sealwire_testkit::policies::*;

const BASE: &str = "[method.m]\nparams = [{ name = \"to\", type = \"string\" }]\n[rule.open]\neveryone = true\nallow = [\"m\"]\nwhen.params.to = { glob = \"*\" }\n";

/// Line ends of other programs, controls, direction marks, and what cannot be seen.
const CHARACTERS: [char; 40] = [
    '\r',
    '\u{b}',
    '\u{c}',
    '\u{85}',
    '\u{2028}',
    '\u{2029}',
    '\0',
    '\u{7}',
    '\u{8}',
    '\u{1b}',
    '\u{7f}',
    '\u{80}',
    '\u{9b}',
    '\u{61c}',
    '\u{200e}',
    '\u{200f}',
    '\u{202a}',
    '\u{202b}',
    '\u{202c}',
    '\u{202d}',
    '\u{202e}',
    '\u{2066}',
    '\u{2067}',
    '\u{2068}',
    '\u{2069}',
    '\u{ad}',
    '\u{34f}',
    '\u{115f}',
    '\u{180e}',
    '\u{200b}',
    '\u{200c}',
    '\u{200d}',
    '\u{2060}',
    '\u{2064}',
    '\u{206a}',
    '\u{3164}',
    '\u{feff}',
    '\u{fe0f}',
    '\u{fffb}',
    '\u{e0041}',
];

#[test]
fn what_hides_a_rule_or_a_part_of_it_is_refused_wherever_it_stands() {
    let cedar = [
        "// Nobody.@forbid(principal, action, resource);\n",
        "forbid(principal, action, resource) // Not yet.@when { false };\n;",
        "@forbid(principal, action, resource);\n",
        "@description(\"a@b\")\nforbid(principal, action, resource);\n",
        "forbid(principal, action, resource)\nwhen { context.agent == \"a@b\" };\n",
        "forbid(principal, action, resource);\n// The end.@",
    ];
    let toml = [
        "# Nobody.@[rule.x]\neveryone = true\ndeny = [\"m\"]\n",
        "[rule.x] # Why.@ Because.\neveryone = true\ndeny = [\"m\"]\n",
        "[rule.x]\ndescription = \"a@b\"\neveryone = true\ndeny = [\"m\"]\n",
        "[rule.x]\neveryone = true\ndeny = [\"m\"]\nwhen.params.to = { glob = 'a@b*' }\n",
        "[rule.x]\neveryone = true\ndeny = [\"m\"]\n#@",
    ];
    let tests = ["# The cases.@[[case]]\n", "[caller.a]\nagent = \"a@b\"\n"];
    let mut rows = 0;
    for character in CHARACTERS {
        let with = |text: &str| {
            text.replace('@', &character.to_string()).replace(&format!("{character}description"), "@description")
        };
        let line = |text: &str| 1 + text.split('@').next().unwrap().matches('\n').count();
        for (name, text) in cedar.iter().map(|text| ("b.cedar", text)).chain(toml.iter().map(|text| ("b.toml", text))) {
            if character == '\u{feff}' && text.starts_with('@') {
                // There, it is the mark that editors write.
                continue;
            }
            let line = if text.starts_with("@description") { 1 } else { line(text) };
            let text = with(text);
            let found = errors(&[("a.toml", BASE), (name, &text)]);
            let place = format!("{name}:{line}: error: ");
            assert!(found.iter().any(|error| error.starts_with(&place)), "{text:?}\n{found:#?}");
            // Nor does the layout move it to where it can be overlooked.
            let laid_out = format(name, &text).unwrap_err().to_string();
            assert!(laid_out.contains(&format!("line {line}: ")), "{text:?}: {laid_out}");
            rows += 1;
        }
        for text in tests {
            let text = with(text);
            assert!(TestSuite::from_texts([("a.test.toml", text.as_str())]).is_err(), "{text:?}");
            rows += 1;
        }
    }
    println!("{rows} rows");
    assert_eq!(rows, CHARACTERS.len() * 13 - 2);
}

#[test]
fn ordinary_texts_of_all_languages_load_and_escapes_say_the_rest() {
    for text in [
        "Grüße, 日本語, العربية, עברית, می\u{200c}خواهم, 👩\u{200d}👩\u{200d}👧, ⚠\u{fe0f}, 1\u{fe0f}\u{20e3}, ¯\\_(ツ)_/¯",
        "tab\there",
    ] {
        let toml =
            format!("\u{feff}# {text}\r\n[rule.x]\r\ndescription = '{text}'\r\neveryone = true\r\ndeny = [\"m\"]\r\n");
        assert!(load(&[("a.toml", BASE), ("b.toml", &toml)]).is_ok(), "{text}");
        let text = text.replace('\\', "");
        let cedar =
            format!("\u{feff}// {text}\r\n@description(\"{text}\")\r\nforbid(principal, action, resource);\r\n");
        assert!(load(&[("a.toml", BASE), ("b.cedar", &cedar)]).is_ok(), "{text}");
        assert_eq!(format("b.cedar", &cedar).unwrap().matches("forbid").count(), 1);
    }
    let toml = "[rule.x]\neveryone = true\ndeny = [\"m\"]\nwhen.params.to = { glob = \"a\\u200b*\" }\n";
    let cedar = "forbid(principal, action, resource) when { context.params.to like \"a\\u{200b}*\" };";
    for (name, text) in [("b.toml", toml), ("b.cedar", cedar)] {
        let set = load(&[("a.toml", BASE), (name, text)]).unwrap().0;
        assert!(
            !allows(&set, &caller("a", &[]), "m", "[\"a\u{200b}x\"]")
                && allows(&set, &caller("a", &[]), "m", "[\"ax\"]")
        );
    }
}

#[test]
fn a_file_that_says_nothing_is_a_warning() {
    for (name, text, says) in [
        ("b.cedar", "// forbid(principal, action, resource);\n", true),
        ("b.cedar", "\u{feff}// One.\n\n// Two.\n", true),
        ("b.toml", "# [rule.x]\n# everyone = true\n", true),
        ("b.toml", "[role.r]\n", false),
        ("b.cedar", "@id(\"x\")\nforbid(principal, action, resource);", false),
    ] {
        let found = warnings(&[("a.toml", BASE), (name, text)]);
        let said =
            found.iter().any(|line| line.starts_with(&format!("{name}: warning: has comments and nothing else")));
        assert_eq!(said, says, "{text:?} {found:?}");
    }
}

/// Where a pattern stands, with the warning about it.
#[test]
fn patterns_of_other_languages_are_doubtful_wherever_a_pattern_stands() {
    let places = [
        ("b.toml", "[rule.x]\neveryone = true\ndeny = [\"m\"]\nwhen.params.to = { glob = 'GLOB' }\n"),
        ("b.toml", "[rule.x]\neveryone = true\ndeny = [\"m\"]\nwhen.params.to = { not_glob = 'GLOB' }\n"),
        ("b.toml", "[rule.x]\neveryone = true\ndeny = [\"m\"]\nunless.params.to = { glob = 'GLOB' }\n"),
        ("b.toml", "[rule.x]\neveryone = true\ndeny = [\"m\"]\nwhen.issuer = { glob = 'GLOB' }\n"),
        ("b.toml", "[rule.x]\neveryone = true\ndeny = [\"m\"]\nwhen.key = { not_glob = 'GLOB' }\n"),
        ("b.toml", "[rule.x]\nsubjects = ['GLOB']\ndeny = [\"m\"]\n"),
        ("b.toml", "[rule.x]\neveryone = true\ndeny = [\"m\"]\nwhen.subject = { glob = 'GLOB' }\n"),
        ("b.cedar", "forbid(principal, action, resource) when { context.params.to like \"GLOB\" };"),
        (
            "b.cedar",
            "forbid(principal, action, resource) unless { context.agent == \"a\" || context.params.to like \"GLOB\" };",
        ),
    ];
    let mut rows = 0;
    for (glob, says) in [
        ("a?*", "`?` stands for itself"),
        ("[abc]*", "`[…]` stands for itself"),
        ("{a,b}*", "`{…}` stands for itself"),
        ("a/**", "`**` means no more than `*`"),
        ("!a*", "`!` stands for itself"),
        ("a\\x*", "`\\` stands for itself"),
    ] {
        for (name, text) in places {
            // In Cedar, a backslash is written twice.
            let glob = if name.ends_with(".cedar") { glob.replace('\\', "\\\\") } else { glob.to_owned() };
            let found = warnings(&[("a.toml", BASE), (name, &text.replace("GLOB", &glob))]);
            assert!(found.iter().any(|line| line.contains(says)), "{text} {glob}\n{found:#?}");
            rows += 1;
        }
    }
    println!("{rows} rows");
    for (name, text) in places {
        let found = warnings(&[("a.toml", BASE), (name, &text.replace("GLOB", "acct-*"))]);
        assert!(!found.iter().any(|line| line.contains("stands for itself")), "{text}\n{found:#?}");
    }
    // In names of agents and methods, such characters cannot stand at all.
    for text in ["[rule.x]\nagents = [\"a?*\"]\ndeny = [\"m\"]\n", "[rule.x]\neveryone = true\ndeny = [\"m?\"]\n"] {
        assert!(load(&[("a.toml", BASE), ("b.toml", text)]).is_err(), "{text}");
    }
}

#[test]
fn a_star_where_no_pattern_stands_is_doubtful() {
    for condition in [
        "= \"blocked-*\"",
        "= { is = \"a*\" }",
        "= { not = \"a*\" }",
        "= { in = [\"b\", \"a*\"] }",
        "= { not_in = [\"a*\"] }",
    ] {
        let text = format!("[rule.x]\neveryone = true\ndeny = [\"m\"]\nwhen.params.to {condition}\n");
        let found = warnings(&[("a.toml", BASE), ("b.toml", &text)]);
        assert!(
            found.iter().any(|line| line.contains("stands for itself: this is one text, and no pattern")),
            "{text}\n{found:#?}"
        );
    }
}

/// What the page says about patterns: nothing is folded.
#[test]
fn patterns_compare_bytes() {
    let text =
        format!("{BASE}[rule.x]\neveryone = true\ndeny = [\"m\"]\nwhen.params.to = {{ glob = \"blocked-*\" }}\n");
    let set = toml(&text);
    for (value, expected) in [
        ("blocked-7", false),
        ("Blocked-7", true),
        ("BLOCKED-7", true),
        ("blocked\u{200b}-7", true),
        ("\u{feff}blocked-7", true),
        (" blocked-7", true),
        ("ｂlocked-7", true),
        ("bl\u{43e}cked-7", true),
        ("blocked\u{2010}7", true),
    ] {
        let params = serde_json::to_string(&[value]).unwrap();
        assert_eq!(allows(&set, &caller("a", &[]), "m", &params), expected, "{value:?}");
    }
}
