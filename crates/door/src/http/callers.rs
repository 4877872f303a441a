//! Whom the door takes a caller for, and what its calls are signed with: the agent's own token, or one made for the caller.
//! Never hands a caller's token on but to its issuer, and never has one made for somebody who has not just shown that he is the one.

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

/// The longest life of a token for the bus, in seconds: as long may a caller that was revoked go on with what it has begun.
const LIFE_S: u64 = 300;
/// The longest token, as of services.
const TOKEN_BYTES: usize = 4 << 10;
/// Exchanges at a time. Others wait, at most as long as for any token.
const EXCHANGES: usize = 64;
/// For how long the agent's token is not had again.
const ACTOR: Duration = Duration::from_secs(5);
/// Callers' tokens for the bus that are kept. One that is not is made again.
const KEPT: u64 = 10_000;

/// Who callers are.
#[derive(Debug)]
pub(super) enum Callers {
    /// The door's agent.
    Own(Arc<str>),
    /// Who their tokens say.
    Shown(Arc<Minting>),
}

/// What is needed to know callers by their tokens.
pub(super) struct Minting {
    verifier: TokenVerifier,
    way: Way,
    /// Who acts for the callers, and the key that it signs with.
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
    /// How often the log hears of what anybody can send.
    refused: LogLimiter,
    read: Files,
}

/// Where the tokens for the bus come from.
#[derive(Debug)]
enum Way {
    /// The door makes them.
    Mint(TokenIssuer),
    /// The issuer of the callers' tokens exchanges those.
    Exchange(Exchange),
}

/// What is needed to have tokens exchanged.
#[derive(Debug)]
struct Exchange {
    endpoint: TokenExchange,
    /// The agent's own.
    actor: Arc<dyn TokenSource>,
    /// The agent's token, and when it was had.
    known: tokio::sync::Mutex<Option<(Zeroizing<String>, Instant)>>,
    /// Those that are asked for at a time.
    places: Semaphore,
}

/// None can be had for the one that a caller has shown: what the caller is told.
#[derive(Debug, thiserror::Error)]
#[error("the token is not exchanged")]
pub(super) struct NotExchanged {
    status: StatusCode,
    challenges: Vec<HeaderValue>,
}

/// What is read again when it changes.
struct Files {
    tokens: TokensConfig,
    denylist: Option<PathBuf>,
    seen: Mutex<Vec<Option<(SystemTime, u64)>>>,
}

/// What a caller has shown, verified.
pub(super) struct Shown {
    text: Zeroizing<String>,
    digest: [u8; 32],
    scheme: Scheme,
    pub(super) token: Arc<AccessToken>,
}

/// Why the door cannot know callers.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallersError {
    /// The key of the door's tokens.
    #[error(transparent)]
    Key(#[from] sealwire::auth::IssueError),
    /// One key is for two things.
    #[error("`card_key` is the key of the door's tokens: make another one for cards")]
    SharedKey,
    /// The issuers of callers' tokens.
    #[error("`[door.tokens]`: {0}")]
    Tokens(#[from] sealwire::ConfigError),
    /// The denylist.
    #[error(transparent)]
    Denylist(#[from] sealwire::auth::DenylistError),
    /// Where tokens are exchanged.
    #[error("`identity`: {0}")]
    Exchange(#[from] sealwire::auth::ExchangeError),
    /// A file that `identity` names.
    #[error(transparent)]
    File(#[from] SecretFileError),
    /// The agent has no token of its own.
    #[error(transparent)]
    Credentials(#[from] sealwire::client::CredentialsError),
    /// What seals nonces.
    #[error(transparent)]
    Seal(#[from] SealError),
    /// Where callers find the door.
    #[error("`public_url` is no address")]
    Url,
}

/// How a token is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scheme {
    /// By whoever has it (RFC 6750).
    Bearer,
    /// With a proof of the key that it is bound to (RFC 9449 §7.1).
    Dpop,
}

impl Callers {
    /// Reads what the configuration names. Keys of issuers that are no file are fetched, now and from then on.
    ///
    /// The credentials lose the agent's own token where callers have theirs: nothing can be sent with it by mistake.
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

    /// Who sends this.
    pub(super) async fn know(&self, head: &Parts) -> Result<Principal, Refusal> {
        match self {
            Self::Own(agent) => Ok(Principal::own(Arc::clone(agent))),
            Self::Shown(minting) => Box::pin(minting.know(head)).await,
        }
    }

    /// Whether it may come in for this service.
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

    /// What opens a socket to this service for the caller.
    pub(super) fn ticket(&self, principal: &Principal, expose: &Expose, head: &Parts) -> Result<Granted, Refusal> {
        let (Self::Shown(minting), Some(shown)) = (self, &principal.shown) else {
            return Err(Refusal::not_found("callers have no tokens here, and sockets need no ticket"));
        };
        let (path, is_proved) = (format!("/rpc/{}/ws", expose.service), shown.scheme == Scheme::Dpop);
        minting.tickets.grant(head, &path, &shown.text, is_proved, shown.token.expires_at)
    }

    /// A name of what it has shown: two tokens of one caller may have other rights.
    pub(super) fn name(&self, principal: &Principal) -> Arc<str> {
        let Some(shown) = &principal.shown else { return principal.name() };
        let mut name = format!("{} ", principal.as_str());
        for byte in &shown.digest {
            // A text takes whatever is written.
            let _ = write!(name, "{byte:02x}");
        }
        name.into()
    }

    /// The refusal of whoever may come in for no service at all.
    pub(super) fn admits_nowhere(&self, principal: &Principal) -> Refusal {
        let (Self::Shown(minting), Some(shown)) = (self, &principal.shown) else {
            return Refusal::not_found("no service is exposed here");
        };
        let message = "the token's `scope` names none of the services";
        let refusal = Refusal::new(StatusCode::FORBIDDEN, code::UNAUTHENTICATED, message);
        minting.challenged(refusal, "/mcp", shown.scheme, "error=\"insufficient_scope\", ")
    }

    /// Whether what it has shown still holds: it may have expired, or been revoked.
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
        // One of them must not take all that this client may have open.
        request.tokens(&tokens).share(principal.name())
    }

    /// Whether they show tokens; else all of them are the agent.
    pub(super) fn have_tokens(&self) -> bool {
        matches!(self, Self::Shown(_))
    }

    /// Whether the door's tokens are signed with the key of this name.
    pub(super) fn sign_with(&self, kid: &str) -> bool {
        matches!(self, Self::Shown(minting) if matches!(&minting.way, Way::Mint(issuer) if issuer.kid() == kid))
    }

    /// RFC 9728: what callers need to know to get a token.
    ///
    /// `about`: the path of what they want to call, behind that of this document. A token is for all of the door, so `resource`, which `aud`
    /// names, is the same everywhere; clients take it for what is below it.
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

    /// Reads the files again that have changed.
    pub(super) async fn refresh(&self) {
        if let Self::Shown(minting) = self {
            let minting = Arc::clone(minting);
            // What cannot be read leaves in force what was.
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
        // Before anything is counted: a token that was stolen without its key uses up nothing of its owner's.
        match self.proofs.judge(head, principal.as_str(), &shown.digest, thumbprint).await {
            Ok(()) => Ok(principal),
            Err(Unproved::Refused(refusal)) => Err(refusal),
            Err(Unproved::Invalid(why)) => {
                Err(self.challenged(unauthenticated(why), path, Scheme::Dpop, "error=\"invalid_dpop_proof\", "))
            }
            Err(Unproved::Nonce(nonce)) => {
                let refusal = unauthenticated("the proof needs the nonce of `DPoP-Nonce`");
                let refusal = self.challenged(refusal, path, Scheme::Dpop, "error=\"use_dpop_nonce\", ");
                Err(match HeaderValue::try_from(nonce) {
                    Ok(nonce) => refusal.with(dpop::NONCE, nonce),
                    Err(_) => refusal,
                })
            }
        }
    }

    /// Who has asked for this ticket.
    async fn ticketed(&self, head: &Parts, ticket: Result<Ticket, Option<Refusal>>) -> Result<Principal, Refusal> {
        let wrong = |refusal: Option<Refusal>, scheme| {
            let refused = || {
                let refusal =
                    unauthenticated("the ticket is not good here: it was used, is over, or is for something else");
                self.challenged(refusal, head.uri.path(), scheme, "error=\"invalid_token\", ")
            };
            refusal.unwrap_or_else(refused)
        };
        let ticket = ticket.map_err(|refusal| wrong(refusal, Scheme::Bearer))?;
        // The key was proved when it was asked for.
        let scheme = if ticket.is_proved { Scheme::Dpop } else { Scheme::Bearer };
        if !self.takes(scheme) {
            return Err(wrong(None, scheme));
        }
        let principal = Principal::of(self.verified(head, &ticket.token, scheme)?);
        let spent = self.tickets.spend(&ticket, principal.as_str()).await;
        spent.map_err(|refusal| wrong(refusal, scheme))?;
        Ok(principal)
    }

    /// The token, verified, in the scheme that is for it.
    fn shown(&self, head: &Parts) -> Result<Shown, Refusal> {
        let Some(authorization) = single(&head.headers, &AUTHORIZATION)? else {
            let refusal = unauthenticated("a token is needed");
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

    /// This token, if it may be shown so.
    fn verified(&self, head: &Parts, token: &str, scheme: Scheme) -> Result<Shown, Refusal> {
        let wrong =
            |message| self.challenged(unauthenticated(message), head.uri.path(), scheme, "error=\"invalid_token\", ");
        if token.len() > TOKEN_BYTES {
            return Err(wrong("the token is not valid"));
        }
        let (text, digest) = (Zeroizing::new(token.to_owned()), Sha256::digest(token).into());
        let verified = self.verifier.verify(token, &digest, SystemClock.now_s());
        let token = verified.map_err(|error| {
            // To the caller all are one: what is wrong with a token is its issuer's business, and an attacker's.
            if let Some(suppressed) = self.refused.check() {
                tracing::info!(target: "sealwire::door", %error, suppressed, "a token was refused");
            }
            wrong("the token is not valid")
        })?;
        // Of somebody who acts for another one, and of the door itself.
        if token.actor.is_some() || token.subject == self.agent {
            return Err(wrong("a token of this kind is not taken here"));
        }
        match (&token.cnf, scheme) {
            (None, Scheme::Bearer) | (Some(Confirmation { jkt: Some(_), kid: None }), Scheme::Dpop) => {}
            (None, Scheme::Dpop) => return Err(wrong("the token is not bound to a key")),
            // RFC 9449 §7.2: else a thief would leave the proof out. Nor does anybody prove a key of another kind here.
            (Some(_), _) => return Err(wrong("a token that is bound to a key is not taken like this")),
        }
        Ok(Shown { text, digest, scheme, token })
    }

    fn verify(&self, shown: &Shown) -> Result<Arc<AccessToken>, TokenError> {
        self.verifier.verify(&shown.text, &shown.digest, SystemClock.now_s())
    }

    /// A token for the bus, in which the agent acts on behalf of the caller.
    async fn made(&self, shown: &Shown, audience: &str) -> Result<String, TokenFault> {
        // It has just been verified, with some leeway; none is left of its life, or it was revoked.
        let Some(token) = self.verify(shown).ok().filter(|token| token.expires_at > SystemClock.now_s()) else {
            return Err(self.not_exchanged(shown, StatusCode::UNAUTHORIZED, "error=\"invalid_token\", "));
        };
        match &self.way {
            Way::Mint(issuer) => self.mint(issuer, &token, audience),
            Way::Exchange(exchange) => self.exchanged(exchange, shown, audience).await,
        }
    }

    /// By the issuer of the caller's. Whoever has it asked for too often waits for itself: each has one asked for at a time.
    async fn exchanged(&self, exchange: &Exchange, shown: &Shown, audience: &str) -> Result<String, TokenFault> {
        let actor = exchange.actor_token().await?;
        if let Some(ago_s) = expired_s(&actor, SystemClock.now_s()) {
            // An issuer would call it an invalid grant, as if it were the caller's.
            tracing::warn!(target: "sealwire::door", ago_s, "the agent's own token has expired: nothing is exchanged");
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
        tracing::warn!(target: "sealwire::door", subject = shown.token.subject, audience, %error, "no token was had in exchange");
        let refused = match &error {
            // RFC 6749 §5.2, RFC 8693 §2.2.2. All others are about the door.
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

    /// By the door itself. It lives no longer than the caller's own.
    fn mint(&self, issuer: &TokenIssuer, token: &AccessToken, audience: &str) -> Result<String, TokenFault> {
        let now_s = SystemClock.now_s();
        let mut request = IssueRequest::new(&token.subject, audience, now_s);
        request.actor = Some(self.agent.clone());
        request.roles = token.roles.clone();
        request.ttl_s = LIFE_S.min(token.expires_at.saturating_sub(now_s));
        // Of no use to whoever sees it on the bus.
        request.cnf = Some(Confirmation { kid: Some(self.kid.clone()), jkt: None });
        issuer.issue(&request).map_err(|error| TokenFault::Other(error.into()))
    }

    /// Which scopes there are for what has this path; `None` if nothing that clients look for by its path has it.
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

    /// RFC 6750 §3, RFC 9449 §7.1, RFC 9728 §5.1: a challenge for each scheme, with what is wrong in that which was used; for what has
    /// this path.
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
            // What is behind the name is in the policy.
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
                // Tried again.
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

    /// What changes when a file does.
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
    /// `scope`, in words, or a list as some providers have it.
    fn has_scope(&self, service: &str) -> bool {
        match self.token.claims.get("scope").or_else(|| self.token.claims.get("scp")) {
            Some(Value::String(words)) => words.split(' ').any(|word| word == service),
            Some(Value::Array(words)) => words.iter().any(|word| word == service),
            _ => false,
        }
    }
}

impl Exchange {
    /// The agent's token. Its issuer says whether it is good.
    async fn actor_token(&self) -> Result<Zeroizing<String>, TokenFault> {
        // Whoever comes meanwhile waits instead of running a command, too.
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
            StatusCode::UNAUTHORIZED => "the token's issuer does not take it any more",
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

/// Has no token: everything is somebody's.
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

/// How long ago a token has expired, if it says so.
fn expired_s(token: &str, now_s: u64) -> Option<u64> {
    let expires_s = decode_untrusted(token).ok()?.claims.get("exp")?.as_u64()?;
    (expires_s <= now_s).then(|| now_s - expires_s)
}

/// The refusal of whoever is not known.
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
