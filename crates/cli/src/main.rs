//! The `sealwire` command.
//! Never does any work itself: it reads the command line, runs the command, and reports how it ended.

mod alg;
mod authd;
mod call;
mod cli;
mod colour;
mod completions;
mod config;
mod demo;
mod dev;
mod exit;
mod exporter;
mod files;
mod gate;
mod gateway;
mod init;
mod keys;
mod logging;
mod login;
mod man;
mod mcp;
mod output;
mod ping;
mod pipe;
mod policies;
mod policy;
mod process;
mod progress;
mod project;
mod records;
mod revocation;
mod runtime;
mod serve;
mod server;
mod setup;
mod survey;
mod term;
mod token;
mod toml_text;
mod tools;
mod top;
mod traces;
mod users;
mod when;

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser as _};

fn main() -> ExitCode {
    process::harden();
    if let Some(code) = sealwire_backend::child::guard::answer() {
        return code;
    }
    completions::answer(cli::Cli::command);
    cli::Cli::try_parse().map_or_else(cli::misused, cli::Cli::run)
}
