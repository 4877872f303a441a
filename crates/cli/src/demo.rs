//! `sealwire demo`: agents call each other over a real broker with every check enforced, and attackers try.
//! Never turns a check off, and never says that something went well which did not come out exactly as expected.

mod frame;
mod mallory;
mod relay;
mod stage;
mod story;

use clap::Args;

use crate::exit::{Exit, Failure};
use crate::output::Output;
use crate::runtime::{Signals, block_on};
use stage::Stage;

/// Watch agents call each other over NATS with every check enforced: one command, nothing to set up
///
/// Finds or fetches a real nats-server, makes throw-away keys, tokens and policies, starts the demonstration service, and
/// plays a story: permitted calls, a notification, a batch with one denied entry, a stranger, a changed message, a replay,
/// forged answers, streams of which parts are lost, exchanged, forged or cancelled by others. Each line shows what was
/// expected, what came, and how long it took. Everything is removed at the end.
///
/// Ends with 0 only if every line came out as expected.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire demo
  sealwire demo --json | jq .lines[].actual

To keep the same set-up running and try things yourself: sealwire dev")]
pub(crate) struct Demo {}

impl Demo {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        let stage = Stage::build(out)?;
        let signals = Signals::listen(None)?;
        let played = block_on(signals.unless_stopped(async {
            let serving = stage.serve().await?;
            let played = story::play(&stage, out).await;
            Ok::<_, Failure>((played, serving.stop().await))
        }))?;
        let Some(played) = played else {
            return Err(Failure::new(Exit::Interrupted, "stopped by a signal before the end of the story"));
        };
        let (told, served) = played?;
        let told = told?;
        served?;
        told.conclude(out)
    }
}
