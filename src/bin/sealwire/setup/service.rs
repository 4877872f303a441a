//! `sealwire setup service`: one more service in a set-up that is there, with broker users and a guard account of its own.
//! Never touches the keys of anybody else.

use std::path::PathBuf;

use clap::Args;
use sealwire::Name;
use serde_json::json;

use super::target::Target;
use crate::exit::{Exit, Failure};
use crate::output::Output;

/// Add a service to a set-up that is there
///
/// Makes the service's folder: keys, broker users, configuration, and a key ring with the agents of the set-up. The
/// agents' credentials get its public key. The brokers must then read their users again.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire setup service ledger --out /sealwire
  kill -HUP …    # each broker: `nats-server --signal reload` does the same")]
pub(crate) struct AddService {
    /// The service's name, and its folder's
    #[arg(value_name = "NAME")]
    name: Name,
    /// Where the folders are
    #[arg(long, value_name = "FOLDER")]
    out: PathBuf,
}

impl AddService {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        let target = Target::new(self.out);
        let Some(mark) = target.mark()? else {
            let failure = Failure::input(format!("there is no set-up in `{}`", target.display()));
            return Err(failure.help("make one: sealwire setup cluster --out FOLDER"));
        };
        if mark.services.contains(&self.name) {
            return Err(Failure::input(format!(
                "the set-up in `{}` has a service {} already",
                target.display(),
                self.name
            )));
        }
        target.add_services(mark, std::slice::from_ref(&self.name))?;
        out.result(&json!({ "folder": target.display().to_string(), "added": [self.name] }), || {
            format!(
                "added the service {name} in {folder}/{name}: let each broker read its users again (SIGHUP), then start it",
                name = self.name,
                folder = target.display()
            )
        })?;
        Ok(Exit::Ok)
    }
}
