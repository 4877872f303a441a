//! `sealwire keys new-token-key`: creates a small issuer of access tokens, for development.
//! Never overwrites a key, and never removes a key from a key set.

use std::path::{Path, PathBuf};

use clap::Args;
use sealwire::internal::auth::{KeySet, Symmetric, TokenIssuer};
use serde_json::{Value, json};

use crate::exit::{Exit, Failure, OrFail as _};
use crate::files::{self, Lock, check_apart};
use crate::output::Output;

/// Create a key that signs access tokens, and the key set with which services verify them
#[derive(Args)]
#[command(after_help = "\
For development. In production, use an identity provider; services read its
key set in the same way.

Examples:
  sealwire keys new-token-key https://dev.example
  sealwire keys new-token-key https://dev.example --out next.json")]
pub(crate) struct NewTokenKey {
    /// The issuer, as named in tokens (`iss`)
    #[arg(value_name = "ISSUER")]
    issuer: String,
    /// The private key to write (mode 0600)
    #[arg(long, value_name = "FILE", default_value = "token-key.json")]
    out: PathBuf,
    /// The key set to add the public key to; created if there is none
    #[arg(long, value_name = "FILE", default_value = "jwks.json")]
    jwks: PathBuf,
}

impl NewTokenKey {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        let _lock = Lock::of([self.jwks.as_path()]);
        check_apart([("the private key", self.out.as_path()), ("the key set", self.jwks.as_path())])?;
        let issuer = TokenIssuer::generate(&self.issuer).or_fail(Exit::Input)?;
        // Build the set in memory first, so that an unusable set does not leave a key without one.
        let set = with_key(&self.jwks, &issuer)?;
        issuer.save(&self.out).map_err(|error| match &error {
            sealwire::internal::auth::IssueError::File { .. } if self.out.exists() => {
                Failure::input(format!("`{}` exists already", self.out.display()))
                    .help("choose another file with --out; old tokens stay valid until the old public key is removed")
            }
            _ => Failure::of(Exit::Input, &error),
        })?;
        files::write_public(&self.jwks, &set).inspect_err(|_| {
            // A key that is in no set is of no use, and would be in the way of the next attempt.
            drop(std::fs::remove_file(&self.out));
        })?;
        let result = json!({ "file": files::shown(&self.out), "jwks": files::shown(&self.jwks),
                             "issuer": issuer.issuer(), "kid": issuer.kid() });
        out.result(&result, || {
            format!(
                "wrote the private key to {}\nadded the public key to {}\nkid {}\n\nA service trusts it with:\n  \
                 [[tokens.issuer]]\n  issuer = {:?}\n  jwks = {:?}",
                self.out.display(),
                self.jwks.display(),
                issuer.kid(),
                issuer.issuer(),
                self.jwks.display().to_string(),
            )
        })?;
        Ok(Exit::Ok)
    }
}

/// The key set in the file, or a new one, with this key added.
fn with_key(path: &Path, issuer: &TokenIssuer) -> Result<String, Failure> {
    let Some(text) = files::read_if_there(path)? else { return Ok(issuer.public_jwks()) };
    let origin = path.display().to_string();
    KeySet::from_jwks(&text, issuer.issuer(), &origin, Symmetric::Allowed).or_fail(Exit::Input)?;
    let parse = |text: &str| serde_json::from_str::<Value>(text).or_fail(Exit::Input);
    let (mut set, mut own) = (parse(&text)?, parse(&issuer.public_jwks())?);
    let added = own.get_mut("keys").and_then(Value::as_array_mut);
    if let (Some(keys), Some(added)) = (set.get_mut("keys").and_then(Value::as_array_mut), added) {
        keys.append(added);
    }
    let text = format!("{set:#}\n");
    KeySet::from_jwks(&text, issuer.issuer(), &origin, Symmetric::Allowed).or_fail(Exit::Input)?;
    Ok(text)
}
