//! `sealwire policy diff`: what changes from one folder to another, and for which recorded calls.
//! Never says that nothing changes when it cannot tell: such calls are listed, too.

use std::path::{Path, PathBuf};

use clap::Args;
use sealwire::MethodName;
use sealwire::policy::{self, DecisionRecord, Methods, Replay};
use serde::Serialize;

use super::{known_methods, load_with};
use crate::exit::{Exit, Failure};
use crate::output::Output;

/// Say in words what changes between two policy folders, and which recorded calls would come out differently
///
/// Ends with exit code 0 whatever it finds, unless `--exit-code` is given.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire policy diff policies-in-use policies
  sealwire policy diff policies-in-use policies --replay decisions.jsonl
  sealwire policy diff old new --replay decisions.jsonl --exit-code

Recordings are made by `sealwire serve --record-decisions`.")]
pub(crate) struct Diff {
    /// The folder before
    #[arg(value_name = "OLD")]
    old: PathBuf,
    /// The folder after
    #[arg(value_name = "NEW")]
    new: PathBuf,
    /// Put the calls of a recording to the new policies, and list those whose verdict would differ
    #[arg(long, value_name = "FILE")]
    replay: Option<PathBuf>,
    /// End with exit code 13 when something differs: with --replay of any calls, one of these; without, anything
    #[arg(long)]
    exit_code: bool,
}

#[derive(Serialize)]
struct Compared<'a> {
    same: bool,
    #[serde(flatten)]
    diff: &'a policy::Diff,
    #[serde(skip_serializing_if = "Option::is_none")]
    replay: Option<&'a Replay>,
}

impl Diff {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        let working = out.working("comparing the policies");
        let recording = self.replay.as_deref().map(read).transpose()?;
        let methods = recorded_methods(recording.as_deref().unwrap_or_default());
        let (old, new) = (load_with(&self.old, &methods, out)?, load_with(&self.new, &methods, out)?);
        let diff = policy::Diff::between(&old, &new);
        let replay = recording.as_deref().map(|recording| Replay::run(&new, recording));
        drop(working);
        // A recording without calls says nothing of the policies.
        let replayed = replay.as_ref().filter(|replay| replay.calls > 0 || !replay.is_same());
        let same = replayed.map_or(diff.is_same(), Replay::is_same);
        out.verdict(&Compared { same, diff: &diff, replay: replay.as_ref() }, || {
            let replayed = replay.as_ref().map(|replay| format!("\n{replay}\n")).unwrap_or_default();
            format!("{diff}{replayed}")
        })?;
        Ok(if same || !self.exit_code { Exit::Ok } else { Exit::Different })
    }
}

fn read(file: &Path) -> Result<String, Failure> {
    let bytes = std::fs::read(file).map_err(|error| Failure::input(format!("`{}`: {error}", file.display())))?;
    // A line that is not UTF-8 is no record, and told as such; the others count.
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The methods that the recording service had: files need not declare them all.
fn recorded_methods(recording: &str) -> Methods {
    let records = recording.lines().filter_map(|line| serde_json::from_str::<DecisionRecord>(line).ok());
    let names = records.filter(|record| record.reason != "unknown_method").map(|record| record.method);
    let names: std::collections::BTreeSet<String> = names.collect();
    names.iter().filter_map(|name| MethodName::new(name.as_str()).ok()).fold(known_methods(), Methods::with)
}
