//! `sealwire policy status`: which package of policies is the latest, and who has it in force.
//! Changes nothing.

use std::path::PathBuf;

use clap::Args;
use sealwire::Name;
use sealwire::internal::auth::Stage;
use serde_json::json;

use super::package::latest::{Latest, connect};
use super::package::reports::Reports;
use crate::exit::{Exit, Failure};
use crate::output::Output;
use crate::revocation::CONFIG;
use crate::revocation::desk::Desk;
use crate::runtime::block_on;
use crate::when;

/// Show the latest package of policies that was pushed, and which replicas have it in force
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire policy status --service bank
  sealwire policy status --service bank --json | jq '.replicas[]'")]
pub(crate) struct Status {
    /// The service
    #[arg(long, value_name = "NAME")]
    service: Name,
    /// The operator's file
    #[arg(long, value_name = "FILE", default_value = CONFIG)]
    config: PathBuf,
}

impl Status {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        let desk = Desk::open(&self.config)?;
        let (latest, reports) = block_on(async {
            let mut bucket = connect(&desk, &self.service, Stage::Active).await?;
            let latest = Latest::read(&desk, (&self.service, Stage::Active), &mut bucket).await?;
            Ok::<_, Failure>((latest, Reports::listen(&mut bucket, Stage::Active).await?.answered()))
        })??;
        if let Some(problem) = &latest.problem {
            out.warning(problem);
        }
        let digest = latest.package.as_ref().map(|(_, signed)| signed.digest()).unwrap_or_default();
        let (lines, replicas) = reports.shown(&digest);
        let package = latest.package.as_ref().map(|(package, signed)| {
            json!({
                "number": package.number, "revision": package.revision().to_string(), "digest": digest,
                "at_ms": package.at_ms, "signers": signed.signers(&desk.operators), "files": package.files.keys().collect::<Vec<_>>(),
            })
        });
        let result = json!({ "package": package, "replicas": replicas, "problem": latest.problem });
        out.result(&result, || {
            let head = match &latest.package {
                None => format!("nothing was pushed for {} yet", self.service),
                Some((package, signed)) => format!(
                    "package {} with revision {}, signed by {} {}",
                    package.number,
                    package.revision(),
                    signed.signers(&desk.operators).join(", "),
                    when::both(package.at_ms / 1_000, when::now_s())
                ),
            };
            std::iter::once(head).chain(lines).collect::<Vec<_>>().join("\n")
        })?;
        Ok(Exit::Ok)
    }
}
