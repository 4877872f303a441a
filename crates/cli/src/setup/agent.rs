//! `sealwire setup agent` and `setup remove-agent`: the broker user of an agent that created its own key pair.
//! Never sees a private key.

use std::path::PathBuf;

use clap::Args;
use sealwire::Name;
use serde_json::json;

use super::target::Target;
use crate::exit::{Exit, Failure};
use crate::files::{check_output, write_public};
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
    /// In operator mode, also write the JWT of the agent's user to this file; nothing in it is secret
    #[arg(long, value_name = "FILE")]
    jwt: Option<PathBuf>,
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
        let mut target = Target::take(self.out)?;
        if let Some(path) = &self.jwt {
            if !target.is_in_operator_mode() {
                return Err(Failure::new(Exit::Usage, "--jwt: brokers that are not in operator mode have no JWTs"));
            }
            check_output(path, "JWT of a broker user", |text| text.starts_with("eyJ"))?;
        }
        let jwt = target.add_agent(&request.agent, nkey, self.replace)?;
        let agent = &request.agent;
        if let (Some(jwt), Some(path)) = (&jwt, &self.jwt) {
            write_public(path, &format!("{jwt}\n"))?;
        }
        out.result(&json!({ "agent": agent, "nkey": nkey, "jwt": jwt }), || match &jwt {
            None => format!("added the broker user of {agent}: {}", target.step()),
            Some(jwt) => {
                let replaced =
                    if self.replace { format!("\nIts last user is revoked: {}", target.step()) } else { String::new() };
                format!(
                    "added the broker user of {agent}. This is its JWT, for: sealwire keys accept --nats-jwt FILE\n{jwt}{replaced}"
                )
            }
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
        let mut target = Target::take(self.out)?;
        let known = target.remove_agent(agent)?;
        let keys: Vec<_> =
            known.iter().map(|(ring, entry)| json!({ "kid": entry.kid, "ring": crate::files::shown(ring) })).collect();
        out.result(&json!({ "agent": agent, "keys": keys }), || {
            let lines = known.iter().map(|(ring, entry)| {
                format!(
                    "\nA service still knows a key of it: sealwire keys revoke {} --ring {}",
                    entry.kid,
                    ring.display()
                )
            });
            let removed = format!("removed the broker user of {agent}: {}, which ends its connections", target.step());
            std::iter::once(removed).chain(lines).collect()
        })?;
        Ok(Exit::Ok)
    }
}
