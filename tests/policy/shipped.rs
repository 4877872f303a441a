//! The policies that the project ships: they load without a warning, decide as they say, and every rule is exercised.

use std::path::{Path, PathBuf};

use sealwire::PolicySet;
use sealwire::decide::Methods;
use sealwire::internal::policy::{CallerGroup, TestReport, TestSuite, format};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("policies")
}

/// Includes those of the MCP server in the compose set-up.
fn all() -> [(PathBuf, usize); 2] {
    [(folder(), 13), (Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/glossary/policies"), 2)]
}

#[test]
fn shipped_policies_load_without_a_warning() {
    for (folder, methods) in all() {
        let loaded = PolicySet::load(&folder, &Methods::from_files());
        let (set, warnings) = loaded.unwrap_or_else(|errors| panic!("{errors}"));
        assert!(warnings.is_empty(), "{warnings:#?}");
        assert_eq!(set.methods().names().count(), methods, "{}", folder.display());
    }
}

#[test]
fn shipped_expectations_hold_and_exercise_every_rule() {
    for (folder, _) in all() {
        let (set, _) = PolicySet::load(&folder, &Methods::from_files()).unwrap();
        let expectations = TestSuite::load(&folder).unwrap_or_else(|errors| panic!("{errors}"));
        let outcome = TestReport::run(&set, &expectations);
        assert!(outcome.passed(), "{outcome}");
        assert!(outcome.uncovered.is_empty(), "{outcome}");
    }
}

#[test]
fn nobody_has_more_than_their_work_needs() {
    let (set, _) = PolicySet::load(&folder(), &Methods::from_files()).unwrap();
    let can = |callers: CallerGroup| set.can(&callers).into_iter().map(|(method, _)| method).collect::<Vec<_>>();
    assert_eq!(can(CallerGroup::Anyone), ["bank/balance", "rpc.can"], "their own");
    assert_eq!(
        can(CallerGroup::Role("calculator".into())),
        ["bank/balance", "clock/ticks", "job/run", "log/append", "math/add", "math/mul", "rpc.can", "text/echo"]
    );
    assert_eq!(
        can(CallerGroup::Role("operator".into())),
        ["admin/drain-cache", "bank/balance", "clock/ticks", "rpc.can", "rpc.explain", "text/echo"]
    );
    assert_eq!(can(CallerGroup::Role("auditor".into())), ["audit/read", "rpc.can", "rpc.explain"]);
}

#[test]
fn shipped_files_are_laid_out_as_fmt_does() {
    for entry in all().iter().flat_map(|(folder, _)| std::fs::read_dir(folder).unwrap()) {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if name.ends_with(".md") {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(format(name, &text).unwrap(), text, "{name}");
    }
}
