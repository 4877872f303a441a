//! `sealwire keys accept`: puts an operator's enrolment into the credentials of the agent that asked for it.
//! Never accepts an enrolment for another key.

use std::path::PathBuf;

use clap::Args;
use sealwire::internal::files::read_public;
use sealwire::{BusConfig, Credentials, Name};
use serde_json::json;

use super::enrol::Enrolment;
use super::pin::pin;
use crate::exit::{Exit, Failure, OrFail as _};
use crate::files::{Lock, shown};
use crate::output::Output;

/// Put what `sealwire keys enrol` wrote into the agent's credentials: pinned service keys, broker addresses
///
/// Get the file over a channel that you trust: anybody who can change it can answer in the services' place. So it must belong to
/// you, and nobody else may be able to write it. Addresses without TLS never replace addresses with TLS.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire keys accept robot.creds.json robot.enrolment.json")]
pub(crate) struct Accept {
    /// The agent's credentials file
    #[arg(value_name = "CREDS")]
    creds: PathBuf,
    /// The enrolment file from the operator
    #[arg(value_name = "ENROLMENT")]
    enrolment: PathBuf,
}

impl Accept {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        let _lock = Lock::of([self.creds.as_path()]);
        let mut credentials = Credentials::load(&self.creds).or_fail(Exit::Input)?;
        let path = self.enrolment.display();
        let wrong = || Failure::input(format!("`{path}` is not what `sealwire keys enrol` wrote"));
        let text = read_public(&self.enrolment).or_fail(Exit::Input)?;
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
            credentials = pin(credentials, &service, &pinned.kid, &pinned.x, false)?;
            services.push(&pinned.service);
        }
        if !enrolment.urls.is_empty() {
            let before = credentials.bus();
            let bus = BusConfig { urls: enrolment.urls, ..before.clone() };
            bus.check().map_err(|error| Failure::input(format!("`{path}`: {error}")))?;
            let asks_for_tls = |bus: &BusConfig| bus.urls.iter().all(|url| url.starts_with("tls://"));
            if asks_for_tls(&before) && !asks_for_tls(&bus) {
                let message =
                    format!("`{path}` leads to a broker without TLS, but the credentials ask for TLS (`tls://`)");
                return Err(Failure::input(message).help(
                    "ask the operator for `tls://` addresses; if this is intended, write `urls` into the credentials yourself",
                ));
            }
            credentials = credentials.urls(bus.urls);
        }
        credentials.save(&self.creds, true).or_fail(Exit::Input)?;
        let agent = credentials.agent();
        out.result(&json!({ "agent": agent, "credentials": shown(&self.creds), "services": services }), || {
            let services: Vec<&str> = services.iter().map(|service| service.as_str()).collect();
            format!("{agent} may call {}, and knows how they sign", services.join(", "))
        })?;
        Ok(Exit::Ok)
    }
}
