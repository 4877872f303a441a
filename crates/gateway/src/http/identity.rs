//! Who calls: the gateway's own agent, or the bearers of tokens.
//! Never passes a caller's token on, except to its issuer, or in a message that the caller has signed with it.

mod authenticator;
mod bus_token;
mod challenge;
mod dpop;
mod presented;
mod principal;
mod tickets;
mod token_files;

use std::sync::Arc;

use sealwire::call::FetchedToken;
use sealwire::configure::FileTrust;
use sealwire::errors::SecretFileError;
use sealwire::errors::TokenFault;
use sealwire::internal::KeyedLogLimiter;
use sealwire::internal::auth::{TokenExchange, TokenIssuer};
use sealwire::internal::files::Watch;
use sealwire::internal::files::{read_public, read_secret};
use sealwire::{Credentials, TokenSource};

use self::authenticator::{BusTokenCache, TokenAuthenticator};
use self::bus_token::{Actor, BusTokenMode, Exchange};
use self::challenge::Challenges;
pub use self::challenge::METADATA;
use self::dpop::Proofs;
pub use self::principal::Principal;
pub(super) use self::tickets::PREFIX as TICKET_PREFIX;
use self::tickets::Tickets;
use self::token_files::{TokenFile, TokenFiles};
use super::config::{GatewayConfig, Identity};
use super::head::CheckedHead;
use super::refusal::Refusal;
use super::reload::{RefusedFiles, Resource};
use crate::once::Once;
use crate::revocation::Revocation;
use crate::seal::{Seal, SealError};

/// Who the callers are, and what operators have revoked.
#[derive(Debug)]
pub(super) struct Callers {
    revocation: Arc<Revocation>,
    kind: CallerKind,
}

/// How callers are identified.
#[derive(Debug)]
enum CallerKind {
    /// All are the gateway's agent.
    Agent(Arc<str>),
    /// By the tokens they present.
    Bearer(Arc<TokenAuthenticator>),
}

/// Why the gateway cannot authenticate callers.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CallersError {
    /// The key that signs the gateway's tokens.
    #[error(transparent)]
    Key(#[from] sealwire::internal::auth::IssueError),
    /// One key would be used for two purposes.
    #[error("`card_key` is the key of the gateway's tokens: make another one for cards")]
    SharedKey,
    /// The issuers of callers' tokens.
    #[error("`[gateway.tokens]`: {0}")]
    Tokens(#[from] sealwire::ConfigError),
    /// The denylist.
    #[error(transparent)]
    Denylist(#[from] sealwire::errors::DenylistError),
    /// The endpoint that exchanges tokens.
    #[error("`identity`: {0}")]
    Exchange(#[from] sealwire::internal::auth::ExchangeError),
    /// A file that `identity` names.
    #[error(transparent)]
    File(#[from] SecretFileError),
    /// The agent has no token of its own.
    #[error(transparent)]
    Credentials(#[from] sealwire::errors::CredentialsError),
    /// `revocation`, or its state file.
    #[error("`[gateway.revocation]`: {0}")]
    Revocation(#[from] sealwire::errors::RevocationError),
    /// The key that seals nonces and tickets.
    #[error(transparent)]
    Seal(#[from] SealError),
    /// The address where callers find the gateway.
    #[error("`public_url` is not a valid address")]
    Url,
}

impl Callers {
    /// Reads the files that the configuration names. Issuers' keys that are not in a file are fetched, now and again later.
    ///
    /// If callers have tokens, the returned credentials are without the agent's own, so that nothing can be sent with it by mistake.
    pub(super) async fn new(
        config: &GatewayConfig,
        credentials: Credentials,
        once: &Arc<Once>,
        refused: &Arc<RefusedFiles>,
    ) -> Result<(Self, Credentials), CallersError> {
        let agent = credentials.agent().to_string();
        let (mode, scopes, dpop) = match &config.identity {
            Identity::Own {} => {
                let revocation = Revocation::open(config.revocation.as_ref(), &credentials, None)?;
                return Ok((
                    Self { revocation: Arc::new(revocation), kind: CallerKind::Agent(agent.into()) },
                    credentials,
                ));
            }
            Identity::Mint { key, scopes, dpop } => (BusTokenMode::Mint(TokenIssuer::load(key)?), scopes, dpop),
            Identity::Exchange { token_endpoint, client_id, client_secret, tls_ca, http_on_loopback, scopes, dpop } => {
                let secret = read_secret(client_secret)?;
                let anchors = tls_ca.as_deref().map(read_public).transpose()?;
                let client = (client_id.as_str(), secret.as_str());
                let endpoint = TokenExchange::new(token_endpoint, client, anchors.as_deref(), *http_on_loopback)?;
                (BusTokenMode::Exchange(Exchange::new(endpoint, credentials.tokens()?)), scopes, dpop)
            }
        };
        let (url, tokens) = (config.public_url.clone().unwrap_or_default(), config.tokens.clone());
        let tokens = tokens.ok_or(sealwire::ConfigError::NoIssuer)?;
        let files = TokenFiles::new(tokens, config.denylist.clone());
        let issuer = match &mode {
            BusTokenMode::Mint(issuer) => Some(issuer.kid()),
            BusTokenMode::Exchange(_) => None,
        };
        let revocation = Arc::new(Revocation::open(config.revocation.as_ref(), &credentials, issuer)?);
        let verifier = files.tokens.verifier(&url, &FileTrust::default()).await?;
        let verifier = verifier.with_revocations(Arc::clone(revocation.list()));
        verifier.replace_denylist(files.denylist()?);
        let seal = || Seal::of(config.seal_key.as_deref());
        let authenticator = TokenAuthenticator {
            verifier,
            mode,
            actor: Actor { name: agent, kid: credentials.kid().to_owned() },
            environment: credentials.environment().to_string(),
            proofs: Proofs::new(&url, seal()?, Arc::clone(once)).ok_or(CallersError::Url)?,
            tickets: Tickets::new(seal()?, Arc::clone(once), config.seal_key.is_some()),
            challenges: Challenges {
                url,
                issuers: files.tokens.issuer.iter().map(|issuer| issuer.issuer.clone()).collect(),
                services: config.expose.iter().map(|expose| expose.service.to_string()).collect(),
                scopes: *scopes,
                dpop: *dpop,
            },
            bus_tokens: BusTokenCache::default(),
            log_limiter: KeyedLogLimiter::default(),
            files,
            refused: Arc::clone(refused),
        };
        let kind = CallerKind::Bearer(Arc::new(authenticator));
        Ok((Self { revocation, kind }, credentials.token_source(NoToken)))
    }

    /// Authenticates the sender of a request.
    pub(super) async fn authenticate(&self, head: &CheckedHead) -> Result<Principal, Refusal> {
        let principal = match &self.kind {
            CallerKind::Agent(agent) => Principal::agent(Arc::clone(agent)),
            CallerKind::Bearer(authenticator) => {
                let presented = Box::pin(authenticator.authenticate(head)).await?;
                Principal::bearer(authenticator, presented)
            }
        };
        Ok(principal.with_revocation(&self.revocation))
    }

    /// What operators have revoked.
    pub(super) fn revocation(&self) -> &Arc<Revocation> {
        &self.revocation
    }

    /// Whether callers present tokens; otherwise all of them are the agent.
    pub(super) fn have_tokens(&self) -> bool {
        matches!(self.kind, CallerKind::Bearer(_))
    }

    /// Whether the gateway's tokens are signed with the key of this id.
    pub(super) fn sign_with(&self, kid: &str) -> bool {
        matches!(&self.kind, CallerKind::Bearer(authenticator)
            if matches!(&authenticator.mode, BusTokenMode::Mint(issuer) if issuer.kid() == kid))
    }

    /// RFC 9728: the metadata that callers of this path need to get a token.
    pub(super) fn metadata(&self, about: &str) -> Option<Vec<u8>> {
        let CallerKind::Bearer(authenticator) = &self.kind else { return None };
        let name = format!("{} of {}", authenticator.actor.name, authenticator.environment);
        authenticator.challenges.metadata(about, name)
    }

    /// The files that are read again when they change.
    pub(super) fn resources(&self) -> Vec<Resource> {
        let CallerKind::Bearer(authenticator) = &self.kind else { return Vec::new() };
        let resource = |(file, watch): (TokenFile, Watch)| {
            let authenticator = Arc::clone(authenticator);
            let name = match file {
                TokenFile::Denylist => "denylist",
                TokenFile::Keys => "token keys",
            };
            let poll = Box::new(move || watch.poll(|| authenticator.reread(file)));
            Resource { name, takes_away: true, poll }
        };
        authenticator.files.take_watched().into_iter().map(resource).collect()
    }
}

/// Has no token: every call is made for a caller.
#[derive(Debug)]
struct NoToken;

impl TokenSource for NoToken {
    fn fetch(&self) -> FetchedToken<'_> {
        Box::pin(async { Err(TokenFault::Other("the gateway calls on behalf of others only".into())) })
    }
}
