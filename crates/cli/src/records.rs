//! `sealwire records`: who called which method, with what outcome (docs/records.md).
//! Never writes to a record.

mod approvers;
mod calls;
mod check;
mod filter;
mod reader;
mod report;
mod search;
mod show;

use clap::Subcommand;

use crate::exit::{Exit, Failure};
use crate::output::Output;

/// The record of calls: search it, show one call, check that nothing is missing, report who used what.
#[derive(Subcommand)]
pub(crate) enum Records {
    Search(search::Search),
    Show(show::Show),
    Check(check::Check),
    Report(report::Report),
}

impl Records {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        match self {
            Self::Search(command) => command.run(out),
            Self::Show(command) => command.run(out),
            Self::Check(command) => command.run(out),
            Self::Report(command) => command.run(out),
        }
    }
}
