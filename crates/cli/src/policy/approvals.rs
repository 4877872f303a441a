//! `sealwire policy approvals`: what waits for people, and who decides.
//! Never asks a running service which calls wait: that is for those who decide.

use std::path::PathBuf;

use clap::Args;
use sealwire::internal::policy::ApprovalReview;
use serde::Serialize;

use crate::exit::{Exit, Failure};
use crate::output::Output;
use crate::policies::{FOLDER, load};

/// List the approvals, the rules that each lifts, and who decides
///
/// These are the agents to whom the files grant one of its roles, and everybody whose token says a role that does not come from files only.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire policy approvals
  sealwire policy approvals /etc/sealwire/policies --json \\
      | jq '.approvals[].deciders'")]
pub(crate) struct Approvals {
    /// The folder
    #[arg(value_name = "DIR", default_value = FOLDER)]
    folder: PathBuf,
}

#[derive(Serialize)]
struct Answer<'a> {
    approvals: &'a [ApprovalReview],
}

impl Approvals {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        let reviewed = ApprovalReview::all(&load(&self.folder, out)?);
        out.verdict(&Answer { approvals: &reviewed }, || match reviewed.as_slice() {
            [] => "no call waits for an approval".to_owned(),
            some => some.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"),
        })?;
        Ok(Exit::Ok)
    }
}
