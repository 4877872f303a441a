//! `sealwire demo`: agents call each other over a real broker with every check enforced, while attackers try to interfere.
//! Never turns a check off, and never reports success for anything that did not turn out exactly as expected.

use std::io;

use clap::Args;
use sealwire_lab::audience::Audience;
use sealwire_lab::demo::{Stage, Transcript, perform};
use serde_json::json;

use crate::exit::{Exit, Failure};
use crate::output::Output;
use crate::runtime::{Signals, block_on};
use crate::server;

/// Watch agents call each other over NATS with every check enforced; nothing to set up
///
/// Finds or downloads a real nats-server, generates throw-away keys, tokens and policies, starts the demonstration service,
/// and plays a scenario: permitted calls, a notification, a batch with a denied entry, a transfer that somebody has to approve, a
/// stranger, a tampered message, a replay, forged answers, and streams whose parts are lost, swapped or forged, or which others
/// try to cancel. Each line shows what was expected, what happened and how long it took. Nothing stays behind except a downloaded
/// nats-server.
///
/// The exit code is 0 only if everything turned out as expected.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire demo
  sealwire demo --json | jq .lines[].actual

To keep the same set-up running and try things yourself: sealwire dev")]
pub(crate) struct Demo {}

impl Demo {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        let stage = Stage::build(&server::found(out)?, out)?;
        let signals = Signals::listen(None)?;
        let Some(told) = block_on(signals.unless_stopped(perform(&stage, out)))? else {
            return Err(Failure::new(Exit::Interrupted, "stopped by a signal before the end of the scenario"));
        };
        conclude(&told?, out)
    }
}

impl Audience for Output {
    fn note(&self, text: &str) {
        self.note(text);
    }

    fn line(&self, text: &str) -> io::Result<()> {
        self.progress(text)
    }
}

/// Prints the summary.
fn conclude(told: &Transcript, out: &Output) -> Result<Exit, Failure> {
    let (all, good) = (told.lines().len(), told.as_expected());
    out.result(&json!({ "lines": told.lines(), "as_expected": good, "of": all }), || format!("\n{}", told.summary()))?;
    if good == all {
        return Ok(Exit::Ok);
    }
    Err(Failure::new(Exit::Bug, format!("{} lines did not turn out as expected", all - good)))
}
