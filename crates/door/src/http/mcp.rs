//! The Model Context Protocol over Streamable HTTP: each message is a POST of its own, at one address for revision 2026-07-28 and those
//! with a handshake.
//! Never keeps a session: what was negotiated is sealed in its id, which does not authenticate anyone.

mod answer;
mod batch;
mod caller;
mod era;
mod head;
mod listen;
mod running;
mod tasks;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, ready};
use hyper::header::HeaderName;
use hyper::http::request::Parts;
use hyper::{Method, Response, StatusCode};
use sealwire::client::TraceContext;
use sealwire::rpc::strict_text;
use serde_json::json;
use serde_json::value::RawValue;
use tokio::time::sleep;

use self::answer::{Answering, Ended};
use self::caller::AtDoor;
use self::era::Spoken;
use self::head::{Accepts, Claims};
use self::running::Running;
use self::tasks::Tasks;
use super::config::{DoorConfig, Expose, Identity};
use super::connections::{Body, Received, Within};
use super::principal::{Place, Principal};
use super::refusal::Refusal;
use super::replicas::{FromReplica, Onward, Replicas};
use super::{Door, OpenError, answered, body, holding};
use crate::bus::Bus;
use crate::caller::Caller;
use crate::catalogue::{Exposed, Services};
use crate::json;
use crate::mcp::message::{self, Asked, Cancelled, Capabilities, Era, Fault, Id, Message};
use crate::mcp::offers::Offers;
use crate::mcp::outbox::Outbox;
use crate::mcp::server::{FRESH, Peer, Server};
use crate::seal::Seal;

/// The header with the session id.
const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");

/// How often to check whether calls are still waiting.
const LOOK: Duration = Duration::from_millis(50);

/// The MCP servers of a door: one for all its services, and one for each.
#[derive(Debug)]
pub(super) struct Mcp {
    seal: Arc<Seal>,
    all: Arc<Server>,
    each: HashMap<String, Arc<Server>>,
    exposed: Arc<[Expose]>,
    running: Arc<Running>,
    /// `None` if the door has no other replicas.
    replicas: Option<Arc<Replicas>>,
    tasks: Tasks,
}

/// The sender of a message, and how to answer it.
struct Sender {
    principal: Principal,
    caller: Arc<dyn Caller>,
    trace: TraceContext,
    server: Arc<Server>,
    accepts: Accepts,
    /// The message to forward, if there are other replicas and none of them has forwarded it here.
    onward: Option<Box<Onward>>,
}

impl Mcp {
    pub(super) fn new(config: &DoorConfig, bus: &Arc<Bus>) -> Result<Self, OpenError> {
        let at = config.replicas.as_ref().map_or("", |replicas| &replicas.url);
        let seal = Arc::new(Seal::of(config.seal_key.as_deref())?.at(at));
        let replicas = Replicas::new(config, &seal).map_err(OpenError::Tls)?.map(Arc::new);
        // There can be many callers, each asking as often as it likes.
        let listed = if config.identity == (Identity::Own {}) { FRESH } else { config.refresh() };
        let offers = Offers::new(config.refresh());
        let server = |address: &str, exposed: &[Expose]| {
            let exposed = exposed.iter().map(|expose| Exposed {
                service: expose.service.to_string(),
                deadline: expose.timeout(),
                allows: {
                    let expose = expose.clone();
                    Box::new(move |method| expose.allows(method))
                },
            });
            let services = Services::new(Arc::clone(bus), exposed.collect());
            Arc::new(Server::new(services, config.refresh(), listed, Some(Arc::clone(&seal)), offers.at(address)))
        };
        let all = server("", &config.expose);
        let each = config
            .expose
            .iter()
            .map(|one| (one.service.to_string(), server(one.service.as_str(), std::slice::from_ref(one))))
            .collect();
        let exposed = config.expose.clone().into();
        Ok(Self { all, each, exposed, seal, running: Arc::default(), replicas, tasks: Tasks::default() })
    }

    fn server(&self, service: Option<&str>) -> Result<Arc<Server>, Refusal> {
        let found = service.map_or(Some(&self.all), |service| self.each.get(service));
        found.cloned().ok_or_else(|| Refusal::not_found("no such service is exposed here"))
    }

    /// Forwards a message to the replica at this address, and returns its answer.
    async fn ask_replica(&self, at: &str, onward: &Onward, lost: Vec<u8>) -> Result<Response<Body>, Refusal> {
        match &self.replicas {
            Some(replicas) => Box::pin(replicas.ask(at, onward, lost)).await,
            None => Err(Refusal::unknown("this door has no replicas")),
        }
    }

    pub(super) fn tidy(&self) {
        for server in self.each.values().chain([&self.all]) {
            server.tidy();
        }
        self.tasks.tidy();
    }

    /// Completes when no call waits for answers from people.
    pub(super) async fn waited(&self) {
        while self.each.values().chain([&self.all]).any(|server| server.waits()) {
            sleep(LOOK).await;
        }
    }

    /// Drops all requests in progress, which cancels them at the services.
    pub(super) async fn close(&self) {
        self.tasks.end().await;
        for server in self.each.values().chain([&self.all]) {
            server.give_up();
        }
    }
}

impl Door {
    /// `POST /mcp` and `POST /mcp/<service>`, and `GET` for messages from the server.
    pub(super) async fn mcp(
        &self,
        principal: Principal,
        service: Option<&str>,
        head: &Parts,
        incoming: Received,
    ) -> Result<Response<Body>, Refusal> {
        let started = Instant::now();
        let caller = principal.clone();
        let mut is_admitted = false;
        let answer = self.mcp_answer(principal, service, head, incoming, &mut is_admitted).await;
        // What is not admitted costs its sender nothing, and would write as many lines as it likes.
        if is_admitted {
            tracing::info!(
                target: "sealwire::door",
                caller = caller.as_str(),
                service,
                status = answer.as_ref().map_or_else(|refusal| refusal.status, Response::status).as_u16(),
                duration_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX),
                "mcp"
            );
        }
        answer
    }

    async fn mcp_answer(
        &self,
        principal: Principal,
        service: Option<&str>,
        head: &Parts,
        incoming: Received,
        is_admitted: &mut bool,
    ) -> Result<Response<Body>, Refusal> {
        let server = self.mcp.server(service)?;
        let caller: Arc<dyn Caller> = Arc::new(AtDoor {
            callers: Arc::clone(&self.callers),
            name: self.callers.name(&principal),
            principal: principal.clone(),
            exposed: Arc::clone(&self.mcp.exposed),
        });
        match service {
            Some(service) => drop(self.exposed(service, &principal)?),
            None if self.config.expose.iter().any(|expose| caller.admits(expose.service.as_str())) => {}
            None => return Err(self.callers.admits_nowhere(&principal)),
        }
        let is_handed = head.extensions.get::<FromReplica>().is_some();
        let claims = Claims::of(head)?;
        match head.method {
            Method::POST => {}
            // Streamable HTTP 2025-11-25, "Listening for Messages from the Server"; removed in 2026-07-28.
            Method::GET if claims.session.is_some() && !is_handed => {
                let service = service.unwrap_or_default();
                // A call as any other, though it needs no place of one.
                drop(self.admission.read(&principal, service)?);
                *is_admitted = true;
                let place = self.admission.open_stream(&principal, service)?;
                self.mcp.session(&principal, claims.session.unwrap_or_default())?;
                if !Accepts::of(&head.headers)?.events {
                    return Err(Accepts::refusal());
                }
                return Ok(Box::pin(self.listening(server, caller, None, true, place)).await);
            }
            // The door stores nothing that `DELETE` could end.
            _ => return Err(Refusal::method(&[Method::POST])),
        }
        let accepts = Accepts::of(&head.headers)?;
        let service = service.unwrap_or_default();
        let reading = self.admission.read(&principal, service)?;
        *is_admitted = true;
        let text = body::json(head, incoming).await?;
        let replicas = self.mcp.replicas.as_deref();
        if is_handed && !replicas.is_some_and(|replicas| replicas.have_handed(&principal, head, &text)) {
            return Err(Refusal::bad(StatusCode::FORBIDDEN, "not forwarded by a replica of this door"));
        }
        let enter = || self.admission.enter(&principal, service).map(Arc::new);
        // Of a duplicate member, one parser would take the first and another the last.
        let text = strict_text(&text).map_err(|flaw| Refusal::of_text(&flaw.into()))?.trim_ascii();
        let onward = replicas.filter(|_| !is_handed).map(|_| Box::new(Onward::new(&principal, head, text)));
        let trace = head::trace(&head.headers);
        let sender = Sender { principal: principal.clone(), caller, trace, server, accepts, onward };
        if text.starts_with('[') {
            return Box::pin(self.mcp_batch(sender, &claims, text, reading)).await;
        }
        let message = read(text)?;
        let bad = |message| Refusal::bad(StatusCode::BAD_REQUEST, message);
        match (message.method.as_deref(), message.id) {
            (Some(method), Some(id)) => {
                let raw_id = id;
                let id: Id =
                    serde_json::from_str(raw_id.get()).map_err(|_| bad("`id` must be a string or a whole number"))?;
                let place = enter().map_err(|refusal| refusal.of_raw(raw_id))?;
                drop(reading);
                let answer = match self.mcp_request(sender, &claims, &id, method, message.params, place) {
                    Ok(answer) => answer.await,
                    Err(refusal) => Err(refusal),
                };
                answer.map_err(|refusal| refusal.of_raw(raw_id))
            }
            (Some(method), None) => {
                let spoken =
                    self.mcp.spoken(&sender.principal, &claims, Some(method), &message::Meta::of(message.params))?;
                if spoken.era == Era::Modern {
                    claims
                        .check(method, &Asked::default())
                        .map_err(|fault| Refusal::of_fault(StatusCode::BAD_REQUEST, fault))?;
                } else {
                    Box::pin(self.mcp_note(&spoken, method, message.params, sender.onward.map(|onward| *onward))).await;
                }
                Ok(accepted())
            }
            (None, Some(id)) => {
                let spoken = self.mcp.spoken(&sender.principal, &claims, None, &message::Meta::default())?;
                let is_awaited =
                    spoken.has_session && sender.server.answered(&spoken.peer, id, message.result, message.error);
                let asked_at = sender.server.asked_at(&spoken.peer, id).filter(|_| spoken.has_session);
                match (is_awaited, asked_at, &sender.onward) {
                    (true, ..) => Ok(accepted()),
                    (false, Some(at), Some(onward)) if at != self.mcp.seal.place() => {
                        let answer = self.mcp.ask_replica(&at, onward, Vec::new()).await?;
                        Ok(holding(answer, reading))
                    }
                    _ => Err(bad("no question waits for this answer")),
                }
            }
            (None, None) => Err(bad("`method` is missing")),
        }
    }

    /// A notification in a revision with a handshake. A request to cancel that is not running here may be running at another replica.
    async fn mcp_note(&self, spoken: &Spoken, method: &str, params: Option<&RawValue>, onward: Option<Onward>) {
        if method == "notifications/cancelled"
            && spoken.has_session
            && let Some(Ok(cancelled)) = params.map(|params| json::object::<Cancelled>(params.get()))
        {
            let is_here = self.mcp.running.stop(&spoken.peer, cancelled.request);
            if let (false, Some(replicas), Some(onward)) = (is_here, &self.mcp.replicas, onward) {
                let spawn = |telling| self.mcp.tasks.spawn(telling);
                replicas.tell(spawn, onward).await;
            }
        }
    }

    /// Begins a request, and returns the future of its answer. The first steps are synchronous: an async fn would keep room for them for
    /// as long as the future lasts.
    fn mcp_request<'a>(
        &'a self,
        mut sender: Sender,
        claims: &Claims<'_>,
        id: &Id,
        method: &str,
        params: Option<&RawValue>,
        place: Arc<Place>,
    ) -> Result<BoxFuture<'a, Result<Response<Body>, Refusal>>, Refusal> {
        if method == "initialize" && message::Meta::of(params).version.is_none() {
            let answer = holding(self.mcp.initialize(&sender, id, params)?, place);
            return Ok(Box::pin(ready(Ok(answer))));
        }
        let bad = |fault| Refusal::of_fault(StatusCode::BAD_REQUEST, fault);
        let asked = Asked::read(params).map_err(bad)?;
        let spoken = self.mcp.spoken(&sender.principal, claims, Some(method), &asked.meta)?;
        if spoken.era == Era::Modern {
            claims.check(method, &asked).map_err(bad)?;
            if method == "subscriptions/listen" {
                if !sender.accepts.events {
                    return Err(Accepts::refusal());
                }
                let stream = self.admission.open_stream(&sender.principal, place.service())?;
                let Sender { server, caller, .. } = sender;
                let listening = self.listening(server, caller, Some(id.clone()), asked.notifications.tools, stream);
                return Ok(Box::pin(listening.map(Ok)));
            }
        }
        let waits_at = asked.state.as_deref().and_then(|state| sender.server.waits_at(&spoken.peer, state));
        if let Some(at) = waits_at.filter(|at| at != self.mcp.seal.place())
            && let Some(onward) = sender.onward.take()
        {
            let lost = Ended::new(spoken.era, id, Err(lost("the replica that runs this call has gone away")));
            return Ok(Box::pin(async move {
                let answer = self.mcp.ask_replica(&at, &onward, lost.text).await?;
                Ok(holding(answer, place))
            }));
        }
        let (answering, accepts, longest) = self.begin(sender, spoken, id, method, asked, &place)?;
        Ok(Box::pin(async move {
            let mut answer = answering.answer(accepts).await?;
            answer.extensions_mut().insert(Within(longest));
            Ok(holding(answer, place))
        }))
    }

    /// Begins a request. Also returns what its client accepts, and how long the longest call may take.
    fn begin(
        &self,
        sender: Sender,
        spoken: Spoken,
        id: &Id,
        method: &str,
        mut asked: Asked,
        place: &Arc<Place>,
    ) -> Result<(Answering, Accepts, Duration), Refusal> {
        let mut running =
            Running::begin(&self.mcp.running, &spoken, id).map_err(|fault| Refusal::of_fault(StatusCode::OK, fault))?;
        let Sender { server, accepts, principal, caller, trace, .. } = sender;
        let longest = server.longest();
        let Spoken { era, mut capabilities, peer, .. } = spoken;
        if era != Era::Modern && !accepts.events {
            // People cannot be asked without a stream of events.
            capabilities = Capabilities::default();
        }
        let (out, lines) = match asked.meta.is_told() || capabilities.forms() {
            true => {
                let (out, lines) = Outbox::of_request();
                (out, Some(lines))
            }
            false => (Outbox::closed(), None),
        };
        let trace = asked.meta.trace(&trace);
        let peer = Peer { name: peer, caller, out, trace, observer: principal.observer() };
        let (id, method, held) = (id.clone(), method.to_owned(), Arc::clone(place));
        let work = {
            let id = id.clone();
            async move {
                let _held = held;
                let outcome = tokio::select! {
                    biased;
                    () = running.stopped() => None,
                    () = lapsed(&*peer.caller) => Some(Err(over())),
                    outcome = Box::pin(server.outcome(&peer, era, &capabilities, &method, &mut asked)) => Some(outcome),
                };
                outcome.map(|outcome| Ended::new(era, &id, outcome))
            }
        };
        Ok((Answering::new(lines, work, (era, id), self.mcp.tasks.clone()), accepts, longest))
    }
}

/// The error for a call that may have run.
fn lost(why: &str) -> Fault {
    Fault::internal(why).with(json!({ "outcome": "unknown" }))
}

/// How often to check whether a caller may still receive what it has begun.
const HOLDS: Duration = Duration::from_secs(2);

/// Completes when the caller may no longer receive it.
async fn lapsed(caller: &dyn Caller) {
    while caller.holds() {
        sleep(HOLDS).await;
    }
}

/// The error in that case.
fn over() -> Fault {
    lost("the caller's token has expired or was revoked")
}

fn read(text: &str) -> Result<Message<'_>, Refusal> {
    let bad = |message| Refusal::bad(StatusCode::BAD_REQUEST, message);
    let message: Message<'_> = json::object(text).map_err(|_| bad("not a JSON-RPC message"))?;
    match message.jsonrpc.as_deref() {
        Some("2.0") => Ok(message),
        _ => Err(bad("`jsonrpc` must be \"2.0\"")),
    }
}

/// The answer to a message that needs none.
fn accepted() -> Response<Body> {
    let mut answer = answered(StatusCode::ACCEPTED, "application/json", "");
    answer.headers_mut().remove(hyper::header::CONTENT_TYPE);
    answer
}
