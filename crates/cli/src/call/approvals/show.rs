//! `sealwire approvals show`: one request in full.

use clap::Args;
use serde_json::json;

use super::desk::Desk;
use super::request::{Read, Request};
use crate::call::credentials;
use crate::exit::{Exit, Failure};
use crate::output::Output;
use crate::when;

/// Show a call that waits for approval: who calls, on whose behalf, with which parameters
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire approvals show bank planner.Zk3mXw0fQ2a1yq7V9tBcD8eRhK4s")]
pub(crate) struct Show {
    #[command(flatten)]
    desk: Desk,
    /// The request's id
    #[arg(value_name = "ID")]
    id: String,
}

impl Show {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        let read = look(&self.desk, &self.id, out)?;
        let object = json!({ "request": read.request, "digest": read.digest });
        out.result(&object, || read.to_text(when::now_s()))?;
        Ok(Exit::Ok)
    }
}

/// Fetches a request, and takes its text apart.
pub(super) fn look(desk: &Desk, id: &str, out: &Output) -> Result<Read, Failure> {
    let credentials = credentials(desk.creds.as_deref())?;
    let request: Request = desk.ask("rpc.approval", &json!({ "id": id }), out)?;
    request.read(credentials.environment().as_str(), &desk.service)
}
