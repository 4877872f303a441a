//! Recordings, read line by line within bounds.
//! Never keeps more than one line, and never trusts a file that others could have written.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use sealwire::DecisionRecord;
use sealwire::errors::SecretFileError;
use sealwire::internal::files::open_public;

use crate::exit::{Exit, Failure};
use crate::policy::lines::Lines;

/// The most that is read: some hours of a busy service.
const MAX_RECORDS: usize = 1_000_000;
const MAX_BYTES: u64 = 1 << 30;

/// A line that is not a record.
#[derive(Debug)]
pub(super) struct Unreadable;

#[derive(Debug)]
pub(super) struct Records<'a>(Vec<(&'a Path, File)>);

impl<'a> Records<'a> {
    pub(super) fn open(paths: &'a [PathBuf]) -> Result<Self, Failure> {
        let (mut files, mut bytes) = (Vec::new(), 0_u64);
        for path in paths {
            let at = |error| Failure::input(format!("`{}`: {error}", path.display()));
            // Somebody else who could write the file could teach us any rule.
            let file = open_public(path).map_err(|error| distrusted(path, &error))?;
            let metadata = file.metadata().map_err(at)?;
            if !metadata.is_file() {
                // For example a pipe that was passed as an open descriptor.
                let message =
                    format!("`{}` is no regular file, and recordings are read more than once", path.display());
                return Err(Failure::input(message));
            }
            bytes = bytes.saturating_add(metadata.len());
            files.push((path.as_path(), file));
        }
        if bytes > MAX_BYTES {
            return Err(too_much(&format!("{} MiB", MAX_BYTES >> 20)));
        }
        Ok(Self(files))
    }

    /// Calls `take` with every decision and its place.
    pub(super) fn each(self, mut take: impl FnMut(&str, Result<DecisionRecord, Unreadable>)) -> Result<(), Failure> {
        let mut count = 0;
        for (path, file) in self.0 {
            let at = |error| Failure::input(format!("`{}`: {error}", path.display()));
            let mut lines = Lines::new(file.take(MAX_BYTES));
            while let Some((number, line)) = lines.next().map_err(at)? {
                if line.trim_ascii().is_empty() {
                    continue;
                }
                count += 1;
                if count > MAX_RECORDS {
                    return Err(too_much(&format!("{MAX_RECORDS} decisions")));
                }
                if let Some(record) = DecisionRecord::read(line).map_err(|_| Unreadable).transpose() {
                    take(&format!("{}:{number}", path.display()), record);
                }
            }
        }
        Ok(())
    }
}

fn too_much(bound: &str) -> Failure {
    Failure::input(format!("the recordings have more than {bound}"))
        .help("give fewer files, or a part of them: `tail -n 100000 decisions.jsonl > part.jsonl`")
}

fn distrusted(path: &Path, error: &SecretFileError) -> Failure {
    let failure = Failure::of(Exit::Input, error);
    match error {
        SecretFileError::Foreign { .. } => failure.help(format!(
            "if you trust who has written it, learn from a copy of your own: cp {} my-decisions.jsonl",
            path.display()
        )),
        _ => failure,
    }
}
