//! `sealwire setup relay`: the broker user with which the gateway of a setup passes on what approvers have signed.
//! Never changes the gateway's configuration, which says for which services it does.

use std::path::PathBuf;

use clap::Args;
use sealwire_lab::parties;
use serde_json::json;

use super::target::{GATEWAY, OPERATOR, Target, USERS, urls};
use crate::exit::{Exit, Failure};
use crate::output::Output;
use crate::users::{Kind, Users};
use crate::when;

/// Let the gateway of a setup pass on what approvers sign in a browser (docs/gateway/approvals.md)
///
/// Makes a broker user that may do nothing else, and prints the lines for the gateway's configuration. The brokers must then reload their
/// users. Run again, it replaces the user.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire setup relay --out /sealwire")]
pub(crate) struct AddRelay {
    /// The folder of the setup
    #[arg(long, value_name = "FOLDER")]
    out: PathBuf,
}

impl AddRelay {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        let mut target = Target::take(self.out)?;
        let lines = add_to(&mut target)?;
        out.result(&json!({ "folder": GATEWAY, "config": lines }), || {
            format!(
                "made the broker user of the relay: {}. For gateway.toml in `{GATEWAY}`, with `approvals = true` in each \
                 `[[gateway.expose]]` whose calls people approve:\n\n{lines}",
                target.step()
            )
        })?;
        Ok(Exit::Ok)
    }
}

/// Makes the user. Returns the lines for the gateway's configuration.
fn add_to(target: &mut Target) -> Result<String, Failure> {
    target.found()?;
    let mut users = Users::load(&target.file(OPERATOR, USERS))?;
    let name = parties::named(GATEWAY)?;
    if target.is_in_operator_mode() {
        // A user in a configuration is gone with its line; a JWT has to be revoked.
        users.revoke(Kind::Relay, &name, when::now_s());
    }
    target.login(&mut users, Kind::Relay, &name, GATEWAY, Kind::Relay.as_str())?;
    target.write_users(&users)?;
    let login = target.login_of(Kind::Relay);
    Ok(format!("[gateway.approvals.nats]\nurls = [{}]\n{login}\ntls_ca = \"ca.pem\"", urls()))
}
