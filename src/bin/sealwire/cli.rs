//! The command line as a whole: what there is to call, and what all commands have in common.
//! Never decides what a command does: that is written in its own file.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::exit::{self, Exit, Failure};
use crate::logging::{self, LogFormat};
use crate::output::Output;
use crate::{completions, demo, dev, keys, policy, serve, server, token};

/// Secure JSON-RPC 2.0 over NATS: signed calls, replay protection, access policies, signed answers.
#[derive(Parser)]
#[command(
    name = "sealwire",
    version,
    propagate_version = true,
    max_term_width = 100,
    after_help = EXAMPLES,
    after_long_help = exit::table(EXAMPLES)
)]
pub(crate) struct Cli {
    #[command(flatten)]
    common: Common,
    #[command(subcommand)]
    command: Command,
}

/// What every command takes.
#[derive(Args)]
#[command(next_help_heading = "Global options")]
struct Common {
    /// Print results as JSON on stdout, and errors as one line of JSON on stderr
    #[arg(long, global = true)]
    json: bool,
    /// How log lines look (on stderr; the filter is RUST_LOG, for example `RUST_LOG=sealwire=debug`)
    #[arg(long, global = true, value_enum, default_value_t, value_name = "FORMAT", hide_possible_values = false)]
    log_format: LogFormat,
}

#[derive(Subcommand)]
enum Command {
    /// Watch agents call each other over NATS with every check enforced: nothing to set up
    Demo(demo::Demo),
    /// Keep a whole set-up running on this machine, and print what to try
    Dev(dev::Dev),
    /// Serve the demonstration methods as a configuration file says
    Serve(serve::Serve),
    /// Run a nats-server on this machine, without users: to try things with
    NatsServer(server::Server),
    /// Keys of agents, services and token issuers: make, grant, pin, rotate, retire, revoke, list
    #[command(subcommand)]
    Keys(keys::Keys),
    /// Access tokens for development: issue, inspect, revoke
    #[command(subcommand)]
    Token(token::Token),
    /// Access policies: check the files, explain a decision
    #[command(subcommand)]
    Policy(policy::Policy),
    /// Print the completion script of a shell
    Completions(completions::Completions),
}

impl Cli {
    /// Runs the command to its end and reports a failure on stderr.
    pub(crate) fn run(self) -> ExitCode {
        logging::start(self.common.log_format, self.command.log_level());
        let out = Output::new(self.common.json);
        let command = AssertUnwindSafe(|| self.command.run(&out));
        let ended = catch_unwind(command).unwrap_or_else(|_panic| Err(Failure::bug()));
        match ended {
            Ok(exit) => exit.into(),
            Err(failure) => {
                out.failure(&failure);
                failure.exit().into()
            }
        }
    }
}

impl Command {
    fn run(self, out: &Output) -> Result<Exit, Failure> {
        match self {
            Self::Demo(command) => command.run(out),
            Self::Dev(command) => command.run(out),
            Self::Serve(command) => command.run(out),
            Self::NatsServer(command) => command.run(out),
            Self::Keys(command) => command.run(out),
            Self::Token(command) => command.run(out),
            Self::Policy(command) => command.run(out),
            Self::Completions(command) => command.run(out),
        }
    }

    /// What is logged when RUST_LOG says nothing: a service tells what it does, the others speak up when something is
    /// wrong.
    fn log_level(&self) -> &'static str {
        match self {
            Self::Dev(_) | Self::Serve(_) => "warn,sealwire=info",
            Self::Demo(_) | Self::NatsServer(_) => "error",
            Self::Keys(_) | Self::Token(_) | Self::Policy(_) | Self::Completions(_) => "warn",
        }
    }
}

const EXAMPLES: &str = "\
Examples:
  sealwire demo
  sealwire dev
  sealwire call --creds sealwire-dev/planner.creds.json demo math/add '{\"a\": 2, \"b\": 3}'
  sealwire token issue --key token-key.json --subject planner --audience dev/math --role calc
  sealwire policy check policies
  sealwire completions bash > ~/.local/share/bash-completion/completions/sealwire

`sealwire help COMMAND` shows examples for each command.";

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    #[test]
    fn command_line_is_well_formed() {
        super::Cli::command().debug_assert();
    }
}
