//! `sealwire setup agent` and `setup remove-agent`: the broker user of an agent that created its own key pair.
//! Never sees a private key.

use std::path::PathBuf;

use clap::Args;
use sealwire::Name;
use serde_json::json;

use super::target::Target;
use crate::exit::{Exit, Failure};
use crate::keys::read_request;
use crate::output::Output;
use sealwire_lab::parties::ENVIRONMENT;

/// Let an enrolled agent connect to the brokers of a setup, with the nkey in its request
///
/// The brokers must then reload their users. `sealwire keys enrol` lets services verify the agent's messages.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire setup agent robot.request --thumbprint … --out /sealwire
  sealwire setup agent - --thumbprint … --replace --out /sealwire")]
pub(crate) struct AddAgent {
    /// The request, as written by `sealwire keys request --nkey`; `-` for stdin
    #[arg(value_name = "REQUEST")]
    request: PathBuf,
    /// The key's thumbprint, as told by the agent's owner
    #[arg(long, value_name = "THUMBPRINT", allow_hyphen_values = true)]
    thumbprint: String,
    /// Replace the nkey that the brokers know for this agent
    #[arg(long)]
    replace: bool,
    /// The folder of the setup
    #[arg(long, value_name = "FOLDER")]
    out: PathBuf,
}

impl AddAgent {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        let path = self.request.display();
        let request = read_request(&self.request, &self.thumbprint)?;
        if request.environment.as_str() != ENVIRONMENT {
            let message =
                format!("`{path}` is for the environment `{}`, but this is `{ENVIRONMENT}`", request.environment);
            return Err(Failure::input(message).help("ask its owner which environment the agent is for"));
        }
        let Some(nkey) = &request.nkey else {
            let failure = Failure::input(format!("`{path}` names no nkey"));
            return Err(failure.help("the agent creates one with: sealwire keys request --nkey"));
        };
        Target::take(self.out)?.add_agent(&request.agent, nkey, self.replace)?;
        let agent = &request.agent;
        out.result(&json!({ "agent": agent, "nkey": nkey }), || {
            format!("added the broker user of {agent}: let each broker reload its users (SIGHUP)")
        })?;
        Ok(Exit::Ok)
    }
}

/// Remove an agent's user from the brokers of a setup
///
/// The brokers must then reload their users, which ends the agent's connections. Services still know its keys: the command
/// prints the lines that revoke them.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire setup remove-agent robot --out /sealwire")]
pub(crate) struct RemoveAgent {
    /// The agent's name
    #[arg(value_name = "NAME")]
    name: Name,
    /// The folder of the setup
    #[arg(long, value_name = "FOLDER")]
    out: PathBuf,
}

impl RemoveAgent {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        let agent = &self.name;
        let known = Target::take(self.out)?.remove_agent(agent)?;
        let keys: Vec<_> =
            known.iter().map(|(ring, entry)| json!({ "kid": entry.kid, "ring": crate::files::shown(ring) })).collect();
        out.result(&json!({ "agent": agent, "keys": keys }), || {
            let lines = known.iter().map(|(ring, entry)| {
                format!("\nA service still knows a key of it: sealwire keys revoke {} --ring {}", entry.kid, ring.display())
            });
            let removed =
                format!("removed the broker user of {agent}: let each broker reload its users (SIGHUP), which ends its connections");
            std::iter::once(removed).chain(lines).collect()
        })?;
        Ok(Exit::Ok)
    }
}
