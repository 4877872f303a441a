//! `sealwire keys accept`: what an operator handed back, in the credentials of the agent that asked to be enrolled.
//! Never takes an answer that is for another key.

use std::path::PathBuf;

use clap::Args;
use sealwire::Name;
use sealwire::client::Credentials;
use sealwire::wire::ServicePublicKey;
use serde_json::json;

use super::enrol::Enrolment;
use crate::exit::{Exit, Failure, OrFail as _};
use crate::files::{Lock, read_if_there};
use crate::output::Output;

/// Take what `sealwire keys enrol` handed back into the agent's credentials: pinned service keys, broker addresses
///
/// Get it by a way that you trust: who can change it can answer in the services' place.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire keys accept robot.creds.json robot.enrolment.json")]
pub(crate) struct Accept {
    /// The agent's credentials file
    #[arg(value_name = "CREDS")]
    creds: PathBuf,
    /// What the operator handed back
    #[arg(value_name = "ENROLMENT")]
    enrolment: PathBuf,
}

impl Accept {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        let _lock = Lock::of([self.creds.as_path()]);
        let mut credentials = Credentials::load(&self.creds).or_fail(Exit::Input)?;
        let path = self.enrolment.display();
        let wrong = || Failure::input(format!("`{path}` is not what `sealwire keys enrol` wrote"));
        let text = read_if_there(&self.enrolment)?.ok_or_else(wrong)?;
        let enrolment: Enrolment = serde_json::from_str(&text).map_err(|_| wrong())?;
        let own = (credentials.environment().as_str(), credentials.agent().as_str(), credentials.kid());
        if own != (&*enrolment.environment, &*enrolment.agent, &*enrolment.kid) {
            let message =
                format!("`{path}` is for the key {} of another agent or environment", enrolment.kid.escape_debug());
            return Err(Failure::input(message));
        }
        let mut services = Vec::new();
        for pinned in &enrolment.service_keys {
            let service = Name::new(&pinned.service).map_err(|_| wrong())?;
            let key = ServicePublicKey::new(&pinned.kid, &pinned.x).map_err(|_| wrong())?;
            let mut keys = credentials.pinned(&service);
            if !keys.contains(&key) {
                keys.push(key);
            }
            credentials = credentials.service_keys(service, keys);
            services.push(&pinned.service);
        }
        if !enrolment.urls.is_empty() {
            credentials = credentials.urls(enrolment.urls.clone());
        }
        credentials.save(&self.creds, true).or_fail(Exit::Input)?;
        let agent = credentials.agent();
        out.result(&json!({ "agent": agent, "credentials": self.creds, "services": services }), || {
            let services: Vec<&str> = services.iter().map(|service| service.as_str()).collect();
            format!("{agent} may call {}, and knows how they sign", services.join(", "))
        })?;
        Ok(Exit::Ok)
    }
}
