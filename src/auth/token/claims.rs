//! The claims of a token: their grammar, and the rules that hold for as long as the token lives.
//! Never reads the clock; never judges a token whose signature does not hold.

use serde_json::{Map, Value};

use super::audience::is_same;
use super::header::digest;
use super::path::ClaimPath;
use super::{AccessToken, AgentRules, Confirmation, TokenError, TokenId, TokenRules};
use crate::jose::{milliseconds_between, numeric_date, numeric_date_up, unb64_array};

/// Reads the claims and judges everything about them that does not depend on the time.
///
/// `issuer` is the one that the key belongs to, not the one that the token names; `signed` is the token's text up to its
/// second dot.
pub(super) fn read(
    mut claims: Map<String, Value>,
    issuer: &str,
    key_id: &str,
    rules: &TokenRules,
    signed: &str,
) -> Result<AccessToken, TokenError> {
    let own = rules.of(issuer);
    if let Some((claim, _)) = own.require.iter().find(|(claim, text)| claim.text(&claims) != Some(text.as_str())) {
        return Err(TokenError::Required(claim.to_string()));
    }
    // What the issuer's own rules ask for is read while nothing has been taken out yet.
    let roles = own.roles.read(&claims).map_err(|_| TokenError::Malformed("roles"))?;
    let named = own.agent.as_ref().map(|agent| named(agent, &claims)).transpose()?;
    let digest = digest(signed);
    let id = match &own.id {
        TokenId::Digest => digest.clone(),
        TokenId::Claim(claim) => match claim.find(&claims) {
            Ok(Some(Value::String(id))) if is_identifier(id) => id.clone(),
            Ok(None) => return Err(TokenError::Missing("jti")),
            _ => return Err(TokenError::Malformed("jti")),
        },
    };
    let iss = text(required(&mut claims, "iss")?, "iss", |_| true)?;
    if iss != issuer {
        return Err(TokenError::Issuer(iss));
    }
    audience(&required(&mut claims, "aud")?, own.audience.as_ref().unwrap_or(&rules.audience))?;
    if own.id == TokenId::default() {
        claims.remove("jti");
    }
    let mut subject = text(required(&mut claims, "sub")?, "sub", is_identifier)?;
    let (iat, exp) = (required(&mut claims, "iat")?, required(&mut claims, "exp")?);
    let (issued_at, expires_at) = (date(&iat, "iat")?, date(&exp, "exp")?);
    let issued_by = numeric_date_up(&iat).ok_or(TokenError::Malformed("iat"))?;
    let not_before =
        claims.remove("nbf").map(|nbf| numeric_date_up(&nbf).ok_or(TokenError::Malformed("nbf"))).transpose()?;
    lifetime(&iat, &exp, own.max_lifetime_s.unwrap_or(rules.max_lifetime_s))?;
    let mut actors = actors(claims.remove("act"), issuer)?.into_iter();
    let mut actor = actors.next();
    match named {
        None => {}
        // Two claims that name the actor could name two different ones.
        Some(_) if actor.is_some() => return Err(TokenError::Malformed("act")),
        Some((agent, false)) => actor = Some(agent),
        Some((agent, true)) => {
            // The issuer's own name for the agent stays where policies, logs and deny lists find it.
            claims.insert("sub".to_owned(), std::mem::replace(&mut subject, agent).into());
        }
    }
    // The two are principals of different kinds: who acts for a namesake would be taken for one that acts for itself.
    if actor.as_ref() == Some(&subject) {
        return Err(TokenError::SelfDelegation);
    }
    if own.roles.claim == ClaimPath::of("roles") {
        claims.remove("roles");
    }
    if let Some(may) = &own.may {
        let on_behalf_of = actor.is_some().then_some(subject.as_str());
        if let Some((what, text)) = may.breach(actor.as_ref().unwrap_or(&subject), on_behalf_of, &roles) {
            return Err(TokenError::Bounds { what, text: text.to_owned() });
        }
    }
    let cnf = claims.remove("cnf").map(confirmation).transpose()?;
    if rules.require_cnf && cnf.is_none() {
        return Err(TokenError::NoConfirmation);
    }
    Ok(AccessToken {
        issuer: iss,
        key_id: key_id.to_owned(),
        id,
        digest,
        subject,
        actor,
        prior_actors: actors.collect(),
        issued_at,
        issued_by,
        expires_at,
        not_before,
        roles,
        cnf,
        // Collected anew: a map keeps the room of what was taken out of it, and there is one map for each remembered
        // token.
        claims: claims.into_iter().collect(),
    })
}

/// Validates the times. To be called for every message, even if the token is known.
pub(super) fn validate_times(token: &AccessToken, leeway_s: u64, now_s: u64) -> Result<(), TokenError> {
    // RFC 7519 §4.1.4: "on or after" `exp` the token must not be accepted, so equality is expiry.
    if now_s >= token.expires_at.saturating_add(leeway_s) {
        return Err(TokenError::Expired);
    }
    let horizon = now_s.saturating_add(leeway_s);
    if token.not_before.is_some_and(|nbf| nbf > horizon) {
        return Err(TokenError::NotYetValid);
    }
    if token.issued_by > horizon {
        return Err(TokenError::IssuedInFuture);
    }
    Ok(())
}

/// The claims to which the protocol gives a meaning; an issuer cannot use them for anything else.
pub(super) const KNOWN: [&str; 10] = ["iss", "sub", "aud", "exp", "nbf", "iat", "jti", "roles", "cnf", "act"];

/// The agent according to the issuer's own claim, and whether the token is the agent's own.
fn named(rules: &AgentRules, claims: &Map<String, Value>) -> Result<(String, bool), TokenError> {
    rules.read(claims).filter(|(name, _)| is_identifier(name)).ok_or(TokenError::Agent)
}

fn required(claims: &mut Map<String, Value>, name: &'static str) -> Result<Value, TokenError> {
    claims.remove(name).ok_or(TokenError::Missing(name))
}

fn text(value: Value, name: &'static str, holds: fn(&str) -> bool) -> Result<String, TokenError> {
    match value {
        Value::String(text) if holds(&text) => Ok(text),
        _ => Err(TokenError::Malformed(name)),
    }
}

fn date(value: &Value, name: &'static str) -> Result<u64, TokenError> {
    numeric_date(value).ok_or(TokenError::Malformed(name))
}

/// 1 to 128 visible ASCII characters, for `sub`, `act.sub` and `jti`.
///
/// No space, no control character, nothing outside ASCII: these texts are compared with policy files and deny lists and
/// end up in logs, so two of them that look alike must be alike.
pub(crate) fn is_identifier(text: &str) -> bool {
    (1..=128).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic())
}

/// RFC 7519 §4.1.3: one string, or an array of strings.
fn audience(aud: &Value, own: &str) -> Result<(), TokenError> {
    let named = match aud {
        Value::String(one) => is_same(one, own),
        Value::Array(all) => {
            let mut named = false;
            for one in all {
                named |= is_same(one.as_str().ok_or(TokenError::Malformed("aud"))?, own);
            }
            named
        }
        _ => return Err(TokenError::Malformed("aud")),
    };
    if named { Ok(()) } else { Err(TokenError::Audience) }
}

fn lifetime(iat: &Value, exp: &Value, longest: u64) -> Result<(), TokenError> {
    let ms = milliseconds_between(iat, exp).ok_or(TokenError::Malformed("exp"))?;
    let longest_ms = i64::try_from(longest.saturating_mul(1_000)).unwrap_or(i64::MAX);
    if ms > 0 && ms <= longest_ms {
        Ok(())
    } else {
        Err(TokenError::Lifetime(ms.div_euclid(1_000) + i64::from(ms.rem_euclid(1_000) > 0)))
    }
}

/// `cnf` says which key the bearer has. A member that we do not compare would be a condition ignored, so it is refused.
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
pub(crate) fn is_proof_key_id(kid: &str) -> bool {
    (1..=128).contains(&kid.len()) && kid.bytes().all(|b| b.is_ascii_alphanumeric() || b"._:/-".contains(&b))
}

fn is_thumbprint(jkt: &str) -> bool {
    unb64_array::<32>(jkt).is_some()
}

/// The actors, the current one first. A loop, not recursion: the sender chooses the depth until it is counted.
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

const MAX_ACTORS: usize = 4;
