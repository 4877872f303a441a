//! Markdown pages as tests read them: sections, blocks of code, consoles with what they show, tables; and the shell to type in.

use std::path::Path;
use std::process::Command;

/// Compiles the code of this page.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/start/services.md")]
struct ServicesPage;

/// A piece of a page.
#[derive(Debug, PartialEq, Eq)]
pub enum Piece<'p> {
    /// A line outside blocks.
    Prose(&'p str),
    Block(Block<'p>),
}

/// A block between fences.
#[derive(Debug, PartialEq, Eq)]
pub struct Block<'p> {
    /// What follows the first fence: a language, and sometimes a space and a path.
    pub info: &'p str,
    pub lines: Vec<&'p str>,
}

/// A command of a console, and what the page shows of its output.
#[derive(Debug, PartialEq, Eq)]
pub struct Typed<'p> {
    /// Including its continuation lines.
    pub command: String,
    pub shown: Vec<&'p str>,
}

/// The pieces of a page, in their order.
pub fn pieces(text: &str) -> impl Iterator<Item = Piece<'_>> {
    let mut lines = text.lines();
    std::iter::from_fn(move || {
        let line = lines.next()?;
        let Some(info) = line.strip_prefix("```") else { return Some(Piece::Prose(line)) };
        Some(Piece::Block(Block { info, lines: lines.by_ref().take_while(|line| *line != "```").collect() }))
    })
}

/// The blocks of a page, in their order.
pub fn blocks(text: &str) -> impl Iterator<Item = Block<'_>> {
    pieces(text).filter_map(|piece| match piece {
        Piece::Block(block) => Some(block),
        Piece::Prose(_) => None,
    })
}

/// Fails if a line outside blocks holds a block that [`pieces`] would not see.
#[track_caller]
pub fn assert_prose(line: &str) {
    let hidden = line.starts_with("    ") || ["```", "~~~"].iter().any(|fence| line.contains(fence));
    assert!(!hidden, "a block that no test would run: {line}");
}

impl<'p> Block<'p> {
    /// The text, each line with its end.
    pub fn text(&self) -> String {
        self.lines.iter().map(|line| format!("{line}\n")).collect()
    }

    /// The commands of a console, each with what the page shows of its output.
    pub fn typed(&self) -> Vec<Typed<'p>> {
        let mut all: Vec<Typed<'_>> = Vec::new();
        let mut lines = self.lines.iter();
        while let Some(line) = lines.next() {
            if let Some(first) = line.strip_prefix("$ ") {
                let mut command = first.to_owned();
                while command.ends_with('\\') {
                    command = format!("{command}\n{}", lines.next().expect("a line follows a `\\`"));
                }
                all.push(Typed { command, shown: Vec::new() });
            } else {
                all.last_mut().expect("a console begins with a command").shown.push(line);
            }
        }
        assert!(!all.is_empty(), "a console without a command");
        all
    }
}

/// What follows a heading of the second level.
#[track_caller]
pub fn section<'p>(text: &'p str, heading: &str) -> &'p str {
    let (_, rest) =
        text.split_once(&format!("\n## {heading}\n")).unwrap_or_else(|| panic!("there is no section `{heading}`"));
    rest.split("\n## ").next().unwrap()
}

/// The rows of the table that has this heading line, cell by cell.
#[track_caller]
pub fn table(text: &str, heading: &str) -> Vec<Vec<String>> {
    let mut lines = text.lines().skip_while(|line| *line != heading).skip(1);
    assert!(lines.next().is_some_and(|line| line.starts_with("|---")), "there is no table `{heading}`");
    let rows = lines.take_while(|line| line.starts_with('|'));
    rows.map(|row| row.trim_matches('|').split(" | ").map(|cell| cell.trim_matches([' ', '|']).to_owned()).collect())
        .collect()
}

/// The code in a cell.
pub fn code(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

/// A `PATH` on which the folder of this program comes first.
pub fn path_with(program: &str) -> String {
    format!("{}:{}", Path::new(program).parent().unwrap().display(), std::env::var("PATH").unwrap())
}

/// A shell in `folder`, which is its home too, with this program on its path.
pub fn shell(program: &str, folder: &Path) -> Command {
    let mut shell = Command::new("bash");
    shell.current_dir(folder).env("PATH", path_with(program)).env("HOME", folder);
    shell
}
