//! `sealwire setup agent`: a broker user for an agent that made its key pair itself.
//! Never sees a private key.

use std::path::PathBuf;

use clap::Args;
use sealwire::wire::KeyRequest;
use serde_json::json;

use super::target::Target;
use crate::exit::{Exit, Failure};
use crate::files::read_if_there;
use crate::output::Output;

/// Let an agent that was enrolled connect to the brokers of a set-up, with the nkey in its request
///
/// The brokers must then read their users again. `sealwire keys enrol` lets services verify its messages.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire setup agent robot.request --thumbprint … --out /sealwire")]
pub(crate) struct AddAgent {
    /// The request, as `sealwire keys request --nkey` wrote it
    #[arg(value_name = "REQUEST")]
    request: PathBuf,
    /// The key's thumbprint, as the agent's owner tells it
    #[arg(long, value_name = "THUMBPRINT", allow_hyphen_values = true)]
    thumbprint: String,
    /// Where the folders are
    #[arg(long, value_name = "FOLDER")]
    out: PathBuf,
}

impl AddAgent {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        let path = self.request.display();
        let missing = || Failure::input(format!("`{path}`: there is no such request"));
        let text = read_if_there(&self.request)?.ok_or_else(missing)?;
        let request = KeyRequest::verify(&text).map_err(|error| Failure::input(format!("`{path}`: {error}")))?;
        if request.thumbprint() != self.thumbprint {
            return Err(Failure::input(format!("`{path}` is for another key than the one with that thumbprint")));
        }
        let Some(nkey) = &request.nkey else {
            let failure = Failure::input(format!("`{path}` names no nkey"));
            return Err(failure.help("the agent makes one with: sealwire keys request --nkey"));
        };
        Target::new(self.out).add_agent(&request.agent, nkey)?;
        let agent = &request.agent;
        out.result(&json!({ "agent": agent, "nkey": nkey }), || {
            format!("added the broker user of {agent}: let each broker read its users again (SIGHUP)")
        })?;
        Ok(Exit::Ok)
    }
}
