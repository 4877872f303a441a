//! The `sealwire` command.
//! Never does any work itself: it reads the command line, hands over, and reports how it ended.

mod cli;
mod completions;
mod demo_methods;
mod exit;
mod files;
mod keys;
mod logging;
mod output;
mod policy;
mod term;
mod token;
mod when;

use std::process::ExitCode;

use clap::Parser as _;

fn main() -> ExitCode {
    cli::Cli::parse().run()
}
