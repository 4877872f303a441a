//! `sealwire setup cluster`: all secrets and files of the compose set-up, in one folder for each of its containers.
//! Never gives a container more than it needs, and never replaces a key of a set-up that is there.

use std::path::PathBuf;

use clap::Args;
use sealwire::Name;
use serde_json::json;

use super::target::Target;
use crate::exit::{Exit, Failure};
use crate::output::Output;
use crate::parties::SERVICES;

/// Write all that the compose set-up needs: three brokers, services, their agents
///
/// Makes keys, broker users, certificates, tokens, credentials and configuration, each file in the folder of the one
/// container that may read it. A set-up that is there already stays as it is, but for a fresh token: services that it
/// lacks are added, and certificates that end within 30 days are made anew, and nothing else. One that has lost a folder is
/// refused.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire setup cluster --out /sealwire
  sealwire setup cluster --out /sealwire --service demo --service ledger

docker-compose.yml does it so, with one volume mounted on each folder.")]
pub(crate) struct Cluster {
    /// Where the folders are, or are to be made
    #[arg(long, value_name = "FOLDER")]
    out: PathBuf,
    /// A service, and its folder; repeat for several
    #[arg(long = "service", value_name = "NAME", default_values = SERVICES)]
    services: Vec<Name>,
}

impl Cluster {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        let working = out.working("making keys and certificates");
        let target = Target::new(self.out);
        let found = target.mark()?;
        let made = found.is_none();
        let mut renewed = false;
        let mark = match found {
            None => target.make()?,
            Some(mark) if mark.ends_soon() => {
                renewed = true;
                target.renew_certificates(mark)?
            }
            Some(mark) => mark,
        };
        let lacking: Vec<Name> = self.services.into_iter().filter(|name| !mark.services.contains(name)).collect();
        let mark = target.add_services(mark, &lacking)?;
        target.write_token(&mark)?;

        drop(working);
        let added = if made { Vec::new() } else { lacking };
        let result = json!({ "folder": target.display().to_string(), "made": made, "renewed": renewed, "added": added,
                             "services": mark.services, "folders": Target::folders(&mark) });
        out.result(&result, || {
            let folder = target.display();
            if made {
                return format!("made a new set-up in {folder}");
            }
            let mut text = format!("the set-up in {folder} stays");
            if renewed {
                text.push_str("; its certificates are new: restart the brokers, the services and the agents");
            }
            for name in &added {
                text.push_str(&format!("; the service {name} is new: let each broker read its users again (SIGHUP)"));
            }
            text
        })?;
        Ok(Exit::Ok)
    }
}
