//! The `sealwire` command.
//! Never does any work itself: it reads the command line, runs the command, and reports how it ended.

mod call;
mod cli;
mod colour;
mod completions;
mod config;
mod demo;
mod demo_methods;
mod dev;
mod door;
mod exit;
mod files;
mod init;
mod keys;
mod logging;
mod man;
mod mcp;
mod output;
mod parties;
mod permissions;
mod ping;
mod policy;
mod process;
mod progress;
mod project;
mod record;
mod runtime;
mod sandbox;
mod serve;
mod server;
mod setup;
mod term;
mod token;
mod toml_text;
mod tools;
mod when;

use std::process::ExitCode;

use clap::Parser as _;

fn main() -> ExitCode {
    process::harden();
    if let Some(code) = sealwire_backend::child::guard::answer() {
        return code;
    }
    completions::answer();
    cli::Cli::try_parse().map_or_else(cli::misused, cli::Cli::run)
}
