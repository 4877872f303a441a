//! What published checkers say of the package: of its types, of its stubs against the library, and of its style.
//! Never accepts a warning.

use std::process::Command;

use sealwire_testkit::python::python;

use crate::package;

/// What is otherwise when it runs: CrewAI cannot be imported beside the other frameworks, and pydantic has its own idea of private
/// attributes.
const OTHER: &str = "sealwire.crewai\nsealwire.fastmcp._Tool._tool\nsealwire.langchain._Tool._tool\n";

/// Where the settings of mypy are.
const CONFIG: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/pyproject.toml");

/// Runs a program of the environment in the package's folder, unless there is no Python.
fn checker(name: &str, arguments: &[&str], change: impl FnOnce(&mut Command)) -> Option<String> {
    let mut command = Command::new(python()?.with_file_name(name));
    command.args(arguments).current_dir(package::folder()).env("MYPY_CACHE_DIR", "/dev/null");
    change(&mut command);
    let output = command.output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(output.status.success(), "{name} {arguments:?}\n{text}");
    Some(text)
}

#[test]
fn mypy_and_pyright_accept_the_package_and_a_program() {
    let Some(text) = checker("mypy", &[], |_| {}) else { return };
    assert!(text.contains("no issues found"), "{text}");
    let python = python().unwrap().to_str().unwrap().to_owned();
    let text = checker("basedpyright", &["--pythonpath", &python], |_| {}).unwrap();
    assert!(text.contains("0 errors, 0 warnings"), "{text}");
}

#[test]
fn stubs_are_those_of_the_library() {
    let empty = tempfile::tempdir().unwrap();
    std::fs::write(empty.path().join("other"), OTHER).unwrap();
    let stubtest =
        checker("stubtest", &["sealwire", "--allowlist", "other", "--mypy-config-file", CONFIG], |command| {
            command.current_dir(empty.path()).env("MYPYPATH", package::path()).env("PYTHONPATH", package::path());
        });
    assert!(stubtest.is_none_or(|text| text.contains("no issues found")));
}

#[test]
fn ruff_accepts_the_style() {
    checker("ruff", &["check", "--no-cache"], |_| {});
    checker("ruff", &["format", "--no-cache", "--check"], |_| {});
}
