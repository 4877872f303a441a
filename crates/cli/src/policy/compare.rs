//! `sealwire policy compare`: what the package that was pushed with `--shadow` would decide otherwise than the policies in force.
//! Never puts anything in force.

use std::path::PathBuf;

use clap::Args;
use sealwire::Name;
use sealwire::internal::auth::Stage;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::package::merged::Merged;
use super::package::reports::Reports;
use super::package::shadowed::Shadowed;
use crate::exit::{Exit, Failure};
use crate::output::Output;
use crate::revocation::desk::Desk;
use crate::revocation::report::who;
use crate::revocation::{CONFIG, Waiting};
use crate::runtime::block_on;
use crate::when;

/// Show what the package pushed with `policy push --shadow` would decide otherwise
///
/// Replicas judge every call by it, too, and count where it would come out otherwise than by the policies in force. See docs/policy-push.md.
///
/// The exit code is 0 if no call would, 13 if one would, 11 if a replica cannot use the package, and 23 if one has not answered or does not
/// compare it.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire policy compare --service bank --expect bank=2
  sealwire policy compare --service bank --json | jq '.differences[]'
  sealwire policy compare --service bank --end")]
pub(crate) struct Compare {
    /// The service
    #[arg(long, value_name = "NAME")]
    service: Name,
    /// The operator's file
    #[arg(long, value_name = "FILE", default_value = CONFIG)]
    config: PathBuf,
    /// Take the package out again, so that nothing is compared any more
    #[arg(long)]
    end: bool,
    #[command(flatten)]
    waiting: Waiting,
}

impl Compare {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        let desk = Desk::open(&self.config)?;
        block_on(async {
            let mut shadowed = Shadowed::read(&desk, &self.service).await?;
            if let Some(problem) = &shadowed.problem {
                out.warning(problem);
            }
            let reports = Reports::listen(&mut shadowed.bucket, Stage::Shadow).await?;
            match self.end {
                true => self.end(&mut shadowed, reports, out).await,
                false => self.compare(&desk, &mut shadowed, reports.with_differences(), out).await,
            }
        })?
    }

    async fn end(&self, shadowed: &mut Shadowed, mut reports: Reports, out: &Output) -> Result<Exit, Failure> {
        let began = Instant::now();
        if !shadowed.remove().await? {
            return Err(Failure::input(
                "somebody else has pushed another shadow package meanwhile: nothing was changed",
            ));
        }
        reports.wait(&mut shadowed.bucket, "", began, &self.waiting).await?;
        let (number, late) = (shadowed.package.number, reports.all().filter(|one| !one.has(Stage::Shadow, "")).count());
        let result = json!({ "number": number, "complete": late == 0, "late": late });
        out.tell(&result, || match late {
            0 => format!("shadow package {number} is taken out"),
            late => {
                format!("shadow package {number} is taken out, and {late} replicas have not said yet that they know")
            }
        })?;
        Ok(if late == 0 { Exit::Ok } else { Exit::Timeout })
    }

    async fn compare(
        &self,
        desk: &Desk,
        Shadowed { bucket, package, signed, .. }: &mut Shadowed,
        mut reports: Reports,
        out: &Output,
    ) -> Result<Exit, Failure> {
        let digest = signed.digest();
        reports.wait(bucket, &digest, Instant::now(), &self.waiting).await?;
        let compare = reports.all().filter(|one| one.answered && one.has(Stage::Shadow, &digest));
        let comparisons: Vec<_> = compare.filter_map(|one| one.report.shadow.comparison.as_ref()).collect();
        let merged = Merged::of(comparisons.iter().copied());
        let missing = reports.missing(&digest, &self.waiting);
        let running = comparisons.iter().filter(|comparison| comparison.ended.is_none()).count();
        let complete = running > 0 && running == reports.all().count() && missing.is_empty();
        let (lines, replicas) = reports.shown(&digest);
        let (number, revision) = (package.number, package.revision().to_string());
        let lacking: Vec<_> = missing
            .iter()
            .map(|(expected, have)| json!({ "name": expected.name, "have": have, "expected": expected.count }))
            .collect();
        let signers = signed.signers(&desk.operators);
        let told = Told {
            number,
            revision: &revision,
            digest: &digest,
            signers: &signers,
            complete,
            merged: &merged,
            replicas,
            missing: lacking,
        };
        out.tell(&told, || {
            let at = when::both(package.at_ms / 1_000, when::now_s());
            let mut all = vec![format!(
                "shadow package {number} with revision {revision}, signed by {} {at}",
                signers.join(", ")
            )];
            all.extend(lines);
            if reports.all().next().is_none() {
                all.push("nobody reports: no replica takes its policies from this bucket now".to_owned());
            }
            for (expected, have) in &missing {
                let (who, count) = (who(expected.role, &expected.name), expected.count);
                all.push(format!("MISSING  {who}: {have} of {count} replicas compare it"));
            }
            all.extend(merged.lines());
            all.join("\n")
        })?;
        Ok(match (reports.is_refused(&digest), complete) {
            (true, _) => Exit::PolicyInvalid,
            (false, false) => Exit::Timeout,
            (false, true) if merged.differ > 0 => Exit::Different,
            (false, true) => Exit::Ok,
        })
    }
}

/// The same for scripts.
#[derive(Serialize)]
struct Told<'t> {
    number: u64,
    revision: &'t str,
    digest: &'t str,
    signers: &'t [String],
    complete: bool,
    #[serde(flatten)]
    merged: &'t Merged,
    replicas: Value,
    missing: Vec<Value>,
}
