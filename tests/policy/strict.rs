//! Text that looks like a condition, a limit or an expectation but would have no effect: refused when files load.

use sealwire::internal::policy::{TestReport, TestSuite, format};
use sealwire_testkit::policies::*;

const METHODS: &str = r#"
[method."bank/transfer"]
params = [
  { name = "to", type = "string" },
  { name = "amount", type = "integer" },
  { name = "note", type = "string", optional = true },
  { name = "tags", type = "string[]" },
  { name = "order", type = "object", fields = [{ name = "size", type = "integer" }] },
]
[method."math/add"]
[claims]
tenant = "string"
[attributes]
region = "string"
[role.teller]
"#;

fn errors_of(rules: &str) -> Vec<String> {
    errors(&[("methods.toml", METHODS), ("r.toml", rules)])
}

/// The errors of a deny rule with these conditions, which begin in line 4.
fn errors_with(conditions: &str) -> Vec<String> {
    errors_of(&format!("[rule.a]\neveryone = true\ndeny = [\"bank/transfer\"]\n{conditions}\n"))
}

#[test]
fn a_condition_that_says_nothing_is_an_error() {
    for (condition, expected) in [
        ("when = {}", "there is no condition in it; leave it out, or say what has to hold"),
        ("when.params = {}", "there is no condition in `params`; leave it out, or write `params.NAME = …`"),
        ("when.claims = {}", "there is no condition in `claims`; leave it out, or write `claims.NAME = …`"),
        ("when.attributes = {}", "there is no condition in `attributes`; leave it out, or write `attributes.NAME = …`"),
        ("when.params.order = {}", "the condition on `order` is empty; put the condition on a member of it"),
        (
            "when.params.to = {}",
            "the condition on `to` is empty; write a text, or `is`, `not`, `in`, `not_in`, `glob`, `not_glob`",
        ),
        ("when.token_age = {}", "the condition on `token_age` is empty; write \"5m\", or `min` and `max`"),
        ("when.days = []", "`days` is empty, so the condition means nothing; name the days, or leave it out"),
        (
            "when = { hours = \"08:00-18:00\", days = [] }",
            "`days` is empty, so the condition means nothing; name the days, or leave it out",
        ),
    ] {
        assert_finding(&errors_with(condition), &format!("r.toml:4: error: {expected}"));
        let under_unless = condition.replacen("when", "unless", 1);
        assert_finding(&errors_with(&under_unless), &format!("r.toml:4: error: {expected}"));
    }
    let beside = errors_with("when.params.amount = 5\nwhen.params.order = {}\nunless.days = []");
    assert_eq!(beside.len(), 2, "{beside:#?}");
}

#[test]
fn a_rule_never_vanishes() {
    let nobody = "error: this rule does not say which callers it applies to; write `roles`, `agents`, `subjects` or `everyone = true`";
    for who in ["everyone = false", "everyone = false\nroles = []", "roles = []", "agents = []", "subjects = []"] {
        let found = errors_of(&format!("[rule.a]\n{who}\ndeny = [\"math/add\"]\n"));
        assert_eq!(found, [format!("r.toml:1: {nobody}")], "{who}");
    }
    for nothing in ["deny = []", "deny = []\nallow = []"] {
        let found = errors_of(&format!("[rule.a]\neveryone = true\n{nothing}\n"));
        assert_eq!(
            found,
            ["r.toml:1: error: the rule `a` allows and denies nothing; write `allow = [\"…\"]` or `deny = [\"…\"]`"]
        );
    }
    // Where the rule names whom it is about, `everyone = false` only states the obvious.
    let set = toml(&format!("{METHODS}\n[rule.a]\neveryone = false\nroles = [\"teller\"]\nallow = [\"math/add\"]\n"));
    assert!(allows(&set, &caller("t", &["teller"]), "math/add", ""));
    assert!(!allows(&set, &caller("t", &[]), "math/add", ""));

    let cedar = "permit(principal, action, resource);\nforbid(principal, action in [], resource);\n";
    let found = errors(&[("methods.toml", METHODS), ("c.cedar", cedar)]);
    assert_eq!(
        found,
        [
            "c.cedar:2: error: the policy is about no action; write `action in [Action::\"math/add\"]`, or `action` alone"
        ]
    );
}

#[test]
fn roles_are_not_obtained_from_elsewhere_by_inclusion() {
    let sources = [("files", "from = \"files\"\n"), ("token", "from = \"token\"\n"), ("anywhere", "")];
    for (inner, inner_from) in sources {
        for (outer, outer_from) in sources {
            let rules = format!("[role.inner]\n{inner_from}[role.outer]\nincludes = [\n\"inner\"]\n{outer_from}");
            let loaded = load(&[("methods.toml", METHODS), ("r.toml", &rules)]);
            if inner == "anywhere" || inner == outer {
                loaded.unwrap_or_else(|errors| panic!("{inner} in {outer}: {errors}"));
                continue;
            }
            let found = errors_of(&rules);
            let whence = if inner == "files" { "files" } else { "tokens" };
            let expected = format!(
                "r.toml:5: error: the role `inner` comes from {whence} only, and `outer` would give it to others too; write `from = \"{inner}\"` for `outer`, or take it out of the `includes`"
            );
            assert_finding(&found, &expected);
        }
    }
    // Each step of a longer chain is one of these, so no chain gets around them.
    for (inner, middle, outer) in [("files", "files", "token"), ("token", "token", ""), ("files", "", "files")] {
        let from = |source: &str| if source.is_empty() { String::new() } else { format!("from = \"{source}\"\n") };
        let rules = format!(
            "[role.inner]\n{}[role.middle]\nincludes = [\"inner\"]\n{}[role.outer]\nincludes = [\"middle\"]\n{}",
            from(inner),
            from(middle),
            from(outer)
        );
        assert!(errors_of(&rules).iter().any(|line| line.contains(" would give it to others too")), "{rules}");
    }
}

#[test]
fn roles_from_files_and_from_tokens_stay_where_they_belong() {
    let set = toml(&format!(
        "{METHODS}\n[method.\"a/b\"]\n[role.janitor]\nfrom = \"files\"\nallow = [\"math/add\"]\n[role.head]\nfrom = \"files\"\nincludes = [\"janitor\"]\n\
         [role.human]\nfrom = \"token\"\nallow = [\"a/b\"]\n[role.boss]\nfrom = \"token\"\nincludes = [\"human\"]\n[agent.n]\nroles = [\"head\"]\n"
    ));
    assert!(allows(&set, &caller("n", &[]), "math/add", ""), "granted by the files");
    assert!(!allows(&set, &caller("x", &["head", "janitor"]), "math/add", ""), "claimed by a token");
    assert!(allows(&set, &caller("x", &["boss"]), "a/b", ""), "carried by a token");
    assert!(!allows(&set, &caller("n", &[]), "a/b", ""), "not granted by the files");
}

/// The errors of a table of expectations.
fn table_errors(table: &str) -> Vec<String> {
    match TestSuite::from_texts([("t.test.toml", table)]) {
        Ok(_) => panic!("it loads: {table}"),
        Err(errors) => errors.findings().iter().map(ToString::to_string).collect(),
    }
}

#[test]
fn a_case_asks_what_it_says_or_nothing() {
    let case = |params: &str| {
        format!(
            "[[case]]\ncaller = {{ agent = \"x\" }}\nmethod = \"bank/transfer\"\nexpect = \"deny\"\nparams = {params}\n"
        )
    };
    let no_fit = "does not fit into a JSON number here; in parameters, write it as JSON: `raw_params = '…'`";
    let not_json = "is not a number in JSON; write another";
    for (value, why) in [
        ("99999999999999999999", no_fit),
        ("-9223372036854775809", no_fit),
        ("0xffffffffffffffff", no_fit),
        ("1e400", no_fit),
        ("inf", not_json),
        ("-inf", not_json),
        ("nan", not_json),
    ] {
        let expected = format!("t.test.toml:5: error: `{value}` {why}");
        assert_eq!(table_errors(&case(&format!("{{ limit = {value} }}"))), std::slice::from_ref(&expected));
        assert_eq!(table_errors(&case(&format!("[[1, {{ a = {value} }}]]"))), [expected]);
        let claim = format!("[caller.a]\nclaims = {{ n = {value} }}\n");
        assert_eq!(table_errors(&claim), [format!("t.test.toml:2: error: `{value}` {why}")]);
    }
    for (params, kind) in [("\"x\"", "a string"), ("5", "an integer"), ("true", "true or false")] {
        let expected = format!(
            "t.test.toml:5: error: `params` is {kind}, which no call can send; write `{{ NAME = … }}` or `[ … ]`"
        );
        assert_eq!(table_errors(&case(params)), [expected]);
    }
    let raw = case("[]").replace("params = []", "raw_params = ' 5'");
    let expected = "t.test.toml:5: error: `raw_params` is neither an object nor a list, which no call can send; write `{…}` or `[…]`";
    assert_eq!(table_errors(&raw), [expected]);
    let reason = format!("{}reason = \"no_rul\"\n", case("[]"));
    assert_eq!(table_errors(&reason), ["t.test.toml:6: error: unknown reason `no_rul`; did you mean `no_rule`?"]);
}

#[test]
fn a_case_speaks_of_what_the_policies_have() {
    let set = toml(METHODS);
    let outcome = |table: &str| TestReport::run(&set, &TestSuite::from_texts([("t.test.toml", table)]).unwrap());
    let wrong = outcome(
        r#"[caller.a]
roles = ["teler"]
claims = { tennant = "x", other = 1 }
[[case]]
caller = "a"
method = "m/bb"
expect = "deny"
[[case]]
caller = { agent = "x", roles = ["teller", "nobody-knows"] }
method = "math/ad"
expect = "deny"
reason = "no_rule"
"#,
    );
    assert!(!wrong.passed());
    let text = wrong.to_string();
    for expected in [
        "FAIL t.test.toml:2: error: unknown role `teler`; did you mean `teller`?",
        "FAIL t.test.toml:3: error: unknown claim `tennant`; did you mean `tenant`?",
        "FAIL t.test.toml:3: error: unknown claim `other`; no rule can ask for it: take it out, or declare it under `[claims]`",
        "FAIL t.test.toml:6: error: unknown method `m/bb`; declare it, or write `reason = \"unknown_method\"` if that is what is expected",
        "FAIL t.test.toml:9: error: unknown role `nobody-knows`; no rule asks for it: take it out, or describe it: `[role.\"nobody-knows\"]`",
        "FAIL t.test.toml:10: error: unknown method `math/ad`; did you mean `math/add`?",
    ] {
        assert!(text.lines().any(|line| line == expected), "missing: {expected}\nin:\n{text}");
    }
    assert_eq!(wrong.mistakes.len(), 6, "{text}");
    let meant = outcome(
        "[[case]]\ncaller = { agent = \"x\" }\nmethod = \"m/bb\"\nexpect = \"deny\"\nreason = \"unknown_method\"\n",
    );
    assert!(meant.passed(), "{meant}");
}

fn errors_of_cedar(policy: &str) -> Vec<String> {
    errors(&[("methods.toml", METHODS), ("c.cedar", policy)])
}

#[test]
fn annotations_without_a_meaning_are_not_passed_over() {
    for (annotation, expected) in [
        ("@shadow", "error: unknown annotation `@shadow`; write `@mode(\"shadow\")`"),
        ("@enforce", "error: unknown annotation `@enforce`; write `@mode(\"enforce\")`"),
        ("@also", "error: unknown annotation `@also`; write `@delegated(\"also\")`"),
        ("@modes(\"shadow\")", "error: unknown annotation `@modes`; did you mean `mode`?"),
    ] {
        let found = errors_of_cedar(&format!("\n{annotation} permit(principal, action, resource);\n"));
        assert_eq!(found, [format!("c.cedar:2: {expected}")]);
    }
    let policy = "@on_behalf(\"also\") permit(principal, action, resource);";
    let found = warnings(&[("methods.toml", METHODS), ("c.cedar", policy)]);
    assert_eq!(
        found,
        [
            "c.cedar:1: warning: the annotation `@on_behalf` means nothing here; those with a meaning are `id`, `description`, `mode`, `delegated` and `unless_approved`"
        ]
    );
}

#[test]
fn entities_that_are_always_empty_are_refused() {
    for (condition, entity) in [
        ("Agent::\"planner\" in Role::\"teller\"", "Agent::\"planner\""),
        ("Agent::\"planner\" has region", "Agent::\"planner\""),
        ("(if context.delegated then principal else Agent::\"planner\").name == \"x\"", "Agent::\"planner\""),
        ("!(Role::\"teller\" in Role::\"teller\")", "Role::\"teller\""),
        ("context.hour > 3 && [principal].containsAny([Agent::\"planner\"])", "Agent::\"planner\""),
        ("principal in (if Agent::\"a\" has region then Role::\"teller\" else Role::\"teller\")", "Agent::\"a\""),
    ] {
        let expected = format!(
            "c.cedar:1: error: `{entity}` has no roles and no attributes here; compare it with `principal`: `principal == Agent::\"planner\"`, `principal in Role::\"teller\"`"
        );
        for clause in ["when", "unless"] {
            let policy = format!("forbid(principal, action, resource) {clause} {{ {condition} }};");
            assert_finding(&errors_of_cedar(&policy), &expected);
        }
    }
    for sound in [
        "principal == Agent::\"planner\" || Agent::\"till\" != principal",
        "principal in Role::\"teller\" || principal in [Role::\"teller\"]",
        "principal in [Agent::\"a\", Agent::\"b\"] || principal == Subject::\"c\"",
        "principal is Agent in Role::\"teller\"",
        "principal in (if context.delegated then Role::\"teller\" else Role::\"teller\")",
    ] {
        let policy = format!("forbid(principal, action, resource) when {{ {sound} }};");
        warnings(&[("methods.toml", METHODS), ("c.cedar", &policy)]);
    }
}

#[test]
fn values_that_no_call_has_are_refused_in_every_form() {
    let algorithm = "no message is signed with `eddsa`; write \"HS256\" or \"EdDSA\"";
    let agent = "no agent is named `not a name!`; it has 1 to 64 of A-Z a-z 0-9 _ -";
    for (condition, expected) in [
        ("algorithm = \"eddsa\"", algorithm),
        ("algorithm = { is = \"eddsa\" }", algorithm),
        ("algorithm = { not = \"eddsa\" }", algorithm),
        ("algorithm = { in = [\"HS256\", \"eddsa\"] }", algorithm),
        ("algorithm = { not_in = [\"eddsa\"] }", algorithm),
        (
            "algorithm = { glob = \"eddsa*\" }",
            "the conditions on the signature can never hold together; no value is left that all of them admit",
        ),
        (
            "algorithm = { not_in = [\"EdDSA\", \"HS256\"] }",
            "the conditions on the signature can never hold together; no value is left that all of them admit",
        ),
        ("agent = \"not a name!\"", agent),
        ("agent = { in = [\"a\", \"not a name!\"] }", agent),
    ] {
        for clause in ["when", "unless"] {
            assert_finding(&errors_with(&format!("{clause}.{condition}")), &format!("r.toml:4: error: {expected}"));
        }
    }
    let weekday = "no day is called `monday`; write mon, tue, wed, thu, fri, sat or sun";
    for (condition, expected) in [
        ("context.weekday == \"monday\"", weekday),
        ("context.weekday != \"monday\"", weekday),
        ("context.delegated || \"monday\" == context.weekday", weekday),
        ("[\"mon\", \"monday\"].contains(context.weekday)", weekday),
        ("context.hour > 3 && !(context.algorithm == \"eddsa\")", algorithm),
        ("context.agent == \"not a name!\"", agent),
    ] {
        for clause in ["when", "unless"] {
            let policy = format!("forbid(principal, action, resource) {clause} {{ {condition} }};");
            assert_finding(&errors_of_cedar(&policy), &format!("c.cedar:1: error: {expected}"));
        }
    }
    for sound in ["algorithm = { glob = \"Ed*\" }", "agent = \"a-1\"", "subject = \"alice@example.com\""] {
        toml(&format!(
            "{METHODS}\n[rule.a]\neveryone = true\nallow = [\"math/add\"]\ndelegated = \"also\"\nwhen.{sound}\n"
        ));
    }
}

#[test]
fn rules_that_take_away_what_they_ask_are_errors() {
    let takes_away = "`unless` takes away all that the other conditions leave";
    for (conditions, subject, why) in [
        (
            "when.params.to = \"a\"\nunless.params.to = \"a\"",
            "context.params.to",
            "no value is left that all of them admit",
        ),
        ("when.params.note = \"a\"\nunless.params.note = \"a\"", "context.params.note", takes_away),
        (
            "when.params.note = { in = [\"a\", \"b\"] }\nunless.params.note = { glob = \"*\" }",
            "context.params.note",
            takes_away,
        ),
        ("when.params.note = \"a\"\nunless.params.note = { present = true }", "context.params has note", takes_away),
        (
            "when.params.amount = { min = 5 }\nunless.params.amount = { min = 5 }",
            "context.params.amount",
            "`min` is larger than `max`",
        ),
        (
            "when.params.amount = { min = 5 }\nunless.params.amount = { min = 3 }",
            "context.params.amount",
            "`min` is larger than `max`",
        ),
        ("when.params.amount = 5\nunless.params.amount = { min = 3, max = 7 }", "context.params.amount", takes_away),
        ("when.hours = \"08:00-18:00\"\nunless.hours = \"08:00-18:00\"", "context.minute_of_day", takes_away),
        (
            "when.hours = \"08:00-18:00\"\nwhen.params.to = \"a\"\nunless.hours = \"07:00-18:30\"",
            "context.minute_of_day",
            takes_away,
        ),
        (
            "when.params.tags = { contains = \"x\" }\nunless.params.tags = { contains = \"x\" }",
            "context.params.tags.items.contains(\"x\")",
            takes_away,
        ),
        (
            "when.params.to = { glob = \"a*\" }\nunless.params.to = { glob = \"*\" }",
            "context.params.to",
            "`not_glob` leaves nothing",
        ),
    ] {
        let text = format!("[rule.a]\neveryone = true\nallow = [\"bank/transfer\"]\n{conditions}\n");
        let expected = format!("r.toml:1: error: the rule `a` can never hold: look at `{subject}`; {why}");
        assert_finding(&errors_of(&text), &expected);
    }
    for conditions in [
        "when.params.to = { glob = \"a*\" }\nunless.params.to = { glob = \"ab*\" }",
        "when.params.amount = { min = 5 }\nunless.params.amount = { min = 6 }",
        "when.params.amount = { min = 5 }\nunless = { params.amount = { min = 5 }, hours = \"08:00-18:00\" }",
        "when.params.to = \"a\"\nunless.params.note = \"a\"",
        "when.hours = \"08:00-18:00\"\nunless.hours = \"09:00-18:00\"",
        "when.params.tags = { contains = \"x\" }\nunless.params.tags = { contains = \"y\" }",
    ] {
        toml(&format!("{METHODS}\n[rule.a]\neveryone = true\nallow = [\"bank/transfer\"]\n{conditions}\n"));
    }
    for (clauses, subject, why) in [
        (
            "when { context.params.amount > 5 } unless { context.params.amount > 3 }",
            "context.params.amount",
            "`min` is larger than `max`",
        ),
        (
            "when { 5 < context.params.amount && 3 > context.params.amount }",
            "context.params.amount",
            "`min` is larger than `max`",
        ),
        (
            "when { 5 == context.params.amount && context.params.amount >= 6 }",
            "context.params.amount",
            "no value is left that all of them admit",
        ),
        (
            "when { !(context.params.amount < 5) && !(context.params.amount > 4) }",
            "context.params.amount",
            "`min` is larger than `max`",
        ),
        ("when { context.hour >= 24 }", "context.hour", "`min` is larger than `max`"),
        (
            "when { context.hour > 5 || context.delegated } unless { context.hour > 5 || context.delegated }",
            "(context.hour > 5) || context.delegated",
            takes_away,
        ),
    ] {
        let policy =
            format!("@id(\"x\") permit(principal, action == Action::\"bank/transfer\", resource)\n{clauses};\n");
        let expected = format!("c.cedar:1: error: the rule `x` can never hold: look at `{subject}`; {why}");
        assert_finding(&errors_of_cedar(&policy), &expected);
    }
    let sound = "permit(principal, action == Action::\"bank/transfer\", resource)\nwhen { 5 < context.params.amount && 7 > context.params.amount && 5 <= context.hour };\n";
    warnings(&[("methods.toml", METHODS), ("c.cedar", sound)]);
}

#[test]
fn demands_on_one_value_that_exclude_each_other_are_errors() {
    for (condition, label, why) in [
        ("to = { glob = \"a*\", not_glob = \"a*\" }", "to", "`not_glob` leaves nothing"),
        ("to = { glob = \"ab*c\", not_glob = \"a*\" }", "to", "`not_glob` leaves nothing"),
        ("to = { not_glob = \"*\" }", "to", "`not_glob` leaves nothing"),
        ("tags = { contains = \"x\", max_size = 0 }", "tags", "`max_size` leaves no room for what it has to contain"),
        (
            "tags = { contains_any = [\"x\"], max_size = 0 }",
            "tags",
            "`max_size` leaves no room for what it has to contain",
        ),
        ("tags = { contains = \"x\", each_in = [\"a\"] }", "tags", "`each_in` leaves out what it has to contain"),
        (
            "tags = { contains_any = [\"x\", \"y\"], each_in = [\"a\"] }",
            "tags",
            "`each_in` leaves out what it has to contain",
        ),
        ("tags = { min_size = 2, max_size = 1 }", "tags", "`min_size` is larger than `max_size`"),
    ] {
        let expected = format!("r.toml:4: error: the conditions on `{label}` can never hold together; {why}");
        assert_finding(&errors_with(&format!("when.params.{condition}")), &expected);
    }
    let too_long = "a list of more than 1024 values is refused before; write a number from 0 to 1024";
    for (condition, expected) in [
        ("min_size = 2000", too_long),
        ("max_size = 1025", too_long),
        ("min_size = -1", "`min_size` is -1, and a size is never negative; write a number from 0 to 1024"),
        ("max_size = -1", "`max_size` is -1, and a size is never negative; write a number from 0 to 1024"),
        ("max_size = 99999999999999999999", "`max_size` is 99999999999999999999; write a number from 0 to 1024"),
        ("max_size = 1.5", "`max_size` is 1.5; write a number from 0 to 1024"),
    ] {
        let found = errors_with(&format!("when.params.tags = {{ {condition} }}"));
        assert_finding(&found, &format!("r.toml:4: error: {expected}"));
    }
    for sound in [
        "to = { glob = \"a*\", not_glob = \"ab*\" }",
        "tags = { contains = \"x\", max_size = 1, each_in = [\"x\", \"y\"] }",
        "tags = { contains_any = [\"x\", \"z\"], each_in = [\"x\"], min_size = 1024 }",
    ] {
        toml(&format!("{METHODS}\n[rule.a]\neveryone = true\nallow = [\"bank/transfer\"]\nwhen.params.{sound}\n"));
    }
}

#[test]
fn messages_say_what_to_write_and_where() {
    let found = errors(&[(
        "m.toml",
        r#"[method.m]
params = [{ name = "n", type = "integer" }, { name = "s", type = "string" }]
[claims]
a = "object"
[role.teller]
delegated = true
[rule.a]
roles = [
  "teller",
  "teler",
]
allow = ["m"]
delegated = 5
when.params.s = { same_as = "params.n" }
when.params.n = { min = "a" }
mode = "shad\"ow\n"
"#,
    )]);
    for expected in [
        "m.toml:4: error: claims and attributes have no type `object`; write `string`, `integer`, `boolean`, `number`, `any`, `string[]`, `integer[]` or `boolean[]`",
        "m.toml:6: error: `delegated` is true or false; write `never` or `also` as a text",
        "m.toml:10: error: unknown role `teler`; did you mean `teller`?",
        "m.toml:13: error: `delegated` is an integer; write `never`, `also` or `only` as a text",
        "m.toml:14: error: `s` cannot be compared with \"params.n\", which is of type integer; of type string are `agent`, `algorithm`, `issuer`, `key`, `params.s` and `subject`",
        "m.toml:15: error: `n` is of type integer, and \"a\" can never match it; write a whole number, or `is`, `not`, `in`, `not_in`, `min`, `max`",
        "m.toml:16: error: `mode = \"shad\"ow\\n\"` is not known; did you mean `shadow`?",
    ] {
        assert_finding(&found, expected);
    }
    assert_eq!(found.len(), 7, "{found:#?}");
}

#[test]
fn a_name_used_twice_is_one_error() {
    let twice = "@id(\"a\") permit(principal, action, resource);\n".repeat(2);
    assert_eq!(errors_of_cedar(&twice), ["c.cedar:2: error: two rules are named `a`; the first is at c.cedar:1"]);
}

#[test]
fn a_byte_order_mark_is_no_part_of_a_policy() {
    let set = load(&[
        ("methods.toml", &format!("\u{feff}{METHODS}")),
        ("c.cedar", "\u{feff}@id(\"a\")\npermit(principal, action == Action::\"math/add\", resource);\n"),
    ]);
    let set = set.unwrap_or_else(|errors| panic!("{errors}")).0;
    assert_eq!(ask(&set, &caller("x", &[]), "math/add", "").rule.unwrap().line(), 1);
}

#[test]
fn files_that_cannot_be_laid_out_have_a_line() {
    let of = |name: &str, text: &str| format(name, text).unwrap_err().to_string();
    assert_eq!(
        of("a.toml", "[a]\nb = \n"),
        "cannot be laid out: line 2: string values must be quoted, expected literal string"
    );
    let cedar = of("a.cedar", "permit(principal, action, resource);\n\npermit(principal,\n action ==, resource);\n");
    assert!(cedar.starts_with("cannot be laid out: line 4: "), "{cedar}");
}
