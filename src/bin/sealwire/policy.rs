//! `sealwire policy`: the access policies of a folder, looked at before they are put to use.
//! Never changes a file.

mod check;
mod explain;

use clap::Subcommand;

use crate::exit::{Exit, Failure};
use crate::output::Output;

/// Access policies: check the files, explain a decision.
#[derive(Subcommand)]
pub(crate) enum Policy {
    Check(check::Check),
    Explain(explain::Explain),
}

impl Policy {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        match self {
            Self::Check(command) => command.run(out),
            Self::Explain(command) => command.run(out),
        }
    }
}

/// Where policy files are looked for when no folder is named.
const FOLDER: &str = "policies";
