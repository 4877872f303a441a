//! Runs the binary in an empty folder that is its home, without the tester's environment.
//! Never links the code of the binary.

#![allow(dead_code, reason = "each test file uses its own part")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic, reason = "tests")]

use std::cell::RefCell;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

/// A folder to run commands in. Everything that they print is kept, to look for secrets in it.
pub(crate) struct Shell {
    folder: tempfile::TempDir,
    said: RefCell<String>,
}

/// The outcome of a command.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Shell {
    pub(crate) fn new() -> Self {
        Self { folder: sealwire_testkit::site::in_memory(), said: RefCell::default() }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap()
    }

    pub(crate) fn read_json(&self, name: &str) -> Value {
        serde_json::from_str(&self.read(name)).unwrap()
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        if !self.replace(&path, text) {
            std::fs::write(path, text).unwrap();
        }
    }

    /// Gives a file another content in one step, as editors do, and says whether that was possible. A service may read the file at any
    /// moment, and half a policy, or none, is a policy too.
    fn replace(&self, path: &Path, text: &str) -> bool {
        use std::os::unix::fs::MetadataExt as _;
        let Ok(before) = std::fs::symlink_metadata(path) else { return false };
        // Beside the folder, which a service may list; on the same file system.
        let whole = self.folder.path().with_extension("whole");
        std::fs::write(&whole, text).unwrap();
        std::fs::set_permissions(&whole, before.permissions()).unwrap();
        let made = std::fs::symlink_metadata(&whole).unwrap();
        let is_alike =
            before.is_file() && before.nlink() == 1 && (before.uid(), before.gid()) == (made.uid(), made.gid());
        let is_replaced = is_alike && std::fs::rename(&whole, path).is_ok();
        if !is_replaced {
            std::fs::remove_file(&whole).unwrap();
        }
        is_replaced
    }

    /// The names in the folder, in order.
    pub(crate) fn files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.folder.path()).unwrap();
        let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// The names in a folder, in order.
    pub(crate) fn files_in(&self, folder: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.path(folder)).unwrap();
        let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[cfg(unix)]
    pub(crate) fn mode(&self, name: &str) -> u32 {
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::metadata(self.path(name)).unwrap().permissions().mode() & 0o7777
    }

    #[cfg(unix)]
    pub(crate) fn set_mode(&self, name: &str, mode: u32) {
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::set_permissions(self.path(name), std::fs::Permissions::from_mode(mode)).unwrap();
    }

    /// Runs `sealwire` with these arguments.
    pub(crate) fn run(&self, line: &str) -> Ran {
        self.run_args(&line.split_whitespace().collect::<Vec<_>>())
    }

    /// Runs `sealwire` with arguments that may contain spaces.
    pub(crate) fn run_args(&self, args: &[&str]) -> Ran {
        self.run_with_stdin(args, b"")
    }

    pub(crate) fn run_with_stdin(&self, args: &[&str], stdin: &[u8]) -> Ran {
        let mut child = self.command(args).stdin(Stdio::piped()).spawn().unwrap();
        // A command that does not read its input closes the pipe.
        let _ = child.stdin.take().unwrap().write_all(stdin);
        let output = child.wait_with_output().unwrap();
        let ran = Ran {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        };
        let mut said = self.said.borrow_mut();
        said.push_str(&ran.stdout);
        said.push_str(&ran.stderr);
        ran
    }

    /// The command, for starting it in another way than [`Shell::run`].
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sealwire"));
        self.here(command.args(args));
        command
    }

    /// The same, through an entry point that does something `first` and then becomes the command.
    pub(crate) fn command_after(&self, first: &str, args: &[&str]) -> Command {
        let mut command = Command::new("/bin/sh");
        self.here(
            command.args(["-c", &format!("{first} exec \"$0\" \"$@\"")]).arg(env!("CARGO_BIN_EXE_sealwire")).args(args),
        );
        command
    }

    fn here(&self, command: &mut Command) {
        command.current_dir(self.folder.path()).env_clear().env("HOME", self.folder.path());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
    }

    /// Fails if anything printed so far contains this text.
    #[track_caller]
    pub(crate) fn never_said(&self, secret: &str) {
        assert!(secret.len() > 20, "too short to be looked for: {secret}");
        assert!(!self.said.borrow().contains(secret), "a secret was printed");
    }
}

impl Ran {
    /// Asserts that the command succeeded.
    #[track_caller]
    pub(crate) fn ok(self) -> Self {
        assert_eq!(self.code, 0, "{self:?}");
        self
    }

    /// Asserts that it printed this on stdout.
    #[track_caller]
    pub(crate) fn says(self, word: &str) -> Self {
        assert!(self.stdout.contains(word), "no `{word}` in {self:?}");
        self
    }

    /// Asserts that the command failed with this code, with nothing on stdout and all of this on stderr.
    #[track_caller]
    pub(crate) fn fails(self, code: i32, words: &[&str]) -> Self {
        assert_eq!(self.code, code, "{self:?}");
        assert_eq!(self.stdout, "", "{self:?}");
        for word in words {
            assert!(self.stderr.contains(word), "no `{word}` in {self:?}");
        }
        self
    }

    /// Asserts that the command failed with this code, with this on stdout.
    #[track_caller]
    pub(crate) fn fails_with(&self, code: i32, word: &str) {
        assert!(self.code == code && self.stdout.contains(word), "{self:?}");
    }

    /// The error that it reported with `--json`: the last line of stderr.
    #[track_caller]
    pub(crate) fn error(&self) -> Value {
        let line = self.stderr.lines().last().unwrap_or_default();
        let mut line: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {self:?}"));
        line["error"].take()
    }

    /// What it printed, as JSON on one line.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        assert_eq!(self.stdout.lines().count(), 1, "{self:?}");
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}
