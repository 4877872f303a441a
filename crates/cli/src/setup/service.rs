//! `sealwire setup service`: adds a service to an existing setup, with its own broker users and its own guard account.
//! Never touches the keys of anybody else.

use std::path::PathBuf;

use clap::Args;
use sealwire::Name;
use sealwire::internal::auth::KeyEntry;
use serde_json::json;

use super::cluster::server;
use super::target::{NewService, Target};
use crate::exit::{Exit, Failure};
use crate::output::Output;
use sealwire_lab::parties::ENVIRONMENT;

/// Add a service to an existing setup
///
/// Creates the service's folder with keys, broker users, configuration, and a key ring with the agents of the setup. The agents'
/// credentials get the service's public key. The brokers must then reload their users.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire setup service ledger --out /sealwire
  sealwire setup service wiki --out /sealwire --mcp http://wiki-mcp:8000/mcp
  kill -HUP …    # each broker: `nats-server --signal reload` does the same")]
pub(crate) struct AddService {
    /// The name of the service, and of its folder
    #[arg(value_name = "NAME")]
    name: Name,
    /// The folder of the setup
    #[arg(long, value_name = "FOLDER")]
    out: PathBuf,
    /// The MCP server (Streamable HTTP) whose tools become its methods; without one, it serves the demonstration methods
    #[arg(long, value_name = "URL", value_parser = server)]
    mcp: Option<String>,
}

impl AddService {
    /// How to let in an agent that was enrolled later, with other services. Whether to do so is for the operator to decide.
    fn enrol(&self, target: &Target, entry: &KeyEntry) -> String {
        let (name, owner, ring, key) =
            (&self.name, &entry.owner, target.ring(&self.name), target.service_key(&self.name));
        let service = format!("--service {ENVIRONMENT}/{name}={}", ring.display());
        let line = match entry.thumbprint() {
            Some(thumbprint) => format!(
                "sealwire keys enrol {owner} {owner}.request --thumbprint {thumbprint} {service} --pin-from {}",
                key.display()
            ),
            None => format!("sealwire keys grant {owner}.creds.json {service}"),
        };
        format!("\n{owner} was enrolled later and is not in its key ring (key {}). To let it in:\n  {line}", entry.kid)
    }

    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        let mut target = Target::take(self.out.clone())?;
        let mark = target.found()?;
        if mark.services.contains(&self.name) {
            return Err(Failure::input(format!(
                "the setup in `{}` has a service {} already",
                target.display(),
                self.name
            )));
        }
        let enrolled = target.enrolled(&mark)?;
        target.add_services(mark, &[NewService { name: self.name.clone(), mcp: self.mcp.clone() }])?;
        let keys: Vec<_> = enrolled.values().map(|entry| json!({ "agent": entry.owner, "kid": entry.kid })).collect();
        let result = json!({ "folder": target.display().to_string(), "added": [self.name], "lacks": keys });
        out.result(&result, || {
            let added = format!(
                "added the service {name} in {folder}/{name}: {step}, then start it",
                name = self.name,
                folder = target.display(),
                step = target.step()
            );
            std::iter::once(added).chain(enrolled.values().map(|entry| self.enrol(&target, entry))).collect()
        })?;
        Ok(Exit::Ok)
    }
}
