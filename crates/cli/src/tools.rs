//! `sealwire tools`: compares the definitions of servers' tools and prompts with the approved ones, and lets the operator approve them.
//! Never approves a definition that was not shown, with its invisible characters made visible.

mod approve;
mod diff;
mod list;
mod servers;

use clap::Subcommand;

pub(crate) use servers::unasked;

use crate::exit::{Exit, Failure};
use crate::output::Output;

#[derive(Subcommand)]
pub(crate) enum Tools {
    List(list::List),
    Diff(diff::Diff),
    Approve(approve::Approve),
}

impl Tools {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        match self {
            Self::List(command) => command.run(out),
            Self::Diff(command) => command.run(out),
            Self::Approve(command) => command.run(out),
        }
    }
}
