//! The bytes of a policy folder, read as a whole.
//! Never understands them, and never leaves out a file without saying so.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::Path;

use super::finding::Report;
use super::revision::Revision;
use super::rule::Location;

/// A policy file of more than 1 MiB is a mistake, and a bound on what a reload can cost.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// As many files as anyone reviews, with room to spare.
const MAX_FILES: usize = 1000;
/// Folders below the policy folder.
const MAX_DEPTH: usize = 8;
/// The ending of the tables of expected decisions, which lie beside the policies and are none.
const TEST_ENDING: &str = ".test.toml";

/// The content of a policy folder, read in one go and not yet understood.
#[derive(Debug, Default)]
pub(crate) struct Folder {
    /// Content by name relative to the folder, with `/` as separator.
    pub(crate) files: BTreeMap<String, Vec<u8>>,
}

impl Folder {
    /// Reads every policy file below `dir`. Names that begin with a dot are passed over.
    pub(crate) fn read(dir: &Path, report: &mut Report) -> Self {
        Self::read_where(dir, false, report)
    }

    /// Reads every table of expected decisions below `dir`.
    pub(crate) fn read_tests(dir: &Path, report: &mut Report) -> Self {
        Self::read_where(dir, true, report)
    }

    fn read_where(dir: &Path, tests: bool, report: &mut Report) -> Self {
        let mut folder = Self::default();
        folder.descend(dir, "", 0, tests, report);
        folder
    }

    fn descend(&mut self, dir: &Path, prefix: &str, depth: usize, tests: bool, report: &mut Report) {
        let here = Location { file: prefix.trim_end_matches('/').into(), line: 0 };
        let entries = match fs::read_dir(dir) {
            Ok(entries) => entries,
            Err(error) => {
                let message = format!("the policy folder `{}` cannot be read: {error}", dir.display());
                report.error(&here, message, "check the path and its permissions");
                return;
            }
        };
        for entry in entries {
            let path = match entry {
                Ok(entry) => entry.path(),
                Err(error) => {
                    report.error(&here, format!("the policy folder `{}` cannot be listed: {error}", dir.display()), "");
                    return;
                }
            };
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
                report.error(&here, format!("the file name `{}` is not UTF-8", path.display()), "rename the file");
                continue;
            };
            if name.starts_with('.') {
                continue;
            }
            let relative = format!("{prefix}{name}");
            let at = Location { file: relative.as_str().into(), line: 0 };
            if path.is_dir() {
                if depth >= MAX_DEPTH {
                    report.error(&at, format!("folders are nested deeper than {MAX_DEPTH}"), "move the files up");
                } else {
                    self.descend(&path, &format!("{relative}/"), depth + 1, tests, report);
                }
            } else if name.ends_with(TEST_ENDING) {
                if tests {
                    self.file(&path, relative, &at, report);
                }
            } else if tests {
                continue;
            } else if name.ends_with(".toml") || name.ends_with(".cedar") {
                self.file(&path, relative, &at, report);
            } else if !name.ends_with(".md") {
                let help = "policy files end in `.toml` or `.cedar`";
                report.warning(&at, "this is not a policy file and is not read", help);
            }
        }
    }

    fn file(&mut self, path: &Path, relative: String, at: &Location, report: &mut Report) {
        if self.files.len() >= MAX_FILES {
            report.error(at, format!("there are more than {MAX_FILES} policy files"), "put rules together");
            return;
        }
        match fs::metadata(path) {
            // A pipe would be waited for, a device may never end.
            Ok(metadata) if !metadata.is_file() => {
                return report.error(at, "is not a regular file", "remove it, or give it another ending");
            }
            Err(error) if path.is_symlink() => {
                return report.error(at, format!("is a link whose target cannot be read: {error}"), "check the link");
            }
            _ => {}
        }
        let mut content = Vec::new();
        // One byte more than allowed tells a file that is too large from one that just fits.
        match fs::File::open(path).and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_end(&mut content)) {
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

    pub(crate) fn revision(&self) -> Revision {
        Revision::of(self.files.iter().map(|(name, content)| (name.as_str(), content.as_slice())))
    }
}
