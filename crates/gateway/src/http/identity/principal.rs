//! The caller of a request: the gateway's agent, or the bearer of a token.
//! Never exists before its token was verified.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use sealwire::internal::auth::RevocationKind;
use sealwire::internal::client::Observer;
use sealwire::{Client, RequestBuilder};

use super::authenticator::TokenAuthenticator;
use super::presented::PresentedToken;
use super::tickets::Granted;
use crate::http::arrival::Arrival;
use crate::http::config::Expose;
use crate::http::head::CheckedHead;
use crate::http::refusal::Refusal;
use crate::revocation::{Loss, Revocation};

/// An authenticated caller.
#[derive(Clone)]
pub struct Principal {
    /// Unique to this caller.
    name: Arc<str>,
    /// The token it presented, unless it is the gateway's agent itself.
    bearer: Option<Bearer>,
    /// Observes its calls, whichever protocol it uses.
    observer: Option<Arc<dyn Observer>>,
    /// How its request arrived.
    pub(in crate::http) arrival: Arc<Arrival>,
    /// What operators have revoked here.
    revocation: Arc<Revocation>,
}

/// A verified token, and who verified it.
#[derive(Clone)]
struct Bearer {
    authenticator: Arc<TokenAuthenticator>,
    presented: Arc<PresentedToken>,
}

impl Principal {
    /// Everyone who reaches the listener of a gateway with `own`: the gateway's agent.
    pub(in crate::http) fn agent(agent: impl Into<Arc<str>>) -> Self {
        Self { name: agent.into(), bearer: None, observer: None, arrival: Arc::default(), revocation: Arc::default() }
    }

    /// The subject of a verified token.
    pub(super) fn bearer(authenticator: &Arc<TokenAuthenticator>, presented: PresentedToken) -> Self {
        let name = presented.owner().into();
        let bearer = Bearer { authenticator: Arc::clone(authenticator), presented: Arc::new(presented) };
        Self { name, bearer: Some(bearer), observer: None, arrival: Arc::default(), revocation: Arc::default() }
    }

    /// Its name, which is unique to it.
    pub fn as_str(&self) -> &str {
        &self.name
    }

    /// The address that its request came from, for the log.
    pub fn peer(&self) -> Option<tracing::field::DisplayValue<SocketAddr>> {
        self.arrival.peer()
    }

    /// The id of the trace that its request belongs to.
    pub fn trace_id(&self) -> Option<&str> {
        self.arrival.trace_id()
    }

    pub(in crate::http) fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// A name for the caller with its token: two tokens of one caller may have different rights.
    pub(in crate::http) fn name_with_token(&self) -> Arc<str> {
        let Some(bearer) = &self.bearer else { return Arc::clone(&self.name) };
        let mut name = format!("{} ", self.name);
        bearer.presented.distinguish(&mut name);
        name.into()
    }

    pub(super) fn with_revocation(self, revocation: &Arc<Revocation>) -> Self {
        Self { revocation: Arc::clone(revocation), ..self }
    }

    pub(in crate::http) fn with_arrival(self, arrival: Arrival) -> Self {
        Self { arrival: Arc::new(arrival), ..self }
    }

    pub(in crate::http) fn with_observer(self, observer: Arc<dyn Observer>) -> Self {
        Self { observer: Some(observer), ..self }
    }

    pub(in crate::http) fn observer(&self) -> Option<Arc<dyn Observer>> {
        self.observer.clone()
    }

    /// What operators have revoked here.
    pub(in crate::http) fn revocation(&self) -> &Arc<Revocation> {
        &self.revocation
    }

    /// Why the caller may begin nothing: no call of this method, if there is one, of this service. Its token was verified just before.
    pub(in crate::http) fn refusal(&self, service: &str, method: Option<&str>) -> Option<Loss> {
        let method = method.map(|method| (RevocationKind::Method, method));
        let service = Some((RevocationKind::Service, service));
        self.revocation.loss([service, method].into_iter().flatten())
    }

    /// Why the caller may no longer receive what it has begun: a call of this method of this service, or anything.
    pub(in crate::http) fn loss(&self, service: Option<&str>, method: Option<&str>) -> Option<Loss> {
        if self.bearer.as_ref().is_some_and(|bearer| bearer.authenticator.is_closed()) {
            return Some(Loss::Unverifiable);
        }
        let service = service.map(|service| (RevocationKind::Service, service));
        let method = method.map(|method| (RevocationKind::Method, method));
        let token = self.bearer.iter().flat_map(|bearer| bearer.presented.token.names());
        let is_valid =
            || self.bearer.as_ref().is_none_or(|bearer| bearer.authenticator.is_still_valid(&bearer.presented));
        let loss = self.revocation.loss(service.into_iter().chain(method).chain(token));
        loss.or_else(|| (!is_valid()).then_some(Loss::Ended))
    }

    /// Whether the caller's token is no longer good enough to begin anything, though `loss` may allow for clocks that differ.
    pub fn is_expired(&self) -> bool {
        self.bearer.as_ref().is_some_and(|bearer| bearer.authenticator.is_expired(&bearer.presented))
    }

    /// Whether the caller may use this service.
    pub(in crate::http) fn check_scope(&self, expose: &Expose) -> Result<(), Refusal> {
        match &self.bearer {
            Some(bearer) => bearer.authenticator.check_scope(&bearer.presented, expose.service.as_str()),
            None => Ok(()),
        }
    }

    /// The refusal of a caller that may use no service at all.
    pub(in crate::http) fn no_scope(&self) -> Refusal {
        match &self.bearer {
            Some(bearer) => bearer.authenticator.no_scope(&bearer.presented),
            None => Refusal::not_found("no service is exposed here"),
        }
    }

    /// The text of the caller's token, for a message that the caller itself has signed; `None` for the gateway's agent.
    pub(in crate::http) fn token(&self) -> Option<&str> {
        self.bearer.as_ref().map(|bearer| bearer.presented.text.as_str())
    }

    /// The agent whose token it presented: with a key of that agent the bearer may call a service directly. `None` for the gateway's agent.
    pub(in crate::http) fn owner(&self) -> Option<&str> {
        self.bearer.as_ref().map(|bearer| bearer.presented.token.owner())
    }

    /// A ticket that opens a WebSocket to this service for the caller.
    pub(in crate::http) fn grant_ticket(&self, expose: &Expose, head: &CheckedHead) -> Result<Granted, Refusal> {
        match &self.bearer {
            Some(bearer) => bearer.authenticator.grant_ticket(&bearer.presented, expose.service.as_str(), head),
            None => Err(Refusal::not_found("callers have no tokens here, so sockets need no ticket")),
        }
    }

    /// A request to the service, on behalf of the caller.
    pub(in crate::http) fn request(&self, client: &Client, expose: &Expose) -> RequestBuilder {
        let service = expose.service.as_str();
        let mut relay = client.request(service).deadline(expose.timeout()).relay().trace(self.arrival.trace());
        if let Some(observer) = self.observer() {
            relay = relay.observer(observer);
        }
        let Some(Bearer { authenticator, presented }) = &self.bearer else { return relay.request() };
        let tokens = authenticator.tokens(client, presented, expose);
        // One caller must not use up all that this client may have open.
        relay.tokens(&tokens).share(Arc::clone(&self.name)).request()
    }
}

impl fmt::Debug for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Principal").field("name", &self.name).finish_non_exhaustive()
    }
}
