//! The commands below `sealwire setup`.
//! Never writes outside the folder that it is given.

mod agent;
mod authd;
mod authority;
mod callout;
mod certificates;
mod cluster;
mod hosted;
mod mark;
mod nsc;
mod operator;
mod push;
mod relay;
mod revocation;
mod service;
mod target;
mod user;

use clap::Subcommand;

use crate::exit::{Exit, Failure};
use crate::output::Output;

/// Complete setups: keys, broker users, certificates, configuration.
#[derive(Subcommand)]
pub(crate) enum Setup {
    Cluster(cluster::Cluster),
    Operator(operator::Operator),
    Service(service::AddService),
    Agent(agent::AddAgent),
    RemoveAgent(agent::RemoveAgent),
    Relay(relay::AddRelay),
    Push(push::Push),
    User(user::MakeUser),
}

impl Setup {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        match self {
            Self::Cluster(command) => command.run(out),
            Self::Operator(command) => command.run(out),
            Self::Service(command) => command.run(out),
            Self::Agent(command) => command.run(out),
            Self::RemoveAgent(command) => command.run(out),
            Self::Relay(command) => command.run(out),
            Self::Push(command) => command.run(out),
            Self::User(command) => command.run(out),
        }
    }
}
