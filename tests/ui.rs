//! What must not compile: every way around a check that a program could try, with the compiler's message.
//!
//! `tests/ui/*.rs` are programs as an application's author might write them, each with the errors it must get in `*.stderr`;
//! `tests/ui/pass/*.rs` must compile, which shows that the others fail only for their errors. After an intended change,
//! `SEALWIRE_UI=overwrite cargo test --test ui` writes the errors anew.
//!
//! The programs are compiled against the libraries that this test itself was built with. The usual crate for this work
//! builds the whole dependency tree a second time, since it adds compiler flags of its own: 7 minutes of processor time
//! and 1.3 GB here (two cores), instead of seconds.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::{Path, PathBuf};

use sealwire_testkit::compiler::{self, Library, mismatch, programs};
use sealwire_testkit::root;

/// The crates that the programs use.
const CRATES: [&str; 3] = ["async_nats", "sealwire", "tower"];

#[test]
fn no_way_around_a_check_compiles() {
    let mut libraries = compiler::libraries("ui");
    libraries.retain(|library| CRATES.contains(&library.name.as_str()));
    assert_eq!(libraries.len(), CRATES.len());
    let wrong =
        programs("tests/ui").into_iter().filter_map(|program| mismatch(&program, &errors(&program, &libraries)));
    assert_eq!(wrong.collect::<String>(), "");
    for program in programs("tests/ui/pass") {
        assert_eq!(errors(&program, &libraries), "", "{}", program.display());
    }
}

/// The errors that a program gets.
fn errors(program: &Path, libraries: &[Library]) -> String {
    let scratch = tempfile::tempdir().unwrap();
    // The errors name it as seen from here.
    let program = program.strip_prefix(root()).unwrap();
    let mut rustc = compiler::checker(scratch.path(), libraries);
    let mut errors =
        compiler::errors(&rustc.current_dir(root()).arg("--crate-type=bin").arg(program).output().unwrap());
    let text = errors.remove(program).unwrap_or_default();
    assert_eq!(errors.keys().collect::<Vec<&PathBuf>>(), [""; 0]);
    text
}
