//! The bytes of a policy folder, read as a whole.
//! Never interprets them, and never leaves out a file without saying so.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::files::{self, Entry, FileTrust, SecretFileError};
use crate::policy::model::{Location, Report, Revision};

/// A policy file of more than 1 MiB is a mistake; this also bounds what a reload can cost.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// As many files as anyone reviews, with room to spare.
const MAX_FILES: usize = 1000;
/// How deep folders may be nested below the policy folder.
const MAX_DEPTH: usize = 8;
/// The suffix of tables of expected decisions, which lie beside the policies but are not policies.
const TEST_ENDING: &str = ".test.toml";

/// The content of a policy folder, read in one go and not yet interpreted.
#[derive(Debug, Default)]
pub(crate) struct Folder {
    /// Content by name relative to the folder, with `/` as separator.
    pub(crate) files: BTreeMap<String, Vec<u8>>,
}

impl Folder {
    /// Reads every policy file below `dir`. Names that begin with a dot are skipped. With `trust`, a file that others
    /// could have written is an error.
    pub(crate) fn read(dir: &Path, trust: Option<&FileTrust>, report: &Report) -> Self {
        Self::read_where(dir, trust, false, report)
    }

    /// Reads every table of expected decisions below `dir`.
    pub(crate) fn read_tests(dir: &Path, report: &Report) -> Self {
        Self::read_where(dir, None, true, report)
    }

    fn read_where(dir: &Path, trust: Option<&FileTrust>, tests: bool, report: &Report) -> Self {
        let mut folder = Self::default();
        match files::Folder::open(dir, trust) {
            Ok(opened) => folder.descend(&opened, "", 0, tests, report),
            Err(error) => unreadable(dir, "", &error, report),
        }
        folder
    }

    fn descend(&mut self, dir: &files::Folder<'_>, prefix: &str, depth: usize, tests: bool, report: &Report) {
        let names = match dir.names() {
            Ok(names) => names,
            Err(error) => {
                let error = SecretFileError::Io { path: dir.path().to_owned(), error };
                return unreadable(dir.path(), prefix, &error, report);
            }
        };
        for name in names {
            let path = dir.path().join(&name);
            let Some(name) = name.to_str() else {
                let here = Location { file: prefix.trim_end_matches('/').into(), line: 0 };
                report.error(&here, format!("the file name `{}` is not UTF-8", path.display()), "rename the file");
                continue;
            };
            if name.starts_with('.') {
                continue;
            }
            let relative = format!("{prefix}{name}");
            let at = Location { file: relative.as_str().into(), line: 0 };
            let is_test = name.ends_with(TEST_ENDING);
            let is_policy = !is_test && (name.ends_with(".toml") || name.ends_with(".cedar"));
            let wanted = if tests { is_test } else { is_policy };
            match dir.entry(name.as_ref()) {
                Ok(Entry::Folder(_)) if depth >= MAX_DEPTH => {
                    report.error(&at, format!("folders are nested deeper than {MAX_DEPTH}"), "move the files up");
                }
                Ok(Entry::Folder(inner)) => {
                    self.descend(&inner, &format!("{relative}/"), depth + 1, tests, report);
                }
                Ok(Entry::File(file)) if wanted => self.file(&file, relative, &at, report),
                Err(SecretFileError::Io { error, .. }) if wanted => {
                    let what =
                        if path.is_symlink() { "is a link whose target cannot be read" } else { "cannot be read" };
                    report.error(&at, format!("{what}: {error}"), "check its permissions, and where it leads");
                }
                Ok(Entry::File(_)) | Err(SecretFileError::Io { .. }) => {
                    if !tests && !is_test && !name.ends_with(".md") {
                        let help = "policy files end in `.toml` or `.cedar`";
                        report.warning(&at, "this is not a policy file and is not read", help);
                    }
                }
                Err(distrusted) => report.error(&at, distrusted.to_string(), ""),
            }
        }
    }

    fn file(&mut self, file: &File, relative: String, at: &Location, report: &Report) {
        if self.files.len() >= MAX_FILES {
            report.error(at, format!("there are more than {MAX_FILES} policy files"), "put rules together");
            return;
        }
        // Reading a device may never end.
        if !file.metadata().is_ok_and(|metadata| metadata.is_file()) {
            return report.error(at, "is not a regular file", "remove it, or give it another ending");
        }
        let mut content = Vec::new();
        // One byte more than allowed tells a file that is too large from one that just fits.
        match file.take(MAX_FILE_BYTES + 1).read_to_end(&mut content) {
            Err(error) => report.error(at, format!("cannot be read: {error}"), "check its permissions"),
            Ok(_) if content.len() as u64 > MAX_FILE_BYTES => {
                report.error(at, format!("is larger than {MAX_FILE_BYTES} bytes"), "split the file");
            }
            Ok(_) => {
                if content.trim_ascii().is_empty() {
                    report.warning(at, "is empty", "write a rule into it or remove it");
                }
                self.files.insert(relative, content);
            }
        }
    }

    /// The files as texts, by name. Reports those that are not.
    pub(crate) fn texts<'a>(&'a self, report: &Report) -> Vec<(&'a str, &'a str)> {
        let mut texts = Vec::new();
        for (name, content) in &self.files {
            match std::str::from_utf8(content) {
                Ok(text) => texts.push((name.as_str(), text)),
                Err(_) => {
                    let at = Location { file: name.as_str().into(), line: 0 };
                    report.error(&at, "is not UTF-8 text", "save it as UTF-8");
                }
            }
        }
        texts
    }

    pub(crate) fn revision(&self) -> Revision {
        Revision::of(self.files.iter().map(|(name, content)| (name.as_str(), content.as_slice())))
    }
}

fn unreadable(dir: &Path, prefix: &str, error: &SecretFileError, report: &Report) {
    let here = Location { file: prefix.trim_end_matches('/').into(), line: 0 };
    let (why, help) = match error {
        SecretFileError::Io { error, .. } => (error.to_string(), "check the path and its permissions"),
        distrusted => (distrusted.to_string(), ""),
    };
    report.error(&here, format!("the policy folder `{}` cannot be read: {why}", dir.display()), help);
}
