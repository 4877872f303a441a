//! `sealwire policy diff`: what changes from one folder to another, and for which recorded calls.
//! Never reports that nothing changes if it cannot tell: such calls are listed, too.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read as _, Seek as _};
use std::path::{Path, PathBuf};

use clap::Args;
use sealwire::decide::Methods;
use sealwire::internal::policy;
use sealwire::internal::policy::Replay;
use sealwire::{DecisionRecord, MethodName, PolicySet};
use serde::Serialize;

use super::lines::Lines;
use crate::exit::{Exit, Failure};
use crate::files::at;
use crate::output::Output;
use crate::policies::{known_methods, load_with};

/// Describe what changes between two policy folders, and which recorded calls would be decided differently
///
/// The exit code is 0 whatever it finds, unless `--exit-code` is given.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire policy diff policies-in-use policies
  sealwire policy diff policies-in-use policies --replay records/202611*.jsonl
  zcat records/*.gz | sealwire policy diff a b --replay /dev/stdin --exit-code

A recording is a file of the service's record, see docs/records.md.")]
pub(crate) struct Diff {
    /// The folder before
    #[arg(value_name = "OLD")]
    old: PathBuf,
    /// The folder after
    #[arg(value_name = "NEW")]
    new: PathBuf,
    /// Replay a recording against the new policies, and list the calls whose verdict would differ: the first 1,000, and how many
    /// there are
    #[arg(long, value_name = "FILE")]
    replay: Option<PathBuf>,
    /// Exit with code 13 if something differs: the verdict of a replayed call or, if no calls are replayed, anything
    #[arg(long)]
    exit_code: bool,
}

#[derive(Serialize)]
struct DiffResult<'a> {
    same: bool,
    #[serde(flatten)]
    diff: &'a policy::Diff,
    #[serde(skip_serializing_if = "Option::is_none")]
    replay: Option<&'a Replay>,
}

impl Diff {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        let working = out.working("comparing the policies");
        let mut recording = self.replay.as_deref().map(Recording::open).transpose()?;
        let methods = recording.as_mut().map_or_else(|| Ok(known_methods()), Recording::methods)?;
        let (old, new) = (load_with(&self.old, &methods, out)?, load_with(&self.new, &methods, out)?);
        let diff = policy::Diff::between(&old, &new);
        let replay = recording.as_mut().map(|recording| recording.replay(&new)).transpose()?;
        drop(working);
        // A recording without calls says nothing about the policies.
        let replayed = replay.as_ref().filter(|replay| replay.calls > 0 || !replay.is_same());
        let same = replayed.map_or(diff.is_same(), Replay::is_same);
        out.verdict(&DiffResult { same, diff: &diff, replay: replay.as_ref() }, || {
            let replayed = replay.as_ref().map(|replay| format!("\n{replay}\n")).unwrap_or_default();
            format!("{diff}{replayed}")
        })?;
        Ok(if same || !self.exit_code { Exit::Ok } else { Exit::Different })
    }
}

/// A recording, read line by line, since it may be larger than memory, and twice. Only up to its length when it was opened, since
/// a service may be adding to it.
struct Recording<'a> {
    path: &'a Path,
    file: File,
    length: u64,
}

/// The most methods of a recording: more than any service has.
const METHODS: usize = 10_000;

impl<'a> Recording<'a> {
    fn open(path: &'a Path) -> Result<Self, Failure> {
        let fail = |error: io::Error| at(path, &error);
        let mut file = File::open(path).map_err(fail)?;
        if !file.metadata().map_err(fail)?.is_file() {
            // A pipe can be read only once. The copy has no name, and disappears with this process.
            file =
                tempfile::tempfile().and_then(|mut copy| io::copy(&mut file, &mut copy).map(|_| copy)).map_err(fail)?;
        }
        let length = file.metadata().map_err(fail)?.len();
        Ok(Self { path, file, length })
    }

    fn each(&mut self, mut take: impl FnMut(usize, &[u8])) -> Result<(), Failure> {
        let fail = |error: io::Error| at(self.path, &error);
        self.file.rewind().map_err(fail)?;
        let mut lines = Lines::new((&self.file).take(self.length));
        while let Some((number, line)) = lines.next().map_err(fail)? {
            take(number, line);
        }
        Ok(())
    }

    /// The methods that the recording service had: files need not declare them all.
    fn methods(&mut self) -> Result<Methods, Failure> {
        let mut names = BTreeSet::new();
        self.each(|_, line| {
            if names.len() < METHODS
                && let Ok(Some(record)) = DecisionRecord::read(line)
                && record.reason != "unknown_method"
            {
                names.extend(MethodName::new(&record.method).ok());
            }
        })?;
        Ok(names.into_iter().fold(known_methods(), Methods::with))
    }

    fn replay(&mut self, set: &PolicySet) -> Result<Replay, Failure> {
        let mut replay = Replay::new(set);
        self.each(|number, line| replay.line(set, number, line))?;
        Ok(replay)
    }
}
