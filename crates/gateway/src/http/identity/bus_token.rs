//! Tokens for the bus, which say that the gateway's agent acts on behalf of a caller: minted here, or exchanged at the caller's issuer.
//! Never passes a caller's token on, except to its issuer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sealwire::TokenSource;
use sealwire::errors::TokenFault;
use sealwire::internal::auth::{
    AccessToken, Confirmation, ExchangeError, ExchangeRequest, IssueRequest, TokenExchange, TokenIssuer,
    decode_untrusted,
};
use sealwire::{Clock as _, SystemClock};
use tokio::sync::Semaphore;
use zeroize::Zeroizing;

use super::presented::PresentedToken;

/// The longest life of a token for the bus, in seconds. A revoked caller can go on with what it has begun for at most as
/// long, except tasks, which end with its subject.
pub(super) const LIFE_S: u64 = 300;
/// Concurrent exchanges. Others wait, at most as long as for any token.
const EXCHANGES: usize = 64;
/// How long the agent's token is used before it is fetched again.
const ACTOR: Duration = Duration::from_secs(5);

/// Where the tokens for the bus come from.
#[derive(Debug)]
pub(super) enum BusTokenMode {
    /// The gateway mints them.
    Mint(TokenIssuer),
    /// The issuer of the callers' tokens exchanges them.
    Exchange(Exchange),
}

/// The agent that acts for the callers.
#[derive(Debug)]
pub(super) struct Actor {
    pub(super) name: String,
    /// The id of its key.
    pub(super) kid: String,
}

/// Everything needed to have tokens exchanged.
#[derive(Debug)]
pub(super) struct Exchange {
    endpoint: TokenExchange,
    /// The source of the agent's own token.
    actor: Arc<dyn TokenSource>,
    /// The agent's token, and when it was fetched.
    known: tokio::sync::Mutex<Option<(Zeroizing<String>, Instant)>>,
    /// Limits concurrent exchanges.
    permits: Semaphore,
}

/// Why there is no token for the bus.
#[derive(Debug)]
pub(super) enum BusTokenError {
    /// The issuer no longer accepts the caller's token.
    Invalid,
    /// The issuer does not let the caller use the service.
    Forbidden,
    /// Any other fault, which concerns the gateway.
    Fault(TokenFault),
}

impl From<TokenFault> for BusTokenError {
    fn from(fault: TokenFault) -> Self {
        Self::Fault(fault)
    }
}

impl BusTokenMode {
    /// A token for this audience. `presented` was verified just before, as `token`.
    pub(super) async fn token(
        &self,
        actor: &Actor,
        presented: &PresentedToken,
        token: &AccessToken,
        audience: &str,
    ) -> Result<String, BusTokenError> {
        match self {
            Self::Mint(issuer) => Ok(mint(issuer, actor, token, audience)?),
            Self::Exchange(exchange) => exchange.token(actor, presented, audience).await,
        }
    }
}

/// Mints a token that lives no longer than the caller's own.
fn mint(issuer: &TokenIssuer, actor: &Actor, token: &AccessToken, audience: &str) -> Result<String, TokenFault> {
    let now_s = SystemClock.now_s();
    let mut request = IssueRequest::new(&token.subject, audience, now_s);
    request.actor = Some(actor.name.clone());
    request.roles = token.roles.clone();
    request.ttl_s = LIFE_S.min(token.expires_at.saturating_sub(now_s));
    // Bound to the agent's key, so it is of no use to anyone who sees it on the bus.
    request.cnf = Some(Confirmation { kid: Some(actor.kid.clone()), jkt: None });
    issuer.issue(&request).map_err(|error| TokenFault::Other(error.into()))
}

impl Exchange {
    pub(super) fn new(endpoint: TokenExchange, actor: Arc<dyn TokenSource>) -> Self {
        Self { endpoint, actor, known: tokio::sync::Mutex::default(), permits: Semaphore::new(EXCHANGES) }
    }

    /// Exchanges the caller's token at its issuer. Each caller has only one exchange at a time for a service, so it delays nobody else.
    async fn token(&self, actor: &Actor, presented: &PresentedToken, audience: &str) -> Result<String, BusTokenError> {
        let actor_token = self.actor_token().await?;
        if let Some(ago_s) = expired_s(&actor_token, SystemClock.now_s()) {
            // The issuer would answer `invalid_grant`, as if the caller's token were at fault.
            tracing::warn!(target: "sealwire::gateway", ago_s, "the agent's own token has expired: no token can be exchanged");
            return Err(TokenFault::Expired { ago_s }.into());
        }
        let _permit = self.permits.acquire().await.map_err(|error| TokenFault::Other(error.into()))?;
        let subject = &presented.token.subject;
        let request = ExchangeRequest {
            subject_token: &presented.text,
            actor_token: &actor_token,
            audience,
            subject,
            actor: &actor.name,
            now_s: SystemClock.now_s(),
        };
        let error = match self.endpoint.ask(request).await {
            Ok(token) => return Ok(token),
            Err(error) => error,
        };
        tracing::warn!(target: "sealwire::gateway", subject, audience, %error, "the token exchange failed");
        Err(match &error {
            // RFC 6749 §5.2, RFC 8693 §2.2.2. All other errors concern the gateway.
            ExchangeError::Refused(why) => match why.as_str() {
                "invalid_grant" => BusTokenError::Invalid,
                "invalid_target" | "invalid_scope" | "access_denied" => BusTokenError::Forbidden,
                _ => TokenFault::Other(Box::new(error)).into(),
            },
            _ => TokenFault::Other(Box::new(error)).into(),
        })
    }

    /// The agent's token. Its issuer judges whether it is valid.
    async fn actor_token(&self) -> Result<Zeroizing<String>, TokenFault> {
        // Held while fetching, so that concurrent callers wait instead of running the command again.
        let mut known = self.known.lock().await;
        if let Some((token, since)) = known.as_ref()
            && since.elapsed() < ACTOR
        {
            return Ok(token.clone());
        }
        let token = Zeroizing::new(self.actor.fetch().await?.trim().to_owned());
        *known = Some((token.clone(), Instant::now()));
        Ok(token)
    }
}

/// How long ago a token expired, by its own `exp`.
fn expired_s(token: &str, now_s: u64) -> Option<u64> {
    let expires_s = decode_untrusted(token).ok()?.claims.get("exp")?.as_u64()?;
    (expires_s <= now_s).then(|| now_s - expires_s)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn a_token_says_itself_that_it_has_expired() {
        let issuer = TokenIssuer::generate("https://idp.example").unwrap();
        let mut request = IssueRequest::new("planner", "https://idp.example", 1_000_000);
        request.ttl_s = 300;
        let token = issuer.issue(&request).unwrap();
        assert_eq!(expired_s(&token, 1_000_299), None);
        assert_eq!(expired_s(&token, 1_000_300), Some(0));
        assert_eq!(expired_s(&token, 1_000_360), Some(60));
        assert_eq!(expired_s("opaque", 1_000_360), None, "its issuer knows");
    }
}
