//! `sealwire approvals`: calls that wait for people: list or watch them, look at one, approve or deny it.
//! Never signs for a call that was not shown in full, with everything hidden in it made visible.

mod decide;
mod desk;
mod list;
mod pages;
mod request;
mod show;
mod watch;

use clap::Subcommand;

use crate::exit::{Exit, Failure};
use crate::output::Output;

#[derive(Subcommand)]
pub(crate) enum Approvals {
    List(list::List),
    Show(show::Show),
    Approve(decide::Approve),
    Deny(decide::Deny),
    Watch(watch::Watch),
}

impl Approvals {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        match self {
            Self::List(command) => command.run(out),
            Self::Show(command) => command.run(out),
            Self::Approve(command) => command.run(out),
            Self::Deny(command) => command.run(out),
            Self::Watch(command) => command.run(out),
        }
    }
}
