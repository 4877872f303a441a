//! `sealwire restore`: gives back what was revoked, by a newer signed list.
//! Never restores more than what it names.

use clap::Args;
use sealwire::internal::auth::RevocationKind;

use super::Signing;
use super::act::act;
use super::revoke::named;
use crate::exit::{Exit, Failure, OrFail as _};
use crate::output::Output;

/// Restore what `sealwire revoke` has revoked
///
/// A restore is a signed list, too: deleting or rolling back the bucket restores nothing.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire restore agent planner --key op-1.json
  sealwire restore method 'bank/*' --key op-1.json
  sealwire restore everything --key op-1.json --expect bank=3")]
pub(crate) struct Restore {
    /// agent, key, token, subject, method, service or everything
    #[arg(value_name = "KIND")]
    kind: RevocationKind,
    /// Its name, as it was revoked. None for everything
    #[arg(value_name = "NAME")]
    name: Option<String>,
    #[command(flatten)]
    signing: Signing,
}

impl Restore {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        let name = named(self.kind, self.name)?;
        act(&self.signing, out, |latest, now_ms| {
            let restored = latest.restore(self.kind, &name, now_ms).or_fail(Exit::Input);
            restored.map_err(|failure| failure.help("`sealwire revocations` lists what is revoked, by its exact name"))
        })
    }
}
