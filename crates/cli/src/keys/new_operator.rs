//! `sealwire keys new-operator`: creates the key pair with which an operator signs lists of revocations.
//! Never overwrites a key: services name its public half.

use std::path::PathBuf;

use clap::Args;
use sealwire::internal::auth::OperatorKey;
use serde_json::json;

use crate::exit::{Exit, Failure, OrFail as _};
use crate::output::Output;

/// Create the key pair of an operator who may revoke, and print the public key for services
#[derive(Args)]
#[command(after_help = "\
Keep it where no service, agent or broker can read it: whoever has it can revoke
and restore everything. docs/revocation.md says who names the public key.

Examples:
  sealwire keys new-operator op-1
  sealwire keys new-operator op-2 --out /media/stick/op-2.json")]
pub(crate) struct NewOperator {
    /// The key id
    #[arg(value_name = "KID")]
    kid: String,
    /// The key file to write (mode 0600) [default: KID.json]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

impl NewOperator {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        let path = self.out.unwrap_or_else(|| format!("{}.json", self.kid).into());
        let key = OperatorKey::generate(&self.kid).or_fail(Exit::Input)?;
        key.save(&path).or_fail(Exit::Input)?;
        let (kid, x) = (key.kid(), key.x());
        out.result(&json!({ "file": crate::files::shown(&path), "kid": kid, "x": x }), || {
            format!(
                "wrote the operator's key to {}\n\nName it in each service ([[revocation.operator]]) and operator's file \
                 ([[operator]]):\n  kid = \"{kid}\"\n  x = \"{x}\"",
                path.display()
            )
        })?;
        Ok(Exit::Ok)
    }
}
