//! The tools for reviewers and operators: expectations, matrix, difference, replay, layout, schema.

use sealwire::decide::Verdict;
use sealwire::internal::policy::{
    Access, CallerGroup, Diff, Replay, TestReport, TestSuite, format, json_schema, test_json_schema,
};
use sealwire::internal::record::{Chain, FIRST, Kind};
use sealwire::{DecisionRecord, PolicySet, Question};
use sealwire_testkit::policies::*;
use serde_json::value::RawValue;

const BANK: &str = r#"
[method."bank/transfer"]
description = "Moves <money>."
params = [{ name = "to", type = "string" }, { name = "amount", type = "integer" }, { name = "memo", type = "any", optional = true }]
[method."bank/balance"]
[method."admin/drain"]
[claims]
tenant = "string"
[role.teller]
allow = ["bank/balance"]
[role.operator]
[agent."night-bot"]
roles = ["teller"]

[rule.small]
roles = ["teller"]
allow = ["bank/transfer"]
when.params.amount = { max = 100 }

[rule.day]
everyone = true
deny = ["bank/transfer"]
unless.hours = "08:00-18:00"

[rule.drain]
roles = ["operator"]
allow = ["admin/drain"]
delegated = "only"

[rule.trial]
roles = ["operator"]
allow = ["bank/transfer"]
mode = "shadow"
"#;

#[test]
fn expectations_pass_fail_with_grounds_and_count_coverage() {
    let set = toml(BANK);
    let table = r#"
[caller.teller]
agent = "t1"
roles = ["teller"]
claims = { tenant = "acme" }
token_age = "5m"

[[case]]
name = "small by day"
caller = "teller"
method = "bank/transfer"
params = { to = "a", amount = 100 }
at = "fri 10:00"
expect = "allow"
rule = "small"

[[case]]
caller = "teller"
method = "bank/transfer"
params = ["a", 100]
at = 2026-09-21T22:00:00Z
expect = "deny"
rule = "day"
reason = "forbidden_by"

[[case]]
caller = { agent = "x", roles = ["teller"] }
method = "bank/transfer"
raw_params = '["a", 1e2]'
expect = "deny"
reason = "param_type"

[[case]]
name = "too much"
caller = "teller"
method = "bank/transfer"
params = ["a", 101]
expect = "allow"
"#;
    let expectations = TestSuite::from_texts([("bank.test.toml", table)]).unwrap();
    assert_eq!(expectations.len(), 4);
    let outcome = TestReport::run(&set, &expectations);
    assert!(!outcome.passed());
    let text = outcome.to_string();
    for line in [
        "FAIL too much (bank.test.toml:33)",
        "  t1 (teller) calls bank/transfer [\"a\",101]",
        "- allow",
        "+ deny: no rule allows it",
        "    no   `amount` is at most 100 (amount = 101)",
        "not exercised by any case: `role.teller.allow` (policy.toml:10)",
        "not exercised by any case: `drain` (policy.toml:25)",
    ] {
        assert!(text.lines().any(|found| found == line), "missing: {line}\nin:\n{text}");
    }
    assert!(text.contains("4 cases, 1 failed; 2 of 5 rules exercised"), "{text}");
}

#[test]
fn mistakes_in_expectations_have_lines() {
    let table = "[caller.a]\nrole = [\"x\"]\n[[case]]\ncaller = \"b\"\nmethod = \"m\"\nexpect = \"allow\"\n[[case]]\ncaller = \"a\"\nmethod = \"m\"\nexpect = \"yes\"\nat = \"noon\"\n";
    let errors = TestSuite::from_texts([("t.test.toml", table)]).unwrap_err();
    let found: Vec<String> = errors.findings().iter().map(ToString::to_string).collect();
    assert_finding(&found, "t.test.toml:2: error: unknown key `role` in `[caller.a]`; did you mean `roles`?");
    assert_finding(&found, "t.test.toml:4: error: unknown caller `b`; did you mean `a`?");
    assert_finding(&found, "t.test.toml:10: error: `expect = \"yes\"` is not known; write `allow`, `deny` or `wait`");
}

#[test]
fn a_case_that_names_a_rule_which_does_not_exist_fails() {
    let set = toml(BANK);
    let table =
        "[[case]]\ncaller = { agent = \"x\" }\nmethod = \"bank/transfer\"\nexpect = \"deny\"\nrule = \"gone\"\n";
    let outcome = TestReport::run(&set, &TestSuite::from_texts([("t.test.toml", table)]).unwrap());
    assert_eq!(outcome.unknown_rules, ["gone"]);
    assert!(!outcome.passed());
}

#[test]
fn the_matrix_knows_always_if_and_never() {
    let set = toml(BANK);
    let access = |callers: &CallerGroup, method: &str| set.access(callers, method).access;
    let (teller, operator) = (CallerGroup::Role("teller".into()), CallerGroup::Role("operator".into()));
    let bot = CallerGroup::Agent("night-bot".into());
    assert_eq!(access(&teller, "bank/balance"), Access::Allowed);
    assert_eq!(access(&bot, "bank/balance"), Access::Allowed);
    assert_eq!(access(&operator, "bank/balance"), Access::Denied);
    assert_eq!(access(&teller, "bank/transfer"), Access::Conditional);
    assert_eq!(access(&operator, "bank/transfer"), Access::Denied, "a shadow rule gives nothing");
    assert_eq!(access(&operator, "admin/drain"), Access::Conditional);
    assert_eq!(access(&CallerGroup::Anyone, "bank/transfer"), Access::Denied);
    assert_eq!(access(&teller, "none"), Access::Denied);
    let text = set.matrix().to_string();
    for line in [
        "method         anyone  role operator  role teller  agent night-bot",
        "admin/drain    -       if             -            -              ",
        "bank/transfer  -       -              if           if             ",
        "  allow by `small` (policy.toml:15) if `amount` is at most 100",
        "  deny by `day` (policy.toml:20) if not (it is between 08:00 and 18:00 UTC)",
        "  allow by `drain` (policy.toml:25) if the agent calls on behalf of another",
        "bank/transfer  role teller, agent night-bot",
    ] {
        assert!(text.lines().any(|found| found.trim_end() == line.trim_end()), "missing: {line}\nin:\n{text}");
    }
    let who: Vec<String> = set.who_can("bank/transfer").iter().map(|(callers, _)| callers.to_string()).collect();
    assert_eq!(who, ["role teller", "agent night-bot"]);
    let can: Vec<String> = set.can(&bot).into_iter().map(|(method, _)| method).collect();
    assert_eq!(can, ["bank/balance", "bank/transfer"]);
}

#[test]
fn the_page_for_reviewers_is_whole_and_escaped() {
    let page = toml(BANK).matrix().to_html();
    assert!(page.starts_with("<!doctype html>") && page.ends_with("</body></html>\n"), "{page}");
    assert!(page.contains("Moves &lt;money&gt;.") && !page.contains("<money>"));
    assert!(page.contains("`amount` is at most 100"));
    assert!(!page.contains("<script") && !page.contains("://") && !page.contains("src="), "nothing is run or loaded");
}

#[test]
fn who_conditions_in_cedar_are_settled_where_they_can_be() {
    let text = "@id(\"x\") permit(principal, action == Action::\"bank/balance\", resource) when { principal in Role::\"operator\" && principal.name like \"op-*\" };";
    let (set, _) = load(&[("a.toml", BANK), ("c.cedar", text)]).unwrap();
    let access = |callers: CallerGroup| set.access(&callers, "bank/balance").access;
    assert_eq!(access(CallerGroup::Role("operator".into())), Access::Conditional);
    assert_eq!(access(CallerGroup::Anyone), Access::Denied);
    assert_eq!(access(CallerGroup::Agent("op-1".into())), Access::Denied, "no role is granted to it");
}

#[test]
fn differences_are_told_per_method_and_caller() {
    let old = toml(BANK);
    let text = BANK
        .replace("{ max = 100 }", "{ max = 500 }")
        .replace("[role.operator]", "[role.operator]\nallow = [\"bank/balance\"]")
        .replace("[rule.day]\neveryone = true\n", "[rule.office]\neveryone = true\n")
        .replace("roles = [\"teller\"]\n\n", "roles = []\n\n");
    let new = toml(&text);
    let diff = Diff::between(&old, &new).to_string();
    for line in [
        "+ bank/balance role operator: denied -> allowed",
        "+ bank/transfer role teller: conditional, differently",
        "    `small` (allow) limit raised: `amount` is at most 100 -> 500",
        "- bank/balance agent night-bot: allowed -> denied",
        "    no longer allow by `role.teller.allow` (policy.toml:10)",
    ] {
        assert!(diff.lines().any(|found| found == line), "missing: {line}\nin:\n{diff}");
    }
    assert!(!diff.contains("`office`"), "a new name alone changes nothing:\n{diff}");
    assert!(Diff::between(&old, &toml(BANK)).is_same());
}

fn record(set: &PolicySet, roles: &[&str], method: &str, params: &str) -> String {
    let mut caller = caller("a", roles);
    caller.token.claims = serde_json::json!({"tenant": "acme", "secret": "x"}).as_object().unwrap().clone();
    caller.token.id = "token-id".into();
    let raw = (!params.is_empty()).then(|| RawValue::from_string(params.into()).unwrap());
    let question = Question { caller: &caller, method, params: raw.as_deref(), now_ms: MONDAY_AFTERNOON };
    let record = DecisionRecord::new(set, &question, &set.decide(&question), None);
    let line = Chain::new("s1").line(Kind::Decision, &record).unwrap();
    String::from_utf8(line).unwrap().trim_end().to_owned()
}

#[test]
fn records_hold_what_is_declared_and_nothing_else() {
    let set = toml(BANK);
    let line = record(&set, &["teller"], "bank/transfer", r#"{"to":"a","amount":100,"memo":{"pin":1234}}"#);
    assert_eq!(
        line,
        format!(
            r#"{{"v":1,"session":"s1","seq":1,"prev":"{FIRST}","kind":"decision","at_ms":{MONDAY_AFTERNOON},"revision":"{}","agent":"a","roles":["teller"],"algorithm":"HS256","key":"a.k1","token_id":"token-id","issued_at":0,"expires_at":0,"known_claims":["tenant"],"claims":{{"tenant":"acme"}},"method":"bank/transfer","declared":["to: string","amount: integer","memo?: any"],"params":{{"amount":100,"memo":"…","to":"a"}},"verdict":"allow","reason":"allowed_by","rule":"small"}}"#,
            set.revision()
        )
    );
    let odd = record(&set, &["teller"], "bank/transfer", r#"{"to":"a","amount":1e2}"#);
    assert!(odd.contains(r#""fault":"param_type","verdict":"deny","reason":"param_type""#), "{odd}");
    let undeclared = record(&set, &["teller"], "bank/balance", r#"{"account":"secret"}"#);
    assert!(!undeclared.contains("secret"), "{undeclared}");
    let shadow = record(&set, &["operator"], "bank/transfer", r#"["a",5]"#);
    assert!(shadow.contains(r#""shadow":[{"rule":"trial","would":"would_allow"}]"#), "{shadow}");
}

/// docs/records.md: a record has more than decisions, and later versions may add members to a line.
#[test]
fn only_decisions_of_a_record_are_put_to_other_policies() {
    let set = toml(BANK);
    let decision = record(&set, &["teller"], "bank/balance", r#"{"account":"a"}"#);
    let other = |kind: &str| decision.replace(r#""kind":"decision""#, &format!("\"kind\":\"{kind}\""));
    let lines =
        [decision.clone(), other("outcome"), other("of_later"), decision.replace("\"v\":1", "\"v\":1,\"more\":2")];
    let replay = Replay::run(&set, &lines.join("\n"));
    assert!(replay.is_same() && replay.calls == 2, "{replay}");
    let unknown = decision.replace("\"v\":1", "\"v\":2");
    assert_eq!(Replay::run(&set, &unknown).unreadable.len(), 1, "members of another version may mean anything");
}

/// docs/records.md: what the record keeps of each parameter is declared with it.
#[test]
fn records_keep_of_parameters_what_their_declarations_say() {
    let folder = tempfile::tempdir().unwrap();
    let recorder = sealwire::serve::Recorder::open(
        &sealwire::configure::RecordConfig::in_folder(folder.path().join("records")),
        "dev/bank",
        "s1",
    )
    .unwrap();
    recorder.finish();
    let files = std::fs::read_dir(folder.path().join("records")).unwrap();
    let names: Vec<String> = files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    let month = names.iter().find_map(|name| name.strip_prefix("salt-")).unwrap();
    let salt = sealwire::internal::record::Salt::read(&folder.path().join("records"), month).unwrap();
    let set = toml(
        r#"[method.m]
audit = "before"
params = [
  { name = "to", type = "string", audit = "hash" },
  { name = "pin", type = "string", audit = "drop" },
  { name = "order", type = "object", fields = [{ name = "card", type = "string", audit = "drop" }, { name = "sum", type = "integer" }] },
  { name = "note", type = "string", optional = true, audit = "clear" },
]
[rule.r]
everyone = true
allow = ["m"]
when.params.order.sum = { max = 9 }
"#,
    );
    let agent = caller("a", &[]);
    let record = |to: &str, salt| {
        let params = format!(r#"{{"to":"{to}","pin":"1234","order":{{"card":"4711","sum":5}}}}"#);
        let raw = RawValue::from_string(params).unwrap();
        let question = Question { caller: &agent, method: "m", params: Some(&raw), now_ms: MONDAY_AFTERNOON };
        DecisionRecord::new(&set, &question, &set.decide(&question), salt)
    };
    let alice = record("alice", Some(&salt));
    assert_eq!(serde_json::to_string(&alice.params).unwrap(), r#"{"order":{"sum":5}}"#);
    assert_eq!(alice.dropped.iter().map(String::as_str).collect::<Vec<_>>(), ["order.card", "pin"]);
    assert_eq!(alice.hashed["to"], salt.digest("m", "to", &"alice".into()));
    assert_eq!(alice.hashed, record("alice", Some(&salt)).hashed);
    assert_ne!(alice.hashed, record("bob", Some(&salt)).hashed);
    assert_eq!(alice.salt.as_deref(), Some(month));
    let text = serde_json::to_string(&alice).unwrap() + &serde_json::to_string(&record("alice", None)).unwrap();
    assert!(!text.contains("alice") && !text.contains("1234") && !text.contains("4711"), "{text}");
    assert!(record("alice", None).dropped.contains("to"), "without a salt, nothing is kept");
    // A policy that asks for them cannot be told from the record.
    let why = alice.again(&set).1.unwrap();
    assert!(why.contains("the record does not show the value of `to`"), "{why}");
}

#[test]
fn recordings_are_put_to_other_policies() {
    let set = toml(BANK);
    let lines = [
        record(&set, &["teller"], "bank/transfer", r#"{"to":"a","amount":100,"memo":[]}"#),
        record(&set, &["teller"], "bank/transfer", r#"["a",101]"#),
        record(&set, &["teller"], "bank/transfer", r#"["a",1e1]"#),
        record(&set, &["teller"], "bank/balance", r#"{"account":"a"}"#),
        record(&set, &[], "none", ""),
    ]
    .join("\n");
    let same = Replay::run(&set, &lines);
    assert!(same.is_same(), "{same}");
    let stricter = toml(&BANK.replace("{ max = 100 }", "{ max = 99 }"));
    let replay = Replay::run(&stricter, &lines);
    assert_eq!(replay.different.len(), 1);
    assert_eq!(replay.different[0].line, 1);
    assert_eq!(replay.different[0].now.verdict, Verdict::Deny);
    assert!(
        replay
            .to_string()
            .contains("line 1: a bank/transfer\n  - allow (allowed_by) by `small`\n  + deny: no rule allows it\n"),
        "{replay}"
    );

    let asks = BANK.replace(
        "[method.\"bank/balance\"]\n",
        "[method.\"bank/balance\"]\nparams = [{ name = \"account\", type = \"string\" }]\n",
    ) + "[rule.own]\neveryone = true\ndeny = [\"bank/balance\"]\nwhen.params.account = \"root\"\n";
    let replay = Replay::run(&toml(&asks), &lines);
    assert_eq!((replay.different.len(), replay.unknown.len()), (0, 1), "{replay}");
    assert!(
        replay.to_string().contains("line 4: a bank/balance: cannot be told: the policy asks for parameters"),
        "{replay}"
    );
    let replay = Replay::run(&set, "{\"at_ms\":1}\n");
    assert_eq!(replay.unreadable[0].0, 1);

    // However many bad lines there are, and however long.
    let replay = Replay::run(&set, &"no record\n".repeat(1_500));
    assert_eq!((replay.unreadable.len(), replay.totals.unreadable), (1_000, 1_500));
    assert!(replay.to_string().contains("500 more lines are not listed\n0 calls: "), "{}", replay.totals.unreadable);
    let long = format!("{{\"{}\":1}}\n", "x".repeat(1 << 20));
    assert!(Replay::run(&set, &long).to_string().contains("longer than 16384 bytes"));
    let params = format!(r#"{{"to":"{}","amount":100}}"#, "x".repeat(15_000));
    let many = (record(&set, &["teller"], "bank/transfer", &params) + "\n").repeat(400);
    let replay = Replay::run(&stricter, &many);
    assert_eq!((replay.different.len() * 15_000 / (4 << 20), replay.totals.different), (0, 400));
    assert!(replay.different.len() > 200, "{}", replay.different.len());
}

#[test]
fn layout_does_not_change_what_is_said() {
    let formatted = format("policy.toml", BANK).unwrap();
    assert_eq!(format("policy.toml", &formatted).unwrap(), formatted);
    let (old, new) = (toml(BANK), toml(&formatted));
    assert!(Diff::between(&old, &new).is_same());
}

/// Every key that the reader knows is in the schema, and no other: the reader lists its keys when it meets an unknown one.
#[test]
fn the_schema_has_the_keys_that_the_reader_has() {
    let schema = json_schema();
    let keys = |pointer: &str| -> Vec<String> {
        let properties = schema.pointer(pointer).unwrap_or_else(|| panic!("{pointer}")).as_object().unwrap();
        let mut keys: Vec<String> = properties.keys().cloned().collect();
        keys.sort();
        keys
    };
    let table = |name: &str| keys(&format!("/properties/{name}/additionalProperties/properties"));
    let listed = |text: &str| -> Vec<String> {
        let lines = errors(&[("a.toml", text)]);
        let line = lines.iter().find(|line| line.contains("; the keys of")).unwrap_or_else(|| panic!("{lines:?}"));
        let (_, names) = line.split_once(" are ").unwrap();
        names.split(['`', ',', ' ']).filter(|name| !name.is_empty() && *name != "and").map(ToOwned::to_owned).collect()
    };
    assert_eq!(listed("zzzzzzzzz = 1\n"), keys("/properties"));
    for name in ["role", "agent", "method", "approval", "rule"] {
        assert_eq!(listed(&format!("[{name}.x]\nzzzzzzzzzzz = 1\n")), table(name), "{name}");
    }
    let rule = "[method.m]\n[rule.x]\neveryone = true\nallow = [\"m\"]\nwhen.zzzzzzzzzz = 1\n";
    assert_eq!(listed(rule), keys("/definitions/conditions/properties"));
    let param = "[method.m]\nparams = [{ name = \"a\", type = \"string\", zzzzzzzzz = 1 }]\n";
    assert_eq!(listed(param), keys("/definitions/param/properties"));
    let mut demands: Vec<String> = Vec::new();
    for (kind, value) in [("string", "text"), ("integer", "count"), ("string[]", "list")] {
        let text = format!(
            "[method.m]\nparams = [{{ name = \"{value}\", type = \"{kind}\" }}]\n[rule.x]\neveryone = true\nallow = [\"m\"]\nwhen.params.{value}.zzzzzzzzzz = 1\n"
        );
        demands.extend(listed(&text));
    }
    demands.sort();
    demands.dedup();
    assert_eq!(demands, keys("/definitions/condition/anyOf/1/properties"));
    assert!(test_json_schema().pointer("/properties/case/items/properties/expect").is_some());
}
