//! The claims of a token: their grammar, and the rules that hold for as long as the token lives.
//! Never reads the clock; never sees a token whose signature does not hold.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::{AccessToken, Confirmation, TokenError, TokenRules};
use crate::auth::jwk;

/// Reads the claims and judges everything about them that does not depend on the time.
///
/// `issuer` is the one that the key belongs to, not the one that the token names.
pub(super) fn read(
    mut claims: Map<String, Value>,
    issuer: &str,
    key_id: &str,
    rules: &TokenRules,
) -> Result<AccessToken, TokenError> {
    let iss = text(required(&mut claims, "iss")?, "iss", |_| true)?;
    if iss != issuer {
        return Err(TokenError::Issuer(iss));
    }
    audience(&required(&mut claims, "aud")?, &rules.audience)?;
    let id = text(required(&mut claims, "jti")?, "jti", is_identifier)?;
    let subject = text(required(&mut claims, "sub")?, "sub", is_identifier)?;
    let issued_at = date(&required(&mut claims, "iat")?, "iat")?;
    let expires_at = date(&required(&mut claims, "exp")?, "exp")?;
    let not_before = claims.remove("nbf").map(|nbf| date(&nbf, "nbf")).transpose()?;
    lifetime(issued_at, expires_at, rules.max_lifetime_s)?;
    let mut actors = actors(claims.remove("act"), issuer)?.into_iter();
    let roles = claims.remove("roles").map_or_else(|| Ok(BTreeSet::new()), roles)?;
    let cnf = claims.remove("cnf").map(confirmation).transpose()?;
    if rules.require_cnf && cnf.is_none() {
        return Err(TokenError::NoConfirmation);
    }
    Ok(AccessToken {
        issuer: iss,
        key_id: key_id.to_owned(),
        id,
        subject,
        actor: actors.next(),
        prior_actors: actors.collect(),
        issued_at,
        expires_at,
        not_before,
        roles,
        cnf,
        claims,
    })
}

/// Judges the times. To be called for every message, also when the token is known.
pub(super) fn judge_times(token: &AccessToken, leeway_s: u64, now_s: u64) -> Result<(), TokenError> {
    // RFC 7519 §4.1.4: "on or after" `exp` the token must not be accepted, so equality is expiry.
    if now_s >= token.expires_at.saturating_add(leeway_s) {
        return Err(TokenError::Expired);
    }
    let horizon = now_s.saturating_add(leeway_s);
    if token.not_before.is_some_and(|nbf| nbf > horizon) {
        return Err(TokenError::NotYetValid);
    }
    if token.issued_at > horizon {
        return Err(TokenError::IssuedInFuture);
    }
    Ok(())
}

/// The names that the protocol gives a meaning to; an issuer cannot use them for anything else.
pub(super) const KNOWN: [&str; 10] = ["iss", "sub", "aud", "exp", "nbf", "iat", "jti", "roles", "cnf", "act"];

fn required(claims: &mut Map<String, Value>, name: &'static str) -> Result<Value, TokenError> {
    claims.remove(name).ok_or(TokenError::Missing(name))
}

fn text(value: Value, name: &'static str, holds: fn(&str) -> bool) -> Result<String, TokenError> {
    match value {
        Value::String(text) if holds(&text) => Ok(text),
        _ => Err(TokenError::Malformed(name)),
    }
}

/// A date is an integer. The parser has refused fractions, exponents, signs and everything above 2^53-1 already.
fn date(value: &Value, name: &'static str) -> Result<u64, TokenError> {
    value.as_u64().ok_or(TokenError::Malformed(name))
}

/// 1 to 128 visible ASCII characters, for `sub`, `act.sub` and `jti`.
///
/// No space, no control character, nothing outside ASCII: these texts are compared with policy files and deny lists and
/// end up in logs, so two of them that look alike must be alike.
fn is_identifier(text: &str) -> bool {
    (1..=128).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic())
}

/// RFC 7519 §4.1.3: one string, or an array of strings.
fn audience(aud: &Value, own: &str) -> Result<(), TokenError> {
    let named = match aud {
        Value::String(one) => one == own,
        Value::Array(all) => {
            let mut named = false;
            for one in all {
                named |= one.as_str().ok_or(TokenError::Malformed("aud"))? == own;
            }
            named
        }
        _ => return Err(TokenError::Malformed("aud")),
    };
    if named { Ok(()) } else { Err(TokenError::Audience) }
}

fn lifetime(issued_at: u64, expires_at: u64, longest: u64) -> Result<(), TokenError> {
    match expires_at.checked_sub(issued_at) {
        Some(lifetime) if lifetime > 0 && lifetime <= longest => Ok(()),
        // Both are below 2^53, so the difference fits.
        _ => Err(TokenError::Lifetime(expires_at.cast_signed().wrapping_sub(issued_at.cast_signed()))),
    }
}

fn roles(value: Value) -> Result<BTreeSet<String>, TokenError> {
    let malformed = || TokenError::Malformed("roles");
    let Value::Array(list) = value else { return Err(malformed()) };
    if list.len() > MAX_ROLES {
        return Err(malformed());
    }
    let is_role = |role: &str| {
        (1..=64).contains(&role.len()) && role.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.:/-".contains(&b))
    };
    list.into_iter()
        .map(|role| match role {
            Value::String(role) if is_role(&role) => Ok(role),
            _ => Err(malformed()),
        })
        .collect()
}

/// `cnf` says which key its bearer has. A member that we do not compare would be a condition ignored, so it is refused.
fn confirmation(value: Value) -> Result<Confirmation, TokenError> {
    let malformed = || TokenError::Malformed("cnf");
    let Value::Object(mut members) = value else { return Err(malformed()) };
    let kid = members.remove("kid").map(|kid| text(kid, "cnf", is_proof_key_id)).transpose()?;
    let jkt = members.remove("jkt").map(|jkt| text(jkt, "cnf", is_thumbprint)).transpose()?;
    if !members.is_empty() || (kid.is_none() && jkt.is_none()) {
        return Err(malformed());
    }
    Ok(Confirmation { kid, jkt })
}

/// The grammar of the key ids of proofs: 1 to 128 of `[A-Za-z0-9._:/-]`.
fn is_proof_key_id(kid: &str) -> bool {
    (1..=128).contains(&kid.len()) && kid.bytes().all(|b| b.is_ascii_alphanumeric() || b"._:/-".contains(&b))
}

fn is_thumbprint(jkt: &str) -> bool {
    jwk::decode_array::<32>(jkt).is_some()
}

/// The actors, the current one first. A loop, not recursion: the depth is the sender's choice until it is counted.
///
/// An actor is `{"sub", "iss"?, "act"?}`; its `iss`, if given, must be the token's own, since `sub` alone names it here
/// (RFC 8693 §4.1: `iss` and `sub` together identify an actor).
fn actors(mut next: Option<Value>, issuer: &str) -> Result<Vec<String>, TokenError> {
    let malformed = || TokenError::Malformed("act");
    let mut chain = Vec::new();
    while let Some(actor) = next {
        if chain.len() == MAX_ACTORS {
            return Err(TokenError::Delegation);
        }
        let Value::Object(mut members) = actor else { return Err(malformed()) };
        chain.push(text(members.remove("sub").ok_or_else(malformed)?, "act", is_identifier)?);
        if members.remove("iss").is_some_and(|iss| iss.as_str() != Some(issuer)) {
            return Err(malformed());
        }
        next = members.remove("act");
        if !members.is_empty() {
            return Err(malformed());
        }
    }
    Ok(chain)
}

const MAX_ROLES: usize = 64;
const MAX_ACTORS: usize = 4;
