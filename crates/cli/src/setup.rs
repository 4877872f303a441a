//! The commands below `sealwire setup`.
//! Never writes outside the folder that it is given.

mod agent;
mod certificates;
mod cluster;
mod mark;
mod service;
mod target;
mod users;

use clap::Subcommand;

use crate::exit::{Exit, Failure};
use crate::output::Output;

/// Whole set-ups: keys, broker users, certificates, configuration
#[derive(Subcommand)]
pub(crate) enum Setup {
    /// Write all that the compose set-up needs: three brokers, services, their agents, a door
    Cluster(cluster::Cluster),
    /// Add a service to a set-up that is there
    Service(service::AddService),
    /// Let an enrolled agent connect to the brokers of a set-up
    Agent(agent::AddAgent),
    /// Take an agent's user out of the brokers of a set-up
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
