//! What brokers know of a setup's `sealwire authd`: its public keys, by the seeds in its folder.
//! Never makes a key.

use std::path::Path;

use nkeys::{KeyPair, XKey};
use sealwire::internal::files::read_secret;

use super::mark::AUTHD;
use crate::exit::{Exit, Failure, OrFail as _};
use crate::users::{Callout, Kind, Users};

/// The files of the seeds: of the key that signs answers, and of the one to which questions are encrypted.
pub(super) const ISSUER: &str = "issuer.nk";
pub(super) const XKEY: &str = "authd.xk";

/// Whom the brokers of a setup ask, if these users have anybody who answers.
pub(super) fn callout(base: &Path, users: &Users) -> Result<Option<Callout>, Failure> {
    let responders = users.iter().filter(|(kind, ..)| *kind == Kind::Responder);
    let responders: Vec<String> = responders.map(|(_, _, nkey)| nkey.to_owned()).collect();
    if responders.is_empty() {
        return Ok(None);
    }
    let (issuer, xkey) = (base.join(AUTHD).join(ISSUER), base.join(AUTHD).join(XKEY));
    let wrong = |path: &Path| Failure::input(format!("`{}` holds no nkey seed", path.display()));
    let seed = read_secret(&issuer).or_fail(Exit::Input)?;
    let issuer = KeyPair::from_seed(seed.trim()).map_err(|_| wrong(&issuer))?.public_key();
    let seed = read_secret(&xkey).or_fail(Exit::Input)?;
    let xkey = XKey::from_seed(seed.trim()).map_err(|_| wrong(&xkey))?.public_key();
    let callout = Callout { issuer, xkey, responders };
    callout.check()?;
    Ok(Some(callout))
}
