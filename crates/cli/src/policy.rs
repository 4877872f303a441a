//! `sealwire policy`: examines the access policies in a folder before they are used.
//! Never changes what a file says: `fmt` changes only its layout, and `skeleton` and `learn` write only new files.

mod approvals;
mod caller;
mod can;
mod cells;
mod check;
mod compare;
mod compile;
mod compiled;
mod diff;
mod drift;
mod explain;
mod first_call;
mod fmt;
mod learn;
mod lines;
mod matrix;
mod names;
mod package;
mod push;
mod schema;
mod skeleton;
mod status;
mod test;
mod who_can;

use clap::Subcommand;

use crate::exit::{Exit, Failure};
use crate::output::Output;
pub(crate) use first_call::NewAgent;

/// Access policies: check, test, explain, review, compare, format and distribute the files.
#[derive(Subcommand)]
pub(crate) enum Policy {
    Check(check::Check),
    Test(test::Test),
    Explain(explain::Explain),
    Matrix(matrix::Matrix),
    WhoCan(who_can::WhoCan),
    Approvals(approvals::Approvals),
    Can(can::Can),
    Diff(diff::Diff),
    Compile(compile::Compile),
    Drift(drift::Drift),
    Skeleton(skeleton::Skeleton),
    Learn(learn::Learn),
    Push(push::Push),
    Compare(compare::Compare),
    Status(status::Status),
    Fmt(fmt::Fmt),
    Schema(schema::Schema),
}

impl Policy {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        match self {
            Self::Check(command) => command.run(out),
            Self::Test(command) => command.run(out),
            Self::Explain(command) => command.run(out),
            Self::Matrix(command) => command.run(out),
            Self::WhoCan(command) => command.run(out),
            Self::Approvals(command) => command.run(out),
            Self::Can(command) => command.run(out),
            Self::Diff(command) => command.run(out),
            Self::Compile(command) => command.run(out),
            Self::Drift(command) => command.run(out),
            Self::Skeleton(command) => command.run(out),
            Self::Learn(command) => command.run(out),
            Self::Push(command) => command.run(out),
            Self::Compare(command) => command.run(out),
            Self::Status(command) => command.run(out),
            Self::Fmt(command) => command.run(out),
            Self::Schema(command) => command.run(out),
        }
    }
}
