//! `sealwire keys grant`: lets one more service know an existing agent's key.
//! Never changes the agent's credentials.

use std::path::PathBuf;

use clap::Args;
use sealwire::Credentials;
use serde_json::json;

use super::new_agent::{ServiceRing, granted, save};
use super::ring::Ring;
use crate::exit::{Exit, Failure, OrFail as _};
use crate::files::{Lock, all_shown};
use crate::output::Output;

/// Let further services verify an existing agent, by adding its key to their key rings
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire keys grant planner.creds.json --service dev/bank=bank.ring.json")]
pub(crate) struct Grant {
    /// The agent's credentials file
    #[arg(value_name = "CREDS")]
    creds: PathBuf,
    /// The service and its key ring, created if there is none; repeat for several
    #[arg(long = "service", value_name = "ENV/SVC=RING_FILE", required = true)]
    services: Vec<ServiceRing>,
}

impl Grant {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        let credentials = Credentials::load(&self.creds).or_fail(Exit::Input)?;
        let own = credentials.environment();
        if let Some(other) = self.services.iter().find(|service| service.audience.environment() != own.as_str()) {
            let message = format!("`{}` is not in the credentials' environment `{own}`", other.audience);
            return Err(Failure::input(message).help("make an agent for that environment: sealwire keys new-agent"));
        }
        let _lock = Lock::of(self.services.iter().map(|service| service.path.as_path()));
        let rings = granted(&self.services, credentials.key(), credentials.agent())?;
        save(&rings)?;
        let files = all_shown(rings.iter().map(Ring::path));
        let (agent, kid) = (credentials.agent(), credentials.kid());
        out.result(&json!({ "agent": agent, "kid": kid, "rings": files }), || {
            let lines = rings.iter().map(|ring| {
                format!("{} knows the key {kid} of {agent} by {}\n", ring.audience(), ring.path().display())
            });
            let audiences: Vec<&str> = rings.iter().map(|ring| ring.audience().as_str()).collect();
            let note = format!("\nThe agent's tokens must also name the audience {}", audiences.join(", "));
            lines.chain([note]).collect()
        })?;
        Ok(Exit::Ok)
    }
}
