//! Why a service may not know a caller, as far as token and credentials reveal it. The service must not say which of many reasons.
//! Never verifies or sends anything: all it finds are facts about our own files.

use sealwire::Credentials;
use sealwire::internal::auth::{KeyEntry, Untrusted, decode_untrusted};
use serde_json::Value;

use crate::exit::Failure;
use crate::when;

/// Adds what is wrong with the token for this service or, if nothing is, where to look next.
pub(super) async fn told(failure: Failure, credentials: &Credentials, service: &str) -> Failure {
    let token = match credentials.tokens() {
        Ok(source) => source.fetch().await.ok(),
        Err(_) => None,
    };
    let Some(said) = token.and_then(|token| decode_untrusted(token.trim()).ok()) else { return failure };
    let found = causes(&said, credentials, service, when::now_s());
    if !found.is_empty() {
        return found.into_iter().fold(failure, Failure::cause);
    }
    let kid = credentials.kid();
    let issued = said.date("iat").unwrap_or(0);
    let help = if when::now_s().saturating_sub(issued) < FRESH {
        format!(
            "the token was made just now: services look at their files twice a second, so try again; if that does not help, \
             `sealwire keys list RING` on the service's key ring says whether `{kid}` is in it and active"
        )
    } else {
        let issuer = said.claims.get("iss").and_then(Value::as_str).unwrap_or_default();
        format!(
            "the token is for this agent and service: does the service's key ring contain `{kid}` (`sealwire keys list \
             RING`), and its configuration the issuer `{issuer}`? Its log says what was refused"
        )
    };
    failure.help(help)
}

/// For how many seconds after a change a service may not have reread its files.
const FRESH: u64 = 3;

fn causes(said: &Untrusted, credentials: &Credentials, service: &str, now_s: u64) -> Vec<String> {
    let claims = &said.claims;
    let text = |name: &str| claims.get(name).and_then(Value::as_str);
    let time = |name: &str| said.date(name);
    let mut found = Vec::new();
    let audiences: Vec<&str> = match claims.get("aud") {
        Some(Value::Array(several)) => several.iter().filter_map(Value::as_str).collect(),
        one => one.and_then(Value::as_str).into_iter().collect(),
    };
    let this = format!("{}/{service}", credentials.environment());
    if !audiences.contains(&this.as_str()) {
        let names = audiences.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        found.push(format!("the token is for {names}, and this service is `{this}` unless it is configured otherwise"));
    }
    if let Some(exp) = time("exp").filter(|exp| *exp <= now_s) {
        found.push(format!("the token expired {}", when::both(exp, now_s)));
    }
    if let Some(from) = time("nbf").max(time("iat")).filter(|from| *from > now_s) {
        found.push(format!("the token is valid only from {}: is this machine's clock right?", when::both(from, now_s)));
    }
    let bound = claims.get("cnf").and_then(|cnf| cnf.get("kid")).and_then(Value::as_str);
    if let Some(other) = bound.filter(|kid| *kid != credentials.kid()) {
        found.push(format!("the token is bound to the key `{other}`, and the key in use is `{}`", credentials.kid()));
    }
    let print = claims.get("cnf").and_then(|cnf| cnf.get("jkt")).and_then(Value::as_str);
    let own = credentials
        .key()
        .public()
        .and_then(|x| KeyEntry::ed25519(credentials.kid(), credentials.agent().clone(), x.to_owned()).thumbprint());
    if let Some(other) = print.filter(|print| own.as_deref() != Some(print)) {
        let own = own.map_or("has none: it is an HMAC key".to_owned(), |own| format!("has `{own}`"));
        let kid = credentials.kid();
        found.push(format!("the token is bound to the thumbprint `{other}`, and the key in use, `{kid}`, {own}"));
    }
    let actor = claims.get("act").and_then(|act| act.get("sub")).and_then(Value::as_str);
    let agent = credentials.agent().as_str();
    if let Some(other) = actor.or(text("sub")).filter(|name| *name != agent) {
        found.push(format!("the token is that of `{other}`, and the key that of `{agent}`"));
    }
    found
}
