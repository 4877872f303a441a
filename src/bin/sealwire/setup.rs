//! The commands below `sealwire setup`.
//! Never writes outside the folder that it is given.

mod certificates;
mod cluster;

use clap::Subcommand;

use crate::exit::{Exit, Failure};
use crate::output::Output;

/// Whole set-ups: keys, broker users, certificates, configuration
#[derive(Subcommand)]
pub(crate) enum Setup {
    /// Write all that the compose set-up needs: three brokers, the demonstration service, its agents
    Cluster(cluster::Cluster),
}

impl Setup {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        match self {
            Self::Cluster(command) => command.run(out),
        }
    }
}
