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
    /// How many the service could not read.
    #[serde(default)]
    unread: usize,
}

impl List {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        let (mut found, mut cursor, mut all_unread) = (Vec::new(), None, 0_usize);
        // A service has at most a few hundred, on pages of its own choice.
        for _ in 0..PAGES {
            let params = cursor.as_ref().map_or_else(|| json!({}), |cursor| json!({ "cursor": cursor }));
            let Page { approvals, next, unread }: Page = self.desk.ask("rpc.approvals", &params, out)?;
            found.extend(approvals);
            all_unread = all_unread.saturating_add(unread);
            cursor = next;
            if cursor.is_none() {
                break;
            }
        }
        found.retain(|request| self.all || request.state == "pending");
        found.sort_by_key(|request| request.asked_at);
        out.result(&json!({ "approvals": found, "unread": all_unread }), || text(&found, all_unread))?;
        Ok(Exit::Ok)
    }
}

fn text(found: &[Summary], unread: usize) -> String {
    let now_s = when::now_s();
    let line = |request: &Summary| {
        let Summary { id, state, agent, subject, method, deadline, .. } = request;
        let who = if subject == agent { agent.clone() } else { format!("{agent} for {subject}") };
        format!("{id}  {state}  {method}  {who}  until {}", when::both(*deadline, now_s))
    };
    let mut lines: Vec<_> = found.iter().map(line).collect();
    if unread > 0 {
        lines.push(format!("the service could not read {unread} more, of whatever agents: list them again later"));
    }
    if lines.is_empty() { "nothing waits for approval that this agent may see".to_owned() } else { lines.join("\n") }
}

/// The most pages that are read.
const PAGES: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_that_may_not_be_whole_does_not_say_that_nothing_waits() {
        assert_eq!(text(&[], 0), "nothing waits for approval that this agent may see");
        assert_eq!(text(&[], 3), "the service could not read 3 more, of whatever agents: list them again later");
    }
}
