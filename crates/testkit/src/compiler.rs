//! The compiler, for tests of what must not compile.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

use crate::root;

/// A compiled library of the build that a test belongs to.
pub struct Library {
    pub package: String,
    pub version: String,
    /// The name that sources use.
    pub name: String,
    pub file: PathBuf,
}

/// The libraries that a test was built with.
///
/// Cargo says where they are. It waits for every other cargo that uses the folder of builds, so whoever runs the linter beside the tests
/// keeps what `cargo test --no-run --message-format=json-render-diagnostics` prints, and names that file in `SEALWIRE_BUILT`.
pub fn libraries(test: &str) -> Vec<Library> {
    let built = match std::env::var_os("SEALWIRE_BUILT") {
        Some(file) => std::fs::read_to_string(file).unwrap(),
        None => {
            let mut cargo = Command::new(env!("CARGO"));
            cargo.current_dir(root()).args(["test", "--test", test, "--no-run", "--offline", "--message-format=json"]);
            if !cfg!(debug_assertions) {
                cargo.arg("--release");
            }
            let output = cargo.output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8(output.stdout).unwrap()
        }
    };
    let artifacts = built.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    artifacts.filter_map(|artifact| library(&artifact)).collect()
}

fn library(artifact: &Value) -> Option<Library> {
    let files = artifact["filenames"].as_array()?.iter().filter_map(Value::as_str).map(PathBuf::from);
    let is_library = |file: &PathBuf| file.extension().is_some_and(|kind| kind == "rlib" || kind == "so");
    let file = { files }.find(is_library)?;
    let (source, package) = artifact["package_id"].as_str()?.rsplit_once('#')?;
    let (package, version) = match package.split_once('@') {
        Some(both) => both,
        // Named as its folder.
        None => (source.rsplit('/').next()?, package),
    };
    let name = artifact["target"]["name"].as_str()?.replace('-', "_");
    Some(Library { package: package.to_owned(), version: version.to_owned(), name, file })
}

/// A call of the compiler that only checks, and prints its errors for [`errors`].
pub fn checker<'a>(out: &Path, libraries: impl IntoIterator<Item = &'a Library>) -> Command {
    let mut rustc = rustc();
    rustc.args(["--edition=2024", "--emit=metadata", "--error-format=json", "--cap-lints=allow", "--out-dir"]).arg(out);
    for library in libraries {
        rustc.arg("-L").arg(format!("dependency={}", library.file.parent().unwrap().display()));
        rustc.arg("--extern").arg(format!("{}={}", library.name, library.file.display()));
    }
    rustc
}

fn rustc() -> Command {
    Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()))
}

/// The errors by file: code, text, and the marked places with their labels.
pub fn errors(output: &Output) -> BTreeMap<PathBuf, String> {
    let mut errors = BTreeMap::<PathBuf, String>::new();
    for line in std::str::from_utf8(&output.stderr).unwrap().lines() {
        let message: Value = serde_json::from_str(line).unwrap();
        let spans = message["spans"].as_array().unwrap();
        let primary = || spans.iter().filter(|span| span["is_primary"] == true);
        let Some(first) = primary().next().filter(|_| message["level"] == "error") else { continue };
        let errors = errors.entry(first["file_name"].as_str().unwrap().into()).or_default();
        let code = message["code"]["code"].as_str().map(|code| format!("[{code}]")).unwrap_or_default();
        writeln!(errors, "error{code}: {}", message["message"].as_str().unwrap()).unwrap();
        for span in primary() {
            let label = span["label"].as_str().map(|label| format!(": {label}")).unwrap_or_default();
            writeln!(errors, "  --> line {}, column {}{label}", span["line_start"], span["column_start"]).unwrap();
        }
    }
    assert_eq!(output.status.success(), errors.is_empty(), "{errors:?}");
    errors
}

/// The programs of a folder, below the project's.
pub fn programs(folder: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(root().join(folder)).unwrap().map(|entry| entry.unwrap().path());
    let mut programs: Vec<_> = entries.filter(|path| path.extension().is_some_and(|kind| kind == "rs")).collect();
    programs.sort();
    assert!(!programs.is_empty());
    programs
}

/// What is wrong with the errors of a program, which must be those of the file beside it; `SEALWIRE_UI=overwrite` writes that file.
pub fn mismatch(program: &Path, got: &str) -> Option<String> {
    let file = program.with_extension("stderr");
    if std::env::var_os("SEALWIRE_UI").is_some_and(|value| value == "overwrite") {
        std::fs::write(&file, got).unwrap();
    }
    let expected = std::fs::read_to_string(&file).unwrap_or_default();
    let is_ours = version().is_some_and(|version| version.starts_with(env!("CARGO_PKG_RUST_VERSION")));
    let holds = if is_ours { got == expected } else { without_words(got) == without_words(&expected) };
    (!holds || got.is_empty()).then(|| format!("{} expects:\n{expected}and gets:\n{got}", program.display()))
}

fn version() -> Option<String> {
    let output = rustc().arg("--version").output().ok()?;
    String::from_utf8(output.stdout).ok()?.strip_prefix("rustc ").map(str::to_owned)
}

/// Another compiler may word an error differently. Its kind and place cannot differ.
fn without_words(errors: &str) -> Vec<&str> {
    let kind = |line: &'_ str| line.find("]:").map_or(line.len(), |end| end + 1);
    let place = |line: &'_ str| line.match_indices(": ").next().map_or(line.len(), |(at, _)| at);
    errors.lines().map(|line| &line[..if line.starts_with("error[") { kind(line) } else { place(line) }]).collect()
}
