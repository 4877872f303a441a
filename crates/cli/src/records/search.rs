//! `sealwire records search`: the calls that are asked for, one a line.
//! Never shows a call twice.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::calls::{Call, Calls, read};
use super::filter::Filter;
use super::reader::{FOLDER, Reader};
use crate::exit::{Exit, Failure};
use crate::output::Output;
use crate::runtime::{Signals, block_on};
use crate::when;

/// Show who called which method, what the policy decided, and with what outcome
///
/// One line for each call, in the order in which they ended. With `--json`, one object a line. Reads whole folders, rotated files
/// and files that gzip has compressed.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire records search
  sealwire records search --method 'bank/*' --decision deny --since 1h
  sealwire records search --agent planner --outcome error --json
  sealwire records search /var/lib/bank/records --follow")]
pub(crate) struct Search {
    /// The folder of a record, or files of it
    #[arg(value_name = "PATH", default_value = FOLDER)]
    paths: Vec<PathBuf>,
    #[command(flatten)]
    filter: Filter,
    /// Go on with the calls to come, until Ctrl-C
    #[arg(long)]
    follow: bool,
}

impl Search {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        let (mut reader, mut calls) = (Reader::new(&self.paths, self.follow), Calls::default());
        let mut found = 0_usize;
        let mut show = |call: Call| {
            if !self.filter.matches(&call) {
                return Ok(());
            }
            found += 1;
            if found == 1 && !out.is_json() {
                out.print(HEADING)?;
            }
            out.result(&call, || line(&call))
        };
        let mut unreadable = 0_usize;
        let mut pass = |calls: &mut Calls| {
            reader.pass(|line| match read(line.text) {
                Ok((head, event)) => calls.add(&head, event, &mut show),
                Err(_) => {
                    unreadable += 1;
                    Ok(())
                }
            })
        };
        pass(&mut calls)?;
        if self.follow {
            let signals = Signals::listen(None)?;
            block_on(async {
                let mut stop = std::pin::pin!(signals.stop());
                loop {
                    tokio::select! {
                        () = &mut stop => return Ok::<(), Failure>(()),
                        () = tokio::time::sleep(EVERY) => pass(&mut calls)?,
                    }
                }
            })??;
        }
        calls.finish(&mut show)?;
        if found == 0 {
            out.note("no such call is recorded");
        }
        if unreadable > 0 {
            out.warning(&format!("{unreadable} lines cannot be read: see `sealwire records check`"));
        }
        Ok(Exit::Ok)
    }
}

/// How often a running record is looked at.
const EVERY: Duration = Duration::from_millis(200);

const HEADING: &str = "TIME                  AGENT             METHOD                    DECISION                  OUTCOME         TOOK  MESSAGE                 PARAMS";

/// A call as a line of the table. A name that is too long for its column moves the others.
fn line(call: &Call) -> String {
    let agent = match &call.subject {
        Some(subject) => format!("{} for {subject}", call.agent),
        None => call.agent.clone(),
    };
    let decision = format!("{} {}", call.decision, call.rule.as_deref().unwrap_or(&call.reason));
    let outcome = match call.code {
        Some(code) if call.outcome == "error" => code.to_string(),
        Some(code) => format!("{} {code}", call.outcome),
        None => call.outcome.clone(),
    };
    let took = call.duration_us.map(took).unwrap_or_default();
    let (at, id) = (when::absolute(call.at_ms / 1_000), &call.id);
    let method = call.method.escape_debug().to_string();
    format!("{at}  {agent:<16}  {method:<24}  {decision:<24}  {outcome:<12}  {took:>6}  {id:<22}  {}", params(call))
        .trim_end()
        .to_owned()
}

fn took(microseconds: u64) -> String {
    match microseconds {
        0..1_000 => format!("{microseconds}µs"),
        1_000..10_000_000 => format!("{}ms", microseconds / 1_000),
        _ => format!("{}s", microseconds / 1_000_000),
    }
}

/// What is recorded of the parameters.
fn params(call: &Call) -> String {
    let mut shown = call.params.clone().map(|params| serde_json::Value::Object(params).to_string()).unwrap_or_default();
    let hashed = call.hashed.keys().map(|name| format!("{name}=#"));
    let dropped = call.dropped.iter().map(|name| format!("{name}=…"));
    for hidden in hashed.chain(dropped) {
        shown.push(' ');
        shown.push_str(&hidden);
    }
    shown
}
