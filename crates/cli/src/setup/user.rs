//! `sealwire setup user`: a user of brokers in operator mode, made with the seed of a scoped signing key.
//! Never says what the user may do: the scope of the key does, in its account.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use nkeys::KeyPair;
use sealwire::Name;
use sealwire::internal::files::{read_secret, write_secret};
use serde_json::json;
use zeroize::Zeroizing;

use crate::exit::{Exit, Failure, OrFail as _};
use crate::files::shown;
use crate::gate::{signed, with};
use crate::output::Output;
use crate::users::{claims, is_user_key};
use crate::when;

/// Make a user of brokers in operator mode, with a scoped signing key of its account
///
/// For accounts at an operator that somebody else hosts (`sealwire setup operator --hosted`). Writes a `.creds` file with a new key pair,
/// or prints the JWT for a key pair that its owner has.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire setup user planner --signing-key agent.nk --account A… \\
      --out planner.creds
  sealwire setup user robot --signing-key agent.nk --account A… --nkey U…")]
pub(crate) struct MakeUser {
    /// The name of the agent or service; `operator` for one who revokes
    #[arg(value_name = "NAME")]
    name: Name,
    /// The seed of the scoped signing key (SA…)
    #[arg(long, value_name = "FILE")]
    signing_key: PathBuf,
    /// The public key of the account (A…)
    #[arg(long, value_name = "NKEY")]
    account: String,
    /// How long the user may log in. Without it, until it is revoked
    #[arg(long = "for", value_name = "TIME", value_parser = when::interval)]
    life: Option<Duration>,
    /// The public nkey of the user (U…), whose owner keeps the seed: prints the JWT
    #[arg(long, value_name = "NKEY", conflicts_with = "out", required_unless_present = "out")]
    nkey: Option<String>,
    /// The `.creds` file to write (mode 0600); nothing is overwritten
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

impl MakeUser {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        let is_account = |key: &str| key.starts_with('A') && KeyPair::from_public_key(key).is_ok();
        if !is_account(&self.account) {
            return Err(Failure::input("not the public nkey of an account (it begins with A): --account"));
        }
        let seed = read_secret(&self.signing_key).or_fail(Exit::Input)?;
        let signer = KeyPair::from_seed(seed.trim()).ok().filter(|pair| is_account(&pair.public_key()));
        let path = self.signing_key.display();
        let signer =
            signer.ok_or_else(|| Failure::input(format!("`{path}` holds no seed of an account's key (SA…)")))?;
        if signer.public_key() == self.account {
            let failure =
                Failure::input(format!("`{path}` is the account's own key, so its users could do everything there"));
            return Err(failure
                .help("give the seed of a scoped signing key: `nsc edit signing-key --sk generate`, or a console"));
        }
        let now_s = when::now_s();
        let until = self.life.map(|life| now_s.saturating_add(life.as_secs()));
        let jwt = |nkey: &str| {
            let claims = claims::user(self.name.as_str(), nkey, &self.account);
            let claims = until.map_or(claims.clone(), |until| with(claims, json!({ "exp": until })));
            signed(&signer, claims, now_s)
        };
        let name = &self.name;
        match (&self.nkey, &self.out) {
            (Some(nkey), _) if !is_user_key(nkey) => {
                Err(Failure::input("not the public nkey of a user (it begins with U): --nkey"))
            }
            (Some(nkey), _) => {
                let jwt = jwt(nkey)?;
                out.result(&json!({ "user": name, "nkey": nkey, "jwt": jwt }), || jwt.clone())?;
                Ok(Exit::Ok)
            }
            (None, Some(file)) => {
                let pair = KeyPair::new_user();
                let seed = Zeroizing::new(pair.seed().or_fail(Exit::Bug)?);
                let nkey = pair.public_key();
                write_secret(file, &claims::creds(&jwt(&nkey)?, &seed), false).or_fail(Exit::Input)?;
                let file = shown(file);
                out.result(&json!({ "user": name, "nkey": nkey, "creds": file }), || {
                    format!("wrote the user {name} to {file}")
                })?;
                Ok(Exit::Ok)
            }
            (None, None) => Err(Failure::bug()),
        }
    }
}
