//! A Python interpreter with the packages that tests need, in an environment of its own.
//! Never passes silently where Python is missing: it says so, and under CI it fails.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::{env, fs};

/// The interpreter of an environment that has what `requirements.txt` pins by hash; created once, by tests/interop/install.py, and kept
/// between runs.
///
/// `None` where that is not possible; the reason was then printed. Under CI it is a failure instead.
pub fn python() -> Option<&'static Path> {
    static PYTHON: OnceLock<Option<PathBuf>> = OnceLock::new();
    let found = PYTHON.get_or_init(|| match environment() {
        Ok(python) => Some(python),
        Err(reason) => {
            assert!(env::var_os("CI").is_none_or(|ci| ci != "true"), "no Python for this test: {reason}");
            // Straight to the stream: the test runner would swallow what a passing test prints.
            let line = format!("\nNOT TESTED, for want of Python: {reason}\n");
            std::io::stderr().write_all(line.as_bytes()).unwrap();
            None
        }
    });
    found.as_deref()
}

fn environment() -> Result<PathBuf, String> {
    let requirements = crate::root().join("tests/interop/requirements.txt");
    let wanted = fs::read_to_string(&requirements).unwrap();
    let named = fs::read_to_string(requirements.with_extension("in")).unwrap();
    for package in named.lines().filter(|line| !line.starts_with('#')) {
        let pinned = wanted.to_lowercase().contains(&format!("\n{} ", package.to_lowercase()));
        assert!(
            pinned,
            "`{package}` is in requirements.in and not in requirements.txt, whose first lines say how it is made"
        );
    }
    // Below the folder of all builds, as cargo's own folder for files of tests: `target/debug/deps/TEST` is what runs.
    let test = env::current_exe().map_err(|e| e.to_string())?;
    let target = test.ancestors().nth(3).ok_or("this test does not run from a build folder of cargo's")?;
    let folder = target.join("tmp").join("python");
    run(Command::new("python3").arg("-B").arg(requirements.with_file_name("install.py")).arg(&folder))?;
    Ok(folder.join("bin/python"))
}

/// Runs a command to its end; the error, if there is one, is a single line.
fn run(command: &mut Command) -> Result<(), String> {
    let what = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|e| format!("`{what}` cannot be run: {e}"))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    let last = text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
    Err(format!("`{what}` failed ({}): {last}", output.status))
}
