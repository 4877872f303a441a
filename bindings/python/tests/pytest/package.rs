//! The package as Python imports it: its files, and the library that was built with this test.
//! Never installs anything into an environment that others use.

use std::env::consts::{DLL_PREFIX, DLL_SUFFIX};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use sealwire_testkit::python::python;

/// How long one file of tests may take on a busy machine.
const LIMIT: Duration = Duration::from_secs(400);

pub(crate) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

/// A folder for `PYTHONPATH`, made once.
pub(crate) fn path() -> &'static Path {
    static MADE: OnceLock<tempfile::TempDir> = OnceLock::new();
    let made = MADE.get_or_init(|| {
        let made = tempfile::tempdir().unwrap();
        let package = made.path().join("sealwire");
        std::fs::create_dir(&package).unwrap();
        for entry in folder().join("python/sealwire").read_dir().unwrap() {
            let entry = entry.unwrap();
            symlink(entry.path(), package.join(entry.file_name())).unwrap();
        }
        let built = std::env::current_exe().unwrap().with_file_name(format!("{DLL_PREFIX}sealwire_python{DLL_SUFFIX}"));
        assert!(built.exists(), "{} is built with this test", built.display());
        symlink(built, package.join("_core.abi3.so")).unwrap();
        made
    });
    made.path()
}

/// A Python that finds the package.
pub(crate) struct Interpreter {
    program: PathBuf,
    /// Whether a wheel is installed there, so that the package of this build is not wanted.
    has_wheel: bool,
    /// What becomes of a warning.
    warnings: &'static str,
}

/// The one with the package and what the tests need; `None` where there is no Python.
///
/// `SEALWIRE_TEST_PYTHON` names another one, in which a wheel is installed: `bindings/python/wheel check --tests`.
pub(crate) fn interpreter() -> Option<Interpreter> {
    match std::env::var_os("SEALWIRE_TEST_PYTHON") {
        Some(python) => Some(Interpreter { program: python.into(), has_wheel: true, warnings: "error" }),
        None => Some(Interpreter { program: python()?.to_owned(), has_wheel: false, warnings: "error" }),
    }
}

/// The one with CrewAI, which warns of itself.
pub(crate) fn crewai() -> Interpreter {
    let tests = std::env::current_exe().unwrap();
    let environment = tests.ancestors().nth(3).unwrap().join("tmp/python-crewai");
    let mut install = Command::new("python3");
    install.arg("-B").arg(sealwire_testkit::root().join("tests/interop/install.py")).arg(&environment);
    let installed = install.arg(folder().join("tests/crewai.txt")).output().unwrap();
    assert!(installed.status.success(), "{}", String::from_utf8_lossy(&installed.stderr));
    Interpreter { program: environment.join("bin/python"), has_wheel: false, warnings: "ignore" }
}

/// A line that is printed although the test passes.
pub(crate) fn say(line: &str) {
    use std::io::Write as _;
    std::io::stderr().write_all(format!("\n{line}\n").as_bytes()).unwrap();
}

impl Interpreter {
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        if !self.has_wheel {
            command.env("PYTHONPATH", path());
        }
        command.args(arguments).current_dir(folder().join("tests"));
        command.env("PYTHONDONTWRITEBYTECODE", "1").env_remove("SEALWIRE_CREDS").stdin(Stdio::null());
        // Plugins that packages of the environment bring along: loading them takes two seconds.
        command.env("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1");
        command
    }
}

/// Runs Python; `None` where there is none.
pub(crate) fn command(arguments: &[&str]) -> Option<Command> {
    Some(interpreter()?.command(arguments))
}

/// Runs a file of tests.
pub(crate) fn pytest(file: &str, env: &[(&str, &str)]) {
    if let Some(python) = interpreter() {
        pytest_with(&python, file, env);
    }
}

/// The same, with another interpreter.
pub(crate) fn pytest_with(python: &Interpreter, file: &str, env: &[(&str, &str)]) {
    let arguments =
        ["-W", python.warnings, "-m", "pytest", "-qrs", "-p", "no:cacheprovider", "--tb=short", "--durations=5", file];
    let mut command = python.command(&arguments);
    let output = tempfile::tempfile().unwrap();
    command.envs(env.iter().copied()).stdout(output.try_clone().unwrap()).stderr(output.try_clone().unwrap());
    let (mut child, started) = (command.spawn().unwrap(), Instant::now());
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break Some(status);
        }
        if started.elapsed() > LIMIT {
            child.kill().unwrap();
            child.wait().unwrap();
            break None;
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    let text = read(output);
    // pytest's word for it if all of them are skipped. Only a wheel's environment may lack what tests need.
    if python.has_wheel && status.and_then(|status| status.code()) == Some(5) {
        say(&format!("NOT TESTED here: {}", text.lines().find(|line| line.starts_with("SKIPPED")).unwrap_or(file)));
        return;
    }
    assert!(status.is_some_and(|status| status.success()), "{file}: {status:?} after {:?}\n{text}", started.elapsed());
    print!("{text}");
}

fn read(mut file: std::fs::File) -> String {
    use std::io::{Read as _, Seek as _};
    let mut bytes = Vec::new();
    file.rewind().unwrap();
    file.read_to_end(&mut bytes).unwrap();
    String::from_utf8_lossy(&bytes).into_owned()
}
