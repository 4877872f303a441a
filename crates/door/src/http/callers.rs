//! Whom the door takes a caller for, and what its calls are signed with: the agent's own token, or one made for the caller.
//! Never hands a caller's token on, and never makes one for somebody who has not just shown that he is the one.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use hyper::StatusCode;
use hyper::header::{AUTHORIZATION, HeaderValue, WWW_AUTHENTICATE};
use hyper::http::request::Parts;
use moka::sync::Cache;
use sealwire::auth::{
    AccessToken, Confirmation, Denylist, FileTrust, IssueRequest, TokenError, TokenIssuer, TokenVerifier,
};
use sealwire::client::{Client, Credentials, FetchedToken, RequestBuilder, TokenFault, TokenSource, Tokens};
use sealwire::rpc::code;
use sealwire::{Clock as _, SystemClock, TokensConfig};
use serde::Serialize;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

use super::config::{DoorConfig, Expose, Identity};
use super::gate::single;
use super::principal::Principal;
use super::refusal::Refusal;

/// The longest life of a token for the bus, in seconds: as long may a caller that was revoked go on with what it has begun.
const LIFE_S: u64 = 300;
/// The longest token, as of services.
const TOKEN_BYTES: usize = 4 << 10;
/// Callers' tokens for the bus that are kept. One that is not is made again.
const KEPT: u64 = 10_000;

/// Who callers are.
#[derive(Debug)]
pub(super) enum Callers {
    /// The door's agent.
    Own(String),
    /// Who their tokens say.
    Shown(Arc<Minting>),
}

/// What is needed to know callers by their tokens.
pub(super) struct Minting {
    verifier: TokenVerifier,
    issuer: TokenIssuer,
    /// Who acts for the callers, and the key that it signs with.
    agent: String,
    kid: String,
    environment: String,
    scopes: bool,
    url: String,
    issuers: Vec<String>,
    services: Vec<String>,
    kept: Cache<([u8; 32], String), Tokens>,
    read: Files,
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
    pub(super) token: Arc<AccessToken>,
}

/// Why the door cannot know callers.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallersError {
    /// The key of the door's tokens.
    #[error(transparent)]
    Key(#[from] sealwire::auth::IssueError),
    /// The issuers of callers' tokens.
    #[error("`[door.tokens]`: {0}")]
    Tokens(#[from] sealwire::ConfigError),
    /// The denylist.
    #[error(transparent)]
    Denylist(#[from] sealwire::auth::DenylistError),
}

impl Callers {
    /// Reads what the configuration names. Keys of issuers that are no file are fetched, now and from then on.
    ///
    /// The credentials lose the agent's own token where callers have theirs: nothing can be sent with it by mistake.
    pub(super) async fn new(
        config: &DoorConfig,
        credentials: Credentials,
    ) -> Result<(Self, Credentials), CallersError> {
        let agent = credentials.agent().to_string();
        let Identity::Mint { key, scopes } = &config.identity else { return Ok((Self::Own(agent), credentials)) };
        let issuer = TokenIssuer::load(key)?;
        let (url, tokens) = (config.public_url.clone().unwrap_or_default(), config.tokens.clone());
        let tokens = tokens.ok_or(sealwire::ConfigError::NoIssuer)?;
        let read = Files { denylist: config.denylist.clone(), seen: Mutex::default(), tokens };
        *read.lock() = read.marks();
        let verifier = read.tokens.verifier(&url, &FileTrust::default()).await?;
        verifier.replace_denylist(read.denylist()?);
        let minting = Minting {
            verifier,
            issuer,
            agent,
            kid: credentials.kid().to_owned(),
            environment: credentials.environment().to_string(),
            scopes: *scopes,
            url,
            issuers: read.tokens.issuer.iter().map(|issuer| issuer.issuer.clone()).collect(),
            services: config.expose.iter().map(|expose| expose.service.to_string()).collect(),
            kept: Cache::builder().max_capacity(KEPT).time_to_live(Duration::from_secs(LIFE_S)).build(),
            read,
        };
        Ok((Self::Shown(Arc::new(minting)), credentials.token_source(Nobody)))
    }

    /// Who sends this.
    pub(super) fn know(&self, head: &Parts) -> Result<Principal, Refusal> {
        match self {
            Self::Own(agent) => Ok(Principal::own(agent)),
            Self::Shown(minting) => minting.know(head).map(Principal::of),
        }
    }

    /// Whether it may come in for this service.
    pub(super) fn admits(&self, principal: &Principal, expose: &Expose) -> Result<(), Refusal> {
        let (Self::Shown(minting), Some(shown)) = (self, &principal.shown) else { return Ok(()) };
        if !minting.scopes || shown.has_scope(expose.service.as_str()) {
            return Ok(());
        }
        let challenge = minting.challenge(&format!("error=\"insufficient_scope\", scope=\"{}\", ", expose.service));
        Err(Refusal::unauthorized(StatusCode::FORBIDDEN, "the token's `scope` does not name the service", challenge))
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
        request.tokens(&tokens)
    }

    /// RFC 9728: what callers need to know to get a token.
    pub(super) fn metadata(&self) -> Option<Vec<u8>> {
        #[derive(Serialize)]
        struct Metadata<'a> {
            resource: &'a str,
            authorization_servers: &'a [String],
            #[serde(skip_serializing_if = "<[_]>::is_empty")]
            scopes_supported: &'a [String],
            bearer_methods_supported: [&'static str; 1],
            resource_name: String,
        }
        let Self::Shown(minting) = self else { return None };
        let metadata = Metadata {
            resource: &minting.url,
            authorization_servers: &minting.issuers,
            scopes_supported: if minting.scopes { &minting.services } else { &[] },
            bearer_methods_supported: ["header"],
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
    fn know(&self, head: &Parts) -> Result<Shown, Refusal> {
        let Some(authorization) = single(&head.headers, &AUTHORIZATION)? else {
            let challenge = self.challenge("");
            return Err(Refusal::unauthorized(StatusCode::UNAUTHORIZED, "a token is needed", challenge));
        };
        let wrong = |message| {
            let challenge = self.challenge("error=\"invalid_token\", ");
            Refusal::unauthorized(StatusCode::UNAUTHORIZED, message, challenge)
        };
        let token = authorization.split_once(' ').filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
        let Some((_, token)) = token else { return Err(wrong("`Authorization` must be `Bearer` and a token")) };
        if token.len() > TOKEN_BYTES {
            return Err(wrong("the token is not valid"));
        }
        let (text, digest) = (Zeroizing::new(token.to_owned()), Sha256::digest(token).into());
        let verified = self.verifier.verify(token, &digest, SystemClock.now_s());
        let token = verified.map_err(|error| {
            // To the caller all are one: what is wrong with a token is its issuer's business, and an attacker's.
            tracing::info!(target: "sealwire::door", %error, "a token was refused");
            wrong("the token is not valid")
        })?;
        // Of a key that nobody proves here, of somebody who acts for another one, and of the door itself.
        if token.cnf.is_some() || token.actor.is_some() || token.subject == self.agent {
            return Err(wrong("a token of this kind is not taken here"));
        }
        Ok(Shown { text, digest, token })
    }

    fn verify(&self, shown: &Shown) -> Result<Arc<AccessToken>, TokenError> {
        self.verifier.verify(&shown.text, &shown.digest, SystemClock.now_s())
    }

    /// A token for the bus, in which the agent acts on behalf of the caller. It lives no longer than the caller's own.
    fn mint(&self, shown: &Shown, audience: &str) -> Result<String, TokenFault> {
        let fault = |error: Box<dyn std::error::Error + Send + Sync>| TokenFault::Other(error);
        let token = self.verify(shown).map_err(|error| fault(error.into()))?;
        let now_s = SystemClock.now_s();
        let mut request = IssueRequest::new(&token.subject, audience, now_s);
        request.actor = Some(self.agent.clone());
        request.roles = token.roles.clone();
        request.ttl_s = LIFE_S.min(token.expires_at.saturating_sub(now_s));
        // Of no use to whoever sees it on the bus.
        request.cnf = Some(Confirmation { kid: Some(self.kid.clone()), jkt: None });
        self.issuer.issue(&request).map_err(|error| fault(error.into()))
    }

    /// RFC 6750 §3, RFC 9728 §5.1.
    fn challenge(&self, error: &str) -> HeaderValue {
        let text = format!("Bearer {error}resource_metadata=\"{}{METADATA}\"", self.url);
        HeaderValue::from_str(&text).unwrap_or(HeaderValue::from_static("Bearer"))
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

/// The tokens of one caller for one service.
#[derive(Debug)]
struct Minted {
    minting: Arc<Minting>,
    shown: Arc<Shown>,
    audience: String,
}

impl TokenSource for Minted {
    fn fetch(&self) -> FetchedToken<'_> {
        Box::pin(async { self.minting.mint(&self.shown, &self.audience) })
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
        f.debug_struct("Minting").field("issuer", &self.issuer).field("agent", &self.agent).finish_non_exhaustive()
    }
}

impl fmt::Debug for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shown").field("subject", &self.token.subject).finish_non_exhaustive()
    }
}

/// The refusal of whoever is not known, or not let in.
impl Refusal {
    fn unauthorized(status: StatusCode, message: &'static str, challenge: HeaderValue) -> Self {
        Self::new(status, code::UNAUTHENTICATED, message).with(WWW_AUTHENTICATE, challenge)
    }
}
