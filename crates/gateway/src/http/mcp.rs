//! The Model Context Protocol over Streamable HTTP: each message is a POST of its own, at one address for revision 2026-07-28 and those
//! with a handshake.
//! Never keeps a session: what was negotiated is sealed in its id, which does not authenticate anyone.

mod answer;
mod batch;
mod head;
mod listen;
mod running;
mod sessions;
mod tasks;
mod validity;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use hyper::{Response, StatusCode};
use sealwire::internal::client::TraceContext;
use sealwire::internal::rpc::strict_text;
use sealwire::internal::trace::Trace;
use sealwire_mcp::headers::Fields;
use sealwire_mcp::{ClientCapabilities, Id, Message, Meta, RequestParams, Revision, cancelled, json};
use serde_json::value::RawValue;
use tokio::sync::watch;
use tokio::time::sleep;

use self::answer::{Answering, Ended, accepted};
use self::head::LAST_EVENT_ID;
pub(super) use self::head::{Accepts, Claims};
use self::listen::{About, listening};
use self::running::Running;
use self::sessions::{McpClient, Sessions};
use self::tasks::Tasks;
use self::validity::{lost, over};
use super::config::{Expose, GatewayConfig, Identity};
use super::connections::{AnswerDeadline, Body};
use super::error::OpenError;
use super::fields::single;
use super::head::CheckedHead;
use super::identity::Principal;
use super::pipeline::admission::{Addressed, Admitted, AdmittedMessage, ServiceSet};
use super::pipeline::quota::Permit;
use super::refusal::Refusal;
use super::replicas::{ForwardedRequest, Replicas};
use super::response::with_permit;
use super::task_modes::TaskModes;
use crate::bus::Bus;
use crate::caller::{Caller, until_lost};
use crate::catalogue::{Exposed, Services};
use crate::mcp::message::{Fault, trace};
use crate::mcp::offers::Offers;
use crate::mcp::outbox::Outbox;
use crate::mcp::peer::Peer;
use crate::mcp::server::{FRESH, Server};
use crate::mcp::sessions::Parking;
use crate::mcp::tasks::tasks_are_known;
use crate::mcp::watch::within_bounds;
use crate::seal::Seal;

/// How often to check whether calls are still waiting.
const LOOK: Duration = Duration::from_millis(50);

/// The MCP servers of a gateway: one for all its services, and one for each.
#[derive(Debug)]
pub(super) struct Mcp {
    seal: Arc<Seal>,
    sessions: Sessions,
    all: Arc<Server>,
    each: HashMap<String, Arc<Server>>,
    running: Arc<Running>,
    /// `None` if the gateway has no other replicas.
    replicas: Option<Arc<Replicas>>,
    tasks: Tasks,
    stopping: watch::Receiver<bool>,
}

/// How to answer a message, besides for whom.
struct Sender {
    trace: TraceContext,
    server: Arc<Server>,
    accepts: Accepts,
    /// The fields of the head that repeat arguments.
    fields: Fields,
    /// The message to forward, if there are other replicas and none of them has forwarded it here.
    onward: Option<Box<ForwardedRequest>>,
    /// Whether another replica has forwarded it here.
    is_handed: bool,
}

impl Mcp {
    pub(super) fn new(
        config: &GatewayConfig,
        bus: &Arc<Bus>,
        stopping: watch::Receiver<bool>,
    ) -> Result<Self, OpenError> {
        let at = config.replicas.as_ref().map_or("", |replicas| &replicas.url);
        let seal = Arc::new(Seal::of(config.seal_key.as_deref())?.at(at));
        let replicas = Replicas::new(config, &seal).map_err(OpenError::Tls)?.map(Arc::new);
        // There can be many callers, each asking as often as it likes.
        let listed = if config.identity == (Identity::Own {}) { FRESH } else { config.refresh() };
        let (offers, parking) = (Offers::new(config.refresh()), Parking::default());
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
            let shared = (offers.at(address), parking.clone());
            Arc::new(Server::new(services, config.refresh(), listed, Some(Arc::clone(&seal)), shared))
        };
        let all = server("", &config.expose);
        let each = config
            .expose
            .iter()
            .map(|one| (one.service.to_string(), server(one.service.as_str(), std::slice::from_ref(one))))
            .collect();
        let sessions = Sessions::new(Arc::clone(&seal));
        Ok(Self { all, each, seal, sessions, running: Arc::default(), replicas, tasks: Tasks::default(), stopping })
    }

    pub(super) fn seal(&self) -> &Arc<Seal> {
        &self.seal
    }

    pub(super) fn task_modes(&self) -> TaskModes {
        TaskModes::new(self.each.clone())
    }

    fn servers(&self) -> impl Iterator<Item = &Arc<Server>> {
        self.each.values().chain([&self.all])
    }

    fn server(&self, target: &ServiceSet) -> Result<Arc<Server>, Refusal> {
        let found = target.service.as_ref().map_or(Some(&self.all), |expose| self.each.get(expose.service.as_str()));
        found.cloned().ok_or_else(|| Refusal::not_found("no such service is exposed here"))
    }

    /// Forwards a message to the replica at this address, and returns its answer.
    async fn ask_replica(&self, at: &str, onward: &ForwardedRequest, lost: Vec<u8>) -> Result<Response<Body>, Refusal> {
        match &self.replicas {
            Some(replicas) => Box::pin(replicas.ask(at, onward, lost)).await,
            None => Err(Refusal::unknown("this gateway has no replicas")),
        }
    }

    pub(super) fn tidy(&self) {
        self.servers().for_each(|server| server.tidy());
        self.tasks.tidy();
    }

    /// Completes when no call waits for answers from people.
    pub(super) async fn waited(&self) {
        while self.servers().any(|server| server.waits()) {
            sleep(LOOK).await;
        }
    }

    /// Drops all requests in progress, which cancels them at the services.
    pub(super) async fn close(&self) {
        self.tasks.end().await;
        self.servers().for_each(|server| server.give_up());
    }

    /// Clients that have no stream now do not come back to this process.
    pub(super) fn leave(&self) {
        self.servers().for_each(|server| server.leave());
    }
}

/// Logs a request once it was admitted: anything else costs its sender nothing, and would write as many lines as it likes.
pub(super) struct Log {
    principal: Principal,
    service: Option<String>,
    since: Instant,
    is_admitted: bool,
}

impl Log {
    pub(super) fn new(message: &Addressed<ServiceSet>) -> Self {
        let service = Some(message.service()).filter(|service| !service.is_empty()).map(str::to_owned);
        Self { principal: message.principal().clone(), service, since: message.since(), is_admitted: false }
    }

    /// The request was admitted.
    pub(super) fn begin(&mut self) {
        self.is_admitted = true;
    }

    pub(super) fn end(self, answer: &Result<Response<Body>, Refusal>) {
        if self.is_admitted {
            tracing::info!(
                target: "sealwire::gateway",
                caller = self.principal.as_str(),
                peer = self.principal.arrival.peer(),
                service = self.service.as_deref(),
                trace_id = self.principal.arrival.trace_id(),
                status = answer.as_ref().map_or_else(|refusal| refusal.status, Response::status).as_u16(),
                duration_ms = u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX),
                "mcp"
            );
        }
    }
}

impl Mcp {
    /// Answers a message.
    pub(super) async fn post(
        &self,
        message: AdmittedMessage<ServiceSet>,
        text: &[u8],
        head: &CheckedHead,
        claims: &Claims<'_>,
        accepts: Accepts,
    ) -> Result<Response<Body>, Refusal> {
        let principal = message.principal();
        let (is_handed, replicas) = (head.is_from_replica(), self.replicas.as_deref());
        if is_handed && !replicas.is_some_and(|replicas| replicas.have_handed(principal, head, text)) {
            return Err(Refusal::bad(StatusCode::FORBIDDEN, "not forwarded by a replica of this gateway"));
        }
        // Of a duplicate member, one parser would take the first and another the last.
        let text = strict_text(text).map_err(|flaw| Refusal::of_text(&flaw.into()))?.trim_ascii();
        let sender = Sender {
            server: self.server(message.target())?,
            accepts,
            trace: principal.arrival.trace().clone(),
            fields: head::mirrored(&head.headers),
            onward: replicas.filter(|_| !is_handed).map(|_| Box::new(ForwardedRequest::new(principal, head, text))),
            is_handed,
        };
        if text.starts_with('[') {
            return Box::pin(self.batch(message, sender, claims, text)).await;
        }
        let Message { method, id, params, result, error, .. } = read(text)?;
        match (method.as_deref(), id) {
            (Some(method), Some(raw_id)) => {
                let id: Id =
                    serde_json::from_str(raw_id.get()).map_err(|_| bad("`id` must be a string or a whole number"))?;
                let admitted = message.admit().map_err(|refusal| refusal.of_raw(raw_id))?;
                drop(message);
                let answer = match self.request(admitted, sender, claims, &id, method, params) {
                    Ok(answer) => answer.await,
                    Err(refusal) => Err(refusal),
                };
                answer.map_err(|refusal| refusal.of_raw(raw_id))
            }
            (Some(method), None) => {
                let client = self.sessions.client(principal, claims, Some(method), &Meta::of(params))?;
                if client.revision == Revision::V2026_07_28 {
                    claims
                        .check(method, &RequestParams::default())
                        .map_err(|fault| Refusal::of_fault(StatusCode::BAD_REQUEST, fault))?;
                } else {
                    Box::pin(self.note(&client, method, params, sender.onward.map(|onward| *onward))).await;
                }
                Ok(accepted())
            }
            (None, Some(id)) => {
                let client = self.sessions.client(principal, claims, None, &Meta::default())?;
                let is_awaited = client.has_session && sender.server.questions.answer(&client.peer, id, result, error);
                let asked_at = sender.server.questions.replica(&client.peer, id).filter(|_| client.has_session);
                match (is_awaited, asked_at, &sender.onward) {
                    (true, ..) => Ok(accepted()),
                    (false, Some(at), Some(onward)) if at != self.seal.place() => {
                        let answer = self.ask_replica(&at, onward, Vec::new()).await?;
                        Ok(with_permit(answer, message.into_permit()))
                    }
                    _ => Err(bad("no question waits for this answer")),
                }
            }
            (None, None) => Err(bad("`method` is missing")),
        }
    }

    /// Answers a client of this session that only listens.
    pub(super) async fn listen(
        &self,
        admitted: Admitted<ServiceSet>,
        head: &CheckedHead,
        session: &str,
    ) -> Result<Response<Body>, Refusal> {
        let session = self.sessions.open(admitted.principal(), session)?;
        let last_heard = single(&head.headers, &LAST_EVENT_ID)?.map(str::to_owned);
        if !Accepts::of(&head.headers)?.events {
            return Err(Accepts::refusal());
        }
        let server = self.server(admitted.target())?;
        let name = session.peer(admitted.principal());
        let about = About::Session { name, last_heard, knew: session.into_lists() };
        Ok(listening(server, admitted, about, self.stopping.clone()).await)
    }

    /// A notification in a revision with a handshake. A request to cancel that is not running here may be running at another replica.
    async fn note(
        &self,
        client: &McpClient,
        method: &str,
        params: Option<&RawValue>,
        onward: Option<ForwardedRequest>,
    ) {
        if method == "notifications/cancelled"
            && client.has_session
            && let Some(request) = cancelled(params)
        {
            let is_here = self.running.stop(&client.peer, request);
            if let (false, Some(replicas), Some(onward)) = (is_here, &self.replicas, onward) {
                let spawn = |telling| self.tasks.spawn(telling);
                replicas.tell(spawn, onward).await;
            }
        }
    }

    /// Begins a request, and returns the future of its answer. The first steps are synchronous: an async fn would keep room for them for
    /// as long as the future lasts.
    fn request<'a>(
        &'a self,
        admitted: Admitted<ServiceSet>,
        mut sender: Sender,
        claims: &Claims<'_>,
        id: &Id,
        method: &str,
        params: Option<&RawValue>,
    ) -> Result<BoxFuture<'a, Result<Response<Body>, Refusal>>, Refusal> {
        if method == "initialize" && Meta::of(params).version.is_none() {
            let (id, params) = (id.clone(), params.map(ToOwned::to_owned));
            return Ok(Box::pin(async move {
                let Sender { server, accepts, .. } = sender;
                let answer = self.sessions.begin(&server, &admitted, accepts, &id, params.as_deref()).await?;
                Ok(with_permit(answer, admitted.into_permit()))
            }));
        }
        let bad = |fault| Refusal::of_fault(StatusCode::BAD_REQUEST, fault);
        let mut asked = RequestParams::read(params).map_err(|error| bad(Fault::of_params(error)))?;
        let client = self.sessions.client(admitted.principal(), claims, Some(method), &asked.meta)?;
        if client.revision == Revision::V2026_07_28 {
            claims.check(method, &asked).map_err(bad)?;
            asked.fields = Some(std::mem::take(&mut sender.fields));
            if method == "subscriptions/listen" {
                if !sender.accepts.events {
                    return Err(Accepts::refusal());
                }
                within_bounds(&asked.notifications.uris).map_err(|fault| Refusal::of_fault(StatusCode::OK, fault))?;
                tasks_are_known(client.capabilities, &asked.notifications).map_err(bad)?;
                let (streaming, stopping) = (admitted.admit_stream()?, self.stopping.clone());
                let about = About::Subscription(id.clone(), asked.notifications);
                let listening = listening(sender.server, streaming, about, stopping);
                return Ok(Box::pin(listening.map(Ok)));
            }
        }
        let waits_at = asked.state.as_deref().and_then(|state| sender.server.parked.replica(&client.peer, state));
        if let Some(at) = waits_at.filter(|at| at != self.seal.place())
            && let Some(onward) = sender.onward.take()
        {
            let lost = Ended::new(client.revision, id, Err(lost("the replica that runs this call has gone away")));
            return Ok(Box::pin(async move {
                let answer = self.ask_replica(&at, &onward, lost.text).await?;
                Ok(with_permit(answer, admitted.into_permit()))
            }));
        }
        let (caller, principal) = (admitted.caller(), admitted.principal().clone());
        let permit = Arc::new(admitted.into_permit());
        let (answering, accepts, longest) =
            self.begin(sender, (caller, &principal), client, (id, method), asked, &permit)?;
        Ok(Box::pin(async move {
            let mut answer = answering.answer(accepts).await?;
            answer.extensions_mut().insert(AnswerDeadline(longest));
            Ok(with_permit(answer, permit))
        }))
    }

    /// Begins a request. Also returns what its client accepts, and how long the longest call may take.
    fn begin(
        &self,
        sender: Sender,
        (caller, principal): (Arc<dyn Caller>, &Principal),
        client: McpClient,
        (id, method): (&Id, &str),
        mut asked: RequestParams,
        permit: &Arc<Permit>,
    ) -> Result<(Answering, Accepts, Duration), Refusal> {
        let mut running =
            Running::begin(&self.running, &client, id).map_err(|fault| Refusal::of_fault(StatusCode::OK, fault))?;
        let Sender { server, accepts, trace, onward, is_handed, .. } = sender;
        let longest = server.longest();
        let McpClient { revision, mut capabilities, peer, has_session } = client;
        // Its next call, or its stream, may come to another replica.
        let is_for_all = ["logging/setLevel", "resources/subscribe", "resources/unsubscribe"].contains(&method);
        let replicas = if is_for_all && has_session { self.replicas.clone().zip(onward) } else { None };
        let is_remembered = is_handed && method == "resources/subscribe";
        let is_learnt = has_session && method.ends_with("/list") && asked.cursor.is_none();
        let tasks = self.tasks.clone();
        if revision != Revision::V2026_07_28 && !accepts.events {
            // Nothing can be asked without a stream of events.
            capabilities = ClientCapabilities::default();
        }
        let is_told = asked.meta.wants_progress() || server.level(&peer, revision, asked.meta.level).is_some();
        let (out, lines) = match is_told || !capabilities.is_empty() {
            true => {
                let (out, lines) = Outbox::of_request();
                (out, Some(lines))
            }
            false => (Outbox::closed(), None),
        };
        let trace = self::trace(&asked.meta, &trace);
        principal.arrival.names(&trace);
        let (around, observer) = (Trace::current(), principal.observer());
        let named = Arc::clone(principal.name());
        let peer = Peer { name: peer, principal: named, has_session, caller, out, trace, around, observer };
        let (id, method, held) = (id.clone(), method.to_owned(), Arc::clone(permit));
        let work = {
            let id = id.clone();
            async move {
                let _held = held;
                let outcome = async {
                    if is_learnt {
                        server.learn(&peer, &method).await;
                    }
                    let outcome = match is_remembered {
                        true => server.remember(&peer, &asked).await,
                        false => server.outcome(&peer, revision, capabilities, &method, &mut asked).await,
                    };
                    // Before the client hears of it.
                    if let (Ok(_), Some((replicas, onward))) = (&outcome, replicas) {
                        replicas.tell(|telling| tasks.spawn(telling), *onward).await;
                    }
                    outcome
                };
                let outcome = tokio::select! {
                    biased;
                    () = running.stopped() => None,
                    () = until_lost(&*peer.caller) => Some(Err(over())),
                    outcome = Box::pin(outcome) => Some(outcome),
                };
                outcome.map(|outcome| Ended::new(revision, &id, outcome))
            }
        };
        Ok((Answering::new(lines, work, (revision, id), self.tasks.clone()), accepts, longest))
    }
}

fn bad(message: &'static str) -> Refusal {
    Refusal::bad(StatusCode::BAD_REQUEST, message)
}

fn read(text: &str) -> Result<Message<'_>, Refusal> {
    let message: Message<'_> = json::object(text).map_err(|_| bad("not a JSON-RPC message"))?;
    match message.jsonrpc.as_deref() {
        Some("2.0") => Ok(message),
        _ => Err(bad("`jsonrpc` must be \"2.0\"")),
    }
}
