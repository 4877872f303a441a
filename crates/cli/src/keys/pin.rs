//! `sealwire keys pin`: writes the public key of a service into an agent's credentials.
//! Never takes a key from the bus: anybody could answer there.

use std::path::PathBuf;

use clap::Args;
use sealwire::configure::ServicePublicKey;
use sealwire::{Credentials, Name};
use serde_json::json;

use crate::exit::{Exit, Failure, OrFail as _};
use crate::files::{Lock, shown};
use crate::output::Output;

/// Pin the public key of a service, so that an agent with an Ed25519 key can verify its answers
#[derive(Args)]
#[command(after_help = "\
`sealwire keys new-service` prints the key id and the key. Pin the next key
before the service uses it, and remove the old one (--only) once the service
no longer uses it.

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
    /// Remove the other pinned keys of this service
    #[arg(long)]
    only: bool,
}

impl Pin {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        let _lock = Lock::of([self.creds.as_path()]);
        let credentials = Credentials::load(&self.creds).or_fail(Exit::Input)?;
        let credentials = pin(credentials, &self.service, &self.kid, &self.x, self.only)?;
        credentials.save(&self.creds, true).or_fail(Exit::Input)?;
        let kids: Vec<String> = credentials.pinned(&self.service).iter().map(|key| key.kid().to_owned()).collect();
        out.result(&json!({ "credentials": shown(&self.creds), "service": self.service, "pinned": kids }), || {
            format!("{}: pinned for {}: {}", self.creds.display(), self.service, kids.join(", "))
        })?;
        Ok(Exit::Ok)
    }
}

/// The credentials with one more public key of a service; with `only`, instead of those that were pinned.
pub(super) fn pin(
    credentials: Credentials,
    service: &Name,
    kid: &str,
    x: &str,
    only: bool,
) -> Result<Credentials, Failure> {
    let prefix = format!("svc:{}/{service}:", credentials.environment());
    if !kid.starts_with(&prefix) {
        let message = format!(
            "`{}` is not a key of the service {service}: its key ids begin with `{prefix}`",
            kid.escape_debug()
        );
        return Err(Failure::input(message).help("ask the service's operator for its key"));
    }
    let key = ServicePublicKey::new(kid, x).map_err(|error| {
        Failure::input(format!("the public key of `{}`: {error}", kid.escape_debug()))
            .help("copy it from `sealwire keys new-service`")
    })?;
    let mut keys = if only { Vec::new() } else { credentials.pinned(service) };
    if keys.iter().any(|known| known.kid() == kid && *known != key) {
        let message = format!("another key is pinned as `{kid}`");
        return Err(Failure::input(message)
            .help("ask the service's operator which is right; `sealwire keys pin --only` replaces what is pinned"));
    }
    if !keys.contains(&key) {
        keys.push(key);
    }
    Ok(credentials.service_keys(service.clone(), keys))
}
