//! `sealwire keys pin`: the public key of a service in an agent's credentials.
//! Never takes a key from the bus: whoever answers there could be anybody.

use std::path::PathBuf;

use clap::Args;
use sealwire::Name;
use sealwire::client::Credentials;
use sealwire::wire::ServicePublicKey;
use serde_json::json;

use crate::exit::{Exit, Failure, OrFail as _};
use crate::files::Lock;
use crate::output::Output;

/// Pin the public key of a service, so that an agent with an Ed25519 key can verify its answers
#[derive(Args)]
#[command(after_help = "\
`sealwire keys new-service` prints the key id and the key. Pin the next key
before the service uses it, and take the old one out (--only) once it does not
use it any more.

Examples:
  sealwire keys pin planner.creds.json --service math --kid svc:dev/math:1 \\
      --x 11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo
  sealwire keys pin planner.creds.json --service math --kid svc:dev/math:2 \\
      --x … --only")]
pub(crate) struct Pin {
    /// The agent's credentials file
    #[arg(value_name = "CREDS")]
    creds: PathBuf,
    /// The service
    #[arg(long, value_name = "SVC")]
    service: Name,
    /// The key id: svc:ENV/SVC:N
    #[arg(long, value_name = "KID")]
    kid: String,
    /// The public key, base64url
    #[arg(long, value_name = "KEY", allow_hyphen_values = true)]
    x: String,
    /// Take out the other pinned keys of this service
    #[arg(long)]
    only: bool,
}

impl Pin {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        let _lock = Lock::of([self.creds.as_path()]);
        let credentials = Credentials::load(&self.creds).or_fail(Exit::Input)?;
        let prefix = format!("svc:{}/{}:", credentials.environment(), self.service);
        if !self.kid.starts_with(&prefix) {
            let message = format!(
                "`{}` is not a key of that service: its key ids begin with `{prefix}`",
                self.kid.escape_debug()
            );
            return Err(Failure::input(message));
        }
        let key = ServicePublicKey::new(&self.kid, &self.x).map_err(|error| {
            Failure::input(format!("--x: {error}")).help("copy it from `sealwire keys new-service`")
        })?;
        let mut keys = if self.only { Vec::new() } else { credentials.pinned(&self.service) };
        if keys.iter().any(|known| known.kid() == self.kid && *known != key) {
            let message = format!("another key is pinned as `{}`", self.kid);
            return Err(Failure::input(message).help("ask the service's operator which is right; --only replaces it"));
        }
        if !keys.contains(&key) {
            keys.push(key);
        }
        let kids: Vec<String> = keys.iter().map(|key| key.kid().to_owned()).collect();
        credentials.service_keys(self.service.clone(), keys).save(&self.creds, true).or_fail(Exit::Input)?;
        out.result(&json!({ "credentials": self.creds, "service": self.service, "pinned": kids }), || {
            format!("{}: pinned for {}: {}", self.creds.display(), self.service, kids.join(", "))
        })?;
        Ok(Exit::Ok)
    }
}
