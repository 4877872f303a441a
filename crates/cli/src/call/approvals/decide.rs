//! `sealwire approvals approve` and `deny`: show a request, ask, and sign.
//! Never signs what nobody has looked at: on a terminal somebody is asked, and a script names the digest that was looked at.

use std::io::{BufRead as _, IsTerminal as _};

use clap::Args;
use serde_json::{Value, json};

use super::desk::Desk;
use super::request::{Read, Summary};
use super::show::look;
use crate::exit::{Exit, Failure};
use crate::output::Output;
use crate::when;

/// Show a call that waits for approval, ask, and approve it with this agent's key
///
/// What is signed is the digest of what is shown. The key must be an Ed25519 key.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire approvals approve bank planner.Zk3mXw0fQ2a1yq7V9tBcD8eRhK4s
  sealwire approvals approve bank planner.Zk3mXw0fQ2a1yq7V9tBcD8eRhK4s \\
      --reason 'invoice 17 is due' \\
      --digest mGWQLELV8A7e28PlkJfBz9e5XDH03RKo3DvAG6GyWpg")]
pub(crate) struct Approve {
    #[command(flatten)]
    decision: Decision,
    /// Which of the approvals that the call needs, if it needs several
    #[arg(long, value_name = "NAME")]
    approval: Option<String>,
}

/// Deny a call that waits for approval, or withdraw one of this agent's own
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire approvals deny bank planner.Zk3mXw0fQ2a1yq7V9tBcD8eRhK4s \\
      --reason 'not our supplier'")]
pub(crate) struct Deny {
    #[command(flatten)]
    decision: Decision,
}

#[derive(Args)]
struct Decision {
    #[command(flatten)]
    desk: Desk,
    /// The request's id
    #[arg(value_name = "ID")]
    id: String,
    /// Why, on one line. The caller can read it
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Do not ask: the request was looked at before, with `approvals show`, and had this digest
    #[arg(long, value_name = "DIGEST", allow_hyphen_values = true)]
    digest: Option<String>,
}

impl Approve {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        let Self { decision, approval } = self;
        let read = decision.look("approve", out)?;
        let open: Vec<&str> = read.request.summary.needs.iter().map(|need| need.approval.as_str()).collect();
        let approval = match (approval, open.as_slice()) {
            (Some(named), _) => named,
            (None, [one]) => (*one).to_owned(),
            (None, several) => {
                let several = several.join(", ");
                return Err(Failure::new(Exit::Usage, format!("the call needs several approvals: {several}"))
                    .help("name the one that you give with --approval"));
            }
        };
        decision.send(&read, json!({ "decision": "approve", "approval": approval }), out)
    }
}

impl Deny {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        let read = self.decision.look("deny", out)?;
        self.decision.send(&read, json!({ "decision": "deny" }), out)
    }
}

impl Decision {
    /// Has somebody look at the request, or makes sure that it is the one that was looked at.
    fn look(&self, word: &str, out: &Output) -> Result<Read, Failure> {
        // With `--json`, people are shown nothing, so they cannot be asked.
        if self.digest.is_none() && (out.is_json() || !std::io::stdin().is_terminal()) {
            let why = if out.is_json() { "`--json` is for scripts" } else { "stdin is not a terminal" };
            return Err(Failure::new(Exit::Usage, format!("nobody can be asked: {why}"))
                .help("look at it with `sealwire approvals show`, and give --digest as it says"));
        }
        let read = look(&self.desk, &self.id, out)?;
        match &self.digest {
            Some(digest) if *digest == read.digest => Ok(read),
            Some(_) => Err(Failure::input("the request is not the one with this digest")
                .help("look at it again with `sealwire approvals show`")),
            None => {
                out.note(&read.to_text(when::now_s()));
                out.note(&format!("Type `{word}` to {word} it:"));
                let mut line = String::new();
                let typed = std::io::stdin().lock().read_line(&mut line);
                typed.map_err(|error| Failure::input(format!("stdin cannot be read: {error}")))?;
                if line.trim() == word { Ok(read) } else { Err(Failure::input("nothing was signed")) }
            }
        }
    }

    fn send(&self, read: &Read, mut params: Value, out: &Output) -> Result<Exit, Failure> {
        if let Value::Object(members) = &mut params {
            members.insert("id".to_owned(), self.id.as_str().into());
            members.insert("digest".to_owned(), read.digest.as_str().into());
            members.extend(self.reason.as_ref().map(|reason| ("reason".to_owned(), reason.as_str().into())));
        }
        let summary: Summary = self.desk.ask("rpc.approve", &params, out)?;
        out.result(&summary, || {
            let needs = summary.needs.iter().map(|need| format!("; {}", need.to_text())).collect::<String>();
            format!("{} is {}{needs}", summary.id, summary.state)
        })?;
        Ok(Exit::Ok)
    }
}
