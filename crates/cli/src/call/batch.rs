//! `sealwire batch`: several calls and notifications in one message, each with its own answer.
//! Never matches an answer to a call by its position in the message.

use std::fmt::Write as _;

use clap::Args;
use sealwire::ClientError;
use sealwire::call::BatchCall;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::outcome::{Outcome, shown};
use super::{Options, failure, stopped};
use crate::exit::{Exit, Failure};
use crate::files;
use crate::output::Output;

/// Send several calls and notifications in one message; each entry is authorized, executed and answered separately
#[derive(Args)]
#[command(after_help = "\
The entries are JSON-RPC requests or short forms of them: {\"method\", \"params\"}
for a call, the same with \"notify\": true for a notification. Exit codes: 0 if
every call has a result, 10 if some were denied, 21 if some failed otherwise.

Examples:
  sealwire batch math '[{\"method\":\"math/add\",\"params\":[2,3]},
      {\"method\":\"math/mul\",\"params\":{\"a\":2,\"b\":3}}]'
  sealwire batch math - --json < batch.json | jq '.[].result'
  sealwire batch math '[{\"method\":\"math/add\",\"params\":[2,3],\"notify\":true}]'")]
pub(crate) struct Batch {
    #[command(flatten)]
    options: Options,
    /// The service
    #[arg(value_name = "SERVICE")]
    service: String,
    /// A JSON array of entries; read from stdin if `-` or absent
    #[arg(value_name = "ENTRIES", allow_hyphen_values = true)]
    entries: Option<String>,
}

/// One entry, in either form.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    #[serde(default)]
    jsonrpc: Option<String>,
    method: String,
    #[serde(default)]
    params: Option<Box<RawValue>>,
    /// Printed with the answer; the message itself uses other ids.
    #[serde(default, deserialize_with = "given")]
    id: Option<Box<RawValue>>,
    #[serde(default)]
    notify: bool,
}

/// Keeps an id of `null`, which is an id, apart from a missing one.
fn given<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Box<RawValue>>, D::Error> {
    Box::<RawValue>::deserialize(deserializer).map(Some)
}

impl Entry {
    fn is_notification(&self) -> bool {
        self.notify || (self.jsonrpc.is_some() && self.id.is_none())
    }
}

/// One answer, for scripts.
#[derive(Serialize)]
struct Line<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a RawValue>,
    method: &'a str,
    #[serde(flatten)]
    outcome: Outcome<'a>,
}

impl Batch {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        let text = files::argument_or_stdin(self.entries, "the batch")?;
        let entries: Vec<Entry> = serde_json::from_str(&text).map_err(|error| {
            Failure::input(format!("the batch is not an array of entries: {error}"))
                .help("write '[{\"method\":\"math/add\",\"params\":[2,3]}]'; to send anything that is not a request, use `sealwire send`")
        })?;
        let outcomes = self.options.run(&self.service, out, async |client, signals| {
            let mut batch = self.options.cancellable(&client, &self.service, &signals).batch();
            let calls: Vec<Option<BatchCall>> = entries
                .iter()
                .map(|entry| {
                    if entry.is_notification() {
                        batch.notify(&entry.method, &entry.params);
                        return None;
                    }
                    Some(batch.call(&entry.method, &entry.params))
                })
                .collect();
            let mut answers = batch.send().await?;
            // An error of the whole message is reported once, not for each entry.
            let mut outcomes = Vec::with_capacity(calls.len());
            for call in calls {
                outcomes.push(match call.map(|call| answers.take::<Box<RawValue>>(call)) {
                    None => None,
                    Some(Ok(result)) => Some(Ok(result)),
                    Some(Err(error @ (ClientError::Remote(_) | ClientError::Repeated { .. }))) => {
                        Some(Err(stopped(&error, &signals).unwrap_or_else(|| failure(error))))
                    }
                    Some(Err(error)) => return Err(error),
                });
            }
            Ok(outcomes)
        })?;

        let answered = entries.iter().zip(&outcomes).filter_map(|(entry, outcome)| Some((entry, outcome.as_ref()?)));
        let lines: Vec<Line<'_>> = answered
            .map(|(entry, outcome)| Line {
                id: entry.id.as_deref(),
                method: &entry.method,
                outcome: match outcome {
                    Ok(result) => Outcome::Result(result),
                    Err(error) => Outcome::Error(error.object()),
                },
            })
            .collect();
        let sent = outcomes.len() - lines.len();
        out.tell(&lines, || text_of(&lines))?;
        if sent > 0 {
            out.note(&format!("{sent} notifications sent; the service does not say whether they were executed"));
        }
        let errors = outcomes.into_iter().flatten().filter_map(Result::err);
        Ok(super::of_several(errors.map(|error| error.exit())))
    }
}

fn text_of(lines: &[Line<'_>]) -> String {
    let width = lines.iter().map(|line| line.method.chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for Line { method, outcome, .. } in lines {
        // Writing to a string cannot fail.
        let _ = match outcome {
            Outcome::Result(result) => writeln!(text, "{method:width$}  {}", shown(result)),
            Outcome::Error(error) => writeln!(text, "{method:width$}  error: {}", error.message()),
        };
    }
    text
}
