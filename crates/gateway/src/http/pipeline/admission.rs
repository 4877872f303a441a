//! Lets requests in: a caller's call is charged and has a permit before its body is read, or anything of it reaches the bus.
//! Never hands out the text of a body, or a request on the bus, without an admission.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use hyper::http::request::Parts;
use sealwire::internal::trace::Tracing;
use sealwire::{Client, RequestBuilder};

use super::authenticated::Authenticated;
use super::body::{Bodies, UnreadBody};
use super::quota::{Permit, Quota};
use crate::bus::{Away, Bus, BusLink};
use crate::caller::{BusCaller, Caller};
use crate::http::config::{Expose, GatewayConfig, Identity};
use crate::http::identity::Principal;
use crate::http::refusal::Refusal;
use crate::revocation::{Hold, Loss, Revocation};

/// What every admission needs.
#[derive(Debug)]
pub(in crate::http) struct Admission {
    quota: Quota,
    bodies: Bodies,
    bus: Arc<Bus>,
    /// Whether all callers are the agent: a body that arrives slowly would then cost everybody on this machine, so it is read first.
    reads_first: bool,
}

/// What a request is addressed to.
pub trait Target {
    /// The name under which permits are counted.
    fn service(&self) -> &str;
}

/// A service that is exposed.
pub type Service = Arc<Expose>;

impl Target for Service {
    fn service(&self) -> &str {
        self.as_ref().service.as_str()
    }
}

/// One service or all of them, as a client of MCP addresses them.
#[derive(Debug, Clone)]
pub(in crate::http) struct ServiceSet {
    /// `None` for all.
    pub(in crate::http) service: Option<Service>,
    pub(in crate::http) exposed: Arc<[Service]>,
}

impl Target for ServiceSet {
    fn service(&self) -> &str {
        self.service.as_ref().map(Target::service).unwrap_or_default()
    }
}

/// An authenticated caller, and what it may use: an exposed service within the scope of its token.
#[derive(Debug)]
pub(in crate::http) struct Addressed<T = Service> {
    admission: Arc<Admission>,
    principal: Principal,
    target: T,
    since: Instant,
}

/// A request that is charged, and holds a permit.
#[derive(Debug)]
pub struct Admitted<T = Service> {
    addressed: Addressed<T>,
    permit: Permit,
}

/// A message that is charged, and holds a permit while it is read; whether it is a request is not known yet. A message that only cancels or
/// answers needs no other permit, since it must not wait for the request that it is about.
#[derive(Debug)]
pub(in crate::http) struct AdmittedMessage<T = Service> {
    addressed: Addressed<T>,
    permit: Permit,
}

/// An open socket. Each of its messages is admitted by itself.
#[derive(Debug)]
pub(in crate::http) struct AdmittedSocket {
    addressed: Addressed,
    _permit: Permit,
}

/// On whose behalf services are called for a request that was admitted. It may outlast the request's permit.
#[derive(Debug)]
pub(in crate::http) struct AdmittedCaller {
    principal: Principal,
    /// Includes the token, since another token of the same caller may have different rights.
    name: Arc<str>,
    exposed: Arc<[Service]>,
}

impl Admission {
    pub(in crate::http) fn new(config: &GatewayConfig, bus: &Arc<Bus>) -> Self {
        Self {
            quota: Quota::new(config),
            bodies: Bodies::new(config.connections),
            bus: Arc::clone(bus),
            reads_first: config.identity == (Identity::Own {}),
        }
    }

    /// How many requests and streams of a caller are in progress.
    pub(in crate::http) fn in_progress(&self, principal: &str) -> (u32, u32) {
        self.quota.in_progress(principal)
    }

    /// Forgets the rates of idle callers.
    pub(in crate::http) fn tidy(&self) {
        self.quota.tidy();
    }
}

impl Addressed {
    /// The service must be exposed, and in the scope of the caller's token.
    pub(super) fn to(admission: &Arc<Admission>, caller: Authenticated, expose: &Service) -> Result<Self, Refusal> {
        let principal = caller.into_principal();
        check(&principal, expose.service.as_str(), None)?;
        principal.check_scope(expose)?;
        let (admission, target) = (Arc::clone(admission), Arc::clone(expose));
        Ok(Self { admission, principal, target, since: Instant::now() })
    }

    /// For a request that becomes a socket.
    pub(super) fn admit_socket(self) -> Result<AdmittedSocket, Refusal> {
        // Charged as a call, since opening a socket is as much work as one.
        let Admitted { addressed, permit } = self.admit()?;
        drop(permit);
        let permit = addressed.quota().take_socket(&addressed.principal, addressed.service())?;
        Ok(AdmittedSocket { addressed, _permit: permit })
    }
}

impl Addressed<ServiceSet> {
    /// One service must be exposed, and in the scope of the caller's token.
    pub(super) fn to_several(
        admission: &Arc<Admission>,
        caller: Authenticated,
        target: ServiceSet,
    ) -> Result<Self, Refusal> {
        let principal = caller.into_principal();
        check(&principal, target.service(), None)?;
        match &target.service {
            Some(service) => principal.check_scope(service)?,
            None if target.exposed.iter().any(|service| principal.check_scope(service).is_ok()) => {}
            None => return Err(principal.no_scope()),
        }
        Ok(Self { admission: Arc::clone(admission), principal, target, since: Instant::now() })
    }
}

impl<T: Target + Clone> Addressed<T> {
    pub(in crate::http) fn principal(&self) -> &Principal {
        &self.principal
    }

    pub(in crate::http) fn service(&self) -> &str {
        self.target.service()
    }

    /// When the request was addressed.
    pub(in crate::http) fn since(&self) -> Instant {
        self.since
    }

    fn quota(&self) -> &Quota {
        &self.admission.quota
    }

    /// The same, for another permit.
    fn again(&self, since: Instant) -> Self {
        let (admission, principal) = (Arc::clone(&self.admission), self.principal.clone());
        Self { admission, principal, target: self.target.clone(), since }
    }

    /// For a request without a body.
    pub(super) fn admit(self) -> Result<Admitted<T>, Refusal> {
        let permit = self.quota().take_charged_request(&self.principal, self.service())?;
        Ok(Admitted { addressed: self, permit })
    }

    /// For a request that is answered with a stream, which may outlast it: what the request holds, and what the stream holds.
    pub(super) fn admit_with_stream(self) -> Result<(Admitted<T>, Admitted<T>), Refusal> {
        let request = self.admit()?;
        let stream = request.admit_stream()?;
        Ok((request, stream))
    }

    /// For a message that may or may not turn out to be a request.
    pub(super) fn admit_message(self) -> Result<AdmittedMessage<T>, Refusal> {
        let permit = self.quota().take_charged_reading(&self.principal, self.service())?;
        Ok(AdmittedMessage { addressed: self, permit })
    }

    /// Admits a request, and reads its body. Where callers have tokens, in this order: a body that arrives slowly then costs its own
    /// caller. Where all are the agent, in the other.
    pub(super) async fn receive<A>(
        self,
        head: &Parts,
        body: UnreadBody,
        admit: impl FnOnce(Self) -> Result<A, Refusal>,
    ) -> Result<(A, Bytes), Refusal> {
        let (admission, name) = (Arc::clone(&self.admission), Arc::clone(self.principal.name()));
        if admission.reads_first {
            let text = body.read(head, &admission.bodies, name).await?;
            return Ok((admit(self)?, text));
        }
        let admitted = admit(self)?;
        Ok((admitted, body.read(head, &admission.bodies, name).await?))
    }
}

impl<T: Target + Clone> Admitted<T> {
    /// Its caller.
    pub fn principal(&self) -> &Principal {
        &self.addressed.principal
    }

    /// What it is addressed to.
    pub fn target(&self) -> &T {
        &self.addressed.target
    }

    /// When the request was addressed.
    pub fn since(&self) -> Instant {
        self.addressed.since
    }

    /// Charges the further calls of a batch, besides the one it was admitted with: all of them or none.
    pub(in crate::http) fn charge_more(&self, calls: usize) -> Result<(), Refusal> {
        self.addressed.quota().charge_more(self.principal(), calls)
    }

    /// Admits a stream of the same request, which may outlast it.
    ///
    /// # Errors
    /// The caller has as many streams as it may have.
    pub fn admit_stream(&self) -> Result<Self, Refusal> {
        let permit = self.addressed.quota().take_stream(self.principal(), self.addressed.service())?;
        Ok(Self { addressed: self.addressed.again(self.since()), permit })
    }

    /// What the response of the request holds.
    pub fn into_permit(self) -> Permit {
        self.permit
    }
}

impl Admitted {
    /// The service that it is addressed to.
    pub fn expose(&self) -> &Expose {
        self.target()
    }

    /// Refuses what operators have revoked of a call of this method.
    ///
    /// # Errors
    /// The refusal, and nothing was sent.
    pub fn check(&self, method: &str) -> Result<(), Refusal> {
        check(self.principal(), self.addressed.service(), Some(method))
    }

    /// What goes on beyond this: a call of this method, or anything at the service.
    #[must_use]
    pub fn hold(&self, method: Option<&str>) -> Hold {
        hold(self.principal(), self.addressed.service(), method)
    }

    /// The same, unless nothing is followed that could end it: a plain call is answered before its token ends, or soon after.
    pub(in crate::http) fn hold_if_followed(&self, method: Option<&str>) -> Option<Box<Hold>> {
        self.principal().revocation().is_followed().then(|| Box::new(self.hold(method)))
    }

    /// On whose behalf the request calls its service.
    pub(in crate::http) fn caller(&self) -> Arc<dyn Caller> {
        Arc::new(AdmittedCaller::new(self.principal(), [Arc::clone(self.target())].into()))
    }

    pub(in crate::http) fn tracing(&self) -> &Tracing {
        self.addressed.admission.bus.tracing()
    }

    /// A request to the service on behalf of the caller, and the connection it is made on.
    ///
    /// # Errors
    /// `Away`, after at most a few seconds.
    pub async fn request(&self) -> Result<(RequestBuilder, BusLink), Away> {
        self.addressed.admission.bus.request(self, self.addressed.service()).await
    }
}

impl BusCaller for Admitted {
    fn request(&self, client: &Client, _: &str) -> RequestBuilder {
        self.principal().request(client, self.target())
    }
}

impl Admitted<ServiceSet> {
    /// On whose behalf the request calls services.
    pub(in crate::http) fn caller(&self) -> Arc<dyn Caller> {
        Arc::new(AdmittedCaller::new(self.principal(), Arc::clone(&self.target().exposed)))
    }
}

impl<T: Target + Clone> AdmittedMessage<T> {
    pub(in crate::http) fn principal(&self) -> &Principal {
        &self.addressed.principal
    }

    /// Charges the further calls of a batch, besides the one it was admitted with: all of them or none.
    pub(in crate::http) fn charge_more(&self, calls: usize) -> Result<(), Refusal> {
        self.addressed.quota().charge_more(self.principal(), calls)
    }

    pub(in crate::http) fn target(&self) -> &T {
        &self.addressed.target
    }

    /// Admits a request in the message, which was charged with it.
    pub(in crate::http) fn admit(&self) -> Result<Admitted<T>, Refusal> {
        let permit = self.addressed.quota().take_request(self.principal(), self.addressed.service())?;
        Ok(Admitted { addressed: self.addressed.again(self.addressed.since), permit })
    }

    /// The client only listens: it needs no permit of a request.
    pub(super) fn admit_listener(self) -> Result<Admitted<T>, Refusal> {
        let Self { addressed, permit } = self;
        drop(permit);
        let permit = addressed.quota().take_stream(&addressed.principal, addressed.service())?;
        Ok(Admitted { addressed, permit })
    }

    /// What the response of the message holds.
    pub(in crate::http) fn into_permit(self) -> Permit {
        self.permit
    }
}

impl AdmittedSocket {
    pub(in crate::http) fn principal(&self) -> &Principal {
        &self.addressed.principal
    }

    pub(in crate::http) fn expose(&self) -> &Expose {
        &self.addressed.target
    }

    /// Until the socket has to be closed.
    pub(in crate::http) fn hold(&self) -> Hold {
        hold(self.principal(), self.addressed.service(), None)
    }

    /// Admits one message of the socket.
    pub(in crate::http) fn admit(&self) -> Result<Admitted, Refusal> {
        self.addressed.again(Instant::now()).admit()
    }
}

/// Refuses what operators have revoked.
fn check(principal: &Principal, service: &str, method: Option<&str>) -> Result<(), Refusal> {
    principal.refusal(service, method).map_or(Ok(()), |loss| Err(Refusal::of_loss_before(loss)))
}

fn hold(principal: &Principal, service: &str, method: Option<&str>) -> Hold {
    let (held, service, method) = (principal.clone(), service.to_owned(), method.map(str::to_owned));
    Hold::new(principal.revocation(), method.is_some(), move || held.loss(Some(&service), method.as_deref()))
}

impl AdmittedCaller {
    fn new(principal: &Principal, exposed: Arc<[Service]>) -> Self {
        Self { principal: principal.clone(), name: principal.name_with_token(), exposed }
    }

    fn expose(&self, service: &str) -> Option<&Service> {
        self.exposed.iter().find(|expose| expose.service.as_str() == service)
    }
}

impl Caller for AdmittedCaller {
    fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn admits(&self, service: &str) -> bool {
        self.expose(service).is_some_and(|expose| self.principal.check_scope(expose).is_ok())
            && self.principal.refusal(service, None).is_none()
    }

    fn revocation(&self) -> &Arc<Revocation> {
        self.principal.revocation()
    }

    fn loss(&self, call: Option<(&str, &str)>) -> Option<Loss> {
        self.principal.loss(call.map(|(service, _)| service), call.map(|(_, method)| method))
    }
}

impl BusCaller for AdmittedCaller {
    fn request(&self, client: &Client, service: &str) -> RequestBuilder {
        match self.expose(service) {
            Some(expose) => self.principal.request(client, expose),
            // Does not happen. If callers have tokens, this client has none of its own, so the call would fail.
            None => client.request(service),
        }
    }
}
