//! Authenticates callers, and gets the tokens for their calls: the agent's own, or one made for the caller.
//! Never passes a caller's token on, except to its issuer, and never gets a token for anyone whose own was not verified just before.

use std::fmt::{self, Write as _};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use hyper::StatusCode;
use hyper::header::{AUTHORIZATION, HeaderValue, WWW_AUTHENTICATE};
use hyper::http::request::Parts;
use moka::sync::Cache;
use sealwire::auth::{
    AccessToken, Confirmation, Denylist, DpopProof, ExchangeError, ExchangeRequest, FileTrust, IssueRequest,
    SecretFileError, TokenError, TokenExchange, TokenIssuer, TokenVerifier, decode_untrusted, read_public, read_secret,
};
use sealwire::client::{Client, Credentials, FetchedToken, RequestBuilder, TokenFault, TokenSource, Tokens};
use sealwire::rpc::code;
use sealwire::{Clock as _, LogLimiter, SystemClock, TokensConfig};
use serde::Serialize;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tokio::sync::Semaphore;
use zeroize::Zeroizing;

use super::config::{DoorConfig, Dpop, Expose, Identity};
use super::dpop::{self, Proofs, Unproved};
use super::gate::single;
use super::principal::Principal;
use super::refusal::Refusal;
use super::ws::{Granted, Ticket, Tickets};
use crate::once::Once;
use crate::seal::{Seal, SealError};

/// The longest life of a token for the bus, in seconds. A revoked caller can go on with what it has begun for at most as long.
const LIFE_S: u64 = 300;
/// The longest token, as for services.
const TOKEN_BYTES: usize = 4 << 10;
/// Concurrent exchanges. Others wait, at most as long as for any token.
const EXCHANGES: usize = 64;
/// How long the agent's token is used before it is fetched again.
const ACTOR: Duration = Duration::from_secs(5);
/// How many tokens for the bus are cached. Any other is made again.
const KEPT: u64 = 10_000;

/// How callers are identified.
#[derive(Debug)]
pub(super) enum Callers {
    /// All are the door's agent.
    Own(Arc<str>),
    /// By the tokens they present.
    Shown(Arc<Minting>),
}

/// Everything needed to identify callers by their tokens.
pub(super) struct Minting {
    verifier: TokenVerifier,
    way: Way,
    /// The agent that acts for the callers, and the id of its key.
    agent: String,
    kid: String,
    environment: String,
    scopes: bool,
    dpop: Dpop,
    proofs: Proofs,
    tickets: Tickets,
    url: String,
    issuers: Vec<String>,
    services: Vec<String>,
    kept: Cache<([u8; 32], String), Tokens>,
    /// Limits log lines about refused tokens, which anyone can send.
    refused: LogLimiter,
    read: Files,
}

/// Where the tokens for the bus come from.
#[derive(Debug)]
enum Way {
    /// The door mints them.
    Mint(TokenIssuer),
    /// The issuer of the callers' tokens exchanges them.
    Exchange(Exchange),
}

/// Everything needed to have tokens exchanged.
#[derive(Debug)]
struct Exchange {
    endpoint: TokenExchange,
    /// The source of the agent's own token.
    actor: Arc<dyn TokenSource>,
    /// The agent's token, and when it was fetched.
    known: tokio::sync::Mutex<Option<(Zeroizing<String>, Instant)>>,
    /// Limits concurrent exchanges.
    places: Semaphore,
}

/// The issuer does not exchange the caller's token. Holds what the caller is told.
#[derive(Debug, thiserror::Error)]
#[error("the token was not exchanged")]
pub(super) struct NotExchanged {
    status: StatusCode,
    challenges: Vec<HeaderValue>,
}

/// Files that are reread when they change.
struct Files {
    tokens: TokensConfig,
    denylist: Option<PathBuf>,
    seen: Mutex<Vec<Option<(SystemTime, u64)>>>,
}

/// A token that a caller has presented, verified.
pub(super) struct Shown {
    text: Zeroizing<String>,
    digest: [u8; 32],
    scheme: Scheme,
    pub(super) token: Arc<AccessToken>,
}

/// Why the door cannot authenticate callers.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallersError {
    /// The key that signs the door's tokens.
    #[error(transparent)]
    Key(#[from] sealwire::auth::IssueError),
    /// One key would be used for two purposes.
    #[error("`card_key` is the key of the door's tokens: make another one for cards")]
    SharedKey,
    /// The issuers of callers' tokens.
    #[error("`[door.tokens]`: {0}")]
    Tokens(#[from] sealwire::ConfigError),
    /// The denylist.
    #[error(transparent)]
    Denylist(#[from] sealwire::auth::DenylistError),
    /// The endpoint that exchanges tokens.
    #[error("`identity`: {0}")]
    Exchange(#[from] sealwire::auth::ExchangeError),
    /// A file that `identity` names.
    #[error(transparent)]
    File(#[from] SecretFileError),
    /// The agent has no token of its own.
    #[error(transparent)]
    Credentials(#[from] sealwire::client::CredentialsError),
    /// The key that seals nonces and tickets.
    #[error(transparent)]
    Seal(#[from] SealError),
    /// The address where callers find the door.
    #[error("`public_url` is not a valid address")]
    Url,
}

/// The authentication scheme of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scheme {
    /// Whoever has the token may use it (RFC 6750).
    Bearer,
    /// With a proof of the key that it is bound to (RFC 9449 §7.1).
    Dpop,
}

impl Callers {
    /// Reads the files that the configuration names. Issuers' keys that are not in a file are fetched, now and again later.
    ///
    /// If callers have tokens, the returned credentials are without the agent's own, so that nothing can be sent with it by mistake.
    pub(super) async fn new(
        config: &DoorConfig,
        credentials: Credentials,
        once: &Arc<Once>,
    ) -> Result<(Self, Credentials), CallersError> {
        let agent = credentials.agent().to_string();
        let (way, scopes, dpop) = match &config.identity {
            Identity::Own {} => return Ok((Self::Own(agent.into()), credentials)),
            Identity::Mint { key, scopes, dpop } => (Way::Mint(TokenIssuer::load(key)?), scopes, dpop),
            Identity::Exchange { token_endpoint, client_id, client_secret, tls_ca, http_on_loopback, scopes, dpop } => {
                let secret = read_secret(client_secret)?;
                let anchors = tls_ca.as_deref().map(read_public).transpose()?;
                let client = (client_id.as_str(), secret.as_str());
                let endpoint = TokenExchange::new(token_endpoint, client, anchors.as_deref(), *http_on_loopback)?;
                let (actor, places) = (credentials.tokens()?, Semaphore::new(EXCHANGES));
                let exchange = Exchange { endpoint, actor, known: tokio::sync::Mutex::default(), places };
                (Way::Exchange(exchange), scopes, dpop)
            }
        };
        let (url, tokens) = (config.public_url.clone().unwrap_or_default(), config.tokens.clone());
        let tokens = tokens.ok_or(sealwire::ConfigError::NoIssuer)?;
        let read = Files { denylist: config.denylist.clone(), seen: Mutex::default(), tokens };
        *read.lock() = read.marks();
        let verifier = read.tokens.verifier(&url, &FileTrust::default()).await?;
        verifier.replace_denylist(read.denylist()?);
        let minting = Minting {
            verifier,
            way,
            agent,
            kid: credentials.kid().to_owned(),
            environment: credentials.environment().to_string(),
            scopes: *scopes,
            dpop: *dpop,
            proofs: Proofs::new(&url, Seal::of(config.seal_key.as_deref())?, Arc::clone(once))
                .ok_or(CallersError::Url)?,
            tickets: Tickets::new(Seal::of(config.seal_key.as_deref())?, Arc::clone(once), config.seal_key.is_some()),
            url,
            issuers: read.tokens.issuer.iter().map(|issuer| issuer.issuer.clone()).collect(),
            services: config.expose.iter().map(|expose| expose.service.to_string()).collect(),
            kept: Cache::builder().max_capacity(KEPT).time_to_live(Duration::from_secs(LIFE_S)).build(),
            refused: LogLimiter::default(),
            read,
        };
        Ok((Self::Shown(Arc::new(minting)), credentials.token_source(Nobody)))
    }

    /// Authenticates the sender of a request.
    pub(super) async fn know(&self, head: &Parts) -> Result<Principal, Refusal> {
        match self {
            Self::Own(agent) => Ok(Principal::own(Arc::clone(agent))),
            Self::Shown(minting) => Box::pin(minting.know(head)).await,
        }
    }

    /// Whether the caller may use this service.
    pub(super) fn admits(&self, principal: &Principal, expose: &Expose) -> Result<(), Refusal> {
        let (Self::Shown(minting), Some(shown)) = (self, &principal.shown) else { return Ok(()) };
        if !minting.scopes || shown.has_scope(expose.service.as_str()) {
            return Ok(());
        }
        let refusal =
            Refusal::new(StatusCode::FORBIDDEN, code::UNAUTHENTICATED, "the token's `scope` does not name the service");
        let path = format!("/mcp/{}", expose.service);
        Err(minting.challenged(refusal, &path, shown.scheme, "error=\"insufficient_scope\", "))
    }

    /// A ticket that opens a WebSocket to this service for the caller.
    pub(super) fn ticket(&self, principal: &Principal, expose: &Expose, head: &Parts) -> Result<Granted, Refusal> {
        let (Self::Shown(minting), Some(shown)) = (self, &principal.shown) else {
            return Err(Refusal::not_found("callers have no tokens here, so sockets need no ticket"));
        };
        let (path, is_proved) = (format!("/rpc/{}/ws", expose.service), shown.scheme == Scheme::Dpop);
        minting.tickets.grant(head, &path, &shown.text, is_proved, shown.token.expires_at)
    }

    /// A name for the caller with its token: two tokens of one caller may have different rights.
    pub(super) fn name(&self, principal: &Principal) -> Arc<str> {
        let Some(shown) = &principal.shown else { return principal.name() };
        let mut name = format!("{} ", principal.as_str());
        for byte in &shown.digest {
            // Writing to a `String` cannot fail.
            let _ = write!(name, "{byte:02x}");
        }
        name.into()
    }

    /// The refusal of a caller that may use no service at all.
    pub(super) fn admits_nowhere(&self, principal: &Principal) -> Refusal {
        let (Self::Shown(minting), Some(shown)) = (self, &principal.shown) else {
            return Refusal::not_found("no service is exposed here");
        };
        let message = "the token's `scope` names none of the services";
        let refusal = Refusal::new(StatusCode::FORBIDDEN, code::UNAUTHENTICATED, message);
        minting.challenged(refusal, "/mcp", shown.scheme, "error=\"insufficient_scope\", ")
    }

    /// Whether the caller's token is still valid: it may have expired or been revoked.
    pub(super) fn holds(&self, principal: &Principal) -> bool {
        match (self, &principal.shown) {
            (Self::Shown(minting), Some(shown)) => minting.verify(shown).is_ok(),
            _ => true,
        }
    }

    /// A request to the service, on behalf of the caller.
    pub(super) fn request(&self, client: &Client, principal: &Principal, expose: &Expose) -> RequestBuilder {
        let service = expose.service.as_str();
        let mut request = client.request(service).deadline(expose.timeout());
        if let Some(observer) = principal.observer() {
            request = request.observer(observer);
        }
        let (Self::Shown(minting), Some(shown)) = (self, &principal.shown) else { return request };
        let tokens = minting.kept.get_with((shown.digest, service.to_owned()), || {
            let audience = expose.audience.clone().unwrap_or_else(|| format!("{}/{service}", minting.environment));
            client.tokens(Minted { minting: Arc::clone(minting), shown: Arc::clone(shown), audience })
        });
        // One caller must not use up all that this client may have open.
        request.tokens(&tokens).share(principal.name())
    }

    /// Whether callers present tokens; otherwise all of them are the agent.
    pub(super) fn have_tokens(&self) -> bool {
        matches!(self, Self::Shown(_))
    }

    /// Whether the door's tokens are signed with the key of this id.
    pub(super) fn sign_with(&self, kid: &str) -> bool {
        matches!(self, Self::Shown(minting) if matches!(&minting.way, Way::Mint(issuer) if issuer.kid() == kid))
    }

    /// RFC 9728: the metadata that callers need to get a token.
    ///
    /// `about` is the path they want to call, which follows the path of this document. A token is for the whole door, so `resource`, which
    /// `aud` names, is always the same; clients accept it for the addresses below it.
    pub(super) fn metadata(&self, about: &str) -> Option<Vec<u8>> {
        #[derive(Serialize)]
        struct Metadata<'a> {
            resource: &'a str,
            authorization_servers: &'a [String],
            #[serde(skip_serializing_if = "<[_]>::is_empty")]
            scopes_supported: &'a [String],
            bearer_methods_supported: &'static [&'static str],
            #[serde(skip_serializing_if = "Vec::is_empty")]
            dpop_signing_alg_values_supported: Vec<&'static str>,
            #[serde(skip_serializing_if = "std::ops::Not::not")]
            dpop_bound_access_tokens_required: bool,
            resource_name: String,
        }
        let Self::Shown(minting) = self else { return None };
        let scopes = minting.scopes_of(about)?;
        let metadata = Metadata {
            resource: &minting.url,
            authorization_servers: &minting.issuers,
            scopes_supported: if minting.scopes { scopes } else { &[] },
            bearer_methods_supported: if minting.dpop == Dpop::Require { &[] } else { &["header"] },
            dpop_signing_alg_values_supported: if minting.dpop == Dpop::Off {
                Vec::new()
            } else {
                DpopProof::ALGORITHMS.split(' ').collect()
            },
            dpop_bound_access_tokens_required: minting.dpop == Dpop::Require,
            resource_name: format!("{} of {}", minting.agent, minting.environment),
        };
        serde_json::to_vec(&metadata).ok()
    }

    /// Rereads files that have changed.
    pub(super) async fn refresh(&self) {
        if let Self::Shown(minting) = self {
            let minting = Arc::clone(minting);
            // If a file cannot be read, its previous contents stay in force.
            drop(tokio::task::spawn_blocking(move || minting.refresh()).await);
        }
    }
}

impl Minting {
    async fn know(&self, head: &Parts) -> Result<Principal, Refusal> {
        if !head.headers.contains_key(AUTHORIZATION)
            && let Some(ticket) = self.tickets.open(head)
        {
            return self.ticketed(head, ticket).await;
        }
        let (principal, path) = (Principal::of(self.shown(head)?), head.uri.path());
        let Some(shown) = principal.shown.as_deref().filter(|shown| shown.scheme == Scheme::Dpop) else {
            return Ok(principal);
        };
        let thumbprint = shown.token.cnf.as_ref().and_then(|cnf| cnf.jkt.as_deref()).unwrap_or_default();
        // Before anything is counted, so that a token stolen without its key uses up nothing of its owner's quota.
        match self.proofs.judge(head, principal.as_str(), &shown.digest, thumbprint).await {
            Ok(()) => Ok(principal),
            Err(Unproved::Refused(refusal)) => Err(refusal),
            Err(Unproved::Invalid(why)) => {
                Err(self.challenged(unauthenticated(why), path, Scheme::Dpop, "error=\"invalid_dpop_proof\", "))
            }
            Err(Unproved::Nonce(nonce)) => {
                let refusal = unauthenticated("the proof needs the nonce in `DPoP-Nonce`");
                let refusal = self.challenged(refusal, path, Scheme::Dpop, "error=\"use_dpop_nonce\", ");
                Err(match HeaderValue::try_from(nonce) {
                    Ok(nonce) => refusal.with(dpop::NONCE, nonce),
                    Err(_) => refusal,
                })
            }
        }
    }

    /// Authenticates a handshake by its ticket.
    async fn ticketed(&self, head: &Parts, ticket: Result<Ticket, Option<Refusal>>) -> Result<Principal, Refusal> {
        let wrong = |refusal: Option<Refusal>, scheme| {
            let refused = || {
                let refusal =
                    unauthenticated("the ticket is not valid here: it was used, has expired, or is for another use");
                self.challenged(refusal, head.uri.path(), scheme, "error=\"invalid_token\", ")
            };
            refusal.unwrap_or_else(refused)
        };
        let ticket = ticket.map_err(|refusal| wrong(refusal, Scheme::Bearer))?;
        // The key was proved when the ticket was requested.
        let scheme = if ticket.is_proved { Scheme::Dpop } else { Scheme::Bearer };
        if !self.takes(scheme) {
            return Err(wrong(None, scheme));
        }
        let principal = Principal::of(self.verified(head, &ticket.token, scheme)?);
        let spent = self.tickets.spend(&ticket, principal.as_str()).await;
        spent.map_err(|refusal| wrong(refusal, scheme))?;
        Ok(principal)
    }

    /// The token of a request, verified, with its scheme.
    fn shown(&self, head: &Parts) -> Result<Shown, Refusal> {
        let Some(authorization) = single(&head.headers, &AUTHORIZATION)? else {
            let refusal = unauthenticated("a token is required");
            return Err(self.challenged(refusal, head.uri.path(), Scheme::Bearer, ""));
        };
        let (name, token) = authorization.split_once(' ').unwrap_or_default();
        let scheme =
            [Scheme::Bearer, Scheme::Dpop].into_iter().find(|scheme| scheme.as_str().eq_ignore_ascii_case(name));
        let wrong = |message| {
            let scheme = scheme.unwrap_or(Scheme::Bearer);
            self.challenged(unauthenticated(message), head.uri.path(), scheme, "error=\"invalid_token\", ")
        };
        let scheme = match (scheme, self.dpop) {
            (Some(scheme), _) if self.takes(scheme) => scheme,
            (_, Dpop::Require) => return Err(wrong("`Authorization` must be `DPoP` and a token")),
            _ => return Err(wrong("`Authorization` must be `Bearer` and a token")),
        };
        self.verified(head, token, scheme)
    }

    fn takes(&self, scheme: Scheme) -> bool {
        match scheme {
            Scheme::Bearer => self.dpop != Dpop::Require,
            Scheme::Dpop => self.dpop != Dpop::Off,
        }
    }

    /// Verifies this token, and that it may be used with this scheme.
    fn verified(&self, head: &Parts, token: &str, scheme: Scheme) -> Result<Shown, Refusal> {
        let wrong =
            |message| self.challenged(unauthenticated(message), head.uri.path(), scheme, "error=\"invalid_token\", ");
        if token.len() > TOKEN_BYTES {
            return Err(wrong("the token is not valid"));
        }
        let (text, digest) = (Zeroizing::new(token.to_owned()), Sha256::digest(token).into());
        let verified = self.verifier.verify(token, &digest, SystemClock.now_s());
        let token = verified.map_err(|error| {
            // The caller is not told what is wrong: that concerns the issuer, and would help an attacker.
            if let Some(suppressed) = self.refused.check() {
                tracing::info!(target: "sealwire::door", %error, suppressed, "a token was refused");
            }
            wrong("the token is not valid")
        })?;
        // Delegated tokens, and tokens of the door itself.
        if token.actor.is_some() || token.subject == self.agent {
            return Err(wrong("a token of this kind is not accepted here"));
        }
        match (&token.cnf, scheme) {
            (None, Scheme::Bearer) | (Some(Confirmation { jkt: Some(_), kid: None }), Scheme::Dpop) => {}
            (None, Scheme::Dpop) => return Err(wrong("the token is not bound to a key")),
            // RFC 9449 §7.2: otherwise a thief would leave out the proof. Keys of any other kind (`kid`) cannot be proved here.
            (Some(_), _) => return Err(wrong("a token bound to a key is not accepted this way")),
        }
        Ok(Shown { text, digest, scheme, token })
    }

    fn verify(&self, shown: &Shown) -> Result<Arc<AccessToken>, TokenError> {
        self.verifier.verify(&shown.text, &shown.digest, SystemClock.now_s())
    }

    /// A token for the bus, which says that the agent acts on behalf of the caller.
    async fn made(&self, shown: &Shown, audience: &str) -> Result<String, TokenFault> {
        // The token was verified when it came in, but with leeway: it may have expired, or been revoked since.
        let Some(token) = self.verify(shown).ok().filter(|token| token.expires_at > SystemClock.now_s()) else {
            return Err(self.not_exchanged(shown, StatusCode::UNAUTHORIZED, "error=\"invalid_token\", "));
        };
        match &self.way {
            Way::Mint(issuer) => self.mint(issuer, &token, audience),
            Way::Exchange(exchange) => self.exchanged(exchange, shown, audience).await,
        }
    }

    /// Exchanges the caller's token at its issuer. Each caller has only one exchange at a time for a service, so it delays nobody else.
    async fn exchanged(&self, exchange: &Exchange, shown: &Shown, audience: &str) -> Result<String, TokenFault> {
        let actor = exchange.actor_token().await?;
        if let Some(ago_s) = expired_s(&actor, SystemClock.now_s()) {
            // The issuer would answer `invalid_grant`, as if the caller's token were at fault.
            tracing::warn!(target: "sealwire::door", ago_s, "the agent's own token has expired: no token can be exchanged");
            return Err(TokenFault::Expired { ago_s });
        }
        let _place = exchange.places.acquire().await.map_err(|error| TokenFault::Other(error.into()))?;
        let request = ExchangeRequest {
            subject_token: &shown.text,
            actor_token: &actor,
            audience,
            subject: &shown.token.subject,
            actor: &self.agent,
            now_s: SystemClock.now_s(),
        };
        let error = match exchange.endpoint.ask(request).await {
            Ok(token) => return Ok(token),
            Err(error) => error,
        };
        tracing::warn!(target: "sealwire::door", subject = shown.token.subject, audience, %error, "the token exchange failed");
        let refused = match &error {
            // RFC 6749 §5.2, RFC 8693 §2.2.2. All other errors concern the door.
            ExchangeError::Refused(why) => match why.as_str() {
                "invalid_grant" => Some((StatusCode::UNAUTHORIZED, "error=\"invalid_token\", ")),
                "invalid_target" | "invalid_scope" | "access_denied" => Some((StatusCode::FORBIDDEN, "")),
                _ => None,
            },
            _ => None,
        };
        Err(match refused {
            Some((status, wrong)) => self.not_exchanged(shown, status, wrong),
            None => TokenFault::Other(Box::new(error)),
        })
    }

    /// The caller needs another token.
    fn not_exchanged(&self, shown: &Shown, status: StatusCode, wrong: &str) -> TokenFault {
        let challenges = self.challenges("", shown.scheme, wrong);
        TokenFault::Other(Box::new(NotExchanged { status, challenges }))
    }

    /// Mints a token that lives no longer than the caller's own.
    fn mint(&self, issuer: &TokenIssuer, token: &AccessToken, audience: &str) -> Result<String, TokenFault> {
        let now_s = SystemClock.now_s();
        let mut request = IssueRequest::new(&token.subject, audience, now_s);
        request.actor = Some(self.agent.clone());
        request.roles = token.roles.clone();
        request.ttl_s = LIFE_S.min(token.expires_at.saturating_sub(now_s));
        // Bound to the agent's key, so it is of no use to anyone who sees it on the bus.
        request.cnf = Some(Confirmation { kid: Some(self.kid.clone()), jkt: None });
        issuer.issue(&request).map_err(|error| TokenFault::Other(error.into()))
    }

    /// The scopes for this path; `None` if clients look for no metadata under this path.
    fn scopes_of(&self, path: &str) -> Option<&[String]> {
        match path.strip_prefix("/mcp") {
            None if path.is_empty() => Some(&self.services),
            Some("") => Some(&self.services),
            Some(service) => {
                let service = service.strip_prefix('/')?;
                self.services.iter().find(|exposed| *exposed == service).map(std::slice::from_ref)
            }
            None => None,
        }
    }

    /// RFC 6750 §3, RFC 9449 §7.1, RFC 9728 §5.1: adds a challenge for each scheme. That of the scheme in use says what is wrong.
    fn challenged(&self, refusal: Refusal, path: &str, used: Scheme, wrong: &str) -> Refusal {
        let challenges = self.challenges(path, used, wrong).into_iter();
        challenges.fold(refusal, |refusal, challenge| refusal.with(WWW_AUTHENTICATE, challenge))
    }

    fn challenges(&self, path: &str, used: Scheme, wrong: &str) -> Vec<HeaderValue> {
        let schemes: &[Scheme] = match self.dpop {
            Dpop::Off => &[Scheme::Bearer],
            Dpop::Accept => &[Scheme::Bearer, Scheme::Dpop],
            Dpop::Require => &[Scheme::Dpop],
        };
        let (scopes, path) = match self.scopes_of(path).filter(|_| path.starts_with("/mcp")) {
            // The scope is the service's name; what the caller may do there is up to the policy.
            Some(scopes) if self.scopes => (format!("scope=\"{}\", ", scopes.join(" ")), path),
            Some(_) => (String::new(), path),
            None => (String::new(), ""),
        };
        let challenge = |scheme: &Scheme| {
            let wrong = if schemes.len() == 1 || *scheme == used { wrong } else { "" };
            let algs = match scheme {
                Scheme::Bearer => String::new(),
                Scheme::Dpop => format!("algs=\"{}\", ", DpopProof::ALGORITHMS),
            };
            let (name, url) = (scheme.as_str(), &self.url);
            let text = format!("{name} {wrong}{scopes}{algs}resource_metadata=\"{url}{METADATA}{path}\"");
            HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static(name))
        };
        schemes.iter().map(challenge).collect()
    }

    fn refresh(&self) {
        let now = self.read.marks();
        let has_changed = std::mem::replace(&mut *self.read.lock(), now.clone()) != now;
        if !has_changed {
            return;
        }
        let told = |what: &'static str, outcome: Result<(), String>| match outcome {
            Ok(()) => tracing::info!(target: "sealwire::door", what, "read again"),
            Err(reason) => {
                tracing::warn!(target: "sealwire::door", what, %reason, "cannot be read; the last one stays in force");
                // So that the next refresh tries again.
                self.read.lock().clear();
            }
        };
        let denylist = self.read.denylist().map(|denylist| self.verifier.replace_denylist(denylist));
        told("denylist", denylist.map_err(|error| error.to_string()));
        let keys = self.read.tokens.keys(&FileTrust::default()).map(|keys| self.verifier.replace_keys(keys));
        told("token keys", keys.map_err(|error| error.to_string()));
    }
}

/// RFC 9728 §3.
pub(super) const METADATA: &str = "/.well-known/oauth-protected-resource";

impl Files {
    fn denylist(&self) -> Result<Denylist, sealwire::auth::DenylistError> {
        self.denylist.as_ref().map_or_else(|| Ok(Denylist::default()), Denylist::from_file)
    }

    /// The modification time and size of each file.
    fn marks(&self) -> Vec<Option<(SystemTime, u64)>> {
        let jwks = self.tokens.issuer.iter().filter_map(|issuer| issuer.jwks.as_ref());
        let mark = |path: &PathBuf| {
            let metadata = std::fs::metadata(path).ok()?;
            Some((metadata.modified().ok()?, metadata.len()))
        };
        self.denylist.iter().chain(jwks).map(mark).collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Option<(SystemTime, u64)>>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shown {
    /// Whether `scope` or `scp`, words in a string or, with some providers, a list, names the service.
    fn has_scope(&self, service: &str) -> bool {
        match self.token.claims.get("scope").or_else(|| self.token.claims.get("scp")) {
            Some(Value::String(words)) => words.split(' ').any(|word| word == service),
            Some(Value::Array(words)) => words.iter().any(|word| word == service),
            _ => false,
        }
    }
}

impl Exchange {
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

impl NotExchanged {
    pub(super) fn refusal(&self) -> Refusal {
        let message = match self.status {
            StatusCode::UNAUTHORIZED => "the token's issuer no longer accepts it",
            _ => "the token's issuer does not let its bearer use the service",
        };
        let refusal = Refusal::new(self.status, code::UNAUTHENTICATED, message).not_sent();
        let challenges = self.challenges.iter();
        challenges.fold(refusal, |refusal, challenge| refusal.with(WWW_AUTHENTICATE, challenge.clone()))
    }
}

/// The tokens of one caller for one service.
#[derive(Debug)]
struct Minted {
    minting: Arc<Minting>,
    shown: Arc<Shown>,
    audience: String,
}

impl TokenSource for Minted {
    fn fetch(&self) -> FetchedToken<'_> {
        Box::pin(self.minting.made(&self.shown, &self.audience))
    }
}

/// Has no token: every call is made for a caller.
#[derive(Debug)]
struct Nobody;

impl TokenSource for Nobody {
    fn fetch(&self) -> FetchedToken<'_> {
        Box::pin(async { Err(TokenFault::Other("the door calls on behalf of others only".into())) })
    }
}

impl fmt::Debug for Minting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Minting").field("way", &self.way).field("agent", &self.agent).finish_non_exhaustive()
    }
}

impl fmt::Debug for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shown").field("subject", &self.token.subject).finish_non_exhaustive()
    }
}

impl Scheme {
    fn as_str(self) -> &'static str {
        match self {
            Self::Bearer => "Bearer",
            Self::Dpop => "DPoP",
        }
    }
}

/// How long ago a token expired, by its own `exp`.
fn expired_s(token: &str, now_s: u64) -> Option<u64> {
    let expires_s = decode_untrusted(token).ok()?.claims.get("exp")?.as_u64()?;
    (expires_s <= now_s).then(|| now_s - expires_s)
}

/// The refusal of a caller that is not authenticated.
fn unauthenticated(message: &'static str) -> Refusal {
    Refusal::new(StatusCode::UNAUTHORIZED, code::UNAUTHENTICATED, message)
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
