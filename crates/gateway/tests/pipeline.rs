//! What must not compile in a dialect of the gateway over HTTP: every way around a step of `http/pipeline.rs`, with the compiler's message.
//!
//! The steps are private to modules of this crate, so `tests/pipeline/**.rs` are compiled as modules of it, beside the dialects: the crate's
//! sources with these modules, against the libraries that this test was built with. Each gets the errors in its `*.stderr`; `honest.rs`
//! gets none. After an intended change, `SEALWIRE_UI=overwrite cargo test --test pipeline` writes the errors anew.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use sealwire_testkit::compiler::{self, Library, mismatch, programs};

const CRATE: &str = env!("CARGO_MANIFEST_DIR");

/// The direct dependencies of this crate, as the lock file names them: `name`, or `name version` if there are several.
fn dependencies() -> BTreeSet<String> {
    let lock = std::fs::read_to_string(Path::new(CRATE).join("../../Cargo.lock")).unwrap();
    let lock: toml::Table = lock.parse().unwrap();
    let package =
        lock["package"].as_array().unwrap().iter().find(|one| one["name"].as_str() == Some("sealwire-gateway"));
    package.unwrap()["dependencies"].as_array().unwrap().iter().map(|one| one.as_str().unwrap().to_owned()).collect()
}

/// The compiled libraries of these dependencies.
fn libraries() -> Vec<Library> {
    let (wanted, mut libraries) = (dependencies(), compiler::libraries("pipeline"));
    libraries.retain(|library| {
        wanted.contains(&library.package) || wanted.contains(&format!("{} {}", library.package, library.version))
    });
    assert_eq!(libraries.len(), wanted.len(), "{wanted:?}");
    libraries
}

/// This crate's sources, with each case as a module beside the dialects.
fn sources(cases: &[PathBuf]) -> tempfile::TempDir {
    fn copy(from: &Path, to: &Path) {
        std::fs::create_dir(to).unwrap();
        for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
            let to = to.join(entry.file_name());
            match entry.file_type().unwrap().is_dir() {
                true => copy(&entry.path(), &to),
                false => drop(std::fs::copy(entry.path(), to).unwrap()),
            }
        }
    }
    let scratch = tempfile::tempdir().unwrap();
    copy(&Path::new(CRATE).join("src"), &scratch.path().join("src"));
    let http = scratch.path().join("src/http.rs");
    let mut text = std::fs::read_to_string(&http).unwrap();
    for case in cases {
        writeln!(text, "#[path = {case:?}]\nmod {};", case.file_stem().unwrap().to_str().unwrap()).unwrap();
    }
    std::fs::write(http, text).unwrap();
    scratch
}

fn errors(cases: &[PathBuf]) -> BTreeMap<PathBuf, String> {
    let scratch = sources(cases);
    let mut rustc = compiler::checker(scratch.path(), &libraries());
    rustc.args(["--crate-type=lib", "--crate-name=sealwire_gateway"]).env("CARGO_PKG_VERSION", "0.0.0");
    compiler::errors(&rustc.arg(scratch.path().join("src/lib.rs")).output().unwrap())
}

/// What is wrong with the cases of a folder.
fn wrong(folder: &str) -> String {
    let cases = programs(folder);
    let (mut errors, mut wrong) = (errors(&cases), String::new());
    for case in &cases {
        let got = errors.remove(case).unwrap_or_default();
        if case.ends_with("honest.rs") {
            assert_eq!(got, "", "{}", case.display());
        } else {
            wrong.extend(mismatch(case, &got));
        }
    }
    assert!(errors.is_empty(), "the crate itself does not compile: {errors:?}");
    wrong
}

#[test]
fn no_way_around_a_step_of_the_pipeline_compiles() {
    // The compiler looks at the fields of literals only if nothing else is wrong.
    let wrong = wrong("crates/gateway/tests/pipeline") + &wrong("crates/gateway/tests/pipeline/literals");
    assert_eq!(wrong, "");
}
