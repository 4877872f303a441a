//! `sealwire approvals list`: the requests of an agent, and those that it may decide.

use clap::Args;
use serde_json::json;

use super::desk::Desk;
use super::pages::{self, LIST, Listed};
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

impl List {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        let listed = self.desk.reach(LIST, out, async |client| pages::read(&self.desk.request(&client)).await)?;
        let Listed { mut found, unread, .. } = listed;
        found.retain(|request| self.all || request.state == "pending");
        found.sort_by_key(|request| request.asked_at);
        out.result(&json!({ "approvals": found, "unread": unread }), || text(&found, unread))?;
        Ok(Exit::Ok)
    }
}

fn text(found: &[Summary], unread: usize) -> String {
    let now_s = when::now_s();
    let mut lines: Vec<_> = found.iter().map(|request| request.to_line(now_s)).collect();
    if unread > 0 {
        lines.push(format!("the service could not read {unread} more, of whatever agents: list them again later"));
    }
    if lines.is_empty() { "nothing waits for approval that this agent may see".to_owned() } else { lines.join("\n") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_that_may_not_be_whole_does_not_say_that_nothing_waits() {
        assert_eq!(text(&[], 0), "nothing waits for approval that this agent may see");
        assert_eq!(text(&[], 3), "the service could not read 3 more, of whatever agents: list them again later");
    }
}
