//! The caller of a trial decision, as described by credentials or a token.
//! Never verifies a token: that is a service's job, with its own configuration.

use std::path::Path;

use sealwire::internal::auth::decode_untrusted;
use sealwire::{Caller, Credentials, Name};
use serde_json::{Map, Value};

use crate::exit::{Exit, Failure, OrFail as _};
use crate::files::{argument_or_stdin, read_if_there};
use crate::runtime::block_on;

/// The agent of these credentials, with its key and what its token says.
pub(super) fn of_credentials(path: &Path) -> Result<Caller, Failure> {
    let credentials = Credentials::load(path).or_fail(Exit::Input)?;
    let source = credentials.tokens().or_fail(Exit::Input)?;
    let token = block_on(source.fetch())?.or_fail(Exit::Input)?;
    let mut caller = of_claims(token.trim())?;
    caller.key = credentials.kid().to_owned();
    caller.algorithm = credentials.key().algorithm();
    Ok(caller)
}

/// The caller described by the token in this file; `-` is stdin.
pub(super) fn of_token(path: &Path) -> Result<Caller, Failure> {
    let text = if path.as_os_str() == "-" {
        argument_or_stdin(None, "the token")?
    } else {
        read_if_there(path)?.ok_or_else(|| Failure::input(format!("`{}` is not there", path.display())))?
    };
    of_claims(text.trim())
}

/// Reads the claims like a service without rules for the issuer: agent and subject, `roles`, issuer, age, other claims.
fn of_claims(token: &str) -> Result<Caller, Failure> {
    let said = decode_untrusted(token).or_fail(Exit::Input)?;
    let issued_at = said.date("iat").unwrap_or(0);
    let mut claims = said.claims;
    let subject = text(&mut claims, "sub").ok_or_else(|| Failure::input("the token has no `sub`"))?;
    let actor = claims.remove("act").and_then(|act| Some(act.get("sub")?.as_str()?.to_owned()));
    let agent = Name::new(actor.as_deref().unwrap_or(&subject)).or_fail(Exit::Input)?;
    let roles = match claims.remove("roles") {
        Some(Value::Array(roles)) => roles.iter().filter_map(|role| role.as_str().map(str::to_owned)).collect(),
        _ => Vec::new(),
    };
    let mut caller = Caller::new(agent, roles);
    (caller.delegated, caller.subject) = (actor.is_some(), subject);
    caller.token.issuer = text(&mut claims, "iss").unwrap_or_default();
    caller.token.id = text(&mut claims, "jti").unwrap_or_default();
    caller.token.issued_at = issued_at;
    ["iat", "aud", "exp", "nbf", "cnf"].into_iter().for_each(|name| drop(claims.remove(name)));
    caller.token.claims = claims;
    Ok(caller)
}

fn text(claims: &mut Map<String, Value>, name: &str) -> Option<String> {
    claims.remove(name)?.as_str().map(str::to_owned)
}
