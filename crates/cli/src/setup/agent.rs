//! `sealwire setup agent` and `setup remove-agent`: the broker user of an agent that made its key pair itself.
//! Never sees a private key.

use std::path::PathBuf;

use clap::Args;
use sealwire::Name;
use serde_json::json;

use super::target::Target;
use crate::exit::{Exit, Failure};
use crate::keys::read_request;
use crate::output::Output;
use crate::parties::ENVIRONMENT;

/// Let an agent that was enrolled connect to the brokers of a set-up, with the nkey in its request
///
/// The brokers must then read their users again. `sealwire keys enrol` lets services verify its messages.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire setup agent robot.request --thumbprint … --out /sealwire
  sealwire setup agent - --thumbprint … --replace --out /sealwire")]
pub(crate) struct AddAgent {
    /// The request, as `sealwire keys request --nkey` wrote it; `-` for stdin
    #[arg(value_name = "REQUEST")]
    request: PathBuf,
    /// The key's thumbprint, as the agent's owner tells it
    #[arg(long, value_name = "THUMBPRINT", allow_hyphen_values = true)]
    thumbprint: String,
    /// Take this nkey in the place of the one that the brokers know
    #[arg(long)]
    replace: bool,
    /// Where the folders are
    #[arg(long, value_name = "FOLDER")]
    out: PathBuf,
}

impl AddAgent {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        let path = self.request.display();
        let request = read_request(&self.request, &self.thumbprint)?;
        if request.environment.as_str() != ENVIRONMENT {
            let message =
                format!("`{path}` is for the environment `{}`, and this is `{ENVIRONMENT}`", request.environment);
            return Err(Failure::input(message).help("ask its owner which environment the agent is for"));
        }
        let Some(nkey) = &request.nkey else {
            let failure = Failure::input(format!("`{path}` names no nkey"));
            return Err(failure.help("the agent makes one with: sealwire keys request --nkey"));
        };
        Target::take(self.out)?.add_agent(&request.agent, nkey, self.replace)?;
        let agent = &request.agent;
        out.result(&json!({ "agent": agent, "nkey": nkey }), || {
            format!("added the broker user of {agent}: let each broker read its users again (SIGHUP)")
        })?;
        Ok(Exit::Ok)
    }
}

/// Take an agent's user out of the brokers of a set-up
///
/// The brokers must then read their users again, which ends its connections. Its keys are the services' matter: the lines
/// that revoke them are printed.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire setup remove-agent robot --out /sealwire")]
pub(crate) struct RemoveAgent {
    /// The agent's name
    #[arg(value_name = "NAME")]
    name: Name,
    /// Where the folders are
    #[arg(long, value_name = "FOLDER")]
    out: PathBuf,
}

impl RemoveAgent {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        let agent = &self.name;
        let known = Target::take(self.out)?.remove_agent(agent)?;
        let keys: Vec<_> = known.iter().map(|(ring, entry)| json!({ "kid": entry.kid, "ring": ring })).collect();
        out.result(&json!({ "agent": agent, "keys": keys }), || {
            let lines = known.iter().map(|(ring, entry)| {
                format!("\nA service still knows a key of it: sealwire keys revoke {} --ring {}", entry.kid, ring.display())
            });
            let removed =
                format!("removed the broker user of {agent}: let each broker read its users again (SIGHUP), which ends its connections");
            std::iter::once(removed).chain(lines).collect()
        })?;
        Ok(Exit::Ok)
    }
}
