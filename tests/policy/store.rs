//! Reloading a folder: as a whole, once it has settled, and never for the worse.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sealwire::MethodName;
use sealwire::decide::{Methods, PolicyStore, Reload};
use sealwire_testkit::policies::*;

const OPEN: &str = "[rule.open]\neveryone = true\nallow = [\"m\"]\n";
const CLOSED: &str = "[rule.closed]\neveryone = true\ndeny = [\"m\"]\n";

fn methods() -> Methods {
    Methods::new().with(MethodName::new("m").unwrap())
}

fn open(dir: &Path) -> PolicyStore {
    PolicyStore::open(dir, methods(), None).unwrap().0
}

fn allowed(store: &PolicyStore) -> bool {
    allows(&store.current(), &caller("a", &[]), "m", "")
}

#[test]
fn a_change_is_in_force_after_it_has_settled() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a.toml"), OPEN).unwrap();
    let store = open(dir.path());
    assert!(allowed(&store));
    assert!(matches!(store.poll(0), Reload::Unchanged));
    fs::write(dir.path().join("b.toml"), CLOSED).unwrap();
    assert!(matches!(store.poll(1_000), Reload::Waiting), "seen for the first time");
    assert!(matches!(store.poll(1_299), Reload::Waiting), "not settled");
    fs::write(dir.path().join("b.toml"), format!("{CLOSED}#")).unwrap();
    assert!(matches!(store.poll(1_400), Reload::Waiting), "changed again");
    assert!(allowed(&store));
    assert!(matches!(store.poll(1_700), Reload::Loaded { .. }));
    assert!(!allowed(&store));
    assert!(matches!(store.poll(9_000), Reload::Unchanged));
}

#[test]
fn what_never_settles_is_tried_every_five_seconds() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a.toml"), OPEN).unwrap();
    let store = open(dir.path());
    let mut tried = Vec::new();
    for half_seconds in 1..=30 {
        fs::write(dir.path().join("b.toml"), format!("{CLOSED}# {half_seconds}")).unwrap();
        match store.poll(half_seconds * 500) {
            Reload::Waiting => {}
            Reload::Loaded { .. } => tried.push(half_seconds),
            other => panic!("{other:?}"),
        }
        assert_eq!(allowed(&store), tried.is_empty());
    }
    assert_eq!(tried, [11, 22]);
    fs::write(dir.path().join("b.toml"), "nonsense").unwrap();
    assert!(matches!(store.poll(16_500), Reload::Refused { .. }), "so is a file that cannot be used");
}

#[test]
fn a_bad_change_keeps_the_last_good_revision_and_is_reported_once() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a.toml"), OPEN).unwrap();
    let store = open(dir.path());
    let good = store.current().revision().clone();
    fs::write(dir.path().join("a.toml"), "[rule.open]\neveryone = true\nalow = [\"m\"]\n").unwrap();
    fs::write(dir.path().join("b.toml"), CLOSED).unwrap();
    store.poll(0);
    let Reload::Refused { errors, kept } = store.poll(1_000) else { panic!("not refused") };
    assert!(errors.to_string().contains("a.toml:3: error: unknown key `alow`"), "{errors}");
    assert_eq!(kept, good);
    assert!(allowed(&store), "the good part of a bad folder is not in force either");
    assert!(matches!(store.poll(2_000), Reload::Unchanged));
    assert!(matches!(store.poll(3_000), Reload::Unchanged));
    fs::write(dir.path().join("a.toml"), "").unwrap();
    assert!(matches!(store.reload(), Reload::Loaded { .. }));
    assert!(!allowed(&store));
}

#[test]
fn an_emptied_folder_denies_everything_and_a_missing_one_keeps_what_was() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("policies");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("a.toml"), OPEN).unwrap();
    let store = open(&folder);
    fs::rename(&folder, dir.path().join("away")).unwrap();
    assert!(matches!(store.reload(), Reload::Refused { .. }));
    assert!(allowed(&store));
    fs::create_dir(&folder).unwrap();
    assert!(matches!(store.reload(), Reload::Loaded { .. }));
    assert!(!allowed(&store));
    assert!(store.current().revision().why().is_some());
    fs::write(folder.join("a.toml"), OPEN).unwrap();
    assert!(matches!(store.reload(), Reload::Loaded { .. }), "the registered methods were not forgotten");
    assert!(allowed(&store));
}

#[test]
fn a_service_that_starts_without_its_folder_denies_everything_and_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("policies");
    let (store, warnings) = PolicyStore::open(&folder, methods(), None).unwrap();
    assert!(!allowed(&store));
    assert!(store.current().revision().why().unwrap().contains("cannot be read"));
    assert!(warnings[0].to_string().contains("cannot be read"), "{warnings:?}");
    store.poll(0);
    assert!(matches!(store.poll(1_000), Reload::Unchanged), "the missing folder was already reported");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("a.toml"), OPEN).unwrap();
    store.poll(2_000);
    assert!(matches!(store.poll(3_000), Reload::Loaded { .. }));
    assert!(allowed(&store));
}

#[test]
fn declarations_in_files_may_change_from_one_revision_to_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let declare = |kind: &str, limit: &str| {
        let text = format!(
            "[method.m]\nparams = [{{ name = \"n\", type = \"{kind}\" }}]\n[rule.open]\neveryone = true\nallow = [\"m\"]\nwhen.params.n = {limit}\n"
        );
        fs::write(dir.path().join("a.toml"), text).unwrap();
    };
    declare("integer", "5");
    let store = open(dir.path());
    declare("string", "\"x\"");
    assert!(matches!(store.reload(), Reload::Loaded { .. }));
    assert!(allows(&store.current(), &caller("a", &[]), "m", "[\"x\"]"));
}

/// Two files that allow something only together: a reader that saw one old and one new file would be refused.
#[test]
fn readers_under_load_see_one_revision_or_the_other() {
    let dir = tempfile::tempdir().unwrap();
    let write = |role: &str| {
        let grant = format!("[agent.a]\nroles = [\"{role}\"]\n");
        let rules = format!("[role.{role}]\nallow = [\"m\"]\n");
        fs::write(dir.path().join("grant.toml"), grant).unwrap();
        fs::write(dir.path().join("rules.toml"), rules).unwrap();
    };
    write("one");
    let store = Arc::new(open(dir.path()));
    let stop = Arc::new(AtomicBool::new(false));
    let readers: Vec<_> = (0..2)
        .map(|_| {
            let (store, stop) = (Arc::clone(&store), Arc::clone(&stop));
            std::thread::spawn(move || {
                let mut asked = 0_u64;
                while !stop.load(Ordering::Relaxed) {
                    assert!(allowed(&store));
                    asked += 1;
                }
                asked
            })
        })
        .collect();
    for round in 0..20_u64 {
        write(if round % 2 == 0 { "two" } else { "one" });
        assert!(matches!(store.reload(), Reload::Loaded { .. }));
    }
    stop.store(true, Ordering::Relaxed);
    for reader in readers {
        assert!(reader.join().unwrap() > 0);
    }
}
