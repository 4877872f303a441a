//! What must not compile: every way around a check that a program could try, with the compiler's message.
//!
//! `tests/ui/*.rs` are programs as an application's author might write them, each with the errors it must get in `*.stderr`;
//! `tests/ui/pass/*.rs` must compile, which shows that the others fail only for their errors. After an intended change,
//! `SEALWIRE_UI=overwrite cargo test --test ui` writes the errors anew.
//!
//! The programs are compiled against the libraries that this test itself was built with. The usual crate for this work
//! builds the whole dependency tree a second time, since it adds compiler flags of its own: 7 minutes of processor time
//! and 1.3 GB here (two cores), instead of seconds.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic, reason = "tests")]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// The crates that the programs use.
const CRATES: [&str; 3] = ["async_nats", "sealwire", "tower"];

struct Compiler {
    /// The compiled library of each of [`CRATES`].
    libraries: BTreeMap<String, PathBuf>,
    /// Where their dependencies are.
    dependencies: PathBuf,
    scratch: tempfile::TempDir,
}

impl Compiler {
    /// Asks cargo, which has just built this test, where it put the libraries.
    fn of_this_build() -> Self {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.current_dir(ROOT).args(["test", "--test", "ui", "--no-run", "--offline", "--message-format=json"]);
        if !cfg!(debug_assertions) {
            cargo.arg("--release");
        }
        let output = cargo.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let mut libraries = BTreeMap::new();
        for line in String::from_utf8(output.stdout).unwrap().lines() {
            let artifact: Value = serde_json::from_str(line).unwrap();
            let name = artifact["target"]["name"].as_str().unwrap_or_default();
            let files = artifact["filenames"].as_array().into_iter().flatten().filter_map(Value::as_str);
            let library = files.map(PathBuf::from).find(|file| file.extension().is_some_and(|kind| kind == "rlib"));
            if let (true, Some(library)) = (CRATES.contains(&name), library) {
                assert!(libraries.insert(name.to_owned(), library).is_none(), "there are two crates `{name}`");
            }
        }
        assert_eq!(libraries.keys().collect::<Vec<_>>(), CRATES);
        let dependencies = libraries["tower"].parent().unwrap().to_owned();
        Self { libraries, dependencies, scratch: tempfile::tempdir().unwrap() }
    }

    /// The errors that a program gets: code, text, and the marked places with their labels.
    fn errors_of(&self, program: &Path) -> String {
        let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let mut rustc = Command::new(rustc);
        rustc.current_dir(ROOT).args(["--edition=2024", "--crate-type=bin", "--emit=metadata", "--error-format=json"]);
        rustc.arg("--cap-lints=allow").arg("--out-dir").arg(self.scratch.path());
        rustc.arg("-L").arg(format!("dependency={}", self.dependencies.display()));
        for (name, library) in &self.libraries {
            rustc.arg("--extern").arg(format!("{name}={}", library.display()));
        }
        let output = rustc.arg(program).output().unwrap();
        let mut errors = String::new();
        for line in String::from_utf8(output.stderr).unwrap().lines() {
            let message: Value = serde_json::from_str(line).unwrap();
            if message["level"] == "error" && !message["spans"].as_array().unwrap().is_empty() {
                let code = message["code"]["code"].as_str().map(|code| format!("[{code}]")).unwrap_or_default();
                writeln!(errors, "error{code}: {}", message["message"].as_str().unwrap()).unwrap();
                let spans = message["spans"].as_array().unwrap();
                for span in spans.iter().filter(|span| span["is_primary"] == true) {
                    let label = span["label"].as_str().map(|label| format!(": {label}")).unwrap_or_default();
                    writeln!(errors, "  --> line {}, column {}{label}", span["line_start"], span["column_start"])
                        .unwrap();
                }
            }
        }
        assert_eq!(output.status.success(), errors.is_empty(), "{}: {errors}", program.display());
        errors
    }
}

fn programs(folder: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(Path::new(ROOT).join(folder)).unwrap().map(|entry| entry.unwrap().path());
    let mut programs: Vec<_> = entries.filter(|path| path.extension().is_some_and(|kind| kind == "rs")).collect();
    programs.sort();
    assert!(!programs.is_empty());
    programs
}

/// Another compiler may word an error differently. Its kind and place cannot differ.
fn without_words(errors: &str) -> Vec<&str> {
    let kind = |line: &'_ str| line.find("]:").map_or(line.len(), |end| end + 1);
    let place = |line: &'_ str| line.match_indices(": ").next().map_or(line.len(), |(at, _)| at);
    errors.lines().map(|line| &line[..if line.starts_with("error[") { kind(line) } else { place(line) }]).collect()
}

#[test]
fn no_way_around_a_check_compiles() {
    let compiler = Compiler::of_this_build();
    let is_ours = compiler_version().is_some_and(|version| version.starts_with(env!("CARGO_PKG_RUST_VERSION")));
    let overwrite = std::env::var_os("SEALWIRE_UI").is_some_and(|value| value == "overwrite");
    let mut wrong = String::new();
    for program in programs("tests/ui") {
        let (got, file) = (compiler.errors_of(&program), program.with_extension("stderr"));
        if overwrite {
            std::fs::write(&file, &got).unwrap();
        }
        let expected = std::fs::read_to_string(&file).unwrap_or_default();
        let holds = if is_ours { got == expected } else { without_words(&got) == without_words(&expected) };
        if !holds || got.is_empty() {
            writeln!(wrong, "{} expects:\n{expected}and gets:\n{got}", program.display()).unwrap();
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    for program in programs("tests/ui/pass") {
        assert_eq!(compiler.errors_of(&program), "", "{}", program.display());
    }
}

fn compiler_version() -> Option<String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).arg("--version").output().ok()?;
    String::from_utf8(output.stdout).ok()?.strip_prefix("rustc ").map(str::to_owned)
}
