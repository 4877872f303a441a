//! Revocations by operators: `sealwire revoke`, `restore` and `revocations`.
//! Never signs a list on top of one that it could not verify.

mod act;
mod brokers;
pub(crate) mod desk;
pub(crate) mod report;
pub(crate) mod restore;
pub(crate) mod revocations;
pub(crate) mod revoke;

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use sealwire::Name;
use sealwire::internal::auth::FollowerRole;

use crate::when;

/// What every command that signs takes.
#[derive(Args)]
pub(crate) struct Signing {
    /// The operator's file: environment, operators' public keys, and the login at the broker
    #[arg(long, value_name = "FILE", default_value = CONFIG)]
    pub(crate) config: PathBuf,
    /// The operator's key; repeat for several
    #[arg(long = "key", value_name = "FILE", required = true)]
    pub(crate) keys: Vec<PathBuf>,
    /// Write what is signed, with these keys, to this file instead of the bucket, for another operator to sign
    #[arg(long, value_name = "FILE")]
    pub(crate) draft: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) waiting: Waiting,
}

/// Whom to wait for.
#[derive(Args)]
pub(crate) struct Waiting {
    /// How many replicas of a service must report; of a gateway, by its agent: gateway:AGENT=N; of `authd`, for each service: authd:SERVICE=N.
    /// Repeat for several
    #[arg(long = "expect", value_name = "SERVICE=N", value_parser = Expected::parse)]
    pub(crate) expected: Vec<Expected>,
    /// How long to wait for reports
    #[arg(long, value_name = "TIME", value_parser = when::interval, default_value = "3s")]
    pub(crate) wait: Duration,
}

pub(crate) const CONFIG: &str = "revocation.toml";

/// How many of those who follow must report.
#[derive(Debug, Clone)]
pub(crate) struct Expected {
    pub(crate) role: FollowerRole,
    pub(crate) name: Name,
    pub(crate) count: usize,
}

impl Expected {
    fn parse(text: &str) -> Result<Self, String> {
        let wrong = || "write SERVICE=N, such as math=3, or gateway:AGENT=N, or authd:SERVICE=N".to_owned();
        let (who, count) = text.split_once('=').ok_or_else(wrong)?;
        let (role, name) = match who.split_once(':') {
            Some((role, name)) => (role.parse().map_err(|()| wrong())?, name),
            None => (FollowerRole::Service, who),
        };
        let name = Name::new(name).map_err(|error| error.to_string())?;
        Ok(Self { role, name, count: count.parse().map_err(|_| wrong())? })
    }
}
