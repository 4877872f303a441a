//! `sealwire policy can`: the methods that one caller can call.
//! Never adds a role that the files do not grant: for roles in tokens there is `--role`.

use std::path::PathBuf;

use clap::Args;
use sealwire::Name;
use sealwire::internal::policy::{AccessCell, CallerGroup};
use serde::Serialize;

use super::cells::cell_text;
use super::names;
use crate::exit::{Exit, Failure};
use crate::output::Output;
use crate::policies::{FOLDER, load};

/// List what an agent can call, or what can be called for a subject, with the roles that files grant; or what a role allows
///
/// `allowed` means every call in the caller's own name, as long as parameters and claims have their declared types. A call that
/// is not listed may still be allowed by another role, or by the name of the same caller.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire policy can nightly
  sealwire policy can --subject alice@example.com
  sealwire policy can --role teller --dir /etc/sealwire/policies")]
pub(crate) struct Can {
    /// The agent; what roles in its token add is not listed
    #[arg(value_name = "AGENT", required_unless_present_any = ["role", "subject"])]
    agent: Option<Name>,
    /// List what agents can call for this subject, as far as they themselves can
    #[arg(long, value_name = "NAME", conflicts_with = "agent", value_parser = names::subject)]
    subject: Option<String>,
    /// List what this role lets its holders call instead
    #[arg(long, value_name = "ROLE", conflicts_with_all = ["agent", "subject"], value_parser = names::role)]
    role: Option<String>,
    /// The folder of the policy files
    #[arg(long, value_name = "DIR", default_value = FOLDER)]
    dir: PathBuf,
}

#[derive(Serialize)]
struct Answer {
    callers: CallerGroup,
    methods: Vec<Entry>,
}

#[derive(Serialize)]
struct Entry {
    method: String,
    #[serde(flatten)]
    cell: AccessCell,
}

impl Can {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        let set = load(&self.dir, out)?;
        let callers = match (self.agent, self.subject, self.role) {
            (Some(agent), ..) => CallerGroup::Agent(agent.to_string()),
            (None, Some(subject), _) => CallerGroup::Subject(subject),
            (None, None, role) => CallerGroup::Role(role.unwrap_or_default()),
        };
        if !set.callers().contains(&callers) {
            let text = callers.to_string();
            if matches!(callers, CallerGroup::Role(_)) {
                let known = set.callers().into_iter().filter(|known| matches!(known, CallerGroup::Role(_)));
                let known: Vec<String> = known.map(|known| known.to_string()).collect();
                let failure = Failure::input(format!("the policy files have no {text}"));
                return Err(failure.help(format!("there are: {}", known.join(", "))));
            }
            out.note(&format!("no file names {text}: it can call what anyone can, and what roles in its token allow"));
        }
        let found = set.can(&callers);
        let methods = found.iter().cloned().map(|(method, cell)| Entry { method, cell }).collect();
        out.verdict(&Answer { callers: callers.clone(), methods }, || {
            if found.is_empty() {
                return match callers {
                    CallerGroup::Agent(_) => format!("no rule lets {callers} call anything, roles in its token apart"),
                    CallerGroup::Subject(_) => {
                        format!("no rule lets an agent call anything for {callers}, roles in the token apart")
                    }
                    _ => format!("no rule lets {callers} call anything, other roles and names of the caller apart"),
                };
            }
            found.iter().map(|(method, cell)| cell_text(method, cell)).collect()
        })?;
        Ok(Exit::Ok)
    }
}
