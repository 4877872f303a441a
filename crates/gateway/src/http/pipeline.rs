//! The whole story of a request: its head is checked, its caller authenticated, its address resolved, it is admitted, its body is read, and
//! a dialect answers it. Each of these steps makes the type that the next one takes.
//! Never lets a dialect see a request that was not admitted.

pub(crate) mod admission;
pub(super) mod authenticated;
pub(super) mod body;
pub(crate) mod quota;

use std::future::Future;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use hyper::header::{ALLOW, CACHE_CONTROL, CONNECTION, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use hyper::http::request::Parts;
use hyper::{Method, Request, Response, StatusCode};
use sealwire::internal::trace::Trace;

use self::admission::{Addressed, Service, ServiceSet};
use self::authenticated::Authenticated;
use self::body::UnreadBody;
use super::connections::{Anonymous, Body, CloseConnection, Peer, RequestBody};
use super::dialect::Route;
use super::head::{self, CheckedHead};
use super::identity::METADATA;
use super::mcp::{self, Accepts, Claims};
use super::meters::{dialect, route};
use super::refusal::{Refusal, require_method};
use super::response::response;
use super::{Gateway, approvals, events, page, rpc, ws};
use crate::spans::RequestSpan;

impl Gateway {
    /// Answers a request. Its head is checked at once, which is quick: an HTTP/2 connection does nothing else meanwhile.
    pub(super) fn handle(
        self: Arc<Self>,
        request: Request<RequestBody>,
    ) -> impl Future<Output = Response<Body>> + Send {
        let (parts, body) = request.into_parts();
        let (begun, dialect) = (self.meters.begin(), dialect(parts.uri.path()));
        let checked = self.check(parts);
        async move {
            let response = match checked {
                ControlFlow::Break(response) => anonymous(response),
                ControlFlow::Continue(head) => {
                    let mut response = match self.respond_to_anyone(&head) {
                        Some(response) => anonymous(response),
                        None => self
                            .respond(&head, body.into())
                            .await
                            .unwrap_or_else(|refusal| self.refused(&head, refusal)),
                    };
                    head.share(&mut response);
                    response
                }
            };
            self.meters.responded(begun, dialect, response.status());
            self.complete(response)
        }
    }

    /// Checks the head of a request. Breaks with the response to one that may not pass, or needs nothing but its head.
    fn check(&self, mut parts: Parts) -> ControlFlow<Response<Body>, CheckedHead> {
        head::normalize(&mut parts);
        if let Err(refusal) = head::refuse_ambiguous(&parts) {
            return ControlFlow::Break(self.refuse_head(&parts, refusal));
        }
        if let Some(response) = self.health(&parts) {
            return ControlFlow::Break(response);
        }
        let head = match CheckedHead::check(&self.config, parts) {
            Ok(head) => head,
            Err(refused) => {
                let (parts, refusal) = *refused;
                return ControlFlow::Break(self.refuse_head(&parts, refusal));
            }
        };
        let mut response = match head::preflight(&head) {
            Ok(None) => return ControlFlow::Continue(head),
            Ok(Some(response)) => response,
            Err(refusal) => self.refuse_head(&head, refusal),
        };
        head.share(&mut response);
        ControlFlow::Break(response)
    }

    /// The response to a health check.
    fn health(&self, head: &Parts) -> Option<Response<Body>> {
        let is_well = match head.uri.path() {
            "/livez" => true,
            // A balancer that asks this sends callers elsewhere.
            "/readyz" => self.conditions().iter().all(|condition| condition.unmet.is_none()),
            _ => return None,
        };
        let (status, text) = match (&head.method, is_well) {
            (&(Method::GET | Method::HEAD), true) => (StatusCode::OK, "ok\n"),
            (&(Method::GET | Method::HEAD), false) => (
                StatusCode::SERVICE_UNAVAILABLE,
                "the broker cannot be reached, the shared memory of replicas is not available yet, a changed file is refused, what \
                 operators have revoked is not known, or the gateway is stopping\n",
            ),
            _ => (StatusCode::METHOD_NOT_ALLOWED, "GET\n"),
        };
        let mut response = response(status, "text/plain; charset=utf-8", text);
        if status == StatusCode::METHOD_NOT_ALLOWED {
            response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        }
        Some(response)
    }

    /// The response to a request whose head is refused. The log says so once a second for each status, since anyone can cause it.
    fn refuse_head(&self, head: &Parts, refusal: Refusal) -> Response<Body> {
        if let Some(suppressed) = self.refused_heads.check(&refusal.status.as_u16()) {
            tracing::info!(
                target: "sealwire::gateway",
                peer = Peer::of(head),
                status = refusal.status.as_u16(),
                reason = refusal.message(),
                suppressed,
                "a request was refused"
            );
        }
        self.refused(head, refusal)
    }

    /// The response to a request that needs no caller.
    fn respond_to_anyone(&self, head: &CheckedHead) -> Option<Response<Body>> {
        if let Some(about) = head.uri.path().strip_prefix(METADATA) {
            return Some(self.metadata(head, about).unwrap_or_else(|refusal| self.refused(head, refusal)));
        }
        if let Some(response) = self.dialect.as_ref().and_then(|dialect| dialect.respond_to_anyone(head)) {
            return Some(response.unwrap_or_else(Refusal::response));
        }
        if let Some(response) = self.approvals.as_ref().and_then(|_| approvals::page(head)) {
            return Some(response.unwrap_or_else(Refusal::response));
        }
        self.page.as_ref().filter(|_| page::is_at(head)).map(|page| page.respond(head))
    }

    fn metadata(&self, head: &CheckedHead, about: &str) -> Result<Response<Body>, Refusal> {
        let metadata = self.callers.metadata(about).ok_or_else(|| Refusal::not_found("not found"))?;
        require_method(&head.method, Method::GET)?;
        Ok(response(StatusCode::OK, "application/json", metadata))
    }

    /// The response to a request that needs a caller. The page shows what is refused before anything was sent.
    async fn respond(&self, head: &CheckedHead, body: UnreadBody) -> Result<Response<Body>, Refusal> {
        let since = Instant::now();
        let caller = Authenticated::sender(&self.callers, head).await;
        let Some(page) = &self.page else { return self.traced(caller?, head, body, since).await };
        let observer = page.observer(caller.as_ref().ok().map(Authenticated::principal), head);
        let response = match caller {
            Ok(caller) => self.traced(caller.with_observer(observer.clone()), head, body, since).await,
            Err(refusal) => Err(refusal),
        };
        response.inspect_err(|refusal| {
            let service = head.uri.path().split('/').nth(2).unwrap_or_default();
            observer.refused(refusal, service);
        })
    }

    /// Dispatches a request within its span, if anybody wants one.
    async fn traced(
        &self,
        caller: Authenticated,
        head: &CheckedHead,
        body: UnreadBody,
        since: Instant,
    ) -> Result<Response<Body>, Refusal> {
        let principal = caller.principal();
        let (context, name) = (principal.arrival.trace(), principal.as_str());
        let mut span = RequestSpan::begin(self.bus.tracing(), &Trace::default(), context, name, since.elapsed());
        span.describe_http(&head.method, route(head.uri.path()));
        let dispatching = self.dispatch(caller, head, body);
        let response = match span.trace().is_empty() {
            true => dispatching.await,
            // Boxed: it would enlarge what a connection keeps for every request.
            false => span.around(Box::pin(dispatching)).await,
        };
        let status = response.as_ref().map_or_else(|refusal| refusal.status, Response::status);
        span.responded(status.as_u16());
        response
    }

    /// Resolves the address of a request, has it admitted, and hands it to its dialect. What costs its caller nothing is checked before.
    async fn dispatch(
        &self,
        caller: Authenticated,
        head: &CheckedHead,
        body: UnreadBody,
    ) -> Result<Response<Body>, Refusal> {
        head::may_get(&self.config, head)?;
        let mut steps = head.uri.path().split('/').skip(1);
        let path = (steps.next(), steps.next(), steps.next(), steps.next());
        let is_last = steps.next().is_none();
        // The longer ones are boxed: otherwise, what a connection keeps and moves for every request would be as large as the largest.
        match path {
            (Some("mcp"), service, None, _) => Box::pin(self.mcp(caller, service, head, body)).await,
            // Replicas forward nothing else.
            _ if head.is_from_replica() => Err(Refusal::not_found("not found on the listener for replicas")),
            (Some("rpc"), Some(service), None, _) => {
                let call = self.address(caller, service)?;
                require_method(&head.method, Method::POST)?;
                let responding = async {
                    let (admitted, text) = call.receive(head, body, Addressed::admit).await?;
                    rpc::call(admitted, text).await
                };
                Box::pin(responding).await
            }
            (Some("rpc"), Some(service), Some("stream"), None) => {
                let call = self.address(caller, service)?;
                let query = events::query(head)?;
                let responding = async {
                    let (admitted, text) = match query {
                        Some(query) => (call.admit_with_stream()?, events::call_of(query)?),
                        None => call.receive(head, body, Addressed::admit_with_stream).await?,
                    };
                    events::stream(admitted, text).await
                };
                Box::pin(responding).await
            }
            (Some("rpc"), Some(service), Some("ws"), None) => {
                let socket = self.address(caller, service)?;
                let handshake = ws::accept(head)?;
                if self.is_stopping() {
                    return Err(Refusal::stopping());
                }
                Ok(ws::open(socket.admit_socket()?, handshake, self.config.drain()))
            }
            (Some("rpc"), Some(service), Some("ws"), Some("ticket")) if is_last => {
                let ticket = self.address(caller, service)?;
                ws::check_ticket_request(head)?;
                ws::ticket(&ticket.admit()?, head)
            }
            (Some("rpc"), Some(service), Some("openrpc.json"), None) => {
                let document = self.address(caller, service)?;
                require_method(&head.method, Method::GET)?;
                Box::pin(rpc::openrpc(document.admit()?)).await
            }
            (Some("approvals"), Some(service), None, _) => Box::pin(self.approve(caller, service, head, body)).await,
            _ => Box::pin(self.other_dialect(caller, head, body)).await,
        }
    }

    /// `POST /approvals/<service>`: a message that an approver has signed.
    async fn approve(
        &self,
        caller: Authenticated,
        service: &str,
        head: &CheckedHead,
        body: UnreadBody,
    ) -> Result<Response<Body>, Refusal> {
        let none = || Refusal::not_found("no approvals are given here");
        let approvals = self.approvals.as_ref().ok_or_else(none)?;
        if !self.service(service)?.approvals {
            return Err(none());
        }
        let message = self.address(caller, service)?;
        require_method(&head.method, Method::POST)?;
        let (admitted, text) = message.receive(head, body, Addressed::admit).await?;
        approvals.relay(admitted, text).await
    }

    /// A request in a dialect of another package.
    async fn other_dialect(
        &self,
        caller: Authenticated,
        head: &CheckedHead,
        body: UnreadBody,
    ) -> Result<Response<Body>, Refusal> {
        let found = self.dialect.as_ref().and_then(|dialect| Some((dialect, dialect.route(head)?)));
        let Some((dialect, route)) = found else { return Err(Refusal::not_found("not found")) };
        let Route { service, has_body } = route?;
        let call = Addressed::to(&self.admission, caller, service)?;
        if !has_body {
            require_method(&head.method, Method::GET)?;
            return dialect.respond(call.admit()?, None, head).await;
        }
        require_method(&head.method, Method::POST)?;
        let received = call.receive(head, body, Addressed::admit).await;
        let (admitted, text) = received.map_err(|refusal| dialect.translate(refusal))?;
        dialect.respond(admitted, Some(text), head).await
    }

    /// `POST /mcp` and `POST /mcp/<service>`, and `GET` for messages from the server.
    async fn mcp(
        &self,
        caller: Authenticated,
        service: Option<&str>,
        head: &CheckedHead,
        body: UnreadBody,
    ) -> Result<Response<Body>, Refusal> {
        let service = service.map(|service| self.service(service)).transpose()?.cloned();
        let target = ServiceSet { service, exposed: Arc::clone(&self.exposed) };
        let message = Addressed::to_several(&self.admission, caller, target)?;
        let mut log = mcp::Log::new(&message);
        let response = self.mcp_message(message, head, body, &mut log).await;
        log.end(&response);
        response
    }

    async fn mcp_message(
        &self,
        message: Addressed<ServiceSet>,
        head: &CheckedHead,
        body: UnreadBody,
        log: &mut mcp::Log,
    ) -> Result<Response<Body>, Refusal> {
        let claims = Claims::of(head)?;
        match (&head.method, claims.session) {
            (&Method::POST, _) => {
                let accepts = Accepts::of(&head.headers)?;
                let admit = |message: Addressed<ServiceSet>| message.admit_message().inspect(|_| log.begin());
                let (message, text) = message.receive(head, body, admit).await?;
                self.mcp.post(message, &text, head, &claims, accepts).await
            }
            // Streamable HTTP 2025-11-25, "Listening for Messages from the Server"; removed in 2026-07-28. It is charged as any other
            // call, though it needs no permit of one.
            (&Method::GET, Some(session)) if !head.is_from_replica() => {
                let message = message.admit_message().inspect(|_| log.begin())?;
                Box::pin(self.mcp.listen(message.admit_listener()?, head, session)).await
            }
            // The gateway stores nothing that `DELETE` could end.
            _ => Err(Refusal::method(&[Method::POST])),
        }
    }

    fn address(&self, caller: Authenticated, service: &str) -> Result<Addressed, Refusal> {
        Addressed::to(&self.admission, caller, self.service(service)?)
    }

    fn service(&self, service: &str) -> Result<&Service, Refusal> {
        let found = self.exposed.iter().find(|expose| expose.service.as_str() == service);
        found.ok_or_else(|| Refusal::not_found("no such service is exposed here"))
    }

    /// Adds the headers that every response has.
    fn complete(&self, mut response: Response<Body>) -> Response<Body> {
        let is_socket = response.status() == StatusCode::SWITCHING_PROTOCOLS;
        // A WebSocket is closed by its own session.
        if self.is_stopping() && !is_socket {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            response.extensions_mut().insert(CloseConnection);
        }
        let headers = response.headers_mut();
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
        response
    }

    /// A refusal as a response, in the form of the protocol at its path.
    fn refused(&self, head: &Parts, refusal: Refusal) -> Response<Body> {
        match (head.uri.path().split('/').nth(1), &self.dialect) {
            (Some("mcp"), _) => refusal.of_mcp().response(),
            (_, Some(dialect)) if dialect.is_for(head) => dialect.translate(refusal).response(),
            _ => refusal.response(),
        }
    }
}

/// A response whose caller is not known.
fn anonymous(mut response: Response<Body>) -> Response<Body> {
    response.extensions_mut().insert(Anonymous);
    response
}
