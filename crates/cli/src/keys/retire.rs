//! `sealwire keys retire`: marks a key that was rotated out, so that it verifies nothing new.
//! Never removes the record: its key id stays taken.

use std::path::PathBuf;

use clap::Args;
use sealwire::internal::auth::KeyStatus;

use super::status::{change_status, changed};
use crate::exit::{Exit, Failure};
use crate::files::Lock;
use crate::output::Output;

/// Retire a key that was rotated out, so that it verifies nothing new
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire keys retire planner.k1 --ring math.ring.json --ring bank.ring.json")]
pub(crate) struct Retire {
    /// The key id
    #[arg(value_name = "KID")]
    kid: String,
    /// The key ring; repeat for several
    #[arg(long = "ring", value_name = "FILE", required = true)]
    rings: Vec<PathBuf>,
}

impl Retire {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        let _lock = Lock::of(self.rings.iter().map(PathBuf::as_path));
        change_status(&self.kid, &self.rings, KeyStatus::Retired)?;
        changed(out, "retired", &self.kid, &self.rings, None)?;
        Ok(Exit::Ok)
    }
}
