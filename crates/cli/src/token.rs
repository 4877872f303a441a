//! `sealwire token`: issues access tokens for development, and shows what a token contains.
//! Never trusts a token: verifying one is a service's job.

mod inspect;
mod issue;
mod revoke;

use clap::Subcommand;
pub(crate) use revoke::DenylistChange as ChangedDenylist;

use crate::exit::{Exit, Failure};
use crate::output::Output;

/// Access tokens for development: issue, inspect, revoke.
#[derive(Subcommand)]
pub(crate) enum Token {
    Issue(issue::Issue),
    Inspect(inspect::Inspect),
    Revoke(revoke::Revoke),
}

impl Token {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        match self {
            Self::Issue(command) => command.run(out),
            Self::Inspect(command) => command.run(out),
            Self::Revoke(command) => command.run(out),
        }
    }
}
