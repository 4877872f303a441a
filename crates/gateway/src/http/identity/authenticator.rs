//! Verifies the tokens of callers, and gets the tokens for their calls.
//! Never gets a token for anyone whose own was not verified just before.

use std::fmt;
use std::mem::{Discriminant, discriminant};
use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use hyper::header::{AUTHORIZATION, HeaderValue};
use hyper::http::request::Parts;
use moka::sync::Cache;
use sealwire::call::FetchedToken;
use sealwire::errors::TokenFault;
use sealwire::errors::code;
use sealwire::internal::KeyedLogLimiter;
use sealwire::internal::auth::{AccessToken, Confirmation, TokenError, TokenVerifier};
use sealwire::internal::client::Tokens;
use sealwire::{Client, TokenSource};
use sealwire::{Clock as _, SystemClock};
use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

use super::bus_token::{Actor, BusTokenError, BusTokenMode, LIFE_S};
use super::challenge::Challenges;
use super::dpop::{self, ProofError, Proofs};
use super::presented::{PresentedToken, Scheme};
use super::tickets::{Granted, Ticket, Tickets};
use super::token_files::{TokenFile, TokenFiles};
use crate::http::config::{Dpop, Expose};
use crate::http::connections::Peer;
use crate::http::fields::single;
use crate::http::head::CheckedHead;
use crate::http::refusal::{ExchangeRefused, Refusal};
use crate::http::reload::RefusedFiles;

/// The longest token, as for services.
const TOKEN_BYTES: usize = 4 << 10;
/// How many tokens for the bus are cached. Any other is made again.
const KEPT: u64 = 10_000;

/// Everything needed to identify callers by their tokens.
pub(in crate::http) struct TokenAuthenticator {
    pub(super) verifier: TokenVerifier,
    pub(super) mode: BusTokenMode,
    pub(super) actor: Actor,
    pub(super) environment: String,
    pub(super) proofs: Proofs,
    pub(super) tickets: Tickets,
    pub(super) challenges: Challenges,
    pub(super) bus_tokens: BusTokenCache,
    /// Limits log lines about refused tokens, which anyone can send: for each reason by itself, so that none hides another.
    pub(super) log_limiter: KeyedLogLimiter<Reason>,
    pub(super) files: TokenFiles,
    /// Of the files, those whose present state is refused.
    pub(super) refused: Arc<RefusedFiles>,
}

/// The tokens for the bus, by the caller's token and service.
pub(super) struct BusTokenCache(Cache<([u8; 32], String), Tokens>);

impl Default for BusTokenCache {
    fn default() -> Self {
        Self(Cache::builder().max_capacity(KEPT).time_to_live(Duration::from_secs(LIFE_S)).build())
    }
}

/// Why a token was refused.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Reason {
    Invalid(Discriminant<TokenError>),
    /// It is delegated, or the gateway's own.
    Kind,
    /// It is bound to a key, or not, and should not be, or should.
    Binding,
    /// Its proof is not valid.
    Proof,
}

impl TokenAuthenticator {
    /// Authenticates the sender of a request.
    pub(super) async fn authenticate(&self, head: &CheckedHead) -> Result<PresentedToken, Refusal> {
        if self.is_closed() {
            return Err(Refusal::unavailable("the gateway cannot tell whose tokens were revoked: its log says why"));
        }
        if !head.headers.contains_key(AUTHORIZATION)
            && let Some(ticket) = self.tickets.open(head)
        {
            return self.authenticate_by_ticket(head, ticket).await;
        }
        let presented = self.presented(head)?;
        if presented.scheme != Scheme::Dpop {
            return Ok(presented);
        }
        let path = head.uri.path();
        // Before anything is counted, so that a token stolen without its key uses up nothing of its owner's quota.
        match self.proofs.check(head, &presented.owner(), &presented.digest, presented.thumbprint()).await {
            Ok(()) => Ok(presented),
            Err(ProofError::Refused(refusal)) => Err(refusal),
            Err(ProofError::Invalid(why)) => {
                self.log(head, Reason::Proof, &why);
                Err(self.challenges.add(unauthenticated(why), path, Scheme::Dpop, "error=\"invalid_dpop_proof\", "))
            }
            Err(ProofError::Nonce(nonce)) => {
                let refusal = unauthenticated("the proof needs the nonce in `DPoP-Nonce`");
                let refusal = self.challenges.add(refusal, path, Scheme::Dpop, "error=\"use_dpop_nonce\", ");
                Err(match HeaderValue::try_from(nonce) {
                    Ok(nonce) => refusal.with(dpop::NONCE, nonce),
                    Err(_) => refusal,
                })
            }
        }
    }

    /// Authenticates a handshake by its ticket.
    async fn authenticate_by_ticket(
        &self,
        head: &Parts,
        ticket: Result<Ticket, Option<Refusal>>,
    ) -> Result<PresentedToken, Refusal> {
        let wrong = |refusal: Option<Refusal>, scheme| {
            let refused = || {
                let refusal =
                    unauthenticated("the ticket is not valid here: it was used, has expired, or is for another use");
                self.challenges.add(refusal, head.uri.path(), scheme, "error=\"invalid_token\", ")
            };
            refusal.unwrap_or_else(refused)
        };
        let ticket = ticket.map_err(|refusal| wrong(refusal, Scheme::Bearer))?;
        // The key was proved when the ticket was requested.
        let scheme = if ticket.is_proved { Scheme::Dpop } else { Scheme::Bearer };
        if !self.accepts(scheme) {
            return Err(wrong(None, scheme));
        }
        let presented = self.verified(head, &ticket.token, scheme)?;
        let spent = self.tickets.spend(&ticket, &presented.owner()).await;
        spent.map_err(|refusal| wrong(refusal, scheme))?;
        Ok(presented)
    }

    /// The token of a request, verified, with its scheme.
    fn presented(&self, head: &Parts) -> Result<PresentedToken, Refusal> {
        let Some(authorization) = single(&head.headers, &AUTHORIZATION)? else {
            let refusal = unauthenticated("a token is required");
            return Err(self.challenges.add(refusal, head.uri.path(), Scheme::Bearer, ""));
        };
        // RFC 9110 §11.4: one space or more.
        let (name, token) = authorization.split_once(' ').unwrap_or_default();
        let token = token.trim_start_matches(' ');
        let scheme =
            [Scheme::Bearer, Scheme::Dpop].into_iter().find(|scheme| scheme.as_str().eq_ignore_ascii_case(name));
        let wrong = |message| {
            let scheme = scheme.unwrap_or(Scheme::Bearer);
            self.challenges.add(unauthenticated(message), head.uri.path(), scheme, "error=\"invalid_token\", ")
        };
        let scheme = match (scheme, self.challenges.dpop) {
            (Some(scheme), _) if self.accepts(scheme) => scheme,
            (_, Dpop::Require) => return Err(wrong("`Authorization` must be `DPoP` and a token")),
            _ => return Err(wrong("`Authorization` must be `Bearer` and a token")),
        };
        self.verified(head, token, scheme)
    }

    fn accepts(&self, scheme: Scheme) -> bool {
        match scheme {
            Scheme::Bearer => self.challenges.dpop != Dpop::Require,
            Scheme::Dpop => self.challenges.dpop != Dpop::Off,
        }
    }

    /// Verifies this token, and that it may be used with this scheme.
    fn verified(&self, head: &Parts, token: &str, scheme: Scheme) -> Result<PresentedToken, Refusal> {
        let wrong = |message| {
            self.challenges.add(unauthenticated(message), head.uri.path(), scheme, "error=\"invalid_token\", ")
        };
        if token.len() > TOKEN_BYTES {
            return Err(wrong("the token is not valid"));
        }
        let (text, digest) = (Zeroizing::new(token.to_owned()), Sha256::digest(token).into());
        let verified = self.verifier.verify(token, &digest, SystemClock.now_s());
        let token = verified.map_err(|error| {
            // The caller is not told what is wrong: that concerns the issuer, and would help an attacker.
            self.log(head, Reason::Invalid(discriminant(&error)), &error);
            wrong("the token is not valid")
        })?;
        // Delegated tokens, and tokens of the gateway itself.
        if token.actor.is_some() || token.subject == self.actor.name {
            self.log(head, Reason::Kind, &"it is delegated, or names the gateway's agent");
            return Err(wrong("a token of this kind is not accepted here"));
        }
        let misbound = match (&token.cnf, scheme) {
            (None, Scheme::Bearer) | (Some(Confirmation { jkt: Some(_), kid: None }), Scheme::Dpop) => None,
            (None, Scheme::Dpop) => Some("the token is not bound to a key"),
            // RFC 9449 §7.2: otherwise a thief would leave out the proof. Keys of any other kind (`kid`) cannot be proved here.
            (Some(_), _) => Some("a token bound to a key is not accepted this way"),
        };
        if let Some(why) = misbound {
            self.log(head, Reason::Binding, &why);
            return Err(wrong(why));
        }
        Ok(PresentedToken { text, digest, scheme, token })
    }

    /// Says in the log that a token was refused, and where it came from.
    fn log(&self, head: &Parts, reason: Reason, error: &dyn fmt::Display) {
        if let Some(suppressed) = self.log_limiter.check(&reason) {
            tracing::info!(target: "sealwire::gateway", %error, peer = Peer::of(head), suppressed, "a token was refused");
        }
    }

    fn verify(&self, presented: &PresentedToken) -> Result<Arc<AccessToken>, TokenError> {
        self.verifier.verify(&presented.text, &presented.digest, SystemClock.now_s())
    }

    /// Whether nobody can be authenticated at present.
    pub(super) fn is_closed(&self) -> bool {
        self.refused.is_closed()
    }

    /// Whether a token is still valid: it may have expired or been revoked.
    pub(super) fn is_still_valid(&self, presented: &PresentedToken) -> bool {
        self.verify(presented).is_ok()
    }

    /// Whether a token is no longer good enough to begin anything, though [`Self::is_still_valid`] may allow for clocks that differ.
    pub(super) fn is_expired(&self, presented: &PresentedToken) -> bool {
        // A service may be a moment ahead.
        self.verify(presented).map_or(true, |token| token.expires_at <= SystemClock.now_s() + 1)
    }

    /// Whether the token's scopes let its bearer use this service.
    pub(super) fn check_scope(&self, presented: &PresentedToken, service: &str) -> Result<(), Refusal> {
        if !self.challenges.scopes || presented.has_scope(service) {
            return Ok(());
        }
        let refusal =
            Refusal::new(StatusCode::FORBIDDEN, code::UNAUTHENTICATED, "the token's `scope` does not name the service");
        let (path, wrong) = (format!("/mcp/{service}"), "error=\"insufficient_scope\", ");
        Err(self.challenges.add(refusal, &path, presented.scheme, wrong))
    }

    /// The refusal of a caller that may use no service at all.
    pub(super) fn no_scope(&self, presented: &PresentedToken) -> Refusal {
        let message = "the token's `scope` names none of the services";
        let refusal = Refusal::new(StatusCode::FORBIDDEN, code::UNAUTHENTICATED, message);
        self.challenges.add(refusal, "/mcp", presented.scheme, "error=\"insufficient_scope\", ")
    }

    /// A ticket that opens a WebSocket to this service for the bearer of the token.
    pub(super) fn grant_ticket(
        &self,
        presented: &PresentedToken,
        service: &str,
        head: &Parts,
    ) -> Result<Granted, Refusal> {
        let (path, is_proved) = (format!("/rpc/{service}/ws"), presented.scheme == Scheme::Dpop);
        self.tickets.grant(head, &path, &presented.text, is_proved, presented.token.expires_at)
    }

    /// The tokens for calls of this caller to this service.
    pub(super) fn tokens(
        self: &Arc<Self>,
        client: &Client,
        presented: &Arc<PresentedToken>,
        expose: &Expose,
    ) -> Tokens {
        let service = expose.service.as_str();
        self.bus_tokens.0.get_with((presented.digest, service.to_owned()), || {
            let audience = expose.audience.clone().unwrap_or_else(|| format!("{}/{service}", self.environment));
            let (authenticator, presented) = (Arc::clone(self), Arc::clone(presented));
            client.tokens(BusTokenSource { authenticator, presented, audience })
        })
    }

    /// A token for the bus, which says that the agent acts on behalf of the caller.
    async fn bus_token(&self, presented: &PresentedToken, audience: &str) -> Result<String, TokenFault> {
        // The token was verified when it came in, but with leeway: it may have expired, or been revoked since.
        let Some(token) = self.verify(presented).ok().filter(|token| token.expires_at > SystemClock.now_s()) else {
            return Err(self.exchange_refused(presented, StatusCode::UNAUTHORIZED, "error=\"invalid_token\", "));
        };
        let made = self.mode.token(&self.actor, presented, &token, audience).await;
        made.map_err(|none| match none {
            BusTokenError::Invalid => {
                self.exchange_refused(presented, StatusCode::UNAUTHORIZED, "error=\"invalid_token\", ")
            }
            BusTokenError::Forbidden => self.exchange_refused(presented, StatusCode::FORBIDDEN, ""),
            BusTokenError::Fault(fault) => fault,
        })
    }

    /// The caller needs another token.
    fn exchange_refused(&self, presented: &PresentedToken, status: StatusCode, wrong: &str) -> TokenFault {
        let challenges = self.challenges.all("", presented.scheme, wrong);
        TokenFault::Other(Box::new(ExchangeRefused { status, challenges }))
    }

    /// Puts the present state of a file in force; says what it is.
    pub(super) fn reread(&self, file: TokenFile) -> Result<String, String> {
        self.files.reread(file, &self.verifier)
    }
}

/// The source of one caller's tokens for one service.
#[derive(Debug)]
struct BusTokenSource {
    authenticator: Arc<TokenAuthenticator>,
    presented: Arc<PresentedToken>,
    audience: String,
}

impl TokenSource for BusTokenSource {
    fn fetch(&self) -> FetchedToken<'_> {
        Box::pin(self.authenticator.bus_token(&self.presented, &self.audience))
    }
}

impl fmt::Debug for TokenAuthenticator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenAuthenticator")
            .field("mode", &self.mode)
            .field("actor", &self.actor)
            .finish_non_exhaustive()
    }
}

/// The refusal of a caller that is not authenticated.
fn unauthenticated(message: &'static str) -> Refusal {
    Refusal::new(StatusCode::UNAUTHORIZED, code::UNAUTHENTICATED, message)
}
