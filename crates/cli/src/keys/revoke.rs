//! `sealwire keys revoke`: revokes a key that somebody else may know.
//! Never revokes it in some files and then finds another unreadable: every file is read before the first is written.

use std::path::PathBuf;

use clap::{ArgGroup, Args};
use sealwire::internal::auth::KeyStatus;

use super::status::{change_status, changed};
use crate::exit::{Exit, Failure};
use crate::files::Lock;
use crate::output::Output;
use crate::token::ChangedDenylist;

/// Revoke a key that others may know, with immediate effect
#[derive(Args)]
#[command(
    group(ArgGroup::new("where").required(true).multiple(true).args(["rings", "denylist"])),
    after_help = "\
Services apply it when they reread the file, usually within a second, even if
they have cached a token. A deny list also takes the key ids of token issuers.

Examples:
  sealwire keys revoke planner.k1 --ring math.ring.json
  sealwire keys revoke planner.k1 --denylist deny.json"
)]
pub(crate) struct Revoke {
    /// The key id
    #[arg(value_name = "KID")]
    kid: String,
    /// A key ring that contains the key; repeat for several
    #[arg(long = "ring", value_name = "FILE")]
    rings: Vec<PathBuf>,
    /// A deny list; created if there is none
    #[arg(long, value_name = "FILE")]
    denylist: Option<PathBuf>,
}

impl Revoke {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        let paths = || self.rings.iter().chain(&self.denylist);
        let _lock = Lock::of(paths().map(PathBuf::as_path));
        let list = self.denylist.as_ref();
        let list = list.map(|path| ChangedDenylist::new(path, |list| list.with_key(&self.kid), out)).transpose()?;
        change_status(&self.kid, &self.rings, KeyStatus::Revoked)?;
        let created = list.map(|list| list.save(out)).transpose()?;
        let paths: Vec<PathBuf> = paths().cloned().collect();
        changed(out, "revoked", &self.kid, &paths, created)?;
        Ok(Exit::Ok)
    }
}
