//! docs/policies.md as a reader follows it: folders, files and commands, in order.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;

use sealwire_testkit::page;

pub(crate) const TEXT: &str = include_str!("../../../../../docs/policies.md");

/// A piece of the page.
#[derive(Debug)]
pub(crate) enum Piece {
    /// Text that is only to be read.
    Prose(String),
    /// The folder of the files and commands that follow.
    Folder(String),
    File {
        language: String,
        path: String,
        text: String,
    },
    Console(Vec<page::Typed<'static>>),
}

pub(crate) fn pieces() -> Vec<Piece> {
    let piece = |piece| match piece {
        page::Piece::Block(block) => of_block(&block),
        page::Piece::Prose(line) => {
            if let Some(name) = line.strip_prefix("<!-- folder: ").and_then(|rest| rest.strip_suffix(" -->")) {
                return Piece::Folder(name.to_owned());
            }
            page::assert_prose(line);
            assert!(!line.contains("<!--"), "a mark that no test knows: {line}");
            Piece::Prose(line.to_owned())
        }
    };
    page::pieces(TEXT).map(piece).collect()
}

fn of_block(block: &page::Block<'static>) -> Piece {
    match block.info.split_once(' ') {
        None if block.info == "console" => Piece::Console(block.typed()),
        Some((language @ ("toml" | "cedar" | "json"), path)) => {
            assert!(path.ends_with(&format!(".{language}")) || path.ends_with(".jsonl"), "{}", block.info);
            Piece::File { language: language.to_owned(), path: path.to_owned(), text: block.text() }
        }
        _ => panic!("a block of an unknown kind: `{}`", block.info),
    }
}

/// The page's folders on disk, and the shell that runs its commands.
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

    /// What the command prints, as shown on a terminal, and its exit code. `echo $?` is about the command before it.
    pub(crate) fn run(&mut self, command: &str) -> (String, i32) {
        if command == "echo $?" {
            return (format!("{}\n", self.code.expect("a command before it")), 0);
        }
        let known = ["sealwire ", "cat ", "sed "].iter().any(|known| command.starts_with(known));
        assert!(known, "neither a command of ours nor one that shows or edits a file: {command}");
        let folder = self.folder.as_ref().expect("a console stands in a folder");
        let mut shell = Command::new("bash");
        shell.args(["-c", &format!("exec 2>&1\n{command}")]).current_dir(folder).env_clear();
        let path = page::path_with(env!("CARGO_BIN_EXE_sealwire"));
        let output = shell.env("PATH", path).env("HOME", folder).output().unwrap();
        let code = output.status.code().unwrap();
        self.code = Some(code);
        (String::from_utf8(output.stdout).unwrap(), code)
    }
}
