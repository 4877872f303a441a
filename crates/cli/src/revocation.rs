//! Revocations by operators: `sealwire revoke`, `restore` and `revocations`.
//! Never signs a list on top of one that it could not verify.

mod act;
mod desk;
mod report;
pub(crate) mod restore;
pub(crate) mod revocations;
pub(crate) mod revoke;

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use sealwire::Name;

use crate::when;

/// What every command that signs takes.
#[derive(Args)]
struct Signing {
    /// The operator's file: environment, operators' public keys, and the login at the broker
    #[arg(long, value_name = "FILE", default_value = CONFIG)]
    config: PathBuf,
    /// The operator's key; repeat for several
    #[arg(long = "key", value_name = "FILE", required = true)]
    keys: Vec<PathBuf>,
    /// Write the list, signed with these keys, to this file instead of the bucket, for another operator to sign
    #[arg(long, value_name = "FILE")]
    draft: Option<PathBuf>,
    #[command(flatten)]
    waiting: Waiting,
}

/// Whom to wait for.
#[derive(Args)]
struct Waiting {
    /// How many replicas of a service must report; repeat for several services
    #[arg(long = "expect", value_name = "SERVICE=N", value_parser = expected)]
    expected: Vec<(Name, usize)>,
    /// How long to wait for reports
    #[arg(long, value_name = "TIME", value_parser = when::interval, default_value = "3s")]
    wait: Duration,
}

const CONFIG: &str = "revocation.toml";

fn expected(text: &str) -> Result<(Name, usize), String> {
    let wrong = || "write SERVICE=N, such as math=3".to_owned();
    let (name, number) = text.split_once('=').ok_or_else(wrong)?;
    Ok((Name::new(name).map_err(|error| error.to_string())?, number.parse().map_err(|_| wrong())?))
}
