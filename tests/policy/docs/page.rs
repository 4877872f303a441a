//! docs/policies.md as the reader goes through it: folders, files and commands, in their order.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

pub(crate) const TEXT: &str = include_str!("../../../docs/policies.md");

/// A piece of the page.
#[derive(Debug)]
pub(crate) enum Piece {
    /// Text that is only read.
    Prose(String),
    /// Where the files that follow are, and the commands are typed.
    Folder(String),
    File {
        language: String,
        path: String,
        text: String,
    },
    Console(Vec<Typed>),
}

/// A command of a console, and what follows it on the page.
#[derive(Debug)]
pub(crate) struct Typed {
    /// With its continuation lines.
    pub(crate) command: String,
    pub(crate) output: String,
}

pub(crate) fn pieces() -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut lines = TEXT.lines();
    while let Some(line) = lines.next() {
        if let Some(info) = line.strip_prefix("```") {
            let body: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
            pieces.push(block(info, &body));
        } else if let Some(name) = line.strip_prefix("<!-- folder: ").and_then(|rest| rest.strip_suffix(" -->")) {
            pieces.push(Piece::Folder(name.to_owned()));
        } else {
            let hidden = ["```", "~~~"].iter().any(|fence| line.contains(fence));
            assert!(!hidden && !line.starts_with("    "), "a block that no test would run: {line}");
            assert!(!line.contains("<!--"), "a mark that no test knows: {line}");
            pieces.push(Piece::Prose(line.to_owned()));
        }
    }
    pieces
}

fn block(info: &str, body: &[&str]) -> Piece {
    let text: String = body.iter().map(|line| format!("{line}\n")).collect();
    match info.split_once(' ') {
        None if info == "console" => Piece::Console(typed(body)),
        Some((language @ ("toml" | "cedar"), path)) => {
            assert!(path.ends_with(&format!(".{language}")), "{info}");
            Piece::File { language: language.to_owned(), path: path.to_owned(), text }
        }
        _ => panic!("a block of an unknown kind: `{info}`"),
    }
}

fn typed(body: &[&str]) -> Vec<Typed> {
    let mut all: Vec<Typed> = Vec::new();
    let mut lines = body.iter();
    while let Some(line) = lines.next() {
        if let Some(first) = line.strip_prefix("$ ") {
            let mut command = first.to_owned();
            while command.ends_with('\\') {
                write!(command, "\n{}", lines.next().expect("a line follows a `\\`")).unwrap();
            }
            all.push(Typed { command, output: String::new() });
        } else {
            writeln!(all.last_mut().expect("a console begins with a command").output, "{line}").unwrap();
        }
    }
    assert!(!all.is_empty(), "a console without a command");
    all
}

/// The page's folders on disk, and who types in them.
pub(crate) struct Desk {
    root: tempfile::TempDir,
    folder: Option<PathBuf>,
    known: BTreeSet<String>,
    code: Option<i32>,
}

impl Desk {
    pub(crate) fn new() -> Self {
        Self { root: tempfile::tempdir().unwrap(), folder: None, known: BTreeSet::new(), code: None }
    }

    pub(crate) fn enter(&mut self, name: &str) {
        assert!(self.known.insert(name.to_owned()), "two folders are named {name}");
        let folder = self.root.path().join(name);
        std::fs::create_dir(&folder).unwrap();
        self.folder = Some(folder);
    }

    pub(crate) fn write(&self, path: &str, text: &str) {
        let file = self.folder.as_ref().expect("a file stands in a folder").join(path);
        assert!(!file.exists(), "{path} is written twice");
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, text).unwrap();
    }

    /// What the command prints, as a terminal shows it, and how it ends. `echo $?` is about the command before it.
    pub(crate) fn run(&mut self, command: &str) -> (String, i32) {
        if command == "echo $?" {
            return (format!("{}\n", self.code.expect("a command before it")), 0);
        }
        assert!(command.starts_with("sealwire "), "not a command of ours: {command}");
        let folder = self.folder.as_ref().expect("a console stands in a folder");
        let bin = Path::new(env!("CARGO_BIN_EXE_sealwire")).parent().unwrap();
        let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
        let mut shell = Command::new("bash");
        shell.args(["-c", &format!("exec 2>&1\n{command}")]).current_dir(folder);
        let output = shell.env_clear().env("PATH", path).env("HOME", folder).output().unwrap();
        let code = output.status.code().unwrap();
        self.code = Some(code);
        (String::from_utf8(output.stdout).unwrap(), code)
    }
}

/// The rows of the table that has this heading line, cell by cell.
pub(crate) fn table(heading: &str) -> Vec<Vec<String>> {
    let mut lines = TEXT.lines().skip_while(|line| *line != heading).skip(1);
    assert!(lines.next().is_some_and(|line| line.starts_with("|---")), "there is no table `{heading}`");
    let rows = lines.take_while(|line| line.starts_with('|'));
    rows.map(|row| row.trim_matches('|').split(" | ").map(|cell| cell.trim_matches([' ', '|']).to_owned()).collect())
        .collect()
}

/// The code in a cell.
pub(crate) fn code(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}
