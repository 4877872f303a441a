//! The command lines of docs/cluster.md, run unchanged.
//! Never changes a line: runs exactly what the page says.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use sealwire_testkit::page::{self, path_with, section};

use super::stack::Stack;

/// The sections with commands for the cluster.
const SECTIONS: [&str; 8] = [
    "Start and watch",
    "Call something",
    "Through the gateway",
    "See how it is doing",
    "Kill what you like",
    "Add a replica, restart them all",
    "Rotate a key",
    "Let agents in by their tokens",
];
/// The page on the cluster.
pub(crate) const CLUSTER: &str = include_str!("../../../../../docs/cluster.md");

/// The lines that the page tells a reader to type, and whether they were typed.
pub(crate) struct Pages {
    typed: BTreeMap<String, bool>,
    /// Contains a `docker` that knows `compose`, in case only the older tool is installed.
    shim: tempfile::TempDir,
}

impl Pages {
    pub(crate) fn read() -> Self {
        let mut typed = BTreeMap::new();
        for heading in SECTIONS {
            let mut found = 0;
            for block in page::blocks(section(CLUSTER, heading)).filter(|block| block.info == "sh") {
                typed.extend(block.lines.iter().map(|line| (command(line).to_owned(), false)));
                found += block.lines.len();
            }
            assert!(found > 0, "section `{heading}` has no commands");
        }
        let shim = tempfile::tempdir().unwrap();
        let script = shim.path().join("docker");
        let real = std::env::var("PATH").unwrap();
        let text = format!(
            "#!/bin/sh\nPATH='{real}'\nif [ \"$1\" = compose ] && ! docker compose version >/dev/null 2>&1; then\n\
             shift\nexec docker-compose \"$@\"\nfi\nexec docker \"$@\"\n"
        );
        std::fs::write(&script, text).unwrap();
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
        Self { typed, shim }
    }

    /// Types the line with these words, at a terminal, and expects success.
    #[track_caller]
    pub(crate) fn run(&mut self, stack: &Stack, words: &str) -> String {
        let (success, text) = self.try_run(stack, words);
        assert_eq!(success, Some(0), "{words}: {text}");
        text
    }

    /// Types the line that is or contains these words. Returns the exit code, and what the terminal showed.
    #[track_caller]
    pub(crate) fn try_run(&mut self, stack: &Stack, words: &str) -> (Option<i32>, String) {
        let lines: Vec<&String> = self.typed.keys().filter(|line| line.contains(words)).collect();
        let exact = lines.iter().find(|line| **line == words);
        let line = exact.or(lines.first().filter(|_| lines.len() == 1));
        let line = line.unwrap_or_else(|| panic!("one line with `{words}`, not {lines:?}")).to_string();
        let output = self.terminal(stack, &line);
        self.typed.insert(line, true);
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Types the line with these words in its own folder, at the gateway's port. Returns what it printed.
    #[track_caller]
    pub(crate) fn run_in(&mut self, stack: &Stack, folder: &Path, words: &str) -> String {
        let lines: Vec<&String> = self.typed.keys().filter(|line| line.contains(words)).collect();
        let [line] = lines[..] else { panic!("one line with `{words}`, not {lines:?}") };
        let line = line.clone();
        let printed = self.run_block(stack, folder, &stack.at_its_port(&line));
        self.typed.insert(line, true);
        printed
    }

    /// Runs a block of lines in a folder, with the command of this build as `sealwire`.
    #[track_caller]
    pub(crate) fn run_block(&self, stack: &Stack, folder: &Path, lines: &str) -> String {
        let output = Command::new("bash")
            .args(["-euo", "pipefail", "-c", lines])
            .current_dir(folder)
            .envs(stack.environment())
            .env("COMPOSE_FILE", sealwire_testkit::root().join("docker-compose.yml"))
            .env("PATH", format!("{}:{}", self.shim.path().display(), path_with(env!("CARGO_BIN_EXE_sealwire"))))
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert!(output.status.success(), "{lines}\n{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Asserts that every line has been typed.
    pub(crate) fn finish(self) {
        let left: Vec<&String> = self.typed.iter().filter(|(_, typed)| !**typed).map(|(line, _)| line).collect();
        assert!(left.is_empty(), "not typed: {left:#?}");
    }

    fn terminal(&self, stack: &Stack, line: &str) -> Output {
        let path = std::env::var("PATH").unwrap();
        // A command that never ends is watched for a while.
        let line =
            if line.contains("--follow") { format!("timeout --foreground 5 {line}; true") } else { line.to_owned() };
        Command::new("script")
            .args(["--quiet", "--return", "--flush", "--command", &line, "/dev/null"])
            .current_dir(sealwire_testkit::root())
            .envs(stack.environment())
            .env("SHELL", "/bin/bash")
            .env("PATH", format!("{}:{path}", self.shim.path().display()))
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }
}

/// A line without its comment after `#`.
fn command(line: &str) -> &str {
    line.split(" #").next().unwrap_or_default().trim()
}
