//! Callers, questions and policies from texts, for the tests of policies.

use sealwire::decide::{Finding, Methods};
use sealwire::errors::PolicyErrors;
use sealwire::{Caller, Decision, Name, PolicySet, Question};
use serde_json::value::RawValue;

/// Monday, 2026-09-21 14:13:20 UTC.
pub const MONDAY_AFTERNOON: u64 = 1_790_000_000_000;

pub fn load(files: &[(&str, &str)]) -> Result<(PolicySet, Vec<Finding>), PolicyErrors> {
    PolicySet::from_texts(files.iter().copied(), &Methods::from_files())
}

/// A policy of one TOML file that must load.
pub fn toml(text: &str) -> PolicySet {
    load(&[("policy.toml", text)]).unwrap_or_else(|errors| panic!("{errors}")).0
}

/// What is wrong with these files, one line each.
#[track_caller]
pub fn errors(files: &[(&str, &str)]) -> Vec<String> {
    match load(files) {
        Ok((_, warnings)) => panic!("it loads: {files:?} {warnings:?}"),
        Err(errors) => errors.findings().iter().map(ToString::to_string).collect(),
    }
}

/// What is doubtful in these files, one line each.
pub fn warnings(files: &[(&str, &str)]) -> Vec<String> {
    load(files).unwrap_or_else(|errors| panic!("{errors}")).1.iter().map(ToString::to_string).collect()
}

#[track_caller]
pub fn assert_finding(found: &[String], expected: &str) {
    assert!(found.iter().any(|line| line == expected), "missing: {expected}\nin:\n{}", found.join("\n"));
}

pub fn caller(agent: &str, roles: &[&str]) -> Caller {
    Caller::new(Name::new(agent).unwrap(), roles.iter().map(ToString::to_string))
}

pub fn on_behalf_of(agent: &str, subject: &str, roles: &[&str]) -> Caller {
    Caller { subject: subject.to_owned(), delegated: true, ..caller(agent, roles) }
}

pub fn ask_at(set: &PolicySet, caller: &Caller, method: &str, params: &str, now_ms: u64) -> Decision {
    let raw = (!params.is_empty()).then(|| RawValue::from_string(params.to_owned()).unwrap());
    set.decide(&Question { caller, method, params: raw.as_deref(), now_ms })
}

pub fn ask(set: &PolicySet, caller: &Caller, method: &str, params: &str) -> Decision {
    ask_at(set, caller, method, params, MONDAY_AFTERNOON)
}

pub fn allows(set: &PolicySet, caller: &Caller, method: &str, params: &str) -> bool {
    ask(set, caller, method, params).is_allow()
}
