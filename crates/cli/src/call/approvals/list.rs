//! `sealwire approvals list`: the requests of an agent, and those that it may decide.

use clap::Args;
use serde::Deserialize;
use serde_json::json;

use super::desk::Desk;
use super::request::Summary;
use crate::exit::{Exit, Failure};
use crate::output::Output;
use crate::when;

/// List calls that wait for approval: this agent's own, and those that it may decide
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire approvals list bank --creds tess.creds.json
  sealwire approvals list bank --all --json")]
pub(crate) struct List {
    #[command(flatten)]
    desk: Desk,
    /// Also those that are decided, have run, or came too late, as long as the service knows them
    #[arg(long)]
    all: bool,
}

#[derive(Deserialize)]
struct Page {
    approvals: Vec<Summary>,
    #[serde(default)]
    next: Option<String>,
}

impl List {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        let (mut found, mut cursor) = (Vec::new(), None);
        // A service has at most a few hundred, on pages of its own choice.
        for _ in 0..PAGES {
            let params = cursor.as_ref().map_or_else(|| json!({}), |cursor| json!({ "cursor": cursor }));
            let Page { approvals, next }: Page = self.desk.ask("rpc.approvals", &params, out)?;
            found.extend(approvals);
            cursor = next;
            if cursor.is_none() {
                break;
            }
        }
        found.retain(|request| self.all || request.state == "pending");
        found.sort_by_key(|request| request.asked_at);
        let now_s = when::now_s();
        let line = |request: &Summary| {
            let Summary { id, state, agent, subject, method, deadline, .. } = request;
            let who = if subject == agent { agent.clone() } else { format!("{agent} for {subject}") };
            format!("{id}  {state}  {method}  {who}  until {}", when::both(*deadline, now_s))
        };
        out.result(&json!({ "approvals": found }), || match found.as_slice() {
            [] => "nothing waits for approval that this agent may see".to_owned(),
            some => some.iter().map(line).collect::<Vec<_>>().join("\n"),
        })?;
        Ok(Exit::Ok)
    }
}

/// The most pages that are read.
const PAGES: usize = 64;
