//! Agents and subjects are two name spaces: every way of giving something to the one, and whether a namesake of the other
//! kind gets it.

use sealwire::decide::Verdict;
use sealwire::internal::policy::{Access, CallerGroup, Diff};
use sealwire::{Caller, PolicySet, Question};
use sealwire_testkit::policies::*;

const METHOD: &str =
    "[method.m]\nparams = [{ name = \"account\", type = \"string\" }]\n[attributes]\nteam = \"string\"\n";

/// Ways to give the agent `n` something, as TOML or as Cedar: `ALLOW` and `DENY` stand for what is given.
const TO_AGENT: &[(&str, &str)] = &[
    ("[agent.n]\nEFFECT = [\"m\"]\nALSO\n", ""),
    ("[role.r]\nEFFECT = [\"m\"]\nALSO\n[agent.n]\nroles = [\"r\"]\n", ""),
    ("[role.r]\nfrom = \"files\"\nEFFECT = [\"m\"]\nALSO\n[agent.n]\nroles = [\"r\"]\n", ""),
    ("[role.r]\nEFFECT = [\"m\"]\nALSO\n[role.s]\nincludes = [\"r\"]\n[agent.n]\nroles = [\"s\"]\n", ""),
    ("[role.r]\n[rule.x]\nroles = [\"r\"]\nEFFECT = [\"m\"]\nALSO\n[agent.n]\nroles = [\"r\"]\n", ""),
    ("[rule.x]\nagents = [\"n\"]\nEFFECT = [\"m\"]\nALSO\n", ""),
    ("[rule.x]\nagents = [\"n*\"]\nEFFECT = [\"m\"]\nALSO\n", ""),
    ("[rule.x]\nagents = [\"n\", \"other*\"]\nEFFECT = [\"m\"]\nALSO\n", ""),
    ("[rule.x]\neveryone = true\nEFFECT = [\"m\"]\nALSO\nwhen.agent = \"n\"\n", ""),
    ("[rule.x]\neveryone = true\nEFFECT = [\"m\"]\nALSO\nwhen.agent = { glob = \"n*\" }\n", ""),
    ("[rule.x]\neveryone = true\nEFFECT = [\"m\"]\nALSO\nwhen.params.account = { same_as = \"agent\" }\n", ""),
    (
        "[agent.n]\nattributes = { team = \"red\" }\n[rule.x]\neveryone = true\nEFFECT = [\"m\"]\nALSO\nwhen.attributes.team = \"red\"\n",
        "",
    ),
    ("", "HEAD(principal == Agent::\"n\", action, resource);"),
    ("", "HEAD(principal in Agent::\"n\", action, resource);"),
    ("", "HEAD(principal is Agent in Agent::\"n\", action, resource);"),
    ("", "HEAD(principal is Agent, action, resource) when { principal.name == \"n\" };"),
    ("", "HEAD(principal, action, resource) when { principal == Agent::\"n\" };"),
    ("", "HEAD(principal, action, resource) when { principal in [Agent::\"n\", Agent::\"other\"] };"),
    ("", "HEAD(principal, action, resource) when { principal is Agent && principal.name like \"n*\" };"),
    ("[role.r]\n[agent.n]\nroles = [\"r\"]\n", "HEAD(principal in Role::\"r\", action, resource);"),
    (
        "[role.r]\n[agent.n]\nroles = [\"r\"]\n[subject.n]\nroles = [\"r\"]\n",
        "HEAD(principal is Agent in Role::\"r\", action, resource);",
    ),
    (
        "[agent.n]\nattributes = { team = \"red\" }\n",
        "HEAD(principal, action, resource) when { principal has team && principal.team == \"red\" };",
    ),
];

/// The same for the subject `n`.
fn to_subject((toml, cedar): &(&str, &str)) -> (String, String) {
    let toml = toml
        .replace("agents = ", "SUBJECTS = ")
        .replace("[subject.n]", "[AGENT.n]")
        .replace("[agent.n]", "[subject.n]")
        .replace("[AGENT.n]", "[agent.n]")
        .replace("when.agent", "when.subject")
        .replace("same_as = \"agent\"", "same_as = \"subject\"")
        .replace("SUBJECTS = ", "subjects = ");
    // All calls for a subject are delegated.
    let toml = toml.replacen("[subject.n]\nEFFECT = [\"m\"]\nALSO\n", "[subject.n]\nEFFECT = [\"m\"]\n", 1);
    let cedar = cedar.replace("Subject::", "OTHER::").replace("Agent", "Subject").replace("OTHER::", "Agent::");
    (toml, cedar)
}

/// A policy in which this is given, and everything else that the calls below need.
fn policy((toml, cedar): (&str, &str), effect: &str) -> PolicySet {
    let others = if effect == "allow" {
        "[rule.others]\nagents = [\"gateway\"]\nsubjects = [\"ann\"]\nallow = [\"m\"]\ndelegated = \"also\"\n"
    } else {
        "[rule.others]\neveryone = true\nallow = [\"m\"]\ndelegated = \"also\"\n"
    };
    let head = if effect == "allow" { "@delegated(\"also\") permit" } else { "forbid" };
    // The lists of roles and agents that deny are for delegated calls in any case.
    let also = "delegated = \"also\"";
    let (toml, cedar) = (toml.replace("EFFECT", effect).replace("ALSO", also), cedar.replace("HEAD", head));
    load(&[("a.toml", &format!("{METHOD}{others}{toml}")), ("b.cedar", &format!("{cedar}\n"))])
        .unwrap_or_else(|errors| panic!("{toml}{cedar}\n{errors}"))
        .0
}

fn asked(set: &PolicySet, caller: &Caller) -> bool {
    let raw = serde_json::value::RawValue::from_string("[\"n\"]".to_owned()).unwrap();
    let question = Question { caller, method: "m", params: Some(&raw), now_ms: MONDAY_AFTERNOON };
    let decision = set.decide(&question);
    assert_eq!(set.explain(&question).decision, decision);
    // Nobody is told of a method that it cannot call.
    assert!(!decision.is_allow() || set.reach(caller, "m", MONDAY_AFTERNOON).is_some());
    decision.verdict == Verdict::Allow
}

/// The agent `n` in its own name, for somebody, and somebody of that name for whom another agent acts.
fn calls() -> [Caller; 3] {
    [caller("n", &[]), on_behalf_of("n", "ann", &[]), on_behalf_of("gateway", "n", &[])]
}

#[test]
fn what_is_given_to_an_agent_is_never_given_to_a_subject_of_its_name_and_the_reverse() {
    let mut rows = 0;
    for given in TO_AGENT {
        let subject = to_subject(given);
        for (given, to_agent) in [(*given, true), ((subject.0.as_str(), subject.1.as_str()), false)] {
            for effect in ["allow", "deny"] {
                let set = policy(given, effect);
                for (caller, is_agent) in calls().iter().zip([true, true, false]) {
                    let expected = (is_agent == to_agent) == (effect == "allow");
                    assert_eq!(asked(&set, caller), expected, "{effect} {given:?}: {caller:?}");
                    rows += 1;
                }
            }
        }
    }
    println!("{rows} rows");
    assert_eq!(rows, TO_AGENT.len() * 12);
}

/// What both have is what the token says, unless only files grant it.
#[test]
fn roles_of_the_token_are_for_both_and_roles_of_files_for_those_whom_files_name() {
    let policy = |from: &str| {
        let text = format!(
            "{METHOD}[role.r]\nfrom = \"{from}\"\nallow = [\"m\"]\ndelegated = \"also\"\n[agent.gateway]\nallow = [\"m\"]\n"
        );
        load(&[("a.toml", &text.replace("[agent.gateway]\n", "[agent.gateway]\ndelegated = \"also\"\n"))]).unwrap().0
    };
    for (from, expected) in [("anywhere", true), ("token", true), ("files", false)] {
        let set = policy(from);
        for caller in [caller("n", &["r"]), on_behalf_of("gateway", "n", &["r"])] {
            assert_eq!(asked(&set, &caller), expected, "{from} {caller:?}");
        }
    }
}

/// A call in the agent's own name has no subject, not even itself.
#[test]
fn a_call_in_the_agents_own_name_has_no_subject() {
    for condition in [
        "subject = \"n\"",
        "subject = { glob = \"*\" }",
        "params.account = { same_as = \"subject\" }",
        "subject = { present = true }",
    ] {
        let rule =
            format!("{METHOD}[rule.x]\neveryone = true\nallow = [\"m\"]\ndelegated = \"also\"\nwhen.{condition}\n");
        let set = load(&[("a.toml", &rule)]).unwrap().0;
        assert!(!asked(&set, &caller("n", &[])), "{condition}");
        assert!(asked(&set, &on_behalf_of("gateway", "n", &[])), "{condition}");
    }
}

#[test]
fn rules_that_could_never_apply_to_a_subject_do_not_load() {
    let file = |text: &str| errors(&[("a.toml", &format!("{METHOD}{text}"))]);
    for (text, says) in [
        ("[rule.x]\nsubjects = [\"ann\"]\nallow = [\"m\"]\n", "asks for a subject"),
        ("[rule.x]\nsubjects = [\"a*\"]\nallow = [\"m\"]\n", "asks for a subject"),
        ("[rule.x]\nsubjects = [\"ann\"]\ndeny = [\"m\"]\ndelegated = \"never\"\n", "asks for a subject"),
        ("[rule.x]\neveryone = true\nallow = [\"m\"]\nwhen.subject = \"ann\"\n", "asks for a subject"),
        (
            "[rule.x]\neveryone = true\nallow = [\"m\"]\nwhen.params.account = { same_as = \"subject\" }\n",
            "asks for a subject",
        ),
        ("[subject.ann]\nallow = [\"m\"]\ndelegated = \"also\"\n", "unknown key `delegated`"),
        (
            "[agent.\"ann@example.com\"]\nallow = [\"m\"]\n",
            "no agent is named `ann@example.com`; it has 1 to 64 of A-Z a-z 0-9 _ -; for whom agents act is a subject",
        ),
        ("[rule.x]\nagents = [\"ann@*\"]\nallow = [\"m\"]\n", "no agent is named `ann@`"),
        (
            "[subject.\"ann müller\"]\nallow = [\"m\"]\n",
            "no subject is named `ann müller`; it has 1 to 128 visible ASCII characters",
        ),
        ("[rule.x]\nsubjects = [\"\"]\nallow = [\"m\"]\ndelegated = \"only\"\n", "no subject is named ``"),
        ("[rule.x]\neveryone = true\nallow = [\"m\"]\nwhen.agent = { glob = \"a?c\" }\n", "no agent is named `a?c`"),
        ("[rule.x]\neveryone = true\ndeny = [\"m\"]\nwhen.subject = \"\"\n", "no subject is named ``"),
        ("[rule.x]\neveryone = true\ndeny = [\"m\"]\nwhen.key = \"k 1\"\n", "no key has the id `k 1`"),
        ("[subject.ann]\n[subject.\"ann\"]\n", "duplicate"),
    ] {
        let found = file(text);
        assert!(found.iter().any(|line| line.contains(says)), "{text}\n{found:#?}");
    }
    for (text, says) in [
        ("permit(principal == Subject::\"ann\", action, resource);", "asks for a subject"),
        ("permit(principal is Subject, action, resource);", "asks for a subject"),
        ("@delegated(\"only\") permit(principal is Subject in Agent::\"ann\", action, resource);", "can never be that"),
        ("@delegated(\"only\") permit(principal == Agent::\"a b\", action, resource);", "no agent is named `a b`"),
        (
            "@delegated(\"only\") permit(principal, action, resource) when { principal == Subject::\"\" };",
            "no subject is named ``",
        ),
        (
            "@delegated(\"only\") permit(principal, action, resource) when { context.subject == \"ann\" };",
            "optional attribute",
        ),
        (
            "permit(principal, action, resource) when { context.agent == context.agent && Subject::\"x\" == Subject::\"y\" };",
            "has no roles and no attributes here",
        ),
    ] {
        let found = errors(&[("a.toml", METHOD), ("b.cedar", text)]);
        assert!(found.iter().any(|line| line.contains(says)), "{text}\n{found:#?}");
    }
    // One name in both tables is two principals.
    assert!(
        load(&[("a.toml", &format!("{METHOD}[agent.ann]\nallow = [\"m\"]\n[subject.ann]\ndeny = [\"m\"]\n"))]).is_ok()
    );
}

#[test]
fn tools_tell_the_two_apart() {
    let of = |table: &str| {
        load(&[(
            "a.toml",
            &format!("{METHOD}[role.r]\nallow = [\"m\"]\ndelegated = \"also\"\n[{table}.n]\nroles = [\"r\"]\n"),
        )])
        .unwrap()
        .0
    };
    let (agent, subject) = (of("agent"), of("subject"));
    let named = |name: &str| [CallerGroup::Agent(name.to_owned()), CallerGroup::Subject(name.to_owned())];
    for (set, expected) in [(&agent, [Access::Allowed, Access::Denied]), (&subject, [Access::Denied, Access::Allowed])]
    {
        assert_eq!(named("n").map(|callers| set.access(&callers, "m").access), expected);
        assert_eq!(set.callers().iter().filter(|callers| named("n").contains(callers)).count(), 1);
    }
    assert_eq!(agent.callers().last().unwrap().to_string(), "agent n");
    assert_eq!(subject.callers().last().unwrap().to_string(), "subject n");
    let diff = Diff::between(&agent, &subject);
    assert!(!diff.is_same());
    let shown = diff.to_string();
    for line in [
        "what files grant to `n`: gone, was `r`",
        "what files grant to `subject n`: new, `r`",
        "- m agent n",
        "+ m subject n",
    ] {
        assert!(shown.contains(line), "{line}\n{shown}");
    }
    let asked = on_behalf_of("gateway", "n", &["r"]);
    let question = Question { caller: &asked, method: "m", params: None, now_ms: 0 };
    let doubts = agent.unknown_names(&question);
    assert!(
        doubts
            .iter()
            .any(|doubt| doubt.contains("no file names the subject `n`: the agent of that name is another principal")),
        "{doubts:?}"
    );
    let json = serde_json::to_value(agent.explain(&question)).unwrap();
    assert_eq!([&json["principals"][0]["kind"], &json["principals"][1]["kind"]], ["agent", "subject"]);
}
