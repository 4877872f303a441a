//! Policy files that are meant to bring down the loader, or the service around it.

use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use sealwire::decide::{Methods, PolicyStore, Reload};
use sealwire::{MethodName, PolicySet};
use sealwire_testkit::policies::*;

const OPEN: &str = "[method.m]\n[rule.open]\neveryone = true\nallow = [\"m\"]\n";

fn load(files: &[(&str, &str)]) -> Result<PolicySet, String> {
    let loaded = PolicySet::from_texts(files.iter().copied(), &Methods::from_files());
    loaded.map(|(set, _)| set).map_err(|errors| errors.to_string())
}

/// As small as the stack of a runtime thread: 2 MiB.
fn on_a_small_stack<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    std::thread::Builder::new().stack_size(2 << 20).spawn(work).unwrap().join().unwrap()
}

fn permit(condition: &str) -> String {
    format!("permit(principal, action, resource) when {{ {condition} }};")
}

#[test]
fn policy_that_is_nested_without_bound_is_an_error_and_not_the_end() {
    let nested = |n: usize| permit(&format!("{}context.hour < 5{}", "(".repeat(n), ")".repeat(n)));
    let chain = |n: usize, operator: &str| permit(&vec!["context.hour < 5"; n].join(operator));
    let ifs = |n: usize| permit(&format!("{}true", "if context.hour < 5 then true else ".repeat(n)));
    let deep = "is nested deeper than 32 levels";
    let long = "has more than 300 operators";
    for (text, expected) in [
        (nested(100_000), deep),
        (nested(300), deep),
        (permit(&format!("{}1{}", "[".repeat(1_000), "]".repeat(1_000))), deep),
        (chain(100_000, " || "), long),
        (chain(3_000, " && "), long),
        (ifs(3_000), long),
        (permit(&vec!["1"; 5_000].join(" + ")), long),
        (permit(&format!("context{} == 1", ".a".repeat(5_000))), long),
        (permit(&format!("context{} == 1", "[\"a\"]".repeat(5_000))), long),
        (permit(&format!("context{} == 1", " [ \"a\" ] ".repeat(5_000))), long),
        (permit(&format!("context{} == 1", ".a[\"b\"]".repeat(5_000))), long),
        (permit(&format!("context{}", "()".repeat(5_000))), long),
        (permit(&format!("principal == {}A::\"x\"", "A::".repeat(5_000))), deep),
    ] {
        let error = on_a_small_stack(move || load(&[("a.toml", OPEN), ("b.cedar", &text)]).unwrap_err());
        assert!(error.contains(&format!("b.cedar:1: error: {expected}")), "{error}");
    }
}

/// The largest permitted policy loads, decides, is explained and is dropped on a small stack.
#[test]
fn policies_at_the_bounds_fit_into_a_thread_of_the_runtime() {
    let texts = [
        permit(&format!("{}context.hour < 25{}", "(".repeat(30), ")".repeat(30))),
        permit(&vec!["context.hour > 25"; 74].join(" || ")),
        permit(&format!("{}true", "if context.hour > 25 then false else ".repeat(74))),
        permit(&format!("{} > 0", vec!["1"; 298].join(" + "))),
    ];
    for text in texts {
        on_a_small_stack(move || {
            let set = load(&[("a.toml", "[method.m]\n"), ("b.cedar", &text)]).unwrap_or_else(|error| panic!("{error}"));
            let caller = caller("a", &[]);
            let question = sealwire::Question { caller: &caller, method: "m", params: None, now_ms: 0 };
            assert_eq!(set.decide(&question), set.explain(&question).decision);
            assert_ne!(set.decide(&question).reason.label(), "evaluation_error", "{}", &text[..80]);
        });
    }
}

/// Quotation marks and comments hide nothing from the bound, and their contents do not count.
#[test]
fn texts_and_comments_are_no_nesting() {
    let brackets = "(".repeat(500);
    for good in [
        permit(&format!("context.token.id == \"{brackets}\"")),
        permit(&format!("context.token.id == \"\\\"{brackets}\"")),
        format!("// {brackets}\n{}", permit("true")),
        permit(&format!("[{}].contains(context.agent)", vec!["\"x\""; 3_000].join(","))),
    ] {
        assert!(load(&[("a.toml", OPEN), ("b.cedar", &good)]).is_ok(), "{}", &good[..60]);
    }
    let hidden = permit(&format!("context.token.id == \"\\\\\" || {}true{}", "(".repeat(40), ")".repeat(40)));
    assert!(load(&[("a.toml", OPEN), ("b.cedar", &hidden)]).unwrap_err().contains("nested deeper"));
}

#[test]
fn long_lists_in_toml_load_and_decide_on_a_small_stack() {
    let names: Vec<String> = (0..20_000).map(|n| format!("\"agent-{n}-*\"")).collect();
    let text = format!("[method.m]\n[rule.many]\nagents = [{}]\nallow = [\"m\"]\n", names.join(", "));
    on_a_small_stack(move || {
        let set = load(&[("a.toml", &text)]).unwrap();
        assert!(allows(&set, &caller("agent-19999-x", &[]), "m", ""));
        assert!(!allows(&set, &caller("agent-20000-x", &[]), "m", ""));
    });
}

#[test]
fn what_is_no_file_is_an_error_and_is_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("a.toml"), OPEN).unwrap();
    let pipe = dir.path().join("pipe.toml");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let error = PolicySet::load(dir.path(), &Methods::from_files()).unwrap_err().to_string();
    assert!(error.contains("pipe.toml: error: is not a regular file"), "{error}");
    std::fs::remove_file(&pipe).unwrap();
    std::os::unix::fs::symlink("/nowhere/at/all", dir.path().join("link.toml")).unwrap();
    let error = PolicySet::load(dir.path(), &Methods::from_files()).unwrap_err().to_string();
    assert!(error.contains("link.toml: error: is a link whose target cannot be read"), "{error}");
}

#[test]
fn file_that_lost_its_content_is_a_warning() {
    for (name, text) in [("b.toml", ""), ("b.cedar", " \n\t\n")] {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a.toml"), OPEN).unwrap();
        std::fs::write(dir.path().join(name), text).unwrap();
        let (_, warnings) = PolicySet::load(dir.path(), &Methods::from_files()).unwrap();
        assert!(warnings.iter().any(|warning| warning.file == name && warning.message == "is empty"), "{warnings:?}");
    }
}

/// The processor time of this thread: on a busy machine, the clock says little. Zero where the system does not tell.
fn processor_time() -> Duration {
    let told = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    Duration::from_nanos(told.split(' ').next().and_then(|spent| spent.parse().ok()).unwrap_or_default())
}

/// Thousands of rules about one method: comparing any two of them takes no long time.
#[test]
fn three_thousand_rules_load_in_seconds() {
    let mut text = String::from("[method.m]\n[claims]\nt = \"string\"\n");
    for n in 0..3_000 {
        writeln!(text, "[rule.r{n}]\neveryone = true\nallow = [\"m\"]\nwhen.claims.t = \"x{n}\"").unwrap();
    }
    let began = processor_time();
    let set = load(&[("a.toml", &text)]).unwrap();
    let spent = processor_time() - began;
    println!("3,000 rules loaded in {:.1} s", spent.as_secs_f64());
    assert!(spent < Duration::from_secs(60));
    assert!(!allows(&set, &caller("a", &[]), "m", ""));
}

/// A service that was started earlier: it has a policy set, and watches its folder from then on.
#[test]
fn service_that_watches_sees_what_length_time_and_depth_do_not_show() {
    let methods = Methods::new().with(MethodName::new("m").unwrap());
    let dir = tempfile::tempdir().unwrap();
    let deep = dir.path().join("1/2/3/4/5/6/7/8");
    std::fs::create_dir_all(&deep).unwrap();
    let file = deep.join("x.toml");
    let rule = |effect: &str| format!("[rule.x]\neveryone = true\n{effect} = [\"m\"] \n");
    std::fs::write(&file, rule("allow")).unwrap();
    let time = std::fs::metadata(&file).unwrap().modified().unwrap();
    let (set, _) = PolicySet::open(dir.path(), &methods).unwrap();
    let store = PolicyStore::resume(dir.path(), Arc::new(set), None);
    assert!(matches!(store.poll(0), Reload::Unchanged));
    // The same length, the same time, the same inode.
    let other = rule("deny ");
    assert_eq!(other.len(), rule("allow").len());
    std::fs::write(&file, other).unwrap();
    std::fs::File::options().write(true).open(&file).unwrap().set_modified(time).unwrap();
    assert!(matches!(store.poll(1_000), Reload::Waiting));
    assert!(matches!(store.poll(2_000), Reload::Loaded { .. }));
    assert!(!allows(&store.current(), &caller("a", &[]), "m", ""));
}

/// A file that could not be read is read once that is possible, although nothing else about it has changed.
#[test]
fn file_that_becomes_readable_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let (open, closed) = (dir.path().join("a.toml"), dir.path().join("b.toml"));
    std::fs::write(&open, OPEN).unwrap();
    let (set, _) = PolicySet::open(dir.path(), &Methods::from_files()).unwrap();
    let store = PolicyStore::resume(dir.path(), Arc::new(set), None);
    std::fs::write(&closed, "[rule.closed]\neveryone = true\ndeny = [\"m\"]\n").unwrap();
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o000)).unwrap();
    if std::fs::read(&closed).is_ok() {
        // Root can read everything: a dangling link is just as unreadable.
        std::fs::rename(&closed, dir.path().join("b")).unwrap();
        std::os::unix::fs::symlink(dir.path().join("elsewhere"), &closed).unwrap();
    }
    store.poll(0);
    assert!(matches!(store.poll(1_000), Reload::Refused { .. }));
    assert!(allows(&store.current(), &caller("a", &[]), "m", ""));
    if std::fs::symlink_metadata(&closed).unwrap().is_symlink() {
        std::fs::rename(dir.path().join("b"), dir.path().join("elsewhere")).unwrap();
        // A name that begins like this is passed over as it is.
        std::fs::set_permissions(dir.path().join("elsewhere"), std::fs::Permissions::from_mode(0o600)).unwrap();
    } else {
        std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o600)).unwrap();
    }
    store.poll(2_000);
    assert!(matches!(store.poll(3_000), Reload::Loaded { .. }));
    assert!(!allows(&store.current(), &caller("a", &[]), "m", ""));
}
