//! `sealwire keys new-service`: creates the key pair with which a service signs its answers to Ed25519 requests.
//! Never overwrites a key: clients may have pinned it.

use std::path::PathBuf;

use clap::Args;
use sealwire::internal::auth::write_service_key;
use sealwire::internal::wire::ServiceKey;
use serde_json::json;

use super::audience::AudienceArg;
use crate::exit::{Exit, Failure, OrFail as _};
use crate::output::Output;

/// Create the key pair of a service, and print the public key for agents with Ed25519 keys to pin
#[derive(Args)]
#[command(after_help = "\
A service needs such a key if one of its agents has an Ed25519 key; answers to
HMAC requests are signed with the key of the request. The shared replay guard
and `sealwire ping --own` need it as well.

Examples:
  sealwire keys new-service dev/math
  sealwire keys new-service dev/math --number 2 --out math.service-key.2.json")]
pub(crate) struct NewService {
    /// The service
    #[arg(value_name = "ENV/SVC")]
    service: AudienceArg,
    /// The number at the end of the key id
    #[arg(long, value_name = "N", default_value_t = 1)]
    number: u32,
    /// The key file to write (mode 0600) [default: SVC.service-key.json]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

impl NewService {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        let audience = self.service.0;
        let path = self.out.unwrap_or_else(|| format!("{}.service-key.json", audience.service()).into());
        let kid = format!("svc:{audience}:{}", self.number);
        let key = ServiceKey::generate(&kid, &audience).or_fail(Exit::Input)?;
        write_service_key(&path, &key).or_fail(Exit::Input)?;
        let x = key.public().x();
        out.result(&json!({ "file": crate::files::shown(&path), "kid": kid, "x": x }), || {
            let service = audience.service();
            format!(
                "wrote the key of {audience} to {}\nkid {kid}\nx   {x}\n\nPin it in the credentials of each agent with \
                 an Ed25519 key:\n  sealwire keys pin AGENT.creds.json --service {service} --kid {kid} --x {x}",
                path.display()
            )
        })?;
        Ok(Exit::Ok)
    }
}
