//! The errors and warnings found when policies load: with file, line and what to write instead.

use sealwire_testkit::policies::*;

const METHODS: &str = r#"
[method."bank/transfer"]
params = [
  { name = "to", type = "string" },
  { name = "amount", type = "integer" },
  { name = "rate", type = "number", optional = true },
  { name = "meta", type = "any", optional = true },
  { name = "note", type = "string", optional = true },
  { name = "urgent", type = "boolean", optional = true },
]
[method."bank/balance"]
params = [{ name = "account", type = "string" }]
[method."math/add"]
[role.teller]
[role.clerk]
"#;

fn errors_of(rules: &str) -> Vec<String> {
    errors(&[("methods.toml", METHODS), ("r.toml", rules)])
}

fn warnings_of(rules: &str) -> Vec<String> {
    warnings(&[("methods.toml", METHODS), ("r.toml", rules)])
}

#[test]
fn rules_name_what_exists() {
    let found = errors_of(
        r#"[rule.a]
roles = ["teler"]
allow = ["bank/transfr"]
[rule.b]
roles = ["teller"]
allow = ["bank/transfer"]
when.params.amont = 5
when.claims.tenant = "x"
when.attributes.team = "x"
[rule.c]
roles = ["teller"]
allow = ["bank/*"]
when.params.amount = 5
[rule.d]
roles = ["teller"]
allow = ["math/add"]
when.params.a = 5
"#,
    );
    for expected in [
        "r.toml:2: error: unknown role `teler`; did you mean `teller`?",
        "r.toml:3: error: unknown method `bank/transfr`; did you mean `bank/transfer`?",
        "r.toml:7: error: unknown parameter `amont`; did you mean `amount`?",
        "r.toml:8: error: unknown claim `tenant`; declare it: `[claims]` and below it `tenant = \"string\"`",
        "r.toml:9: error: unknown attribute `team`; declare it: `[attributes]` and below it `team = \"string\"`",
        "r.toml:13: error: not every method of this rule has the parameter `amount`; `bank/balance` has none; list only the methods that have it",
        "r.toml:17: error: unknown parameter `a`; the methods of this rule have no declared parameter in common: declare `params` in `[method.\"…\"]`",
    ] {
        assert_finding(&found, expected);
    }
    assert_eq!(found.len(), 7, "{found:#?}");
}

#[test]
fn values_have_the_type_of_what_they_are_compared_with() {
    let found = errors_of(
        r#"[rule.a]
everyone = true
allow = ["bank/transfer"]
[rule.a.when.params]
amount = { max = "100" }
to = 5
note = { min = 1 }
rate = { is = 5 }
meta = "x"
[rule.b]
everyone = true
allow = ["bank/transfer"]
when.params.amount = 1.5
when.params.to = { same_as = "params.amount" }
[rule.c]
everyone = true
allow = ["bank/transfer"]
when.params.amount = { glob = "1*" }
when.algorithm = "RS256"
when.token_age = "5"
when.hours = "8-18"
when.days = ["monday"]
when.utc_offset = "CET"
"#,
    );
    for expected in [
        "r.toml:5: error: `amount` is of type integer, and \"100\" can never match it; write a whole number, or `is`, `not`, `in`, `not_in`, `min`, `max`",
        "r.toml:6: error: `to` is of type string, and 5 can never match it; write a text, or `is`, `not`, `in`, `not_in`, `glob`, `not_glob`",
        "r.toml:7: error: `note` is of type string, which has no `min`; write a text, or `is`, `not`, `in`, `not_in`, `glob`, `not_glob`",
        "r.toml:8: error: `rate` is of type number, of which rules ask only `min` and `max`; write a bound, or declare it an integer in a smaller unit (cents, millimetres)",
        "r.toml:9: error: `meta` is of type any, which rules cannot compare; declare its type",
        "r.toml:13: error: `amount` is a 64-bit integer, and 1.5 is none; write a whole number that fits 64 bits",
        "r.toml:14: error: `to` cannot be compared with \"params.amount\", which is of type integer; of type string are `agent`, `algorithm`, `issuer`, `key`, `params.note`, `params.to` and `subject`",
        "r.toml:18: error: `amount` is of type integer, which has no `glob`; write a whole number, or `is`, `not`, `in`, `not_in`, `min`, `max`",
        "r.toml:19: error: no message is signed with `RS256`; did you mean `HS256`?",
        "r.toml:20: error: \"5\" is not a duration; write a number and a unit of s, m, h or d: \"90s\", \"5m\", \"2h\"",
        "r.toml:21: error: `8-18` is not a range of hours; write \"08:00-18:00\"; the end is not included, and \"22:00-06:00\" ends on the next day",
        "r.toml:22: error: `monday` is not a day; write mon, tue, wed, thu, fri, sat, sun, or mon-fri",
        "r.toml:23: error: `CET` is not an offset from UTC; write \"+02:00\", \"-05:30\" or \"Z\"",
    ] {
        assert_finding(&found, expected);
    }
}

#[test]
fn conditions_that_can_never_hold_are_errors() {
    for (condition, why) in [
        ("amount = { min = 5, max = 4 }", "`min` is larger than `max`"),
        ("amount = { is = 5, max = 4 }", "no value is left that all of them admit"),
        ("amount = { in = [1, 2], not_in = [1, 2] }", "no value is left that all of them admit"),
        ("amount = { min = 1, max = 2, not_in = [1, 2] }", "every value of the range is excluded"),
        ("to = { in = [\"a\"], glob = \"b*\" }", "no value is left that all of them admit"),
        ("urgent = { not_in = [true, false] }", "it is neither true nor false"),
        ("note = { present = false, is = \"a\" }", "it would have to be absent and have a value"),
    ] {
        let text = format!("[rule.a]\neveryone = true\nallow = [\"bank/transfer\"]\nwhen.params.{condition}\n");
        let found = errors_of(&text);
        let name = condition.split(' ').next().unwrap();
        assert_finding(&found, &format!("r.toml:4: error: the conditions on `{name}` can never hold together; {why}"));
    }
    let empty = errors_of("[rule.a]\neveryone = true\nallow = [\"bank/transfer\"]\nwhen.params.amount = { in = [] }\n");
    assert_finding(&empty, "r.toml:4: error: `in` is empty, so the condition means nothing; name the values");
    for (condition, subject, why) in [
        (
            "context.params.amount > 5 && context.params.amount < 6",
            "context.params.amount",
            "`min` is larger than `max`",
        ),
        (
            "context.params.to == \"a\" && context.params.to like \"b*\"",
            "context.params.to",
            "no value is left that all of them admit",
        ),
        (
            "context.delegated",
            "context.delegated",
            "a rule is for delegated calls only when it says `delegated` (in Cedar, `@delegated(\"also\")`)",
        ),
    ] {
        let policy = format!(
            "@id(\"x\")\npermit(principal, action == Action::\"bank/transfer\", resource)\nwhen {{ {condition} }};\n"
        );
        let found = errors(&[("methods.toml", METHODS), ("c.cedar", &policy)]);
        assert_finding(&found, &format!("c.cedar:1: error: the rule `x` can never hold: look at `{subject}`; {why}"));
    }
    let nobody = "@id(\"x\")\npermit(principal, action, resource) when { false };\n";
    let found = errors(&[("methods.toml", METHODS), ("c.cedar", nobody)]);
    assert_finding(
        &found,
        "c.cedar:1: error: the rule `x` can never hold; its conditions contradict each other or the types of what they ask",
    );
}

#[test]
fn rules_say_whom_what_and_one_effect() {
    let found = errors_of(
        r#"[rule.a]
allow = ["math/add"]
[rule.b]
roles = ["teller"]
[rule.c]
roles = ["teller"]
allow = ["math/add"]
deny = ["math/add"]
[rule.d]
roles = ["teller"]
everyone = true
allow = ["math/add"]
when = {}
[rule."e f"]
roles = ["teller"]
allow = ["math/add"]
modus = "shadow"
mode = "shadowy"
"#,
    );
    for expected in [
        "r.toml:1: error: this rule does not say which callers it applies to; write `roles`, `agents`, `subjects` or `everyone = true`",
        "r.toml:3: error: the rule `b` allows and denies nothing; write `allow = [\"…\"]` or `deny = [\"…\"]`",
        "r.toml:5: error: the rule `c` both allows and denies; make two rules of it",
        "r.toml:11: error: `everyone` beside `roles`, `agents` or `subjects`; leave one of them out",
        "r.toml:13: error: there is no condition in it; leave it out, or say what has to hold",
        "r.toml:14: error: `e f` is not a name for a rule; 1 to 64 of A-Z a-z 0-9 _ - . / are allowed",
        "r.toml:17: error: unknown key `modus` in `[rule.e f]`; the keys of `[rule.e f]` are `agents`, `allow`, `delegated`, `deny`, `description`, `everyone`, `mode`, `roles`, `subjects`, `unless`, `unless_approved` and `when`",
        "r.toml:18: error: `mode = \"shadowy\"` is not known; did you mean `shadow`?",
    ] {
        assert_finding(&found, expected);
    }
}

#[test]
fn two_rules_of_one_name_are_an_error_across_files_and_languages() {
    let rule = "[rule.same]\neveryone = true\nallow = [\"math/add\"]\n";
    let cedar = "@id(\"same\")\npermit(principal, action, resource);\n";
    let found = errors(&[("methods.toml", METHODS), ("a.toml", rule), ("b.toml", rule), ("c.cedar", cedar)]);
    assert_finding(&found, "b.toml:1: error: two rules are named `same`; the first is at a.toml:1");
    assert_finding(&found, "c.cedar:1: error: two rules are named `same`; the first is at b.toml:1");
}

#[test]
fn roles_that_nobody_can_have_are_a_warning() {
    let found = warnings_of(
        "[role.ghost]\nfrom = \"files\"\nallow = [\"math/add\"]\n[role.held]\nfrom = \"files\"\n[agent.a]\nroles = [\"held\"]\n",
    );
    assert_eq!(
        found,
        [
            "r.toml:1: warning: no caller can ever hold the role `ghost`, so `role.ghost.allow` never applies; grant it (`[agent.\"…\"] roles = […]`, `[subject.\"…\"]`), or let tokens carry it (`from = \"anywhere\"`)"
        ]
    );
}

#[test]
fn a_limit_that_negative_numbers_pass_is_a_warning() {
    let found = |when: &str, effect: &str| {
        let rule = format!("[role.r]\n[rule.x]\nroles = [\"r\"]\n{effect} = [\"m\"]\n{when}\n");
        let method = "[method.m]\nparams = [{ name = \"n\", type = \"integer\", optional = true }, { name = \"l\", type = \"string[]\" }]\n";
        warnings(&[("m.toml", method), ("r.toml", &rule)])
    };
    let says = "r.toml:5: warning: `x` allows every negative `n`; add `min = 0` or `min = 1` beside `max`";
    assert_eq!(found("when.params.n = { max = 5 }", "allow"), [says]);
    for when in [
        "when.params.n = { min = 0, max = 5 }",
        "when.params.n = { in = [1, 2], max = 5 }",
        "when.params.n = { max = -1 }",
        "when.params.l = { max_size = 5 }",
        "when.token_age = \"5m\"",
        "unless.params.n = { max = 5 }",
    ] {
        assert_eq!(found(when, "allow"), [] as [&str; 0], "{when}");
    }
    assert!(!found("when.params.n = { max = 5 }", "deny").iter().any(|line| line.contains("negative")));
}

#[test]
fn conditions_on_a_role_say_where_they_belong() {
    let errors = errors(&[("r.toml", "[role.r]\nallow = [\"*\"]\nwhen.hours = \"08:00-18:00\"\n")]);
    assert!(errors.iter().any(|line| line.starts_with("r.toml:3: ") && line.contains("`[rule.NAME]`")), "{errors:?}");
}

#[test]
fn rules_covered_by_others_are_a_warning() {
    let found = warnings_of(
        r#"[role.boss]
allow = ["bank/*"]
[rule.limit]
roles = ["boss"]
allow = ["bank/transfer"]
when.token_age = "5m"
[rule.closed]
everyone = true
deny = ["math/*"]
[rule.never]
roles = ["teller"]
allow = ["math/add"]
[rule.twin]
everyone = true
deny = ["math/add"]
[rule.trial]
everyone = true
deny = ["bank/*"]
mode = "shadow"
"#,
    );
    for expected in [
        "r.toml:3: warning: the rule `limit` changes nothing: `role.boss.allow` covers it; see r.toml:2",
        "r.toml:10: warning: the rule `never` never allows anything: `closed` denies all of it; see r.toml:7",
        "r.toml:13: warning: the rule `twin` changes nothing: `closed` covers it; see r.toml:7",
    ] {
        assert_finding(&found, expected);
    }
    assert_eq!(found.len(), 3, "{found:#?}");
}

#[test]
fn a_deny_rule_that_could_fail_is_an_error_and_an_allow_rule_a_warning() {
    let policy = |effect: &str| {
        format!(
            "@id(\"sum\")\n{effect}(principal, action == Action::\"bank/transfer\", resource)\nwhen {{ context.params.amount + 1 > 5 }};\n"
        )
    };
    let found = errors(&[("methods.toml", METHODS), ("c.cedar", &policy("forbid"))]);
    assert_finding(
        &found,
        "c.cedar:1: error: a deny rule that can fail: an addition can overflow; compare without computing, for instance with a literal on one side",
    );
    let found = warnings(&[("methods.toml", METHODS), ("c.cedar", &policy("permit"))]);
    assert_finding(
        &found,
        "c.cedar:1: warning: an allow rule that can fail: an addition can overflow; compare without computing, for instance with a literal on one side",
    );
}

#[test]
fn each_operation_that_can_fail_is_known_wherever_it_stands() {
    for (condition, why) in [
        ("context.params.amount + 1 > 5", "an addition can overflow"),
        ("context.params.amount - 1 > 5", "a subtraction can overflow"),
        ("context.params.amount * 2 > 5", "a multiplication can overflow"),
        ("-context.params.amount > 5", "a negation can overflow"),
        ("context.now.offset(duration(\"1d\")) > datetime(\"2026-01-01\")", "a computation with times can overflow"),
        (
            "context.now.durationSince(datetime(\"2026-01-01\")) > duration(\"1d\")",
            "a computation with times can overflow",
        ),
        ("decimal(context.params.to) > decimal(\"1.0\")", "a text that is not a literal may not be convertible"),
        ("datetime(context.params.to) > context.now", "a text that is not a literal may not be convertible"),
        ("context.delegated || [1, context.params.amount + 1].contains(5)", "an addition can overflow"),
        ("(if context.delegated then context.params.amount * 2 else 1) == 1", "a multiplication can overflow"),
    ] {
        let policy = format!(
            "@id(\"x\")\nforbid(principal, action == Action::\"bank/transfer\", resource)\nwhen {{ {condition} }};\n"
        );
        let found = errors(&[("methods.toml", METHODS), ("c.cedar", &policy)]);
        let expected = format!(
            "c.cedar:1: error: a deny rule that can fail: {why}; compare without computing, for instance with a literal on one side"
        );
        assert_finding(&found, &expected);
    }
    // A rule that cannot fail gives no finding.
    let sound = "@id(\"x\")\nforbid(principal, action == Action::\"bank/transfer\", resource)\nwhen { context.params.amount > -5 && context.now > datetime(\"2026-01-01\") };\n";
    assert_eq!(warnings(&[("methods.toml", METHODS), ("c.cedar", sound)]), [""; 0]);
}

#[test]
fn deny_rules_with_negations_of_what_may_be_absent_are_a_warning() {
    let found = warnings_of(
        "[rule.a]\neveryone = true\ndeny = [\"bank/transfer\"]\nwhen.params.note = { not_glob = \"ok*\" }\n",
    );
    assert_eq!(
        found,
        [
            "r.toml:4: warning: `a` denies only calls that have what \"`note` does not match `ok*`\" asks about; it is optional: to deny calls without it too, put the opposite under `unless`"
        ]
    );
}

#[test]
fn roles_cannot_include_themselves_and_files_cannot_grant_token_roles() {
    let found = errors_of(
        "[role.a]\nincludes = [\"b\"]\n[role.b]\nincludes = [\"a\"]\n[role.t]\nfrom = \"token\"\n[agent.x]\nroles = [\"t\"]\n",
    );
    assert_finding(&found, "r.toml:1: error: the role `a` includes itself; take one of the `includes` out");
    assert_finding(&found, "r.toml:8: error: the role `t` comes from tokens only; change `from` at r.toml:5");
}

#[test]
fn parameters_claims_and_attributes_are_declared_properly() {
    let found = errors(&[(
        "m.toml",
        r#"[method.m]
params = [ { name = "a", type = "int" }, { name = "a2", type = "string" }, { name = "a2", type = "string" },
  { type = "string" }, { name = "o", type = "object" }, { name = "s", type = "string", fields = [] }, 5 ]
[method."a/b"]
[method."a.b"]
[claims]
sub = "string"
tenant = 5
[attributes]
name = "string"
[agent.a]
attributes = { team = "x" }
"#,
    )]);
    for expected in [
        "m.toml:2: error: unknown type `int`; write `string`, `integer`, `boolean`, `number`, `any`, `string[]`, `integer[]`, `boolean[]` or `object`",
        "m.toml:2: error: the parameter `a2` is declared twice",
        "m.toml:3: error: an entry of `params` has no name or no type; write one table for each, in the order of their positions: `{ name = \"to\", type = \"string\" }`",
        "m.toml:3: error: an object without `fields`; write `fields = [{ name = …, type = … }]`, or `type = \"any\"`",
        "m.toml:3: error: a string has no `fields`; write `type = \"object\"`",
        "m.toml:3: error: `params` holds an integer; write one table for each, in the order of their positions: `{ name = \"to\", type = \"string\" }`",
        "m.toml:4: error: the methods `a.b` and `a/b` are the same in a subject; rename one of them",
        "m.toml:7: error: `sub` is not a claim to be declared; ask `subject`",
        "m.toml:8: error: the type of `tenant` is an integer; write `tenant = \"string\"`",
        "m.toml:10: error: every agent and subject has the attribute `name` already; give it another name",
        "m.toml:12: error: unknown attribute `team`; declare it: `[attributes]` and `team = \"string\"`",
    ] {
        assert_finding(&found, expected);
    }
}
