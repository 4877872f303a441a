//! `sealwire keys accept`: puts an operator's enrolment into the credentials of the agent that asked for it.
//! Never accepts an enrolment for another key.

use std::path::{Path, PathBuf};

use clap::Args;
use nkeys::KeyPair;
use sealwire::internal::files::{read_public, read_secret, write_secret};
use sealwire::{BusConfig, Credentials, Name};
use serde_json::{Value, json};
use zeroize::Zeroizing;

use super::enrol::Enrolment;
use super::pin::pin;
use crate::exit::{Exit, Failure, OrFail as _};
use crate::files::{Lock, shown};
use crate::output::Output;
use crate::users::claims;

/// Put what `sealwire keys enrol` wrote into the agent's credentials: pinned service keys, broker addresses
///
/// Get the file over a channel that you trust: anybody who can change it can answer in the services' place. So it must belong to
/// you, and nobody else may be able to write it. Addresses without TLS never replace addresses with TLS.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire keys accept robot.creds.json robot.enrolment.json
  sealwire keys accept robot.creds.json robot.enrolment.json \\
      --nats-jwt robot.user.jwt")]
pub(crate) struct Accept {
    /// The agent's credentials file
    #[arg(value_name = "CREDS")]
    creds: PathBuf,
    /// The enrolment file from the operator
    #[arg(value_name = "ENROLMENT")]
    enrolment: PathBuf,
    /// The JWT of the agent's user at a broker in operator mode, from `sealwire setup agent`: becomes a `.creds` file beside the
    /// credentials, with the nkey seed that is in them
    #[arg(long, value_name = "FILE")]
    nats_jwt: Option<PathBuf>,
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
        let jwt = self.nats_jwt.as_deref().map(read_public).transpose().or_fail(Exit::Input)?;
        let login = jwt.map(|jwt| self.login(&credentials, jwt.trim())).transpose()?;
        credentials.save(&self.creds, true).or_fail(Exit::Input)?;
        if let Some((name, text)) = login {
            self.move_login(&name, &text)?;
        }
        let agent = credentials.agent();
        out.result(&json!({ "agent": agent, "credentials": shown(&self.creds), "services": services }), || {
            let services: Vec<&str> = services.iter().map(|service| service.as_str()).collect();
            format!("{agent} may call {}, and knows how they sign", services.join(", "))
        })?;
        Ok(Exit::Ok)
    }

    /// The `.creds` file for a JWT: its name, and its text.
    fn login(&self, credentials: &Credentials, jwt: &str) -> Result<(String, Zeroizing<String>), Failure> {
        let name = format!("{}.creds", credentials.agent());
        let wrong = |what: &str| Failure::input(format!("`--nats-jwt`: {what}"));
        let bus = credentials.bus();
        let seed = match (bus.nkey_seed, bus.creds_file) {
            (Some(seed), _) => seed,
            (None, Some(file)) => {
                let text = read_secret(&file).or_fail(Exit::Input)?;
                let seed = text.lines().find(|line| line.starts_with("SU"));
                seed.map(|seed| Zeroizing::new(seed.to_owned())).ok_or_else(|| wrong("`creds_file` holds no seed"))?
            }
            _ => {
                let failure = wrong("the credentials hold no nkey seed that a JWT could be for");
                return Err(failure.help("create them with: sealwire keys request NAME --nkey"));
            }
        };
        let own =
            KeyPair::from_seed(&seed).map_err(|_| wrong("the credentials hold a damaged nkey seed"))?.public_key();
        if claims::subject(jwt).as_deref() != Some(own.as_str()) {
            return Err(
                wrong(&format!("it is not the JWT of the user {own}")).help("ask the operator: it is another agent's")
            );
        }
        Ok((name, claims::creds(jwt, &seed)))
    }

    /// Writes the `.creds` file, and only then takes the seed out of the credentials.
    fn move_login(&self, name: &str, text: &str) -> Result<(), Failure> {
        let folder = self.creds.parent().unwrap_or(Path::new(""));
        write_secret(&folder.join(name), text, true).or_fail(Exit::Input)?;
        let file = read_secret(&self.creds).or_fail(Exit::Input)?;
        let mut file: Value = serde_json::from_str(&file).map_err(|_| Failure::bug())?;
        if let Some(nats) = file.get_mut("nats").and_then(Value::as_object_mut) {
            nats.remove("nkey_seed");
            nats.insert("creds_file".to_owned(), name.into());
        }
        let text = Zeroizing::new(serde_json::to_string_pretty(&file).or_fail(Exit::Bug)? + "\n");
        write_secret(&self.creds, &text, true).or_fail(Exit::Input)
    }
}
