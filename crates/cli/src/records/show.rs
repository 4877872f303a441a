//! `sealwire records show`: everything that the record has about one message.
//! Never guesses which call is meant.

use std::path::PathBuf;

use clap::Args;
use serde_json::Value;

use super::calls::{Event, read};
use super::reader::{FOLDER, Reader};
use crate::exit::{Exit, Failure};
use crate::output::Output;
use crate::when;

/// Show the whole story of one call: who called, what was decided by which rule, and what it came to
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire records show AAECAwQFBgcICQoLDA0ODw
  sealwire records show AAECAwQFBgcICQoLDA0ODw/2  # one entry of a batch")]
pub(crate) struct Show {
    /// The id of a message, as in the log and in `records search`
    #[arg(value_name = "ID", allow_hyphen_values = true)]
    id: String,
    /// The folder of a record, or files of it
    #[arg(value_name = "PATH", default_value = FOLDER)]
    paths: Vec<PathBuf>,
}

/// The most lines of one message: more than a batch with streams has.
const MOST: usize = 1_000;

impl Show {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        let (message, entry) = match self.id.split_once('/') {
            Some((message, entry)) => (message, Some(entry)),
            None => (self.id.as_str(), None),
        };
        let mut lines: Vec<(String, Value)> = Vec::new();
        Reader::new(&self.paths, false).pass(|line| {
            let Ok((_, event)) = read(line.text) else { return Ok(()) };
            let (of, at) = match &event {
                Event::Decision(record) => (record.message.as_deref(), record.entry),
                Event::Outcome(outcome) => (Some(outcome.message.as_str()), outcome.entry),
                Event::Other => (None, None),
            };
            let is_entry = entry.is_none_or(|entry| at.is_some_and(|at| at.to_string() == entry));
            if of == Some(message)
                && is_entry
                && lines.len() < MOST
                && let Ok(value) = serde_json::from_slice(line.text)
            {
                lines.push((line.place(), value));
            }
            Ok(())
        })?;
        if lines.is_empty() {
            return Err(Failure::input(format!("no call `{}` is recorded", self.id)).help("sealwire records search"));
        }
        let values: Vec<&Value> = lines.iter().map(|(_, value)| value).collect();
        out.result(&values, || lines.iter().map(|(place, value)| part(place, value)).collect::<Vec<_>>().join("\n"))?;
        Ok(Exit::Ok)
    }
}

/// One line, a member a line.
fn part(place: &str, line: &Value) -> String {
    let at = line.get("at_ms").and_then(Value::as_u64).map(|at_ms| when::absolute(at_ms / 1_000)).unwrap_or_default();
    let kind = line.get("kind").and_then(Value::as_str).unwrap_or_default();
    let mut text = format!("{kind}  {at}  {place}\n");
    for (name, value) in line.as_object().into_iter().flatten() {
        if !["v", "kind", "at_ms", "prev"].contains(&name.as_str()) {
            let value = value.as_str().map_or_else(|| value.to_string(), |text| text.escape_debug().to_string());
            text.push_str(&format!("    {name:<14} {value}\n"));
        }
    }
    text
}
