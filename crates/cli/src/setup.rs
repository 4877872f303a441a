//! The commands below `sealwire setup`.
//! Never writes outside the folder that it is given.

mod agent;
mod certificates;
mod cluster;
mod mark;
mod service;
mod target;

use clap::Subcommand;

use crate::exit::{Exit, Failure};
use crate::output::Output;

/// Complete setups: keys, broker users, certificates, configuration.
#[derive(Subcommand)]
pub(crate) enum Setup {
    Cluster(cluster::Cluster),
    Service(service::AddService),
    Agent(agent::AddAgent),
    RemoveAgent(agent::RemoveAgent),
}

impl Setup {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        match self {
            Self::Cluster(command) => command.run(out),
            Self::Service(command) => command.run(out),
            Self::Agent(command) => command.run(out),
            Self::RemoveAgent(command) => command.run(out),
        }
    }
}
