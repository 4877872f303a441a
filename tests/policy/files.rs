//! Roles, agents and methods from TOML files: what they allow, what they deny, and what is refused on loading.

use std::path::Path;

use sealwire::decide::{Methods, Reason, Severity, Verdict};
use sealwire::errors::PolicyErrors;
use sealwire::{Caller, Decision, MethodName, PolicySet, Question};
use sealwire_testkit::policies::{MONDAY_AFTERNOON, caller, on_behalf_of};

fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = dir.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    dir
}

fn methods(names: &[&str]) -> Methods {
    names.iter().map(|name| MethodName::new(name).unwrap()).collect()
}

fn standard_methods() -> Methods {
    methods(&["math/add", "math/mul", "math/reset", "log/append", "rpc.can"])
}

fn load(files: &[(&str, &str)]) -> Result<PolicySet, PolicyErrors> {
    PolicySet::load(folder(files).path(), &standard_methods()).map(|(set, _)| set)
}

fn ask(set: &PolicySet, caller: &Caller, method: &str) -> Decision {
    set.decide(&Question { caller, method, params: None, now_ms: MONDAY_AFTERNOON })
}

fn allows(set: &PolicySet, caller: &Caller, method: &str) -> bool {
    ask(set, caller, method).verdict == Verdict::Allow
}

const CALC: &str = r#"
[role.calc]
description = "Arithmetic without side effects."
allow = ["math/*"]
deny = ["math/reset"]

[agent."planner"]
roles = ["calc"]
allow = ["log/append"]
"#;

#[test]
fn roles_from_token_and_from_files_allow_and_deny_wins() {
    let set = load(&[("calc.toml", CALC)]).unwrap();
    let planner = caller("planner", &[]);
    let stranger = caller("stranger", &[]);
    let holder = caller("holder", &["calc"]);
    assert!(allows(&set, &planner, "math/add"), "granted in the file");
    assert!(allows(&set, &holder, "math/add"), "in the token");
    assert!(!allows(&set, &stranger, "math/add"));
    assert!(allows(&set, &planner, "log/append"), "the agent's own list");
    assert!(!allows(&set, &holder, "log/append"));

    let denied = ask(&set, &planner, "math/reset");
    assert_eq!((denied.verdict, denied.reason), (Verdict::Deny, Reason::ForbiddenBy));
    let rule = denied.rule.unwrap();
    assert_eq!((rule.name(), rule.file(), rule.line()), ("role.calc.deny", "calc.toml", 5));

    let allowed = ask(&set, &planner, "math/add");
    assert_eq!(allowed.reason, Reason::AllowedBy);
    assert_eq!(allowed.rule.unwrap().to_string(), "`role.calc.allow` (calc.toml:4)");
    assert_eq!(ask(&set, &stranger, "math/add").reason, Reason::NoRule);
}

#[test]
fn delegated_calls_need_both_parties_and_a_rule_that_says_so() {
    let text = r#"
[role.calc]
allow = ["math/add"]
delegated = "also"
[role.solo]
allow = ["math/mul"]
[agent."planner"]
roles = ["calc", "solo"]
[subject."alice@example.com"]
roles = ["calc", "solo"]
"#;
    let set = load(&[("a.toml", text)]).unwrap();
    assert!(allows(&set, &on_behalf_of("planner", "alice@example.com", &[]), "math/add"));
    assert!(!allows(&set, &on_behalf_of("planner", "bob", &[]), "math/add"), "the subject may not");
    assert!(!allows(&set, &on_behalf_of("other", "alice@example.com", &[]), "math/add"), "the agent may not");
    assert!(allows(&set, &on_behalf_of("other", "bob", &["calc"]), "math/add"), "the token's roles are for both");
    assert!(allows(&set, &caller("planner", &[]), "math/mul"));
    assert!(
        !allows(&set, &on_behalf_of("planner", "alice@example.com", &[]), "math/mul"),
        "a rule that does not mention delegation is not for delegated calls"
    );
}

#[test]
fn deny_lists_apply_to_delegated_calls_always() {
    let text = r#"
[role.calc]
allow = ["math/*"]
deny = ["math/reset"]
delegated = "also"
[role.other]
deny = ["math/mul"]
"#;
    let set = load(&[("a.toml", text)]).unwrap();
    assert!(allows(&set, &on_behalf_of("planner", "alice", &["calc"]), "math/add"));
    assert!(!allows(&set, &on_behalf_of("planner", "alice", &["calc"]), "math/reset"));
    assert!(!allows(&set, &on_behalf_of("planner", "alice", &["calc", "other"]), "math/mul"));
}

#[test]
fn unknown_methods_reveal_themselves_only_to_those_who_might_call_them() {
    let set = load(&[("calc.toml", CALC)]).unwrap();
    let reason = |agent: &str, roles: &[&str], method: &str| ask(&set, &caller(agent, roles), method).reason;
    assert_eq!(reason("p", &["calc"], "math/sqrt"), Reason::UnknownMethod { would_allow: true });
    assert_eq!(reason("p", &[], "math/sqrt"), Reason::UnknownMethod { would_allow: false });
    assert_eq!(reason("p", &["calc"], "bank/transfer"), Reason::UnknownMethod { would_allow: false });
    assert_eq!(reason("p", &["calc"], "math/"), Reason::UnknownMethod { would_allow: false }, "no name at all");
    assert_eq!(reason("p", &["calc"], "math/a b"), Reason::UnknownMethod { would_allow: false }, "no name at all");

    let nested = r#"
[role.all]
allow = ["*"]
[role.most]
allow = ["*"]
deny = ["math/*"]
"#;
    let set = load(&[("a.toml", nested)]).unwrap();
    let reason = |roles: &[&str], method: &str| ask(&set, &caller("p", roles), method).reason;
    assert_eq!(reason(&["all"], "math/none"), Reason::UnknownMethod { would_allow: true });
    assert_eq!(reason(&["most"], "math/none"), Reason::UnknownMethod { would_allow: false });
    assert_eq!(reason(&["most"], "none"), Reason::UnknownMethod { would_allow: true });
}

#[test]
fn built_in_methods_are_ordinary_methods() {
    let set = load(&[("a.toml", "[role.asker]\nallow = [\"rpc.*\"]\n")]).unwrap();
    assert!(allows(&set, &caller("p", &["asker"]), "rpc.can"));
    assert!(!allows(&set, &caller("p", &[]), "rpc.can"));
}

#[test]
fn empty_folder_denies_everything_and_says_so() {
    let dir = folder(&[("README.md", "# nothing"), ("x.test.toml", "")]);
    let (set, warnings) = PolicySet::load(dir.path(), &standard_methods()).unwrap();
    assert_eq!(ask(&set, &caller("p", &["calc"]), "math/add").reason, Reason::DenyAll);
    assert_eq!(ask(&set, &caller("p", &["calc"]), "none").reason, Reason::DenyAll);
    assert_eq!(set.revision().to_string(), "deny-all");
    assert!(set.revision().why().unwrap().contains("no policy file"));
    assert_eq!(warnings.len(), 1);
    assert_eq!(warnings[0].severity, Severity::Warning);
}

#[test]
fn missing_folder_is_an_error_that_names_it() {
    let errors = PolicySet::load(Path::new("/nonexistent/policies"), &standard_methods()).unwrap_err();
    assert!(errors.to_string().contains("/nonexistent/policies"), "{errors}");
}

#[test]
fn every_mistake_is_reported_with_line_and_remedy() {
    let text = r#"[role.calc]
alow = ["math/*"]
allow = ["math/ad", "math*", 5, "bank/*"]
delegated = "maybe"

[agent.planner]
roles = ["cal"]

[rol.x]
allow = ["*"]
"#;
    let errors =
        load(&[("a.toml", text), ("b.toml", "[role.calc]\n[role.x\n"), ("c.toml", "[role.calc]\n")]).unwrap_err();
    let lines: Vec<String> = errors.findings().iter().map(ToString::to_string).collect();
    for expected in [
        "a.toml:2: error: unknown key `alow` in `[role.calc]`; did you mean `allow`?",
        "a.toml:3: error: unknown method `math/ad`; did you mean `math/add`?",
        "a.toml:3: error: `math*` is not a method pattern; a `*` stands for all methods, or ends a pattern after a separator: `math/*`",
        "a.toml:3: error: `allow` holds an integer; write `allow = [\"…\"]`",
        "a.toml:3: error: no registered method matches `bank/*`; remove it, or register the methods it is for",
        "a.toml:4: error: `delegated = \"maybe\"` is not known; write `never` or `also`",
        "a.toml:7: error: unknown role `cal`; did you mean `calc`?",
        "a.toml:9: error: unknown key `rol` in a policy file; did you mean `role`?",
        "c.toml:1: error: the role `calc` is described twice; put it together with a.toml:1",
    ] {
        assert!(lines.iter().any(|line| line == expected), "missing: {expected}\nin:\n{}", lines.join("\n"));
    }
    assert!(lines.iter().any(|line| line.starts_with("b.toml:2: error: ")), "{}", lines.join("\n"));
    assert_eq!(errors.count(), lines.len());
}

#[test]
fn methods_of_a_tool_come_from_the_files() {
    let text = "[method.\"bank/transfer\"]\ndescription = \"Moves money.\"\n[role.teller]\nallow = [\"bank/*\"]\n";
    let dir = folder(&[("bank.toml", text)]);
    let (set, _) = PolicySet::load(dir.path(), &Methods::from_files()).unwrap();
    assert!(allows(&set, &caller("p", &["teller"]), "bank/transfer"));
    let errors = PolicySet::load(dir.path(), &standard_methods()).unwrap_err();
    assert!(errors.to_string().contains("bank.toml:1: error: unknown method `bank/transfer`"), "{errors}");
}

#[test]
fn names_in_files_cannot_become_code() {
    let text = r#"
[role.'x"); permit(principal, action, resource); //']
allow = ["math/add"]
"#;
    let set = load(&[("a.toml", text)]).unwrap();
    assert!(!allows(&set, &caller("p", &["x"]), "math/add"));
    assert!(!allows(&set, &caller("p", &[]), "math/reset"));
    assert!(allows(&set, &caller("p", &["x\"); permit(principal, action, resource); //"]), "math/add"));
}

#[test]
fn revision_is_a_digest_of_names_and_content() {
    let first = load(&[("a.toml", CALC)]).unwrap().revision().clone();
    let same = load(&[("a.toml", CALC)]).unwrap().revision().clone();
    let renamed = load(&[("b.toml", CALC)]).unwrap().revision().clone();
    let changed = load(&[("a.toml", &format!("{CALC}\n"))]).unwrap().revision().clone();
    assert_eq!(first, same);
    assert_ne!(first, renamed);
    assert_ne!(first, changed);
    assert_eq!(first.to_string().len(), 12);
    assert!(first.digest().starts_with(&first.to_string()));
}

#[test]
fn explanation_names_the_part_that_failed() {
    let set = load(&[("calc.toml", CALC)]).unwrap();
    let delegated = on_behalf_of("planner", "alice", &[]);
    let question = Question { caller: &delegated, method: "math/add", params: None, now_ms: 0 };
    let text = set.explain(&question).to_string();
    assert!(text.starts_with("deny: no rule allows it\n"), "{text}");
    assert!(text.contains("for planner: deny"), "{text}");
    assert!(
        text.contains("    yes  the caller has the role `calc`\n    no   the agent calls in its own name"),
        "{text}"
    );
    assert!(text.contains("for the subject alice: deny"), "{text}");
    let json = serde_json::to_value(set.explain(&question)).unwrap();
    assert_eq!(json["decision"]["verdict"], "deny");
}

#[test]
fn sets_are_shared_between_threads() {
    fn shared<T: Send + Sync + 'static>() {}
    shared::<PolicySet>();
}
